//! State that the driver of a session changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use ingraft_analysis::AsyncUnwinder;
use ingraft_codegen::Environment;
use ingraft_model::{FunctionId, Instrumentation};
use ingraft_process::SharedArea;
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, PairInfo};
use crate::error::Error;
use crate::pairs::counters::CounterPool;
use crate::pairs::{AdmittedPairs, BoundPair, PairKey, Pairs, SnippetIds, pair_info, write_word};
use crate::program::modules::Modules;
use crate::recovery::journal::Journal;
use crate::weaving::plan::Woven;

use super::children::Family;
use super::costs::Excesses;
use super::looks::{LooksAtHandlers, LooksAtText};
use super::measurement::Measurement;
use super::remains::Remains;

/// Memory and records of a target in which something was woven.
pub(super) struct Attached {
    pub(super) env: Environment,
    pub(super) area: Arc<SharedArea>,
    pub(super) journal: Journal,
    pub(super) woven: Woven,
    /// Reason why threads cannot be told apart; `None` if they can.
    pub(super) why_locked: Option<String>,
    /// Reason, known at the first insertion, why unwinders may begin at instructions that are no calls.
    pub(super) unwinder: Option<AsyncUnwinder>,
    pub(super) since_ns: u64,
    /// Processor time of the target at the first insertion.
    pub(super) cpu_before: Duration,
}

pub(super) struct Control {
    pub(super) modules: Modules,
    pub(super) attached: Option<Attached>,
    pub(super) counters: CounterPool,
    pub(super) pairs: Pairs,
    pub(super) measurements: BTreeMap<MeasurementId, Measurement>,
    pub(super) minis: SnippetIds,
    pub(super) lock: Option<File>,
    /// Whether a loaded module could not be measured yet, so that the engine tries again.
    pub(super) has_unmeasured: bool,
    /// The fork children of a target: whether they are measured with it, and with which state they begin.
    pub(super) family: Family,
    /// The things that are in the target although no measurement needs them.
    pub(super) remains: Remains,
    /// The looks at the signal handlers of the target.
    pub(super) handlers: LooksAtHandlers,
    /// The looks at the text of copied functions.
    pub(super) text_looks: LooksAtText,
    /// Readings at which measurements cost more than their limits.
    pub(super) excesses: Excesses,
    /// During an insertion: functions that are called too often to get code, so that calls which jump to one are not followed there.
    pub(super) too_busy: FxHashSet<FunctionId>,
    /// Whether the engine is ending, so that no insertion may begin.
    pub(super) closed: bool,
}

impl Control {
    /// Number of counters that a shard of the target has, or will have.
    pub(super) fn counters_max(&self) -> u32 {
        self.counters.limit(self.attached.as_ref().map(|attached| attached.area.layout()))
    }

    /// Gives the counters of pairs back whose code was not inserted.
    pub(super) fn give_back(&mut self, bound: &[BoundPair]) {
        for (_, instrumentation, counters) in bound {
            self.counters.unbind(&instrumentation.variables, counters);
        }
    }

    /// Admits the pairs of a request; see [`Pairs::admit`].
    pub(super) fn admit(
        &mut self,
        wanted: impl Iterator<Item = (PairKey, Instrumentation)>,
    ) -> Result<AdmittedPairs, Error> {
        let limit = self.counters_max();
        self.pairs.admit(wanted, &mut self.counters, limit, &mut writer(self.attached.as_ref()))
    }

    /// Removes pairs again that have joined groups for a request that failed.
    pub(super) fn part(&mut self, joined: &[PairKey]) {
        self.pairs.part(joined, &mut writer(self.attached.as_ref()));
    }

    /// Removes the keys of pairs from their tables, so that look-ups of them fail from now on.
    pub(super) fn retire_keys<'k>(&mut self, going: impl Iterator<Item = &'k PairKey>) {
        self.pairs.retire_keys(going, &mut writer(self.attached.as_ref()));
    }

    /// Pairs in the form for clients.
    pub(super) fn pair_infos(&self, keys: &[(PairKey, Option<FunctionId>)]) -> Vec<PairInfo> {
        let woven = self.attached.as_ref().map(|attached| &attached.woven);
        let info = |(key, function): &(PairKey, _)| {
            Some(pair_info(&self.modules, woven, (key, self.pairs.get(key)?), *function))
        };
        keys.iter().filter_map(info).collect()
    }
}

/// Writes words into counters of shard 0, if there is a data area.
fn writer(attached: Option<&Attached>) -> impl FnMut(u32, u64) -> bool {
    move |counter, word| {
        attached.is_some_and(|attached| {
            let written = write_word(&attached.area, counter, word);
            written.inspect_err(|error| tracing::debug!(%error, "a table of keys was not written")).is_ok()
        })
    }
}
