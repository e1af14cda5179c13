//! Answers about the code of a target: functions in detail, and what lies at an address.

use std::num::NonZeroU32;
use std::sync::Arc;

use ingraft_model::{Avma, BlockId, Cfg, EdgeKind, EdgeTarget, Loop, Loops, Offset, Pid, PointKind, Svma, WayInReason};
use ingraft_profile::{PathBegin, PathEnd};

use crate::{NamedFunction, TargetSpec, WhyNot};

/// Largest number of functions that one request describes in detail.
pub const INSPECTED_MAX: usize = 20;

/// Request for the code of functions.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectRequest {
    /// The process.
    pub target: TargetSpec,
    /// A name, a glob, `MODULE:GLOB` or `MODULE+0xOFFSET`.
    pub pattern: String,
    /// Whether the answer has instructions.
    pub instructions: bool,
    /// The path that the answer describes; `None` for none.
    pub path: Option<PathChoice>,
}

/// A path of a function, among all its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// Number of the path.
    pub number: u64,
    /// The length of the paths, see [`PathsOptions::longest`](crate::PathsOptions::longest).
    pub longest: Option<NonZeroU32>,
}

/// A way of control through a function without repetitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedPath {
    /// Number of the path.
    pub number: u64,
    /// Number of different paths of the function.
    pub possible: u64,
    /// Beginning of the path.
    pub begins: PathBegin,
    /// Offsets of the blocks, in the order of their execution.
    pub blocks: Vec<Offset>,
    /// End of the path.
    pub ends: PathEnd,
    /// Offset of the block at which the next path begins, if the path ends at a back edge or at an edge at which paths were cut.
    pub next: Option<Offset>,
}

/// Functions of a target in detail.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The process.
    pub pid: Pid,
    /// The functions, in the order of modules and offsets.
    pub functions: Vec<InspectedFunction>,
}

/// A function in detail. Offsets are distances from its first byte.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InspectedFunction {
    /// Module, name and offset.
    pub function: NamedFunction,
    /// Size in bytes, parts included.
    pub size: u64,
    /// Address of the first byte in the process.
    pub address: Avma,
    /// Offset of the block at the entry; `None` if no instruction could be decoded there.
    pub entry: Option<Offset>,
    /// Offsets of indirect jumps whose edges are not all known.
    pub unresolved: Vec<Offset>,
    /// Reason why the ways in are not proven to be all; `None` if they are.
    pub ways_in_unproven: Option<WhyNot>,
    /// Reason why the ways out are not proven to be all; `None` if they are.
    pub ways_out_unproven: Option<WhyNot>,
    /// Name and process id of the engine that has woven code into the function; `None` if nothing is woven there.
    pub holder: Option<String>,
    /// Points, in the order of kinds and offsets.
    pub points: Vec<InspectedPoint>,
    /// Basic blocks, in order of address.
    pub blocks: Vec<BasicBlock>,
    /// Transfers of control between blocks, and out of the function.
    pub edges: Vec<ControlEdge>,
    /// Loops, outer ones before those in them.
    pub loops: Vec<ControlLoop>,
    /// Places at which control can arrive other than along an edge.
    pub ways_in: Vec<WayIntoCode>,
    /// Original instructions, in order of address; empty unless asked for.
    pub instructions: Vec<CodeInstruction>,
    /// Instructions of woven code, in the order of points, springboards before the rest; empty unless asked for.
    pub woven: Vec<WovenInstruction>,
    /// The path that was asked for.
    pub path: Option<InspectedPath>,
}

/// A basic block of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicBlock {
    /// Offset of the first byte.
    pub offset: Offset,
    /// Size in bytes.
    pub size: u64,
    /// Number of instructions.
    pub instructions: u32,
    /// Offset of the header of the innermost loop; `None` outside of loops.
    pub header: Option<Offset>,
    /// Number of loops around the block.
    pub depth: u32,
}

