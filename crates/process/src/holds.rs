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
}

/// The holds of a target.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    total: Duration,
    longest: Duration,
    /// The latest hold, merged with holds shortly before it: its length so far, and its end.
    last: Option<(Duration, Instant)>,
}

impl Holds {
    fn note(&mut self, hold: Hold) {
        let time = hold.ended.saturating_duration_since(hold.began);
        let piece = match self.last {
            Some((piece, ended)) if hold.began.saturating_duration_since(ended) < CLOSE => piece + time,
            _ => time,
        };
        self.total += time;
        self.longest = self.longest.max(piece);
        self.last = Some((piece, hold.ended));
    }
}

impl Target {
    /// Runs `work` with a tracer of this process, and records how long threads were held.
    pub(crate) fn trace<R: Send>(&self, work: impl FnOnce(&mut Tracer) -> R + Send) -> Result<R, Error> {
        let (result, holds) = with_tracer(self.pid(), work)?;
        let mut known = lock(&self.holds);
        holds.into_iter().for_each(|hold| known.note(hold));
        Ok(result)
    }

    /// The longest time for which threads were held without a break since the last call of this function. It runs from the interrupt of the
    /// first thread to the release of the last, over all operations, including those that borrowed a thread. Holds that follow each other
    /// at once count as one.
    pub fn take_longest_hold(&self) -> Duration {
        let mut holds = lock(&self.holds);
        holds.last = None;
        std::mem::take(&mut holds.longest)
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
            holds.note(Hold { began: at(from), ended: at(to) });
        }
        assert_eq!(holds.longest, Duration::from_micros(400));
        assert_eq!(holds.total, Duration::from_micros(750));
    }
}
