//! `ingraft latency`: the metric `latency` at each function, or `cpu_latency`, and the number of its calls.
//!
//! All functions are timed from one moment on. Those that would cost too much are counted only, and those that turn out to cost too much
//! are timed no further; they stand below the others, because their times are of another span.

use std::cmp::Ordering;

use ingraft_api::{ThreadValue, Value};
use ingraft_model::{Distribution, Pid, Tid};

use super::context_latency;
use super::expression::{Computed, ExpressionMetric};
use super::keyed::{self, KeyedView};
use super::rows::{self, FunctionRow, Presentation, RowsRequest, TableStage};
use crate::args::{self, CallSelection, LatencyArgs, LatencySort};
use crate::exit::{Failure, Stop};
use crate::measure::{CommandContext, MeasurementView};
use crate::objects::{LatencyObject, MissingCalls, Object, RecordedFunction, ThreadLatency, Times};
use crate::output::histogram::{self, HANDFUL};
use crate::output::number::{grouped_u64, plural, time};
use crate::output::table::Cell;
use crate::output::{DIM, HEADING, Output, abbreviated, words};

/// Runs the command.
pub(crate) async fn run(args: LatencyArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    if context_latency::is_asked(args.calls.by.as_deref())? {
        return context_latency::run(args, context, out).await;
    }
    if !args.callers.is_empty() {
        let hint = "use `ingraft latency --by context --callers FUNCTION`";
        return Err(Failure::usage("--callers belongs to `--by context`", hint).into());
    }
    let (clock, metric) = if args.cpu { ("cpu", "cpu_latency") } else { ("wall", "latency") };
    let condition = args.calls.condition.clone();
    let presentation = Latencies { histograms: args.histogram, clock, sort: args.sort, condition };
    let LatencyArgs { measure, target, functions, calls, cpu, .. } = args;
    if calls.by.is_some() {
        return by_key((&measure, &target), functions, (&calls, cpu), context, out).await;
    }
    let definition = ExpressionMetric::new(Computed::Times { cpu }, &calls);
    if calls.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    let (metric, definitions) = match &calls.condition {
        Some(_) => (definition.metric.clone(), vec![definition]),
        None => (metric.to_owned(), Vec::new()),
    };
    let asked = RowsRequest { measure, target, functions, metric, definitions, counted: Some(COUNTED) };
    rows::run(asked, presentation, context, out).await
}

/// Measures the times of calls by a value: their number and their sum for each key.
async fn by_key(
    measured: (&args::Measure, &args::TargetArgs),
    functions: Vec<String>,
    (calls, cpu): (&CallSelection, bool),
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let counting = ExpressionMetric::new(Computed::Returns, calls);
    let timing = ExpressionMetric::new(Computed::Time { cpu }, calls);
    let mut view = KeyedView {
        metric: timing.metric.clone(),
        counting: Some(counting.metric.clone()),
        expr: calls.by.clone().unwrap_or_default(),
        condition: calls.condition.clone(),
        title: "TOTAL",
        top: calls.top,
        samples: measured.0.interval.is_some(),
    };
    let definitions = [timing, counting];
    if calls.show_mdl {
        return ExpressionMetric::show(&definitions, out);
    }
    keyed::measure(measured, functions, &definitions, &mut view, context, out).await
}

/// Presents times of measurements that were inserted earlier; `clock` is `wall` or `cpu`.
pub(super) fn view(clock: &'static str) -> Box<dyn MeasurementView + Send> {
    rows::view(Latencies { histograms: false, clock, sort: None, condition: None })
}

struct Latencies {
    /// Whether every function gets a histogram, however many functions there are.
    histograms: bool,
    /// Clock of the times: `wall` or `cpu`.
    clock: &'static str,
    sort: Option<LatencySort>,
    /// Condition of the calls that are timed; `None` if all may be timed.
    condition: Option<String>,
}

/// The metric that counts the calls.
pub(super) const COUNTED: &str = "calls";

/// The whole that shares are parts of, over all functions that are timed to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareBase {
    /// The sum of the own times, in nanoseconds.
    Own(u64),
    /// The sum of the times, in nanoseconds: no function has an own time.
    Total(u64),
}

impl ShareBase {
    /// The part that a function with these times has, and the whole; `None` if there is no whole, or if the part is not known.
    fn part(self, times: &Distribution) -> Option<(u64, u64)> {
        let (part, whole) = match self {
            ShareBase::Own(whole) => (times.own.or((times.count == 0).then_some(0))?, whole),
            ShareBase::Total(whole) => (times.sum, whole),
        };
        (whole > 0).then_some((part, whole))
    }
}

/// The span in which the calls of a function are timed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TimedSpan {
    /// As long as the measurement lasts.
    Whole,
    /// From the same moment on as the others, for so many nanoseconds; `None` if that moment is not known.
    Ended(Option<u64>),
    /// Calls are only counted.
    Never,
}

