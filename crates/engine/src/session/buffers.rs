//! Buffers to which each thread of a target appends bytes, and which the engine drains while the target runs.
//!
//! Code of a measurement appends whole records to the buffer in its thread's shard. If a buffer is full, appends are lost, and the engine
//! notes a gap. Or a thread whose buffer is full waits until the engine has drained all buffers. The wait makes system calls, so it ends for
//! good when a filter of system calls appears in the target.

use std::any::TypeId;
use std::time::{Duration, Instant};

use ingraft_model::buffer::{BufferReader, LOST, Words as _};
use ingraft_model::records::{RecordCounts, RecordReader, TakenRecord};
use ingraft_model::{Capacity, ContextShape, ContextTree};
use ingraft_process::{SharedArea, TickClock};
use rustc_hash::FxHashMap;

use crate::api::MeasurementId;
use crate::readings::values::Shards;

use super::clocks::now_ns;
use super::roster::Roster;

/// Largest number of bytes that are kept of threads that have ended, until somebody drains the buffers. Of further threads, only a gap is
/// told.
const ENDED_MAX: usize = 64 << 20;

/// Largest number of bytes of records of values that are drained at one time. What is more stays in the buffers.
pub(super) const VALUES_MAX: u64 = 8 << 20;
/// The same when their code was taken out. What is more is lost.
pub(super) const LAST_VALUES_MAX: u64 = 64 << 20;

/// Time between two checks for filters of system calls while threads may wait for room.
const FILTERS_EVERY: Duration = Duration::from_millis(50);

/// Records that code appends to buffers.
pub(crate) trait Records: 'static {
    /// Length of the complete records at the beginning of these bytes. What follows is the beginning of a record (`Ok`) or none (`Err`).
    fn complete(bytes: &[u8]) -> Result<usize, usize>;
}

/// The buffers of a measurement when its code begins to append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBuffers {
    /// First counter of the buffer in every shard.
    pub first: u32,
    /// Capacity of each thread's buffer.
    pub capacity: Capacity,
    /// Whether the bytes that are drained together have a time by the clock of timers.
    pub times: bool,
    /// Whether threads wait for room in their buffers.
    pub waits: bool,
    /// Whether threads append records of values ([`ingraft_model::records`]).
    pub values: bool,
    /// Whether the records of values come in groups, which are taken once they are kept.
    pub grouped: bool,
    /// Largest number of records of values that the code of a thread makes between two times at which they are drained; `None` for no limit.
    pub burst: Option<u32>,
    /// The tree of contexts that the last value of each record names a context of; `None` if it is another value.
    pub contexts: Option<RecordContexts>,
}

/// A tree of contexts that records name contexts of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordContexts {
    /// First counter of the tree in every shard.
    pub first: u32,
    /// Size of the tree.
    pub shape: ContextShape,
}

/// Records of one thread that were drained together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Id of the thread.
    pub tid: u32,
    /// Number of the thread's stream; a later thread with the same id has another one.
    pub stream: u32,
    /// Number of these records among all of the stream.
    pub sequence: u64,
    /// Unix time in nanoseconds at which they were drained.
    pub time_ns: u64,
    /// The same time in ticks of the clock of timers, or 0.
    pub ticks: u64,
    /// The records.
    pub bytes: Vec<u8>,
    /// Whether records were lost after these.
    pub gap: bool,
}

/// Rest of the buffers of a measurement whose code was taken out.
#[derive(Debug)]
pub(crate) struct LastRecords {
    /// The last records.
    pub drained: Vec<Drained>,
    /// Number of appends by threads without a buffer of their own.
    pub unbuffered: u64,
    /// Whether the waits have ended before, because the program filters its system calls.
    pub filtered: bool,
    /// Numbers of records of values; the lost ones contain those of threads without a buffer.
    pub counts: RecordCounts,
    /// The contexts that records name, with the callers of each.
    pub tree: ContextTree,
}

