//! First instructions that can stay in place, with the springboard of the entry after them.
//!
//! Other tools, such as the kernel's uprobes, execute the file's first instruction elsewhere and go on after it. If that instruction stays
//! in place, neither disturbs the other. Where two runs have the effect of one, the code of the point takes back the effect on the stack
//! pointer, so that snippets find the state of the entry, and the relocated code executes the instruction again. Other instructions run once,
//! before the snippets.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedRegister,
};
use ingraft_model::{FirstEffect, FirstInstruction, FreeRegisters, Svma};

use crate::flow::liveness::{self, CALLER_SAVED, SCRATCH_ORDER};
use crate::functions::function::Function;
use crate::functions::unwinders;
use crate::image::AnalysedImage;
use crate::sites::springboard::SHORT;
use crate::text::decode;

/// Registers of the System V convention that hold integer arguments.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// The first instruction of a function that begins without `endbr64`, if the entry's springboard can lie after it, as far as the file
/// tells.
pub(crate) fn first_instruction(image: &AnalysedImage, function: &Function) -> Option<FirstInstruction> {
    let start = function.start;
    let i = decode::one(image.elf().data_from(start)?, start)?;
    let next = i.next_ip();
    let arrives = image.arrivals().first(start + 1, next + 1).is_some();
    let suspended = image.suspensions(&(start..next + SHORT)).at(next);
    let probed = image.probes_in(&(Svma(start + 1)..Svma(next + 1))).next().is_some();
    if next >= start + function.size || arrives || suspended || probed {
        return None;
    }
    let effect = match lowered(&i).or_else(|| is_repeatable(&i).then_some(0)) {
        Some(lowers) => FirstEffect::Repeated { lowers },
        None if runs_before_snippets(&i) && image.back_branches_to(start).next().is_none() => {
            FirstEffect::Once { free: free_at(&mut InstructionInfoFactory::new(), image, function, next) }
        }
        None => return None,
    };
    let accesses =
        |is: fn(OpAccess) -> bool| InstructionInfoFactory::new().info(&i).used_memory().iter().any(|m| is(m.access()));
    let once = matches!(effect, FirstEffect::Once { .. });
    Some(FirstInstruction {
        len: i.len() as u8,
        changes_input: overwrites_argument(&i) || once && accesses(|access| !is_read_only(access)),
        accesses_memory: once && accesses(|access| access != OpAccess::NoMemAccess),
        may_fault: once && unwinders::faults(&i),
        must_stay: image.is_probe(start),
        effect,
    })
}

/// Registers and flags that snippets may overwrite at an address in a function.
pub(crate) fn free_at(
    info: &mut InstructionInfoFactory,
    image: &AnalysedImage,
    function: &Function,
    at: u64,
) -> FreeRegisters {
    let overwritten = if function.facts.calls_out { CALLER_SAVED } else { u32::from(function.facts.writes) };
    let inside = |target| function.contains(Svma(target));
    let dead = liveness::dead_at(info, image.elf(), (at, overwritten & CALLER_SAVED), inside);
    let scratch = SCRATCH_ORDER.into_iter().filter(|r| dead.registers >> r.0 & 1 != 0).collect();
    FreeRegisters { scratch, flags: dead.flags }
}

