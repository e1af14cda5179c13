//! The engine: the sessions with targets, the requests of callers, and the callers' rights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use ingraft_mdl::{Diagnostic, EventReadMethod, Library};
use ingraft_model::{MetricInfo, Pid};
use ingraft_process::{EventError, PerfEvent, ProcessIdentity, Rights, Target};
use ingraft_report::{SavedProfile, TraceChunk, TracedCode, TracedProgram};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::api::*;
use crate::background::in_background;
use crate::error::{Error, Reason};
use crate::kinds;
use crate::kinds::expressions;
use crate::measure::internal::Internal;
use crate::measure::lower;
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::images::ImageStore;
use crate::program::labels;
use crate::program::modules::Modules;
use crate::program::pattern::glob_match;
use crate::recovery::leftover;
use crate::session::replaced::Before;
use crate::session::{AtEnd, Context, NewMeasurement, Session};
use crate::state_dir::StateDir;
use crate::undertaking;
use crate::weaving::outlook::outlook;
use crate::weaving::sites::Text;

/// Time between two looks at the threads of a target.
const WATCH: Duration = Duration::from_millis(100);

/// Time between two checks, when the engine ends, whether the opening of a session is complete.
const SHUTDOWN_LOOK: Duration = Duration::from_millis(5);

/// Number of looks between two computations of the costs of the target's measurements.
const COSTS_EVERY: u32 = 4;

/// Number of looks between two searches for libraries that were loaded meanwhile.
const MODULES_EVERY: u32 = 10;
/// Number of looks between two checks whether other programs have changed woven code.
const CODE_EVERY: u32 = 100;

mod code;
mod listing;
mod sampling;

pub use self::sampling::Sampling;

/// The engine. A handle is cheap to clone, and all callers share one engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineState>,
}

struct EngineState {
    context: Context,
    /// Sources that apply to every request, the shipped ones first.
    sources: RwLock<Vec<(String, String)>>,
    library: RwLock<Arc<Library>>,
    sessions: Mutex<BTreeMap<Pid, Arc<Session>>>,
    /// Lock that is held while a session is opened, so that two requests for one target do not both open one. The value is true once the
    /// engine has ended; then no session is opened.
    opening: Mutex<bool>,
    measurements: Mutex<FxHashMap<MeasurementId, Pid>>,
    next_id: AtomicU64,
    /// Number of samplings.
    samplings: Arc<AtomicUsize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts an engine: checks that the state directory is writable, and loads the shipped metrics.
    pub fn start(config: Config) -> Result<Engine, Error> {
        Ok(Engine::in_directory(StateDir::open(&config.state_dir)?, config))
    }

    /// Starts an engine that is asked for removals only. The state directory need not be writable.
    pub fn start_for_removal(config: Config) -> Engine {
        Engine::in_directory(StateDir::for_removal(&config.state_dir), config)
    }

    fn in_directory(state: StateDir, config: Config) -> Engine {
        crate::background::start();
        state.sweep(&|pid, start| {
            ProcessIdentity::of(pid).is_ok_and(|now| start.is_none_or(|start| now.start_time == start))
        });
        let images = Arc::new(ImageStore::new(state.clone()));
        let sources: Vec<_> =
            ingraft_mdl::shipped::FILES.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let (library, _) = load_all(&sources);
        let Config { program, max_overhead, clock, .. } = config;
        let next_id = AtomicU64::new(state.first_id(crate::session::now_ns() / 1000));
        let context = Context { state, images, program, max_overhead, clock, kind: kinds::new };
        Engine {
            inner: Arc::new(EngineState {
                context,
                sources: RwLock::new(sources),
                library: RwLock::new(Arc::new(library)),
                sessions: Mutex::default(),
                opening: Mutex::default(),
                measurements: Mutex::default(),
                next_id,
                samplings: Arc::default(),
            }),
        }
    }

    /// Directory of the journal, the locks and the cache.
    pub fn state_dir(&self) -> &Path {
        self.inner.context.state.path()
    }

    /// Takes over what dead engines with this state directory left in living targets. Measurements that were to stay go on and are
    /// returned; the rest is removed.
    pub fn recover(&self) -> Vec<Result<Inserted, Error>> {
        let mut out = Vec::new();
        for (pid, start_time, path) in self.inner.context.state.journals() {
            let alive = Target::open(pid).ok().filter(|t| t.identity().start_time == start_time);
            let Some(target) = alive else {
                // The target is gone, and the journal with it has nothing left to restore.
                let _ = std::fs::remove_file(path);
                continue;
            };
            match self.recover_one(Arc::new(target)) {
                Ok(Some(inserted)) => out.push(Ok(inserted)),
                Ok(None) => {}
                Err(e) => out.push(Err(e)),
            }
        }
        out
    }

