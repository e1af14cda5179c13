//! State that the driver of a session changes.

use ingraft_model::FunctionRef as MdlFunction;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_analysis::Unwinder;
use ingraft_codegen::Environment;
use ingraft_process::SharedArea;
use rustc_hash::FxHashMap;

use crate::api::MeasurementId;
use crate::measure::event_places::EventPlaces;
use crate::program::modules::Modules;
use crate::readings::values::CounterAllocator;
use crate::recovery::journal::Journal;
use crate::weaving::plan::Woven;

use super::births;
use super::handlers::Handlers;
use super::measurement::Measurement;
use super::pair::{Pair, PairKey};
use super::rewritten::Looks;
use super::sharing::{Group, GroupId};
use super::unfinished::Unfinished;

/// Memory and records of a target in which something was woven.
pub(super) struct Attached {
    pub(super) env: Environment,
    pub(super) area: Arc<SharedArea>,
    pub(super) journal: Journal,
    pub(super) woven: Woven,
    /// Reason why threads cannot be told apart; `None` if they can.
    pub(super) why_locked: Option<String>,
    /// Reason, known at the first insertion, why unwinders may begin at instructions that are no calls.
    pub(super) unwinder: Option<Unwinder>,
    pub(super) since_ns: u64,
    /// Processor time of the target at the first insertion.
    pub(super) cpu_before: Duration,
}

pub(super) struct Control {
    pub(super) modules: Modules,
    pub(super) attached: Option<Attached>,
    pub(super) counters: CounterAllocator,
    /// Distance between shards that the first request needs; used before the first code is woven.
    pub(super) stride: u64,
    pub(super) events: EventPlaces,
    pub(super) pairs: FxHashMap<PairKey, Pair>,
    /// Pairs that share their code.
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) next_group: GroupId,
    /// Pairs whose code was taken out because it cost too much, while measurements still read their values.
    pub(super) retired: Vec<Pair>,
    pub(super) measurements: BTreeMap<MeasurementId, Measurement>,
    pub(super) next_mini: u64,
    pub(super) lock: Option<File>,
    /// Whether a loaded module could not be measured yet, so that the engine tries again.
    pub(super) has_unmeasured: bool,
    /// Whether the functions that are being woven have never run, so that no call of them can be in progress.
    pub(super) unrun: bool,
    /// Whether a thread may be in code that was taken out, so that counters must not be reused.
    pub(super) has_stragglers: bool,
    /// Whether fork children count like threads of the target; before the first code is woven, whether they shall.
    pub(super) family: bool,
    /// Whether such children begin with the state of their parents.
    pub(super) births: births::Births,
    /// Set if everything except the memory was taken out, and the memory has to stay for a while.
    pub(super) unfinished: Option<Unfinished>,
    /// Whether a dead engine has woven code that no measurement needs.
    pub(super) has_spare: bool,
    /// Earliest time of the next try to remove that code; `None` for an immediate try.
    pub(super) spare_after: Option<Instant>,
    /// The look at the signal handlers of the target.
    pub(super) handlers: Handlers,
    /// The looks at the text of copied functions.
    pub(super) looks: Looks,
    /// Whether the engine is ending, so that no insertion may begin.
    pub(super) closed: bool,
}

impl Control {
    pub(super) fn add_users(&mut self, keys: &[(PairKey, Option<MdlFunction>)]) {
        for (key, _) in keys {
            if let Some(pair) = self.pairs.get_mut(key) {
                pair.users += 1;
            }
        }
    }
}
