//! Recognition of programs that switch stacks and handle signals. Such a program may take the processor from one of its contexts in a
//! handler. Then a program counter waits in memory for as long as the program likes (`suspended`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use ingraft_model::AvmaRange;
use memchr::memmem;

use crate::procfs::Mapping;
use crate::stack_switch_signs::{FileKey, StackSwitchSigns, loads_stack_pointer};
use crate::target::{Target, lock};

/// Number of bytes that are read at once.
const PIECE: usize = 1 << 18;
/// Number of bytes before and after an instruction that are read with it, in the same piece.
const AROUND: usize = 64;
/// Length of the longest mapping without code in which names are looked for. The names of a library are at its beginning.
const NAMES_MAX: u64 = 64 << 20;

/// Go's linker writes this into each program.
const GO: &[u8] = b"\xff Go buildinf:";
/// Beginnings of the names of C libraries, which have these functions for others, and of unwinders, which jump to landing pads by them.
const C_LIBRARIES: [&str; 7] = ["libc.so", "libc-2.", "libc.musl", "ld-", "libpthread", "libgcc_s", "libunwind"];
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

impl Target {
    /// Whether any handler of the program's own is set for a signal.
    fn handles_signals(&self) -> bool {
        let caught = |pid| self.thread_status(pid).is_ok_and(|status| status.caught & !OF_LIBC != 0);
        self.threads().is_ok_and(|tids| tids.into_iter().any(caught))
    }

    /// Looks for code that switches stacks in the files of a program that handles signals.
    pub fn preemption(&self) -> Preemption {
        if !self.handles_signals() {
            return Preemption::Unknown;
        }
        match self.switching_files() {
            None => Preemption::Go,
            Some(files) => {
                let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.into_iter().next().map_or(Preemption::Unknown, |path| Preemption::Likely(name(path)))
            }
        }
    }

    /// The mapped files that have or use code which switches stacks, without C libraries. `None` for a Go program.
    pub fn switching_files(&self) -> Option<Vec<PathBuf>> {
        let Ok(maps) = self.maps() else { return Some(Vec::new()) };
        let mut files: BTreeMap<FileKey, Vec<&Mapping>> = BTreeMap::new();
        for mapping in maps.iter().filter(|m| m.is_file() && m.read && !m.shared) {
            files.entry((mapping.device, mapping.inode)).or_default().push(mapping);
        }
        let mut found = Vec::new();
        for (key, parts) in files.iter().filter(|(_, parts)| parts.iter().any(|m| m.exec)) {
            let path = parts.first().map_or_else(PathBuf::new, |mapping| mapping.file_path());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if C_LIBRARIES.iter().any(|begin| name.starts_with(begin)) {
                continue;
            }
            let known = lock(&self.signs).get(key).copied();
            let signs = known.unwrap_or_else(|| self.signs_of(parts));
            lock(&self.signs).insert(*key, signs);
            if signs.go {
                return None;
            }
            if signs.switches() {
                found.push(path);
            }
        }
        Some(found)
    }

    fn signs_of(&self, parts: &[&Mapping]) -> StackSwitchSigns {
        let mut signs = StackSwitchSigns::default();
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
    pub(crate) fn in_pieces(&self, range: &AvmaRange, mut look: impl FnMut(&[u8], Range<usize>)) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
