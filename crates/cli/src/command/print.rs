//! `ingraft print`: one line for each call of a function.

use std::borrow::Cow;
use std::time::{Duration, Instant, UNIX_EPOCH};

use ingraft_api::{
    CallNumbers, EnableRequest, Kind, ModulePlace, PrintOptions, PrintedCall, PrintedColumn, PrintedSite, PrintedValue,
};
use ingraft_model::{ColumnContent, Offset};

use super::expression::ExpressionMetric;
use crate::args::expressions::with_names;
use crate::args::{Measure, PrintArgs, TargetArgs};
use crate::conn::RequestTarget;
use crate::exit::Stop;
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, Query, TargetMeasurement};
use crate::objects::Object;
use crate::objects::printed::{CallObject, CallValue, CallValues, CallsObject, ToldObject};
use crate::output::number::{grouped_u64, plural, time};
use crate::output::{self, DIM, HEADING, Output};

/// Time between two readings.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a measurement by a daemon ends if no other is given.
const EXPIRY: Duration = Duration::from_secs(3600);
/// Name of the result among the names of enumerators.
const RESULT: &str = "$return";
/// Name of the metric that the command defines.
const METRIC: &str = "calls printed";

/// Runs the command.
pub(crate) async fn run(mut args: PrintArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let definition = definition(&args);
    if args.show_mdl {
        return ExpressionMetric::show(&[definition], out);
    }
    ExpressionMetric::accept(std::slice::from_ref(&definition), context.common.format)?;
    let capacity = args.records.capacity()?;
    let own = EnableRequest {
        functions: vec![args.function.clone()],
        function_metrics: vec![definition.metric.clone()],
        definitions: ExpressionMetric::sources(&[definition]),
        allow_calls: args.measure.allow_calls,
        kind: Kind::Print(PrintOptions { limit: args.limit.0, capacity }),
        ..EnableRequest::default()
    };
    let mut view = PrintView { exprs: &args.exprs };
    let until = (&mut args.measure, args.records.expire);
    measured_until("printing", until, (&args.target, own), context, (&mut view, out)).await
}

/// Measures calls that are printed, or are slow, and presents them as they come. The measurement ends after `expire`, or by a daemon after an
/// hour, whatever else is asked for; `what` tells people so.
pub(super) async fn measured_until(
    what: &str,
    (measure, expire): (&mut Measure, Option<Duration>),
    (target, own): (&TargetArgs, EnableRequest),
    context: CommandContext<'_>,
    (view, out): (&mut dyn MeasurementView, &mut Output),
) -> Result<(), Stop> {
    let expiry = expire.or_else(|| (!context.engines.is_embedded()).then_some(EXPIRY));
    let ends_early = expiry.filter(|expiry| measure.duration.is_none_or(|duration| duration > *expiry));
    measure.duration = ends_early.or(measure.duration);
    let request = |target: RequestTarget| {
        let mut request = measure::request(target, measure, own.clone());
        (request.measure.keep, request.measure.family) = (false, false);
        request
    };
    let plan = MeasurementPlan::new(measure, target, request, out);
    let plan = plan.queried(Some(Query::Printed)).each(INTERVAL);
    let (started, format) = (Instant::now(), context.common.format);
    measure::run(plan, context, view, out).await?;
    if let Some(expiry) = ends_early.filter(|expiry| started.elapsed() >= *expiry) {
        let after = humantime::format_duration(expiry);
        output::warn(&format!("{what} ended after {after}; --expire gives it another time"), format);
    }
    Ok(())
}

/// The definition of what is printed: the values, and the caller, the result and the time of the call.
fn definition(args: &PrintArgs) -> ExpressionMetric {
    let mut values: Vec<String> = args.exprs.iter().map(|expr| with_names(expr)).collect();
    if values.is_empty() {
        values.push("args()".to_owned());
    }
    values.push("$caller".to_owned());
    if !args.entry {
        values.extend(["$return", "$elapsed"].map(str::to_owned));
    }
    let slower = args.slower.map(|slower| format!("$elapsed > {}", slower.as_nanos()));
    let conditions: Vec<String> = args.condition.iter().map(|condition| with_names(condition)).chain(slower).collect();
    let act = format!("printed++; print({});", values.join(", "));
    let code = match conditions.as_slice() {
        [] => act,
        [one] => format!("if ({one}) {{ {act} }}"),
        all => format!("if (({})) {{ {act} }}", all.join(") && (")),
    };
    let point = match args.entry {
        true => "append preInsn $constraint[0].entry",
        false => "prepend preInsn $constraint[0].return",
    };
    metric(METRIC, point, &code)
}

