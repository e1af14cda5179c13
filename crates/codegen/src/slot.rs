//! The slot of a point: nine bytes behind the check of the shard, either a plain count, if that is all there is, or a `jmp rel32` to the
//! chain of snippets.
//!
//! The last four bytes are the count's displacement. Behind a jump they are never executed and stay what they were, so that a thread in the
//! slow routine that has seen a count still finds which one.

use ingraft_model::TextWrite;

use crate::block::{Back, Block, OutOfReach, jmp_bytes, text_write};
use crate::cost::Cost;

use crate::slow::{COUNT, LOCKED_COUNT};
use crate::weave::WovenPoint;

/// Bytes of a slot.
pub(crate) const LEN: u64 = 9;
/// Those of them that both forms differ in.
pub(crate) const OPCODE: u64 = 5;
/// The last bytes of a slot that never was a count: with them it can be disassembled from end to end (`nop dword [rax]`).
pub(crate) const FILLER: u32 = u32::from_le_bytes([0x0f, 0x1f, 0x40, 0x00]);

/// What stands in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub at: u64,
    /// Whether threads have shards of their own.
    pub private: bool,
    /// Where the jump leads; none if it is a count.
    pub target: Option<u64>,
    /// Displacement of the counter, or the last four bytes behind a jump.
    pub operand: u32,
}

impl Slot {
    /// As it is at a woven point.
    pub fn of(point: &WovenPoint) -> Self {
        let first = point.minis.first().map_or(Some(point.leave), |m| Some(m.code.as_ref()?.start));
        Slot {
            at: point.slot.0,
            private: point.scratch.is_some(),
            target: first.map(|at| at.0),
            operand: point.operand,
        }
    }

    /// With a jump instead of what it is.
    pub fn leading_to(self, target: u64) -> Self {
        Slot { target: Some(target), ..self }
    }

    /// With a plain count instead of what it is.
    pub fn counting(self, counter: u32) -> Self {
        Slot { target: None, operand: counter, ..self }
    }

    fn opcode(self) -> Option<[u8; OPCODE as usize]> {
        match self.target {
            Some(target) => jmp_bytes(self.at, target),
            None => Some(if self.private { COUNT } else { LOCKED_COUNT }),
        }
    }

    /// What it costs if it is a count.
    pub fn cost(self) -> Cost {
        let mut block = Block::default();
        match self.emit(&mut block, Back::StepOut) {
            Ok(()) if self.target.is_none() => Cost::of(self.at, &block.bytes),
            _ => Cost::default(),
        }
    }

    /// Writes it as code under construction, one instruction.
    pub fn emit(self, block: &mut Block, back: Back) -> Result<(), OutOfReach> {
        block.put_absolute(&self.opcode().ok_or(OutOfReach)?, self.operand, back);
        Ok(())
    }

    /// The writes that make of `self` what `after` is, none if a jump does not reach. All are on one page, and so are there all or not at
    /// all.
    pub fn becomes(self, after: Slot) -> Option<Vec<TextWrite>> {
        let mut writes = vec![text_write(self.at, &self.opcode()?, &after.opcode()?)];
        if after.target.is_none() {
            let [old, new] = [self.operand, after.operand].map(u32::to_le_bytes);
            writes.push(text_write(self.at + OPCODE, &old, &new));
        }
        Some(writes)
    }
}
