//! Search for the pages of a shard that have memory. Shards of large areas are mostly holes in their file. Reading a hole of shared memory
//! would allocate a page of zeros, which the kernel does not take back.

use ingraft_model::layout::COUNTERS;
use ingraft_model::machine::PAGE;
use memmap2::MmapRaw;

/// The pages of one shard's counters that have memory.
#[derive(Clone, Debug, Default)]
pub struct PopulatedPages {
    /// For each page of the shard, whether it has memory. `None` if this is unknown; all pages then count as allocated.
    pages: Option<Vec<u8>>,
}

impl PopulatedPages {
    /// Value in which every page counts as allocated.
    pub const ALL: PopulatedPages = PopulatedPages { pages: None };

    /// Whether the page of a counter has memory. If not, the counter is 0.
    #[inline]
    pub fn has(&self, counter: u32) -> bool {
        match &self.pages {
            None => true,
            Some(pages) => pages.get((offset(counter) / PAGE) as usize).is_some_and(|page| page & 1 != 0),
        }
    }

    /// Ranges of counters below `end` whose pages have memory.
    pub(crate) fn runs(&self, end: u32) -> Vec<std::ops::Range<u32>> {
        let Some(pages) = &self.pages else { return std::iter::once(0..end).collect() };
        let mut out: Vec<std::ops::Range<u32>> = Vec::new();
        for (page, _) in (0..).zip(pages).filter(|(_, page)| *page & 1 != 0) {
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

    /// Asks the kernel about the pages from the beginning of a shard, at offset `start` of the mapping, to its counter `end`.
    pub(crate) fn of(map: &MmapRaw, start: u64, end: u32) -> PopulatedPages {
        let pages = offset(end).div_ceil(PAGE);
        let inside =
            start.is_multiple_of(PAGE) && start.checked_add(pages * PAGE).is_some_and(|end| end <= map.len() as u64);
        if !inside {
            return PopulatedPages::ALL;
        }
        let mut there = vec![0u8; pages as usize];
        let at = map.as_mut_ptr().wrapping_add(start as usize).cast();
        // SAFETY: the kernel reads nothing of the mapping and writes one byte for each of its pages, as many as `there` has.
        let asked = unsafe { libc::mincore(at, (pages * PAGE) as usize, there.as_mut_ptr()) };
        PopulatedPages { pages: (asked == 0).then_some(there) }
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
        let memfd = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let end = 100_000;
        let len = offset(end).next_multiple_of(PAGE);
        rustix::fs::ftruncate(&memfd, 2 * len).unwrap();
        let map = memmap2::MmapOptions::new().len(2 * len as usize).map_raw(&memfd).unwrap();
        // Write to the file and not through the mapping, because the target also writes by another mapping.
        for counter in [0, 70_000] {
            rustix::io::pwrite(&memfd, &[1], len + offset(counter)).unwrap();
        }
        let second = PopulatedPages::of(&map, len, end);
        assert!(second.has(0) && second.has(70_000) && second.has(70_001));
        assert!(!second.has(30_000) && !second.has(99_999));
        let runs = second.runs(end);
        assert!(runs.len() == 2 && runs[0].start == 0 && runs[1].contains(&70_000), "{runs:?}");
        assert!(runs.iter().all(|s| s.len() <= 512));
        let first = PopulatedPages::of(&map, 0, end);
        assert!(!first.has(0) && first.runs(end).is_empty());
        assert!(PopulatedPages::of(&map, 2 * len, end).has(5), "nothing is known of what is outside");
        // mincore(2) does not allocate pages.
        let blocks = rustix::fs::fstat(&memfd).unwrap().st_blocks;
        assert!(blocks * 512 <= 3 * PAGE as i64, "{blocks}");
        assert_eq!(PopulatedPages::ALL.runs(7).first(), Some(&(0..7)));
    }
}
