//! Mean and variance of the nodes of a function (section 5 of the paper), and what the variance comes from.

use std::collections::BTreeMap;

use super::control::ControlDependence;
use super::extended::{ControlCondition, ExtendedGraph, ExtendedNode, START};
use super::flow::CallFlow;

/// A variance under the two extreme assumptions about the iterations of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VarianceRange {
    /// All iterations of an entry of a loop take equally long: the paper's product of the number of iterations and the time of one.
    pub equal: f64,
    /// The times of iterations do not depend on each other.
    pub independent: f64,
}

/// Part of a function that has a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedPart {
    /// A call of the function.
    Function,
    /// An execution of a block, with all that depends on its branch.
    Block(usize),
    /// An entry of the loop with this header, with all iterations.
    Loop(usize),
}

/// Time of a node of the forward control dependence graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeTime {
    /// The part. A block may occur several times, if it is in a loop with several entries.
    pub origin: TimedPart,
    /// Executions in a call of the function (NODE_FREQ).
    pub frequency: f64,
    /// Mean time of an execution (TIME), in the unit of the costs.
    pub mean: f64,
    /// Variance of the time of an execution (VAR).
    pub variance: VarianceRange,
    /// For a loop, the mean number of executions of its header in an entry.
    pub iterations: Option<f64>,
}

/// A source of variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VarianceCause {
    /// The ways that the branch of a block takes.
    Branch(usize),
    /// The ways that the branch of a block takes, of which at least one leaves a loop.
    Exit(usize),
    /// The number of iterations of the loop with this header.
    Trips(usize),
    /// The callees of a block.
    Callee(usize),
    /// Whether, and where, control has come from outside other than by a call.
    Arrival,
}

/// The share of the variance of a function that has one cause. All shares add up to 1, unless the variance has no bound: then they are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VarianceShare {
    /// The cause.
    pub cause: VarianceCause,
    /// Part of the whole, from 0 to 1.
    pub share: VarianceRange,
}

/// Times of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedTimes {
    /// Mean time of a call, in the unit of the costs.
    pub mean: f64,
    /// Variance of the time of a call.
    pub variance: VarianceRange,
    /// Times of the function, its loops and its blocks.
    pub nodes: Vec<NodeTime>,
    /// The sources of the variance, the largest share (of independent iterations) first. Empty if there is no variance.
    pub shares: Vec<VarianceShare>,
}

/// Mean and variance of the cost of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub mean: f64,
    pub variance: VarianceRange,
}

impl std::ops::Add for VarianceRange {
    type Output = VarianceRange;

    fn add(self, other: VarianceRange) -> VarianceRange {
        VarianceRange { equal: self.equal + other.equal, independent: self.independent + other.independent }
    }
}

impl VarianceRange {
    /// The same under both assumptions.
    pub(super) fn both(value: f64) -> VarianceRange {
        VarianceRange { equal: value, independent: value }
    }

    pub(super) fn scaled(self, by: VarianceRange) -> VarianceRange {
        // Nothing times a variance without bound is nothing.
        let product = |one: f64, other: f64| if one == 0.0 || other == 0.0 { 0.0 } else { one * other };
        VarianceRange { equal: product(self.equal, by.equal), independent: product(self.independent, by.independent) }
    }
}

impl Moments {
    /// The mixture of several times, of which one comes with each probability. The probabilities need not add up to 1: nothing is done else.
    pub fn mixed(parts: impl Iterator<Item = (f64, Moments)>) -> Moments {
        let (mut mean, mut square) = (0.0, VarianceRange::default());
        for (probability, part) in parts.filter(|(probability, _)| *probability > 0.0) {
            mean += probability * part.mean;
            square = square
                + (part.variance + VarianceRange::both(part.mean * part.mean)).scaled(VarianceRange::both(probability));
        }
        let variance = square + VarianceRange::both(-mean * mean);
        // A rounded difference of equal numbers.
        let variance = VarianceRange { equal: variance.equal.max(0.0), independent: variance.independent.max(0.0) };
        Moments { mean, variance }
    }

    fn after(self, other: Moments) -> Moments {
        Moments { mean: self.mean + other.mean, variance: self.variance + other.variance }
    }
}

