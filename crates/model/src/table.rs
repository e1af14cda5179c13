//! Values by key, for keys that are not known before the program uses them: an open-addressing hash table in the counters of every shard.
//! Code in the target compares a few neighbouring places. If it finds none, it adds to one common counter. So its cost is bounded.
//!
//! ```text
//! 0                     the sum of additions that found no place
//! 1                     the value of key 0, because 0 marks free places
//! 2                     the number of places that are taken
//! 3 ..                  a key for each place
//! 3 + PLACES ..         a value for each place
//! ```
//!
//! Code takes a place by one instruction (`cmpxchg`), which a signal handler that also counts cannot interrupt. A place is never freed. If
//! code and handler each take a place for the same key, the reader adds their values.

use std::collections::BTreeMap;

use crate::object::ObjectState;

/// Number of places, a power of two.
pub const PLACES: u32 = 1 << PLACE_BITS;
/// Number of bits in the index of a place.
pub const PLACE_BITS: u32 = 10;
/// Number of places that code compares for a key, from the place of its hash on. After the last place of the table comes the first.
pub const PROBES: u32 = 8;
/// Factor by which a key is multiplied; the highest bits of the product are its hash (Fibonacci hashing).
pub const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Index of the counter for additions that found no free place.
pub const OTHERS: u32 = 0;
/// Index of the counter with the value of key 0.
pub const OF_ZERO: u32 = 1;
/// Index of the counter with the number of places that are taken.
pub const TAKEN: u32 = 2;
/// Index of the counter with the first place's key.
pub const KEYS: u32 = 3;
/// Index of the counter with the first place's value.
pub const VALUES: u32 = KEYS + PLACES;
/// Number of counters of a table in every shard.
pub const SLOTS: u32 = VALUES + PLACES;

/// Operation that combines the values that a key has in several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fold {
    /// The sum of the values.
    #[default]
    Sum,
    /// The largest value. The values are marks of objects (see [`crate::object`]), and the latest mark is the largest.
    Last,
}

/// Values of one thread, or of several together, in the slots of a [`Shape::Table`](crate::Shape::Table).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTable {
    /// Operation that combines several values of a key.
    pub fold: Fold,
    /// Values that are not 0, by key.
    pub values: BTreeMap<u64, i64>,
    /// Total of additions that found no place; with [`Fold::Last`], their number.
    pub others: i64,
}

impl KeyTable {
    /// Reads the slots of a table. It reads those of the places only if some are taken, because reading unused memory would allocate it.
    pub fn from_slots(fold: Fold, at: impl Fn(u32) -> i64) -> Self {
        let mut table = KeyTable { fold, others: at(OTHERS), values: BTreeMap::new() };
        table.add(0, at(OF_ZERO));
        if at(TAKEN) != 0 {
            for place in 0..PLACES {
                let key = at(KEYS + place).cast_unsigned();
                if key != 0 {
                    table.add(key, at(VALUES + place));
                }
            }
        }
        table
    }

    /// Adds another value of a key.
    fn add(&mut self, key: u64, value: i64) {
        let known = self.values.get(&key).copied().unwrap_or(0);
        let both = match self.fold {
            Fold::Sum => known.wrapping_add(value),
            Fold::Last => known.max(value),
        };
        if both == 0 {
            self.values.remove(&key);
        } else {
            self.values.insert(key, both);
        }
    }

    /// Adds the values of another table.
    pub fn merge(&mut self, other: &KeyTable) {
        other.values.iter().for_each(|(key, value)| self.add(*key, *value));
        self.others = self.others.wrapping_add(other.others);
    }

    /// Returns the values added since `before`; with [`Fold::Last`], all values.
    pub fn minus(&self, before: &KeyTable) -> KeyTable {
        let mut since = self.clone();
        if self.fold == Fold::Last {
            return since;
        }
        before.values.iter().for_each(|(key, value)| since.add(*key, value.wrapping_neg()));
        since.others = since.others.wrapping_sub(before.others);
        since
    }

    /// Total of the values of all keys and of the additions that found no place. With `Fold::Last`, the number of objects that were not
    /// destroyed.
    pub fn total(&self) -> i64 {
        match self.fold {
            Fold::Sum => self.values.values().fold(self.others, |sum, value| sum.wrapping_add(*value)),
            Fold::Last => self.states().filter(|(_, state)| !state.retired).count() as i64,
        }
    }

    /// The addresses and states of the objects in a table of marks.
    pub fn states(&self) -> impl Iterator<Item = (u64, ObjectState)> {
        self.values.iter().filter_map(|(key, mark)| Some((*key, ObjectState::of_mark(*mark)?)))
    }

    /// Whether the table holds no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.others == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(words: &[(u32, i64)]) -> Vec<i64> {
        let mut slots = vec![0; SLOTS as usize];
        words.iter().for_each(|(at, value)| slots[*at as usize] = *value);
        slots
    }

    #[test]
    fn slots_become_values_by_key() {
        // A key in two places, a place without a value yet, key 0, and a key with the highest bit set.
        let pairs = [(4, 7, 1), (5, 7, 2), (9, 8, 0), (10, i64::MIN, -3)];
        let mut words = vec![(OTHERS, 40), (OF_ZERO, 5), (TAKEN, 4)];
        words.extend(pairs.iter().flat_map(|(place, key, value)| [(KEYS + place, *key), (VALUES + place, *value)]));
        let slots = slots(&words);
        let table = KeyTable::from_slots(Fold::Sum, |n| slots[n as usize]);
        let values: Vec<_> = table.values.iter().map(|(k, v)| (*k, *v)).collect();
        assert_eq!(values, [(0, 5), (7, 3), (1 << 63, -3)]);
        assert_eq!((table.others, table.total()), (40, 45));
        let mut twice = table.clone();
        twice.merge(&table);
        assert_eq!(twice.minus(&table), table);
        assert!(table.minus(&table).is_empty());
    }

    #[test]
    fn of_several_marks_of_an_object_the_last_counts() {
        use crate::object::{ObjectKind, TIME_MASK};
        let mark = |time: i64, retired| (time & TIME_MASK) | ObjectState { kind: ObjectKind::Mutex, retired }.bits();
        let thread = |marks: &[(i64, i64)]| {
            let mut words = vec![(TAKEN, marks.len() as i64), (OTHERS, 1)];
            let places = (0..).zip(marks);
            words.extend(places.flat_map(|(place, (key, mark))| [(KEYS + place, *key), (VALUES + place, *mark)]));
            let slots = slots(&words);
            KeyTable::from_slots(Fold::Last, |n| slots[n as usize])
        };
        let mut all = thread(&[(0x10, mark(1000, false)), (0x20, mark(3000, false)), (0x30, mark(2000, true))]);
        all.merge(&thread(&[(0x10, mark(2000, true)), (0x20, mark(2000, true))]));
        let retired: Vec<_> = all.states().map(|(key, state)| (key, state.retired)).collect();
        assert_eq!(retired, [(0x10, true), (0x20, false), (0x30, true)]);
        assert_eq!((all.total(), all.others), (1, 2));
        assert_eq!(all.minus(&all.clone()), all);
    }
}
