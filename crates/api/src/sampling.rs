//! Samples of where the threads of a target run or wait, counted by function.

use std::time::Duration;

use ingraft_model::{Pid, Tid};

use crate::{Ended, ModulePlace, NamedFunction, TargetSpec};

/// State of the threads that are sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampledState {
    /// Threads that run on a processor.
    #[default]
    Running,
    /// Threads that wait in the kernel.
    Waiting,
}

/// Way in which samples are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SamplingMethod {
    /// The kernel samples each thread by its processor time (perf events).
    #[default]
    Perf,
    /// The engine looks at the threads that run, at most of the times, and holds each for the look (ptrace).
    Held,
    /// The engine looks at the threads that wait, without a stop (/proc).
    Looks,
}

/// Request to sample a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingRequest {
    /// The process.
    pub target: TargetSpec,
    /// Names, globs, `MODULE:GLOB` or `MODULE+0xOFFSET` of the functions in the answer. If empty, the answer has all functions. Samples of
    /// other functions count in the sums only.
    pub patterns: Vec<String>,
    /// The threads to sample; if empty, all.
    pub threads: Vec<Tid>,
    /// The state of the threads to sample.
    pub state: SampledState,
    /// Time between two samples of a thread: of its processor time if it runs, else of the wall clock. The engine may take a longer one.
    pub period: Duration,
    /// Whether the answer has the stacks below the functions that the patterns match. There must be patterns then.
    pub stacks: bool,
}

/// The samples since the last reading, or since the beginning. Numbers are of samples unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingReading {
    /// The process.
    pub pid: Pid,
    /// Unix time of the reading, in nanoseconds.
    pub time_ns: u64,
    /// Time that the samples are of.
    pub span: Duration,
    /// Processor time of the process in this time, with threads that are not sampled.
    pub cpu: Duration,
    /// Time between two samples of a thread.
    pub period: Duration,
    /// Way in which the samples were taken.
    pub method: SamplingMethod,
    /// One sentence on why a better way was not taken; empty if there is none.
    pub note: String,
    /// Whether threads in the kernel are sampled.
    pub with_kernel: bool,
    /// Number of looks at threads in any state; 0 if the kernel samples.
    pub looks: u64,
    /// Samples of threads in the state of the request.
    pub samples: u64,
    /// Samples of threads that ran in the kernel.
    pub kernel: u64,
    /// Samples whose stacks could not be unwound to the end: outer callers may lack them in their totals.
    pub cut: u64,
    /// Samples that were lost because they came too fast.
    pub lost: u64,
    /// Number of pauses that the kernel made because the samples of a thread took too much time.
    pub throttled: u64,
    /// Number of present threads that cannot be sampled.
    pub unsampled_threads: usize,
    /// The functions with samples.
    pub functions: Vec<SampledFunction>,
    /// The threads with samples.
    pub threads: Vec<SampledThread>,
    /// Samples outside of known functions, by the memory in which they are.
    pub elsewhere: Vec<NamedSamples>,
    /// The stacks below the functions of the patterns, if the request asks for them.
    pub stacks: Vec<StackSamples>,
    /// The end of the target, if it has ended: then no further reading comes.
    pub ended: Option<Ended>,
}

/// Samples of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledFunction {
    /// The function.
    pub function: NamedFunction,
    /// Samples in the function itself, and in the kernel on its behalf.
    pub own: u64,
    /// Samples in the function or in anything that it has called; a sample counts once, also in a recursion.
    pub total: u64,
    /// Samples of `own` in the kernel.
    pub kernel: u64,
    /// Samples of `total` by the system call in which the thread waits, most frequent first. Empty for threads that run.
    pub waits: Vec<NamedSamples>,
}

/// Samples with the same stack below a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackSamples {
    /// The function. If it is more than once on the stack, its innermost call counts.
    pub function: NamedFunction,
    /// The calls that have led to the function, innermost first. Empty if no caller is known.
    pub frames: Vec<ModulePlace>,
    /// Whether the last frame is the outermost one. If not, callers are missing.
    pub whole: bool,
    /// The number of samples.
    pub samples: u64,
}

/// Samples of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// The thread.
    pub tid: Tid,
    /// Name of the thread; empty if it is not known.
    pub name: String,
    /// Samples of the thread.
    pub samples: u64,
    /// Samples of the thread in the kernel.
    pub kernel: u64,
}

/// Samples with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedSamples {
    /// The name.
    pub name: String,
    /// The number of samples.
    pub samples: u64,
}
