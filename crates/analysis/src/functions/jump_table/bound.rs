//! Number of values that the index of a jump table may have, proven on every path to the instruction that uses the index.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::functions::jump_table::trace::writes;
use crate::functions::jump_table::{ENTRIES_MAX, JumpResolver, is_cmov};
use crate::text::transfer::ControlTransfer;

/// Largest number of instructions over which control is followed backwards.
const STEPS_MAX: usize = 500;

/// Bound of an index, which is never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexBound {
    /// Number of values from 0 on.
    pub count: usize,
    /// Origin of the bound.
    pub source: BoundSource,
}

/// Origin of the bound of an index. If several ways lead to the table, the last of these that one of the ways has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BoundSource {
    /// A comparison, or a mask that lets 2^n values through. Compilers have a use for all values that are left, so the table has this length.
    Comparison,
    /// Other arithmetic. The program may use fewer values, so the table may be shorter.
    Arithmetic,
    /// The width of the value.
    Width,
}

/// Location of the value in question.
#[derive(Clone, Copy, PartialEq)]
enum ValueLocation {
    Register(Register),
    /// The memory that an instruction reads. Equal operands are equal locations as long as nothing is written.
    Memory(Instruction),
}

/// State of the backward search at one instruction: the location of the value, and facts about it.
#[derive(Clone, Copy, PartialEq)]
struct BoundSearch {
    at: usize,
    holder: ValueLocation,
    /// Number of low bytes of the location that make up the value.
    need: usize,
    /// Fact about the location: a number of low bytes, and a number that their value is less than.
    known: Option<(usize, u64)>,
    /// Fact about the flags that a later branch has shown: the first operand of the comparison is less than the second plus this number.
    flags: Option<u64>,
    /// Fact about another register: the register, a number of low bytes, and a number that their value is less than. The register may turn
    /// out to hold a copy of the value.
    other: Option<(Register, usize, u64)>,
    /// Largest number of values that fit into the narrowest zero-extending copy so far.
    limit: u64,
    /// Largest number of values for which no sign-extending copy so far makes the value negative.
    unsigned: u64,
}

/// Outcome of going back over one instruction.
enum BackwardStep {
    On(BoundSearch),
    /// The value comes from one of two locations, depending on a condition (`cmov`).
    Either(BoundSearch, BoundSearch),
    Found(u64, BoundSource),
    Failed,
}

