//! State that the driver shares with readers of values.

use std::ops::Range;
use std::sync::Arc;

use ingraft_codegen::Cost;
use ingraft_model::{Clock, Fold, ObjectState, Shape};
use ingraft_process::{SharedArea, TickClock};
use rustc_hash::FxHashMap;

use crate::api::MeasurementId;
use crate::pairs::{Pair, Pairs, Released};
use crate::program::symbols::Symbols;
use crate::readings::looks::ContextLooks;
use crate::readings::values::{Columns, EndedThreads, LastSeen, Raw, Ruler, Shapes, Shards, Slots};

use super::buffers::{Buffers, Drained, LastRecords, Records};
use super::costs::{CounterSum, Ledger, Timers};
use super::frozen::{Frozen, FrozenPairs};
use super::roster::{HeldShard, Roster};

/// State that readers of values use.
#[derive(Default)]
pub(super) struct Shared {
    /// The data area of the target; `None` if nothing is woven.
    area: Option<Arc<SharedArea>>,
    /// The threads that count.
    roster: Roster,
    ended: EndedThreads,
    /// Number of counters, from 0 on, into which code may have counted.
    used_counters: u32,
    /// Shapes of the variables that counters belong to.
    shapes: Shapes,
    /// Names of addresses; empty until a pair has values by key.
    symbols: Symbols,
    /// Whether system calls of generated code may not reach the kernel, as the look at the attachment found.
    filtered: bool,
    /// Accounts of the costs of pairs.
    ledger: Ledger,
    /// Number of pairs by the clock of their timer.
    timers: Timers,
    /// Buffers to which threads append.
    buffers: Buffers,
    frozen: FrozenPairs,
}

impl Shared {
    /// The state of a target with this data area, before any pair is woven. `filtered` tells whether system calls of generated code may not
    /// reach the kernel.
    pub(super) fn new(area: Arc<SharedArea>, roster: Roster, used_counters: u32, filtered: bool) -> Self {
        Shared { area: Some(area), roster, used_counters, filtered, ..Shared::default() }
    }

    /// The data area of the target; `None` if nothing is woven.
    pub(super) fn area(&self) -> Option<&Arc<SharedArea>> {
        self.area.as_ref()
    }

    /// The threads that count.
    pub(super) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The threads that count, to be changed.
    pub(super) fn roster_mut(&mut self) -> &mut Roster {
        &mut self.roster
    }

    /// Whether system calls are filtered, or may be: children that are measured with the target may install filters of their own at any time,
    /// as sandboxes do.
    pub(super) fn may_be_filtered(&self) -> bool {
        self.filtered || self.roster.children().count()
    }

