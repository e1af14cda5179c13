//! A whole function as a value: what the code generator needs to weave a copy of it.

use crate::addr::Svma;
use crate::cfg::{Block, Edge, EdgeKind};
use crate::index::{BlockId, IndexVec};
use crate::point::{FreeRegisters, Site};
use crate::refusal::Refusal;

/// The blocks of a function, with their bytes, and the edges between them. Control enters the function only at blocks that are `entered`,
/// and moves in it only along the edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionBody {
    /// First byte of the function.
    pub function: Svma,
    /// The blocks, sorted by address. Two blocks may overlap, if a branch leads to the byte after a prefix of an instruction.
    pub blocks: IndexVec<BlockId, BodyBlock>,
    /// The edges between these blocks, sorted by the block that they leave.
    pub edges: Vec<Edge>,
    /// Block to which callers come: the first one, or the one after the `endbr64` at the function's first byte if control can
    /// arrive there without executing that instruction. `None` if control arrives at the original address of this block in other ways too,
    /// such as by a jump table of the function.
    pub entry: Option<BlockId>,
    /// The exits of the function. Exit `i` here is exit `i` of the analysis, which lists the [`Site`] of each.
    pub exits: Vec<BodyExit>,
}

/// An exit of a [`FunctionBody`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyExit {
    /// Address of the instruction, or of the end of the code that control runs off.
    pub at: Svma,
    /// Whether the instruction is a return.
    pub is_return: bool,
    /// Registers and flags that are free before the instruction.
    pub free: FreeRegisters,
}

/// A block of a [`FunctionBody`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyBlock {
    /// Address range and number of instructions.
    pub block: Block,
    /// Bytes of the block.
    pub bytes: Vec<u8>,
    /// Registers and flags that are free at its beginning.
    pub free: FreeRegisters,
    /// Ways by which control arrives here at the original address, other than by falling through or by a branch of the function.
    pub entered: Entered,
    /// Site of a springboard at the beginning that lies within the block, or the reason why none fits there.
    pub room: Result<Site, Refusal>,
}

/// Ways by which control arrives at the original address of a block, even if the rest of the function runs as a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entered {
    /// Only falling through and by branches of the function.
    Never,
    /// Besides that, only along one edge: the return of a call, or an entry of a jump table.
    Along {
        /// Block that the edge leaves.
        from: BlockId,
        /// Kind of the edge.
        kind: EdgeKind,
    },
    /// In several ways, or from outside of the function.
    Otherwise,
}

impl FunctionBody {
    /// The edges that leave a block.
    pub fn edges_from(&self, block: BlockId) -> &[Edge] {
        let first = self.edges.partition_point(|edge| edge.from < block);
        let count = self.edges[first..].partition_point(|edge| edge.from == block);
        &self.edges[first..first + count]
    }

    /// The block that begins at an address.
    pub fn block_at(&self, at: Svma) -> Option<BlockId> {
        self.blocks.find_sorted(&at, |b| b.block.range.start)
    }
}
