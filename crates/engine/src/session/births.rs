//! Fork children that are measured with their parent begin with the state of the thread that forked: flags are up, timers run, and calls
//! are open as they were in the parent. Counts begin with 0, and time before the birth belongs to the parent alone.
//!
//! Once a pair has a state, the engine weaves snippets at the entry and the exits of the C library's fork. `layout::birth` describes them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ingraft_mdl::Program as _;
use ingraft_model::layout::{COUNTERS, DEFAULT_STRIDE, TOP, birth};
use ingraft_model::{
    Clock, Expr, FunctionRef as MdlFunction, Instrumentation, Kept, PointKind, Record as CallRecord, Restore, Shape,
    Snippet, Stmt, ThreadIdentity, Variable, VariableKind, WallClock,
};
use ingraft_process::SharedArea;

use crate::error::Error;
use crate::pairs::Bound;
use crate::program::modules::{ModuleFile, Modules};
use crate::weaving::positions::Observer;
use crate::weaving::wanted::{NewMini, Wanted as WantedPoints};

use super::control::Control;
use super::driver::Session;

/// Names of the function that makes the fork system call and sets the id of the child's thread. The first list is for glibc since 2.34 and
/// for musl, the second for earlier versions of glibc.
const FORKS: [&[&str]; 2] = [&["_Fork"], &["__libc_fork", "fork"]];
/// Libraries that have this function, unless the program is static.
const LIBRARIES: [&str; 3] = ["libc", "ld-musl-x86_64", "libc.musl-x86_64"];

/// Whether children begin with the state of their parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Births {
    /// No pair has a state.
    NotNeeded,
    /// Fork was not found; the program may still be loading its libraries.
    Absent,
    /// Fork is woven.
    Followed,
    /// Fork cannot be woven, for this reason.
    Unknown(String),
}

impl Births {
    /// The warning about a measurement whose values depend on births that the engine does not follow.
    pub(super) fn warning(&self) -> Option<String> {
        let why = match self {
            Births::NotNeeded | Births::Followed => return None,
            Births::Absent => "the C library's fork was not found",
            Births::Unknown(why) => why,
        };
        Some(format!(
            "forked children begin without the state of their parents, so that calls that are in progress at their birth are not measured in them: {why}"
        ))
    }
}

impl Session {
    /// Prepares for forks of threads that have a state. `bound` lists the pairs whose code is woven next, with their counters.
    pub(super) fn prepare_births(&self, control: &mut Control, bound: &[Bound]) -> Result<(), Error> {
        let Some(attached) = control.attached.as_ref().filter(|_| control.family) else { return Ok(()) };
        let area = Arc::clone(&attached.area);
        if area.layout().stride > DEFAULT_STRIDE {
            // With such large shards, each fork would copy tens of megabytes.
            if bound.iter().any(|(_, i, _)| has_state(i)) {
                control.births = Births::Unknown("so much is measured that a fork would take long".to_owned());
            }
            return Ok(());
        }
        let rules = area.layout().stride * u64::from(birth::RULES);
        for (_, instrumentation, counters) in bound {
            for (counter, rule) in rules_of(instrumentation, counters) {
                let at = rules + u64::from(COUNTERS) + 8 * u64::from(counter);
                area.write_u64(at, rule).map_err(|e| self.failed(e))?;
            }
        }
        let end = u64::from(COUNTERS) + 8 * u64::from(control.counters.used());
        area.write_u64(rules + u64::from(TOP), end).map_err(|e| self.failed(e))?;
        if control.births == Births::NotNeeded && bound.iter().any(|(_, i, _)| has_state(i)) {
            control.births = self.weave_fork(control, &area);
            if let Some(warning) = control.births.warning() {
                tracing::debug!(warning, "fork is not woven");
            }
        }
        Ok(())
    }

