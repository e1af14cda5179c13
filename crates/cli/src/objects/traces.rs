//! Records of traces and their replay.

use serde::Serialize;

use super::{FunctionId, Host};

/// A trace that was written.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Traced {
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
}

/// A step of a thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
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

/// Steps of a thread are missing here.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gap {
    pub(crate) pid: i32,
    pub(crate) tid: u32,
    pub(crate) stream: u32,
}

/// Numbers of what the replay of a thread does not tell.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Replayed {
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
