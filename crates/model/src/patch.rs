//! A change to a target as a value: what is written where, what must stand there before, and where program counters go.
//! `codegen` makes it, its verifier proves it, `process` applies it as a whole or not at all.

use crate::addr::{Avma, AvmaRange};

/// Bytes of original text that are replaced: at most 8, never across a page boundary, so that a kill of the writer
/// cannot fall between two pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextWrite {
    /// Address of the first byte.
    pub at: Avma,
    /// Number of bytes, 1 to 8.
    pub len: u8,
    /// Bytes before the write; if the target has others, the whole plan is refused. Bytes from `len` on are 0.
    pub old: [u8; 8],
    /// Bytes after the write. Bytes from `len` on are 0.
    pub new: [u8; 8],
}

impl TextWrite {
    /// The bytes before.
    pub fn old_bytes(&self) -> &[u8] {
        &self.old[..usize::from(self.len.min(8))]
    }

    /// The bytes afterwards.
    pub fn new_bytes(&self) -> &[u8] {
        &self.new[..usize::from(self.len.min(8))]
    }

    /// The write that undoes this one.
    pub fn inverse(&self) -> Self {
        TextWrite { at: self.at, len: self.len, old: self.new, new: self.old }
    }
}

/// A thread whose program counter is `from` goes on at `to`; both places are equivalent for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct PcMove {
    /// Program counter of a stopped thread (or in the saved context of a signal frame).
    pub from: Avma,
    /// Address where the thread goes on.
    pub to: Avma,
}

/// New code in an arena, written before the stop: nothing leads there yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArenaCode {
    /// Address of the first byte.
    pub at: Avma,
    /// The code.
    pub bytes: Vec<u8>,
}

/// A change that is applied as a whole or not at all.
///
/// Order: `code` is written while the target runs (no springboard leads there yet); then, with every thread stopped, the `text`
/// is compared with `old`, program counters are moved, and the `text` is written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PatchPlan {
    /// New code, in arenas.
    pub code: Vec<ArenaCode>,
    /// Writes to text and to live jumps of arenas, sorted by address, without overlap.
    pub text: Vec<TextWrite>,
    /// Moves of threads that stand inside of code that changes, sorted by `from`. A thread that stands inside a `text` write
    /// (not at its first byte) and has no move here makes the plan fail with nothing changed.
    pub moves: Vec<PcMove>,
    /// Code from which there is no move: a thread inside runs on in short slices until it stands outside, or at the `from` of a move.
    /// Sorted. Used by removal, for the rare slow paths.
    pub step_out: Vec<AvmaRange>,
    /// Ranges of arena code that nothing leads to after this plan: once no program counter, saved ones in signal frames included, points inside, they
    /// may be used again. Sorted.
    pub retired: Vec<AvmaRange>,
}
