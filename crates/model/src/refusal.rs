//! Reasons why a point is not woven.

use crate::addr::Offset;

/// Reason why a point is not woven. A point that is not proven safe is refused for one of these reasons.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No springboard fits. Before the next place where control can arrive, too few bytes can be overwritten, and no proven padding or
    /// island is within reach.
    #[error("too short: {available} bytes before {next}, and no padding or island within reach")]
    TooShort {
        /// Bytes that could be overwritten.
        available: u32,
        /// Description of the obstacle that ends these bytes.
        next: &'static str,
    },
    /// Control can arrive in the middle of the springboard.
    #[error("control can arrive at {offset}, inside the bytes that a springboard needs")]
    BranchIntoSpringboard {
        /// Offset of the place where control arrives from the function's first byte.
        offset: Offset,
    },
    /// Control enters the function after its first instruction, by a return address that no call has pushed.
    #[error("control enters it at {offset} by a return address that no call made, and not at its first byte")]
    EnteredInside {
        /// Offset of the place from the function's first byte.
        offset: Offset,
    },
    /// The language's runtime may suspend a call inside of every possible springboard, and resume it there (Go's asynchronous preemption).
    #[error("a goroutine may be suspended at {offset}, inside the bytes that a springboard needs")]
    PreemptionPoint {
        /// Offset of the place from the function's first byte.
        offset: Offset,
    },
    /// Every springboard that fits would lie on two pages.
    #[error("the springboard would straddle two pages")]
    StraddlesPages,
    /// The decoder does not know an instruction.
    #[error("an unknown instruction at {offset}")]
    UnknownInstruction {
        /// Offset from the function's first byte.
        offset: Offset,
    },
    /// An instruction does not work at another address.
    #[error("the instruction at {offset} cannot be displaced: {why}")]
    NotDisplaceable {
        /// Offset from the function's first byte.
        offset: Offset,
        /// Description of the reason.
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
    /// The possible targets of one of the function's jumps are unknown, so a branch into the springboard cannot be excluded.
    #[error("an indirect jump at {offset} whose targets are not known")]
    UnresolvedJump {
        /// Offset of the jump from the function's first byte.
        offset: Offset,
    },
    /// Control runs off the end of the function into the code after it, so not every exit of the function is one of its instructions.
    #[error("it runs on into the code behind it at {offset}")]
    RunsOn {
        /// Offset of the first byte after the function from the function's first byte.
        offset: Offset,
    },
    /// Control enters a loop other than along an edge, so no set of edges has every entry of the loop.
    #[error("control enters the loop at {offset} other than along an edge between blocks")]
    EntersLoop {
        /// Offset of the block in the loop where control arrives from the function's first byte.
        offset: Offset,
    },
    /// Control leaves a loop and the function at once, so no set of edges has every exit of the loop.
    #[error("control leaves the loop and the function at once, by the block at {offset}")]
    LeavesLoop {
        /// Offset of the block in the loop from the function's first byte.
        offset: Offset,
    },
    /// Control arrives at a block by its address in several ways, so the passages of one edge cannot be told from the others.
    #[error("control arrives at {offset} by its address from several places, which cannot be told apart")]
    SharedArrival {
        /// Offset of the block from the function's first byte.
        offset: Offset,
    },
    /// The passages of a place can be neither counted nor derived from others, so a profile of the function would not be exact.
    #[error("the passages at {offset} can be neither counted nor derived")]
    NotDerivable {
        /// Offset of the block from the function's first byte.
        offset: Offset,
    },
    /// The function's language moves calls in progress between threads, and their stacks in memory (Go). The point, or the state that the
    /// code keeps for a thread, cannot follow them.
    #[error("its calls move between threads, where this code cannot follow them")]
    MovingCalls,
    /// The function's calls stay with their threads, and the program's others move between threads (Go). The code follows the latter.
    #[error("its calls stay with their threads, and are not told together with those of goroutines")]
    StayingCalls,
    /// The symbol is an IFUNC. The code there chooses an implementation; callers of the function do not run it.
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
    /// Signal handlers return through this code, and unwinders recognise it by its bytes.
    #[error("not a function body: the way back from signal handlers, which unwinders know by its bytes")]
    SignalReturn,
    /// The address is outside of user space.
    #[error("not a function body: an address beyond user space")]
    BeyondUserSpace,
    /// The memory of the function cannot be read.
    #[error("not a function body: its memory cannot be read")]
    Unreadable,
    /// Code outside of the function jumps into its middle.
    #[error("not a function body: control arrives in its middle, and not only from itself")]
    EnteredFromElsewhere,
    /// The point has no springboard of its own, and the point that displaces its instruction is not woven.
    #[error("the point that it is displaced with is not woven")]
    HostNotWoven,
    /// No springboard fits after the function's first instruction, and it must not be overwritten: a uprobe there would make threads
    /// continue in the middle of the springboard.
    #[error(
        "its springboard would overwrite the first instruction, where a uprobe is set or may be set, and none fits behind that instruction"
    )]
    ExposedToUprobes,
    /// The function's first instruction overwrites an argument or memory that the code reads, or reads memory that the code changes. It stays
    /// in place before the springboard of another measurement, so it runs before the code.
    #[error(
        "its first instruction overwrites an argument or memory, and runs before the code of another measurement there: remove that one first"
    )]
    ArgumentOverwritten,
    /// The function takes its arguments in other registers than the C calling convention (Go), so `$arg[n]` would be something else.
    #[error("its arguments are not where C functions have them (Go), so $arg[n] cannot be read")]
    OtherArguments,
    /// The code belongs to a restartable sequence (rseq).
    #[error("a restartable sequence of the kernel (rseq) lies there")]
    RestartableSequence,
    /// Other code compares program counters with places in the function.
    #[error(
        "other code compares program counters with places in it (cancellation, guarded reads): its instructions stay in their place"
    )]
    ComparedAddress,
    /// A module of the process lets threads be cancelled at any instruction, and a thread that is cancelled in generated code skips the
    /// cleanup of the functions that it is in.
    #[error(
        "{module} lets threads be cancelled at any instruction (pthread_setcanceltype), where unwind tables must be"
    )]
    AsynchronousCancellation {
        /// Name of the module.
        module: String,
    },
    /// A signal handler of the process may end its thread, and an unwinder that begins in it needs a table for the instruction that the
    /// signal has interrupted.
    #[error(
        "the signal handler {handler} may end its thread (pthread_exit, cancellation), and needs unwind tables for what it interrupts"
    )]
    HandlerEndsThread {
        /// Name of the handler, with its module.
        handler: String,
    },
    /// A module of the process was compiled so that faults throw exceptions, and one that begins in generated code ends the program.
    #[error("{module} has code in which faults throw exceptions (-fnon-call-exceptions), where unwind tables must be")]
    ThrowingFaults {
        /// Name of the module.
        module: String,
    },
    /// The verifier has refused the code for the function, so none of it is inserted. The cause is a defect of the generator.
    #[error("the code for it could not be proven right ({flaw}), which is a defect of ingraft")]
    Unproven {
        /// The flaw that the verifier has found.
        flaw: String,
    },
    /// Memory and file differ, because another tool or the kernel has patched the code.
    #[error(
        "the bytes in memory differ from the file at {offset}: something else has patched them, such as a uprobe, a breakpoint or another tool"
    )]
    BytesDiffer {
        /// Offset from the function's first byte.
        offset: Offset,
    },
    /// The program itself may write the code while it runs: a static key, a sled of XRay, an entry that was compiled to be patched. A copy of
    /// the code would not follow.
    #[error(
        "the program may write its own code at {offset} (a static key, or another place that is made to be patched)"
    )]
    PatchedByProgram {
        /// Offset from the function's first byte.
        offset: Offset,
    },
    /// A dead engine has woven code there for a measurement that was to stay. The records of that code suffice to remove it, but not to add
    /// to it.
    #[error(
        "measurement {measurement}, which was to stay and whose engine has died, has code there: remove that measurement first"
    )]
    Kept {
        /// Number of the measurement.
        measurement: u64,
    },
    /// The text is mapped shared, so a write would reach other processes.
    #[error("its text is mapped shared")]
    SharedText,
    /// The loader writes into the text of the file (`DT_TEXTREL`), possibly to bytes that would be displaced, and possibly later.
    #[error("the loader writes into its text (text relocations)")]
    TextRelocations,
    /// The function belongs to the kernel's vDSO.
    #[error("the kernel's own code (vdso) is left alone")]
    Vdso,
    /// The springboard of another request already occupies one of the bytes.
    #[error("overlaps the springboard of {other}")]
    Overlap {
        /// Name of the function that owns the bytes.
        other: String,
    },
    /// No address within reach of the module is free.
    #[error("no free address within 2 GiB of the module")]
    NoRoomNearby,
    /// A limit on the memory of the target leaves less than the code needs.
    #[error("{what}")]
    NoMemory {
        /// Description of the needed memory and of the amount that the limit leaves.
        what: String,
    },
    /// This version does not weave this kind of point.
    #[error("{kind} points are not woven yet")]
    NotYet {
        /// Name of the kind.
        kind: &'static str,
    },
}

