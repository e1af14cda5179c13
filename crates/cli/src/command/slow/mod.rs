//! `ingraft slow`: each slow call of a function, with the calls that it has made.

mod follower;

use std::collections::BTreeSet;

use ingraft_api::{CallTree, EnableRequest, Kind, PrintedCall, PrintedSite, SlowOptions};

use super::expression::ExpressionMetric;
use super::print::{NamedCall, NamedValues, at_return, measured_until, numbers, summary};
use crate::args::{Format, SlowArgs};
use crate::exit::Stop;
use crate::measure::{CommandContext, MeasurementView, TargetMeasurement};
use crate::objects::Object;
use crate::objects::slow::{InnerCallObject, SlowObject};
use crate::output::number::{plural, time};
use crate::output::{self, DIM, Destination, HEADING, Output};
use crate::perfetto::{CallEvent, CallEvents};

use follower::Follower;

/// Name of the metric that the command defines.
const METRIC: &str = "slow calls";

/// Number of functions that are named in a line.
const NAMED: usize = 5;

/// Largest number of spaces before the name of a function.
const INDENT_MAX: usize = 60;

/// Runs the command.
pub(crate) async fn run(mut args: SlowArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let definition = definition(&args);
    if args.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    ExpressionMetric::accept(std::slice::from_ref(&definition), context.common.format)?;
    let capacity = args.records.capacity()?;
    let ns = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let perfetto = args.perfetto.as_deref().map(Destination::prepare).transpose()?;
    let options = SlowOptions {
        over_ns: ns(args.over),
        least_ns: ns(args.least()),
        callees: args.callees.clone(),
        told: args.tell.clone(),
        limit: args.limit.0,
        capacity,
    };
    let own = EnableRequest {
        functions: vec![args.function.clone()],
        function_metrics: vec![definition.metric.clone()],
        definitions: ExpressionMetric::sources(&[definition]),
        allow_calls: args.measure.allow_calls,
        kind: Kind::Slow(options),
        ..EnableRequest::default()
    };
    let format = context.common.format;
    let follower = Follower::new(&args, context.common);
    let events = perfetto.is_some().then(CallEvents::default);
    let mut view = SlowView { exprs: &args.exprs, events, told: BTreeSet::new(), format, follower };
    let until = (&mut args.measure, args.records.expire);
    let result = measured_until("the search", until, (&args.target, own), context, (&mut view, out)).await;
    view.follower.end(format);
    // The calls that were shown are saved also if the command fails, or nobody reads what it writes any more.
    let saved = match (perfetto, view.events) {
        (Some(file), Some(events)) if result.is_ok() || !events.is_empty() => file.write_whole(&events.json()),
        _ => Ok(()),
    };
    result?;
    Ok(saved?)
}

/// The definition of the values.
fn definition(args: &SlowArgs) -> ExpressionMetric {
    at_return(METRIC, &args.exprs)
}

struct SlowView<'a> {
    /// The expressions that were asked for.
    exprs: &'a [String],
    /// The calls for `--perfetto`; `None` without it.
    events: Option<CallEvents>,
    /// The functions of which people were told that they are left out, by process and name.
    told: BTreeSet<(i32, String)>,
    format: Format,
    follower: Follower,
}

impl MeasurementView for SlowView<'_> {
    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn queried(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        self.left_out(site);
        self.calls(site, sites.len() > 1, out)
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        for site in sites {
            self.left_out(site);
            self.calls(site, sites.len() > 1, out)?;
            let Some(printed) = &site.printed else { continue };
            let words = ["slow", "were faster"];
            out.text(&summary(printed.counts, words))?;
            // A function whose calls are looked at is also one inside of others, and has two places in the list.
            let left_out: BTreeSet<String> = printed.sites.iter().filter(|of| of.left_out).map(name).collect();
            out.object(&Object::Calls(numbers(site, printed.counts, left_out.into_iter().collect())))?;
        }
        Ok(())
    }
}

/// The module and the name of a function.
fn name(of: &PrintedSite) -> String {
    format!("{}:{}", of.function.module, of.function.function)
}

