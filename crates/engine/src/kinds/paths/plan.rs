//! The plan to count the paths of one function, and the code for it.
//!
//! Each function has a sum of its own. So only a call inside of another one of the function needs an activation record, which keeps the sum of the outer
//! call, and restores it however the inner one ends ([`ingraft_model::outermost`]). If the code of contexts or of metrics has a record for each call
//! anyway, so have paths.
//!
//! A call that began before the measurement has a sum that no path has, until it comes to the beginning of a path: its first path counts as late.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use ingraft_codegen::TextSpace;
use ingraft_model::contexts::{CURRENT, VALUES};
use ingraft_model::{
    BinaryOp, BlockId, CallRecord, ContextShape, CountedValue, EVENT_NAMES, Expr, FunctionBody, FunctionId, Insertion,
    Instrumentation, KeyField, KeyTable, MetricInfo, Parts, Placing, PointKind, Ranges, Refusal, Restore, Shape,
    Snippet, Stmt, TableKey, TableShape, Variable, VariableId, VariableKind,
};
use ingraft_profile::{FunctionPaths, NotCounted, PathStep, ProbeAt};

use crate::kinds::code;
use crate::kinds::graph::{FunctionGraph, block_of};
use crate::kinds::profile::functions::Plan;
use crate::program::callees::may_return_twice;
use crate::program::modules::Modules;
use crate::weaving::trial;

use super::metrics::{MeasuredMetric, PathMetrics};

/// Largest number of paths of a function whose counts have a place each. Others share the places of a table.
const PLACES: i64 = 8192;
/// Largest number of paths from a block to their ends, unless a request says otherwise.
const PATHS_MAX: i64 = 1 << 31;
/// The same for a function with so many paths below contexts that their numbers would have too many bits.
const PATHS_FEW: i64 = 1 << 26;
/// Number of paths of a function whose numbers have few enough bits below contexts.
const PATHS_BELOW_MAX: i64 = 1 << 44;
/// Values of the sum that mean no path. The code adds numbers to it that are much smaller than the distances between these values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SumValues {
    /// Sum of the path with the number 0. It is not 0: of a call that began before the measurement and could not be caught up, the sum is 0 at first.
    base: i64,
    /// Sum of a call that began before the measurement.
    late: i64,
    /// Sum between the end of a path in front of a call that may return several times, and the call's return.
    none: i64,
}

/// Largest number of paths of a function whose sums fit into an instruction, and stay far from the values that mean no path.
const SHORT_MAX: i64 = 1 << 26;
/// Values for functions with so many paths: instructions can hold them.
const SHORT: SumValues = SumValues { base: 1 << 30, late: -(1 << 30), none: -(1 << 29) };
/// Values for functions with more paths.
const LONG: SumValues = SumValues { base: 1 << 61, late: -(1 << 61), none: -(1 << 60) };

/// Values for functions with more paths, below contexts.
const BELOW: SumValues = SumValues { base: 1 << 45, late: -(1 << 45), none: -(1 << 44) };

/// The variables of a function: the counts of its paths, the outcomes of its calls, the sum of a thread's present path, and the number of paths
/// that control has left for another way in to the same call. Below contexts, the first one is 0, and the tree has the counts.
const COUNTS: VariableId = VariableId(0);
const ACTIVATIONS: VariableId = VariableId(1);
const SUM: VariableId = VariableId(2);
const BROKEN_OFF: VariableId = VariableId(3);
const TREE: VariableId = VariableId(4);

/// The plan to count the paths of one function.
#[derive(Debug)]
pub struct PathsPlan {
    graph: FunctionGraph,
    /// The paths, and the places of their code.
    pub paths: FunctionPaths,
    /// The tree below whose contexts the paths are counted.
    below: Option<BelowContexts>,
    /// The metrics that are added up for each path.
    metrics: Arc<PathMetrics>,
}

/// Numbers of events of each kind on a path, in the order of [`EVENT_NAMES`].
pub type ExecutedNumbers = [i64; EVENT_NAMES.len()];

/// The tree below whose contexts paths are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BelowContexts {
    /// Size of the tree.
    pub shape: ContextShape,
    /// Number of the function among those whose contexts are told apart.
    pub function: u32,
}

