//! `ingraft latency --by context`: the times of calls by calling context.

use std::time::Duration;

use ingraft_api::{ContextsOptions, EnableRequest, Kind, PairFacts};
use ingraft_model::{Activations, Distribution};
use ingraft_report::{ContextLatency, ContextProfile, SavedProfile};

use super::contexts::{ContextLayout, ShownContexts, text};
use super::latency::SortKey;
use super::own_module;
use super::profile;
use super::report::tables::{callers, shown};
use crate::args::{LatencyArgs, LatencySort};
use crate::conn::RequestTarget;
use crate::exit::{Failure, Stop};
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, Query, TargetMeasurement};
use crate::objects::{Host, LatencyObject, MissingCalls, Object, RecordedFunction, Times, hex};
use crate::output::histogram::{self, HANDFUL, share};
use crate::output::number::{grouped_u64, plural, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING, Output, WARN, abbreviated, words};

/// Value of `--by` that tells calls apart by calling context.
pub(super) const CONTEXT: &str = "context";
/// Number of rows of a table without `--top`.
const ROWS: usize = 50;
/// Number of functions without code that are named.
const NAMED: usize = 5;

/// Whether the values of `--by` ask for calling contexts. Fails if they ask for others too.
pub(super) fn is_asked(by: Option<&str>) -> Result<bool, Failure> {
    let parts = by.map(crate::args::parts).unwrap_or_default();
    match (parts.as_slice(), parts.contains(&CONTEXT)) {
        ([_], asked) => Ok(asked),
        (_, false) => Ok(false),
        (_, true) => Err(Failure::usage(
            "`--by context` tells calls apart by calling context, and goes with no other expression",
            "use `--by context` alone; an argument of this name is `(context)`",
        )),
    }
}

/// Runs the command.
pub(super) async fn run(args: LatencyArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let LatencyArgs { measure, target, functions: timed, callers, calls, cpu, sort, histogram } = args;
    if calls.condition.is_some() {
        let hint = "leave out --if, or use an expression of --by";
        return Err(Failure::usage("`--by context` times all calls of a function", hint).into());
    }
    if calls.show_mdl {
        let hint = "leave out --show-mdl";
        return Err(Failure::usage("`--by context` is no short form of a metric definition", hint).into());
    }
    let functions = timed.iter().cloned().chain(own_module::unless_named(callers)).collect();
    let kind = Kind::Contexts(ContextsOptions { timed, cpu, ..ContextsOptions::default() });
    let own = EnableRequest { functions, kind, ..EnableRequest::default() };
    let request = |target: RequestTarget| measure::request(target, &measure, own.clone());
    let query = measure.interval.map(|_| Query::Counts);
    let plan = MeasurementPlan::new(&measure, &target, request, out).queried(query);
    let clock = if cpu { "cpu" } else { "wall" };
    let mut view = ContextLatencies { clock, sort: sort.unwrap_or(LatencySort::Total), top: calls.top, histogram };
    measure::run(plan, context, &mut view, out).await
}

/// Presents times by calling context.
struct ContextLatencies {
    /// Clock of the times: `wall` or `cpu`.
    clock: &'static str,
    sort: LatencySort,
    /// Largest number of rows of a table; `None` for that without the flag.
    top: Option<usize>,
    /// Whether each row has a histogram, however many rows there are.
    histogram: bool,
}

impl MeasurementView for ContextLatencies {
    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn queried(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some((site, profile)) = sites.get(at).and_then(|site| Some((site, site.profile.as_ref()?))) else {
            return Ok(());
        };
        if !out.json() {
            let functions = profile.contexts.as_ref().map_or(0, |contexts| contexts.functions.len() as u64);
            let held = Duration::from_nanos(profile.held_ns);
            out.text(&profile::heading(site, (profile.ended_ns, held), functions))?;
        }
        self.show(site, profile, out)
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        for (site, profile) in sites.iter().filter_map(|site| Some((site, site.profile.as_ref()?))) {
            if sites.len() > 1 && !out.json() {
                out.text(&format!("\n{}", text::heading(profile)))?;
            }
            self.show(site, profile, out)?;
        }
        Ok(())
    }
}

