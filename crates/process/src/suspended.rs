//! Program counters that wait in memory outside of the threads' stacks: contexts that a program has suspended in a signal handler, and
//! remains of such frames. They are looked for while the target runs, and looked at again while all its threads are held.

use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use ingraft_model::{Avma, AvmaRange, Tid};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use crate::frame;
use crate::procfs::{self, Mapping};
use crate::room::MAPS_NAME;
use crate::stack::{contains, is_saved_context};
use crate::target::Target;

const PAGE: u64 = 4096;
/// Largest number of pages whose state is asked for.
const PAGES_MAX: u64 = 1 << 28;
/// Number of pages whose state is asked for at once.
const AT_ONCE: u64 = 1 << 16;
/// Length in bytes of the longest piece of memory that is read at once: it stays in a processor's cache.
const PIECE: u64 = 256 << 10;
/// Largest number of words that are looked at again.
const WORDS_MAX: usize = 1 << 14;
/// Number of words that are compared at once.
const BLOCK: usize = 64;

/// Memory that a program has written and that is not swapped out.
#[derive(Clone, Debug, Default)]
pub struct WrittenMemory {
    /// Ranges of at most 256 KiB.
    pub pieces: Vec<AvmaRange>,
    /// Whether there is more: pages in swap, or pages of which the kernel says nothing.
    pub is_part: bool,
}

/// Places of words that point into certain ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Words {
    at: Vec<Avma>,
    is_part: bool,
}

impl Words {
    /// The words that were found in memory.
    pub fn new(mut at: Vec<Avma>, memory: &WrittenMemory) -> Self {
        at.sort_unstable();
        let is_part = memory.is_part || at.len() > WORDS_MAX;
        at.truncate(WORDS_MAX);
        Words { at, is_part }
    }

    /// Whether there may be more such words.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    pub(crate) fn places(&self) -> &[Avma] {
        &self.at
    }
}

/// A thread on its own stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    /// Mapping of the stack.
    pub(crate) stack: AvmaRange,
    /// Stack pointer of the thread.
    pub(crate) sp: u64,
}

/// Meaning of a word that points into code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// Nothing goes on there: remains of a call, or of a context whose thread has gone on.
    Remains,
    /// The program counter in a signal frame that is certain.
    Frame,
    /// The program counter of another context, such as a copy of a frame's.
    Context,
    /// Anything else.
    Unknown,
}

impl Target {
    /// Memory that the program has written, without the engine's own.
    pub fn written_memory(&self, except: &[AvmaRange]) -> WrittenMemory {
        let mut memory = WrittenMemory::default();
        let maps = self.maps().unwrap_or_default();
        let pagemap = self.pagemap();
        memory.is_part |= maps.is_empty() || pagemap.is_none();
        let Some(pagemap) = pagemap else { return memory };
        let ours = |m: &Mapping| except.iter().any(|e| e.start < m.range.end && m.range.start < e.end);
        let device = |m: &Mapping| m.shared && m.path.starts_with("/dev") && !m.path.starts_with("/dev/shm");
        let mut left = PAGES_MAX;
        for m in maps.iter().filter(|m| m.read && m.write && m.path.as_os_str() != MAPS_NAME && !device(m) && !ours(m))
        {
            let pages = m.len() / PAGE;
            if pages > left {
                memory.is_part = true;
                continue;
            }
            left -= pages;
            let first = m.range.start.0 / PAGE;
            for start in (first..first + pages).step_by(AT_ONCE as usize) {
                let count = AT_ONCE.min(first + pages - start);
                let mut entries = vec![0; 8 * count as usize];
                if pagemap.read_exact_at(&mut entries, 8 * start).is_err() {
                    memory.is_part = true;
                    break;
                }
                let states = entries.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry));
                add_pages(&mut memory, start, states, m.shared);
            }
        }
        memory
    }

    fn pagemap(&self) -> Option<std::fs::File> {
        let open = |tid: Tid| std::fs::File::open(format!("/proc/{}/task/{tid}/pagemap", self.pid().0)).ok();
        let lives = |tid: &Tid| procfs::thread_stat(*tid).is_some_and(|stat| !stat.is_dead());
        open(self.threads().ok()?.into_iter().find(lives)?)
    }

    /// Places of the words in a piece of memory that point into one of the sorted ranges.
    pub fn words_into(&self, piece: &AvmaRange, ranges: &[AvmaRange]) -> Vec<Avma> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return Vec::new() };
        let (low, span) = (first.start.0, last.end.0 - first.start.0);
        let mut bytes = vec![0u8; piece.end.0.saturating_sub(piece.start.0).min(PIECE) as usize];
        let remote = [RemoteIoVec { base: piece.start.0 as usize, len: bytes.len() }];
        let pid = nix::unistd::Pid::from_raw(self.pid().0);
        let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &remote);
        // The kernel may permit only /proc/PID/mem. Memory that is gone holds no word.
        let read = read.or_else(|_| self.read_some(piece.start, &mut bytes)).unwrap_or(0);
        let into = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes).wrapping_sub(low) < span;
        let mut found = Vec::new();
        for (number, block) in bytes[..read].as_chunks().0.chunks(BLOCK).enumerate() {
            // The whole block is compared without a branch.
            if !block.iter().fold(false, |any, word| any | into(word)) {
                continue;
            }
            let at = |i: usize| piece.start.offset(8 * (number * BLOCK + i) as i64);
            let hits = block
                .iter()
                .enumerate()
                .filter(|(_, word)| into(word) && contains(ranges, Avma(u64::from_le_bytes(**word))));
            found.extend(hits.map(|(i, _)| at(i)));
        }
        found
    }

    /// Meaning of the word at `slot`, which points to `pc` in code. All threads are held.
    pub(crate) fn meaning(&self, slot: Avma, pc: Avma, homes: &[Home]) -> Meaning {
        // The dead part of a stack ends above the red zone of its thread.
        if homes.iter().any(|home| home.stack.contains(&slot) && slot.0 < home.sp.saturating_sub(frame::RED_ZONE)) {
            return Meaning::Remains;
        }
        let word = |at: Avma| self.read_u64(at).ok();
        let (flags, segments) = (word(slot.offset(8)), word(slot.offset(16)));
        if flags.is_some() && segments.is_some() && is_saved_context(flags.as_ref(), segments.as_ref()) {
            let sp = word(slot.offset(-8)).map(Avma);
            // A thread that runs on its own stack has gone on since it was interrupted there.
            if sp.is_some_and(|sp| homes.iter().any(|home| home.stack.contains(&sp))) {
                return Meaning::Remains;
            }
            let is_frame = slot.0.checked_sub(frame::RIP).is_some_and(|frame| self.is_frame(Avma(frame)));
            return if is_frame { Meaning::Frame } else { Meaning::Context };
        }
        let mut before = [0; 5];
        match self.read(pc.offset(-5), &mut before) {
            Ok(()) if follows_call(before) => Meaning::Remains,
            _ => Meaning::Unknown,
        }
    }

    /// Whether a whole signal frame is here: few flags, no link, and the mark in the extended state to which it points.
    fn is_frame(&self, at: Avma) -> bool {
        let word = |offset: u64| self.read_u64(at.offset(offset as i64)).ok();
        let has_form =
            word(frame::FLAGS).is_some_and(|flags| flags <= frame::FLAGS_MAX) && word(frame::FLAGS + 8) == Some(0);
        let marked = |state: u64| {
            let mark = self.read_u64(Avma(state.wrapping_add(frame::FP_SW as u64)));
            mark.is_ok_and(|mark| mark as u32 == frame::FP_XSTATE_MAGIC1)
        };
        has_form && word(frame::FP_STATE).is_some_and(marked)
    }
}

