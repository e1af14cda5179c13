//! Files that a target names: by its mappings, or by a path that its own files contain. The engine trusts none of these names. A name may
//! lead to a device, a pipe or a terminal, in circles, out of the target's root, or to a file that only root may read. The bytes of the
//! file may change during the reading.
//!
//! So the engine first opens the file as a location only (O_PATH), which has no effect on the file. It opens the file for reading only if
//! it is a regular file. It reads the file into memory, up to a limit: a mapping would fault if another process truncated the file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ingraft_model::Pid;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::error::ProcessError;
use crate::procfs::{self, file_error};
use crate::sys;

/// Length of the longest file that the engine reads, in bytes.
pub(crate) const LONGEST: u64 = 2 << 30;
/// Divisor of the free memory. A file is read only if its length is at most this part of the free memory.
const PART_OF_MEMORY: u64 = 4;
const ELF_MAGIC: &[u8; 4] = b"\x7fELF";

/// The bytes of an ELF file that a process names by a path. The path is resolved from the root of that process, with the rights of its
/// user, and symbolic links do not leave this root. Fails if the path leads to no regular file, or if the file is no ELF file, is too long,
/// or changes during the reading.
pub fn read_named(pid: Pid, path: &Path) -> Result<Arc<[u8]>, ProcessError> {
    let read = || {
        let root = root_of(pid)?;
        read_elf(FileUser::of(pid)?.open(|| open_below(&root, path))?)
    };
    read().map_err(|e| file_error(pid, path.to_owned(), e))
}

/// The first bytes of a file that a process names by a path, at most `most` of them, and the length of the file. The path is resolved like that of
/// [`read_named`]. `None` if the file has the length `known`.
pub fn read_named_text(
    pid: Pid,
    path: &Path,
    most: u64,
    known: Option<u64>,
) -> Result<Option<(Vec<u8>, u64)>, ProcessError> {
    let read = || {
        let root = root_of(pid)?;
        let file = FileUser::of(pid)?.open(|| open_below(&root, path))?;
        let len = file.metadata()?.len();
        if known == Some(len) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some((bytes, len)))
    };
    read().map_err(|e| file_error(pid, path.to_owned(), e))
}

/// Opens a regular file by its path from the root of a process. It uses the engine's own rights, so the caller must check that the process
/// has mapped this file.
pub(crate) fn open_named(pid: Pid, path: &Path) -> io::Result<File> {
    open_below(&root_of(pid)?, path)
}

/// The root directory of a process.
fn root_of(pid: Pid) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?)
}

/// Opens a regular file by a path that is resolved with a directory as the root.
fn open_below(root: &OwnedFd, path: &Path) -> io::Result<File> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for_reading(rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens a regular file to which a link of the kernel leads (`/proc/PID/exe`, `/proc/PID/map_files`).
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    for_reading(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a location (O_PATH) for reading if it is a regular file.
fn for_reading(place: OwnedFd) -> io::Result<File> {
    let place = File::from(place);
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // The descriptor keeps the file: this path leads to exactly that file.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(link, flags, Mode::empty())?.into())
}

/// The bytes of an ELF file. The buffer is allocated as zeros, so each page is touched once before the read.
pub(crate) fn read_elf(mut file: File) -> io::Result<Arc<[u8]>> {
    let before = file.metadata()?;
    let most = longest();
    if before.len() > most {
        let what = format!("it is longer than {} MiB, the most that is read here", most >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let mut magic = [0; ELF_MAGIC.len()];
    let is_elf = before.len() >= magic.len() as u64 && file.read_exact(&mut magic).is_ok() && magic == *ELF_MAGIC;
    if !is_elf {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not an ELF file"));
    }
    let len = usize::try_from(before.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
    if let Some(only) = Arc::get_mut(&mut bytes) {
        only[..magic.len()].copy_from_slice(&magic);
        file.read_exact(&mut only[magic.len()..])?;
    }
    let after = file.metadata()?;
    let times = |m: &fs::Metadata| (m.len(), m.mtime(), m.mtime_nsec());
    if times(&before) != times(&after) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it changed while it was read"));
    }
    Ok(bytes)
}

/// Largest length of a file that may be read at present, in bytes.
fn longest() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = crate::limits::meminfo(&text, "MemAvailable").unwrap_or(LONGEST);
    LONGEST.min(free / PART_OF_MEMORY)
}

/// User with whose rights a file is opened.
struct FileUser {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl FileUser {
    /// The real user of a process. The effective ids may have more rights.
    fn of(pid: Pid) -> io::Result<FileUser> {
        let text = procfs::read(pid, "status").map_err(io::Error::other)?;
        FileUser::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses /proc/PID/status.
    fn parse(text: &str) -> Option<FileUser> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
        };
        Some(FileUser { uid: *numbers("Uid")?.first()?, gid: *numbers("Gid")?.first()?, groups: numbers("Groups")? })
    }

    /// Opens a file with the rights of this user, in a thread that ends afterwards.
    fn open(&self, open: impl FnOnce() -> io::Result<File> + Send) -> io::Result<File> {
        let ours = procfs::status(sys::own_pid()).map_err(io::Error::other)?;
        if ours.euid == self.uid || self.uid == 0 && ours.euid != 0 {
            // The user is the engine's own, or is root while the engine is not. The engine's own rights apply, which are no more than that
            // user's.
            return open();
        }
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || {
                sys::take_file_rights(self.uid, self.gid, &self.groups)?;
                open()
            })?;
            thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_elf_files_are_read() {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        let own = Pid(i32::try_from(std::process::id()).unwrap());
        let read = |name: &str| read_named(own, &at(name)).map_err(|e| e.to_string());
        fs::write(at("good"), b"\x7fELF and more").unwrap();
        fs::write(at("text"), b"no more").unwrap();
        fs::write(at("short"), b"\x7fE").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        std::os::unix::fs::symlink("good", at("link")).unwrap();
        std::os::unix::fs::symlink(format!("/proc/self/fd/../../{own}/exe"), at("magic")).unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read("good").as_deref(), Ok(&b"\x7fELF and more"[..]));
        assert_eq!(read("link").as_deref(), Ok(&b"\x7fELF and more"[..]));
        for bad in ["text", "short", "loop", "zero", "pipe", "sparse", "magic", "gone", ".", ".."] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(open_regular(Path::new("/dev/zero")).is_err());
        assert!(open_regular(&at("pipe")).is_err());
    }

    #[test]
    fn a_text_is_read_as_far_as_it_may_be() {
        let directory = tempfile::TempDir::new().unwrap();
        let own = Pid(i32::try_from(std::process::id()).unwrap());
        let path = directory.path().join("text");
        fs::write(&path, b"some words").unwrap();
        let read = |most, known| read_named_text(own, &path, most, known).unwrap();
        assert_eq!(read(100, None), Some((b"some words".to_vec(), 10)));
        assert_eq!((read(4, Some(9)), read(4, Some(10))), (Some((b"some".to_vec(), 10)), None));
        assert!(read_named_text(own, Path::new("/dev/zero"), 4, None).is_err());
        assert!(read_named_text(own, &directory.path().join("gone"), 4, None).is_err());
    }

    #[test]
    fn the_real_user_of_a_process() {
        let user = FileUser::parse("Name:\tx\nUid:\t5\t0\t0\t0\nGid:\t6\t7\t7\t7\nGroups:\t8 9 \n").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (5, 6, vec![8, 9]));
        assert!(FileUser::parse("Uid:\tx\n").is_none());
    }
}
