//! The time stamp counter as a clock: whether it may be one here, and how long a tick is.

use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use ingraft_model::Scale;
use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// Below this the length of a tick is not known well enough: two readings of both clocks are some 50 ns apart.
const BASE: Duration = Duration::from_millis(20);
/// Binary digits of the scale: a tick may last two nanoseconds.
const DIGITS: u32 = 31;
/// Readings of which the quickest counts.
const TRIES: usize = 9;
/// The clock sources that the kernel trusts; it takes `tsc` out when the counters of the processors disagree.
const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Why ticks are no time here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockProblem {
    /// The rate changes with the processor's frequency.
    #[error("the processor's time stamp counter has no constant rate")]
    NotInvariant,
    /// The kernel has found the counters of different processors apart.
    #[error("the kernel does not trust the time stamp counter (it is none of its clock sources)")]
    NotTrusted,
}

/// The time stamp counter beside the kernel's monotonic clock.
#[derive(Debug)]
pub struct TickClock {
    begin: Reading,
    scale: OnceLock<Scale>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    ns: u64,
}

impl TickClock {
    /// Begins to compare, if ticks can be time on this machine.
    pub fn start() -> Result<Self, ClockProblem> {
        if !sys::has_invariant_ticks() {
            return Err(ClockProblem::NotInvariant);
        }
        // without that file nothing is known against it
        let sources = std::fs::read_to_string(Path::new(SOURCES));
        if sources.is_ok_and(|s| !s.split_whitespace().any(|s| s == "tsc")) {
            return Err(ClockProblem::NotTrusted);
        }
        Ok(TickClock { begin: Reading::take(), scale: OnceLock::new() })
    }

    /// The counter now, as a target reads it.
    pub fn ticks(&self) -> u64 {
        sys::ticks()
    }

    /// Ticks to nanoseconds, off by some millionths. Waits until both clocks have been compared for 20 ms. Always the same: a value that
    /// is read again must not have become less, nor the bounds of a histogram others.
    pub fn scale(&self) -> Scale {
        *self.scale.get_or_init(|| self.measure())
    }

    fn measure(&self) -> Scale {
        loop {
            let now = Reading::take();
            let ns = now.ns.saturating_sub(self.begin.ns);
            match BASE.checked_sub(Duration::from_nanos(ns)) {
                Some(rest) if !rest.is_zero() => thread::sleep(rest),
                _ => {
                    let ticks = now.ticks.wrapping_sub(self.begin.ticks).max(1);
                    let mult = (ns as f64 / ticks as f64 * f64::from(1u32 << DIGITS)).round();
                    return Scale { mult: mult as u32, shift: DIGITS };
                }
            }
        }
    }
}

impl Reading {
    /// Both clocks at once, as nearly as can be had.
    fn take() -> Self {
        let one = || {
            let before = sys::ticks();
            let time = clock_gettime(ClockId::Monotonic);
            let between = sys::ticks().wrapping_sub(before);
            let ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned();
            (between, Reading { ticks: before.wrapping_add(between / 2), ns })
        };
        let mut best = one();
        for _ in 1..TRIES {
            let next = one();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_time_by_one_scale() {
        let Ok(clock) = TickClock::start() else { return };
        let scale = clock.scale();
        let (first, begin) = (clock.ticks(), Reading::take());
        thread::sleep(Duration::from_millis(30));
        let (last, end) = (clock.ticks(), Reading::take());
        assert_eq!(clock.scale(), scale);
        let (measured, real) = (scale.apply(last - first) as f64, (end.ns - begin.ns) as f64);
        // what lies between the readings themselves, should the thread lose its processor there
        assert!((measured - real).abs() < 0.01 * real + 5e6, "{measured} {real}");
    }
}
