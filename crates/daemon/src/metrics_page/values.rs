//! The series of one pair: a number, a number for each key, or the buckets of a distribution.

use ingraft_api::{KeyValue, NamedPart, Value};
use ingraft_model::{Bucket, Distribution, KeyPart};

use super::names::{FamilyName, FamilyType};
use super::text::{Labels, SeriesLines, decimal};

/// The series of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairSeries {
    /// Series of the family itself.
    pub own: SeriesLines,
    /// Sum of the keys without a series, as a series of [`FamilyName::others`]; `None` if the value has no keys.
    pub others: Option<SeriesLines>,
}

impl PairSeries {
    /// Number of all series.
    pub fn count(&self) -> usize {
        self.own.count + self.others.as_ref().map_or(0, |others| others.count)
    }
}

/// Returns the series of a pair with this value.
pub fn series(family: &FamilyName, labels: Labels<'_>, value: &Value) -> PairSeries {
    let mut out = PairSeries::default();
    match (&value.details().keys, family.kind) {
        (_, FamilyType::Histogram) => {
            let none = Distribution::default();
            histogram(family, labels, value.details().distribution.as_deref().unwrap_or(&none), &mut out.own);
        }
        (Some(keys), FamilyType::Counter | FamilyType::Gauge) => {
            for key in &keys.values {
                // The number alone tells a key from the others; a name may become known later, and several keys may have one.
                let number = identity(key);
                let name = key.name.as_deref().or(key.enumerator.as_deref());
                let name = name.filter(|name| !name.is_empty()).map(|name| ("name", name));
                let labels = [labels, &[("key", number.as_str())], name.as_slice()].concat();
                out.own.add(&family.name, &labels, &decimal(key.value.into(), family.digits));
            }
            let mut others = SeriesLines::default();
            others.add(&family.others().name, labels, &decimal(keys.others.into(), family.digits));
            out.others = Some(others);
        }
        (None, FamilyType::Counter | FamilyType::Gauge) => {
            out.own.add(&family.name, labels, &decimal(value.value.into(), family.digits));
        }
    }
    out
}

/// The number of a key, or its parts: numbers, and texts between quotation marks.
fn identity(key: &KeyValue) -> String {
    if key.parts.is_empty() {
        return format!("{:#x}", key.key);
    }
    let part = |NamedPart { part, .. }: &NamedPart| match part {
        KeyPart::Number(number) => format!("{number:#x}"),
        text => text.to_string(),
    };
    key.parts.iter().map(part).collect::<Vec<_>>().join(",")
}

fn histogram(family: &FamilyName, labels: Labels<'_>, values: &Distribution, out: &mut SeriesLines) {
    let FamilyName { name, digits, .. } = family;
    let bucket = format!("{name}_bucket");
    let count = decimal(values.count.into(), 0);
    for (last, below) in bounds(values) {
        let bound = decimal(last.into(), *digits);
        out.add(&bucket, &[labels, &[("le", &bound)]].concat(), &decimal(below.into(), 0));
    }
    out.add(&bucket, &[labels, &[("le", "+Inf")]].concat(), &count);
    if let Some(sum) = values.exact_sum() {
        out.add(&format!("{name}_sum"), labels, &decimal(sum.into(), *digits));
    }
    out.add(&format!("{name}_count"), labels, &count);
}

