//! Search for the pages of a shard that have memory. Shards of large areas are mostly holes in their file. Reading a hole of shared memory
//! would allocate a page of zeros, which the kernel does not take back.

use std::os::fd::AsFd;

use ingraft_model::layout::COUNTERS;
use ingraft_model::machine::PAGE;
use rustix::fs::{self, SeekFrom};

/// The pages of one shard's counters that have memory.
#[derive(Clone, Debug, Default)]
pub struct PopulatedPages {
    /// For each page of the shard, whether it has memory. `None` if this is unknown; all pages then count as allocated.
    pages: Option<Vec<bool>>,
}

impl PopulatedPages {
    /// Value in which every page counts as allocated.
    pub const ALL: PopulatedPages = PopulatedPages { pages: None };

    /// Whether the page of a counter has memory. If not, the counter is 0.
    #[inline]
    pub fn has(&self, counter: u32) -> bool {
        match &self.pages {
            None => true,
            Some(pages) => pages.get((offset(counter) / PAGE) as usize).is_some_and(|page| *page),
        }
    }

    /// Ranges of counters below `end` whose pages have memory.
    pub(crate) fn runs(&self, end: u32) -> Vec<std::ops::Range<u32>> {
        let Some(pages) = &self.pages else { return std::iter::once(0..end).collect() };
        let mut out: Vec<std::ops::Range<u32>> = Vec::new();
        for (page, _) in (0..).zip(pages).filter(|(_, page)| **page) {
            let counter = |at: u64| u32::try_from(at.saturating_sub(COUNTERS.into()) / 8).unwrap_or(end).min(end);
            let (first, end) = (counter(page * PAGE), counter((page + 1) * PAGE));
            match out.last_mut() {
                Some(last) if last.end == first => last.end = end,
                _ if first < end => out.push(first..end),
                _ => {}
            }
        }
        out
    }

    /// Asks the kernel about the pages from the beginning of a shard, at offset `start` of its file, to its counter `end`. Pages in swap have memory.
    /// (mincore(2) says that they have none. It also looks at each page of a hole, while lseek(2) steps over it.)
    pub(crate) fn of(file: impl AsFd, start: u64, end: u32) -> PopulatedPages {
        let pages = offset(end).div_ceil(PAGE);
        let mut there = vec![false; pages as usize];
        let Some(beyond) = start.checked_add(pages * PAGE) else { return PopulatedPages::ALL };
        let page_of = |at: u64| ((at.min(beyond) - start) / PAGE) as usize;
        let mut at = start;
        while at < beyond {
            let data = match fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => break, // nothing but a hole up to the end
                Err(_) => return PopulatedPages::ALL,
            };
            let Ok(hole) = fs::seek(&file, SeekFrom::Hole(data.max(at))) else { return PopulatedPages::ALL };
            // The file may have changed between the calls.
            at = hole.max(at + PAGE);
            if data < beyond {
                there[page_of(data.max(start))..page_of(hole.next_multiple_of(PAGE).max(data))].fill(true);
            }
        }
        PopulatedPages { pages: Some(there) }
    }
}

/// Offset of a counter in its shard.
fn offset(counter: u32) -> u64 {
    u64::from(COUNTERS) + 8 * u64::from(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_written_are_there() {
        let memfd = fs::memfd_create("pages", fs::MemfdFlags::CLOEXEC).unwrap();
        let end = 100_000;
        let len = offset(end).next_multiple_of(PAGE);
        fs::ftruncate(&memfd, 2 * len).unwrap();
        for counter in [0, 70_000] {
            rustix::io::pwrite(&memfd, &[1], len + offset(counter)).unwrap();
        }
        let second = PopulatedPages::of(&memfd, len, end);
        assert!(second.has(0) && second.has(70_000) && second.has(70_001));
        assert!(!second.has(30_000) && !second.has(99_999));
        let runs = second.runs(end);
        assert!(runs.len() == 2 && runs[0].start == 0 && runs[1].contains(&70_000), "{runs:?}");
        assert!(runs.iter().all(|s| s.len() <= 512));
        let first = PopulatedPages::of(&memfd, 0, end);
        assert!(!first.has(0) && first.runs(end).is_empty());
        assert!(PopulatedPages::of(&memfd, u64::MAX - 5, end).has(5), "nothing is known of what is outside");
        // The question allocates no pages.
        let blocks = fs::fstat(&memfd).unwrap().st_blocks;
        assert!(blocks * 512 <= 3 * PAGE as i64, "{blocks}");
        assert_eq!(PopulatedPages::ALL.runs(7).first(), Some(&(0..7)));
    }
}
