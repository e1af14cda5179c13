//! `ingraft trace`: writes all blocks that a process executes in some functions to a file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use ingraft_api::{EnableRequest, Kind, TraceCondition, TraceOptions};
use ingraft_model::Capacity;
use ingraft_model::token::Token;
use ingraft_report::{TraceError, TraceRecord, TraceRecords};

use crate::args::{TraceArgs, expressions};
use crate::conn::RequestTarget;
use crate::exit::{Failure, Stop};
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, TargetMeasurement, TracePart};
use crate::objects::{Object, traces};
use crate::output::number::{grouped, plural};
use crate::output::{self, Destination, Output};

/// Runs the command.
pub(crate) async fn run(args: TraceArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let TraceArgs { buffer, times, lossless, last, when, measure, functions, target } = args;
    let when = when.as_deref().map(condition);
    let kept = last.map_or(TracePart::All, |last| TracePart::Newest { last, when: when.is_some() });
    let too_large = || Failure::usage("the buffers are too large", "give --buffer fewer KiB");
    let capacity = Capacity::of_bytes(buffer << 10).ok_or_else(too_large)?;
    let options = TraceOptions { capacity, times, lossless, when };
    let own = EnableRequest { functions, kind: Kind::Trace(options), ..EnableRequest::default() };
    let request = |target: RequestTarget| {
        let mut request = measure::request(target, &measure, own.clone());
        (request.measure.keep, request.measure.family) = (false, false);
        request
    };
    let path = context.common.output.clone().unwrap_or_default();
    // A file that cannot be written is refused before the target is touched.
    let file = Destination::prepare(&path)?;
    let plan = MeasurementPlan::new(&measure, &target, request, out).traced_to(file, kept);
    let format = context.common.format;
    measure::run(plan, context, &mut Traces { path: &path, lossless, format }, out).await
}

/// The function and the expression of a condition.
fn condition(text: &str) -> TraceCondition {
    let (function, expression) = expressions::split(text).unwrap_or((text, ""));
    TraceCondition { function: function.to_owned(), expression: expression.to_owned() }
}

struct Traces<'a> {
    path: &'a Path,
    lossless: bool,
    format: crate::args::Format,
}

impl MeasurementView for Traces<'_> {
    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.first() else { return Ok(()) };
        let traced = self.traced(site).map_err(|e| {
            Failure::failed(format!("cannot read {}: {e}", self.path.display()), "trace again into another file")
        })?;
        let number = |of: u64| grouped(i64::try_from(of).unwrap_or(i64::MAX));
        if traced.gaps + traced.unbuffered > 0 {
            let what = match traced.unbuffered {
                0 => {
                    let why = if self.lossless { "threads waited for room in vain" } else { "buffers were full" };
                    format!("the trace has {}: {why}", plural(traced.gaps, "gap", "gaps"))
                }
                n => format!(
                    "the trace has {} and lacks {} tokens of threads without a buffer",
                    plural(traced.gaps, "gap", "gaps"),
                    number(n)
                ),
            };
            output::warn(&format!("{what}; --buffer makes them larger"), self.format);
        }
        out.text(&format!(
            "{} of {} in {}, written to {}\n",
            plural(traced.bytes, "byte", "bytes"),
            plural(traced.threads, "thread", "threads"),
            plural(traced.functions, "function", "functions"),
            traced.file,
        ))?;
        if let Some(newest) = &traced.newest {
            out.text(&newest.words())?;
        }
        out.object(&Object::Traced(traced))
    }
}

impl Traces<'_> {
    /// Describes the file.
    fn traced(&self, site: &TargetMeasurement) -> Result<traces::TracedObject, TraceError> {
        let mut traced = traces::TracedObject {
            host: site.host(),
            pid: site.pid(),
            file: self.path.display().to_string(),
            functions: 0,
            threads: 0,
            bytes: 0,
            gaps: 0,
            unbuffered: 0,
            newest: None,
        };
        let mut streams = BTreeSet::new();
        for record in TraceRecords::new(BufReader::new(File::open(self.path)?))? {
            match record? {
                TraceRecord::Program(_) => {}
                TraceRecord::Code(code) => traced.functions += code.functions.len() as u64,
                TraceRecord::Chunk(chunk) => {
                    streams.insert(chunk.stream);
                    traced.bytes += chunk.tokens.len() as u64;
                    let mut rest = chunk.tokens.as_slice();
                    while let Ok(Some((token, length))) = Token::read(rest) {
                        traced.gaps += u64::from(token == Token::Gap);
                        rest = rest.get(length..).unwrap_or_default();
                    }
                }
                TraceRecord::End(end) => traced.unbuffered = end.unbuffered,
                TraceRecord::Newest(newest) => traced.newest = Some(traces::NewestFacts::of(&newest)),
            }
        }
        traced.threads = streams.len() as u64;
        Ok(traced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_function_and_an_expression() {
        for (text, function, expression) in [
            ("fail", "fail", ""),
            ("libc.so.6:abort", "libc.so.6:abort", ""),
            ("parse:$return == 0", "parse", "$return == 0"),
            ("shop:parse: $arg[0] > 5", "shop:parse", "$arg[0] > 5"),
            ("ns::parse:($arg[1] & 3) != 0", "ns::parse", "($arg[1] & 3) != 0"),
            ("parse:readSymbol(\"file.c:level\") > 2", "parse", "readSymbol(\"file.c:level\") > 2"),
        ] {
            let found = condition(text);
            assert_eq!((found.function.as_str(), found.expression.as_str()), (function, expression));
        }
    }
}
