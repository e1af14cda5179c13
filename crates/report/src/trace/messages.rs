//! The records of a trace as messages of Protocol Buffers. Numbers of fields are never used again for another meaning.

use ingraft_model::{
    self as model, BlockId, Cfg, EdgeId, EdgeKind, EdgeTarget, IndexVec, Key, Scale, Svma, WayIn, WayInReason,
};
use ingraft_profile::ProbeAt;
use prost::Message;

use crate::FileError;
use crate::file::checked::{address, contradiction, distance, index};
use crate::file::convert::{self, kind, number};
use crate::message::{FunctionNotCounted, ProfileModule};
use crate::saved::ModuleInfo;
use crate::trace;

/// The traced program.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProgramMessage {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(uint32, tag = "2")]
    pid: u32,
    #[prost(string, tag = "3")]
    program: String,
    #[prost(fixed64, tag = "4")]
    began_ns: u64,
    /// Factor of the clock's scale; 0 without a clock.
    #[prost(uint32, tag = "5")]
    clock_mult: u32,
    #[prost(uint32, tag = "6")]
    clock_shift: u32,
}

/// Functions.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CodeMessage {
    #[prost(message, repeated, tag = "1")]
    modules: Vec<ProfileModule>,
    #[prost(message, repeated, tag = "2")]
    functions: Vec<RoutineMessage>,
    #[prost(message, repeated, tag = "3")]
    refused: Vec<FunctionNotCounted>,
}

/// A function. The lists of blocks have one element for each block, those of edges one for each edge, and so on.
#[derive(Clone, PartialEq, Message)]
struct RoutineMessage {
    #[prost(uint64, tag = "1")]
    module: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    start: u64,
    #[prost(uint64, tag = "4")]
    size: u64,
    /// Index of the block at the first byte.
    #[prost(uint64, tag = "5")]
    entry: u64,
    /// Distance from the start of the block before, or from the start of the function.
    #[prost(sint64, repeated, tag = "6")]
    block_distance: Vec<i64>,
    #[prost(uint32, repeated, tag = "7")]
    block_size: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    block_instructions: Vec<u32>,
    #[prost(uint64, repeated, tag = "9")]
    edge_from: Vec<u64>,
    /// Kind of the edge, plus `END` times the kind of its destination.
    #[prost(uint32, repeated, tag = "10")]
    edge_shape: Vec<u32>,
    /// Index of a block, or the distance from the start of the function to an address outside.
    #[prost(sint64, repeated, tag = "11")]
    edge_to: Vec<i64>,
    /// Distance from the start of the function.
    #[prost(sint64, repeated, tag = "12")]
    way_at: Vec<i64>,
    #[prost(uint32, repeated, tag = "13")]
    way_reason: Vec<u32>,
    /// Twice the index of an edge, or twice the index of a block plus 1.
    #[prost(uint64, repeated, tag = "14")]
    places: Vec<u64>,
}

/// Factor of the kind of the destination in the shape of an edge.
const END: u32 = 8;

/// Tokens of one thread.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChunkMessage {
    #[prost(uint32, tag = "1")]
    tid: u32,
    #[prost(uint32, tag = "2")]
    stream: u32,
    #[prost(uint64, tag = "3")]
    sequence: u64,
    #[prost(fixed64, tag = "4")]
    time_ns: u64,
    #[prost(bytes = "vec", tag = "5")]
    tokens: Vec<u8>,
    #[prost(fixed64, tag = "6")]
    ticks: u64,
}

/// The end of a trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EndMessage {
    #[prost(fixed64, tag = "1")]
    ended_ns: u64,
    #[prost(uint64, tag = "2")]
    unbuffered: u64,
}

/// The newest part of a trace.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NewestMessage {
    #[prost(fixed64, tag = "1")]
    from_ns: u64,
    #[prost(fixed64, tag = "2")]
    until_ns: u64,
    /// 0: the end, 1: the condition, 2: a signal.
    #[prost(uint32, tag = "3")]
    cause: u32,
    #[prost(uint64, tag = "4")]
    dropped: u64,
}

/// Reasons for ways in, in the order of their numbers.
const REASONS: [WayInReason; 11] = [
    WayInReason::Entry,
    WayInReason::BehindEndbr,
    WayInReason::CallReturn,
    WayInReason::SyscallReturn,
    WayInReason::LandingPad,
    WayInReason::JumpTable,
    WayInReason::AddressTaken,
    WayInReason::Named,
    WayInReason::BranchFromElsewhere,
    WayInReason::Called,
    WayInReason::Resumed,
];

/// Number of a reason for a way in. A new reason gets the next number.
fn reason_number(reason: WayInReason) -> u32 {
    match reason {
        WayInReason::Entry => 0,
        WayInReason::BehindEndbr => 1,
        WayInReason::CallReturn => 2,
        WayInReason::SyscallReturn => 3,
        WayInReason::LandingPad => 4,
        WayInReason::JumpTable => 5,
        WayInReason::AddressTaken => 6,
        WayInReason::Named => 7,
        WayInReason::BranchFromElsewhere => 8,
        WayInReason::Called => 9,
        WayInReason::Resumed => 10,
    }
}

