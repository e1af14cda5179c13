//! Graphs that are cut at calls: random walks through random control-flow graphs, with walks that are inside of a run when counting begins and
//! ends, and with calls that never return.

use ingraft_model::{
    Block, BlockId, Cfg, Edge, EdgeId, EdgeKind as Kind, EdgeTarget, IndexVec, Key, Svma, WayIn, WayInReason,
};
use ingraft_profile::{Defect, Earlier, NotCounted, Partial, Position, ProbeAt, Probes, RunEvents, Runs, Wishes};
use proptest::prelude::*;

fn start(n: usize) -> Svma {
    Svma(0x1000 + 16 * n as u64)
}

pub(crate) fn cfg(blocks: usize, mut edges: Vec<Edge>, pads: &[usize]) -> Cfg {
    edges.sort_unstable();
    edges.dedup();
    let returns = edges.iter().filter(|edge| edge.kind == Kind::CallReturn);
    let returns = returns.filter_map(|edge| match edge.to {
        EdgeTarget::Block(to) => Some(WayIn { at: start(to.index()), reason: WayInReason::CallReturn }),
        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    });
    let pads = pads.iter().map(|pad| WayIn { at: start(*pad), reason: WayInReason::LandingPad });
    let mut ways_in: Vec<WayIn> = returns.chain(pads).collect();
    ways_in.push(WayIn { at: start(0), reason: WayInReason::Entry });
    ways_in.sort_unstable();
    ways_in.dedup();
    Cfg {
        blocks: (0..blocks).map(|n| Block { range: start(n)..start(n + 1), instructions: 1 }).collect(),
        edges: edges.into(),
        entry: Some(BlockId(0)),
        ways_in,
        unresolved: Vec::new(),
        ways_in_proven: Ok(()),
        ways_out_proven: Ok(()),
    }
}

pub(crate) fn edge(from: usize, to: usize, kind: Kind) -> Edge {
    Edge { from: BlockId::at(from), to: EdgeTarget::Block(BlockId::at(to)), kind }
}

fn all(cfg: &Cfg) -> Probes {
    let inner = |edge: &Edge| matches!(edge.to, EdgeTarget::Block(_));
    Probes { edges: cfg.edges.iter().map(inner).collect(), blocks: IndexVec::filled(true, cfg.blocks.len()) }
}

/// Counts of a walk: of edges, of arrivals at blocks, and of calls that end blocks.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub(crate) edges: Vec<u64>,
    pub(crate) blocks: Vec<u64>,
    ends: Vec<u64>,
    calls: u64,
    pub(crate) partial: Partial,
}

/// Walks along the edges as the choices say. Counting begins before step `from` and ends before step `until`.
pub(crate) fn walk(cfg: &Cfg, choices: &[u8], (from, until): (usize, usize)) -> Truth {
    let mut truth = Truth {
        edges: vec![0; cfg.edges.len()],
        blocks: vec![0; cfg.blocks.len()],
        ends: vec![0; cfg.blocks.len()],
        calls: 0,
        partial: Partial::default(),
    };
    let roots = cfg.roots();
    let mut at: Option<BlockId> = None;
    // The edge of a call that is in progress.
    let mut calling: Option<EdgeId> = None;
    for (step, choice) in choices.iter().enumerate() {
        let choice = usize::from(*choice);
        let counts = (from..until).contains(&step);
        if step == from {
            truth.partial.late.extend(at.map(Position::Block));
        }
        if step == until {
            truth.partial.early.extend(at.map(Position::Block));
        }
        let here = at;
        let mut arrive = |block: BlockId, truth: &mut Truth| {
            truth.blocks[block.index()] += u64::from(counts);
            at = Some(block);
        };
        match (here, calling.take()) {
            // A call returns, or it ends by an exception or with the thread.
            (None, Some(edge)) if choice % 4 > 0 => {
                truth.edges[edge.index()] += u64::from(counts);
                if let Some(&Edge { to: EdgeTarget::Block(to), .. }) = cfg.edges.get(edge) {
                    arrive(to, &mut truth);
                }
            }
            (None, _) => {
                let root = roots[choice % roots.len()];
                truth.calls += u64::from(counts && Some(root) == cfg.entry);
                arrive(root, &mut truth);
            }
            (Some(block), _) => {
                let out: Vec<(EdgeId, &Edge)> = cfg.edges_from(block).collect();
                if out.is_empty() {
                    truth.ends[block.index()] += u64::from(counts);
                    at = None;
                    continue;
                }
                let (id, edge) = out[choice % out.len()];
                let number = id.index();
                match (edge.kind, edge.to) {
                    (Kind::CallReturn, _) => {
                        truth.ends[block.index()] += u64::from(counts);
                        (at, calling) = (None, Some(id));
                    }
                    (_, EdgeTarget::Block(to)) => {
                        truth.edges[number] += u64::from(counts);
                        arrive(to, &mut truth);
                    }
                    (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) => {
                        truth.edges[number] += u64::from(counts);
                        at = None;
                    }
                }
            }
        }
    }
    if choices.len() <= until && from < choices.len() {
        truth.partial.early.extend(at.map(Position::Block));
    }
    truth
}

