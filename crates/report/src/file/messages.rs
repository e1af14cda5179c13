//! The body of a file as messages of Protocol Buffers. Numbers of fields are never used again for another meaning.

use ingraft_model::{EdgeKind, Svma};
use prost::{Message, Oneof};

use super::FileError;
use crate::saved::{self, EdgeEnd, ProfileKind, SavedProfile};

/// A profile.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(string, tag = "1")]
    host: String,
    #[prost(uint32, tag = "2")]
    pid: u32,
    #[prost(string, tag = "3")]
    program: String,
    #[prost(fixed64, tag = "4")]
    began_ns: u64,
    #[prost(fixed64, tag = "5")]
    ended_ns: u64,
    #[prost(message, repeated, tag = "6")]
    modules: Vec<Module>,
    #[prost(message, repeated, tag = "7")]
    functions: Vec<Function>,
    #[prost(message, repeated, tag = "8")]
    refused: Vec<Refused>,
    /// Calls in progress when counting began.
    #[prost(uint64, tag = "9")]
    corrected_begin: u64,
    /// Calls in progress when counting ended.
    #[prost(uint64, tag = "10")]
    corrected_end: u64,
    /// Whether the counts are those of a coverage.
    #[prost(bool, tag = "11")]
    coverage: bool,
}

/// A mapped file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Module {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(bytes = "vec", tag = "3")]
    build_id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    bias: u64,
    #[prost(uint64, tag = "5")]
    mapped_low: u64,
    #[prost(uint64, tag = "6")]
    mapped_high: u64,
}

/// A profiled function. The lists of blocks have one element for each block, those of edges one for each edge.
#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    module: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    start: u64,
    #[prost(uint64, tag = "4")]
    size: u64,
    #[prost(uint64, tag = "5")]
    calls: u64,
    #[prost(string, optional, tag = "6")]
    inexact: Option<String>,
    /// Distance from the start of the block before, or from the start of the function.
    #[prost(sint64, repeated, tag = "7")]
    block_distance: Vec<i64>,
    #[prost(uint32, repeated, tag = "8")]
    block_size: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    block_instructions: Vec<u32>,
    /// Distance from the start of the block to its last instruction.
    #[prost(sint64, repeated, tag = "10")]
    block_last: Vec<i64>,
    #[prost(uint64, repeated, tag = "11")]
    block_count: Vec<u64>,
    #[prost(uint64, repeated, tag = "12")]
    edge_from: Vec<u64>,
    /// Kind of the edge, plus `END` times the kind of its destination, plus `UNKNOWN` if the count is not known.
    #[prost(uint32, repeated, tag = "13")]
    edge_shape: Vec<u32>,
    /// Index of a block, or the distance from the start of the function to an address outside.
    #[prost(sint64, repeated, tag = "14")]
    edge_to: Vec<i64>,
    #[prost(uint64, repeated, tag = "15")]
    edge_count: Vec<u64>,
    #[prost(message, repeated, tag = "16")]
    calls_made: Vec<CallMade>,
    /// Sorted indexes of blocks of which it is not known whether they have run.
    #[prost(uint64, repeated, tag = "17")]
    unknown: Vec<u64>,
}

/// Factor of the kind of the destination in the shape of an edge.
const END: u32 = 8;
/// Summand of the shape of an edge without a count.
const UNKNOWN: u32 = 32;

/// A call that a function makes.
#[derive(Clone, PartialEq, Message)]
struct CallMade {
    #[prost(uint64, tag = "1")]
    block: u64,
    #[prost(uint64, tag = "2")]
    count: u64,
    #[prost(oneof = "Callee", tags = "3, 4, 5, 6, 7")]
    callee: Option<Callee>,
}

/// A called function.
#[derive(Clone, PartialEq, Oneof)]
enum Callee {
    #[prost(uint64, tag = "3")]
    Own(u64),
    #[prost(message, tag = "4")]
    Other(Other),
    #[prost(string, tag = "5")]
    Named(String),
    #[prost(bool, tag = "6")]
    Indirect(bool),
    #[prost(bool, tag = "7")]
    System(bool),
}

/// A function of another module.
#[derive(Clone, PartialEq, Message)]
struct Other {
    #[prost(uint64, tag = "1")]
    module: u64,
    #[prost(uint64, tag = "2")]
    at: u64,
}

/// A function without a profile.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Refused {
    #[prost(uint64, tag = "1")]
    module: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    start: u64,
    #[prost(string, tag = "4")]
    why: String,
}

/// Number of a kind of edges in files.
pub(crate) fn number(kind: EdgeKind) -> u32 {
    match kind {
        EdgeKind::Taken => 0,
        EdgeKind::FallThrough => 1,
        EdgeKind::CallReturn => 2,
        EdgeKind::JumpTable => 3,
        EdgeKind::TailJump => 4,
        EdgeKind::Return => 5,
    }
}

