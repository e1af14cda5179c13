//! Cache of results about single functions.

use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;

/// Largest number of functions whose results are kept; the cache is emptied when it is full.
const KEPT: usize = 4096;

/// Results about functions of one image, by the functions' first address.
#[derive(Debug)]
pub(crate) struct Memo<T>(RwLock<FxHashMap<u64, T>>);

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo(RwLock::default())
    }
}

impl<T: Clone> Memo<T> {
    /// Whether a result is in the cache.
    pub fn knows(&self, start: u64) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&start)
    }

    /// The cached result, or the result of `find`, which the cache keeps.
    pub fn get(&self, start: u64, find: impl FnOnce() -> T) -> T {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&start) {
            return known.clone();
        }
        let found = find();
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(start, found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_once_and_does_not_grow() {
        let memo = Memo::default();
        assert!(!memo.knows(7));
        assert_eq!(memo.get(7, || "found"), "found");
        assert!(memo.knows(7));
        assert_eq!(memo.get(7, || unreachable!("it is known")), "found");
        for start in 100..100 + 2 * KEPT as u64 {
            memo.get(start, || "found");
        }
        assert!(memo.0.read().unwrap().len() <= KEPT);
    }
}
