//! The plan to count the paths of one function, and the code for it.
//!
//! The activation record of each call keeps the sum of the call's caller, if that is the same function, and restores it however the call ends. A
//! call that began before the measurement has a sum that no path has, until it comes to the beginning of a path: its first path counts as late.

use std::collections::BTreeSet;
use std::sync::Arc;

use ingraft_codegen::TextSpace;
use ingraft_model::{
    BinaryOp, BlockId, CallRecord, Expr, FunctionBody, FunctionId, Insertion, Instrumentation, KeyField, KeyTable,
    MetricInfo, Parts, PointKind, Ranges, Refusal, Restore, Shape, Snippet, Stmt, TableKey, TableShape, ValueUnit,
    Variable, VariableId, VariableKind,
};
use ingraft_profile::{FunctionPaths, NotCounted, PathStep, ProbeAt};

use crate::api::PathsOptions;
use crate::kinds::code;
use crate::kinds::graph::{FunctionGraph, block_of};
use crate::kinds::profile::functions::Plan;
use crate::program::callees::may_return_twice;
use crate::program::modules::Modules;
use crate::weaving::trial;

/// Largest number of paths of a function whose counts have a place each. Others share the places of a table.
const PLACES: i64 = 1024;
/// Largest number of paths from a block to their ends, unless a request says otherwise.
const PATHS_MAX: i64 = 1 << 31;
/// The sum of a call that began before the measurement. What its code adds until the path ends is smaller.
const LATE: i64 = i64::MIN / 2;
/// The sum between the end of a path in front of a call that may return several times, and the call's return.
const NONE: i64 = i64::MIN / 4;

/// The variables of a function: the counts of its paths, the outcomes of its calls, the sum of a thread's present path, and the number of paths
/// that control has left for another way in to the same call.
const COUNTS: VariableId = VariableId(0);
const ACTIVATIONS: VariableId = VariableId(1);
const SUM: VariableId = VariableId(2);
const BROKEN_OFF: VariableId = VariableId(3);

