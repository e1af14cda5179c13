//! Shares of the variance of a function's time in what the function does: the calls that it makes, and the iterations of its loops.
//!
//! For each call of the function, its time T was measured. So were the cost C of each of some of its calls (the time of all calls that one
//! call site made) and the number N of iterations of some of its loops. The rest of the time is R = T − ΣC. Costs are disjoint, so the
//! covariance of T with itself is the sum of those of the costs: Var(T) = ΣCov(C, T) + Cov(R, T).
//!
//! A cost inside of a loop grows with the iterations of the loop. So each cost X is split by a linear regression on the iterations of those
//! measured loops that contain it: X = a + Σ b·N + E. A call site lies in some of the loops, or in none. R lies in all of them.
//!
//! ```text
//! share of a loop       = Σ over X of b·Cov(N, T) / Var(T)
//! share of a call site  = Cov(E, T) / Var(T)       = Cov(C, T) / Var(T) if no measured loop contains it
//! remainder             = Cov(E of R, T) / Var(T)
//! ```
//!
//! The regressions only move parts of covariances from one term to another, so the shares and the remainder add up to 1 whatever was measured.
//! A share is negative if a cost is small where calls are long.
//!
//! Sums of products are integers without rounding. A regression leaves out a loop whose iterations follow from those of others, such as
//! an inner loop that iterates equally often each time; its share is then 0, because that of the outer loop has it.

/// Part of a loop's variance below which its iterations follow from those of other loops.
const DEPENDENT: f64 = 1e-3;
/// Number above which values are not added, because sums would have no room: 2^47 ticks are half a day.
const VALUE_MAX: u64 = 1 << 47;
/// Largest number of calls that are added up.
const CALLS_MAX: u64 = 1 << 32;

/// Sums over the measured calls of a function. Value 0 of a call is its time; the others are costs, and numbers of iterations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallMoments {
    /// Number of calls.
    pub calls: u64,
    /// Sum of each value.
    pub sums: Vec<u128>,
    /// Sums of the products of two values: of value 0 with all, then of value 1 with itself and all after it, and so on.
    pub products: Vec<u128>,
}

/// Part of a function whose share is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharePart {
    /// The calls that a call site makes. Their value is the time that they take.
    CallSite {
        /// Indexes of the measured loops that contain the call site.
        inside: Vec<usize>,
    },
    /// A loop. Its value is the number of iterations.
    Loop,
}

/// Shares of the variance, from measured calls.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredShares {
    /// Share of each part, in their order.
    pub parts: Vec<f64>,
    /// Share of everything else.
    pub remainder: f64,
}

impl CallMoments {
    /// Number of products of `values` values.
    pub const fn products_of(values: usize) -> usize {
        values * (values + 1) / 2
    }

    /// Sums of no calls yet, each with so many values.
    pub fn new(values: usize) -> Self {
        CallMoments { calls: 0, sums: vec![0; values], products: vec![0; Self::products_of(values)] }
    }

