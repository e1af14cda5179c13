//! The slot of a point: nine bytes behind the check of the shard. They are a plain count, if that is all there is; a nop, where the first
//! snippet, or what follows all of them, is right behind it; or a `jmp rel32` to that.
//!
//! The last four bytes are the displacement of the count. In the other forms, where nobody executes them or they mean nothing, they tell how
//! far behind the slot its snippets end that were woven with the point: whom none of them concerns goes on there.

use ingraft_model::TextWrite;

use crate::code::block::{Back, Block, OutOfReach, jmp_bytes, jmp_target, text_write};
use crate::code::cost::Cost;

use crate::code::woven::WovenMini;
use crate::code::woven::WovenPoint;
use crate::snippet::slow::{COUNT, LOCKED_COUNT};

/// Bytes of a slot.
pub(crate) const LEN: u64 = 9;
/// Those of them that its forms differ in.
pub(crate) const OPCODE: u64 = 5;
/// Of the form that leads to what is behind it: `nop word [rax+rax+disp32]`.
pub(crate) const NOP: [u8; OPCODE as usize] = [0x66, 0x0f, 0x1f, 0x84, 0x00];

/// What a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// It counts, at this displacement.
    Count(u32),
    /// It leads there.
    Link(u64),
}

/// A slot as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub at: u64,
    /// Whether threads have shards of their own.
    pub private: bool,
    /// Where those go on whom no snippet concerns.
    pub leave: u64,
    pub holds: Holds,
}

impl Slot {
    /// As it is at a woven point.
    pub fn of(point: &WovenPoint) -> Self {
        let holds = match point.minis.first() {
            None => Holds::Link(point.leave.0),
            Some(WovenMini { code: Some(code), .. }) => Holds::Link(code.start.0),
            Some(mini) => Holds::Count(mini.count.unwrap_or_default()),
        };
        Slot { at: point.slot.0, private: point.scratch.is_some(), leave: point.leave.0, holds }
    }

    /// Where one with these first bytes leads; none if it is a count.
    pub fn target_of(at: u64, opcode: &[u8]) -> Option<u64> {
        if opcode == NOP { Some(at + LEN) } else { jmp_target(at, opcode) }
    }

    /// Leading there instead of what it is.
    pub fn leading_to(self, target: u64) -> Self {
        Slot { holds: Holds::Link(target), ..self }
    }

    /// With a plain count instead of what it is.
    pub fn counting(self, counter: u32) -> Self {
        Slot { holds: Holds::Count(counter), ..self }
    }

    /// The last four bytes.
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

    /// What it costs if it is a count.
    pub fn cost(self) -> Cost {
        let mut block = Block::default();
        match self.emit(&mut block, Back::StepOut) {
            Ok(()) if matches!(self.holds, Holds::Count(_)) => Cost::of(self.at, &block.bytes),
            _ => Cost::default(),
        }
    }

    /// Writes it as code under construction, one instruction.
    pub fn emit(self, block: &mut Block, back: Back) -> Result<(), OutOfReach> {
        block.put_absolute(&self.opcode().ok_or(OutOfReach)?, self.operand(), back);
        Ok(())
    }

    /// The writes that make of `self` what `after` is, none if a jump does not reach. All are on one page, and so are there all or not at
    /// all.
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
    /// Whether a plain count may stand in the slot: nothing lies between it and `leave`.
    pub(crate) fn has_bare_slot(&self) -> bool {
        self.leave.0 == self.slot.0 + LEN
    }
}
