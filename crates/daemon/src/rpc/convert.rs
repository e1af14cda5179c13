//! Conversions of the engine's values to messages, and of requests to the engine's values.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use ingraft_engine::{
    CountsOptions, CoverageOptions, EnableRequest, Ended, EventEntry, FunctionEntry, FunctionRef, Inserted, Kind,
    LaunchRequest, LowerRequest, LoweredLine, LoweredMetric, LoweredPiece, MetricFocus, PairCost, PairInfo,
    PointSummary, ProcessEntry, RefusedFunction, Removed, TargetSpec, TraceCondition, TraceOptions, UntypedSymbol,
};
use ingraft_model::{Capacity, EVENT_NAMES, FLAVORS_MAX, Flavor, Pid, PointKind, Tid};
use ingraft_wire::convert::{self, FieldError, required};
use ingraft_wire::{Parts, profile, v1};

use super::enable::WAIT_MAX;

/// The metric of `functions` if a request names none.
const FUNCTION_METRIC: &str = "calls";

/// Converts a target from its message.
pub fn target(target: Option<v1::Target>) -> Result<TargetSpec, FieldError> {
    let target = required(target, "target")?;
    match required(target.which, "target.which")? {
        v1::target::Which::Pid(pid) => Ok(TargetSpec::Pid(convert::pid(pid, "target.pid")?)),
        v1::target::Which::Name(name) if name.is_empty() => Err(FieldError::missing("target.name")),
        v1::target::Which::Name(name) => Ok(TargetSpec::Name(name)),
    }
}

/// Splits event totals into messages.
pub fn event_totals(reading: ingraft_engine::TotalsReading) -> impl Iterator<Item = v1::EventTotalsResponse> + Send {
    let ingraft_engine::TotalsReading { time_ns, held, functions, threads, inexact } = reading;
    let functions = u32::try_from(functions).unwrap_or(u32::MAX);
    let head = v1::EventTotalsHead { time_ns, held_ns: nanoseconds(held), functions, inexact };
    let first = v1::EventTotalsResponse { head: Some(head), threads: Vec::new() };
    let thread = |of: ingraft_engine::ThreadTotals| {
        let [instructions, calls, branches, reads, writes] = of.events;
        let tid = of.tid.map(|tid| tid.0);
        v1::ThreadEvents { tid, name: of.name, ended: of.ended, instructions, calls, branches, reads, writes }
    };
    let parts = Parts::new(threads.into_iter().map(thread));
    std::iter::once(first).chain(parts.map(|threads| v1::EventTotalsResponse { head: None, threads }))
}

/// Converts sources from their messages.
pub fn sources(sources: Vec<v1::Source>) -> Vec<(String, String)> {
    sources.into_iter().map(|s| (s.name, s.text)).collect()
}

/// Converts a request for an insertion from its message.
pub fn enable(request: v1::EnableRequest) -> Result<EnableRequest, FieldError> {
    let target = target(request.target)?;
    measure(request.measure, target)
}

/// Converts a request to start a program from its message.
pub fn launch(request: v1::LaunchRequest, inherit_streams: bool) -> Result<LaunchRequest, FieldError> {
    if request.command.first().is_none_or(Vec::is_empty) {
        return Err(FieldError::missing("command[0]"));
    }
    if let Some(i) = request.command.iter().position(|word| word.contains(&0)) {
        return Err(FieldError::new(format!("command[{i}]"), "holds a zero byte"));
    }
    let patience = request.measure.as_ref().map(|measure| measure.wait_ns).filter(|ns| *ns != 0);
    Ok(LaunchRequest {
        command: request.command.into_iter().map(OsString::from_vec).collect(),
        // For a started program, the engine ignores this target.
        enable: measure(request.measure, TargetSpec::Name(String::new()))?,
        loader_patience: patience.map(|ns| Duration::from_nanos(ns).min(WAIT_MAX)),
        inherit_streams,
    })
}

