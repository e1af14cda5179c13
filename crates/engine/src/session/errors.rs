//! Errors that several files of a session return.

use ingraft_model::Pid;

use crate::api::MeasurementId;
use crate::error::{Error, Reason};

/// The error if the session has ended between its look-up and the request; the caller must open another one.
pub(super) fn over(pid: Pid) -> Error {
    Error::new(Reason::SessionOver, "a removal has just ended", "try again").about(pid)
}

/// The error if the engine is ending.
pub fn ending(pid: Pid) -> Error {
    Error::new(Reason::Ending, "the engine is ending", "start it again").about(pid)
}

pub(super) fn journal_error(pid: Pid, e: &std::io::Error) -> Error {
    Error::new(Reason::Journal, format!("the journal cannot be written: {e}"), "make room in the state directory")
        .about(pid)
}

pub(super) fn no_measurement(id: MeasurementId) -> Error {
    Error::new(Reason::NoSuchMeasurement, format!("no measurement {}", id.0), "`ingraft status` lists them")
}
