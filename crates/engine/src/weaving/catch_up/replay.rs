//! Replay of the code at an entry for a call that began before the code was there. States are set as if the code had run; events are not
//! counted (docs/mdl.md, "Calls that began before").

use std::collections::BTreeMap;

use ingraft_model::contexts::{self, CURRENT, FIRST, KEY, PARENT, PARENT_BIAS, PLACE, PROBES, TAKEN, TARGET};
use ingraft_model::layout::{COUNTERS, OWNER, TOP, record};
use ingraft_model::outermost::FRAME;
use ingraft_model::{
    CallRecord, Clock, ContextShape, DataArea, Expr, KeptValue, Restore, Stmt, Variable, VariableId, VariableKind,
};
use rustc_hash::FxHashSet;

use super::outcome::Uncaught;

/// Counters of a timer, as offsets from its first counter.
const NEST: u32 = 0;
const SUM_OF_STOPS: u32 = 1;
/// Offset of the counter of unrecorded calls among the counters of a record's activations.
const UNRECORDED: u32 = 2;
/// Length of a record in words.
const WORDS: usize = record::SIZE as usize / 8;
/// Largest number of open records.
const OPEN_MAX: usize = (record::ROOM / record::SIZE) as usize;

/// The part of an entry's code that changes states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChanges(Vec<Stmt>);

impl StateChanges {
    /// Removes the counting of events from an entry's code. `None` if nothing is left.
    pub fn of(stmts: &[Stmt], variables: &[Variable]) -> Result<Option<Self>, Uncaught> {
        let state = states(stmts, variables, &mut Vec::new())?;
        Ok(Some(StateChanges(state)).filter(|s| !s.0.is_empty()))
    }

    /// The first counters of the activations whose records the code opens.
    pub fn records<'s>(&'s self, counters: &'s [u32]) -> impl Iterator<Item = u32> + 's {
        opened(&self.0).filter_map(|record| counters.get(record.activations.0 as usize).copied())
    }
}

/// Whether the record is that of a call whose context is told, and keeps nothing but times and that context. For a call in progress, the times count
/// from the beginning of the measurement, and the context that it keeps is 0.
fn tells_contexts(record: &CallRecord, body: &[Stmt]) -> bool {
    let is_of_contexts =
        |kept: &KeptValue| matches!(kept, KeptValue::Time(_) | KeptValue::Spent(_) | KeptValue::Inside);
    record.kept.iter().all(is_of_contexts) && body.iter().any(|stmt| matches!(stmt, Stmt::Enter(..)))
}

fn states(stmts: &[Stmt], variables: &[Variable], restored: &mut Vec<VariableId>) -> Result<Vec<Stmt>, Uncaught> {
    let mut kept = Vec::new();
    for stmt in stmts {
        match stmt {
            Stmt::Add(v, e) | Stmt::Set(v, e) => {
                let kind = variables.get(v.0 as usize).map(|v| v.kind);
                // The value of the metric is a state only if the end of the call restores it.
                if matches!(kind, Some(VariableKind::Flag | VariableKind::Scratch)) || restored.contains(v) {
                    known(e)?;
                    kept.push(stmt.clone());
                }
            }
            Stmt::Start(..) | Stmt::Stop(..) | Stmt::Enter(..) => kept.push(stmt.clone()),
            Stmt::If(condition, body) => {
                let body = states(body, variables, restored)?;
                if !body.is_empty() {
                    known(condition)?;
                    kept.push(Stmt::If(condition.clone(), body));
                }
            }
            // The record of such a call is in the list of its goroutine, and in no thread.
            Stmt::Open(_, body) if body.iter().any(|stmt| matches!(stmt, Stmt::EnterMoving(..))) => {}
            Stmt::Open(record, body) if !record.kept.is_empty() && !tells_contexts(record, body) => {
                return Err(if record.is_timed() { Uncaught::Begin } else { Uncaught::Arguments });
            }
            Stmt::Open(record, body) => {
                let restores = record.restore.map(Restore::variable);
                restored.extend(restores);
                let body = states(body, variables, restored);
                restored.truncate(restored.len() - usize::from(restores.is_some()));
                kept.push(Stmt::Open(record.clone(), body?));
            }
            Stmt::Prune
            | Stmt::Await
            | Stmt::Fork
            | Stmt::Switch(_)
            | Stmt::Forked
            | Stmt::Close(..)
            | Stmt::HandOver(..)
            | Stmt::GiveUp(..)
            | Stmt::CloseHanded(..)
            | Stmt::Observe(..)
            | Stmt::AddAt(..)
            | Stmt::AddIn(..)
            | Stmt::AddListed(..)
            | Stmt::Mark(..)
            | Stmt::Append(..)
            | Stmt::Record(..)
            | Stmt::BeginGroup(_)
            | Stmt::KeepGroup(_)
            | Stmt::Notes(_)
            | Stmt::EnterMoving(..)
            | Stmt::LeaveMoving(..)
            | Stmt::AddContext(..)
            | Stmt::CountBelow(..)
            | Stmt::EnterValue(..)
            | Stmt::LeaveValue(..)
            | Stmt::Call(_)
            | Stmt::Store(..)
            | Stmt::Write(..) => {}
        }
    }
    Ok(kept)
}

