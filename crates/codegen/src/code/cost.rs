//! Costs of generated code, computed from its bytes. The code of a point has no loops, so the worst-case path is known.
//!
//! A core issues several instructions in a cycle, so instructions are counted in slots of a quarter of a cycle. An instruction counts the
//! slots that it uses if nothing waits for its result, rounded up (Intel's and AMD's optimisation manuals, uops.info; measured values of
//! this project). A taken jump delays the fetching of instructions by a cycle, while instructions that were fetched before are executed.
//! So the cost is the larger of the two times. Operations whose cost differs much between machines are counted apart: readings of the
//! clock, locked operations, system calls. The caller prices them by measured values.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess};

/// Slots of a cycle.
pub const SLOTS_PER_CYCLE: u32 = 4;
/// Weights, in slots, for the comparison of paths: a reading of the clock takes some 25 cycles, a call of the vDSO 60, a locked operation
/// 20, and a system call 500.
const CLOCK_WEIGHT: u64 = 100;
const VDSO_WEIGHT: u64 = 250;
const LOCKED_WEIGHT: u64 = 80;
const SYSTEM_CALL_WEIGHT: u64 = 2000;

/// Worst-case cost of code. The cost does not include the routines that a thread enters once, or when a call has ended without an exit, or
/// misses of caches and branch predictors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Cost {
    /// Quarters of a cycle in which instructions are issued.
    pub slots: u32,
    /// Number of taken jumps: cycles in which instructions are fetched.
    pub jumps: u32,
    /// Number of readings of the time stamp counter.
    pub clocks: u32,
    /// Number of calls of the vDSO for the time.
    pub vdso: u32,
    /// Number of operations with a `lock` prefix.
    pub locked: u32,
    /// System calls, in units of one that reads a clock.
    pub system_calls: u32,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            slots: self.slots.saturating_add(other.slots),
            jumps: self.jumps.saturating_add(other.jumps),
            clocks: self.clocks.saturating_add(other.clocks),
            vdso: self.vdso.saturating_add(other.vdso),
            locked: self.locked.saturating_add(other.locked),
            system_calls: self.system_calls.saturating_add(other.system_calls),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        *self = *self + other;
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(all: I) -> Cost {
        all.fold(Cost::default(), Add::add)
    }
}

impl Cost {
    /// Quarters of a cycle that a core is busy, without the operations that are counted apart.
    pub fn busy(self) -> u32 {
        self.slots.max(self.jumps.saturating_mul(SLOTS_PER_CYCLE))
    }

    /// Cost of `count` jumps from one piece of code to another.
    pub(crate) fn jumps(count: u32) -> Cost {
        Cost { slots: count, jumps: count, ..Cost::default() }
    }

    /// A number in quarters of a cycle by which costs are compared.
    pub fn weight(self) -> u64 {
        u64::from(self.busy())
            + CLOCK_WEIGHT * u64::from(self.clocks)
            + VDSO_WEIGHT * u64::from(self.vdso)
            + LOCKED_WEIGHT * u64::from(self.locked)
            + SYSTEM_CALL_WEIGHT * u64::from(self.system_calls)
    }

    /// Cost of the worst-case path through `code`, which lies at `at` and is entered at the start. A jump out of the code leads to a
    /// shared routine, which resumes right after the jump; the cost of the routine is not included. A branch back follows the answer of
    /// such a routine, and does not count as a path of its own.
    pub(crate) fn of(at: u64, code: &[u8]) -> Cost {
        Cost::of_usual(at, code, &[])
    }

    /// The same, on paths that take these conditional branches.
    pub(crate) fn of_usual(at: u64, code: &[u8], taken: &[u64]) -> Cost {
        let mut info = InstructionInfoFactory::new();
        let instructions: Vec<Instruction> = Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter().collect();
        let mut from: Vec<Cost> = vec![Cost::default(); instructions.len() + 1];
        for (i, instruction) in instructions.iter().enumerate().rev() {
            let later = |target: u64| {
                let found = instructions.binary_search_by_key(&target, Instruction::ip).ok().filter(|t| *t > i);
                found.and_then(|t| from.get(t).copied())
            };
            let next = from.get(i + 1).copied().unwrap_or_default();
            let rest = match instruction.flow_control() {
                FlowControl::UnconditionalBranch => later(instruction.near_branch_target()).unwrap_or(next),
                FlowControl::ConditionalBranch => {
                    let other = later(instruction.near_branch_target()).unwrap_or_default();
                    if other.weight() > next.weight() || taken.contains(&instruction.ip()) { other } else { next }
                }
                _ => next,
            };
            if let Some(slot) = from.get_mut(i) {
                *slot = rest + of_instruction(instruction, &mut info);
            }
        }
        from.first().copied().unwrap_or_default()
    }
}

