//! Memory and instructions that generated code may use, except for displaced instructions.

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, Register, UsedMemory};
use ingraft_model::layout::{COUNTERS, CPU_DESCRIPTOR, CPU_LAST, CPU_OFFSET, OWNER, TOP, header, record};
use ingraft_model::{Avma, CpuClock, DataArea, ThreadIdentity};

use super::interpreter::Mode;
use super::state::RegisterBound;
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::cpu::{PROCESSOR, SELF};

/// Number of the general purpose register that `r` is, or is part of.
pub(super) fn number_of(r: Register) -> Option<u8> {
    let full = r.full_register();
    full.is_gpr64().then(|| full.number() as u8)
}

pub(super) fn writes(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

/// Whether an instruction may write to its memory operand. A point may write to its thread's counters and records through gs. A point or a
/// twin may write to counters of shard 0, with `lock` or by `mov`. A routine may write to its thread's shard, its stack, the thread's rseq
/// pointer, and the header's words for its own results.
pub(super) fn may_write(
    env: &Environment,
    i: &Instruction,
    memory: &UsedMemory,
    bound: RegisterBound,
    mode: Mode,
) -> bool {
    let (base, end) = (env.data.base.0, env.data.base.0 + env.data.stride);
    let counters = base + u64::from(COUNTERS)..end;
    let place = memory.displacement();
    let absolute = memory.base() == Register::None && memory.index() == Register::None;
    let shared = i.has_lock_prefix() || i.mnemonic() == Mnemonic::Mov;
    match mode {
        Mode::Point if is_record_or_bucket(env, memory, bound) => true,
        Mode::Point if is_own(env, memory, &[CPU_LAST]) => true,
        Mode::Twin(_) if is_note(env, i, memory, header::CALLS_MISSED) => true,
        Mode::Twin(_) if is_note(env, i, memory, header::EVENTS_UNREAD) => true,
        Mode::Routine(Routine::Read | Routine::Text) if is_note(env, i, memory, header::READS_FAILED) => true,
        Mode::Routine(Routine::Write) if is_note(env, i, memory, header::WRITES_FAILED) => true,
        Mode::Routine(Routine::Await) => writes_to_engine(env, i, memory),
        Mode::Routine(Routine::Room) => ends_waits(env, i, memory),
        Mode::Routine(_) => routine_access(env, memory) || is_descriptor(env, i, memory),
        Mode::Point | Mode::Twin(_) => {
            let own = memory.segment() == Register::GS && mode == Mode::Point && env.identity != ThreadIdentity::Locked;
            let common = memory.segment() == Register::DS && shared;
            absolute && counters.contains(&place) && (own || common)
        }
    }
}

/// Whether an instruction may read its memory operand: the thread's identity, owners, counters, records, lasting memory of the program,
/// the `alive` word, or the stack (arguments and saved words). Further words are for clocks, failures and the loader's hook. All of this
/// memory is mapped.
pub(super) fn may_read(
    env: &Environment,
    i: &Instruction,
    memory: &UsedMemory,
    bound: RegisterBound,
    mode: Mode,
) -> bool {
    if mode == Mode::Point && is_record_or_bucket(env, memory, bound) {
        return true;
    }
    let note = match mode {
        Mode::Twin(_) => {
            is_note(env, i, memory, header::CALLS_MISSED) || is_note(env, i, memory, header::EVENTS_UNREAD)
        }
        Mode::Routine(Routine::Read | Routine::Text) => is_note(env, i, memory, header::READS_FAILED),
        Mode::Routine(Routine::Write) => is_note(env, i, memory, header::WRITES_FAILED),
        Mode::Point | Mode::Routine(_) => false,
    };
    if note {
        return true;
    }
    if mode == Mode::Routine(Routine::Await) {
        return reads_loader(env, i, memory, bound);
    }
    if mode == Mode::Routine(Routine::Room) {
        let words = [env.data.displacement(header::DRAINS), env.data.alive()];
        return is_absolute(memory) && words.iter().any(|word| memory.displacement() == u64::from(*word));
    }
    if matches!(mode, Mode::Routine(_)) && memory.segment() == Register::GS {
        return routine_access(env, memory);
    }
    let data = &env.data;
    let place = memory.displacement();
    let counter =
        place >= u64::from(data.counter(0)) && place < data.base.0 + data.stride && place % 8 == data.base.0 % 8;
    let absolute = memory.base() == Register::None && memory.index() == Register::None;
    let bytes = memory.memory_size().size() as u64;
    let lasting = matches!(mode, Mode::Point | Mode::Twin(_)) && env.readable.lasts(Avma(place), bytes.max(1));
    match memory.segment() {
        _ if i.mnemonic() == Mnemonic::Lea => true,
        Register::FS => {
            // The thread's id, and the thread pointer.
            let known = matches!(env.identity, ThreadIdentity::FsOffset(at) if place == u64::from(at) || place == 0);
            absolute && (known || is_rseq(env, place, mode))
        }
        Register::GS if is_own(env, memory, &[CPU_OFFSET, CPU_LAST, CPU_DESCRIPTOR]) => mode == Mode::Point,
        Register::GS => absolute && (counter || place == u64::from(data.displacement(OWNER))),
        Register::SS => {
            memory.base() == Register::RSP && memory.index() == Register::None && (0..4096).contains(&place)
        }
        Register::DS if place == u64::from(data.displacement(header::CPU_RATE)) => {
            absolute && matches!(mode, Mode::Routine(_))
        }
        Register::DS => absolute && (counter || lasting || place == u64::from(data.alive())),
        _ => false,
    }
}

/// Whether an offset in a shard is that of the first of so many counters.
pub(super) fn are_counters(data: &DataArea, offset: u32, counters: u32) -> bool {
    let first = offset.checked_sub(COUNTERS).filter(|bytes| bytes % 8 == 0).map(|bytes| bytes / 8);
    first.and_then(|first| first.checked_add(counters)).is_some_and(|end| end <= data.counters())
}

/// Distance in bytes from the top of the activation records within which code may change them: a few records are opened, or closed, at one
/// point.
const NEAR: u64 = 6 * record::SIZE as u64;

/// Whether the operand is, through gs, the top of the activation records, a record near it, or a bucket or a byte with a bounded number.
fn is_record_or_bucket(env: &Environment, memory: &UsedMemory, bound: RegisterBound) -> bool {
    let data = &env.data;
    let place = memory.displacement();
    if memory.segment() != Register::GS || env.identity == ThreadIdentity::Locked {
        return false;
    }
    let records = u64::from(data.displacement(data.records()));
    let bytes = memory.memory_size().size() as u64;
    // A displacement may be negative, which is a number near the largest one.
    let are_counters =
        |bytes: u64| place >= u64::from(data.counter(0)) && place.checked_add(bytes).is_some_and(|end| end <= records);
    match (number_of(memory.base()), number_of(memory.index()), bound) {
        (None, None, _) => place == u64::from(data.displacement(TOP)),
        (Some(r), None, RegisterBound::Top(top)) => r == top && (records - NEAR..records + NEAR).contains(&place),
        (Some(r), None, RegisterBound::Most(bounded, most)) => r == bounded && are_counters(u64::from(most) + bytes),
        (None, Some(r), RegisterBound::Most(bounded, most)) => {
            r == bounded && memory.scale() == 8 && are_counters(8 * u64::from(most) + 8)
        }
        _ => false,
    }
}

/// Whether the operand is one of these words of this thread's shard.
fn is_own(env: &Environment, memory: &UsedMemory, words: &[u32]) -> bool {
    let absolute = memory.base() == Register::None && memory.index() == Register::None;
    let place = memory.displacement();
    env.cpu != CpuClock::None
        && env.identity != ThreadIdentity::Locked
        && memory.segment() == Register::GS
        && absolute
        && words.iter().any(|word| place == u64::from(env.data.displacement(*word)))
}

/// Whether the address is that of the pointer in a thread's rseq area. A routine may also read the words that show whether the area
/// belongs to this thread and is registered.
fn is_rseq(env: &Environment, place: u64, mode: Mode) -> bool {
    let CpuClock::Rseq { slot, .. } = env.cpu else { return false };
    let at = |offset: i32| place == i64::from(offset).cast_unsigned();
    match mode {
        Mode::Point => at(slot),
        Mode::Routine(_) => at(slot) || at(slot.wrapping_add(PROCESSOR)) || place == u64::from(SELF),
        Mode::Twin(_) => false,
    }
}

/// Whether the instruction stores the address of our descriptor in the pointer of the thread's rseq area.
fn is_descriptor(env: &Environment, i: &Instruction, memory: &UsedMemory) -> bool {
    let CpuClock::Rseq { slot, .. } = env.cpu else { return false };
    i.code() == Code::Mov_rm64_imm32
        && i.immediate32to64().cast_unsigned() == u64::from(env.data.displacement(header::DESCRIPTOR))
        && memory.segment() == Register::FS
        && memory.base() == Register::None
        && memory.index() == Register::None
        && memory.displacement() == i64::from(slot).cast_unsigned()
}

/// Whether the instruction increments, with `lock`, this word of the header, which counts events such as failed reads.
fn is_note(env: &Environment, i: &Instruction, memory: &UsedMemory, word: u32) -> bool {
    i.code() == Code::Inc_rm32
        && i.has_lock_prefix()
        && memory.segment() == Register::DS
        && memory.base() == Register::None
        && memory.index() == Register::None
        && memory.displacement() == u64::from(env.data.displacement(word))
}

/// Whether a shared routine may access the operand: a word of this thread's shard, or the stack.
fn routine_access(env: &Environment, memory: &UsedMemory) -> bool {
    let shard = env.data.base.0..env.data.base.0 + env.data.stride;
    memory.segment() == Register::GS && memory.index() == Register::None && shard.contains(&memory.displacement())
        || memory.segment() == Register::SS
}

/// Whether a thread at the loader's hook may write to the operand: it counts one more load, stores the loader's state, or clears one of two
/// flags or the state.
fn writes_to_engine(env: &Environment, i: &Instruction, memory: &UsedMemory) -> bool {
    let word = |at: u32| memory.displacement() == u64::from(env.data.displacement(at));
    let what = match i.code() {
        Code::Xadd_rm32_r32 => word(header::LOADS) && i.has_lock_prefix(),
        Code::Mov_rm32_r32 => word(header::LOADER_STATE),
        Code::Mov_rm32_imm32 => {
            let clears = [header::LISTENING, header::RENEWED, header::LOADER_STATE].into_iter().any(word);
            clears && i.immediate32() == 0
        }
        _ => false,
    };
    what && is_absolute(memory)
}

/// Whether a thread that has waited for room may write to the operand: it compares and exchanges the number of times that the engine has
/// emptied the buffers.
fn ends_waits(env: &Environment, i: &Instruction, memory: &UsedMemory) -> bool {
    i.code() == Code::Cmpxchg_rm32_r32
        && i.has_lock_prefix()
        && is_absolute(memory)
        && memory.displacement() == u64::from(env.data.displacement(header::DRAINS))
}

/// Whether a thread at the loader's hook may read the operand: the words that it shares with the engine, the `alive` word, or the loader's
/// own word.
fn reads_loader(env: &Environment, i: &Instruction, memory: &UsedMemory, bound: RegisterBound) -> bool {
    let words = [header::LISTENING, header::LOADS, header::ANSWERED, header::LOADER_STATE, header::RENEWED];
    let place = memory.displacement();
    let shared = words.iter().any(|at| place == u64::from(env.data.displacement(*at)));
    let known = is_absolute(memory) && (shared || place == u64::from(env.data.alive()));
    let loader = matches!(bound, RegisterBound::Loader(r) if number_of(memory.base()) == Some(r))
        && memory.index() == Register::None
        && place == 0
        && matches!(i.code(), Code::Mov_r32_rm32);
    known || loader
}

pub(super) fn is_absolute(memory: &UsedMemory) -> bool {
    memory.segment() == Register::DS && memory.base() == Register::None && memory.index() == Register::None
}

pub(super) fn permitted(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Mov
            | M::Movsxd
            | M::Movzx
            | M::Movsx
            | M::Lea
            | M::Add
            | M::Sub
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not
            | M::And
            | M::Or
            | M::Xor
            | M::Cmp
            | M::Test
            | M::Imul
            | M::Idiv
            | M::Cqo
            | M::Shl
            | M::Sar
            | M::Sete
            | M::Setne
            | M::Setl
            | M::Setle
            | M::Setg
            | M::Setge
            | M::Xadd
            | M::Cmpxchg
            | M::Rdtsc
            | M::Lfence
            | M::Mul
            | M::Shr
            | M::Shrd
            | M::Bsr
            | M::Btr
            | M::Rdfsbase
            | M::Rdgsbase
            | M::Movd
            | M::Movq
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::InstructionInfoFactory;

    use super::*;
    use crate::snippet::tests::environment;
    use crate::verify::memory;

    /// Whether a point may write to the memory operand if register 0 is at most 255.
    fn is_permitted(bytes: &[u8]) -> bool {
        let env = environment();
        let i = memory::decode(bytes, 0x1000).expect("an instruction");
        let mut factory = InstructionInfoFactory::new();
        let used = factory.info(&i).used_memory();
        used.iter().all(|memory| may_write(&env, &i, memory, RegisterBound::Most(0, 255), Mode::Point))
    }

    #[test]
    fn numbers_of_buckets_reach_counters_only() {
        let first = environment().data.counter(0);
        let bucket = |place: u32| [&[0x65, 0x48, 0xff, 0x04, 0xc5][..], &place.to_le_bytes()].concat();
        let byte = |place: u32| [&[0x65, 0xfe, 0x80][..], &place.to_le_bytes()].concat();
        assert!(is_permitted(&bucket(first)), "inc qword gs:[8*rax+{first:#x}]");
        assert!(is_permitted(&byte(first)), "inc byte gs:[rax+{first:#x}]");
        // The last byte of such an operand lies in the first page of memory.
        for negative in [-1i32, -8, -16, -256] {
            let place = negative.cast_unsigned();
            assert!(!is_permitted(&bucket(place)), "inc qword gs:[8*rax{negative}]");
            assert!(!is_permitted(&byte(place)), "inc byte gs:[rax{negative}]");
        }
        assert!(!is_permitted(&bucket(first - 8)) && !is_permitted(&byte(first - 1)), "before the counters");
    }
}
