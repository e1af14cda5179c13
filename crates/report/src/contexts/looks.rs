//! Times from looks at the contexts of threads, which are random samples.

use super::{ContextProfile, ContextValue};

/// Name of the number of looks among the metrics. A profile with this metric has its time from looks.
const LOOKS: &str = "looks";
/// Name of the time among the metrics.
const TIME: &str = "wall_ns";
/// Nanoseconds in a microsecond.
const MICROSECOND: f64 = 1e3;

/// The time of a profile that looks have told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookedTime {
    /// Index of the time in [`ContextProfile::metrics`].
    pub time: usize,
    /// Index of the number of looks there.
    pub looks: usize,
    /// Number of looks at threads, those outside of all contexts too.
    pub count: i64,
    /// The time that they stand for, in nanoseconds.
    pub whole_ns: i64,
    /// Number of looks that, at equal distances, would have the same error. It is below `count` if some came late.
    pub effective: f64,
}

impl LookedTime {
    /// Standard error of a time in nanoseconds that looks have told.
    pub fn error(&self, ns: i64) -> f64 {
        if self.whole_ns <= 0 || self.effective <= 0.0 {
            return 0.0;
        }
        let (whole, share) = (self.whole_ns as f64, (ns as f64 / self.whole_ns as f64).clamp(0.0, 1.0));
        whole * (share * (1.0 - share) / self.effective).sqrt()
    }
}

impl ContextProfile {
    /// The time that looks have told; `None` if clocks have, or if the profile has no times.
    pub fn looked_time(&self) -> Option<LookedTime> {
        let metric = |name: &str| self.metrics.iter().position(|metric| metric == name);
        let (time, looks) = (metric(TIME)?, metric(LOOKS)?);
        let sum = |metric: usize| {
            let of = ContextValue::Metric(metric);
            let inside = self.values(of).into_iter().fold(0, i64::saturating_add);
            inside.saturating_add(self.value_outside(of).unwrap_or(0))
        };
        let (count, whole_ns) = (sum(looks), sum(time));
        let squares = self.look_squares as f64;
        let effective = (whole_ns as f64 / MICROSECOND).powi(2) / squares.max(1.0);
        Some(LookedTime { time, looks, count, whole_ns, effective: effective.clamp(0.0, count.max(0) as f64) })
    }
}

#[cfg(test)]
mod tests {
    use crate::contexts::tests::small;

    use super::*;

    /// A profile in which looks have told these times outside of all contexts, each by one look.
    fn looked(times_us: &[i64]) -> LookedTime {
        let mut profile = small();
        let none = vec![0; 2];
        profile.contexts.iter_mut().for_each(|context| context.metrics.clone_from(&none));
        profile.metrics = vec!["wall_ns".to_owned(), "looks".to_owned()];
        profile.outside = vec![times_us.iter().sum::<i64>() * 1000, times_us.len() as i64];
        profile.look_squares = times_us.iter().map(|us| us.unsigned_abs().pow(2)).sum();
        profile.looked_time().expect("looks")
    }

    #[test]
    fn clocked_time_has_no_looks() {
        assert_eq!(small().looked_time(), None);
    }

    #[test]
    fn looks_at_equal_distances_count_fully() {
        let looked = looked(&[1000; 400]);
        assert_eq!((looked.count, looked.whole_ns, looked.effective), (400, 400_000_000, 400.0));
        // 30 % of 400 looks: the standard error is 2.29 %.
        let error = looked.error(120_000_000) / 400_000_000.0;
        assert!((error - (0.3_f64 * 0.7 / 400.0).sqrt()).abs() < 1e-9, "{error}");
        assert_eq!((looked.error(0), looked.error(400_000_000)), (0.0, 0.0));
    }

    #[test]
    fn late_looks_make_the_error_larger() {
        let mut times = vec![1000; 300];
        times.push(300_000);
        let looked = looked(&times);
        assert!((3.9..4.1).contains(&looked.effective), "{}", looked.effective);
        assert_eq!(LookedTime { effective: 0.0, ..looked }.error(5), 0.0);
    }
}
