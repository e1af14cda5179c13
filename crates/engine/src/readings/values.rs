//! Values: the sum over the shards of living threads, the remains of ended threads, and the counters that threads without a shard share.
//! Values are read while the target runs. Each slot has one writer, so a read is never torn and never too high.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ingraft_model::contexts::TAKEN;
use ingraft_model::{
    Activations, Clock, ContextShape, ContextTree, Distribution, KeyTable, Scale, Shape, TableShape, Tid, outermost,
    vector,
};
use ingraft_process::{PopulatedPages, SharedArea};
use rustc_hash::{FxHashMap, FxHashSet};

use super::looks::ContextLooks;

/// The shards of a data area.
pub trait Shards {
    /// The shards that threads hold, each with the identity of its thread.
    fn claims(&self) -> Vec<(u32, u64)>;
    /// One counter of one shard; 0 outside of the area.
    fn load(&self, shard: u32, counter: u32) -> i64;
    /// The latest reading of processor time of the thread that holds a shard, in ticks.
    fn cpu_last(&self, shard: u32) -> u64;
    /// The pages of the first `counters` of a shard that have memory. Counters on other pages are 0, and reading one would allocate the
    /// page.
    fn touched(&self, shard: u32, counters: u32) -> PopulatedPages;
    /// Frees the shard of a thread that has ended. Returns those of its first `counters` that are not 0, in order.
    fn free(&self, shard: u32, counters: u32) -> Vec<(u32, i64)>;
    /// Sets counters to 0 in every shard. No code may count into them any more.
    fn clear(&self, counters: Range<u32>);
    /// The names of the open records of a shard.
    fn open(&self, shard: u32) -> Vec<u32>;
    /// The names of the records of open calls on stacks that no thread executes.
    fn set_aside(&self) -> Vec<u32>;
    /// Detaches the open records with these names, so that their ends change nothing.
    fn forget(&self, names: &FxHashSet<u32>);
}

impl Shards for SharedArea {
    // If the target through whose memory the area was read is gone, its shards read as 0.
    fn claims(&self) -> Vec<(u32, u64)> {
        SharedArea::claims(self)
            .map_or_else(|_| Vec::new(), |claims| claims.iter().map(|c| (c.shard, c.owner)).collect())
    }

    #[inline]
    fn load(&self, shard: u32, counter: u32) -> i64 {
        self.counter_or_zero(shard, counter).cast_signed()
    }

    fn cpu_last(&self, shard: u32) -> u64 {
        SharedArea::cpu_last(self, shard).unwrap_or(0)
    }

    fn touched(&self, shard: u32, counters: u32) -> PopulatedPages {
        SharedArea::touched(self, shard, counters)
    }

    fn free(&self, shard: u32, counters: u32) -> Vec<(u32, i64)> {
        let values = self.free_shard(shard, counters).unwrap_or_default();
        values.into_iter().map(|(counter, value)| (counter, value.cast_signed())).collect()
    }

    fn clear(&self, counters: Range<u32>) {
        if let Err(error) = self.zero_counters(counters) {
            tracing::debug!(%error, "counters were not cleared");
        }
    }

    fn open(&self, shard: u32) -> Vec<u32> {
        self.open_names(shard).unwrap_or_default()
    }

    fn set_aside(&self) -> Vec<u32> {
        self.names_set_aside().unwrap_or_default()
    }

    fn forget(&self, names: &FxHashSet<u32>) {
        if names.is_empty() {
            return;
        }
        for (shard, _) in Shards::claims(self) {
            if let Err(error) = self.forget_records(shard, names) {
                tracing::debug!(%error, "open records keep the name of a measurement that is gone");
            }
        }
        if let Err(error) = self.forget_common_records(names) {
            tracing::debug!(%error, "common records keep the name of a measurement that is gone");
        }
    }
}

/// Largest number of ended threads that are kept apart; values of further ones are added to the entry of unknown threads.
pub const ENDED_MAX: usize = 100_000;

/// The clocks of a thread when its end was noticed, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct LastSeen {
    /// The wall clock.
    pub wall: u64,
    /// Processor time of the thread.
    pub cpu: u64,
}

/// Remains of ended threads: for each thread, the counters that are not 0.
#[derive(Debug, Default)]
pub struct EndedThreads {
    threads: FxHashMap<Option<Tid>, FxHashMap<u32, i64>>,
    /// Combined value of each counter over all ended threads.
    together: FxHashMap<u32, i64>,
    /// Tables of each thread, by their first counter. Their counters are in neither of the other two maps, because a place in a table means
    /// another key in every shard.
    tables: FxHashMap<Option<Tid>, FxHashMap<u32, KeyTable>>,
    /// Tables of all ended threads together, by their first counter.
    merged: FxHashMap<u32, KeyTable>,
    /// Trees of contexts of all ended threads together, by their first counter.
    trees: FxHashMap<u32, ContextTree>,
    /// Looks at the contexts of living threads, by the first counter of their tree. Those at ended threads are in `trees`.
    looks: FxHashMap<u32, Arc<ContextLooks>>,
}

impl EndedThreads {
    /// Adds looks at the contexts of living threads. They last until the counters of their tree are cleared.
    pub fn add_looks(&mut self, looks: &Arc<ContextLooks>) {
        self.looks.insert(looks.first(), Arc::clone(looks));
    }

    /// Whether the engine looks at the contexts of threads.
    pub fn has_looks(&self) -> bool {
        !self.looks.is_empty()
    }