/// The definition of values that are told of each call when it returns: those of these expressions, the caller, the result and the time.
pub(super) fn at_return(name: &str, exprs: &[String]) -> ExpressionMetric {
    let values = exprs.iter().map(|expr| with_names(expr));
    let values: Vec<String> = values.chain(["$caller", "$return", "$elapsed"].map(str::to_owned)).collect();
    metric(name, "prepend preInsn $constraint[0].return", &format!("printed++; print({});", values.join(", ")))
}

fn metric(name: &str, point: &str, code: &str) -> ExpressionMetric {
    let text = format!(
        "metric printed {{\n    name \"{name}\";\n    units calls;\n    aggregateOperator sum;\n    style EventCounter;\n    \
         constraint ofFunction /Code/* is replace counter {{\n        {point} (* {code} *)\n    }}\n    base is counter \
         {{\n    }}\n}}\n"
    );
    ExpressionMetric { metric: name.to_owned(), text }
}

struct PrintView<'a> {
    /// The expressions that were asked for.
    exprs: &'a [String],
}

impl MeasurementView for PrintView<'_> {
    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn queried(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        self.calls(site, sites.len() > 1, out)
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        for site in sites {
            self.calls(site, sites.len() > 1, out)?;
            let Some(printed) = &site.printed else { continue };
            out.text(&summary(printed.counts, ["printed", "did not meet the condition"]))?;
            out.object(&Object::Calls(numbers(site, printed.counts, Vec::new())))?;
        }
        Ok(())
    }
}

/// The record of the numbers of calls.
pub(super) fn numbers(site: &TargetMeasurement, counts: CallNumbers, left_out: Vec<String>) -> CallsObject {
    let CallNumbers { calls, printed, unmet, skipped, lost, left } = counts;
    CallsObject { host: site.host(), pid: site.pid(), calls, printed, unmet, skipped, lost, left, left_out }
}

/// A line with the numbers of calls: those that were told, and those that did not meet the condition, are called so.
pub(super) fn summary(numbers: CallNumbers, [told, other]: [&str; 2]) -> String {
    let CallNumbers { calls, printed, unmet, skipped, lost, left } = numbers;
    let parts = [
        (printed, told),
        (unmet, other),
        (skipped, "skipped by the limit (--limit)"),
        (lost, "lost (--buffer)"),
        (left, "did not return"),
    ];
    let parts = parts.iter().filter(|(number, what)| *number > 0 || *what == told);
    let parts: Vec<String> = parts.map(|(number, what)| format!("{} {what}", grouped_u64(*number))).collect();
    format!("{}: {}\n", plural(calls, "call", "calls"), parts.join(", "))
}

impl PrintView<'_> {
    /// Prints what has come of a target.
    fn calls(&self, site: &TargetMeasurement, several: bool, out: &mut Output) -> Result<(), Stop> {
        let Some(printed) = site.printed.as_ref().filter(|printed| !printed.calls.is_empty()) else { return Ok(()) };
        out.begin_batch();
        for call in &printed.calls {
            let Some(of) = printed.sites.get(call.site as usize) else { continue };
            let call = NamedCall::new(self.exprs, of, call);
            if out.json() {
                out.object(&Object::Call(call.object(site)))?;
            } else {
                out.text(&call.line(several.then_some(site.pid())))?;
            }
        }
        out.end_batch()
    }
}

/// A call with what its values mean.
pub(super) struct NamedCall<'a> {
    of: &'a PrintedSite,
    call: &'a PrintedCall,
    values: NamedValues<'a>,
    caller: Option<String>,
    result: Option<&'a PrintedValue>,
    elapsed_ns: Option<i64>,
}

impl<'a> NamedCall<'a> {
    pub(super) fn new(exprs: &'a [String], of: &'a PrintedSite, call: &'a PrintedCall) -> Self {
        // Values that were not asked for are behind those that were: the caller, and the result and the time.
        let is_caller = |column: &PrintedColumn| column.content == ColumnContent::Caller;
        let asked = of.columns.iter().rposition(is_caller).unwrap_or(of.columns.len());
        // An expression may stand for several values.
        let own_names = exprs.len() == asked;
        let name = |(n, column): (usize, &'a PrintedColumn)| {
            exprs.get(n).filter(|_| own_names).map_or(column.name.as_str(), String::as_str)
        };
        let names = of.columns.iter().take(asked).enumerate().map(name).map(Cow::Borrowed);
        let values = NamedValues { values: names.zip(&call.values).collect() };
        let own = || of.columns.iter().zip(&call.values).skip(asked);
        let find = |content| own().find(|(column, _)| column.content == content).map(|(_, value)| value);
        let caller = own().find_map(|(_, value)| match value {
            PrintedValue::Caller(address, place) => Some(place_name(*address, place.as_deref())),
            _ => None,
        });
        let has_result = |result: &&PrintedValue| !matches!(result, PrintedValue::Unreadable);
        let (result, elapsed_ns) =
            (find(ColumnContent::Return).filter(has_result), find(ColumnContent::Elapsed).and_then(as_number));
        NamedCall { of, call, values, caller, result, elapsed_ns }
    }

