//! The end of a command: the documented exit codes, and errors of two lines, one for the problem and one with advice.

use std::io;
use std::process::ExitCode;

pub(crate) use ingraft_api::Exit;
use ingraft_api::Reason;

/// The exit code of a command that fails in this way.
pub(crate) fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit as u8)
}

/// A failure: the problem, and advice about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    /// Exit status of the command.
    pub(crate) exit: Exit,
    /// Word of the [`Reason`], also of one that this version does not know; empty for failures that have none.
    pub(crate) reason: String,
    /// Description of the failure in one line.
    pub(crate) what: String,
    /// Advice what to do, in one line.
    pub(crate) hint: String,
    /// Process that the failure is about.
    pub(crate) pid: Option<i32>,
    /// Process of the engine that holds the target, or of the tracer, if that is the failure and the process is known.
    pub(crate) holder: Option<i32>,
    /// Address of the daemon that reported the failure, if there are several daemons.
    pub(crate) host: Option<String>,
}

impl Failure {
    /// A failure that is about no process.
    pub(crate) fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (what, hint) = (what.into(), hint.into());
        Failure { exit, reason: String::new(), what, hint, pid: None, holder: None, host: None }
    }

    /// The same failure with a reason.
    pub(crate) fn because(self, reason: Reason) -> Self {
        Failure { reason: reason.word().to_owned(), ..self }
    }

    /// Whether an insertion that failed for this reason may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        Reason::of(&self.reason).is_some_and(Reason::may_pass)
    }

    /// A failure by wrong usage.
    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, what, hint)
    }

    /// A failure while the command ran.
    pub(crate) fn failed(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Exit::Failed, what, hint)
    }
}

/// The failure of an engine, without its address.
impl From<ingraft_wire::ProtocolFailure> for Failure {
    fn from(f: ingraft_wire::ProtocolFailure) -> Self {
        let (pid, holder) = (f.pid.map(|p| p.0), f.holder.map(|p| p.0));
        Failure { exit: f.class.exit(), reason: f.reason, what: f.what, hint: f.hint, pid, holder, host: None }
    }
}

/// Reason why a command stops early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command failed.
    Failure(Failure),
    /// Failures that have been reported already; this is the exit code.
    Reported(Exit),
    /// The reader of the output is gone, which is no error and needs no message.
    ReaderGone,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failure(failure)
    }
}

impl Stop {
    /// Converts a failed write to the output.
    pub(crate) fn from_output(error: &io::Error, name: &str) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Stop::ReaderGone;
        }
        Failure::failed(format!("cannot write to {name}: {error}"), "free some space or choose another file with -o")
            .into()
    }
}
