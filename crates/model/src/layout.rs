//! The layout of the data area in a target: the places of the header, the claims and the shards. The generated code and the engine use the
//! same constants. A successor of a dead engine needs only the header to find everything else.
//!
//! ```text
//! A = base (below 2 GiB)              a memfd, mapped shared:
//! A + 0                 shard 0:      the header, the claims, the counters that threads without a shard share (`lock`ed)
//! A + stride            shard 1:      private anonymous memory: the `alive` word, and the shard into which fork children count;
//!                                     the engine never reads these counts. The memory has MADV_WIPEONFORK, except if children are
//!                                     measured with their parent (`family`): each thread of a child then has a shard, as the
//!                                     target's threads have. At the offset of the claims in shard 0, shard 1 has the temporary
//!                                     thread pointer for a program that has none yet (`LENT`)
//! A + k * stride        shard k >= 2: one thread's own. With `family`, no thread has shard 2: it says what a fork child inherits
//!                       ([`birth`]). No thread has shard 3 if records of calls on other stacks are set aside there ([`stacks`])
//! A + shards * stride   the journal's copy (`journal_bytes`)
//! ```
//!
//! A thread's gs base is `k * stride`, so `gs:[A + offset]` is the thread's own slot, and `A + offset` is a 32-bit displacement. With a gs
//! base of 0, the thread reads shard 0, whose owner is always 0. So a thread without a shard enters the slow path and changes no other
//! thread's counters.

use crate::addr::{Avma, AvmaRange};
use crate::histogram::Resolution;