/// Whether these bytes end in a call: the address behind them is a return address, which calls of generated code leave on stacks.
fn follows_call(before: [u8; 5]) -> bool {
    const REGISTERS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
    before[0] == 0xe8 || before[3] == 0xff && REGISTERS.contains(&before[4])
}

/// Adds the pages that are in memory. Pages of a private file mapping that still are the file's were not written.
fn add_pages(memory: &mut WrittenMemory, first: u64, states: impl Iterator<Item = u64>, is_shared: bool) {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    for (page, state) in (first..).zip(states) {
        memory.is_part |= state & SWAPPED != 0;
        if state & PRESENT == 0 || state & FILE != 0 && !is_shared {
            continue;
        }
        let (start, end) = (Avma(page * PAGE), Avma((page + 1) * PAGE));
        match memory.pieces.last_mut() {
            Some(last) if last.end == start && end.0 - last.start.0 <= PIECE => last.end = end,
            _ => memory.pieces.push(start..end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_memory_are_joined_to_pieces() {
        let present = 1 << 63;
        let mut memory = WrittenMemory::default();
        add_pages(&mut memory, 16, [present, present, 0, present, present | 1 << 61].into_iter(), false);
        assert_eq!(memory.pieces, [Avma(0x10000)..Avma(0x12000), Avma(0x13000)..Avma(0x14000)]);
        assert!(!memory.is_part);
        add_pages(&mut memory, 20, [1 << 62].into_iter(), false);
        assert!(memory.is_part, "a page in swap may hold anything");
        add_pages(&mut memory, 100, std::iter::repeat_n(present | 1 << 61, 100), true);
        assert!(memory.pieces.iter().all(|piece| piece.end.0 - piece.start.0 <= PIECE));
    }

    #[test]
    fn words_are_found_in_memory() {
        let target = Target::open_unchecked(crate::sys::own_pid()).expect("this process");
        let into = Avma(0x1234_5000)..Avma(0x1234_6000);
        let mut memory = vec![0u64; 100_000];
        for i in [0, 63, 64, 70_000, 99_999] {
            memory[i] = 0x1234_5678;
        }
        memory[500] = 0x1234_6000;
        let start = memory.as_ptr() as u64;
        let at = |i: u64| Avma(start + 8 * i);
        let found: Vec<Avma> = (0..4)
            .map(|n| at(n * 32_768)..at(((n + 1) * 32_768).min(100_000)))
            .flat_map(|piece| target.words_into(&piece, std::slice::from_ref(&into)))
            .collect();
        assert_eq!(found, [0, 63, 64, 70_000, 99_999].map(at));
        let written = target.written_memory(&[]);
        assert!(written.pieces.iter().any(|piece| piece.contains(&at(70_000))));
    }

    #[test]
    fn return_addresses_are_told_by_the_call_before_them() {
        assert!(follows_call([0xe8, 1, 2, 3, 4]) && follows_call([0, 0, 0, 0xff, 0xd3]));
        assert!(!follows_call([0x90; 5]) && !follows_call([0, 0, 0, 0xff, 0x25]));
    }
}