/// Fails if a value depends on the registers at the entry, or on memory or time at the beginning of the call.
fn known(e: &Expr) -> Result<(), Uncaught> {
    match e {
        Expr::Const(_) | Expr::Variable(_) | Expr::Number(_) => Ok(()),
        Expr::Unary(_, e) => known(e),
        Expr::Binary(_, a, b) => known(a).and_then(|()| known(b)),
        Expr::Arg(_) | Expr::Saved(_) | Expr::Return | Expr::Restored | Expr::Call(_) => Err(Uncaught::Arguments),
        Expr::ReturnAddress => Err(Uncaught::Arguments),
        Expr::Float(_) | Expr::Text(_) | Expr::Address(_) => Err(Uncaught::Arguments),
        Expr::Load(..) | Expr::Read(..) | Expr::ValueAt(..) | Expr::ValueIn(..) => Err(Uncaught::Memory),
        Expr::ThreadPointer => Err(Uncaught::Memory),
        Expr::Elapsed(..) | Expr::Lost(_) | Expr::Usage(_) | Expr::Event(_) => Err(Uncaught::Begin),
        Expr::Now(_) | Expr::Since(..) | Expr::Notes | Expr::OfGoroutine(_) => Err(Uncaught::Begin),
    }
}

/// A thread's shard while its calls are caught up. All offsets are relative to the shard.
pub struct Shard<'a> {
    load: &'a dyn Fn(u32) -> Option<u64>,
    records_at: u32,
    now: &'a dyn Fn(Clock) -> u64,
    word_at: &'a dyn Fn(u64) -> u64,
    /// The open records, including the sentinel that ends every search, and the number of records at the beginning.
    records: Vec<[u64; WORDS]>,
    before: usize,
    /// The names of the records that were open at the beginning.
    names: FxHashSet<u32>,
    /// New values of changed words, by offset.
    words: BTreeMap<u32, u64>,
}

impl<'a> Shard<'a> {
    /// Reads the records of a shard. `now` reads a clock, in ticks, and `word_at` a word of the thread's stack; it is 0 if that cannot be read. `None` if
    /// the shard is not in a state that an engine leaves.
    pub fn new(
        layout: &DataArea,
        now: &'a dyn Fn(Clock) -> u64,
        word_at: &'a dyn Fn(u64) -> u64,
        load: &'a dyn Fn(u32) -> Option<u64>,
    ) -> Option<Self> {
        let records_at = layout.records();
        let top =
            u32::try_from(load(TOP)?).ok().filter(|top| *top <= record::ROOM && top.is_multiple_of(record::SIZE))?;
        let word = |at: u32| load(records_at + 8 * at);
        let mut records = Vec::new();
        for first in (0..top / 8).step_by(WORDS) {
            let mut words = [0; WORDS];
            for (i, w) in (0..).zip(&mut words) {
                *w = word(first + i)?;
            }
            records.push(words);
        }
        let before = records.len();
        if records.is_empty() {
            records.push(new_record(u64::MAX, 0, 0, 0));
        }
        let names = records.iter().map(name_of).filter(|name| *name != 0).collect();
        Some(Shard { load, records_at, now, word_at, records, before, names, words: BTreeMap::new() })
    }

