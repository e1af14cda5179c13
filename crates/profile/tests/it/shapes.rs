//! Graphs of functions, from their control-flow graphs.

use ingraft_model::{
    Block, BlockId, Cfg, Edge, EdgeId, EdgeKind as Kind, EdgeTarget, IndexVec, Refusal, Svma, WayIn, WayInReason,
};
use ingraft_profile::{
    ArcId, Barred, Corrections, Counter, GraphBuilder, Inexact, Placement, ProfileEdgeKind, Vertex, Weights,
};

/// A function of six blocks of 16 bytes:
///
/// ```text
/// 0: test; je 2      1: call f (returns to 3)      2: call abort (never returns)
/// 3: jmp g           4: a landing pad; jmp 5       5: jmp 5
/// ```
fn function() -> Cfg {
    let block = |n: u64| Block { range: Svma(0x1000 + 16 * n)..Svma(0x1010 + 16 * n), instructions: 2 };
    let edge = |from, to, kind| Edge { from: BlockId(from), to, kind };
    let to = |block| EdgeTarget::Block(BlockId(block));
    let way = |n: u64, reason| WayIn { at: Svma(0x1000 + 16 * n), reason };
    Cfg {
        blocks: (0..6).map(block).collect(),
        edges: vec![
            edge(0, to(2), Kind::Taken),
            edge(0, to(1), Kind::FallThrough),
            edge(1, to(3), Kind::CallReturn),
            edge(3, EdgeTarget::Outside(Svma(0x2000)), Kind::TailJump),
            edge(4, to(5), Kind::Taken),
            edge(5, to(5), Kind::Taken),
        ]
        .into(),
        entry: Some(BlockId(0)),
        ways_in: vec![way(0, WayInReason::Entry), way(3, WayInReason::CallReturn), way(4, WayInReason::LandingPad)],
        unresolved: Vec::new(),
        ways_in_proven: Ok(()),
        ways_out_proven: Ok(()),
    }
}

fn kinds(shape: GraphBuilder) -> Vec<(u32, u32, ProfileEdgeKind, bool)> {
    let graph = shape.build().expect("a graph");
    graph.edges().iter().map(|edge| (edge.from.0, edge.to.0, edge.kind, edge.silent)).collect()
}

#[test]
fn a_function_has_edges_for_calls_landing_pads_and_endless_loops() {
    let (entry, exit) = (6, 7);
    assert_eq!(
        kinds(GraphBuilder::of(&function()).expect("a shape")),
        [
            (0, 2, ProfileEdgeKind::Inner, false),
            (0, 1, ProfileEdgeKind::Inner, false),
            (1, 3, ProfileEdgeKind::Inner, false),
            (3, exit, ProfileEdgeKind::Leave, false),
            (4, 5, ProfileEdgeKind::Inner, false),
            (5, 5, ProfileEdgeKind::Inner, false),
            (entry, 0, ProfileEdgeKind::Root, false),
            (entry, 4, ProfileEdgeKind::Root, false),
            (2, exit, ProfileEdgeKind::End, true),
            (5, exit, ProfileEdgeKind::End, true),
            (exit, entry, ProfileEdgeKind::Closing, true),
        ]
    );
}

#[test]
fn an_exception_moves_an_activation_to_its_landing_pad() {
    let mut shape = GraphBuilder::of(&function()).expect("a shape");
    let thrown = shape.may_end(Vertex(1));
    assert_eq!(shape.may_end(Vertex(1)), thrown);
    let graph = shape.build().expect("a graph");
    let placement = Placement::edge_profile(&graph, &Weights::estimated(&graph), &Barred::none()).expect("a placement");
    // Five calls: one aborts, two return, two throw. The landing pad runs twice, and both threads are in the loop behind it.
    let truth = |edge: ArcId| match graph.edge(edge).map(|edge| (edge.from.0, edge.to.0)) {
        Some((6, 0)) => 5,
        Some((0, 1)) => 4,
        Some((1, 3) | (3, 7) | (6, 4) | (4, 5)) => 2,
        Some((5, 5)) => 1000,
        Some((0, 2)) => 1,
        _ => 0,
    };
    let count = |counter: &Counter| if let Counter::Edge(edge) = counter { truth(*edge) } else { 0 };
    let counts: Vec<u64> = placement.counters().iter().map(count).collect();
    let corrections = Corrections { early: vec![(Vertex(5), 2)], ..Corrections::none() };
    let profile = placement.profile(&graph, &counts, &corrections).expect("a profile");
    assert_eq!(profile.edge(thrown), Some(2));
    assert_eq!([0, 1, 2, 3, 4, 5].map(|block| profile.block(Vertex(block))), [5, 4, 1, 2, 2, 1002]);
    let ends: Vec<_> = graph.live_edges().filter(|(_, edge)| edge.kind == ProfileEdgeKind::End).collect();
    let counts: Vec<_> = ends.iter().map(|(id, edge)| (edge.from.0, profile.edge(*id))).collect();
    // Every end in the loop was reported.
    assert_eq!(counts, [(1, Some(2)), (2, Some(1)), (5, Some(0))]);
}

#[test]
fn incomplete_graphs_are_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut Cfg)| {
        let mut cfg = function();
        change(&mut cfg);
        GraphBuilder::of(&cfg).and_then(GraphBuilder::build).expect_err("a reason")
    };
    let reason = Refusal::TooShort { available: 1, next: "the end" };
    assert_eq!(refused(&|cfg| cfg.ways_in_proven = Err(reason.clone())), Inexact::WaysIn(reason.clone()));
    assert_eq!(refused(&|cfg| cfg.ways_out_proven = Err(reason.clone())), Inexact::WaysOut(reason.clone()));
    assert_eq!(refused(&|cfg| cfg.unresolved = vec![Svma(0x1008)]), Inexact::Unresolved(Svma(0x1008)));
    assert_eq!(
        refused(&|cfg| cfg.edges.get_mut(EdgeId(5)).expect("an edge").from = BlockId(6)),
        Inexact::UnknownBlock(ArcId(5))
    );
    let no_way_in = |cfg: &mut Cfg| {
        cfg.ways_in.clear();
        cfg.entry = None;
        cfg.edges = IndexVec::default();
    };
    assert_eq!(refused(&no_way_in), Inexact::NoWayIn);
}

#[test]
fn unreachable_blocks_take_no_part() {
    let mut shape = GraphBuilder::new(3);
    let [alive, a, b] = [0, 1, 2].map(Vertex);
    shape.root(alive);
    shape.leave(alive);
    let dead = [shape.edge(a, alive), shape.edge(a, b), shape.edge(b, a)];
    let graph = shape.build().expect("a graph");
    assert_eq!([alive, a, b].map(|block| graph.is_live(block)), [true, false, false]);
    let placement = Placement::edge_profile(&graph, &Weights::estimated(&graph), &Barred::none()).expect("a placement");
    let [counter] = placement.counters() else { panic!("{placement:?}") };
    assert!(matches!(counter, Counter::Edge(edge) if !dead.contains(edge)));
    let profile = placement.profile(&graph, &[7], &Corrections::none()).expect("a profile");
    assert_eq!(dead.map(|edge| profile.edge(edge)), [Some(0); 3]);
    assert_eq!([alive, a].map(|block| profile.block(block)), [7, 0]);
}
