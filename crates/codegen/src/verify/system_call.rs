//! System calls of shared routines. The instructions right before a system call set its arguments, and are compared one by one.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use ingraft_model::{CpuClock, RecordField, ThreadIdentity, WallClock};

use super::waiting;
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::cpu::{CLOCK_GETTIME, THREAD_CPUTIME};
use crate::snippet::reading::{LENGTHS, MemoryAccess, VALUE};
use crate::snippet::record::{PLACES, TEXT};
use crate::snippet::usage::{GETRUSAGE, THREAD};
use crate::snippet::wall::CLOCK_MONOTONIC;

/// Number of words that a system call writes: struct timespec, struct rusage.
pub(super) const TIME_WORDS: usize = 2;
const RUSAGE_WORDS: usize = 18;
/// Number of words for a text.
pub(super) const TEXT_WORDS: usize = RecordField::TEXT_BYTES as usize / 8;
/// Length in bytes of `mov edi, imm32; mov rsi, rsp; mov eax, imm32`, which asks for data of the calling thread, written to the words that
/// were pushed last.
const CLOCK_CALL: u64 = 13;
/// Length in bytes of the instructions that [`is_memory`] compares, without the one that names the process: `mov edi, imm32` or `mov edi,
/// fs:[disp32]`.
const READ_CALL: u64 = 43;
/// Length for a write, where the pushed word is loaded instead of cleared.
const WRITE_CALL: u64 = READ_CALL + 2;
const NAMED: u64 = 5;
const NAMED_BY_THREAD: u64 = 8;

/// A permitted system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemCall {
    /// Address of the first instruction that sets an argument. No jump may lead between it and the system call.
    pub start: u64,
    /// Number of words, of those pushed last, that the kernel writes.
    pub writes: usize,
    /// Number of words that the routine must have pushed; `None` if any number will do.
    pub pushed: Option<usize>,
}

/// The system call at `at`, if the routine may make it. `before(n)` is the n-th instruction before `at`.
pub(super) fn call(
    env: &Environment,
    routine: Routine,
    at: u64,
    before: &dyn Fn(usize) -> Instruction,
) -> Option<SystemCall> {
    if matches!(routine, Routine::Await | Routine::Room) {
        return waiting::call(env, routine, before);
    }
    if routine == Routine::Text {
        return is_text(env, before);
    }
    let writes = match routine {
        Routine::Read | Routine::Write => 0,
        Routine::Usage => RUSAGE_WORDS,
        _ => TIME_WORDS,
    };
    let call = SystemCall { start: at.wrapping_sub(bytes_before(env, routine)), writes, pushed: None };
    permitted(env, routine, at, before).then_some(call)
}

/// Length in bytes of the code before a routine's system call that no jump may enter.
fn bytes_before(env: &Environment, routine: Routine) -> u64 {
    match (routine, env.identity) {
        (
            Routine::CpuTime
            | Routine::Prune
            | Routine::Find
            | Routine::GiveUp
            | Routine::Await
            | Routine::Room
            | Routine::Usage
            | Routine::Time,
            _,
        ) => CLOCK_CALL,
        (
            Routine::Call
            | Routine::Event
            | Routine::Fork
            | Routine::Forked
            | Routine::LeaveStack
            | Routine::EnterStack
            | Routine::OpenTimed
            | Routine::CloseTimed
            | Routine::CloseTimedOwn
            | Routine::ObserveCoarse
            | Routine::ObserveMedium
            | Routine::ObserveFine
            | Routine::PruneGoroutine
            | Routine::Park
            | Routine::Fetch
            | Routine::Cut
            | Routine::Enter
            | Routine::EnterMoving
            | Routine::LeaveMoving
            | Routine::Descriptor
            | Routine::KeepsNotes
            | Routine::BeginNotes
            | Routine::AddNote
            | Routine::TellNotes
            | Routine::EndNotes
            | Routine::Text,
            _,
        ) => 0,
        (Routine::Read, identity) => READ_CALL + named(identity),
        (Routine::Write, identity) => WRITE_CALL + named(identity),
    }
}

