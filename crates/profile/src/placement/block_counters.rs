//! `Vprof(Vcnt)`: the block profile from block counters, by Knuth and Stevenson, "Optimal measurement points for program frequency counts"
//! (1973).
//!
//! An edge connects the end of a block with the beginning of a block. So the ends and beginnings of all blocks fall into classes, and control
//! passes from the ends in a class only to the beginnings in the same class. The *reduced graph* has a vertex for each class. Each block is an
//! edge there, from the class of its beginning to the class of its end. Arrivals at blocks satisfy Kirchhoff's law in the reduced graph, so
//! counters on the chords of its maximum spanning tree determine all blocks.

use ingraft_model::Key;

use crate::barred::{Barred, Counter, NoPlacement};
use crate::flow::propagate;
use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::profile::{Defect, Profile, narrow};
use crate::tree::{Rooted, SpanningTree};
use crate::union::Sets;
use crate::weights::Weights;

#[derive(Clone, Debug)]
pub(super) struct BlockCounters {
    /// The reduced graph. Edge `n` is the `n`-th vertex of `vertices`.
    reduced: ProfileGraph,
    /// The live vertices of the original graph.
    vertices: Vec<Vertex>,
    tree: SpanningTree,
    rooted: Rooted,
    /// The blocks with counters, in ascending order.
    counters: Vec<Vertex>,
}

impl BlockCounters {
    pub(super) fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let (reduced, vertices) = reduced(graph);
        let of = |id: ArcId| vertices.get(id.index()).copied().unwrap_or(graph.entry());
        let weights = Weights::of(&reduced, |id| weights.vertex(graph, of(id)));
        let mut barred_edges = Barred::none();
        let mut not_needed: PerEdge<bool> = reduced.per_edge();
        // A cycle of vertices that are no blocks is left open, because their counts are never needed.
        let mut sets = Sets::new(reduced.vertices());
        for (id, edge) in reduced.live_edges() {
            let vertex = of(id);
            if !graph.is_live_block(vertex) {
                barred_edges.edge(id);
                not_needed.set(id, !sets.unite(edge.from, edge.to));
            } else if !barred.allows_block(vertex) {
                barred_edges.edge(id);
            }
        }
        let tree =
            SpanningTree::without(&reduced, &weights, &barred_edges, |id| not_needed.get(id)).map_err(|refused| {
                let NoPlacement::Edge(edge) = refused else { return refused };
                NoPlacement::Block(of(edge))
            })?;
        let chords = tree.chords(&reduced).into_iter().map(of);
        let counters = chords.filter(|vertex| graph.is_live_block(*vertex)).collect();
        let rooted = tree.rooted(&reduced);
        Ok(BlockCounters { reduced, vertices, tree, rooted, counters })
    }

    pub(super) fn counters(&self) -> &[Vertex] {
        &self.counters
    }

    pub(super) fn profile(
        &self,
        graph: &ProfileGraph,
        counts: &[u64],
        excess: PerVertex<i128>,
    ) -> Result<Profile, Defect> {
        let mut count_of = graph.per_vertex::<i128>();
        for (block, count) in self.counters.iter().zip(counts) {
            count_of.set(*block, i128::from(*count));
        }
        let mut all: PerEdge<i128> = self.reduced.per_edge();
        let mut of_class: PerVertex<i128> = self.reduced.per_vertex();
        let arcs = || self.vertices.iter().zip(self.reduced.edges()).enumerate();
        for (index, (vertex, arc)) in arcs() {
            all.set(ArcId::at(index), count_of.get(*vertex));
            // An activation that starts late in a block leaves it without an arrival.
            of_class.update(arc.to, |sum| sum.wrapping_add(excess.get(*vertex)));
        }
        propagate(&self.reduced, &self.tree, &self.rooted, &mut all, of_class);
        let mut profile = Profile { edges: graph.per_edge(), blocks: graph.per_vertex() };
        for (index, (vertex, _)) in arcs().filter(|(_, (vertex, _))| graph.is_live_block(**vertex)) {
            let count = narrow(all.get(ArcId::at(index)), Counter::Block(*vertex))?;
            profile.blocks.set(*vertex, count);
        }
        Ok(profile)
    }
}

/// The reduced graph of a graph, and the vertex for each of its edges.
fn reduced(graph: &ProfileGraph) -> (ProfileGraph, Vec<Vertex>) {
    let count = graph.vertices();
    let beginning = |vertex: Vertex| Vertex::at(count + vertex.index());
    let mut sets = Sets::new(count * 2);
    for (_, edge) in graph.live_edges() {
        sets.unite(edge.from, beginning(edge.to));
    }
    let mut class: PerVertex<Option<Vertex>> = PerVertex::new(count * 2);
    let mut classes = 0;
    let mut class_of = |end: Vertex| {
        let representative = sets.find(end);
        let known = class.get(representative);
        known.unwrap_or_else(|| {
            let new = Vertex::at(classes);
            classes += 1;
            class.set(representative, Some(new));
            new
        })
    };
    let (mut edges, mut vertices) = (Vec::new(), Vec::new());
    for vertex in (0..count).map(Vertex::at).filter(|vertex| graph.is_live(*vertex)) {
        let (from, to) = (class_of(beginning(vertex)), class_of(vertex));
        edges.push(ProfileEdge { from, to, kind: ProfileEdgeKind::Inner, silent: false });
        vertices.push(vertex);
    }
    // The reduced graph has no entry and no exit of its own; the names of both lie behind its classes.
    let mut live = PerVertex::new(classes);
    (0..classes).for_each(|class| live.set(Vertex::at(class), true));
    (ProfileGraph::new(classes, classes, edges, live), vertices)
}
