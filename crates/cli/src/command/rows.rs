//! Functions as rows: the common part of the commands that measure one metric at each function.

use std::cmp::Reverse;
use std::collections::HashMap;

use ingraft_api::{EnableRequest, NamedFunction, PairFacts, PairInfo, Value};
use ingraft_model::{Focus, PartName};

use super::expression::ExpressionMetric;
use crate::args;
use crate::conn::RequestTarget;
use crate::exit::Stop;
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, TargetMeasurement};
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped, plural};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, Output};

/// Number of rows above which functions without a call are combined in one line.
const FOLD: usize = 40;

/// Largest number of functions without a call that are named in that line.
const SILENT_NAMED: usize = 3;

/// The request of a command: flags, targets, functions and metric.
pub(super) struct RowsRequest {
    pub(super) measure: args::Measure,
    pub(super) target: args::TargetArgs,
    pub(super) functions: Vec<String>,
    /// The metric at each function.
    pub(super) metric: String,
    /// Definitions of metrics that are not shipped.
    pub(super) definitions: Vec<ExpressionMetric>,
    /// The metric that counts the calls of each function; `None` if the value of `metric` is their number.
    pub(super) counted: Option<&'static str>,
}

/// One function in one target.
#[derive(Clone, Copy)]
pub(super) struct FunctionRow<'a> {
    pub(super) site: &'a TargetMeasurement,
    pub(super) pair: usize,
    /// The pair that counts the calls; `None` if that is `pair`.
    pub(super) counting: Option<usize>,
}

/// The table that a row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableStage {
    /// The table that redraws itself.
    Live,
    /// The table with the final values.
    Last,
}

