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
    let (mut saves, mut derived) = (false, FrameAddresses::default());
    for i in &body.code {
        match i.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => return false,
            _ if (saves || i.mnemonic() == Mnemonic::Xchg) && loads(i, &derived) => return true,
            _ => saves |= reads_stack_pointer(i),
        }
        derived.execute(i);
    }
    false
}

/// The registers that have addresses of the function's own frame, in the order of the instructions. Code that makes room on the stack, for `alloca` or
/// an array of variable length, computes the new stack pointer there.
#[derive(Clone, Copy, Debug, Default)]
struct FrameAddresses(u32);

impl FrameAddresses {
    fn bit(register: Register) -> u32 {
        if register.is_gpr() { 1 << register.full_register().number() } else { 0 }
    }

    fn has(self, register: Register) -> bool {
        matches!(register, Register::RSP | Register::RBP) || self.0 & Self::bit(register) != 0
    }

    fn execute(&mut self, i: &Instruction) {
        let (to, from) = (i.op0_register(), i.op1_register());
        let has = match i.mnemonic() {
            Mnemonic::Lea => self.has(i.memory_base()) || self.has(i.memory_index()),
            Mnemonic::Mov if from == Register::None => i.memory_base() != Register::None && self.has(i.memory_base()),
            Mnemonic::Mov => self.has(from),
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Inc | Mnemonic::Dec => {
                self.has(to) || self.has(from)
            }
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Nop => return,
            _ => false,
        };
        self.0 = if has { self.0 | Self::bit(to) } else { self.0 & !Self::bit(to) };
    }
}

/// Whether an instruction gives the stack pointer a value of another frame: one from memory, or an argument.
fn loads(i: &Instruction, derived: &FrameAddresses) -> bool {
    let is_memory = |operand: Register, base: Register| operand == Register::None && !derived.has(base);
    let is_argument = |r| matches!(r, Register::RDI | Register::RSI | Register::RDX | Register::RCX) && !derived.has(r);
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
            assert!(loads(&decoded(code), &FrameAddresses::default()), "{code:x?}");
        }
        // mov rsp, rbp; mov rsp, rbx; mov rsp, [rbp-8]; mov rsp, [rsp+8]; mov rdi, rsp
        for code in [
            &[0x48, 0x89, 0xec][..],
            &[0x48, 0x89, 0xdc],
            &[0x48, 0x8b, 0x65, 0xf8],
            &[0x48, 0x8b, 0x64, 0x24, 8],
            &[0x48, 0x89, 0xe7],
        ] {
            assert!(!loads(&decoded(code), &FrameAddresses::default()), "{code:x?}");
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

    /// Whether the last of these instructions loads the stack pointer of another frame.
    fn loads_at_last(code: &[u8]) -> bool {
        let all: Vec<Instruction> = Decoder::new(64, code, DecoderOptions::NONE).into_iter().collect();
        let (last, before) = all.split_last().expect("instructions");
        let mut derived = FrameAddresses::default();
        before.iter().for_each(|i| derived.execute(i));
        loads(last, &derived)
    }

    #[test]
    fn room_on_the_stack_is_no_other_stack() {
        // mov rax, rsp; mov rdx, rax; sub rdx, rcx; mov rsp, rdx (clang)
        assert!(!loads_at_last(&[0x48, 0x89, 0xe0, 0x48, 0x89, 0xc2, 0x48, 0x29, 0xca, 0x48, 0x89, 0xd4]));
        // mov rdx, rcx; add rdx, rsp; mov rsp, rdx
        assert!(!loads_at_last(&[0x48, 0x89, 0xca, 0x48, 0x01, 0xe2, 0x48, 0x89, 0xd4]));
        // lea rcx, [rsp + rdi]; and rcx, -32; mov rsp, rcx
        assert!(!loads_at_last(&[0x48, 0x8d, 0x0c, 0x3c, 0x48, 0x83, 0xe1, 0xe0, 0x48, 0x89, 0xcc]));
        // mov rcx, [rbp - 8]; mov rsp, rcx
        assert!(!loads_at_last(&[0x48, 0x8b, 0x4d, 0xf8, 0x48, 0x89, 0xcc]));
        // mov rbx, rsp; mov rsp, [rbx + 8]
        assert!(!loads_at_last(&[0x48, 0x89, 0xe3, 0x48, 0x8b, 0x63, 8]));
    }

    #[test]
    fn registers_that_are_written_anew_have_no_address_of_the_frame() {
        // mov rdx, rsp; mov rdx, [rdi]; mov rsp, rdx
        assert!(loads_at_last(&[0x48, 0x89, 0xe2, 0x48, 0x8b, 0x17, 0x48, 0x89, 0xd4]));
        // mov rdx, rsp; pop rdx; mov rsp, rdx
        assert!(loads_at_last(&[0x48, 0x89, 0xe2, 0x5a, 0x48, 0x89, 0xd4]));
        // mov rax, rsp; mov [rsi], rax; mov rsp, rdi (jump_fcontext)
        assert!(loads_at_last(&[0x48, 0x89, 0xe0, 0x48, 0x89, 0x06, 0x48, 0x89, 0xfc]));
        // mov [rdi], rsp; mov rsp, [rsi]
        assert!(loads_at_last(&[0x48, 0x89, 0x27, 0x48, 0x8b, 0x26]));
    }
}
