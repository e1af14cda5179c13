//! Libraries that a target maps and unmaps while it is measured. Mapped libraries are measured; the points of unmapped ones are forgotten.

use std::sync::Arc;
use std::time::Instant;

use ingraft_model::{ModuleId, ThreadIdentity};
use ingraft_process::MemoryNeed;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{Enabled, MeasurementId, PairFacts, PairInfo, TakenOut};
use crate::error::Error;
use crate::measure::request::{Missing, WantedPair};
use crate::pairs::{Pair, PairKey};
use crate::program::pattern::Pattern;
use crate::recovery::restore;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::insertion_stop::InsertionStop;
use super::internals;
use super::intruders::intruder;
use super::kind::{InsertedPairs, KindRequest, Occasion};
use super::locked::Locked;
use super::measurement::Measurement;
use super::staged::InsertionResult;
use super::view::View;

impl Session {
    /// Updates the modules to the present mappings. Points whose text is gone are forgotten, because their addresses may belong to another
    /// file. Returns whether there is text that was not measured yet.
    pub(super) fn look_at_modules(&self, control: &mut Control) -> Result<bool, Error> {
        let woven = control.attached.as_ref().map(|attached| &attached.woven);
        let is_woven = |module| woven.is_some_and(|w| restore::is_woven(&self.target, w.text_of(module)));
        let news = control.modules.refresh(&self.target, &is_woven)?;
        let mut more = news.more;
        let mut gone = news.gone;
        if let Some(attached) = &control.attached {
            // The module was unloaded and loaded again between two looks: the same file is at the same address, but without woven code.
            for module in attached.woven.modules() {
                if !gone.contains(&module) && restore::is_fresh(&self.target, attached.woven.text_of(module)) {
                    control.modules.renew(module);
                    gone.push(module);
                    more = true;
                }
            }
        }
        if more || !gone.is_empty() {
            self.code_places().forget();
        }
        if !gone.is_empty() {
            self.retire(control, &gone)?;
            self.settle_accounts(control);
        }
        Ok(more)
    }

    /// Forgets the points of modules whose text is gone. Their counts stay.
    fn retire(&self, control: &mut Control, gone: &[ModuleId]) -> Result<(), Error> {
        control.pairs.forget_modules(gone);
        for measurement in control.measurements.values_mut() {
            for (view, info) in measurement.views.iter().zip(Arc::make_mut(&mut measurement.pairs)) {
                if let Some(pair) = control.pairs.get(&view.key).filter(|p| p.begins_at(view.value.first)) {
                    (info.points, info.refused) = (pair.functions().len() as u32, pair.refused());
                }
            }
        }
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        let records: Vec<_> = gone.iter().flat_map(|module| attached.woven.retire(&control.modules, *module)).collect();
        self.forget_points(attached, records)
    }

    /// Looks for modules that were loaded since, and measures the functions in them that a request names. `exact`, which is called when
    /// they are woven, tells whether none of their code has run yet. Returns the answer as it would be now.
    pub fn grow(&self, id: MeasurementId, exact: &dyn Fn() -> bool, begin: Instant) -> Result<Option<Enabled>, Error> {
        let mut control = self.control();
        if !self.look_at_modules(&mut control)? {
            return Ok(None);
        }
        self.grow_locked(&mut control, id, exact, begin)
    }

    /// Prepares for libraries that are loaded later if no function of a request is mapped yet, so that there is no woven code to notice
    /// them.
    pub fn await_modules(&self, id: MeasurementId) -> Result<(), Error> {
        let mut guard = self.control();
        let control = &mut *guard;
        let Some(measurement) = control.measurements.get(&id).filter(|_| control.attached.is_none()) else {
            return Ok(());
        };
        // pairs that need no code do not wait for modules
        let all_there = measurement.request.functions.is_empty()
            && measurement.views.iter().filter(|v| v.own.is_some()).count() == measurement.request.pairs.len();
        if all_there {
            return Ok(());
        }
        self.refuse_without_room(control, MemoryNeed::default())?;
        control.attached = Some(self.attach(control)?);
        self.hook_loader(control, InsertionStop::default());
        Ok(())
    }

    /// The module that was mapped since the first insertion and beside which the woven code must not run, and the reason.
    pub fn must_yield(&self) -> Option<String> {
        self.intruder(&self.control())
    }

