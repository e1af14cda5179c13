//! Counting of events in one counter.

use ingraft_model::Key;
use ingraft_profile::{
    ArcId, Barred, Corrections, EventPlan, Events, NoPlacement, ProfileGraph, Uncountable, Vertex, Weights,
};
use proptest::prelude::*;

use crate::execution::{Step, steps};
use crate::figures::{BLOCKS, edge, name, printed, running_example};
use crate::random::case;

/// A plan whose chords are those of Figure 1, and a number for each name such that sums show their terms.
fn figure_1() -> (ProfileGraph, EventPlan) {
    let graph = running_example();
    let mut events = Events::new(&graph);
    for (block, name) in BLOCKS.iter().enumerate() {
        events.set_vertex(Vertex::at(block), term(name));
    }
    events.set_vertex(graph.exit(), term("EXIT"));
    let mut barred = Barred::none();
    ["A>R", "B>R"].iter().for_each(|name| barred.edge(edge(&graph, name)));
    let plan = EventPlan::new(&graph, &printed(&graph), &barred, &events).expect("a plan");
    (graph, plan)
}

fn term(name: &str) -> i64 {
    let index = BLOCKS.iter().position(|block| *block == name).unwrap_or(BLOCKS.len());
    100i64.pow(u32::try_from(index).expect("an index"))
}

/// The value of a sum such as `P+Q-C`.
fn sum(text: &str) -> i64 {
    let terms = text.replace('-', "+-");
    terms
        .split('+')
        .filter(|term| !term.is_empty() && *term != "0")
        .map(|one| one.strip_prefix('-').map_or_else(|| term(one), |one| -term(one)))
        .sum()
}

#[test]
fn figure_1_increments() {
    let (graph, plan) = figure_1();
    let found: Vec<(String, i64)> = plan.increments().iter().map(|(id, by)| (name(&graph, *id), *by)).collect();
    let expected = [("Q>A", "P+Q+A+R+C"), ("Q>B", "P+Q+B+R+C"), ("P>EXIT", "P+EXIT"), ("R>EXIT", "EXIT-C")];
    assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), sum(text))));
}

#[test]
fn figure_1_query_increments() {
    let (_, plan) = figure_1();
    for (block, text) in BLOCKS.iter().zip(["P", "P+Q", "-R-C", "-R-C", "-C", "0"]) {
        let index = BLOCKS.iter().position(|name| name == block).expect("a block");
        assert_eq!(plan.query(Vertex::at(index)), Some(sum(text)), "{block}");
    }
    assert_eq!(plan.query(Vertex::at(BLOCKS.len())), None);
}

#[test]
fn bare_cycles_count_only_if_they_have_no_events() {
    let graph = running_example();
    let mut barred = Barred::none();
    graph.live_edges().for_each(|(id, _)| barred.edge(id));
    let weights = printed(&graph);
    let mut events = Events::new(&graph);
    let plan = EventPlan::new(&graph, &weights, &barred, &events).expect("nothing to count");
    assert_eq!((plan.increments(), plan.query(Vertex(0))), (&[][..], Some(0)));
    events.set_edge(edge(&graph, "Q>A"), 1);
    let refused = EventPlan::new(&graph, &weights, &barred, &events).expect_err("a cycle with events");
    assert!(matches!(refused, Uncountable::Refused(NoPlacement::Edge(_))));
}

#[test]
fn increments_that_are_too_large_are_named() {
    let graph = running_example();
    let mut events = Events::new(&graph);
    (0..6).for_each(|block| events.set_vertex(Vertex::at(block), i64::MAX));
    let plan = EventPlan::new(&graph, &printed(&graph), &Barred::none(), &events);
    assert!(matches!(plan, Err(Uncountable::Overflow(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn totals_are_exact_at_every_moment(case in case(9), seed in prop::collection::vec(-9i64..10, 40)) {
        let graph = case.graph();
        let mut events = Events::new(&graph);
        for (n, count) in seed.iter().enumerate() {
            if n % 2 == 0 {
                events.set_vertex(Vertex::at(n / 2), *count);
            } else {
                events.set_edge(ArcId::at(n / 2), *count);
            }
        }
        let plan = EventPlan::new(&graph, &Weights::estimated(&graph), &Barred::none(), &events).expect("a plan");
        let (mut counter, mut truth, mut corrections) = (0i64, 0i128, Corrections::none());
        for step in steps(&graph, &case.choices) {
            let mut at = None;
            match step {
                Step::Late(block) => {
                    corrections.late.push((block, 1));
                    at = Some(block);
                }
                Step::Early(block) => corrections.early.push((block, 1)),
                Step::Pass(id) => {
                    let edge = graph.edge(id).expect("an edge");
                    counter += plan.increments().iter().find(|(chord, _)| *chord == id).map_or(0, |(_, by)| *by);
                    truth += events.of(id, edge);
                    at = Some(edge.to).filter(|to| *to != graph.exit());
                }
            }
            let mut now = corrections.clone();
            now.early.extend(at.map(|block| (block, 1)));
            prop_assert_eq!(plan.total(counter, &now).map(i128::from), Ok(truth), "after {:?}", step);
        }
    }
}