    fn recover_one(&self, target: Arc<Target>) -> Result<Option<Inserted>, Error> {
        Ok(self.adopt(&target)?.and_then(|session| self.take_up(session).inserted()))
    }

    /// Takes over the measurements that a dead engine was asked to keep in a target, and removes the rest. The session is not registered
    /// yet.
    fn adopt(&self, target: &Arc<Target>) -> Result<Option<Arc<Session>>, Error> {
        let known = self.library_with(&[])?;
        let library = |definitions: &[(String, String)]| {
            if definitions.is_empty() {
                return Arc::clone(&known);
            }
            let sources = self.inner.sources.read().unwrap_or_else(PoisonError::into_inner);
            // The request was accepted once, so its measurement needs no definition that has an error.
            Arc::new(load_all(&[&sources, definitions].concat()).0)
        };
        let adopted = Session::adopt(self.inner.context.clone(), Arc::clone(target), &library)?;
        Ok(adopted.map(Arc::new))
    }

    /// Registers a session that has taken over the measurements of a dead engine, so that callers find it.
    fn take_up(&self, session: Arc<Session>) -> Arc<Session> {
        let pid = session.target().pid();
        for id in session.measurements() {
            lock(&self.inner.measurements).insert(id, pid);
            self.inner.next_id.fetch_max(id.0 + 1, Ordering::Relaxed);
        }
        lock(&self.inner.sessions).insert(pid, Arc::clone(&session));
        self.watch(&session);
        session
    }

    /// The processes of this machine that meet the conditions, and whether each can be attached to. If the filter has a name or a control
    /// group, kernel threads and the engine's own process are left out.
    pub fn processes(&self, filter: &ProcessFilter, caller: Caller) -> Result<Vec<ProcessEntry>, Error> {
        let ProcessFilter { glob, name, cgroup } = filter;
        let found = match (name, cgroup) {
            (None, None) => ingraft_process::processes(),
            (name, cgroup) => chosen(name.as_deref(), cgroup.as_deref())?,
        };
        let wanted = |p: &ingraft_process::ProcessInfo| {
            glob.as_deref().is_none_or(|glob| {
                let argv0 = p.command.first().map_or("", |a| a.rsplit('/').next().unwrap_or(a));
                glob_match(glob, &p.name) || glob_match(glob, argv0)
            })
        };
        let sessions: Vec<_> = lock(&self.inner.sessions).values().cloned().collect();
        let entry = |p: ingraft_process::ProcessInfo| {
            // arguments and measurements of a process are not shown to callers who may not trace it
            let permitted = permit(p.pid, caller);
            let may_know = permitted.is_ok();
            let title = if may_know { p.title() } else { String::new() };
            let denied = p.attachable.err().map(|d| Denied { why: d.to_string(), hint: d.hint() });
            let denied = denied.or_else(|| {
                let e = permitted.err()?;
                Some(Denied { hint: e.hint(), why: e.what })
            });
            let with_parent = may_know && sessions.iter().any(|s| s.target().pid() != p.pid && s.is_followed(p.pid));
            ProcessEntry { pid: p.pid, name: p.name, uid: p.uid, denied, parent: p.parent, title, with_parent }
        };
        Ok(found.into_iter().filter(wanted).map(entry).collect())
    }

    /// The living children of processes that have memory of their own, as (child, parent). A parent that the caller may not trace, or that
    /// is gone, has no children here. In place of a child that is measured with its parent, the child's own children are returned.
    pub fn children(&self, parents: &[Pid], caller: Caller) -> Result<Vec<(Pid, Pid)>, Error> {
        let mut found = Vec::new();
        for parent in parents.iter().filter(|parent| permit(**parent, caller).is_ok()) {
            let children = ingraft_process::children(*parent).ok_or_else(|| {
                let what = "the kernel does not tell the children of a process (CONFIG_PROC_CHILDREN)";
                Error::new(Reason::NoChildren, what, "measure them one by one with -p PID")
            })?;
            let session = lock(&self.inner.sessions).get(parent).cloned();
            let mut children: Vec<_> = children.into_iter().map(|child| (child, *parent)).collect();
            while let Some((child, parent)) = children.pop() {
                if session.as_ref().is_some_and(|s| s.is_followed(child)) {
                    let theirs = ingraft_process::children(child).unwrap_or_default();
                    children.extend(theirs.into_iter().map(|grandchild| (grandchild, child)));
                } else if ingraft_process::has_memory(child) {
                    // a child that is ending has no memory mapped any more; it may have been measured, and its values are kept
                    found.push((child, parent));
                }
            }
        }
        Ok(found)
    }

