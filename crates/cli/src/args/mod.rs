//! The command line as types that clap fills in, and the checks that clap cannot express.

mod calls;
mod contexts;
mod diagnose;
pub(crate) mod expressions;
mod hot;
mod print;
mod profile;
mod report;
mod slow;
mod trace;
mod values;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ingraft_model::{FLAVORS_MAX, Flavor, Focus};

use crate::exit::Failure;
pub(crate) use calls::{CallSelection, CallersArgs, HistArgs, parts};
pub(crate) use contexts::{ContextArgs, ContextViewArgs, MetricName, TreeArgs};
pub(crate) use diagnose::DiagnoseArgs;
pub(crate) use hot::{HotArgs, HotSort};
pub(crate) use print::PrintArgs;
pub(crate) use profile::{ProfileArgs, ProfileMode, TimesUnit};
pub(crate) use report::{Export, ReportArgs, names};
pub(crate) use slow::SlowArgs;
pub(crate) use trace::{ReplayArgs, TraceArgs};
use values::{address, duration, flavor, focus, interval, pair, percent, phase};

/// Count what a running Linux program does, function by function, and leave no trace.
#[derive(Debug, Parser)]
#[command(
    name = "ingraft",
    version,
    max_term_width = 100,
    about = "Count what a running Linux program does, function by function, and leave no trace",
    long_about = "ingraft weaves a few instructions into the functions of a running process, reads what they count from \
                  shared memory while the process runs on, and takes everything out again.\n\nNothing has to be \
                  recompiled, restarted or preloaded. Your own processes need no root.",
    after_help = "Examples:
  ingraft demo                                         see it work on a server of its own
  ingraft ps 'redis*'                                  what can be measured, and if not, why
  ingraft functions -n redis-server 'process*'         functions of a running program
  ingraft inspect -n redis-server processCommand       its points, blocks and loops; --svg draws them
  ingraft diagnose -n redis-server                     what the time goes to, and where
  ingraft hot -n redis-server --for 10s                which functions take the time
  ingraft count -n redis-server processCommand --for 10s
  ingraft count --until-exit '*python3*:_PyEval_*' -- python3 script.py
  ingraft latency -n redis-server processCommand --for 10s
  ingraft heap -n redis-server --for 10s               which chains of calls ask for memory
  ingraft watch -p 4711 calls@/Code/redis-server/call --interval 100ms
  ingraft detach --all                                 take everything out, everywhere

Exit status: 0 done, 1 failed while running, 2 wrong usage or MDL, 3 no such target or function,
4 not permitted or held by another, 5 the target ended before the measurement could start.
If ingraft starts a program (-- COMMAND) and does not fail, its exit status is that of the program:
128 + N after signal N, and 0 if the program still runs. With --own-status it is that of ingraft."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Format of printed results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // Aligned columns for people. (No documentation comments here: they would make a page of every --help.)
    #[default]
    Table,
    // One JSON object a line for scripts.
    Json,
}

/// Flags of every command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Common {
    /// Format of results: for people, or one JSON object a line for scripts
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: Format,

    /// Write results to this file instead of the standard output
    #[arg(short = 'o', long = "output", global = true, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Write results to this open descriptor instead of the standard output, such as 3 with 3>FILE in a shell
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) record_fd: Option<i32>,

    /// Use a running ingraftd instead of an engine inside this command; repeat it to span several hosts
    #[arg(
        long = "daemon",
        global = true,
        value_name = "URI",
        env = "INGRAFT_DAEMON",
        value_delimiter = ',',
        hide_env_values = true,
        help_heading = "Engine"
    )]
    pub(crate) daemons: Vec<String>,

    /// Directory of the journal and the cache [default: /var/lib/ingraft as root, else ~/.local/state/ingraft]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "INGRAFT_STATE_DIR",
        hide_env_values = true,
        help_heading = "Engine"
    )]
    pub(crate) state_dir: Option<PathBuf>,

    /// The clock of timers: tsc (the time stamp counter), vdso (the kernel's, by clock_gettime), or auto: tsc where the kernel trusts it
    #[arg(
        long,
        global = true,
        value_name = "CLOCK",
        env = "INGRAFT_CLOCK",
        hide_env_values = true,
        help_heading = "Engine"
    )]
    pub(crate) clock: Option<ingraft_daemon::ClockChoice>,

    /// File with the token that the daemon asks for
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "INGRAFT_TOKEN",
        hide_env_values = true,
        help_heading = "Engine"
    )]
    pub(crate) token_file: Option<PathBuf>,

    /// Certificate authority that signed the daemon's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Engine")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Certificate of this client (PEM)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Engine")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Key of this client's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", help_heading = "Engine")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// A program of this package.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    // The command line. (No documentation comments here: they would make a page of the --help.)
    #[default]
    Ingraft,
    // The daemon.
    Ingraftd,
}

