//! The extended control-flow graph (section 2 of the paper), in which loops are nested intervals.
//!
//! ```text
//!   START ──► PREHEADER ──► header ──► … ──► POSTEXIT ──► … ──► STOP
//!                               └────► … ──► END of the iteration ┄┄► each POSTEXIT of the loop
//! ```
//!
//! Pseudo edges, which no execution takes, lead from START to STOP, from a preheader to the end of the iteration and to the postexits of the
//! exits that begin in its loop, and from that end to all postexits of the loop. The graph has no cycles.

use ingraft_model::{Key, Loops};

use super::flow::{CallFlow, FlowEnd, FlowNode};

/// Meaning of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtendedNode {
    Start,
    Stop,
    /// A node of the flow, by its index.
    Flow(usize),
    /// The preheader of the loop with this header.
    Preheader(usize),
    /// The end of an iteration.
    IterationEnd,
    /// The exit from a loop by an edge.
    Postexit,
}

/// An edge. Each edge out of a node has a label of its own, so that the edge is a control condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ControlCondition {
    pub from: usize,
    pub to: usize,
    /// For the edge of a preheader to its header, the iterations for each entry of the loop; else the probability of the branch.
    pub frequency: f64,
    /// Whether it is the edge of a preheader to its header.
    pub iterates: bool,
}

/// The graph. Node 0 is START and node 1 is STOP.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtendedGraph {
    pub kinds: Vec<ExtendedNode>,
    /// The edges, sorted by the node that they leave.
    pub branches: Vec<ControlCondition>,
}

pub(super) const START: usize = 0;
pub(super) const STOP: usize = 1;

/// The node of a node of the flow.
pub(super) fn of_flow(node: usize) -> usize {
    node + 2
}

/// A graph in the making: its edges still have numbers of passages.
struct ExtendedGraphBuilder<'a> {
    flow: &'a CallFlow,
    loops: &'a Loops<FlowNode>,
    kinds: Vec<ExtendedNode>,
    edges: Vec<(usize, usize, f64)>,
    /// For each loop, its preheader and the end of its iterations.
    ends: Vec<(usize, usize)>,
    /// For each loop, the postexits by which control leaves it.
    exits: Vec<Vec<usize>>,
}

impl ExtendedGraph {
    /// Builds the graph of a flow all of whose loops have one entry.
    pub fn of(flow: &CallFlow, loops: &Loops<FlowNode>) -> ExtendedGraph {
        let mut kinds = vec![ExtendedNode::Start, ExtendedNode::Stop];
        kinds.extend((0..flow.blocks.len()).map(ExtendedNode::Flow));
        let mut ends = Vec::with_capacity(loops.all().len());
        for one in loops.all() {
            ends.push((kinds.len(), kinds.len() + 1));
            kinds.extend([ExtendedNode::Preheader(one.header.index()), ExtendedNode::IterationEnd]);
        }
        let exits = vec![Vec::new(); ends.len()];
        let mut builder = ExtendedGraphBuilder { flow, loops, kinds, edges: Vec::new(), ends, exits };
        builder.passages();
        builder.intervals();
        builder.finish()
    }
}

impl ExtendedGraphBuilder<'_> {
    /// The loop that a node is the header of.
    fn headed_by(&self, node: usize) -> Option<usize> {
        let node = FlowNode::at(node);
        self.loops.innermost(node).filter(|index| self.loops.all().get(*index).is_some_and(|one| one.header == node))
    }

    fn is_in(&self, node: usize, index: usize) -> bool {
        self.loops.around(FlowNode::at(node)).any(|around| around == index)
    }

    /// Adds the edges of the flow.
    fn passages(&mut self) {
        let flow = self.flow;
        let mut leads = vec![false; flow.blocks.len()];
        for passage in &flow.passages {
            let from = match passage.from {
                FlowEnd::Node(node) => Some(node),
                FlowEnd::Outside => None,
            };
            if let Some(leads) = from.and_then(|from| leads.get_mut(from)) {
                *leads = true;
            }
            let FlowEnd::Node(to) = passage.to else {
                if let Some(from) = from {
                    self.passage(from, None, STOP, passage.count);
                }
                continue;
            };
            let headed = self.headed_by(to).and_then(|index| Some((index, *self.ends.get(index)?)));
            let target = match (headed, from) {
                (Some((index, (_, end))), Some(from)) if self.is_in(from, index) => end,
                (Some((_, (preheader, _))), _) => preheader,
                (None, _) => of_flow(to),
            };
            match from {
                Some(from) => self.passage(from, Some(to), target, passage.count),
                None => self.edges.push((START, target, passage.count)),
            }
        }
        for (node, _) in leads.iter().enumerate().filter(|(_, leads)| !**leads) {
            self.passage(node, None, STOP, 0.0);
        }
    }

    /// Adds an edge from a node of the flow to `target`, which stands for the node `to` or for STOP.
    fn passage(&mut self, from: usize, to: Option<usize>, target: usize, count: f64) {
        let stays = |builder: &Self, index| to.is_some_and(|to| builder.is_in(to, index));
        let left: Vec<usize> = self.loops.around(FlowNode::at(from)).take_while(|index| !stays(self, *index)).collect();
        let Some((preheader, _)) = left.first().and_then(|index| self.ends.get(*index)).copied() else {
            self.edges.push((of_flow(from), target, count));
            return;
        };
        let postexit = self.kinds.len();
        self.kinds.push(ExtendedNode::Postexit);
        self.edges.extend([(of_flow(from), postexit, count), (postexit, target, count), (preheader, postexit, 0.0)]);
        for index in left {
            if let Some(exits) = self.exits.get_mut(index) {
                exits.push(postexit);
            }
        }
    }

    /// Adds the edges of preheaders and of ends of iterations.
    fn intervals(&mut self) {
        for (one, (preheader, end)) in self.loops.all().iter().zip(&self.ends) {
            self.edges.extend([(*preheader, of_flow(one.header.index()), 0.0), (*preheader, *end, 0.0)]);
        }
        for (exits, (_, end)) in self.exits.iter().zip(&self.ends) {
            self.edges.extend(exits.iter().map(|exit| (*end, *exit, 0.0)));
            if exits.is_empty() {
                self.edges.push((*end, STOP, 0.0));
            }
        }
        self.edges.push((START, STOP, 0.0));
    }

    fn finish(mut self) -> ExtendedGraph {
        self.edges.sort_unstable_by_key(|(from, to, _)| (*from, *to));
        let (mut into, mut out) = (vec![0.0; self.kinds.len()], vec![0.0; self.kinds.len()]);
        for (from, to, count) in &self.edges {
            for (sums, node) in [(&mut into, *to), (&mut out, *from)] {
                if let Some(sum) = sums.get_mut(node) {
                    *sum += count;
                }
            }
        }
        let of = |sums: &[f64], node: usize| sums.get(node).copied().unwrap_or_default();
        let through = self.flow.through();
        let branch = |(from, to, count): &(usize, usize, f64)| {
            let (part, whole, iterates) = match (self.kinds.get(*from), self.kinds.get(*to)) {
                (Some(ExtendedNode::Preheader(header)), Some(ExtendedNode::Flow(node))) if header == node => {
                    (through.get(*header).copied().unwrap_or_default(), of(&into, *from), true)
                }
                _ => (*count, of(&out, *from), false),
            };
            let frequency = if whole > 0.0 { part / whole } else { 0.0 };
            ControlCondition { from: *from, to: *to, frequency, iterates }
        };
        let branches = self.edges.iter().map(branch).collect();
        ExtendedGraph { branches, kinds: self.kinds }
    }
}
