//! The measured control flow of a function, and the same as a flow of whole calls.

use ingraft_model::{Key, Lists, index_keys};

/// An edge with the number of its passages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEdge {
    /// Index of the block that the edge leaves.
    pub from: usize,
    /// Index of the block to which it leads; `None` if it leaves the function.
    pub to: Option<usize>,
    /// Number of passages.
    pub count: u64,
}

/// Calls that a block makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCall {
    /// Index of the block.
    pub block: usize,
    /// Index of the called function among the functions of the program.
    pub callee: usize,
    /// Number of calls of this function that the block made.
    pub count: u64,
}

/// A function with measured frequencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredFlow {
    /// Cost of one execution of each block, without what it calls, in any unit.
    pub costs: Vec<f64>,
    /// Number of executions of each block.
    pub executions: Vec<u64>,
    /// The edges between blocks and out of the function. The edge of a call has the number of its returns.
    pub edges: Vec<FlowEdge>,
    /// Index of the block at which callers arrive, and the number of their calls.
    pub entry: (usize, u64),
    /// The calls of measured functions.
    pub calls: Vec<FlowCall>,
    /// Variance of the number of iterations for each entry of a loop, by the header of the loop. Without one it counts as 0.
    pub trips: Vec<(usize, f64)>,
}

/// A node of a [`CallFlow`], by its index, as a node of the graph whose loops are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlowNode(u32);

index_keys!(FlowNode);

/// End of an edge of a [`CallFlow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FlowEnd {
    /// Outside of the function: callers, or what follows a call.
    Outside,
    /// A node, by its index.
    Node(usize),
}

/// An edge of a [`CallFlow`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FlowPassage {
    pub from: FlowEnd,
    pub to: FlowEnd,
    pub count: f64,
}

/// A graph in which as much comes in at each node as goes out.
#[derive(Clone, Debug, Default)]
pub(super) struct CallFlow {
    /// For each node, the block that it is or is a copy of; `None` for a node at which frames are resumed.
    pub blocks: Vec<Option<usize>>,
    pub passages: Vec<FlowPassage>,
    /// Passages to each block and from it, while the flow is completed.
    into: Vec<f64>,
    out: Vec<f64>,
}

impl CallFlow {
    /// The completed flow of a function, see [`CallFlow::set`].
    pub fn of(function: &MeasuredFlow) -> CallFlow {
        let mut flow = CallFlow::default();
        flow.set(function);
        flow
    }

    /// Completes the counts of a function, in the memory of the flow before. Calls that have not returned are connected to blocks that control has
    /// entered along no edge, such as those that catch exceptions. Calls that are left over go on outside, and entries that are left over come
    /// from outside.
    pub fn set(&mut self, function: &MeasuredFlow) {
        let count = function.costs.len();
        let CallFlow { blocks, passages, into, out } = self;
        blocks.clear();
        blocks.extend((0..count).map(Some));
        passages.clear();
        for sums in [&mut *into, &mut *out] {
            sums.clear();
            sums.resize(count, 0.0);
        }
        let mut add = |from: FlowEnd, to: FlowEnd, count: f64| {
            for (end, sums) in [(to, &mut *into), (from, &mut *out)] {
                if let FlowEnd::Node(node) = end
                    && let Some(sum) = sums.get_mut(node)
                {
                    *sum += count;
                }
            }
            FlowPassage { from, to, count }
        };
        let exists = |edge: &&FlowEdge| edge.from < count && edge.to.is_none_or(|to| to < count);
        passages.extend(function.edges.iter().filter(exists).map(|edge| {
            add(FlowEnd::Node(edge.from), edge.to.map_or(FlowEnd::Outside, FlowEnd::Node), edge.count as f64)
        }));
        let (entry, calls) = function.entry;
        if entry < count {
            passages.push(add(FlowEnd::Outside, FlowEnd::Node(entry), calls as f64));
        }
        let missing = |sums: &[f64]| -> Vec<(usize, f64)> {
            let runs = function.executions.iter().map(|count| *count as f64).chain(std::iter::repeat(0.0));
            let through = into.iter().zip(&*out).zip(runs).map(|((into, out), runs)| into.max(*out).max(runs));
            let missing = through.zip(sums).map(|(through, sum)| through - sum).enumerate();
            missing.filter(|(_, missing)| *missing > 0.0).collect()
        };
        let (late, lost) = (missing(into), missing(out));
        self.resume(&late, &lost);
    }

    /// Adds the edges of frames that are left without an edge, and of arrivals without one.
    fn resume(&mut self, late: &[(usize, f64)], lost: &[(usize, f64)]) {
        let sum = |all: &[(usize, f64)]| all.iter().map(|(_, count)| count).sum::<f64>();
        let (arrived, left) = (sum(late), sum(lost));
        let resumed = arrived.min(left);
        let node = (resumed > 0.0).then_some(self.blocks.len());
        if node.is_some() {
            self.blocks.push(None);
        }
        let via = node.map_or(FlowEnd::Outside, FlowEnd::Node);
        let mut add = |from, to, count: f64| {
            if count > 0.0 {
                self.passages.push(FlowPassage { from, to, count });
            }
        };
        for (block, count) in lost {
            add(FlowEnd::Node(*block), via, *count);
        }
        for (block, count) in late {
            let share = if arrived > 0.0 { resumed / arrived } else { 0.0 };
            add(via, FlowEnd::Node(*block), count * share);
            add(FlowEnd::Outside, FlowEnd::Node(*block), count * (1.0 - share));
        }
        add(via, FlowEnd::Outside, if node.is_some() { left - resumed } else { 0.0 });
    }

    /// Makes lists of the nodes to which each node leads.
    pub fn fill_successors(&self, successors: &mut Lists<FlowNode>) {
        let inner = |passage: &FlowPassage| match (passage.from, passage.to) {
            (FlowEnd::Node(from), FlowEnd::Node(to)) => Some((from, FlowNode::at(to))),
            _ => None,
        };
        successors.fill(self.blocks.len(), self.passages.iter().filter_map(inner));
    }

    /// The nodes at which control arrives from outside.
    pub fn entries(&self) -> impl Iterator<Item = FlowNode> {
        let entry = |passage: &FlowPassage| match (passage.from, passage.to) {
            (FlowEnd::Outside, FlowEnd::Node(to)) => Some(FlowNode::at(to)),
            _ => None,
        };
        self.passages.iter().filter_map(entry)
    }

    /// Number of times that control has come to each node.
    pub fn through(&self) -> Vec<f64> {
        let mut through = Vec::new();
        self.fill_through(&mut through);
        through
    }

    /// The same, in the memory of a vector.
    pub fn fill_through(&self, through: &mut Vec<f64>) {
        through.clear();
        through.resize(self.blocks.len(), 0.0);
        for passage in &self.passages {
            if let FlowEnd::Node(to) = passage.to
                && let Some(sum) = through.get_mut(to)
            {
                *sum += passage.count;
            }
        }
    }
}