/// The subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List processes, whether each can be measured, and if not, why and what would allow it
    Ps(PsArgs),
    /// List functions of a running program and how each kind of point is reached
    Functions(FunctionsArgs),
    /// Show a function in detail: points, control-flow graph, loops, instructions, woven code
    Inspect(InspectArgs),
    /// Tell what lies at an address of a process
    Where(WhereArgs),
    /// Search for what the time of a process goes to, and where: processor, locks, disk, other servers
    Diagnose(DiagnoseArgs),
    /// Find the functions that take the time, or that wait
    Hot(HotArgs),
    /// Count the calls of functions, per thread, to the unit
    Count(CountArgs),
    /// Measure how long the calls of functions take: mean, percentiles, histogram
    Latency(LatencyArgs),
    /// Count the calls of functions by caller and call site, to the unit
    Callers(CallersArgs),
    /// Show the distribution of a value at the calls of a function: an argument, the result
    Hist(HistArgs),
    /// Print one line for each call: time, thread, arguments, texts, result, elapsed time, caller
    Print(PrintArgs),
    /// Show the calls of a function that take long, with all calls that they have made
    Slow(SlowArgs),
    /// Profile functions: exact counts of all blocks and edges, of instructions and other events, of calls by context
    Profile(ProfileArgs),
    /// Show which chains of calls ask for memory, and how much of it is not freed yet
    #[command(
        override_usage = "ingraft heap [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                          ingraft heap [OPTIONS] [FUNCTION]... -- <COMMAND>...",
        after_help = "Examples:
  ingraft heap -p 4711 --for 10s
  ingraft heap -n redis-server 'redis-server:*' --top 40
  ingraft heap --until-exit -- ./shop orders.csv         from the first instruction on
  ingraft heap -p 4711 --for 10s -o shop.heap            for `ingraft report shop.heap --as svg`

Counted are the bytes that the program asks of the allocation functions of the C library:
malloc, calloc, realloc and the like. What is freed is not subtracted: the numbers say how much
was asked for, not how much is in use.
FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET: the functions that contexts consist
of; without one, those of the program's own module. The first table has the places with most
bytes, each with the three calls above it. The tree has the contexts on the way to an allocation:
who called whom, with SELF for the bytes of the function alone and TOTAL for those of all that
it has called too.
`-o FILE` saves the profile for `ingraft report`. Ctrl-C ends the measurement, removes it, and
prints the contexts."
    )]
    Heap(ContextViewArgs),
    /// Show which chains of calls wait for locks, how long, and who holds the locks
    #[command(
        override_usage = "ingraft locks [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                          ingraft locks [OPTIONS] [FUNCTION]... -- <COMMAND>...",
        after_help = "Examples:
  ingraft locks -p 4711 --for 10s
  ingraft locks -n mysqld 'mysqld:*' --for 10s --bottom-up
  ingraft locks -p 4711 --for 10s -o shop.locks          for `ingraft report shop.locks --as svg`

