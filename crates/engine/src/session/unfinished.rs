//! A removal that cannot be finished yet: the text is the original one and nothing leads to the engine's memory any more, but a thread may
//! still need it. That is a thread that sleeps in the kernel with the gs base of its shard, or one that may return to an arena. The memory
//! stays until then. A measurement that begins meanwhile uses the same memory, in which such a thread finds its shard.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ingraft_codegen::counters_in_reach;
use ingraft_model::{Avma, AvmaRange, Pid, ThreadIdentity, Tid};
use ingraft_process::{ProcessIdentity, Target};

use crate::api::MeasurementId;
use crate::error::{Error, Reason};
use crate::recovery::journal::{PointRecord, Record};
use crate::weaving::plan::Woven;

use super::control::Control;
use super::driver::Session;

/// Time until the first retry of a removal that does not wait for sleeping threads; it doubles with each try.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two tries; each try holds the target.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A removal that waits.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Threads that sleep uninterruptibly; empty if the removal waits for something else.
    asleep: Vec<Tid>,
    /// Time of the next try, if no sleeping thread is waited for.
    next: Instant,
    pause: Duration,
}

impl Unfinished {
    pub(super) fn new(asleep: Vec<Tid>, before: Option<&Unfinished>) -> Self {
        let pause = before.map_or(PAUSE, |before| (before.pause * 2).min(PAUSE_MAX));
        Unfinished { asleep, next: Instant::now() + pause, pause }
    }

    /// Whether a try is due.
    fn is_due(&self, target: &Target) -> bool {
        let woke = || self.asleep.iter().any(|tid| !target.is_asleep(*tid));
        if self.asleep.is_empty() { Instant::now() >= self.next } else { woke() }
    }
}

impl Session {
    /// Leaves the memory in the target after the text was restored. The journal states from now on that nothing is woven.
    pub(super) fn leave_memory(
        &self,
        control: &mut Control,
        records: Vec<PointRecord>,
        arenas: Vec<AvmaRange>,
        asleep: Vec<Tid>,
    ) -> Result<(), Error> {
        control.unfinished = Some(Unfinished::new(asleep, control.unfinished.as_ref()));
        // a thread may still count in code that was taken out
        control.has_stragglers = true;
        // the loader's hook is removed, so libraries are noticed without it
        self.shared_mut().hook = None;
        let kept: Vec<MeasurementId> = control.measurements.iter().filter(|(_, m)| m.keep).map(|(id, _)| *id).collect();
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        attached.env.loader = None;
        attached.woven = Woven::adopt(Vec::new(), BTreeMap::new(), arenas);
        let entries = kept.into_iter().map(|id| Record::KeptGone(id.0)).collect();
        self.write_journal(&mut attached.journal, &attached.area, entries)?;
        self.forget_points(attached, records)
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
        let mut shared = self.shared_mut();
        control.counters.reuse_all_but(&reached).for_each(|range| shared.ended.clear(&*attached.area, range));
        control.has_stragglers = false;
    }

    /// Tries to finish a removal that had to wait, if a try is due, and removes spare code of a dead engine. Returns whether nothing of
    /// this session is in the target any more.
    pub fn finish_removal(&self) -> bool {
        // a thread that holds the lock changes the target, and finishes the removal itself if need be
        let Ok(mut control) = self.control.try_lock() else { return false };
        self.release_spare(&mut control);
        let is_due = control.unfinished.as_ref().is_some_and(|unfinished| unfinished.is_due(&self.target));
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
        let Some(attached) = control.attached.as_ref().filter(|_| control.unfinished.is_some()) else { return Ok(()) };
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
        let is_idle = control.unfinished.is_some() && control.measurements.is_empty();
        if is_idle {
            self.discard(&mut control);
        }
        is_idle
    }

    /// Whether the target has memory of an unfinished removal.
    pub fn is_unfinished(&self) -> bool {
        self.control().unfinished.is_some()
    }

    /// Releases the target when the engine ends. The next engine finds the journal and finishes the removal.
    pub(super) fn let_go(&self, control: &mut Control) {
        if control.unfinished.take().is_none() {
            return;
        }
        if let Some(attached) = control.attached.take() {
            let nobody = ProcessIdentity { pid: Pid(0), start_time: 0, boot_id: self.target.identity().boot_id };
            if let Err(error) = attached.area.set_holder(&nobody) {
                tracing::warn!(%error, "the target stays marked as held");
            }
        }
        control.lock = None;
    }
}