/// First bytes of the header.
pub const MAGIC: [u8; 8] = *b"INGRAFT\x01";
/// Version of the layout that this module describes.
pub const LAYOUT_VERSION: u32 = 11;

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
    /// Index of the shard at which the next search for a free shard begins, u32, atomic.
    pub const CLAIM_HINT: u32 = 0x20;
    /// Number of failed searches for a free shard, u32, atomic. The thread then counted in shard 0.
    pub const EXHAUSTED: u32 = 0x24;
    /// Process id of the holder (the engine), u32.
    pub const HOLDER_PID: u32 = 0x28;
    /// Clock for a thread's processor time, i32: the slot of [`super::CpuClock::Rseq`], or 0 for a system call or no clock.
    pub const CPU_SLOT: u32 = 0x2c;
    /// Start time of the holder in clock ticks since boot, u64 (field 22 of /proc/PID/stat).
    pub const HOLDER_START: u32 = 0x30;
    /// Boot id of the kernel that the holder runs on, 16 bytes.
    pub const BOOT_ID: u32 = 0x38;
    /// Offset of the journal's copy from the base, u64.
    pub const JOURNAL_OFFSET: u32 = 0x48;
    /// Length of the valid part of the journal's copy, u64. The engine writes it after the bytes.
    pub const JOURNAL_LEN: u32 = 0x50;
    /// Process id of the target in its own pid namespace, u32.
    pub const TARGET_PID: u32 = 0x58;
    /// Number of fork children that have registered in `CHILDREN`, u32, atomic. It may exceed [`CHILDREN_MAX`]; the ids of the rest are
    /// then unknown.
    pub const CHILDREN_COUNT: u32 = 0x5c;
    /// Process ids of the fork children in their own pid namespaces, u32 each.
    pub const CHILDREN: u32 = 0x60;
    /// Maximum number of entries in [`CHILDREN`].
    pub const CHILDREN_MAX: u32 = 1000;
    /// Descriptor of a restartable sequence without instructions (linux/rseq.h, struct rseq_cs): 32 bytes at a multiple of 32. It is valid
    /// only with a [`super::CpuClock::Rseq`].
    pub const DESCRIPTOR: u32 = 0x1000;
    /// The signature that the kernel looks for right before the descriptor's abort address, u32.
    pub const SIGNATURE: u32 = 0x1020;
    /// Number of times that the engine has emptied the buffers of traces whose threads wait for room, u32, atomic; 0 if no thread may wait.
    /// Threads wait for a change (futex(2)). A thread that has waited for [`super::ROOM_WAIT_NS`] in vain sets it to 0. The engine never counts
    /// to 0.
    pub const DRAINS: u32 = 0x1024;
    /// Ticks in a nanosecond, times 2^32, u64: the factor from processor time to ticks. It is 0 until the first measurement of processor
    /// time, and does not change any more after that.
    pub const CPU_RATE: u32 = 0x1028;
    /// Number of addresses in `SLOTS`, u32.
    pub const SLOTS_COUNT: u32 = 0x1030;
    /// Number of calls of the program's functions that generated code has made and that have not returned, u32, atomic. Open calls of fork
    /// children are not included. The arenas stay mapped while the number is not 0.
    pub const CALLS_OPEN: u32 = 0x1034;
    /// Number of calls that are known to have ended without a return, u32, atomic. They stay in `CALLS_OPEN`.
    pub const CALLS_LEFT: u32 = 0x1038;
    /// Number of snippets with calls that were skipped because their thread had no shard, u32, atomic.
    pub const CALLS_MISSED: u32 = 0x103c;
    /// Addresses at which ended threads had their pointer to a descriptor ([`super::CPU_SLOT`]), u64 each. This memory of the program may
    /// still hold the address of the engine's descriptor.
    pub const SLOTS: u32 = 0x1040;
    /// Maximum number of addresses in [`SLOTS`].
    pub const SLOTS_MAX: u32 = (EVENTS - SLOTS) / 8;
    /// Events of the processor that threads read by themselves: [`super::EVENTS_MAX`] entries of [`EVENT_BYTES`] each. An entry holds the
    /// beginning of a struct perf_event_attr (linux/perf_event.h).
    pub const EVENTS: u32 = LISTENING - EVENT_BYTES * super::EVENTS_MAX;
    /// Size in bytes of an entry in [`EVENTS`], a power of two.
    pub const EVENT_BYTES: u32 = 128;
    /// 1 while the engine answers threads at the loader's hook, u32. The engine clears it, or a thread that has got neither an answer nor
    /// `RENEWED` within [`super::LOADER_WAIT_NS`].
    pub const LISTENING: u32 = super::CLAIMS - 0x40;
    /// Number of times that the loader has finished mapping or unmapping, u32, atomic. The engine waits for a change (futex(2)).
    pub const LOADS: u32 = LISTENING + 4;
    /// Value of [`LOADS`] up to which the engine has scanned the mappings, u32. Threads at the hook wait for a change.
    pub const ANSWERED: u32 = LISTENING + 8;
    /// Last action that the loader has announced, `r_state` of link.h: 1 to map, 2 to unmap, u32; 0 once it has finished.
    pub const LOADER_STATE: u32 = LISTENING + 12;
    /// 1 if fork children are measured with the target, in this data area, u32. The engine sets it once, before any code is inserted.
    pub const FAMILY: u32 = LISTENING + 16;
    /// Number of failed reads of the program's memory, u32, atomic.
    pub const READS_FAILED: u32 = LISTENING + 20;
    /// Number of failed readings of processor events, u32, atomic. The thread had no counter, or the counter did not count at that time.
    pub const EVENTS_UNREAD: u32 = LISTENING + 24;
    /// Number of failed writes to the program's memory, u32, atomic.
    pub const WRITES_FAILED: u32 = LISTENING + 28;
    /// Clock for the wall time in generated code, u64: 0 the time stamp counter, 1 a system call, otherwise the address of a function
    /// ([`super::WallClock`]).
    pub const WALL_CLOCK: u32 = LISTENING + 32;
    /// 1 if the C library's fork is woven, so that a child inherits the state of the thread that forks, u32. See [`super::birth`].
    pub const FORKS: u32 = LISTENING + 48;
    /// Number of forks that found no free shard for their child, u32, atomic. Such a child begins without its parent's state.
    pub const BIRTHS_MISSED: u32 = LISTENING + 52;
    /// Offset from fs of the pointer to the goroutine that a thread executes, i32; 0 if the area has no records of goroutines. See
    /// [`super::goroutine`].
    pub const GOROUTINE: u32 = LISTENING + 56;
    /// 1 if the engine lives and still works on the libraries that a thread at the loader's hook has announced, u32. If it is 1 when the
    /// thread's time limit is reached, the thread clears it and waits once more.
    pub const RENEWED: u32 = LISTENING + 60;
    /// Creation time of the data area, u64 in clock ticks since boot, as in field 22 of /proc/PID/stat. A thread that is older and has no
    /// claim never had a gs base of the engine. 0 in areas of earlier engines, where the time is unknown.
    pub const MADE: u32 = LISTENING + 40;
}

