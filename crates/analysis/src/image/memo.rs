//! Cache of results about single functions.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use rustc_hash::FxHashMap;

/// Largest number of functions whose results are kept; the cache is emptied when it is full. A request for all functions asks for each
/// several times, so all functions of a large program have to fit: PostgreSQL has 13,760.
const KEPT: usize = 1 << 15;

/// Results about functions of one image, by the functions' first address.
#[derive(Debug)]
pub(crate) struct FunctionMemo<T>(RwLock<FxHashMap<u64, T>>);

impl<T> Default for FunctionMemo<T> {
    fn default() -> Self {
        FunctionMemo(RwLock::default())
    }
}

impl<T: Clone> FunctionMemo<T> {
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

/// Results about functions of one image that others hold, by the functions' first address. The cache itself keeps none.
#[derive(Debug)]
pub(crate) struct WeakCache<T>(RwLock<FxHashMap<u64, Weak<T>>>);

impl<T> Default for WeakCache<T> {
    fn default() -> Self {
        WeakCache(RwLock::default())
    }
}

impl<T> WeakCache<T> {
    /// The result that somebody holds, or the result of `find`.
    pub fn get<E>(&self, start: u64, find: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&start).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(known);
        }
        let found = Arc::new(find()?);
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if held.len() == held.capacity() {
            // The table is about to grow, which takes as long.
            held.retain(|_, known| known.strong_count() > 0);
        }
        held.insert(start, Arc::downgrade(&found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_found_once() {
        let held = WeakCache::default();
        let first = held.get(7, || Ok::<_, ()>("found")).unwrap();
        assert!(Arc::ptr_eq(&first, &held.get(7, || Err(())).unwrap()));
        drop(first);
        assert_eq!(held.get(7, || Err(())), Err(()));
        assert_eq!(held.get(7, || Ok::<_, ()>("again")).as_deref(), Ok(&"again"));
        for start in 100..10_000 {
            held.get(start, || Ok::<_, ()>("dropped")).unwrap();
        }
        assert!(held.0.read().unwrap().len() < 100);
    }

    #[test]
    fn it_asks_once_and_does_not_grow() {
        let memo = FunctionMemo::default();
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
