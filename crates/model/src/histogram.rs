//! Histograms with log-linear buckets. Each power of two is divided into as many buckets of equal width as the [`Resolution`] says. So the
//! relative error of a value is the same for values of every size, and counts are exact. Code in the target counts values in the unit that
//! it records, such as ticks of a clock. A [`Distribution`] holds the counts in the metric's unit.

/// Number of bits of a value. Larger values are counted in the last bucket. As ticks of 3 GHz, the limit is an hour and a half.
pub const VALUE_BITS: u32 = 44;
/// Number of slots before the buckets.
pub const HEAD: u32 = 6;
/// Slot of the sum of own times: those of the calls without the calls inside of them that are recorded too. Each adds one more, so the slot is 0
/// only if no own time was recorded.
pub const OWN: u32 = 3;
/// Slot of the sum of squares, modulo 2^64. The next slot has the sum of the squares without their lowest [`SQUARE_BITS`] bits. Each slot changes
/// by one addition, so no carry can be missed. Together they give the exact sum ([`squares`]).
pub const SQUARES: u32 = 4;
/// Number of lowest bits of a square that are missing from the second slot of the sum.
pub const SQUARE_BITS: u32 = 24;

/// Returns the sum of the squares of `count` recorded values, from its two slots, the sum of the values, and the largest value. Returns `None`
/// if a slot may have overflowed or if a value had more than [`VALUE_BITS`] bits: after 2^38 values, or if `sum * max` has more than 88 bits.
///
/// If a value is recorded at the moment of the reading, it may be missing from one of the slots. The result then lies between the sums without
/// it and with it, except that the square of a value of 32 bits and more may be off by a multiple of 2^64.
pub fn squares([low, high]: [u64; 2], count: u64, sum: u64, max: u64) -> Option<u128> {
    let fits = u128::from(sum) * u128::from(max) < 1 << (64 + SQUARE_BITS);
    if count >= 1 << (62 - SQUARE_BITS) || max >> VALUE_BITS != 0 || !fits {
        return None;
    }
    let most = u128::from(high) << SQUARE_BITS;
    // The bits that the second slot lacks are fewer than 63, so the difference of both slots has them.
    let rest = low.wrapping_sub(high << SQUARE_BITS).cast_signed();
    most.checked_add_signed(rest.into())
}

/// Number of buckets into which a histogram divides each power of two. A coarser histogram takes less memory in every thread of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// 4 buckets for each power of two: 1.4 KB a thread.
    Coarse,
    /// 8 buckets for each power of two: 2.7 KB a thread.
    Medium,
    /// 32 buckets for each power of two: 10 KB a thread.
    Fine,
}

impl Resolution {
    /// Number of bits that select a bucket among those of one power of two.
    pub const fn sub_bits(self) -> u32 {
        match self {
            Resolution::Coarse => 2,
            Resolution::Medium => 3,
            Resolution::Fine => 5,
        }
    }

    /// Number of buckets for each power of two.
    pub const fn per_octave(self) -> u32 {
        1 << self.sub_bits()
    }

    /// Number of all buckets.
    pub const fn buckets(self) -> u32 {
        (VALUE_BITS - self.sub_bits() + 1) * self.per_octave()
    }

    /// The bucket of a value.
    pub fn bucket_of(self, value: u64) -> u32 {
        let value = value.min((1 << VALUE_BITS) - 1);
        let octave = (value | u64::from(self.per_octave())).ilog2() - self.sub_bits();
        octave * self.per_octave() + (value >> octave) as u32
    }

    /// Returns the smallest value of a bucket, and the smallest value above the bucket. The last bucket also holds all values of more than
    /// `VALUE_BITS` bits.
    pub fn bounds(self, bucket: u32) -> (u64, u64) {
        let octave = (bucket / self.per_octave()).saturating_sub(1);
        let first = u64::from(bucket - octave * self.per_octave()) << octave;
        (first, first + (1 << octave))
    }
}

/// Factor from recorded units to the metric's unit: `value * mult >> shift`, rounded down. A result of more than 64 bits becomes the
/// largest number. A larger value never gives a smaller result. Linux publishes the rate of the time stamp counter in this form
/// (`time_mult`, `time_shift` of perf_event_open(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Factor; the multiplication uses 128 bits, so it does not overflow.
    pub mult: u32,
    /// Number of bits by which the product is then shifted right; the result of a shift by 128 or more is 0.
    pub shift: u32,
}

impl Scale {
    /// Scale for values that are recorded in the metric's unit.
    pub const ONE: Scale = Scale { mult: 1, shift: 0 };