    /// Functions of a target that match any of the patterns (all without a pattern). With `blocks`, the summaries include basic blocks and edges.
    /// `progress` is called from time to time with a line of text.
    pub fn functions(
        &self,
        target: &TargetSpec,
        patterns: &[String],
        blocks: bool,
        caller: Caller,
        progress: &dyn Fn(&str),
    ) -> Result<FunctionList, Error> {
        let pid = resolve(target, caller)?;
        let before = Before::of(pid, caller);
        self.functions_of(pid, patterns, blocks, caller, progress).map_err(|e| before.explain(e))
    }

    fn functions_of(
        &self,
        pid: Pid,
        patterns: &[String],
        blocks: bool,
        caller: Caller,
        progress: &dyn Fn(&str),
    ) -> Result<FunctionList, Error> {
        let target = open(pid, caller)?;
        let modules = Modules::of(&target)?;
        let everything = ["*".to_owned()];
        let patterns = if patterns.is_empty() { &everything } else { patterns };
        let parsed: Vec<_> = patterns.iter().map(|p| crate::program::pattern::Pattern::parse(p)).collect();
        modules.load(&target, &self.inner.context.images, &parsed, progress);
        let found = resolve_patterns(&modules, patterns, Missing::Fails)?;
        progress("looking at the points");
        let outlook = outlook(&target, &modules, &found);
        let text = Text::untouched(&target);
        let describe = |function| listing::describe(&text, &modules, function, outlook.get(&function), blocks);
        let functions = in_background(|| found.par_iter().copied().filter_map(describe).collect());
        let untyped = labels::untyped(&modules, &parsed);
        // The functions may be those of a program that the caller may not trace, if the process has started one meanwhile.
        target.check(caller.rights()).map_err(|e| Error::process(pid, e))?;
        Ok(FunctionList { pid, functions, untyped })
    }

    /// The known metrics: the shipped ones, those defined in this engine, and those of these additional sources.
    pub fn metrics(&self, definitions: &[(String, String)]) -> Result<Vec<MetricInfo>, Error> {
        let library = self.library_with(definitions)?;
        let own = Internal::ALL.into_iter().map(Internal::info).filter(|own| library.metric(&own.name).is_none());
        let mut metrics: Vec<MetricInfo> = library.metrics().iter().map(|m| MetricInfo::clone(m)).chain(own).collect();
        metrics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(metrics)
    }

    /// The events that metrics can name, and whether this machine counts them. Each event is tried on the engine's own process.
    pub fn events(&self) -> Vec<EventEntry> {
        let entry = |event: ingraft_process::ListedEvent| EventEntry {
            at_points: at_points(&event),
            name: event.name,
            aliases: event.aliases,
            group: event.group,
            problem: event.problem.map(|problem| problem.reason()),
        };
        ingraft_process::event_list().into_iter().map(entry).collect()
    }

    /// Code of metrics as text and as machine code, and its cost on this machine. Changes no process.
    pub fn lower(&self, request: &LowerRequest, caller: Caller) -> Result<Vec<LoweredMetric>, Error> {
        let library = self.library_with(&request.definitions)?;
        let target = match &request.target {
            Some(target) => Some(open(resolve(target, caller)?, caller)?),
            None => None,
        };
        let images = &self.inner.context.images;
        let lowered = lower::lower(&library, request, target.as_ref(), images, self.inner.context.clock)?;
        if let Some(target) = target {
            target.check(caller.rights()).map_err(|e| Error::process(target.pid(), e))?;
        }
        Ok(lowered)
    }

    /// Checks MDL sources (name, text) without keeping them.
    pub fn check(&self, definitions: &[(String, String)]) -> Vec<Diagnostic> {
        let mut sources = self.inner.sources.read().unwrap_or_else(PoisonError::into_inner).clone();
        sources.extend_from_slice(definitions);
        load_all(&sources).1
    }

    /// Defines metrics for all later requests; on an error, none of them.
    pub fn define(&self, definitions: &[(String, String)]) -> Result<Vec<Diagnostic>, Error> {
        let mut sources = self.inner.sources.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = sources.clone();
        all.extend_from_slice(definitions);
        let (library, diagnostics) = load_all(&all);
        if diagnostics.iter().any(Diagnostic::is_error) {
            return Err(Error::mdl(diagnostics));
        }
        *sources = all;
        *self.inner.library.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(library);
        Ok(diagnostics)
    }

