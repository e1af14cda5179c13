//! Lists of the edges at each vertex.

use ingraft_model::{Key, Lists};

use crate::graph::ProfileEdge;
use crate::map::{ArcId, Vertex};

/// The edges at one end of each vertex.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjacency(Lists<ArcId>);

impl Adjacency {
    /// Lists the edges for which `wanted` holds under the vertex that `end` names.
    pub(crate) fn new(
        vertices: usize,
        edges: &[ProfileEdge],
        wanted: impl Fn(&ProfileEdge) -> bool,
        end: impl Fn(&ProfileEdge) -> Vertex,
    ) -> Self {
        let (wanted, end) = (&wanted, &end);
        let all = edges.iter().enumerate().filter(|(_, edge)| wanted(edge));
        Adjacency(Lists::new(vertices, all.map(|(index, edge)| (end(edge).index(), ArcId::at(index)))))
    }

    /// The edges of a vertex, in ascending order.
    pub(crate) fn of(&self, vertex: Vertex) -> &[ArcId] {
        self.0.get(vertex.index())
    }
}
