//! Displaced instructions: the choice of instructions that can be moved, and equivalent code at another address.
//!
//! Bytes are copied and only displacements change, so prefixes and unusual encodings survive. iced's block encoder is unsuitable: it turns
//! far calls into calls whose return address lies in the arena, and it loses the map of addresses.

use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use ingraft_model::{Offset, Refusal};

use crate::code::block::{Back, CodeBuffer, OutOfReach, displacement};

/// Change that an instruction needs in order to work at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relocation {
    /// No change, or only a new displacement.
    Copy,
    Jump(u64),
    /// Conditional jump: the condition as the instruction set numbers it, and the target.
    Jcc(u8, u64),
    /// `loop` or `jrcxz`, which have no form with a 32-bit displacement.
    Loop(u64),
    Call(u64),
    IndirectCall,
}

/// A decoded original instruction that may be displaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Displaced {
    pub at: u64,
    len: u8,
    bytes: [u8; 15],
    kind: Relocation,
    /// Offset of the displacement of a rip-relative operand; `None` without such an operand.
    rip: Option<u8>,
    /// Whether control never continues after the instruction.
    pub ends: bool,
}

impl Displaced {
    /// First byte after the instruction.
    pub fn next(&self) -> u64 {
        self.at.wrapping_add(u64::from(self.len))
    }

    /// A jump of a copy, for the code of a point that takes its place. It stands for the instruction at `original`.
    pub fn jump(original: u64, to: u64) -> Self {
        Displaced { at: original, len: 5, bytes: [0; 15], kind: Relocation::Jump(to), rip: None, ends: true }
    }

    /// A conditional jump of a copy, which begins with these bytes, like [`Displaced::jump`].
    pub fn branch(original: u64, bytes: [u8; 5], to: u64) -> Self {
        let kind = Relocation::Jcc(bytes[1] & 0x0f, to);
        Displaced { at: original, len: 6, bytes: [0; 15], kind, rip: None, ends: false }
    }

    /// Length in bytes of the code that replaces a branch.
    pub fn copy_len(&self) -> u64 {
        match self.kind {
            Relocation::Jcc(..) => 6,
            Relocation::Loop(_) => u64::from(self.len) + 7,
            Relocation::Copy | Relocation::Jump(_) | Relocation::Call(_) | Relocation::IndirectCall => 5,
        }
    }

    /// Fixed target of a branch; `None` for calls and for all other instructions.
    pub fn branch_target(&self) -> Option<u64> {
        match self.kind {
            Relocation::Jump(t) | Relocation::Jcc(_, t) | Relocation::Loop(t) => Some(t),
            Relocation::Copy | Relocation::Call(_) | Relocation::IndirectCall => None,
        }
    }

    /// Condition, as the instruction set numbers it, and target of a conditional jump.
    pub fn condition(&self) -> Option<(u8, u64)> {
        match self.kind {
            Relocation::Jcc(condition, target) => Some((condition, target)),
            Relocation::Copy
            | Relocation::Jump(_)
            | Relocation::Loop(_)
            | Relocation::Call(_)
            | Relocation::IndirectCall => None,
        }
    }

    /// Whether the instruction can be a point by itself: a return, a jump, conditional or not, or a call.
    pub fn may_be_point(&self) -> bool {
        match self.kind {
            Relocation::Copy => self.ends,
            Relocation::Jump(_) | Relocation::Jcc(..) | Relocation::Call(_) | Relocation::IndirectCall => true,
            Relocation::Loop(_) => false,
        }
    }

    /// Whether the instruction is a jump, conditional or not, whose copy has a displacement of 32 bits.
    pub fn is_branch(&self) -> bool {
        matches!(self.kind, Relocation::Jump(_) | Relocation::Jcc(..))
    }

    /// Target of a call of a fixed address.
    pub fn callee(&self) -> Option<u64> {
        match self.kind {
            Relocation::Call(target) => Some(target),
            Relocation::Copy
            | Relocation::Jump(_)
            | Relocation::Jcc(..)
            | Relocation::Loop(_)
            | Relocation::IndirectCall => None,
        }
    }

    /// Whether the instruction is a branch with a displacement of 32 bits, which is its last four bytes.
    pub fn is_long_branch(&self) -> bool {
        self.branch_target().is_some() && self.len >= 5
    }

    /// Bytes of the instruction.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Decodes the instruction at the beginning of `bytes`, which lies at `at`. Fails if the instruction cannot be displaced; `function` is
/// used only for the offset in the refusal.
pub(crate) fn decode(bytes: &[u8], at: u64, function: u64, shadow_stack: bool) -> Result<Displaced, Refusal> {
    let offset = Offset::between(function, at);
    let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return Err(Refusal::UnknownInstruction { offset });
    }
    let own = &bytes[..instruction.len()];
    let no = |why| Refusal::NotDisplaceable { offset, why };
    let (kind, ends) = classify(&instruction, own, shadow_stack).map_err(no)?;
    let rip = if instruction.is_ip_rel_memory_operand() {
        let offsets = decoder.get_constant_offsets(&instruction);
        if instruction.memory_base() != Register::RIP || offsets.displacement_size() != 4 {
            return Err(no("an operand relative to eip"));
        }
        Some(offsets.displacement_offset() as u8)
    } else {
        None
    };
    let mut copy = [0; 15];
    copy[..own.len()].copy_from_slice(own);
    Ok(Displaced { at, len: own.len() as u8, bytes: copy, kind, rip, ends })
}

