//! Programs that are started to be measured from their first instruction on.

use std::sync::Arc;
use std::time::Instant;

use ingraft_mdl::Library;
use ingraft_process::{Start, Target, spawn};

use crate::api::{Enabled, LaunchRequest, MeasurementId};
use crate::error::{Error, ErrorKind};
use crate::request::{Missing, resolve_patterns};
use crate::session::{Context, Session};

/// Starts a program and measures it. Whatever it maps until it is loaded is woven before any of it runs; names that nothing has by
/// then end it, as nothing that was asked for could be told.
pub fn start(
    context: Context,
    id: MeasurementId,
    request: &LaunchRequest,
    library: &Arc<Library>,
    begin: Instant,
    progress: &dyn Fn(&str),
) -> Result<(Session, Enabled), Error> {
    let mut launch = Launch { context, id, request, library, begin, session: None, outcome: None };
    progress("starting the program");
    let spawned = spawn(&request.command, |target, why| {
        if !matches!(launch.outcome, Some(Err(_))) {
            let step = launch.step(target, why);
            if step.is_err() {
                end(target);
            }
            launch.outcome = Some(step);
        }
    });
    match (launch.outcome, launch.session, spawned) {
        (Some(Ok(enabled)), Some(session), Ok(_)) => Ok((session, enabled)),
        (Some(Err(e)), ..) => Err(e),
        (_, _, Err(e)) => Err(Error::new(
            if e.is_gone() { ErrorKind::Gone } else { ErrorKind::NotFound },
            if e.is_gone() { "target_ended" } else { "cannot_start" },
            e.to_string(),
            e.hint(),
        )),
        _ => Err(Error::new(
            ErrorKind::Gone,
            "target_ended",
            "the program ended before it was loaded",
            "start it by hand to see why",
        )),
    }
}

struct Launch<'a> {
    context: Context,
    id: MeasurementId,
    request: &'a LaunchRequest,
    library: &'a Arc<Library>,
    begin: Instant,
    session: Option<Session>,
    outcome: Option<Result<Enabled, Error>>,
}

impl Launch<'_> {
    fn step(&mut self, target: &Arc<Target>, why: Start) -> Result<Enabled, Error> {
        let enabled = match self.session.take() {
            None => {
                let session = Session::open(self.context.clone(), Arc::clone(target))?;
                let enable = &self.request.enable;
                let enabled = session.enable(self.id, self.library, enable, Missing::MayCome, self.begin, &|_| ());
                self.session = Some(session);
                enabled?
            }
            Some(session) => {
                let grown = session.grow(self.id, true, self.begin);
                self.session = Some(session);
                match (grown?, self.outcome.take()) {
                    (Some(enabled), _) | (None, Some(Ok(enabled))) => enabled,
                    (None, _) => {
                        return Err(Error::new(
                            ErrorKind::Failed,
                            "launch",
                            "the measurement was lost",
                            "this is a defect of ingraft",
                        ));
                    }
                }
            }
        };
        if why == Start::Loaded
            && let Some(session) = &self.session
        {
            // Now everything is there that the program names: what is missing is missing.
            session.check_names(|modules| {
                resolve_patterns(modules, &self.request.enable.functions, Missing::Fails).map(drop)
            })?;
        }
        Ok(enabled)
    }
}

/// Ends a program that we started and that has not begun yet.
fn end(target: &Target) {
    if let Some(pid) = rustix::process::Pid::from_raw(target.pid().0) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