    /// Takes over the values that an ended thread left in its shard, and frees the shard. The thread must certainly be gone.
    pub fn bury(
        &mut self,
        shards: &dyn Shards,
        shapes: &Shapes,
        shard: u32,
        tid: Option<Tid>,
        counters: u32,
        last: LastSeen,
    ) {
        let tid = if self.threads.len() < ENDED_MAX || self.threads.contains_key(&tid) { tid } else { None };
        let record = self.threads.entry(tid).or_default();
        let mut looked: FxHashMap<u32, _> =
            self.looks.iter().filter_map(|(first, looks)| Some((*first, looks.take(shard)?))).collect();
        let mut values = shards.free(shard, counters);
        let place = |values: &[(u32, i64)], counter: u32| values.binary_search_by_key(&counter, |(c, _)| *c).ok();
        for (clock, end) in [(Clock::Wall, last.wall), (Clock::Cpu, last.cpu)] {
            for first in shapes.timers(clock) {
                // a timer that ran at the end has its last start, but no stop
                let sum = place(&values, first + 1).and_then(|at| values.get_mut(at)).map(|(_, sum)| sum);
                if let Some(sum) = sum.filter(|sum| **sum < 0) {
                    *sum = sum.saturating_add_unsigned(end).max(0);
                }
            }
        }
        for (first, table) in shapes.tables() {
            if first.saturating_add(table.slots()) > counters {
                continue;
            }
            let value = |n| place(&values, first + n).and_then(|at| values.get(at)).map_or(0, |(_, value)| *value);
            let read = KeyTable::from_slots(table, value);
            if !read.is_empty() {
                let empty = || KeyTable { fold: table.fold, ..KeyTable::default() };
                let of_thread = self.tables.entry(tid).or_default();
                for tables in [of_thread, &mut self.merged] {
                    tables.entry(first).or_insert_with(empty).merge(&read);
                }
            }
        }
        let shared: Vec<u32> =
            shapes.trees().map(|(first, _)| first).filter(|first| is_shared(shards, *first)).collect();
        for (first, shape) in shapes.trees() {
            if first.saturating_add(shape.slots()) > counters || shared.contains(&first) {
                continue;
            }
            let looked = looked.remove(&first);
            let of_tree = |counter: u32| values.partition_point(|(c, _)| *c < counter);
            let own = values.get(of_tree(first)..of_tree(first + shape.slots())).unwrap_or_default();
            let own: Vec<(u32, i64)> = own.iter().map(|(counter, value)| (counter - first, *value)).collect();
            let value = |n| {
                let looked = looked.as_ref().and_then(|looked| looked.value(n));
                let value = || place(&own, n).and_then(|at| own.get(at)).map_or(0, |(_, value)| *value);
                looked.unwrap_or_else(value)
            };
            self.trees.entry(first).or_default().merge(&ContextTree::from_nonzero(shape, &own, value));
        }
        let own = |&(counter, value): &(u32, i64)| {
            let (offset, shape) = shapes.of(counter);
            let apart = match shape {
                Shape::Table(_) | Shape::Buffer(_) | Shape::Records(..) => true,
                Shape::Contexts(_) => !shared.contains(&(counter - offset)),
                _ => false,
            };
            value != 0 && !apart
        };
        for (counter, value) in
            values.into_iter().filter(own).filter_map(|(counter, value)| shapes.at_end(counter, value))
        {
            for sum in [record.entry(counter).or_default(), self.together.entry(counter).or_default()] {
                *sum = shapes.combine(counter, *sum, value);
            }
        }
    }

    /// Sets counters to 0 everywhere, before they are reused. No code may count into them any more.
    pub fn clear(&mut self, shards: &dyn Shards, counters: Range<u32>) {
        for record in self.threads.values_mut() {
            record.retain(|counter, _| !counters.contains(counter));
        }
        self.together.retain(|counter, _| !counters.contains(counter));
        let tables = self.tables.values_mut().chain([&mut self.merged]);
        tables.for_each(|tables| tables.retain(|first, _| !counters.contains(first)));
        self.trees.retain(|first, _| !counters.contains(first));
        self.looks.retain(|first, _| !counters.contains(first));
        shards.clear(counters);
    }
}

/// Shapes of variables that take more than one counter, by the first counter.
#[derive(Debug, Default)]
pub struct Shapes {
    all: BTreeMap<u32, Shape>,
    /// The tables among the variables, which are few of thousands.
    tables: BTreeMap<u32, TableShape>,
    /// The trees of contexts among the variables.
    trees: BTreeMap<u32, ContextShape>,
}

impl Shapes {
    /// Adds a variable.
    pub fn insert(&mut self, first: u32, shape: Shape) {
        if shape.slots() > 1 {
            self.all.insert(first, shape);
        }
        if let Shape::Table(table) = shape {
            self.tables.insert(first, table);
        }
        if let Shape::Contexts(tree) = shape {
            self.trees.insert(first, tree);
        }
    }

    /// Forgets a variable.
    pub fn remove(&mut self, first: u32) {
        self.all.remove(&first);
        self.tables.remove(&first);
        self.trees.remove(&first);
    }

    /// The first counters of tables, each with the table's shape.
    pub fn tables(&self) -> impl Iterator<Item = (u32, TableShape)> {
        self.tables.iter().map(|(first, table)| (*first, *table))
    }

    /// The first counters of trees of contexts, each with the tree's shape.
    pub fn trees(&self) -> impl Iterator<Item = (u32, ContextShape)> {
        self.trees.iter().map(|(first, tree)| (*first, *tree))
    }

    /// The first counters of the timers of a clock.
    pub fn timers(&self, clock: Clock) -> impl Iterator<Item = u32> {
        self.all.iter().filter(move |(_, shape)| **shape == Shape::Timer(clock)).map(|(first, _)| *first)
    }

