//! The task that takes a trace while the target runs, and writes its file. It asks for more as soon as much has come, before buffers are
//! full. The whole trace is written as it comes. Of the newest part, the file is written at the end.

use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ingraft_api::MeasurementId;
use ingraft_model::token::Token;
use ingraft_report::{NewestCause, NewestPart, TraceChunk, TraceError, TraceRecord, TraceRecords, trace_beginning};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::StreamArrival;
use crate::conn::{Client, StreamEvent};
use crate::exit::Failure;
use crate::output::Destination;

/// Number of bytes after which the task asks for more at once.
const MUCH: usize = 64 << 10;
/// Time between two questions if little has come.
const PAUSE: Duration = Duration::from_millis(2);
/// Largest number of bytes of tokens that are kept in memory. Older ones are given up before their time.
const KEPT_MAX: usize = 1 << 30;

/// The part of a trace that goes into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TracePart {
    /// The whole trace, as it comes.
    All,
    /// The newest part, of this length, at the end. `when`: the trace ends when a condition holds.
    Newest { last: Duration, when: bool },
}

/// A task that takes a trace.
#[derive(Debug)]
pub(super) struct Puller {
    kept: TracePart,
    stop: oneshot::Sender<()>,
    ending: Arc<AtomicBool>,
    task: JoinHandle<(Destination, TraceBuffer, Result<(), Failure>)>,
}

impl Puller {
    /// Begins to take the trace of a measurement. If that fails, or if the condition holds, tells it as an arrival of the site with this
    /// number.
    pub(super) fn start(
        (client, measurement): (Client, MeasurementId),
        (file, kept): (Destination, TracePart),
        (site, events): (usize, mpsc::Sender<StreamArrival>),
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let ending = Arc::new(AtomicBool::new(false));
        let is_ending = Arc::clone(&ending);
        let task = tokio::spawn(async move {
            let (mut file, mut recorder) = (file, TraceBuffer::new(kept));
            let to = (&mut file, &mut recorder);
            let pulled = pull((&client, measurement), to, (site, &events), &is_ending, stopped).await;
            if let Err(failure) = &pulled {
                // Without a receiver, the command ends already, and takes the failure from the task.
                drop(events.send((site, Err(failure.clone()))).await);
            }
            (file, recorder, pulled)
        });
        Puller { kept, stop, ending, task }
    }

    /// Whether the trace ends when a condition holds.
    pub(super) fn awaits_condition(&self) -> bool {
        matches!(self.kept, TracePart::Newest { when: true, .. })
    }

    /// Tells the task that the measurement is about to be removed. It reads on until then, so that no buffer becomes full meanwhile.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Ends the task and writes the rest of the file. `cause` is the reason for the end, unless the trace tells that its condition held.
    pub(super) async fn finish(self, rest: &[u8], cause: NewestCause) -> Result<(), Failure> {
        // An error means that the task has ended already.
        let _ended = self.stop.send(());
        let (mut file, mut recorder, pulled) = self.task.await.map_err(|e| {
            Failure::failed(format!("the trace was not written: {e}"), "report this as a defect of ingraft")
        })?;
        // After a failure, a part of a record may be at the end of the file, and nothing may follow it.
        pulled?;
        recorder.take(rest, &mut file)?;
        let newest = recorder.finish(cause);
        if !newest.is_empty() {
            file.append(&trace_beginning())?;
        }
        newest.iter().try_for_each(|record| file.append(&record.to_bytes().unwrap_or_default()))
    }
}

