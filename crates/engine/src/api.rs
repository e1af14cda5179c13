//! Requests to the engine and its answers, which are those of `ingraft_api`, and what the engine is given besides: its configuration, and
//! the party that a request comes from.

use std::path::PathBuf;

pub use ingraft_api::*;
use ingraft_process::Rights;
pub use ingraft_process::{ClockChoice, UnknownClock, inherited};

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the journal, the locks and the cache. The engine does not start unless the directory is writable.
    pub state_dir: PathBuf,
    /// Name of the holder in `status`: `ingraft` or `ingraftd`.
    pub program: String,
    /// Limit of the cost of a measurement that names none of its own, in percent of one processor.
    pub max_overhead: f64,
    /// Clock of timers.
    pub clock: ClockChoice,
}

/// Limit of the cost of a measurement if none is configured, in percent of one processor.
pub const MAX_OVERHEAD: f64 = 5.0;

/// Party on whose behalf a request comes. The daemon checks callers with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The engine's own user, with all rights that the kernel grants the engine.
    Engine,
    /// A peer on a socket, with access only to targets that this user could trace itself without any capability (ptrace(2)).
    User {
        /// User id of the peer. Root is [`Caller::Engine`].
        uid: u32,
        /// Group id of the peer.
        gid: u32,
    },
}

impl Caller {
    /// Rights with which the engine opens and changes targets for this caller.
    pub fn rights(self) -> Rights {
        match self {
            Caller::Engine | Caller::User { uid: 0, .. } => Rights::All,
            Caller::User { uid, gid } => Rights::User { uid, gid },
        }
    }
}
