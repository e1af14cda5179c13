//! The result of profiling: counts of edges and blocks.

use crate::barred::Counter;
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};

/// Counts of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub(crate) edges: PerEdge<Option<u64>>,
    pub(crate) blocks: PerVertex<u64>,
}

impl Profile {
    /// Number of passages along an edge; `None` if the placement does not determine it. The count of the closing edge is the number of
    /// activations, including those with a late start.
    pub fn edge(&self, edge: ArcId) -> Option<u64> {
        self.edges.get(edge)
    }

    /// Number of arrivals at a block. If an activation has a late start at a block, its earlier arrival there is not counted.
    /// A block that does not exist has the count 0.
    pub fn block(&self, block: Vertex) -> u64 {
        self.blocks.get(block)
    }
}

/// Reason why no execution has the given counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The number of counts is not the number of counters.
    #[error("the placement has {expected} counters, but {given} counts were given")]
    Counters {
        /// Number of counters.
        expected: usize,
        /// Number of counts.
        given: usize,
    },
    /// A correction names a block that does not exist, or that control cannot reach.
    #[error("control cannot be at block {0}")]
    UnknownBlock(Vertex),
    /// The derived count of an edge or block is less than 0, by the second number. An activation was lost, or was corrected twice.
    #[error("the derived count of {} is -{_1}", place(.0))]
    Negative(Counter, u64),
    /// The derived count of an edge or block exceeds 64 bits.
    #[error("the derived count of {} exceeds 64 bits", place(.0))]
    Overflow(Counter),
    /// The redundant counter of an edge differs from the count derived for the edge.
    #[error("edge {edge} was counted {measured} times, but {derived} times by the other counters")]
    Check {
        /// Edge with the redundant counter.
        edge: ArcId,
        /// Count of the redundant counter.
        measured: u64,
        /// Count that the other counters give.
        derived: u64,
    },
}

impl Defect {
    /// Least number of threads that were lost in the middle of runs, or corrected twice, if that explains the counts.
    pub fn lost(&self) -> Option<u64> {
        match self {
            Defect::Negative(_, lost) => Some(*lost),
            Defect::Check { measured, derived, .. } => Some(measured.abs_diff(*derived)),
            Defect::Counters { .. } | Defect::UnknownBlock(_) | Defect::Overflow(_) => None,
        }
    }
}

fn place(counter: &Counter) -> String {
    match counter {
        Counter::Edge(edge) => format!("edge {edge}"),
        Counter::Block(block) => format!("block {block}"),
    }
}

/// A derived count as 64 bits.
pub(crate) fn narrow(value: i128, place: Counter) -> Result<u64, Defect> {
    if value < 0 {
        return Err(Defect::Negative(place, u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX)));
    }
    u64::try_from(value).map_err(|_| Defect::Overflow(place))
}