    /// Definitions for a request, and one line for each definition that is wrong but not needed.
    fn library_for(&self, request: &EnableRequest) -> Result<(Arc<Library>, Vec<String>), Error> {
        let defined = expressions::defined(&request.kind);
        if request.definitions.is_empty() && defined.is_empty() {
            return Ok((self.library_with(&[])?, Vec::new()));
        }
        let mut sources = self.inner.sources.read().unwrap_or_else(PoisonError::into_inner).clone();
        sources.extend_from_slice(&request.definitions);
        sources.extend(defined.iter().map(|defined| defined.source.clone()));
        let (library, mut diagnostics) = load_all(&sources);
        diagnostics.retain(Diagnostic::is_error);
        let own = |metric: &str| Internal::ALL.into_iter().any(|own| own.info().name == metric);
        let concerned = |metric: &str| library.concerned(metric) && !own(metric);
        let by_function = request.function_metrics.iter().map(String::as_str).filter(|_| !request.functions.is_empty());
        let own_metrics = defined.iter().map(|defined| defined.metric.as_str());
        let mut asked = request.pairs.iter().map(|pair| pair.metric.as_str()).chain(by_function).chain(own_metrics);
        if !diagnostics.is_empty() && asked.any(concerned) {
            return Err(Error::mdl(diagnostics));
        }
        let left_out = diagnostics
            .into_iter()
            .map(|d| format!("{}:{}:{}: {}; the definition is left out", d.file, d.line, d.column, d.message));
        Ok((Arc::new(library), left_out.collect()))
    }

    fn library_with(&self, definitions: &[(String, String)]) -> Result<Arc<Library>, Error> {
        if definitions.is_empty() {
            return Ok(Arc::clone(&self.inner.library.read().unwrap_or_else(PoisonError::into_inner)));
        }
        let mut sources = self.inner.sources.read().unwrap_or_else(PoisonError::into_inner).clone();
        sources.extend_from_slice(definitions);
        let (library, diagnostics) = load_all(&sources);
        if diagnostics.iter().any(Diagnostic::is_error) {
            return Err(Error::mdl(diagnostics));
        }
        Ok(Arc::new(library))
    }

    /// Inserts a measurement.
    pub fn enable(&self, request: &EnableRequest, caller: Caller, progress: &dyn Fn(&str)) -> Result<Enabled, Error> {
        let begin = Instant::now();
        let (library, left_out) = self.library_for(request)?;
        let pid = resolve(&request.target, caller)?;
        let before = Before::of(pid, caller);
        let (library, rights) = (&library, caller.rights());
        let enable = || {
            let (session, is_new) = self.session(pid, caller)?;
            // A session that exists may be changed before the insertion itself.
            if is_new {
                undertaking::plan();
            }
            self.enable_in(&session, is_new, (library, rights), request, begin, progress)
        };
        let enabled = match enable() {
            // the removal that ended the session was completed between its look-up and the request
            Err(e) if e.reason == Reason::SessionOver => enable(),
            other => other,
        };
        let enabled = enabled.map(|mut enabled| {
            enabled.warnings.extend(left_out);
            enabled
        });
        // a failure after the end of the program is a consequence of that end
        enabled.map_err(|e| before.explain(e))
    }

    fn enable_in(
        &self,
        session: &Arc<Session>,
        is_new: bool,
        (library, rights): (&Arc<Library>, Rights),
        request: &EnableRequest,
        begin: Instant,
        progress: &dyn Fn(&str),
    ) -> Result<Enabled, Error> {
        let id = self.new_id()?;
        let missing = if request.await_modules { Missing::ModulesMayCome } else { Missing::Fails };
        let enabled = session.enable(&NewMeasurement { id, rights, library, request, missing, begin, progress });
        let enabled = enabled.and_then(|enabled| {
            if request.await_modules
                && let Err(e) = session.await_modules(id)
            {
                if let Err(error) = session.remove(id) {
                    tracing::warn!(%error, "a measurement that failed could not be removed");
                }
                return Err(e);
            }
            Ok(enabled)
        });
        self.enter(session, is_new, id, enabled)
    }

    /// An id that no measurement had before, in this engine or in earlier ones with the same state directory.
    fn new_id(&self) -> Result<MeasurementId, Error> {
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        self.inner.context.state.use_id(id)?;
        Ok(MeasurementId(id))
    }

