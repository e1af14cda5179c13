//! The clock of the timers. If the time stamp counter measures time, the clock is this counter and the length of its tick; otherwise it is
//! the kernel's monotonic clock.

use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use ingraft_model::Scale;
use memmap2::MmapOptions;
use rustix::time::{ClockId, clock_gettime};

use crate::perf;
use crate::sys;

/// Shortest time over which the length of a tick is measured: two readings of both clocks are some 50 ns apart.
const BASE: Duration = Duration::from_millis(20);
/// Number of fraction bits of the scale. It leaves room for a tick of up to two nanoseconds.
const DIGITS: u32 = 31;
/// Shortest sleep of the machine that matters. No machine sleeps for less, and on a busy machine two readings of clocks may be nearly as
/// far apart.
const SLEEP: Duration = Duration::from_millis(50);
/// Number of readings, of which the quickest is used.
const TRIES: usize = 9;
/// File with the name of the kernel's own clock. The name is not `tsc` if the counters of the processors disagree, or if the host of a
/// virtual machine may change their rate.
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Reason why the time stamp counter cannot serve as a clock on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockProblem {
    /// The counter's rate changes with the processor's frequency.
    #[error("the processor's time stamp counter has no constant rate")]
    NotInvariant,
    /// The kernel uses another clock.
    #[error("the kernel does not trust the time stamp counter (it goes by another clock itself)")]
    NotTrusted,
    /// The target has turned the counter off.
    #[error("the program has turned the time stamp counter off (PR_SET_TSC, seccomp)")]
    TurnedOff,
}

/// Choice of the clock for timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockChoice {
    /// The time stamp counter if it measures time on this machine, otherwise the kernel's monotonic clock.
    #[default]
    Auto,
    /// The time stamp counter; an error if it does not measure time on this machine.
    Tsc,
    /// The kernel's monotonic clock, read through the vDSO.
    Vdso,
}

/// Error for a word that is no clock's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no clock: auto, tsc or vdso")]
pub struct UnknownClock(String);

impl FromStr for ClockChoice {
    type Err = UnknownClock;

    fn from_str(text: &str) -> Result<Self, UnknownClock> {
        match text {
            "auto" => Ok(ClockChoice::Auto),
            "tsc" => Ok(ClockChoice::Tsc),
            "vdso" => Ok(ClockChoice::Vdso),
            other => Err(UnknownClock(other.to_owned())),
        }
    }
}

/// A clock as this process reads it.
#[derive(Clone, Debug)]
pub struct TickClock {
    source: TickSource,
    /// Total time for which the machine had been asleep when this clock was created.
    asleep: Duration,
}

#[derive(Clone, Debug)]
enum TickSource {
    /// The time stamp counter, with a first reading of it and of the kernel's monotonic clock.
    Counter { begin: TickReading, scale: OnceLock<Scale> },
    /// The kernel's monotonic clock in nanoseconds, with the reason why it is used; `None` if it was chosen.
    Monotonic(Option<ClockProblem>),
}

#[derive(Clone, Copy, Debug)]
struct TickReading {
    ticks: u64,
    ns: u64,
}

impl TickClock {
    /// Starts the chosen clock, if it works on this machine.
    pub fn start(choice: ClockChoice) -> Result<Self, ClockProblem> {
        match (choice, counts_time()) {
            (ClockChoice::Vdso, _) => Ok(TickClock::monotonic(None)),
            (ClockChoice::Auto, Err(problem)) => Ok(TickClock::monotonic(Some(problem))),
            (ClockChoice::Tsc, Err(problem)) => Err(problem),
            (ClockChoice::Auto | ClockChoice::Tsc, Ok(())) => Ok(TickClock::counter()),
        }
    }

    /// The time stamp counter, whether or not it measures time on this machine.
    pub fn counter() -> Self {
        TickClock {
            source: TickSource::Counter { begin: TickReading::take(), scale: OnceLock::new() },
            asleep: asleep(),
        }
    }

