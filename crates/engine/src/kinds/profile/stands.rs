//! Threads inside of profiled functions: how far each has run, by its position in generated code or in the text.

use ingraft_model::machine::ENDBR_LEN;
use ingraft_model::{Avma, Bias, BlockId, Svma, Tid};
use ingraft_profile::Position;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::kinds::graph::FunctionGraph;
use crate::program::modules::Modules;
use crate::weaving::plan::Woven;
use crate::weaving::positions::{CodeMap, GraphPosition, ProgramCounters, ThreadPosition};

/// A thread in a profiled function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The thread.
    pub tid: Tid,
    /// Position in a run; `None` if the run has not begun.
    pub run: Option<Position>,
    /// Block of its run that it has left, all of whose instructions it has executed; `None` if it is still in it.
    pub left: Option<BlockId>,
    /// Block of which it has executed a part, and its next instruction there; `None` if it has executed all of the block.
    pub part: (BlockId, Option<Svma>),
}

/// A thread that was in a profiled function when counting began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Where it was.
    pub stand: Stand,
    /// Start time of the thread, which tells it from a later one with the same id; `None` if it has ended since.
    pub began: Option<u64>,
}

/// The threads in functions, by the index of the function. `inserting` means that counters are being added.
pub fn stands(
    modules: &Modules,
    woven: &Woven,
    graphs: &[&FunctionGraph],
    seen: &ProgramCounters,
    inserting: bool,
) -> FxHashMap<usize, Vec<Stand>> {
    let map = CodeMap::new(woven);
    let copied: FxHashSet<Avma> = woven.copied().map(|body| body.function).collect();
    let mut found: FxHashMap<usize, Vec<Stand>> = FxHashMap::default();
    let spots: Vec<(Tid, ThreadPosition)> = seen.counters.iter().map(|(tid, pc)| (*tid, map.spot(*pc))).collect();
    for (n, graph) in graphs.iter().enumerate() {
        let Some((module, f)) = graph.resolve(modules) else { continue };
        let start = f.start().to_avma(module.bias);
        let code =
            MappedGraph { graph, bias: module.bias, start, counts_in_text: inserting || !copied.contains(&start) };
        let of_function: Vec<Stand> =
            spots.iter().filter_map(|(tid, spot)| code.stand(*tid, spot, &|at| map.leads(at))).collect();
        if !of_function.is_empty() {
            found.insert(n, of_function);
        }
    }
    found
}

/// The code of a profiled function in a process.
struct MappedGraph<'r> {
    graph: &'r FunctionGraph,
    bias: Bias,
    /// Address of the function.
    start: Avma,
    /// Whether threads at the beginning of a block in the text have not been counted, because the function has no copy.
    counts_in_text: bool,
}

