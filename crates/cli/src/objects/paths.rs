//! Records of paths.

use std::collections::BTreeMap;

use ingraft_report::{PathBegin, PathEnd};
use serde::Serialize;

use super::{Host, RecordedFunction};

/// An acyclic path of a function that has run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of the path among all paths of the function, from 0.
    pub(crate) path: u64,
    /// Offsets in the function of the blocks on the path, in the order of their execution.
    pub(crate) blocks: Vec<String>,
    /// `entry`, `loop` (behind a back edge or a cut), `return` (a call has returned again), or `elsewhere` (a landing pad, or another way in).
    pub(crate) begins: &'static str,
    /// `exit`, `loop` (at a back edge or a cut), or `call` (in front of a call that may return several times).
    pub(crate) ends: &'static str,
    /// With `loop`, the offset of the block at which the next path begins; else null.
    pub(crate) next: Option<String>,
    /// Number of the calling context of these runs, as in the records of contexts. Left out if it is not known, and if contexts are not told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<u64>,
    /// Number of times that the path has run from its beginning to its end.
    pub(crate) count: i64,
    /// Number of runs that had begun before the measurement: always 0, because only their number in the function is known.
    pub(crate) late: u64,
    /// Number of runs that have not ended: always 0, because only their number in the function is known.
    pub(crate) open: u64,
    /// Sums over all runs: of events, those of the function itself, and of the metrics that were asked for.
    pub(crate) metrics: BTreeMap<String, i64>,
    /// For each metric that was asked for, whether it was `clocked` or `counted`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) how: BTreeMap<String, &'static str>,
}

/// The paths of a function together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathsObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of different paths that the function has.
    pub(crate) possible: u64,
    /// Number of paths with a record.
    pub(crate) ran: u64,
    /// Whether paths end, and others begin, at edges that are no back edges, because there would be too many otherwise.
    pub(crate) cut: bool,
    /// Number of paths that have ended and had begun before the measurement.
    pub(crate) late: u64,
    /// Number of calls in progress.
    pub(crate) open: u64,
    /// Number of paths that were left in the middle: by an exception, by longjmp, or with their threads.
    pub(crate) left: u64,
    /// Number of paths that have ended and have no record.
    pub(crate) unlisted: u64,
    /// Reason why the counts of paths are not exact; null if they are.
    pub(crate) inexact: Option<String>,
}

/// Paths, or functions, by the part that they have in all reads of memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PathClassObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// `paths` or `functions`.
    pub(crate) of: &'static str,
    /// `all`; `hot`: with at least the threshold of all reads; `dense`: hot, with more reads for each instruction than the program; `sparse`: hot, with
    /// no more than that; `cold`: all that are not hot.
    pub(crate) class: &'static str,
    /// Number of paths, or of functions.
    pub(crate) number: u64,
    /// Number of paths; with `functions`, that of all their paths that have run.
    pub(crate) paths: u64,
    pub(crate) instructions: u64,
    pub(crate) memory_reads: u64,
    /// Part of all reads that makes a path, or a function, hot.
    pub(crate) threshold: f64,
}

/// The word of a record for the beginning of a path.
pub(crate) fn begin_word(begin: PathBegin) -> &'static str {
    match begin {
        PathBegin::Entry => "entry",
        PathBegin::Elsewhere => "elsewhere",
        PathBegin::Loop => "loop",
        PathBegin::Return => "return",
    }
}

/// The word of a record for the end of a path.
pub(crate) fn end_word(end: PathEnd) -> &'static str {
    match end {
        PathEnd::Exit => "exit",
        PathEnd::Loop => "loop",
        PathEnd::Call => "call",
        PathEnd::Never => "never",
    }
}
