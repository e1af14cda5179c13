//! Dominators of a graph whose nodes are numbered from 0, by Lengauer and Tarjan's algorithm with path compression:
//! `O(edges × log nodes)`, without recursion.

use crate::index::{IndexVec, Key};
use crate::lists::Successors;

const NONE: usize = usize::MAX;

/// The dominator tree of a graph with one or more entries. A graph with several entries is treated as if one more node led to all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dominators<N> {
    /// The immediate dominator of each node; `None` for an entry, a node that only the entries together dominate, and an unreachable node.
    immediate: IndexVec<N, Option<N>>,
    /// The range of preorder numbers of each node's subtree in the dominator tree, end excluded; empty for an unreachable node.
    subtree: IndexVec<N, (usize, usize)>,
}

impl<N: Key> Dominators<N> {
    /// Computes the dominators of a graph, given the successors of each node and the entries. Indices of nodes that do not exist are
    /// ignored.
    pub fn new(successors: &IndexVec<N, Vec<N>>, entries: &[N]) -> Self {
        let count = successors.len();
        let DepthFirst { order, parent, .. } = DepthFirst::of(successors, entries);
        let mut number = IndexVec::filled(NONE, count);
        for (at, &node) in (1..).zip(&order) {
            number.set(node, at);
        }
        // From here on, nodes have their depth-first numbers. Number 0 is the added node that leads to all entries.
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); parent.len()];
        for entry in entries.iter().filter_map(|entry| number.get(*entry)) {
            before[*entry].push(0);
        }
        for (at, &node) in (1..).zip(&order) {
            let next = successors.get(node).into_iter().flatten();
            next.filter_map(|next| number.get(*next)).for_each(|next| before[*next].push(at));
        }
        let dominator = lengauer_tarjan(&before, &parent);
        let subtree_of = subtrees(&dominator);
        let mut immediate = IndexVec::filled(None, count);
        let mut subtree = IndexVec::filled((0, 0), count);
        for (at, &node) in (1..).zip(&order) {
            immediate.set(node, dominator[at].checked_sub(1).map(|dominator| order[dominator]));
            subtree.set(node, subtree_of[at]);
        }
        Dominators { immediate, subtree }
    }

    /// The immediate dominator of a node; `None` if no single node dominates it.
    pub fn immediate(&self, node: N) -> Option<N> {
        self.immediate.get(node).copied().flatten()
    }

    /// Whether an entry reaches the node.
    pub fn reaches(&self, node: N) -> bool {
        self.subtree.get(node).is_some_and(|(first, end)| first < end)
    }

    /// Whether every path from an entry to `node` contains `by`. A reachable node dominates itself. An unreachable node dominates no node,
    /// and no node dominates it.
    pub fn dominates(&self, by: N, node: N) -> bool {
        let (Some(&(first, end)), Some(&(at, after))) = (self.subtree.get(by), self.subtree.get(node)) else {
            return false;
        };
        at < after && first <= at && at < end
    }
}

/// A depth-first search, whose memory can be used for one graph after the other.
#[derive(Clone, Debug)]
pub(crate) struct DepthFirst<N> {
    /// The nodes in depth-first order.
    pub order: Vec<N>,
    /// The depth-first number of the parent of each number. Number 0 is an added node that leads to all entries, and the nodes have the numbers
    /// from 1 on.
    pub parent: Vec<usize>,
    seen: IndexVec<N, bool>,
    /// Numbers of nodes, each with the number of its successors that have been followed.
    open: Vec<(usize, usize)>,
}

impl<N> Default for DepthFirst<N> {
    fn default() -> Self {
        DepthFirst { order: Vec::new(), parent: Vec::new(), seen: IndexVec::default(), open: Vec::new() }
    }
}

impl<N: Key> DepthFirst<N> {
    pub(crate) fn of(graph: &impl Successors<N>, entries: &[N]) -> Self {
        let mut search = DepthFirst::default();
        search.search(graph, entries);
        search
    }

    pub(crate) fn search(&mut self, graph: &impl Successors<N>, entries: &[N]) {
        let DepthFirst { order, parent, seen, open } = self;
        order.clear();
        parent.clear();
        parent.push(0);
        seen.refill(false, graph.nodes());
        open.clear();
        open.push((0, 0));
        while let Some((at, followed)) = open.last_mut() {
            let next = match at.checked_sub(1) {
                None => entries.get(*followed),
                Some(place) => graph.successors(order[place]).get(*followed),
            };
            let Some(&next) = next else {
                open.pop();
                continue;
            };
            *followed += 1;
            if seen.get(next) == Some(&false) {
                seen.set(next, true);
                parent.push(*at);
                order.push(next);
                open.push((order.len(), 0));
            }
        }
    }
}

