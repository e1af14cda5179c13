//! The code that prints calls: that of a metric's `print` statement in each function, with one buffer and two counters for all of them.

use std::sync::Arc;

use ingraft_model::{
    Expr, FunctionId, Insertion, Instrumentation, MetricInfo, Order, PointKind, RecordColumn, Shape, Snippet, Stmt,
    ValueUnit, Variable, VariableId, VariableKind,
};

use crate::api::PrintOptions;
use crate::error::{Error, Reason};
use crate::kinds::code;
use crate::measure::request::WantedPair;

/// Name of the metric that the pair of printed calls has.
pub const METRIC: &str = "printed_calls";

/// Number of calls that began, the value of the pair.
pub const CALLS: VariableId = VariableId(0);
/// Number of calls that came to the statement or to its condition.
pub const PASSED: VariableId = VariableId(1);
/// The buffer.
pub const BUFFER: VariableId = VariableId(2);

/// Number of times a second at which threads may make more records, if somebody reads them.
const ROUNDS: u32 = 10;
/// Largest limit on the calls in a second that is small: so many records cost little.
const LIMIT_SMALL: u32 = 10_000;
/// Largest number of functions: each has a number in its records.
const FUNCTIONS_MAX: usize = u16::MAX as usize;

/// The code, and the functions in the order of their numbers.
pub struct PrintCode {
    /// The code of all functions.
    pub instrumentation: Instrumentation,
    /// The functions, with the columns of their records.
    pub sites: Vec<(FunctionId, Vec<RecordColumn>)>,
}

impl PrintCode {
    /// Joins the code of a metric in several functions.
    pub fn new(wanted: Vec<WantedPair>, options: PrintOptions) -> Result<PrintCode, Error> {
        let mut all = Joined { options, variables: variables(options), insertions: Vec::new() };
        let mut sites = Vec::new();
        if wanted.len() >= FUNCTIONS_MAX {
            let what = format!("calls of {} functions cannot be printed at once", wanted.len());
            return Err(Error::new(Reason::TooManyFunctions, what, "name fewer functions"));
        }
        for WantedPair { pair, function, instrumentation, .. } in wanted {
            let (Some(function), [columns]) = (function, &*instrumentation.records) else {
                let what = format!("the metric `{}` does not print each call once", pair.metric);
                return Err(Error::new(
                    Reason::NoPrint,
                    what,
                    "write one `print(…)` in its code, at `.entry` or at `.return`",
                ));
            };
            all.add(&instrumentation, function, sites.len());
            sites.push((function, columns.clone()));
        }
        let Joined { variables, insertions, .. } = all;
        let instrumentation = Instrumentation { variables: variables.into(), ..code::empty(insertions, metric()) };
        Ok(PrintCode { instrumentation, sites })
    }
}

/// Largest number of records that a thread makes between two readings; `None` if there is no limit.
pub fn burst(options: PrintOptions) -> Option<u32> {
    options.limit.map(|limit| limit.div_ceil(ROUNDS).max(1))
}

/// The metric of the pair.
fn metric() -> Arc<MetricInfo> {
    let doc = "Calls of functions that are printed.".to_owned();
    Arc::new(MetricInfo { unit: "calls".to_owned(), doc, ..(*code::metric_named(METRIC)).clone() })
}

/// The variables that all functions share.
fn variables(options: PrintOptions) -> Vec<Variable> {
    let variable = |name: &str, kind, shape| Variable {
        name: name.to_owned(),
        kind,
        shape,
        unit: ValueUnit::Plain,
        sampled: kind == VariableKind::Counter,
    };
    vec![
        variable("calls", VariableKind::Counter, Shape::Counter),
        variable("passed", VariableKind::Scratch, Shape::Counter),
        variable(
            "records",
            VariableKind::Scratch,
            Shape::Records(options.capacity, options.limit.is_some_and(|limit| limit <= LIMIT_SMALL)),
        ),
    ]
}

/// Code of several functions.
struct Joined {
    options: PrintOptions,
    variables: Vec<Variable>,
    insertions: Vec<Insertion>,
}

impl Joined {
    /// Adds the code in a function, whose records have this number.
    fn add(&mut self, code: &Instrumentation, function: FunctionId, number: usize) {
        let by = self.variables.len() as u32;
        self.variables.extend(code.variables.iter().map(|variable| {
            // All functions share one buffer.
            let shape = if let Shape::Records(..) = variable.shape { Shape::Counter } else { variable.shape };
            let kind = if variable.kind == VariableKind::Counter { VariableKind::Scratch } else { variable.kind };
            Variable { shape, kind, sampled: false, ..variable.clone() }
        }));
        let first = self.insertions.len();
        for insertion in &code.insertions {
            let moved = insertion.snippet.renumbered(by);
            let snippet = Arc::new(Snippet { stmts: self.counted(&moved.stmts, number) });
            self.insertions.push(Insertion { snippet, ..insertion.clone() });
        }
        let began = Stmt::Add(CALLS, Expr::Const(1));
        let new = self.insertions.get_mut(first..).unwrap_or_default();
        if let Some(entry) = new.iter_mut().find(|i| i.point == PointKind::Entry && i.function == function) {
            let stmts = std::iter::once(began).chain(entry.snippet.stmts.iter().cloned()).collect();
            entry.snippet = Arc::new(Snippet { stmts });
        } else if let Some(other) = new.first().cloned() {
            let snippet = Arc::new(Snippet { stmts: vec![began] });
            self.insertions.push(Insertion { point: PointKind::Entry, order: Order::Append, snippet, ..other });
        }
    }

