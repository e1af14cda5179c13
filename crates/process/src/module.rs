//! The files that a process has mapped, and their bytes: also of files that were deleted, replaced or lie in another
//! mount namespace.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use ingraft_model::Avma;

use crate::error::Error;
use crate::files::{open_named, open_regular, read_elf};
use crate::procfs::{Mapping, file_error};
use crate::target::Target;

/// A file with code that is mapped into a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// Path in the process's own mount namespace, without the mark of a deleted file.
    pub path: PathBuf,
    /// The file no longer has a name, or another file has it now.
    pub deleted: bool,
    /// Device, (major, minor).
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Start of the lowest mapping of the file's first byte: where its first segment was loaded.
    pub base: Avma,
    /// Its mappings, in order of their addresses; at least one is executable.
    pub mappings: Vec<Mapping>,
}

/// Where the bytes of a file came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSource {
    /// /proc/PID/map_files: the very file that is mapped.
    MapFiles,
    /// /proc/PID/exe: the same.
    Exe,
    /// /proc/PID/root/PATH; device and inode agree.
    Path,
}

impl Target {
    /// The files with executable mappings. One that was loaded several times counts as often.
    pub fn files(&self) -> Result<Vec<MappedFile>, Error> {
        Ok(group(&self.maps()?))
    }

    /// The bytes of a mapped file. An error if no way leads to the very file: its loaded segments can still be read from memory.
    pub fn read_file_of(&self, mapping: &Mapping) -> Result<(Arc<[u8]>, FileSource), Error> {
        let pid = self.pid();
        let (start, end) = (mapping.range.start.0, mapping.range.end.0);
        let exact = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        if let Ok(bytes) = open_regular(&exact).and_then(read_elf) {
            return Ok((bytes, FileSource::MapFiles));
        }
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let mut last = None;
        for source in [FileSource::Exe, FileSource::Path] {
            let (path, file) = match source {
                FileSource::Path => (mapping.path.clone(), open_named(pid, &mapping.path)),
                _ => (exe.clone(), open_regular(&exe)),
            };
            match file.and_then(|file| read_same(file, mapping)) {
                Ok(Some(bytes)) => return Ok((bytes, source)),
                Ok(None) => {}
                Err(e) => last = Some((path, e)),
            }
        }
        let (path, source) = last.unwrap_or_else(|| (mapping.path.clone(), std::io::ErrorKind::NotFound.into()));
        Err(file_error(pid, path, source))
    }
}

/// The bytes of a file if it is the one that is mapped.
fn read_same(file: File, mapping: &Mapping) -> std::io::Result<Option<Arc<[u8]>>> {
    let meta = file.metadata()?;
    let device = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    if (meta.ino(), device) != (mapping.inode, mapping.device) {
        return Ok(None);
    }
    read_elf(file).map(Some)
}

fn group(maps: &[Mapping]) -> Vec<MappedFile> {
    let mut files: Vec<MappedFile> = Vec::new();
    // code that is mapped shared has to be seen to be refused by name
    for m in maps.iter().filter(|m| m.is_file() && (!m.shared || m.exec)) {
        let known = files.iter_mut().rev().find(|f| f.inode == m.inode && f.device == m.device);
        match known {
            // a second mapping of the first byte that is not part of the same load begins another one
            Some(file) if m.offset != 0 || file.mappings.iter().all(|k| k.offset == 0) => file.mappings.push(m.clone()),
            _ => files.push(MappedFile {
                path: m.file_path(),
                deleted: m.is_deleted(),
                device: m.device,
                inode: m.inode,
                base: m.range.start,
                mappings: vec![m.clone()],
            }),
        }
    }
    files.retain(|f| f.mappings.iter().any(|m| m.exec));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::parse_maps;

    #[test]
    fn one_file_loaded_twice() {
        let maps = parse_maps(
            b"1000-2000 r--p 00000000 fe:01 7 /a\n2000-3000 r-xp 00001000 fe:01 7 /a\n3000-4000 r--p 00000000 fe:01 8 /data\n\
            5000-6000 r--p 00000000 fe:01 7 /a\n6000-7000 r-xp 00001000 fe:01 7 /a\n7000-8000 rw-p 00000000 00:00 0 \n",
        );
        let files = group(&maps);
        assert_eq!(files.iter().map(|f| f.base.0).collect::<Vec<_>>(), [0x1000, 0x5000]);
        assert!(files.iter().all(|f| f.mappings.len() == 2));
    }
}
