//! Evidence of traces from the kernel and the server's memory, read independently of the engine.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use procfs::process::{MMPermissions, MMapPath, Process};

/// A copy of the executable code in a process's memory.
pub(super) struct CodeCopy {
    /// The executable mappings, with their bytes.
    mappings: Vec<CopiedMapping>,
}

#[derive(PartialEq, Eq)]
struct CopiedMapping {
    range: (u64, u64),
    /// The mapped file and the offset in it; `None` for memory without a file.
    file: Option<(std::path::PathBuf, u64)>,
    bytes: Vec<u8>,
}

/// Difference of code from its expected state, in words; `None` if there is none.
pub(super) type Difference = Option<String>;

impl CodeCopy {
    /// Reads all executable mappings, except the kernel's own pages.
    pub(super) fn read(pid: i32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let maps = Process::new(pid).and_then(|p| p.maps()).map_err(io::Error::other)?;
        let mut mappings = Vec::new();
        for map in maps {
            if !map.perms.contains(MMPermissions::EXECUTE)
                || matches!(map.pathname, MMapPath::Vdso | MMapPath::Vsyscall)
            {
                continue;
            }
            let (start, end) = map.address;
            let mut bytes = vec![0; usize::try_from(end - start).map_err(io::Error::other)?];
            memory.read_exact_at(&mut bytes, start)?;
            let file = match map.pathname {
                MMapPath::Path(path) => Some((path, map.offset)),
                _ => None,
            };
            mappings.push(CopiedMapping { range: (start, end), file, bytes });
        }
        Ok(CodeCopy { mappings })
    }

    /// Number of bytes in all mappings.
    pub(super) fn len(&self) -> usize {
        self.mappings.iter().map(|m| m.bytes.len()).sum()
    }

    /// Number of mappings that come from a file.
    pub(super) fn files(&self) -> usize {
        self.mappings.iter().filter(|m| m.file.is_some()).count()
    }

    /// Compares the code with an earlier copy: the mappings and their bytes must be the same.
    pub(super) fn differs_from(&self, before: &CodeCopy) -> Difference {
        for mapping in &self.mappings {
            match before.mappings.iter().find(|b| b.range == mapping.range) {
                None => return Some(format!("executable memory at {:#x} that was not there", mapping.range.0)),
                Some(b) if b.bytes != mapping.bytes => {
                    let at = b.bytes.iter().zip(&mapping.bytes).position(|(x, y)| x != y).unwrap_or(0);
                    return Some(format!("the byte at {:#x} differs from before", mapping.range.0 + at as u64));
                }
                Some(_) => {}
            }
        }
        (self.mappings.len() != before.mappings.len()).then(|| "executable memory is missing".to_owned())
    }

    /// Compares the code with the files that it comes from.
    pub(super) fn differs_from_files(&self) -> io::Result<Difference> {
        for mapping in &self.mappings {
            let Some((path, offset)) = &mapping.file else { continue };
            let file = File::open(path)?;
            let mut bytes = vec![0; mapping.bytes.len()];
            let mut have = 0;
            // The last page may extend beyond the end of the file; the kernel fills that part with zeros.
            loop {
                match file.read_at(&mut bytes[have..], offset + have as u64)? {
                    0 => break,
                    n => have += n,
                }
            }
            if bytes != mapping.bytes {
                return Ok(Some(format!("{} differs from its file", path.display())));
            }
        }
        Ok(None)
    }
}

/// Descriptions of the shared or executable mappings of a process; inserted memory must be among them.
pub(super) fn mappings(pid: i32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let kept = text.lines().filter(|line| {
        let permissions = line.split(' ').nth(1).unwrap_or_default();
        permissions.contains('x') || permissions.ends_with('s') || line.contains("memfd:")
    });
    Ok(kept.map(str::to_owned).collect())
}

/// Process id of the tracer of a process; 0 if it is not traced.
pub(super) fn tracer(pid: i32) -> io::Result<i32> {
    let status = Process::new(pid).and_then(|p| p.status()).map_err(io::Error::other)?;
    Ok(status.tracerpid)
}

/// Number of threads of a process.
pub(super) fn threads(pid: i32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_code_is_as_in_its_files_and_nobody_traces_us() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let code = CodeCopy::read(pid).unwrap();
        assert!(code.files() > 0 && code.len() > 100_000);
        assert_eq!(code.differs_from_files().unwrap(), None);
        assert_eq!(code.differs_from(&CodeCopy::read(pid).unwrap()), None);
        assert_eq!(tracer(pid).unwrap(), 0);
        assert!(threads(pid).unwrap() >= 1);
        assert!(!mappings(pid).unwrap().is_empty());
    }

    #[test]
    fn a_single_byte_is_noticed() {
        let mapping = |byte| CopiedMapping { range: (0x1000, 0x1004), file: None, bytes: vec![0, 1, byte, 3] };
        let (before, after) = (CodeCopy { mappings: vec![mapping(2)] }, CodeCopy { mappings: vec![mapping(9)] });
        assert_eq!(after.differs_from(&before).as_deref(), Some("the byte at 0x1002 differs from before"));
        let more = CodeCopy { mappings: vec![mapping(2), CopiedMapping { range: (0x9000, 0x9004), ..mapping(2) }] };
        assert_eq!(more.differs_from(&before).as_deref(), Some("executable memory at 0x9000 that was not there"));
        assert_eq!(before.differs_from(&more).as_deref(), Some("executable memory is missing"));
    }
}
