//! Ranks of blocks: each block is below all blocks that lead to it, back edges left out.

use super::DrawnGraph;

/// The ranks of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranks {
    /// Rank of each block, from 0 at the top.
    pub(super) of: Vec<usize>,
    /// Number of ranks.
    pub(super) count: usize,
    /// For each edge, whether it leads to its own block or to one around which a search is still under way: these edges go upwards.
    pub(super) up: Vec<bool>,
}

/// Assigns ranks by the longest path from the roots.
pub(super) fn ranks(graph: &DrawnGraph) -> Ranks {
    let count = graph.blocks.len();
    let mut from: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (number, edge) in graph.edges.iter().enumerate() {
        from[edge.from].push(number);
    }
    let (up, order) = search(graph, &from);
    let mut of = vec![0; count];
    // In the reverse of the order in which a search leaves blocks, a block comes before all that it leads to.
    for &block in order.iter().rev() {
        for &edge in from[block].iter().filter(|edge| !up[**edge]) {
            let to = graph.edges[edge].to;
            of[to] = of[to].max(of[block] + 1);
        }
    }
    let count = of.iter().max().map_or(0, |last| last + 1);
    Ranks { of, count, up }
}

/// A depth-first search from the roots, then from blocks that no root leads to. Returns the edges that lead to blocks on the present path,
/// and the blocks in the order in which the search leaves them.
fn search(graph: &DrawnGraph, from: &[Vec<usize>]) -> (Vec<bool>, Vec<usize>) {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        New,
        Open,
        Done,
    }
    let mut state = vec![VisitState::New; from.len()];
    let mut up = vec![false; graph.edges.len()];
    let mut order = Vec::with_capacity(from.len());
    for start in graph.roots.iter().copied().chain(0..from.len()) {
        if state[start] != VisitState::New {
            continue;
        }
        state[start] = VisitState::Open;
        let mut path = vec![(start, 0)];
        while let Some((block, next)) = path.last_mut() {
            let Some(&edge) = from[*block].get(*next) else {
                state[*block] = VisitState::Done;
                order.push(*block);
                path.pop();
                continue;
            };
            *next += 1;
            let to = graph.edges[edge].to;
            match state[to] {
                VisitState::New => {
                    state[to] = VisitState::Open;
                    path.push((to, 0));
                }
                VisitState::Open => up[edge] = true,
                VisitState::Done => {}
            }
        }
    }
    (up, order)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::picture::tests::graph;

    #[test]
    fn a_block_is_below_all_that_lead_to_it() {
        let ranks = ranks(&graph(5, &[(0, 1), (1, 2), (0, 2), (2, 1), (2, 3), (4, 3), (3, 3)]));
        assert_eq!(ranks.of, [0, 1, 2, 3, 0]);
        assert_eq!(ranks.up, [false, false, false, true, false, false, true]);
        assert_eq!(ranks.count, 4);
    }

    #[test]
    fn a_long_chain_needs_no_recursion() {
        let edges: Vec<(usize, usize)> = (0..50_000).map(|n| (n, n + 1)).collect();
        assert_eq!(ranks(&graph(50_001, &edges)).count, 50_001);
    }

    proptest! {
        #[test]
        fn edges_lead_down_unless_they_lead_up(edges in prop::collection::vec((0..9_usize, 0..9_usize), 0..30)) {
            let graph = graph(9, &edges);
            let ranks = ranks(&graph);
            for (edge, up) in graph.edges.iter().zip(&ranks.up) {
                prop_assert!(*up || ranks.of[edge.from] < ranks.of[edge.to]);
            }
        }
    }
}
