//! Propagation: counts of tree edges from the counts of chords.

use crate::graph::ProfileGraph;
use crate::map::{PerEdge, PerVertex};
use crate::tree::{Rooted, SpanningTree};

/// Derives the count of each tree edge by Kirchhoff's law at the vertices, from the leaves to the root ("Optimally profiling and tracing
/// programs" (1994), Figure 6, without recursion and with signs). Takes linear time.
///
/// `counts` has the counts of the chords on entry, and those of all live edges on return. `excess` is the number of arrivals
/// at each vertex other than along edges; its sum is 0. If no execution has the counts, a derived count may be negative or exceed 64 bits.
/// Counts of chords have 64 bits and indices of edges 32, so no sum exceeds 128 bits.
pub(crate) fn propagate(
    graph: &ProfileGraph,
    tree: &SpanningTree,
    rooted: &Rooted,
    counts: &mut PerEdge<i128>,
    mut excess: PerVertex<i128>,
) {
    for (id, edge) in graph.live_edges().filter(|(id, _)| !tree.contains(*id)) {
        let count = counts.get(id);
        excess.update(edge.to, |sum| sum.wrapping_add(count));
        excess.update(edge.from, |sum| sum.wrapping_sub(count));
    }
    for vertex in rooted.order.iter().rev() {
        let Some((id, edge)) = rooted.above.get(*vertex).and_then(|id| Some((id, graph.edge(id)?))) else { continue };
        let here = excess.get(*vertex);
        counts.set(id, if edge.to == *vertex { here.wrapping_neg() } else { here });
        // The excess of this vertex passes to the vertex above.
        excess.update(edge.other(*vertex), |sum| sum.wrapping_add(here));
    }
}
