//! Sessions with targets: one driver per process, metric-focus pairs, plans, journal, sampling. Knows no gRPC and no terminal;
//! runs embedded in the command line and in the daemon. All calls block: call them from threads, not from tasks.

#![forbid(unsafe_code)]

pub mod api;
mod background;
mod calls;
mod catch_up;
mod cost;
mod engine;
pub mod error;
mod event_places;
mod exits;
mod foci;
mod ground;
mod gs_search;
mod images;
mod internal;
mod journal;
mod labels;
mod launch;
mod leftover;
mod libc_search;
mod lower;
mod modules;
mod names;
mod packages;
mod pattern;
mod refusals;
mod replaced;
mod request;
mod resolution;
mod restore;
mod session;
mod sites;
mod state_dir;
mod symbols;
mod text_pages;
mod values;
mod variables;
mod wall;
mod weaving;

pub use api::*;
pub use catch_up::Uncaught;
pub use engine::Engine;
pub use error::{Error, ErrorKind};
pub use ingraft_mdl::{Diagnostic, Severity};
pub use session::{AtEnd, now_ns};