fn counters(runs: &Runs, truth: &Truth) -> Vec<u64> {
    let count = |counted: &ProbeAt| match counted {
        ProbeAt::Edge(edge) => truth.edges[edge.index()],
        ProbeAt::Block(block) => truth.blocks[block.index()],
    };
    runs.counters().iter().map(count).collect()
}

/// Counts of blocks without those of blocks that are left out.
fn known(runs: &Runs, counts: &[u64]) -> Vec<Option<u64>> {
    let is_known = |index: usize| !runs.unknown().contains(&BlockId::at(index));
    counts.iter().enumerate().map(|(index, count)| is_known(index).then_some(*count)).collect()
}

/// Blocks that end in a call, in a branch, or in a way out.
pub(crate) fn random_cfg() -> impl Strategy<Value = Cfg> {
    (1usize..9).prop_flat_map(|blocks| {
        let out = (0u8..4, 0..blocks, 0..blocks);
        let outs = prop::collection::vec(out, blocks);
        (Just(blocks), outs, prop::collection::vec(0..blocks, 0..2)).prop_map(|(blocks, outs, pads)| {
            let mut edges = Vec::new();
            for (from, (kind, a, b)) in outs.into_iter().enumerate() {
                match kind {
                    0 => edges.push(Edge { from: BlockId::at(from), to: EdgeTarget::Dynamic, kind: Kind::Return }),
                    // A call returns behind itself only; its block has no other way out.
                    1 if from + 1 < blocks => edges.push(edge(from, from + 1, Kind::CallReturn)),
                    2 => edges.extend([edge(from, a, Kind::Taken), edge(from, b, Kind::FallThrough)]),
                    _ => edges.push(edge(from, a, Kind::Taken)),
                }
            }
            cfg(blocks, edges, &pads)
        })
    })
}

/// Whether an edge is a taken branch to a block with other ways in.
fn is_apart(cfg: &Cfg, edge: &Edge) -> bool {
    let EdgeTarget::Block(to) = edge.to else { return false };
    let into = cfg.edges.iter().filter(|other| other.to == edge.to).count();
    edge.kind == Kind::Taken && (into > 1 || cfg.roots().contains(&to))
}