fn named(identity: ThreadIdentity) -> u64 {
    match identity {
        ThreadIdentity::FsOffset(_) => NAMED_BY_THREAD,
        ThreadIdentity::FsBase | ThreadIdentity::Locked => NAMED,
    }
}

/// Whether the routine may make the system call at `at`. `before(n)` is the n-th instruction before `at`.
fn permitted(env: &Environment, routine: Routine, at: u64, before: &dyn Fn(usize) -> Instruction) -> bool {
    let processor_time = || env.cpu != CpuClock::None && asks_for(at, before, CLOCK_GETTIME, THREAD_CPUTIME);
    let time = || env.wall != WallClock::Tsc && asks_for(at, before, CLOCK_GETTIME, CLOCK_MONOTONIC);
    match routine {
        Routine::CpuTime => processor_time(),
        Routine::Prune | Routine::Find | Routine::GiveUp => processor_time() || time(),
        Routine::Time => time(),
        Routine::Usage => env.readable.process.is_some() && asks_for(at, before, GETRUSAGE, THREAD),
        Routine::Call
        | Routine::Event
        | Routine::Await
        | Routine::Room
        | Routine::Fork
        | Routine::Forked
        | Routine::LeaveStack
        | Routine::EnterStack
        | Routine::OpenTimed
        | Routine::CloseTimed
        | Routine::CloseTimedOwn
        | Routine::ObserveCoarse
        | Routine::ObserveMedium
        | Routine::ObserveFine
        | Routine::PruneGoroutine
        | Routine::Park
        | Routine::Fetch
        | Routine::Cut
        | Routine::Enter
        | Routine::EnterMoving
        | Routine::LeaveMoving
        | Routine::Descriptor
        | Routine::KeepsNotes
        | Routine::BeginNotes
        | Routine::AddNote
        | Routine::TellNotes
        | Routine::EndNotes
        | Routine::Text => false,
        Routine::Read => is_memory(env, MemoryAccess::Read, at, before),
        Routine::Write => is_memory(env, MemoryAccess::Write, at, before),
    }
}

/// Whether the system call is `number` with the first argument `what`, and writes its answer to the words that were pushed last.
fn asks_for(at: u64, before: &dyn Fn(usize) -> Instruction, number: i32, what: i32) -> bool {
    let (eax, rsi, edi) = (before(1), before(2), before(3));
    let place = (rsi.op0_register(), rsi.op1_register()) == (Register::RSI, Register::RSP)
        && matches!(rsi.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64);
    sets(&eax, Register::EAX, number.cast_unsigned())
        && place
        && sets(&edi, Register::EDI, what.cast_unsigned())
        && edi.ip() == at.wrapping_sub(CLOCK_CALL)
}

fn sets(i: &Instruction, r: Register, value: u32) -> bool {
    i.code() == Code::Mov_r32_imm32 && i.op0_register() == r && i.immediate32() == value
}

