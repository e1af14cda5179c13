//! The priority of the threads for analysis: lower than that of all others, so that no target is slowed down, until a user has waited long
//! enough. Beside busy threads, a thread of low priority may need a minute for the work of a second.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rayon::ThreadPool;
use rustix::process::{Pid, getpriority_process, nice, setpriority_process};
use rustix::thread::gettid;

/// Niceness that the threads for analysis add to their own. Beside a busy thread, such a thread gets a tenth of a processor.
const NICE: i32 = 10;

/// Threads of low priority, which get back the priority that they had while somebody has waited long for them.
#[derive(Debug)]
pub(crate) struct PatientThreads {
    state: Mutex<ThreadsState>,
}

#[derive(Debug)]
struct ThreadsState {
    /// The threads.
    threads: Vec<PatientThread>,
    /// Number of callers that have waited long.
    impatient: usize,
}

/// A thread, and its niceness when it was started, and usually.
#[derive(Debug)]
struct PatientThread {
    id: Pid,
    own: i32,
    low: i32,
}

impl PatientThreads {
    /// No threads.
    pub(crate) const fn new() -> Self {
        PatientThreads { state: Mutex::new(ThreadsState { threads: Vec::new(), impatient: 0 }) }
    }

    /// Lowers the priority of this thread, and takes it in. If the priority cannot be lowered, the thread keeps that which it has.
    pub(crate) fn join(&self) {
        let id = gettid();
        if let (Ok(own), Ok(low)) = (getpriority_process(Some(id)), nice(NICE)) {
            self.change(|state| state.threads.push(PatientThread { id, own, low }));
        }
    }

    /// Runs work on a pool of these threads. If it takes longer than `patience`, the threads have the priority of other threads until it is done. A
    /// process without the right to raise a priority (CAP_SYS_NICE, RLIMIT_NICE) goes on with the low one.
    pub(crate) fn run<R: Send>(&self, pool: &ThreadPool, patience: Duration, work: impl FnOnce() -> R + Send) -> R {
        if pool.current_thread_index().is_some() {
            return work();
        }
        let (done, result) = mpsc::sync_channel(1);
        let found = pool.in_place_scope(|scope| {
            scope.spawn(move |_| drop(done.send(work())));
            match result.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) => {
                    let _raised = self.raise();
                    result.recv().ok()
                }
                found => found.ok(),
            }
        });
        // If the work has panicked, the scope has handed that on.
        found.unwrap_or_else(|| std::panic::resume_unwind(Box::new("work without a result")))
    }

    /// Raises the priority of the threads, until the result is dropped.
    fn raise(&self) -> RaisedThreads<'_> {
        self.change(|state| {
            state.impatient += 1;
            state.set(|thread| thread.own);
        });
        RaisedThreads(self)
    }

    fn change(&self, change: impl FnOnce(&mut ThreadsState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl ThreadsState {
    /// Sets the niceness of all threads.
    fn set(&self, niceness: impl Fn(&PatientThread) -> i32) {
        for thread in &self.threads {
            // If that fails, the work goes on more slowly.
            let _ = setpriority_process(Some(thread.id), niceness(thread));
        }
    }
}

/// Threads whose priority was raised.
struct RaisedThreads<'t>(&'t PatientThreads);

impl Drop for RaisedThreads<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            state.impatient -= 1;
            if state.impatient == 0 {
                state.set(|thread| thread.low);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use rayon::ThreadPoolBuilder;

    fn niceness() -> i32 {
        getpriority_process(Some(gettid())).expect("this thread")
    }

    fn pool(threads: &Arc<PatientThreads>) -> ThreadPool {
        let its = Arc::clone(threads);
        ThreadPoolBuilder::new().num_threads(2).start_handler(move |_| its.join()).build().expect("threads")
    }

    #[test]
    fn threads_have_a_low_priority_until_somebody_has_waited_long() {
        let threads = Arc::new(PatientThreads::new());
        let pool = pool(&threads);
        let own = niceness();
        let low = threads.run(&pool, Duration::MAX, niceness);
        let nicest = 19;
        assert_eq!(low, nicest.min(own + NICE));
        if !may_come_back_to(own) {
            println!("skipped: this user may not raise the priority of a thread");
            return;
        }
        let raised = threads.run(&pool, Duration::ZERO, || {
            while niceness() != own {
                std::thread::yield_now();
            }
            threads.run(&pool, Duration::ZERO, niceness)
        });
        assert_eq!(raised, own, "within the work, too");
        assert_eq!(threads.run(&pool, Duration::MAX, niceness), low);
    }

    /// Whether a thread of this process may come back to this niceness from a higher one.
    fn may_come_back_to(own: i32) -> bool {
        let try_it = move || nice(1).is_ok() && setpriority_process(Some(gettid()), own).is_ok();
        std::thread::spawn(try_it).join().unwrap_or(false)
    }

    #[test]
    fn a_panic_in_the_work_reaches_the_caller() {
        let threads = Arc::new(PatientThreads::new());
        let pool = pool(&threads);
        let broken = || threads.run(&pool, Duration::MAX, || -> u8 { std::panic::resume_unwind(Box::new(7_u8)) });
        let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(broken)).expect_err("a panic");
        assert_eq!(payload.downcast_ref::<u8>(), Some(&7));
        assert_eq!(threads.run(&pool, Duration::MAX, || 3), 3);
    }
}
