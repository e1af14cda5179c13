//! Samples. The server splits them into messages, and the client joins these again.

use ingraft_model::{Activations, Distribution};

use crate::convert::FieldError;
use crate::v1::{self, PairValue, Sample};
use crate::{PART_BYTES, Parts, parts};

/// Maximum size in bytes of a [`Sample`] without its values.
const HEAD_BYTES: usize = 64;

/// Maximum size in bytes of a pair's length.
const LENGTH_BYTES: usize = 10;

/// Splits a sample into messages of at most [`PART_BYTES`]; there is at least one. A pair with many threads may be split too; its first
/// part has the distribution and all other fields except threads.
pub fn split(sample: Sample) -> Vec<Sample> {
    split_at(sample, PART_BYTES)
}

fn split_at(sample: Sample, limit: usize) -> Vec<Sample> {
    let Sample { sequence, time_ns, dropped, values, .. } = sample;
    let part = |values| Sample { sequence, time_ns, dropped, values, more: true };
    let mut out = Vec::new();
    let mut open = Vec::new();
    let mut used = HEAD_BYTES;
    for value in values.into_iter().flat_map(|v| split_threads(v, limit.saturating_sub(HEAD_BYTES))) {
        let size = parts::in_list(&value);
        if used + size > limit && !open.is_empty() {
            out.push(part(std::mem::take(&mut open)));
            used = HEAD_BYTES;
        }
        used += size;
        open.push(value);
    }
    out.push(Sample { more: false, ..part(open) });
    out
}

fn split_threads(value: PairValue, limit: usize) -> Vec<PairValue> {
    if parts::in_list(&value) <= limit {
        return vec![value];
    }
    let PairValue { pair, value, threads, distribution, activations, taken_out, counted, keys, object, slept_ns } =
        value;
    let rest = PairValue { pair, value, ..PairValue::default() };
    let room = limit.saturating_sub(parts::in_list(&rest) + LENGTH_BYTES);
    let first = PairValue { distribution, activations, taken_out, counted, keys, object, slept_ns, ..rest.clone() };
    let others = Parts::with_limit(threads, room).map(|threads| PairValue { threads, ..rest.clone() });
    std::iter::once(first).chain(others).collect()
}

/// The value of one pair, as a client stores it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Values of a vector by key or index.
    pub keys: Option<v1::Keys>,
    /// State of the object that the focus names; `None` if it is unknown.
    pub object: Option<v1::SyncObject>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
    /// Values by thread, if they were requested.
    pub threads: Vec<ThreadValue>,
    /// Set if the engine has removed the code of the pair; the value has not changed since.
    pub taken_out: Option<v1::TakenOut>,
    /// Set if the event was counted for only a part of the time.
    pub counted: Option<v1::Counted>,
    /// Time in nanoseconds that the machine has slept while the value was timed by a clock that does not count sleep correctly.
    pub slept_ns: u64,
}

impl Value {
    /// Share of the time in which the event was counted; `None` if it was counted all the time.
    pub fn counted_share(&self) -> Option<f64> {
        let v1::Counted { enabled_ns, running_ns } = self.counted?;
        Some(if enabled_ns == 0 { 0.0 } else { running_ns as f64 / enabled_ns as f64 })
    }

    /// Converts a value that was counted for a part of the time to an estimate for the whole time. An event that was never counted keeps
    /// its value.
    pub fn scale(&mut self) {
        let Some(v1::Counted { enabled_ns, running_ns }) = self.counted.filter(|c| c.running_ns > 0) else { return };
        let all = |value: i64| {
            let scaled = i128::from(value) * i128::from(enabled_ns) / i128::from(running_ns);
            i64::try_from(scaled).unwrap_or(i64::MAX)
        };
        self.value = all(self.value);
        self.threads.iter_mut().for_each(|thread| thread.value = all(thread.value));
    }
}

/// The value of one pair in one thread, as a client stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadValue {
    /// Thread id; `None` for threads that could not be told apart.
    pub tid: Option<i32>,
    /// Process of the thread if it is a fork child of the target; `None` for the target, or if the process is unknown.
    pub pid: Option<i32>,
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
}

