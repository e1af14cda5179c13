//! Rates of values.

use super::TargetMeasurement;

impl TargetMeasurement {
    /// The change of a pair's value per second between the two latest readings; for a time, the change in seconds.
    pub(crate) fn rate(&self, pair: usize) -> Option<f64> {
        let before = self.before.as_ref()?;
        let seconds = self.reading.time_ns.checked_sub(before.time_ns).filter(|&ns| ns > 0)? as f64 / 1e9;
        let change = self.reading.values.get(pair)?.value.wrapping_sub(before.values.get(pair)?.value);
        Some(change as f64 * self.rate_unit(pair) / seconds)
    }

    /// Unit of the rate of a pair's value: of a time, seconds for nanoseconds.
    pub(crate) fn rate_unit(&self, pair: usize) -> f64 {
        if self.enabled.pairs.get(pair).is_some_and(|p| p.metric.is_time()) { 1e-9 } else { 1.0 }
    }

    /// The change of a pair's value per second since the first reading.
    pub(crate) fn mean_rate(&self, pair: usize) -> Option<f64> {
        let seconds = self.reading.time_ns.checked_sub(self.first_ns?).filter(|&ns| ns > 0)? as f64 / 1e9;
        Some(self.reading.values.get(pair)?.value as f64 / seconds)
    }
}