    fn object(self, site: &TargetMeasurement) -> CallObject {
        CallObject {
            host: site.host(),
            pid: site.pid(),
            tid: self.call.tid,
            time_ns: self.call.time_ns,
            module: self.of.function.module.clone(),
            function: self.of.function.function.clone(),
            elapsed_ns: self.elapsed_ns,
            of_call: self.recorded(),
        }
    }

    /// The values for scripts.
    pub(super) fn recorded(self) -> CallValues {
        let ToldObject { values, mut names, cut } = self.values.recorded();
        names.extend(self.result.and_then(|result| Some((RESULT.to_owned(), enumerator(result)?.to_owned()))));
        CallValues { names, values, result: self.result.and_then(as_number), caller: self.caller, cut }
    }

    fn line(self, pid: Option<i32>) -> String {
        let elapsed = self.elapsed_ns.map_or_else(String::new, |elapsed| format!(" {}", time(elapsed as f64)));
        format!("{}{}{elapsed}{}\n", self.head(self.call.time_ns, pid), self.result_text(), self.caller_text())
    }

    /// Beginning of the call's line: a time, the thread, the function, and the values that were asked for.
    pub(super) fn head(&self, time_ns: u64, pid: Option<i32>) -> String {
        let moment = UNIX_EPOCH + Duration::from_nanos(time_ns);
        let moment = humantime::format_rfc3339_micros(moment).to_string();
        let moment = moment.split_once('T').map_or("", |(_, time)| time.trim_end_matches('Z'));
        let pid = pid.map_or_else(String::new, |pid| format!("{pid}/"));
        let function = output::abbreviated(&self.of.function.function);
        let mut line = format!("{DIM}{moment} {pid}{}{DIM:#} {HEADING}{function}{HEADING:#}", self.call.tid);
        line += &self.values.text();
        line
    }

    /// The result of the call for its line.
    pub(super) fn result_text(&self) -> String {
        self.result.map_or_else(String::new, |result| format!(" = {}", shown(result)))
    }

    /// The caller for the call's line.
    pub(super) fn caller_text(&self) -> String {
        self.caller.as_ref().map_or_else(String::new, |caller| format!(" {DIM}from {caller}{DIM:#}"))
    }
}

/// Values of a call, by their expressions.
pub(super) struct NamedValues<'a> {
    values: Vec<(Cow<'a, str>, &'a PrintedValue)>,
}

impl<'a> NamedValues<'a> {
    /// The values of a call inside of a slow one.
    pub(super) fn inside(of: &'a PrintedSite, values: &'a [PrintedValue]) -> Self {
        // The command line takes names of arguments without this word.
        let name = |column: &PrintedColumn| column.name.replace("$arg.", "").into();
        NamedValues { values: of.columns.iter().map(name).zip(values).collect() }
    }

    /// The values for a line.
    pub(super) fn text(&self) -> String {
        self.values.iter().map(|(expr, value)| format!(" {expr}={}", shown(value))).collect()
    }

    /// The values for scripts.
    pub(super) fn recorded(&self) -> ToldObject {
        let values = self.values.iter().map(|(expr, value)| (expr.to_string(), recorded_whole(value)));
        let names =
            self.values.iter().filter_map(|(expr, value)| Some((expr.to_string(), enumerator(value)?.to_owned())));
        let cut = self.values.iter().filter(|(_, value)| is_cut(value)).map(|(expr, _)| expr.to_string());
        ToldObject { values: values.collect(), names: names.collect(), cut: cut.collect() }
    }
}

/// The name of an enumerator.
fn enumerator(value: &PrintedValue) -> Option<&str> {
    match value {
        PrintedValue::Enumerator(_, name) => Some(name),
        _ => None,
    }
}

