//! Functions that switch stacks: they save the stack pointer and load another one, and go on there. Coroutines of interpreters and of libraries have
//! such a function, in assembly.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};
use memchr::memchr3_iter;

use crate::flow::body::DecodedFunction;
use crate::functions::function::{Function, FunctionKind};
use crate::image::AnalysedImage;

/// Largest size in bytes of a function that is examined. Those that are known have 30 to 300 bytes.
const SIZE_MAX: u64 = 1024;
/// Number of the stack pointer in instructions.
const SP: u8 = 4;

/// Indices of the functions that switch stacks.
pub(crate) fn all(image: &AnalysedImage) -> Vec<usize> {
    let functions = image.functions().iter().enumerate();
    functions.filter(|(_, f)| may_switch(image, f) && switches(image, f)).map(|(number, _)| number).collect()
}

/// Whether the bytes of a function may have an instruction that loads the stack pointer; most functions need not be decoded.
fn may_switch(image: &AnalysedImage, function: &Function) -> bool {
    if function.kind() != FunctionKind::Normal || function.size > SIZE_MAX {
        return false;
    }
    let bytes = image.elf().data_at(function.start, function.size).unwrap_or_default();
    memchr3_iter(0x8b, 0x89, 0x87, bytes).any(|i| {
        let prefix = i.checked_sub(1).and_then(|at| bytes.get(at));
        let (Some(0x48 | 0x49), Some(form)) = (prefix, bytes.get(i + 1)) else { return false };
        let (register, other) = (form >> 3 & 7, form & 7);
        let is_register = form >> 6 == 3;
        register == SP || is_register && other == SP
    })
}

/// Whether a function saves the stack pointer, and then loads it from memory or from an argument, without a call in between.
fn switches(image: &AnalysedImage, function: &Function) -> bool {
    let body = DecodedFunction::new(image, function);
    let mut saves = false;
    for i in &body.code {
        match i.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => return false,
            _ if (saves || i.mnemonic() == Mnemonic::Xchg) && loads(i) => return true,
            _ => saves |= reads_stack_pointer(i),
        }
    }
    false
}

/// Whether an instruction gives the stack pointer a value of another frame: one from memory, or an argument.
fn loads(i: &Instruction) -> bool {
    let of_frame = |r| matches!(r, Register::RBP | Register::RSP);
    let is_memory = |operand: Register, base: Register| operand == Register::None && !of_frame(base);
    let is_argument = |r| matches!(r, Register::RDI | Register::RSI | Register::RDX | Register::RCX);
    let (first, second) = (i.op0_register(), i.op1_register());
    match i.mnemonic() {
        Mnemonic::Mov if first == Register::RSP => is_argument(second) || is_memory(second, i.memory_base()),
        Mnemonic::Xchg if first == Register::RSP => is_argument(second) || is_memory(second, i.memory_base()),
        Mnemonic::Xchg if second == Register::RSP => is_argument(first) || is_memory(first, i.memory_base()),
        _ => false,
    }
}

/// Whether an instruction copies the stack pointer.
fn reads_stack_pointer(i: &Instruction) -> bool {
    let is_other = |r| !matches!(r, Register::RBP | Register::RSP);
    match i.mnemonic() {
        Mnemonic::Mov => i.op1_register() == Register::RSP && is_other(i.op0_register()),
        Mnemonic::Lea => i.memory_base() == Register::RSP && is_other(i.op0_register()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn decoded(code: &[u8]) -> Instruction {
        Decoder::new(64, code, DecoderOptions::NONE).decode()
    }

    #[test]
    fn loads_and_copies_of_the_stack_pointer_are_told_from_frames() {
        // mov rsp, [rdx+0xa0]; mov rsp, rdi; mov rsp, [rsi]; xchg rsp, [rdi]; mov rsp, [rip+0]
        for code in [
            &[0x48, 0x8b, 0xa2, 0xa0, 0, 0, 0][..],
            &[0x48, 0x89, 0xfc],
            &[0x48, 0x8b, 0x26],
            &[0x48, 0x87, 0x27],
            &[0x48, 0x8b, 0x25, 0, 0, 0, 0],
        ] {
            assert!(loads(&decoded(code)), "{code:x?}");
        }
        // mov rsp, rbp; mov rsp, rbx; mov rsp, [rbp-8]; mov rsp, [rsp+8]; mov rdi, rsp
        for code in [
            &[0x48, 0x89, 0xec][..],
            &[0x48, 0x89, 0xdc],
            &[0x48, 0x8b, 0x65, 0xf8],
            &[0x48, 0x8b, 0x64, 0x24, 8],
            &[0x48, 0x89, 0xe7],
        ] {
            assert!(!loads(&decoded(code)), "{code:x?}");
        }
        // mov [rdi], rsp; mov rax, rsp; lea rcx, [rsp+8]
        for code in [&[0x48, 0x89, 0x27][..], &[0x48, 0x89, 0xe0], &[0x48, 0x8d, 0x4c, 0x24, 8]] {
            assert!(reads_stack_pointer(&decoded(code)), "{code:x?}");
        }
        // mov rbp, rsp; lea rsp, [rsp-0x38]; mov rax, [rsp]
        for code in [&[0x48, 0x89, 0xe5][..], &[0x48, 0x8d, 0x64, 0x24, 0xc8], &[0x48, 0x8b, 0x04, 0x24]] {
            assert!(!reads_stack_pointer(&decoded(code)), "{code:x?}");
        }
    }
}
