//! The last reading of exact profiles in a program that ends by itself.
//!
//! The end of a process stops all of its threads wherever they are, and nobody can look at them afterwards: a run that a thread was in has been counted
//! in part, and a thread that has ended just before looks like one that was stopped. So the thread that ends the process waits for the engine at the
//! function that does it, for a bounded time, as threads wait at the loader's hook. Meanwhile the engine holds all threads and reads. If it does not
//! come to that, the values are read after the end, and those that may be wrong are marked.
//!
//! A child of vfork shares the memory of its parent, and ends by the same function. It is told by the thread whose counter has changed: that thread does
//! not wait for the engine, but for its child.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ingraft_model::layout::header;
use ingraft_model::{Avma, Expr, FunctionId, PointKind, Shape, Snippet, Stmt, Tid, VariableId};
use ingraft_process::SharedArea;

use crate::program::modules::ModuleFile;
use crate::readings::values::{Ruler, Slots};
use crate::weaving::wanted::{NewMini, WantedPoints};

use super::control::Control;
use super::driver::Session;
use super::insertion_stop::InsertionStop;
use super::loader::Hook;

/// Libraries with functions that end the process.
const LIBRARIES: [&str; 2] = ["libc", "ld-musl-x86_64"];
/// Names of the function through which a process ends. In glibc, both are one function; in musl, the second one calls the first one.
const NAMES: [&str; 2] = ["_Exit", "_exit"];
/// Longest time until a thread that has announced the end waits. It may lose its processor in between.
const PATIENCE: Duration = Duration::from_millis(20);
/// Time between two looks at such a thread.
const EVERY: Duration = Duration::from_micros(200);

/// The code at the function through which a target ends.
#[derive(Debug, Default)]
pub(super) struct ExitPoint(Mutex<State>);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Counter of the arrivals; `None` if there is no code.
    counter: Option<u32>,
    /// Number of arrivals that were looked at.
    seen: i64,
    /// Whether the last values were read at such an arrival.
    was_read: bool,
}

impl ExitPoint {
    fn state(&self) -> State {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Notes that there is no code any more.
    pub(super) fn forget(&self) {
        self.set(State::default());
    }

    /// Whether there is code.
    pub(super) fn is_woven(&self) -> bool {
        self.state().counter.is_some()
    }

    /// Whether the last values were read while a thread waited to end the process.
    pub(super) fn was_read(&self) -> bool {
        self.state().was_read
    }
}

impl Session {
    /// Weaves code at the function through which the target ends, if threads can wait there. Without this code, the last values are read after the end.
    pub(super) fn await_end(&self, control: &mut Control, mut stop: InsertionStop) {
        if self.exit_point.is_woven() || !matches!(self.loader.hook(), Some(Hook::Waits(_))) {
            return;
        }
        let Some(function) = self.ending_function(control) else { return };
        let Some(attached) = control.attached.as_ref().filter(|attached| attached.env.loader.is_some()) else { return };
        if attached.woven.points_of(function).next().is_some() || attached.woven.is_copied(function) {
            // It would not be known what a thread that waits has executed of the other code.
            return;
        }
        let Some(counter) = control.counters.take(1, attached.area.layout().counters()) else { return };
        self.shared_mut().use_counters(control.counters.used());
        let announce = vec![Stmt::Add(VariableId(0), Expr::Const(1)), Stmt::Await];
        let (snippet, id) = (Arc::new(Snippet { stmts: announce }), control.minis.take());
        let mini = NewMini { counters: [counter].into(), ..NewMini::plain(id, 0, &snippet) };
        let wanted = [WantedPoints { function, kind: PointKind::Entry, minis: vec![mini] }];
        match self.change(control, &wanted, &|_| &[], &mut stop) {
            Ok((refused, _)) if refused.is_empty() => {
                self.exit_point.set(State { counter: Some(counter), ..State::default() });
                if let Some(attached) = control.attached.as_mut() {
                    attached.woven.hooks.push(id);
                }
            }
            Ok(_) => tracing::debug!("the function that ends the process has no room for code"),
            Err(error) => tracing::debug!(%error, "the end of the process is not waited for"),
        }
    }

    /// The function through which the target ends; `None` if no library with such a function is mapped.
    fn ending_function(&self, control: &Control) -> Option<FunctionId> {
        let modules = &control.modules;
        let is_libc = |file: &ModuleFile| file.names.iter().any(|name| LIBRARIES.contains(&name.as_str()));
        for error in modules.load_files(&self.target, &self.context.images, &is_libc) {
            tracing::debug!(%error, "a library that cannot be analysed");
        }
        let of_libc = |function: &FunctionId| modules.file(function.module).is_some_and(is_libc);
        let named = |name: &&str| modules.functions_named_exactly(name).into_iter().find(of_libc);
        NAMES.iter().find_map(named)
    }

    /// Reads the last values if a thread has announced that it ends the process, and waits for the engine. Returns the number of announcements since the
    /// last call that were made where a process ends, and so not by the loader.
    pub(super) fn read_at_end(&self, area: &SharedArea) -> u64 {
        let state = self.exit_point.state();
        let Some(counter) = state.counter else { return 0 };
        let arrived = self.arrived(counter);
        let sum = arrived.iter().map(|(_, arrivals)| arrivals).sum();
        let new = u64::try_from(sum - state.seen).unwrap_or_default();
        if new == 0 {
            return 0;
        }
        self.exit_point.set(State { seen: sum, ..state });
        let word = Avma(area.layout().displacement(header::ANSWERED).into());
        if !arrived.iter().any(|(tid, _)| self.will_wait(*tid, word)) {
            return new;
        }
        self.retire_ended_threads();
        let mut control = self.control();
        let measurements: Vec<_> = control.measurements.iter().map(|(id, its)| (*id, its.rights)).collect();
        for (id, rights) in measurements {
            if self.kinds().get(&id).is_some_and(|kind| kind.reads_before_end()) {
                self.read_last(&mut control, id, rights);
            }
        }
        self.exit_point.set(State { seen: sum, was_read: true, ..state });
        new
    }

    /// The threads that have arrived at the function, each with the number of its arrivals.
    fn arrived(&self, counter: u32) -> Vec<(Tid, i64)> {
        let slots = Slots { first: counter, shape: Shape::Counter };
        let of_threads = self.shared().columns().map(|columns| columns.threads(slots, &[], Ruler::PLAIN));
        of_threads.unwrap_or_default().into_iter().filter_map(|(tid, raw)| Some((tid?, raw.value))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_at_the_end_is_forgotten_with_the_rest() {
        let point = ExitPoint::default();
        assert!(!point.is_woven() && !point.was_read());
        point.set(State { counter: Some(7), seen: 1, was_read: true });
        assert!(point.is_woven() && point.was_read());
        point.forget();
        assert!(!point.is_woven() && !point.was_read());
    }
}
