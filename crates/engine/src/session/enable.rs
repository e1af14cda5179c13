//! Insertion of a measurement: from a request to woven pairs and the answer.

use std::sync::Arc;
use std::time::Instant;

use ingraft_mdl::Library;
use ingraft_model::{Clock, FunctionId, Instrumentation, Places, Resolution, Shape, Variable};
use ingraft_process::Rights;
use rustc_hash::FxHashMap;

use crate::api::{EnableRequest, Enabled, MAX_HOLD, MeasurementId};
use crate::error::Error;
use crate::measure::request::{self, Missing, WantedPair};
use crate::measure::sizes::{self, Resizing, VariableSizes};
use crate::pairs::{AdmittedPairs, COUNTERS_A_PAIR, PairKey};
use crate::weaving::catch_up::CaughtUp;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::{Session, lock_target};
use super::errors::{ending, over};
use super::insertion_stop::InsertionStop;
use super::kind::{InsertedPairs, KindRequest, Occasion, Running};
use super::locked::Locked;
use super::measurement::Measurement;
use super::staged::InsertionResult;
use super::{insert, internals, warnings};

/// A measurement that is asked for.
pub struct NewMeasurement<'a> {
    /// Id of the measurement.
    pub id: MeasurementId,
    /// Rights with which the target is touched.
    pub rights: Rights,
    /// Definitions of metrics, those of the request included.
    pub library: &'a Arc<Library>,
    /// The request.
    pub request: &'a EnableRequest,
    /// Treatment of names that nothing in the target has.
    pub missing: Missing,
    /// Time at which the request came.
    pub begin: Instant,
    /// Called with a line of text about the present step.
    pub progress: &'a dyn Fn(&str),
}

/// Whether code that is wanted reads a clock.
fn read(wanted: &[WantedPair], clock: Clock) -> bool {
    wanted.iter().any(|w| insert::reads(&w.instrumentation, clock))
}

