//! The code that metrics are lowered to: evaluated at a focus, in a process or in a generic program, and generated without a target.

use std::convert::Infallible;
use std::sync::Arc;

use ingraft_codegen::{Cost, Environment, MiniRequest, Readable, generic_site};
use ingraft_mdl::{
    Evaluated, Evaluator, IntegerPath, Library, Parameter, ProgramFacts, ProgramVariable, Unresolved, VariableLocation,
    WithNames, codes,
};
use ingraft_model::layout::STRIDE_MAX;
use ingraft_model::{
    Avma, Bias, Called, CpuClock, DataArea, EdgeKind, Flavor, Focus, FunctionId, Insertion, LoopEdges, ModuleId,
    Offset, Parts, Pid, PointId, PointKind, Refusal, ResourcePath, Scalar, Scale, Site, Snippet, Stmt, ThreadIdentity,
    Variable, WallClock,
};
use ingraft_process::{ClockChoice, Target, TickClock, vector_state};
use rustc_hash::FxHashMap;

use crate::api::{
    EnableRequest, Kind, LowerRequest, LoweredLine, LoweredMetric, LoweredPiece, MetricFocus, TargetSpec,
};
use crate::error::{Error, Reason};
use crate::measure::internal::Internal;
use crate::measure::request::{self, Missing};
use crate::program::images::ImageStore;
use crate::program::modules::Modules;
use crate::weaving::cost::{Metered, Meters, Prices};
use crate::weaving::plan::PRUNE;
use crate::weaving::sites::{FoundPoint, Text, sites};

/// Module and function of the generic program.
const MODULE: &str = "program";
const FUNCTION: &str = "function";
/// Address of a function that was not looked up in a process.
const SOMEWHERE: Avma = Avma(0x7f00_0000_0000);
/// Address of a variable of the generic program.
const VARIABLE: Avma = Avma(0x5555_5555_8000);

/// Environment of the generated code in a target whose C library is glibc.
fn environment(wall: WallClock) -> Environment {
    // any variable has room in it
    let data = DataArea { base: Avma(1 << 30), stride: STRIDE_MAX, shards: 64, journal_bytes: 0 };
    // the offset of the rseq area and its signature are those of glibc
    let cpu = CpuClock::Rseq { slot: -0x98, signature: 0x5305_3053 };
    // the cost of code does not depend on the place of data, and this code is never executed
    let readable = Readable { start: Avma(0), end: Avma(u64::MAX), process: Some(1) };
    Environment {
        data,
        identity: ThreadIdentity::FsOffset(0x2d0),
        shadow_stack: false,
        wall,
        ticks: Scale::ONE,
        cpu,
        vectors: vector_state(),
        loader: None,
        // where Go programs for Linux have it
        goroutine: Some(-8),
        stacks: true,
        readable,
    }
}

/// A program with one function in one module, which matches every name. The function has one loop.
struct Generic {
    flavors: Vec<String>,
}

impl Generic {
    const ONE: FunctionId = FunctionId { module: ModuleId(0), function: 0 };

    fn new() -> Self {
        Generic { flavors: ["linux", "unix"].map(str::to_owned).to_vec() }
    }
}