Measured is the time in the functions of the C library that wait for locks, such as
pthread_mutex_lock, with the time in which they get the lock at once; and in those of Rust's
standard library, parking_lot and Abseil that wait if somebody has the lock.
FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET: the functions that contexts consist
of; without one, those of the program's own module. The first table has the places with most
time, each with the three calls above it. The second one has the locks: what the thread did that
held one while others waited, by looks. The tree has the contexts on the way to a lock: who
called whom, with SELF for the time of the function alone and TOTAL for that of all that it has
called too.
`-o FILE` saves the profile for `ingraft report`. Ctrl-C ends the measurement, removes it, and
prints the contexts."
    )]
    Locks(ContextViewArgs),
    /// Show which chains of calls wait, and how long
    #[command(
        override_usage = "ingraft offcpu [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                          ingraft offcpu [OPTIONS] [FUNCTION]... -- <COMMAND>...",
        after_help = "Examples:
  ingraft offcpu -p 4711 --for 10s
  ingraft offcpu -n postgres --all 'postgres:*' --for 10s --top 40
  ingraft offcpu -p 4711 --for 10s -o shop.waits         for `ingraft report shop.waits --as svg`

Measured is the time in the functions of the C library in which threads wait: for data, for
locks, for other threads, for time to pass. A thread that the kernel lets wait for a processor
is not in such a function.
FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET: the functions that contexts consist
of; without one, those of the program's own module. The first table has the places with most
time, each with the three calls above it. The tree has the contexts on the way to a wait: who
called whom, with SELF for the time of the function alone and TOTAL for that of all that it has
called too.
`-o FILE` saves the profile for `ingraft report`. Ctrl-C ends the measurement, removes it, and
prints the contexts."
    )]
    Offcpu(ContextViewArgs),
    /// Write all blocks that functions execute to a file, for `ingraft replay`
    Trace(TraceArgs),
    /// Print the sequence of blocks or instructions that a trace has
    Replay(ReplayArgs),
    /// Stream the values of metrics
    Watch(WatchArgs),
    /// List the metrics that are known
    Metrics(MetricsArgs),
    /// Check metric definitions (MDL) and explain what is wrong
    Check(CheckArgs),
    /// Print metric definitions (MDL) in the usual layout
    Fmt(FmtArgs),
    /// Print the values of measurements that were left in with --no-remove
    Read(ReadArgs),
    /// Print saved profiles: as tables, as differences, or in formats of other tools
    Report(ReportArgs),
    /// Show what is inserted where, by whom, and what it costs
    Status(StatusArgs),
    /// Take everything out of a process, also what a crashed ingraft left there
    Detach(DetachArgs),
    /// Show it all on a server of our own: attach under load, count, compare, remove, verify
    Demo(DemoArgs),
    /// Print shell completions
    #[command(hide = true)]
    Completions {
        /// Shell of the completions
        shell: Shell,
        /// Program of the completions
        #[arg(value_enum, default_value_t)]
        program: Program,
    },
    /// Print the manual page, or write all pages into a directory
    #[command(hide = true)]
    Man {
        /// Write one page for each command, and one for ingraftd, into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// The server that `demo` measures
    #[command(hide = true)]
    DemoServer,
    /// Forward the output of a program and the records about it
    #[command(hide = true)]
    ForwardOutput,
}

/// A running process.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RunningTarget {
    /// The process with this id; repeat it for several
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pids: Vec<i32>,

    /// The process of this name (command name, or base name of what it was started as or of its executable)
    #[arg(short = 'n', long = "name", value_name = "NAME", conflicts_with = "pids")]
    pub(crate) name: Option<String>,
}

/// Running processes: single ones, or all of a name or a control group.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RunningTargets {
    #[command(flatten)]
    pub(crate) single: RunningTarget,

    /// Every process of the name that -n gives
    #[arg(long, requires = "name")]
    pub(crate) all: bool,

    /// Every process of this control group and of those below it, or those of them that have the name of -n
    #[arg(long, value_name = "PATH", conflicts_with = "pids")]
    pub(crate) cgroup: Option<String>,
}

/// Running processes, or a command to start.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TargetArgs {
    #[command(flatten)]
    pub(crate) running: RunningTargets,

    /// Start this command and measure it from its first instruction on
    #[arg(last = true, value_name = "COMMAND", num_args = 1.., conflicts_with_all = ["pids", "name", "all", "cgroup"])]
    pub(crate) command: Vec<OsString>,

    /// Exit with the status of ingraft, not with that of COMMAND
    #[arg(long)]
    pub(crate) own_status: bool,
}

/// Processes and programs that are measured besides the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FollowMode {
    /// Children of the target, and their children.
    Fork,
    /// Another program in the same process.
    Exec,
}

