//! Histograms in the form for scripts: quantiles, and buckets.

use ingraft_model::{Bucket, Distribution};
use serde::Serialize;

/// Quantiles of the values of a histogram, in the metric's unit; null if there is no value.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Quantiles {
    /// Sum; null also if it may have more than 64 bits.
    pub(crate) sum: Option<u64>,
    /// Standard deviation; null also if it is not known.
    pub(crate) stddev: Option<f64>,
    pub(crate) min: Option<u64>,
    pub(crate) p50: Option<u64>,
    pub(crate) p90: Option<u64>,
    pub(crate) p99: Option<u64>,
    pub(crate) p999: Option<u64>,
    pub(crate) max: Option<u64>,
    /// Buckets as their first value (inclusive), their end (exclusive) and the number of values in them; empty buckets are left out.
    pub(crate) buckets: Vec<[u64; 3]>,
}

impl From<&Distribution> for Quantiles {
    fn from(d: &Distribution) -> Self {
        Quantiles {
            sum: d.exact_sum().filter(|_| d.count > 0),
            stddev: d.stddev(),
            min: d.quantile(0.0),
            p50: d.quantile(0.5),
            p90: d.quantile(0.9),
            p99: d.quantile(0.99),
            p999: d.quantile(0.999),
            max: d.quantile(1.0),
            buckets: d.buckets.iter().map(|&Bucket { first, end, count }| [first, end, count]).collect(),
        }
    }
}

/// The values that a histogram got since the previous reading.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Interval {
    /// Nanoseconds between the two readings.
    pub(crate) ns: u64,
    /// Number of values.
    pub(crate) count: u64,
    /// Quantiles of these values. `min` and `max` are bounds that no value exceeds; each is off by less than the width of its bucket.
    #[serde(flatten)]
    pub(crate) quantiles: Quantiles,
}

/// Numbers of calls, and the times of those that were timed, in nanoseconds; null if none was.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) calls: i64,
    /// Number of the calls that the times are of.
    pub(crate) timed: u64,
    /// Sum; null also if it may have more than 64 bits.
    pub(crate) sum_ns: Option<u64>,
    /// Sum of the times without the callees that are measured; null also if it is not known.
    pub(crate) self_ns: Option<u64>,
    /// Standard deviation; null also if it is not known.
    pub(crate) stddev_ns: Option<f64>,
    pub(crate) min_ns: Option<u64>,
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p90_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    pub(crate) p999_ns: Option<u64>,
    pub(crate) max_ns: Option<u64>,
    /// Buckets as in [`Quantiles`].
    pub(crate) buckets: Vec<[u64; 3]>,
}

impl Times {
    /// Converts the distribution of the times of some of `calls` calls.
    pub(crate) fn of(calls: i64, ns: Option<&Distribution>) -> Self {
        let Quantiles { sum, stddev, min, p50, p90, p99, p999, max, buckets } =
            ns.unwrap_or(&Distribution::default()).into();
        Times {
            calls,
            timed: ns.map_or(0, |d| d.count),
            sum_ns: sum,
            self_ns: ns.filter(|d| d.count > 0).and_then(|d| d.own),
            stddev_ns: stddev,
            min_ns: min,
            p50_ns: p50,
            p90_ns: p90,
            p99_ns: p99,
            p999_ns: p999,
            max_ns: max,
            buckets,
        }
    }
}
