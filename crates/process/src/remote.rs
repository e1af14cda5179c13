//! System calls that a borrowed thread of the target makes for the engine. If the engine dies, the thread returns by itself to where it
//! was.
//!
//! One PTRACE_SETREGS points the stack pointer at a signal frame that restores all registers, and the program counter at `syscall; ret`.
//! The `ret` leads to rt_sigreturn(2) (`gadgets.rs`). If the engine is killed, at any moment, the thread makes at most one more system call
//! and then continues where it was.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use ingraft_model::{Avma, Tid};

use crate::bound::HoldTries;
use crate::dispatch::{self, DispatchState};
use crate::error::ProcessError;
use crate::frame;
use crate::gadget_search::still_there;
use crate::gadgets::{Gadgets, SYSCALL, SystemCallGadget};
use crate::procfs::{self, KernelSleep, Mapping};
use crate::sys::{self, Regs, WaitStatus};
use crate::target::Target;
use crate::tracer::{LOOKS, TraceeState, Tracer, is_held, pause};

/// Minimum number of free bytes below a thread's stack pointer.
const STACK_NEED: u64 = 16 * 1024;
/// Bytes below the frame for data that system calls read (names).
const SCRATCH: u64 = 1024;
/// Longest wait for a system call of the borrowed thread. It takes microseconds, but a target that swaps or is frozen may need longer.
const CALL_WAIT: Duration = Duration::from_secs(2);
/// Largest number of threads that are examined as candidates.
const CANDIDATES: usize = 1024;
/// Patience with each thread that is tried as a last resort, see [`Tracer::be_patient`].
const PATIENCE: u32 = 10;
/// Time for which borrowing is tried again if all threads sleep uninterruptibly. They may wait for pages from a disk or for a vfork child.
const CARRIER_WAIT: Duration = Duration::from_secs(1);
/// Least number of such tries, in case the engine got no processor during [`CARRIER_WAIT`].
const CARRIER_TRIES: u32 = 20;
/// Time between two such tries, in which the target runs.
const CARRIER_PAUSE: Duration = Duration::from_millis(5);

/// A borrowed thread that makes system calls.
#[derive(Debug)]
pub struct Remote<'a> {
    target: &'a Target,
    tracer: &'a mut Tracer,
    tid: Tid,
    restored: RestoredState,
    syscall_at: u64,
    /// Stack pointer for the system calls: the address of the first word of the return chain, which ends in the signal frame.
    sp: u64,
    scratch_used: u64,
}

/// Stop to which a borrowed thread has run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemoteStop {
    /// The beginning or the end of a system call.
    Syscall,
    /// The awaited signal is about to be delivered.
    Signal,
}

/// State to which the borrowed thread is restored.
#[derive(Debug)]
struct RestoredState {
    regs: Regs,
    xstate: Vec<u8>,
    sigmask: u64,
    /// State in which the thread was stopped. A thread in a group-stop stays in it.
    state: TraceeState,
}