/// Returns upper bounds (inclusive), each with the exact number of values up to it.
///
/// The bounds are the last values of buckets that hold values, and of the empty space before such a bucket: without the latter, a quantile
/// would be interpolated over that space too. If a bucket of ticks of a clock begins within a nanosecond, that nanosecond is the last of one
/// bucket and the first of the next. It is the bound of the first one, so the bound is exact to the nanosecond. A bound that lies deeper
/// inside of another bucket is left out, as nobody knows how many values of that bucket are below it. So is that of a last bucket with
/// values beyond its end.
fn bounds(values: &Distribution) -> Vec<(u64, u64)> {
    let buckets = &values.buckets;
    let mut out: Vec<(u64, u64)> = Vec::new();
    let (mut below, mut end, mut next) = (0_u64, 0_u64, 0);
    while let Some(bucket) = buckets.get(next) {
        let mut joined = *bucket;
        next += 1;
        let overlaps = |joined: &Bucket, later: &&Bucket| {
            later.first < joined.end.saturating_sub(1) || later.first < joined.end && later.end <= joined.end
        };
        while let Some(&Bucket { first, end, count }) = buckets.get(next).filter(|later| overlaps(&joined, later)) {
            let end = joined.end.max(end);
            joined = Bucket { first: joined.first.min(first), end, count: joined.count.saturating_add(count) };
            next += 1;
        }
        if joined.first > end {
            out.push((joined.first - 1, below));
        }
        below = below.saturating_add(joined.count);
        end = joined.end;
        if next < buckets.len() || values.max < end {
            out.push((end - 1, below));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ingraft_api::{Details, Keys};
    use ingraft_model::histogram::HEAD;
    use ingraft_model::{Resolution, Scale};
    use proptest::prelude::*;

    use super::*;

    fn family(kind: FamilyType, digits: u32) -> FamilyName {
        FamilyName { name: "ingraft_m".into(), kind, digits }
    }

    fn of(buckets: &[(u64, u64, u64)], max: u64) -> Distribution {
        let buckets: Vec<_> = buckets.iter().map(|&(first, end, count)| Bucket { first, end, count }).collect();
        Distribution { count: buckets.iter().map(|b| b.count).sum(), sum: 70, max, buckets, ..Distribution::default() }
    }

    #[test]
    fn buckets_have_exact_bounds() {
        let value = of(&[(16, 32, 2), (32, 48, 1), (100, 104, 4)], 103);
        let value = Value::new(7, Details { distribution: Some(Box::new(value)), ..Details::default() });
        let expected = r#"ingraft_m_bucket{pid="1",le="0.000000015"} 0
ingraft_m_bucket{pid="1",le="0.000000031"} 2
ingraft_m_bucket{pid="1",le="0.000000047"} 3
ingraft_m_bucket{pid="1",le="0.000000099"} 3
ingraft_m_bucket{pid="1",le="0.000000103"} 7
ingraft_m_bucket{pid="1",le="+Inf"} 7
ingraft_m_sum{pid="1"} 0.00000007
ingraft_m_count{pid="1"} 7
"#;
        let lines = series(&family(FamilyType::Histogram, 9), &[("pid", "1")], &value);
        assert_eq!((lines.own.text.as_str(), lines.count(), lines.others), (expected, 8, None));
        let none = series(&family(FamilyType::Histogram, 9), &[], &Value::from(0));
        assert_eq!(none.own.text, "ingraft_m_bucket{le=\"+Inf\"} 0\ningraft_m_sum 0\ningraft_m_count 0\n");
    }

    #[test]
    fn bounds_that_are_not_exact_are_left_out() {
        assert_eq!(bounds(&of(&[(0, 8, 1), (4, 12, 2), (12, 16, 3)], 15)), [(11, 3), (15, 6)], "overlapping");
        assert_eq!(bounds(&of(&[(0, 20, 1), (4, 12, 2)], 15)), [(19, 3)], "one inside of the other");
        // Ticks of a clock are shorter than a nanosecond.
        let shared = [(267, 0), (274, 6), (280, 105)];
        assert_eq!(bounds(&of(&[(268, 275, 6), (274, 281, 99)], 280)), shared, "a shared nanosecond");
        assert_eq!(bounds(&of(&[(4, 6, 1), (5, 6, 2), (5, 7, 4)], 6)), [(3, 0), (5, 3), (6, 7)], "of the same end");
        assert_eq!(bounds(&of(&[(0, 8, 1), (8, 16, 2)], 16)), [(7, 1)], "a value beyond the last bucket");
        assert_eq!(bounds(&of(&[(5, 6, 1)], u64::MAX)), [(4, 0)]);
    }

    #[test]
    fn keys_are_labels() {
        let key = |key, name: Option<&str>, value| KeyValue {
            key,
            name: name.map(str::to_owned),
            value,
            ..KeyValue::default()
        };
        let values = vec![key(0x10, None, 3), key(0x20, Some("lock"), 2), key(1, Some("a"), 1), key(2, Some("a"), 0)];
        let text = |bytes: &[u8]| KeyPart::Text { bytes: bytes.into(), cut: false };
        let parts = [KeyPart::Number(7), text(b"a\"b"), KeyPart::Unreadable];
        let parts = parts.map(|part| NamedPart { part, name: None, enumerator: None, place: None }).to_vec();
        let values = values.into_iter().chain([KeyValue { parts, value: 4, ..KeyValue::default() }]).collect();
        let keys = Keys { values, others: 9, unlisted: 0 };
        let value = Value::new(15, Details { keys: Some(keys), ..Details::default() });
        let lines = series(&family(FamilyType::Counter, 0), &[("pid", "1")], &value);
        let expected = r#"ingraft_m{pid="1",key="0x10"} 3
ingraft_m{pid="1",key="0x20",name="lock"} 2
ingraft_m{pid="1",key="0x1",name="a"} 1
ingraft_m{pid="1",key="0x2",name="a"} 0
ingraft_m{pid="1",key="0x7,\"a\\\"b\",unreadable"} 4
"#;
        assert_eq!(lines.own.text, expected);
        assert_eq!(lines.others.map(|others| others.text).as_deref(), Some("ingraft_m_other_keys{pid=\"1\"} 9\n"));
    }

    #[test]
    fn numbers_are_in_the_base_unit() {
        let lines = series(&family(FamilyType::Counter, 9), &[], &Value::from(1_500_000_000));
        assert_eq!(lines.own.text, "ingraft_m 1.5\n");
    }

    proptest! {
        #[test]
        fn every_bound_counts_the_values_up_to_it(
            mut values in proptest::collection::vec(0_u64..1 << 50, 0..50), mult in 1_u32..5000, shift in 0_u32..12,
        ) {
            values.sort_unstable();
            let (resolution, scale) = (Resolution::Coarse, Scale { mult, shift });
            let mut slots = vec![0; (HEAD + resolution.buckets()) as usize];
            for value in &values {
                slots[(HEAD + resolution.bucket_of(*value)) as usize] += 1;
            }
            if let (Some(least), Some(most)) = (values.first(), values.last()) {
                (slots[1], slots[2]) = (*most, !least);
            }
            let distribution = Distribution::from_slots(resolution, &slots, scale);
            let found = bounds(&distribution);
            prop_assert!(found.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
            for (last, below) in found {
                let up_to = |bound| values.iter().filter(|value| scale.apply(**value) < bound).count() as u64;
                let shared = distribution.buckets.iter().any(|b| b.first == last && b.end > last + 1);
                prop_assert!(below <= up_to(last + 1) && below >= up_to(last), "up to {}", last);
                prop_assert!(shared || below == up_to(last + 1), "up to {}", last);
            }
        }
    }
}
