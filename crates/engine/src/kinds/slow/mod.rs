//! Slow calls, each with the calls that it has made.
//!
//! The `print` statement of a metric says which values of a slow call are told. `code.rs` makes code of it, and that of the functions inside;
//! `told.rs` has the values of the latter, and `tree.rs` puts the records of a slow call together.

mod code;
pub mod told;
mod tree;

use std::sync::{Arc, Mutex, PoisonError};

use ingraft_model::layout::goroutine;
use ingraft_model::records::TakenRecord;
use ingraft_model::{Focus, FunctionId, Instrumentation, RecordColumn, Variable, VariableId, VariableKind};
use ingraft_process::TickClock;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{
    CallNumbers, CallTree, EnableRequest, MeasurementId, MetricFocus, PrintedCall, PrintedCalls, PrintedSite,
    PrintedValue, Removed, SlowOptions,
};
use crate::error::{Error, Reason};
use crate::measure::request::{self, Missing, Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::modules::Modules;
use crate::program::variables;
use crate::session::{Drained, InsertedPairs, KindRequest, Locked, NewBuffers, Records, Running, Session, values_in};
use crate::weaving::positions::Observer;

use self::code::{
    BEGAN, ENDED, Following, HEAD, HEAD_INSIDE, INSIDE, InsideCode, MET, NOTES, OPEN, RECORDS, SLOW, SharedCounters,
};
use self::told::ToldValues;
use self::tree::{CallSpan, RecordedCall, tree};
use super::code::{focus, look, looks_among, metric_named};
use super::no_print;
use super::prints::answer::{Counted, Limiter, call};
use super::prints::{UNRECORDED, place_callers, printed_column, printing};
use super::waits::WAITS;

/// Largest number of functions: each has a number in its records.
const FUNCTIONS_MAX: usize = u16::MAX as usize;

/// Calls of functions that are told if they take long.
pub struct SlowKind {
    options: SlowOptions,
    /// Patterns of the functions of the C library in which threads wait.
    waits: Vec<String>,
    /// The functions, in the order of their numbers: those whose calls are looked at, these again as calls inside of others, and the functions
    /// inside.
    sites: Vec<SlowSite>,
    /// Number of functions whose calls are looked at.
    outer: usize,
    /// The pairs that have counted calls before the code came, as long as they have code.
    looks: Vec<PairKey>,
    /// Whether calls of some functions move between threads, so that their goroutines keep notes.
    keeps_notes: bool,
    /// Counters that the code of all functions shares; `None` before they are taken.
    shared: Option<SharedCounters>,
    begun: Option<SlowStart>,
    /// The functions inside whose code was not there, or not any more, when the measurement ended.
    left_out: FxHashSet<FunctionId>,
    state: Mutex<SlowState>,
}

/// A function.
struct SlowSite {
    function: FunctionId,
    /// The pair of the function.
    key: PairKey,
    columns: Vec<RecordColumn>,
}

/// The counters of the functions whose calls are looked at, and all functions as they were when the code was inserted.
struct SlowStart {
    counters: Vec<[u32; 3]>,
    /// First counters of the activations of the calls.
    activations: Vec<u32>,
    sites: Vec<PrintedSite>,
}

struct SlowState {
    limiter: Limiter,
    /// Calls inside of slow calls that have not come yet, by the streams of their threads.
    inside: FxHashMap<u32, InsideCalls>,
    told: u64,
    limited: u64,
}

/// Calls inside of a slow call in the order of their ends.
type InsideCalls = Vec<RecordedCall>;

/// A slow call as its thread has recorded it.
struct SlowRecord {
    tid: u32,
    span: CallSpan,
    record: TakenRecord,
    inside: InsideCalls,
}

impl Records for SlowKind {
    fn complete(bytes: &[u8]) -> Result<usize, usize> {
        Ok(bytes.len())
    }
}

fn key(measurement: MeasurementId, metric: &str) -> PairKey {
    let pair = Arc::new(MetricFocus { metric: metric.to_owned(), focus: Focus::default() });
    PairKey::owned(Owner { measurement, purpose: PairPurpose::Hidden }, pair)
}

/// A pair of a function.
fn pair(
    owner: Owner,
    metric: &str,
    (function, focus): (FunctionId, Focus),
    instrumentation: Instrumentation,
) -> WantedPair {
    let pair = Arc::new(MetricFocus { metric: metric.to_owned(), focus });
    WantedPair { function: Some(function), ..WantedPair::owned(owner, pair, instrumentation) }
}

fn is_go(modules: &Modules, function: FunctionId) -> bool {
    modules.resolve(function).is_some_and(|(_, module, _)| module.image.elf().is_go())
}

/// Follows calls of goroutines. The runtime's own variable tells the offset of a goroutine's number in its descriptor.
fn following_goroutines(modules: &Modules) -> Following {
    let known = variables::variable(modules, "runtime.g0", &["goid"]).ok();
    let offset = known.filter(|known| known.access.pointers.is_empty()).map(|known| known.access.offset);
    let in_descriptor = |offset: u32| offset <= goroutine::DESCRIPTOR - 8;
    Following::Goroutine(offset.and_then(|offset| u32::try_from(offset).ok()).filter(|offset| in_descriptor(*offset)))
}

fn number(site: usize) -> u16 {
    u16::try_from(site).unwrap_or(u16::MAX)
}

impl SlowKind {
    /// A measurement that has not begun.
    pub fn new(options: SlowOptions) -> Self {
        let limiter = Limiter::new(options.limit);
        let inside = FxHashMap::default();
        SlowKind {
            waits: WAITS.iter().map(|name| format!("libc:{name}")).collect(),
            options,
            sites: Vec::new(),
            outer: 0,
            looks: Vec::new(),
            keeps_notes: false,
            shared: None,
            begun: None,
            left_out: FxHashSet::default(),
            state: Mutex::new(SlowState { limiter, inside, told: 0, limited: 0 }),
        }
    }

    /// The functions inside, without those whose calls are looked at.
    fn inside(&self, modules: &Modules, outer: &[FunctionId]) -> Result<Vec<FunctionId>, Error> {
        let patterns = match self.options.callees.as_slice() {
            [] => {
                let mut seen = FxHashSet::default();
                let own = outer.iter().filter(|function| seen.insert(function.module));
                let own = own.filter_map(|function| Some(format!("{}:*", modules.module(function.module)?.0.name)));
                own.chain(self.waits.iter().cloned()).collect()
            }
            asked => asked.to_vec(),
        };
        let outer: FxHashSet<FunctionId> = outer.iter().copied().collect();
        let told = self.options.told.iter().map(|told| told.function.clone());
        let patterns: Vec<String> = patterns.into_iter().chain(told).collect();
        let mut found = request::resolve_patterns(modules, &patterns, Missing::MayCome)?;
        found.retain(|function| !outer.contains(function));
        Ok(found)
    }

    /// The pairs with the counters that all share, and one that stands for the notes of goroutines.
    fn held(&self, id: MeasurementId) -> impl Iterator<Item = (PairKey, &'static str, Variable)> {
        let names = [OPEN, RECORDS].into_iter().chain(self.keeps_notes.then_some(NOTES));
        names.map(move |name| (key(id, name), name, code::held(name, &self.options)))
    }

    /// The functions as clients see them.
    fn named(&self, at: &Locked<'_>) -> Vec<PrintedSite> {
        let named = |site: &SlowSite| PrintedSite {
            function: crate::pairs::function_ref(at.modules(), site.function).unwrap_or_default(),
            columns: site.columns.iter().map(printed_column).collect(),
            left_out: self.is_left_out(at, site),
        };
        self.sites.iter().map(named).collect()
    }

    /// Whether the code of a function is not there because it would cost too much.
    fn is_left_out(&self, at: &Locked<'_>, site: &SlowSite) -> bool {
        self.left_out.contains(&site.function) || at.is_left_out(&site.key)
    }

    /// The slow calls in what threads have appended since the last time.
    fn answer(&self, drained: Vec<Drained>, at: &Locked<'_>) -> PrintedCalls {
        let Some(begun) = &self.begun else { return PrintedCalls::default() };
        let (now, unix) = at.wall_clock().map(TickClock::with_unix_time).unwrap_or_default();
        let scale = at.wall_clock().map(TickClock::scale);
        let ns = |ticks: u64| scale.map_or(0, |scale| scale.apply(ticks));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<SlowRecord> = Vec::new();
        for Drained { tid, stream, bytes, .. } in drained {
            let inside = state.inside.entry(stream).or_default();
            for record in values_in(&bytes) {
                let [began, ticks, ..] = *record.words else { continue };
                let span = CallSpan { began, ended: began.saturating_add(ticks) };
                if usize::from(record.number) >= self.outer {
                    let values = record.words.iter().skip(HEAD_INSIDE).copied().collect();
                    inside.push(RecordedCall { site: record.number.into(), span, values });
                } else {
                    found.push(SlowRecord { tid, span, record, inside: std::mem::take(inside) });
                }
            }
        }
        found.sort_by_key(|slow| slow.span.ended);
        let mut calls = Vec::new();
        for SlowRecord { tid, span, record, inside } in found {
            let Some(SlowSite { columns, .. }) = self.sites.get(usize::from(record.number)) else { continue };
            if !state.limiter.permits(ns(span.ended)) {
                state.limited += 1;
                continue;
            }
            let [lost, goroutine] = [HEAD - 2, HEAD - 1].map(|n| record.words.get(n).copied().unwrap_or(0));
            let values = std::iter::once(span.ended).chain(record.words.into_iter().skip(HEAD)).collect();
            let values = TakenRecord { number: record.number, words: values };
            let Some((ended, values)) = call(&values, columns) else { continue };
            let time_ns = unix.saturating_sub(ns(now.saturating_sub(ended)));
            let tree = tree(span, &inside, lost, (&ns, &|inside| self.values(inside)));
            let tree = Some(CallTree { goroutine, ..tree });
            calls.push(PrintedCall { site: record.number.into(), tid, time_ns, values, tree });
        }
        state.told += calls.len() as u64;
        drop(state);
        place_callers(&mut calls, at);
        PrintedCalls { sites: begun.sites.clone(), calls, counts: CallNumbers::default() }
    }

    /// The values of a call inside.
    fn values(&self, inside: &RecordedCall) -> Vec<PrintedValue> {
        let site = self.sites.get(inside.site as usize).filter(|site| !site.columns.is_empty());
        let values = site.and_then(|site| {
            // A time comes first, which these records do not have.
            let words = std::iter::once(0).chain(inside.values.iter().copied()).collect();
            call(&TakenRecord { number: 0, words }, &site.columns)
        });
        values.map(|(_, values)| values).unwrap_or_default()
    }

    /// Numbers of calls.
    fn counts(&self, at: &Locked<'_>, at_end: bool) -> CallNumbers {
        let Some(begun) = &self.begun else { return CallNumbers::default() };
        let sum =
            |n: usize| begun.counters.iter().filter_map(|of| of.get(n)).map(|counter| at.sum(*counter)).sum::<u64>();
        // In this order: a call that goes on meanwhile is told as one that has not come so far yet.
        let met = sum(2);
        let passed = sum(1).max(met);
        let calls = sum(0).max(passed);
        let common =
            |n: usize| begun.counters.iter().filter_map(|of| of.get(n)).map(|counter| at.common(*counter)).sum::<u64>();
        let unrecorded: u64 = begun.activations.iter().map(|first| at.sum(first + UNRECORDED)).sum();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Counted {
            calls,
            passed,
            made: met,
            skipped: 0,
            lost: 0,
            unfollowed: unrecorded.saturating_add(common(0).saturating_sub(common(1))),
            printed: state.told,
            limited: state.limited,
        }
        .counts(at_end)
    }
}

impl Running for SlowKind {
    fn patterns(&self) -> Vec<&str> {
        let patterns = if self.options.callees.is_empty() { &self.waits } else { &self.options.callees };
        let told = self.options.told.iter().map(|told| &told.function);
        patterns.iter().chain(told).map(String::as_str).collect()
    }

    /// A pair for each function, and one that only counts its calls.
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let printed = printing(asked)?;
        let outer: Vec<FunctionId> = printed.iter().filter_map(|printed| printed.function).collect();
        let inside = self.inside(asked.modules, &outer)?;
        let told = ToldValues::of_functions(asked, &self.options.told)?;
        let count = 2 * outer.len() + inside.len();
        if count >= FUNCTIONS_MAX {
            let what = format!("calls of {count} functions cannot be followed at once");
            return Err(Error::new(Reason::TooManyFunctions, what, "name fewer functions by --callees"));
        }
        let owner = |purpose| Owner { measurement: asked.id, purpose };
        let (mut sites, mut again, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let mut keeps_notes = false;
        // A thread does not know the calls that a goroutine keeps notes of, nor does a goroutine know those of a thread.
        let kinds: FxHashSet<bool> = outer.iter().map(|function| is_go(asked.modules, *function)).collect();
        if kinds.len() > 1 {
            // Both would write to the buffer of the thread, each as if it were alone.
            let what = "slow calls of functions of Go and of C are not told by one command";
            return Err(Error::new(Reason::NoPrint, what, "begin a command for each"));
        }
        let of_goroutines = match kinds.contains(&true) {
            true => following_goroutines(asked.modules),
            false => Following::Goroutine(None),
        };
        for (n, printed) in printed.iter().enumerate() {
            let Some(function) = printed.function else { continue };
            let numbers = (number(n), number(outer.len() + n));
            let is_go = is_go(asked.modules, function);
            keeps_notes |= is_go;
            let how = (if is_go { of_goroutines } else { Following::Thread }, &self.options);
            let (instrumentation, columns) = code::of_function(&printed.instrumentation, numbers, how)?;
            let focus = printed.pair.focus.clone();
            let wanted = pair(owner(PairPurpose::Asked), SLOW, (function, focus.clone()), instrumentation);
            let key = PairKey::of(&wanted);
            again.push(SlowSite { function, key: key.clone(), columns: Vec::new() });
            sites.push(SlowSite { function, key, columns });
            all.extend([look(function, focus, asked.id), wanted]);
        }
        sites.append(&mut again);
        let variables = InsideCode::variables(SharedCounters::default());
        let [inside_threads, inside_goroutines] = [Following::Thread, of_goroutines].map(InsideCode::new);
        for function in inside {
            let Some(focus) = focus(asked.modules, function) else { continue };
            let (values, is_go) = (told.get(&function), is_go(asked.modules, function));
            if !kinds.contains(&is_go) {
                if values.is_some() {
                    let what = "values of C functions below functions of Go, or the other way round, are not told";
                    return Err(Error::new(Reason::NoPrint, what, "leave out --tell for them"));
                }
                continue;
            }
            let of_inside = if is_go { &inside_goroutines } else { &inside_threads };
            let telling = values.map(|values| of_inside.telling(values)).transpose()?;
            let code = telling.as_ref().unwrap_or(of_inside);
            let instrumentation = code.of((function, number(sites.len())), &self.options, &variables);
            let wanted = pair(owner(PairPurpose::Hidden), INSIDE, (function, focus.clone()), instrumentation);
            let columns = values.map_or_else(Vec::new, |values| values.columns.clone());
            sites.push(SlowSite { function, key: PairKey::of(&wanted), columns });
            all.extend([look(function, focus, asked.id), wanted]);
        }
        (self.sites, self.outer, self.keeps_notes) = (sites, outer.len(), keeps_notes);
        self.looks = looks_among(&all);
        Ok(all)
    }

    fn looks_first(&self, _: &EnableRequest) -> bool {
        true
    }

    /// Takes the counters that all share, and tells the code of all functions.
    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        if self.keeps_notes {
            if at.has_pair_of(NOTES) {
                let what = "another command tells slow calls of goroutines in this process";
                return Err(Error::new(Reason::GoroutinesFollowed, what, "end that one first"));
            }
            at.end_goroutine_notes()?;
        }
        let mut first = [0; 3];
        for ((key, name, variable), first) in self.held(at.id()).zip(&mut first) {
            let held = at.hold_counter(key, metric_named(name), variable);
            *first = held.inspect_err(|_| self.held(at.id()).for_each(|(key, ..)| at.release_counter(&key)))?;
        }
        let [open, records, _] = first;
        let shared = SharedCounters { open, records };
        self.shared = Some(shared);
        let inside = InsideCode::variables(shared);
        for w in wanted.iter_mut() {
            match w.pair.metric.as_str() {
                INSIDE => w.instrumentation.variables = Arc::clone(&inside),
                SLOW => w.instrumentation.variables = code::bound(&w.instrumentation.variables, shared),
                _ => {}
            }
        }
        Ok(Observer::default())
    }

    fn failed(&mut self, at: &mut Locked<'_>) {
        if self.shared.take().is_some() {
            self.held(at.id()).for_each(|(key, ..)| at.release_counter(&key));
        }
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        let Some(SharedCounters { records: first, .. }) = self.shared else { return };
        begun.keys.extend(self.held(at.id()).map(|(key, ..)| (key, None)));
        let capacity = self.options.capacity;
        let values = NewBuffers {
            first,
            capacity,
            times: false,
            waits: false,
            values: true,
            grouped: true,
            burst: None,
            contexts: None,
        };
        at.begin_buffers::<SlowKind>(values);
        let (mut counters, mut activations) = (Vec::new(), Vec::new());
        for site in self.sites.iter().take(self.outer) {
            let Some(pair) = at.pair(&site.key) else { continue };
            let counter = |variable: VariableId| pair.counters().get(variable.0 as usize).copied();
            if let (Some(began), Some(ended), Some(met)) = (counter(BEGAN), counter(ENDED), counter(MET)) {
                counters.push([began, ended, met]);
            }
            let variables = pair.variables().iter().zip(pair.counters());
            let own = variables.filter(|(variable, _)| variable.kind == VariableKind::Activations);
            activations.extend(own.map(|(_, first)| *first));
        }
        self.begun = Some(SlowStart { counters, activations, sites: self.named(at) });
    }

    fn needs_libraries(&self) -> bool {
        true
    }

    /// Libraries that were loaded since have no part.
    fn grown(&mut self, _: &mut Locked<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    /// Takes out the code that has counted calls: it costs something at each call, also of functions that are left out.
    fn tick(&mut self, at: &mut Locked<'_>) {
        at.withdraw_pairs(std::mem::take(&mut self.looks));
    }

    /// Notes whose code was taken out because it cost too much.
    fn last(&mut self, at: &mut Locked<'_>) {
        let out = self.sites.iter().filter(|site| self.is_left_out(at, site)).map(|site| site.function);
        self.left_out = out.collect();
        let sites = self.named(at);
        if let Some(begun) = &mut self.begun {
            begun.sites = sites;
        }
    }

    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let Some(last) = at.end_buffers::<SlowKind>() else { return };
        let mut told = self.answer(last.drained, at);
        told.counts = self.counts(at, true);
        removed.printed = Some(told);
    }
}

