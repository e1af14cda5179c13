//! The only place that turns bytes into instructions.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::file::elf::Elf;
use crate::text::transfer::ControlTransfer;
use ingraft_model::machine::PAGE;

/// Decodes one instruction; `None` if the decoder does not know the bytes.
pub(crate) fn one(bytes: &[u8], svma: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, &bytes[..bytes.len().min(15)], svma, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// Decodes one instruction after the other, without the cost of creating a decoder for each.
pub(crate) struct DecodeCursor<'a>(Decoder<'a>);

impl<'a> DecodeCursor<'a> {
    /// Starts at the first of `bytes`, whose address is `svma`.
    pub fn new(bytes: &'a [u8], svma: u64) -> Self {
        DecodeCursor(Decoder::with_ip(64, bytes, svma, DecoderOptions::NONE))
    }

    /// Decodes the next instruction; `None` at the end, and at bytes that the decoder does not know.
    pub fn next(&mut self) -> Option<Instruction> {
        let instruction = self.0.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

/// Decodes `from..until`, which lie in one region of text, into `out`. Calls `keep_going` before every instruction. Skips bytes that are no
/// instruction one by one and passes their addresses to `invalid`.
pub(crate) fn range(
    image: &Elf,
    from: u64,
    until: u64,
    out: &mut Vec<Instruction>,
    mut keep_going: impl FnMut(u64) -> bool,
    mut invalid: impl FnMut(u64),
) {
    let Some(bytes) = until.checked_sub(from).and_then(|len| image.data_at(from, len)) else { return };
    let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
    while decoder.can_decode() {
        let at = decoder.position();
        if !keep_going(from + at as u64) {
            return;
        }
        // The instruction is decoded in place, because it takes 40 bytes and there are millions of them.
        let index = out.len();
        out.push(Instruction::default());
        decoder.decode_out(&mut out[index]);
        if out[index].is_invalid() {
            out.truncate(index);
            invalid(from + at as u64);
            // The position is inside the slice, so the call does not fail.
            if decoder.set_position(at + 1).is_err() {
                return;
            }
            decoder.set_ip(from + at as u64 + 1);
        }
    }
}

/// Length of the padding at the beginning of `bytes`: whole `nop`s, `int3`, and, with `zeros`, zero bytes.
pub(crate) fn padding(bytes: &[u8], zeros: bool) -> usize {
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    loop {
        let at = decoder.position();
        match bytes.get(at) {
            Some(0xcc) => {}
            Some(0) if zeros => {}
            Some(_) => {
                if !is_nop(&decoder.decode()) {
                    return at;
                }
                continue;
            }
            None => return at,
        }
        if decoder.set_position(at + 1).is_err() {
            return at;
        }
    }
}

/// Whether an instruction does nothing and is used to fill space.
pub(crate) fn is_nop(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop => true,
        // `xchg ax, ax` is 66 90; with other registers the instruction is not padding.
        Mnemonic::Xchg => {
            matches!(instruction.code(), Code::Xchg_r16_AX) && instruction.op0_register() == instruction.op1_register()
        }
        _ => false,
    }
}

/// Whether an instruction reads or writes the first page of the address space, which no program maps. Compilers and programs use such an
/// instruction to crash on purpose.
pub(crate) fn crashes(instruction: &Instruction) -> bool {
    let accesses = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    accesses
        && instruction.memory_base() == Register::None
        && instruction.memory_index() == Register::None
        && matches!(instruction.memory_segment(), Register::DS | Register::SS | Register::CS | Register::ES)
        && instruction.memory_displacement64() < PAGE
        && !is_nop(instruction)
        && instruction.mnemonic() != Mnemonic::Lea
}

/// Whether control that runs on at an address crashes before it branches. Compilers leave the end of a path out that the program declares as
/// impossible, so that it runs into the code behind, which often is an instruction that crashes on purpose.
pub(crate) fn crashes_soon(image: &Elf, at: u64) -> bool {
    /// Largest number of instructions that are followed.
    const FOLLOWED: usize = 8;
    let mut cursor = DecodeCursor::new(image.data_from(at).unwrap_or_default(), at);
    let goes_on = |i: &Instruction| ControlTransfer::of(i) == ControlTransfer::Next && !crashes(i);
    let end = std::iter::from_fn(|| cursor.next()).take(FOLLOWED).find(|i| !goes_on(i));
    end.is_some_and(|i| crashes(&i) || ControlTransfer::of(&i) == ControlTransfer::Stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_recognised() {
        for (bytes, zeros, len) in [
            (&[0x90, 0x66, 0x90, 0x0f, 0x1f, 0x40, 0x00, 0xc3][..], false, 7),
            (&[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xcc, 0xcc], false, 13),
            (&[0, 0, 0x90], false, 0),
            (&[0, 0, 0x90], true, 3),
            (&[0x0f, 0x1f], true, 0),
            (&[0xf3, 0x0f, 0x1e, 0xfa], false, 0),
            (&[0xf3, 0x90, 0xcc], false, 0),
            (&[], true, 0),
        ] {
            assert_eq!(padding(bytes, zeros), len, "{bytes:x?}");
        }
    }

    #[test]
    fn accesses_to_the_first_page_crash() {
        for (bytes, crashes_there) in [
            // movl $0, 1 and movl $0, 0
            (&[0xc7, 0x04, 0x25, 1, 0, 0, 0, 0, 0, 0, 0][..], true),
            (&[0xc7, 0x04, 0x25, 0, 0, 0, 0, 0, 0, 0, 0], true),
            // mov 0, eax
            (&[0x8b, 0x04, 0x25, 0, 0, 0, 0], true),
            // of the thread: mov fs:0x28, rax
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], false),
            // elsewhere: movl $0, 0x2000; by a register: mov (rax), eax; lea 1, eax; nopl 0
            (&[0xc7, 0x04, 0x25, 0, 0x20, 0, 0, 0, 0, 0, 0], false),
            (&[0x8b, 0x00], false),
            (&[0x8d, 0x04, 0x25, 1, 0, 0, 0], false),
            (&[0x0f, 0x1f, 0x04, 0x25, 0, 0, 0, 0], false),
            (&[0x90], false),
        ] {
            let i = one(bytes, 0x1000).expect("an instruction");
            assert_eq!(crashes(&i), crashes_there, "{i}");
        }
    }
}
