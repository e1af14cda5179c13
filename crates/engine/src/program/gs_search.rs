//! Search for an instruction that sets the gs base in code that was not analysed.

use ingraft_model::Avma;
use memchr::memchr_iter;

/// Number of bytes that are read at once: they fit into a processor's cache, and few pages are touched for the first time.
const PIECE: usize = 1 << 17;
/// Number of bytes before the last byte of the instruction: `F3 [REX] 0F AE`.
const BEFORE: usize = 4;

/// Looks for `wrgsbase r32/r64` (F3, perhaps REX, 0F AE /3 with a register) in `len` bytes of memory. `read` fills the readable part of a
/// buffer, and returns its length.
pub fn sets_gs(start: Avma, len: u64, mut read: impl FnMut(Avma, &mut [u8]) -> usize) -> bool {
    let mut piece = vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE)) + BEFORE];
    let (mut done, mut kept) = (0, 0);
    while done < len {
        let wanted = (piece.len() - kept).min(usize::try_from(len - done).unwrap_or(usize::MAX));
        let n = read(Avma(start.0.wrapping_add(done)), &mut piece[kept..kept + wanted]);
        let held = kept + n;
        if contains_wrgsbase(&piece[..held]) {
            return true;
        }
        if n < wanted {
            return false;
        }
        done += n as u64;
        // an instruction may lie across two pieces
        kept = held.min(BEFORE);
        piece.copy_within(held - kept..held, 0);
    }
    false
}

fn contains_wrgsbase(bytes: &[u8]) -> bool {
    memchr_iter(0xae, bytes).any(|i| {
        let has_rex = i >= 3 && bytes[i - 2] & 0xf0 == 0x40;
        let prefix = i.checked_sub(if has_rex { 3 } else { 2 }).map(|p| bytes[p]);
        i > 0 && bytes[i - 1] == 0x0f && prefix == Some(0xf3) && bytes.get(i + 1).is_some_and(|m| m & 0xf8 == 0xd8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(memory: &[u8]) -> bool {
        sets_gs(Avma(0), memory.len() as u64, |at, buffer| {
            let rest = &memory[at.0 as usize..];
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            n
        })
    }

    #[test]
    fn it_is_found_wherever_it_lies() {
        for code in [&[0xf3, 0x0f, 0xae, 0xd8][..], &[0xf3, 0x48, 0x0f, 0xae, 0xdf]] {
            for at in (0..8).chain(PIECE - 8..PIECE + 8).chain(2 * PIECE - 8..2 * PIECE + 8) {
                let mut memory = vec![0x90; 2 * PIECE + 32];
                memory[at..at + code.len()].copy_from_slice(code);
                assert!(found(&memory), "{code:x?} at {at}");
            }
        }
    }

    #[test]
    fn what_looks_like_it_is_not() {
        // wrfsbase; `0F AE D8` without F3, with prefix 66, and with F3 before another instruction; the end of memory within the bytes
        for code in [
            &[0xf3, 0x0f, 0xae, 0xd0][..],
            &[0x0f, 0xae, 0xd8],
            &[0x66, 0x0f, 0xae, 0xd8],
            &[0xf3, 0x90, 0x0f, 0xae, 0xd8],
            &[0xf3, 0x0f, 0xae],
            &[0xae],
            &[],
        ] {
            assert!(!found(code), "{code:x?}");
        }
    }

    #[test]
    fn memory_that_ends_early_ends_the_search() {
        assert!(!sets_gs(Avma(0), 1 << 40, |_, _| 0));
    }
}