    /// Registers a measurement that its session has begun. If it failed, forgets the session that was opened for it.
    fn enter(
        &self,
        session: &Arc<Session>,
        is_new: bool,
        id: MeasurementId,
        enabled: Result<Enabled, Error>,
    ) -> Result<Enabled, Error> {
        match &enabled {
            Ok(_) => {
                lock(&self.inner.measurements).insert(id, session.target().pid());
                if is_new {
                    self.watch(session);
                }
            }
            // the session has memory of a dead engine to remove, so it stays
            Err(_) if is_new && session.is_unfinished() => self.watch(session),
            Err(_) if is_new => self.forget(session),
            Err(e) if e.reason == Reason::SessionOver => self.forget(session),
            Err(_) => {}
        }
        enabled
    }

    /// The session with a target, and whether this call opened it.
    fn session(&self, pid: Pid, caller: Caller) -> Result<(Arc<Session>, bool), Error> {
        let ended = lock(&self.inner.opening);
        if *ended {
            return Err(crate::session::ending(pid));
        }
        if let Some(session) = lock(&self.inner.sessions).get(&pid)
            && session.target().is_alive()
        {
            session.target().check(caller.rights()).map_err(|e| Error::process(pid, e))?;
            return Ok((Arc::clone(session), false));
        }
        let target = Arc::new(open(pid, caller)?);
        // These rights end before other threads see the session, because each thread sets its own.
        let acting = target.act_for(caller.rights());
        let has_area = !target.find_areas().map_err(|e| Error::process(pid, e))?.is_empty();
        if has_area && let Some(session) = self.adopt(&target)? {
            drop(acting);
            return Ok((self.take_up(session), false));
        }
        let session = Arc::new(Session::open(self.inner.context.clone(), Arc::clone(&target))?);
        drop(acting);
        lock(&self.inner.sessions).insert(pid, Arc::clone(&session));
        Ok((session, true))
    }

    /// Number of targets that the engine has opened, those of insertions in progress included.
    pub fn targets(&self) -> usize {
        lock(&self.inner.sessions).len()
    }

    fn forget(&self, session: &Arc<Session>) {
        let pid = session.target().pid();
        let mut sessions = lock(&self.inner.sessions);
        if sessions.get(&pid).is_some_and(|s| Arc::ptr_eq(s, session)) {
            sessions.remove(&pid);
        }
    }

    /// Starts the threads that look after a session until the session or its target ends.
    fn watch(&self, session: &Arc<Session>) {
        let engine = Arc::downgrade(&self.inner);
        let forget = move |session: &Session| {
            if let Some(inner) = engine.upgrade() {
                lock(&inner.sessions).retain(|_, s| !std::ptr::eq(Arc::as_ptr(s), session));
            }
        };
        let looks = move |round: u32, session: &Session| {
            let lives = session.watch(WATCH);
            let is_over = if lives { session.finish_removal() } else { session.end_unfinished() };
            if is_over {
                forget(session);
            }
            if is_over || !lives {
                return false;
            }
            session.tick();
            session.give_up_rewritten();
            if round.is_multiple_of(COSTS_EVERY) {
                session.hold_limits();
            }
            if round.is_multiple_of(MODULES_EVERY) {
                session.notice_modules();
            }
            if round.is_multiple_of(CODE_EVERY) {
                session.notice_disturbances();
            }
            true
        };
        if let Err(error) = attend("watch", session, looks) {
            tracing::warn!(%error, "no thread to watch a target with; its end will be noticed late");
        }
        // A client that is told of the measurement may rely on it for libraries that are loaded from then on. In a program that the engine
        // has started, threads wait already.
        if !session.listens_to_loader() {
            session.follow_loader(Duration::ZERO);
        }
        let follows = |_, session: &Session| {
            session.follow_loader(WATCH);
            session.target().is_alive()
        };
        if let Err(error) = attend("loader", session, follows) {
            tracing::warn!(%error, "no thread to follow the loader with; libraries will be noticed late");
            session.release_loader();
        }
    }

    /// Starts a program, inserts a measurement before its first instruction, and lets it run. Modules that it loads at its start are woven
    /// in the stop in which they were mapped, so that their constructors are counted.
    pub fn launch(&self, request: &LaunchRequest, caller: Caller, progress: &dyn Fn(&str)) -> Result<Enabled, Error> {
        let begin = Instant::now();
        if let Rights::User { uid, .. } = caller.rights() {
            let what = format!("user {uid} may not start programs as the daemon's user");
            return Err(Error::new(Reason::NotPermitted, what, "start it yourself and name it with -p PID"));
        }
        let (library, left_out) = self.library_for(&request.enable)?;
        let id = self.new_id()?;
        let started =
            crate::session::launch::start(self.inner.context.clone(), id, request, &library, begin, progress)?;
        let (session, mut enabled) = started;
        enabled.warnings.extend(left_out);
        let session = Arc::new(session);
        let ended = lock(&self.inner.opening);
        if *ended {
            session.detach()?;
            return Err(crate::session::ending(session.target().pid()));
        }
        lock(&self.inner.sessions).insert(session.target().pid(), Arc::clone(&session));
        drop(ended);
        self.enter(&session, true, id, Ok(enabled))
    }

