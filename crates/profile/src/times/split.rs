//! Node splitting: a loop that control enters at several nodes is copied for each of them, so that each loop has one header.

use std::collections::BTreeMap;

use ingraft_model::{Key, Loop, Loops};

use super::flow::{CallFlow, FlowEnd, FlowNode, FlowPassage};
use super::linear::FeedbackSystem;

/// Largest number of nodes for each node of the function.
const GROWTH: usize = 4;

/// Largest loop that is copied, in nodes.
const LOOP_MAX: usize = 400;

/// Largest number of passages that are looked at in all rounds.
const WORK_MAX: usize = 4_000_000;

/// The flow with one header for each loop, and its loops; `None` if it would have to grow too much.
pub(super) fn reducible(mut flow: CallFlow) -> Option<(CallFlow, Loops<FlowNode>)> {
    let room = GROWTH * flow.blocks.len().max(1);
    let mut work = 0;
    loop {
        let loops = Loops::new(&flow.successors(), &flow.entries());
        let Some(first) = loops.all().iter().find(|one| one.entries.len() > 1) else { return Some((flow, loops)) };
        work += flow.passages.len();
        if first.body.len() > LOOP_MAX || flow.blocks.len() + first.body.len() > room || work > WORK_MAX {
            return None;
        }
        flow = copied(flow, first)?;
    }
}

/// Copies a loop for an entry other than its header. All arrivals from outside at this entry go to the copy. Passages are shared between
/// both as if each node's branches did not depend on where control has come from, so all sums stay as they are.
fn copied(mut flow: CallFlow, one: &Loop<FlowNode>) -> Option<CallFlow> {
    let entry = one.entries.iter().find(|entry| **entry != one.header)?.index();
    let inside: BTreeMap<usize, usize> = one.body.iter().enumerate().map(|(at, node)| (node.index(), at)).collect();
    let position = |end: FlowEnd| match end {
        FlowEnd::Node(node) => inside.get(&node).copied(),
        FlowEnd::Outside => None,
    };
    let through = flow.through();
    let share = |passage: &FlowPassage| match passage.from {
        FlowEnd::Node(node) => {
            through.get(node).filter(|count| **count > 0.0).map_or(0.0, |count| passage.count / count)
        }
        FlowEnd::Outside => 0.0,
    };
    let arrives = |passage: &FlowPassage| passage.to == FlowEnd::Node(entry) && position(passage.from).is_none();
    // Executions of the nodes of the copy.
    let mut arrived = vec![0.0; one.body.len()];
    for passage in flow.passages.iter().filter(|passage| arrives(passage)) {
        if let Some(sum) = position(passage.to).and_then(|to| arrived.get_mut(to)) {
            *sum += passage.count;
        }
    }
    let mut system = FeedbackSystem::new(arrived);
    for passage in &flow.passages {
        if let (Some(from), Some(to)) = (position(passage.from), position(passage.to)) {
            system.add(to, from, share(passage));
        }
    }
    let executions = system.solve()?;
    let base = flow.blocks.len();
    let copies: Vec<Option<usize>> =
        one.body.iter().map(|node| flow.blocks.get(node.index()).copied().flatten()).collect();
    flow.blocks.extend(copies);
    let copy_of = |end: FlowEnd| position(end).map_or(end, |at| FlowEnd::Node(base + at));
    let mut added = Vec::new();
    for passage in &mut flow.passages {
        if let Some(from) = position(passage.from) {
            let count = executions.get(from)? * share(passage);
            added.push(FlowPassage { from: copy_of(passage.from), to: copy_of(passage.to), count });
            passage.count = (passage.count - count).max(0.0);
        } else if arrives(passage) {
            passage.to = copy_of(passage.to);
        }
    }
    flow.passages.extend(added);
    flow.passages.retain(|passage| passage.count > 0.0);
    Some(flow)
}
