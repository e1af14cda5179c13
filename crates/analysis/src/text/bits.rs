//! One bit for every byte of text, set from many threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::file::elf::Elf;

/// A set of addresses of text.
#[derive(Debug, Default)]
pub(crate) struct TextBits {
    regions: Vec<TextBitsRegion>,
}

#[derive(Debug)]
struct TextBitsRegion {
    svma: u64,
    len: u64,
    words: Box<[AtomicU64]>,
}

impl TextBits {
    /// The empty set over the text of an image.
    pub fn new(image: &Elf) -> Self {
        let region = |r: &crate::file::elf::TextRegion| {
            let len = r.file.len() as u64;
            let words = (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            TextBitsRegion { svma: r.svma, len, words }
        };
        TextBits { regions: image.text.iter().map(region).collect() }
    }

    fn place(&self, svma: u64) -> Option<(&TextBitsRegion, u64)> {
        let after = self.regions.partition_point(|r| r.svma <= svma);
        let region = self.regions.get(after.checked_sub(1)?)?;
        let offset = svma - region.svma;
        (offset < region.len).then_some((region, offset))
    }

    /// Adds an address; one outside of text is ignored.
    pub fn set(&self, svma: u64) {
        if let Some((region, offset)) = self.place(svma) {
            let (word, bit) = (&region.words[(offset / 64) as usize], 1 << (offset % 64));
            // Most places are set many times, and a read is cheaper than a locked write.
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    /// Whether an address is in the set.
    pub fn get(&self, svma: u64) -> bool {
        self.window(svma) & 1 != 0
    }

    /// The 64 addresses from `svma` on, the first in bit 0. Addresses outside of its region are not in the set.
    pub fn window(&self, svma: u64) -> u64 {
        let Some((region, offset)) = self.place(svma) else { return 0 };
        let (index, shift) = ((offset / 64) as usize, offset % 64);
        let word = |i: usize| region.words.get(i).map_or(0, |w| w.load(Relaxed));
        let high = if shift == 0 { 0 } else { word(index + 1) << (64 - shift) };
        word(index) >> shift | high
    }

    /// The first address of the set in `from..until`, which lie in one region.
    pub fn first(&self, from: u64, until: u64) -> Option<u64> {
        let mut at = from;
        while at < until {
            let window = self.window(at);
            let found = at + u64::from(window.trailing_zeros());
            if window != 0 {
                return (found < until).then_some(found);
            }
            at += 64;
        }
        None
    }

    /// Calls `found` with each address of the set, in order within a region.
    pub fn each(&self, mut found: impl FnMut(u64)) {
        for region in &self.regions {
            for (index, word) in region.words.iter().enumerate() {
                let mut word = word.load(Relaxed);
                while word != 0 {
                    found(region.svma + 64 * index as u64 + u64::from(word.trailing_zeros()));
                    word &= word - 1;
                }
            }
        }
    }

    /// All words, as the cache stores them.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.regions.iter().flat_map(|r| r.words.iter().map(|w| w.load(Relaxed)))
    }

    /// Sets all words from stored ones; returns false if their number differs.
    pub fn load(&self, mut words: impl ExactSizeIterator<Item = u64>) -> bool {
        let own: usize = self.regions.iter().map(|r| r.words.len()).sum();
        if words.len() != own {
            return false;
        }
        for word in self.regions.iter().flat_map(|r| r.words.iter()) {
            word.store(words.next().unwrap_or_default(), Relaxed);
        }
        true
    }
}