/// Largest number of processor events that threads of one target read by themselves, a power of two.
pub const EVENTS_MAX: u32 = 8;
/// Table in the shards of threads with an entry of [`EVENT_WORDS_BYTES`] for each event. An entry holds the state of the thread's counter,
/// u32 ([`event`]), and 8 bytes further the last reading, u64. Both are 0 at first.
pub const EVENT_WORDS: u32 = 0x1000;
/// Size in bytes of an entry in `EVENT_WORDS`, a power of two.
pub const EVENT_WORDS_BYTES: u32 = 16;
/// Offset in the shards of threads of one page for each event. The thread maps the page of its counter over it (struct
/// perf_event_mmap_page).
pub const EVENT_PAGES: u32 = 0x2000;

/// States of a thread's counter of a processor event.
pub mod event {
    /// The thread has not tried to open its counter yet.
    pub const NONE: u32 = 0;
    /// The page of the counter is mapped.
    pub const OPEN: u32 = 1;
    /// The thread is opening its counter, or the kernel has refused it.
    pub const REFUSED: u32 = 2;
}

/// Offset of the claims in shard 0: one u64 for each shard. It holds the identity of the shard's thread, or 0 if the shard is free.
pub const CLAIMS: u32 = 0x2000;
/// Largest number of shards in a data area.
pub const SHARDS_MAX: u32 = 8192;
/// Offset of the owner in every shard, u64: the identity of the shard's thread. Always 0 in shard 0.
pub const OWNER: u32 = CLAIMS + SHARDS_MAX * 8;
/// Offset, in every shard but 0, of the top of the activation records, u64. The top is the offset from [`DataArea::records`] of the next
/// record. It is 0 in a shard that has had no record, and always in shard 0.
pub const TOP: u32 = OWNER + 0x08;
/// Processor time of the thread minus the time stamp counter, u64 in ticks. It is valid until the kernel switches the thread, see
/// [`CpuClock`]. This word and the next four are in every shard, and 0 at first.
pub const CPU_OFFSET: u32 = OWNER + 0x10;
/// Last reading of the thread's processor time, u64 in ticks. A later reading is never less.
pub const CPU_LAST: u32 = OWNER + 0x18;
/// Address of the descriptor once `CPU_OFFSET` has been set, u64.
pub const CPU_DESCRIPTOR: u32 = OWNER + 0x20;
/// Address of the thread's pointer to a descriptor, u64; 0 if the engine's descriptor was never put there.
pub const CPU_SLOT: u32 = OWNER + 0x28;
/// Number of times that `CPU_OFFSET` was renewed, u64. Each renewal takes one system call.
pub const CPU_RENEWALS: u32 = OWNER + 0x30;
/// Offset that is added to a thread's gs base during a call of the program's functions from generated code. With it, code reads a word that
/// is always 0 instead of the shard's owner. So every point leads the thread into the slow path, which skips the snippets.
pub const CALLING: u32 = 0x38;
/// Offset of the stack pointer at the last call that generated code has made in this thread, u64. It lies right below the owner, on a page
/// of its own.
pub const CALL_SP: u32 = OWNER - 8;
/// Offset of counter 0 in every shard; counter i is a u64 (two's complement) at `COUNTERS + 8 * i`.
pub const COUNTERS: u32 = OWNER + 0x40;
/// Offset in shard 1 of a word, u32, that is 1 in the target. In fork children that are not measured with it, the word is 0
/// (MADV_WIPEONFORK).
pub const ALIVE: u32 = 0x00;
/// Offset in shard 1 of the temporary thread pointer of a program whose libc has set none yet and which has one thread only. This memory is
/// as long as the claims in shard 0. It is all 0, except for the thread's id at the place where [`ThreadIdentity::FsOffset`] looks for it.
pub const BOOTSTRAP_POINTER: u32 = CLAIMS;
/// Offset in shard 1, if fork children are measured with their parent, of a table with an entry for each shard. While the shard's thread is
/// in fork(2), the entry holds the thread's fs base, u64, and the index of the shard that was claimed for the child, u64. The index is 0 at
/// any other time. This memory is private, so the child has it as it was at the fork.
pub const HEIRS: u32 = 0x2_0000;
/// Size in bytes of an entry in `HEIRS`.
pub const HEIR_BYTES: u32 = 16;
/// Index of the shard that fork children use.
pub const CHILD_SHARD: u32 = 1;
/// Index of the first shard that a thread can claim.
pub const FIRST_SHARD: u32 = 2;
/// Default distance between shards in bytes, with room for 104,688 counters. Pages that no thread touches take no memory.
pub const DEFAULT_STRIDE: u64 = 1 << 20;
/// Largest distance between shards in bytes. Displacements below 2 GiB address a shard's memory, and the base needs room below them too.
pub const STRIDE_MAX: u64 = 1 << 28;
/// Largest address space of all shards in bytes.
pub const SHARDS_SPACE: u64 = 64 << 30;
/// Address space for the journal's copy in bytes. Pages that are not written take no memory.
pub const DEFAULT_JOURNAL: u64 = 1 << 30;

