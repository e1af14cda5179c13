//! Comparison of overwritten code with its present bytes: the engine's bytes, the original ones, or those of other programs. The bytes in
//! memory decide, whatever maps them: a program may have moved its text to memory without a file, and a breakpoint is one byte among the
//! engine's.

use std::fmt;

use ingraft_model::machine::{JUMP, PAGE};
use ingraft_model::{Avma, AvmaRange, TextWrite};
use ingraft_process::{MappedFile, Mapping, Target, loads};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::names::some_of;
use crate::program::file_id::FileId;
use crate::program::text_pages::TextPages;
use crate::recovery::journal::PointRecord;

/// `int3`, which debuggers and the kernel's uprobes write over the first byte of an instruction.
const BREAKPOINT: u8 = 0xcc;
/// Length of a displacement in bytes.
const DISPLACEMENT: usize = 4;

/// State of the bytes that one write has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BytesState {
    /// All bytes are as the engine wrote them.
    Woven,
    /// All bytes are the original ones.
    Original,
    /// Some bytes are as the engine wrote them; others are original or under a breakpoint, as a uprobe leaves them: it restores the file's
    /// byte when it is removed.
    Mixed {
        /// Writes that restore the original in place of the engine's bytes.
        ours: Vec<TextWrite>,
        /// Whether a breakpoint is among the other bytes.
        breakpoint: bool,
    },
    /// The bytes are original except for breakpoints.
    Breakpoint,
    /// Another program has written the bytes.
    Foreign,
}

/// State of one overwritten place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverwrittenPlace {
    /// The text is there, or a copy of the woven text.
    Text(BytesState),
    /// The text is not mapped any more; another mapping may have its address.
    Gone,
    /// The text is mapped but cannot be read.
    Unreadable,
}

/// Reason why a place may differ from the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// A breakpoint lies over a byte of the engine or of the original.
    Breakpoint,
    /// A breakpoint was removed again, and a byte of the engine with it.
    Broken,
    /// Another program has written over the place.
    Foreign,
    /// Another program has restored the original code during the measurement.
    Lost,
    /// The place cannot be read.
    Unreadable,
    /// The program has a copy of the woven code there.
    Copied,
}

impl Why {
    /// Whether the bytes there may still lead to the engine's code after all bytes of the engine were replaced by the original ones.
    pub fn may_lead(self) -> bool {
        matches!(self, Why::Foreign | Why::Unreadable | Why::Copied)
    }
}

/// A place that differs from the original, or from the state in which the engine left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Address of the place.
    pub at: Avma,
    /// Reason of the difference.
    pub state: Why,
}

impl Left {
    /// Warnings for people: each reason with the first places that it concerns. `name` names the function at an address.
    pub fn warnings(all: &[Left], target: &Target, name: &dyn Fn(Avma) -> Option<String>) -> Vec<String> {
        /// Number of places of one reason that are named; of further ones only the number is stated.
        const NAMED: usize = 3;
        let maps = target.maps().unwrap_or_default();
        let in_file = |at: Avma| {
            let mapping = maps.iter().find(|m| m.range.contains(&at) && m.is_file())?;
            let offset = at.0 - mapping.range.start.0 + mapping.offset;
            Some(format!("{:#x} of {}", offset, mapping.file_path().display()))
        };
        let place = |at| name(at).or_else(|| in_file(at)).unwrap_or_else(|| format!("{:#x}", at.0));
        let mut causes: Vec<Why> = all.iter().map(|left| left.state).collect();
        causes.sort_unstable();
        causes.dedup();
        let warning = |why: Why| {
            let mut places: Vec<String> =
                all.iter().filter(|left| left.state == why).map(|left| place(left.at)).collect();
            places.dedup();
            format!("{why}: {}", some_of(places.iter(), NAMED))
        };
        causes.into_iter().map(warning).collect()
    }