fn measure(measure: Option<v1::Measure>, target: TargetSpec) -> Result<EnableRequest, FieldError> {
    let measure = required(measure, "measure")?;
    let kind = measure.kind.map_or(Ok(Kind::Metrics), kind).map_err(|e| e.inside("measure"))?;
    let pairs = measure
        .pairs
        .into_iter()
        .enumerate()
        .map(|(i, pair)| metric_focus(pair).map_err(|e| e.inside(format_args!("pairs[{i}]")).inside("measure")));
    let pairs: Vec<_> = pairs.collect::<Result<_, _>>()?;
    if pairs.is_empty() && measure.functions.is_empty() {
        return Err(FieldError::new("measure", "names no pair and no function"));
    }
    if kind.is_of_whole_functions() && !pairs.is_empty() {
        return Err(FieldError::new("measure.pairs", "is not empty, and profiles and traces are of functions"));
    }
    let max_overhead = measure.max_overhead;
    if max_overhead.is_some_and(|percent| percent.is_nan() || percent <= 0.0) {
        return Err(FieldError::new("measure.max_overhead", "is no number of percent above 0"));
    }
    let flavors = flavors(&measure.flavors).map_err(|e| e.inside("measure"))?;
    let function_metric = Some(measure.function_metric).filter(|m| !m.is_empty());
    let first = function_metric.unwrap_or_else(|| FUNCTION_METRIC.to_owned());
    let function_metrics = std::iter::once(first).chain(measure.more_function_metrics).collect();
    Ok(EnableRequest {
        target,
        pairs,
        functions: measure.functions,
        function_metrics,
        definitions: sources(measure.definitions),
        flavors,
        keep: measure.keep,
        max_overhead,
        max_hold: Some(measure.max_hold_ns).filter(|ns| *ns != 0).map(Duration::from_nanos),
        allow_calls: measure.allow_calls,
        beside_uprobes: measure.beside_uprobes,
        family: measure.family,
        max_pairs: None,
        await_modules: measure.await_modules,
        kind,
    })
}

/// Converts the kind of a measurement from its message.
fn kind(kind: v1::measure::Kind) -> Result<Kind, FieldError> {
    use v1::measure::Kind as Wire;
    match kind {
        Wire::Counts(options) => counts(options).map(Kind::Counts).map_err(|e| e.inside("counts")),
        Wire::Coverage(v1::CoverageKind { branches: true, in_place: true }) => {
            Err(FieldError::new("coverage.in_place", "is set with `branches`, which need copies of functions"))
        }
        Wire::Coverage(v1::CoverageKind { branches, in_place }) => {
            Ok(Kind::Coverage(CoverageOptions { branches, in_place }))
        }
        Wire::Trace(options) => trace(options).map(Kind::Trace).map_err(|e| e.inside("trace")),
    }
}

fn counts(options: v1::CountsKind) -> Result<CountsOptions, FieldError> {
    let v1::CountsKind { check, earlier, inclusive, inclusive_calls } = options;
    let inclusive = match inclusive.as_str() {
        "" if inclusive_calls => return Err(FieldError::new("inclusive_calls", "is set without `inclusive`")),
        "" => None,
        name => {
            let event = EVENT_NAMES.iter().position(|known| *known == name);
            let event = event.ok_or_else(|| FieldError::new("inclusive", "is no event that profiles count"))?;
            Some(ingraft_engine::Inclusive { event, calls: inclusive_calls })
        }
    };
    let earlier = earlier.map(profile::earlier).transpose().map_err(|e| e.inside("earlier"))?;
    Ok(CountsOptions { check, inclusive, earlier: earlier.map(Arc::new) })
}

fn trace(options: v1::TraceKind) -> Result<TraceOptions, FieldError> {
    let v1::TraceKind { buffer, times, when, lossless } = options;
    let when = match when {
        Some(when) if when.function.is_empty() => return Err(FieldError::missing("when.function")),
        when => when.map(|v1::TraceCondition { function, expression }| TraceCondition { function, expression }),
    };
    if buffer == 0 {
        return Err(FieldError::missing("buffer"));
    }
    let too_large = || FieldError::new("buffer", format!("is above {}", Capacity::MOST));
    let capacity = Capacity::of_bytes(buffer).ok_or_else(too_large)?;
    Ok(TraceOptions { capacity, times, lossless, when })
}

