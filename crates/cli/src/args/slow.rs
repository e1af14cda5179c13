//! Arguments of `ingraft slow`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ingraft_api::ToldValue;

use super::expressions;
use super::print::{Limit, RecordArgs, limit, value};
use super::{Measure, TargetArgs};
use crate::exit::Failure;

/// Part of the time of `--over` below which calls inside are not told unless `--least` says otherwise.
const PART: u32 = 100;

/// `ingraft slow`.
#[derive(Debug, Args)]
#[command(
    mut_arg("follow", |arg| arg.hide(true)),
    mut_arg("no_remove", |arg| arg.hide(true)),
    mut_arg("interval", |arg| arg.hide(true)),
    override_usage = "ingraft slow [OPTIONS] --over <DURATION> <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <FUNCTION> [EXPR]...\n       \
                      ingraft slow [OPTIONS] --over <DURATION> <FUNCTION> [EXPR]... -- <COMMAND>...",
    after_help = "Examples:
  ingraft slow -p 4711 handle_request --over 50ms
  ingraft slow -n postgres exec_simple_query 'str($arg[0])' --over 100ms --for 1m
  ingraft slow -p 4711 handle_request --over 50ms --callees 'libssl:*' --callees 'libpq:PQ*' --least 1ms
  ingraft slow -p 4711 handle_request --over 50ms --tell 'run_query:str($arg[1])' --tell 'libc:read:$return'
  ingraft slow -n redis-server call --over 1ms --perfetto slow.json --for 1m
  ingraft slow -p 4711 handle_request --over 1s --then trace handle.trace

Each call of FUNCTION that took longer than --over is shown with the calls that it has made: when each began, how
long it took, and how long without the calls inside that are shown. Own times add up to the time of the call.
Calls inside are those of --callees; without that, all functions of the module of FUNCTION, and the functions of
the C library in which threads wait. A function that is called too often for --max-overhead is left out, and told:
its time is that of its caller. Nothing is written for calls that were faster.
With --then, the first slow call starts `ingraft trace` or `ingraft profile edges` of FUNCTION and the --callees, which
ends with this command.
EXPR is an MDL expression: $arg[0] to $arg[255], with debugging information also arguments by name and members, such
as request->size. str(EXPR) is the text at an address, at most 64 bytes of it. At most three arguments are kept;
memory, so texts and members too, is read when the call returns. --tell shows values of calls inside in the same way."
)]
pub(crate) struct SlowArgs {
    /// Show calls of FUNCTION that take longer than this
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub(crate) over: Duration,

    /// Show calls inside that take longer than this [default: a hundredth of --over]
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub(crate) least: Option<Duration>,

    /// Functions whose calls are shown inside of slow calls: a glob or MODULE:GLOB; repeat it for more
    #[arg(long, value_name = "GLOB")]
    pub(crate) callees: Vec<String>,

    /// Show also this value of the calls of a function inside, such as 'run_query:str($arg[1])'; repeat it for more
    #[arg(long, value_name = "FUNCTION:EXPR", value_parser = expressions::told)]
    pub(crate) tell: Vec<ToldValue>,

    /// Show at most so many slow calls in a second, or `none`
    #[arg(long, value_name = "N/s", default_value = "100", value_parser = limit)]
    pub(crate) limit: Limit,

    /// Write the calls to this file as well, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,

    /// Start a measurement of another kind at the first slow call, and save it in a file: `trace FILE` or `profile FILE`
    #[arg(long, value_names = ["KIND", "FILE"], num_args = 2)]
    pub(crate) then: Vec<String>,

    #[command(flatten)]
    pub(crate) records: RecordArgs,

    /// Print the metric definition (MDL) of the values, and measure nothing
    #[arg(long)]
    pub(crate) show_mdl: bool,

    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Function whose slow calls are shown
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,

    /// Values of slow calls to show
    #[arg(value_name = "EXPR", value_parser = value)]
    pub(crate) exprs: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl SlowArgs {
    /// Time that a call inside must take to be told.
    pub(crate) fn least(&self) -> Duration {
        self.least.unwrap_or(self.over / PART)
    }

    /// Refuses what slow calls do not have.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.measure.no_remove || !self.measure.follow.is_empty() {
            let hint = "leave out --no-remove and --follow";
            return Err(Failure::usage("slow calls are looked for as long as the command runs, in one program", hint));
        }
        if let Some(kind) = self.then.first().filter(|kind| !["trace", "profile"].contains(&kind.as_str())) {
            return Err(Failure::usage(
                format!("--then {kind} is no measurement"),
                "write --then trace FILE or --then profile FILE",
            ));
        }
        if self.over.is_zero() {
            return Err(Failure::usage("every call is longer than --over 0", "use `ingraft print` for all calls"));
        }
        Ok(())
    }
}
