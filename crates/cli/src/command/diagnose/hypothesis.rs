//! The hypotheses about what the time of a process goes to: their names, and what would refute each.

/// A cause that the time of a process may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Hypothesis {
    /// The root: all of them.
    Whole,
    Idle,
    Processor,
    Delayed,
    Locks,
    InputOutput,
    Disk,
    Memory,
    Retries,
    Threads,
    Sleeps,
    Stopped,
}

/// Hypotheses below the root that divide the active time, those that cost less to test first.
pub(super) const TESTED_IN_ORDER: [Hypothesis; 9] = [
    Hypothesis::Processor,
    Hypothesis::Memory,
    Hypothesis::Retries,
    Hypothesis::Locks,
    Hypothesis::InputOutput,
    Hypothesis::Disk,
    Hypothesis::Threads,
    Hypothesis::Sleeps,
    Hypothesis::Stopped,
];

impl Hypothesis {
    /// Name in records and tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Hypothesis::Whole => "time of the process",
            Hypothesis::Idle => "mostly idle",
            Hypothesis::Processor => "processor bound",
            Hypothesis::Delayed => "waits for a processor",
            Hypothesis::Locks => "waits for locks",
            Hypothesis::InputOutput => "waits for input or output",
            Hypothesis::Disk => "waits for the disk",
            Hypothesis::Memory => "waits for memory",
            Hypothesis::Retries => "retries",
            Hypothesis::Threads => "waits for other threads",
            Hypothesis::Sleeps => "sleeps",
            Hypothesis::Stopped => "stopped by a signal",
        }
    }

    /// The observation that would refute the hypothesis.
    pub(super) fn refuted_by(self) -> &'static str {
        match self {
            Hypothesis::Whole => "a longer search (--for) in which no hypothesis holds",
            Hypothesis::Idle => {
                "a search while the program is slow that finds another cause; waits for other servers by epoll, poll or \
                 select look like waits for clients, and waits for another program's answer from a pipe like waits for commands"
            }
            Hypothesis::Processor => {
                "the same throughput with less processor time, or a function without these samples"
            }
            Hypothesis::Delayed => "the same delay on a machine with free processors",
            Hypothesis::Locks => {
                "the same throughput when fewer threads use the lock, or a lock that is held all the time on purpose"
            }
            Hypothesis::InputOutput => "calls of the function that are fast while the program is slow",
            Hypothesis::Disk => "the same times with the data in memory or on a faster disk",
            Hypothesis::Memory => "the same throughput when the memory is kept and used again",
            Hypothesis::Retries => "calls that succeed: then the time is work",
            Hypothesis::Threads => "a queue without work: a worker that has nothing to do waits in the same way",
            Hypothesis::Sleeps => {
                "nobody waits for the thread: a timer that has nothing else to do sleeps in the same way"
            }
            Hypothesis::Stopped => "a SIGCONT (kill -CONT) after which the program is as slow as before",
        }
    }

    /// Weight of the share in the order of the findings. A thread that sleeps or waits for another one may have nothing to do, so other
    /// causes of the same share come first.
    pub(super) fn weight(self) -> f64 {
        match self {
            Hypothesis::Threads | Hypothesis::Sleeps => 0.5,
            _ => 1.0,
        }
    }

    /// Whether the command that shows it looks at waiting threads.
    pub(super) fn waits(self) -> bool {
        !matches!(self, Hypothesis::Processor | Hypothesis::Delayed | Hypothesis::Memory | Hypothesis::Retries)
    }
}
