//! Looks at the threads of a process, for machines and questions for which the kernel takes no samples.
//!
//! A waiting thread is not touched: /proc/PID/task/TID/syscall has its system call, stack pointer and program counter. The stack is read
//! between two readings of that file, and is used only if both are equal. A running thread is held for a moment to read its registers; a
//! thread that waits is never held.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{Avma, Tid};

use crate::error::ProcessError;
use crate::perf::{EventError, SampledRegisters, ThreadSample};
use crate::procfs::{self, KernelSleep};
use crate::target::Target;
use crate::thread_waits::WaitDetails;
use crate::tracer::{TraceeState, Tracer};
use crate::visit::HeldRegisters;

/// Length in bytes of the stack that a look reads.
const STACK: usize = 16 << 10;
/// Number of rsp in the order of the DWARF register numbers.
const RSP: usize = 7;

/// State of the threads that a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Threads on a processor, or ready for one.
    Running,
    /// Threads that wait in the kernel.
    Waiting,
}

/// Looks at the threads of a process.
#[derive(Debug)]
pub struct ThreadLooks {
    state: ThreadState,
    only: BTreeSet<Tid>,
    threads: Vec<Tid>,
    /// Number of rounds so far; each looks once at every thread.
    rounds: u64,
    /// Number of looks so far at threads in any state.
    looks: u64,
    /// Number of looks so far that found the state, but saw the thread change meanwhile.
    missed: u64,
    stack: Vec<u8>,
    /// Looks at each thread so far; `None` if neither they nor the objects of waits were asked for.
    details: Option<BTreeMap<Tid, LookCounts>>,
}

/// Numbers of looks at a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookCounts {
    /// Looks in any state.
    pub looks: u64,
    /// Looks that found the thread on a processor, or ready for one.
    pub running: u64,
    /// Looks that found the thread waiting, but saw it go on before they were complete.
    pub missed: u64,
}

impl ThreadLooks {
    /// Begins with the present threads of a process, or only with those of `only` if it is not empty.
    pub fn begin(target: &Target, state: ThreadState, only: &[Tid]) -> Result<Self, EventError> {
        let threads = target.threads()?;
        if let Some(missing) = only.iter().find(|tid| !threads.contains(tid)) {
            return Err(EventError::NoThread(*missing));
        }
        let only: BTreeSet<Tid> = only.iter().copied().collect();
        let mut looks = ThreadLooks {
            state,
            only,
            threads: Vec::new(),
            rounds: 0,
            looks: 0,
            missed: 0,
            stack: Vec::new(),
            details: None,
        };
        looks.set(threads);
        Ok(looks)
    }

    /// Also reads how threads wait, and counts the looks at each thread.
    #[must_use]
    pub fn with_details(mut self) -> Self {
        self.details = Some(BTreeMap::new());
        self
    }

    /// Looks so far at each present thread; empty if they were not asked for.
    pub fn counts(&self) -> BTreeMap<Tid, LookCounts> {
        self.details.clone().unwrap_or_default()
    }

    /// Looks for threads that have begun or ended.
    pub fn follow(&mut self, target: &Target) {
        if let Ok(threads) = target.threads() {
            self.set(threads);
        }
    }

    fn set(&mut self, mut threads: Vec<Tid>) {
        threads.retain(|tid| self.only.is_empty() || self.only.contains(tid));
        if let Some(details) = &mut self.details {
            let present: BTreeSet<Tid> = threads.iter().copied().collect();
            details.retain(|tid, _| present.contains(tid));
        }
        self.threads = threads;
    }

