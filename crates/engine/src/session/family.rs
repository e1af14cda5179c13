//! Fork children that are measured with their parent: they have its code and its shared memory, and count like threads of the parent.

use std::fs;

use ingraft_model::{DataArea, Pid, Tid};

use crate::error::{Error, Reason};
use crate::measure::request::WantedPair;
use crate::recovery::leftover;

use super::children::{Conflict, can_follow};
use super::control::Control;
use super::driver::Session;

impl Session {
    /// Decides whether fork children are measured with the target. The first measurement in the target decides for all that come while it
    /// is inserted.
    pub(super) fn decide_family(
        &self,
        control: &mut Control,
        asked: bool,
        wanted: &[WantedPair],
        warnings: &mut Vec<String>,
    ) -> Result<(), Error> {
        let may = asked && wanted.iter().all(|w| can_follow(&w.instrumentation));
        if control.family.decide(may, control.attached.is_some()) == Err(Conflict) {
            let what = "the children of this process are measured with it, which this measurement cannot be";
            let hint = "ask for it with `--follow fork`, without memory that is read or set, calls, events and lists of objects, or end the other one";
            return Err(Error::new(Reason::Family, what, hint).about(self.pid()));
        }
        if self.has_heirs(control) {
            warnings.push(
                "children that were born before are not measured: they have the code of an earlier measurement"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether there are children that execute the present code, whatever is taken out of the target.
    pub(super) fn has_heirs(&self, control: &Control) -> bool {
        let attached = control.attached.as_ref().filter(|_| control.family.counts());
        attached.is_some_and(|attached| leftover::has_heirs(&self.target, attached.area.layout()))
    }

    /// Whether a process is measured with the target.
    pub fn is_followed(&self, pid: Pid) -> bool {
        let shared = self.shared();
        let area = shared.area().filter(|_| shared.roster().children().count() && !self.end.is_known());
        area.is_some_and(|area| self.has_inherited(pid, area.layout()))
    }

    /// The process of a thread that counts in an area, if it is another process than the target and lives.
    pub(super) fn find_followed(&self, tid: Tid, area: DataArea) -> Option<(Tid, Pid)> {
        if !self.has_inherited(Pid(tid.0), area) {
            return None;
        }
        let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())?;
        Some((tid, Pid(leader)))
    }

    /// Whether a process maps the data area. Areas of other targets have the same address, so the file decides. The check for any mapping
    /// there is quicker, and usually negative.
    fn has_inherited(&self, pid: Pid, area: DataArea) -> bool {
        let (start, end) = (area.base.0, area.base.0 + area.stride);
        fs::symlink_metadata(format!("/proc/{pid}/map_files/{start:x}-{end:x}")).is_ok()
            && leftover::area_file(&self.target, area).is_none_or(|file| leftover::is_heir(pid, area, file))
    }
}
