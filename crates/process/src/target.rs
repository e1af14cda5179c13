//! A process under observation: its identity, its memory, its files.

use std::collections::{HashMap, HashSet};
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
use crate::error::{Denial, ProcessError};
use crate::gadgets::Gadgets;
use crate::holds::HoldRecord;
use crate::procfs::{self, Mapping, ProcStatus};
use crate::rights::{self, Rights};
use crate::stack_switch_signs::{FileKey, StackSwitchSigns};
use crate::sys;

/// Type, in the auxiliary vector, of the program's entry point.
pub const AT_ENTRY: u64 = 9;
/// Type, in the auxiliary vector, of the dynamic loader's load address.
pub const AT_BASE: u64 = 7;
/// Type, in the auxiliary vector, of the second word of processor features for programs.
pub(crate) const AT_HWCAP2: u64 = 26;
/// Bit of AT_HWCAP2: programs may use RDFSBASE and the related instructions.
pub(crate) const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// Identifies a process. A process id alone is not enough, because the kernel reuses ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: Pid,
    /// Start time in clock ticks since boot (field 22 of /proc/PID/stat).
    pub start_time: u64,
    /// Boot id of the machine.
    pub boot_id: [u8; 16],
}

impl ProcessIdentity {
    /// Identity of the process that has this id now.
    pub fn of(pid: Pid) -> Result<Self, ProcessError> {
        Ok(ProcessIdentity { pid, start_time: procfs::stat(pid)?.start_time, boot_id: procfs::boot_id() })
    }

    /// Identity of the calling process.
    pub fn ours() -> Result<Self, ProcessError> {
        ProcessIdentity::of(sys::own_pid())
    }

    /// Whether the process that this identity was made of still runs.
    pub fn is_alive(&self) -> bool {
        procfs::stat(self.pid).is_ok_and(|s| s.start_time == self.start_time && !s.is_dead())
            && procfs::boot_id() == self.boot_id
    }

    /// Whether this process has been killed or has begun to end. It keeps its locks until it is gone.
    pub fn is_ending(&self) -> bool {
        let stat = procfs::stat(self.pid).ok().filter(|s| s.start_time == self.start_time);
        let killed = || procfs::status(self.pid).is_ok_and(|status| status.is_killed);
        stat.is_some_and(|s| s.is_dead() || s.is_exiting() || killed())
    }
}

/// Number of checks of whether a process still runs its program, of which one examines the list of mappings.
const LOOKS: u32 = 16;

/// Way in which a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// This signal ended the process.
    Signal(i32),
    /// The status is unknown: the process was not a child of the engine, and the kernel does not show its status.
    Unknown,
}

impl ExitStatus {
    /// Decodes a status in the format of wait(2).
    fn decode(status: i32) -> Self {
        match status & 0x7f {
            0 => ExitStatus::Code(status >> 8 & 0xff),
            signal => ExitStatus::Signal(signal),
        }
    }
}

/// Memory of a process at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryNow {
    /// That of the program that it ran when it was opened.
    Same,
    /// That of a program which it has executed since.
    OfAnotherProgram,
    /// None: it ends. The kernel takes the memory of a process away before it tells anybody about the end, and that takes long if there is much.
    Gone,
}

/// A process that the engine may read and change. No thread of it is held between two calls.
#[derive(Debug)]
pub struct Target {
    identity: ProcessIdentity,
    pidfd: OwnedFd,
    mem: File,
    /// The auxiliary vector, bound to the same address space as `mem`.
    auxv: File,
    /// Rights with which the engine accesses the process.
    pub(crate) acting: Mutex<Rights>,
    pub(crate) gadgets: Mutex<Option<Arc<Gadgets>>>,
    pub(crate) holds: Mutex<HoldRecord>,
    /// Pages of which the process is known to have private copies.
    pub(crate) private_pages: Mutex<HashSet<u64>>,
    /// Findings in the code of files.
    pub(crate) signs: Mutex<HashMap<FileKey, StackSwitchSigns>>,
    /// Address at which the last examination of the mappings found memory.
    mapped: AtomicU64,
    /// Number of checks of whether the process still runs its program.
    looks: AtomicU32,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Target {
    /// Opens a process, without an effect on it.
    pub fn open(pid: Pid) -> Result<Self, ProcessError> {
        Self::open_for(pid, Rights::All)
    }

    /// Opens a process that these rights include. The open files are bound to the program that the process runs now. Later operations do
    /// not check these rights, see [`Target::act_for`].
    pub fn open_for(pid: Pid, rights: Rights) -> Result<Self, ProcessError> {
        access::attachable(pid)?;
        let target = Self::open_unchecked(pid)?;
        // This finds an exec that happened while the files were being opened, because the check compares them with files that it opens now.
        target.check(rights)?;
        Ok(target)
    }

    /// Opens a process that the engine traces.
    pub(crate) fn open_unchecked(pid: Pid) -> Result<Self, ProcessError> {
        let identity = ProcessIdentity::of(pid)?;
        let own = |e: rustix::io::Errno| match e {
            rustix::io::Errno::SRCH => ProcessError::Gone(pid),
            e => ProcessError::Own { what: "pidfd_open", source: e.into() },
        };
        let raw = rustix::process::Pid::from_raw(pid.0).ok_or(Denial::NoSuchProcess(pid))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(own)?;
        let auxv = rights::open_image(pid)?;
        let mem = open_mem(pid)?;
        // The kernel may have given the id to another process since the identity was read.
        if ProcessIdentity::of(pid)? != identity {
            return Err(ProcessError::Gone(pid));
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
            signs: Mutex::default(),
            mapped: AtomicU64::new(0),
            looks: AtomicU32::new(0),
        })
    }

