//! Values of keys that the engine lists: a table of keys in shard 0, which code in the target only reads, and a value for each place of the
//! table in every shard. Requests that differ in one key alone share the code that looks a key up.
//!
//! ```text
//! 0                     a key per place; in shard 0 alone
//! places ..             a value per place
//! ```
//!
//! Code looks at [`PROBES`] neighbouring places at most, and stops at the first free one. A key that is not listed changes nothing.
//! A place whose key was retired is not used again as long as the table lives: a thread may have found the key just before.

use crate::table::MULTIPLIER;

/// Number of places at which code looks for a key, from that of its hash on, the first behind the last.
pub const PROBES: u32 = 8;
/// Word of a place that never had a key. No key is listed that is equal to it.
pub const FREE: u64 = 0;
/// Word of a place whose key was retired. No key is listed that is equal to it.
pub const RETIRED: u64 = u64::MAX;

/// Bits of the number of a place: of the smallest table, and of the largest one.
const BITS: std::ops::RangeInclusive<u8> = 4..=17;

/// Size of a table of listed keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listing {
    bits: u8,
}

impl Listing {
    /// The table with so many places, if that number is a power of two from 16 to 131,072.
    pub fn of_places(places: u32) -> Option<Self> {
        let bits = places.trailing_zeros() as u8;
        (places.is_power_of_two() && BITS.contains(&bits)).then_some(Listing { bits })
    }

    /// Number of places, a power of two.
    pub const fn places(self) -> u32 {
        1 << self.bits
    }

    /// Number of counters that the table takes in every shard.
    pub const fn slots(self) -> u32 {
        2 * self.places()
    }

    /// Bits by which the product of a key and [`MULTIPLIER`] is shifted to the right: what is left is the key's first place.
    pub const fn shift(self) -> u32 {
        u64::BITS - self.bits as u32
    }

    /// Index of the value of a place among the counters of the table.
    pub const fn value(self, place: u32) -> u32 {
        self.places() + place
    }

    /// The places at which code looks for a key, in order.
    fn probes(self, key: u64) -> impl Iterator<Item = u32> {
        let first = (key.wrapping_mul(MULTIPLIER) >> self.shift()) as u32;
        (0..PROBES).map(move |probe| (first + probe) & (self.places() - 1))
    }
}

/// The keys of a table, as the engine keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKeys {
    listing: Listing,
    words: Vec<u64>,
}

impl ListedKeys {
    /// The smallest table that is at most half full with these keys and in which code finds each; their places, in order. None if a key cannot
    /// be listed, if one comes twice, or if the largest table has no place for all of them.
    pub fn of(keys: &[u64]) -> Option<(Self, Vec<u32>)> {
        BITS.filter(|bits| (2 * keys.len()) as u64 <= 1 << bits).find_map(|bits| {
            let listing = Listing { bits };
            let mut table = ListedKeys { listing, words: vec![FREE; listing.places() as usize] };
            let places = keys.iter().map(|key| table.add(*key)).collect::<Option<_>>()?;
            Some((table, places))
        })
    }

    /// The size of the table.
    pub fn listing(&self) -> Listing {
        self.listing
    }

    /// The words of all places, in order: keys, [`FREE`] and [`RETIRED`].
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Lists a key: its place. None if it cannot be listed, is listed, or if code would find no place for it.
    pub fn add(&mut self, key: u64) -> Option<u32> {
        if matches!(key, FREE | RETIRED) {
            return None;
        }
        for place in self.listing.probes(key) {
            let word = self.words.get_mut(place as usize)?;
            if *word == key {
                return None;
            }
            if *word == FREE {
                *word = key;
                return Some(place);
            }
        }
        None
    }

    /// Takes the key of a place off the list.
    pub fn retire(&mut self, place: u32) {
        if let Some(word) = self.words.get_mut(place as usize) {
            *word = RETIRED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place at which code in the target finds a key.
    fn found(table: &ListedKeys, key: u64) -> Option<u32> {
        for place in table.listing.probes(key) {
            match table.words[place as usize] {
                FREE => return None,
                word if word == key => return Some(place),
                _ => {}
            }
        }
        None
    }

    /// Keys with the same first place in a table of so many places.
    fn colliding(listing: Listing, count: usize) -> Vec<u64> {
        (1..).filter(|key| listing.probes(*key).next() == Some(3)).take(count).collect()
    }

    #[test]
    fn every_key_is_found_at_its_own_place() {
        for count in [1, 4, 64, 1000, 20_000] {
            let keys: Vec<u64> = (0..count).map(|n| 0x7f12_3456_0000 + 40 * n).collect();
            let (table, places) = ListedKeys::of(&keys).expect("a table");
            assert!(2 * keys.len() <= table.words().len());
            for (key, place) in keys.iter().zip(&places) {
                assert_eq!(found(&table, *key), Some(*place));
            }
            assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
            assert_eq!(found(&table, 0x7f12_3456_0001), None);
        }
    }

    #[test]
    fn a_table_grows_until_each_key_has_a_place() {
        let small = Listing::of_places(32).expect("a size");
        let keys = colliding(small, PROBES as usize + 1);
        let (table, _) = ListedKeys::of(&keys).expect("a table");
        assert!(table.listing().places() > 32, "{table:?}");
        assert!(keys.iter().all(|key| found(&table, *key).is_some()));
    }

    #[test]
    fn a_key_without_a_place_is_refused() {
        let mut table = ListedKeys::of(&[]).expect("an empty table").0;
        let keys = colliding(table.listing(), PROBES as usize + 1);
        let (last, others) = keys.split_last().expect("keys");
        assert!(others.iter().all(|key| table.add(*key).is_some()));
        assert_eq!((table.add(*last), table.add(others[0])), (None, None));
        // a retired place leads on to those behind it, and is not used again
        let places: Vec<u32> = others.iter().filter_map(|key| found(&table, *key)).collect();
        table.retire(places[0]);
        assert_eq!(found(&table, others[0]), None);
        assert!(others[1..].iter().all(|key| found(&table, *key).is_some()));
        assert_eq!(table.add(*last), None);
        assert_eq!((table.add(FREE), table.add(RETIRED)), (None, None));
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(Listing::of_places(256).map(Listing::slots), Some(512));
        assert!([0, 8, 100, 1 << 18].iter().all(|places| Listing::of_places(*places).is_none()));
    }
}
