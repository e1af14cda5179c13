//! Counters, and the places that cannot have one.

use std::collections::BTreeSet;

use crate::graph::{ProfileEdge, ProfileGraph};
use crate::map::{ArcId, Vertex};

/// The place of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counter {
    /// Counts passages along an edge.
    Edge(ArcId),
    /// Counts arrivals at a block.
    Block(Vertex),
}

/// Edges and blocks that no counter can be placed on, besides silent edges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Barred {
    edges: BTreeSet<ArcId>,
    blocks: BTreeSet<Vertex>,
}

/// Reason why no placement of counters exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlacement {
    /// The edge closes a cycle of edges that cannot carry a counter, so its count cannot be derived.
    #[error("edge {0} needs a counter and cannot carry one")]
    Edge(ArcId),
    /// The block cannot carry a counter, and its count cannot be derived.
    #[error("block {0} needs a counter and cannot carry one")]
    Block(Vertex),
}

impl Barred {
    /// Bars nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Bars a counter on an edge.
    pub fn edge(&mut self, edge: ArcId) {
        self.edges.insert(edge);
    }

    /// Bars a counter in a block. The block's edges can still carry counters.
    pub fn block(&mut self, block: Vertex) {
        self.blocks.insert(block);
    }

    /// Bars a counter in a block and on every edge that enters or leaves it. A block that is executed at its original address needs this.
    pub fn block_with_edges(&mut self, graph: &ProfileGraph, block: Vertex) {
        self.block(block);
        self.edges.extend(graph.leaving_ids(block).iter().chain(graph.entering_ids(block)));
    }

    /// Whether an edge can carry a counter: it is neither silent nor barred.
    pub fn allows_edge(&self, id: ArcId, edge: &ProfileEdge) -> bool {
        !edge.silent && !self.edges.contains(&id)
    }

    /// Whether a block can carry a counter.
    pub fn allows_block(&self, block: Vertex) -> bool {
        !self.blocks.contains(&block)
    }
}
