//! Insertion of the code of new pairs: counters, code, journal, stop. On an error the target and the session are as before.

use std::sync::Arc;
use std::time::Duration;

use ingraft_codegen::Readable;
use ingraft_model::listed::ListedKeys;
use ingraft_model::machine::PAGE;
use ingraft_model::{
    AvmaRange, Clock, CpuClock, DataArea, FunctionId, Instrumentation, Placing, PointKind, Refusal, Shape, Snippet,
    ThreadIdentity, Variable, WallClock,
};
use ingraft_process::{ApplyOptions, EventError, MemoryNeed, PerfEvent, SharedArea, Visitor};
use rustc_hash::FxHashSet;

use crate::error::{Error, Reason};
use crate::measure::calls;
use crate::pairs::{
    BoundPair, CommonSnippets, Forming, Fresh, Minis, Pair, PointDraft, RefusedPieces, TailBarriers, TailCalls,
    WovenGroup, apart, await_results, joined, pieces_of, write_keys,
};
use crate::program::modules::Modules;
use crate::program::stack_switches::stack_switches;
use crate::program::symbols::Symbols;
use crate::program::unwind_targets::unwind_targets;
use crate::program::variables::data_of;
use crate::program::wall;
use crate::recovery::journal::{Entries, Journal, JournalRecord};
use crate::recovery::waiting::{self, Purpose};
use crate::undertaking;
use crate::weaving::catch_up::{AreaWithClocks, CatchUp, CaughtUp};
use crate::weaving::cost::Meters;
use crate::weaving::plan::{PRUNE, Planned, PlannedChange, WovenAnew};
use crate::weaving::positions::{CodeMap, PositionVisitor};
use crate::weaving::wanted::{NewMini, WantedPoints};

use super::control::{Attached, Control};
use super::drain::WITHOUT_WAITS;
use super::driver::Session;
use super::errors::journal_error;
use super::events;
use super::insertion_stop::InsertionStop;
use super::refusals::{is_unmeasured, refused_of};

/// Time for which functions are tried to be copied while a thread stands where code comes.
const COPY_PATIENCE: Duration = Duration::from_millis(200);
/// Largest number of threads that are asked whether they may read the time stamp counter.
const ASKED_MAX: usize = 64;
/// Obstacle to system calls of generated code.
const FILTERED: &str =
    "system calls of the program are filtered (seccomp) or turned into signals (syscall user dispatch)";
/// Reason why a clock that may need system calls cannot be used.
const CLOCK_FILTERED: &str =
    "a filter of system calls (seccomp) or syscall user dispatch is active, and the clock may need one";

/// The group that a new pair forms with others, and the meters of the pair.
type Formed = (Option<Forming>, Meters);

