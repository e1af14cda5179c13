//! Room for generated code near one or more modules. A value only: memory is mapped by the caller.

use std::collections::BTreeMap;

use ingraft_model::{Avma, AvmaRange, Gpr};

use crate::code::block::EmitError;
use crate::code::routine::Routine;

/// Bytes at the end of an arena that stay unused: the slow routine looks at up to five bytes of where a jump leads.
const SLACK: u64 = 16;

/// A range of addresses within 2 GiB of the modules that it serves, and what of it is in use.
#[derive(Clone, Debug)]
pub struct Arena {
    range: AvmaRange,
    cursor: u64,
    /// Ranges below the cursor that may be used again: start to end.
    free: BTreeMap<u64, u64>,
    /// The slow routines that lie here, by register number.
    pub(crate) slow: [Option<SlowRoutine>; 16],
    /// The routines for activation records that lie here.
    pub(crate) routines: [Option<AvmaRange>; Routine::ALL.len()],
    /// It is a part of another one, whose shared routines stay the same meanwhile.
    is_part: bool,
    /// Something was refused because it did not fit.
    pub(crate) lacked_room: bool,
}

/// A shared slow routine in an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowRoutine {
    pub range: AvmaRange,
    /// Entry for a thread whose count must go to shard 0 from some jump of a chain on.
    pub walk: Avma,
}

impl Arena {
    /// An arena that fills `range`.
    pub fn new(range: AvmaRange) -> Self {
        Arena {
            cursor: range.start.0,
            range,
            free: BTreeMap::new(),
            slow: Default::default(),
            routines: Default::default(),
            is_part: false,
            lacked_room: false,
        }
    }

    /// Whether a point was refused because there was no room left for its code: a longer arena may have some.
    pub fn lacked_room(&self) -> bool {
        self.lacked_room
    }

    /// All of it.
    pub fn range(&self) -> AvmaRange {
        self.range.clone()
    }