/// A function that is ready to be added up.
#[derive(Debug)]
pub(super) struct PreparedFunction {
    flow: CallFlow,
    graph: ExtendedGraph,
    control: ControlDependence,
    /// For each node, its executions in a call of the function.
    frequency: Vec<f64>,
    /// Variance of the number of iterations of each preheader's loop.
    trips: Vec<f64>,
}

impl PreparedFunction {
    /// Computes frequencies. `trips` has the variance of the number of iterations of the loop with each header.
    pub fn new(flow: CallFlow, graph: ExtendedGraph, control: ControlDependence, trips: &[(usize, f64)]) -> Self {
        let of_header = |header: &usize| {
            let block = flow.blocks.get(*header).copied().flatten();
            trips.iter().find(|(header, _)| Some(*header) == block).map_or(0.0, |(_, variance)| variance.max(0.0))
        };
        let of_node =
            |kind: &ExtendedNode| if let ExtendedNode::Preheader(header) = kind { of_header(header) } else { 0.0 };
        let trips = graph.kinds.iter().map(of_node).collect();
        let mut prepared = PreparedFunction { flow, graph, control, frequency: Vec::new(), trips };
        prepared.frequency = prepared.weights(|_, branch| branch.frequency);
        prepared
    }

    /// Weights of the nodes, see [`ControlDependence::weights`].
    fn weights(&self, factor: impl Fn(usize, &ControlCondition) -> f64) -> Vec<f64> {
        self.control.weights(&self.graph, factor)
    }

    /// The block of a node.
    fn block(&self, node: usize) -> Option<usize> {
        match self.graph.kinds.get(node)? {
            ExtendedNode::Flow(node) => self.flow.blocks.get(*node).copied().flatten(),
            ExtendedNode::Start
            | ExtendedNode::Stop
            | ExtendedNode::Preheader(_)
            | ExtendedNode::IterationEnd
            | ExtendedNode::Postexit => None,
        }
    }

    /// For each block, its executions in a call of the function, and the factor with which the variance of its cost counts.
    pub fn blocks(&self) -> Vec<(usize, f64, VarianceRange)> {
        let weights = self.variance_weights();
        let of = |node: usize| {
            let block = self.block(node)?;
            Some((block, self.frequency.get(node).copied()?, weights.get(node).copied()?))
        };
        self.control.order.iter().filter_map(|node| of(*node)).collect()
    }

    /// For each node, the factor with which the variance that begins there counts in that of the function.
    fn variance_weights(&self) -> Vec<VarianceRange> {
        let trips = |node: usize| self.trips.get(node).copied().unwrap_or_default();
        let equal = self.weights(|node, branch| match branch.iterates {
            true => branch.frequency * branch.frequency + trips(node),
            false => branch.frequency,
        });
        let independent = self.weights(|_, branch| branch.frequency);
        equal.into_iter().zip(independent).map(|(equal, independent)| VarianceRange { equal, independent }).collect()
    }

    /// Sum of what depends on each branch of a node: the branch's frequency, whether it iterates, and the moments.
    fn branches(&self, node: usize, moments: &[Moments]) -> impl Iterator<Item = (f64, bool, Moments)> {
        self.control.branches_of(node).filter_map(|index| {
            let branch = self.graph.branches.get(index)?;
            let dependents = self.control.dependents(index).iter().filter_map(|node| moments.get(*node));
            let sum = dependents.fold(Moments::default(), |sum, one| sum.after(*one));
            Some((branch.frequency, branch.iterates, sum))
        })
    }

    /// Mean and variance of each node, from the costs of the blocks.
    fn moments(&self, cost: &impl Fn(usize) -> Moments) -> Vec<Moments> {
        let mut moments = vec![Moments::default(); self.graph.kinds.len()];
        for node in self.control.order.iter().rev() {
            let trips = self.trips.get(*node).copied().unwrap_or_default();
            let own = self.block(*node).map_or_else(Moments::default, cost);
            let ways = Moments::mixed(
                self.branches(*node, &moments).filter(|(_, iterates, _)| !iterates).map(|(p, _, sum)| (p, sum)),
            );
            let iterations = self.branches(*node, &moments).find(|(_, iterates, _)| *iterates);
            let loops = iterations.map_or_else(Moments::default, |(count, _, sum)| {
                let of_trips = VarianceRange::both(trips * sum.mean * sum.mean);
                let factor = VarianceRange { equal: count * count + trips, independent: count };
                Moments { mean: count * sum.mean, variance: sum.variance.scaled(factor) + of_trips }
            });
            if let Some(slot) = moments.get_mut(*node) {
                *slot = own.after(ways).after(loops);
            }
        }
        moments
    }