    /// Sorts places and removes duplicates.
    pub fn sort(all: &mut Vec<Left>) {
        all.sort_unstable_by_key(|left| (left.at, left.state));
        all.dedup();
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Breakpoint => "somebody else has set a breakpoint (a uprobe of perf or bpftrace, or a debugger's)",
            Why::Broken => "a breakpoint of somebody else (a uprobe of perf or bpftrace) came and went and took a byte of ours along",
            Why::Foreign => "somebody else has written over the code",
            Why::Lost => "the program, or somebody else, has put its original code back: calls were not counted any more",
            Why::Unreadable => "the code cannot be read",
            Why::Copied => {
                "the program has set a copy of woven code aside, as if to move its text: what was woven stays mapped until the next removal"
            }
        })
    }
}

impl OverwrittenPlace {
    /// The place with the reason why it may differ; `None` if it is woven, original or gone.
    pub fn left(&self, at: Avma) -> Option<Left> {
        let state = match self {
            OverwrittenPlace::Text(BytesState::Mixed { breakpoint: false, .. }) => Why::Broken,
            OverwrittenPlace::Text(BytesState::Mixed { .. }) => Why::Breakpoint,
            OverwrittenPlace::Text(BytesState::Breakpoint) => Why::Breakpoint,
            OverwrittenPlace::Text(BytesState::Foreign) => Why::Foreign,
            OverwrittenPlace::Unreadable => Why::Unreadable,
            OverwrittenPlace::Text(BytesState::Woven | BytesState::Original) | OverwrittenPlace::Gone => return None,
        };
        Some(Left { at, state })
    }
}

/// State of the bytes that a write of a removal would change.
pub fn classify(write: &TextWrite, now: &[u8]) -> BytesState {
    let (ours, original) = (write.old_bytes(), write.new_bytes());
    if now == ours {
        return BytesState::Woven;
    }
    if now == original {
        return BytesState::Original;
    }
    let bytes = || now.iter().zip(ours).zip(original).map(|((now, ours), original)| (*now, *ours, *original));
    if !bytes().all(|(now, ours, original)| now == ours || now == original || now == BREAKPOINT) {
        return BytesState::Foreign;
    }
    let is_ours = |(now, ours, original): (u8, u8, u8)| now == ours && now != original;
    if !bytes().any(is_ours) {
        return BytesState::Breakpoint;
    }
    let mut parts: Vec<TextWrite> = Vec::new();
    for (i, (at, byte)) in (write.at.0..).zip(bytes()).enumerate().filter(|(_, (_, byte))| is_ours(*byte)) {
        let (_, old, new) = byte;
        match parts.last_mut().filter(|part| part.at.0 + u64::from(part.len) == at) {
            Some(part) => {
                let end = usize::from(part.len);
                (part.old[end], part.new[end]) = (old, new);
                part.len += 1;
            }
            None => {
                let mut part = TextWrite { at: write.at.offset(i as i64), len: 1, old: [0; 8], new: [0; 8] };
                (part.old[0], part.new[0]) = (old, new);
                parts.push(part);
            }
        }
    }
    let breakpoint = bytes().any(|(now, ours, original)| now != ours && now != original);
    BytesState::Mixed { ours: parts, breakpoint }
}

/// Places at which other programs have changed woven text. Each page is read once.
pub fn disturbed<'a>(target: &Target, text: impl Iterator<Item = &'a TextWrite>) -> Vec<Left> {
    let mut writes: Vec<&TextWrite> = text.collect();
    writes.sort_unstable_by_key(|w| w.at);
    let (mut page, mut start, mut len) = ([0; PAGE as usize], None, 0);
    let mut found = Vec::new();
    for write in writes {
        let (at, behind) = (write.at.0 & !(PAGE - 1), (write.at.0 % PAGE) as usize);
        if start != Some(at) {
            start = Some(at);
            len = target.read_some(Avma(at), &mut page).unwrap_or(0);
        }
        let bytes = page.get(..len).and_then(|page| page.get(behind..behind + write.old_bytes().len()));
        found.extend(bytes.and_then(|now| match classify(write, now) {
            BytesState::Original => Some(Left { at: write.at, state: Why::Lost }),
            state @ (BytesState::Woven | BytesState::Mixed { .. } | BytesState::Breakpoint | BytesState::Foreign) => {
                OverwrittenPlace::Text(state).left(write.at)
            }
        }));
    }
    Left::sort(&mut found);
    found
}

