//! The plan to profile one function: the places of its counters or probes, and the code for them.

use std::sync::{Arc, OnceLock};

use ingraft_analysis::{Function, FunctionKind, block_events};
use ingraft_codegen::{Spot, TextSpace, WovenBody};
use ingraft_model::{
    Aggregate, Bias, Block, BlockEvents, Cfg, EVENT_NAMES, Edge, EdgeId, EdgeKind, EdgeTarget, Expr, FunctionBody,
    FunctionRef, Insertion, Instrumentation, MetricInfo, Offset, Order, Parts, PointKind, Refusal, Role, Shape,
    Snippet, Stmt, Style, Svma, UnitsType, ValueUnit, Variable, VariableId, VariableKind,
};
use ingraft_profile::{
    Counted, Earlier, EarlierProfile, Inexact, NotCounted, Position, Probes, RunEvents, Runs, Wishes, coverage_probes,
};

use crate::api::{CountsOptions, CoverageOptions, Inclusive};
use crate::program::modules::{Module, Modules};
use crate::weaving::trial;

use super::inclusive::{self, Spans};

/// Name of the metric that the pairs of exact counts have.
pub const COUNTS_METRIC: &str = "edge_profile";
/// Name of the metric that the pairs of a coverage have.
pub const COVERAGE_METRIC: &str = "coverage";

/// The way to a function's profile.
#[derive(Debug)]
pub enum Method {
    /// Counters, and the derivation of all counts from them.
    Runs(Box<Runs>),
    /// Probes that tell what has run.
    Probes(Vec<Counted>),
}

/// Length in bytes of a springboard.
const SPRINGBOARD: u64 = 5;

/// The plan to profile one function.
#[derive(Debug)]
pub struct Plan {
    /// The function.
    pub function: FunctionRef,
    /// Name of the function in the symbol table.
    pub symbol: String,
    /// Preferred name of the function, demangled.
    pub name: String,
    /// First byte of the function.
    pub first: Svma,
    /// Length of the function in bytes.
    pub size: u64,
    /// Control-flow graph of the function.
    pub cfg: Cfg,
    /// Events of one execution of each block.
    pub events: Vec<BlockEvents>,
    /// Counters or probes.
    pub method: Method,
    /// The spans of inclusive totals; `None` if there are none.
    pub spans: Option<Spans>,
    /// Whether the function is not copied, so that blocks without room in the text have no probe.
    in_place: bool,
    /// The inclusive totals that were asked for.
    inclusive: Option<Inclusive>,
    /// Increments of the counters, computed at the first query of event totals.
    increments: OnceLock<Vec<Numbers>>,
}

/// Numbers of events of each kind, in the order of [`EVENT_NAMES`].
pub type Numbers = [i64; EVENT_NAMES.len()];

impl Plan {
    /// Plans the counters of a function. Fails if not all of its counts can be counted or derived.
    ///
    /// The places where code can count are those of a copy on trial. `text` is the text of the module with nothing woven into it. `leaps` says
    /// whether threads may leave signal handlers for good, and with them the runs that signals have interrupted: calls are then counted as
    /// they begin. Also returns the function, which was analysed as a whole: the insertion needs it again, and the image has it as long as
    /// somebody holds it.
    pub fn of_counts(
        (modules, text): (&Modules, &TextSpace),
        function: FunctionRef,
        options: &CountsOptions,
        leaps: bool,
    ) -> Result<(Plan, Arc<FunctionBody>), Refusal> {
        let (module, f) = plannable(modules, function)?;
        let cfg = module.image.cfg(f);
        let events = events(module, &cfg);
        let body = module.image.body(f)?;
        let copy = trial::copy(modules, function, &body, text)?;
        let probes = probes(&cfg, &copy, (module.bias, &events));
        let spans = options.inclusive.map(|of| Spans::new((module, f, &body), (&cfg, &events), &copy, of.calls));
        let earlier = options.earlier.as_deref().and_then(|earlier| earlier_counts(modules, function, earlier));
        let wishes = Wishes { earlier, check: options.check, entries: leaps };
        let runs = Runs::placed(&cfg, &probes, &wishes).map_err(|why| match (why, copy.why_exposed) {
            // A block that runs in the text has no counter.
            (NotCounted::Block(_), Some(exposed)) => exposed,
            (why, _) => refusal(why, &cfg, f),
        })?;
        let plan = Plan {
            spans,
            inclusive: options.inclusive,
            ..Plan::new(f, function, (cfg, events), Method::Runs(Box::new(runs)))
        };
        Ok((plan, body))
    }

