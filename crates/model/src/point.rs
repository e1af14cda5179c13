//! Points: the places of a program where a snippet can be woven in, and why some cannot.

use std::fmt;

use crate::addr::{Svma, SvmaRange};
use crate::cfg::Block;

/// The kinds of point that ingraft knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PointKind {
    /// Arrival at a function from outside: a call, a tail jump, an indirect branch.
    Entry,
    /// A return or a tail jump out of a function.
    Exit,
    /// In front of a call instruction. A list of a function's points has each call once, under this kind.
    CallBefore,
    /// Behind a call instruction, where the call returns to.
    CallAfter,
    /// The beginning of a basic block.
    Block,
    /// A transfer between two basic blocks.
    Edge,
}

/// Method by which the points of one kind of one function are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    /// By a springboard over the original instructions.
    InPlace,
    /// By weaving the whole function anew in an arena.
    Relocated,
    /// Some in place, some not at all.
    Partly,
    /// Not at all; a [`Refusal`] says why.
    Refused,
}

/// Distance of an address from the first byte of its function; negative for parts of a function that lie before it. Shown with its sign, in
/// hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub i64);

impl Offset {
    /// From one address to another, both as in the file or both as in the process.
    pub fn between(first: u64, at: u64) -> Offset {
        Offset(at.wrapping_sub(first).cast_signed())
    }
}

impl PointKind {
    /// Whether something begins there that ends at other points: a call of the function, or a call that it makes.
    pub fn opens(self) -> bool {
        matches!(self, PointKind::Entry | PointKind::CallBefore)
    }

    /// Whether the point is in front of or behind a call that the function makes.
    pub fn is_at_call(self) -> bool {
        matches!(self, PointKind::CallBefore | PointKind::CallAfter)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{:#x}", self.0.unsigned_abs())
    }
}

/// Reason why a point is not woven. A point that cannot be proven safe is refused for one of these reasons.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No springboard fits: fewer than the needed bytes up to the next place where control can arrive, no proven padding,
    /// no island in reach.
    #[error("too short: {available} bytes before {next}, and no padding or island within reach")]
    TooShort {
        /// Bytes that could be overwritten.
        available: u32,
        /// Obstacle that ends these bytes, in words.
        next: &'static str,
    },
    /// Control can arrive in the middle of the springboard.
    #[error("control can arrive at {offset}, inside the bytes that a springboard needs")]
    BranchIntoSpringboard {
        /// Offset of the landing place from the function's first byte.
        offset: Offset,
    },
    /// Control enters the function behind its first instruction, by a return address that no call made.
    #[error("control enters it at {offset} by a return address that no call made, and not at its first byte")]
    EnteredInside {
        /// Offset of the place from the function's first byte.
        offset: Offset,
    },
    /// The language's runtime may suspend a call inside of every springboard, and continue it there (Go's asynchronous preemption).
    #[error("a goroutine may be suspended at {offset}, inside the bytes that a springboard needs")]
    PreemptionPoint {
        /// Offset of the place from the function's first byte.
        offset: Offset,
    },
    /// Every springboard that fits would lie on two pages.
    #[error("the springboard would straddle two pages")]
    StraddlesPages,
    /// An instruction that the decoder does not know.
    #[error("an unknown instruction at {offset}")]
    UnknownInstruction {
        /// Offset from the function's first byte.
        offset: Offset,
    },
    /// An instruction that does not survive being displaced.
    #[error("the instruction at {offset} cannot be displaced: {why}")]
    NotDisplaceable {
        /// Offset from the function's first byte.
        offset: Offset,
        /// The reason in words.
        why: &'static str,
    },
    /// The function's own branch back to its first instruction cannot be told from a call.
    #[error("its own branch at {offset} back to the entry cannot be told from a call")]
    OwnBranchToEntry {
        /// Offset of the branch from the function's first byte.
        offset: Offset,
    },
    /// A jump of the function to a return address cannot be told from a return.
    #[error("its own branch at {offset} to a return address cannot be told from a return")]
    OwnBranchToReturn {
        /// Offset of the branch from the function's first byte.
        offset: Offset,
    },
    /// The targets of the function's jumps could not be found out, so a branch into the springboard cannot be excluded.
    #[error("an indirect jump at {offset} whose targets are not known")]
    UnresolvedJump {
        /// Offset of the jump from the function's first byte.
        offset: Offset,
    },
    /// Control runs off the end of the function into what lies behind, so not all its exits are instructions of its own.
    #[error("it runs on into the code behind it at {offset}")]
    RunsOn {
        /// Offset of the first byte behind it from the function's first byte.
        offset: Offset,
    },
    /// The function's language moves calls in progress between threads, and their stacks in memory (Go), so an exit cannot be
    /// told to belong to an entry.
    #[error("its calls move between threads, so entry and exit cannot be paired")]
    MovingCalls,
    /// A symbol of an IFUNC: the code there chooses an implementation and is not the function that callers reach.
    #[error("an IFUNC resolver; count the implementations that it chooses from instead")]
    IfuncResolver,
    /// The program has no function of this name or number.
    #[error("no such function")]
    NoSuchFunction,
    /// The function has no point of this kind.
    #[error("it has no such point")]
    NoSuchPoint,
    /// The code is a stub of the linker.
    #[error("not a function body: a stub of the linker")]
    LinkerStub,
    /// The code is what signal handlers return through: unwinders know it by its bytes.
    #[error("not a function body: the way back from signal handlers, which unwinders know by its bytes")]
    SignalReturn,
    /// The address is no address of a program.
    #[error("not a function body: an address beyond user space")]
    BeyondUserSpace,
    /// The memory of the function cannot be read.
    #[error("not a function body: its memory cannot be read")]
    Unreadable,
    /// Code outside of the function jumps into the middle of it.
    #[error("not a function body: control arrives in its middle, and not only from itself")]
    EnteredFromElsewhere,
    /// The point has no bytes of its own, and the point that displaces its instruction is not woven.
    #[error("the point that it is displaced with is not woven")]
    HostNotWoven,
    /// The code changes itself, is checked by the kernel, or restarts there (rseq).
    #[error("a restartable sequence of the kernel (rseq) lies there")]
    RestartableSequence,
    /// Memory and file differ: something else patched the code.
    #[error(
        "the bytes in memory differ from the file at {offset}: something else has patched them, such as a uprobe, a breakpoint or another tool"
    )]
    BytesDiffer {
        /// Offset from the function's first byte.
        offset: Offset,
    },
    /// A measurement that was asked to stay has code there that a dead engine wove: it is known well enough to be removed, not to be added to.
    #[error(
        "measurement {measurement}, which was to stay and whose engine has died, has code there: remove that measurement first"
    )]
    Kept {
        /// Number of the measurement.
        measurement: u64,
    },
    /// The text is mapped shared; a write would reach other processes.
    #[error("its text is mapped shared")]
    SharedText,
    /// The loader writes into the text of its file (`DT_TEXTREL`), perhaps where code would be displaced, and perhaps later.
    #[error("the loader writes into its text (text relocations)")]
    TextRelocations,
    /// The function was given but belongs to ingraft's own runtime needs or to the kernel (vdso).
    #[error("the kernel's own code (vdso) is left alone")]
    Vdso,
    /// Another request's springboard already needs one of the bytes.
    #[error("overlaps the springboard of {other}")]
    Overlap {
        /// Name of the function that owns the bytes.
        other: String,
    },
    /// No free address within reach of the module.
    #[error("no free address within 2 GiB of the module")]
    NoRoomNearby,
    /// A limit on the memory of the target leaves too little room.
    #[error("{what}")]
    NoMemory {
        /// Needed memory, and the amount that the limit leaves.
        what: String,
    },
    /// A kind of point that this version does not weave yet.
    #[error("{kind} points are not woven yet")]
    NotYet {
        /// The kind in words.
        kind: &'static str,
    },
}

