//! The bound of holds: the time for which one step of an insertion may hold the threads of a target. A hold that has become too long is given
//! up before anything was changed, and tried again. Removals have no bound.

use std::thread;
use std::time::{Duration, Instant};

use ingraft_model::{Pid, Tid};

use crate::procfs::{self, SchedulerTimes};
use crate::sys;

/// Time for which a step is tried again after its hold was given up.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause between two tries: the first one, and the longest. The target runs during the pauses.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time to repair a thread's system call and to release the thread.
const RELEASE: Duration = Duration::from_micros(4);
/// Time to move a program counter.
const MOVE: Duration = Duration::from_micros(3);
/// Time to write adjacent pages of text.
const WRITE: Duration = Duration::from_micros(10);

/// Figures of a hold at the moment at which it is continued or given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HoldFigures {
    /// Time since the first thread was interrupted.
    pub(crate) held: Duration,
    /// Part of `held` in which the hold made no progress for lack of a processor.
    pub(crate) waited: Duration,
    /// Expected time to the release of the last thread.
    pub(crate) rest: Duration,
}

impl HoldFigures {
    /// Length of the whole hold, without the waits for a processor.
    pub(crate) fn length(self) -> Duration {
        self.held.saturating_sub(self.waited) + self.rest
    }

    /// Whether the hold would be longer than `bound`.
    pub(crate) fn exceed(self, bound: Duration) -> bool {
        self.length() > bound
    }
}

/// Expected time from the decision to the release of the last thread. The work of a visitor is not part of it.
pub(crate) fn rest(threads: usize, moves: usize, writes: usize) -> Duration {
    let times = |time: Duration, n: usize| time.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
    times(RELEASE, threads) + times(MOVE, moves) + times(WRITE, writes)
}

/// Part of a wait for a thread that passed for lack of a processor. `elapsed` is the length of the wait. `delayed` is the time for which
/// the thread was ready to run and did not; `own` is this time of the tracer. Both may overlap, so the sum is at most `elapsed`.
fn starved(elapsed: Duration, delayed: Duration, own: Duration) -> Duration {
    elapsed.min(delayed + own)
}

/// Accounts of the waits for a processor in one hold.
///
/// The tracer waits for one thread at a time, so its waits do not overlap, and their sum is time of the hold. For each of them, the kernel
/// tells how long the thread was ready to run without a processor (schedstat). Waits of other threads in the same time are not added.
/// The tracer's own time without a processor counts as well. A wait of a few microseconds is not looked at.
#[derive(Debug)]
pub(crate) struct ProcessorWaits {
    total: Duration,
    /// Time for which the tracer had been without a processor at the last look.
    own: Duration,
    open: Option<ThreadWait>,
}

/// A wait for a thread that has not stopped yet.
#[derive(Debug)]
struct ThreadWait {
    tid: Tid,
    since: Instant,
    before: SchedulerTimes,
    own: Duration,
}

impl ProcessorWaits {
    /// Begins the accounts of a hold.
    pub(crate) fn begin() -> Self {
        ProcessorWaits { total: Duration::ZERO, own: own_delay(), open: None }
    }

    /// Begins the accounts again, because no thread was held so far. The kernel is asked only if waits were noted.
    pub(crate) fn restart(&mut self) {
        if self.open.is_some() || self.total != Duration::ZERO {
            *self = ProcessorWaits::begin();
        }
    }

    /// Notes that the tracer waits for this thread.
    pub(crate) fn open(&mut self, pid: Pid, tid: Tid) {
        if self.open.as_ref().is_some_and(|wait| wait.tid == tid) {
            return;
        }
        self.close(pid);
        let own = own_delay();
        self.total += own.saturating_sub(self.own);
        self.own = own;
        let before = procfs::schedule(pid, tid).unwrap_or_default();
        self.open = Some(ThreadWait { tid, since: Instant::now(), before, own });
    }

    /// Notes that the tracer no longer waits for a thread.
    pub(crate) fn close(&mut self, pid: Pid) {
        if let Some(wait) = self.open.take() {
            self.own = own_delay();
            self.total += wait.starved(pid, self.own);
        }
    }

    /// Time without progress so far, the present wait included.
    pub(crate) fn total(&self, pid: Pid) -> Duration {
        let own = own_delay();
        self.total
            + match &self.open {
                Some(wait) => wait.starved(pid, own),
                None => own.saturating_sub(self.own),
            }
    }
}

impl ThreadWait {
    fn starved(&self, pid: Pid, own: Duration) -> Duration {
        let elapsed = self.since.elapsed();
        // A thread that has ended did not wait for a processor at last.
        let now = procfs::schedule(pid, self.tid).unwrap_or(self.before);
        let ran = now.ran.saturating_sub(self.before.ran);
        // The kernel adds a delay when it ends, so that of a thread that still waits is all of the time in which the thread did not run.
        let is_ready = procfs::thread_stat(self.tid).is_some_and(|stat| stat.state == b'R');
        let delayed = now.delayed.saturating_sub(self.before.delayed);
        let delayed = if is_ready { elapsed.saturating_sub(ran).max(delayed) } else { delayed };
        starved(elapsed, delayed, own.saturating_sub(self.own))
    }
}

/// Time for which the calling thread has been without a processor while it was ready to run.
fn own_delay() -> Duration {
    procfs::schedule(sys::own_pid(), sys::own_tid()).unwrap_or_default().delayed
}

/// The tries of a step whose hold was given up.
#[derive(Debug)]
pub(crate) struct HoldTries {
    begin: Instant,
    pause: Duration,
}

impl HoldTries {
    /// Begins with the first try.
    pub(crate) fn begin() -> Self {
        HoldTries { begin: Instant::now(), pause: PAUSE }
    }

    /// Pauses before the next try. Returns `false`, at once, if no further try is to be made.
    pub(crate) fn again(&mut self) -> bool {
        if self.begin.elapsed() + self.pause > PATIENCE {
            return false;
        }
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_hold_is_given_up_when_it_would_be_longer_than_the_bound() {
        let figures = |held, waited, rest| HoldFigures { held: MS(held), waited: MS(waited), rest: MS(rest) };
        assert!(!figures(50, 0, 0).exceed(MS(50)), "as long as the bound");
        assert!(figures(51, 0, 0).exceed(MS(50)));
        assert!(figures(40, 0, 11).exceed(MS(50)), "the rest counts before it has passed");
        assert!(!figures(500, 460, 10).exceed(MS(50)), "waits for a processor do not count");
        assert!(figures(500, 430, 10).exceed(MS(50)));
        assert!(!figures(1, 2, 3).exceed(MS(3)), "a wait that is longer than the hold leaves nothing of it");
        assert_eq!(figures(500, 430, 10).length(), MS(80));
    }

    #[test]
    fn the_rest_grows_with_threads_moves_and_writes() {
        assert_eq!(rest(0, 0, 0), Duration::ZERO);
        assert_eq!(rest(1000, 2, 3), 1000 * RELEASE + 2 * MOVE + 3 * WRITE);
        assert!(rest(usize::MAX, 0, 0) > MS(1000));
    }

    #[test]
    fn waits_for_a_processor_are_at_most_the_time_that_has_passed() {
        assert_eq!(starved(MS(10), MS(4), MS(3)), MS(7));
        assert_eq!(starved(MS(10), MS(9), MS(3)), MS(10), "both waited at once");
        assert_eq!(starved(MS(10), MS(800), MS(0)), MS(10), "the thread had waited before");
    }
}
