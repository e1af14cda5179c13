//! `Vprof(Ecnt)`: the block profile from edge counters.
//!
//! Edges without counters may form a cycle if the cycle has no pipe, that is, if the directions of its edges alternate ("Optimally profiling
//! and tracing programs" (1994), section 3.3). The counts of the cycle's edges are then unknown, but those of its blocks are not.
//!
//! The paper's Figure 11 removes the counter of a chord if the chord's cycle in the spanning tree has no pipe, and shares no vertex with the
//! cycles of other removed counters. The second condition is not necessary, so this crate ignores it. The proof needs the *split graph*. It
//! has two vertices for each vertex here, the beginning and the end. Each edge leads from the end of its source to the beginning of its target.
//!
//! 1. A cycle without a pipe has an even number of edges at each vertex of the split graph. So has every sum (modulo 2) of such cycles.
//! 2. Every simple cycle of tree edges and removed chords is a sum of cycles of removed chords.
//! 3. So it has two edges at the beginning or two at the end of each of its vertices. A pipe would be one of each.
//!
//! It also follows that a chord's cycle has no pipe if, and only if, tree edges connect the ends of the chord in the split graph.

use ingraft_model::Key;

use crate::barred::{Barred, NoPlacement};
use crate::flow::propagate;
use crate::graph::{ProfileEdge, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::profile::{Defect, Profile};
use crate::tree::{Rooted, SpanningTree};
use crate::union::Sets;
use crate::weights::Weights;

#[derive(Clone, Debug)]
pub(super) struct BlockProfile {
    tree: SpanningTree,
    rooted: Rooted,
    counters: Vec<ArcId>,
    /// The edges of cycles without counters. Their counts are unknown.
    unknown: PerEdge<bool>,
}

impl BlockProfile {
    pub(super) fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let tree = SpanningTree::new(graph, weights, barred)?;
        let rooted = tree.rooted(graph);
        let mut split = Split::new(graph);
        graph.live_edges().filter(|(id, _)| tree.contains(*id)).for_each(|(_, edge)| _ = split.unite(edge));
        let closes = |id: &ArcId| graph.edge(*id).is_some_and(|edge| split.connects(edge));
        let (removed, counters) = tree.chords(graph).into_iter().partition::<Vec<_>, _>(closes);
        let unknown = on_cycles(graph, &rooted, &removed);
        Ok(BlockProfile { tree, rooted, counters, unknown })
    }

    pub(super) fn counters(&self) -> &[ArcId] {
        &self.counters
    }

    /// Whether the count of an edge is derived.
    pub(super) fn derives(&self, edge: ArcId) -> bool {
        self.tree.contains(edge) && !self.unknown.get(edge)
    }

    /// The paper's Figure 8: a chord without a counter gets the count 0. So the counts of the edges on its cycle are wrong and may be negative,
    /// but their sums at the blocks are right.
    pub(super) fn profile(
        &self,
        graph: &ProfileGraph,
        counts: &[u64],
        excess: PerVertex<i128>,
    ) -> Result<Profile, Defect> {
        let mut all: PerEdge<i128> = graph.per_edge();
        for (edge, count) in self.counters.iter().zip(counts) {
            all.set(*edge, i128::from(*count));
        }
        propagate(graph, &self.tree, &self.rooted, &mut all, excess);
        super::finish(graph, &all, |edge| !self.unknown.get(edge))
    }
}

/// Sets of connected vertices of the split graph. The beginnings of vertices lie behind the ends of all.
struct Split {
    sets: Sets,
    vertices: usize,
}

impl Split {
    fn new(graph: &ProfileGraph) -> Self {
        Split { sets: Sets::new(graph.vertices() * 2), vertices: graph.vertices() }
    }

    fn beginning(&self, vertex: Vertex) -> Vertex {
        Vertex::at(self.vertices + vertex.index())
    }

    /// Connects the ends of an edge. Returns whether they were not connected before.
    fn unite(&mut self, edge: &ProfileEdge) -> bool {
        self.sets.unite(edge.from, self.beginning(edge.to))
    }

    fn connects(&mut self, edge: &ProfileEdge) -> bool {
        self.sets.find(edge.from) == self.sets.find(self.beginning(edge.to))
    }
}

/// The edges on the cycles that chords close in the tree, the chords included. Takes nearly linear time, because an edge that was found is
/// skipped by later climbs.
fn on_cycles(graph: &ProfileGraph, rooted: &Rooted, chords: &[ArcId]) -> PerEdge<bool> {
    let mut found = graph.per_edge();
    if chords.is_empty() {
        return found;
    }
    let depth = rooted.depths(graph);
    // For each vertex, the vertex itself or one above it, such that the tree edges between them are found.
    let mut skip: PerVertex<Option<Vertex>> = graph.per_vertex();
    let climb = |skip: &mut PerVertex<Option<Vertex>>, mut at: Vertex| {
        while let Some(above) = skip.get(at) {
            let next = skip.get(above).unwrap_or(above);
            skip.set(at, Some(next));
            at = next;
        }
        at
    };
    for chord in chords {
        found.set(*chord, true);
        let Some(edge) = graph.edge(*chord) else { continue };
        let (mut a, mut b) = (climb(&mut skip, edge.from), climb(&mut skip, edge.to));
        while a != b {
            let deeper = if depth.get(a) >= depth.get(b) { &mut a } else { &mut b };
            let Some((id, tree_edge)) = rooted.above.get(*deeper).and_then(|id| Some((id, graph.edge(id)?))) else {
                break;
            };
            found.set(id, true);
            let above = tree_edge.other(*deeper);
            skip.set(*deeper, Some(above));
            *deeper = climb(&mut skip, above);
        }
    }
    found
}

/// Whether no closed walk along the edges changes its direction at every vertex. If so, every cycle of the graph has a pipe: the graph is in the
/// class `G*` of section 3.3.2, where an optimal `Eprof(Ecnt)` is an optimal `Vprof(Ecnt)`. The converse does not hold, because a walk may pass
/// a vertex twice. Takes nearly linear time.
pub fn never_alternates(graph: &ProfileGraph) -> bool {
    // Such a walk is a cycle of the split graph.
    let mut split = Split::new(graph);
    graph.live_edges().all(|(_, edge)| split.unite(edge))
}