impl Target {
    /// Runs `work` with a borrowed thread, which makes system calls. Afterwards the thread continues as before, even a system call in which
    /// it waited.
    pub fn remote<R: Send>(
        &self,
        work: impl FnOnce(&mut Remote<'_>) -> Result<R, ProcessError> + Send,
    ) -> Result<R, ProcessError> {
        self.remote_of(None, work)
    }

    /// Runs `work` with a borrowed thread like [`Target::remote`]. If `only` names a thread, no other one is borrowed, and a sleeping thread
    /// is not waited for.
    pub(crate) fn remote_of<R: Send>(
        &self,
        only: Option<Tid>,
        work: impl FnOnce(&mut Remote<'_>) -> Result<R, ProcessError> + Send,
    ) -> Result<R, ProcessError> {
        let gadgets = self.gadgets()?;
        let way = match gadgets.way_back() {
            Ok(way) => way,
            Err(missing) => {
                // Nothing is found either while an execve replaces the program. The check returns that error instead.
                self.check(self.acting())?;
                return Err(ProcessError::NoGadget(missing));
            }
        };
        if self.status()?.shadow_stack {
            return Err(ProcessError::ShadowStack);
        }
        let mut work = Some(work);
        // Most threads that sleep uninterruptibly do so for a moment. Threads of a target that is held do not wake.
        let (begin, may_wake) = (Instant::now(), only.is_none() && !is_held(self.pid()));
        let (mut tries, mut holds) = (0, HoldTries::begin());
        loop {
            tries += 1;
            let mut asleep = false;
            let result = self.trace(|tracer| {
                let mut remote = Remote::borrow(self, tracer, (&gadgets, way), only, &mut asleep)?;
                let Some(work) = work.take() else {
                    return Err(ProcessError::NoCarrier("it was borrowed before".into()));
                };
                let result = work(&mut remote);
                let returned = remote.give_back();
                result.and_then(|value| returned.map(|()| value))
            })?;
            match result {
                Err(ProcessError::NoCarrier(_))
                    if work.is_some()
                        && asleep
                        && may_wake
                        && (tries < CARRIER_TRIES || begin.elapsed() < CARRIER_WAIT) =>
                {
                    std::thread::sleep(CARRIER_PAUSE);
                }
                Err(e) if e.is_too_long() && work.is_some() && holds.again() => {}
                result => return result,
            }
        }
    }
}

impl<'a> Remote<'a> {
    /// Returns the process of the borrowed thread.
    pub fn target(&self) -> &'a Target {
        self.target
    }

    /// Borrows a thread. `asleep` is set if a thread was passed over because it sleeps.
    fn borrow(
        target: &'a Target,
        tracer: &'a mut Tracer,
        way: (&Gadgets, &SystemCallGadget),
        only: Option<Tid>,
        asleep: &mut bool,
    ) -> Result<Self, ProcessError> {
        let maps = target.maps()?;
        let mut refused = String::from("it has no thread");
        let filtered = |tid| procfs::thread_status(target.pid(), tid).is_ok_and(|s| s.seccomp != 0);
        let mut main_on_own_stack = None;
        // No processor may be free for a while. So that this costs the time once and not once for each thread, every failure lowers
        // patience.
        let mut patience = PATIENCE;
        // Whether system calls of a thread raise SIGSYS, and whether a thread was passed over for another reason.
        let (mut trapped, mut others) = (false, false);
        let BorrowCandidates { in_order, running } = candidates(target, &maps, only)?;
        let is_crowded = is_crowded(running.len());
        // Hold the running threads. Otherwise they compete with the borrowed thread for processors at each of its steps. If more of them run
        // than there are processors, hold all threads: those that sleep now would wake during the steps, and the borrowed thread would wait
        // behind them, and the held threads with it.
        for tid in running {
            tracer.seize(tid, filtered(tid))?;
        }
        if is_crowded {
            for tid in target.threads()?.into_iter().filter(|tid| !filtered(*tid)) {
                tracer.seize(tid, false)?;
            }
        }
        match tracer.stop_traced() {
            Err(ProcessError::Unstoppable { .. }) | Ok(()) => {}
            Err(e) => return Err(e),
        }
        let byte = |at| {
            let mut byte = [0];
            target.read(at, &mut byte).is_ok().then_some(byte[0])
        };
        for (tid, last_resort) in in_order {
            tracer.be_patient(if last_resort { patience } else { 1 });
            let held = tracer.index_of(tid).is_some();
            let Some(i) = tracer.seize(tid, filtered(tid))? else { continue };
            match Self::stack_top(target, tracer, i, &maps, last_resort, &mut main_on_own_stack) {
                Ok(Ok(top)) => match dispatch::passage(byte, tid, way.1) {
                    DispatchState::Trapped => trapped = true,
                    passage => return Self::send_away(target, tracer, i, top, way, passage),
                },
                Ok(Err(why)) => {
                    others |= last_resort;
                    // A later try may succeed: the thread may wake, or the thread that does not stop yet may stop.
                    *asleep |=
                        matches!(tracer.threads[i].state, TraceeState::Asleep { .. }) || tracer.has_loose_threads();
                    refused = format!("thread {tid} {why}");
                }
                Err(ProcessError::Unstoppable { .. }) => {
                    refused = format!("thread {tid} does not stop: {}", why_not_stopped(tid));
                    others |= last_resort;
                    patience -= u32::from(last_resort && patience > 1);
                }
                Err(e) => return Err(e),
            }
            if !held
                && main_on_own_stack != Some(tid)
                && let Some(i) = tracer.index_of(tid)
            {
                tracer.release(i)?;
            }
        }
        Err(if trapped && !others { ProcessError::UserDispatch } else { ProcessError::NoCarrier(refused) })
    }

    /// Stops a candidate and finds room for the signal frame. The inner error says why this thread cannot be borrowed.
    fn stack_top(
        target: &Target,
        tracer: &mut Tracer,
        i: usize,
        maps: &[Mapping],
        last_resort: bool,
        main_held: &mut Option<Tid>,
    ) -> Result<Result<u64, &'static str>, ProcessError> {
        if !tracer.stop(i)? {
            let asleep = matches!(tracer.threads[i].state, TraceeState::Asleep { .. });
            return Ok(Err(if asleep { "sleeps uninterruptibly" } else { "has ended" }));
        }
        let tid = tracer.threads[i].tid;
        let Some(regs) = tracer.regs(i)? else { return Ok(Err("has ended")) };
        if tid.0 == target.pid().0 && tracer.has_loose_threads() {
            return Ok(Err("may be replaced: another thread does not stop, and may start another program"));
        }
        if !last_resort && regs.rax as i64 == frame::ERESTART_RESTARTBLOCK {
            return Ok(Err("sleeps with a time-out"));
        }
        // A stopped thread cannot execute another program, so it will make its system calls in the address space that is verified here.
        target.verify_thread(tid, target.acting())?;
        if in_critical_section(target, tid, &regs) {
            return Ok(Err("is in a restartable sequence"));
        }
        if let Some(stack) = usable_stack(maps, regs.rsp)
            && regs.rsp - stack.start >= STACK_NEED
            && is_own_stack(target, tid, maps, &stack, &regs)
        {
            return Ok(Ok(regs.rsp - frame::RED_ZONE));
        }
        if !last_resort {
            return Ok(Err("has too little stack"));
        }
        // Use the low end of the main stack, which no code has reached. The main thread is held during the calls.
        let main = Tid(target.pid().0);
        let Some(stack) = maps.iter().find(|m| m.path.as_os_str() == "[stack]").map(|m| m.range.start.0..m.range.end.0)
        else {
            return Ok(Err("has too little stack"));
        };
        let main_sp = match (tid == main, tracer.seize(main, false)?) {
            (true, _) => Some(regs.rsp),
            (false, Some(m)) if tracer.stop(m)? => {
                *main_held = Some(main);
                tracer.regs(m)?.map(|r| r.rsp)
            }
            _ => None,
        };
        let top = stack.start + 3 * STACK_NEED;
        match main_sp {
            Some(sp) if !stack.contains(&sp) || sp >= top + STACK_NEED => Ok(Ok(top)),
            _ => Ok(Err("has too little stack")),
        }
    }

