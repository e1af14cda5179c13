//! Start of programs that are measured from their first instruction on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_mdl::Library;
use ingraft_process::{Rights, StandardStreams, StartStage, Target, spawn};

use crate::api::{Enabled, LaunchRequest, MeasurementId};
use crate::error::{Error, Reason};
use crate::measure::request::{Missing, refuse_absent, refuse_absent_lines, resolve_patterns};
use crate::session::{Context, NewMeasurement, Session};
use crate::undertaking;

/// Longest time for which a thread of a started program waits for a library to be woven, if the request names none.
const LOADER_PATIENCE: Duration = Duration::from_secs(10);

/// Starts a program and measures it. The modules that it maps until it is loaded are woven before any of their code runs. A name that
/// nothing has by then ends the program, unless it belongs to a module that is not loaded; the engine waits for that module.
pub fn start(
    context: Context,
    id: MeasurementId,
    request: &LaunchRequest,
    library: &Arc<Library>,
    begin: Instant,
    progress: &dyn Fn(&str),
) -> Result<(Session, Enabled), Error> {
    let mut launch = Launch {
        context,
        id,
        request,
        library,
        begin,
        session: None,
        answer: Ok(None),
        lost: None,
        waiting: Vec::new(),
    };
    progress("starting the program");
    let streams = if request.inherit_streams { StandardStreams::Inherited } else { StandardStreams::Null };
    let current = undertaking::current();
    let spawned = spawn(&request.command, streams, |target, why| {
        if launch.answer.is_ok()
            && let Err(e) = undertaking::within(current.clone(), || launch.step(target, why))
        {
            end(target);
            launch.answer = Err(e);
        }
    });
    match (launch.answer?, launch.session, spawned) {
        (Some(mut enabled), Some(session), Ok(_)) => {
            enabled.warnings.extend(launch.lost);
            enabled.warnings.extend(launch.waiting);
            Ok((session, enabled))
        }
        (_, _, Err(e)) => {
            let reason = match e.is_gone() {
                true => Reason::TargetEnded,
                false => Reason::CannotStart,
            };
            Err(Error::new(reason, e.to_string(), e.hint()))
        }
        _ => {
            let what = "the program ended before it was loaded";
            Err(Error::new(Reason::TargetEnded, what, "start it by hand to see why"))
        }
    }
}

struct Launch<'a> {
    context: Context,
    id: MeasurementId,
    request: &'a LaunchRequest,
    library: &'a Arc<Library>,
    begin: Instant,
    session: Option<Session>,
    /// Answer about the part that is measured so far.
    answer: Result<Option<Enabled>, Error>,
    /// The warning about counts that were lost.
    lost: Option<String>,
    /// Warnings about the modules that are waited for.
    waiting: Vec<String>,
}

/// The answer about a program that has not begun: only the loader runs, so no call is in progress.
fn without_calls(enabled: Enabled) -> Enabled {
    Enabled { not_unwound: 0, ..enabled }
}

impl Launch<'_> {
    fn step(&mut self, target: &Arc<Target>, why: StartStage) -> Result<(), Error> {
        let session = match self.session.take() {
            Some(session) => session,
            None => Session::open(self.context.clone(), Arc::clone(target))?,
        };
        let session = self.session.insert(session);
        let mut begun = matches!(self.answer, Ok(Some(_)));
        if begun {
            if let Some(enabled) = session.grow(self.id, &|| true, self.begin)? {
                self.answer = Ok(Some(without_calls(enabled)));
            }
            if let Some(why) = session.must_yield() {
                // None of the library's code has run. From now on, only what the library permits is woven.
                session.detach()?;
                *session = Session::open(self.context.clone(), Arc::clone(target))?;
                let what = "what ran before it was mapped is not counted";
                self.answer = Ok(None);
                self.lost = Some(format!("{why}: {what}"));
                begun = false;
            }
        }
        if !begun {
            session.refresh()?;
            let enable = &self.request.enable;
            if why == StartStage::Begun && session.waits_for_libraries(enable) {
                return Ok(());
            }
            let new = NewMeasurement {
                id: self.id,
                rights: Rights::All,
                library: self.library,
                request: enable,
                missing: Missing::MayCome,
                begin: self.begin,
                progress: &|_| (),
            };
            match session.enable(&new) {
                Ok(enabled) => self.answer = Ok(Some(without_calls(enabled))),
                // The code that carries system calls may come with the C library; until then only the loader runs.
                Err(e) if e.reason == Reason::NoCarrier && why != StartStage::Loaded => {}
                Err(e) => return Err(e),
            }
        }
        if why == StartStage::Loaded {
            // All modules that the program names are mapped now, so a name that is missing stays missing.
            let enable = &self.request.enable;
            session.check_names(|modules| {
                resolve_patterns(modules, &enable.functions, Missing::ModulesMayCome)?;
                refuse_absent_lines(modules, enable)?;
                refuse_absent(modules, enable)
            })?;
            session.await_modules(self.id)?;
            self.waiting = session.awaiting(self.id);
            session.listen_to_loader(self.request.loader_patience.unwrap_or(LOADER_PATIENCE));
        }
        Ok(())
    }
}

/// Kills a program that the engine started and that has not run yet.
fn end(target: &Target) {
    if let Some(pid) = rustix::process::Pid::from_raw(target.pid().0) {
        // The program may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
