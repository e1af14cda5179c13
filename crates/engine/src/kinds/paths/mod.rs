//! Counts of the paths of functions, by Ball and Larus, "Efficient path profiling" (1996), through whole functions as in Ammons, Ball and Larus,
//! "Exploiting hardware performance counters with flow and context sensitive profiling" (1997).
//!
//! `plan.rs` numbers the paths of a function (crate `ingraft-profile`), and makes the code. `metrics.rs` adds up times and events for each path.
//! `answer.rs` makes a profile of the counts.
//!
//! Paths may be told apart by calling context (section 4.3 of that paper). Then the functions have the code of contexts too. It comes first, so it
//! runs first at entries and last at exits, and a path ends in the context of its call. The count of a path is a value below that context.

mod answer;
mod metrics;
mod plan;

use std::sync::Arc;

use ingraft_model::contexts::VALUES;
use ingraft_model::layout::COUNTERS;
use ingraft_model::outermost::{FRAME, LEFT};
use ingraft_model::{
    Activations, Avma, BlockId, ContextTree, CountedValue, FunctionId, KeyTable, Offset, Refusal, Scale, Shape, Svma,
    Tid, VariableId,
};
use ingraft_process::TickClock;
use ingraft_report::{ContextProfile, ProfileKind, SavedProfile};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{ContextMetric, ContextsOptions, EnableRequest, InspectedPath, PathChoice, PathsOptions, Removed};
use crate::error::{Error, Reason};
use crate::measure::request::{WantedPair, refuse_large};
use crate::measure::sizes;
use crate::program::modules::Modules;
use crate::readings::values::{Columns, Ruler, Slots};
use crate::session::{InsertedPairs, KindRequest, Locked, Running};
use crate::weaving::positions::Observer;
use crate::weaving::trial::text_of;

use super::contexts::{ContextsKind, FunctionStates};
use super::profile::functions::{Functions, Plan as _, Profiled, tell_last};
use super::whole;

use self::answer::{CountedPaths, PathOfContext};
use self::metrics::PathMetrics;
use self::plan::{BelowContexts, ExecutedNumbers, PathsPlan};

/// Name of the metric that the pairs have.
const METRIC: &str = "path_profile";

/// Counts of the paths of functions.
pub struct PathsKind {
    options: PathsOptions,
    functions: Functions<PathsPlan>,
    /// The contexts by which paths are told apart.
    contexts: Option<ContextsKind>,
    /// The numbers of what was executed in each context, if these are asked for instead of the paths.
    executed: Vec<ContextMetric>,
    /// The metrics that are added up for each path.
    metrics: PathMetrics,
    /// Whether code was inserted.
    has_begun: bool,
    /// The last counts, read before the code was taken out.
    last: Option<Result<SavedProfile, Error>>,
    /// The functions with contexts, as they were before their code was taken out.
    states: Option<FunctionStates>,
}

/// The paths of contexts.
struct PathsBelow {
    tree: ContextTree,
    /// Numbers of calls of each function, by outcome.
    outcomes: Vec<Option<Activations>>,
    states: FunctionStates,
}

impl PathsKind {
    /// Counts that have not begun.
    pub fn new(options: &PathsOptions) -> Self {
        let contexts = options.contexts.then(|| ContextsKind::with_values(options.names().next().is_some()));
        PathsKind {
            options: options.clone(),
            functions: Functions::default(),
            contexts,
            executed: Vec::new(),
            metrics: PathMetrics::default(),
            has_begun: false,
            last: None,
            states: None,
        }
    }

    /// Paths that tell what is executed in each context, and that have not begun.
    pub fn executed(options: &ContextsOptions) -> Self {
        let kind = PathsKind::new(&PathsOptions { contexts: true, ..PathsOptions::default() });
        PathsKind { executed: options.metrics.clone(), ..kind }
    }

    /// Counts of all paths, and of the blocks and edges on them, at one moment at which all threads are held. Paths by context are read right after
    /// that moment.
    pub fn read(&self, at: &Locked<'_>) -> Result<SavedProfile, Error> {
        let mut all: Vec<CountedPaths> = Vec::new();
        let states = self.contexts.as_ref().map(|contexts| contexts.states(at));
        let moment = self.functions.observe(at, &mut |columns| all = self.numbers(at, columns))?;
        all.iter_mut().for_each(|counted| counted.tell_open(&moment.seen.stack_pointers));
        // Threads run on meanwhile: the trees of many threads are so large that threads would be held for too long.
        let below = states.map(|states| self.below(at, states));
        let saved = self.saved(at, all, below)?;
        Ok(SavedProfile { held_ns: moment.held_ns(), ..saved })
    }

