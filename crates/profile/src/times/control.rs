//! Forward control dependence (Ferrante, Ottenstein and Warren, "The program dependence graph and its use in optimization", 1987) of an extended
//! control-flow graph, and how often its nodes run.

use std::ops::Range;

use super::extended::{ExtendedGraph, START, STOP};
use super::moments::VarianceRange;
use super::no_times::NoTimes;

/// No node, and no place.
pub(super) const NONE: usize = usize::MAX;

/// Largest number of pairs of a branch and a node that depends on it, which bounds memory and time. A chain of ten thousand `case` labels that
/// fall through has fifty million.
const DEPENDENTS_MAX: usize = 4_000_000;

/// The forward control dependence graph.
#[derive(Debug, Default)]
pub(super) struct ControlDependence {
    /// The nodes that START leads to, each after those on which it depends.
    pub order: Vec<usize>,
    /// The nodes that depend on the branches, one branch after the other.
    nodes: Vec<usize>,
    /// For each branch, the end of its nodes among [`Self::nodes`].
    ends: Vec<usize>,
    /// Buffers: the place of each node in the order, the branches of the depth-first search, and the next certain node of each node.
    place: Vec<usize>,
    open: Vec<(usize, Range<usize>)>,
    next: Vec<usize>,
}

impl ControlDependence {
    /// Computes the graph. Fails if the extended graph has a cycle, or if too many nodes depend on too many branches.
    pub fn of(graph: &ExtendedGraph) -> Result<ControlDependence, NoTimes> {
        let mut control = ControlDependence::default();
        control.set(graph)?;
        Ok(control)
    }

    /// The same, in the memory of the graph before.
    pub fn set(&mut self, graph: &ExtendedGraph) -> Result<(), NoTimes> {
        self.find_order(graph).ok_or(NoTimes::Irreducible)?;
        self.find_next(graph);
        self.nodes.clear();
        self.ends.clear();
        for branch in graph.branches.values() {
            let stop = self.next.get(branch.from).copied().unwrap_or(NONE);
            let mut node = branch.to;
            // The nodes that surely come after the branch, up to the one that surely comes after its node.
            while node != stop && node != NONE && stop != NONE {
                self.nodes.push(node);
                node = self.next.get(node).copied().unwrap_or(NONE);
            }
            self.ends.push(self.nodes.len());
            if self.nodes.len() > DEPENDENTS_MAX {
                return Err(NoTimes::TooLarge);
            }
        }
        Ok(())
    }

    /// Adds weights up from START, which has the weight 1: a node has the sum of those on which it depends, each multiplied by the frequency of
    /// the branch. For equal iterations, the factor of a branch that iterates is instead the mean square of the number of iterations, whose
    /// variance `trips` has for each node.
    pub fn fill_weights(&self, graph: &ExtendedGraph, trips: &[f64], weights: &mut Vec<VarianceRange>) {
        weights.clear();
        weights.resize(graph.kinds.len(), VarianceRange::default());
        if let Some(start) = weights.get_mut(START) {
            *start = VarianceRange::both(1.0);
        }
        for node in &self.order {
            let weight = weights.get(*node).copied().unwrap_or_default();
            for index in graph.branches.range(*node) {
                let dependents = self.dependents(index);
                let Some(branch) = graph.branches.values().get(index).filter(|_| !dependents.is_empty()) else {
                    continue;
                };
                let equal = match branch.iterates {
                    true => branch.frequency * branch.frequency + trips.get(*node).copied().unwrap_or_default(),
                    false => branch.frequency,
                };
                let part =
                    VarianceRange { equal: weight.equal * equal, independent: weight.independent * branch.frequency };
                for dependent in dependents {
                    if let Some(sum) = weights.get_mut(*dependent) {
                        *sum = *sum + part;
                    }
                }
            }
        }
    }

    /// The nodes that depend on a branch.
    pub fn dependents(&self, branch: usize) -> &[usize] {
        let begin = branch.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        let end = self.ends.get(branch).copied();
        begin.zip(end).and_then(|(begin, end)| self.nodes.get(begin..end)).unwrap_or_default()
    }

    /// Place of a node in the order; [`NONE`] for a node to which START does not lead.
    pub fn place(&self, node: usize) -> usize {
        self.place.get(node).copied().unwrap_or(NONE)
    }

    /// Finds the nodes that START leads to, each after those that lead to it; `None` if there is a cycle.
    fn find_order(&mut self, graph: &ExtendedGraph) -> Option<()> {
        /// Places of nodes that have been reached, and of those all of whose branches have been followed.
        const OPEN: usize = NONE - 1;
        const DONE: usize = NONE - 2;
        let ControlDependence { order, place, open, .. } = self;
        order.clear();
        place.clear();
        place.resize(graph.kinds.len(), NONE);
        open.clear();
        open.push((START, graph.branches.range(START)));
        *place.get_mut(START)? = OPEN;
        while let Some((node, rest)) = open.last_mut() {
            let Some(branch) = rest.next() else {
                *place.get_mut(*node)? = DONE;
                order.push(*node);
                open.pop();
                continue;
            };
            let to = graph.branches.values().get(branch)?.to;
            match *place.get(to)? {
                DONE => {}
                OPEN => return None,
                _ => {
                    *place.get_mut(to)? = OPEN;
                    open.push((to, graph.branches.range(to)));
                }
            }
        }
        order.reverse();
        for (at, node) in order.iter().enumerate() {
            *place.get_mut(*node)? = at;
        }
        Some(())
    }

    /// Finds, for each node, the next one that control surely comes to: its immediate post-dominator. [`NONE`] for STOP, and for a node to which
    /// START does not lead.
    fn find_next(&mut self, graph: &ExtendedGraph) {
        let ControlDependence { order, place, next, .. } = self;
        next.clear();
        next.resize(graph.kinds.len(), NONE);
        let at = |node: usize| place.get(node).copied().unwrap_or(NONE);
        for node in order.iter().rev().filter(|node| **node != STOP) {
            let mut certain = None;
            for branch in graph.branches.get(*node) {
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
    }
}
