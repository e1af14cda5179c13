//! Keys of points.

use crate::addr::{Offset, Svma};
use crate::cfg::{Cfg, Edge, EdgeKind, EdgeTarget};
use crate::index::{BlockId, FunctionId};
use crate::point::PointKind;

/// A point of a function, which differs from all other points of the function, in the text and in copies of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointId {
    /// The entry.
    Entry,
    /// The exit by the instruction at this offset, or at this end of the code that control runs off.
    Exit(Offset),
    /// The place before the call at this offset.
    CallBefore(Offset),
    /// The place after a call that returns to this offset.
    CallAfter(Offset),
    /// The beginning of the block at this offset.
    Block(Offset),
    /// A transfer between two blocks. Edges are sorted by their destinations.
    Edge {
        /// Offset of the block to which the edge leads.
        to: Offset,
        /// Offset of the block that the edge leaves.
        from: Offset,
        /// Kind of the transfer.
        kind: EdgeKind,
    },
}

/// A point of a program, which differs from all other points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionPoint {
    /// Function of the point.
    pub function: FunctionId,
    /// The point of the function. Its entry is the first one.
    pub point: PointId,
}

impl PointId {
    /// Kind of the point.
    pub fn kind(&self) -> PointKind {
        match self {
            PointId::Entry => PointKind::Entry,
            PointId::Exit(_) => PointKind::Exit,
            PointId::CallBefore(_) => PointKind::CallBefore,
            PointId::CallAfter(_) => PointKind::CallAfter,
            PointId::Block(_) => PointKind::Block,
            PointId::Edge { .. } => PointKind::Edge,
        }
    }

    /// Offset at which control is at the point; at an edge, the offset of the block to which it leads. `None` at an entry: callers may come
    /// to the first byte of the function, or to the instruction after an `endbr64` there.
    pub fn offset(&self) -> Option<Offset> {
        match self {
            PointId::Entry => None,
            PointId::Exit(at) | PointId::CallBefore(at) | PointId::CallAfter(at) | PointId::Block(at) => Some(*at),
            PointId::Edge { to, .. } => Some(*to),
        }
    }

    /// The point at the beginning of a block of a control-flow graph whose function begins at `first`.
    pub fn of_block(cfg: &Cfg, block: BlockId, first: Svma) -> Option<PointId> {
        offset(cfg, block, first).map(PointId::Block)
    }

    /// The point at an edge of a control-flow graph whose function begins at `first`; `None` if the edge leaves the function.
    pub fn of_edge(cfg: &Cfg, edge: &Edge, first: Svma) -> Option<PointId> {
        let EdgeTarget::Block(to) = edge.to else { return None };
        let (from, to) = (offset(cfg, edge.from, first)?, offset(cfg, to, first)?);
        Some(PointId::Edge { from, to, kind: edge.kind })
    }

    /// The points at all edges between the blocks of a control-flow graph, sorted. The function begins at `first`.
    pub fn of_edges(cfg: &Cfg, first: Svma) -> Vec<PointId> {
        sorted(cfg.edges.iter().filter_map(|edge| PointId::of_edge(cfg, edge, first)))
    }
}

/// Offset of a block from the first byte of its function.
pub(crate) fn offset(cfg: &Cfg, block: BlockId, first: Svma) -> Option<Offset> {
    Some(Offset::between(first.0, cfg.blocks.get(block)?.range.start.0))
}

/// Points in order, each once.
pub(crate) fn sorted(points: impl Iterator<Item = PointId>) -> Vec<PointId> {
    let mut points: Vec<PointId> = points.collect();
    points.sort_unstable();
    points.dedup();
    points
}
