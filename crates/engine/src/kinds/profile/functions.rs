//! The functions of a profile: their plans, their insertion, and one look at them while all threads are held.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ingraft_codegen::TextSpace;
use ingraft_model::{FunctionBody, FunctionId, Instrumentation, MetricInfo, ModuleId, Refusal};
use ingraft_profile::ProbeAt;
use ingraft_report::{FunctionProfile, ModuleInfo, SavedProfile, UnprofiledFunction};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{MeasurementId, MetricFocus, RefusedFunction, Removed};
use crate::background::{ITEMS_AT_ONCE, each, in_background};
use crate::error::{Error, Reason};
use crate::kinds::code;
use crate::kinds::graph::{FunctionGraph, module_info};
use crate::kinds::whole;
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::readings::values::Columns;
use crate::session::{InsertedPairs, KindRequest, Locked, now_ns};
use crate::weaving::positions::{Observer, ProgramCounters};

use super::leaps::{LeapCounter, Leaps};
use super::stands::{Late, Stand, stands};

/// The plan to profile one function.
pub trait Plan: Send + Sync + 'static {
    /// The function.
    fn graph(&self) -> &FunctionGraph;
    /// The places of its counters or probes.
    fn places(&self) -> &[ProbeAt];
    /// The code at these places, each with a counter.
    fn instrumentation(&self, metric: Arc<MetricInfo>) -> Instrumentation;
}

/// The profiled functions of a measurement.
#[derive(Debug)]
pub struct Functions<P> {
    /// The functions that were inserted.
    pub all: Vec<Profiled<P>>,
    /// Plans of the request's functions, from its evaluation to its insertion.
    planned: FxHashMap<FunctionId, Arc<P>>,
    /// Those of them that are inserted now, with their keys.
    new: Vec<(PairKey, Arc<P>)>,
    /// The functions as they were analysed for their plans, so that the insertion does not analyse them again: an image has what somebody holds.
    bodies: Vec<Arc<FunctionBody>>,
    /// The modules of the functions, as they were at the insertion.
    modules: FxHashMap<ModuleId, ModuleInfo>,
    /// Unix time in nanoseconds of the first insertion; 0 before.
    began_ns: u64,
    /// Path of the target's program; empty if it cannot be read.
    program: String,
    /// Number of threads that were at unknown positions when counting began.
    pub unknown: u64,
    leaps: LeapCounter,
}

impl<P> Default for Functions<P> {
    fn default() -> Self {
        Functions {
            all: Vec::new(),
            planned: FxHashMap::default(),
            new: Vec::new(),
            bodies: Vec::new(),
            modules: FxHashMap::default(),
            began_ns: 0,
            program: String::new(),
            unknown: 0,
            leaps: LeapCounter::default(),
        }
    }
}

/// A profiled function.
#[derive(Debug)]
pub struct Profiled<P> {
    /// Key of its pair.
    pub key: PairKey,
    /// Plan of the function.
    pub plan: Arc<P>,
    /// Threads in the function when counting began.
    pub late: Vec<Late>,
    /// Whether a thread was at an unknown position when counting began.
    pub unknown: bool,
}

impl<P> Profiled<P> {
    /// Whether a thread was, or may have been, inside of a run when counting began.
    pub fn began_inside(&self) -> bool {
        self.unknown || self.late_runs() > 0
    }

    /// Number of threads that were inside of a run when counting began.
    pub fn late_runs(&self) -> usize {
        self.late.iter().filter(|late| late.stand.run.is_some()).count()
    }
}

/// One moment of a profile, at which all threads are held.
#[derive(Debug)]
pub struct Moment {
    /// Where the threads are.
    pub seen: ProgramCounters,
    /// Number of threads that the end of the target may have stopped inside of runs.
    pub cut_off: u64,
    /// Jumps out of signal handlers since counting began.
    pub leaps: Leaps,
    /// The longest time that any thread was held.
    pub held: Duration,
}

