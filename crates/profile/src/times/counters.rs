//! The counters of section 3 of the paper, and those of a spanning tree of the same graph.
//!
//! The paper counts control conditions: branches on which nodes depend (its first optimization). Sums of conditions are known to be equal (its
//! second one), so that some counts are derived:
//!
//! - if nodes depend on every branch of a node, the branches add up to the executions of the node;
//! - the exits of a loop add up to its entries;
//! - the branches that lead back to the header of a loop add up to the executions of the header, less the entries.
//!
//! These equations depend on each other in part, so as many counts are derived as their matrix has ranks. Of all conditions that may be derived
//! together, those that are taken most often are left out: that is the cheapest placement by the paper's rules. Its third optimization, which
//! adds the number of iterations of a counted loop at once, needs the meaning of instructions and is left out.

use std::collections::BTreeMap;

use ingraft_model::Key;

use super::control::ControlDependence;
use super::extended::{ControlCondition, ExtendedGraph, ExtendedNode};
use super::flow::{CallFlow, FlowEnd, MeasuredFlow};
use super::no_times::NoTimes;
use super::split::FlowLoops;
use crate::barred::{Barred, Counter};
use crate::map::{ArcId, Vertex};
use crate::placement::Placement;
use crate::shape::GraphBuilder;
use crate::weights::Weights;

/// Largest number of additions in the elimination.
const WORK_MAX: usize = 20_000_000;

/// A set of counters, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CounterCost {
    /// Number of counters.
    pub counters: u64,
    /// Number of increments that all counters of the set execute in the measured run.
    pub increments: f64,
}

/// The paper's counters of a function and others, each in the cheapest places for the measured run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ComparedCounters {
    /// A counter in each basic block.
    pub blocks: CounterCost,
    /// A counter for each control condition.
    pub conditions: CounterCost,
    /// The control conditions that are not derived from others.
    pub control: CounterCost,
    /// Counters on the edges that a maximum spanning tree lacks (Ball and Larus 1994).
    pub tree: CounterCost,
}

impl CounterCost {
    fn add(&mut self, executions: f64) {
        self.counters += 1;
        self.increments += executions;
    }
}

impl MeasuredFlow {
    /// Computes the counters of a function. Fails if it was not called, if a loop has several entries, and if the computation takes too long.
    pub fn compared_counters(&self) -> Result<ComparedCounters, NoTimes> {
        if self.entry.1 == 0 {
            return Err(NoTimes::NotCalled);
        }
        let flow = CallFlow::of(self);
        let mut compared =
            ComparedCounters { tree: tree(&flow).ok_or(NoTimes::TooLarge)?, ..ComparedCounters::default() };
        for executions in flow.through().into_iter().take(self.costs.len()) {
            compared.blocks.add(executions);
        }
        let mut loops = FlowLoops::default();
        if loops.find(&flow).is_some() {
            return Err(NoTimes::Irreducible);
        }
        let graph = ExtendedGraph::of(&flow, &loops.loops);
        let control = ControlDependence::of(&graph)?;
        let conditions = Conditions::of(&flow, &graph, &control);
        conditions.totals.iter().for_each(|total| compared.conditions.add(*total));
        let derived = conditions.derived().ok_or(NoTimes::TooLarge)?;
        let kept = conditions.totals.iter().zip(&derived).filter(|(_, derived)| !**derived);
        kept.for_each(|(total, _)| compared.control.add(*total));
        Ok(compared)
    }
}

/// The counters of the edge profile with the fewest increments.
fn tree(flow: &CallFlow) -> Option<CounterCost> {
    // Control conditions do not tell passages with the same ends apart either.
    let mut passages: BTreeMap<(FlowEnd, FlowEnd), f64> = BTreeMap::new();
    for passage in &flow.passages {
        *passages.entry((passage.from, passage.to)).or_default() += passage.count;
    }
    let mut shape = GraphBuilder::new(flow.blocks.len());
    let mut counts: Vec<f64> = Vec::with_capacity(passages.len());
    for (ends, count) in passages {
        match ends {
            (FlowEnd::Node(from), FlowEnd::Node(to)) => shape.edge(Vertex::at(from), Vertex::at(to)),
            (FlowEnd::Node(from), FlowEnd::Outside) => shape.leave(Vertex::at(from)),
            (FlowEnd::Outside, FlowEnd::Node(to)) => shape.root(Vertex::at(to)),
            (FlowEnd::Outside, FlowEnd::Outside) => continue,
        };
        counts.push(count);
    }
    let graph = shape.build().ok()?;
    let count = |edge: ArcId| counts.get(edge.index()).copied().unwrap_or_default();
    let placement = Placement::edge_profile(&graph, &Weights::of(&graph, count), &Barred::none()).ok()?;
    let mut cost = CounterCost::default();
    for counter in placement.counters() {
        if let Counter::Edge(edge) = counter {
            cost.add(count(*edge));
        }
    }
    Some(cost)
}

/// A sum of counts of control conditions, by their numbers; it has no element that is 0.
type LinearForm = BTreeMap<usize, f64>;

/// The control conditions that executions can take, the most frequent first.
struct Conditions {
    /// Number of times that each was taken.
    totals: Vec<f64>,
    /// Sums that are 0.
    equations: Vec<LinearForm>,
}

