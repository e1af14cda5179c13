//! Removal of woven code: of pairs that no measurement uses any more, or of all code.

use std::sync::Arc;

use ingraft_model::{FunctionId, PatchPlan};
use ingraft_process::{ApplyOptions, FaultFrames, Rights, Visitor};

use crate::api::{MeasurementId, Removed};
use crate::error::{Error, ErrorClass};
use crate::pairs::PairKey;
use crate::recovery::ground::{Left, Why};
use crate::recovery::journal::{Entries, JournalRecord, PointRecord};
use crate::recovery::waiting::{self, Purpose};
use crate::recovery::{leftover, restore};
use crate::weaving::plan::PlannedRemoval;

use super::control::{Attached, Control};
use super::driver::Session;
use super::errors::no_measurement;
use super::locked::Locked;
use super::remains::Outcome;
use super::view::View;

impl Session {
    /// Removes a measurement; the removal of the last one removes everything. Returns whether the session is over.
    pub fn remove(&self, id: MeasurementId) -> Result<(Removed, bool), Error> {
        let mut guard = self.control();
        let control = &mut *guard;
        let measurement = control.measurements.get(&id).ok_or_else(|| no_measurement(id))?;
        let (views, keep, rights) = (Arc::clone(&measurement.views), measurement.keep, measurement.rights);
        let woven = measurement.woven();
        let awaited = measurement.awaited.iter().map(|awaited| awaited.text.clone()).collect();
        let grown = measurement.grown.then(|| Arc::clone(&measurement.pairs));
        let others = || control.measurements.iter().filter(|(other, _)| **other != id);
        let last = others().all(|(_, other)| other.outlives_removal);
        let with_it: Vec<MeasurementId> = if last { others().map(|(other, _)| *other).collect() } else { Vec::new() };
        // Threads that the end of the target has stopped are not yet taken for ended ones when the kind reads.
        let ended = self.end.is_known();
        // done before the removal, because restored children are not recognised any more
        if !ended {
            self.retire_ended_threads();
        }
        self.read_last(control, id, rights);
        if ended {
            self.retire_ended_threads();
        }
        // Children that are measured with the target lose the area but live on. The roster keeps their threads from being taken for ended.
        let family = self.shared_mut().roster_mut().children_mut().set_leaving(last);
        let taken = self.take_measurement_out(control, &woven, last);
        if !family {
            // threads that ended with open calls have left these calls
            self.retire_ended_threads();
        }
        let mut reading = taken.is_ok().then(|| self.reading(&views, true));
        if let Some(reading) = &mut reading {
            self.name_code(|| Some(&*control), &views, reading);
        }
        self.shared_mut().roster_mut().children_mut().set_leaving(false);
        let mut removed = match taken {
            Ok(removed) => removed,
            Err(error) => {
                control.measurements.entry(id).and_modify(|measurement| measurement.outlives_removal = true);
                return Err(error);
            }
        };
        if let Some(mut kind) = self.kinds().remove(&id) {
            kind.ended(&mut Locked::new(self, control, id), &mut removed);
        }
        if keep
            && !last
            && let Some(attached) = control.attached.as_mut()
        {
            self.write_journal(&mut attached.journal, &attached.area, JournalRecord::KeptGone(id.0).into())?;
        }
        control.measurements.remove(&id);
        if !last {
            // the measurement's code may come from a dead engine
            control.remains.note_spare();
            self.release_spare(control);
        }
        self.drop_users(control, &woven);
        for other in with_it {
            self.kinds().remove(&other);
            if let Some(other) = control.measurements.remove(&other) {
                self.drop_users(control, &other.woven());
            }
        }
        if control.remains.is_unfinished() {
            self.reuse_counters(control, removed.suspended_at.as_deref());
        }
        let over = last && !control.remains.is_unfinished();
        Ok((Removed { grown, last: reading, awaited, ..removed }, over))
    }

    /// Has the kind of a measurement read what can only be read before the code is taken out, unless that was done right before the target has ended.
    pub(super) fn read_last(&self, control: &mut Control, id: MeasurementId, rights: Rights) {
        if let Some(kind) = self.kinds().get_mut(&id) {
            if kind.reads_before_end() && self.end.is_known() && self.exit_point.was_read() {
                return;
            }
            let _acting = self.target.act_for(rights);
            kind.last(&mut Locked::new(self, control, id));
        }
    }