/// Longest time in nanoseconds that a thread waits at the loader's hook for a renewal by the engine, which weaves the mapped
/// libraries. For a library that was analysed before, the engine needs less, even on a busy machine. If the engine is dead, the program
/// stands still no longer than this after the last [`header::RENEWED`].
pub const LOADER_WAIT_NS: u32 = 250_000_000;

/// Longest time in nanoseconds that a thread waits for room in its buffer while the engine empties no buffer.
pub const ROOM_WAIT_NS: u32 = 250_000_000;

/// An activation record: a cache line at a multiple of its size. The first record of a shard belongs to no call and ends every search.
pub mod record {
    /// Size of a record in bytes.
    pub const SIZE: u32 = 64;
    /// Size in bytes of the space for records at the end of a shard. It limits the number of open calls of one thread.
    pub const ROOM: u32 = 128 << 10;
    /// Stack pointer of the call, u64. At a function's entry the return address lies there. At a call, it is the stack pointer before the
    /// return address is pushed. In the first record it is `u64::MAX`.
    pub const SP: u32 = 0x00;
    /// Offset in a shard of the first counter of the record's activations, u32. It identifies the record.
    pub const NAME: u32 = 0x08;
    /// Offset in a shard of the counter that is set back to `SAVED`, u32. If the counter belongs to a timer, one of the next two bits is
    /// set too. 0 if no counter is set back.
    pub const RESTORE: u32 = 0x0c;
    /// Bit of `RESTORE`: the counter belongs to a timer of the wall clock.
    pub const RESTORE_WALL: u32 = 1;
    /// Bit of `RESTORE`: the counter belongs to a timer of processor time.
    pub const RESTORE_CPU: u32 = 2;
    /// Bit of `RESTORE`: the function has ended by a tail jump and the target of the jump has not begun. The entry of that function removes
    /// the mark and keeps the record.
    pub const HANDED: u32 = 4;
    /// Value to which the counter of `RESTORE` is set back, u64.
    pub const SAVED: u32 = 0x10;
    /// Further words from the beginning of the call for the code at its end, u64 each.
    pub const KEPT: u32 = 0x18;
    /// Maximum number of words in [`KEPT`].
    pub const KEPT_MAX: u32 = (SIZE - KEPT) / 8;
    /// Offset in the first record of a shard, u64: ticks of the wall clock that the thread has spent in calls with own times that have ended. It
    /// does not grow inside of such a call before the call ends. Processor time is in the next word.
    pub const SPENT: u32 = KEPT + 8;
}

