//! The code that tells calling contexts. The entry of a function enters its context, and the end of the call, however it ends, goes back to
//! that of the caller: the activation record of the call restores it ([`ingraft_model::contexts`]).

use std::sync::Arc;

use ingraft_model::contexts::CURRENT;
use ingraft_model::{
    BinaryOp, CallRecord, Capacity, Clock, ContextShape, Expr, FunctionId, Insertion, Instrumentation, KeptValue,
    MetricInfo, Order, Placing, PointKind, RecordField, Recorded, Restore, Scalar, Shape, Snippet, Stmt, Variable,
    VariableId, VariableKind,
};

use crate::api::{ContextMetric, ContextsOptions};
use crate::kinds::code;
use crate::kinds::event::ReadEvent;

use super::latencies;
use super::sums::SumCode;

/// Name of the metric of the pairs of functions.
pub const METRIC: &str = "contexts";
/// Name of the metric of the pair that holds the tree.
pub const TREE: &str = "context_tree";
/// Name of the metric of the pair that holds the buffer of records of memory.
pub const RECORDS: &str = "context_records";
/// Name of the metric of the pair that holds the last count of the event.
pub const LAST_COUNT: &str = "context_event";
/// Name of the metric of the pair that holds the lock for which a thread waits.
pub const LOCK: &str = "context_lock";

/// The variables of a function: one that is 0 without times ([`super::latencies::EARLIER`]), the activations, the tree, the context of the thread,
/// the buffer of records of memory, the last count of the event that a thread has read, the lock for which a thread waits, and an event of the
/// processor if there is one.
pub const ACTIVATIONS: VariableId = VariableId(1);
pub(super) const TREE_OF: VariableId = VariableId(2);
pub(super) const CURRENT_OF: VariableId = VariableId(3);
const RECORDS_OF: VariableId = VariableId(4);
const LAST_COUNT_OF: VariableId = VariableId(5);
const LOCK_OF: VariableId = VariableId(6);
const EVENT_OF: VariableId = VariableId(7);

/// Numbers of the statements that make records of memory, without [`KINDS`] times the index of their function among those that allocate or free. The
/// first value is the time, the second an address, the last the context of the thread. A call begins that frees the block at this address.
pub const FREED: u16 = 0;
/// A call begins that allocates a block of the size that the third value tells. It gives the block at this address back, or none if that is 0.
pub const BEGINS: u16 = 1;
/// This call ends. The address is that of the new block, or 0 if nothing was allocated. The context is no matter: the end of a call that has jumped
/// to another function comes in one of several contexts.
pub const ENDS: u16 = 2;
/// Number of these statements.
pub const KINDS: u16 = 3;

/// Effects of a function of the C library that metrics are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryRole {
    /// Whether threads wait in it.
    pub waits: bool,
    /// The lock that it waits for, which its first argument points to; `None` if it waits for none.
    pub lock: Option<LockKind>,
    /// The number of bytes that it is asked for.
    pub allocates: Option<Size>,
    /// The block of memory that it allocates or frees.
    pub memory: Option<MemoryRole>,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A mutex of the C library.
    Mutex,
    /// A lock of the C library that either several readers hold, or one writer.
    ReadWrite,
    /// Another one, which does not tell who holds it.
    Other,
}

/// Effect of a function on blocks of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRole {
    /// It returns a block, or 0.
    Allocates(Size),
    /// It stores the address of a block at its first argument and returns 0, or returns an error.
    Stores(Size),
    /// It frees the block at its first argument and returns another one, or returns 0; then it has freed the block only if it was asked for no
    /// bytes.
    Resizes(Size),
    /// It frees the block at its first argument.
    Frees,
}

/// A number of bytes, by the arguments that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One argument.
    Argument(u8),
    /// The product of two arguments.
    Product(u8, u8),
}

/// The variable of the tree, which a pair of its own holds for all functions.
pub fn held(shape: ContextShape) -> Variable {
    code::named(TREE, VariableKind::Scratch, Shape::Contexts(shape))
}

/// The variable of the buffer of records of memory, which a pair of its own holds for all functions.
pub fn held_records() -> Variable {
    code::named(RECORDS, VariableKind::Scratch, Shape::Records(CAPACITY, false))
}