    /// Takes out the code of a measurement's pairs; if it is the last measurement, takes out everything.
    pub(super) fn take_measurement_out(
        &self,
        control: &mut Control,
        views: &[View],
        last: bool,
    ) -> Result<Removed, Error> {
        if last {
            return self.take_down(control);
        }
        if self.end.is_known() {
            return Ok(leftover::untouched(self.pid()));
        }
        self.look_at_modules(control)?;
        self.unweave(control, views)
    }

    /// Takes out the code of pairs that only this measurement uses. Returns how long threads were held for that.
    pub(super) fn unweave(&self, control: &mut Control, views: &[View]) -> Result<Removed, Error> {
        self.target.take_longest_hold(); // discards the holds of earlier operations
        self.unweave_within(control, views)?;
        Ok(Removed { stopped: self.target.take_longest_hold(), ..leftover::untouched(self.pid()) })
    }

    /// Takes out the code of pairs that only this measurement uses, as a part of another operation.
    pub(super) fn unweave_within(&self, control: &mut Control, views: &[View]) -> Result<(), Error> {
        let going = control.pairs.used_only_by(views.iter().map(|view| (&view.key, view.value.first)));
        let minis = control.pairs.minis_of(&going);
        let going: Vec<PairKey> = going.into_iter().cloned().collect();
        self.withdraw(control, &minis)?;
        control.retire_keys(going.iter());
        Ok(())
    }

    /// Takes snippets out.
    ///
    /// First all jumps to them are removed. Threads in the middle of a snippet then leave by themselves, however busy they are. If no
    /// thread is there, nothing else is needed.
    pub(super) fn withdraw(&self, control: &mut Control, minis: &[(FunctionId, u64)]) -> Result<(), Error> {
        let Some(attached) = control.attached.as_ref().filter(|_| !minis.is_empty()) else { return Ok(()) };
        let subject = (&*self.target, &control.modules, &attached.env);
        let planned = attached.woven.plan_removal(subject, minis, true)?;
        let need = self.target.memory_need(&planned.plan, &attached.woven.arenas());
        let planned = match planned.new_points.is_empty() || self.target.refuse_without_room(need).is_ok() {
            true => planned,
            false => attached.woven.plan_removal(subject, minis, false)?,
        };
        self.apply_removal(control, planned, None)
    }

    /// Takes snippets out by the part of the plan that `fit` leaves of it. The visitor visits the stop.
    pub(super) fn withdraw_fitting(
        &self,
        control: &mut Control,
        minis: &[(FunctionId, u64)],
        fit: &dyn Fn(PatchPlan) -> PatchPlan,
        visitor: Option<&mut dyn Visitor>,
    ) -> Result<(), Error> {
        let Some(attached) = control.attached.as_ref().filter(|_| !minis.is_empty()) else { return Ok(()) };
        let subject = (&*self.target, &control.modules, &attached.env);
        let mut planned = attached.woven.plan_removal(subject, minis, false)?;
        planned.plan = fit(planned.plan);
        self.apply_removal(control, planned, visitor)
    }

