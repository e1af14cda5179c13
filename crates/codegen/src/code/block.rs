//! Code of an arena under construction. Each instruction comes with the resume address for a thread that stands on it when the code is
//! removed.

use std::cell::RefCell;

use ingraft_model::machine::{JUMP, PAGE};
use ingraft_model::{Avma, AvmaRange, Gpr, PcMove, TextWrite};
use rustc_hash::FxHashMap;

use crate::code::cost::Cost;

/// First address after user space (47 bits). Below it, sums of addresses and lengths cannot overflow.
pub(crate) const USER_END: u64 = 1 << 47;

/// Whether `len` bytes at `at` lie on two pages.
pub(crate) fn straddles(at: u64, len: u64) -> bool {
    len > 0 && (at & (PAGE - 1)) + len > PAGE
}

/// Displacement from `end`, the end of a field or instruction, to `target`, if 32 bits hold it.
pub(crate) fn displacement(end: u64, target: u64) -> Option<i32> {
    i32::try_from(target.wrapping_sub(end).cast_signed()).ok()
}

/// A text write of up to 8 bytes.
pub(crate) fn text_write(at: u64, old: &[u8], new: &[u8]) -> TextWrite {
    let len = old.len().min(new.len()).min(8);
    let pad = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..len].copy_from_slice(&bytes[..len]);
        all
    };
    TextWrite { at: Avma(at), len: len as u8, old: pad(old), new: pad(new) }
}

/// The five bytes of `jmp rel32` at `at`.
pub(crate) fn jmp_bytes(at: u64, target: u64) -> Option<[u8; 5]> {
    let [a, b, c, d] = displacement(at.wrapping_add(5), target)?.to_le_bytes();
    Some([JUMP, a, b, c, d])
}

/// Target of a `jmp rel32` at `at`; `None` if it is another instruction.
pub(crate) fn jmp_target(at: u64, bytes: &[u8]) -> Option<u64> {
    let [JUMP, disp @ ..] = bytes else { return None };
    let disp = i32::from_le_bytes(*disp.first_chunk()?);
    Some(at.wrapping_add(5).wrapping_add_signed(i64::from(disp)))
}

/// Link of a chain that leads to the address right after the link: `nop dword [rax+rax+0]`.
pub(crate) const LINK_NOP: [u8; LINK as usize] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// Size of a link in bytes.
pub(crate) const LINK: u64 = 5;

/// Bytes of the link at `at` that leads to `target`: a jump or a nop. `None` if the jump does not reach.
pub(crate) fn link_bytes(at: u64, target: u64) -> Option<[u8; LINK as usize]> {
    if target == at + LINK { Some(LINK_NOP) } else { jmp_bytes(at, target) }
}

/// Target of the link at `at`; `None` if it is no link.
pub(crate) fn link_target(at: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.starts_with(&LINK_NOP) { Some(at + LINK) } else { jmp_target(at, bytes) }
}

/// Resume point of a thread that stands on an instruction of retired code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// The thread resumes at this address; nothing else must change.
    To(u64),
    /// The thread is single-stepped until it has left the code.
    StepOut,
}

/// Error: the target is further away than a displacement reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfReach;

/// Code under construction at a fixed address.
#[derive(Debug, Default)]
pub(crate) struct CodeBuffer {
    pub at: u64,
    pub bytes: Vec<u8>,
    backs: Vec<(u32, Back)>,
    /// Known costs of pieces of code. The pieces of one plan are often equal.
    costs: RefCell<FxHashMap<Box<[u8]>, Cost>>,
}

impl CodeBuffer {
    /// Starts a new block at `at`; keeps the buffers.
    pub fn restart(&mut self, at: u64) {
        self.at = at;
        self.bytes.clear();
        self.backs.clear();
    }

    /// Takes back what was added from an address on.
    pub fn take_back(&mut self, from: u64) {
        let offset = from.saturating_sub(self.at);
        self.bytes.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
        self.backs.retain(|(at, _)| u64::from(*at) < offset);
    }