/// Looks for a page that the program has copied from the woven text into its own memory, perhaps to put it back over the text in huge
/// pages. Only memory that was touched is read, and only so much that the search takes a moment.
pub fn copy_of(target: &Target, points: &[PointRecord], arenas: &[AvmaRange]) -> Option<Avma> {
    /// Largest number of bytes that are read, the smallest mappings first, because a copy of text is not larger than the text.
    const MOST: u64 = 256 << 20;
    /// Length of the longest mapping that is searched. Longer ones are reserved for data, often by the terabyte: only listing their pages
    /// would take seconds.
    const LONGEST: u64 = 1 << 30;
    /// Number of pages that are read together.
    const AT_ONCE: usize = 64;
    let jump = |w: &TextWrite| match w.old_bytes() {
        [JUMP, rest @ ..] => Some(((w.at.0 % PAGE, <[u8; DISPLACEMENT]>::try_from(rest).ok()?), w.at)),
        _ => None,
    };
    let mut jumps: FxHashMap<_, Vec<Avma>> = FxHashMap::default();
    for (key, at) in points.iter().flat_map(|p| &p.removal.text).filter_map(jump) {
        jumps.entry(key).or_default().push(at);
    }
    if jumps.is_empty() {
        return None;
    }
    let mut written: Vec<(u64, u64)> =
        points.iter().flat_map(|p| &p.removal.text).map(|w| (w.at.0, w.at.0 + u64::from(w.len))).collect();
    written.sort_unstable();
    let maps = target.maps().ok()?;
    let is_own = |m: &Mapping| arenas.iter().any(|a| a.start < m.range.end && m.range.start < a.end);
    let may_hold = |m: &&Mapping| m.read && m.len() <= LONGEST && !m.shared && !m.is_file() && !is_own(m);
    let mut memory: Vec<&Mapping> = maps.iter().filter(may_hold).collect();
    memory.sort_by_key(|m| m.len());
    let mut offsets: Vec<u64> = jumps.keys().map(|(offset, _)| *offset).collect();
    offsets.sort_unstable();
    offsets.dedup();
    let in_page = |page: &[u8]| {
        let is_ours = |offset: &u64| {
            let [JUMP, rest @ ..] = page.get(*offset as usize..)? else { return None };
            let rest = *rest.first_chunk::<DISPLACEMENT>()?;
            let mut texts = jumps.get(&(*offset, rest))?.iter();
            texts.any(|text| is_alike(target, *text, &written, page, *offset as usize)).then_some(*offset)
        };
        offsets.iter().find_map(is_ours)
    };
    let mut bytes = vec![0; AT_ONCE * PAGE as usize];
    let mut left = MOST;
    for mapping in memory {
        let Some(touched) = target.touched_pages(&mapping.range) else { continue };
        let mut from = 0;
        while let Some(skipped) = touched.get(from..).and_then(|rest| rest.iter().position(|touched| *touched)) {
            from += skipped;
            let run =
                touched.get(from..).unwrap_or_default().iter().take(AT_ONCE).take_while(|touched| **touched).count();
            let len = run * PAGE as usize;
            left = left.checked_sub(len as u64)?;
            let start = mapping.range.start.0 + from as u64 * PAGE;
            let read = target.read_some(Avma(start), bytes.get_mut(..len)?).unwrap_or(0);
            let pages = bytes.get(..read)?.chunks(PAGE as usize);
            let found = (start..).step_by(PAGE as usize).zip(pages).find_map(|(at, page)| Some(at + in_page(page)?));
            if let Some(at) = found {
                return Some(Avma(at));
            }
            from += run;
        }
    }
    None
}

