//! The graph on which counters are placed.
//!
//! The graph is the control-flow graph of "Optimally profiling and tracing programs" (1994), section 2, with two changes. The paper has one
//! root block. Here a vertex ENTRY leads to each block at which control arrives from outside. And an edge may be silent: no code runs on it, so
//! it never carries a counter, and its count is derived.
//!
//! ```text
//!          ┌──────────── Closing: an activation is over ───────────┐
//!          ▼                                                       │
//!        ENTRY ── Root ──► block ── Inner ──► block ── Leave ──► EXIT
//!                                               └───── End ───────►┘
//! ```

use ingraft_model::Key;

use crate::adjacency::Adjacency;
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};

/// Kind of an edge of a profile graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProfileEdgeKind {
    /// From block to block.
    #[default]
    Inner,
    /// From ENTRY to a block: control arrives from outside.
    Root,
    /// From a block to EXIT: a return or a jump to another function.
    Leave,
    /// From a block to EXIT: control ends there without an instruction that leaves the function. Examples are a call that never returns and
    /// an endless loop. The edge is silent.
    End,
    /// From EXIT to ENTRY. It makes the graph strongly connected and is silent. Its count is the number of activations.
    Closing,
}

/// An edge of a profile graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileEdge {
    /// Vertex that the edge leaves.
    pub from: Vertex,
    /// Vertex that the edge enters.
    pub to: Vertex,
    /// Kind of the edge.
    pub kind: ProfileEdgeKind,
    /// Whether no code runs on this edge alone, so that it never carries a counter.
    pub silent: bool,
}

impl ProfileEdge {
    /// The other end of an edge, seen from one of its ends.
    pub fn other(&self, end: Vertex) -> Vertex {
        if self.from == end { self.to } else { self.from }
    }
}

/// A profile graph. [`GraphBuilder::build`](crate::GraphBuilder::build) makes one.
///
/// A vertex is *live* if ENTRY leads to it, and an edge is live if it leaves a live vertex. Every live vertex leads to EXIT. Edges that are
/// not live have the count 0 and take part in no algorithm.
#[derive(Clone, Debug)]
pub struct ProfileGraph {
    blocks: usize,
    edges: Vec<ProfileEdge>,
    live: PerVertex<bool>,
    out: Adjacency,
    into: Adjacency,
}

impl ProfileGraph {
    /// Makes a graph of edges whose ends exist. The last edge is the closing one. Vertices are the blocks, ENTRY, EXIT and joints.
    pub(crate) fn new(blocks: usize, vertices: usize, edges: Vec<ProfileEdge>, live: PerVertex<bool>) -> Self {
        let alive = |edge: &ProfileEdge| live.get(edge.from);
        let out = Adjacency::new(vertices, &edges, alive, |edge| edge.from);
        let into = Adjacency::new(vertices, &edges, alive, |edge| edge.to);
        ProfileGraph { blocks, edges, live, out, into }
    }

    /// Number of blocks, which are the first vertices.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of vertices: blocks, ENTRY, EXIT and joints.
    pub fn vertices(&self) -> usize {
        self.live.len()
    }

    /// All edges, live or not, in ascending order.
    pub fn edges(&self) -> &[ProfileEdge] {
        &self.edges
    }

    /// The vertex ENTRY.
    pub fn entry(&self) -> Vertex {
        Vertex::at(self.blocks)
    }

    /// The vertex EXIT.
    pub fn exit(&self) -> Vertex {
        Vertex::at(self.blocks.saturating_add(1))
    }

    /// The edge from EXIT to ENTRY.
    pub fn closing(&self) -> ArcId {
        ArcId::at(self.edges.len().saturating_sub(1))
    }

    /// An edge by its index; `None` if it does not exist.
    pub fn edge(&self, id: ArcId) -> Option<&ProfileEdge> {
        self.edges.get(id.index())
    }

    /// Whether ENTRY leads to a vertex. A vertex that does not exist is not live.
    pub fn is_live(&self, vertex: Vertex) -> bool {
        self.live.get(vertex)
    }

    /// Whether a vertex is a live block.
    pub fn is_live_block(&self, vertex: Vertex) -> bool {
        vertex.index() < self.blocks && self.is_live(vertex)
    }

    /// All live edges, in ascending order.
    pub fn live_edges(&self) -> impl Iterator<Item = (ArcId, &ProfileEdge)> {
        let named = self.edges.iter().enumerate().map(|(index, edge)| (ArcId::at(index), edge));
        named.filter(|(_, edge)| self.is_live(edge.from))
    }

    /// The live edges that leave a vertex, in ascending order.
    pub fn leaving(&self, vertex: Vertex) -> impl Iterator<Item = (ArcId, &ProfileEdge)> {
        self.named(self.out.of(vertex))
    }

    /// The live edges that enter a vertex, in ascending order.
    pub fn entering(&self, vertex: Vertex) -> impl Iterator<Item = (ArcId, &ProfileEdge)> {
        self.named(self.into.of(vertex))
    }

    /// A map with the default value for each edge.
    pub fn per_edge<T: Copy + Default>(&self) -> PerEdge<T> {
        PerEdge::new(self.edges.len())
    }

    /// A map with the default value for each vertex.
    pub fn per_vertex<T: Copy + Default>(&self) -> PerVertex<T> {
        PerVertex::new(self.vertices())
    }

    pub(crate) fn live(&self) -> &PerVertex<bool> {
        &self.live
    }

    pub(crate) fn leaving_ids(&self, vertex: Vertex) -> &[ArcId] {
        self.out.of(vertex)
    }

    pub(crate) fn entering_ids(&self, vertex: Vertex) -> &[ArcId] {
        self.into.of(vertex)
    }

    fn named<'a>(&'a self, ids: &'a [ArcId]) -> impl Iterator<Item = (ArcId, &'a ProfileEdge)> {
        ids.iter().filter_map(|id| Some((*id, self.edge(*id)?)))
    }
}
