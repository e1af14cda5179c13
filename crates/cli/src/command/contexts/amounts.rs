//! Values of metrics for people.

use ingraft_api::ContextMetric;
use ingraft_report::{ContextProfile, ContextUnit, LookedTime};

use crate::output::number::{bytes, grouped, percent, time};

/// Names of the metrics of memory that is not freed yet.
const LIVE_BYTES: &str = "live_bytes";
const LIVE_BLOCKS: &str = "live_blocks";

/// The title of a metric by its name in the profile.
pub(crate) fn title(metric: &str) -> String {
    match metric {
        "wall_ns" => "TIME".to_owned(),
        "cpu_ns" => "CPU".to_owned(),
        "allocated_bytes" => "BYTES".to_owned(),
        LIVE_BYTES => "LIVE".to_owned(),
        LIVE_BLOCKS => "BLOCKS".to_owned(),
        "wait_ns" => "WAIT".to_owned(),
        "lock_wait_ns" => "LOCK WAIT".to_owned(),
        "memory-reads" => "READS".to_owned(),
        "memory-writes" => "WRITES".to_owned(),
        other => other.to_uppercase(),
    }
}

/// A value with the unit that ends the name of its metric.
pub(crate) fn amount(metric: &str, value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    match ContextUnit::of(metric) {
        ContextUnit::Nanoseconds => format!("{sign}{}", time(value.unsigned_abs() as f64)),
        ContextUnit::Bytes => format!("{sign}{}", bytes(value.unsigned_abs())),
        ContextUnit::Count => grouped(value),
    }
}

/// The same; empty for 0.
pub(super) fn unless_zero(metric: &str, value: i64) -> String {
    if value == 0 { String::new() } else { amount(metric, value) }
}

/// A part of the whole in percent; empty if there is none.
pub(crate) fn share(part: i64, whole: i64) -> String {
    if part <= 0 || whole <= 0 {
        return String::new();
    }
    match 100.0 * part as f64 / whole as f64 {
        share if share < 0.01 => "< 0.01 %".to_owned(),
        share => percent(share),
    }
}

/// Whether a metric is about memory that is not freed yet.
pub(super) fn is_live(metric: &str) -> bool {
    [LIVE_BYTES, LIVE_BLOCKS].contains(&metric)
}

/// Whether a metric is a number of what was executed.
pub(super) fn is_executed(metric: &str) -> bool {
    ContextMetric::ALL.iter().any(|known| known.is_executed() && known.name() == metric)
}

/// Whether a metric is a time of calls.
pub(super) fn is_clocked(metric: &str) -> bool {
    ["wall_ns", "cpu_ns"].contains(&metric)
}

/// Whether the values of a metric lack nothing. Those of memory tell that themselves. A call that ends without a return leaves a path in the middle, whose
/// instructions do not count.
pub(super) fn is_whole(contexts: &ContextProfile, metric: &str) -> bool {
    let live = !is_live(metric) || contexts.live.is_some_and(|live| live.is_exact());
    live && (!is_executed(metric) || contexts.functions.iter().all(|function| function.left == 0))
}

/// The standard error of a share of the time that looks have told, in percent; empty if there is none.
pub(super) fn share_error(looked: &LookedTime, ns: i64) -> String {
    if ns <= 0 || looked.whole_ns <= 0 {
        String::new()
    } else {
        percent(100.0 * looked.error(ns) / looked.whole_ns as f64)
    }
}

/// The way in which the values of each metric come about, for scripts.
pub(super) fn how(contexts: &ContextProfile) -> Vec<&'static str> {
    let looked = contexts.looked_time();
    let of = |(index, name): (usize, &String)| match ContextUnit::of(name) {
        _ if !is_whole(contexts, name) => "incomplete",
        _ if looked.is_some_and(|looked| index == looked.time || index == looked.looks) => "looks",
        ContextUnit::Nanoseconds => "clocked",
        ContextUnit::Bytes | ContextUnit::Count => "counted",
    };
    contexts.metrics.iter().enumerate().map(of).collect()
}
