//! Proof that the first instruction of a function may stay in place before a springboard. The springboard runs in the state after the
//! instruction, and the tail begins with a copy of it, so two runs must have the effect of one.

use iced_x86::{
    Code, EncodingKind, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedMemory, UsedRegister,
};
use ingraft_model::{FirstInstruction, Site};

use super::equivalence::{self, InstructionPair};
use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail, memory};
use crate::code::woven::WovenPoint;
use crate::patch::weave::PointRequest;

/// Checks the first instruction that a point leaves in place, if it runs once there. Returns the site behind it.
pub(super) fn behind(request: &PointRequest<'_>, point: Option<&WovenPoint>) -> Result<Option<Box<Site>>, VerifyError> {
    let Some(first) = point.and_then(|p| p.first.as_ref()).filter(|first| first.runs_once()) else { return Ok(None) };
    let site = request.site;
    let at = site.at.to_avma(request.bias).0;
    let i = memory::decode(own(site), at)?;
    if !runs_before_snippets(&i) {
        return fail(at, Flaw::NotEquivalent);
    }
    let last = site.at.0.wrapping_add(first.len.into());
    if site.landings.iter().any(|l| l.0 > site.at.0 && l.0 <= last) || !site.back_branches().is_empty() {
        return fail(at, Flaw::LandingInside);
    }
    if usize::from(first.len) != i.len() || site.first_instruction() != Some(first) {
        return fail(at, Flaw::Unmatched);
    }
    keeps_arguments(request, first, &i)?;
    site.behind_first().map_or_else(|| fail(at, Flaw::Unmatched), |site| Ok(Some(Box::new(site))))
}

/// Checks the first instruction that a point leaves in place and repeats, if it leaves one. Returns the instruction's length in bytes.
pub(super) fn staying(request: &PointRequest<'_>, point: &WovenPoint) -> Result<u64, VerifyError> {
    let (site, at) = (request.site, request.site.at.to_avma(request.bias).0);
    let must_stay = site.first_instruction().is_some_and(|first| first.must_stay);
    let Some(first) = &point.first else {
        return if must_stay { fail(at, Flaw::Astray) } else { Ok(0) };
    };
    if first.runs_once() {
        // The site is the one behind it.
        return Ok(0);
    }
    let i = memory::decode(own(site), at)?;
    let Some(lowers) = lowered(&i).or_else(|| runs_twice(&i).then_some(0)) else {
        return fail(at, Flaw::NotEquivalent);
    };
    let right = usize::from(first.len) == i.len() && first.lowers() == lowers;
    if site.first_instruction().is_none() || !right {
        return fail(at, Flaw::Unmatched);
    }
    keeps_arguments(request, first, &i)?;
    Ok(u64::from(first.len))
}

/// Checks that no snippet depends on running before the first instruction.
fn keeps_arguments(request: &PointRequest<'_>, first: &FirstInstruction, i: &Instruction) -> Result<(), VerifyError> {
    let mut factory = InstructionInfoFactory::new();
    let memory = factory.info(i).used_memory();
    let stores = memory.iter().any(|m| writes(m.access()));
    let accesses = memory.iter().any(|m| m.access() != OpAccess::NoMemAccess);
    let hides_change = (first.runs_once() && stores || overwritten(i).any(may_be_argument)) && !first.changes_input;
    let hides_access = first.runs_once() && accesses && !first.accesses_memory;
    if hides_change || hides_access || request.minis.iter().any(|m| first.spoils(m.snippet)) {
        return fail(request.site.at.to_avma(request.bias).0, Flaw::Lost);
    }
    Ok(())
}

/// Checks that the code at the base takes back the effect of the first instruction on the stack pointer. Returns the address at which the
/// state is that of the entry.
pub(super) fn taken_back(
    interpreter: &mut Interpreter<'_>,
    point: &WovenPoint,
    pairs: &mut Vec<InstructionPair>,
) -> Result<u64, VerifyError> {
    let base = point.base.0;
    let lowers = point.first.as_ref().map_or(0, FirstInstruction::lowers);
    if lowers == 0 {
        return Ok(base);
    }
    let i = interpreter.memory().decode(base)?;
    let raises = i.code() == Code::Lea_r64_m
        && i.op0_register() == Register::RSP
        && i.memory_base() == Register::RSP
        && i.memory_index() == Register::None
        && i.memory_displacement64() == u64::from(lowers);
    if !raises {
        return fail(base, Flaw::Stack);
    }
    equivalence::stays(interpreter, point.at.0, base, pairs)?;
    Ok(i.next_ip())
}

