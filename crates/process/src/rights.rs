//! The rights with which the engine accesses a process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use ingraft_model::{Pid, Tid};

use crate::error::{Denial, ProcessError};
use crate::procfs;
use crate::sys;

/// Length of a buffer, in bytes, larger than the kernel's copy of any auxiliary vector (AT_VECTOR_SIZE in linux/auxvec.h).
const AUXV_MAX: usize = 4096;

/// Rights with which the engine opens and accesses a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rights {
    /// All rights that the kernel grants to the engine.
    All,
    /// Only threads that this user could trace without any capability. They have the same user and group ids, are dumpable, and have no
    /// capabilities that the user lacks (ptrace(2), ptrace access mode checking).
    User {
        /// User id of the caller.
        uid: u32,
        /// Group id of the caller.
        gid: u32,
    },
}

impl Rights {
    /// Opens the auxiliary vector of a thread, if these rights include the thread. The file stays bound to the present address space of the
    /// thread. Returns `Ok(None)` if the thread has ended.
    pub(crate) fn open_auxv(self, pid: Pid, tid: Tid) -> Result<Option<File>, ProcessError> {
        let path = format!("/proc/{tid}/auxv");
        let opened = match self {
            Rights::All => File::open(&path),
            // The kernel checks the rights in the same step in which it binds the file to the address space (PTRACE_MODE_READ_FSCREDS).
            Rights::User { uid, gid } => match sys::as_user(uid, gid, || File::open(&path)) {
                Ok(opened) => opened,
                // Without CAP_SETUID and CAP_SETGID, the engine cannot ask with the user's ids.
                Err(_) => File::open(&path).and_then(|file| {
                    if belongs_to(&file, tid, uid, gid) {
                        Ok(file)
                    } else {
                        Err(io::ErrorKind::PermissionDenied.into())
                    }
                }),
            },
        };
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
            // The files of a thread that is about to end belong to root, and it has no address space any more.
            Err(_) if File::open(&path).is_ok_and(|file| read_auxv(&file).is_none()) => Ok(None),
            Err(e) => Err(match self {
                Rights::User { uid, .. } => Denial::NotYours { pid, uid }.into(),
                Rights::All => procfs::file_error(pid, path.into(), e),
            }),
        }
    }
}

/// Applies the kernel's rule as far as files of /proc allow, for a daemon that cannot take a user's identity. `auxv` is open already, so
/// the answer is about its address space or a later one. The caller compares the two afterwards.
fn belongs_to(auxv: &File, tid: Tid, uid: u32, gid: u32) -> bool {
    let namespace = |id: i32| fs::read_link(format!("/proc/{id}/ns/user")).ok();
    // If the thread is not dumpable, the file belongs to root.
    let dumpable = auxv.metadata().is_ok_and(|m| m.uid() == uid);
    let credentials = fs::read(format!("/proc/{tid}/status")).ok().map(|text| procfs::Credentials::parse(&text));
    let same = credentials.is_some_and(|c| c.uids == [uid; 4] && c.gids == [gid; 4] && c.permitted == Some(0));
    dumpable && same && namespace(tid.0).is_some_and(|theirs| Some(theirs) == namespace(sys::own_pid().0))
}

/// Checks whether the engine may access a process with these rights. The check does not affect the process.
pub fn permitted(pid: Pid, rights: Rights) -> Result<(), Denial> {
    crate::access::attachable(pid)?;
    if rights == Rights::All {
        return Ok(());
    }
    match first_auxv(pid, rights) {
        Ok(_) => Ok(()),
        Err(ProcessError::Denied(denial)) => Err(denial),
        Err(_) => Err(Denial::NoSuchProcess(pid)),
    }
}

/// The auxiliary vector of the first thread with an address space. A main thread that has ended has none.
pub(crate) fn first_auxv(pid: Pid, rights: Rights) -> Result<(Tid, File, Vec<u8>), ProcessError> {
    let main = Tid(pid.0);
    let others = || procfs::threads(pid).unwrap_or_default().into_iter().filter(move |tid| *tid != main);
    for tid in std::iter::once(main).chain(others()) {
        if let Some(file) = rights.open_auxv(pid, tid)?
            && let Some(bytes) = read_auxv(&file)
        {
            return Ok((tid, file, bytes));
        }
    }
    Err(ProcessError::Gone(pid))
}

/// Reads an auxiliary vector. `None` if the address space was gone when the file was opened.
pub(crate) fn read_auxv(file: &File) -> Option<Vec<u8>> {
    let mut bytes = vec![0; AUXV_MAX];
    let n = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(n);
    (n > 0).then_some(bytes)
}

/// The auxiliary vector of the program that a process runs, which [`Target`](crate::Target) keeps.
pub(crate) fn open_image(pid: Pid) -> Result<File, ProcessError> {
    first_auxv(pid, Rights::All).map(|(_, file, _)| file)
}