impl ProgramFacts for Generic {
    fn machine(&self) -> &str {
        "machine"
    }
    fn flavors(&self) -> &[String] {
        &self.flavors
    }
    fn pid(&self) -> Pid {
        Pid(0)
    }
    fn modules(&self) -> Vec<ModuleId> {
        vec![Self::ONE.module]
    }
    fn modules_named(&self, _: &str) -> Vec<ModuleId> {
        self.modules()
    }
    fn functions_of(&self, _: ModuleId) -> Vec<FunctionId> {
        vec![Self::ONE]
    }
    fn functions_named(&self, _: &str) -> Vec<FunctionId> {
        vec![Self::ONE]
    }
    fn function(&self, _: &str, _: &str) -> Vec<FunctionId> {
        vec![Self::ONE]
    }
    fn module_name(&self, _: ModuleId) -> &str {
        MODULE
    }
    fn function_name(&self, _: FunctionId) -> &str {
        FUNCTION
    }
    fn variable(&self, _: &str, members: &[&str]) -> Result<ProgramVariable, Unresolved> {
        let pointers = vec![0; members.len().saturating_sub(1)];
        Ok(ProgramVariable {
            at: VariableLocation::Lasting(VARIABLE),
            access: IntegerPath { pointers, offset: 0, scalar: Scalar::INT },
            described: true,
            names: None,
        })
    }
    fn callees(&self, _: FunctionId) -> Result<Vec<FunctionId>, Unresolved> {
        Ok(vec![Self::ONE])
    }
    fn block(&self, _: FunctionId, _: Offset) -> Result<(), Unresolved> {
        Ok(())
    }
    fn edges(&self, _: FunctionId, from: Offset, to: Offset) -> Result<Arc<[PointId]>, Unresolved> {
        Ok([PointId::Edge { from, to, kind: EdgeKind::Taken }].into())
    }
    fn loops(&self, _: FunctionId) -> Result<Arc<[LoopEdges]>, Unresolved> {
        let edge = |from, to| -> Arc<[PointId]> {
            [PointId::Edge { from: Offset(from), to: Offset(to), kind: EdgeKind::Taken }].into()
        };
        let (enter, again, exit) = (Ok(edge(0, 0x10)), edge(0x10, 0x10), Ok(edge(0x10, 0x20)));
        Ok([LoopEdges { header: Offset(0x10), enter, exit, again }].into())
    }
    fn member(&self, _: FunctionId, _: Parameter, members: &[&str]) -> Result<WithNames<IntegerPath>, Unresolved> {
        let pointers = vec![0; members.len().saturating_sub(1)];
        Ok((IntegerPath { pointers, offset: 0, scalar: Scalar::INT }, None))
    }
}

/// Counters for variables, as an empty shard would assign them.
fn counters(variables: &[Variable]) -> Vec<u32> {
    let first = |next: &mut u32, v: &Variable| {
        let first = *next;
        *next = next.saturating_add(v.shape.slots());
        Some(first)
    };
    variables.iter().scan(0, first).collect()
}

/// Clock that code reads if nothing is known of the target. Without a clock the engine measures no times.
pub fn wall_of(clock: Option<&TickClock>) -> WallClock {
    if clock.is_none_or(TickClock::is_counter) { WallClock::Tsc } else { WallClock::Vdso(SOMEWHERE) }
}

/// The worst cases of snippets on a machine.
pub struct WorstCases(Environment);

impl WorstCases {
    /// The worst cases where wall time is told by this clock.
    pub fn new(wall: WallClock) -> Self {
        WorstCases(environment(wall))
    }

