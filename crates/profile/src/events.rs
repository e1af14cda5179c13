//! Events counted in one counter: "Efficiently counting program events with support for on-line queries" (1994).
//!
//! Each block and each edge has a constant number of events, such as its instructions. Instead of one counter for each chord, every chord
//! adds a constant to the same counter. The paper finds the constants by a depth-first search of the spanning tree that negates a sum at each
//! change of direction. Here every vertex has a *potential* `p`: the sum of the events along the tree path from ENTRY to the vertex. An edge that
//! the path takes backwards counts negatively. The events of the fundamental cycle of a chord `u → v` are then
//! `events + p(u) - p(v)`, and the query increment after `v` is `p(v)`.
//!
//! The paper splits each vertex with events in two. Here the events of a vertex belong to every edge that enters it, with the same result.

use ingraft_model::Key;

use crate::barred::{Barred, Counter, NoPlacement};
use crate::correction::Corrections;
use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerEdge, PerVertex, Vertex};
use crate::profile::Defect;
use crate::tree::{Rooted, SpanningTree};
use crate::weights::Weights;

/// Numbers of events of vertices and edges, each 0 at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    vertices: PerVertex<i64>,
    edges: PerEdge<i64>,
}

impl Events {
    /// No events, for a graph.
    pub fn new(graph: &ProfileGraph) -> Self {
        Events { vertices: graph.per_vertex(), edges: graph.per_edge() }
    }

    /// Sets the events of an arrival at a vertex. ENTRY has none, and an activation that ends along an end edge does not arrive at EXIT.
    pub fn set_vertex(&mut self, vertex: Vertex, events: i64) {
        self.vertices.set(vertex, events);
    }

    /// Sets the events of a passage along an edge.
    pub fn set_edge(&mut self, edge: ArcId, events: i64) {
        self.edges.set(edge, events);
    }

    /// Events of a passage along an edge, with those of the arrival at its end. The closing edge has none.
    pub fn of(&self, id: ArcId, edge: &ProfileEdge) -> i128 {
        let arrival = match edge.kind {
            ProfileEdgeKind::Closing => return 0,
            ProfileEdgeKind::End => 0,
            ProfileEdgeKind::Inner | ProfileEdgeKind::Root | ProfileEdgeKind::Leave => self.vertices.get(edge.to),
        };
        i128::from(self.edges.get(id)) + i128::from(arrival)
    }
}

/// Reason why events cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncountable {
    /// A cycle has events, but none of its edges can carry an increment.
    #[error(transparent)]
    Refused(#[from] NoPlacement),
    /// The increment of the edge, or the query increment of the block, exceeds 64 bits.
    #[error("an increment at {0:?} exceeds 64 bits")]
    Overflow(Counter),
}

/// Increments of one counter that count the events of all activations of a function.
#[derive(Clone, Debug)]
pub struct EventPlan {
    increments: Vec<(ArcId, i64)>,
    queries: PerVertex<i64>,
    /// The blocks that control can reach.
    live: PerVertex<bool>,
}

impl EventPlan {
    /// Chooses the edges with increments: chords of a maximum spanning tree, except those whose increment is 0. If edges that can carry no
    /// increment form a cycle whose events do not add up to 0, an edge of the cycle is refused. Takes `O(edges × log edges)`.
    pub fn new(graph: &ProfileGraph, weights: &Weights, barred: &Barred, events: &Events) -> Result<Self, Uncountable> {
        let (tree, bare) = SpanningTree::with_bare(graph, weights, barred, |_| false);
        let potential = potentials(graph, &tree.rooted(graph), events);
        let mut increments = Vec::new();
        for id in tree.chords(graph) {
            let Some(edge) = graph.edge(id) else { continue };
            let sum = events.of(id, edge) + potential.get(edge.from) - potential.get(edge.to);
            let increment = i64::try_from(sum).map_err(|_| Uncountable::Overflow(Counter::Edge(id)))?;
            if increment != 0 && bare.binary_search(&id).is_ok() {
                return Err(NoPlacement::Edge(id).into());
            }
            if increment != 0 {
                increments.push((id, increment));
            }
        }
        let (mut queries, mut live) = (graph.per_vertex(), graph.per_vertex());
        for block in (0..graph.blocks()).map(Vertex::at).filter(|block| graph.is_live(*block)) {
            let query = i64::try_from(potential.get(block));
            queries.set(block, query.map_err(|_| Uncountable::Overflow(Counter::Block(block)))?);
            live.set(block, true);
        }
        Ok(EventPlan { increments, queries, live })
    }

    /// The edges with increments, in ascending order. No increment is 0.
    pub fn increments(&self) -> &[(ArcId, i64)] {
        &self.increments
    }

    /// Query increment of a block: the number to add to the counter for each activation that is at this block. `None` if
    /// control cannot reach the block.
    ///
    /// If one counter counts the events of several functions, a query would need the block of every activation. To avoid this, code before a
    /// call adds the query increment of the block with the call, and code after the call subtracts it (section 4).
    pub fn query(&self, block: Vertex) -> Option<i64> {
        self.live.get(block).then(|| self.queries.get(block))
    }

    /// Number of events so far, from the value of the counter. `corrections` has the activations that began before the counting, and as early
    /// ends those that are running at the moment of the query. Fails if a correction names a block that control cannot reach.
    ///
    /// All sums wrap around at 64 bits, as the counter does. So the number is exact if it fits in an `i64`.
    pub fn total(&self, counter: i64, corrections: &Corrections) -> Result<i64, Defect> {
        let mut total = counter;
        for (list, begins) in [(&corrections.late, true), (&corrections.early, false)] {
            for (block, count) in list {
                let query = self.query(*block).ok_or(Defect::UnknownBlock(*block))?;
                let sum = query.wrapping_mul(count.cast_signed());
                total = if begins { total.wrapping_sub(sum) } else { total.wrapping_add(sum) };
            }
        }
        Ok(total)
    }
}

/// Returns the potential of each vertex that control can reach: the events along the tree from its root to the vertex. It is a sum of at
/// most `u32::MAX` numbers of 65 bits, so it fits in 128 bits.
pub(crate) fn potentials(graph: &ProfileGraph, rooted: &Rooted, events: &Events) -> PerVertex<i128> {
    let mut potential = graph.per_vertex::<i128>();
    for vertex in &rooted.order {
        let Some((id, edge)) = rooted.above.get(*vertex).and_then(|id| Some((id, graph.edge(id)?))) else { continue };
        let (above, step) = (potential.get(edge.other(*vertex)), events.of(id, edge));
        potential.set(*vertex, if edge.to == *vertex { above.wrapping_add(step) } else { above.wrapping_sub(step) });
    }
    potential
}