/// Whether the system call copies at most 15 bytes between the address in rcx and the two words that are pushed first, within the process
/// itself. The process is named by its id or by its thread's.
fn is_memory(env: &Environment, access: MemoryAccess, at: u64, before: &dyn Fn(usize) -> Instruction) -> bool {
    use Register as R;
    let words = before(15);
    let (filled, routine) = match access {
        MemoryAccess::Read => (clears(words, R::R8D), Routine::Read),
        MemoryAccess::Write => {
            let loaded = words.code() == Code::Mov_r64_rm64
                && (words.op0_register(), words.memory_base(), words.memory_index()) == (R::R8, R::RSP, R::None)
                && words.memory_displacement64() == VALUE as u64;
            (loaded, Routine::Write)
        }
    };
    let bounded = before(16);
    bounded.code() == Code::And_rm32_imm8
        && bounded.op0_register() == R::EDX
        && bounded.immediate8to32() == LENGTHS
        && filled
        && pushes(before(14), R::R8)
        && pushes(before(13), R::R8)
        && copies(before(12), R::R9, R::RSP)
        && pushes(before(11), R::RDX)
        && pushes(before(10), R::R9)
        && copies(before(9), R::RSI, R::RSP)
        && pushes(before(8), R::RDX)
        && pushes(before(7), R::RCX)
        && copies(before(6), R::R10, R::RSP)
        && names_process(env, &before(5))
        && sets(&before(4), R::EDX, 1)
        && sets(&before(3), R::R8D, 1)
        && clears(before(2), R::R9D)
        && sets(&before(1), R::EAX, access.number().cast_unsigned())
        && bounded.ip() == at.wrapping_sub(bytes_before(env, routine))
}

/// Whether an instruction clears a register, or copies one to another, or pushes one.
fn two(i: Instruction, mnemonic: Mnemonic, a: Register, b: Register) -> bool {
    i.mnemonic() == mnemonic
        && i.op_kinds().all(|kind| kind == OpKind::Register)
        && (i.op0_register(), i.op1_register()) == (a, b)
}

fn copies(i: Instruction, to: Register, from: Register) -> bool {
    two(i, Mnemonic::Mov, to, from)
}

fn clears(i: Instruction, r: Register) -> bool {
    two(i, Mnemonic::Xor, r, r)
}

fn pushes(i: Instruction, r: Register) -> bool {
    i.code() == Code::Push_r64 && i.op0_register() == r
}

/// Whether an instruction names the process itself as the first argument of a system call, by its id or by its thread's.
fn names_process(env: &Environment, who: &Instruction) -> bool {
    use Register as R;
    match (env.identity, env.readable.process) {
        (_, None) => false,
        (ThreadIdentity::FsOffset(offset), _) => {
            who.code() == Code::Mov_r32_rm32
                && who.op0_register() == R::EDI
                && who.memory_segment() == R::FS
                && (who.memory_base(), who.memory_index()) == (R::None, R::None)
                && who.memory_displacement64() == u64::from(offset)
        }
        (ThreadIdentity::FsBase | ThreadIdentity::Locked, Some(process)) => sets(who, R::EDI, process),
    }
}

/// The system call of [`Routine::Text`], if it copies at most [`RecordField::TEXT_BYTES`] bytes of the process itself, from the two places that
/// were pushed, to the words that lay on the stack before the routine.
fn is_text(env: &Environment, before: &dyn Fn(usize) -> Instruction) -> Option<SystemCall> {
    use Register as R;
    let place = before(10);
    let words = place.code() == Code::Lea_r64_m
        && (place.op0_register(), place.memory_base(), place.memory_index()) == (R::R9, R::RSP, R::None)
        && place.memory_displacement64() == TEXT as u64;
    let right = pushes(before(15), R::R8)
        && pushes(before(14), R::RDX)
        && pushes(before(13), R::R9)
        && pushes(before(12), R::RCX)
        && copies(before(11), R::R10, R::RSP)
        && words
        && sets(&before(9), R::EDX, RecordField::TEXT_BYTES)
        && pushes(before(8), R::RDX)
        && pushes(before(7), R::R9)
        && copies(before(6), R::RSI, R::RSP)
        && names_process(env, &before(5))
        && sets(&before(4), R::EDX, 1)
        && sets(&before(3), R::R8D, PLACES.cast_unsigned())
        && clears(before(2), R::R9D)
        && sets(&before(1), R::EAX, MemoryAccess::Read.number().cast_unsigned());
    // The place is right if the routine has pushed what lies between it and the stack pointer, and the two words of the place itself.
    let pushed = Some(TEXT as usize / 8 + 2);
    right.then(|| SystemCall { start: before(15).ip(), writes: 0, pushed })
}
