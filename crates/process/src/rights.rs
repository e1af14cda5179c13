//! The rights with which the engine accesses a process, and the check that the process still runs the program that was opened.
//!
//! One check does not suffice: after it, a process may execute another program, also one with more privileges (setuid). So the open files
//! are bound to one address space, and the engine checks both again on stopped threads. A stopped thread cannot execute another program.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use ingraft_model::{Pid, Tid};

use crate::error::{Denial, Error};
use crate::procfs;
use crate::sys;
use crate::target::{Target, lock};
use crate::tracer::{State, Tracer};

/// Type, in the auxiliary vector, of the address of 16 random bytes that the kernel writes at exec.
const AT_RANDOM: u64 = 25;
/// Length of a buffer, in bytes, larger than the kernel's copy of any auxiliary vector (AT_VECTOR_SIZE in linux/auxvec.h).
const AUXV_MAX: usize = 4096;
/// Number of comparisons. A program may change its own auxiliary vector (PR_SET_MM) or its memory between two readings.
const TRIES: u32 = 3;

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
    fn open_auxv(self, pid: Pid, tid: Tid) -> Result<Option<File>, Error> {
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
        Err(Error::Denied(denial)) => Err(denial),
        Err(_) => Err(Denial::NoSuchProcess(pid)),
    }
}

/// The auxiliary vector of the first thread with an address space. A main thread that has ended has none.
fn first_auxv(pid: Pid, rights: Rights) -> Result<(Tid, File, Vec<u8>), Error> {
    let main = Tid(pid.0);
    let others = || procfs::threads(pid).unwrap_or_default().into_iter().filter(move |tid| *tid != main);
    for tid in std::iter::once(main).chain(others()) {
        if let Some(file) = rights.open_auxv(pid, tid)?
            && let Some(bytes) = read_auxv(&file)
        {
            return Ok((tid, file, bytes));
        }
    }
    Err(Error::Gone(pid))
}

/// Reads an auxiliary vector. `None` if the address space was gone when the file was opened.
fn read_auxv(file: &File) -> Option<Vec<u8>> {
    let mut bytes = vec![0; AUXV_MAX];
    let n = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(n);
    (n > 0).then_some(bytes)
}

/// The auxiliary vector of the program that a process runs, for [`Target::runs_in`].
pub(crate) fn open_image(pid: Pid) -> Result<File, Error> {
    first_auxv(pid, Rights::All).map(|(_, file, _)| file)
}

/// Rights that are in force until this value is dropped.
#[derive(Debug)]
pub struct Acting<'a> {
    target: &'a Target,
    before: Rights,
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        *lock(&self.target.acting) = self.before;
    }
}

impl Target {
    /// Restricts the rights until the returned value is dropped. Until then, an operation that changes the process fails unless these
    /// rights include all threads of the process. Only one caller at a time may change a target.
    #[must_use = "the rights are in force as long as this lives"]
    pub fn act_for(&self, rights: Rights) -> Acting<'_> {
        Acting { target: self, before: std::mem::replace(&mut *lock(&self.acting), rights) }
    }

    /// The rights in force.
    pub(crate) fn acting(&self) -> Rights {
        *lock(&self.acting)
    }

    /// Checks that these rights include the process and that it still runs the program that was opened. The check does not affect the
    /// process. If it succeeds, data that was read from the process or its files since [`Target::open`] belongs to that program.
    pub fn check(&self, rights: Rights) -> Result<(), Error> {
        if !self.is_alive() {
            return Err(Error::Gone(self.pid()));
        }
        let (tid, _, _) = first_auxv(self.pid(), rights)?;
        self.verify_thread(tid, rights)
    }

    /// Checks that the rights in force include every held thread, and that the threads run in the address space that was opened. For
    /// stopped threads, the answer holds until they continue.
    pub(crate) fn verify(&self, tracer: &Tracer) -> Result<(), Error> {
        let rights = self.acting();
        let mut first = true;
        for thread in &tracer.threads {
            let is_there = matches!(thread.state, State::Stopped(_) | State::Asleep { .. });
            // All threads of a process share one address space. For processes that share it by vfork, the kernel has compared the address
            // spaces.
            if is_there && (first || rights != Rights::All) {
                self.verify_thread(thread.tid, rights)?;
                first = false;
            }
        }
        Ok(())
    }

    /// Checks that the rights include this thread, and that it runs in the address space that was opened. A thread that has ended passes,
    /// because it does nothing any more.
    pub(crate) fn verify_thread(&self, tid: Tid, rights: Rights) -> Result<(), Error> {
        let replaced = || if self.is_alive() { Error::Replaced(self.pid()) } else { Error::Gone(self.pid()) };
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(now) = rights.open_auxv(self.pid(), tid)? else { return Ok(()) };
            let Some(now) = read_auxv(&now) else { return Ok(()) };
            let known = read_auxv(self.image()).ok_or_else(replaced)?;
            if known == now && self.has_memory_of(tid, &known) {
                return Ok(());
            }
            if tries == TRIES {
                return Err(replaced());
            }
        }
    }

    /// Whether a thread uses the memory that was opened: both have the same random bytes of the kernel. Equal addresses in the vector do
    /// not suffice, because they may not be random.
    fn has_memory_of(&self, tid: Tid, auxv: &[u8]) -> bool {
        let vector = procfs::parse_auxv(auxv);
        let Some(at) = vector.into_iter().find_map(|(kind, value)| (kind == AT_RANDOM).then_some(value)) else {
            return true;
        };
        let Ok(mem) = File::open(format!("/proc/{tid}/mem")) else { return false };
        let random = |mem: &File| {
            let mut bytes = [0; 16];
            match mem.read_at(&mut bytes, at) {
                Ok(n) if n == bytes.len() => Some(Some(bytes)),
                Ok(_) => None,        // No process uses this address space any more.
                Err(_) => Some(None), // The program has unmapped or hidden the bytes.
            }
        };
        matches!((random(self.mem()), random(&mem)), (Some(known), Some(now)) if known == now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_its_own() {
        let target = Target::open_unchecked(sys::own_pid()).expect("this process");
        assert!(target.check(Rights::All).is_ok());
    }
}
