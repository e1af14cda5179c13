//! Buffers of bytes: each thread appends to the one in its shard, and the engine takes the bytes while the thread runs.
//!
//! ```text
//! 0         position: number of bytes for which a thread has reserved room
//! 1         number of appends that were lost, because the buffer was full
//! 8         number of bytes that the engine has taken, or CLOSED
//! 16 ..     the bytes: byte p is at p modulo the capacity. A byte that is not written yet is 0
//! ```
//!
//! A thread appends in three steps. It compares the position with the bytes taken, it reserves room by one instruction (`xadd`), and it stores
//! its bytes, none of which is 0. A signal handler may run in between. It then reserves its own room, before or after that of the thread, so no
//! byte is overwritten. The comparison keeps [`SLACK`] bytes free for the handlers that run between comparison and reservation. They would
//! have to nest more than 50 deep, each interrupted between these two instructions, to use them up.
//!
//! The engine takes bytes up to the first 0, writes zeros over them, and then stores the new number of bytes taken. The processor keeps the
//! order of the stores of each side, so a thread that sees the number finds zeros, and appends only there.
//!
//! If the buffer is full, the thread *closes* it: it stores [`CLOSED`], with which every comparison fails. So after the first lost append, all
//! later ones are lost too, until the engine has taken everything and opens the buffer again. The position stands still meanwhile. So the
//! engine knows at which byte the gap is.

use std::fmt;

/// Index of the word with the position.
pub const POSITION: u32 = 0;
/// Index of the word with the number of lost appends.
pub const LOST: u32 = 1;
/// Index of the word with the number of bytes that were taken. It lies on another cache line than the words that the thread changes.
pub const TAKEN: u32 = 8;
/// Index of the first word with bytes.
pub const FIRST: u32 = 16;
/// Number of bytes that a comparison leaves free.
pub const SLACK: u32 = 1024;
/// Number of bytes taken in a closed buffer, as a signed number of 32 bits. A position minus this number is larger than any capacity.
pub const CLOSED: i32 = i32::MIN;

/// Number of bytes of a buffer: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capacity(u8);

impl Capacity {
    /// Smallest number of bytes.
    pub const LEAST: u32 = 4 * SLACK;
    /// Largest number of bytes.
    pub const MOST: u32 = 1 << 26;

    /// The capacity of [`Capacity::LEAST`] bytes.
    pub const SMALLEST: Capacity = Capacity(Self::LEAST.trailing_zeros() as u8);

    /// The smallest capacity with at least this number of bytes; `None` above [`Capacity::MOST`].
    pub const fn of_bytes(bytes: u32) -> Option<Self> {
        if bytes > Self::MOST {
            return None;
        }
        let bytes = if bytes < Self::LEAST { Self::LEAST } else { bytes };
        Some(Capacity(bytes.next_power_of_two().trailing_zeros() as u8))
    }

    /// Number of bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }

    /// Number of counters that a buffer takes in a shard.
    pub const fn slots(self) -> u32 {
        FIRST + self.bytes() / 8
    }
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capacity({})", self.bytes())
    }
}

/// The words of a buffer in a thread's shard. Loads acquire and stores release.
pub trait Words {
    /// Loads a word.
    fn load(&self, word: u32) -> u64;
    /// Stores a word.
    fn store(&self, word: u32, value: u64);
    /// Clears the bits of a word that are not in the mask, atomically.
    fn and(&self, word: u32, mask: u64);
    /// Replaces a word if it has this value, atomically. Returns whether it had.
    fn replace(&self, word: u32, old: u64, new: u64) -> bool;
}

/// The engine's side of a buffer. A new buffer is all 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferReader {
    capacity: Capacity,
    taken: u64,
}

/// The bytes that a reader has taken at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenBytes {
    /// Bytes, in the order of the thread's reservations. The last ones may be the beginning of an append.
    pub bytes: Vec<u8>,
    /// Whether bytes were lost after these.
    pub gap: bool,
}

impl BufferReader {
    /// A reader of a new buffer.
    pub fn new(capacity: Capacity) -> Self {
        BufferReader { capacity, taken: 0 }
    }

    /// Takes all bytes that are written, up to the first one that is not. If the buffer is closed and all its bytes were taken, opens it.
    pub fn take(&mut self, words: &impl Words) -> TakenBytes {
        let position = words.load(POSITION);
        let from = self.taken;
        // A position further away is not the work of the code; the buffer's memory belongs to the program.
        let end = position.min(from.saturating_add(u64::from(self.capacity.bytes())));
        let mut bytes = Vec::new();
        while self.taken < end {
            let word = self.word(self.taken);
            let first = (self.taken % 8) as usize;
            let all = words.load(word).to_le_bytes();
            let count = (end - self.taken).min(8 - first as u64) as usize;
            let written = all.iter().skip(first).take(count).take_while(|byte| **byte != 0).count();
            bytes.extend(all.iter().skip(first).take(written));
            self.taken += written as u64;
            match written {
                8 => words.store(word, 0),
                _ => words.and(word, !(mask(written) << (8 * first))),
            }
            if written < count {
                break;
            }
        }
        let closed = i64::from(CLOSED).cast_unsigned();
        let mut gap = false;
        if !words.replace(TAKEN, from, self.taken) && self.taken == words.load(POSITION) {
            gap = words.replace(TAKEN, closed, self.taken);
        }
        TakenBytes { bytes, gap }
    }

    /// Index of the word with a byte.
    fn word(&self, byte: u64) -> u32 {
        FIRST + (byte % u64::from(self.capacity.bytes()) / 8) as u32
    }
}

