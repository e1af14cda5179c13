//! A session with its lock held, as the kinds of measurements see it.

use std::sync::Arc;
use std::time::Duration;

use ingraft_model::records::RecordCounts;
use ingraft_model::token::Token;
use ingraft_model::{ContextTree, FunctionId, Instrumentation, MetricInfo, PointKind, ThreadIdentity, Variable};
use ingraft_process::{ID_OFFSETS, SharedArea, Target, TickClock};
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, ModulePlace, RefusedFunction};
use crate::error::Error;
use crate::measure::sizes::stride_for;
use crate::pairs::counters::too_many;
use crate::pairs::{Pair, PairKey};
use crate::program::modules::{ModuleFile, Modules};
use crate::program::symbols::Symbols;
use crate::program::unwind_targets::marks;
use crate::readings::looks::ContextLooks;
use crate::readings::values::{Columns, Shards};
use crate::weaving::plan::Woven;
use crate::weaving::positions::ProgramCounters;

use super::buffers::{Drained, LastRecords, NewBuffers, Records};
use super::control::{Attached, Control};
use super::costs::limits::BUSY;
use super::driver::Session;
use super::insertion_stop::InsertionStop;

/// A session with its lock held, for the kind of one measurement.
pub(crate) struct Locked<'s> {
    session: &'s Session,
    control: &'s mut Control,
    id: MeasurementId,
}

impl<'s> Locked<'s> {
    pub(super) fn new(session: &'s Session, control: &'s mut Control, id: MeasurementId) -> Self {
        Locked { session, control, id }
    }

    /// The measurement.
    pub fn id(&self) -> MeasurementId {
        self.id
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.session.target
    }

    /// Path of the target's program; empty if it cannot be read.
    pub fn program(&self) -> String {
        std::fs::read_link(format!("/proc/{}/exe", self.session.pid()))
            .map_or_else(|_| String::new(), |path| path.display().to_string())
    }

    /// The target's modules.
    pub fn modules(&self) -> &Modules {
        &self.control.modules
    }

    /// Analyses the modules of these files. Returns the errors of those that cannot be analysed.
    pub fn load(&self, files: &dyn Fn(&ModuleFile) -> bool) -> Vec<Error> {
        self.control.modules.load_files(&self.session.target, &self.session.context.images, files)
    }

    /// The generated code; `None` if there is none in the target.
    pub fn woven(&self) -> Option<&Woven> {
        self.control.attached.as_ref().map(|attached| &attached.woven)
    }

    /// Whether fork children count like threads of the target.
    pub fn has_family(&self) -> bool {
        self.control.family.counts()
    }

    /// A pair; `None` if it was not inserted, or if it was taken out.
    pub fn pair(&self, key: &PairKey) -> Option<&Pair> {
        self.control.pairs.get(key)
    }

    /// Whether a pair has no code although nothing refuses it: its code would cost too much.
    pub fn is_left_out(&self, key: &PairKey) -> bool {
        self.pair(key).is_none_or(|pair| !pair.is_woven() && pair.unwoven.is_empty())
    }

    /// The functions that are refused to the measurement, with the reasons.
    pub fn refused(&self) -> Vec<(FunctionId, RefusedFunction)> {
        let measurement = self.control.measurements.get(&self.id);
        let views = measurement.iter().flat_map(|measurement| measurement.views.iter());
        let pairs = views.filter_map(|view| self.control.pairs.get(&view.key));
        pairs.flat_map(|pair| pair.unwoven.iter().cloned()).collect()
    }

    /// The wall clock of timers; `None` if this machine has none.
    pub fn wall_clock(&self) -> Option<&TickClock> {
        self.session.clocks.wall().ok()
    }

