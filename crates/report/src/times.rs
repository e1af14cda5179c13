//! Mean and variance of the times of the functions of a profile, in instructions or nanoseconds, by the algorithms of `ingraft_profile`.

use std::collections::HashMap;

use ingraft_model::{EdgeKind, Svma};
use ingraft_profile::{
    ComparedCounters, CostFit, CostRow, FlowCall, FlowEdge, MeasuredFlow, NoTimes, PredictedTimes, ProgramTimes,
};

use crate::saved::{CallTarget, EdgeEnd, FunctionProfile, SavedProfile};

/// Measured times of the calls of a function, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeasuredCalls {
    /// Number of calls that were timed.
    pub timed: u64,
    /// Mean time, with callees.
    pub mean: f64,
    /// Mean time without those callees that were timed too; `None` if it is not known.
    pub own: Option<f64>,
    /// Standard deviation of the time with callees; `None` if it is not known.
    pub stddev: Option<f64>,
}

/// Results of other measurements of a program, for the functions of its profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherMeasurements {
    /// The measured calls of each function of the profile, in their order. Missing ones were not measured.
    pub calls: Vec<Option<MeasuredCalls>>,
    /// Callees of indirect calls, by the indexes of the caller and of the block that the call ends. Each callee has its index among the functions
    /// of the profile and the number of its calls from there.
    pub indirect: HashMap<(usize, usize), Vec<(usize, u64)>>,
    /// Measured variance of the number of iterations in an entry of loops of each function, by the index of the function. A loop is named by the
    /// index of its header.
    pub trips: HashMap<usize, Vec<(usize, f64)>>,
}

/// Unit of predicted times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostUnit {
    /// Instructions. They are exact for the function alone.
    #[default]
    Instructions,
    /// Nanoseconds. The costs of events are fitted to measured times.
    Nanoseconds,
}

/// Names of the events whose costs are fitted: instructions, reads and writes of memory, branches, calls whose callee is left out, and calls of the
/// function itself.
pub const COST_CLASSES: [&str; 5] = ["instruction", "memory", "branch", "left_out_call", "call"];

/// Times of the functions of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileTimes {
    /// The times of each function, in their order.
    pub functions: Vec<Result<FunctionTimes, Untimed>>,
    /// The costs in nanoseconds of the events of [`COST_CLASSES`]; `None` if the unit is another, or if no function was measured.
    pub costs: Option<CostFit>,
}

/// Times of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionTimes {
    /// The times, with those of the functions of the profile that it calls.
    pub times: PredictedTimes,
    /// Mean time of the function alone in one call; exact if the unit is instructions.
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
    /// No cost in nanoseconds is known.
    #[error("no profiled function was timed")]
    NoCosts,
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

/// The profiled callee of each call site of a function, by its index in the profile, in the order of the call sites; `None` if it is not known or
/// not profiled.
pub fn profiled_callees(profile: &SavedProfile, function: &FunctionProfile) -> Vec<Option<usize>> {
    let callees = ProfiledCallees::of(profile);
    function.call_sites.iter().map(|site| callees.find(function, &site.callee)).collect()
}

/// Times of the functions of a profile, in their order. In nanoseconds there are none if no function was measured.
pub fn times(profile: &SavedProfile, others: &OtherMeasurements, unit: CostUnit) -> ProfileTimes {
    let callees = ProfiledCallees::of(profile);
    let flow = |(index, function)| flow((index, function), &callees, others);
    let flows: Vec<Option<MeasuredFlow>> = profile.functions.iter().enumerate().map(flow).collect();
    let known: Vec<MeasuredFlow> = flows.iter().map(|flow| flow.clone().unwrap_or_default()).collect();
    let mut program = ProgramTimes::of(&known, false);
    let mut times = program.times();
    let has_times: Vec<bool> = times.iter().map(Result::is_ok).collect();
    // The numbers of calls that are left out add up as times do.
    let missing = known.iter().zip(&profile.functions).map(|(flow, function)| left_out(flow, function, &has_times));
    let missing: Vec<Vec<f64>> = missing.collect();
    let mut costs: Vec<Vec<f64>> = known.iter().map(|flow| flow.costs.clone()).collect();
    let mut fit = None;
    if unit == CostUnit::Nanoseconds {
        let events: Vec<Vec<[f64; COST_CLASSES.len()]>> =
            profile.functions.iter().zip(&known).zip(&missing).map(|((f, flow), out)| events(f, flow, out)).collect();
        let Some(found) = fitted(&known, &events, others) else {
            let functions = times.into_iter().map(|times| times.map_err(Untimed::from).and(Err(Untimed::NoCosts)));
            return ProfileTimes { functions: functions.collect(), costs: None };
        };
        let one = |events: &[f64; COST_CLASSES.len()]| weighted(events, &found.costs);
        costs = events.iter().map(|blocks| blocks.iter().map(one).collect()).collect();
        times = program.times_of(costs.clone());
        fit = Some(found);
    }
    let mut left_out = program.means_of(missing).into_iter();
    let mut sums = flows.iter().zip(&costs);
    let one = |times: Result<PredictedTimes, NoTimes>| {
        let left_out = left_out.next().flatten().unwrap_or_default();
        let (flow, costs) = sums.next().ok_or(Untimed::Unknown)?;
        let flow = flow.as_ref().ok_or(Untimed::Unknown)?;
        let own: f64 = costs.iter().zip(&flow.executions).map(|(cost, count)| cost * *count as f64).sum();
        Ok(FunctionTimes { times: times?, own: own / flow.entry.1 as f64, left_out })
    };
    ProfileTimes { functions: times.into_iter().map(one).collect(), costs: fit }
}

