//! Records about code: functions in detail, summaries of modules, and what lies at an address.

use std::collections::BTreeMap;

use ingraft_api as api;
use ingraft_model::{Offset, Pid};
use serde::Serialize;

use super::paths::{begin_word, end_word};
use super::{EdgeObject, Host, RecordedFunction, bytes, hex, signed_hex};

/// A function of `inspect`; records about its parts follow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GraphObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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
pub(crate) struct PointObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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
pub(crate) struct BlockObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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
pub(crate) struct LoopObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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
pub(crate) struct WayInObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset in the function.
    pub(crate) at: String,
    pub(crate) reason: &'static str,
}

/// An original instruction.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InstructionObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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
pub(crate) struct WovenObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
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

/// A path of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WayObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of the path among all paths of the function, from 0.
    pub(crate) path: u64,
    /// Number of different paths that the function has.
    pub(crate) possible: u64,
    /// Offsets of the blocks on the path, in the order of their execution.
    pub(crate) blocks: Vec<String>,
    /// `entry`, `loop`, `return` or `elsewhere`.
    pub(crate) begins: &'static str,
    /// `exit`, `loop`, `call` or `never`.
    pub(crate) ends: &'static str,
    /// With `loop`, the offset of the block at which the next path begins; else null.
    pub(crate) next: Option<String>,
}

impl WayObject {
    fn new(path: &api::InspectedPath, id: RecordedFunction) -> Self {
        WayObject {
            id,
            path: path.number,
            possible: path.possible,
            blocks: all_at(&path.blocks),
            begins: begin_word(path.begins),
            ends: end_word(path.ends),
            next: path.next.map(at),
        }
    }

    /// Whether an edge between two blocks is on the path.
    pub(crate) fn passes(&self, from: &str, to: &str) -> bool {
        let ends = self.blocks.iter().chain(&self.next);
        self.blocks.iter().zip(ends.skip(1)).any(|(one, next)| one == from && next == to)
    }
}

/// A function in detail.
#[derive(Clone, Debug)]
pub(crate) struct Inspected {
    /// Offset of the function, as `nm` prints it.
    pub(crate) start: u64,
    pub(crate) graph: GraphObject,
    pub(crate) points: Vec<PointObject>,
    pub(crate) blocks: Vec<BlockObject>,
    pub(crate) edges: Vec<EdgeObject>,
    pub(crate) loops: Vec<LoopObject>,
    pub(crate) ways_in: Vec<WayInObject>,
    pub(crate) instructions: Vec<InstructionObject>,
    pub(crate) woven: Vec<WovenObject>,
    /// The path that was asked for; `None` if none was.
    pub(crate) way: Option<WayObject>,
}

/// An offset in a function for scripts.
fn at(Offset(offset): Offset) -> String {
    signed_hex(offset)
}

fn all_at(offsets: &[Offset]) -> Vec<String> {
    offsets.iter().copied().map(at).collect()
}

/// Path and line of an instruction's source.
fn source(source: Option<(std::sync::Arc<str>, u64)>) -> (Option<String>, Option<u64>) {
    source.map(|(file, line)| (file.as_ref().to_owned(), line)).unzip()
}

impl Inspected {
    /// The records of a function.
    pub(crate) fn new(function: api::InspectedFunction, pid: Pid, host: Host) -> Self {
        let id = RecordedFunction::new(function.function.clone(), pid, host);
        let loops = &function.loops;
        let is_back = |edge: &api::ControlEdge| {
            loops.iter().any(|one| edge.to == Some(one.header) && one.latches.contains(&edge.from))
        };
        Inspected {
            start: function.function.offset.0,
            points: function.points.iter().map(|point| PointObject::new(point, id.clone())).collect(),
            blocks: function.blocks.iter().map(|block| BlockObject::new(block, id.clone())).collect(),
            edges: function.edges.iter().map(|edge| EdgeObject::new(edge, is_back(edge), id.clone())).collect(),
            loops: loops.iter().map(|one| LoopObject::new(one, id.clone())).collect(),
            ways_in: function
                .ways_in
                .iter()
                .map(|way| WayInObject { id: id.clone(), at: at(way.offset), reason: way.reason.word() })
                .collect(),
            instructions: function
                .instructions
                .into_iter()
                .map(|one| InstructionObject::new(one, id.clone()))
                .collect(),
            way: function.path.as_ref().map(|path| WayObject::new(path, id.clone())),
            woven: function.woven.into_iter().map(|one| WovenObject::new(one, id.clone())).collect(),
            graph: GraphObject {
                size: function.size,
                address: hex(function.address.0),
                entry: function.entry.map(at),
                ways_in_proven: function.ways_in_unproven.is_none(),
                ways_in_why_not: function.ways_in_unproven.map(|why| why.to_string()),
                ways_out_proven: function.ways_out_unproven.is_none(),
                ways_out_why_not: function.ways_out_unproven.map(|why| why.to_string()),
                unresolved: all_at(&function.unresolved),
                holder: function.holder,
                id,
            },
        }
    }
}

