//! Disjoint sets of vertices (Tarjan), for spanning trees.

use ingraft_model::Key;

use crate::map::{PerVertex, Vertex};

/// Disjoint sets, with path halving and union by size.
pub(crate) struct Sets {
    /// The vertex above each one plus 1; 0 for the representative of a set.
    above: PerVertex<u32>,
    size: PerVertex<u32>,
}

impl Sets {
    /// One set for each of `count` vertices.
    pub(crate) fn new(count: usize) -> Self {
        Sets { above: PerVertex::new(count), size: PerVertex::new(count) }
    }

    /// The representative of the set of a vertex.
    pub(crate) fn find(&mut self, vertex: Vertex) -> Vertex {
        let mut at = vertex;
        loop {
            let above = self.above.get(at);
            if above == 0 {
                return at;
            }
            let above = Vertex(above - 1);
            let next = self.above.get(above);
            if next == 0 {
                return above;
            }
            self.above.set(at, next);
            at = Vertex(next - 1);
        }
    }

    /// Unites the sets of two vertices. Returns whether they were different sets.
    pub(crate) fn unite(&mut self, a: Vertex, b: Vertex) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return false;
        }
        let (small, large) = if self.size.get(a) < self.size.get(b) { (a, b) } else { (b, a) };
        self.above.set(small, Vertex::at(large.index() + 1).0);
        let add = self.size.get(small) + 1;
        self.size.update(large, |size| size.saturating_add(add));
        true
    }
}
