//! State that the driver of a session changes.

use ingraft_model::FunctionRef as MdlFunction;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use super::measurement::Measurement;
use super::pair::{Pair, PairKey};
use super::sharing::{Group, GroupId};
use super::unfinished::Unfinished;

/// Memory and records of a target in which something was woven.
pub(super) struct Attached {
    pub(super) env: Environment,
    pub(super) area: Arc<SharedArea>,
    pub(super) journal: Journal,
    pub(super) woven: Woven,
    /// Why threads cannot be told apart, if they cannot.
    pub(super) why_locked: Option<String>,
    pub(super) since_ns: u64,
    /// Processor time of the target until then.
    pub(super) cpu_before: Duration,
}

pub(super) struct Control {
    pub(super) modules: Modules,
    pub(super) attached: Option<Attached>,
    pub(super) counters: CounterAllocator,
    /// Before the first code is woven: the distance between shards that what is asked for needs.
    pub(super) stride: u64,
    pub(super) events: EventPlaces,
    pub(super) pairs: FxHashMap<PairKey, Pair>,
    /// Pairs that share their code.
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) next_group: GroupId,
    /// Pairs whose code was taken out because it cost too much; measurements still have their values.
    pub(super) retired: Vec<Pair>,
    pub(super) measurements: BTreeMap<MeasurementId, Measurement>,
    pub(super) next_mini: u64,
    pub(super) lock: Option<File>,
    /// Whether something that was loaded could not be measured yet: it is tried again.
    pub(super) has_unmeasured: bool,
    /// The functions that are being woven have never run: no call of them can be in progress.
    pub(super) unrun: bool,
    /// Whether a thread may be in code that was taken out: counters are not used again then.
    pub(super) has_stragglers: bool,
    /// Fork children count like threads of the target; before anything is woven: they are to.
    pub(super) family: bool,
    /// Whether such children begin with the state of their parents.
    pub(super) births: births::Births,
    /// Everything was taken out but the memory, which has to stay for a while.
    pub(super) unfinished: Option<Unfinished>,
    /// A dead engine has woven what no measurement needs.
    pub(super) has_spare: bool,
    /// Earliest time of the next try to take that out; `None`: at once.
    pub(super) spare_after: Option<Instant>,
    /// The engine ends: nothing new begins.
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
