//! Profiles of a session: their start in the stop of an insertion, and queries.

use std::sync::Arc;
use std::time::Duration;

use ingraft_model::{Avma, FunctionRef as MdlFunction, ModuleRef, PatchPlan, Svma, Tid};
use ingraft_process::ApplyOptions;
use ingraft_profile::{Inside, Partial, Position};
use ingraft_report::{ModuleInfo, ProfileKind, Refused, SavedProfile};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{Kind, MeasurementId, ProfileReading, ProfiledFunction, RefusedFunction};
use crate::background::each;
use crate::error::{Error, Reason};
use crate::measure::request::Wanted;
use crate::profile::plan::{Method, Plan};
use crate::profile::result::{self, Counted};
use crate::program::modules::Modules;
use crate::readings::values::{Columns, Rows, Shards};
use crate::weaving::catch_up::CaughtUp;
use crate::weaving::plan::Woven;
use crate::weaving::positions::{CodeMap, Observer, Place, PositionVisitor, Seen, Spot};

use super::clocks::now_ns;
use super::control::Control;
use super::coverage::{Rounds, covered};
use super::doubts::doubt;
use super::driver::Session;
use super::errors::no_measurement;
use super::inclusive::{Clock, OfFunction, Sought};
use super::measurement::Hidden;
use super::measurement::Measurement;
use super::pair::PairKey;

/// Length in bytes of an `endbr64`, behind which a springboard lies.
const ENDBR: i64 = 4;

/// Largest number of stops of one query: a thread may be at a place where it is not known what was counted.
const TRIES: u32 = 20;

/// The profiled functions of a measurement.
#[derive(Debug, Default)]
pub(super) struct Profile {
    pub(super) functions: Vec<Profiled>,
    /// The modules of these functions, as they were at the insertion.
    modules: FxHashMap<ModuleRef, ModuleInfo>,
    began_ns: u64,
    /// Path of the target's program; empty if it cannot be read.
    program: String,
    /// Number of threads that were at unknown positions when counting began.
    pub(super) unknown: u64,
    /// The rounds of a coverage; `None` in a profile of counts.
    pub(super) rounds: Option<Rounds>,
    /// The event clock of inclusive totals.
    pub(super) clock: Clock,
}

/// A profiled function.
#[derive(Debug)]
pub(super) struct Profiled {
    pub(super) key: PairKey,
    pub(super) plan: Arc<Plan>,
    /// Threads in the function when counting began.
    pub(super) late: Vec<Late>,
    /// Whether a thread was at an unknown position when counting began.
    pub(super) unknown: bool,
}

impl Profiled {
    /// Whether a thread was, or may have been, inside of a run when counting began.
    pub(super) fn began_inside(&self) -> bool {
        self.unknown || self.late.iter().any(|late| late.stand.run.is_some())
    }
}

/// A thread in a profiled function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    pub(super) tid: Tid,
    /// Position in a run; `None` if the run has not begun.
    pub(super) run: Option<Position>,
    /// Block of its run that it has left, all of whose instructions it has executed; `None` if it is still in it.
    pub(super) left: Option<usize>,
    /// Index of the block of which it has executed a part, and its next instruction there; `None` if it has executed all of the block.
    pub(super) part: (usize, Option<Svma>),
}

/// A thread that was in a profiled function when counting began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late {
    pub(super) stand: Stand,
    /// Start time of the thread, which tells it from a later one with the same id; `None` if it has ended since.
    pub(super) began: Option<u64>,
}

/// Profiled functions, with the pair of each.
pub(super) type Plans = Vec<(PairKey, Arc<Plan>)>;