/// Whether snippets may run after an instruction as they would before it: it leaves the stack pointer and the red zone alone, and all state
/// but general and vector registers, arithmetic flags and memory.
fn runs_before_snippets(i: &Instruction) -> bool {
    if i.flow_control() != FlowControl::Next || !is_plain(i) {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let written = |r: &&UsedRegister| !is_read_only(r.access());
    let stack = info.used_registers().iter().filter(written).any(|r| r.register().full_register() == Register::RSP);
    let red_zone = info.used_memory().iter().any(|m| !is_read_only(m.access()) && m.base() == Register::RSP);
    !stack && !red_zone
}

/// Number of bytes by which an instruction lowers the stack pointer, if it does nothing else but to push a value that does not change, or to
/// make room.
fn lowered(i: &Instruction) -> Option<u32> {
    let room = |bytes: i64| u32::try_from(bytes).ok().filter(|n| (1..=i32::MAX as u32).contains(n));
    let at_stack = i.op0_register() == Register::RSP && i.op0_kind() == OpKind::Register;
    match i.code() {
        Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 => Some(8),
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if at_stack => room(i.immediate(1).cast_signed()),
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if at_stack => room(i.immediate(1).cast_signed().checked_neg()?),
        _ => None,
    }
}

/// Whether two executions of an instruction in a row have the effect of one, whatever other threads do: it stores nothing, leaves the stack
/// pointer alone, and reads no register or flag that it writes, and no memory that may be a device's.
fn is_repeatable(i: &Instruction) -> bool {
    if i.flow_control() != FlowControl::Next || !is_plain(i) || i.has_lock_prefix() {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let stores = info.used_memory().iter().any(|m| !is_read_only(m.access()));
    let reads = info.used_memory().iter().any(|m| is_read(m.access()));
    let device = reads && may_be_device(i);
    let used = info.used_registers();
    let same = |a: &UsedRegister, b: &UsedRegister| a.register().full_register() == b.register().full_register();
    let written = || used.iter().filter(|r| !is_read_only(r.access()));
    let reads_own = written().any(|w| used.iter().any(|r| is_read(r.access()) && same(w, r)));
    let stack = written().any(|w| w.register().full_register() == Register::RSP);
    let flags = i.rflags_read() & i.rflags_modified() != 0;
    !stores && !device && !stack && !flags && (!reads_own || narrows(i))
}

/// Whether the memory at which an instruction reads may be a register of a device, which may change when it is read. The stack, data at a
/// fixed distance from the code and the data of a thread are plain memory, and so is the end of a goroutine's stack, with which Go's
/// functions compare the stack pointer.
fn may_be_device(i: &Instruction) -> bool {
    let checks_stack = i.mnemonic() == Mnemonic::Cmp && i.op0_register() == Register::RSP;
    let goroutine = i.memory_base() == Register::R14 && i.memory_displacement64() == 16;
    let plain = checks_stack && goroutine
        || matches!(i.memory_base(), Register::RSP | Register::RIP)
        || i.segment_prefix() == Register::FS;
    !plain
        || !matches!(i.segment_prefix(), Register::None | Register::FS)
        || i.memory_index() != Register::None
        || i.segment_prefix() == Register::FS && i.memory_base() != Register::None
}

/// Whether an instruction extends the low part of a register into the same register, or copies a register to itself.
fn narrows(i: &Instruction) -> bool {
    let high = [Register::AH, Register::BH, Register::CH, Register::DH];
    let registers = i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Register;
    matches!(i.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd)
        && registers
        && i.op0_register().full_register() == i.op1_register().full_register()
        && !high.contains(&i.op0_register())
        && !high.contains(&i.op1_register())
}

/// Whether an instruction only moves, compares or computes values: it has no effect besides registers, arithmetic flags and memory.
fn is_plain(i: &Instruction) -> bool {
    use Mnemonic as M;
    let segment = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_segment_register());
    let control = (0..i.op_count()).any(|n| {
        let r = i.op_register(n);
        i.op_kind(n) == OpKind::Register && (r.is_cr() || r.is_dr() || r.is_tr())
    });
    let known =
        matches!(
            i.mnemonic(),
            M::Mov | M::Movzx | M::Movsx | M::Movsxd | M::Movbe | M::Lea | M::Xor | M::Sub | M::Add | M::And | M::Or
        ) || matches!(
            i.mnemonic(),
            M::Test
                | M::Cmp
                | M::Bt
                | M::Nop
                | M::Inc
                | M::Dec
                | M::Adc
                | M::Sbb
                | M::Xadd
                | M::Xchg
                | M::Cmpxchg
                | M::Imul
                | M::Shl
                | M::Shr
                | M::Sar
                | M::Not
                | M::Neg
        ) || matches!(i.mnemonic(), M::Bsf | M::Bsr | M::Tzcnt | M::Lzcnt | M::Popcnt | M::Rorx | M::Shlx | M::Shrx)
            || matches!(i.mnemonic(), M::Sarx | M::Andn | M::Bzhi | M::Blsr | M::Blsi | M::Blsmsk | M::Pdep | M::Pext)
            || matches!(i.mnemonic(), M::Movd | M::Movq | M::Movss | M::Movsd | M::Movaps | M::Movups | M::Movapd)
            || matches!(i.mnemonic(), M::Movupd | M::Movdqa | M::Movdqu | M::Pxor | M::Xorps | M::Xorpd | M::Comiss)
            || matches!(i.mnemonic(), M::Comisd | M::Ucomiss | M::Ucomisd | M::Cvtsi2sd | M::Cvtsi2ss | M::Cvttsd2si)
            || matches!(i.mnemonic(), M::Cvttss2si | M::Movmskps | M::Movmskpd | M::Pshufd | M::Vmovd | M::Vmovq)
            || matches!(i.mnemonic(), M::Vmovss | M::Vmovsd | M::Vmovaps | M::Vmovups | M::Vmovapd | M::Vmovupd)
            || matches!(i.mnemonic(), M::Vmovdqa | M::Vmovdqu | M::Vmovdqu8 | M::Vmovdqu64 | M::Vmovdqa64 | M::Vpxor)
            || matches!(i.mnemonic(), M::Vxorps | M::Vxorpd | M::Vpbroadcastb | M::Vpbroadcastd | M::Vpbroadcastq);
    // `movsd` is also the name of a string instruction, and `pxor` has a form for the registers of MMX.
    known && !i.is_string_instruction() && !writes_odd_register(i) && !segment && !control && i.code() != Code::Endbr64
}

/// Whether an instruction writes a register that is neither a general nor a vector register.
fn writes_odd_register(i: &Instruction) -> bool {
    let is_usual = |r: Register| r.is_gpr64() || r.is_zmm();
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(i).used_registers();
    used.iter().any(|r| !is_read_only(r.access()) && !is_usual(r.register().full_register()))
}

/// Whether an instruction writes a register of the System V convention that may hold an argument.
fn overwrites_argument(i: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    info.used_registers().iter().filter(|r| !is_read_only(r.access())).any(|r| {
        let full = r.register().full_register();
        ARGUMENTS.contains(&full) || (Register::ZMM0..=Register::ZMM7).contains(&full)
    })
}

fn is_read_only(access: OpAccess) -> bool {
    matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

fn is_read(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> (Option<u32>, bool, bool) {
        let i = decode::one(bytes, 0x1000).expect("an instruction");
        (lowered(&i), is_repeatable(&i), overwrites_argument(&i))
    }

    #[test]
    fn effects_on_the_stack_pointer() {
        assert_eq!(of(&[0x55]), (Some(8), false, false), "push rbp");
        assert_eq!(of(&[0x57]), (Some(8), false, false), "push rdi");
        assert_eq!(of(&[0x6a, 1]), (Some(8), false, false), "push 1");
        assert_eq!(of(&[0x48, 0x83, 0xec, 0x18]), (Some(24), false, false), "sub rsp, 24");
        assert_eq!(of(&[0x48, 0x81, 0xec, 0, 1, 0, 0]), (Some(256), false, false), "sub rsp, 256");
        assert_eq!(of(&[0x48, 0x83, 0xc4, 0x80]), (Some(128), false, false), "add rsp, -128");
        assert_eq!(of(&[0x48, 0x83, 0xc4, 8]).0, None, "add rsp, 8");
        assert_eq!(of(&[0x48, 0x83, 0xec, 0xf8]).0, None, "sub rsp, -8");
        assert_eq!(of(&[0x66, 0x55]).0, None, "push bp");
        assert_eq!(of(&[0xff, 0x37]).0, None, "push [rdi], which another thread may change");
        assert_eq!(of(&[0x58]).0, None, "pop rax");
    }

    #[test]
    fn instructions_that_can_run_twice() {
        let repeatable: [&[u8]; 11] = [
            &[0x90],                                     // nop
            &[0x31, 0xc0],                               // xor eax, eax
            &[0x89, 0xf8],                               // mov eax, edi
            &[0x85, 0xff],                               // test edi, edi
            &[0x80, 0x3d, 0, 0, 0, 0, 0],                // cmp byte [rip], 0
            &[0x64, 0x48, 0x8b, 4, 0x25, 0x28, 0, 0, 0], // mov rax, fs:[40]
            &[0x48, 0x8d, 0x47, 8],                      // lea rax, [rdi + 8]
            &[0x66, 0x0f, 0xef, 0xc0],                   // pxor xmm0, xmm0
            &[0x48, 0x63, 0xff],                         // movsxd rdi, edi
            &[0x40, 0x0f, 0xb6, 0xff],                   // movzx edi, dil
            &[0x0f, 0x1f, 0x44, 0, 0],                   // nop [rax + rax]
        ];
        for bytes in repeatable {
            assert!(of(bytes).1, "{bytes:x?}");
        }
        let others: [&[u8]; 14] = [
            &[0x65, 0x8b, 0x05, 0, 0, 0, 0], // mov eax, gs:[rip]
            &[0x3e, 0x8b, 0x44, 0x24, 8],    // mov eax, ds:[rsp + 8]
            &[0x48, 0x8b, 0x3f],             // mov rdi, [rdi]
            &[0x48, 0x83, 0xc7, 8],          // add rdi, 8
            &[0x89, 0x07],                   // mov [rdi], eax
            &[0x48, 0x8b, 0x07],             // mov rax, [rdi], which may be a device's register
            &[0x42, 0x80, 0x3c, 0x20, 0],    // cmp byte [rax + r12], 0
            &[0xff, 0xc7],                   // inc edi
            &[0x0f, 0xb6, 0xc4],             // movzx eax, ah
            &[0xc3],                         // ret
            &[0xe8, 0, 0, 0, 0],             // call
            &[0xd9, 0xe8],                   // fld1
            &[0x48, 0x97],                   // xchg rax, rdi
            &[0xcc],                         // int3
        ];
        for bytes in others {
            assert!(!of(bytes).1, "{bytes:x?}");
        }
        for bytes in [&[0xa5][..], &[0xf3, 0xa5], &[0xa4], &[0x0f, 0xef, 0x00]] {
            assert!(!runs_before_snippets(&decode::one(bytes, 0x1000).expect("an instruction")), "{bytes:x?}");
        }
        assert!(of(&[0x48, 0x89, 0xe5]).1, "mov rbp, rsp sees the stack pointer of the entry both times");
    }

    #[test]
    fn arguments_that_are_lost() {
        assert!(of(&[0x31, 0xff]).2, "xor edi, edi");
        assert!(of(&[0x66, 0x0f, 0xef, 0xc0]).2, "pxor xmm0, xmm0");
        assert!(of(&[0x48, 0x63, 0xff]).2, "movsxd rdi, edi");
        assert!(!of(&[0x31, 0xc0]).2, "xor eax, eax");
        assert!(!of(&[0x85, 0xff]).2, "test edi, edi");
    }
}