    /// The offset of a counter in its variable, and the variable's shape.
    fn of(&self, counter: u32) -> (u32, Shape) {
        match self.all.range(..=counter).next_back() {
            Some((first, shape)) if counter - first < shape.slots() => (counter - first, *shape),
            _ => (0, Shape::Counter),
        }
    }

    /// Counter and value that remain of a counter at the end of its thread: a call that was open then was left.
    fn at_end(&self, counter: u32, value: i64) -> Option<(u32, i64)> {
        match self.of(counter) {
            (outermost::FRAME, Shape::Outermost) => Some((counter + outermost::LEFT - outermost::FRAME, 1)),
            (outermost::VALUE, Shape::Outermost) => None,
            _ => Some((counter, value)),
        }
    }

    /// Combines the values of two threads in a counter.
    fn combine(&self, counter: u32, a: i64, b: i64) -> i64 {
        match self.of(counter) {
            // slot 1 has the largest value, and slot 2 the complement of the smallest
            (1 | 2, Shape::Histogram(_)) => a.cast_unsigned().max(b.cast_unsigned()).cast_signed(),
            // the timers of an ended thread do not run
            (0, Shape::Timer(_)) => 0,
            (1, Shape::Timer(_)) => a.max(0).saturating_add(b.max(0)),
            _ => a.wrapping_add(b),
        }
    }
}

/// Place of a variable in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// First counter of the variable.
    pub first: u32,
    /// Shape of the variable.
    pub shape: Shape,
}

/// Clocks and scale by which recorded values are read.
#[derive(Clone, Copy)]
pub struct Ruler<'a> {
    /// Factor from the recorded unit to the metric's unit.
    pub scale: Scale,
    /// Reads the wall clock of the timers. The read must not move before the code in front of it or after the code behind it.
    pub now: &'a dyn Fn() -> u64,
    /// Reads the processor time of a thread in ticks, never later than the present; 0 if it is not known.
    pub cpu: &'a dyn Fn(Tid) -> u64,
}

impl Ruler<'_> {
    /// Ruler for values that no clock has measured.
    pub const PLAIN: Ruler<'static> = Ruler { scale: Scale::ONE, now: &|| 0, cpu: &|_| 0 };
}

/// Recorded values of one thread, or of several threads together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Raw {
    /// The value; for a histogram, the number of its values.
    pub value: i64,
    /// The values of a histogram.
    pub distribution: Option<Box<Distribution>>,
    /// The values by key.
    pub table: Option<Box<KeyTable>>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
}

impl Raw {
    /// Reads a variable. `cpu` returns the present processor time of the thread, in ticks.
    fn read(slots: Slots, ruler: Ruler<'_>, load: impl Fn(u32) -> i64, cpu: impl Fn() -> u64) -> Self {
        let at = |n: u32| load(slots.first + n);
        let mut raw = Raw::default();
        match slots.shape {
            Shape::Counter | Shape::Timer(_) => raw.value = number(slots, ruler, load, cpu),
            // Without a value there is no smallest one. Its pages are not read then, because reading would allocate them.
            Shape::Histogram(_) if at(2) == 0 => raw.distribution = Some(Box::default()),
            Shape::Histogram(resolution) => {
                let recorded: Vec<u64> = (0..slots.shape.slots()).map(|n| at(n).cast_unsigned()).collect();
                let distribution = Distribution::from_slots(resolution, &recorded, ruler.scale);
                raw.value = i64::try_from(distribution.count).unwrap_or(i64::MAX);
                raw.distribution = Some(Box::new(distribution));
            }
            Shape::Vector(count) => raw = Raw::of_table(vector::from_slots(count, at)),
            Shape::Table(table) => raw = Raw::of_table(KeyTable::from_slots(table, at)),
            Shape::Activations => raw.activations = calls(&[slots.first], load),
            // An event has no value, each value of a table of listed keys is the counter of a pair, and a trace takes the bytes of a buffer.
            Shape::Event | Shape::Alias(_) | Shape::Listed(_) | Shape::Buffer(_) | Shape::Records(..) => {}
            // A tree of contexts has a reading of its own, [`Columns::tree`].
            Shape::Contexts(_) => {}
            Shape::Outermost => {}
        }
        raw
    }

    fn of_table(table: KeyTable) -> Self {
        Raw { value: table.total(), table: Some(Box::new(table)), ..Raw::default() }
    }

    /// The sum of two recordings.
    pub fn plus(mut self, other: Raw) -> Raw {
        self.value = self.value.wrapping_add(other.value);
        self.distribution = match (self.distribution, other.distribution) {
            (Some(mut a), Some(b)) => {
                a.merge(&b);
                Some(a)
            }
            (a, b) => a.or(b),
        };
        self.table = match (self.table, other.table) {
            (Some(mut a), Some(b)) => {
                a.merge(&b);
                self.value = a.total();
                Some(a)
            }
            (a, b) => a.or(b),
        };
        self.activations = self.activations.plus(other.activations);
        self
    }

    /// The values that were recorded since `before`.
    pub fn minus(mut self, before: &Raw) -> Raw {
        self.value = self.value.wrapping_sub(before.value);
        if let (Some(now), Some(before)) = (&mut self.distribution, &before.distribution) {
            **now = now.minus(before);
        }
        if let (Some(now), Some(before)) = (&mut self.table, &before.table) {
            **now = now.minus(before);
            self.value = now.total();
        }
        self.activations = self.activations.minus(before.activations);
        self
    }

