//! The data area in a target: where the header, the claims and the shards lie. The generated code and the engine
//! read it by the same constants, and a successor of a dead engine finds its way by the header alone.
//!
//! ```text
//! A = base (below 2 GiB)              a memfd, mapped shared:
//! A + 0                 shard 0:      the header, the claims, the counters that all threads share (`lock`ed)
//! A + stride            shard 1:      private anonymous memory: the `alive` word, and the shard that fork children count
//!                                     into, to nobody's harm. With MADV_WIPEONFORK, but where children are measured with
//!                                     their parent (`family`): there they are like threads of it, each with a shard. Where
//!                                     shard 0 has the claims it has the thread pointer that is lent to a program which
//!                                     has none yet (`LENT`)
//! A + k * stride        shard k >= 2: one thread's own. With `family`, shard 2 is no thread's: it says what a fork child inherits
//!                       ([`birth`])
//! A + shards * stride   the journal's copy (`journal_bytes`)
//! ```
//!
//! A thread's gs base is `k * stride`, so `gs:[A + offset]` is its own slot, `A + offset` a 32-bit displacement, and a gs base of 0
//! reads shard 0, whose owner is 0: a thread that was never prepared falls into the slow path and harms nothing.

use crate::addr::{Avma, AvmaRange};
use crate::histogram::Resolution;

/// First bytes of the header.
pub const MAGIC: [u8; 8] = *b"INGRAFT\x01";
/// Version of everything that this module describes.
pub const LAYOUT_VERSION: u32 = 8;

