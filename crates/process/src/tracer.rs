//! The tracer: one thread that traces and holds the threads of a process. All ptrace requests of an operation come from one thread that is
//! created for it. When that thread ends, the kernel releases all traced threads at once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ingraft_model::{Avma, Pid, Tid};

use crate::bound::{HoldFigures, ProcessorWaits, rest};
use crate::error::{Denial, ProcessError};
use crate::holds::Hold;
use crate::procfs::{self, KernelSleep};
use crate::sharers::Sharers;
use crate::sys::{self, Regs, WaitStatus};
use crate::traced_threads::{self, TracedThreads};

/// Time that a stop waits without any thread stopping before it gives up. Later attempts wait longer, because on a loaded machine a thread
/// that is ready to run may get no processor in time.
pub(crate) const STOP_WAIT: Duration = Duration::from_millis(50);
const STOP_WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest time that the end of an operation waits for a thread that did not stop in time, so that its system call can be repaired.
const LATE_WAIT: Duration = Duration::from_secs(5);
/// Time after which a stop no longer waits for a thread that sleeps uninterruptibly. Such a thread cannot reach user space before the
/// release.
const SLEEPER_WAIT: Duration = Duration::from_millis(2);
/// Longest wait for a thread that another operation of ingraft traces.
const OTHERS_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of rounds in which new threads are stopped. No program needs this many.
const ROUNDS: usize = 100;

/// Options of tracing: a thread that executes another program stops before the first instruction of that program.
const OPTIONS: usize = sys::TRACE_SYS_GOOD | sys::TRACE_EXEC;

/// State of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceeState {
    /// The thread runs, or is about to stop.
    Running,
    /// The thread is held. The value is the signal of a group-stop, or SIGTRAP.
    Stopped(i32),
    /// The thread did not stop: it sleeps in the kernel, and will return to user space at `pc` with `sp`, but not before the release.
    Asleep { pc: Avma, sp: Avma },
    /// The thread has ended.
    Gone,
}

/// A traced thread.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) tid: Tid,
    pub(crate) state: TraceeState,
    /// Registers of the thread, if they were read in this stop.
    pub(crate) regs: Option<Regs>,
    /// Whether the engine has asked the thread to stop.
    interrupted: bool,
}

/// The threads of one process that the calling thread traces.
#[derive(Debug)]
pub(crate) struct Tracer {
    pub(crate) pid: Pid,
    pub(crate) threads: Vec<Tracee>,
    /// Indices of the threads in `threads`.
    places: HashMap<Tid, usize>,
    wards: Arc<TracedThreads>,
    sharers: Sharers,
    patience: Duration,
    /// Time at which the first held thread was interrupted. If only one thread was interrupted, the last time at which that thread still
    /// ran.
    began: Option<Instant>,
    /// Whether only one thread has been interrupted since `began`.
    alone: bool,
    holds: Vec<Hold>,
    /// Waits for a processor since `began`.
    waits: Option<ProcessorWaits>,
    /// Longest time for which one hold may last; `None` if there is no bound.
    bound: Option<Duration>,
}