    /// Adds a call. Returns false, and adds nothing, if there is no room for its values, or if it has another number of them.
    pub fn add(&mut self, values: &[u64]) -> bool {
        let is_large = values.iter().any(|value| *value > VALUE_MAX);
        if values.len() != self.sums.len() || is_large || self.calls >= CALLS_MAX {
            return false;
        }
        self.calls += 1;
        self.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += u128::from(*value));
        let pairs =
            values.iter().enumerate().flat_map(|(at, one)| values.iter().skip(at).map(move |other| (one, other)));
        for (sum, (one, other)) in self.products.iter_mut().zip(pairs) {
            *sum += u128::from(*one) * u128::from(*other);
        }
        true
    }

    /// Mean of a value; `None` without calls.
    pub fn mean(&self, value: usize) -> Option<f64> {
        let sum = self.sums.get(value)?;
        (self.calls > 0).then(|| *sum as f64 / self.calls as f64)
    }

    /// Covariance of two values over the measured calls; `None` without calls.
    pub fn covariance(&self, one: usize, other: usize) -> Option<f64> {
        let (low, high) = (one.min(other), one.max(other));
        let values = self.sums.len();
        let row = Self::products_of(values).checked_sub(Self::products_of(values.checked_sub(low)?))?;
        let product = *self.products.get(row + (high - low))?;
        let (x, y) = (*self.sums.get(low)?, *self.sums.get(high)?);
        let calls = i128::from(self.calls);
        if calls == 0 || high >= values {
            return None;
        }
        // Sums of what is above the integer parts of the means. The result fits into 127 bits, so that steps may wrap.
        let [product, x, y] = [product, x, y].map(u128::cast_signed);
        let (mean_x, mean_y) = (x / calls, y / calls);
        let moved = product
            .wrapping_sub(mean_x.wrapping_mul(y))
            .wrapping_sub(mean_y.wrapping_mul(x))
            .wrapping_add(calls.wrapping_mul(mean_x).wrapping_mul(mean_y));
        let (over_x, over_y) = (x - calls * mean_x, y - calls * mean_y);
        let n = self.calls as f64;
        Some(match moved.checked_mul(calls) {
            Some(whole) => (whole - over_x * over_y) as f64 / n / n,
            None => (moved as f64 - over_x as f64 * over_y as f64 / n) / n,
        })
    }

    /// Shares of parts: value 1 is that of the first, and so on. `None` if fewer than two calls were measured, if all of them took equally
    /// long, or if values are missing.
    pub fn shares(&self, parts: &[SharePart]) -> Option<MeasuredShares> {
        let variance = self.covariance(0, 0).filter(|variance| *variance > 0.0)?;
        let with = |one: Option<usize>, other: usize| -> Option<f64> {
            let Some(one) = one else {
                // The rest is the time without the costs.
                let costs = parts.iter().enumerate().filter(|(_, part)| matches!(part, SharePart::CallSite { .. }));
                let known = costs.map(|(at, _)| self.covariance(at + 1, other)).sum::<Option<f64>>()?;
                return Some(self.covariance(0, other)? - known);
            };
            self.covariance(one + 1, other)
        };
        let is_loop = |at: &usize| matches!(parts.get(*at), Some(SharePart::Loop));
        let mut all = vec![0.0; parts.len()];
        let mut split = |cost: Option<usize>, loops: &[usize]| -> Option<f64> {
            let mut own = with(cost, 0)?;
            for (at, factor) in self.regression(loops, |of| with(cost, of + 1))? {
                let moved = factor * self.covariance(at + 1, 0)?;
                *all.get_mut(at)? += moved;
                own -= moved;
            }
            Some(own)
        };
        let mut own = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let SharePart::CallSite { inside } = part else { continue };
            let inside: Vec<usize> = inside.iter().copied().filter(is_loop).collect();
            own.push((at, split(Some(at), &inside)?));
        }
        let loops: Vec<usize> = (0..parts.len()).filter(is_loop).collect();
        let remainder = split(None, &loops)? / variance;
        own.into_iter().for_each(|(at, covariance)| all.iter_mut().skip(at).take(1).for_each(|all| *all += covariance));
        let parts = all.into_iter().map(|covariance| covariance / variance).collect();
        Some(MeasuredShares { parts, remainder })
    }

    /// The factors of a regression on the iterations of loops: each loop with its factor. `with` is the covariance with the iterations of a loop.
    fn regression(&self, loops: &[usize], with: impl Fn(usize) -> Option<f64>) -> Option<Vec<(usize, f64)>> {
        // Each row is a loop's iterations without what follows from those of the loops before (Gram and Schmidt), as factors of all loops.
        let mut rows: Vec<(Vec<f64>, f64)> = Vec::new();
        let between = |one: &[f64], other: usize| -> Option<f64> {
            let terms = loops.iter().zip(one).map(|(at, factor)| Some(factor * self.covariance(at + 1, other + 1)?));
            terms.sum()
        };
        let mut factors = vec![0.0; loops.len()];
        for (n, at) in loops.iter().enumerate() {
            let whole = self.covariance(at + 1, at + 1)?;
            let mut row = vec![0.0; loops.len()];
            row.iter_mut().skip(n).take(1).for_each(|own| *own = 1.0);
            for (earlier, variance) in &rows {
                let part = between(earlier, *at)? / variance;
                row.iter_mut().zip(earlier).for_each(|(own, of)| *own -= part * of);
            }
            let left = between(&row, *at)?;
            if whole <= 0.0 || left <= DEPENDENT * whole {
                continue;
            }
            let cost: Option<f64> = loops.iter().zip(&row).map(|(at, factor)| Some(factor * with(*at)?)).sum();
            let slope = cost? / left;
            factors.iter_mut().zip(&row).for_each(|(sum, factor)| *sum += slope * factor);
            rows.push((row, left));
        }
        Some(loops.iter().copied().zip(factors).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moments(calls: &[Vec<u64>]) -> CallMoments {
        let mut moments = CallMoments::new(calls.first().map_or(1, Vec::len));
        assert!(calls.iter().all(|call| moments.add(call)));
        moments
    }

    fn call_site(inside: &[usize]) -> SharePart {
        SharePart::CallSite { inside: inside.to_vec() }
    }

    #[track_caller]
    fn assert_shares(moments: &CallMoments, parts: &[SharePart], expected: &[f64]) {
        let shares = moments.shares(parts).expect("shares");
        let all: Vec<f64> = shares.parts.iter().copied().chain([shares.remainder]).collect();
        let is_near = all.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-9);
        assert!(is_near && all.len() == expected.len(), "{all:?} is not {expected:?}");
    }

    #[test]
    fn covariances_are_those_of_the_definition() {
        let calls = moments(&[vec![10, 1], vec![20, 3], vec![60, 2]]);
        // Means 30 and 2, deviations -20, -10, 30 and -1, 1, 0.
        assert!((calls.covariance(0, 0).expect("calls") - 1400.0 / 3.0).abs() < 1e-9);
        assert!((calls.covariance(1, 0).expect("calls") - 10.0 / 3.0).abs() < 1e-9);
        assert!((calls.covariance(1, 1).expect("calls") - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((calls.mean(0), calls.covariance(0, 2), calls.mean(2)), (Some(30.0), None, None));
        assert_eq!(CallMoments::new(2).covariance(0, 0), None);
    }

    /// The deviation is small beside the mean, so that products of floating-point numbers would lose it.
    #[test]
    fn small_deviations_of_large_times_are_exact() {
        let at = VALUE_MAX - 10;
        let calls: Vec<Vec<u64>> = (0..4000).map(|n| vec![at + n % 2 * 2, at]).collect();
        let calls = moments(&calls);
        assert_eq!(calls.covariance(0, 0), Some(1.0));
        assert_eq!((calls.covariance(0, 1), calls.covariance(1, 1)), (Some(0.0), Some(0.0)));
        let mut full = calls;
        assert!(!full.add(&[VALUE_MAX + 1, 0]) && !full.add(&[1]));
        assert_eq!(full.calls, 4000);
    }

    /// One call of ten is slow, and the rest takes as long each time.
    #[test]
    fn a_slow_call_has_the_variance() {
        let calls: Vec<Vec<u64>> =
            (0..1000).map(|n| if n % 10 == 3 { vec![1100, 1000, 50] } else { vec![150, 50, 50] }).collect();
        assert_shares(&moments(&calls), &[call_site(&[]), call_site(&[])], &[1.0, 0.0, 0.0]);
    }

    /// Iterations of the function's own code, and of code in which a call is made that takes 3 each time.
    #[test]
    fn iterations_have_the_cost_of_the_calls_in_them() {
        let trips = |n: u64| n * n % 17;
        let own: Vec<Vec<u64>> = (0..100).map(|n| vec![20 + 7 * trips(n), trips(n)]).collect();
        assert_shares(&moments(&own), &[SharePart::Loop], &[1.0, 0.0]);
        let with_calls: Vec<Vec<u64>> = (0..100).map(|n| vec![20 + 7 * trips(n), 3 * trips(n), trips(n)]).collect();
        assert_shares(&moments(&with_calls), &[call_site(&[1]), SharePart::Loop], &[0.0, 1.0, 0.0]);
        // The same call beside the loop is a cause of its own.
        let expected = [3.0 / 7.0, 4.0 / 7.0, 0.0];
        assert_shares(&moments(&with_calls), &[call_site(&[]), SharePart::Loop], &expected);
    }

    /// The inner loop iterates four times for each iteration of the outer one.
    #[test]
    fn an_inner_loop_that_does_not_vary_is_no_cause() {
        let trips = |n: u64| n * n % 17;
        let calls: Vec<Vec<u64>> = (0..100).map(|n| vec![9 * trips(n), trips(n), 4 * trips(n)]).collect();
        assert_shares(&moments(&calls), &[SharePart::Loop, SharePart::Loop], &[1.0, 0.0, 0.0]);
    }

    #[test]
    fn calls_that_take_equally_long_have_no_shares() {
        assert_eq!(moments(&[vec![5, 1], vec![5, 2]]).shares(&[SharePart::Loop]), None);
        assert_eq!(CallMoments::new(1).shares(&[]), None);
        assert_eq!(moments(&[vec![5], vec![6]]).shares(&[SharePart::Loop]), None);
        assert_shares(&moments(&[vec![5], vec![6]]), &[], &[1.0]);
    }

    /// Parts of every kind, loops in loops and wrong indexes among them.
    fn parts() -> impl Strategy<Value = Vec<SharePart>> {
        let inside = prop::collection::vec(0..9_usize, 0..4).prop_map(|mut inside| {
            inside.sort_unstable();
            inside.dedup();
            SharePart::CallSite { inside }
        });
        prop::collection::vec(prop_oneof![Just(SharePart::Loop), inside], 0..8)
    }

    proptest! {
        #[test]
        fn shares_and_remainder_add_up_to_1(
            parts in parts(),
            seed in prop::collection::vec(prop::collection::vec(0..1_u64 << 40, 9), 2..40),
        ) {
            let mut all = CallMoments::new(parts.len() + 1);
            for values in &seed {
                // The costs are parts of the time, and iterations may be few.
                let value = |(n, part): (usize, &SharePart)| match part {
                    SharePart::CallSite { .. } => values[n],
                    SharePart::Loop => values[n] % 5,
                };
                let own: Vec<u64> = parts.iter().enumerate().map(value).collect();
                let costs = parts.iter().zip(&own).filter(|(part, _)| **part != SharePart::Loop).map(|(_, cost)| cost);
                let time = values[8] + costs.sum::<u64>();
                prop_assert!(all.add(&[&[time][..], &own].concat()));
            }
            if let Some(shares) = all.shares(&parts) {
                let sum = shares.parts.iter().sum::<f64>() + shares.remainder;
                prop_assert!((sum - 1.0).abs() < 1e-9, "{shares:?}");
            } else {
                prop_assert!(all.covariance(0, 0) == Some(0.0));
            }
        }
    }
}