/// Offsets in the header (shard 0). All integers little-endian.
pub mod header {
    /// [`super::MAGIC`], 8 bytes.
    pub const MAGIC: u32 = 0x00;
    /// [`super::LAYOUT_VERSION`], u32.
    pub const VERSION: u32 = 0x08;
    /// Method by which threads are told apart, u32: 0 locked counters, 1 thread id at an offset from fs, 2 the fs base itself.
    pub const IDENTITY: u32 = 0x0c;
    /// The thread id's offset from fs when `IDENTITY` is 1, u32.
    pub const IDENTITY_OFFSET: u32 = 0x10;
    /// Number of shards that may be claimed, shards 0 and 1 included, u32.
    pub const SHARDS: u32 = 0x14;
    /// Bytes from one shard to the next, u64, a power of two.
    pub const STRIDE: u32 = 0x18;
    /// Shard where the next search for a free shard begins, u32, atomic.
    pub const CLAIM_HINT: u32 = 0x20;
    /// Number of times that no shard was free, u32, atomic. Counts went to shard 0.
    pub const EXHAUSTED: u32 = 0x24;
    /// Process id of the holder (the engine), u32.
    pub const HOLDER_PID: u32 = 0x28;
    /// Clock for a thread's processor time, i32: the slot of [`super::CpuClock::Rseq`]; 0: by a system call, or not at all.
    pub const CPU_SLOT: u32 = 0x2c;
    /// Start time of the holder in clock ticks since boot, u64 (field 22 of /proc/PID/stat).
    pub const HOLDER_START: u32 = 0x30;
    /// The boot id, 16 bytes.
    pub const BOOT_ID: u32 = 0x38;
    /// Offset of the journal's copy from the base, u64.
    pub const JOURNAL_OFFSET: u32 = 0x48;
    /// Length of the journal's copy that is valid, u64. Written after the bytes.
    pub const JOURNAL_LEN: u32 = 0x50;
    /// Process id of the target itself as it sees itself, u32.
    pub const TARGET_PID: u32 = 0x58;
    /// Number of fork children entered below, u32, atomic; may exceed [`CHILDREN_MAX`], the rest is then unknown.
    pub const CHILDREN_COUNT: u32 = 0x5c;
    /// Process ids of the fork children as they see themselves, u32 each.
    pub const CHILDREN: u32 = 0x60;
    /// Maximum number of entries in [`CHILDREN`].
    pub const CHILDREN_MAX: u32 = 1000;
    /// A descriptor of a restartable sequence without instructions (linux/rseq.h, struct rseq_cs), 32 bytes aligned to as many. Only valid with a
    /// [`super::CpuClock::Rseq`].
    pub const DESCRIPTOR: u32 = 0x1000;
    /// The signature that the kernel looks for right before the descriptor's abort address, u32.
    pub const SIGNATURE: u32 = 0x1020;
    /// Ticks of a nanosecond in 2^-32, u64: how processor time becomes ticks. 0 until the first processor time is measured, then never changed.
    pub const CPU_RATE: u32 = 0x1028;
    /// Number of addresses below, u32.
    pub const SLOTS_COUNT: u32 = 0x1030;
    /// Number of calls of functions of the program that generated code has made and that have not come back, u32, atomic. What a fork child has open
    /// it does not count. As long as it is not 0 the arenas must stay.
    pub const CALLS_OPEN: u32 = 0x1034;
    /// Number of calls that a thread was seen to have left other than by returning, u32, atomic: they stay open.
    pub const CALLS_LEFT: u32 = 0x1038;
    /// Number of times a snippet with calls was not run because its thread had no shard, u32, atomic.
    pub const CALLS_MISSED: u32 = 0x103c;
    /// Addresses where ended threads had their pointer to a descriptor ([`super::CPU_SLOT`]), u64 each: memory of the program that
    /// may still hold the address of ours.
    pub const SLOTS: u32 = 0x1040;
    /// Maximum number of addresses in [`SLOTS`].
    pub const SLOTS_MAX: u32 = (EVENTS - SLOTS) / 8;
    /// Events of the processor that threads read themselves: [`super::EVENTS_MAX`] times the beginning of a struct perf_event_attr
    /// (linux/perf_event.h), [`EVENT_BYTES`] from one to the next.
    pub const EVENTS: u32 = LISTENING - EVENT_BYTES * super::EVENTS_MAX;
    /// Size in bytes of an entry in [`EVENTS`], a power of two.
    pub const EVENT_BYTES: u32 = 128;
    /// 1 as long as the engine answers threads at the loader's hook, u32. Cleared by the engine, and by a thread that had no answer in
    /// [`super::LOADER_WAIT_NS`].
    pub const LISTENING: u32 = super::CLAIMS - 0x40;
    /// Number of times that the loader has ended to map or unmap, u32, atomic. The engine waits for it (futex(2)).
    pub const LOADS: u32 = LISTENING + 4;
    /// Value of [`LOADS`] up to which the engine has looked at what is mapped, u32. Threads at the hook wait for it.
    pub const ANSWERED: u32 = LISTENING + 8;
    /// Last action that the loader was about to do, `r_state` of link.h: 1 to map, 2 to unmap, u32; 0 when it has ended.
    pub const LOADER_STATE: u32 = LISTENING + 12;
    /// 1 if fork children count like threads of the target, in this memory, u32. Set once, before there is any code.
    pub const FAMILY: u32 = LISTENING + 16;
    /// Number of reads of the program's memory that found nothing there, u32, atomic.
    pub const READS_FAILED: u32 = LISTENING + 20;
    /// Number of failed readings of events of the processor, u32, atomic: the thread has no counter, or it did not count then.
    pub const EVENTS_UNREAD: u32 = LISTENING + 24;
    /// Number of times that memory of the program was to be set and could not be, u32, atomic.
    pub const WRITES_FAILED: u32 = LISTENING + 28;
    /// Clock for the wall time in generated code, u64: 0 the time stamp counter, 1 a system call, otherwise the address of a function
    /// ([`super::WallClock`]).
    pub const WALL_CLOCK: u32 = LISTENING + 32;
    /// 1 if the C library's fork is woven, so that a child inherits the state of the thread that forks, u32. See [`super::birth`].
    pub const FORKS: u32 = LISTENING + 48;
    /// Number of forks that found no free shard for their child, u32, atomic: the child begins without a state.
    pub const BIRTHS_MISSED: u32 = LISTENING + 52;
    /// Time when the area was made, u64 in clock ticks since boot (field 22 of /proc/PID/stat counts the same): a thread that is older and
    /// has no claim never had a gs base of ours. 0 in areas of earlier engines: not known.
    pub const MADE: u32 = LISTENING + 40;
}

/// Most events of the processor that threads read themselves in one target, a power of two.
pub const EVENTS_MAX: u32 = 8;
/// In the shards of threads: for each event whether this thread has opened its counter, u32 ([`event`]), and 8 bytes further its last reading,
/// u64; [`EVENT_WORDS_BYTES`] from one to the next. 0 at first.
pub const EVENT_WORDS: u32 = 0x1000;
/// Distance between those, a power of two.
pub const EVENT_WORDS_BYTES: u32 = 16;
/// In the shards of threads: a page for each event, over which the thread maps that of its counter (struct perf_event_mmap_page).
pub const EVENT_PAGES: u32 = 0x2000;

