//! The gRPC services of the engine, and the daemon that serves them. The command line serves the same services on an in-memory channel
//! ([`embedded()`]), so that both use the engine in the same way.
//!
//! tokio's threads handle sockets and timers. Every call of the engine runs on a blocking thread, because the engine blocks.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

pub mod audit;
pub mod auth;
pub mod authority;
pub mod backlog;
pub mod call;
pub mod config;
pub mod connection;
pub mod core;
pub mod embedded;
pub mod failure;
pub mod joining;
pub mod keeper;
pub mod lease;
pub mod listen;
pub mod metrics_page;
pub mod neighbour;
pub mod quota;
pub mod reception;
pub mod recorder;
pub mod recording;
pub mod rpc;
pub mod run;
pub mod seldom;
pub mod state;
pub mod tls;
pub mod waiting;

pub use embedded::{Embedded, embedded};
pub use ingraft_engine::{ClockChoice, Config, Engine, Error, MAX_OVERHEAD, inherited, socket_path};
pub use listen::short;
