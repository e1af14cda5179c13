//! Recognition of programs that switch stacks and handle signals. Such a program may take the processor from one of its contexts in a
//! handler. Then a program counter waits in memory for as long as the program likes, and no search proves that none waits in an arena.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions};
use ingraft_model::AvmaRange;
use memchr::{memchr2_iter, memmem};

use crate::procfs::Mapping;
use crate::target::{Target, lock};

/// Number of bytes that are read at once.
const PIECE: usize = 1 << 18;
/// Number of bytes at the end of a piece that are looked at again with the next one.
const OVERLAP: usize = 64;
/// Length of the longest mapping without code in which names are looked for. The names of a library are at its beginning.
const NAMES_MAX: u64 = 64 << 20;

/// Functions that switch stacks.
const SWITCHES: [&[u8]; 5] =
    [b"\0swapcontext\0", b"\0makecontext\0", b"\0setcontext\0", b"\0jump_fcontext\0", b"\0ontop_fcontext\0"];
/// OpenSSL's jobs use these functions, and never in a handler.
const JOBS: &[u8] = b"\0ASYNC_start_job\0";
/// V8 loads the stack pointer when it gives up optimised code.
const V8: &[u8] = b"\0_ZN2v8";
/// Go's linker writes this into each program.
const GO: &[u8] = b"\xff Go buildinf:";
/// Beginnings of the names of C libraries, which have these functions for others.
const C_LIBRARIES: [&str; 6] = ["libc.so", "libc-2.", "libc.musl", "ld-", "libpthread", "libgcc_s"];
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

    fn see_data(&mut self, bytes: &[u8]) {
        let has = |name: &[u8]| memmem::find(bytes, name).is_some();
        self.names |= SWITCHES.iter().any(|name| has(name));
        self.jobs |= has(JOBS);
        self.v8 |= has(V8);
        self.go |= has(GO);
    }
}

impl Target {
    /// Whether any handler of the program's own is set for a signal.
    pub fn handles_signals(&self) -> bool {
        let caught = |pid| self.thread_status(pid).is_ok_and(|status| status.caught & !OF_LIBC != 0);
        self.threads().is_ok_and(|tids| tids.into_iter().any(caught))
    }

    /// Looks for code that switches stacks in the files of a program that handles signals.
    pub fn preemption(&self) -> Preemption {
        let Ok(maps) = self.maps() else { return Preemption::Unknown };
        if !self.handles_signals() {
            return Preemption::Unknown;
        }
        let mut files: BTreeMap<_, Vec<&Mapping>> = BTreeMap::new();
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
            self.in_pieces(&mapping.range, |bytes| signs.see_data(bytes));
        }
        for mapping in code {
            self.in_pieces(&mapping.range, |bytes| signs.loads = signs.loads || loads_stack_pointer(bytes));
        }
        signs
    }

    /// Calls `look` with the bytes of a range, piece by piece. Pieces overlap.
    fn in_pieces(&self, range: &AvmaRange, mut look: impl FnMut(&[u8])) {
        let mut bytes = vec![0; PIECE];
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end.0 - at.0).unwrap_or(PIECE).min(PIECE);
            let read = self.read_some(at, &mut bytes[..len]).unwrap_or(0);
            look(&bytes[..read]);
            if read < PIECE {
                return;
            }
            at = at.offset((PIECE - OVERLAP) as i64);
        }
    }
}

/// Whether this code loads the stack pointer from memory that the frame pointer does not lead to, or from an argument. Compilers do that
/// for no function of theirs; code that switches stacks has to.
fn loads_stack_pointer(code: &[u8]) -> bool {
    memchr2_iter(0x8b, 0x89, code).any(|i| {
        let Some(at) = i.checked_sub(1) else { return false };
        let (Some(&prefix), Some(&opcode), Some(&form)) = (code.get(at), code.get(i), code.get(i + 1)) else {
            return false;
        };
        is_load(prefix, opcode, form) && is_instruction(code, at)
    })
}

/// Whether `REX.W opcode ModRM` loads the stack pointer in this way.
fn is_load(prefix: u8, opcode: u8, form: u8) -> bool {
    const SP: u8 = 4;
    const BP: u8 = 5;
    /// `mov rsp, rdi`, `rsi` or `rdx`, in both encodings.
    const ARGUMENTS: [(u8, u8); 6] =
        [(0x89, 0xfc), (0x89, 0xf4), (0x89, 0xd4), (0x8b, 0xe7), (0x8b, 0xe6), (0x8b, 0xe2)];
    if prefix == 0x48 && ARGUMENTS.contains(&(opcode, form)) {
        return true;
    }
    let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
    let is_memory = mode != 3 && base != SP;
    let by_frame = prefix == 0x48 && base == BP && mode != 0;
    matches!(prefix, 0x48 | 0x49) && opcode == 0x8b && register == SP && is_memory && !by_frame
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
    // near the beginning of a piece nothing is known, except that the pieces overlap
    starts.is_empty() && at < NEAREST || 2 * starts.clone().filter(|from| leads(*from)).count() > starts.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among_nops(code: &[u8]) -> bool {
        let mut bytes = vec![0x90; 64];
        bytes.extend(code);
        bytes.extend([0xc3, 0x90, 0x90]);
        loads_stack_pointer(&bytes)
    }

    #[test]
    fn switches_of_stacks_are_known_by_their_loads() {
        // glibc: mov rsp, [rdx+0xa0]; Boost: mov rsp, rdi; by hand: mov rsp, [rsi] and mov rsp, [rip+0]; mov rsp, [r8+8]
        for code in [
            &[0x48, 0x8b, 0xa2, 0xa0, 0, 0, 0][..],
            &[0x48, 0x89, 0xfc],
            &[0x48, 0x8b, 0x26],
            &[0x48, 0x8b, 0x25, 0, 0, 0, 0],
            &[0x49, 0x8b, 0x60, 8],
        ] {
            assert!(among_nops(code), "{code:x?}");
        }
    }

    #[test]
    fn functions_of_compilers_are_no_switches() {
        // mov rsp, [rbp-8]; mov rsp, rbp; mov rsp, rbx; mov rsp, [rsp]; mov rdi, [rsi]; the bytes within mov rdx, 0x48_8b_26
        for code in [
            &[0x48, 0x8b, 0x65, 0xf8][..],
            &[0x48, 0x89, 0xec],
            &[0x48, 0x89, 0xdc],
            &[0x48, 0x8b, 0x24, 0x24],
            &[0x48, 0x8b, 0x3e],
            &[0xba, 0x48, 0x8b, 0x26, 0],
        ] {
            assert!(!among_nops(code), "{code:x?}");
        }
        for len in 0..4 {
            assert!(!loads_stack_pointer(&[0x8b, 0x48, 0x8b][..len.min(3)]));
        }
    }

    #[test]
    fn what_explains_a_sign_is_heard() {
        let of = |data: &[u8]| {
            let mut signs = Signs::default();
            signs.see_data(data);
            signs
        };
        assert!(of(b"\0setcontext\0").switches());
        assert!(!of(b"\0SSL_setcontext\0").switches());
        assert!(!of(b"\0setcontext\0ASYNC_start_job\0").switches() && of(b"\0ASYNC_start_job\0").jobs);
        assert!(Signs { loads: true, ..Signs::default() }.switches());
        assert!(!Signs { loads: true, v8: true, ..Signs::default() }.switches());
    }
}
