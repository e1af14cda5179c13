//! The text of functions that run as copies, as it was when they were copied. If the program writes it (a static key, a live patch), the
//! copy goes on with the old code, and answers of the program may be wrong: the copy must go.

use ingraft_model::{Avma, Bias, FunctionBody, FunctionId, PatchPlan, PcMove, TextWrite};
use ingraft_process::Target;

use crate::program::text_pages::TextPages;
use crate::recovery::ground::{BytesState, classify};
use crate::weaving::plan::Woven;

/// The bytes of a function's blocks: ranges that are sorted and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginalText(Vec<(Avma, Vec<u8>)>);

impl OriginalText {
    /// The text of a function.
    pub(super) fn of(body: &FunctionBody, bias: Bias) -> Self {
        let mut ranges: Vec<(Avma, Vec<u8>)> = Vec::new();
        for block in &body.blocks {
            let at = block.block.range.start.to_avma(bias);
            match ranges.last_mut() {
                Some((start, bytes)) if start.offset(bytes.len() as i64) == at => bytes.extend_from_slice(&block.bytes),
                _ => ranges.push((at, block.bytes.clone())),
            }
        }
        OriginalText(ranges)
    }

    /// The bytes that differ from the present text, as sorted addresses. `writes` are those of all woven code, sorted by address: the text of
    /// other functions may have them too, where it makes room for an island. Text that cannot be read does not differ.
    fn differences(&self, writes: &[&TextWrite], read: &dyn Fn(Avma, &mut [u8]) -> bool) -> Vec<Avma> {
        let mut differ = Vec::new();
        for (start, bytes) in &self.0 {
            let mut now = vec![0; bytes.len()];
            if !read(*start, &mut now) || now == *bytes {
                continue;
            }
            let different = (start.0..).zip(now.iter().zip(bytes)).filter(|(_, (now, then))| now != then);
            differ
                .extend(different.filter(|(at, (now, _))| written(writes, *at) != Some(**now)).map(|(at, _)| Avma(at)));
        }
        differ
    }
}

/// The byte that woven code has written at an address; `None` if it has written none there.
fn written(writes: &[&TextWrite], at: u64) -> Option<u8> {
    let next = writes.partition_point(|w| w.at.0 <= at);
    let write = writes.get(next.checked_sub(1)?)?;
    write.old_bytes().get(usize::try_from(at - write.at.0).ok()?).copied()
}

/// Ranges of text closer to each other than this number of bytes are read as one. No page lies between them that could be unmapped.
const NEAR: u64 = 4096;

/// The text that copied functions have in the target, and what lies between them, at one moment.
#[derive(Debug, PartialEq, Eq)]
pub struct CopiedText(Vec<(Avma, Vec<u8>)>);

/// Joins ranges that overlap or are near to each other. Sorts them.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match all.last_mut() {
            Some(last) if start < last.1.saturating_add(NEAR) => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

/// A function that runs as a copy, and the bytes of its text that the program has changed since.
#[derive(Debug)]
pub struct Rewritten {
    /// The function.
    pub function: FunctionId,
    /// Addresses of the changed bytes, sorted.
    pub bytes: Vec<Avma>,
}

impl Woven {
    /// Reads the text of the functions that run as copies, while the program runs. `None` if a part of it cannot be read.
    pub fn read_copied_text(&self, target: &Target) -> Option<CopiedText> {
        let parts = self.bodies.values().flat_map(|body| &body.original.0);
        let ranges = parts.map(|(start, bytes)| (start.0, start.0.saturating_add(bytes.len() as u64)));
        let read = |(start, end): (u64, u64)| {
            let mut bytes = vec![0; usize::try_from(end - start).ok()?];
            target.read(Avma(start), &mut bytes).ok()?;
            Some((Avma(start), bytes))
        };
        joined(ranges.collect()).into_iter().map(read).collect::<Option<_>>().map(CopiedText)
    }

    /// The functions that run as copies and whose text the program has changed. The program runs meanwhile.
    pub fn rewritten(&self, target: &Target) -> Vec<Rewritten> {
        if self.bodies.is_empty() {
            return Vec::new();
        }
        let pages = TextPages::default();
        let read = |at: Avma, bytes: &mut [u8]| pages.read(target, at, bytes);
        // a record of removal has the woven bytes as its old ones
        let mut writes: Vec<&TextWrite> = self.changes().flat_map(|record| &record.text).collect();
        writes.sort_unstable_by_key(|w| w.at);
        let look = |(function, body): (&FunctionId, &std::sync::Arc<super::bodies::Body>)| {
            let bytes = body.original.differences(&writes, &read);
            (!bytes.is_empty()).then_some(Rewritten { function: *function, bytes })
        };
        self.bodies.iter().filter_map(look).collect()
    }
}

