//! A session with one target: what is measured there, and everything that it takes.
//!
//! Whoever holds `control` is the driver: requests of clients, one after the other, and the watch that runs ten times a second. Values
//! are read under `shared` alone, so a reader never waits for a stop.
//!
//! ```text
//! (nothing) --enable--> attached --enable/disable--> attached --last disable, detach--> (nothing)
//!                           \-- the target ends or starts another program --> ended: values stay until they are fetched
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ingraft_codegen::{Environment, RemovalRecord};
use ingraft_mdl::{FunctionRef as MdlFunction, Instrumentation, Library, ModuleRef, Order};
use ingraft_model::{
    Aggregate, Avma, DataArea, Focus, MetricInfo, Pid, Refusal, Style, Svma, ThreadIdentity, Tid, UnitsType,
};
use ingraft_process::{DataAreaRequest, ExitStatus, Identity, Options as ApplyOptions, SharedArea, Target, ThreadBase};

use crate::api::*;
use crate::error::{Error, ErrorKind};
use crate::images::ImageStore;
use crate::journal::{self, Head, Journal, Kept, KeptPair, Record};
use crate::leftover;
use crate::modules::Modules;
use crate::request::{self, Wanted};
use crate::restore;
use crate::state_dir::StateDir;
use crate::values::{Columns, CounterAllocator, EndedThreads, Shards};
use crate::weaving::{NewMini, Woven, entry_site};

/// What a session needs of its engine.
#[derive(Clone)]
pub struct Context {
    /// Journals and locks.
    pub state: StateDir,
    /// Images.
    pub images: Arc<ImageStore>,
    /// How the holder calls itself.
    pub program: String,
}

/// What makes two requests the same pair: then they share code and counters.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PairKey {
    /// The metric's text: a redefinition is another metric.
    text: String,
    metric: String,
    focus: Focus,
}

/// A metric-focus pair that is woven.
#[derive(Debug)]
struct Pair {
    metric: Arc<MetricInfo>,
    /// Counter of each variable; the first holds the value.
    counters: Vec<u32>,
    /// Snippets by number, with the functions at whose entries they stand.
    minis: Vec<(MdlFunction, u64)>,
    refused: Vec<RefusedFunction>,
    /// The only thread that counts.
    thread: Option<Tid>,
    users: u32,
}

/// One measurement's view of a pair.
#[derive(Debug, Clone)]
struct View {
    key: PairKey,
    counter: u32,
    aggregate: Aggregate,
    thread: Option<Tid>,
    /// What the counter stood at when the measurement began, per thread.
    before: HashMap<Option<Tid>, i64>,
}

#[derive(Debug)]
struct Measurement {
    views: Arc<Vec<View>>,
    pairs: Arc<Vec<PairInfo>>,
    definitions: Vec<(String, String)>,
    keep: bool,
}

/// What exists once something was woven.
struct Attached {
    env: Environment,
    area: Arc<SharedArea>,
    journal: Journal,
    woven: Woven,
    since_ns: u64,
}

struct Control {
    modules: Modules,
    attached: Option<Attached>,
    counters: CounterAllocator,
    pairs: HashMap<PairKey, Pair>,
    measurements: BTreeMap<MeasurementId, Measurement>,
    next_mini: u64,
    lock: Option<File>,
    /// The longest hold by anything else than a change.
    held: Duration,
}

/// What readers need.
#[derive(Default)]
struct Shared {
    area: Option<Arc<SharedArea>>,
    identity: Option<ThreadIdentity>,
    ended: EndedThreads,
    /// Counters from 0 up to here may have been counted into.
    used_counters: u32,
    /// Identities (as the target's threads see themselves, or fs bases) to thread ids as we see them.
    tids: HashMap<u64, Tid>,
}

/// A session with one target.
pub struct Session {
    context: Context,
    target: Arc<Target>,
    control: Mutex<Control>,
    shared: RwLock<Shared>,
    ended: OnceLock<Ended>,
}

