//! Woven code as values: points, their snippets, and the records that undo them.

use ingraft_model::{Avma, AvmaRange, FirstInstruction, Gpr, PcMove, PointKind, Snippet, TextWrite};

use crate::code::block::{LINK, displacement, text_write};
use crate::code::body::Probe;
use crate::code::cost::Cost;

/// Data for the removal of a piece of woven code, complete without this crate. The plan of a removal is the concatenation of records.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RemovalRecord {
    /// Writes that restore the original bytes.
    pub text: Vec<TextWrite>,
    /// Moves of threads in the code, each to a resume address.
    pub moves: Vec<PcMove>,
    /// Ranges that threads leave by single-stepping.
    pub step_out: Vec<AvmaRange>,
    /// Range of code that is unused after the removal.
    pub code: AvmaRange,
}

/// Copy of a displaced jump, return or call. A point at the original instruction has its springboard over the copy. If a displaced jump
/// leads to the springboard of another point, that point redirects the copy of the jump to its own tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DisplacedCopy {
    /// Address of the original instruction in the text.
    pub original: Avma,
    /// First byte of the copy.
    pub copy: Avma,
    /// The first bytes of the copy, which a springboard overwrites.
    pub bytes: [u8; 5],
    /// Target of the copy of a jump, conditional or not; `None` for returns and calls.
    pub leads: Option<Avma>,
    /// Addresses at which control continues if a conditional jump is not taken: in the text, and after the copy. `None` for other
    /// instructions.
    pub next: Option<(Avma, Avma)>,
}

impl DisplacedCopy {
    /// Write that makes the copy of a jump lead to `to`; `None` if the instruction is no jump, or if a displacement does not reach.
    pub(crate) fn leading(&self, to: u64) -> Option<TextWrite> {
        let field = self.copy.0 + if self.bytes.starts_with(&[0x0f]) { 2 } else { 1 };
        let [old, new] = [self.leads?.0, to].map(|target| displacement(field + 4, target).map(i32::to_le_bytes));
        Some(text_write(field, &old?, &new?))
    }
}

/// Registers that hold arguments.
const ARGUMENTS: [Gpr; 6] = [Gpr(1), Gpr(2), Gpr(6), Gpr(7), Gpr(8), Gpr(9)];

/// A point that is woven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenPoint {
    /// Kind of the point.
    pub kind: PointKind,
    /// Resume address of a thread that has not changed anything since the point. For an entry and after a call, it is the first displaced
    /// instruction; elsewhere, the point's instruction. If a call itself leads to the base, it is the callee, or `None` if the callee is
    /// not known.
    pub resume: Option<Avma>,
    /// Layout of the stack at the point.
    pub stack: StackView,
    /// First byte of the springboard.
    pub at: Avma,
    /// First byte of the function.
    pub function: Avma,
    /// First instruction of the function, if it stays in place before the springboard. If it is repeated, the base takes back its effect on
    /// the stack pointer, and the tail begins with a copy of it.
    pub first: Option<FirstInstruction>,
    /// First byte of the base trampoline, to which the springboard leads.
    pub base: Avma,
    /// First of the nine live bytes of the slot. The slot is a plain count if that is the only snippet. Otherwise it leads to the first
    /// snippet, or to `leave`.
    pub slot: Avma,
    /// Code that restores the registers and flags that the base trampoline has saved. This code comes after the slot and the snippets that
    /// were woven together with the point.
    pub leave: Avma,
    /// First byte of the copies of the displaced instructions.
    pub tail: Avma,
    /// End of these copies and of the jump home. Copies of instructions that are displaced only to make room may follow.
    pub tail_end: Avma,
    /// First original byte that was not displaced.
    pub home: Avma,
    /// Return address of the call before which the point lies; `None` for other points.
    pub returns_to: Option<Avma>,
    /// Register that the check of the shard uses; `None` with locked counters.
    pub scratch: Option<Gpr>,
    /// Whether rax may be overwritten by snippets.
    pub rax_free: bool,
    /// Number of words that the base trampoline pushes.
    pub pushed: u8,
    /// Worst-case cost of the springboard, the base trampoline and the way home. The cost includes neither the snippets and the jumps
    /// between them nor the function's own instructions.
    pub cost: Cost,
    /// Snippets, in the order in which they run.
    pub minis: Vec<WovenMini>,
    /// Displaced instructions that other points may need. Points with one of these as `host` or in `redirected` are removed before this point, or
    /// together with it.
    pub inner: Vec<DisplacedCopy>,
    /// Copy into which the point is woven, if another point displaces its instruction.
    pub host: Option<DisplacedCopy>,
    /// Place in the copy of the function into which the point is woven; `None` unless the function is copied. The point is removed before the
    /// copy, or together with it.
    pub probe: Option<Probe>,
    /// Jumps to the springboard that other points displace. The copies of these jumps lead to the tail.
    pub redirected: Vec<DisplacedCopy>,
    /// First bytes of ranges that are displaced to make room for islands.
    pub rooms: Vec<Avma>,
    /// Record that removes the point, without its snippets. A point with a host is removed by it only together with the host.
    pub removal: RemovalRecord,
}