    /// The present values of all counters; `None` without a data area.
    pub(super) fn columns(&self) -> Option<Columns<'_>> {
        let area = self.area.as_deref()?;
        Some(Columns::new(area, &self.ended, self.used_counters, &|identity| self.roster.thread(identity)))
    }

    /// States of synchronisation objects by address; empty if no list of them is kept.
    pub(super) fn objects(&self, columns: &Columns<'_>) -> FxHashMap<u64, ObjectState> {
        let lists =
            self.shapes.tables().filter(|(first, table)| table.fold == Fold::Last && !self.frozen.contains(*first));
        let tables = lists
            .flat_map(|(first, table)| columns.threads(Slots { first, shape: Shape::Table(table) }, &[], Ruler::PLAIN));
        let all = tables.map(|(_, raw)| raw).fold(Raw::default(), Raw::plus);
        all.table.iter().flat_map(|table| table.states()).collect()
    }

    /// Notes the number of counters, from 0 on, into which code may count from now on.
    pub(super) fn use_counters(&mut self, used: u32) {
        self.used_counters = used;
    }

    /// Notes the shapes of new variables, each with its first counter.
    pub(super) fn add_shapes(&mut self, shapes: impl IntoIterator<Item = (u32, Shape)>) {
        shapes.into_iter().for_each(|(first, shape)| self.shapes.insert(first, shape));
    }

    /// Names of addresses; empty until a pair has values by key.
    pub(super) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Replaces the names of addresses.
    pub(super) fn set_symbols(&mut self, symbols: Symbols) {
        self.symbols = symbols;
    }

    /// Forgets variables that no pair uses any more. `counters` are those of the variables.
    pub(super) fn forget(&mut self, released: &Released, counters: &[Range<u32>]) {
        released.values.iter().for_each(|first| self.frozen.remove(*first));
        released.variables.iter().for_each(|first| self.shapes.remove(*first));
        if let Some(area) = &self.area {
            area.forget(&released.records);
            counters.iter().for_each(|range| self.ended.clear(&**area, range.clone()));
        }
    }

    /// Sets counters to 0 in all shards, before they are used again. No code may count into them any more.
    pub(super) fn clear_counters(&mut self, counters: impl Iterator<Item = Range<u32>>) {
        if let Some(area) = &self.area {
            counters.for_each(|range| self.ended.clear(&**area, range));
        }
    }

    /// Recomputes the accounts of all pairs after a change of the woven code. `costs` has, by counter, the sum of the worst cases over all
    /// points of a snippet, and their number.
    pub(super) fn settle_accounts(&mut self, pairs: &Pairs, costs: &FxHashMap<u32, (Cost, u32)>) {
        let accounts = {
            let columns = self.columns();
            let sum = columns.as_ref().map(|columns| move |counter: u32| columns.sum(counter));
            let sum = sum.as_ref().map(|sum| sum as CounterSum<'_>);
            let account = |pair: &Pair| self.ledger.account((pair, pairs.group_of(pair)), costs, sum);
            pairs.values().filter_map(account).collect()
        };
        self.ledger.replace(accounts);
        self.timers = Timers::of(pairs.values());
    }

    /// Closes the accounts of pairs that are removed: the total keeps their cost so far.
    pub(super) fn close_accounts(&mut self, firsts: &[u32]) {
        let spent = self.columns().map_or(0.0, |columns| self.ledger.spent_by(firsts, &|n| columns.sum(n)));
        self.ledger.close(firsts, spent);
    }

    /// Accounts of the costs of pairs.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Lists the counters of all accounts.
    pub(super) fn write_bill(&mut self) {
        self.ledger.write_bill();
    }

    /// Number of pairs by the clock of their timer.
    pub(super) fn timers(&self) -> Timers {
        self.timers
    }

    /// Adds looks at the contexts of living threads, whose tree has counters of a pair.
    pub(super) fn add_looks(&mut self, looks: &Arc<ContextLooks>) {
        self.ended.add_looks(looks);
    }

    /// Whether the engine looks at the contexts of threads.
    pub(super) fn has_looks(&self) -> bool {
        self.ended.has_looks()
    }

    /// The values of pairs that were taken out.
    pub(super) fn frozen(&self) -> &FrozenPairs {
        &self.frozen
    }

    /// Keeps the values of a pair that was taken out. The records of its calls in progress stay until the pair is forgotten: when a thread drops such a
    /// record, the state of the thread that the call has changed, such as its context, is set back for the pairs that go on.
    pub(super) fn freeze(&mut self, first: u32, frozen: Frozen) {
        self.frozen.insert(first, frozen);
    }

    /// Takes over the values of a thread that has ended, and frees its shard. The thread must certainly be gone.
    pub(super) fn end_thread(&mut self, held: HeldShard, last: LastSeen, clock: Option<&TickClock>) {
        let Some(area) = self.area.as_deref() else { return };
        self.buffers.end_streams(area, (held.shard, held.identity), &self.roster, clock);
        self.ended.bury(area, &self.shapes, held.shard, held.tid, self.used_counters, last);
    }

    /// Frees the shard of a child that was never born, whose values count for nobody.
    pub(super) fn free_unborn(&mut self, shard: u32) {
        if let Some(area) = self.area.as_deref() {
            Shards::free(area, shard, self.used_counters);
        }
    }

    /// Whether a timer of processor time runs in a shard.
    pub(super) fn runs_cpu_timer(&self, shard: u32) -> bool {
        let runs = |area: &SharedArea| self.shapes.timers(Clock::Cpu).any(|n| Shards::load(area, shard, n + 1) < 0);
        self.timers.cpu > 0 && self.area.as_deref().is_some_and(runs)
    }

    /// The buffers to which threads append.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The buffers to which threads append, to be changed.
    pub(super) fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Drains the buffers of a measurement; see [`Buffers::drain`].
    pub(super) fn drain<R: Records>(
        &mut self,
        of: (MeasurementId, u64),
        clock: Option<&TickClock>,
    ) -> Option<Vec<Drained>> {
        self.buffers.drain::<R>(of, self.area.as_deref(), &self.roster, clock)
    }

    /// Takes records out of buffers that fill fast; see [`Buffers::empty`].
    pub(super) fn empty_buffers(&mut self, clock: Option<&TickClock>) {
        if let Some(area) = &self.area {
            self.buffers.empty(area, &self.roster, clock);
        }
    }

    /// Ends the buffers of a measurement; see [`Buffers::end`].
    pub(super) fn end_buffers(&mut self, id: MeasurementId, drained: Vec<Drained>) -> Option<LastRecords> {
        self.buffers.end(id, self.area.as_deref(), drained)
    }

    /// Ends the waits of threads for room in their buffers for good.
    pub(super) fn end_waits(&mut self) {
        self.buffers.end_waits(self.area.as_deref());
    }
}
