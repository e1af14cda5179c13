//! End-to-end tests of `ingraftd`: its life, its callers, clients that know only reflection, crashes, and later daemons.

#![forbid(unsafe_code)]

mod asleep;
mod audit;
mod clients;
mod copies;
mod costs;
mod files;
mod generic;
mod handlers;
mod hostile;
mod life;
mod profiles;
mod prometheus;
mod reading;
mod returns;
mod sampling;
mod shared_points;
mod similar;
mod successors;

use std::path::Path;

use ingraft_testing::{Daemon, Tool};

/// Starts a daemon whose socket and state lie in this directory, with further arguments.
fn daemon(directory: &Path, arguments: &[&str]) -> Daemon {
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ingraftd")), directory, arguments)
}

/// Returns the command line as a client of a daemon.
fn client(daemon: &Daemon) -> Tool {
    daemon.client(ingraft_testing::sibling("ingraft"))
}
