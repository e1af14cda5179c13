//! The plan to trace functions: the places that write tokens, and the code for them.

use std::sync::Arc;

use ingraft_analysis::Function;
use ingraft_codegen::TextSpace;
use ingraft_model::snippet::Appended;
use ingraft_model::token::{FUNCTIONS_MAX, PLACES_MAX, Token};
use ingraft_model::{
    BlockId, Capacity, Cfg, Edge, EdgeKind, EdgeTarget, FunctionId, Insertion, Instrumentation, Parts, PointKind,
    Refusal, Shape, Snippet, Stmt, ValueUnit, Variable, VariableId, VariableKind,
};
use ingraft_profile::{NotCounted, NotTraced, ProbeAt, TracedFunction};

use crate::api::TraceOptions;
use crate::kinds::code;
use crate::kinds::graph::{FunctionGraph, block_of};
use crate::program::callees::may_return_twice;
use crate::program::modules::{Module, Modules};
use crate::weaving::trial;

/// Name of the metric that the pair of a trace has.
pub const METRIC: &str = "block_trace";

/// Group of the condition's code. Where it cannot be woven, the function may be traced all the same, and the other way round.
const CONDITION: u32 = 1;

/// The buffer of a trace, a variable of its pair.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    variable: VariableId,
    capacity: Capacity,
}

impl Buffer {
    /// The buffer of a pair with these variables; `None` if the pair is no trace.
    pub fn of(variables: &[Variable]) -> Option<Self> {
        (0..).zip(variables).find_map(|(n, variable)| match variable.shape {
            Shape::Buffer(capacity) => Some(Buffer { variable: VariableId(n), capacity }),
            _ => None,
        })
    }

    /// The first counter of the buffer, if the variables have these.
    pub fn first(self, counters: &[u32]) -> Option<u32> {
        counters.get(usize::try_from(self.variable.0).ok()?).copied()
    }
}

/// The plan to trace one function.
#[derive(Debug)]
pub struct TracePlan {
    /// The function.
    pub graph: FunctionGraph,
    /// Places that write tokens, in the order of their numbers.
    pub places: Vec<ProbeAt>,
    /// For each place, whether control may arrive there from any activation: as an exception, or by a further return of a call.
    resumes: Vec<bool>,
}

impl TracePlan {
    /// Plans the places of a function. Fails if its trace would not be exact.
    ///
    /// The places where code can write are those of a copy on trial. `text` is the text of the module with nothing woven into it.
    pub fn new((modules, text): (&Modules, &TextSpace), function: FunctionId) -> Result<TracePlan, Refusal> {
        let (graph, module, f) = FunctionGraph::of(modules, function)?;
        let body = module.image.body(f)?;
        let copy = trial::copy(modules, function, &body, text)?;
        let probes = graph.probes(&copy);
        let traced = TracedFunction::new(&graph.cfg, &probes).map_err(|why| match (why, copy.why_exposed) {
            // A block that runs in the text writes no token.
            (NotTraced::Block(_), Some(exposed)) => exposed,
            (NotTraced::Block(block), None) => graph.refusal(NotCounted::Block(block)),
            (NotTraced::Inexact(why), _) => graph.refusal(NotCounted::Inexact(why)),
            (NotTraced::NoEntry, _) => Refusal::NoSuchPoint,
        })?;
        let places = traced.places().to_vec();
        if places.len() > PLACES_MAX as usize {
            return Err(Refusal::NoSuchPoint);
        }
        let resumes = resumes(&graph.cfg, &places, &twice(module, function, f, &graph.cfg));
        Ok(TracePlan { graph, places, resumes })
    }

    /// The code at the entry and at all places of the function with this number.
    fn insertions(&self, number: u32, buffer: Buffer, options: &TraceOptions, unwinds: bool) -> Option<Vec<Insertion>> {
        let insertion = |point, parts, appended| insertion(self.graph.function, (point, parts), buffer, appended);
        let stack = unwinds || self.resumes.contains(&true);
        let (time, waits) = (options.times, options.lossless);
        let enter = Appended { time, stack, bytes: Token::Enter(number).bytes()?, waits };
        let mut all = vec![insertion(PointKind::Entry, Parts::All, enter)];
        for (n, (place, resumes)) in (0..).zip(self.places.iter().zip(&self.resumes)) {
            let passage = Token::Passage(n).bytes()?;
            let appended = match resumes {
                true => {
                    let bytes = [Token::Resume(number).bytes()?, passage].concat();
                    Appended { time: false, stack: true, bytes, waits }
                }
                false => Appended { time: false, stack: false, bytes: passage, waits },
            };
            let point = self.graph.point(*place)?;
            all.push(insertion(point.kind(), Parts::One(point), appended));
        }
        Some(all)
    }
}

/// The code that appends a token where a thread leaves calls without a return. `waits`: if the buffer is full, the thread waits.
pub fn mark(
    function: FunctionId,
    point: PointKind,
    (token, waits): (Token, bool),
    buffer: Buffer,
) -> Option<Insertion> {
    let appended = Appended { time: false, stack: token == Token::Unwound, bytes: token.bytes()?, waits };
    Some(insertion(function, (point, Parts::All), buffer, appended))
}

