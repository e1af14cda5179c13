//! Records of calling contexts.

use std::collections::BTreeMap;

use ingraft_report::LiveFacts;
use serde::Serialize;

use super::{Host, is_zero};

/// A function in a calling context.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContextObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Number of the context among those of the process, from 1 in the order of the records.
    pub(crate) id: u64,
    /// Number of the context of the caller, which comes before; null if no measured call was open.
    pub(crate) parent: Option<u64>,
    /// `call`, `tail`, `signal` or `recursion`.
    pub(crate) kind: &'static str,
    /// With `recursion`, the number of the context that what it calls is in; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) back_to: Option<u64>,
    pub(crate) module: String,
    pub(crate) function: String,
    /// Offset of the function's first instruction.
    pub(crate) offset: String,
    /// Module of the call site; null outside of all modules, and if contexts are told apart by function only.
    pub(crate) caller_module: Option<String>,
    /// Return address of the call: the offset in its module, or outside of all modules the address; null if contexts are told apart by
    /// function only.
    pub(crate) call_site: Option<String>,
    /// Number of calls that began during the measurement.
    pub(crate) calls: u64,
    /// True if the function's code was taken out before the end, so that later calls are missing; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partial: Option<bool>,
    /// Number of these calls that ended without an exit; null if it is known for the function only.
    pub(crate) left: Option<u64>,
    /// Number of these calls that began before the measurement.
    pub(crate) caught_up: u64,
    /// Values of the metrics in this context alone.
    pub(crate) metrics: BTreeMap<String, i64>,
    /// For each metric, how its values come about: `counted`, `clocked`, `looks`, or `incomplete` if values of live memory lack something.
    pub(crate) how: BTreeMap<String, &'static str>,
    /// Standard errors of the values that looks have told, in their units; left out without looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<BTreeMap<String, u64>>,
}

/// Looks that have seen threads in one context wait for a lock, while its holder was in one context.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HolderObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Address of the lock.
    pub(crate) lock: String,
    /// The variable that the lock is or is in, with the distance from its beginning; null if it is not known.
    pub(crate) name: Option<String>,
    /// Number of the context that waits: that of the function that waits for the lock.
    pub(crate) waiter: u64,
    /// Number of the context of the thread that held the lock; null if it is in none, or not known.
    pub(crate) holder: Option<u64>,
    /// `context`, `outside`, `nobody` or `unknown`.
    pub(crate) held: &'static str,
    /// Number of looks.
    pub(crate) looks: u64,
    /// Time that these looks stand for.
    pub(crate) wall_ns: u64,
}

/// The contexts of a process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContextsObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Number of contexts without those of recursive calls.
    pub(crate) nodes: u64,
    /// Number of contexts of recursive calls.
    pub(crate) back_edges: u64,
    /// Largest number of contexts from a root to a leaf.
    pub(crate) height: u64,
    /// Mean number of children of the contexts that have any.
    pub(crate) degree: f64,
    /// Mean number of contexts from a root to a leaf.
    pub(crate) leaf_depth: f64,
    /// Largest number of contexts of one function.
    pub(crate) replication: u64,
    /// Number of calls for whose contexts there was no room.
    pub(crate) full: u64,
    /// Number of calls without a context, because their thread had too many open calls, or no memory of its own.
    pub(crate) unrecorded: u64,
    /// Number of exits of calls whose beginning was not seen.
    pub(crate) unseen: u64,
    /// Number of calls that ended without an exit.
    pub(crate) left: u64,
    /// Number of calls that ended in a jump to a function that could not be followed; left out if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) left_by_tail_jump: u64,
    /// Values of the metrics outside of all contexts.
    pub(crate) outside: BTreeMap<String, i64>,
    /// Number of looks at threads; left out without looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) looks: Option<i64>,
    /// Number of looks at equal distances that would have the same errors; left out without looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effective_looks: Option<u64>,
    /// Numbers of what live memory lacks; left out without such a metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) live: Option<LiveObject>,
    /// Functions that waited for locks which do not tell who holds them, those with the most time first; left out if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders_unknown: Option<Vec<String>>,
}

/// Numbers that tell whether live memory is told in full.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LiveObject {
    /// Whether the values are exact.
    pub(crate) exact: bool,
    /// Number of blocks that were freed and whose allocation was not seen, because it was before the measurement.
    pub(crate) earlier: u64,
    /// Number of allocations and frees that were lost, because a buffer was full.
    pub(crate) lost: u64,
    /// Number of calls of functions that allocate or free whose beginning or end was not seen.
    pub(crate) unseen: u64,
    /// Number of blocks whose address was allocated again although nothing was seen to free them.
    pub(crate) unfreed: u64,
    /// Number of blocks that were not followed, because there were too many.
    pub(crate) unfollowed: u64,
    /// Number of functions that allocate or free and that are left out.
    pub(crate) left_out: u64,
}

impl From<LiveFacts> for LiveObject {
    fn from(facts: LiveFacts) -> Self {
        let LiveFacts { earlier, lost, unseen, unfreed, unfollowed, left_out } = facts;
        LiveObject { exact: facts.is_exact(), earlier, lost, unseen, unfreed, unfollowed, left_out }
    }
}