impl Moment {
    /// The longest time that any thread was held, in nanoseconds.
    pub fn held_ns(&self) -> u64 {
        u64::try_from(self.held.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<P: Plan> Functions<P> {
    /// The pairs of functions by their plans, which are made in the background. A function without a plan has code that is refused for the
    /// reason.
    pub fn wanted(
        &mut self,
        asked: &KindRequest<'_>,
        (functions, metric): (&[FunctionId], &str),
        plan: impl Fn(FunctionId) -> Result<P, Refusal> + Sync,
    ) -> Vec<WantedPair> {
        let metric = code::metric_named(metric);
        let wanted = |function: &FunctionId| {
            let focus = code::focus(asked.modules, *function)?;
            let (plan, instrumentation) = match plan(*function) {
                Ok(plan) => {
                    let instrumentation = plan.instrumentation(Arc::clone(&metric));
                    (Some((*function, Arc::new(plan))), instrumentation)
                }
                Err(why) => (None, code::refused(*function, &metric.name, why)),
            };
            let pair = Arc::new(MetricFocus { metric: metric.name.clone(), focus });
            let owner = Owner { measurement: asked.id, purpose: PairPurpose::Asked };
            Some((plan, WantedPair { function: Some(*function), ..WantedPair::owned(owner, pair, instrumentation) }))
        };
        let all: Vec<_> =
            in_background(|| functions.par_iter().with_max_len(ITEMS_AT_ONCE).filter_map(wanted).collect());
        let (plans, wanted): (Vec<_>, Vec<WantedPair>) = all.into_iter().unzip();
        self.planned = plans.into_iter().flatten().collect();
        wanted
    }

    /// As [`Functions::wanted`], for plans that need the text of the function's module with nothing woven into it, and the function as a whole.
    pub fn wanted_as_a_whole(
        &mut self,
        asked: &KindRequest<'_>,
        (functions, metric): (&[FunctionId], &str),
        plan: impl Fn(FunctionId, &TextSpace) -> Result<(P, Arc<FunctionBody>), Refusal> + Sync,
    ) -> Vec<WantedPair> {
        let texts = whole::texts(asked.modules, functions);
        let analysed = Mutex::new(Vec::with_capacity(functions.len()));
        let wanted = self.wanted(asked, (functions, metric), |function| {
            let text = texts.get(&function.module).ok_or(Refusal::NoSuchFunction)?;
            let (plan, body) = plan(function, text)?;
            analysed.lock().unwrap_or_else(PoisonError::into_inner).push(body);
            Ok(plan)
        });
        self.bodies = analysed.into_inner().unwrap_or_else(PoisonError::into_inner);
        wanted
    }

    /// The plan of a wanted pair; `None` if the pair counts no function, or if the function is refused.
    pub fn plan_of(&self, wanted: &WantedPair) -> Option<&Arc<P>> {
        self.planned.get(&wanted.function?)
    }

    /// Prepares the insertion of the functions that are new. Returns an observer that notes where threads are when they are inserted.
    pub fn prepare<'w>(&mut self, at: &Locked<'_>, wanted: impl IntoIterator<Item = &'w WantedPair>) -> Observer {
        let new = |w: &WantedPair| Some((PairKey::of(w), Arc::clone(self.plan_of(w)?)));
        self.new = wanted.into_iter().filter_map(new).filter(|(key, _)| at.pair(key).is_none()).collect();
        let functions = self.new.iter().map(|(_, plan)| plan.graph().function).collect();
        Observer { functions, seen: None }
    }

    /// The modules of the functions that are being inserted.
    pub fn new_modules(&self) -> FxHashSet<ModuleId> {
        self.new.iter().map(|(_, plan)| plan.graph().function.module).collect()
    }

    /// Forgets the functions whose insertion has failed.
    pub fn failed(&mut self) {
        self.bodies.clear();
        self.planned.clear();
        self.new.clear();
    }

    /// Notes the functions that were inserted, and the threads that were inside of them. Returns the new functions.
    pub fn inserted(&mut self, at: &Locked<'_>, begun: &InsertedPairs<'_>) -> &[Profiled<P>] {
        self.bodies.clear();
        self.planned.clear();
        let new = std::mem::take(&mut self.new);
        self.leaps.inserted(at, begun);
        let Some(woven) = at.woven() else { return &[] };
        let is_woven = |(key, _): &(PairKey, Arc<P>)| at.pair(key).is_some_and(|pair| pair.is_woven());
        let new: Vec<_> = new.into_iter().filter(is_woven).collect();
        let graphs: Vec<&FunctionGraph> = new.iter().map(|(_, plan)| plan.graph()).collect();
        let mut late = stands(at.modules(), woven, &graphs, &begun.seen, true);
        if self.began_ns == 0 {
            self.began_ns = now_ns();
            self.program = at.program();
        }
        let unknown = begun.seen.unknown.len() as u64;
        self.unknown += unknown;
        for module in graphs.iter().map(|graph| graph.function.module).collect::<FxHashSet<_>>() {
            self.modules.extend(module_info(at.modules(), module).map(|info| (module, info)));
        }
        let began = |stand: Stand| Late { stand, began: at.target().thread_began(stand.tid) };
        let known = self.all.len();
        self.all.extend(new.into_iter().enumerate().map(|(n, (key, plan))| Profiled {
            key,
            plan,
            late: late.remove(&n).unwrap_or_default().into_iter().map(began).collect(),
            unknown: unknown > 0,
        }));
        self.all.get(known..).unwrap_or_default()
    }

    /// Whether functions were inserted.
    pub fn has_begun(&self) -> bool {
        self.began_ns != 0
    }

    /// The functions with their graphs.
    pub fn graphs(&self) -> Vec<&FunctionGraph> {
        self.all.iter().map(|f| f.plan.graph()).collect()
    }

    /// The counters of each function; none if its code was taken out.
    pub fn counters(&self, at: &Locked<'_>) -> Vec<Vec<u32>> {
        let of = |f: &Profiled<P>| {
            let counters = at.pair(&f.key).map_or(&[][..], |pair| pair.counters());
            counters.iter().take(f.plan.places().len()).copied().collect()
        };
        self.all.iter().map(of).collect()
    }

    /// Reads counters while all threads are held.
    pub fn observe(&self, at: &Locked<'_>, read: &mut (dyn FnMut(&Columns<'_>) + Send)) -> Result<Moment, Error> {
        let (counters, mut leaps) = (LeapCounter::counters(at), Vec::new());
        let (seen, held, cut_off) = at.observe(&mut |columns| {
            read(columns);
            leaps = counters.iter().map(|counter| columns.sum(*counter).cast_unsigned()).collect();
        })?;
        Ok(Moment { seen, cut_off, leaps: self.leaps.leaps(at, &leaps), held })
    }

