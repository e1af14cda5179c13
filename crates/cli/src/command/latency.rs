//! `ingraft latency`: the metric `latency` at each function, or `cpu_latency`.

use ingraft_model::{Activations, Distribution};

use super::rows::{self, Asked, Presentation, Row, Stage};
use crate::args::LatencyArgs;
use crate::exit::Stop;
use crate::measure::Context;
use crate::objects::{FunctionId, Latency, Object, ThreadLatency, Times};
use crate::output::number::{plural, time};
use crate::output::table::Cell;
use crate::output::{HEADING, Output, histogram, words};

/// As many functions as get a histogram each without being asked.
const HANDFUL: usize = 5;

/// Runs the command.
pub(crate) async fn run(args: LatencyArgs, context: Context<'_>, out: &mut Output) -> Result<(), Stop> {
    let (clock, metric) = if args.cpu { ("cpu", "cpu_latency") } else { ("wall", "latency") };
    let presentation = Latencies { histograms: args.histogram, clock };
    let asked = Asked { measure: args.measure, target: args.target, functions: args.functions, metric };
    rows::run(asked, presentation, context, out).await
}

struct Latencies {
    /// A histogram of every function, however many there are.
    histograms: bool,
    /// `wall` or `cpu`.
    clock: &'static str,
}

impl Presentation for Latencies {
    fn titles(&self, _: Stage) -> &'static [&'static str] {
        &["MEAN", "P50", "P90", "P99", "P99.9", "MAX"]
    }

    fn cells(&self, row: Row<'_>, _: Stage) -> Vec<Cell> {
        let distribution = distribution(&row);
        let mean = distribution.and_then(Distribution::mean);
        let quantile = |(_, q)| distribution.and_then(|d| d.quantile(q)).map(|ns| ns as f64);
        let times = std::iter::once(mean).chain(histogram::QUANTILES.map(quantile));
        times.map(|ns| ns.map(time).unwrap_or_default().into()).collect()
    }

    fn object(&self, row: Row<'_>) -> Object {
        let value = row.value();
        let thread = |t: &crate::conn::ThreadValue| ThreadLatency {
            tid: t.tid,
            pid: t.pid,
            times: Times::of(t.value, t.distribution.as_deref()),
            missing: t.activations.into(),
        };
        Object::Latency(Latency {
            id: row.id(),
            clock: self.clock,
            times: Times::of(row.calls(), distribution(&row)),
            threads: value.map(|v| v.threads.iter().map(thread).collect()).unwrap_or_default(),
            missing: value.map(|v| v.activations).unwrap_or_default().into(),
            taken_out_ns: value.and_then(|v| v.taken_out).map(|why| why.time_ns),
            exact_since_ns: row.exact_since_ns(),
        })
    }

    fn below(&self, rows: &[Row<'_>], width: Option<usize>) -> String {
        let missing = rows.iter().filter_map(Row::value).fold(Activations::default(), |sum, v| sum.plus(v.activations));
        let mut text = words::missing(missing);
        let called: Vec<_> =
            rows.iter().filter_map(|row| Some((row, distribution(row).filter(|d| d.count > 0)?))).collect();
        if !called.is_empty() && (self.histograms || called.len() <= HANDFUL) {
            for (row, distribution) in called {
                let FunctionId { function, .. } = row.id();
                let calls = plural(distribution.count, "call", "calls");
                text += &format!("\n{HEADING}{function}{HEADING:#}: {calls}\n");
                text += &histogram::render(distribution, "CALLS", |ns| time(ns as f64), width);
            }
            text += "\n";
        }
        text
    }
}

fn distribution<'a>(row: &Row<'a>) -> Option<&'a Distribution> {
    row.value()?.distribution.as_deref()
}
