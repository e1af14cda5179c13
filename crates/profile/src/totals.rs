//! Event totals of runs, from counters and the positions of threads, without the counts of edges and blocks.
//!
//! These are the increments and query increments of "Efficiently counting program events with support for on-line queries" (1994), for a
//! function that is cut at its calls. There, one counter adds up the increments. Here each counter of an edge profile is multiplied by its
//! increment at the query, so one set of counters serves all kinds of events, and nothing changes in the code that counts.

use ingraft_model::{BlockId, IndexVec};

use crate::barred::Counter;
use crate::events::{Events, potentials};
use crate::map::PerVertex;
use crate::runs::{Position, Runs};

/// Factors that turn the counters and positions of a function into its number of events of one kind.
///
/// The number of events of a thread since the beginning is the sum of its counters, each multiplied by its increment, plus [`RunEvents::before`]
/// of its present position, minus that of its position when counting began. All sums wrap around at 64 bits. So the number is exact if it
/// fits in an `i64`.
#[derive(Clone, Debug)]
pub struct RunEvents<'r> {
    runs: &'r Runs,
    /// Events of one execution of each block.
    blocks: &'r IndexVec<BlockId, i64>,
    events: Events,
    potentials: PerVertex<i128>,
}

impl<'r> RunEvents<'r> {
    /// Computes the factors in linear time. `blocks` has the events of one execution of each block.
    pub fn new(runs: &'r Runs, blocks: &'r IndexVec<BlockId, i64>) -> Self {
        let graph = runs.graph();
        let mut events = Events::new(graph);
        for (block, number) in blocks.entries() {
            events.set_vertex(block.into(), *number);
        }
        let rooted = runs.placement().rooted();
        let potentials = rooted.map_or_else(|| graph.per_vertex(), |rooted| potentials(graph, rooted, &events));
        RunEvents { runs, blocks, events, potentials }
    }

    /// The increment of each counter, in the order of [`Runs::counters`]. A redundant counter has the increment 0.
    pub fn increments(&self) -> Vec<i64> {
        let (graph, placement) = (self.runs.graph(), self.runs.placement());
        let one = |(n, counter): (usize, &Counter)| {
            let edge = match counter {
                Counter::Edge(id) if n < placement.needed() => graph.edge(*id).map(|edge| (*id, edge)),
                Counter::Edge(_) | Counter::Block(_) => None,
            };
            let sum = |(id, edge)| {
                let edge: &crate::graph::ProfileEdge = edge;
                self.events.of(id, edge) + self.potentials.get(edge.from) - self.potentials.get(edge.to)
            };
            wrap(edge.map_or(0, sum))
        };
        placement.counters().iter().enumerate().map(one).collect()
    }

    /// Query increment of a position: the events of the run up to the first instruction of the position's block.
    pub fn before(&self, position: Position) -> i64 {
        let vertex = self.runs.vertex(position);
        let block = match position {
            Position::Arrival(block) | Position::Block(block) => block,
        };
        let own = self.blocks.get(block).filter(|_| vertex == block.into()).copied().unwrap_or_default();
        wrap(self.potentials.get(vertex)).wrapping_sub(own)
    }
}

/// A number modulo 2^64.
fn wrap(number: i128) -> i64 {
    number as i64
}
