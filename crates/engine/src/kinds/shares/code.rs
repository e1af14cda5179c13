//! The code that measures the calls of a function and its suspected parts.
//!
//! The outermost call of the function in a thread has depth 1. Code adds to the values of the parts only at depth 1, so that calls of the function
//! inside of others count once: as a part of the outermost call. At the end of that call, one record has its time and all values.

use std::sync::Arc;

use ingraft_model::{
    BinaryOp, CallRecord, Clock, Expr, FunctionId, Insertion, Instrumentation, KeptValue, MetricInfo, Parts, PointId,
    PointKind, RecordField, Recorded, Restore, Shape, Snippet, Stmt, TimeUnit, Variable, VariableId, VariableKind,
};

use crate::api::SharesOptions;
use crate::kinds::code;

/// Name of the metric that the pair has.
pub const METRIC: &str = "measured_calls";

/// Number of outermost calls that began, the value of the pair.
pub const CALLS: VariableId = VariableId(0);
/// Number of outermost calls that ended.
pub const PASSED: VariableId = VariableId(1);
/// Number of calls inside of others.
pub const RECURSIVE: VariableId = VariableId(2);
/// The buffer of records.
pub const RECORDS: VariableId = VariableId(3);
/// Outcomes of the calls.
pub const ACTIVATIONS: VariableId = VariableId(4);
/// Number of calls of the function that are open in the thread.
const DEPTH: VariableId = VariableId(5);
/// The first variable of the parts. Each part has two: its value, and the outcomes of the calls of a call site.
const PART: u32 = 6;

/// Number of rounds in a second in which threads may make more records.
const ROUNDS: u32 = 10;
/// Largest limit on the calls in a second that is small: so many records cost little.
const LIMIT_SMALL: u32 = 10_000;

/// The points of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartPoints {
    /// Before the call of a call site and after it.
    CallSite(PointId, PointId),
    /// The beginning of the header of a loop.
    Header(PointId),
}

/// Largest number of records that a thread makes between two rounds; `None` if there is no limit.
pub fn burst(options: &SharesOptions) -> Option<u32> {
    options.limit.map(|limit| limit.div_ceil(ROUNDS).max(1))
}

/// The outcomes of the calls of a part, by the part's index.
pub fn outcomes(part: usize) -> Option<VariableId> {
    Some(VariableId(value(part)?.0 + 1))
}

fn value(part: usize) -> Option<VariableId> {
    Some(VariableId(PART + 2 * u32::try_from(part).ok()?))
}

/// The metric of the pair.
pub fn metric() -> Arc<MetricInfo> {
    let doc = "Calls of a function that are measured with parts of it.".to_owned();
    Arc::new(MetricInfo { unit: "calls".to_owned(), doc, ..(*code::metric_named(METRIC)).clone() })
}

fn variables(parts: &[PartPoints], options: &SharesOptions) -> Vec<Variable> {
    let small = options.limit.is_some_and(|limit| limit <= LIMIT_SMALL);
    let scratch = |name: &str| code::named(name, VariableKind::Scratch, Shape::Counter);
    let activations = |name: &str| code::named(name, VariableKind::Activations, Shape::Activations);
    let mut all = vec![
        Variable { sampled: true, ..code::named("calls", VariableKind::Counter, Shape::Counter) },
        scratch("ended"),
        scratch("recursive"),
        code::named("records", VariableKind::Scratch, Shape::Records(options.capacity, small)),
        activations("activations"),
        scratch("depth"),
    ];
    for (n, part) in parts.iter().enumerate() {
        all.push(scratch(&format!("value {n}")));
        let name = format!("calls {n}");
        all.push(match part {
            PartPoints::CallSite(..) => Variable { sampled: false, ..activations(&name) },
            PartPoints::Header(_) => scratch(&name),
        });
    }
    all
}

fn is(variable: VariableId, number: i64) -> Expr {
    equal(Expr::Variable(variable), number)
}

fn equal(e: Expr, number: i64) -> Expr {
    Expr::Binary(BinaryOp::Equal, Box::new(e), Box::new(Expr::Const(number)))
}

fn elapsed() -> Expr {
    Expr::Elapsed(Clock::Wall, TimeUnit::Ticks)
}

