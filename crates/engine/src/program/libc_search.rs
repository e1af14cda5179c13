//! Finds offsets from the thread pointer in the code of a program's libc, for programs in which the libc has not run yet.

use ingraft_process::ID_OFFSETS;
use memchr::memmem;

/// `mov eax, 218` (set_tid_address). The system call returns the thread's id.
const SET_TID_ADDRESS: [u8; 5] = [0xb8, 0xda, 0, 0, 0];
/// `mov eax, 334` (rseq).
const RSEQ: [u8; 5] = [0xb8, 0x4e, 0x01, 0, 0];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Largest number of bytes of instructions between the number of a system call and the call.
const BETWEEN: usize = 8;
/// `mov r10d, imm32`: the signature.
const SIGNATURE: [u8; 2] = [0x41, 0xba];
/// `mov dword fs:[disp32], imm32`, by which the libc marks the area as not registered: it sets the number of the processor to -1.
const STORE: [u8; 4] = [0x64, 0xc7, 0x04, 0x25];
/// Number of bytes before the registration in which the libc prepares the area.
const BEFORE: usize = 128;
/// Range of offsets from the thread pointer that the number of the processor may have: the libc's own part of a thread's memory.
const PROCESSORS: std::ops::Range<u32> = 0..4096;
/// Distance from the number of the processor to the pointer to the critical section (linux/rseq.h, struct rseq).
const POINTER: i32 = 4;

/// Offsets from the thread pointer at which the code of a libc keeps the thread's id and rseq area. A field is `None` if the code has no
/// such offset, or several different ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadArea {
    /// Offset of the thread's id from fs, if it is an offset that known libcs use.
    pub id: Option<u32>,
    /// Offset from fs of the pointer in the thread's rseq area, and the signature with which the libc registers the area.
    pub rseq: Option<(i32, u32)>,
}

impl ThreadArea {
    /// Searches the code of the libc, or of a static program.
    pub fn of(code: &[u8]) -> Self {
        let ids = memmem::find_iter(code, &SET_TID_ADDRESS).filter_map(|at| id_after(&code[at..]));
        let areas = memmem::find_iter(code, &RSEQ).filter_map(|at| {
            let follows = code[at + RSEQ.len()..].starts_with(&SYSCALL);
            rseq_before(&code[at.saturating_sub(BEFORE)..at]).filter(|_| follows)
        });
        ThreadArea { id: only(ids), rseq: only(areas) }
    }
}

/// The common value of all items; `None` if they differ, or if there are none.
fn only<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Offset at which code stores the result of the system call whose number it sets at its start: `mov [reg + disp], eax` or `mov
/// fs:[disp32], eax` right after the call.
fn id_after(code: &[u8]) -> Option<u32> {
    let behind = &code[SET_TID_ADDRESS.len()..];
    let call = memmem::find(&behind[..behind.len().min(BETWEEN + SYSCALL.len())], &SYSCALL)?;
    let store = &behind[call + SYSCALL.len()..];
    let displacement = match store {
        [0x64, 0x89, 0x04, 0x25, rest @ ..] => word(rest)?,
        [0x89, modrm, rest @ ..] | [0x41, 0x89, modrm, rest @ ..] if modrm & 0x38 == 0 => {
            // the base register r12 takes one byte more
            let rest = if modrm & 7 == 4 { rest.strip_prefix(&[0x24])? } else { rest };
            match modrm >> 6 {
                1 => u32::from(*rest.first()?),
                2 => word(rest)?,
                _ => return None,
            }
        }
        _ => return None,
    };
    ID_OFFSETS.contains(&displacement).then_some(displacement)
}

/// Offset and signature with which the code prepares an area right before it registers the area.
fn rseq_before(code: &[u8]) -> Option<(i32, u32)> {
    let signature = word(&code[memmem::rfind(code, &SIGNATURE)? + SIGNATURE.len()..])?;
    let processor = memmem::rfind_iter(code, &STORE).find_map(|at| {
        let rest = &code[at + STORE.len()..];
        (word(rest.get(4..)?)? == u32::MAX).then(|| word(rest))?
    })?;
    PROCESSORS.contains(&processor).then_some((processor.cast_signed() + POINTER, signature))
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|b| u32::from_le_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `__tls_init_tp` of glibc 2.36: the system call, the id, and the rseq area.
    const GLIBC: &[&[u8]] = &[
        &[0xb8, 0xda, 0, 0, 0, 0x0f, 0x05, 0x89, 0x83, 0xd0, 0x02, 0, 0],
        &[0x48, 0x8d, 0x83, 0x10, 0x03, 0, 0],
        &[0x64, 0xc7, 0x04, 0x25, 0x24, 0x09, 0, 0, 0xff, 0xff, 0xff, 0xff],
        &[0x64, 0xc7, 0x04, 0x25, 0x20, 0x09, 0, 0, 0, 0, 0, 0],
        &[0x41, 0xba, 0x53, 0x30, 0x05, 0x53, 0x31, 0xd2, 0x48, 0x89, 0xdf],
        &[0xb8, 0x4e, 0x01, 0, 0, 0x0f, 0x05, 0x3d, 0, 0xf0, 0xff, 0xff],
    ];
    /// `__init_tp` of musl 1.2.3.
    const MUSL: &[u8] =
        &[0xb8, 0xda, 0, 0, 0, 0x48, 0x8d, 0x3d, 0x94, 0x2d, 0, 0, 0x0f, 0x05, 0x89, 0x43, 0x30, 0x48, 0x8d, 0x05];
    /// `pthread_exit` of musl, which ignores the result.
    const EXIT: &[u8] = &[0xb8, 0xda, 0, 0, 0, 0x48, 0x89, 0xef, 0x0f, 0x05, 0xba, 0x3c, 0, 0, 0];

    #[test]
    fn libcs_are_known_by_what_they_do() {
        let glibc = GLIBC.concat();
        assert_eq!(ThreadArea::of(&glibc), ThreadArea { id: Some(0x2d0), rseq: Some((0x928, 0x5305_3053)) });
        assert_eq!(ThreadArea::of(&[MUSL, EXIT, MUSL].concat()), ThreadArea { id: Some(0x30), rseq: None });
        assert_eq!(ThreadArea::of(&[MUSL, &glibc].concat()).id, None, "two of them");
        assert_eq!(ThreadArea::of(EXIT), ThreadArea::default());
    }

    #[test]
    fn the_forms_of_the_store() {
        let store = |bytes: &[u8]| id_after(&[&SET_TID_ADDRESS[..], &SYSCALL, bytes].concat());
        assert_eq!(store(&[0x64, 0x89, 0x04, 0x25, 0xd0, 0x02, 0, 0]), Some(0x2d0));
        assert_eq!(store(&[0x41, 0x89, 0x84, 0x24, 0xd0, 0x02, 0, 0]), Some(0x2d0));
        assert_eq!(store(&[0x41, 0x89, 0x46, 0x30]), Some(0x30));
        // another register, and another offset
        assert_eq!(store(&[0x89, 0x93, 0xd0, 0x02, 0, 0]), None);
        assert_eq!(store(&[0x89, 0x43, 0x34]), None);
    }

    #[test]
    fn code_that_is_cut_anywhere_says_less_or_the_same() {
        let all = [&GLIBC.concat(), MUSL].concat();
        for end in 0..all.len() {
            for start in 0..end {
                let found = ThreadArea::of(&all[start..end]);
                assert!(matches!(found.id, None | Some(0x2d0 | 0x30)) && matches!(found.rseq, None | Some((0x928, _))));
            }
        }
    }
}
