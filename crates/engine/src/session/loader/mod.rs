//! The loader's own hook: an empty function that the loader calls before and after it maps or unmaps libraries, so that debuggers can stop
//! there (`r_brk` in link.h). Woven code in this function tells the engine when to look at the mappings, without a stop. A thread that has
//! mapped a library waits there, for a bounded time, until the library is woven. So no code of a library runs uncounted, not even its
//! constructors. In a program that the engine started, the time is long enough for the analysis of a large library.

mod hook;
mod renewal;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::hook::{CountingHook, Handled, Hook, WaitingHook};
pub use self::renewal::{FILTERS_MAX, Renewal};

/// The code at the loader's hook, and the renewal of the wait of the thread that is there now.
#[derive(Default)]
pub struct Loader {
    /// State of the code; `None` if the hook is not woven.
    hook: Mutex<Option<Hook>>,
    /// Renewal of the wait of a thread that is at the hook, or may come there before the engine follows the loader.
    renewal: Mutex<Option<Renewal>>,
}

impl Loader {
    fn lock(&self) -> MutexGuard<'_, Option<Hook>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewal(&self) -> MutexGuard<'_, Option<Renewal>> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the code at the hook; `None` if the hook is not woven.
    pub fn hook(&self) -> Option<Hook> {
        *self.lock()
    }

    /// Notes that the hook was woven, or `None` that it is not woven any more.
    pub fn set(&self, hook: Option<Hook>) {
        *self.lock() = hook;
    }

    /// Notes the state of a hook at which threads wait, if it is still woven.
    pub fn update(&self, waits: WaitingHook) {
        if let Some(hook @ Hook::Waits(_)) = self.lock().as_mut() {
            *hook = Hook::Waits(waits);
        }
    }

    /// Whether the loader has worked since the last call, if threads only count their calls of the hook and a look is due. `sum` returns the
    /// present sum of a counter; `None` without a data area.
    pub fn has_worked(&self, now: Instant, sum: impl FnOnce(u32) -> Option<i64>) -> bool {
        let Some(Hook::Counts(counts)) = self.hook() else { return false };
        let Some(calls) = counts.due(now).and_then(sum) else { return false };
        match self.lock().as_mut() {
            Some(Hook::Counts(counts)) => counts.note(calls),
            Some(Hook::Waits(_)) | None => false,
        }
    }

    /// Lets the program make progress after a scan that ended at `now` and took `work`.
    pub fn rest(&self, now: Instant, work: Duration) {
        if let Some(Hook::Counts(counts)) = self.lock().as_mut() {
            counts.rest(now, work);
        }
    }

    /// Begins a renewal, in place of an earlier one.
    pub fn begin_renewal(&self, renewal: Option<Renewal>) {
        *self.renewal() = renewal;
    }

    /// Begins a renewal unless there is one.
    pub fn keep_renewal(&self, begin: impl FnOnce() -> Option<Renewal>) {
        let mut renewal = self.renewal();
        if renewal.is_none() {
            *renewal = begin();
        }
    }

    /// Ends the renewal: either nobody waits, or the thread that waits has its answer.
    pub fn end_renewal(&self) {
        self.renewal().take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hook_that_counts_is_looked_at() {
        let (loader, now) = (Loader::default(), Instant::now());
        let never = |_| -> Option<i64> { panic!("there is no counter") };
        assert!(!loader.has_worked(now, never));
        loader.set(Some(Hook::Waits(WaitingHook::default())));
        assert!(!loader.has_worked(now, never));
        loader.rest(now, Duration::from_secs(1));
        loader.set(Some(Hook::Counts(CountingHook::new(7, now))));
        assert!(loader.has_worked(now, |counter| Some(i64::from(counter))));
        assert!(!loader.has_worked(now, |_| Some(7)));
        assert!(!loader.has_worked(now, |_| None), "there is no data area");
        loader.rest(now, Duration::from_secs(1));
        assert!(!loader.has_worked(now, never));
    }

    #[test]
    fn a_hook_that_is_gone_stays_gone() {
        let loader = Loader::default();
        let seen = |loader: &Loader| match loader.hook() {
            Some(Hook::Waits(waits)) => Some(waits.seen()),
            Some(Hook::Counts(_)) | None => None,
        };
        let answered = WaitingHook::default().after(3, (Instant::now(), false));
        loader.update(answered);
        assert_eq!(seen(&loader), None, "everything was taken out meanwhile");
        loader.set(Some(Hook::Waits(WaitingHook::default())));
        loader.update(answered);
        assert_eq!(seen(&loader), Some(3));
        loader.set(Some(Hook::Counts(CountingHook::new(0, Instant::now()))));
        loader.update(answered);
        assert_eq!(seen(&loader), None, "another program's loader counts");
    }
}
