//! Requests to the engine and its answers, which are those of `ingraft_api`, and what the engine is given besides: its configuration, and
//! the party that a request comes from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use ingraft_api::*;
use ingraft_model::Pid;
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

/// A part of the answer to [`Engine::survey`](crate::Engine::survey).
#[derive(Debug)]
pub enum SurveyPart {
    /// The figures of a target, before those of its measurements.
    Target(TargetFigures),
    /// A measurement that stays in the target, with its values.
    Kept(KeptValues),
    /// A measurement whose values could not be read.
    Unread(MeasurementId),
    /// A target that is changed at present, so that neither its figures nor its values are known.
    Busy(Pid),
}

/// Figures of a target that the engine has opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetFigures {
    /// The target.
    pub pid: Pid,
    /// Whether the target has ended. Its last values stay readable.
    pub ended: bool,
    /// Unix time in nanoseconds of the first insertion; 0 if there is no code in the target.
    pub since_ns: u64,
    /// Number of woven points.
    pub points: u32,
    /// Length of the code in the target's arenas in bytes.
    pub code_bytes: u64,
    /// Costs of the code; `None` if they are not known, because another engine wove the code, or if there is no code.
    pub costs: Option<Costs>,
    /// Total time for which this engine has held threads of the target.
    pub held: Duration,
    /// The longest time for which this engine has held threads of the target without a break.
    pub longest_hold: Duration,
    /// Number of measurements.
    pub measurements: usize,
    /// Number of measurements that stay without a client.
    pub kept: usize,
}

/// The values of a measurement that stays without a client.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptValues {
    /// The measurement.
    pub id: MeasurementId,
    /// The pairs.
    pub pairs: Arc<Vec<PairInfo>>,
    /// Values of the pairs, in their order.
    pub reading: Reading,
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
