//! The control-flow graph of one function: its basic blocks, its edges and every way in. It also says whether the known ways in and out are
//! proven to be all.

use crate::addr::{Svma, SvmaRange};
use crate::index::{BlockId, EdgeId, IndexVec, Key};
use crate::refusal::Refusal;

/// A run of instructions that control enters only at the first and leaves only at the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Addresses of the block's bytes.
    pub range: SvmaRange,
    /// Number of instructions.
    pub instructions: u32,
}

/// Numbers of events in one execution of a block, and the address of its last instruction. An instruction with a `rep` prefix counts as one
/// execution with one access to each operand, whatever its repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEvents {
    /// Address of the last instruction.
    pub last: Svma,
    /// Number of instructions.
    pub instructions: u32,
    /// Number of calls.
    pub calls: u32,
    /// Number of branches: jumps, conditional or not, direct or not. Calls and returns do not count.
    pub branches: u32,
    /// Number of memory operands that are read, those of the stack included.
    pub reads: u32,
    /// Number of memory operands that are written, those of the stack included.
    pub writes: u32,
}

/// Names of the kinds of events that [`BlockEvents`] counts, in the order of [`BlockEvents::numbers`].
pub const EVENT_NAMES: [&str; 5] = ["instructions", "calls", "branches", "memory-reads", "memory-writes"];

impl BlockEvents {
    /// The numbers of events, in the order of [`EVENT_NAMES`].
    pub fn numbers(&self) -> [u32; EVENT_NAMES.len()] {
        [self.instructions, self.calls, self.branches, self.reads, self.writes]
    }
}

/// Kind of a transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// A direct branch.
    Taken,
    /// Control passes to the next instruction. If the edge leads outside of the function, control runs off the function's end.
    FallThrough,
    /// A call or a system call returns to the next instruction.
    CallReturn,
    /// One possible target of an indirect jump: an entry of its jump table or, for a jump through a pointer, any place whose address is
    /// taken.
    JumpTable,
    /// A jump, direct or through a pointer, to another function.
    TailJump,
    /// A return.
    Return,
}

impl EdgeKind {
    /// The word for the kind in records.
    pub fn word(self) -> &'static str {
        match self {
            EdgeKind::Taken => "taken",
            EdgeKind::FallThrough => "fall-through",
            EdgeKind::CallReturn => "call-return",
            EdgeKind::JumpTable => "jump-table",
            EdgeKind::TailJump => "tail-jump",
            EdgeKind::Return => "return",
        }
    }
}

/// Destination of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeTarget {
    /// A block of the function.
    Block(BlockId),
    /// An address outside of the function.
    Outside(Svma),
    /// The address that the stack or a pointer holds.
    Dynamic,
}

/// A transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Block at whose end the transfer happens.
    pub from: BlockId,
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
    /// The instruction after the `endbr64` at the entry. Other functions jump to it directly.
    BehindEndbr,
    /// The return address of a call.
    CallReturn,
    /// The instruction after a system call.
    SyscallReturn,
    /// The landing pad of an exception.
    LandingPad,
    /// A jump table of the function leads there.
    JumpTable,
    /// Data holds the address, or an instruction makes it.
    AddressTaken,
    /// A symbol without a type names the place, so that other files may refer to it.
    Named,
    /// Another function jumps there, by a branch or a table, or runs on into it.
    BranchFromElsewhere,
    /// A call has this address as its target: another function begins here, or a part of this function is called.
    Called,
    /// The language's runtime may suspend a call before the instruction and resume it there. The place need not begin a block.
    Resumed,
}

