//! Paths of functions: random walks through random control-flow graphs execute the code, and the paths that it tells, one after the other, must
//! be the way that the walk has taken. Walks pass landing pads, calls that end in exceptions, and calls that return again.

use std::collections::BTreeSet;

use ingraft_model::{BlockId, Cfg, EdgeId, EdgeKind, EdgeTarget, IndexVec, Key};
use ingraft_profile::{FunctionPaths, NotCounted, PathBegin, PathEnd, PathStep, ProbeAt, Probes};
use proptest::prelude::*;

use crate::runs::{cfg, edge, random_cfg};

const NO_LIMIT: i64 = i64::MAX;

/// An activation that executes the code of paths.
struct Activation<'a> {
    paths: &'a FunctionPaths,
    sum: i64,
    /// The numbers that the code has told.
    told: Vec<i64>,
    /// The way since the beginning, without what belongs to paths that were left.
    blocks: Vec<BlockId>,
    edges: Vec<EdgeId>,
}

impl Activation<'_> {
    fn run(&mut self, at: ProbeAt) {
        for step in self.paths.code().get(&at).into_iter().flatten() {
            match step {
                PathStep::Begin(value) => self.sum = *value,
                PathStep::Add(value) => self.sum = self.sum.wrapping_add(*value),
                PathStep::End(value) => self.told.push(self.sum.wrapping_add(*value)),
                PathStep::Turn(ends, begins) => {
                    self.told.push(self.sum.wrapping_add(*ends));
                    self.sum = *begins;
                }
            }
        }
    }

    /// Forgets the way since the last path ended.
    fn leave(&mut self) {
        let (blocks, edges) = self.told_way();
        self.blocks.truncate(blocks.len());
        self.edges.truncate(edges.len());
    }

    /// The way by the numbers that the code has told.
    fn told_way(&self) -> (Vec<BlockId>, Vec<EdgeId>) {
        let paths: Vec<_> =
            self.told.iter().map(|number| self.paths.path(*number).expect("the number of a path")).collect();
        let blocks = paths.iter().flat_map(|path| path.blocks.clone()).collect();
        (blocks, paths.into_iter().flat_map(|path| path.edges).collect())
    }
}

/// Walks along the edges as the choices say, and compares the way of each activation with what the code has told.
fn check(cfg: &Cfg, paths: &FunctionPaths, twice: &BTreeSet<BlockId>, choices: &[u8]) {
    let (roots, mut choices) = (cfg.roots(), choices.iter().map(|choice| usize::from(*choice)));
    while let Some(choice) = choices.next() {
        let root = roots[choice % roots.len()];
        let (told, blocks, edges) = (Vec::new(), Vec::new(), Vec::new());
        let mut of = Activation { paths, sum: paths.entry(), told, blocks, edges };
        let mut returns: Vec<EdgeId> = Vec::new();
        let mut at = Some(root);
        let mut exits = false;
        while let Some(block) = at.take() {
            of.run(ProbeAt::Block(block));
            of.blocks.push(block);
            let out: Vec<_> = cfg.edges_from(block).collect();
            let Some(choice) = choices.next().filter(|_| !out.is_empty()) else { break };
            let mut id = out[choice % out.len()].0;
            let edge = |id| *cfg.edges.get(id).expect("an edge");
            let calls = edge(id).kind == EdgeKind::CallReturn;
            if twice.contains(&block) {
                returns.push(id);
            } else if calls && choice % 5 == 4 {
                break;
            }
            if calls
                && choice % 7 == 6
                && let Some(again) = returns.last()
            {
                of.leave();
                id = *again;
            }
            of.run(ProbeAt::Edge(id));
            of.edges.push(id);
            match edge(id).to {
                EdgeTarget::Block(to) => at = Some(to),
                EdgeTarget::Outside(_) | EdgeTarget::Dynamic => {
                    of.told.push(of.sum);
                    exits = true;
                }
            }
        }
        if !exits {
            of.leave();
        }
        let (blocks, mut edges) = of.told_way();
        // Code at the beginning of a block may tell the only edge that leaves it.
        if !exits && edges.len() == of.edges.len() + 1 {
            edges.pop();
        }
        assert_eq!((blocks, edges), (of.blocks, of.edges), "{:?}", of.told);
        if let Some(first) = of.told.first().and_then(|first| paths.path(*first)) {
            assert_eq!(first.begins == PathBegin::Entry, Some(root) == cfg.entry);
        }
        if let Some(last) = of.told.last().and_then(|last| paths.path(*last)).filter(|_| exits) {
            assert_eq!(last.ends, PathEnd::Exit);
        }
    }
}