    /// The threads inside of functions, by the index of the function.
    pub fn stands(&self, at: &Locked<'_>, seen: &ProgramCounters) -> FxHashMap<usize, Vec<Stand>> {
        at.woven().map_or_else(FxHashMap::default, |woven| stands(at.modules(), woven, &self.graphs(), seen, false))
    }

    /// The profile for a file. `function` returns that of a function by its number; it gets the index of its module, too.
    pub fn saved(
        &self,
        at: &Locked<'_>,
        function: impl Fn(usize, &Profiled<P>, usize) -> FunctionProfile + Sync,
    ) -> SavedProfile {
        let refused = at.refused();
        let functions = self.graphs().into_iter().map(|graph| graph.function);
        let mut modules: Vec<ModuleId> = functions.chain(refused.iter().map(|(f, _)| *f)).map(|f| f.module).collect();
        modules.sort_unstable();
        modules.dedup();
        let known = |module: &ModuleId| self.modules.get(module).cloned();
        let info = |module: &ModuleId| module_info(at.modules(), *module).or_else(|| known(module)).unwrap_or_default();
        let index = |module: ModuleId| modules.binary_search(&module).unwrap_or_default();
        let numbered: Vec<(usize, &Profiled<P>)> = self.all.iter().enumerate().collect();
        SavedProfile {
            pid: u32::try_from(at.target().pid().0).unwrap_or_default(),
            program: self.program.clone(),
            began_ns: self.began_ns,
            ended_ns: now_ns(),
            functions: each(&numbered, |(n, f)| function(*n, f, index(f.plan.graph().function.module))),
            modules: modules.iter().map(info).collect(),
            refused: refused.into_iter().map(|(f, refused)| not_profiled(index(f.module), refused)).collect(),
            ..SavedProfile::default()
        }
    }
}

/// A function without a profile. `module` is the index of its module.
fn not_profiled(module: usize, RefusedFunction { function, reason }: RefusedFunction) -> UnprofiledFunction {
    UnprofiledFunction { module, name: function.function, start: function.offset, why: reason.to_string() }
}

/// Adds the last counts of a profile to the answer to its removal.
pub fn tell_last(last: Option<Result<SavedProfile, Error>>, removed: &mut Removed) {
    match last {
        Some(Ok(profile)) => {
            removed.stopped.held = removed.stopped.held.max(Duration::from_nanos(profile.held_ns));
            removed.corrections = profile.corrected;
            removed.profile = Some(Box::new(profile));
        }
        Some(Err(error)) => {
            removed.warnings.push(format!("the last counts of the profile could not be read: {}", error.what));
        }
        None => {}
    }
}

/// The error for a measurement that is no profile.
pub fn no_profile(id: MeasurementId) -> Error {
    let what = format!("measurement {} is no profile", id.0);
    Error::new(Reason::NoProfile, what, "read its values instead")
}
