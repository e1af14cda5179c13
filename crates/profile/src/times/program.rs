//! Times of all functions of a program, callees first. Functions that call each other are solved together: with the expected number of calls
//! that a call of each makes, C, their means are the solution of T = a + C·T, and their variances that of V = b + D·V, where D counts a callee's
//! variance as often as that of the calling block counts.

use std::collections::BTreeMap;

use super::control::ControlDependence;
use super::extended::ExtendedGraph;
use super::flow::{CallFlow, FlowCall, MeasuredFlow};
use super::linear::FeedbackSystem;
use super::moments::{Moments, PredictedTimes, PreparedFunction, VarianceRange};
use super::no_times::NoTimes;
use super::split;

/// The functions of a program, and their times as far as they are known.
pub struct ProgramTimes<'p> {
    functions: &'p [MeasuredFlow],
    /// Cost of one execution of each block of each function.
    costs: Vec<Vec<f64>>,
    /// The calls of each function, sorted by block.
    calls: Vec<Vec<FlowCall>>,
    /// Functions that call each other, each group after those that it calls.
    groups: Vec<Vec<usize>>,
    prepared: Vec<Result<PreparedFunction, NoTimes>>,
    /// Mean and variance of a call of each function whose times are known.
    known: Vec<Option<Moments>>,
}

fn prepare(function: &MeasuredFlow, unused: bool) -> Result<PreparedFunction, NoTimes> {
    if function.entry.1 == 0 {
        return Err(NoTimes::NotCalled);
    }
    let mut flow = CallFlow::of(function);
    if !unused {
        flow.passages.retain(|passage| passage.count > 0.0);
    }
    let (flow, loops) = split::reducible(flow).ok_or(NoTimes::Irreducible)?;
    let graph = ExtendedGraph::of(&flow, &loops);
    let control = ControlDependence::of(&graph)?;
    Ok(PreparedFunction::new(flow, graph, control, &function.trips))
}

impl<'p> ProgramTimes<'p> {
    /// Computes the times of the functions of a program. `unused` keeps edges that were never passed in the graphs, as the paper does; they
    /// change no mean, but loops then seem to have more exits. A callee without times counts as one that takes none.
    pub fn of(functions: &'p [MeasuredFlow], unused: bool) -> Self {
        let sorted = |function: &MeasuredFlow| {
            let mut calls = function.calls.clone();
            calls.sort_by_key(|call| call.block);
            calls
        };
        let made = |f: &MeasuredFlow| f.calls.iter().filter(|call| call.count > 0).map(|call| call.callee).collect();
        let callees: Vec<Vec<usize>> = functions.iter().map(made).collect();
        let mut program = ProgramTimes {
            functions,
            costs: functions.iter().map(|function| function.costs.clone()).collect(),
            calls: functions.iter().map(sorted).collect(),
            groups: groups(&callees),
            prepared: functions.iter().map(|function| prepare(function, unused)).collect(),
            known: Vec::new(),
        };
        program.solve();
        program
    }

    /// The times of each function, in their order.
    pub fn times(&self) -> Vec<Result<PredictedTimes, NoTimes>> {
        let times = |(index, prepared): (usize, &Result<PreparedFunction, NoTimes>)| {
            let prepared = prepared.as_ref().map_err(Clone::clone)?;
            Ok(prepared.times(&self.cost(index)))
        };
        self.prepared.iter().enumerate().map(times).collect()
    }

    /// The mean of a call of each function in another unit, in their order: `costs` has the cost of one execution of each block of each
    /// function. `None` for functions without times.
    pub fn means_of(&mut self, costs: Vec<Vec<f64>>) -> Vec<Option<f64>> {
        self.costs = costs;
        self.solve();
        self.known.iter().map(|known| known.map(|moments| moments.mean)).collect()
    }

    /// Solves all groups, callees first.
    fn solve(&mut self) {
        self.known = vec![None; self.functions.len()];
        let groups = std::mem::take(&mut self.groups);
        groups.iter().for_each(|group| self.solve_group(group));
        self.groups = groups;
    }

    /// The calls of a block: callees, each with its number of calls in an execution of the block.
    fn callees(&self, function: usize, block: usize) -> impl Iterator<Item = (usize, f64)> {
        let executions = self.functions.get(function).and_then(|f| f.executions.get(block)).copied();
        let executions = executions.unwrap_or_default() as f64;
        let calls = self.calls.get(function).map_or(&[][..], Vec::as_slice);
        let first = calls.partition_point(|call| call.block < block);
        let own = calls.iter().skip(first).take_while(move |call| call.block == block);
        let part = move |count: u64| if executions > 0.0 { count as f64 / executions } else { 0.0 };
        own.map(move |call| (call.callee, part(call.count)))
    }

    /// Mean and variance of the cost of each block of a function, with its callees.
    fn cost(&self, function: usize) -> impl Fn(usize) -> Moments + use<> {
        let costs = self.costs.get(function).map_or(&[][..], Vec::as_slice);
        let of = |block: usize| {
            let callees = self.callees(function, block);
            let moments = |callee: usize| self.known.get(callee).copied().flatten().unwrap_or_default();
            let called = Moments::mixed(callees.map(|(callee, part)| (part, moments(callee))));
            let own = costs.get(block).copied().unwrap_or_default();
            Moments { mean: own + called.mean, variance: called.variance }
        };
        let all: Vec<Moments> = (0..costs.len()).map(of).collect();
        move |block| all.get(block).copied().unwrap_or_default()
    }

