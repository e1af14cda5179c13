//! A removal that cannot be finished yet: the text is the original one and nothing leads to the engine's memory any more, but a thread may
//! still need it. That is a thread that sleeps in the kernel with the gs base of its shard, or one that may return to an arena. The memory
//! stays until then. A measurement that begins meanwhile uses the same memory, in which such a thread finds its shard.

use std::collections::BTreeMap;
use std::time::Instant;

use ingraft_codegen::counters_in_reach;
use ingraft_model::{Avma, AvmaRange, Pid, ThreadIdentity, Tid};
use ingraft_process::ProcessIdentity;

use crate::api::MeasurementId;
use crate::error::{Error, Reason};
use crate::recovery::journal::{JournalRecord, PointRecord};
use crate::weaving::plan::Woven;

use super::control::{Attached, Control};
use super::driver::Session;

impl Session {
    /// Leaves the memory in the target after the text was restored. The journal states from now on that nothing is woven.
    pub(super) fn leave_memory(
        &self,
        control: &mut Control,
        records: Vec<PointRecord>,
        arenas: Vec<AvmaRange>,
        asleep: Vec<Tid>,
    ) -> Result<(), Error> {
        control.remains.leave_memory(asleep, Instant::now());
        // the loader's hook is removed, so libraries are noticed without it
        self.forget_hooks();
        let kept: Vec<MeasurementId> = control.measurements.iter().filter(|(_, m)| m.keep).map(|(id, _)| *id).collect();
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        attached.env.loader = None;
        attached.woven = Woven::adopt(Vec::new(), BTreeMap::new(), arenas);
        let entries = kept.into_iter().map(|id| JournalRecord::KeptGone(id.0)).collect();
        self.write_journal(&mut attached.journal, &attached.area, entries)?;
        self.forget_points(attached, records)
    }

    /// Leaves everything in the target that could not be removed. The next engine, which may be this one, finds the journal and finishes the
    /// removal.
    pub(super) fn leave_text(&self, control: &mut Control) {
        // the engine that finishes the removal must not take ended measurements for living ones
        let gone =
            control.measurements.iter().filter(|(_, m)| m.keep).map(|(id, _)| JournalRecord::KeptGone(id.0)).collect();
        if let Some(mut attached) = control.attached.take() {
            self.release_hold(&attached);
            if let Err(error) = self.write_journal(&mut attached.journal, &attached.area, gone) {
                tracing::warn!(%error, "the journal still names measurements that have gone");
            }
        }
        control.remains.finish();
        control.lock = None;
    }

    /// Notes in the target that no engine holds it any more.
    fn release_hold(&self, attached: &Attached) {
        let nobody = ProcessIdentity { pid: Pid(0), start_time: 0, boot_id: self.target.identity().boot_id };
        if let Err(error) = attached.area.set_holder(&nobody) {
            tracing::warn!(%error, "the target stays marked as held");
        }
    }

    /// Lets later measurements use the counters of the memory again, except those that contexts suspended at these addresses may still change.
    /// If the addresses are not known, all counters stay as they are.
    pub(super) fn reuse_counters(&self, control: &mut Control, suspended_at: Option<&[Avma]>) {
        let (Some(attached), Some(from)) = (control.attached.as_ref(), suspended_at) else { return };
        if !control.measurements.is_empty() || !control.pairs.is_empty() || self.has_heirs(control) {
            return;
        }
        let mut code = attached.woven.arenas();
        code.sort_unstable_by_key(|arena| arena.start);
        let read = |at: Avma, into: &mut [u8]| self.target.read_some(at, into).unwrap_or(0);
        let Some(reached) = counters_in_reach(&attached.area.layout(), &code, &read, from) else { return };
        self.shared_mut().clear_counters(control.counters.reuse_all_but(&reached));
        control.remains.set_stragglers(false);
    }

    /// Tries to finish a removal that had to wait, if a try is due, and removes spare code of a dead engine. Returns whether nothing of
    /// this session is in the target any more.
    pub fn finish_removal(&self) -> bool {
        // a thread that holds the lock changes the target, and finishes the removal itself if need be
        let Ok(mut control) = self.try_control() else { return false };
        self.release_spare(&mut control);
        let is_due = control.remains.is_due(Instant::now(), |tid| self.target.is_asleep(tid));
        if !is_due || !control.measurements.is_empty() || control.closed {
            return false;
        }
        match self.take_down(&mut control) {
            Ok(removed) => {
                tracing::info!(pid = self.pid().0, memory_left = removed.memory_left, "removal tried again");
                self.reuse_counters(&mut control, removed.suspended_at.as_deref());
            }
            Err(error) => tracing::warn!(%error, "a removal could not be finished yet"),
        }
        control.attached.is_none()
    }

    /// Fails if no more code can be woven in the memory of an unfinished removal: threads must be told apart in the same way as before.
    pub(super) fn refuse_changed(&self, control: &Control) -> Result<(), Error> {
        let Some(attached) = control.attached.as_ref().filter(|_| control.remains.is_unfinished()) else {
            return Ok(());
        };
        if attached.env.identity == ThreadIdentity::Locked || !control.measurements.is_empty() {
            return Ok(());
        }
        let survey = self.target.survey(Some(attached.area.layout())).map_err(|e| self.failed(e))?;
        if survey.identity == attached.env.identity && control.modules.user_of_gs(&self.target).is_none() {
            return Ok(());
        }
        let what = "an earlier removal waits for a thread that sleeps in the kernel, and the threads of the program cannot be told apart any more as they were";
        let hint = "try again when that thread is awake";
        Err(Error::new(Reason::RemovalUnfinished, what, hint).about(self.pid()))
    }

    /// Handles the end of the target. Returns whether the session is over, because the target has no measurements.
    pub fn end_unfinished(&self) -> bool {
        let mut control = self.control();
        let is_idle = control.remains.is_unfinished() && control.measurements.is_empty();
        if is_idle {
            self.discard(&mut control);
        }
        is_idle
    }

    /// Whether the target has memory of an unfinished removal.
    pub fn is_unfinished(&self) -> bool {
        self.control().remains.is_unfinished()
    }

    /// Releases the target when the engine ends. The next engine finds the journal and finishes the removal.
    pub(super) fn let_go(&self, control: &mut Control) {
        if !control.remains.finish() {
            return;
        }
        if let Some(attached) = control.attached.take() {
            self.release_hold(&attached);
        }
        control.lock = None;
    }
}