/// Counts of the paths of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathNumberCounts {
    /// The paths that ended, by number.
    pub counts: Vec<(i64, u64)>,
    /// Number of paths that ended and had begun before the measurement.
    pub late: u64,
    /// Number of paths that ended and for whose numbers there was no place.
    pub unplaced: u64,
}

impl Plan for PathsPlan {
    fn graph(&self) -> &FunctionGraph {
        &self.graph
    }

    /// None: the code of paths has variables of its own.
    fn places(&self) -> &[ProbeAt] {
        &[]
    }

    fn instrumentation(&self, metric: Arc<MetricInfo>) -> Instrumentation {
        let restore = if self.has_outermost() { Restore::Outermost(SUM) } else { Restore::Value(SUM) };
        let record = CallRecord { activations: ACTIVATIONS, kept: Vec::new(), restore: Some(restore) };
        let first = self.first_metric();
        let mut begins = self.metrics.entry(first);
        begins.push(Stmt::Open(record.clone(), vec![Stmt::Set(SUM, Expr::Const(self.values().late))]));
        begins.push(self.set(self.paths.entry()));
        let mut ends_path = self.end(0);
        let mut ends = Vec::new();
        if self.has_outermost() {
            ends.push(Stmt::Close(record, Vec::new()));
        } else {
            // After a call without a record, the path of the caller is not known any more, if it is a call of the same function.
            ends_path.push(Stmt::Set(SUM, Expr::Const(self.values().late)));
            ends.push(Stmt::Close(record, vec![Stmt::Set(SUM, Expr::Restored)]));
        }
        ends.extend(self.metrics.exit(first));
        let at = |point, parts, stmts| code::insertion(self.graph.function, point, parts, Snippet { stmts });
        // A jump to another function ends the path and the record, because no other call needs the sum of this one any more.
        let mut insertions = vec![
            at(PointKind::Entry, Parts::All, begins),
            at(PointKind::Exit, Parts::All, ends_path),
            at(PointKind::Exit, Parts::All, ends),
        ];
        let of_place = |(place, steps): (&ProbeAt, &Vec<PathStep>)| -> Option<Insertion> {
            let point = self.graph.point(*place)?;
            let stmts = steps.iter().flat_map(|step| self.stmts(*step)).collect();
            Some(at(point.kind(), Parts::One(point), stmts))
        };
        insertions.extend(self.paths.code().iter().filter_map(of_place));
        let placing = Placing::InCopy;
        let (variables, event) = (self.variables(0, &self.metrics), self.metrics.counter());
        Instrumentation { variables, placing, event, ..code::empty(insertions, metric) }
    }
}

impl PathsPlan {
    /// Plans the paths of a function. Fails if code cannot tell them all.
    ///
    /// The places where code can run are those of a copy on trial. `text` is the text of the module with nothing woven into it. Also returns the
    /// function, which was analysed as a whole: the insertion needs it again, and the image has it as long as somebody holds it.
    pub fn new(
        (modules, text): (&Modules, &TextSpace),
        function: FunctionId,
        longest: Option<NonZeroU32>,
        (below, metrics): (Option<BelowContexts>, &Arc<PathMetrics>),
    ) -> Result<(PathsPlan, Arc<FunctionBody>), Refusal> {
        let (graph, module, f) = FunctionGraph::of(modules, function)?;
        let body = module.image.body(f)?;
        let copy = trial::copy(modules, function, &body, text)?;
        let probes = graph.probes(&copy);
        let sites = module.image.call_sites(f).unwrap_or_default();
        let twice = sites.iter().filter(|site| may_return_twice(module, function, site));
        let twice: BTreeSet<BlockId> = twice.filter_map(|site| block_of(&graph.cfg, site.at)).collect();
        let limit = longest.map_or(PATHS_MAX, |longest| i64::from(longest.get()));
        let numbered = |limit| {
            FunctionPaths::new(&graph.cfg, &probes, &twice, limit).map_err(|why| match (why, &copy.why_exposed) {
                // A block that runs in the text has no code.
                (NotCounted::Block(_) | NotCounted::Activations, Some(exposed)) => exposed.clone(),
                (why, _) => graph.refusal(why),
            })
        };
        let mut paths = numbered(limit)?;
        if below.is_some() && paths.paths() > PATHS_BELOW_MAX {
            paths = numbered(limit.min(PATHS_FEW))?;
        }
        Ok((PathsPlan { graph, paths, below, metrics: Arc::clone(metrics) }, body))
    }

