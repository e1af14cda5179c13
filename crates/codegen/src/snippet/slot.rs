//! The slot of a point: nine bytes after the check of the shard. The slot has one of three forms:
//!
//! - a plain count, if the point has no other snippet;
//! - a nop, if the first snippet, or the code that follows all snippets, comes right after the slot;
//! - a `jmp rel32` to that code elsewhere.
//!
//! The last four bytes are the displacement of the count. In the other forms, they are not executed or have no effect. There they hold the
//! distance from the slot to the end of the snippets that were woven with the point. A thread that must run none of the snippets continues
//! at that end.

use ingraft_model::TextWrite;

use crate::code::block::{Back, CodeBuffer, OutOfReach, jmp_bytes, jmp_target, text_write};
use crate::code::cost::Cost;

use crate::code::woven::WovenMini;
use crate::code::woven::WovenPoint;
use crate::snippet::slow::{COUNT, LOCKED_COUNT};

/// Size of a slot in bytes.
pub(crate) const LEN: u64 = 9;
/// Number of bytes in which the forms of a slot differ.
pub(crate) const OPCODE: u64 = 5;
/// First bytes of a slot that leads to the address after it: `nop word [rax+rax+disp32]`.
pub(crate) const NOP: [u8; OPCODE as usize] = [0x66, 0x0f, 0x1f, 0x84, 0x00];

/// Contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Count at this displacement.
    Count(u32),
    /// Jump or nop that leads to this address.
    Link(u64),
}

/// Form of a slot at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub at: u64,
    /// Whether threads have shards of their own.
    pub private: bool,
    /// Address at which a thread continues that must run none of the snippets.
    pub leave: u64,
    pub holds: Holds,
}

impl Slot {
    /// Slot of a woven point.
    pub fn of(point: &WovenPoint) -> Self {
        let holds = match point.minis.first() {
            None => Holds::Link(point.leave.0),
            Some(WovenMini { code: Some(code), .. }) => Holds::Link(code.start.0),
            Some(mini) => Holds::Count(mini.count.unwrap_or_default()),
        };
        Slot { at: point.slot.0, private: point.scratch.is_some(), leave: point.leave.0, holds }
    }

    /// Address to which a slot with these first bytes leads; `None` if it is a count.
    pub fn target_of(at: u64, opcode: &[u8]) -> Option<u64> {
        if opcode == NOP { Some(at + LEN) } else { jmp_target(at, opcode) }
    }

    /// The same slot, but it leads to `target`.
    pub fn leading_to(self, target: u64) -> Self {
        Slot { holds: Holds::Link(target), ..self }
    }

    /// The same slot, but it is a plain count.
    pub fn counting(self, counter: u32) -> Self {
        Slot { holds: Holds::Count(counter), ..self }
    }

    /// Last four bytes of the slot.
    pub fn operand(self) -> u32 {
        match self.holds {
            Holds::Count(counter) => counter,
            Holds::Link(_) => (self.leave - self.at - LEN) as u32,
        }
    }

    fn opcode(self) -> Option<[u8; OPCODE as usize]> {
        match self.holds {
            Holds::Link(target) if target == self.at + LEN => Some(NOP),
            Holds::Link(target) => jmp_bytes(self.at, target),
            Holds::Count(_) if self.private => Some(COUNT),
            Holds::Count(_) => Some(LOCKED_COUNT),
        }
    }

    /// Cost of a count; 0 for the other forms.
    pub fn cost(self) -> Cost {
        let mut block = CodeBuffer::default();
        match self.emit(&mut block, Back::StepOut) {
            Ok(()) if matches!(self.holds, Holds::Count(_)) => Cost::of(self.at, &block.bytes),
            _ => Cost::default(),
        }
    }

    /// Writes the slot, one instruction, into code under construction.
    pub fn emit(self, block: &mut CodeBuffer, back: Back) -> Result<(), OutOfReach> {
        block.put_absolute(&self.opcode().ok_or(OutOfReach)?, self.operand(), back);
        Ok(())
    }

    /// Writes that change the slot from `self` to `after`; `None` if a jump does not reach. All of them lie on one page, so either all or
    /// none are present.
    pub fn becomes(self, after: Slot) -> Option<Vec<TextWrite>> {
        let mut writes = vec![text_write(self.at, &self.opcode()?, &after.opcode()?)];
        if self.operand() != after.operand() {
            let [old, new] = [self, after].map(|slot| slot.operand().to_le_bytes());
            writes.push(text_write(self.at + OPCODE, &old, &new));
        }
        Some(writes)
    }
}

impl WovenPoint {
    /// Whether a plain count may stand in the slot: no code lies between the slot and `leave`.
    pub(crate) fn has_bare_slot(&self) -> bool {
        self.leave.0 == self.slot.0 + LEN
    }
}
