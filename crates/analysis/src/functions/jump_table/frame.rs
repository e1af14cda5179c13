//! Whether the frame of a function is still open at its jumps through pointers, so that none of them is a call of another function.
//!
//! A computed goto reads the address of a label from memory that the program may write, so no table bounds its targets. A jump to another
//! function looks the same, but is made with the stack pointer that the function had at its entry: the other function returns to the caller.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};
use rustc_hash::FxHashSet;

use crate::functions::jump_table::JumpResolver;
use crate::functions::jump_table::trace::writes;
use crate::text::transfer::ControlTransfer;

impl JumpResolver<'_> {
    /// Whether the stack pointer is below its value at the function's entry at each of these jumps, by the same distance on every way.
    /// `labels` are the sorted addresses to which the jumps may lead; on the ways from there, the stack pointer must be that of the jumps.
    pub fn keeps_frame(&self, start: u64, jumps: &[usize], labels: &[u64]) -> bool {
        self.open_frame(start, jumps, labels).is_some()
    }

    /// The distance of [`JumpResolver::keeps_frame`] in bytes; `None` if there is no such distance.
    fn open_frame(&self, start: u64, jumps: &[usize], labels: &[u64]) -> Option<i64> {
        let mut info = InstructionInfoFactory::new();
        let mut frame = None;
        let mut seen: FxHashSet<(usize, i64)> = FxHashSet::default();
        // Each instruction comes with the distance by which the stack pointer sinks from there to the jump.
        let mut work: Vec<(usize, i64)> = jumps.iter().map(|jump| (*jump, 0)).collect();
        while let Some((at, depth)) = work.pop() {
            let ip = self.code[at].ip();
            if ip == start {
                if depth <= 0 || frame.is_some_and(|other| other != depth) {
                    return None;
                }
                frame = Some(depth);
            } else if self.before.is_entry(ip) && (depth != 0 || labels.binary_search(&ip).is_err()) {
                return None;
            }
            let mut ways = Vec::new();
            self.before.each(self.code, at, |before, _| ways.push(before));
            if ways.is_empty() && !self.before.is_entry(ip) {
                return None;
            }
            for before in ways {
                self.spend(1)?;
                let state = (before, depth.checked_add(sinks_by(&mut info, &self.code[before])?)?);
                if seen.insert(state) {
                    work.push(state);
                }
            }
        }
        frame
    }
}

/// The number of bytes by which an instruction lowers the stack pointer; `None` if the number is not known.
fn sinks_by(info: &mut InstructionInfoFactory, i: &Instruction) -> Option<i64> {
    if ControlTransfer::of(i).comes_back() || !writes(info, i, Register::RSP) {
        return Some(0);
    }
    let number = || i.try_immediate(1).ok().map(u64::cast_signed);
    let is_own = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => Some(-i64::from(i.stack_pointer_increment())),
        Mnemonic::Pop | Mnemonic::Popfq if !is_own => Some(-i64::from(i.stack_pointer_increment())),
        Mnemonic::Sub if is_own && i.op1_kind() != OpKind::Register => number(),
        Mnemonic::Add if is_own && i.op1_kind() != OpKind::Register => number()?.checked_neg(),
        Mnemonic::Lea if is_own && i.memory_base() == Register::RSP && i.memory_index() == Register::None => {
            i.memory_displacement64().cast_signed().checked_neg()
        }
        _ => None,
    }
}