impl Session {
    /// Weaves the code of new pairs, and attaches to the target if nothing was woven there yet. On an error the target and the session are
    /// as before. `whole` means that the request asks for nothing else, so that it fails if no pair can be woven.
    pub(super) fn insert(
        &self,
        control: &mut Control,
        fresh: Vec<Fresh>,
        whole: bool,
        stop: &mut InsertionStop,
    ) -> Result<CaughtUp, Error> {
        if fresh.is_empty() {
            return Ok(CaughtUp::default());
        }
        let (bound, rest) = self.bind(control, fresh)?;
        self.shared_mut().use_counters(control.counters.used());
        let tables = || bound.iter().zip(&rest).filter_map(|((.., c), (f, _))| Some((*c.first()?, &f.as_ref()?.keys)));
        let pieces = apart(&bound);
        let pieces = pieces.as_deref().unwrap_or(&bound);
        let result = self.weave_and_apply(control, pieces, &tables().collect::<Vec<_>>(), whole, stop);
        let (refused, minis, caught_up) = match result {
            Ok(done) => done,
            Err(e) => {
                if let Some(attached) = &control.attached {
                    tables().for_each(|(first, keys)| drop(write_keys(&attached.area, first, keys, false)));
                }
                control.give_back(&bound);
                return Err(e);
            }
        };
        let keyed = bound.iter().any(|(_, i, _)| i.variables.iter().any(|v| matches!(v.shape, Shape::Table(_))));
        let symbols = keyed.then(|| Symbols::of(&control.modules));
        let mut shared = self.shared_mut();
        symbols.into_iter().for_each(|symbols| shared.set_symbols(symbols));
        for (_, instrumentation, counters) in &bound {
            shared.add_shapes(counters.iter().copied().zip(instrumentation.variables.iter().map(|v| v.shape)));
        }
        drop(shared);
        control.pairs.reserve(bound.len());
        let (mut pieces, mut number) = (minis.into_iter(), 0);
        for ((key, instrumentation, counters), (forming, meters)) in bound.into_iter().zip(rest) {
            let first = number;
            number += pieces_of(&instrumentation);
            let (minis, probes) = joined(&instrumentation, pieces.by_ref().take(number - first), (first, &refused));
            let is_refused = probes.iter().all(Result::is_err);
            let unwoven = if is_refused { refused_of(control, &instrumentation, &refused, first) } else { Vec::new() };
            let unmeasured = is_refused && is_unmeasured(&instrumentation, first, &refused);
            let Minis { points: minis, unwind_targets, unlanded } = minis;
            if let Some(forming) = forming {
                control.pairs.gather(forming, &counters, WovenGroup { minis, unwoven, unmeasured });
                continue;
            }
            let mut pair = Pair::new(instrumentation, counters.to_vec());
            (pair.minis, pair.probes, pair.unwind_targets) = (minis, probes, unwind_targets);
            (pair.unlanded, pair.unwoven, pair.unmeasured, pair.meters) = (unlanded, unwoven, unmeasured, meters);
            control.pairs.insert(key, pair);
        }
        Ok(caught_up)
    }

    /// Allocates counters for the variables of new pairs. Also returns the groups that the pairs form, and their meters. On an error no counter
    /// stays allocated.
    pub(super) fn bind(
        &self,
        control: &mut Control,
        fresh: Vec<Fresh>,
    ) -> Result<(Vec<BoundPair>, Vec<Formed>), Error> {
        let limit = control.counters_max();
        let mut bound: Vec<BoundPair> = Vec::with_capacity(fresh.len());
        let mut rest = Vec::with_capacity(fresh.len());
        let attributes = |name: &str| {
            let event = PerfEvent::parse(name).map_err(EventError::from).and_then(|event| event.for_threads());
            event.map_err(events::refused)
        };
        for Fresh { key, mut instrumentation, meters, forming } in fresh {
            await_results(&self.target, &control.modules, &mut instrumentation);
            let counters = control.counters.bind(&instrumentation, limit, attributes).map_err(|e| {
                control.give_back(&bound);
                e.about(self.pid())
            })?;
            bound.push((key, instrumentation, counters.into()));
            rest.push((forming, meters));
        }
        Ok((bound, rest))
    }

    /// Weaves more points for existing pairs.
    pub(super) fn extend(
        &self,
        control: &mut Control,
        more: Vec<BoundPair>,
        stop: &mut InsertionStop,
    ) -> Result<CaughtUp, Error> {
        if more.is_empty() {
            return Ok(CaughtUp::default());
        }
        let (refused, minis, caught_up) = self.weave_and_apply(control, &more, &[], false, stop)?;
        for (number, ((key, instrumentation, _), minis)) in more.into_iter().zip(minis).enumerate() {
            let unwoven = refused_of(control, &instrumentation, &refused, number);
            if let Some(pair) = control.pairs.get_mut(&key) {
                pair.add(&instrumentation, minis, unwoven, is_unmeasured(&instrumentation, number, &refused));
            }
        }
        Ok(caught_up)
    }