    fn of_measurement(&self, id: MeasurementId, caller: Caller) -> Result<Arc<Session>, Error> {
        let missing =
            || Error::new(Reason::NoSuchMeasurement, format!("no measurement {}", id.0), "`ingraft status` lists them");
        let pid = lock(&self.inner.measurements).get(&id).copied().ok_or_else(missing)?;
        let session = lock(&self.inner.sessions).get(&pid).cloned().ok_or_else(missing)?;
        match caller.rights() {
            Rights::User { uid, .. } if uid != session.owner() => Err(missing()),
            // After the end of the target only its values are left, which belong to its owner.
            _ if !session.target().is_alive() || session.has_ended() => Ok(session),
            rights @ (Rights::All | Rights::User { .. }) => match session.target().check(rights) {
                Ok(()) if rights != Rights::All && session.is_revoked(id) => {
                    let what = format!("process {pid} was protected for a while, and the measurement was taken out");
                    Err(Error::new(Reason::NotPermitted, what, "begin another one").about(pid))
                }
                Ok(()) => Ok(session),
                Err(e) if e.is_gone() => Ok(session),
                Err(e) => Err(Error::process(pid, e)),
            },
        }
    }

    /// The pairs of a measurement, in the order of its values.
    pub fn pairs(&self, id: MeasurementId, caller: Caller) -> Result<(Pid, Arc<Vec<PairInfo>>), Error> {
        let session = self.of_measurement(id, caller)?;
        Ok((session.target().pid(), session.pairs(id)?))
    }

    /// Reads the values without stopping the target. After the target's end the last values stay readable until the measurement is removed.
    pub fn read(&self, id: MeasurementId, threads: bool, caller: Caller) -> Result<Reading, Error> {
        self.of_measurement(id, caller)?.read(id, threads)
    }

    /// Counts of all blocks and edges of a profile's functions, at one moment at which all threads of the target are held.
    pub fn profile(&self, id: MeasurementId, caller: Caller) -> Result<SavedProfile, Error> {
        kinds::read_profile(&*self.of_measurement(id, caller)?, id)
    }

    /// The program and the functions of a trace, for the beginning of its file.
    pub fn traced(&self, id: MeasurementId, caller: Caller) -> Result<(TracedProgram, TracedCode), Error> {
        kinds::traced(&*self.of_measurement(id, caller)?, id)
    }

    /// The calls that a measurement has printed since the last call. Does not stop the target.
    pub fn take_printed(&self, id: MeasurementId, caller: Caller) -> Result<PrintedCalls, Error> {
        kinds::take_printed(&*self.of_measurement(id, caller)?, id)
    }

    /// The tokens that the threads of a trace have written since the last call. Does not stop the target.
    pub fn take_trace(&self, id: MeasurementId, caller: Caller) -> Result<Vec<TraceChunk>, Error> {
        kinds::trace::take(&*self.of_measurement(id, caller)?, id)
    }

    /// Event totals of each thread in a profile's functions, at one moment at which all threads of the target are held.
    pub fn event_totals(&self, id: MeasurementId, caller: Caller) -> Result<TotalsReading, Error> {
        kinds::read_totals(&*self.of_measurement(id, caller)?, id)
    }

    /// Calls a listener as soon as the target of a measurement has ended, if the listener still exists then.
    pub fn at_end(&self, id: MeasurementId, caller: Caller, tell: &Arc<AtEnd>) -> Result<(), Error> {
        self.of_measurement(id, caller)?.at_end(tell);
        Ok(())
    }

    /// Removes a measurement. The removal of a target's last measurement takes everything out of it.
    pub fn remove(&self, id: MeasurementId, caller: Caller) -> Result<Removed, Error> {
        let session = self.of_measurement(id, caller)?;
        let pid = session.target().pid();
        let is_last = lock(&self.inner.measurements).values().filter(|of| **of == pid).count() == 1;
        if is_last {
            session.release_loader();
        }
        let (removed, over) = session.remove(id).map_err(Error::at_removal)?;
        lock(&self.inner.measurements).remove(&id);
        if over {
            self.forget(&session);
        }
        Ok(removed)
    }

