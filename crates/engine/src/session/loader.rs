//! The loader's own hook: an empty function that the loader calls before and after it maps or unmaps libraries, so that debuggers can stop
//! there (`r_brk` in link.h). Woven code in this function tells the engine when to look at the mappings, without a stop. A thread that has
//! mapped a library waits there, for a bounded time, until the library is woven. So no code of a library runs uncounted, not even its
//! constructors. In a program that the engine started, the time is long enough for the analysis of a large library.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ingraft_model::{PointKind, Snippet, Stmt, VariableId};
use ingraft_process::SharedArea;

use crate::weaving::positions::Observer;
use crate::weaving::wanted::{NewMini, Wanted as WantedPoints};

use super::control::Control;
use super::driver::Session;
use super::renewal::{FILTERS_MAX, Renewal};

/// Name of the hook in glibc and musl.
const HOOK: &str = "_dl_debug_state";
/// Time between two reads of the counter of hook calls, for threads that count their calls without announcing them.
const EVERY: Duration = Duration::from_millis(5);
/// Least pause before the next scan of the mappings, as a multiple of the time that the last scan and its weaving took. The pause applies
/// if no thread waits for the engine. With it, a program that only loads and unloads libraries still makes progress.
const SHARE: u32 = 10;
/// Time between two checks whether system calls are filtered.
const FILTERS_EVERY: Duration = Duration::from_secs(1);
/// Time between two such checks in a program that begins, because sandboxes install their filters then.
const FILTERS_EVERY_AT_FIRST: Duration = Duration::from_millis(10);

/// Kind of the code at the hook.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    /// Threads announce their calls and wait for the engine.
    Waits(Waits),
    /// Threads count their calls, and do not wait. `seen` is the latest count. Used for loaders that do not announce their state.
    Counts { counter: u32, seen: i64, not_before: Instant },
}

/// State of a hook at which threads wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// The last announcement that the engine has handled.
    seen: u32,
    /// Time of the latest check for filters of system calls (seccomp), and whether a filter was active then.
    filtered: Option<(Instant, bool)>,
    /// If the engine listens since before the program ran: when that began, and how long a thread waits at most for a library. Otherwise a
    /// thread waits as long as it does without signs of life.
    since: Option<(Instant, Duration)>,
}

impl Waits {
    /// Time for which the result of a check for filters counts.
    fn filters_every(&self) -> Duration {
        let begins = self.since.is_some_and(|(since, _)| since.elapsed() < FILTERS_EVERY);
        if begins { FILTERS_EVERY_AT_FIRST } else { FILTERS_EVERY }
    }
}

