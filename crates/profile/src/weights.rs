//! Weights: expected or measured frequencies of edges. A counter on an edge of little weight is cheap.

use crate::barred::Counter;
use crate::graph::{ProfileEdge, ProfileGraph};
use crate::map::{ArcId, PerEdge, Vertex};
use crate::profile::Profile;

/// Largest weight. Estimates for deeply nested loops stop growing there, so that no sum of weights is infinite.
pub(crate) const WEIGHT_MAX: f64 = 1e200;

/// A weight for each edge of a graph: the expected number of passages for each activation, or a measured number. Weights are finite and not
/// negative. All arithmetic is in a fixed order, so equal graphs have equal weights on every machine.
///
/// Weights decide only where counters are placed. Any weights give exact profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    edges: PerEdge<f64>,
}

impl Weights {
    /// Takes weights from a function of the edge. If a weight is negative or no number, it becomes 0. If it exceeds 1e200, it becomes 1e200.
    /// Edges that are not live weigh 0.
    pub fn of(graph: &ProfileGraph, weight: impl Fn(ArcId) -> f64) -> Self {
        let mut edges = graph.per_edge();
        for (id, _) in graph.live_edges() {
            let weight = weight(id);
            edges.set(id, if weight > 0.0 { weight.min(WEIGHT_MAX) } else { 0.0 });
        }
        Weights { edges }
    }

    /// Takes the counts of an earlier profile of the same graph. An edge whose count is unknown weighs the smaller count of its two blocks.
    pub fn measured(graph: &ProfileGraph, profile: &Profile) -> Self {
        let bound = |edge: &ProfileEdge| {
            let ends = [edge.from, edge.to].into_iter().filter(|end| graph.is_live_block(*end));
            ends.map(|end| profile.block(end)).min().unwrap_or(0)
        };
        Self::of(graph, |id| profile.edge(id).or_else(|| graph.edge(id).map(bound)).unwrap_or(0) as f64)
    }

    /// The same weight for every live edge. With these weights, the cheapest placement has the fewest counters.
    pub fn uniform(graph: &ProfileGraph) -> Self {
        Self::of(graph, |_| 1.0)
    }

    /// Weight of an edge.
    pub fn edge(&self, edge: ArcId) -> f64 {
        self.edges.get(edge)
    }

    /// Weight of a vertex: the sum of the weights of the edges that enter it (1994, section 2).
    pub fn vertex(&self, graph: &ProfileGraph, vertex: Vertex) -> f64 {
        graph.entering(vertex).map(|(id, _)| self.edge(id)).sum()
    }

    /// Cost of counters: the sum of the weights of their edges and blocks (1994, section 2). If the weights are
    /// expected passages for each activation, the cost is the expected number of increments for each activation.
    pub fn cost(&self, graph: &ProfileGraph, counters: &[Counter]) -> f64 {
        let one = |counter: &Counter| match counter {
            Counter::Edge(edge) => self.edge(*edge),
            Counter::Block(block) => self.vertex(graph, *block),
        };
        counters.iter().map(one).sum()
    }
}
