//! Replay of the chunks of a file, thread by thread.

use std::collections::BTreeMap;

use ingraft_model::token::Token;
use ingraft_profile::{ThreadReplay, TraceStep, TracedFunction, Unknown};

use crate::FileError;
use crate::trace::{TraceChunk, TraceRecord, TracedRoutine};

/// All functions of a file, in the order of their numbers.
pub fn functions_of(records: &[TraceRecord]) -> Vec<&TracedRoutine> {
    let code = records.iter().filter_map(|record| match record {
        TraceRecord::Code(code) => Some(&code.functions),
        TraceRecord::Program(_) | TraceRecord::Chunk(_) | TraceRecord::End(_) | TraceRecord::Newest(_) => None,
    });
    code.flatten().collect()
}

/// The replay of one stream.
#[derive(Clone, Debug)]
struct StreamReplay<'a> {
    tid: u32,
    /// Number of the next chunk.
    next: u64,
    replay: ThreadReplay<'a>,
    /// Stamp of the latest entry; `None` before the first one, and after a gap.
    stamp: Option<u64>,
}

/// The replay of all threads.
#[derive(Clone, Debug)]
pub struct TraceReplay<'a> {
    functions: &'a [TracedFunction],
    streams: BTreeMap<u32, StreamReplay<'a>>,
    /// Whether streams may begin with any chunk.
    newest: bool,
    /// Number of bytes of all chunks.
    bytes: u64,
}

impl<'a> TraceReplay<'a> {
    /// Begins before the first chunk. `functions` has the functions of the file.
    pub fn new(functions: &'a [TracedFunction]) -> Self {
        TraceReplay { functions, streams: BTreeMap::new(), newest: false, bytes: 0 }
    }

    /// Replays the newest part of a trace: the first chunk of a stream may have any sequence.
    pub fn of_newest_part(self) -> Self {
        TraceReplay { newest: true, ..self }
    }

    /// Regenerates the steps of a chunk and gives them to `out`, each with the stamp of the latest entry before it. If chunks of the stream
    /// are missing, a gap comes first. Fails if the chunk does not consist of whole tokens; the steps before the wrong one were given to
    /// `out`.
    pub fn chunk(&mut self, chunk: &TraceChunk, out: &mut dyn FnMut(TraceStep, Option<u64>)) -> Result<(), FileError> {
        let next = if self.newest { chunk.sequence } else { 0 };
        let new = || StreamReplay { tid: chunk.tid, next, replay: ThreadReplay::new(self.functions), stamp: None };
        let stream = self.streams.entry(chunk.stream).or_insert_with(new);
        if stream.next != chunk.sequence {
            stream.take(Token::Gap, out);
        }
        stream.next = chunk.sequence.saturating_add(1);
        self.bytes += chunk.tokens.len() as u64;
        let mut rest = chunk.tokens.as_slice();
        while !rest.is_empty() {
            let Ok(Some((token, length))) = Token::read(rest) else {
                stream.take(Token::Gap, out);
                return Err(FileError::Contradiction { what: "a chunk does not consist of tokens" });
            };
            stream.take(token, out);
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(())
    }

    /// Each stream with its thread, and the parts of the execution that its steps do not tell. Sorted by stream.
    pub fn unknown(&self) -> impl Iterator<Item = (u32, u32, Unknown)> {
        self.streams.iter().map(|(number, stream)| (*number, stream.tid, stream.replay.unknown()))
    }

    /// Number of bytes of all tokens.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl StreamReplay<'_> {
    fn take(&mut self, token: Token, out: &mut dyn FnMut(TraceStep, Option<u64>)) {
        match token {
            Token::Time(stamp) => self.stamp = Some(stamp),
            Token::Gap => self.stamp = None,
            _ => {}
        }
        let stamp = self.stamp;
        self.replay.next(token, &mut |step| out(step, stamp));
    }
}