    /// The same after the code was taken out, when nothing is counted any more. So no path comes in between.
    fn read_last(&self, at: &Locked<'_>, states: FunctionStates) -> Result<SavedProfile, Error> {
        let mut all = at.columns(|columns| self.numbers(at, columns)).unwrap_or_default();
        all.iter_mut().for_each(|counted| counted.tell_open(&FxHashMap::default()));
        self.saved(at, all, Some(self.below(at, states)))
    }

    /// The numbers of each function.
    fn numbers(&self, at: &Locked<'_>, columns: &Columns<'_>) -> Vec<CountedPaths> {
        let scale = at.wall_clock().map_or(Scale::ONE, TickClock::scale);
        let open = columns.open();
        let of = |f: &Profiled<PathsPlan>| {
            let Some(pair) = at.pair(&f.key) else { return CountedPaths::default() };
            let (counters, variables) = (pair.counters(), pair.variables());
            let Some((calls, broken_off)) = PathsPlan::outcomes(counters) else { return CountedPaths::default() };
            let outermost = f.plan.outermost(counters);
            let of = |VariableId(n): VariableId| {
                table(columns, counters.get(n as usize), variables.get(n as usize).map(|v| v.shape))
            };
            let values = f.plan.of_metrics().map(|(metric, values)| {
                let table = of(values);
                let of_paths = f.plan.by_number(&table).filter_map(|(number, value)| Some((number?, value)));
                of_paths.map(|(number, value)| (number, metric.in_units(value, scale))).collect()
            });
            CountedPaths {
                is_known: true,
                counts: f.plan.counts(&of(VariableId(0))),
                values: values.collect(),
                outcomes: outcomes(columns, calls),
                broken_off: columns.sum(broken_off).cast_unsigned(),
                open: open.get(&(COUNTERS + 8 * calls)).copied().unwrap_or(0),
                left_at_end: outermost.map_or(0, |first| columns.sum(first + LEFT).cast_unsigned()),
                outermost: outermost.map_or_else(Vec::new, |first| outermost_of(columns, first)),
                ..CountedPaths::default()
            }
        };
        self.functions.all.iter().map(of).collect()
    }