    /// Moves the points of functions from the text into copies of these functions, as far as they can be copied.
    pub(super) fn copy(&self, control: &mut Control, functions: &[FunctionId]) -> Result<(), Error> {
        // Nothing runs at a point that only asks for a copy.
        let nothing = Arc::new(Snippet::default());
        let wanted = |function: &FunctionId| {
            let mini = NewMini { placing: Placing::InCopy, ..NewMini::plain(PRUNE, 0, &nothing) };
            WantedPoints { function: *function, kind: PointKind::Entry, minis: vec![mini] }
        };
        let wanted: Vec<WantedPoints<'_>> = functions.iter().map(wanted).collect();
        // Requests wait meanwhile, and nobody has asked for it.
        let mut stop = InsertionStop { patience: Some(COPY_PATIENCE), ..InsertionStop::default() };
        self.change(control, &wanted, &|_| &[], &mut stop).map(drop)
    }

    /// The part of an insertion that can fail: code, journal, stop.
    fn weave_and_apply(
        &self,
        control: &mut Control,
        bound: &[BoundPair],
        tables: &[(u32, &ListedKeys)],
        whole: bool,
        stop: &mut InsertionStop,
    ) -> Result<(RefusedPieces, Vec<Minis>, CaughtUp), Error> {
        let common = CommonSnippets::default();
        let mut draft = PointDraft::of(bound, &common, &mut control.minis);
        let first = control.attached.is_none();
        if first || whole {
            // The target is not changed for a request if no pair of it can be woven.
            self.refuse_hopeless(control, draft.wanted(), bound)?;
        }
        if first {
            self.refuse_without_room(control, rough_need(&control.modules, draft.wanted()))?;
        }
        undertaking::touch()?;
        if first {
            control.attached = Some(self.attach(control)?);
        }
        let sets_aside = control.attached.as_ref().is_some_and(|attached| attached.env.stacks);
        let (target, images, Control { modules, pairs, minis, too_busy, .. }) =
            (&*self.target, &*self.context.images, &mut *control);
        draft.add_landings(pairs, bound, || unwind_targets(target, images, modules), &common, minis);
        if sets_aside {
            draft.add_stack_switches(pairs, bound, || stack_switches(target, images, modules), &common, minis);
        }
        let barred = TailBarriers { unlanded: &pairs.unlanded(), too_busy };
        let tails = TailCalls::of((target, modules, images), bound, barred);
        draft.add_tail_calls(pairs, bound, &tails, &common, minis);
        let wanted = draft.wanted();
        if wanted.is_empty() && bound.iter().all(|(key, ..)| control.pairs.contains_key(key)) {
            // the existing pairs need none of the modules that were mapped since
            return Ok((RefusedPieces::default(), draft.woven(&RefusedPieces::default()), CaughtUp::default()));
        }
        if let Some(attached) = &control.attached {
            let mut events = control.counters.events();
            events.try_for_each(|(n, event)| attached.area.set_event(n, event)).map_err(|e| self.failed(e))?;
        }
        let ready = self.make_ready(control, bound, stop);
        let ready = ready.and_then(|()| self.list_keys(control, tables));
        let variables = |pair: usize| &*bound[pair].1.variables;
        let outcome = ready.and_then(|()| self.change(control, wanted, &variables, stop));
        let outcome = outcome.and_then(|(woven, caught_up)| {
            let reasons = if first { self.all_refused(&control.modules, bound, &woven) } else { None };
            reasons.map_or(Ok((woven, caught_up)), Err)
        });
        let (refused, caught_up) = match outcome {
            Ok((mut woven, caught_up)) => {
                self.name_kept(control, &mut woven);
                (woven, caught_up)
            }
            // the other parts of the request go on; the functions of the library are reported as refused
            Err(e) if e.is_shortage() && !first && !whole => {
                tracing::warn!(error = %e, "a library is left alone");
                (draft.all_refused(&Refusal::NoMemory { what: e.what.clone() }), CaughtUp::default())
            }
            Err(e) => {
                if first {
                    self.take_down(control)?;
                    undertaking::untouched();
                }
                return Err(e);
            }
        };
        if first {
            self.hook_loader(control, stop.beside());
        }
        let minis = draft.woven(&refused);
        Ok((refused, minis, caught_up))
    }