/// Converts the flavors of a program from their names.
fn flavors(names: &[String]) -> Result<Vec<Flavor>, FieldError> {
    if names.len() > FLAVORS_MAX {
        return Err(FieldError::new("flavors", format!("has more than {FLAVORS_MAX} entries")));
    }
    let parse = |(i, name): (usize, &String)| {
        Flavor::parse(name).map_err(|e| FieldError::new(format!("flavors[{i}]"), e.to_string()))
    };
    names.iter().enumerate().map(parse).collect()
}

fn metric_focus(pair: v1::MetricFocus) -> Result<Arc<MetricFocus>, FieldError> {
    if pair.metric.is_empty() {
        return Err(FieldError::missing("metric"));
    }
    Ok(Arc::new(MetricFocus { focus: convert::focus(&pair.focus, "focus")?, metric: pair.metric }))
}

fn to_wire(pair: &MetricFocus) -> v1::MetricFocus {
    v1::MetricFocus { metric: pair.metric.clone(), focus: pair.focus.to_string() }
}

/// Converts an event.
pub fn event(event: EventEntry) -> v1::Event {
    let EventEntry { name, aliases, group, problem, at_points } = event;
    let (problem, at_points) = (problem.unwrap_or_default(), at_points.unwrap_or_default());
    v1::Event { name, aliases, group, problem, at_points }
}

/// Converts a process.
pub fn process(process: ProcessEntry) -> v1::Process {
    v1::Process {
        pid: process.pid.0,
        name: process.name,
        uid: process.uid,
        denied: process.denied.map(|d| v1::Denied { why: d.why, hint: d.hint }),
        parent: process.parent.0,
        title: process.title,
        with_parent: process.with_parent,
    }
}

/// Converts a function with its points.
pub fn function(function: FunctionEntry) -> v1::Function {
    v1::Function {
        function: Some(v1::FunctionRef {
            module: function.module,
            function: function.function,
            offset: function.offset.0,
        }),
        size: function.size,
        points: function.points.iter().map(points).collect(),
        tail_exits: function.tail_exits,
        exposed: function.exposed,
    }
}

/// Converts a symbol that is not listed as a function.
pub fn untyped_symbol(symbol: UntypedSymbol) -> v1::UntypedSymbol {
    let UntypedSymbol { module, name, offset, inside } = symbol;
    v1::UntypedSymbol { module, name, offset: offset.0, inside }
}

fn points(points: &PointSummary) -> v1::PointSummary {
    v1::PointSummary {
        kind: v1::PointKind::from(points.kind).into(),
        count: points.count,
        how: v1::How::from(points.how).into(),
        why_not: points.why_not.as_ref().map(v1::Refusal::from),
    }
}

fn function_ref(function: &FunctionRef) -> v1::FunctionRef {
    v1::FunctionRef { module: function.module.clone(), function: function.function.clone(), offset: function.offset.0 }
}

/// Converts the description of a pair.
pub fn pair(pair: &PairInfo) -> v1::Pair {
    v1::Pair {
        pair: Some(to_wire(&pair.pair)),
        function: pair.function.as_ref().map(function_ref),
        points: pair.points,
        refused_count: count(pair.refused.len()),
        exact_since_ns: pair.exact_since_ns,
        exposed: pair.exposed,
        edge_kinds: pair.edge_kinds.iter().map(|kind| v1::EdgeKind::from(*kind).into()).collect(),
    }
}

/// Converts a function that is not measured. `pair` is the index of its pair; `None` if it belongs to no pair.
pub fn refused(refused: &RefusedFunction, pair: Option<usize>) -> v1::RefusedFunction {
    v1::RefusedFunction {
        function: Some(function_ref(&refused.function)),
        reason: Some(v1::Refusal::from(&refused.reason)),
        pair: pair.map(count),
    }
}

/// Converts the way in which a target ended.
pub fn ended(ended: Ended) -> v1::Ended {
    v1::Ended { status: ended.status, signal: ended.signal, exec: ended.exec }
}