    /// The paths of each context.
    fn below(&self, at: &Locked<'_>, states: FunctionStates) -> PathsBelow {
        let read = |columns: &Columns<'_>| {
            let tree = self.contexts.as_ref().and_then(|contexts| Some((contexts.tree()?, contexts.shape())));
            let tree = tree.map_or_else(ContextTree::default, |(first, shape)| columns.tree(first, shape));
            (tree, states.outcomes(columns))
        };
        let (tree, outcomes) = at.columns(read).unwrap_or_default();
        PathsBelow { tree, outcomes, states }
    }

    /// The profile for a file.
    fn saved(
        &self,
        at: &Locked<'_>,
        mut all: Vec<CountedPaths>,
        mut below: Option<PathsBelow>,
    ) -> Result<SavedProfile, Error> {
        let scale = at.wall_clock().map_or(Scale::ONE, TickClock::scale);
        if let Some((contexts, below)) = self.contexts.as_ref().zip(below.as_mut()) {
            self.count_below(contexts, &mut below.tree, (&mut all, scale));
        }
        let (family, none) = (at.has_family(), CountedPaths::default());
        let saved = self
            .functions
            .saved(at, |n, f, module| all.get(n).unwrap_or(&none).profile(at.modules(), &f.plan, module, family));
        let path_metrics = self.options.names().collect();
        let mut saved = SavedProfile { path_metrics, ..saved };
        if let Some((contexts, PathsBelow { tree, outcomes, states })) = self.contexts.as_ref().zip(below.as_ref()) {
            let mut of_contexts = contexts.saved(at, states, tree, outcomes);
            self.count_executed(of_contexts.contexts.as_mut(), &all);
            saved
                .join_contexts(&of_contexts)
                .map_err(|why| Error::new(Reason::Bug, why.to_string(), "measure paths without --contexts"))?;
        }
        if !self.executed.is_empty() {
            (saved.kind, saved.functions) = (ProfileKind::Contexts, Vec::new());
        }
        // A function without room for code lacks both its contexts and its paths. One whose contexts alone are left out has its paths.
        let of_paths = saved.functions.iter().map(|function| (function.module, function.start));
        let mut known: FxHashSet<(usize, Svma)> = of_paths.collect();
        saved.refused.retain(|function| known.insert((function.module, function.start)));
        Ok(saved)
    }

    /// Adds up what was executed in each context, if that is asked for.
    fn count_executed(&self, contexts: Option<&mut ContextProfile>, all: &[CountedPaths]) {
        let Some(contexts) = contexts.filter(|_| !self.executed.is_empty()) else { return };
        let none = vec![0_i64; self.executed.len()];
        contexts.metrics = self.executed.iter().map(|metric| metric.name().to_owned()).collect();
        contexts.outside.clone_from(&none);
        contexts.contexts.iter_mut().for_each(|context| context.metrics.clone_from(&none));
        for (f, counted) in self.functions.all.iter().zip(all) {
            let mut known: FxHashMap<i64, Option<ExecutedNumbers>> = FxHashMap::default();
            for of in &counted.by_context {
                let numbers = known.entry(of.number).or_insert_with(|| f.plan.executed(of.number));
                let Some(numbers) = numbers else { continue };
                let context = of.context.and_then(|index| contexts.contexts.get_mut(index));
                let sums = context.map_or(&mut contexts.outside, |context| &mut context.metrics);
                for (sum, event) in sums.iter_mut().zip(self.executed.iter().filter_map(|metric| metric.event())) {
                    let each = numbers.get(event).copied().unwrap_or_default();
                    let runs = i64::try_from(of.count).unwrap_or(i64::MAX);
                    *sum = sum.saturating_add(runs.saturating_mul(each));
                }
            }
        }
    }

    /// Takes the counts of paths out of a tree, and gives them to the functions.
    fn count_below(&self, contexts: &ContextsKind, tree: &mut ContextTree, (all, scale): (&mut [CountedPaths], Scale)) {
        let numbers: FxHashMap<u32, usize> = (0..)
            .zip(&self.functions.all)
            .filter_map(|(n, f)| Some((contexts.number(f.plan.function())?, n)))
            .collect();
        let values = tree.take_values();
        // A call without a context of its own has that of its caller, which says nothing.
        let is_own = |context: &usize, of: &CountedValue| {
            tree.contexts.get(*context).is_some_and(|context| context.function == of.function)
        };
        for of in values {
            let found = numbers.get(&of.function).and_then(|n| self.functions.all.get(*n).zip(all.get_mut(*n)));
            let Some((f, counted)) = found else { continue };
            match f.plan.number(&of) {
                Some((number, count)) => {
                    let context = of.context.filter(|context| is_own(context, &of));
                    let values = f.plan.of_metrics().zip(of.metrics);
                    let values = values.map(|((metric, _), value)| metric.in_units(value, scale)).collect();
                    counted.by_context.push(PathOfContext { context, number, count, values });
                }
                None => counted.counts.late = counted.counts.late.saturating_add(of.count),
            }
        }
        for counted in all {
            counted.full = tree.full;
            counted.add_up(self.metrics.all.len());
        }
    }
}

