//! Files that a target names: by its mappings, or by a path that its own files hold. Nothing about them is certain. Such a name may lead to
//! a device, a pipe or a terminal, in circles, out of the target's root, or to a file that only root may read, and its bytes may change
//! while they are read.
//!
//! So a file is opened as a place first (O_PATH), which has no effect on the file, and for reading only if it is a regular file. It is read
//! into memory, up to a size: a mapping of it would fault if another process cuts the file short.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use ingraft_model::Pid;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::error::Error;
use crate::procfs::{self, file_error};
use crate::sys;

/// Longest file that is read.
pub(crate) const LONGEST: u64 = 2 << 30;
/// Divisor of the free memory: a file is read only if it takes no more than this part of it.
const PART_OF_MEMORY: u64 = 4;
const ELF_MAGIC: &[u8; 4] = b"\x7fELF";

/// The bytes of an ELF file that a process names by a path: as seen from the root of that process, with the rights of its user. Symbolic links
/// lead nowhere else. An error if there is no regular file, or one that is no ELF file, too long, or changed while it is read.
pub fn read_named(pid: Pid, path: &Path) -> Result<Arc<[u8]>, Error> {
    let read = || {
        let root = root_of(pid)?;
        read_elf(User::of(pid)?.open(|| open_below(&root, path))?)
    };
    read().map_err(|e| file_error(pid, path.to_owned(), e))
}

/// Opens a file by its path as a process sees it: a regular file, or an error. Uses our own rights, so the caller makes sure that the
/// process has this file anyway.
pub(crate) fn open_named(pid: Pid, path: &Path) -> io::Result<File> {
    open_below(&root_of(pid)?, path)
}

/// The root directory of a process.
fn root_of(pid: Pid) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?)
}

/// Opens a regular file below a directory that is taken for the root.
fn open_below(root: &OwnedFd, path: &Path) -> io::Result<File> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for_reading(rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens the file to which a link of the kernel leads (`/proc/PID/exe`, `/proc/PID/map_files`): a regular file, or an error.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    for_reading(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a place for reading if a regular file is there.
fn for_reading(place: OwnedFd) -> io::Result<File> {
    let place = File::from(place);
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // The place cannot be replaced any more: this path leads to the very file.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(link, flags, Mode::empty())?.into())
}

/// The bytes of an ELF file, each page of ours touched once: the first touch costs more than the reading.
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

/// Length of the longest file that is read now.
fn longest() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = crate::limits::meminfo(&text, "MemAvailable").unwrap_or(LONGEST);
    LONGEST.min(free / PART_OF_MEMORY)
}

/// User with whose rights a file is opened.
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl User {
    /// The real user of a process: the user of its effective ids may have more rights.
    fn of(pid: Pid) -> io::Result<User> {
        let text = procfs::read(pid, "status").map_err(io::Error::other)?;
        User::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses /proc/PID/status.
    fn parse(text: &str) -> Option<User> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
        };
        Some(User { uid: *numbers("Uid")?.first()?, gid: *numbers("Gid")?.first()?, groups: numbers("Groups")? })
    }

    /// Opens something with the rights of this user, in a thread that ends with it.
    fn open(&self, open: impl FnOnce() -> io::Result<File> + Send) -> io::Result<File> {
        let ours = procfs::status(sys::own_pid()).map_err(io::Error::other)?;
        if ours.euid == self.uid || self.uid == 0 && ours.euid != 0 {
            // The user is ours, or is root and we are not: the kernel gives our own rights, and no more.
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
    fn the_real_user_of_a_process() {
        let user = User::parse("Name:\tx\nUid:\t5\t0\t0\t0\nGid:\t6\t7\t7\t7\nGroups:\t8 9 \n").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (5, 6, vec![8, 9]));
        assert!(User::parse("Uid:\tx\n").is_none());
    }
}
