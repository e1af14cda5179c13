//! Loss of rights: a process may become another user's, or protected, while its user measures it. The engine then takes the user's code out
//! and answers no more requests of the user about the process.

use std::collections::BTreeSet;
use std::sync::TryLockError;

use ingraft_process::{Denial, Rights};
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, TakenOut};
use crate::error::Error;
use crate::pairs::PairKey;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::left::LeftCalls;
use super::measurement::Measurement;

impl Session {
    /// Whether the caller of a measurement has lost its rights.
    pub fn is_revoked(&self, id: MeasurementId) -> bool {
        self.control().measurements.get(&id).is_some_and(|m| m.revoked)
    }

    /// Takes out the code of measurements whose callers may not trace the target any more.
    pub(super) fn revoke(&self) {
        // If another thread is changing the session, that thread checks its own rights.
        let mut control = match self.try_control() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let live = control.measurements.values().filter(|m| !m.revoked);
        let rights: BTreeSet<Rights> = live.map(|m| m.rights).filter(|rights| *rights != Rights::All).collect();
        let denied = |rights: &Rights| {
            matches!(self.target.check(*rights), Err(ingraft_process::ProcessError::Denied(Denial::NotYours { .. })))
        };
        let lost: BTreeSet<Rights> = rights.into_iter().filter(denied).collect();
        if lost.is_empty() {
            return;
        }
        let pid = self.pid().0;
        tracing::warn!(pid, ?lost, "a measurement is taken out: its user may not trace the process any more");
        for measurement in control.measurements.values_mut().filter(|m| lost.contains(&m.rights)) {
            measurement.revoked = true;
        }
        if let Err(error) = self.take_out_revoked(&mut control) {
            tracing::warn!(pid, %error, "not everything could be taken out; the next look tries again");
            let lost = control.measurements.values_mut().filter(|m| lost.contains(&m.rights));
            lost.for_each(|measurement| measurement.revoked = false);
        }
    }

    fn take_out_revoked(&self, control: &mut Control) -> Result<(), Error> {
        let (revoked, others): (Vec<_>, Vec<_>) = control.measurements.values().partition(|m| m.revoked);
        let views = |of: &[&Measurement]| {
            of.iter().flat_map(|m| m.views.iter().chain(&m.hidden)).map(|v| v.key.clone()).collect()
        };
        let (mut going, staying): (FxHashSet<PairKey>, FxHashSet<PairKey>) = (views(&revoked), views(&others));
        going.retain(|key| !staying.contains(key) && control.pairs.contains_key(key));
        let mut left = LeftCalls::of(self, control, going.iter());
        if others.is_empty() {
            self.take_down(control)?;
        } else {
            let minis = control.pairs.minis_of(&going.iter().collect());
            self.withdraw_fitting(control, &minis, &|plan| plan, Some(&mut left))?;
        }
        self.retire_ended_threads();
        let why = TakenOut::free(now_ns());
        going.iter().for_each(|key| self.freeze(control, key, why, Some(&left)));
        self.settle_accounts(control);
        Ok(())
    }
}
