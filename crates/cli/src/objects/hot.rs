//! Records of `hot`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Host;

/// The process that a record of samples is about, or the number of processes whose samples it adds up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct SampledTarget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    /// The process; left out of a record about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    /// Number of processes; left out of a record about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) targets: Option<usize>,
}

/// Time that a function takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HotObject {
    #[serde(flatten)]
    pub(crate) of: SampledTarget,
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: String,
    /// Share of the function itself, and of the kernel on its behalf, from 0 to 1.
    #[serde(rename = "self")]
    pub(crate) own: f64,
    /// Standard error of `self`.
    pub(crate) self_error: f64,
    /// Share of the function with all that it has called, from 0 to 1.
    pub(crate) total: f64,
    /// Standard error of `total`.
    pub(crate) total_error: f64,
    /// Number of samples that `self` stands for.
    pub(crate) self_samples: u64,
    /// Number of samples that `total` stands for.
    pub(crate) total_samples: u64,
    /// Number of calls since the function got a counter; null if it has none.
    pub(crate) calls: Option<u64>,
    /// Calls in a second; null if the function has no counter.
    pub(crate) calls_per_s: Option<f64>,
    /// Mean time of a call in nanoseconds: of the wall clock if `how` says `clocked`, processor time if it says `derived`; null if it is not
    /// known.
    pub(crate) mean_ns: Option<f64>,
    /// Percentiles of the times of calls in nanoseconds; null if the function has no clock.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p90_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    /// Share of the kernel in `self`, from 0 to 1; null if the kernel is not sampled, or if the function itself has no sample.
    pub(crate) kernel: Option<f64>,
    /// Time that threads ran or waited in the function and in all that it has called, in nanoseconds; null if waiting threads are not sampled.
    pub(crate) wall_ns: Option<u64>,
    /// Processor time of the function and of all that it has called, in nanoseconds; null if running threads are not sampled.
    pub(crate) cpu_ns: Option<u64>,
    /// System calls in which threads waited in the function and in all that it has called, most frequent first.
    pub(crate) waits: Vec<NamedShare>,
    /// By what each number was found.
    pub(crate) how: BTreeMap<&'static str, &'static str>,
}

/// A share with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NamedShare {
    /// The name.
    pub(crate) name: String,
    /// The share, from 0 to 1.
    pub(crate) share: f64,
}

/// The samples from which the shares of functions come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SamplesObject {
    #[serde(flatten)]
    pub(crate) of: SampledTarget,
    /// Unix time of the last reading, in nanoseconds.
    pub(crate) time_ns: u64,
    /// Time that the samples are of, in nanoseconds.
    pub(crate) span_ns: u64,
    /// Processor time of the processes in this time, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Time between two samples of a thread, in nanoseconds.
    pub(crate) period_ns: u64,
    /// `running` or `waiting`.
    pub(crate) state: &'static str,
    /// `perf`, `held` or `looks`.
    pub(crate) method: &'static str,
    /// Number that shares are of: samples, or for waiting threads, looks at threads in any state.
    pub(crate) base: u64,
    /// Samples of threads in the state.
    pub(crate) samples: u64,
    /// Share of the kernel in the samples, from 0 to 1; null if the kernel is not sampled.
    pub(crate) kernel: Option<f64>,
    /// Samples whose stacks could not be unwound to the end.
    pub(crate) cut: u64,
    /// Samples that were lost.
    pub(crate) lost: u64,
    /// Pauses that the kernel made because the samples of a thread took too much time.
    pub(crate) throttled: u64,
    /// Threads at the end that could not be sampled.
    pub(crate) unsampled_threads: u64,
    /// Number of looks at threads for the waiting times.
    pub(crate) looks: u64,
    /// Number of these looks that found the thread waiting.
    pub(crate) waits: u64,
    /// Reason why a better method was not taken; null if there is none.
    pub(crate) note: Option<String>,
    /// Samples in no known function, by the memory in which they are.
    pub(crate) elsewhere: Vec<NamedShare>,
    /// Threads with samples, those with the most first.
    pub(crate) threads: Vec<ThreadShare>,
}

/// Share of a thread in the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThreadShare {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    /// Process of the thread; left out of a record about one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    /// Thread id.
    pub(crate) tid: i32,
    /// Name of the thread; null if it is not known.
    pub(crate) name: Option<String>,
    /// Samples of the thread.
    pub(crate) samples: u64,
}