    /// That of a snippet at a point of a form that compilers often emit, including the code on the way to the snippet. `moving` tells whether calls of
    /// the function move between threads.
    pub fn of(&self, insertion: &Insertion, variables: &[Variable], moving: bool) -> Option<Cost> {
        let site = Site { moving, ..generic_site(insertion.point) };
        let price = |minis: &[MiniRequest<'_>]| ingraft_codegen::price(&self.0, &site, Bias(0), minis);
        with_prune(&insertion.snippet, variables, price).ok()?.ok()
    }
}

fn woven(
    snippet: &Snippet,
    site: &Site,
    bias: Bias,
    variables: &[Variable],
    wall: WallClock,
) -> Option<Result<ingraft_codegen::Lowered, Refusal>> {
    let env = environment(wall);
    with_prune(snippet, variables, |minis| ingraft_codegen::lower(&env, site, bias, minis)).ok()
}

/// Weaves a snippet as in a session: code that prunes stale activations precedes one that opens a record.
fn with_prune<T>(snippet: &Snippet, variables: &[Variable], weave: impl FnOnce(&[MiniRequest<'_>]) -> T) -> T {
    let prune = Snippet { stmts: vec![Stmt::Prune] };
    let counters = counters(variables);
    let mut snippet = snippet.clone();
    let Ok(()) = snippet.place_callees::<Infallible>(&mut |called| match called {
        Called::Named(_) => Ok(Called::At(SOMEWHERE)),
        Called::At(at) => Ok(Called::At(*at)),
    });
    let own = MiniRequest { id: PRUNE + 1, snippet: &snippet, counters: &counters };
    let first = MiniRequest { id: PRUNE, snippet: &prune, counters: &[] };
    let opens = snippet.stmts.iter().any(|s| matches!(s, Stmt::Open(..)));
    if opens { weave(&[first, own]) } else { weave(&[own]) }
}

/// Lowers metrics.
pub fn lower(
    library: &Library,
    request: &LowerRequest,
    target: Option<&Target>,
    images: &ImageStore,
    clock: ClockChoice,
) -> Result<Vec<LoweredMetric>, Error> {
    let wall = wall_of(TickClock::start(clock).as_ref().ok());
    let names: Vec<String> = if request.metrics.is_empty() {
        let all = library.metrics();
        all.iter().filter(|m| !m.developer).map(|m| m.name.clone()).collect()
    } else {
        request.metrics.clone()
    };
    let mut modules = match target {
        Some(target) => Some(Modules::of(target)?),
        None => None,
    };
    let mut out = Vec::with_capacity(names.len());
    for name in names {
        let Some(info) = library.metric(&name) else {
            if Internal::named(&name).is_some() {
                let problem = Some("the engine knows it by itself: there is no code".to_owned());
                out.push(LoweredMetric {
                    metric: name,
                    focus: Focus::default(),
                    pieces: Vec::new(),
                    problem,
                    applies: true,
                });
                continue;
            }
            let what = format!("no metric `{name}`");
            return Err(Error::new(Reason::NoSuchMetric, what, "`ingraft metrics` lists them"));
        };
        let focus = match &request.focus {
            Some(focus) => focus.clone(),
            None if target.is_none() => generic_focus(&info.constraints),
            None => Focus::default(),
        };
        if let (Some(modules), Some(target)) = (&mut modules, target) {
            // loads the modules that the metric looks into; the errors are reported below, with their metric
            let places = (target, images, &*modules);
            let asked = asked(&name, &focus, &request.flavors);
            let _loaded = request::evaluate(places, (&asked, &[]), &|_| (), &mut || {
                request::of_metrics(library, places.2, &asked, Missing::MayCome)
            });
        }
        let program: &(dyn ProgramFacts + Sync) = match &modules {
            Some(modules) => modules,
            None => &Generic::new(),
        };
        let place = target.zip(modules.as_ref());
        out.push(lower_one(library, name, focus, (program, &request.flavors), place, wall, request.code));
    }
    Ok(out)
}

fn asked(metric: &str, focus: &Focus, flavors: &[Flavor]) -> EnableRequest {
    EnableRequest {
        target: TargetSpec::Pid(Pid(0)),
        pairs: vec![Arc::new(MetricFocus { metric: metric.to_owned(), focus: focus.clone() })],
        functions: Vec::new(),
        function_metrics: Vec::new(),
        definitions: Vec::new(),
        flavors: flavors.to_vec(),
        keep: false,
        max_overhead: None,
        max_hold: None,
        allow_calls: true,
        beside_uprobes: false,
        family: false,
        max_pairs: None,
        await_modules: false,
        kind: Kind::Metrics,
    }
}

/// One function if the metric can be restricted to one.
fn generic_focus(constraints: &[String]) -> Focus {
    let path = ResourcePath::new("Code", [MODULE.to_owned(), FUNCTION.to_owned()]);
    let one = Focus::new([path]).ok().filter(|_| constraints.iter().any(|c| c == "/Code/*"));
    one.unwrap_or_default()
}

fn lower_one(
    library: &Library,
    metric: String,
    focus: Focus,
    (program, flavors): (&(dyn ProgramFacts + Sync), &[Flavor]),
    place: Option<(&Target, &Modules)>,
    wall: WallClock,
    code: bool,
) -> LoweredMetric {
    let Evaluated { mut instrumentation, warnings } =
        match Evaluator::new(library, program, flavors).evaluate(&metric, &focus) {
            Ok(evaluated) => evaluated,
            Err(errors) => {
                let problem = errors.into_iter().next().map(|d| match d.help {
                    Some(help) if d.code == codes::FLAVOR => format!("{}; {help}", d.message),
                    _ => d.message,
                });
                return LoweredMetric { metric, focus, pieces: Vec::new(), problem, applies: false };
            }
        };
    if library.event(&metric).is_some() && instrumentation.insertions.is_empty() {
        let problem = Some("the kernel counts it: there is no code".to_owned());
        return LoweredMetric { metric, focus, pieces: Vec::new(), problem, applies: true };
    }
    // a metric with code at a focus only can be restricted to any function of the program
    let needs_focus = warnings.iter().any(|warning| warning.code == codes::NO_CONSTRAINT);
    Meters::default().apply(&mut instrumentation, &mut Metered::default());
    let mut pieces: Vec<LoweredPiece> = Vec::new();
    let mut known: FxHashMap<(Arc<Snippet>, PointKind), usize> = FxHashMap::default();
    for insertion in &instrumentation.insertions {
        let key = (Arc::clone(&insertion.snippet), insertion.point);
        if let Some(piece) = known.get(&key).and_then(|at| pieces.get_mut(*at)) {
            piece.functions += 1;
            continue;
        }
        known.insert(key, pieces.len());
        pieces.push(piece(insertion, &instrumentation.variables, program, place, wall, code));
    }
    let problem = pieces.is_empty().then(|| "nothing is woven at this focus".to_owned());
    let woven = pieces.iter().any(|piece| piece.refused.is_none());
    LoweredMetric { metric, focus, applies: woven || pieces.is_empty() && needs_focus, pieces, problem }
}

/// Reason why a function has no point of these parts.
fn missing(parts: &Parts) -> Refusal {
    match parts {
        Parts::Missing(why) => Refusal::clone(why),
        Parts::All | Parts::One(_) | Parts::These(_) => Refusal::NoSuchPoint,
    }
}

fn piece(
    insertion: &Insertion,
    variables: &[Variable],
    program: &dyn ProgramFacts,
    place: Option<(&Target, &Modules)>,
    wall: WallClock,
    code: bool,
) -> LoweredPiece {
    let mut piece = LoweredPiece {
        point: insertion.point,
        functions: 1,
        function: program.function_name(insertion.function).to_owned(),
        snippet: insertion.snippet.to_string(),
        cycles: None,
        ns: None,
        code: Vec::new(),
        refused: None,
    };
    let site = match place {
        None => Ok((Arc::new(generic_site(insertion.point)), Bias(0))),
        Some((target, modules)) => {
            let bias = modules.module(insertion.function.module).map_or(Bias(0), |(_, module)| module.bias);
            let spot = insertion.point;
            let is_its = |found: &FoundPoint| found.is_among(&insertion.parts);
            let first = sites(&Text::untouched(target), modules, insertion.function, spot)
                .and_then(|sites| sites.into_iter().find(is_its).ok_or_else(|| missing(&insertion.parts)));
            first.and_then(|found| match (found.site, found.hosted) {
                (Ok(site), _) => Ok((site, bias)),
                // The code in a copy of the function is the same as that of a point with room.
                (Err(_), Some(_)) => Ok((Arc::new(generic_site(spot)), Bias(0))),
                (Err(refusal), None) => Err(refusal),
            })
        }
    };
    // an exit in the bytes that its entry displaces is woven into the entry's code, so the code at a generic exit is shown instead
    let site = site.map(|(site, bias)| match site.is_within_entry() {
        true => {
            FUNCTION.clone_into(&mut piece.function);
            (Arc::new(generic_site(insertion.point)), Bias(0))
        }
        false => (site, bias),
    });
    match site.map(|(site, bias)| woven(&insertion.snippet, &site, bias, variables, wall)) {
        Ok(Some(Ok(lowered))) => {
            let total: Cost = lowered.minis.iter().copied().chain([lowered.base]).sum();
            let prices = Prices::here();
            (piece.cycles, piece.ns) = (Some(prices.cycles(total)), Some(prices.ns(total)));
            if code {
                let line = |l: ingraft_codegen::Line| LoweredLine {
                    label: l.label.unwrap_or_default(),
                    at: l.at.0,
                    bytes: l.bytes,
                    text: l.text,
                };
                piece.code = lowered.code.into_iter().map(line).collect();
            }
        }
        Ok(Some(Err(refusal))) | Err(refusal) => piece.refused = Some(refusal.into()),
        Ok(None) => piece.refused = Some(Refusal::NotYet { kind: "such" }.into()),
    }
    piece
}
