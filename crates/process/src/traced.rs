//! Operations with a tracer: how long they hold the threads of a target, and how long they may.

use std::time::Duration;

use ingraft_model::HoldTime;

use crate::error::ProcessError;
use crate::target::{Target, lock};
use crate::tracer::{Tracer, with_tracer};

/// A bound of holds in force, see [`Target::bound_holds`]. When it is dropped, the former one is in force again.
#[derive(Debug)]
pub struct HoldBound<'a> {
    target: &'a Target,
    before: Option<Duration>,
}

impl Drop for HoldBound<'_> {
    fn drop(&mut self) {
        lock(&self.target.holds).bound = self.before;
    }
}

impl Target {
    /// Runs `work` with a tracer of this process, and records how long threads were held.
    pub(crate) fn trace<R: Send>(&self, work: impl FnOnce(&mut Tracer) -> R + Send) -> Result<R, ProcessError> {
        let bound = lock(&self.holds).bound;
        let (result, holds) = with_tracer(self.pid(), bound, work)?;
        let mut known = lock(&self.holds);
        holds.into_iter().for_each(|hold| known.note(hold));
        Ok(result)
    }

    /// The longest time for which threads were held without a break since the last call of this function. It runs from the interrupt of the
    /// first thread to the release of the last, over all operations, including those that borrowed a thread. Holds that follow each other
    /// at once count as one.
    pub fn take_longest_hold(&self) -> HoldTime {
        let mut holds = lock(&self.holds);
        holds.last = None;
        std::mem::take(&mut holds.longest)
    }

    /// Sets the longest time for which one hold may last, without the waits for a processor, until the returned value is dropped. `None`
    /// lifts the bound.
    ///
    /// Each stop has the bound for itself: one that borrows a thread, one that looks at all threads, one that writes the text. A stop is
    /// given up while it waits for threads, and at the latest before it changes anything: the first byte of text, program counter, or
    /// register of a borrowed thread. It is tried again for 15 s; then the operation fails with [`ProcessError::HoldTooLong`]. Two times are not
    /// foreseen: system calls that a borrowed thread makes, and the work of a visitor. Threads of a program that is being started are
    /// held without a bound, because nothing runs there.
    #[must_use = "the bound is in force as long as this lives"]
    pub fn bound_holds(&self, bound: Option<Duration>) -> HoldBound<'_> {
        HoldBound { target: self, before: std::mem::replace(&mut lock(&self.holds).bound, bound) }
    }

    /// The longest time for which threads were held without a break, as [`Target::take_longest_hold`] measures it, over the whole life of
    /// this value.
    pub fn longest_hold(&self) -> Duration {
        lock(&self.holds).record
    }

    /// Total time for which threads were held.
    pub fn time_held(&self) -> Duration {
        lock(&self.holds).total
    }
}