macro_rules! words {
    ($($word:literal => $($variant:ident)|+,)*) => {
        impl Refusal {
            /// All words that [`Refusal::word`] returns, in the order of docs/protocol.md.
            pub const WORDS: &[&str] = &[$($word),*];

            /// The stable word for scripts and the protocol, e.g. `too_short`.
            pub fn word(&self) -> &'static str {
                match self {
                    $($(Refusal::$variant { .. })|+ => $word,)*
                }
            }
        }
    };
}

words! {
    "too_short" => TooShort,
    "branch_into_springboard" => BranchIntoSpringboard,
    "entered_inside" => EnteredInside,
    "preemption_point" => PreemptionPoint,
    "straddles_pages" => StraddlesPages,
    "unknown_instruction" => UnknownInstruction,
    "not_displaceable" => NotDisplaceable,
    "own_branch_to_entry" => OwnBranchToEntry,
    "own_branch_to_return" => OwnBranchToReturn,
    "unresolved_jump" => UnresolvedJump,
    "runs_on" => RunsOn,
    "loop_without_edges" => EntersLoop | LeavesLoop,
    "shared_arrival" => SharedArrival,
    "not_derivable" => NotDerivable,
    "moving_calls" => MovingCalls | StayingCalls,
    "ifunc_resolver" => IfuncResolver,
    "not_a_function" => NoSuchFunction | NoSuchPoint | LinkerStub | SignalReturn | BeyondUserSpace | Unreadable
        | EnteredFromElsewhere | HostNotWoven,
    "exposed_to_uprobes" => ExposedToUprobes,
    "argument_overwritten" => ArgumentOverwritten,
    "other_arguments" => OtherArguments,
    "restartable_sequence" => RestartableSequence,
    "compared_address" => ComparedAddress,
    "asynchronous_cancellation" => AsynchronousCancellation,
    "handler_ends_thread" => HandlerEndsThread,
    "throwing_faults" => ThrowingFaults,
    "unproven" => Unproven,
    "bytes_differ" => BytesDiffer,
    "patched_by_program" => PatchedByProgram,
    "kept" => Kept,
    "shared_text" => SharedText,
    "text_relocations" => TextRelocations,
    "vdso" => Vdso,
    "overlap" => Overlap,
    "no_room_nearby" => NoRoomNearby,
    "no_memory" => NoMemory,
    "not_yet" => NotYet,
}
