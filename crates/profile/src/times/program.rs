//! Times of all functions of a program, callees first. Functions that call each other are solved together: with the expected number of calls
//! that a call of each makes, C, their means are the solution of T = a + C·T, and their variances that of V = b + D·V, where D counts a callee's
//! variance as often as that of the calling block counts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ingraft_model::Lists;

use super::flow::{FlowCall, MeasuredFlow};
use super::linear::FeedbackSystem;
use super::moments::{Moments, PredictedTimes, Preparation, PreparedFunction, VarianceRange, Workspace};
use super::no_times::NoTimes;

/// The functions of a program, and their times as far as they are known.
pub struct ProgramTimes<'p> {
    functions: &'p [MeasuredFlow],
    /// Cost of one execution of each block of each function.
    costs: Vec<Cow<'p, [f64]>>,
    /// The calls of each function, sorted by block.
    calls: Lists<FlowCall>,
    /// Functions that call each other, each group after those that it calls.
    groups: FunctionGroups,
    prepared: Vec<Result<PreparedFunction, NoTimes>>,
    /// Mean and variance of a call of each function whose times are known.
    known: Vec<Option<Moments>>,
}

/// Results of the functions of a program.
type AllTimes = Vec<Result<PredictedTimes, NoTimes>>;

impl<'p> ProgramTimes<'p> {
    /// Prepares the functions of a program. `unused` keeps edges that were never passed in the graphs, as the paper does; they change no mean,
    /// but loops then seem to have more exits. A callee without times counts as one that takes none.
    pub fn of(functions: &'p [MeasuredFlow], unused: bool) -> Self {
        let all = functions.iter().enumerate();
        let mut calls =
            Lists::new(functions.len(), all.clone().flat_map(|(at, f)| f.calls.iter().map(move |call| (at, *call))));
        let made = |(at, f): (usize, &'p MeasuredFlow)| {
            f.calls.iter().filter(|call| call.count > 0).map(move |call| (at, call.callee))
        };
        let callees = Lists::new(functions.len(), all.flat_map(made));
        (0..functions.len()).for_each(|function| calls.get_mut(function).sort_by_key(|call| call.block));
        let mut preparation = Preparation::default();
        ProgramTimes {
            functions,
            costs: functions.iter().map(|function| Cow::Borrowed(function.costs.as_slice())).collect(),
            calls,
            groups: FunctionGroups::of(&callees),
            prepared: functions.iter().map(|function| preparation.prepare(function, unused)).collect(),
            known: Vec::new(),
        }
    }

    /// The times of each function, in their order.
    pub fn times(&mut self) -> Vec<Result<PredictedTimes, NoTimes>> {
        // All are replaced: each function is in one group.
        let mut times = vec![Err(NoTimes::NotCalled); self.functions.len()];
        self.solve(Some(&mut times));
        times
    }

    /// The same in another unit: `costs` has the cost of one execution of each block of each function.
    pub fn times_of(&mut self, costs: Vec<Vec<f64>>) -> Vec<Result<PredictedTimes, NoTimes>> {
        self.costs = costs.into_iter().map(Cow::Owned).collect();
        self.times()
    }

    /// The mean of a call of each function in another unit, in their order; `None` for functions without times.
    pub fn means_of(&mut self, costs: Vec<Vec<f64>>) -> Vec<Option<f64>> {
        self.costs = costs.into_iter().map(Cow::Owned).collect();
        self.solve(None);
        self.known.iter().map(|known| known.map(|moments| moments.mean)).collect()
    }

    /// Solves all groups, callees first.
    fn solve(&mut self, mut times: Option<&mut AllTimes>) {
        self.known = vec![None; self.functions.len()];
        let groups = std::mem::take(&mut self.groups);
        let mut evaluation = Workspace::default();
        groups.iter().for_each(|group| self.solve_group(group, &mut evaluation, times.as_deref_mut()));
        self.groups = groups;
    }

    /// The calls of a block: callees, each with its number of calls in an execution of the block.
    fn callees(&self, function: usize, block: usize) -> impl Iterator<Item = (usize, f64)> {
        let calls = self.calls.get(function);
        let first = calls.partition_point(|call| call.block < block);
        let own = calls.iter().skip(first).take_while(move |call| call.block == block);
        self.parts(function, block, own)
    }

