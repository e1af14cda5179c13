//! Threads that end while their tracer waits for the kernel.
//!
//! PTRACE_SEIZE of a thread waits while that thread executes another program. The execve waits until the program's other threads have ended
//! and, if they are traced, until their tracer has reaped them. A tracer inside of PTRACE_SEIZE cannot reap, so both would wait forever. So
//! the thread that waits for the tracer thread reaps them instead.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ingraft_model::{Pid, Tid};

use crate::procfs;
use crate::sys;

/// Time between two checks of a tracer. If it is inside of the same request at both checks, it counts as blocked.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Name of a thread that is a tracer.
pub(crate) const TRACER: &str = "ingraft-tracer";

/// Whether a thread is a tracer of this engine or of another one, which lets go of a process as soon as it can.
pub(crate) fn is_tracer_of_ingraft(tid: Tid) -> bool {
    procfs::comm(Pid(tid.0)).is_none_or(|name| name == TRACER)
}

/// The threads that one tracer traces.
#[derive(Debug, Default)]
pub(crate) struct TracedThreads {
    /// The threads, each with the process that the tracer works on.
    all: Mutex<Vec<(Pid, Tid)>>,
    /// Number of times that PTRACE_SEIZE has begun or ended. It is odd while the tracer is inside of PTRACE_SEIZE.
    seizes: AtomicU64,
}

thread_local! {
    /// The threads that the calling thread traces, if it is a tracer.
    static OWN: RefCell<Arc<TracedThreads>> = RefCell::default();
}

impl TracedThreads {
    /// The threads that the calling thread traces.
    pub(crate) fn own() -> Arc<TracedThreads> {
        OWN.with_borrow(Arc::clone)
    }

    /// Makes this the list of the calling thread.
    pub(crate) fn adopt(self: &Arc<Self>) {
        OWN.set(Arc::clone(self));
    }

    /// Adds a newly traced thread.
    pub(crate) fn add(&self, pid: Pid, tid: Tid) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((pid, tid));
    }

    /// Runs a request that may wait until a program's execve is complete.
    pub(crate) fn around_seize<R>(&self, request: impl FnOnce() -> R) -> R {
        self.seizes.fetch_add(1, Ordering::SeqCst);
        let result = request();
        self.seizes.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Reaps threads that have ended, if the tracer is inside of the same request as at the last check.
    pub(crate) fn reap_if_blocked(&self, last: &mut u64) {
        let now = self.seizes.load(Ordering::SeqCst);
        let waits = now % 2 == 1 && now == *last;
        *last = now;
        if waits {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            // The parent reaps a program's main thread, and may be this process. No execve waits for that.
            let others = all.iter().filter(|(pid, tid)| pid.0 != tid.0 && procfs::is_thread_of(*pid, *tid));
            others.filter(|(_, tid)| procfs::thread_stat(*tid).is_some_and(|s| s.is_dead())).for_each(|(_, tid)| {
                sys::take_end(*tid);
            });
        }
    }
}