/// The buffers of all measurements that have some.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    drains: FxHashMap<MeasurementId, Drain>,
}

/// The buffers of a measurement.
#[derive(Debug)]
struct Drain {
    new: NewBuffers,
    /// Type of the records.
    records: TypeId,
    complete: fn(&[u8]) -> Result<usize, usize>,
    /// Waits of threads for room; `None` if no thread may wait.
    waits: Option<Waits>,
    /// Whether the waits have ended because the program filters its system calls.
    filtered: bool,
    /// The stream of each shard that a thread holds.
    streams: FxHashMap<u32, Stream>,
    /// Number of the next stream.
    next: u32,
    /// Last records of threads that have ended, and records of buffers that fill fast.
    ended: Vec<Drained>,
    /// Numbers of records of values of threads that have ended.
    ended_counts: RecordCounts,
    /// Number of threads that had made records of values when the buffers were drained last, since the time before.
    makers: u32,
    /// The contexts that records name, with the callers of each.
    tree: ContextTree,
}

/// Waits of threads for room in their buffers.
#[derive(Debug)]
struct Waits {
    /// Number of times that the engine has told threads that the buffers are empty.
    drains: u32,
    /// Time of the latest check for filters of system calls.
    checked: Instant,
}

/// The records of one thread.
#[derive(Debug)]
struct Stream {
    identity: u64,
    number: u32,
    sequence: u64,
    /// Number of records of values that the thread had made when its buffer was drained last.
    made: u64,
    reader: StreamReader,
    /// Beginning of a record whose end was not written yet.
    rest: Vec<u8>,
    /// Numbers that [`named_context`] has returned, by the words that name them.
    contexts: FxHashMap<u64, u64>,
}

/// The reader of a thread's buffer.
#[derive(Debug)]
enum StreamReader {
    /// Of bytes.
    Bytes(BufferReader),
    /// Of records of values.
    Values(RecordReader),
}

