//! End-to-end tests of `ingraftd`: life, callers, clients that know only reflection, crashes and successors.

#![forbid(unsafe_code)]

mod asleep;
mod audit;
mod costs;
mod files;
mod generic;
mod hostile;
mod life;
mod reading;
mod returns;
mod shared_points;
mod similar;
mod successors;

use std::path::Path;

use ingraft_testing::{Daemon, Tool};

/// A daemon in a directory, and more arguments.
fn daemon(directory: &Path, arguments: &[&str]) -> Daemon {
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ingraftd")), directory, arguments)
}

/// The command line as a client of a daemon.
fn client(daemon: &Daemon) -> Tool {
    daemon.client(ingraft_testing::sibling("ingraft"))
}
