//! Recognition of programs that switch stacks and handle signals. Such a program may take the processor from one of its contexts in a
//! handler. Then a program counter waits in memory for as long as the program likes (`suspended`).

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions};
use ingraft_model::AvmaRange;
use memchr::{memchr3_iter, memmem};

use crate::procfs::Mapping;
use crate::target::{Target, lock};

/// Number of bytes that are read at once.
const PIECE: usize = 1 << 18;
/// Number of bytes before and behind an instruction that are read with it, in the same piece.
const AROUND: usize = 64;
/// Length of the longest mapping without code in which names are looked for. The names of a library are at its beginning.
const NAMES_MAX: u64 = 64 << 20;

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
    // glibc, behind the call of a function that an auditor watches: call r11; mov rsp, [rbx+…]
    (&[0x41, 0xff, 0xd3, 0x48, 0x8b, 0x63], 3),
    // longjmp of musl: mov rsp, [rdi+0x30]; jmp [rdi+0x38]
    (&[0x48, 0x8b, 0x67, 0x30, 0xff, 0x67, 0x38], 0),
    // longjmp of older musl: mov rsp, rdx; mov rdx, [rdi+0x38]; jmp rdx
    (&[0x48, 0x89, 0xd4, 0x48, 0x8b, 0x57, 0x38, 0xff, 0xe2], 0),
    // LLVM's unwinder on its way to a landing pad: mov r15, [rdi+0x78]; mov rsp, [rdi+0x38]; pop rdi
    (&[0x4c, 0x8b, 0x7f, 0x78, 0x48, 0x8b, 0x67, 0x38, 0x5f], 4),
];
/// Go's linker writes this into each program.
const GO: &[u8] = b"\xff Go buildinf:";
/// Beginnings of the names of C libraries, which have these functions for others, and of unwinders, which jump to landing pads by them.
const C_LIBRARIES: [&str; 7] = ["libc.so", "libc-2.", "libc.musl", "ld-", "libpthread", "libgcc_s", "libunwind"];
/// Number of the stack pointer in instructions.
const SP: u8 = 4;
/// Signals that only C libraries handle: SIGCANCEL and SIGSETXID of glibc, and musl's two.
const OF_LIBC: u64 = 0b111 << 31;

/// Whether a program may take the processor from one of its own contexts at any instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preemption {
    /// Nothing shows that it does.
    Unknown,
    /// Go's runtime does, at places that it knows; it is handled by itself.
    Go,
    /// This file of the program has code that switches stacks, and the program handles signals.
    Likely(String),
}

/// A file by its device and inode.
pub(crate) type FileKey = ((u32, u32), u64);

/// Findings in the bytes of one file.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Signs {
    names: bool,
    loads: bool,
    jobs: bool,
    v8: bool,
    go: bool,
}

impl Signs {
    fn switches(self) -> bool {
        self.names && !self.jobs || self.loads && !self.v8
    }

    fn see_names(&mut self, bytes: &[u8]) {
        let has = |name: &[u8]| memmem::find(bytes, name).is_some();
        self.names |= SWITCHES.iter().any(|name| has(name));
        self.jobs |= has(JOBS);
        self.v8 |= has(V8);
    }
}

impl Target {
    /// Whether any handler of the program's own is set for a signal.
    fn handles_signals(&self) -> bool {
        let caught = |pid| self.thread_status(pid).is_ok_and(|status| status.caught & !OF_LIBC != 0);
        self.threads().is_ok_and(|tids| tids.into_iter().any(caught))
    }

