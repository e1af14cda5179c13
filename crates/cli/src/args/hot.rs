//! The arguments of `ingraft hot`.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use ingraft_api::SampledState;
use ingraft_report::Exporter;

use super::{TargetArgs, duration, interval, percent};

/// A column of `ingraft hot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HotSort {
    // Time in the function itself. (No documentation comments here: they would make a page of the --help.)
    #[value(name = "self")]
    Own,
    // Time in the function and in all that it calls.
    Total,
}

/// The formats of stacks, without those that describe exact calls and lines.
const STACK_FORMATS: [&str; 4] = ["folded", "pprof", "speedscope", "svg"];

fn stack_formats() -> impl TypedValueParser<Value = &'static Exporter> {
    PossibleValuesParser::new(STACK_FORMATS)
        .try_map(|name: String| Exporter::named(&name).ok_or_else(|| format!("no format is named {name}")))
}

/// `ingraft hot`.
#[derive(Debug, Args)]
#[command(
    mut_arg("command", |arg| arg.help("Start this command and sample it while it runs")),
    override_usage = "ingraft hot [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                      ingraft hot [OPTIONS] [FUNCTION]... -- <COMMAND>...",
    after_help = "Examples:
  ingraft hot -n redis-server --for 10s                which functions take the time
  ingraft hot -n redis-server --sort total             with all that they call
  ingraft hot -n redis-server --calls --for 10s        also numbers and times of their calls
  ingraft hot -p 4711 'shop:*' --thread 4713           functions of a module, in one thread
  ingraft hot -n postgres --all --for 10s              all processes of the name together
  ingraft hot --cgroup system.slice/nginx.service      all processes of a service together
  ingraft hot -p 4711 --off-cpu --for 10s              where threads wait
  ingraft hot -p 4711 --for 10s --as svg -o hot.svg    a flame graph
  ingraft hot -- bzip2 -k file                         a program from its start to its end
  ingraft hot -p 4711 --for 10s --format json | jq 'select(.type == \"hot\") | [.function, .self]'

The kernel samples each thread by its processor time. Without --calls, nothing is put into the
process, and no thread is held. Where the kernel permits no samples, each running thread is held for
a moment for each sample, and a warning says so.
SELF is the share of the samples that were in the function itself, or in the kernel on its behalf,
with its standard error. TOTAL is the share in which the function or anything that it has called
ran. KERNEL is the part of SELF in the kernel. TIME is the processor time that TOTAL stands for.
Shares are of all samples, also of those in functions that FUNCTION leaves out.
Functions of just-in-time compilers have the names in /tmp/perf-PID.map, if the program writes that
(node --perf-basic-prof), and the module [jit].
WAIT is the time that threads waited in the function or in anything that it has called, and IN the
system call in which they waited most. The engine looks at waiting threads without a stop.
With --calls, CALLS/S is counted exactly from the moment at which the function was found. MEAN is
the time of a call by a clock, or with ~ its processor time by samples and calls.
Of several processes, shares are of the samples of all of them, and functions of the same file and
name are one row. A process that cannot be sampled is left out with a warning.
With --as, the result is the whole stacks of all samples, with the processor time that they stand
for, or with --off-cpu the time of waits. FUNCTION leaves the stacks out that have none of the
functions. Time in the kernel is a call of the function that it was for.
With --off-cpu, SELF and TOTAL are of looks: shares of all looks at threads that found the thread
waiting there.
Ctrl-C ends the command and prints the final values."
)]
pub(crate) struct HotArgs {
    /// Stop after this time, e.g. 10s, 500ms, 2min, or 10 for seconds; without it until Ctrl-C or the end of the target
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) duration: Option<Duration>,

    /// Time between two readings of the values [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = interval, allow_hyphen_values = true)]
    pub(crate) interval: Option<Duration>,

    /// Sample so rarely that it costs each thread less than this of its time, in percent; limit of the clocks of --calls in each process, in percent of a processor [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) max_overhead: Option<f64>,

    /// Print this number of functions
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,

    /// Count the calls of the functions that hold 95 % of the samples, and time them where that fits --max-overhead; inserts code
    #[arg(long, conflicts_with_all = ["off_cpu", "threads"])]
    pub(crate) calls: bool,

    /// Print the stacks of the samples in the format of another tool, as a flame graph or for one: folded, pprof, speedscope, svg
    #[arg(long = "as", value_parser = stack_formats(), value_name = "FORMAT", hide_possible_values = true, conflicts_with_all = ["calls", "interval"])]
    pub(crate) export: Option<&'static Exporter>,

    /// Sort by this column, from the largest to the smallest [default: self, with --off-cpu total]
    #[arg(long, value_enum, value_name = "COLUMN")]
    pub(crate) sort: Option<HotSort>,

    /// Sample only the thread with this id; repeat it for several
    #[arg(long = "thread", value_name = "TID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) threads: Vec<i32>,

    /// Find where threads wait instead of where they run
    #[arg(long)]
    pub(crate) off_cpu: bool,

    /// Only functions that match
    #[arg(value_name = "FUNCTION")]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl HotArgs {
    /// State of the threads whose samples the shares are of.
    pub(crate) fn state(&self) -> SampledState {
        if self.off_cpu { SampledState::Waiting } else { SampledState::Running }
    }
}
