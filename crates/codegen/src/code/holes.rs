//! The free ranges of an arena below its end of use, found by length.

use std::collections::{BTreeMap, BTreeSet};

/// Number of holes of about one length that are tried. Code lies in certain parts of a page, so a hole that is long enough may not do.
const TRIES: usize = 16;

/// Free ranges, none of which touches another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holes {
    /// End of each range, by its start.
    ends: BTreeMap<u64, u64>,
    /// Length of each range, and its start.
    lengths: BTreeSet<(u64, u64)>,
    /// Number of free bytes.
    bytes: u64,
}

impl Holes {
    /// Number of free bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range that touches no other one. An empty range is not added.
    pub fn add(&mut self, start: u64, end: u64) {
        if start < end && !self.ends.contains_key(&start) {
            self.ends.insert(start, end);
            self.lengths.insert((end - start, start));
            self.bytes += end - start;
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        if self.ends.remove(&start).is_some() {
            self.lengths.remove(&(end - start, start));
            self.bytes -= end - start;
        }
    }

    /// Frees a range. Returns the range that it makes with those that touch it, which is no longer one of the holes.
    pub fn join(&mut self, mut start: u64, mut end: u64) -> (u64, u64) {
        if let Some((&s, &e)) = self.ends.range(..=start).next_back()
            && e >= start
        {
            self.remove(s, e);
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.ends.range(start..=end).next() {
            self.remove(s, e);
            end = end.max(e);
        }
        (start, end)
    }

    /// Takes the bytes from `at` to `end`. Nothing happens unless one hole holds them.
    pub fn take(&mut self, at: u64, end: u64) {
        if let Some((&s, &e)) = self.ends.range(..=at).next_back()
            && e >= end
        {
            self.remove(s, e);
            self.add(s, at);
            self.add(end, e);
        }
    }

    /// Finds an address with `len` free bytes, in short holes first: some that are hardly longer, then some of twice the length, and so on.
    /// `adjust` may return a larger address than the start of a hole.
    pub fn find(&self, len: u64, adjust: &impl Fn(u64) -> u64) -> Option<u64> {
        let longest = self.lengths.last()?.0;
        let fits = |(long, start): &(u64, u64)| {
            let at = adjust(*start);
            at.checked_add(len).is_some_and(|end| end <= start + long).then_some(at)
        };
        let mut least = Some(len);
        while let Some(length) = least.filter(|length| *length <= longest) {
            let found = self.lengths.range((length, 0)..).take(TRIES).find_map(fits);
            if found.is_some() {
                return found;
            }
            least = length.checked_add(1).and_then(u64::checked_next_power_of_two);
        }
        None
    }

    /// Adds the holes of a part of the same arena.
    pub fn extend(&mut self, part: Holes) {
        part.ends.into_iter().for_each(|(start, end)| self.add(start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_hole_that_is_long_enough_is_found() {
        let mut holes = Holes::default();
        holes.add(0x100, 0x400);
        holes.add(0x500, 0x540);
        holes.add(0x600, 0x608);
        assert_eq!(holes.bytes(), 0x300 + 0x40 + 8);
        assert_eq!(holes.find(8, &|a| a), Some(0x600));
        assert_eq!(holes.find(9, &|a| a), Some(0x500));
        assert_eq!(holes.find(0x40, &|a| a), Some(0x500));
        assert_eq!(holes.find(0x40, &|a| a + 1), Some(0x101), "the other one is too short there");
        assert_eq!(holes.find(0x301, &|a| a), None);
    }

    #[test]
    fn long_holes_are_found_behind_many_short_ones() {
        let mut holes = Holes::default();
        (0..10_000).for_each(|n| holes.add(n * 64, n * 64 + 40));
        holes.add(1 << 30, (1 << 30) + 4096);
        assert_eq!(holes.find(39, &|a| a.next_multiple_of(64)), Some(0));
        assert_eq!(holes.find(40, &|a| a + 1), Some((1 << 30) + 1));
    }

    #[test]
    fn taken_bytes_split_holes_and_freed_ones_join_them() {
        let mut holes = Holes::default();
        holes.add(0x100, 0x200);
        holes.take(0x140, 0x160);
        assert_eq!(
            (holes.find(0xa0, &|a| a), holes.find(0x40, &|a| a), holes.bytes()),
            (Some(0x160), Some(0x100), 0xe0)
        );
        holes.take(0x130, 0x150);
        assert_eq!(holes.bytes(), 0xe0, "no hole holds all of these");
        assert_eq!(holes.join(0x140, 0x160), (0x100, 0x200));
        assert_eq!((holes.bytes(), holes.find(1, &|a| a)), (0, None));
    }
}