/// The counters of each function of a profile, in their order: the paper's and those of a spanning tree.
pub fn compared_counters(profile: &SavedProfile) -> Vec<Result<ComparedCounters, Untimed>> {
    let callees = ProfiledCallees::of(profile);
    let others = OtherMeasurements::default();
    let one = |(index, function)| {
        let flow = flow((index, function), &callees, &others).ok_or(Untimed::Unknown)?;
        Ok(flow.compared_counters()?)
    };
    profile.functions.iter().enumerate().map(one).collect()
}

fn weighted(events: &[f64], costs: &[f64]) -> f64 {
    events.iter().zip(costs).map(|(events, cost)| events * cost).sum()
}

/// The numbers of events of one execution of each block, in the order of [`COST_CLASSES`].
fn events(function: &FunctionProfile, flow: &MeasuredFlow, left_out: &[f64]) -> Vec<[f64; COST_CLASSES.len()]> {
    let details = function.details.as_ref().map_or(&[][..], |details| details.events.as_slice());
    let block = |(at, instructions): (usize, &f64)| {
        let [memory, branches] = details.get(at).map_or([0.0; 2], |events| {
            [f64::from(events.reads) + f64::from(events.writes), f64::from(events.branches)]
        });
        let executions = flow.executions.get(at).copied().unwrap_or_default();
        let is_entry = at == flow.entry.0 && executions > 0;
        let calls = if is_entry { flow.entry.1 as f64 / executions as f64 } else { 0.0 };
        [*instructions, memory, branches, left_out.get(at).copied().unwrap_or_default().max(0.0), calls]
    };
    flow.costs.iter().enumerate().map(block).collect()
}

