//! State of the code at the loader's hook, and the decisions that follow from the loader's announcements.

use std::time::{Duration, Instant};

/// Least pause before the next scan of the mappings, as a multiple of the time that the last scan and its weaving took. The pause applies
/// if no thread waits for the engine. With it, a program that only loads and unloads libraries still makes progress.
const SHARE: u32 = 10;
/// Time between two checks whether system calls are filtered.
const FILTERS_EVERY: Duration = Duration::from_secs(1);
/// Time between two such checks in a program that begins, because sandboxes install their filters then.
const FILTERS_EVERY_AT_FIRST: Duration = Duration::from_millis(10);

/// Kind of the code at the hook.
#[derive(Clone, Copy, Debug)]
pub enum Hook {
    /// Threads announce their calls and wait for the engine.
    Waits(WaitingHook),
    /// Threads count their calls, and do not wait. Used for loaders that do not announce their state.
    Counts(CountingHook),
}

/// State of a hook at which threads wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitingHook {
    /// The last announcement that the engine has handled.
    seen: u32,
    /// Time of the latest check for filters of system calls (seccomp), and whether a filter was active then.
    filtered: Option<(Instant, bool)>,
    /// If the engine listens since before the program ran: when that began, and how long a thread waits at most for a library. Otherwise a
    /// thread waits as long as it does without signs of life.
    since: Option<(Instant, Duration)>,
}

/// An announcement that the engine has handled.
#[derive(Clone, Copy, Debug)]
pub struct Handled {
    /// Number of the latest announcement.
    pub announced: u32,
    /// Whether the engine had begun to listen just before.
    pub begun: bool,
    /// Whether threads still waited after the announcement was handled.
    pub waited: bool,
    /// Whether system calls are filtered, so that no thread waits.
    pub filtered: bool,
}

impl WaitingHook {
    /// A hook at which threads have waited since `now`, before the program ran, each time for at most `patience`. `seen` is the number of
    /// announcements so far, whose libraries are woven already.
    pub fn since(now: Instant, seen: u32, patience: Duration) -> Self {
        WaitingHook { seen, filtered: Some((now, false)), since: Some((now, patience)) }
    }

    /// The last announcement that the engine has handled.
    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// Longest time for which a thread waits for a library; `None` if the engine listens only since the program ran.
    pub fn patience(&self) -> Option<Duration> {
        self.since.map(|(_, patience)| patience)
    }

    /// Time for which the result of a check for filters counts.
    pub fn filters_every(&self, now: Instant) -> Duration {
        let begins = self.since.is_some_and(|(since, _)| now.saturating_duration_since(since) < FILTERS_EVERY);
        if begins { FILTERS_EVERY_AT_FIRST } else { FILTERS_EVERY }
    }

    /// Time and result of the latest check for filters, by a new check if the known one is too old.
    pub fn filters(&self, now: Instant, check: impl FnOnce() -> bool) -> (Instant, bool) {
        let every = self.filters_every(now);
        let known = self.filtered.filter(|(then, _)| now.saturating_duration_since(*then) < every);
        known.unwrap_or_else(|| (now, check()))
    }

    /// Whether an announcement is to be handled: it is new, or threads did not wait until the engine began to listen, so that it may be late.
    pub fn is_news(&self, announced: u32, begun: bool) -> bool {
        begun || announced != self.seen
    }

    /// Whether code may have run before it was woven: a thread has waited longer than the bound, perhaps during the scan, so that threads that
    /// came later did not wait. Nothing can be missed before the first announcement, as the modules that were loaded while the engine started
    /// the program are woven already.
    pub fn has_missed(&self, handled: &Handled) -> bool {
        let waited = !handled.begun && handled.waited;
        handled.announced != self.seen && !handled.filtered && self.filtered.is_some() && !waited
    }

    /// The state after an announcement was handled. `filters` is the latest check for filters.
    pub fn after(self, seen: u32, filters: (Instant, bool)) -> Self {
        WaitingHook { seen, filtered: Some(filters), ..self }
    }
}