impl Session {
    /// Makes the pairs of a profile its own, because profiles that began at different times have different corrections. Returns the new
    /// functions, and an observer that notes where threads are when they are inserted.
    pub(super) fn begin_profile(
        &self,
        control: &mut Control,
        id: MeasurementId,
        wanted: &mut Vec<Wanted>,
    ) -> Result<(Plans, Observer), Error> {
        let mut plans = Plans::new();
        for w in wanted.iter_mut() {
            let Some(plan) = &w.plan else { continue };
            w.helpers = format!("profile {}", id.0).into();
            let key = PairKey::of(w);
            if !control.pairs.contains_key(&key) {
                plans.push((key, Arc::clone(plan)));
            }
        }
        let functions = plans.iter().map(|(_, plan)| plan.function).collect();
        self.begin_inclusive(control, id, wanted)?;
        Ok((plans, Observer { functions, seen: None }))
    }

    /// Whether some of these functions are in the loader.
    pub(super) fn is_of_loader(&self, control: &Control, plans: &Plans) -> bool {
        let loader = control.modules.loader(&self.target);
        loader.is_some_and(|loader| plans.iter().any(|(_, plan)| plan.function.module == loader))
    }

    /// Notes the functions of a profile that were inserted, and the threads that were inside of them. Takes the pairs without values for clients
    /// out of the inserted pairs, and returns their views.
    pub(super) fn note_profile(
        &self,
        control: &mut Control,
        (id, kind): (MeasurementId, &Kind),
        (plans, observer, caught_up): (Plans, Observer, Option<&CaughtUp>),
        inserted: &mut Vec<(PairKey, Option<MdlFunction>)>,
    ) -> Hidden {
        let inclusive = self.split_inclusive(control, id, inserted);
        let hidden = Hidden { leaps: self.split_leaps(control, inserted), inclusive };
        let seen = observer.seen.unwrap_or_default();
        let profile = control.profiles.entry(id).or_default();
        profile.rounds = matches!(kind, Kind::Coverage(_)).then(|| profile.rounds.unwrap_or_default());
        let Some(attached) = &control.attached else { return hidden };
        let is_woven = |(key, _): &(PairKey, Arc<Plan>)| control.pairs.get(key).is_some_and(|p| !p.minis.is_empty());
        let plans: Vec<_> = plans.into_iter().filter(is_woven).collect();
        let of_plans: Vec<&Plan> = plans.iter().map(|(_, plan)| &**plan).collect();
        let late = stands(control, &attached.woven, &of_plans, &seen, true);
        let began = |stand| Late { stand, began: self.target.thread_began(stand.tid) };
        let mut late: FxHashMap<usize, Vec<Late>> =
            late.into_iter().map(|(n, stands)| (n, stands.into_iter().map(began).collect())).collect();
        let mut profile = control.profiles.remove(&id).unwrap_or_default();
        let is_first = profile.began_ns == 0;
        if is_first {
            profile.began_ns = now_ns();
            profile.program = self.program();
        }
        let unknown = seen.unknown.len() as u64;
        profile.unknown += unknown;
        for module in plans.iter().map(|(_, plan)| plan.function.module).collect::<FxHashSet<_>>() {
            profile.modules.extend(module_info(&control.modules, module).map(|info| (module, info)));
        }
        let functions = plans.into_iter().enumerate().map(|(n, (key, plan))| Profiled {
            key,
            plan,
            late: late.remove(&n).unwrap_or_default(),
            unknown: unknown > 0,
        });
        let functions: Vec<Profiled> = functions.collect();
        if let Some(caught_up) = caught_up {
            profile.clock.note(control, &functions, caught_up, is_first);
        }
        profile.functions.extend(functions);
        control.profiles.insert(id, profile);
        hidden
    }

    /// Counts of all blocks and edges of a profile's functions, at one moment at which all threads are held.
    pub fn profile(&self, id: MeasurementId) -> Result<ProfileReading, Error> {
        let control = self.control();
        self.profile_locked(&control, id)?.ok_or_else(|| no_profile(id))
    }

