//! One tracer thread and the threads that it holds. All ptrace requests of an operation come from one thread made for it;
//! when that thread ends, the kernel lets all of them go at once.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ingraft_model::{Avma, Pid, Tid};

use crate::error::{Denial, Error};
use crate::holds::Hold;
use crate::procfs::{self, InKernel};
use crate::sharers::Sharers;
use crate::sys::{self, Regs, Status};
use crate::wards::{self, Wards};

/// Time for which a stop waits while no thread comes in. Later attempts wait longer: on a loaded machine a thread that is ready to run may
/// not get a processor in time.
pub(crate) const STOP_WAIT: Duration = Duration::from_millis(50);
const STOP_WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest time that the end of an operation waits for a thread that did not stop in time, to repair its system call.
const LATE_WAIT: Duration = Duration::from_secs(5);
/// Time after which a stop no longer waits for a thread that sleeps uninterruptibly: it cannot reach user space before our release.
const SLEEPER_WAIT: Duration = Duration::from_millis(2);
/// Name of a tracer's thread.
const THREAD_NAME: &str = "ingraft-tracer";
/// Time for which a thread is waited for that another operation holds.
const OTHERS_WAIT: Duration = Duration::from_millis(500);
/// Number of rounds of stopping: new threads may keep appearing while others are stopped, and no program needs this many.
const ROUNDS: usize = 100;

/// Options of tracing: a thread that executes another program stops before its first instruction there.
const OPTIONS: usize = sys::TRACE_SYS_GOOD | sys::TRACE_EXEC;

/// State of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Runs, or is about to stop.
    Running,
    /// Held. The value is the signal of a group-stop, or SIGTRAP.
    Stopped(i32),
    /// Did not stop: sleeps in the kernel, with its user space at `pc` and `sp`. It cannot go on there before our release.
    Asleep { pc: Avma, sp: Avma },
    /// Ended.
    Gone,
}

/// A thread that we trace.
#[derive(Debug)]
pub(crate) struct Tracee {
    pub(crate) tid: Tid,
    pub(crate) state: State,
    /// Registers of the thread, once read in this stop.
    pub(crate) regs: Option<Regs>,
    /// Whether the engine asked it to stop.
    interrupted: bool,
}

/// The threads of one process that the calling thread traces.
#[derive(Debug)]
pub(crate) struct Tracer {
    pub(crate) pid: Pid,
    pub(crate) threads: Vec<Tracee>,
    /// Places of these threads in `threads`.
    places: HashMap<Tid, usize>,
    wards: Arc<Wards>,
    sharers: Sharers,
    patience: Duration,
    /// Time at which the first of the held threads was interrupted. If only one thread was interrupted, the last time at which it was seen
    /// to run.
    began: Option<Instant>,
    /// Whether no other thread than the first has been interrupted since `began`.
    alone: bool,
    holds: Vec<Hold>,
}