    /// Plans the probes of a function for a coverage.
    pub fn of_coverage(modules: &Modules, function: FunctionRef, options: CoverageOptions) -> Result<Plan, Refusal> {
        let (module, f) = plannable(modules, function)?;
        let cfg = module.image.cfg(f);
        let events = events(module, &cfg);
        let method = Method::Probes(coverage_probes(&cfg, options.branches));
        Ok(Plan { in_place: options.in_place, ..Plan::new(f, function, (cfg, events), method) })
    }

    fn new(f: &Function, function: FunctionRef, (cfg, events): (Cfg, Vec<BlockEvents>), method: Method) -> Plan {
        let name = f.display_name().into_owned();
        let symbol = f.names().first().map_or_else(|| name.clone(), |name| name.mangled().to_owned());
        Plan {
            function,
            symbol,
            name,
            first: f.start(),
            size: f.size(),
            cfg,
            events,
            method,
            spans: None,
            in_place: false,
            inclusive: None,
            increments: OnceLock::new(),
        }
    }

    /// The places of the counters or probes.
    pub fn places(&self) -> &[Counted] {
        match &self.method {
            Method::Runs(runs) => runs.counters(),
            Method::Probes(probes) => probes,
        }
    }

    /// Whether the plan is for a coverage.
    pub fn is_coverage(&self) -> bool {
        matches!(self.method, Method::Probes(_))
    }

    /// The code that counts: one counter for each place. If there are inclusive totals, `clock` is the counter of their event clock.
    pub fn instrumentation(&self, clock: Option<u32>) -> Instrumentation {
        let places = self.places();
        let on_clock = |n: usize| self.increments().get(n)?.get(self.inclusive()?.event).copied();
        let insertions = places.iter().enumerate().filter_map(|(n, counted)| {
            let mut insertion = self.insertion(n, *counted)?;
            let events = clock.and_then(|_| on_clock(n)).unwrap_or_default();
            if events != 0 {
                let mut stmts = insertion.snippet.stmts.clone();
                stmts.push(Stmt::Add(VariableId(u32::try_from(places.len()).ok()?), Expr::Const(events)));
                insertion.snippet = Arc::new(Snippet { stmts });
            }
            Some(insertion)
        });
        let alias = |counter| inclusive::variable("clock".to_owned(), VariableKind::Counter, Shape::Alias(counter));
        Instrumentation {
            variables: (0..places.len()).map(variable).chain(clock.map(alias)).collect(),
            apart: self.is_coverage(),
            in_place: self.in_place,
            ..empty(insertions.collect(), self.metric())
        }
    }

    /// The inclusive totals that were asked for.
    pub fn inclusive(&self) -> Option<Inclusive> {
        self.inclusive
    }

    fn metric(&self) -> Arc<MetricInfo> {
        static COUNTS: OnceLock<Arc<MetricInfo>> = OnceLock::new();
        static COVERAGE: OnceLock<Arc<MetricInfo>> = OnceLock::new();
        let (known, name) = match self.method {
            Method::Runs(_) => (&COUNTS, COUNTS_METRIC),
            Method::Probes(_) => (&COVERAGE, COVERAGE_METRIC),
        };
        Arc::clone(known.get_or_init(|| metric_named(name)))
    }

    fn insertion(&self, n: usize, counted: Counted) -> Option<Insertion> {
        let offset = |block: usize| Some(Offset::between(self.first.0, self.cfg.blocks.get(block)?.range.start.0));
        let (point, parts) = match counted {
            Counted::Edge(edge) => {
                let Edge { from, to: EdgeTarget::Block(to), kind } = *self.cfg.edges.get(edge)? else { return None };
                let id = EdgeId { from: offset(from)?, to: offset(to)?, kind };
                (PointKind::Edge, Parts::Edges([id].into()))
            }
            Counted::Block(block) => (PointKind::Block, Parts::Block(offset(block)?)),
        };
        let variable = VariableId(u32::try_from(n).ok()?);
        Some(insertion(self.function, point, parts, variable))
    }

