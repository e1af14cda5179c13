//! Values by key, for keys that are not known before the program uses them: an open-addressing hash table in the counters of every shard.
//! Code in the target compares a few neighbouring places. If it finds none, it adds to one common counter. So its cost is bounded.
//!
//! ```text
//! 0                          the sum of additions that found no place
//! 1                          the value of key 0, because 0 marks free places
//! 2                          the number of places that are taken
//! 4 + 2 p, 5 + 2 p           the key of place p, and its value
//! 4 + 2 (places (1 + i) + p) word 2 i of the key of place p, and word 2 i + 1 behind it
//! ```
//!
//! A key that is one number is the key of its place. Any other key is a row of words: one for a number, [`TEXT_WORDS`] for a text. The key of
//! its place is then a hash of the words, never 0, and the words lie behind all places. Two rows of one hash share no place: the second one
//! finds none.
//!
//! Code takes a place by one instruction (`cmpxchg`), which a signal handler that also counts cannot interrupt. It stores the words next, and
//! adds to the value last. So the words of a place that has a value are complete. A handler that interrupts the code in between does not find
//! its words there, and adds to the common counter. A place is never freed. If code and handler each take a place for the same key, the
//! reader adds their values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::object::ObjectState;

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
/// Index of the counter with the first place's key. Its value is the next counter.
pub const FIRST: u32 = 4;
/// Number of words that a text takes in a key: the number of its bytes, and the bytes.
pub const TEXT_WORDS: u32 = 1 + TEXT_BYTES / 8;
/// Largest number of bytes of a text in a key. A text that is longer is cut, and its number of bytes is this one plus 1.
pub const TEXT_BYTES: u32 = crate::RecordField::TEXT_BYTES;
/// Largest number of words of a key.
pub const WORDS_MAX: u32 = 28;

/// Largest number of counters of a table in every shard.
pub const SLOTS_MAX: u32 = slots(Places::MANY, WORDS_MAX);

const fn slots(places: Places, words: u32) -> u32 {
    FIRST + 2 * places.count() * (1 + words.div_ceil(2))
}

/// Operation that combines the values that a key has in several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Fold {
    /// The sum of the values.
    #[default]
    Sum,
    /// The largest value. The values are marks of objects (see [`crate::object`]), and the latest mark is the largest.
    Last,
}

/// Kinds of the parts of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyParts {
    count: u8,
    /// Bit `n` is set if the n-th part is a text.
    texts: u8,
}

impl KeyParts {
    /// The key is one number.
    pub const NUMBER: KeyParts = KeyParts { count: 1, texts: 0 };
    /// Largest number of parts.
    pub const MAX: usize = u8::BITS as usize;

    /// The parts of a key, each of which is a text (`true`) or a number; `None` if there is none, or if they are too many or have too many
    /// words.
    pub fn of(texts: impl IntoIterator<Item = bool>) -> Option<Self> {
        let mut parts = KeyParts { count: 0, texts: 0 };
        for is_text in texts {
            if usize::from(parts.count) == KeyParts::MAX {
                return None;
            }
            parts.texts |= u8::from(is_text) << parts.count;
            parts.count += 1;
        }
        Some(parts).filter(|parts| parts.count > 0 && parts.words_of_parts() <= WORDS_MAX)
    }

    /// The parts whose bits [`KeyParts::bits`] has returned.
    pub fn of_bits(bits: u16) -> Option<Self> {
        let [count, texts] = bits.to_le_bytes();
        let parts = KeyParts::of(
            (0..count.min(u8::BITS as u8 + 1)).map(|n| texts.checked_shr(n.into()).unwrap_or(0) & 1 != 0),
        )?;
        (parts.bits() == bits).then_some(parts)
    }

    /// The parts as a number.
    pub const fn bits(self) -> u16 {
        u16::from_le_bytes([self.count, self.texts])
    }

    /// For each part, whether it is a text.
    pub fn each(self) -> impl Iterator<Item = bool> {
        (0..self.count).map(move |n| self.texts >> n & 1 != 0)
    }

    /// Whether the key is one number, which is then the key of its place.
    pub const fn is_number(self) -> bool {
        self.count == 1 && self.texts == 0
    }

    /// Number of words of a key beside the key of its place.
    pub const fn words(self) -> u32 {
        if self.is_number() { 0 } else { self.words_of_parts() }
    }

