//! A session with one target: what is measured there, and everything that it takes.
//!
//! Whoever holds `control` is the driver: requests of clients, one after the other, and the watch that runs ten times a second. Values
//! are read under `shared` alone, so a reader never waits for a stop.
//!
//! ```text
//! (nothing) --enable--> attached --enable/disable--> attached --last disable, detach--> (nothing)
//!                           \-- the target ends or starts another program --> ended: values stay until they are fetched
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ingraft_codegen::{Environment, Readable};
use ingraft_mdl::{
    FunctionRef as MdlFunction, IndexNames, Insertion, Instrumentation, Library, ModuleRef, Order, ValueUnit, Variable,
    VariableKind,
};
use ingraft_model::layout::{COUNTERS, DEFAULT_STRIDE};
use ingraft_model::{
    Activations, Aggregate, AvmaRange, Clock, CpuClock, DataArea, Focus, Fold, MetricInfo, ObjectState, PatchPlan, Pid,
    PointKind, Refusal, Resolution, Scale, Shape, Snippet, Stmt, Style, Svma, Table, ThreadIdentity, Tid, UnitsType,
    WallClock,
};
use ingraft_process::{
    ClockChoice, ClockProblem, DataAreaRequest, ExitStatus, Identity, Options as ApplyOptions, Rights, SharedArea,
    Target, ThreadBase, TickClock, Visitor, thread_exists, vector_state,
};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::api::*;
use crate::error::{Error, ErrorKind};
use crate::measure::calls;
use crate::measure::event_places::EventPlaces;
use crate::measure::internal::{self, Internal};
use crate::measure::request::{self, Missing, Wanted};
use crate::measure::resolution::{self, Coarsening};
use crate::program::identity::describe;
use crate::program::images::ImageStore;
use crate::program::labels;
use crate::program::modules::Modules;
use crate::program::symbols::Symbols;
use crate::readings::values::{
    Columns, CounterAllocator, ENDED_MAX, EndedThreads, LastSeen, RECORDS_ONLY, Raw, Ruler, Shapes, Shards, Slots,
};
use crate::recovery::journal::{self, Entries, Head, Journal, Kept, KeptPair, PointRecord, Record};
use crate::recovery::leftover;
use crate::recovery::restore;
use crate::state_dir::StateDir;
use crate::weaving::catch_up::{CatchUp, Counters};
use crate::weaving::cost::{Metered, Meters, Prices};
use crate::weaving::plan::{NewMini, SETTLE, Wanted as WantedPoints, Woven};
use crate::weaving::sites::{Text, sites};

use self::internals::OwnValue;
use self::numbering::Numbering;
use self::unfinished::Unfinished;
use self::view::{Plain, View, Views};

mod adopt;
mod births;
mod cost;
mod events;
mod family;
mod follow;
mod insert;
mod internals;
mod landing;
pub(crate) mod launch;
mod loader;
mod numbering;
mod read;
mod remove;
pub(crate) mod replaced;
mod rights;
mod tails;
mod unfinished;
mod view;

/// What is done when a target has ended.
pub type AtEnd = dyn Fn() + Send + Sync;

/// What a session needs of its engine.
#[derive(Clone)]
pub struct Context {
    /// Journals and locks.
    pub state: StateDir,
    /// Images.
    pub images: Arc<ImageStore>,
    /// How the holder calls itself.
    pub program: String,
    /// What a measurement may cost that names no limit, in percent of one processor.
    pub max_overhead: f64,
    /// Which clock timers have.
    pub clock: ClockChoice,
}

/// What makes two requests the same pair: then they share code and counters. Cheap to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PairKey {
    /// The metric's text: a redefinition is another metric.
    text: Arc<str>,
    /// The lists, constraints and exclusions that are not shipped, which the metric may use.
    helpers: Arc<str>,
    pair: Arc<MetricFocus>,
    /// Of the pair alone: the text is long, and few metrics have the same name.
    hash: u64,
}