/// A mask of the lowest bytes of a word.
fn mask(bytes: usize) -> u64 {
    if bytes < 8 { (1 << (8 * bytes)) - 1 } else { u64::MAX }
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
        fn has_room(&self, capacity: Capacity) -> bool {
            self.load(POSITION).wrapping_sub(self.load(TAKEN)) < u64::from(capacity.bytes() - SLACK)
        }
        fn close(&self) {
            self.store(TAKEN, i64::from(CLOSED).cast_unsigned());
            self.store(LOST, self.load(LOST) + 1);
        }
        fn reserve(&self, length: usize) -> u64 {
            let at = self.load(POSITION);
            self.store(POSITION, at + length as u64);
            at
        }
        fn write(&self, capacity: Capacity, at: u64, bytes: &[u8]) {
            for (at, byte) in (at..).zip(bytes) {
                let at = at % u64::from(capacity.bytes());
                let word = FIRST + (at / 8) as u32;
                assert_eq!(self.load(word) >> (8 * (at % 8)) & 0xff, 0, "a byte is overwritten");
                self.store(word, self.load(word) | u64::from(*byte) << (8 * (at % 8)));
            }
        }
        fn append(&self, capacity: Capacity, bytes: &[u8]) -> bool {
            let room = self.has_room(capacity);
            if room {
                self.write(capacity, self.reserve(bytes.len()), bytes);
            } else {
                self.close();
            }
            room
        }
    }

    fn new() -> (Capacity, Buffer, BufferReader) {
        let capacity = Capacity::of_bytes(0).expect("small");
        (capacity, Buffer(RefCell::new(vec![0; capacity.slots() as usize])), BufferReader::new(capacity))
    }

    #[test]
    fn bytes_are_taken_in_order_around_the_end() {
        let (capacity, buffer, mut reader) = new();
        let (mut written, mut taken) = (Vec::new(), Vec::new());
        for n in 0..20_000_u32 {
            let bytes = &[n as u8 | 1, 2, 3, 4, 5][..n as usize % 5 + 1];
            assert!(buffer.append(capacity, bytes));
            written.extend(bytes);
            if n % 37 == 0 {
                let some = reader.take(&buffer);
                assert!(!some.gap);
                taken.extend(some.bytes);
            }
        }
        taken.extend(reader.take(&buffer).bytes);
        assert_eq!(taken, written);
        assert!(buffer.0.borrow()[FIRST as usize..].iter().all(|word| *word == 0));
    }

    #[test]
    fn a_full_buffer_has_one_gap_at_the_right_byte() {
        let (capacity, buffer, mut reader) = new();
        for round in 0..3 {
            let (mut written, mut lost) = (0, 0);
            for _ in 0..5000 {
                if buffer.append(capacity, &[7, 8]) { written += 2 } else { lost += 1 }
            }
            assert_eq!(written, (capacity.bytes() - SLACK) as usize);
            assert_eq!(buffer.load(LOST), (round + 1) * lost);
            let taken = reader.take(&buffer);
            assert_eq!((taken.bytes.len(), taken.gap), (written, true));
            assert_eq!(reader.take(&buffer), TakenBytes::default());
        }
    }

    #[test]
    fn an_interrupted_append_is_taken_once_it_is_written() {
        let (capacity, buffer, mut reader) = new();
        assert!(buffer.append(capacity, &[1]));
        let at = buffer.reserve(2);
        assert!(buffer.append(capacity, &[9, 9]), "a signal handler");
        assert_eq!(reader.take(&buffer), TakenBytes { bytes: vec![1], gap: false });
        buffer.write(capacity, at, &[2]);
        assert_eq!(reader.take(&buffer), TakenBytes { bytes: vec![2], gap: false });
        buffer.write(capacity, at + 1, &[3]);
        assert_eq!(reader.take(&buffer), TakenBytes { bytes: vec![3, 9, 9], gap: false });
    }

    #[test]
    fn a_closed_buffer_opens_when_it_is_empty() {
        let (capacity, buffer, mut reader) = new();
        // A handler closes the buffer after the thread has compared, and before it reserves.
        assert!(buffer.has_room(capacity));
        while buffer.append(capacity, &[5]) {}
        let at = buffer.reserve(1);
        let full = reader.take(&buffer);
        assert_eq!((full.bytes.len() as u64, full.gap), (at, false));
        assert!(!buffer.append(capacity, &[6]), "it is still closed");
        buffer.write(capacity, at, &[4]);
        assert_eq!(reader.take(&buffer), TakenBytes { bytes: vec![4], gap: true });
        assert!(buffer.append(capacity, &[6]));
        assert_eq!(reader.take(&buffer), TakenBytes { bytes: vec![6], gap: false });
    }

    #[test]
    fn a_buffer_that_the_program_has_destroyed_is_read_in_bounds() {
        let (capacity, buffer, mut reader) = new();
        buffer.0.borrow_mut().iter_mut().for_each(|word| *word = u64::MAX);
        assert_eq!(reader.take(&buffer).bytes.len(), capacity.bytes() as usize);
        buffer.store(POSITION, 3);
        assert_eq!(reader.take(&buffer).bytes, []);
    }

    #[test]
    fn capacities_are_powers_of_two() {
        for (bytes, expected) in [(0, 4096), (4097, 8192), (1 << 16, 1 << 16), (1 << 26, 1 << 26)] {
            assert_eq!(Capacity::of_bytes(bytes).map(Capacity::bytes), Some(expected));
        }
        assert_eq!(Capacity::of_bytes(Capacity::MOST + 1), None);
    }
}
