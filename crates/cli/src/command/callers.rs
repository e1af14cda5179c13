//! `ingraft callers`: the calls of functions by caller and call site, from their return addresses.

use std::path::Path;

use ingraft_api::{KeyValue, Keys, ModulePlace};
use ingraft_model::Offset;

use super::expression::{Computed, ExpressionMetric};
use super::keyed::{self, KeyRow};
use crate::args::{CallSelection, CallersArgs};
use crate::exit::Stop;
use crate::measure::{CommandContext, MeasurementView, TargetMeasurement};
use crate::objects::keyed::CallerObject;
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped, plural, short};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING, Output};

/// The expression whose value tells the caller.
pub(super) const CALLER: &str = "$caller";

/// Runs the command.
pub(crate) async fn run(args: CallersArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let calls = CallSelection { by: Some(CALLER.to_owned()), condition: args.condition, ..CallSelection::default() };
    let definition = ExpressionMetric::new(Computed::Calls, &calls);
    if args.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    let samples = args.measure.interval.is_some();
    let mut view =
        CallersView { condition: calls.condition, metric: definition.metric.clone(), top: args.top, samples };
    let measured = (&args.measure, &args.target);
    keyed::measure(measured, args.functions, &[definition], &mut view, context, out).await
}

struct CallersView {
    /// Condition of the calls; `None` if all are counted.
    condition: Option<String>,
    metric: String,
    /// Largest number of call sites of a function; `None` for that of a table, or for all.
    top: Option<usize>,
    /// Whether scripts asked for intermediate values by giving an interval.
    samples: bool,
}

impl MeasurementView for CallersView {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() {
            return keyed::samples(sites.get(at), out);
        }
        if out.live() {
            let frame = self.text(sites, Some(out.height()), out.width());
            out.frame(&frame)?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        if out.json() {
            let rows = KeyRow::all(sites, &self.metric, self.top.unwrap_or(Keys::MAX));
            return rows.iter().try_for_each(|row| out.object(&Object::Caller(record(row, self.condition.as_deref()))));
        }
        let text = self.text(sites, None, out.width());
        out.text(&text)
    }
}

impl CallersView {
    /// A table for each function, with at most so many lines in all.
    fn text(&self, sites: &[TargetMeasurement], height: Option<usize>, width: Option<usize>) -> String {
        let mut rows = KeyRow::all(sites, &self.metric, self.top.unwrap_or(keyed::ROWS));
        let measured =
            |site: &TargetMeasurement| site.enabled.pairs.iter().filter(|pair| pair.refused.is_empty()).count();
        let functions: usize = sites.iter().map(measured).sum();
        let together = |a: &KeyRow<'_>, b: &KeyRow<'_>| std::ptr::eq(a.site, b.site) && a.pair == b.pair;
        let called = rows.chunk_by(together).count();
        let room = height.map_or(usize::MAX, |lines| lines.saturating_sub(2 * called + 1).max(1));
        let hidden = rows.len().saturating_sub(room) as u64;
        rows.truncate(room);
        let mut text = String::new();
        for rows in rows.chunk_by(together) {
            let Some(first) = rows.first() else { continue };
            let RecordedFunction { function, pid, host, .. } = first.id();
            let host = host.map_or_else(String::new, |host| format!(" at {host}"));
            let process = if sites.len() > 1 { format!(" of process {pid}") } else { String::new() };
            let calls = plural(u64::try_from(first.whole()).unwrap_or(0), "call", "calls");
            text += &format!("{HEADING}{function}{HEADING:#}{process}{host}: {calls}\n{}", table(rows, width));
        }
        let uncalled = functions.saturating_sub(called);
        if uncalled > 0 && hidden == 0 {
            text += &format!("{DIM}{} without a call{DIM:#}\n", plural(uncalled as u64, "function", "functions"));
        }
        if hidden > 0 {
            text += &format!("{DIM}and {}{DIM:#}\n", plural(hidden, "more row", "more rows"));
        }
        text
    }
}

/// The call sites of a function as a table.
fn table(rows: &[KeyRow<'_>], width: Option<usize>) -> String {
    let columns = TextTable::new().right("CALLS").right("SHARE").right("PER SECOND").shrinking("CALLER");
    let mut table = columns.left("AT").left("SOURCE").left("MODULE").optional(&["MODULE", "SOURCE", "PER SECOND"]);
    for row in rows {
        let CallerObject { caller, call_site, caller_module, return_address, .. } = record(row, None);
        let source = row.key.and_then(|key| key.place.as_ref()).and_then(|place| source(place, true));
        let name = if row.key.is_none() { Some("others".to_owned()) } else { caller.or(return_address) };
        let rate = row.rate().map(short).unwrap_or_default();
        let mut cells: Vec<Cell> = vec![grouped(row.value).into(), keyed::share(row).into(), rate.into()];
        let dim = |text: Option<String>| Cell::styled(text.unwrap_or_default(), DIM);
        cells.extend([name.unwrap_or_default().into(), call_site.unwrap_or_default().into()]);
        cells.extend([source.unwrap_or_default().into(), dim(caller_module)]);
        table.row(cells);
    }
    table.render(width)
}

/// The source line of a place as `FILE:LINE`, with the whole path or its last part.
fn source(place: &ModulePlace, short: bool) -> Option<String> {
    let (file, line) = place.source.as_ref()?;
    let name = Path::new(file.as_ref()).file_name().filter(|_| short);
    Some(format!("{}:{line}", name.map_or_else(|| file.as_ref().into(), |name| name.to_string_lossy())))
}

fn record(row: &KeyRow<'_>, condition: Option<&str>) -> CallerObject {
    let place = row.key.and_then(|key| key.place.as_deref());
    let call_site = |place: &ModulePlace| {
        let from = place.function.as_ref().map_or(0, |function| function.offset.0);
        Offset::between(from, place.at.0).in_name()
    };
    CallerObject {
        id: row.id(),
        condition: condition.map(str::to_owned),
        caller_module: place.map(|place| place.module.clone()),
        caller: place.and_then(|place| place.function.as_ref()).map(|function| function.function.clone()),
        call_site: place.map(call_site),
        source: place.and_then(|place| source(place, false)),
        return_address: row.key.map(|KeyValue { key, .. }| format!("{key:#x}")),
        calls: row.value,
        others: row.key.is_none(),
        stack: None,
    }
}
