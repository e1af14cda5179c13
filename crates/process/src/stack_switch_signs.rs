//! Signs in the bytes of a file that it has code which switches stacks.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions};
use memchr::{memchr3_iter, memmem};

/// Functions that switch stacks.
const SWITCHES: [&[u8]; 5] =
    [b"\0swapcontext\0", b"\0makecontext\0", b"\0setcontext\0", b"\0jump_fcontext\0", b"\0ontop_fcontext\0"];
/// OpenSSL's jobs use these functions, and never in a handler.
const JOBS: &[u8] = b"\0ASYNC_start_job\0";
/// V8 loads the stack pointer when it gives up optimised code.
const V8: &[u8] = b"\0_ZN2v8";
/// Code of C libraries that loads the stack pointer and switches no stacks, with the offset of the load. In static programs it is in the
/// program's own file.
const NO_SWITCHES: [(&[u8], usize); 4] = [
    // glibc, after the call of a function that an auditor watches: call r11; mov rsp, [rbx+…]
    (&[0x41, 0xff, 0xd3, 0x48, 0x8b, 0x63], 3),
    // longjmp of musl: mov rsp, [rdi+0x30]; jmp [rdi+0x38]
    (&[0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38], 0),
    // longjmp of older musl: mov rsp, rdx; mov rdx, [rdi+0x38]; jmp rdx
    (&[0x48, 0x89, 0xd4, 0x48, 0x8b, 0x57, 0x38, 0xff, 0xe2], 0),
    // LLVM's unwinder on its way to a landing pad: mov r15, [rdi+0x78]; mov rsp, [rdi+0x38]; pop rdi
    (&[0x4c, 0x8b, 0x7f, 0x78, 0x48, 0x8b, 0x67, 0x38, 0x5f], 4),
];
/// Number of the stack pointer in instructions.
const SP: u8 = 4;

/// A file by its device and inode.
pub(crate) type FileKey = ((u32, u32), u64);

/// Findings in the bytes of one file.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct StackSwitchSigns {
    names: bool,
    /// Whether code loads the stack pointer as no compiler does.
    pub(crate) loads: bool,
    jobs: bool,
    v8: bool,
    /// Whether it is a Go program.
    pub(crate) go: bool,
}

impl StackSwitchSigns {
    /// Whether the file has code that switches stacks.
    pub(crate) fn switches(self) -> bool {
        self.names && !self.jobs || self.loads && !self.v8
    }

    /// Looks at names of functions that the file uses.
    pub(crate) fn see_names(&mut self, bytes: &[u8]) {
        let has = |name: &[u8]| memmem::find(bytes, name).is_some();
        self.names |= SWITCHES.iter().any(|name| has(name));
        self.jobs |= has(JOBS);
        self.v8 |= has(V8);
    }
}

/// Whether an instruction that begins in these places loads the stack pointer from memory that the frame pointer does not lead to, or from
/// an argument, or exchanges it. Compilers do that for no function of theirs; code that switches stacks has to.
pub(crate) fn loads_stack_pointer(code: &[u8], places: Range<usize>) -> bool {
    memchr3_iter(0x8b, 0x89, 0x87, code).any(|i| {
        let Some(at) = i.checked_sub(1).filter(|at| places.contains(at)) else { return false };
        let (Some(&prefix), Some(&opcode), Some(&form)) = (code.get(at), code.get(i), code.get(i + 1)) else {
            return false;
        };
        let may_be = is_load(prefix, opcode, form)
            || is_argument(prefix, opcode, form) && keeps_stack_pointer(&code[..at], form);
        may_be && !is_no_switch(code, at) && is_instruction(code, at)
    })
}

/// Whether the load is one of those in [`NO_SWITCHES`].
fn is_no_switch(code: &[u8], at: usize) -> bool {
    let begins = |start: usize, bytes: &[u8]| code.get(start..).is_some_and(|code| code.starts_with(bytes));
    NO_SWITCHES.iter().any(|(bytes, load)| at.checked_sub(*load).is_some_and(|start| begins(start, bytes)))
}

/// Whether `REX.W opcode ModRM` loads the stack pointer from memory in this way, or exchanges it with memory.
fn is_load(prefix: u8, opcode: u8, form: u8) -> bool {
    const BP: u8 = 5;
    let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
    let is_memory = mode != 3 && base != SP;
    let by_frame = prefix == 0x48 && base == BP && mode != 0;
    matches!(prefix, 0x48 | 0x49) && matches!(opcode, 0x8b | 0x87) && register == SP && is_memory && !by_frame
}

/// Whether `REX.W opcode ModRM` is `mov rsp, rdi`, `rsi` or `rdx`.
fn is_argument(prefix: u8, opcode: u8, form: u8) -> bool {
    prefix == 0x48 && opcode == 0x89 && matches!(form, 0xfc | 0xf4 | 0xd4)
}

