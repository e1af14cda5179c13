//! The examples that the papers print.

use ingraft_model::Key;
use ingraft_profile::{
    ArcId, Barred, Corrections, Counter, Defect, GraphBuilder, Inexact, NoPlacement, Placement, ProfileGraph, Vertex,
    Weights, never_alternates,
};

/// Blocks of the running example: "Optimally profiling and tracing programs" (1994), Figure 1.
pub const BLOCKS: [&str; 6] = ["P", "Q", "A", "B", "R", "C"];

/// `while P { if Q then A else B; if R then break; C }`
pub fn running_example() -> ProfileGraph {
    let mut shape = GraphBuilder::new(BLOCKS.len());
    let at = |name: &str| Vertex::at(BLOCKS.iter().position(|block| *block == name).expect("a block"));
    for (from, to) in [("P", "Q"), ("Q", "A"), ("Q", "B"), ("A", "R"), ("B", "R"), ("R", "C"), ("C", "P")] {
        shape.edge(at(from), at(to));
    }
    shape.leave(at("P"));
    shape.leave(at("R"));
    shape.root(at("P"));
    shape.build().expect("a graph")
}

/// Names of an edge's ends, as in `P>Q`.
pub fn name(graph: &ProfileGraph, edge: ArcId) -> String {
    let edge = graph.edge(edge).expect("an edge");
    let end = |vertex: Vertex| match vertex {
        vertex if vertex == graph.entry() => "ENTRY",
        vertex if vertex == graph.exit() => "EXIT",
        vertex => BLOCKS[vertex.0 as usize],
    };
    format!("{}>{}", end(edge.from), end(edge.to))
}

pub fn edge(graph: &ProfileGraph, wanted: &str) -> ArcId {
    graph.live_edges().map(|(id, _)| id).find(|id| name(graph, *id) == wanted).expect("an edge")
}

/// The weights that Figure 1 prints.
pub fn printed(graph: &ProfileGraph) -> Weights {
    Weights::of(graph, |id| match name(graph, id).as_str() {
        "P>Q" => 10.5,
        "P>EXIT" | "R>EXIT" => 0.5,
        "Q>A" | "Q>B" | "A>R" | "B>R" => 5.25,
        "R>C" | "C>P" => 10.0,
        "EXIT>ENTRY" | "ENTRY>P" => 1.0,
        other => panic!("{other}"),
    })
}

#[test]
fn figure_1_weights_are_estimated() {
    let graph = running_example();
    let weights = Weights::estimated(&graph);
    let table = [
        ("P>EXIT", 0.5),
        ("R>EXIT", 0.5),
        ("P>Q", 9.5),
        ("Q>A", 4.75),
        ("Q>B", 4.75),
        ("A>R", 4.75),
        ("B>R", 4.75),
        ("R>C", 9.0),
        ("C>P", 9.0),
        ("ENTRY>P", 1.0),
        ("EXIT>ENTRY", 1.0),
    ];
    for (name, weight) in table {
        assert_eq!(weights.edge(edge(&graph, name)), weight, "{name}");
    }
}

#[test]
fn figure_5_maximum_spanning_tree_costs_11_5() {
    let graph = running_example();
    let weights = printed(&graph);
    let placement = Placement::edge_profile(&graph, &weights, &Barred::none()).expect("a placement");
    assert_eq!(weights.cost(&graph, placement.counters()), 11.5);
    // 11 edges and 8 vertices, ENTRY included.
    assert_eq!(placement.counters().len(), 11 - (8 - 1));
}

#[test]
fn figure_5_another_spanning_tree_costs_16_75() {
    let graph = running_example();
    let weights = printed(&graph);
    // Edges that can carry no counter form the tree of case (a).
    let mut barred = Barred::none();
    let chords = ["P>Q", "Q>A", "P>EXIT", "R>EXIT"].map(|name| edge(&graph, name));
    graph.live_edges().filter(|(id, _)| !chords.contains(id)).for_each(|(id, _)| barred.edge(id));
    let placement = Placement::edge_profile(&graph, &weights, &barred).expect("a placement");
    let mut expected = chords.map(Counter::Edge);
    expected.sort_unstable();
    assert_eq!(placement.counters(), expected);
    assert_eq!(weights.cost(&graph, placement.counters()), 16.75);
}