    /// Writes the keys that shared code looks up.
    fn list_keys(&self, control: &Control, tables: &[(u32, &ListedKeys)]) -> Result<(), Error> {
        let Some(attached) = &control.attached else { return Ok(()) };
        let mut tables = tables.iter();
        tables.try_for_each(|(first, keys)| write_keys(&attached.area, *first, keys, true)).map_err(|e| self.failed(e))
    }

    /// Prepares the target for the needs of the pairs' code: a clock, calls of functions, and births of children.
    fn make_ready(&self, control: &mut Control, bound: &[BoundPair], stop: &InsertionStop) -> Result<(), Error> {
        // a value in a table of listed keys is counted like a counter, without a clock
        let counts = |v: &Variable| {
            matches!(
                v.shape,
                Shape::Counter
                    | Shape::Alias(_)
                    | Shape::Listed(_)
                    | Shape::Buffer(_)
                    | Shape::Records(..)
                    | Shape::Contexts(_)
            )
        };
        let is_timed = |i: &Instrumentation| !i.variables.iter().all(counts) || reads(i, Clock::Wall);
        if bound.iter().any(|(_, i, _)| is_timed(i)) {
            let cpu = bound.iter().any(|(_, i, _)| reads(i, Clock::Cpu));
            self.keep_time(control, cpu)?;
        }
        if bound.iter().any(|(_, i, _)| calls::has_calls(i)) {
            self.may_call(control)?;
        }
        self.prepare_births(control, bound, stop)
    }

    /// Prepares clocks and shards for code that follows calls. `cpu` asks for the clock of processor time too. Fails if there is no usable
    /// clock.
    pub(super) fn keep_time(&self, control: &mut Control, cpu: bool) -> Result<(), Error> {
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        let refuse = |reason, what: String, hint: &'static str| Err(Error::new(reason, what, hint).about(self.pid()));
        if attached.env.identity == ThreadIdentity::Locked {
            let why = attached.why_indistinct();
            let what = format!("calls cannot be followed from entry to exit: {why}");
            return refuse(Reason::NoShards, what, "counts work");
        }
        let wall = attached.env.wall;
        let asks_kernel = cpu || wall != WallClock::Tsc;
        let filtered = asks_kernel && self.filters_system_calls(attached.area.layout())?;
        if cpu && (attached.env.cpu == CpuClock::None || filtered) {
            let what = format!("processor time cannot be measured: {FILTERED}, and the clock needs one");
            return refuse(Reason::Filtered, what, "wall times and counts work");
        }
        // the clock of processor time reads the counter too, whichever way it asks the kernel
        let reads_counter = cpu || wall != WallClock::SystemCall;
        let counter_is_off = || self.target.counter_is_off(ASKED_MAX).map_err(|e| self.failed(e));
        let in_the_way = match wall {
            _ if reads_counter && counter_is_off()? => {
                Some("a thread of the program has turned the time stamp counter off (PR_SET_TSC, seccomp)")
            }
            WallClock::Tsc => None,
            _ if !self.target.has_our_time() => Some("the process has a time of its own (time namespace)"),
            // the vDSO makes a system call too, if only the kernel can read its clock
            _ if filtered => Some(CLOCK_FILTERED),
            _ if !wall::is_there(&self.target, wall) => Some("its vDSO is not where it was"),
            WallClock::Vdso(_) | WallClock::SystemCall => None,
        };
        if let Some(why) = in_the_way {
            return refuse(Reason::NoClock, format!("times cannot be measured here: {why}"), "counts work");
        }
        match self.clocks.wall() {
            Ok(clock) => {
                attached.env.ticks = clock.scale();
                // the length of a tick of processor time in this target never changes, whichever engine measures
                let rate = attached.area.cpu_rate(clock.scale().inverse()).map_err(|e| self.failed(e))?;
                self.clocks.set_cpu_rate(rate);
                Ok(())
            }
            Err(problem) => refuse(Reason::NoClock, format!("times cannot be measured here: {problem}"), "counts work"),
        }
    }

