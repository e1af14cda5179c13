//! Files of block traces, and their replay.
//!
//! A file begins with 12 bytes: `INGTRACE` and the version of the format, in little-endian order. Records follow. Each has 12 bytes and a
//! content:
//!
//! | offset | length | part |
//! | --- | --- | --- |
//! | 0 | 4 | length of the content in bytes |
//! | 4 | 4 | CRC-32 (IEEE) of the kind and the content |
//! | 8 | 4 | kind: 1 program, 2 functions, 3 chunk, 4 end, 5 newest part |
//! | 12 | | content: a message of Protocol Buffers (`messages.rs`) |
//!
//! A reader skips records of other kinds. The record of the program comes first. A record of functions comes before the chunks that use them.
//! A chunk has tokens of one thread, and begins and ends between two tokens. So a file that was cut at any byte, because its writer was
//! killed, is readable up to the last whole record, and every chunk can be read without the ones before it.
//!
//! If only the newest part of a trace was kept, a record before the chunks says so. The first chunk of a stream then has any sequence.
//!
//! Version 2 has stamps and conditions: their tokens, the scale of the clock in the record of the program, and the clock's ticks in chunks. Files of
//! version 1 are read too.
//!
//! *Invariant: any bytes give records whose indexes are valid, or an error.* Property tests check this.

mod clock;
mod messages;
mod replay;

use std::io::{self, Read};

use ingraft_model::{Cfg, Scale};
use ingraft_profile::{ProbeAt, TracedFunction};
use prost::Message;

use crate::FileError;
use crate::saved::{ModuleInfo, UnprofiledFunction};
pub use clock::TraceClock;
pub use replay::{TraceReplay, functions_of};

/// First bytes of a file.
const MAGIC: [u8; 8] = *b"INGTRACE";
/// Version of the format that this crate writes.
const VERSION: u32 = 2;
/// Length of the beginning of a record in bytes.
const HEADER: usize = 12;
/// Largest content of a record in bytes. A larger number is a defect of the file.
const CONTENT_MAX: u32 = 256 << 20;

/// The traced program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedProgram {
    /// Name of the machine.
    pub host: String,
    /// Number of the process.
    pub pid: u32,
    /// Path of the program.
    pub program: String,
    /// Time at which the trace began, in nanoseconds of Unix time.
    pub began_ns: u64,
    /// Length in nanoseconds of the ticks in which entries tell the time; `None` if they do not.
    pub clock: Option<Scale>,
}

/// Functions that a trace contains, and those that it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedCode {
    /// Files of the functions. The indexes of modules in `functions` and `refused` are those of this list.
    pub modules: Vec<ModuleInfo>,
    /// Functions, in the order of their numbers, which begin after those of the records before.
    pub functions: Vec<TracedRoutine>,
    /// Functions that were asked for and are not traced.
    pub refused: Vec<UnprofiledFunction>,
}

/// A traced function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedRoutine {
    /// Index of its module.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// The control-flow graph, with addresses as in the file. Its entry is the function's first byte, and its proofs hold.
    pub cfg: Cfg,
    /// Places that write tokens, in the order of their numbers.
    pub places: Vec<ProbeAt>,
}

impl TracedRoutine {
    /// The graph for a replay. Fails if the places do not determine the sequence of blocks.
    pub fn traced(&self) -> Result<TracedFunction, FileError> {
        TracedFunction::of(&self.cfg, self.places.clone())
            .map_err(|_| FileError::Contradiction { what: "the places of a function do not tell its blocks apart" })
    }
}

/// Tokens of one thread, in the order in which it wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceChunk {
    /// Number of the thread. Another thread that gets the same number later has another `stream`.
    pub tid: u32,
    /// Number of the stream. The chunks of one stream are those of one thread.
    pub stream: u32,
    /// Number of chunks of the stream before this one.
    pub sequence: u64,
    /// Time at which the tokens were read, in nanoseconds of Unix time.
    pub time_ns: u64,
    /// Ticks of the trace's clock at that time; 0 if they are not known.
    pub ticks: u64,
    /// Whole tokens, see [`ingraft_model::token`].
    pub tokens: Vec<u8>,
}

/// The end of a trace that its writer has finished.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceEnd {
    /// Time at which the trace ended, in nanoseconds of Unix time.
    pub ended_ns: u64,
    /// Number of tokens of threads that had no buffer.
    pub unbuffered: u64,
}

/// Reason why the newest part of a trace was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewestCause {
    /// The trace ended.
    #[default]
    End,
    /// The condition of the trace held.
    Condition,
    /// A signal killed the program.
    Signal,
}

