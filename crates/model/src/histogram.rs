//! Log-linear buckets: every power of two is divided into equally wide ones, as many as the [`Resolution`] says, so that a value is known to
//! within one part of so many whatever its size, and counts are exact. Code in the target counts into them in the units that it records,
//! such as ticks of a clock; a [`Distribution`] is what was counted, in the metric's unit.

/// Values of so many bits or more are in the last bucket: as ticks of 3 GHz an hour and a half.
pub const VALUE_BITS: u32 = 44;

/// Resolution with which a histogram tells values apart. Coarser ones take less memory in every thread of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// 4 buckets for each power of two: 1.4 KB a thread.
    Coarse,
    /// 8 of them: 2.7 KB.
    Medium,
    /// 32 of them: 10 KB.
    Fine,
}

impl Resolution {
    /// Bits that tell the buckets of one power of two apart.
    pub const fn sub_bits(self) -> u32 {
        match self {
            Resolution::Coarse => 2,
            Resolution::Medium => 3,
            Resolution::Fine => 5,
        }
    }

    /// Buckets of one power of two.
    pub const fn per_octave(self) -> u32 {
        1 << self.sub_bits()
    }

    /// Number of buckets.
    pub const fn buckets(self) -> u32 {
        (VALUE_BITS - self.sub_bits() + 1) * self.per_octave()
    }

    /// The bucket of a value.
    pub fn bucket_of(self, value: u64) -> u32 {
        let value = value.min((1 << VALUE_BITS) - 1);
        let octave = (value | u64::from(self.per_octave())).ilog2() - self.sub_bits();
        octave * self.per_octave() + (value >> octave) as u32
    }

    /// The values of a bucket: the first, and the first behind it (of the last bucket: of values that are not cut).
    pub fn bounds(self, bucket: u32) -> (u64, u64) {
        let octave = (bucket / self.per_octave()).saturating_sub(1);
        let first = u64::from(bucket - octave * self.per_octave()) << octave;
        (first, first + (1 << octave))
    }
}

/// From recorded units to the metric's unit: `value * mult >> shift`, rounded down; what does not fit is the largest number. Order is kept.
/// The form in which Linux publishes the rate of the time stamp counter (`time_mult`, `time_shift` of perf_event_open(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Multiplied by first, without overflow.
    pub mult: u32,
    /// Then shifted right by so many bits; by 128 or more: 0.
    pub shift: u32,
}

impl Scale {
    /// The recorded unit is the metric's.
    pub const ONE: Scale = Scale { mult: 1, shift: 0 };

    /// A recorded value in the metric's unit.
    pub fn apply(self, recorded: u64) -> u64 {
        let wide = (u128::from(recorded) * u128::from(self.mult)).checked_shr(self.shift).unwrap_or(0);
        u64::try_from(wide).unwrap_or(u64::MAX)
    }

    /// Number of recorded units in one unit of the metric, in 2^-32, to the nearest; the largest number if there is no such rate.
    pub fn inverse(self) -> u64 {
        let one = 1u128.checked_shl(self.shift.saturating_add(32)).filter(|one| *one != 0);
        let mult = u128::from(self.mult);
        let rate = one.and_then(|one| one.saturating_add(mult / 2).checked_div(mult));
        rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX)
    }
}

/// A bucket with values in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The least value that it may hold.
    pub first: u64,
    /// One more than the largest; the last bucket of a [`Shape::Histogram`](crate::Shape::Histogram) has larger values too.
    pub end: u64,
    /// Number of values in the bucket; never 0.
    pub count: u64,
}

impl Bucket {
    /// Returns the value of this rank in the bucket, from 1, if its values are spread evenly.
    fn value_at(&self, rank: u64) -> u64 {
        let width = u128::from(self.end.saturating_sub(self.first));
        let count = u128::from(self.count.max(1));
        // The middle of the rank's share: what is in between belongs to the ranks beside it.
        let above = width * (2 * u128::from(rank)).saturating_sub(1) / (2 * count);
        self.first.saturating_add(u64::try_from(above).unwrap_or(u64::MAX))
    }

    /// Returns the number of the bucket's values below `value`, if they are spread evenly.
    fn count_below(&self, value: u64) -> u64 {
        let width = u128::from(self.end.saturating_sub(self.first)).max(1);
        let below = u128::from(value.saturating_sub(self.first)).min(width);
        u64::try_from(u128::from(self.count) * below / width).unwrap_or(self.count)
    }
}