    const fn words_of_parts(self) -> u32 {
        self.count as u32 + self.texts.count_ones() * (TEXT_WORDS - 1)
    }

    /// The key of these words.
    fn key(self, words: &[u64]) -> TableKey {
        let mut rest = words;
        let mut take = |count: u32| {
            let (taken, left) = rest.split_at(rest.len().min(count as usize));
            rest = left;
            taken
        };
        let part = |is_text| match is_text {
            false => KeyPart::Number(take(1).first().copied().unwrap_or(0)),
            true => KeyPart::of_text(take(TEXT_WORDS)),
        };
        TableKey::Parts(self.each().map(part).collect())
    }
}

/// Number of places in a table, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Places {
    bits: u8,
}

impl Places {
    /// Few places, for many tables.
    pub const FEW: Places = Places { bits: 10 };
    /// Many places, for a few tables: a thousand keys hardly ever fail to find one in reach.
    pub const MANY: Places = Places { bits: 13 };

    /// This number of places, if a table may have so many.
    pub fn of(count: u32) -> Option<Self> {
        let places = Places { bits: count.checked_ilog2()? as u8 };
        (places.count() == count && (Places::FEW..=Places::MANY).contains(&places)).then_some(places)
    }

    /// The number.
    pub const fn count(self) -> u32 {
        1 << self.bits
    }

    /// Number of bits in the number of a place.
    pub const fn bits(self) -> u32 {
        self.bits as u32
    }
}

/// A table: the operation that combines values of a key, the parts of its keys, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableShape {
    /// The operation.
    pub fold: Fold,
    /// The parts of a key.
    pub parts: KeyParts,
    /// The number of places.
    pub places: Places,
}

impl TableShape {
    /// The table of sums by a number.
    pub const SUMS: TableShape = TableShape { fold: Fold::Sum, parts: KeyParts::NUMBER, places: Places::FEW };
    /// The table of marks of objects.
    pub const OBJECTS: TableShape = TableShape { fold: Fold::Last, parts: KeyParts::NUMBER, places: Places::FEW };

    /// Number of counters of the table in every shard.
    pub const fn slots(self) -> u32 {
        slots(self.places, self.parts.words())
    }

    /// Index of the counter with this word of the key in the first place. As for keys, two counters further is the next place.
    pub const fn word(self, word: u32) -> u32 {
        FIRST + 2 * self.places.count() * (1 + word / 2) + word % 2
    }
}

/// Part of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPart {
    /// A number that the code computed.
    Number(u64),
    /// A text, at most [`TEXT_BYTES`] of its bytes.
    Text {
        /// The bytes.
        bytes: Arc<[u8]>,
        /// Whether the text is longer, or may be.
        cut: bool,
    },
    /// A text that could not be read.
    Unreadable,
}

impl KeyPart {
    fn of_text(words: &[u64]) -> Self {
        let Some((length, words)) = words.split_first() else { return KeyPart::Unreadable };
        // Code counts one byte more than it keeps if there are more, and one more than there are if it could read the text.
        let Some(length) = length.checked_sub(1) else { return KeyPart::Unreadable };
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let kept = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        KeyPart::Text { bytes: bytes[..kept].into(), cut: length > u64::from(TEXT_BYTES) }
    }
}

/// The number in decimal, or the text between quotation marks.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Number(number) => number.fmt(f),
            KeyPart::Text { bytes, cut } => {
                write!(f, "\"{}\"{}", bytes.escape_ascii(), if *cut { "…" } else { "" })
            }
            KeyPart::Unreadable => f.write_str("unreadable"),
        }
    }
}

/// Key of a value in a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableKey {
    /// One number that the code computed.
    Number(u64),
    /// Several parts, or a text.
    Parts(Arc<[KeyPart]>),
}

impl Default for TableKey {
    fn default() -> Self {
        TableKey::Number(0)
    }
}

impl From<u64> for TableKey {
    fn from(number: u64) -> Self {
        TableKey::Number(number)
    }
}

impl TableKey {
    /// The number, if the key is one number.
    pub const fn number(&self) -> Option<u64> {
        if let TableKey::Number(number) = self { Some(*number) } else { None }
    }
}

/// Values of one thread, or of several together, in the slots of a [`Shape::Table`](crate::Shape::Table).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTable {
    /// Operation that combines several values of a key.
    pub fold: Fold,
    /// Values that are not 0, by key.
    pub values: BTreeMap<TableKey, i64>,
    /// Total of additions that found no place; with [`Fold::Last`], their number.
    pub others: i64,
}

