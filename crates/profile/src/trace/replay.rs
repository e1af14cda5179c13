//! Regeneration of an execution from its trace: Figure 14 of the paper.

use ingraft_model::Key;

use crate::graph::ProfileGraph;
use crate::map::{ArcId, Vertex};
use crate::trace::witness::{Witnesses, traced};

/// An entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraceEntry {
    /// Control passed an edge with a witness.
    Witness(ArcId),
    /// The activation ended at this vertex: EXIT, or the block of an early end. The paper calls this token `EOF`.
    End(Vertex),
}

/// Reason why a trace is not one of this graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceDefect {
    /// No path without a witness leads from the vertex to the place of the next token.
    #[error("at vertex {}, the trace cannot go on with {token:?}", .at.0)]
    Impossible {
        /// Vertex at which the replay was.
        at: Vertex,
        /// Token that was read there.
        token: TraceEntry,
    },
    /// The trace has no more tokens, but the activation is not over.
    #[error("the trace ends while control is at vertex {}", .at.0)]
    Short {
        /// Vertex at which the replay was.
        at: Vertex,
    },
}

/// The regeneration of one activation, edge by edge.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    graph: &'a ProfileGraph,
    witnesses: &'a Witnesses,
    at: Vertex,
    /// The last token, as long as the replay has not reached its place.
    token: Option<TraceEntry>,
    /// The edges to the place of the token, the last one first.
    path: Vec<ArcId>,
    over: bool,
}

impl<'a> Replay<'a> {
    /// Begins an activation at a vertex: ENTRY, or the block of a late start.
    pub fn new(graph: &'a ProfileGraph, witnesses: &'a Witnesses, start: Vertex) -> Self {
        Replay { graph, witnesses, at: start, token: None, path: Vec::new(), over: false }
    }

    /// The vertex that the replay has reached.
    pub fn at(&self) -> Vertex {
        self.at
    }

    /// The next edge that control passes; `None` if the activation is over. `read` returns the next token of the trace. All
    /// edges up to the place of a token together take linear time.
    ///
    /// Without blockers, a token is read as soon as the last one is used up, so the trace has an end token for every activation. With blockers
    /// ([`Witnesses::with_blockers`]), a token is read only where control can go several ways or an edge has a witness. Traces of several
    /// functions can then share one buffer. If the replay reaches a block with a call, the caller first runs the replay of the called function
    /// to its end. An activation that reaches EXIT has no end token.
    ///
    /// Fails if the trace ends before the activation, or if a token does not fit.
    pub fn next_edge(&mut self, mut read: impl FnMut() -> Option<TraceEntry>) -> Result<Option<ArcId>, TraceDefect> {
        if self.over || self.at == self.graph.exit() && self.witnesses.is_blocked() {
            return Ok(None);
        }
        if self.token.is_none() && self.witnesses.is_blocked() {
            if let Some(way) = self.witnesses.only_way(self.graph, self.at) {
                return Ok(Some(self.pass(way)));
            }
            if traced(self.graph, self.at).next().is_none() {
                self.over = true;
                return Ok(None);
            }
        }
        if self.token.is_none() {
            let token = read().ok_or(TraceDefect::Short { at: self.at })?;
            self.path = self.path_to(token).ok_or(TraceDefect::Impossible { at: self.at, token })?;
            self.token = Some(token);
        }
        if let Some(edge) = self.path.pop() {
            return Ok(Some(self.pass(edge)));
        }
        match self.token.take() {
            Some(TraceEntry::Witness(edge)) => Ok(Some(self.pass(edge))),
            _ => {
                self.over = true;
                Ok(None)
            }
        }
    }

    fn pass(&mut self, id: ArcId) -> ArcId {
        self.at = self.graph.edge(id).map_or(self.at, |edge| edge.to);
        id
    }

    /// The path without a witness from here to the place of a token, the last edge first. `None` if there is no such path.
    fn path_to(&self, token: TraceEntry) -> Option<Vec<ArcId>> {
        let target = match token {
            TraceEntry::Witness(edge) if self.witnesses.writes(edge) => self.graph.edge(edge)?.from,
            TraceEntry::Witness(_) => return None,
            TraceEntry::End(vertex) => (vertex.index() < self.graph.vertices()).then_some(vertex)?,
        };
        // Both ends climb the forest until they meet. The path goes up from here, then down to the target.
        let (mut here, mut there) = (self.at, target);
        let (mut up, mut path) = (Vec::new(), Vec::new());
        while here != there {
            let climb_here = self.witnesses.depth.get(here) >= self.witnesses.depth.get(there);
            let vertex = if climb_here { here } else { there };
            let id = self.witnesses.above.get(vertex)?;
            let edge = self.graph.edge(id)?;
            let forwards = if climb_here { edge.from == vertex } else { edge.to == vertex };
            // A path in a forest visits no vertex twice; with the graph of other witnesses, it might.
            if !forwards || up.len() + path.len() > self.graph.vertices() {
                return None;
            }
            if climb_here {
                here = edge.to;
                up.push(id);
            } else {
                there = edge.from;
                path.push(id);
            }
        }
        path.extend(up.into_iter().rev());
        Some(path)
    }
}

/// Regenerates one activation from its trace. Returns the vertices that control reached after `start`, in order. `start` is ENTRY, or the
/// block of a late start. Fails as [`Replay::next_edge`] does.
pub fn regenerate(
    graph: &ProfileGraph,
    witnesses: &Witnesses,
    start: Vertex,
    trace: &[TraceEntry],
) -> Result<Vec<Vertex>, TraceDefect> {
    let (mut replay, mut tokens) = (Replay::new(graph, witnesses, start), trace.iter().copied());
    let mut vertices = Vec::new();
    while replay.next_edge(|| tokens.next())?.is_some() {
        vertices.push(replay.at());
    }
    Ok(vertices)
}
