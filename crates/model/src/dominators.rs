//! Dominators of a graph whose nodes are numbered from 0, by Lengauer and Tarjan's algorithm with path compression:
//! `O(edges × log nodes)`, without recursion.

const NONE: usize = usize::MAX;

/// The dominator tree of a graph with one or more entries. A graph with several entries is treated as if one more node led to all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dominators {
    /// The immediate dominator of each node; `None` for an entry, a node that only the entries together dominate, and an unreachable node.
    immediate: Vec<Option<usize>>,
    /// The range of preorder numbers of each node's subtree in the dominator tree, end excluded; empty for an unreachable node.
    subtree: Vec<(usize, usize)>,
    /// The nodes that the entries reach, in depth-first order, each with its parent in the depth-first tree.
    order: Vec<(usize, Option<usize>)>,
}

impl Dominators {
    /// Computes the dominators of a graph, given the successors of each node and the entries. Indices of nodes that do not exist are
    /// ignored.
    pub fn new(successors: &[Vec<usize>], entries: &[usize]) -> Self {
        let count = successors.len();
        let (order, parent) = depth_first(successors, entries);
        let mut number = vec![NONE; count];
        for (at, &node) in order.iter().enumerate().skip(1) {
            number[node] = at;
        }
        // From here on, nodes have their depth-first numbers. Number 0 is the added node that leads to all entries.
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); order.len()];
        for &entry in entries.iter().filter(|e| **e < count) {
            before[number[entry]].push(0);
        }
        for (at, &node) in order.iter().enumerate().skip(1) {
            for &next in successors[node].iter().filter(|n| **n < count) {
                before[number[next]].push(at);
            }
        }
        let dominator = lengauer_tarjan(&before, &parent);
        let subtree_of = subtrees(&dominator);
        let mut immediate = vec![None; count];
        let mut subtree = vec![(0, 0); count];
        for (at, &node) in order.iter().enumerate().skip(1) {
            immediate[node] = (dominator[at] != 0).then(|| order[dominator[at]]);
            subtree[node] = subtree_of[at];
        }
        let with_parent = |(&node, &up): (&usize, &usize)| (node, (up != 0).then(|| order[up]));
        let order = order.iter().zip(&parent).skip(1).map(with_parent).collect();
        Dominators { immediate, subtree, order }
    }

    /// The immediate dominator of a node; `None` if no single node dominates it.
    pub fn immediate(&self, node: usize) -> Option<usize> {
        self.immediate.get(node).copied().flatten()
    }

    /// Whether an entry reaches the node.
    pub fn reaches(&self, node: usize) -> bool {
        self.subtree.get(node).is_some_and(|(first, end)| first < end)
    }

    /// Whether every path from an entry to `node` contains `by`. A reachable node dominates itself. An unreachable node dominates no node,
    /// and no node dominates it.
    pub fn dominates(&self, by: usize, node: usize) -> bool {
        let (Some(&(first, end)), Some(&(at, after))) = (self.subtree.get(by), self.subtree.get(node)) else {
            return false;
        };
        at < after && first <= at && at < end
    }

    /// The reachable nodes in depth-first order, each with its parent in the depth-first tree.
    pub fn order(&self) -> &[(usize, Option<usize>)] {
        &self.order
    }
}

/// Returns the nodes in depth-first order, and the depth-first number of each node's parent. Number 0 is the added node that leads to all
/// entries.
pub(crate) fn depth_first(successors: &[Vec<usize>], entries: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let (mut order, mut parent) = (vec![NONE], vec![0]);
    let mut seen = vec![false; successors.len()];
    let mut open: Vec<(usize, &[usize])> = vec![(0, entries)];
    while let Some((at, rest)) = open.last_mut() {
        let Some((&next, others)) = rest.split_first() else {
            open.pop();
            continue;
        };
        let from = *at;
        *rest = others;
        if seen.get(next) == Some(&false) {
            seen[next] = true;
            open.push((order.len(), &successors[next]));
            order.push(next);
            parent.push(from);
        }
    }
    (order, parent)
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
    use proptest::prelude::*;

    fn reached(graph: &[Vec<usize>], entries: &[usize], without: usize) -> Vec<bool> {
        let mut seen = vec![false; graph.len()];
        let mut open = entries.to_vec();
        while let Some(node) = open.pop() {
            if node != without && !seen[node] {
                seen[node] = true;
                open.extend(&graph[node]);
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn dominators_equal_removal_of_each_node(
            graph in prop::collection::vec(prop::collection::vec(0usize..12, 0..4), 12),
            entries in prop::collection::vec(0usize..12, 1..3),
        ) {
            let found = Dominators::new(&graph, &entries);
            let all = reached(&graph, &entries, NONE);
            for by in 0..12 {
                let without = reached(&graph, &entries, by);
                for node in 0..12 {
                    prop_assert_eq!(found.dominates(by, node), all[by] && all[node] && !without[node]);
                }
            }
        }
    }

    #[test]
    fn a_long_chain_needs_no_recursion() {
        let graph: Vec<Vec<usize>> =
            (0..200_000).map(|n| if n < 199_999 { vec![n + 1, n / 2] } else { vec![] }).collect();
        let found = Dominators::new(&graph, &[0]);
        assert_eq!(found.immediate(199_999), Some(199_998));
    }
}
