//! Program counters that wait in memory outside of the threads' stacks: contexts that a program has suspended in a signal handler. They are
//! looked for while all threads are held, or before that if there is much memory.

use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, Tid};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use crate::frame;
use crate::procfs::{self, Mapping};
use crate::stack::{contains, is_saved_context};
use crate::survey::ID_OFFSETS;
use crate::target::Target;
use crate::target_memory::MAPS_NAME;

/// Largest number of pages whose state is asked for.
const PAGES_MAX: u64 = 1 << 28;
/// Number of pages whose state is asked for at once.
const AT_ONCE: u64 = 1 << 16;
/// Length in bytes of the longest piece of memory that is read at once: it stays in a processor's cache.
const PIECE: u64 = 256 << 10;
/// Largest number of words that are looked at again.
const WORDS_MAX: usize = 1 << 12;
/// Number of bytes of memory that are searched in a stop, which takes some 20 ms.
const IN_STOP: u64 = 64 << 20;
/// Number of pages whose state is asked for in a stop. The address space of a program may be far larger than its memory.
const PAGES_IN_STOP: u64 = 1 << 20;
/// Largest number of looks for the stacks of ended threads in one stop.
const LOOKS_FOR_STACKS: usize = 64;
/// Number of bytes above an address in which the end of its stack is looked for.
const HEIGHT: usize = 64 << 10;
/// Number of words of glibc's control block of a thread, at most.
const BLOCK_WORDS: usize = 512;
/// The segments in the signal frame of a 64-bit program: cs, gs, fs and ss. They are the second word after the program counter.
const SEGMENTS: [u8; 8] = 0x002b_0000_0000_0033_u64.to_le_bytes();
/// Number of words that are compared at once.
const BLOCK: usize = 64;

/// Places of words that point into certain ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CodePointers {
    found: FoundPointers,
    /// The ranges, sorted.
    into: Vec<AvmaRange>,
    /// Memory that is not searched.
    except: Vec<AvmaRange>,
    /// Whether no thread was in the ranges before the search, and nothing led to them.
    settled: bool,
    /// Whether a context that the search may have missed must not be risked.
    strict: bool,
    /// Whether the search is short enough to be repeated in a stop.
    is_short: bool,
}

/// Outcome of a search.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FoundPointers {
    /// Places of the words.
    pub(crate) at: Vec<Avma>,
    /// Whether these are all: nothing is in swap, and no context can have been suspended since the search.
    pub(crate) all: bool,
    /// Places of the program counters of all signal frames. They are kept if there is too much memory to search it in a stop, and if a
    /// context that was missed must not be risked.
    pub(crate) frames: Vec<Avma>,
}

impl CodePointers {
    /// Searches the written memory of a target for words that point into the sorted ranges `into`.
    pub fn search(target: &Target, into: Vec<AvmaRange>, except: Vec<AvmaRange>) -> Self {
        let memory = target.written_memory(&except);
        let is_short = memory.bytes() <= IN_STOP && memory.pages <= PAGES_IN_STOP;
        CodePointers { found: in_memory(target, &memory, &into), into, except, settled: false, strict: false, is_short }
    }

    /// The same, where an earlier stop has shown that no thread is in the ranges, and where nothing leads to them any more. A context that
    /// is there in a later stop was suspended before the search, or has been at two places on its stack since then.
    pub fn search_settled(target: &Target, into: Vec<AvmaRange>, except: Vec<AvmaRange>) -> Self {
        CodePointers { settled: true, ..CodePointers::search(target, into, except) }
    }

    /// Searches for an insertion. If the program has more memory than can be searched in a stop, and a context is suspended anywhere in it,
    /// others may be suspended after the search, and nothing is inserted ([`ApplyError::Preempts`](crate::ApplyError::Preempts)).
    pub fn search_strictly(target: &Target, into: Vec<AvmaRange>, except: Vec<AvmaRange>) -> Self {
        CodePointers { strict: true, ..CodePointers::search(target, into, except) }
    }