fn own(site: &Site) -> &[u8] {
    site.bytes.get(..usize::from(site.own)).unwrap_or_default()
}

/// Number of bytes by which a push of a fixed value, or a subtraction of a constant, lowers the stack pointer.
fn lowered(i: &Instruction) -> Option<u32> {
    let change = i.stack_pointer_increment();
    let pushes = i.mnemonic() == Mnemonic::Push && i.op0_kind() != OpKind::Memory && change == -8;
    if pushes {
        return (!i.op0_register().is_segment_register()).then_some(8);
    }
    let constant = i.op_count() == 2
        && i.op0_kind() == OpKind::Register
        && i.op0_register() == Register::RSP
        && matches!(i.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
    let change = match i.mnemonic() {
        Mnemonic::Sub if constant => i.immediate(1).cast_signed(),
        Mnemonic::Add if constant => i.immediate(1).cast_signed().checked_neg()?,
        _ => return None,
    };
    u32::try_from(change).ok().filter(|n| *n > 0 && i32::try_from(*n).is_ok())
}

fn writes(access: OpAccess) -> bool {
    use OpAccess as A;
    matches!(access, A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite)
}

/// Registers that an instruction may write, in their full width.
fn overwritten(i: &Instruction) -> impl Iterator<Item = Register> {
    let used: Vec<UsedRegister> = InstructionInfoFactory::new().info(i).used_registers().to_vec();
    used.into_iter().filter(|r| writes(r.access())).map(|r| r.register().full_register())
}

/// Registers of the System V convention for arguments, with al, which holds the number of those in vector registers, left out.
fn may_be_argument(r: Register) -> bool {
    use Register as R;
    matches!(r, R::RDI | R::RSI | R::RDX | R::RCX | R::R8 | R::R9) || (R::ZMM0..=R::ZMM7).contains(&r)
}

/// Whether an instruction has no effect but on registers, arithmetic flags and memory, and is no operation on the stack.
fn is_plain(i: &Instruction) -> bool {
    let legacy_or_vector = matches!(i.encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX);
    i.flow_control() == FlowControl::Next
        && legacy_or_vector
        && !i.is_privileged()
        && !i.is_stack_instruction()
        && !i.is_string_instruction()
        && !i.fpu_stack_increment_info().writes_top()
        && !has_other_effects(i)
}

/// Whether snippets may run behind an instruction: it leaves the stack pointer alone, and the memory below it.
fn runs_before_snippets(i: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let on_stack = |m: &UsedMemory| m.base() == Register::RSP && writes(m.access());
    let stores = factory.info(i).used_memory().iter().any(on_stack);
    let odd = overwritten(i).any(|w| w == Register::RSP || !(w.is_gpr64() || w.is_zmm()));
    is_plain(i) && !stores && !odd
}

/// Whether a second run right after the first one changes nothing. The instruction has no effect but on registers and arithmetic flags, and
/// it reads none of those that it writes. It reads no memory but the stack, data at a fixed place and data of the thread: a device may notice
/// a second read.
fn runs_twice(i: &Instruction) -> bool {
    let plain = is_plain(i) && !i.has_lock_prefix();
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let stores = info.used_memory().iter().any(|m| writes(m.access()));
    let noticed = info.used_memory().iter().any(|m| m.access() != OpAccess::NoMemAccess && !is_plain_memory(m));
    let reads: Vec<Register> = info
        .used_registers()
        .iter()
        .filter(|r| {
            !matches!(r.access(), OpAccess::None | OpAccess::NoMemAccess | OpAccess::Write | OpAccess::CondWrite)
        })
        .map(|r| r.register().full_register())
        .collect();
    let own = overwritten(i).any(|w| reads.contains(&w)) && !extends_itself(i);
    let odd = overwritten(i).any(|w| w == Register::RSP || !(w.is_gpr64() || w.is_zmm()));
    plain && !stores && !noticed && !own && !odd && i.rflags_read() & i.rflags_modified() == 0
}

/// Whether memory is on the stack, at a fixed address, or at a fixed place of the thread's own data.
fn is_plain_memory(m: &UsedMemory) -> bool {
    m.index() == Register::None
        && match m.segment() {
            Register::FS => m.base() == Register::None,
            Register::SS => m.base() == Register::RSP,
            // The end of the goroutine's stack, with which Go's functions compare the stack pointer.
            Register::DS if m.base() == Register::R14 => m.displacement() == 16,
            Register::DS => m.base() == Register::None && m.displacement() != 0,
            _ => false,
        }
}

/// Instructions that leave more behind than registers and flags, or that wait.
fn has_other_effects(i: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(
        i.mnemonic(),
        M::Cpuid
            | M::Rdtsc
            | M::Rdtscp
            | M::Rdrand
            | M::Rdseed
            | M::Rdpmc
            | M::Rdpkru
            | M::Wrpkru
            | M::Xgetbv
            | M::Pause
    ) || matches!(i.mnemonic(), M::Incsspd | M::Incsspq | M::Setssbsy | M::Saveprevssp | M::Rstorssp | M::Tpause)
        || matches!(i.mnemonic(), M::Umonitor | M::Umwait | M::Xrstor | M::Xrstor64 | M::Fxrstor | M::Fxrstor64)
        || matches!(i.mnemonic(), M::Ldmxcsr | M::Vldmxcsr | M::Cld | M::Std | M::Emms | M::Wrfsbase | M::Wrgsbase)
        || matches!(i.mnemonic(), M::Endbr64 | M::Clflush | M::Clflushopt | M::Clwb | M::Monitor | M::Mwait)
}

/// Whether an instruction writes the extended low part of a register to this register.
fn extends_itself(i: &Instruction) -> bool {
    let low = |r: Register| !matches!(r, Register::AH | Register::BH | Register::CH | Register::DH);
    let extends = matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd);
    let (to, from) = (i.op0_register(), i.op1_register());
    extends
        && i.op0_kind() == OpKind::Register
        && i.op1_kind() == OpKind::Register
        && to.full_register() == from.full_register()
        && low(to)
        && low(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> (Option<u32>, bool) {
        let i = memory::decode(bytes, 0x1000).expect("an instruction");
        (lowered(&i), runs_twice(&i))
    }

    #[test]
    fn effects() {
        assert_eq!(of(&[0x55]), (Some(8), false), "push rbp");
        assert_eq!(of(&[0x68, 1, 0, 0, 0]), (Some(8), false), "push 1");
        assert_eq!(of(&[0x48, 0x83, 0xec, 0x18]), (Some(24), false), "sub rsp, 24");
        assert_eq!(of(&[0x48, 0x83, 0xc4, 0x80]), (Some(128), false), "add rsp, -128");
        for bytes in [&[0x66, 0x55][..], &[0xff, 0x37], &[0x0f, 0xa0], &[0x9c], &[0x48, 0x83, 0xc4, 8], &[0x58]] {
            assert_eq!(of(bytes), (None, false), "{bytes:x?}");
        }
        let twice: [&[u8]; 8] = [
            &[0x90],
            &[0x31, 0xc0],
            &[0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0],
            &[0x48, 0x8b, 0x44, 0x24, 8],
            &[0x85, 0xff],
            &[0x48, 0x63, 0xff],
            &[0x66, 0x0f, 0xef, 0xc0],
            &[0x80, 0x3d, 0, 0, 0, 0, 0],
        ];
        for bytes in twice {
            assert_eq!(of(bytes), (None, true), "{bytes:x?}");
        }
        let not: [&[u8]; 14] = [
            &[0x48, 0x8b, 0x07],
            &[0x48, 0x8b, 0x3f],
            &[0x42, 0x80, 0x3c, 0x20, 0],
            &[0x48, 0x83, 0xc7, 8],
            &[0x89, 0x07],
            &[0x0f, 0xb6, 0xc4],
            &[0xd9, 0xe8],
            &[0x0f, 0x31],
            &[0xc3],
            &[0xa4],
            &[0xf0, 0xff, 0x07],
            &[0x19, 0xc0],
            &[0x48, 0x97],
            &[0x48, 0x89, 0xfc],
        ];
        for bytes in not {
            assert_eq!(of(bytes), (None, false), "{bytes:x?}");
        }
    }
}