    /// A module that uses the gs base, by which threads find their shards, or that lets unwinders begin at instructions in woven code.
    fn intruder(&self, control: &Control) -> Option<String> {
        let attached = control.attached.as_ref()?;
        let uses_gs = attached.env.identity != ThreadIdentity::Locked;
        let gs_user = || control.modules.user_of_gs(&self.target).filter(|_| uses_gs).map(|file| file.name.clone());
        intruder(control.modules.unwinder(), attached.unwinder, attached.woven.copied().next().is_some(), gs_user)
    }

    /// Takes everything out and freezes the values. Code that finds shards by a gs base that the program itself has set would read memory
    /// that does not exist, and an unwinder that begins in woven code finds no table. A thread at the loader's hook waits until nothing
    /// leads to such code any more.
    fn yield_to_module(&self, control: &mut Control) -> Result<(), Error> {
        let area = control.attached.as_ref().map(|a| Arc::clone(&a.area));
        let taken = self.pull_out(control);
        if let Some(area) = area {
            self.stop_listening(&area);
        }
        taken?;
        self.retire_ended_threads();
        let why = TakenOut { own_gs: true, ..TakenOut::free(now_ns()) };
        for key in control.pairs.keys().cloned().collect::<Vec<_>>() {
            self.freeze(control, &key, why, None);
        }
        Ok(())
    }

    /// Looks for libraries that were loaded or unloaded between requests. The modules that the loader is about to map are left to its hook.
    pub fn notice_modules(&self) {
        if !self.loader_works(&self.control()) {
            self.notice(&|| false);
        }
    }