/// Activation records of calls on stacks that no thread executes, in programs that switch stacks (ucontext, Boost.Context, coroutines of an
/// interpreter). At the entry of a function that switches, all records of the thread are set aside in shard [`stacks::SHARD`], which no thread
/// claims. At its exit, the stack pointer tells to which stack control has come, and the records of that stack come back.
///
/// The key of a stack is the stack pointer that its code has when it goes on. It is a multiple of 16 (System V psABI 3.2.2), and the same at both
/// moments: at the entry of the function that leaves, the return address lies right below it, and when control goes on, either the return address
/// lies there or it was taken from the stack already. So both routines round the stack pointer up to a multiple of 16.
///
/// While records are set aside, [`record::SAVED`] holds the present value of the variable that the record restores, and the variable has the saved
/// one, as if the calls had ended. When the records come back, variable and record exchange their values again. If a record of the thread would stop or
/// start a timer, nothing is set aside.
///
/// Values that a thread keeps, such as its calling context, mean nothing to another thread. If a stack goes on in another thread, its records are
/// dropped, and count as calls that ended without an exit.
pub mod stacks {
    use super::record;

    /// Index of the shard with the records.
    pub const SHARD: u32 = super::FIRST_SHARD + 1;
    /// Smallest distance between shards with which an area has these records.
    pub const STRIDE_MIN: u64 = 1 << 23;
    /// Offset in the shard of the unused records, as in [`super::goroutine::FREE`].
    pub const FREE: u32 = 0x2_0000;
    /// Offset of the number of records that were ever used, u32, atomic.
    pub const USED: u32 = FREE + 8;
    /// Offset of the places of stacks.
    pub const PLACES: u32 = 0x3_0000;
    /// Size in bytes of a place. Its first word is the key of the stack, u64; 0 if the place is free.
    pub const PLACE: u32 = 64;
    /// Offset in a place of the identity of the thread that has left the stack, u64.
    pub const OWNER: u32 = 0x08;
    /// Offset in a place of the number of the record of the outermost call, u64; 0 if there is none.
    pub const OUTERMOST: u32 = 0x10;
    /// Offset in a place of the two words at [`record::SPENT`] of the thread when it left the stack.
    pub const SPENT: u32 = 0x18;
    /// Number of bits of the number of a place.
    pub const PLACE_BITS: u32 = 15;
    /// Number of places in a row that may belong to a stack. The last ones lie after the numbered places.
    pub const PROBES: u32 = 8;
    /// Offset of record 0. Records are numbered from 1 on.
    pub const RECORDS: u32 = 0x24_0000;
    /// Distance in bytes between records.
    pub const RECORD: u32 = 2 * record::SIZE;
    /// Offset in a record of the number of the next one, u64: that of the call inside, or the next unused one; 0 if there is none.
    pub const NEXT: u32 = record::SIZE;
    /// Largest number of records.
    pub const RECORDS_MAX: u32 = ((STRIDE_MIN - RECORDS as u64) / RECORD as u64) as u32 - 1;
    const _: () = assert!(PLACES + PLACE * ((1 << PLACE_BITS) + PROBES) <= RECORDS);
}

/// Activation records of goroutines. A goroutine moves between threads, and its stack moves in memory, so its open calls are not in the
/// shard of a thread. They are in shard [`goroutine::SHARD`], which no thread claims, in a list for each goroutine with the last call first.
/// A record is keyed by the stack pointer minus the top of the goroutine's stack, which stays the same when the runtime copies the stack.
/// Only the thread that executes a goroutine uses its list.
///
/// Code builds a record at the top of the records of its own thread and puts it into the list ([`record::SAVED`] holds the number of the
/// next record). At the end of the call, code takes the record back there. In between, [`record::SP`] of the copy in the thread is
/// `u64::MAX`, so that no search of the thread's own records passes it.
///
/// While a call keeps notes, the calls inside of it that have ended are noted in further records, in the order of their ends. So a goroutine takes them
/// along when it moves, and gives all of them back by one exchange.
///
/// The runtime reuses the descriptors of ended goroutines. What is left in the list of an ended goroutine is removed by calls of the next
/// goroutine with the same descriptor, each of which removes the records at its own depth and below.
pub mod goroutine {
    use super::record;