/// The place of a call as `FUNCTION+0xOFFSET`, or its return address.
fn place_name(address: u64, place: Option<&ModulePlace>) -> String {
    let Some(ModulePlace { module, at, function, .. }) = place else { return format!("{address:#x}") };
    match function {
        Some(function) => format!("{}{}", function.function, Offset::between(function.offset.0, at.0)),
        None => format!("{module}{}", Offset::between(0, at.0)),
    }
}

/// Whether a text, or one in a variant, goes on behind what was read.
fn is_cut(value: &PrintedValue) -> bool {
    match value {
        PrintedValue::Text { cut, .. } => *cut,
        PrintedValue::Variant { value: Some(value), .. } => is_cut(value),
        _ => false,
    }
}

/// The number that a value is.
const fn as_number(value: &PrintedValue) -> Option<i64> {
    match value {
        PrintedValue::Number(number) | PrintedValue::Enumerator(number, _) => Some(*number),
        _ => None,
    }
}

/// A value for scripts. An enumerator is a number, as it is without a name; its name is beside it.
fn recorded_whole(value: &PrintedValue) -> CallValue {
    as_number(value).map_or_else(|| recorded(value), CallValue::Number)
}

fn recorded(value: &PrintedValue) -> CallValue {
    match value {
        PrintedValue::Enumerator(number, name) => CallValue::Enumerator { number: *number, name: name.clone() },
        PrintedValue::List(length, elements) => {
            let elements = (*length == 0 || !elements.is_empty()).then(|| elements.clone());
            CallValue::List { length: *length, elements }
        }
        PrintedValue::Variant { name, value, .. } => {
            let value = value.as_deref().map(|value| Box::new(recorded(value)));
            CallValue::Variant { variant: name.clone(), value }
        }
        PrintedValue::Number(number) => CallValue::Number(*number),
        PrintedValue::Text { bytes, .. } => CallValue::Text(String::from_utf8_lossy(bytes).into_owned()),
        PrintedValue::Unreadable => CallValue::Unreadable,
        PrintedValue::Caller(address, place) => CallValue::Text(place_name(*address, place.as_deref())),
    }
}

/// A value for people.
fn shown(value: &PrintedValue) -> String {
    match value {
        PrintedValue::Enumerator(_, name) => name.clone(),
        PrintedValue::List(length, elements) => list(*length, elements),
        PrintedValue::Variant { name, value: Some(value), .. } => format!("{name}({})", shown(value)),
        PrintedValue::Variant { name, value: None, hidden } => format!("{name}{}", if *hidden { "(…)" } else { "" }),
        PrintedValue::Number(value) => number(*value),
        PrintedValue::Text { bytes, cut } => {
            let more = if *cut { "…" } else { "" };
            format!("\"{}\"{more}", String::from_utf8_lossy(bytes).escape_debug())
        }
        PrintedValue::Unreadable => "unreadable".to_owned(),
        PrintedValue::Caller(address, place) => place_name(*address, place.as_deref()),
    }
}

/// A list for people: the number of elements, and those that were read.
fn list(length: u64, elements: &[i64]) -> String {
    if elements.is_empty() {
        return format!("[len={length}]");
    }
    let more = if length > elements.len() as u64 { format!(", … len={length}") } else { String::new() };
    let elements: Vec<String> = elements.iter().map(|element| number(*element)).collect();
    format!("[{}{more}]", elements.join(", "))
}

