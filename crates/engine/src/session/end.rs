//! The end of a target, and its listeners.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::api::Ended;

/// A listener to the end of a target.
pub type AtEnd = dyn Fn() + Send + Sync;

/// The end of a target, and its listeners.
#[derive(Default)]
pub(super) struct TargetEnd {
    known: OnceLock<Ended>,
    listeners: Mutex<Vec<Weak<AtEnd>>>,
}

impl TargetEnd {
    /// The end of the target; `None` until it is noticed.
    pub fn get(&self) -> Option<Ended> {
        self.known.get().copied()
    }

    /// Whether the end was noticed.
    pub fn is_known(&self) -> bool {
        self.known.get().is_some()
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<AtEnd>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener. A listener that is added after the end is called at once.
    pub fn add_listener(&self, tell: &Arc<AtEnd>) {
        let mut all = self.listeners();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(tell));
        drop(all);
        if self.is_known() {
            tell();
        }
    }

    /// Notes the end and calls the listeners. Later calls do not change the end.
    pub fn note(&self, ended: Ended) {
        let _ = self.known.set(ended);
        let all = std::mem::take(&mut *self.listeners());
        all.iter().filter_map(Weak::upgrade).for_each(|tell| tell());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const ENDED: Ended = Ended { status: Some(3), signal: None, exec: false };

    fn counting(calls: &Arc<AtomicU32>) -> Arc<AtEnd> {
        let calls = Arc::clone(calls);
        Arc::new(move || _ = calls.fetch_add(1, Ordering::Relaxed))
    }

    #[test]
    fn a_listener_is_called_once_if_it_still_exists() {
        let (end, calls) = (TargetEnd::default(), Arc::new(AtomicU32::new(0)));
        let (stays, goes) = (counting(&calls), counting(&calls));
        end.add_listener(&stays);
        end.add_listener(&goes);
        drop(goes);
        assert!(!end.is_known() && end.get().is_none());
        end.note(ENDED);
        end.note(ENDED);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_late_listener_is_called_at_once() {
        let (end, calls) = (TargetEnd::default(), Arc::new(AtomicU32::new(0)));
        end.note(ENDED);
        end.add_listener(&counting(&calls));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_first_end_counts() {
        let end = TargetEnd::default();
        end.note(ENDED);
        end.note(Ended { status: None, signal: Some(9), exec: false });
        assert_eq!(end.get().map(|ended| (ended.status, ended.signal)), Some((Some(3), None)));
    }
}
