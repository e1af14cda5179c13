//! Lists of the edges at each vertex, in two flat vectors.

use ingraft_model::Key;

use crate::graph::ProfileEdge;
use crate::map::{ArcId, Vertex};

/// The edges at one end of each vertex.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjacency {
    /// Position in `edges` at which the list of each vertex begins, and the end of the last list.
    begin: Vec<u32>,
    /// The lists, one after the other, each in ascending order.
    edges: Vec<ArcId>,
}

impl Adjacency {
    /// Lists the edges for which `wanted` holds under the vertex that `end` names.
    pub(crate) fn new(
        vertices: usize,
        edges: &[ProfileEdge],
        wanted: impl Fn(&ProfileEdge) -> bool,
        end: impl Fn(&ProfileEdge) -> Vertex,
    ) -> Self {
        let mut begin = vec![0u32; vertices.saturating_add(1)];
        for edge in edges.iter().filter(|edge| wanted(edge)) {
            if let Some(count) = begin.get_mut(end(edge).index()) {
                *count += 1;
            }
        }
        // Each position becomes the end of its list, and then, edge by edge from the last to the first, the beginning.
        let mut sum = 0;
        for slot in &mut begin {
            sum += *slot;
            *slot = sum;
        }
        let mut lists = vec![ArcId(0); sum as usize];
        for (index, edge) in edges.iter().enumerate().rev().filter(|(_, edge)| wanted(edge)) {
            if let Some(slot) = begin.get_mut(end(edge).index()) {
                *slot = slot.saturating_sub(1);
                if let Some(place) = lists.get_mut(*slot as usize) {
                    *place = ArcId::at(index);
                }
            }
        }
        Adjacency { begin, edges: lists }
    }

    /// The edges of a vertex, in ascending order.
    pub(crate) fn of(&self, vertex: Vertex) -> &[ArcId] {
        let at = vertex.index();
        let range = self.begin.get(at).zip(self.begin.get(at.saturating_add(1)));
        range.and_then(|(from, to)| self.edges.get(*from as usize..*to as usize)).unwrap_or_default()
    }
}