/// State of a hook at which threads only count.
#[derive(Clone, Copy, Debug)]
pub struct CountingHook {
    counter: u32,
    /// Number of calls at the latest look.
    seen: i64,
    /// Earliest time of the next look.
    not_before: Instant,
}

impl CountingHook {
    /// A hook whose calls a counter counts.
    pub fn new(counter: u32, now: Instant) -> Self {
        CountingHook { counter, seen: 0, not_before: now }
    }

    /// The counter, if a look is due.
    pub fn due(&self, now: Instant) -> Option<u32> {
        (now >= self.not_before).then_some(self.counter)
    }

    /// Notes the number of calls. Returns whether it has changed.
    pub fn note(&mut self, calls: i64) -> bool {
        std::mem::replace(&mut self.seen, calls) != calls
    }

    /// Lets the program make progress after a scan that ended at `now` and took `work`.
    pub fn rest(&mut self, now: Instant, work: Duration) {
        self.not_before = now + work * SHARE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn filters_are_looked_for_often_while_a_program_begins() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let started = WaitingHook::since(begin, 0, PATIENCE);
        for (hook, ms, every) in [
            (started, 0, FILTERS_EVERY_AT_FIRST),
            (started, 999, FILTERS_EVERY_AT_FIRST),
            (started, 1000, FILTERS_EVERY),
            (WaitingHook::default(), 0, FILTERS_EVERY),
        ] {
            assert_eq!(hook.filters_every(at(ms)), every, "{ms}");
        }
        let never = || -> bool { panic!("the known answer counts") };
        assert_eq!(started.filters(at(9), never), (begin, false));
        assert_eq!(started.filters(at(10), || true), (at(10), true));
        let later = started.after(1, (at(1500), true));
        assert_eq!(later.filters(at(2499), never), (at(1500), true));
        assert_eq!(later.filters(at(2500), || false), (at(2500), false));
        assert_eq!(WaitingHook::default().filters(at(0), || true), (at(0), true), "there was no check");
    }

    #[test]
    fn announcements_are_handled_once() {
        let hook = WaitingHook::since(Instant::now(), 4, PATIENCE);
        assert!(!hook.is_news(4, false));
        assert!(hook.is_news(5, false));
        assert!(hook.is_news(3, false), "the number has wrapped around");
        assert!(hook.is_news(4, true), "threads did not wait before");
        let after = hook.after(5, (Instant::now(), false));
        assert!(!after.is_news(5, false) && after.seen() == 5 && after.patience() == Some(PATIENCE));
        assert_eq!(WaitingHook::default().patience(), None);
    }

    #[test]
    fn a_thread_that_did_not_wait_may_have_run_unwoven_code() {
        let known = WaitingHook::since(Instant::now(), 4, PATIENCE);
        let handled = Handled { announced: 5, begun: false, waited: true, filtered: false };
        for (hook, handled, missed) in [
            (known, handled, false),
            (known, Handled { waited: false, ..handled }, true),
            (known, Handled { begun: true, ..handled }, true),
            (known, Handled { begun: true, waited: false, ..handled }, true),
            // of a program with a filter, another place notes that its threads do not wait
            (known, Handled { waited: false, filtered: true, ..handled }, false),
            // nothing was loaded
            (known, Handled { announced: 4, begun: true, waited: false, ..handled }, false),
            // the hook is new
            (WaitingHook::default(), Handled { begun: true, waited: false, ..handled }, false),
        ] {
            assert_eq!(hook.has_missed(&handled), missed, "{hook:?} {handled:?}");
        }
    }

    #[test]
    fn a_program_that_only_loads_libraries_makes_progress() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut hook = CountingHook::new(7, begin);
        assert_eq!(hook.due(begin), Some(7));
        assert!(!hook.note(0), "no call yet");
        assert!(hook.note(2));
        assert!(!hook.note(2));
        hook.rest(at(20), Duration::from_millis(5));
        assert_eq!((hook.due(at(69)), hook.due(at(70))), (None, Some(7)));
        assert!(hook.note(1), "a counter that was cleared has changed too");
    }
}