/// Converts a removal without its last values.
pub fn removed(removed: &Removed) -> v1::Removed {
    v1::Removed {
        pid: removed.pid.0,
        stopped_ns: nanoseconds(removed.stopped.held),
        waited_ns: nanoseconds(removed.stopped.waited),
        text_restored: removed.text_restored,
        children_left: removed.children_left.iter().map(|Pid(pid)| *pid).collect(),
        late_start: removed.corrections.0,
        early_end: removed.corrections.1,
        warnings: removed.warnings.clone(),
        memory_left: removed.memory_left,
        asleep: removed.asleep.iter().map(|Tid(tid)| *tid).collect(),
        awaited: removed.awaited.clone(),
    }
}

/// Converts a description of what is inserted in a target.
pub fn inserted(inserted: Inserted) -> v1::Inserted {
    let costs = inserted.costs;
    let known = costs.as_ref();
    v1::Inserted {
        pid: inserted.pid.0,
        holder: inserted.holder,
        ours: inserted.ours,
        points: inserted.points,
        code_bytes: inserted.code_bytes,
        since_ns: inserted.since_ns,
        identity: inserted.identity,
        cost_ns_per_s: known.map(|c| c.cost_ns_per_s),
        observed_ns_per_s: known.map(|c| c.observed_ns_per_s),
        observed_of_target: known.and_then(|c| c.of_target),
        pair_count: known.map_or(0, |c| c.pair_count),
        pairs: costs.map(|c| c.pairs.into_iter().map(pair_cost).collect()).unwrap_or_default(),
        measurements: inserted.measurements.iter().map(|id| id.0).collect(),
        kept_measurements: inserted.kept_measurements.iter().map(|id| id.0).collect(),
        kept: inserted.kept,
        warnings: inserted.warnings,
    }
}

fn pair_cost(cost: PairCost) -> v1::PairCost {
    v1::PairCost {
        pair: Some(to_wire(&cost.pair)),
        hit_ns: cost.hit_ns,
        hits_per_s: cost.hits_per_s,
        cost_ns_per_s: cost.cost_ns_per_s,
        observed_ns: cost.observed_ns,
    }
}

/// Converts a request to lower metrics from its message.
pub fn lower(request: v1::LowerRequest) -> Result<LowerRequest, FieldError> {
    let focus = request.focus.map(|focus| convert::focus(&focus, "focus")).transpose()?;
    let target = request.target.map(|of| target(Some(of))).transpose()?;
    Ok(LowerRequest {
        metrics: request.metrics,
        focus,
        target,
        flavors: flavors(&request.flavors)?,
        definitions: sources(request.definitions),
        code: request.code,
    })
}

/// Converts a lowered metric.
pub fn lowered(metric: LoweredMetric) -> v1::LoweredMetric {
    v1::LoweredMetric {
        metric: metric.metric,
        focus: metric.focus.to_string(),
        pieces: metric.pieces.into_iter().map(piece).collect(),
        problem: metric.problem.unwrap_or_default(),
        applies: metric.applies,
    }
}

fn piece(piece: LoweredPiece) -> v1::LoweredPiece {
    let line = |l: LoweredLine| v1::LoweredLine { label: l.label, at: l.at, bytes: l.bytes, text: l.text };
    v1::LoweredPiece {
        point: v1::PointKind::from(piece.point).into(),
        after: piece.point == PointKind::CallAfter,
        functions: piece.functions,
        function: piece.function,
        snippet: piece.snippet,
        cycles: piece.cycles,
        ns: piece.ns,
        code: piece.code.into_iter().map(line).collect(),
        refused: piece.refused.as_ref().map(v1::Refusal::from),
    }
}