/// States of a thread's counter of an event.
pub mod event {
    /// The thread has not asked for its counter yet.
    pub const NONE: u32 = 0;
    /// The page of the counter is mapped.
    pub const OPEN: u32 = 1;
    /// The counter is being opened, or was refused.
    pub const REFUSED: u32 = 2;
    /// Bytes of a page.
    pub const PAGE: u32 = 0x1000;
}

/// Offset of the claims in shard 0: one u64 per shard, the identity of the thread that holds it or 0.
pub const CLAIMS: u32 = 0x2000;
/// Most shards that an area may have.
pub const SHARDS_MAX: u32 = 8192;
/// Offset of the owner in every shard, u64: the identity of its thread. 0 in shard 0 for ever.
pub const OWNER: u32 = CLAIMS + SHARDS_MAX * 8;
/// Offset of the top of the activation records in every shard but 0, u64: the offset from [`DataArea::records`] at which the next record
/// will lie; 0 in a shard that has had none, and for ever in shard 0.
pub const TOP: u32 = OWNER + 0x08;
/// Processor time of the thread less the time stamp counter, u64 in ticks; valid as long as the kernel has not switched the thread, see
/// [`CpuClock`]. These five words are in every shard, and 0 at first.
pub const CPU_OFFSET: u32 = OWNER + 0x10;
/// The last reading of the thread's processor time, u64 in ticks: it never goes back.
pub const CPU_LAST: u32 = OWNER + 0x18;
/// Address of the descriptor once `CPU_OFFSET` has been set, u64.
pub const CPU_DESCRIPTOR: u32 = OWNER + 0x20;
/// Address of the thread's pointer to a descriptor if ours was ever put there, u64.
pub const CPU_SLOT: u32 = OWNER + 0x28;
/// Number of times that `CPU_OFFSET` was renewed, u64: as many system calls.
pub const CPU_RENEWALS: u32 = OWNER + 0x30;
/// Offset that is added to a thread's gs base while the thread is in a function that generated code has called. With it, the word that code
/// takes for the owner of the thread's shard is always 0. So every point leads the thread into the slow path, which skips the snippets.
pub const CALLING: u32 = 0x38;
/// Stack pointer at the last call that generated code has made in this thread, u64; below all other words, on a page that nothing else is on.
pub const CALL_SP: u32 = OWNER - 8;
/// Offset of counter 0 in every shard; counter i is a u64 (two's complement) at `COUNTERS + 8 * i`.
pub const COUNTERS: u32 = OWNER + 0x40;
/// Offset in shard 1 of the word that is 1 in the target, and 0 in fork children that are not measured with it (MADV_WIPEONFORK), u32.
pub const ALIVE: u32 = 0x00;
/// Offset in shard 1 of what the only thread of a program has for a thread pointer until the program's libc has set one: as much memory as
/// the claims take in shard 0, all 0 but for the thread's id where [`ThreadIdentity::FsOffset`] looks for it.
pub const LENT: u32 = CLAIMS;
/// Offset in shard 1, where fork children are measured with their parent, of what a thread leaves to the child that it is about to fork: for each
/// shard, while its thread is in fork(2), the thread's fs base, u64, and the number of the shard that was claimed for the child, u64, 0 at any other
/// time. This memory is private: the child has it as it was at its birth.
pub const HEIRS: u32 = 0x2_0000;
/// Bytes of each.
pub const HEIR_BYTES: u32 = 16;
/// Index of the shard that fork children use.
pub const CHILD_SHARD: u32 = 1;
/// Index of the first shard that a thread can claim.
pub const FIRST_SHARD: u32 = 2;
/// Distance between shards that gives room for 104,688 counters; only touched pages take memory.
pub const DEFAULT_STRIDE: u64 = 1 << 20;
/// The largest distance: a shard's own memory is addressed by displacements below 2 GiB, and there must be room for a base below them.
pub const STRIDE_MAX: u64 = 1 << 28;
/// Address space that all shards take at most.
pub const SHARDS_SPACE: u64 = 64 << 30;
/// Bytes of address space for the journal's copy.
pub const DEFAULT_JOURNAL: u64 = 64 << 20;

/// Nanoseconds that a thread waits at the loader's hook until the engine has woven what it has mapped: longer than that takes on a busy machine with a
/// library that was analysed before, and no longer than a program may stand still when the engine is dead.
pub const LOADER_WAIT_NS: u32 = 250_000_000;