    fn send_away(
        target: &'a Target,
        tracer: &'a mut Tracer,
        i: usize,
        top: u64,
        (gadgets, way): (&Gadgets, &SystemCallGadget),
        passage: DispatchState,
    ) -> Result<Self, ProcessError> {
        tracer.check_bound(0, 0)?;
        tracer.lift_bound();
        // The library with this code may have been unloaded since the code was found.
        if !still_there(gadgets, target) {
            return Err(ProcessError::NoCarrier("the code that it would go through has changed".into()));
        }
        tracer.repair(i)?;
        let tid = tracer.threads[i].tid;
        let state = tracer.threads[i].state;
        let regs = tracer.regs(i)?.ok_or(ProcessError::Gone(target.pid()))?;
        let xstate = tracer.check("GETREGSET", tid, sys::get_xstate(tid))?;
        let sigmask = tracer.check("GETSIGMASK", tid, sys::get_sigmask(tid))?;
        if top < frame::frame_room(&xstate) + SCRATCH {
            return Err(ProcessError::NoCarrier(format!("thread {tid} has too little stack")));
        }
        let mut frame = frame::build(&regs, sigmask, &xstate, top, way.last)
            .ok_or_else(|| ProcessError::NoCarrier(format!("the extended state of thread {tid} is unreadable")))?;
        frame.put_in_front(&way.before);
        target.write(Avma(frame.at), &frame.bytes)?;
        let mut remote = Remote {
            target,
            tracer,
            tid,
            restored: RestoredState { regs, xstate, sigmask, state },
            syscall_at: way.syscall,
            sp: frame.at,
            scratch_used: 0,
        };
        // Begin after the system call, in case the engine dies before it sets one. No filter lets every call pass.
        remote.set_position(remote.syscall_at + SYSCALL.len() as u64, 0, [0; 6])?;
        let trapped = passage == DispatchState::Unknown && !remote.reaches_kernel()?;
        remote.tracer.check("SETSIGMASK", tid, sys::set_sigmask(tid, u64::MAX))?;
        if trapped {
            remote.give_back()?;
            return Err(ProcessError::UserDispatch);
        }
        Ok(remote)
    }

