//! Fork children that are measured with their parent begin with the state of the thread that forked: flags are up, timers run, and calls
//! are open as they were in the parent. Counts begin with 0, and time before the birth belongs to the parent alone.
//!
//! Once a pair has a state, the engine weaves snippets at the entry and the exits of the C library's fork. `layout::birth` describes them.

use std::collections::BTreeSet;
use std::sync::Arc;

use ingraft_mdl::ProgramFacts as _;
use ingraft_model::layout::{COUNTERS, DEFAULT_STRIDE, TOP, birth};
use ingraft_model::{FunctionId, PointKind, Snippet, Stmt, ThreadIdentity, WallClock};
use ingraft_process::SharedArea;

use crate::error::Error;
use crate::pairs::BoundPair;
use crate::program::modules::{ModuleFile, Modules};
use crate::weaving::wanted::{NewMini, WantedPoints};

use super::children::{Amiss, Births, has_state, rules_of};
use super::control::Control;
use super::driver::Session;
use super::insertion_stop::InsertionStop;

/// Names of the function that makes the fork system call and sets the id of the child's thread. The first list is for glibc since 2.34 and
/// for musl, the second for earlier versions of glibc.
const FORKS: [&[&str]; 2] = [&["_Fork"], &["__libc_fork", "fork"]];

impl Session {
    /// Prepares for forks of threads that have a state. `bound` lists the pairs whose code is woven next, with their counters.
    pub(super) fn prepare_births(
        &self,
        control: &mut Control,
        bound: &[BoundPair],
        stop: &InsertionStop,
    ) -> Result<(), Error> {
        let Some(attached) = control.attached.as_ref().filter(|_| control.family.counts()) else { return Ok(()) };
        let area = Arc::clone(&attached.area);
        if area.layout().stride > DEFAULT_STRIDE {
            // With such large shards, each fork would copy tens of megabytes.
            if bound.iter().any(|(_, i, _)| has_state(i)) {
                let why = "so much is measured that a fork would take long".to_owned();
                control.family.set_births(Births::Unknown(why));
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
        if *control.family.births() == Births::NotNeeded && bound.iter().any(|(_, i, _)| has_state(i)) {
            let births = self.weave_fork(control, &area, stop.beside());
            if let Some(warning) = births.warning() {
                tracing::debug!(warning, "fork is not woven");
            }
            control.family.set_births(births);
        }
        Ok(())
    }

    /// Weaves fork if it was needed before but not mapped. Must be called after more modules were mapped.
    pub(super) fn look_for_fork_again(&self, control: &mut Control) {
        let area = control.attached.as_ref().map(|attached| Arc::clone(&attached.area));
        if let Some(area) = area.filter(|_| *control.family.births() == Births::Absent) {
            let births = self.weave_fork(control, &area, InsertionStop::default());
            control.family.set_births(births);
        }
    }

    fn weave_fork(&self, control: &mut Control, area: &SharedArea, mut stop: InsertionStop) -> Births {
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
            for (kind, snippet) in [(PointKind::Entry, &before), (PointKind::Exit, &after)] {
                let minis = vec![NewMini::plain(control.minis.take(), 0, snippet)];
                wanted.push(WantedPoints { function, kind, minis });
            }
        }
        match self.change(control, &wanted, &|_| &[], &mut stop) {
            Ok((refused, _)) => match refused.values().next() {
                Some(reason) => Births::Unknown(format!("its fork cannot be woven ({reason})")),
                None => area.follow_births().map_or_else(|e| Births::Unknown(e.to_string()), |()| Births::Followed),
            },
            Err(error) => Births::Unknown(error.what),
        }
    }

    /// Returns the functions of [`FORKS`] in the C library or, if none is mapped, in any module.
    fn forks(&self, modules: &Modules) -> Vec<FunctionId> {
        let is_libc = ModuleFile::is_c_library;
        for error in modules.load_files(&self.target, &self.context.images, &is_libc) {
            tracing::debug!(%error, "the C library cannot be looked into");
        }
        let has_library = modules.loaded().any(|(_, file, _)| is_libc(file));
        let fits = |f: &FunctionId| !has_library || modules.file(f.module).is_some_and(is_libc);
        let named = |names: &[&str]| -> BTreeSet<FunctionId> {
            names.iter().flat_map(|name| modules.functions_named(name)).filter(fits).collect()
        };
        let found = FORKS.iter().map(|names| named(names)).find(|found| !found.is_empty());
        found.unwrap_or_default().into_iter().collect()
    }

    /// The warnings about fork children for the end of a measurement.
    pub(super) fn births_warnings(&self, control: &Control) -> Vec<String> {
        self.births_amiss(control).into_iter().chain(self.uncounted_children(control)).collect()
    }

    /// Returns the warning about children that began without the state of their parents.
    fn births_amiss(&self, control: &Control) -> Option<String> {
        control.family.births().last_warning(|| {
            let missed = control.attached.as_ref()?.area.births_missed().ok()?;
            Some(Amiss { missed, stateless: self.shared().roster().children().stateless() })
        })
    }

    /// The warning about fork children that have run measured functions, and whose calls count for nobody.
    fn uncounted_children(&self, control: &Control) -> Option<String> {
        let attached = control.attached.as_ref().filter(|_| !control.family.counts())?;
        let children = attached.area.children().ok()?;
        let what = match children.count {
            0 => return None,
            1 => "1 process that it has made by fork has run measured functions: its calls are not counted".to_owned(),
            many => format!(
                "{many} processes that it has made by fork have run measured functions: their calls are not counted"
            ),
        };
        let remedy = match attached.env.identity {
            ThreadIdentity::FsOffset(_) => " (`--follow fork` counts them)",
            ThreadIdentity::FsBase | ThreadIdentity::Locked => "",
        };
        Some(what + remedy)
    }
}
