//! Records of values in the buffers of threads: whole words, of which the header is written last.
//!
//! ```text
//! 0         position: number of bytes for which a thread has reserved room
//! 1         number of records that were lost, because the buffer was full
//! 2         number of records that the thread has made, lost ones too
//! 3         number of records that were skipped, because the thread had made as many as it may
//! 4         position up to which groups of records are kept; 0 if there are no groups
//! 8         number of bytes that the engine has taken
//! 9         number of records from which on the thread may make as many as the limit in its code says
//! 16 ..     the words: the word at byte p is at p modulo the capacity. A header that is not written yet is 0
//! ```
//!
//! A record is its header, and the words of its values. The header holds the number of the statement that made the record, plus 1, in its
//! lowest 16 bits, and the number of words, header included, in the next 16 bits.
//!
//! A thread appends as to the buffers of bytes ([`crate::buffer`]): it compares the position with the bytes taken, reserves room by one
//! instruction, stores the values, and stores the header last. A signal handler may run in between; its record then lies before or after
//! that of the thread. A value may be 0, so the engine takes a record only if its header is there, and then all of its words are. It writes
//! zeros over the words before it stores the new number of bytes taken.
//!
//! A full buffer is not closed: the thread appends again as soon as there is room.
//!
//! A thread may make records in groups, and decide at the end of a group whether the engine takes it. To keep a group, it stores the position
//! as word 4, up to which the engine takes records. To begin a group, it sets the position back to word 4, and word 1 to 0. So a group that
//! is not kept takes no room, and costs nothing to forget. All records of a group that is kept are written.

use crate::buffer::{Capacity, FIRST, LOST, POSITION, SLACK, TAKEN, Words};

/// Largest number of words of a record.
pub const WORDS_MAX: u32 = 48;
/// Index of the word with the number of records made.
pub const MADE: u32 = 2;
/// Index of the word with the number of records skipped.
pub const SKIPPED: u32 = 3;
/// Index of the word with the position up to which groups of records are kept.
pub const KEPT: u32 = 4;
/// Index of the word with the number of records from which on the thread may make as many as the limit in its code says.
pub const PERMITTED: u32 = 9;

/// The header of a record of these words that the statement with this number makes.
pub const fn header(number: u16, words: u32) -> u32 {
    words << 16 | number.wrapping_add(1) as u32
}

/// Number of bytes from which on a buffer is full. What is above is for handlers that run between the comparison and the reservation.
/// `leaves_room` means that one further record has room then.
pub fn room(capacity: Capacity, leaves_room: bool) -> u32 {
    let slack = (capacity.bytes() / 4).clamp(SLACK, 8 * SLACK);
    // As many again: the slack has room for several of the largest records.
    let left = if leaves_room { slack } else { 0 };
    capacity.bytes() - slack - left
}

/// The engine's side of a buffer of records. A new buffer is all 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordReader {
    capacity: Capacity,
    /// Whether the thread makes records in groups.
    grouped: bool,
    taken: u64,
}

/// A record that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenRecord {
    /// Number of the statement that made it.
    pub number: u16,
    /// The values.
    pub words: Vec<u64>,
}

/// Numbers of records that a thread has made, skipped and lost, since its buffer was new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records made, lost ones too.
    pub made: u64,
    /// Records skipped, because the thread had made as many as it may.
    pub skipped: u64,
    /// Records lost, because the buffer was full.
    pub lost: u64,
}

impl RecordCounts {
    /// The sums.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        RecordCounts {
            made: self.made.wrapping_add(other.made),
            skipped: self.skipped.wrapping_add(other.skipped),
            lost: self.lost.wrapping_add(other.lost),
        }
    }
}

impl RecordReader {
    /// A reader of a new buffer. `grouped` says whether the thread makes records in groups.
    pub const fn new(capacity: Capacity, grouped: bool) -> Self {
        RecordReader { capacity, grouped, taken: 0 }
    }

    /// Takes the records that are written, up to the first one that is not, and at most so many bytes. Permits the thread to make more: as
    /// many as the limit in its code, less `withheld`. The second value tells that the buffer is not as threads leave it, because the program
    /// has written to it; then all that is in it is dropped.
    pub fn take(&mut self, words: &impl Words, most: u64, withheld: u32) -> (Vec<TakenRecord>, bool) {
        let position = words.load(if self.grouped { KEPT } else { POSITION });
        let (mut records, until) = (Vec::new(), self.taken.saturating_add(most));
        let mut broken =
            position.wrapping_sub(self.taken) > u64::from(self.capacity.bytes()) || !position.is_multiple_of(8);
        while !broken && self.taken < position.min(until) {
            let header = words.load(self.word(0));
            let (number, length) = ((header & 0xffff) as u16, (header >> 16) as u32);
            if header == 0 && !self.grouped {
                break;
            }
            broken = number == 0 || !(1..=WORDS_MAX).contains(&length) || u64::from(length) * 8 > position - self.taken;
            if broken {
                break;
            }
            let values = (1..length).map(|n| words.load(self.word(n))).collect();
            (0..length).for_each(|n| words.store(self.word(n), 0));
            self.taken += u64::from(length) * 8;
            records.push(TakenRecord { number: number - 1, words: values });
        }
        if broken {
            // A record that a thread is about to write here is lost too.
            (0..self.capacity.bytes() / 8).for_each(|n| words.store(FIRST + n, 0));
            self.taken = 0;
            words.store(KEPT, 0);
            words.store(POSITION, 0);
        }
        words.store(TAKEN, self.taken);
        words.store(PERMITTED, words.load(MADE).wrapping_sub(withheld.into()));
        (records, broken)
    }

