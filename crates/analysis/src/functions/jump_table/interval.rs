//! Range of a register's value, by arithmetic on all definitions that reach an instruction.
//!
//! Hand-written code uses indices that no comparison bounds, such as the difference of two offsets of at most 15 bytes. Operations that could
//! wrap around have no range.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::functions::jump_table::JumpResolver;
use crate::functions::jump_table::bound::{BoundSource, IndexBound};
use crate::functions::jump_table::is_cmov;
use crate::functions::jump_table::trace::{BackwardTrace, ReachingDefinition};

/// Largest number of definitions that are followed one after the other.
const DEPTH: usize = 8;
/// Limit of the absolute value of the numbers of a range, so that no operation on them overflows.
const LIMIT: i64 = 1 << 40;

/// All values that a register may hold, as a signed 64-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueRange {
    pub least: i64,
    pub greatest: i64,
}

impl ValueRange {
    /// The range; `None` if a number is too large to compute with.
    fn new(least: i64, greatest: i64) -> Option<ValueRange> {
        (-LIMIT <= least && least <= greatest && greatest <= LIMIT).then_some(ValueRange { least, greatest })
    }

    fn constant(value: i64) -> Option<ValueRange> {
        ValueRange::new(value, value)
    }

    fn plus(self, other: ValueRange) -> Option<ValueRange> {
        ValueRange::new(self.least + other.least, self.greatest + other.greatest)
    }

    fn minus(self, other: ValueRange) -> Option<ValueRange> {
        ValueRange::new(self.least - other.greatest, self.greatest - other.least)
    }

    fn times(self, factor: i64) -> Option<ValueRange> {
        ValueRange::new(self.least.checked_mul(factor)?, self.greatest.checked_mul(factor)?)
    }

    fn or(self, other: ValueRange) -> ValueRange {
        ValueRange { least: self.least.min(other.least), greatest: self.greatest.max(other.greatest) }
    }

    /// The range, if a register of 32 bits holds all of it without a sign.
    fn in_32_bits(self) -> Option<ValueRange> {
        (self.least >= 0 && self.greatest <= i64::from(u32::MAX)).then_some(self)
    }
}

