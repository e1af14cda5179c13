//! Maximum spanning trees, and the order in which counts are derived along them.

use crate::barred::{Barred, NoPlacement};
use crate::graph::{ProfileEdge, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::union::Sets;
use crate::weights::Weights;

/// Edges without a cycle (edges taken in both directions).
#[derive(Clone, Debug)]
pub(crate) struct SpanningTree {
    within: PerEdge<bool>,
}

impl SpanningTree {
    /// Kruskal's maximum spanning tree of the live vertices, with all edges that can carry no counter. Of edges with equal weights, the one
    /// with the lower index is taken first. If the edges that can carry no counter form a cycle, an edge of the cycle is refused.
    pub(crate) fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<SpanningTree, NoPlacement> {
        Self::without(graph, weights, barred, |_| false)
    }

    /// As [`SpanningTree::new`], without the edges that `left_out` names. The result is a forest if these disconnect the graph.
    pub(crate) fn without(
        graph: &ProfileGraph,
        weights: &Weights,
        barred: &Barred,
        left_out: impl Fn(ArcId) -> bool,
    ) -> Result<SpanningTree, NoPlacement> {
        let (tree, bare) = Self::with_bare(graph, weights, barred, left_out);
        bare.first().map_or(Ok(tree), |edge| Err(NoPlacement::Edge(*edge)))
    }

    /// As [`SpanningTree::without`], but returns the edges that can carry no counter and close a cycle with others of this kind.
    pub(crate) fn with_bare(
        graph: &ProfileGraph,
        weights: &Weights,
        barred: &Barred,
        left_out: impl Fn(ArcId) -> bool,
    ) -> (SpanningTree, Vec<ArcId>) {
        let mut tree = SpanningTree { within: graph.per_edge() };
        let mut sets = Sets::new(graph.vertices());
        let (mut open, mut bare) = (Vec::with_capacity(graph.edges().len()), Vec::new());
        for (id, edge) in graph.live_edges().filter(|(id, _)| !left_out(*id)) {
            if barred.allows_edge(id, edge) {
                open.push((weights.edge(id), id, edge.from, edge.to));
            } else if sets.unite(edge.from, edge.to) {
                tree.within.set(id, true);
            } else {
                bare.push(id);
            }
        }
        open.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, id, from, to) in open {
            if sets.unite(from, to) {
                tree.within.set(id, true);
            }
        }
        (tree, bare)
    }

    /// Whether an edge is in the tree.
    pub(crate) fn contains(&self, edge: ArcId) -> bool {
        self.within.get(edge)
    }

    /// The live edges outside of the tree, the chords, in ascending order.
    pub(crate) fn chords(&self, graph: &ProfileGraph) -> Vec<ArcId> {
        graph.live_edges().filter(|(id, _)| !self.contains(*id)).map(|(id, _)| id).collect()
    }

    /// The tree edges at a vertex.
    pub(crate) fn around<'a>(
        &'a self,
        graph: &'a ProfileGraph,
        vertex: Vertex,
    ) -> impl Iterator<Item = (ArcId, &'a ProfileEdge)> {
        graph.leaving(vertex).chain(graph.entering(vertex)).filter(|(id, _)| self.contains(*id))
    }

    /// The vertices of each tree, every vertex after the one above it. ENTRY is the root of its tree.
    pub(crate) fn rooted(&self, graph: &ProfileGraph) -> Rooted {
        let mut rooted = Rooted { order: Vec::with_capacity(graph.vertices()), above: graph.per_vertex() };
        let mut seen: PerVertex<bool> = graph.per_vertex();
        let blocks = seen.iter().map(|(vertex, _)| vertex).collect::<Vec<_>>();
        for root in [graph.entry()].into_iter().chain(blocks) {
            if seen.get(root) || !graph.is_live(root) {
                continue;
            }
            seen.set(root, true);
            let mut open = vec![root];
            while let Some(vertex) = open.pop() {
                rooted.order.push(vertex);
                for (id, edge) in self.around(graph, vertex) {
                    let next = edge.other(vertex);
                    if !seen.get(next) {
                        seen.set(next, true);
                        rooted.above.set(next, Some(id));
                        open.push(next);
                    }
                }
            }
        }
        rooted
    }
}

/// A tree or forest with roots.
#[derive(Clone, Debug)]
pub(crate) struct Rooted {
    /// The live vertices in depth-first order: every vertex comes after the one above it, and a subtree is a run.
    pub(crate) order: Vec<Vertex>,
    /// The tree edge from each vertex to the vertex above it; `None` for a root.
    pub(crate) above: PerVertex<Option<ArcId>>,
}

impl Rooted {
    /// Number of tree edges from each live vertex to the root of its tree.
    pub(crate) fn depths(&self, graph: &ProfileGraph) -> PerVertex<u32> {
        let mut depths: PerVertex<u32> = graph.per_vertex();
        for vertex in &self.order {
            if let Some(edge) = self.above.get(*vertex).and_then(|id| graph.edge(id)) {
                depths.set(*vertex, depths.get(edge.other(*vertex)).saturating_add(1));
            }
        }
        depths
    }
}