    /// Changes the shard as the code would have done at the entry of the call whose return address is at `sp`. Must be called from the
    /// outermost call to the innermost one. On an error the shard is not changed.
    pub fn replay(&mut self, state: &StateChanges, counters: &[u32], sp: u64) -> Result<(), Uncaught> {
        let mixed = |name: u32| self.names.contains(&name);
        if opened(&state.0).any(|r| offset(counters, r.activations).is_some_and(mixed)) {
            return Err(Uncaught::Mixed);
        }
        self.run(&state.0, counters, sp);
        Ok(())
    }

    fn run(&mut self, stmts: &[Stmt], counters: &[u32], sp: u64) {
        for stmt in stmts {
            match stmt {
                Stmt::Add(v, e) => {
                    let value = self.variable(counters, *v).wrapping_add(self.eval(e, counters));
                    self.set(counters, *v, 0, value);
                }
                Stmt::Set(v, e) => {
                    let value = self.eval(e, counters);
                    self.set(counters, *v, 0, value);
                }
                Stmt::If(condition, body) => {
                    if self.eval(condition, counters) != 0 {
                        self.run(body, counters, sp);
                    }
                }
                Stmt::Open(r, body) => {
                    if self.open(r, counters, sp) || r.is_optional() {
                        self.run(body, counters, sp);
                    }
                }
                Stmt::Enter(v, shape, function) => self.enter((*v, *shape), counters, *function, sp),
                Stmt::Start(timer, clock) => {
                    let nest = self.variable(counters, *timer);
                    if nest == 0 {
                        let sum = self.at(counters, *timer, SUM_OF_STOPS);
                        self.set(counters, *timer, SUM_OF_STOPS, sum.wrapping_sub_unsigned((self.now)(*clock)));
                    }
                    self.set(counters, *timer, NEST, nest.wrapping_add(1));
                }
                Stmt::Stop(timer, clock) => {
                    let nest = self.variable(counters, *timer);
                    if nest == 1 {
                        let sum = self.at(counters, *timer, SUM_OF_STOPS).wrapping_add_unsigned((self.now)(*clock));
                        self.set(counters, *timer, SUM_OF_STOPS, sum.max(0));
                    }
                    if nest >= 1 {
                        self.set(counters, *timer, NEST, nest - 1);
                    }
                }
                Stmt::Prune
                | Stmt::Await
                | Stmt::Fork
                | Stmt::Switch(_)
                | Stmt::Forked
                | Stmt::Close(..)
                | Stmt::HandOver(..)
                | Stmt::GiveUp(..)
                | Stmt::CloseHanded(..)
                | Stmt::Observe(..)
                | Stmt::AddAt(..)
                | Stmt::AddIn(..)
                | Stmt::AddListed(..)
                | Stmt::Mark(..)
                | Stmt::Append(..)
                | Stmt::Record(..)
                | Stmt::BeginGroup(_)
                | Stmt::KeepGroup(_)
                | Stmt::Notes(_)
                | Stmt::EnterMoving(..)
                | Stmt::LeaveMoving(..)
                | Stmt::AddContext(..)
                | Stmt::CountBelow(..)
                | Stmt::EnterValue(..)
                | Stmt::LeaveValue(..)
                | Stmt::Call(_)
                | Stmt::Store(..)
                | Stmt::Write(..) => {}
            }
        }
    }

    /// Inserts a record where the entry's code would have put it: above those of callers, below those of callees. Returns false if there is
    /// no room.
    fn open(&mut self, r: &CallRecord, counters: &[u32], sp: u64) -> bool {
        let Some(name) = offset(counters, r.activations) else { return false };
        if let Some(Restore::Outermost(v)) = r.restore
            && self.variable(counters, v) == 0
        {
            self.set(counters, v, FRAME, sp.cast_signed());
            return true;
        }
        if self.records.len() >= OPEN_MAX {
            let count = self.at(counters, r.activations, UNRECORDED).wrapping_add(1);
            self.set(counters, r.activations, UNRECORDED, count);
            return false;
        }
        let (restore, saved) = match r.restore {
            Some(Restore::Value(v) | Restore::Flag(v) | Restore::Outermost(v)) => {
                (offset(counters, v).unwrap_or(0), self.variable(counters, v))
            }
            Some(Restore::Timer(v, clock)) => {
                let kind = if clock == Clock::Cpu { record::RESTORE_CPU } else { record::RESTORE_WALL };
                (offset(counters, v).map_or(0, |o| o | kind), self.variable(counters, v))
            }
            None => (0, 0),
        };
        let place = self.records.iter().rposition(|r| r[0] >= sp).map_or(0, |i| i + 1);
        let mut words = new_record(sp, name, restore, saved.cast_unsigned());
        for (word, kept) in words.iter_mut().skip(record::KEPT as usize / 8).zip(&r.kept) {
            *word = match kept {
                KeptValue::Time(clock) => (self.now)(*clock),
                KeptValue::Spent(clock) => self.spent(*clock),
                _ => 0,
            };
        }
        self.records.insert(place.max(1), words);
        true
    }

