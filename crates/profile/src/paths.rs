//! Numbers of acyclic paths: Ball and Larus, "Efficient path profiling" (1996).
//!
//! A path begins at ENTRY or after a back edge, and ends with a back edge or at EXIT. Each edge has a value, and the sum of the values along a
//! path is the number of the path. The numbers have no gaps and no repeats.

use ingraft_model::Key;

use crate::barred::{Barred, NoPlacement};
use crate::events::{EventPlan, Events, Uncountable};
use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::path_ends::PathEnds;
use crate::weights::Weights;

/// The function has more than `i64::MAX` paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the function has more paths than a number of 63 bits can count")]
pub struct TooManyPaths;

/// The numbers of the acyclic paths of a graph.
#[derive(Clone, Debug)]
pub struct PathNumbers {
    paths: i64,
    values: PerEdge<i64>,
    back: PerEdge<bool>,
    /// The targets of back edges, each with the value of a path that begins there, in ascending order of both.
    begins: Vec<(Vertex, i64)>,
}

/// One acyclic path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The first vertex: ENTRY, or the target of a back edge.
    pub start: Vertex,
    /// The edges of the path. The last one is a back edge or leads to EXIT.
    pub edges: Vec<ArcId>,
}

/// Instructions on edges for a register that holds the number of the current path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathIncrements {
    /// Edges that are no back edges, each with the number that code on the edge adds to the register. Other edges add nothing. The register is
    /// 0 at ENTRY, and holds the number of the path at EXIT.
    pub add: Vec<(ArcId, i64)>,
    /// Back edges, in ascending order.
    pub back: Vec<BackEdge>,
}

/// Code on a back edge. The register plus `ends` is the number of the path that ends there. Then the register becomes `begins`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackEdge {
    /// The edge.
    pub edge: ArcId,
    /// Number to add for the path that ends.
    pub ends: i64,
    /// First value of the register for the path that begins.
    pub begins: i64,
}

impl PathNumbers {
    /// Numbers the paths of a graph. Takes linear time. A back edge leads to a vertex on the current path of a depth-first search from ENTRY, so
    /// without the back edges even an irreducible graph has no directed cycle. Fails if the function has too many paths.
    pub fn new(graph: &ProfileGraph) -> Result<Self, TooManyPaths> {
        Self::cut(graph, i64::MAX, &|_| false)
    }

    /// As [`PathNumbers::new`], but paths end only at edges of which `may_end` holds, if the graph permits that: other edges may take the place of a
    /// back edge. And at most `limit` paths lead from a vertex to their ends. Where there would be more, paths end at further edges, and others begin
    /// behind them: at those edges first behind which most paths lie.
    pub fn cut(graph: &ProfileGraph, limit: i64, may_end: &dyn Fn(ArcId) -> bool) -> Result<Self, TooManyPaths> {
        let PathEnds { at: mut back, order } = PathEnds::of(graph, may_end);
        let mut values = graph.per_edge();
        let (mut behind, mut heads): (PerVertex<i64>, PerVertex<bool>) = (graph.per_vertex(), graph.per_vertex());
        for (_, edge) in graph.live_edges().filter(|(id, _)| back.get(*id)) {
            heads.set(edge.to, true);
        }
        behind.set(graph.exit(), 1);
        for vertex in order.iter().rev().filter(|vertex| **vertex != graph.exit()) {
            let paths =
                |id, edge: &ProfileEdge, back: &PerEdge<bool>| if back.get(id) { 1 } else { behind.get(edge.to) };
            let all = |back: &PerEdge<bool>| {
                graph.leaving(*vertex).try_fold(0i64, |sum, (id, edge)| sum.checked_add(paths(id, edge, back)))
            };
            let mut candidates: Vec<(ArcId, &ProfileEdge)> = Vec::new();
            if all(&back).is_none_or(|all| all > limit) {
                let can_end = |(id, edge): &(ArcId, &ProfileEdge)| paths(*id, edge, &back) > 1 && may_end(*id);
                candidates = graph.leaving(*vertex).filter(can_end).collect();
                candidates.sort_by_key(|(id, edge)| (paths(*id, edge, &back), *id));
            }
            while all(&back).is_none_or(|all| all > limit)
                && let Some((id, edge)) = candidates.pop()
            {
                back.set(id, true);
                heads.set(edge.to, true);
            }
            let mut sum = 0i64;
            for (id, edge) in graph.leaving(*vertex) {
                values.set(id, sum);
                let paths = if back.get(id) { 1 } else { behind.get(edge.to) };
                sum = sum.checked_add(paths).ok_or(TooManyPaths)?;
            }
            behind.set(*vertex, sum);
        }
        let mut paths = behind.get(graph.entry());
        let mut begins = Vec::new();
        for (head, _) in heads.iter().filter(|(_, is_head)| *is_head) {
            begins.push((head, paths));
            paths = paths.checked_add(behind.get(head)).ok_or(TooManyPaths)?;
        }
        Ok(PathNumbers { paths, values, back, begins })
    }

    /// Number of paths. The paths are numbered from 0.
    pub fn paths(&self) -> i64 {
        self.paths
    }

    /// The value that an edge adds to the number of a path.
    pub fn value(&self, edge: ArcId) -> i64 {
        self.values.get(edge)
    }