/// Probes at the places of which the choices say so.
fn some(cfg: &Cfg, choices: &[bool]) -> Probes {
    let mut choices = choices.iter().copied().cycle();
    let mut choose = || choices.next().unwrap_or(true) || choices.next().unwrap_or(true);
    let edges = cfg.edges.iter().map(|edge| choose() && matches!(edge.to, EdgeTarget::Block(_))).collect();
    Probes { edges, blocks: cfg.blocks.iter().map(|_| choose()).collect() }
}

fn all(cfg: &Cfg) -> Probes {
    some(cfg, &[true])
}

/// Some of the blocks that end in calls.
fn some_calls(cfg: &Cfg, choose: u8) -> BTreeSet<BlockId> {
    let calls = cfg.edges.iter().filter(|edge| edge.kind == EdgeKind::CallReturn);
    calls.map(|edge| edge.from).filter(|block| choose >> (block.0 % 8) & 1 != 0).collect()
}

/// Whether a block is one that control can come to from outside, and along an edge too: no code tells the two.
fn is_shared(cfg: &Cfg, block: BlockId) -> bool {
    let into = cfg.edges.iter().filter(|edge| edge.to == EdgeTarget::Block(block)).count();
    Some(block) != cfg.entry && into > 0 && cfg.roots().contains(&block)
}

proptest! {
    #[test]
    fn paths_are_the_way_of_the_walk(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        places in prop::collection::vec(any::<bool>(), 1..30),
        again: u8,
        limit in prop_oneof![Just(NO_LIMIT), 1i64..9],
    ) {
        let twice = some_calls(&cfg, again);
        for probes in [all(&cfg), some(&cfg, &places)] {
            let complete = probes == all(&cfg);
            match FunctionPaths::new(&cfg, &probes, &twice, limit) {
                Ok(paths) => {
                    check(&cfg, &paths, &twice, &choices);
                    let numbers = 0..paths.paths().min(100);
                    let different: BTreeSet<_> = numbers.clone().map(|n| format!("{:?}", paths.path(n))).collect();
                    prop_assert_eq!(different.len(), numbers.count());
                    prop_assert_eq!(paths.path(paths.paths()), None);
                }
                Err(NotCounted::Block(block)) if complete => prop_assert!(is_shared(&cfg, block), "{}", block),
                Err(why) => prop_assert!(!complete, "{}", why),
            }
        }
    }
}

/// A call of `setjmp` in block 1, between branches.
fn jumping() -> (Cfg, BTreeSet<BlockId>) {
    let edges = vec![
        edge(0, 1, EdgeKind::FallThrough),
        edge(0, 3, EdgeKind::Taken),
        edge(1, 2, EdgeKind::CallReturn),
        edge(2, 3, EdgeKind::FallThrough),
        edge(2, 4, EdgeKind::Taken),
        edge(3, 4, EdgeKind::FallThrough),
        ingraft_model::Edge { from: BlockId(4), to: EdgeTarget::Dynamic, kind: EdgeKind::Return },
    ];
    (cfg(5, edges, &[]), BTreeSet::from([BlockId(1)]))
}

#[test]
fn a_path_ends_in_front_of_a_call_that_returns_again() {
    let (cfg, twice) = jumping();
    let paths = FunctionPaths::new(&cfg, &all(&cfg), &twice, NO_LIMIT).expect("paths");
    let all: Vec<_> = (0..paths.paths()).map(|n| paths.path(n).expect("a path")).collect();
    let shown = |path: &ingraft_profile::FunctionPath| {
        (path.begins, path.blocks.iter().map(|block| block.0).collect::<Vec<_>>(), path.ends)
    };
    let mut shown: Vec<_> = all.iter().map(shown).collect();
    shown.sort();
    assert_eq!(
        shown,
        [
            (PathBegin::Entry, vec![0, 1], PathEnd::Call),
            (PathBegin::Entry, vec![0, 3, 4], PathEnd::Exit),
            (PathBegin::Return, vec![2, 3, 4], PathEnd::Exit),
            (PathBegin::Return, vec![2, 4], PathEnd::Exit),
        ]
    );
    assert!(!paths.is_cut());
}