    /// Looks for code that switches stacks in the files of a program that handles signals.
    pub fn preemption(&self) -> Preemption {
        let Ok(maps) = self.maps() else { return Preemption::Unknown };
        if !self.handles_signals() {
            return Preemption::Unknown;
        }
        let mut files: BTreeMap<FileKey, Vec<&Mapping>> = BTreeMap::new();
        for mapping in maps.iter().filter(|m| m.is_file() && m.read && !m.shared) {
            files.entry((mapping.device, mapping.inode)).or_default().push(mapping);
        }
        let mut switcher = None;
        for (key, parts) in files.iter().filter(|(_, parts)| parts.iter().any(|m| m.exec)) {
            let name = parts.first().and_then(|m| Some(m.file_path().file_name()?.to_string_lossy().into_owned()));
            let name = name.unwrap_or_default();
            if C_LIBRARIES.iter().any(|begin| name.starts_with(begin)) {
                continue;
            }
            let known = lock(&self.signs).get(key).copied();
            let signs = known.unwrap_or_else(|| self.signs_of(parts));
            lock(&self.signs).insert(*key, signs);
            if signs.go {
                return Preemption::Go;
            }
            if signs.switches() && switcher.is_none() {
                switcher = Some(name);
            }
        }
        switcher.map_or(Preemption::Unknown, Preemption::Likely)
    }

    fn signs_of(&self, parts: &[&Mapping]) -> Signs {
        let mut signs = Signs::default();
        let (code, data): (Vec<&Mapping>, Vec<&Mapping>) = parts.iter().copied().partition(|m| m.exec);
        for mapping in data.into_iter().filter(|m: &&Mapping| m.len() <= NAMES_MAX) {
            self.in_pieces(&mapping.range, |bytes, _| signs.go |= memmem::find(bytes, GO).is_some());
        }
        // The names of functions that a file uses are at its beginning. Elsewhere they are texts.
        for mapping in parts.iter().filter(|m| m.offset == 0 && m.len() <= NAMES_MAX) {
            self.in_pieces(&mapping.range, |bytes, _| signs.see_names(bytes));
        }
        for mapping in code {
            self.in_pieces(&mapping.range, |bytes, own| signs.loads = signs.loads || loads_stack_pointer(bytes, own));
        }
        signs
    }

    /// Calls `look` with the bytes of a range, piece by piece, and with the places in them that are in no other piece. Pieces overlap.
    fn in_pieces(&self, range: &AvmaRange, mut look: impl FnMut(&[u8], Range<usize>)) {
        let mut bytes = vec![0; PIECE];
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end.0 - at.0).unwrap_or(PIECE).min(PIECE);
            let read = self.read_some(at, &mut bytes[..len]).unwrap_or(0);
            let first = if at == range.start { 0 } else { AROUND };
            if read < PIECE {
                look(&bytes[..read], first..read);
                return;
            }
            look(&bytes, first..PIECE - AROUND);
            at = at.offset((PIECE - 2 * AROUND) as i64);
        }
    }
}

/// Whether an instruction that begins in these places loads the stack pointer from memory that the frame pointer does not lead to, or from
/// an argument, or exchanges it. Compilers do that for no function of theirs; code that switches stacks has to.
fn loads_stack_pointer(code: &[u8], places: Range<usize>) -> bool {
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
    fn each_place_is_looked_at_once_with_all_around_it() {
        let target = Target::open_unchecked(crate::sys::own_pid()).expect("this process");
        let memory = vec![0u8; 3 * PIECE + 5];
        let start = ingraft_model::Avma(memory.as_ptr() as u64);
        for len in [0, 1, 3 * AROUND, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, memory.len()] {
            let (mut end, mut shared) = (0, 0);
            target.in_pieces(&(start..start.offset(len as i64)), |bytes, own| {
                end += own.len();
                shared = bytes.len() - own.end;
                assert!(own.start == 0 || own.start == AROUND);
            });
            assert_eq!(end, len, "every place is in one piece");
            assert_eq!(shared, 0, "the last piece ends with the range");
        }
    }

    #[test]
    fn what_explains_a_sign_is_heard() {
        let of = |data: &[u8]| {
            let mut signs = Signs::default();
            signs.see_names(data);
            signs
        };
        assert!(of(b"\0setcontext\0").switches());
        assert!(!of(b"\0SSL_setcontext\0").switches());
        assert!(!of(b"\0setcontext\0ASYNC_start_job\0").switches() && of(b"\0ASYNC_start_job\0").jobs);
        assert!(Signs { loads: true, ..Signs::default() }.switches());
        assert!(!Signs { loads: true, v8: true, ..Signs::default() }.switches());
    }
}
