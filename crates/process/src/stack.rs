//! The stacks of held threads: program counters that are saved in signal frames, and words that look like saved program counters.

use std::io::IoSliceMut;
use std::ops::Range;

use ingraft_model::{Avma, AvmaRange};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use crate::frame::{self, FrameRecognition};
use crate::procfs::Mapping;
use crate::sys;
use crate::target::Target;

/// Length of the part of a stack whose end is not known that is read, from the stack pointer upwards, in bytes.
const DEPTH: u64 = 256 << 10;
/// Largest length of all stacks together that is read in one stop, in bytes. Beyond it, `DEPTH` bytes of each stack are read.
const ALL_MAX: u64 = 32 << 20;
/// Maximum depth of nested stacks, as of a signal on the alternate stack during a signal on the main stack.
const NESTING: usize = 8;
/// Maximum number of ranges in one system call (UIO_MAXIOV).
const BATCH: usize = 1024;
const CS_64: u16 = 0x33;

/// A program counter saved in a signal frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SavedPc {
    /// Index of the thread in the caller's list.
    pub(crate) thread: usize,
    /// Address of the saved program counter.
    pub(crate) slot: Avma,
    /// The program counter.
    pub(crate) pc: Avma,
    /// Whether the frame may be that of a fault, whose handler may skip the instruction.
    pub(crate) may_be_fault: bool,
}

/// The top of the stack of a held thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StackTop {
    /// Index of the thread in the caller's list.
    pub(crate) thread: usize,
    /// The thread's stack pointer.
    pub(crate) sp: u64,
    /// Address of the thread's control block, which glibc and musl place at the end of its stack; 0 if it is not known.
    pub(crate) block: u64,
}

/// The live parts of stacks, read in one stop.
#[derive(Debug, Default)]
pub(crate) struct LiveStacks {
    parts: Vec<StackPart>,
    words: Vec<u64>,
    /// Whether live parts of stacks were left out, because they are too long or too many.
    is_cut: bool,
}

#[derive(Debug)]
struct StackPart {
    /// The top at which the part begins.
    top: StackTop,
    start: u64,
    /// Range of the part's words in [`LiveStacks::words`].
    words: Range<usize>,
}

impl LiveStacks {
    /// Reads the stacks of threads.
    pub(crate) fn read(target: &Target, maps: &[Mapping], tops: &[StackTop]) -> Self {
        let mut stacks = LiveStacks::default();
        stacks.add(target, maps, tops);
        stacks
    }

    fn add(&mut self, target: &Target, maps: &[Mapping], tops: &[StackTop]) {
        let first = self.parts.len();
        let mut len = self.words.len();
        for top in tops {
            // Both C libraries keep the address of the block in its first word. Other runtimes use the register otherwise.
            let is_block = || target.read_u64(Avma(top.block)).is_ok_and(|word| word == top.block);
            let Some(mut live) = live_part(maps, top, is_block) else { continue };
            let end = live.end.min(live.start + DEPTH);
            if end < live.end && 8 * len as u64 + (live.end - live.start) > ALL_MAX {
                live.end = end;
                self.is_cut = true;
            }
            let words = ((live.end - live.start) / 8) as usize;
            self.parts.push(StackPart { top: *top, start: live.start, words: len..len + words });
            len += words;
        }
        self.words.resize(len, 0);
        for parts in self.parts[first..].chunks(BATCH) {
            read_parts(target, parts, &mut self.words);
        }
    }

    /// Whether live parts of stacks were left out, which may hold signal frames.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// A word of the stack of a thread, if it was read.
    pub(crate) fn word(&self, thread: usize, at: u64) -> Option<u64> {
        let holds = |p: &&StackPart| p.top.thread == thread && p.start <= at && at - p.start < 8 * p.words.len() as u64;
        // The main stacks come first, in the order of the threads.
        let guess = self.parts.partition_point(|p| p.top.thread < thread);
        let part = self.parts.get(guess).filter(holds).or_else(|| self.parts.iter().find(holds))?;
        let offset = at - part.start;
        offset.is_multiple_of(8).then(|| self.words.get(part.words.start + (offset / 8) as usize).copied())?
    }

    /// Whether a word was read.
    pub(crate) fn has(&self, at: Avma) -> bool {
        self.parts.iter().any(|p| p.start <= at.0 && at.0 - p.start < 8 * p.words.len() as u64)
    }

