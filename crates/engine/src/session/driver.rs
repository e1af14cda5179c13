//! A session with one target, and how it is opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockResult};
use std::time::Duration;

use ingraft_model::Pid;
use ingraft_process::Target;

use crate::api::{EnableRequest, Inserted, MeasurementId};
use crate::error::Error;
use crate::measure::request;
use crate::pairs::counters::CounterPool;
use crate::pairs::{Pairs, SnippetIds};
use crate::program::code_places::CodePlaces;
use crate::program::identity::describe;
use crate::program::modules::Modules;
use crate::recovery::leftover;

use super::children::Family;
use super::clocks::Clocks;
use super::context::Context;
use super::control::{Attached, Control};
use super::costs::{Excesses, Rates};
use super::end::TargetEnd;
use super::errors::journal_error;
use super::exit_point::ExitPoint;
use super::findings::Findings;
use super::kind::Running;
use super::loader::Loader;
use super::looks::{LooksAtHandlers, LooksAtText};
use super::remains::Remains;
use super::shared::Shared;

/// The kinds of all measurements. Their lock is taken after that of the control.
pub(super) type Kinds = BTreeMap<MeasurementId, Box<dyn Running>>;

/// A session with one target.
pub struct Session {
    pub(super) context: Context,
    pub(super) target: Arc<Target>,
    pub(super) owner: u32,
    pub(super) clocks: Clocks,
    control: Mutex<Control>,
    /// The kinds of the measurements. Locked after `control`.
    kinds: Mutex<Kinds>,
    shared: RwLock<Shared>,
    pub(super) end: TargetEnd,
    /// Time until the next look for threads that have ended.
    look_pause: Mutex<Duration>,
    /// Places of keys that are addresses of code. Locked after `control`.
    code_places: Mutex<CodePlaces>,
    rates: Mutex<Rates>,
    pub(super) findings: Findings,
    pub(super) loader: Loader,
    pub(super) exit_point: ExitPoint,
}

impl Session {
    /// Opens a session. The target is not changed, except that the remains of a dead engine are removed. If a thread that sleeps in the
    /// kernel delays the removal, the session begins with that memory.
    pub fn open(context: Context, target: Arc<Target>) -> Result<Self, Error> {
        let failed = |e| Error::process(target.pid(), e);
        let areas = target.find_areas().map_err(failed)?;
        areas.iter().try_for_each(|range| leftover::refuse_held(&target, range))?;
        let lock = lock_target(&context, target.pid())?;
        for range in areas {
            let removed = leftover::restore_area(&context.state, &target, &range)?;
            if removed.memory_left && removed.text_restored {
                return Session::with_memory(context, target, lock, &range, removed);
            }
        }
        Session::with_modules(context, target, lock)
    }

    pub(super) fn with_modules(context: Context, target: Arc<Target>, lock: File) -> Result<Self, Error> {
        let modules = Modules::of(&target)?;
        let owner = target.status().map_err(|e| Error::process(target.pid(), e))?.uid;
        let clocks = Clocks::start(context.clock);
        let control = Control {
            modules,
            attached: None,
            counters: CounterPool::default(),
            pairs: Pairs::default(),
            measurements: BTreeMap::new(),
            minis: SnippetIds::default(),
            lock: Some(lock),
            has_unmeasured: false,
            family: Family::default(),
            remains: Remains::default(),
            handlers: LooksAtHandlers::default(),
            text_looks: LooksAtText::default(),
            excesses: Excesses::default(),
            too_busy: Default::default(),
            closed: false,
        };
        Ok(Session {
            context,
            target,
            owner,
            clocks,
            control: Mutex::new(control),
            kinds: Mutex::default(),
            shared: RwLock::default(),
            end: TargetEnd::default(),
            look_pause: Mutex::default(),
            code_places: Mutex::default(),
            rates: Mutex::default(),
            findings: Findings::default(),
            loader: Loader::default(),
            exit_point: ExitPoint::default(),
        })
    }

    /// Updates the modules to the present mappings.
    pub fn refresh(&self) -> Result<(), Error> {
        self.look_at_modules(&mut self.control()).map(drop)
    }

    /// Checks names of a request against the modules of the target: calls `ask` with them, and returns its result.
    pub fn check_names(&self, ask: impl FnOnce(&Modules) -> Result<(), Error>) -> Result<(), Error> {
        ask(&self.control().modules)
    }

    /// Whether a request to a program that has hardly begun can wait until its libraries are mapped; see [`request::waits_for_libraries`].
    pub fn waits_for_libraries(&self, enable: &EnableRequest) -> bool {
        let control = self.control();
        let whole = (self.context.kind)(&enable.kind).needs_libraries();
        request::waits_for_libraries((&self.target, &self.context.images, &control.modules), enable, whole)
    }

    /// Whether nothing of this session is in the target any more, and no insertion will follow.
    pub fn is_over(&self) -> bool {
        let control = self.control();
        control.lock.is_none() && control.attached.is_none() && control.measurements.is_empty()
    }

    /// The target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Real user id of the target's owner, now or when the target ended.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    pub(super) fn pid(&self) -> Pid {
        self.target.pid()
    }

    /// The session with other clocks.
    pub(super) fn with_clocks(self, clocks: Clocks) -> Self {
        Session { clocks, ..self }
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state that the driver changes, if no other thread is the driver now.
    pub(super) fn try_control(&self) -> TryLockResult<MutexGuard<'_, Control>> {
        self.control.try_lock()
    }

    /// The kinds of the measurements. Locked after the control.
    pub(super) fn kinds(&self) -> MutexGuard<'_, Kinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest rates of hits. Locked after the shared state.
    pub(super) fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places of keys that are addresses of code. Locked after the control.
    pub(super) fn code_places(&self) -> MutexGuard<'_, CodePlaces> {
        self.code_places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time until the next look for threads that have ended.
    pub(super) fn look_pause(&self) -> MutexGuard<'_, Duration> {
        self.look_pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shared(&self) -> RwLockReadGuard<'_, Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shared_mut(&self) -> RwLockWriteGuard<'_, Shared> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failed(&self, e: ingraft_process::ProcessError) -> Error {
        Error::process(self.pid(), e)
    }

    /// Number of woven points, without the loader's hook and the one at the end of the process.
    pub(super) fn points(&self, attached: &Attached) -> u32 {
        let own = usize::from(self.loader.hook().is_some()) + usize::from(self.exit_point.is_woven());
        attached.woven.len().saturating_sub(own) as u32
    }

    /// Code and measurements that are inserted here; `None` if there is no code.
    pub fn inserted(&self) -> Option<Inserted> {
        let control = self.control();
        let attached = control.attached.as_ref()?;
        Some(Inserted {
            pid: self.pid(),
            holder: format!("{} {}", self.context.program, std::process::id()),
            ours: true,
            points: self.points(attached),
            code_bytes: attached.woven.code_bytes(),
            since_ns: attached.since_ns,
            identity: describe(attached.env.identity),
            costs: attached.woven.knows_all().then(|| self.costs(&control, attached)),
            measurements: control.measurements.keys().copied().collect(),
            kept_measurements: control.measurements.iter().filter(|(_, m)| m.keep).map(|(id, _)| *id).collect(),
            kept: control.measurements.values().filter(|m| m.keep).count() as u32,
            warnings: self.disturbances(&control),
        })
    }
}

pub(super) fn lock_target(context: &Context, pid: Pid) -> Result<File, Error> {
    let lock = context.state.lock_target(pid).map_err(|e| journal_error(pid, &e))?;
    lock.ok_or_else(|| leftover::held(pid, "another ingraft", context.state.lock_holder(pid)))
}