    /// The kernel's monotonic clock. `why` is the reason for not using the time stamp counter; `None` if this clock was chosen.
    pub fn monotonic(why: Option<ClockProblem>) -> Self {
        TickClock { source: TickSource::Monotonic(why), asleep: asleep() }
    }

    /// Whether the ticks of this clock are those of the time stamp counter.
    pub fn is_counter(&self) -> bool {
        matches!(self.source, TickSource::Counter { .. })
    }

    /// Reason why the ticks are not those of the time stamp counter; `None` if they are, or if the kernel's clock was chosen.
    pub fn problem(&self) -> Option<ClockProblem> {
        match self.source {
            TickSource::Counter { .. } => None,
            TickSource::Monotonic(why) => why,
        }
    }

    /// Returns a time after all loads before this call, and before all loads after it. So memory that other threads write is read in this
    /// order.
    pub fn now(&self) -> u64 {
        sys::loads_end();
        let now = self.ticks();
        sys::loads_end();
        now
    }

    /// Present time in ticks, from the clock that a target reads.
    pub fn ticks(&self) -> u64 {
        match self.source {
            TickSource::Counter { .. } => sys::ticks(),
            TickSource::Monotonic(_) => monotonic_ns(),
        }
    }

    /// Present time in ticks, and Unix time in nanoseconds at nearly the same moment.
    pub fn with_unix_time(&self) -> (u64, u64) {
        let one = || {
            let before = self.ticks();
            let unix = clock_ns(clock_gettime(ClockId::Realtime));
            let between = self.ticks().wrapping_sub(before);
            (between, (before.wrapping_add(between / 2), unix))
        };
        (0..TRIES).map(|_| one()).min().unwrap_or_default().1
    }

    /// Scale from ticks to nanoseconds. It has the kernel's own factors if the kernel publishes them. Otherwise both clocks are compared
    /// for 20 ms, and the scale is off by some millionths. The scale never changes, because a value must not decrease from one reading to
    /// the next, and the bounds of a histogram must stay the same.
    pub fn scale(&self) -> Scale {
        match &self.source {
            TickSource::Counter { begin, scale } => {
                *scale.get_or_init(|| kernels_scale().unwrap_or_else(|| begin.measure()))
            }
            TickSource::Monotonic(_) => Scale::ONE,
        }
    }

    /// Nanoseconds for which the machine has slept since this clock was created. The time stamp counter may have counted them or restarted
    /// at 0. The monotonic clock stands still during sleep, so for it this is always 0.
    pub fn missed_ns(&self) -> u64 {
        let slept = asleep().saturating_sub(self.asleep);
        let matters = self.is_counter() && slept >= SLEEP;
        if matters { u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX) } else { 0 }
    }
}

/// Checks that the time stamp counter measures time on this machine.
fn counts_time() -> Result<(), ClockProblem> {
    if !sys::has_invariant_ticks() {
        return Err(ClockProblem::NotInvariant);
    }
    // If the file cannot be read, the counter is trusted.
    let distrusts = std::fs::read_to_string(Path::new(SOURCE)).is_ok_and(|source| source.trim() != "tsc");
    if distrusts { Err(ClockProblem::NotTrusted) } else { Ok(()) }
}

/// Total time for which the machine has slept (suspend) since it was started.
fn asleep() -> Duration {
    // Time that passes between the two readings makes the result smaller, so take the largest.
    let once = || clock_ns(clock_gettime(ClockId::Boottime)).saturating_sub(monotonic_ns());
    Duration::from_nanos((0..TRIES).map(|_| once()).max().unwrap_or(0))
}

fn monotonic_ns() -> u64 {
    clock_ns(clock_gettime(ClockId::Monotonic))
}

