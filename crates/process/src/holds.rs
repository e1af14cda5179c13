//! The time for which the threads of a target are held.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::target::{Target, lock};
use crate::tracer::{Tracer, with_tracer};

/// Two holds with less than this time between them count as one: on a busy machine a released thread gets no processor so soon.
const CLOSE: Duration = Duration::from_micros(100);

/// One hold: from the interrupt of the first thread to the release of the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    /// Part of the hold in which it made no progress for lack of a processor.
    pub(crate) waited: Duration,
}

/// Length of a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HoldTime {
    /// Time from the interrupt of the first thread to the release of the last.
    pub held: Duration,
    /// Part of it in which the thread that the engine waited for, or the engine itself, was ready to run and had no processor.
    pub waited: Duration,
}

/// The holds of a target.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    total: Duration,
    longest: HoldTime,
    /// The latest hold, merged with holds shortly before it: its length so far, and its end.
    last: Option<(HoldTime, Instant)>,
    /// Longest time for which one hold may last; `None` if there is no bound.
    pub(crate) bound: Option<Duration>,
}

/// A bound of holds in force, see [`Target::bound_holds`]. When it is dropped, the former one is in force again.
#[derive(Debug)]
pub struct Bounded<'a> {
    target: &'a Target,
    before: Option<Duration>,
}

impl Drop for Bounded<'_> {
    fn drop(&mut self) {
        lock(&self.target.holds).bound = self.before;
    }
}

impl Holds {
    fn note(&mut self, hold: Hold) {
        let held = hold.ended.saturating_duration_since(hold.began);
        let waited = hold.waited.min(held);
        let piece = match self.last {
            Some((piece, ended)) if hold.began.saturating_duration_since(ended) < CLOSE => {
                HoldTime { held: piece.held + held, waited: piece.waited + waited }
            }
            _ => HoldTime { held, waited },
        };
        self.total += held;
        if piece.held > self.longest.held {
            self.longest = piece;
        }
        self.last = Some((piece, hold.ended));
    }
}

impl Target {
    /// Runs `work` with a tracer of this process, and records how long threads were held.
    pub(crate) fn trace<R: Send>(&self, work: impl FnOnce(&mut Tracer) -> R + Send) -> Result<R, Error> {
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
    /// register of a borrowed thread. It is tried again for 15 s; then the operation fails with [`Error::HoldTooLong`]. Two times are not
    /// foreseen: system calls that a borrowed thread makes, and the work of a visitor. Threads of a program that is being started are
    /// held without a bound, because nothing runs there.
    #[must_use = "the bound is in force as long as this lives"]
    pub fn bound_holds(&self, bound: Option<Duration>) -> Bounded<'_> {
        Bounded { target: self, before: std::mem::replace(&mut lock(&self.holds).bound, bound) }
    }

    /// Total time for which threads were held.
    pub fn time_held(&self) -> Duration {
        lock(&self.holds).total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_that_follow_at_once_are_one_piece() {
        let begin = Instant::now();
        let at = |us| begin + Duration::from_micros(us);
        let mut holds = Holds::default();
        for (from, to) in [(0, 300), (350, 450), (1_000, 1_350)] {
            holds.note(Hold { began: at(from), ended: at(to), waited: Duration::from_micros(to - from) / 4 });
        }
        let us = Duration::from_micros;
        assert_eq!(holds.longest, HoldTime { held: us(400), waited: us(100) });
        assert_eq!(holds.total, Duration::from_micros(750));
    }
}
