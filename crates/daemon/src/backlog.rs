//! Readings that wait for a slow reader, and what of a reading is new to a client.

use std::collections::VecDeque;

use ingraft_engine::{Counted, KeyValue, Keys, Reading, TakenOut, ThreadValue, Value};
use ingraft_model::{Activations, ObjectState};
use ingraft_wire::v1;

/// At most so many readings wait; one more drops the oldest.
#[derive(Debug)]
pub struct Backlog<T> {
    waiting: VecDeque<(u64, T)>,
    capacity: usize,
    next: u64,
    delivered: u64,
}

/// A reading taken out of a [`Backlog`].
#[derive(Debug, PartialEq, Eq)]
pub struct Taken<T> {
    /// Its number, from 0, dropped ones counted.
    pub sequence: u64,
    /// How many were dropped between the one taken before and this one.
    pub dropped: u64,
    /// The reading.
    pub item: T,
}

impl<T> Backlog<T> {
    /// For so many readings, at least one.
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

    /// Takes the oldest reading that waits.
    pub fn take(&mut self) -> Option<Taken<T>> {
        let (sequence, item) = self.waiting.pop_front()?;
        let dropped = sequence - self.delivered;
        self.delivered = sequence + 1;
        Some(Taken { sequence, dropped, item })
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Turns readings into samples that hold only what changed since the sample before; the first holds everything.
#[derive(Debug, Default)]
pub struct Delta {
    last: Option<Vec<Value>>,
}

impl Delta {
    /// The sample of a reading.
    pub fn sample(&mut self, taken: Taken<Reading>) -> v1::Sample {
        let Taken { sequence, dropped, item: Reading { time_ns, values, .. } } = taken;
        let changed = match &self.last {
            Some(last) => pair_values(values.iter().enumerate().filter(|(i, value)| last.get(*i) != Some(*value))),
            None => pair_values(values.iter().enumerate()),
        };
        self.last = Some(values);
        v1::Sample { sequence, time_ns, dropped, values: changed, more: false }
    }
}

/// A sample with all values of a reading.
pub fn whole(reading: &Reading) -> v1::Sample {
    v1::Sample {
        sequence: 0,
        time_ns: reading.time_ns,
        dropped: 0,
        values: pair_values(reading.values.iter().enumerate()),
        more: false,
    }
}

fn pair_values<'a>(values: impl Iterator<Item = (usize, &'a Value)>) -> Vec<v1::PairValue> {
    values
        .map(|(i, value)| {
            let details = value.details();
            v1::PairValue {
                pair: u32::try_from(i).unwrap_or(u32::MAX),
                value: value.value,
                threads: details.threads.iter().map(thread_value).collect(),
                distribution: details.distribution.as_deref().map(Into::into),
                keys: details.keys.as_ref().map(keys),
                object: details.object.map(object),
                activations: activations(details.activations),
                taken_out: details.taken_out.map(taken_out),
                counted: details
                    .counted
                    .map(|Counted { enabled_ns, running_ns }| v1::Counted { enabled_ns, running_ns }),
                slept_ns: details.slept_ns,
            }
        })
        .collect()
}

fn taken_out(why: TakenOut) -> v1::TakenOut {
    let TakenOut { time_ns, hits_per_s, cost_ns_per_s, limit_ns_per_s, own_gs } = why;
    v1::TakenOut { time_ns, hits_per_s, cost_ns_per_s, limit_ns_per_s, own_gs }
}

fn keys(keys: &Keys) -> v1::Keys {
    let each = |v: &KeyValue| v1::KeyValue {
        key: v.key,
        name: v.name.clone().unwrap_or_default(),
        value: v.value,
        object: v.object.map(object),
    };
    v1::Keys { values: keys.values.iter().map(each).collect(), others: keys.others, unlisted: keys.unlisted }
}

fn object(state: ObjectState) -> v1::SyncObject {
    v1::SyncObject { kind: state.kind.name().to_owned(), retired: state.retired }
}

fn thread_value(thread: &ThreadValue) -> v1::ThreadValue {
    v1::ThreadValue {
        tid: ingraft_wire::convert::tid(thread.tid),
        value: thread.value,
        distribution: thread.distribution.as_deref().map(Into::into),
        activations: activations(thread.activations),
        pid: thread.pid.map(|pid| pid.0),
    }
}

fn activations(activations: Activations) -> Option<v1::Activations> {
    (activations != Activations::default()).then(|| activations.into())
}

#[cfg(test)]
mod tests {
    use ingraft_engine::Details;
    use ingraft_model::Distribution;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_is_dropped_and_counted() {
        let mut b = Backlog::new(2);
        b.push('a');
        assert_eq!(b.take(), Some(Taken { sequence: 0, dropped: 0, item: 'a' }));
        for c in ['b', 'c', 'd', 'e'] {
            b.push(c);
        }
        assert_eq!(b.take(), Some(Taken { sequence: 3, dropped: 2, item: 'd' }));
        b.push('f');
        assert_eq!(b.take(), Some(Taken { sequence: 4, dropped: 0, item: 'e' }));
        assert_eq!(b.take(), Some(Taken { sequence: 5, dropped: 0, item: 'f' }));
        assert_eq!(b.take(), None);
        assert!(b.is_empty());
    }

    fn reading(values: &[i64]) -> Reading {
        let values = values.iter().map(|v| Value::from(*v)).collect();
        Reading { time_ns: 7, values, ended: None }
    }

    proptest! {
        /// Whatever is dropped: a client that applies the samples has the values of the last one taken.
        #[test]
        fn samples_add_up(readings in proptest::collection::vec(proptest::collection::vec(0_i64..3, 4), 1..30), slow in 1_usize..6) {
            let (mut backlog, mut delta) = (Backlog::new(2), Delta::default());
            let mut client = ingraft_wire::Snapshot::new(4);
            for (i, values) in readings.iter().enumerate() {
                backlog.push((values.clone(), reading(values)));
                if i % slow == 0 && let Some(Taken { sequence, dropped, item: (expected, item) }) = backlog.take() {
                    let sample = delta.sample(Taken { sequence, dropped, item });
                    prop_assert_eq!(client.apply(sample), Ok(true));
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
        let taken = |item| Taken { sequence: 0, dropped: 0, item };
        assert_eq!(delta.sample(taken(with(None))).values.len(), 2);
        let second = delta.sample(taken(with(Some(ingraft_model::Tid(9)))));
        assert_eq!(second.values.len(), 1);
        assert_eq!(second.values[0].threads, [v1::ThreadValue { tid: Some(9), value: 5, ..Default::default() }]);
        assert_eq!(whole(&with(None)).values.len(), 2);
    }

    #[test]
    fn a_distribution_that_changed_brings_its_pair() {
        let mut delta = Delta::default();
        let mut sample = |max, left| {
            let distribution = Some(Box::new(Distribution { max, ..Distribution::default() }));
            let activations = Activations { left, ..Activations::default() };
            let values = vec![Value::new(5, Details { distribution, activations, ..Details::NONE })];
            delta.sample(Taken { sequence: 0, dropped: 0, item: Reading { time_ns: 1, values, ended: None } })
        };
        assert_eq!(sample(7, 0).values[0].activations, None);
        assert_eq!(sample(7, 0).values.len(), 0);
        assert_eq!(sample(8, 0).values[0].distribution.as_ref().map(|d| d.max), Some(8));
        assert_eq!(sample(8, 1).values[0].activations.map(|a| a.left), Some(1));
    }
}
