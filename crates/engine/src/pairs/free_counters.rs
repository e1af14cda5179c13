//! Indices of counters: which of them are free.

use std::collections::BTreeMap;
use std::ops::Range;

/// Allocates counter indices, lowest first, so that few pages of each shard are touched.
#[derive(Debug, Default)]
pub struct CounterAllocator {
    /// Free ranges below `next`, as first counter and end; no two are adjacent.
    free: BTreeMap<u32, u32>,
    next: u32,
}

impl CounterAllocator {
    /// Begins after the counters that a taken-over target already uses.
    pub fn starting_at(next: u32) -> Self {
        CounterAllocator { free: Default::default(), next }
    }

    /// Begins in a target that uses the counters in the sorted ranges `taken`. Those below `next` have been used before.
    pub fn without(next: u32, taken: &[Range<u32>]) -> Self {
        let next = taken.last().map_or(next, |last| next.max(last.end));
        let mut counters = CounterAllocator::starting_at(next);
        let starts = std::iter::once(0).chain(taken.iter().map(|range| range.end));
        let ends = taken.iter().map(|range| range.start).chain([next]);
        starts.zip(ends).for_each(|(start, end)| counters.give_back(start, end.saturating_sub(start)));
        counters
    }

    /// The free counters among those that were used before.
    pub fn free(&self) -> impl Iterator<Item = Range<u32>> {
        self.free.iter().map(|(first, end)| *first..*end)
    }

    /// The first of `count` consecutive free counters, all below `limit`.
    pub fn take(&mut self, count: u32, limit: u32) -> Option<u32> {
        let fits = |(first, end): &(&u32, &u32)| **end - **first >= count;
        if let Some((&first, &end)) = self.free.iter().find(fits) {
            self.free.remove(&first);
            if first + count < end {
                self.free.insert(first + count, end);
            }
            return Some(first);
        }
        // a free range at the end continues into the counters that were never used
        let last = self.free.last_key_value().filter(|(_, end)| **end == self.next).map(|(first, _)| *first);
        let first = last.unwrap_or(self.next);
        self.next = first.checked_add(count).filter(|end| *end <= limit)?;
        last.map(|first| self.free.remove(&first));
        Some(first)
    }

    /// Frees counters, which must have been cleared.
    pub fn give_back(&mut self, first: u32, count: u32) {
        if count == 0 {
            return;
        }
        let mut end = first.saturating_add(count);
        if let Some(next) = self.free.remove(&end) {
            end = next;
        }
        match self.free.range_mut(..first).next_back().filter(|(_, before)| **before == first) {
            Some((_, before)) => *before = end,
            None => drop(self.free.insert(first, end)),
        }
    }

    /// One more than the highest counter ever used.
    pub fn used(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_used_again() {
        let mut counters = CounterAllocator::default();
        assert_eq!((counters.take(1, 2), counters.take(1, 2), counters.take(1, 2)), (Some(0), Some(1), None));
        counters.give_back(0, 1);
        assert_eq!(counters.take(1, 2), Some(0));
        assert_eq!(counters.used(), 2);
        assert_eq!(counters.take(3, 10), Some(2));
        counters.give_back(0, 1);
        counters.give_back(2, 3);
        // a free range at the end continues into the counters that were never used
        assert_eq!((counters.take(4, 10), counters.take(3, 10), counters.take(1, 10)), (Some(2), Some(6), Some(0)));
        assert_eq!((counters.take(2, 10), counters.used()), (None, 9));
        counters.give_back(3, 0);
        for first in [3, 0, 7, 2, 4] {
            counters.give_back(first, 1);
        }
        assert_eq!((counters.take(3, 10), counters.take(1, 10), counters.take(1, 10)), (Some(2), Some(0), Some(7)));
    }

    #[test]
    fn counters_that_code_may_still_change_stay_taken() {
        let mut counters = CounterAllocator::without(20, &[0..3, 10..12]);
        assert_eq!(counters.free().collect::<Vec<_>>(), [3..10, 12..20]);
        assert_eq!((counters.take(8, 30), counters.take(8, 30), counters.take(7, 30)), (Some(12), Some(20), Some(3)));
        assert_eq!(CounterAllocator::without(20, &[]).take(30, 30), Some(0), "all of them are free");
        let mut counters = CounterAllocator::without(20, &[0..1, 15..25]);
        assert_eq!((counters.used(), counters.take(1, 30)), (25, Some(1)));
    }

    #[test]
    fn counters_belong_to_one_at_a_time() {
        let (mut counters, mut held) = (CounterAllocator::default(), Vec::<(u32, u32)>::new());
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (state >> 33) as u32;
            if number.is_multiple_of(3) && !held.is_empty() {
                let (first, count) = held.swap_remove(number as usize / 3 % held.len());
                counters.give_back(first, count);
            } else if let Some(first) = counters.take(1 + number % 9, 300) {
                let count = 1 + number % 9;
                assert!(first + count <= 300);
                assert!(held.iter().all(|(f, c)| first + count <= *f || f + c <= first), "{first} {count} {held:?}");
                held.push((first, count));
            }
        }
        held.into_iter().for_each(|(first, count)| counters.give_back(first, count));
        assert_eq!(counters.take(counters.used(), 300), Some(0), "all of them are one again");
    }
}
