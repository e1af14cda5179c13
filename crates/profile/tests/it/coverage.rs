//! Coverage of random walks through random control-flow graphs: what is told is so, whichever probes there are.

use ingraft_model::{BlockId, Cfg, Edge, EdgeId, EdgeKind as Kind, EdgeTarget, Key, Refusal};
use ingraft_profile::{Coverage, Inside, ProbeAt, coverage_probes};
use proptest::prelude::*;

use crate::runs::{cfg, edge, random_cfg, walk};

/// Coverage that the probes of `has` tell of a walk between two moments, and the truth.
fn covered(cfg: &Cfg, choices: &[u8], moments: (usize, usize), has: &[bool], branches: bool) -> (Coverage, Coverage) {
    let truth = walk(cfg, choices, moments);
    let probes = coverage_probes(cfg, branches);
    let came = |(probe, has): (&ProbeAt, &bool)| {
        let count = match probe {
            ProbeAt::Block(block) => truth.blocks[block.index()],
            ProbeAt::Edge(edge) => truth.edges[edge.index()],
        };
        has.then_some(count > 0)
    };
    let came: Vec<Option<bool>> = probes.iter().zip(has.iter().chain(std::iter::repeat(&true))).map(came).collect();
    let inside = Inside { begin: !truth.partial.late.is_empty(), end: !truth.partial.early.is_empty() };
    let found = Coverage::told(cfg, &probes, &came).completed(cfg, inside);
    let ran = |counts: &[u64]| counts.iter().map(|count| Some(*count > 0)).collect::<Vec<_>>();
    (found, Coverage { blocks: ran(&truth.blocks).into(), edges: ran(&truth.edges).into() })
}

fn agrees(found: &[Option<bool>], truth: &[Option<bool>]) -> bool {
    found.iter().zip(truth).all(|(found, truth)| found.is_none() || found == truth)
}

proptest! {
    #[test]
    fn what_is_told_is_so(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..100),
        moments in (0usize..50, 0usize..100),
        has in prop::collection::vec(any::<bool>(), 9),
        branches: bool,
    ) {
        let (found, truth) = covered(&cfg, &choices, (moments.0, moments.0 + moments.1), &has, branches);
        prop_assert!(agrees(found.blocks.as_slice(), truth.blocks.as_slice()), "{found:?} {truth:?}");
        prop_assert!(agrees(found.edges.as_slice(), truth.edges.as_slice()), "{found:?} {truth:?}");
    }

    #[test]
    fn with_all_probes_nothing_within_the_function_is_unknown(
        cfg in random_cfg(),
        choices in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        // A thread that is inside of a run at the reading may have left its block or not.
        if !walk(&cfg, &choices, (0, choices.len())).partial.early.is_empty() {
            return Ok(());
        }
        let (found, truth) = covered(&cfg, &choices, (0, choices.len()), &[], true);
        prop_assert_eq!(&found.blocks, &truth.blocks);
        for (edge, (found, truth)) in cfg.edges.iter().zip(found.edges.iter().zip(&truth.edges)) {
            if matches!(edge.to, EdgeTarget::Block(_)) && edge.kind != Kind::CallReturn {
                prop_assert_eq!(found, truth, "{:?}", edge);
            }
        }
    }
}

/// `if (a) b; c`: 0 branches to 2, or falls through to 1, which leads to 2.
fn diamond() -> Cfg {
    let edges = vec![
        edge(0, 2, Kind::Taken),
        edge(0, 1, Kind::FallThrough),
        edge(1, 2, Kind::FallThrough),
        Edge { from: BlockId(2), to: EdgeTarget::Dynamic, kind: Kind::Return },
    ];
    cfg(3, edges, &[])
}

#[test]
fn the_branch_past_a_block_that_has_run_is_not_known_without_a_probe() {
    let cfg = diamond();
    assert_eq!(coverage_probes(&cfg, true).len(), 4, "three blocks and one edge");
    let probes = coverage_probes(&cfg, false);
    let of = |came: [bool; 3]| {
        let came = came.map(Some);
        Coverage::told(&cfg, &probes, &came).completed(&cfg, Inside::default()).edges
    };
    let past = Edge { from: BlockId(0), to: EdgeTarget::Block(BlockId(2)), kind: Kind::Taken };
    let past: EdgeId = cfg.edges.entries().find(|(_, edge)| **edge == past).expect("an edge").0;
    assert_eq!(of([true, true, true]).get(past), Some(&None));
    assert_eq!(of([true, false, true]).get(past), Some(&Some(true)));
    assert_eq!(of([false, false, false]).get(past), Some(&Some(false)));
    // Control may leave the first block in a way that the graph does not have.
    let unproven = Cfg { ways_out_proven: Err(Refusal::NoSuchPoint), ..cfg.clone() };
    let told = Coverage::told(&unproven, &probes, &[true, false, true].map(Some));
    assert_eq!(told.completed(&unproven, Inside::default()).edges.get(past), Some(&None));
}

#[test]
fn a_block_without_a_probe_has_run_if_one_behind_it_has() {
    let cfg = diamond();
    let probes = coverage_probes(&cfg, false);
    let told =
        |inside| Coverage::told(&cfg, &probes, &[None, Some(false), Some(true)]).with_earlier(&cfg, inside).blocks;
    assert_eq!(told(Inside::default()).get(BlockId(0)), Some(&Some(true)));
    assert_eq!(
        told(Inside { begin: true, end: false }).get(BlockId(0)),
        Some(&None),
        "the thread may have been behind it"
    );
}
