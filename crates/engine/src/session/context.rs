//! Surroundings of a session: the parts of the engine that it uses, and the listener to the end of its target.

use std::sync::Arc;

use crate::api::ClockChoice;
use crate::program::images::ImageStore;
use crate::state_dir::StateDir;

/// What is done when a target has ended.
pub type AtEnd = dyn Fn() + Send + Sync;

/// What a session needs of its engine.
#[derive(Clone)]
pub struct Context {
    /// Journals and locks.
    pub state: StateDir,
    /// Images.
    pub images: Arc<ImageStore>,
    /// How the holder calls itself.
    pub program: String,
    /// What a measurement may cost that names no limit, in percent of one processor.
    pub max_overhead: f64,
    /// Which clock timers have.
    pub clock: ClockChoice,
}