    /// Weaves fork if it was needed before but not mapped. Must be called after more modules were mapped.
    pub(super) fn look_for_fork_again(&self, control: &mut Control) {
        let area = control.attached.as_ref().map(|attached| Arc::clone(&attached.area));
        if let Some(area) = area.filter(|_| control.births == Births::Absent) {
            control.births = self.weave_fork(control, &area);
        }
    }

    fn weave_fork(&self, control: &mut Control, area: &SharedArea) -> Births {
        let identity = control.attached.as_ref().map(|attached| attached.env.identity);
        if !matches!(identity, Some(ThreadIdentity::FsOffset(_))) {
            return Births::Unknown("the threads of this program cannot be told apart".to_owned());
        }
        match area.follows_births() {
            Ok(true) => return Births::Followed,
            Ok(false) => {}
            Err(error) => return Births::Unknown(error.to_string()),
        }
        // the code after fork reads the clock, which may need a system call
        let asks = control.attached.as_ref().is_some_and(|attached| attached.env.wall != WallClock::Tsc);
        if let Some(error) = asks.then(|| self.keep_time(control, false).err()).flatten() {
            return Births::Unknown(error.what);
        }
        let functions = self.forks(&control.modules);
        if functions.is_empty() {
            return Births::Absent;
        }
        let [before, after] = [Stmt::Fork, Stmt::Forked].map(|stmt| Arc::new(Snippet { stmts: vec![stmt] }));
        let mut wanted = Vec::new();
        for function in functions {
            for (spot, snippet) in [(PointKind::Entry, &before), (PointKind::Exit, &after)] {
                let minis = vec![NewMini::plain(control.minis.take(), 0, snippet)];
                wanted.push(WantedPoints { function, spot, minis });
            }
        }
        match self.change(control, &wanted, &|_| &[], &mut Observer::default()) {
            Ok((refused, _)) => match refused.values().next() {
                Some(reason) => Births::Unknown(format!("its fork cannot be woven ({reason})")),
                None => area.follow_births().map_or_else(|e| Births::Unknown(e.to_string()), |()| Births::Followed),
            },
            Err(error) => Births::Unknown(error.what),
        }
    }

    /// Returns the functions of [`FORKS`] in the C library or, if none is mapped, in any module.
    fn forks(&self, modules: &Modules) -> Vec<MdlFunction> {
        let is_libc = |file: &ModuleFile| file.names.iter().any(|name| LIBRARIES.contains(&name.as_str()));
        for error in modules.load_files(&self.target, &self.context.images, &is_libc) {
            tracing::debug!(%error, "the C library cannot be looked into");
        }
        let has_library = modules.loaded().any(|(_, file, _)| is_libc(file));
        let fits = |f: &MdlFunction| !has_library || modules.file(f.module).is_some_and(is_libc);
        let named = |names: &[&str]| -> BTreeSet<MdlFunction> {
            names.iter().flat_map(|name| modules.functions_named(name)).filter(fits).collect()
        };
        let found = FORKS.iter().map(|names| named(names)).find(|found| !found.is_empty());
        found.unwrap_or_default().into_iter().collect()
    }

    /// Returns the warning about children that began without the state of their parents, for the end of a measurement.
    pub(super) fn births_amiss(&self, control: &Control) -> Option<String> {
        if control.births == Births::Absent {
            return control.births.warning();
        }
        let area = &control.attached.as_ref().filter(|_| control.births == Births::Followed)?.area;
        let missed = area.births_missed().ok()?;
        let strange = self.shared().stateless.len();
        let all = u64::from(missed) + strange as u64;
        (all > 0).then(|| {
            format!(
                "{all} children began without the state of their parents, because they were not made by the C library's fork or there was no room: calls in progress at their birth are not measured in them"
            )
        })
    }
}

/// Whether a pair has a state that must continue in a child that is born during a call.
fn has_state(instrumentation: &Instrumentation) -> bool {
    let alone = |v: &Variable| v.shape == Shape::Counter && v.kind == VariableKind::Counter;
    !instrumentation.variables.iter().all(alone)
}

