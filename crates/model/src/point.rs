//! Points: the places of a program where a snippet can be woven.

use crate::addr::{Svma, SvmaRange};
use crate::cfg::Block;
use crate::refusal::Refusal;
use crate::snippet::Snippet;

/// The kinds of point that ingraft can weave or list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PointKind {
    /// Arrival at a function from outside, by a call, a tail jump or an indirect branch.
    Entry,
    /// A return or a tail jump out of a function.
    Exit,
    /// Before a call instruction. A list of a function's points has each call once, under this kind.
    CallBefore,
    /// After a call instruction, at its return address.
    CallAfter,
    /// The beginning of a basic block.
    Block,
    /// A transfer between two basic blocks.
    Edge,
}

/// Method by which the points of one kind in one function are woven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By a springboard over the original instructions.
    InPlace,
    /// By weaving a copy of the whole function in an arena.
    Relocated,
    /// Some points by a springboard, others not at all.
    Partly,
    /// The points cannot be woven; a [`Refusal`] says why.
    Refused,
}

impl How {
    /// The stable word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            How::InPlace => "in-place",
            How::Relocated => "relocated",
            How::Partly => "partly",
            How::Refused => "refused",
        }
    }
}

impl PointKind {
    /// Whether a call begins at points of this kind that ends at other points: a call of the function, or a call that it makes.
    pub fn opens(self) -> bool {
        matches!(self, PointKind::Entry | PointKind::CallBefore)
    }

    /// The stable word for scripts, which is the same for both sides of a call.
    pub fn word(self) -> &'static str {
        match self {
            PointKind::Entry => "entry",
            PointKind::Exit => "exit",
            PointKind::CallBefore | PointKind::CallAfter => "call",
            PointKind::Block => "block",
            PointKind::Edge => "edge",
        }
    }

    /// Whether points of this kind are before or after a call that the function makes.
    pub fn is_at_call(self) -> bool {
        matches!(self, PointKind::CallBefore | PointKind::CallAfter)
    }
}

/// One of the sixteen general purpose registers, numbered as the instruction set encodes them (rax 0 … r15 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpr(pub u8);

/// A function's own branch back to one of its springboard sites. It must not be counted as a call or a return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackBranch {
    /// Address of the branch instruction.
    pub at: Svma,
    /// Start of the displaceable range of whole instructions that ends with the branch. Between `from` and `until`, control arrives only at
    /// `from`. Equal to `at` if nothing before the branch can be displaced.
    pub from: Svma,
    /// First byte that must stay: the end of the branch, or of the padding after it that is proven dead.
    pub until: Svma,
    /// Original bytes of `from..until`.
    pub bytes: Vec<u8>,
}

/// Facts about an address at which control arrives from elsewhere: the first byte of a function, or a return address.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Arrival {
    /// The function's own branches to this address. At an entry these are the branches to [`Site::at`] or [`Site::function`], after a call
    /// those to the return address.
    pub back_branches: Vec<BackBranch>,
    /// Number of bytes that a springboard here should displace if possible. An exit that ends there has no room for a springboard and can
    /// be woven into the displaced copy. 0 if there is no such exit.
    pub least: u8,
}

/// Registers and flags that snippets may overwrite at an entry or at a block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FreeRegisters {
    /// Registers that are dead here and that the function itself overwrites. A register that is only dead does not suffice: a caller that
    /// was compiled with -fipa-ra may keep a value in it.
    pub scratch: Vec<Gpr>,
    /// Whether the arithmetic flags are dead.
    pub flags: bool,
}

/// First instruction of a function, if it can stay in place with the springboard after it. Control passes it only by falling through to
/// the springboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstInstruction {
    /// Length of the instruction in bytes.
    pub len: u8,
    /// Way in which the code of the point copes with the instruction's effect.
    pub effect: FirstEffect,
    /// Whether the instruction overwrites a register that may hold an argument, or stores to memory.
    pub changes_input: bool,
    /// Whether the instruction runs once and reads or writes memory.
    pub accesses_memory: bool,
    /// Whether the instruction may fault. If a handler leaves the function for another place, the call has not reached the springboard.
    pub may_fault: bool,
    /// Whether no springboard may lie over the instruction, because another tool has a breakpoint there or will set one.
    pub must_stay: bool,
}

impl FirstInstruction {
    /// Number of bytes by which the base must raise the stack pointer, to take the instruction's effect back.
    pub fn lowers(&self) -> u32 {
        match self.effect {
            FirstEffect::Repeated { lowers } => lowers,
            FirstEffect::Once { .. } => 0,
        }
    }