/// Whether this code, which a move to the stack pointer follows, ends with a few instructions that keep the stack pointer elsewhere.
/// Compilers restore the stack pointer from the register that has it, when variable arrays end; unwinders do not keep it.
fn keeps_stack_pointer(code: &[u8], form: u8) -> bool {
    const SOME: usize = 24;
    let from = 3 << 6 | SP << 3 | form >> 3 & 7;
    let keeps =
        |bytes: &[u8]| matches!(bytes, &[0x48 | 0x49, 0x89, to] if to >> 3 & 7 == SP && to != from && to != 0xe5);
    code[code.len().saturating_sub(SOME)..].windows(3).any(keeps)
}

/// Whether an instruction begins here: decoding from most of the places before leads here.
fn is_instruction(code: &[u8], at: usize) -> bool {
    const NEAREST: usize = 16;
    const FURTHEST: usize = 48;
    let leads = |from: usize| {
        let mut decoder = Decoder::new(64, &code[from..], DecoderOptions::NONE);
        while decoder.position() < at - from {
            if decoder.decode().is_invalid() {
                return false;
            }
        }
        decoder.position() == at - from
    };
    let starts = at.saturating_sub(FURTHEST)..at.saturating_sub(NEAREST);
    // code begins at the beginning of its mapping
    starts.is_empty() && leads(0) || 2 * starts.clone().filter(|from| leads(*from)).count() > starts.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among_nops(code: &[u8]) -> bool {
        let mut bytes = vec![0x90; 64];
        bytes.extend(code);
        bytes.extend([0xc3, 0x90, 0x90]);
        loads_stack_pointer(&bytes, 0..bytes.len())
    }

    #[test]
    fn switches_of_stacks_are_known_by_their_loads() {
        // glibc: mov rsp, [rdx+0xa0]; Boost: mov rax, rsp; mov rsp, rdi; by hand: mov [rdi], rsp; mov rsp, rsi;
        // mov rsp, [rsi]; mov rsp, [rip+0]; mov rsp, [r8+8]; xchg rsp, [rdi]
        for code in [
            &[0x48, 0x8b, 0xa2, 0xa0, 0, 0, 0][..],
            &[0x48, 0x89, 0xe0, 0x48, 0x89, 0xfc],
            &[0x48, 0x89, 0x27, 0x48, 0x89, 0xf4],
            &[0x48, 0x8b, 0x26],
            &[0x48, 0x8b, 0x25, 0, 0, 0, 0],
            &[0x49, 0x8b, 0x60, 8],
            &[0x48, 0x87, 0x27],
        ] {
            assert!(among_nops(code), "{code:x?}");
        }
    }

    #[test]
    fn functions_of_compilers_are_no_switches() {
        // mov rsp, [rbp-8]; mov rsp, rbp; mov rsp, rbx; mov rsp, [rsp]; mov rdi, [rsi]; the bytes within mov rdx, 0x48_8b_26;
        // mov rdx, rsp; mov rsp, rdx; mov rbp, rsp; mov rsp, rdi
        for code in [
            &[0x48, 0x8b, 0x65, 0xf8][..],
            &[0x48, 0x89, 0xec],
            &[0x48, 0x89, 0xdc],
            &[0x48, 0x8b, 0x24, 0x24],
            &[0x48, 0x8b, 0x3e],
            &[0xba, 0x48, 0x8b, 0x26, 0],
            &[0x48, 0x89, 0xe2, 0x48, 0x89, 0xd4],
            &[0x48, 0x89, 0xe5, 0x48, 0x89, 0xfc],
        ] {
            assert!(!among_nops(code), "{code:x?}");
        }
        for (code, _) in NO_SWITCHES {
            assert!(!among_nops(code), "{code:x?}");
        }
        for len in 0..4 {
            assert!(!loads_stack_pointer(&[0x8b, 0x48, 0x8b][..len.min(3)], 0..3));
        }
    }

    #[test]
    fn what_explains_a_sign_is_heard() {
        let of = |data: &[u8]| {
            let mut signs = StackSwitchSigns::default();
            signs.see_names(data);
            signs
        };
        assert!(of(b"\0setcontext\0").switches());
        assert!(!of(b"\0SSL_setcontext\0").switches());
        assert!(!of(b"\0setcontext\0ASYNC_start_job\0").switches() && of(b"\0ASYNC_start_job\0").jobs);
        assert!(StackSwitchSigns { loads: true, ..StackSwitchSigns::default() }.switches());
        assert!(!StackSwitchSigns { loads: true, v8: true, ..StackSwitchSigns::default() }.switches());
    }
}