    /// The counts of a thread.
    pub fn counts(words: &impl Words) -> RecordCounts {
        RecordCounts { made: words.load(MADE), skipped: words.load(SKIPPED), lost: words.load(LOST) }
    }

    /// Index of a word of the next record.
    fn word(&self, n: u32) -> u32 {
        FIRST + ((self.taken / 8 + u64::from(n)) % u64::from(self.capacity.bytes() / 8)) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Buffer(RefCell<Vec<u64>>);

    impl Words for Buffer {
        fn load(&self, word: u32) -> u64 {
            self.0.borrow()[word as usize]
        }
        fn store(&self, word: u32, value: u64) {
            self.0.borrow_mut()[word as usize] = value;
        }
        fn and(&self, word: u32, mask: u64) {
            self.0.borrow_mut()[word as usize] &= mask;
        }
        fn replace(&self, word: u32, old: u64, new: u64) -> bool {
            let right = self.load(word) == old;
            if right {
                self.store(word, new);
            }
            right
        }
    }

    /// The steps of generated code.
    impl Buffer {
        fn add(&self, word: u32, number: u64) -> u64 {
            let was = self.load(word);
            self.store(word, was + number);
            was
        }
        fn reserve(&self, capacity: Capacity, values: usize) -> Option<u64> {
            self.add(MADE, 1);
            let room = self.load(POSITION) - self.load(TAKEN) < u64::from(room(capacity, false));
            if !room {
                self.add(LOST, 1);
            }
            room.then(|| self.add(POSITION, 8 * (1 + values as u64)))
        }
        fn write(&self, capacity: Capacity, at: u64, number: u16, values: &[u64]) {
            let word = |n: usize| self.load(Self::word(capacity, at, n));
            assert!((0..=values.len()).all(|n| word(n) == 0), "a word is overwritten");
            self.write_over(capacity, at, number, values);
        }
        /// Writes a record where one of a group may be that was forgotten.
        fn write_over(&self, capacity: Capacity, at: u64, number: u16, values: &[u64]) {
            for (n, value) in (1..).zip(values) {
                self.store(Self::word(capacity, at, n), *value);
            }
            self.store(Self::word(capacity, at, 0), header(number, 1 + values.len() as u32).into());
        }
        fn word(capacity: Capacity, at: u64, n: usize) -> u32 {
            FIRST + ((at / 8 + n as u64) % u64::from(capacity.bytes() / 8)) as u32
        }
        fn append(&self, capacity: Capacity, number: u16, values: &[u64]) -> bool {
            let at = self.reserve(capacity, values.len());
            at.map(|at| self.write(capacity, at, number, values)).is_some()
        }
    }

    fn new() -> (Capacity, Buffer, RecordReader) {
        let capacity = Capacity::of_bytes(0).expect("small");
        (capacity, Buffer(RefCell::new(vec![0; capacity.slots() as usize])), RecordReader::new(capacity, false))
    }

    #[test]
    fn records_are_taken_in_order_around_the_end() {
        let (capacity, buffer, mut reader) = new();
        let (mut written, mut taken) = (Vec::new(), Vec::new());
        for n in 0..20_000_u64 {
            let words: Vec<u64> = (0..n % 5).map(|word| if word == 1 { 0 } else { n << word }).collect();
            assert!(buffer.append(capacity, (n % 7) as u16, &words));
            written.push(TakenRecord { number: (n % 7) as u16, words });
            if n % 37 == 0 {
                let (some, broken) = reader.take(&buffer, u64::MAX, 0);
                assert!(!broken);
                taken.extend(some);
            }
        }
        taken.extend(reader.take(&buffer, u64::MAX, 0).0);
        assert_eq!(taken, written);
        assert!(buffer.0.borrow()[FIRST as usize..].iter().all(|word| *word == 0));
        assert_eq!(RecordReader::counts(&buffer), RecordCounts { made: 20_000, skipped: 0, lost: 0 });
        assert_eq!(buffer.load(PERMITTED), 20_000);
    }

    #[test]
    fn a_part_is_taken_and_a_part_of_the_limit_withheld() {
        let (capacity, buffer, mut reader) = new();
        assert!((0..5).all(|n| buffer.append(capacity, n, &[1])));
        let numbers = |taken: (Vec<TakenRecord>, bool)| taken.0.iter().map(|record| record.number).collect::<Vec<_>>();
        assert_eq!(numbers(reader.take(&buffer, 33, 4)), [0, 1, 2]);
        assert_eq!(buffer.load(PERMITTED), 1);
        assert_eq!(numbers(reader.take(&buffer, u64::MAX, 7)), [3, 4]);
        assert_eq!(buffer.load(PERMITTED) as i64, -2);
    }

    #[test]
    fn what_has_no_room_is_counted_and_later_records_are_taken() {
        let (capacity, buffer, mut reader) = new();
        for _ in 0..3 {
            let made = (0..5000).filter(|_| buffer.append(capacity, 3, &[7, 0, 8])).count();
            assert_eq!(reader.take(&buffer, u64::MAX, 0).0.len(), made);
            assert!(made < 5000);
        }
        let counts = RecordReader::counts(&buffer);
        assert_eq!(counts.made, 15_000);
        assert!(counts.lost > 0);
    }

    #[test]
    fn an_interrupted_record_is_taken_once_its_header_is_written() {
        let (capacity, buffer, mut reader) = new();
        let at = buffer.reserve(capacity, 2).expect("room");
        assert!(buffer.append(capacity, 9, &[9]), "a signal handler");
        assert_eq!(reader.take(&buffer, u64::MAX, 0), (vec![], false));
        buffer.write(capacity, at, 1, &[0, 2]);
        let [first, second] = reader.take(&buffer, u64::MAX, 0).0.try_into().expect("two records");
        assert_eq!((first.number, first.words), (1, vec![0, 2]));
        assert_eq!((second.number, second.words), (9, vec![9]));
    }

    #[test]
    fn groups_are_taken_whole_or_not_at_all() {
        let (capacity, buffer, _) = new();
        let mut reader = RecordReader::new(capacity, true);
        let begin = || {
            buffer.store(POSITION, buffer.load(KEPT));
            buffer.store(LOST, 0);
        };
        let keep = || buffer.store(KEPT, buffer.load(POSITION));
        let mut taken = Vec::new();
        for n in 0..20_000_u64 {
            begin();
            // a group that is forgotten was there before
            (0..n % 5)
                .for_each(|word| buffer.write_over(capacity, buffer.reserve(capacity, 1).expect("room"), 9, &[word]));
            begin();
            (0..n % 3).for_each(|word| {
                buffer.write_over(capacity, buffer.reserve(capacity, 2).expect("room"), 1, &[n, word])
            });
            buffer.write_over(capacity, buffer.reserve(capacity, 1).expect("room"), 2, &[n]);
            if n % 7 == 0 {
                keep();
            }
            if n % 37 == 0 {
                let (some, broken) = reader.take(&buffer, u64::MAX, 0);
                assert!(!broken);
                taken.extend(some);
            }
        }
        let record = |number, words: &[u64]| TakenRecord { number, words: words.to_vec() };
        let of = |n: u64| (0..n % 3).map(move |word| record(1, &[n, word])).chain([record(2, &[n])]);
        let mut expected: Vec<_> = (0..20_000).filter(|n| n % 7 == 0).flat_map(of).collect();
        taken.extend(reader.take(&buffer, u64::MAX, 0).0);
        assert_eq!(taken.len(), expected.len());
        expected.truncate(taken.len());
        assert_eq!(taken, expected);
    }

    #[test]
    fn the_last_record_of_a_group_has_room() {
        for bytes in [0, 1 << 14, 1 << 18] {
            let capacity = Capacity::of_bytes(bytes).expect("small");
            let left = room(capacity, false) - room(capacity, true);
            assert!(left >= 8 * WORDS_MAX * 2 && room(capacity, true) > 8 * WORDS_MAX, "{bytes}: {left}");
        }
    }

    #[test]
    fn a_buffer_that_the_program_has_destroyed_is_emptied() {
        for (word, value) in [
            (POSITION, u64::MAX),
            (POSITION, 13),
            (FIRST, u64::MAX),
            (FIRST, 5),
            (FIRST, 1 << 16),
            (FIRST, header(0, 40).into()),
        ] {
            let (capacity, buffer, mut reader) = new();
            assert!(buffer.append(capacity, 1, &[1, 2]));
            buffer.store(word, value);
            assert_eq!(reader.take(&buffer, u64::MAX, 0), (vec![], true), "{word} {value:#x}");
            assert!(buffer.append(capacity, 4, &[5]));
            assert_eq!(reader.take(&buffer, u64::MAX, 0), (vec![TakenRecord { number: 4, words: vec![5] }], false));
        }
    }
}