impl MappedGraph<'_> {
    /// The thread at a position, if that is in the function. `leads` tells whether a springboard begins at an address.
    fn stand(&self, tid: Tid, spot: &ThreadPosition, leads: &dyn Fn(Avma) -> bool) -> Option<Stand> {
        let block = |at: Avma| self.graph.block_around(at.to_svma(self.bias));
        let mut left = None;
        let (run, part) = match spot.place {
            GraphPosition::Arrival(at) => (Some(Position::Arrival(block(at)?)), block(at)?),
            GraphPosition::Block(at) => (Some(Position::Block(block(at)?)), block(at)?),
            GraphPosition::Left(from, to) => {
                left = Some(block(from)?);
                (left.map(Position::Block), block(to)?)
            }
            GraphPosition::Before(at) => (None, block(at)?),
            GraphPosition::Text(at) => {
                let block = block(at)?;
                let arrives = self.arrives_in_text(block, at, leads);
                (Some(if arrives { Position::Arrival(block) } else { Position::Block(block) }), block)
            }
            GraphPosition::Unknown => return None,
        };
        Some(Stand { tid, run, left, part: (part, spot.next.map(|next| next.to_svma(self.bias))) })
    }

    /// Whether a thread at an address in the text has yet to be counted in its block.
    fn arrives_in_text(&self, block: BlockId, at: Avma, leads: &dyn Fn(Avma) -> bool) -> bool {
        let Some(of) = self.graph.cfg.blocks.get(block) else { return false };
        if of.range.start.to_avma(self.bias) != at {
            return false;
        }
        // A thread that returns to the text for a call at the beginning of a block has been counted in the copy. A block that is a call alone
        // has no `endbr64` before its springboard.
        let is_alone = of.instructions == 1;
        self.counts_in_text || leads(at.offset(ENDBR_LEN.cast_signed())) && (!is_alone || at == self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::{Block, Cfg, FunctionId, IndexVec, ModuleId};

    const BIAS: Bias = Bias(0x1000);

    /// A function at 0x10 with a block of two instructions, and at 0x20 a block that is a call alone.
    fn graph() -> FunctionGraph {
        let block = |start, end, instructions| Block { range: Svma(start)..Svma(end), instructions };
        FunctionGraph {
            function: FunctionId { module: ModuleId(0), function: 0 },
            symbol: "f".to_owned(),
            name: "f".to_owned(),
            first: Svma(0x10),
            size: 0x15,
            cfg: Cfg {
                blocks: vec![block(0x10, 0x20, 2), block(0x20, 0x25, 1)].into(),
                edges: IndexVec::default(),
                entry: Some(BlockId(0)),
                ways_in: Vec::new(),
                unresolved: Vec::new(),
                ways_in_proven: Ok(()),
                ways_out_proven: Ok(()),
            },
            events: IndexVec::default(),
        }
    }

    /// Where a thread at this position stands. `counts_in_text`: the function has no copy. Springboards begin at `jumps`.
    fn stand(place: GraphPosition, counts_in_text: bool, jumps: &[u64]) -> Option<Stand> {
        let graph = graph();
        let start = Svma(0x10).to_avma(BIAS);
        let mapped = MappedGraph { graph: &graph, bias: BIAS, start, counts_in_text };
        mapped.stand(Tid(1), &ThreadPosition { place, next: Some(Avma(0x1018)) }, &|at| jumps.contains(&at.0))
    }

    fn run(place: GraphPosition, counts_in_text: bool, jumps: &[u64]) -> Option<Position> {
        stand(place, counts_in_text, jumps)?.run
    }

    #[test]
    fn positions_in_generated_code_tell_what_was_counted() {
        let (first, second) = (Avma(0x1010), Avma(0x1020));
        assert_eq!(run(GraphPosition::Arrival(second), false, &[]), Some(Position::Arrival(BlockId(1))));
        assert_eq!(run(GraphPosition::Block(first), false, &[]), Some(Position::Block(BlockId(0))));
        let before = stand(GraphPosition::Before(second), false, &[]).expect("a stand");
        assert_eq!((before.run, before.part.0), (None, BlockId(1)), "the run has not begun");
        let left = stand(GraphPosition::Left(first, second), false, &[]).expect("a stand");
        assert_eq!(
            (left.run, left.left, left.part),
            (Some(Position::Block(BlockId(0))), Some(BlockId(0)), (BlockId(1), Some(Svma(0x18))))
        );
    }

    #[test]
    fn threads_elsewhere_have_no_stand() {
        assert_eq!(stand(GraphPosition::Unknown, true, &[]), None);
        assert_eq!(stand(GraphPosition::Text(Avma(0x1025)), true, &[]), None, "behind the function");
        assert_eq!(stand(GraphPosition::Left(Avma(0x1010), Avma(0x1030)), true, &[]), None);
    }

    #[test]
    fn a_thread_at_the_beginning_of_a_block_in_the_text_may_have_been_counted() {
        let [first, second] = [0x1010, 0x1020].map(|at| GraphPosition::Text(Avma(at)));
        let (arrives, counted) = (Some(Position::Arrival(BlockId(0))), Some(Position::Block(BlockId(0))));
        assert_eq!(run(first, true, &[]), arrives, "nothing is counted before");
        assert_eq!(run(first, false, &[]), counted, "it came back from the copy for a call");
        assert_eq!(run(first, false, &[0x1014]), arrives, "it is at an `endbr64` before its springboard");
        assert_eq!(run(second, false, &[0x1024]), Some(Position::Block(BlockId(1))), "a call alone has none");
        assert_eq!(run(GraphPosition::Text(Avma(0x1014)), true, &[]), counted, "within the block");
    }
}