impl From<&trace::TracedProgram> for ProgramMessage {
    fn from(program: &trace::TracedProgram) -> Self {
        ProgramMessage {
            host: program.host.clone(),
            pid: program.pid,
            program: program.program.clone(),
            began_ns: program.began_ns,
            clock_mult: program.clock.map_or(0, |scale| scale.mult),
            clock_shift: program.clock.map_or(0, |scale| scale.shift),
        }
    }
}

impl ProgramMessage {
    pub fn read(self) -> trace::TracedProgram {
        let scale = Scale { mult: self.clock_mult, shift: self.clock_shift };
        trace::TracedProgram {
            host: self.host,
            pid: self.pid,
            program: self.program,
            began_ns: self.began_ns,
            clock: (scale.mult != 0).then_some(scale),
        }
    }
}

impl From<&trace::TracedCode> for CodeMessage {
    fn from(code: &trace::TracedCode) -> Self {
        CodeMessage {
            modules: code.modules.iter().map(ProfileModule::from).collect(),
            functions: code.functions.iter().map(RoutineMessage::from).collect(),
            refused: code.refused.iter().map(FunctionNotCounted::from).collect(),
        }
    }
}

impl CodeMessage {
    pub fn read(self) -> Result<trace::TracedCode, FileError> {
        let modules = self.modules.len();
        let functions = self.functions.into_iter().map(|function| function.read(modules));
        let refused = self.refused.into_iter().map(|message| convert::refused(message, modules));
        Ok(trace::TracedCode {
            functions: functions.collect::<Result<_, _>>()?,
            refused: refused.collect::<Result<_, _>>()?,
            modules: self.modules.into_iter().map(ModuleInfo::from).collect(),
        })
    }
}

impl From<&trace::TracedRoutine> for RoutineMessage {
    fn from(function: &trace::TracedRoutine) -> Self {
        // The first byte of a function begins a block.
        let (cfg, entry) = (&function.cfg, function.cfg.entry.unwrap_or(BlockId(0)));
        let start = cfg.blocks.get(entry).map_or(0, |block| block.range.start.0);
        let starts = std::iter::once(start).chain(cfg.blocks.iter().map(|block| block.range.start.0));
        let to = |edge: &model::Edge| match edge.to {
            EdgeTarget::Block(block) => (0, i64::from(block.0)),
            EdgeTarget::Outside(at) => (1, distance(start, at.0)),
            EdgeTarget::Dynamic => (2, 0),
        };
        let size = |block: &model::Block| block.range.end.0.saturating_sub(block.range.start.0);
        let place = |place: &ProbeAt| match place {
            ProbeAt::Edge(edge) => 2 * u64::from(edge.0),
            ProbeAt::Block(block) => 2 * u64::from(block.0) + 1,
        };
        RoutineMessage {
            module: function.module as u64,
            name: function.name.clone(),
            start,
            size: function.size,
            entry: entry.0.into(),
            block_distance: cfg.blocks.iter().zip(starts).map(|(b, from)| distance(from, b.range.start.0)).collect(),
            block_size: cfg.blocks.iter().map(|block| u32::try_from(size(block)).unwrap_or(u32::MAX)).collect(),
            block_instructions: cfg.blocks.iter().map(|block| block.instructions).collect(),
            edge_from: cfg.edges.iter().map(|edge| edge.from.0.into()).collect(),
            edge_shape: cfg.edges.iter().map(|edge| number(edge.kind) + END * to(edge).0).collect(),
            edge_to: cfg.edges.iter().map(|edge| to(edge).1).collect(),
            way_at: cfg.ways_in.iter().map(|way| distance(start, way.at.0)).collect(),
            way_reason: cfg.ways_in.iter().map(|way| reason_number(way.reason)).collect(),
            places: function.places.iter().map(place).collect(),
        }
    }
}