#[test]
fn figure_7_early_end_is_mended() {
    // P Q A, and the activation ends in A.
    let graph = running_example();
    let placement = Placement::edge_profile(&graph, &printed(&graph), &Barred::none()).expect("a placement");
    let passed = ["ENTRY>P", "P>Q", "Q>A"].map(|name| edge(&graph, name));
    let count = |counter: &Counter| matches!(counter, Counter::Edge(edge) if passed.contains(edge)).into();
    let counts: Vec<u64> = placement.counters().iter().map(count).collect();
    let corrections = Corrections { early: vec![(Vertex(2), 1)], ..Corrections::none() };
    let profile = placement.profile(&graph, &counts, &corrections).expect("a profile");
    for (id, _) in graph.live_edges() {
        let expected = passed.contains(&id) || id == graph.closing();
        assert_eq!(profile.edge(id), Some(expected.into()), "{}", name(&graph, id));
    }
    assert_eq!([0, 1, 2, 3, 4].map(|block| profile.block(Vertex(block))), [1, 1, 1, 0, 0]);
}

#[test]
fn structured_example_is_in_g_star() {
    let graph = running_example();
    let weights = printed(&graph);
    assert!(never_alternates(&graph));
    let blocks = Placement::block_profile(&graph, &weights, &Barred::none()).expect("a placement");
    assert_eq!(weights.cost(&graph, blocks.counters()), 11.5);
}

#[test]
fn a_cycle_without_a_pipe_needs_no_counter() {
    // As the four edges of Figure 4: a>b, e>b, e>f, a>f alternate.
    let [a, b, e, f] = [0, 1, 2, 3].map(Vertex);
    let mut shape = GraphBuilder::new(4);
    let cycle = [shape.edge(a, b), shape.edge(e, b), shape.edge(e, f), shape.edge(a, f)];
    let _ = [a, e].map(|root| shape.root(root));
    let _ = [b, f].map(|leaf| shape.leave(leaf));
    let graph = shape.build().expect("a graph");
    assert!(!never_alternates(&graph));
    let weights = Weights::of(&graph, |id| if cycle.contains(&id) { 5.0 } else { 1.0 });
    let edges = Placement::edge_profile(&graph, &weights, &Barred::none()).expect("a placement");
    let blocks = Placement::block_profile(&graph, &weights, &Barred::none()).expect("a placement");
    assert_eq!((edges.counters().len(), blocks.counters().len()), (4, 3));
    assert_eq!([&edges, &blocks].map(|placement| weights.cost(&graph, placement.counters())), [8.0, 3.0]);
    assert!(cycle.iter().all(|edge| !blocks.counters().contains(&Counter::Edge(*edge))));
    // Three activations: a>b twice, e>f once.
    let truth = |edge: ArcId| [2, 0, 1, 0, 2, 1, 2, 1, 3][edge.0 as usize];
    let count = |counter: &Counter| if let Counter::Edge(edge) = counter { truth(*edge) } else { 0 };
    let counts: Vec<u64> = blocks.counters().iter().map(count).collect();
    let profile = blocks.profile(&graph, &counts, &Corrections::none()).expect("a profile");
    assert_eq!([a, b, e, f].map(|block| profile.block(block)), [2, 2, 1, 1]);
    assert_eq!(cycle.map(|edge| profile.edge(edge)), [None; 4]);
}

#[test]
fn a_cycle_that_cannot_be_counted_is_named() {
    let graph = running_example();
    let mut barred = Barred::none();
    barred.block_with_edges(&graph, Vertex(0));
    barred.block_with_edges(&graph, Vertex(1));
    // ENTRY>P, P>EXIT and the closing edge form a cycle.
    let refused = Placement::edge_profile(&graph, &printed(&graph), &barred).expect_err("a cycle");
    let NoPlacement::Edge(named) = refused else { panic!("{refused}") };
    assert!(["ENTRY>P", "P>EXIT", "EXIT>ENTRY"].contains(&name(&graph, named).as_str()));
}

#[test]
fn counts_of_no_execution_are_defects() {
    let graph = running_example();
    let barred = Barred::none();
    let weights = printed(&graph);
    let placement = Placement::edge_profile(&graph, &weights, &barred).expect("a placement");
    let none = Corrections::none();
    // The loop is left by R more often than R is reached.
    let left = Counter::Edge(edge(&graph, "R>EXIT"));
    let counts: Vec<u64> = placement.counters().iter().map(|counter| u64::from(*counter == left)).collect();
    assert!(matches!(placement.profile(&graph, &counts, &none), Err(Defect::Negative(Counter::Edge(_), _))));
    assert_eq!(
        placement.profile(&graph, &[u64::MAX; 4], &none),
        Err(Defect::Overflow(Counter::Edge(edge(&graph, "P>Q"))))
    );
    assert_eq!(placement.profile(&graph, &[1], &none), Err(Defect::Counters { expected: 4, given: 1 }));
    let nowhere = Corrections { late: vec![(Vertex(6), 1)], ..Corrections::none() };
    assert_eq!(placement.profile(&graph, &[0; 4], &nowhere), Err(Defect::UnknownBlock(Vertex(6))));
}