    /// The function.
    pub fn function(&self) -> FunctionId {
        self.graph.function
    }

    /// Among the counters of a pair, the first one of the calls' outcomes, and that of the paths that were broken off.
    pub fn outcomes(counters: &[u32]) -> Option<(u32, u32)> {
        let counter = |variable: VariableId| counters.get(variable.0 as usize).copied();
        counter(ACTIVATIONS).zip(counter(BROKEN_OFF))
    }

    /// Among the counters of a pair, the first one of the outermost call; `None` if that has a record.
    pub fn outermost(&self, counters: &[u32]) -> Option<u32> {
        counters.get(SUM.0 as usize).copied().filter(|_| self.has_outermost())
    }

    /// Whether the outermost call of the function needs no record.
    fn has_outermost(&self) -> bool {
        self.below.is_none() && self.metrics.is_empty()
    }

    /// The counts of the paths, by the values of all threads together.
    pub fn counts(&self, table: &KeyTable) -> PathNumberCounts {
        let mut read = PathNumberCounts::default();
        let others = u64::try_from(table.others).unwrap_or(0);
        match self.vector() {
            Some(_) => read.late = others,
            None => read.unplaced = others,
        }
        for (number, count) in self.by_number(table) {
            let Ok(count) = u64::try_from(count) else { continue };
            match number {
                Some(number) => read.counts.push((number, count)),
                None => read.late += count,
            }
        }
        read
    }

