//! Arguments of `ingraft profile`.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ingraft_api::{ContextSum, ContextsOptions, PathMetric, PathsOptions};
use ingraft_model::EVENT_NAMES;

use crate::exit::Failure;

use super::contexts::{self, ContextArgs, MetricName};
use super::expressions;
use super::{FollowMode, Measure, TargetArgs};

/// Kind of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileMode {
    // Passages of all edges. (No documentation comments here: they would make a page of the --help.)
    Edges,
    // Executions of all basic blocks.
    Blocks,
    // Numbers of instructions, calls, branches and accesses to memory.
    Events,
    // Blocks and branches that have run.
    Coverage,
    // Mean and variance of the times of functions.
    Times,
    // Calls by calling context.
    Contexts,
    // Acyclic paths through functions.
    Paths,
}

/// Unit of `ingraft profile times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimesUnit {
    // Exact for the function alone. (No documentation comments here: they would make a page of the --help.)
    Instructions,
    // Costs are fitted to measured times.
    Ns,
}

/// `ingraft profile`.
#[derive(Debug, Args)]
#[command(
    mut_arg("follow", |arg| arg.help(
        "Profile also programs that a process starts, from when that is noticed (exec); for coverage and contexts also children (fork)"
    )),
    override_usage = "ingraft profile <KIND> [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> [FUNCTION]...\n       \
                      ingraft profile <KIND> [OPTIONS] [FUNCTION]... -- <COMMAND>...",
    after_help = "Examples:
  ingraft profile blocks -n redis-server 'redis-server:*' --for 10s
  ingraft profile edges -p 4711 parse --for 10s --format json
  ingraft profile events --until-exit 'libbz2:*' -- bzip2 -k file
  ingraft profile events -p 4711 --query --interval 500ms        (the events of each thread, while it runs)
  ingraft profile edges -n postgres --all --for 1m -o profile    (for `ingraft report profile --as bolt`)
  ingraft profile coverage -p 4711 'shop:*' -o shop.coverage     (for `ingraft report shop.coverage --as lcov`)
  ingraft profile times -p 4711 'shop:*' --explain load_product  (mean and variance, and what the variance comes from)
  ingraft profile times -p 4711 'shop:*' --for 10s --unit ns --measured latency.json
  ingraft profile contexts -n postgres --for 10s                 (who calls whom, and how often)
  ingraft profile contexts -p 4711 --metric time,bytes --for 10s -o shop.contexts
  ingraft profile contexts -p 4711 --sum 'written_bytes=libc:write:$return'    (who writes how much)
  ingraft profile paths -p 4711 'shop:*' --for 10s               (which ways control takes through functions)
  ingraft profile paths -p 4711 'shop:*' --contexts --for 10s    (and who has called them)
  ingraft profile paths -p 4711 'shop:*' --metric time --callees (and how long they take)

KIND is edges, blocks, events, coverage, times, contexts or paths. A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. Without one, all
functions of the program's own module are profiled; '*' stands for those of its libraries too.
The counts are exact: counters are on some edges only, and the other counts are derived from them. A function whose counts cannot all be derived is not profiled, and is named with the reason.
Ctrl-C ends the measurement, removes it, and prints the counts. `-o FILE` also saves them for `ingraft report`; the
counts of several processes of one program are added up there. With --interval, the counts are also printed while the
program runs. For each reading the threads are held for a moment.

A coverage tells which blocks and branches have run since the start. A probe is removed when it has told that, so that
the program soon runs as without. `unknown` is what cannot be told.

Times are the mean and the standard deviation of the number of instructions in a call, predicted from the counts of
edges. Callees count with the means of all their calls, if they are profiled. The deviation assumes that branches do not
depend on each other, and that a loop has as many iterations each time. It is predicted for iterations that all take
equally long, and for iterations that do not depend on each other. --explain tells what it comes
from, and measures at most eight calls and loops of the function to confirm it.
With `--unit ns --measured FILE`, the times are nanoseconds: the costs of instructions, of accesses to memory, of branches
and of calls are fitted to the times that `ingraft latency` has measured, and both are printed.

