//! Facts about a target on which generated code relies.

use ingraft_model::histogram::Scale;
use ingraft_model::layout::{FIRST_SHARD, OWNER, SHARDS_MAX, goroutine, stacks};
use ingraft_model::{Avma, BlockId, CpuClock, DataArea, ThreadIdentity, VectorState, WallClock};

/// Facts about a target that decide the shape of its trampolines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Place and size of the data area.
    pub data: DataArea,
    /// Method by which threads are told apart, if they can be.
    pub identity: ThreadIdentity,
    /// Whether any thread runs with a shadow stack: a pushed return address without a call would then fault.
    pub shadow_stack: bool,
    /// Clock for the wall time.
    pub wall: WallClock,
    /// Factor from ticks of that clock to nanoseconds.
    pub ticks: Scale,
    /// Clock for the processor time of a thread.
    pub cpu: CpuClock,
    /// State of the processor that is saved around calls of functions of the program; `None` if no such call can be made.
    pub vectors: Option<VectorState>,
    /// Address where the loader says what it is about to do (`r_state` of link.h), in memory that stays mapped; `None` if it is not known.
    pub loader: Option<Avma>,
    /// Memory of the program that snippets may read.
    pub readable: Readable,
    /// Offset from fs of the pointer to the goroutine that a thread executes, if the data area has records of goroutines
    /// ([`ingraft_model::layout::goroutine`]).
    pub goroutine: Option<i32>,
    /// Whether the data area has room for the records of calls on stacks that no thread executes ([`ingraft_model::layout::stacks`]).
    pub stacks: bool,
}

/// Memory of the program that snippets may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readable {
    /// First byte of the writable segment of the program's own file. The segment stays mapped as long as the process lives, in contrast to
    /// segments of libraries, which may be unloaded.
    pub start: Avma,
    /// First byte after that segment.
    pub end: Avma,
    /// Id of the process in its own pid namespace; `None` if the process may not make the system call that reads other memory.
    pub process: Option<u32>,
}

impl Readable {
    /// Whether all of these bytes stay mapped as long as the process lives.
    pub fn lasts(&self, at: Avma, bytes: u64) -> bool {
        self.start <= at && at.0.checked_add(bytes).is_some_and(|end| end <= self.end.0)
    }
}