impl Session {
    /// Inserts a measurement. With [`Missing::MayCome`] it begins with the functions that are mapped and grows by [`Session::grow`].
    pub fn enable(&self, new: &NewMeasurement<'_>) -> Result<Enabled, Error> {
        let &NewMeasurement { id, rights, library, request, missing, begin, progress } = new;
        let mut guard = self.control();
        let control = &mut *guard;
        if control.closed {
            return Err(ending(self.pid()));
        }
        let _acting = self.target.act_for(rights);
        self.lock_again(control)?;
        self.release_spare(control);
        self.target.take_longest_hold(); // discards the holds of earlier operations
        let attached_before = control.attached.is_some() && !control.measurements.is_empty();
        self.look_at_modules(control)?;
        self.refuse_changed(control)?;
        let own = internals::of_request(library, request, &control.modules)?;
        let before = self.internal_views(&own)?;
        let mut kind = (self.context.kind)(&request.kind);
        let rest = internals::without(request, &own);
        let asked =
            KindRequest { id, target: &self.target, modules: &control.modules, library, request: &rest, missing };
        let (errors, wanted) = asked.evaluate(&mut *kind, &self.context.images, !own.is_empty(), progress);
        let mut wanted = wanted?;
        if missing == Missing::ModulesMayCome {
            request::refuse_absent(&control.modules, request)?;
        }
        let awaited = if missing != Missing::Fails { request::awaited(&control.modules, request) } else { Vec::new() };
        request::refuse_empty(&self.target, &wanted)?;
        let mut warnings: Vec<String> = errors.into_iter().map(|e| e.what).collect();
        let of_request = warnings::of_request((&self.target, &control.modules), (new, &*kind), &awaited);
        warnings.extend(of_request.into_iter().chain(warnings::of_values(&before, &wanted)));
        self.decide_family(control, request.family && own.is_empty(), &wanted, &mut warnings)?;
        let limit = request.max_overhead.unwrap_or(self.context.max_overhead);
        self.check(control, rights)?;
        let staged = missing != Missing::MayCome && kind.looks_first(request) && Session::is_staged(&wanted);
        if !staged {
            self.refuse_costly(control, &wanted, limit)?;
        }
        warnings.extend(warnings::of_calls(&wanted));
        let [wall, cpu] = [Clock::Wall, Clock::Cpu].map(|clock| read(&wanted, clock));
        let observer = kind.prepare(&mut Locked::new(self, control, id), &mut wanted)?;
        let mut stop = InsertionStop { observer, ..InsertionStop::default() };
        let coming = if awaited.is_empty() { 0 } else { kind.reserved() };
        let bounded = self.target.bound_holds(Some(request.max_hold.unwrap_or(MAX_HOLD)));
        let inserted = match staged {
            true => self.insert_staged(control, wanted, own.is_empty(), limit),
            false => self.insert_wanted(control, wanted, own.is_empty(), coming, &mut stop),
        };
        drop(bounded);
        let inserted = inserted.inspect_err(|_| kind.failed(&mut Locked::new(self, control, id)));
        let InsertionResult { mut keys, caught_up, dear } = inserted?;
        let occasion = if missing == Missing::MayCome { Occasion::Start } else { Occasion::Running };
        let begun = InsertedPairs { keys: &mut keys, caught_up: &caught_up, seen: stop.into_seen(), occasion };
        let hidden = self.begun(control, id, &mut *kind, begun);
        warnings.extend([self.insertion_warnings(control, &keys), self.clock_warnings(control, wall, cpu)].concat());
        let (mut views, mut pairs) = (self.views(control, &keys), control.pair_infos(&keys));
        control.pairs.add_users(&keys);
        internals::merge(&own, before, &mut views, &mut pairs);
        let measurement = Measurement {
            views: Arc::new(views.into()),
            pairs: Arc::new(pairs),
            hidden: Vec::new(),
            grown: false,
            request: EnableRequest { max_pairs: None, ..request.clone() },
            library: Arc::clone(library),
            awaited,
            rights,
            limit,
            keep: false,
            revoked: false,
            outlives_removal: false,
        };
        dear.iter().for_each(|(key, why)| self.freeze(control, key, *why, None));
        self.settle_accounts(control);
        self.enter(control, id, measurement, kind);
        Session::note_hidden(control, id, hidden);
        let Some(measurement) = control.measurements.get(&id) else { return Err(over(self.pid())) };
        let enabled = self.enabled(control, id, measurement, !attached_before, begin, caught_up, warnings);
        if request.keep {
            self.keep_locked(control, id, true)?;
        }
        Ok(enabled)
    }

    /// Checks the rights of a request, also if its pairs have no code and need no stop. Then looks at the signal handlers.
    fn check(&self, control: &mut Control, rights: Rights) -> Result<(), Error> {
        self.target.check(rights).map_err(|e| self.failed(e))?;
        self.look_at_handlers(control)
    }

    /// Adds a measurement to those of the session.
    fn enter(&self, control: &mut Control, id: MeasurementId, measurement: Measurement, kind: Box<dyn Running>) {
        control.measurements.insert(id, measurement);
        self.kinds().insert(id, kind);
    }

