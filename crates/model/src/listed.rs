//! Values of keys that the engine lists. Shard 0 has a table of keys, which code in the target only reads. Every shard has a value for each
//! place of the table. Requests that differ only in their key share the code that looks a key up.
//!
//! ```text
//! 0                     a key for each place, only in shard 0
//! places ..             a value for each place
//! ```
//!
//! Code compares at most [`PROBES`] neighbouring places, and stops at the first free one. If the key is not listed, no value changes. The
//! place of a retired key is not used again while the table exists, because a thread may have found the key just before.

use crate::table::MULTIPLIER;

/// Number of places that code compares for a key, from the place of its hash on. After the last place of the table comes the first.
pub const PROBES: u32 = 8;
/// Word of a place that never had a key. A key with this value cannot be listed.
pub const FREE: u64 = 0;
/// Word of a place whose key was retired. A key with this value cannot be listed.
pub const RETIRED: u64 = u64::MAX;

/// Number of bits in the index of a place, from the smallest to the largest table.
const BITS: std::ops::RangeInclusive<u8> = 4..=17;

/// Size of a table of listed keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyListing {
    bits: u8,
}

impl KeyListing {
    /// The table with this number of places; `None` unless the number is a power of two from 16 to 131,072.
    pub fn of_places(places: u32) -> Option<Self> {
        let bits = places.trailing_zeros() as u8;
        (places.is_power_of_two() && BITS.contains(&bits)).then_some(KeyListing { bits })
    }

    /// Number of places, a power of two.
    pub const fn places(self) -> u32 {
        1 << self.bits
    }

    /// Number of counters that the table takes in every shard.
    pub const fn slots(self) -> u32 {
        2 * self.places()
    }

    /// Number of bits by which code shifts the product of a key and [`MULTIPLIER`] to the right. The result is the index of the key's first
    /// place.
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

/// The engine's copy of the keys of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKeys {
    listing: KeyListing,
    words: Vec<u64>,
}

impl ListedKeys {
    /// Returns the smallest table that is at most half full with these keys and in which code finds each of them, and the places of the
    /// keys in order. Returns `None` if a key cannot be listed or occurs twice, or if the largest table has no place for a key.
    pub fn of(keys: &[u64]) -> Option<(Self, Vec<u32>)> {
        BITS.filter(|bits| (2 * keys.len()) as u64 <= 1 << bits).find_map(|bits| {
            let listing = KeyListing { bits };
            let mut table = ListedKeys { listing, words: vec![FREE; listing.places() as usize] };
            let places = keys.iter().map(|key| table.add(*key)).collect::<Option<_>>()?;
            Some((table, places))
        })
    }

    /// The size of the table.
    pub fn listing(&self) -> KeyListing {
        self.listing
    }

    /// The words of all places, in order: keys, [`FREE`] and [`RETIRED`].
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Lists a key and returns its place. Returns `None` if the key cannot be listed, is listed already, or has no free place where code
    /// looks for it.
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

    /// Retires the key of a place: code does not find it any more.
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

    /// Returns keys with the same first place in a table of this size.
    fn colliding(listing: KeyListing, count: usize) -> Vec<u64> {
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
        let small = KeyListing::of_places(32).expect("a size");
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
        // Code continues its search after a retired place, and the place is not used again.
        let places: Vec<u32> = others.iter().filter_map(|key| found(&table, *key)).collect();
        table.retire(places[0]);
        assert_eq!(found(&table, others[0]), None);
        assert!(others[1..].iter().all(|key| found(&table, *key).is_some()));
        assert_eq!(table.add(*last), None);
        assert_eq!((table.add(FREE), table.add(RETIRED)), (None, None));
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(KeyListing::of_places(256).map(KeyListing::slots), Some(512));
        assert!([0, 8, 100, 1 << 18].iter().all(|places| KeyListing::of_places(*places).is_none()));
    }
}