/// Whether an execution can take a branch.
fn is_real(graph: &ExtendedGraph, branch: &ControlCondition) -> bool {
    match (graph.kinds.get(branch.from), graph.kinds.get(branch.to)) {
        (Some(ExtendedNode::Preheader(_)), _) => branch.iterates,
        (Some(ExtendedNode::IterationEnd), _) | (Some(ExtendedNode::Start), Some(ExtendedNode::Stop)) => false,
        _ => true,
    }
}

impl Conditions {
    fn of(flow: &CallFlow, graph: &ExtendedGraph, control: &ControlDependence) -> Conditions {
        let arrived = flow.passages.iter().filter(|passage| passage.from == FlowEnd::Outside);
        let calls: f64 = arrived.map(|passage| passage.count).sum();
        let mut weights = Vec::new();
        control.fill_weights(graph, &[], &mut weights);
        let taken = |branch: &ControlCondition| {
            let node = weights.get(branch.from).copied().unwrap_or_default();
            calls * branch.frequency * node.independent
        };
        let is_condition = |(index, branch): &(usize, &ControlCondition)| {
            is_real(graph, branch) && !control.dependents(*index).is_empty()
        };
        let all = graph.branches.values().iter().enumerate().filter(is_condition);
        let mut conditions: Vec<(usize, f64)> = all.map(|(index, branch)| (index, taken(branch))).collect();
        conditions.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // The executions of each node, as the conditions on which it depends.
        let mut nodes = vec![LinearForm::new(); graph.kinds.len()];
        let mut number = BTreeMap::new();
        for (at, (index, _)) in conditions.iter().enumerate() {
            number.insert(*index, at);
            for node in control.dependents(*index) {
                if let Some(form) = nodes.get_mut(*node) {
                    *form.entry(at).or_default() += 1.0;
                }
            }
        }
        let equations = equations(graph, control, &nodes, &number);
        Conditions { totals: conditions.into_iter().map(|(_, total)| total).collect(), equations }
    }

    /// Whether the count of each condition is derived from those behind it; `None` if it takes too long to find out.
    fn derived(&self) -> Option<Vec<bool>> {
        let mut derived = vec![false; self.totals.len()];
        let mut pivots: BTreeMap<usize, LinearForm> = BTreeMap::new();
        let mut work = 0;
        for equation in &self.equations {
            let mut rest = equation.clone();
            // The first column without a pivot so far that is left becomes one: the basis of the first columns.
            while let Some((first, value)) = rest.first_key_value().map(|(first, value)| (*first, *value)) {
                let Some(pivot) = pivots.get(&first) else {
                    rest.values_mut().for_each(|element| *element /= value);
                    *derived.get_mut(first)? = true;
                    pivots.insert(first, rest);
                    break;
                };
                work += pivot.len();
                if work > WORK_MAX {
                    return None;
                }
                pivot.iter().for_each(|(column, element)| add(&mut rest, *column, -value * element));
                rest.remove(&first);
            }
        }
        Some(derived)
    }
}

/// Adds to an element of a sum.
fn add(form: &mut LinearForm, column: usize, value: f64) {
    let sum = form.entry(column).or_default();
    *sum += value;
    // Elements are small whole numbers and quotients of them.
    if sum.abs() < 1e-9 {
        form.remove(&column);
    }
}

/// The equations of the second optimization. `nodes` has the executions of each node, and `number` the numbers of the conditions.
fn equations(
    graph: &ExtendedGraph,
    control: &ControlDependence,
    nodes: &[LinearForm],
    number: &BTreeMap<usize, usize>,
) -> Vec<LinearForm> {
    let subtract = |form: &mut LinearForm, node: usize, factor: f64| {
        let executions = nodes.get(node).into_iter().flatten();
        executions.for_each(|(condition, value)| add(form, *condition, factor * value));
    };
    let mut equations = Vec::new();
    for node in &control.order {
        match graph.kinds.get(*node) {
            Some(ExtendedNode::Flow(_)) => {
                let own: Option<Vec<usize>> =
                    graph.branches.range(*node).map(|index| number.get(&index).copied()).collect();
                let Some(own) = own.filter(|own| !own.is_empty()) else { continue };
                let mut form = LinearForm::new();
                own.into_iter().for_each(|condition| add(&mut form, condition, 1.0));
                subtract(&mut form, *node, -1.0);
                equations.push(form);
            }
            Some(ExtendedNode::Preheader(_)) => {
                let branches = || graph.branches.get(*node).iter();
                let header = branches().find(|branch| branch.iterates).map(|branch| branch.to);
                let ends = |branch: &&ControlCondition| graph.kinds.get(branch.to) == Some(&ExtendedNode::IterationEnd);
                let (Some(header), Some(ControlCondition { to: end, .. })) = (header, branches().find(ends)) else {
                    continue;
                };
                let mut back = LinearForm::new();
                subtract(&mut back, *end, 1.0);
                subtract(&mut back, header, -1.0);
                subtract(&mut back, *node, 1.0);
                equations.push(back);
                let exits: Vec<usize> = graph.branches.get(*end).iter().map(|branch| branch.to).collect();
                let is_exit = |to: &usize| graph.kinds.get(*to) == Some(&ExtendedNode::Postexit);
                if exits.iter().all(is_exit) {
                    let mut left = LinearForm::new();
                    exits.into_iter().for_each(|exit| subtract(&mut left, exit, 1.0));
                    subtract(&mut left, *node, -1.0);
                    equations.push(left);
                }
            }
            _ => {}
        }
    }
    equations.retain(|form| !form.is_empty());
    equations
}
