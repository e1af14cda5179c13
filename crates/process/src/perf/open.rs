//! perf_event_open(2): a counter for one thread, and the meaning of the kernel's refusals.

use std::fs::File;
use std::io::{self, Read};

use ingraft_model::Tid;
use perf_event::Builder;

use super::name::{CACHE, EventProblem, HARDWARE, PerfEvent, RAW};
use crate::error::ProcessError;
use crate::sys;

/// Reason why an event is not counted.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    /// No event has this name.
    #[error(transparent)]
    Problem(#[from] EventProblem),
    /// The kernel refuses to count the event.
    #[error("the kernel does not count `{event}`: {refusal}")]
    Refused {
        /// The event.
        event: String,
        /// Answer of the kernel.
        refusal: KernelRefusal,
    },
    /// Threads cannot read the event by themselves.
    #[error("threads cannot read `{event}` themselves: {why}")]
    NotAtPoints {
        /// The event.
        event: String,
        /// Reason why they cannot.
        why: &'static str,
    },
    /// The process has no such thread, or the thread has ended.
    #[error("the process has no thread {0}")]
    NoThread(Tid),
    /// The target cannot be examined.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// Answer of perf_event_open(2) that refuses an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelRefusal {
    /// ENOENT for an event that a unit of the processor counts.
    #[error("this machine has no unit for hardware events, or not for this one (ENOENT), as in most virtual machines")]
    NoHardware,
    /// ENOENT for any other event.
    #[error("it does not know the event (ENOENT)")]
    Unknown,
    /// EACCES or EPERM, with the value of kernel.perf_event_paranoid if that can be read.
    #[error("not permitted (kernel.perf_event_paranoid is {})", paranoid.map_or_else(|| "not readable".to_owned(), |p| p.to_string()))]
    Forbidden {
        /// Value of kernel.perf_event_paranoid; `None` if it cannot be read.
        paranoid: Option<i32>,
    },
    /// EOPNOTSUPP: the hardware or a unit lacks it.
    #[error("the hardware does not support it (EOPNOTSUPP)")]
    Unsupported,
    /// EINVAL: the event cannot be counted for a thread, or the kernel is too old.
    #[error("it cannot be counted for a thread, or the kernel is older than 5.13 (EINVAL)")]
    Invalid,
    /// EMFILE or ENFILE: each thread needs one descriptor, or two if threads are told apart.
    #[error("too many open files: each thread takes two")]
    TooManyFiles,
    /// EPERM for the ring into which the kernel writes samples: too little memory may be locked.
    #[error("this user may lock too little memory for samples (EPERM)")]
    NoRing,
    /// ENOSYS: a kernel without perf events, or a filter of system calls for the engine.
    #[error("the system call is not there (ENOSYS)")]
    NoCall,
    /// Another error number.
    #[error("error {0}")]
    Other(i32),
}

impl EventError {
    /// Reason of the refusal without the name of the event, for output that has the name beside it.
    pub fn reason(&self) -> String {
        match self {
            EventError::Refused { refusal, .. } => refusal.to_string(),
            EventError::NotAtPoints { why, .. } => (*why).to_owned(),
            other @ (EventError::Problem(_) | EventError::NoThread(_) | EventError::Process(_)) => other.to_string(),
        }
    }

