//! Calls by calling context, and what they take in each.
//!
//! `code.rs` is the code of functions, `libc.rs` knows functions of the C library, `looks.rs` looks at the contexts of threads and `holders.rs` at
//! the holders of locks, `answer.rs` makes a profile of the trees of threads. `latencies.rs` tells the times of calls in each context. `sums.rs`
//! adds up the values of expressions. `live.rs` follows blocks of memory until they are freed, by records that `memory.rs` takes.

mod answer;
mod code;
mod holders;
mod latencies;
mod libc;
mod live;
mod looks;
mod memory;
pub mod sums;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ingraft_mdl::EventReadMethod;
use ingraft_model::contexts::VALUES;
use ingraft_model::{ContextShape, Focus, FunctionId, Placing, Stmt, Variable};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{ContextMetric, ContextsOptions, EnableRequest, MeasurementId, MetricFocus, Removed};
use crate::error::{Error, Reason};
use crate::measure::request::{self, Missing, Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::modules::Modules;
use crate::readings::looks::ContextLooks;
use crate::session::{InsertedPairs, KindRequest, Locked, Running, now_ns};
use crate::weaving::positions::Observer;

pub use self::answer::FunctionStates;
use self::code::{ContextCode, HeldCounters, LAST_COUNT, LOCK, LibraryRole, METRIC, RECORDS, TREE, TREE_OF};
use self::holders::HolderLooks;
use self::looks::{LookingThread, TakenLooks};
use self::memory::LiveMemory;
use self::sums::SumCode;
use super::code::{focus, look, looks_among};
use super::event::ReadEvent;
use super::whole;

/// Largest number of functions: each has a number in the keys of contexts.
const FUNCTIONS_MAX: usize = ingraft_model::contexts::FUNCTIONS_MAX as usize;
/// Largest number of functions that lose the code that has counted calls in one change.
const LOOKS_AT_ONCE: usize = 500;
/// Beginning of the texts about metrics of memory in a program with goroutines.
const GO_ALLOCATES: &str = "the Go runtime allocates memory by itself, which is not measured";
/// Time between two searches for functions that have become busy.
const SEARCH: Duration = Duration::from_secs(1);
/// Time until the next search if the functions could not be copied.
const REST: Duration = Duration::from_secs(60);
/// Largest number of functions that are copied in one change because they have become busy.
const COPIED_AT_ONCE: usize = 200;

/// Calls of functions by calling context.
pub struct ContextsKind {
    options: ContextsOptions,
    shape: ContextShape,
    /// Patterns of the functions that the metrics and the sums need.
    patterns: Vec<String>,
    /// The functions, in the order of their numbers, which begin at 1. They keep their numbers when libraries are loaded.
    sites: Vec<ContextSite>,
    numbers: FxHashMap<FunctionId, u32>,
    /// Numbers of the functions that allocate or free, in the order of their records.
    memory: Vec<u32>,
    /// The pairs that have counted calls before the code came, as long as they have code.
    looks: Vec<PairKey>,
    /// First counter of the tree; `None` before it is taken.
    tree: Option<u32>,
    /// First counter of the buffer of records of memory; `None` before it is taken, and without a metric that needs it.
    records: Option<u32>,
    /// Counter for the last count of the event that a thread has read; `None` before it is taken, and without an event.
    last_count: Option<u32>,
    /// Counter for the address of the lock for which a thread waits; `None` before it is taken, and without a metric of locks.
    lock: Option<u32>,
    /// Memory that is not freed yet; `None` without a metric that needs it.
    live: Option<Mutex<LiveMemory>>,
    began_ns: u64,
    program: String,
    /// The functions as they were before the code was taken out.
    last: Option<FunctionStates>,
    /// Looks at the contexts of threads and at the holders of locks: none without such metrics, and before the code is in.
    looked: TakenLooks,
    /// The thread that looks.
    looking: Option<LookingThread>,
    /// When functions that have become busy are searched next.
    search: Instant,
    /// Functions that were found to be busy, whether they could be copied or not.
    busy: FxHashSet<FunctionId>,
}

/// A function whose calls are told apart.
struct ContextSite {
    function: FunctionId,
    role: LibraryRole,
    /// The pair of the function.
    key: PairKey,
    /// Whether its code can stand right in a copy.
    fits_copy: bool,
    /// Whether its calls have times in each context.
    is_timed: bool,
}

/// Size of the tree. Times need more room: each context has places for the buckets of its times.
fn shape(options: &ContextsOptions) -> ContextShape {
    let has_values = !options.metrics.is_empty() || !options.sums.is_empty() || options.event.is_some();
    let usual = ContextShape::usual(has_values, options.full);
    let largest = ContextShape::of_bits(*ContextShape::BITS.end(), true, options.full);
    largest.filter(|_| !options.timed.is_empty()).unwrap_or(usual)
}

/// The purpose of the pair of a function. If all values come from certain functions, the others only tell the contexts of these. `is_named` tells
/// whether times or sums of the function were asked for.
fn purpose(options: &ContextsOptions, role: LibraryRole, is_named: bool) -> PairPurpose {
    let has_value = |metric: &ContextMetric| match metric {
        ContextMetric::WaitTime => role.waits,
        ContextMetric::LockTime => role.lock.is_some(),
        ContextMetric::AllocatedBytes => role.allocates.is_some(),
        ContextMetric::LiveBytes | ContextMetric::LiveBlocks => role.memory.is_some(),
        ContextMetric::WallTime
        | ContextMetric::CpuTime
        | ContextMetric::Looks
        | ContextMetric::Instructions
        | ContextMetric::Reads
        | ContextMetric::Writes => true,
    };
    let of_some = [options.metrics.is_empty(), options.sums.is_empty(), options.timed.is_empty()].contains(&false);
    let helps = of_some && options.event.is_none() && !is_named && !options.metrics.iter().any(has_value);
    if helps { PairPurpose::Helping } else { PairPurpose::Asked }
}

impl ContextsKind {
    /// A measurement that has not begun.
    pub fn new(options: &ContextsOptions) -> Self {
        ContextsKind {
            shape: shape(options),
            patterns: libc::patterns(&options.metrics)
                .into_iter()
                .chain(options.sums.iter().map(|sum| sum.function.clone()))
                .collect(),
            options: options.clone(),
            sites: Vec::new(),
            numbers: FxHashMap::default(),
            memory: Vec::new(),
            looks: Vec::new(),
            tree: None,
            records: None,
            last_count: None,
            lock: None,
            live: options.metrics.iter().any(|metric| metric.is_live()).then(Mutex::default),
            began_ns: 0,
            program: String::new(),
            last: None,
            looked: TakenLooks::default(),
            looking: None,
            search: Instant::now(),
            busy: FxHashSet::default(),
        }
    }

    /// A measurement of contexts below which other code of the same functions counts values. It has a larger tree.
    pub fn with_values(metrics: bool) -> Self {
        let largest = ContextShape::of_bits(*ContextShape::BITS.end(), metrics, false);
        let kind = ContextsKind::new(&ContextsOptions::default());
        ContextsKind { shape: largest.unwrap_or(kind.shape), ..kind }
    }

    /// Size of the tree.
    pub fn shape(&self) -> ContextShape {
        self.shape
    }

    /// First counter of the tree; `None` before it is taken.
    pub fn tree(&self) -> Option<u32> {
        self.tree
    }

    /// Number of a function in the keys of contexts; `None` if its calls are not told apart.
    pub fn number(&self, function: FunctionId) -> Option<u32> {
        self.numbers.get(&function).copied()
    }

    /// The functions of a request, and those that its metrics need, each with what it does.
    fn functions(&self, asked: &KindRequest<'_>) -> Result<Vec<(FunctionId, LibraryRole)>, Error> {
        // Blocks of memory are told apart by their addresses, which are the same in parents and children.
        let mut all = whole::functions(asked, self.live.is_none())?;
        let mut known: FxHashSet<FunctionId> = all.iter().copied().collect();
        let of_metrics = request::resolve_patterns(asked.modules, &self.patterns, Missing::MayCome)?;
        let special: FxHashSet<FunctionId> = of_metrics.iter().copied().collect();
        all.extend(of_metrics.into_iter().filter(|function| known.insert(*function)));
        let role = |function: &FunctionId| match asked.modules.resolve(*function) {
            Some((_, _, named)) if special.contains(function) => {
                libc::role(named.names().iter().map(|name| (name.mangled(), name.display())))
            }
            _ => LibraryRole::default(),
        };
        Ok(all.iter().map(|function| (*function, role(function))).collect())
    }

    /// Whether memory is asked for in a program with goroutines, whose memory no metric tells.
    fn lacks_memory(&self, modules: &Modules) -> bool {
        let is_of_memory = |metric: &ContextMetric| *metric == ContextMetric::AllocatedBytes || metric.is_live();
        self.options.metrics.iter().any(is_of_memory) && modules.goroutine_pointer().is_some()
    }

    /// Refuses metrics of memory in a running Go program that has no allocation function of the C library.
    fn refuse_memory_of_go(
        &self,
        asked: &KindRequest<'_>,
        functions: &[(FunctionId, LibraryRole)],
    ) -> Result<(), Error> {
        let allocates = |(_, role): &(FunctionId, LibraryRole)| role.allocates.is_some() || role.memory.is_some();
        let may_come = asked.missing == Missing::MayCome || functions.iter().any(allocates);
        if may_come || !self.lacks_memory(asked.modules) {
            return Ok(());
        }
        let what = format!("{GO_ALLOCATES}, and the program has no allocation function of the C library");
        let hint = "use the heap profile of Go (runtime/pprof)";
        Err(Error::new(Reason::AllRefused, what, hint).about(asked.target.pid()))
    }

    /// The variables of the code of functions, as far as their counters are taken.
    fn variables(&self) -> Arc<[Variable]> {
        let held = [self.tree, self.records, self.last_count, self.lock];
        let [tree, records, last_count, lock] = held.map(Option::unwrap_or_default);
        let reads = |name: &Arc<str>| EventReadMethod::named(name) == EventReadMethod::Counter;
        code::variables(
            HeldCounters { tree, records, last_count, lock },
            self.options.event.as_ref().is_some_and(reads),
        )
    }

    /// Begins to look at the contexts of threads and at the holders of locks, if a metric needs that. `tree` is the first counter of the tree.
    fn begin_looks(&mut self, at: &mut Locked<'_>, tree: u32) {
        let mut numbered = (0..).zip(ContextsOptions::values(&self.options.metrics));
        let number = numbered.find(|(_, metric)| *metric == ContextMetric::Looks).map(|(number, _)| number);
        let contexts = number.map(|number| Arc::new(ContextLooks::new(tree, self.shape, number)));
        // Locks are read from the memory of the target alone.
        let holders = self.lock.filter(|_| !at.has_family()).map(|lock| {
            let kind = |(number, site): (u32, &ContextSite)| Some((number, site.role.lock?));
            let functions = (1..).zip(&self.sites).filter_map(kind).collect();
            Arc::new(HolderLooks::new((tree, self.shape), lock, functions, at.has_glibc_ids()))
        });
        // Times are the first words of a record, and that of the processor might be the first one.
        let keeps_time = holders.is_some() && !self.options.metrics.contains(&ContextMetric::CpuTime);
        let looks = TakenLooks { contexts, holders, clock: at.wall_clock().filter(|_| keeps_time).cloned() };
        if looks.contexts.is_none() && looks.holders.is_none() {
            return;
        }
        let Some(read) = at.looked_at() else { return };
        if let Some(contexts) = &looks.contexts {
            at.add_looks(contexts);
        }
        match LookingThread::start(looks.clone(), read, at.has_own_ids()) {
            Ok(thread) => self.looking = Some(thread),
            Err(error) => tracing::warn!(%error, "no thread can look at the target, so times and holders are missing"),
        }
        self.looked = looks;
    }

    /// Copies functions that are busy and run in the text: at the insertion, nobody called them often.
    fn copy_busy(&mut self, at: &mut Locked<'_>) {
        if self.tree.is_none() || Instant::now() < self.search {
            return;
        }
        self.search = Instant::now() + SEARCH;
        let fits = |f: &FunctionId| self.site(*f).is_some_and(|site| site.fits_copy && !at.is_left_out(&site.key));
        let is_new = |f: &FunctionId| !self.busy.contains(f) && fits(f);
        let mut busy: Vec<FunctionId> = at.busy_in_text().into_iter().filter(is_new).collect();
        if busy.is_empty() {
            return;
        }
        busy.sort_unstable();
        busy.truncate(COPIED_AT_ONCE);
        match at.copy(&busy) {
            Ok(()) => self.busy.extend(busy),
            Err(error) => {
                tracing::warn!(%error, "code of busy functions stays in the text for now");
                self.search = Instant::now() + REST;
            }
        }
    }

    /// A function whose calls are told apart.
    fn site(&self, function: FunctionId) -> Option<&ContextSite> {
        let number = self.numbers.get(&function)?.checked_sub(1)?;
        self.sites.get(number as usize)
    }

    /// The pairs that hold counters for all functions: the tree, and what there is of the buffer of records of memory, the last count of the event and
    /// the lock for which a thread waits.
    fn held(&self, id: MeasurementId) -> Vec<(PairKey, &'static str, Variable)> {
        let held = |name: &'static str, variable| {
            let pair = Arc::new(MetricFocus { metric: name.to_owned(), focus: Focus::default() });
            (PairKey::owned(Owner { measurement: id, purpose: PairPurpose::Hidden }, pair), name, variable)
        };
        let records = self.live.as_ref().map(|_| held(RECORDS, code::held_records()));
        let last_count = self.options.event.as_ref().map(|_| LAST_COUNT);
        let lock = self.options.metrics.contains(&ContextMetric::LockTime).then_some(LOCK);
        let numbers = last_count.into_iter().chain(lock).map(|name| held(name, code::held_number(name)));
        std::iter::once(held(TREE, code::held(self.shape))).chain(records).chain(numbers).collect()
    }

    /// Takes the counters that all functions share.
    fn hold(&mut self, at: &mut Locked<'_>) -> Result<(), Error> {
        for (key, name, variable) in self.held(at.id()) {
            let first = Some(at.hold_counter(key, code::metric(name), variable)?);
            match name {
                TREE => self.tree = first,
                RECORDS => self.records = first,
                LOCK => self.lock = first,
                _ => self.last_count = first,
            }
        }
        Ok(())
    }

    fn release(&mut self, at: &mut Locked<'_>) {
        self.held(at.id()).iter().for_each(|(key, ..)| at.release_counter(key));
        (self.tree, self.records, self.last_count, self.lock) = (None, None, None, None);
    }
}