/// One of the sixteen general purpose registers, numbered as the instruction set encodes them (rax 0 … r15 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpr(pub u8);

/// A function's own branch back to the place of its springboard, which must not be counted as a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackBranch {
    /// Address of the branch instruction.
    pub at: Svma,
    /// Start of the stretch of whole instructions that may be displaced together with the branch: from here to
    /// `until` control arrives only at `from`. Equal to `at` when nothing before it may be.
    pub from: Svma,
    /// First byte that must stay: the end of the branch or of the padding proven dead behind it.
    pub until: Svma,
    /// The original bytes of `from..until`.
    pub bytes: Vec<u8>,
}

/// Facts about an address at which control arrives from elsewhere: the first byte of a function, or a return address.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Arrival {
    /// Branches of the function itself to this address: at an entry those to [`Site::at`] or to [`Site::function`], behind a call those to the
    /// return address.
    pub back_branches: Vec<BackBranch>,
    /// Length in bytes that is better displaced than not, because an exit that ends there has no room of its own and can be woven into the
    /// displaced copy. 0 if there is no such exit.
    pub least: u8,
}

/// Registers and flags that snippets may overwrite at an entry or at a block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Free {
    /// Registers that are dead and that the function itself overwrites. (A register that is merely dead may hold a value of a caller compiled
    /// with -fipa-ra.)
    pub scratch: Vec<Gpr>,
    /// Whether the arithmetic flags are dead.
    pub flags: bool,
}

/// Kind of a site, with the facts that sites of other kinds do not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// An entry.
    Entry {
        /// Branches back to it, and an exit that goes with it.
        arrival: Arrival,
        /// Registers and flags that are free.
        free: Free,
    },
    /// An exit.
    Exit {
        /// Whether the entry displaces this exit (see [`Arrival::least`]), so that it can only be woven into the entry's copy of it.
        /// [`Site::at`] is then the exit itself.
        within: bool,
    },
    /// In front of a call.
    CallBefore,
    /// Behind a call.
    CallAfter {
        /// Branches to the return address, and an exit that goes with it.
        arrival: Arrival,
    },
    /// The beginning of a basic block. However control arrives there, snippets run. The 128 bytes below the stack pointer (the red zone of the
    /// System V convention) may hold values of the function.
    Block {
        /// Registers and flags that are free.
        free: Free,
    },
}