proptest! {
    #[test]
    fn all_counts_are_those_of_the_walk(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        moments in (0usize..100, 0usize..200),
        check: bool,
    ) {
        let truth = walk(&cfg, &choices, (moments.0, moments.0 + moments.1));
        let runs = Runs::new(&cfg, &all(&cfg), check).expect("a plan");
        let counts = runs.counts(&counters(&runs, &truth), &truth.partial).expect("counts of a walk");
        prop_assert_eq!(counts.blocks.as_slice(), known(&runs, &truth.blocks));
        prop_assert_eq!(counts.ends.as_slice(), known(&runs, &truth.ends));
        prop_assert_eq!(counts.calls, Some(truth.calls));
        for (edge, count) in counts.edges.iter().enumerate() {
            // The return of a call to a landing pad is not told from other arrivals there.
            prop_assert_eq!(count.unwrap_or(truth.edges[edge]), truth.edges[edge], "edge {}", edge);
        }
    }

    #[test]
    fn event_totals_are_those_of_the_walk(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        moments in (0usize..100, 0usize..200),
        seed in prop::collection::vec(-9i64..10, 9),
        no_blocks in prop::collection::vec(any::<bool>(), 9),
        check: bool,
    ) {
        let mut probes = all(&cfg);
        probes.blocks.iter_mut().zip(&no_blocks).for_each(|(probe, none)| *probe &= !none);
        let Ok(runs) = Runs::new(&cfg, &probes, check) else { return Ok(()) };
        let truth = walk(&cfg, &choices, (moments.0, moments.0 + moments.1));
        let blocks = IndexVec::from(seed[..cfg.blocks.len()].to_vec());
        let events = RunEvents::new(&runs, &blocks);
        let counted = counters(&runs, &truth).into_iter().zip(events.increments()).map(|(n, each)| n.cast_signed() * each);
        // Every position of the walk is behind its block.
        let is_known = |block: &BlockId| !runs.unknown().contains(block);
        let behind = |positions: &[Position]| -> i64 {
            let one = |position: &Position| match position {
                Position::Block(block) if !is_known(block) => 0,
                Position::Block(block) => events.before(*position) + seed[block.index()],
                Position::Arrival(_) => unreachable!("a walk is in blocks"),
            };
            positions.iter().map(one).sum()
        };
        let total = counted.sum::<i64>() + behind(&truth.partial.early) - behind(&truth.partial.late);
        let counts = truth.blocks.iter().zip(blocks.entries()).filter(|(_, (block, _))| is_known(block));
        let known: i64 = counts.map(|(n, (_, each))| n.cast_signed() * each).sum();
        prop_assert_eq!(total, known);
    }

    #[test]
    fn counters_that_are_placed_by_the_counts_of_the_same_walk_change_the_least(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        unknown in prop::collection::vec(any::<bool>(), 20),
    ) {
        let truth = walk(&cfg, &choices, (0, choices.len()));
        let earlier = Earlier { blocks: truth.blocks.clone().into(), edges: truth.edges.iter().copied().map(Some).collect() };
        let estimated = Runs::new(&cfg, &all(&cfg), false).expect("a plan");
        let measured = Runs::by_counts(&cfg, &all(&cfg), false, &earlier).expect("a plan");
        let increments = |runs: &Runs| counters(runs, &truth).iter().sum::<u64>();
        prop_assert!(increments(&measured) <= increments(&estimated));
        // With a price of detours, the whole cost is the least.
        let wishes = Wishes { earlier: Some(&earlier), detour: 2, ..Wishes::default() };
        let priced = Runs::placed(&cfg, &all(&cfg), &wishes).expect("a plan");
        let cost = |runs: &Runs| -> u64 {
            let price = |place: &ProbeAt| match place {
                ProbeAt::Edge(edge) if is_apart(&cfg, &cfg.edges.as_slice()[edge.index()]) => 3,
                ProbeAt::Edge(_) | ProbeAt::Block(_) => 1,
            };
            counters(runs, &truth).iter().zip(runs.counters()).map(|(count, place)| count * price(place)).sum()
        };
        prop_assert!(cost(&priced) <= cost(&measured).min(cost(&estimated)));
        // Counts of which some are unknown, and counts of another function, give the same profile.
        let some = earlier.edges.iter().zip(&unknown).map(|(count, unknown)| count.filter(|_| !unknown)).collect();
        for earlier in [earlier.clone(), Earlier { edges: some, ..earlier }, Earlier::default()] {
            let runs = Runs::by_counts(&cfg, &all(&cfg), true, &earlier).expect("a plan");
            let counts = runs.counts(&counters(&runs, &truth), &truth.partial).expect("counts of a walk");
            prop_assert_eq!(counts.blocks.as_slice(), known(&runs, &truth.blocks));
        }
    }

    #[test]
    fn edges_and_blocks_without_a_probe_have_no_counter(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        no_edges in prop::collection::vec(any::<bool>(), 20),
        no_blocks in prop::collection::vec(any::<bool>(), 9),
    ) {
        let mut probes = all(&cfg);
        probes.edges.iter_mut().zip(&no_edges).for_each(|(probe, none)| *probe &= !none);
        probes.blocks.iter_mut().zip(&no_blocks).for_each(|(probe, none)| *probe &= !none);
        let Ok(runs) = Runs::new(&cfg, &probes, false) else { return Ok(()) };
        for counted in runs.counters() {
            match counted {
                ProbeAt::Edge(edge) => prop_assert_eq!(probes.edges.get(*edge), Some(&true)),
                ProbeAt::Block(block) => prop_assert_eq!(probes.blocks.get(*block), Some(&true)),
            }
        }
        let truth = walk(&cfg, &choices, (0, choices.len()));
        let counts = runs.counts(&counters(&runs, &truth), &truth.partial).expect("counts of a walk");
        prop_assert_eq!(counts.blocks.as_slice(), known(&runs, &truth.blocks));
        prop_assert_eq!(counts.ends.as_slice(), known(&runs, &truth.ends));
        for (edge, count) in counts.edges.iter().enumerate() {
            prop_assert_eq!(count.unwrap_or(truth.edges[edge]), truth.edges[edge], "edge {}", edge);
        }
    }
}