impl PointObject {
    fn new(point: &api::InspectedPoint, id: RecordedFunction) -> Self {
        let why = point.springboard.as_ref().err();
        PointObject {
            id,
            kind: point.kind.word(),
            at: at(point.at),
            how: if why.is_some() { "refused" } else { "in-place" },
            springboard: point.springboard.as_ref().ok().map(|springboard| springboard.word()),
            reason: why.map(|why| why.reason().to_owned()),
            why_not: why.map(ToString::to_string),
            woven: point.woven,
        }
    }
}

impl BlockObject {
    fn new(block: &api::BasicBlock, id: RecordedFunction) -> Self {
        BlockObject {
            id,
            block: at(block.offset),
            size: block.size,
            instructions: block.instructions,
            header: block.header.map(at),
            depth: Some(block.depth),
            count: None,
            ran: None,
            inexact: None,
        }
    }
}

impl EdgeObject {
    fn new(edge: &api::ControlEdge, back: bool, id: RecordedFunction) -> Self {
        EdgeObject {
            id,
            from: at(edge.from),
            to: edge.to.map(at),
            outside: edge.outside.clone(),
            kind: Some(edge.kind.word()),
            back: Some(back),
            count: None,
            threads: None,
            ran: None,
            inexact: None,
            facts: api::PairFacts::default(),
        }
    }
}

impl LoopObject {
    fn new(one: &api::ControlLoop, id: RecordedFunction) -> Self {
        LoopObject {
            id,
            header: at(one.header),
            depth: one.depth,
            parent: one.parent.map(at),
            body: all_at(&one.body),
            latches: all_at(&one.latches),
            entries: all_at(&one.entries),
        }
    }
}

impl InstructionObject {
    fn new(one: api::CodeInstruction, id: RecordedFunction) -> Self {
        let (file, line) = source(one.source);
        InstructionObject { id, at: at(one.at), bytes: bytes(&one.bytes), text: one.text, file, line }
    }
}

impl WovenObject {
    fn new(one: api::WovenInstruction, id: RecordedFunction) -> Self {
        WovenObject {
            id,
            kind: one.kind.map(|kind| kind.word()),
            point: at(one.point),
            part: one.part.word(),
            pair: one.pair,
            address: hex(one.at.0),
            bytes: bytes(&one.bytes),
            text: one.text,
            original: one.original.map(at),
        }
    }
}

/// A module of `functions --summary`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SummaryObject {
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
pub(crate) struct LocationObject {
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
    /// Inlined functions whose code is at the address, innermost first.
    pub(crate) inlined: Vec<String>,
    /// The generated code; null if there is none.
    pub(crate) generated: Option<GeneratedFacts>,
    /// Facts that are not known, and why; null if there is nothing to say.
    pub(crate) note: Option<String>,
}

/// A place in generated code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GeneratedFacts {
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

impl LocationObject {
    /// The record of a location.
    pub(crate) fn new(found: api::Location, host: Host) -> Self {
        let api::Location { pid, address, mapping, place, generated, note } = found;
        let function = place.as_ref().and_then(|place| place.function.clone());
        let what = match (&generated, &function, &place, &mapping) {
            (Some(_), ..) => "generated",
            (None, Some(_), ..) => "function",
            (None, None, Some(_), _) => "module",
            (None, None, None, Some(_)) => "memory",
            (None, None, None, None) => "nothing",
        };
        let within = place.as_ref().zip(function.as_ref());
        let (file, line) = source(place.as_ref().and_then(|place| place.source.clone()));
        LocationObject {
            host,
            pid: pid.0,
            address: hex(address.0),
            what,
            mapping,
            offset: function.as_ref().map(|function| hex(function.offset.0)),
            at: within.map(|(place, function)| at(Offset::between(function.offset.0, place.at.0))),
            function: function.map(|function| function.function),
            block: place.as_ref().and_then(|place| place.block).map(at),
            file_address: place.as_ref().map(|place| hex(place.at.0)),
            inlined: place.as_ref().map(|place| place.inlined.clone()).unwrap_or_default(),
            module: place.map(|place| place.module),
            file,
            line,
            generated: generated.map(GeneratedFacts::from),
            note: Some(note).filter(|note| !note.is_empty()),
        }
    }
}

impl From<api::GeneratedPlace> for GeneratedFacts {
    fn from(place: api::GeneratedPlace) -> Self {
        GeneratedFacts {
            holder: Some(place.holder).filter(|holder| !holder.is_empty()),
            part: place.part.word(),
            kind: place.kind.map(|kind| kind.word()),
            point: place.point.map(|point| hex(point.0)),
            pair: place.pair,
            original: place.original.map(|original| hex(original.0)),
        }
    }
}