/// A transfer of control at the end of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlEdge {
    /// Offset of the block that the edge leaves.
    pub from: Offset,
    /// Kind of the transfer.
    pub kind: EdgeKind,
    /// Offset of the block to which the edge leads; `None` if that is outside of the function.
    pub to: Option<Offset>,
    /// Name of the destination outside of the function, if the code states it.
    pub outside: Option<String>,
}

/// A loop of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlLoop {
    /// Offset of the block at which control enters.
    pub header: Offset,
    /// Number of loops around this one.
    pub depth: u32,
    /// Offset of the header of the loop around this one; `None` for an outermost loop.
    pub parent: Option<Offset>,
    /// Offsets of all blocks of the loop.
    pub body: Vec<Offset>,
    /// Offsets of the blocks that lead back to the header.
    pub latches: Vec<Offset>,
    /// Offsets of the blocks at which control enters; more than one if the loop is irreducible.
    pub entries: Vec<Offset>,
}

/// A place at which control can arrive other than along an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayIntoCode {
    /// Offset of the place.
    pub offset: Offset,
    /// Reason why control can arrive there.
    pub reason: WayInReason,
}

impl InspectedFunction {
    /// A function with its control flow, without points and instructions. `outside` names the places outside of the function to which edges
    /// lead.
    pub fn new(function: NamedFunction, cfg: &Cfg, outside: impl Fn(Svma) -> String) -> Self {
        let first = function.offset;
        let offset = |at: Svma| Offset::between(first.0, at.0);
        let start = |block: BlockId| cfg.blocks.get(block).map(|block| offset(block.range.start));
        let starts = |blocks: &[BlockId]| blocks.iter().filter_map(|block| start(*block)).collect();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let loops = Loops::of(cfg);
        let blocks = cfg.blocks.entries().map(|(id, block)| {
            let around = loops.innermost(id).and_then(|at| loops.all().get(at));
            BasicBlock {
                offset: offset(block.range.start),
                size: block.range.end.0.saturating_sub(block.range.start.0),
                instructions: block.instructions,
                header: around.and_then(|one| start(one.header)),
                depth: around.map_or(0, |one| number(one.depth + 1)),
            }
        });
        let edges = cfg.edges.iter().filter_map(|edge| {
            let (to, outside) = match edge.to {
                EdgeTarget::Block(block) => (Some(start(block)?), None),
                EdgeTarget::Outside(at) => (None, Some(outside(at))),
                EdgeTarget::Dynamic => (None, None),
            };
            Some(ControlEdge { from: start(edge.from)?, kind: edge.kind, to, outside })
        });
        let control_loop = |one: &Loop<BlockId>| {
            Some(ControlLoop {
                header: start(one.header)?,
                depth: number(one.depth),
                parent: one.parent.and_then(|at| loops.all().get(at)).and_then(|parent| start(parent.header)),
                body: starts(&one.body),
                latches: starts(&one.latches),
                entries: starts(&one.entries),
            })
        };
        let control_loops = loops.all().iter().filter_map(control_loop);
        let ways_in = cfg.ways_in.iter().map(|way| WayIntoCode { offset: offset(way.at), reason: way.reason });
        InspectedFunction {
            entry: cfg.entry.and_then(start),
            unresolved: cfg.unresolved.iter().map(|at| offset(*at)).collect(),
            ways_in_unproven: cfg.ways_in_proven.clone().err().map(WhyNot::from),
            ways_out_unproven: cfg.ways_out_proven.clone().err().map(WhyNot::from),
            blocks: blocks.collect(),
            edges: edges.collect(),
            loops: control_loops.collect(),
            ways_in: ways_in.collect(),
            function,
            ..InspectedFunction::default()
        }
    }
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

impl Springboard {
    /// The stable word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Springboard::Jump => "jump",
            Springboard::Island => "island",
            Springboard::Call => "call",
            Springboard::Copy => "copy",
        }
    }
}

