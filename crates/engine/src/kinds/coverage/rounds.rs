//! The times of a coverage's rounds. Rounds are rarer while nothing new runs, and after a stop that took long, so that threads are held for
//! less than 1 % of the time.

use std::time::{Duration, Instant};

/// Shortest and longest pause between two rounds.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_millis(3200);
/// Number of times that the pause after a stop is longer than the stop.
const HOLD_SHARE: u32 = 100;
/// Number of times that the pause after a round is longer than the work of the engine in it.
const WORK_SHARE: u32 = 4;

/// The rounds of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Time of the next round; `None` before the first look.
    next: Option<Instant>,
    pause: Duration,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds { next: None, pause: SHORTEST }
    }
}

impl Rounds {
    /// Whether a round is due. The first look only begins the first pause.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        *self.next.get_or_insert(now + self.pause) <= now
    }

    /// Plans the next round, after one that took `work`, held threads for `held`, and has or has not removed probes.
    pub fn after(&mut self, news: bool, work: Duration, held: Duration) {
        self.pause = if news { SHORTEST } else { (self.pause * 2).min(LONGEST) };
        let pause = self.pause.max(held * HOLD_SHARE).max(work * WORK_SHARE);
        self.next = Some(Instant::now() + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_rare_while_nothing_new_runs() {
        let mut rounds = Rounds::default();
        assert!(!rounds.is_due());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            rounds.after(false, Duration::ZERO, Duration::ZERO);
            pauses.push(rounds.pause.as_millis());
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 3200, 3200]);
        rounds.after(true, Duration::ZERO, Duration::from_millis(20));
        assert_eq!(rounds.pause, SHORTEST);
        assert!(
            rounds.next.is_some_and(|next| next > Instant::now() + Duration::from_millis(1900)),
            "after a long stop"
        );
    }
}