    /// Whether an edge ends a path and begins another one: a back edge, or an edge at which paths were cut.
    pub fn is_back_edge(&self, edge: ArcId) -> bool {
        self.back.get(edge)
    }

    /// The first value of a path that begins at a vertex: 0 for ENTRY. `None` if no path begins there.
    pub fn begins(&self, graph: &ProfileGraph, vertex: Vertex) -> Option<i64> {
        if vertex == graph.entry() {
            return Some(0);
        }
        let index = self.begins.binary_search_by_key(&vertex, |(head, _)| *head).ok()?;
        self.begins.get(index).map(|(_, value)| *value)
    }

    /// The path with a number; `None` if there is no such path. Takes time in proportion to the edges at the vertices of the path.
    pub fn path(&self, graph: &ProfileGraph, number: i64) -> Option<Path> {
        if number < 0 || number >= self.paths {
            return None;
        }
        let begun = self.begins.partition_point(|(_, value)| *value <= number);
        let (start, first) =
            begun.checked_sub(1).and_then(|at| self.begins.get(at)).copied().unwrap_or((graph.entry(), 0));
        let (mut rest, mut at) = (number.checked_sub(first)?, start);
        let mut edges = Vec::new();
        while at != graph.exit() {
            let (id, edge) = graph.leaving(at).filter(|(id, _)| self.value(*id) <= rest).last()?;
            rest = rest.checked_sub(self.value(id))?;
            edges.push(id);
            if edges.len() > graph.vertices() {
                return None; // the graph of other numbers
            }
            if self.is_back_edge(id) {
                break;
            }
            at = edge.to;
        }
        Some(Path { start, edges })
    }

    /// Moves the values to the chords of a maximum spanning tree of the graph without back edges, as [`EventPlan`] does with events (1996,
    /// section 3.3). Code on root edges, leave edges and back edges sets or reads the register anyway, so values there cost nothing. If a root
    /// edge or a back edge is silent or barred, it is refused. Leave edges may be barred: then their code adds nothing to the register.
    pub fn increments(
        &self,
        graph: &ProfileGraph,
        weights: &Weights,
        barred: &Barred,
    ) -> Result<PathIncrements, Uncountable> {
        let needed = |id, edge: &ProfileEdge| edge.kind == ProfileEdgeKind::Root || self.is_back_edge(id);
        if let Some((id, _)) = graph.live_edges().find(|(id, edge)| needed(*id, edge) && !barred.allows_edge(*id, edge))
        {
            return Err(NoPlacement::Edge(id).into());
        }
        let (acyclic, first_begin) = self.acyclic(graph);
        let weights = Weights::of(&acyclic, |id| match acyclic.edge(id).map(|edge| edge.kind) {
            Some(ProfileEdgeKind::Inner) => weights.edge(id),
            _ => 0.0,
        });
        let begin = |index: usize| ArcId::at(first_begin.saturating_add(index));
        let mut events = Events::new(&acyclic);
        self.values.iter().take(first_begin).for_each(|(id, value)| events.set_edge(id, value));
        for (index, (_, value)) in self.begins.iter().enumerate() {
            events.set_edge(begin(index), *value);
        }
        let plan = EventPlan::new(&acyclic, &weights, barred, &events)?;
        let mut increments: PerEdge<i64> = acyclic.per_edge();
        plan.increments().iter().for_each(|(id, value)| increments.set(*id, *value));
        let begins_at = |head: Vertex| {
            let index = self.begins.binary_search_by_key(&head, |(vertex, _)| *vertex);
            index.map_or(0, |index| increments.get(begin(index)))
        };
        let is_add = |id: ArcId| id.index() < first_begin && !self.is_back_edge(id);
        let add = plan.increments().iter().copied().filter(|(id, _)| is_add(*id)).collect();
        let back = graph.live_edges().filter(|(id, _)| self.is_back_edge(*id));
        let back = back.map(|(id, edge)| BackEdge { edge: id, ends: increments.get(id), begins: begins_at(edge.to) });
        Ok(PathIncrements { add, back: back.collect() })
    }

    /// Returns the graph in which each back edge leads to EXIT and a new edge leads from ENTRY to each target of back edges, and the index of the
    /// first new edge. Only the closing edge has another index than before.
    fn acyclic(&self, graph: &ProfileGraph) -> (ProfileGraph, usize) {
        let ended = |(id, edge): (ArcId, &ProfileEdge)| match self.is_back_edge(id) {
            true => ProfileEdge { to: graph.exit(), kind: ProfileEdgeKind::Leave, ..*edge },
            false => *edge,
        };
        let named = graph.edges().iter().enumerate().map(|(index, edge)| (ArcId::at(index), edge));
        let mut edges: Vec<ProfileEdge> = named.map(ended).collect();
        let closing = edges.pop();
        let first_begin = edges.len();
        let begin = |(head, _): &(Vertex, i64)| ProfileEdge {
            from: graph.entry(),
            to: *head,
            kind: ProfileEdgeKind::Root,
            silent: false,
        };
        edges.extend(self.begins.iter().map(begin));
        edges.extend(closing);
        (ProfileGraph::new(graph.blocks(), graph.vertices(), edges, graph.live().clone()), first_begin)
    }
}
