//! The code that tells slow calls: that of the functions whose calls are looked at, and that of the functions inside.
//!
//! While a call of one of the former runs, calls inside make records when they end. A thread has one group of records
//! ([`ingraft_model::records`]), which begins with the outermost call, and is kept at its end if the call was slow. So a call that is not slow
//! costs what its clocks cost, and no call that ends by an exception or a longjmp leaves anything behind.
//!
//! A goroutine moves between threads, so it notes the calls inside ([`NotesStmt`]). When a slow call ends, its thread makes the same records of the notes.

use std::sync::Arc;

use ingraft_model::{
    BinaryOp, CallRecord, Clock, Expr, FunctionId, Insertion, Instrumentation, KeptValue, MetricInfo, NotesStmt, Order,
    PointKind, RecordColumn, RecordField, Recorded, Restore, Shape, Snippet, Stmt, TimeUnit, Variable, VariableId,
    VariableKind,
};

use crate::api::SlowOptions;
use crate::error::{Error, Reason};
use crate::kinds::code;

use super::told::ToldValues;

/// Name of the metric of the pairs of functions whose calls are looked at.
pub const SLOW: &str = "slow_calls";
/// Name of the metric of the pairs of functions inside.
pub const INSIDE: &str = "calls_inside";
/// Names of the metrics of the pairs that hold what all share.
pub const OPEN: &str = "slow_call_open";
pub const RECORDS: &str = "slow_call_records";
/// Name of the metric of the pair that one measurement has if its calls move between threads.
pub const NOTES: &str = "slow_call_notes";

/// Counters of the pair of a function whose calls are looked at: calls that began, those that ended, and slow ones. Calls inside of another
/// call of these functions do not count.
pub const BEGAN: VariableId = VariableId(0);
pub const ENDED: VariableId = VariableId(1);
pub const MET: VariableId = VariableId(2);
/// The shared counters, among the variables of such a pair: whether a call is open, and the buffer.
const OPEN_OF: VariableId = VariableId(3);
const RECORDS_OF: VariableId = VariableId(4);
/// Number of these variables, which precede those of the metric.
const OWN: u32 = 5;

/// The variables of a function inside: one that is always 0, the activations, and the shared counters.
const ACTIVATIONS_INSIDE: VariableId = VariableId(1);
const OPEN_INSIDE: VariableId = VariableId(2);
const RECORDS_INSIDE: VariableId = VariableId(3);

/// Number of words of the record of a call inside before its values: the beginning and the length of the call in ticks.
pub const HEAD_INSIDE: usize = 2;
/// Number of words of the record of a slow call before its values: the same, the number of records lost inside, and the number of the goroutine, 0 if
/// there is none.
pub const HEAD: usize = HEAD_INSIDE + 2;

/// The counters that the code of all functions shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCounters {
    /// Whether the thread is in a call of the functions that are looked at.
    pub open: u32,
    /// The buffer of records.
    pub records: u32,
}

/// The variable that a pair of its own holds for all.
pub fn held(name: &str, options: &SlowOptions) -> Variable {
    let shape = if name == RECORDS { Shape::Records(options.capacity, false) } else { Shape::Counter };
    code::named(name, VariableKind::Scratch, shape)
}

fn shared(SharedCounters { open, records }: SharedCounters) -> [Variable; 2] {
    let alias = |name, counter| code::named(name, VariableKind::Scratch, Shape::Alias(counter));
    [alias("open", open), alias("records", records)]
}

/// The metric of a pair.
fn metric(name: &str) -> Arc<MetricInfo> {
    let doc = "Calls that may be slow, or that are made inside of such calls.".to_owned();
    Arc::new(MetricInfo { unit: "calls".to_owned(), doc, ..(*code::metric_named(name)).clone() })
}

fn is_zero(e: Expr) -> Expr {
    Expr::Binary(BinaryOp::Equal, Box::new(e), Box::new(Expr::Const(0)))
}