/// Capacity of the buffer of records of memory in each thread. The engine takes the records every few milliseconds.
pub const CAPACITY: Capacity = match Capacity::of_bytes(4 << 20) {
    Some(capacity) => capacity,
    None => Capacity::SMALLEST,
};

/// First counters of what a pair of its own holds for all functions. 0 for what is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCounters {
    /// The tree.
    pub tree: u32,
    /// The buffer of records of memory.
    pub records: u32,
    /// The last count of the event that a thread has read, plus 1.
    pub last_count: u32,
    /// The address of the lock for which a thread waits; 0 if it waits for none.
    pub lock: u32,
}

/// The variables of all functions. Threads read the counter of an event if `counter` is set.
pub fn variables(held: HeldCounters, counter: bool) -> Arc<[Variable]> {
    let alias = |name, counter| code::named(name, VariableKind::Scratch, Shape::Alias(counter));
    let own = [
        code::named("calls", VariableKind::Counter, Shape::Counter),
        code::named("activations", VariableKind::Activations, Shape::Activations),
        alias("tree", held.tree),
        alias("current", held.tree + CURRENT),
        alias("records", held.records),
        alias("last count", held.last_count),
        alias("lock", held.lock),
    ];
    own.into_iter().chain(counter.then(|| code::named("event", VariableKind::Scratch, Shape::Event))).collect()
}

/// A variable for one number in each thread, which a pair with this name holds for all functions.
pub fn held_number(name: &str) -> Variable {
    code::named(name, VariableKind::Scratch, Shape::Counter)
}

/// The metric of a pair.
pub fn metric(name: &str) -> Arc<MetricInfo> {
    let doc = "Calls by calling context.".to_owned();
    Arc::new(MetricInfo { unit: "calls".to_owned(), doc, ..(*code::metric_named(name)).clone() })
}

/// The code of functions.
pub struct ContextCode<'a> {
    /// Size of the tree.
    pub shape: ContextShape,
    /// The metrics. Their values are numbered in their order.
    pub metrics: &'a [ContextMetric],
    /// Number of the value of the event, which comes after those of the metrics and the sums.
    pub event_number: u8,
    /// The event that is added up.
    pub event: Option<&'a ReadEvent>,
    /// The variables of all functions.
    pub variables: &'a Arc<[Variable]>,
    /// The metric of their pairs.
    pub metric: &'a Arc<MetricInfo>,
    /// Whether calls move between threads. Then only their numbers and one kind of times are told: all else belongs to a thread.
    pub moving: bool,
}