thread_local! {
    /// A tracer that outlives single operations: the one of a started program.
    static HELD: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

/// Whether the calling thread works with the threads of a process that it holds.
pub(crate) fn is_held(pid: Pid) -> bool {
    HELD.with_borrow(|held| held.as_ref().is_some_and(|tracer| tracer.pid == pid))
}

/// Runs `work` with a tracer of a process: the one that the calling thread holds already, or one on a new thread. Returns also the times at
/// which threads were held.
pub(crate) fn with_tracer<R: Send>(
    pid: Pid,
    work: impl FnOnce(&mut Tracer) -> R + Send,
) -> Result<(R, Vec<Hold>), Error> {
    let held = HELD.with_borrow_mut(|h| h.take_if(|t| t.pid == pid));
    if let Some(mut tracer) = held {
        let result = work(&mut tracer);
        HELD.set(Some(tracer));
        return Ok((result, Vec::new())); // it was held before, and still is
    }
    on_own_thread(|| {
        sys::precise_sleeps();
        sys::raise_priority();
        let mut tracer = Tracer::new(pid);
        let result = work(&mut tracer);
        tracer.settle();
        tracer.release_all();
        tracer.end_of_hold();
        (result, tracer.holds)
    })
}

/// Makes `tracer` the one that operations of the calling thread use, for the time of `work`.
pub(crate) fn while_held<R>(tracer: &mut Tracer, work: impl FnOnce() -> R) -> R {
    let mine = std::mem::replace(tracer, Tracer::new(tracer.pid));
    HELD.set(Some(mine));
    let result = work();
    if let Some(mine) = HELD.take() {
        *tracer = mine;
    }
    result
}

/// Runs `work` on a thread of its own, and returns when that thread has left the kernel, with all that it traced released.
pub(crate) fn on_own_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, Error> {
    let own = |source| Error::Own { what: "start a thread", source };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(THREAD_NAME.into());
        let wards = Arc::new(Wards::default());
        let (its_wards, (end, ended)) = (Arc::clone(&wards), sync_channel::<()>(0));
        let run = move || {
            its_wards.adopt();
            let result = (sys::own_tid(), work());
            drop(end);
            result
        };
        let handle = builder.spawn_scoped(scope, run).map_err(own)?;
        let mut last = 0;
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wards::TICK) {
            wards.look(&mut last);
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

/// Pauses between two looks at a thread that is to stop, with `others` more threads to look at after it. The thread stops within
/// microseconds where a processor is free, so the first looks follow at once. Otherwise it needs our processor, so the later ones sleep:
/// yielding counts as having used one's share, and at raised priority yields to nobody. A nap costs as much as several threads need to
/// stop, so it lasts until many of them have. Each is longer than the last: the timer of a short one can be over before the processor has
/// been given away.
pub(crate) fn pause(tries: u32, others: usize) {
    if let Some(naps) = tries.checked_sub(LOOKS) {
        let of_others = (2 * others as u64).min(200);
        thread::sleep(Duration::from_micros((10 << naps.min(7)).max(of_others)));
    }
}

/// Number of looks at a thread without a nap.
pub(crate) const LOOKS: u32 = 26;
/// Number of naps, of some milliseconds together, that a thread is given whatever the clock says.
const NAPS: u32 = 8;

impl Tracer {
    pub(crate) fn new(pid: Pid) -> Self {
        Tracer {
            pid,
            threads: Vec::new(),
            places: HashMap::new(),
            wards: Wards::own(),
            sharers: Sharers::default(),
            patience: STOP_WAIT,
            began: None,
            alone: false,
            holds: Vec::new(),
        }
    }

    pub(crate) fn index_of(&self, tid: Tid) -> Option<usize> {
        self.places.get(&tid).copied()
    }

    fn error(&self, request: &'static str, tid: Tid, source: io::Error) -> Error {
        let ended = matches!(source.raw_os_error(), Some(libc::ESRCH | libc::ECHILD));
        if ended && procfs::stat(self.pid).map_or(true, |s| s.is_dead()) {
            return Error::Gone(self.pid);
        }
        Error::Ptrace { request, tid, source }
    }

    /// Wraps the result of a request on a held thread.
    pub(crate) fn check<T>(&self, request: &'static str, tid: Tid, result: io::Result<T>) -> Result<T, Error> {
        result.map_err(|source| self.error(request, tid, source))
    }

    /// Starts tracing a thread; it runs on. `None` if it has ended. `unfiltered`: with its system call filter suspended.
    pub(crate) fn seize(&mut self, tid: Tid, unfiltered: bool) -> Result<Option<usize>, Error> {
        if let Some(place) = self.index_of(tid) {
            return Ok(Some(place));
        }
        let options = OPTIONS | if unfiltered { sys::SUSPEND_SECCOMP } else { 0 };
        let begin = Instant::now();
        loop {
            match self.wards.during(|| sys::seize(tid, options)) {
                Ok(()) => return Ok(Some(self.add(tid, State::Running))),
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
                Err(source) => return Err(self.error("SEIZE", tid, source)),
            }
            // a thread that has ended but is not yet reaped says EPERM too
            if procfs::thread_stat(tid).is_none_or(|s| s.is_dead()) {
                return Ok(None);
            }
            let tracer = procfs::thread_status(self.pid, tid).map_or(0, |s| s.tracer);
            if tracer == 0 && unfiltered && self.wards.during(|| sys::seize(tid, OPTIONS)).is_ok() {
                self.add(tid, State::Running);
                return Err(Error::Seccomp);
            }
            if tracer == sys::own_tid().0 {
                // A thread of ours under another one's id: it has executed another program, and the id of the main thread is now its own.
                return Err(Error::Replaced(self.pid));
            }
            // Another operation of ours, or of another engine that looks at this target, ends in a moment.
            let passes = tracer != 0 && procfs::comm(Pid(tracer)).is_none_or(|name| name == THREAD_NAME);
            if !passes || begin.elapsed() > OTHERS_WAIT {
                let why = crate::access::explain(self.pid);
                return Err(why.unwrap_or(Denial::Forbidden(self.pid)).into());
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Adds a thread that is being traced, and returns its place in `threads`.
    pub(crate) fn add(&mut self, tid: Tid, state: State) -> usize {
        self.places.insert(tid, self.threads.len());
        self.wards.add(self.pid, tid);
        self.threads.push(Tracee { tid, state, regs: None, interrupted: false });
        self.threads.len() - 1
    }

    /// Starts tracing all threads, without stopping any. Once the first thread was asked to stop, also traces the processes that share
    /// their memory: one that waits for its own program (vfork) must not start it while we trace it, as the kernel may then deny that
    /// program its privileges. Returns the number of new threads.
    pub(crate) fn seize_all(&mut self) -> Result<usize, Error> {
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

    /// Starts tracing a thread of a process that shares the target's memory. `false` if it no longer does: by now it may run a program that
    /// nobody here may trace.
    fn seize_sharer(&mut self, tid: Tid) -> Result<bool, Error> {
        match self.seize(tid, false) {
            Ok(place) => Ok(place.is_some()),
            Err(_) if !self.sharers.has(tid) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether other processes run in the target's memory, as far as was seen.
    pub(crate) fn has_sharers(&self) -> bool {
        self.sharers.any()
    }

    /// Stops the processes that share the target's memory, and returns the places of their threads. A process that a thread waits for
    /// (vfork) is left out: it runs as that thread, which does not run.
    pub(crate) fn stop_sharers(&mut self) -> Result<Vec<usize>, Error> {
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

    /// Releases processes that have memory of their own by now.
    fn release_strangers(&mut self) -> Result<(), Error> {
        let mut i = 0;
        while i < self.threads.len() {
            let thread = &self.threads[i];
            let held = matches!(thread.state, State::Stopped(_));
            if held && !procfs::is_thread_of(self.pid, thread.tid) && !self.sharers.has(thread.tid) {
                self.release(i)?;
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// Sets the patience of the `attempt`-th attempt (1 is the first).
    pub(crate) fn be_patient(&mut self, attempt: u32) {
        self.patience = (STOP_WAIT * attempt).min(STOP_WAIT_MAX);
    }

    /// Stops the threads that are traced already.
    pub(crate) fn stop_traced(&mut self) -> Result<(), Error> {
        for i in 0..self.threads.len() {
            if self.threads[i].state == State::Running {
                self.interrupt(i)?;
            }
        }
        self.wait_all()
    }

    /// Stops every thread, new ones included, until no new one appears.
    pub(crate) fn stop_all(&mut self) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            self.stop_traced()?;
            if self.seize_all()? == 0 {
                if self.sharers.any() {
                    self.release_strangers()?;
                }
                return if self.threads.iter().all(|t| t.state == State::Gone) {
                    Err(Error::Gone(self.pid))
                } else {
                    Ok(())
                };
            }
        }
        Err(Error::Unstoppable { tid: Tid(self.pid.0), pc: None, waited: self.patience })
    }

    /// Stops one thread that we trace and that sleeps, if a processor is free for it.
    pub(crate) fn stop_soon(&mut self, i: usize) -> Result<bool, Error> {
        let patience = std::mem::replace(&mut self.patience, SLEEPER_WAIT);
        let stopped = self.stop(i);
        self.patience = patience;
        stopped
    }

    /// Stops one thread that we trace. `false` if it has ended.
    pub(crate) fn stop(&mut self, i: usize) -> Result<bool, Error> {
        if self.threads[i].state == State::Running {
            self.interrupt(i)?;
            self.wait_all()?;
        }
        Ok(matches!(self.threads[i].state, State::Stopped(_)))
    }

    fn interrupt(&mut self, i: usize) -> Result<(), Error> {
        self.alone = self.began.is_none();
        self.began.get_or_insert_with(Instant::now);
        self.threads[i].interrupted = true;
        let tid = self.threads[i].tid;
        match sys::interrupt(tid) {
            Ok(()) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = State::Gone;
                Ok(())
            }
            Err(source) => Err(self.error("INTERRUPT", tid, source)),
        }
    }

    /// Fetches the next event of a thread. `true` if its state is settled.
    fn poll(&mut self, i: usize) -> Result<bool, Error> {
        let tid = self.threads[i].tid;
        let before = self.alone.then(Instant::now);
        match sys::try_wait(tid) {
            Ok(None) => {
                self.began = before.or(self.began);
                Ok(false)
            }
            Ok(Some(Status::EventStop(sig))) => {
                self.threads[i].state = State::Stopped(sig);
                Ok(true)
            }
            Ok(Some(Status::Signal(sig))) => {
                // The signal is delivered at once, and not lost when we end: the thread stops again before its handler's first instruction.
                self.interrupt(i)?;
                self.resume(i, sig)?;
                Ok(false)
            }
            Ok(Some(Status::Event(_))) => {
                let own = tid.0 == self.pid.0 || procfs::is_thread_of(self.pid, tid);
                let replaced = self.leave_to_exec(i);
                // a process that shared the memory has its own now
                if own { Err(replaced) } else { Ok(true) }
            }
            Ok(Some(Status::Syscall)) => {
                self.interrupt(i)?;
                self.resume(i, 0)?;
                Ok(false)
            }
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => {
                self.threads[i].state = State::Gone;
                Ok(true)
            }
            Err(source) => Err(self.error("wait", tid, source)),
        }
    }

    /// Releases a thread that has executed another program, which is not ours to touch: it goes on there. The other threads have ended with
    /// the old one.
    pub(crate) fn leave_to_exec(&mut self, i: usize) -> Error {
        let thread = &mut self.threads[i];
        thread.state = State::Gone;
        thread.regs = None;
        let _ = sys::detach(thread.tid, 0); // it was killed meanwhile
        Error::Replaced(self.pid)
    }

    /// Repairs system calls before the end of an operation, also of one that failed: no thread leaves its system call early because it was
    /// asked to stop. A thread that waits for a processor stops late; meanwhile the others go on.
    fn settle(&mut self) {
        for i in 0..self.threads.len() {
            let _ = self.repair(i); // a thread that is gone needs nothing
        }
        let is_late = |t: &Tracee| t.interrupted && matches!(t.state, State::Running | State::Asleep { .. });
        if !self.threads.iter().any(is_late) {
            return;
        }
        let mut i = 0;
        while i < self.threads.len() {
            // A thread that cannot be released now is released when this tracer ends.
            if !matches!(self.threads[i].state, State::Stopped(_)) || self.release(i).is_err() {
                i += 1;
            }
        }
        let begin = Instant::now();
        let mut tries = 0;
        while begin.elapsed() < LATE_WAIT && self.threads.iter().any(is_late) {
            for i in 0..self.threads.len() {
                if is_late(&self.threads[i]) && (self.is_sleeper(i) || self.poll(i).unwrap_or(true)) {
                    // an uninterruptible sleep does not end early
                    self.threads[i].interrupted = false;
                    let _ = self.repair(i);
                }
            }
            pause(tries, 0);
            tries += 1;
        }
    }

    fn resume(&mut self, i: usize, signal: i32) -> Result<(), Error> {
        let tid = self.threads[i].tid;
        match sys::cont(tid, signal as usize) {
            Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(self.error("CONT", tid, e)),
            _ => Ok(()), // killed meanwhile: the next wait tells
        }
    }

    /// Waits for every thread that was asked to stop. Gives up when no thread has come in for some time, and for some looks: a machine that
    /// is busy or was suspended may keep the processors from us and from the thread at once.
    fn wait_all(&mut self) -> Result<(), Error> {
        let mut progress = Instant::now();
        let mut tries = 0u32;
        let mut i = 0;
        while i < self.threads.len() {
            let is_settled = self.threads[i].state != State::Running;
            let idle = if is_settled { Duration::ZERO } else { progress.elapsed() }; // up to the look, which may be much later
            if is_settled || self.poll(i)? {
                i += 1;
                tries = 0;
                progress = Instant::now();
                continue;
            }
            if idle > SLEEPER_WAIT && tries >= LOOKS + NAPS && (idle > self.patience || self.is_sleeper(i)) {
                if self.others_came(i)? {
                    tries = 0;
                    progress = Instant::now();
                    continue;
                }
                if let Some(state) = self.where_asleep(i)? {
                    self.threads[i].state = state;
                    // the others have had their time as well
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

    /// Fetches the events of the threads after the `i`-th. `true` if one of them has settled: processors are busy with stopping, and
    /// patience begins anew.
    fn others_came(&mut self, i: usize) -> Result<bool, Error> {
        let mut came = false;
        for other in i + 1..self.threads.len() {
            came |= self.threads[other].state == State::Running && self.poll(other)?;
        }
        Ok(came)
    }

    /// Whether a thread sleeps uninterruptibly in the kernel.
    fn is_sleeper(&self, i: usize) -> bool {
        procfs::thread_stat(self.threads[i].tid).is_some_and(|s| s.state == b'D')
    }

    /// State of a thread that did not stop, with its position in user space. `None` if it has stopped just now.
    fn where_asleep(&self, i: usize) -> Result<Option<State>, Error> {
        let tid = self.threads[i].tid;
        let place = procfs::in_kernel(tid);
        // Ask afterwards whether that was a sleep: a held thread stands in the kernel as well.
        match procfs::thread_stat(tid) {
            None => return Ok(Some(State::Gone)),
            Some(s) if s.is_dead() => return Ok(Some(State::Gone)),
            Some(s) if s.state == b't' => return Ok(None),
            Some(_) => {}
        }
        match place {
            // This thread may come back in another program, under the id of the main thread and with its privileges. It is not held.
            Some(InKernel::Asleep { nr, .. }) if procfs::may_exec(nr) => {
                Err(Error::Unstoppable { tid, pc: None, waited: self.patience })
            }
            Some(InKernel::Asleep { sp, pc, .. }) => Ok(Some(State::Asleep { pc: Avma(pc), sp: Avma(sp) })),
            _ => Err(Error::Unstoppable { tid, pc: None, waited: self.patience }),
        }
    }

    /// The registers of a held thread. `None` if it was killed meanwhile.
    pub(crate) fn regs(&mut self, i: usize) -> Result<Option<Regs>, Error> {
        let thread = &self.threads[i];
        if thread.regs.is_some() || !matches!(thread.state, State::Stopped(_)) {
            return Ok(thread.regs);
        }
        match sys::get_regs(thread.tid) {
            Ok(regs) => {
                self.threads[i].regs = Some(regs);
                Ok(Some(regs))
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = State::Gone;
                Ok(None)
            }
            Err(source) => Err(self.error("GETREGS", self.threads[i].tid, source)),
        }
    }

    /// Whether a traced thread is not held. While that is so, it may execute another program and appear there as the main thread.
    pub(crate) fn has_loose_threads(&self) -> bool {
        self.threads.iter().any(|t| t.state == State::Running)
    }

    /// Sets the registers of a held thread; one that was killed meanwhile needs none.
    pub(crate) fn set_regs(&mut self, i: usize, regs: &Regs) -> Result<(), Error> {
        let tid = self.threads[i].tid;
        if tid.0 == self.pid.0 && self.has_loose_threads() {
            // The main thread's id belongs to any thread that has executed another program. That takes the end of this thread and much
            // longer than from one request to the next, so a thread that still stands where it did is this one.
            let known = self.threads[i].regs.map(|r| (r.rip, r.rsp, r.rax, r.orig_rax));
            let now = sys::get_regs(tid).ok().map(|r| (r.rip, r.rsp, r.rax, r.orig_rax));
            if known.is_some() && known != now {
                self.threads[i].state = State::Gone;
                return Err(Error::Replaced(self.pid));
            }
        }
        match sys::set_regs(tid, regs) {
            Ok(()) => {
                self.threads[i].regs = Some(*regs);
                Ok(())
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.threads[i].state = State::Gone;
                Ok(())
            }
            Err(source) => Err(self.error("SETREGS", tid, source)),
        }
    }

    /// Lets one held thread run on a little, and holds it again: so it leaves a few instructions in which no thread may be.
    pub(crate) fn nudge(&mut self, i: usize) -> Result<bool, Error> {
        self.resume(i, 0)?;
        self.threads[i].state = State::Running;
        self.threads[i].regs = None;
        thread::sleep(Duration::from_micros(5));
        self.stop(i)
    }

    /// Releases one held thread, with its interrupted system call repaired. A thread that did not stop stays traced until the tracer ends.
    pub(crate) fn release(&mut self, i: usize) -> Result<(), Error> {
        if matches!(self.threads[i].state, State::Asleep { .. } | State::Running) {
            return Ok(());
        }
        self.repair(i)?;
        let thread = self.threads.swap_remove(i);
        self.places.remove(&thread.tid);
        if let Some(moved) = self.threads.get(i) {
            self.places.insert(moved.tid, i);
        }
        if matches!(thread.state, State::Stopped(_))
            && let Err(e) = sys::detach(thread.tid, 0)
            && e.raw_os_error() != Some(libc::ESRCH)
        {
            return Err(self.error("DETACH", thread.tid, e));
        }
        if !self.threads.iter().any(|t| matches!(t.state, State::Stopped(_))) {
            self.end_of_hold();
        }
        Ok(())
    }

    /// Releases all held threads. The end of this thread would do so as well, but at a time that nobody could tell.
    fn release_all(&mut self) {
        for thread in &mut self.threads {
            // A thread that cannot be released now is released when this tracer ends.
            if matches!(thread.state, State::Stopped(_)) && sys::detach(thread.tid, 0).is_ok() {
                thread.state = State::Gone;
            }
        }
    }

    fn end_of_hold(&mut self) {
        if let Some(began) = self.began.take() {
            self.holds.push(Hold { began, ended: Instant::now() });
        }
    }

    /// Makes the kernel repeat a held thread's system call if our stop ended it.
    pub(crate) fn repair(&mut self, i: usize) -> Result<(), Error> {
        if self.threads[i].state == State::Stopped(libc::SIGTRAP)
            && let Some(mut regs) = self.regs(i)?
            && crate::frame::repair_interrupted(&mut regs)
        {
            self.set_regs(i, &regs)?;
        }
        Ok(())
    }

    /// [`Tracer::repair`] for every held thread, as the last thing before the release.
    pub(crate) fn repair_all(&mut self) -> Result<(), Error> {
        (0..self.threads.len()).try_for_each(|i| self.repair(i))
    }
}