impl TimedSpan {
    fn of(row: &FunctionRow<'_>) -> TimedSpan {
        let since = row.timed_since_ns();
        match row.value().and_then(|value| value.details().taken_out) {
            _ if row.is_refused() => TimedSpan::Never,
            None => TimedSpan::Whole,
            Some(why) if since.is_some_and(|since| why.time_ns <= since) && row.counting.is_some() => TimedSpan::Never,
            Some(why) => TimedSpan::Ended(since.map(|since| why.time_ns.saturating_sub(since))),
        }
    }
}

impl Presentation for Latencies {
    type Whole = ShareBase;

    fn whole(&self, rows: &[FunctionRow<'_>]) -> ShareBase {
        let whole = rows.iter().filter(|row| TimedSpan::of(row) == TimedSpan::Whole);
        let times: Vec<&Distribution> = whole.filter_map(distribution).filter(|d| d.count > 0).collect();
        if times.iter().any(|d| d.own.is_some()) {
            ShareBase::Own(times.iter().filter_map(|d| d.own).fold(0, u64::saturating_add))
        } else {
            ShareBase::Total(times.iter().map(|d| d.sum).fold(0, u64::saturating_add))
        }
    }

    fn counted(&self) -> Option<&'static str> {
        Some(COUNTED)
    }

    fn titles(&self, _: TableStage) -> &'static [&'static str] {
        &["TIMED", "SELF", "SHARE", "TOTAL", "MEAN", "STDDEV", "P50", "P90", "P99", "P99.9", "MAX"]
    }

    fn optional(&self) -> &'static [&'static str] {
        &["STDDEV", "P99.9", "P90", "MODULE", "TIMED", "P50", "HOST", "MEAN", "P99", "MAX"]
    }

    fn cells(&self, row: FunctionRow<'_>, _: TableStage, whole: &ShareBase) -> Vec<Cell> {
        let called = distribution(&row).filter(|d| d.count > 0);
        let mean = called.and_then(Distribution::mean);
        let quantile = |(_, q)| called.and_then(|d| d.quantile(q)).map(|ns| ns as f64);
        let deviation = called.and_then(Distribution::stddev);
        let times = [mean, deviation].into_iter().chain(histogram::QUANTILES.map(quantile));
        let total = called.and_then(Distribution::exact_sum).map(|ns| time(ns as f64)).unwrap_or_default();
        let own = called.and_then(|d| d.own).map(|ns| time(ns as f64)).unwrap_or_default();
        let (timed, share) = match TimedSpan::of(&row) {
            TimedSpan::Whole => {
                let share = called
                    .and_then(|d| whole.part(d))
                    .map(|(part, whole)| histogram::share(part, whole))
                    .unwrap_or_default();
                (called.map(|d| grouped_u64(d.count)).unwrap_or_default(), share)
            }
            TimedSpan::Ended(ns) => {
                let span = ns.map_or_else(|| "a part".to_owned(), |ns| time(ns as f64));
                (format!("{} in {span}", grouped_u64(called.map_or(0, |d| d.count))), String::new())
            }
            TimedSpan::Never => ("counted only".to_owned(), String::new()),
        };
        let times = times.map(|ns| ns.map(time).unwrap_or_default());
        [timed, own, share, total].into_iter().chain(times).map(Cell::from).collect()
    }

    fn sort(&self, rows: &mut [FunctionRow<'_>]) -> bool {
        if let Some(by) = self.sort {
            rows.sort_by_cached_key(|row| SortKey::of(row, by));
        }
        self.sort.is_some()
    }

    fn last(&self, row: &FunctionRow<'_>) -> bool {
        TimedSpan::of(row) != TimedSpan::Whole
    }

    fn object(&self, row: FunctionRow<'_>, whole: &ShareBase) -> Object {
        let value = row.value();
        let activations = value.map(|v| v.details().activations).unwrap_or_default();
        // The number is never left out, because it shows whether a time may cover only a part of the call.
        let left_by_tail_jump = Some(activations.left_by_tail_jump);
        let threads = threads(&row);
        let thread = |(tid, pid, calls, timed): CallingThread<'_>| ThreadLatency {
            tid: tid.map(|tid| tid.0),
            pid: pid.map(|pid| pid.0),
            times: Times::of(calls, timed.and_then(|t| t.distribution.as_deref())),
            missing: timed.map(|t| t.activations).unwrap_or_default().into(),
        };
        Object::Latency(LatencyObject {
            id: row.id(),
            context: None,
            condition: self.condition.clone(),
            clock: self.clock,
            times: Times::of(row.calls(), distribution(&row)),
            mean_ns: distribution(&row).and_then(Distribution::mean),
            share: whole
                .part(distribution(&row).unwrap_or(&Distribution::default()))
                .filter(|_| TimedSpan::of(&row) == TimedSpan::Whole)
                .map(|(part, whole)| part as f64 / whole as f64),
            threads: threads.into_iter().map(thread).collect(),
            missing: MissingCalls { left_by_tail_jump, ..activations.into() },
            timed_since_ns: row.timed_since_ns(),
            taken_out_ns: value.and_then(|v| v.details().taken_out).map(|why| why.time_ns),
            facts: row.facts(),
        })
    }

    fn below(&self, rows: &[FunctionRow<'_>], width: Option<usize>) -> String {
        let called: Vec<_> =
            rows.iter().filter_map(|row| Some((row, distribution(row).filter(|d| d.count > 0)?))).collect();
        let mut text = if called.len() > 1 { shares(self.whole(rows)) } else { String::new() };
        let missing = |row: &FunctionRow<'_>| row.value().map(|v| (row.id().function, v.details().activations));
        text += &words::missing(&rows.iter().filter_map(missing).collect::<Vec<_>>());
        if !called.is_empty() && (self.histograms || called.len() <= HANDFUL) {
            for (row, distribution) in called {
                let RecordedFunction { function, .. } = row.id();
                let function = abbreviated(&function);
                let calls = plural(distribution.count, "timed call", "timed calls");
                text += &format!("\n{HEADING}{function}{HEADING:#}: {calls}\n");
                text += &histogram::render(distribution, "CALLS", |ns| time(ns as f64), width);
            }
            text += "\n";
        }
        text
    }
}