    /// Converts a recorded value to the metric's unit.
    pub fn apply(self, recorded: u64) -> u64 {
        let wide = (u128::from(recorded) * u128::from(self.mult)).checked_shr(self.shift).unwrap_or(0);
        u64::try_from(wide).unwrap_or(u64::MAX)
    }

    /// Converts a sum of squares of recorded values to the square of the metric's unit, rounded down. `None` if it has more than 128 bits.
    pub fn apply_to_squares(self, recorded: u128) -> Option<u128> {
        let factor = u128::from(self.mult) * u128::from(self.mult);
        let low = (recorded & u128::from(u64::MAX)) * factor;
        // `factor` is less than 2^64, so this sum fits. The product is `high * 2^64 + (low mod 2^64)`.
        let high = (recorded >> 64) * factor + (low >> 64);
        let shift = self.shift.saturating_mul(2);
        if let Some(more) = shift.checked_sub(64) {
            return Some(high.checked_shr(more).unwrap_or(0));
        }
        let upper = high << (64 - shift);
        (upper >> (64 - shift) == high).then(|| upper | ((low & u128::from(u64::MAX)) >> shift))
    }

    /// Returns the number of recorded units in one unit of the metric, times 2^32 and rounded to the nearest; `u64::MAX` if there is no
    /// such number.
    pub fn inverse(self) -> u64 {
        let one = 1u128.checked_shl(self.shift.saturating_add(32)).filter(|one| *one != 0);
        let mult = u128::from(self.mult);
        let rate = one.and_then(|one| one.saturating_add(mult / 2).checked_div(mult));
        rate.and_then(|rate| u64::try_from(rate).ok()).unwrap_or(u64::MAX)
    }
}

/// A bucket of a distribution that holds at least one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The smallest value that the bucket may hold.
    pub first: u64,
    /// The largest value that the bucket may hold, plus one. The last bucket of a [`Shape::Histogram`](crate::Shape::Histogram) holds
    /// larger values too.
    pub end: u64,
    /// Number of values in the bucket; never 0.
    pub count: u64,
}

impl Bucket {
    /// Returns an estimate of the value with this rank in the bucket, from 1. The estimate assumes that the values are spread evenly.
    fn value_at(&self, rank: u64) -> u64 {
        let width = u128::from(self.end.saturating_sub(self.first));
        let count = u128::from(self.count.max(1));
        // Divide the bucket into one part for each value, and take the middle of the part of this rank.
        let above = width * (2 * u128::from(rank)).saturating_sub(1) / (2 * count);
        self.first.saturating_add(u64::try_from(above).unwrap_or(u64::MAX))
    }

    /// Returns an estimate of how many values of the bucket are less than `value`. The estimate assumes that the values are spread evenly.
    fn count_below(&self, value: u64) -> u64 {
        let width = u128::from(self.end.saturating_sub(self.first)).max(1);
        let below = u128::from(value.saturating_sub(self.first)).min(width);
        u64::try_from(u128::from(self.count) * below / width).unwrap_or(self.count)
    }
}

/// Distribution of recorded values in the metric's unit, from which quantiles are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Number of values: the sum of the buckets' counts.
    pub count: u64,
    /// Sum of all values, modulo 2^64. [`Distribution::exact_sum`] tells whether it can have overflowed.
    pub sum: u64,
    /// The smallest value; 0 if there is none.
    pub min: u64,
    /// The largest value; 0 if there is none.
    pub max: u64,
    /// Sum of the own times, if the values are times of calls: their times without those of the calls inside of them that are recorded with own
    /// times too. `None` if it is not known of all values.
    pub own: Option<u64>,
    /// Sum of the squares of all values, in the square of the metric's unit. `None` if it is not known. If values are scaled, the sum is rounded
    /// such that [`Distribution::stddev`] is right to a unit although `sum` is rounded too.
    pub squares: Option<u128>,
    /// The buckets that are not empty, sorted by `first` and then by `end`. No two have the same bounds. Buckets that were recorded with
    /// different scales may overlap.
    pub buckets: Vec<Bucket>,
}