impl KeyTable {
    /// Reads the slots of a table. It reads those of the places only if some are taken, because reading unused memory would allocate it.
    pub fn from_slots(table: TableShape, at: impl Fn(u32) -> i64) -> Self {
        let mut read = KeyTable { fold: table.fold, others: at(OTHERS), values: BTreeMap::new() };
        read.add(&TableKey::Number(0), at(OF_ZERO));
        if at(TAKEN) == 0 {
            return read;
        }
        let words = table.parts.words();
        let mut row = Vec::with_capacity(words as usize);
        for place in (0..table.places.count()).map(|place| 2 * place) {
            let key = at(FIRST + place).cast_unsigned();
            if key == 0 {
                continue;
            }
            // The words of a place that has a value are complete.
            let value = at(FIRST + place + 1);
            if value == 0 {
                continue;
            }
            if table.parts.is_number() {
                read.add(&TableKey::Number(key), value);
                continue;
            }
            row.clear();
            row.extend((0..words).map(|word| at(table.word(word) + place).cast_unsigned()));
            read.add(&table.parts.key(&row), value);
        }
        read
    }

    /// Adds another value of a key.
    fn add(&mut self, key: &TableKey, value: i64) {
        let known = self.values.get(key).copied().unwrap_or(0);
        let both = match self.fold {
            Fold::Sum => known.wrapping_add(value),
            Fold::Last => known.max(value),
        };
        if both == 0 {
            self.values.remove(key);
        } else {
            self.values.insert(key.clone(), both);
        }
    }

    /// Adds the values of another table.
    pub fn merge(&mut self, other: &KeyTable) {
        other.values.iter().for_each(|(key, value)| self.add(key, *value));
        self.others = self.others.wrapping_add(other.others);
    }

    /// Returns the values added since `before`; with [`Fold::Last`], all values.
    pub fn minus(&self, before: &KeyTable) -> KeyTable {
        let mut since = self.clone();
        if self.fold == Fold::Last {
            return since;
        }
        before.values.iter().for_each(|(key, value)| since.add(key, value.wrapping_neg()));
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
        self.values.iter().filter_map(|(key, mark)| Some((key.number()?, ObjectState::of_mark(*mark)?)))
    }