proptest! {
    #[test]
    fn what_counters_tell_directly_is_right_whatever_is_lost(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        check: bool,
        entries: bool,
    ) {
        // The walk is cut off without a correction, as if a signal handler had left its last run for good.
        let truth = walk(&cfg, &choices, (0, choices.len()));
        let runs = Runs::placed(&cfg, &all(&cfg), &Wishes { check, entries, ..Wishes::default() }).expect("a plan");
        let measured = runs.measured(&cfg, &counters(&runs, &truth));
        for (block, count) in measured.blocks.iter().enumerate() {
            prop_assert_eq!(count.unwrap_or(truth.blocks[block]), truth.blocks[block], "block {}", block);
        }
        for (edge, count) in measured.edges.iter().enumerate() {
            prop_assert_eq!(count.unwrap_or(truth.edges[edge]), truth.edges[edge], "edge {}", edge);
        }
        prop_assert!(!entries || runs.tells_calls(&cfg));
        prop_assert!(!entries || measured.blocks.get(BlockId(0)).is_some_and(Option::is_some));
    }
}

/// Computed jumps of which several lead to the same blocks, among branches and calls. Control can leave the function from everywhere.
fn random_jumps() -> impl Strategy<Value = Cfg> {
    (2usize..9).prop_flat_map(|blocks| {
        let out = (0u8..6, prop::collection::vec(0..blocks, 1..5));
        let outs = prop::collection::vec(out, blocks);
        (outs, prop::collection::vec(0..blocks, 0..4)).prop_map(move |(outs, pads)| {
            let mut edges = Vec::new();
            for (from, (kind, to)) in outs.into_iter().enumerate() {
                match kind {
                    _ if from + 1 == blocks => {
                        edges.push(Edge { from: BlockId::at(from), to: EdgeTarget::Dynamic, kind: Kind::Return });
                    }
                    0 => edges.extend([edge(from, to[0], Kind::Taken), edge(from, blocks - 1, Kind::FallThrough)]),
                    1 => edges.push(edge(from, from + 1, Kind::CallReturn)),
                    _ => edges.extend(to.iter().chain([&(blocks - 1)]).map(|to| edge(from, *to, Kind::JumpTable))),
                }
            }
            cfg(blocks, edges, &pads)
        })
    })
}