impl Running for PathsKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        if self.metrics.is_empty() {
            self.metrics = PathMetrics::of(&self.options)?;
        }
        let PathsKind { options, functions, contexts, metrics, .. } = self;
        let metrics = Arc::new(metrics.clone());
        let named = whole::functions(asked, false)?;
        refuse_large(asked.modules, &named, &asked.request.functions.join(" "))?;
        if contexts.is_some() && named.len() >= VALUES as usize {
            let what = format!("paths of {} functions cannot be told apart by context at once", named.len());
            return Err(Error::new(Reason::TooManyFunctions, what, "name fewer functions"));
        }
        let mut all = contexts.as_mut().map_or_else(|| Ok(Vec::new()), |contexts| contexts.wanted(asked))?;
        let below = |function| {
            let contexts = contexts.as_ref()?;
            Some(BelowContexts { shape: contexts.shape(), function: contexts.number(function)? })
        };
        all.extend(functions.wanted_as_a_whole(asked, (&named, METRIC), |function, text| {
            PathsPlan::new((asked.modules, text), function, options.longest, (below(function), &metrics))
        }));
        Ok(all)
    }

    fn looks_first(&self, request: &EnableRequest) -> bool {
        self.contexts.as_ref().is_some_and(|contexts| contexts.looks_first(request))
    }

    fn reserved(&self) -> u64 {
        sizes::AWAITED
    }

    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        if let Some(contexts) = &mut self.contexts {
            contexts.prepare(at, wanted)?;
        }
        self.metrics.hold(at).inspect_err(|_| self.metrics.release(at))?;
        let tree = self.contexts.as_ref().and_then(ContextsKind::tree);
        if tree.is_some() || !self.metrics.is_empty() {
            for w in wanted.iter_mut().filter(|w| w.pair.metric == METRIC) {
                if let Some(plan) = self.functions.plan_of(w) {
                    w.instrumentation.variables = plan.variables(tree.unwrap_or_default(), &self.metrics);
                }
            }
        }
        Ok(self.functions.prepare(at, wanted.iter().filter(|w| w.pair.metric == METRIC)))
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        if let Some(contexts) = &mut self.contexts {
            contexts.inserted(at, begun);
        }
        if !self.has_begun {
            begun.keys.extend(self.metrics.held_keys(at.id()).map(|key| (key, None)));
            self.has_begun = true;
        }
        self.functions.inserted(at, begun);
    }

    fn failed(&mut self, at: &mut Locked<'_>) {
        if let Some(contexts) = &mut self.contexts {
            contexts.failed(at);
        }
        // Code that came earlier goes on.
        if !self.has_begun {
            self.metrics.release(at);
        }
        self.functions.failed();
    }

    fn tick(&mut self, at: &mut Locked<'_>) {
        if let Some(contexts) = &mut self.contexts {
            contexts.tick(at);
        }
    }

    /// Contexts are read later: their trees are so large that threads run on meanwhile. If the target has ended, its threads are not taken for ended ones
    /// yet, which have left their calls.
    fn last(&mut self, at: &mut Locked<'_>) {
        match &self.contexts {
            Some(contexts) if !at.has_ended() => self.states = Some(contexts.states(at)),
            _ => self.last = Some(self.read(at)),
        }
    }

    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let states = self.states.take();
        let last = self.last.take().or_else(|| Some(self.read_last(at, states?)));
        tell_last(last, removed);
    }
}

/// Number of the paths of a function, and the path with a number.
pub(super) fn inspected(
    modules: &Modules,
    function: FunctionId,
    PathChoice { number, longest }: PathChoice,
) -> Result<(u64, Option<InspectedPath>), Refusal> {
    let code = (None, &Arc::default());
    let (plan, _) = PathsPlan::new((modules, &text_of(modules, function.module)), function, longest, code)?;
    let graph = plan.graph();
    let at =
        |block: BlockId| graph.cfg.blocks.get(block).map(|block| Offset::between(graph.first.0, block.range.start.0));
    let possible = plan.paths.paths().unsigned_abs();
    let path = i64::try_from(number).ok().filter(|_| number < possible).and_then(|number| plan.paths.path(number));
    let path = path.map(|path| InspectedPath {
        number,
        possible,
        begins: path.begins,
        blocks: path.blocks.iter().filter_map(|block| at(*block)).collect(),
        ends: path.ends,
        next: path.next.and_then(at),
    });
    Ok((possible, path))
}

/// The values by key of a variable, of all threads together.
fn table(columns: &Columns<'_>, first: Option<&u32>, shape: Option<Shape>) -> KeyTable {
    first.zip(shape).map_or_else(KeyTable::default, |(first, shape)| columns.table(*first, shape))
}

/// The stack pointers of the outermost open calls of a function, each with its thread.
fn outermost_of(columns: &Columns<'_>, first: u32) -> Vec<(Option<Tid>, Avma)> {
    columns.of_threads(first + FRAME).map(|(tid, frame)| (tid, Avma(frame.cast_unsigned()))).collect()
}

/// Numbers of calls by outcome.
fn outcomes(columns: &Columns<'_>, first: u32) -> Activations {
    columns.together(Slots { first, shape: Shape::Counter }, &[first], Ruler::PLAIN).1
}
