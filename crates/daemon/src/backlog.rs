//! Readings that wait for a slow client, and the differences between a reading and the one before.

use std::collections::VecDeque;
use std::sync::Arc;

use ingraft_api::{Details, KeyValue, NamedPart, Reading, ThreadValue, Value};
use ingraft_model::{Distribution, KeyPart};
use ingraft_wire::value::pair_value;
use ingraft_wire::{PART_BYTES, ProtocolFailure, sample, v1};
use prost::Message;

use crate::quota::{CountedBytes, Payer};

/// A queue of at most `capacity` readings. If it is full, a new reading drops the oldest.
#[derive(Debug)]
pub struct Backlog<T> {
    waiting: VecDeque<(u64, T)>,
    capacity: usize,
    next: u64,
    delivered: u64,
}

/// A reading taken out of a [`Backlog`].
#[derive(Debug, PartialEq, Eq)]
pub struct TakenReading<T> {
    /// Number of the reading, from 0. Dropped readings are numbered too.
    pub sequence: u64,
    /// Number of readings that were dropped since the last one that was taken.
    pub dropped: u64,
    /// The reading.
    pub item: T,
}

impl<T> Backlog<T> {
    /// Returns an empty backlog for `capacity` readings, at least one.
    pub fn new(capacity: usize) -> Self {
        Backlog { waiting: VecDeque::new(), capacity: capacity.max(1), next: 0, delivered: 0 }
    }

