//! The session's part at the loader's hook: it weaves the hook, answers the threads that wait there, and looks for the libraries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_model::{FunctionId, PointKind, Snippet, Stmt, VariableId};
use ingraft_process::SharedArea;

use crate::weaving::wanted::{NewMini, WantedPoints};

use super::control::Control;
use super::driver::Session;
use super::insertion_stop::InsertionStop;
use super::loader::{CountingHook, FILTERS_MAX, Handled, Hook, Renewal, WaitingHook};

/// Name of the hook in glibc and musl.
const HOOK: &str = "_dl_debug_state";
/// Time between two reads of the counter of hook calls, for threads that count their calls without announcing them.
const EVERY: Duration = Duration::from_millis(5);

impl Session {
    /// Weaves the hook. If the program has no hook (a static program) or the hook cannot be woven (a debugger's breakpoint is there), the
    /// engine notices libraries later.
    pub(super) fn hook_loader(&self, control: &mut Control, mut stop: InsertionStop) {
        let Some(attached) = control.attached.as_mut() else { return };
        let Some(function) = control.modules.loader_function(&self.target, &self.context.images, HOOK) else { return };
        attached.env.loader = control.modules.loader_state(&self.target).filter(|_| attached.area.is_mapped());
        let (waits, limit) = (attached.env.loader.is_some(), attached.area.layout().counters());
        let (stmts, counters) = if waits {
            (vec![Stmt::Await], Vec::new())
        } else {
            let Some(counter) = control.counters.take(1, limit) else { return };
            self.shared_mut().use_counters(control.counters.used());
            (Snippet::increment(VariableId(0)).stmts, vec![counter])
        };
        if self.weave_hooks(control, (vec![(function, stmts)], &counters), &mut stop) {
            self.loader.set(Some(match counters.first() {
                None => Hook::Waits(WaitingHook::default()),
                Some(&counter) => Hook::Counts(CountingHook::new(counter, Instant::now())),
            }));
        }
    }

    /// Weaves snippets with these counters at the entries of functions, for the engine itself. Returns whether all of them have room.
    pub(super) fn weave_hooks(
        &self,
        control: &mut Control,
        (hooks, counters): (Vec<(FunctionId, Vec<Stmt>)>, &[u32]),
        stop: &mut InsertionStop,
    ) -> bool {
        let hook = |(function, stmts)| (function, Arc::new(Snippet { stmts }), control.minis.take());
        let hooks: Vec<(FunctionId, Arc<Snippet>, u64)> = hooks.into_iter().map(hook).collect();
        let mut wanted = Vec::with_capacity(hooks.len());
        for (function, snippet, id) in &hooks {
            let mini = NewMini { counters: counters.into(), ..NewMini::plain(*id, 0, snippet) };
            wanted.push(WantedPoints { function: *function, kind: PointKind::Entry, minis: vec![mini] });
        }
        match self.change(control, &wanted, &|_| &[], stop) {
            Ok((refused, _)) => {
                let waiting = hooks.iter().filter(|(_, snippet, _)| snippet.awaits_engine()).map(|(.., id)| *id);
                if let Some(attached) = control.attached.as_mut() {
                    attached.woven.hooks.extend(waiting);
                }
                refused.is_empty()
            }
            Err(error) => {
                tracing::debug!(%error, "a hook is not woven");
                false
            }
        }
    }

    /// Notes that threads wait nowhere, because no code is there any more.
    pub(super) fn forget_hooks(&self) {
        self.loader.set(None);
        self.exit_point.forget();
    }

    /// Begins to answer threads at the hook, while the program is held before its own code runs: they wait from their first library on, each
    /// time for at most `patience`. If system calls are filtered, threads do not wait.
    pub(super) fn listen_to_loader(&self, patience: Duration) {
        let area = self.shared().area().cloned();
        let (Some(Hook::Waits(_)), Some(area)) = (self.loader.hook(), area) else { return };
        if self.is_filtered() {
            return;
        }
        // The libraries that were announced so far are woven already.
        let listens = area.wait_for_loads(0, Duration::ZERO).and_then(|seen| area.listen(true).map(|()| seen));
        match listens {
            Ok(seen) => {
                self.loader.set(Some(Hook::Waits(WaitingHook::since(Instant::now(), seen, patience))));
                // The thread that answers does not exist yet.
                self.loader.begin_renewal(Renewal::start(&self.target, &area, patience));
            }
            Err(error) => tracing::debug!(%error, "the loader cannot be followed yet"),
        }
    }