impl WovenPoint {
    /// First byte that the point needs: that of its springboard, or of the first instruction before it.
    pub fn start(&self) -> Avma {
        self.at.offset(-self.first.as_ref().map_or(0, |first| i64::from(first.len)))
    }

    /// Whether a snippet reads an argument that was overwritten before it could run: by the first instruction, or by the check of the shard.
    pub fn lacks_input_of(&self, snippet: &Snippet) -> bool {
        let checked = self.scratch.is_some_and(|r| ARGUMENTS.contains(&r)) && snippet.reads_arguments();
        checked || self.first.as_ref().is_some_and(|first| first.spoils(snippet))
    }

    /// Whether the point was woven together with the copy of its function: its code is a part of the copy.
    pub fn is_with_copy(&self) -> bool {
        self.probe.is_some_and(|probe| probe.copy == self.base)
    }

    /// Copies that this point changes in the code of other points. These copies must stay as long as this point does.
    pub fn needs(&self) -> impl Iterator<Item = &DisplacedCopy> {
        self.host.iter().chain(&self.redirected)
    }

    /// Whether a thread at `at` has passed the point and is among the copies of the displaced instructions.
    pub fn is_passed_at(&self, at: Avma) -> bool {
        (self.tail..self.tail_end).contains(&at)
    }

    /// All records that the removal of the point needs, including those of its snippets.
    pub fn records(&self) -> impl Iterator<Item = &RemovalRecord> + Clone {
        std::iter::once(&self.removal).chain(self.minis.iter().map(|m| &m.removal))
    }

    /// Ranges of the point's code, with that of its snippets.
    pub fn code(&self) -> impl Iterator<Item = &AvmaRange> + Clone {
        self.records().map(|record| &record.code).filter(|code| code.start < code.end)
    }
}

/// A snippet at a woven point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenMini {
    /// Number of the snippet, unique at its point.
    pub id: u64,
    /// Displacement of the counter, if the snippet is a plain count. A plain count that is alone at its point stands in the slot.
    pub count: Option<u32>,
    /// Code of the snippet; `None` if it stands in the point's slot.
    pub code: Option<MiniCode>,
    /// Worst case of the snippet, with the jumps to it and to the next one.
    pub cost: Cost,
    /// Record that removes the snippet together with its point.
    pub removal: RemovalRecord,
}

/// Code of a snippet in the chain of its point. Snippets that are woven together with the point lie after the slot, as part of the point's
/// own code. A snippet that is added later has code of its own elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiniCode {
    /// First instruction, to which the link before it leads.
    pub start: Avma,
    /// Last instruction: the live link to the next snippet or to the point's `leave`. The link is a `jmp rel32`, or a nop if the target
    /// comes right after the link.
    pub link: Avma,
    /// Range that is freed with the snippet: the code aside ([`MiniCode::aside`]), and also all code before it if the snippet was added
    /// later.
    pub range: AvmaRange,
}

impl MiniCode {
    /// Range from the first instruction to the end of the link.
    pub fn own(&self) -> AvmaRange {
        self.start..self.link.offset(LINK as i64)
    }

    /// Range of the twin that counts in shard 0, and of the code after it that runs only sometimes. Empty if there is no twin.
    pub fn aside(&self) -> AvmaRange {
        let own = self.own();
        if self.range.start == own.start { own.end..self.range.end } else { self.range.clone() }
    }
}

/// Layout of the stack for the snippets of a point, in bytes from the stack pointer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackView {
    /// Address that identifies a call, the same at its start and its end. For a function, it is the stack pointer at the entry. For a call
    /// that a function makes, it is one byte less than the stack pointer before the call, so that it lies between those of caller and
    /// callee.
    pub key: i8,
    /// Offset of the first argument on the stack.
    pub arguments: i8,
    /// Whether calls of the function move between threads, and their stacks in memory ([`ingraft_model::Site::moving`]).
    pub moving: bool,
}

impl StackView {
    /// Layout at entries and exits.
    pub const FUNCTION: StackView = StackView { key: 0, arguments: 8, moving: false };
    /// Layout at a call whose return address is pushed.
    pub const CALLED: StackView = StackView { key: 7, arguments: 8, moving: false };
    /// Layout before and after a call.
    pub const CALLING: StackView = StackView { key: -1, arguments: 0, moving: false };
}