    /// Whether nothing was recorded.
    pub fn is_nothing(&self) -> bool {
        let no_keys = self.table.as_ref().is_none_or(|table| table.is_empty());
        self.value == 0 && no_keys && self.activations == Activations::default()
    }
}

/// Value of one thread's counter or timer.
fn number(slots: Slots, ruler: Ruler<'_>, load: impl Fn(u32) -> i64, cpu: impl Fn() -> u64) -> i64 {
    let Shape::Timer(clock) = slots.shape else { return load(slots.first) };
    let now = || if clock == Clock::Cpu { cpu() } else { (ruler.now)() };
    // the kernel's value of processor time is not exact, and reading it is expensive
    let retries = if clock == Clock::Cpu { 0 } else { RETRIES };
    let ticks = running(|| load(slots.first + 1), now, retries);
    i64::try_from(ruler.scale.apply(ticks.cast_unsigned())).unwrap_or(i64::MAX)
}

/// Outcomes of calls in one thread; see [`RECORDS_ONLY`].
fn calls(activations: &[u32], load: impl Fn(u32) -> i64) -> Activations {
    let of = |&first: &u32| {
        let at = |n| load((first & !RECORDS_ONLY) + n).cast_unsigned();
        let unrecorded = at(2);
        if first & RECORDS_ONLY == 0 {
            Activations { left: at(0), unseen: at(1), unrecorded, left_by_tail_jump: at(3) }
        } else {
            Activations { unrecorded, left_by_tail_jump: at(3), ..Activations::default() }
        }
    };
    activations.iter().map(of).fold(Activations::default(), Activations::plus)
}

/// Value of a timer at a moment; `sum`, the sum of its stops less its starts, is negative while the timer runs. The clock must be read
/// after the last start and before a stop. Otherwise a later value would be lower.
fn running(sum: impl Fn() -> i64, now: impl Fn() -> u64, retries: u32) -> i64 {
    let mut before = sum();
    for _ in 0..retries {
        if before >= 0 {
            return before;
        }
        let (time, after) = (now(), sum());
        if after == before {
            return after.wrapping_add_unsigned(time).max(0);
        }
        before = after;
    }
    // the timer starts and stops all the time
    if before < 0 { before.wrapping_add_unsigned(now()).max(0) } else { before }
}

/// Largest number of times that a changing timer is read again.
const RETRIES: u32 = 100;

/// Mark on the first slot of activations: of their calls, only those that are unrecorded or left by a tail jump count. The calls of a flag
/// that are left or unseen matter to no pair. But a flag that found no room for a record may make a value wrong that depends on it.
pub const RECORDS_ONLY: u32 = 1 << 31;

/// All threads that counted, to read many counters from. Generic over the kind of shards, because thousands of counters are read at once.
pub struct Columns<'a, S = SharedArea> {
    shards: &'a S,
    ended: &'a EndedThreads,
    held: Vec<CountingShard>,
}

/// A shard that counts, or has counted.
struct CountingShard {
    shard: u32,
    tid: Option<Tid>,
    touched: PopulatedPages,
}

/// Values of counters that are not 0, each with its index in the list of counters.
pub type NonzeroCounters = Vec<(usize, i64)>;

/// Values of counters by thread.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The shards, each with its thread. `None` if the threads that counted there cannot be told apart.
    pub held: Vec<(Option<Tid>, NonzeroCounters)>,
    /// All threads together that have ended and left no shard.
    pub ended: NonzeroCounters,
}

impl<'a, S: Shards> Columns<'a, S> {
    /// Looks up the holders of shards; `tid` maps an identity to a thread id. Only the first `used` counters are read.
    pub fn new(shards: &'a S, ended: &'a EndedThreads, used: u32, tid: &dyn Fn(u64) -> Option<Tid>) -> Self {
        let held = |shard, tid| CountingShard { shard, tid, touched: shards.touched(shard, used) };
        let claimed = shards.claims().into_iter().map(|(shard, identity)| held(shard, tid(identity)));
        Columns { shards, ended, held: std::iter::once(held(0, None)).chain(claimed).collect() }
    }

    /// A counter of one shard.
    #[inline]
    fn load(&self, held: &CountingShard, counter: u32) -> i64 {
        if held.touched.has(counter) { self.shards.load(held.shard, counter) } else { 0 }
    }

    /// Recordings of a variable, and the activations of its calls, of every thread that has recorded something: sorted by thread, each
    /// thread once.
    pub fn threads(&self, slots: Slots, activations: &[u32], ruler: Ruler<'_>) -> Vec<(Option<Tid>, Raw)> {
        let read = |load: &dyn Fn(u32) -> i64, cpu: &dyn Fn() -> u64| {
            let mut raw = Raw::read(slots, ruler, load, cpu);
            raw.activations = raw.activations.plus(calls(activations, load));
            raw
        };
        let live = self.held.iter();
        let live = live.map(|held| (held.tid, read(&|n| self.load(held, n), &|| self.cpu(held, ruler))));
        let ended = self
            .ended
            .threads
            .iter()
            .map(|(&tid, record)| (tid, read(&|n| record.get(&n).copied().unwrap_or(0), &|| 0)));
        let table = |tables: &FxHashMap<u32, KeyTable>| {
            tables.get(&slots.first).filter(|_| matches!(slots.shape, Shape::Table(_))).cloned()
        };
        let tables = self.ended.tables.iter().filter_map(|(&tid, of)| Some((tid, Raw::of_table(table(of)?))));
        let mut by_thread: BTreeMap<(bool, Option<Tid>), Raw> = BTreeMap::new();
        for (tid, raw) in live.chain(ended).chain(tables).filter(|(_, raw)| !raw.is_nothing()) {
            let place = by_thread.entry((tid.is_none(), tid)).or_default();
            *place = std::mem::take(place).plus(raw);
        }
        by_thread.into_iter().map(|((_, tid), raw)| (tid, raw)).collect()
    }

