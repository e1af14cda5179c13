//! The end of a command: the documented exit codes, and errors of two lines, one for the problem and one with advice.

use std::io;
use std::process::ExitCode;

/// The class of a failure. Its number is the exit status, as `ingraft --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The command failed while it ran.
    Failed = 1,
    /// The usage or the MDL is wrong.
    Usage = 2,
    /// The target or function does not exist, a name is ambiguous, or nothing can be measured.
    NotFound = 3,
    /// The target may not be traced, or another program traces or holds it.
    Denied = 4,
    /// The target ended before the measurement could start.
    Gone = 5,
}

impl Kind {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// A failure: the problem, and advice about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    /// Class of the failure, which decides the exit code.
    pub(crate) kind: Kind,
    /// Reason as a stable word, e.g. `no_such_process`; empty for failures of the command line's own.
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
    pub(crate) fn new(kind: Kind, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (what, hint) = (what.into(), hint.into());
        Failure { kind, reason: String::new(), what, hint, pid: None, holder: None, host: None }
    }

    /// A failure by wrong usage.
    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Kind::Usage, what, hint)
    }

    /// A failure while the command ran.
    pub(crate) fn failed(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Kind::Failed, what, hint)
    }
}

/// Reason why a command stops early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command failed.
    Failure(Failure),
    /// Failures that have been reported already; this is the exit code.
    Reported(Kind),
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
