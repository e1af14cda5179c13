//! The control flow of one function as values: blocks, edges and points.

use ingraft_model::{PointKind, Refusal, Svma, SvmaRange};

/// A stretch of instructions that is entered only at its first and left only at its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Addresses of its bytes.
    pub range: SvmaRange,
    /// Number of instructions.
    pub instructions: u32,
    /// Whether exceptions land at its first byte.
    pub landing_pad: bool,
}

/// How control goes from a block to another or out of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// A direct branch within the function.
    Taken,
    /// On to the next instruction.
    FallThrough,
    /// Back from a call to the instruction behind it.
    CallFallThrough,
    /// One target of an indirect jump through a table.
    JumpTable,
    /// A jump, direct or through a pointer, to another function.
    TailJump,
    /// A return.
    Return,
}

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeTarget {
    /// To a block of the function, by its index.
    Block(usize),
    /// To an address outside of the function.
    Outside(Svma),
    /// To where a return address or pointer says.
    Dynamic,
}

/// A transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Index of the block that it leaves.
    pub from: usize,
    /// Where it leads.
    pub to: EdgeTarget,
    /// How.
    pub kind: EdgeKind,
}

/// A place of a function where snippets could be woven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Kind of the place.
    pub kind: PointKind,
    /// Its instruction.
    pub at: Svma,
    /// Why it cannot be woven; `None` if it can.
    pub refusal: Option<Refusal>,
}

/// The control flow of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionCode {
    /// Blocks, sorted by address. Bytes that nothing reaches belong to none.
    pub blocks: Vec<Block>,
    /// Edges, sorted by the block that they leave.
    pub edges: Vec<Edge>,
    /// Entry, exits and calls, sorted by address.
    pub points: Vec<Point>,
    /// Indirect jumps whose targets are not all known.
    pub unresolved: Vec<Svma>,
}

impl FunctionCode {
    /// Its points of one kind.
    pub fn points_of(&self, kind: PointKind) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |p| p.kind == kind)
    }
}
