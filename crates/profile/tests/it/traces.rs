//! Traces of one function, and of several functions in one buffer.

use ingraft_model::Key;
use ingraft_profile::{
    ArcId, Barred, GraphBuilder, NoPlacement, ProfileEdgeKind, ProfileGraph, Replay, TraceDefect, TraceEntry, Vertex,
    Weights, Witnesses, regenerate,
};
use proptest::prelude::*;

use crate::execution::{Step, steps};
use crate::random::case;

/// "Optimally profiling and tracing programs" (1994), Figure 13: the graph, and the edges with the witnesses t, u and v.
fn figure_13() -> (ProfileGraph, [ArcId; 3]) {
    let [p, a, b, c] = [0, 1, 2, 3].map(Vertex);
    let mut shape = GraphBuilder::new(4);
    let t = shape.edge(p, a);
    shape.edge(p, b);
    shape.edge(a, c);
    let (u, v) = (shape.edge(b, a), shape.edge(b, c));
    shape.edge(c, p);
    shape.leave(c);
    shape.root(p);
    (shape.build().expect("a graph"), [t, u, v])
}

fn names(graph: &ProfileGraph, vertices: &[Vertex]) -> String {
    let one = |vertex: &Vertex| if *vertex == graph.exit() { "EXIT" } else { ["P", "A", "B", "C"][vertex.index()] };
    vertices.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn figure_13_is_regenerated_from_t_u_v() {
    let (graph, [t, u, v]) = figure_13();
    let witnesses = Witnesses::of(&graph, &[t, u, v]).expect("witnesses");
    let trace =
        [t, u, v].map(TraceEntry::Witness).into_iter().chain([TraceEntry::End(graph.exit())]).collect::<Vec<_>>();
    let vertices = regenerate(&graph, &witnesses, graph.entry(), &trace).expect("an execution");
    assert_eq!(names(&graph, &vertices), "P A C P B A C P B C EXIT");
}

#[test]
fn figure_13_witness_sets() {
    let (graph, [t, u, v]) = figure_13();
    let witnesses = Witnesses::of(&graph, &[t, u, v]).expect("witnesses");
    let [t, u, v] = [t, u, v].map(TraceEntry::Witness);
    // P>A, P>B, A>C, B>A, B>C, C>P, C>EXIT
    let end = TraceEntry::End(graph.exit());
    let sets = [vec![t], vec![u, v], vec![t, u, v, end], vec![u], vec![v], vec![t, u, v], vec![end]];
    for (edge, set) in sets.into_iter().enumerate() {
        assert_eq!(witnesses.next_tokens(&graph, ArcId::at(edge)), set, "edge {edge}");
    }
}

#[test]
fn figure_13_needs_the_witness_on_p_a() {
    let (graph, [_, u, v]) = figure_13();
    assert!(matches!(Witnesses::of(&graph, &[u, v]), Err(NoPlacement::Edge(_))));
}

#[test]
fn foreign_and_short_traces_are_defects() {
    let (graph, [t, u, v]) = figure_13();
    let witnesses = Witnesses::of(&graph, &[t, u, v]).expect("witnesses");
    let run = |trace: &[TraceEntry]| regenerate(&graph, &witnesses, graph.entry(), trace);
    assert_eq!(run(&[TraceEntry::Witness(t)]), Err(TraceDefect::Short { at: Vertex(1) }));
    for token in [
        TraceEntry::Witness(ArcId(1)),
        TraceEntry::Witness(ArcId(99)),
        TraceEntry::End(graph.exit()),
        TraceEntry::End(Vertex(99)),
    ] {
        assert_eq!(run(&[token]), Err(TraceDefect::Impossible { at: graph.entry(), token }));
    }
}

/// The tokens that an execution writes, with the end of each activation unless `blocked`, and the edges that it passes, by activation.
fn record(graph: &ProfileGraph, witnesses: &Witnesses, steps: &[Step]) -> Vec<(Vertex, Vec<TraceEntry>, Vec<ArcId>)> {
    let mut activations: Vec<(Vertex, Vec<TraceEntry>, Vec<ArcId>)> = Vec::new();
    let mut open = false;
    for step in steps {
        if !open {
            let start = if let Step::Late(block) = step { *block } else { graph.entry() };
            activations.push((start, Vec::new(), Vec::new()));
            open = true;
        }
        let (_, tokens, edges) = activations.last_mut().expect("an activation");
        match step {
            Step::Late(_) => {}
            Step::Early(block) => {
                tokens.push(TraceEntry::End(*block));
                open = false;
            }
            Step::Pass(id) => {
                let edge = graph.edge(*id).expect("an edge");
                if edge.kind == ProfileEdgeKind::End {
                    tokens.push(TraceEntry::End(edge.from));
                    open = false;
                    continue;
                }
                edges.push(*id);
                if witnesses.writes(*id) {
                    tokens.push(TraceEntry::Witness(*id));
                }
                if edge.to == graph.exit() {
                    tokens.push(TraceEntry::End(edge.to));
                    open = false;
                }
            }
        }
    }
    activations
}

fn replay(replay: &mut Replay<'_>, tokens: &mut std::vec::IntoIter<TraceEntry>) -> Result<Vec<ArcId>, TraceDefect> {
    let mut edges = Vec::new();
    while let Some(edge) = replay.next_edge(|| tokens.next())? {
        edges.push(edge);
    }
    Ok(edges)
}

/// An execution of a function that calls itself in each block of `calls`: the tokens it writes, and the edges and returns that it passes.
struct Recursion<'a> {
    graph: &'a ProfileGraph,
    witnesses: &'a Witnesses,
    calls: &'a [Vertex],
    tokens: Vec<TraceEntry>,
    passed: Vec<Option<ArcId>>,
}

