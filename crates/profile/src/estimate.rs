//! Weights from the structure of a graph alone: "Optimally profiling and tracing programs" (1994), section 5.
//!
//! The estimate assumes that every loop runs ten times, and that every branch goes each way equally often. It follows the paper's three rules,
//! with these additions:
//!
//! - The paper finds loops as natural loops of back edges, which do not nest in an irreducible graph. Havlak's loops nest in any graph, and
//!   are the same in a reducible one.
//! - An end edge weighs 0 where another edge leaves its vertex: a call that may not return usually does.
//! - If the exits of a loop that leave a vertex weigh more than the vertex, rule 3 would give its other edges negative weights. They weigh 0
//!   instead.
//! - If more than 63 loops lie around a loop, its blocks belong to the loop around it.

use crate::graph::{ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::structure::Structure;
use crate::weights::{WEIGHT_MAX, Weights};

/// Expected number of iterations of a loop for each time that control enters it.
const LOOP_MULTIPLIER: f64 = 10.0;

impl Weights {
    /// Estimates weights from the structure of the graph. The closing edge weighs 1, so a weight is a number of passages for each
    /// activation. Takes nearly linear time.
    pub fn estimated(graph: &ProfileGraph) -> Self {
        let structure = Structure::new(graph);
        let mut estimate = Estimate { graph, structure, exits: Vec::new(), weight: graph.per_edge() };
        estimate.find_exits();
        estimate.run();
        let weight = estimate.weight;
        Weights::of(graph, |edge| weight.get(edge).unwrap_or(0.0))
    }
}

struct Estimate<'a> {
    graph: &'a ProfileGraph,
    structure: Structure,
    /// The edges that leave each loop, by the loop's index.
    exits: Vec<Vec<ArcId>>,
    /// The weights found so far.
    weight: PerEdge<Option<f64>>,
}

impl Estimate<'_> {
    /// Finds the edges that leave loops: `loop-exits` of the paper.
    fn find_exits(&mut self) {
        self.exits = vec![Vec::new(); self.structure.loops()];
        if self.exits.is_empty() {
            return;
        }
        let mut others: PerVertex<bool> = self.graph.per_vertex();
        for (_, edge) in self.graph.live_edges().filter(|(_, edge)| edge.kind != ProfileEdgeKind::End) {
            others.set(edge.from, true);
        }
        for (id, edge) in self.graph.live_edges() {
            if edge.kind == ProfileEdgeKind::Closing || edge.kind == ProfileEdgeKind::End && others.get(edge.from) {
                continue;
            }
            for left in self.structure.left_by(edge) {
                self.exits.get_mut(left).into_iter().for_each(|exits| exits.push(id));
            }
        }
    }

    fn run(&mut self) {
        self.weight.set(self.graph.closing(), Some(1.0));
        for at in 0..self.structure.order.len() {
            let Some(vertex) = self.structure.order.get(at).copied() else { return };
            // Rule 1.
            let arrives = self.graph.entering(vertex).filter(|(id, _)| !self.structure.is_back_edge(self.graph, *id));
            let mut weight: f64 = arrives.map(|(id, _)| self.weight.get(id).unwrap_or(0.0)).sum();
            // Rule 2.
            if let Some(headed) = self.structure.headed_by(vertex) {
                let exits = self.exits.get(headed).map(Vec::as_slice).unwrap_or_default();
                for exit in exits {
                    let share = weight / exits.len() as f64;
                    self.weight.update(*exit, |known| known.or(Some(share)));
                }
                weight = (weight * LOOP_MULTIPLIER).min(WEIGHT_MAX);
            }
            self.share(vertex, weight);
        }
    }

    /// Rule 3: shares the weight of a vertex among its edges that leave no loop.
    fn share(&mut self, vertex: Vertex, weight: f64) {
        let mut rest = weight;
        let (mut shares, mut ends) = (0u32, 0u32);
        for (id, edge) in self.graph.leaving(vertex) {
            match self.weight.get(id) {
                Some(exit) => rest -= exit,
                None if edge.kind == ProfileEdgeKind::End => ends += 1,
                None => shares += 1,
            }
        }
        let (share, end) =
            if shares > 0 { (rest / f64::from(shares), 0.0) } else { (0.0, rest / f64::from(ends.max(1))) };
        for (id, edge) in self.graph.leaving(vertex) {
            let share = if edge.kind == ProfileEdgeKind::End { end } else { share };
            self.weight.update(id, |known| known.or(Some(share.max(0.0))));
        }
    }
}