/// Converts a count to 32 bits. A larger count becomes the largest number of 32 bits.
pub fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Converts a duration to nanoseconds. The result is at most the largest number of 64 bits, 584 years.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path<T: std::fmt::Debug>(result: Result<T, FieldError>) -> String {
        result.unwrap_err().to_string()
    }

    fn measure_of(metric: &str, focus: &str) -> Option<v1::Measure> {
        let good = v1::MetricFocus { metric: "calls".into(), focus: "/Code/a".into() };
        let pair = v1::MetricFocus { metric: metric.into(), focus: focus.into() };
        Some(v1::Measure { pairs: vec![good, pair], ..v1::Measure::default() })
    }

    fn pid(pid: i32) -> Option<v1::Target> {
        Some(v1::Target { which: Some(v1::target::Which::Pid(pid)) })
    }

    #[test]
    fn wrong_requests_name_their_field() {
        let request = |target, measure| path(enable(v1::EnableRequest { target, measure }));
        assert_eq!(request(None, None), "target: is missing");
        assert_eq!(request(Some(v1::Target { which: None }), None), "target.which: is missing");
        assert_eq!(request(pid(-1), None), "target.pid: -1 is no process id");
        assert_eq!(request(pid(1), None), "measure: is missing");
        assert_eq!(request(pid(1), Some(v1::Measure::default())), "measure: names no pair and no function");
        assert_eq!(request(pid(1), measure_of("", "")), "measure.pairs[1].metric: is missing");
        assert_eq!(
            request(pid(1), measure_of("calls", "/Code/%2")),
            "measure.pairs[1].focus: a `%` without two hexadecimal digits in `/Code/%2`"
        );
        let of = |flavors: Vec<String>| {
            let measure = measure_of("calls", "").map(|measure| v1::Measure { flavors, ..measure });
            enable(v1::EnableRequest { target: pid(1), measure })
        };
        let flavors = |names: &[&str]| of(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(path(flavors(&["pvm", "a b"])).starts_with("measure.flavors[1]: is no flavor"));
        assert_eq!(path(of(vec!["pvm".to_owned(); 17])), "measure.flavors: has more than 16 entries");
        let request = flavors(&["pvm", "cm5"]).map(|request| request.flavors);
        assert_eq!(request.unwrap().iter().map(Flavor::as_str).collect::<Vec<_>>(), ["pvm", "cm5"]);
        let of_kind = |kind| {
            let measure = Some(v1::Measure { functions: vec!["f".to_owned()], kind: Some(kind), ..Default::default() });
            path(enable(v1::EnableRequest { target: pid(1), measure }))
        };
        use v1::measure::Kind as Wire;
        assert_eq!(of_kind(Wire::Trace(v1::TraceKind::default())), "measure.trace.buffer: is missing");
        let when = Some(v1::TraceCondition::default());
        let trace = v1::TraceKind { buffer: 4096, when, ..Default::default() };
        assert_eq!(of_kind(Wire::Trace(trace)), "measure.trace.when.function: is missing");
        let counts = v1::CountsKind { inclusive_calls: true, ..Default::default() };
        assert_eq!(of_kind(Wire::Counts(counts)), "measure.counts.inclusive_calls: is set without `inclusive`");
        let coverage = v1::CoverageKind { branches: true, in_place: true };
        assert!(of_kind(Wire::Coverage(coverage)).starts_with("measure.coverage.in_place: is set with `branches`"));
        let lower_request = v1::LowerRequest { flavors: vec![String::new()], ..Default::default() };
        assert!(path(lower(lower_request)).starts_with("flavors[0]: is no flavor"));
        let command = |words: &[&[u8]]| {
            let command = words.iter().map(|w| w.to_vec()).collect();
            path(launch(v1::LaunchRequest { command, measure: measure_of("calls", "") }, false))
        };
        assert_eq!(command(&[]), "command[0]: is missing");
        assert_eq!(command(&[b"ls", b"a\0b"]), "command[1]: holds a zero byte");
    }

    #[test]
    fn a_started_program_waits_for_libraries_as_long_as_asked() {
        let patience = |wait_ns| {
            let measure = measure_of("calls", "").map(|measure| v1::Measure { wait_ns, ..measure });
            launch(v1::LaunchRequest { command: vec![b"ls".to_vec()], measure }, false).unwrap().loader_patience
        };
        assert_eq!(patience(0), None);
        assert_eq!(patience(7), Some(Duration::from_nanos(7)));
        assert_eq!(patience(u64::MAX), Some(WAIT_MAX));
    }

    #[test]
    fn a_right_request_is_understood() {
        let request = v1::EnableRequest { target: pid(7), measure: measure_of("calls", "/Code/m/f") };
        let request = enable(request).unwrap();
        assert_eq!(request.target, TargetSpec::Pid(Pid(7)));
        assert_eq!(request.function_metrics, ["calls"]);
        assert_eq!(request.pairs[1].focus.to_string(), "/Code/m/f");
    }
}
