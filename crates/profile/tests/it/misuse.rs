//! Calls with the graph of another function, and with counts of nothing: results are of no use, but every call returns.

use ingraft_profile::{
    ArcId, Barred, Corrections, EventPlan, Events, PathNumbers, Placement, TraceEntry, Vertex, Weights, Witnesses,
    regenerate,
};
use proptest::prelude::*;

use crate::random::{case, case_with_joints};

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_call_returns(
        a in case(9),
        b in case_with_joints(9),
        counts in prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], 30),
        blocks in prop::collection::vec(((0u32..12).prop_map(Vertex), any::<u64>()), 0..4),
        events in prop::collection::vec(any::<i64>(), 30),
    ) {
        let (a, b) = (a.graph(), b.graph());
        let (weights, none) = (Weights::estimated(&a), Barred::none());
        let corrections = Corrections { late: blocks.clone(), early: blocks };
        let edges = Placement::edge_profile(&a, &weights, &none);
        let placements = [edges, Placement::block_profile(&a, &weights, &none), Placement::block_counters(&a, &weights, &none)];
        for placement in placements.into_iter().flatten() {
            let counts = &counts[..placement.counters().len().min(counts.len())];
            for graph in [&a, &b] {
                _ = placement.profile(graph, counts, &corrections);
                _ = placement.cheapest_check(graph, &weights, &none);
            }
        }
        _ = Placement::edge_profile(&b, &weights, &none);
        let mut costs = Events::new(&a);
        for (n, cost) in (0..).zip(&events) {
            costs.set_vertex(Vertex(n), *cost);
            costs.set_edge(ArcId(n), *cost);
        }
        for graph in [&a, &b] {
            if let Ok(plan) = EventPlan::new(graph, &weights, &none, &costs) {
                _ = plan.total(i64::MIN, &corrections);
            }
        }
        let witnesses = Witnesses::new(&a, &weights, &none).expect("witnesses");
        let numbers = PathNumbers::new(&a).expect("numbers");
        let tokens: Vec<TraceEntry> = (0..30).map(|n| TraceEntry::Witness(ArcId(n))).collect();
        for (start, graph) in (0..).map(Vertex).zip([&a, &b]) {
            _ = regenerate(graph, &witnesses, start, &tokens);
            _ = (0..30).map(|edge| witnesses.next_tokens(graph, ArcId(edge)).len()).sum::<usize>();
            _ = (0..30).filter_map(|number| numbers.path(graph, number)).count();
            _ = numbers.increments(graph, &weights, &none);
        }
    }
}
