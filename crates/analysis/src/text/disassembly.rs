//! Instructions as text, in the syntax of Intel's manuals.

use std::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter, OpKind};

/// One instruction as text, or one byte that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisassembledLine {
    /// Address of the first byte.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The instruction, or `(bad)` for a byte that the decoder does not know.
    pub text: String,
    /// Target of a direct branch or call; `None` for other instructions.
    pub target: Option<u64>,
}

/// Disassembles code that begins at an address. Numbers are written in hexadecimal with 0x.
pub fn disassemble(at: u64, code: &[u8]) -> Vec<DisassembledLine> {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_space_after_operand_separator(true);
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.can_decode() {
        let (start, ip) = (decoder.position(), decoder.ip());
        let instruction = decoder.decode();
        let mut text = String::new();
        let end = if instruction.is_invalid() {
            // writing to a text does not fail
            let _written = text.write_str("(bad)");
            start + 1
        } else {
            formatter.format(&instruction, &mut text);
            decoder.position()
        };
        let is_direct = instruction.op_count() > 0
            && matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
        let target = (is_direct && !instruction.is_invalid()).then(|| instruction.near_branch_target());
        found.push(DisassembledLine { at: ip, bytes: code.get(start..end).unwrap_or_default().to_vec(), text, target });
        // The position is inside of the code, so the call does not fail.
        if decoder.set_position(end).is_err() {
            break;
        }
        decoder.set_ip(at.wrapping_add(end as u64));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &[u8]) -> Vec<(u64, String)> {
        disassemble(0x1000, code).into_iter().map(|line| (line.at, line.text)).collect()
    }

    #[test]
    fn code_is_written_as_in_the_manuals() {
        let code = [0x48, 0x89, 0x7c, 0x24, 0xf8, 0x75, 0xf9, 0xc3];
        let expected = [(0x1000, "mov [rsp-0x8], rdi"), (0x1005, "jne short 0x1000"), (0x1007, "ret")];
        assert_eq!(texts(&code), expected.map(|(at, text)| (at, text.to_owned())));
        let targets: Vec<_> = disassemble(0x1000, &code).into_iter().map(|line| line.target).collect();
        assert_eq!(targets, [None, Some(0x1000), None]);
    }

    #[test]
    fn bytes_that_are_no_instruction_come_one_by_one() {
        let lines = disassemble(8, &[0x06, 0x90, 0xe8, 0]);
        assert_eq!(lines.iter().map(|line| line.at).collect::<Vec<_>>(), [8, 9, 10, 11]);
        assert_eq!((lines[0].text.as_str(), lines[1].text.as_str()), ("(bad)", "nop"));
        assert_eq!(lines.iter().flat_map(|line| line.bytes.clone()).collect::<Vec<_>>(), [0x06, 0x90, 0xe8, 0]);
    }

    #[test]
    fn the_last_address_wraps() {
        assert_eq!(disassemble(u64::MAX, &[0x90, 0x90]).len(), 2);
    }
}
