//! Threads that end while their tracer waits for the kernel.
//!
//! PTRACE_SEIZE of a thread waits as long as that thread executes another program. The execution waits until the program's other threads
//! have ended, and, for each of them that is traced, until its tracer has taken note. A tracer within PTRACE_SEIZE cannot, and both would
//! wait for ever. So the thread that waits for the tracer takes note in its place.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ingraft_model::{Pid, Tid};

use crate::procfs;
use crate::sys;

/// Time between two looks at a tracer. One that is within the same request at both is taken to wait.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// The threads that one tracer traces.
#[derive(Debug, Default)]
pub(crate) struct Wards {
    /// The threads, each with the process that the tracer works on.
    all: Mutex<Vec<(Pid, Tid)>>,
    /// Number of times that PTRACE_SEIZE has begun or ended: odd while the tracer is within it.
    seizes: AtomicU64,
}

thread_local! {
    /// Wards of the tracer that the calling thread is.
    static OWN: RefCell<Arc<Wards>> = RefCell::default();
}

impl Wards {
    /// Wards of the calling thread.
    pub(crate) fn own() -> Arc<Wards> {
        OWN.with_borrow(Arc::clone)
    }

    /// Makes these the calling thread's.
    pub(crate) fn adopt(self: &Arc<Self>) {
        OWN.set(Arc::clone(self));
    }

    /// Adds a thread that is traced from now on.
    pub(crate) fn add(&self, pid: Pid, tid: Tid) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((pid, tid));
    }

    /// Runs a request that may wait for a program's execution.
    pub(crate) fn during<R>(&self, request: impl FnOnce() -> R) -> R {
        self.seizes.fetch_add(1, Ordering::SeqCst);
        let result = request();
        self.seizes.fetch_add(1, Ordering::SeqCst);
        result
    }

    /// Takes note of threads that have ended, if the tracer is within the same request as at the last look.
    pub(crate) fn look(&self, last: &mut u64) {
        let now = self.seizes.load(Ordering::SeqCst);
        let waits = now % 2 == 1 && now == *last;
        *last = now;
        if waits {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            // the end of a program's first thread is its parent's to take, which may be this process; no execution waits for it
            let others = all.iter().filter(|(pid, tid)| pid.0 != tid.0 && procfs::is_thread_of(*pid, *tid));
            others.filter(|(_, tid)| procfs::thread_stat(*tid).is_some_and(|s| s.is_dead())).for_each(|(_, tid)| {
                sys::take_end(*tid);
            });
        }
    }
}