    /// Advice for the user in one line.
    pub fn hint(&self) -> String {
        let refusal = match self {
            EventError::Problem(EventProblem::Tracepoint(_)) => {
                return "`perf` and ftrace count those; events are listed by `ingraft metrics --events`".to_owned();
            }
            EventError::Problem(_) => return "`ingraft metrics --events` lists what this machine counts".to_owned(),
            EventError::NotAtPoints { .. } => {
                return "without code, `hwCounter` counts it in whole threads".to_owned();
            }
            EventError::NoThread(_) => return "`ingraft ps` and /proc/PID/task list what runs".to_owned(),
            EventError::Process(e) => return e.hint(),
            EventError::Refused { refusal, .. } => refusal,
        };
        let text = match refusal {
            KernelRefusal::NoHardware => "software events such as page-faults and task-clock work everywhere",
            KernelRefusal::Forbidden { .. } => {
                "run as root (CAP_PERFMON), `sysctl kernel.perf_event_paranoid=1`, or count in the program alone: EVENT:u"
            }
            KernelRefusal::NoRing => "raise the limit: `sysctl kernel.perf_event_mlock_kb`, `ulimit -l`",
            KernelRefusal::TooManyFiles => "raise the limit: `ulimit -n`",
            KernelRefusal::Unknown
            | KernelRefusal::Unsupported
            | KernelRefusal::Invalid
            | KernelRefusal::NoCall
            | KernelRefusal::Other(_) => "`ingraft metrics --events` lists what this machine counts",
        };
        text.to_owned()
    }
}

impl KernelRefusal {
    pub(super) fn of(event: &PerfEvent, e: &io::Error) -> KernelRefusal {
        match e.raw_os_error().unwrap_or_default() {
            libc::ENOENT if [HARDWARE, CACHE, RAW].contains(&event.kind) => KernelRefusal::NoHardware,
            libc::ENOENT | libc::ENODEV => KernelRefusal::Unknown,
            libc::EACCES | libc::EPERM => KernelRefusal::Forbidden { paranoid: paranoid() },
            libc::EOPNOTSUPP => KernelRefusal::Unsupported,
            libc::EINVAL => KernelRefusal::Invalid,
            libc::EMFILE | libc::ENFILE => KernelRefusal::TooManyFiles,
            libc::ENOSYS => KernelRefusal::NoCall,
            other => KernelRefusal::Other(other),
        }
    }
}

/// Value of kernel.perf_event_paranoid; `None` if it cannot be read.
pub fn paranoid() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// Threads whose events a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterScope {
    /// One thread.
    Alone,
    /// One thread, the threads that it creates from now on, and the threads that those create; no other processes.
    WithThreads,
}

/// A counter of one thread's events. It counts from its creation until the thread ends or executes another program.
#[derive(Debug)]
pub(super) struct PerfCounter(File);

/// Reading of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PerfReading {
    /// Number of events.
    pub(super) events: u64,
    /// Nanoseconds in which the events should have been counted (`enabled_ns`), and in which they were counted (`running_ns`).
    pub(super) enabled_ns: u64,
    pub(super) running_ns: u64,
}

impl PerfCounter {
    /// Opens a counter of an event for a thread; `None` if there is no such thread.
    pub(super) fn open(event: &PerfEvent, tid: Tid, scope: CounterScope) -> Result<Option<PerfCounter>, EventError> {
        let mut builder = Builder::new();
        builder
            .enabled(true)
            .exclude_user(!event.user)
            .exclude_kernel(!event.kernel)
            .exclude_hv(!event.kernel)
            .inherit(scope == CounterScope::WithThreads)
            .inherit_thread(scope == CounterScope::WithThreads)
            .remove_on_exec(true);
        let attributes = builder.attrs_mut();
        attributes.type_ = event.kind;
        [attributes.config, attributes.__bindgen_anon_3.config1, attributes.__bindgen_anon_4.config2] = event.config;
        match sys::perf_event_open(&builder, tid) {
            Ok(file) => Ok(Some(PerfCounter(file))),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(e) => {
                Err(EventError::Refused { event: event.name().to_owned(), refusal: KernelRefusal::of(event, &e) })
            }
        }
    }

    /// Reads the counter; `None` if the kernel could not keep the counter on the hardware.
    pub(super) fn read(&self) -> Option<PerfReading> {
        let mut words = [0u8; 24];
        (&self.0).read_exact(&mut words).ok()?;
        let word = |n: usize| u64::from_ne_bytes(std::array::from_fn(|i| words[8 * n + i]));
        Some(PerfReading { events: word(0), enabled_ns: word(1), running_ns: word(2) })
    }
}