impl Distribution {
    /// Reads the slots of a [`Shape::Histogram`](crate::Shape::Histogram), in their order, of one thread or of several threads together.
    /// Missing slots are 0. The target records values during the read, so the smallest and the largest value may be older than the counts.
    /// If one of them lies outside of the outermost bucket that is not empty, it is moved into that bucket.
    ///
    /// The smallest and the largest value and the bounds of buckets are rounded down one by one, the sum as a whole. The scaled bounds of a
    /// bucket contain every scaled value that was counted in it. Buckets whose scaled bounds are equal become one.
    pub fn from_slots(resolution: Resolution, slots: &[u64], scale: Scale) -> Self {
        let (buckets, bounds) = (resolution.buckets(), |bucket| resolution.bounds(bucket));
        let (head, counts) = slots.split_at(slots.len().min(HEAD as usize));
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
        let own = head(OWN as usize);
        out.own = (own != 0).then(|| scale.apply(own.saturating_sub(out.count)));
        let halves = [head(SQUARES as usize), head(SQUARES as usize + 1)];
        let square_of = |sum: u64| u128::from(sum) * u128::from(sum) / u128::from(out.count.max(1));
        // The spread around the mean is scaled, because rounding of the scaled sum does not change it.
        let spread = squares(halves, out.count, head(0), max).map(|sum| sum.saturating_sub(square_of(head(0))));
        out.squares = spread.and_then(|spread| scale.apply_to_squares(spread)?.checked_add(square_of(out.sum)));
        out
    }

    /// Adds a bucket that is not below the last one, or adds its count to the last one if the bounds are equal.
    fn push(&mut self, bucket: Bucket) {
        self.count = self.count.saturating_add(bucket.count);
        match self.buckets.last_mut() {
            Some(last) if (last.first, last.end) == (bucket.first, bucket.end) => {
                last.count = last.count.saturating_add(bucket.count);
            }
            _ => self.buckets.push(bucket),
        }
    }

