//! Event totals of profiles. The counts of a profile are a [`SavedProfile`](ingraft_report::SavedProfile).

use std::time::Duration;

use ingraft_model::{EVENT_NAMES, Tid};

/// Event totals of a profile at one moment. Each total counts up to the present instruction of its threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TotalsReading {
    /// Unix time of the reading in nanoseconds.
    pub time_ns: u64,
    /// The longest time that any thread was held for the reading; 0 if the target has ended.
    pub held: Duration,
    /// Number of functions whose events are counted.
    pub functions: usize,
    /// The totals by thread: living threads by their ids, then threads that cannot be told apart, then ended ones together.
    pub threads: Vec<ThreadTotals>,
    /// Reasons why the totals are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
}

/// Event totals of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// The thread; `None` for several threads together.
    pub tid: Option<Tid>,
    /// Name of the thread; empty if it is not known.
    pub name: String,
    /// Whether the thread, or all of the threads, have ended.
    pub ended: bool,
    /// Numbers of events, in the order of [`ingraft_model::EVENT_NAMES`].
    pub events: [u64; EVENT_NAMES.len()],
}