fn is_not_zero(e: Expr) -> Expr {
    Expr::Binary(BinaryOp::NotEqual, Box::new(e), Box::new(Expr::Const(0)))
}

/// The statements, if the call that ends took at least so long.
fn if_long(ns: u64, stmts: Vec<Stmt>) -> Vec<Stmt> {
    if ns == 0 {
        return stmts;
    }
    let elapsed = Expr::Elapsed(Clock::Wall, TimeUnit::Nanoseconds);
    let least = Expr::Const(i64::try_from(ns).unwrap_or(i64::MAX));
    vec![Stmt::If(Expr::Binary(BinaryOp::GreaterOrEqual, Box::new(elapsed), Box::new(least)), stmts)]
}

/// The words that precede the values of a record.
fn head() -> Vec<RecordField> {
    let began = Expr::Saved(KeptValue::Began(Clock::Wall));
    [began, Expr::Elapsed(Clock::Wall, TimeUnit::Ticks)].map(RecordField::Number).into()
}

/// The record of a call inside, with values.
fn inside(number: u16, options: &SlowOptions, (records, values): (VariableId, &[RecordField])) -> Vec<Stmt> {
    let fields = head().into_iter().chain(values.iter().cloned()).collect();
    let recorded = Recorded { number, time: false, fields, limit: None, leaves_room: true };
    if_long(options.least_ns, vec![Stmt::Record(records, options.capacity, recorded)])
}

/// The note of a call inside.
fn noted(number: u16, options: &SlowOptions) -> Vec<Stmt> {
    if_long(options.least_ns, vec![Stmt::Notes(NotesStmt::Add(number))])
}

/// Place of what is known of a call until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// The thread that makes the call.
    Thread,
    /// The goroutine that makes the call, which may move to another thread meanwhile. Its number is at this offset in its descriptor, if that is known.
    Goroutine(Option<u32>),
}

/// Whether a call is inside of one that is looked at, or is such a one.
const fn is_inside(follow: Following, open: VariableId) -> Expr {
    match follow {
        Following::Thread => Expr::Variable(open),
        Following::Goroutine(_) => Expr::Notes,
    }
}

/// The code of a function whose calls inside of slow calls are told, under a number of its own.
pub struct InsideCode {
    follow: Following,
    entry: Arc<Snippet>,
    record: CallRecord,
    fields: Vec<RecordField>,
    metric: Arc<MetricInfo>,
}