impl RoutineMessage {
    /// The function, in a record with this number of modules.
    fn read(self, modules: usize) -> Result<trace::TracedRoutine, FileError> {
        let blocks = self.blocks()?;
        let edges = self.edges(blocks.len())?;
        if self.way_at.len() != self.way_reason.len() {
            return Err(contradiction("the lists of ways in have different lengths"));
        }
        let way = |(at, reason): (&i64, &u32)| {
            let reason = usize::try_from(*reason).ok().and_then(|reason| REASONS.get(reason));
            let reason = *reason.ok_or_else(|| contradiction("a way in has an unknown reason"))?;
            Ok(WayIn { at: Svma(address(self.start, *at)), reason })
        };
        let ways_in: Vec<WayIn> =
            self.way_at.iter().zip(&self.way_reason).map(way).collect::<Result<_, FileError>>()?;
        if !ways_in.is_sorted_by_key(|way| way.at) || !blocks.as_slice().is_sorted_by_key(|block| block.range.start) {
            return Err(contradiction("the blocks or ways in of a function are not sorted"));
        }
        let place = |place: &u64| {
            let what = "a place of a function does not exist";
            Ok(match place % 2 {
                0 => ProbeAt::Edge(EdgeId::at(index(place / 2, edges.len(), what)?)),
                _ => ProbeAt::Block(BlockId::at(index(place / 2, blocks.len(), what)?)),
            })
        };
        let places = self.places.iter().map(place).collect::<Result<_, FileError>>()?;
        Ok(trace::TracedRoutine {
            module: index(self.module, modules, "a function is in no module")?,
            name: self.name,
            size: self.size,
            cfg: Cfg {
                entry: Some(BlockId::at(index(self.entry, blocks.len(), "a function has no first block")?)),
                blocks,
                edges,
                ways_in,
                unresolved: Vec::new(),
                ways_in_proven: Ok(()),
                ways_out_proven: Ok(()),
            },
            places,
        })
    }

    fn blocks(&self) -> Result<IndexVec<BlockId, model::Block>, FileError> {
        let length = self.block_distance.len();
        if self.block_size.len() != length || self.block_instructions.len() != length {
            return Err(contradiction("the lists of blocks have different lengths"));
        }
        let starts = self.block_distance.iter().scan(self.start, |before, from| {
            *before = address(*before, *from);
            Some(*before)
        });
        let facts = self.block_size.iter().zip(&self.block_instructions);
        let block = |(start, (size, instructions)): (u64, (&u32, &u32))| model::Block {
            range: Svma(start)..Svma(start.wrapping_add(u64::from(*size))),
            instructions: *instructions,
        };
        Ok(starts.zip(facts).map(block).collect())
    }

    fn edges(&self, blocks: usize) -> Result<IndexVec<EdgeId, model::Edge>, FileError> {
        let length = self.edge_from.len();
        if self.edge_shape.len() != length || self.edge_to.len() != length {
            return Err(contradiction("the lists of edges have different lengths"));
        }
        if !self.edge_from.is_sorted() {
            return Err(contradiction("the edges of a function are not sorted"));
        }
        let edge = |((from, shape), to): ((&u64, &u32), &i64)| {
            let to = match shape / END {
                0 => EdgeTarget::Block(BlockId::at(index(to.cast_unsigned(), blocks, "an edge leads to no block")?)),
                1 => EdgeTarget::Outside(Svma(address(self.start, *to))),
                2 => EdgeTarget::Dynamic,
                _ => return Err(contradiction("an edge has an unknown destination")),
            };
            let kind: EdgeKind = kind(shape % END)?;
            Ok(model::Edge { from: BlockId::at(index(*from, blocks, "an edge leaves no block")?), to, kind })
        };
        self.edge_from.iter().zip(&self.edge_shape).zip(&self.edge_to).map(edge).collect()
    }
}

impl From<&trace::TraceChunk> for ChunkMessage {
    fn from(chunk: &trace::TraceChunk) -> Self {
        ChunkMessage {
            tid: chunk.tid,
            stream: chunk.stream,
            sequence: chunk.sequence,
            time_ns: chunk.time_ns,
            tokens: chunk.tokens.clone(),
            ticks: chunk.ticks,
        }
    }
}

impl ChunkMessage {
    pub fn read(self) -> trace::TraceChunk {
        trace::TraceChunk {
            tid: self.tid,
            stream: self.stream,
            sequence: self.sequence,
            time_ns: self.time_ns,
            tokens: self.tokens,
            ticks: self.ticks,
        }
    }
}

impl From<&trace::TraceEnd> for EndMessage {
    fn from(end: &trace::TraceEnd) -> Self {
        EndMessage { ended_ns: end.ended_ns, unbuffered: end.unbuffered }
    }
}

impl EndMessage {
    pub fn read(self) -> trace::TraceEnd {
        trace::TraceEnd { ended_ns: self.ended_ns, unbuffered: self.unbuffered }
    }
}

impl From<&trace::NewestPart> for NewestMessage {
    fn from(newest: &trace::NewestPart) -> Self {
        let cause = match newest.cause {
            trace::NewestCause::End => 0,
            trace::NewestCause::Condition => 1,
            trace::NewestCause::Signal => 2,
        };
        NewestMessage { from_ns: newest.from_ns, until_ns: newest.until_ns, cause, dropped: newest.dropped }
    }
}

impl NewestMessage {
    pub fn read(self) -> trace::NewestPart {
        let cause = match self.cause {
            1 => trace::NewestCause::Condition,
            2 => trace::NewestCause::Signal,
            _ => trace::NewestCause::End,
        };
        trace::NewestPart { from_ns: self.from_ns, until_ns: self.until_ns, cause, dropped: self.dropped }
    }
}