/// A point of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedPoint {
    /// Kind of the point.
    pub kind: PointKind,
    /// Offset of the instruction of the point in the function.
    pub at: Offset,
    /// Method by which the point can be woven, or the reason why it cannot.
    pub springboard: Result<Springboard, WhyNot>,
    /// Whether an engine has woven code at the point.
    pub woven: bool,
}

/// An original instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeInstruction {
    /// Offset in the function.
    pub at: Offset,
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
    /// A part of which this version does not know the name.
    Unknown,
}

impl CodePart {
    /// The stable word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            CodePart::Springboard => "springboard",
            CodePart::Island => "island",
            CodePart::SlowPath => "slow-path",
            CodePart::Base => "base",
            CodePart::Slot => "slot",
            CodePart::Snippet => "snippet",
            CodePart::SnippetWithoutShard => "snippet-without-shard",
            CodePart::Restore => "restore",
            CodePart::Relocated => "relocated",
            CodePart::Room => "room",
            CodePart::Routine => "routine",
            CodePart::Point => "point",
            CodePart::Signature => "signature",
            CodePart::Free => "free",
            CodePart::Data => "data",
            CodePart::Unknown => "unknown",
        }
    }
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModulePlace {
    /// Base name of the mapped file.
    pub module: String,
    /// Address in the file.
    pub at: Svma,
    /// Function that contains the address.
    pub function: Option<NamedFunction>,
    /// Offset of the basic block in the function.
    pub block: Option<Offset>,
    /// Path of the source file and number of the line; `None` if they are not known.
    pub source: Option<(Arc<str>, u64)>,
    /// Names of the inlined functions whose code is at the address, innermost first, by the debugging information. The last of them is inlined
    /// into `function`.
    pub inlined: Vec<String>,
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

#[cfg(test)]
mod tests {
    use ingraft_model::{Block, Edge, Refusal, WayIn};

    use super::*;

    #[test]
    fn offsets_are_distances_from_the_first_byte() {
        let block = |start, end| Block { range: Svma(start)..Svma(end), instructions: 1 };
        let edge = |from, to, kind| Edge { from: BlockId(from), to, kind };
        let cfg = Cfg {
            blocks: vec![block(0xf0, 0x100), block(0x100, 0x110)].into(),
            edges: vec![
                edge(0, EdgeTarget::Outside(Svma(0x900)), EdgeKind::TailJump),
                edge(1, EdgeTarget::Block(BlockId(0)), EdgeKind::Taken),
                edge(1, EdgeTarget::Block(BlockId(1)), EdgeKind::Taken),
                edge(1, EdgeTarget::Dynamic, EdgeKind::Return),
            ]
            .into(),
            entry: Some(BlockId(1)),
            ways_in: vec![WayIn { at: Svma(0x100), reason: WayInReason::Entry }],
            unresolved: vec![Svma(0x10c)],
            ways_in_proven: Ok(()),
            ways_out_proven: Err(Refusal::StraddlesPages),
        };
        let function = NamedFunction { module: "m".to_owned(), function: "f".to_owned(), offset: Svma(0x100) };
        let function = InspectedFunction::new(function, &cfg, |at| format!("g at {at}"));
        assert_eq!((function.entry, &function.unresolved[..]), (Some(Offset(0)), &[Offset(12)][..]));
        assert!(function.ways_in_unproven.is_none() && function.ways_out_unproven.is_some());
        let blocks = function.blocks.iter().map(|block| (block.offset.0, block.size, block.depth, block.header));
        assert_eq!(blocks.collect::<Vec<_>>(), [(-16, 16, 0, None), (0, 16, 1, Some(Offset(0)))]);
        let edges = function.edges.iter().map(|edge| (edge.from.0, edge.to, edge.outside.as_deref()));
        let expected = [
            (-16, None, Some("g at 0x900")),
            (0, Some(Offset(-16)), None),
            (0, Some(Offset(0)), None),
            (0, None, None),
        ];
        assert_eq!(edges.collect::<Vec<_>>(), expected);
    }
}
