//! A depth-first search of a profile graph, and its loops.

use ingraft_model::Loops;

use crate::graph::{EdgeKind, Graph};
use crate::map::{EdgeId, Key, PerVertex, Vertex};

/// Order and loops of the live vertices, without the closing edge.
pub(crate) struct Structure {
    /// The live vertices, each after those that lead to it by edges other than back edges.
    pub(crate) order: Vec<Vertex>,
    /// The number of each vertex in the order of visits, and the number behind its subtree in the depth-first tree.
    span: PerVertex<(u32, u32)>,
    /// The loops, by Havlak's algorithm; no loops if the graph has no back edge.
    pub(crate) loops: Loops,
}

impl Structure {
    /// Searches a graph from ENTRY, along the edges in the order of their names.
    pub(crate) fn new(graph: &Graph) -> Self {
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
            let Some(edge) = graph.edge(*id).filter(|edge| edge.kind != EdgeKind::Closing) else { continue };
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
        Structure { order, span, loops }
    }

    /// Whether an edge leads back to a vertex that leads to it in the depth-first tree.
    pub(crate) fn is_back_edge(&self, graph: &Graph, edge: EdgeId) -> bool {
        let Some(edge) = graph.edge(edge).filter(|edge| edge.kind != EdgeKind::Closing) else { return false };
        let (from, _) = self.span.get(edge.from);
        let (to, end) = self.span.get(edge.to);
        to <= from && from < end
    }

    /// The loop that a vertex is the header of, by index.
    pub(crate) fn headed_by(&self, vertex: Vertex) -> Option<usize> {
        let innermost = self.loops.innermost(vertex.index())?;
        self.loops.all().get(innermost).filter(|one| one.header == vertex.index()).map(|_| innermost)
    }
}

fn loops(graph: &Graph) -> Loops {
    let next = |vertex: Vertex| {
        let inner = graph.leaving(vertex).filter(|(_, edge)| edge.kind != EdgeKind::Closing);
        inner.map(|(_, edge)| edge.to.index()).collect()
    };
    let successors: Vec<Vec<usize>> = (0..graph.vertices()).map(|vertex| next(Vertex::at(vertex))).collect();
    Loops::new(&successors, &[graph.entry().index()])
}
