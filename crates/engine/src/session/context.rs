//! Surroundings of a session: the parts of the engine that it uses, and the listener to the end of its target.

use std::sync::Arc;

use crate::api::ClockChoice;
use crate::program::images::ImageStore;
use crate::state_dir::StateDir;

/// A listener to the end of a target.
pub type AtEnd = dyn Fn() + Send + Sync;

/// Parts of the engine that a session uses.
#[derive(Clone)]
pub struct Context {
    /// Journals and locks.
    pub state: StateDir,
    /// Images.
    pub images: Arc<ImageStore>,
    /// Name by which the holder is shown.
    pub program: String,
    /// Limit of the cost of a measurement that names none, in percent of one processor.
    pub max_overhead: f64,
    /// Clock of timers.
    pub clock: ClockChoice,
}
