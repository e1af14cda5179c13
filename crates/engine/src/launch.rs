//! Programs that are started to be measured from their first instruction on.

use std::time::Instant;

use ingraft_mdl::Library;

use crate::api::{Enabled, LaunchRequest};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};

/// Starts a program and measures it.
pub fn launch(
    _engine: &Engine,
    _request: &LaunchRequest,
    _library: &Library,
    _begin: Instant,
    _progress: &dyn Fn(&str),
) -> Result<Enabled, Error> {
    Err(Error::new(ErrorKind::Usage, "no_launch", "programs cannot be started yet", "start it and name it with -p PID"))
}