/// Values by size, in the metric's unit: what quantiles are read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Number of values: the sum of the buckets' counts.
    pub count: u64,
    /// Sum of all values.
    pub sum: u64,
    /// The smallest value; 0 if there is none.
    pub min: u64,
    /// The largest value; 0 if there is none.
    pub max: u64,
    /// The buckets that are not empty, in ascending order of `first`, then `end`, each pair of bounds once. Those of several scales may
    /// overlap.
    pub buckets: Vec<Bucket>,
}

impl Distribution {
    /// Reads the slots of a [`Shape::Histogram`](crate::Shape::Histogram), in their order, of one thread or summed over those that share; slots
    /// that are missing are 0. The target goes on recording while it is read, so the smallest and the largest value may lag behind the counts:
    /// they are moved into the outermost buckets then.
    ///
    /// Values, the smallest and the largest and the bounds of buckets are rounded down one by one, the sum as a whole. A bucket has all values
    /// that a recorded one of it may become; buckets of equal bounds are one.
    pub fn from_slots(resolution: Resolution, slots: &[u64], scale: Scale) -> Self {
        let (buckets, bounds) = (resolution.buckets(), |bucket| resolution.bounds(bucket));
        let (head, counts) = slots.split_at(slots.len().min(3));
        let head = |slot: usize| head.get(slot).copied().unwrap_or(0);
        let held = || (0..buckets).zip(counts.iter().copied()).filter(|&(_, count)| count != 0);
        let (Some((lowest, _)), Some((highest, _))) = (held().next(), held().next_back()) else {
            return Distribution::default();
        };
        let last_value = |bucket| if bucket == buckets - 1 { u64::MAX } else { bounds(bucket).1 - 1 };
        let min = (!head(2)).clamp(bounds(lowest).0, last_value(lowest));
        let max = head(1).clamp(bounds(highest).0.max(min), last_value(highest));
        let mut out =
            Distribution { sum: scale.apply(head(0)), min: scale.apply(min), max: scale.apply(max), ..Self::default() };
        for (bucket, count) in held() {
            let (first, end) = bounds(bucket);
            out.push(Bucket { first: scale.apply(first), end: scale.apply(end - 1).saturating_add(1), count });
        }
        out
    }

    /// Adds a bucket that is not below the last one.
    fn push(&mut self, bucket: Bucket) {
        self.count = self.count.saturating_add(bucket.count);
        match self.buckets.last_mut() {
            Some(last) if (last.first, last.end) == (bucket.first, bucket.end) => {
                last.count = last.count.saturating_add(bucket.count);
            }
            _ => self.buckets.push(bucket),
        }
    }