    /// The values of a table or vector, each with the number of its path; `None` for those of paths that began before the measurement.
    pub fn by_number<'t>(&self, table: &'t KeyTable) -> impl Iterator<Item = (Option<i64>, i64)> + use<'t> {
        // A vector has the indexes of the numbers in its range.
        let (first, paths) = (if self.vector().is_some() { 0 } else { self.values().base }, self.paths.paths());
        table.values.iter().filter_map(move |(key, value)| {
            let TableKey::Number(number) = key else { return None };
            let number = number.cast_signed().wrapping_sub(first);
            Some(((0..paths).contains(&number).then_some(number), *value))
        })
    }

    /// The metrics, each with the variable that has its values. Of paths below contexts, the tree has the values.
    pub fn of_metrics(&self) -> impl Iterator<Item = (&MeasuredMetric, VariableId)> {
        self.metrics.ids(self.first_metric()).map(|(metric, ids)| (metric, ids.values))
    }

    /// The count of a path below its context: the number of the path and its count. `None` if the path had begun before the measurement.
    pub fn number(&self, of: &CountedValue) -> Option<(i64, u64)> {
        let number = of.value.wrapping_sub(self.values().base);
        (0..self.paths.paths()).contains(&number).then_some((number, of.count))
    }

    /// Numbers of events in one run of a path; `None` if there is no such path.
    pub fn executed(&self, number: i64) -> Option<ExecutedNumbers> {
        let path = self.paths.path(number)?;
        let mut sums = ExecutedNumbers::default();
        for of in path.blocks.iter().filter_map(|block| self.graph.events.get(*block)) {
            sums.iter_mut().zip(of.numbers()).for_each(|(sum, number)| *sum += i64::from(number));
        }
        Some(sums)
    }

    /// The variables of the function. `tree` is the first counter of the tree of contexts, if there is one, and `metrics` are those of the plan,
    /// with the counters that all functions share.
    pub fn variables(&self, tree: u32, metrics: &PathMetrics) -> Arc<[Variable]> {
        let counts = match self.below {
            Some(_) => Shape::Counter,
            None => self.vector().map_or(Shape::Table(TableShape::SUMS), |ranges| Shape::Vector(ranges.count())),
        };
        let alias = |name, counter| code::named(name, VariableKind::Scratch, Shape::Alias(counter));
        let of_tree = self.below.map(|_| [alias("tree", tree), alias("current", tree + CURRENT)]);
        let sum = if self.has_outermost() { Shape::Outermost } else { Shape::Counter };
        let own = [
            code::named("paths", VariableKind::Counter, counts),
            code::named("activations", VariableKind::Activations, Shape::Activations),
            code::named("sum", VariableKind::PathSum, sum),
            code::named("broken off", VariableKind::Counter, Shape::Counter),
        ];
        own.into_iter().chain(of_tree.into_iter().flatten()).chain(metrics.variables(counts)).collect()
    }

    /// The sums that with this number added are those of paths, if each path has a place of its own.
    fn vector_from(&self, plus: i64) -> Option<Ranges> {
        let paths = self.paths.paths();
        if paths <= PLACES { Ranges::new(SHORT.base.checked_sub(plus)?, paths, 1) } else { None }
    }

    fn vector(&self) -> Option<Ranges> {
        self.vector_from(0)
    }

    fn values(&self) -> SumValues {
        match self.below {
            _ if self.paths.paths() <= SHORT_MAX => SHORT,
            Some(_) => BELOW,
            None => LONG,
        }
    }

    /// Lets a path begin whose values add up to this number so far.
    fn set(&self, sum: i64) -> Stmt {
        Stmt::Set(SUM, Expr::Const(self.values().base.wrapping_add(sum)))
    }

    /// Number of the first variable of metrics.
    fn first_metric(&self) -> u32 {
        if self.below.is_some() { TREE.0 + 2 } else { TREE.0 }
    }

    /// Ends the path whose number is the sum plus a number: counts it, and adds to its metrics.
    fn end(&self, plus: i64) -> Vec<Stmt> {
        let (first, number) = (self.first_metric(), number(plus));
        let Some(BelowContexts { shape, function }) = self.below else {
            let add = |_, values, amount| self.add(values, plus, amount);
            return [self.metrics.end(first, &add), vec![self.add(COUNTS, plus, Expr::Const(1))]].concat();
        };
        let function = VALUES | function;
        if self.metrics.is_empty() {
            return vec![Stmt::CountBelow(TREE, shape, function, number)];
        }
        let add = |metric, _, amount| Stmt::AddContext(TREE, shape, metric, amount);
        let enter = vec![Stmt::EnterValue(TREE, shape, function, None, number)];
        [enter, self.metrics.end(first, &add), vec![Stmt::LeaveValue(TREE, shape)]].concat()
    }

    /// Adds an amount to the value of the path whose number is the sum plus a number.
    fn add(&self, values: VariableId, plus: i64, amount: Expr) -> Stmt {
        match self.vector_from(plus) {
            Some(ranges) => Stmt::AddIn(values, ranges, Expr::Variable(SUM), amount),
            None => Stmt::AddAt(values, TableShape::SUMS, vec![KeyField::Number(number(plus))], amount),
        }
    }

    fn stmts(&self, step: PathStep) -> Vec<Stmt> {
        let none = Expr::Const(self.values().none);
        match step {
            PathStep::Begin(value) => {
                let [sum, none] = [Expr::Variable(SUM), none].map(Box::new);
                let broken_off = vec![Stmt::Add(BROKEN_OFF, Expr::Const(1))];
                // Calls that were left would set the sum back later.
                let mut stmts = vec![Stmt::Prune, Stmt::If(Expr::Binary(BinaryOp::NotEqual, sum, none), broken_off)];
                stmts.extend(self.metrics.begin(self.first_metric()));
                stmts.push(self.set(value));
                stmts
            }
            PathStep::Add(value) => vec![Stmt::Add(SUM, Expr::Const(value))],
            PathStep::End(value) => [self.end(value), vec![Stmt::Set(SUM, none)]].concat(),
            PathStep::Turn(ends, begins) => [self.end(ends), vec![self.set(begins)]].concat(),
        }
    }
}

