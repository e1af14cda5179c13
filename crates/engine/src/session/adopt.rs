//! Taking over the measurements of a dead engine that were to stay.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_codegen::{Environment, Readable};
use ingraft_mdl::Library;
use ingraft_model::layout::{COUNTERS, header};
use ingraft_model::{
    Aggregate, AvmaRange, Focus, FunctionId, MetricInfo, PatchPlan, Pid, Scale, Shape, Style, Svma, TextWrite,
    UnitsType, ValueUnit, WallClock,
};
use ingraft_process::{ApplyOptions, ProcessIdentity, Rights, SharedArea, Target, TickClock, contains, vector_state};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{EnableRequest, Kind, MeasurementId, MetricFocus, NamedFunction, PairInfo, Removed, TargetSpec};
use crate::error::{Error, Reason};
use crate::pairs::PairKey;
use crate::pairs::counters::CounterPool;
use crate::readings::values::RECORDS_ONLY;
use crate::recovery::journal::{Contents, Entries, Journal, JournalHead, JournalRecord, KeptPair, PointChain};
use crate::recovery::{journal, leftover, restore};
use crate::weaving::plan::Woven;

use super::children::Family;
use super::clocks::Clocks;
use super::context::Context;
use super::control::{Attached, Control};
use super::driver::{Session, lock_target};
use super::errors::journal_error;
use super::measurement::Measurement;
use super::roster::Roster;
use super::shared::Shared;
use super::view::View;

/// Returns the known definitions together with further sources (name, text).
type DefinitionsOf<'a> = dyn Fn(&[(String, String)]) -> Arc<Library> + 'a;