/// An activation record: a cache line at a multiple of its size. The first of a shard is no call's and ends every search.
pub mod record {
    /// Bytes of one.
    pub const SIZE: u32 = 64;
    /// Bytes of all at the end of a shard: as many calls can be open at once in one thread.
    pub const ROOM: u32 = 128 << 10;
    /// The stack pointer at the function's entry, where the return address lies; at a call, before it is pushed. u64; of the first record
    /// the highest number.
    pub const SP: u32 = 0x00;
    /// Offset in a shard of the first counter of its activations, u32: its name.
    pub const NAME: u32 = 0x08;
    /// Offset in a shard of the counter that goes back to `SAVED`, u32, with one of the next two bits if it is a timer's. 0: none does.
    pub const RESTORE: u32 = 0x0c;
    /// It is a timer's of the wall clock.
    pub const RESTORE_WALL: u32 = 1;
    /// It is a timer's of processor time.
    pub const RESTORE_CPU: u32 = 2;
    /// The function has jumped to another one, which has not begun yet: its entry takes the mark away instead of the record.
    pub const HANDED: u32 = 4;
    /// The value that goes back, u64.
    pub const SAVED: u32 = 0x10;
    /// Further words that the code at the end of the call needs from its beginning, u64 each.
    pub const KEPT: u32 = 0x18;
    /// Maximum number of words in [`KEPT`].
    pub const KEPT_MAX: u32 = (SIZE - KEPT) / 8;
}

/// Inheritance of a fork child if children are measured with their parent. Before fork(2) the forking thread claims a shard for the child and
/// copies its own counters and activation records there. In the child, the first code that runs finds that shard by [`HEIRS`], and the code at the
/// end of fork makes of the copy what the child begins with. For each counter that is in use, the word at the counter's own offset in shard
/// [`birth::RULES`] says what that is.
pub mod birth {
    /// Index of the shard with these words. Its [`super::TOP`] is the end of them, as an offset in the shard.
    pub const RULES: u32 = super::FIRST_SHARD;
    /// The child begins with 0: what is counted.
    pub const NOTHING: u64 = 0;
    /// The child begins with its parent's value: flags, what code remembers, how often a timer runs.
    pub const KEEP: u64 = 1;
    /// The sum of a wall timer, whose nesting is the word before: it runs on from the birth, or is 0.
    pub const WALL: u64 = 2;
    /// The sum of a timer of processor time, likewise: it runs on from the child's zero. -1 says that, as 0 would say that it does not run.
    pub const CPU: u64 = 3;
    /// At the first counter of activations, which begin with 0: bit 8 + n says that the n-th word that their records keep is a time of the wall clock.
    pub const KEPT_WALL: u32 = 8;
    /// Bit 16 + n: it is a processor time.
    pub const KEPT_CPU: u32 = 16;
    /// Bit 24: what their records restore is a time since the beginning of a call, which is 0 at the birth.
    pub const SAVED_TIME: u32 = 24;
    /// Maximum number of words in a record that can be times, which come first.
    pub const KEPT_TIMES: u32 = 2;
    /// In a claim: the shard of a child that was not born yet, or that has not come to the end of fork yet. With it stands the id of the forking
    /// thread, and once the child has found the shard, the child's.
    pub const UNBORN: u32 = 63;
    /// In a claim: the fork has failed; the engine frees the shard.
    pub const FAILED: u32 = 62;
    /// In a claim: the shard [`RULES`].
    pub const RESERVED: u32 = 61;
    /// In the first record of a shard, which is no call's, u64: 1 if its thread began with the state of the thread that forked it.
    pub const BORN: u32 = super::record::KEPT;
}

/// Location of the data area of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataArea {
    /// A: `base + stride` is below 2 GiB.
    pub base: Avma,
    /// Bytes from one shard to the next, a power of two, at least four times [`OWNER`].
    pub stride: u64,
    /// Number of shards, 0 and 1 included.
    pub shards: u32,
    /// Bytes reserved for the journal's copy, behind the shards.
    pub journal_bytes: u64,
}

impl DataArea {
    /// All of it.
    pub fn range(&self) -> AvmaRange {
        self.base..Avma(self.base.0 + self.len())
    }

    /// Length of the area in bytes.
    pub fn len(&self) -> u64 {
        self.stride * u64::from(self.shards) + self.journal_bytes
    }

