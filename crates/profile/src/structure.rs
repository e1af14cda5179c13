//! A depth-first search of a profile graph, and its loops.

use std::iter::successors;

use ingraft_model::{IndexVec, Key, Loops};

use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, PerVertex, Vertex};

/// Largest number of loops around a loop. A loop that is nested deeper belongs to the loop around it, which bounds the time for the exits of
/// loops.
const DEPTH_MAX: usize = 63;

/// Order and loops of the live vertices, without the closing edge.
pub(crate) struct Structure {
    /// The live vertices, each after those that lead to it by edges other than back edges.
    pub(crate) order: Vec<Vertex>,
    /// The number of each vertex in the order of visits, and the number behind its subtree in the depth-first tree.
    span: PerVertex<(u32, u32)>,
    /// The loops, by Havlak's algorithm; no loops if the graph has no back edge.
    loops: Loops<Vertex>,
    /// For each loop, the innermost loop around it, or itself, that is not nested deeper than [`DEPTH_MAX`].
    shallow: Vec<usize>,
}

impl Structure {
    /// Searches a graph from ENTRY, along the edges in ascending order.
    pub(crate) fn new(graph: &ProfileGraph) -> Self {
        let mut span: PerVertex<(u32, u32)> = graph.per_vertex();
        let mut order = Vec::new();
        let (mut visits, mut has_back_edge) = (1, false);
        span.set(graph.entry(), (1, u32::MAX));
        let mut open = vec![(graph.entry(), graph.leaving_ids(graph.entry()))];
        while let Some((vertex, rest)) = open.last_mut() {
            let vertex = *vertex;
            let Some((id, others)) = rest.split_first() else {
                span.update(vertex, |(first, _)| (first, visits + 1));
                order.push(vertex);
                open.pop();
                continue;
            };
            *rest = others;
            let Some(edge) = graph.edge(*id).filter(|edge| edge.kind != ProfileEdgeKind::Closing) else { continue };
            match span.get(edge.to) {
                (0, _) => {
                    visits += 1;
                    span.set(edge.to, (visits, u32::MAX));
                    open.push((edge.to, graph.leaving_ids(edge.to)));
                }
                // A vertex whose subtree is not complete yet leads to this one.
                (_, end) => has_back_edge |= end == u32::MAX,
            }
        }
        order.reverse();
        let loops = if has_back_edge { loops(graph) } else { Loops::default() };
        let mut shallow: Vec<usize> = Vec::with_capacity(loops.all().len());
        for (index, one) in loops.all().iter().enumerate() {
            let around = one.parent.filter(|_| one.depth > DEPTH_MAX).and_then(|parent| shallow.get(parent).copied());
            shallow.push(around.unwrap_or(index));
        }
        Structure { order, span, loops, shallow }
    }

    /// Whether an edge leads back to a vertex that leads to it in the depth-first tree.
    pub(crate) fn is_back_edge(&self, graph: &ProfileGraph, edge: ArcId) -> bool {
        let Some(edge) = graph.edge(edge).filter(|edge| edge.kind != ProfileEdgeKind::Closing) else { return false };
        let (from, _) = self.span.get(edge.from);
        let (to, end) = self.span.get(edge.to);
        to <= from && from < end
    }

    /// Number of loops.
    pub(crate) fn loops(&self) -> usize {
        self.loops.all().len()
    }

    /// The loop that a vertex is the header of, by index, if it is not nested too deep.
    pub(crate) fn headed_by(&self, vertex: Vertex) -> Option<usize> {
        let innermost = self.loops.innermost(vertex)?;
        let one = self.loops.all().get(innermost)?;
        (one.header == vertex && one.depth <= DEPTH_MAX).then_some(innermost)
    }

    /// The loops that an edge leaves, by index, without those that are nested too deep.
    pub(crate) fn left_by(&self, edge: &ProfileEdge) -> impl Iterator<Item = usize> {
        let (from, to) = (self.around(edge.from), self.around(edge.to));
        let mut stays = to;
        successors(from, |one| self.parent(*one)).take_while(move |one| {
            // Both ends climb to the same depth.
            while stays.is_some_and(|other| self.depth(other) > self.depth(*one)) {
                stays = stays.and_then(|other| self.parent(other));
            }
            stays != Some(*one)
        })
    }

    /// The innermost loop of a vertex that is not nested too deep.
    fn around(&self, vertex: Vertex) -> Option<usize> {
        self.shallow.get(self.loops.innermost(vertex)?).copied()
    }

    fn parent(&self, one: usize) -> Option<usize> {
        self.loops.all().get(one)?.parent
    }

    fn depth(&self, one: usize) -> usize {
        self.loops.all().get(one).map_or(0, |one| one.depth)
    }
}

fn loops(graph: &ProfileGraph) -> Loops<Vertex> {
    let next = |vertex: Vertex| {
        let inner = graph.leaving(vertex).filter(|(_, edge)| edge.kind != ProfileEdgeKind::Closing);
        inner.map(|(_, edge)| edge.to).collect()
    };
    let successors: IndexVec<Vertex, Vec<Vertex>> =
        (0..graph.vertices()).map(|vertex| next(Vertex::at(vertex))).collect();
    Loops::headers(&successors, &[graph.entry()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::GraphBuilder;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_searches_find_the_same_headers(
            edges in prop::collection::vec((0u32..9, 0u32..9), 0..20),
            roots in prop::collection::vec(0u32..9, 1..3),
        ) {
            let mut shape = GraphBuilder::new(9);
            edges.iter().for_each(|(from, to)| _ = shape.edge(Vertex(*from), Vertex(*to)));
            roots.iter().for_each(|root| _ = shape.root(Vertex(*root)));
            let graph = shape.build().expect("a graph");
            let structure = Structure::new(&graph);
            let position = |vertex| structure.order.iter().position(|other| *other == vertex);
            let mut headers = vec![false; graph.vertices()];
            for (id, edge) in graph.live_edges().filter(|(_, edge)| edge.kind != ProfileEdgeKind::Closing) {
                if structure.is_back_edge(&graph, id) {
                    headers[edge.to.index()] = true;
                    let header = structure.headed_by(edge.to).expect("a loop");
                    prop_assert!(structure.loops.around(edge.from).any(|around| around == header));
                } else {
                    prop_assert!(position(edge.from) < position(edge.to), "{edge:?}");
                }
            }
            prop_assert_eq!(headers.iter().filter(|is_header| **is_header).count(), structure.loops());
        }
    }
}