/// The slow calls since the last time, if the measurement tells slow calls. Does not stop the target.
pub(super) fn take(session: &Session, id: MeasurementId) -> Option<Result<PrintedCalls, Error>> {
    let drained = session.drain::<SlowKind>(id)?;
    Some(session.with_kind(id, |kind, at| {
        let kind = kind.downcast_ref::<SlowKind>().ok_or_else(|| no_print(id))?;
        let mut told = kind.answer(drained, at);
        told.counts = kind.counts(at, false);
        Ok(told)
    }))
}

#[cfg(test)]
mod tests {
    use ingraft_model::Capacity;

    use super::*;
    use crate::api::ToldValue;

    #[test]
    fn the_libraries_of_told_functions_are_analysed() {
        let of = |callees: &[&str]| {
            let told = vec![ToldValue { function: "libm:pow".to_owned(), expression: "$return".to_owned() }];
            let callees = callees.iter().map(|name| (*name).to_owned()).collect();
            let options =
                SlowOptions { over_ns: 1, least_ns: 1, callees, told, limit: None, capacity: Capacity::SMALLEST };
            SlowKind::new(options).patterns().into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(&["libz:*"]), ["libz:*", "libm:pow"]);
        let usual = of(&[]);
        assert_eq!(usual.len(), WAITS.len() + 1);
        assert_eq!(usual.last().map(String::as_str), Some("libm:pow"));
    }
}
