//! New code of a plan, by address.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use ingraft_model::AvmaRange;
use ingraft_model::patch::ArenaCode;

use super::{Flaw, VerifyError, fail};

/// Pieces of code that a plan writes, sorted by address.
pub(super) struct Memory<'a> {
    pieces: Vec<(u64, &'a [u8])>,
}

impl<'a> Memory<'a> {
    /// Collects the pieces. Fails if one lies outside the arena, or if two overlap.
    pub fn new(code: &'a [ArenaCode], arena: &AvmaRange) -> Result<Self, VerifyError> {
        let mut pieces: Vec<_> = code.iter().map(|c| (c.at.0, c.bytes.as_slice())).collect();
        pieces.sort_unstable_by_key(|c| c.0);
        let mut free_from = arena.start.0;
        for (at, bytes) in &pieces {
            let end = at.checked_add(bytes.len() as u64).filter(|&end| end <= arena.end.0);
            let (Some(end), true) = (end, *at >= arena.start.0) else { return fail(*at, Flaw::OutsideArena) };
            if *at < free_from {
                return fail(*at, Flaw::Disorder);
            }
            free_from = end;
        }
        Ok(Memory { pieces })
    }

    /// The bytes from an address to the end of its piece.
    pub fn bytes(&self, at: u64) -> Option<&'a [u8]> {
        let (start, bytes) = self.pieces.get(self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?)?;
        bytes.get(usize::try_from(at - start).ok()?..).filter(|rest| !rest.is_empty())
    }

    /// Whether the plan writes the byte at `at`.
    pub fn holds(&self, at: u64) -> bool {
        self.bytes(at).is_some()
    }

    /// The instruction at an address.
    pub fn decode(&self, at: u64) -> Result<Instruction, VerifyError> {
        self.bytes(at).map_or_else(|| fail(at, Flaw::NoInstruction), |bytes| decode(bytes, at))
    }

    /// Checks that every byte belongs to a proven range, or is a breakpoint between two of them. Sorts the ranges.
    pub fn all_proven(&self, proven: &mut [(u64, u64)]) -> Result<(), VerifyError> {
        proven.sort_unstable();
        let mut ranges = proven.iter().peekable();
        let mut last_end = 0;
        for (at, bytes) in &self.pieces {
            let mut at = *at;
            let end = at + bytes.len() as u64;
            while at < end {
                match ranges.peek() {
                    Some(&&(s, e)) if s <= at => {
                        if s < last_end && e > s {
                            return fail(s, Flaw::Disorder);
                        }
                        last_end = last_end.max(e);
                        at = at.max(e);
                        ranges.next();
                    }
                    _ if self.bytes(at).is_some_and(|b| b[0] == 0xcc) => at += 1,
                    _ => return fail(at, Flaw::Untiled),
                }
            }
        }
        match ranges.find(|(s, e)| s < e) {
            Some((s, _)) => fail(*s, Flaw::NoInstruction),
            None => Ok(()),
        }
    }
}

/// Decodes one instruction.
pub(super) fn decode(bytes: &[u8], at: u64) -> Result<Instruction, VerifyError> {
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    if instruction.is_invalid() { fail(at, Flaw::NoInstruction) } else { Ok(instruction) }
}