    /// Index of the shard with the lists.
    pub const SHARD: u32 = super::FIRST_SHARD;
    /// Smallest distance between shards with which an area has lists of goroutines.
    pub const STRIDE_MIN: u64 = 1 << 24;
    /// Offset in a descriptor of a goroutine (`g` in runtime/runtime2.go) of the lowest address of its stack, u64; the end of the stack
    /// follows.
    pub const STACK: u32 = 0;
    /// Offset in a descriptor of the saved stack pointer, u64; the saved program counter follows.
    pub const SAVED: u32 = 0x38;
    /// Size in bytes of a descriptor, at least.
    pub const DESCRIPTOR: u32 = 0x100;
    /// Offset in the shard of the unused records: in the lower half the number of the first one, 0 if there is none, in the upper half the
    /// number of changes, u64, atomic.
    pub const FREE: u32 = 0x2_0000;
    /// Offset of the number of records that were ever used, u32, atomic.
    pub const USED: u32 = FREE + 8;
    /// Offset of the number of records that are notes, u32, atomic.
    pub const NOTED: u32 = FREE + 12;
    /// Largest number of records that are notes. The other ones are for open calls.
    pub const NOTED_MAX: u32 = RECORDS_MAX / 2;
    /// Offset of the places of goroutines.
    pub const PLACES: u32 = 0x3_0000;
    /// Size in bytes of a place: the address of the descriptor, u64, the number of the goroutine's last record, u64, and four words about its notes.
    pub const PLACE: u32 = 32;
    /// Offset in a place of the lowest 32 bits of the key of the call that keeps notes, u32; 0 if none does.
    pub const NOTES_KEY: u32 = 16;
    /// Offset in a place of the number of notes that were made, u32, also of those that were not kept.
    pub const NOTES_MADE: u32 = 20;
    /// Offset in a place of the number of the first note, u32; 0 if there is none. Notes are linked by [`record::SAVED`].
    pub const FIRST_NOTE: u32 = 24;
    /// Offset in a place of the number of the last note, u32; 0 if there is none.
    pub const LAST_NOTE: u32 = 28;
    /// Largest number of notes that a goroutine keeps.
    pub const NOTES_MAX: u32 = 16_384;
    /// Offset in a note of its number among those of its goroutine that were kept, from 1 on, u32.
    pub const NOTE_NUMBER: u32 = record::RESTORE;
    /// Number of values of a note. They are at [`record::KEPT`], and the header of their record in a buffer ([`crate::records`]), u64, is at
    /// [`record::SP`].
    pub const NOTE_WORDS: u32 = 2;
    /// Number of bits of the number of a place, and number of places.
    pub const PLACE_BITS: u32 = 17;
    /// Number of places in a row that may belong to a goroutine. The last ones lie after the numbered places.
    pub const PROBES: u32 = 64;
    /// Factor for the hash of a descriptor's address.
    pub const MULTIPLIER: u64 = crate::table::MULTIPLIER;
    /// Offset of record 0. Records are numbered from 1 on.
    pub const RECORDS: u32 = 0x48_0000;
    /// Largest number of records.
    pub const RECORDS_MAX: u32 = ((STRIDE_MIN - RECORDS as u64) / record::SIZE as u64) as u32 - 1;
    const _: () = assert!(PLACES + PLACE * ((1 << PLACE_BITS) + PROBES) <= RECORDS);
    /// Offset in a record of a call with a context: 2 plus this context, u64; 0 before it has one. [`record::RESTORE`] is the offset in a shard of
    /// its tree then.
    pub const CONTEXT: u32 = record::KEPT + 8 * (record::KEPT_MAX - 2);
    /// Offset in such a record of the return address, u64. It is still on the stack if the call has not ended.
    pub const RETURN: u32 = CONTEXT + 8;
    /// Offset in such a record of the time of the calls inside of it that have contexts, u64, if times are told. The word before has the time at which
    /// the call began.
    pub const INSIDE: u32 = record::KEPT + 8;
    /// Number of values that such a record can keep.
    pub const KEPT_MAX: usize = record::KEPT_MAX as usize - 2;
}

