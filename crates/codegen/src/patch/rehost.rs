//! Points that move from the text into the copy of their function: the removal of the old code and the insertion of the new code as one plan,
//! so that no thread passes the function in between.

use std::collections::BTreeMap;

use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, FirstInstruction, PatchPlan, PcMove, PointKind, TextWrite};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::body::Probe;
use crate::code::woven::{RemovalRecord, StackView, WovenPoint};
use crate::patch::text_space::ISLAND;

/// Length in bytes of the longest write.
const LONGEST: u64 = 8;

/// A point in the text that is removed, and the place in the copy of its function where its snippets run from now on. A point without
/// snippets has no such place.
#[derive(Clone, Copy, Debug)]
pub struct Rehosted<'a> {
    /// The point in the text.
    pub old: &'a WovenPoint,
    /// The place in the copy.
    pub probe: Option<&'a Probe>,
}

impl Rehosted<'_> {
    /// Address at which a thread in old code goes on, if it lies in the text and the thread has run the snippets or has not begun with them.
    /// `None` if the thread must leave the code by single steps.
    fn onward(&self, m: &PcMove, in_copy: &FxHashMap<Avma, Avma>) -> Option<PcMove> {
        let old = self.old;
        let passed = old.is_passed_at(m.from);
        let called = old.stack == StackView::CALLED;
        // Behind a first instruction that stays, a thread would pass the point in the copy, which lies before that instruction.
        let behind_first = old.first.is_some() && m.to == old.at;
        let begins = (old.base..=old.slot).contains(&m.from) && !called && !behind_first;
        // The function's own branches to its entry lead past the snippets.
        let branches = old.kind == PointKind::Entry && m.to == old.function;
        // Behind a first instruction that ran once, the thread has passed the copy of it too.
        let ran_first = old.first.as_ref().is_some_and(FirstInstruction::runs_once);
        let is_at_point = passed && (Some(m.to) == old.resume || branches) && !called && !ran_first;
        let to = match self.probe.filter(|_| is_at_point) {
            // In the text, or before the probe, it would run the snippets again.
            Some(probe) => probe.next().copy,
            None => in_copy.get(&m.to).copied().unwrap_or(m.to),
        };
        (passed || begins).then_some(PcMove { from: m.from, to })
    }

    /// The islands in the text that lead to the old code. A thread there goes on to the old code, which knows whether it has arrived by the
    /// function's own branch. So does a thread at a springboard behind a first instruction that stays: it has begun the call.
    fn islands(&self) -> impl Iterator<Item = AvmaRange> {
        let inside = |at: Avma| self.old.records().any(|record| record.code.contains(&at));
        let moves = self.old.records().flat_map(|record| &record.moves);
        let springboard = self.old.first.as_ref().map(|_| self.old.at..self.old.at.offset(1));
        moves.filter(move |m| !inside(m.from)).map(|m| m.from..m.from.offset(ISLAND as i64)).chain(springboard)
    }

    /// Call before which the old point lies, if a thread there has run the snippets: the old code jumps to the call in the text.
    fn made(&self) -> Option<Avma> {
        self.probe?.passed().filter(|at| Some(*at) == self.old.resume && *at == self.old.home)
    }
}

/// Plan that removes all `points` of some functions from the text, and inserts copies of these functions with points by `insertion` at the same
/// time. Threads in old code move to the equivalent address of a copy. Threads in the middle of a snippet leave it by single steps.
pub fn rehost(points: &[Rehosted<'_>], mut insertion: PatchPlan) -> PatchPlan {
    let removal = RemovalRecord::combine(points.iter().flat_map(|point| point.old.records()));
    let in_copy: FxHashMap<Avma, Avma> = insertion.moves.iter().map(|m| (m.from, m.to)).collect();
    let made: FxHashSet<Avma> = points.iter().filter_map(Rehosted::made).collect();
    let islands = united(points.iter().flat_map(Rehosted::islands).collect());
    let in_island =
        |at: Avma| islands.get(islands.partition_point(|range| range.end <= at)).is_some_and(|r| r.contains(&at));
    insertion.moves.retain(|m| !made.contains(&m.from) && !in_island(m.from));
    for point in points {
        let moves = point.old.records().flat_map(|record| &record.moves);
        insertion.moves.extend(moves.filter_map(|m| point.onward(m, &in_copy)));
        insertion.step_out.extend(point.old.records().map(|record| record.code.clone()));
    }
    insertion.moves.sort_unstable();
    insertion.moves.dedup_by_key(|m| m.from);
    insertion.text = joined(&removal.text, &insertion.text);
    insertion.step_out.extend(removal.step_out.into_iter().chain(islands));
    insertion.step_out = united(insertion.step_out);
    insertion.retired.extend(removal.retired);
    insertion.retired.sort_unstable_by_key(|range| range.start);
    insertion
}

/// The ranges without overlaps, sorted.
pub(super) fn united(mut ranges: Vec<AvmaRange>) -> Vec<AvmaRange> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|later, first| {
        let overlap = later.start <= first.end;
        if overlap {
            first.end = first.end.max(later.end);
        }
        overlap
    });
    ranges
}