/// A snippet that pairs share, where control lands after exceptions, longjmp and tail jumps: its function, which of the points, its number.
type Landing = (MdlFunction, PointKind, u64);

/// A metric-focus pair that is woven.
#[derive(Debug)]
struct Pair {
    metric: Arc<MetricInfo>,
    variables: Arc<[Variable]>,
    /// The first counter of each variable; the first variable holds the value.
    counters: Vec<u32>,
    /// Snippets by number, with the functions at whose points they stand.
    minis: Vec<(MdlFunction, u64)>,
    /// The same where exceptions and longjmp land, and at entries to which others jump; other pairs may have them as well.
    landings: Vec<Landing>,
    /// Where they land, too, but nothing could be woven.
    unlanded: Vec<MdlFunction>,
    /// The end of its calls puts something back.
    restores: bool,
    /// Functions that could not be woven, and why.
    unwoven: Vec<(MdlFunction, RefusedFunction)>,
    /// One of its definitions is woven nowhere: its value tells nothing.
    barren: bool,
    /// The only thread that counts.
    thread: Option<Tid>,
    /// The address of the object that the focus names.
    object: Option<u64>,
    index_names: Option<IndexNames>,
    /// How often its snippets run.
    meters: Meters,
    /// How its code names its variables, the first evaluation's included, if that is not always the same.
    numberings: Vec<Numbering>,
    users: u32,
}

#[derive(Debug)]
struct Measurement {
    views: Arc<Views>,
    pairs: Arc<Vec<PairInfo>>,
    /// The pairs are not those any more that the insertion has said.
    grown: bool,
    request: EnableRequest,
    library: Arc<Library>,
    /// What nothing in the target has had so far.
    awaited: Vec<request::Awaited>,
    keep: bool,
    /// With whose rights the target is touched for it.
    rights: Rights,
    /// These rights include the target no longer: what it had there was taken out.
    revoked: bool,
    /// What its pairs that do more than count may cost, in percent of one processor.
    limit: f64,
}

/// What exists once something was woven.
struct Attached {
    env: Environment,
    area: Arc<SharedArea>,
    journal: Journal,
    woven: Woven,
    /// Why threads cannot be told apart, if they cannot.
    why_locked: Option<String>,
    since_ns: u64,
    /// Processor time of the target until then.
    cpu_before: Duration,
}

struct Control {
    modules: Modules,
    attached: Option<Attached>,
    counters: CounterAllocator,
    /// Before the first code is woven: the distance between shards that what is asked for needs.
    stride: u64,
    events: EventPlaces,
    pairs: FxHashMap<PairKey, Pair>,
    /// Pairs whose code was taken out because it cost too much; measurements still have their values.
    retired: Vec<Pair>,
    measurements: BTreeMap<MeasurementId, Measurement>,
    next_mini: u64,
    lock: Option<File>,
    /// Something that was loaded could not be measured yet: it is tried again.
    behind: bool,
    /// What is being woven has never run: no call of it can be in progress.
    unrun: bool,
    /// A thread may be in code that was taken out: counters are not used again.
    unsettled: bool,
    /// Fork children count like threads of the target; before anything is woven: they are to.
    family: bool,
    /// Whether such children begin with the state of their parents.
    births: births::Births,
    /// Everything was taken out but the memory, which has to stay for a while.
    unfinished: Option<Unfinished>,
    /// A dead engine has woven what no measurement needs.
    has_spare: bool,
    /// Earliest time of the next try to take that out; `None`: at once.
    spare_after: Option<Instant>,
    /// The engine ends: nothing new begins.
    closed: bool,
}