    fn apply_removal(
        &self,
        control: &mut Control,
        planned: PlannedRemoval,
        visitor: Option<&mut dyn Visitor>,
    ) -> Result<(), Error> {
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        let _unbounded = self.target.bound_holds(None);
        let PlannedRemoval { plan, gone, chains, new_points, woven } = planned;
        if !new_points.is_empty() {
            let mut entries = Entries::default();
            new_points.iter().for_each(|point| point.note(&mut entries));
            self.write_journal(&mut attached.journal, &attached.area, entries)?;
        }
        let (check_quiet, area) = (woven.idle(), Some(attached.env.data));
        let suspended = waiting::near(&self.target, Purpose::Removal, &plan.text, &check_quiet, area);
        let options =
            ApplyOptions { check_quiet, suspended, calls: area, faults: FaultFrames::Leave, ..ApplyOptions::default() };
        let routines = woven.routines();
        let (reads, mut leaves): (Vec<_>, Vec<_>) = plan.step_out.into_iter().partition(|r| routines.contains(r));
        // threads in the removed code may still enter these routines and return from them
        leaves.extend(woven.routines_of_passers());
        leaves.sort_unstable_by_key(|r| r.start);
        leaves.dedup();
        let first = PatchPlan { step_out: reads, moves: plan.moves.clone(), ..plan };
        let rest = PatchPlan { step_out: leaves, moves: plan.moves, ..PatchPlan::default() };
        let applied = match self.target.apply_and_visit(&first, &options, visitor) {
            Ok(applied) => applied,
            Err(e) => {
                let unwritten = new_points.iter().map(|point| JournalRecord::PointGone(point.key())).collect();
                // The first error is the one to report. Surplus records in the journal do no harm.
                let _ = self.write_journal(&mut attached.journal, &attached.area, unwritten);
                return Err(Error::apply(self.pid(), e));
            }
        };
        attached.woven = woven;
        let mut quiet = applied.quiet;
        if !quiet {
            // A thread that stays in the removed code until its handler returns is a straggler.
            let (readings, faults) = (Some(attached.env.data), FaultFrames::Delay);
            let options = ApplyOptions { readings, faults, ..options.clone() };
            match self.target.apply(&rest, &options) {
                Ok(applied) => quiet = applied.quiet,
                Err(error) => {
                    tracing::debug!(%error, "a thread may still be in code that was taken out");
                    control.remains.set_stragglers(true);
                }
            }
        }
        if quiet {
            attached.woven.release(&options.check_quiet);
        }
        if control.family.counts() && !gone.is_empty() {
            let left = leftover::withdraw_from_children(&self.target, &gone, attached.area.layout());
            if !left.is_empty() {
                tracing::warn!(?left, "children go on with code that was taken out");
            }
        }
        let chains = chains.into_iter().map(JournalRecord::Chain).collect();
        self.write_journal(&mut attached.journal, &attached.area, chains)?;
        self.forget_points(attached, gone)?;
        Ok(())
    }

    /// Forgets points that are gone from the target, with their text or without. Their records stay as long as a fork child may have the
    /// points.
    pub(super) fn forget_points(&self, attached: &mut Attached, gone: Vec<PointRecord>) -> Result<(), Error> {
        if gone.is_empty() {
            return Ok(());
        }
        if leftover::has_heirs(&self.target, attached.area.layout()) {
            attached.woven.keep_inherited(gone);
            return Ok(());
        }
        attached.woven.drop_inherited();
        let records = gone.iter().map(|point| JournalRecord::PointGone(point.removal.key())).collect();
        self.write_journal(&mut attached.journal, &attached.area, records)
    }

    pub(super) fn drop_users(&self, control: &mut Control, views: &[View]) {
        let counted_elsewhere = control.remains.has_stragglers() || self.has_heirs(control);
        let released = control.pairs.drop_users(views.iter().map(|view| (&view.key, view.value.first)));
        let counters = released.counters();
        self.shared_mut().close_accounts(&released.values);
        self.shared_mut().forget(&released, &counters);
        let unused: Vec<u32> = released.events.into_iter().filter(|n| control.counters.leave_event(*n)).collect();
        if !counted_elsewhere {
            counters.iter().for_each(|range| control.counters.give_back(range.start, range.end - range.start));
            unused.into_iter().for_each(|number| self.close_event(control, number));
        }
    }

    /// Closes the counters of an event in all threads. If that fails, the counters stay open and the event's number stays taken.
    fn close_event(&self, control: &mut Control, number: u32) {
        let Some(attached) = &control.attached else { return };
        match self.target.close_events(&attached.area, number) {
            Ok(()) => control.counters.free_event(number),
            Err(error) => tracing::debug!(%error, "threads keep their counters of an event"),
        }
    }

    /// Takes everything out of the target: text, threads, arenas, data area, fork children, journal.
    pub(super) fn take_down(&self, control: &mut Control) -> Result<Removed, Error> {
        if let Some(attached) = &control.attached {
            self.stop_listening(&attached.area);
        }
        self.pull_out(control)
    }

