//! Registers and flags that are dead at an address: on every path they are overwritten before they are read. The search follows control
//! forwards over a limited number of instructions. A register counts as live if the search does not see it overwritten.
//!
//! Beyond the System V convention: results may also come in rcx and r8 (LLVM returns up to four words), r11 may be handed to
//! code of the same image (Go passes arguments in it), and in Go images every register may hold a result.

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use ingraft_model::Gpr;

use crate::file::elf::Elf;
use crate::text::decode::DecodeCursor;

/// Length in bytes of `mov [rsp], r64`.
const STORED_TARGET: u64 = 4;
/// Largest number of instructions that one search examines.
const BUDGET: usize = 96;
/// The registers that a callee may overwrite, in the order of preference.
pub(crate) const SCRATCH_ORDER: [Gpr; 9] = [Gpr(0), Gpr(11), Gpr(10), Gpr(1), Gpr(2), Gpr(6), Gpr(7), Gpr(8), Gpr(9)];
/// The registers of [`SCRATCH_ORDER`], as a mask.
pub(crate) const CALLER_SAVED: u32 = mask(&[0, 11, 10, 1, 2, 6, 7, 8, 9]);
/// Registers that may hold a result at a return.
const RESULTS: u32 = mask(&[0, 1, 2, 8]);
/// The arithmetic flags, above the registers, in the bits of iced's `RflagsBits`.
const FLAGS: u32 = 0x3f << 16;
const R11: u32 = 1 << 11;
const RCX: u32 = 1 << 1;

const fn mask(registers: &[u8]) -> u32 {
    let (mut out, mut i) = (0, 0);
    while i < registers.len() {
        out |= 1 << registers[i];
        i += 1;
    }
    out
}

/// Registers and flags that are dead at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dead {
    /// Mask of the dead registers among those that were asked for.
    pub registers: u32,
    /// Whether all arithmetic flags are dead.
    pub flags: bool,
}

/// Returns which of these registers, and whether the flags, are dead at `at`. `inside` tells whether the target of a direct jump is in the
/// function. `info` tells what instructions do; it costs less to use one for many searches.
pub(crate) fn dead_at(
    info: &mut InstructionInfoFactory,
    image: &Elf,
    (at, registers): (u64, u32),
    inside: impl Fn(u64) -> bool,
) -> Dead {
    let mut scan = Scan { image, live: 0, info };
    let asked = registers | FLAGS;
    let mut work = vec![(at, asked)];
    let mut seen: Vec<(u64, u32)> = Vec::new();
    let mut budget = BUDGET;
    while let Some((at, pending)) = work.pop() {
        if seen.iter().any(|s| s.0 == at && pending & !s.1 == 0) {
            continue;
        }
        seen.push((at, pending));
        scan.path(at, pending, &inside, &mut budget, &mut work);
    }
    Dead { registers: registers & !scan.live, flags: scan.live & FLAGS == 0 }
}

struct Scan<'a> {
    image: &'a Elf,
    live: u32,
    info: &'a mut InstructionInfoFactory,
}

impl Scan<'_> {
    fn path(
        &mut self,
        at: u64,
        mut pending: u32,
        inside: impl Fn(u64) -> bool,
        budget: &mut usize,
        work: &mut Vec<(u64, u32)>,
    ) {
        let mut cursor = DecodeCursor::new(self.image.data_from(at).unwrap_or_default(), at);
        loop {
            pending &= !self.live;
            if pending == 0 {
                return;
            }
            let Some(i) = budget.checked_sub(1).and_then(|_| cursor.next()) else {
                self.live |= pending;
                return;
            };
            *budget -= 1;
            let (reads, kills) = self.effects(&i);
            self.live |= pending & reads;
            pending &= !kills;
            match i.flow_control() {
                FlowControl::Next => {}
                FlowControl::ConditionalBranch => {
                    let target = i.near_branch_target();
                    if inside(target) {
                        work.push((target, pending));
                    } else {
                        self.leave(target, pending);
                    }
                }
                FlowControl::UnconditionalBranch => {
                    let target = i.near_branch_target();
                    if inside(target) {
                        work.push((target, pending));
                    } else {
                        self.leave(target, pending);
                    }
                    return;
                }
                FlowControl::Call if i.is_call_near() => return self.leave(i.near_branch_target(), pending),
                FlowControl::Call if i.mnemonic() == Mnemonic::Syscall => {
                    // Nothing that the kernel restores is dead, and it overwrites these two.
                    self.live |= pending & !(RCX | R11);
                    return;
                }
                FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                    let through_got = i.op0_kind() == OpKind::Memory && i.is_ip_rel_memory_operand();
                    return self.call(pending, through_got);
                }
                FlowControl::Return => {
                    // A jump in the form of a return may lead to code of the same function.
                    let all = self.image.is_go() || self.returns_to_register(i.ip());
                    let results = if all { CALLER_SAVED } else { RESULTS };
                    self.live |= pending & results;
                    return;
                }
                FlowControl::Exception => return,
                FlowControl::Call | FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                    self.live |= pending;
                    return;
                }
            }
        }
    }

    /// Whether the instruction before a return stores a register in the place of the return address, as retpolines do.
    fn returns_to_register(&self, at: u64) -> bool {
        let before = at.checked_sub(STORED_TARGET).and_then(|at| self.image.data_from(at)).unwrap_or_default();
        matches!(before, [0x48 | 0x4c, 0x89, form, 0x24, ..] if form & !0x38 == 0x04)
    }

    fn leave(&mut self, target: u64, pending: u32) {
        let outside = self.image.text_index(target).is_some_and(|index| self.image.text[index].stubs);
        self.call(pending, outside);
    }

    /// Handles a call or a tail jump: the registers that may hold an argument are live, and the flags are dead.
    fn call(&mut self, pending: u32, out_of_image: bool) {
        let arguments = if out_of_image { CALLER_SAVED & !R11 } else { CALLER_SAVED };
        self.live |= pending & arguments;
    }

    /// Registers and flags that an instruction reads, and those that it overwrites in every case.
    fn effects(&mut self, i: &Instruction) -> (u32, u32) {
        let (mut reads, mut kills) = (0, 0);
        for used in self.info.info(i).used_registers() {
            let register = used.register();
            let full = register.full_register();
            if !full.is_gpr64() {
                continue;
            }
            let bit = 1 << full.number();
            match used.access() {
                // These instructions do not write their destination if shadow stacks are off, or if the source is zero.
                OpAccess::Write if may_write(i) => reads |= bit,
                OpAccess::Write if register.size() >= 4 => kills |= bit,
                OpAccess::Write | OpAccess::None | OpAccess::NoMemAccess | OpAccess::CondWrite => {}
                _ => reads |= bit,
            }
        }
        reads |= i.rflags_read() << 16 & FLAGS;
        // A shift by zero and a repetition of zero times do not change the flags.
        let last = i.op_count().checked_sub(1);
        let by_cl = last.is_some_and(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == Register::CL);
        if !by_cl && !i.has_rep_prefix() && !i.has_repne_prefix() {
            kills |= i.rflags_modified() << 16 & FLAGS;
        }
        (reads, kills)
    }
}

/// Whether an instruction may leave its destination unchanged although the decoder says that it writes it.
fn may_write(i: &Instruction) -> bool {
    matches!(i.mnemonic(), Mnemonic::Rdsspd | Mnemonic::Rdsspq | Mnemonic::Bsf | Mnemonic::Bsr)
}