impl TryFrom<v1::ThreadValue> for ThreadValue {
    type Error = FieldError;

    fn try_from(thread: v1::ThreadValue) -> Result<Self, FieldError> {
        let v1::ThreadValue { tid, value, distribution: d, activations, pid } = thread;
        Ok(ThreadValue {
            tid,
            pid,
            value,
            distribution: distribution(d)?,
            activations: activations.unwrap_or_default().into(),
        })
    }
}

fn distribution(message: Option<v1::Distribution>) -> Result<Option<Box<Distribution>>, FieldError> {
    let checked = message.map(Distribution::try_from).transpose().map_err(|e| e.inside("distribution"))?;
    Ok(checked.map(Box::new))
}

/// All values of a measurement, updated from the samples of one stream or one reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Number of the latest reading in its stream.
    pub sequence: u64,
    /// Time of the latest reading, as Unix time in nanoseconds.
    pub time_ns: u64,
    /// Number of readings dropped since the beginning of the stream.
    pub dropped: u64,
    /// One value for each pair.
    pub values: Vec<Value>,
    /// Whether the next message continues the same sample.
    open: bool,
    /// Last pair of the sample so far. The next message may continue this pair.
    last_pair: Option<u32>,
}

impl Snapshot {
    /// A snapshot for a measurement with this number of pairs.
    pub fn new(pairs: usize) -> Self {
        Snapshot { values: vec![Value::default(); pairs], ..Snapshot::default() }
    }

    /// Enlarges the snapshot to this number of pairs; new pairs begin with the value 0. Never shrinks the snapshot.
    pub fn grow(&mut self, pairs: usize) {
        self.values.resize(pairs.max(self.values.len()), Value::default());
    }

    /// Whether a message has the value of a pair that the snapshot lacks. The measurement has grown then, and Describe lists its new pairs.
    pub fn is_outgrown_by(&self, sample: &Sample) -> bool {
        sample.values.iter().any(|value| usize::try_from(value.pair).is_ok_and(|pair| pair >= self.values.len()))
    }

    /// Applies one message. Returns whether the sample is complete, so that all values belong to the same time.
    pub fn apply(&mut self, sample: Sample) -> Result<bool, FieldError> {
        let goes_on = self.open && sample.sequence == self.sequence;
        if self.open && !goes_on {
            return Err(FieldError::new("sequence", "another sample begins before the last part of the previous one"));
        }
        if !goes_on {
            self.dropped = self.dropped.saturating_add(sample.dropped);
            self.last_pair = None;
        }
        self.sequence = sample.sequence;
        self.time_ns = sample.time_ns;
        self.open = sample.more;
        for (i, mut value) in sample.values.into_iter().enumerate() {
            let count = self.values.len();
            let Some(slot) = usize::try_from(value.pair).ok().and_then(|pair| self.values.get_mut(pair)) else {
                let why = format!("{} is no pair of a measurement that has {count}", value.pair);
                return Err(FieldError::new(format!("values[{i}].pair"), why));
            };
            let continued = self.last_pair.replace(value.pair) == Some(value.pair);
            let inside = |e: FieldError| e.inside(format_args!("values[{i}]"));
            let threads = std::mem::take(&mut value.threads);
            if !continued {
                let activations = value.activations.unwrap_or_default().into();
                let distribution = distribution(value.distribution.take()).map_err(inside)?;
                let PairValue { value, taken_out, counted, keys, object, slept_ns, .. } = value;
                let threads = Vec::new();
                *slot = Value { value, distribution, keys, object, activations, threads, taken_out, counted, slept_ns };
            }
            for (j, thread) in threads.into_iter().enumerate() {
                let thread =
                    ThreadValue::try_from(thread).map_err(|e| inside(e.inside(format_args!("threads[{j}]"))))?;
                slot.threads.push(thread);
            }
        }
        Ok(!self.open)
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Resolution, Scale, Shape};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    type Rest = (Option<Box<Distribution>>, Activations);