    /// Sets whether a measurement stays when its client goes away.
    pub fn keep(&self, id: MeasurementId, keep: bool, caller: Caller) -> Result<(), Error> {
        self.of_measurement(id, caller)?.keep(id, keep)
    }

    /// Targets with inserted code, of this engine and of other engines that the caller may see.
    pub fn status(&self, caller: Caller) -> Result<Vec<Inserted>, Error> {
        let sessions: Vec<_> = lock(&self.inner.sessions).values().cloned().collect();
        let mut out: Vec<Inserted> = sessions.iter().filter_map(|s| s.inserted()).collect();
        for pid in leftover::instrumented() {
            if out.iter().any(|i| i.pid == pid) {
                continue;
            }
            let Ok(target) = open(pid, caller) else { continue };
            // An error means that the caller may not look into the process, so nothing is reported about it.
            out.extend(leftover::inserted_by_others(&self.inner.context.state, &Arc::new(target)).ok().flatten());
        }
        out.retain(|i| permit(i.pid, caller).is_ok());
        out.sort_by_key(|i| i.pid);
        Ok(out)
    }

    /// Passes the figures of each target of this engine to `visit`, each followed by the values of the measurements that stay in the
    /// target. No target is stopped. Waits at most `wait` in all for targets that are being changed.
    ///
    /// The target with the oldest measurement comes first, so a reader with a limit does not lose what it had for something new.
    pub fn survey(&self, wait: Duration, visit: &mut dyn FnMut(SurveyPart)) {
        let deadline = Instant::now() + wait;
        let mut sessions: Vec<_> = lock(&self.inner.sessions).values().cloned().collect();
        let mut oldest: FxHashMap<Pid, MeasurementId> = FxHashMap::default();
        for (id, pid) in lock(&self.inner.measurements).iter() {
            oldest.entry(*pid).and_modify(|known| *known = (*known).min(*id)).or_insert(*id);
        }
        sessions.sort_by_key(|session| oldest.get(&session.target().pid()).map_or(u64::MAX, |id| id.0));
        sessions.iter().for_each(|session| session.survey(deadline, visit));
    }

    /// Removes everything from a target, including what a dead engine left there. `None` if there was nothing.
    pub fn detach(&self, target: &TargetSpec, caller: Caller) -> Result<Option<Removed>, Error> {
        let pid = resolve(target, caller)?;
        let failed = |e| Error::process(pid, e);
        let target = Arc::new(open(pid, caller)?);
        let session = lock(&self.inner.sessions).get(&pid).cloned();
        if let Some(session) = session {
            let removed = session.detach().map_err(Error::at_removal)?;
            lock(&self.inner.measurements).retain(|_, p| *p != pid);
            if !session.is_unfinished() {
                self.forget(&session);
            }
            return Ok(Some(removed));
        }
        let _rights = target.act_for(caller.rights());
        if target.find_areas().map_err(failed)?.is_empty() {
            return Ok(None);
        }
        leftover::take_over(&self.inner.context.state, &target).map(Some).map_err(Error::at_removal)
    }

    /// Ends the engine: removes every measurement except those that are to be kept in their targets. A target whose removal takes longer
    /// than `at_most` is named by an error and left to the journal.
    pub fn shutdown(&self, at_most: Duration) -> Vec<Result<Removed, Error>> {
        let deadline = Instant::now() + at_most;
        let (sender, done) = std::sync::mpsc::channel();
        let mut waiting: BTreeSet<Pid> = BTreeSet::new();
        let mut out = Vec::new();
        // the opening of a session holds this lock, and may hang
        let ended = loop {
            match self.inner.opening.try_lock() {
                Ok(ended) => break Some(ended),
                Err(TryLockError::Poisoned(e)) => break Some(e.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(SHUTDOWN_LOOK),
                Err(TryLockError::WouldBlock) => break None,
            }
        };
        let sessions = std::mem::take(&mut *lock(&self.inner.sessions));
        lock(&self.inner.measurements).clear();
        if let Some(mut ended) = ended {
            *ended = true;
        }
        for (pid, session) in sessions {
            let sender = sender.clone();
            let shut_down = move || drop(sender.send((pid, session.shut_down())));
            match std::thread::Builder::new().name("shutdown".to_owned()).spawn(shut_down) {
                Ok(_) => drop(waiting.insert(pid)),
                Err(_) => out.push(Err(late(pid))),
            }
        }
        while !waiting.is_empty() {
            match done.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((pid, removed)) => {
                    waiting.remove(&pid);
                    out.extend(removed.transpose());
                }
                Err(_) => break,
            }
        }
        out.extend(waiting.into_iter().map(|pid| Err(late(pid))));
        out
    }
}