    /// The statements with records in the shared buffer, and with a count before each of them that makes one.
    fn counted(&self, stmts: &[Stmt], number: usize) -> Vec<Stmt> {
        let body = |stmts: &[Stmt]| self.counted(stmts, number);
        let one = |stmt: &Stmt| match stmt {
            stmt if !records(stmt) => vec![stmt.clone()],
            Stmt::Open(record, stmts) => vec![Stmt::Open(record.clone(), body(stmts))],
            Stmt::Close(record, stmts) => vec![Stmt::Close(record.clone(), body(stmts))],
            Stmt::HandOver(record, whose, stmts) => vec![Stmt::HandOver(record.clone(), *whose, body(stmts))],
            Stmt::GiveUp(record, whose, stmts) => vec![Stmt::GiveUp(record.clone(), *whose, body(stmts))],
            Stmt::CloseHanded(record, stmts) => vec![Stmt::CloseHanded(record.clone(), body(stmts))],
            other => vec![Stmt::Add(PASSED, Expr::Const(1)), self.shared(other, number)],
        };
        stmts.iter().flat_map(one).collect()
    }

    /// A statement with records in the shared buffer.
    fn shared(&self, stmt: &Stmt, number: usize) -> Stmt {
        match stmt {
            Stmt::If(c, stmts) => Stmt::If(c.clone(), stmts.iter().map(|stmt| self.shared(stmt, number)).collect()),
            Stmt::Record(_, _, recorded) => {
                let mut recorded = recorded.clone();
                recorded.number = number as u16;
                recorded.limit = burst(self.options);
                Stmt::Record(BUFFER, self.options.capacity, recorded)
            }
            other => other.clone(),
        }
    }
}

/// Whether a statement makes records.
fn records(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Record(..)) || stmt.body().is_some_and(|body| body.iter().any(records))
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Capacity, Clock, Focus, ModuleId, Parts, Recorded};

    use super::*;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    fn pair(stmts: [Vec<Stmt>; 2], records: usize) -> WantedPair {
        let [entry, exit] = stmts;
        let insertion = |point, stmts| code::insertion(F, point, Parts::All, Snippet { stmts });
        let insertions = [(PointKind::Entry, entry), (PointKind::Exit, exit)];
        let insertions = insertions.into_iter().filter(|(_, stmts)| !stmts.is_empty());
        let variable =
            |shape, kind| Variable { name: String::new(), kind, shape, unit: ValueUnit::Plain, sampled: true };
        let own = [
            variable(Shape::Counter, VariableKind::Counter),
            variable(Shape::Records(capacity(), false), VariableKind::Scratch),
            variable(Shape::Activations, VariableKind::Activations),
        ];
        let instrumentation = Instrumentation {
            variables: own.into(),
            records: vec![Vec::new(); records].into(),
            ..code::empty(insertions.map(|(point, stmts)| insertion(point, stmts)).collect(), metric())
        };
        WantedPair {
            pair: crate::api::MetricFocus { metric: "m".to_owned(), focus: Focus::default() }.into(),
            function: Some(F),
            instrumentation,
            warnings: Vec::new(),
            helpers: "".into(),
            owner: None,
        }
    }

    fn capacity() -> Capacity {
        Capacity::of_bytes(0).expect("small")
    }

    fn record() -> Stmt {
        let recorded = Recorded { number: 0, time: true, fields: Vec::new(), limit: None, leaves_room: false };
        Stmt::Record(VariableId(1), capacity(), recorded)
    }

    fn options() -> PrintOptions {
        PrintOptions { limit: Some(1001), capacity: Capacity::of_bytes(1 << 16).expect("small") }
    }

    fn texts(code: &PrintCode) -> Vec<String> {
        code.instrumentation.insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect()
    }

    #[test]
    fn calls_are_counted_where_they_begin_and_where_they_may_be_printed() {
        let if_argument = |body| Stmt::If(Expr::Arg(0), body);
        let at_entry = pair([vec![if_argument(vec![Stmt::Add(VariableId(0), Expr::Const(1)), record()])], vec![]], 1);
        let call = ingraft_model::CallRecord {
            activations: VariableId(2),
            kept: vec![ingraft_model::KeptValue::Time(Clock::Wall)],
            restore: None,
        };
        let at_exit = pair([vec![Stmt::Open(call.clone(), vec![])], vec![Stmt::Close(call, vec![record()])]], 1);
        let plain = pair([vec![], vec![record()]], 1);
        let code = PrintCode::new(vec![at_entry, at_exit, plain], options()).expect("one print each");
        assert_eq!(
            texts(&code),
            [
                "Entry v0++; v1++; if ($arg[0]) { v3++; record v2 0 time limit 101; }",
                "Entry v0++; open r8 time { }",
                "Exit close r8 time { v1++; record v2 1 time limit 101; }",
                "Exit v1++; record v2 2 time limit 101;",
                "Entry v0++;",
            ]
        );
        assert_eq!(code.sites.len(), 3);
        let shapes: Vec<Shape> = code.instrumentation.variables.iter().map(|v| v.shape).collect();
        assert_eq!(shapes.iter().filter(|shape| matches!(shape, Shape::Records(..))).count(), 1);
        assert_eq!(shapes[2], Shape::Records(options().capacity, true));
    }

    #[test]
    fn a_metric_prints_each_call_once() {
        for records in [0, 2] {
            let error = PrintCode::new(vec![pair([vec![record()], vec![]], records)], options()).err();
            assert_eq!(error.map(|e| e.reason), Some(Reason::NoPrint));
        }
    }
}