    /// Time that the thread has spent in ended calls with own times.
    fn spent(&self, clock: Clock) -> u64 {
        let word = record::SPENT as usize / 8 + usize::from(clock == Clock::Cpu);
        self.records.first().and_then(|first| first.get(word)).copied().unwrap_or(0)
    }

    /// Makes the context of the call whose return address is at `sp` that of the thread, as code does, without counting the call. If there is no
    /// room, the context of the caller stays.
    fn enter(&mut self, (v, shape): (VariableId, ContextShape), counters: &[u32], function: u32, sp: u64) {
        let word = |shard: &Self, n: u32| shard.at(counters, v, n).cast_unsigned();
        let (current, key) = (word(self, CURRENT), contexts::key(function, (self.word_at)(sp)));
        let parent = current + PARENT_BIAS;
        let first = shape.place(current, key);
        for probe in 0..PROBES {
            let place = (first + PLACE * probe) & shape.mask();
            let at = |n: u32| FIRST + place + n;
            match word(self, at(KEY)) {
                0 => {
                    let own = u64::from(place) + 1;
                    let target = if shape.full() { own } else { self.first_of(function, current, shape, &word) };
                    let target = if target == 0 { own } else { target };
                    let taken = word(self, TAKEN) + 1;
                    let words = [(TAKEN, taken), (at(KEY), key), (at(PARENT), parent), (at(TARGET), target)];
                    for (n, value) in words {
                        self.set(counters, v, n, value.cast_signed());
                    }
                    return self.set(counters, v, CURRENT, target.cast_signed());
                }
                known if known == key && word(self, at(PARENT)) == parent => {
                    let target = word(self, at(TARGET));
                    return self.set(counters, v, CURRENT, target.cast_signed());
                }
                _ => {}
            }
        }
    }

    /// The context of a function at or above another context; 0 if there is none.
    fn first_of(&self, function: u32, from: u64, shape: ContextShape, word: &dyn Fn(&Self, u32) -> u64) -> u64 {
        let mut context = from;
        for _ in 0..shape.places() {
            let place = context as u32 & shape.mask();
            if context == 0 || contexts::function_of(word(self, FIRST + place + KEY)) == function {
                return context;
            }
            context = word(self, FIRST + place + PARENT).saturating_sub(PARENT_BIAS);
        }
        0
    }

    fn eval(&self, e: &Expr, counters: &[u32]) -> i64 {
        match e {
            Expr::Const(c) => *c,
            Expr::Variable(v) => self.variable(counters, *v),
            Expr::Unary(op, e) => op.apply(self.eval(e, counters)),
            Expr::Binary(op, a, b) => op.apply(self.eval(a, counters), self.eval(b, counters)),
            Expr::Number(v) => counters.get(v.0 as usize).copied().map_or(0, i64::from),
            // a state has no such expression, see `known`
            Expr::Load(..) | Expr::Read(..) | Expr::Float(_) | Expr::Usage(_) | Expr::Text(_) | Expr::Address(_) => 0,
            Expr::Arg(_) | Expr::Saved(_) | Expr::Return | Expr::Restored | Expr::Elapsed(..) | Expr::Call(_) => 0,
            Expr::Event(_) | Expr::ValueAt(..) | Expr::ValueIn(..) | Expr::ThreadPointer | Expr::ReturnAddress => 0,
            Expr::Lost(_) | Expr::Notes | Expr::OfGoroutine(_) | Expr::Now(_) | Expr::Since(..) => 0,
        }
    }

    fn variable(&self, counters: &[u32], v: VariableId) -> i64 {
        self.at(counters, v, 0)
    }

    fn at(&self, counters: &[u32], v: VariableId, n: u32) -> i64 {
        let Some(at) = offset(counters, v).map(|o| o + 8 * n) else { return 0 };
        self.words.get(&at).copied().or_else(|| (self.load)(at)).unwrap_or(0).cast_signed()
    }

