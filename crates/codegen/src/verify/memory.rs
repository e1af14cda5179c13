//! The new code of a plan, by address.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use ingraft_model::AvmaRange;
use ingraft_model::patch::ArenaCode;

use super::{Flaw, VerifyError, fail};

/// The pieces of code that a plan writes, sorted and disassembled from end to end: generated code has no data in it, so an address between two
/// of these instructions is in the middle of one.
pub(super) struct Memory<'a> {
    pieces: Vec<Piece<'a>>,
    instructions: Vec<Instruction>,
}

struct Piece<'a> {
    at: u64,
    bytes: &'a [u8],
    /// Per byte the number of the instruction that begins there, or `NONE`.
    starts: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// Of an instruction of generated code, on average, at least.
const BYTES_EACH: usize = 4;

impl<'a> Memory<'a> {
    /// The pieces, if they lie in the arena and do not overlap.
    pub fn new(code: &'a [ArenaCode], arena: &AvmaRange) -> Result<Self, VerifyError> {
        let mut code: Vec<_> = code.iter().map(|c| (c.at.0, c.bytes.as_slice())).collect();
        code.sort_unstable_by_key(|c| c.0);
        let bytes: usize = code.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut memory =
            Memory { pieces: Vec::with_capacity(code.len()), instructions: Vec::with_capacity(bytes / BYTES_EACH) };
        let mut free_from = arena.start.0;
        for (at, bytes) in code {
            let end = at.checked_add(bytes.len() as u64).filter(|&end| end <= arena.end.0);
            let (Some(end), true) = (end, at >= arena.start.0) else { return fail(at, Flaw::OutsideArena) };
            if at < free_from {
                return fail(at, Flaw::Disorder);
            }
            free_from = end;
            memory.disassemble(at, bytes);
        }
        Ok(memory)
    }

    fn disassemble(&mut self, at: u64, bytes: &'a [u8]) {
        let mut starts = vec![NONE; bytes.len()];
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        while decoder.can_decode() {
            if let Some(start) = starts.get_mut(decoder.position()) {
                *start = self.instructions.len() as u32;
            }
            self.instructions.push(decoder.decode());
        }
        self.pieces.push(Piece { at, bytes, starts });
    }

    fn find(&self, at: u64) -> Option<(&Piece<'a>, usize)> {
        let piece = self.pieces.get(self.pieces.partition_point(|p| p.at <= at).checked_sub(1)?)?;
        let offset = usize::try_from(at - piece.at).ok()?;
        (offset < piece.bytes.len()).then_some((piece, offset))
    }

    /// The bytes from an address to the end of its piece.
    pub fn bytes(&self, at: u64) -> Option<&'a [u8]> {
        let (piece, offset) = self.find(at)?;
        piece.bytes.get(offset..)
    }

    /// Whether the plan writes that byte.
    pub fn holds(&self, at: u64) -> bool {
        self.find(at).is_some()
    }

    /// How many instructions there are.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// The number of the instruction at an address.
    pub fn number(&self, at: u64) -> Result<usize, VerifyError> {
        let Some((piece, offset)) = self.find(at) else { return fail(at, Flaw::NoInstruction) };
        match piece.starts.get(offset) {
            Some(&number) if number != NONE => Ok(number as usize),
            _ => fail(at, Flaw::Untiled),
        }
    }

    /// The instruction of that number.
    pub fn get(&self, number: usize) -> Option<&Instruction> {
        self.instructions.get(number)
    }

    /// The instructions from that number on.
    pub fn from(&self, number: usize) -> &[Instruction] {
        self.instructions.get(number..).unwrap_or_default()
    }

    /// The instruction at an address with its number, which is perhaps `hint`.
    pub fn instruction(&self, at: u64, hint: usize) -> Result<(usize, &Instruction), VerifyError> {
        let expected = |i: &&Instruction| i.ip() == at && !i.is_invalid();
        match self.get(hint).filter(expected) {
            Some(instruction) => Ok((hint, instruction)),
            None => Ok((self.number(at)?, self.decode(at)?)),
        }
    }

    /// The instruction at an address.
    pub fn decode(&self, at: u64) -> Result<&Instruction, VerifyError> {
        let instruction = self.get(self.number(at)?).filter(|i| !i.is_invalid());
        instruction.map_or_else(|| fail(at, Flaw::NoInstruction), Ok)
    }

    /// Every byte is in a proven range or a breakpoint between two of them. Sorts the ranges.
    pub fn all_proven(&self, proven: &mut [(u64, u64)]) -> Result<(), VerifyError> {
        proven.sort_unstable();
        let mut ranges = proven.iter().peekable();
        let mut last_end = 0;
        for piece in &self.pieces {
            let mut at = piece.at;
            let end = at + piece.bytes.len() as u64;
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
