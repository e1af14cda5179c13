//! Values of a measurement.

use ingraft_api::{CountedTime, Details, Ended, KeyValue, Keys, NamedPart, TakenOut, ThreadValue, Value};
use ingraft_model::{Activations, Bucket, Distribution, KeyPart, ObjectKind, ObjectState};
use v1::key_part::Part as WirePart;

use crate::field::{FieldError, WireField, read};
use crate::v1;

messages! {
    Keys => Keys { values, others, unlisted }
    KeyValue => KeyValue { key, parts, name, value, object, place, enumerator }
    TakenOut => TakenOut { time_ns, hits_per_s, cost_ns_per_s, limit_ns_per_s, own_gs, rewritten }
    CountedTime => Counted { enabled_ns, running_ns }
    ThreadValue => ThreadValue { tid, value, distribution, activations, pid }
    Ended => Ended { status, signal, exec }
}

nested! {
    Distribution => Distribution
    ObjectState => SyncObject
    NamedPart => KeyPart
}

impl From<NamedPart> for v1::KeyPart {
    fn from(NamedPart { part, name, enumerator, place }: NamedPart) -> Self {
        let part = match part {
            KeyPart::Number(number) => WirePart::Number(number),
            KeyPart::Text { bytes, cut } => WirePart::Text(v1::PrintedText { bytes: bytes.to_vec(), cut }),
            KeyPart::Unreadable => WirePart::Unreadable(true),
        };
        v1::KeyPart { part: Some(part), name: name.to_wire(), place: place.to_wire(), enumerator: enumerator.to_wire() }
    }
}

impl TryFrom<v1::KeyPart> for NamedPart {
    type Error = FieldError;

    fn try_from(v1::KeyPart { part, name, place, enumerator }: v1::KeyPart) -> Result<Self, FieldError> {
        let part = match part.ok_or_else(|| FieldError::missing("part"))? {
            WirePart::Number(number) => KeyPart::Number(number),
            WirePart::Text(v1::PrintedText { bytes, cut }) => KeyPart::Text { bytes: bytes.into(), cut },
            WirePart::Unreadable(_) => KeyPart::Unreadable,
        };
        Ok(NamedPart {
            part,
            name: read("name", name)?,
            enumerator: read("enumerator", enumerator)?,
            place: read("place", place)?,
        })
    }
}

/// The value of the pair with this index.
pub fn pair_value(pair: usize, value: &Value) -> v1::PairValue {
    let pair = pair.to_wire();
    if !value.has_details() {
        return v1::PairValue { pair, value: value.value, ..v1::PairValue::default() };
    }
    let Details { distribution, keys, object, activations, threads, taken_out, counted, slept_ns } =
        value.details().clone();
    v1::PairValue {
        pair,
        value: value.value,
        threads: threads.to_wire(),
        distribution: distribution.to_wire(),
        activations: activations.to_wire(),
        taken_out: taken_out.to_wire(),
        counted: counted.to_wire(),
        keys: keys.to_wire(),
        object: object.to_wire(),
        slept_ns,
    }
}

impl TryFrom<v1::PairValue> for Value {
    type Error = FieldError;

    fn try_from(value: v1::PairValue) -> Result<Self, FieldError> {
        let details = Details {
            distribution: read("distribution", value.distribution)?,
            keys: read("keys", value.keys)?,
            object: read("object", value.object)?,
            activations: read("activations", value.activations)?,
            threads: read("threads", value.threads)?,
            taken_out: read("taken_out", value.taken_out)?,
            counted: read("counted", value.counted)?,
            slept_ns: value.slept_ns,
        };
        Ok(Value::new(value.value, details))
    }
}

impl From<Distribution> for v1::Distribution {
    fn from(d: Distribution) -> Self {
        let bucket = |Bucket { first, end, count }: Bucket| v1::Bucket { first, end, count };
        let buckets = d.buckets.into_iter().map(bucket).collect();
        let squares = d.squares.map(|sum| v1::Wide { low: sum as u64, high: (sum >> 64) as u64 });
        v1::Distribution { count: d.count, sum: d.sum, min: d.min, max: d.max, own: d.own, squares, buckets }
    }
}

impl TryFrom<v1::Distribution> for Distribution {
    type Error = FieldError;