    /// Whether a filter of system calls or Syscall User Dispatch is active in a thread of the target now. The kernel tells of the latter
    /// only while a thread is held.
    fn filters_system_calls(&self, area: DataArea) -> Result<bool, Error> {
        if self.target.has_filter(usize::MAX) {
            return Ok(true);
        }
        self.target.survey(Some(area)).map(|survey| survey.filtered).map_err(|e| self.failed(e))
    }

    /// Fails if functions of the target cannot be called.
    fn may_call(&self, control: &Control) -> Result<(), Error> {
        let Some(attached) = &control.attached else { return Ok(()) };
        let why = match attached.env.identity {
            ThreadIdentity::Locked => attached.why_indistinct(),
            _ if attached.env.vectors.is_none() => "this processor has no XSAVE".to_owned(),
            ThreadIdentity::FsOffset(_) | ThreadIdentity::FsBase => return Ok(()),
        };
        let what = format!("functions of the program cannot be called: {why}");
        let hint = "definitions without calls work";
        Err(Error::new(Reason::NoCalls, what, hint).about(self.pid()))
    }

    /// Changes the refusal of functions whose bytes differ from the file because of a dead engine's measurement, so that it names that
    /// measurement.
    pub(super) fn name_kept(&self, control: &Control, refused: &mut RefusedPieces) {
        for ((function, _), refusal) in refused.iter_mut() {
            if let Refusal::BytesDiffer { .. } = refusal
                && let Some(measurement) = self.kept_in(control, *function)
            {
                *refusal = Refusal::Kept { measurement };
            }
        }
    }

