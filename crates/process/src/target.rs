//! A process under observation: its identity, its memory, its files.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_model::{Avma, AvmaRange, Pid, Tid};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use crate::access;
use crate::error::{Denial, Error};
use crate::gadgets::Gadgets;
use crate::holds::Holds;
use crate::procfs::{self, Mapping, Status};
use crate::rights::{self, Rights};
use crate::sys;

/// Entry point of the program, in the auxiliary vector.
pub const AT_ENTRY: u64 = 9;
/// Load address of the dynamic loader.
pub const AT_BASE: u64 = 7;
/// Features of the processor that programs may use, second word.
pub const AT_HWCAP2: u64 = 26;
/// Address of the vDSO.
pub const AT_SYSINFO_EHDR: u64 = 33;
/// Bit of AT_HWCAP2: programs may use RDFSBASE and its like.
pub const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Identifies a process: the kernel may give an id alone to another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Process id.
    pub pid: Pid,
    /// Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_time: u64,
    /// Boot id of the machine.
    pub boot_id: [u8; 16],
}

impl Identity {
    /// The process that has this id now.
    pub fn of(pid: Pid) -> Result<Self, Error> {
        Ok(Identity { pid, start_time: procfs::stat(pid)?.start_time, boot_id: procfs::boot_id() })
    }

    /// The calling process.
    pub fn ours() -> Result<Self, Error> {
        Identity::of(sys::own_pid())
    }

    /// Whether this very process still runs.
    pub fn is_alive(&self) -> bool {
        procfs::stat(self.pid).is_ok_and(|s| s.start_time == self.start_time && !s.is_dead())
            && procfs::boot_id() == self.boot_id
    }

    /// Whether this very process has been killed or has begun to end. Until it is gone, it keeps its locks.
    pub fn is_ending(&self) -> bool {
        let stat = procfs::stat(self.pid).ok().filter(|s| s.start_time == self.start_time);
        let killed = || procfs::status(self.pid).is_ok_and(|status| status.is_killed);
        stat.is_some_and(|s| s.is_dead() || s.is_exiting() || killed())
    }
}

/// One in this many checks of whether a process still runs its program examines its list of mappings.
const LOOKS: u32 = 16;

/// Way in which a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
    /// The process was not our child, and the kernel does not tell.
    Unknown,
}

impl ExitStatus {
    /// Decodes a status as wait(2) gives it.
    fn decode(status: i32) -> Self {
        match status & 0x7f {
            0 => ExitStatus::Code(status >> 8 & 0xff),
            signal => ExitStatus::Signal(signal),
        }
    }
}

/// A process that may be read and changed. Nothing is held between two calls.
#[derive(Debug)]
pub struct Target {
    identity: Identity,
    pidfd: OwnedFd,
    mem: File,
    /// The auxiliary vector, bound to the same address space as `mem`.
    auxv: File,
    /// Rights with which the engine touches the process.
    pub(crate) acting: Mutex<Rights>,
    gadgets: Mutex<Option<Arc<Gadgets>>>,
    pub(crate) holds: Mutex<Holds>,
    /// Pages that are known to be private copies already.
    pub(crate) private_pages: Mutex<HashSet<u64>>,
    /// Address at which the last examination of the mappings found memory.
    mapped: AtomicU64,
    /// Number of checks of whether the process still runs its program.
    looks: AtomicU32,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Target {
    /// Opens a process; it is not touched.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        Self::open_for(pid, Rights::All)
    }

    /// Opens a process that these rights include. The open files are bound to the program that the process runs now. Later operations are
    /// not bound to these rights, see [`Target::act_for`].
    pub fn open_for(pid: Pid, rights: Rights) -> Result<Self, Error> {
        access::attachable(pid)?;
        let target = Self::open_unchecked(pid)?;
        // An exec while the files were being opened shows here: the check compares files opened before it and after it.
        target.check(rights)?;
        Ok(target)
    }