    /// Callees of calls of a block, each with its number of calls in an execution of the block.
    fn parts<'c>(
        &self,
        function: usize,
        block: usize,
        calls: impl Iterator<Item = &'c FlowCall>,
    ) -> impl Iterator<Item = (usize, f64)> {
        let executions = self.functions.get(function).and_then(|f| f.executions.get(block)).copied();
        let executions = executions.unwrap_or_default() as f64;
        let part = move |count: u64| if executions > 0.0 { count as f64 / executions } else { 0.0 };
        calls.map(move |call| (call.callee, part(call.count)))
    }

    /// Computes mean and variance of the nodes of a function, as far as those of its callees are known; `None` if the function is not prepared.
    fn evaluate(&self, function: usize, evaluation: &mut Workspace) -> Option<&PreparedFunction> {
        let prepared = self.prepared.get(function)?.as_ref().ok()?;
        let of_call = |called: Moments, own: &f64| Moments { mean: own + called.mean, variance: called.variance };
        let costs = self.costs.get(function).map_or(&[][..], Cow::as_ref);
        evaluation.costs.clear();
        evaluation.costs.extend(costs.iter().map(|own| of_call(Moments::default(), own)));
        for calls in self.calls.get(function).chunk_by(|one, other| one.block == other.block) {
            let Some(block) = calls.first().map(|call| call.block) else { continue };
            let moments = |callee: usize| self.known.get(callee).copied().flatten().unwrap_or_default();
            let parts = self.parts(function, block, calls.iter());
            let called = Moments::mixed(parts.map(|(callee, part)| (part, moments(callee))));
            if let (Some(cost), Some(own)) = (evaluation.costs.get_mut(block), costs.get(block)) {
                *cost = of_call(called, own);
            }
        }
        prepared.evaluate(evaluation);
        Some(prepared)
    }

    /// Computes the times of functions that call each other, or of one function.
    fn solve_group(&mut self, group: &[usize], evaluation: &mut Workspace, times: Option<&mut AllTimes>) {
        let is_ready = |f: &&usize| self.prepared.get(**f).is_some_and(Result::is_ok);
        let calls_itself = |only: usize| self.calls.get(only).iter().any(|call| call.callee == only && call.count > 0);
        if let [only] = group
            && !calls_itself(*only)
        {
            let total = self.evaluate(*only, evaluation).map(|prepared| (prepared, evaluation.total()));
            if let Some((prepared, moments)) = total {
                if let Some(slot) = times.and_then(|times| times.get_mut(*only)) {
                    *slot = Ok(prepared.times(evaluation));
                }
                set(&mut self.known, *only, Some(moments));
            } else if let (Some(times), Some(Err(why))) = (times, self.prepared.get(*only)) {
                set(times, *only, Err(why.clone()));
            }
            return;
        }
        let members: Vec<usize> = group.iter().filter(is_ready).copied().collect();
        if !members.is_empty() {
            let solved = self.solve_together(&members, evaluation);
            for (at, function) in members.iter().enumerate() {
                let moments = solved.as_ref().and_then(|solved| solved.get(at)).copied();
                set(&mut self.known, *function, moments);
                if moments.is_none() {
                    set(&mut self.prepared, *function, Err(NoTimes::Recursion(members.clone())));
                }
            }
        }
        let Some(times) = times else { return };
        for function in group {
            let result = match self.prepared.get(*function) {
                Some(Err(why)) => Err(why.clone()),
                _ => {
                    let prepared = self.evaluate(*function, evaluation);
                    prepared.map(|prepared| prepared.times(evaluation)).ok_or(NoTimes::NotCalled)
                }
            };
            set(times, *function, result);
        }
    }

    /// Mean and variance of a call of a function, as far as those of its callees are known.
    fn total(&self, function: usize, evaluation: &mut Workspace) -> Option<Moments> {
        self.evaluate(function, evaluation)?;
        Some(evaluation.total())
    }

    /// Solves functions that call each other; `None` if their calls need not end.
    fn solve_together(&mut self, members: &[usize], evaluation: &mut Workspace) -> Option<Vec<Moments>> {
        let position: BTreeMap<usize, usize> =
            members.iter().enumerate().map(|(at, function)| (*function, at)).collect();
        // Nothing of the members themselves counts yet.
        let own: Option<Vec<f64>> = members.iter().map(|f| Some(self.total(*f, evaluation)?.mean)).collect();
        let means = self.system(&position, own?, |frequency, _| frequency)?.solve()?;
        // With the means, what is missing in each variance is that of the members.
        for (function, mean) in members.iter().zip(&means) {
            set(&mut self.known, *function, Some(Moments { mean: *mean, variance: VarianceRange::default() }));
        }
        let own: Option<Vec<VarianceRange>> =
            members.iter().map(|f| Some(self.total(*f, evaluation)?.variance)).collect();
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

/// Groups of functions: the strongly connected components of the graph of calls, each after those that it leads to.
#[derive(Debug, Default)]
struct FunctionGroups {
    /// The members of all groups.
    members: Vec<usize>,
    /// End of the members of each group.
    ends: Vec<usize>,
}

impl FunctionGroups {
    /// The members of each group.
    fn iter(&self) -> impl Iterator<Item = &[usize]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| self.members.get(begin..*end).unwrap_or_default())
    }

    /// Finds the groups by Tarjan's algorithm without recursion.
    fn of(successors: &Lists<usize>) -> FunctionGroups {
        let count = successors.len();
        let (mut number, mut low) = (vec![0usize; count], vec![0usize; count]);
        let (mut is_open, mut stack, mut groups) = (vec![false; count], Vec::new(), FunctionGroups::default());
        let mut open: Vec<(usize, usize)> = Vec::new();
        let mut visits = 0;
        for root in 0..count {
            if number.get(root) != Some(&0) {
                continue;
            }
            open.push((root, 0));
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
                if let Some(to) = successors.get(node).get(at).copied() {
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
                    let group = stack.drain(begin..);
                    groups.members.extend(group.inspect(|one| set(&mut is_open, *one, false)));
                    groups.ends.push(groups.members.len());
                }
            }
        }
        groups
    }
}

fn set<T>(all: &mut [T], at: usize, value: T) {
    if let Some(slot) = all.get_mut(at) {
        *slot = value;
    }
}