    /// Adds the newest reading.
    pub fn push(&mut self, item: T) {
        if self.waiting.len() == self.capacity {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.next, item));
        self.next += 1;
    }

    /// Takes the oldest reading of the queue.
    pub fn take(&mut self) -> Option<TakenReading<T>> {
        let (sequence, item) = self.waiting.pop_front()?;
        let dropped = sequence - self.delivered;
        self.delivered = sequence + 1;
        Some(TakenReading { sequence, dropped, item })
    }

    /// Drops the oldest reading of the queue. Returns false if the queue is empty.
    pub fn drop_oldest(&mut self) -> bool {
        self.waiting.pop_front().is_some()
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A reading whose bytes count towards the quota of the client's user while it is kept.
#[derive(Debug)]
pub struct KeptReading {
    reading: Reading,
    bytes: usize,
    _held: Option<CountedBytes>,
}

impl KeptReading {
    /// Counts the bytes of a reading in `held`, in place of those counted there. Fails if too many bytes of the user wait already.
    pub fn new(reading: Reading, mut held: Option<CountedBytes>) -> Result<KeptReading, ProtocolFailure> {
        let bytes = weight(&reading);
        if let Some(held) = &mut held {
            held.resize(bytes)?;
        }
        Ok(KeptReading { reading, bytes, _held: held })
    }

    /// Keeps a reading that cannot be repeated. Its bytes are counted only if the quota has room for them.
    pub fn last(reading: Reading, payer: Option<&Payer>) -> KeptReading {
        let bytes = weight(&reading);
        let held = payer.and_then(|payer| payer.hold(bytes).ok());
        KeptReading { reading, bytes, _held: held }
    }

    /// Returns the reading.
    pub fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Returns the size of the reading in memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Returns the size of a reading in memory, in bytes.
fn weight(reading: &Reading) -> usize {
    let plain = Value::default();
    let more: usize = reading
        .values
        .iter()
        .map(Value::details)
        // All values without details share one instance, which is not counted.
        .filter(|details| !std::ptr::eq(*details, plain.details()))
        .map(weight_of_details)
        .sum();
    size_of::<Reading>() + reading.values.len() * size_of::<Value>() + more
}

fn weight_of_details(details: &Details) -> usize {
    let distribution = |d: &Option<Box<Distribution>>| {
        d.as_ref().map_or(0, |d| size_of::<Distribution>() + size_of_val(d.buckets.as_slice()))
    };
    let threads =
        details.threads.iter().map(|t| size_of::<ThreadValue>() + distribution(&t.distribution)).sum::<usize>();
    let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
    let part = |v: &NamedPart| match &v.part {
        KeyPart::Text { bytes, .. } => size_of::<NamedPart>() + bytes.len(),
        KeyPart::Number(_) | KeyPart::Unreadable => size_of::<NamedPart>() + name(&v.name),
    };
    let key = |v: &KeyValue| size_of::<KeyValue>() + name(&v.name) + v.parts.iter().map(part).sum::<usize>();
    let keys = details.keys.iter().flat_map(|keys| &keys.values).map(key).sum::<usize>();
    size_of::<Details>() + distribution(&details.distribution) + threads + keys
}

/// Turns readings into samples that contain only the differences from the previous sample. The first sample contains all values.
#[derive(Debug, Default)]
pub struct Delta {
    last: Option<Arc<KeptReading>>,
}

impl Delta {
    /// Returns the sample of a reading, in parts.
    pub fn changes(&mut self, taken: TakenReading<KeptReading>) -> Changes {
        let TakenReading { sequence, dropped, item } = taken;
        let now = Arc::new(item);
        let last = self.last.replace(Arc::clone(&now));
        Changes { now, last, sequence, dropped, next: 0, parts: VecDeque::new(), is_over: false }
    }
}

/// The parts of a sample. Each part is encoded only when the client is ready for it.
#[derive(Debug)]
pub struct Changes {
    now: Arc<KeptReading>,
    last: Option<Arc<KeptReading>>,
    sequence: u64,
    dropped: u64,
    /// Index of the first value that has not been compared yet.
    next: usize,
    parts: VecDeque<v1::Sample>,
    is_over: bool,
}

/// Maximum number of values in a part. As messages, they take many times the memory that they take on the wire.
const PART_VALUES: usize = 16 << 10;
/// Maximum number of bytes that a sample takes for each value besides the value itself, and for itself besides its values.
const FRAME_BYTES: (usize, usize) = (12, 64);

impl Changes {
    /// Returns a sample with all values of a reading.
    pub fn whole(reading: KeptReading) -> Changes {
        Delta::default().changes(TakenReading { sequence: 0, dropped: 0, item: reading })
    }

    /// Returns the first value from `next` on that differs from the previous reading.
    fn next_changed(&self) -> Option<(usize, &Value)> {
        let last = self.last.as_ref().map(|last| &last.reading.values);
        let values = self.now.reading.values.iter().enumerate().skip(self.next);
        values.into_iter().find(|(i, value)| last.is_none_or(|last| last.get(*i) != Some(*value)))
    }

    /// Takes the values of the next part: at least one, if any is left.
    fn gather(&mut self) -> Vec<v1::PairValue> {
        let (mut values, mut room) = (Vec::new(), PART_BYTES - FRAME_BYTES.1);
        while values.len() < PART_VALUES
            && let Some((index, value)) = self.next_changed()
        {
            let value = pair_value(index, value);
            let bytes = value.encoded_len() + FRAME_BYTES.0;
            if bytes > room && !values.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            self.next = index + 1;
            values.push(value);
        }
        values
    }
}

impl Iterator for Changes {
    type Item = v1::Sample;

    fn next(&mut self) -> Option<v1::Sample> {
        if self.parts.is_empty() && !self.is_over {
            let values = self.gather();
            self.is_over = self.next_changed().is_none();
            let (sequence, dropped, time_ns) = (self.sequence, self.dropped, self.now.reading.time_ns);
            self.parts.extend(sample::split(v1::Sample { sequence, time_ns, dropped, values, more: false }));
            if let (Some(last), false) = (self.parts.back_mut(), self.is_over) {
                last.more = true;
            }
        }
        self.parts.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Activations;
    use proptest::prelude::*;

    use super::*;
    use crate::quota::{QuotaHolder, Quotas, ResourceTable};

    fn free(reading: Reading) -> KeptReading {
        KeptReading::new(reading, None).unwrap()
    }

    /// Returns the sample of a reading. The sample must fit into one part.
    fn sample(delta: &mut Delta, reading: Reading) -> v1::Sample {
        let mut parts = delta.changes(TakenReading { sequence: 0, dropped: 0, item: free(reading) });
        let first = parts.next().unwrap();
        assert!(!first.more && parts.next().is_none());
        first
    }

    #[test]
    fn the_oldest_is_dropped_and_counted() {
        let mut b = Backlog::new(2);
        b.push('a');
        assert_eq!(b.take(), Some(TakenReading { sequence: 0, dropped: 0, item: 'a' }));
        for c in ['b', 'c', 'd', 'e'] {
            b.push(c);
        }
        assert_eq!(b.take(), Some(TakenReading { sequence: 3, dropped: 2, item: 'd' }));
        b.push('f');
        assert_eq!(b.take(), Some(TakenReading { sequence: 4, dropped: 0, item: 'e' }));
        assert_eq!(b.take(), Some(TakenReading { sequence: 5, dropped: 0, item: 'f' }));
        assert_eq!(b.take(), None);
        assert!(b.is_empty());
    }

    fn reading(values: &[i64]) -> Reading {
        let values = values.iter().map(|v| Value::from(*v)).collect();
        Reading { time_ns: 7, values, ended: None }
    }

    proptest! {
        /// After a client has applied the samples, it has the values of the last one, whatever was dropped.
        #[test]
        fn samples_add_up(readings in proptest::collection::vec(proptest::collection::vec(0_i64..3, 4), 1..30), slow in 1_usize..6) {
            let (mut backlog, mut delta) = (Backlog::new(2), Delta::default());
            let mut client = ingraft_wire::Snapshot::new(4);
            for (i, values) in readings.iter().enumerate() {
                backlog.push((values.clone(), reading(values)));
                if i % slow == 0 && let Some(TakenReading { sequence, dropped, item: (expected, item) }) = backlog.take() {
                    let mut parts = delta.changes(TakenReading { sequence, dropped, item: free(item) });
                    prop_assert_eq!(client.apply(parts.next().unwrap()), Ok(true));
                    prop_assert!(parts.next().is_none());
                    let got: Vec<_> = client.values.iter().map(|v| v.value).collect();
                    prop_assert_eq!(got, expected);
                }
            }
        }
    }

    #[test]
    fn a_thread_that_changed_brings_its_pair() {
        let mut delta = Delta::default();
        let with = |tid| {
            let threads = vec![ThreadValue { tid, value: 5, ..ThreadValue::default() }];
            let values = vec![Value::new(5, Details { threads, ..Details::NONE }), Value::from(1)];
            Reading { time_ns: 1, values, ended: None }
        };
        assert_eq!(sample(&mut delta, with(None)).values.len(), 2);
        let second = sample(&mut delta, with(Some(ingraft_model::Tid(9))));
        assert_eq!(second.values.len(), 1);
        assert_eq!(second.values[0].threads, [v1::ThreadValue { tid: Some(9), value: 5, ..Default::default() }]);
        assert_eq!(Changes::whole(free(with(None))).next().unwrap().values.len(), 2);
    }

    #[test]
    fn a_distribution_that_changed_brings_its_pair() {
        let mut delta = Delta::default();
        let mut with = |max, left| {
            let distribution = Some(Box::new(Distribution { max, ..Distribution::default() }));
            let activations = Activations { left, ..Activations::default() };
            let values = vec![Value::new(5, Details { distribution, activations, ..Details::NONE })];
            sample(&mut delta, Reading { time_ns: 1, values, ended: None })
        };
        assert_eq!(with(7, 0).values[0].activations, None);
        assert_eq!(with(7, 0).values.len(), 0);
        assert_eq!(with(8, 0).values[0].distribution.as_ref().map(|d| d.max), Some(8));
        assert_eq!(with(8, 1).values[0].activations.map(|a| a.left), Some(1));
    }

    #[test]
    fn a_large_sample_comes_in_parts_that_are_made_one_by_one() {
        let mut delta = Delta::default();
        let count = 3 * PART_VALUES;
        let parts: Vec<_> = {
            let item = free(reading(&vec![5; count]));
            delta.changes(TakenReading { sequence: 3, dropped: 2, item }).collect()
        };
        assert_eq!(parts.iter().map(|part| part.more).collect::<Vec<_>>(), [true, true, false]);
        let mut client = ingraft_wire::Snapshot::new(count);
        for part in parts {
            assert_eq!((part.sequence, part.dropped, part.time_ns), (3, 2, 7));
            let more = part.more;
            assert_eq!(client.apply(part), Ok(!more));
        }
        assert!(client.values.iter().all(|v| v.value == 5));
        let mut values = vec![5; count];
        values[count - 1] = 6;
        let last = sample(&mut delta, reading(&values));
        assert_eq!(last.values.iter().map(|v| (v.pair as usize, v.value)).collect::<Vec<_>>(), [(count - 1, 6)]);
        assert!(sample(&mut delta, reading(&values)).values.is_empty(), "nothing has changed");
    }

    #[test]
    fn readings_count_as_long_as_anything_needs_them() {
        let table = ResourceTable::new(Quotas::default(), 1 << 20);
        let payer = table.call(QuotaHolder::User(4_000_001)).unwrap().payer();
        let keep = |values: &[i64]| KeptReading::new(reading(values), Some(payer.hold(0).unwrap())).unwrap();
        let (mut backlog, mut delta) = (Backlog::new(2), Delta::default());
        let one = keep(&[1; 1000]).bytes();
        assert!(one >= 16_000 && payer.held() == 0, "{one}");
        (0..3).for_each(|_| backlog.push(keep(&[1; 1000])));
        assert_eq!(payer.held(), 2 * one, "two wait");
        let changes = delta.changes(backlog.take().unwrap());
        assert!(backlog.drop_oldest() && !backlog.drop_oldest());
        assert_eq!(payer.held(), one);
        drop(changes);
        assert_eq!(payer.held(), one, "the next sample is compared with it");
        drop(delta);
        assert_eq!(payer.held(), 0);
        let refused =
            KeptReading::new(reading(&vec![1; 4 << 20]), Some(payer.hold(0).unwrap())).map(|_| ()).unwrap_err();
        assert_eq!((refused.reason.as_str(), payer.held()), ("quota_exceeded", 0));
    }
}
