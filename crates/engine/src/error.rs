//! What can go wrong, sorted by who has to do what about it.

use ingraft_mdl::Diagnostic;
use ingraft_model::Pid;

/// The class of an error: the exit code of the command line and the status code of gRPC follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong (exit 2).
    Usage,
    /// No such target, function, metric; an ambiguous name; all refused (exit 3).
    NotFound,
    /// Not permitted, traced or held by another (exit 4).
    Denied,
    /// The target ended before the measurement could start (exit 5).
    Gone,
    /// Anything that fails while running (exit 1).
    Failed,
}

/// An error with one line what and one line what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Its class.
    pub kind: ErrorKind,
    /// A stable word for scripts and the wire, e.g. `no_such_process`.
    pub reason: &'static str,
    /// One line what.
    pub what: String,
    /// One line what to do.
    pub hint: String,
    /// The target, if there is one.
    pub pid: Option<Pid>,
    /// Diagnostics of MDL, if that is what is wrong.
    pub diagnostics: Vec<Diagnostic>,
}

impl Error {
    /// An error without target and diagnostics.
    pub fn new(kind: ErrorKind, reason: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error { kind, reason, what: what.into(), hint: hint.into(), pid: None, diagnostics: Vec::new() }
    }

    /// The same about a target.
    #[must_use]
    pub fn about(mut self, pid: Pid) -> Self {
        self.pid = Some(pid);
        self
    }
}