fn lengauer_tarjan(before: &[Vec<usize>], parent: &[usize]) -> Vec<usize> {
    let count = before.len();
    let mut semi: Vec<usize> = (0..count).collect();
    let mut label = semi.clone();
    let mut ancestor = vec![NONE; count];
    let mut dominator = vec![0; count];
    let mut bucket: Vec<Vec<usize>> = vec![Vec::new(); count];
    for node in (1..count).rev() {
        for &from in &before[node] {
            let best = best(from, &semi, &mut label, &mut ancestor);
            semi[node] = semi[node].min(semi[best]);
        }
        bucket[semi[node]].push(node);
        let up = parent[node];
        ancestor[node] = up;
        for waiting in std::mem::take(&mut bucket[up]) {
            let best = best(waiting, &semi, &mut label, &mut ancestor);
            dominator[waiting] = if semi[best] < semi[waiting] { best } else { up };
        }
    }
    for node in 1..count {
        if dominator[node] != semi[node] {
            dominator[node] = dominator[dominator[node]];
        }
    }
    dominator
}

/// Returns the node with the least semidominator on the linked path from `node` upwards, and compresses the path.
fn best(node: usize, semi: &[usize], label: &mut [usize], ancestor: &mut [usize]) -> usize {
    if ancestor[node] == NONE {
        return label[node];
    }
    let (mut path, mut at) = (Vec::new(), node);
    while ancestor[ancestor[at]] != NONE {
        path.push(at);
        at = ancestor[at];
    }
    while let Some(below) = path.pop() {
        let up = ancestor[below];
        if semi[label[up]] < semi[label[below]] {
            label[below] = label[up];
        }
        ancestor[below] = ancestor[up];
    }
    label[node]
}

/// Returns the range of preorder numbers of each node's subtree, for a tree in which each node comes after its parent.
fn subtrees(parent: &[usize]) -> Vec<(usize, usize)> {
    let mut size = vec![1; parent.len()];
    for node in (1..parent.len()).rev() {
        size[parent[node]] += size[node];
    }
    let mut ranges = vec![(0, 0); parent.len()];
    let mut free = vec![1; parent.len()];
    for node in 0..parent.len() {
        let first = if node == 0 { 0 } else { free[parent[node]] };
        if node != 0 {
            free[parent[node]] += size[node];
        }
        ranges[node] = (first, first + size[node]);
        free[node] = first + 1;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::BlockId as Node;
    use proptest::prelude::*;

    fn reached(graph: &IndexVec<Node, Vec<Node>>, entries: &[Node], without: Option<Node>) -> IndexVec<Node, bool> {
        let mut seen = IndexVec::filled(false, graph.len());
        let mut open = entries.to_vec();
        while let Some(node) = open.pop() {
            if Some(node) != without && seen.get(node) == Some(&false) {
                seen.set(node, true);
                open.extend(graph.get(node).into_iter().flatten());
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn dominators_equal_removal_of_each_node(
            graph in prop::collection::vec(prop::collection::vec((0u32..12).prop_map(Node), 0..4), 12),
            entries in prop::collection::vec((0u32..12).prop_map(Node), 1..3),
        ) {
            let graph = IndexVec::from(graph);
            let found = Dominators::new(&graph, &entries);
            let all = reached(&graph, &entries, None);
            for by in graph.keys() {
                let without = reached(&graph, &entries, Some(by));
                for node in graph.keys() {
                    let is_needed = all.get(by) == Some(&true) && all.get(node) == Some(&true);
                    prop_assert_eq!(found.dominates(by, node), is_needed && without.get(node) == Some(&false));
                }
            }
        }
    }

    #[test]
    fn a_long_chain_needs_no_recursion() {
        let next = |n: u32| if n < 199_999 { vec![Node(n + 1), Node(n / 2)] } else { vec![] };
        let found = Dominators::new(&(0..200_000u32).map(next).collect(), &[Node(0)]);
        assert_eq!(found.immediate(Node(199_999)), Some(Node(199_998)));
    }
}
