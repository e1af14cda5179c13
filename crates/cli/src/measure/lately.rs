//! Values that histograms got in the latest interval, which the cumulative values do not show.

use ingraft_model::Distribution;

use super::TargetMeasurement;

/// The values of a histogram between the two latest readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lately {
    /// Time between the readings, in nanoseconds.
    pub(crate) ns: u64,
    /// The values by size, in the metric's unit; `min` and `max` are bounds ([`Distribution::minus`]).
    pub(crate) distribution: Distribution,
}

impl Lately {
    /// Combines the values of two targets; the time is the longer one.
    pub(crate) fn merge(mut self, other: &Lately) -> Lately {
        self.ns = self.ns.max(other.ns);
        self.distribution.merge(&other.distribution);
        self
    }
}

impl TargetMeasurement {
    /// The values of a histogram since the previous reading; `None` before the second reading, and for other metrics.
    pub(crate) fn lately(&self, pair: usize) -> Option<Lately> {
        let before = self.before.as_ref()?;
        let ns = self.reading.time_ns.checked_sub(before.time_ns).filter(|&ns| ns > 0)?;
        let now = self.reading.values.get(pair)?.details().distribution.as_deref()?;
        let distribution = match before.values.get(pair)?.details().distribution.as_deref() {
            Some(earlier) => now.minus(earlier),
            None => now.clone(),
        };
        Some(Lately { ns, distribution })
    }
}
