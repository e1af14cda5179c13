//! A profile graph in the making: blocks and edges, from a control-flow graph or one by one.

use std::collections::BTreeMap;

use ingraft_model::{Cfg, EdgeTarget, Key, Refusal, Svma};

use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, Vertex};

/// Reason why no exact profile of a function is possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inexact {
    /// Some ways into the function may be unknown.
    #[error("not all ways in are proven: {0}")]
    WaysIn(Refusal),
    /// Some ways out of the function may be unknown.
    #[error("not all ways out are proven: {0}")]
    WaysOut(Refusal),
    /// Not all targets of an indirect jump are known.
    #[error("the indirect jump at {0} has unknown targets")]
    Unresolved(Svma),
    /// Control arrives at no block from outside.
    #[error("control arrives at no block from outside")]
    NoWayIn,
    /// An edge names a block that does not exist.
    #[error("edge {0} names a block that does not exist")]
    UnknownBlock(ArcId),
    /// The function has more vertices or edges than an index can name.
    #[error("the function has too many blocks or edges")]
    TooLarge,
}

/// Largest number of vertices, and of edges, of a profile graph.
const MOST: usize = (u32::MAX / 4) as usize;

/// Blocks and edges of a profile graph in the making. Every method that adds an edge returns the index of the edge. Edges are numbered
/// from 0 in the order of the calls.
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    blocks: usize,
    joints: usize,
    edges: Vec<ProfileEdge>,
    /// The end edge of each block that has one.
    ends: BTreeMap<Vertex, ArcId>,
    /// The first edge with an end that does not exist.
    wrong: Option<ArcId>,
}

impl GraphBuilder {
    /// Creates a shape of blocks without edges.
    pub fn new(blocks: usize) -> Self {
        GraphBuilder { blocks, joints: 0, edges: Vec::new(), ends: BTreeMap::new(), wrong: None }
    }

    /// Takes blocks and edges of a control-flow graph. Blocks and edges keep their indices. The edges after these lead from ENTRY to the blocks of
    /// [`Cfg::roots`], in that order. If the control-flow graph is not proven to be complete, returns the reason.
    ///
    /// A call that may not return, and a call that may return twice, look like other calls in a control-flow graph. The caller adds them by
    /// [`GraphBuilder::may_end`] and [`GraphBuilder::returns_again`].
    pub fn of(cfg: &Cfg) -> Result<Self, Inexact> {
        cfg.ways_in_proven.clone().map_err(Inexact::WaysIn)?;
        cfg.ways_out_proven.clone().map_err(Inexact::WaysOut)?;
        if let Some(at) = cfg.unresolved.first() {
            return Err(Inexact::Unresolved(*at));
        }
        let mut shape = GraphBuilder::new(cfg.blocks.len());
        for edge in &cfg.edges {
            match edge.to {
                EdgeTarget::Block(to) if cfg.blocks.get(to).is_none() => {
                    return Err(Inexact::UnknownBlock(ArcId::at(shape.edges.len())));
                }
                EdgeTarget::Block(to) => shape.edge(edge.from, to),
                EdgeTarget::Outside(_) | EdgeTarget::Dynamic => shape.leave(edge.from),
            };
        }
        for root in cfg.roots() {
            shape.root(root);
        }
        Ok(shape)
    }

    /// Adds an edge from block to block. Several edges may have the same ends, and both ends may be the same block.
    pub fn edge(&mut self, from: impl Into<Vertex>, to: impl Into<Vertex>) -> ArcId {
        let (from, to) = (self.block(from.into()), self.block(to.into()));
        self.push(from, to, ProfileEdgeKind::Inner, false)
    }

    /// Adds a way in: control arrives at a block from outside.
    pub fn root(&mut self, block: impl Into<Vertex>) -> ArcId {
        let to = self.block(block.into());
        self.push(self.entry(), to, ProfileEdgeKind::Root, false)
    }

    /// Adds a way out at the end of a block: a return or a jump to another function.
    pub fn leave(&mut self, block: impl Into<Vertex>) -> ArcId {
        let from = self.block(block.into());
        self.push(from, self.exit(), ProfileEdgeKind::Leave, false)
    }

    /// Adds the possibility that control ends in a block, for example in a call that may throw, jump away or end the thread. The edge is
    /// silent, so its count is derived. A block has at most one such edge: a second call returns the first edge.
    pub fn may_end(&mut self, block: impl Into<Vertex>) -> ArcId {
        let from = self.block(block.into());
        if let Some(end) = self.ends.get(&from) {
            return *end;
        }
        let end = self.push(from, self.exit(), ProfileEdgeKind::End, true);
        self.ends.insert(from, end);
        end
    }

    /// Makes an edge the return of a call that may return several times, as `setjmp` and `vfork` do. The first return follows the edge and
    /// each further one comes from ENTRY, but both run the same code. So the edge and a new one from ENTRY lead to a new vertex, a joint. Only the
    /// edge from the joint to the former target can carry a counter. Returns the edge of the further returns and the edge out of the joint. If
    /// the given edge is no inner edge that can carry a counter, returns `None`.
    pub fn returns_again(&mut self, edge: ArcId) -> Option<(ArcId, ArcId)> {
        let joint = Vertex::at(self.blocks.saturating_add(2).saturating_add(self.joints));
        let first =
            self.edges.get_mut(edge.index()).filter(|edge| edge.kind == ProfileEdgeKind::Inner && !edge.silent)?;
        let to = std::mem::replace(&mut first.to, joint);
        first.silent = true;
        self.joints += 1;
        let again = self.push(self.entry(), joint, ProfileEdgeKind::Root, true);
        Some((again, self.push(joint, to, ProfileEdgeKind::Inner, false)))
    }

    /// Completes the graph in linear time. If control cannot leave a set of blocks, an end edge is added to one of them, so that every live block
    /// leads to EXIT. The closing edge is last. Fails if an edge names no block, if there is no way in, or if the graph is too large.
    pub fn build(mut self) -> Result<ProfileGraph, Inexact> {
        let vertices = self.blocks.saturating_add(2).saturating_add(self.joints);
        if vertices > MOST || self.edges.len() > MOST {
            return Err(Inexact::TooLarge);
        }
        if let Some(edge) = self.wrong {
            return Err(Inexact::UnknownBlock(edge));
        }
        if !self.edges.iter().any(|edge| edge.kind == ProfileEdgeKind::Root) {
            return Err(Inexact::NoWayIn);
        }
        let live = crate::reach::live(vertices, &self.edges, self.entry());
        for block in crate::reach::endless(vertices, &self.edges, &live, self.exit()) {
            self.push(block, self.exit(), ProfileEdgeKind::End, true);
        }
        self.push(self.exit(), self.entry(), ProfileEdgeKind::Closing, true);
        Ok(ProfileGraph::new(self.blocks, vertices, self.edges, live))
    }

    fn entry(&self) -> Vertex {
        Vertex::at(self.blocks)
    }

    fn exit(&self) -> Vertex {
        Vertex::at(self.blocks.saturating_add(1))
    }

    /// A vertex, which must be a block. If it is none, the next edge is noted as wrong.
    fn block(&mut self, block: Vertex) -> Vertex {
        if block.index() >= self.blocks {
            self.wrong.get_or_insert(ArcId::at(self.edges.len()));
        }
        block
    }

    fn push(&mut self, from: Vertex, to: Vertex, kind: ProfileEdgeKind, silent: bool) -> ArcId {
        let id = ArcId::at(self.edges.len());
        self.edges.push(ProfileEdge { from, to, kind, silent });
        id
    }
}