    fn counter() -> impl Strategy<Value = Rest> {
        Just((None, Activations::default()))
    }

    fn histogram() -> impl Strategy<Value = Rest> {
        let slots = proptest::collection::vec(any::<u32>().prop_map(u64::from), 0..9);
        let distribution =
            slots.prop_map(|slots| Box::new(Distribution::from_slots(Resolution::Fine, &slots, Scale::ONE)));
        let activations = (any::<u64>(), 0_u64..2, any::<u64>(), any::<u64>());
        let activations = activations.prop_map(|(left, unseen, unrecorded, left_by_tail_jump)| Activations {
            left,
            unseen,
            unrecorded,
            left_by_tail_jump,
        });
        (distribution.prop_map(Some), activations)
    }

    fn values(rest: fn() -> BoxedStrategy<Rest>) -> impl Strategy<Value = Vec<Value>> {
        let thread = (proptest::option::of(any::<i32>()), any::<i64>(), rest());
        let thread = thread.prop_map(|(tid, value, (distribution, activations))| ThreadValue {
            tid,
            pid: tid.filter(|tid| tid % 2 == 0),
            value,
            distribution,
            activations,
        });
        let pair = (any::<i64>(), rest(), proptest::collection::vec(thread, 0..40));
        let object = v1::SyncObject { kind: "Mutex".to_owned(), retired: true };
        let pair = pair.prop_map(move |(value, (distribution, activations), threads)| Value {
            value,
            distribution,
            keys: (value % 5 == 0).then(|| v1::Keys {
                values: vec![v1::KeyValue { key: 1, name: "lock".to_owned(), value, object: Some(object.clone()) }],
                others: 2,
                unlisted: 3,
            }),
            object: (value % 7 == 0).then(|| object.clone()),
            activations,
            threads,
            taken_out: (value % 2 == 0).then_some(v1::TakenOut {
                time_ns: 1,
                hits_per_s: 2,
                cost_ns_per_s: 3,
                limit_ns_per_s: 4,
                own_gs: value % 4 == 0,
                rewritten: value % 8 == 0,
            }),
            counted: (value % 3 == 0).then_some(v1::Counted { enabled_ns: 2, running_ns: 1 }),
            slept_ns: u64::from(value % 11 == 0),
        });
        proptest::collection::vec(pair, 0..20)
    }

    /// Generates values, and a limit that none of their parts exceeds.
    fn values_and_limit() -> impl Strategy<Value = (Vec<Value>, usize)> {
        prop_oneof![(values(|| counter().boxed()), 128_usize..1000), (values(|| histogram().boxed()), 600_usize..3000),]
    }

    fn to_wire((pair, value): (usize, &Value)) -> PairValue {
        let thread = |t: &ThreadValue| v1::ThreadValue {
            tid: t.tid,
            value: t.value,
            distribution: t.distribution.as_deref().map(Into::into),
            activations: Some(t.activations.into()),
            pid: t.pid,
        };
        PairValue {
            pair: pair as u32,
            value: value.value,
            threads: value.threads.iter().map(thread).collect(),
            distribution: value.distribution.as_deref().map(Into::into),
            keys: value.keys.clone(),
            object: value.object.clone(),
            activations: Some(value.activations.into()),
            taken_out: value.taken_out,
            counted: value.counted,
            slept_ns: value.slept_ns,
        }
    }

    proptest! {
        #[test]
        fn a_split_sample_comes_together_again(
            (values, limit) in values_and_limit(),
            (sequence, time_ns, dropped) in any::<(u64, u64, u64)>(),
        ) {
            let wire = values.iter().enumerate().map(to_wire).collect();
            let parts = split_at(Sample { sequence, time_ns, dropped, values: wire, more: false }, limit);
            let mut snapshot = Snapshot::new(values.len());
            for (i, part) in parts.iter().enumerate() {
                prop_assert!(part.encoded_len() <= limit, "{} > {limit}", part.encoded_len());
                prop_assert_eq!(snapshot.apply(part.clone()), Ok(i + 1 == parts.len()));
            }
            prop_assert_eq!((snapshot.sequence, snapshot.time_ns, snapshot.dropped), (sequence, time_ns, dropped));
            prop_assert_eq!(snapshot.values, values);
        }
    }

