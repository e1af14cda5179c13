//! The profile of one process as a value: how often the blocks and edges of its functions were executed.

use ingraft_model::{EdgeKind, Svma};

/// Counts of the blocks and edges of functions of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedProfile {
    /// Name of the machine.
    pub host: String,
    /// Number of the process.
    pub pid: u32,
    /// Path of the program.
    pub program: String,
    /// Time at which counting began, in nanoseconds of Unix time.
    pub began_ns: u64,
    /// Time at which counting ended, in nanoseconds of Unix time.
    pub ended_ns: u64,
    /// Files whose functions are profiled.
    pub modules: Vec<ModuleInfo>,
    /// Profiled functions.
    pub functions: Vec<FunctionProfile>,
    /// Functions that were asked for and are not profiled.
    pub refused: Vec<Refused>,
    /// Calls in progress when counting began, and calls that counting left in progress, as far as they were corrected for.
    pub corrected: (u64, u64),
}

/// A file that the process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Name of the module, as in lists of functions.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// The file's build-id; empty if it has none.
    pub build_id: Vec<u8>,
    /// Distance from the addresses in the file to those in the process.
    pub bias: u64,
    /// Lowest and highest (exclusive) address of the mapped segments, as in the file.
    pub mapped: (u64, u64),
}

/// Counts of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionProfile {
    /// Index of its module.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Length in bytes.
    pub size: u64,
    /// Number of arrivals from outside at the function's first byte.
    pub calls: u64,
    /// The basic blocks, sorted by address.
    pub blocks: Vec<BlockCount>,
    /// The edges, sorted by the block that they leave.
    pub edges: Vec<EdgeCount>,
    /// The calls that the function makes, sorted by the block that they end.
    pub call_sites: Vec<CallCount>,
    /// Reason why the counts are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
}

/// A basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCount {
    /// Address of the first byte.
    pub start: Svma,
    /// Length in bytes.
    pub size: u32,
    /// Number of instructions.
    pub instructions: u32,
    /// Address of the last instruction.
    pub last: Svma,
    /// Number of executions.
    pub count: u64,
}

/// An edge out of a block. A call ends its block, and the edge behind the call counts its returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeCount {
    /// Index of the block that it leaves.
    pub from: usize,
    /// Destination of the transfer.
    pub to: EdgeEnd,
    /// Kind of the transfer.
    pub kind: EdgeKind,
    /// Number of passages; `None` if it is not known.
    pub count: Option<u64>,
}

/// Destination of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeEnd {
    /// Block of the function, by its index.
    Block(usize),
    /// Address in the file, outside of the function.
    Outside(Svma),
    /// An address that the stack or a pointer holds.
    Dynamic,
}

/// A call that the function makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// Index of the block that it ends.
    pub block: usize,
    /// The called function.
    pub callee: Callee,
    /// Number of executions.
    pub count: u64,
}

/// The function that a call leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callee {
    /// Function at an address in the same file.
    Own(Svma),
    /// Function of a module, by the module's index, at an address in its file.
    Other {
        /// Index of the module.
        module: usize,
        /// Address in its file.
        at: Svma,
    },
    /// Function of another module, known by its name only.
    Named(String),
    /// A function whose address a register or memory holds.
    Indirect,
    /// The kernel.
    System,
}

/// A function without a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Index of its module.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Reason.
    pub why: String,
}