impl SlowView<'_> {
    /// Tells which functions are left out, each once.
    fn left_out(&mut self, site: &TargetMeasurement) {
        let Some(printed) = &site.printed else { return };
        let pid = site.pid();
        let new: Vec<&PrintedSite> =
            printed.sites.iter().filter(|of| of.left_out && self.told.insert((pid, name(of)))).collect();
        if new.is_empty() {
            return;
        }
        let mut names: Vec<&str> = new.iter().take(NAMED).map(|of| of.function.function.as_str()).collect();
        names.extend((new.len() > NAMED).then_some("…"));
        let functions = plural(new.len() as u64, "function is", "functions are");
        let text = format!(
            "process {pid}: {functions} called too often to be followed within --max-overhead ({}); their time is told as that of \
             their callers",
            names.join(", ")
        );
        output::warn(&text, self.format);
    }

    /// Shows what has come of a target.
    fn calls(&mut self, site: &TargetMeasurement, several: bool, out: &mut Output) -> Result<(), Stop> {
        let Some(printed) = site.printed.as_ref().filter(|printed| !printed.calls.is_empty()) else { return Ok(()) };
        self.follower.start(site.pid(), self.format);
        out.begin_batch();
        for call in &printed.calls {
            let (Some(of), Some(tree)) = (printed.sites.get(call.site as usize), &call.tree) else { continue };
            let slow = SlowCall { sites: &printed.sites, of, call, tree };
            if let Some(events) = &mut self.events {
                slow.add_to(events, site.pid());
            }
            let named = NamedCall::new(self.exprs, of, call);
            if out.json() {
                out.object(&Object::Slow(slow.object(named, site)))?;
            } else {
                out.text(&slow.text(&named, several.then_some(site.pid())))?;
            }
        }
        out.end_batch()
    }
}

/// A slow call.
struct SlowCall<'a> {
    /// All functions.
    sites: &'a [PrintedSite],
    of: &'a PrintedSite,
    call: &'a PrintedCall,
    tree: &'a CallTree,
}

