//! Answers about the code of a target: functions in detail, and what lies at an address.

use std::sync::Arc;

use ingraft_model::{Avma, Cfg, Offset, Pid, PointKind, Refusal, Svma};

use crate::{FunctionRef, TargetSpec};

/// Largest number of functions that one request describes in detail.
pub const INSPECTED_MAX: usize = 20;

/// Request for the code of functions.
#[derive(Clone, Debug)]
pub struct InspectRequest {
    /// The process.
    pub target: TargetSpec,
    /// A name, a glob, `MODULE:GLOB` or `MODULE+0xOFFSET`.
    pub pattern: String,
    /// Whether the answer has instructions.
    pub instructions: bool,
}

/// Functions of a target in detail.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The process.
    pub pid: Pid,
    /// The functions, in the order of modules and offsets.
    pub functions: Vec<InspectedFunction>,
}

/// A function in detail.
#[derive(Clone, Debug)]
pub struct InspectedFunction {
    /// Module, name and offset.
    pub function: FunctionRef,
    /// Size in bytes, parts included.
    pub size: u64,
    /// Address of the first byte in the process.
    pub address: Avma,
    /// Control-flow graph, with addresses as in the file.
    pub cfg: Cfg,
    /// Names of the destinations outside of the function to which edges of the graph lead.
    pub outside: Vec<(Svma, String)>,
    /// Points, in the order of kinds and offsets.
    pub points: Vec<InspectedPoint>,
    /// Original instructions, in order of address; empty unless asked for.
    pub instructions: Vec<CodeInstruction>,
    /// Instructions of woven code, in the order of points, springboards before the rest; empty unless asked for.
    pub woven: Vec<WovenInstruction>,
    /// Name and process id of the engine that has woven code into the function; `None` if nothing is woven there.
    pub holder: Option<String>,
}

/// Method by which control gets from the text to woven code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Springboard {
    /// By a jump of five bytes at the point.
    Jump,
    /// By a jump of two bytes to an island.
    Island,
    /// By the call at the point, with another displacement.
    Call,
    /// By a jump over the copy of the instruction, which another point displaces.
    Copy,
}

/// A point of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedPoint {
    /// Kind of the point.
    pub kind: PointKind,
    /// Offset of the instruction of the point in the function.
    pub at: Offset,
    /// Method by which the point can be woven, or the reason why it cannot.
    pub springboard: Result<Springboard, Refusal>,
    /// Whether an engine has woven code at the point.
    pub woven: bool,
}

/// An original instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeInstruction {
    /// Address in the file.
    pub at: Svma,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The instruction in the syntax of Intel's manuals.
    pub text: String,
    /// Path of the source file and number of the line; `None` if they are not known.
    pub source: Option<(Arc<str>, u64)>,
}

/// Part of the code that an engine has put into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodePart {
    /// The jump in the text that leads to woven code.
    Springboard,
    /// A jump in the text near a springboard: an island, or a redirected branch.
    Island,
    /// The code that leads threads without counters of their own to the slow routine.
    SlowPath,
    /// The beginning of the code of a point, up to the slot.
    Base,
    /// The place that holds the only counter, or a jump to the first snippet.
    Slot,
    /// A snippet.
    Snippet,
    /// The form of a snippet for threads without counters of their own.
    SnippetWithoutShard,
    /// The code that restores registers and flags.
    Restore,
    /// Copies of displaced instructions, and the jump back to the text.
    Relocated,
    /// Copies of instructions that are displaced only to make room.
    Room,
    /// A routine that several points share.
    Routine,
    /// The code of a point of which nothing more is recorded.
    Point,
    /// The signature at the start of an arena.
    Signature,
    /// Room of an arena that belongs to no point.
    Free,
    /// The data area.
    Data,
}

/// An instruction of woven code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenInstruction {
    /// Kind of the point; `None` if it is not recorded.
    pub kind: Option<PointKind>,
    /// Offset of the instruction of the point in the function.
    pub point: Offset,
    /// Part of the code.
    pub part: CodePart,
    /// Metric and focus of the pair of a snippet, as `METRIC@FOCUS`; `None` in other parts, and if it is not known.
    pub pair: Option<String>,
    /// Address in the process.
    pub at: Avma,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The instruction in the syntax of Intel's manuals.
    pub text: String,
    /// Offset in the function at which a thread goes on if the code is removed; `None` if there is none.
    pub original: Option<Offset>,
}

/// Contents of an address. For generated code, the module, the function, the block and the line are those of the original instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The process.
    pub pid: Pid,
    /// The address.
    pub address: Avma,
    /// Path of the mapped file, or the kernel's name of the memory; empty for memory without a name, `None` if nothing is mapped.
    pub mapping: Option<String>,
    /// The place in a module; `None` if the memory has no file that could be analysed.
    pub place: Option<ModulePlace>,
    /// The code that an engine has put there.
    pub generated: Option<GeneratedPlace>,
    /// One sentence on what is not known and why; empty if there is nothing to say.
    pub note: String,
}

/// A place in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModulePlace {
    /// Base name of the mapped file.
    pub module: String,
    /// Address in the file.
    pub at: Svma,
    /// Function that contains the address.
    pub function: Option<FunctionRef>,
    /// Offset of the basic block in the function.
    pub block: Option<Offset>,
    /// Path of the source file and number of the line; `None` if they are not known.
    pub source: Option<(Arc<str>, u64)>,
}

/// A place in generated code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedPlace {
    /// Name and process id of the engine that made the code; empty if they are not known.
    pub holder: String,
    /// Part of the code.
    pub part: CodePart,
    /// Kind of the point; `None` if it is not recorded, or if the code belongs to no single point.
    pub kind: Option<PointKind>,
    /// Address of the instruction of the point; `None` if the code belongs to no single point.
    pub point: Option<Avma>,
    /// Metric and focus of the pair of a snippet, as `METRIC@FOCUS`.
    pub pair: Option<String>,
    /// Address at which a thread goes on if the code is removed.
    pub original: Option<Avma>,
}