    /// The words at the top of each stack, at most `count` of each.
    pub(crate) fn tops(&self, count: usize) -> impl Iterator<Item = &[u64]> {
        let words =
            move |part: &StackPart| self.words.get(part.words.start..part.words.end.min(part.words.start + count));
        self.parts.iter().filter_map(words)
    }

    /// The program counters that are saved in signal frames on these stacks.
    pub(crate) fn saved_pcs(&mut self, target: &Target, maps: &[Mapping], frames: &FrameRecognition) -> Vec<SavedPc> {
        let mut found: Vec<SavedPc> = Vec::new();
        let mut from = 0;
        for depth in 0.. {
            let mut elsewhere: Vec<StackTop> = Vec::new();
            for part in &self.parts[from..] {
                let words = &self.words[part.words.clone()];
                for (i, &word) in words.iter().enumerate() {
                    let at = |offset: u64| words.get(i + (offset / 8) as usize).copied();
                    let may_be = match frames {
                        FrameRecognition::None => false,
                        // A library that was loaded later may have code of its own to which handlers return.
                        FrameRecognition::Returning(to) => to.binary_search(&Avma(word)).is_ok() || has_form(at),
                        FrameRecognition::Formed => has_form(at),
                    };
                    if !may_be {
                        continue;
                    }
                    let (Some(pc), Some(sp), Some(cs)) = (at(frame::RIP), at(frame::RSP), at(frame::CS)) else {
                        continue;
                    };
                    if cs as u16 != CS_64 {
                        continue;
                    }
                    let slot = Avma(part.start + 8 * i as u64 + frame::RIP);
                    let may_be_fault = frame::may_be_fault([at(frame::SIGINFO), at(frame::SIGINFO + 8)]);
                    found.push(SavedPc { thread: part.top.thread, slot, pc: Avma(pc), may_be_fault });
                    if !self.has(Avma(sp)) && !elsewhere.iter().any(|top| top.sp == sp) {
                        elsewhere.push(StackTop { sp, ..part.top });
                    }
                }
            }
            if elsewhere.is_empty() || depth == NESTING {
                self.is_cut |= !elsewhere.is_empty();
                break;
            }
            from = self.parts.len();
            self.add(target, maps, &elsewhere);
        }
        found.sort_by_key(|s| s.slot);
        found.dedup_by_key(|s| s.slot);
        found
    }

    /// Whether any saved program counter points into one of the sorted ranges, whatever code restores it. In a signal frame, the flags and
    /// the code segment follow it (`struct sigcontext`). Other words are ignored, because they may be remains of a scratch register.
    pub(crate) fn point_into(&self, ranges: &[AvmaRange]) -> bool {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return false };
        let hull = first.start.0..last.end.0;
        let into = |w: u64| hull.contains(&w) && contains(ranges, Avma(w));
        let mut words = self.words.iter().enumerate();
        words.any(|(i, &w)| into(w) && is_saved_context(self.words.get(i + 1), self.words.get(i + 2)))
    }
}

/// Whether the words from a frame's first one on have the form that the kernel gives to a handler's frame: few flags, no link, and a whole
/// context.
fn has_form(at: impl Fn(u64) -> Option<u64>) -> bool {
    let (flags, link, rip) = (at(frame::FLAGS), at(frame::FLAGS + 8), at(frame::RIP));
    let is_whole = at(frame::RIP + 8).is_some() && at(frame::CS).is_some();
    let is_context = is_saved_context(at(frame::RIP + 8).as_ref(), at(frame::CS).as_ref());
    flags.is_some_and(|flags| flags <= frame::FLAGS_MAX) && link == Some(0) && rip.is_some() && is_whole && is_context
}

/// Whether these can be the flags and segments after a saved program counter; true if they were not read.
pub(crate) fn is_saved_context(flags: Option<&u64>, segments: Option<&u64>) -> bool {
    const ALWAYS_ONE: u64 = 1 << 1;
    const HIGHEST: u32 = 22;
    const CS_64: u64 = 0x33;
    let (Some(flags), Some(segments)) = (flags, segments) else { return true };
    flags & ALWAYS_ONE != 0 && flags >> HIGHEST == 0 && segments & 0xffff == CS_64
}

/// Whether an address lies in one of the sorted ranges.
pub fn contains(ranges: &[AvmaRange], at: Avma) -> bool {
    let i = ranges.partition_point(|r| r.end <= at);
    ranges.get(i).is_some_and(|r| r.contains(&at))
}