impl WayInReason {
    /// The stable word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            WayInReason::Entry => "entry",
            WayInReason::BehindEndbr => "behind-endbr",
            WayInReason::CallReturn => "call-return",
            WayInReason::SyscallReturn => "syscall-return",
            WayInReason::LandingPad => "landing-pad",
            WayInReason::JumpTable => "jump-table",
            WayInReason::AddressTaken => "address-taken",
            WayInReason::Named => "named",
            WayInReason::BranchFromElsewhere => "branch-from-elsewhere",
            WayInReason::Called => "called",
            WayInReason::Resumed => "resumed",
        }
    }
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
    /// Blocks that control reaches from a way in, directly or along edges, sorted by address.
    pub blocks: IndexVec<BlockId, Block>,
    /// Edges, sorted by the block that they leave.
    pub edges: IndexVec<EdgeId, Edge>,
    /// Block at the function's first byte; `None` if no instruction could be decoded there.
    pub entry: Option<BlockId>,
    /// Every known way in, sorted by address.
    pub ways_in: Vec<WayIn>,
    /// Indirect jumps whose targets inside of the function are not all known, sorted. Their edges are missing.
    pub unresolved: Vec<Svma>,
    /// `Ok` if it is proven that control enters the function only by [`Cfg::ways_in`] and moves in it only along [`Cfg::edges`]; else the
    /// first reason against the proof. A jump through a pointer leads only to places whose address is taken, so it does not by itself make
    /// the ways in unknown.
    pub ways_in_proven: Result<(), Refusal>,
    /// `Ok` if it is proven that control leaves the function only by [`Cfg::ways_out`], and returns into it only from calls.
    pub ways_out_proven: Result<(), Refusal>,
}

impl Cfg {
    /// The edges that leave the function.
    pub fn ways_out(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(|edge| !matches!(edge.to, EdgeTarget::Block(_)))
    }

    /// The edges that leave a block.
    pub fn edges_from(&self, block: BlockId) -> impl ExactSizeIterator<Item = (EdgeId, &Edge)> {
        let first = self.edges.partition_point(|edge| edge.from < block).index();
        let rest = &self.edges.as_slice()[first..];
        let count = rest.partition_point(|edge| edge.from == block);
        rest[..count].iter().enumerate().map(move |(n, edge)| (EdgeId::at(first + n), edge))
    }

    /// The block that begins at an address.
    pub fn block_at(&self, at: Svma) -> Option<BlockId> {
        self.blocks.find_sorted(&at, |block| block.range.start)
    }

    /// The reasons why control can arrive at an address other than along an edge.
    pub fn reasons_at(&self, at: Svma) -> impl Iterator<Item = WayInReason> {
        let first = self.ways_in.partition_point(|way| way.at < at);
        self.ways_in[first..].iter().take_while(move |way| way.at == at).map(|way| way.reason)
    }

    /// Returns the blocks to which each block has an edge.
    pub fn successors(&self) -> IndexVec<BlockId, Vec<BlockId>> {
        let mut successors = IndexVec::filled(Vec::new(), self.blocks.len());
        for edge in &self.edges {
            if let (Some(of), EdgeTarget::Block(to)) = (successors.get_mut(edge.from), edge.to)
                && !of.contains(&to)
            {
                of.push(to);
            }
        }
        successors
    }

    /// The blocks at which control arrives from outside of the graph. These are all ways in, except return addresses and jump-table targets
    /// to which an edge leads as well. The entry comes first.
    pub fn roots(&self) -> Vec<BlockId> {
        let mut entered = IndexVec::filled(false, self.blocks.len());
        for edge in &self.edges {
            if let EdgeTarget::Block(to) = edge.to
                && matches!(edge.kind, EdgeKind::CallReturn | EdgeKind::JumpTable)
            {
                entered.set(to, true);
            }
        }
        let inner = |way: &WayIn| {
            matches!(way.reason, WayInReason::CallReturn | WayInReason::SyscallReturn | WayInReason::JumpTable)
        };
        let mut roots: Vec<BlockId> = self.entry.into_iter().collect();
        for way in self.ways_in.iter().filter(|way| way.reason != WayInReason::Resumed) {
            let block = self.block_at(way.at).filter(|block| !inner(way) || entered.get(*block) != Some(&true));
            roots.extend(block.filter(|block| Some(*block) != self.entry && roots.last() != Some(block)));
        }
        roots
    }
}
