//! Mean and variance of the nodes of a function (section 5 of the paper), and what the variance comes from.

use super::control::ControlDependence;
use super::extended::{ExtendedGraph, ExtendedNode};
use super::flow::{CallFlow, MeasuredFlow};
use super::no_times::NoTimes;
use super::split::{self, FlowLoops};

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

/// A mixture of several times, of which one comes with each probability. The probabilities need not add up to 1: nothing is done else.
#[derive(Clone, Copy, Debug, Default)]
struct Mixture {
    mean: f64,
    square: VarianceRange,
    square_of_means: f64,
}

impl Mixture {
    fn add(&mut self, probability: f64, part: Moments) {
        if probability > 0.0 {
            let square = part.mean * part.mean;
            self.mean += probability * part.mean;
            self.square =
                self.square + (part.variance + VarianceRange::both(square)).scaled(VarianceRange::both(probability));
            self.square_of_means += if square == 0.0 { 0.0 } else { square * probability };
        }
    }

    fn moments(&self) -> Moments {
        let variance = self.square + VarianceRange::both(-self.mean * self.mean);
        // A rounded difference of equal numbers.
        let variance = VarianceRange { equal: variance.equal.max(0.0), independent: variance.independent.max(0.0) };
        Moments { mean: self.mean, variance }
    }

    /// The variance if the parts themselves had none.
    fn variance_of_means(&self) -> f64 {
        (self.square_of_means - self.mean * self.mean).max(0.0)
    }
}

impl Moments {
    /// The mixture of several times with their probabilities.
    pub fn mixed(parts: impl Iterator<Item = (f64, Moments)>) -> Moments {
        let mut mixture = Mixture::default();
        parts.for_each(|(probability, part)| mixture.add(probability, part));
        mixture.moments()
    }

    fn after(self, other: Moments) -> Moments {
        Moments { mean: self.mean + other.mean, variance: self.variance + other.variance }
    }
}

/// Meaning of a node of a prepared function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PreparedKind {
    Function,
    Block(u32),
    /// The loop whose header is this block.
    Loop(u32),
    /// A node that belongs to no block.
    Other,
}

/// A node of the forward control dependence graph.
#[derive(Clone, Copy, Debug)]
struct PreparedNode {
    kind: PreparedKind,
    /// Whether a branch of the node leaves a loop.
    exits: bool,
    /// End of the node's branches in [`PreparedFunction::branches`]; they begin where those of the node before end.
    branches_end: u32,
    /// Executions in a call of the function.
    frequency: f64,
    /// Factor with which the variance that begins here counts in that of the function, if iterations take equally long. If they do not depend on
    /// each other, it is the frequency.
    weight: f64,
    /// Variance of the number of iterations of the loop.
    trips: f64,
}

/// A branch on which nodes depend, and which is taken.
#[derive(Clone, Copy, Debug)]
struct PreparedBranch {
    frequency: f64,
    /// End of the branch's nodes in [`PreparedFunction::dependents`].
    dependents_end: u32,
    iterates: bool,
}

/// A function that is ready to be added up. Nodes have the places of an order in which each comes after those on which it depends; the function
/// itself is the first one.
#[derive(Debug)]
pub(super) struct PreparedFunction {
    nodes: Box<[PreparedNode]>,
    branches: Box<[PreparedBranch]>,
    dependents: Box<[u32]>,
}

/// Buffers for the preparation of functions, one after the other.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    flow: CallFlow,
    loops: FlowLoops,
    graph: ExtendedGraph,
    control: ControlDependence,
    weights: Vec<VarianceRange>,
    trips: Vec<f64>,
    nodes: Vec<PreparedNode>,
    branches: Vec<PreparedBranch>,
    dependents: Vec<u32>,
}

/// A position as a number of 32 bits. Functions with more nodes or branches are too large to be prepared.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

impl Preparation {
    /// Prepares a function. `unused` keeps edges that were never passed.
    pub fn prepare(&mut self, function: &MeasuredFlow, unused: bool) -> Result<PreparedFunction, NoTimes> {
        if function.entry.1 == 0 {
            return Err(NoTimes::NotCalled);
        }
        self.flow.set(function);
        if !unused {
            self.flow.passages.retain(|passage| passage.count > 0.0);
        }
        split::reducible(&mut self.flow, &mut self.loops).ok_or(NoTimes::Irreducible)?;
        self.graph.set(&self.flow, &self.loops.loops);
        self.control.set(&self.graph)?;
        let Preparation { flow, graph, control, weights, trips, .. } = self;
        let of_header = |header: &usize| {
            let block = flow.blocks.get(*header).copied().flatten();
            let measured = function.trips.iter().find(|(header, _)| Some(*header) == block);
            measured.map_or(0.0, |(_, variance)| variance.max(0.0))
        };
        trips.clear();
        trips.extend(graph.kinds.iter().map(|kind| match kind {
            ExtendedNode::Preheader(header) => of_header(header),
            _ => 0.0,
        }));
        control.fill_weights(graph, trips, weights);
        Ok(self.finish())
    }