    /// As [`Session::profile`]; `None` if the measurement is no profile.
    pub(super) fn profile_locked(&self, control: &Control, id: MeasurementId) -> Result<Option<ProfileReading>, Error> {
        let measurement = control.measurements.get(&id).ok_or_else(|| no_measurement(id))?;
        let Some(profile) = control.profiles.get(&id) else { return Ok(None) };
        let _acting = self.target.act_for(measurement.rights);
        let counters = counters(control, profile);
        let (mut values, mut leaps): (Vec<Vec<u64>>, Vec<u64>) = (Vec::new(), Vec::new());
        let leap_counters = Session::leap_counters(control, measurement);
        let (sought, mut rows) = (Sought::of(control, profile), Rows::default());
        let (seen, held, ended) = self.observe(control, &mut |columns| {
            let sum = |counter: &u32| columns.sum(*counter).cast_unsigned();
            values = counters.iter().map(|of| of.iter().map(sum).collect()).collect();
            leaps = leap_counters.iter().map(sum).collect();
            rows = columns.rows(&sought.counters);
        })?;
        let leaps = Session::leaps_of(control, measurement, &leaps);
        let suspects = self.suspects(&counters, &seen, ended);
        let inclusive = sought.totals((control, profile), (&seen, ended, &leaps), &rows);
        let unknown = seen.unknown.len() as u64;
        let plans: Vec<&Plan> = profile.functions.iter().map(|f| &*f.plan).collect();
        let early = match &control.attached {
            Some(attached) => positions(stands(control, &attached.woven, &plans, &seen, false)),
            None => FxHashMap::default(),
        };
        let refused = refused(control, measurement);
        let mut modules: Vec<ModuleRef> =
            plans.iter().map(|plan| plan.function).chain(refused.iter().map(|(f, _)| *f)).map(|f| f.module).collect();
        modules.sort_unstable();
        modules.dedup();
        let known = |module: &ModuleRef| profile.modules.get(module).cloned();
        let info =
            |module: &ModuleRef| module_info(&control.modules, *module).or_else(|| known(module)).unwrap_or_default();
        let index = |module: ModuleRef| modules.binary_search(&module).unwrap_or_default();
        let numbered: Vec<(usize, &Profiled)> = profile.functions.iter().enumerate().collect();
        let functions = each(&numbered, |(n, f)| {
            let counters = values.get(*n).cloned().unwrap_or_default();
            let early = early.get(n).map_or(&[][..], Vec::as_slice);
            let module = index(f.plan.function.module);
            match &f.plan.method {
                Method::Runs(runs) => {
                    let late = f.late.iter().filter_map(|late| late.stand.run);
                    let partial = Partial { late: late.collect(), early: early.to_vec() };
                    let may_have_run = !runs.tells_calls(&f.plan.cfg) || counters.iter().any(|count| *count > 0);
                    let inexact = doubt(control, (profile, *n, f), (&suspects, &leaps), may_have_run);
                    let counted = Counted { counters, partial, inexact };
                    result::counts(&control.modules, (&f.plan, runs), &counted, module)
                }
                Method::Probes(_) => {
                    let end = unknown + ended > 0 || !early.is_empty() || leaps.any();
                    let inside = Inside { begin: f.began_inside(), end };
                    let (coverage, why) = covered(control.pairs.get(&f.key), &f.plan, &counters, inside);
                    result::coverage(&f.plan, &coverage, module, why)
                }
            }
        });
        let is_coverage = profile.rounds.is_some();
        let late =
            profile.functions.iter().flat_map(|f| &f.late).filter(|late| late.stand.run.is_some()).count() as u64;
        let early: u64 = early.values().map(|early| early.len() as u64).sum();
        let saved = SavedProfile {
            kind: if is_coverage { ProfileKind::Coverage } else { ProfileKind::Counts },
            host: String::new(),
            pid: u32::try_from(self.pid().0).unwrap_or_default(),
            program: profile.program.clone(),
            began_ns: profile.began_ns,
            ended_ns: now_ns(),
            modules: modules.iter().map(info).collect(),
            functions,
            refused: refused.into_iter().map(|(f, refused)| not_profiled(index(f.module), refused)).collect(),
            corrected: if is_coverage { (0, 0) } else { (late, early) },
        };
        let inclusive_of = plans.first().and_then(|plan| plan.inclusive());
        let details = plans.iter().zip(inclusive).map(|(plan, of)| detail(plan, of)).collect();
        Ok(Some(ProfileReading { saved, details, inclusive: inclusive_of, held }))
    }

