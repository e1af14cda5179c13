//! Threads for analysis: as many as there are processors, but below everybody else, so that the target does not feel them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Fewer items are looked at by who asks.
const MANY: usize = 64;

/// What is added to the threads' niceness.
const NICE: i32 = 10;

/// So many are taken at once: they differ in what they cost, and processors in what else they do.
const AT_ONCE: usize = 32;

fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let start = || {
        let be_nice = |_| {
            // At normal priority it works as well.
            let _ = rustix::process::nice(NICE);
        };
        ThreadPoolBuilder::new().thread_name(|i| format!("analysis-{i}")).start_handler(be_nice).build().ok()
    };
    POOL.get_or_init(start).as_ref()
}

/// Runs work that may use many threads. Never a stop: a tracer inherits its maker's priority.
pub fn in_background<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match pool() {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// What a quick look at each item gives, in order: of few, or on one processor, right here; of many here as well, with the help of these threads, which
/// wait long on a busy machine.
pub fn each<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let helpers = pool().map_or(0, |pool| pool.current_num_threads().saturating_sub(1));
    let (Some(pool), 1.., MANY..) = (pool(), helpers, items.len()) else { return items.iter().map(look).collect() };
    let next = AtomicUsize::new(0);
    let share = || {
        let taken = || {
            let from = next.fetch_add(AT_ONCE, Ordering::Relaxed);
            let part = items.get(from..)?.chunks(AT_ONCE).next()?;
            Some((from, part.iter().map(&look).collect::<Vec<R>>()))
        };
        std::iter::from_fn(taken).collect::<Vec<_>>()
    };
    let helped = Mutex::new(Vec::new());
    let mut parts = pool.in_place_scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|_| {
                let parts = share();
                helped.lock().unwrap_or_else(PoisonError::into_inner).extend(parts);
            });
        }
        share()
    });
    parts.extend(helped.into_inner().unwrap_or_else(PoisonError::into_inner));
    parts.sort_unstable_by_key(|(from, _)| *from);
    parts.into_iter().flat_map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_order_whoever_gives_them() {
        for count in [0, 1, MANY - 1, MANY, MANY + 1, 10 * AT_ONCE, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let squares: Vec<usize> = items.iter().map(|n| n * n).collect();
            assert_eq!(each(&items, |n| n * n), squares);
        }
    }
}
