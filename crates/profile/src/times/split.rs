//! Node splitting: a loop that control enters at several nodes is copied for each of them, so that each loop has one header.

use std::collections::BTreeMap;

use ingraft_model::{Key, Lists, Loop, LoopSearch, Loops};

use super::flow::{CallFlow, FlowEnd, FlowNode, FlowPassage};
use super::linear::FeedbackSystem;

/// Largest number of nodes for each node of the function.
const GROWTH: usize = 4;

/// Largest loop that is copied, in nodes.
const LOOP_MAX: usize = 400;

/// Largest number of passages that are looked at in all rounds.
const WORK_MAX: usize = 4_000_000;

/// The loops of a flow, with buffers for the search.
#[derive(Debug, Default)]
pub(super) struct FlowLoops {
    /// Headers and nesting of the loops. Other facts of loops are missing.
    pub loops: Loops<FlowNode>,
    successors: Lists<FlowNode>,
    entries: Vec<FlowNode>,
    search: LoopSearch<FlowNode>,
}

impl FlowLoops {
    /// Finds the loops of a flow. Returns the first loop that control enters at several nodes, with all facts.
    pub fn find(&mut self, flow: &CallFlow) -> Option<Loop<FlowNode>> {
        flow.fill_successors(&mut self.successors);
        self.entries.clear();
        self.entries.extend(flow.entries());
        self.search.headers(&self.successors, &self.entries, &mut self.loops);
        if !self.may_be_irreducible(flow) {
            return None;
        }
        // A node to which no entry leads may have looked like a way in.
        let loops = Loops::new(&self.successors, &self.entries);
        loops.all().iter().find(|one| one.entries.len() > 1).cloned()
    }

    /// Whether a passage leads into a loop elsewhere than at its header.
    fn may_be_irreducible(&self, flow: &CallFlow) -> bool {
        let enters = |passage: &FlowPassage| {
            let FlowEnd::Node(to) = passage.to else { return false };
            let to = FlowNode::at(to);
            let stays = |one: &usize| match passage.from {
                FlowEnd::Node(from) => self.loops.around(FlowNode::at(from)).any(|around| around == *one),
                FlowEnd::Outside => false,
            };
            let is_header = |one: usize| self.loops.all().get(one).is_some_and(|one| one.header == to);
            self.loops.around(to).take_while(|one| !stays(one)).any(|one| !is_header(one))
        };
        !self.loops.all().is_empty() && flow.passages.iter().any(enters)
    }
}

/// Makes a flow one with one header for each loop, and finds its loops; `None` if it would have to grow too much.
pub(super) fn reducible(flow: &mut CallFlow, loops: &mut FlowLoops) -> Option<()> {
    let room = GROWTH * flow.blocks.len().max(1);
    let mut work = 0;
    while let Some(first) = loops.find(flow) {
        work += flow.passages.len();
        if first.body.len() > LOOP_MAX || flow.blocks.len() + first.body.len() > room || work > WORK_MAX {
            return None;
        }
        copy(flow, &first)?;
    }
    Some(())
}

/// Copies a loop for an entry other than its header. All arrivals from outside at this entry go to the copy. Passages are shared between
/// both as if each node's branches did not depend on where control has come from, so all sums stay as they are.
fn copy(flow: &mut CallFlow, one: &Loop<FlowNode>) -> Option<()> {
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
    Some(())
}