    /// Weaves code, writes the journal, applies the plan. `variables` returns those of a pair.
    pub(super) fn change<'v>(
        &self,
        control: &mut Control,
        wanted: &[WantedPoints<'_>],
        variables: &dyn Fn(usize) -> &'v [Variable],
        stop: &mut InsertionStop,
    ) -> Result<(RefusedPieces, CaughtUp), Error> {
        let Some(attached) = control.attached.as_mut() else {
            return Ok((RefusedPieces::default(), CaughtUp::default()));
        };
        attached.env.readable = self.readable(&control.modules, attached.env.identity, attached.env.data, wanted)?;
        self.permit_waits(&attached.area, wanted)?;
        // the state that children inherit takes as much memory as one thread's counters
        let threads = self.target.threads().map_err(|e| self.failed(e))?.len() + usize::from(control.family.counts());
        let (journal, area) = (&mut attached.journal, &attached.area);
        let mut record = |arena: &AvmaRange| {
            let mut entries = Entries::default();
            entries.add_first(&JournalRecord::Arena(arena.clone()));
            self.write_journal(journal, area, entries)
        };
        let Planned { change, woven } =
            attached.woven.plan(&self.target, &control.modules, &attached.env, wanted, &mut record)?;
        let used = control.counters.used();
        let area = Arc::clone(&attached.area);
        // checked before anything is written, because the mappings made so far take no memory yet
        self.refuse_change_without_room(attached, &change, (threads, used))?;
        let now = |clock, tid| match clock {
            Clock::Wall => self.clocks.now(),
            Clock::Cpu => self.clocks.cpu_ticks(&self.target, tid),
        };
        let counters = AreaWithClocks { area: &area, identity: attached.env.identity, now: &now };
        let versions = (&attached.woven, &woven);
        let (target, modules) = (&self.target, &control.modules);
        let (mut catch_up, written) = std::thread::scope(|scope| {
            let (journal, area) = (&mut attached.journal, &attached.area);
            let written = scope.spawn(|| self.record(journal, area, &change, used));
            let catch_up = match stop.unrun {
                // No call can be in progress. Besides, the thread that loaded the library waits in generated code, where its calls cannot
                // be unwound.
                true => None,
                false => CatchUp::prepare(target, modules, versions, wanted, &change, variables, counters),
            };
            (catch_up, written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let applied = written.and_then(|()| undertaking::go_on()).and_then(|()| {
            let area = Some(attached.env.data);
            // A thread that reads the clock would return to code that is about to go.
            let readings = area.filter(|_| !change.gone.is_empty());
            let goroutines = control.modules.goroutine_places();
            let check_quiet = woven.idle();
            let suspended = waiting::near(&self.target, Purpose::Insertion, &change.plan.text, &check_quiet, area);
            let usual = ApplyOptions::default();
            let patience = stop.patience.unwrap_or(usual.patience);
            let options = ApplyOptions { check_quiet, calls: area, readings, goroutines, suspended, patience, ..usual };
            let visitor = catch_up.as_mut().map(|c| c as &mut dyn Visitor);
            let applied = match stop.observer.concerns(wanted) {
                false => self.target.apply_and_visit(&change.plan, &options, visitor),
                true => {
                    let mut both = PositionVisitor::of_insertion(CodeMap::new(&attached.woven), visitor);
                    let applied = self.target.apply_and_visit(&change.plan, &options, Some(&mut both));
                    stop.observer.seen = Some(both.seen());
                    applied
                }
            };
            let applied = applied.map_err(|e| Error::apply(self.pid(), e))?;
            Ok((applied, options.check_quiet))
        });
        match applied {
            Ok((applied, idle)) => {
                attached.woven = woven;
                if applied.quiet {
                    attached.woven.release(&idle);
                }
                self.shared_mut().roster_mut().note_bases(&applied.bases);
                if let Err(error) = self.forget_points(attached, change.gone) {
                    // Surplus records do no harm, and the code counts already.
                    tracing::debug!(%error, "records of points that have moved stay in the journal");
                }
                let caught_up = catch_up.map(CatchUp::done).unwrap_or_default();
                Ok((change.refused, caught_up))
            }
            Err(e) => {
                let gone = change.new_points.iter().map(|point| JournalRecord::PointGone(point.key())).collect();
                // The first error is the one to report. Surplus records in the journal do no harm.
                let _ = self.write_journal(&mut attached.journal, &attached.area, gone);
                Err(e)
            }
        }
    }

    /// Writes what the journal keeps of a change that is about to be made. Code may have counted into `counters` counters.
    fn record(
        &self,
        journal: &mut Journal,
        area: &SharedArea,
        change: &PlannedChange,
        counters: u32,
    ) -> Result<(), Error> {
        let mut entries = Entries::default();
        entries.add_first(&JournalRecord::Counters(counters));
        for point in &change.new_points {
            point.note(&mut entries);
            if entries.len() >= JOURNAL_PART {
                self.write_journal(journal, area, std::mem::take(&mut entries))?;
            }
        }
        change.chains.iter().cloned().for_each(|chain| entries.add(&JournalRecord::Chain(chain)));
        self.write_journal(journal, area, entries)
    }

    /// Fails if a limit on the target's memory leaves no room for the code of a change, its records, and the counters of all threads.
    fn refuse_change_without_room(
        &self,
        attached: &Attached,
        change: &PlannedChange,
        (threads, counters): (usize, u32),
    ) -> Result<(), Error> {
        let journal = attached.journal.len() + change.new_points.iter().map(journal_need).sum::<u64>();
        let need = self.target.memory_need(&change.plan, &attached.woven.arenas());
        let need = need.and(attached.area.memory_need(threads, counters, journal));
        self.target.refuse_without_room(need).map_err(|e| self.failed(e))
    }

    /// Fails if a limit on the target's memory leaves no room for a data area and for `need`.
    pub(super) fn refuse_without_room(&self, control: &Control, need: MemoryNeed) -> Result<(), Error> {
        let threads = self.target.threads().map_err(|e| self.failed(e))?.len();
        let area = MemoryNeed::of_attach().and(MemoryNeed::of_threads(threads, control.counters.used(), 0));
        self.target.refuse_without_room(need.and(area)).map_err(|e| self.failed(e))
    }

    /// The memory of the program that code may read directly. Fails if code must ask the kernel for other memory and may not.
    fn readable(
        &self,
        modules: &Modules,
        identity: ThreadIdentity,
        area: DataArea,
        wanted: &[WantedPoints<'_>],
    ) -> Result<Readable, Error> {
        let data = data_of(modules);
        let status = self.target.status().map_err(|e| self.failed(e))?;
        let process = u32::try_from(status.own_id).ok().filter(|id| *id != 0);
        let readable = Readable { start: data.start, end: data.end, process };
        if !wanted.iter().any(|w| w.minis.iter().any(|m| m.snippet.asks_kernel())) {
            return Ok(readable);
        }
        // a program with this library will probably filter system calls, if it does not yet
        let will_filter = modules.mapped().any(|file| file.name.starts_with("libseccomp"));
        let is_filtered = will_filter || self.filters_system_calls(area)?;
        if is_filtered && wanted.iter().any(|w| w.minis.iter().any(|m| m.snippet.waits_for_room())) {
            let what = format!(
                "threads of this program cannot wait for room in their buffers: {FILTERED}, and a wait needs one"
            );
            return Err(Error::new(Reason::Filtered, what, WITHOUT_WAITS).about(self.pid()));
        }
        if !wanted.iter().any(|w| w.minis.iter().any(|m| m.snippet.asks_for_data())) {
            return Ok(readable);
        }
        let own_data = wanted.iter().any(|w| w.minis.iter().any(|m| m.snippet.has_own_data()));
        if own_data && !matches!(identity, ThreadIdentity::FsOffset(_)) {
            let what = "variables of which every thread has its own cannot be read: how threads find them is not known of this program";
            let hint = "programs of the GNU C library and of musl are known";
            return Err(Error::new(Reason::NoOwnData, what, hint).about(self.pid()));
        }
        if process.is_none() || is_filtered {
            let what = format!(
                "neither memory of this program nor what the kernel counts for it can be read: {FILTERED}, and reading needs one"
            );
            let hint = "variables of the program itself can be read, and counts and times work";
            return Err(Error::new(Reason::Filtered, what, hint).about(self.pid()));
        }
        Ok(readable)
    }

    pub(super) fn write_journal(
        &self,
        journal: &mut Journal,
        area: &SharedArea,
        entries: Entries,
    ) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let bytes = journal.append(entries).map_err(|e| journal_error(self.pid(), &e))?;
        if journal.len() <= area.layout().journal_bytes && !journal.has_grown() {
            return area.append_journal(&bytes).map_err(|e| self.failed(e));
        }
        // The journal is rewritten without the records of things that are gone.
        let text = journal.compact().map_err(|e| journal_error(self.pid(), &e))?;
        area.write_journal(&text).map_err(|e| self.failed(e))
    }
}

/// Length in bytes of records from which on they are written to the journal, so that those of many points use the same memory.
const JOURNAL_PART: usize = 1 << 20;
/// Estimated size of a point in the journal's copy, in bytes, before the point is written.
fn journal_need(point: &WovenAnew) -> u64 {
    point.records().fold(JOURNAL_POINT, |need, record| need + JOURNAL_MOVE * record.moves.len() as u64)
}

/// Estimated size of a point without its moves in the journal's copy, in bytes.
const JOURNAL_POINT: u64 = 256;
/// Estimated size of a move of a program counter in the journal's copy, in bytes.
const JOURNAL_MOVE: u64 = 3;
/// Smallest size of the code of a point, in bytes.
const CODE_LEAST: u64 = 48;

/// Memory that a request needs at least: the pages on which its functions begin, and their code. The exact need is known once the code is
/// generated.
fn rough_need(modules: &Modules, wanted: &[WantedPoints<'_>]) -> MemoryNeed {
    let page = |w: &WantedPoints<'_>| {
        let (_, module, function) = modules.resolve(w.function)?;
        Some(function.start().to_avma(module.bias).0 / PAGE)
    };
    let pages: FxHashSet<u64> = wanted.iter().filter_map(page).collect();
    let code = (wanted.len() as u64 * CODE_LEAST).div_ceil(PAGE);
    MemoryNeed::of_pages(pages.len() as u64 + code)
}

/// Whether a pair's code reads a clock.
pub(super) fn reads(instrumentation: &Instrumentation, clock: Clock) -> bool {
    instrumentation.insertions.iter().any(|i| i.snippet.reads(clock))
}