    /// Identity of the process.
    pub fn identity(&self) -> ProcessIdentity {
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

    /// Whether the process still runs the program that it ran when it was opened (no exec since), or ends with it.
    pub fn is_same_program(&self) -> bool {
        !matches!(self.memory_now(), MemoryNow::OfAnotherProgram)
    }

    /// Memory of the process at present.
    fn memory_now(&self) -> MemoryNow {
        // The open file keeps the old address space, whose memory is gone once no process uses it any more.
        let is_there = |at: u64| self.mem.read_at(&mut [0], at).is_ok_and(|n| n == 1);
        // Another process may use that address space too. So in some checks, look for memory in the process's own list of mappings.
        let whole = self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS);
        if !whole && is_there(self.mapped.load(Ordering::Relaxed)) {
            return MemoryNow::Same;
        }
        // If the mappings cannot be read at present, they do not prove that the memory is another one.
        let Ok(maps) = self.maps() else {
            return if is_there(self.mapped.load(Ordering::Relaxed)) { MemoryNow::Same } else { MemoryNow::Gone };
        };
        match maps.iter().find(|m| m.read && is_there(m.range.start.0)) {
            Some(found) => {
                self.mapped.store(found.range.start.0, Ordering::Relaxed);
                MemoryNow::Same
            }
            // The process may have lost its memory, to the last mapping, since the list was read.
            None if self.maps().is_ok_and(|maps| !maps.is_empty()) => MemoryNow::OfAnotherProgram,
            None => MemoryNow::Gone,
        }
    }