/// A number for people: large ones are rather addresses or sets of bits.
fn number(value: i64) -> String {
    const LARGE: u64 = 1 << 32;
    if value.unsigned_abs() < LARGE { value.to_string() } else { format!("{value:#x}") }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::NamedFunction;
    use ingraft_mdl::{ParseOptions, shipped};
    use ingraft_model::Svma;

    use super::*;
    use crate::args::{Cli, Command};

    fn args(line: &[&str]) -> PrintArgs {
        use clap::Parser as _;
        let all = ["ingraft", "print", "-p", "1"].into_iter().chain(line.iter().copied());
        match Cli::try_parse_from(all).expect("right").command {
            Command::Print(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn definitions_have_no_errors() {
        for line in [
            &["f"] as &[&str],
            &["f", "$arg[0]", "str($arg[1])", "--if", "$arg[0] > 3 && $return < 0", "--slower", "10ms"],
            &["f", "str(request->path, request->length)", "size", "--entry", "--if", "size > 1"],
        ] {
            let args = args(line);
            let ExpressionMetric { metric, text } = definition(&args);
            let mut library = shipped::library(ParseOptions::default());
            let found: Vec<_> = library.load("x", &text).into_iter().filter(|d| d.is_error()).collect();
            assert!(found.is_empty(), "{found:?}\n{text}");
            assert!(library.metrics().iter().any(|known| known.name == metric), "{text}");
            assert_eq!(text.contains(".entry"), args.entry);
        }
    }

    #[test]
    fn lines_tell_values_and_results() {
        let exprs = ["$arg[0]".to_owned(), "str($arg[1])".to_owned(), "str($arg[2])".to_owned()];
        let column = |content| PrintedColumn { name: String::new(), content };
        let contents = [
            ColumnContent::Number,
            ColumnContent::Text,
            ColumnContent::Text,
            ColumnContent::Caller,
            ColumnContent::Return,
            ColumnContent::Elapsed,
        ];
        let function = |name: &str, offset| NamedFunction {
            module: "shop".to_owned(),
            function: name.to_owned(),
            offset: Svma(offset),
        };
        let of =
            PrintedSite { function: function("price", 0x10), columns: contents.map(column).to_vec(), left_out: false };
        let place = ModulePlace { function: Some(function("serve", 0x100)), at: Svma(0x11f), ..ModulePlace::default() };
        let values = vec![
            PrintedValue::Number(-3),
            PrintedValue::Text { bytes: b"a\n\xff".to_vec(), cut: true },
            PrintedValue::Unreadable,
            PrintedValue::Caller(0x7f00, Some(place.into())),
            PrintedValue::Number(1 << 40),
            PrintedValue::Number(81_234),
        ];
        let call = PrintedCall { site: 0, tid: 7, time_ns: 1_700_000_000_123_456_789, values, tree: None };
        let line = NamedCall::new(&exprs, &of, &call).line(None);
        expect![[r#"
            22:13:20.123456 7 price $arg[0]=-3 str($arg[1])="a\n�"… str($arg[2])=unreadable = 0x10000000000 81.2 µs from serve+0x1f
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&line).to_string());
        assert_eq!(place_name(0x7f00, None), "0x7f00");
    }

    #[test]
    fn values_are_shown_by_their_types() {
        let text = |bytes: &[u8], cut| PrintedValue::Text { bytes: bytes.to_vec(), cut };
        let variant = |name: &str, value: Option<PrintedValue>, hidden| PrintedValue::Variant {
            name: name.to_owned(),
            value: value.map(Box::new),
            hidden,
        };
        let enumerator = PrintedValue::Enumerator(1, "READY".to_owned());
        let all = [
            enumerator.clone(),
            PrintedValue::Number(17),
            PrintedValue::List(3, vec![1, -2, 1 << 40]),
            PrintedValue::List(100, vec![7]),
            PrintedValue::List(12, Vec::new()),
            PrintedValue::List(0, Vec::new()),
            variant("None", None, false),
            variant("Some", Some(text(b"a\"b", true)), false),
            variant("Some", Some(variant("Ok", Some(enumerator), false)), false),
            variant("Some", Some(PrintedValue::Unreadable), false),
            variant("Move", None, true),
        ];
        let line = |value: &PrintedValue| {
            let json = serde_json::to_string(&recorded_whole(value)).expect("JSON");
            format!("{}   {json}{}\n", shown(value), if is_cut(value) { " cut" } else { "" })
        };
        let lines: String = all.iter().map(line).collect();
        expect![[r#"
            READY   1
            17   17
            [1, -2, 0x10000000000]   {"length":3,"elements":[1,-2,1099511627776]}
            [7, … len=100]   {"length":100,"elements":[7]}
            [len=12]   {"length":12}
            [len=0]   {"length":0,"elements":[]}
            None   {"variant":"None"}
            Some("a\"b"…)   {"variant":"Some","value":"a\"b"} cut
            Some(Ok(READY))   {"variant":"Some","value":{"variant":"Ok","value":{"number":1,"name":"READY"}}}
            Some(unreadable)   {"variant":"Some","value":null}
            Move(…)   {"variant":"Move"}
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn the_summary_adds_up() {
        const WORDS: [&str; 2] = ["printed", "did not meet the condition"];
        let numbers = CallNumbers { calls: 1234, printed: 1000, unmet: 200, skipped: 30, lost: 3, left: 1 };
        expect![[r#"
            1,234 calls: 1,000 printed, 200 did not meet the condition, 30 skipped by the limit (--limit), 3 lost (--buffer), 1 did not return
        "#]]
        .assert_eq(&summary(numbers, WORDS));
        assert_eq!(summary(CallNumbers::default(), WORDS), "0 calls: 0 printed\n");
    }
}
