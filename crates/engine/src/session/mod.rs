//! A session with one target: its measurements, and all state that they need.
//!
//! The thread that holds the lock of `control` is the driver. It is a thread that serves a request of a client, or the thread `watch`, which
//! looks for the end of the target, ended threads, costs and new libraries, about ten times a second. Values are read under the lock of
//! `shared` alone, so a reader never waits for a stop.
//!
//! ```text
//! (nothing) --enable--> attached --enable/disable--> attached --last disable, detach--> (nothing)
//!                           \-- the target ends or starts another program --> ended: values stay until they are fetched
//! ```

mod adopt;
mod attach;
mod births;
mod buffers;
mod children;
mod clocks;
mod context;
mod control;
mod cost;
mod costs;
mod disturbances;
mod drain;
mod driver;
mod enable;
mod end;
mod errors;
mod events;
mod exit_point;
mod family;
mod findings;
mod follow;
mod frozen;
mod generated;
mod handlers;
mod inquiries;
mod insert;
mod insertion_stop;
mod internals;
mod intruders;
mod kind;
mod last_reading;
pub(crate) mod launch;
mod left;
mod listen;
mod loader;
mod locked;
mod looks;
mod measurement;
mod observe;
mod read;
mod refusals;
mod remains;
mod remove;
pub(crate) mod replaced;
mod rewritten;
mod rights;
mod roster;
mod rounds;
mod shared;
mod staged;
mod survey;
mod threads;
mod unfinished;
mod view;
pub mod warnings;
mod watch;

pub(crate) use self::buffers::{Drained, LastRecords, NewBuffers, RecordContexts, Records, values_in};
pub use self::clocks::now_ns;
pub use self::context::Context;
pub use self::driver::Session;
pub(crate) use self::enable::NewMeasurement;
pub use self::end::AtEnd;
pub(crate) use self::errors::ending;
pub(crate) use self::events::refused as event_refused;
pub(crate) use self::kind::{InsertedPairs, KindRequest, Occasion, Running};
pub(crate) use self::locked::Locked;
