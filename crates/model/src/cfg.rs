//! The control-flow graph of one function: basic blocks, edges, every way in, and whether these are proven to be all of them.

use crate::addr::{Svma, SvmaRange};
use crate::dominators::Dominators;
use crate::point::Refusal;

/// A stretch of instructions that is entered only at its first and left only at its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Addresses of its bytes.
    pub range: SvmaRange,
    /// Number of instructions.
    pub instructions: u32,
}

/// Kind of a transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// A direct branch.
    Taken,
    /// On to the next instruction. An edge of this kind to an address outside of the function runs off its end.
    FallThrough,
    /// Back from a call or a system call to the instruction behind it.
    CallReturn,
    /// One target of an indirect jump through a table, or through a pointer that may hold the address of any place whose address is taken.
    JumpTable,
    /// A jump, direct or through a pointer, to another function.
    TailJump,
    /// A return.
    Return,
}

/// Destination of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeTarget {
    /// A block of the function, by its index.
    Block(usize),
    /// An address outside of the function.
    Outside(Svma),
    /// The address that the stack or a pointer holds.
    Dynamic,
}

/// A transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Index of the block that it leaves.
    pub from: usize,
    /// Destination.
    pub to: EdgeTarget,
    /// Kind of the transfer.
    pub kind: EdgeKind,
}

/// Reason why control can arrive at a place other than along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WayInReason {
    /// The first byte of the function, which callers call.
    Entry,
    /// The instruction behind the `endbr64` at the entry, to which other functions jump directly.
    BehindEndbr,
    /// The return address of a call.
    CallReturn,
    /// The instruction behind a system call.
    SyscallReturn,
    /// An exception lands there.
    LandingPad,
    /// A jump table of the function leads there.
    JumpTable,
    /// Data holds the address, or an instruction makes it.
    AddressTaken,
    /// A symbol without a type names the place, so that other files may refer to it.
    Named,
    /// Another function jumps there, by a branch or a table, or runs on into it.
    BranchFromElsewhere,
    /// A call leads there: another function begins there, or a part of this one is called.
    Called,
    /// The language's runtime may suspend a call in front of the instruction and continue it there. The place need not begin a block.
    Resumed,
}

/// A place at which control can arrive other than along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WayIn {
    /// Address of the instruction. It begins a block, except where the reason is [`WayInReason::Resumed`].
    pub at: Svma,
    /// Reason why control can arrive there. A place has one way in for each reason.
    pub reason: WayInReason,
}

/// The control-flow graph of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cfg {
    /// The blocks that a way in leads to, directly or along edges, sorted by address.
    pub blocks: Vec<Block>,
    /// Edges, sorted by the block that they leave.
    pub edges: Vec<Edge>,
    /// Index of the block at the function's first byte; `None` if no instruction could be decoded there.
    pub entry: Option<usize>,
    /// Every known way in, sorted by address.
    pub ways_in: Vec<WayIn>,
    /// Indirect jumps whose targets inside of the function are not all known, sorted. Their edges are missing.
    pub unresolved: Vec<Svma>,
    /// `Ok` if it is proven that control arrives in the function by [`Cfg::ways_in`] and along [`Cfg::edges`] alone, else the first reason why
    /// not. A jump through a pointer can lead only to places whose address is taken, so it does not by itself make the ways in unknown.
    pub ways_in_proven: Result<(), Refusal>,
    /// `Ok` if it is proven that control leaves the function by [`Cfg::ways_out`] alone, and does not come back other than by a call.
    pub ways_out_proven: Result<(), Refusal>,
}

impl Cfg {
    /// The edges that leave the function.
    pub fn ways_out(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(|edge| !matches!(edge.to, EdgeTarget::Block(_)))
    }

    /// The edges that leave a block.
    pub fn edges_from(&self, block: usize) -> &[Edge] {
        let first = self.edges.partition_point(|edge| edge.from < block);
        let count = self.edges[first..].partition_point(|edge| edge.from == block);
        &self.edges[first..first + count]
    }

    /// Index of the block that begins at an address.
    pub fn block_at(&self, at: Svma) -> Option<usize> {
        self.blocks.binary_search_by_key(&at, |block| block.range.start).ok()
    }

    /// The reasons why control can arrive at an address other than along an edge.
    pub fn reasons_at(&self, at: Svma) -> impl Iterator<Item = WayInReason> {
        let first = self.ways_in.partition_point(|way| way.at < at);
        self.ways_in[first..].iter().take_while(move |way| way.at == at).map(|way| way.reason)
    }

    /// The blocks that each block leads to, by index.
    pub fn successors(&self) -> Vec<Vec<usize>> {
        let mut successors = vec![Vec::new(); self.blocks.len()];
        for edge in &self.edges {
            if let (Some(of), EdgeTarget::Block(to)) = (successors.get_mut(edge.from), edge.to)
                && !of.contains(&to)
            {
                of.push(to);
            }
        }
        successors
    }

    /// The blocks at which control arrives from outside of the graph: all ways in, except return addresses and jump-table targets that an
    /// edge leads to as well. The entry comes first.
    pub fn roots(&self) -> Vec<usize> {
        let mut entered = vec![false; self.blocks.len()];
        for edge in &self.edges {
            if let EdgeTarget::Block(to) = edge.to
                && matches!(edge.kind, EdgeKind::CallReturn | EdgeKind::JumpTable)
            {
                entered[to] = true;
            }
        }
        let inner = |way: &WayIn| {
            matches!(way.reason, WayInReason::CallReturn | WayInReason::SyscallReturn | WayInReason::JumpTable)
        };
        let mut roots: Vec<usize> = self.entry.into_iter().collect();
        for way in self.ways_in.iter().filter(|way| way.reason != WayInReason::Resumed) {
            let block = self.block_at(way.at).filter(|block| !inner(way) || !entered[*block]);
            roots.extend(block.filter(|block| Some(*block) != self.entry && roots.last() != Some(block)));
        }
        roots
    }

    /// The dominators of the blocks, with all of [`Cfg::roots`] as entries.
    pub fn dominators(&self) -> Dominators {
        Dominators::new(&self.successors(), &self.roots())
    }
}
