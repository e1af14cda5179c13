//! The new code of a plan, by address.

use std::sync::atomic::{AtomicUsize, Ordering};

use iced_x86::{Decoder, DecoderOptions, Instruction};
use ingraft_model::AvmaRange;
use ingraft_model::patch::ArenaCode;

use super::{Flaw, VerifyError, fail, on_processors};

/// The pieces of code that a plan writes, sorted and disassembled from end to end: generated code has no data in it, so an address between two
/// of these instructions is in the middle of one.
pub(super) struct Memory<'a> {
    pieces: Vec<Piece<'a>>,
    len: usize,
}

struct Piece<'a> {
    at: u64,
    bytes: &'a [u8],
    /// Number of its first instruction among those of all pieces.
    first: usize,
    instructions: Vec<Instruction>,
    /// Per byte the number, in the piece, of the instruction that begins there, or `NONE`.
    starts: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// Of an instruction of generated code, on average, at least.
const BYTES_EACH: usize = 4;

/// Less code is not worth a thread of its own.
const BYTES_OF_THREAD: usize = 64 << 10;

impl<'a> Memory<'a> {
    /// The pieces, if they lie in the arena and do not overlap.
    pub fn new(code: &'a [ArenaCode], arena: &AvmaRange) -> Result<Self, VerifyError> {
        let mut code: Vec<_> = code.iter().map(|c| (c.at.0, c.bytes.as_slice())).collect();
        code.sort_unstable_by_key(|c| c.0);
        let mut free_from = arena.start.0;
        for &(at, bytes) in &code {
            let end = at.checked_add(bytes.len() as u64).filter(|&end| end <= arena.end.0);
            let (Some(end), true) = (end, at >= arena.start.0) else { return fail(at, Flaw::OutsideArena) };
            if at < free_from {
                return fail(at, Flaw::Disorder);
            }
            free_from = end;
        }
        let (next, bytes) = (AtomicUsize::new(0), code.iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
        let disassembled = on_processors(bytes / BYTES_OF_THREAD, || {
            let mut own = Vec::new();
            while let Some((at, bytes)) = code.get(next.fetch_add(1, Ordering::Relaxed)) {
                own.push(Piece::disassemble(*at, bytes));
            }
            own
        });
        let mut memory = Memory { pieces: disassembled.into_iter().flatten().collect(), len: 0 };
        memory.pieces.sort_unstable_by_key(|piece| piece.at);
        for piece in &mut memory.pieces {
            piece.first = memory.len;
            memory.len += piece.instructions.len();
        }
        Ok(memory)
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
        self.len
    }

    /// The number of the instruction at an address.
    pub fn number(&self, at: u64) -> Result<usize, VerifyError> {
        let Some((piece, offset)) = self.find(at) else { return fail(at, Flaw::NoInstruction) };
        match piece.starts.get(offset) {
            Some(&number) if number != NONE => Ok(piece.first + number as usize),
            _ => fail(at, Flaw::Untiled),
        }
    }

    /// The instruction of that number.
    pub fn get(&self, number: usize) -> Option<&Instruction> {
        self.from(number).first()
    }

    /// The instructions from that number to the end of their piece.
    pub fn from(&self, number: usize) -> &[Instruction] {
        let piece = self.pieces.partition_point(|piece| piece.first <= number).checked_sub(1);
        let rest = piece.and_then(|n| self.pieces.get(n)).and_then(|p| p.instructions.get(number - p.first..));
        rest.unwrap_or_default()
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

impl<'a> Piece<'a> {
    fn disassemble(at: u64, bytes: &'a [u8]) -> Self {
        let mut starts = vec![NONE; bytes.len()];
        let mut instructions = Vec::with_capacity(bytes.len() / BYTES_EACH);
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        while decoder.can_decode() {
            if let Some(start) = starts.get_mut(decoder.position()) {
                *start = instructions.len() as u32;
            }
            instructions.push(decoder.decode());
        }
        Piece { at, bytes, first: 0, instructions, starts }
    }
}

/// Decodes one instruction.
pub(super) fn decode(bytes: &[u8], at: u64) -> Result<Instruction, VerifyError> {
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    if instruction.is_invalid() { fail(at, Flaw::NoInstruction) } else { Ok(instruction) }
}