/// Flags of a measurement: its time, the interval of readings, and the limit of its cost.
#[derive(Debug, Clone, Args)]
pub(crate) struct Measure {
    /// Stop after this time, e.g. 10s, 500ms, 2min, or 10 for seconds; without it until Ctrl-C or the end of the target
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) duration: Option<Duration>,

    /// Measure until the target ends (with --for: until either)
    #[arg(long)]
    pub(crate) until_exit: bool,

    /// Time between two readings of the values [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = interval, allow_hyphen_values = true)]
    pub(crate) interval: Option<Duration>,

    /// Take out timers and histograms that cost more than this of a processor's time, in percent; counters are only reported [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) max_overhead: Option<f64>,

    /// Hold the threads of the target for no longer than this in each step of the insertion, without the time in which no processor is free for them; otherwise the step is tried again for 15 s [default: 50ms]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Let definitions call functions of the program, at places that its author did not plan, and set its variables
    #[arg(long)]
    pub(crate) allow_calls: bool,

    /// Refuse functions in which a uprobe that another tool sets meanwhile would do harm, here and in later measurements of the process
    #[arg(long)]
    pub(crate) beside_uprobes: bool,

    /// If the target cannot be changed now (a thread does not stop, a debugger is attached), try again for this time; wait for named modules that are not loaded yet as long as the measurement lasts. With a command: how long the program waits at most until a library that it loads is measured [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Leave the measurement in when this command ends (with --daemon only)
    #[arg(long, conflicts_with = "follow")]
    pub(crate) no_remove: bool,

    /// Measure children as well, from their birth on (fork), and processes that start another program, from when that is noticed (exec)
    #[arg(long, value_name = "fork,exec", value_delimiter = ',')]
    pub(crate) follow: Vec<FollowMode>,
}

/// Metric definitions to read.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Include {
    /// Read more metric definitions from this file; repeat it for several
    #[arg(short = 'I', long = "include", value_name = "FILE.mdl")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) flavors: Flavors,
}

/// The flavors of a program.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flavors {
    /// The program is of this kind, such as pvm: use definitions of this flavor too; repeat it for several
    #[arg(long = "flavor", value_name = "NAME", value_delimiter = ',', value_parser = flavor)]
    pub(crate) names: Vec<Flavor>,
}

/// `ingraft ps`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft ps
  ingraft ps 'redis*'
  ingraft ps --format json | jq -r 'select(.attachable) | .pid'")]
pub(crate) struct PsArgs {
    /// Only processes whose name matches, e.g. 'redis*'
    pub(crate) glob: Option<String>,
}

/// `ingraft functions`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft functions [OPTIONS] <-p <PID>|-n <NAME>> [GLOB]...",
    after_help = "Examples:
  ingraft functions -p 4711
  ingraft functions -n redis-server 'process*' 'libc:mem*'
  ingraft functions -n redis-server --summary           by module: what can be measured
  ingraft functions -n redis-server --format json | jq 'select(.how.entry == \"refused\")'

A GLOB is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. C++ and Rust names match mangled and demangled."
)]
pub(crate) struct FunctionsArgs {
    #[command(flatten)]
    pub(crate) target: RunningTarget,

    /// Print for each module how many functions can be measured at which points, and the reasons of the others
    #[arg(long)]
    pub(crate) summary: bool,

    /// Only functions that match
    #[arg(value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
}