/// The error for a target from which the end of the engine could not remove everything in time.
fn late(pid: Pid) -> Error {
    let what = format!("process {pid} did not let go of what is inserted in time");
    let hint = "`ingraft detach`, or the next ingraftd with the same state directory, removes it";
    Error::new(Reason::ShutdownTimeout, what, hint).about(pid)
}

/// Starts a thread that calls `each` with the number of the round, until `each` returns false or the session ends.
fn attend(
    name: &str,
    session: &Arc<Session>,
    each: impl Fn(u32, &Session) -> bool + Send + 'static,
) -> std::io::Result<()> {
    let weak = Arc::downgrade(session);
    let rounds = move || {
        for round in 1u32.. {
            let Some(session) = weak.upgrade() else { return };
            if session.is_over() || !each(round, &session) {
                return;
            }
        }
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(rounds).map(drop)
}

fn load_all(sources: &[(String, String)]) -> (Library, Vec<Diagnostic>) {
    let mut library = Library::new(ingraft_mdl::ParseOptions::default());
    let mut diagnostics = Vec::new();
    for (name, text) in sources {
        diagnostics.extend(library.load(name, text));
    }
    (library, diagnostics)
}

/// The one process that a target specification selects. Of several processes with a name, those that the caller may not trace do not count.
fn resolve(target: &TargetSpec, caller: Caller) -> Result<Pid, Error> {
    let name = match target {
        TargetSpec::Pid(pid) => return Ok(*pid),
        TargetSpec::Name(name) => name,
    };
    let mut found = ingraft_process::find_by_name(name);
    if found.len() > 1 && caller.rights() != Rights::All {
        found.retain(|pid| permit(*pid, caller).is_ok());
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(Error::new(
            Reason::NoSuchProcess,
            format!("no process is called `{name}`"),
            "`ingraft ps` lists the processes",
        )),
        several => {
            let pids: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Error::new(
                Reason::AmbiguousProcess,
                format!("{} processes are called `{name}`: {}", several.len(), pids.join(", ")),
                "name one with -p PID; commands that take several processes name them by repeating -p, or all with --all",
            ))
        }
    }
}

/// The living processes of a name, of a control group, or of both.
fn chosen(name: Option<&str>, cgroup: Option<&str>) -> Result<Vec<ingraft_process::ProcessInfo>, Error> {
    let mut pids = name.map(ingraft_process::find_by_name);
    if let Some(path) = cgroup {
        let group = ingraft_process::in_control_group(path)
            .map_err(|e| Error::new(Reason::NoSuchGroup, e.to_string(), e.hint()))?;
        pids = Some(match pids {
            Some(named) => named.into_iter().filter(|pid| group.binary_search(pid).is_ok()).collect(),
            None => group,
        });
    }
    let own = i32::try_from(std::process::id()).ok();
    let lives = |pid: &Pid| Some(pid.0) != own && ingraft_process::has_memory(*pid);
    Ok(pids.unwrap_or_default().into_iter().filter(lives).filter_map(ingraft_process::describe).collect())
}

/// Opens a process that the caller may trace.
fn open(pid: Pid, caller: Caller) -> Result<Target, Error> {
    Target::open_for(pid, caller.rights()).map_err(|e| Error::process(pid, e))
}

/// Whether the caller may trace a process now. The opened process is checked again before its data is served or it is changed.
fn permit(pid: Pid, caller: Caller) -> Result<(), Error> {
    match caller.rights() {
        Rights::All => Ok(()),
        rights => ingraft_process::permitted(pid, rights).map_err(|denial| Error::denied(pid, &denial)),
    }
}

/// Way in which threads read an event at points, as far as this machine has shown it.
fn at_points(event: &ingraft_process::ListedEvent) -> Option<String> {
    match EventReadMethod::named(&event.name) {
        EventReadMethod::ProcessorTime => Some("clock of processor time".to_owned()),
        EventReadMethod::Usage(_) => Some("system call".to_owned()),
        EventReadMethod::Counter if event.group == "software" => None,
        EventReadMethod::Counter => {
            let tried = PerfEvent::parse(&event.name).map_err(EventError::from).and_then(|event| event.for_threads());
            Some(match tried {
                Ok(_) => "RDPMC".to_owned(),
                Err(_) if event.problem.is_some() => "RDPMC, never run on this machine".to_owned(),
                Err(e) => format!("RDPMC, never run on this machine: {}", e.reason()),
            })
        }
    }
}