impl ContextCode<'_> {
    /// The code in a function with a number. `index` is its index among the functions that allocate or free, if it is one. `sums` are those of the
    /// function.
    pub fn of(
        &self,
        function: FunctionId,
        (number, index): (u32, u16),
        (role, sums): (LibraryRole, &SumCode),
        timed: Option<Clock>,
    ) -> Instrumentation {
        let follows = match self.metrics {
            [] | [ContextMetric::WallTime | ContextMetric::WaitTime | ContextMetric::LockTime] => sums.is_empty(),
            _ => false,
        };
        if follows && self.event.is_none() && timed.is_none() && self.moving {
            return self.of_moving(function, number, role);
        }
        let mut kept = sums.kept.clone();
        // All that has happened since the last reading belongs to the context that the thread is about to leave.
        let since = |of: &ReadEvent| Expr::Since(LAST_COUNT_OF, Box::new(of.count(EVENT_OF)));
        let event = self.event.map(|of| Stmt::AddContext(TREE_OF, self.shape, self.event_number, since(of)));
        let mut entry: Vec<Stmt> = event.iter().cloned().chain([Stmt::Enter(TREE_OF, self.shape, number)]).collect();
        let mut exit: Vec<Stmt> = event.into_iter().collect();
        let mut spent = Vec::new();
        for (n, metric) in (0..).zip(ContextsOptions::values(self.metrics)) {
            let add = |e| Stmt::AddContext(TREE_OF, self.shape, n, e);
            if let Some(clock) = clock(metric, role) {
                for value in [KeptValue::Time(clock), KeptValue::Spent(clock)] {
                    if !kept.contains(&value) {
                        kept.push(value);
                    }
                }
                spent.push(add(Expr::Saved(KeptValue::Spent(clock))));
            }
            if let Some(size) = role.allocates.filter(|_| metric == ContextMetric::AllocatedBytes) {
                entry.push(add(size.expr()));
            }
        }
        entry.extend(sums.entry.iter().cloned());
        if role.lock.is_some() && self.metrics.contains(&ContextMetric::LockTime) {
            entry.push(Stmt::Set(LOCK_OF, Expr::Arg(0)));
            exit.insert(0, Stmt::Set(LOCK_OF, Expr::Const(0)));
        }
        let memory = role.memory.filter(|_| self.metrics.iter().any(|metric| metric.is_live()));
        if let Some(memory) = memory {
            memory.add(KINDS.saturating_mul(index), &mut kept, &mut entry, &mut exit);
        }
        // Beside the times of both clocks and an argument, the record has no room for the context.
        if !sums.exit.is_empty() || (!spent.is_empty() && kept.len() < CallRecord::KEPT_MAX) {
            kept.push(KeptValue::Inside);
            exit.push(in_own_context(sums.exit.clone()));
        }
        // A call that had begun before the measurement keeps no context. What it has spent since then is in the one where it ends.
        exit.extend(spent);
        if let Some(clock) = timed {
            latencies::add(clock, (self.shape, number), &mut kept, &mut exit);
        }
        // Code that reads a clock or a counter cannot stand right at a point.
        let is_plain = kept.is_empty() && memory.is_none() && self.event.is_none() && sums.is_empty();
        let placing = if is_plain { Placing::InCopyIfBusy } else { Placing::Anywhere };
        // Times are the first words of a record. That of the processor comes first, so that its readings lie between those of the other
        // clock: no call has more processor time than time.
        kept.sort_by_key(|kept| match kept {
            KeptValue::Time(Clock::Cpu) => 0,
            KeptValue::Time(Clock::Wall) => 1,
            _ => 2,
        });
        exit.push(Stmt::Set(CURRENT_OF, Expr::Restored));
        let record = CallRecord { activations: ACTIVATIONS, kept, restore: Some(Restore::Value(CURRENT_OF)) };
        let insertions = both_ends(function, record, entry, exit);
        let variables = Arc::clone(self.variables);
        let counter = self.event.and_then(ReadEvent::counter);
        Instrumentation { variables, placing, event: counter, ..code::empty(insertions, Arc::clone(self.metric)) }
    }

    /// The code in a function whose calls move between threads, with at most one metric.
    fn of_moving(&self, function: FunctionId, number: u32, role: LibraryRole) -> Instrumentation {
        let is_timed = self.metrics.iter().any(|metric| clock(*metric, role).is_some());
        let (kept, exit) = match is_timed {
            false => (Vec::new(), Vec::new()),
            true => {
                let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Spent(Clock::Wall)];
                (kept, vec![Stmt::LeaveMoving(TREE_OF, self.shape, 0)])
            }
        };
        let record = CallRecord { activations: ACTIVATIONS, kept, restore: None };
        let entry = vec![Stmt::EnterMoving(TREE_OF, self.shape, number)];
        let insertions = both_ends(function, record, entry, exit);
        let variables = Arc::clone(self.variables);
        Instrumentation { variables, placing: Placing::Anywhere, ..code::empty(insertions, Arc::clone(self.metric)) }
    }
}

/// The code at both ends of a call with a record.
fn both_ends(function: FunctionId, record: CallRecord, entry: Vec<Stmt>, exit: Vec<Stmt>) -> Vec<Insertion> {
    let at = |point, order, stmt| {
        let snippet = Arc::new(Snippet { stmts: vec![stmt] });
        Insertion { order, ..code::insertion_of(function, point, snippet) }
    };
    vec![
        at(PointKind::Entry, Order::Append, Stmt::Open(record.clone(), entry)),
        at(PointKind::Exit, Order::Prepend, Stmt::Close(record, exit)),
    ]
}

/// The statements in the context of the call that ends. Its record keeps that ([`KeptValue::Inside`]), because a call that ends by a tail jump may end
/// in another one. A call that had begun before the measurement keeps none, and does nothing.
pub fn in_own_context(stmts: Vec<Stmt>) -> Stmt {
    let own = Expr::Saved(KeptValue::Inside);
    let stmts = std::iter::once(Stmt::Set(CURRENT_OF, own.clone())).chain(stmts).collect();
    Stmt::If(compared(BinaryOp::NotEqual, own), stmts)
}

