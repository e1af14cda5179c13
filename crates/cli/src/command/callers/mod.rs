//! `ingraft callers`: the calls of functions by caller and call site, from their return addresses.

mod roots;
mod stacks;

use ingraft_api::{KeyValue, Keys, ModulePlace};
use ingraft_model::Offset;

use self::stacks::StackSamplings;
use super::expression::{Computed, ExpressionMetric};
use super::hot;
use super::keyed::{self, KeyRow};
use crate::args::{CallSelection, CallersArgs, Format};
use crate::exit::Stop;
use crate::measure::{CommandContext, MeasurementView, TargetMeasurement};
use crate::objects::keyed::CallerObject;
use crate::objects::stacks::{StackFrame, StackObject};
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped, plural, short};
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, HEADING, Output};

/// The expression whose value tells the caller.
pub(super) const CALLER: &str = "$caller";

/// Number of stacks of a table without `--top`.
const STACKS: usize = 10;

/// Runs the command.
pub(crate) async fn run(args: CallersArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let calls =
        CallSelection { by: Some(CALLER.to_owned()), condition: args.condition.clone(), ..CallSelection::default() };
    let definition = ExpressionMetric::new(Computed::Calls, &calls);
    if args.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    if args.until_roots {
        return roots::run(args, definition, context, out).await;
    }
    let samples = args.measure.interval.is_some();
    let stacks =
        args.stacks.then(|| StackSamplings::new(args.functions.clone(), hot::period(args.measure.max_overhead)));
    let mut view =
        CallersView { condition: calls.condition, metric: definition.metric.clone(), top: args.top, samples, stacks };
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
    /// The samples of stacks, if they were asked for.
    stacks: Option<StackSamplings>,
}

impl MeasurementView for CallersView {
    fn begun(&mut self, sites: &[TargetMeasurement]) {
        if let Some(stacks) = &mut self.stacks {
            stacks.follow(sites);
        }
    }

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
            for row in &rows {
                let stack = self.stacks.as_ref().and_then(|stacks| commonest(row, stacks));
                out.object(&Object::Caller(CallerObject { stack, ..record(row, self.condition.as_deref()) }))?;
            }
            self.tell_notes(Format::Json);
            return self.of_functions(sites).try_for_each(|(_, of)| {
                let most = self.top.unwrap_or(usize::MAX);
                of.into_iter().take(most).try_for_each(|stack| out.object(&Object::Stack(stack)))
            });
        }
        let mut text = self.text(sites, None, out.width());
        self.tell_notes(Format::Table);
        for (name, stacks) in self.of_functions(sites) {
            let shown = stacks.len().min(self.top.unwrap_or(STACKS));
            text += &stacks::text(&name, &stacks[..shown], stacks.len() - shown);
        }
        out.text(&text)
    }
}

/// The stack with most time below the call of a row; `None` if no sample has met the call.
fn commonest(row: &KeyRow<'_>, stacks: &StackSamplings) -> Option<Vec<StackFrame>> {
    let place = row.key?.place.as_deref()?;
    let function = row.site.enabled.pairs.get(row.pair)?.function.as_ref()?;
    let call = StackFrame::from(place);
    let is_it = |stack: &StackObject| stack.stack.first().is_some_and(|first| is_same(first, &call));
    let all = stacks.records(row.site.pid(), row.site.host().as_deref(), function, usize::MAX);
    all.into_iter().find(is_it).map(|stack| stack.stack)
}

/// Whether two calls are the same instruction.
fn is_same(one: &StackFrame, other: &StackFrame) -> bool {
    (&one.module, &one.offset, &one.call_site) == (&other.module, &other.offset, &other.call_site)
}

impl CallersView {
    /// The measured functions by name, each with the stacks below it; none unless stacks were asked for.
    fn of_functions<'a>(
        &'a self,
        sites: &'a [TargetMeasurement],
    ) -> impl Iterator<Item = (String, Vec<StackObject>)> + 'a {
        let pairs = |site: &'a TargetMeasurement| site.enabled.pairs.iter().map(move |pair| (site, pair));
        let all = self.stacks.iter().flat_map(move |stacks| sites.iter().flat_map(pairs).map(move |of| (stacks, of)));
        all.filter_map(|(stacks, (site, pair))| {
            let function = pair.function.as_ref().filter(|_| pair.refused.is_empty())?;
            let found = stacks.records(site.pid(), site.host().as_deref(), function, usize::MAX);
            Some((function.function.clone(), found))
        })
    }

    fn tell_notes(&self, format: Format) {
        let notes = self.stacks.iter().flat_map(StackSamplings::notes);
        notes.for_each(|note| output::warn(&note, format));
    }

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
            let function = output::abbreviated(&function);
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
        let CallerObject { caller, call_site, caller_module, return_address, inlined, .. } = record(row, None);
        let caller = call_name(caller.as_deref(), &inlined);
        let source = record_source(row).map(|line| source(&line).to_owned());
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

/// The name of a function, or that of the innermost function that is inlined into it.
fn call_name(function: Option<&str>, inlined: &[String]) -> Option<String> {
    match (function, inlined.first()) {
        (Some(function), Some(inner)) => Some(format!("{inner} (inlined into {function})")),
        (function, _) => function.map(str::to_owned),
    }
}

/// The last part of the path of a source line, which is `FILE:LINE`.
fn source(line: &str) -> &str {
    line.rsplit_once('/').map_or(line, |(_, last)| last)
}

/// The source line of a row's call as `FILE:LINE`.
fn record_source(row: &KeyRow<'_>) -> Option<String> {
    let (file, line) = row.key?.place.as_ref()?.source.as_ref()?;
    Some(format!("{file}:{line}"))
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
        inlined: place.map(|place| place.inlined.clone()).unwrap_or_default(),
        source: record_source(row),
        return_address: row.key.map(|KeyValue { key, .. }| format!("{key:#x}")),
        calls: row.value,
        others: row.key.is_none(),
        stack: None,
        level: None,
    }
}
