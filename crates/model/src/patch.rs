//! A change to a target as a value: the bytes to write, the bytes expected there, and the moves of program counters. `codegen` generates
//! it, its verifier proves it, and `process` applies it as a whole or not at all.

use crate::addr::{Avma, AvmaRange};

/// A write of at most 8 bytes within one page. If the writer is killed, no write is done in one page and missing in the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TextWrite {
    /// Address of the first byte.
    pub at: Avma,
    /// Number of bytes, 1 to 8.
    pub len: u8,
    /// Bytes before the write. If the target has other bytes, the whole plan is refused. Bytes from `len` on are 0.
    pub old: [u8; 8],
    /// Bytes after the write. Bytes from `len` on are 0.
    pub new: [u8; 8],
}

impl TextWrite {
    /// Returns the bytes before the write.
    pub fn old_bytes(&self) -> &[u8] {
        &self.old[..usize::from(self.len.min(8))]
    }

    /// Returns the bytes after the write.
    pub fn new_bytes(&self) -> &[u8] {
        &self.new[..usize::from(self.len.min(8))]
    }

    /// Returns the write that undoes this one.
    pub fn inverse(&self) -> Self {
        TextWrite { at: self.at, len: self.len, old: self.new, new: self.old }
    }
}

/// Move of a program counter: a thread at `from` continues at `to`. For this thread both places are equivalent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct PcMove {
    /// Program counter of a stopped thread, or in the saved context of a signal frame.
    pub from: Avma,
    /// Address at which the thread continues.
    pub to: Avma,
}

/// New code in an arena. It is written before the stop, when no springboard leads there yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ArenaCode {
    /// Address of the first byte.
    pub at: Avma,
    /// The code.
    pub bytes: Vec<u8>,
}

/// A change of the target that is applied as a whole or not at all.
///
/// First, `code` is written while the target runs and no springboard leads there. Then all threads are stopped. The bytes of the target are
/// compared with the `old` bytes of `text`, program counters are moved, and `text` is written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PatchPlan {
    /// New code, in arenas.
    pub code: Vec<ArenaCode>,
    /// Writes to the program's text and to live jumps of arenas, sorted by address, without overlap.
    pub text: Vec<TextWrite>,
    /// Moves of threads whose program counter is inside of code that changes, sorted by `from`. If a thread is inside of a `text` write,
    /// not at its first byte, and has no move here, the plan fails and nothing is changed.
    pub moves: Vec<PcMove>,
    /// Code from which no move exists. A thread inside runs in short slices until it is outside, or at the `from` of a move. Sorted.
    /// Removal uses it for the rare slow paths.
    pub step_out: Vec<AvmaRange>,
    /// Ranges of arena code to which no code leads after this plan. They may be used again once no program counter points inside, those
    /// saved in signal frames included. Sorted.
    pub retired: Vec<AvmaRange>,
}