    /// The places, looked for again now that all threads are held. A context may have been suspended since the search. In a program with
    /// more memory than can be searched in a stop, they are those of the search.
    pub(crate) fn now(&self, target: &Target) -> FoundPointers {
        if self.is_short {
            let memory = target.written_memory(&self.except);
            return FoundPointers { frames: Vec::new(), ..in_memory(target, &memory, &self.into) };
        }
        let frames = if self.strict { self.found.frames.clone() } else { Vec::new() };
        FoundPointers { all: self.found.all && self.settled, frames, ..self.found.clone() }
    }
}

/// Memory that a program has written and that is not in swap.
#[derive(Clone, Debug, Default)]
struct WrittenMemory {
    /// Ranges of at most 256 KiB.
    pieces: Vec<AvmaRange>,
    /// Number of pages whose state was asked for.
    pages: u64,
    /// Whether there is more: pages in swap, or pages of which the kernel says nothing.
    is_part: bool,
}

impl WrittenMemory {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end.0 - piece.start.0).sum()
    }
}

fn in_memory(target: &Target, memory: &WrittenMemory, into: &[AvmaRange]) -> FoundPointers {
    let mut found = FoundPointers::default();
    for piece in &memory.pieces {
        target.add_words(piece, into, &mut found);
    }
    found.all = !memory.is_part && found.at.len() <= WORDS_MAX;
    found.at.truncate(WORDS_MAX);
    found.frames.truncate(WORDS_MAX);
    found
}

/// The stack of a thread that is on it, or that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ThreadStack {
    /// Addresses of the stack.
    pub(crate) stack: AvmaRange,
    /// End of the part that is not in use, above the red zone below the thread's stack pointer.
    pub(crate) free: u64,
}

/// Program counter of a context that no thread is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SuspendedPc {
    /// In a signal frame that is certain, and may be changed.
    Frame,
    /// Of another context, such as a copy of a frame's.
    Context,
}

