//! Times of all functions of a program, callees first. Functions that call each other are solved together: with the expected number of calls
//! that a call of each makes, C, their means are the solution of T = a + C·T, and their variances that of V = b + D·V, where D counts a callee's
//! variance as often as that of the calling block counts.

use std::collections::BTreeMap;

use super::control::ControlDependence;
use super::extended::ExtendedGraph;
use super::flow::{CallFlow, FlowCall, MeasuredFlow};
use super::linear::solve;
use super::moments::{Moments, PredictedTimes, PreparedFunction, VarianceRange};
use super::split;

/// Reason why a function has no times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTimes {
    /// It was never called.
    #[error("it was never called")]
    NotCalled,
    /// A loop has several entries, and copies of its blocks would be too many.
    #[error("a loop has several entries, and is too large to be copied for each of them")]
    Irreducible,
    /// The functions call each other, and not enough of the counted calls have ended.
    #[error("not enough of the calls by which these functions call each other have ended")]
    Recursion(Vec<usize>),
}

/// A function, with the calls that each of its blocks makes.
struct ProgramTimes<'p> {
    functions: &'p [MeasuredFlow],
    /// The calls of each function, sorted by block.
    calls: Vec<Vec<FlowCall>>,
    prepared: Vec<Result<PreparedFunction, NoTimes>>,
    /// Mean and variance of a call of each function whose times are known.
    known: Vec<Option<Moments>>,
}

/// Times of the functions of a program, in their order. `unused` keeps edges that were never passed in the graphs, as the paper does; they
/// change no mean, but loops then seem to have more exits. A callee without times counts as one that takes none.
pub fn program_times(functions: &[MeasuredFlow], unused: bool) -> Vec<Result<PredictedTimes, NoTimes>> {
    let prepared = functions.iter().map(|function| prepare(function, unused)).collect();
    let sorted = |function: &MeasuredFlow| {
        let mut calls = function.calls.clone();
        calls.sort_by_key(|call| call.block);
        calls
    };
    let calls = functions.iter().map(sorted).collect();
    let mut program = ProgramTimes { functions, calls, prepared, known: vec![None; functions.len()] };
    let callees: Vec<Vec<usize>> = functions.iter().map(|f| f.calls.iter().map(|call| call.callee).collect()).collect();
    for group in groups(&callees) {
        program.solve(&group);
    }
    let ProgramTimes { prepared, known, .. } = &program;
    let times = |(index, prepared): (usize, &Result<PreparedFunction, NoTimes>)| {
        let prepared = prepared.as_ref().map_err(Clone::clone)?;
        Ok(prepared.times(&program.cost(index, known)))
    };
    prepared.iter().enumerate().map(times).collect()
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
    let control = ControlDependence::of(&graph).ok_or(NoTimes::Irreducible)?;
    Ok(PreparedFunction::new(flow, graph, control, &function.trips))
}