fn classify(i: &Instruction, bytes: &[u8], shadow_stack: bool) -> Result<(Relocation, bool), &'static str> {
    let target = i.near_branch_target();
    match i.flow_control() {
        FlowControl::Next if i.is_privileged() => Err("it is privileged"),
        FlowControl::Next => Ok((Relocation::Copy, false)),
        FlowControl::Return if matches!(i.code(), Code::Retnq | Code::Retnq_imm16) => Ok((Relocation::Copy, true)),
        FlowControl::Return => Err("a far return"),
        FlowControl::IndirectBranch if i.code() == Code::Jmp_rm64 => Ok((Relocation::Copy, true)),
        FlowControl::IndirectBranch => Err("a far jump"),
        // The kernel restarts a system call by moving back two bytes, which works in the copy as well.
        FlowControl::Call if i.code() == Code::Syscall => Ok((Relocation::Copy, false)),
        FlowControl::Call | FlowControl::IndirectCall if shadow_stack => {
            Err("a call, whose return address a shadow stack would miss")
        }
        FlowControl::Call if i.code() == Code::Call_rel32_64 && plain_prefixes(bytes, false) => {
            Ok((Relocation::Call(target), true))
        }
        FlowControl::IndirectCall if i.code() == Code::Call_rm64 => {
            if i.memory_base() == Register::RSP || i.op0_register() == Register::RSP {
                return Err("a call through the stack pointer");
            }
            Ok((Relocation::IndirectCall, true))
        }
        FlowControl::Call | FlowControl::IndirectCall => Err("a call to the kernel or to another segment"),
        FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() && plain_prefixes(bytes, false) => {
            Ok((Relocation::Jump(target), true))
        }
        FlowControl::UnconditionalBranch => Err("an unusual jump"),
        FlowControl::ConditionalBranch if i.is_jcc_short_or_near() && plain_prefixes(bytes, false) => {
            let condition = condition_number(i.condition_code()).ok_or("an unusual branch")?;
            Ok((Relocation::Jcc(condition, target), false))
        }
        FlowControl::ConditionalBranch
            if (i.is_loop() || i.is_loopcc() || i.is_jcx_short()) && plain_prefixes(bytes, true) =>
        {
            Ok((Relocation::Loop(target), false))
        }
        FlowControl::ConditionalBranch => Err("an unusual branch"),
        FlowControl::Interrupt => Err("an interrupt or breakpoint"),
        FlowControl::Exception => Err("it faults on purpose, and a handler may look at where"),
        FlowControl::XbeginXabortXend => Err("a hardware transaction"),
    }
}

/// An instruction that stays in the text when its function is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stays {
    /// Length in bytes.
    pub len: usize,
    /// Whether it is a call.
    pub is_call: bool,
    /// Whether it is a system call. If it is neither, it faults on purpose.
    pub is_system_call: bool,
}

/// The instruction at the beginning of `bytes`, if it stays in the text. `None` for an instruction that is copied.
pub(crate) fn stays(bytes: &[u8], at: u64, function: u64) -> Result<Option<Stays>, Refusal> {
    let offset = Offset::between(function, at);
    let i = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    if i.is_invalid() {
        return Err(Refusal::UnknownInstruction { offset });
    }
    let kept = |is_call, is_system_call| Ok(Some(Stays { len: i.len(), is_call, is_system_call }));
    match i.flow_control() {
        FlowControl::Call if i.code() == Code::Syscall => kept(false, true),
        FlowControl::Call if i.code() != Code::Call_rel32_64 => {
            Err(Refusal::NotDisplaceable { offset, why: "it enters the kernel in an unusual way" })
        }
        FlowControl::Interrupt if i.code() != Code::Int3 => {
            Err(Refusal::NotDisplaceable { offset, why: "it enters the kernel in an unusual way" })
        }
        FlowControl::Call | FlowControl::IndirectCall => kept(true, false),
        FlowControl::Exception | FlowControl::Interrupt => kept(false, false),
        FlowControl::Next if i.code() == Code::Hlt => kept(false, false),
        FlowControl::Next
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::ConditionalBranch
        | FlowControl::Return
        | FlowControl::XbeginXabortXend => Ok(None),
    }
}

/// Decodes the call at the beginning of `bytes`, in order to replace it in place. A shadow stack is no obstacle, because the call still
/// pushes its return address itself.
pub(crate) fn decode_call(bytes: &[u8], at: u64, function: u64) -> Result<Displaced, Refusal> {
    let call = decode(bytes, at, function, false)?;
    let offset = Offset::between(function, at);
    match call.kind {
        Relocation::Call(_) | Relocation::IndirectCall => Ok(call),
        Relocation::Copy | Relocation::Jump(_) | Relocation::Jcc(..) | Relocation::Loop(_) => {
            Err(Refusal::NotDisplaceable { offset, why: "not a call" })
        }
    }
}

