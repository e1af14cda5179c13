//! Two pools of threads: one for analysis, at lower priority so that the target is not slowed down, and one for quick work on whose result
//! a caller waits. On a crowded machine analysis is quick work too: a thread of lower priority would hardly ever run there. On a busy one,
//! the low priority holds for the first seconds.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ingraft_codegen::Spread;
use ingraft_process::ready_threads;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::patience::PatientThreads;
use crate::undertaking::Check;

/// Largest number of items that a thread takes at once. It is small because items differ in cost, and processors in their other work.
pub const ITEMS_AT_ONCE: usize = 32;

/// Largest number of threads for quick work: starting many more takes longer than they save.
const QUICK_MAX: usize = 16;

/// Time from which on an analysis goes on at the priority of other threads. A large program takes less on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ready threads for each processor from which on a machine is crowded. A thread of normal priority takes at most a ninth of the time of the
/// others there. A thread for analysis would get less than an eightieth of a processor, so that a user waits for minutes.
const CROWD: usize = 8;

/// Whether a machine with so many ready threads is crowded.
fn is_crowded(ready: usize, processors: usize) -> bool {
    ready > CROWD * processors
}

/// Number of processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs work that may use many threads, at lower priority unless the machine is crowded. Must not be used for a stop: a tracer inherits
/// the priority of the thread that creates it.
pub fn in_background<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    static THREADS: PatientThreads = PatientThreads::new();
    let make = || {
        let named = ThreadPoolBuilder::new().thread_name(|i| format!("analysis-{i}"));
        named.start_handler(|_| THREADS.join()).build().ok()
    };
    if ready_threads().is_some_and(|ready| is_crowded(ready, processors()))
        && let Some(quick) = quick()
    {
        return quick.install(work);
    }
    match POOL.get_or_init(make) {
        Some(pool) => THREADS.run(pool, PATIENCE, work),
        None => work(),
    }
}

/// The pool for quick work. Its threads have the priority of the first caller, so [`start`] is called before any thread lowers its own
/// priority. `None` if no threads can be created.
fn quick() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let make = || {
        let threads = processors().min(QUICK_MAX);
        ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("quick-{i}")).build().ok()
    };
    POOL.get_or_init(make).as_ref()
}

/// Runs work in the pool for quick work, or on the caller's thread if the pool is in use, because more threads than processors gain
/// nothing. Measured with 50 processes, two of them in parallel: up to 30 % slower when all work went through the pool.
fn share<R: Send>(pool: &ThreadPool, work: impl FnOnce(bool) -> R + Send) -> R {
    static BUSY: AtomicBool = AtomicBool::new(false);
    if BUSY.swap(true, Ordering::Acquire) {
        return work(false);
    }
    let _free = ClearOnDrop(&BUSY);
    pool.install(|| work(true))
}

/// Clears a flag when it is dropped, including by a panic.
struct ClearOnDrop<'a>(&'a AtomicBool);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Creates the threads for quick work, with the priority of the caller.
pub fn start() {
    quick();
}

/// Results of `look` for each item, in order. `look` must be quick. It does not run on the threads for analysis, because a thread of low
/// priority waits long on a busy machine.
pub fn each<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let check = Check::of_this_thread();
    let look = |item: &T| {
        check.pass(1);
        look(item)
    };
    match quick() {
        Some(pool) if items.len() > 2 * ITEMS_AT_ONCE => share(pool, |alone| match alone {
            true => items.par_iter().with_max_len(ITEMS_AT_ONCE).map(&look).collect(),
            false => items.iter().map(&look).collect(),
        }),
        _ => items.iter().map(look).collect(),
    }
}

/// Results of `look` for each item, in order, by the threads for analysis.
pub fn each_in_background<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let check = Check::of_this_thread();
    let look = |item: &T| {
        check.pass(1);
        look(item)
    };
    in_background(|| items.par_iter().with_max_len(ITEMS_AT_ONCE).map(look).collect())
}

/// Runs parts of code generation and of proofs on the threads for quick work.
pub struct Quick {
    check: Check,
    /// Number of points in all parts.
    points: u64,
}

impl Quick {
    /// Runs work of this thread that is about so many points.
    pub fn of(points: usize) -> Self {
        Quick { check: Check::of_this_thread(), points: points as u64 }
    }

    /// Unwinds if the insertion that this thread works for was given up.
    pub fn check(&self) {
        self.check.pass(0);
    }
}

impl Spread for Quick {
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let points = self.points / parts.max(1) as u64;
        let part = |number| {
            self.check.pass(0);
            part(number);
            self.check.pass(points);
        };
        match quick() {
            Some(pool) if parts > 1 => share(pool, |alone| match alone {
                true => (0..parts).into_par_iter().with_max_len(1).for_each(part),
                false => (0..parts).for_each(part),
            }),
            _ => (0..parts).for_each(part),
        }
    }

    fn check(&self) {
        self.check.pass(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_more_than_eight_ready_threads_a_processor() {
        assert!(!is_crowded(1, 1));
        assert!(!is_crowded(16, 2));
        assert!(is_crowded(17, 2));
        assert!(!is_crowded(400, 64));
    }

    #[test]
    fn answers_are_in_order_whoever_gives_them() {
        for count in [0, 1, 2 * ITEMS_AT_ONCE, 2 * ITEMS_AT_ONCE + 1, 10 * ITEMS_AT_ONCE, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let squares: Vec<usize> = items.iter().map(|n| n * n).collect();
            assert_eq!(each(&items, |n| n * n), squares);
        }
    }
}
