//! Places of a control-flow graph at which code can run.

use ingraft_model::{BlockId, EdgeId, IndexVec};

/// The edges and blocks of a control-flow graph at which code can count or write a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Whether code can run at the passages of each edge.
    pub edges: IndexVec<EdgeId, bool>,
    /// Whether code can run at all arrivals at each block.
    pub blocks: IndexVec<BlockId, bool>,
}

/// Place of a probe in a control-flow graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeAt {
    /// Passages of an edge.
    Edge(EdgeId),
    /// Arrivals at a block.
    Block(BlockId),
}

impl Probes {
    /// Whether code can run at the passages of an edge.
    pub(crate) fn has_edge(&self, edge: EdgeId) -> bool {
        self.edges.get(edge) == Some(&true)
    }

    /// Whether code can run at all arrivals at a block.
    pub(crate) fn has_block(&self, block: BlockId) -> bool {
        self.blocks.get(block) == Some(&true)
    }
}