    /// Takes everything out of the target while threads at the loader's hook continue to wait.
    pub(super) fn pull_out(&self, control: &mut Control) -> Result<Removed, Error> {
        let _unbounded = self.target.bound_holds(None); // an insertion that fails takes its code out too
        self.target.take_longest_hold(); // discards the holds of earlier operations
        let Some(attached) = control.attached.as_ref() else {
            self.discard(control);
            return Ok(leftover::untouched(self.pid()));
        };
        if self.end.is_known() || !self.target.is_alive() {
            return Ok(self.discard_of_ended(control));
        }
        if let Ok((left, missed)) = attached.area.calls_amiss()
            && (left, missed) != (0, 0)
        {
            tracing::warn!(left, missed, "functions that were called did not return, or could not be called");
        }
        let records = attached.woven.records(&control.modules);
        let arenas = attached.woven.arenas();
        let layout = attached.area.layout();
        let file = leftover::area_file(&self.target, layout);
        let disturbed = self.disturbed_places(control);
        let restored = match restore::restore(&self.target, &records, &arenas, Some(layout)) {
            Ok(restored) => restored,
            // the target's memory is gone, and everything that was inserted with it
            Err(e)
                if e.reason.class() == ErrorClass::Gone
                    && self.target.find_areas().map_or(true, |areas| areas.is_empty()) =>
            {
                return Ok(self.discard_of_ended(control));
            }
            Err(e) => return Err(e),
        };
        self.shared_mut().roster_mut().note_bases(&restored.threads);
        let differs = control.modules.differs_from_memory(&self.target, attached.woven.text_at());
        let text_restored = restored.text_restored && differs.is_none();
        let outcome = Outcome::of(restored.unmapped, text_restored);
        let mut left = restored.left;
        if restored.text_restored {
            left.extend(differs.map(|at| Left { at, state: Why::Foreign }));
        }
        let mut warnings = self.warnings(control, &left);
        self.add_lost_calls(control, disturbed, &left, &mut warnings);
        warnings.extend(restored.kept.as_ref().map(waiting::Scheduler::warning));
        warnings.extend(self.births_warnings(control));
        let children_left = leftover::restore_children(&self.target, &records, &arenas, layout, file);
        match outcome {
            Outcome::Clean => self.discard(control),
            Outcome::MemoryLeft => self.leave_memory(control, records, arenas, restored.asleep.clone())?,
            Outcome::TextLeft => self.leave_text(control),
        }
        let memory_left = outcome != Outcome::Clean;
        let (stopped, asleep) = (self.target.take_longest_hold(), restored.asleep);
        let rest = leftover::untouched(self.pid());
        let suspended_at = restored.suspended_at;
        Ok(Removed { stopped, text_restored, children_left, warnings, memory_left, asleep, suspended_at, ..rest })
    }

    /// Discards what the engine keeps of a target that has ended. The data area still tells of its fork children.
    fn discard_of_ended(&self, control: &mut Control) -> Removed {
        let warnings = self.births_warnings(control);
        self.discard(control);
        Removed { warnings, ..leftover::untouched(self.pid()) }
    }

    /// Discards the journal and the lock, once nothing of the engine is in the target any more.
    pub(super) fn discard(&self, control: &mut Control) {
        control.remains.finish();
        control.counters.forget_events();
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
        self.release_loader();
        self.end_waits();
        let mut control = self.control();
        let removed = self.take_down(&mut control)?;
        control.measurements.clear();
        self.kinds().clear();
        self.shared_mut().buffers_mut().clear();
        control.pairs.clear();
        Ok(removed)
    }

    /// Leaves the measurements that are to be kept in the target when the engine ends, and removes the rest. `None` if one was kept.
    pub fn shut_down(&self) -> Result<Option<Removed>, Error> {
        self.release_loader();
        let mut control = self.control();
        control.closed = true;
        if let Some(attached) = &control.attached {
            self.stop_listening(&attached.area);
        }
        let ids: Vec<_> = control.measurements.iter().filter(|(_, m)| !m.keep).map(|(id, _)| *id).collect();
        drop(control);
        let mut removed = None;
        for id in ids {
            removed = Some(self.remove(id)?.0);
        }
        let mut control = self.control();
        if removed.is_none() && control.measurements.is_empty() && control.remains.is_unfinished() {
            removed = Some(self.take_down(&mut control)?);
        }
        self.let_go(&mut control);
        Ok(if control.measurements.is_empty() {
            removed.or_else(|| Some(leftover::untouched(self.pid())))
        } else {
            None
        })
    }
}