/// Presentation of each function by a command.
pub(super) trait Presentation {
    /// A figure of all functions together, such as the sum that shares are of.
    type Whole;
    /// Computes the figure from all functions, those that are not shown included.
    fn whole(&self, rows: &[FunctionRow<'_>]) -> Self::Whole;
    /// Titles of the columns after the number of calls; all of these columns have numbers.
    fn titles(&self, stage: TableStage) -> &'static [&'static str];
    /// Titles of the columns that a narrow screen leaves out, the least important first.
    fn optional(&self) -> &'static [&'static str];
    /// Cells of a row, as many as there are titles.
    fn cells(&self, row: FunctionRow<'_>, stage: TableStage, whole: &Self::Whole) -> Vec<Cell>;
    /// The final values for scripts.
    fn object(&self, row: FunctionRow<'_>, whole: &Self::Whole) -> Object;
    /// Sorts rows in the order that the user asked for. Returns false, and changes nothing, if the user asked for no order.
    fn sort(&self, _rows: &mut [FunctionRow<'_>]) -> bool {
        false
    }
    /// The metric that counts the calls of each function, if another one than that of the rows does.
    fn counted(&self) -> Option<&'static str> {
        None
    }
    /// Whether a row stands below the others, because its values cannot be compared with theirs.
    fn last(&self, _row: &FunctionRow<'_>) -> bool {
        false
    }
    /// Whether a table of functions is sorted by their calls if the user asked for no order.
    fn by_calls(&self) -> bool {
        false
    }
    /// Text for people below the final table.
    fn below(&self, _rows: &[FunctionRow<'_>], _width: Option<usize>) -> String {
        String::new()
    }
}

/// Runs the measurement of a command and presents its rows.
pub(super) async fn run(
    asked: RowsRequest,
    presentation: impl Presentation,
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let metrics: Vec<&str> = asked.counted.into_iter().chain([asked.metric.as_str()]).collect();
    let definitions = ExpressionMetric::sources(&asked.definitions);
    ExpressionMetric::accept(&asked.definitions, context.common.format)?;
    let own = EnableRequest {
        functions: asked.functions,
        function_metrics: metrics.into_iter().map(str::to_owned).collect(),
        definitions,
        allow_calls: asked.measure.allow_calls,
        ..EnableRequest::default()
    };
    let request = |target: RequestTarget| measure::request(target, &asked.measure, own.clone());
    let plan = MeasurementPlan::new(&asked.measure, &asked.target, request, out);
    let samples = asked.measure.interval.is_some();
    measure::run(plan, context, &mut RowsView { presentation, samples }, out).await
}

/// Presents rows of measurements that were inserted earlier.
pub(super) fn view<P: Presentation + Send + 'static>(presentation: P) -> Box<dyn MeasurementView + Send> {
    Box::new(RowsView { presentation, samples: false })
}

struct RowsView<P> {
    presentation: P,
    /// Whether scripts asked for intermediate values by giving an interval.
    samples: bool,
}

impl<P: Presentation> MeasurementView for RowsView<P> {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() {
            let Some(site) = sites.get(at) else { return Ok(()) };
            let counted = self.presentation.counted();
            for FunctionRow { pair, .. } in rows_of(site, counted) {
                if site.before.is_none() || site.rate(pair).is_some_and(|r| r != 0.0) {
                    out.object(&super::watch::sample(site, pair))?;
                }
            }
        } else if out.live() {
            let frame = self.live(sites, out.width(), out.height());
            out.frame(&frame)?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        let mut rows = rows(sites, self.presentation.counted());
        self.presentation.sort(&mut rows);
        rows.sort_by_key(|row| self.presentation.last(row));
        if out.json() {
            let whole = self.presentation.whole(&rows);
            rows.into_iter().try_for_each(|row| out.object(&self.presentation.object(row, &whole)))?;
            let together = measure::together(sites);
            return together.iter().try_for_each(|combined| out.object(&super::watch::combined_object(combined)));
        }
        let below = super::watch::whole(sites, out.width()) + &self.presentation.below(&rows, out.width());
        let text = self.summary(rows, sites.len() > 1, out.width());
        out.text(&(text + &below))
    }
}

impl<P: Presentation> RowsView<P> {
    /// The table while the command counts: the busiest functions that fit on the screen.
    fn live(&self, sites: &[TargetMeasurement], width: Option<usize>, height: usize) -> String {
        let rows = rows(sites, self.presentation.counted());
        let whole = self.presentation.whole(&rows);
        let room = height.saturating_sub(3).max(1);
        let all = rows.len();
        let (mut rows, silent) = split_silent(rows, room, sites.len() > 1);
        let sorted = self.presentation.sort(&mut rows);
        let called = rows.len();
        if !sorted && called <= room && self.sorts_by_calls(&rows) {
            rows.sort_by_key(|row| Reverse(row.calls()));
        } else if !sorted && all > room {
            rows.sort_by(|a, b| {
                let key = |row: &FunctionRow<'_>| {
                    (row.site.rate(row.counting.unwrap_or(row.pair)).unwrap_or(0.0), row.calls())
                };
                let ((rate_a, calls_a), (rate_b, calls_b)) = (key(a), key(b));
                rate_b.total_cmp(&rate_a).then(calls_b.cmp(&calls_a))
            });
        }
        rows.sort_by_key(|row| self.presentation.last(row));
        rows.truncate(room);
        let hidden = (all - rows.len()) as u64;
        let mut text = self.table(&rows, &whole, TableStage::Live, sites.len() > 1, width);
        if called == rows.len() {
            text += &silent.line();
        } else {
            let what = match sorted {
                true => plural(hidden, "more function", "more functions"),
                false => plural(hidden, "quieter function", "quieter functions"),
            };
            text += &format!("{DIM}and {what}{DIM:#}\n");
        }
        text
    }

    /// The final table, in the order that the user asked for. Without such an order, rows of many functions are sorted by their calls.
    fn summary(&self, rows: Vec<FunctionRow<'_>>, several: bool, width: Option<usize>) -> String {
        let all = rows.len();
        let whole = self.presentation.whole(&rows);
        let (mut rows, silent) = split_silent(rows, FOLD, several);
        if !self.presentation.sort(&mut rows) && (all > FOLD || self.sorts_by_calls(&rows)) {
            rows.sort_by_key(|row| Reverse(row.calls()));
        }
        rows.sort_by_key(|row| self.presentation.last(row));
        let total: i64 = rows.iter().map(FunctionRow::calls).sum();
        let mut text = self.table(&rows, &whole, TableStage::Last, several, width) + &silent.line();
        if all > FOLD {
            text += &format!("{DIM}{} in all{DIM:#}\n", plural(u64::try_from(total).unwrap_or(0), "call", "calls"));
        }
        text
    }

    /// Whether rows are sorted by their calls if the user asked for no order. Blocks, edges and loops keep the order of the code.
    fn sorts_by_calls(&self, rows: &[FunctionRow<'_>]) -> bool {
        self.presentation.by_calls() && !have_parts(rows)
    }

    /// Renders a table, with the ids of targets if there are several.
    fn table(
        &self,
        rows: &[FunctionRow<'_>],
        whole: &P::Whole,
        stage: TableStage,
        several: bool,
        width: Option<usize>,
    ) -> String {
        let calls = TextTable::new()
            .shrinking("HOST")
            .right("PID")
            .right("PARENT")
            .shrinking("TITLE")
            .shrinking("FUNCTION")
            .left("MODULE")
            .right("CALLS");
        let titles = self.presentation.titles(stage).iter();
        let optional: Vec<&'static str> =
            ["PARENT", "TITLE"].iter().chain(self.presentation.optional()).copied().collect();
        let mut table = titles.fold(calls, |table, title| table.right(title)).optional(&optional);
        for row in rows {
            let RecordedFunction { host, pid, module, mut function, .. } = row.id();
            function.extend(row.part().map(|part| part.to_string()));
            let pid = if several { pid.to_string() } else { String::new() };
            let (parent, title) = if several { row.site.kinship() } else { Default::default() };
            let mut cells = vec![host.unwrap_or_default().into(), pid.into(), parent.into(), Cell::styled(title, DIM)];
            cells.extend([function.into(), Cell::styled(module, DIM)]);
            cells.push(grouped(row.calls()).into());
            cells.extend(self.presentation.cells(*row, stage, whole));
            table.row(cells);
        }
        table.render(width)
    }
}

/// Functions without a call, which share one line below a table.
#[derive(Debug, Default)]
struct SilentFunctions {
    number: usize,
    /// Names of the functions, if they are few.
    names: Vec<String>,
    /// Whether the rows are not one for each function: of several targets, or of blocks, edges and loops.
    is_of_rows: bool,
}

impl SilentFunctions {
    /// The line; empty if every function was called.
    fn line(&self) -> String {
        if self.number == 0 {
            return String::new();
        }
        let (one, several) = if self.is_of_rows { ("row", "rows") } else { ("function", "functions") };
        let number = plural(self.number as u64, one, several);
        let colon = if self.names.is_empty() { "" } else { ": " };
        format!("{DIM}{number} without a call{colon}{}{DIM:#}\n", self.names.join(", "))
    }
}

/// Separates functions without a call from the others. All rows stay if none was called. Rows of blocks, edges and loops stay too, because
/// the ones that never ran matter. If there are more than `most` rows, no row without a call stays.
fn split_silent(rows: Vec<FunctionRow<'_>>, most: usize, several: bool) -> (Vec<FunctionRow<'_>>, SilentFunctions) {
    let (has_parts, all) = (have_parts(&rows), rows.len());
    let is_called = |row: &FunctionRow<'_>| row.calls() != 0;
    if all <= most && (has_parts || !rows.iter().any(is_called)) {
        return (rows, SilentFunctions::default());
    }
    let (called, silent): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_called);
    let is_of_rows = several || has_parts;
    let is_named = !is_of_rows && silent.len() <= SILENT_NAMED && !called.is_empty();
    let names = if is_named { silent.iter().map(|row| row.id().function).collect() } else { Vec::new() };
    (called, SilentFunctions { number: silent.len(), names, is_of_rows })
}

/// Whether some of the rows are of blocks, edges or loops.
fn have_parts(rows: &[FunctionRow<'_>]) -> bool {
    rows.iter().any(|row| row.part().is_some())
}

fn rows<'a>(sites: &'a [TargetMeasurement], counted: Option<&'static str>) -> Vec<FunctionRow<'a>> {
    sites.iter().flat_map(|site| rows_of(site, counted)).collect()
}

/// One row for each function that is measured. With a metric that counts calls, the rows are of the other pairs.
fn rows_of<'a>(site: &'a TargetMeasurement, counted: Option<&'static str>) -> Vec<FunctionRow<'a>> {
    let pairs = || (0..).zip(site.enabled.pairs.iter());
    let counts = |pair: &PairInfo| counted.is_some_and(|metric| pair.pair.metric == metric);
    let counting: HashMap<&Focus, usize> =
        pairs().filter(|(_, pair)| counts(pair)).map(|(at, pair)| (&pair.pair.focus, at)).collect();
    // A function may have been measured before the library that it came back with was refused.
    let is_measured = |at: &usize| {
        let value = site.reading.values.get(*at).map_or(0, |value| value.value);
        let refused = |pair: &PairInfo| {
            pair.function.is_some() && PartName::of(&pair.pair.focus).is_none() && !pair.refused.is_empty()
        };
        value != 0 || site.enabled.pairs.get(*at).is_some_and(|pair| !refused(pair))
    };
    let row = |(pair, info): (usize, &PairInfo)| {
        let counting = counting.get(&info.pair.focus).copied();
        let measured = is_measured(&pair) || counting.as_ref().is_some_and(is_measured);
        measured.then_some(FunctionRow { site, pair, counting })
    };
    pairs().filter(|(_, pair)| !counts(pair)).filter_map(row).collect()
}

impl<'a> FunctionRow<'a> {
    /// The latest value.
    pub(super) fn value(&self) -> Option<&'a Value> {
        self.site.reading.values.get(self.pair)
    }

    /// The number of calls.
    pub(super) fn calls(&self) -> i64 {
        self.counts().map_or(0, |v| v.value)
    }

    /// The latest value of the pair that counts the calls.
    pub(super) fn counts(&self) -> Option<&'a Value> {
        self.site.reading.values.get(self.counting.unwrap_or(self.pair))
    }

    /// Unix time in nanoseconds of the end of the insertion, from which on the pair of the row measures; `None` if an earlier command
    /// inserted it.
    pub(super) fn timed_since_ns(&self) -> Option<u64> {
        Some(self.site.enabled.since_ns).filter(|ns| *ns != 0)
    }

    /// Whether the function's calls are counted, and nothing else of it can be measured.
    pub(super) fn is_refused(&self) -> bool {
        self.counting.is_some() && self.site.enabled.pairs.get(self.pair).is_some_and(|pair| !pair.refused.is_empty())
    }

    /// The facts about the pair.
    pub(super) fn facts(&self) -> PairFacts {
        self.site.facts(self.pair)
    }

    /// Function and target of the row.
    pub(super) fn id(&self) -> RecordedFunction {
        let info = &self.site.enabled.pairs[self.pair];
        let function = info.function.clone().unwrap_or_else(|| {
            let function = info.pair.focus.to_string();
            NamedFunction { function, ..NamedFunction::default() }
        });
        RecordedFunction::new(function, self.site.enabled.pid, self.site.host())
    }

    /// The block, edge or loop of the row; `None` if the row is about a whole function.
    pub(super) fn part(&self) -> Option<PartName> {
        PartName::of(&self.site.enabled.pairs[self.pair].pair.focus)
    }

    /// Kind of the edge of the row; `None` if the row is about no edge, or about edges of several kinds.
    pub(super) fn edge_kind(&self) -> Option<&'static str> {
        match self.site.enabled.pairs[self.pair].edge_kinds.as_slice() {
            [kind] => Some(kind.word()),
            _ => None,
        }
    }
}