    /// Reads counters while the target runs; `None` without a data area.
    pub fn columns<T>(&self, read: impl FnOnce(&Columns<'_>) -> T) -> Option<T> {
        self.session.shared().columns().map(|columns| read(&columns))
    }

    /// The memory that looks at threads read; `None` without a data area.
    pub fn looked_at(&self) -> Option<(Arc<SharedArea>, Arc<Target>)> {
        let area = self.session.shared().area().cloned()?;
        Some((area, Arc::clone(&self.session.target)))
    }

    /// Adds looks to the values of a tree of contexts whose counters the measurement holds.
    pub fn add_looks(&mut self, looks: &Arc<ContextLooks>) {
        self.session.shared_mut().add_looks(looks);
    }

    /// Whether the owners of shards are the ids that glibc has of threads, as in its locks.
    pub fn has_glibc_ids(&self) -> bool {
        let [glibc, _] = ID_OFFSETS;
        let of_glibc = |attached: &Attached| attached.env.identity == ThreadIdentity::FsOffset(glibc);
        self.control.attached.as_ref().is_some_and(of_glibc)
    }

    /// The variables of the analysed modules, by address.
    pub fn variables(&self) -> Symbols {
        Symbols::of(&self.control.modules)
    }

    /// Whether the owners of shards are ids of threads of the target, as the engine sees them.
    pub fn has_own_ids(&self) -> bool {
        let by_id = |attached: &Attached| matches!(attached.env.identity, ThreadIdentity::FsOffset(_));
        let pid = self.session.pid();
        let same_namespace = || self.session.target.status().is_ok_and(|status| status.own_id == pid.0);
        self.control.attached.as_ref().is_some_and(by_id) && !self.control.family.counts() && same_namespace()
    }

    /// The sum of a counter over all threads, those without a shard of their own included.
    pub fn sum(&self, counter: u32) -> u64 {
        let sum = self.session.shared().columns().map_or(0, |columns| columns.sum(counter));
        u64::try_from(sum).unwrap_or(0)
    }

    /// A counter of the threads without a shard of their own.
    pub fn common(&self, counter: u32) -> u64 {
        let area = self.session.shared().area().cloned();
        area.map_or(0, |area| u64::try_from(Shards::load(&*area, 0, counter)).unwrap_or(0))
    }

    /// Sets the place of each address that is one of code: of the call that returns to it.
    pub fn place_code<'a>(&self, wanted: impl Iterator<Item = (u64, &'a mut Option<Box<ModulePlace>>)>) {
        let wanted: Vec<_> = wanted.collect();
        let mut places = self.session.code_places();
        let unknown = places.unknown(wanted.iter().map(|(at, _)| *at));
        if !unknown.is_empty() {
            places.learn(&self.session.target, &self.control.modules, &self.session.context.images, &unknown);
        }
        for (at, place) in wanted {
            *place = places.get(at).map(|named| Box::new(named.place.clone()));
        }
    }

    /// Reads counters while all threads are held; see [`Session::observe`].
    pub fn observe(
        &self,
        read: &mut (dyn FnMut(&Columns<'_>) + Send),
    ) -> Result<(ProgramCounters, Duration, u64), Error> {
        self.session.observe(self.control, read)
    }

    /// Takes the counters of a variable for which there is no code; returns the first one. A pair without code holds them until the measurement ends.
    pub fn hold_counter(&mut self, key: PairKey, metric: Arc<MetricInfo>, variable: Variable) -> Result<u32, Error> {
        let slots = variable.shape.slots();
        if self.control.attached.is_none() {
            // The insertion makes more room once it knows all counters.
            let counters = u64::from(self.control.counters.used()) + u64::from(slots);
            self.control.counters.set_stride(stride_for(counters));
        }
        let limit = self.control.counters_max();
        let counter = self.control.counters.take(slots, limit);
        let counter = counter.ok_or_else(|| too_many(limit).about(self.session.pid()))?;
        self.control.pairs.insert(key, Pair::holding(metric, [variable].into(), vec![counter]));
        Ok(counter)
    }

    /// Whether the target has ended, so that nothing is counted any more.
    pub fn has_ended(&self) -> bool {
        self.session.end.is_known()
    }

    /// Whether another pair of this metric is there.
    pub fn has_pair_of(&self, metric: &str) -> bool {
        self.control.pairs.keys().any(|key| key.pair().metric == metric)
    }

    /// Ends what goroutines have begun to note for measurements that have ended.
    pub fn end_goroutine_notes(&self) -> Result<(), Error> {
        let Some(attached) = &self.control.attached else { return Ok(()) };
        attached.area.end_goroutine_notes().map_err(|error| Error::process(self.session.pid(), error))
    }

    /// Gives a counter back of which no code was inserted.
    pub fn release_counter(&mut self, key: &PairKey) {
        let Some(pair) = self.control.pairs.remove(key) else { return };
        for (variable, first) in pair.variables.iter().zip(&pair.counters) {
            self.control.counters.give_back(*first, variable.shape.slots());
        }
    }

    /// Weaves more code for a pair that was inserted.
    pub fn extend(&mut self, key: PairKey, code: Instrumentation) -> Result<(), Error> {
        let Some(counters) = self.control.pairs.get(&key).map(|pair| pair.counters.clone()) else { return Ok(()) };
        self.session.extend(self.control, vec![(key, code, counters.into())], &mut InsertionStop::default()).map(drop)
    }

    /// Takes snippets of pairs out. Returns their number.
    pub fn withdraw(&mut self, going: &[(PairKey, FxHashSet<u64>)]) -> Result<usize, Error> {
        let mut gone: Vec<(FunctionId, u64)> = Vec::new();
        for (key, ids) in going {
            let pair = self.control.pairs.get(key);
            gone.extend(pair.into_iter().flat_map(|pair| &pair.minis).filter(|(_, id)| ids.contains(id)));
        }
        self.session.withdraw(self.control, &gone)?;
        for (key, ids) in going {
            if let Some(pair) = self.control.pairs.get_mut(key) {
                pair.minis.retain(|(_, id)| !ids.contains(id));
            }
        }
        self.session.settle_accounts(self.control);
        Ok(gone.len())
    }

    /// Takes all code of pairs out, as far as they have any. If that fails, the code stays in.
    pub fn withdraw_pairs(&mut self, keys: Vec<PairKey>) {
        let ids = |key: PairKey| {
            let ids: FxHashSet<u64> = self.pair(&key)?.minis.iter().map(|(_, id)| *id).collect();
            (!ids.is_empty()).then_some((key, ids))
        };
        let going: Vec<_> = keys.into_iter().filter_map(ids).collect();
        if going.is_empty() {
            return;
        }
        if let Err(error) = self.withdraw(&going) {
            tracing::warn!(%error, "code that counts calls stays in");
        }
    }

    /// Functions that are called so often that their code had better stand in copies of them, and that run in the text yet.
    pub fn busy_in_text(&self) -> Vec<FunctionId> {
        let rates = self.session.known_rates(self.control);
        let in_text = |function: &FunctionId| self.woven().is_some_and(|woven| !woven.is_copied(*function));
        rates.into_iter().filter(|(f, rate)| *rate >= BUSY && in_text(f)).map(|(function, _)| function).collect()
    }

    /// Moves all code of functions into copies of them, as far as they can be copied.
    pub fn copy(&mut self, functions: &[FunctionId]) -> Result<(), Error> {
        self.session.copy(self.control, functions)?;
        self.session.settle_accounts(self.control);
        Ok(())
    }

    /// The points at which a thread leaves calls without a return, each with the token that tells it, as far as their libraries are mapped.
    pub fn leaving_points(&self) -> Vec<(FunctionId, PointKind, Token)> {
        marks(&self.session.target, &self.session.context.images, &self.control.modules)
    }

    /// Begins to drain the buffers of the measurement, whose code was inserted.
    pub fn begin_buffers<R: Records>(&self, new: NewBuffers) {
        self.session.shared_mut().buffers_mut().begin::<R>(self.id, new);
    }

    /// The records that threads have appended to buffers of the measurement since the last time.
    pub fn drain<R: Records>(&self) -> Vec<Drained> {
        self.session.drain::<R>(self.id).unwrap_or_default()
    }

    /// Reads the contexts that records of the measurement have named so far, with the callers of each; `None` without buffers.
    pub fn record_tree<T>(&self, read: impl FnOnce(&ContextTree) -> T) -> Option<T> {
        self.session.shared().buffers().tree(self.id).map(read)
    }

    /// Ends the buffers of the measurement, whose code was taken out; `None` if it has none.
    pub fn end_buffers<R: Records>(&self) -> Option<LastRecords> {
        self.session.end_buffers::<R>(self.id)
    }

    /// Numbers of records of values that threads have made, skipped and lost.
    pub fn record_counts(&self) -> RecordCounts {
        let shared = self.session.shared();
        shared.buffers().counts(self.id, shared.area().map(|area| &**area)).unwrap_or_default()
    }

    /// Whether threads wait for room in buffers of the measurement.
    pub fn waits_for_room(&self) -> bool {
        self.session.shared().buffers().wait(Some(self.id))
    }

    /// Whether threads wait for room in buffers of any measurement.
    pub fn any_waits_for_room(&self) -> bool {
        self.session.shared().buffers().wait(None)
    }
}