/// Whether a direct branch has only prefixes that change nothing (branch hints, `bnd`). `address_size` also allows 0x67, which makes
/// `loop` and `jrcxz` use ecx, and which is copied with them. The padded call of the code sequence for thread-local variables is `66 66 48
/// e8`; its last prefix undoes the others.
fn plain_prefixes(bytes: &[u8], address_size: bool) -> bool {
    if bytes.starts_with(&[0x66, 0x66, 0x48, 0xe8]) {
        return true;
    }
    let opcode = bytes.iter().position(|&b| !(matches!(b, 0x2e | 0x3e | 0xf2) || address_size && b == 0x67));
    opcode
        .and_then(|i| bytes.get(i))
        .is_some_and(|b| matches!(b, 0x0f | 0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb))
}

/// Whether an instruction writes the gs segment or its base.
pub(crate) fn sets_gs(bytes: &[u8]) -> bool {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    match instruction.mnemonic() {
        Mnemonic::Wrgsbase | Mnemonic::Swapgs | Mnemonic::Lgs => true,
        Mnemonic::Mov | Mnemonic::Pop => instruction.op0_register() == Register::GS,
        _ => false,
    }
}

fn condition_number(c: ConditionCode) -> Option<u8> {
    Some(match c {
        ConditionCode::o => 0,
        ConditionCode::no => 1,
        ConditionCode::b => 2,
        ConditionCode::ae => 3,
        ConditionCode::e => 4,
        ConditionCode::ne => 5,
        ConditionCode::be => 6,
        ConditionCode::a => 7,
        ConditionCode::s => 8,
        ConditionCode::ns => 9,
        ConditionCode::p => 10,
        ConditionCode::np => 11,
        ConditionCode::l => 12,
        ConditionCode::ge => 13,
        ConditionCode::le => 14,
        ConditionCode::g => 15,
        ConditionCode::None => return None,
    })
}

/// Writes code that does the same as `d` did at its old address. `resolve` maps the original target of a branch to the target of the copy.
pub(crate) fn emit(d: &Displaced, resolve: impl Fn(u64) -> u64, block: &mut CodeBuffer) -> Result<(), OutOfReach> {
    let back = Back::To(d.at);
    match d.kind {
        Relocation::Copy => emit_copy(d, d.bytes, back, block),
        Relocation::Jump(target) => block.jmp(resolve(target), back),
        Relocation::Jcc(condition, target) => block.put_relative(&[0x0f, 0x80 | condition], resolve(target), back),
        Relocation::Loop(target) => {
            // loop 1f; jmp 2f; 1: jmp target; 2:
            let len = usize::from(d.len);
            let mut bytes = d.bytes;
            bytes[len - 1] = 2;
            block.put(&bytes[..len], back);
            block.put(&[0xeb, 5], Back::To(d.next()));
            block.jmp(resolve(target), Back::To(target))
        }
        Relocation::Call(_) => {
            push_return(d, block);
            // Once the return address is pushed, a thread has arrived at the target of the call.
            emit_callee(d, block)
        }
        Relocation::IndirectCall => {
            push_return(d, block);
            emit_callee(d, block)
        }
    }
}

/// Writes the rest of a call whose return address is pushed: the jump to the callee.
pub(crate) fn emit_callee(d: &Displaced, block: &mut CodeBuffer) -> Result<(), OutOfReach> {
    if let Relocation::Call(target) = d.kind {
        return block.jmp(target, Back::To(target));
    }
    // call r/m is ff /2, jmp r/m is ff /4
    let mut bytes = d.bytes;
    if let Some(opcode) = d.bytes().iter().position(|&b| b == 0xff)
        && let Some(modrm) = bytes.get_mut(opcode + 1)
    {
        *modrm = *modrm & 0xc7 | 0x20;
    }
    emit_copy(d, bytes, Back::StepOut, block)
}

fn emit_copy(d: &Displaced, mut bytes: [u8; 15], back: Back, block: &mut CodeBuffer) -> Result<(), OutOfReach> {
    let len = usize::from(d.len);
    if let Some(offset) = d.rip
        && let Some(field) = bytes.get_mut(usize::from(offset)..usize::from(offset) + 4)
    {
        let old = i32::from_le_bytes([field[0], field[1], field[2], field[3]]);
        let target = d.next().wrapping_add_signed(i64::from(old));
        let new = displacement(block.here() + u64::from(d.len), target).ok_or(OutOfReach)?;
        field.copy_from_slice(&new.to_le_bytes());
    }
    block.put(&bytes[..len], back);
    Ok(())
}

/// Pushes the original return address of a call. In contrast to a literal in memory, this code has no data between the instructions.
fn push_return(d: &Displaced, block: &mut CodeBuffer) {
    let address = d.next();
    block.put_absolute(&[0x68], address as u32, Back::To(d.at));
    if i64::from(address as u32 as i32).cast_unsigned() != address {
        block.put_absolute(&[0xc7, 0x44, 0x24, 0x04], (address >> 32) as u32, Back::StepOut);
    }
}
