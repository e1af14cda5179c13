//! Profiles that are read while they run, and at their end.

use std::time::Duration;

use ingraft_model::{BlockEvents, EVENT_NAMES, Tid};
use ingraft_report::SavedProfile;

use crate::Inclusive;

/// The profile of a measurement at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProfileReading {
    /// Counts of all profiled functions.
    pub saved: SavedProfile,
    /// Details of each function of `saved`, in the same order.
    pub details: Vec<ProfiledFunction>,
    /// The inclusive totals that the profile has; `None` if it has none.
    pub inclusive: Option<Inclusive>,
    /// The longest time that any thread was held for the reading; 0 if the target has ended.
    pub held: Duration,
}

/// Details of a profiled function that saved profiles do not have.
#[derive(Clone, Debug, Default)]
pub struct ProfiledFunction {
    /// Preferred name (demangled).
    pub name: String,
    /// Events of one execution of each block, in the order of the blocks.
    pub events: Vec<BlockEvents>,
    /// Inclusive total of the function; without events and reason if there is none.
    pub inclusive: InclusiveTotal,
    /// Inclusive totals of calls that the function makes, each with the block that the call ends; empty if there are none.
    pub calls: Vec<(usize, InclusiveTotal)>,
}

/// An inclusive total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InclusiveTotal {
    /// Number of events; `None` if it is not known.
    pub events: Option<u64>,
    /// Reason why the number is not exact, or not known; `None` if it is exact.
    pub inexact: Option<String>,
}

/// Event totals of a profile at one moment. Each total counts up to the present instruction of its threads.
#[derive(Clone, Debug, Default)]
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