    /// Never: an area has at least a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Counters that fit into a shard. Behind the last one there is room for what the number of a histogram's bucket may be as far as its
    /// mask tells, which is all that is proven of it.
    pub fn counters(&self) -> u32 {
        let used = COUNTERS + record::ROOM + record::SIZE;
        let all = u32::try_from(self.stride.saturating_sub(used.into()) / 8).unwrap_or(u32::MAX);
        // the finest has most
        let buckets = Resolution::Fine.buckets();
        all.saturating_sub(buckets.next_power_of_two() - buckets)
    }

    /// Offset of the activation records in a shard.
    pub fn records(&self) -> u32 {
        (self.stride - u64::from(record::ROOM)) as u32
    }

    /// The absolute address, below 2 GiB, that is right behind a `gs:` prefix and, without it, in shard 0.
    pub fn displacement(&self, offset: u32) -> u32 {
        // base + stride < 2 GiB by construction
        (self.base.0 as u32).wrapping_add(offset)
    }

    /// Offset in a shard of the number of readings of the clock by [`WallClock::Vdso`] that its thread is in, u64: as long as it is not 0, a
    /// return address into an arena is on that thread's stack. It is in the first record, which is no call's.
    pub fn readings_open(&self) -> u32 {
        self.records() + record::SIZE - 8
    }

    /// Displacement of counter `index`.
    pub fn counter(&self, index: u32) -> u32 {
        self.displacement(COUNTERS + 8 * index)
    }

    /// Whether a gs base says that its thread is in a function that generated code has called.
    pub fn is_calling(&self, gs_base: u64) -> bool {
        gs_base & self.stride.wrapping_sub(1) == u64::from(CALLING) && gs_base < self.stride * u64::from(self.shards)
    }

    /// Whether a gs base is one that code of this area has set: that of a shard, perhaps with [`CALLING`].
    pub fn is_base(&self, gs_base: u64) -> bool {
        let shard = gs_base.checked_div(self.stride).unwrap_or(0);
        let is_shard = gs_base.is_multiple_of(self.stride) || self.is_calling(gs_base);
        is_shard && shard != 0 && shard < u64::from(self.shards)
    }

    /// Absolute address of the `alive` word.
    pub fn alive(&self) -> u32 {
        (self.base.0 as u32).wrapping_add(self.stride as u32).wrapping_add(ALIVE)
    }

    /// The thread pointer that is lent, see [`LENT`].
    pub fn lent(&self) -> Avma {
        Avma(self.base.0 + self.stride * u64::from(CHILD_SHARD) + u64::from(LENT))
    }

    /// Offset of the journal's copy from the base.
    pub fn journal_offset(&self) -> u64 {
        self.stride * u64::from(self.shards)
    }
}

/// Clock by which generated code reads the time; all timers of a target count in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WallClock {
    /// The time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC in nanoseconds, by the function of the vDSO at this address (`__vdso_clock_gettime`), of which is proven that it touches
    /// general purpose registers only.
    Vdso(Avma),
    /// CLOCK_MONOTONIC in nanoseconds, by a system call.
    SystemCall,
}

impl WallClock {
    /// From [`header::WALL_CLOCK`].
    pub fn of_word(word: u64) -> Self {
        match word {
            0 => WallClock::Tsc,
            1 => WallClock::SystemCall,
            function => WallClock::Vdso(Avma(function)),
        }
    }

    /// For [`header::WALL_CLOCK`].
    pub fn word(self) -> u64 {
        match self {
            WallClock::Tsc => 0,
            WallClock::SystemCall => 1,
            WallClock::Vdso(function) => function.0,
        }
    }
}

/// Method by which generated code reads the processor time of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpuClock {
    /// Not at all.
    None,
    /// By a system call each time, some hundred nanoseconds.
    SystemCall,
    /// By the time stamp counter and an offset, which a system call renews when the kernel has switched the thread since. The kernel then
    /// clears the pointer to a critical section in the thread's rseq area (rseq(2)), where the address of [`header::DESCRIPTOR`] was put.
    Rseq {
        /// The pointer's offset from fs, not 0: proven for every thread at attach.
        slot: i32,
        /// Signature with which the program has registered its rseq areas.
        signature: u32,
    },
}

/// Method by which generated code tells threads apart, proven for every thread at attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadIdentity {
    /// The kernel's thread id, a u32 in the libc's thread descriptor at this offset from fs (glibc 0x2d0, musl 0x30).
    FsOffset(u32),
    /// The fs base itself, by `rdfsbase`; every thread has one of its own.
    FsBase,
    /// Not at all: counters in shard 0 with `lock`.
    Locked,
}