    /// Keeps of the graph what times depend on.
    fn finish(&mut self) -> PreparedFunction {
        let Preparation { flow, graph, control, weights, trips, nodes, branches, dependents, .. } = self;
        nodes.clear();
        branches.clear();
        dependents.clear();
        for node in &control.order {
            let of_flow = |node: usize| flow.blocks.get(node).copied().flatten().map(narrow);
            let kind = match graph.kinds.get(*node) {
                Some(ExtendedNode::Start) => PreparedKind::Function,
                Some(ExtendedNode::Flow(node)) => of_flow(*node).map_or(PreparedKind::Other, PreparedKind::Block),
                Some(ExtendedNode::Preheader(header)) => {
                    of_flow(*header).map_or(PreparedKind::Other, PreparedKind::Loop)
                }
                Some(ExtendedNode::Stop | ExtendedNode::IterationEnd | ExtendedNode::Postexit) | None => {
                    PreparedKind::Other
                }
            };
            let mut exits = false;
            for (branch, index) in graph.branches.get(*node).iter().zip(graph.branches.range(*node)) {
                exits |= graph.kinds.get(branch.to) == Some(&ExtendedNode::Postexit);
                let on_branch = control.dependents(index);
                if branch.iterates || branch.frequency > 0.0 && !on_branch.is_empty() {
                    dependents.extend(on_branch.iter().map(|node| narrow(control.place(*node))));
                    let (frequency, iterates) = (branch.frequency, branch.iterates);
                    branches.push(PreparedBranch { frequency, dependents_end: narrow(dependents.len()), iterates });
                }
            }
            let VarianceRange { equal: weight, independent: frequency } =
                weights.get(*node).copied().unwrap_or_default();
            let trips = trips.get(*node).copied().unwrap_or_default();
            nodes.push(PreparedNode { kind, exits, branches_end: narrow(branches.len()), frequency, weight, trips });
        }
        PreparedFunction {
            nodes: nodes.as_slice().into(),
            branches: branches.as_slice().into(),
            dependents: dependents.as_slice().into(),
        }
    }
}

/// Mean and variance of all nodes of a function, and the buffers for them.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Mean and variance of the cost of each block, with its callees.
    pub costs: Vec<Moments>,
    nodes: Vec<EvaluatedNode>,
    causes: Vec<(VarianceCause, u32, VarianceRange)>,
}

/// Times of a node.
#[derive(Clone, Copy, Debug, Default)]
struct EvaluatedNode {
    moments: Moments,
    /// Variance that comes from the ways of the node's branch, or from the number of iterations if it is a loop.
    own: f64,
    iterations: Option<f64>,
}

impl Workspace {
    /// Mean and variance of a call of the function.
    pub fn total(&self) -> Moments {
        self.nodes.first().map_or_else(Moments::default, |node| node.moments)
    }

    fn cost(&self, block: u32) -> Moments {
        self.costs.get(block as usize).copied().unwrap_or_default()
    }
}

