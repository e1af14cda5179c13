//! `ingraft hist`, and `count --hist`: the distribution of the values of an expression at the calls of functions.

use ingraft_model::Distribution;

use super::expression::{Computed, ExpressionMetric};
use super::keyed;
use crate::args::{self, CallSelection, HistArgs};
use crate::exit::Stop;
use crate::measure::{CommandContext, MeasurementView, TargetMeasurement};
use crate::objects::keyed::HistObject;
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped_u64, plural};
use crate::output::table::{Cell, TextTable};
use crate::output::{HEADING, Output, histogram};

/// Runs the command.
pub(crate) async fn run(args: HistArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let calls = CallSelection { condition: args.condition, show_mdl: args.show_mdl, ..CallSelection::default() };
    measure((&args.measure, &args.target), vec![args.function], (&args.expr, &calls), context, out).await
}

/// Measures the distribution of an expression at the calls that `calls` selects.
pub(super) async fn measure(
    measured: (&args::Measure, &args::TargetArgs),
    functions: Vec<String>,
    (expr, calls): (&str, &CallSelection),
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let definition = ExpressionMetric::new(Computed::Values(expr), calls);
    if calls.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    let condition = calls.condition.clone();
    let mut view = HistView { expr: expr.to_owned(), condition, samples: measured.0.interval.is_some() };
    keyed::measure(measured, functions, &[definition], &mut view, context, out).await
}

struct HistView {
    expr: String,
    /// Condition of the calls; `None` if all are measured.
    condition: Option<String>,
    /// Whether scripts asked for intermediate values by giving an interval.
    samples: bool,
}

impl MeasurementView for HistView {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() {
            return keyed::samples(sites.get(at), out);
        }
        if out.live() {
            let mut text = String::new();
            for bars in self.bars(sites, out.width()) {
                if !text.is_empty() && text.lines().count() + bars.lines().count() > out.height() {
                    break;
                }
                text += &bars;
            }
            out.frame(&text)?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        if out.json() {
            return distributions(sites).try_for_each(|(id, d)| {
                let (expr, condition) = (self.expr.clone(), self.condition.clone());
                out.object(&Object::Hist(HistObject { id, condition, expr, calls: d.count, quantiles: d.into() }))
            });
        }
        let text = table(sites, out.width()) + &self.bars(sites, out.width()).concat();
        out.text(&text)
    }
}

impl HistView {
    /// A histogram for each function that was called.
    fn bars(&self, sites: &[TargetMeasurement], width: Option<usize>) -> Vec<String> {
        let called = distributions(sites).filter(|(_, distribution)| distribution.count > 0);
        let bars = called.map(|(id, distribution)| {
            let values = plural(distribution.count, "value", "values");
            let bars = histogram::render(distribution, "CALLS", grouped_u64, width);
            format!("\n{HEADING}{} at {}{HEADING:#}: {values}\n{bars}", self.expr, id.function)
        });
        bars.collect()
    }
}

/// The functions with their distributions.
fn distributions(sites: &[TargetMeasurement]) -> impl Iterator<Item = (RecordedFunction, &Distribution)> {
    let pairs = sites.iter().flat_map(|site| (0..site.enabled.pairs.len()).map(move |pair| (site, pair)));
    pairs.filter_map(|(site, pair)| {
        let function = site.enabled.pairs[pair].function.clone()?;
        let distribution = site.reading.values.get(pair)?.details().distribution.as_deref()?;
        Some((RecordedFunction::new(function, site.enabled.pid, site.host()), distribution))
    })
}

fn table(sites: &[TargetMeasurement], width: Option<usize>) -> String {
    let columns = TextTable::new().shrinking("HOST").right("PID").shrinking("FUNCTION").right("CALLS").right("MEAN");
    let titles = ["P50", "P90", "P99", "P99.9", "MAX"];
    let mut table = titles.iter().fold(columns, |table, title| table.right(title)).right("SUM");
    for (id, d) in distributions(sites) {
        let pid = if sites.len() > 1 { id.pid.to_string() } else { String::new() };
        let called = Some(d).filter(|d| d.count > 0);
        let mut cells: Vec<Cell> = vec![id.host.unwrap_or_default().into(), pid.into(), id.function.into()];
        cells.push(grouped_u64(d.count).into());
        cells.push(called.and_then(Distribution::mean).map(crate::output::number::short).unwrap_or_default().into());
        let quantile = |(_, q)| called.and_then(|d| d.quantile(q)).map(grouped_u64).unwrap_or_default();
        cells.extend(histogram::QUANTILES.map(quantile).map(Cell::from));
        cells.push(called.and_then(Distribution::exact_sum).map(grouped_u64).unwrap_or_default().into());
        table.row(cells);
    }
    let note = if distributions(sites).any(|(_, d)| d.exact_sum().is_none()) {
        "MEAN and SUM are missing where the sum may have more than 64 bits, as that of addresses\n"
    } else {
        ""
    };
    table.render(width) + note
}