/// Blocks that lead to the next one in two ways: 2 to the power of their number paths.
fn diamonds(number: usize) -> Cfg {
    let mut edges = Vec::new();
    for n in 0..number {
        let (from, left, right, to) = (3 * n, 3 * n + 1, 3 * n + 2, 3 * n + 3);
        edges.extend([edge(from, left, EdgeKind::FallThrough), edge(from, right, EdgeKind::Taken)]);
        edges.extend([edge(left, to, EdgeKind::Taken), edge(right, to, EdgeKind::FallThrough)]);
    }
    edges.push(ingraft_model::Edge { from: BlockId::at(3 * number), to: EdgeTarget::Dynamic, kind: EdgeKind::Return });
    cfg(3 * number + 1, edges, &[])
}

#[test]
fn too_many_paths_are_cut() {
    let cfg = diamonds(10);
    let paths = |limit| FunctionPaths::new(&cfg, &all(&cfg), &BTreeSet::new(), limit).expect("paths");
    assert_eq!((paths(NO_LIMIT).paths(), paths(NO_LIMIT).is_cut()), (1024, false));
    assert_eq!((paths(1024).paths(), paths(1024).is_cut()), (1024, false));
    let short = paths(64);
    assert!(short.is_cut() && short.paths() < 200, "{}", short.paths());
    let long = diamonds(100);
    let none = Probes { edges: IndexVec::filled(false, long.edges.len()), blocks: IndexVec::filled(false, 301) };
    assert!(FunctionPaths::new(&long, &all(&long), &BTreeSet::new(), 1 << 31).is_ok_and(|paths| paths.is_cut()));
    assert!(FunctionPaths::new(&long, &none, &BTreeSet::new(), 1 << 31).is_err(), "no code can cut them");
}

/// No code can run at the back edge of a loop, so paths end at the edge into the block that it leaves.
#[test]
fn other_edges_take_the_place_of_a_back_edge() {
    let edges = vec![
        edge(0, 1, EdgeKind::FallThrough),
        edge(1, 2, EdgeKind::Taken),
        edge(1, 3, EdgeKind::FallThrough),
        edge(2, 1, EdgeKind::CallReturn),
        ingraft_model::Edge { from: BlockId(3), to: EdgeTarget::Dynamic, kind: EdgeKind::Return },
    ];
    let cfg = cfg(4, edges, &[]);
    let mut probes = all(&cfg);
    let back = cfg.edges.entries().find(|(_, edge)| edge.kind == EdgeKind::CallReturn).expect("an edge").0;
    probes.edges.set(back, false);
    let paths = FunctionPaths::new(&cfg, &probes, &BTreeSet::new(), NO_LIMIT).expect("paths");
    let mut ways: Vec<_> = (0..paths.paths())
        .filter_map(|number| paths.path(number))
        .map(|path| (path.begins, path.blocks.iter().map(|block| block.0).collect::<Vec<_>>(), path.ends))
        .collect();
    ways.sort();
    assert_eq!(
        ways,
        [
            (PathBegin::Entry, vec![0, 1], PathEnd::Loop),
            (PathBegin::Entry, vec![0, 1, 3], PathEnd::Exit),
            (PathBegin::Loop, vec![2, 1], PathEnd::Loop),
            (PathBegin::Loop, vec![2, 1, 3], PathEnd::Exit),
        ]
    );
}

/// Blocks 3 and 4 lead to a fault, and control comes to both of them from outside, too: after a call, and as a landing pad.
#[test]
fn no_code_stands_where_no_path_ends() {
    let edges = vec![
        edge(0, 1, EdgeKind::FallThrough),
        edge(0, 2, EdgeKind::Taken),
        edge(2, 3, EdgeKind::CallReturn),
        edge(2, 1, EdgeKind::Taken),
        edge(4, 3, EdgeKind::FallThrough),
        edge(1, 4, EdgeKind::Taken),
        ingraft_model::Edge { from: BlockId(1), to: EdgeTarget::Dynamic, kind: EdgeKind::Return },
    ];
    let cfg = cfg(5, edges, &[4]);
    let mut probes = all(&cfg);
    for block in [3, 4] {
        probes.blocks.set(BlockId(block), false);
    }
    for (edge, _) in cfg.edges.entries().filter(|(_, edge)| matches!(edge.to, EdgeTarget::Block(BlockId(3 | 4)))) {
        probes.edges.set(edge, false);
    }
    let paths = FunctionPaths::new(&cfg, &probes, &BTreeSet::new(), NO_LIMIT).expect("paths");
    let ends: Vec<_> = (0..paths.paths()).filter_map(|number| paths.path(number)).map(|path| path.ends).collect();
    assert_eq!(ends.iter().filter(|end| **end == PathEnd::Exit).count(), 2, "{ends:?}");
    assert_eq!(paths.code().len(), 1, "one of the two ways adds a number: {:?}", paths.code());
}
