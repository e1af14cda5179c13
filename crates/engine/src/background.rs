//! Threads for analysis: as many as there are processors, but below everybody else, so that the target does not feel them.

use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// What is added to the threads' niceness.
const NICE: i32 = 10;

/// Runs work that may use many threads. Never a stop: a tracer inherits its maker's priority.
pub fn in_background<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let pool = POOL.get_or_init(|| {
        let be_nice = |_| {
            // At normal priority it works as well.
            let _ = rustix::process::nice(NICE);
        };
        ThreadPoolBuilder::new().thread_name(|i| format!("analysis-{i}")).start_handler(be_nice).build().ok()
    });
    match pool {
        Some(pool) => pool.install(work),
        None => work(),
    }
}
