//! Parts of the engine that a session uses.

use std::sync::Arc;

use crate::api::{ClockChoice, Kind};
use crate::program::images::ImageStore;
use crate::state_dir::StateDir;

use super::kind::Running;

/// Parts of the engine that a session uses.
#[derive(Clone)]
pub struct Context {
    /// Directory of journals and locks.
    pub state: StateDir,
    /// Cache of analysed images.
    pub images: Arc<ImageStore>,
    /// Name of the holder in `status`.
    pub program: String,
    /// Limit of the cost of a measurement whose request names none, in percent of one processor.
    pub max_overhead: f64,
    /// Clock of timers.
    pub clock: ClockChoice,
    /// Makes a measurement of a kind that has not begun.
    pub kind: fn(&Kind) -> Box<dyn Running>,
}
