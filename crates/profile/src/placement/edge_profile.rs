//! `Eprof(Ecnt)`: the edge profile from counters on the chords of a maximum spanning tree.

use crate::barred::{Barred, Refused};
use crate::flow::propagate;
use crate::graph::Graph;
use crate::map::{EdgeId, PerEdge, PerVertex};
use crate::profile::{Defect, Profile};
use crate::tree::{Rooted, Tree};
use crate::weights::Weights;

#[derive(Clone, Debug)]
pub(super) struct EdgeProfile {
    tree: Tree,
    rooted: Rooted,
    chords: Vec<EdgeId>,
}

impl EdgeProfile {
    pub(super) fn new(graph: &Graph, weights: &Weights, barred: &Barred) -> Result<Self, Refused> {
        let tree = Tree::new(graph, weights, barred)?;
        let (rooted, chords) = (tree.rooted(graph), tree.chords(graph));
        Ok(EdgeProfile { tree, rooted, chords })
    }

    pub(super) fn chords(&self) -> &[EdgeId] {
        &self.chords
    }

    /// Whether the count of an edge is derived.
    pub(super) fn derives(&self, edge: EdgeId) -> bool {
        self.tree.contains(edge)
    }

    pub(super) fn profile(&self, graph: &Graph, counts: &[u64], excess: PerVertex<i128>) -> Result<Profile, Defect> {
        let mut all: PerEdge<i128> = graph.per_edge();
        for (chord, count) in self.chords.iter().zip(counts) {
            all.set(*chord, i128::from(*count));
        }
        propagate(graph, &self.tree, &self.rooted, &mut all, excess);
        super::finish(graph, &all, |_| true)
    }
}