impl InsideCode {
    /// Code for any function, without values.
    pub fn new(follow: Following) -> InsideCode {
        let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Began(Clock::Wall)];
        let record = CallRecord { activations: ACTIVATIONS_INSIDE, kept, restore: None };
        InsideCode::opening(follow, record, metric(INSIDE))
    }

    fn opening(follow: Following, record: CallRecord, metric: Arc<MetricInfo>) -> InsideCode {
        let open = Stmt::Open(record.clone(), Vec::new());
        let entry = Snippet { stmts: vec![Stmt::If(is_not_zero(is_inside(follow, OPEN_INSIDE)), vec![open])] };
        InsideCode { follow, entry: Arc::new(entry), record, fields: Vec::new(), metric }
    }

    /// The variables of all functions inside.
    pub fn variables(counters: SharedCounters) -> Arc<[Variable]> {
        let own = [
            code::named("calls", VariableKind::Counter, Shape::Counter),
            code::named("activations", VariableKind::Activations, Shape::Activations),
        ];
        own.into_iter().chain(shared(counters)).collect()
    }

    /// The code in a function whose calls have values.
    pub fn telling(&self, values: &ToldValues) -> Result<InsideCode, Error> {
        if self.follow != Following::Thread {
            let what = "values of calls inside of slow calls are not told of goroutines";
            return Err(Error::new(Reason::NoPrint, what, "leave out --tell for functions of Go"));
        }
        let more = values.kept.iter().filter(|value| !self.record.kept.contains(value));
        let kept: Vec<KeptValue> = self.record.kept.iter().chain(more).copied().collect();
        let fields = head().into_iter().chain(values.fields.iter().cloned()).collect();
        let recorded = Recorded { number: 0, time: false, fields, limit: None, leaves_room: true };
        if kept.len() > CallRecord::KEPT_MAX || recorded.words() > Recorded::WORDS_MAX {
            let what = "the values of a call inside of a slow call take too much room";
            let hint = "name fewer values of one function, with at most three arguments";
            return Err(Error::new(Reason::NoPrint, what, hint));
        }
        let record = CallRecord { kept, ..self.record.clone() };
        Ok(InsideCode {
            fields: values.fields.clone(),
            ..InsideCode::opening(self.follow, record, Arc::clone(&self.metric))
        })
    }

    /// The code in a function.
    pub fn of(
        &self,
        (function, number): (FunctionId, u16),
        options: &SlowOptions,
        variables: &Arc<[Variable]>,
    ) -> Instrumentation {
        let ended = match self.follow {
            Following::Thread => inside(number, options, (RECORDS_INSIDE, &self.fields)),
            Following::Goroutine(_) => noted(number, options),
        };
        let close = Stmt::Close(self.record.clone(), ended);
        let exit = Snippet { stmts: vec![Stmt::If(is_not_zero(is_inside(self.follow, OPEN_INSIDE)), vec![close])] };
        let at = |point, order, snippet| Insertion { order, ..code::insertion_of(function, point, snippet) };
        let insertions = vec![
            at(PointKind::Entry, Order::Append, Arc::clone(&self.entry)),
            at(PointKind::Exit, Order::Prepend, Arc::new(exit)),
        ];
        Instrumentation { variables: Arc::clone(variables), ..code::empty(insertions, Arc::clone(&self.metric)) }
    }
}

/// The variables of a function whose calls are looked at, with the shared counters.
pub fn bound(variables: &[Variable], counters: SharedCounters) -> Arc<[Variable]> {
    let mut variables = variables.to_vec();
    for (of, shared) in [OPEN_OF, RECORDS_OF].into_iter().zip(shared(counters)) {
        if let Some(variable) = variables.get_mut(of.0 as usize) {
            *variable = shared;
        }
    }
    variables.into()
}

/// The variables of a function whose calls are looked at. `of_metric` are those of its metric.
fn variables(of_metric: &[Variable]) -> Arc<[Variable]> {
    let [open, records] = shared(SharedCounters::default());
    let own = [
        code::named("calls", VariableKind::Counter, Shape::Counter),
        code::named("ended", VariableKind::Scratch, Shape::Counter),
        code::named("slow", VariableKind::Scratch, Shape::Counter),
        open,
        records,
    ];
    let moved = of_metric.iter().map(|variable| {
        // All functions share one buffer.
        let shape = if let Shape::Records(..) = variable.shape { Shape::Counter } else { variable.shape };
        let kind = if variable.kind == VariableKind::Counter { VariableKind::Scratch } else { variable.kind };
        Variable { shape, kind, sampled: variable.kind == VariableKind::Activations, ..variable.clone() }
    });
    own.into_iter().chain(moved).collect()
}

/// The code of a function whose calls are looked at, from that of a metric that prints each call when it returns. Its slow calls have the number
/// `number`, and its calls inside of others `inner`. Also returns the columns of the values.
pub fn of_function(
    printed: &Instrumentation,
    (number, inner): (u16, u16),
    (follow, options): (Following, &SlowOptions),
) -> Result<(Instrumentation, Vec<RecordColumn>), Error> {
    let [columns] = &*printed.records else { return Err(no_print(&printed.metric.name)) };
    let mut making = Making { number, inner, follow, options, closed: 0 };
    let insertions = printed.insertions.iter().map(|insertion| {
        let moved = insertion.snippet.renumbered(OWN);
        let snippet = Arc::new(Snippet { stmts: making.stmts(&moved.stmts)? });
        Ok(Insertion { snippet, ..insertion.clone() })
    });
    let insertions = insertions.collect::<Result<Vec<_>, Error>>()?;
    if making.closed != 1 {
        return Err(no_print(&printed.metric.name));
    }
    let variables = variables(&printed.variables);
    Ok((Instrumentation { variables, ..code::empty(insertions, metric(SLOW)) }, columns.clone()))
}