/// Whether the record of a call has room for all values that it keeps.
pub fn fits(code: &Instrumentation) -> bool {
    let fits = |stmt: &Stmt| !matches!(stmt, Stmt::Open(record, _) if record.kept.len() > CallRecord::KEPT_MAX);
    code.insertions.iter().flat_map(|insertion| &insertion.snippet.stmts).all(fits)
}

/// The clock whose own time of a call is added to the metric in a function; `None` if none is.
fn clock(metric: ContextMetric, role: LibraryRole) -> Option<Clock> {
    match metric {
        ContextMetric::WallTime => Some(Clock::Wall),
        ContextMetric::CpuTime => Some(Clock::Cpu),
        ContextMetric::WaitTime => role.waits.then_some(Clock::Wall),
        ContextMetric::LockTime => role.lock.map(|_| Clock::Wall),
        ContextMetric::AllocatedBytes
        | ContextMetric::LiveBytes
        | ContextMetric::LiveBlocks
        | ContextMetric::Looks
        | ContextMetric::Instructions
        | ContextMetric::Reads
        | ContextMetric::Writes => None,
    }
}

/// A record of memory with the context of the thread.
fn record(number: u16, address: Expr, size: Option<Expr>) -> Stmt {
    let values = [Some(address), size, Some(Expr::Variable(CURRENT_OF))];
    let fields = values.into_iter().flatten().map(RecordField::Number).collect();
    Stmt::Record(RECORDS_OF, CAPACITY, Recorded { number, time: true, fields, limit: None, leaves_room: false })
}

fn compared(op: BinaryOp, value: Expr) -> Expr {
    Expr::Binary(op, Box::new(value), Box::new(Expr::Const(0)))
}

impl MemoryRole {
    /// Adds the statements that make records at both ends of a call, and the values that its record keeps for them. `first` is the number of the
    /// function's first statement.
    fn add(self, first: u16, kept: &mut Vec<KeptValue>, entry: &mut Vec<Stmt>, exit: &mut Vec<Stmt>) {
        let record = |kind: u16, address, size| record(first.saturating_add(kind), address, size);
        match self {
            MemoryRole::Allocates(size) => {
                entry.push(record(BEGINS, Expr::Const(0), Some(size.expr())));
                exit.push(record(ENDS, Expr::Return, None));
            }
            MemoryRole::Resizes(size) => {
                entry.push(record(BEGINS, Expr::Arg(0), Some(size.expr())));
                exit.push(record(ENDS, Expr::Return, None));
            }
            MemoryRole::Stores(size) => {
                kept.push(KeptValue::Argument(0));
                entry.push(record(BEGINS, Expr::Const(0), Some(size.expr())));
                let stored = Expr::Read(Box::new(Expr::Saved(KeptValue::Argument(0))), Scalar::POINTER);
                // The result is an `int`.
                let result = || Expr::Binary(BinaryOp::And, Box::new(Expr::Return), Box::new(Expr::Const(0xffff_ffff)));
                exit.push(Stmt::If(compared(BinaryOp::NotEqual, result()), vec![record(ENDS, Expr::Const(0), None)]));
                exit.push(Stmt::If(compared(BinaryOp::Equal, result()), vec![record(ENDS, stored, None)]));
            }
            MemoryRole::Frees => {
                let freed = record(FREED, Expr::Arg(0), None);
                entry.push(Stmt::If(compared(BinaryOp::NotEqual, Expr::Arg(0)), vec![freed]));
            }
        }
    }
}