/// Kind of edges that a number in a file means.
pub(crate) fn kind(number: u32) -> Result<EdgeKind, FileError> {
    Ok(match number {
        0 => EdgeKind::Taken,
        1 => EdgeKind::FallThrough,
        2 => EdgeKind::CallReturn,
        3 => EdgeKind::JumpTable,
        4 => EdgeKind::TailJump,
        5 => EdgeKind::Return,
        _ => return Err(contradiction("an edge has an unknown kind")),
    })
}

pub(crate) fn contradiction(what: &'static str) -> FileError {
    FileError::Contradiction { what }
}

/// An index of a file, which must be below `length`.
pub(crate) fn index(of: u64, length: usize, what: &'static str) -> Result<usize, FileError> {
    usize::try_from(of).ok().filter(|at| *at < length).ok_or_else(|| contradiction(what))
}

/// Distance from one address to another one.
pub(crate) fn distance(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from).cast_signed()
}

/// Address at a distance from another one.
pub(crate) fn address(from: u64, distance: i64) -> u64 {
    from.wrapping_add_signed(distance)
}

impl From<&SavedProfile> for Profile {
    fn from(profile: &SavedProfile) -> Self {
        Profile {
            host: profile.host.clone(),
            pid: profile.pid,
            program: profile.program.clone(),
            began_ns: profile.began_ns,
            ended_ns: profile.ended_ns,
            modules: profile.modules.iter().map(Module::from).collect(),
            functions: profile.functions.iter().map(Function::from).collect(),
            refused: profile.refused.iter().map(Refused::from).collect(),
            corrected_begin: profile.corrected.0,
            corrected_end: profile.corrected.1,
            coverage: profile.kind == ProfileKind::Coverage,
        }
    }
}

impl TryFrom<Profile> for SavedProfile {
    type Error = FileError;

    fn try_from(message: Profile) -> Result<Self, FileError> {
        let modules = message.modules.len();
        let functions = message.functions.into_iter().map(|function| function.read(modules));
        let refused = message.refused.into_iter().map(|refused| refused.read(modules));
        Ok(SavedProfile {
            host: message.host,
            pid: message.pid,
            program: message.program,
            began_ns: message.began_ns,
            ended_ns: message.ended_ns,
            functions: functions.collect::<Result<_, _>>()?,
            refused: refused.collect::<Result<_, _>>()?,
            modules: message.modules.into_iter().map(Module::read).collect(),
            corrected: (message.corrected_begin, message.corrected_end),
            kind: if message.coverage { ProfileKind::Coverage } else { ProfileKind::Counts },
        })
    }
}

impl From<&saved::ModuleInfo> for Module {
    fn from(module: &saved::ModuleInfo) -> Self {
        Module {
            name: module.name.clone(),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            bias: module.bias,
            mapped_low: module.mapped.0,
            mapped_high: module.mapped.1,
        }
    }
}

impl Module {
    pub(crate) fn read(self) -> saved::ModuleInfo {
        saved::ModuleInfo {
            name: self.name,
            path: self.path,
            build_id: self.build_id,
            bias: self.bias,
            mapped: (self.mapped_low, self.mapped_high),
        }
    }
}

impl From<&saved::FunctionProfile> for Function {
    fn from(function: &saved::FunctionProfile) -> Self {
        let starts = std::iter::once(function.start.0).chain(function.blocks.iter().map(|block| block.start.0));
        let to = |edge: &saved::EdgeCount| match edge.to {
            EdgeEnd::Block(block) => (0, block as i64),
            EdgeEnd::Outside(at) => (1, distance(function.start.0, at.0)),
            EdgeEnd::Dynamic => (2, 0),
        };
        let unknown = |edge: &saved::EdgeCount| if edge.count.is_none() { UNKNOWN } else { 0 };
        let shape = |edge: &saved::EdgeCount| number(edge.kind) + END * to(edge).0 + unknown(edge);
        Function {
            module: function.module as u64,
            name: function.name.clone(),
            start: function.start.0,
            size: function.size,
            calls: function.calls,
            inexact: function.inexact.clone(),
            block_distance: function.blocks.iter().zip(starts).map(|(b, from)| distance(from, b.start.0)).collect(),
            block_size: function.blocks.iter().map(|block| block.size).collect(),
            block_instructions: function.blocks.iter().map(|block| block.instructions).collect(),
            block_last: function.blocks.iter().map(|block| distance(block.start.0, block.last.0)).collect(),
            block_count: function.blocks.iter().map(|block| block.count).collect(),
            edge_from: function.edges.iter().map(|edge| edge.from as u64).collect(),
            edge_shape: function.edges.iter().map(shape).collect(),
            edge_to: function.edges.iter().map(|edge| to(edge).1).collect(),
            edge_count: function.edges.iter().map(|edge| edge.count.unwrap_or(0)).collect(),
            calls_made: function.call_sites.iter().map(CallMade::from).collect(),
            unknown: function.unknown.iter().map(|block| *block as u64).collect(),
        }
    }
}