    /// Whether the table holds no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.others == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(table: TableShape, words: &[(u32, i64)]) -> Vec<i64> {
        let mut slots = vec![0; table.slots() as usize];
        words.iter().for_each(|(at, value)| slots[*at as usize] = *value);
        slots
    }

    /// The slots of a table of keys that are numbers, by the place of each.
    fn numbers(table: TableShape, pairs: &[(u32, i64, i64)], head: &[(u32, i64)]) -> KeyTable {
        let pairs =
            pairs.iter().flat_map(|(place, key, value)| [(FIRST + 2 * place, *key), (FIRST + 2 * place + 1, *value)]);
        let slots = slots(table, &head.iter().copied().chain(pairs).collect::<Vec<_>>());
        KeyTable::from_slots(table, |n| slots[n as usize])
    }

    #[test]
    fn slots_become_values_by_key() {
        // A key in two places, a place without a value yet, key 0, and a key with the highest bit set.
        let pairs = [(4, 7, 1), (5, 7, 2), (9, 8, 0), (10, i64::MIN, -3)];
        for places in [Places::FEW, Places::MANY] {
            let table =
                numbers(TableShape { places, ..TableShape::SUMS }, &pairs, &[(OTHERS, 40), (OF_ZERO, 5), (TAKEN, 4)]);
            let values: Vec<_> = table.values.iter().map(|(k, v)| (k.number().expect("a number"), *v)).collect();
            assert_eq!(values, [(0, 5), (7, 3), (1 << 63, -3)]);
            assert_eq!((table.others, table.total()), (40, 45));
            let mut twice = table.clone();
            twice.merge(&table);
            assert_eq!(twice.minus(&table), table);
            assert!(table.minus(&table).is_empty());
        }
    }

    #[test]
    fn rows_of_words_become_keys_of_several_parts() {
        let parts = KeyParts::of([false, true, false]).expect("parts");
        assert_eq!((parts.words(), parts.is_number(), KeyParts::of_bits(parts.bits())), (11, false, Some(parts)));
        let table = TableShape { fold: Fold::Sum, parts, places: Places::FEW };
        let text = |place: u32, length: i64, bytes: &[u8; 8]| {
            [(table.word(1) + 2 * place, length), (table.word(2) + 2 * place, i64::from_le_bytes(*bytes))]
        };
        let mut words = vec![(TAKEN, 4)];
        for (place, length, bytes, value) in
            [(0, 4, b"GET\0\0\0\0\0", 9), (1023, 0, &[0; 8], 2), (7, 66, b"aaaaaaaa", 1), (8, 4, b"PUT\0\0\0\0\0", 0)]
        {
            words.extend([(FIRST + 2 * place, 99), (FIRST + 2 * place + 1, value)]);
            words.extend([(table.word(0) + 2 * place, 5), (table.word(10) + 2 * place, -1)]);
            words.extend(text(place, length, bytes));
        }
        let slots = slots(table, &words);
        let read = KeyTable::from_slots(table, |n| slots[n as usize]);
        let shown: Vec<(String, i64)> = read
            .values
            .iter()
            .map(|(key, value)| {
                let TableKey::Parts(parts) = key else { panic!("{key:?}") };
                (parts.iter().map(KeyPart::to_string).collect::<Vec<_>>().join(","), *value)
            })
            .collect();
        let long = format!("5,\"aaaaaaaa{}\"…,{}", "\\x00".repeat(56), u64::MAX);
        let last = u64::MAX;
        assert_eq!(shown, [(format!("5,\"GET\",{last}"), 9), (long, 1), (format!("5,unreadable,{last}"), 2)]);
    }

    #[test]
    fn parts_have_a_largest_number() {
        assert_eq!(KeyParts::of([]), None);
        assert_eq!(KeyParts::of([false]), Some(KeyParts::NUMBER));
        assert!(KeyParts::of([true; 3]).is_some_and(|parts| parts.words() == 27));
        assert_eq!((KeyParts::of([true; 4]), KeyParts::of([false; 9])), (None, None));
        assert!((0..=u16::MAX).all(|bits| KeyParts::of_bits(bits).is_none_or(|parts| parts.bits() == bits)));
        let most = TableShape { parts: KeyParts::of([true, true, true, false]).expect("parts"), ..TableShape::SUMS };
        assert_eq!(most.parts.words(), WORDS_MAX);
        assert_eq!((Places::of(1024), Places::of(1 << 13)), (Some(Places::FEW), Some(Places::MANY)));
        assert_eq!((Places::of(0), Places::of(1000), Places::of(1 << 9)), (None, None, None));
    }

    #[test]
    fn words_of_a_table_lie_apart() {
        let parts = KeyParts::of([true, false, false]).expect("parts");
        let table = TableShape { fold: Fold::Sum, parts, places: Places::FEW };
        let mut seen: Vec<u32> = (0..table.places.count())
            .flat_map(|place| {
                let words = (0..parts.words()).map(move |word| table.word(word) + 2 * place);
                words.chain([FIRST + 2 * place, FIRST + 2 * place + 1])
            })
            .collect();
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all);
        assert!(seen.first() >= Some(&FIRST) && seen.last() < Some(&table.slots()));
    }

    #[test]
    fn of_several_marks_of_an_object_the_last_counts() {
        use crate::object::{ObjectKind, TIME_MASK};
        let mark = |time: i64, retired| (time & TIME_MASK) | ObjectState { kind: ObjectKind::Mutex, retired }.bits();
        let thread = |marks: &[(i64, i64)]| {
            let pairs: Vec<_> = (0..).zip(marks).map(|(place, (key, mark))| (place, *key, *mark)).collect();
            numbers(TableShape::OBJECTS, &pairs, &[(TAKEN, marks.len() as i64), (OTHERS, 1)])
        };
        let mut all = thread(&[(0x10, mark(1000, false)), (0x20, mark(3000, false)), (0x30, mark(2000, true))]);
        all.merge(&thread(&[(0x10, mark(2000, true)), (0x20, mark(2000, true))]));
        let retired: Vec<_> = all.states().map(|(key, state)| (key, state.retired)).collect();
        assert_eq!(retired, [(0x10, true), (0x20, false), (0x30, true)]);
        assert_eq!((all.total(), all.others), (1, 2));
        assert_eq!(all.minus(&all.clone()), all);
    }
}
