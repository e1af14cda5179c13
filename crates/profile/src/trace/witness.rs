//! Placement of witnesses: edges whose passage is written to a trace.
//!
//! The closing edge, end edges, and edges of further returns of a call are not traced. The other edges without a witness form a forest, so at
//! most one path without a witness leads from a vertex to another. The paper tells the successors of a branch apart. This crate tells its edges
//! apart, so that parallel edges are regenerated too.

use crate::barred::{Barred, NoPlacement};
use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::trace::replay::TraceEntry;
use crate::tree::SpanningTree;
use crate::weights::Weights;

/// The edges of a graph that write witnesses.
#[derive(Clone, Debug)]
pub struct Witnesses {
    edges: Vec<ArcId>,
    forest: SpanningTree,
    /// The forest's edge from each vertex to the vertex above it.
    pub(super) above: PerVertex<Option<ArcId>>,
    /// Number of forest edges from each vertex to the root of its tree.
    pub(super) depth: PerVertex<u32>,
    /// Whether no path without a witness leads from a branch to EXIT or to a call.
    blocked: bool,
}

impl Witnesses {
    /// Witnesses for a trace of one function: the chords of a maximum spanning tree (section 4.1). The trace of each activation ends with
    /// [`TraceEntry::End`].
    pub fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        Self::of_tree(graph, SpanningTree::without(graph, weights, barred, |id| !is_traced(graph, id))?, false)
    }

    /// Witnesses for traces of several functions in one buffer (section 4.2). Blocking witnesses lie on paths from branches to EXIT and to the
    /// blocks of `calls`, as far from these as possible. So a replay of this function never reads a witness of another one. `calls` has
    /// the blocks that end with a call of a traced function. A blocking witness on a silent or barred edge is refused.
    pub fn with_blockers(
        graph: &ProfileGraph,
        weights: &Weights,
        barred: &Barred,
        calls: &[Vertex],
    ) -> Result<Self, NoPlacement> {
        let blockers = blockers(graph, calls);
        for (id, edge) in graph.live_edges().filter(|(id, _)| blockers.get(*id)) {
            if !barred.allows_edge(id, edge) {
                return Err(NoPlacement::Edge(id));
            }
        }
        let left_out = |id| blockers.get(id) || !is_traced(graph, id);
        Self::of_tree(graph, SpanningTree::without(graph, weights, barred, left_out)?, true)
    }

    /// Witnesses for traces of several functions in one buffer, in a graph that is cut at its calls. Every edge from ENTRY and every edge of
    /// `starts` has a witness. So has each edge after a branch from which control can reach EXIT or a block of `ends` without another branch.
    /// If one of these edges, other than those from ENTRY, is silent or barred, it is refused. A replay begins after an edge from ENTRY.
    pub(super) fn of_runs(
        graph: &ProfileGraph,
        weights: &Weights,
        barred: &Barred,
        ends: &[Vertex],
        starts: &[ArcId],
    ) -> Result<Self, NoPlacement> {
        let mut chosen = blockers(graph, ends);
        starts.iter().for_each(|edge| chosen.set(*edge, true));
        for (id, edge) in graph.live_edges().filter(|(id, edge)| chosen.get(*id) && edge.from != graph.entry()) {
            if !barred.allows_edge(id, edge) {
                return Err(NoPlacement::Edge(id));
            }
        }
        let is_root = |id| graph.edge(id).is_some_and(|edge| edge.from == graph.entry());
        let left_out = |id| chosen.get(id) || is_root(id) || !is_traced(graph, id);
        Self::of_tree(graph, SpanningTree::without(graph, weights, barred, left_out)?, true)
    }

    /// Takes a given set of edges for a trace of one function. If the other edges form a cycle, the set is refused.
    pub fn of(graph: &ProfileGraph, edges: &[ArcId]) -> Result<Self, NoPlacement> {
        let mut given: PerEdge<bool> = graph.per_edge();
        edges.iter().for_each(|edge| given.set(*edge, true));
        let mut others = Barred::none();
        graph.live_edges().for_each(|(id, _)| others.edge(id));
        let left_out = |id| given.get(id) || !is_traced(graph, id);
        Self::of_tree(graph, SpanningTree::without(graph, &Weights::uniform(graph), &others, left_out)?, false)
    }

    fn of_tree(graph: &ProfileGraph, forest: SpanningTree, blocked: bool) -> Result<Self, NoPlacement> {
        let rooted = forest.rooted(graph);
        let depth = rooted.depths(graph);
        let edges: Vec<ArcId> = forest.chords(graph).into_iter().filter(|id| is_traced(graph, *id)).collect();
        match edges.iter().find(|id| graph.edge(**id).is_some_and(|edge| edge.silent)) {
            Some(edge) => Err(NoPlacement::Edge(*edge)),
            None => Ok(Witnesses { edges, forest, above: rooted.above, depth, blocked }),
        }
    }

    /// The edges that write witnesses, in ascending order.
    pub fn edges(&self) -> &[ArcId] {
        &self.edges
    }

    /// Whether an edge writes a witness.
    pub fn writes(&self, edge: ArcId) -> bool {
        self.edges.binary_search(&edge).is_ok()
    }

    /// Whether a replay reads tokens only at branches. If not, it reads the next token as soon as the last one is used up.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The only edge that control can leave a vertex by, if it writes no witness.
    pub(super) fn only_way(&self, graph: &ProfileGraph, vertex: Vertex) -> Option<ArcId> {
        let mut ways = traced(graph, vertex);
        let (id, _) = ways.next()?;
        (ways.next().is_none() && self.forest.contains(id)).then_some(id)
    }

    /// The tokens that can come next in the trace if control passes an edge: the paper's `witness(p, q)`, in the order of [`TraceEntry`]. The sets
    /// of edges that leave the same vertex share no token.
    pub fn next_tokens(&self, graph: &ProfileGraph, edge: ArcId) -> Vec<TraceEntry> {
        let Some(first) = graph.edge(edge).filter(|_| is_traced(graph, edge)) else { return Vec::new() };
        if self.writes(edge) {
            return vec![TraceEntry::Witness(edge)];
        }
        let (mut tokens, mut open) = (Vec::new(), vec![first.to]);
        let mut seen: PerVertex<bool> = graph.per_vertex();
        while let Some(vertex) = open.pop() {
            if seen.get(vertex) {
                continue;
            }
            seen.set(vertex, true);
            if vertex == graph.exit() {
                tokens.push(TraceEntry::End(vertex));
            }
            for (id, next) in traced(graph, vertex) {
                if self.writes(id) { tokens.push(TraceEntry::Witness(id)) } else { open.push(next.to) }
            }
        }
        tokens.sort_unstable();
        tokens
    }
}