impl Recursion<'_> {
    /// Runs one activation until it leaves the function. Returns `None` if the choices run out before, or control ends elsewhere.
    fn run(&mut self, choices: &mut std::slice::Iter<'_, u8>, depth: usize) -> Option<()> {
        let mut at = self.graph.entry();
        while at != self.graph.exit() {
            if self.calls.contains(&at) {
                (depth < 5).then_some(())?;
                self.run(choices, depth + 1)?;
            }
            let ways: Vec<_> = self.graph.leaving(at).filter(|(_, edge)| edge.kind != ProfileEdgeKind::End).collect();
            let choice = usize::from(*choices.next()?);
            let (id, edge) = ways.get(choice % ways.len().max(1))?;
            self.passed.push(Some(*id));
            if self.witnesses.writes(*id) {
                self.tokens.push(TraceEntry::Witness(*id));
            }
            at = edge.to;
        }
        self.passed.push(None);
        Some(())
    }

    /// Replays one activation, and those that it calls.
    fn replay(
        &self,
        tokens: &mut std::vec::IntoIter<TraceEntry>,
        passed: &mut Vec<Option<ArcId>>,
    ) -> Result<(), TraceDefect> {
        let mut replay = Replay::new(self.graph, self.witnesses, self.graph.entry());
        loop {
            if self.calls.contains(&replay.at()) {
                self.replay(tokens, passed)?;
            }
            let edge = replay.next_edge(|| tokens.next())?;
            passed.push(edge);
            if edge.is_none() {
                return Ok(());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn traces_regenerate_every_activation(case in case(9)) {
        let graph = case.graph();
        let witnesses = Witnesses::new(&graph, &Weights::estimated(&graph), &Barred::none()).expect("witnesses");
        for (start, tokens, edges) in record(&graph, &witnesses, &steps(&graph, &case.choices)) {
            let mut tokens = tokens.into_iter();
            let found = replay(&mut Replay::new(&graph, &witnesses, start), &mut tokens);
            prop_assert_eq!(found, Ok(edges));
            prop_assert!(tokens.next().is_none());
        }
    }

    #[test]
    fn token_sets_of_a_branch_share_no_token(case in case(9)) {
        let graph = case.graph();
        let witnesses = Witnesses::new(&graph, &Weights::estimated(&graph), &Barred::none()).expect("witnesses");
        for vertex in (0..graph.vertices()).map(Vertex::at) {
            let mut all: Vec<TraceEntry> =
                graph.leaving(vertex).flat_map(|(id, _)| witnesses.next_tokens(&graph, id)).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count);
        }
    }

    #[test]
    fn traces_of_calls_share_one_buffer(case in case(7), calls in prop::collection::vec(0usize..7, 0..3)) {
        let graph = case.graph();
        let calls: Vec<Vertex> = calls.into_iter().filter(|block| *block < graph.blocks()).map(Vertex::at).collect();
        let weights = Weights::estimated(&graph);
        let witnesses = Witnesses::with_blockers(&graph, &weights, &Barred::none(), &calls).expect("witnesses");
        let mut run = Recursion { graph: &graph, witnesses: &witnesses, calls: &calls, tokens: vec![], passed: vec![] };
        if run.run(&mut case.choices.iter(), 0).is_none() {
            return Ok(());
        }
        let (mut tokens, mut passed) = (run.tokens.clone().into_iter(), Vec::new());
        prop_assert_eq!(run.replay(&mut tokens, &mut passed), Ok(()));
        prop_assert_eq!(&passed, &run.passed);
        prop_assert!(tokens.next().is_none());
    }

    #[test]
    fn any_trace_has_an_end(case in case(7), trace in prop::collection::vec((any::<bool>(), 0u32..30), 0..40)) {
        let graph = case.graph();
        let witnesses = Witnesses::new(&graph, &Weights::estimated(&graph), &Barred::none()).expect("witnesses");
        let token = |(end, n): (bool, u32)| if end { TraceEntry::End(Vertex(n)) } else { TraceEntry::Witness(ArcId(n)) };
        let trace: Vec<TraceEntry> = trace.into_iter().map(token).collect();
        if let Ok(vertices) = regenerate(&graph, &witnesses, graph.entry(), &trace) {
            prop_assert!(vertices.len() <= (trace.len() + 1) * graph.vertices());
        }
    }
}