/// The sum plus a number.
fn number(plus: i64) -> Expr {
    let sum = Expr::Variable(SUM);
    if plus == 0 { sum } else { Expr::Binary(BinaryOp::Add, Box::new(sum), Box::new(Expr::Const(plus))) }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Block, Cfg, Edge, EdgeKind, EdgeTarget, IndexVec, ModuleId, Svma, WayIn, WayInReason};
    use ingraft_profile::Probes;

    use crate::api::{PathMetric, PathsOptions};
    use crate::weaving::cost::{Metered, Meters};

    use super::*;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    /// A function of blocks of 16 bytes, from block 0 to the exit at the last one. `pads` are landing pads.
    fn plan(blocks: u32, edges: &[(u32, u32)], pads: &[u32], longest: i64) -> PathsPlan {
        let at = |n: u32| Svma(0x100 + 16 * u64::from(n));
        let mut all: Vec<Edge> = edges
            .iter()
            .map(|(from, to)| Edge { from: BlockId(*from), to: EdgeTarget::Block(BlockId(*to)), kind: EdgeKind::Taken })
            .collect();
        all.push(Edge { from: BlockId(blocks - 1), to: EdgeTarget::Dynamic, kind: EdgeKind::Return });
        all.sort_unstable();
        let mut ways_in = vec![WayIn { at: at(0), reason: WayInReason::Entry }];
        ways_in.extend(pads.iter().map(|pad| WayIn { at: at(*pad), reason: WayInReason::LandingPad }));
        let cfg = Cfg {
            blocks: (0..blocks).map(|n| Block { range: at(n)..at(n + 1), instructions: 4 }).collect(),
            edges: all.into(),
            entry: Some(BlockId(0)),
            ways_in,
            unresolved: Vec::new(),
            ways_in_proven: Ok(()),
            ways_out_proven: Ok(()),
        };
        let inner = cfg.edges.iter().map(|edge| matches!(edge.to, EdgeTarget::Block(_)));
        let probes = Probes { edges: inner.collect(), blocks: IndexVec::filled(true, cfg.blocks.len()) };
        let paths = FunctionPaths::new(&cfg, &probes, &BTreeSet::new(), longest).expect("paths");
        let (symbol, name) = ("f".to_owned(), "f".to_owned());
        let events = IndexVec::default();
        let graph = FunctionGraph { function: F, symbol, name, first: at(0), size: 0, cfg, events };
        PathsPlan { graph, paths, below: None, metrics: Arc::default() }
    }

    fn texts(plan: &PathsPlan) -> Vec<String> {
        let code = plan.instrumentation(code::metric_named("paths"));
        code.insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect()
    }

    #[test]
    fn a_loop_ends_a_path_and_begins_another_one() {
        assert_eq!(
            texts(&plan(3, &[(0, 1), (1, 1), (1, 2)], &[], PATHS_MAX)),
            [
                "Entry open r1 inside v2 { v2 = -1073741824; } v2 = 1073741825;",
                "Exit v0[(v2 - 1073741824) / 1 < 4] += 1;",
                "Exit close r1 inside v2 { }",
                "Edge v0[(v2 - 1073741825) / 1 < 4] += 1; v2 = 1073741827;",
            ]
        );
    }

    #[test]
    fn the_number_of_calls_tells_how_often_other_code_runs() {
        let plan = plan(4, &[(0, 1), (0, 2), (1, 2), (2, 2), (2, 3)], &[], PATHS_MAX);
        let mut code = plan.instrumentation(code::metric_named("paths"));
        Meters::default().apply(&mut code, &mut Metered::default());
        let meters = |i: &Insertion| i.snippet.to_string().matches("++").count();
        let all: Vec<_> = code.insertions.iter().map(|i| (i.point, meters(i))).collect();
        let [entry, exits @ ..] = all.as_slice() else { panic!("no code") };
        assert_eq!(*entry, (PointKind::Entry, 1));
        assert_eq!(exits[..2], [(PointKind::Exit, 0); 2]);
        // An addition to the sum costs as little as a meter, and the ends of paths are counted together.
        let texts = texts(&plan);
        for ((_, meters), text) in exits[2..].iter().zip(&texts[3..]) {
            assert_eq!(*meters, 0, "{text}");
        }
        assert!(texts[3..].iter().any(|text| !text.contains(" = ")), "{texts:?}");
    }

    #[test]
    fn what_passes_on_a_path_is_added_at_its_end() {
        let metrics = |options: PathsOptions| Arc::new(PathMetrics::of(&options).expect("metrics"));
        let mut plan = plan(3, &[(0, 1), (1, 1), (1, 2)], &[], PATHS_MAX);
        plan.metrics = metrics(PathsOptions { metrics: vec![PathMetric::WallTime], ..PathsOptions::default() });
        assert_eq!(
            texts(&plan),
            [
                "Entry v5 += (now since v6); open r7 restore v5 { v5 = 0; } open r1 restore v2 { v2 = -1073741824; } \
                 v2 = 1073741825;",
                "Exit v4[(v2 - 1073741824) / 1 < 4] += ((now since v6) + v5); v5 = 0; \
                 v0[(v2 - 1073741824) / 1 < 4] += 1; v2 = -1073741824;",
                "Exit close r1 restore v2 { v2 = restored; } close r7 restore v5 { v5 = restored; }",
                "Edge v4[(v2 - 1073741825) / 1 < 4] += ((now since v6) + v5); v5 = 0; \
                 v0[(v2 - 1073741825) / 1 < 4] += 1; v2 = 1073741827;",
            ]
        );
        let options = PathsOptions { event: Some("cycles".into()), callees: true, ..PathsOptions::default() };
        plan.metrics = metrics(options.clone());
        assert_eq!(options.names().collect::<Vec<_>>(), ["cycles", "total_cycles"]);
        let all = texts(&plan);
        assert!(all[0].contains("open r11 restore v9 { } v9 = (event v12 + 1); open r1"), "{}", all[0]);
        assert!(all[1].contains("v8[(v2 - 1073741824) / 1 < 4] += ((event v12 + 1) since v9);"), "{}", all[1]);
        assert!(all[2].ends_with("close r11 restore v9 { v9 = restored; } close r7 restore v5 { v5 = restored; }"));
        assert_eq!(plan.variables(0, &plan.metrics).len(), 13);
        assert_eq!(plan.instrumentation(code::metric_named("paths")).event.as_deref(), Some("cycles"));
        plan.below = Some(BelowContexts { shape: ContextShape::usual(true, false), function: 7 });
        assert_eq!(
            texts(&plan)[1],
            "Exit enter value v4 65543 v2; v4 metric 0 += (((event v14 + 1) since v8) + v7); v7 = 0; \
             v4 metric 1 += ((event v14 + 1) since v11); leave value v4; v2 = -1073741824;"
        );
    }

    #[test]
    fn paths_are_values_below_their_contexts() {
        let shape = ContextShape::usual(false, false);
        let mut plan = plan(3, &[(0, 1), (1, 1), (1, 2)], &[], PATHS_MAX);
        plan.below = Some(BelowContexts { shape, function: 7 });
        assert_eq!(
            texts(&plan)[1..],
            [
                "Exit count below v4 65543 v2; v2 = -1073741824;",
                "Exit close r1 restore v2 { v2 = restored; }",
                "Edge count below v4 65543 (v2 + -1); v2 = 1073741827;",
            ]
        );
        let counted = |value| CountedValue { context: None, function: 7, value, count: 3, metrics: [0; 4] };
        assert_eq!(plan.number(&counted(SHORT.base + 2)), Some((2, 3)));
        for value in [SHORT.late + 1, SHORT.base - 1, SHORT.base + 4, 0] {
            assert_eq!(plan.number(&counted(value)), None);
        }
        assert_eq!(plan.variables(9, &plan.metrics)[4..].len(), 2);
    }

    #[test]
    fn a_landing_pad_ends_the_calls_that_were_left_and_begins_a_path() {
        let all = texts(&plan(3, &[(0, 2), (1, 2)], &[1], PATHS_MAX));
        assert_eq!(all[3..], ["Block prune; if ((v2 != -536870912)) { v3++; } v2 = 1073741825;"]);
    }

    #[test]
    fn many_paths_share_the_places_of_a_table() {
        let diamonds = |n: u32| (0..n).flat_map(|n| [(2 * n, 2 * n + 1), (2 * n, 2 * n + 2), (2 * n + 1, 2 * n + 2)]);
        let edges: Vec<(u32, u32)> = diamonds(14).collect();
        let plan = plan(29, &edges, &[], PATHS_MAX);
        assert_eq!(plan.paths.paths(), 1 << 14);
        assert!(matches!(plan.variables(0, &plan.metrics)[0].shape, Shape::Table(_)));
        let key = |number: i64| TableKey::Number(number.cast_unsigned());
        assert_eq!(plan.values(), SHORT);
        let values = [(key(SHORT.base + 7), 3), (key(SHORT.late + 1), 4), (key(5), 1)].into_iter().collect();
        let read = plan.counts(&KeyTable { values, others: 2, ..KeyTable::default() });
        assert_eq!(read, PathNumberCounts { counts: vec![(7, 3)], late: 5, unplaced: 2 });
    }
}
