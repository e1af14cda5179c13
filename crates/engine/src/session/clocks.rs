//! Clocks of a session: Unix time, the wall clock of timers, and the processor time of the target's threads.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ingraft_model::{Tid, ValueUnit};
use ingraft_process::{ClockChoice, ClockProblem, Target, TickClock};
use rustc_hash::FxHashMap;

use crate::readings::values::Ruler;

/// Unix time in nanoseconds.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The clocks by which timers in a target run.
pub(super) struct Clocks {
    wall: Result<TickClock, ClockProblem>,
    /// The clock in place of `wall` for a target that has turned the time stamp counter off.
    instead: OnceLock<Result<TickClock, ClockProblem>>,
    /// Ticks of processor time per nanosecond, multiplied by 2^32; empty until it is measured.
    cpu_rate: OnceLock<u64>,
    /// Processor time in ticks at the latest look, for each thread whose timers run. For a thread that has ended, the kernel has no such
    /// value.
    cpu_seen: Mutex<FxHashMap<Tid, u64>>,
    /// Reading of the wall clock when the end of the target was noticed; all timers stood still from then on.
    stopped_at: OnceLock<u64>,
}

impl Clocks {
    /// Clocks with a new wall clock of this choice.
    pub fn start(choice: ClockChoice) -> Self {
        Clocks::new(TickClock::start(choice))
    }

    /// Clocks with a known wall clock. `cpu_rate` is the number of ticks of processor time per nanosecond, multiplied by 2^32, or 0 if it
    /// was not measured.
    pub fn resume(wall: TickClock, cpu_rate: u64) -> Self {
        let clocks = Clocks::new(Ok(wall));
        if cpu_rate != 0 {
            clocks.set_cpu_rate(cpu_rate);
        }
        clocks
    }

    fn new(wall: Result<TickClock, ClockProblem>) -> Self {
        let instead = OnceLock::new();
        Clocks { wall, instead, cpu_rate: OnceLock::new(), cpu_seen: Mutex::default(), stopped_at: OnceLock::new() }
    }

    /// The wall clock, or the reason why there is none.
    pub fn wall(&self) -> Result<&TickClock, &ClockProblem> {
        self.instead.get().unwrap_or(&self.wall).as_ref()
    }

    /// Gives the time stamp counter up, because the target cannot read it. If `choice` demands the counter, there is no clock from then on.
    pub fn give_counter_up(&self, choice: ClockChoice) {
        if self.wall().is_ok_and(TickClock::is_counter) {
            let problem = ClockProblem::TurnedOff;
            self.instead.get_or_init(|| match choice {
                ClockChoice::Tsc => Err(problem),
                ClockChoice::Auto | ClockChoice::Vdso => Ok(TickClock::monotonic(Some(problem))),
            });
        }
    }

    /// Sets the ticks of processor time per nanosecond, multiplied by 2^32. Later calls change nothing.
    pub fn set_cpu_rate(&self, rate: u64) {
        self.cpu_rate.get_or_init(|| rate);
    }

    /// Reading of the timers' wall clock, which stands still once the target has ended; 0 if there is no clock.
    pub fn now(&self) -> u64 {
        let now = || self.wall().map_or(0, TickClock::now);
        self.stopped_at.get().copied().unwrap_or_else(now)
    }

    /// Whether the wall clock of the timers stands still.
    pub fn is_stopped(&self) -> bool {
        self.stopped_at.get().is_some()
    }

    /// Stops the wall clock of the timers. No reader may run at the same time.
    pub fn stop(&self) {
        let _ = self.stopped_at.set(self.now());
    }

    /// Time in nanoseconds that the machine has slept since the wall clock began, if timers may have lost it; 0 without a clock.
    pub fn slept_ns(&self) -> u64 {
        self.wall().map_or(0, TickClock::missed_ns)
    }

    /// Processor time of a thread of the target in ticks, as the target's code measures it; the latest known value if the thread has ended.
    pub fn cpu_ticks(&self, target: &Target, tid: Tid) -> u64 {
        let mut seen = self.cpu_seen();
        // a thread of a fork child has a number of its own, which is tried next
        let ns = target.thread_cpu_ns(tid).or_else(|| target.child_cpu_ns(tid));
        let Some(ns) = ns else { return seen.get(&tid).copied().unwrap_or(0) };
        let ticks = self.ticks_of(ns);
        seen.insert(tid, ticks);
        ticks
    }

    /// Converts nanoseconds of processor time to ticks.
    pub fn ticks_of(&self, ns: u64) -> u64 {
        let rate = self.cpu_rate.get().copied().unwrap_or(0);
        u64::try_from((u128::from(ns) * u128::from(rate)) >> 32).unwrap_or(0)
    }

    /// Processor time in ticks of each thread at the latest look.
    pub fn cpu_seen(&self) -> MutexGuard<'_, FxHashMap<Tid, u64>> {
        self.cpu_seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ruler by which values in a unit are read now.
    pub fn ruler<'a>(&self, unit: ValueUnit, now: &'a dyn Fn() -> u64, cpu: &'a dyn Fn(Tid) -> u64) -> Ruler<'a> {
        match (unit, self.wall()) {
            (ValueUnit::Ticks, Ok(clock)) => Ruler { scale: clock.scale(), now, cpu },
            // without a clock, no value is recorded in ticks
            _ => Ruler::PLAIN,
        }
    }
}