/// Records of values as bytes: the number of the statement and the number of words, four bytes each, and the words.
fn bytes_of(records: Vec<TakenRecord>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(records.iter().map(|record| 8 + 8 * record.words.len()).sum());
    for TakenRecord { number, words } in records {
        bytes.extend(u32::from(number).to_le_bytes());
        bytes.extend(u32::try_from(words.len()).unwrap_or_default().to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes
}

/// Reads records of values from the bytes of [`bytes_of`].
pub(crate) fn values_in(bytes: &[u8]) -> Vec<TakenRecord> {
    let word = |at: usize| bytes.get(8 * at..8 * at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(head) = word(at) {
        let length = (head >> 32) as usize;
        let words: Vec<u64> = (1..=length).map_while(|n| word(at + n)).collect();
        records.push(TakenRecord { number: head as u16, words });
        at += 1 + length;
    }
    records
}

/// Number of the context that a word of a thread's tree names: 0 outside of all contexts, otherwise 1 plus its index in `tree`. `known` has
/// the numbers of words that were looked up before: a place in the tree of a thread never becomes that of another context.
fn named_context(
    tree: &mut ContextTree,
    known: &mut FxHashMap<u64, u64>,
    shape: ContextShape,
    word: u64,
    load: impl Fn(u32) -> i64,
) -> u64 {
    *known.entry(word).or_insert_with(|| tree.found(shape, word, load).map_or(0, |index| index as u64 + 1))
}

fn end_waits(area: &SharedArea) {
    if let Err(error) = area.end_waits() {
        tracing::debug!(%error, "threads wait for room until their time is over");
    }
}

impl Buffers {
    /// Begins to drain the buffers of a measurement whose code was inserted.
    pub(super) fn begin<R: Records>(&mut self, id: MeasurementId, new: NewBuffers) {
        // `permit_waits` has told once.
        let waits = new.waits.then(|| Waits { drains: 1, checked: Instant::now() });
        let drain = Drain {
            new,
            records: TypeId::of::<R>(),
            complete: R::complete,
            waits,
            filtered: false,
            streams: FxHashMap::default(),
            next: 0,
            ended: Vec::new(),
            ended_counts: RecordCounts::default(),
            makers: 1,
            tree: ContextTree::default(),
        };
        self.drains.insert(id, drain);
    }

    /// Drains the buffers of a measurement, if it has some with records of this type; of records of values, at most so many bytes. `clock` is
    /// the clock of timers.
    pub(super) fn drain<R: Records>(
        &mut self,
        (id, mut most): (MeasurementId, u64),
        area: Option<&SharedArea>,
        roster: &Roster,
        clock: Option<&TickClock>,
    ) -> Option<Vec<Drained>> {
        let drain = self.drains.get_mut(&id).filter(|drain| drain.records == TypeId::of::<R>())?;
        let mut drained = std::mem::take(&mut drain.ended);
        let Some(area) = area else { return Some(drained) };
        let now = drain.now(clock);
        let mut makers = 0;
        for (shard, identity) in Shards::claims(area) {
            let before = drain.made(shard);
            drained.extend(drain.take(area, (shard, identity), roster, (now, &mut most)));
            makers += u32::from(drain.made(shard) != before);
        }
        drain.makers = makers.max(1);
        if let Some(waits) = &mut drain.waits
            && let Err(error) = area.drained(&mut waits.drains)
        {
            tracing::debug!(%error, "threads that wait for room are not told");
        }
        Some(drained)
    }

    /// Whether threads make so many records for a measurement that [`Buffers::empty`] should be called every few milliseconds.
    pub(super) fn fill_fast(&self) -> bool {
        self.drains.values().any(|drain| drain.new.contexts.is_some())
    }

    /// Takes records out of buffers that fill fast, and keeps them until they are drained.
    pub(super) fn empty(&mut self, area: &SharedArea, roster: &Roster, clock: Option<&TickClock>) {
        for drain in self.drains.values_mut().filter(|drain| drain.new.contexts.is_some()) {
            let held: usize = drain.ended.iter().map(|drained| drained.bytes.len()).sum();
            // Half of the room is for the last records of threads that end.
            let mut most = (ENDED_MAX / 2).saturating_sub(held) as u64;
            let now = drain.now(clock);
            for claim in Shards::claims(area) {
                let taken = drain.take(area, claim, roster, (now, &mut most));
                drain.ended.extend(taken);
            }
        }
    }

    /// Ends the buffers of a measurement whose last records are these; `None` if it has no buffers.
    pub(super) fn end(
        &mut self,
        id: MeasurementId,
        area: Option<&SharedArea>,
        drained: Vec<Drained>,
    ) -> Option<LastRecords> {
        let drain = self.drains.remove(&id)?;
        let NewBuffers { first, capacity, .. } = drain.new;
        let counts = drain.counts(area);
        // Threads without a shard of their own count here what they would have appended.
        let unbuffered = area.and_then(|area| Some(area.buffer(0, first, capacity.slots())?.load(LOST)));
        if let Some(area) = area.filter(|_| drain.waits.is_some()) {
            end_waits(area);
        }
        let (unbuffered, filtered, tree) = (unbuffered.unwrap_or(0), drain.filtered, drain.tree);
        Some(LastRecords { drained, unbuffered, filtered, counts, tree })
    }

    /// The contexts that records of a measurement have named so far.
    pub(super) fn tree(&self, id: MeasurementId) -> Option<&ContextTree> {
        self.drains.get(&id).map(|drain| &drain.tree)
    }

    /// Numbers of records of values of a measurement; `None` if it has no buffers.
    pub(super) fn counts(&self, id: MeasurementId, area: Option<&SharedArea>) -> Option<RecordCounts> {
        Some(self.drains.get(&id)?.counts(area))
    }

    /// Whether a check for filters of system calls is due, because threads of a measurement wait for room. The next check is due later.
    pub(super) fn is_check_due(&mut self, id: MeasurementId, now: Instant) -> bool {
        let waits = self.drains.get_mut(&id).and_then(|drain| drain.waits.as_mut());
        let due = waits.filter(|waits| now.saturating_duration_since(waits.checked) >= FILTERS_EVERY);
        due.map(|waits| waits.checked = now).is_some()
    }

    /// Notes that the waits of a measurement have ended because the program filters its system calls.
    pub(super) fn note_filters(&mut self, id: MeasurementId) {
        if let Some(drain) = self.drains.get_mut(&id) {
            drain.filtered = true;
        }
    }

    /// Ends the waits of threads for room in their buffers for good.
    pub(super) fn end_waits(&mut self, area: Option<&SharedArea>) {
        let mut waits = false;
        self.drains.values_mut().for_each(|drain| waits |= drain.waits.take().is_some());
        if let Some(area) = area.filter(|_| waits) {
            end_waits(area);
        }
    }

    /// Whether threads of a measurement wait for room in their buffers; of any one without an id.
    pub(super) fn wait(&self, id: Option<MeasurementId>) -> bool {
        self.drains.iter().any(|(of, drain)| drain.waits.is_some() && id.is_none_or(|id| id == *of))
    }

    /// Forgets all buffers.
    pub(super) fn clear(&mut self) {
        self.drains.clear();
    }

    /// Takes the last records of a thread that has ended, before its shard is freed.
    pub(super) fn end_streams(
        &mut self,
        area: &SharedArea,
        (shard, identity): (u32, u64),
        roster: &Roster,
        clock: Option<&TickClock>,
    ) {
        for drain in self.drains.values_mut() {
            let now = drain.now(clock);
            let last = drain.take(area, (shard, identity), roster, (now, &mut LAST_VALUES_MAX.clone()));
            let held: usize = drain.ended.iter().map(|drained| drained.bytes.len()).sum();
            // Nobody may come for the records.
            let kept = last.map(|last| last.bounded(ENDED_MAX.saturating_sub(held)));
            // Lost records of values are counted, so a gap tells nothing.
            drain.ended.extend(kept.filter(|kept| !drain.new.values || !kept.bytes.is_empty()));
            drain.streams.remove(&shard);
            drain.ended_counts = drain.ended_counts.plus(drain.counts_of(area, shard));
        }
    }
}

impl Drain {
    /// The present moment: ticks of the clock, or 0 without times, and Unix time. It is read before records are taken, so that it is later
    /// than the times in the records before.
    fn now(&self, clock: Option<&TickClock>) -> (u64, u64) {
        clock.filter(|_| self.new.times).map_or_else(|| (0, now_ns()), TickClock::with_unix_time)
    }

    /// Numbers of records of values of all threads.
    fn counts(&self, area: Option<&SharedArea>) -> RecordCounts {
        let Some(area) = area.filter(|_| self.new.values) else { return self.ended_counts };
        let shards = Shards::claims(area).into_iter().map(|(shard, _)| shard);
        let live = shards.map(|shard| self.counts_of(area, shard));
        // Threads without a shard of their own only count what they lose.
        let shared = RecordCounts { made: 0, skipped: 0, ..self.counts_of(area, 0) };
        let unbuffered = RecordCounts { made: shared.lost, ..shared };
        live.fold(self.ended_counts.plus(unbuffered), RecordCounts::plus)
    }

    /// Number of records of values that the thread of a shard had made when its buffer was drained last.
    fn made(&self, shard: u32) -> u64 {
        self.streams.get(&shard).map_or(0, |stream| stream.made)
    }

    fn counts_of(&self, area: &SharedArea, shard: u32) -> RecordCounts {
        let NewBuffers { first, capacity, values, .. } = self.new;
        let buffer = area.buffer(shard, first, capacity.slots()).filter(|_| values);
        buffer.map_or_else(RecordCounts::default, |buffer| RecordReader::counts(&buffer))
    }

    /// Takes the records of the thread that holds a shard.
    fn take(
        &mut self,
        area: &SharedArea,
        (shard, identity): (u32, u64),
        roster: &Roster,
        ((ticks, time_ns), most): ((u64, u64), &mut u64),
    ) -> Option<Drained> {
        let NewBuffers { first, capacity, burst, .. } = self.new;
        let buffer = area.buffer(shard, first, capacity.slots())?;
        // The threads that make records share what is permitted.
        let withheld = burst.map_or(0, |burst| burst - (burst / self.makers.max(1)).clamp(1, burst.max(1)));
        let known = self.streams.get(&shard).is_some_and(|stream| stream.identity == identity);
        if !known {
            let number = self.next;
            let reader = match self.new.values {
                true => StreamReader::Values(RecordReader::new(capacity, self.new.grouped)),
                false => StreamReader::Bytes(BufferReader::new(capacity)),
            };
            self.next += 1;
            let (rest, contexts) = (Vec::new(), FxHashMap::default());
            self.streams.insert(shard, Stream { identity, number, sequence: 0, made: 0, reader, rest, contexts });
        }
        let stream = self.streams.get_mut(&shard)?;
        let (bytes, gap) = match &mut stream.reader {
            StreamReader::Bytes(reader) => {
                let taken = reader.take(&buffer);
                stream.complete((taken.bytes, taken.gap), self.complete)
            }
            StreamReader::Values(reader) => {
                let (mut records, broken) = reader.take(&buffer, *most, withheld);
                if let Some(of) = self.new.contexts {
                    let load = |n| Shards::load(area, shard, of.first + n);
                    let named = records.iter_mut().filter_map(|record| record.words.last_mut());
                    named.for_each(|word| {
                        *word = named_context(&mut self.tree, &mut stream.contexts, of.shape, *word, load)
                    });
                }
                stream.made = RecordReader::counts(&buffer).made;
                let bytes = bytes_of(records);
                *most = most.saturating_sub(bytes.len() as u64);
                (bytes, broken)
            }
        };
        if bytes.is_empty() && !gap {
            return None;
        }
        let sequence = stream.sequence;
        stream.sequence += 1;
        let tid = roster.noted(identity).map_or(identity as u32, |tid| tid.0.cast_unsigned());
        Some(Drained { tid, stream: stream.number, sequence, time_ns, ticks, bytes, gap })
    }
}

impl Stream {
    /// The complete records among the bytes that were left before and these, and whether records were lost after them. Keeps the rest.
    fn complete(
        &mut self,
        (more, gap): (Vec<u8>, bool),
        complete: fn(&[u8]) -> Result<usize, usize>,
    ) -> (Vec<u8>, bool) {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend(more);
        let (length, broken) = match complete(&bytes) {
            Ok(length) => (length, false),
            Err(length) => (length, true),
        };
        self.rest = bytes.split_off(length.min(bytes.len()));
        if gap || broken {
            // The rest is the work of the program, if there is any: every append is whole before a gap.
            self.rest.clear();
        }
        (bytes, gap || broken)
    }
}

impl Drained {
    /// These records, or a gap in their place if they have more bytes.
    fn bounded(self, most: usize) -> Self {
        if self.bytes.len() <= most { self } else { Drained { bytes: Vec::new(), gap: true, ..self } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of two equal bytes.
    fn pairs(bytes: &[u8]) -> Result<usize, usize> {
        let whole = bytes.chunks_exact(2).take_while(|pair| pair[0] == pair[1]).count() * 2;
        if bytes.len() - whole < 2 { Ok(whole) } else { Err(whole) }
    }

    fn stream() -> Stream {
        let reader = StreamReader::Bytes(BufferReader::new(Capacity::of_bytes(0).expect("a capacity")));
        let (rest, contexts) = (Vec::new(), FxHashMap::default());
        Stream { identity: 1, number: 0, sequence: 0, made: 0, reader, rest, contexts }
    }

    #[test]
    fn the_beginning_of_a_record_waits_for_its_end() {
        let mut stream = stream();
        assert_eq!(stream.complete((vec![1, 1, 2], false), pairs), (vec![1, 1], false));
        assert_eq!(stream.complete((Vec::new(), false), pairs), (Vec::new(), false));
        assert_eq!(stream.complete((vec![2, 3], false), pairs), (vec![2, 2], false));
        assert_eq!(stream.complete((vec![3], false), pairs), (vec![3, 3], false));
    }

    #[test]
    fn the_rest_before_a_gap_is_dropped() {
        let mut stream = stream();
        assert_eq!(stream.complete((vec![1, 1, 2], true), pairs), (vec![1, 1], true));
        assert_eq!(stream.complete((vec![5, 5], false), pairs), (vec![5, 5], false));
    }

    #[test]
    fn records_of_values_come_back_from_their_bytes() {
        let record = |number, words: &[u64]| TakenRecord { number, words: words.to_vec() };
        let records = vec![record(3, &[1, 0, u64::MAX]), record(0, &[]), record(65_534, &[7])];
        let bytes = bytes_of(records.clone());
        assert_eq!(values_in(&bytes), records);
        for cut in 0..bytes.len() {
            assert!(values_in(&bytes[..cut]).len() <= records.len());
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_a_gap() {
        let mut stream = stream();
        assert_eq!(stream.complete((vec![1, 1, 2, 3, 4, 4], false), pairs), (vec![1, 1], true));
        assert_eq!(stream.complete((vec![6, 6], false), pairs), (vec![6, 6], false));
    }

    #[test]
    fn filters_are_looked_for_while_threads_wait() {
        struct Bytes;
        impl Records for Bytes {
            fn complete(bytes: &[u8]) -> Result<usize, usize> {
                Ok(bytes.len())
            }
        }
        let (mut buffers, begin) = (Buffers::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        let [waiting, other] = [MeasurementId(1), MeasurementId(2)];
        for (id, waits) in [(waiting, true), (other, false)] {
            let capacity = Capacity::of_bytes(0).expect("a capacity");
            buffers.begin::<Bytes>(
                id,
                NewBuffers {
                    first: 0,
                    capacity,
                    times: false,
                    waits,
                    values: false,
                    grouped: false,
                    burst: None,
                    contexts: None,
                },
            );
        }
        assert!(buffers.wait(Some(waiting)) && !buffers.wait(Some(other)) && buffers.wait(None));
        assert!(!buffers.is_check_due(waiting, begin), "the measurement has just begun");
        assert!(buffers.is_check_due(waiting, at(60_000)));
        assert!(!buffers.is_check_due(waiting, at(60_049)));
        assert!(buffers.is_check_due(waiting, at(60_050)));
        assert!(!buffers.is_check_due(other, at(60_000)), "no thread waits");
        assert!(!buffers.is_check_due(MeasurementId(3), at(60_000)), "it has no buffers");
        buffers.note_filters(waiting);
        buffers.end_waits(None);
        assert!(!buffers.wait(None) && !buffers.is_check_due(waiting, at(120_000)));
        let ended = buffers.end(waiting, None, Vec::new()).expect("its buffers");
        assert!(ended.filtered && buffers.end(waiting, None, Vec::new()).is_none());
        assert!(buffers.end(other, None, Vec::new()).is_some_and(|ended| !ended.filtered));
    }

    #[test]
    fn records_beyond_the_bound_are_a_gap() {
        let drained = Drained { stream: 3, bytes: vec![1; 8], ..Drained::default() };
        assert_eq!(drained.clone().bounded(8), drained);
        assert_eq!(drained.bounded(7), Drained { stream: 3, gap: true, ..Drained::default() });
    }
}