/// `ingraft inspect`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft inspect [OPTIONS] <-p <PID>|-n <NAME>> <FUNCTION>",
    after_help = "Examples:
  ingraft inspect -n redis-server processCommand
  ingraft inspect -n redis-server dictFind --disassembly
  ingraft inspect -n redis-server dictFind --svg -o dictFind.svg
  ingraft inspect -n redis-server dictFind --for 5s --svg -o hot.svg   colours by counts
  ingraft inspect -n redis-server dictFind --dot | dot -Tpdf -o dictFind.pdf
  ingraft inspect -n redis-server dictFind --path 7 --svg -o way.svg   a path of `profile paths`

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. It may match at most 20 functions.
Offsets of points, blocks and instructions are distances from the first byte of the function.
With --disassembly, code that is woven into the function follows each block where it is woven."
)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) target: RunningTarget,

    /// Print the instructions of each block with their source lines, and the code that is woven there
    #[arg(long, short = 'd')]
    pub(crate) disassembly: bool,

    /// Print the control-flow graph as text for Graphviz
    #[arg(long, conflicts_with_all = ["svg", "disassembly"])]
    pub(crate) dot: bool,

    /// Print the control-flow graph as a picture (SVG)
    #[arg(long, conflicts_with = "disassembly")]
    pub(crate) svg: bool,

    /// Count for this time how often control arrives at each block, and show the counts
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) duration: Option<Duration>,

    /// Show the path with this number, from `ingraft profile paths`: its blocks in order, or marked in the picture
    #[arg(long, value_name = "N")]
    pub(crate) path: Option<u64>,

    /// With --path, the same as the paths were counted with: at most so many paths lead from a block to their ends
    #[arg(long, value_name = "N", requires = "path")]
    pub(crate) truncate: Option<NonZeroU32>,

    /// Function to show
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,
}

/// `ingraft where`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft where 4711 0x55d0c81b3f20
  ingraft --daemon unix:/run/ingraft/ingraftd.sock where 4711 0x55d0c7ff0214

For code that ingraft has put into the process, it tells the point that the code belongs to,
and where in the original code a thread at that address would go on.")]
pub(crate) struct WhereArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: i32,

    /// The address, in hexadecimal, with or without 0x
    #[arg(value_name = "ADDRESS", value_parser = address)]
    pub(crate) address: u64,
}

/// `ingraft count`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft count [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                      ingraft count [OPTIONS] [FUNCTION]... -- <COMMAND>...",
    after_help = "Examples:
  ingraft count -n redis-server processCommand 'redis-server:zset*' --for 10s
  ingraft count -p 4711 'postgres:*' --for 5s          all functions of a program at once
  ingraft count -n postgres --all ExecutorRun --for 5s every process of that name
  ingraft count --until-exit malloc free -- python3 script.py
  ingraft count -p 4711 'parse#*->*' 'parse#loop@*'    edges and loops of a function
  ingraft count -p 4711 call --for 10s --format json -o calls.json
  ingraft count -p 4711 libc:read --by '$arg[0]' --sum '$return' --if '$return > 0'   bytes by descriptor

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. Without one, all functions of the program's own module are counted; '*' stands for those of its libraries too, and :GLOB for functions of its own module.
FUNCTION#0xOFFSET counts arrivals at the basic block at this offset in the function,
FUNCTION#0xFROM->0xTO passages from one block to another, FUNCTION#loop@0xOFFSET iterations of
the loop whose header is there. FUNCTION#*, #*->* and #loop@* mean all blocks, edges and loops;
FILE.c:LINE means each block with code of this source line.
The table begins with the functions that are called most. Functions without a call share one line.
Ctrl-C ends the measurement, removes it, and prints the final values."
)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) measure: Measure,

    #[command(flatten)]
    pub(crate) calls: CallSelection,

    /// Add up this value instead of counting calls, such as '$return'
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true)]
    pub(crate) sum: Option<String>,

    /// Show the distribution of this value instead of counting calls, as `ingraft hist`
    #[arg(long, value_name = "EXPR", allow_hyphen_values = true, conflicts_with_all = ["sum", "by"])]
    pub(crate) hist: Option<String>,

    /// Functions to count
    #[arg(value_name = "FUNCTION")]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// A column of `ingraft latency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatencySort {
    // Number of calls. (No documentation comments here: they would make a page of the --help.)
    Calls,
    // Sum of the times without the callees that are measured; the same order as by share.
    #[value(name = "self")]
    Own,
    // Sum of the times.
    Total,
    Mean,
    P50,
    P90,
    P99,
    #[value(name = "p99.9")]
    P999,
    Max,
    Name,
}