impl JumpResolver<'_> {
    /// The bound of an index register at the instruction that uses it, by arithmetic. The bound may be larger than the table.
    pub(super) fn bound_by_arithmetic(&self, read_by: usize, index: Register) -> Option<IndexBound> {
        let interval = self.interval(read_by, index, DEPTH)?;
        let count = usize::try_from(interval.greatest.checked_add(1)?).ok().filter(|_| interval.least >= 0)?;
        Some(IndexBound { count, source: BoundSource::Arithmetic })
    }

    /// The range of the whole register before an instruction; `None` if the range is not known.
    pub(super) fn interval(&self, at: usize, register: Register, depth: usize) -> Option<ValueRange> {
        let depth = depth.checked_sub(1)?;
        let mut all: Option<ValueRange> = None;
        let trace = BackwardTrace { through_stack: false, ..self.trace() };
        for definition in trace.definitions(at, register)? {
            let ReachingDefinition::At(by, register) = definition else { return None };
            let one = self.written(by, register, depth)?;
            all = Some(all.map_or(one, |all| all.or(one)));
        }
        all
    }

    /// The range of a register after an instruction that writes the register.
    fn written(&self, by: usize, register: Register, depth: usize) -> Option<ValueRange> {
        let i = &self.code[by];
        let is_whole = |r: Register| r.full_register() == register && matches!(r.size(), 4 | 8);
        if i.mnemonic() == Mnemonic::Xchg && i.op0_kind() == OpKind::Register {
            let other = if is_whole(i.op0_register()) { i.op1_register() } else { i.op0_register() };
            let written = if is_whole(i.op0_register()) { i.op0_register() } else { i.op1_register() };
            return if is_whole(written) { self.operand(by, other, depth) } else { None };
        }
        if i.op0_kind() != OpKind::Register || !is_whole(i.op0_register()) {
            return None;
        }
        let size = i.op0_register().size();
        let old = || self.operand(by, i.op0_register(), depth);
        let source = || match i.op1_kind() {
            OpKind::Register => self.operand(by, i.op1_register(), depth),
            _ => immediate(i).and_then(ValueRange::constant),
        };
        let interval = match i.mnemonic() {
            Mnemonic::Mov => source()?,
            Mnemonic::Movzx if i.op1_kind() == OpKind::Memory => below(8 * i.memory_size().size())?,
            Mnemonic::Movzx => below(8 * i.op1_register().size())?,
            Mnemonic::Xor | Mnemonic::Sub if is_zero(i) => ValueRange::constant(0)?,
            Mnemonic::And => ValueRange::new(0, immediate(i).filter(|mask| *mask >= 0)?)?,
            Mnemonic::Add => old()?.plus(source()?)?,
            Mnemonic::Sub => old()?.minus(source()?)?,
            Mnemonic::Inc => old()?.plus(ValueRange::constant(1)?)?,
            Mnemonic::Dec => old()?.minus(ValueRange::constant(1)?)?,
            Mnemonic::Lea => self.address(by, depth)?,
            Mnemonic::Shl => old()?.times(1 << immediate(i).filter(|bits| (0..31).contains(bits))?)?,
            // The processor ignores the upper bits of the number.
            Mnemonic::Shr => below(8 * size - (usize::try_from(immediate(i)?).ok()? & (8 * size - 1)))?,
            // Without a bit that is set, the register keeps its value, which is 0. Older processors take tzcnt for bsf.
            Mnemonic::Bsf | Mnemonic::Tzcnt
                if size == 8 && i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register() =>
            {
                ValueRange::new(0, if i.mnemonic() == Mnemonic::Bsf { 63 } else { 64 })?
            }
            _ if is_cmov(i) => old()?.or(source()?),
            _ => return None,
        };
        if size == 4 { interval.in_32_bits() } else { Some(interval) }
    }

    /// The range of a register that an instruction reads as a whole, or as its low 32 bits.
    fn operand(&self, by: usize, register: Register, depth: usize) -> Option<ValueRange> {
        let interval = self.interval(by, register.full_register(), depth)?;
        match register.size() {
            8 => Some(interval),
            4 => interval.in_32_bits(),
            _ => None,
        }
    }

    /// The range of the address that a `lea` computes from registers.
    fn address(&self, by: usize, depth: usize) -> Option<ValueRange> {
        let i = &self.code[by];
        let is_plain = |r: Register| matches!(r, Register::None) || r.is_gpr64();
        if !matches!(i.code(), Code::Lea_r64_m | Code::Lea_r32_m)
            || !is_plain(i.memory_base())
            || !is_plain(i.memory_index())
        {
            return None;
        }
        let mut sum = ValueRange::constant(i.memory_displacement64().cast_signed())?;
        if i.memory_base() != Register::None {
            sum = sum.plus(self.operand(by, i.memory_base(), depth)?)?;
        }
        if i.memory_index() != Register::None {
            let scale = i64::from(i.memory_index_scale());
            sum = sum.plus(self.operand(by, i.memory_index(), depth)?.times(scale)?)?;
        }
        Some(sum)
    }
}

/// The range of numbers of this many bits; `None` if they are too large to compute with.
fn below(bits: usize) -> Option<ValueRange> {
    let end = 1i64.checked_shl(u32::try_from(bits).ok()?)?;
    ValueRange::new(0, end.checked_sub(1)?)
}

/// The number that an instruction has as its second operand, as the operation uses it.
fn immediate(i: &Instruction) -> Option<i64> {
    let value = i.try_immediate(1).ok()?;
    // Operations of 32 bits use a negative number without its upper half.
    let is_short = i.op0_kind() == OpKind::Register && i.op0_register().size() == 4;
    match i.mnemonic() {
        Mnemonic::And | Mnemonic::Mov if is_short => Some(i64::from(value as u32)),
        _ => Some(value.cast_signed()),
    }
}

/// Whether an instruction sets its first operand to 0, whatever it was.
fn is_zero(i: &Instruction) -> bool {
    i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register()
}
