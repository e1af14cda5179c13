//! Replay of the chunks of a file, thread by thread.

use std::collections::BTreeMap;

use ingraft_model::token::Token;
use ingraft_profile::{Step, ThreadReplay, TracedFunction, Unknown};

use crate::FileError;
use crate::trace::{Chunk, TraceRecord, TracedRoutine};

/// All functions of a file, in the order of their numbers.
pub fn functions_of(records: &[TraceRecord]) -> Vec<&TracedRoutine> {
    let code = records.iter().filter_map(|record| match record {
        TraceRecord::Code(code) => Some(&code.functions),
        TraceRecord::Program(_) | TraceRecord::Chunk(_) | TraceRecord::End(_) => None,
    });
    code.flatten().collect()
}

/// The replay of all threads.
#[derive(Clone, Debug)]
pub struct TraceReplay<'a> {
    functions: &'a [TracedFunction],
    /// For each stream, its thread, the number of its next chunk, and the replay.
    streams: BTreeMap<u32, (u32, u64, ThreadReplay<'a>)>,
    /// Number of bytes of all chunks.
    bytes: u64,
}

impl<'a> TraceReplay<'a> {
    /// Begins before the first chunk. `functions` has the functions of the file.
    pub fn new(functions: &'a [TracedFunction]) -> Self {
        TraceReplay { functions, streams: BTreeMap::new(), bytes: 0 }
    }

    /// Regenerates the steps of a chunk and gives them to `out`. If chunks of the stream are missing, a gap comes first. Fails if the chunk
    /// does not consist of whole tokens; the steps before the wrong one were given to `out`.
    pub fn chunk(&mut self, chunk: &Chunk, out: &mut dyn FnMut(Step)) -> Result<(), FileError> {
        let new = || (chunk.tid, 0, ThreadReplay::new(self.functions));
        let (_, next, replay) = self.streams.entry(chunk.stream).or_insert_with(new);
        if *next != chunk.sequence {
            replay.next(Token::Gap, out);
        }
        *next = chunk.sequence.saturating_add(1);
        self.bytes += chunk.tokens.len() as u64;
        let mut rest = chunk.tokens.as_slice();
        while !rest.is_empty() {
            let Ok(Some((token, length))) = Token::read(rest) else {
                replay.next(Token::Gap, out);
                return Err(FileError::Contradiction { what: "a chunk does not consist of tokens" });
            };
            replay.next(token, out);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(())
    }

    /// Each stream with its thread, and the parts of the execution that its steps do not tell. Sorted by stream.
    pub fn unknown(&self) -> impl Iterator<Item = (u32, u32, Unknown)> {
        self.streams.iter().map(|(stream, (tid, _, replay))| (*stream, *tid, replay.unknown()))
    }

    /// Number of bytes of all tokens.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