    fn set(&mut self, counters: &[u32], v: VariableId, n: u32, value: i64) {
        if let Some(at) = offset(counters, v) {
            self.words.insert(at + 8 * n, value.cast_unsigned());
        }
    }

    /// The words to write, in this order: records from the top, then their number, then the restored variables. If the writer dies in
    /// between, a record may exist without its effect; it then restores the value that the variable has anyway.
    pub fn writes(self) -> Vec<(u32, u64)> {
        let mut writes = Vec::new();
        if self.records.len() > self.before.max(1) {
            let word = |place: usize, i: usize| self.records_at + (place * WORDS + i) as u32 * 8;
            for (place, record) in self.records.iter().enumerate().rev() {
                writes.extend(record.iter().enumerate().map(|(i, w)| (word(place, i), *w)));
            }
            writes.push((TOP, (self.records.len() * WORDS * 8) as u64));
        }
        writes.extend(self.words);
        debug_assert!(writes.iter().all(|(at, _)| *at > OWNER));
        writes
    }
}

/// The records that statements open.
fn opened(stmts: &[Stmt]) -> Box<dyn Iterator<Item = &CallRecord> + '_> {
    Box::new(stmts.iter().flat_map(|stmt| match stmt {
        Stmt::Open(r, body) => {
            Box::new(std::iter::once(r).chain(opened(body))) as Box<dyn Iterator<Item = &CallRecord>>
        }
        Stmt::If(_, body) => opened(body),
        _ => Box::new(std::iter::empty()),
    }))
}

/// Offset of a variable's first counter in a shard.
fn offset(counters: &[u32], v: VariableId) -> Option<u32> {
    Some(COUNTERS + 8 * counters.get(v.0 as usize)?)
}

fn new_record(sp: u64, name: u32, restore: u32, saved: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[record::SP as usize / 8] = sp;
    words[record::NAME as usize / 8] = u64::from(name) | u64::from(restore) << 32;
    words[record::SAVED as usize / 8] = saved;
    words
}

fn name_of(words: &[u64; WORDS]) -> u32 {
    words[record::NAME as usize / 8] as u32
}

#[cfg(test)]
mod tests {
    use ingraft_model::outermost::VALUE as VALUE_OF_CALL;

    use super::*;
    use ingraft_model::{Avma, BinaryOp, ContextTree, KeptValue, Shape, ValueUnit};
    use rustc_hash::FxHashMap;
    use std::cell::RefCell;

    const LAYOUT: DataArea = DataArea { base: Avma(1 << 30), stride: 1 << 20, shards: 8, journal_bytes: 0 };
    const VALUE: VariableId = VariableId(0);
    const FLAG: VariableId = VariableId(1);
    const CALLS: VariableId = VariableId(2);
    const TIMER: VariableId = VariableId(3);
    const RETURNS_TO: u64 = 0x40_1000;
    const COUNTERS_OF: [u32; 4] = [0, 1, 2, 5];

    fn variables() -> Vec<Variable> {
        use VariableKind as K;
        let kinds = [(K::Counter, Shape::Counter), (K::Flag, Shape::Counter), (K::Activations, Shape::Activations)];
        let all = kinds.into_iter().chain([(K::Counter, Shape::Timer(Clock::Wall))]);
        all.map(|(kind, shape)| Variable { name: String::new(), kind, shape, unit: ValueUnit::Plain, sampled: false })
            .collect()
    }

    fn record(restore: Option<Restore>) -> CallRecord {
        CallRecord { activations: CALLS, kept: Vec::new(), restore }
    }

    fn nesting_flag() -> Vec<Stmt> {
        vec![Stmt::Open(record(Some(Restore::Value(FLAG))), vec![Stmt::Add(FLAG, Expr::Const(1))])]
    }

    #[derive(Default)]
    struct Memory(RefCell<FxHashMap<u32, u64>>);

    impl Memory {
        fn replay(&self, now: u64, states: &[(&StateChanges, u64)]) -> Vec<Result<(), Uncaught>> {
            let load = |at: u32| Some(self.0.borrow().get(&at).copied().unwrap_or(0));
            let now = |_| now;
            let mut shard = Shard::new(&LAYOUT, &now, &|sp| sp + RETURNS_TO, &load).expect("a shard");
            let results = states.iter().map(|(state, sp)| shard.replay(state, &COUNTERS_OF, *sp)).collect();
            let writes = shard.writes();
            self.0.borrow_mut().extend(writes);
            results
        }

