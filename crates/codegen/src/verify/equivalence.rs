//! Equivalence of displaced instructions and their copies: both are decoded side by side and compared by meaning.

use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use ingraft_model::TextWrite;

use super::interpreter::Interpreter;
use super::memory::decode;
use super::{Flaw, VerifyError, fail};

/// Instruction of the copy, with the original instruction that it replaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstructionPair {
    pub original: u64,
    pub original_end: u64,
    pub copy: u64,
    /// Whether a thread that arrives at `original` may arrive here instead.
    pub first: bool,
    /// Resume address in the original text for a thread at `copy`; `None` in the middle of a sequence that replaces one instruction.
    pub back: Option<u64>,
}

/// Compares original `bytes` at `at` with the copy at `copy` until both end. Returns the address to which the copy jumps home, or `None`
/// if control never continues after the last instruction.
pub(super) fn run(
    interpreter: &mut Interpreter<'_>,
    bytes: &[u8],
    at: u64,
    copy: u64,
    resolve: &impl Fn(u64) -> u64,
    pairs: &mut Vec<InstructionPair>,
) -> Result<Option<u64>, VerifyError> {
    let begin = at;
    let mut step = PairedStep { interpreter, pairs, copy };
    let mut at = at;
    loop {
        if at != begin && step.leads_to(at)? {
            step.part(at, at, Some(at))?;
            return Ok(Some(at));
        }
        let Some(rest) = usize::try_from(at - begin).ok().and_then(|offset| bytes.get(offset..)) else {
            return fail(at, Flaw::NotEquivalent);
        };
        let original = decode(rest, at)?;
        if !step.instruction(&original, resolve)? {
            return Ok(None);
        }
        at = original.next_ip();
    }
}

/// Compares original `bytes` that run on, or branch away, with the copy at `copy`. Returns the end of the copy.
pub(super) fn straight(
    interpreter: &mut Interpreter<'_>,
    bytes: &[u8],
    at: u64,
    copy: u64,
    pairs: &mut Vec<InstructionPair>,
) -> Result<u64, VerifyError> {
    let mut step = PairedStep { interpreter, pairs, copy };
    let mut rest = bytes;
    while !rest.is_empty() {
        let original = decode(rest, at + (bytes.len() - rest.len()) as u64)?;
        let runs_on = original.flow_control() == FlowControl::Next || original.is_jcc_short_or_near();
        if !runs_on || !step.instruction(&original, &|target| target)? {
            return fail(original.ip(), Flaw::NotEquivalent);
        }
        rest = rest.get(original.len()..).unwrap_or_default();
    }
    Ok(step.copy)
}

/// Compares a conditional jump out of a function with its copy: at `copy` lies a jump home with the opposite condition, and at `tail` the
/// jump itself. Returns the home address in the text. If `lands` is given, the first jump must lead to that address instead.
pub(super) fn leaves_if(
    interpreter: &mut Interpreter<'_>,
    bytes: &[u8],
    at: u64,
    copy: u64,
    tail: u64,
    lands: Option<u64>,
    pairs: &mut Vec<InstructionPair>,
) -> Result<u64, VerifyError> {
    let original = decode(bytes, at)?;
    let (end, target) = (original.next_ip(), original.near_branch_target());
    let mut opposite = original;
    opposite.negate_condition_code();
    let stays = PairedStep { interpreter, pairs, copy }.part(at, end, Some(at))?;
    let leaves = PairedStep { interpreter, pairs, copy: tail }.rest(at, end, Some(target))?;
    let right = stays.is_jcc_short_or_near()
        && stays.condition_code() == opposite.condition_code()
        && stays.near_branch_target() == lands.unwrap_or(end)
        && leaves.is_jmp_short_or_near()
        && leaves.near_branch_target() == target;
    if right { Ok(end) } else { fail(copy, Flaw::NotEquivalent) }
}

/// Accepts a copy that only jumps to the point's instruction, which stays in place at `at`.
pub(super) fn stays(
    interpreter: &mut Interpreter<'_>,
    at: u64,
    copy: u64,
    pairs: &mut Vec<InstructionPair>,
) -> Result<u64, VerifyError> {
    PairedStep { interpreter, pairs, copy }.part(at, at, Some(at))?;
    Ok(at)
}