impl Session {
    /// Weaves the hook. If the program has no hook (a static program) or the hook cannot be woven (a debugger's breakpoint is there), the
    /// engine notices libraries later.
    pub(super) fn hook_loader(&self, control: &mut Control) {
        let Some(attached) = control.attached.as_mut() else { return };
        let Some(function) = control.modules.loader_function(&self.target, &self.context.images, HOOK) else { return };
        attached.env.loader = control.modules.loader_state(&self.target).filter(|_| attached.area.is_mapped());
        let (waits, limit) = (attached.env.loader.is_some(), attached.area.layout().counters());
        let (snippet, counters) = if waits {
            (Snippet { stmts: vec![Stmt::Await] }, Vec::new())
        } else {
            let Some(counter) = control.counters.take(1, limit) else { return };
            self.shared_mut().used_counters = control.counters.used();
            (Snippet::increment(VariableId(0)), vec![counter])
        };
        let snippet = Arc::new(snippet);
        let id = control.minis.take();
        let mini = NewMini { counters: &counters, ..NewMini::plain(id, 0, &snippet) };
        let wanted = [WantedPoints { function, spot: PointKind::Entry, minis: vec![mini] }];
        match self.change(control, &wanted, &|_| &[], &mut Observer::default()) {
            Ok((refused, _)) => {
                if refused.is_empty() {
                    let hook = match counters.first() {
                        None => Hook::Waits(Waits::default()),
                        Some(&counter) => Hook::Counts { counter, seen: 0, not_before: Instant::now() },
                    };
                    self.shared_mut().hook = Some(hook);
                    if let Some(attached) = control.attached.as_mut().filter(|_| waits) {
                        attached.woven.hook = Some(id);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the loader's hook is not woven"),
        }
    }

    /// Begins to answer threads at the hook, while the program is held before its own code runs: they wait from their first library on, each
    /// time for at most `patience`. If system calls are filtered, threads do not wait.
    pub(super) fn listen_to_loader(&self, patience: Duration) {
        let (hook, area) = {
            let shared = self.shared();
            (shared.hook, shared.area.clone())
        };
        let (Some(Hook::Waits(_)), Some(area)) = (hook, area) else { return };
        if self.is_filtered() {
            return;
        }
        // The libraries that were announced so far are woven already.
        let listens = area.wait_for_loads(0, Duration::ZERO).and_then(|seen| area.listen(true).map(|()| seen));
        match listens {
            Ok(seen) => {
                let now = Instant::now();
                let waits = Waits { seen, filtered: Some((now, false)), since: Some((now, patience)) };
                self.shared_mut().hook = Some(Hook::Waits(waits));
                // The thread that answers does not exist yet.
                *self.renewal() = Renewal::start(&self.target, &area, patience);
            }
            Err(error) => tracing::debug!(%error, "the loader cannot be followed yet"),
        }
    }

    /// Whether threads wait at the hook at present.
    pub fn listens_to_loader(&self) -> bool {
        self.shared().area.as_ref().is_some_and(|area| area.is_listening())
    }

    /// Lets a thread go on that waits at the hook for a large library, because everything is about to be removed. Needs no lock that the
    /// work on this library holds.
    pub fn release_loader(&self) {
        self.renewal().take();
        let area = self.shared().area.clone();
        if let Some(area) = area.filter(|area| area.is_listening()) {
            self.stop_listening(&area);
        }
    }

    fn renewal(&self) -> MutexGuard<'_, Option<Renewal>> {
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits up to `at_most` for a call of the hook, and measures the modules that the loader has mapped. Must run on a thread of its own,
    /// because threads of the target wait for the answer.
    pub fn follow_loader(&self, at_most: Duration) {
        let (hook, area) = {
            let shared = self.shared();
            (shared.hook, shared.area.clone())
        };
        match (hook, area) {
            (Some(Hook::Waits(waits)), Some(area)) => {
                let every = waits.filters_every();
                let known = waits.filtered.filter(|(then, _)| then.elapsed() < every);
                let (then, filtered) = known.unwrap_or_else(|| (Instant::now(), self.is_filtered()));
                let seen = self.answer_loader(&area, &waits, filtered, at_most.min(every));
                // The startup is over: either nobody waits, or the thread that waited has its answer.
                self.renewal().take();
                if let Some(hook @ Hook::Waits(_)) = self.shared_mut().hook.as_mut() {
                    *hook = Hook::Waits(Waits { seen, filtered: Some((then, filtered)), ..waits });
                }
            }
            (Some(Hook::Counts { .. }), _) => {
                let end = Instant::now() + at_most;
                while Instant::now() < end {
                    std::thread::sleep(EVERY.min(at_most));
                    if self.loader_has_worked() {
                        let begin = Instant::now();
                        self.notice_modules();
                        if let Some(Hook::Counts { not_before, .. }) = self.shared_mut().hook.as_mut() {
                            *not_before = Instant::now() + begin.elapsed() * SHARE;
                        }
                    }
                }
            }
            _ => std::thread::sleep(at_most),
        }
    }

    /// Waits for an announcement of the loader, handles it and answers it. Returns the number of the last announcement that was handled.
    fn answer_loader(&self, area: &Arc<SharedArea>, waits: &Waits, filtered: bool, at_most: Duration) -> u32 {
        let Waits { seen, since, .. } = *waits;
        // The modules that were loaded while the engine started the program are woven already.
        let hook_is_new = waits.filtered.is_none();
        // A program's filter may forbid the system calls by which its threads wait. Then the threads only count, and the engine reads the
        // counter periodically.
        let step = if filtered { EVERY.min(at_most) } else { at_most };
        let loads = self.listen(area, !filtered).and_then(|begun| {
            // Threads did not wait while the engine was not listening; from now on they do.
            Ok((begun, area.wait_for_loads(seen, if begun { Duration::ZERO } else { step })?))
        });
        let (begun, loads) = match loads {
            Ok((begun, loads)) if begun || loads != seen => (begun, loads),
            Ok(_) => return seen,
            Err(error) => {
                tracing::debug!(%error, "the loader cannot be followed");
                std::thread::sleep(at_most);
                return seen;
            }
        };
        if let Some((_, patience)) = since.filter(|_| !begun && area.is_listening()) {
            // Dropped when the answer is given, or before, if everything is removed.
            let mut renewal = self.renewal();
            if renewal.is_none() {
                *renewal = Renewal::start(&self.target, area, patience);
            }
        }
        self.notice(&|| !begun && area.is_listening());
        // A thread has waited longer than the bound, perhaps during the scan, so threads that came later did not wait.
        if loads != seen && !filtered && !hook_is_new && (begun || !area.is_listening()) {
            self.note_missed();
        }
        if let Err(error) = area.answer(loads) {
            tracing::debug!(%error, "the loader was not answered");
        }
        loads
    }

    /// Sets or clears the flag by which threads wait for the engine, unless all code is being removed or left behind. Returns whether this
    /// call has set the flag.
    fn listen(&self, area: &SharedArea, wanted: bool) -> Result<bool, ingraft_process::ProcessError> {
        // The removal of the code clears the flag. Another thread may hold the lock for long, and a thread may wait for
        // the engine meanwhile.
        if wanted && area.is_listening() {
            return Ok(false);
        }
        let control = self.control();
        let wanted = wanted && !control.closed && control.attached.is_some();
        match (wanted, area.is_listening()) {
            (true, false) => area.listen(true).map(|()| true),
            (false, true) => area.stop_listening().map(|()| false),
            _ => Ok(false),
        }
    }

    /// Whether a filter of system calls is active in a thread, or may be: children that are measured with the target may install filters of
    /// their own at any time, as sandboxes do.
    fn is_filtered(&self) -> bool {
        let (filtered, family) = (self.shared().filtered, self.shared().roster.children().count());
        filtered || family || self.target.has_filter(FILTERS_MAX)
    }

    /// Ends to listen; threads that wait continue.
    pub(super) fn stop_listening(&self, area: &SharedArea) {
        if let Err(error) = area.stop_listening() {
            tracing::debug!(%error, "threads at the loader's hook wait until their time is over");
        }
    }

    /// Whether the loader is still mapping libraries, or waits for the engine, so that no code of the newly mapped modules has run yet.
    pub(super) fn loader_works(&self, control: &Control) -> bool {
        let Some(attached) = control.attached.as_ref() else { return false };
        let mut word = [0; 4];
        let works = attached.env.loader.is_some_and(|at| self.target.read(at, &mut word).is_ok() && word != [0; 4]);
        let waits = || match self.shared().hook {
            Some(Hook::Waits(Waits { seen, .. })) => {
                attached.area.is_listening()
                    && attached.area.wait_for_loads(seen, Duration::ZERO).is_ok_and(|n| n != seen)
            }
            _ => false,
        };
        works || waits()
    }

    fn loader_has_worked(&self) -> bool {
        let mut shared = self.shared_mut();
        let Some(Hook::Counts { counter, not_before, .. }) = shared.hook else { return false };
        if Instant::now() < not_before {
            return false;
        }
        let Some(calls) = shared.columns().map(|columns| columns.sum(counter)) else { return false };
        match shared.hook.as_mut() {
            Some(Hook::Counts { seen, .. }) => std::mem::replace(seen, calls) != calls,
            _ => false,
        }
    }
}
