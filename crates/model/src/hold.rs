//! The time for which the threads of a target are held.

use std::time::Duration;

/// Length of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HoldTime {
    /// Time from the interrupt of the first thread to the release of the last.
    pub held: Duration,
    /// Part of it in which the thread that the engine waited for, or the engine itself, was ready to run and had no processor.
    pub waited: Duration,
}