/// Facts about one point of a function that the code generator needs to weave it. Addresses are those of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Kind of the point, with the facts that only this kind has.
    pub kind: SiteKind,
    /// The function's first byte (its `endbr64` if it has one).
    pub function: Svma,
    /// First byte that may be overwritten. At an entry, behind an `endbr64`, where indirect branches must keep landing; elsewhere the first
    /// of the whole instructions in front of the point that may be displaced with it.
    pub at: Svma,
    /// Offset from `at` of the point's instruction, before which snippets run: 0 at an entry, behind a call, and at a call that is itself
    /// made to lead to the snippets.
    pub point: u8,
    /// The original bytes from `at` on, at most 64: at an entry the function's contiguous head, elsewhere up to the end of the point's
    /// instruction; then the padding proven dead behind it.
    pub bytes: Vec<u8>,
    /// Number of the first `bytes` that are the function's own; the rest is padding.
    pub own: u8,
    /// Addresses in `at+1 .. at+bytes.len()` where control can arrive other than by falling through: branch targets,
    /// return points of calls, landing pads, jump-table targets, other symbols, instructions at which a goroutine may be suspended. Sorted.
    pub landings: Vec<Svma>,
    /// If `bytes` are too short for a springboard of five bytes: stretches in reach of one of two bytes that may make room for its island,
    /// nearest first.
    pub clearings: Vec<Clearing>,
}

impl Site {
    /// A site whose bytes are all the function's own and to which nothing else applies.
    pub fn new(kind: SiteKind, function: Svma, at: Svma, bytes: Vec<u8>) -> Site {
        let own = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        Site { kind, function, at, point: 0, bytes, own, landings: Vec::new(), clearings: Vec::new() }
    }

    /// Kind of the point.
    pub fn point_kind(&self) -> PointKind {
        match self.kind {
            SiteKind::Entry { .. } => PointKind::Entry,
            SiteKind::Exit { .. } => PointKind::Exit,
            SiteKind::CallBefore => PointKind::CallBefore,
            SiteKind::CallAfter { .. } => PointKind::CallAfter,
            SiteKind::Block { .. } => PointKind::Block,
        }
    }

    /// Facts about the way in that begins at `at`; `None` at exits, in front of calls and at blocks.
    pub fn arrival(&self) -> Option<&Arrival> {
        match &self.kind {
            SiteKind::Entry { arrival, .. } | SiteKind::CallAfter { arrival } => Some(arrival),
            SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::Block { .. } => None,
        }
    }

    /// Branches of the function itself to a way in, which must not be counted as calls or returns; empty at exits and in front of calls.
    pub fn back_branches(&self) -> &[BackBranch] {
        self.arrival().map_or(&[], |arrival| &arrival.back_branches)
    }

    /// Registers that snippets may overwrite.
    pub fn scratch(&self) -> &[Gpr] {
        match &self.kind {
            SiteKind::Entry { free, .. } | SiteKind::Block { free } => &free.scratch,
            SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::CallAfter { .. } => &[],
        }
    }

    /// Whether snippets may overwrite the arithmetic flags.
    pub fn are_flags_free(&self) -> bool {
        matches!(&self.kind, SiteKind::Entry { free, .. } | SiteKind::Block { free } if free.flags)
    }

    /// Whether this is an exit that only the entry's copy of it can hold.
    pub fn is_within_entry(&self) -> bool {
        self.kind == SiteKind::Exit { within: true }
    }
}

/// A straight stretch of a function that may be displaced: a springboard of five bytes at its beginning leaves five behind it for an
/// island.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clearing {
    /// Address of the first byte, the only one where control arrives from elsewhere.
    pub at: Svma,
    /// Bytes of the stretch: whole instructions, ten bytes at least.
    pub bytes: Vec<u8>,
}

/// Function that a call instruction calls, as far as the file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// The code at an address (`call rel32`): a function, or a stub of the linker.
    Direct(Svma),
    /// The code to which the pointer at an address points when the call is made (`call *x(%rip)`, mostly a slot of the global offset table).
    Slot(Svma),
    /// The code to which a register, or memory that a register addresses, points.
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

/// A place before or behind a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPoint {
    /// The call.
    pub call: CallSite,
    /// Site of the point, or the reason why it cannot be woven; `None` behind a call that is known never to return.
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

/// A stretch of padding between functions, proven to be reached by nothing; islands may lie there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Address range of the padding.
    pub range: SvmaRange,
    /// Bytes of the padding (`nop`s of any length, `int3`, or zeros).
    pub bytes: Vec<u8>,
}