impl SlowCall<'_> {
    /// Unix time in nanoseconds at which the call began.
    fn began_ns(&self) -> u64 {
        self.call.time_ns.saturating_sub(self.tree.elapsed_ns)
    }

    fn site(&self, site: u32) -> Option<&PrintedSite> {
        self.sites.get(site as usize)
    }

    /// Lines for people.
    fn text(&self, named: &NamedCall<'_>, pid: Option<i32>) -> String {
        let CallTree { elapsed_ns, self_ns, lost, goroutine, calls } = self.tree;
        let head = named.head(self.began_ns(), pid);
        let (whole, own) = (time(*elapsed_ns as f64), time(*self_ns as f64));
        let by = if *goroutine > 0 { format!(" in goroutine {goroutine}") } else { String::new() };
        let (result, caller) = (named.result_text(), named.caller_text());
        let mut text = format!("{head} {HEADING}{whole}{HEADING:#}, self {own}{result}{caller}{by}\n");
        for call in calls {
            let Some(of) = self.site(call.site) else { continue };
            let indent = " ".repeat(2 * (call.depth as usize + 1).min(INDENT_MAX / 2));
            let [at, elapsed, own] = [call.at_ns, call.elapsed_ns, call.self_ns].map(|ns| time(ns as f64));
            let module = match of.function.module == self.of.function.module {
                true => String::new(),
                false => format!("{}:", of.function.module),
            };
            let function = output::abbreviated(&of.function.function);
            let values = NamedValues::inside(of, &call.values).text();
            text += &format!(
                "{DIM}{at:>12}{DIM:#} {elapsed:>10} {DIM}self {own:>10}{DIM:#}{indent}{module}{function}{values}\n"
            );
        }
        if *lost > 0 {
            // A goroutine has a limit of its own besides the buffer.
            let flags = if *goroutine > 0 { "--least, --buffer" } else { "--buffer" };
            text += &format!("  {} inside were lost ({flags})\n", plural(*lost, "call", "calls"));
        }
        text
    }

    fn object(&self, named: NamedCall<'_>, site: &TargetMeasurement) -> SlowObject {
        let CallTree { elapsed_ns, self_ns, lost, goroutine, calls } = self.tree;
        let inner = calls.iter().filter_map(|call| {
            let of = self.site(call.site)?;
            let object = InnerCallObject {
                module: of.function.module.clone(),
                function: of.function.function.clone(),
                at_ns: call.at_ns,
                elapsed_ns: call.elapsed_ns,
                self_ns: call.self_ns,
                told: (!call.values.is_empty()).then(|| NamedValues::inside(of, &call.values).recorded()),
                calls: Vec::new(),
                deeper: 0,
            };
            Some((call.depth as usize, object))
        });
        SlowObject {
            host: site.host(),
            pid: site.pid(),
            tid: self.call.tid,
            goroutine: (*goroutine > 0).then_some(*goroutine),
            time_ns: self.began_ns(),
            module: self.of.function.module.clone(),
            function: self.of.function.function.clone(),
            elapsed_ns: *elapsed_ns,
            self_ns: *self_ns,
            of_call: named.recorded(),
            lost: *lost,
            calls: InnerCallObject::nested(inner),
        }
    }

    /// Adds the call and those inside to events.
    fn add_to(&self, events: &mut CallEvents, pid: i32) {
        let began_ns = self.began_ns();
        let event = |of: &PrintedSite, at_ns: u64, elapsed_ns: u64| CallEvent {
            name: of.function.function.clone(),
            category: of.function.module.clone(),
            began_ns: began_ns.saturating_add(at_ns),
            elapsed_ns,
            pid,
            tid: self.call.tid,
            goroutine: self.tree.goroutine,
        };
        events.add(event(self.of, 0, self.tree.elapsed_ns));
        for call in &self.tree.calls {
            if let Some(of) = self.site(call.site) {
                events.add(event(of, call.at_ns, call.elapsed_ns));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::{InnerCall, NamedFunction, PrintedColumn, PrintedValue};
    use ingraft_model::{ColumnContent, Svma};

    use super::*;

    fn sites() -> Vec<PrintedSite> {
        let site = |module: &str, function: &str, columns| PrintedSite {
            function: NamedFunction { module: module.to_owned(), function: function.to_owned(), offset: Svma(0x10) },
            columns,
            left_out: false,
        };
        let column = |content| PrintedColumn { name: String::new(), content };
        let of_serve = [ColumnContent::Number, ColumnContent::Caller, ColumnContent::Return, ColumnContent::Elapsed];
        vec![
            site("shop", "serve", of_serve.map(column).to_vec()),
            site("shop", "load", Vec::new()),
            site(
                "libc.so.6",
                "read",
                vec![PrintedColumn { name: "$arg.n".to_owned(), content: ColumnContent::Return }],
            ),
        ]
    }

    fn call() -> PrintedCall {
        let inner = |(site, depth, at_ns, elapsed_ns, self_ns)| InnerCall {
            site,
            depth,
            at_ns,
            elapsed_ns,
            self_ns,
            values: if site == 2 { vec![PrintedValue::Number(512)] } else { Vec::new() },
        };
        let calls =
            [(1, 0, 1_000, 40_000_000, 1_000_000), (2, 1, 2_000, 39_000_000, 39_000_000), (1, 0, 41_000_000, 500, 500)];
        PrintedCall {
            site: 0,
            tid: 7,
            time_ns: 1_700_000_000_123_456_789,
            values: vec![
                PrintedValue::Number(12),
                PrintedValue::Caller(0x7f00, None),
                PrintedValue::Number(-1),
                PrintedValue::Number(50_000_000),
            ],
            tree: Some(CallTree {
                elapsed_ns: 50_000_000,
                self_ns: 9_999_500,
                lost: 2,
                goroutine: 0,
                calls: calls.map(inner).to_vec(),
            }),
        }
    }

    #[test]
    fn a_tree_has_a_line_for_each_call() {
        let (sites, call, exprs) = (sites(), call(), ["n".to_owned()]);
        let slow = SlowCall { sites: &sites, of: &sites[0], call: &call, tree: call.tree.as_ref().expect("a tree") };
        let text = slow.text(&NamedCall::new(&exprs, &sites[0], &call), Some(4711));
        expect![[r#"
            22:13:20.073456 4711/7 serve n=12 50 ms, self 10 ms = -1 from 0x7f00
                    1 µs      40 ms self       1 ms  load
                    2 µs      39 ms self      39 ms    libc.so.6:read n=512
                   41 ms     500 ns self     500 ns  load
              2 calls inside were lost (--buffer)
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn events_have_the_times_of_all_calls() {
        let (sites, call) = (sites(), call());
        let slow = SlowCall { sites: &sites, of: &sites[0], call: &call, tree: call.tree.as_ref().expect("a tree") };
        let mut events = CallEvents::default();
        slow.add_to(&mut events, 4711);
        expect![[r#"
            {"displayTimeUnit":"ns","otherData":{"began_unix_ns":1700000000073456789},"traceEvents":[
            {"ph":"X","name":"serve","cat":"shop","ts":0.000,"dur":50000.000,"pid":4711,"tid":7},
            {"ph":"X","name":"load","cat":"shop","ts":1.000,"dur":40000.000,"pid":4711,"tid":7},
            {"ph":"X","name":"read","cat":"libc.so.6","ts":2.000,"dur":39000.000,"pid":4711,"tid":7},
            {"ph":"X","name":"load","cat":"shop","ts":41000.000,"dur":0.500,"pid":4711,"tid":7}
            ]}
        "#]]
        .assert_eq(&String::from_utf8(events.json()).expect("text"));
    }

    #[test]
    fn the_definition_has_no_errors() {
        use ingraft_mdl::{ParseOptions, shipped};
        for exprs in [&[] as &[&str], &["$arg[0]", "str($arg[1])", "request->size"]] {
            let exprs: Vec<String> = exprs.iter().map(ToString::to_string).collect();
            let ExpressionMetric { metric, text } = at_return(METRIC, &exprs);
            let mut library = shipped::library(ParseOptions::default());
            let found: Vec<_> = library.load("x", &text).into_iter().filter(|d| d.is_error()).collect();
            assert!(found.is_empty(), "{found:?}\n{text}");
            assert!(library.metrics().iter().any(|known| known.name == metric), "{text}");
        }
    }
}