/// `ingraft latency`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft latency [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <FUNCTION>...\n       \
                      ingraft latency [OPTIONS] <FUNCTION>... -- <COMMAND>...",
    after_help = "Examples:
  ingraft latency -n redis-server processCommand 'redis-server:zset*' --for 10s
  ingraft latency -p 4711 'libc:fsync' 'libc:fdatasync' --histogram
  ingraft latency -p 4711 ExecutorRun --cpu
  ingraft latency -p 4711 'postgres:Exec*' --sort self --for 10s   where the time goes
  ingraft latency -p 4711 ExecutorRun --by context --for 10s       by the chain of callers
  ingraft latency -p 4711 call --for 10s --format json | jq 'select(.type == \"latency\") | .p99_ns'

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. The time of a call is what passes from
its entry to its exit, with all that it calls and waits for. Percentiles are within 4 % of the true ones.
CALLS is the number of calls, TIMED how many of them the times are of: calls are counted for a tenth of
a second first. Functions that would exceed --max-overhead are counted only, and stand below the others.
SELF is the sum of the times without those of callees whose times are measured too. SHARE is of the sum
of SELF over all functions that are timed to the end. TOTAL is the sum of the times with all callees: the
time of a call is in the TOTAL of its function and of those that wait for it. Go functions have no SELF.
--by context tells the calls apart by their calling context: the chain of calls of the program's
functions that has led to them. Recursive calls are in the context of the first call of their
function. MAX is then within 4 % too.
Ctrl-C ends the measurement, removes it, and prints the final values."
)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Print a histogram of every function, not only when there are a handful
    #[arg(long)]
    pub(crate) histogram: bool,

    /// Measure the processor time of the calling thread instead, without what it waits for
    #[arg(long)]
    pub(crate) cpu: bool,

    #[command(flatten)]
    pub(crate) calls: CallSelection,

    /// With `--by context`, functions that the chains of callers consist of [default: all of the program]; repeat it for several
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) callers: Vec<String>,

    /// Sort by this column: numbers from the largest to the smallest, names by letter
    #[arg(long, value_enum, value_name = "COLUMN")]
    pub(crate) sort: Option<LatencySort>,

    /// Functions to measure
    #[arg(value_name = "FUNCTION", required = true)]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// `ingraft watch`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft watch [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <METRIC[@FOCUS]>...\n       \
                      ingraft watch [OPTIONS] <METRIC[@FOCUS]>... -- <COMMAND>...",
    after_help = "Examples:
  ingraft watch -p 4711 calls@/Code/redis-server/processCommand --interval 100ms
  ingraft watch -n nginx calls@/Code/libc.so.6/malloc calls@/Code/libc.so.6/free --for 1min
  ingraft watch -p 4711 my_metric@/Code/postgres -I my.mdl --format json

A FOCUS is a comma-separated list of resources: /Code/MODULE/FUNCTION, /Process/PID/TID, /Machine/NAME.
MODULE and FUNCTION may be patterns with * and ?: each function that matches is watched by itself.
A histogram has percentiles of all its values so far, and below them those of the latest interval.
Without a focus the metric covers the whole program. `ingraft metrics` lists what can be watched."
)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) measure: Measure,

    #[command(flatten)]
    pub(crate) include: Include,

    /// Print at the end what each value did over time
    #[arg(long)]
    pub(crate) history: bool,

    /// Tell the time apart in phases of this length; implies --history
    #[arg(long, value_name = "DURATION", value_parser = phase, allow_hyphen_values = true)]
    pub(crate) phases: Option<Duration>,

    /// Estimate the whole where an event was counted in a part of the time only, because it shares the processor's counters
    #[arg(long)]
    pub(crate) scale: bool,

    /// Metrics to watch, each for the whole program or at a focus
    #[arg(value_name = "METRIC[@FOCUS]", required = true, value_parser = pair)]
    pub(crate) pairs: Vec<PairArg>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// `ingraft metrics`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft metrics
  ingraft metrics '*time*'
  ingraft metrics -p 4711                              those that measure something in this program
  ingraft metrics -I my.mdl --format json
  ingraft metrics --events                             page faults, switches, cycles ...: what is counted here
  ingraft metrics --cost                               what each costs at worst, on this machine
  ingraft metrics --cost -p 4711                       in the functions of a program")]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    pub(crate) include: Include,

    /// Print what the code of each metric costs at worst: in cycles, and in time on this machine
    #[arg(long)]
    pub(crate) cost: bool,

    /// Print instead the events that hwCounter("EVENT") can name, and why this machine does not count some of them
    #[arg(long, conflicts_with_all = ["cost", "pids", "name"])]
    pub(crate) events: bool,

    /// Only metrics, or events, whose name matches, e.g. 'lock*'
    pub(crate) glob: Option<String>,

    #[command(flatten)]
    pub(crate) target: RunningTarget,
}