A context is a function with the chain of calls that has led to it. Contexts are a tree: below
each function stand those that it has called, with the number of calls. --metric adds up more
there: `time` and `cpu` in the functions, `bytes` that they ask of the allocation functions,
those that are not freed yet (`live`) and their `blocks`, time in functions that `wait`, and in
those that wait for `locks`. `instructions` and their `reads` and `writes` of memory are what the
functions have executed themselves; paths tell that exactly, so they cost more, and go alone, and
what a call has executed counts when its path ends. --event adds up how often an event of the kernel or of the processor
has happened in the functions: each thread reads its own count when a call begins and ends.
--sum adds up the values of an expression in the contexts of a function, which is measured too:
arguments where its calls begin, results and times where they return. A name that ends with
`_bytes` or `_ns` tells the unit. SELF is the value of a
context alone, TOTAL that of all contexts below it too. `→` marks a function that its caller has
jumped to as the last thing it did, `⟨signal⟩` a handler in what it has interrupted, and `↑` a
recursive call: what it does is in the context above that has the same name, unless --recursion
full.

A path is a way through a function without repetitions: from its entry, or from where a loop
begins again, to an exit, or to where a loop goes back (↻). Calls are parts of paths. RUNS counts
how often control went the whole way, WAY tells the source lines of its blocks, or their offsets.
Functions with too many paths have shorter ones: their paths are cut, also by --truncate. The
counts of blocks and edges that are saved with paths are those on the paths. --stats divides paths
and functions by their part in all reads of memory: hot ones have 1 % or more (--hot), dense ones
are hot and read more for each instruction than the program does, sparse ones are the other hot ones.
--contexts tells the paths of a call apart by the chain of calls that has led to it.
--metric time or cpu and --event tell what passes on each path: its end reads the clock, or the
count of the event in its thread. What passes in a call of a profiled function counts for the paths
of that function alone. --callees also tells each value with all that happens in the calls that the
path makes."
)]
pub(crate) struct ProfileArgs {
    /// Kind of the counts
    #[arg(value_enum, value_name = "KIND")]
    pub(crate) kind: ProfileMode,

    /// Count one more edge of each function, and compare its count with the one derived from the others
    #[arg(long)]
    pub(crate) check: bool,

    /// Events: print at each interval how many events each thread has executed, up to its present instruction
    #[arg(long)]
    pub(crate) query: bool,

