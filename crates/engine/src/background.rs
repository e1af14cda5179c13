//! Threads for analysis: as many as there are processors, but below everybody else, so that the target does not feel them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Fewer items are not worth a thread of their own.
const ITEMS_OF_THREAD: usize = 64;
/// A thread takes so many: they differ in what they cost, and processors in what else they do.
const ITEMS_AT_ONCE: usize = 32;

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

/// What a quick look at each item gives, in order: at many on all processors. Not on the threads for analysis: who is below everybody else waits
/// long on a busy machine.
pub fn each<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = (items.len() / ITEMS_OF_THREAD).clamp(1, processors);
    if threads == 1 {
        return items.iter().map(look).collect();
    }
    let next = AtomicUsize::new(0);
    let share = || {
        let taken = || {
            let from = next.fetch_add(ITEMS_AT_ONCE, Ordering::Relaxed);
            let part = items.get(from..)?.chunks(ITEMS_AT_ONCE).next()?;
            Some((from, part.iter().map(&look).collect::<Vec<R>>()))
        };
        std::iter::from_fn(taken).collect::<Vec<_>>()
    };
    let mut parts = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(share)).collect();
        let mut parts = share();
        for other in others {
            parts.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        parts
    });
    parts.sort_unstable_by_key(|(from, _)| *from);
    parts.into_iter().flat_map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_order_whoever_gives_them() {
        for count in [0, 1, 2 * ITEMS_OF_THREAD - 1, 2 * ITEMS_OF_THREAD, 10 * ITEMS_AT_ONCE, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let squares: Vec<usize> = items.iter().map(|n| n * n).collect();
            assert_eq!(each(&items, |n| n * n), squares);
        }
    }
}
