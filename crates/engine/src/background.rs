//! Threads for analysis: as many as there are processors, but below everybody else, so that the target does not feel them.

use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Fewer items are looked at by who asks.
const MANY: usize = 64;

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

/// What a quick look at each item gives, in order: at many on these threads, at few right here, as who is below everybody else waits long on a
/// busy machine.
pub fn each<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    match items.len() {
        ..MANY => items.iter().map(look).collect(),
        MANY.. => in_background(|| items.par_iter().map(&look).collect()),
    }
}
