//! The holds of a target, and the longest of them.

use std::time::{Duration, Instant};

use ingraft_model::HoldTime;

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

/// The holds of a target.
#[derive(Debug, Default)]
pub(crate) struct HoldRecord {
    pub(crate) total: Duration,
    /// The longest hold since it was last asked for.
    pub(crate) longest: HoldTime,
    /// The longest hold of all.
    pub(crate) record: Duration,
    /// The latest hold, merged with holds shortly before it: its length so far, and its end.
    pub(crate) last: Option<(HoldTime, Instant)>,
    /// Longest time for which one hold may last; `None` if there is no bound.
    pub(crate) bound: Option<Duration>,
}

impl HoldRecord {
    pub(crate) fn note(&mut self, hold: Hold) {
        let held = hold.ended.saturating_duration_since(hold.began);
        let waited = hold.waited.min(held);
        let piece = match self.last {
            Some((piece, ended)) if hold.began.saturating_duration_since(ended) < CLOSE => {
                HoldTime { held: piece.held + held, waited: piece.waited + waited }
            }
            _ => HoldTime { held, waited },
        };
        self.total += held;
        self.record = self.record.max(piece.held);
        if piece.held > self.longest.held {
            self.longest = piece;
        }
        self.last = Some((piece, hold.ended));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_that_follow_at_once_are_one_piece() {
        let begin = Instant::now();
        let at = |us| begin + Duration::from_micros(us);
        let mut holds = HoldRecord::default();
        for (from, to) in [(0, 300), (350, 450), (1_000, 1_350)] {
            holds.note(Hold { began: at(from), ended: at(to), waited: Duration::from_micros(to - from) / 4 });
        }
        let us = Duration::from_micros;
        assert_eq!(holds.longest, HoldTime { held: us(400), waited: us(100) });
        assert_eq!((holds.total, holds.record), (us(750), us(400)));
        holds.longest = HoldTime::default();
        holds.note(Hold { began: at(2_000), ended: at(2_010), waited: Duration::ZERO });
        assert_eq!((holds.longest.held, holds.record), (us(10), us(400)));
    }
}