thread_local! {
    /// A tracer that exists for longer than one operation: that of a program being started.
    static HELD: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

/// Whether the calling thread holds the threads of a process for longer than one operation.
pub(crate) fn is_held(pid: Pid) -> bool {
    HELD.with_borrow(|held| held.as_ref().is_some_and(|tracer| tracer.pid == pid))
}

/// Runs `work` with a tracer of a process: the one that the calling thread already has, or one on a new thread. Also returns the times for
/// which threads were held. A hold of the new thread lasts no longer than `bound`, see [`Target::bound_holds`](crate::Target::bound_holds).
pub(crate) fn with_tracer<R: Send>(
    pid: Pid,
    bound: Option<Duration>,
    work: impl FnOnce(&mut Tracer) -> R + Send,
) -> Result<(R, Vec<Hold>), ProcessError> {
    let held = HELD.with_borrow_mut(|h| h.take_if(|t| t.pid == pid));
    if let Some(mut tracer) = held {
        let result = work(&mut tracer);
        HELD.set(Some(tracer));
        return Ok((result, Vec::new())); // The threads were held before, and still are.
    }
    on_own_thread(|| {
        sys::precise_sleeps();
        let has_priority = sys::raise_priority();
        let mut tracer = Tracer { bound, ..Tracer::new(pid) };
        let result = work(&mut tracer);
        tracer.repair_before_end();
        if has_priority {
            tracer.release_all();
        }
        tracer.end_of_hold();
        (result, tracer.holds)
    })
}

/// Makes `tracer` the one that operations of the calling thread use while `work` runs.
pub(crate) fn while_held<R>(tracer: &mut Tracer, work: impl FnOnce() -> R) -> R {
    let mine = std::mem::replace(tracer, Tracer::new(tracer.pid));
    HELD.set(Some(mine));
    let result = work();
    if let Some(mine) = HELD.take() {
        *tracer = mine;
    }
    result
}

/// Runs `work` on a new thread. Returns when that thread has left the kernel, so that all threads that it traced are released.
pub(crate) fn on_own_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, ProcessError> {
    let own = |source| ProcessError::Own { what: "start a thread", source };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(traced_threads::TRACER.into());
        let wards = Arc::new(TracedThreads::default());
        let (its_wards, (end, ended)) = (Arc::clone(&wards), sync_channel::<()>(0));
        let run = move || {
            its_wards.adopt();
            let result = (sys::own_tid(), work());
            drop(end);
            result
        };
        let handle = builder.spawn_scoped(scope, run).map_err(own)?;
        let mut last = 0;
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(traced_threads::TICK) {
            wards.reap_if_blocked(&mut last);
        }
        match handle.join() {
            Ok((tid, result)) => {
                sys::wait_thread_gone(tid);
                Ok(result)
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Pauses between two polls of a thread that is to stop, with `others` more threads to poll after it. If a processor is free, the thread
/// stops within microseconds, so the first polls follow without a pause. Otherwise it needs this thread's processor, so later polls come
/// after a sleep. Yielding is not enough: the scheduler charges for it, and at a raised priority it lets no other thread run. A sleep costs
/// as much time as several threads need to stop, so with many threads it lasts until many have stopped. Each sleep is longer than the last,
/// because the timer of a short one may expire before another thread gets the processor.
pub(crate) fn pause(tries: u32, others: usize) {
    if let Some(naps) = tries.checked_sub(LOOKS) {
        let of_others = (2 * others as u64).min(200);
        thread::sleep(Duration::from_micros((10 << naps.min(7)).max(of_others)));
    }
}

/// Whether a thread that has stopped at a system call is about to return from a signal handler.
fn returns_from_handler(tid: Tid) -> bool {
    // After the call, the number is gone.
    sys::get_regs(tid).is_ok_and(|regs| regs.orig_rax == libc::SYS_rt_sigreturn.cast_unsigned())
}

/// Number of polls of a thread without a sleep.
pub(crate) const LOOKS: u32 = 26;
/// Minimum number of sleeps before a stop gives up on a thread. Together they last some milliseconds, whatever time the clock shows.
const NAPS: u32 = 8;

impl Tracer {
    pub(crate) fn new(pid: Pid) -> Self {
        Tracer {
            pid,
            threads: Vec::new(),
            places: HashMap::new(),
            wards: TracedThreads::own(),
            sharers: Sharers::default(),
            patience: STOP_WAIT,
            began: None,
            alone: false,
            holds: Vec::new(),
            waits: None,
            bound: None,
        }
    }

    pub(crate) fn index_of(&self, tid: Tid) -> Option<usize> {
        self.places.get(&tid).copied()
    }

    fn error(&self, request: &'static str, tid: Tid, source: io::Error) -> ProcessError {
        let ended = matches!(source.raw_os_error(), Some(libc::ESRCH | libc::ECHILD));
        if ended && procfs::stat(self.pid).map_or(true, |s| s.is_dead()) {
            return ProcessError::Gone(self.pid);
        }
        ProcessError::Ptrace { request, tid, source }
    }

    /// Adds the request and the thread to the error of a request on a held thread.
    pub(crate) fn check<T>(&self, request: &'static str, tid: Tid, result: io::Result<T>) -> Result<T, ProcessError> {
        result.map_err(|source| self.error(request, tid, source))
    }

    /// Starts to trace a thread, which continues to run. `None` if it has ended. With `unfiltered`, its system call filter is suspended.
    pub(crate) fn seize(&mut self, tid: Tid, unfiltered: bool) -> Result<Option<usize>, ProcessError> {
        if let Some(place) = self.index_of(tid) {
            return Ok(Some(place));
        }
        let options = OPTIONS | if unfiltered { sys::SUSPEND_SECCOMP } else { 0 };
        let begin = Instant::now();
        loop {
            match self.wards.around_seize(|| sys::seize(tid, options)) {
                Ok(()) => return Ok(Some(self.add(tid, TraceeState::Running))),
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
                Err(source) => return Err(self.error("SEIZE", tid, source)),
            }
            // For a thread that has ended and was not reaped, PTRACE_SEIZE also fails with EPERM.
            if procfs::thread_stat(tid).is_none_or(|s| s.is_dead()) {
                return Ok(None);
            }
            let tracer = procfs::thread_status(self.pid, tid).map_or(0, |s| s.tracer);
            if tracer == 0 && unfiltered && self.wards.around_seize(|| sys::seize(tid, OPTIONS)).is_ok() {
                self.add(tid, TraceeState::Running);
                return Err(ProcessError::Seccomp);
            }
            if tracer == sys::own_tid().0 {
                // This tracer traces it already, under another id: the thread has executed another program, which gave it the main thread's
                // id.
                return Err(ProcessError::Replaced(self.pid));
            }
            // The tracer is another operation of this engine, or of another engine that examines this target. It ends soon.
            let passes = tracer != 0 && traced_threads::is_tracer_of_ingraft(Tid(tracer));
            if !passes || begin.elapsed() > OTHERS_WAIT {
                let why = crate::access::explain(self.pid);
                return Err(why.unwrap_or(Denial::Forbidden(self.pid)).into());
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Adds a traced thread, and returns its index in `threads`.
    pub(crate) fn add(&mut self, tid: Tid, state: TraceeState) -> usize {
        self.places.insert(tid, self.threads.len());
        self.wards.add(self.pid, tid);
        self.threads.push(Tracee { tid, state, regs: None, interrupted: false });
        self.threads.len() - 1
    }

    /// Starts to trace all threads, without a stop. Once the first thread was asked to stop, it also traces the processes that share their
    /// memory. It does so no earlier, because a vfork child should not execute its program while it is traced: the kernel may then deny
    /// that program its privileges. Returns the number of newly traced threads.
    pub(crate) fn seize_all(&mut self) -> Result<usize, ProcessError> {
        let mut new = 0;
        for tid in procfs::threads(self.pid)? {
            if !self.places.contains_key(&tid) && self.seize(tid, false)?.is_some() {
                new += 1;
            }
        }
        for tid in self.sharers.look(self.pid) {
            if self.began.is_some() && !self.places.contains_key(&tid) && self.seize_sharer(tid)? {
                new += 1;
            }
        }
        Ok(new)
    }

    /// Starts to trace a thread of a process that shares the target's memory. Returns `false` if it no longer shares it: it may by now run
    /// a program that the engine may not trace.
    fn seize_sharer(&mut self, tid: Tid) -> Result<bool, ProcessError> {
        match self.seize(tid, false) {
            Ok(place) => Ok(place.is_some()),
            Err(_) if !self.sharers.has(tid) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether the last search found other processes that share the target's memory.
    pub(crate) fn has_sharers(&self) -> bool {
        self.sharers.any()
    }

    /// Stops the processes that share the target's memory, and returns the indices of their threads. A vfork child for which a thread waits
    /// is left out: it runs in place of that thread, which does not run.
    pub(crate) fn stop_sharers(&mut self) -> Result<Vec<usize>, ProcessError> {
        let mut tasks = self.sharers.look(self.pid);
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let waits = |tid: &Tid| procfs::thread_stat(*tid).is_some_and(|s| s.state == b'D');
        let awaited: HashSet<Tid> =
            procfs::threads(self.pid)?.into_iter().filter(waits).flat_map(procfs::children).collect();
        tasks.retain(|tid| !awaited.contains(tid));
        for &tid in &tasks {
            self.seize_sharer(tid)?;
        }
        self.stop_traced()?;
        self.release_strangers()?;
        Ok(tasks.into_iter().filter_map(|tid| self.index_of(tid)).collect())
    }

    /// Releases held processes that have memory of their own by now.
    fn release_strangers(&mut self) -> Result<(), ProcessError> {
        let mut i = 0;
        while i < self.threads.len() {
            let thread = &self.threads[i];
            let held = matches!(thread.state, TraceeState::Stopped(_));
            if held && !procfs::is_thread_of(self.pid, thread.tid) && !self.sharers.has(thread.tid) {
                self.release(i)?;
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// Sets how long a stop waits in the `attempt`-th attempt (1 is the first).
    pub(crate) fn be_patient(&mut self, attempt: u32) {
        self.patience = (STOP_WAIT * attempt).min(STOP_WAIT_MAX);
    }

    /// Stops the threads that are already traced.
    pub(crate) fn stop_traced(&mut self) -> Result<(), ProcessError> {
        for i in 0..self.threads.len() {
            if self.threads[i].state == TraceeState::Running {
                self.interrupt(i)?;
            }
        }
        self.wait_all()
    }

    /// Stops every thread, including new ones, until no new thread appears.
    pub(crate) fn stop_all(&mut self) -> Result<(), ProcessError> {
        for _ in 0..ROUNDS {
            self.stop_traced()?;
            if self.seize_all()? == 0 {
                if self.sharers.any() {
                    self.release_strangers()?;
                }
                return if self.threads.iter().all(|t| t.state == TraceeState::Gone) {
                    Err(ProcessError::Gone(self.pid))
                } else {
                    Ok(())
                };
            }
        }
        Err(ProcessError::Unstoppable { tid: Tid(self.pid.0), pc: None, waited: self.patience })
    }

    /// Stops one traced thread that sleeps, if a processor is free for it.
    pub(crate) fn stop_soon(&mut self, i: usize) -> Result<bool, ProcessError> {
        let patience = std::mem::replace(&mut self.patience, SLEEPER_WAIT);
        let stopped = self.stop(i);
        self.patience = patience;
        stopped
    }

    /// Stops one traced thread. Returns `false` if it has ended.
    pub(crate) fn stop(&mut self, i: usize) -> Result<bool, ProcessError> {
        if self.threads[i].state == TraceeState::Running {
            self.interrupt(i)?;
            self.wait_all()?;
        }
        Ok(matches!(self.threads[i].state, TraceeState::Stopped(_)))
    }

    fn interrupt(&mut self, i: usize) -> Result<(), ProcessError> {
        self.alone = self.began.is_none();
        if self.alone {
            self.waits = Some(ProcessorWaits::begin());
        }
        self.began.get_or_insert_with(Instant::now);
        self.threads[i].interrupted = true;
        let tid = self.threads[i].tid;
        match sys::interrupt(tid) {
            Ok(()) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = TraceeState::Gone;
                Ok(())
            }
            Err(source) => Err(self.error("INTERRUPT", tid, source)),
        }
    }

    /// Handles the next ptrace stop of a thread, if there is one. Returns `true` if the thread is held or has ended.
    fn poll(&mut self, i: usize) -> Result<bool, ProcessError> {
        let tid = self.threads[i].tid;
        let before = self.alone.then(Instant::now);
        match sys::try_wait(tid) {
            Ok(None) => {
                if before.is_some() {
                    self.began = before;
                    if let Some(waits) = &mut self.waits {
                        waits.restart();
                    }
                }
                Ok(false)
            }
            Ok(Some(WaitStatus::EventStop(sig))) => {
                self.threads[i].state = TraceeState::Stopped(sig);
                Ok(true)
            }
            Ok(Some(WaitStatus::Signal(sig))) => {
                // Deliver the signal now, so that it is not lost when the engine dies. The thread stops again before the first instruction
                // of its handler.
                self.interrupt(i)?;
                self.resume(i, sig)?;
                Ok(false)
            }
            Ok(Some(WaitStatus::Event(_))) => self.executed_another(i).map(|()| true),
            Ok(Some(WaitStatus::Syscall)) => {
                self.interrupt(i)?;
                self.resume(i, 0)?;
                Ok(false)
            }
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => {
                self.threads[i].state = TraceeState::Gone;
                Ok(true)
            }
            Err(source) => Err(self.error("wait", tid, source)),
        }
    }

    /// Releases a thread that has executed another program. Fails if it belonged to the process.
    fn executed_another(&mut self, i: usize) -> Result<(), ProcessError> {
        let tid = self.threads[i].tid;
        let own = tid.0 == self.pid.0 || procfs::is_thread_of(self.pid, tid);
        let replaced = self.leave_to_exec(i);
        // A process that shared the memory has memory of its own now.
        if own { Err(replaced) } else { Ok(()) }
    }

    /// Releases a thread that has executed another program, which the engine may not access. The thread continues there. The other threads
    /// ended with the old program.
    pub(crate) fn leave_to_exec(&mut self, i: usize) -> ProcessError {
        let thread = &mut self.threads[i];
        thread.state = TraceeState::Gone;
        thread.regs = None;
        let _ = sys::detach(thread.tid, 0); // This fails if the thread has been killed since.
        ProcessError::Replaced(self.pid)
    }

    /// Repairs system calls before the end of an operation, also of a failed one: no system call of a thread may end early because the
    /// engine asked the thread to stop. A thread that waits for a processor stops late; the other threads are released before that.
    fn repair_before_end(&mut self) {
        for i in 0..self.threads.len() {
            let _ = self.repair(i); // A thread that is gone needs no repair.
        }
        let is_late =
            |t: &Tracee| t.interrupted && matches!(t.state, TraceeState::Running | TraceeState::Asleep { .. });
        if !self.threads.iter().any(is_late) {
            return;
        }
        let mut i = 0;
        while i < self.threads.len() {
            // A thread that cannot be released now is released when this tracer ends.
            if !matches!(self.threads[i].state, TraceeState::Stopped(_)) || self.release(i).is_err() {
                i += 1;
            }
        }
        let begin = Instant::now();
        let mut tries = 0;
        while begin.elapsed() < LATE_WAIT && self.threads.iter().any(is_late) {
            for i in 0..self.threads.len() {
                if is_late(&self.threads[i]) && (self.is_sleeper(i) || self.poll(i).unwrap_or(true)) {
                    // An uninterruptible sleep does not end early.
                    self.threads[i].interrupted = false;
                    let _ = self.repair(i);
                }
            }
            pause(tries, 0);
            tries += 1;
        }
    }

    fn resume(&mut self, i: usize, signal: i32) -> Result<(), ProcessError> {
        let tid = self.threads[i].tid;
        match sys::cont(tid, signal as usize) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(self.error("CONT", tid, e)),
            _ => Ok(()), // If the thread was killed, the next wait shows it.
        }
    }

    fn resume_to_syscall(&self, i: usize, signal: i32) -> Result<(), ProcessError> {
        let tid = self.threads[i].tid;
        match sys::cont_to_syscall(tid, signal as usize) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(self.error("SYSCALL", tid, e)),
            _ => Ok(()), // If the thread was killed, the next wait shows it.
        }
    }

    /// Waits for every thread that was asked to stop. Gives up after some time, and some polls, in which no thread has stopped. The time
    /// alone would not do: a busy or suspended machine may keep processors from the engine and the thread at once.
    fn wait_all(&mut self) -> Result<(), ProcessError> {
        let mut progress = Instant::now();
        let mut tries = 0u32;
        let mut i = 0;
        while i < self.threads.len() {
            let is_settled = self.threads[i].state != TraceeState::Running;
            let idle = if is_settled { Duration::ZERO } else { progress.elapsed() }; // Measure before the poll, which may come much later.
            if is_settled || self.poll(i)? {
                self.note_stop();
                i += 1;
                tries = 0;
                progress = Instant::now();
                continue;
            }
            if tries == LOOKS
                && !self.alone
                && let Some(waits) = &mut self.waits
            {
                waits.open(self.pid, self.threads[i].tid);
            }
            self.check_bound(0, 0)?;
            if idle > SLEEPER_WAIT && tries >= LOOKS + NAPS && (idle > self.patience || self.is_sleeper(i)) {
                if self.others_came(i)? {
                    tries = 0;
                    progress = Instant::now();
                    continue;
                }
                if let Some(state) = self.where_asleep(i)? {
                    self.threads[i].state = state;
                    self.note_stop();
                    // The later threads have had this time too.
                    tries = 0;
                    i += 1;
                    continue;
                }
            }
            pause(tries, self.threads.len() - i);
            tries += 1;
        }
        Ok(())
    }

    /// Notes that the tracer does not wait for a thread any more.
    fn note_stop(&mut self) {
        if let Some(waits) = &mut self.waits {
            waits.close(self.pid);
        }
    }

    /// Polls the threads after the `i`-th. Returns `true` if one of them has stopped or ended: the processors are busy with stops, so the
    /// wait starts anew.
    fn others_came(&mut self, i: usize) -> Result<bool, ProcessError> {
        let mut came = false;
        for other in i + 1..self.threads.len() {
            came |= self.threads[other].state == TraceeState::Running && self.poll(other)?;
        }
        Ok(came)
    }

    /// Whether a thread sleeps uninterruptibly in the kernel.
    fn is_sleeper(&self, i: usize) -> bool {
        procfs::thread_stat(self.threads[i].tid).is_some_and(|s| s.state == b'D')
    }

    /// State of a thread that did not stop, with its position in user space. `None` if it has stopped by now.
    fn where_asleep(&self, i: usize) -> Result<Option<TraceeState>, ProcessError> {
        let tid = self.threads[i].tid;
        let place = procfs::in_kernel(tid);
        // Read the state after the position: a thread that is held by now also has a position in the kernel.
        match procfs::thread_stat(tid) {
            None => return Ok(Some(TraceeState::Gone)),
            Some(s) if s.is_dead() => return Ok(Some(TraceeState::Gone)),
            Some(s) if s.state == b't' => return Ok(None),
            Some(_) => {}
        }
        match place {
            // This thread may execute another program and then run under the id and with the privileges of the main thread. So it does not
            // count as held.
            Some(KernelSleep::Asleep { nr, .. }) if procfs::may_exec(nr) => {
                Err(ProcessError::Unstoppable { tid, pc: None, waited: self.patience })
            }
            Some(KernelSleep::Asleep { sp, pc, .. }) => Ok(Some(TraceeState::Asleep { pc: Avma(pc), sp: Avma(sp) })),
            _ => Err(ProcessError::Unstoppable { tid, pc: None, waited: self.patience }),
        }
    }

    /// The registers of a held thread. `None` if it has been killed since.
    pub(crate) fn regs(&mut self, i: usize) -> Result<Option<Regs>, ProcessError> {
        let thread = &self.threads[i];
        if thread.regs.is_some() || !matches!(thread.state, TraceeState::Stopped(_)) {
            return Ok(thread.regs);
        }
        match sys::get_regs(thread.tid) {
            Ok(regs) => {
                self.threads[i].regs = Some(regs);
                Ok(Some(regs))
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = TraceeState::Gone;
                Ok(None)
            }
            Err(source) => Err(self.error("GETREGS", self.threads[i].tid, source)),
        }
    }

    /// Whether a traced thread is not held. Such a thread may execute another program and then have the main thread's id.
    pub(crate) fn has_loose_threads(&self) -> bool {
        self.threads.iter().any(|t| t.state == TraceeState::Running)
    }

    /// Sets the registers of a held thread. A thread that has been killed since needs none.
    pub(crate) fn set_regs(&mut self, i: usize, regs: &Regs) -> Result<(), ProcessError> {
        let tid = self.threads[i].tid;
        if tid.0 == self.pid.0 && self.has_loose_threads() {
            // A thread that has executed another program has the main thread's id. That requires the end of the held main thread, and takes
            // much longer than the time between two requests. So if the registers are unchanged, this is still the main thread.
            let known = self.threads[i].regs.map(|r| (r.rip, r.rsp, r.rax, r.orig_rax));
            let now = sys::get_regs(tid).ok().map(|r| (r.rip, r.rsp, r.rax, r.orig_rax));
            if known.is_some() && known != now {
                self.threads[i].state = TraceeState::Gone;
                return Err(ProcessError::Replaced(self.pid));
            }
        }
        match sys::set_regs(tid, regs) {
            Ok(()) => {
                self.threads[i].regs = Some(*regs);
                Ok(())
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = TraceeState::Gone;
                Ok(())
            }
            Err(source) => Err(self.error("SETREGS", tid, source)),
        }
    }

    /// Lets one held thread run for a moment, and holds it again, so that it leaves instructions in which no thread may be.
    pub(crate) fn nudge(&mut self, i: usize) -> Result<bool, ProcessError> {
        self.resume(i, 0)?;
        self.threads[i].state = TraceeState::Running;
        self.threads[i].regs = None;
        thread::sleep(Duration::from_micros(5));
        self.stop(i)
    }

    /// Lets one held thread run until it returns from a signal handler, at most until the deadline, and holds it again before its next
    /// instruction. Meanwhile its system calls and signals take place as ever. A handler that leaves by a jump runs until the deadline.
    pub(crate) fn finish_handler(&mut self, i: usize, deadline: Instant) -> Result<(), ProcessError> {
        self.repair(i)?; // The stop may have ended a system call of the handler.
        let tid = self.threads[i].tid;
        self.threads[i].state = TraceeState::Running;
        self.threads[i].regs = None;
        let (mut signal, mut tries) = (0, 0);
        self.resume_to_syscall(i, signal)?;
        while Instant::now() < deadline {
            signal = match sys::try_wait(tid) {
                Ok(None) => {
                    pause(tries, 0);
                    tries += 1;
                    continue;
                }
                Ok(Some(WaitStatus::Signal(signal))) => signal,
                Ok(Some(WaitStatus::Syscall)) if returns_from_handler(tid) => {
                    // A thread that is asked before it continues stops right after the call.
                    self.interrupt(i)?;
                    self.resume(i, 0)?;
                    return self.wait_all();
                }
                Ok(Some(WaitStatus::Syscall)) => 0,
                Ok(Some(WaitStatus::EventStop(signal))) => {
                    self.threads[i].state = TraceeState::Stopped(signal);
                    return Ok(());
                }
                Ok(Some(WaitStatus::Event(_))) => return self.executed_another(i),
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => {
                    self.threads[i].state = TraceeState::Gone;
                    return Ok(());
                }
                Err(source) => return Err(self.error("wait", tid, source)),
            };
            tries = 0;
            self.resume_to_syscall(i, signal)?;
        }
        self.stop(i).map(|_| ())
    }

    /// Repairs a held thread's system call and releases the thread. A thread that did not stop stays traced until the tracer ends.
    pub(crate) fn release(&mut self, i: usize) -> Result<(), ProcessError> {
        if matches!(self.threads[i].state, TraceeState::Asleep { .. } | TraceeState::Running) {
            return Ok(());
        }
        self.repair(i)?;
        let thread = self.threads.swap_remove(i);
        self.places.remove(&thread.tid);
        if let Some(moved) = self.threads.get(i) {
            self.places.insert(moved.tid, i);
        }
        if matches!(thread.state, TraceeState::Stopped(_))
            && let Err(e) = sys::detach(thread.tid, 0)
            && e.raw_os_error() != Some(libc::ESRCH)
        {
            return Err(self.error("DETACH", thread.tid, e));
        }
        if !self.threads.iter().any(|t| matches!(t.state, TraceeState::Stopped(_))) {
            self.end_of_hold();
        }
        Ok(())
    }

    /// Releases all held threads. The end of the tracer thread would also release them, a little later than the hold is said to end. Without a
    /// real-time priority, the first threads would take the tracer's processor, and the others would be held for whole time slices.
    fn release_all(&mut self) {
        for thread in &mut self.threads {
            // A thread that cannot be released now is released when this tracer ends.
            if matches!(thread.state, TraceeState::Stopped(_)) && sys::detach(thread.tid, 0).is_ok() {
                thread.state = TraceeState::Gone;
            }
        }
    }

    fn end_of_hold(&mut self) {
        if let Some(began) = self.began.take() {
            let ended = Instant::now();
            let waited = self.waits.take().map_or(Duration::ZERO, |waits| waits.total(self.pid));
            self.holds.push(Hold { began, ended, waited });
        }
    }

    /// Fails if the present hold would be longer than the bound. The work that is still to be done takes `rest`, besides the release of all
    /// threads. Called before the target is changed.
    pub(crate) fn check_bound(&self, moves: usize, writes: usize) -> Result<(), ProcessError> {
        let (Some(bound), Some(began)) = (self.bound, self.began) else { return Ok(()) };
        let rest = rest(self.threads.len(), moves, writes);
        let without_waits = HoldFigures { held: began.elapsed(), waited: Duration::ZERO, rest };
        if !without_waits.exceed(bound) {
            return Ok(()); // The kernel need not be asked for the waits.
        }
        let waited = self.waits.as_ref().map_or(Duration::ZERO, |waits| waits.total(self.pid));
        let figures = HoldFigures { waited, ..without_waits };
        if figures.exceed(bound) {
            return Err(ProcessError::HoldTooLong { length: figures.length(), waited, bound });
        }
        Ok(())
    }

    /// Lifts the bound, for steps that cannot be given up any more.
    pub(crate) fn lift_bound(&mut self) {
        self.bound = None;
    }

    /// Makes the kernel repeat a held thread's system call if the engine's stop ended it.
    pub(crate) fn repair(&mut self, i: usize) -> Result<(), ProcessError> {
        if self.threads[i].state == TraceeState::Stopped(libc::SIGTRAP)
            && let Some(mut regs) = self.regs(i)?
            && crate::frame::repair_interrupted(&mut regs)
        {
            self.set_regs(i, &regs)?;
        }
        Ok(())
    }

    /// Calls [`Tracer::repair`] for every held thread, right before the release.
    pub(crate) fn repair_all(&mut self) -> Result<(), ProcessError> {
        (0..self.threads.len()).try_for_each(|i| self.repair(i))
    }
}
