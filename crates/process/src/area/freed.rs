//! The shards of threads that have ended: their values, and their memory.

use std::sync::atomic::Ordering;

use ingraft_model::layout::{self, birth};
use ingraft_model::{ThreadIdentity, WallClock};
use memmap2::UncheckedAdvice;

use super::{AreaAccess, SharedArea, claim_at, event_at};
use crate::ProcessError;

impl SharedArea {
    /// Frees the shard of a thread that has ended. Returns those of its first `counters` that are not 0, in order, each with its index, and
    /// sets them to 0. Calls that were open have ended without passing an exit; the returned values count them.
    pub fn free_shard(&self, shard: u32, counters: u32) -> Result<Vec<(u32, u64)>, ProcessError> {
        if shard < layout::FIRST_SHARD || shard >= self.layout.shards {
            return Err(ProcessError::Outside(self.shard_start(shard)));
        }
        // The engine may have read this number from the target, so limit it.
        let counters = counters.min(self.layout.counters());
        let mut values = self.values(shard, counters)?;
        let open = self.open_records(shard)?;
        for (counter, _) in &values {
            self.write_u64(self.counter_at(shard, *counter), 0)?;
        }
        for (_, name) in open {
            let left = name.checked_sub(layout::COUNTERS).map(|at| at / 8).filter(|left| *left < counters);
            let Some(left) = left else { continue };
            match values.binary_search_by_key(&left, |(counter, _)| *counter) {
                Ok(known) => values[known].1 = values[known].1.wrapping_add(1),
                Err(place) => values.insert(place, (left, 1)),
            }
        }
        let start = self.shard_start(shard);
        let words = [layout::TOP, layout::OWNER, layout::CPU_DESCRIPTOR, layout::CPU_OFFSET, layout::CPU_LAST];
        for word in words.into_iter().chain([layout::CPU_RENEWALS]) {
            self.write_u64(start + u64::from(word), 0)?;
        }
        if self.was_born(shard)? {
            self.write_u64(start + u64::from(self.layout.records() + birth::BORN), 0)?;
        }
        if self.wall_clock()? != WallClock::Tsc {
            // A thread that ended in a signal handler may have been reading the clock.
            self.write_u64(start + u64::from(self.layout.readings_open()), 0)?;
        }
        for event in 0..layout::EVENTS_MAX {
            // If the event has no attributes, leave the page alone: reading it would allocate it.
            if self.read_u64(event_at(event))? != 0 {
                self.forget_event_of(shard, event)?;
            }
        }
        // The address of the thread's pointer to the descriptor must stay known while the descriptor exists. The next thread may find the
        // pointer there, and an older kernel follows it. If the header has no room for the address, the shard keeps it and stays claimed.
        if self.remember_slot(self.read_u64(start + u64::from(layout::CPU_SLOT))?)? {
            self.write_u64(start + u64::from(layout::CPU_SLOT), 0)?;
            self.give_memory_back(shard);
            self.write_u64(claim_at(shard), 0)?;
            // The next thread takes the lowest free shard. So the memory use depends on the largest number of threads at the same time.
            self.lower_hint(shard)?;
        }
        Ok(values)
    }

    /// Sets how many shards keep their memory for the next threads when theirs have ended. The memory of all others goes back to the kernel then.
    pub fn keep_memory_of(&self, shards: usize) {
        let shards = u32::try_from(shards).unwrap_or(u32::MAX);
        self.kept_to.store(layout::FIRST_SHARD.saturating_add(shards), Ordering::Relaxed);
    }

    /// Gives the memory of a shard back, which is 0 afterwards, as it was before its first thread. A shard that nobody has claimed yet has no memory.
    fn give_memory_back(&self, shard: u32) {
        let AreaAccess::Mapped { map, .. } = &self.access else { return };
        // Threads that are told apart by an address could have claimed the shard again.
        let sure = self.identity().is_ok_and(|identity| matches!(identity, ThreadIdentity::FsOffset(_)));
        if shard < self.kept_to.load(Ordering::Relaxed) || !sure {
            return;
        }
        let (start, len) = (self.shard_start(shard), self.layout.stride);
        if self.check_bytes(start, len as usize).is_err() {
            return;
        }
        // SAFETY: the range lies inside the mapping, and its file is shared memory. No reference to these bytes exists: the engine has read the
        // values of the shard, and its thread has ended. All accesses to shards are atomic, and find zeros from now on.
        // If it fails, the memory stays.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::Remove, start as usize, len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::layout::header;

    use super::super::tests::area;
    use super::*;

    /// The memory of shards beyond those that are kept reads as 0 everywhere, and nothing else changes.
    #[test]
    fn high_shards_lose_their_memory() {
        let area = area(8);
        let last = |shard| area.shard_start(shard) + area.layout.stride - 8;
        for (identity, kept) in [(1, 5), (2, 8)] {
            area.write_u32(header::IDENTITY.into(), identity).unwrap();
            area.keep_memory_of(3);
            for shard in layout::FIRST_SHARD..8 {
                area.write_u64(claim_at(shard), 1000 + u64::from(shard)).unwrap();
                area.write_u64(area.counter_at(shard, 1), 7).unwrap();
                area.write_u64(last(shard), 9).unwrap();
            }
            for shard in layout::FIRST_SHARD..8 {
                assert_eq!(area.free_shard(shard, 2).unwrap(), [(1, 7)]);
            }
            assert_eq!(area.claims().unwrap(), []);
            let words: Vec<u64> = (layout::FIRST_SHARD..8).map(|shard| area.read_u64(last(shard)).unwrap()).collect();
            let expected: Vec<u64> = (layout::FIRST_SHARD..8).map(|shard| if shard < kept { 9 } else { 0 }).collect();
            assert_eq!(words, expected, "identity {identity}");
        }
    }
}