        fn at(&self, offset: u32) -> u64 {
            self.0.borrow().get(&offset).copied().unwrap_or(0)
        }

        fn counter(&self, n: u32) -> i64 {
            self.at(COUNTERS + 8 * n).cast_signed()
        }

        /// Stack pointer and saved value of each open record.
        fn open(&self) -> Vec<(u64, u64)> {
            let count = self.at(TOP) as u32 / record::SIZE;
            let at = |i: u32, field: u32| self.at(LAYOUT.records() + i * record::SIZE + field);
            (1..count).map(|i| (at(i, record::SP), at(i, record::SAVED))).collect()
        }
    }

    #[test]
    fn recursion_nests_a_flag_and_counts_no_event() {
        let code =
            [nesting_flag(), vec![Stmt::If(Expr::Variable(FLAG), vec![Stmt::Add(VALUE, Expr::Const(1))])]].concat();
        let state = StateChanges::of(&code, &variables()).expect("known").expect("a state");
        let memory = Memory::default();
        let results = memory.replay(0, &[(&state, 900), (&state, 800), (&state, 700)]);
        assert!(results.iter().all(Result::is_ok));
        assert_eq!((memory.counter(1), memory.counter(0)), (3, 0));
        assert_eq!(memory.open(), [(900, 0), (800, 1), (700, 2)]);
        assert_eq!(memory.at(LAYOUT.records()), u64::MAX, "what ends every search");
    }

    #[test]
    fn the_outermost_call_in_progress_has_no_record() {
        const SUM: VariableId = VariableId(3);
        let late = vec![Stmt::Set(SUM, Expr::Const(-7))];
        let code = [Stmt::Open(record(Some(Restore::Outermost(SUM))), late)];
        let state = StateChanges::of(&code, &variables()).expect("known").expect("a state");
        let memory = Memory::default();
        memory.replay(0, &[(&state, 900), (&state, 800), (&state, 700)]);
        let of = |n| memory.counter(COUNTERS_OF[3] + n);
        assert_eq!((of(VALUE_OF_CALL), of(FRAME)), (-7, 900));
        let saved = (-7_i64).cast_unsigned();
        assert_eq!(memory.open(), [(800, saved), (700, saved)]);
    }

    #[test]
    fn calls_in_progress_have_contexts_and_do_not_count() {
        const TREE: u32 = 100;
        let shape = ContextShape::of_bits(3, false, false).expect("a size");
        let code = |function| {
            let enter = vec![Stmt::Enter(VALUE, shape, function)];
            let code = [Stmt::Open(record(Some(Restore::Value(FLAG))), enter)];
            StateChanges::of(&code, &variables()).expect("known").expect("a state")
        };
        let (main, f) = (code(1), code(2));
        let memory = Memory::default();
        let load = |at: u32| Some(memory.at(at));
        let mut shard = Shard::new(&LAYOUT, &|_| 0, &|sp| sp + RETURNS_TO, &load).expect("a shard");
        for (state, sp) in [(&main, 900), (&f, 800), (&f, 700)] {
            shard.replay(state, &[TREE, TREE + CURRENT, 2, 5], sp).expect("known");
        }
        let writes = shard.writes();
        memory.0.borrow_mut().extend(writes);
        let tree = ContextTree::from_slots(shape, |n| memory.counter(TREE + n));
        let found: Vec<_> = tree.contexts.iter().map(|c| (c.function, c.return_address, c.parent, c.back)).collect();
        let at = |sp| RETURNS_TO + sp;
        assert_eq!(found, [(1, at(900), None, None), (2, at(800), Some(0), None), (2, at(700), Some(1), Some(1))]);
        assert!(tree.contexts.iter().all(|context| context.calls == 0) && tree.full == 0);
        // The recursive call leads back to the context that its own record restores.
        let saved: Vec<u64> = memory.open().into_iter().map(|(_, saved)| saved).collect();
        assert_eq!((saved[0], saved[2]), (0, memory.counter(TREE + CURRENT).cast_unsigned()));
    }