impl ProgramTimes<'_> {
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
    fn cost(&self, function: usize, known: &[Option<Moments>]) -> impl Fn(usize) -> Moments {
        let costs = self.functions.get(function).map_or(&[][..], |function| &function.costs);
        let of = |block: usize| {
            let callees = self.callees(function, block);
            let moments = |callee: usize| known.get(callee).copied().flatten().unwrap_or_default();
            let called = Moments::mixed(callees.map(|(callee, part)| (part, moments(callee))));
            let own = costs.get(block).copied().unwrap_or_default();
            Moments { mean: own + called.mean, variance: called.variance }
        };
        let all: Vec<Moments> = (0..costs.len()).map(of).collect();
        move |block| all.get(block).copied().unwrap_or_default()
    }

    /// Computes the times of functions that call each other, or of one function.
    fn solve(&mut self, group: &[usize]) {
        let members: Vec<usize> =
            group.iter().copied().filter(|f| self.prepared.get(*f).is_some_and(Result::is_ok)).collect();
        let recurses = |f: &usize| {
            self.functions.get(*f).is_some_and(|f| f.calls.iter().any(|call| members.contains(&call.callee)))
        };
        let solved = match members.as_slice() {
            [only] if !recurses(only) => self.total(*only, &self.known).map(|total| vec![total]),
            _ => self.solve_together(&members),
        };
        for (at, function) in members.iter().enumerate() {
            match solved.as_ref().and_then(|solved| solved.get(at)) {
                Some(moments) => {
                    if let Some(slot) = self.known.get_mut(*function) {
                        *slot = Some(*moments);
                    }
                }
                None => {
                    if let Some(slot) = self.prepared.get_mut(*function) {
                        *slot = Err(NoTimes::Recursion(members.clone()));
                    }
                }
            }
        }
    }

    fn total(&self, function: usize, known: &[Option<Moments>]) -> Option<Moments> {
        let prepared = self.prepared.get(function)?.as_ref().ok()?;
        Some(prepared.total(&self.cost(function, known)))
    }

    /// Solves functions that call each other; `None` if their calls need not end.
    fn solve_together(&self, members: &[usize]) -> Option<Vec<Moments>> {
        let position: BTreeMap<usize, usize> =
            members.iter().enumerate().map(|(at, function)| (*function, at)).collect();
        let count = members.len();
        let unit = |row: usize| -> Vec<f64> { (0..=count).map(|column| f64::from(u8::from(column == row))).collect() };
        let mut means: Vec<Vec<f64>> = (0..count).map(unit).collect();
        let [mut equal, mut independent] = [means.clone(), means.clone()];
        for (row, function) in members.iter().enumerate() {
            let prepared = self.prepared.get(*function)?.as_ref().ok()?;
            for (block, frequency, weight) in prepared.blocks() {
                for (callee, part) in self.callees(*function, block) {
                    let Some(column) = position.get(&callee) else { continue };
                    for (rows, factor) in
                        [(&mut means, frequency), (&mut equal, weight.equal), (&mut independent, weight.independent)]
                    {
                        *rows.get_mut(row)?.get_mut(*column)? -= factor * part;
                    }
                }
            }
        }
        // Nothing of the members themselves counts yet.
        let set = |rows: &mut [Vec<f64>], right: &[f64]| {
            for (row, value) in rows.iter_mut().zip(right) {
                if let Some(last) = row.last_mut() {
                    *last = *value;
                }
            }
        };
        let own: Option<Vec<f64>> = members.iter().map(|f| Some(self.total(*f, &self.known)?.mean)).collect();
        set(&mut means, &own?);
        let means = ending(means)?;
        // With the means, what is missing in each variance is that of the members.
        let mut known = self.known.clone();
        for (function, mean) in members.iter().zip(&means) {
            *known.get_mut(*function)? = Some(Moments { mean: *mean, variance: VarianceRange::default() });
        }
        let own: Option<Vec<VarianceRange>> = members.iter().map(|f| Some(self.total(*f, &known)?.variance)).collect();
        let own = own?;
        set(&mut equal, &own.iter().map(|own| own.equal).collect::<Vec<f64>>());
        set(&mut independent, &own.iter().map(|own| own.independent).collect::<Vec<f64>>());
        // Equal iterations may need an endless variance where independent ones do not.
        let equal = ending(equal).unwrap_or_else(|| vec![f64::INFINITY; count]);
        let independent = ending(independent)?;
        let both = equal.into_iter().zip(independent).map(|(equal, independent)| VarianceRange { equal, independent });
        Some(means.into_iter().zip(both).map(|(mean, variance)| Moments { mean, variance }).collect())
    }
}

/// Solves `(I − C) x = b` if the sum `I + C + C² + …` is finite, which means that the calls end: then, and only then, the solution for `b = 1`
/// is at least 1.
fn ending(rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let mut ones = rows.clone();
    ones.iter_mut().filter_map(|row| row.last_mut()).for_each(|value| *value = 1.0);
    let ends = solve(ones)?.iter().all(|value| *value >= 1.0 - 1e-9);
    if ends { solve(rows) } else { None }
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