    /// Waits until the process ends, but at most for this time. Returns whether it has ended. Its status can still be read afterwards.
    pub fn ends_within(&self, at_most: Duration) -> bool {
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, timeout), Ok(n) if n > 0)
    }

    /// Waits until the process ends, but at most for this time. Returns `None` if it still runs.
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
            // The process is a child of another process. Until that process waits for it, /proc shows its status. After that the pidfd
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
    pub fn maps(&self) -> Result<Vec<Mapping>, ProcessError> {
        let maps = procfs::maps(self.pid())?;
        if !maps.is_empty() {
            return Ok(maps);
        }
        // The main thread may have ended before the others.
        for tid in self.threads()? {
            let maps = procfs::parse_maps(&procfs::read(self.pid(), &format!("task/{tid}/maps")).unwrap_or_default());
            if !maps.is_empty() {
                return Ok(maps);
            }
        }
        Err(ProcessError::Gone(self.pid()))
    }

    /// The threads of the process.
    pub fn threads(&self) -> Result<Vec<Tid>, ProcessError> {
        procfs::threads(self.pid())
    }

    /// Status of the process, as /proc gives it.
    pub fn status(&self) -> Result<ProcStatus, ProcessError> {
        procfs::status(self.pid())
    }

    /// Processor time of all threads of the process, ended ones included, with a resolution of a hundredth of a second.
    pub fn cpu_time(&self) -> Result<Duration, ProcessError> {
        let ticks = procfs::stat(self.pid())?.cpu_ticks;
        Ok(procfs::TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
    }

    /// Whether a filter of system calls (seccomp) is active in one of the first `most` threads.
    pub fn has_filter(&self, most: usize) -> bool {
        let filtered = |tid| self.thread_status(tid).is_ok_and(|s| s.seccomp != 0);
        self.threads().is_ok_and(|threads| threads.into_iter().take(most).any(filtered))
    }

    /// Status of a thread, as /proc gives it.
    pub fn thread_status(&self, tid: Tid) -> Result<ProcStatus, ProcessError> {
        procfs::thread_status(self.pid(), tid)
    }

    /// Time at which a thread began, in clock ticks since the start of the machine; `None` if the thread has ended. It tells a thread from an
    /// earlier one with the same id.
    pub fn thread_began(&self, tid: Tid) -> Option<u64> {
        procfs::thread_stat(tid).map(|stat| stat.start_time)
    }

    /// Name of a thread (comm); `None` if the thread has ended.
    pub fn thread_name(&self, tid: Tid) -> Option<String> {
        procfs::comm(Pid(tid.0))
    }

    /// Processor time of a thread in nanoseconds. It is exact while the thread sleeps, and at most one tick of the kernel old while it
    /// runs. `None` if the thread has ended, or if the kernel does not show it.
    pub fn thread_cpu_ns(&self, tid: Tid) -> Option<u64> {
        procfs::cpu_ns(self.pid(), tid)
    }

    /// Processor time, in nanoseconds, of a thread of a fork child that is measured with this process; see [`Target::thread_cpu_ns`]. It is
    /// still known after the child has ended, until its parent waits for it.
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

    /// Program file of the process, with its path in the process's own mount namespace.
    pub fn exe(&self) -> Option<PathBuf> {
        procfs::exe(self.pid())
    }

    /// The auxiliary vector, which the kernel gave the program at its start, as (type, value) pairs.
    pub fn auxv(&self) -> Result<Vec<(u64, u64)>, ProcessError> {
        Ok(procfs::parse_auxv(&procfs::read(self.pid(), "auxv")?))
    }

    /// Value of a type in the auxiliary vector; `None` if the vector lacks it.
    pub fn aux(&self, kind: u64) -> Option<u64> {
        self.auxv().ok()?.into_iter().find_map(|(k, v)| (k == kind).then_some(v))
    }

    /// Whether the clocks of the process agree with those of the engine: both are in the same time namespace (time_namespaces(7)), or the
    /// kernel has none.
    pub fn has_our_time(&self) -> bool {
        let of = |pid: Pid| std::fs::read_link(format!("/proc/{}/ns/time", pid.0)).ok();
        let ours = of(sys::own_pid());
        ours.is_none() || of(self.pid()) == ours
    }

    /// Reads memory of the process, whether it runs or not. Fails if any byte of the range cannot be read.
    pub fn read(&self, at: Avma, buffer: &mut [u8]) -> Result<(), ProcessError> {
        let n = self.read_some(at, buffer).map_err(|source| self.memory_error("read", at, buffer.len(), source))?;
        if n == buffer.len() {
            return Ok(());
        }
        Err(self.memory_error("read", at, buffer.len(), io::ErrorKind::UnexpectedEof.into()))
    }

    /// Reads the beginning of the range, up to the first byte that cannot be read. Returns the number of bytes read.
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

    /// Returns for each page of a range whether the target has a copy of its own, as of a page of a file that was written to; `None` if the
    /// kernel does not say.
    pub fn own_pages(&self, range: &AvmaRange) -> Option<Vec<bool>> {
        procfs::own_pages(self.pid(), range)
    }

    /// Returns for each page of a range whether it is in memory or in swap; `None` if the kernel does not say.
    pub fn touched_pages(&self, range: &AvmaRange) -> Option<Vec<bool>> {
        procfs::touched_pages(self.pid(), range)
    }

    /// Reads a u64.
    pub fn read_u64(&self, at: Avma) -> Result<u64, ProcessError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes memory of the process, even if its pages are write-protected.
    pub(crate) fn write(&self, at: Avma, bytes: &[u8]) -> Result<(), ProcessError> {
        sys::step();
        self.mem.write_all_at(bytes, at.0).map_err(|source| self.memory_error("write", at, bytes.len(), source))
    }

    fn memory_error(&self, what: &'static str, at: Avma, len: usize, source: io::Error) -> ProcessError {
        if !self.is_alive() {
            return ProcessError::Gone(self.pid());
        }
        match self.memory_now() {
            MemoryNow::Same => ProcessError::Memory { what, at, len, source },
            MemoryNow::OfAnotherProgram => ProcessError::Replaced(self.pid()),
            MemoryNow::Gone => ProcessError::Gone(self.pid()),
        }
    }
}

fn open_mem(pid: Pid) -> Result<File, ProcessError> {
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path);
    let path = PathBuf::from(format!("/proc/{pid}/mem"));
    let error = match open(&path) {
        Ok(mem) if procfs::maps(pid).is_ok_and(|m| !m.is_empty()) => return Ok(mem),
        Ok(_) => io::ErrorKind::UnexpectedEof.into(),
        Err(e) => e,
    };
    // A main thread that has ended has no memory any more, but the other threads have.
    for tid in procfs::threads(pid)?.into_iter().filter(|t| t.0 != pid.0) {
        if let Ok(mem) = open(&format!("/proc/{pid}/task/{tid}/mem").into()) {
            return Ok(mem);
        }
    }
    Err(procfs::file_error(pid, path, error))
}