/// Fits costs to the measured times of functions alone.
fn fitted(
    flows: &[MeasuredFlow],
    events: &[Vec<[f64; COST_CLASSES.len()]>],
    others: &OtherMeasurements,
) -> Option<CostFit> {
    let row = |(index, measured): (usize, &Option<MeasuredCalls>)| {
        let (measured, flow, events) = (measured.as_ref()?, flows.get(index)?, events.get(index)?);
        // The time of callees that were not timed would count as that of the function itself.
        let is_timed = |call: &FlowCall| others.calls.get(call.callee).is_some_and(Option::is_some);
        if !flow.calls.iter().filter(|call| call.count > 0).all(is_timed) {
            return None;
        }
        // A function that calls nothing that was profiled has its whole time for itself.
        let time = measured.own.or(flow.calls.is_empty().then_some(measured.mean))?;
        let calls = Some(flow.entry.1).filter(|calls| *calls > 0)? as f64;
        let mut sums = vec![0.0; COST_CLASSES.len()];
        for (block, count) in events.iter().zip(&flow.executions) {
            sums.iter_mut().zip(block).for_each(|(sum, number)| *sum += number * *count as f64 / calls);
        }
        Some(CostRow { events: sums, time, weight: time * measured.timed as f64 })
    };
    let rows: Vec<CostRow> = others.calls.iter().enumerate().filter_map(row).collect();
    CostFit::of(&rows)
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

/// Index of callees that were counted and not profiled.
pub const UNPROFILED: usize = usize::MAX;

/// The calls of an indirect call by callee: its `count` calls, shared as those that were counted by callee.
fn shared(block: usize, count: u64, counted: &[(usize, u64)]) -> Vec<FlowCall> {
    let whole: u128 = counted.iter().map(|(_, calls)| u128::from(*calls)).sum();
    let (mut seen, mut given) = (0u128, 0u64);
    let one = |(callee, calls): &(usize, u64)| {
        seen += u128::from(*calls);
        // The rounded share of all callees so far, less the shares of the earlier ones: they add up to the count.
        let until = u64::try_from((u128::from(count) * seen).checked_div(whole).unwrap_or(0)).unwrap_or(count);
        let share = until - given;
        given = until;
        FlowCall { block, callee: *callee, count: share }
    };
    // Callees that were not profiled have their share, and no times.
    counted.iter().map(one).filter(|call| call.count > 0 && call.callee != UNPROFILED).collect()
}

/// The measured flow of a function; `None` if not all counts are known.
fn flow(
    (index, function): (usize, &FunctionProfile),
    callees: &ProfiledCallees<'_>,
    others: &OtherMeasurements,
) -> Option<MeasuredFlow> {
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
        if callee == CallTarget::Indirect {
            return others.indirect.get(&(index, block)).map_or_else(Vec::new, |counted| shared(block, count, counted));
        }
        callees.find(function, &callee).map_or_else(Vec::new, |callee| vec![FlowCall { block, callee, count }])
    };
    Some(MeasuredFlow {
        costs: function.blocks.iter().map(|block| f64::from(block.instructions)).collect(),
        executions: function.blocks.iter().map(|block| block.count).collect(),
        edges: function.edges.iter().map(edge).collect::<Option<_>>()?,
        entry: (entry, calls),
        calls: called(function).flat_map(call).collect(),
        trips: others.trips.get(&index).cloned().unwrap_or_default(),
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
            paths: None,
        }
    }

    fn times(profile: &SavedProfile) -> Vec<Result<FunctionTimes, Untimed>> {
        super::times(profile, &OtherMeasurements::default(), CostUnit::Instructions).functions
    }

    /// Half of the counted calls through a pointer went to one function, and half to another.
    #[test]
    fn indirect_calls_are_mixtures_of_counted_callees() {
        let outer = caller(0, 10, CallTarget::Indirect, 10);
        let (short, long) = (caller(100, 5, CallTarget::System, 0), caller(200, 5, CallTarget::System, 5));
        let profile = SavedProfile { functions: vec![outer, short, long], ..SavedProfile::default() };
        let others = OtherMeasurements {
            indirect: HashMap::from([((0, 1), vec![(1, 7), (2, 7)])]),
            ..OtherMeasurements::default()
        };
        let all = super::times(&profile, &others, CostUnit::Instructions).functions;
        let outer = all[0].as_ref().expect("times");
        // 10 instructions, and 7 or 10 in the callee.
        assert!((outer.times.mean - 18.5).abs() < 1e-9 && outer.left_out.abs() < 1e-9, "{outer:?}");
        assert!((outer.times.variance.independent - 1.5 * 1.5).abs() < 1e-9, "{outer:?}");
        let shares = shared(3, 10, &[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(shares.iter().map(|call| call.count).sum::<u64>(), 10);
        assert!(shared(3, 10, &[(1, 0)]).is_empty() && shared(3, 0, &[(1, 5)]).is_empty());
    }

    #[test]
    fn costs_in_nanoseconds_explain_the_measured_times() {
        let (outer, inner) = (caller(0, 10, CallTarget::Own(Svma(100)), 10), caller(100, 10, CallTarget::System, 0));
        let profile = SavedProfile { functions: vec![outer, inner], ..SavedProfile::default() };
        let measured = |mean, own| Some(MeasuredCalls { timed: 10, mean, own, stddev: None });
        // 10 and 7 instructions of half a nanosecond.
        let others = OtherMeasurements {
            calls: vec![measured(8.5, Some(5.0)), measured(3.5, None)],
            ..OtherMeasurements::default()
        };
        let times = super::times(&profile, &others, CostUnit::Nanoseconds);
        let fit = times.costs.expect("a fit");
        assert!((fit.costs[0] - 0.5).abs() < 1e-9 && fit.error < 1e-9 && fit.rows == 2, "{fit:?}");
        let outer = times.functions[0].as_ref().expect("times");
        assert!((outer.times.mean - 8.5).abs() < 1e-9 && (outer.own - 5.0).abs() < 1e-9, "{outer:?}");
        let nothing = super::times(&profile, &OtherMeasurements::default(), CostUnit::Nanoseconds);
        assert_eq!((nothing.costs, nothing.functions), (None, vec![Err(Untimed::NoCosts), Err(Untimed::NoCosts)]));
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