    /// Mean and variance of a call of the function, from the costs of the blocks.
    pub fn total(&self, cost: &impl Fn(usize) -> Moments) -> Moments {
        self.moments(cost).get(START).copied().unwrap_or_default()
    }

    /// All times of the function, from the costs of the blocks.
    pub fn times(&self, cost: &impl Fn(usize) -> Moments) -> PredictedTimes {
        let moments = self.moments(cost);
        let total = moments.get(START).copied().unwrap_or_default();
        let node = |node: &usize| {
            let (origin, iterations) = match self.graph.kinds.get(*node)? {
                ExtendedNode::Start => (TimedPart::Function, None),
                ExtendedNode::Preheader(header) => {
                    let count =
                        self.branches(*node, &moments).find(|(_, iterates, _)| *iterates).map(|(count, ..)| count);
                    (TimedPart::Loop(self.flow.blocks.get(*header).copied().flatten()?), count)
                }
                ExtendedNode::Flow(_) => (TimedPart::Block(self.block(*node)?), None),
                ExtendedNode::Stop | ExtendedNode::IterationEnd | ExtendedNode::Postexit => return None,
            };
            let Moments { mean, variance } = *moments.get(*node)?;
            Some(NodeTime { origin, frequency: self.frequency.get(*node).copied()?, mean, variance, iterations })
        };
        let nodes = self.control.order.iter().filter_map(node).collect();
        let shares = self.shares(cost, &moments, total.variance);
        PredictedTimes { mean: total.mean, variance: total.variance, nodes, shares }
    }

    /// The sources of the variance.
    fn shares(
        &self,
        cost: &impl Fn(usize) -> Moments,
        moments: &[Moments],
        total: VarianceRange,
    ) -> Vec<VarianceShare> {
        let mut shares: BTreeMap<VarianceCause, VarianceRange> = BTreeMap::new();
        let weights = self.variance_weights();
        for node in &self.control.order {
            let weight = weights.get(*node).copied().unwrap_or_default();
            let block = self.block(*node);
            let mut add = |cause: VarianceCause, own: VarianceRange| {
                let sum = shares.entry(cause).or_default();
                *sum = *sum + own.scaled(weight);
            };
            if let Some(block) = block {
                add(VarianceCause::Callee(block), cost(block).variance);
            }
            let without = |sum: Moments| Moments { mean: sum.mean, variance: VarianceRange::default() };
            let ways = self.branches(*node, moments).filter(|(_, iterates, _)| !iterates);
            let own = Moments::mixed(ways.map(|(p, _, sum)| (p, without(sum)))).variance;
            let iterations = self.branches(*node, moments).find(|(_, iterates, _)| *iterates);
            let trips = self.trips.get(*node).copied().unwrap_or_default();
            match (self.graph.kinds.get(*node), iterations) {
                (Some(ExtendedNode::Preheader(header)), Some((_, _, sum))) => {
                    if let Some(header) = self.flow.blocks.get(*header).copied().flatten() {
                        add(VarianceCause::Trips(header), VarianceRange::both(trips * sum.mean * sum.mean));
                    }
                }
                _ => {
                    let is_exit = |index: usize| {
                        let to = self.graph.branches.get(index).and_then(|branch| self.graph.kinds.get(branch.to));
                        to == Some(&ExtendedNode::Postexit)
                    };
                    let exits = self.control.branches_of(*node).any(is_exit);
                    let cause = |block| if exits { VarianceCause::Exit(block) } else { VarianceCause::Branch(block) };
                    add(block.map_or(VarianceCause::Arrival, cause), own);
                }
            }
        }
        let part = |own: f64, all: f64| if all > 0.0 && all.is_finite() { own / all } else { 0.0 };
        let share = |(cause, own): (VarianceCause, VarianceRange)| {
            let share = VarianceRange {
                equal: part(own.equal, total.equal),
                independent: part(own.independent, total.independent),
            };
            (share != VarianceRange::default()).then_some(VarianceShare { cause, share })
        };
        let mut shares: Vec<VarianceShare> = shares.into_iter().filter_map(share).collect();
        shares.sort_by(|a, b| b.share.independent.total_cmp(&a.share.independent).then(a.cause.cmp(&b.cause)));
        shares
    }
}