impl Size {
    fn expr(self) -> Expr {
        match self {
            Size::Argument(n) => Expr::Arg(n),
            Size::Product(a, b) => Expr::Binary(BinaryOp::Multiply, Box::new(Expr::Arg(a)), Box::new(Expr::Arg(b))),
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{ModuleId, Usage, WallClock};

    use crate::measure::lower::WorstCases;

    use super::*;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    /// Code that only counts calls.
    fn plain<'a>(shape: ContextShape, variables: &'a Arc<[Variable]>, metric: &'a Arc<MetricInfo>) -> ContextCode<'a> {
        ContextCode { shape, metrics: &[], event_number: 0, event: None, variables, metric, moving: false }
    }

    fn code_of(code: &ContextCode<'_>, role: LibraryRole, timed: Option<Clock>) -> Instrumentation {
        code.of(F, (9, 2), (role, &SumCode::default()), timed)
    }

    fn texts(metrics: &[ContextMetric], role: LibraryRole) -> Vec<String> {
        let shape = ContextShape::of_bits(4, !metrics.is_empty(), false).expect("a size");
        let held = HeldCounters { tree: 7, records: 9, last_count: 0, lock: 0 };
        let (variables, metric) = (variables(held, false), metric(METRIC));
        let code = ContextCode { metrics, ..plain(shape, &variables, &metric) };
        code_of(&code, role, None).insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect()
    }

    #[test]
    fn the_record_of_a_call_has_limited_room() {
        let shape = ContextShape::of_bits(4, true, false).expect("a size");
        let (variables, metric) = (variables(HeldCounters::default(), false), metric(METRIC));
        let metrics = &[ContextMetric::WallTime, ContextMetric::CpuTime];
        let code = ContextCode { metrics, ..plain(shape, &variables, &metric) };
        let with = |arguments: u8| {
            let sums = SumCode { kept: (0..arguments).map(KeptValue::Argument).collect(), ..SumCode::default() };
            code.of(F, (9, 2), (LibraryRole::default(), &sums), None)
        };
        assert_eq!([0, 1, 2].map(|arguments| fits(&with(arguments))), [true, true, false]);
    }

    #[test]
    fn a_sum_is_in_the_context_of_its_call() {
        let shape = ContextShape::of_bits(4, true, false).expect("a size");
        let (variables, metric) = (variables(HeldCounters::default(), false), metric(METRIC));
        let add = |e| vec![Stmt::AddContext(TREE_OF, shape, 0, e)];
        let sums = SumCode { kept: Vec::new(), entry: add(Expr::Arg(0)), exit: add(Expr::Return) };
        let code = plain(shape, &variables, &metric).of(F, (9, 2), (LibraryRole::default(), &sums), None);
        let texts: Vec<String> = code.insertions.iter().map(|i| i.snippet.to_string()).collect();
        assert_eq!(
            texts,
            [
                "open r1 inside restore v3 { enter v2 9; v2 metric 0 += $arg[0]; }",
                "close r1 inside restore v3 { if ((saved inside != 0)) { v3 = saved inside; v2 metric 0 += $return; } v3 = restored; }",
            ]
        );
    }

    #[test]
    fn a_call_enters_its_context_and_goes_back() {
        assert_eq!(
            texts(&[], LibraryRole::default()),
            ["Entry open r1 restore v3 { enter v2 9; }", "Exit close r1 restore v3 { v3 = restored; }"]
        );
    }

    #[test]
    fn the_record_of_a_call_that_moves_keeps_its_context() {
        let shape = ContextShape::of_bits(4, false, false).expect("a size");
        let (variables, metric) = (variables(HeldCounters::default(), false), metric(METRIC));
        let code = ContextCode { moving: true, ..plain(shape, &variables, &metric) };
        let of = |code: &ContextCode<'_>, timed| {
            let insertions = code_of(code, LibraryRole::default(), timed).insertions;
            let bound = insertions.iter().any(|i| i.snippet.is_bound_to_thread());
            (insertions.iter().map(|i| i.snippet.to_string()).collect::<Vec<_>>().join(" "), bound)
        };
        assert_eq!(of(&code, None), ("open r1 { enter moving v2 9; } close r1 { }".to_owned(), false));
        assert!(of(&code, Some(Clock::Wall)).1);
        let with = |metrics| of(&ContextCode { metrics, ..code }, None);
        let timed = "open r1 time spent { enter moving v2 9; } close r1 time spent { leave moving v2 metric 0; }";
        assert_eq!(with(&[ContextMetric::WallTime]), (timed.to_owned(), false));
        // Only where goroutines wait are times told.
        assert_eq!(with(&[ContextMetric::WaitTime]), of(&code, None));
        let waits = LibraryRole { waits: true, ..LibraryRole::default() };
        let code_of_wait = ContextCode { metrics: &[ContextMetric::WaitTime], ..code };
        let insertions = code_of(&code_of_wait, waits, None).insertions;
        assert_eq!(insertions.iter().map(|i| i.snippet.to_string()).collect::<Vec<_>>().join(" "), timed);
        assert!(with(&[ContextMetric::Looks]).1 && with(&[ContextMetric::WallTime, ContextMetric::CpuTime]).1);
    }

    #[test]
    fn the_end_of_a_timed_call_counts_the_bucket_of_its_time() {
        let shape = ContextShape::of_bits(4, true, false).expect("a size");
        let (variables, metric) =
            (variables(HeldCounters { tree: 7, ..HeldCounters::default() }, false), metric(METRIC));
        let code = plain(shape, &variables, &metric);
        let code = code_of(&code, LibraryRole::default(), Some(Clock::Cpu));
        let texts: Vec<String> = code.insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect();
        assert_eq!(
            texts,
            [
                "Entry open r1 cpu_time cpu_spent inside restore v3 { enter v2 9; }",
                "Exit close r1 cpu_time cpu_spent inside restore v3 { if ((saved inside != 0)) { v3 = saved inside; \
                 enter bucket v2 65545 cpu_elapsed_ticks; v2 metric 0 += cpu_elapsed_ticks; v2 metric 1 += saved cpu_spent; } \
                 if ((saved inside == 0)) { v0++; } v3 = restored; }",
            ]
        );
        assert_eq!(code.placing, Placing::Anywhere);
    }

    #[test]
    fn an_event_is_added_where_the_context_changes() {
        let shape = ContextShape::of_bits(4, true, false).expect("a size");
        let (variables, metric) = (variables(HeldCounters::default(), true), metric(METRIC));
        let texts = |usage| {
            let event = ReadEvent { name: "cycles".into(), usage };
            let metrics = &[ContextMetric::Looks];
            let plain = plain(shape, &variables, &metric);
            let code = ContextCode { metrics, event_number: 2, event: Some(&event), ..plain };
            let code = code_of(&code, LibraryRole::default(), None);
            let texts = code.insertions.iter().map(|i| i.snippet.to_string()).collect::<Vec<_>>();
            (code.event, texts.join(" "))
        };
        let (event, code) = texts(None);
        assert_eq!(event.as_deref(), Some("cycles"));
        assert_eq!(
            code,
            "open r1 restore v3 { v2 metric 2 += ((event v7 + 1) since v5); enter v2 9; } \
             close r1 restore v3 { v2 metric 2 += ((event v7 + 1) since v5); v3 = restored; }"
        );
        let (event, code) = texts(Some(Usage::PageFaults));
        assert!(event.is_none() && code.contains("page-faults"), "{code}");
    }

    /// Without a prediction, a request would not know which functions are called too often.
    #[test]
    fn the_cost_of_the_largest_tree_is_predicted() {
        let shape = ContextShape::of_bits(*ContextShape::BITS.end(), true, false).expect("a size");
        let held = HeldCounters { tree: 0, records: 9, last_count: 8, lock: 0 };
        let (variables, metric) = (variables(held, true), metric(METRIC));
        let [cycles, faults] = [None, Some(Usage::PageFaults)].map(|usage| ReadEvent { name: "e".into(), usage });
        let metrics = &ContextMetric::ALL[..4];
        let code = ContextCode { metrics, ..plain(shape, &variables, &metric) };
        let [counted, asked] = [&cycles, &faults].map(|event| ContextCode { metrics: &[], event: Some(event), ..code });
        let timed = ContextCode { metrics: &[], ..code };
        let of = |code: &ContextCode<'_>, clock| code_of(code, LibraryRole::default(), clock).insertions;
        let worst_cases = WorstCases::new(WallClock::Tsc);
        let all = [of(&code, None), of(&timed, Some(Clock::Wall)), of(&counted, None), of(&asked, None)];
        for insertion in all.concat() {
            let cost = worst_cases.of(&insertion, &variables, false);
            assert!(cost.is_some(), "{}", insertion.snippet);
        }
        for metrics in [&[] as &[_], &[ContextMetric::WallTime]] {
            for insertion in of(&ContextCode { metrics, moving: true, ..code }, None) {
                let cost = worst_cases.of(&insertion, &variables, true);
                assert!(cost.is_some(), "{}", insertion.snippet);
            }
        }
    }

    /// The statements of the third function that allocates or frees.
    #[test]
    fn memory_is_recorded_where_it_changes_hands() {
        use ContextMetric::{CpuTime, LiveBytes, WallTime};
        let of = |metrics: &[ContextMetric], memory| {
            let role = LibraryRole { memory: Some(memory), ..LibraryRole::default() };
            texts(metrics, role).join("\n")
        };
        let one = |memory, expected: [&str; 2]| assert_eq!(of(&[LiveBytes], memory), expected.join("\n"));
        one(
            MemoryRole::Allocates(Size::Product(0, 1)),
            [
                "Entry open r1 restore v3 { enter v2 9; record v4 7 time, 0, ($arg[0] * $arg[1]), v3; }",
                "Exit close r1 restore v3 { record v4 8 time, $return, v3; v3 = restored; }",
            ],
        );
        one(
            MemoryRole::Resizes(Size::Argument(1)),
            [
                "Entry open r1 restore v3 { enter v2 9; record v4 7 time, $arg[0], $arg[1], v3; }",
                "Exit close r1 restore v3 { record v4 8 time, $return, v3; v3 = restored; }",
            ],
        );
        one(
            MemoryRole::Stores(Size::Argument(2)),
            [
                "Entry open r1 $arg[0] restore v3 { enter v2 9; record v4 7 time, 0, $arg[2], v3; }",
                "Exit close r1 $arg[0] restore v3 { if ((($return & 4294967295) != 0)) { record v4 8 time, 0, v3; } \
                 if ((($return & 4294967295) == 0)) { record v4 8 time, read(saved $arg[0], u64), v3; } v3 = restored; }",
            ],
        );
        one(
            MemoryRole::Frees,
            [
                "Entry open r1 restore v3 { enter v2 9; if (($arg[0] != 0)) { record v4 6 time, $arg[0], v3; } }",
                "Exit close r1 restore v3 { v3 = restored; }",
            ],
        );
        let dear = of(&[WallTime, CpuTime, LiveBytes], MemoryRole::Stores(Size::Argument(2)));
        assert!(dear.contains("open r1 cpu_time time spent cpu_spent $arg[0] restore"), "{dear}");
        assert!(!of(&[WallTime], MemoryRole::Frees).contains("record"));
    }

    #[test]
    fn metrics_are_added_where_they_belong() {
        use ContextMetric::{AllocatedBytes, CpuTime, LockTime, WaitTime, WallTime};
        let allocates = Some(Size::Product(0, 1));
        let role = LibraryRole { waits: true, allocates, ..LibraryRole::default() };
        let all = texts(&[WallTime, WaitTime, LockTime, AllocatedBytes], role);
        assert_eq!(
            all,
            [
                "Entry open r1 time spent inside restore v3 { enter v2 9; v2 metric 3 += ($arg[0] * $arg[1]); }",
                "Exit close r1 time spent inside restore v3 { if ((saved inside != 0)) { v3 = saved inside; } \
                 v2 metric 0 += saved spent; v2 metric 1 += saved spent; v3 = restored; }",
            ]
        );
        let lock = LibraryRole { waits: true, lock: Some(LockKind::Mutex), ..LibraryRole::default() };
        assert_eq!(
            texts(&[LockTime], lock),
            [
                "Entry open r1 time spent inside restore v3 { enter v2 9; v6 = $arg[0]; }",
                "Exit close r1 time spent inside restore v3 { v6 = 0; if ((saved inside != 0)) { v3 = saved inside; } \
                 v2 metric 0 += saved spent; v3 = restored; }",
            ]
        );
        assert!(!texts(&[WaitTime], lock).concat().contains("v6"));
        let looks = texts(&[ContextMetric::Looks, AllocatedBytes], role);
        assert!(
            looks[0].ends_with("{ enter v2 9; v2 metric 2 += ($arg[0] * $arg[1]); }"),
            "two values without code: {looks:?}"
        );
        assert!(
            texts(&[WallTime, CpuTime], LibraryRole::default())[0].contains("r1 cpu_time time spent cpu_spent inside"),
            "times first"
        );
    }
}