/// Takes what comes until it is stopped.
async fn pull(
    (client, measurement): (&Client, MeasurementId),
    (file, recorder): (&mut Destination, &mut TraceBuffer),
    (site, events): (usize, &mpsc::Sender<StreamArrival>),
    ending: &AtomicBool,
    mut stopped: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let mut begin = true;
    loop {
        let bytes = match client.read_trace(measurement, begin).await {
            Ok(bytes) => bytes,
            // The measurement was removed between the two.
            Err(_) if ending.load(Ordering::Relaxed) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        begin = false;
        if recorder.take(&bytes, file)? {
            // Without a receiver, the command ends already.
            drop(events.send((site, Ok(StreamEvent::Held))).await);
        }
        let pause = if bytes.len() < MUCH { PAUSE } else { Duration::ZERO };
        tokio::select! {
            biased;
            _ = &mut stopped => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The part of a trace that is kept in memory.
#[derive(Debug)]
struct TraceBuffer {
    kept: TracePart,
    /// The records before the chunks.
    head: Vec<TraceRecord>,
    chunks: VecDeque<TraceChunk>,
    /// Number of bytes of the tokens in `chunks`.
    bytes: usize,
    /// Number of bytes of tokens that were given up.
    dropped: u64,
    /// Unix time in nanoseconds from which on all tokens are there.
    from_ns: u64,
    /// Unix time in nanoseconds at which the tokens were read that tell that the condition held.
    held_ns: Option<u64>,
    end: Option<TraceRecord>,
}

impl TraceBuffer {
    fn new(kept: TracePart) -> Self {
        TraceBuffer {
            kept,
            head: Vec::new(),
            chunks: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            from_ns: 0,
            held_ns: None,
            end: None,
        }
    }

    /// Takes bytes of the file: writes them, or keeps the newest part. Returns whether they tell that the condition holds for the first time.
    fn take(&mut self, bytes: &[u8], file: &mut Destination) -> Result<bool, Failure> {
        match self.kept {
            TracePart::All => file.append(bytes).map(|()| false),
            TracePart::Newest { last, when } => self.keep(bytes, last, when).map_err(|e| {
                Failure::failed(format!("the trace cannot be read: {e}"), "report this as a defect of ingraft")
            }),
        }
    }

    fn keep(&mut self, bytes: &[u8], last: Duration, when: bool) -> Result<bool, TraceError> {
        let beginning = trace_beginning();
        // The first bytes have the beginning of a file, later ones have not.
        let before: &[u8] = if bytes.starts_with(&beginning) { &[] } else { beginning.as_slice() };
        let had_held = self.held_ns.is_some();
        for record in TraceRecords::new(before.chain(bytes))? {
            match record? {
                TraceRecord::Chunk(chunk) => {
                    if when && self.held_ns.is_none() && has_condition(&chunk) {
                        self.held_ns = Some(chunk.time_ns);
                    }
                    self.bytes += chunk.tokens.len();
                    self.chunks.push_back(chunk);
                }
                end @ TraceRecord::End(_) => self.end = Some(end),
                TraceRecord::Program(program) => {
                    self.from_ns = program.began_ns;
                    self.head.push(TraceRecord::Program(program));
                }
                other => self.head.push(other),
            }
        }
        let newest = self.held_ns.or(self.chunks.back().map(|chunk| chunk.time_ns)).unwrap_or(0);
        self.give_up_before(newest.saturating_sub(u64::try_from(last.as_nanos()).unwrap_or(u64::MAX)));
        Ok(self.held_ns.is_some() && !had_held)
    }

    /// Gives up tokens that were read before a time, and the oldest ones if there are too many.
    fn give_up_before(&mut self, from_ns: u64) {
        while let Some(oldest) = self.chunks.front().filter(|c| c.time_ns < from_ns || self.bytes > KEPT_MAX) {
            // The next chunk may have tokens from this time on.
            self.from_ns = oldest.time_ns;
            self.bytes -= oldest.tokens.len();
            self.dropped += oldest.tokens.len() as u64;
            self.chunks.pop_front();
        }
    }

    /// The records of the newest part, unless they are written already.
    fn finish(mut self, cause: NewestCause) -> Vec<TraceRecord> {
        let TracePart::Newest { last, .. } = self.kept else { return Vec::new() };
        let ended =
            self.end.iter().find_map(|end| if let TraceRecord::End(end) = end { Some(end.ended_ns) } else { None });
        let newest = self.chunks.back().map(|chunk| chunk.time_ns);
        let until_ns = self.held_ns.or(ended).or(newest).unwrap_or(0);
        self.give_up_before(until_ns.saturating_sub(u64::try_from(last.as_nanos()).unwrap_or(u64::MAX)));
        let cause = if self.held_ns.is_some() { NewestCause::Condition } else { cause };
        let newest = NewestPart { from_ns: self.from_ns, until_ns, cause, dropped: self.dropped };
        let chunks = self.chunks.into_iter().map(TraceRecord::Chunk);
        self.head.into_iter().chain([TraceRecord::Newest(newest)]).chain(chunks).chain(self.end).collect()
    }
}

/// Whether the condition held at a place in these tokens.
fn has_condition(chunk: &TraceChunk) -> bool {
    let mut rest = chunk.tokens.as_slice();
    while let Ok(Some((token, length))) = Token::read(rest) {
        if token == Token::Condition {
            return true;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use ingraft_report::{TraceEnd, TracedCode, TracedProgram};

    use super::*;

    const MS: u64 = 1_000_000;

    fn chunk(sequence: u64, tokens: &[Token]) -> TraceRecord {
        let tokens = tokens.iter().flat_map(|token| token.bytes().expect("small")).collect();
        TraceRecord::Chunk(TraceChunk { tid: 7, stream: 1, sequence, time_ns: (100 + sequence) * MS, ticks: 0, tokens })
    }

    /// Takes the beginning of a file and a chunk for each millisecond. Returns the numbers of the chunks at which the condition held.
    fn record(recorder: &mut TraceBuffer, chunks: u64, condition: Option<u64>) -> Vec<u64> {
        let program = TraceRecord::Program(TracedProgram { began_ns: 100 * MS, ..TracedProgram::default() });
        let head = [program, TraceRecord::Code(TracedCode::default())];
        let mut bytes = trace_beginning();
        head.iter().for_each(|record| bytes.extend(record.to_bytes().expect("a record")));
        let (last, when) = (Duration::from_millis(10), true);
        assert!(!recorder.keep(&bytes, last, when).expect("records"));
        let mut held = Vec::new();
        for n in 0..chunks {
            let tokens =
                if condition == Some(n) { vec![Token::Enter(0), Token::Condition] } else { vec![Token::Enter(0)] };
            if recorder.keep(&chunk(n, &tokens).to_bytes().expect("a record"), last, when).expect("records") {
                held.push(n);
            }
            assert!(recorder.chunks.len() <= 14, "more than the newest part is kept");
        }
        held
    }

    fn kept(recorder: TraceBuffer, cause: NewestCause) -> (NewestPart, Vec<u64>) {
        let records = recorder.finish(cause);
        let newest =
            records.iter().find_map(|record| if let TraceRecord::Newest(n) = record { Some(*n) } else { None });
        let chunks = records.iter().filter_map(|r| if let TraceRecord::Chunk(c) = r { Some(c.sequence) } else { None });
        (newest.expect("a record"), chunks.collect())
    }

    fn recorder() -> TraceBuffer {
        TraceBuffer::new(TracePart::Newest { last: Duration::from_millis(10), when: true })
    }

    #[test]
    fn only_the_newest_part_is_kept() {
        let mut recorder = recorder();
        assert!(record(&mut recorder, 100, None).is_empty());
        let end = TraceRecord::End(TraceEnd { ended_ns: 203 * MS, unbuffered: 0 });
        let last = Duration::from_millis(10);
        assert!(!recorder.keep(&end.to_bytes().expect("a record"), last, true).expect("records"));
        let (newest, chunks) = kept(recorder, NewestCause::Signal);
        assert_eq!(chunks, (93..100).collect::<Vec<u64>>());
        assert_eq!(
            newest,
            NewestPart { from_ns: 192 * MS, until_ns: 203 * MS, cause: NewestCause::Signal, dropped: 186 }
        );
    }

    #[test]
    fn a_condition_keeps_the_time_before_it() {
        let mut recorder = recorder();
        assert_eq!(record(&mut recorder, 53, Some(50)), [50]);
        let (newest, chunks) = kept(recorder, NewestCause::End);
        assert_eq!(chunks, (40..53).collect::<Vec<u64>>());
        assert_eq!(
            newest,
            NewestPart { from_ns: 139 * MS, until_ns: 150 * MS, cause: NewestCause::Condition, dropped: 80 }
        );
    }

    #[test]
    fn a_short_trace_is_kept_whole() {
        let mut recorder = recorder();
        record(&mut recorder, 5, None);
        let (newest, chunks) = kept(recorder, NewestCause::End);
        assert_eq!((chunks, newest.from_ns, newest.dropped), (vec![0, 1, 2, 3, 4], 100 * MS, 0));
    }
}