proptest! {
    #[test]
    fn blocks_are_counted_whose_jumps_cannot_be_told_apart(
        cfg in random_jumps(),
        choices in prop::collection::vec(any::<u8>(), 1..200),
        moments in (0usize..100, 0usize..200),
    ) {
        let mut probes = all(&cfg);
        for (edge, probe) in cfg.edges.iter().zip(probes.edges.iter_mut()) {
            *probe &= edge.kind != Kind::JumpTable;
        }
        let runs = match Runs::new(&cfg, &probes, true) {
            Ok(runs) => runs,
            // If jumps lead to the entry as well as to other ways in, nothing tells how many calls there were.
            Err(why) => {
                let to_entry = |edge: &Edge| edge.kind == Kind::JumpTable && edge.to == EdgeTarget::Block(BlockId(0));
                prop_assert!(cfg.edges.iter().any(to_entry) && cfg.roots().len() > 1, "{}", why);
                return Ok(());
            }
        };
        let truth = walk(&cfg, &choices, (moments.0, moments.0 + moments.1));
        let counts = runs.counts(&counters(&runs, &truth), &truth.partial).expect("counts of a walk");
        prop_assert_eq!(counts.blocks.as_slice(), known(&runs, &truth.blocks));
        prop_assert_eq!(counts.ends.as_slice(), known(&runs, &truth.ends));
        prop_assert_eq!(counts.calls, Some(truth.calls));
        for (edge, count) in counts.edges.iter().enumerate() {
            prop_assert_eq!(count.unwrap_or(truth.edges[edge]), truth.edges[edge], "edge {}", edge);
        }
    }
}

/// 0 and 1 jump to 2 and 3, which jump to 1 or return; 0 also jumps to 4.
#[test]
fn jumps_with_one_way_to_a_hub_are_counted() {
    let jump = |from, to| edge(from, to, Kind::JumpTable);
    let back = |from| edge(from, 1, Kind::Taken);
    let returns = |from: usize| Edge { from: BlockId::at(from), to: EdgeTarget::Dynamic, kind: Kind::Return };
    let cfg =
        cfg(5, vec![jump(0, 2), jump(0, 3), jump(0, 4), jump(1, 2), jump(1, 3), back(2), back(3), returns(4)], &[]);
    let mut probes = all(&cfg);
    for (edge, probe) in cfg.edges.iter().zip(probes.edges.iter_mut()) {
        *probe &= edge.kind != Kind::JumpTable;
    }
    let runs = Runs::new(&cfg, &probes, false).expect("a plan");
    let truth = walk(&cfg, &[0, 0, 0, 1, 0, 1, 0, 0, 2, 0], (0, 10));
    let counts = runs.counts(&counters(&runs, &truth), &truth.partial).expect("counts of a walk");
    assert_eq!(counts.blocks.as_slice(), known(&runs, &truth.blocks));
    let known: Vec<bool> = counts.edges.iter().map(Option::is_some).collect();
    // Block 4 has one way in.
    let expected = |edge: &Edge| edge.kind != Kind::JumpTable || edge.to == EdgeTarget::Block(BlockId(4));
    assert_eq!(known, cfg.edges.iter().map(expected).collect::<Vec<_>>());
}

/// A loop of one block: 0 -> 1, 1 -> 1, 1 -> 2, 2 returns.
fn looped() -> Cfg {
    let edges = vec![
        edge(0, 1, Kind::FallThrough),
        edge(1, 1, Kind::Taken),
        edge(1, 2, Kind::FallThrough),
        Edge { from: BlockId(2), to: EdgeTarget::Dynamic, kind: Kind::Return },
    ];
    cfg(3, edges, &[])
}

#[test]
fn a_redundant_counter_shows_a_thread_that_was_lost_inside_of_a_run() {
    let cfg = looped();
    let runs = Runs::new(&cfg, &all(&cfg), true).expect("a plan");
    assert_eq!(runs.counters().len(), 3, "{:?}", runs.counters());
    let value = |inner: u64, left: u64| {
        move |counted: &ProbeAt| match counted {
            ProbeAt::Edge(EdgeId(0)) | ProbeAt::Block(BlockId(0)) => 10,
            ProbeAt::Edge(EdgeId(1)) => inner,
            ProbeAt::Edge(EdgeId(2)) => left,
            other => panic!("{other:?}"),
        }
    };
    let early = Partial { early: vec![Position::Block(BlockId(1))], ..Partial::default() };
    let counts: Vec<u64> = runs.counters().iter().map(value(30, 9)).collect();
    assert_eq!(runs.counts(&counts, &early).expect("counts").blocks.as_slice(), [10, 40, 9].map(Some));
    let lost = runs.counts(&counts, &Partial::default());
    assert!(matches!(lost, Err(Defect::Check { .. })), "{:?} {lost:?}", runs.counters());
    assert_eq!(lost.err().and_then(|defect| defect.lost()), Some(1));
}

