//! Edges at which paths end, so that the rest of a graph has no cycle: the back edges of a depth-first search from ENTRY, or others in their place
//! where no code can run at a back edge.

use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};

/// Edges at which paths end.
pub(crate) struct PathEnds {
    /// Whether paths end at each edge.
    pub(crate) at: PerEdge<bool>,
    /// The live vertices, each after those that lead to it by other edges.
    pub(crate) order: Vec<Vertex>,
}

/// State of a vertex in a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SearchState {
    #[default]
    No,
    Open,
    Done,
}

impl PathEnds {
    /// Finds such edges. `may_end` says of an edge whether code can run there. A back edge of which it does not hold stays among the ends if no other
    /// edges can take its place. Takes time in proportion to the edges, once more for each round in which back edges are replaced.
    pub(crate) fn of(graph: &ProfileGraph, may_end: &dyn Fn(ArcId) -> bool) -> Self {
        let mut at: PerEdge<bool> = graph.per_edge();
        loop {
            let (order, back) = search(graph, &at);
            let mut replaced = false;
            for (id, edge) in back.iter().filter_map(|id| Some((*id, graph.edge(*id)?))) {
                if may_end(id) {
                    continue;
                }
                if let Some(others) = instead(graph, (id, edge), may_end) {
                    others.into_iter().for_each(|other| at.set(other, true));
                    replaced = true;
                }
            }
            if !replaced {
                back.into_iter().for_each(|id| at.set(id, true));
                return PathEnds { at, order };
            }
        }
    }
}

/// Edges that take the place of a back edge: all that enter the vertex which it leaves, or all that leave the vertex to which it leads. Without them,
/// no cycle has the back edge. `None` if code cannot run at all of them.
fn instead(
    graph: &ProfileGraph,
    (id, edge): (ArcId, &ProfileEdge),
    may_end: &dyn Fn(ArcId) -> bool,
) -> Option<Vec<ArcId>> {
    let inner = |(_, of): &(ArcId, &ProfileEdge)| of.kind == ProfileEdgeKind::Inner;
    let entering: Vec<ArcId> = graph.entering(edge.from).filter(inner).map(|(id, _)| id).collect();
    let leaving: Vec<ArcId> = graph.leaving(edge.to).filter(inner).map(|(id, _)| id).collect();
    let can = |all: &Vec<ArcId>| !all.contains(&id) && all.iter().all(|other| may_end(*other));
    [entering, leaving].into_iter().filter(can).min_by_key(Vec::len)
}

/// Searches a graph from ENTRY without the edges at which paths end already. Returns the vertices in an order in which all other edges but back edges
/// lead forwards, and the back edges.
fn search(graph: &ProfileGraph, ended: &PerEdge<bool>) -> (Vec<Vertex>, Vec<ArcId>) {
    let mut visits: PerVertex<SearchState> = graph.per_vertex();
    let (mut order, mut back) = (Vec::new(), Vec::new());
    // Vertices that only ended edges lead to are roots of their own.
    let ends = graph.live_edges().filter(|(id, _)| ended.get(*id)).map(|(_, edge)| edge.to);
    for root in std::iter::once(graph.entry()).chain(ends) {
        if visits.get(root) != SearchState::No {
            continue;
        }
        visits.set(root, SearchState::Open);
        let mut open = vec![(root, graph.leaving_ids(root))];
        let first = order.len();
        while let Some((vertex, rest)) = open.last_mut() {
            let vertex = *vertex;
            let Some((id, others)) = rest.split_first() else {
                visits.set(vertex, SearchState::Done);
                order.push(vertex);
                open.pop();
                continue;
            };
            *rest = others;
            let id = *id;
            let Some(edge) = graph.edge(id).filter(|edge| edge.kind != ProfileEdgeKind::Closing) else { continue };
            if ended.get(id) {
                continue;
            }
            match visits.get(edge.to) {
                SearchState::No => {
                    visits.set(edge.to, SearchState::Open);
                    open.push((edge.to, graph.leaving_ids(edge.to)));
                }
                SearchState::Open => back.push(id),
                SearchState::Done => {}
            }
        }
        debug_assert!(order.len() > first);
    }
    order.reverse();
    (order, back)
}