    #[test]
    fn what_was_counted_in_a_part_of_the_time_is_scaled() {
        let thread = ThreadValue { value: 5, ..ThreadValue::default() };
        let counted = |enabled_ns, running_ns| Value {
            value: 10,
            threads: vec![thread.clone()],
            counted: Some(v1::Counted { enabled_ns, running_ns }),
            ..Value::default()
        };
        let scaled = |mut value: Value| {
            value.scale();
            (value.value, value.threads[0].value, value.counted_share())
        };
        assert_eq!(scaled(counted(400, 100)), (40, 20, Some(0.25)));
        assert_eq!(scaled(counted(400, 0)), (10, 5, Some(0.0)));
        assert_eq!(scaled(counted(u64::MAX, 1)).0, i64::MAX);
        assert_eq!(scaled(Value { counted: None, ..counted(1, 1) }), (10, 5, None));
    }

    #[test]
    fn a_full_histogram_of_every_thread_is_split() {
        let slots = vec![u64::from(u32::MAX); Shape::Histogram(Resolution::Fine).slots() as usize];
        let distribution = Some(Box::new(Distribution::from_slots(Resolution::Fine, &slots, Scale::ONE)));
        let thread = ThreadValue { distribution: distribution.clone(), ..ThreadValue::default() };
        let value = Value { distribution, threads: vec![thread; 200], ..Value::default() };
        let parts = split(Sample { values: vec![to_wire((0, &value))], ..Sample::default() });
        let mut snapshot = Snapshot::new(1);
        assert!(parts.len() > 1 && parts.iter().all(|part| part.encoded_len() <= PART_BYTES));
        parts.into_iter().for_each(|part| assert!(snapshot.apply(part).is_ok()));
        assert_eq!(snapshot.values, [value]);
    }

    #[test]
    fn a_distribution_that_makes_no_sense_names_its_field() {
        let bad = Some(v1::Distribution { count: 1, ..v1::Distribution::default() });
        let apply = |value| {
            let sample = Sample { values: vec![value], ..Sample::default() };
            Snapshot::new(1).apply(sample).unwrap_err().path
        };
        let thread = v1::ThreadValue { distribution: bad.clone(), ..v1::ThreadValue::default() };
        assert_eq!(apply(PairValue { distribution: bad, ..PairValue::default() }), "values[0].distribution.count");
        let in_thread = apply(PairValue { threads: vec![thread], ..PairValue::default() });
        assert_eq!(in_thread, "values[0].threads[0].distribution.count");
    }

    #[test]
    fn later_samples_change_what_they_name() {
        let value = |pair, value| PairValue { pair, value, ..PairValue::default() };
        let mut s = Snapshot::new(2);
        assert_eq!(s.apply(Sample { values: vec![value(0, 5), value(1, 6)], ..Sample::default() }), Ok(true));
        let next = Sample { sequence: 3, dropped: 2, values: vec![value(1, 9)], ..Sample::default() };
        assert_eq!(s.apply(next), Ok(true));
        assert_eq!((s.values[0].value, s.values[1].value, s.dropped), (5, 9, 2));
        let more = Sample { sequence: 4, values: vec![value(2, 1)], ..Sample::default() };
        assert!(s.is_outgrown_by(&more));
        let wrong = s.apply(more.clone()).unwrap_err();
        assert_eq!(wrong.to_string(), "values[0].pair: 2 is no pair of a measurement that has 2");
        s.grow(3);
        assert!(!s.is_outgrown_by(&more));
        assert_eq!(s.apply(more), Ok(true));
        assert_eq!(s.values.iter().map(|v| v.value).collect::<Vec<_>>(), [5, 9, 1]);
    }
}