impl Function {
    /// The function, in a profile with this number of modules.
    fn read(self, modules: usize) -> Result<saved::FunctionProfile, FileError> {
        let blocks = self.blocks()?;
        let calls = self.calls_made.iter().map(|call| call.read(modules, blocks.len()));
        let calls: Vec<_> = calls.collect::<Result<_, _>>()?;
        if !self.edge_from.is_sorted() || !calls.is_sorted_by_key(|call| call.block) {
            return Err(contradiction("the edges or calls of a function are not sorted"));
        }
        let unknown = self.unknown.iter().map(|block| index(*block, blocks.len(), "an unknown block does not exist"));
        let unknown: Vec<usize> = unknown.collect::<Result<_, _>>()?;
        if !unknown.is_sorted() {
            return Err(contradiction("the unknown blocks of a function are not sorted"));
        }
        Ok(saved::FunctionProfile {
            unknown,
            module: index(self.module, modules, "a function is in no module")?,
            start: Svma(self.start),
            size: self.size,
            calls: self.calls,
            edges: self.edges(blocks.len())?,
            call_sites: calls,
            blocks,
            name: self.name,
            inexact: self.inexact,
        })
    }

    fn blocks(&self) -> Result<Vec<saved::BlockCount>, FileError> {
        let length = self.block_distance.len();
        let others = [self.block_size.len(), self.block_instructions.len(), self.block_last.len()];
        if others.iter().any(|other| *other != length) || self.block_count.len() != length {
            return Err(contradiction("the lists of blocks have different lengths"));
        }
        let starts = self.block_distance.iter().scan(self.start, |before, from| {
            *before = address(*before, *from);
            Some(*before)
        });
        let code = self.block_size.iter().zip(&self.block_instructions);
        let facts = code.zip(self.block_last.iter().zip(&self.block_count));
        let blocks = starts.zip(facts).map(|(start, ((size, instructions), (last, count)))| saved::BlockCount {
            start: Svma(start),
            size: *size,
            instructions: *instructions,
            last: Svma(address(start, *last)),
            count: *count,
        });
        Ok(blocks.collect())
    }

    fn edges(&self, blocks: usize) -> Result<Vec<saved::EdgeCount>, FileError> {
        let length = self.edge_from.len();
        if [self.edge_shape.len(), self.edge_to.len(), self.edge_count.len()].iter().any(|other| *other != length) {
            return Err(contradiction("the lists of edges have different lengths"));
        }
        let facts = self.edge_from.iter().zip(&self.edge_shape).zip(&self.edge_to).zip(&self.edge_count);
        let edges = facts.map(|(((from, shape), to), count)| {
            let (unknown, shape) = (shape / UNKNOWN, shape % UNKNOWN);
            let to = match shape / END {
                0 => EdgeEnd::Block(index(to.cast_unsigned(), blocks, "an edge leads to no block")?),
                1 => EdgeEnd::Outside(Svma(address(self.start, *to))),
                2 => EdgeEnd::Dynamic,
                _ => return Err(contradiction("an edge has an unknown destination")),
            };
            Ok(saved::EdgeCount {
                from: index(*from, blocks, "an edge leaves no block")?,
                to,
                kind: kind(shape % END)?,
                count: match unknown {
                    0 => Some(*count),
                    1 => None,
                    _ => return Err(contradiction("an edge has an unknown form")),
                },
            })
        });
        edges.collect()
    }
}

impl From<&saved::CallCount> for CallMade {
    fn from(call: &saved::CallCount) -> Self {
        let callee = match &call.callee {
            saved::Callee::Own(at) => Callee::Own(at.0),
            saved::Callee::Other { module, at } => Callee::Other(Other { module: *module as u64, at: at.0 }),
            saved::Callee::Named(name) => Callee::Named(name.clone()),
            saved::Callee::Indirect => Callee::Indirect(true),
            saved::Callee::System => Callee::System(true),
        };
        CallMade { block: call.block as u64, count: call.count, callee: Some(callee) }
    }
}

impl CallMade {
    fn read(&self, modules: usize, blocks: usize) -> Result<saved::CallCount, FileError> {
        let callee = match &self.callee {
            Some(Callee::Own(at)) => saved::Callee::Own(Svma(*at)),
            Some(Callee::Other(other)) => saved::Callee::Other {
                module: index(other.module, modules, "a called function is in no module")?,
                at: Svma(other.at),
            },
            Some(Callee::Named(name)) => saved::Callee::Named(name.clone()),
            // A later version may know more kinds of callees.
            Some(Callee::Indirect(_)) | None => saved::Callee::Indirect,
            Some(Callee::System(_)) => saved::Callee::System,
        };
        Ok(saved::CallCount { block: index(self.block, blocks, "a call ends no block")?, callee, count: self.count })
    }
}

impl From<&saved::Refused> for Refused {
    fn from(refused: &saved::Refused) -> Self {
        Refused {
            module: refused.module as u64,
            name: refused.name.clone(),
            start: refused.start.0,
            why: refused.why.clone(),
        }
    }
}

impl Refused {
    pub(crate) fn read(self, modules: usize) -> Result<saved::Refused, FileError> {
        Ok(saved::Refused {
            module: index(self.module, modules, "a refused function is in no module")?,
            name: self.name,
            start: Svma(self.start),
            why: self.why,
        })
    }
}