/// Cost of one instruction if nothing waits for its result.
fn of_instruction(instruction: &Instruction, info: &mut InstructionInfoFactory) -> Cost {
    use Mnemonic as M;
    let alone = |slots| Cost { slots, ..Cost::default() };
    let own = match instruction.mnemonic() {
        M::Rdtsc | M::Rdtscp => return Cost { clocks: 1, ..Cost::default() },
        M::Jmp => return Cost::jumps(1),
        M::Call => return alone(3) + Cost::jumps(1),
        M::Ret => return alone(1) + Cost::jumps(1),
        M::Push => return alone(3),
        M::Pop => return alone(2),
        M::Pushfq => return alone(8),
        M::Popfq => return alone(40),
        // The fence waits for all earlier instructions. Part of that time passes in any case (`cargo xtask bench cost`).
        M::Lfence => return alone(16),
        M::Imul | M::Mul => 4,
        M::Div | M::Idiv => 120,
        M::Shld | M::Shrd | M::Cmpxchg => 6,
        M::Shl | M::Shr | M::Sar if instruction.op1_kind() == iced_x86::OpKind::Register => 3,
        M::Bsr | M::Bsf | M::Lzcnt | M::Tzcnt => 4,
        M::Rdfsbase | M::Rdgsbase => 40,
        M::Wrfsbase | M::Wrgsbase => 80,
        M::Xsave | M::Xsave64 | M::Xsavec | M::Xrstor | M::Xrstor64 | M::Fxsave | M::Fxrstor => 250,
        _ => 1,
    };
    if instruction.has_lock_prefix() {
        return Cost { slots: own, locked: 1, ..Cost::default() };
    }
    let memory = info.info(instruction).used_memory().first().map(|m| m.access());
    alone(
        own + match memory {
            Some(OpAccess::Read | OpAccess::CondRead) => 1,
            Some(OpAccess::Write | OpAccess::CondWrite) => 3,
            Some(OpAccess::ReadWrite | OpAccess::ReadCondWrite) => 5,
            _ => 0,
        },
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::*;

    use super::*;

    fn cost(write: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Cost {
        let mut a = CodeAssembler::new(64).expect("64 bits");
        write(&mut a).expect("assembled");
        let bytes = a.assemble(0x1000).expect("assembled");
        Cost::of(0x1000, &bytes)
    }

    fn slots(slots: u32) -> Cost {
        Cost { slots, ..Cost::default() }
    }

    #[test]
    fn what_differs_between_machines_is_counted_apart() {
        assert_eq!(cost(|a| a.inc(qword_ptr(0x1000_0000u64).gs())), slots(6));
        assert_eq!(cost(|a| a.lock().inc(qword_ptr(0x1000_0000u64))), Cost { locked: 1, ..slots(1) });
        assert_eq!(cost(CodeAssembler::rdtsc), Cost { clocks: 1, ..slots(0) });
        assert_eq!(cost(|a| a.lea(rax, qword_ptr(rcx + 8))), slots(1));
    }

    #[test]
    fn the_dearest_path_counts() {
        let both = cost(|a| {
            let (mut other, mut end) = (a.create_label(), a.create_label());
            a.test(eax, eax)?;
            a.je(other)?;
            a.inc(rax)?;
            a.jmp(end)?;
            a.set_label(&mut other)?;
            a.rdtsc()?;
            a.set_label(&mut end)?;
            a.inc(rcx)
        });
        assert_eq!(both, Cost { clocks: 1, ..slots(3) });
    }

    #[test]
    fn routines_come_back_right_behind_their_jump() {
        let answered = cost(|a| {
            let (mut found, mut search, mut end) = (a.create_label(), a.create_label(), a.create_label());
            a.test(eax, eax)?;
            a.jne(search)?;
            a.set_label(&mut found)?;
            a.inc(rax)?;
            a.jmp(end)?;
            a.set_label(&mut search)?;
            a.inc(rcx)?;
            a.jmp(0x10_0000u64)?;
            a.test(ecx, ecx)?;
            a.jne(found)?;
            a.rdtsc()?;
            a.set_label(&mut end)?;
            a.nop()
        });
        assert_eq!(answered, Cost { clocks: 1, jumps: 1, ..slots(1 + 1 + 1 + 1 + 1 + 1 + 1) });
    }

    #[test]
    fn jumps_are_taken_while_others_are_issued() {
        let cost = |issued: u32, count| (slots(issued) + Cost::jumps(count)).busy();
        assert_eq!((cost(0, 2), cost(3, 2), cost(6, 2), cost(10, 2)), (8, 8, 8, 12));
    }

    #[test]
    fn any_bytes_have_a_cost() {
        for first in 0..=255u8 {
            let _ = Cost::of(u64::MAX - 3, &[first, 0xff, 0x80, 0, 0, 0, 0]);
        }
        assert_eq!(Cost::of(0, &[]), Cost::default());
    }
}