fn no_print(metric: &str) -> Error {
    let what = format!("the metric `{metric}` does not print each call once when it returns");
    Error::new(Reason::NoPrint, what, "write one `print(…, $elapsed)` without a condition in its code, at `.return`")
}

struct Making<'o> {
    number: u16,
    inner: u16,
    follow: Following,
    options: &'o SlowOptions,
    /// Number of statements that end a call.
    closed: usize,
}

impl Making<'_> {
    fn stmts(&mut self, stmts: &[Stmt]) -> Result<Vec<Stmt>, Error> {
        let mut made = Vec::with_capacity(stmts.len() + 1);
        for stmt in stmts {
            match stmt {
                Stmt::Open(record, body) if self.follow != Following::Thread => {
                    made.push(Stmt::If(is_zero(Expr::Notes), vec![Stmt::Add(BEGAN, Expr::Const(1))]));
                    let begin = Stmt::Notes(NotesStmt::Begin(record.activations));
                    let body = body.iter().cloned().chain([begin]).collect();
                    made.push(Stmt::Open(self.record(record)?, body));
                }
                Stmt::Open(record, body) => {
                    let outermost = || is_zero(Expr::Variable(OPEN_OF));
                    made.push(Stmt::If(outermost(), vec![Stmt::Add(BEGAN, Expr::Const(1))]));
                    let mut opening = body.clone();
                    opening.push(Stmt::If(outermost(), vec![Stmt::BeginGroup(RECORDS_OF)]));
                    opening.push(Stmt::Set(OPEN_OF, Expr::Const(1)));
                    made.push(Stmt::Open(self.record(record)?, opening));
                }
                Stmt::Close(record, body) => {
                    let closing = self.closing(body)?;
                    made.push(Stmt::Close(self.record(record)?, closing));
                }
                other => made.push(other.clone()),
            }
        }
        Ok(made)
    }

    /// A record that also keeps when the call began, and whether it is inside of another one.
    fn record(&self, record: &CallRecord) -> Result<CallRecord, Error> {
        let mut kept = record.kept.clone();
        kept.push(KeptValue::Began(Clock::Wall));
        if kept.len() > CallRecord::KEPT_MAX {
            let what = format!("the values of a slow call are made of {} arguments", record.kept.len() - 1);
            let hint = format!("name at most {}", CallRecord::KEPT_MAX - 2);
            return Err(Error::new(Reason::NoPrint, what, hint));
        }
        let restore = (self.follow == Following::Thread).then_some(Restore::Value(OPEN_OF));
        Ok(CallRecord { kept, restore, ..record.clone() })
    }

    /// The end of a call, from statements that print it.
    fn closing(&mut self, body: &[Stmt]) -> Result<Vec<Stmt>, Error> {
        let fields = body.iter().find_map(|stmt| match stmt {
            Stmt::Record(_, _, recorded) => Some(&recorded.fields),
            _ => None,
        });
        let Some(fields) = fields else { return Err(no_print(SLOW)) };
        self.closed += 1;
        let goroutine = match self.follow {
            Following::Goroutine(Some(number)) => Expr::OfGoroutine(number),
            Following::Goroutine(None) | Following::Thread => Expr::Const(0),
        };
        let more = [Expr::Lost(RECORDS_OF), goroutine].map(RecordField::Number);
        let fields = head().into_iter().chain(more).chain(fields.iter().cloned()).collect();
        let recorded = Recorded { number: self.number, time: false, fields, limit: None, leaves_room: false };
        if recorded.words() > Recorded::WORDS_MAX {
            let what = "the values of a slow call take too much room";
            return Err(Error::new(Reason::NoPrint, what, "name fewer values or texts"));
        }
        let mut slow = vec![
            Stmt::Add(MET, Expr::Const(1)),
            Stmt::Record(RECORDS_OF, self.options.capacity, recorded),
            Stmt::KeepGroup(RECORDS_OF),
        ];
        let mut outermost = vec![Stmt::Add(ENDED, Expr::Const(1))];
        if self.follow != Following::Thread {
            let told = NotesStmt::Tell(RECORDS_OF, self.options.capacity);
            slow.splice(1..1, [Stmt::BeginGroup(RECORDS_OF), Stmt::Notes(told)]);
            outermost.extend(if_long(self.options.over_ns, slow));
            outermost.push(Stmt::Notes(NotesStmt::End));
            let is = |of| Expr::Binary(BinaryOp::Equal, Box::new(Expr::Notes), Box::new(Expr::Const(of)));
            return Ok(vec![Stmt::If(is(1), noted(self.inner, self.options)), Stmt::If(is(2), outermost)]);
        }
        outermost.extend(if_long(self.options.over_ns, slow));
        Ok(vec![
            Stmt::If(is_not_zero(Expr::Restored), inside(self.inner, self.options, (RECORDS_OF, &[]))),
            Stmt::If(is_zero(Expr::Restored), outermost),
            Stmt::Set(OPEN_OF, Expr::Restored),
        ])
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Capacity, ModuleId, Parts};

    use super::*;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    fn options(least_ns: u64) -> SlowOptions {
        let capacity = Capacity::of_bytes(1 << 16).expect("small");
        SlowOptions { over_ns: 10_000_000, least_ns, callees: Vec::new(), told: Vec::new(), limit: None, capacity }
    }

    fn printed(kept: Vec<KeptValue>, stmts: &dyn Fn(CallRecord, Recorded) -> [Vec<Stmt>; 2]) -> Instrumentation {
        let record = CallRecord { activations: VariableId(2), kept, restore: None };
        let fields = vec![RecordField::Number(Expr::Saved(KeptValue::Argument(1)))];
        let recorded = Recorded { number: 0, time: true, fields, limit: None, leaves_room: false };
        let [entry, exit] = stmts(record, recorded);
        let insertion = |point, stmts| code::insertion(F, point, Parts::All, Snippet { stmts });
        let variables = [
            code::named("printed", VariableKind::Counter, Shape::Counter),
            code::named("records", VariableKind::Scratch, Shape::Records(options(0).capacity, false)),
            code::named("activations", VariableKind::Activations, Shape::Activations),
        ];
        let insertions = vec![insertion(PointKind::Entry, entry), insertion(PointKind::Exit, exit)];
        Instrumentation {
            variables: variables.into(),
            records: vec![Vec::new()].into(),
            ..code::empty(insertions, metric(SLOW))
        }
    }

    fn print(record: CallRecord, recorded: Recorded) -> [Vec<Stmt>; 2] {
        let body =
            vec![Stmt::Add(VariableId(0), Expr::Const(1)), Stmt::Record(VariableId(1), options(0).capacity, recorded)];
        [vec![Stmt::Open(record.clone(), vec![])], vec![Stmt::Close(record, body)]]
    }

    fn texts(code: &Instrumentation) -> Vec<String> {
        code.insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect()
    }

    #[test]
    fn a_call_is_kept_if_it_was_slow() {
        let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(1)];
        let (code, _) =
            of_function(&printed(kept, &print), (4, 7), (Following::Thread, &options(50))).expect("a print");
        assert_eq!(
            texts(&code),
            [
                "Entry if ((v3 == 0)) { v0++; } open r7 time $arg[1] began restore v3 { if ((v3 == 0)) { begin group v4; } \
                 v3 = 1; }",
                "Exit close r7 time $arg[1] began restore v3 { if ((restored != 0)) { if (($elapsed >= 50)) { record v4 7, \
                 saved began, elapsed_ticks leaves room; } } if ((restored == 0)) { v1++; if (($elapsed >= 10000000)) { \
                 v2++; record v4 4, saved began, elapsed_ticks, lost of v4, 0, saved $arg[1]; keep group v4; } } v3 = restored; }",
            ]
        );
        let shapes: Vec<Shape> = code.variables.iter().map(|v| v.shape).collect();
        let [c, a] = [Shape::Counter, Shape::Alias(0)];
        assert_eq!(shapes, [c, c, c, a, a, c, c, Shape::Activations]);
    }

    #[test]
    fn calls_inside_are_told_while_a_call_is_open() {
        let variables = InsideCode::variables(SharedCounters { open: 9, records: 11 });
        let of = |least| texts(&InsideCode::new(Following::Thread).of((F, 5), &options(least), &variables));
        assert_eq!(
            of(0),
            [
                "Entry if ((v2 != 0)) { open r1 time began { } }",
                "Exit if ((v2 != 0)) { close r1 time began { record v3 5, saved began, elapsed_ticks leaves room; } }",
            ]
        );
        assert!(of(3)[1].contains("if (($elapsed >= 3)) { record"), "{:?}", of(3));
    }

    #[test]
    fn goroutines_note_calls() {
        let kept = vec![KeptValue::Time(Clock::Wall)];
        let print = |record: CallRecord, _| {
            let recorded = Recorded { number: 0, time: true, fields: Vec::new(), limit: None, leaves_room: false };
            print(record, recorded)
        };
        let follow = Following::Goroutine(Some(152));
        let (code, _) = of_function(&printed(kept, &print), (4, 7), (follow, &options(50))).expect("a print");
        assert_eq!(
            texts(&code),
            [
                "Entry if ((notes == 0)) { v0++; } open r7 time began { begin notes v7; }",
                "Exit close r7 time began { if ((notes == 1)) { if (($elapsed >= 50)) { note 7; } } if ((notes == 2)) { v1++; \
                 if (($elapsed >= 10000000)) { v2++; begin group v4; tell notes v4; record v4 4, saved began, \
                 elapsed_ticks, lost of v4, goroutine +152; keep group v4; } end notes; } }",
            ]
        );
        let variables = InsideCode::variables(SharedCounters { open: 9, records: 11 });
        let inside = InsideCode::new(follow).of((F, 5), &options(0), &variables);
        assert_eq!(
            texts(&inside),
            [
                "Entry if ((notes != 0)) { open r1 time began { } }",
                "Exit if ((notes != 0)) { close r1 time began { note 5; } }",
            ]
        );
        for insertion in code.insertions.iter().chain(&inside.insertions) {
            let snippet = &insertion.snippet;
            assert!(!snippet.is_bound_to_thread() && snippet.is_bound_to_moving_call(), "{snippet}");
        }
        assert!(InsideCode::new(follow).telling(&ToldValues::default()).is_err());
    }

    #[test]
    fn a_metric_must_print_each_call_once_when_it_returns() {
        let time = || vec![KeptValue::Time(Clock::Wall)];
        let refused =
            |of: &Instrumentation| of_function(of, (0, 1), (Following::Thread, &options(0))).err().map(|e| e.reason);
        let at_entry = |_, recorded| [vec![Stmt::Record(VariableId(1), options(0).capacity, recorded)], vec![]];
        assert_eq!(refused(&printed(time(), &at_entry)), Some(Reason::NoPrint));
        let conditional = |record: CallRecord, recorded: Recorded| {
            let [entry, mut exit] = print(record.clone(), recorded);
            if let Some(Stmt::Close(_, body)) = exit.first_mut() {
                *body = vec![Stmt::If(Expr::Return, std::mem::take(body))];
            }
            [entry, exit]
        };
        assert_eq!(refused(&printed(time(), &conditional)), Some(Reason::NoPrint));
        let many = (0..CallRecord::KEPT_MAX as u8 - 1).map(KeptValue::Argument);
        assert_eq!(refused(&printed(time().into_iter().chain(many).collect(), &print)), Some(Reason::NoPrint));
        assert_eq!(refused(&printed(time(), &print)), None);
    }
}
