//! Limiter for log lines that an attacker can cause. It writes one line in each period, with the number of lines that were dropped before.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(5);

/// Decides whether a line is written.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// Writes a line, or only counts it. `write` gets the number of lines that were dropped since the last one.
    pub fn log(&self, write: impl FnOnce(u64)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.0.is_some_and(|last| now - last < PAUSE) {
            state.1 += 1;
            return;
        }
        let left_out = std::mem::take(&mut state.1);
        state.0 = Some(now);
        drop(state);
        write(left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lines_are_written() {
        let seldom = Seldom::default();
        let mut written = Vec::new();
        for _ in 0..100 {
            seldom.log(|left_out| written.push(left_out));
        }
        assert_eq!(written, [0]);
    }
}