/// The code in a function.
pub fn instrumentation(function: FunctionId, parts: &[PartPoints], options: &SharesOptions) -> Instrumentation {
    let values: Vec<VariableId> = (0..parts.len()).filter_map(value).collect();
    let insertion = |point, parts, stmts| -> Insertion { code::insertion(function, point, parts, Snippet { stmts }) };
    let timed = |activations, restore| CallRecord { activations, kept: vec![KeptValue::Time(Clock::Wall)], restore };
    let record = timed(ACTIVATIONS, Some(Restore::Value(DEPTH)));
    let zero = values.iter().map(|value| Stmt::Set(*value, Expr::Const(0))).collect();
    let recursive = Expr::Binary(BinaryOp::NotEqual, Box::new(Expr::Variable(DEPTH)), Box::new(Expr::Const(0)));
    let begin = vec![
        Stmt::If(is(DEPTH, 0), vec![Stmt::Add(CALLS, Expr::Const(1))]),
        Stmt::Open(
            record.clone(),
            vec![
                Stmt::If(is(DEPTH, 0), zero),
                Stmt::If(recursive, vec![Stmt::Add(RECURSIVE, Expr::Const(1))]),
                Stmt::Add(DEPTH, Expr::Const(1)),
            ],
        ),
    ];
    let fields = std::iter::once(elapsed()).chain(values.iter().map(|value| Expr::Variable(*value)));
    let fields = fields.map(RecordField::Number).collect();
    let recorded = Recorded { number: 0, time: false, fields, limit: burst(options), leaves_room: false };
    let outermost = vec![Stmt::Add(PASSED, Expr::Const(1)), Stmt::Record(RECORDS, options.capacity, recorded)];
    let end = vec![Stmt::If(equal(Expr::Restored, 0), outermost), Stmt::Set(DEPTH, Expr::Restored)];
    let mut insertions = vec![
        insertion(PointKind::Entry, Parts::All, begin),
        insertion(PointKind::Exit, Parts::All, vec![Stmt::Close(record, end)]),
    ];
    for (n, part) in parts.iter().enumerate() {
        let (Some(value), Some(activations)) = (value(n), outcomes(n)) else { continue };
        let add = |number| vec![Stmt::If(is(DEPTH, 1), vec![Stmt::Add(value, number)])];
        match part {
            PartPoints::CallSite(before, after) => {
                let record = timed(activations, None);
                let open = vec![Stmt::Open(record.clone(), Vec::new())];
                let close = vec![Stmt::Close(record, add(elapsed()))];
                insertions.push(insertion(PointKind::CallBefore, Parts::One(*before), open));
                insertions.push(insertion(PointKind::CallAfter, Parts::One(*after), close));
            }
            PartPoints::Header(header) => {
                insertions.push(insertion(PointKind::Block, Parts::One(*header), add(Expr::Const(1))));
            }
        }
    }
    Instrumentation { variables: variables(parts, options).into(), ..code::empty(insertions, metric()) }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Capacity, ModuleId, Offset};

    use super::*;

    #[test]
    fn each_outermost_call_makes_one_record() {
        let function = FunctionId { module: ModuleId(0), function: 3 };
        let capacity = Capacity::of_bytes(1 << 16).expect("small");
        let options = SharesOptions { suspects: Vec::new(), limit: Some(20_000), capacity };
        let before = PartPoints::CallSite(PointId::CallBefore(Offset(8)), PointId::CallAfter(Offset(13)));
        let parts = [PartPoints::Header(PointId::Block(Offset(2))), before];
        let code = instrumentation(function, &parts, &options);
        let texts: Vec<String> = code.insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect();
        assert_eq!(
            texts,
            [
                "Entry if ((v5 == 0)) { v0++; } open r4 time restore v5 { if ((v5 == 0)) { v6 = 0; v8 = 0; } \
                 if ((v5 != 0)) { v2++; } v5++; }",
                "Exit close r4 time restore v5 { if ((restored == 0)) { v1++; \
                 record v3 0, elapsed_ticks, v6, v8 limit 2000; } v5 = restored; }",
                "Block if ((v5 == 1)) { v6++; }",
                "CallBefore open r9 time { }",
                "CallAfter close r9 time { if ((v5 == 1)) { v8 += elapsed_ticks; } }",
            ]
        );
        let shapes: Vec<Shape> = code.variables.iter().map(|v| v.shape).collect();
        let (c, a) = (Shape::Counter, Shape::Activations);
        assert_eq!(shapes, [c, c, c, Shape::Records(capacity, false), a, c, c, c, c, a]);
    }
}