/// Whether an edge belongs to the graph of a trace.
fn is_traced(graph: &ProfileGraph, edge: ArcId) -> bool {
    graph.edge(edge).is_some_and(|edge| match edge.kind {
        ProfileEdgeKind::Closing | ProfileEdgeKind::End => false,
        ProfileEdgeKind::Root => !edge.silent,
        ProfileEdgeKind::Inner | ProfileEdgeKind::Leave => true,
    })
}

/// The edges that leave a vertex in the graph of a trace.
pub(super) fn traced(graph: &ProfileGraph, vertex: Vertex) -> impl Iterator<Item = (ArcId, &ProfileEdge)> {
    graph.leaving(vertex).filter(|(id, _)| is_traced(graph, *id))
}

/// The edges that leave a branch and lead to EXIT or to a block with a call, without another branch on the way: `blockers` of section 4.2.
fn blockers(graph: &ProfileGraph, calls: &[Vertex]) -> PerEdge<bool> {
    let (mut found, mut seen): (PerEdge<bool>, PerVertex<bool>) = (graph.per_edge(), graph.per_vertex());
    let calls = calls.iter().copied().filter(|block| graph.is_live_block(*block));
    let mut open: Vec<Vertex> = calls.chain([graph.exit()]).collect();
    open.iter().for_each(|vertex| seen.set(*vertex, true));
    while let Some(vertex) = open.pop() {
        for (id, edge) in graph.entering(vertex).filter(|(id, _)| is_traced(graph, *id)) {
            if traced(graph, edge.from).nth(1).is_some() {
                found.set(id, true);
            } else if !seen.get(edge.from) {
                seen.set(edge.from, true);
                open.push(edge.from);
            }
        }
    }
    found
}
