//! The thread `watch` of a session: it notices the end of the target, and looks for threads that have ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_model::Tid;
use ingraft_process::ExitStatus;

use crate::api::Ended;

use super::driver::Session;
use super::end::AtEnd;
use super::events::EventCounting;

/// Time between two looks for ended threads while there are timers, if threads begin and end.
const LOOK: Duration = Duration::from_millis(5);
/// Time between two looks for ended threads while there are timers, if the threads stay the same.
const LOOK_RARELY: Duration = Duration::from_millis(20);
/// Time between two rounds in which buffers that fill fast are emptied.
const EMPTY: Duration = Duration::from_millis(20);
/// Divisor of the time for these looks: they take at most this fraction of a processor.
const LOOK_SHARE: u32 = 100;

impl Session {
    /// Whether the end of the target, or of its program, was noticed.
    pub fn has_ended(&self) -> bool {
        self.end.is_known()
    }

    /// Adds a listener that is called as soon as the end of the target is noticed.
    pub fn at_end(&self, tell: &Arc<AtEnd>) {
        self.end.add_listener(tell);
    }

    fn note_end(&self, ended: Ended) {
        self.stop_the_clock();
        self.end.note(ended);
    }

    /// Stops the clock of the timers if the target has ended. No reader runs meanwhile, so that no later reading is lower than an earlier
    /// one.
    pub(super) fn stop_the_clock(&self) {
        if !self.clocks.is_stopped() {
            let _nobody_reads = self.shared_mut();
            self.clocks.stop();
        }
    }

    /// Waits up to `at_most` for the end of the target, and does the periodic work. Returns false if the target is gone.
    pub fn watch(&self, at_most: Duration) -> bool {
        if self.ends_within(at_most) {
            self.stop_the_clock();
            // as long as the exit status was not fetched, the kernel still has the processor time of the main thread
            self.clocks.cpu_ticks(&self.target, Tid(self.pid().0));
        }
        if let Some(status) = self.target.wait_exit(Duration::ZERO) {
            let (status, signal) = match status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(signal) => (None, Some(signal)),
                ExitStatus::Unknown => (None, None),
            };
            self.note_end(Ended { status, signal, exec: false });
            return false;
        }
        if !self.target.is_same_program() {
            self.note_end(Ended { status: None, signal: None, exec: true });
            return false;
        }
        self.revoke();
        self.retire_ended_threads();
        self.follow_events();
        true
    }

    /// Waits for the end of the target. Meanwhile looks for ended threads if timers may run in them, and empties buffers that fill fast.
    fn ends_within(&self, at_most: Duration) -> bool {
        let mut pause = self.look_pause();
        let mut now = Instant::now();
        let end = now + at_most;
        loop {
            let left = end.saturating_duration_since(now);
            let (wall, cpu) = self.timers();
            let fills = self.shared().buffers().fill_fast();
            let wait = if wall || cpu { left.min(*pause) } else { left };
            if self.target.ends_within(if fills { wait.min(EMPTY) } else { wait }) {
                return true;
            }
            if fills {
                self.shared_mut().empty_buffers(self.clocks.wall().ok());
            }
            let begin = Instant::now();
            if begin >= end {
                return false;
            }
            // if only wall timers run, living threads need not be asked
            let misses = self.misses_threads();
            if cpu || misses {
                self.retire_ended_threads();
            }
            now = Instant::now();
            let least = if misses { LOOK } else { (*pause * 2).clamp(LOOK, LOOK_RARELY) };
            *pause = ((now - begin) * LOOK_SHARE).clamp(least, at_most.max(least));
        }
    }

    /// Looks for threads that have begun or ended. Does nothing if the session is being changed; the next call looks then.
    pub(super) fn follow_events(&self) {
        let counting: Vec<EventCounting> = match self.try_control() {
            Ok(control) => control.measurements.values().flat_map(|m| m.views.counting()).cloned().collect(),
            Err(_) => return,
        };
        for counting in counting {
            counting.follow(&self.target);
        }
    }
}
