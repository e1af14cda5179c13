//! The arguments of `ingraft diagnose`.

use std::time::Duration;

use clap::Args;

use super::{TargetArgs, duration, percent};

/// Longest time of a search.
const LONGEST: Duration = Duration::from_secs(20);

/// `ingraft diagnose`.
#[derive(Debug, Args)]
#[command(
    mut_arg("command", |arg| arg.help("Start this command and sample it while it runs")),
    override_usage = "ingraft diagnose [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>>\n       \
                      ingraft diagnose [OPTIONS] -- <COMMAND>...",
    after_help = "Examples:
  ingraft diagnose -n redis-server                     what the time goes to, and where
  ingraft diagnose -n postgres --all                   which processes of a server have what problem
  ingraft diagnose -p 4711 --for 20s                   a longer search has smaller errors
  ingraft diagnose -- ./simulate data                  a program from its start on
  ingraft diagnose -p 4711 --format json | jq 'select(.type == \"finding\" and .holds)'

The search tests one hypothesis after the other: processor bound, waits for memory, retries, waits
for locks, for input or output, for the disk, for other threads, sleeps. First it samples threads
that run and looks at threads that wait, which puts nothing into the process. What holds is narrowed
down to functions, locks, files, sockets and threads. Then calls of the functions found are timed
for a moment, and the code is removed again.
A share is that of the time in which threads were not idle, with its standard error. Threads are
idle while they wait for clients (accept, epoll, poll, select, reads of accepted connections) or for
work, and if they did nothing in the whole time. A hypothesis holds from 20 % on.
Each finding names a command that shows it, and what would refute it.
Of several processes, the search says first which of them have what problem. It goes on in at most
three: for each problem, the process in which most threads have it.
A program that the command has started runs on after the search. If it ends first, what was seen
until then is told, without times of calls.
Ctrl-C ends the search and prints what was found until then."
)]
pub(crate) struct DiagnoseArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// Time of the whole search, e.g. 10s, 500ms, or 10 for seconds; at most 20s
    #[arg(long = "for", value_name = "DURATION", value_parser = at_most, allow_hyphen_values = true, default_value = "10s")]
    pub(crate) duration: Duration,

    /// Sample so rarely that it costs each thread less than this of its time, in percent; limit of the clocks that are inserted, in percent of a processor [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) max_overhead: Option<f64>,
}

/// Reads the time of a search.
fn at_most(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    if found > LONGEST { Err("longer than 20s".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_not_too_long() {
        assert_eq!(at_most("20s"), Ok(LONGEST));
        assert_eq!(at_most("21s"), Err("longer than 20s".to_owned()));
        assert!(at_most("-1s").is_err() && at_most("soon").is_err());
    }
}