    /// Processor time of a thread, in ticks. For a running thread the kernel's value is as old as the last tick, and the thread's own last
    /// reading may be later.
    fn cpu(&self, held: &CountingShard, ruler: Ruler<'_>) -> u64 {
        self.shards.cpu_last(held.shard).max(held.tid.map_or(0, ruler.cpu))
    }

    /// Sum over all threads of a counter or a timer, and of the activations of its calls.
    pub fn together(&self, slots: Slots, activations: &[u32], ruler: Ruler<'_>) -> (i64, Activations) {
        let plus = |a: (i64, Activations), b: (i64, Activations)| (a.0.wrapping_add(b.0), a.1.plus(b.1));
        let live = self.held.iter().map(|held| {
            let load = |n| self.load(held, n);
            (number(slots, ruler, load, || self.cpu(held, ruler)), calls(activations, load))
        });
        let of = |record: &FxHashMap<u32, i64>| {
            let load = |n| record.get(&n).copied().unwrap_or(0);
            (number(slots, ruler, load, || 0), calls(activations, load))
        };
        // Threads may be held meanwhile, and there may be thousands of ended ones. The time of each is rounded by itself.
        match slots.shape {
            Shape::Counter => live.fold(of(&self.ended.together), plus),
            _ => live.chain(self.ended.threads.values().map(of)).fold((0, Activations::default()), plus),
        }
    }

    /// The values by key, or by index, of all threads together. A variable of another shape has none.
    pub fn table(&self, first: u32, shape: Shape) -> KeyTable {
        match shape {
            Shape::Table(shape) => {
                let empty = || KeyTable { fold: shape.fold, ..KeyTable::default() };
                let mut sum = self.ended.merged.get(&first).cloned().unwrap_or_else(empty);
                for held in &self.held {
                    sum.merge(&KeyTable::from_slots(shape, |n| self.load(held, first + n)));
                }
                sum
            }
            Shape::Vector(count) => {
                // Threads may be held meanwhile, and most of them have used few vectors.
                let used: Vec<_> = self.held.iter().filter(|held| self.load(held, first + vector::USED) != 0).collect();
                vector::from_slots(count, |n| self.sum_of(used.iter().copied(), first + n))
            }
            _ => KeyTable::default(),
        }
    }

    /// The tree of contexts of all threads together.
    pub fn tree(&self, first: u32, shape: ContextShape) -> ContextTree {
        if is_shared(self.shards, first) {
            let shared = |n| self.held.first().map_or(0, |held| self.load(held, first + n));
            let value = |n| if shape.is_of_thread(n) { self.sum(first + n) } else { shared(n) };
            return ContextTree::from_slots(shape, value);
        }
        let mut tree = self.ended.trees.get(&first).cloned().unwrap_or_default();
        for held in &self.held {
            let looked = self.ended.looks.get(&first).and_then(|looks| looks.of(held.shard));
            let value = |n| looked.as_ref().and_then(|looked| looked.value(n));
            tree.merge(&ContextTree::from_slots(shape, |n| value(n).unwrap_or_else(|| self.load(held, first + n))));
        }
        tree
    }

    /// The number of open records of all threads, and of stacks that no thread executes, by name. A call that was left has a record until its thread
    /// makes another call.
    pub fn open(&self) -> FxHashMap<u32, u64> {
        let mut open: FxHashMap<u32, u64> = FxHashMap::default();
        let of_threads = self.held.iter().flat_map(|held| self.shards.open(held.shard));
        for name in of_threads.chain(self.shards.set_aside()) {
            *open.entry(name).or_default() += 1;
        }
        open
    }

    /// The values of counters by thread.
    pub fn rows(&self, counters: &[u32]) -> Rows {
        let one = |value: &dyn Fn(u32) -> i64| -> Vec<(usize, i64)> {
            let all = counters.iter().map(|counter| value(*counter)).enumerate();
            all.filter(|(_, value)| *value != 0).collect()
        };
        Rows {
            held: self.held.iter().map(|held| (held.tid, one(&|counter| self.load(held, counter)))).collect(),
            ended: one(&|counter| self.ended.together.get(&counter).copied().unwrap_or(0)),
        }
    }

    /// The values of a counter that are not 0, each with its thread, if that is known. Values of ended threads are not among them.
    pub fn of_threads(&self, counter: u32) -> impl Iterator<Item = (Option<Tid>, i64)> {
        let values = self.held.iter().map(move |held| (held.tid, self.load(held, counter)));
        values.filter(|(_, value)| *value != 0)
    }

    /// A counter's sum over all threads.
    pub fn sum(&self, counter: u32) -> i64 {
        self.sum_of(self.held.iter(), counter)
    }

    /// A counter's sum over these threads and the ended ones.
    fn sum_of<'h>(&self, threads: impl Iterator<Item = &'h CountingShard>, counter: u32) -> i64 {
        let live = threads.map(|held| self.load(held, counter));
        live.fold(self.ended.together.get(&counter).copied().unwrap_or(0), i64::wrapping_add)
    }
}

