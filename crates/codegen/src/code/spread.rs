//! Parallel work without threads of this crate: the caller decides how independent parts are run.

use std::sync::{Mutex, PoisonError};

/// A way to run the independent parts of a piece of work. The number of parts depends on the work alone, so the result is the same on every
/// machine.
pub trait Spread: Sync {
    /// Runs `part(0)` to `part(parts - 1)`, each once, in any order and on any thread.
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync));

    /// Called between steps of the work. It may unwind, which ends work whose result nobody wants any more.
    fn check(&self) {}
}

/// Runs all parts on the caller's thread, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct OneThread;

impl Spread for OneThread {
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        (0..parts).for_each(part);
    }
}

/// Results of `work` for each item, in order.
pub(crate) fn map<T: Send, R: Send>(spread: &dyn Spread, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let cells: Vec<Mutex<(Option<T>, Option<R>)>> = items.into_iter().map(|t| Mutex::new((Some(t), None))).collect();
    spread.run(cells.len(), &|part| {
        let Some(cell) = cells.get(part) else { return };
        let taken = cell.lock().unwrap_or_else(PoisonError::into_inner).0.take();
        if let Some(item) = taken {
            let result = work(item);
            cell.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(result);
        }
    });
    cells.into_iter().filter_map(|cell| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Backwards;

    impl Spread for Backwards {
        fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
            (0..parts).rev().for_each(part);
        }
    }

    #[test]
    fn results_are_in_order_whoever_runs_first() {
        for spread in [&OneThread as &dyn Spread, &Backwards] {
            assert_eq!(map(spread, vec![1, 2, 3], |n| n * n), [1, 4, 9]);
            assert_eq!(map(spread, Vec::<u8>::new(), |n| n), []);
        }
    }
}