impl ContextLatencies {
    fn show(&self, site: &TargetMeasurement, profile: &SavedProfile, out: &mut Output) -> Result<(), Stop> {
        let Some(contexts) = &profile.contexts else { return Ok(()) };
        if !out.json() {
            // People tell callers by their names.
            let by_function = contexts.by_function();
            return out.text(&self.text(profile, &by_function, &self.rows(&by_function), out.width()));
        }
        let rows = self.rows(contexts);
        if let Some(shown) = ShownContexts::of(profile, ContextLayout::default()) {
            shown.objects((site.host(), site.pid()), out)?;
        }
        let whole = whole(&rows);
        let object = |row: &ContextLatency<'_>| self.object((site.host(), site.pid()), profile, contexts, row, whole);
        rows.iter().try_for_each(|row| out.object(&object(row)))
    }

    /// The rows in their order.
    fn rows<'a>(&self, contexts: &'a ContextProfile) -> Vec<ContextLatency<'a>> {
        let mut rows = contexts.latencies();
        let key = |row: &ContextLatency<'_>| {
            let function = (name(contexts, row.function), String::new());
            (SortKey::new(self.sort, (row.calls as f64, row.times), function), row.context)
        };
        rows.sort_by_cached_key(key);
        rows
    }

    fn text(
        &self,
        profile: &SavedProfile,
        contexts: &ContextProfile,
        rows: &[ContextLatency<'_>],
        width: Option<usize>,
    ) -> String {
        let top = self.top.unwrap_or(ROWS);
        let mut text = self.table(contexts, rows.get(..top).unwrap_or(rows), whole(rows)).render(width);
        if let Some(more) = rows.len().checked_sub(top).filter(|more| *more > 0) {
            let contexts = plural(more as u64, "more context", "more contexts");
            text += &format!("{DIM}and {contexts}, which --top shows{DIM:#}\n");
        }
        if rows.is_empty() {
            text += "no call of the functions was seen\n";
        }
        text += &notes(profile, contexts);
        if self.histogram || (1..=HANDFUL).contains(&rows.len()) {
            for (row, times) in rows.iter().take(top).filter_map(|row| Some((row, row.times?))) {
                let (function, chain) = (name(contexts, row.function), callers(contexts, row.context));
                let by = if chain.is_empty() { String::new() } else { format!(" ← {chain}") };
                let calls = plural(times.count, "timed call", "timed calls");
                let title: String =
                    abbreviated(&format!("{function}{by}")).chars().filter(|c| !c.is_control()).collect();
                text += &format!("\n{HEADING}{title}{HEADING:#}: {calls}\n");
                text += &histogram::render(times, "CALLS", |ns| time(ns as f64), width);
            }
        }
        text
    }

    fn table(&self, contexts: &ContextProfile, rows: &[ContextLatency<'_>], whole: u64) -> TextTable {
        let titles = ["CALLS", "TIMED", "SELF", "SHARE", "TOTAL", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"];
        let table = titles.iter().fold(TextTable::new().shrinking("FUNCTION"), |table, title| table.right(title));
        let mut table = table.shrinking("CALLED BY").optional(&["P99.9", "SHARE", "P90", "TIMED", "SELF"]);
        for row in rows {
            let times = row.times.filter(|times| times.count > 0);
            let ns = |ns: Option<f64>| ns.map(time).unwrap_or_default();
            let quantiles =
                histogram::QUANTILES.map(|(_, q)| ns(times.and_then(|times| times.quantile(q)).map(|ns| ns as f64)));
            let own = times.and_then(|times| times.own);
            let figures = [
                grouped_u64(row.calls),
                grouped_u64(times.map_or(0, |times| times.count)),
                ns(own.map(|own| own as f64)),
                own.map(|own| share(own, whole)).unwrap_or_default(),
                ns(times.and_then(Distribution::exact_sum).map(|sum| sum as f64)),
                ns(times.and_then(Distribution::mean)),
            ];
            let mut cells = vec![Cell::from(name(contexts, row.function))];
            cells.extend(figures.into_iter().chain(quantiles).map(Cell::from));
            cells.push(Cell::styled(callers(contexts, row.context), DIM));
            table.row(cells);
        }
        table
    }

    fn object(
        &self,
        (host, pid): (Host, i32),
        profile: &SavedProfile,
        contexts: &ContextProfile,
        row: &ContextLatency<'_>,
        whole: u64,
    ) -> Object {
        let function = contexts.functions.get(row.function);
        let module = function.and_then(|of| profile.modules.get(of.module)).map(|module| module.name.clone());
        let own = row.times.and_then(|times| times.own);
        let missing = missing(contexts, row.function);
        Object::Latency(LatencyObject {
            id: RecordedFunction {
                host,
                pid,
                module: module.unwrap_or_default(),
                function: name(contexts, row.function),
                offset: hex(function.map_or(0, |of| of.start.0)),
            },
            context: row.context.map(|context| context as u64 + 1),
            condition: None,
            clock: self.clock,
            times: Times::of(i64::try_from(row.calls).unwrap_or(i64::MAX), row.times),
            mean_ns: row.times.and_then(Distribution::mean),
            share: own.filter(|_| whole > 0).map(|own| own as f64 / whole as f64),
            threads: Vec::new(),
            missing: MissingCalls { left_by_tail_jump: Some(missing.left_by_tail_jump), ..missing.into() },
            timed_since_ns: Some(profile.began_ns),
            taken_out_ns: None,
            facts: PairFacts::default(),
        })
    }
}

/// The sum of all own times.
fn whole(rows: &[ContextLatency<'_>]) -> u64 {
    rows.iter().filter_map(|row| row.times?.own).fold(0, u64::saturating_add)
}

/// The name of a function.
fn name(contexts: &ContextProfile, function: usize) -> String {
    contexts.functions.get(function).map(|of| shown(&of.name, of.start)).unwrap_or_default()
}

/// Numbers of the calls of a timed function that have no times.
fn missing(contexts: &ContextProfile, function: usize) -> Activations {
    let of = contexts.functions.get(function);
    let timed = contexts.timed.iter().find(|timed| timed.function == function).copied().unwrap_or_default();
    let number = |of: Option<u64>| of.unwrap_or(0);
    Activations {
        left: number(of.map(|of| of.left)),
        unseen: number(of.map(|of| of.unseen)).saturating_add(timed.earlier),
        unrecorded: number(of.map(|of| of.unrecorded)),
        left_by_tail_jump: timed.left_by_tail_jump,
    }
}

/// Lines about calls without times, calls without contexts, and functions without code.
fn notes(profile: &SavedProfile, contexts: &ContextProfile) -> String {
    let of = |timed: &ingraft_report::UntimedCalls| (name(contexts, timed.function), missing(contexts, timed.function));
    let mut text = words::missing(&contexts.timed.iter().map(of).collect::<Vec<_>>());
    if contexts.full > 0 {
        let what = plural(contexts.full, "call or time has", "calls or times have");
        text += &format!("{WARN}{what} no place in the tree of contexts, which is full{WARN:#}\n");
    }
    let refused = &profile.refused;
    if !refused.is_empty() {
        let named = refused.iter().take(NAMED).map(|of| format!("{} ({})", shown(&of.name, of.start), of.why));
        let mut named: Vec<String> = named.collect();
        named.extend((refused.len() > NAMED).then(|| "…".to_owned()));
        let functions = plural(refused.len() as u64, "function is", "functions are");
        let line = format!("{functions} left out: {}", named.join(", "));
        text += &format!("{DIM}{}{DIM:#}\n", line.chars().filter(|c| !c.is_control()).collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Bucket, Svma};
    use ingraft_report::{CallTimes, CallingContext, ContextFunction, ContextKind, ReturnSite, UntimedCalls};

    use super::*;

    /// `main` calls `load` from two places, and one of these calls calls `load` again.
    fn contexts() -> ContextProfile {
        let function = |name: &str, left| ContextFunction { name: name.to_owned(), left, ..ContextFunction::default() };
        let context = |parent, function, kind, calls| {
            let site = ReturnSite { module: None, at: Svma(calls) };
            CallingContext { parent, function, site, kind, calls, metrics: Vec::new() }
        };
        let times = |context, times: &[u64]| {
            let buckets = times.iter().map(|time| Bucket { first: *time, end: time + 1, count: 1 }).collect();
            let (count, sum) = (times.len() as u64, times.iter().sum());
            let (min, max) = (times[0], times[times.len() - 1]);
            let times = Distribution { count, sum, min, max, own: Some(sum / 2), squares: None, buckets };
            CallTimes { context, function: 1, times }
        };
        ContextProfile {
            functions: vec![function("main", 0), function("load", 3)],
            contexts: vec![
                context(None, 0, ContextKind::Call, 1),
                context(Some(0), 1, ContextKind::Call, 2),
                context(Some(0), 1, ContextKind::Call, 5),
                context(Some(2), 1, ContextKind::Recursion(2), 4),
                context(None, 1, ContextKind::Call, 7),
            ],
            timed: vec![UntimedCalls { function: 1, left_by_tail_jump: 6, earlier: 2 }],
            times: vec![times(Some(1), &[1000, 3000]), times(Some(2), &[10, 20]), times(None, &[5])],
            full: 8,
            ..ContextProfile::default()
        }
    }

    fn view(sort: LatencySort) -> ContextLatencies {
        ContextLatencies { clock: "wall", sort, top: None, histogram: false }
    }

    #[test]
    fn expressions_beside_the_context_are_refused() {
        let asked = |by| is_asked(by).map_err(|failure| failure.to_string());
        assert_eq!([None, Some("$arg[0]"), Some("$arg[0], (context)")].map(asked), [Ok(false), Ok(false), Ok(false)]);
        assert_eq!(asked(Some("context")), Ok(true));
        for by in ["context, $arg[0]", "$caller, context", "context, context"] {
            assert!(asked(Some(by)).is_err_and(|what| what.contains("no other expression")), "{by}");
        }
    }

    #[test]
    fn rows_have_the_calls_of_recursions_and_calls_in_progress() {
        let contexts = contexts();
        let rows = |sort| -> Vec<(Option<usize>, u64)> {
            view(sort).rows(&contexts).iter().map(|row| (row.context, row.calls)).collect()
        };
        assert_eq!(rows(LatencySort::Total), [(Some(1), 2), (Some(2), 9), (None, 1), (Some(4), 7)]);
        assert_eq!(rows(LatencySort::Calls), [(Some(2), 9), (Some(4), 7), (Some(1), 2), (None, 1)]);
    }

    #[test]
    fn a_table_tells_callers_and_what_is_missing() {
        let contexts = contexts();
        let text = view(LatencySort::Total).text(
            &SavedProfile::default(),
            &contexts,
            &view(LatencySort::Total).rows(&contexts),
            None,
        );
        let plain = anstream::adapter::strip_str(&text).to_string();
        let rows: Vec<Vec<&str>> = plain.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0][..4], ["FUNCTION", "CALLS", "TIMED", "SELF"], "{plain}");
        assert_eq!((rows[1][1], rows[1][2], *rows[1].last().expect("a cell")), ("2", "2", "main"), "{plain}");
        assert!(rows[3].ends_with(&["(not", "known)"]), "{plain}");
        for line in [
            "3 calls of load ended by an exception",
            "2 calls of load had begun before",
            "6 calls of load ended in a jump",
            "8 calls or times have no place",
        ] {
            assert!(plain.contains(line), "{line}: {plain}");
        }
        assert!(plain.contains("load ← main: 2 timed calls"), "{plain}");
    }
}