/// Compares a call whose return address is pushed with the jump to the callee at `copy`. Returns the callee if the call states its
/// address.
pub(super) fn called(
    interpreter: &mut Interpreter<'_>,
    o: &Instruction,
    copy: u64,
    pairs: &mut Vec<InstructionPair>,
) -> Result<Option<u64>, VerifyError> {
    let callee = (o.code() == Code::Call_rel32_64).then(|| o.near_branch_target());
    let jump = PairedStep { interpreter, pairs, copy }.rest(o.ip(), o.next_ip(), callee)?;
    if jumps_to_callee(o, &jump) { Ok(callee) } else { fail(copy, Flaw::NotEquivalent) }
}

/// Whether a jump leads to the callee of a call. The answer is no for a call through the stack pointer, which the return address has
/// moved.
fn jumps_to_callee(o: &Instruction, jump: &Instruction) -> bool {
    if o.code() == Code::Call_rel32_64 {
        return jump.is_jmp_short_or_near() && jump.near_branch_target() == o.near_branch_target();
    }
    let mut like = *jump;
    like.set_code(o.code());
    let sp = o.memory_base() == Register::RSP || o.op0_register() == Register::RSP;
    jump.code() == Code::Jmp_rm64 && o.code() == Code::Call_rm64 && !sp && equal(o, &like)
}

struct PairedStep<'a, 'w> {
    interpreter: &'a mut Interpreter<'w>,
    pairs: &'a mut Vec<InstructionPair>,
    copy: u64,
}

impl PairedStep<'_, '_> {
    fn peek(&self) -> Result<Instruction, VerifyError> {
        self.interpreter.memory().decode(self.copy)
    }

    /// Whether the next instruction of the copy is a jump to `home`.
    fn leads_to(&self, home: u64) -> Result<bool, VerifyError> {
        let may = self.interpreter.memory().bytes(self.copy).is_some_and(|bytes| bytes.starts_with(&[0xe9]));
        Ok(may && self.peek()?.near_branch_target() == home)
    }

    /// Takes the next instruction of the copy as the first of those that replace the original at `original`.
    fn part(&mut self, original: u64, original_end: u64, back: Option<u64>) -> Result<Instruction, VerifyError> {
        let first = back == Some(original) && original < original_end;
        self.take(original, original_end, back, first)
    }

    /// Takes the next instruction of the copy as a further one of those that replace the original. Its resume address is the original
    /// itself if a branch leads to itself.
    fn rest(&mut self, original: u64, original_end: u64, back: Option<u64>) -> Result<Instruction, VerifyError> {
        self.take(original, original_end, back, false)
    }

    fn take(
        &mut self,
        original: u64,
        original_end: u64,
        back: Option<u64>,
        first: bool,
    ) -> Result<Instruction, VerifyError> {
        let instruction = self.peek()?;
        self.pairs.push(InstructionPair { original, original_end, copy: self.copy, first, back });
        self.interpreter.mark(&instruction)?;
        self.copy = instruction.next_ip();
        Ok(instruction)
    }

