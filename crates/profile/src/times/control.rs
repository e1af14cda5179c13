//! Forward control dependence (Ferrante, Ottenstein and Warren, "The program dependence graph and its use in optimization", 1987) of an extended
//! control-flow graph, and how often its nodes run.

use std::ops::Range;

use super::extended::{ControlCondition, ExtendedGraph, START, STOP};
use super::no_times::NoTimes;

const NONE: usize = usize::MAX;

/// Largest number of pairs of a branch and a node that depends on it, which bounds memory and time. A chain of ten thousand `case` labels that
/// fall through has fifty million.
const DEPENDENTS_MAX: usize = 4_000_000;

/// The forward control dependence graph.
#[derive(Clone, Debug, Default)]
pub(super) struct ControlDependence {
    /// The nodes that START leads to, each after those on which it depends.
    pub order: Vec<usize>,
    /// For each node, the range of its edges among the branches.
    branches: Vec<Range<usize>>,
    /// For each branch, the range of the nodes that depend on it.
    dependents: Vec<Range<usize>>,
    nodes: Vec<usize>,
}

impl ControlDependence {
    /// Computes the graph. Fails if the extended graph has a cycle, or if too many nodes depend on too many branches.
    pub fn of(graph: &ExtendedGraph) -> Result<ControlDependence, NoTimes> {
        let count = graph.kinds.len();
        let branches = ranges(count, &graph.branches);
        let (order, place) = order(&branches, &graph.branches).ok_or(NoTimes::Irreducible)?;
        let next = next_certain(&branches, &graph.branches, (&order, &place));
        let mut control = ControlDependence { order, branches, dependents: Vec::new(), nodes: Vec::new() };
        for branch in &graph.branches {
            let begin = control.nodes.len();
            let stop = next.get(branch.from).copied().unwrap_or(NONE);
            let mut node = branch.to;
            // The nodes that surely come after the branch, up to the one that surely comes after its node.
            while node != stop && node != NONE && stop != NONE {
                control.nodes.push(node);
                node = next.get(node).copied().unwrap_or(NONE);
            }
            control.dependents.push(begin..control.nodes.len());
            if control.nodes.len() > DEPENDENTS_MAX {
                return Err(NoTimes::TooLarge);
            }
        }
        Ok(control)
    }

    /// Adds weights up from START, which has the weight 1: a node has the sum of those on which it depends, each multiplied by the factor of
    /// the branch, given the node and the branch.
    pub fn weights(&self, graph: &ExtendedGraph, factor: impl Fn(usize, &ControlCondition) -> f64) -> Vec<f64> {
        let mut weights = vec![0.0; graph.kinds.len()];
        if let Some(start) = weights.get_mut(START) {
            *start = 1.0;
        }
        for node in &self.order {
            let weight = weights.get(*node).copied().unwrap_or_default();
            for index in self.branches_of(*node) {
                let dependents = self.dependents(index);
                let Some(branch) = graph.branches.get(index).filter(|_| !dependents.is_empty()) else { continue };
                let part = weight * factor(*node, branch);
                for dependent in dependents {
                    if let Some(sum) = weights.get_mut(*dependent) {
                        *sum += part;
                    }
                }
            }
        }
        weights
    }

    /// The branches of a node, by their indices.
    pub fn branches_of(&self, node: usize) -> Range<usize> {
        self.branches.get(node).cloned().unwrap_or_default()
    }

    /// The nodes that depend on a branch.
    pub fn dependents(&self, branch: usize) -> &[usize] {
        self.dependents.get(branch).and_then(|range| self.nodes.get(range.clone())).unwrap_or_default()
    }
}

/// The range of each node's edges; the edges are sorted by node.
fn ranges(count: usize, branches: &[ControlCondition]) -> Vec<Range<usize>> {
    let mut ranges = vec![0..0; count];
    let mut begin = 0;
    for edges in branches.chunk_by(|a, b| a.from == b.from) {
        let end = begin + edges.len();
        if let Some(range) = edges.first().and_then(|edge| ranges.get_mut(edge.from)) {
            *range = begin..end;
        }
        begin = end;
    }
    ranges
}

/// The nodes that START leads to, each after those that lead to it, and the place of each node in this order; `None` if there is a cycle.
fn order(ranges: &[Range<usize>], branches: &[ControlCondition]) -> Option<(Vec<usize>, Vec<usize>)> {
    let edges = |node: usize| ranges.get(node).cloned().unwrap_or_default();
    let mut is_done = vec![None; ranges.len()];
    let (mut order, mut open) = (Vec::new(), vec![(START, edges(START))]);
    *is_done.get_mut(START)? = Some(false);
    while let Some((node, rest)) = open.last_mut() {
        let node = *node;
        let Some(branch) = rest.next() else {
            *is_done.get_mut(node)? = Some(true);
            order.push(node);
            open.pop();
            continue;
        };
        let to = branches.get(branch)?.to;
        match *is_done.get(to)? {
            Some(true) => {}
            Some(false) => return None,
            None => {
                *is_done.get_mut(to)? = Some(false);
                open.push((to, edges(to)));
            }
        }
    }
    order.reverse();
    let mut place = vec![NONE; ranges.len()];
    for (at, node) in order.iter().enumerate() {
        *place.get_mut(*node)? = at;
    }
    Some((order, place))
}

/// For each node, the next one that control surely comes to: its immediate post-dominator. [`NONE`] for STOP, and for a node from which START
/// does not lead.
fn next_certain(
    ranges: &[Range<usize>],
    branches: &[ControlCondition],
    (order, place): (&[usize], &[usize]),
) -> Vec<usize> {
    let mut next = vec![NONE; ranges.len()];
    let at = |node: usize| place.get(node).copied().unwrap_or(NONE);
    for node in order.iter().rev().filter(|node| **node != STOP) {
        let range = ranges.get(*node).cloned().unwrap_or_default();
        let mut certain = None;
        for branch in branches.get(range).unwrap_or_default() {
            certain = Some(certain.map_or(branch.to, |other| {
                let (mut one, mut other) = (branch.to, other);
                while one != other && one != NONE && other != NONE {
                    if at(one) < at(other) {
                        one = next.get(one).copied().unwrap_or(NONE);
                    } else {
                        other = next.get(other).copied().unwrap_or(NONE);
                    }
                }
                if one == other { one } else { NONE }
            }));
        }
        if let Some(slot) = next.get_mut(*node) {
            *slot = certain.unwrap_or(NONE);
        }
    }
    next
}