impl JumpResolver<'_> {
    /// The bound of an index register at the instruction that uses it.
    pub(super) fn bound(&self, read_by: usize, index: Register) -> Option<IndexBound> {
        let start = BoundSearch {
            at: read_by,
            holder: ValueLocation::Register(index),
            need: 8,
            known: None,
            flags: None,
            other: None,
            limit: u64::MAX,
            unsigned: u64::MAX,
        };
        let mut info = InstructionInfoFactory::new();
        let mut work = vec![start];
        let mut seen: Vec<BoundSearch> = Vec::new();
        let (mut count, mut source, mut steps) = (0u64, BoundSource::Comparison, STEPS_MAX);
        let mut finish = |state: &BoundSearch, limit: u64, of: BoundSource| {
            count = count.max(limit);
            source = source.max(of);
            limit < u64::MAX && limit <= state.unsigned
        };
        while let Some(state) = work.pop() {
            let mut ways = Vec::new();
            self.before.each(self.code, state.at, |before, jumped| ways.push((before, jumped)));
            if ways.is_empty() && self.before.is_guess() {
                continue;
            }
            let ip = self.code[state.at].ip();
            // More values than a table has entries: its content must show the end.
            let doubtful = !ways.is_empty() && self.before.is_doubtful(ip);
            if ways.is_empty() || self.before.is_entry(ip) {
                let limit = if doubtful { state.limit.min(ENTRIES_MAX as u64 + 1) } else { state.limit };
                if !finish(&state, limit, BoundSource::Width) {
                    return None;
                }
                if !doubtful {
                    continue;
                }
            }
            for (before, jumped) in ways {
                self.spend(1)?;
                let Some(left) = steps.checked_sub(1) else {
                    if !finish(&state, state.limit, BoundSource::Width) {
                        return None;
                    }
                    continue;
                };
                steps = left;
                let mut go_on = |state: BoundSearch| {
                    if !seen.contains(&state) {
                        seen.push(state);
                        work.push(state);
                    }
                };
                let fits = match self.back(&mut info, before, jumped, state) {
                    BackwardStep::Found(limit, of) => finish(&state, limit, of),
                    BackwardStep::Failed => finish(&state, state.limit, BoundSource::Width),
                    BackwardStep::On(state) => {
                        go_on(state);
                        true
                    }
                    BackwardStep::Either(one, other) => {
                        go_on(one);
                        go_on(other);
                        true
                    }
                };
                if !fits {
                    return None;
                }
            }
        }
        let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
        Some(IndexBound { count, source })
    }

    fn back(&self, info: &mut InstructionInfoFactory, before: usize, jumped: bool, state: BoundSearch) -> BackwardStep {
        let i = &self.code[before];
        let mut state = BoundSearch { at: before, ..state };
        match ControlTransfer::of(i) {
            ControlTransfer::Branch(_) => {
                state.flags = state.flags.or(limit_of_branch(i, jumped));
                return BackwardStep::On(state);
            }
            ControlTransfer::Jump(_) => return BackwardStep::On(state),
            ControlTransfer::Next | ControlTransfer::Indirect => {}
            _ => {
                let kept =
                    |r| matches!(r, Register::RBX | Register::RBP) || (Register::R12..=Register::R15).contains(&r);
                let kept = matches!(state.holder, ValueLocation::Register(r) if kept(r)) && !self.image.is_go();
                state = BoundSearch { flags: None, other: None, ..state };
                return if kept { BackwardStep::On(state) } else { BackwardStep::Failed };
            }
        }
        if let Some(bound) = compare(i, &mut state) {
            return bound;
        }
        if i.rflags_modified() != 0 {
            state.flags = None;
        }
        match state.holder {
            ValueLocation::Register(register) if writes(info, i, register) => defined(i, register, state),
            ValueLocation::Memory(operand) => {
                let used = info.info(i);
                let stores = used.used_memory().iter().any(|m| {
                    !matches!(
                        m.access(),
                        iced_x86::OpAccess::Read | iced_x86::OpAccess::NoMemAccess | iced_x86::OpAccess::CondRead
                    )
                });
                let moved = [operand.memory_base(), operand.memory_index()]
                    .into_iter()
                    .any(|r| r != Register::None && r != Register::RIP && writes(info, i, r.full_register()));
                if moved {
                    return BackwardStep::Failed;
                }
                let state = forget(info, i, state);
                if stores && !self.before.is_guess() { stored(i, &operand, state) } else { BackwardStep::On(state) }
            }
            ValueLocation::Register(register) => {
                // The compared register is a copy of the index.
                if let Some((other, width, limit)) = state.other
                    && i.mnemonic() == Mnemonic::Mov
                    && i.op0_kind() == OpKind::Register
                    && i.op1_kind() == OpKind::Register
                    && i.op0_register().full_register() == other
                    && i.op1_register().full_register() == register
                    && i.op0_register().size() >= width.max(4)
                {
                    state.other = None;
                    return learn(state, width, limit);
                }
                BackwardStep::On(forget(info, i, state))
            }
        }
    }
}

/// Removes the fact about another register if the instruction writes this register.
fn forget(info: &mut InstructionInfoFactory, i: &Instruction, state: BoundSearch) -> BoundSearch {
    let gone = state.other.is_some_and(|(register, ..)| writes(info, i, register));
    BoundSearch { other: state.other.filter(|_| !gone), ..state }
}

/// Uses a comparison which shows that the low `width` bytes of the value are less than `limit`.
fn learn(mut state: BoundSearch, width: usize, limit: u64) -> BackwardStep {
    if width >= state.need {
        let limit = limit.min(state.limit);
        return if limit <= state.unsigned {
            BackwardStep::Found(limit, BoundSource::Comparison)
        } else {
            BackwardStep::Failed
        };
    }
    // Of two comparisons of the same width, the stricter one counts.
    state.known = match state.known {
        Some((other, known)) if other > width || other == width && known <= limit => Some((other, known)),
        _ => Some((width, limit)),
    };
    BackwardStep::On(state)
}

/// Goes back over a comparison on which a later branch depends. `None` if the instruction says nothing about the value.
fn compare(i: &Instruction, state: &mut BoundSearch) -> Option<BackwardStep> {
    let extra = state.flags?;
    if !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Sub) {
        return None;
    }
    state.flags = None;
    let number = immediate(i)?;
    let limit = number.checked_add(extra).filter(|limit| *limit > 0)?;
    if i.mnemonic() == Mnemonic::Sub {
        return subtracted(i, *state, limit);
    }
    match (i.op0_kind(), state.holder) {
        (OpKind::Register, ValueLocation::Register(register)) if low_part(i.op0_register()) == Some(register) => {
            Some(learn(*state, i.op0_register().size(), limit))
        }
        (OpKind::Memory, ValueLocation::Memory(operand)) if same_operand(&operand, i) => {
            Some(learn(*state, i.memory_size().size(), limit))
        }
        (OpKind::Register, _) => {
            let register = low_part(i.op0_register())?;
            state.other = state.other.or(Some((register, i.op0_register().size(), limit)));
            None
        }
        _ => None,
    }
}