    /// Whether a snippet that runs after the instruction differs from one that runs before it: it reads what the instruction has changed,
    /// or changes what the instruction has read.
    pub fn spoils(&self, snippet: &Snippet) -> bool {
        self.changes_input && snippet.reads_input() || self.accesses_memory && snippet.interferes()
    }

    /// Whether the instruction runs once, in place.
    pub fn runs_once(&self) -> bool {
        matches!(self.effect, FirstEffect::Once { .. })
    }
}

/// Way in which the code of a point copes with the effect of a first instruction that stays in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstEffect {
    /// The base takes the effect on the stack pointer back, and the tail begins with a copy of the instruction: two runs, with the stack
    /// pointer raised in between, have the effect of one.
    Repeated {
        /// Number of bytes by which the instruction lowers the stack pointer.
        lowers: u32,
    },
    /// The instruction runs once, before the snippets. It does not change the stack pointer, and none of the function's own branches leads
    /// to it.
    Once {
        /// Registers and flags that are free after the instruction.
        free: FreeRegisters,
    },
}

/// Kind of a site, with the facts that sites of other kinds do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// An entry.
    Entry {
        /// Branches back to the entry, and an exit that is displaced with it.
        arrival: Arrival,
        /// Registers and flags that are free.
        free: FreeRegisters,
        /// The function's first instruction, if the springboard can lie after it. `None` after an `endbr64`.
        first: Option<FirstInstruction>,
    },
    /// An exit.
    Exit {
        /// Whether the entry displaces this exit (see [`Arrival::least`]). If so, the exit can only be woven into the entry's displaced
        /// copy, and [`Site::at`] is the exit itself.
        within: bool,
        /// Registers and flags that are free. They are known for exits in the copy of a function only.
        free: FreeRegisters,
    },
    /// The place before a call.
    CallBefore,
    /// The return address of a call.
    CallAfter {
        /// Branches to the return address, and an exit that is displaced with it.
        arrival: Arrival,
    },
    /// The beginning of a basic block. Snippets run however control arrives there. The 128 bytes below the stack pointer (the red zone of
    /// the System V convention) may hold values of the function.
    Block {
        /// Registers and flags that are free.
        free: FreeRegisters,
    },
    /// A transfer between two basic blocks. [`Site::at`] is the first byte of the block to which the edge leads. The red zone may hold values
    /// of the function, as at the beginning of a block.
    Edge {
        /// Registers and flags that are free where the edge ends.
        free: FreeRegisters,
    },
}

/// Facts about one point that the code generator needs to weave it. Addresses are those of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Kind of the point, with the facts that only sites of this kind have.
    pub kind: SiteKind,
    /// The function's first byte (its `endbr64` if it has one).
    pub function: Svma,
    /// First byte that may be overwritten. At an entry it follows an `endbr64`, because indirect branches must find that instruction in
    /// place. Elsewhere it is the first of the whole instructions before the point that may be displaced with the point.
    pub at: Svma,
    /// Offset from `at` of the point's instruction; snippets run before this instruction. 0 at an entry, after a call, and at a call whose
    /// own displacement is changed to lead to the snippets.
    pub point: u8,
    /// Original bytes from `at` on, at most 64. At an entry they are the contiguous first bytes of the function, elsewhere those up to the
    /// end of the point's instruction. Padding that is proven dead follows.
    pub bytes: Vec<u8>,
    /// Number of leading `bytes` that belong to the function; the rest is padding.
    pub own: u8,
    /// Addresses in `at+1 .. at+bytes.len()` at which control can arrive other than by falling through: branch targets, return addresses of
    /// calls, landing pads, jump-table targets, other symbols, and instructions at which a goroutine may be suspended. Sorted.
    pub landings: Vec<Svma>,
    /// If `bytes` are too short for a springboard of five bytes: displaceable ranges that can make room for an island within reach of a
    /// springboard of two bytes. The nearest comes first.
    pub island_rooms: Vec<IslandRoom>,
    /// Whether calls of the function move between threads, and their stacks in memory (Go). Activation records then belong to a goroutine,
    /// see [`crate::layout::goroutine`].
    pub moving: bool,
}

impl Site {
    /// A site without padding, landings and island_rooms, whose point is at the first byte.
    pub fn new(kind: SiteKind, function: Svma, at: Svma, bytes: Vec<u8>) -> Site {
        let own = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        Site { kind, function, at, point: 0, bytes, own, landings: Vec::new(), island_rooms: Vec::new(), moving: false }
    }

    /// Kind of the point.
    pub fn point_kind(&self) -> PointKind {
        match self.kind {
            SiteKind::Entry { .. } => PointKind::Entry,
            SiteKind::Exit { .. } => PointKind::Exit,
            SiteKind::CallBefore => PointKind::CallBefore,
            SiteKind::CallAfter { .. } => PointKind::CallAfter,
            SiteKind::Block { .. } => PointKind::Block,
            SiteKind::Edge { .. } => PointKind::Edge,
        }
    }

