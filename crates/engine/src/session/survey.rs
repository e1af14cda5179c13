//! The figures of a target and the values of all measurements that stay in it, for readers that ask for everything at once.

use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use crate::api::{KeptValues, SurveyPart, TargetFigures};

use super::control::Control;
use super::driver::Session;

/// Time between two attempts to look at a target that is being changed.
const LOOK: Duration = Duration::from_millis(2);

impl Session {
    /// Passes the figures of the target to `visit`, and then the values of each measurement that stays, read as [`Session::read`] reads
    /// them. A target that is still being changed at `deadline` is only told to be busy.
    pub fn survey(&self, deadline: Instant, visit: &mut dyn FnMut(SurveyPart)) {
        let control = loop {
            match self.try_control() {
                Ok(control) => break control,
                Err(TryLockError::Poisoned(e)) => break e.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => return visit(SurveyPart::Busy(self.pid())),
            }
        };
        let figures = self.figures(&control);
        let kept: Vec<_> = control
            .measurements
            .iter()
            .filter(|(_, measurement)| measurement.keep)
            .map(|(id, measurement)| (*id, Arc::clone(&measurement.pairs), Arc::clone(&measurement.views)))
            .collect();
        drop(control);
        visit(SurveyPart::Target(figures));
        for (id, pairs, views) in kept {
            let mut reading = self.reading(&views, false);
            // Keys without a name get one on a later page if the target is being changed now.
            self.name_code(|| self.try_control().ok(), &views, &mut reading);
            let is_broken = self.shared().area().is_some_and(|area| area.is_broken());
            visit(if is_broken { SurveyPart::Unread(id) } else { SurveyPart::Kept(KeptValues { id, pairs, reading }) });
        }
    }

    fn figures(&self, control: &Control) -> TargetFigures {
        let attached = control.attached.as_ref();
        let knows_all = attached.filter(|attached| attached.woven.knows_all());
        TargetFigures {
            pid: self.pid(),
            ended: self.has_ended() || !self.target().is_alive(),
            since_ns: attached.map_or(0, |attached| attached.since_ns),
            points: attached.map_or(0, |attached| self.points(attached)),
            code_bytes: attached.map_or(0, |attached| attached.woven.code_bytes()),
            costs: knows_all.map(|attached| self.costs(control, attached)),
            held: self.target().time_held(),
            longest_hold: self.target().longest_hold(),
            measurements: control.measurements.len(),
            kept: control.measurements.values().filter(|m| m.keep).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Pid;
    use ingraft_process::Target;

    use super::*;
    use crate::api::ClockChoice;
    use crate::program::images::ImageStore;
    use crate::session::Context;
    use crate::state_dir::StateDir;

    #[test]
    fn a_target_that_is_being_changed_does_not_delay_the_reader() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("start a program");
        let pid = Pid(i32::try_from(child.id()).expect("a process id"));
        let state = StateDir::open(directory.path()).expect("a state directory");
        let context = Context {
            images: Arc::new(ImageStore::new(state.clone())),
            state,
            program: "ingraftd".to_owned(),
            max_overhead: 1.0,
            clock: ClockChoice::Auto,
            kind: |_| panic!("nothing is measured"),
        };
        let session = Session::open(context, Arc::new(Target::open(pid).expect("a target"))).expect("a session");
        let parts = |wait| {
            let mut parts = Vec::new();
            session.survey(Instant::now() + wait, &mut |part| parts.push(part));
            parts
        };
        let changing = session.control();
        let busy = std::thread::scope(|scope| scope.spawn(|| parts(LOOK)).join().expect("it ends"));
        assert!(matches!(busy.as_slice(), [SurveyPart::Busy(of)] if *of == pid), "{busy:?}");
        drop(changing);
        let known = parts(Duration::ZERO);
        let [SurveyPart::Target(figures)] = known.as_slice() else { panic!("{known:?}") };
        assert_eq!(*figures, TargetFigures { pid, ..TargetFigures::default() });
        child.kill().expect("end the program");
        child.wait().expect("wait for the program");
        assert!(matches!(parts(Duration::ZERO).as_slice(), [SurveyPart::Target(figures)] if figures.ended));
    }
}