/// Goes back over a subtraction on which a later branch depends: it compares what the register holds before it, which may be a copy of the value
/// (clang without optimisation). `None` if the subtraction says nothing.
fn subtracted(i: &Instruction, state: BoundSearch, limit: u64) -> Option<BackwardStep> {
    let register = Some(i.op0_register()).filter(|_| i.op0_kind() == OpKind::Register).and_then(low_part)?;
    let needed = match state.holder {
        ValueLocation::Register(holder) => holder == register,
        ValueLocation::Memory(operand) => {
            [operand.memory_base(), operand.memory_index()].iter().any(|r| r.full_register() == register)
        }
    };
    // A fact about another register stays. One about this register is about the difference.
    let known = state.other.filter(|(other, ..)| *other != register);
    let other = known.or(Some((register, i.op0_register().size(), limit)));
    (!needed).then_some(BackwardStep::On(BoundSearch { other, ..state }))
}

/// Goes back over the instruction that writes the register of the value.
fn defined(i: &Instruction, register: Register, state: BoundSearch) -> BackwardStep {
    if i.op0_kind() != OpKind::Register || low_part(i.op0_register()) != Some(register) {
        return BackwardStep::Failed;
    }
    let size = i.op0_register().size();
    let (known_width, known_limit) = state.known.unwrap_or((0, 0));
    let bit31 = state.known.filter(|known| known.1 <= 1 << (8 * known.0 - 1));
    let whole = size >= 4;
    // A write of 32 bits clears the upper 32 bits.
    let signed = matches!(i.mnemonic(), Mnemonic::Movsx | Mnemonic::Movsxd);
    if size == 4 && known_width == 4 && !signed {
        return BackwardStep::Found(known_limit.min(state.limit), BoundSource::Comparison);
    }
    match i.mnemonic() {
        Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => {
            let from = if i.op1_kind() == OpKind::Memory { i.memory_size().size() } else { i.op1_register().size() };
            let signed = i.mnemonic() != Mnemonic::Movzx;
            if known_width >= from && (!signed || bit31.is_some()) {
                return BackwardStep::Found(known_limit.min(state.limit), BoundSource::Comparison);
            }
            let limit = match (signed, from) {
                (false, 1 | 2) => state.limit.min(1 << (8 * from)),
                // The bound of the source must show that its sign is clear.
                (true, _) => return signed_copy(i, state, from),
                _ => state.limit,
            };
            copy(i, BoundSearch { need: from.min(state.need), limit, ..state })
        }
        Mnemonic::Mov if i.op1_kind() == OpKind::Register || i.op1_kind() == OpKind::Memory => {
            let limit = if size == 4 { state.limit.min(1 << 32) } else { state.limit };
            if !whole && size < state.need {
                return BackwardStep::Failed;
            }
            copy(i, BoundSearch { need: state.need.min(size), limit, ..state })
        }
        _ if is_cmov(i) && whole && i.op1_kind() == OpKind::Register => {
            let kept = BoundSearch { need: state.need.min(size), ..state };
            match copy(i, kept) {
                BackwardStep::On(moved) => BackwardStep::Either(kept, moved),
                _ => BackwardStep::Failed,
            }
        }
        Mnemonic::And if whole => match immediate(i) {
            Some(mask) if (mask + 1).is_power_of_two() => {
                BackwardStep::Found((mask + 1).min(state.limit), BoundSource::Comparison)
            }
            Some(mask) => BackwardStep::Found((mask + 1).min(state.limit), BoundSource::Arithmetic),
            None => width_alone(state, size),
        },
        Mnemonic::Shr if whole && i.op1_kind() == OpKind::Immediate8 => {
            // The processor ignores the upper bits of the number: a shift by the width does nothing.
            let bits = 8 * size as u32 - (u32::from(i.immediate8()) & (8 * size as u32 - 1));
            if bits < 64 {
                BackwardStep::Found((1u64 << bits).min(state.limit), BoundSource::Arithmetic)
            } else {
                BackwardStep::Failed
            }
        }
        Mnemonic::Popcnt if whole => {
            BackwardStep::Found((8 * size as u64 + 1).min(state.limit), BoundSource::Arithmetic)
        }
        // Without a bit that is set, the register keeps what it had. Older processors take tzcnt for bsf, and lzcnt for bsr.
        Mnemonic::Bsf | Mnemonic::Tzcnt | Mnemonic::Bsr | Mnemonic::Lzcnt => BackwardStep::Failed,
        _ => width_alone(state, size),
    }
}

