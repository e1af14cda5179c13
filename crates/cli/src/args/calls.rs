//! Arguments that select calls and group them, and the commands about single values of calls.

use clap::Args;

use super::{Measure, TargetArgs};

/// Selection of calls by a condition, and their groups.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CallSelection {
    /// Measure only calls for which this is not 0 (`latency` times only these, and counts all): an MDL expression such as '$arg[2] > 64 && $return < 0', or 'size > 64' with debugging information
    #[arg(long = "if", value_name = "COND", allow_hyphen_values = true)]
    pub(crate) condition: Option<String>,

    /// Tell calls apart by these values: MDL expressions such as '$arg[0]', 'request->method' or 'str($arg[1])', which is a text; `caller` is the place of the call. With `latency`, `context` alone is the chain of callers
    #[arg(long, value_name = "EXPR[,EXPR]", allow_hyphen_values = true, value_parser = key)]
    pub(crate) by: Option<String>,

    /// Print the values of at most so many keys, those with the largest values; the others are added up
    #[arg(long, value_name = "N", requires = "by", value_parser = top)]
    pub(crate) top: Option<usize>,

    /// Print the metric definitions (MDL) of which these options are a short form, and measure nothing
    #[arg(long)]
    pub(crate) show_mdl: bool,
}

/// The parts of a text between the commas that are outside of parentheses, brackets and quotation marks, without spaces around them.
pub(crate) fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let is_comma = |c: char| {
        let was_escaped = std::mem::take(&mut escaped);
        match c {
            '"' if !was_escaped => quoted = !quoted,
            '\\' if quoted => escaped = !was_escaped,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0 && !quoted
    };
    text.split(is_comma).map(str::trim).collect()
}

/// Reads the expressions of a key.
fn key(text: &str) -> Result<String, String> {
    let part = |part| match part {
        "" => Err("an expression is needed, such as '$arg[0]'".to_owned()),
        "caller" => Ok("$caller"),
        part => Ok(part),
    };
    Ok(parts(text).into_iter().map(part).collect::<Result<Vec<_>, _>>()?.join(", "))
}

/// Reads a number of rows.
fn top(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a number from 1 on is needed".to_owned())
}

/// `ingraft callers`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft callers [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <FUNCTION>...\n       \
                      ingraft callers [OPTIONS] <FUNCTION>... -- <COMMAND>...",
    after_help = "Examples:
  ingraft callers -n redis-server dictFind --for 10s
  ingraft callers -p 4711 libc:malloc --if '$arg[0] > 100000' --top 10
  ingraft callers -p 4711 ExecutorRun --stacks --for 30s
  ingraft callers -p 4711 ExecutorRun --until-roots --for 10s
  ingraft callers -p 4711 ExecutorRun --format json | jq -r 'select(.type == \"caller\") | .caller'

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. The numbers are exact, and add up to the calls of the
function. The caller is told by the return address: if a function ends in a jump to the measured one, that is the
function that called the former. AT is the offset of the call in the caller.
Ctrl-C ends the measurement, removes it, and prints the final values."
)]
pub(crate) struct CallersArgs {
    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Count only calls for which this is not 0: an MDL expression such as '$arg[2] > 64'
    #[arg(long = "if", value_name = "COND", allow_hyphen_values = true)]
    pub(crate) condition: Option<String>,

    /// Print at most so many call sites of a function, those with the most calls; the others are added up
    #[arg(long, value_name = "N", value_parser = top)]
    pub(crate) top: Option<usize>,

    /// Print the metric definition (MDL) of which this command is a short form, and measure nothing
    #[arg(long)]
    pub(crate) show_mdl: bool,

    /// Also sample whole stacks below the functions; their shares are of the time in a function, not of its calls
    #[arg(long, conflicts_with = "condition")]
    pub(crate) stacks: bool,

    /// Count also the callers of the callers, until no caller is new: all in one window, at most 1,000 functions
    #[arg(long, conflicts_with_all = ["condition", "stacks", "follow"])]
    pub(crate) until_roots: bool,

    /// Functions whose callers are counted
    #[arg(value_name = "FUNCTION", required = true)]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// `ingraft hist`.
#[derive(Debug, Args)]
#[command(
    override_usage = "ingraft hist [OPTIONS] <-p <PID>|-n <NAME> [--all]|--cgroup <PATH>> <FUNCTION> <EXPR>\n       \
                      ingraft hist [OPTIONS] <FUNCTION> <EXPR> -- <COMMAND>...",
    after_help = "Examples:
  ingraft hist -n redis-server libc:write '$arg[2]' --for 10s      sizes of writes
  ingraft hist -n redis-server libc:read '$return' --if '$return > 0'
  ingraft hist -p 4711 handle_request '$elapsed'                   as latency, in nanoseconds

A FUNCTION is a name, a glob, MODULE:GLOB, or MODULE+0xOFFSET. EXPR is an MDL expression: $arg[0] to $arg[255],
$return, $elapsed; with debugging information also arguments by name and members, such as request->size. Count, sum, smallest and largest value are
exact, percentiles within 4 %. Negative values count as 0."
)]
pub(crate) struct HistArgs {
    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Measure only calls for which this is not 0: an MDL expression such as '$return > 0'
    #[arg(long = "if", value_name = "COND", allow_hyphen_values = true)]
    pub(crate) condition: Option<String>,

    /// Print the metric definition (MDL) of which this command is a short form, and measure nothing
    #[arg(long)]
    pub(crate) show_mdl: bool,

    /// Function at whose calls the value is taken
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,

    /// The value: an MDL expression
    #[arg(value_name = "EXPR", allow_hyphen_values = true)]
    pub(crate) expr: String,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_parts() {
        for (text, expected) in [
            ("caller", "$caller"),
            (" f($arg[0], 2) ", "f($arg[0], 2)"),
            ("$arg[0],caller,str($arg[1], 4)", "$arg[0], $caller, str($arg[1], 4)"),
            ("n == \"a,\\\",b\",m", "n == \"a,\\\",b\", m"),
        ] {
            assert_eq!(key(text), Ok(expected.to_owned()));
        }
        assert!(key("$arg[0],").is_err() && key(" ").is_err() && key("a,,b").is_err() && top("0").is_err());
    }
}
