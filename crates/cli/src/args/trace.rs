//! Arguments of `ingraft trace` and `ingraft replay`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{Common, Measure, RunningTargets, TargetArgs};
use crate::exit::Failure;

/// `ingraft trace`.
#[derive(Debug, Args)]
#[command(
    mut_arg("follow", |arg| arg.hide(true)),
    mut_arg("no_remove", |arg| arg.hide(true)),
    override_usage = "ingraft trace -o <FILE> [OPTIONS] <-p <PID>|-n <NAME>> <FUNCTION>...\n       \
                      ingraft trace -o <FILE> [OPTIONS] <FUNCTION>... -- <COMMAND>...",
    after_help = "Examples:
  ingraft trace -p 4711 'parse*' --for 2s -o parse.trace
  ingraft trace -n redis-server dictFind dictAdd --for 1s -o dict.trace
  ingraft trace --until-exit compute -o compute.trace -- ./program
  ingraft trace -p 4711 'parse*' --last 10s --when 'parse_end:$return == 0' -o failed.trace
  ingraft replay parse.trace

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. The file gets one byte or so for
each branch and each return of a call, from which `ingraft replay` regenerates every block that the
threads have executed in these functions. A function whose blocks cannot all be told is not traced,
and is named with the reason.

Each thread writes to a buffer of its own, which is emptied while it runs. If a thread is faster, its
buffer becomes full, and the trace has a gap there, which the replay tells. With --lossless, the
thread waits instead until its buffer is empty. If no buffer is emptied for 250 ms, because this
command is stopped or dead, the thread goes on, and the trace has a gap. The file is readable at any
time, also if this command is killed.

With --last, the trace is a flight recorder: the file has only the newest part. It is written when
the condition of --when holds, when the program ends or a signal kills it, or when this command ends.
A condition is tested at the entry of its function. If its expression uses the result or the time of
the call ($return, $elapsed, $cpu), it is tested at the returns."
)]
pub(crate) struct TraceArgs {
    /// Size of the buffer of each thread in KiB, from 4 to 65536; rounded up to a power of two
    #[arg(long, value_name = "KIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub(crate) buffer: u32,

    /// Write the time at each entry of a function; `ingraft replay` prints it
    #[arg(long)]
    pub(crate) times: bool,

    /// Let a thread wait for room when its buffer is full, for at most 250 ms without progress
    #[arg(long)]
    pub(crate) lossless: bool,

    /// Keep only the newest part of the trace, of this length, in memory, and write it at the end
    #[arg(long, value_name = "DURATION", value_parser = super::duration, allow_hyphen_values = true)]
    pub(crate) last: Option<Duration>,

    /// End the trace when a condition holds: FUNCTION, or FUNCTION:EXPRESSION of MDL
    #[arg(long, value_name = "CONDITION", requires = "last")]
    pub(crate) when: Option<String>,

    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Functions to trace
    #[arg(value_name = "FUNCTION", required = true)]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl TraceArgs {
    /// Refuses what a trace does not have.
    pub(super) fn check(&self, common: &Common) -> Result<(), Failure> {
        let usage = |what, hint| Err(Failure::usage(what, hint));
        if common.output.is_none() {
            return usage("a trace is written to a file, and none is named", "add -o FILE");
        }
        let RunningTargets { single, all, cgroup } = &self.target.running;
        if *all || cgroup.is_some() || single.pids.len() > 1 {
            return usage("a trace is of one process", "name one with -p PID or -n NAME");
        }
        if self.measure.no_remove || !self.measure.follow.is_empty() {
            return usage("a trace ends with its command, and is of one program", "leave out --no-remove and --follow");
        }
        Ok(())
    }
}

/// `ingraft replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft replay parse.trace                           all blocks, thread by thread
  ingraft replay parse.trace --summary                 how often each block was executed
  ingraft replay parse.trace 'parse_*' --thread 4711   one thread, some functions
  ingraft replay parse.trace --instructions            all instructions, by address
  ingraft replay parse.trace --format json | jq -r 'select(.step == \"enter\") | .function'

The threads are told apart by their numbers, and their steps come as the file has them: some of one
thread, then some of another one. The instructions come from the files of the modules, if these still
have the same build-ids. A gap says that steps of the thread are missing. At the end, the command
tells for each thread what the file does not tell.")]
pub(crate) struct ReplayArgs {
    /// The file of the trace
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Only these functions: names or globs, each also as MODULE:GLOB
    #[arg(value_name = "FUNCTION")]
    pub(crate) functions: Vec<String>,

    /// Only this thread; repeat it for several
    #[arg(long = "thread", value_name = "TID")]
    pub(crate) threads: Vec<u32>,

    /// Print instructions instead of blocks
    #[arg(long, conflicts_with = "summary")]
    pub(crate) instructions: bool,

    /// Print how often functions and blocks were executed, instead of the sequence
    #[arg(long)]
    pub(crate) summary: bool,
}

impl ReplayArgs {
    /// Refuses to write the output over the trace.
    pub(super) fn check(&self, output: Option<&Path>) -> Result<(), Failure> {
        let real = |path: &Path| path.canonicalize().ok();
        match output.filter(|output| real(output).is_some_and(|output| real(&self.file) == Some(output))) {
            Some(path) => {
                let what = format!("the output would replace {}, which the command reads", path.display());
                Err(Failure::usage(what, "choose another file with -o"))
            }
            None => Ok(()),
        }
    }
}