    /// Returns the value of rank `q * count`, rounded up: a share `q` of all values does not exceed it. 0 and 1 give the smallest and the
    /// largest value, which are exact. Other values are interpolated inside a bucket, so their error is less than its width. Returns `None`
    /// if there is no value.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        // If `q` is not a number, the rank is 0.
        let mut rank = (q * self.count as f64).ceil() as u64;
        if rank <= 1 {
            return Some(self.min);
        }
        if rank >= self.count {
            return Some(self.max);
        }
        for bucket in &self.buckets {
            if rank <= bucket.count {
                // `clamp` panics if `min` is larger than `max`, as they may be in a distribution from another program.
                return Some(bucket.value_at(rank).max(self.min).min(self.max));
            }
            rank -= bucket.count;
        }
        None
    }

    /// The sum of all values. `None` if the buckets allow a sum of more than 64 bits, which the slot of the sum cannot hold.
    pub fn exact_sum(&self) -> Option<u64> {
        let most = self.buckets.iter().enumerate().map(|(at, bucket)| {
            // Only the last bucket may hold values above its end.
            let largest = if at + 1 == self.buckets.len() { self.max } else { bucket.end.saturating_sub(1) };
            u128::from(largest) * u128::from(bucket.count)
        });
        let most = most.fold(0, u128::saturating_add);
        (most <= u64::MAX.into()).then_some(self.sum)
    }

    /// The mean of all values. `None` if there is no value, or if the sum is not known.
    pub fn mean(&self) -> Option<f64> {
        self.exact_sum().filter(|_| self.count > 0).map(|sum| sum as f64 / self.count as f64)
    }

    /// The standard deviation of all values, in the metric's unit. `None` if there is no value, or if a sum is not known.
    /// Distributions that were added or subtracted have rounded sums, so their variance may be off by some `mean / count`.
    pub fn stddev(&self) -> Option<f64> {
        let count = u128::from(self.count);
        let sum = u128::from(self.exact_sum()?);
        let mean = (sum * sum).checked_div(count)?;
        let spread = self.squares?.saturating_sub(mean);
        Some((spread as f64 / self.count as f64).sqrt())
    }

    /// Returns the number of values below `value`. In the bucket of `value` the number is an estimate, rounded down, for values that are
    /// spread evenly.
    pub fn count_below(&self, value: u64) -> u64 {
        if value <= self.min {
            0
        } else if value > self.max {
            self.count
        } else {
            self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.count_below(value)))
        }
    }

    /// Adds the values of another distribution, for example of another thread, process or host.
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
            sum: self.sum.wrapping_add(other.sum),
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            own: self.own.zip(other.own).map(|(a, b)| a.saturating_add(b)),
            squares: self.squares.zip(other.squares).and_then(|(a, b)| a.checked_add(b)),
            ..Self::default()
        };
        buckets.into_iter().for_each(|bucket| out.push(bucket));
        *self = out;
    }

    /// Returns the values recorded since an earlier reading of the same slots. The slots keep the smallest and the largest of all values,
    /// so `min` and `max` of the result are only bounds. No value lies outside of them, and each is off by less than the width of its
    /// bucket. The sum of scaled values may be off by 1.
    #[must_use]
    pub fn minus(&self, earlier: &Distribution) -> Distribution {
        let sum = match self.exact_sum() {
            Some(sum) => sum.saturating_sub(earlier.sum),
            // The slot may have passed 2^64 since the earlier reading.
            None => self.sum.wrapping_sub(earlier.sum),
        };
        let mut out = Distribution { sum, ..Self::default() };
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
            out.own = self.own.map(|own| own.saturating_sub(earlier.own.unwrap_or(0)));
            let before = if earlier.count == 0 { Some(0) } else { earlier.squares };
            out.squares = self.squares.zip(before).map(|(sum, before)| sum.saturating_sub(before));
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
    fn a_sum_of_more_than_64_bits_is_not_known() {
        // Pointers: each value is in a bucket of its own, and their sum passes 2^64 after some 131,000 values.
        let pointers = vec![0x7ff6_b533_be20; 1000];
        let d = distribution(&pointers, Scale::ONE);
        assert_eq!((d.exact_sum(), d.mean()), (Some(pointers.iter().sum()), Some(pointers[0] as f64)));
        let mut many = d.clone();
        (1..200).for_each(|_| many.merge(&d));
        assert_eq!((many.count, many.max), (200_000, pointers[0]));
        assert_eq!((many.exact_sum(), many.mean(), many.stddev()), (None, None, None));
        // The values recorded meanwhile are known, as long as their own sum has 64 bits.
        let mut later = many.clone();
        later.merge(&distribution(&pointers[..3], Scale::ONE));
        assert_eq!(later.minus(&many).exact_sum(), Some(3 * pointers[0]));
        // A negative value has all 64 bits. Two of them are too many.
        let negative = (-1_i64).cast_unsigned();
        assert_eq!(distribution(&[negative], Scale::ONE).exact_sum(), Some(negative));
        assert_eq!(distribution(&[negative, negative], Scale::ONE).exact_sum(), None);
        assert_eq!(Distribution::default().exact_sum(), Some(0));
    }

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
        let mut slots = vec![0_u64; Shape::Histogram(resolution).slots() as usize];
        for &value in values {
            slots[0] = slots[0].wrapping_add(value);
            slots[1] = slots[1].max(value);
            slots[2] = slots[2].max(!value);
            slots[3] = slots[3].wrapping_add(value / 2 + 1);
            let square = u128::from(value.min((1 << VALUE_BITS) - 1)).pow(2);
            slots[4] = slots[4].wrapping_add(square as u64);
            slots[5] = slots[5].wrapping_add((square >> SQUARE_BITS) as u64);
            slots[HEAD as usize + resolution.bucket_of(value) as usize] += 1;
        }
        slots
    }

    fn distribution(values: &[u64], scale: Scale) -> Distribution {
        Distribution::from_slots(Resolution::Fine, &record(Resolution::Fine, values), scale)
    }

    /// Generates values of every size up to `VALUE_BITS` bits.
    fn value() -> impl Strategy<Value = u64> {
        (0..VALUE_BITS, any::<u64>()).prop_map(|(bits, any)| any >> (63 - bits) >> 1)
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        proptest::collection::vec(value(), 0..200)
    }

    fn scale() -> impl Strategy<Value = Scale> {
        // Clocks of 0.3 to 3 GHz, and values without a scale.
        prop_oneof![Just(Scale::ONE), (1_u32 << 22..40 << 22).prop_map(|mult| Scale { mult, shift: 24 })]
    }

    /// Checks what the type promises: the count and the outermost values fit the buckets, and the buckets are in order.
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

    /// Compares quantiles with those of the sorted values. `allowed` gives the largest error for a value.
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
        fn squares_are_exact(values in values(), small in proptest::collection::vec(0u64..1 << 40, 1..200)) {
            let truth = |values: &[u64]| values.iter().map(|v| u128::from(*v).pow(2)).sum::<u128>();
            // The sum is exact, or the values are too large.
            let d = distribution(&values, Scale::ONE);
            prop_assert!(d.squares.is_none() || d.squares == Some(truth(&values)));
            let d = distribution(&small, Scale::ONE);
            prop_assert_eq!(d.squares, Some(truth(&small)));
            let (count, mean) = (small.len() as f64, d.mean().expect("a mean"));
            let variance = small.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / count;
            let found = d.stddev().expect("a deviation").powi(2);
            prop_assert!((found - variance).abs() <= 2.0 / count + 1e-9 * variance + 1e-6, "{found} {variance}");
        }

        #[test]
        fn equal_values_have_no_deviation(value in 0u64..1 << 40, scale in scale(), count in 1usize..20) {
            let found = distribution(&vec![value; count], scale).stddev().expect("a deviation");
            prop_assert!(found <= 1.0, "{found}");
        }

        #[test]
        fn squares_are_scaled(value in any::<u128>(), mult in any::<u32>(), shift in 0u32..200) {
            let scaled = Scale { mult, shift }.apply_to_squares(value);
            // The same with the quotient and the remainder of the shift.
            if let (Some(product), true) = (value.checked_mul(u128::from(mult) * u128::from(mult)), shift < 64) {
                prop_assert_eq!(scaled, Some(product >> (2 * shift)));
            }
        }

        #[test]
        fn scaled_quantiles_are_close(values in values(), scale in scale()) {
            let d = distribution(&values, scale);
            check(&d)?;
            // The bounds of buckets are rounded too, so the error is larger by 1.
            let scaled = values.iter().map(|&v| scale.apply(v)).collect();
            check_quantiles(&d, scaled, |truth| truth / u64::from(Resolution::Fine.per_octave()) + 1)?;
        }

        #[test]
        fn merged_is_recorded_together(a in values(), b in values(), one in scale(), other in scale()) {
            let together = distribution(&[a.clone(), b.clone()].concat(), Scale::ONE);
            let mut merged = distribution(&a, Scale::ONE);
            merged.merge(&distribution(&b, Scale::ONE));
            // The slots of two threads hold larger sums of squares than those of one.
            merged.squares = merged.squares.filter(|_| together.squares.is_some());
            prop_assert_eq!(merged, together);
            // Merge distributions of clocks of different speeds.
            let mut merged = distribution(&a, one);
            merged.merge(&distribution(&b, other));
            check(&merged)?;
            let both = a.iter().map(|&v| one.apply(v)).chain(b.iter().map(|&v| other.apply(v))).collect();
            check_quantiles(&merged, both, |truth| truth / (u64::from(Resolution::Fine.per_octave()) / 2) + 2)?;
        }

        #[test]
        fn minus_leaves_what_came_later(a in values(), b in values(), scale in scale()) {
            let (earlier, new) = (distribution(&a, scale), distribution(&b, scale));
            let whole = distribution(&[a, b].concat(), scale);
            let left = whole.minus(&earlier);
            check(&left)?;
            prop_assert_eq!(&left.buckets, &new.buckets);
            prop_assert!(left.sum.abs_diff(new.sum) <= 1);
            if let (Some(left), Some(fresh)) = (left.squares, new.squares) {
                let off: f64 = [&earlier, &new, &whole].map(|d| 2.0 * d.mean().unwrap_or(0.0) + 2.0).iter().sum();
                prop_assert!(left.abs_diff(fresh) as f64 <= off);
            }
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

    /// A thread that has changed only the first slot of the sum of squares, and a sum that no longer fits.
    #[test]
    fn squares_in_the_middle_of_a_record_make_sense() {
        let square = |value: u128| [(value * value) as u64, ((value * value) >> SQUARE_BITS) as u64];
        let whole = square(1 << 30);
        assert_eq!(squares(whole, 1, 1 << 30, 1 << 30), Some(1 << 60));
        assert_eq!(squares([whole[0], 0], 1, 1 << 30, 1 << 30), Some(1 << 60));
        assert_eq!(squares([0, whole[1]], 1, 1 << 30, 1 << 30), Some(0));
        assert_eq!(squares([0; 2], 1 << 38, 1, 1), None);
        assert_eq!(squares([0; 2], 1, u64::MAX, (1 << VALUE_BITS) - 1), None);
        assert_eq!(squares([0; 2], 1, 1 << VALUE_BITS, 1 << VALUE_BITS), None);
    }

    #[test]
    fn a_scale_never_overflows() {
        assert_eq!(Scale { mult: u32::MAX, shift: 0 }.apply(u64::MAX), u64::MAX);
        // A hundred days of a counter of 5 GHz, whose ticks are 0.2 ns. The product before the shift needs far more than 64 bits.
        let days = 100 * 86_400 * 1_000_000_000u64;
        let scale = Scale { mult: 429_496_730, shift: 31 };
        assert!(scale.apply(5 * days).abs_diff(days) < days / 1_000_000_000);
        assert_eq!(Scale { mult: 1, shift: 200 }.apply(u64::MAX), 0);
        // A counter of 3 GHz.
        assert_eq!(Scale { mult: 5_592_405, shift: 24 }.apply(3_000_000_000), 999_999_940);
    }
}
