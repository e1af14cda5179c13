//! `Eprof(Ecnt)`: the edge profile from counters on the chords of a maximum spanning tree.

use crate::barred::{Barred, NoPlacement};
use crate::flow::propagate;
use crate::graph::ProfileGraph;
use crate::map::{ArcId, PerEdge, PerVertex};
use crate::profile::{Defect, Profile};
use crate::tree::{Rooted, SpanningTree};
use crate::weights::Weights;

#[derive(Clone, Debug)]
pub(super) struct EdgeProfile {
    tree: SpanningTree,
    rooted: Rooted,
    chords: Vec<ArcId>,
}

impl EdgeProfile {
    pub(super) fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let tree = SpanningTree::new(graph, weights, barred)?;
        let (rooted, chords) = (tree.rooted(graph), tree.chords(graph));
        Ok(EdgeProfile { tree, rooted, chords })
    }

    pub(super) fn rooted(&self) -> &Rooted {
        &self.rooted
    }

    pub(super) fn chords(&self) -> &[ArcId] {
        &self.chords
    }

    /// For each tree edge, the number of vertices on its side of the tree without ENTRY. A thread that is lost at one of these vertices changes
    /// the derived count of the edge.
    pub(super) fn spans(&self, graph: &ProfileGraph) -> PerEdge<usize> {
        let mut sizes: PerVertex<usize> = graph.per_vertex();
        let mut spans: PerEdge<usize> = graph.per_edge();
        for vertex in self.rooted.order.iter().rev() {
            let size = sizes.update(*vertex, |size| size.saturating_add(1));
            if let Some((id, edge)) = self.rooted.above.get(*vertex).and_then(|id| Some((id, graph.edge(id)?))) {
                sizes.update(edge.other(*vertex), |sum| sum.saturating_add(size));
                spans.set(id, size);
            }
        }
        spans
    }

    /// Whether the count of an edge is derived.
    pub(super) fn derives(&self, edge: ArcId) -> bool {
        self.tree.contains(edge)
    }

    pub(super) fn profile(
        &self,
        graph: &ProfileGraph,
        counts: &[u64],
        excess: PerVertex<i128>,
    ) -> Result<Profile, Defect> {
        let mut all: PerEdge<i128> = graph.per_edge();
        for (chord, count) in self.chords.iter().zip(counts) {
            all.set(*chord, i128::from(*count));
        }
        propagate(graph, &self.tree, &self.rooted, &mut all, excess);
        super::finish(graph, &all, |_| true)
    }
}