    /// Opens a process that is being traced by us.
    pub(crate) fn open_unchecked(pid: Pid) -> Result<Self, Error> {
        let identity = Identity::of(pid)?;
        let own = |e: rustix::io::Errno| match e {
            rustix::io::Errno::SRCH => Error::Gone(pid),
            e => Error::Own { what: "pidfd_open", source: e.into() },
        };
        let raw = rustix::process::Pid::from_raw(pid.0).ok_or(Denial::NoSuchProcess(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(own)?;
        let auxv = rights::open_image(pid)?;
        let mem = open_mem(pid)?;
        // The kernel may have given the id to another process between the two.
        if Identity::of(pid)? != identity {
            return Err(Error::Gone(pid));
        }
        Ok(Target {
            identity,
            pidfd,
            mem,
            auxv,
            acting: Mutex::new(Rights::All),
            gadgets: Mutex::default(),
            holds: Mutex::default(),
            private_pages: Mutex::default(),
            mapped: AtomicU64::new(0),
            looks: AtomicU32::new(0),
        })
    }

    /// Identity of the process.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Memory of the process, bound to the program that it ran when it was opened.
    pub(crate) fn mem(&self) -> &File {
        &self.mem
    }

    /// Auxiliary vector of the program that the process ran when it was opened.
    pub(crate) fn image(&self) -> &File {
        &self.auxv
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Whether the process still runs the program that it ran when it was opened (no exec since).
    pub fn is_same_program(&self) -> bool {
        // the open file keeps the old address space, which has nothing in it once its last user is gone
        let is_there = |at: u64| self.mem.read_at(&mut [0], at).is_ok_and(|n| n == 1);
        // another process may have that address space as well
        let whole = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS);
        if !whole && is_there(self.mapped.load(Ordering::Relaxed)) {
            return true;
        }
        // Mappings that cannot be read just now prove nothing.
        let Ok(maps) = self.maps() else { return is_there(self.mapped.load(Ordering::Relaxed)) };
        let found = maps.iter().find(|m| m.read && is_there(m.range.start.0));
        found.inspect(|m| self.mapped.store(m.range.start.0, Ordering::Relaxed)).is_some()
    }

    /// Waits at most this long until the process ends; its status stays to be fetched. Returns whether it has ended.
    pub fn ends_within(&self, at_most: Duration) -> bool {
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
    }

    /// Waits at most this long until the process ends. `None`: it still runs.
    pub fn wait_exit(&self, at_most: Duration) -> Option<ExitStatus> {
        if !self.ends_within(at_most) {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        Some(match waitid(WaitId::PidFd(self.pidfd.as_fd()), options) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => ExitStatus::Code(code),
                (_, Some(signal)) => ExitStatus::Signal(signal),
                _ => ExitStatus::Unknown,
            },
            // The process is somebody else's child. As long as nobody has waited for it, /proc has its status; afterwards the descriptor
            // does, since Linux 6.15.
            _ => {
                let unreaped = procfs::exit_status(self.pid(), self.identity.start_time);
                unreaped
                    .or_else(|| sys::exit_status(self.pidfd.as_fd()))
                    .map_or(ExitStatus::Unknown, ExitStatus::decode)
            }
        })
    }

    /// The mappings of the process, in order of their addresses.
    pub fn maps(&self) -> Result<Vec<Mapping>, Error> {
        let maps = procfs::maps(self.pid())?;
        if !maps.is_empty() {
            return Ok(maps);
        }
        // the main thread may have ended before the others
        for tid in self.threads()? {
            let maps = procfs::parse_maps(&procfs::read(self.pid(), &format!("task/{tid}/maps")).unwrap_or_default());
            if !maps.is_empty() {
                return Ok(maps);
            }
        }
        Err(Error::Gone(self.pid()))
    }

    /// The threads of the process.
    pub fn threads(&self) -> Result<Vec<Tid>, Error> {
        procfs::threads(self.pid())
    }

    /// Status of the process, as /proc gives it.
    pub fn status(&self) -> Result<Status, Error> {
        procfs::status(self.pid())
    }

    /// The processor time of all its threads, ended ones too, to the hundredth of a second.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        let ticks = procfs::stat(self.pid())?.cpu_ticks;
        Ok(procfs::TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }

    /// Status of a thread, as /proc gives it.
    pub fn thread_status(&self, tid: Tid) -> Result<Status, Error> {
        procfs::thread_status(self.pid(), tid)
    }

    /// The processor time of a thread in nanoseconds: exact while it sleeps, at most a tick of the kernel old while it runs. `None` if it has
    /// ended, or the kernel does not tell.
    pub fn thread_cpu_ns(&self, tid: Tid) -> Option<u64> {
        procfs::cpu_ns(self.pid(), tid)
    }

    /// Processor time, in nanoseconds, of a thread of a fork child that is measured with this process; see [`Target::thread_cpu_ns`]. It is
    /// known also when the child has ended and its parent has not asked for its status yet.
    pub fn child_cpu_ns(&self, tid: Tid) -> Option<u64> {
        procfs::cpu_ns(Pid(tid.0), tid)
    }

    /// Name of the process's main thread; empty if it cannot be read.
    pub fn name(&self) -> String {
        procfs::comm(self.pid()).unwrap_or_default()
    }

    /// Command line of the process.
    pub fn command(&self) -> Vec<String> {
        procfs::cmdline(self.pid())
    }

    /// Program file of the process, as its own mount namespace names it.
    pub fn exe(&self) -> Option<PathBuf> {
        procfs::exe(self.pid())
    }

    /// The auxiliary vector: what the kernel told the program at its start, as (type, value).
    pub fn auxv(&self) -> Result<Vec<(u64, u64)>, Error> {
        Ok(procfs::parse_auxv(&procfs::read(self.pid(), "auxv")?))
    }

    /// One value of the auxiliary vector.
    pub fn aux(&self, kind: u64) -> Option<u64> {
        self.auxv().ok()?.into_iter().find_map(|(k, v)| (k == kind).then_some(v))
    }

    /// Whether the clocks of the process agree with ours: it is in the same time namespace (time_namespaces(7)), or the kernel has none.
    pub fn has_our_time(&self) -> bool {
        let of = |pid: Pid| std::fs::read_link(format!("/proc/{}/ns/time", pid.0)).ok();
        let ours = of(sys::own_pid());
        ours.is_none() || of(self.pid()) == ours
    }

    /// Reads memory of the process, whether it runs or not. Reads all of the range or fails.
    pub fn read(&self, at: Avma, buffer: &mut [u8]) -> Result<(), Error> {
        let n = self.read_some(at, buffer).map_err(|source| self.memory_error("read", at, buffer.len(), source))?;
        if n == buffer.len() {
            return Ok(());
        }
        Err(self.memory_error("read", at, buffer.len(), io::ErrorKind::UnexpectedEof.into()))
    }

    /// Reads as much of the range as can be read; an unmapped page ends it. Returns the number of bytes read.
    pub fn read_some(&self, at: Avma, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            sys::step();
            match self.mem.read_at(&mut buffer[done..], at.0.wrapping_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Tells for each page of a range whether it is in memory or in swap; `None` if the kernel does not tell.
    pub fn touched_pages(&self, range: &AvmaRange) -> Option<Vec<bool>> {
        procfs::touched_pages(self.pid(), range)
    }

    /// Reads a u64.
    pub fn read_u64(&self, at: Avma) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes memory of the process, whatever the protection of the pages.
    pub(crate) fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        sys::step();
        self.mem.write_all_at(bytes, at.0).map_err(|source| self.memory_error("write", at, bytes.len(), source))
    }

    fn memory_error(&self, what: &'static str, at: Avma, len: usize, source: io::Error) -> Error {
        if !self.is_alive() {
            return Error::Gone(self.pid());
        }
        if !self.is_same_program() {
            return Error::Replaced(self.pid());
        }
        Error::Memory { what, at, len, source }
    }

    /// The code with which a borrowed thread calls the kernel and finds its way back; found once and kept.
    pub(crate) fn gadgets(&self) -> Result<Arc<Gadgets>, Error> {
        let mut known = lock(&self.gadgets);
        if let Some(gadgets) = known.as_ref().filter(|g| g.still_there(self)) {
            return Ok(Arc::clone(gadgets));
        }
        let found = Arc::new(Gadgets::find(self)?);
        *known = Some(Arc::clone(&found));
        Ok(found)
    }
}

fn open_mem(pid: Pid) -> Result<File, Error> {
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path);
    let path = PathBuf::from(format!("/proc/{pid}/mem"));
    let error = match open(&path) {
        Ok(mem) if procfs::maps(pid).is_ok_and(|m| !m.is_empty()) => return Ok(mem),
        Ok(_) => io::ErrorKind::UnexpectedEof.into(),
        Err(e) => e,
    };
    // a main thread that has ended has no memory any more, but the others have
    for tid in procfs::threads(pid)?.into_iter().filter(|t| t.0 != pid.0) {
        if let Ok(mem) = open(&format!("/proc/{pid}/task/{tid}/mem").into()) {
            return Ok(mem);
        }
    }
    Err(procfs::file_error(pid, path, error))
}