    /// Looks once at each thread, and calls `each` for those in the state.
    pub fn look(&mut self, target: &Target, each: &mut dyn FnMut(&ThreadSample<'_>)) {
        self.rounds += 1;
        for i in 0..self.threads.len() {
            let Some(&tid) = self.threads.get(i) else { break };
            let Some(now) = procfs::in_kernel_of(target.pid(), tid) else { continue };
            self.looks += 1;
            self.count(tid, |counts| {
                counts.looks += 1;
                counts.running += u64::from(now == KernelSleep::Running);
            });
            match (self.state, now) {
                (ThreadState::Waiting, KernelSleep::Asleep { nr, args, sp, pc }) => {
                    self.read_stack(target, sp);
                    let wait = self.details.as_ref().and_then(|_| WaitDetails::of(target, tid, nr, &args));
                    if procfs::in_kernel_of(target.pid(), tid) != Some(now) {
                        self.missed += 1;
                        self.count(tid, |counts| counts.missed += 1);
                        continue;
                    }
                    let mut general = [None; 16];
                    general[RSP] = Some(sp);
                    let registers = Some(SampledRegisters { pc: Avma(pc), general }).filter(|_| pc != 0);
                    each(&ThreadSample { tid, kernel: false, registers, stack: &self.stack, call: Some(nr), wait });
                }
                (ThreadState::Running, KernelSleep::Running) => match self.hold(target, tid) {
                    Ok(Some((registers, kernel))) => {
                        let stack = &self.stack;
                        let registers = Some(registers);
                        each(&ThreadSample { tid, kernel, registers, stack, call: None, wait: None });
                    }
                    Ok(None) | Err(_) => self.missed += 1,
                },
                (ThreadState::Waiting, KernelSleep::Running) | (ThreadState::Running, KernelSleep::Asleep { .. }) => {}
            }
        }
    }

    fn count(&mut self, tid: Tid, change: impl FnOnce(&mut LookCounts)) {
        if let Some(details) = &mut self.details {
            change(details.entry(tid).or_default());
        }
    }

    fn read_stack(&mut self, target: &Target, sp: u64) {
        self.stack.resize(STACK, 0);
        // A stack that cannot be read has no callers.
        let read = target.read_some(Avma(sp), &mut self.stack).unwrap_or(0);
        self.stack.truncate(read);
    }

    /// Holds a thread, and reads its registers and its stack. Also returns whether the thread was in a system call. `None` if it has ended.
    fn hold(&mut self, target: &Target, tid: Tid) -> Result<Option<(SampledRegisters, bool)>, ProcessError> {
        // The kernel may have given the id of an ended thread to another process.
        if !procfs::is_thread_of(target.pid(), tid) {
            return Ok(None);
        }
        target.trace(|tracer: &mut Tracer| {
            let Some(i) = tracer.seize(tid, false)? else { return Ok(None) };
            if !tracer.stop(i)? || !matches!(tracer.threads[i].state, TraceeState::Stopped(_)) {
                return Ok(None);
            }
            target.verify_thread(tid, target.acting())?;
            let regs = tracer.regs(i)?;
            if let Some(regs) = regs {
                self.read_stack(target, regs.rsp);
            }
            if let Some(i) = tracer.index_of(tid) {
                tracer.release(i)?;
            }
            Ok(regs.map(|regs| {
                let HeldRegisters { pc, general, .. } = HeldRegisters::of(&regs);
                let in_call = regs.orig_rax.cast_signed() >= 0;
                (SampledRegisters { pc, general: general.map(Some) }, in_call)
            }))
        })?
    }

    /// Number of rounds so far; each has looked once at every thread.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Number of looks so far at threads in any state.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Number of looks so far that have no sample, because the thread changed its state meanwhile.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// Name of a system call in which a thread may wait; `None` for other numbers.
pub fn call_name(number: i64) -> Option<&'static str> {
    macro_rules! named {
        ($($name:ident = $number:ident),* $(,)?) => {
            match number {
                $(libc::$number => Some(stringify!($name)),)*
                _ => None,
            }
        };
    }
    named! {
        read = SYS_read, write = SYS_write, poll = SYS_poll, ppoll = SYS_ppoll, select = SYS_select,
        pselect6 = SYS_pselect6, readv = SYS_readv, writev = SYS_writev, pread64 = SYS_pread64,
        pwrite64 = SYS_pwrite64, preadv = SYS_preadv, pwritev = SYS_pwritev, pause = SYS_pause,
        nanosleep = SYS_nanosleep, clock_nanosleep = SYS_clock_nanosleep, accept = SYS_accept, accept4 = SYS_accept4,
        connect = SYS_connect, sendto = SYS_sendto, recvfrom = SYS_recvfrom, sendmsg = SYS_sendmsg,
        recvmsg = SYS_recvmsg, sendmmsg = SYS_sendmmsg, recvmmsg = SYS_recvmmsg, sendfile = SYS_sendfile,
        splice = SYS_splice, wait4 = SYS_wait4, waitid = SYS_waitid, futex = SYS_futex, epoll_wait = SYS_epoll_wait,
        epoll_pwait = SYS_epoll_pwait, epoll_pwait2 = SYS_epoll_pwait2, flock = SYS_flock, fcntl = SYS_fcntl,
        fsync = SYS_fsync, fdatasync = SYS_fdatasync, sync = SYS_sync, msync = SYS_msync, open = SYS_open,
        openat = SYS_openat, close = SYS_close, unlink = SYS_unlink, rename = SYS_rename, semop = SYS_semop,
        semtimedop = SYS_semtimedop, msgrcv = SYS_msgrcv, msgsnd = SYS_msgsnd, mq_timedreceive = SYS_mq_timedreceive,
        mq_timedsend = SYS_mq_timedsend, rt_sigsuspend = SYS_rt_sigsuspend, rt_sigtimedwait = SYS_rt_sigtimedwait,
        io_getevents = SYS_io_getevents, restart_syscall = SYS_restart_syscall, sched_yield = SYS_sched_yield,
        ioctl = SYS_ioctl, mmap = SYS_mmap, munmap = SYS_munmap, mprotect = SYS_mprotect, madvise = SYS_madvise,
        brk = SYS_brk, clone = SYS_clone, fork = SYS_fork, vfork = SYS_vfork, execve = SYS_execve,
        exit_group = SYS_exit_group, getrandom = SYS_getrandom, io_uring_enter = SYS_io_uring_enter,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use ingraft_model::Pid;

    use super::*;

    fn shell(script: &str) -> (std::process::Child, Target) {
        let child = Command::new("sh").args(["-c", script]).spawn().expect("a shell");
        let target = Target::open_unchecked(Pid(i32::try_from(child.id()).expect("an id"))).expect("the child");
        (child, target)
    }

    /// The system calls of the samples, and whether all had registers and a stack, once there are `n` samples.
    fn samples(target: &Target, state: ThreadState, n: usize) -> Vec<(Option<i64>, bool)> {
        let mut looks = ThreadLooks::begin(target, state, &[]).expect("its threads");
        let (mut found, limit) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        while found.len() < n {
            assert!(Instant::now() < limit, "{found:?}");
            looks.look(target, &mut |sample| {
                let sp = sample.registers.and_then(|r| r.general[RSP]);
                found.push((sample.call, sp.is_some() && !sample.stack.is_empty()));
            });
            looks.follow(target);
        }
        assert!(looks.looks() >= n as u64);
        found
    }

    #[test]
    fn a_waiting_process_is_seen_in_its_system_call() {
        // The shell reads from a pipe to which nothing is written.
        let mut child =
            Command::new("sh").args(["-c", "read line"]).stdin(std::process::Stdio::piped()).spawn().expect("a shell");
        let target = Target::open_unchecked(Pid(i32::try_from(child.id()).expect("an id"))).expect("the child");
        let limit = Instant::now() + Duration::from_secs(60);
        while samples(&target, ThreadState::Waiting, 1) != [(Some(libc::SYS_read), true)] {
            assert!(Instant::now() < limit, "the shell does not read");
        }
        assert_eq!(call_name(libc::SYS_read), Some("read"));
        assert_eq!((call_name(-1), call_name(100_000)), (None, None));
        child.kill().expect("its end");
        child.wait().expect("its end");
    }

    #[test]
    fn a_process_that_is_held_may_be_attached_to() {
        let (mut child, target) = shell("while :; do :; done");
        let pid = target.pid();
        let (attachable, held) = target
            .trace(|tracer: &mut Tracer| {
                let traced = tracer.seize(Tid(pid.0), false);
                assert!(traced.expect("the shell is traced").is_some());
                (crate::access::attachable(pid), crate::access::explain(pid))
            })
            .expect("a tracer");
        assert!(attachable.is_ok(), "{attachable:?}");
        assert!(matches!(held, Some(crate::error::Denial::Traced { .. })), "{held:?}");
        child.kill().expect("its end");
        child.wait().expect("its end");
    }

    #[test]
    fn a_running_process_is_held_for_a_moment() {
        let (mut child, target) = shell("while :; do :; done");
        let found = samples(&target, ThreadState::Running, 20);
        assert!(found.iter().all(|(call, whole)| call.is_none() && *whole), "{found:?}");
        assert!(target.time_held() > Duration::ZERO);
        child.kill().expect("its end");
        child.wait().expect("its end");
        let mut looks = ThreadLooks::begin(&target, ThreadState::Running, &[]);
        if let Ok(looks) = &mut looks {
            looks.look(&target, &mut |_| ());
        }
    }
}