/// What readers need.
#[derive(Default)]
struct Shared {
    area: Option<Arc<SharedArea>>,
    identity: Option<ThreadIdentity>,
    ended: EndedThreads,
    /// What tells that the loader has worked.
    hook: Option<loader::Hook>,
    /// Counters from 0 up to here may have been counted into.
    used_counters: u32,
    /// What the counters belong to that are not variables of their own.
    shapes: Shapes,
    /// What addresses are called, once a pair has values by key.
    symbols: Symbols,
    /// Identities (as the target's threads see themselves, or fs bases) to thread ids as we see them.
    tids: FxHashMap<u64, Tid>,
    /// Fork children count like threads of the target.
    family: bool,
    /// The processes of their threads, those that have ended included.
    kin: FxHashMap<Tid, Pid>,
    /// Everything is being taken out of the target and its children: they are not looked at.
    leaving: bool,
    /// Those of them that began without the state of the thread that forked.
    stateless: FxHashSet<Pid>,
    /// What pairs cost, by the first counter of their value.
    accounts: FxHashMap<u32, cost::Account>,
    /// The same by counter, in order, once that was asked for: what is looked at all the time.
    bill: Option<Vec<cost::Item>>,
    /// What pairs have cost that are gone, in nanoseconds of processor time.
    spent_ns: f64,
    /// Number of pairs with a timer of either clock, and of others.
    wall_timers: i64,
    cpu_timers: i64,
    no_timers: i64,
    /// Values that stay as they are, by the first counter.
    frozen: FxHashMap<u32, cost::Frozen>,
}

/// A session with one target.
pub struct Session {
    context: Context,
    target: Arc<Target>,
    owner: u32,
    clock: Result<TickClock, ClockProblem>,
    /// How long a nanosecond is in the ticks of processor time, once that is measured.
    cpu_rate: OnceLock<u64>,
    control: Mutex<Control>,
    shared: RwLock<Shared>,
    ended: OnceLock<Ended>,
    /// The clock of the timers when the end was noticed: then all of them stood still.
    ended_at: OnceLock<u64>,
    /// Time until the next look for threads that have ended.
    look_pause: Mutex<Duration>,
    /// Who wants to know of the end at once.
    at_end: Mutex<Vec<Weak<AtEnd>>>,
    /// The processor time of threads whose timers run, when it was last asked for: of a thread that has ended the kernel says nothing.
    cpu_seen: Mutex<FxHashMap<Tid, u64>>,
    rates: Mutex<cost::Rates>,
    /// Changes by others to woven code, and when each was seen first, in nanoseconds of Unix time.
    disturbed: Mutex<Vec<(String, u64)>>,
}

/// What is said when there is no better clock.
const SYSTEM_CALLS: &str =
    "processor time is read by a system call at each entry and exit here, some hundred nanoseconds, because";
const NO_AREAS: &str = "the program's threads have no rseq areas that tell of switches";
const NO_COUNTER: &str = "the time stamp counter is not the clock";

/// What is said of definitions that call functions.
const CALLS_COST: &str = "what the called functions themselves take is in no cost";