    /// Takes the lock of the target again if a failed insertion has released it, because measurements without code stay valid then. Fails
    /// if the session is over.
    fn lock_again(&self, control: &mut Control) -> Result<(), Error> {
        if control.lock.is_none() && !self.end.is_known() {
            let is_clean = self.target.find_areas().is_ok_and(|areas| areas.is_empty());
            if control.measurements.is_empty() || !is_clean {
                return Err(over(self.pid()));
            }
            control.lock = Some(lock_target(&self.context, self.pid())?);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "an answer with as many facts")]
    pub(super) fn enabled(
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
        // Code that counts calls for a moment, to tell what other code would cost, is left out.
        let hidden = measurement.hidden.iter().filter_map(|view| control.pairs.get(&view.key));
        let inside = hidden.filter(|pair| pair.is_costly()).map(|pair| pair.functions().len() as u32).sum::<u32>();
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
            points: pairs.iter().map(|p| p.points).sum::<u32>() + inside,
            since_ns: now_ns(),
            attach_time: begin.elapsed(),
            stopped: self.target.take_longest_hold(),
            pairs: Arc::clone(pairs),
            refused: unwoven.flat_map(|p| p.refused.clone()).collect(),
            caught_up: caught_up.calls,
            not_unwound: caught_up.not_unwound,
            warnings,
        }
    }

    /// Weaves the wanted pairs that are not woven yet. With `whole`, fails if no pair can be woven.
    /// `coming` is the number of counters to reserve for modules that are not loaded yet.
    pub(super) fn insert_wanted(
        &self,
        control: &mut Control,
        wanted: Vec<WantedPair>,
        whole: bool,
        coming: u64,
        stop: &mut InsertionStop,
    ) -> Result<InsertionResult, Error> {
        let mut wanted = wanted;
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        Self::fit_sizes(control, &mut wanted, &keys, coming);
        self.insert_fitted(control, wanted, whole, stop)
    }

    /// Weaves the wanted pairs, whose variables have their sizes already; see [`Session::insert_wanted`].
    pub(super) fn insert_fitted(
        &self,
        control: &mut Control,
        wanted: Vec<WantedPair>,
        whole: bool,
        stop: &mut InsertionStop,
    ) -> Result<InsertionResult, Error> {
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        let wanted = keys.iter().map(|(key, _)| key.clone()).zip(wanted.into_iter().map(|w| w.instrumentation));
        let AdmittedPairs { fresh, more, joined, all_new } = control.admit(wanted).map_err(|e| e.about(self.pid()))?;
        let inserted = self.insert(control, fresh, whole && all_new, stop);
        let inserted = inserted.and_then(|caught_up| Ok((caught_up, self.extend(control, more, stop)?)));
        let (mut caught_up, extended) = inserted.inspect_err(|_| control.part(&joined))?;
        caught_up.add(extended);
        Ok(InsertionResult { keys, caught_up, dear: Vec::new() })
    }

    /// Chooses the sizes of histograms and tables and, before the first code is woven, the distance between shards.
    pub(super) fn fit_sizes(
        control: &mut Control,
        wanted: &mut [WantedPair],
        keys: &[(PairKey, Option<FunctionId>)],
        coming: u64,
    ) {
        let is_new = |key: &PairKey| !control.pairs.contains_key(key);
        let new = || wanted.iter().zip(keys).filter(|(_, (key, _))| is_new(key)).map(|(w, _)| &w.instrumentation);
        let count = |is_it: fn(Shape) -> bool| {
            let of = |variables: &[Variable]| variables.iter().filter(|v| is_it(v.shape)).count();
            let there: usize = control.pairs.values().map(|pair| of(&pair.variables)).sum();
            there + new().map(|i| of(&i.variables)).sum::<usize>()
        };
        let histograms = count(|shape| matches!(shape, Shape::Histogram(_)));
        let tables = count(|shape| sizes::sums(shape).is_some());
        let slots_at = |sizes: VariableSizes| -> u64 {
            let of = |i: &Instrumentation| {
                // one hidden counter for each snippet; most pairs have two snippets
                let hidden = i.insertions.len().max(2) as u64;
                sizes.slots(&i.variables) + hidden + if i.object.is_some() { COUNTERS_A_PAIR } else { 0 }
            };
            u64::from(control.counters.used()) + coming + new().map(of).sum::<u64>()
        };
        let usual = VariableSizes::usual(histograms, tables);
        let chosen = match &control.attached {
            None => {
                control.counters.set_stride(sizes::stride_for(slots_at(usual)));
                usual
            }
            Some(attached) => {
                let room = u64::from(attached.area.layout().counters());
                let mut all = usual.and_smaller();
                let least = VariableSizes { resolution: Resolution::Coarse, places: Places::FEW };
                all.find(|sizes| slots_at(*sizes) <= room).unwrap_or(least)
            }
        };
        let mut to: FxHashMap<VariableSizes, Resizing> = FxHashMap::default();
        for (w, (key, _)) in wanted.iter_mut().zip(keys) {
            // an existing pair keeps its sizes
            let sizes = control.pairs.get(key).map_or(chosen, |pair| chosen.kept(&pair.variables));
            to.entry(sizes).or_insert_with(|| Resizing::to(sizes)).apply(&mut w.instrumentation);
        }
    }
}