    /// The part that holds or held code: from the start to the highest byte ever given out.
    pub fn touched(&self) -> AvmaRange {
        self.range.start..Avma(self.cursor)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.cursor - self.range.start.0 - self.free.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Length in bytes of an arena for `points` entry points with a snippet or two each, in whole pages: more than three times what plain counts
    /// take, because only pages that are written take memory. Snippets may be of any length: then [`Arena::lacked_room`] says so.
    pub fn estimate_bytes(points: usize) -> u64 {
        ((points as u64).saturating_mul(192) + 2 * 4096).next_multiple_of(4096)
    }

    /// The ranges of shared routines: code that belongs to no single point and stays until the arena goes.
    pub fn shared(&self) -> Vec<AvmaRange> {
        self.slow_routines().into_iter().chain(self.routines.iter().flatten().cloned()).collect()
    }

    /// The same without that in which threads wait for the engine, at the loader's hook.
    pub fn shared_by_passers(&self) -> Vec<AvmaRange> {
        let waiting = self.routine(Routine::Await);
        self.shared().into_iter().filter(|range| Some(range) != waiting).collect()
    }

    /// The slow routines alone, which read slots.
    pub(crate) fn slow_routines(&self) -> Vec<AvmaRange> {
        let mut ranges: Vec<_> = self.slow.iter().flatten().map(|s| s.range.clone()).collect();
        ranges.sort_unstable_by_key(|r| r.start);
        ranges
    }

    /// Range of a shared routine; `None` if none was needed yet.
    pub(crate) fn routine(&self, routine: Routine) -> Option<&AvmaRange> {
        self.routines.get(routine as usize)?.as_ref()
    }

    /// Takes back code that nothing leads to any more: the `retired` ranges of a plan, once no thread is inside.
    pub fn release(&mut self, range: &AvmaRange) {
        let (mut start, mut end) = (range.start.0.max(self.range.start.0), range.end.0.min(self.cursor));
        if start >= end {
            return;
        }
        if let Some((&s, &e)) = self.free.range(..=start).next_back()
            && e >= start
        {
            self.free.remove(&s);
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.free.range(start..=end).next() {
            self.free.remove(&s);
            end = end.max(e);
        }
        if end == self.cursor {
            self.cursor = start;
        } else {
            self.free.insert(start, end);
        }
    }

    /// The first address where `fits(address)` says how many bytes it needs and they are free: holes first, then the end. `fits`
    /// may ask for a later start in the same place (alignment, pages) by returning a larger address.
    pub(crate) fn place(&self, len: u64, adjust: impl Fn(u64) -> u64) -> Option<u64> {
        for (&start, &end) in &self.free {
            let at = adjust(start);
            if at.checked_add(len).is_some_and(|e| e <= end) {
                return Some(at);
            }
        }
        let at = adjust(self.cursor);
        at.checked_add(len)?.checked_add(SLACK).is_some_and(|end| end <= self.range.end.0).then_some(at)
    }

    /// Marks a place found by [`Arena::place`] as used. What is skipped before it stays free.
    pub(crate) fn take(&mut self, at: u64, len: u64) {
        let end = at + len;
        if at >= self.cursor {
            if at > self.cursor {
                self.free.insert(self.cursor, at);
            }
            self.cursor = end;
            return;
        }
        if let Some((&s, &e)) = self.free.range(..=at).next_back()
            && e >= end
        {
            self.free.remove(&s);
            if s < at {
                self.free.insert(s, at);
            }
            if end < e {
                self.free.insert(end, e);
            }
        }
    }

    /// Splits off the room from so many bytes behind the used part on. The new arena can be written at the same time, until [`Arena::join`].
    pub(crate) fn split(&mut self, bytes: u64) -> Option<Arena> {
        let start = self.cursor.checked_add(bytes)?.checked_add(SLACK)?;
        if start >= self.range.end.0 {
            return None;
        }
        let range = Avma(start)..std::mem::replace(&mut self.range.end, Avma(start));
        let (slow, routines) = (self.slow.clone(), self.routines.clone());
        Some(Arena { slow, routines, is_part: true, ..Arena::new(range) })
    }

    /// Takes back what was split off last; what is between the two is free.
    pub(crate) fn join(&mut self, part: Arena) {
        self.range.end = part.range.end;
        if part.cursor > part.range.start.0 {
            if self.cursor < part.range.start.0 {
                self.free.insert(self.cursor, part.range.start.0);
            }
            self.free.extend(part.free);
            self.cursor = part.cursor;
        }
    }

    /// Whether what many points share may be written into it now.
    pub(crate) fn may_share(&self) -> Result<(), EmitError> {
        if self.is_part { Err(EmitError::Unshared) } else { Ok(()) }
    }

    pub(crate) fn slow(&self, r: Gpr) -> Option<&SlowRoutine> {
        self.slow.get(usize::from(r.0))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_found_again_and_joined() {
        let mut arena = Arena::new(Avma(0x1000)..Avma(0x2000));
        for at in [0x1000, 0x1010, 0x1020] {
            assert_eq!(arena.place(16, |a| a), Some(at));
            arena.take(at, 16);
        }
        arena.release(&(Avma(0x1000)..Avma(0x1010)));
        assert_eq!(arena.place(17, |a| a), Some(0x1030));
        arena.release(&(Avma(0x1010)..Avma(0x1020)));
        assert_eq!(arena.place(32, |a| a), Some(0x1000));
        assert_eq!(arena.place(16, |a| a + 3), Some(0x1003));
        arena.take(0x1003, 16);
        assert_eq!(arena.used(), 32);
        arena.release(&(Avma(0x1003)..Avma(0x1013)));
        arena.release(&(Avma(0x1020)..Avma(0x1030)));
        assert_eq!(arena.used(), 0);
        assert_eq!(arena.place(0x1000, |a| a), None);
        assert_eq!(arena.place(0xff0, |a| a), Some(0x1000));
    }

    #[test]
    fn hostile_ranges_do_no_harm() {
        let mut arena = Arena::new(Avma(u64::MAX - 0x100)..Avma(u64::MAX));
        assert_eq!(arena.place(u64::MAX, |a| a), None);
        arena.release(&(Avma(0)..Avma(u64::MAX)));
        assert_eq!(arena.used(), 0);
    }
}