    /// Computes the times of functions that call each other, or of one function.
    fn solve_group(&mut self, group: &[usize]) {
        let is_ready = |f: &usize| self.prepared.get(*f).is_some_and(Result::is_ok);
        let members: Vec<usize> = group.iter().copied().filter(is_ready).collect();
        let calls_itself = |only: usize| {
            let calls = self.calls.get(only);
            calls.is_some_and(|calls| calls.iter().any(|call| call.callee == only && call.count > 0))
        };
        let solved = match members.as_slice() {
            [] => return,
            [only] if !calls_itself(*only) => self.total(*only).map(|total| vec![total]),
            _ => self.solve_together(&members),
        };
        for (at, function) in members.iter().enumerate() {
            let moments = solved.as_ref().and_then(|solved| solved.get(at)).copied();
            set(&mut self.known, *function, moments);
            if moments.is_none() {
                set(&mut self.prepared, *function, Err(NoTimes::Recursion(members.clone())));
            }
        }
    }

    /// Mean and variance of a call of a function, as far as those of its callees are known.
    fn total(&self, function: usize) -> Option<Moments> {
        let prepared = self.prepared.get(function)?.as_ref().ok()?;
        Some(prepared.total(&self.cost(function)))
    }

    /// Solves functions that call each other; `None` if their calls need not end.
    fn solve_together(&mut self, members: &[usize]) -> Option<Vec<Moments>> {
        let position: BTreeMap<usize, usize> =
            members.iter().enumerate().map(|(at, function)| (*function, at)).collect();
        // Nothing of the members themselves counts yet.
        let own: Option<Vec<f64>> = members.iter().map(|f| Some(self.total(*f)?.mean)).collect();
        let means = self.system(&position, own?, |frequency, _| frequency)?.solve()?;
        // With the means, what is missing in each variance is that of the members.
        for (function, mean) in members.iter().zip(&means) {
            set(&mut self.known, *function, Some(Moments { mean: *mean, variance: VarianceRange::default() }));
        }
        let own: Option<Vec<VarianceRange>> = members.iter().map(|f| Some(self.total(*f)?.variance)).collect();
        let own = own?;
        let equal = self.system(&position, own.iter().map(|own| own.equal).collect(), |_, weight| weight.equal)?;
        let independent =
            self.system(&position, own.iter().map(|own| own.independent).collect(), |_, weight| weight.independent)?;
        // The variance of equal iterations may have no bound where that of independent ones has.
        let equal = equal.solve().unwrap_or_else(|| vec![f64::INFINITY; members.len()]);
        let independent = independent.solve()?;
        let both = equal.into_iter().zip(independent).map(|(equal, independent)| VarianceRange { equal, independent });
        Some(means.into_iter().zip(both).map(|(mean, variance)| Moments { mean, variance }).collect())
    }

    /// The equations of functions that call each other, by their positions: `factor` is that of a block's callees, from the block's frequency
    /// and the weight of its variance.
    fn system(
        &self,
        position: &BTreeMap<usize, usize>,
        own: Vec<f64>,
        factor: impl Fn(f64, VarianceRange) -> f64,
    ) -> Option<FeedbackSystem> {
        let mut system = FeedbackSystem::new(own);
        for (function, row) in position {
            let prepared = self.prepared.get(*function)?.as_ref().ok()?;
            for (block, frequency, weight) in prepared.blocks() {
                for (callee, part) in self.callees(*function, block) {
                    if let Some(column) = position.get(&callee) {
                        system.add(*row, *column, factor(frequency, weight) * part);
                    }
                }
            }
        }
        Some(system)
    }
}

/// The strongly connected components of a graph, each after those that it leads to, by Tarjan's algorithm without recursion.
fn groups(successors: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let count = successors.len();
    let (mut number, mut low) = (vec![0usize; count], vec![0usize; count]);
    let (mut is_open, mut stack, mut groups) = (vec![false; count], Vec::new(), Vec::new());
    let mut visits = 0;
    for root in 0..count {
        if number.get(root) != Some(&0) {
            continue;
        }
        let mut open: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((node, next)) = open.last_mut() {
            let (node, at) = (*node, *next);
            *next += 1;
            if at == 0 {
                visits += 1;
                set(&mut number, node, visits);
                set(&mut low, node, visits);
                set(&mut is_open, node, true);
                stack.push(node);
            }
            let get = |all: &[usize], node: usize| all.get(node).copied().unwrap_or_default();
            if let Some(to) = successors.get(node).and_then(|all| all.get(at)).copied() {
                if to < count && get(&number, to) == 0 {
                    open.push((to, 0));
                } else if is_open.get(to) == Some(&true) {
                    let least = get(&low, node).min(get(&number, to));
                    set(&mut low, node, least);
                }
                continue;
            }
            open.pop();
            if let Some((around, _)) = open.last() {
                let least = get(&low, *around).min(get(&low, node));
                set(&mut low, *around, least);
            }
            if get(&low, node) == get(&number, node) {
                let begin = stack.iter().rposition(|one| *one == node).unwrap_or_default();
                let group = stack.split_off(begin);
                group.iter().for_each(|one| set(&mut is_open, *one, false));
                groups.push(group);
            }
        }
    }
    groups
}

fn set<T>(all: &mut [T], at: usize, value: T) {
    if let Some(slot) = all.get_mut(at) {
        *slot = value;
    }
}