impl Session {
    /// Takes over the measurements that a dead engine was to keep; `None` if there were none and the rest was removed. `library` returns
    /// the definitions of a request, those that it has brought included.
    pub fn adopt(context: Context, target: Arc<Target>, library: &DefinitionsOf<'_>) -> Result<Option<Self>, Error> {
        let pid = target.pid();
        let failed = |e| Error::process(pid, e);
        let areas = target.find_areas().map_err(failed)?;
        areas.iter().try_for_each(|range| leftover::refuse_held(&target, range))?;
        let lock = lock_target(&context, pid)?;
        let Some(range) = areas.into_iter().next() else {
            // The engine died before it changed the target, or after it had removed everything.
            let _ = std::fs::remove_file(context.state.journal_path(pid, target.identity().start_time));
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        let found = leftover::open_area(&context.state, &target, &range)?;
        // A fork child has its parent's journal, which says nothing about the child's own measurements.
        let start_time = target.identity().start_time;
        let is_own = |head: &JournalHead| (head.pid, head.start_time) == (pid, start_time);
        let Some(contents) = found.journal.filter(|j| !j.kept.is_empty() && is_own(&j.head)) else {
            let removed = leftover::restore_area(&context.state, &target, &range)?;
            if removed.memory_left && removed.text_restored {
                return Session::with_memory(context, target, lock, &range, removed).map(Some);
            }
            context.state.forget_lock(pid, lock);
            return Ok(None);
        };
        let kept = contents.kept.clone();
        let session = Session::with_area(context, target, lock, found.area, contents)?;
        let measurements = kept.into_iter().map(|k| {
            let library = library(&k.definitions);
            (MeasurementId(k.id), adopted(pid, &library, k.definitions, k.pairs))
        });
        {
            let mut control = session.control();
            control.measurements.extend(measurements);
            let kind = |id: &MeasurementId| (*id, (session.context.kind)(&Kind::default()));
            session.kinds().extend(control.measurements.keys().map(kind));
            control.remains.note_spare();
            session.release_spare(&mut control);
        }
        Ok(Some(session))
    }

    /// Removes the code of a dead engine that no measurement needs any more: that of its leased measurements, and of those removed since.
    /// If it cannot be removed now, the thread `watch` of the session tries again.
    pub(super) fn release_spare(&self, control: &mut Control) {
        if !control.remains.take_spare(Instant::now()) {
            return;
        }
        if let Err(error) = self.try_release_spare(control) {
            tracing::warn!(pid = self.pid().0, %error, "code of a dead engine that nobody needs stays for now");
            control.remains.keep_spare(Instant::now());
        }
    }

    fn try_release_spare(&self, control: &mut Control) -> Result<(), Error> {
        let Some(attached) = control.attached.as_mut().filter(|a| !a.woven.knows_all()) else { return Ok(()) };
        let views = || control.measurements.values().flat_map(|m| m.views.iter()).filter(|view| view.own.is_none());
        let owners: FxHashSet<u32> = views().flat_map(View::owners).collect();
        let follow = views().any(|view| !view.activations.is_empty());
        let spare = attached.woven.spare(&owners, follow);
        if spare.points.is_empty() && spare.chains.is_empty() {
            return Ok(());
        }
        if control.family.counts() {
            let left = leftover::withdraw_from_children(&self.target, &spare.points, attached.area.layout());
            if !left.is_empty() {
                tracing::warn!(?left, "children go on with code that was taken out");
            }
        }
        let restored = restore::withdraw(&self.target, &spare.points)?;
        let chains = self.lead_past(&attached.woven, spare.chains)?;
        // open calls of removed code would count and restore nothing; by their names, only a dead engine's records remain
        if control.pairs.is_empty() {
            let kept = views().flat_map(|view| &view.activations).map(|first| COUNTERS + 8 * (first & !RECORDS_ONLY));
            attached.area.forget_other_records(&kept.collect::<FxHashSet<u32>>()).map_err(|e| self.failed(e))?;
        }
        let records: Entries = chains.iter().cloned().map(JournalRecord::Chain).collect();
        chains.into_iter().for_each(|chain| attached.woven.change_adopted(chain));
        self.write_journal(&mut attached.journal, &attached.area, records)?;
        if !restored {
            let what = format!("something else has patched code of process {} that was to be restored", self.pid());
            let hint = "end the other tool; it is restored with the rest when everything is removed";
            return Err(Error::new(Reason::BytesDiffer, what, hint).about(self.pid()));
        }
        attached.woven.forget_adopted(&spare.points);
        self.forget_points(attached, spare.points)
    }

    /// Makes threads jump past snippets that no measurement needs. Returns the snippets that remain at the points.
    fn lead_past(&self, woven: &Woven, chains: Vec<(PointChain, Vec<TextWrite>)>) -> Result<Vec<PointChain>, Error> {
        let mut arenas = woven.arenas();
        arenas.sort_unstable_by_key(|arena| arena.start);
        let is = |write: &TextWrite, bytes: &[u8]| {
            let mut now = vec![0; bytes.len()];
            contains(&arenas, write.at) && self.target.read(write.at, &mut now).is_ok() && now == bytes
        };
        let (mut text, mut done) = (Vec::new(), Vec::new());
        for (chain, writes) in chains {
            // the dead engine may have been killed after it wrote its journal and before it changed the target, or after both
            if writes.iter().all(|w| is(w, w.old_bytes()) || is(w, w.new_bytes())) {
                text.extend(writes.into_iter().filter(|w| is(w, w.old_bytes())));
                done.push(chain);
            }
        }
        text.sort_unstable_by_key(|w| w.at);
        if !text.is_empty() {
            let plan = PatchPlan { text, ..PatchPlan::default() };
            self.target.apply(&plan, &ApplyOptions::default()).map_err(|e| Error::apply(self.pid(), e))?;
        }
        Ok(done)
    }

    /// Id of the kept measurement of a dead engine that has code in a function; `None` if there is none.
    pub(super) fn kept_in(&self, control: &Control, function: FunctionId) -> Option<u64> {
        let attached = control.attached.as_ref().filter(|a| !a.woven.knows_all())?;
        let (_, module, f) = control.modules.resolve(function)?;
        let start = f.start().to_avma(module.bias);
        let owners = attached.woven.adopted_within(&(start..start.offset(f.size().cast_signed())))?;
        let has = |m: &Measurement| {
            m.views.iter().any(|v| v.own.is_none() && v.owners().any(|first| owners.contains(&first)))
        };
        let adopted = || control.measurements.iter().filter(|(_, m)| m.keep);
        adopted().find(|(_, m)| has(m)).or_else(|| adopted().next()).map(|(id, _)| id.0)
    }

    /// Opens a session with the memory of a removal that cannot be finished yet; nothing is woven.
    pub(super) fn with_memory(
        context: Context,
        target: Arc<Target>,
        lock: File,
        range: &AvmaRange,
        removed: Removed,
    ) -> Result<Self, Error> {
        let found = leftover::open_area(&context.state, &target, range)?;
        let Some(mut contents) = found.journal else { return Session::with_modules(context, target, lock) };
        contents.kept.clear();
        // the text is restored, so only fork children still need the records of points
        if !leftover::has_heirs(&target, found.area.layout()) {
            contents.points.clear();
        }
        let gone = contents.points.clone();
        let session = Session::with_area(context, target, lock, found.area, contents)?;
        let mut control = session.control();
        control.remains.leave_memory(removed.asleep, Instant::now());
        session.reuse_counters(&mut control, removed.suspended_at.as_deref());
        if let Some(attached) = control.attached.as_mut() {
            attached.woven.forget_adopted(&gone);
            attached.woven.keep_inherited(gone);
        }
        drop(control);
        Ok(session)
    }

    /// Opens a session with the data area of a dead engine, from the contents of its journal.
    fn with_area(
        context: Context,
        target: Arc<Target>,
        lock: File,
        area: SharedArea,
        contents: Contents,
    ) -> Result<Self, Error> {
        let pid = target.pid();
        let failed = |e| Error::process(pid, e);
        let path = context.state.journal_path(pid, target.identity().start_time);
        let area = Arc::new(area);
        // The target could change the journal's copy, so the number of counters is limited to those that a shard has. An arena may be
        // recorded that was never mapped, or whose place another mapping has now.
        let arenas = leftover::mapped(&target, &contents.arenas)?;
        let counters = contents.counters.min(area.layout().counters());
        let contents = Contents { arenas, counters, ..contents };
        if area.try_lock() == Some(false) {
            return Err(leftover::held(pid, "another ingraft", None));
        }
        let text = journal::encode(&contents);
        let journal = Journal::replace(path, &text).map_err(|e| journal_error(pid, &e))?;
        area.write_journal(&text).map_err(failed)?;
        area.set_holder(&ProcessIdentity::ours().map_err(failed)?).map_err(failed)?;
        // The engine that listened is dead, and its code at the loader's hook does not inform this engine.
        area.stop_listening().map_err(failed)?;
        area.end_waits().map_err(failed)?;
        let identity = area.identity().map_err(failed)?;
        let cpu = area.cpu_clock().map_err(failed)?;
        let family = area.is_family().map_err(failed)?;
        let goroutine = area.goroutine().map_err(failed)?;
        let stacks = area.sets_stacks_aside().map_err(failed)?;
        let rate = area.read_u64(header::CPU_RATE.into()).map_err(failed)?;
        let shadow_stack = target.status().map_err(failed)?.shadow_stack;
        let wall = area.wall_clock().map_err(failed)?;
        let session = Session::with_modules(context, target, lock)?;
        let clock = if wall == WallClock::Tsc { TickClock::counter() } else { TickClock::monotonic(None) };
        let session = session.with_clocks(Clocks::resume(clock, rate));
        {
            let mut control = session.control();
            control.family = Family::taken_over(family);
            control.counters = CounterPool::starting_at(contents.counters);
            let filtered = session.target.survey(Some(area.layout())).is_ok_and(|survey| survey.filtered);
            let roster = Roster::new(identity, family);
            let mut shared = Shared::new(Arc::clone(&area), roster, contents.counters, filtered);
            for pair in contents.kept.iter().flat_map(|k| &k.pairs) {
                shared.add_shapes([(pair.value.first, pair.value.shape)]);
                shared.add_shapes(pair.activations.iter().map(|first| (*first & !RECORDS_ONLY, Shape::Activations)));
            }
            *session.shared_mut() = shared;
            control.attached = Some(Attached {
                env: Environment {
                    data: area.layout(),
                    identity,
                    shadow_stack,
                    wall,
                    ticks: Scale::ONE,
                    cpu,
                    vectors: vector_state(),
                    readable: Readable::default(),
                    loader: None,
                    goroutine,
                    stacks,
                },
                area,
                journal,
                woven: Woven::adopt(contents.points, contents.chains, contents.arenas),
                why_locked: None,
                unwinder: control.modules.unwinder().map(|(why, _)| why),
                since_ns: contents.head.since_ns,
                cpu_before: Duration::ZERO,
            });
        }
        Ok(session)
    }
}

/// A kept measurement in the form of a new engine: its metric found by name, its counters in their old places.
fn adopted(pid: Pid, library: &Arc<Library>, definitions: Vec<(String, String)>, pairs: Vec<KeptPair>) -> Measurement {
    let unknown = |name: &str, shape: Shape| MetricInfo {
        name: name.to_owned(),
        unit: String::new(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        histogram: matches!(shape, Shape::Histogram(_)),
        constraints: Vec::new(),
        flavors: Vec::new(),
        developer: false,
        doc: String::new(),
        text: Arc::default(),
    };
    let mut infos = Vec::with_capacity(pairs.len());
    let mut views = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let metric = library.metric(&pair.metric).cloned();
        let metric = metric.unwrap_or_else(|| Arc::new(unknown(&pair.metric, pair.value.shape)));
        let focus = Focus::parse(&pair.focus).unwrap_or_default();
        let measured = Arc::new(MetricFocus { metric: pair.metric, focus });
        let key = PairKey::new(Arc::default(), Arc::clone(&measured));
        let (aggregate, thread) = (metric.aggregate, None);
        let (value, activations) = (pair.value, pair.activations);
        let unit = if pair.ticks { ValueUnit::Ticks } else { ValueUnit::Plain };
        views.push(View {
            key,
            value,
            activations,
            owner: pair.owner,
            unit,
            aggregate,
            thread,
            object: None,
            index_names: None,
            key_names: Vec::new(),
            own: None,
            before: FxHashMap::default(),
        });
        infos.push(PairInfo {
            function: pair.function.map(|(module, function, offset)| NamedFunction {
                module,
                function,
                offset: Svma(offset),
            }),
            points: pair.points,
            ..PairInfo::new(measured, metric)
        });
    }
    let request = EnableRequest {
        target: TargetSpec::Pid(pid),
        pairs: Vec::new(),
        functions: Vec::new(),
        function_metrics: Vec::new(),
        definitions,
        flavors: Vec::new(),
        keep: true,
        max_overhead: None,
        max_hold: None,
        allow_calls: false,
        beside_uprobes: false,
        family: false,
        max_pairs: None,
        await_modules: false,
        kind: Kind::default(),
    };
    // the engine does not know the code well enough to remove single pairs of it
    let limit = f64::INFINITY;
    Measurement {
        views: Arc::new(views.into()),
        pairs: Arc::new(infos),
        hidden: Vec::new(),
        grown: false,
        request,
        library: Arc::clone(library),
        awaited: Vec::new(),
        keep: true,
        // the request is not known any more, so nothing is ever woven for it
        rights: Rights::All,
        revoked: false,
        outlives_removal: false,
        limit,
    }
}
