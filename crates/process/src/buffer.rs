//! Access to the buffers in the shards of threads, which threads change at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

use ingraft_model::buffer::Words;

use crate::area::SharedArea;

/// The buffer of one thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadBuffer<'a> {
    words: &'a [AtomicU64],
}

impl SharedArea {
    /// The buffer of this many counters that begins at a counter of a shard. `None` outside of the shard, or if this process has not mapped
    /// the area: it could not change the words atomically.
    pub fn buffer(&self, shard: u32, first: u32, counters: u32) -> Option<ThreadBuffer<'_>> {
        self.counter_words(shard, first, counters).map(|words| ThreadBuffer { words })
    }
}

impl Words for ThreadBuffer<'_> {
    fn load(&self, word: u32) -> u64 {
        self.words.get(word as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, word: u32, value: u64) {
        if let Some(word) = self.words.get(word as usize) {
            word.store(value, Ordering::Release);
        }
    }

    fn and(&self, word: u32, mask: u64) {
        if let Some(word) = self.words.get(word as usize) {
            word.fetch_and(mask, Ordering::AcqRel);
        }
    }

    fn replace(&self, word: u32, old: u64, new: u64) -> bool {
        let exchange = |word: &AtomicU64| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        self.words.get(word as usize).is_some_and(|word| exchange(word).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::buffer::{BufferReader, Capacity, FIRST, POSITION, TAKEN};

    use super::*;
    use crate::area::tests::area;

    #[test]
    fn a_buffer_lies_within_a_shard() {
        let (area, slots) = (area(4), Capacity::of_bytes(0).unwrap().slots());
        let counters = area.layout().counters();
        assert!(area.buffer(4, 0, slots).is_none());
        assert!(area.buffer(3, counters - slots + 1, slots).is_none());
        assert!(area.buffer(3, counters - slots, slots).is_some());
        assert!(area.buffer(3, u32::MAX, slots).is_none());
    }

    #[test]
    fn bytes_are_taken_while_a_thread_appends() {
        let (area, capacity, total) = (area(4), Capacity::of_bytes(0).unwrap(), 200_000_u64);
        let buffer = area.buffer(3, 5, capacity.slots()).unwrap();
        let byte = |n: u64| n % 255 + 1;
        let append = |n: u64| {
            while n - buffer.load(TAKEN) >= u64::from(capacity.bytes()) {
                std::hint::spin_loop();
            }
            buffer.store(POSITION, n + 1);
            let place = n % u64::from(capacity.bytes());
            let (word, shift) = (FIRST + (place / 8) as u32, 8 * (place % 8));
            // A thread stores one byte. Here, the word is exchanged until the engine has changed no other byte meanwhile.
            loop {
                let old = buffer.load(word);
                assert_eq!(old >> shift & 0xff, 0, "the engine has cleared the byte");
                if buffer.replace(word, old, old | byte(n) << shift) {
                    break;
                }
            }
        };
        let taken = std::thread::scope(|scope| {
            scope.spawn(|| (0..total).for_each(append));
            let (mut reader, mut taken) = (BufferReader::new(capacity), Vec::new());
            while (taken.len() as u64) < total {
                let some = reader.take(&buffer);
                assert!(!some.gap);
                taken.extend(some.bytes);
            }
            taken
        });
        assert!(taken.iter().zip(0..).all(|(taken, n)| u64::from(*taken) == byte(n)));
    }
}
