//! A profile of the counts of paths.

use std::collections::BTreeMap;

use ingraft_model::{Activations, Avma, BlockId, EdgeId, IndexVec, Key, Tid};
use ingraft_profile::{FunctionPath, PathBegin};
use ingraft_report::{FunctionProfile, PathCount, PathInContext, PathProfile};
use rustc_hash::FxHashMap;

use crate::kinds::calls::call_sites;
use crate::kinds::profile::functions::Plan as _;
use crate::program::modules::Modules;

use super::plan::{PathNumberCounts, PathsPlan};

/// Largest number of blocks of all paths of a function in a profile. Paths beyond it, those that ran least, are not listed one by one.
const BLOCKS_MAX: usize = 400_000;

/// Counts of the code of a function.
#[derive(Clone, Debug, Default)]
pub struct CountedPaths {
    /// Whether the function has code.
    pub is_known: bool,
    /// The paths that have ended.
    pub counts: PathNumberCounts,
    /// The values of each metric by the number of the path.
    pub values: Vec<FxHashMap<i64, i64>>,
    /// The outcomes of its calls.
    pub outcomes: Activations,
    /// Number of paths that control has left for another way in to the same call.
    pub broken_off: u64,
    /// Number of calls in progress.
    pub open: u64,
    /// Number of outermost calls that were open at the end of their threads.
    pub left_at_end: u64,
    /// The outermost calls that had not ended, each with its thread and its stack pointer.
    pub outermost: Vec<(Option<Tid>, Avma)>,
    /// The paths that have ended, by context.
    pub by_context: Vec<PathOfContext>,
    /// Number of calls, and of paths of any function, without room in the tree of contexts.
    pub full: u64,
}

/// Runs of a path in a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOfContext {
    /// Index of the context; `None` if it is not known.
    pub context: Option<usize>,
    /// Number of the path.
    pub number: i64,
    /// Number of runs.
    pub count: u64,
    /// Value of each metric.
    pub values: Vec<i64>,
}

impl CountedPaths {
    /// Tells outermost calls that are in progress from those that were left without an exit, by the stack pointers of the threads at the moment of the
    /// counts. A call is in progress if its frame is still on the stack.
    pub fn tell_open(&mut self, stack_pointers: &FxHashMap<Tid, Avma>) {
        for (tid, frame) in std::mem::take(&mut self.outermost) {
            match tid.and_then(|tid| stack_pointers.get(&tid)) {
                Some(sp) if frame < *sp => self.outcomes.left += 1,
                Some(_) | None => self.open += 1,
            }
        }
        self.outcomes.left += std::mem::take(&mut self.left_at_end);
    }

    /// Adds up the runs of each path in all contexts, and the values of so many metrics.
    pub fn add_up(&mut self, metrics: usize) {
        let mut sums: BTreeMap<i64, u64> = BTreeMap::new();
        self.values = vec![FxHashMap::default(); metrics];
        for of in &self.by_context {
            let sum = sums.entry(of.number).or_default();
            *sum = sum.saturating_add(of.count);
            for (sums, value) in self.values.iter_mut().zip(&of.values) {
                let sum = sums.entry(of.number).or_default();
                *sum = sum.saturating_add(*value);
            }
        }
        self.counts.counts = sums.into_iter().collect();
    }

