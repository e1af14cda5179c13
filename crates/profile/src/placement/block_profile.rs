//! `Vprof(Ecnt)`: the block profile from edge counters.
//!
//! "Optimally profiling and tracing programs" (1994), section 3.3: edges without counters may form a cycle if the cycle has no pipe, that is,
//! if the directions of its edges alternate. The counts of the cycle's edges are then unknown, but those of its blocks are not.

use crate::barred::{Barred, Refused};
use crate::flow::propagate;
use crate::graph::Graph;
use crate::map::{EdgeId, Key, PerEdge, PerVertex, Vertex};
use crate::profile::{Defect, Profile};
use crate::tree::{Rooted, Tree};
use crate::union::Sets;
use crate::weights::Weights;

#[derive(Clone, Debug)]
pub(super) struct BlockProfile {
    tree: Tree,
    rooted: Rooted,
    counters: Vec<EdgeId>,
    /// The edges of cycles without counters. Their counts are unknown.
    unknown: PerEdge<bool>,
}

impl BlockProfile {
    pub(super) fn new(graph: &Graph, weights: &Weights, barred: &Barred) -> Result<Self, Refused> {
        let tree = Tree::new(graph, weights, barred)?;
        let rooted = tree.rooted(graph);
        let mut chords = tree.chords(graph);
        chords.sort_by(|a, b| weights.edge(*b).total_cmp(&weights.edge(*a)).then(a.cmp(b)));
        let mut removal = Removal::new(graph, &rooted);
        chords.retain(|chord| !removal.remove(*chord));
        chords.sort_unstable();
        let unknown = removal.unknown;
        Ok(BlockProfile { tree, rooted, counters: chords, unknown })
    }

    pub(super) fn counters(&self) -> &[EdgeId] {
        &self.counters
    }

    /// Whether the count of an edge is derived.
    pub(super) fn derives(&self, edge: EdgeId) -> bool {
        self.tree.contains(edge) && !self.unknown.get(edge)
    }

    /// The paper's Figure 8: a chord without a counter is taken to have the count 0. The counts of the edges on its cycle are wrong then, and
    /// may be negative, but their sums at the blocks are right.
    pub(super) fn profile(&self, graph: &Graph, counts: &[u64], excess: PerVertex<i128>) -> Result<Profile, Defect> {
        let mut all: PerEdge<i128> = graph.per_edge();
        for (edge, count) in self.counters.iter().zip(counts) {
            all.set(*edge, i128::from(*count));
        }
        propagate(graph, &self.tree, &self.rooted, &mut all, excess);
        super::finish(graph, &all, |edge| !self.unknown.get(edge))
    }
}

/// Removal of counters from chords whose cycle has no pipe: the paper's Figure 11.
struct Removal<'a> {
    graph: &'a Graph,
    rooted: &'a Rooted,
    depth: PerVertex<u32>,
    /// The vertices on cycles without counters. Two such cycles share no vertex, because together they could form one with a pipe.
    marked: PerVertex<bool>,
    unknown: PerEdge<bool>,
}

/// One end of a path that grows towards the root of the tree.
#[derive(Clone, Copy)]
struct End {
    vertex: Vertex,
    /// Whether the last edge of the path enters the vertex.
    entered: bool,
}

impl<'a> Removal<'a> {
    fn new(graph: &'a Graph, rooted: &'a Rooted) -> Self {
        let mut depth: PerVertex<u32> = graph.per_vertex();
        for vertex in &rooted.order {
            if let Some(edge) = rooted.above.get(*vertex).and_then(|id| graph.edge(id)) {
                depth.set(*vertex, depth.get(edge.other(*vertex)).saturating_add(1));
            }
        }
        Removal { graph, rooted, depth, marked: graph.per_vertex(), unknown: graph.per_edge() }
    }

    /// Whether the counter of a chord can be removed. If so, the vertices of the chord's cycle are marked, and its edges are unknown.
    fn remove(&mut self, chord: EdgeId) -> bool {
        let Some((vertices, edges)) = self.cycle(chord) else { return false };
        vertices.into_iter().for_each(|vertex| self.marked.set(vertex, true));
        edges.into_iter().for_each(|edge| self.unknown.set(edge, true));
        true
    }

    /// The cycle that a chord closes, if it has no pipe and no marked vertex.
    fn cycle(&self, chord: EdgeId) -> Option<(Vec<Vertex>, Vec<EdgeId>)> {
        let edge = self.graph.edge(chord)?;
        let (mut a, mut b) = (End { vertex: edge.to, entered: true }, End { vertex: edge.from, entered: false });
        let (mut vertices, mut edges) = (vec![a.vertex, b.vertex], vec![chord]);
        if vertices.iter().any(|vertex| self.marked.get(*vertex)) {
            return None;
        }
        while a.vertex != b.vertex {
            let deeper = if self.depth.get(a.vertex) >= self.depth.get(b.vertex) { &mut a } else { &mut b };
            let id = self.rooted.above.get(deeper.vertex)?;
            let above = self.graph.edge(id)?;
            let enters = above.to == deeper.vertex;
            let next = above.other(deeper.vertex);
            if enters != deeper.entered || self.marked.get(next) {
                return None;
            }
            *deeper = End { vertex: next, entered: !enters };
            vertices.push(next);
            edges.push(id);
        }
        (a.entered == b.entered).then_some((vertices, edges))
    }
}

/// Whether no walk along the edges, which changes its direction at every vertex, comes back to where it began. Every cycle of the graph has a
/// pipe then, so the graph is in the class `G*` of section 3.3.2, for which an optimal `Eprof(Ecnt)` is an optimal `Vprof(Ecnt)`. The converse
/// does not hold: the walk may pass a vertex twice. Takes nearly linear time.
pub fn never_alternates(graph: &Graph) -> bool {
    // Such a walk is a cycle of the graph that has two vertices for each one here, where an edge leads from a first to a second one.
    let mut sets = Sets::new(graph.vertices() * 2);
    graph.live_edges().all(|(_, edge)| sets.unite(edge.from, Vertex::at(graph.vertices() + edge.to.index())))
}
