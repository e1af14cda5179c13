//! Samples. The server splits them into messages, and the client joins these again.

use ingraft_api::Value;

use crate::field::FieldError;
use crate::v1::{PairValue, Sample};
use crate::{MessageParts, PART_BYTES, parts};

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
    let others = MessageParts::with_limit(threads, room).map(|threads| PairValue { threads, ..rest.clone() });
    std::iter::once(first).chain(others).collect()
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
        for (i, value) in sample.values.into_iter().enumerate() {
            let count = self.values.len();
            let Some(slot) = usize::try_from(value.pair).ok().and_then(|pair| self.values.get_mut(pair)) else {
                let why = format!("{} is no pair of a measurement that has {count}", value.pair);
                return Err(FieldError::new(format!("values[{i}].pair"), why));
            };
            let continued = self.last_pair.replace(value.pair) == Some(value.pair);
            let read = Value::try_from(value).map_err(|e| e.inside(format_args!("values[{i}]")))?;
            if continued {
                slot.add_threads(read);
            } else {
                *slot = read;
            }
        }
        Ok(!self.open)
    }
}

#[cfg(test)]
mod tests {
    use ingraft_api::{Details, ThreadValue};
    use ingraft_model::{Distribution, Resolution, Scale, Shape};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::any::arbitrary;
    use crate::v1;
    use crate::value::pair_value;

    proptest! {
        #[test]
        fn a_split_sample_comes_together_again(
            values in proptest::collection::vec(arbitrary::<Value>(), 0..20),
            limit in 900_usize..3000,
            (sequence, time_ns, dropped) in any::<(u64, u64, u64)>(),
        ) {
            let wire = values.iter().enumerate().map(|(pair, value)| pair_value(pair, value)).collect();
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
    fn a_full_histogram_of_every_thread_is_split() {
        let slots = vec![u64::from(u32::MAX); Shape::Histogram(Resolution::Fine).slots() as usize];
        let distribution = Some(Box::new(Distribution::from_slots(Resolution::Fine, &slots, Scale::ONE)));
        let thread = ThreadValue { distribution: distribution.clone(), ..ThreadValue::default() };
        let value = Value::new(0, Details { distribution, threads: vec![thread; 200], ..Details::default() });
        let parts = split(Sample { values: vec![pair_value(0, &value)], ..Sample::default() });
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