    /// For each counter, the numbers of events that one unit stands for.
    pub fn increments(&self) -> &[Numbers] {
        self.increments.get_or_init(|| {
            let Method::Runs(runs) = &self.method else { return Vec::new() };
            let mut all = vec![Numbers::default(); runs.counters().len()];
            for kind in 0..EVENT_NAMES.len() {
                let increments = RunEvents::new(runs, &self.events_of(kind)).increments();
                for number in all.iter_mut().zip(increments).filter_map(|(all, own)| Some((all.get_mut(kind)?, own))) {
                    *number.0 = number.1;
                }
            }
            all
        })
    }

    /// Numbers of events that a thread at a position in a run must be credited with, besides those of its counters, up to the first
    /// instruction of its block.
    pub fn before(&self, position: Position) -> Numbers {
        let Method::Runs(runs) = &self.method else { return Numbers::default() };
        std::array::from_fn(|kind| RunEvents::new(runs, &self.events_of(kind)).before(position))
    }

    /// Number of events of one kind in one execution of each block.
    fn events_of(&self, kind: usize) -> Vec<i64> {
        self.events.iter().map(|of| of.numbers().get(kind).copied().unwrap_or_default().into()).collect()
    }

    /// Numbers of events of a block up to an instruction, or of all of it. `module` has the function.
    pub fn part(&self, module: &Module, block: usize, until: Option<Svma>) -> Numbers {
        let (Some(whole), Some(of)) = (self.events.get(block), self.cfg.blocks.get(block)) else {
            return Numbers::default();
        };
        let events = match until {
            Some(until) if of.range.contains(&until) => {
                let length = usize::try_from(until.0 - of.range.start.0).unwrap_or_default();
                block_events(of.range.start, module.image.bytes_at(of.range.start, length).unwrap_or_default())
            }
            Some(_) | None => *whole,
        };
        events.numbers().map(i64::from)
    }

    /// Index of the block that contains an address; `None` if none does.
    pub fn block_around(&self, at: Svma) -> Option<usize> {
        let after = self.cfg.blocks.partition_point(|block| block.range.start <= at);
        let block = self.cfg.blocks.get(after.checked_sub(1)?)?;
        block.range.contains(&at).then_some(after - 1)
    }

    /// The module of the function and the function.
    pub fn resolve<'m>(&self, modules: &'m Modules) -> Option<(&'m Module, &'m Function)> {
        modules.resolve(self.function).map(|(_, module, f)| (module, f))
    }
}

/// Counts of a function in an earlier profile; `None` if it has none.
pub fn earlier_counts<'e>(
    modules: &Modules,
    function: FunctionRef,
    earlier: &'e EarlierProfile,
) -> Option<&'e Earlier> {
    let (_, module, f) = modules.resolve(function)?;
    earlier.of(module.image.build_id()?, f.start())
}

/// Code of a metric of the engine's own that is refused in a function for this reason.
pub fn refused(function: FunctionRef, metric: &str, why: Refusal) -> Instrumentation {
    Instrumentation { variables: [variable(0)].into(), ..empty(vec![missing(function, why)], metric_named(metric)) }
}

/// An insertion that is refused in a function for this reason.
pub(super) fn missing(function: FunctionRef, why: Refusal) -> Insertion {
    insertion(function, PointKind::Block, Parts::Missing(Arc::new(why)), VariableId(0))
}

/// Code that increments a counter.
pub(super) fn insertion(function: FunctionRef, point: PointKind, parts: Parts, variable: VariableId) -> Insertion {
    Insertion {
        function,
        point,
        parts,
        order: Order::Append,
        role: Role::Metric,
        snippet: Arc::new(Snippet::increment(variable)),
        group: 0,
        except: [].into(),
    }
}

/// An instrumentation of a developer's metric, without variables.
pub(super) fn empty(insertions: Vec<Insertion>, metric: Arc<MetricInfo>) -> Instrumentation {
    Instrumentation {
        metric,
        variables: [].into(),
        insertions,
        event: None,
        thread: None,
        object: None,
        index_names: None,
        apart: false,
        in_place: false,
    }
}

/// A counter of a profile.
pub(super) fn variable(n: usize) -> Variable {
    Variable {
        name: format!("counter {n}"),
        kind: VariableKind::Counter,
        shape: Shape::Counter,
        unit: ValueUnit::Plain,
        sampled: n == 0,
    }
}

