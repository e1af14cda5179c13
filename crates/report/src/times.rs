//! Mean and variance of the times of the functions of a profile, in instructions, by the algorithms of `ingraft_profile`.

use std::collections::HashMap;

use ingraft_model::{EdgeKind, Svma};
use ingraft_profile::{FlowCall, FlowEdge, MeasuredFlow, NoTimes, PredictedTimes, ProgramTimes};

use crate::saved::{CallTarget, EdgeEnd, FunctionProfile, SavedProfile};

/// Times of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionTimes {
    /// The times, with those of the functions of the profile that it calls.
    pub times: PredictedTimes,
    /// Mean number of instructions of the function alone in one call.
    pub own: f64,
    /// Number of calls that are made in one call, by the function or by those whose times are in its own, and whose time is left out: the
    /// callee is not known, not profiled, or has no times.
    pub left_out: f64,
}

/// Reason why a function of a profile has no times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untimed {
    /// The counts do not suffice.
    #[error("not all of its counts are known")]
    Unknown,
    /// The times do not follow from the counts.
    #[error(transparent)]
    NoTimes(#[from] NoTimes),
}

/// Index of each function of a profile by its module and its first byte, and by its name.
struct ProfiledCallees<'p> {
    places: HashMap<(usize, Svma), usize>,
    /// `None` for a name that several functions have.
    names: HashMap<&'p str, Option<usize>>,
}

impl<'p> ProfiledCallees<'p> {
    fn of(profile: &'p SavedProfile) -> Self {
        let mut callees = ProfiledCallees { places: HashMap::new(), names: HashMap::new() };
        for (index, function) in profile.functions.iter().enumerate() {
            callees.places.entry((function.module, function.start)).or_insert(index);
            let known = callees.names.entry(&function.name).or_insert(Some(index));
            *known = known.filter(|known| *known == index);
        }
        callees
    }

    fn find(&self, caller: &FunctionProfile, callee: &CallTarget) -> Option<usize> {
        match callee {
            CallTarget::Own(at) => self.places.get(&(caller.module, *at)).copied(),
            CallTarget::Other { module, at } => self.places.get(&(*module, *at)).copied(),
            CallTarget::Named(name) => self.names.get(name.as_str()).copied().flatten(),
            CallTarget::Indirect | CallTarget::System => None,
        }
    }
}

/// Times of the functions of a profile, in their order.
pub fn times(profile: &SavedProfile) -> Vec<Result<FunctionTimes, Untimed>> {
    let callees = ProfiledCallees::of(profile);
    let flows: Vec<Option<MeasuredFlow>> = profile.functions.iter().map(|function| flow(function, &callees)).collect();
    let known: Vec<MeasuredFlow> = flows.iter().map(|flow| flow.clone().unwrap_or_default()).collect();
    let mut program = ProgramTimes::of(&known, false);
    let times = program.times();
    let has_times: Vec<bool> = times.iter().map(Result::is_ok).collect();
    // The numbers of calls that are left out add up as times do.
    let costs = known.iter().zip(&profile.functions).map(|(flow, function)| left_out(flow, function, &has_times));
    let mut left_out = program.means_of(costs.collect()).into_iter();
    let mut flows = flows.iter();
    let one = |times: Result<PredictedTimes, NoTimes>| {
        let left_out = left_out.next().flatten().unwrap_or_default();
        let flow = flows.next().and_then(Option::as_ref).ok_or(Untimed::Unknown)?;
        let costs = flow.costs.iter().zip(&flow.executions).map(|(cost, count)| cost * *count as f64);
        Ok(FunctionTimes { times: times?, own: costs.sum::<f64>() / flow.entry.1 as f64, left_out })
    };
    times.into_iter().map(one).collect()
}

/// Calls that one execution of each block makes, and whose callees have no times.
fn left_out(flow: &MeasuredFlow, function: &FunctionProfile, has_times: &[bool]) -> Vec<f64> {
    let mut left_out = vec![0.0; flow.costs.len()];
    let mut add = |block: usize, calls: f64| {
        let executions = flow.executions.get(block).filter(|executions| **executions > 0);
        if let (Some(sum), Some(executions)) = (left_out.get_mut(block), executions) {
            *sum += calls / *executions as f64;
        }
    };
    called(function).for_each(|(block, _, count)| add(block, count as f64));
    let timed = |call: &&FlowCall| has_times.get(call.callee).copied().unwrap_or_default();
    flow.calls.iter().filter(timed).for_each(|call| add(call.block, -(call.count as f64)));
    left_out
}

/// Calls and tail jumps that a function has made: the block that each ends, the callee, and how often. System calls are none.
fn called(function: &FunctionProfile) -> impl Iterator<Item = (usize, CallTarget, u64)> {
    let calls = function.call_sites.iter().filter(|site| site.callee != CallTarget::System);
    let calls = calls.map(|site| (site.block, site.callee.clone(), site.count));
    let jumps = function.edges.iter().filter(|edge| edge.kind == EdgeKind::TailJump).map(|edge| {
        let callee = if let EdgeEnd::Outside(at) = edge.to { CallTarget::Own(at) } else { CallTarget::Indirect };
        (edge.from, callee, edge.count.unwrap_or_default())
    });
    calls.chain(jumps)
}

