//! Arguments of `ingraft print`.

use std::time::Duration;

use clap::Args;
use ingraft_model::Capacity;

use super::calls::parts;
use super::{Measure, TargetArgs};
use crate::exit::Failure;

/// `ingraft print`.
#[derive(Debug, Args)]
#[command(
    mut_arg("follow", |arg| arg.hide(true)),
    mut_arg("no_remove", |arg| arg.hide(true)),
    mut_arg("interval", |arg| arg.hide(true)),
    override_usage = "ingraft print [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <FUNCTION> [EXPR]...\n       \
                      ingraft print [OPTIONS] <FUNCTION> [EXPR]... -- <COMMAND>...",
    after_help = "Examples:
  ingraft print -p 4711 load_product --for 10s                        with its arguments, by debugging information
  ingraft print -n redis-server libc:open64 'str($arg[0])' --for 10s
  ingraft print -p 4711 handle_request 'request->size' 'str(request->path)' --slower 10ms
  ingraft print -p 4711 libc:write '$arg[0]' 'str($arg[1], $arg[2])' --entry --if '$arg[2] > 100'

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. EXPR is an MDL expression: $arg[0] to $arg[255], with
debugging information also arguments by name and members, such as request->size. str(EXPR) is the text at an address,
at most 64 bytes of it; str(EXPR, LENGTH) has a length instead of a zero byte at its end. Each line has the call's
result, elapsed time and caller besides.

A line is made when the call returns: arguments are those at its beginning, but memory, so texts and members too, is
read then. With --entry, lines are made when calls begin, without result and elapsed time.
Nothing in the program waits for a line. Calls for which the condition did not hold, that the limit skipped, or that
were lost because lines came faster than they could be read are counted and told; calls that ended by an exception
or a longjmp, or had not ended, are left."
)]
pub(crate) struct PrintArgs {
    /// Print only calls for which this is not 0: an MDL expression such as '$arg[2] > 64 && $return < 0', evaluated in the program
    #[arg(long = "if", value_name = "COND", allow_hyphen_values = true)]
    pub(crate) condition: Option<String>,

    /// Print only calls that took longer than this
    #[arg(long, value_name = "DURATION", value_parser = super::duration, conflicts_with = "entry")]
    pub(crate) slower: Option<Duration>,

    /// Print calls when they begin, without their results and times; memory is read then
    #[arg(long)]
    pub(crate) entry: bool,

    /// Print at most so many calls in a second, or `none`
    #[arg(long, value_name = "N/s", default_value = "1000", value_parser = limit)]
    pub(crate) limit: Limit,

    #[command(flatten)]
    pub(crate) records: RecordArgs,

    /// Print the metric definition (MDL) of which this command is a short form, and measure nothing
    #[arg(long)]
    pub(crate) show_mdl: bool,

    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Function whose calls are printed
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,

    /// Values to print; without one, the arguments that the debugging information names, if there is some
    #[arg(value_name = "EXPR", value_parser = value)]
    pub(crate) exprs: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Options of commands that take records of calls.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// End after this time, whatever else is asked for [default: 1h if a daemon measures]
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    pub(crate) expire: Option<Duration>,

    /// Size of the buffer of each thread in KiB, from 4 to 65536; rounded up to a power of two
    #[arg(long, value_name = "KIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub(crate) buffer: u32,
}

impl RecordArgs {
    /// Room of the buffer of each thread.
    pub(crate) fn capacity(&self) -> Result<Capacity, Failure> {
        let too_large = || Failure::usage("the buffers are too large", "give --buffer fewer KiB");
        Capacity::of_bytes(self.buffer << 10).ok_or_else(too_large)
    }
}

impl PrintArgs {
    /// Refuses what printed calls do not have.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.measure.no_remove || !self.measure.follow.is_empty() {
            let hint = "leave out --no-remove and --follow";
            return Err(Failure::usage("printing ends with its command, and is of one program", hint));
        }
        Ok(())
    }
}

/// Reads a value to print.
pub(super) fn value(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("an expression is needed, such as '$arg[0]'".to_owned()),
        text if parts(text).len() > 1 => {
            Err("one value for each EXPR: put a space, and no comma, between them".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

/// Largest number of lines in a second; `None` for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<u32>);

/// Reads `100`, `100/s` or `none`.
pub(super) fn limit(text: &str) -> Result<Limit, String> {
    let text = text.trim();
    if text == "none" {
        return Ok(Limit(None));
    }
    let number = text.strip_suffix("/s").unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.map(|number| Limit(Some(number))).ok_or_else(|| "a number from 1 on is needed, or `none`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_in_a_second() {
        assert_eq!(limit("100"), Ok(Limit(Some(100))));
        assert_eq!(limit(" 5/s"), Ok(Limit(Some(5))));
        assert_eq!(limit("none"), Ok(Limit(None)));
        assert!(value("a, b").is_err() && value(" ").is_err() && value("str(a, b)").is_ok());
        assert!(limit("0").is_err() && limit("-1").is_err() && limit("5/min").is_err());
    }
}
