//! Activations that were counted only in part.

use crate::graph::ProfileGraph;
use crate::map::{PerVertex, Vertex};
use crate::profile::Defect;

/// Activations that break Kirchhoff's law, because they began before the counting or were not over at its end.
///
/// An activation is *at* a block if control has arrived there and has not left by one of the block's edges. A call ends its block, so an
/// activation that waits for a call is at the block that ends with the call.
///
/// "Optimally profiling and tracing programs" (1994), section 3.2, mends an early end by an edge from the block to EXIT with the count 1. A
/// late start is the mirror image: an edge from ENTRY to the block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corrections {
    /// Activations that were at a block when counting began: the block, and the number of activations. A block may appear several times.
    pub late: Vec<(Vertex, u64)>,
    /// Activations that were at a block when counting ended, or that ended there without an instruction that leaves the function, for
    /// example by an exception, by `longjmp` or with their thread.
    pub early: Vec<(Vertex, u64)>,
}

impl Corrections {
    /// No corrections: every activation was counted from its first block to its last.
    pub fn none() -> Self {
        Self::default()
    }

    /// For each vertex, the number of late starts there minus the number of early ends. The numbers of ENTRY and EXIT balance them.
    pub(crate) fn excess(&self, graph: &ProfileGraph) -> Result<PerVertex<i128>, Defect> {
        let mut excess = graph.per_vertex();
        for (list, sign, end) in [(&self.late, 1, graph.entry()), (&self.early, -1, graph.exit())] {
            for (block, count) in list {
                if !graph.is_live_block(*block) {
                    return Err(Defect::UnknownBlock(*block));
                }
                let count = i128::from(*count) * sign;
                excess.update(*block, |sum: i128| sum.wrapping_add(count));
                excess.update(end, |sum: i128| sum.wrapping_sub(count));
            }
        }
        Ok(excess)
    }
}
