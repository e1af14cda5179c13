//! Requests for measurements.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{
    ContextMetric, ContextSum, ContextsOptions, CountsOptions, CoverageOptions, EnableRequest, Inclusive, Kind,
    LaunchRequest, PathMetric, PathsOptions, PrintOptions, SharesOptions, SlowOptions, Suspect, TargetSpec, Terms,
    ToldValue, TraceCondition, TraceOptions,
};
use ingraft_model::{Capacity, EVENT_NAMES, FLAVORS_MAX, Flavor};

use crate::field::{FieldError, WireField, read};
use crate::metric::sources;
use crate::process::target;
use crate::{profile, v1};
use v1::measure::Kind as Wire;

messages! {
    TraceCondition => TraceCondition { function, expression }
    ContextSum => ContextSum { name, function, expression }
    ToldValue => ToldValue { function, expression }
    CoverageOptions => CoverageKind { branches, in_place }
}

/// The metric of `functions` if a request names none.
const FUNCTION_METRIC: &str = "calls";

/// Longest time for which an insertion is attempted again, or a started program waits for a library.
pub const WAIT_MAX: Duration = Duration::from_secs(86_400);

impl From<(EnableRequest, Terms)> for v1::EnableRequest {
    fn from((request, terms): (EnableRequest, Terms)) -> Self {
        let target = Some(request.target.clone().into());
        v1::EnableRequest { target, measure: Some((request, terms).into()) }
    }
}

impl TryFrom<v1::EnableRequest> for EnableRequest {
    type Error = FieldError;

    fn try_from(request: v1::EnableRequest) -> Result<Self, FieldError> {
        let target = target(request.target)?;
        Ok(EnableRequest { target, ..measure(request.measure)? })
    }
}

impl From<(Vec<OsString>, EnableRequest, Terms)> for v1::LaunchRequest {
    fn from((command, request, terms): (Vec<OsString>, EnableRequest, Terms)) -> Self {
        let command = command.into_iter().map(OsString::into_vec).collect();
        v1::LaunchRequest { command, measure: Some((request, terms).into()) }
    }
}

impl TryFrom<v1::LaunchRequest> for LaunchRequest {
    type Error = FieldError;

    fn try_from(request: v1::LaunchRequest) -> Result<Self, FieldError> {
        if request.command.first().is_none_or(Vec::is_empty) {
            return Err(FieldError::missing("command[0]"));
        }
        if let Some(i) = request.command.iter().position(|word| word.contains(&0)) {
            return Err(FieldError::new(format!("command[{i}]"), "holds a zero byte"));
        }
        let wait = request.measure.as_ref().map(|measure| Terms::from(measure).wait);
        Ok(LaunchRequest {
            command: request.command.into_iter().map(OsString::from_vec).collect(),
            enable: measure(request.measure)?,
            loader_patience: wait.filter(|wait| !wait.is_zero()),
            inherit_streams: false,
        })
    }
}

impl From<&v1::Measure> for Terms {
    fn from(measure: &v1::Measure) -> Self {
        Terms { history: measure.history, wait: Duration::from_nanos(measure.wait_ns).min(WAIT_MAX) }
    }
}

impl From<(EnableRequest, Terms)> for v1::Measure {
    fn from((request, terms): (EnableRequest, Terms)) -> Self {
        let mut metrics = request.function_metrics.into_iter();
        v1::Measure {
            pairs: request.pairs.to_wire(),
            functions: request.functions,
            function_metric: metrics.next().unwrap_or_default(),
            more_function_metrics: metrics.collect(),
            definitions: request.definitions.into_iter().map(Into::into).collect(),
            flavors: request.flavors.to_wire(),
            keep: request.keep,
            max_overhead: request.max_overhead,
            max_hold_ns: request.max_hold.unwrap_or_default().to_wire(),
            allow_calls: request.allow_calls,
            beside_uprobes: request.beside_uprobes,
            family: request.family,
            history: terms.history,
            wait_ns: terms.wait.to_wire(),
            await_modules: request.await_modules,
            kind: kind_to_wire(request.kind),
        }
    }
}