/// The measured flow of a function; `None` if not all counts are known.
fn flow(function: &FunctionProfile, callees: &ProfiledCallees<'_>) -> Option<MeasuredFlow> {
    let calls = function.known_calls()?;
    if !function.unknown.is_empty() {
        return None;
    }
    let entry = function.blocks.iter().position(|block| block.start == function.start)?;
    let edge = |edge: &crate::saved::EdgeCount| {
        let to = if let EdgeEnd::Block(block) = edge.to { Some(block) } else { None };
        // A block that never ran has passed none of its edges.
        let idle = [Some(edge.from), to].into_iter().flatten().any(|block| function.executions(block) == Some(0));
        let count = edge.count.or(idle.then_some(0))?;
        // A call that returns more often than it was made is one of setjmp. Its further returns are arrivals from elsewhere.
        let made = function.executions(edge.from).filter(|_| edge.kind == EdgeKind::CallReturn);
        Some(FlowEdge { from: edge.from, to, count: made.map_or(count, |made| count.min(made)) })
    };
    let call = |(block, callee, count): (usize, CallTarget, u64)| {
        Some(FlowCall { block, callee: callees.find(function, &callee)?, count })
    };
    Some(MeasuredFlow {
        costs: function.blocks.iter().map(|block| f64::from(block.instructions)).collect(),
        executions: function.blocks.iter().map(|block| block.count).collect(),
        edges: function.edges.iter().map(edge).collect::<Option<_>>()?,
        entry: (entry, calls),
        calls: called(function).filter_map(call).collect(),
        trips: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::{BlockCount, CallCount, EdgeCount};

    /// A function whose second block calls something and returns.
    fn caller(start: u64, calls: u64, callee: CallTarget, made: u64) -> FunctionProfile {
        let block = |at: u64, instructions, count| BlockCount {
            start: Svma(start + at),
            size: 4,
            instructions,
            last: Svma(start + at),
            count,
        };
        let edge = |from, to, kind, count| EdgeCount { from, to, kind, count: Some(count) };
        FunctionProfile {
            module: 0,
            name: format!("f{start}"),
            start: Svma(start),
            size: 12,
            calls,
            blocks: vec![block(0, 2, calls), block(4, 3, made), block(8, 5, calls)],
            unknown: Vec::new(),
            edges: vec![
                edge(0, EdgeEnd::Block(1), EdgeKind::FallThrough, made),
                edge(0, EdgeEnd::Block(2), EdgeKind::Taken, calls - made),
                edge(1, EdgeEnd::Block(2), EdgeKind::CallReturn, made),
                edge(2, EdgeEnd::Dynamic, EdgeKind::Return, calls),
            ],
            call_sites: vec![CallCount { block: 1, callee, count: made }],
            inexact: None,
            details: None,
        }
    }

    #[test]
    fn callees_are_a_part_of_the_times() {
        let (outer, inner) = (caller(0, 10, CallTarget::Own(Svma(100)), 5), caller(100, 5, CallTarget::Indirect, 5));
        let profile = SavedProfile { functions: vec![outer, inner], ..SavedProfile::default() };
        let all = times(&profile);
        let (outer, inner) = (all[0].as_ref().expect("times"), all[1].as_ref().expect("times"));
        assert!((inner.times.mean - 10.0).abs() < 1e-9, "{inner:?}");
        assert!((inner.left_out - 1.0).abs() < 1e-9, "{inner:?}");
        assert!((outer.own - 8.5).abs() < 1e-9, "{outer:?}");
        assert!((outer.times.mean - 13.5).abs() < 1e-9, "{outer:?}");
        // 13 more instructions in half of the calls.
        assert!((outer.times.variance.independent - 13.0 * 13.0 / 4.0).abs() < 1e-9, "{outer:?}");
        assert!((outer.left_out - 0.5).abs() < 1e-9, "{outer:?}");
    }

    /// A call of setjmp returns once more when another call is left by longjmp, so that no block runs more often than it has run.
    #[test]
    fn calls_that_return_twice_count_once() {
        let mut function = caller(0, 1, CallTarget::Named("setjmp".to_owned()), 1);
        function.edges[2].count = Some(2);
        function.blocks[2].count = 2;
        function.edges[3].count = Some(1);
        let profile = SavedProfile { functions: vec![function], ..SavedProfile::default() };
        let times = times(&profile).remove(0).expect("times");
        assert!((times.own - 15.0).abs() < 1e-9, "{times:?}");
    }

    #[test]
    fn unknown_counts_give_no_times() {
        let mut function = caller(0, 10, CallTarget::Indirect, 5);
        function.edges[0].count = None;
        let profile = |function| SavedProfile { functions: vec![function], ..SavedProfile::default() };
        assert_eq!(times(&profile(function.clone()))[0], Err(Untimed::Unknown));
        // Nothing has passed an edge to a block that never ran.
        function = caller(0, 10, CallTarget::Indirect, 0);
        function.edges[0].count = None;
        assert!(times(&profile(function))[0].is_ok());
        let never = caller(0, 0, CallTarget::Indirect, 0);
        assert_eq!(times(&profile(never))[0], Err(Untimed::NoTimes(NoTimes::NotCalled)));
    }
}