/// State that a fork child inherits if children are measured with their parent. Before fork(2), the forking thread claims a shard for the
/// child and copies its own counters and activation records there. In the child, the first generated code finds that shard by [`HEIRS`].
/// The code at the exit of fork turns the copy into the child's initial state. For each counter in use, the word at the counter's offset in
/// shard [`birth::RULES`] is the rule for its initial value.
pub mod birth {
    /// Index of the shard with the rules. Its [`super::TOP`] holds the offset in the shard at which the rules end.
    pub const RULES: u32 = super::FIRST_SHARD;
    /// Rule: the child begins with 0. It applies to counts.
    pub const NOTHING: u64 = 0;
    /// Rule: the child begins with its parent's value. It applies to flags, levels, remembered values and the nesting of timers.
    pub const KEEP: u64 = 1;
    /// Rule for the sum of a wall timer, after the word with the timer's nesting. If the timer runs, the sum is set so that it counts from
    /// the birth on, else to 0.
    pub const WALL: u64 = 2;
    /// Rule for the sum of a timer of processor time. If the timer runs, the sum becomes -1, the child's zero, since 0 would mean that it
    /// does not run. Else it becomes 0.
    pub const CPU: u64 = 3;
    /// Rule at the first counter of activations; the counters begin with 0. Bit 8 + n is set if the n-th word that their records keep is a
    /// time of the wall clock.
    pub const KEPT_WALL: u32 = 8;
    /// Bit 16 + n is set if the n-th word is a processor time, or the time spent in ended calls: both are 0 at the birth.
    pub const KEPT_CPU: u32 = 16;
    /// Bit 24 is set if the records restore a time since the beginning of a call. At the birth that time is 0.
    pub const SAVED_TIME: u32 = 24;
    /// Number of words of a record that can be times. These words come first.
    pub const KEPT_TIMES: u32 = 4;
    /// Bit of a claim: the shard belongs to a child that is not born yet, or has not reached the exit of fork yet. The claim also has the
    /// id of the forking thread; once the child has found the shard, it has the child's.
    pub const UNBORN: u32 = 63;
    /// Bit of a claim: the fork has failed, and the engine frees the shard.
    pub const FAILED: u32 = 62;
    /// Bit of the claim of shard [`RULES`].
    pub const RESERVED: u32 = 61;
    /// Offset in the first record of a shard, which belongs to no call, u64. It is 1 if the thread began with the state of the thread that
    /// forked it.
    pub const BORN: u32 = super::record::KEPT;
}

/// Location of the data area of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataArea {
    /// Address of the first byte (A); `base + stride` is below 2 GiB.
    pub base: Avma,
    /// Bytes from one shard to the next, a power of two, at least four times [`OWNER`].
    pub stride: u64,
    /// Number of shards, 0 and 1 included.
    pub shards: u32,
    /// Size in bytes of the space for the journal's copy, after the shards.
    pub journal_bytes: u64,
}

impl DataArea {
    /// Address range of the area.
    pub fn range(&self) -> AvmaRange {
        self.base..Avma(self.base.0 + self.len())
    }

    /// Length of the area in bytes.
    pub fn len(&self) -> u64 {
        self.stride * u64::from(self.shards) + self.journal_bytes
    }

    /// Always returns false: an area has at least a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Number of counters that fit into a shard. After the last counter there is room for the largest bucket index of a histogram that the
    /// mask permits. The verifier proves only that the index is masked.
    pub fn counters(&self) -> u32 {
        let used = COUNTERS + record::ROOM + record::SIZE;
        let all = u32::try_from(self.stride.saturating_sub(used.into()) / 8).unwrap_or(u32::MAX);
        // A histogram of the finest resolution has the most buckets.
        let buckets = Resolution::Fine.buckets();
        all.saturating_sub(buckets.next_power_of_two() - buckets)
    }

