//! How a command ends: the documented exit codes, and errors of one line what and one line what to do.

use std::io;
use std::process::ExitCode;

/// The class of a failure; its number is the exit code (interface.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Failed while running.
    Failed = 1,
    /// Wrong usage or MDL.
    Usage = 2,
    /// No such target or function; an ambiguous name; nothing that can be measured.
    NotFound = 3,
    /// Not permitted, traced or held by another.
    Denied = 4,
    /// The target ended before the measurement could start.
    Gone = 5,
}

impl Kind {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// What went wrong and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    /// Its class.
    pub(crate) kind: Kind,
    /// A stable word, e.g. `no_such_process`; empty for failures of the command line's own.
    pub(crate) reason: String,
    /// One line what.
    pub(crate) what: String,
    /// One line what to do.
    pub(crate) hint: String,
    /// The process that it is about.
    pub(crate) pid: Option<i32>,
    /// The daemon that said so, when there are several.
    pub(crate) host: Option<String>,
}

impl Failure {
    /// A failure that is about no process.
    pub(crate) fn new(kind: Kind, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure { kind, reason: String::new(), what: what.into(), hint: hint.into(), pid: None, host: None }
    }

    /// Wrong usage.
    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Kind::Usage, what, hint)
    }

    /// Failed while running.
    pub(crate) fn failed(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure::new(Kind::Failed, what, hint)
    }
}

/// Why a command stops early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It failed.
    Failure(Failure),
    /// Failures that have been reported already; this is the exit code.
    Reported(Kind),
    /// Whoever read our output went away: nothing is wrong and nobody listens.
    ReaderGone,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failure(failure)
    }
}

impl Stop {
    /// The end of a write to the output that failed.
    pub(crate) fn from_output(error: &io::Error, name: &str) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Stop::ReaderGone;
        }
        Failure::failed(format!("cannot write to {name}: {error}"), "free some space or choose another file with -o")
            .into()
    }
}