    /// Compares one original instruction with its replacement. Returns whether control may continue after the instruction.
    fn instruction(&mut self, o: &Instruction, resolve: &impl Fn(u64) -> u64) -> Result<bool, VerifyError> {
        let (at, end) = (o.ip(), o.next_ip());
        let copy_at = self.copy;
        let wrong = || fail(copy_at, Flaw::NotEquivalent);
        let target = o.near_branch_target();
        match o.flow_control() {
            FlowControl::UnconditionalBranch => {
                let c = self.part(at, end, Some(at))?;
                let same =
                    o.is_jmp_short_or_near() && c.is_jmp_short_or_near() && c.near_branch_target() == resolve(target);
                if same { Ok(false) } else { wrong() }
            }
            FlowControl::ConditionalBranch if o.is_jcc_short_or_near() => {
                let c = self.part(at, end, Some(at))?;
                let same = c.is_jcc_short_or_near()
                    && c.condition_code() == o.condition_code()
                    && c.near_branch_target() == resolve(target);
                if same { Ok(true) } else { wrong() }
            }
            FlowControl::ConditionalBranch => {
                let c = self.part(at, end, Some(at))?;
                let over = self.rest(at, end, Some(end))?;
                let taken = self.copy;
                let jump = self.rest(at, end, Some(target))?;
                let same = c.code() == o.code()
                    && (o.is_loop() || o.is_loopcc() || o.is_jcx_short())
                    && c.near_branch_target() == taken
                    && over.is_jmp_short_or_near()
                    && over.near_branch_target() == self.copy
                    && jump.is_jmp_short_or_near()
                    && jump.near_branch_target() == resolve(target);
                if same { Ok(true) } else { wrong() }
            }
            FlowControl::Call if o.code() == Code::Syscall => self.same(o),
            FlowControl::Call | FlowControl::IndirectCall => {
                let direct = o.code() == Code::Call_rel32_64;
                let push = self.part(at, end, Some(at))?;
                if push.code() != Code::Pushq_imm32 {
                    return wrong();
                }
                let mut pushed = push.immediate(0);
                if pushed != end {
                    let high = self.rest(at, end, None)?;
                    let stores = high.code() == Code::Mov_rm32_imm32
                        && high.memory_base() == Register::RSP
                        && high.memory_index() == Register::None
                        && high.memory_displacement64() == 4;
                    if !stores {
                        return wrong();
                    }
                    pushed = pushed & 0xffff_ffff | u64::from(high.immediate32()) << 32;
                }
                let jump = self.rest(at, end, direct.then_some(target))?;
                if jumps_to_callee(o, &jump) && pushed == end { Ok(false) } else { wrong() }
            }
            FlowControl::Return | FlowControl::IndirectBranch => self.same(o).map(|_| false),
            FlowControl::Next => self.same(o),
            FlowControl::Interrupt | FlowControl::XbeginXabortXend | FlowControl::Exception => {
                fail(self.copy, Flaw::Forbidden)
            }
        }
    }

    fn same(&mut self, o: &Instruction) -> Result<bool, VerifyError> {
        let at = self.copy;
        let c = self.part(o.ip(), o.next_ip(), Some(o.ip()))?;
        if equal(o, &c) { Ok(true) } else { fail(at, Flaw::NotEquivalent) }
    }
}

/// Whether two instructions at different addresses have the same meaning. Rip-relative operands are equal if their absolute addresses are.
pub(super) fn equal(a: &Instruction, b: &Instruction) -> bool {
    let operands = a.op_count() == b.op_count()
        && (0..a.op_count()).all(|i| match a.op_kind(i) {
            kind if kind != b.op_kind(i) => false,
            OpKind::Register => a.op_register(i) == b.op_register(i),
            OpKind::Memory => {
                a.memory_base() == b.memory_base()
                    && a.memory_index() == b.memory_index()
                    && a.memory_index_scale() == b.memory_index_scale()
                    && a.memory_displacement64() == b.memory_displacement64()
                    && a.memory_segment() == b.memory_segment()
                    && a.memory_size() == b.memory_size()
            }
            OpKind::NearBranch16
            | OpKind::NearBranch32
            | OpKind::NearBranch64
            | OpKind::FarBranch16
            | OpKind::FarBranch32 => false,
            // The operands of string instructions are determined by their kind.
            OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI => a.memory_segment() == b.memory_segment(),
            _ => a.immediate(i) == b.immediate(i),
        });
    operands && a == b
}

/// Target of the branch at `at` after a write has changed the displacement.
pub(super) fn patched_target(original: &[u8], at: u64, write: &TextWrite) -> Option<u64> {
    let branch = decode(original, at).ok()?;
    let mut bytes = original.get(..branch.len())?.to_vec();
    let offset = usize::try_from(write.at.0.checked_sub(at)?).ok()?;
    let new = write.old_bytes();
    let displacement = if branch.is_jcc_near() || branch.is_jmp_near() { 4 } else { 1 };
    if new.len() != displacement || offset + displacement != bytes.len() {
        return None;
    }
    bytes.get_mut(offset..)?.copy_from_slice(new);
    let patched = decode(&bytes, at).ok()?;
    let same = patched.code() == branch.code() && patched.len() == branch.len();
    (same && branch.near_branch_target() != 0).then_some(patched.near_branch_target())
}