/// Live part of a stack: from the red zone below the stack pointer to the end of the stack. It is known of the main thread's stack, and of a
/// thread's own one, which ends at the thread's control block. Of another stack, as that of a fibre, at most `DEPTH` bytes. `is_block` tells
/// whether the address of the block is that of one.
fn live_part(maps: &[Mapping], top: &StackTop, is_block: impl FnOnce() -> bool) -> Option<Range<u64>> {
    let i = maps.partition_point(|m| m.range.end.0 <= top.sp);
    let m = maps.get(i).filter(|m| m.range.start.0 <= top.sp && m.read)?;
    let start = top.sp.saturating_sub(frame::RED_ZONE).max(m.range.start.0) & !7;
    let end = m.range.end.0.min(start + DEPTH);
    let own = start..=m.range.end.0.min(start + ALL_MAX);
    let end = match top.block {
        _ if m.path.as_os_str() == "[stack]" => m.range.end.0,
        // A near end of the mapping is read in any case.
        block if block < end => end,
        block if own.contains(&block) && is_block() => block & !7,
        _ => end,
    };
    Some(start..end)
}

fn read_parts(target: &Target, parts: &[StackPart], words: &mut [u64]) {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return };
    let all = first.words.start..last.words.end;
    let mut bytes = vec![0u8; 8 * all.len()];
    let remote: Vec<RemoteIoVec> =
        parts.iter().map(|p| RemoteIoVec { base: p.start as usize, len: 8 * p.words.len() }).collect();
    sys::step();
    let pid = nix::unistd::Pid::from_raw(target.pid().0);
    let whole = process_vm_readv(pid, &mut [IoSliceMut::new(&mut bytes)], &remote).is_ok_and(|n| n == bytes.len());
    if !whole {
        // One of the parts cannot be read to its end, so read each part separately.
        for part in parts {
            let at = 8 * (part.words.start - all.start);
            let _ = target.read_some(Avma(part.start), &mut bytes[at..at + 8 * part.words.len()]); // Bytes that cannot be read stay 0.
        }
    }
    for (word, chunk) in words[all].iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.try_into().map(u64::from_le_bytes).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_part_of_a_stack_ends_where_the_stack_does() {
        let text = "10000000-20000000 rw-p 00000000 00:00 0 \n30000000-30400000 rw-p 00000000 00:00 0 [stack]\n";
        let maps = crate::procfs::parse_maps(text.as_bytes());
        let live = |sp, block, is_block| live_part(&maps, &StackTop { thread: 0, sp, block }, || is_block);
        let red = |sp| sp - frame::RED_ZONE;
        assert_eq!(live(0x3000_1000, 0, false), Some(red(0x3000_1000)..0x3040_0000), "of the main thread");
        assert_eq!(live(0x1000_1000, 0x1080_0010, true), Some(red(0x1000_1000)..0x1080_0010), "of a thread");
        for (block, is_block, what) in [
            (0x1080_0010, false, "no block"),
            (0x1f00_0000, true, "too far away"),
            (0x1000_0800, true, "below the stack pointer"),
            (0, true, "unknown"),
            (0x3000_0000, true, "in another mapping"),
        ] {
            assert_eq!(live(0x1000_1000, block, is_block), Some(red(0x1000_1000)..red(0x1000_1000) + DEPTH), "{what}");
        }
        assert_eq!(live(0x2100_0000, 0, false), None, "not mapped");
    }

    #[test]
    fn a_frame_is_known_by_its_form() {
        // SAFETY: integers only.
        let zero: sys::Regs = unsafe { std::mem::zeroed() };
        let regs = sys::Regs { rip: 0x40_1000, rsp: 0x7ffe_0000, eflags: 0x246, cs: 0x33, ss: 0x2b, ..zero };
        let frame = frame::build(&regs, 0, &[0; 832], 0x7ffd_fff0, 0x40_2000).expect("an XSAVE area");
        let words: Vec<u64> =
            frame.bytes.as_chunks().0.iter().map(|chunk: &[u8; 8]| u64::from_le_bytes(*chunk)).collect();
        let from = |first: usize| has_form(|offset| words.get(first + (offset / 8) as usize).copied());
        assert!(from(0));
        assert!((1..words.len()).all(|first| !from(first)), "nowhere else");
        // the link of the context is 0, and its flags are few
        for (offset, value) in [(frame::FLAGS + 8, 1), (frame::FLAGS, 8), (frame::CS, 0x23), (frame::RIP + 8, 0)] {
            let changed = |at: u64| if at == offset { Some(value) } else { words.get((at / 8) as usize).copied() };
            assert!(!has_form(changed), "{offset}");
        }
    }
}