    /// Whether a system call without effect reaches the kernel, for kernels that do not tell it. If not, the thread has stopped before it
    /// receives SIGSYS, and the signal is dropped when the thread is given back. The signal must not be blocked: the kernel would reset
    /// its handler.
    fn reaches_kernel(&mut self) -> Result<bool, ProcessError> {
        let mask = !(1u64 << (libc::SIGSYS - 1));
        self.tracer.check("SETSIGMASK", self.tid, sys::set_sigmask(self.tid, mask))?;
        self.prepare_call(libc::SYS_getpid, [0; 6])?;
        for _ in 0..2 {
            if self.run_to_stop(Some(libc::SIGSYS))? == RemoteStop::Signal {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Points the thread at a system call.
    fn prepare_call(&self, nr: i64, args: [u64; 6]) -> Result<(), ProcessError> {
        self.set_position(self.syscall_at, nr, args)
    }

    /// Sets program counter and stack pointer together, and the registers of a system call.
    fn set_position(&self, rip: u64, nr: i64, args: [u64; 6]) -> Result<(), ProcessError> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let regs = Regs {
            rip,
            rsp: self.sp,
            rax: nr as u64,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.restored.regs
        };
        self.tracer.check("SETREGS", self.tid, sys::set_regs(self.tid, &regs))
    }

    /// Lets the thread run to the next system call stop.
    fn run_to_syscall_stop(&mut self) -> Result<(), ProcessError> {
        self.run_to_stop(None).map(drop)
    }

    /// Lets the thread run to the next system call stop, or to its stop before it receives the signal `awaited`.
    fn run_to_stop(&mut self, awaited: Option<i32>) -> Result<RemoteStop, ProcessError> {
        let mut signal = 0;
        loop {
            self.tracer.check("SYSCALL", self.tid, sys::cont_to_syscall(self.tid, signal))?;
            match self.wait()? {
                WaitStatus::Syscall => return Ok(RemoteStop::Syscall),
                WaitStatus::Signal(s) if Some(s) == awaited => return Ok(RemoteStop::Signal),
                // SIGSTOP cannot be blocked. The process stops, and the borrowed thread continues until it is given back.
                WaitStatus::Signal(s) => signal = s as usize,
                WaitStatus::Event(_) => return Err(self.replaced()),
                WaitStatus::EventStop(_) => signal = 0,
            }
        }
    }

    /// Returns the error for an execve of another thread, which then has the borrowed thread's id. Releases that thread.
    fn replaced(&mut self) -> ProcessError {
        match self.tracer.index_of(self.tid) {
            Some(i) => self.tracer.leave_to_exec(i),
            None => ProcessError::Replaced(self.target.pid()),
        }
    }

    fn wait(&self) -> Result<WaitStatus, ProcessError> {
        let begin = Instant::now();
        for tries in 0.. {
            let waited = begin.elapsed(); // Read the time before the status, because the thread may be delayed in between.
            match sys::try_wait(self.tid) {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if waited > CALL_WAIT && tries > LOOKS => {
                    return Err(ProcessError::Unstoppable {
                        tid: self.tid,
                        pc: Some(Avma(self.syscall_at)),
                        waited: CALL_WAIT,
                    });
                }
                Ok(None) => pause(tries, 0),
                Err(e) => {
                    self.tracer.check("wait", self.tid, Err(e))?;
                }
            }
        }
        Err(ProcessError::Gone(self.target.pid())) // This is not reached, because the time runs out first.
    }

    /// Makes one system call and returns its result. `name` is for the error.
    pub fn syscall(&mut self, name: &'static str, nr: i64, args: [u64; 6]) -> Result<u64, ProcessError> {
        self.target.verify_thread(self.tid, self.target.acting())?;
        self.prepare_call(nr, args)?;
        self.run_to_syscall_stop()?;
        self.run_to_syscall_stop()?;
        let regs = self.tracer.check("GETREGS", self.tid, sys::get_regs(self.tid))?;
        match regs.rax as i64 {
            code @ -4095..=-1 => {
                Err(ProcessError::Call { call: name, source: io::Error::from_raw_os_error(-code as i32) })
            }
            _ => Ok(regs.rax),
        }
    }

    /// Holds all other threads too, until this operation ends.
    pub(crate) fn hold_all(&mut self) -> Result<(), ProcessError> {
        self.tracer.stop_all()
    }

    /// Writes bytes to the borrowed thread's stack, for system calls that read them. They stay until the thread is given back.
    pub fn scratch(&mut self, bytes: &[u8]) -> Result<Avma, ProcessError> {
        let used = self.scratch_used + bytes.len() as u64;
        if used > SCRATCH {
            return Err(ProcessError::NoRoom { len: bytes.len() as u64, place: "on the borrowed stack" });
        }
        // Leave the red zone free, so that the frame of a signal handler lies below the bytes.
        let at = Avma((self.sp - frame::RED_ZONE - used) & !7);
        self.scratch_used = self.sp - frame::RED_ZONE - at.0;
        self.target.write(at, bytes)?;
        Ok(at)
    }

    /// Restores the thread's registers, in the stop in which the kernel decides whether to restart the interrupted system call.
    fn give_back(mut self) -> Result<(), ProcessError> {
        let (tid, mut signal) = (self.tid, 0);
        loop {
            self.tracer.check("INTERRUPT", tid, sys::interrupt(tid))?;
            self.tracer.check("CONT", tid, sys::cont(tid, signal))?;
            match self.wait()? {
                WaitStatus::EventStop(_) => break,
                WaitStatus::Signal(s) => signal = s as usize,
                WaitStatus::Event(_) => return Err(self.replaced()),
                WaitStatus::Syscall => signal = 0,
            }
        }
        let restored = &self.restored;
        if self.tracer.check("GETREGSET", tid, sys::get_xstate(tid))? != restored.xstate {
            self.tracer.check("SETREGSET", tid, sys::set_xstate(tid, &restored.xstate))?;
        }
        self.tracer.check("SETSIGMASK", tid, sys::set_sigmask(tid, restored.sigmask))?;
        self.tracer.check("SETREGS", tid, sys::set_regs(tid, &restored.regs))?;
        if let Some(i) = self.tracer.index_of(tid) {
            self.tracer.threads[i].state = restored.state;
            self.tracer.threads[i].regs = Some(restored.regs);
        }
        self.tracer.repair_all()
    }
}

struct BorrowCandidates {
    /// Candidates in the order of the tries; `true` if this try of the thread is a last resort.
    in_order: Vec<(Tid, bool)>,
    /// Threads that run, or are ready to run.
    running: Vec<Tid>,
}

/// Whether this number of running threads is more than the processors can run at once.
fn is_crowded(running: usize) -> bool {
    running > std::thread::available_parallelism().map_or(1, usize::from)
}

fn candidates(target: &Target, maps: &[Mapping], only: Option<Tid>) -> Result<BorrowCandidates, ProcessError> {
    let mut running = Vec::new();
    let mut rated: Vec<(u8, Tid)> = Vec::new();
    for tid in target.threads()?.into_iter().filter(|tid| only.is_none_or(|only| *tid == only)).take(CANDIDATES) {
        let rating = match procfs::in_kernel(tid) {
            Some(KernelSleep::Asleep { sp, .. }) if usable_stack(maps, sp).is_none() => 3,
            Some(KernelSleep::Asleep { nr, .. }) if has_timeout(nr) => 2,
            Some(KernelSleep::Asleep { .. }) => 0,
            Some(KernelSleep::Running) => {
                running.push(tid);
                1
            }
            None => 3,
        };
        rated.push((rating, tid));
    }
    rated.sort_unstable();
    let again = rated.clone();
    let in_order =
        rated.into_iter().map(|(_, t)| (t, false)).chain(again.into_iter().map(|(_, t)| (t, true))).collect();
    Ok(BorrowCandidates { in_order, running })
}

/// Whether the kernel restarts this system call from saved state (ERESTART_RESTARTBLOCK) when it is interrupted.
fn has_timeout(nr: i64) -> bool {
    [libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_poll, libc::SYS_futex, libc::SYS_restart_syscall]
        .contains(&nr)
}

/// Returns the stack that contains `sp`, if it is the main stack or has a guard below. Other stacks (of goroutines, of coroutines) may have
/// other data right below them.
fn usable_stack(maps: &[Mapping], sp: u64) -> Option<Range<u64>> {
    let i = maps.iter().position(|m| m.range.contains(&Avma(sp)) && m.write && !m.shared)?;
    let m = &maps[i];
    let guard = || {
        i.checked_sub(1)
            .and_then(|j| maps.get(j))
            .is_some_and(|g| g.range.end == m.range.start && !g.read && !g.write && !g.exec)
    };
    (m.path.as_os_str() == "[stack]" || (!m.is_file() && guard())).then_some(m.range.start.0..m.range.end.0)
}

/// Whether a mapping is the stack of this thread, and nothing else. Memory with a guard below may also be a heap with many small stacks
/// side by side, as Go's, where a frame would overwrite the neighbours.
///
/// The main stack qualifies. So does a mapping that has a thread's control block at its upper end, where a libc puts it. The block begins
/// with its own address (System V ABI for x86-64, variant II of thread-local storage). The first thread's block proves nothing, because it
/// may lie right above a heap of stacks.
fn is_own_stack(target: &Target, tid: Tid, maps: &[Mapping], stack: &Range<u64>, regs: &Regs) -> bool {
    let is_main = |m: &Mapping| m.path.as_os_str() == "[stack]" && m.range.start.0 == stack.start;
    let has_block = || {
        tid != Tid(target.pid().0)
            && (regs.rsp..stack.end).contains(&regs.fs_base)
            && target.read_u64(Avma(regs.fs_base)).is_ok_and(|first| first == regs.fs_base)
    };
    maps.iter().any(is_main) || has_block()
}

/// Whether a thread is in a restartable sequence (rseq(2)). The kernel would drop the sequence when the borrowed thread runs elsewhere.
fn in_critical_section(target: &Target, tid: Tid, regs: &Regs) -> bool {
    let Ok((area @ 1.., _)) = sys::rseq_area(tid) else { return false };
    let section = target.read_u64(Avma(area + 8)).unwrap_or(0);
    if section == 0 {
        return false;
    }
    let word = |offset| target.read_u64(Avma(section.wrapping_add(offset)));
    match (word(8), word(16)) {
        (Ok(start), Ok(len)) => regs.rip.wrapping_sub(start) < len,
        _ => true,
    }
}

/// Reason why a thread does not stop, as far as its present state tells.
fn why_not_stopped(tid: Tid) -> &'static str {
    match procfs::thread_stat(tid).map(|stat| stat.state) {
        Some(b'D') => "it sleeps uninterruptibly (disk, network file system, vfork)",
        Some(_) | None => "no processor is free for it, or it slept uninterruptibly until now (disk, vfork)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks() {
        let maps = procfs::parse_maps(
            b"1000-2000 ---p 0 00:00 0 \n2000-9000 rw-p 0 00:00 0 \na000-b000 rw-p 0 00:00 0 \nc000-d000 rw-p 0 00:00 0 [stack]\n",
        );
        assert_eq!(usable_stack(&maps, 0x8000), Some(0x2000..0x9000));
        assert_eq!(usable_stack(&maps, 0xa800), None);
        assert_eq!(usable_stack(&maps, 0xc800), Some(0xc000..0xd000));
        assert_eq!(usable_stack(&maps, 0xf000), None);
    }
}
