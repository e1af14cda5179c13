//! Inclusive event totals: the events of a function with all that it calls among the profiled functions, and those of single calls.
//!
//! The source is section 4 of "Efficiently counting program events with support for on-line queries" (1994). Each thread has one *event
//! clock*, to which the code of all profiled functions adds. Where a counter of a profile stands, code adds to the clock what one unit of that
//! counter stands for. So the clock has the number of events whenever no run is in progress: at entries and exits, before calls, and where
//! they return. No query increments are needed, because the graph of a function is cut at its calls.
//!
//! A *span* is a function from entry to exit, or a call from before it to its return. Its state is 0 while it is not in progress, else the
//! clock at its beginning plus [`IN_PROGRESS`]. The outermost span ends with the addition of the difference, so recursion counts once. The
//! activation record restores the state if a span ends without passing its end.

use std::sync::Arc;

use ingraft_analysis::Function;
use ingraft_codegen::WovenBody;
use ingraft_model::{
    BinaryOp, BlockEvents, BlockId, CallRecord, Cfg, EdgeKind, EdgeTarget, Expr, FunctionBody, FunctionId, IndexVec,
    Insertion, Instrumentation, Offset, Order, Parts, PointId, PointKind, Refusal, Restore, Role, Shape, Snippet, Stmt,
    Svma, ValueUnit, Variable, VariableId, VariableKind,
};

use crate::kinds::code;
use crate::program::modules::Module;

/// Name of the metric of the pair that holds the event clock of a profile.
pub const CLOCK: &str = "event_clock";
/// Name of the metric of the pairs with the totals of functions.
pub const FUNCTIONS: &str = "inclusive_events";
/// Name of the metric of the pairs with the totals of calls.
pub const CALLS: &str = "call_events";

/// Amount that the state of a span in progress has besides the clock at its beginning, so that it is not 0.
pub const IN_PROGRESS: i64 = 1 << 62;

/// Number of variables of a span: its sum, its state and the outcomes of its calls.
const VARIABLES: u32 = 3;

/// The spans of a function that code can follow.
#[derive(Clone, Debug)]
pub struct Spans {
    /// Whether the entry and all exits can be woven; else the reason.
    pub whole: Result<(), Refusal>,
    /// The calls, sorted by the block that each ends.
    pub calls: Vec<ProfiledCall>,
}

/// A call that a function makes.
#[derive(Clone, Debug)]
pub struct ProfiledCall {
    /// Block that the call ends.
    pub block: BlockId,
    /// The points before the call and after it; the reason if it cannot be followed.
    pub points: Result<(PointId, PointId), String>,
}

impl Spans {
    /// The spans of a function, as far as its copy on trial has points for them. Without `calls`, its calls are left out.
    pub fn new(
        (module, f, body): (&Module, &Function, &FunctionBody),
        (cfg, events): (&Cfg, &IndexVec<BlockId, BlockEvents>),
        copy: &WovenBody,
        calls: bool,
    ) -> Self {
        let offset = |at: Svma| Offset::between(f.start().0, at.0);
        let probe = |point| copy.probe(point).map(|_| ());
        let exits = || body.exits.iter().try_for_each(|exit| probe(PointId::Exit(offset(exit.at))));
        let whole = probe(PointId::Entry).and_then(|()| exits());
        let sites = if calls { module.image.call_sites(f).unwrap_or_default() } else { Vec::new() };
        let call = |block: BlockId| {
            let at = events.get(block).filter(|events| events.calls > 0)?.last;
            sites.iter().find(|site| site.at == at)?;
            let mut returns = cfg.edges_from(block).filter(|(_, edge)| edge.kind == EdgeKind::CallReturn);
            let back = returns.next().and_then(|(_, edge)| match edge.to {
                EdgeTarget::Block(to) => Some(cfg.blocks.get(to)?.range.start),
                EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
            });
            let points = back.ok_or_else(|| "the call does not return".to_owned()).and_then(|back| {
                let (before, after) = (PointId::CallBefore(offset(at)), PointId::CallAfter(offset(back)));
                let both = probe(before).and_then(|()| probe(after));
                both.map(|()| (before, after)).map_err(|why| why.to_string())
            });
            Some(ProfiledCall { block, points })
        };
        Spans { whole, calls: cfg.blocks.keys().filter_map(call).collect() }
    }