#[test]
fn a_function_of_one_block_has_a_counter_in_it() {
    let cfg = cfg(1, vec![Edge { from: BlockId(0), to: EdgeTarget::Dynamic, kind: Kind::Return }], &[]);
    let runs = Runs::new(&cfg, &all(&cfg), false).expect("a plan");
    assert_eq!(runs.counters(), [ProbeAt::Block(BlockId(0))]);
    let counts = runs.counts(&[7], &Partial::default()).expect("counts");
    let (blocks, edges) = (counts.blocks.as_slice(), counts.edges.as_slice());
    assert_eq!((blocks, edges, counts.calls), (&[Some(7)][..], &[Some(7)][..], Some(7)));
    let none = Probes { edges: vec![false].into(), blocks: vec![false].into() };
    assert_eq!(Runs::new(&cfg, &none, false).err(), Some(NotCounted::Activations));
}

/// Block 2 is a landing pad that goes on with the exception in block 3, where a branch of block 0 leads too, and then in block 8. Block 5 is behind a
/// call that never returns, which the graph does not know.
#[test]
fn blocks_at_which_no_code_counts_arrivals_from_outside_are_left_out() {
    let edges = vec![
        edge(0, 1, Kind::FallThrough),
        edge(0, 3, Kind::Taken),
        edge(1, 4, Kind::CallReturn),
        edge(2, 3, Kind::FallThrough),
        edge(3, 8, Kind::CallReturn),
        edge(4, 6, Kind::Taken),
        edge(4, 7, Kind::FallThrough),
        edge(7, 5, Kind::CallReturn),
        Edge { from: BlockId(6), to: EdgeTarget::Dynamic, kind: Kind::Return },
    ];
    let cfg = cfg(9, edges, &[2]);
    // The first block runs 9 times: 2 of them branch to block 3, where 3 exceptions come also, and one call of the other 7 is left. One comes to
    // block 7.
    let value = |counted: &ProbeAt| match counted {
        ProbeAt::Block(BlockId(0)) => 9,
        ProbeAt::Edge(EdgeId(0)) | ProbeAt::Block(BlockId(1)) => 7,
        ProbeAt::Edge(EdgeId(1)) => 2,
        ProbeAt::Block(BlockId(3)) => 5,
        ProbeAt::Block(BlockId(4)) => 6,
        ProbeAt::Edge(EdgeId(5)) | ProbeAt::Block(BlockId(6)) => 5,
        ProbeAt::Edge(EdgeId(6)) | ProbeAt::Block(BlockId(7)) => 1,
        ProbeAt::Block(BlockId(8)) => 4,
        other => panic!("{other:?}"),
    };
    for (without, of_3) in [(&[2, 5][..], Some(5)), (&[2, 3, 5], None)] {
        let mut probes = all(&cfg);
        without.iter().for_each(|block| probes.blocks.set(BlockId(*block), false));
        let is_told = |edge: &Edge| {
            let to = |block: &u32| edge.to == EdgeTarget::Block(BlockId(*block));
            edge.kind != Kind::CallReturn && !without.contains(&edge.from.0) && !without.iter().any(to)
        };
        probes.edges.iter_mut().zip(&cfg.edges).for_each(|(probe, edge)| *probe &= is_told(edge));
        let runs = Runs::new(&cfg, &probes, false).expect("a plan");
        assert_eq!(runs.unknown().iter().map(|block| block.0).collect::<Vec<_>>(), without);
        let counters: Vec<u64> = runs.counters().iter().map(value).collect();
        let counts = runs.counts(&counters, &Partial::default()).expect("counts");
        let blocks = [Some(9), Some(7), None, of_3, Some(6), None, Some(5), Some(1), Some(4)];
        assert_eq!(counts.blocks.as_slice(), blocks);
        // The exceptions, by the difference: the landing pad has no count.
        assert_eq!(counts.edges.get(EdgeId(3)), Some(&of_3.map(|all| all - 2)));
        assert_eq!(counts.calls, Some(9));
    }
}