/// Reads a request, whose target is another field of the message.
fn measure(measure: Option<v1::Measure>) -> Result<EnableRequest, FieldError> {
    let measure = measure.ok_or_else(|| FieldError::missing("measure"))?;
    read_measure(measure).map_err(|e| e.inside("measure"))
}

fn read_measure(measure: v1::Measure) -> Result<EnableRequest, FieldError> {
    let kind = measure.kind.map_or(Ok(Kind::Metrics), kind)?;
    if let Some(i) = measure.pairs.iter().position(|pair| pair.metric.is_empty()) {
        return Err(FieldError::missing(format!("pairs[{i}].metric")));
    }
    let pairs: Vec<_> = read("pairs", measure.pairs)?;
    if pairs.is_empty() && measure.functions.is_empty() {
        return Err(FieldError::new("", "names no pair and no function"));
    }
    if kind.is_of_whole_functions() && !pairs.is_empty() {
        return Err(FieldError::new("pairs", "is not empty, and profiles and traces are of functions"));
    }
    let max_overhead = measure.max_overhead;
    if max_overhead.is_some_and(|percent| percent.is_nan() || percent <= 0.0) {
        return Err(FieldError::new("max_overhead", "is no number of percent above 0"));
    }
    let function_metric = Some(measure.function_metric).filter(|m| !m.is_empty());
    let first = function_metric.unwrap_or_else(|| FUNCTION_METRIC.to_owned());
    Ok(EnableRequest {
        target: TargetSpec::default(),
        pairs,
        functions: measure.functions,
        function_metrics: std::iter::once(first).chain(measure.more_function_metrics).collect(),
        definitions: sources(measure.definitions),
        flavors: flavors(measure.flavors)?,
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

/// Reads the flavors of a program.
pub(crate) fn flavors(names: Vec<String>) -> Result<Vec<Flavor>, FieldError> {
    if names.len() > FLAVORS_MAX {
        return Err(FieldError::new("flavors", format!("has more than {FLAVORS_MAX} entries")));
    }
    read("flavors", names)
}

fn kind_to_wire(kind: Kind) -> Option<Wire> {
    match kind {
        Kind::Metrics => None,
        Kind::Counts(CountsOptions { check, inclusive, earlier }) => Some(Wire::Counts(v1::CountsKind {
            check,
            earlier: earlier.as_deref().map(profile::earlier_to_wire),
            inclusive: inclusive.and_then(|of| EVENT_NAMES.get(of.event)).map(ToString::to_string).unwrap_or_default(),
            inclusive_calls: inclusive.is_some_and(|of| of.calls),
        })),
        Kind::Coverage(options) => Some(Wire::Coverage(options.into())),
        Kind::Print(PrintOptions { limit, capacity }) => {
            Some(Wire::Print(v1::PrintKind { limit: limit.unwrap_or(0), buffer: capacity.bytes() }))
        }
        Kind::Slow(SlowOptions { over_ns, least_ns, callees, told, limit, capacity }) => {
            let (limit, buffer) = (limit.unwrap_or(0), capacity.bytes());
            let told = told.into_iter().map(Into::into).collect();
            Some(Wire::Slow(v1::SlowKind { over_ns, least_ns, callees, limit, buffer, told }))
        }
        Kind::Contexts(ContextsOptions { metrics, full, timed, cpu, event, sums }) => {
            let metrics = metrics.into_iter().map(|metric| metric.name().to_owned()).collect();
            let event = event.as_deref().unwrap_or_default().to_owned();
            let sums = sums.into_iter().map(Into::into).collect();
            Some(Wire::Contexts(v1::ContextsKind { metrics, full, timed, cpu, event, sums }))
        }
        Kind::Paths(PathsOptions { longest, contexts, metrics, event, callees }) => {
            let metrics = metrics.into_iter().map(|metric| metric.name().to_owned()).collect();
            let (longest, event) =
                (longest.map_or(0, NonZeroU32::get), event.as_deref().unwrap_or_default().to_owned());
            Some(Wire::Paths(v1::PathsKind { longest, contexts, metrics, event, callees }))
        }
        Kind::Shares(SharesOptions { suspects, limit, capacity }) => {
            let (suspects, limit) = (suspects.to_wire(), limit.unwrap_or(0));
            Some(Wire::Shares(v1::SharesKind { suspects, limit, buffer: capacity.bytes() }))
        }
        Kind::Trace(TraceOptions { capacity, times, lossless, when }) => {
            let buffer = capacity.bytes();
            Some(Wire::Trace(v1::TraceKind { buffer, times, lossless, when: when.to_wire() }))
        }
    }
}

fn kind(kind: Wire) -> Result<Kind, FieldError> {
    match kind {
        Wire::Counts(options) => counts(options).map(Kind::Counts).map_err(|e| e.inside("counts")),
        Wire::Coverage(v1::CoverageKind { branches: true, in_place: true }) => {
            Err(FieldError::new("coverage.in_place", "is set with `branches`, which need copies of functions"))
        }
        Wire::Coverage(options) => Ok(Kind::Coverage(options.try_into()?)),
        Wire::Print(options) => print(options).map(Kind::Print).map_err(|e| e.inside("print")),
        Wire::Slow(options) => slow(options).map(Kind::Slow).map_err(|e| e.inside("slow")),
        Wire::Contexts(options) => contexts(options).map(Kind::Contexts).map_err(|e| e.inside("contexts")),
        Wire::Paths(options) => paths(options).map(Kind::Paths).map_err(|e| e.inside("paths")),
        Wire::Shares(options) => shares(options).map(Kind::Shares).map_err(|e| e.inside("shares")),
        Wire::Trace(options) => trace(options).map(Kind::Trace).map_err(|e| e.inside("trace")),
    }
}

fn paths(options: v1::PathsKind) -> Result<PathsOptions, FieldError> {
    let v1::PathsKind { longest, contexts, metrics: names, event, callees } = options;
    let mut metrics = Vec::with_capacity(names.len().min(PathMetric::ALL.len()));
    for (i, name) in names.iter().enumerate() {
        let metric = PathMetric::ALL.into_iter().find(|metric| metric.name() == name);
        let metric = metric.ok_or_else(|| FieldError::new(format!("metrics[{i}]"), "is no metric of paths"))?;
        if metrics.contains(&metric) {
            return Err(FieldError::new(format!("metrics[{i}]"), "is named twice"));
        }
        metrics.push(metric);
    }
    let event = Some(event).filter(|event| !event.is_empty()).map(Into::into);
    let options = PathsOptions { longest: NonZeroU32::new(longest), contexts, metrics, event, callees };
    if !options.fit() {
        let what = format!("have more than {} values by context", ContextsOptions::METRICS_MAX);
        return Err(FieldError::new("metrics", what));
    }
    if callees && options.names().next().is_none() {
        return Err(FieldError::new("callees", "is set without `metrics` and `event`"));
    }
    Ok(options)
}

fn counts(options: v1::CountsKind) -> Result<CountsOptions, FieldError> {
    let v1::CountsKind { check, earlier, inclusive, inclusive_calls } = options;
    let inclusive = match inclusive.as_str() {
        "" if inclusive_calls => return Err(FieldError::new("inclusive_calls", "is set without `inclusive`")),
        "" => None,
        name => {
            let event = EVENT_NAMES.iter().position(|known| *known == name);
            let event = event.ok_or_else(|| FieldError::new("inclusive", "is no event that profiles count"))?;
            Some(Inclusive { event, calls: inclusive_calls })
        }
    };
    let earlier = earlier.map(profile::earlier).transpose().map_err(|e| e.inside("earlier"))?;
    Ok(CountsOptions { check, inclusive, earlier: earlier.map(Arc::new) })
}

fn trace(options: v1::TraceKind) -> Result<TraceOptions, FieldError> {
    let v1::TraceKind { buffer, times, when, lossless } = options;
    if when.as_ref().is_some_and(|when| when.function.is_empty()) {
        return Err(FieldError::missing("when.function"));
    }
    let capacity = capacity(buffer)?;
    Ok(TraceOptions { capacity, times, lossless, when: read("when", when)? })
}

fn print(options: v1::PrintKind) -> Result<PrintOptions, FieldError> {
    let v1::PrintKind { limit, buffer } = options;
    Ok(PrintOptions { limit: Some(limit).filter(|limit| *limit != 0), capacity: capacity(buffer)? })
}

fn slow(options: v1::SlowKind) -> Result<SlowOptions, FieldError> {
    let v1::SlowKind { over_ns, least_ns, callees, limit, buffer, told } = options;
    if over_ns == 0 {
        return Err(FieldError::missing("over_ns"));
    }
    let told: Vec<ToldValue> = read("told", told)?;
    for (i, value) in told.iter().enumerate() {
        for (name, text) in [("function", &value.function), ("expression", &value.expression)] {
            if text.trim().is_empty() {
                return Err(FieldError::missing(format!("told[{i}].{name}")));
            }
        }
    }
    let limit = Some(limit).filter(|limit| *limit != 0);
    Ok(SlowOptions { over_ns, least_ns, callees, told, limit, capacity: capacity(buffer)? })
}

fn contexts(options: v1::ContextsKind) -> Result<ContextsOptions, FieldError> {
    let v1::ContextsKind { metrics: names, full, timed, cpu, event, sums } = options;
    let event: Option<Arc<str>> = Some(event).filter(|event| !event.is_empty()).map(Arc::from);
    let sums = sums_of(sums, event.as_ref())?;
    if !timed.is_empty() && event.is_some() {
        return Err(FieldError::new("timed", "is set with `event`"));
    }
    if !timed.is_empty() && !sums.is_empty() {
        return Err(FieldError::new("timed", "is set with `sums`"));
    }
    if !timed.is_empty() && !names.is_empty() {
        return Err(FieldError::new("timed", "is set with `metrics`"));
    }
    if cpu && timed.is_empty() {
        return Err(FieldError::new("cpu", "is set without `timed`"));
    }
    let too_many = || FieldError::new("metrics", format!("has more than {} entries", ContextsOptions::METRICS_MAX));
    if names.len() > ContextsOptions::METRICS_MAX {
        return Err(too_many());
    }
    let mut metrics = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let metric = ContextMetric::ALL.into_iter().find(|metric| metric.name() == name);
        let metric = metric.ok_or_else(|| FieldError::new(format!("metrics[{i}]"), "is no metric of contexts"))?;
        if metrics.contains(&metric) {
            return Err(FieldError::new(format!("metrics[{i}]"), "is named twice"));
        }
        metrics.push(metric);
    }
    if ContextMetric::exclude_each_other(&metrics) {
        return Err(FieldError::new("metrics", "has `wall_ns` and `looks`, which tell the same time"));
    }
    let options = ContextsOptions { metrics, full, timed, cpu, event, sums };
    if options.mixes_executed() {
        return Err(FieldError::new(
            "metrics",
            "has numbers of what was executed beside other metrics, `full`, `event` or `sums`",
        ));
    }
    if options.fit() { Ok(options) } else { Err(too_many()) }
}

/// Sums of expressions in contexts, whose names differ from each other and from that of an event.
fn sums_of(sums: Vec<v1::ContextSum>, event: Option<&Arc<str>>) -> Result<Vec<ContextSum>, FieldError> {
    let sums: Vec<ContextSum> = read("sums", sums)?;
    for (i, sum) in sums.iter().enumerate() {
        let field = |name: &str| format!("sums[{i}].{name}");
        if !ContextSum::is_name(&sum.name) {
            return Err(FieldError::new(field("name"), "is no name of a sum"));
        }
        if event == Some(&sum.name) || sums.iter().take(i).any(|other| other.name == sum.name) {
            return Err(FieldError::new(field("name"), "is used twice"));
        }
        for (name, text) in [("function", &sum.function), ("expression", &sum.expression)] {
            if text.trim().is_empty() {
                return Err(FieldError::missing(field(name)));
            }
        }
    }
    Ok(sums)
}

fn shares(options: v1::SharesKind) -> Result<SharesOptions, FieldError> {
    let v1::SharesKind { suspects, limit, buffer } = options;
    let suspects: Vec<Suspect> = read("suspects", suspects)?;
    if suspects.is_empty() {
        return Err(FieldError::missing("suspects"));
    }
    if suspects.len() > SharesOptions::SUSPECTS_MAX {
        return Err(FieldError::new("suspects", format!("has more than {} entries", SharesOptions::SUSPECTS_MAX)));
    }
    if let Some(i) = (1..suspects.len()).find(|i| suspects.iter().take(*i).any(|other| suspects.get(*i) == Some(other)))
    {
        return Err(FieldError::new(format!("suspects[{i}]"), "is named twice"));
    }
    Ok(SharesOptions { suspects, limit: Some(limit).filter(|limit| *limit != 0), capacity: capacity(buffer)? })
}

fn capacity(buffer: u32) -> Result<Capacity, FieldError> {
    if buffer == 0 {
        return Err(FieldError::missing("buffer"));
    }
    let too_large = || FieldError::new("buffer", format!("is above {}", Capacity::MOST));
    Capacity::of_bytes(buffer).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use ingraft_model::Pid;
    use ingraft_report::{Earlier, EarlierProfile};

    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for Kind {
        fn any(s: &mut Source<'_>) -> Self {
            match s.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8]) {
                0 => Kind::Metrics,
                1 => {
                    let inclusive = s.next::<Option<bool>>().map(|calls| Inclusive { event: s.one_of(&[0, 4]), calls });
                    let mut earlier = EarlierProfile::default();
                    earlier.add(
                        &[1, s.next()],
                        s.next(),
                        Earlier { blocks: s.next::<Vec<u64>>().into(), edges: vec![None, Some(7)].into() },
                    );
                    let earlier = s.next::<bool>().then(|| Arc::new(earlier));
                    Kind::Counts(CountsOptions { check: s.next(), inclusive, earlier })
                }
                3 => Kind::Print(PrintOptions {
                    limit: s.next::<Option<u32>>().map(|limit| limit.max(1)),
                    capacity: Capacity::of_bytes(s.one_of(&[1, 4096, 1 << 20])).expect("a capacity"),
                }),
                5 => Kind::Slow(SlowOptions {
                    over_ns: s.next::<u64>().max(1),
                    least_ns: s.next(),
                    callees: vec![s.next(), s.next()],
                    told: vec![ToldValue { function: "f".to_owned(), expression: "$return".to_owned() }],
                    limit: s.next::<Option<u32>>().map(|limit| limit.max(1)),
                    capacity: Capacity::of_bytes(s.one_of(&[1, 4096, 1 << 20])).expect("a capacity"),
                }),
                6 => {
                    let (from, metrics) = (s.one_of(&[0, 1, 3, 8]), s.one_of(&[0, 1, 3]));
                    let metrics: Vec<_> = ContextMetric::ALL.into_iter().cycle().skip(from).take(metrics).collect();
                    let full = from < 8 && s.next();
                    let mut options = ContextsOptions { metrics, full, ..ContextsOptions::default() };
                    if options.is_executed() {
                        // They go alone.
                    } else if options.metrics.is_empty() && s.next() {
                        (options.timed, options.cpu) = (vec![s.next()], s.next());
                    } else if s.next() {
                        options.event = Some(s.next::<String>().into()).filter(|event: &Arc<str>| !event.is_empty());
                    } else if options.metrics.len() < 3 {
                        let [function, expression] = [s.next::<String>(), s.next()].map(|text| format!("f{text}"));
                        options.sums = vec![ContextSum { name: "sum.1_x-y".into(), function, expression }];
                    }
                    Kind::Contexts(options)
                }
                7 => {
                    let longest = s.next::<Option<u32>>().and_then(NonZeroU32::new);
                    let contexts: bool = s.next();
                    let metrics = PathMetric::ALL.into_iter().filter(|_| s.next()).collect();
                    let event = Some(s.next::<String>()).filter(|event| !event.is_empty()).map(Into::into);
                    let options = PathsOptions { longest, contexts, metrics, event, callees: false };
                    let callees = options.names().next().is_some() && s.next();
                    let all = PathsOptions { callees, ..options.clone() };
                    Kind::Paths(if all.fit() { all } else { options })
                }
                8 => Kind::Shares(SharesOptions {
                    suspects: vec![Suspect::CallSite(s.next()), Suspect::Loop(s.next())],
                    limit: s.next::<Option<u32>>().map(|limit| limit.max(1)),
                    capacity: Capacity::of_bytes(s.one_of(&[1, 4096, 1 << 20])).expect("a capacity"),
                }),
                2 => Kind::Coverage(CoverageOptions { branches: s.next(), in_place: false }),
                _ => Kind::Trace(TraceOptions {
                    capacity: Capacity::of_bytes(s.one_of(&[1, 4096, 1 << 20])).expect("a capacity"),
                    times: s.next(),
                    lossless: s.next(),
                    when: s.next(),
                }),
            }
        }
    }

    impl Any for EnableRequest {
        fn any(s: &mut Source<'_>) -> Self {
            let kind: Kind = s.next();
            EnableRequest {
                target: s.next(),
                pairs: if kind.is_of_whole_functions() { Vec::new() } else { s.next() },
                functions: vec![s.next()],
                function_metrics: vec![s.next(), s.next()],
                definitions: s.next(),
                flavors: s.next(),
                keep: s.next(),
                max_overhead: s.next::<Option<u32>>().map(|percent| f64::from(percent) + 0.5),
                max_hold: s.next::<Option<u32>>().map(|ns| Duration::from_nanos(u64::from(ns) + 1)),
                allow_calls: s.next(),
                beside_uprobes: s.next(),
                family: s.next(),
                max_pairs: None,
                await_modules: s.next(),
                kind,
            }
        }
    }

    impl Any for Terms {
        fn any(s: &mut Source<'_>) -> Self {
            Terms { history: s.next(), wait: Duration::from_nanos(u64::from(s.next::<u32>())) }
        }
    }

    #[test]
    fn requests_come_back() {
        comes_back(|(request, terms): (EnableRequest, Terms)| {
            let message = v1::EnableRequest::from((request, terms));
            let terms = message.measure.as_ref().map(Terms::from).expect("a measure");
            message.try_into().map(|request| (request, terms)).map_err(|e: FieldError| e.to_string())
        });
        comes_back(|(request, terms): (EnableRequest, Terms)| {
            let target = request.target.clone();
            let message = v1::LaunchRequest::from((vec!["ls".into(), "-l".into()], request, terms));
            let launch = LaunchRequest::try_from(message).map_err(|e| e.to_string())?;
            assert_eq!(launch.command, ["ls", "-l"]);
            assert_eq!(launch.loader_patience, Some(terms.wait).filter(|wait| !wait.is_zero()));
            Ok((EnableRequest { target, ..launch.enable }, terms))
        });
    }

    fn path<T: std::fmt::Debug>(result: Result<T, FieldError>) -> String {
        result.unwrap_err().to_string()
    }

    fn enable(request: v1::EnableRequest) -> Result<EnableRequest, FieldError> {
        request.try_into()
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
    }

    #[test]
    fn wrong_kinds_name_their_field() {
        let of_kind = |kind| {
            let measure = Some(v1::Measure { functions: vec!["f".to_owned()], kind: Some(kind), ..Default::default() });
            path(enable(v1::EnableRequest { target: pid(1), measure }))
        };
        assert_eq!(of_kind(Wire::Trace(v1::TraceKind::default())), "measure.trace.buffer: is missing");
        let when = Some(v1::TraceCondition::default());
        let trace = v1::TraceKind { buffer: 4096, when, ..Default::default() };
        assert_eq!(of_kind(Wire::Trace(trace)), "measure.trace.when.function: is missing");
        let counts = v1::CountsKind { inclusive_calls: true, ..Default::default() };
        assert_eq!(of_kind(Wire::Counts(counts)), "measure.counts.inclusive_calls: is set without `inclusive`");
        let coverage = v1::CoverageKind { branches: true, in_place: true };
        assert!(of_kind(Wire::Coverage(coverage)).starts_with("measure.coverage.in_place: is set with `branches`"));
        let shares = |suspects: &[i64]| {
            let suspects = suspects.iter().map(|at| v1::Suspect { part: Some(v1::suspect::Part::Loop(*at)) }).collect();
            of_kind(Wire::Shares(v1::SharesKind { suspects, buffer: 1, limit: 0 }))
        };
        assert_eq!(shares(&[]), "measure.shares.suspects: is missing");
        assert_eq!(shares(&[1, 2, 1]), "measure.shares.suspects[2]: is named twice");
        assert_eq!(shares(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), "measure.shares.suspects: has more than 8 entries");
        let contexts = |metrics: &[&str]| {
            let metrics = metrics.iter().map(ToString::to_string).collect();
            of_kind(Wire::Contexts(v1::ContextsKind { metrics, ..v1::ContextsKind::default() }))
        };
        assert_eq!(contexts(&["wall_ns", "steps"]), "measure.contexts.metrics[1]: is no metric of contexts");
        assert_eq!(contexts(&["wall_ns", "wall_ns"]), "measure.contexts.metrics[1]: is named twice");
        assert!(contexts(&["looks", "wall_ns"]).starts_with("measure.contexts.metrics: has `wall_ns` and `looks`"));
        let four = ["looks", "cpu_ns", "wait_ns", "lock_wait_ns"];
        assert_eq!(contexts(&four), "measure.contexts.metrics: has more than 4 entries");
        let timed = |timed: &[&str], metrics: &[&str], cpu| {
            let [timed, metrics] = [timed, metrics].map(|names| names.iter().map(ToString::to_string).collect());
            of_kind(Wire::Contexts(v1::ContextsKind { metrics, timed, cpu, ..v1::ContextsKind::default() }))
        };
        let sums = |sums: &[(&str, &str)]| {
            let sum = |(name, expression): &(&str, &str)| v1::ContextSum {
                name: (*name).to_owned(),
                function: "f".to_owned(),
                expression: (*expression).to_owned(),
            };
            let sums = sums.iter().map(sum).collect();
            let event = "page-faults".to_owned();
            of_kind(Wire::Contexts(v1::ContextsKind { sums, event, ..v1::ContextsKind::default() }))
        };
        for name in ["", "1st", "a b", "calls", "wall_ns", "looks"] {
            assert_eq!(sums(&[(name, "1")]), "measure.contexts.sums[0].name: is no name of a sum", "{name}");
        }
        assert_eq!(sums(&[("a", "1"), ("a", "2")]), "measure.contexts.sums[1].name: is used twice");
        assert_eq!(sums(&[("page-faults", "1")]), "measure.contexts.sums[0].name: is used twice");
        assert_eq!(sums(&[("a", " ")]), "measure.contexts.sums[0].expression: is missing");
        let four = ["a", "b", "c", "d"].map(|name| (name, "1"));
        assert_eq!(sums(&four), "measure.contexts.metrics: has more than 4 entries");
        assert_eq!(timed(&["f"], &["cpu_ns"], false), "measure.contexts.timed: is set with `metrics`");
        assert_eq!(timed(&[], &[], true), "measure.contexts.cpu: is set without `timed`");
        let all = ContextMetric::ALL.map(ContextMetric::name);
        assert_eq!(contexts(&all), "measure.contexts.metrics: has more than 4 entries");
    }

    #[test]
    fn wrong_commands_name_their_word() {
        let command = |words: &[&[u8]]| {
            let command = words.iter().map(|w| w.to_vec()).collect();
            path(LaunchRequest::try_from(v1::LaunchRequest { command, measure: measure_of("calls", "") }))
        };
        assert_eq!(command(&[]), "command[0]: is missing");
        assert_eq!(command(&[b"ls", b"a\0b"]), "command[1]: holds a zero byte");
    }

    #[test]
    fn a_wait_has_a_bound() {
        let measure = v1::Measure { wait_ns: u64::MAX, ..v1::Measure::default() };
        assert_eq!(Terms::from(&measure).wait, WAIT_MAX);
    }

    #[test]
    fn a_request_that_names_no_metric_counts_calls() {
        let request = v1::EnableRequest { target: pid(7), measure: measure_of("calls", "/Code/m/f") };
        let request = enable(request).unwrap();
        assert_eq!(request.target, TargetSpec::Pid(Pid(7)));
        assert_eq!(request.function_metrics, ["calls"]);
        assert_eq!(request.pairs[1].focus.to_string(), "/Code/m/f");
    }
}