impl Target {
    /// Memory that the program has written, without the engine's own.
    fn written_memory(&self, except: &[AvmaRange]) -> WrittenMemory {
        let mut memory = WrittenMemory::default();
        let (Ok(maps), Some(pagemap)) = (self.maps(), self.pagemap()) else {
            return WrittenMemory { is_part: true, ..memory };
        };
        let ours = |m: &Mapping| except.iter().any(|e| e.start < m.range.end && m.range.start < e.end);
        let device = |m: &Mapping| m.shared && m.path.starts_with("/dev") && !m.path.starts_with("/dev/shm");
        let mut left = PAGES_MAX;
        for m in maps.iter().filter(|m| m.read && m.write && m.path.as_os_str() != MAPS_NAME && !device(m) && !ours(m))
        {
            let pages = m.len() / PAGE;
            let Some(rest) = left.checked_sub(pages) else {
                memory.is_part = true;
                continue;
            };
            left = rest;
            memory.pages += pages;
            let first = m.range.start.0 / PAGE;
            for start in (first..first + pages).step_by(AT_ONCE as usize) {
                let count = AT_ONCE.min(first + pages - start);
                let mut entries = vec![0; 8 * count as usize];
                if pagemap.read_exact_at(&mut entries, 8 * start).is_err() {
                    memory.is_part = true;
                    break;
                }
                let states = entries.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry));
                memory.add(start, states, m.shared);
            }
        }
        memory
    }

    fn pagemap(&self) -> Option<std::fs::File> {
        let open = |tid: Tid| std::fs::File::open(format!("/proc/{}/task/{tid}/pagemap", self.pid().0)).ok();
        let lives = |tid: &Tid| procfs::thread_stat(*tid).is_some_and(|stat| !stat.is_dead());
        open(self.threads().ok()?.into_iter().find(lives)?)
    }

    /// Adds the places of the words in a piece of memory that point into one of the sorted ranges, and those of the program counters of
    /// signal frames.
    fn add_words(&self, piece: &AvmaRange, ranges: &[AvmaRange], found: &mut FoundPointers) {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
        let (low, span) = (first.start.0, last.end.0 - first.start.0);
        let mut bytes = vec![0u8; piece.end.0.saturating_sub(piece.start.0).min(PIECE) as usize];
        let remote = [RemoteIoVec { base: piece.start.0 as usize, len: bytes.len() }];
        let pid = nix::unistd::Pid::from_raw(self.pid().0);
        let read = process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &remote);
        // The kernel may permit only /proc/PID/mem. Memory that is gone holds no word.
        let read = read.or_else(|_| self.read_some(piece.start, &mut bytes)).unwrap_or(0);
        let into = |word: u64| word.wrapping_sub(low) < span;
        let words = bytes.get(..read).unwrap_or_default().as_chunks().0;
        for (number, block) in words.chunks(BLOCK).enumerate() {
            // The whole block is compared without a branch.
            let any = |any, word: &[u8; 8]| any | into(u64::from_le_bytes(*word)) | (*word == SEGMENTS);
            if !block.iter().fold(false, any) {
                continue;
            }
            for (i, bytes) in block.iter().enumerate() {
                let (at, word) = (piece.start.offset(8 * (number * BLOCK + i) as i64), u64::from_le_bytes(*bytes));
                if into(word) && contains(ranges, Avma(word)) {
                    found.at.push(at);
                }
                if *bytes == SEGMENTS {
                    found.frames.push(at.offset(-16));
                }
            }
        }
    }

    /// The stacks of ended threads that hold one of these addresses. The C library keeps them for later threads; nothing goes on there. The
    /// result may lack some.
    pub(crate) fn stacks_of_ended(&self, places: impl Iterator<Item = Avma>) -> Vec<ThreadStack> {
        let mut thread_stacks: Vec<ThreadStack> = Vec::new();
        let mut left = LOOKS_FOR_STACKS;
        for at in places {
            if left > 0 && !thread_stacks.iter().any(|thread_stack| thread_stack.stack.contains(&at)) {
                left -= 1;
                thread_stacks.extend(self.stack_of_ended(at));
            }
        }
        thread_stacks
    }

    /// The stack of an ended thread that holds this address. At the end of a stack, glibc keeps the control block of its thread. The id in it
    /// is 0 when the thread has ended, which is the kernel's work, and -1 when it was joined. The block begins with its own address, and the third word is its address again. It also
    /// has the beginning and the length of the stack.
    fn stack_of_ended(&self, at: Avma) -> Option<ThreadStack> {
        let start = Avma(at.0 & !(PAGE - 1));
        let mut bytes = vec![0; HEIGHT];
        let read = self.read_some(start, &mut bytes).ok()?;
        let words: Vec<u64> = bytes.get(..read)?.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let is_block = |&i: &usize| {
            let own = Some(start.0 + 8 * i as u64);
            words.get(i).copied() == own && words.get(i + 2).copied() == own
        };
        let index = (0..words.len()).find(is_block)?;
        let block = words.get(index..)?;
        let [id, _] = ID_OFFSETS;
        if (*block.get(id as usize / 8)? as i32).is_positive() {
            return None;
        }
        let from = start.0 + 8 * index as u64;
        let end = (from + 1).next_multiple_of(PAGE);
        let holds = |stack: &&[u64]| matches!(stack, [low, len] if *low <= at.0 && low % PAGE == 0 && low.checked_add(*len) == Some(end));
        let stack = block.windows(2).take(BLOCK_WORDS).find(holds)?;
        Some(ThreadStack { stack: Avma(*stack.first()?)..Avma(from), free: from })
    }

    /// Whether nothing goes on from the word at `slot`, which points into code: it lies in the unused part of a stack, or it belongs to an
    /// interruption of a thread that runs on its own stack. All threads are held, and `thread_stacks` are their stacks.
    pub(crate) fn is_remains(&self, slot: Avma, thread_stacks: &[ThreadStack]) -> bool {
        let stack_of = |at: Avma| thread_stacks.iter().find(|thread_stack| thread_stack.stack.contains(&at));
        match stack_of(slot) {
            Some(own) => slot.0 < own.free,
            // A thread that runs on its own stack is in no handler that has interrupted it there, unless that one runs on the same stack.
            None => {
                let sp = self.read_u64(slot.offset(-8)).ok().map(Avma);
                self.is_context(slot) && sp.is_some_and(|sp| stack_of(sp).is_some())
            }
        }
    }

    /// Whether the word at `slot`, which points into code, is followed by flags and segments, as the program counter of a context is.
    fn is_context(&self, slot: Avma) -> bool {
        let word = |at: Avma| self.read_u64(at).ok();
        let (flags, segments) = (word(slot.offset(8)), word(slot.offset(16)));
        flags.is_some() && segments.is_some() && is_saved_context(flags.as_ref(), segments.as_ref())
    }

    /// Kind of the context that goes on at the word at `slot`, which is no remains. `None` if it is that of no context.
    pub(crate) fn waiting(&self, slot: Avma) -> Option<SuspendedPc> {
        if !self.is_context(slot) {
            return None;
        }
        let is_frame = slot.0.checked_sub(frame::RIP).is_some_and(|frame| self.is_frame(Avma(frame)));
        Some(if is_frame { SuspendedPc::Frame } else { SuspendedPc::Context })
    }

    /// Whether the program counter at one of these places is that of a context which goes on, and which a signal has interrupted.
    pub(crate) fn preempts(&self, frames: &[Avma], thread_stacks: &[ThreadStack]) -> bool {
        frames
            .iter()
            .any(|slot| self.waiting(*slot) == Some(SuspendedPc::Frame) && !self.is_remains(*slot, thread_stacks))
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

impl WrittenMemory {
    /// Adds the pages that are in memory. Pages of a private file mapping that still are the file's were not written.
    fn add(&mut self, first: u64, states: impl Iterator<Item = u64>, is_shared: bool) {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE: u64 = 1 << 61;
        for (page, state) in (first..).zip(states) {
            self.is_part |= state & SWAPPED != 0;
            if state & PRESENT == 0 || state & FILE != 0 && !is_shared {
                continue;
            }
            let (start, end) = (Avma(page * PAGE), Avma((page + 1) * PAGE));
            match self.pieces.last_mut() {
                Some(last) if last.end == start && end.0 - last.start.0 <= PIECE => last.end = end,
                _ => self.pieces.push(start..end),
            }
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
        memory.add(16, [present, present, 0, present, present | 1 << 61].into_iter(), false);
        assert_eq!(memory.pieces, [Avma(0x10000)..Avma(0x12000), Avma(0x13000)..Avma(0x14000)]);
        assert!(!memory.is_part);
        memory.add(20, [1 << 62].into_iter(), false);
        assert!(memory.pieces.len() == 2 && memory.is_part, "a page in swap");
        memory.add(100, std::iter::repeat_n(present | 1 << 61, 100), true);
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
        memory[80_002] = u64::from_le_bytes(SEGMENTS);
        let mut found = FoundPointers::default();
        for piece in (0..4).map(|n| at(n * 32_768)..at(((n + 1) * 32_768).min(100_000))) {
            target.add_words(&piece, std::slice::from_ref(&into), &mut found);
        }
        assert_eq!(found.at, [0, 63, 64, 70_000, 99_999].map(at));
        assert_eq!(found.frames, [at(80_000)]);
        let written = target.written_memory(&[]);
        assert!(written.pieces.iter().any(|piece| piece.contains(&at(70_000))));
    }

    #[test]
    fn the_stack_of_an_ended_thread_is_told_by_its_control_block() {
        let target = Target::open_unchecked(crate::sys::own_pid()).expect("this process");
        let mut memory = vec![0u64; 8 * 512];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let block = start + 4 * PAGE - 0x900;
        let word = ((block - memory.as_ptr() as u64) / 8) as usize;
        let thread_stack = |memory: &[u64], at: u64| {
            std::hint::black_box(memory);
            target.stack_of_ended(Avma(at))
        };
        assert_eq!(thread_stack(&memory, start), None);
        memory[word] = block;
        memory[word + 2] = block;
        assert_eq!(thread_stack(&memory, start), None, "whose stack is not known");
        memory[word + 0x690 / 8] = start + PAGE;
        memory[word + 0x698 / 8] = 3 * PAGE;
        assert_eq!(thread_stack(&memory, start), None, "below the stack");
        let stack = Avma(start + PAGE)..Avma(block);
        assert_eq!(thread_stack(&memory, start + PAGE + 24), Some(ThreadStack { stack, free: block }));
        memory[word + 0x2d0 / 8] = u64::from(u32::MAX);
        assert!(thread_stack(&memory, start + PAGE + 24).is_some(), "a thread that was joined");
        memory[word + 0x2d0 / 8] = 77 | 5 << 32;
        assert_eq!(thread_stack(&memory, start + PAGE + 24), None, "a thread that runs");
    }
}