/// The plan to count the paths of one function.
#[derive(Debug)]
pub struct PathsPlan {
    graph: FunctionGraph,
    /// The paths, and the places of their code.
    pub paths: FunctionPaths,
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
        let record = CallRecord { activations: ACTIVATIONS, kept: Vec::new(), restore: Some(Restore::Value(SUM)) };
        let begins = vec![
            Stmt::Open(record.clone(), vec![Stmt::Set(SUM, Expr::Const(LATE))]),
            Stmt::Set(SUM, Expr::Const(self.paths.entry())),
        ];
        let ends = vec![Stmt::Close(record, vec![Stmt::Set(SUM, Expr::Restored)])];
        let at = |point, parts, stmts| code::insertion(self.graph.function, point, parts, Snippet { stmts });
        // At a jump to another function the path ends, and the call goes on.
        let mut insertions = vec![
            at(PointKind::Entry, Parts::All, begins),
            at(PointKind::Exit, Parts::All, vec![self.count(0)]),
            at(PointKind::Exit, Parts::All, ends),
        ];
        let of_place = |(place, steps): (&ProbeAt, &Vec<PathStep>)| -> Option<Insertion> {
            let point = self.graph.point(*place)?;
            let stmts = steps.iter().flat_map(|step| self.stmts(*step)).collect();
            Some(at(point.kind(), Parts::One(point), stmts))
        };
        insertions.extend(self.paths.code().iter().filter_map(of_place));
        Instrumentation { variables: self.variables(), ..code::empty(insertions, metric) }
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
        options: &PathsOptions,
    ) -> Result<(PathsPlan, Arc<FunctionBody>), Refusal> {
        let (graph, module, f) = FunctionGraph::of(modules, function)?;
        let body = module.image.body(f)?;
        let copy = trial::copy(modules, function, &body, text)?;
        let probes = graph.probes(&copy);
        let sites = module.image.call_sites(f).unwrap_or_default();
        let twice = sites.iter().filter(|site| may_return_twice(module, function, site));
        let twice: BTreeSet<BlockId> = twice.filter_map(|site| block_of(&graph.cfg, site.at)).collect();
        let limit = options.longest.map_or(PATHS_MAX, |longest| i64::from(longest.get()));
        let paths =
            FunctionPaths::new(&graph.cfg, &probes, &twice, limit).map_err(|why| match (why, copy.why_exposed) {
                // A block that runs in the text has no code.
                (NotCounted::Block(_) | NotCounted::Activations, Some(exposed)) => exposed,
                (why, _) => graph.refusal(why),
            })?;
        Ok((PathsPlan { graph, paths }, body))
    }

    /// Among the counters of a pair, the first one of the calls' outcomes, and that of the paths that were broken off.
    pub fn outcomes(counters: &[u32]) -> Option<(u32, u32)> {
        let counter = |variable: VariableId| counters.get(variable.0 as usize).copied();
        counter(ACTIVATIONS).zip(counter(BROKEN_OFF))
    }

    /// The counts of the paths, by the values of all threads together.
    pub fn counts(&self, table: &KeyTable) -> PathNumberCounts {
        let mut read = PathNumberCounts::default();
        let others = u64::try_from(table.others).unwrap_or(0);
        match self.vector() {
            Some(_) => read.late = others,
            None => read.unplaced = others,
        }
        for (key, count) in &table.values {
            let (TableKey::Number(number), Ok(count)) = (key, u64::try_from(*count)) else { continue };
            match number.cast_signed() {
                number if (0..self.paths.paths()).contains(&number) => read.counts.push((number, count)),
                _ => read.late += count,
            }
        }
        read
    }

    fn variables(&self) -> Arc<[Variable]> {
        let counts = self.vector().map_or(Shape::Table(TableShape::SUMS), |ranges| Shape::Vector(ranges.count()));
        let variable = |name: &str, kind, shape| Variable {
            name: name.to_owned(),
            kind,
            shape,
            unit: ValueUnit::Plain,
            sampled: kind == VariableKind::Activations,
        };
        [
            variable("paths", VariableKind::Counter, counts),
            variable("activations", VariableKind::Activations, Shape::Activations),
            variable("sum", VariableKind::PathSum, Shape::Counter),
            variable("broken off", VariableKind::Counter, Shape::Counter),
        ]
        .into()
    }

    /// The numbers of the paths, if each has a place of its own.
    fn vector(&self) -> Option<Ranges> {
        let paths = self.paths.paths();
        u32::try_from(paths).ok().filter(|_| paths <= PLACES).and_then(Ranges::numbers)
    }

    /// Counts the path whose number is the sum plus a number.
    fn count(&self, plus: i64) -> Stmt {
        let sum = Expr::Variable(SUM);
        let number = match plus {
            0 => sum,
            plus => Expr::Binary(BinaryOp::Add, Box::new(sum), Box::new(Expr::Const(plus))),
        };
        match self.vector() {
            Some(ranges) => Stmt::AddIn(COUNTS, ranges, number, Expr::Const(1)),
            None => Stmt::AddAt(COUNTS, TableShape::SUMS, vec![KeyField::Number(number)], Expr::Const(1)),
        }
    }

    fn stmts(&self, step: PathStep) -> Vec<Stmt> {
        let set = |value| Stmt::Set(SUM, Expr::Const(value));
        match step {
            PathStep::Begin(value) => {
                let operands = [Expr::Variable(SUM), Expr::Const(NONE)].map(Box::new);
                let [sum, none] = operands;
                let broken_off = vec![Stmt::Add(BROKEN_OFF, Expr::Const(1))];
                // Calls that were left would set the sum back later.
                vec![Stmt::Prune, Stmt::If(Expr::Binary(BinaryOp::NotEqual, sum, none), broken_off), set(value)]
            }
            PathStep::Add(value) => vec![Stmt::Add(SUM, Expr::Const(value))],
            PathStep::End(value) => vec![self.count(value), set(NONE)],
            PathStep::Turn(ends, begins) => vec![self.count(ends), set(begins)],
        }
    }
}