fn clock_ns(time: rustix::time::Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Factors by which the kernel itself converts the counter to time. If the counter is the kernel's own clock, the page of any event has
/// them.
fn kernels_scale() -> Option<Scale> {
    let file = sys::perf_event_open_words(&perf::DUMMY, sys::own_tid()).ok()?;
    let page = MmapOptions::new().len(sys::EVENT_MAPPING).map_raw_read_only(&file).ok()?;
    let (mult, shift) = sys::tick_scale(&page)?;
    Some(Scale { mult, shift: shift.into() })
}

impl TickReading {
    /// Reads both clocks as nearly at the same time as possible.
    fn take() -> Self {
        let one = || {
            let before = sys::ticks();
            let ns = monotonic_ns();
            let between = sys::ticks().wrapping_sub(before);
            (between, TickReading { ticks: before.wrapping_add(between / 2), ns })
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

    /// Waits until at least 20 ms have passed since this reading, and returns the scale.
    fn measure(self) -> Scale {
        loop {
            let now = TickReading::take();
            let ns = now.ns.saturating_sub(self.ns);
            match BASE.checked_sub(Duration::from_nanos(ns)) {
                Some(rest) if !rest.is_zero() => thread::sleep(rest),
                _ => {
                    let ticks = now.ticks.wrapping_sub(self.ticks).max(1);
                    let mult = (ns as f64 / ticks as f64 * f64::from(1u32 << DIGITS)).round();
                    return Scale { mult: mult as u32, shift: DIGITS };
                }
            }
        }
    }
}

/// Processor time of the calling thread.
pub fn own_processor_time() -> Duration {
    Duration::from_nanos(clock_ns(clock_gettime(ClockId::ThreadCPUTime)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_time_by_one_scale() {
        for clock in [TickClock::start(ClockChoice::Tsc), TickClock::start(ClockChoice::Vdso)].into_iter().flatten() {
            let scale = clock.scale();
            let (first, begin) = (clock.ticks(), TickReading::take());
            thread::sleep(Duration::from_millis(30));
            let (last, end) = (clock.ticks(), TickReading::take());
            assert_eq!(clock.scale(), scale);
            let (measured, real) = (scale.apply(last - first) as f64, (end.ns - begin.ns) as f64);
            // The tolerance covers the case that the thread loses its processor between the readings themselves.
            assert!((measured - real).abs() < 0.01 * real + 5e6, "{measured} {real}");
        }
    }

    #[test]
    fn the_kernels_factors_are_those_that_are_measured() {
        let (Ok(()), Some(kernels)) = (counts_time(), kernels_scale()) else {
            println!("skipped: the kernel tells no factors here (its own clock is not the time stamp counter)");
            return;
        };
        // The ticks of a minute at 3 GHz.
        let ticks = 180_000_000_000;
        let compare = || {
            let begin = TickReading::take();
            thread::sleep(10 * BASE);
            let (own, told) = (begin.measure().apply(ticks) as f64, kernels.apply(ticks) as f64);
            (own / told - 1.0).abs()
        };
        let best = (0..5).map(|_| compare()).fold(f64::INFINITY, f64::min);
        // The kernel slews the monotonic clock by at most 500 millionths (adjtimex(2)), but not the factors.
        assert!(best < 600e-6, "{best}");
    }

    #[test]
    fn a_choice_is_a_word() {
        assert_eq!("vdso".parse(), Ok(ClockChoice::Vdso));
        assert_eq!("hpet".parse::<ClockChoice>(), Err(UnknownClock("hpet".to_owned())));
        assert!(!TickClock::start(ClockChoice::Vdso).expect("always there").is_counter());
        assert!(TickClock::start(ClockChoice::Auto).is_ok());
    }

    #[test]
    fn a_machine_that_runs_has_not_slept() {
        let mut clock = TickClock::counter();
        assert_eq!(clock.missed_ns(), 0);
        // Pretend that the machine has slept for a second since then.
        clock.asleep = match asleep().checked_sub(Duration::from_secs(1)) {
            Some(before) => before,
            None => return,
        };
        assert!(clock.missed_ns().abs_diff(1_000_000_000) < 100_000_000);
        let monotonic = TickClock { source: TickSource::Monotonic(None), asleep: clock.asleep };
        assert_eq!(monotonic.missed_ns(), 0);
    }
}