/// Returns, for each counter of a pair, the rule of [`birth`] that says with which value of the counter a fork child begins.
fn rules_of(instrumentation: &Instrumentation, counters: &[u32]) -> Vec<(u32, u64)> {
    let mut records = Vec::new();
    instrumentation.insertions.iter().for_each(|i| collect(&i.snippet.stmts, &mut records));
    let mut rules = Vec::new();
    for (n, (variable, &first)) in (0..).zip(instrumentation.variables.iter().zip(counters)) {
        let restores =
            |(r, _): &&(&CallRecord, bool)| matches!(r.restore, Some(Restore::Value(v) | Restore::Flag(v)) if v.0 == n);
        let first_rule = match variable.shape {
            // The variable of an event holds the event's number, which is no count.
            Shape::Event => continue,
            // The pair that has the counter gives its rule.
            Shape::Alias(_) => continue,
            Shape::Timer(_) => birth::KEEP,
            Shape::Counter => {
                let restored = records.iter().find(restores);
                let is_time = restored.is_some_and(|(_, is_time)| *is_time);
                let stays = match variable.kind {
                    // A counter that a record restores holds a level, not a count.
                    VariableKind::Counter => restored.is_some(),
                    VariableKind::Scratch
                    | VariableKind::Flag
                    | VariableKind::Activations
                    | VariableKind::OuterActivations => !is_time,
                };
                if stays { birth::KEEP } else { birth::NOTHING }
            }
            Shape::Activations => {
                let of = records.iter().filter(|(r, _)| r.activations.0 == n);
                of.map(|(record, is_time)| kept_times(record, *is_time)).fold(0, |all, one| all | one)
            }
            Shape::Histogram(_) | Shape::Table(_) | Shape::Vector(_) | Shape::Listed(_) | Shape::Buffer(_) => {
                birth::NOTHING
            }
        };
        rules.push((first, first_rule));
        let second = match variable.shape {
            Shape::Timer(Clock::Wall) => birth::WALL,
            Shape::Timer(Clock::Cpu) => birth::CPU,
            Shape::Counter
            | Shape::Histogram(_)
            | Shape::Activations
            | Shape::Table(_)
            | Shape::Vector(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Event
            | Shape::Alias(_) => birth::NOTHING,
        };
        rules.extend((1..variable.shape.slots()).map(|i| (first + i, if i == 1 { second } else { birth::NOTHING })));
    }
    rules
}

/// Returns one bit for each time in a record that a fork child adjusts (see [`birth`]).
fn kept_times(record: &CallRecord, restores_time: bool) -> u64 {
    let bit = |(n, kept): (u32, &Kept)| match kept {
        Kept::Time(Clock::Wall) => 1 << (birth::KEPT_WALL + n),
        Kept::Time(Clock::Cpu) => 1 << (birth::KEPT_CPU + n),
        // Both are 0 at the birth.
        Kept::Spent(_) => 1 << (birth::KEPT_CPU + n),
        Kept::Argument(_) | Kept::Float(_) => 0,
    };
    let kept = (0..birth::KEPT_TIMES).zip(&record.kept).map(bit).fold(0, |all, one: u64| all | one);
    kept | (u64::from(restores_time) << birth::SAVED_TIME)
}

/// Collects the records that statements open. The flag says whether the value that the record restores is a time since the beginning of
/// the call: the sum over callees, which is set to 0 at the entry.
fn collect<'a>(stmts: &'a [Stmt], records: &mut Vec<(&'a CallRecord, bool)>) {
    for stmt in stmts {
        match stmt {
            Stmt::Open(record, body) => {
                let is_time = match (record.restore, body.first()) {
                    (Some(Restore::Value(v)), Some(Stmt::Set(set, Expr::Const(0)))) => v == *set,
                    _ => false,
                };
                records.push((record, is_time));
                collect(body, records);
            }
            Stmt::If(_, body) => collect(body, records),
            _ => {}
        }
    }
}