    fn try_from(d: v1::Distribution) -> Result<Self, FieldError> {
        let v1::Distribution { count, sum, min, max, own, squares, buckets } = d;
        let squares = squares.map(|v1::Wide { low, high }| (u128::from(high) << 64) | u128::from(low));
        let mut out = Distribution { count, sum, min, max, own, squares, ..Distribution::default() };
        let mut previous = None;
        let mut total = Some(0_u64);
        for (i, v1::Bucket { first, end, count }) in buckets.into_iter().enumerate() {
            let wrong = |field, why| Err(FieldError::new(format!("buckets[{i}].{field}"), why));
            if end <= first {
                return wrong("end", "is not above `first`");
            }
            if previous.is_some_and(|previous| previous >= (first, end)) {
                return wrong("first", "is out of order");
            }
            if count == 0 {
                return wrong("count", "is 0");
            }
            previous = Some((first, end));
            total = total.and_then(|total| total.checked_add(count));
            out.buckets.push(Bucket { first, end, count });
        }
        if total != Some(count) {
            return Err(FieldError::new("count", "is not the sum of the buckets' counts"));
        }
        if min > max {
            return Err(FieldError::new("min", "is above `max`"));
        }
        Ok(out)
    }
}

impl From<Activations> for v1::Activations {
    fn from(Activations { left, unseen, unrecorded, left_by_tail_jump }: Activations) -> Self {
        v1::Activations { left, unseen, unrecorded, left_by_tail_jump }
    }
}

/// Numbers that are all 0 are left out.
impl WireField<Option<v1::Activations>> for Activations {
    fn to_wire(self) -> Option<v1::Activations> {
        (self != Activations::default()).then(|| self.into())
    }

    fn from_wire(wire: Option<v1::Activations>) -> Result<Self, FieldError> {
        let v1::Activations { left, unseen, unrecorded, left_by_tail_jump } = wire.unwrap_or_default();
        Ok(Activations { left, unseen, unrecorded, left_by_tail_jump })
    }
}

impl From<ObjectState> for v1::SyncObject {
    fn from(ObjectState { kind, retired }: ObjectState) -> Self {
        v1::SyncObject { kind: kind.name().to_owned(), retired }
    }
}

impl TryFrom<v1::SyncObject> for ObjectState {
    type Error = FieldError;

    fn try_from(v1::SyncObject { kind, retired }: v1::SyncObject) -> Result<Self, FieldError> {
        let kind =
            ObjectKind::named(&kind).ok_or_else(|| FieldError::later(format_args!("`{kind}`")).inside("kind"))?;
        Ok(ObjectState { kind, retired })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};
    use crate::field::round_trips;

    impl Any for ObjectState {
        fn any(s: &mut Source<'_>) -> Self {
            ObjectState { kind: s.one_of(&ObjectKind::ALL), retired: s.next() }
        }
    }

    impl Any for NamedPart {
        fn any(s: &mut Source<'_>) -> Self {
            let part = match s.one_of(&[0, 1, 2]) {
                0 => KeyPart::Number(s.next()),
                1 => KeyPart::Text { bytes: s.next::<Vec<u8>>().into(), cut: s.next() },
                _ => KeyPart::Unreadable,
            };
            NamedPart { part, name: s.next(), enumerator: s.next(), place: s.next() }
        }
    }

    impl Any for Value {
        fn any(s: &mut Source<'_>) -> Self {
            let details = Details {
                distribution: s.next(),
                keys: s.next(),
                object: s.next(),
                activations: s.next(),
                threads: s.next(),
                taken_out: s.next(),
                counted: s.next(),
                slept_ns: s.next(),
            };
            Value::new(s.next(), details)
        }
    }

    #[test]
    fn values_come_back() {
        round_trips::<Distribution, v1::Distribution>();
        round_trips::<Ended, v1::Ended>();
        comes_back(|value: Value| Value::try_from(pair_value(7, &value)).map_err(|e| e.to_string()));
    }

    #[test]
    fn distributions_that_make_no_sense_name_the_field() {
        let bucket = |first, end, count| v1::Bucket { first, end, count };
        let check = |min, count, buckets: &[v1::Bucket]| {
            let d =
                v1::Distribution { count, sum: 0, min, max: 30, own: None, squares: None, buckets: buckets.to_vec() };
            Distribution::try_from(d).unwrap_err().to_string()
        };
        let good = bucket(10, 20, 2);
        assert_eq!(check(10, 3, &[good, bucket(20, 20, 1)]), "buckets[1].end: is not above `first`");
        assert_eq!(check(10, 3, &[good, bucket(10, 20, 1)]), "buckets[1].first: is out of order");
        assert_eq!(check(10, 2, &[good, bucket(20, 40, 0)]), "buckets[1].count: is 0");
        assert_eq!(check(10, 3, &[good]), "count: is not the sum of the buckets' counts");
        assert_eq!(check(10, 1, &[good, bucket(20, 40, u64::MAX)]), "count: is not the sum of the buckets' counts");
        assert_eq!(check(31, 2, &[good]), "min: is above `max`");
    }

    #[test]
    fn an_object_of_a_later_version_is_left_out() {
        let object = Some(v1::SyncObject { kind: "Futex2".to_owned(), retired: false });
        let value = v1::PairValue { value: 3, object, ..v1::PairValue::default() };
        assert_eq!(Value::try_from(value), Ok(Value::from(3)));
    }
}