impl PreparedFunction {
    /// For each block, its executions in a call of the function, and the factor with which the variance of its cost counts.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, f64, VarianceRange)> {
        self.nodes.iter().filter_map(|node| match node.kind {
            PreparedKind::Block(block) => Some((block as usize, node.frequency, node.weights())),
            _ => None,
        })
    }

    /// Computes mean and variance of each node from the costs of the blocks.
    pub fn evaluate(&self, workspace: &mut Workspace) {
        workspace.nodes.clear();
        workspace.nodes.resize(self.nodes.len(), EvaluatedNode::default());
        for (place, node) in self.nodes.iter().enumerate().rev() {
            let begin = |before: &PreparedNode| before.branches_end as usize;
            let first = place.checked_sub(1).and_then(|before| self.nodes.get(before)).map_or(0, begin);
            let mut begin =
                first.checked_sub(1).and_then(|before| self.branches.get(before)).map_or(0, |one| one.dependents_end);
            let (mut ways, mut iterations) = (Mixture::default(), None);
            for branch in self.branches.get(first..node.branches_end as usize).unwrap_or_default() {
                let dependents = self.dependents.get(begin as usize..branch.dependents_end as usize);
                begin = branch.dependents_end;
                let dependents = dependents.unwrap_or_default().iter();
                let dependents = dependents.filter_map(|place| workspace.nodes.get(*place as usize));
                let sum = dependents.fold(Moments::default(), |sum, one| sum.after(one.moments));
                match branch.iterates {
                    true => iterations = iterations.or(Some((branch.frequency, sum))),
                    false => ways.add(branch.frequency, sum),
                }
            }
            let own = match node.kind {
                PreparedKind::Block(block) => workspace.cost(block),
                _ => Moments::default(),
            };
            let mut variance = ways.variance_of_means();
            let loops = iterations.map_or_else(Moments::default, |(count, sum)| {
                variance = node.trips * sum.mean * sum.mean;
                let factor = VarianceRange { equal: count * count + node.trips, independent: count };
                Moments {
                    mean: count * sum.mean,
                    variance: sum.variance.scaled(factor) + VarianceRange::both(variance),
                }
            });
            if let Some(slot) = workspace.nodes.get_mut(place) {
                *slot = EvaluatedNode {
                    moments: own.after(ways.moments()).after(loops),
                    own: variance,
                    iterations: iterations.map(|(count, _)| count),
                };
            }
        }
    }

    /// All times of the function, after [`Self::evaluate`].
    pub fn times(&self, workspace: &mut Workspace) -> PredictedTimes {
        let total = workspace.total();
        let told = self.nodes.iter().filter(|node| node.kind != PreparedKind::Other).count();
        let mut nodes = Vec::with_capacity(told);
        for (node, EvaluatedNode { moments, iterations, .. }) in self.nodes.iter().zip(&workspace.nodes) {
            let (origin, iterations) = match node.kind {
                PreparedKind::Function => (TimedPart::Function, None),
                PreparedKind::Block(block) => (TimedPart::Block(block as usize), None),
                PreparedKind::Loop(header) => (TimedPart::Loop(header as usize), *iterations),
                PreparedKind::Other => continue,
            };
            let Moments { mean, variance } = *moments;
            nodes.push(NodeTime { origin, frequency: node.frequency, mean, variance, iterations });
        }
        let shares = self.shares(workspace, total.variance);
        PredictedTimes { mean: total.mean, variance: total.variance, nodes, shares }
    }

    /// The sources of the variance.
    fn shares(&self, workspace: &mut Workspace, total: VarianceRange) -> Vec<VarianceShare> {
        if total == VarianceRange::default() {
            return Vec::new();
        }
        let mut causes = std::mem::take(&mut workspace.causes);
        causes.clear();
        let mut add = |cause: VarianceCause, own: VarianceRange| {
            if own != VarianceRange::default() {
                causes.push((cause, narrow(causes.len()), own));
            }
        };
        for (node, evaluated) in self.nodes.iter().zip(&workspace.nodes) {
            let own = VarianceRange::both(evaluated.own).scaled(node.weights());
            match node.kind {
                PreparedKind::Block(block) => {
                    let cause = if node.exits { VarianceCause::Exit } else { VarianceCause::Branch };
                    let at = block as usize;
                    add(VarianceCause::Callee(at), workspace.cost(block).variance.scaled(node.weights()));
                    add(cause(at), own);
                }
                PreparedKind::Loop(header) => add(VarianceCause::Trips(header as usize), own),
                PreparedKind::Function | PreparedKind::Other => add(VarianceCause::Arrival, own),
            }
        }
        // Shares of one cause are added up in the order of the nodes.
        causes.sort_unstable_by_key(|(cause, at, _)| (*cause, *at));
        let part = |own: f64, all: f64| if all > 0.0 && all.is_finite() { own / all } else { 0.0 };
        let mut shares = Vec::with_capacity(causes.len());
        for one in causes.chunk_by(|(one, ..), (other, ..)| one == other) {
            let own = one.iter().fold(VarianceRange::default(), |sum, (.., own)| sum + *own);
            let share = VarianceRange {
                equal: part(own.equal, total.equal),
                independent: part(own.independent, total.independent),
            };
            if let Some((cause, ..)) = one.first().filter(|_| share != VarianceRange::default()) {
                shares.push(VarianceShare { cause: *cause, share });
            }
        }
        workspace.causes = causes;
        shares.sort_unstable_by(|a, b| b.share.independent.total_cmp(&a.share.independent).then(a.cause.cmp(&b.cause)));
        shares
    }
}

impl PreparedNode {
    /// Factors with which the variance that begins here counts in that of the function.
    fn weights(&self) -> VarianceRange {
        VarianceRange { equal: self.weight, independent: self.frequency }
    }
}
