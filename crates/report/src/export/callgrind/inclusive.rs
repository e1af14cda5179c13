//! Estimated inclusive costs of calls.
//!
//! The estimate is that of gprof (Graham, Kessler and McKusick, "gprof: a call graph execution profiler", 1982): each call of a function
//! is taken to cost the mean of all its calls. Functions that call each other in a cycle share one mean, and calls between them cost
//! nothing. Calls through pointers, and functions that are not profiled, add nothing.

use ingraft_model::Svma;
use rustc_hash::FxHashMap;

use crate::program::{ProfiledProgram, ProfiledRoutine};

/// Mark of a function that the search has not reached.
const UNSEEN: usize = usize::MAX;

/// Inclusive cost of each function.
pub(super) struct InclusiveCosts {
    functions: FxHashMap<(usize, Svma), InclusiveCost>,
}

/// Inclusive cost of a function.
#[derive(Clone, Copy, Debug, Default)]
struct InclusiveCost {
    /// Executed instructions per call.
    per_call: f64,
    /// Number of the cycle of functions that call each other; a function outside of cycles has a number of its own.
    cycle: usize,
}

/// A function of the call graph.
#[derive(Default)]
struct CallGraphNode {
    /// Instructions executed by the function itself.
    own: f64,
    /// Calls of the function.
    calls: f64,
    /// Index of each called function, with the number of calls.
    callees: Vec<(usize, u64)>,
    /// Order in which the search reached the function.
    order: usize,
    /// Lowest order of a function that is on the search's stack and can be reached from here.
    low: usize,
    on_stack: bool,
    cost: InclusiveCost,
}

/// The call graph of the profiled functions.
struct CallGraph {
    nodes: Vec<CallGraphNode>,
}

impl CallGraph {
    fn of(program: &ProfiledProgram<'_>, routines: &[ProfiledRoutine<'_>]) -> Self {
        let numbers: FxHashMap<_, _> = routines.iter().enumerate().map(|(number, r)| (r.key(), number)).collect();
        let nodes = routines.iter().map(|routine| {
            let calls = routine.function.call_sites.iter();
            let calls = calls.filter_map(|call| Some((program.callee(routine, &call.callee)?.key(), call.count)));
            let blocks = 0..routine.function.blocks.len();
            let jumps = blocks.flat_map(|block| routine.tail_jumps(block));
            let jumps = jumps.map(|(at, count)| ((routine.function.module, at), count));
            let known = |(key, count)| Some((*numbers.get(&key)?, count));
            CallGraphNode {
                own: routine.function.executed() as f64,
                calls: routine.function.calls as f64,
                callees: calls.chain(jumps).filter_map(known).collect(),
                order: UNSEEN,
                ..CallGraphNode::default()
            }
        });
        CallGraph { nodes: nodes.collect() }
    }

    /// Computes the costs. A cycle is complete when all functions that it calls are (Tarjan, "Depth-first search and linear graph
    /// algorithms", 1972).
    fn compute(&mut self) {
        let (mut next, mut stack) = (0, Vec::new());
        for root in 0..self.nodes.len() {
            let mut path = vec![(root, 0)];
            while let Some((number, at)) = path.pop() {
                let Some(node) = self.nodes.get_mut(number) else { continue };
                if at == 0 {
                    if node.order != UNSEEN {
                        continue;
                    }
                    (node.order, node.low, node.on_stack) = (next, next, true);
                    next += 1;
                    stack.push(number);
                }
                if let Some((callee, _)) = node.callees.get(at) {
                    let callee = *callee;
                    path.push((number, at + 1));
                    path.push((callee, 0));
                    continue;
                }
                if self.lowest(number) {
                    let begin = stack.iter().rposition(|member| *member == number).unwrap_or(0);
                    self.finish(number, &stack.split_off(begin));
                }
            }
        }
    }

    /// Finds the lowest order that is reached from a function whose callees are done. Returns whether the function begins a cycle.
    fn lowest(&mut self, number: usize) -> bool {
        let Some(node) = self.nodes.get(number) else { return false };
        let callees = node.callees.iter().filter_map(|(callee, _)| self.nodes.get(*callee));
        let low = callees.filter(|callee| callee.on_stack).map(|callee| callee.low).fold(node.low, usize::min);
        let order = node.order;
        self.nodes.get_mut(number).into_iter().for_each(|node| node.low = low);
        low == order
    }

    /// Computes the cost of the functions of a cycle.
    fn finish(&mut self, cycle: usize, members: &[usize]) {
        for member in members {
            self.nodes.get_mut(*member).into_iter().for_each(|node| (node.on_stack, node.cost.cycle) = (false, cycle));
        }
        let (mut cost, mut entered) = (0.0, 0.0);
        for node in members.iter().filter_map(|member| self.nodes.get(*member)) {
            cost += node.own;
            entered += node.calls;
            for (callee, count) in &node.callees {
                let called = self.nodes.get(*callee).map(|callee| callee.cost).unwrap_or_default();
                if called.cycle == cycle {
                    entered -= *count as f64;
                } else {
                    cost += *count as f64 * called.per_call;
                }
            }
        }
        // If the cycle was entered before counting began, no arrival from outside was counted.
        let per_call = cost / entered.max(1.0);
        for member in members {
            self.nodes.get_mut(*member).into_iter().for_each(|node| node.cost.per_call = per_call);
        }
    }
}

impl InclusiveCosts {
    pub(super) fn of(program: &ProfiledProgram<'_>) -> Self {
        let routines: Vec<_> = program.functions().collect();
        let mut graph = CallGraph::of(program, &routines);
        graph.compute();
        InclusiveCosts {
            functions: routines.iter().map(ProfiledRoutine::key).zip(graph.nodes.iter().map(|n| n.cost)).collect(),
        }
    }

    /// Inclusive cost of a number of calls from one function to another, in executed instructions.
    pub(super) fn of_calls(&self, caller: &ProfiledRoutine<'_>, callee: &ProfiledRoutine<'_>, count: u64) -> u64 {
        let cost = |routine: &ProfiledRoutine<'_>| self.functions.get(&routine.key()).copied().unwrap_or_default();
        let (caller, callee) = (cost(caller), cost(callee));
        // A conversion to an integer saturates.
        if caller.cycle == callee.cycle { 0 } else { (callee.per_call * count as f64).round() as u64 }
    }
}
