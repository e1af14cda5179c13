//! Random executions of a graph, and the counts that an observer of every step has.

use std::collections::BTreeMap;

use ingraft_model::Key;
use ingraft_profile::{ArcId, Corrections, Counter, ProfileEdge, ProfileEdgeKind, ProfileGraph, Vertex};

/// A step of an execution: an activation passes an edge or appears at a block.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A late start at a block.
    Late(Vertex),
    /// The passage of an edge.
    Pass(ArcId),
    /// An early end at a block.
    Early(Vertex),
}

/// Makes steps of choices: activations one after the other, some of them with a late start or an early end.
pub fn steps(graph: &ProfileGraph, choices: &[u8]) -> Vec<Step> {
    let live: Vec<Vertex> = (0..graph.blocks()).map(Vertex::at).filter(|block| graph.is_live(*block)).collect();
    let (mut steps, mut at) = (Vec::new(), None);
    for choice in choices {
        let choice = usize::from(*choice);
        let from = match at {
            None if choice % 4 == 0 => {
                let block = live[choice / 4 % live.len()];
                steps.push(Step::Late(block));
                at = Some(block);
                continue;
            }
            None => graph.entry(),
            Some(block) if choice % 16 == 15 && block < graph.entry() => {
                steps.push(Step::Early(block));
                at = None;
                continue;
            }
            Some(block) => block,
        };
        let edges: Vec<(ArcId, &ProfileEdge)> = graph.leaving(from).collect();
        let (id, edge) = edges[choice % edges.len()];
        steps.push(Step::Pass(id));
        at = Some(edge.to).filter(|to| *to != graph.exit());
    }
    // Nothing happens at a joint, so an activation is never found there.
    while let Some(joint) = at.filter(|block| *block > graph.exit()) {
        let (id, edge) = graph.leaving(joint).next().expect("the edge out of a joint");
        steps.push(Step::Pass(id));
        at = Some(edge.to);
    }
    if let Some(block) = at {
        steps.push(Step::Early(block));
    }
    steps
}

/// Counts by observation.
#[derive(Debug, Default)]
pub struct Truth {
    pub edges: BTreeMap<ArcId, u64>,
    pub blocks: BTreeMap<Vertex, u64>,
    pub corrections: Corrections,
}

impl Truth {
    pub fn of(graph: &ProfileGraph, steps: &[Step]) -> Truth {
        let mut truth = Truth::default();
        for step in steps {
            match step {
                Step::Late(block) => {
                    truth.corrections.late.push((*block, 1));
                    *truth.edges.entry(graph.closing()).or_default() += 1;
                }
                Step::Early(block) => truth.corrections.early.push((*block, 1)),
                Step::Pass(id) => {
                    let edge = graph.edge(*id).expect("an edge");
                    *truth.edges.entry(*id).or_default() += 1;
                    if edge.kind == ProfileEdgeKind::Root {
                        *truth.edges.entry(graph.closing()).or_default() += 1;
                    }
                    *truth.blocks.entry(edge.to).or_default() += 1;
                }
            }
        }
        truth
    }

    pub fn edge(&self, edge: ArcId) -> u64 {
        self.edges.get(&edge).copied().unwrap_or_default()
    }

    pub fn block(&self, block: Vertex) -> u64 {
        self.blocks.get(&block).copied().unwrap_or_default()
    }

    /// The counts of counters.
    pub fn counts(&self, counters: &[Counter]) -> Vec<u64> {
        let one = |counter: &Counter| match counter {
            Counter::Edge(edge) => self.edge(*edge),
            Counter::Block(block) => self.block(*block),
        };
        counters.iter().map(one).collect()
    }
}