/// Reason why a request as a whole is invalid. The reason against a single point is a [`ingraft_model::Refusal`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodegenError {
    /// The data area breaks a rule of `model::layout`.
    #[error("the data area at {base:#x} is unusable: {why}")]
    BadDataArea {
        /// Base of the area.
        base: u64,
        /// The broken rule.
        why: &'static str,
    },
    /// An edge of a function to copy leads to a block that the function does not have.
    #[error("the function has no block {0}")]
    NoSuchBlock(BlockId),
    /// A snippet names a variable that the request binds to no counter.
    #[error("variable v{variable} of a snippet is bound to no counter")]
    Unbound {
        /// Number of the variable.
        variable: u32,
    },
    /// A counter index is too large for a shard.
    #[error("counter {index} does not fit: a shard holds {counters}")]
    CounterOutOfRange {
        /// The index.
        index: u32,
        /// Number of counters that fit into a shard.
        counters: u32,
    },
    /// The nesting of a snippet would use too much of the target's stack.
    #[error("a snippet is nested more than {limit} levels deep")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// The assembler refused an instruction: a defect of this crate.
    #[error("cannot assemble {what}: {why}")]
    Assembler {
        /// Name of the code that was assembled.
        what: &'static str,
        /// Message of the assembler.
        why: String,
    },
    /// The point has no snippet with that number.
    #[error("no snippet {id} at {at:#x}")]
    NoSuchMini {
        /// The snippet's number.
        id: u64,
        /// The point.
        at: u64,
    },
    /// A snippet reads the processor time of its thread, but the target has no clock for it.
    #[error("processor time cannot be read here")]
    NoCpuClock,
    /// A snippet calls a function of the program, but the target permits no calls, or the function was not looked up, or the call has too
    /// many arguments.
    #[error("a function cannot be called here: {why}")]
    NoCall {
        /// Reason in words.
        why: &'static str,
    },
    /// A snippet reads a floating-point argument that is in no register.
    #[error("only the first eight floating-point arguments are in registers")]
    NoFloat,
    /// A snippet appends nothing, too much at once, or a byte that is 0.
    #[error("a snippet appends from one to eight bytes that are not 0")]
    NoAppend,
    /// A snippet makes a record of too many values, or none until the engine permits some.
    #[error("a record is too long, or may never be made")]
    NoRecord,
    /// A snippet enters a context of a function without a number, or adds to a metric that contexts do not have.
    #[error("a context needs a function from 1 to {}, or has no such metric", ingraft_model::contexts::FUNCTIONS_MAX)]
    NoContext,
    /// A snippet adds to a key whose parts are not those of the table.
    #[error("the parts of a key are not those of its table")]
    NoKey,
    /// A snippet waits at the loader's hook, but the address of the loader's state word (`r_state`) is not known.
    #[error("it is not known where the loader says what it does")]
    NoLoader,
    /// A snippet reads or sets memory as if it stayed mapped, but the memory is not the program's own data.
    #[error("{at:#x} is not in the data of the program itself")]
    Fleeting {
        /// The address.
        at: u64,
    },
    /// A snippet accesses memory of the program, or reads the kernel's counts, by a system call that may not be made in this target.
    #[error("memory of the program cannot be read here")]
    NoReads,
    /// A snippet needs the thread pointer, but it is not proven that the thread pointer is stored where it leads to (fs:0).
    #[error("threads have no pointer to data of their own that is known")]
    NoThreadPointer,
    /// A snippet switches stacks, but the data area has no room for the records of other stacks.
    #[error("records of other stacks cannot be set aside here")]
    NoStacks,
    /// A snippet reads a hardware event, but the threads have no known ids, or may not make system calls.
    #[error("events of the processor cannot be read here")]
    NoEvents,
    /// A snippet follows calls that move between threads, but the data area has no records of goroutines, or the snippet keeps state for
    /// the thread.
    #[error("calls that move between threads cannot be followed here: {why}")]
    NoGoroutines {
        /// Reason in words.
        why: &'static str,
    },
    /// The arena has no room for a snippet at a point that is woven already.
    #[error("the arena has no room left")]
    ArenaFull,
    /// A snippet reads an argument that the first instruction of the function overwrites before the snippet could run.
    #[error("an argument is overwritten before the point at {at:#x}")]
    ArgumentOverwritten {
        /// The point.
        at: u64,
    },
    /// A point was woven in another arena, or with another method to tell threads apart.
    #[error("the point at {at:#x} was woven in another environment")]
    OtherEnvironment {
        /// The point.
        at: u64,
    },
}

impl Environment {
    /// Checks the assumptions of generated code: displacements of 31 bits, a power of two between shards.
    pub(crate) fn check(&self) -> Result<(), CodegenError> {
        let data = &self.data;
        let bad = |why| Err(CodegenError::BadDataArea { base: data.base.0, why });
        if !data.stride.is_power_of_two() || data.stride < 4 * u64::from(OWNER) {
            return bad("the distance between shards is no power of two or too small");
        }
        if data.base.0 == 0 || !data.base.0.is_multiple_of(4096) {
            return bad("not at the start of a page");
        }
        match data.base.0.checked_add(2 * data.stride) {
            Some(end) if end < 1 << 31 => {}
            _ => return bad("shards 0 and 1 are not below 2 GiB"),
        }
        if data.shards <= FIRST_SHARD || data.shards > SHARDS_MAX {
            return bad("number of shards out of range");
        }
        if self.goroutine.is_some() && data.stride < goroutine::STRIDE_MIN {
            return bad("shards are too small for records of goroutines");
        }
        if self.stacks && (data.stride < stacks::STRIDE_MIN || data.shards <= stacks::SHARD) {
            return bad("shards are too small for records of other stacks");
        }
        Ok(())
    }
}

/// Error of the assembler, to be turned into a [`CodegenError::Assembler`].
#[derive(Debug)]
pub(crate) struct Assembly(pub String);

impl From<iced_x86::IcedError> for Assembly {
    fn from(e: iced_x86::IcedError) -> Self {
        Assembly(e.to_string())
    }
}
