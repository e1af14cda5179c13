//! Placements on random graphs: their counters give the counts of every execution, and cost no more than others.

use ingraft_model::Key;
use ingraft_profile::{
    ArcId, Barred, Counter, NoPlacement, Placement, ProfileEdge, ProfileEdgeKind, ProfileGraph, Vertex, Weights,
    never_alternates,
};
use proptest::prelude::*;

use crate::execution::{Truth, steps};
use crate::random::{Case, case, case_with_joints};

fn placements(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Vec<Placement> {
    let edges = Placement::edge_profile(graph, weights, barred);
    let blocks = Placement::block_profile(graph, weights, barred);
    let counted = Placement::block_counters(graph, weights, barred);
    [edges, blocks, counted, Placement::every_block(graph, barred)].into_iter().flatten().collect()
}

fn check_counts(graph: &ProfileGraph, placement: &Placement, truth: &Truth) -> Result<(), TestCaseError> {
    let profile = placement.profile(graph, &truth.counts(placement.counters()), &truth.corrections);
    let profile = profile.map_err(|defect| TestCaseError::fail(defect.to_string()))?;
    for block in (0..graph.blocks()).map(Vertex::at) {
        prop_assert_eq!(profile.block(block), truth.block(block), "block {}", block);
    }
    for (index, _) in graph.edges().iter().enumerate() {
        let id = ArcId::at(index);
        if let Some(count) = profile.edge(id) {
            prop_assert_eq!(count, truth.edge(id), "edge {}", id);
        }
    }
    Ok(())
}

/// Bars some edges and blocks by the choices of a case.
fn barred(graph: &ProfileGraph, case: &Case) -> Barred {
    let mut barred = Barred::none();
    for (n, choice) in case.choices.iter().enumerate().take(graph.edges().len()).filter(|(_, choice)| *choice % 3 == 0)
    {
        if choice % 2 == 0 { barred.edge(ArcId::at(n)) } else { barred.block(Vertex::at(n)) }
    }
    barred
}

/// Whether edges contain no cycle, by removal of leaves.
fn acyclic(graph: &ProfileGraph, edges: &[ArcId]) -> bool {
    let mut left: Vec<_> = edges.iter().filter_map(|id| graph.edge(*id)).collect();
    loop {
        let before = left.len();
        let degree = |v| left.iter().map(|e| usize::from(e.from == v) + usize::from(e.to == v)).sum::<usize>();
        let keep: Vec<_> = left.iter().copied().filter(|e| degree(e.from) > 1 && degree(e.to) > 1).collect();
        left = keep;
        if left.is_empty() || left.len() == before {
            return left.is_empty();
        }
    }
}

/// Whether a set of edges is a simple cycle with a pipe: a vertex that one edge of the set enters and one leaves.
fn is_piped_cycle(graph: &ProfileGraph, edges: &[ArcId], set: u32) -> bool {
    let chosen: Vec<_> =
        (0..).zip(edges).filter(|(n, _)| set >> n & 1 == 1).filter_map(|(_, id)| graph.edge(*id)).collect();
    let at = |vertex| {
        let ends = |end: fn(&ProfileEdge) -> Vertex| chosen.iter().filter(|edge| end(edge) == vertex).count();
        (ends(|edge| edge.to), ends(|edge| edge.from))
    };
    // Every vertex of the set has two edges, and the set is connected.
    let mut reached = vec![chosen[0].from];
    let mut next = 0;
    while next < reached.len() {
        let here = reached[next];
        for edge in chosen.iter().filter(|edge| edge.from == here || edge.to == here) {
            if !reached.contains(&edge.other(here)) {
                reached.push(edge.other(here));
            }
        }
        next += 1;
    }
    let degrees: Vec<_> = reached.iter().map(|vertex| at(*vertex)).collect();
    let all = degrees.iter().map(|(into, out)| into + out).sum::<usize>() == 2 * chosen.len();
    all && degrees.iter().all(|(into, out)| into + out == 2) && degrees.contains(&(1, 1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn counters_give_all_counts(case in case(9)) {
        let graph = case.graph();
        let truth = Truth::of(&graph, &steps(&graph, &case.choices));
        let estimated = Weights::estimated(&graph);
        let earlier = Placement::edge_profile(&graph, &estimated, &Barred::none()).expect("a placement");
        let earlier = earlier.profile(&graph, &truth.counts(earlier.counters()), &truth.corrections).expect("a profile");
        let measured = Weights::measured(&graph, &earlier);
        prop_assert!(graph.live_edges().all(|(id, _)| measured.edge(id) == truth.edge(id) as f64));
        for weights in [estimated, measured] {
            let all = placements(&graph, &weights, &Barred::none());
            prop_assert_eq!(all.len(), 4);
            for placement in &all {
                check_counts(&graph, placement, &truth)?;
            }
            // The edge profile leaves nothing open.
            let profile = all[0].profile(&graph, &truth.counts(all[0].counters()), &truth.corrections).expect("a profile");
            prop_assert!(graph.live_edges().all(|(id, _)| profile.edge(id).is_some()));
        }
    }

    #[test]
    fn calls_that_return_again_are_counted(case in case_with_joints(7)) {
        let graph = case.graph();
        let truth = Truth::of(&graph, &steps(&graph, &case.choices));
        let all = placements(&graph, &Weights::estimated(&graph), &Barred::none());
        // No silent edge matters to counters in blocks.
        prop_assert!(all.len() >= 2);
        for placement in &all {
            check_counts(&graph, placement, &truth)?;
        }
    }

    #[test]
    fn barred_places_have_no_counter(case in case_with_joints(7)) {
        let graph = case.graph();
        let truth = Truth::of(&graph, &steps(&graph, &case.choices));
        let (weights, barred) = (Weights::estimated(&graph), barred(&graph, &case));
        let fixed: Vec<ArcId> =
            graph.live_edges().filter(|(id, edge)| !barred.allows_edge(*id, edge)).map(|(id, _)| id).collect();
        match Placement::edge_profile(&graph, &weights, &barred) {
            Ok(placement) => prop_assert!(acyclic(&graph, &fixed), "{placement:?}"),
            Err(NoPlacement::Edge(named)) => prop_assert!(!acyclic(&graph, &fixed) && fixed.contains(&named)),
            Err(other) => prop_assert!(false, "{other}"),
        }
        for placement in placements(&graph, &weights, &barred) {
            check_counts(&graph, &placement, &truth)?;
            for counter in placement.counters() {
                let allowed = match counter {
                    Counter::Edge(id) => barred.allows_edge(*id, graph.edge(*id).expect("an edge")),
                    Counter::Block(block) => barred.allows_block(*block),
                };
                prop_assert!(allowed);
            }
        }
    }

    #[test]
    fn redundant_counters_agree(case in case(7)) {
        let graph = case.graph();
        let truth = Truth::of(&graph, &steps(&graph, &case.choices));
        let (weights, none) = (Weights::estimated(&graph), Barred::none());
        for placement in placements(&graph, &weights, &none).into_iter().take(2) {
            for (edge, _) in graph.live_edges() {
                let Ok(checked) = placement.clone().with_check(&graph, &none, edge) else { continue };
                check_counts(&graph, &checked, &truth)?;
            }
            let cheapest = placement.cheapest_check(&graph, &weights, &none);
            prop_assert!(cheapest.is_none_or(|edge| placement.with_check(&graph, &none, edge).is_ok()));
        }
    }

    #[test]
    fn spanning_trees_are_maximal(case in case(4), seed in prop::collection::vec(0u8..20, 16)) {
        let graph = case.graph();
        let weights = Weights::of(&graph, |id| f64::from(seed[id.index() % 16]));
        let placement = Placement::edge_profile(&graph, &weights, &Barred::none()).expect("a placement");
        let free: Vec<ArcId> = graph.live_edges().filter(|(_, edge)| !edge.silent).map(|(id, _)| id).collect();
        let silent: Vec<ArcId> = graph.live_edges().filter(|(_, edge)| edge.silent).map(|(id, _)| id).collect();
        prop_assume!(free.len() <= 12);
        let vertices = (0..graph.vertices()).filter(|v| graph.is_live(Vertex::at(*v))).count();
        let mut best = f64::INFINITY;
        for set in 0u32..1 << free.len() {
            let (counted, tree): (Vec<_>, Vec<_>) = free.iter().enumerate().partition(|(n, _)| set >> n & 1 == 1);
            let tree: Vec<ArcId> = tree.iter().map(|(_, id)| **id).chain(silent.iter().copied()).collect();
            if tree.len() == vertices - 1 && acyclic(&graph, &tree) {
                best = best.min(counted.iter().map(|(_, id)| weights.edge(**id)).sum());
            }
        }
        prop_assert_eq!(weights.cost(&graph, placement.counters()), best);
    }

    #[test]
    fn block_profiles_lie_between_the_optimum_and_edge_profiles(
        case in case(5),
        seed in prop::collection::vec(0u8..20, 16),
    ) {
        let graph = case.graph();
        let weights = Weights::of(&graph, |id| f64::from(seed[id.index() % 16]));
        let edges: Vec<ArcId> = graph.live_edges().map(|(id, _)| id).collect();
        prop_assume!(edges.len() <= 13);
        let silent = |id: &ArcId| graph.edge(*id).is_some_and(|edge| edge.silent);
        let silent: u32 = (0..).zip(&edges).filter(|(_, id)| silent(id)).map(|(n, _)| 1 << n).sum();
        let piped: Vec<u32> = (1..1 << edges.len()).filter(|set| is_piped_cycle(&graph, &edges, *set)).collect();
        let cost = |free: u32| (0..).zip(&edges).filter(|(n, _)| free >> n & 1 == 0).map(|(_, id)| weights.edge(*id)).sum::<f64>();
        let sets = (0u32..1 << edges.len()).filter(|free| free & silent == silent);
        let valid = sets.filter(|free| piped.iter().all(|cycle| free & cycle != *cycle));
        let optimum = valid.map(cost).fold(f64::INFINITY, f64::min);
        let costs = [Placement::edge_profile, Placement::block_profile]
            .map(|place| weights.cost(&graph, place(&graph, &weights, &Barred::none()).expect("a placement").counters()));
        prop_assert!(optimum <= costs[1] && costs[1] <= costs[0], "{} {:?}", optimum, costs);
        if never_alternates(&graph) {
            prop_assert_eq!(optimum, costs[0]);
        }
        // No cycle without counters has a pipe, and no other counter can be removed.
        let placement = Placement::block_profile(&graph, &weights, &Barred::none()).expect("a placement");
        let bits = |wanted: &dyn Fn(&Counter) -> bool| -> u32 {
            (0..).zip(&edges).filter(|(_, id)| wanted(&Counter::Edge(**id))).map(|(n, _)| 1 << n).sum()
        };
        let free = bits(&|edge| !placement.counters().contains(edge));
        prop_assert!(piped.iter().all(|cycle| free & cycle != *cycle));
        for counter in placement.counters() {
            let more = free | bits(&|edge| edge == counter);
            prop_assert!(piped.iter().any(|cycle| more & cycle == *cycle), "{counter:?}");
        }
    }

    #[test]
    fn block_profiles_cost_no_more_than_edge_profiles(case in case(9)) {
        let graph = case.graph();
        let weights = Weights::estimated(&graph);
        let all = placements(&graph, &weights, &Barred::none());
        let cost = |n: usize| weights.cost(&graph, all[n].counters());
        prop_assert!(cost(1) <= cost(0));
        if never_alternates(&graph) {
            prop_assert_eq!(all[0].counters(), all[1].counters());
        }
    }

    #[test]
    fn estimates_are_finite(case in case(9)) {
        let graph = case.graph();
        let weights = Weights::estimated(&graph);
        for (id, edge) in graph.live_edges() {
            prop_assert!(weights.edge(id).is_finite() && weights.edge(id) >= 0.0);
            if edge.kind == ProfileEdgeKind::Closing {
                prop_assert_eq!(weights.edge(id), 1.0);
            }
        }
        prop_assert_eq!(weights.clone(), Weights::estimated(&graph));
    }
}
