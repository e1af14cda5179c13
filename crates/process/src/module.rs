//! The files that a process has mapped, and their bytes. This includes files that were deleted, replaced, or lie in another mount
//! namespace.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use ingraft_model::{Avma, AvmaRange};

use crate::error::ProcessError;
use crate::files::{open_named, open_regular, read_elf};
use crate::procfs::{Mapping, file_error};
use crate::target::Target;

/// A file with code that is mapped into a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedFile {
    /// Path in the process's own mount namespace, without the mark of a deleted file.
    pub path: PathBuf,
    /// Whether the file's name was removed, or belongs to another file now.
    pub deleted: bool,
    /// Device number (major, minor).
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// Start of the lowest mapping of the file's first byte: the load address of its first segment.
    pub base: Avma,
    /// Mappings of the file, in order of their addresses.
    pub mappings: Vec<Mapping>,
    /// Private mappings of other files, or of no file, at the addresses of the file's segments: the program has moved its text there, or is
    /// about to (huge pages).
    pub moved: Vec<Mapping>,
    /// Further mappings of code that is mapped once already. They are not part of the load: from them, the load's other mappings are not at
    /// the distance that the file gives.
    pub again: Vec<Mapping>,
}

impl MappedFile {
    /// The mappings of the file's code, including those that the program has moved to memory without a file.
    pub fn code(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().chain(&self.moved).filter(|m| m.exec)
    }

    /// Address range from the first mapping to the last.
    pub fn span(&self) -> AvmaRange {
        let start = self.mappings.first().map(|m| m.range.start).unwrap_or_default();
        start..self.mappings.last().map_or(start, |m| m.range.end)
    }
}

/// Path by which the engine has read the bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSource {
    /// /proc/PID/map_files: exactly the mapped file.
    MapFiles,
    /// /proc/PID/exe, with the mapped file's device and inode.
    Exe,
    /// /proc/PID/root/PATH, with the mapped file's device and inode.
    Path,
}

impl Target {
    /// The files with executable mappings. A file that was loaded several times is listed once for each load.
    pub fn files(&self) -> Result<Vec<MappedFile>, ProcessError> {
        let mut files = loads(&self.maps()?);
        files.retain(|f| f.code().next().is_some());
        Ok(files)
    }