    /// Looks for libraries that were loaded or unloaded, and measures the functions in them that requests name. `waited`, which is called
    /// when they are woven, tells whether the thread that loaded them still waits.
    pub(super) fn notice(&self, waited: &dyn Fn() -> bool) {
        let mut control = self.control();
        if control.attached.is_none() {
            return;
        }
        let retried = std::mem::take(&mut control.has_unmeasured);
        let looked = match self.look_at_modules(&mut control) {
            Ok(more) => more || retried,
            Err(error) => {
                tracing::debug!(%error, "the modules were not looked at");
                control.has_unmeasured = true;
                return;
            }
        };
        if !self.notice_handlers(&mut control) && !looked {
            return;
        }
        if let Some(why) = self.intruder(&control) {
            tracing::warn!(why, "everything is taken out: woven code must not run beside this");
            if let Err(error) = self.yield_to_module(&mut control) {
                tracing::warn!(%error, "a library came beside which woven code must not run, and not everything could be taken out");
            }
            return;
        }
        for id in control.measurements.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.grow_locked(&mut control, id, &|| !retried && waited(), Instant::now()) {
                // The library may have been unloaded meanwhile.
                tracing::warn!(%error, "a library that was loaded is not measured yet");
                control.has_unmeasured = true;
            }
        }
    }

    /// Marks pairs as inexact whose libraries may have come and gone while the engine did not answer: for pairs that are not woven now, it
    /// is not known whether every call was counted.
    pub(super) fn note_missed(&self) {
        let mut control = self.control();
        let Control { modules, measurements, .. } = &mut *control;
        let shared = self.shared();
        let is_mapped =
            |pattern: &Pattern| modules.mapped().any(|f| pattern.may_match_module(f.names.iter().map(String::as_str)));
        let now = now_ns();
        for measurement in measurements.values_mut() {
            let Measurement { views, pairs, grown, .. } = measurement;
            let counts = |view: &View| view.own.is_none() && !shared.frozen().contains(view.value.first);
            let pairs = views.iter().zip(Arc::make_mut(pairs)).filter(|(view, _)| counts(view));
            for info in pairs.map(|(_, info)| info) {
                // A mapped module may be a later load of the file, which was not analysed yet. Refused functions were not missed.
                let is_settled = info.points > 0 || !info.refused.is_empty();
                if !is_settled || Pattern::of_module(&info.pair.focus).is_none_or(|p| !is_mapped(&p)) {
                    info.facts.exact_since_ns = Some(now);
                    *grown = true;
                }
            }
        }
    }

    /// The pairs of a measurement that were taken out, those without values for clients included.
    fn taken_out(&self, measurement: &Measurement) -> FxHashSet<PairKey> {
        self.shared().frozen().keys_among(measurement.views.iter().chain(&measurement.hidden))
    }

    fn grow_locked(
        &self,
        control: &mut Control,
        id: MeasurementId,
        exact: &dyn Fn() -> bool,
        begin: Instant,
    ) -> Result<Option<Enabled>, Error> {
        let Some(measurement) = control.measurements.get(&id) else { return Ok(None) };
        if measurement.revoked {
            return Ok(None);
        }
        self.target.take_longest_hold(); // discards the holds of earlier operations
        let _acting = self.target.act_for(measurement.rights);
        let (request, library) = (measurement.request.clone(), Arc::clone(&measurement.library));
        if request.pairs.is_empty() && request.functions.is_empty() {
            return Ok(None); // adopted, so the request is not known any more
        }
        let (before, old) = (Arc::clone(&measurement.pairs), Arc::clone(&measurement.views));
        let stay = self.taken_out(measurement);
        let mut kinds = self.kinds();
        let Some(kind) = kinds.get_mut(&id) else { return Ok(None) };
        if kind.grown(&mut Locked::new(self, control, id))? {
            return Ok(None);
        }
        let own = internals::of_request(&library, &request, &control.modules)?;
        let rest = internals::without(&request, &own);
        let asked = KindRequest {
            id,
            target: &self.target,
            modules: &control.modules,
            library: &library,
            request: &rest,
            missing: Missing::MayCome,
        };
        let mut wanted = asked.evaluate(&mut **kind, &self.context.images, !own.is_empty(), &|_| ()).1?;
        let comes = |w: &WantedPair| !stay.contains(&PairKey::of(w));
        wanted.retain(comes);
        self.look_for_fork_again(control);
        let observer = kind.prepare(&mut Locked::new(self, control, id), &mut wanted)?;
        wanted.retain(comes);
        let mut stop = InsertionStop { observer, unrun: exact(), ..InsertionStop::default() };
        let inserted = self.insert_wanted(control, wanted, false, 0, &mut stop);
        let inserted = inserted.inspect_err(|_| kind.failed(&mut Locked::new(self, control, id)));
        let InsertionResult { keys: mut found, caught_up, .. } = inserted?;
        let exact = exact();
        let (seen, occasion) = (stop.into_seen(), Occasion::Library { ran: !exact });
        let hidden = self.begun(
            control,
            id,
            &mut **kind,
            InsertedPairs { keys: &mut found, caught_up: &caught_up, seen, occasion },
        );
        Session::note_hidden(control, id, hidden);
        // Existing pairs keep their positions, including those of unloaded libraries; new pairs come after them.
        let functions: FxHashMap<_, _> = found.iter().cloned().collect();
        let known: FxHashSet<&PairKey> = old.iter().map(|v| &v.key).collect();
        let new: Vec<_> = found.iter().filter(|(key, _)| !known.contains(key)).cloned().collect();
        let now = now_ns();
        let as_it_is = |(view, known): (&View, &PairInfo)| {
            let pair = control.pairs.get(&view.key).filter(|p| p.begins_at(view.value.first));
            let key = (view.key.clone(), functions.get(&view.key).copied().flatten());
            let Some(mut info) = pair.and_then(|_| control.pair_infos(&[key]).pop()) else { return known.clone() };
            info.function = info.function.or_else(|| known.function.clone());
            let late = !exact && known.points < info.points;
            info.facts.exact_since_ns = if late { Some(now) } else { known.facts.exact_since_ns };
            info
        };
        let mut pairs: Vec<PairInfo> = old.iter().zip(before.iter()).map(as_it_is).collect();
        let late = |info| exact_since(info, (!exact).then_some(now));
        pairs.extend(control.pair_infos(&new).into_iter().map(late));
        let mut views = old.to_vec();
        // the activations that a pair follows may have changed with the new code
        for view in &mut views {
            let pair = control.pairs.get(&view.key).filter(|p| p.begins_at(view.value.first));
            if let Some((_, activations, _)) = pair.and_then(Pair::value) {
                view.activations = activations;
            }
        }
        views.extend(self.views(control, &new));
        control.pairs.add_users(&new);
        self.settle_accounts(control);
        let Some(measurement) = control.measurements.get_mut(&id) else { return Ok(None) };
        measurement.views = Arc::new(views.into());
        measurement.pairs = Arc::new(pairs);
        measurement.grown = true;
        measurement.awaited.retain(|awaited| !awaited.has_come(&control.modules));
        let Some(measurement) = control.measurements.get(&id) else { return Ok(None) };
        Ok(Some(self.enabled(control, id, measurement, true, begin, caught_up, Vec::new())))
    }
}

/// A pair whose value is exact from this time on; `None` if it is from its insertion on.
fn exact_since(info: PairInfo, exact_since_ns: Option<u64>) -> PairInfo {
    PairInfo { facts: PairFacts { exact_since_ns, ..info.facts }, ..info }
}
