//! Room for generated code near one or more modules. An arena is only a value: the caller maps the memory.

use ingraft_model::{Avma, AvmaRange, Gpr};

use crate::code::block::EmitError;
use crate::code::holes::Holes;
use crate::code::routine::Routine;

/// Bytes at the end of an arena that stay unused, because the slow routine reads up to five bytes at the target of a jump.
const SLACK: u64 = 16;

/// Largest number of places at which code is tried whose form depends on its place.
pub(crate) const ROUNDS: usize = 32;

/// A range of addresses within 2 GiB of the modules that it serves, with the parts of it that are in use.
#[derive(Clone, Debug)]
pub struct Arena {
    range: AvmaRange,
    cursor: u64,
    /// Ranges below the cursor that may be used again.
    free: Holes,
    /// Slow routines in this arena, by register number.
    pub(crate) slow: [Option<SlowRoutine>; 16],
    /// Ranges of the other shared routines in this arena, by `Routine`.
    pub(crate) routines: [Option<AvmaRange>; Routine::ALL.len()],
    /// Whether this is a part of another arena. The list of shared routines of a part does not change.
    is_part: bool,
    /// Whether something was refused because it did not fit.
    pub(crate) lacked_room: bool,
}

/// A shared slow routine in an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowRoutine {
    pub range: AvmaRange,
    /// Entry for a thread that must count in shard 0 from a jump of a chain on.
    pub walk: Avma,
}

impl Arena {
    /// An arena that fills `range`.
    pub fn new(range: AvmaRange) -> Self {
        Arena {
            cursor: range.start.0,
            range,
            free: Holes::default(),
            slow: Default::default(),
            routines: std::array::from_fn(|_| None),
            is_part: false,
            lacked_room: false,
        }
    }

    /// Whether a point was refused because no room was left for its code. A longer arena may have room.
    pub fn lacked_room(&self) -> bool {
        self.lacked_room
    }

    /// The whole range of the arena.
    pub fn range(&self) -> AvmaRange {
        self.range.clone()
    }

    /// Range that holds or held code: from the start to the end of the highest range in use.
    pub fn touched(&self) -> AvmaRange {
        self.range.start..Avma(self.cursor)
    }

    /// Number of bytes in use.
    pub fn used(&self) -> u64 {
        self.cursor - self.range.start.0 - self.free.bytes()
    }

    /// Length in bytes, in whole pages, of an arena for `points` entry points with one or two snippets each. The length is more than three
    /// times that of plain counts, because only pages that are written take memory. If longer snippets do not fit, [`Arena::lacked_room`]
    /// says so.
    pub fn estimate_bytes(points: usize) -> u64 {
        ((points as u64).saturating_mul(192) + 2 * 4096).next_multiple_of(4096)
    }

    /// Ranges of the shared routines. Their code belongs to no single point and stays until the arena is unmapped.
    pub fn shared(&self) -> Vec<AvmaRange> {
        self.slow_routines().into_iter().chain(self.routines.iter().flatten().cloned()).collect()
    }

    /// Ranges of the shared routines, except the routine in which threads wait for the engine at the loader's hook.
    pub fn shared_by_passers(&self) -> Vec<AvmaRange> {
        let waiting = self.awaiting();
        self.shared().into_iter().filter(|range| Some(range) != waiting).collect()
    }

    /// Range of the shared routine in which threads wait for the engine.
    pub fn awaiting(&self) -> Option<&AvmaRange> {
        self.routine(Routine::Await)
    }

    /// Range of the shared routine in which threads wait for room in their buffers. A thread goes on in the middle of its snippet, and has read
    /// nothing of the code that a change writes.
    pub fn room(&self) -> Option<&AvmaRange> {
        self.routine(Routine::Room)
    }

    /// Ranges of the slow routines, which are the only routines that read slots. Sorted.
    pub(crate) fn slow_routines(&self) -> Vec<AvmaRange> {
        let mut ranges: Vec<_> = self.slow.iter().flatten().map(|s| s.range.clone()).collect();
        ranges.sort_unstable_by_key(|r| r.start);
        ranges
    }

    /// Range of a shared routine; `None` if none was needed yet.
    pub(crate) fn routine(&self, routine: Routine) -> Option<&AvmaRange> {
        self.routines.get(routine as usize)?.as_ref()
    }

    /// Frees a range to which no code leads any more: one of the `retired` ranges of a plan, once no thread is inside.
    pub fn release(&mut self, range: &AvmaRange) {
        let (start, end) = (range.start.0.max(self.range.start.0), range.end.0.min(self.cursor));
        if start >= end {
            return;
        }
        let (start, end) = self.free.join(start, end);
        if end == self.cursor {
            self.cursor = start;
        } else {
            self.free.add(start, end);
        }
    }

    /// Finds an address with `len` free bytes: in holes first, then at the cursor. `adjust` may return a larger address than the
    /// given start, for alignment or because of a page boundary.
    pub(crate) fn place(&self, len: u64, adjust: impl Fn(u64) -> u64) -> Option<u64> {
        self.free.find(len, &adjust).or_else(|| {
            let at = adjust(self.cursor);
            at.checked_add(len)?.checked_add(SLACK).is_some_and(|end| end <= self.range.end.0).then_some(at)
        })
    }

    /// Marks bytes found by [`Arena::place`] as used. Bytes that were skipped before them stay free.
    pub(crate) fn take(&mut self, at: u64, len: u64) {
        let end = at + len;
        if at >= self.cursor {
            self.free.add(self.cursor, at);
            self.cursor = end;
        } else {
            self.free.take(at, end);
        }
    }

    /// Splits off the room that begins `bytes` after the part in use. Both arenas can be written at the same time, until [`Arena::join`].
    pub(crate) fn split(&mut self, bytes: u64) -> Option<Arena> {
        let start = self.cursor.checked_add(bytes)?.checked_add(SLACK)?;
        if start >= self.range.end.0 {
            return None;
        }
        let range = Avma(start)..std::mem::replace(&mut self.range.end, Avma(start));
        let (slow, routines) = (self.slow.clone(), self.routines.clone());
        Some(Arena { slow, routines, is_part: true, ..Arena::new(range) })
    }

    /// Joins the arena that was split off last with this one. The room between the two is free.
    pub(crate) fn join(&mut self, part: Arena) {
        self.range.end = part.range.end;
        if part.cursor > part.range.start.0 {
            if self.cursor < part.range.start.0 {
                self.free.add(self.cursor, part.range.start.0);
            }
            self.free.extend(part.free);
            self.cursor = part.cursor;
        }
    }

    /// Checks that shared routines may be written into this arena now; fails in a part.
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
