//! Sessions with targets: one driver for each process, metric-focus pairs, plans, journal, sampling. The crate knows no gRPC and no
//! terminal; it runs embedded in the command line and in the daemon. All calls block, so they must be made from threads, not from tasks.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

pub mod api;
mod background;

pub mod error;
mod kinds;
mod measure;
mod names;
mod pairs;
mod patience;
mod program;
mod readings;
mod recovery;
mod requests;
mod session;
mod state_dir;
mod undertaking;
mod weaving;

pub use api::*;
pub use error::Error;
pub use ingraft_mdl::{Diagnostic, Severity};
pub use requests::{Engine, Sampling};
pub use session::{AtEnd, now_ns};
pub use state_dir::socket_path;
pub use undertaking::{StepProgress, Undertaking};