/// The module of a function, and the function, if it can be profiled.
fn plannable(modules: &Modules, function: FunctionRef) -> Result<(&Module, &Function), Refusal> {
    let (_, module, f) = modules.resolve(function).ok_or(Refusal::NoSuchFunction)?;
    match f.kind() {
        FunctionKind::Normal => Ok((module, f)),
        FunctionKind::IfuncResolver => Err(Refusal::IfuncResolver),
        FunctionKind::Stub => Err(Refusal::LinkerStub),
    }
}

/// Events of one execution of each block.
pub(super) fn events(module: &Module, cfg: &Cfg) -> Vec<BlockEvents> {
    let events = |block: &Block| {
        let length = usize::try_from(block.range.end.0.saturating_sub(block.range.start.0)).unwrap_or_default();
        block_events(block.range.start, module.image.bytes_at(block.range.start, length).unwrap_or_default())
    };
    cfg.blocks.iter().map(events).collect()
}

/// The edges and blocks at which the copy of a function has probes. Others are derived if they can be.
///
/// A block in which no springboard fits before its call may have its probes at the call, where all arrivals look alike. If there are several
/// edges to it, those along which control arrives at its original address are derived, because islands may be scarcer than on trial.
pub(super) fn probes(cfg: &Cfg, copy: &WovenBody, (bias, events): (Bias, &[BlockEvents])) -> Probes {
    let mut into = vec![0_u32; cfg.blocks.len()];
    for edge in &cfg.edges {
        if let EdgeTarget::Block(to) = edge.to
            && let Some(known) = into.get_mut(to)
        {
            *known += 1;
        }
    }
    let is_short = |block: usize| match (cfg.blocks.get(block), events.get(block)) {
        (Some(block), Some(events)) => events.calls > 0 && events.last.0 < block.range.start.0 + SPRINGBOARD,
        (None, _) | (_, None) => false,
    };
    let start = |block: usize| Some(cfg.blocks.get(block)?.range.start.to_avma(bias));
    let has_probe = |edge: &Edge| {
        let EdgeTarget::Block(to) = edge.to else { return false };
        let is_told = match edge.kind {
            EdgeKind::CallReturn | EdgeKind::JumpTable => into.get(to) == Some(&1) || !is_short(to),
            EdgeKind::Taken | EdgeKind::FallThrough | EdgeKind::TailJump | EdgeKind::Return => true,
        };
        let (Some(from), Some(at)) = (start(edge.from), start(to)) else { return false };
        is_told && copy.probe(&Spot { kind: PointKind::Edge, at, from: Some((from, edge.kind)) }).is_ok()
    };
    let has_block = |block| start(block).is_some_and(|at| copy.probe(&Spot::new(PointKind::Block, at)).is_ok());
    Probes { edges: cfg.edges.iter().map(has_probe).collect(), blocks: (0..cfg.blocks.len()).map(has_block).collect() }
}

/// A metric for developers, with this name.
pub fn metric_named(name: &str) -> Arc<MetricInfo> {
    Arc::new(MetricInfo {
        name: name.to_owned(),
        unit: "passages".to_owned(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        histogram: false,
        constraints: vec!["/Code".to_owned()],
        flavors: Vec::new(),
        developer: true,
        doc: "The counters of a profile, or the buffer of a trace.".to_owned(),
        text: name.into(),
    })
}

/// The refusal for the reason why runs cannot be counted.
pub(super) fn refusal(why: NotCounted, cfg: &Cfg, function: &Function) -> Refusal {
    match why {
        NotCounted::Inexact(Inexact::WaysIn(refusal) | Inexact::WaysOut(refusal)) => refusal,
        NotCounted::Inexact(Inexact::Unresolved(at)) => {
            Refusal::UnresolvedJump { offset: Offset::between(function.start().0, at.0) }
        }
        NotCounted::Inexact(Inexact::NoWayIn | Inexact::UnknownBlock(_) | Inexact::TooLarge) => Refusal::NoSuchPoint,
        NotCounted::Block(block) => {
            let at = cfg.blocks.get(block).map_or(function.start().0, |block| block.range.start.0);
            Refusal::NotDerivable { offset: Offset::between(function.start().0, at) }
        }
    }
}