    #[test]
    fn records_of_others_keep_their_places() {
        let memory = Memory::default();
        let other: Vec<Stmt> = vec![Stmt::Open(record(None), Vec::new())];
        let other = StateChanges::of(&other, &variables()).expect("known").expect("a state");
        memory.replay(0, &[(&other, 850), (&other, 650)]);
        // as if another measurement had opened the records
        for i in 1..3 {
            let at = LAYOUT.records() + i * record::SIZE + record::NAME;
            memory.0.borrow_mut().insert(at, 0x5_0000);
        }
        let state = StateChanges::of(&nesting_flag(), &variables()).expect("known").expect("a state");
        assert!(memory.replay(0, &[(&state, 900), (&state, 800), (&state, 650)]).iter().all(Result::is_ok));
        assert_eq!(memory.open().iter().map(|r| r.0).collect::<Vec<_>>(), [900, 850, 800, 650, 650]);
        assert_eq!(memory.replay(0, &[(&state, 500)]), [Err(Uncaught::Mixed)]);
    }

    #[test]
    fn a_timer_starts_now_and_once() {
        let code =
            [Stmt::Open(record(Some(Restore::Timer(TIMER, Clock::Wall))), vec![Stmt::Start(TIMER, Clock::Wall)])];
        let state = StateChanges::of(&code, &variables()).expect("known").expect("a state");
        let memory = Memory::default();
        memory.replay(1000, &[(&state, 900), (&state, 800)]);
        assert_eq!((memory.counter(5), memory.counter(6)), (2, -1000));
        assert_eq!(
            memory.at(LAYOUT.records() + record::SIZE + record::RESTORE - 4) >> 32,
            u64::from(COUNTERS + 40 + 1)
        );
    }

    #[test]
    fn what_cannot_be_known_is_refused() {
        let mut timed = record(None);
        timed.kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(0)];
        let mut kept = record(None);
        kept.kept = vec![KeptValue::Argument(0)];
        let argument = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Arg(0)), Box::new(Expr::Const(1)));
        let of = |stmts: &[Stmt]| StateChanges::of(stmts, &variables());
        assert_eq!(of(&[Stmt::Open(timed, Vec::new())]), Err(Uncaught::Begin));
        assert_eq!(of(&[Stmt::Open(kept, Vec::new())]), Err(Uncaught::Arguments));
        assert_eq!(of(&[Stmt::If(argument.clone(), nesting_flag())]), Err(Uncaught::Arguments));
        // Catch-up replays states only. This code counts an event, so its unknown argument does not matter.
        assert_eq!(of(&[Stmt::If(argument, vec![Stmt::Add(VALUE, Expr::Arg(1))])]), Ok(None));
        let moving = Stmt::EnterMoving(VALUE, ContextShape::usual(false, false), 1);
        assert_eq!(of(&[Stmt::Open(record(None), vec![moving])]), Ok(None));
    }

    #[test]
    fn a_damaged_shard_is_left_alone() {
        let top = |top: u64| move |at: u32| Some(if at == TOP { top } else { 0 });
        for bad in [7, u64::MAX, u64::from(record::ROOM) + 64] {
            assert!(Shard::new(&LAYOUT, &|_| 0, &|_| 0, &top(bad)).is_none());
        }
        assert!(Shard::new(&LAYOUT, &|_| 0, &|_| 0, &|_| None).is_none());
    }

    #[test]
    fn a_flag_that_is_set_needs_no_room() {
        let of = |value| vec![Stmt::Open(record(Some(Restore::Flag(FLAG))), vec![Stmt::Set(FLAG, Expr::Const(value))])];
        let [up, down] = [1, 0].map(|n| StateChanges::of(&of(n), &variables()).expect("known").expect("a state"));
        let memory = Memory::default();
        let calls: Vec<_> = (0..OPEN_MAX as u64 + 8).map(|i| (&up, 100_000 - i * 8)).chain([(&down, 100)]).collect();
        memory.replay(0, &calls);
        assert_eq!((memory.counter(1), memory.counter(4)), (0, 10));
    }

    #[test]
    fn no_more_records_than_fit() {
        let state = StateChanges::of(&nesting_flag(), &variables()).expect("known").expect("a state");
        let memory = Memory::default();
        let calls: Vec<_> = (0..OPEN_MAX as u64 + 9).map(|i| (&state, 100_000 - i * 8)).collect();
        memory.replay(0, &calls);
        assert_eq!(memory.at(TOP), u64::from(record::ROOM));
        assert_eq!((memory.counter(1), memory.counter(4)), (OPEN_MAX as i64 - 1, 10));
    }
}