/// Returns the bound that the width of the written register gives: a write of 32 bits clears the upper 32 bits.
fn width_alone(state: BoundSearch, size: usize) -> BackwardStep {
    if size == 4 { BackwardStep::Found(state.limit.min(1 << 32), BoundSource::Width) } else { BackwardStep::Failed }
}

/// Continues with the source of a sign-extending copy. The bound of the source must show that its sign is clear.
fn signed_copy(i: &Instruction, state: BoundSearch, from: usize) -> BackwardStep {
    if state.need < from || i.op0_register().size() < 8 && state.need == 8 && from == 4 {
        return BackwardStep::Failed;
    }
    let unsigned = state.unsigned.min(1 << (8 * from - 1));
    copy(i, BoundSearch { need: from, unsigned, ..state })
}

/// Continues with the source of a copy.
fn copy(i: &Instruction, state: BoundSearch) -> BackwardStep {
    let state = BoundSearch { known: state.known.filter(|known| known.0 <= state.need), ..state };
    if i.op1_kind() == OpKind::Memory {
        return BackwardStep::On(BoundSearch { holder: ValueLocation::Memory(*i), ..state });
    }
    let Some(register) = low_part(i.op1_register()) else { return BackwardStep::Failed };
    let state = BoundSearch { holder: ValueLocation::Register(register), ..state };
    match state.other {
        Some((other, width, limit)) if other == register => learn(BoundSearch { other: None, ..state }, width, limit),
        _ => BackwardStep::On(state),
    }
}

/// Goes back over an instruction that writes memory, for a value in memory.
fn stored(i: &Instruction, operand: &Instruction, state: BoundSearch) -> BackwardStep {
    let frame = |r| matches!(r, Register::RSP | Register::RBP);
    let plain = |i: &Instruction| frame(i.memory_base()) && i.memory_index() == Register::None;
    if i.op0_kind() != OpKind::Memory || !plain(i) || !plain(operand) || i.memory_base() != operand.memory_base() {
        return BackwardStep::Failed;
    }
    let size = i.memory_size().size();
    let (start, own) = (i.memory_displacement64(), operand.memory_displacement64());
    if start == own && i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Register && size >= state.need {
        return match low_part(i.op1_register()) {
            Some(register) => {
                let state = BoundSearch { holder: ValueLocation::Register(register), ..state };
                match state.other {
                    // The compared register is where the value comes from.
                    Some((other, width, limit)) if other == register && i.op1_register().size() >= width => {
                        learn(BoundSearch { other: None, ..state }, width, limit)
                    }
                    _ => BackwardStep::On(state),
                }
            }
            None => BackwardStep::Failed,
        };
    }
    let apart = |a: u64, b: u64, len: usize| b.wrapping_sub(a) < 1 << 31 && b.wrapping_sub(a) >= len as u64;
    let apart = apart(start, own, size) || apart(own, start, operand.memory_size().size());
    if apart { BackwardStep::On(state) } else { BackwardStep::Failed }
}

/// Returns the number of which a branch, taken or not, shows this: the first operand of the comparison before it is less than the second
/// plus this number.
fn limit_of_branch(i: &Instruction, taken: bool) -> Option<u64> {
    match (i.mnemonic(), taken) {
        (Mnemonic::Ja, false) | (Mnemonic::Jbe, true) | (Mnemonic::Je, true) | (Mnemonic::Jne, false) => Some(1),
        (Mnemonic::Jae, false) | (Mnemonic::Jb, true) => Some(0),
        _ => None,
    }
}

/// The 64-bit register whose low bytes a register is; `None` for one like `ah`.
fn low_part(register: Register) -> Option<Register> {
    let high = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
    (!high && register.is_gpr()).then(|| register.full_register())
}

fn immediate(i: &Instruction) -> Option<u64> {
    match i.op1_kind() {
        OpKind::Immediate8 => Some(u64::from(i.immediate8())),
        OpKind::Immediate16 => Some(u64::from(i.immediate16())),
        OpKind::Immediate32 => Some(u64::from(i.immediate32())),
        // A negative number after sign extension is no bound of a table.
        OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            Some(i.immediate(1)).filter(|n| *n < 1 << 31)
        }
        _ => None,
    }
}

fn same_operand(load: &Instruction, compare: &Instruction) -> bool {
    compare.op0_kind() == OpKind::Memory
        && load.memory_base() == compare.memory_base()
        && load.memory_index() == compare.memory_index()
        && load.memory_index_scale() == compare.memory_index_scale()
        && load.memory_displacement64() == compare.memory_displacement64()
        && load.segment_prefix() == compare.segment_prefix()
}