/// The part of a removal that is possible in text that the program has changed at these addresses (sorted): only bytes that are still the
/// engine's are restored, and no thread moves to an address that the change has made the middle of an instruction.
pub fn fitting(target: &Target, plan: PatchPlan, changed: &[Avma]) -> PatchPlan {
    let mut now = [0; 8];
    let mut text = Vec::with_capacity(plan.text.len());
    for write in plan.text {
        let there = &mut now[..write.old_bytes().len()];
        match target.read(write.at, there).map(|()| classify(&write, there)) {
            Ok(BytesState::Mixed { ours, .. }) => text.extend(ours),
            Ok(BytesState::Original | BytesState::Breakpoint | BytesState::Foreign) => {}
            // the removal fails if this is not so
            Ok(BytesState::Woven) | Err(_) => text.push(write),
        }
    }
    let moves = plan.moves.into_iter().filter(|m| keeps_boundary(m, changed)).collect();
    PatchPlan { text, moves, ..plan }
}

/// Whether a thread may move to the end of a move: not into a run of changed bytes, except to its first one. Instructions that the program
/// has replaced begin where the old ones began.
fn keeps_boundary(m: &PcMove, changed: &[Avma]) -> bool {
    let has = |at: Avma| changed.binary_search(&at).is_ok();
    !(has(m.to) && has(m.to.offset(-1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: [u8; 12] = [0x0f, 0x1f, 0x44, 0, 0, 0x31, 0xc0, 0x5b, 0xc3, 0x90, 0x90, 0x90];

    fn text() -> OriginalText {
        OriginalText(vec![(Avma(0x1000), TEXT.to_vec())])
    }

    fn springboard() -> TextWrite {
        let mut write = TextWrite { at: Avma(0x1000), len: 5, old: [0; 8], new: [0; 8] };
        write.old[..5].copy_from_slice(&[0xe9, 1, 2, 3, 4]);
        write.new[..5].copy_from_slice(&TEXT[..5]);
        write
    }

    fn differences(now: [u8; 12], writes: &[&TextWrite]) -> Vec<u64> {
        let read = |at: Avma, bytes: &mut [u8]| {
            let from = (at.0 - 0x1000) as usize;
            bytes.copy_from_slice(&now[from..from + bytes.len()]);
            true
        };
        text().differences(writes, &read).into_iter().map(|at| at.0 - 0x1000).collect()
    }

    #[test]
    fn own_springboards_are_no_difference() {
        let mut now = TEXT;
        assert!(differences(now, &[]).is_empty());
        now[..5].copy_from_slice(&[0xe9, 1, 2, 3, 4]);
        assert!(differences(now, &[&springboard()]).is_empty());
        assert_eq!(differences(now, &[]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn writes_of_the_program_are_differences() {
        let mut now = TEXT;
        now[..5].copy_from_slice(&[0xe9, 1, 2, 3, 4]);
        now[5] = 0xcc;
        assert_eq!(differences(now, &[&springboard()]), [5], "beside a springboard");
        now[5] = TEXT[5];
        now[2] = 9;
        assert_eq!(differences(now, &[&springboard()]), [2], "over a springboard");
        assert!(text().differences(&[], &|_, _| false).is_empty(), "unreadable");
    }

    #[test]
    fn near_ranges_are_read_as_one() {
        assert_eq!(joined(vec![(5000, 6000), (0, 10), (20, 30), (5500, 5600)]), [(0, 30), (5000, 6000)]);
        assert_eq!(joined(vec![(0, 10), (4105, 4106)]), [(0, 4106)]);
        assert_eq!(joined(vec![(0, 10), (4106, 4107)]), [(0, 10), (4106, 4107)]);
    }

    #[test]
    fn threads_move_only_to_instructions() {
        let to = |at| PcMove { from: Avma(1), to: Avma(at) };
        let changed = [Avma(0x10), Avma(0x11), Avma(0x12)];
        assert!(keeps_boundary(&to(0x10), &changed) && keeps_boundary(&to(0x13), &changed));
        assert!(!keeps_boundary(&to(0x11), &changed) && !keeps_boundary(&to(0x12), &changed));
    }
}
