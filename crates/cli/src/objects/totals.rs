//! Records of profiles that are read while they run.

use serde::Serialize;

use super::Host;

/// Number of events that each thread has executed in the profiled functions, up to its present instruction.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventTotalsObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Unix time of the reading, in nanoseconds.
    pub(crate) time_ns: u64,
    /// Name of the event: `instructions`, `calls`, `branches`, `memory-reads` or `memory-writes`.
    pub(crate) event: &'static str,
    /// Number of events of all threads together.
    pub(crate) total: u64,
    pub(crate) threads: Vec<ThreadTotal>,
    /// Number of functions whose events are counted.
    pub(crate) functions: u32,
    /// Longest time, in milliseconds, for which a thread was held for the reading.
    pub(crate) stopped_ms: f64,
    /// Reasons why the totals are not exact, with the bound; left out if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
}

/// Number of events of a thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ThreadTotal {
    /// Thread id; null for several threads together.
    pub(crate) tid: Option<i32>,
    /// Name of the thread; null if it is not known.
    pub(crate) name: Option<String>,
    /// Whether the thread, or all of the threads, have ended.
    pub(crate) ended: bool,
    pub(crate) total: u64,
}

/// A reading of a profile, whose counts follow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProfileObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Unix time of the reading, in nanoseconds.
    pub(crate) time_ns: u64,
    /// Number of functions.
    pub(crate) functions: u64,
    /// Longest time, in milliseconds, for which a thread was held for the reading.
    pub(crate) stopped_ms: f64,
}