/// Whether most of the bytes around a jump that a page has at `offset` are those around `text`, except where code was woven (`written`, sorted).
/// A program that generates code may have jumps that equal ours by chance.
fn is_alike(target: &Target, text: Avma, written: &[(u64, u64)], page: &[u8], offset: usize) -> bool {
    /// Number of bytes before and behind the jump that are compared, unless the page ends there.
    const AROUND: usize = 64;
    /// Smallest number of bytes that tell whether the page is a copy.
    const LEAST: usize = 8;
    let (before, behind) = (offset.min(AROUND), page.len().saturating_sub(offset).min(AROUND));
    let (start, mut now) = (text.offset(-(before as i64)), vec![0; before + behind]);
    if target.read(start, &mut now).is_err() {
        return true;
    }
    let is_written = |at: u64| {
        let next = written.partition_point(|(start, _)| *start <= at);
        next.checked_sub(1).and_then(|i| written.get(i)).is_some_and(|(_, end)| at < *end)
    };
    let there = page.get(offset - before..).unwrap_or_default();
    let compared = (start.0..).zip(now.iter().zip(there)).filter(|(at, _)| !is_written(*at));
    let same: Vec<bool> = compared.map(|(_, (a, b))| a == b).collect();
    same.len() < LEAST || 4 * same.iter().filter(|same| **same).count() >= 3 * same.len()
}

/// Mappings of a target, and the bytes at the places that were compared: a snapshot for one comparison of all places.
pub struct Ground {
    maps: Vec<Mapping>,
    /// Range of each load of a file, from its first mapping to its last.
    spans: Vec<(FileId, AvmaRange)>,
    /// The pages with which places were compared.
    text: TextPages,
}

impl Ground {
    /// Reads the present mappings of a target.
    pub fn of(target: &Target) -> Result<Self, Error> {
        let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
        let id = |file: &MappedFile| FileId { device: file.device, inode: file.inode };
        let spans = loads(&maps).iter().map(|file| (id(file), file.span())).collect();
        Ok(Ground { maps, spans, text: TextPages::default() })
    }

    /// State of each place that a point has overwritten.
    pub fn look(&self, target: &Target, point: &PointRecord) -> Vec<OverwrittenPlace> {
        let looks: Vec<(OverwrittenPlace, bool)> =
            point.removal.text.iter().map(|w| self.look_at(target, point, w)).collect();
        // Two bytes may equal the engine's by chance, so they count only beside another place that is certainly woven.
        let is_here =
            looks.iter().any(|(place, certain)| *certain && *place == OverwrittenPlace::Text(BytesState::Woven));
        looks
            .into_iter()
            .map(|(place, certain)| if certain || is_here { place } else { OverwrittenPlace::Gone })
            .collect()
    }

    /// State of one place, and whether the state is certain without other places.
    fn look_at(&self, target: &Target, point: &PointRecord, write: &TextWrite) -> (OverwrittenPlace, bool) {
        let mapping = self.mapping(write.at);
        let own = self.is_own(point.file, write.at, mapping);
        let exec = mapping.is_some_and(|m| m.exec);
        let mut now = [0; 8];
        let now = &mut now[..write.old_bytes().len()];
        if mapping.is_none() || !self.text.read(target, write.at, now) {
            let hides = own || mapping.is_some() && exec;
            return (
                if hides && target.is_alive() { OverwrittenPlace::Unreadable } else { OverwrittenPlace::Gone },
                true,
            );
        }
        let state = match classify(write, now) {
            BytesState::Mixed { .. } if self.is_anothers_jump(write.at, now) => BytesState::Foreign,
            state @ (BytesState::Woven
            | BytesState::Original
            | BytesState::Mixed { .. }
            | BytesState::Breakpoint
            | BytesState::Foreign) => state,
        };
        if own {
            return (OverwrittenPlace::Text(state), true);
        }
        // Another mapping has the address now, or the program has put a copy of its text there, so only the bytes can tell.
        let to_us = leads_to(write, &point.removal.code);
        match state {
            BytesState::Woven => (OverwrittenPlace::Text(BytesState::Woven), to_us),
            // the engine's displacement follows the first byte of another program
            BytesState::Mixed { .. } | BytesState::Foreign if to_us && exec && now.ends_with(displacement(write)) => {
                (OverwrittenPlace::Text(BytesState::Foreign), true)
            }
            BytesState::Original | BytesState::Mixed { .. } | BytesState::Breakpoint | BytesState::Foreign => {
                (OverwrittenPlace::Gone, true)
            }
        }
    }

    fn mapping(&self, at: Avma) -> Option<&Mapping> {
        let after = self.maps.partition_point(|m| m.range.end <= at);
        self.maps.get(after).filter(|m| m.range.contains(&at))
    }