/// The newest part of a trace, of which the rest was not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewestPart {
    /// Unix time in nanoseconds from which on all tokens were kept.
    pub from_ns: u64,
    /// Unix time in nanoseconds of the event that is the reason.
    pub until_ns: u64,
    /// Reason why the part was written.
    pub cause: NewestCause,
    /// Number of bytes of older tokens, which were not kept.
    pub dropped: u64,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceRecord {
    /// The traced program.
    Program(TracedProgram),
    /// Functions.
    Code(TracedCode),
    /// Tokens.
    Chunk(TraceChunk),
    /// The end.
    End(TraceEnd),
    /// Only the newest part was kept.
    Newest(NewestPart),
}

impl TraceRecord {
    fn kind(&self) -> u32 {
        match self {
            TraceRecord::Program(_) => 1,
            TraceRecord::Code(_) => 2,
            TraceRecord::Chunk(_) => 3,
            TraceRecord::End(_) => 4,
            TraceRecord::Newest(_) => 5,
        }
    }

    /// The bytes of the record. `None` if the content is longer than a record can be.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let content = match self {
            TraceRecord::Program(program) => messages::ProgramMessage::from(program).encode_to_vec(),
            TraceRecord::Code(code) => messages::CodeMessage::from(code).encode_to_vec(),
            TraceRecord::Chunk(chunk) => messages::ChunkMessage::from(chunk).encode_to_vec(),
            TraceRecord::End(end) => messages::EndMessage::from(end).encode_to_vec(),
            TraceRecord::Newest(newest) => messages::NewestMessage::from(newest).encode_to_vec(),
        };
        let length = u32::try_from(content.len()).ok().filter(|length| *length <= CONTENT_MAX)?;
        let kind = self.kind();
        let mut bytes = Vec::with_capacity(HEADER + content.len());
        bytes.extend(length.to_le_bytes());
        bytes.extend(checksum(kind, &content).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(content);
        Some(bytes)
    }

    fn read(kind: u32, content: &[u8]) -> Result<Option<Self>, FileError> {
        Ok(Some(match kind {
            1 => TraceRecord::Program(messages::ProgramMessage::decode(content)?.read()),
            2 => TraceRecord::Code(messages::CodeMessage::decode(content)?.read()?),
            3 => TraceRecord::Chunk(messages::ChunkMessage::decode(content)?.read()),
            4 => TraceRecord::End(messages::EndMessage::decode(content)?.read()),
            5 => TraceRecord::Newest(messages::NewestMessage::decode(content)?.read()),
            _ => return Ok(None),
        }))
    }
}

/// The bytes with which a file begins.
pub fn trace_beginning() -> Vec<u8> {
    [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat()
}

fn checksum(kind: u32, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&kind.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Reason why the rest of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
    /// The content is not that of a trace.
    #[error(transparent)]
    Content(#[from] FileError),
    /// The file ends within a record. Its writer was killed, or it is still writing.
    #[error("the file ends within a record")]
    Cut,
}

/// The records of a file, in order. An error ends them.
#[derive(Debug)]
pub struct TraceRecords<R> {
    reader: R,
    over: bool,
}

impl<R: Read> TraceRecords<R> {
    /// Reads the beginning of a file.
    pub fn new(mut reader: R) -> Result<Self, TraceError> {
        let mut begin = [0; MAGIC.len() + 4];
        let length = fill(&mut reader, &mut begin)?;
        let version = begin.get(..length).and_then(|begin| begin.strip_prefix(&MAGIC)).ok_or(FileError::NotATrace)?;
        let version = version.first_chunk().ok_or(FileError::NotATrace)?;
        match u32::from_le_bytes(*version) {
            1..=VERSION => Ok(TraceRecords { reader, over: false }),
            found => Err(FileError::TraceVersion { found }.into()),
        }
    }

    fn read(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        loop {
            let mut header = [0; HEADER];
            match fill(&mut self.reader, &mut header)? {
                0 => return Ok(None),
                HEADER => {}
                _ => return Err(TraceError::Cut),
            }
            let (words, _) = header.as_chunks::<4>();
            let [length, stated, kind] =
                std::array::from_fn(|n| words.get(n).map_or(0, |word| u32::from_le_bytes(*word)));
            if length > CONTENT_MAX {
                return Err(FileError::Checksum.into());
            }
            let mut content = Vec::new();
            self.reader.by_ref().take(u64::from(length)).read_to_end(&mut content)?;
            if content.len() < length as usize {
                return Err(TraceError::Cut);
            }
            if checksum(kind, &content) != stated {
                return Err(FileError::Checksum.into());
            }
            if let Some(record) = TraceRecord::read(kind, &content)? {
                return Ok(Some(record));
            }
        }
    }
}

impl<R: Read> Iterator for TraceRecords<R> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.read().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests;