/// Explains the columns SELF, TOTAL and SHARE.
fn shares(sum: ShareBase) -> String {
    let nested = "a call is also in the TOTAL of each function above that waits for it";
    match sum {
        ShareBase::Own(sum) => {
            let sum = time(sum as f64);
            format!(
                "{DIM}SELF is without the other functions that are timed; SHARE is of the sum of SELF, {sum}; {nested}{DIM:#}\n"
            )
        }
        ShareBase::Total(sum) => {
            format!("{DIM}SHARE is of the sum of TOTAL, {}; {nested}{DIM:#}\n", time(sum as f64))
        }
    }
}

/// A thread that has called a function: its id, its process if that is a child, the number of its calls, and their times.
type CallingThread<'a> = (Option<Tid>, Option<Pid>, i64, Option<&'a ThreadValue>);

/// The threads that have called a function.
fn threads<'a>(row: &FunctionRow<'a>) -> Vec<CallingThread<'a>> {
    let of = |value: Option<&'a Value>| value.map(|v| v.details().threads.as_slice()).unwrap_or_default();
    let timed = of(row.value());
    let same = |a: &ThreadValue, b: &ThreadValue| (a.tid, a.pid) == (b.tid, b.pid);
    let Some(counting) = row.counting.map(|_| of(row.counts())) else {
        return timed.iter().map(|t| (t.tid, t.pid, t.value, Some(t))).collect();
    };
    let counted = counting.iter().map(|c| (c.tid, c.pid, c.value, timed.iter().find(|t| same(t, c))));
    // The two values are not read at the same instant.
    let new = timed.iter().filter(|t| !counting.iter().any(|c| same(t, c)));
    counted.chain(new.map(|t| (t.tid, t.pid, t.value, Some(t)))).collect()
}

/// Sort key of a row: numbers from the largest to the smallest, then names; a row without a number is last.
pub(super) struct SortKey {
    number: Option<f64>,
    name: String,
    offset: String,
}

impl SortKey {
    fn of(row: &FunctionRow<'_>, by: LatencySort) -> Self {
        let RecordedFunction { function, offset, .. } = row.id();
        SortKey::new(by, (row.calls() as f64, distribution(row)), (function, offset))
    }

    /// The key of a row with these calls and times, by the name and the offset of its function.
    pub(super) fn new(
        by: LatencySort,
        (calls, times): (f64, Option<&Distribution>),
        (name, offset): (String, String),
    ) -> Self {
        let called = times.filter(|d| d.count > 0);
        let quantile = |q| called.and_then(|d| d.quantile(q)).map(|ns| ns as f64);
        let number = match by {
            LatencySort::Calls => Some(calls),
            LatencySort::Own => called.and_then(|d| d.own).map(|ns| ns as f64),
            LatencySort::Total => called.map(|d| d.sum as f64),
            LatencySort::Mean => called.and_then(Distribution::mean),
            LatencySort::P50 => quantile(0.5),
            LatencySort::P90 => quantile(0.9),
            LatencySort::P99 => quantile(0.99),
            LatencySort::P999 => quantile(0.999),
            LatencySort::Max => quantile(1.0),
            LatencySort::Name => None,
        };
        SortKey { number, name, offset }
    }
}

impl PartialEq for SortKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SortKey {}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let numbers = match (self.number, other.number) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        numbers.then_with(|| self.name.cmp(&other.name)).then_with(|| self.offset.cmp(&other.offset))
    }
}

fn distribution<'a>(row: &FunctionRow<'a>) -> Option<&'a Distribution> {
    row.value()?.details().distribution.as_deref()
}