/// Unix time in nanoseconds.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Session {
    /// Opens a session; the target is not touched yet, unless a dead engine left something in it: that is removed.
    pub fn open(context: Context, target: Arc<Target>) -> Result<Self, Error> {
        let failed = |e| Error::process(target.pid(), e);
        let lock = lock_target(&context, target.pid())?;
        for range in target.find_areas().map_err(failed)? {
            leftover::refuse_held(&target, &range)?;
            leftover::restore_area(&context.state, &target, &range)?;
        }
        Session::with_modules(context, target, lock)
    }

    fn with_modules(context: Context, target: Arc<Target>, lock: File) -> Result<Self, Error> {
        let modules = Modules::of(&target)?;
        let control = Control {
            modules,
            attached: None,
            counters: CounterAllocator::default(),
            pairs: HashMap::new(),
            measurements: BTreeMap::new(),
            next_mini: 1,
            lock: Some(lock),
            held: Duration::ZERO,
        };
        Ok(Session { context, target, control: Mutex::new(control), shared: RwLock::default(), ended: OnceLock::new() })
    }

    /// Goes on with the measurements that a dead engine was to keep; `None` if there were none and the rest was removed.
    pub fn adopt(context: Context, target: Arc<Target>, library: &Library) -> Result<Option<Self>, Error> {
        let pid = target.pid();
        let failed = |e| Error::process(pid, e);
        let lock = lock_target(&context, pid)?;
        let path = context.state.journal_path(pid, target.identity().start_time);
        let Some(range) = target.find_areas().map_err(failed)?.into_iter().next() else {
            // It died between the journal's beginning and the target, or after it had removed everything.
            let _ = std::fs::remove_file(path);
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        leftover::refuse_held(&target, &range)?;
        let found = leftover::open_area(&context.state, &target, &range)?;
        let Some(contents) = found.journal.filter(|j| !j.kept.is_empty()) else {
            leftover::restore_area(&context.state, &target, &range)?;
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        let area = Arc::new(found.area);
        let text = journal::encode(&contents);
        let journal = Journal::replace(path, &text).map_err(|e| journal_error(pid, &e))?;
        area.write_journal(&text).map_err(failed)?;
        area.set_holder(&Identity::ours().map_err(failed)?).map_err(failed)?;
        let identity = area.identity().map_err(failed)?;
        let shadow_stack = target.status().map_err(failed)?.shadow_stack;
        let session = Session::with_modules(context, target, lock)?;
        {
            let mut control = session.control();
            control.counters = CounterAllocator::starting_at(contents.counters);
            *session.shared_mut() = Shared {
                area: Some(Arc::clone(&area)),
                identity: Some(identity),
                used_counters: contents.counters,
                ..Shared::default()
            };
            for kept in contents.kept {
                control.measurements.insert(MeasurementId(kept.id), adopted(library, kept.definitions, kept.pairs));
            }
            control.attached = Some(Attached {
                env: Environment { data: area.layout(), identity, shadow_stack },
                area,
                journal,
                woven: Woven::adopt(contents.points, contents.arenas),
                since_ns: contents.head.since_ns,
            });
        }
        Ok(Some(session))
    }

    /// Whether nothing of this session is in the target any more, and nothing will come.
    pub fn is_over(&self) -> bool {
        let control = self.control();
        control.lock.is_none() && control.attached.is_none()
    }

    /// The target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    fn pid(&self) -> Pid {
        self.target.pid()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, e: ingraft_process::Error) -> Error {
        Error::process(self.pid(), e)
    }

    /// Inserts a measurement.
    pub fn enable(
        &self,
        id: MeasurementId,
        library: &Library,
        request: &EnableRequest,
        begin: Instant,
        progress: &dyn Fn(&str),
    ) -> Result<Enabled, Error> {
        let mut guard = self.control();
        let control = &mut *guard;
        let attached_before = control.attached.is_some();
        let mut warnings: Vec<String> = control
            .modules
            .load(&self.target, &self.context.images, &request::modules_of(request), progress)
            .into_iter()
            .map(|e| e.what)
            .collect();
        let wanted = request::evaluate_request(library, &control.modules, request)?;
        for w in &wanted {
            warnings.extend(w.instrumentation.warnings.iter().map(ToString::to_string));
        }
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        let mut fresh = Vec::new();
        let mut seen = HashSet::new();
        for (w, (key, _)) in wanted.into_iter().zip(&keys) {
            if !control.pairs.contains_key(key) && seen.insert(key.clone()) {
                fresh.push((key.clone(), w.instrumentation));
            }
        }
        let stopped = self.insert(control, fresh)?;
        let views = self.views(control, &keys);
        let pairs = Arc::new(pair_infos(control, &keys));
        for (key, _) in &keys {
            if let Some(pair) = control.pairs.get_mut(key) {
                pair.users += 1;
            }
        }
        let refused: Vec<RefusedFunction> =
            pairs.iter().filter(|p| p.points == 0 && p.function.is_some()).flat_map(|p| p.refused.clone()).collect();
        let enabled = Enabled {
            id,
            pid: self.pid(),
            attached: !attached_before,
            threads: self.target.threads().map_or(0, |t| t.len() as u32),
            modules: control.modules.files().len() as u32,
            functions: control.modules.loaded().map(|(_, _, m)| m.image.functions().len() as u32).sum(),
            points: pairs.iter().map(|p| p.points).sum(),
            attach_time: begin.elapsed(),
            stopped,
            pairs: pairs.to_vec(),
            refused,
            warnings,
        };
        control.measurements.insert(
            id,
            Measurement { views: Arc::new(views), pairs, definitions: request.definitions.clone(), keep: false },
        );
        if request.keep {
            self.keep_locked(control, id, true)?;
        }
        Ok(enabled)
    }

    /// Weaves what new pairs need, attaching to the target if nothing was woven there yet. On an error the target and the session
    /// are as before.
    fn insert(&self, control: &mut Control, fresh: Vec<(PairKey, Instrumentation)>) -> Result<Duration, Error> {
        if fresh.is_empty() {
            return Ok(Duration::ZERO);
        }
        let limit = control.attached.as_ref().map_or(default_counters(), |a| a.area.layout().counters());
        let mut bound: Vec<(PairKey, Instrumentation, Vec<u32>)> = Vec::with_capacity(fresh.len());
        for (key, instrumentation) in fresh {
            let counters: Option<Vec<u32>> =
                instrumentation.variables.iter().map(|_| control.counters.take(limit)).collect();
            let Some(counters) = counters else {
                give_back(control, &bound);
                return Err(Error::new(
                    ErrorKind::Failed,
                    "too_many_counters",
                    format!("more than {limit} counters would be needed in one process"),
                    "measure fewer functions at a time",
                )
                .about(self.pid()));
            };
            bound.push((key, instrumentation, counters));
        }
        self.shared_mut().used_counters = control.counters.used();
        let result = self.weave_and_apply(control, &bound);
        let (refused, minis, stopped) = match result {
            Ok(done) => done,
            Err(e) => {
                give_back(control, &bound);
                return Err(e);
            }
        };
        for ((key, instrumentation, counters), minis) in bound.into_iter().zip(minis) {
            let functions: HashSet<MdlFunction> = instrumentation.insertions.iter().map(|i| i.function).collect();
            let mut refused: Vec<_> = functions
                .into_iter()
                .filter_map(|f| {
                    Some(RefusedFunction {
                        function: function_ref(&control.modules, f)?,
                        reason: refused.get(&f)?.clone(),
                    })
                })
                .collect();
            refused.sort_by_key(|r| (r.function.module.clone(), r.function.offset));
            let pair = Pair {
                metric: instrumentation.metric,
                counters,
                minis,
                refused,
                thread: instrumentation.thread,
                users: 0,
            };
            control.pairs.insert(key, pair);
        }
        Ok(stopped)
    }

    /// The part of an insertion that can fail: code, journal, stop.
    #[expect(clippy::type_complexity, reason = "three results that only the caller takes apart")]
    fn weave_and_apply(
        &self,
        control: &mut Control,
        bound: &[(PairKey, Instrumentation, Vec<u32>)],
    ) -> Result<(HashMap<MdlFunction, Refusal>, Vec<Vec<(MdlFunction, u64)>>, Duration), Error> {
        let mut by_function: BTreeMap<MdlFunction, Vec<NewMini<'_>>> = BTreeMap::new();
        let mut minis: Vec<Vec<(MdlFunction, u64)>> = Vec::with_capacity(bound.len());
        let mut refused = HashMap::new();
        for (_, instrumentation, counters) in bound {
            let mut own = Vec::new();
            for insertion in &instrumentation.insertions {
                if let Some(refusal) = request::point_refusal(insertion.point, insertion.after) {
                    refused.insert(insertion.function, refusal);
                    continue;
                }
                let id = control.next_mini;
                control.next_mini += 1;
                let list = by_function.entry(insertion.function).or_default();
                let mini = NewMini { id, role: insertion.role, snippet: &insertion.snippet, counters };
                match insertion.order {
                    Order::Append => list.push(mini),
                    Order::Prepend => list.insert(0, mini),
                }
                own.push((insertion.function, id));
            }
            minis.push(own);
        }
        let requests: Vec<_> = by_function.into_iter().collect();
        let first = control.attached.is_none();
        if first {
            // Nothing is touched for a request of which nothing can be woven.
            self.refuse_hopeless(&control.modules, &requests)?;
            control.attached = Some(self.attach(control)?);
        }
        let outcome = self.change(control, &requests);
        let (woven_refused, stopped) = match outcome {
            Ok(done) => done,
            Err(e) => {
                if first {
                    self.take_down(control)?;
                }
                return Err(e);
            }
        };
        refused.extend(woven_refused);
        for own in &mut minis {
            own.retain(|(f, _)| !refused.contains_key(f));
        }
        Ok((refused, minis, stopped.max(std::mem::take(&mut control.held))))
    }

    fn refuse_hopeless(&self, modules: &Modules, requests: &[(MdlFunction, Vec<NewMini<'_>>)]) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        let mut reason = None;
        for (function, _) in requests {
            match entry_site(&self.target, modules, *function) {
                Ok(_) => return Ok(()),
                Err(refusal) => reason = reason.or(Some((*function, refusal))),
            }
        }
        let Some((function, refusal)) = reason else { return Ok(()) };
        let name = function_ref(modules, function).map_or_else(String::new, |f| f.function);
        let what = match requests.len() {
            1 => format!("`{name}` cannot be instrumented: {refusal}"),
            n => format!("none of {n} functions can be instrumented; `{name}`: {refusal}"),
        };
        let hint = "`ingraft functions` lists the functions with what can be done";
        Err(Error::new(ErrorKind::NotFound, "all_refused", what, hint).about(self.pid()))
    }

    /// Prepares a target for its first code: learns how to tell its threads apart, makes the data area, begins the journal.
    fn attach(&self, control: &mut Control) -> Result<Attached, Error> {
        let failed = |e| self.failed(e);
        let survey = self.target.survey(None).map_err(failed)?;
        control.held = survey.longest_hold;
        let own_gs = control.modules.uses_gs(&self.target);
        let identity = if own_gs { ThreadIdentity::Locked } else { survey.identity };
        let request = DataAreaRequest { identity, ..DataAreaRequest::default() };
        let area = Arc::new(self.target.create_area(&request).map_err(failed)?);
        let since_ns = now_ns();
        let known = self.target.identity();
        let head = Head {
            boot_id: known.boot_id,
            pid: known.pid,
            start_time: known.start_time,
            executable: control.modules.executable(),
            area: area.layout(),
            since_ns,
            holder: format!("{} {}", self.context.program, std::process::id()),
        };
        let path = self.context.state.journal_path(known.pid, known.start_time);
        let begun = Journal::create(path, &head)
            .map_err(|e| journal_error(self.pid(), &e))
            .and_then(|(journal, bytes)| area.write_journal(&bytes).map_err(failed).map(|()| journal));
        let journal = match begun {
            Ok(journal) => journal,
            Err(e) => {
                // Nothing leads into the area yet.
                self.target.unmap(&[area.layout().range()]).map_err(failed)?;
                return Err(e);
            }
        };
        let status = self.target.status().map_err(failed)?;
        let env = Environment { data: area.layout(), identity, shadow_stack: status.shadow_stack };
        let mut shared = self.shared_mut();
        *shared = Shared {
            area: Some(Arc::clone(&area)),
            identity: Some(identity),
            used_counters: control.counters.used(),
            ..Shared::default()
        };
        for t in &survey.threads {
            shared
                .tids
                .insert(if matches!(identity, ThreadIdentity::FsBase) { t.fs_base } else { t.own_id as u64 }, t.tid);
        }
        Ok(Attached { env, area, journal, woven: Woven::default(), since_ns })
    }

    /// Weaves, writes the journal, applies.
    fn change(
        &self,
        control: &mut Control,
        requests: &[(MdlFunction, Vec<NewMini<'_>>)],
    ) -> Result<(HashMap<MdlFunction, Refusal>, Duration), Error> {
        let Some(attached) = control.attached.as_mut() else { return Ok((HashMap::new(), Duration::ZERO)) };
        let change = attached.woven.weave(&self.target, &control.modules, &attached.env, requests)?;
        let arenas = change.new_arenas.iter().cloned().map(Record::Arena);
        let points = change.new_points.iter().map(|(_, record)| Record::Point(record.clone()));
        let counters = std::iter::once(Record::Counters(control.counters.used()));
        let records: Vec<_> = counters.chain(arenas).chain(points).collect();
        let applied = self.write_journal(attached, &records).and_then(|()| {
            self.target.apply(&change.plan, &ApplyOptions::default()).map_err(|e| Error::apply(self.pid(), e))
        });
        match applied {
            Ok(applied) => {
                self.shared_mut().remember(&applied.bases, attached.env.identity);
                Ok((change.refused, applied.held))
            }
            Err(e) => {
                let gone: Vec<_> = change
                    .new_points
                    .iter()
                    .filter_map(|(_, record)| Some(Record::PointGone(record.text.first()?.at)))
                    .collect();
                attached.woven.forget(&change);
                // The first error is the one to tell; a journal that says too much does no harm.
                let _ = self.write_journal(attached, &gone);
                Err(e)
            }
        }
    }

    fn write_journal(&self, attached: &mut Attached, records: &[Record]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes = attached.journal.append(records).map_err(|e| journal_error(self.pid(), &e))?;
        if attached.journal.len() <= attached.area.layout().journal_bytes {
            return attached.area.append_journal(&bytes).map_err(|e| self.failed(e));
        }
        // What was and is gone again fills the copy: begin it anew with what is.
        let text = attached.journal.compact().map_err(|e| journal_error(self.pid(), &e))?;
        attached.area.write_journal(&text).map_err(|e| self.failed(e))
    }

    /// What a measurement reads, with where its counters stand now.
    fn views(&self, control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<View> {
        let shared = self.shared();
        let columns = shared.columns();
        keys.iter()
            .filter_map(|(key, _)| {
                let pair = control.pairs.get(key)?;
                let counter = *pair.counters.first()?;
                let joined = pair.users > 0;
                let before = columns.as_ref().filter(|_| joined).map(|c| c.threads(counter).into_iter().collect());
                Some(View {
                    key: key.clone(),
                    counter,
                    aggregate: pair.metric.aggregate,
                    thread: pair.thread,
                    before: before.unwrap_or_default(),
                })
            })
            .collect()
    }

    /// What a measurement measures.
    pub fn pairs(&self, id: MeasurementId) -> Result<Arc<Vec<PairInfo>>, Error> {
        self.control().measurements.get(&id).map(|m| Arc::clone(&m.pairs)).ok_or_else(|| no_measurement(id))
    }

    /// Reads the values of a measurement; the target goes on.
    pub fn read(&self, id: MeasurementId, threads: bool) -> Result<Reading, Error> {
        let views =
            self.control().measurements.get(&id).map(|m| Arc::clone(&m.views)).ok_or_else(|| no_measurement(id))?;
        Ok(self.reading(&views, threads))
    }

    fn reading(&self, views: &[View], threads: bool) -> Reading {
        // The end is looked up first: values read after it are the last ones.
        let ended = self.ended.get().copied();
        let shared = self.shared();
        let values = match shared.columns() {
            Some(columns) => views.iter().map(|view| view.value(&columns, threads)).collect(),
            None => views.iter().map(|_| Value { value: 0, threads: Vec::new() }).collect(),
        };
        Reading { time_ns: now_ns(), values, ended }
    }

    /// Removes a measurement; with the last one everything goes. Returns whether the session is over.
    pub fn remove(&self, id: MeasurementId) -> Result<(Removed, bool), Error> {
        let mut guard = self.control();
        let control = &mut *guard;
        let measurement = control.measurements.get(&id).ok_or_else(|| no_measurement(id))?;
        let (views, keep) = (Arc::clone(&measurement.views), measurement.keep);
        let last = control.measurements.len() == 1;
        let removed = if last || self.ended.get().is_some() {
            if last { self.take_down(control)? } else { leftover::untouched(self.pid()) }
        } else {
            self.unweave(control, &views)?
        };
        let reading = self.reading(&views, true);
        if keep
            && !last
            && let Some(attached) = control.attached.as_mut()
        {
            self.write_journal(attached, &[Record::KeptGone(id.0)])?;
        }
        control.measurements.remove(&id);
        self.drop_users(control, &views);
        Ok((Removed { last: Some(reading), ..removed }, last))
    }

    /// Takes out the code of pairs that only this measurement uses.
    fn unweave(&self, control: &mut Control, views: &[View]) -> Result<Removed, Error> {
        let Some(attached) = control.attached.as_mut() else { return Ok(leftover::untouched(self.pid())) };
        let mut uses: HashMap<&PairKey, u32> = HashMap::new();
        for view in views {
            *uses.entry(&view.key).or_default() += 1;
        }
        let minis: Vec<_> = uses
            .iter()
            .filter_map(|(key, uses)| control.pairs.get(*key).filter(|p| p.users == *uses))
            .flat_map(|p| p.minis.iter().copied())
            .collect();
        if minis.is_empty() {
            return Ok(leftover::untouched(self.pid()));
        }
        let (plan, gone) = attached.woven.unweave(&minis)?;
        let options = ApplyOptions { check_quiet: plan.retired.clone(), ..ApplyOptions::default() };
        let applied = self.target.apply(&plan, &options).map_err(|e| Error::apply(self.pid(), e))?;
        if applied.quiet {
            attached.woven.release(&plan.retired);
        }
        let records: Vec<_> = gone.into_iter().map(Record::PointGone).collect();
        self.write_journal(attached, &records)?;
        Ok(Removed { stopped: applied.held, ..leftover::untouched(self.pid()) })
    }

    fn drop_users(&self, control: &mut Control, views: &[View]) {
        for view in views {
            let Some(pair) = control.pairs.get_mut(&view.key) else { continue };
            pair.users = pair.users.saturating_sub(1);
            if pair.users > 0 {
                continue;
            }
            let Some(pair) = control.pairs.remove(&view.key) else { continue };
            let mut shared = self.shared_mut();
            let shared = &mut *shared;
            for counter in pair.counters {
                if let Some(area) = &shared.area {
                    shared.ended.clear(&**area, counter);
                }
                control.counters.give_back(counter);
            }
        }
    }

    /// Takes everything out of the target: text, threads, arenas, data area, fork children, journal.
    fn take_down(&self, control: &mut Control) -> Result<Removed, Error> {
        let Some(attached) = control.attached.as_ref() else { return Ok(leftover::untouched(self.pid())) };
        if self.ended.get().is_some() || !self.target.is_alive() {
            self.discard(control);
            return Ok(leftover::untouched(self.pid()));
        }
        let records = still_mapped(&self.target, &control.modules, &attached.woven)?;
        let arenas = attached.woven.arenas();
        let layout = attached.area.layout();
        let children = attached.area.children().map(|c| c.pids).unwrap_or_default();
        let restored = match restore::restore(&self.target, &records, &arenas, Some(layout)) {
            Ok(restored) => restored,
            Err(e) if e.kind == ErrorKind::Gone => {
                self.discard(control);
                return Ok(leftover::untouched(self.pid()));
            }
            Err(e) => return Err(e),
        };
        self.shared_mut().remember(&restored.threads, attached.env.identity);
        let text_restored =
            restored.text_restored && control.modules.agree_with_memory(&self.target, attached.woven.text_at());
        let children_left = leftover::restore_children(&self.target, &records, &arenas, layout, &children);
        if text_restored && restored.unmapped {
            self.discard(control);
        } else {
            // Whoever comes next finds the journal and finishes.
            control.attached = None;
            control.lock = None;
        }
        Ok(Removed { stopped: restored.stopped, text_restored, children_left, ..leftover::untouched(self.pid()) })
    }

    /// Nothing of ours is in the target any more: the journal and the lock go.
    fn discard(&self, control: &mut Control) {
        if let Some(attached) = control.attached.take()
            && let Err(error) = attached.journal.discard()
        {
            tracing::warn!(%error, "the journal could not be removed");
        }
        if let Some(lock) = control.lock.take() {
            self.context.state.forget_lock(self.pid(), lock);
        }
    }

    /// Takes everything out, whatever measurements there are.
    pub fn detach(&self) -> Result<Removed, Error> {
        let mut control = self.control();
        let removed = self.take_down(&mut control)?;
        control.measurements.clear();
        control.pairs.clear();
        Ok(removed)
    }

    /// Leaves what is to be kept in the target when the engine ends; removes the rest. `None`: something was kept.
    pub fn shut_down(&self) -> Result<Option<Removed>, Error> {
        let ids: Vec<_> = self.control().measurements.iter().filter(|(_, m)| !m.keep).map(|(id, _)| *id).collect();
        let mut removed = None;
        for id in ids {
            removed = Some(self.remove(id)?.0);
        }
        Ok(if self.control().measurements.is_empty() {
            removed.or_else(|| Some(leftover::untouched(self.pid())))
        } else {
            None
        })
    }

    /// Sets whether a measurement stays without a client and over the end of the engine.
    pub fn keep(&self, id: MeasurementId, keep: bool) -> Result<(), Error> {
        let mut guard = self.control();
        self.keep_locked(&mut guard, id, keep)
    }

    fn keep_locked(&self, control: &mut Control, id: MeasurementId, keep: bool) -> Result<(), Error> {
        let measurement = control.measurements.get_mut(&id).ok_or_else(|| no_measurement(id))?;
        if measurement.keep == keep {
            return Ok(());
        }
        measurement.keep = keep;
        let record = if keep {
            let pairs = measurement
                .pairs
                .iter()
                .zip(measurement.views.iter())
                .map(|(info, view)| kept_pair(info, view))
                .collect();
            Record::Kept(Kept { id: id.0, definitions: measurement.definitions.clone(), pairs })
        } else {
            Record::KeptGone(id.0)
        };
        match control.attached.as_mut() {
            Some(attached) => self.write_journal(attached, &[record]),
            None => Ok(()),
        }
    }

    /// What is inserted here.
    pub fn inserted(&self) -> Option<Inserted> {
        let control = self.control();
        let attached = control.attached.as_ref()?;
        Some(Inserted {
            pid: self.pid(),
            holder: format!("{} {}", self.context.program, std::process::id()),
            ours: true,
            points: attached.woven.len() as u32,
            code_bytes: attached.woven.code_bytes(),
            since_ns: attached.since_ns,
            identity: describe(attached.env.identity),
            cost_ns_per_s: None,
            measurements: control.measurements.keys().copied().collect(),
            kept: control.measurements.values().filter(|m| m.keep).count() as u32,
        })
    }

    /// The measurements here.
    pub fn measurements(&self) -> Vec<MeasurementId> {
        self.control().measurements.keys().copied().collect()
    }

    /// Waits a little for the end of the target, and does what has to be done from time to time. `false`: the target is gone.
    pub fn watch(&self, at_most: Duration) -> bool {
        if let Some(status) = self.target.wait_exit(at_most) {
            let (status, signal) = match status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(signal) => (None, Some(signal)),
                ExitStatus::Unknown => (None, None),
            };
            let _ = self.ended.set(Ended { status, signal, exec: false });
            return false;
        }
        if !self.target.is_same_program() {
            let _ = self.ended.set(Ended { status: None, signal: None, exec: true });
            return false;
        }
        self.bury_ended_threads();
        true
    }

    /// Frees the shards of threads that have ended.
    fn bury_ended_threads(&self) {
        let mut shared = self.shared_mut();
        let shared = &mut *shared;
        // An fs base may belong to the next thread already: its shard is simply used again.
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (shared.area.clone(), shared.identity) else { return };
        let claims = Shards::claims(&*area);
        if claims.is_empty() {
            return;
        }
        let Ok(live) = self.target.threads() else { return };
        let own_namespace = self.target.status().is_ok_and(|s| s.own_id == self.pid().0);
        let mut living = HashSet::new();
        for tid in live {
            let id = if own_namespace {
                tid.0
            } else if let Some((id, _)) = shared.tids.iter().find(|(_, known)| **known == tid) {
                *id as i32
            } else {
                self.target.thread_status(tid).map_or(tid.0, |s| s.own_id)
            };
            let id = id as u64;
            shared.tids.insert(id, tid);
            living.insert(id);
        }
        // Counters are handed out from 0 on.
        let used = shared.used_counters;
        for (shard, identity) in claims {
            if !living.contains(&identity) {
                let tid = shared.tids.get(&identity).copied().or(own_namespace.then_some(Tid(identity as i32)));
                shared.ended.bury(&*area, shard, tid, used);
            }
        }
        shared.tids.retain(|id, _| living.contains(id));
    }

    fn shared(&self) -> RwLockReadGuard<'_, Shared> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared_mut(&self) -> RwLockWriteGuard<'_, Shared> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn columns(&self) -> Option<Columns<'_>> {
        let area = self.area.as_deref()?;
        let by_id = matches!(self.identity, Some(ThreadIdentity::FsOffset(_)));
        let tid = |identity: u64| self.tids.get(&identity).copied().or_else(|| by_id.then(|| Tid(identity as i32)));
        Some(Columns::new(area, &self.ended, &tid))
    }

    /// Which thread has which thread pointer, if that is how they are told apart.
    fn remember(&mut self, threads: &[ThreadBase], identity: ThreadIdentity) {
        if identity == ThreadIdentity::FsBase {
            self.tids.extend(threads.iter().map(|t| (t.fs_base, t.tid)));
        }
    }
}

impl PairKey {
    fn of(wanted: &Wanted) -> Self {
        PairKey {
            text: wanted.instrumentation.metric.text.clone(),
            metric: wanted.pair.metric.clone(),
            focus: wanted.pair.focus.clone(),
        }
    }
}

impl View {
    fn value(&self, columns: &Columns<'_>, threads: bool) -> Value {
        let alone = self.before.is_empty() && self.thread.is_none() && self.aggregate == Aggregate::Sum;
        if alone && !threads {
            return Value { value: columns.sum(self.counter), threads: Vec::new() };
        }
        let mut all = columns.threads(self.counter);
        for (tid, value) in &mut all {
            *value = value.wrapping_sub(self.before.get(tid).copied().unwrap_or(0));
        }
        all.retain(|(tid, value)| *value != 0 && self.thread.is_none_or(|only| *tid == Some(only)));
        let values = all.iter().map(|(_, v)| *v);
        let value = match self.aggregate {
            Aggregate::Sum => values.fold(0, i64::wrapping_add),
            Aggregate::Min => values.min().unwrap_or(0),
            Aggregate::Max => values.max().unwrap_or(0),
            Aggregate::Avg => {
                let n = all.len().max(1) as i64;
                values.fold(0, i64::wrapping_add) / n
            }
        };
        Value { value, threads: if threads { all } else { Vec::new() } }
    }
}

fn default_counters() -> u32 {
    let request = DataAreaRequest::default();
    DataArea { base: Avma(0), stride: request.stride, shards: request.shards, journal_bytes: 0 }.counters()
}

fn give_back(control: &mut Control, bound: &[(PairKey, Instrumentation, Vec<u32>)]) {
    for counter in bound.iter().flat_map(|(_, _, counters)| counters) {
        control.counters.give_back(*counter);
    }
}

fn pair_infos(control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<PairInfo> {
    keys.iter()
        .filter_map(|(key, function)| {
            let pair = control.pairs.get(key)?;
            let functions: HashSet<_> = pair.minis.iter().map(|(f, _)| *f).collect();
            // A focus that names one function by hand is shown like one that came from a pattern.
            let code = key.focus.part("Code").filter(|code| code.names.len() == 2);
            let function = function
                .or_else(|| code.and_then(|_| functions.iter().copied().next().filter(|_| functions.len() == 1)));
            Some(PairInfo {
                pair: MetricFocus { metric: key.metric.clone(), focus: key.focus.clone() },
                metric: Arc::clone(&pair.metric),
                function: function.and_then(|f| function_ref(&control.modules, f)),
                points: functions.len() as u32,
                refused: pair.refused.clone(),
                exact_since_ns: None,
            })
        })
        .collect()
}

/// A function as clients see it.
pub fn function_ref(modules: &Modules, function: MdlFunction) -> Option<FunctionRef> {
    let (file, _, f) = modules.resolve(function)?;
    Some(FunctionRef { module: file.name.clone(), function: f.display_name().into_owned(), offset: f.start() })
}

/// The records of points whose module is still mapped as it was. A library that was unloaded took its text along.
fn still_mapped(target: &Target, modules: &Modules, woven: &Woven) -> Result<Vec<RemovalRecord>, Error> {
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    let there = |module: ModuleRef| {
        modules.files().get(module.0 as usize).is_some_and(|file| {
            file.file.mappings.iter().filter(|m| m.exec).all(|old| {
                maps.iter().any(|new| {
                    new.range.start <= old.range.start
                        && old.range.end <= new.range.end
                        && (new.inode, new.device) == (old.inode, old.device)
                })
            })
        })
    };
    let mut known: HashMap<ModuleRef, bool> = HashMap::new();
    Ok(woven
        .records()
        .filter(|(module, _)| module.is_none_or(|m| *known.entry(m).or_insert_with(|| there(m))))
        .map(|(_, record)| record.clone())
        .collect())
}

fn kept_pair(info: &PairInfo, view: &View) -> KeptPair {
    KeptPair {
        metric: info.pair.metric.clone(),
        focus: info.pair.focus.to_string(),
        counter: view.counter,
        function: info.function.as_ref().map(|f| (f.module.clone(), f.function.clone(), f.offset.0)),
        points: info.points,
    }
}

/// How threads are told apart, in words.
pub fn describe(identity: ThreadIdentity) -> String {
    match identity {
        ThreadIdentity::FsOffset(offset) => format!("by thread id at fs:{offset:#x}"),
        ThreadIdentity::FsBase => "by fs base".to_owned(),
        ThreadIdentity::Locked => "not at all: locked counters".to_owned(),
    }
}

fn lock_target(context: &Context, pid: Pid) -> Result<File, Error> {
    let lock = context.state.lock_target(pid).map_err(|e| journal_error(pid, &e))?;
    lock.ok_or_else(|| leftover::held(pid, "another ingraft"))
}

/// A kept measurement as a new engine sees it: its metric by name, its counters where they were.
fn adopted(library: &Library, definitions: Vec<(String, String)>, pairs: Vec<KeptPair>) -> Measurement {
    let unknown = |name: &str| MetricInfo {
        name: name.to_owned(),
        unit: String::new(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        constraints: Vec::new(),
        developer: false,
        doc: String::new(),
        text: String::new(),
    };
    let mut infos = Vec::with_capacity(pairs.len());
    let mut views = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let metric = library.metric(&pair.metric).map_or_else(|| Arc::new(unknown(&pair.metric)), Arc::clone);
        let focus = Focus::parse(&pair.focus).unwrap_or_default();
        let key = PairKey { text: String::new(), metric: pair.metric.clone(), focus: focus.clone() };
        let (aggregate, thread) = (metric.aggregate, None);
        views.push(View { key, counter: pair.counter, aggregate, thread, before: HashMap::new() });
        infos.push(PairInfo {
            pair: MetricFocus { metric: pair.metric, focus },
            metric,
            function: pair.function.map(|(module, function, offset)| FunctionRef {
                module,
                function,
                offset: Svma(offset),
            }),
            points: pair.points,
            refused: Vec::new(),
            exact_since_ns: None,
        });
    }
    Measurement { views: Arc::new(views), pairs: Arc::new(infos), definitions, keep: true }
}

fn journal_error(pid: Pid, e: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::Failed,
        "journal",
        format!("the journal cannot be written: {e}"),
        "nothing was changed; make room in the state directory",
    )
    .about(pid)
}

fn no_measurement(id: MeasurementId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "no_such_measurement",
        format!("no measurement {}", id.0),
        "`ingraft status` lists them",
    )
}