    /// Whether an address belongs to a load of a file: the file's code is mapped there, or only private memory or nothing between its
    /// mappings.
    fn is_own(&self, file: FileId, at: Avma, mapping: Option<&Mapping>) -> bool {
        let within = || self.spans.iter().any(|(id, span)| *id == file && span.contains(&at));
        match mapping {
            Some(m) if FileId { device: m.device, inode: m.inode } == file => m.exec,
            Some(m) => !m.shared && within(),
            None => within(),
        }
    }

    /// Whether the bytes are a jump of another program into code, which equals the engine's jump in some bytes.
    fn is_anothers_jump(&self, at: Avma, now: &[u8]) -> bool {
        let [JUMP, displacement @ ..] = now else { return false };
        let Ok(displacement) = displacement.try_into().map(i32::from_le_bytes) else { return false };
        self.mapping(at.offset(5 + i64::from(displacement))).is_some_and(|m| m.exec)
    }
}

/// The last bytes that the engine wrote, if they may be a displacement.
fn displacement(write: &TextWrite) -> &[u8] {
    write.old_bytes().last_chunk::<DISPLACEMENT>().map_or(&[], |bytes| bytes)
}

/// Whether the bytes that the engine wrote lead to this code.
fn leads_to(write: &TextWrite, code: &AvmaRange) -> bool {
    let Some(bytes) = write.old_bytes().last_chunk::<DISPLACEMENT>() else { return false };
    let next = write.at.offset(i64::from(write.len));
    code.contains(&next.offset(i64::from(i32::from_le_bytes(*bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 5] = [0xe9, 0x11, 0x22, 0x33, 0x44];
    const ORIGINAL: [u8; 5] = [0x55, 0x48, 0x89, 0xe5, 0x90];

    fn write() -> TextWrite {
        let mut write = TextWrite { at: Avma(0x1000), len: 5, old: [0; 8], new: [0; 8] };
        write.old[..5].copy_from_slice(&OURS);
        write.new[..5].copy_from_slice(&ORIGINAL);
        write
    }

    /// The state, and the content of memory after the writes of the state were made.
    fn after(mut now: [u8; 5]) -> (BytesState, [u8; 5]) {
        let state = classify(&write(), &now);
        if let BytesState::Mixed { ours, .. } = &state {
            for part in ours {
                let from = (part.at.0 - 0x1000) as usize;
                let place = &mut now[from..from + usize::from(part.len)];
                assert_eq!(place, part.old_bytes());
                place.copy_from_slice(part.new_bytes());
            }
        }
        (state, now)
    }

    #[test]
    fn whole_states() {
        assert_eq!(classify(&write(), &OURS), BytesState::Woven);
        assert_eq!(classify(&write(), &ORIGINAL), BytesState::Original);
        assert_eq!(classify(&write(), &[0xe9, 9, 8, 7, 6]), BytesState::Foreign);
        assert_eq!(classify(&write(), &[0; 5]), BytesState::Foreign);
        assert_eq!(classify(&write(), &[0xcc, 0x48, 0x89, 0xe5, 0x90]), BytesState::Breakpoint);
    }

    #[test]
    fn a_uprobe_that_is_there_or_was() {
        let with = |i: usize, byte| {
            let mut now = OURS;
            now[i] = byte;
            now
        };
        for i in 0..5 {
            let (state, now) = after(with(i, BREAKPOINT));
            assert!(matches!(state, BytesState::Mixed { .. }), "{i}");
            let mut expected = ORIGINAL;
            expected[i] = BREAKPOINT;
            assert_eq!(now, expected, "{i}");
            let (state, now) = after(with(i, ORIGINAL[i]));
            assert!(matches!(state, BytesState::Mixed { .. }), "{i}");
            assert_eq!(now, ORIGINAL, "{i}");
        }
    }

    #[test]
    fn what_leads_to_our_code() {
        let to = 0x1005 + 0x4433_2211;
        assert!(leads_to(&write(), &(Avma(to)..Avma(to + 1))));
        assert!(!leads_to(&write(), &(Avma(to + 1)..Avma(to + 2))));
        assert!(!leads_to(&TextWrite { len: 2, ..write() }, &(Avma(0)..Avma(u64::MAX))));
    }
}