/// Unix time in nanoseconds.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Session {
    /// Opens a session; the target is not touched yet, unless a dead engine left something in it: that is removed. What cannot be removed yet, because
    /// a thread sleeps in the kernel, the session goes on with.
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

    fn with_modules(context: Context, target: Arc<Target>, lock: File) -> Result<Self, Error> {
        let modules = Modules::of(&target)?;
        let owner = target.status().map_err(|e| Error::process(target.pid(), e))?.uid;
        let clock = TickClock::start(context.clock);
        let control = Control {
            modules,
            attached: None,
            counters: CounterAllocator::default(),
            stride: DEFAULT_STRIDE,
            pairs: FxHashMap::default(),
            retired: Vec::new(),
            measurements: BTreeMap::new(),
            next_mini: 1,
            lock: Some(lock),
            behind: false,
            unrun: false,
            events: EventPlaces::default(),
            unsettled: false,
            family: false,
            births: births::Births::NotNeeded,
            unfinished: None,
            has_spare: false,
            spare_after: None,
            closed: false,
        };
        Ok(Session {
            context,
            target,
            owner,
            clock,
            cpu_rate: OnceLock::new(),
            control: Mutex::new(control),
            shared: RwLock::default(),
            ended: OnceLock::new(),
            ended_at: OnceLock::new(),
            look_pause: Mutex::default(),
            at_end: Mutex::default(),
            cpu_seen: Mutex::default(),
            rates: Mutex::default(),
            disturbed: Mutex::default(),
        })
    }

    /// Looks for modules that were mapped or unmapped since.
    pub fn refresh(&self) -> Result<(), Error> {
        self.look_at_modules(&mut self.control()).map(drop)
    }

    /// Asks something about the modules.
    pub fn check_names(&self, ask: impl FnOnce(&Modules) -> Result<(), Error>) -> Result<(), Error> {
        ask(&self.control().modules)
    }

    /// Whether nothing of this session is in the target any more, and nothing will come.
    pub fn is_over(&self) -> bool {
        let control = self.control();
        control.lock.is_none() && control.attached.is_none() && control.measurements.is_empty()
    }

    /// The target.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Whose the target is or was (real user id).
    pub fn owner(&self) -> u32 {
        self.owner
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

    /// Inserts a measurement, with the rights of who asks for it. With [`Missing::MayCome`] it begins with what is there and grows by
    /// [`Session::grow`].
    #[expect(clippy::too_many_arguments, reason = "a request, and how it is served")]
    pub fn enable(
        &self,
        id: MeasurementId,
        rights: Rights,
        library: &Arc<Library>,
        request: &EnableRequest,
        missing: Missing,
        begin: Instant,
        progress: &dyn Fn(&str),
    ) -> Result<Enabled, Error> {
        let mut guard = self.control();
        let control = &mut *guard;
        if control.closed {
            return Err(ending(self.pid()));
        }
        let _acting = self.target.act_for(rights);
        if control.lock.is_none() && self.ended.get().is_none() {
            // measurements without code outlive an insertion that was taken back
            let is_clean = self.target.find_areas().is_ok_and(|areas| areas.is_empty());
            if control.measurements.is_empty() || !is_clean {
                return Err(over(self.pid()));
            }
            control.lock = Some(lock_target(&self.context, self.pid())?);
        }
        self.release_spare(control);
        self.target.take_longest_hold(); // forgets those of earlier operations
        let attached_before = control.attached.is_some() && !control.measurements.is_empty();
        self.look_at_modules(control)?;
        self.refuse_changed(control)?;
        let own = internals::of_request(library, request, &control.modules)?;
        let before = self.internal_views(&own)?;
        let (errors, wanted) = self.evaluate_rest(control, library, request, &own, missing, progress);
        let mut warnings: Vec<String> = errors.into_iter().map(|e| e.what).collect();
        warnings.extend(library.unknown_flavors(&request.flavors).into_iter().map(with_help));
        let from_memory = control.modules.loaded().filter(|(_, _, m)| m.from_memory);
        warnings.extend(
            from_memory.map(|(_, file, _)| format!("{} was read from memory: its file cannot be reached", file.name)),
        );
        let wanted = wanted?;
        if missing == Missing::ModulesMayCome {
            request::refuse_absent(&control.modules, request)?;
        }
        let awaited = match missing {
            Missing::Fails => Vec::new(),
            Missing::MayCome | Missing::ModulesMayCome => request::awaited(&control.modules, request),
        };
        if missing == Missing::ModulesMayCome {
            warnings.extend(warnings_of(&awaited, &control.modules));
        }
        warnings.extend(labels::warning(&control.modules, &request.functions));
        request::refuse_empty(&self.target, &wanted)?;
        warnings.extend(before.iter().filter_map(|v| v.own.as_ref()?.events()?.warning()));
        for w in &wanted {
            warnings.extend(w.instrumentation.warnings.iter().map(ToString::to_string));
        }
        self.decide_family(control, request.family && own.is_empty(), &wanted, &mut warnings)?;
        let limit = request.max_overhead.unwrap_or(self.context.max_overhead);
        self.refuse_dear(control, &wanted, limit)?;
        if wanted.iter().any(|w| calls::has_calls(&w.instrumentation)) {
            warnings.push(CALLS_COST.to_owned());
        }
        let reads = |clock| wanted.iter().any(|w| insert::reads(&w.instrumentation, clock));
        let (reads_wall, reads_cpu) = (reads(Clock::Wall), reads(Clock::Cpu));
        // Values that need no code have no stop in which that would be asked.
        self.target.check(rights).map_err(|e| self.failed(e))?;
        let (keys, caught_up) = self.insert_wanted(control, wanted, own.is_empty())?;
        warnings.extend(keys.iter().filter_map(|(key, _)| control.pairs.get(key)?.why_barren(key)));
        let resolutions =
            keys.iter().filter_map(|(key, _)| resolution::of_variables(&control.pairs.get(key)?.variables));
        warnings.extend(resolutions.min().and_then(resolution::warning));
        warnings.extend(self.mapped_again(control));
        // a program that is started maps its C library later
        warnings.extend(control.births.warning().filter(|_| control.births != births::Births::Absent));
        if reads_wall {
            warnings.extend(control.attached.as_ref().and_then(|a| self.other_clock(a.env.wall)));
        }
        let calling = control.attached.as_ref().filter(|a| reads_cpu && a.env.cpu == CpuClock::SystemCall);
        if let Some(attached) = calling {
            let why = if attached.env.wall == WallClock::Tsc { NO_AREAS } else { NO_COUNTER };
            warnings.push(format!("{SYSTEM_CALLS} {why}"));
        }
        let (mut views, mut pairs) = (self.views(control, &keys), pair_infos(control, &keys));
        internals::merge(&own, before, &mut views, &mut pairs);
        let measurement = Measurement {
            views: Arc::new(views.into()),
            pairs: Arc::new(pairs),
            grown: false,
            request: EnableRequest { max_pairs: None, ..request.clone() },
            library: Arc::clone(library),
            awaited,
            keep: false,
            rights,
            revoked: false,
            limit,
        };
        control.add_users(&keys);
        self.settle_accounts(control);
        let enabled = self.enabled(control, id, &measurement, !attached_before, begin, caught_up, warnings);
        control.measurements.insert(id, measurement);
        if request.keep {
            self.keep_locked(control, id, true)?;
        }
        Ok(enabled)
    }

    /// What is said of the modules that a measurement waits for.
    pub fn awaiting(&self, id: MeasurementId) -> Vec<String> {
        let control = self.control();
        let measurement = control.measurements.get(&id);
        measurement.map_or_else(Vec::new, |measurement| warnings_of(&measurement.awaited, &control.modules))
    }

    /// What is said of code that the program has mapped a second time, elsewhere.
    fn mapped_again(&self, control: &Control) -> Vec<String> {
        let Some(attached) = &control.attached else { return Vec::new() };
        let warning = |module| {
            let at = control.modules.again(module, attached.woven.text_of(module).map(|w| w.at))?;
            let name = &control.modules.file(module)?.name;
            Some(format!(
                "code of {name} is mapped a second time, at {:#x}: calls that are made there are not counted",
                at.0
            ))
        };
        attached.woven.modules().into_iter().filter_map(warning).collect()
    }

    /// What is said of another clock than the time stamp counter.
    fn other_clock(&self, wall: WallClock) -> Option<String> {
        let prices = Prices::here();
        let (how, ns) = match wall {
            WallClock::Tsc => return None,
            WallClock::Vdso(_) => ("through the vDSO", prices.vdso_ns),
            WallClock::SystemCall => ("by a system call", prices.system_call_ns),
        };
        let problem = self.clock.as_ref().ok().and_then(TickClock::problem);
        let why = problem.map_or_else(|| "as was asked for".to_owned(), |problem| format!("because {problem}"));
        Some(format!("the time is read {how}, some {ns:.0} ns each time, {why}"))
    }

    #[expect(clippy::too_many_arguments, reason = "an answer with as many facts")]
    fn enabled(
        &self,
        control: &Control,
        id: MeasurementId,
        measurement: &Measurement,
        attached: bool,
        begin: Instant,
        caught_up: CaughtUp,
        mut warnings: Vec<String>,
    ) -> Enabled {
        warnings.extend(caught_up.warnings());
        let pairs = &measurement.pairs;
        let unwoven = pairs.iter().filter(|p| p.points == 0 && p.function.is_some());
        let (parent, title) = ingraft_process::parent_and_title(self.pid());
        Enabled {
            id,
            pid: self.pid(),
            parent,
            title,
            attached,
            threads: self.target.threads().map_or(0, |t| t.len() as u32),
            modules: control.modules.mapped().count() as u32,
            functions: control.modules.loaded().map(|(_, _, m)| m.image.functions().len() as u32).sum(),
            points: pairs.iter().map(|p| p.points).sum(),
            since_ns: now_ns(),
            attach_time: begin.elapsed(),
            stopped: self.target.take_longest_hold(),
            pairs: Arc::clone(pairs),
            refused: unwoven.flat_map(|p| p.refused.clone()).collect(),
            caught_up,
            warnings,
        }
    }

    /// Weaves what is wanted and not there yet. Returns the keys of all that is wanted. `whole`: it fails if nothing of it can be woven.
    #[expect(clippy::type_complexity, reason = "a list and its stop")]
    fn insert_wanted(
        &self,
        control: &mut Control,
        wanted: Vec<Wanted>,
        whole: bool,
    ) -> Result<(Vec<(PairKey, Option<MdlFunction>)>, CaughtUp), Error> {
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        let mut fresh = Vec::new();
        let mut more = Vec::new();
        let mut meters = Vec::new();
        let mut seen = FxHashSet::default();
        let mut wanted = wanted;
        Self::fit_histograms(control, &mut wanted, &keys);
        let limit = insert::counters_max(control);
        let mut made = Metered::default();
        for (w, (key, _)) in wanted.into_iter().zip(&keys) {
            if !seen.insert(key.clone()) {
                continue;
            }
            let mut instrumentation = w.instrumentation;
            let Some(pair) = control.pairs.get_mut(key) else {
                let mut known = Meters::default();
                known.apply(&mut instrumentation, &mut made);
                meters.push((key.clone(), known));
                fresh.push((key.clone(), instrumentation));
                continue;
            };
            // A pair that is there grows by the functions of modules that were loaded since.
            let known: FxHashSet<MdlFunction> =
                pair.minis.iter().map(|(f, _)| *f).chain(pair.unwoven.iter().map(|(f, _)| *f)).collect();
            instrumentation.insertions.retain(|i| !known.contains(&i.function));
            // also one that has all its functions may need what was loaded since: exceptions and longjmp land there
            if !instrumentation.insertions.is_empty() || pair.restores {
                let counters = if instrumentation.insertions.is_empty() {
                    pair.counters.clone()
                } else {
                    let free = &mut control.counters;
                    let counters = pair.counters_for(&mut instrumentation, &mut made, free, limit);
                    counters.map_err(|e| e.about(self.target.pid()))?
                };
                more.push((key.clone(), instrumentation, counters));
            }
        }
        let whole = whole && fresh.len() == seen.len();
        let mut caught_up = self.insert(control, fresh, whole)?;
        for (key, meters) in meters {
            if let Some(pair) = control.pairs.get_mut(&key) {
                pair.meters = meters;
            }
        }
        caught_up.add(self.extend(control, more)?);
        Ok((keys, caught_up))
    }

    /// Chooses how finely histograms tell values apart, and before anything is woven how far the shards lie from each other.
    fn fit_histograms(control: &mut Control, wanted: &mut [Wanted], keys: &[(PairKey, Option<MdlFunction>)]) {
        let is_new = |key: &PairKey| !control.pairs.contains_key(key);
        let histograms =
            |variables: &[Variable]| variables.iter().filter(|v| matches!(v.shape, Shape::Histogram(_))).count();
        let there: usize = control.pairs.values().map(|pair| histograms(&pair.variables)).sum();
        let new = || wanted.iter().zip(keys).filter(|(_, (key, _))| is_new(key)).map(|(w, _)| &w.instrumentation);
        let count = there + new().map(|i| histograms(&i.variables)).sum::<usize>();
        let slots_at = |resolution: Resolution| -> u64 {
            let saved = Shape::Histogram(Resolution::Fine).slots() - Shape::Histogram(resolution).slots();
            let of = |variables: &[Variable]| {
                // one hidden counter for each snippet, of which there are two for most pairs
                resolution::slots(variables) + 2 - u64::from(saved) * histograms(variables) as u64
            };
            u64::from(control.counters.used()) + new().map(|i| of(&i.variables)).sum::<u64>()
        };
        let usual = resolution::of(count);
        let resolution = match &control.attached {
            None => {
                control.stride = resolution::stride_for(slots_at(usual));
                usual
            }
            Some(attached) => {
                let room = u64::from(attached.area.layout().counters());
                let fits = |r: &Resolution| *r <= usual && slots_at(*r) <= room;
                let finest_first = [Resolution::Fine, Resolution::Medium, Resolution::Coarse];
                finest_first.into_iter().find(fits).unwrap_or(Resolution::Coarse)
            }
        };
        let mut to: FxHashMap<Resolution, Coarsening> = FxHashMap::default();
        for (w, (key, _)) in wanted.iter_mut().zip(keys) {
            // one that is there stays as it is
            let known = control.pairs.get(key).and_then(|pair| resolution::of_variables(&pair.variables));
            let to_what = known.unwrap_or(resolution);
            to.entry(to_what).or_insert_with(|| Coarsening::to(to_what)).apply(&mut w.instrumentation);
        }
    }

    /// Evaluates what of a request the engine does not know by itself. The errors are of modules that cannot be looked into.
    fn evaluate_rest(
        &self,
        control: &Control,
        library: &Library,
        request: &EnableRequest,
        own: &[internals::Own],
        missing: Missing,
        progress: &dyn Fn(&str),
    ) -> (Vec<Error>, Result<Vec<Wanted>, Error>) {
        let rest = if own.is_empty() { Cow::Borrowed(request) } else { Cow::Owned(internals::without(request, own)) };
        if !own.is_empty() && rest.pairs.is_empty() && rest.functions.is_empty() {
            return (Vec::new(), Ok(Vec::new()));
        }
        let places = (&*self.target, &*self.context.images, &control.modules);
        request::evaluate(places, library, &rest, missing, progress)
    }

    /// What a measurement measures.
    pub fn pairs(&self, id: MeasurementId) -> Result<Arc<Vec<PairInfo>>, Error> {
        self.control().measurements.get(&id).map(|m| Arc::clone(&m.pairs)).ok_or_else(|| no_measurement(id))
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
                .filter(|(_, view)| view.own.is_none())
                .map(|(info, view)| kept_pair(info, view))
                .collect();
            Record::Kept(Kept { id: id.0, definitions: measurement.request.definitions.clone(), pairs })
        } else {
            Record::KeptGone(id.0)
        };
        match control.attached.as_mut() {
            Some(attached) => self.write_journal(&mut attached.journal, &attached.area, record.into()),
            None => Ok(()),
        }
    }

    /// What is inserted here.
    pub fn inserted(&self) -> Option<Inserted> {
        let control = self.control();
        let attached = control.attached.as_ref()?;
        // not within what follows: there the costs look as well, and whoever holds the values must not ask for them again while a writer waits
        let hooks = usize::from(self.shared().hook.is_some());
        Some(Inserted {
            pid: self.pid(),
            holder: format!("{} {}", self.context.program, std::process::id()),
            ours: true,
            points: (attached.woven.len() - hooks) as u32,
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

    /// The measurements here.
    pub fn measurements(&self) -> Vec<MeasurementId> {
        self.control().measurements.keys().copied().collect()
    }
}

impl Control {
    fn add_users(&mut self, keys: &[(PairKey, Option<MdlFunction>)]) {
        for (key, _) in keys {
            if let Some(pair) = self.pairs.get_mut(key) {
                pair.users += 1;
            }
        }
    }
}

impl Pair {
    /// The functions in which it is woven.
    fn functions(&self) -> Vec<MdlFunction> {
        let mut functions: Vec<_> = self.minis.iter().map(|(f, _)| *f).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }

    /// What is said of a pair that cannot be measured although others are.
    fn why_barren(&self, key: &PairKey) -> Option<String> {
        // a function by name is told as refused
        let by_name = key.pair.focus.part("Code").is_some_and(|code| code.names.len() == 2) && self.minis.is_empty();
        if !self.barren || by_name {
            return None;
        }
        let MetricFocus { metric, focus } = &*key.pair;
        Some(format!("`{metric}` at `{focus}` is not measured: one of its definitions can be woven nowhere"))
    }

    /// The functions in which it could not be woven.
    fn refused(&self) -> Vec<RefusedFunction> {
        self.unwoven.iter().map(|(_, refused)| refused.clone()).collect()
    }
}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PairKey {
    fn of(wanted: &Wanted) -> Self {
        let key = PairKey::new(Arc::clone(&wanted.instrumentation.metric.text), Arc::clone(&wanted.pair));
        PairKey { helpers: Arc::clone(&wanted.helpers), ..key }
    }

    fn new(text: Arc<str>, pair: Arc<MetricFocus>) -> Self {
        let hash = FxBuildHasher.hash_one(&pair);
        PairKey { text, helpers: Arc::default(), pair, hash }
    }
}

/// A finding as one line with its help, without the code, which is for texts.
fn with_help(ingraft_mdl::Diagnostic { message, help, .. }: ingraft_mdl::Diagnostic) -> String {
    help.map_or_else(|| message.clone(), |help| format!("{message}; {help}"))
}

/// What is said of the modules that are waited for, one line for each.
fn warnings_of(awaited: &[request::Awaited], modules: &Modules) -> Vec<String> {
    let mut lines: Vec<String> = awaited.iter().filter_map(|awaited| awaited.warning(modules)).collect();
    lines.dedup();
    lines
}

fn pair_infos(control: &Control, keys: &[(PairKey, Option<MdlFunction>)]) -> Vec<PairInfo> {
    keys.iter()
        .filter_map(|(key, function)| {
            let pair = control.pairs.get(key)?;
            let functions = pair.functions();
            // A focus that names one function by hand is shown like one that came from a pattern.
            let code = key.pair.focus.part("Code").filter(|code| code.names.len() == 2);
            let only = if let [only] = functions.as_slice() { Some(*only) } else { None };
            let function = function.or(only.filter(|_| code.is_some()));
            Some(PairInfo {
                pair: Arc::clone(&key.pair),
                metric: Arc::clone(&pair.metric),
                function: function.and_then(|f| function_ref(&control.modules, f)),
                points: functions.len() as u32,
                refused: pair.refused(),
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

fn kept_pair(info: &PairInfo, view: &View) -> KeptPair {
    KeptPair {
        metric: info.pair.metric.clone(),
        focus: info.pair.focus.to_string(),
        value: view.value,
        ticks: view.unit == ValueUnit::Ticks,
        activations: view.activations.clone(),
        function: info.function.as_ref().map(|f| (f.module.clone(), f.function.clone(), f.offset.0)),
        points: info.points,
    }
}

/// The reason of [`over`].
pub const OVER: &str = "session_over";

/// The session has ended between its being found and its being asked: another one is to be opened.
fn over(pid: Pid) -> Error {
    Error::new(ErrorKind::Failed, OVER, "a removal has just ended", "try again").about(pid)
}

/// The engine is on its way out.
pub fn ending(pid: Pid) -> Error {
    Error::new(ErrorKind::Failed, "ending", "the engine is ending", "start it again").about(pid)
}

fn lock_target(context: &Context, pid: Pid) -> Result<File, Error> {
    let lock = context.state.lock_target(pid).map_err(|e| journal_error(pid, &e))?;
    lock.ok_or_else(|| leftover::held(pid, "another ingraft"))
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