    /// Address of the next byte.
    pub fn here(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// Bytes between two addresses of the block; empty if the block does not contain all of them.
    pub fn between(&self, from: u64, until: u64) -> &[u8] {
        let offset = |at: u64| usize::try_from(at.wrapping_sub(self.at)).unwrap_or(usize::MAX);
        self.bytes.get(offset(from)..offset(until)).unwrap_or_default()
    }

    /// Bytes from an address of the block to its end.
    pub fn rest_from(&mut self, from: u64) -> &mut [u8] {
        let offset = usize::try_from(from.wrapping_sub(self.at)).unwrap_or(usize::MAX);
        self.bytes.get_mut(offset..).unwrap_or_default()
    }

    /// Cost of the worst-case path through the code between two addresses.
    pub fn cost(&self, from: u64, until: u64) -> Cost {
        let code = self.between(from, until);
        if let Some(known) = self.costs.borrow().get(code) {
            return *known;
        }
        let cost = Cost::of(from, code);
        self.costs.borrow_mut().insert(code.into(), cost);
        cost
    }

    /// Adds one instruction.
    pub fn put(&mut self, bytes: &[u8], back: Back) {
        self.backs.push((self.bytes.len() as u32, back));
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds several instructions. A thread inside them can only be single-stepped.
    pub fn put_unit(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.put(bytes, Back::StepOut);
        }
    }

    /// Adds an opcode and a 32-bit displacement, relative to the end of the instruction.
    pub fn put_relative(&mut self, opcode: &[u8], target: u64, back: Back) -> Result<(), OutOfReach> {
        let end = self.here() + opcode.len() as u64 + 4;
        let disp = displacement(end, target).ok_or(OutOfReach)?;
        self.put(opcode, back);
        self.bytes.extend_from_slice(&disp.to_le_bytes());
        Ok(())
    }

    /// Adds an opcode and an absolute 32-bit address or value.
    pub fn put_absolute(&mut self, opcode: &[u8], value: u32, back: Back) {
        self.put(opcode, back);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Adds `jmp rel32`, always in five bytes.
    pub fn jmp(&mut self, target: u64, back: Back) -> Result<(), OutOfReach> {
        self.put_relative(&[JUMP], target, back)
    }

    /// Adds `jcc rel8`. Fails if the target is more than 127 bytes after or 128 bytes before the end of the instruction.
    pub fn jcc_short(&mut self, condition: u8, target: u64, back: Back) -> Result<(), OutOfReach> {
        let disp = target.wrapping_sub(self.here() + 2).cast_signed();
        let disp = i8::try_from(disp).map_err(|_| OutOfReach)?;
        self.put(&[0x70 | condition, disp.cast_unsigned()], back);
        Ok(())
    }

    /// Adds `push r` or `pop r` (opcode 0x50 or 0x58).
    pub fn push_pop(&mut self, opcode: u8, r: Gpr, back: Back) {
        let low = opcode | (r.0 & 7);
        if r.0 < 8 {
            self.put(&[low], back);
        } else {
            self.put(&[0x41, low], back);
        }
    }

    /// Adds an instruction `seg: op r, [disp32]` without base or index; `wide` for 64 bits.
    pub fn segment_absolute(&mut self, segment: u8, opcode: u8, r: Gpr, wide: bool, disp: u32, back: Back) {
        let rex = 0x40 | u8::from(wide) << 3 | (r.0 >> 3) << 2;
        let modrm = 0x04 | (r.0 & 7) << 3;
        if rex == 0x40 {
            self.put_absolute(&[segment, opcode, modrm, 0x25], disp, back);
        } else {
            self.put_absolute(&[segment, rex, opcode, modrm, 0x25], disp, back);
        }
    }

    /// Adds `lea r, [rip + target]`.
    pub fn lea(&mut self, r: Gpr, target: u64, back: Back) -> Result<(), OutOfReach> {
        self.put_relative(&[0x48 | (r.0 >> 3) << 2, 0x8d, 0x05 | (r.0 & 7) << 3], target, back)
    }

    /// Adds `cmp dword [address], 0`.
    pub fn cmp_zero(&mut self, address: u32, back: Back) {
        let [a, b, c, d] = address.to_le_bytes();
        self.put(&[0x83, 0x3c, 0x25, a, b, c, d, 0], back);
    }

    /// Moves for the instructions in a range that have a resume address, and ranges of the others, which must be single-stepped.
    pub fn exits(&self, from: u64, until: u64) -> (Vec<PcMove>, Vec<AvmaRange>) {
        let index = |at: u64| self.backs.partition_point(|(offset, _)| self.at + u64::from(*offset) < at);
        let (first, last) = (index(from), index(until.max(from)));
        let backs = self.backs.get(first..last).unwrap_or_default();
        // The capacity is exact because many lists are kept: most code has no moves, or one range to single-step.
        let mut moves = Vec::with_capacity(backs.iter().filter(|(_, back)| matches!(back, Back::To(_))).count());
        let mut step_out: Vec<AvmaRange> = Vec::new();
        for (i, &(offset, back)) in (first..).zip(backs) {
            let start = self.at + u64::from(offset);
            match back {
                Back::To(to) => moves.push(PcMove { from: Avma(start), to: Avma(to) }),
                Back::StepOut => {
                    let end = self.backs.get(i + 1).map_or(self.here(), |&(next, _)| self.at + u64::from(next));
                    match step_out.last_mut() {
                        Some(last) if last.end.0 == start => last.end = Avma(end),
                        _ => step_out.push(Avma(start)..Avma(end)),
                    }
                }
            }
        }
        (moves, step_out)
    }
}

/// Reason why code could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EmitError {
    /// The target of a jump is too far away.
    OutOfReach,
    /// The arena has no room left for the code.
    ArenaFull,
    /// The code needs a shared routine, which may not be written into a part of an arena.
    Unshared,
    Codegen(crate::code::environment::CodegenError),
}

impl From<OutOfReach> for EmitError {
    fn from(_: OutOfReach) -> Self {
        EmitError::OutOfReach
    }
}

impl From<crate::code::environment::CodegenError> for EmitError {
    fn from(e: crate::code::environment::CodegenError) -> Self {
        EmitError::Codegen(e)
    }
}

impl CodeBuffer {
    /// Makes the link at `at` lead to `target`.
    pub fn set_link(&mut self, at: u64, target: u64) -> Result<(), OutOfReach> {
        let bytes = link_bytes(at, target).ok_or(OutOfReach)?;
        let offset = usize::try_from(at.wrapping_sub(self.at)).map_err(|_| OutOfReach)?;
        *self.bytes.get_mut(offset..).and_then(|b| b.first_chunk_mut()).ok_or(OutOfReach)? = bytes;
        Ok(())
    }

    /// Rewrites the 32-bit displacement at `field`, the last four bytes of an instruction.
    pub fn patch_relative(&mut self, field: u64, target: u64) -> Result<(), OutOfReach> {
        let disp = displacement(field.wrapping_add(4), target).ok_or(OutOfReach)?;
        let offset = usize::try_from(field.wrapping_sub(self.at)).map_err(|_| OutOfReach)?;
        let place = self.bytes.get_mut(offset..).and_then(|b| b.first_chunk_mut::<4>()).ok_or(OutOfReach)?;
        *place = disp.to_le_bytes();
        Ok(())
    }
}