/// `ingraft check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft check my.mdl
  ingraft check mdl/*.mdl --format json
  ingraft check my.mdl --lower                         what its metrics become, as machine code
  ingraft check my.mdl --lower -p 4711 --focus /Code/redis-server/call

All errors of all files are reported in one run. A file may use the shipped definitions and those of the files before it.")]
pub(crate) struct CheckArgs {
    /// Files to check
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print what the metrics of the files become: snippets, machine code, worst-case cost
    #[arg(long)]
    pub(crate) lower: bool,

    /// Focus of the metrics; without it one function, or the whole program
    #[arg(long, value_name = "FOCUS", requires = "lower", value_parser = focus)]
    pub(crate) focus: Option<Focus>,

    #[command(flatten)]
    pub(crate) flavors: Flavors,

    #[command(flatten)]
    pub(crate) target: RunningTarget,
}

/// `ingraft fmt`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft fmt my.mdl
  ingraft fmt --write mdl/*.mdl")]
pub(crate) struct FmtArgs {
    /// Files to format
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Write the files instead of printing them
    #[arg(long)]
    pub(crate) write: bool,
}

/// `ingraft read`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft --daemon unix:/run/ingraft/ingraftd.sock read 4711
  ingraft --daemon unix:/run/ingraft/ingraftd.sock read 4711 --format json

The measurements stay in and go on. Values come as `count`, `latency` or `watch` print them at their ends.")]
pub(crate) struct ReadArgs {
    /// The processes
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pids: Vec<i32>,
}

/// `ingraft status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft status
  ingraft --daemon unix:/run/ingraft/ingraftd.sock status --format json")]
pub(crate) struct StatusArgs {}

/// `ingraft detach`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft detach [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>|--all>",
    after_help = "Examples:
  ingraft detach -p 4711
  ingraft detach -n postgres --all                     every process of that name
  ingraft detach --all

Nothing to remove is no error."
)]
pub(crate) struct DetachArgs {
    #[command(flatten)]
    pub(crate) target: RunningTarget,

    /// Every process that something is inserted in; with -n, every process of that name
    #[arg(long, conflicts_with = "pids")]
    pub(crate) all: bool,

    /// Every process of this control group and of those below it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pids", "name", "all"])]
    pub(crate) cgroup: Option<String>,
}

/// `ingraft demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft demo
  ingraft demo --for 10s

Needs no root and nothing installed. Exit status 0 only if every check holds.")]
pub(crate) struct DemoArgs {
    /// Time for which the calls are counted
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, allow_hyphen_values = true, default_value = "3s")]
    pub(crate) duration: Duration,
}

impl TargetArgs {
    /// Whether the flags name a target besides those of `running`.
    fn has_others(&self) -> bool {
        !self.command.is_empty() || self.running.cgroup.is_some()
    }
}

impl Cli {
    /// Checks rules that clap cannot express, or whose violation clap does not explain well enough.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let no_remove = match &self.command {
            Command::Count(args) => args.measure.no_remove,
            Command::Latency(args) => args.measure.no_remove,
            Command::Profile(args) => args.measure.no_remove,
            Command::Watch(args) => args.measure.no_remove,
            _ => false,
        };
        let saves = self.command.saves();
        if self.common.output.is_some() && self.common.record_fd.is_some() && !saves {
            return Err(Failure::usage(
                "-o and --record-fd both name the place of the results",
                "leave out one of them",
            ));
        }
        if no_remove && self.common.daemons.is_empty() {
            let hint = "add --daemon URI: only a daemon outlives this command";
            return Err(Failure::usage("--no-remove needs a daemon that keeps the measurement", hint));
        }
        if let Command::Print(args) = &self.command {
            args.check()?;
        }
        if let Command::Slow(args) = &self.command {
            args.check()?;
        }
        if let Command::Heap(args) | Command::Locks(args) | Command::Offcpu(args) = &self.command {
            args.check(!matches!(self.command, Command::Heap(_)))?;
        }
        if let Command::Report(args) = &self.command {
            args.check(self.common.output.as_deref())?;
        }
        if let Command::Replay(args) = &self.command {
            args.check(self.common.output.as_deref())?;
        }
        if let Command::Trace(args) = &self.command {
            args.check(&self.common)?;
        }
        if let Command::Profile(args) = &self.command {
            args.check()?;
        }
        let flavors = match &self.command {
            Command::Watch(args) => args.include.flavors.names.len(),
            Command::Metrics(args) => args.include.flavors.names.len(),
            Command::Check(args) => args.flavors.names.len(),
            _ => 0,
        };
        if flavors > FLAVORS_MAX {
            let what = format!("{flavors} flavors are more than a program can be said to have");
            return Err(Failure::usage(what, format!("name at most {FLAVORS_MAX}")));
        }
        if self.command.shows_definitions() { Ok(()) } else { self.check_target() }
    }

    /// Refuses a command that lacks a target.
    fn check_target(&self) -> Result<(), Failure> {
        let (target, command) = match &self.command {
            Command::Callers(args) => (&args.target.running.single, args.target.has_others()),
            Command::Hist(args) => (&args.target.running.single, args.target.has_others()),
            Command::Print(args) => (&args.target.running.single, args.target.has_others()),
            Command::Slow(args) => (&args.target.running.single, args.target.has_others()),
            Command::Count(args) => (&args.target.running.single, args.target.has_others()),
            Command::Latency(args) => (&args.target.running.single, args.target.has_others()),
            Command::Profile(args) => (&args.target.running.single, args.target.has_others()),
            Command::Heap(args) | Command::Locks(args) | Command::Offcpu(args) => {
                (&args.target.running.single, args.target.has_others())
            }
            Command::Trace(args) => (&args.target.running.single, args.target.has_others()),
            Command::Watch(args) => (&args.target.running.single, args.target.has_others()),
            Command::Functions(args) => (&args.target, false),
            Command::Inspect(args) => (&args.target, false),
            Command::Hot(args) => (&args.target.running.single, args.target.has_others()),
            Command::Diagnose(args) => (&args.target.running.single, args.target.has_others()),
            Command::Detach(args) => (&args.target, args.all || args.cgroup.is_some()),
            Command::Ps(_)
            | Command::Where(_)
            | Command::Metrics(_)
            | Command::Check(_)
            | Command::Fmt(_)
            | Command::Status(_)
            | Command::Read(_)
            | Command::Replay(_)
            | Command::Report(_)
            | Command::Demo(_)
            | Command::Completions { .. }
            | Command::Man { .. }
            | Command::DemoServer
            | Command::ForwardOutput => return Ok(()),
        };
        if target.pids.is_empty() && target.name.is_none() && !command {
            let hint = "name one with -p PID (-p repeats), -n NAME, -n NAME --all or --cgroup PATH; `ingraft ps` lists what can be measured";
            return Err(Failure::usage("no target", hint));
        }
        Ok(())
    }
}

impl Command {
    /// Whether the file of `-o` gets a profile or a trace, not the text.
    pub(crate) fn saves(&self) -> bool {
        let is_view = matches!(self, Command::Heap(_) | Command::Locks(_) | Command::Offcpu(_));
        is_view || matches!(self, Command::Profile(_) | Command::Trace(_))
    }

    /// Whether the command only prints definitions, for which it needs no target.
    fn shows_definitions(&self) -> bool {
        match self {
            Command::Count(args) => args.calls.show_mdl,
            Command::Latency(args) => args.calls.show_mdl,
            Command::Callers(args) => args.show_mdl,
            Command::Hist(args) => args.show_mdl,
            Command::Print(args) => args.show_mdl,
            Command::Slow(args) => args.show_mdl,
            _ => false,
        }
    }
}

/// A metric and the focus that it is restricted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairArg {
    /// Public name of the metric.
    pub(crate) metric: String,
    /// The focus; the whole program if none was written.
    pub(crate) focus: Focus,
}

#[cfg(test)]
mod tests;
