//! Basic blocks and edges from reachability.

use std::collections::BTreeSet;

use iced_x86::{Code, Instruction};
use ingraft_model::{Block, BlockId, Cfg, Edge, EdgeKind, EdgeTarget, IndexVec, Refusal, Svma, WayIn, WayInReason};

use crate::flow::body::DecodedFunction;
use crate::flow::graph::FlowGraph;
use crate::flow::returns::{callee, never_returns};
use crate::flow::traversal::{LEADER, REACHED};
use crate::text::decode;
use crate::text::transfer::ControlTransfer;

/// Index of no block.
const NONE: BlockId = BlockId(u32::MAX);

/// The control-flow graph of a function.
pub(crate) fn cfg(body: &DecodedFunction<'_>, graph: &FlowGraph) -> Cfg {
    let mut builder = CfgBuilder {
        body,
        graph,
        block_of: vec![NONE; body.code.len()],
        last: IndexVec::default(),
        blocks: IndexVec::default(),
        edges: Vec::new(),
        ways_in: Vec::new(),
    };
    builder.blocks();
    builder.ways_in.extend(&graph.ways_in);
    builder.ways_in.retain(|way| way.at != body.function.start() || way.reason == WayInReason::Entry);
    for found in [&graph.found, &graph.others] {
        let targets = found.tables.iter().flat_map(|(_, targets)| targets).filter(|at| body.contains(**at));
        builder.ways_in.extend(targets.map(|at| WayIn { at: Svma(*at), reason: WayInReason::JumpTable }));
    }
    builder.blocks.keys().for_each(|block| builder.edges_of(block));
    builder.without_returns();
    let CfgBuilder { blocks, mut edges, mut ways_in, .. } = builder;
    edges.sort_unstable();
    edges.dedup();
    ways_in.sort_unstable();
    ways_in.dedup();
    let unresolved = [&graph.found, &graph.others].into_iter().flat_map(|found| &found.unresolved);
    let unresolved = unresolved.map(|index| Svma(body.code[*index].ip())).collect();
    let entry = blocks.find_sorted(&body.function.start(), |b| b.range.start);
    let proven = |doubt: &Option<Refusal>| doubt.clone().map_or(Ok(()), Err);
    let (ways_in_proven, ways_out_proven) = (proven(&graph.doubts.ways_in), proven(&graph.doubts.ways_out));
    Cfg { blocks, edges: edges.into(), entry, ways_in, unresolved, ways_in_proven, ways_out_proven }
}

struct CfgBuilder<'a> {
    body: &'a DecodedFunction<'a>,
    graph: &'a FlowGraph,
    /// For each instruction, the block that it begins.
    block_of: Vec<BlockId>,
    /// For each block, the index of its last instruction.
    last: IndexVec<BlockId, usize>,
    blocks: IndexVec<BlockId, Block>,
    edges: Vec<Edge>,
    ways_in: Vec<WayIn>,
}

