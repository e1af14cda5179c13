//! A removal that cannot be finished yet: the text is the original one and nothing leads to our memory any more, but a thread that sleeps in the
//! kernel may have a gs base of ours, or something may return to an arena. The memory stays until that is over. Whoever measures in the target
//! meanwhile goes on with the same memory, in which such a thread finds its shard.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ingraft_model::{AvmaRange, Pid, ThreadIdentity, Tid};
use ingraft_process::{Identity, Target};

use crate::api::MeasurementId;
use crate::error::{Error, ErrorKind};
use crate::recovery::journal::{PointRecord, Record};
use crate::weaving::plan::Woven;

use super::control::Control;
use super::driver::Session;

/// Time until a removal is first tried again that does not wait on threads that sleep; it doubles with each try.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two tries: each holds the target.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A removal that waits.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Threads that sleep uninterruptibly; none if it is something else.
    asleep: Vec<Tid>,
    /// When it is tried again if nothing else tells.
    next: Instant,
    pause: Duration,
}

impl Unfinished {
    pub(super) fn new(asleep: Vec<Tid>, before: Option<&Unfinished>) -> Self {
        let pause = before.map_or(PAUSE, |before| (before.pause * 2).min(PAUSE_MAX));
        Unfinished { asleep, next: Instant::now() + pause, pause }
    }

    /// Whether it is worth a try.
    fn is_due(&self, target: &Target) -> bool {
        let woke = || self.asleep.iter().any(|tid| !target.is_asleep(*tid));
        if self.asleep.is_empty() { Instant::now() >= self.next } else { woke() }
    }
}

impl Session {
    /// The text is restored, and the memory has to stay. The journal says from now on that nothing is woven.
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
        // libraries are noticed without the loader's hook, which is out
        self.shared_mut().hook = None;
        let kept: Vec<MeasurementId> = control.measurements.iter().filter(|(_, m)| m.keep).map(|(id, _)| *id).collect();
        let Some(attached) = control.attached.as_mut() else { return Ok(()) };
        attached.env.loader = None;
        attached.woven = Woven::adopt(Vec::new(), BTreeMap::new(), arenas);
        let entries = kept.into_iter().map(|id| Record::KeptGone(id.0)).collect();
        self.write_journal(&mut attached.journal, &attached.area, entries)?;
        self.forget_points(attached, records)
    }

    /// Tries to finish a removal that had to wait, if that seems worth while, and takes out what a dead engine wove in vain. Returns whether nothing of this session is in the target any more.
    pub fn finish_removal(&self) -> bool {
        // who has it now changes the target, and will see to it
        let Ok(mut control) = self.control.try_lock() else { return false };
        self.release_spare(&mut control);
        let is_due = control.unfinished.as_ref().is_some_and(|unfinished| unfinished.is_due(&self.target));
        if !is_due || !control.measurements.is_empty() || control.closed {
            return false;
        }
        match self.take_down(&mut control) {
            Ok(removed) => tracing::info!(pid = self.pid().0, memory_left = removed.memory_left, "removal tried again"),
            Err(error) => tracing::warn!(%error, "a removal could not be finished yet"),
        }
        control.attached.is_none()
    }

    /// Whether more can be woven in memory of a removal that is not finished: threads must be told apart as they were.
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
        Err(Error::new(ErrorKind::Failed, "removal_unfinished", what, hint).about(self.pid()))
    }

    /// The target has ended. Returns whether the session is over with it, because nobody has measurements in it.
    pub fn end_unfinished(&self) -> bool {
        let mut control = self.control();
        let is_idle = control.unfinished.is_some() && control.measurements.is_empty();
        if is_idle {
            self.discard(&mut control);
        }
        is_idle
    }

    /// Whether memory of a removal is in the target that is not finished.
    pub fn is_unfinished(&self) -> bool {
        self.control().unfinished.is_some()
    }

    /// The engine ends. Whoever comes next finds the journal and finishes: nobody holds the target any more.
    pub(super) fn let_go(&self, control: &mut Control) {
        if control.unfinished.take().is_none() {
            return;
        }
        if let Some(attached) = control.attached.take() {
            let nobody = Identity { pid: Pid(0), start_time: 0, boot_id: self.target.identity().boot_id };
            if let Err(error) = attached.area.set_holder(&nobody) {
                tracing::warn!(%error, "the target stays marked as held");
            }
        }
        control.lock = None;
    }
}
