//! Records about code: functions in detail, summaries of modules, and what lies at an address.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{FunctionId, Host};

/// A function of `inspect`; records about its parts follow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Graph {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    pub(crate) size: u64,
    /// Address of the first byte in the process.
    pub(crate) address: String,
    /// Offset of the block at the entry; null if no instruction could be decoded there.
    pub(crate) entry: Option<String>,
    /// Whether the ways in are proven to be all.
    pub(crate) ways_in_proven: bool,
    /// Reason why they are not; null if they are.
    pub(crate) ways_in_why_not: Option<String>,
    /// Whether the ways out are proven to be all.
    pub(crate) ways_out_proven: bool,
    /// Reason why they are not; null if they are.
    pub(crate) ways_out_why_not: Option<String>,
    /// Offsets of indirect jumps whose edges are not all known.
    pub(crate) unresolved: Vec<String>,
    /// Engine that has woven code into the function; null if nothing is woven there.
    pub(crate) holder: Option<String>,
}

/// A point of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// `entry`, `exit`, `call` or `block`.
    pub(crate) kind: &'static str,
    /// Offset in the function of the instruction of the point.
    pub(crate) at: String,
    /// `in-place` or `refused`.
    pub(crate) how: &'static str,
    /// `jump`, `island`, `call` or `copy`; null if the point is refused.
    pub(crate) springboard: Option<&'static str>,
    /// Reason of the refusal as a stable word; null if there is none.
    pub(crate) reason: Option<String>,
    pub(crate) why_not: Option<String>,
    /// Whether an engine has woven code at the point.
    pub(crate) woven: bool,
}

/// A basic block of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Block {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// Offset in the function of the first byte.
    pub(crate) block: String,
    pub(crate) size: u64,
    pub(crate) instructions: u32,
    /// Offset of the header of the innermost loop; null outside of loops.
    pub(crate) header: Option<String>,
    /// Number of loops around the block; left out in profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u32>,
    /// Number of arrivals at the block; null if they were not counted.
    pub(crate) count: Option<i64>,
    /// Whether the block has run: `yes`, `no` or `unknown`; left out unless in a coverage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ran: Option<&'static str>,
    /// Reason why the counts of the function are not exact; left out if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
}

/// A loop of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ControlLoop {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// Offset of the block at which control enters.
    pub(crate) header: String,
    /// Number of loops around this one.
    pub(crate) depth: u32,
    /// Offset of the header of the loop around this one; null for an outermost loop.
    pub(crate) parent: Option<String>,
    /// Offsets of all blocks of the loop.
    pub(crate) body: Vec<String>,
    /// Offsets of the blocks that lead back to the header.
    pub(crate) latches: Vec<String>,
    /// Offsets of the blocks at which control enters; more than one if the loop is irreducible.
    pub(crate) entries: Vec<String>,
}

/// A place at which control can arrive other than along an edge.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WayIn {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// Offset in the function.
    pub(crate) at: String,
    pub(crate) reason: &'static str,
}

/// An original instruction.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CodeLine {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// Offset in the function.
    pub(crate) at: String,
    /// The bytes, in hexadecimal.
    pub(crate) bytes: String,
    pub(crate) text: String,
    /// Path of the source file; null if it is not known.
    pub(crate) file: Option<String>,
    /// Number of the source line; null if it is not known.
    pub(crate) line: Option<u64>,
}

/// An instruction of woven code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WovenLine {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// Kind of the point; null if it is not recorded.
    pub(crate) kind: Option<&'static str>,
    /// Offset in the function of the instruction of the point.
    pub(crate) point: String,
    pub(crate) part: &'static str,
    /// Metric and focus of a snippet, as `METRIC@FOCUS`; null in other parts, and if they are not known.
    pub(crate) pair: Option<String>,
    /// Address in the process.
    pub(crate) address: String,
    pub(crate) bytes: String,
    pub(crate) text: String,
    /// Offset in the function at which a thread goes on if the code is removed; null if there is none.
    pub(crate) original: Option<String>,
}

/// A module of `functions --summary`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    /// Number of functions.
    pub(crate) functions: u64,
    pub(crate) entry: KindSummary,
    pub(crate) exit: KindSummary,
    pub(crate) call: KindSummary,
    pub(crate) block: KindSummary,
    pub(crate) edge: KindSummary,
}

/// The functions of a module by the method of their points of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct KindSummary {
    /// Number of points.
    pub(crate) points: u64,
    /// Number of functions all of whose points are in place.
    pub(crate) in_place: u64,
    /// Number of functions all of whose points can be reached, some of them only in a copy of the function.
    pub(crate) relocated: u64,
    /// Number of functions some of whose points are refused.
    pub(crate) partly: u64,
    /// Number of functions all of whose points are refused.
    pub(crate) refused: u64,
    /// Number of functions without such a point.
    pub(crate) none: u64,
    /// Number of functions by the first reason why not all of their points can be reached, as a stable word.
    pub(crate) reasons: BTreeMap<String, u64>,
}

/// Contents of an address.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Location {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) address: String,
    /// `function`, `module`, `generated`, `memory` or `nothing`.
    pub(crate) what: &'static str,
    /// Path of the mapped file, or the kernel's name of the memory; empty for memory without a name, null if nothing is mapped.
    pub(crate) mapping: Option<String>,
    pub(crate) module: Option<String>,
    /// Address in the file.
    pub(crate) file_address: Option<String>,
    pub(crate) function: Option<String>,
    /// Offset of the function as `nm` prints it.
    pub(crate) offset: Option<String>,
    /// Offset in the function.
    pub(crate) at: Option<String>,
    /// Offset in the function of the block.
    pub(crate) block: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u64>,
    /// The generated code; null if there is none.
    pub(crate) generated: Option<Generated>,
    /// Facts that are not known, and why; null if there is nothing to say.
    pub(crate) note: Option<String>,
}

/// A place in generated code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Generated {
    /// Engine that made the code; null if it is not known.
    pub(crate) holder: Option<String>,
    pub(crate) part: &'static str,
    pub(crate) kind: Option<&'static str>,
    /// Address of the instruction of the point; null if the code belongs to no single point.
    pub(crate) point: Option<String>,
    pub(crate) pair: Option<String>,
    /// Address at which a thread goes on if the code is removed.
    pub(crate) original: Option<String>,
}