/// The writes that have the effect of `first` and then of `second`. A write of the result begins where one of theirs begins, so that a
/// thread at the beginning of an instruction is not inside of a write.
fn joined(first: &[TextWrite], second: &[TextWrite]) -> Vec<TextWrite> {
    // Few writes of an insertion overlap those of a removal.
    let (second, mut apart): (Vec<_>, Vec<_>) = second.iter().copied().partition(|write| overlaps(first, write));
    apart.extend(overlaid(first, &second));
    apart.sort_unstable_by_key(|write| write.at);
    apart
}

/// Whether a write overlaps one of these, which are sorted and disjoint.
fn overlaps(writes: &[TextWrite], write: &TextWrite) -> bool {
    let end = |w: &TextWrite| w.at.0 + u64::from(w.len);
    let next = writes.get(writes.partition_point(|w| end(w) <= write.at.0));
    next.is_some_and(|next| next.at.0 < end(write))
}

/// [`joined`] of writes that overlap.
fn overlaid(first: &[TextWrite], second: &[TextWrite]) -> Vec<TextWrite> {
    let mut bytes: BTreeMap<u64, (u8, u8)> = BTreeMap::new();
    for write in first.iter().chain(second) {
        for (at, (old, new)) in (write.at.0..).zip(write.old_bytes().iter().zip(write.new_bytes())) {
            bytes.entry(at).or_insert((*old, *new)).1 = *new;
        }
    }
    let begins: std::collections::BTreeSet<u64> = first.iter().chain(second).map(|write| write.at.0).collect();
    let mut writes: Vec<TextWrite> = Vec::new();
    for (at, (old, new)) in bytes {
        let last = writes.last_mut().filter(|last| {
            let len = u64::from(last.len);
            last.at.0 + len == at && len < LONGEST && !at.is_multiple_of(PAGE) && !begins.contains(&at)
        });
        match last {
            Some(last) => {
                let next = usize::from(last.len);
                (last.old[next], last.new[next]) = (old, new);
                last.len += 1;
            }
            None => writes.push(TextWrite { at: Avma(at), len: 1, old: padded(old), new: padded(new) }),
        }
    }
    writes
}

fn padded(byte: u8) -> [u8; 8] {
    [byte, 0, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(at: u64, old: &[u8], new: &[u8]) -> TextWrite {
        crate::code::block::text_write(at, old, new)
    }

    #[test]
    fn a_springboard_takes_the_place_of_another_one() {
        let first = [write(0x1000, &[0xe9, 1, 2, 3, 4], &[5, 6, 7, 8, 9]), write(0x1010, &[0xeb, 1], &[5, 6])];
        let second = [write(0x1000, &[5, 6], &[0xeb, 7]), write(0x1003, &[8, 9, 10], &[11, 12, 13])];
        let all = joined(&first, &second);
        assert_eq!(
            all,
            [
                write(0x1000, &[0xe9, 1, 2], &[0xeb, 7, 7]),
                write(0x1003, &[3, 4, 10], &[11, 12, 13]),
                write(0x1010, &[0xeb, 1], &[5, 6])
            ]
        );
    }

    proptest! {
        /// One write for both, however they overlap.
        #[test]
        fn joined_writes_have_the_effect_of_both(
            old in proptest::collection::vec(any::<u8>(), 40),
            cuts in proptest::collection::vec((0..32usize, 1..=8usize, any::<u8>()), 2..6),
            split in 1..5usize,
        ) {
            let mut now = old.clone();
            let base = 0x2000 - 20;
            let mut lists = [Vec::new(), Vec::new()];
            for (n, (at, len, byte)) in cuts.iter().enumerate() {
                let list = usize::from(n >= split);
                let before = now[*at..at + len].to_vec();
                let overlaps = |w: &TextWrite| (w.at.0 as usize) < base + at + len && base + at < w.at.0 as usize + usize::from(w.len);
                let straddles = (base + at) / 4096 != (base + at + len - 1) / 4096;
                if lists[list].iter().any(overlaps) || straddles {
                    continue;
                }
                now[*at..at + len].fill(*byte);
                lists[list].push(write((base + at) as u64, &before, &vec![*byte; *len]));
            }
            let [mut first, mut second] = lists;
            first.sort_unstable_by_key(|w| w.at);
            second.sort_unstable_by_key(|w| w.at);
            let mut text = old;
            let mut end = 0;
            for w in joined(&first, &second) {
                let at = w.at.0 as usize - base;
                prop_assert!(w.at.0 >= end && w.at.0 / 4096 == (w.at.0 + u64::from(w.len) - 1) / 4096);
                end = w.at.0 + u64::from(w.len);
                prop_assert_eq!(&text[at..at + usize::from(w.len)], w.old_bytes());
                text[at..at + usize::from(w.len)].copy_from_slice(w.new_bytes());
            }
            prop_assert_eq!(text, now);
        }
    }
}