    /// Events: count an event also in each function with all that it calls; without EVENT, instructions
    #[arg(long, value_name = "EVENT", num_args = 0..=1, require_equals = true, default_missing_value = EVENT_NAMES[0],
          value_parser = EVENT_NAMES)]
    pub(crate) inclusive: Option<String>,

    /// Events: with --inclusive, count also for each call that the functions make
    #[arg(long)]
    pub(crate) sites: bool,

    /// Times: tell what the variance of this function comes from
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) explain: Option<String>,

    /// Times: unit of the times; nanoseconds need --measured
    #[arg(long, value_enum, value_name = "UNIT")]
    pub(crate) unit: Option<TimesUnit>,

    /// Times: take measured times, callees of indirect calls, and iterations of loops from the output of `ingraft latency`, `ingraft callers`
    /// and `ingraft watch trips@…` with --format json; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) measured: Vec<PathBuf>,

    /// Times: tell how often the loops of each function iterate
    #[arg(long)]
    pub(crate) trips: bool,

    /// Times: compare the counters that Sarkar's paper would place with those of a spanning tree
    #[arg(long)]
    pub(crate) counters: bool,

    /// Coverage: tell also what needs a copy of its function: branches that the blocks do not show, and blocks without room
    #[arg(long)]
    pub(crate) branches: bool,

    /// Place the counters by the counts of this saved profile of the same program, which makes the profile cheaper
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,

    /// Paths: cut paths so that at most so many lead from a block to their ends
    #[arg(long, value_name = "N")]
    pub(crate) truncate: Option<NonZeroU32>,

    /// Paths: tell the paths of a call apart by its calling context
    #[arg(long = "contexts")]
    pub(crate) by_context: bool,

    /// Paths: with --stats, part of all reads that a hot path has at least, in percent [default: 1]
    #[arg(long, value_name = "PERCENT", value_parser = contexts::part)]
    pub(crate) hot: Option<f64>,

    /// Paths: with --metric and --event, add up also with all that happens in the functions that a path calls
    #[arg(long)]
    pub(crate) callees: bool,

    /// Add up also these metrics; for paths, time and cpu [default: calls]
    #[arg(long, value_enum, value_name = "METRIC", value_delimiter = ',', help_heading = "Contexts and paths")]
    pub(crate) metric: Vec<MetricName>,

    /// Add up also this event, one of `ingraft metrics --events`, such as page-faults or cache-misses
    #[arg(long, value_name = "EVENT", help_heading = "Contexts and paths")]
    pub(crate) event: Option<String>,

    /// Add up also the values of this expression in the calls of a function: MDL such as 'written_bytes=libc:write:$return'; may be repeated
    #[arg(long, value_name = "[NAME=]FUNCTION:EXPR", value_parser = expressions::sum, help_heading = "Contexts")]
    pub(crate) sum: Vec<ContextSum>,

    #[command(flatten)]
    pub(crate) contexts: ContextArgs,

    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Functions to profile [default: those of the program's own module]
    #[arg(value_name = "FUNCTION")]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl ProfileArgs {
    /// Options of contexts.
    pub(crate) fn context_options(&self) -> Result<ContextsOptions, Failure> {
        contexts::options(&self.metric, (self.event.as_deref(), &self.sum), self.contexts.full())
    }

    /// Options of paths.
    pub(crate) fn path_options(&self) -> Result<PathsOptions, Failure> {
        let mut metrics: Vec<PathMetric> = Vec::new();
        for name in &self.metric {
            let metric = match name {
                MetricName::Time => PathMetric::WallTime,
                MetricName::Cpu => PathMetric::CpuTime,
                MetricName::Calls => continue,
                other => {
                    let word = other.to_possible_value().map(|word| word.get_name().to_owned()).unwrap_or_default();
                    let what = format!("paths have no metric `{word}`");
                    let hint = "use time, cpu or --event; instructions, reads and writes are always told";
                    return Err(Failure::usage(what, hint));
                }
            };
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        contexts::check_event(self.event.as_deref())?;
        let event = self.event.as_deref().map(Into::into);
        let options =
            PathsOptions { longest: self.truncate, contexts: self.by_context, metrics, event, callees: self.callees };
        let has_values = !options.metrics.is_empty() || options.event.is_some();
        if self.callees && !has_values {
            return Err(Failure::usage("--callees needs values to add up", "use --metric time, cpu, or --event"));
        }
        if !options.fit() {
            let most = ContextsOptions::METRICS_MAX;
            let what = format!("{} values are more than paths have room for in a context", options.names().count());
            return Err(Failure::usage(what, format!("ask for at most {most}, where --callees doubles them")));
        }
        Ok(options)
    }

    /// Refuses to follow children where their counts would be lost.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let has_children = match self.kind {
            ProfileMode::Coverage => true,
            ProfileMode::Contexts => {
                let options = self.context_options()?;
                !options.is_executed() && !options.metrics.iter().any(|metric| metric.is_live())
            }
            _ => false,
        };
        if has_children || !self.measure.follow.contains(&FollowMode::Fork) {
            return Ok(());
        }
        let kind = self.kind.to_possible_value().map(|kind| kind.get_name().to_owned()).unwrap_or_default();
        let what = format!("`profile {kind}` with these options cannot follow forks");
        let hint = "`profile coverage` and `profile contexts` can, the latter without live memory, instructions, reads and writes; or profile a \
                    child with -p PID";
        Err(Failure::usage(what, hint))
    }
}
