//! Fork children that are measured with their parent: they have its code and its shared memory, and count there like threads of it.

use std::fs;

use super::*;

impl Session {
    /// Whether fork children are to be measured with the target. That is decided with the first measurement in it, for all that come while it is in.
    pub(super) fn decide_family(
        &self,
        control: &mut Control,
        asked: bool,
        wanted: &[Wanted],
        warnings: &mut Vec<String>,
    ) -> Result<(), Error> {
        // their code would read the parent's memory, and a call that ends with its process would stay open
        let alike = |w: &Wanted| {
            !w.instrumentation.insertions.iter().any(|i| i.snippet.asks_kernel() || i.snippet.interferes())
        };
        let may = asked && wanted.iter().all(alike);
        if control.attached.is_none() {
            control.family = may;
            return Ok(());
        }
        if control.family && !may {
            let what = "the children of this process are measured with it, which this measurement cannot be";
            let hint = "ask for it with `--follow fork`, without memory that is read or set, calls and events, or end the other one";
            return Err(Error::new(ErrorKind::Failed, "family", what, hint).about(self.pid()));
        }
        if self.has_heirs(control) {
            warnings.push(
                "children that were born before are not measured: they have the code of an earlier measurement"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Whether there are children that count what is woven now, whatever is taken out of the target.
    pub(super) fn has_heirs(&self, control: &Control) -> bool {
        let attached = control.attached.as_ref().filter(|_| control.family);
        attached.is_some_and(|attached| leftover::has_heirs(&self.target, attached.area.layout()))
    }

    /// Whether a process is measured with the target.
    pub fn is_kin(&self, pid: Pid) -> bool {
        let shared = self.shared();
        let area = shared.area.as_ref().filter(|_| shared.family && self.ended.get().is_none());
        area.is_some_and(|area| is_heir(Tid(pid.0), area.layout()))
    }
}

/// The process of a thread that counts in an area, if that is not the target's and lives.
pub(super) fn find(tid: Tid, area: DataArea) -> Option<(Tid, Pid)> {
    if !is_heir(tid, area) {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())?;
    Some((tid, Pid(leader)))
}

/// Whether a thread lives in a process that has an area at that place.
fn is_heir(tid: Tid, area: DataArea) -> bool {
    let (start, end) = (area.base.0, area.base.0 + area.stride);
    fs::symlink_metadata(format!("/proc/{tid}/map_files/{start:x}-{end:x}")).is_ok()
}
