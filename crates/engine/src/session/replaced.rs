//! Explanation of requests that failed because the target ended, or executed another program, while the engine examined it.

use std::time::{Duration, Instant};

use ingraft_model::Pid;
use ingraft_process::{ProcessError, ProcessIdentity, Target};

use crate::api::Caller;
use crate::error::{Error, ErrorClass, Reason};

/// Longest time for which a process that has executed another program is watched, to find out whether it does so again.
const WATCH: Duration = Duration::from_millis(250);
/// Time between two looks at the process.
const LOOK: Duration = Duration::from_millis(1);

/// A process as it was when a request began.
pub(crate) struct Before {
    pid: Pid,
    caller: Caller,
    identity: Option<ProcessIdentity>,
    /// The program that the process ran; `None` if the process could not be opened.
    program: Option<Target>,
    since: Instant,
}

impl Before {
    /// Notes the program that a process runs. The process is not changed.
    pub(crate) fn of(pid: Pid, caller: Caller) -> Self {
        Before {
            pid,
            caller,
            identity: ProcessIdentity::of(pid).ok().filter(ProcessIdentity::is_alive),
            program: Target::open_for(pid, caller.rights()).ok(),
            since: Instant::now(),
        }
    }

    /// The error to report: the end or the replacement of the program if that explains the given error, otherwise the given error.
    pub(crate) fn explain(&self, e: Error) -> Error {
        if e.reason.class() == ErrorClass::Usage {
            return e;
        }
        if self.identity.is_some_and(|known| !known.is_alive()) {
            return Error::process(self.pid, ProcessError::Gone(self.pid));
        }
        let replaced = || self.program.as_ref().is_some_and(|program| self.is_replaced(program));
        if e.reason != Reason::TargetReplaced && !replaced() {
            return e;
        }
        match self.executes_again() {
            true => self.too_often(),
            false => Error::process(self.pid, ProcessError::Replaced(self.pid)),
        }
    }

    fn is_replaced(&self, program: &Target) -> bool {
        matches!(program.check(self.caller.rights()), Err(ProcessError::Replaced(_)))
    }

    /// Whether the process executes yet another program within `WATCH`.
    fn executes_again(&self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < WATCH {
            match Target::open_for(self.pid, self.caller.rights()) {
                Ok(program) => {
                    while begin.elapsed() < WATCH {
                        std::thread::sleep(LOOK);
                        if self.is_replaced(&program) {
                            return true;
                        }
                    }
                }
                Err(ProcessError::Replaced(_)) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    fn too_often(&self) -> Error {
        let within = self.since.elapsed().as_millis().max(1);
        let what = format!(
            "process {} executes other programs too often to be attached to: at least twice within {within} ms",
            self.pid
        );
        let hint = "start its command with `ingraft … -- COMMAND`, or measure its parent with `--follow fork,exec`";
        Error::new(Reason::TargetReplaced, what, hint).about(self.pid)
    }
}