    /// Offset of the activation records in a shard.
    pub fn records(&self) -> u32 {
        (self.stride - u64::from(record::ROOM)) as u32
    }

    /// Absolute address of an offset in shard 0, below 2 GiB. With a `gs:` prefix it addresses the same offset in the thread's own shard.
    pub fn displacement(&self, offset: u32) -> u32 {
        // base + stride is below 2 GiB by construction
        (self.base.0 as u32).wrapping_add(offset)
    }

    /// Offset in a shard of a u64: the number of readings of the clock by [`WallClock::Vdso`] in which its thread is. While it is not 0, a
    /// return address into an arena is on that thread's stack. The word lies in the first record, which belongs to no call.
    pub fn readings_open(&self) -> u32 {
        self.records() + record::SIZE - 8
    }

    /// Absolute address of counter `index` in shard 0, see `Self::displacement`.
    pub fn counter(&self, index: u32) -> u32 {
        self.displacement(COUNTERS + 8 * index)
    }

    /// Whether this gs base means that its thread is in a function that generated code has called.
    pub fn is_calling(&self, gs_base: u64) -> bool {
        gs_base & self.stride.wrapping_sub(1) == u64::from(CALLING) && gs_base < self.stride * u64::from(self.shards)
    }

    /// Whether code of this area has set this gs base: the base of a shard, or that plus [`CALLING`].
    pub fn is_base(&self, gs_base: u64) -> bool {
        let shard = gs_base.checked_div(self.stride).unwrap_or(0);
        let is_shard = gs_base.is_multiple_of(self.stride) || self.is_calling(gs_base);
        is_shard && shard != 0 && shard < u64::from(self.shards)
    }

    /// Absolute address of the `alive` word.
    pub fn alive(&self) -> u32 {
        (self.base.0 as u32).wrapping_add(self.stride as u32).wrapping_add(ALIVE)
    }

    /// Address of the temporary thread pointer, see [`BOOTSTRAP_POINTER`].
    pub fn bootstrap_pointer(&self) -> Avma {
        Avma(self.base.0 + self.stride * u64::from(CHILD_SHARD) + u64::from(BOOTSTRAP_POINTER))
    }

    /// Offset of the journal's copy from the base.
    pub fn journal_offset(&self) -> u64 {
        self.stride * u64::from(self.shards)
    }
}

/// Clock by which generated code reads the time. All timers of a target use the same clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WallClock {
    /// The time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC in nanoseconds, by the vDSO function at this address (`__vdso_clock_gettime`). The function is proven to use general
    /// purpose registers only.
    Vdso(Avma),
    /// CLOCK_MONOTONIC in nanoseconds, by a system call.
    SystemCall,
}

impl WallClock {
    /// Reads the clock from the word at [`header::WALL_CLOCK`].
    pub fn of_word(word: u64) -> Self {
        match word {
            0 => WallClock::Tsc,
            1 => WallClock::SystemCall,
            function => WallClock::Vdso(Avma(function)),
        }
    }

    /// Returns the word for [`header::WALL_CLOCK`].
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
    /// Generated code does not read processor time.
    None,
    /// By a system call for each reading, which takes some hundred nanoseconds.
    SystemCall,
    /// By the time stamp counter plus an offset. When the kernel has switched the thread, a system call renews the offset. The thread
    /// stores the address of [`header::DESCRIPTOR`] in its rseq area (rseq(2)), as its pointer to a critical section. At a switch, the
    /// kernel clears this pointer.
    Rseq {
        /// Offset of the pointer from fs, not 0. The engine checks it for every thread at attach.
        slot: i32,
        /// Signature with which the program has registered its rseq areas.
        signature: u32,
    },
}

/// Method by which generated code tells threads apart. The engine checks it for every thread at attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadIdentity {
    /// The kernel's thread id: a u32 at this offset from fs in the libc's thread descriptor (glibc 0x2d0, musl 0x30).
    FsOffset(u32),
    /// The fs base, by `rdfsbase`. Every thread has a different one.
    FsBase,
    /// Threads are not told apart. All count in shard 0, by `lock`ed instructions.
    Locked,
}
