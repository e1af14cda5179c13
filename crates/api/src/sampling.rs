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
    /// Whether the answer has the sites of the samples, and the usage of the threads.
    pub sites: bool,
    /// Whether the answer has the calls on the stacks. With patterns, these are the stacks with a function that they match.
    pub calls: bool,
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
    /// Sites of the samples, those with the most samples first; empty if they were not asked for.
    pub sites: Vec<SampledSite>,
    /// The calls on the stacks as a tree, a caller before those that it has called; empty if they were not asked for.
    pub calls: Vec<SampledCall>,
    /// Usage of each present thread; empty if it was not asked for.
    pub usage: Vec<ThreadUsage>,
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

/// A call on the stacks of samples. Calls of the same function by the same call are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledCall {
    /// Index of the caller in [`SamplingReading::calls`]; `None` for an outermost call.
    pub caller: Option<u32>,
    /// The function; `None` if it is not known.
    pub function: Option<NamedFunction>,
    /// Name of the memory of a call in no known function. If it is empty too, the call stands for callers that are not known.
    pub memory: String,
    /// Samples in the call itself, and in the kernel on its behalf.
    pub own: u64,
    /// Samples of `own` in the kernel.
    pub kernel: u64,
    /// Samples of `own` by the system call in which the thread waits, most frequent first. Empty for threads that run.
    pub waits: Vec<NamedSamples>,
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

/// Activity of a thread when a sample was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampledMode {
    /// It ran in the program.
    #[default]
    Program,
    /// It ran in the kernel for a system call.
    SystemCall,
    /// It ran in the kernel, but not for a system call: for a page fault, or in an interrupt.
    Fault,
    /// It waited in the kernel, and signals can end the wait.
    Waiting,
    /// It waited in the kernel, and no signal ends the wait, as for a disk.
    Uninterruptible,
    /// A signal or a tracer had stopped it.
    Stopped,
}

/// A kind of object that a thread waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitedKind {
    /// A file with a path, also a named pipe.
    #[default]
    File,
    /// A device.
    Device,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A file without a path, such as an eventfd.
    Anonymous,
    /// A futex.
    Futex,
}

/// An object that a thread waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WaitedThing {
    /// The kind.
    pub kind: WaitedKind,
    /// Path of a file, or the text of its link in /proc/PID/fd; empty for a futex.
    pub name: String,
    /// The other side of a socket: address and port, or the path of a Unix socket. Empty if it is not known.
    pub peer: String,
    /// Whether the other side of the socket has connected to the process; false also if it is not known.
    pub accepted: bool,
    /// Address of a futex, else 0.
    pub address: u64,
    /// Operation of a futex with its flags, else 0.
    pub operation: u32,
    /// Value of a futex when the wait began, else 0.
    pub expected: u32,
    /// Id of the thread of the process that the memory behind a futex names, as a mutex of pthreads names its holder; 0 if it names none. The memory
    /// of another kind of object may look the same.
    pub owner: u32,
}

/// Samples of one thread that agree in what the thread did, where, and what it waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SampledSite {
    /// The thread.
    pub tid: Tid,
    /// Activity of the thread.
    pub mode: SampledMode,
    /// Name of the system call in which the thread waited; empty for a thread that ran.
    pub call: String,
    /// The object of the wait, if it is known.
    pub object: Option<WaitedThing>,
    /// The functions of the stack, innermost first, at most 16; frames in no known function are left out.
    pub functions: Vec<NamedFunction>,
    /// Whether the first of the functions is the innermost frame, and not a caller of code in no known function.
    pub innermost: bool,
    /// The number of samples.
    pub samples: u64,
}

/// Usage of a thread since the last reading. Times are zero if the kernel does not count them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadUsage {
    /// The thread.
    pub tid: Tid,
    /// Name of the thread; empty if it is not known.
    pub name: String,
    /// Looks at the thread in any state; 0 for samples of threads that run.
    pub looks: u64,
    /// Looks that found the thread on a processor, or ready for one.
    pub running: u64,
    /// Looks that found the thread waiting, but saw it go on before they were complete: no sample is of them.
    pub missed: u64,
    /// Time on a processor.
    pub cpu: Duration,
    /// Part of `cpu` in the kernel, as far as the kernel's ticks tell it.
    pub system: Duration,
    /// Time in which the thread was ready to run and had no processor.
    pub delayed: Duration,
    /// Page faults without a read from a disk.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Time in which the thread waited for block devices.
    pub block_delay: Duration,
    /// Switches to another thread because this one waited.
    pub waits: u64,
}