impl CfgBuilder<'_> {
    /// Makes a block of every instruction that begins one and of those after it, up to a transfer of control or the next block.
    fn blocks(&mut self) {
        let marks = &self.graph.marks;
        for first in 0..marks.len() {
            if marks[first] & (LEADER | REACHED) != LEADER | REACHED {
                continue;
            }
            let (mut last, mut instructions) = (first, 1);
            while ControlTransfer::of(&self.body.code[last]) == ControlTransfer::Next
                && let Some(next) = self.index_behind(last)
                && marks[next] & LEADER == 0
            {
                (last, instructions) = (next, instructions + 1);
            }
            let range = Svma(self.body.code[first].ip())..Svma(self.body.code[last].next_ip());
            self.block_of[first] = self.blocks.push(Block { range, instructions });
            self.last.push(last);
        }
    }

    /// Index of the instruction that begins where another one ends.
    fn index_behind(&self, index: usize) -> Option<usize> {
        let at = self.body.code[index].next_ip();
        let follows = self.body.code.get(index + 1).is_some_and(|i| i.ip() == at);
        if follows { Some(index + 1) } else { self.body.index_of(at) }
    }

    fn edges_of(&mut self, from: BlockId) {
        let Some(&last) = self.last.get(from) else { return };
        let i = &self.body.code[last];
        let transfer = ControlTransfer::of(i);
        match transfer {
            ControlTransfer::Branch(to) | ControlTransfer::Transaction(to) | ControlTransfer::Jump(to) => {
                let to = self.inside(to);
                let kind = if matches!(to, EdgeTarget::Block(_)) { EdgeKind::Taken } else { EdgeKind::TailJump };
                self.edges.push(Edge { from, to, kind });
            }
            ControlTransfer::Return => self.edges.push(Edge { from, to: EdgeTarget::Dynamic, kind: EdgeKind::Return }),
            ControlTransfer::Indirect => self.indirect(from, last),
            ControlTransfer::Next
            | ControlTransfer::Stop
            | ControlTransfer::Call(_)
            | ControlTransfer::IndirectCall
            | ControlTransfer::System => {}
        }
        let behind = self.index_behind(last).and_then(|next| self.begun_by(next));
        match behind.map(EdgeTarget::Block) {
            Some(to) if transfer.runs_on() => self.edges.push(Edge { from, to, kind: EdgeKind::FallThrough }),
            Some(to) if transfer.comes_back() => {
                let system = transfer == ControlTransfer::System;
                let reason = if system { WayInReason::SyscallReturn } else { WayInReason::CallReturn };
                self.ways_in.push(WayIn { at: Svma(i.next_ip()), reason });
                self.edges.push(Edge { from, to, kind: EdgeKind::CallReturn });
            }
            None if transfer.runs_on() && !decode::crashes(i) && !self.body.contains(i.next_ip()) => {
                let to = EdgeTarget::Outside(Svma(i.next_ip()));
                self.edges.push(Edge { from, to, kind: EdgeKind::FallThrough });
            }
            _ => {}
        }
    }

    /// The block that an instruction begins.
    fn begun_by(&self, index: usize) -> Option<BlockId> {
        self.block_of.get(index).copied().filter(|block| *block != NONE)
    }

    fn inside(&self, to: u64) -> EdgeTarget {
        let block = self.body.index_of(to).and_then(|index| self.begun_by(index));
        block.map_or(EdgeTarget::Outside(Svma(to)), EdgeTarget::Block)
    }

    fn indirect(&mut self, from: BlockId, jump: usize) {
        let found = [&self.graph.found, &self.graph.others];
        let table = |found: &&crate::flow::traversal::FoundTransfers| {
            let at = found.tables.binary_search_by_key(&jump, |table| table.0).ok()?;
            Some(found.tables[at].1.clone())
        };
        for to in found.iter().find_map(table).into_iter().flatten() {
            self.edges.push(Edge { from, to: self.inside(to), kind: EdgeKind::JumpTable });
        }
        if found.iter().any(|found| found.dynamic.binary_search(&jump).is_ok()) {
            self.edges.push(Edge { from, to: EdgeTarget::Dynamic, kind: EdgeKind::TailJump });
        }
    }

    /// Removes the return edges of calls that never return, and these ways in. Compilers put no code after such a call that control could reach
    /// only by its return. So the callee is examined only if another edge or way in leads to the address after the call, or if padding or a
    /// trap is there.
    fn without_returns(&mut self) {
        let mut others = IndexVec::filled(0u32, self.blocks.len());
        for edge in &self.edges {
            if let EdgeTarget::Block(to) = edge.to
                && let Some(known) = others.get_mut(to)
            {
                *known += 1;
            }
        }
        let ways_in = &self.graph.ways_in;
        let (body, last, blocks) = (self.body, &self.last, &self.blocks);
        let mut removed = Vec::new();
        self.edges.retain(|edge| {
            let (EdgeTarget::Block(to), EdgeKind::CallReturn) = (edge.to, edge.kind) else { return true };
            let call = last.get(edge.from).and_then(|call| body.code.get(*call));
            let next = blocks.get(to).and_then(|to| body.code.get(body.index_of(to.range.start.0)?));
            let (Some(call), Some(next)) = (call, next) else { return true };
            let entered = || ways_in.binary_search_by_key(&next.ip(), |way| way.at.0).is_ok();
            let suspect = others.get(to) != Some(&1)
                || decode::is_nop(next)
                || ControlTransfer::of(next) == ControlTransfer::Stop
                || entered();
            let called = callee(call).filter(|_| suspect);
            let ends = called.is_some_and(|called| halts(next) || never_returns(body.image, called));
            if ends {
                removed.push(to);
            }
            !ends
        });
        let returns = self.edges.iter().filter(|edge| edge.kind == EdgeKind::CallReturn);
        let returned_to: BTreeSet<EdgeTarget> = returns.map(|edge| edge.to).collect();
        removed.retain(|block| !returned_to.contains(&EdgeTarget::Block(*block)));
        let removed: BTreeSet<Svma> = removed.iter().filter_map(|to| Some(blocks.get(*to)?.range.start)).collect();
        self.ways_in.retain(|way| way.reason != WayInReason::CallReturn || !removed.contains(&way.at));
    }
}

/// Whether an instruction ends every program that comes to it: only the kernel may execute `hlt`. Start-up code has it behind its last call.
fn halts(i: &Instruction) -> bool {
    i.code() == Code::Hlt
}
