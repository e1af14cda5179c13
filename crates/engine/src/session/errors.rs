//! Errors that several files of a session give.

use ingraft_model::Pid;

use crate::api::MeasurementId;
use crate::error::{Error, ErrorKind};

/// The reason of [`over`].
pub const OVER: &str = "session_over";

/// The session has ended between its being found and its being asked: another one is to be opened.
pub(super) fn over(pid: Pid) -> Error {
    Error::new(ErrorKind::Failed, OVER, "a removal has just ended", "try again").about(pid)
}

/// The engine is on its way out.
pub fn ending(pid: Pid) -> Error {
    Error::new(ErrorKind::Failed, "ending", "the engine is ending", "start it again").about(pid)
}

pub(super) fn journal_error(pid: Pid, e: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::Failed,
        "journal",
        format!("the journal cannot be written: {e}"),
        "nothing was changed; make room in the state directory",
    )
    .about(pid)
}

pub(super) fn no_measurement(id: MeasurementId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "no_such_measurement",
        format!("no measurement {}", id.0),
        "`ingraft status` lists them",
    )
}