    /// The runs of the listed paths by context.
    fn listed_by_context(&self, paths: &[PathCount]) -> Vec<PathInContext> {
        let numbers: FxHashMap<u64, usize> = paths.iter().enumerate().map(|(n, path)| (path.number, n)).collect();
        let mut sums: BTreeMap<(usize, Option<usize>), PathInContext> = BTreeMap::new();
        for of in &self.by_context {
            if let Some(path) = numbers.get(&of.number.unsigned_abs()) {
                let (context, path) = (of.context, *path);
                let empty = || PathInContext { context, path, count: 0, values: vec![0; of.values.len()] };
                let sum = sums.entry((path, context)).or_insert_with(empty);
                sum.count = sum.count.saturating_add(of.count);
                sum.values.iter_mut().zip(&of.values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
            }
        }
        sums.into_values().collect()
    }

    /// The profile of the function. `module` is the index of its module. `family` tells whether fork children count too. A thread at an unknown place
    /// does not matter: the first path that it ends is one that began before.
    pub fn profile(&self, modules: &Modules, plan: &PathsPlan, module: usize, family: bool) -> FunctionProfile {
        let graph = plan.graph();
        let cfg = &graph.cfg;
        let mut blocks = IndexVec::filled(0_u64, cfg.blocks.len());
        let mut edges = IndexVec::filled(0_u64, cfg.edges.len());
        let mut calls = 0_u64;
        let (mut paths, mut listed, mut unlisted) = (Vec::new(), 0, 0_u64);
        let mut counts = self.counts.counts.clone();
        counts.sort_by_key(|(number, count)| (std::cmp::Reverse(*count), *number));
        for (number, count) in counts {
            let Some(path) = plan.paths.path(number) else { continue };
            let add = |sum: &mut u64| *sum = sum.saturating_add(count);
            path.blocks.iter().for_each(|block| blocks.get_mut(*block).into_iter().for_each(add));
            path.edges.iter().for_each(|edge| edges.get_mut(*edge).into_iter().for_each(add));
            if path.begins == PathBegin::Entry {
                calls = calls.saturating_add(count);
            }
            listed += path.blocks.len();
            match listed <= BLOCKS_MAX {
                true => paths.push(PathCount { values: self.values_of(number), ..listed_path(number, count, &path) }),
                false => unlisted = unlisted.saturating_add(count),
            }
        }
        let shared = shared_ways_out(cfg);
        let edge = |id: EdgeId| edges.get(id).copied().filter(|_| shared.get(id) != Some(&true));
        let block = |id: BlockId| blocks.get(id).copied().unwrap_or(0);
        let doubts = self.doubts(family);
        let missing = self.missing().filter(|_| self.is_known);
        let inexact: Vec<String> = doubts.iter().cloned().chain(missing).collect();
        let inexact = (!inexact.is_empty()).then(|| inexact.join("; "));
        let of = PathProfile {
            possible: plan.paths.paths().unsigned_abs(),
            is_cut: plan.paths.is_cut(),
            by_context: self.listed_by_context(&paths),
            paths,
            late: self.counts.late,
            unlisted: unlisted.saturating_add(self.counts.unplaced),
            open: self.open,
            left: self.left(),
            inexact: doubts,
        };
        let call_sites =
            graph.resolve(modules).map_or_else(Vec::new, |(file, _)| call_sites(file, graph, &|id| Some(block(id))));
        FunctionProfile { calls, call_sites, inexact, paths: Some(of), ..graph.profile(module, &block, &edge) }
    }

    /// The values of a path.
    fn values_of(&self, number: i64) -> Vec<i64> {
        self.values.iter().map(|of| of.get(&number).copied().unwrap_or(0)).collect()
    }

    /// Number of paths that were left in the middle.
    fn left(&self) -> u64 {
        self.outcomes.left.saturating_add(self.broken_off)
    }

    /// The reasons why paths may be wrong, in words; `None` if there are none.
    fn doubts(&self, family: bool) -> Option<String> {
        if !self.is_known {
            return Some("its code was taken out before the paths were read".to_owned());
        }
        if family {
            return Some("fork children count with the target, for another measurement".to_owned());
        }
        let Activations { unseen, unrecorded, .. } = self.outcomes;
        let doubts = in_words(&[
            (
                unseen,
                "call had begun before, and its paths may be wrong",
                "calls had begun before, and their paths may be wrong",
            ),
            (
                unrecorded,
                "call was too deep in others to be followed, and paths around it may be wrong",
                "calls were too deep in others to be followed, and paths around them may be wrong",
            ),
            (
                self.full,
                "call or path of some function had no room in the tree of contexts, and a count may be too small",
                "calls or paths of some functions had no room in the tree of contexts, and counts may be too small",
            ),
            (self.counts.unplaced, "path has no place in the table", "paths have no place in the table"),
        ]);
        (!doubts.is_empty()).then(|| doubts.join("; "))
    }

    /// The reasons why the counts of blocks and edges are smaller than the numbers of executions, in words; `None` if they are not.
    fn missing(&self) -> Option<String> {
        let missing = in_words(&[
            (self.counts.late, "path began before, and is not counted", "paths began before, and are not counted"),
            (
                self.open,
                "call is in progress, in a path that has not ended",
                "calls are in progress, in paths that have not ended",
            ),
            (self.left(), "path was left in the middle", "paths were left in the middle"),
        ]);
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}

/// Numbers with their nouns, without those that are 0.
fn in_words(numbers: &[(u64, &str, &str)]) -> Vec<String> {
    let shown = |(number, one, many): &(u64, &str, &str)| match number {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {many}")),
    };
    numbers.iter().filter_map(shown).collect()
}

fn listed_path(number: i64, count: u64, path: &FunctionPath) -> PathCount {
    PathCount {
        number: number.unsigned_abs(),
        begins: path.begins,
        blocks: path.blocks.iter().map(|block| block.index()).collect(),
        ends: path.ends,
        next: path.next.map(|block| block.index()),
        count,
        values: Vec::new(),
    }
}

/// For each edge, whether it is one of several ways out of its block, which a path does not tell apart.
fn shared_ways_out(cfg: &ingraft_model::Cfg) -> IndexVec<EdgeId, bool> {
    let mut ways = IndexVec::filled(0_u32, cfg.blocks.len());
    for edge in cfg.ways_out() {
        if let Some(ways) = ways.get_mut(edge.from) {
            *ways += 1;
        }
    }
    let leaves = |edge: &ingraft_model::Edge| !matches!(edge.to, ingraft_model::EdgeTarget::Block(_));
    cfg.edges.iter().map(|edge| leaves(edge) && ways.get(edge.from).is_some_and(|ways| *ways > 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_whose_frame_is_gone_was_left() {
        let frames = [(Some(Tid(1)), 0x7000), (Some(Tid(1)), 0x7100), (Some(Tid(2)), 0x10), (None, 0x10)];
        let outermost = frames.map(|(tid, frame)| (tid, Avma(frame))).to_vec();
        let mut counted = CountedPaths { outermost, left_at_end: 5, ..CountedPaths::default() };
        counted.tell_open(&FxHashMap::from_iter([(Tid(1), Avma(0x7100))]));
        assert_eq!((counted.open, counted.outcomes.left), (3, 6));
        counted.tell_open(&FxHashMap::default());
        assert_eq!((counted.open, counted.outcomes.left), (3, 6));
    }
}