    /// The code that follows the calls of a function from entry to exit. `clock` is the counter of the event clock.
    pub fn of_function(&self, function: FunctionId, clock: u32) -> Instrumentation {
        match &self.whole {
            Ok(()) => {
                let span = [(PointKind::Entry, Parts::All), (PointKind::Exit, Parts::All)];
                instrumentation(function, &[span], FUNCTIONS, clock)
            }
            Err(why) => code::refused(function, FUNCTIONS, why.clone()),
        }
    }

    /// The code that follows the calls that a function makes; `None` if none can be followed.
    pub fn of_calls(&self, function: FunctionId, clock: u32) -> Option<Instrumentation> {
        let span = |call: &ProfiledCall| {
            let (before, after) = *call.points.as_ref().ok()?;
            Some([(PointKind::CallBefore, Parts::One(before)), (PointKind::CallAfter, Parts::One(after))])
        };
        let spans: Vec<_> = self.calls.iter().filter_map(span).collect();
        (!spans.is_empty()).then(|| instrumentation(function, &spans, CALLS, clock))
    }
}

/// First counters of the variables of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanCounters {
    /// Events of the spans that have ended.
    pub sum: u32,
    /// State of the span.
    pub state: u32,
    /// Outcomes of the calls.
    pub activations: u32,
}

impl SpanCounters {
    /// The counters of a span, by its index among those of its pair, and the counters of the pair's variables.
    pub fn of(counters: &[u32], span: usize) -> Option<Self> {
        let first = span.checked_mul(VARIABLES as usize)?;
        let [sum, state, activations] = *counters.get(first..first + VARIABLES as usize)? else { return None };
        Some(SpanCounters { sum, state, activations })
    }
}

/// The code of spans, each from one point to another one.
fn instrumentation(
    function: FunctionId,
    spans: &[[(PointKind, Parts); 2]],
    metric: &str,
    clock: u32,
) -> Instrumentation {
    let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
    let clock_id = VariableId(VARIABLES * count);
    let (mut variables, mut insertions) = (Vec::new(), Vec::new());
    for (n, [begin, end]) in (0..count).zip(spans) {
        let [sum, state, activations] = [0, 1, 2].map(|k| VariableId(VARIABLES * n + k));
        variables.push(variable(format!("events {n}"), VariableKind::Counter, Shape::Counter));
        variables.push(variable(format!("state {n}"), VariableKind::Scratch, Shape::Counter));
        variables.push(variable(format!("calls {n}"), VariableKind::Activations, Shape::Activations));
        let record = CallRecord { activations, kept: Vec::new(), restore: Some(Restore::Value(state)) };
        let binary = |op, a, b| Expr::Binary(op, Box::new(a), Box::new(b));
        let is_none = |e| binary(BinaryOp::Equal, e, Expr::Const(0));
        let now = || binary(BinaryOp::Add, Expr::Variable(clock_id), Expr::Const(IN_PROGRESS));
        let started = vec![Stmt::If(is_none(Expr::Variable(state)), vec![Stmt::Set(state, now())])];
        let spent = binary(BinaryOp::Subtract, now(), Expr::Variable(state));
        let ended = vec![Stmt::Add(sum, spent), Stmt::Set(state, Expr::Const(0))];
        let ended = vec![Stmt::If(is_none(Expr::Restored), ended)];
        let codes = [(begin, Stmt::Open(record.clone(), started)), (end, Stmt::Close(record, ended))];
        insertions.extend(codes.map(|((point, parts), stmt)| Insertion {
            function,
            point: *point,
            parts: parts.clone(),
            order: Order::Append,
            role: Role::Metric,
            snippet: Arc::new(Snippet { stmts: vec![stmt] }),
            group: 0,
            except: [].into(),
        }));
    }
    variables.push(variable("clock".to_owned(), VariableKind::Counter, Shape::Alias(clock)));
    Instrumentation { variables: variables.into(), ..code::empty(insertions, code::metric_named(metric)) }
}

/// A variable of a pair with spans, or of the pair with the clock.
pub fn variable(name: String, kind: VariableKind, shape: Shape) -> Variable {
    Variable { name, kind, shape, unit: ValueUnit::Plain, sampled: kind == VariableKind::Activations }
}