#[test]
fn a_redundant_counter_finds_a_lost_count() {
    let graph = running_example();
    let (barred, weights) = (Barred::none(), printed(&graph));
    let placement = Placement::edge_profile(&graph, &weights, &barred).expect("a placement");
    let check = placement.cheapest_check(&graph, &weights, &barred).expect("an edge");
    assert_eq!(name(&graph, check), "ENTRY>P");
    let placement = placement.with_check(&graph, &barred, check).expect("a placement");
    let Some((Counter::Edge(last), others)) = placement.counters().split_last() else { panic!("no counters") };
    assert_eq!(*last, check);
    let out = Counter::Edge(edge(&graph, "P>EXIT"));
    let mut counts: Vec<u64> = others.iter().map(|counter| if *counter == out { 3 } else { 0 }).collect();
    counts.push(3);
    assert!(placement.profile(&graph, &counts, &Corrections::none()).is_ok());
    counts[4] = 4;
    let defect = Defect::Check { edge: check, measured: 4, derived: 3 };
    assert_eq!(placement.profile(&graph, &counts, &Corrections::none()), Err(defect));
}

#[test]
fn a_call_that_returns_twice_is_counted_at_its_joint() {
    // Block 0 calls setjmp, block 1 branches on its result and calls a function that jumps back, or returns.
    let mut shape = GraphBuilder::new(3);
    let [setjmp, branch, calls] = [0, 1, 2].map(Vertex);
    shape.root(setjmp);
    let call = shape.edge(setjmp, branch);
    shape.edge(branch, calls);
    shape.leave(branch);
    let end = shape.may_end(calls);
    let (again, behind) = shape.returns_again(call).expect("an edge");
    let graph = shape.build().expect("a graph");
    let placement = Placement::edge_profile(&graph, &Weights::estimated(&graph), &Barred::none()).expect("a placement");
    // One call; two jumps back, each after block 2; then a return.
    let truth = |edge: ArcId| match edge.0 {
        0 | 1 => 1,
        2 => 2,
        3 => 1,
        id if id == behind.0 => 3,
        _ => 0,
    };
    let count = |counter: &Counter| if let Counter::Edge(edge) = counter { truth(*edge) } else { 0 };
    let counts: Vec<u64> = placement.counters().iter().map(count).collect();
    let profile = placement.profile(&graph, &counts, &Corrections::none()).expect("a profile");
    assert_eq!([again, end, call].map(|edge| profile.edge(edge)), [Some(2), Some(2), Some(1)]);
    assert_eq!([setjmp, branch, calls].map(|block| profile.block(block)), [1, 3, 2]);
}

#[test]
fn shapes_without_an_exact_profile_are_refused() {
    assert_eq!(GraphBuilder::new(1).build().expect_err("no root"), Inexact::NoWayIn);
    let mut shape = GraphBuilder::new(1);
    shape.root(Vertex(0));
    let wrong = shape.edge(Vertex(0), Vertex(1));
    assert_eq!(shape.build().expect_err("no block"), Inexact::UnknownBlock(wrong));
    assert_eq!(GraphBuilder::new(usize::MAX).build().expect_err("too many"), Inexact::TooLarge);
}

#[test]
fn deep_nests_of_loops_take_linear_time() {
    const DEPTH: usize = 50_000;
    let mut shape = GraphBuilder::new(2 * DEPTH);
    shape.root(Vertex(0));
    for header in 0..DEPTH {
        let latch = 2 * DEPTH - 1 - header;
        shape.edge(Vertex::at(header), Vertex::at(header + 1));
        shape.edge(Vertex::at(latch), Vertex::at(header));
        let latch = Vertex::at(latch);
        _ = if header == 0 { shape.leave(latch) } else { shape.edge(latch, Vertex(latch.0 + 1)) };
    }
    let graph = shape.build().expect("a graph");
    let weights = Weights::estimated(&graph);
    let placement = Placement::edge_profile(&graph, &weights, &Barred::none()).expect("a placement");
    assert_eq!(placement.counters().len(), DEPTH + 1);
    assert!(weights.cost(&graph, placement.counters()).is_finite());
}
