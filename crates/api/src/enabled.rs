//! Answers to requests for measurements.

use std::sync::Arc;
use std::time::Duration;

use ingraft_model::{HoldTime, Pid};

use crate::{PairInfo, RefusedFunction};

/// Number of a measurement (one [`EnableRequest`](crate::EnableRequest) that succeeded) in its engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeasurementId(pub u64);

/// Answer to an [`EnableRequest`](crate::EnableRequest).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enabled {
    /// Id of the measurement.
    pub id: MeasurementId,
    /// The target.
    pub pid: Pid,
    /// Process id of the parent at the insertion; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Arguments at the insertion, separated by blanks, or the text that the process has written over them, cut to 256 bytes.
    pub title: String,
    /// Whether this was the first measurement in the target, so that it attached the engine.
    pub attached: bool,
    /// Number of threads of the target at the stop.
    pub threads: u32,
    /// Number of images mapped in the target.
    pub modules: u32,
    /// Number of functions known in the images that were analysed.
    pub functions: u32,
    /// Number of points that this request wove.
    pub points: u32,
    /// Unix time in nanoseconds at the end of the insertion.
    pub since_ns: u64,
    /// Time from the start of the request to the last springboard.
    pub attach_time: Duration,
    /// The longest time that any thread was held without interruption.
    pub stopped: HoldTime,
    /// Pairs of the measurement, in the order of its values.
    pub pairs: Arc<Vec<PairInfo>>,
    /// Matches of `functions` that are not measured.
    pub refused: Vec<RefusedFunction>,
    /// Number of calls in progress at the insertion whose flags, timers and other states are as if the code had been there when the calls
    /// began.
    pub caught_up: u64,
    /// Number of threads whose stacks could not be unwound to the end. Their calls beyond that are unseen.
    pub not_unwound: u32,
    /// Warnings, one line each.
    pub warnings: Vec<String>,
}