    /// Reads counters while all threads are held, and notes where the threads are. Returns how long they were held, and the number of
    /// threads that the end of the target may have stopped at unknown places.
    pub(super) fn observe(
        &self,
        control: &Control,
        read: &mut (dyn FnMut(&Columns<'_>) + Send),
    ) -> Result<(Seen, Duration, u64), Error> {
        let mut read = || {
            if let Some(columns) = self.shared().columns() {
                read(&columns);
            }
        };
        self.target.take_longest_hold(); // discards the holds of earlier operations
        let alive = || !self.end.is_known() && self.target.is_alive();
        if let Some(attached) = control.attached.as_ref().filter(|_| alive()) {
            for round in 1..=TRIES {
                let mut visitor = PositionVisitor::of_query(CodeMap::new(&attached.woven), &mut read);
                let options = ApplyOptions { readings: Some(attached.env.data), ..ApplyOptions::default() };
                let applied = self.target.apply_and_visit(&PatchPlan::default(), &options, Some(&mut visitor));
                let seen = visitor.seen();
                match applied {
                    Ok(_) if seen.unknown.is_empty() || round == TRIES => {
                        return Ok((seen, self.target.take_longest_hold().held, 0));
                    }
                    Ok(_) => {}
                    Err(_) if !alive() => break,
                    Err(e) => return Err(Error::apply(self.pid(), e)),
                }
            }
        }
        read();
        Ok((Seen::default(), Duration::ZERO, self.cut_off_by_end()))
    }

    /// Number of threads that the end of the target may have stopped inside of runs. A thread that ends the process is inside of a call; it is
    /// taken for one of those with a shard if the main thread has one.
    fn cut_off_by_end(&self) -> u64 {
        let shared = self.shared();
        let claims = shared.area.as_ref().map_or_else(Vec::new, |area| Shards::claims(&**area));
        let main = Tid(self.pid().0);
        let is_main = |id: &u64| shared.tids.get(id).map_or(*id as i32 == main.0, |tid| *tid == main);
        let by_itself = self.end.get().is_some_and(|ended| ended.status.is_some() || ended.exec);
        let counts = by_itself && claims.iter().any(|(_, id)| is_main(id));
        (claims.len() as u64).saturating_sub(u64::from(counts))
    }

    /// The file of the target's program.
    pub(super) fn program(&self) -> String {
        std::fs::read_link(format!("/proc/{}/exe", self.pid()))
            .map_or_else(|_| String::new(), |path| path.display().to_string())
    }
}

/// The error for a measurement that is no profile.
pub(super) fn no_profile(id: MeasurementId) -> Error {
    let what = format!("measurement {} is no profile", id.0);
    Error::new(Reason::NoProfile, what, "read its values instead")
}

/// The counters of each function of a profile; none if its code was taken out.
pub(super) fn counters(control: &Control, profile: &Profile) -> Vec<Vec<u32>> {
    let of = |f: &Profiled| {
        let counters = control.pairs.get(&f.key).map(|pair| pair.counters.iter());
        // Of a coverage too, each place has a counter.
        counters.into_iter().flatten().take(f.plan.places().len()).copied().collect()
    };
    profile.functions.iter().map(of).collect()
}

/// The positions of threads inside of runs.
fn positions(stands: FxHashMap<usize, Vec<Stand>>) -> FxHashMap<usize, Vec<Position>> {
    let runs =
        stands.into_iter().map(|(n, stands)| (n, stands.iter().filter_map(|stand| stand.run).collect::<Vec<_>>()));
    runs.filter(|(_, positions)| !positions.is_empty()).collect()
}

/// The threads in profiled functions, by the index of the function.
pub(super) fn stands(
    control: &Control,
    woven: &Woven,
    plans: &[&Plan],
    seen: &Seen,
    inserting: bool,
) -> FxHashMap<usize, Vec<Stand>> {
    let map = CodeMap::new(woven);
    let copied: FxHashSet<Avma> = woven.copied().map(|body| body.function).collect();
    let mut found: FxHashMap<usize, Vec<Stand>> = FxHashMap::default();
    let spots: Vec<(Tid, Spot)> = seen.counters.iter().map(|(tid, pc)| (*tid, map.spot(*pc))).collect();
    for (n, plan) in plans.iter().enumerate() {
        let Some((module, f)) = plan.resolve(&control.modules) else { continue };
        let block = |at: Avma| plan.block_around(at.to_svma(module.bias));
        let is_copied = copied.contains(&f.start().to_avma(module.bias));
        let stand = |(tid, spot): &(Tid, Spot)| {
            let mut left = None;
            let (run, part) = match spot.place {
                Place::Arrival(at) => (Some(Position::Arrival(block(at)?)), block(at)?),
                Place::Block(at) => (Some(Position::Block(block(at)?)), block(at)?),
                Place::Left(from, to) => {
                    left = Some(block(from)?);
                    (left.map(Position::Block), block(to)?)
                }
                Place::Before(at) => (None, block(at)?),
                Place::Text(at) => {
                    let block = block(at)?;
                    let is_first = plan.cfg.blocks.get(block).is_some_and(|b| b.range.start.to_avma(module.bias) == at);
                    // A thread that returns to the text for a call at the beginning of a block has been counted in the copy.
                    // A block that is a call alone has no `endbr64` before its springboard.
                    let is_alone = plan.cfg.blocks.get(block).is_some_and(|b| b.instructions == 1);
                    let behind_endbr =
                        map.leads(at.offset(ENDBR)) && (!is_alone || at == f.start().to_avma(module.bias));
                    let arrives = is_first && (inserting || !is_copied || behind_endbr);
                    (Some(if arrives { Position::Arrival(block) } else { Position::Block(block) }), block)
                }
                Place::Unknown => return None,
            };
            Some(Stand { tid: *tid, run, left, part: (part, spot.next.map(|next| next.to_svma(module.bias))) })
        };
        let its: Vec<Stand> = spots.iter().filter_map(stand).collect();
        if !its.is_empty() {
            found.insert(n, its);
        }
    }
    found
}

/// Details of a function, with its inclusive totals.
fn detail(plan: &Plan, OfFunction { whole, calls }: OfFunction) -> ProfiledFunction {
    ProfiledFunction { name: plan.name.clone(), events: plan.events.clone(), inclusive: whole, calls }
}

/// A function without a profile. `module` is the index of its module.
fn not_profiled(module: usize, RefusedFunction { function, reason }: RefusedFunction) -> Refused {
    Refused { module, name: function.function, start: function.offset, why: reason.to_string() }
}

/// The functions of a measurement that are refused.
fn refused(control: &Control, measurement: &Measurement) -> Vec<(MdlFunction, RefusedFunction)> {
    let pairs = measurement.views.iter().filter_map(|view| control.pairs.get(&view.key));
    pairs.flat_map(|pair| pair.unwoven.iter().cloned()).collect()
}

/// A module for a saved profile; `None` if it is not loaded.
pub(super) fn module_info(modules: &Modules, module: ModuleRef) -> Option<ModuleInfo> {
    let (file, module) = modules.module(module)?;
    let segments = || module.image.elf().segments().iter();
    Some(ModuleInfo {
        name: file.name.clone(),
        path: file.file.path.display().to_string(),
        build_id: module.image.build_id().unwrap_or_default().to_vec(),
        bias: module.bias.0,
        mapped: (
            segments().map(|s| s.svma.0).min().unwrap_or_default(),
            segments().map(|s| s.svma.0.saturating_add(s.mem_size)).max().unwrap_or_default(),
        ),
    })
}