fn insertion(
    function: FunctionId,
    (point, parts): (PointKind, Parts),
    buffer: Buffer,
    appended: Appended,
) -> Insertion {
    let append = Stmt::Append(buffer.variable, buffer.capacity, appended);
    code::insertion(function, point, parts, Snippet { stmts: vec![append] })
}

/// The blocks that end in a call which may return several times.
fn twice(module: &Module, function: FunctionId, f: &Function, cfg: &Cfg) -> Vec<BlockId> {
    let sites = module.image.call_sites(f).unwrap_or_default();
    let calls = sites.iter().filter(|site| may_return_twice(module, function, site));
    calls.filter_map(|site| block_of(cfg, site.at)).collect()
}

/// For each place, whether control may arrive there from any activation.
fn resumes(cfg: &Cfg, places: &[ProbeAt], twice: &[BlockId]) -> Vec<bool> {
    let roots = cfg.roots();
    let again = |edge: &Edge| edge.kind == EdgeKind::CallReturn && twice.contains(&edge.from);
    let one = |place: &ProbeAt| match place {
        ProbeAt::Edge(edge) => cfg.edges.get(*edge).is_some_and(again),
        ProbeAt::Block(block) => {
            let returns = cfg.edges.iter().any(|edge| again(edge) && edge.to == EdgeTarget::Block(*block));
            returns || Some(*block) != cfg.entry && roots.contains(block)
        }
    };
    places.iter().map(one).collect()
}

/// The code of a trace: all functions append to one buffer of each thread. The number of a function is its index. The functions of
/// `refused` have code that is refused for the reason. The code of the condition appends a token when it counts. `unwinds` says whether a
/// thread may leave calls without a return, so that all entries write the stack pointer.
pub fn instrumentation(
    plans: &[TracePlan],
    refused: &[(FunctionId, Refusal)],
    (options, condition): (&TraceOptions, Option<Instrumentation>),
    unwinds: bool,
) -> Option<Instrumentation> {
    let (mut variables, conditions) = condition.map(|c| (c.variables.to_vec(), c.insertions)).unwrap_or_default();
    variables.push(Variable {
        name: "buffer".to_owned(),
        kind: VariableKind::Scratch,
        shape: Shape::Buffer(options.capacity),
        unit: ValueUnit::Plain,
        sampled: variables.is_empty(),
    });
    let buffer = Buffer::of(&variables)?;
    let mut insertions = Vec::new();
    for (number, plan) in (0..FUNCTIONS_MAX).zip(plans) {
        insertions.extend(plan.insertions(number, buffer, options, unwinds)?);
    }
    if plans.len() > FUNCTIONS_MAX as usize {
        return None;
    }
    for insertion in conditions {
        let snippet = told(&insertion.snippet, &variables, (buffer, options.lossless))?;
        insertions.push(Insertion { snippet, group: CONDITION + insertion.group, ..insertion });
    }
    for (function, why) in refused {
        insertions.push(code::missing(*function, why.clone()));
    }
    Some(buffered(insertions, variables.into()))
}

/// The snippet of a condition, which appends a token whenever it counts.
fn told(snippet: &Snippet, variables: &[Variable], (buffer, waits): (Buffer, bool)) -> Option<Arc<Snippet>> {
    fn all(stmts: &[Stmt], value: VariableId, append: &Stmt) -> Vec<Stmt> {
        let body = |stmts: &[Stmt]| all(stmts, value, append);
        let one = |stmt: &Stmt| match stmt {
            Stmt::Add(v, _) if *v == value => vec![stmt.clone(), append.clone()],
            Stmt::If(c, stmts) => vec![Stmt::If(c.clone(), body(stmts))],
            Stmt::Open(record, stmts) => vec![Stmt::Open(record.clone(), body(stmts))],
            Stmt::Close(record, stmts) => vec![Stmt::Close(record.clone(), body(stmts))],
            Stmt::HandOver(record, whose, stmts) => vec![Stmt::HandOver(record.clone(), *whose, body(stmts))],
            Stmt::GiveUp(record, whose, stmts) => vec![Stmt::GiveUp(record.clone(), *whose, body(stmts))],
            Stmt::CloseHanded(record, stmts) => vec![Stmt::CloseHanded(record.clone(), body(stmts))],
            other => vec![other.clone()],
        };
        stmts.iter().flat_map(one).collect()
    }
    let value = variables.iter().position(|variable| variable.kind == VariableKind::Counter)?;
    let appended = Appended { time: false, stack: false, bytes: Token::Condition.bytes()?, waits };
    let append = Stmt::Append(buffer.variable, buffer.capacity, appended);
    Some(Arc::new(Snippet { stmts: all(&snippet.stmts, VariableId(u32::try_from(value).ok()?), &append) }))
}

/// Code of a pair with these variables, one of which is a buffer.
pub fn buffered(insertions: Vec<Insertion>, variables: Arc<[Variable]>) -> Instrumentation {
    Instrumentation { variables, ..code::empty(insertions, code::metric_named(METRIC)) }
}
