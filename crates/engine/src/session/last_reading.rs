//! The last reading of exact profiles in a program that ends by itself.
//!
//! The end of a process stops all of its threads wherever they are, and nobody can look at them afterwards: a run that a thread was in has been counted
//! in part, and a thread that has ended just before looks like one that was stopped. So the thread that ends the process waits for the engine at the
//! function that does it, for a bounded time, as threads wait at the loader's hook. Meanwhile the engine holds all threads and reads. If it does not
//! come to that, the values are read after the end, and those that may be wrong are marked.
//!
//! A child of vfork shares the memory of its parent, and ends by the same function. It is told by the thread whose counter has changed: that thread does
//! not wait for the engine, but for its child.
//!
//! A filter of system calls (seccomp) may forbid the calls by which threads wait. The engine looks for filters only now and then, and a short program may
//! end before it looks again. So a thread also waits for the engine before it installs a filter, and from then on no thread waits any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_model::layout::header;
use ingraft_model::{Avma, FunctionId, Shape, Tid};
use ingraft_process::SharedArea;

use crate::program::modules::ModuleFile;
use crate::readings::values::{Ruler, Slots};

use super::control::Control;
use super::driver::Session;
use super::exit_point::{ExitCounters, ExitState, FILTERS, announcement, condition, when};
use super::insertion_stop::InsertionStop;
use super::loader::{Hook, Renewal};

/// Names of the function through which a process ends. In glibc, both are one function; in musl, the second one calls the first one.
const ENDS: [&str; 2] = ["_Exit", "_exit"];
/// Longest time until a thread that has announced the end waits. It may lose its processor in between.
const PATIENCE: Duration = Duration::from_millis(200);
/// Longest time for which a thread that ends the process waits for an engine that reads a large profile.
const READING_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at such a thread.
const EVERY: Duration = Duration::from_micros(200);

impl Session {
    /// Weaves code at the function through which the target ends, if threads can wait there. Without this code, the last values are read after the end.
    pub(super) fn await_end(&self, control: &mut Control, mut stop: InsertionStop) {
        if self.exit_point.is_woven() || !matches!(self.loader.hook(), Some(Hook::Waits(_))) {
            return;
        }
        let Some(places) = self.places(control) else { return };
        let Some(attached) = control.attached.as_ref().filter(|attached| attached.env.loader.is_some()) else { return };
        let is_free = |function: FunctionId| {
            attached.woven.points_of(function).next().is_none() && !attached.woven.is_copied(function)
        };
        if !is_free(places.end) || !places.filters.iter().all(|(function, _)| is_free(*function)) {
            // It would not be known what a thread that waits has executed of the other code.
            return;
        }
        let Some(first) = control.counters.take(2, attached.area.layout().counters()) else { return };
        self.shared_mut().use_counters(control.counters.used());
        let counters = ExitCounters { arrivals: first, filters: first + 1 };
        // No thread waits at the end if one may install a filter unnoticed.
        let filters = places.filters.iter().map(|(function, ways)| (*function, when(condition(ways))));
        let woven = self.weave_hooks(control, (filters.collect(), &[counters.filters]), &mut stop);
        if woven && self.weave_hooks(control, (vec![(places.end, announcement())], &[counters.arrivals]), &mut stop) {
            self.exit_point.set(ExitState { counters: Some(counters), ..ExitState::default() });
        }
    }

    /// The places where threads wait; `None` if no library is mapped that has them.
    fn places(&self, control: &Control) -> Option<WaitingPlaces> {
        let modules = &control.modules;
        for error in modules.load_files(&self.target, &self.context.images, &ModuleFile::is_c_library) {
            tracing::debug!(%error, "the C library cannot be looked into");
        }
        let of_libc = |function: &FunctionId| modules.file(function.module).is_some_and(ModuleFile::is_c_library);
        let named = |name: &str| modules.functions_named_exactly(name).into_iter().find(of_libc);
        let end = ENDS.iter().find_map(|name| named(name))?;
        let filters = FILTERS.iter().map(|(name, ways)| Some((named(name)?, *ways))).collect::<Option<Vec<_>>>()?;
        Some(WaitingPlaces { end, filters })
    }

    /// Reads the last values if a thread has announced that it ends the process, and waits for the engine. If one is about to install a filter of system
    /// calls, no thread waits from now on. Returns the number of announcements since the last call that were made there, and so not by the loader.
    pub(super) fn read_at_end(&self, area: &Arc<SharedArea>) -> u64 {
        let state = self.exit_point.state();
        let Some(counters) = state.counters else { return 0 };
        let seen = (self.announced(counters.arrivals), self.announced(counters.filters));
        let new = (seen.0 - state.seen.0, seen.1 - state.seen.1);
        let announced = u64::try_from(new.0 + new.1).unwrap_or_default();
        self.exit_point.set(ExitState { seen, ..state });
        if seen.1 > 0 {
            self.stop_listening(area);
        }
        let word = Avma(area.layout().displacement(header::ANSWERED).into());
        if new.0 == 0 || !self.arrived(counters.arrivals).iter().any(|tid| self.will_wait(*tid, word)) {
            return announced;
        }
        // Dropped when everything is read.
        let _renewal = Renewal::start(&self.target, area, READING_MAX);
        self.retire_ended_threads();
        let mut control = self.control();
        let measurements: Vec<_> = control.measurements.iter().map(|(id, its)| (*id, its.rights)).collect();
        for (id, rights) in measurements {
            if self.kinds().get(&id).is_some_and(|kind| kind.reads_before_end()) {
                self.read_last(&mut control, id, rights);
            }
        }
        self.exit_point.set(ExitState { seen, was_read: true, ..state });
        announced
    }

    /// Whether a thread has come to install a filter of system calls, so that no thread may wait any more.
    pub(super) fn filters_come(&self) -> bool {
        self.exit_point.state().counters.is_some_and(|counters| self.announced(counters.filters) > 0)
    }

    /// Number of announcements by a counter.
    fn announced(&self, counter: u32) -> i64 {
        self.shared().columns().map_or(0, |columns| columns.sum(counter))
    }

    /// The threads that have arrived at the function.
    fn arrived(&self, counter: u32) -> Vec<Tid> {
        let slots = Slots { first: counter, shape: Shape::Counter };
        let of_threads = self.shared().columns().map(|columns| columns.threads(slots, &[], Ruler::PLAIN));
        of_threads.unwrap_or_default().into_iter().filter_map(|(tid, _)| tid).collect()
    }

    /// Whether a thread that may have announced the end comes to wait for an answer at this address.
    fn will_wait(&self, tid: Tid, word: Avma) -> bool {
        let begin = Instant::now();
        loop {
            match self.target.waits_for_futex(tid, word) {
                Some(waits) => return waits,
                None if begin.elapsed() > PATIENCE => return false,
                None => std::thread::sleep(EVERY),
            }
        }
    }
}

/// The functions at which threads wait.
struct WaitingPlaces {
    end: FunctionId,
    /// Functions that install filters, each with the first arguments with which it does so.
    filters: Vec<(FunctionId, &'static [&'static [i64]])>,
}