impl Running for ContextsKind {
    fn patterns(&self) -> Vec<&str> {
        self.patterns.iter().map(String::as_str).collect()
    }

    /// A pair for each function, and one that only counts its calls, unless the program has hardly begun.
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let functions = self.functions(asked)?;
        self.refuse_memory_of_go(asked, &functions)?;
        let timed = request::resolve_patterns(asked.modules, &self.options.timed, Missing::MayCome)?;
        let timed: FxHashSet<FunctionId> = timed.into_iter().collect();
        let most = if self.has_times() { VALUES as usize - 1 } else { FUNCTIONS_MAX };
        if functions.len() > most {
            let what = format!("contexts of {} functions cannot be told apart at once", functions.len());
            return Err(Error::new(Reason::TooManyFunctions, what, "name fewer functions"));
        }
        let event = self.options.event.as_ref().map(ReadEvent::named).transpose()?;
        let variables = self.variables();
        let metric = code::metric(METRIC);
        let code = ContextCode {
            shape: self.shape,
            metrics: &self.options.metrics,
            event_number: self.options.before_event() as u8,
            event: event.as_ref(),
            variables: &variables,
            metric: &metric,
            moving: false,
        };
        let owner = |role, is_named| Owner { measurement: asked.id, purpose: purpose(&self.options, role, is_named) };
        let looks = asked.missing != Missing::MayCome;
        let has_goroutines = asked.modules.goroutine_pointer().is_some();
        let first = ContextsOptions::values(&self.options.metrics).count();
        let add = |n: usize, value| Stmt::AddContext(TREE_OF, self.shape, (first + n) as u8, value);
        let sums = SumCode::of_functions(asked, &self.options.sums, &add)?;
        let none = SumCode::default();
        let mut all = Vec::new();
        for (function, role) in functions {
            let Some(focus) = focus(asked.modules, function) else { continue };
            let next = self.sites.len() as u32 + 1;
            let number = *self.numbers.entry(function).or_insert(next);
            let known = self.memory.iter().position(|known| *known == number);
            let index = known.unwrap_or(self.memory.len());
            if known.is_none() && role.memory.is_some() {
                self.memory.push(number);
            }
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let is_timed = timed.contains(&function);
            let clock = is_timed.then(|| self.clock());
            let is_go = asked.modules.resolve(function).is_some_and(|(_, module, _)| module.image.elf().is_go());
            let code = ContextCode { moving: has_goroutines || is_go, ..code };
            let sums = sums.get(&function).unwrap_or(&none);
            let instrumentation = code.of(function, (number, index), (role, sums), clock);
            if !sums.is_empty() && !code::fits(&instrumentation) {
                return Err(sums::refused(self.options.sums.first()));
            }
            let fits_copy = instrumentation.placing == Placing::InCopyIfBusy;
            let pair = Arc::new(MetricFocus { metric: METRIC.to_owned(), focus: focus.clone() });
            let owner = owner(role, is_timed || !sums.is_empty());
            let wanted = WantedPair { function: Some(function), ..WantedPair::owned(owner, pair, instrumentation) };
            if number == next {
                self.sites.push(ContextSite { function, role, key: PairKey::of(&wanted), fits_copy, is_timed });
            }
            all.extend(looks.then(|| look(function, focus, asked.id)));
            all.push(wanted);
        }
        self.looks.extend(looks_among(&all));
        Ok(all)
    }

    fn looks_first(&self, _: &EnableRequest) -> bool {
        true
    }

    fn warnings(&self, modules: &Modules) -> Vec<String> {
        self.lacks_memory(modules)
            .then(|| format!("{GO_ALLOCATES}: the figures are those of the C library alone"))
            .into_iter()
            .collect()
    }

    /// Takes the counters of the tree, and tells the code of all functions.
    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        if self.tree.is_none() {
            self.hold(at).inspect_err(|_| self.release(at))?;
        }
        let variables = self.variables();
        for w in wanted.iter_mut().filter(|w| w.pair.metric == METRIC) {
            w.instrumentation.variables = Arc::clone(&variables);
        }
        Ok(Observer::default())
    }

    fn failed(&mut self, at: &mut Locked<'_>) {
        // Code that came earlier goes on.
        if self.began_ns == 0 && self.tree.is_some() {
            self.release(at);
        }
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        if let Some(tree) = self.tree.filter(|_| self.began_ns == 0) {
            self.begin_looks(at, tree);
            begun.keys.extend(self.held(at.id()).into_iter().map(|(key, ..)| (key, None)));
            if let Some(records) = self.records {
                memory::begin(at, records, (tree, self.shape));
            }
            self.began_ns = now_ns();
            self.program = at.program();
        }
    }

    /// Follows memory. Takes out the code that has counted calls: it costs something at each call, also of functions that are left out.
    fn tick(&mut self, at: &mut Locked<'_>) {
        self.follow(at);
        // One change makes new counting copies only for so many of the functions that lose it.
        let rest = self.looks.len().saturating_sub(LOOKS_AT_ONCE);
        at.withdraw_pairs(self.looks.split_off(rest));
        self.copy_busy(at);
    }

    fn last(&mut self, at: &mut Locked<'_>) {
        self.looking = None;
        self.last = Some(self.states(at));
    }

    /// Nothing is counted any more.
    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let last = self.last.take();
        self.follow(at);
        self.follow_last(at);
        removed.profile = last.map(|states| Box::new(self.read(at, &states)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::contexts::code::LockKind;

    #[test]
    fn functions_without_a_value_of_their_own_help_others() {
        let waits = LibraryRole { waits: true, ..LibraryRole::default() };
        let locks = LibraryRole { lock: Some(LockKind::Mutex), ..waits };
        let of = |metrics: &[ContextMetric], role| {
            purpose(&ContextsOptions { metrics: metrics.to_vec(), ..ContextsOptions::default() }, role, false)
        };
        use ContextMetric::{LockTime, WaitTime, WallTime};
        assert_eq!([waits, locks].map(|role| of(&[LockTime], role)), [PairPurpose::Helping, PairPurpose::Asked]);
        assert_eq!(of(&[WaitTime, LockTime], waits), PairPurpose::Asked);
        for metrics in [&[][..], &[WallTime], &[WaitTime, WallTime]] {
            assert_eq!(of(metrics, LibraryRole::default()), PairPurpose::Asked, "{metrics:?}");
        }
    }

    #[test]
    fn callers_help_the_functions_whose_times_are_told() {
        let options = ContextsOptions { timed: vec!["get".to_owned()], ..ContextsOptions::default() };
        let of = |is_named| purpose(&options, LibraryRole::default(), is_named);
        assert_eq!([true, false].map(of), [PairPurpose::Asked, PairPurpose::Helping]);
    }
}