    /// The value that the share `q` of all values does not exceed: the `q * count`-th one, rounded up. 0 and 1 ask for the smallest and the
    /// largest, which are exact; others are interpolated inside a bucket, so they are off by less than its width. None if there is no value.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        // A share that is no number counts as 0.
        let mut rank = (q * self.count as f64).ceil() as u64;
        if rank <= 1 {
            return Some(self.min);
        }
        if rank >= self.count {
            return Some(self.max);
        }
        for bucket in &self.buckets {
            if rank <= bucket.count {
                // Not `clamp`: bounds from elsewhere may be in any order.
                return Some(bucket.value_at(rank).max(self.min).min(self.max));
            }
            rank -= bucket.count;
        }
        None
    }

    /// The mean; none if there is no value.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Returns the number of values below `value`; those of its bucket as if they were spread evenly, rounded down.
    pub fn count_below(&self, value: u64) -> u64 {
        if value <= self.min {
            0
        } else if value > self.max {
            self.count
        } else {
            self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count_below(value)))
        }
    }

    /// Adds the values of another one: of another thread, process or host.
    pub fn merge(&mut self, other: &Distribution) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            self.clone_from(other);
            return;
        }
        let mut buckets = [self.buckets.as_slice(), other.buckets.as_slice()].concat();
        buckets.sort_by_key(|bucket| (bucket.first, bucket.end));
        let mut out = Distribution {
            sum: self.sum.saturating_add(other.sum),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            ..Self::default()
        };
        buckets.into_iter().for_each(|bucket| out.push(bucket));
        *self = out;
    }

    /// The values since an earlier reading of the same slots. The slots keep only the smallest and the largest of all values, so `min` and
    /// `max` are bounds here: no value is outside, and each is off by less than the width of its bucket. The sum of scaled values may be off
    /// by 1.
    #[must_use]
    pub fn minus(&self, earlier: &Distribution) -> Distribution {
        let mut out = Distribution { sum: self.sum.saturating_sub(earlier.sum), ..Self::default() };
        for bucket in &self.buckets {
            let key = |b: &Bucket| (b.first, b.end);
            let before = earlier.buckets.binary_search_by_key(&key(bucket), key).ok();
            let before = before.and_then(|at| earlier.buckets.get(at)).map_or(0, |b| b.count);
            let count = bucket.count.saturating_sub(before);
            if count > 0 {
                out.push(Bucket { count, ..*bucket });
            }
        }
        if let (Some(first), Some(last)) = (out.buckets.first(), out.buckets.last()) {
            let same = |a: &Bucket, b: Option<&Bucket>| b.is_some_and(|b| (a.first, a.end) == (b.first, b.end));
            out.min = if same(first, self.buckets.first()) { self.min } else { first.first };
            out.max = if same(last, self.buckets.last()) { self.max } else { last.end.saturating_sub(1) };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Shape;

    const ALL: [Resolution; 3] = [Resolution::Coarse, Resolution::Medium, Resolution::Fine];

    #[test]
    fn buckets_tile_the_values() {
        for resolution in ALL {
            let (parts, mut next) = (u64::from(resolution.per_octave()), 0);
            for bucket in 0..resolution.buckets() {
                let (first, end) = resolution.bounds(bucket);
                assert_eq!(first, next);
                assert_eq!((resolution.bucket_of(first), resolution.bucket_of(end - 1)), (bucket, bucket));
                assert!((end - first) * parts <= first.max(parts));
                next = end;
            }
            assert_eq!(next, 1 << VALUE_BITS);
            assert_eq!(resolution.bucket_of(u64::MAX), resolution.buckets() - 1);
        }
        assert!(ALL.is_sorted() && ALL.is_sorted_by_key(|r| r.buckets()));
    }

    /// Records each value as the code in the target does.
    fn record(resolution: Resolution, values: &[u64]) -> Vec<u64> {
        let mut slots = vec![0; Shape::Histogram(resolution).slots() as usize];
        for &value in values {
            slots[0] += value;
            slots[1] = slots[1].max(value);
            slots[2] = slots[2].max(!value);
            slots[3 + resolution.bucket_of(value) as usize] += 1;
        }
        slots
    }

    fn distribution(values: &[u64], scale: Scale) -> Distribution {
        Distribution::from_slots(Resolution::Fine, &record(Resolution::Fine, values), scale)
    }

    /// Values of every size that is not cut.
    fn value() -> impl Strategy<Value = u64> {
        (0..VALUE_BITS, any::<u64>()).prop_map(|(bits, any)| any >> (63 - bits) >> 1)
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(value(), 0..200)
    }

    fn scale() -> impl Strategy<Value = Scale> {
        // 0.3 to 3 GHz, and none.
        prop_oneof![Just(Scale::ONE), (1_u32 << 22..40 << 22).prop_map(|mult| Scale { mult, shift: 24 })]
    }

    /// As promised: count and outermost values fit the buckets, which are in order.
    fn check(d: &Distribution) -> Result<(), TestCaseError> {
        prop_assert_eq!(d.count, d.buckets.iter().map(|b| b.count).sum::<u64>());
        prop_assert!(d.buckets.iter().all(|b| b.first < b.end && b.count > 0));
        prop_assert!(d.buckets.windows(2).all(|b| (b[0].first, b[0].end) < (b[1].first, b[1].end)));
        if let (Some(first), Some(last)) = (d.buckets.first(), d.buckets.last()) {
            prop_assert!(first.first <= d.min && d.min < first.end && d.min <= d.max, "{d:?}");
            prop_assert!(last.first <= d.max, "{d:?}");
        } else {
            prop_assert_eq!(d, &Distribution::default());
        }
        Ok(())
    }

    /// Compares quantiles with the values themselves. `allowed` is how far one may be off a value.
    fn check_quantiles(
        d: &Distribution,
        mut values: Vec<u64>,
        allowed: impl Fn(u64) -> u64,
    ) -> Result<(), TestCaseError> {
        values.sort_unstable();
        for q in [0.001, 0.25, 0.5, 0.9, 0.99, 0.999] {
            let rank = (q * values.len() as f64).ceil() as usize;
            let truth = values.get(rank.saturating_sub(1)).copied();
            prop_assert_eq!(d.quantile(q).is_some(), truth.is_some());
            if let (Some(found), Some(truth)) = (d.quantile(q), truth) {
                prop_assert!(found.abs_diff(truth) <= allowed(truth), "q {q}: {found} is not {truth}");
            }
        }
        prop_assert_eq!((d.quantile(0.0), d.quantile(1.0)), (values.first().copied(), values.last().copied()));
        Ok(())
    }

    proptest! {
        #[test]
        fn quantiles_are_close(values in values(), resolution in prop::sample::select(ALL.to_vec())) {
            let d = Distribution::from_slots(resolution, &record(resolution, &values), Scale::ONE);
            check(&d)?;
            let sum: u64 = values.iter().sum();
            prop_assert_eq!(d.mean(), (!values.is_empty()).then(|| sum as f64 / values.len() as f64));
            check_quantiles(&d, values, |truth| truth / u64::from(resolution.per_octave()))?;
        }

        #[test]
        fn scaled_quantiles_are_close(values in values(), scale in scale()) {
            let d = distribution(&values, scale);
            check(&d)?;
            // Bounds are rounded, too.
            let scaled = values.iter().map(|&v| scale.apply(v)).collect();
            check_quantiles(&d, scaled, |truth| truth / u64::from(Resolution::Fine.per_octave()) + 1)?;
        }

        #[test]
        fn merged_is_recorded_together(a in values(), b in values(), one in scale(), other in scale()) {
            let together = distribution(&[a.clone(), b.clone()].concat(), Scale::ONE);
            let mut merged = distribution(&a, Scale::ONE);
            merged.merge(&distribution(&b, Scale::ONE));
            prop_assert_eq!(merged, together);
            // Of clocks of two speeds.
            let mut merged = distribution(&a, one);
            merged.merge(&distribution(&b, other));
            check(&merged)?;
            let both = a.iter().map(|&v| one.apply(v)).chain(b.iter().map(|&v| other.apply(v))).collect();
            check_quantiles(&merged, both, |truth| truth / (u64::from(Resolution::Fine.per_octave()) / 2) + 2)?;
        }

        #[test]
        fn minus_leaves_what_came_later(a in values(), b in values(), scale in scale()) {
            let (earlier, new) = (distribution(&a, scale), distribution(&b, scale));
            let left = distribution(&[a, b].concat(), scale).minus(&earlier);
            check(&left)?;
            prop_assert_eq!(&left.buckets, &new.buckets);
            prop_assert!(left.sum.abs_diff(new.sum) <= 1);
            prop_assert!(left.min <= new.min && new.max <= left.max);
        }

        #[test]
        fn bins_add_up(values in values(), scale in scale(), bounds in proptest::collection::vec(value(), 0..20)) {
            let d = distribution(&values, scale);
            let mut bounds = bounds;
            bounds.sort_unstable();
            let below: Vec<u64> = bounds.iter().map(|&b| d.count_below(b)).collect();
            prop_assert!(below.is_sorted() && below.iter().all(|&n| n <= d.count));
            prop_assert_eq!((d.count_below(0), d.count_below(u64::MAX)), (0, d.count));
            for bucket in distribution(&values, Scale::ONE).buckets {
                let inside = values.iter().filter(|v| (bucket.first..bucket.end).contains(v)).count() as u64;
                prop_assert_eq!(bucket.count, inside);
            }
        }

        #[test]
        fn any_slots_are_read(slots in proptest::collection::vec(any::<u64>(), 0..40), mult in any::<u32>(), shift in any::<u32>(), q in any::<f64>()) {
            let mut d = Distribution::from_slots(Resolution::Medium, &slots, Scale { mult, shift });
            let _ = (d.quantile(q), d.mean(), d.count_below(7), d.minus(&d));
            d.merge(&d.clone());
        }
    }

    #[test]
    fn a_reading_in_the_middle_of_a_record_makes_sense() {
        let mut slots = record(Resolution::Fine, &[100, 200]);
        (slots[1], slots[2]) = (0, 0);
        let d = Distribution::from_slots(Resolution::Fine, &slots, Scale::ONE);
        assert_eq!((d.min, d.max, d.count), (101, 200, 2));
    }

    #[test]
    fn what_is_cut_still_has_its_largest_value() {
        let d = distribution(&[1 << 50, 1 << 60], Scale::ONE);
        assert_eq!((d.quantile(0.0), d.quantile(1.0), d.count), (Some(1 << 50), Some(1 << 60), 2));
    }

    #[test]
    fn a_scale_never_overflows() {
        assert_eq!(Scale { mult: u32::MAX, shift: 0 }.apply(u64::MAX), u64::MAX);
        // a hundred days of a counter of 5 GHz, whose ticks are 0.2 ns: far beyond 64 bits on the way
        let days = 100 * 86_400 * 1_000_000_000u64;
        let scale = Scale { mult: 429_496_730, shift: 31 };
        assert!(scale.apply(5 * days).abs_diff(days) < days / 1_000_000_000);
        assert_eq!(Scale { mult: 1, shift: 200 }.apply(u64::MAX), 0);
        // 3 GHz.
        assert_eq!(Scale { mult: 5_592_405, shift: 24 }.apply(3_000_000_000), 999_999_940);
    }
}
