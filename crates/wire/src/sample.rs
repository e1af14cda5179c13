//! Samples: split for the wire by the one side, put together again by the other.

use crate::convert::FieldError;
use crate::v1::{PairValue, Sample, ThreadValue};
use crate::{PART_BYTES, parts};

/// What the fields of a [`Sample`] beside its values take at most.
const HEAD_BYTES: usize = 64;

/// Splits a sample into messages below [`PART_BYTES`]; at least one. A pair with very many threads may be split too.
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
    // A thread takes at most 24 bytes: key and length, a key and ten bytes for each of its two numbers; the rest of the pair as much.
    let per_part = (limit.saturating_sub(24) / 24).max(1);
    let PairValue { pair, value, threads } = value;
    threads.chunks(per_part).map(|threads| PairValue { pair, value, threads: threads.to_vec() }).collect()
}

/// The value of one pair as a client keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Cumulative since the request.
    pub value: i64,
    /// The same by thread, if asked for: thread id (`None`: could not be told apart) and value.
    pub threads: Vec<(Option<i32>, i64)>,
}

/// All values of a measurement, kept up to date from the samples of one stream or one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of the last reading in its stream.
    pub sequence: u64,
    /// When it was read: Unix time in nanoseconds.
    pub time_ns: u64,
    /// Readings dropped since the beginning of the stream.
    pub dropped: u64,
    /// One value for each pair.
    pub values: Vec<Value>,
    /// The next message goes on with the same sample.
    open: bool,
    /// The last pair of the sample so far: a split one goes on with the same pair.
    last_pair: Option<u32>,
}

impl Snapshot {
    /// For a measurement of so many pairs.
    pub fn new(pairs: usize) -> Self {
        Snapshot { values: vec![Value::default(); pairs], ..Snapshot::default() }
    }

    /// Takes in one message. Answers whether the sample is complete, so that the values belong to one time.
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
            slot.value = value.value;
            if !continued {
                slot.threads.clear();
            }
            slot.threads.extend(value.threads.into_iter().map(|ThreadValue { tid, value }| (tid, value)));
        }
        Ok(!self.open)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn sample() -> impl Strategy<Value = Sample> {
        let thread =
            (proptest::option::of(any::<i32>()), any::<i64>()).prop_map(|(tid, value)| ThreadValue { tid, value });
        let threads = proptest::collection::vec(thread, 0..40);
        let values = proptest::collection::vec((any::<i64>(), threads), 0..20);
        (any::<u64>(), any::<u64>(), any::<u64>(), values).prop_map(|(sequence, time_ns, dropped, values)| Sample {
            sequence,
            time_ns,
            dropped,
            values: values
                .into_iter()
                .enumerate()
                .map(|(i, (value, threads))| PairValue { pair: i as u32, value, threads })
                .collect(),
            more: false,
        })
    }

    proptest! {
        #[test]
        fn a_split_sample_comes_together_again(sample in sample(), limit in 128_usize..1000) {
            let parts = split_at(sample.clone(), limit);
            let mut snapshot = Snapshot::new(sample.values.len());
            for (i, part) in parts.iter().enumerate() {
                prop_assert!(part.encoded_len() <= limit, "{} > {limit}", part.encoded_len());
                prop_assert_eq!(snapshot.apply(part.clone()), Ok(i + 1 == parts.len()));
            }
            prop_assert_eq!((snapshot.sequence, snapshot.time_ns, snapshot.dropped), (sample.sequence, sample.time_ns, sample.dropped));
            for (got, sent) in snapshot.values.iter().zip(&sample.values) {
                prop_assert_eq!(got.value, sent.value);
                prop_assert_eq!(&got.threads, &sent.threads.iter().map(|t| (t.tid, t.value)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn later_samples_change_what_they_name() {
        let value = |pair, value| PairValue { pair, value, threads: Vec::new() };
        let mut s = Snapshot::new(2);
        assert_eq!(s.apply(Sample { values: vec![value(0, 5), value(1, 6)], ..Sample::default() }), Ok(true));
        let next = Sample { sequence: 3, dropped: 2, values: vec![value(1, 9)], ..Sample::default() };
        assert_eq!(s.apply(next), Ok(true));
        assert_eq!((s.values[0].value, s.values[1].value, s.dropped), (5, 9, 2));
        let wrong = s.apply(Sample { values: vec![value(2, 1)], ..Sample::default() }).unwrap_err();
        assert_eq!(wrong.to_string(), "values[0].pair: 2 is no pair of a measurement that has 2");
    }
}
