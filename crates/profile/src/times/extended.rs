//! The extended control-flow graph (section 2 of the paper), in which loops are nested intervals.
//!
//! ```text
//!   START ──► PREHEADER ──► header ──► … ──► POSTEXIT ──► … ──► STOP
//!                               └────► … ──► END of the iteration ┄┄► each POSTEXIT of the loop
//! ```
//!
//! Pseudo edges, which no execution takes, lead from START to STOP, from a preheader to the end of the iteration and to the postexits of the
//! exits that begin in its loop, and from that end to all postexits of the loop. The graph has no cycles.

use ingraft_model::{Key, Lists, Loops};

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
#[derive(Debug, Default)]
pub(super) struct ExtendedGraph {
    pub kinds: Vec<ExtendedNode>,
    /// The edges by the node that they leave, each list sorted by the node to which they lead.
    pub branches: Lists<ControlCondition>,
    /// Buffers of the builder.
    making: ExtendedEdges,
}

/// A graph in the making.
#[derive(Debug, Default)]
struct ExtendedEdges {
    /// Edges with their numbers of passages.
    edges: Vec<(usize, usize, f64)>,
    /// For each loop, its preheader and the end of its iterations.
    ends: Vec<(usize, usize)>,
    /// Whether control leaves each loop.
    has_exit: Vec<bool>,
    /// Whether an edge leaves each node of the flow.
    leads: Vec<bool>,
    /// Passages to each node of the graph, and those to each node of the flow.
    into: Vec<f64>,
    through: Vec<f64>,
}

pub(super) const START: usize = 0;
pub(super) const STOP: usize = 1;

/// The node of a node of the flow.
pub(super) fn of_flow(node: usize) -> usize {
    node + 2
}

/// A graph in the making, and what it is made of.
struct ExtendedGraphBuilder<'a> {
    flow: &'a CallFlow,
    loops: &'a Loops<FlowNode>,
    graph: &'a mut ExtendedGraph,
}

impl ExtendedGraph {
    /// Builds the graph of a flow all of whose loops have one entry.
    pub fn of(flow: &CallFlow, loops: &Loops<FlowNode>) -> ExtendedGraph {
        let mut graph = ExtendedGraph::default();
        graph.set(flow, loops);
        graph
    }

    /// The same, in the memory of the graph before.
    pub fn set(&mut self, flow: &CallFlow, loops: &Loops<FlowNode>) {
        let ExtendedGraph { kinds, making, .. } = self;
        kinds.clear();
        kinds.extend([ExtendedNode::Start, ExtendedNode::Stop]);
        kinds.extend((0..flow.blocks.len()).map(ExtendedNode::Flow));
        making.edges.clear();
        making.ends.clear();
        for one in loops.all() {
            making.ends.push((kinds.len(), kinds.len() + 1));
            kinds.extend([ExtendedNode::Preheader(one.header.index()), ExtendedNode::IterationEnd]);
        }
        making.has_exit.clear();
        making.has_exit.resize(making.ends.len(), false);
        making.leads.clear();
        making.leads.resize(flow.blocks.len(), false);
        let mut builder = ExtendedGraphBuilder { flow, loops, graph: self };
        builder.passages();
        builder.intervals();
        self.finish(flow);
    }

    /// Sorts the edges, and makes frequencies of their numbers of passages.
    fn finish(&mut self, flow: &CallFlow) {
        let ExtendedGraph { kinds, branches, making } = self;
        let ExtendedEdges { edges, into, through, .. } = making;
        flow.fill_through(through);
        let condition = |(from, to, count): &(usize, usize, f64)| {
            (*from, ControlCondition { from: *from, to: *to, frequency: *count, iterates: false })
        };
        branches.fill(kinds.len(), edges.iter().map(condition));
        into.clear();
        into.resize(kinds.len(), 0.0);
        for node in 0..kinds.len() {
            let branches = branches.get_mut(node);
            branches.sort_unstable_by_key(|branch| branch.to);
            for branch in branches {
                if let Some(sum) = into.get_mut(branch.to) {
                    *sum += branch.frequency;
                }
            }
        }
        let part_of = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        for (node, (kind, into)) in kinds.iter().zip(into).enumerate() {
            let branches = branches.get_mut(node);
            let out = branches.iter().fold(0.0, |sum, branch| sum + branch.frequency);
            let header = if let ExtendedNode::Preheader(header) = kind { Some(*header) } else { None };
            for branch in branches {
                let iterates = header.filter(|header| branch.to == of_flow(*header));
                branch.iterates = iterates.is_some();
                branch.frequency = match iterates {
                    Some(header) => part_of(through.get(header).copied().unwrap_or_default(), *into),
                    None => part_of(branch.frequency, out),
                };
            }
        }
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
        for passage in &flow.passages {
            let from = match passage.from {
                FlowEnd::Node(node) => Some(node),
                FlowEnd::Outside => None,
            };
            if let Some(leads) = from.and_then(|from| self.graph.making.leads.get_mut(from)) {
                *leads = true;
            }
            let FlowEnd::Node(to) = passage.to else {
                if let Some(from) = from {
                    self.passage(from, None, STOP, passage.count);
                }
                continue;
            };
            let headed = self.headed_by(to).and_then(|index| Some((index, *self.graph.making.ends.get(index)?)));
            let target = match (headed, from) {
                (Some((index, (_, end))), Some(from)) if self.is_in(from, index) => end,
                (Some((_, (preheader, _))), _) => preheader,
                (None, _) => of_flow(to),
            };
            match from {
                Some(from) => self.passage(from, Some(to), target, passage.count),
                None => self.edge(START, target, passage.count),
            }
        }
        for node in 0..flow.blocks.len() {
            if self.graph.making.leads.get(node) == Some(&false) {
                self.passage(node, None, STOP, 0.0);
            }
        }
    }

    /// Adds an edge from a node of the flow to `target`, which stands for the node `to` or for STOP.
    fn passage(&mut self, from: usize, to: Option<usize>, target: usize, count: f64) {
        let loops = self.loops;
        let stays = |one: &usize| to.is_some_and(|to| loops.around(FlowNode::at(to)).any(|around| around == *one));
        let mut left = loops.around(FlowNode::at(from)).take_while(|one| !stays(one)).peekable();
        let making = &mut self.graph.making;
        let Some((preheader, _)) = left.peek().and_then(|one| making.ends.get(*one)).copied() else {
            self.edge(of_flow(from), target, count);
            return;
        };
        let postexit = self.graph.kinds.len();
        self.graph.kinds.push(ExtendedNode::Postexit);
        making.edges.extend([(of_flow(from), postexit, count), (postexit, target, count), (preheader, postexit, 0.0)]);
        for one in left {
            if let (Some(has_exit), Some((_, end))) = (making.has_exit.get_mut(one), making.ends.get(one)) {
                *has_exit = true;
                making.edges.push((*end, postexit, 0.0));
            }
        }
    }

    fn edge(&mut self, from: usize, to: usize, count: f64) {
        self.graph.making.edges.push((from, to, count));
    }

    /// Adds the edges of preheaders, and of ends of iterations that lead to no postexit.
    fn intervals(&mut self) {
        let ExtendedEdges { edges, ends, has_exit, .. } = &mut self.graph.making;
        for ((one, (preheader, end)), has_exit) in self.loops.all().iter().zip(&*ends).zip(&*has_exit) {
            edges.extend([(*preheader, of_flow(one.header.index()), 0.0), (*preheader, *end, 0.0)]);
            if !has_exit {
                edges.push((*end, STOP, 0.0));
            }
        }
        edges.push((START, STOP, 0.0));
    }
}
