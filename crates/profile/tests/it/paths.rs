//! Numbers of acyclic paths.

use std::collections::BTreeSet;

use ingraft_profile::{
    Barred, GraphBuilder, PathNumbers, ProfileEdgeKind, ProfileGraph, TooManyPaths, Vertex, Weights,
};
use proptest::prelude::*;

use crate::execution::{Step, steps};
use crate::random::case;

/// "Efficient path profiling" (1996), Figure 3, with the edges in a given order.
fn six_paths(order: &[(u32, u32)]) -> ProfileGraph {
    let mut shape = GraphBuilder::new(6);
    order.iter().for_each(|(from, to)| _ = shape.edge(Vertex(*from), Vertex(*to)));
    shape.root(Vertex(0));
    shape.leave(Vertex(5));
    shape.build().expect("a graph")
}

const EDGES: [(u32, u32); 8] = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5)];

proptest! {
    #[test]
    fn six_paths_have_the_numbers_0_to_5(order in Just(EDGES.to_vec()).prop_shuffle()) {
        let graph = six_paths(&order);
        let numbers = PathNumbers::new(&graph).expect("numbers");
        prop_assert_eq!(numbers.paths(), 6);
        let paths: Vec<_> = (0..6).map(|number| numbers.path(&graph, number).expect("a path")).collect();
        for (number, path) in (0..).zip(&paths) {
            prop_assert_eq!(path.start, graph.entry());
            prop_assert_eq!(path.edges.iter().map(|edge| numbers.value(*edge)).sum::<i64>(), number);
        }
        let different: BTreeSet<_> = paths.iter().map(|path| &path.edges).collect();
        prop_assert_eq!(different.len(), 6);
        prop_assert_eq!(numbers.path(&graph, 6), None);
        prop_assert_eq!(numbers.path(&graph, -1), None);
    }

    #[test]
    fn increments_give_the_number_of_each_path(case in case(9)) {
        let graph = case.graph();
        let numbers = PathNumbers::new(&graph).expect("numbers");
        let increments = numbers.increments(&graph, &Weights::estimated(&graph), &Barred::none()).expect("increments");
        let add = |id| increments.add.iter().find(|(edge, _)| *edge == id).map_or(0, |(_, by)| *by);
        // The register, the sum of values, and the edges of the current path; `None` after a late start, up to the next path.
        let mut path = None;
        for step in steps(&graph, &case.choices) {
            let Step::Pass(id) = step else {
                path = None;
                continue;
            };
            let edge = graph.edge(id).expect("an edge");
            if edge.kind == ProfileEdgeKind::Root {
                path = Some((0, 0, Vec::new()));
            }
            let back = increments.back.iter().find(|back| back.edge == id);
            prop_assert_eq!(back.is_some(), numbers.is_back_edge(id));
            let complete = path.take().map(|(register, sum, mut edges)| {
                edges.push(id);
                (register + back.map_or_else(|| add(id), |back| back.ends), sum + numbers.value(id), edges)
            });
            if edge.to != graph.exit() && back.is_none() {
                path = complete;
                continue;
            }
            if let Some((register, sum, edges)) = complete {
                prop_assert_eq!(register, sum);
                prop_assert_eq!(numbers.path(&graph, sum).map(|path| path.edges), Some(edges));
            }
            if let Some(back) = back {
                path = Some((back.begins, numbers.begins(&graph, edge.to).expect("a begin"), Vec::new()));
            }
        }
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    // Each of 64 blocks leads to the next one by two edges.
    let mut shape = GraphBuilder::new(65);
    shape.root(Vertex(0));
    for block in 0..64 {
        shape.edge(Vertex(block), Vertex(block + 1));
        shape.edge(Vertex(block), Vertex(block + 1));
    }
    shape.leave(Vertex(64));
    let graph = shape.build().expect("a graph");
    assert_eq!(PathNumbers::new(&graph).map(|numbers| numbers.paths()), Err(TooManyPaths));
}