    /// Whether threads wait at the hook at present.
    pub fn listens_to_loader(&self) -> bool {
        self.shared().area().is_some_and(|area| area.is_listening())
    }

    /// Lets a thread go on that waits at the hook for a large library, because everything is about to be removed. Needs no lock that the
    /// work on this library holds.
    pub fn release_loader(&self) {
        self.loader.end_renewal();
        let area = self.shared().area().cloned();
        if let Some(area) = area.filter(|area| area.is_listening()) {
            self.stop_listening(&area);
        }
    }

    /// Waits up to `at_most` for a call of the hook, and measures the modules that the loader has mapped. Must run on a thread of its own,
    /// because threads of the target wait for the answer.
    pub fn follow_loader(&self, at_most: Duration) {
        let area = self.shared().area().cloned();
        match (self.loader.hook(), area) {
            (Some(Hook::Waits(waits)), Some(area)) => {
                let now = Instant::now();
                let (every, (checked, known)) = (waits.filters_every(now), waits.filters(now, || self.is_filtered()));
                let filters = (checked, known || self.filters_come());
                let seen = self.answer_loader(&area, &waits, filters.1, at_most.min(every));
                // The startup is over: either nobody waits, or the thread that waited has its answer.
                self.loader.end_renewal();
                self.loader.update(waits.after(seen, filters));
            }
            (Some(Hook::Counts(_)), _) => {
                let end = Instant::now() + at_most;
                while Instant::now() < end {
                    std::thread::sleep(EVERY.min(at_most));
                    let begin = Instant::now();
                    let sum = |counter| self.shared().columns().map(|columns| columns.sum(counter));
                    if self.loader.has_worked(begin, sum) {
                        self.notice_modules();
                        self.loader.rest(Instant::now(), begin.elapsed());
                    }
                }
            }
            _ => std::thread::sleep(at_most),
        }
    }

    /// Waits for an announcement of the loader, handles it and answers it. Returns the number of the last announcement that was handled.
    fn answer_loader(&self, area: &Arc<SharedArea>, waits: &WaitingHook, filtered: bool, at_most: Duration) -> u32 {
        let seen = waits.seen();
        // A program's filter may forbid the system calls by which its threads wait. Then the threads only count, and the engine reads the
        // counter periodically.
        let step = if filtered { EVERY.min(at_most) } else { at_most };
        let loads = self.listen(area, !filtered).and_then(|begun| {
            // Threads did not wait while the engine was not listening; from now on they do.
            Ok((begun, area.wait_for_loads(seen, if begun { Duration::ZERO } else { step })?))
        });
        let (begun, announced) = match loads {
            Ok((begun, announced)) if waits.is_news(announced, begun) => (begun, announced),
            Ok(_) => return seen,
            Err(error) => {
                tracing::debug!(%error, "the loader cannot be followed");
                std::thread::sleep(at_most);
                return seen;
            }
        };
        if let Some(patience) = waits.patience().filter(|_| !begun && area.is_listening()) {
            // Dropped when the answer is given, or before, if everything is removed.
            self.loader.keep_renewal(|| Renewal::start(&self.target, area, patience));
        }
        let at_end = self.read_at_end(area);
        let by_loader = begun || u64::from(announced.wrapping_sub(seen)) > at_end;
        if by_loader {
            self.notice(&|| !begun && area.is_listening());
        }
        if by_loader && waits.has_missed(&Handled { announced, begun, waited: area.is_listening(), filtered }) {
            self.note_missed();
        }
        if let Err(error) = area.answer(announced) {
            tracing::debug!(%error, "the loader was not answered");
        }
        announced
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
        let wanted = wanted && !control.closed && control.attached.is_some() && !self.filters_come();
        match (wanted, area.is_listening()) {
            (true, false) => {
                area.listen(true)?;
                // A thread that came to install a filter before the flag was set does not wait.
                if self.filters_come() { area.stop_listening().map(|()| false) } else { Ok(true) }
            }
            (false, true) => area.stop_listening().map(|()| false),
            (true, true) | (false, false) => Ok(false),
        }
    }

    /// Whether a filter of system calls is active in a thread, or may be.
    fn is_filtered(&self) -> bool {
        self.shared().may_be_filtered() || self.target.has_filter(FILTERS_MAX)
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
        let waits = || match self.loader.hook() {
            Some(Hook::Waits(waits)) => {
                let announced = || attached.area.wait_for_loads(waits.seen(), Duration::ZERO);
                attached.area.is_listening() && announced().is_ok_and(|n| waits.is_news(n, false))
            }
            Some(Hook::Counts(_)) | None => false,
        };
        works || waits()
    }
}
