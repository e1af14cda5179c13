//! `ingraft count`: the metric `calls` at each function, or those of blocks, edges and loops.

use ingraft_api::ThreadValue;
use ingraft_model::PartName;

use super::expression::{Computed, ExpressionMetric};
use super::hist;
use super::keyed::{self, KeyedView};
use super::own_module;
use super::rows::{self, FunctionRow, Presentation, RowsRequest, TableStage};
use crate::args::CountArgs;
use crate::exit::{Failure, Stop};
use crate::measure::{CommandContext, MeasurementView};
use crate::objects::{CountObject, EdgeObject, Object, ThreadCount, ThreadEdge};
use crate::output::Output;
use crate::output::number::short;
use crate::output::table::Cell;

/// Runs the command.
pub(crate) async fn run(args: CountArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let CountArgs { measure, calls, sum, hist, functions, target } = args;
    if functions.is_empty() && (calls.by.is_some() || sum.is_some() || hist.is_some()) {
        let what = "no function is named whose calls have these values";
        return Err(Failure::usage(
            what,
            "name a function before the options: `ingraft count -p PID read --by '$arg[0]'`",
        )
        .into());
    }
    if let Some(expr) = hist {
        return hist::measure((&measure, &target), functions, (&expr, &calls), context, out).await;
    }
    let functions = own_module::unless_named(functions);
    let computed = sum.as_deref().map_or(Computed::Calls, Computed::Sum);
    let definition = ExpressionMetric::new(computed, &calls);
    if calls.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    if sum.is_some() || calls.by.is_some() {
        let mut view = KeyedView {
            metric: definition.metric.clone(),
            counting: None,
            expr: calls.by.unwrap_or_default(),
            condition: calls.condition,
            title: if sum.is_some() { "SUM" } else { "CALLS" },
            top: calls.top,
            samples: measure.interval.is_some(),
        };
        return keyed::measure((&measure, &target), functions, &[definition], &mut view, context, out).await;
    }
    let (metric, definitions) = match &calls.condition {
        Some(_) => (definition.metric.clone(), vec![definition]),
        None => ("calls".to_owned(), Vec::new()),
    };
    let asked = RowsRequest { measure, target, functions, metric, definitions, counted: None };
    rows::run(asked, CallCounts { condition: calls.condition }, context, out).await
}

/// Returns the view that shows the counts of measurements which an earlier command inserted.
pub(super) fn view() -> Box<dyn MeasurementView + Send> {
    rows::view(CallCounts { condition: None })
}

struct CallCounts {
    /// Condition of the calls that are counted; `None` if all are.
    condition: Option<String>,
}

impl Presentation for CallCounts {
    type Whole = ();

    fn whole(&self, _: &[FunctionRow<'_>]) {}

    fn by_calls(&self) -> bool {
        true
    }

    fn optional(&self) -> &'static [&'static str] {
        &["THREADS", "MODULE", "HOST"]
    }

    fn titles(&self, stage: TableStage) -> &'static [&'static str] {
        match stage {
            TableStage::Live => &["CALLS/S"],
            TableStage::Last => &["CALLS/S", "THREADS"],
        }
    }

    fn cells(&self, row: FunctionRow<'_>, stage: TableStage, (): &()) -> Vec<Cell> {
        let rate = |rate: Option<f64>| rate.map(short).unwrap_or_default().into();
        match stage {
            TableStage::Live => vec![rate(row.site.rate(row.pair))],
            TableStage::Last => {
                let threads = row.value().map_or(0, |v| v.details().threads.len());
                vec![rate(row.site.mean_rate(row.pair)), threads.to_string().into()]
            }
        }
    }

    fn object(&self, row: FunctionRow<'_>, (): &()) -> Object {
        let threads = row.value().map(|v| v.details().threads.as_slice()).unwrap_or_default();
        let tid = |thread: &ThreadValue| thread.tid.map(|tid| tid.0);
        let pid = |thread: &ThreadValue| thread.pid.map(|pid| pid.0);
        let (block, header) = match row.part() {
            Some(PartName::Edge { from, to }) => {
                return Object::Edge(EdgeObject {
                    ran: None,
                    id: row.id(),
                    from: from.in_name(),
                    to: Some(to.in_name()),
                    outside: None,
                    kind: row.edge_kind(),
                    back: None,
                    count: Some(row.calls()),
                    threads: Some(
                        threads.iter().map(|t| ThreadEdge { tid: tid(t), pid: pid(t), count: t.value }).collect(),
                    ),
                    inexact: None,
                    facts: row.facts(),
                });
            }
            Some(PartName::Block(offset)) => (Some(offset.in_name()), None),
            Some(PartName::Loop(header)) => (None, Some(header.in_name())),
            None => (None, None),
        };
        Object::Count(CountObject {
            id: row.id(),
            block,
            header,
            condition: self.condition.clone(),
            calls: row.calls(),
            threads: threads.iter().map(|t| ThreadCount { tid: tid(t), pid: pid(t), calls: t.value }).collect(),
            facts: row.facts(),
        })
    }
}