    /// The bytes of a mapped file. Fails if no path leads to exactly that file; its loaded segments can still be read from memory.
    pub fn read_file_of(&self, mapping: &Mapping) -> Result<(Arc<[u8]>, FileSource), ProcessError> {
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
                FileSource::MapFiles | FileSource::Exe => (exe.clone(), open_regular(&exe)),
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

/// The bytes of a file if device and inode are those of the mapping; otherwise `None`.
fn read_same(file: File, mapping: &Mapping) -> std::io::Result<Option<Arc<[u8]>>> {
    let meta = file.metadata()?;
    let device = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    if (meta.ino(), device) != (mapping.inode, mapping.device) {
        return Ok(None);
    }
    read_elf(file).map(Some)
}

/// The files that are mapped, with or without code.
pub fn loads(maps: &[Mapping]) -> Vec<MappedFile> {
    let mut files: Vec<MappedFile> = Vec::new();
    // Include code that is mapped shared, so that it can be refused with its name.
    for m in maps.iter().filter(|m| m.is_file() && (!m.shared || m.exec)) {
        let known = files.iter_mut().rev().find(|f| f.inode == m.inode && f.device == m.device);
        match known {
            Some(file) if file.mappings.iter().any(|k| is_again(k, m)) && m.offset != 0 => file.again.push(m.clone()),
            // A further mapping of the first byte begins another load, unless the load has only such mappings so far.
            Some(file) if m.offset != 0 || file.mappings.iter().all(|k| k.offset == 0) => file.mappings.push(m.clone()),
            _ => files.push(MappedFile {
                path: m.file_path(),
                deleted: m.is_deleted(),
                device: m.device,
                inode: m.inode,
                base: m.range.start,
                mappings: vec![m.clone()],
                moved: Vec::new(),
                again: Vec::new(),
            }),
        }
    }
    gather_copies(&mut files);
    for file in &mut files {
        file.moved = moved(maps, &file.mappings);
    }
    files
}

/// Whether both mappings are executable and contain the same bytes of a file.
fn is_again(a: &Mapping, b: &Mapping) -> bool {
    a.exec && b.exec && a.offset < b.offset.saturating_add(b.len()) && b.offset < a.offset.saturating_add(a.len())
}

/// Joins a further mapping of code to its load. If it lies below the load, it has begun a load of its own.
fn gather_copies(files: &mut Vec<MappedFile>) {
    let is_part = |f: &MappedFile| f.mappings.iter().all(|m| m.offset != 0);
    let mut at = 0;
    while let Some(file) = files.get(at) {
        let whole = files.iter().position(|f| {
            let same = (f.inode, f.device) == (file.inode, file.device) && !is_part(f);
            same && f.mappings.iter().any(|k| file.mappings.iter().any(|m| is_again(k, m)))
        });
        match whole.filter(|whole| is_part(file) && *whole != at) {
            Some(whole) => {
                let copies = std::mem::take(&mut files[at].mappings);
                files[whole].again.extend(copies);
                files.remove(at);
            }
            None => at += 1,
        }
    }
}

/// Memory without the file's bytes between the mappings of one load, where the file has bytes. The mappings on both sides must be as far
/// apart in the file. A mapping in a hole between segments is not part of the load.
fn moved(maps: &[Mapping], load: &[Mapping]) -> Vec<Mapping> {
    /// Number of bytes in a page of the file, which two segments may share.
    const SHARED: u64 = 4096;
    let mut found = Vec::new();
    for pair in load.windows(2) {
        let (low, high) = (&pair[0], &pair[1]);
        let from = maps.partition_point(|m| m.range.start < low.range.end);
        let between = maps.get(from..).unwrap_or_default().iter().take_while(|m| m.range.start < high.range.start);
        let is_put_there = |m: &Mapping| {
            let path = m.path.as_os_str().as_encoded_bytes();
            !m.shared && (m.is_file() || path.is_empty() || path.starts_with(b"[anon:"))
        };
        let fits = |m: &&Mapping| {
            let in_file = (low.offset + low.len()).checked_add(m.range.end.0 - low.range.end.0);
            is_put_there(m) && in_file.is_some_and(|end| end <= high.offset.saturating_add(SHARED))
        };
        found.extend(between.filter(fits).cloned());
    }
    found
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
        let mut files = loads(&maps);
        files.retain(|f| f.code().next().is_some());
        assert_eq!(files.iter().map(|f| f.base.0).collect::<Vec<_>>(), [0x1000, 0x5000]);
        assert!(files.iter().all(|f| f.mappings.len() == 2));
    }

    #[test]
    fn text_that_the_program_has_moved() {
        let maps = parse_maps(
            b"1000-2000 r--p 00000000 fe:01 7 /a\n2000-3000 r-xp 00001000 fe:01 7 /a\n3000-6000 r-xp 00000000 00:00 0 \n\
            6000-7000 r-xp 00005000 fe:01 7 /a\n7000-8000 rw-p 00005000 fe:01 7 /a\n8000-9000 rwxp 00000000 00:00 0 \n",
        );
        let [file] = loads(&maps).try_into().expect("one");
        assert_eq!(file.moved.iter().map(|m| m.range.start.0).collect::<Vec<_>>(), [0x3000]);
        assert_eq!(file.code().count(), 3);
        // The program has moved all of its code, so no mapping of the file contains code.
        let maps = parse_maps(
            b"1000-2000 r--p 00000000 fe:01 7 /a\n2000-7000 r-xp 00000000 00:00 0 \n7000-8000 r--p 00006000 fe:01 7 /a\n",
        );
        let [file] = loads(&maps).try_into().expect("one");
        assert_eq!(file.moved.len(), 1);
        // A hole between segments contains no bytes of the file.
        let maps = parse_maps(
            b"400000-401000 r-xp 00000000 fe:01 7 /a\n500000-510000 r-xp 00000000 00:00 0 \n600000-601000 rw-p 00000000 fe:01 7 /a\n",
        );
        let [file] = loads(&maps).try_into().expect("one");
        assert!(file.moved.is_empty());
    }

    #[test]
    fn code_that_is_mapped_twice() {
        let low = b"1000-2000 r-xp 00004000 fe:01 7 /a\n";
        let load = b"500000-501000 r--p 00000000 fe:01 7 /a\n501000-507000 r-xp 00001000 fe:01 7 /a\n";
        let high = b"9000000-9001000 r-xp 00004000 fe:01 7 /a\n";
        let maps = parse_maps(&[low.as_slice(), load, high].concat());
        let [file] = loads(&maps).try_into().expect("one");
        assert_eq!(file.span(), Avma(0x50_0000)..Avma(0x50_7000));
        assert_eq!((file.mappings.len(), file.again.len()), (2, 2));
    }
}