/// Whether all threads find the contexts of a tree in shard 0, where contexts of goroutines are. Each thread has counted calls in its own shard.
fn is_shared(shards: &(impl Shards + ?Sized), first: u32) -> bool {
    shards.load(0, first + TAKEN) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::Resolution;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Fake {
        claims: RefCell<Vec<(u32, u64)>>,
        values: RefCell<FxHashMap<(u32, u32), i64>>,
    }

    impl Shards for Fake {
        fn claims(&self) -> Vec<(u32, u64)> {
            self.claims.borrow().clone()
        }
        fn load(&self, shard: u32, counter: u32) -> i64 {
            self.values.borrow().get(&(shard, counter)).copied().unwrap_or(0)
        }
        fn cpu_last(&self, shard: u32) -> u64 {
            if shard == 3 { 950 } else { 0 }
        }
        fn touched(&self, _: u32, _: u32) -> PopulatedPages {
            PopulatedPages::ALL
        }
        fn free(&self, shard: u32, counters: u32) -> Vec<(u32, i64)> {
            self.claims.borrow_mut().retain(|c| c.0 != shard);
            (0..counters).filter_map(|c| Some((c, self.values.borrow_mut().remove(&(shard, c))?))).collect()
        }
        fn clear(&self, counters: Range<u32>) {
            self.values.borrow_mut().retain(|k, _| !counters.contains(&k.1));
        }
        fn open(&self, shard: u32) -> Vec<u32> {
            vec![8; shard as usize]
        }
        fn set_aside(&self) -> Vec<u32> {
            vec![8, 9]
        }
        fn forget(&self, _: &FxHashSet<u32>) {}
    }

    #[test]
    fn values_survive_their_threads() {
        let shards = Fake::default();
        let mut ended = EndedThreads::default();
        let tid = |id: u64| Some(Tid(id as i32));
        for (shard, id, value) in [(2, 70, 5), (3, 71, 7), (4, 70, 1)] {
            shards.claims.borrow_mut().push((shard, id));
            shards.values.borrow_mut().insert((shard, 1), value);
        }
        shards.values.borrow_mut().insert((0, 1), 2);
        let expected = [(Some(Tid(70)), 6), (Some(Tid(71)), 7), (None, 2)];
        let values = |columns: Columns<'_, Fake>| -> Vec<_> {
            let slots = Slots { first: 1, shape: Shape::Counter };
            columns.threads(slots, &[], RULER).into_iter().map(|(tid, raw)| (tid, raw.value)).collect()
        };
        assert_eq!(values(Columns::new(&shards, &ended, u32::MAX, &tid)), expected);
        ended.bury(&shards, &Shapes::default(), 2, Some(Tid(70)), 4, LAST);
        ended.bury(&shards, &Shapes::default(), 4, Some(Tid(70)), 4, LAST);
        assert_eq!(values(Columns::new(&shards, &ended, u32::MAX, &tid)), expected);
        let columns = Columns::new(&shards, &ended, u32::MAX, &tid);
        assert_eq!(columns.sum(1), 15);
        let rows = columns.rows(&[0, 1]);
        assert_eq!(rows.held, [(None, vec![(1, 2)]), (Some(Tid(71)), vec![(1, 7)])]);
        assert_eq!(rows.ended, [(1, 6)]);
        assert_eq!(shards.claims(), [(3, 71)]);
        ended.clear(&shards, 1..2);
        assert_eq!(Columns::new(&shards, &ended, u32::MAX, &tid).sum(1), 0);
    }

    const RULER: Ruler<'static> = Ruler { scale: Scale { mult: 1, shift: 1 }, now: &|| 1000, cpu: &|_| 900 };

    const LAST: LastSeen = LastSeen { wall: 1000, cpu: 950 };

    /// Puts the slots of a variable into a shard.
    fn put(shards: &Fake, shard: u32, first: u32, values: &[i64]) {
        let mut all = shards.values.borrow_mut();
        all.extend((first..).zip(values).map(|(n, value)| ((shard, n), *value)));
    }

    #[test]
    fn a_timer_is_read_while_it_runs_and_ends_with_its_thread() {
        let (shards, mut ended) = (Fake::default(), EndedThreads::default());
        let timer = Slots { first: 5, shape: Shape::Timer(Clock::Wall) };
        let mut shapes = Shapes::default();
        shapes.insert(timer.first, timer.shape);
        shards.claims.borrow_mut().extend([(2, 70), (3, 71)]);
        put(&shards, 2, 5, &[0, 300]);
        put(&shards, 3, 5, &[2, -400]);
        let read = |ended: &EndedThreads| {
            let columns = Columns::new(&shards, ended, u32::MAX, &|id| Some(Tid(id as i32)));
            columns.threads(timer, &[], RULER).into_iter().map(|(_, raw)| raw.value).collect::<Vec<_>>()
        };
        assert_eq!(read(&ended), [150, 300]);
        ended.bury(&shards, &shapes, 2, Some(Tid(70)), 8, LAST);
        ended.bury(&shards, &shapes, 3, Some(Tid(70)), 8, LAST);
        // the time that ran until the end was noticed; both shards are the same thread's
        assert_eq!(read(&ended), [450]);
    }

    #[test]
    fn a_timer_that_stops_and_starts_while_it_is_read_is_read_again() {
        use std::cell::Cell;
        // started at 400 after 100, stopped at 650, started at 900; the clock is at 1000
        let script = [-300, 350, -550, -550];
        for (first, expected) in [(0, 350), (1, 350), (2, 450)] {
            let at = Cell::new(first);
            let sum = || script[at.replace((at.get() + 1).min(3))];
            assert_eq!(running(sum, || 1000, RETRIES), expected);
        }
        // a timer that changes at every look has the value of the last look, and never less than 0
        let changes = Cell::new(-1000);
        assert_eq!(running(|| changes.replace(changes.get() - 1), || 500, RETRIES), 0);
    }

    #[test]
    fn processor_time_of_a_running_timer_is_the_later_of_two_readings() {
        let shards = Fake::default();
        let timer = Slots { first: 5, shape: Shape::Timer(Clock::Cpu) };
        shards.claims.borrow_mut().extend([(2, 70), (3, 71), (4, 72)]);
        put(&shards, 2, 5, &[1, -400]);
        put(&shards, 3, 5, &[1, -400]);
        put(&shards, 4, 5, &[0, 30]);
        let ended = EndedThreads::default();
        let columns = Columns::new(&shards, &ended, u32::MAX, &|id| Some(Tid(id as i32)));
        let values: Vec<_> = columns.threads(timer, &[], RULER).into_iter().map(|(_, raw)| raw.value).collect();
        assert_eq!(values, [250, 275, 15]);
    }

    #[test]
    fn histograms_of_ended_threads_keep_their_extremes() {
        use ingraft_model::histogram::HEAD;
        let (shards, mut ended) = (Fake::default(), EndedThreads::default());
        let histogram = Slots { first: 0, shape: Shape::Histogram(Resolution::Fine) };
        let mut shapes = Shapes::default();
        shapes.insert(0, Shape::Histogram(Resolution::Fine));
        for (shard, value) in [(2, 10), (3, 30), (4, 20)] {
            shards.claims.borrow_mut().push((shard, 70));
            put(&shards, shard, 0, &[value, value, !value, value / 2 + 1, value * value]);
            put(&shards, shard, HEAD + value as u32, &[1]);
        }
        for shard in [2, 3, 4] {
            ended.bury(&shards, &shapes, shard, Some(Tid(70)), Shape::Histogram(Resolution::Fine).slots(), LAST);
        }
        let columns = Columns::new(&shards, &ended, u32::MAX, &|id| Some(Tid(id as i32)));
        let [(tid, raw)] = columns.threads(histogram, &[], Ruler::PLAIN).try_into().expect("one");
        let d = raw.distribution.expect("a histogram");
        assert_eq!((tid, d.count, d.sum, d.min, d.max, d.own), (Some(Tid(70)), 3, 60, 10, 30, Some(30)));
        assert_eq!(d.squares, Some(100 + 900 + 400));
    }

    #[test]
    fn tables_of_ended_threads_keep_their_keys() {
        use ingraft_model::table::{FIRST, OTHERS, TAKEN};
        use ingraft_model::{TableKey, TableShape};
        let (shards, mut ended) = (Fake::default(), EndedThreads::default());
        let table = Slots { first: 2, shape: Shape::Table(TableShape::SUMS) };
        let mut shapes = Shapes::default();
        shapes.insert(table.first, table.shape);
        // the same key is at another place in every thread
        for (shard, id, value) in [(2, 70, 5), (3, 70, 7), (4, 71, 1)] {
            shards.claims.borrow_mut().push((shard, id));
            let words = [(OTHERS, 1), (TAKEN, 1), (FIRST + 2 * shard, 0x1000), (FIRST + 2 * shard + 1, value)];
            words.iter().for_each(|(at, value)| put(&shards, shard, table.first + at, &[*value]));
        }
        let read = |ended: &EndedThreads| {
            let columns = Columns::new(&shards, ended, u32::MAX, &|id| Some(Tid(id as i32)));
            let all = columns.threads(table, &[], Ruler::PLAIN);
            let mut sum = KeyTable::default();
            all.iter().filter_map(|(_, raw)| raw.table.as_ref()).for_each(|table| sum.merge(table));
            assert_eq!(columns.table(table.first, table.shape), sum);
            all.into_iter().map(|(tid, raw)| (tid, raw.value, raw.table.expect("a table").values)).collect::<Vec<_>>()
        };
        let of = |value| BTreeMap::from([(TableKey::Number(0x1000), value)]);
        let expected = [(Some(Tid(70)), 14, of(12)), (Some(Tid(71)), 2, of(1))];
        assert_eq!(read(&ended), expected);
        let counters = table.first + TableShape::SUMS.slots();
        ended.bury(&shards, &shapes, 2, Some(Tid(70)), counters, LAST);
        assert_eq!(read(&ended), expected);
        ended.bury(&shards, &shapes, 3, Some(Tid(70)), counters, LAST);
        ended.bury(&shards, &shapes, 4, Some(Tid(71)), counters, LAST);
        assert_eq!(read(&ended), expected);
        ended.clear(&shards, 2..counters);
        assert_eq!(read(&ended), []);
    }

    #[test]
    fn trees_of_ended_threads_are_kept_together() {
        use ingraft_model::contexts::{FIRST, PARENT_BIAS, TAKEN, key};
        let (shards, mut ended) = (Fake::default(), EndedThreads::default());
        let shape = ContextShape::of_bits(2, false, false).expect("a size");
        let mut shapes = Shapes::default();
        shapes.insert(2, Shape::Contexts(shape));
        for (shard, id, calls) in [(2, 70, 5), (3, 71, 7)] {
            shards.claims.borrow_mut().push((shard, id));
            // The same context is at another place in each thread.
            let place = 4 * (shard - 1);
            put(&shards, shard, 2 + TAKEN, &[1]);
            let words = [key(1, 0x1000), PARENT_BIAS, calls, u64::from(place) + 1].map(u64::cast_signed);
            put(&shards, shard, 2 + FIRST + place, &words);
        }
        let read = |ended: &EndedThreads| {
            let tree = Columns::new(&shards, ended, u32::MAX, &|id| Some(Tid(id as i32))).tree(2, shape);
            tree.contexts.iter().map(|c| (c.function, c.return_address, c.parent, c.calls)).collect::<Vec<_>>()
        };
        for shard in [2, 3] {
            assert_eq!(read(&ended), [(1, 0x1000, None, 12)]);
            ended.bury(&shards, &shapes, shard, None, 2 + shape.slots(), LAST);
        }
        assert_eq!(read(&ended), [(1, 0x1000, None, 12)]);
        ended.clear(&shards, 2..2 + shape.slots());
        assert_eq!(read(&ended), []);
    }

    #[test]
    fn a_tree_that_threads_share_has_the_calls_of_each() {
        use ingraft_model::contexts::{CALLS, FIRST, FULL, PARENT_BIAS, PLACE, TAKEN, key};
        let (shards, mut ended) = (Fake::default(), EndedThreads::default());
        let shape = ContextShape::of_bits(2, false, false).expect("a size");
        let mut shapes = Shapes::default();
        shapes.insert(2, Shape::Contexts(shape));
        put(&shards, 0, 2 + TAKEN, &[2]);
        let outer = [key(1, 0x1000), PARENT_BIAS, 0, 1].map(u64::cast_signed);
        let inner = [key(2, 0x2000), PARENT_BIAS + 1, 0, 1 + u64::from(PLACE)].map(u64::cast_signed);
        put(&shards, 0, 2 + FIRST, &outer);
        put(&shards, 0, 2 + FIRST + PLACE, &inner);
        for (shard, id, calls) in [(2, 70, [5, 1]), (3, 71, [7, 2])] {
            shards.claims.borrow_mut().push((shard, id));
            put(&shards, shard, 2 + FULL, &[3]);
            put(&shards, shard, 2 + FIRST + CALLS, &calls[..1]);
            put(&shards, shard, 2 + FIRST + PLACE + CALLS, &calls[1..]);
        }
        let read = |ended: &EndedThreads| {
            let tree = Columns::new(&shards, ended, u32::MAX, &|id| Some(Tid(id as i32))).tree(2, shape);
            let contexts = tree.contexts.iter().map(|c| (c.function, c.parent, c.calls)).collect::<Vec<_>>();
            (contexts, tree.full)
        };
        let all = (vec![(1, None, 12), (2, Some(0), 3)], 6);
        for shard in [2, 3] {
            assert_eq!(read(&ended), all);
            ended.bury(&shards, &shapes, shard, None, 2 + shape.slots(), LAST);
        }
        assert_eq!(read(&ended), all);
        ended.clear(&shards, 2..2 + shape.slots());
    }

    #[test]
    fn a_call_that_was_open_at_the_end_of_its_thread_was_left() {
        let (shards, mut ended, mut shapes) = (Fake::default(), EndedThreads::default(), Shapes::default());
        shapes.insert(4, Shape::Outermost);
        for (shard, words) in [(2, [77, 0x7000]), (3, [0, 0]), (4, [-5, 0x8000]), (5, [9, 0])] {
            shards.claims.borrow_mut().push((shard, u64::from(shard)));
            put(&shards, shard, 4, &words);
        }
        for (shard, left) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
            ended.bury(&shards, &shapes, shard, None, 8, LAST);
            let columns = Columns::new(&shards, &ended, u32::MAX, &|_| None);
            assert_eq!(columns.sum(4 + outermost::LEFT), left);
        }
        assert_eq!([4, 5].map(|counter| ended.together.get(&counter).copied().unwrap_or(0)), [0, 0]);
    }

    /// Counters and timers of threads that live, that share an id, that have ended, and that are unknown.
    #[test]
    fn what_all_have_together_is_what_they_have_each() {
        let (shards, mut ended, mut shapes) = (Fake::default(), EndedThreads::default(), Shapes::default());
        let all = [Shape::Counter, Shape::Timer(Clock::Wall), Shape::Timer(Clock::Cpu)];
        let all: Vec<Slots> = (0..).zip(all).map(|(n, shape)| Slots { first: 2 * n, shape }).collect();
        let calls = [[8, 11], [8, 11 | RECORDS_ONLY]];
        all.iter().for_each(|slots| shapes.insert(slots.first, slots.shape));
        shapes.insert(8, Shape::Activations);
        shapes.insert(11, Shape::Activations);
        for shard in [0, 2, 3, 4, 5, 6] {
            shards.claims.borrow_mut().extend((shard > 0).then_some((shard, 70 + u64::from(shard) / 2)));
            // every other thread runs its timers
            let (n, sign) = (i64::from(shard), if shard % 2 == 0 { 1 } else { -1 });
            let timer = |ticks: i64| if shard == 0 { [0, 0] } else { [i64::from(sign < 0), sign * ticks] };
            let [[runs, wall], [computes, cpu]] = [timer(301 + n), timer(201 + n)];
            put(&shards, shard, 0, &[5 + n, 0, runs, wall, computes, cpu]);
            put(&shards, shard, 8, &[n, 2 * n, 3 * n, 4 * n, 5 * n, 6 * n]);
        }
        for (shard, tid) in [(5, Some(Tid(72))), (6, None), (2, Some(Tid(71)))] {
            ended.bury(&shards, &shapes, shard, tid, 14, LAST);
            let columns = Columns::new(&shards, &ended, u32::MAX, &|id| Some(Tid(id as i32)));
            for (slots, calls) in all.iter().flat_map(|slots| calls.iter().map(move |calls| (*slots, calls))) {
                let each = columns.threads(slots, calls, RULER).into_iter().map(|(_, raw)| raw);
                let each = each.fold(Raw::default(), Raw::plus);
                assert!(each.value > 0 && each.activations.unrecorded > 0, "{slots:?} {each:?}");
                assert_eq!(columns.together(slots, calls, RULER), (each.value, each.activations), "{slots:?}");
            }
        }
    }
}
