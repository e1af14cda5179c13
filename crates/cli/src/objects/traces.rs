//! Records of traces and their replay.

use serde::Serialize;

use ingraft_report::NewestCause;

use super::{Host, RecordedFunction};

/// A trace that was written.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TracedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) file: String,
    /// Number of traced functions.
    pub(crate) functions: u64,
    /// Number of threads that have written something.
    pub(crate) threads: u64,
    /// Number of bytes that the threads have written.
    pub(crate) bytes: u64,
    /// Number of places at which tokens are missing, mostly because a buffer was full.
    pub(crate) gaps: u64,
    /// Number of tokens of threads without a buffer.
    pub(crate) unbuffered: u64,
    /// The part that the file has, if it has only the newest one.
    #[serde(flatten)]
    pub(crate) newest: Option<NewestFacts>,
}

/// The newest part of a trace.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NewestFacts {
    /// Reason why it was written: `condition`, `signal` or `end`.
    pub(crate) cause: &'static str,
    /// Unix time in nanoseconds from which on the file has all.
    pub(crate) from_ns: u64,
    /// Unix time in nanoseconds of the event that is the reason.
    pub(crate) until_ns: u64,
    /// Number of bytes of older tokens.
    pub(crate) dropped: u64,
}

impl NewestFacts {
    pub(crate) fn of(newest: &ingraft_report::NewestPart) -> Self {
        let cause = match newest.cause {
            NewestCause::End => "end",
            NewestCause::Condition => "condition",
            NewestCause::Signal => "signal",
        };
        let ingraft_report::NewestPart { from_ns, until_ns, dropped, .. } = *newest;
        NewestFacts { cause, from_ns, until_ns, dropped }
    }

    /// One line for people.
    pub(crate) fn words(&self) -> String {
        let event = match self.cause {
            "condition" => "the condition held",
            "signal" => "a signal killed the program",
            _ => "the trace ended",
        };
        let seconds = self.until_ns.saturating_sub(self.from_ns) as f64 / 1e9;
        format!("the file has the last {seconds:.3} s before {event}\n")
    }
}

/// A step of a thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StepObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    pub(crate) tid: u32,
    /// Number of the thread in the file: another thread may get the same id later.
    pub(crate) stream: u32,
    /// `enter`, `block`, `instruction` or `leave`.
    pub(crate) step: &'static str,
    /// Number of known activations below this one.
    pub(crate) depth: u32,
    /// Offset of the block or the instruction in the function; left out for `enter` and `leave`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
    /// Unix time in nanoseconds of the thread's latest entry; left out if the trace does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_ns: Option<u64>,
}

/// The condition of the trace holds here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConditionObject {
    pub(crate) pid: i32,
    pub(crate) tid: u32,
    pub(crate) stream: u32,
    /// Unix time in nanoseconds of the thread's latest entry; left out if the trace does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_ns: Option<u64>,
}

/// Steps of a thread are missing here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GapObject {
    pub(crate) pid: i32,
    pub(crate) tid: u32,
    pub(crate) stream: u32,
}

/// Numbers of what the replay of a thread does not tell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReplayedObject {
    pub(crate) pid: i32,
    pub(crate) tid: u32,
    pub(crate) stream: u32,
    /// Number of gaps, mostly because a buffer was full.
    pub(crate) gaps: u64,
    /// Number of times at which the activations in progress were forgotten.
    pub(crate) lost: u64,
    /// Number of tokens of activations whose beginning is not known.
    pub(crate) skipped: u64,
    /// Number of tokens that contradict the ones before.
    pub(crate) defects: u64,
    /// Number of blocks at the end that the thread was bound to reach.
    pub(crate) ahead: u64,
}