    /// Facts about the arrival of control at the site; `None` at exits, before calls, at blocks and at edges.
    pub fn arrival(&self) -> Option<&Arrival> {
        match &self.kind {
            SiteKind::Entry { arrival, .. } | SiteKind::CallAfter { arrival } => Some(arrival),
            SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::Block { .. } | SiteKind::Edge { .. } => None,
        }
    }

    /// The function's own branches to this entry or return address. They must not be counted as calls or returns. Empty at other kinds of
    /// site.
    pub fn back_branches(&self) -> &[BackBranch] {
        self.arrival().map_or(&[], |arrival| &arrival.back_branches)
    }

    /// Registers and flags that snippets may overwrite; `None` if the kind of site does not say.
    pub fn free(&self) -> Option<&FreeRegisters> {
        match &self.kind {
            SiteKind::Entry { free, .. }
            | SiteKind::Exit { free, .. }
            | SiteKind::Block { free }
            | SiteKind::Edge { free } => Some(free),
            SiteKind::CallBefore | SiteKind::CallAfter { .. } => None,
        }
    }

    /// Registers that snippets may overwrite.
    pub fn scratch(&self) -> &[Gpr] {
        self.free().map_or(&[], |free| &free.scratch)
    }

    /// Whether snippets may overwrite the arithmetic flags.
    pub fn are_flags_free(&self) -> bool {
        self.free().is_some_and(|free| free.flags)
    }

    /// The first instruction of the function, if this is an entry whose springboard can lie after it.
    pub fn first_instruction(&self) -> Option<&FirstInstruction> {
        match &self.kind {
            SiteKind::Entry { first, .. } => first.as_ref(),
            SiteKind::Exit { .. }
            | SiteKind::CallBefore
            | SiteKind::CallAfter { .. }
            | SiteKind::Block { .. }
            | SiteKind::Edge { .. } => None,
        }
    }

    /// The site after the first instruction, if that stays in place and runs once.
    pub fn behind_first(&self) -> Option<Site> {
        let SiteKind::Entry { arrival, first: Some(first), .. } = &self.kind else { return None };
        let (FirstEffect::Once { free }, true) = (&first.effect, arrival.back_branches.is_empty()) else { return None };
        let at = Svma(self.at.0.checked_add(first.len.into())?);
        let arrival = Arrival { least: arrival.least.saturating_sub(first.len), ..arrival.clone() };
        Some(Site {
            kind: SiteKind::Entry { arrival, free: free.clone(), first: None },
            at,
            bytes: self.bytes.get(first.len.into()..)?.to_vec(),
            own: self.own.checked_sub(first.len)?,
            landings: self.landings.iter().copied().filter(|landing| *landing > at).collect(),
            ..self.clone()
        })
    }

    /// Whether this is an exit that can only be woven into the entry's displaced copy.
    pub fn is_within_entry(&self) -> bool {
        matches!(self.kind, SiteKind::Exit { within: true, .. })
    }
}

/// A straight displaceable range of a function that makes room for an island. Its first five bytes become a springboard, and the five bytes
/// after that hold the island.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IslandRoom {
    /// Address of the first byte, the only one at which control arrives from elsewhere.
    pub at: Svma,
    /// Bytes of the range: whole instructions, at least ten bytes.
    pub bytes: Vec<u8>,
}

/// Function that a call instruction calls, as far as the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// The code at an address (`call rel32`): a function, or a stub of the linker.
    Direct(Svma),
    /// The code at which the pointer at an address points when the call is made (`call *x(%rip)`). The pointer is mostly a slot of the
    /// global offset table.
    Slot(Svma),
    /// The code to which a register points, or a pointer in memory that a register addresses.
    Computed,
}

/// A call instruction of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Address of the instruction's first byte.
    pub at: Svma,
    /// Length of the instruction in bytes; `at` and the length give the return address.
    pub len: u8,
    /// Function that the instruction calls.
    pub callee: Callee,
}

/// A point before or after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPoint {
    /// The call.
    pub call: CallSite,
    /// Site of the point, or the reason why it cannot be woven; `None` after a call that is known never to return.
    pub site: Result<Option<Site>, Refusal>,
}

/// The beginning of a basic block as a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPoint {
    /// The block.
    pub block: Block,
    /// Site of its first instruction, or the reason why it cannot be woven.
    pub site: Result<Site, Refusal>,
}

/// Padding between functions that is proven unreachable. Islands may lie there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Address range of the padding.
    pub range: SvmaRange,
    /// Bytes of the padding (`nop`s of any length, `int3`, or zeros).
    pub bytes: Vec<u8>,
}
