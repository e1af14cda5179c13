//! Requests and answers as plain values, and their conversion to and from messages of the wire.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::time::Duration;

use ingraft_api::Reason;
use ingraft_model::{Aggregate, Flavor, Focus, PartName};
use ingraft_report::SavedProfile;
use ingraft_wire::{Snapshot, v1};

use crate::exit::{Exit, Failure};
use crate::objects::{self, Corrections, Host, PairFacts, hex, millis};

use super::kind::MeasureKind;

/// The process or processes that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The process with this id.
    Pid(i32),
    /// The one process of this name.
    Name(String),
    /// Every process of a name or a control group.
    Each(Choice),
    /// A command to start, with its arguments.
    Command(Vec<OsString>),
}

/// A name, a control group, or both; selects every process that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The command name, or the base name of the first argument or of the executable.
    pub(crate) name: Option<String>,
    /// The path of a control group.
    pub(crate) cgroup: Option<String>,
}

impl Choice {
    /// The failure if no process matches the choice.
    pub(crate) fn nobody(&self) -> Failure {
        let what = match (&self.name, &self.cgroup) {
            (Some(name), Some(group)) => format!("no process of the control group `{group}` is called `{name}`"),
            (None, Some(group)) => format!("no process is in the control group `{group}`"),
            (name, None) => format!("no process is called `{}`", name.as_deref().unwrap_or_default()),
        };
        Failure::new(Exit::NotFound, what, "`ingraft ps` lists the processes").because(Reason::NoSuchProcess)
    }
}

/// An MDL file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Path of the file.
    pub(crate) name: String,
    /// Content of the file.
    pub(crate) text: String,
}

/// A measurement to insert.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Process to insert the measurement into.
    pub(crate) target: Target,
    /// Metric and focus as text.
    pub(crate) pairs: Vec<(String, String)>,
    /// Patterns of the functions at which `function_metric` and `more_metrics` are measured.
    pub(crate) functions: Vec<String>,
    /// The metric of `functions`.
    pub(crate) function_metric: &'static str,
    /// Metrics at the functions that are inserted once it is known what they would cost. Pairs that cost too much are counted only.
    pub(crate) more_metrics: Vec<&'static str>,
    /// MDL files with further definitions.
    pub(crate) definitions: Vec<Source>,
    /// The flavors that the program has besides `linux` and `unix`.
    pub(crate) flavors: Vec<Flavor>,
    /// Whether the measurement stays without a client (`--no-remove`).
    pub(crate) keep: bool,
    /// Limit of the cost of the measurement, in percent of a processor; `None` for the limit that the engine is set up with.
    pub(crate) max_overhead: Option<f64>,
    /// Longest time for which one step of the insertion may hold threads; `None` for the engine's default.
    pub(crate) max_hold: Option<Duration>,
    /// Whether definitions may call functions of the target.
    pub(crate) allow_calls: bool,
    /// Whether functions are refused that a uprobe would endanger.
    pub(crate) beside_uprobes: bool,
    /// Whether fork children are measured with the target.
    pub(crate) family: bool,
    /// Whether the engine keeps histories of the values.
    pub(crate) history: bool,
    /// Time for which the engine tries a deferred insertion again.
    pub(crate) wait: Duration,
    /// Whether the engine waits for modules that are named and not loaded.
    pub(crate) await_modules: bool,
    /// Kind of the measurement.
    pub(crate) kind: MeasureKind,
}

/// A request for the snippets that metrics are lowered to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lower {
    /// Names of the metrics; empty for all metrics.
    pub(crate) metrics: Vec<String>,
    pub(crate) focus: Option<String>,
    pub(crate) target: Option<Target>,
    pub(crate) definitions: Vec<Source>,
    /// The flavors that the program has besides `linux` and `unix`.
    pub(crate) flavors: Vec<Flavor>,
    /// Whether the answer has the machine code.
    pub(crate) code: bool,
}

/// A function by module, name and offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionRef {
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: u64,
}

/// A pair of metric and focus, and the properties of its value.
#[derive(Clone, Debug)]
pub(crate) struct PairInfo {
    pub(crate) metric: String,
    pub(crate) focus: String,
    pub(crate) unit: String,
    /// Operator that combines the values of several targets.
    pub(crate) aggregate: Aggregate,
    /// Whether the value is a level rather than a count of events.
    pub(crate) level: bool,
    /// Whether the value is a time in nanoseconds, so that its rate is time per time, in the unit.
    pub(crate) time: bool,
    /// Whether the value is the number of values of a distribution, which have the unit.
    pub(crate) histogram: bool,
    pub(crate) function: Option<FunctionRef>,
    /// Kind of the edge that the focus names; `None` if it names none, or edges of several kinds.
    pub(crate) edge_kind: Option<&'static str>,
    /// Functions of the focus that are not measured.
    pub(crate) refused: u32,
    pub(crate) facts: PairFacts,
}

impl PairInfo {
    /// Unit of the number of the value, in the plural.
    pub(crate) fn units(&self) -> &str {
        if self.histogram { "values" } else { &self.unit }
    }
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug)]
pub(crate) struct RefusedFunction {
    pub(crate) function: FunctionRef,
    /// Metric and focus of the pair that is refused, if other pairs measure the function.
    pub(crate) pair: Option<(String, String)>,
    /// Reason of the refusal as a stable word.
    pub(crate) reason: String,
    pub(crate) why_not: String,
}

/// A measurement that was inserted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Enabled {
    pub(crate) measurement: u64,
    pub(crate) pid: i32,
    /// The target's parent at the insertion; 0 if it is not known.
    pub(crate) parent: i32,
    /// The target's arguments at the insertion, or the text that the target has written over them.
    pub(crate) title: String,
    /// Whether the measurement is the first one in its target.
    pub(crate) attached: bool,
    pub(crate) threads: u32,
    pub(crate) modules: u32,
    pub(crate) functions: u32,
    pub(crate) points: u32,
    pub(crate) stopped_ns: u64,
    /// Part of `stopped_ns` in which no processor was free.
    pub(crate) waited_ns: u64,
    pub(crate) pairs: Vec<PairInfo>,
    pub(crate) refused: Vec<RefusedFunction>,
    pub(crate) warnings: Vec<String>,
    /// Number of calls in progress at the insertion whose flags and timers are as if the engine had seen them begin.
    pub(crate) caught_up: u64,
    /// Number of threads whose stacks could not be unwound.
    pub(crate) not_unwound: u32,
    /// Unix time, in nanoseconds, at which the insertion was complete.
    pub(crate) since_ns: u64,
}

/// A value: the total, and the values by thread if they were asked for.
pub(crate) use ingraft_wire::sample::{ThreadValue, Value};

/// All values of a measurement at one time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Unix time in nanoseconds.
    pub(crate) time_ns: u64,
    /// Readings lost before this one.
    pub(crate) dropped: u64,
    pub(crate) values: Vec<Value>,
}

/// End of a target: its exit status, the signal that killed it, or exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) exec: bool,
}

/// One step of a stream of values.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// All pairs of a measurement that has grown. Later readings include the values of the new pairs.
    Grown(Grown),
    Reading(Reading),
    Ended(Ended),
    /// The condition of a trace has held.
    Held,
}

/// All pairs of a measurement: more than at the insertion if libraries were loaded since.
#[derive(Clone, Debug)]
pub(crate) struct Grown {
    pub(crate) pairs: Vec<PairInfo>,
    /// Functions of the focus that are not measured.
    pub(crate) refused: Vec<RefusedFunction>,
}

/// The result of a removal.
#[derive(Clone, Debug)]
pub(crate) struct Farewell {
    pub(crate) removed: objects::Removed,
    /// Pairs of the measurement at its end; `None` if they are those of the insertion.
    pub(crate) grown: Option<Grown>,
    /// The last values.
    pub(crate) last: Option<Reading>,
    /// The last counts of a profile.
    pub(crate) profile: Option<SavedProfile>,
    /// The rest of the file of a trace.
    pub(crate) trace: Vec<u8>,
    pub(crate) ended: Option<Ended>,
}

impl Target {
    /// Whether the target is a program that the command starts.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self, Target::Command(_))
    }

    pub(super) fn to_wire(&self) -> v1::Target {
        use v1::target::Which;
        let which = match self {
            Target::Pid(pid) => Some(Which::Pid(*pid)),
            Target::Name(name) => Some(Which::Name(name.clone())),
            Target::Each(_) | Target::Command(_) => None,
        };
        v1::Target { which }
    }
}

impl Source {
    pub(super) fn to_wire(&self) -> v1::Source {
        v1::Source { name: self.name.clone(), text: self.text.clone() }
    }
}

impl Request {
    /// Id of the process that the request names; `None` if the request names it in another way.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self.target {
            Target::Pid(pid) => Some(pid),
            Target::Name(_) | Target::Each(_) | Target::Command(_) => None,
        }
    }

    pub(super) fn to_wire(&self) -> v1::Measure {
        let pair =
            |(metric, focus): &(String, String)| v1::MetricFocus { metric: metric.clone(), focus: focus.clone() };
        v1::Measure {
            pairs: self.pairs.iter().map(pair).collect(),
            functions: self.functions.clone(),
            function_metric: self.function_metric.to_owned(),
            more_function_metrics: self.more_metrics.iter().map(|metric| (*metric).to_owned()).collect(),
            definitions: self.definitions.iter().map(Source::to_wire).collect(),
            keep: self.keep,
            max_overhead: self.max_overhead,
            max_hold_ns: self.max_hold.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            allow_calls: self.allow_calls,
            beside_uprobes: self.beside_uprobes,
            family: self.family,
            history: self.history,
            wait_ns: u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX),
            await_modules: self.await_modules,
            kind: self.kind.to_wire(),
            flavors: self.flavors.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Collects the parts of the answer to an insertion.
#[derive(Default)]
pub(super) struct Collector {
    enabled: Option<v1::Enabled>,
    pairs: Vec<v1::Pair>,
    refused: Vec<v1::RefusedFunction>,
}

impl Collector {
    pub(super) fn enabled(&mut self, enabled: v1::Enabled) {
        self.enabled = Some(enabled);
    }

    pub(super) fn pairs(&mut self, chunk: v1::PairChunk) {
        self.pairs.extend(chunk.pairs);
    }

    pub(super) fn refused(&mut self, chunk: v1::RefusedChunk) {
        self.refused.extend(chunk.functions);
    }

    /// Takes in one step of a description.
    pub(super) fn described(&mut self, part: v1::DescribeResponse) {
        use v1::describe_response::Event;
        match part.event {
            Some(Event::Enabled(enabled)) => self.enabled(enabled),
            Some(Event::Pairs(chunk)) => self.pairs(chunk),
            Some(Event::Refused(chunk)) => self.refused(chunk),
            None => {}
        }
    }

    /// Number of pairs that have arrived.
    pub(super) fn count(&self) -> usize {
        self.pairs.len()
    }

    /// Whether the first part of the answer has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.enabled.is_some()
    }

    /// Returns the pairs and refused functions; `None` if the answer is incomplete.
    pub(super) fn grown(self) -> Option<Grown> {
        self.finish().map(|e| Grown { pairs: e.pairs, refused: e.refused })
    }

    /// Returns the whole answer; `None` if it is incomplete.
    pub(super) fn finish(self) -> Option<Enabled> {
        let e = self.enabled?;
        if self.pairs.len() != usize::try_from(e.pair_count).ok()? {
            return None;
        }
        let metrics: HashMap<&str, &v1::Metric> = e.metrics.iter().map(|m| (m.name.as_str(), m)).collect();
        let pairs: Vec<PairInfo> = self.pairs.into_iter().map(|p| pair_info(p, &metrics)).collect();
        let refused = refused_functions(self.refused, &pairs);
        Some(Enabled {
            measurement: e.measurement,
            pid: e.pid,
            parent: e.parent,
            title: e.title.clone(),
            attached: e.attached,
            threads: e.threads,
            modules: e.modules,
            functions: e.functions,
            points: e.points,
            stopped_ns: e.stopped_ns,
            waited_ns: e.waited_ns,
            pairs,
            refused,
            warnings: e.warnings.clone(),
            caught_up: e.caught_up,
            not_unwound: e.not_unwound,
            since_ns: e.since_ns,
        })
    }
}

fn pair_info(pair: v1::Pair, metrics: &HashMap<&str, &v1::Metric>) -> PairInfo {
    let v1::MetricFocus { metric, focus } = pair.pair.unwrap_or_default();
    let info = metrics.get(metric.as_str());
    PairInfo {
        unit: info.map(|m| m.unit.clone()).unwrap_or_default(),
        aggregate: info.map_or(Aggregate::Sum, |m| aggregate(m.aggregate())),
        level: info.is_some_and(|m| m.style() == v1::Style::SampledFunction),
        time: info.is_some_and(|m| m.units_type() == v1::UnitsType::Normalized),
        histogram: info.is_some_and(|m| m.histogram),
        metric,
        focus,
        edge_kind: edge_kind(&pair.edge_kinds),
        function: pair.function.map(function_ref),
        refused: pair.refused_count,
        facts: PairFacts { exact_since_ns: pair.exact_since_ns, exposed: pair.exposed },
    }
}

/// The word for the only kind of an edge; `None` if there are several kinds, or if a newer engine has sent another one.
fn edge_kind(kinds: &[i32]) -> Option<&'static str> {
    let [kind] = kinds else { return None };
    edge_word(v1::EdgeKind::try_from(*kind).ok()?)
}

/// The word for a kind of edges; `None` if a newer engine has sent another one.
pub(super) fn edge_word(kind: v1::EdgeKind) -> Option<&'static str> {
    match kind {
        v1::EdgeKind::Taken => Some("taken"),
        v1::EdgeKind::FallThrough => Some("fall-through"),
        v1::EdgeKind::CallReturn => Some("call-return"),
        v1::EdgeKind::JumpTable => Some("jump-table"),
        v1::EdgeKind::TailJump => Some("tail-jump"),
        v1::EdgeKind::Return => Some("return"),
        v1::EdgeKind::Unspecified => None,
    }
}

/// Converts an operator. An unknown one, which a newer engine may send, becomes the sum, as the sum suits most metrics.
fn aggregate(aggregate: v1::Aggregate) -> Aggregate {
    ingraft_wire::convert::aggregate(aggregate.into(), "aggregate").unwrap_or(Aggregate::Sum)
}

fn function_ref(f: v1::FunctionRef) -> FunctionRef {
    FunctionRef { module: f.module, function: f.function, offset: f.offset }
}

/// The block, edge or loop that a focus names: `#0x1a` of `/Code/MODULE/FUNCTION/#0x1a`.
pub(crate) fn part_of(focus: &str) -> Option<PartName> {
    let focus = Focus::parse(focus).ok()?;
    PartName::parse(focus.part("Code")?.names.get(2)?)
}

/// Returns each refused function once. If some pairs measure a function, it is returned once for each pair that may not measure it.
/// The pair is named unless the pair is about the function alone.
fn refused_functions(refused: Vec<v1::RefusedFunction>, pairs: &[PairInfo]) -> Vec<RefusedFunction> {
    let place = |f: &v1::RefusedFunction| f.function.as_ref().map(|f| (f.module.clone(), f.offset));
    let mut of: HashMap<_, HashSet<usize>> = HashMap::new();
    for r in &refused {
        of.entry(place(r)).or_default().extend(r.pair.map(|pair| pair as usize));
    }
    // The pairs that may concern a function: those about it, and those about no single function.
    let mut about: HashMap<Option<(&str, u64)>, usize> = HashMap::new();
    for pair in pairs {
        let function = pair.function.as_ref().map(|f| (f.module.as_str(), f.offset));
        *about.entry(function).or_default() += 1;
    }
    let about = |function: Option<(&str, u64)>| about.get(&function).copied().unwrap_or_default();
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for r in refused {
        let at = place(&r);
        let its = of.get(&at);
        let at_function = at.as_ref().map(|(module, offset)| (module.as_str(), *offset));
        let concerned = about(None) + at_function.map_or(0, |function| about(Some(function)));
        let partly = its.is_some_and(|its| !its.is_empty() && concerned > its.len());
        let alone = its.is_some_and(|its| its.len() == 1);
        let is_its_own = |pair: &PairInfo| {
            pair.function.as_ref().is_some_and(|f| at_function == Some((f.module.as_str(), f.offset)))
        };
        let pair = r
            .pair
            .and_then(|n| pairs.get(n as usize))
            .filter(|pair| partly || alone && !is_its_own(pair) || part_of(&pair.focus).is_some());
        let is_part = |n: &usize| pairs.get(*n).is_some_and(|pair| part_of(&pair.focus).is_some());
        let by_part = r.pair.is_none() && its.is_some_and(|its| its.iter().any(is_part));
        if partly && pair.is_none() || by_part {
            // Another entry reports that a pair may not measure the function, so the match with the pattern is not reported again.
            continue;
        }
        let pair = pair.map(|pair| (pair.metric.clone(), pair.focus.clone()));
        if seen.insert((at, pair.clone())) {
            out.push(refused_function(r, pair));
        }
    }
    out
}

fn refused_function(r: v1::RefusedFunction, pair: Option<(String, String)>) -> RefusedFunction {
    let reason = r.reason.unwrap_or_default();
    RefusedFunction {
        function: function_ref(r.function.unwrap_or_default()),
        pair,
        reason: reason.reason,
        why_not: reason.text,
    }
}

pub(super) fn reading(snapshot: &Snapshot, dropped: u64) -> Reading {
    Reading { time_ns: snapshot.time_ns, dropped, values: snapshot.values.clone() }
}

pub(super) fn ended(e: &v1::Ended) -> Ended {
    Ended { status: e.status, signal: e.signal, exec: e.exec }
}

pub(super) fn process(p: v1::Process, host: Host) -> objects::Process {
    let attachable = p.denied.is_none();
    let (why_not, hint) = p.denied.map(|d| (d.why, d.hint)).unzip();
    objects::Process {
        host,
        pid: p.pid,
        name: p.name,
        uid: p.uid,
        attachable,
        why_not,
        hint,
        parent: p.parent,
        title: p.title,
        with_parent: p.with_parent,
    }
}

pub(super) fn function(f: v1::Function, pid: i32, host: Host) -> objects::Function {
    let id = f.function.unwrap_or_default();
    let mut out = objects::Function {
        host,
        pid,
        module: id.module,
        function: id.function,
        offset: hex(id.offset),
        size: f.size,
        points: Default::default(),
        how: Default::default(),
        why_not: None,
        reasons: None,
        tail_exits: f.tail_exits,
        exposed: f.exposed,
    };
    for p in f.points {
        let Some(kind) = kind_word(p.kind()) else { continue };
        out.points.insert(kind, p.count);
        if let Some(how) = how_word(p.how()) {
            out.how.insert(kind, how);
        }
        if let Some(refusal) = p.why_not {
            out.why_not.get_or_insert_default().insert(kind, refusal.text);
            out.reasons.get_or_insert_default().insert(kind, refusal.reason);
        }
    }
    out
}

pub(super) fn kind_word(kind: v1::PointKind) -> Option<&'static str> {
    match kind {
        v1::PointKind::Entry => Some("entry"),
        v1::PointKind::Exit => Some("exit"),
        v1::PointKind::Call => Some("call"),
        v1::PointKind::Block => Some("block"),
        v1::PointKind::Edge => Some("edge"),
        v1::PointKind::Unspecified => None,
    }
}

pub(super) fn how_word(how: v1::How) -> Option<&'static str> {
    match how {
        v1::How::InPlace => Some("in-place"),
        v1::How::Relocated => Some("relocated"),
        v1::How::Partly => Some("partly"),
        v1::How::Refused => Some("refused"),
        v1::How::Unspecified => None,
    }
}

pub(super) fn metric(m: v1::Metric, host: Host) -> objects::Metric {
    let aggregate = aggregate(m.aggregate()).keyword();
    let style = match m.style() {
        v1::Style::EventCounter | v1::Style::Unspecified => "counter",
        v1::Style::SampledFunction => "level",
    };
    objects::Metric {
        host,
        name: m.name,
        unit: m.unit,
        aggregate,
        style,
        constraints: m.constraints,
        flavors: m.flavors,
        developer: m.developer,
        doc: m.doc,
        text: m.text,
        applies: None,
    }
}

pub(super) fn event(e: v1::Event, host: Host) -> objects::Event {
    let v1::Event { name, aliases, group, problem, at_points } = e;
    let [problem, at_points] = [problem, at_points].map(|text| Some(text).filter(|t| !t.is_empty()));
    objects::Event { host, name, aliases, group, problem, at_points }
}

pub(super) fn removed(r: v1::Removed, host: Host) -> objects::Removed {
    objects::Removed {
        host,
        pid: r.pid,
        stopped_ms: millis(r.stopped_ns),
        waited_ms: millis(r.waited_ns),
        text_restored: Some(r.text_restored),
        children_left: r.children_left,
        corrections: Corrections { late_start: r.late_start, early_end: r.early_end },
        warnings: r.warnings,
        memory_left: r.memory_left,
        asleep: r.asleep,
        awaited: r.awaited,
    }
}

pub(super) fn inserted(i: v1::Inserted, host: Host) -> objects::Inserted {
    objects::Inserted {
        host,
        pid: i.pid,
        holder: i.holder,
        points: i.points,
        bytes: i.code_bytes,
        since_ns: i.since_ns,
        identity: i.identity,
        cost_ns_per_s: i.cost_ns_per_s,
        observed_ns_per_s: i.observed_ns_per_s,
        observed_of_target: i.observed_of_target,
        pair_count: i.pair_count,
        pairs: i.pairs.into_iter().map(pair_cost).collect(),
        measurements: i.measurements,
        kept_measurements: i.kept_measurements,
        kept: i.kept,
        warnings: i.warnings,
    }
}

fn pair_cost(p: v1::PairCost) -> objects::PairCost {
    let v1::MetricFocus { metric, focus } = p.pair.unwrap_or_default();
    objects::PairCost {
        metric,
        focus,
        hit_ns: p.hit_ns,
        hits_per_s: p.hits_per_s,
        cost_ns_per_s: p.cost_ns_per_s,
        percent: p.cost_ns_per_s / 1e7,
        observed_ns: p.observed_ns,
    }
}

impl Lower {
    pub(super) fn to_wire(&self) -> v1::LowerRequest {
        v1::LowerRequest {
            metrics: self.metrics.clone(),
            focus: self.focus.clone(),
            target: self.target.as_ref().map(Target::to_wire),
            definitions: self.definitions.iter().map(Source::to_wire).collect(),
            code: self.code,
            flavors: self.flavors.iter().map(ToString::to_string).collect(),
        }
    }
}

pub(super) fn lowered(m: v1::LoweredMetric, host: Host) -> objects::Lowered {
    let piece = |p: v1::LoweredPiece| objects::Piece {
        point: kind_word(p.point()).unwrap_or("unknown"),
        after: p.after,
        functions: p.functions,
        function: p.function,
        snippet: p.snippet,
        cycles: p.cycles,
        ns: p.ns,
        why_not: p.refused.map(|r| r.text),
        code: p.code.into_iter().map(instruction).collect(),
    };
    objects::Lowered {
        host,
        metric: m.metric,
        focus: m.focus,
        pieces: m.pieces.into_iter().map(piece).collect(),
        problem: Some(m.problem).filter(|p| !p.is_empty()),
        applies: m.applies,
    }
}

fn instruction(line: v1::LoweredLine) -> objects::Instruction {
    objects::Instruction {
        label: Some(line.label).filter(|l| !l.is_empty()),
        at: hex(line.at),
        bytes: line.bytes.iter().map(|b| format!("{b:02x}")).collect(),
        text: line.text,
    }
}

/// Converts an error to the failure with which the command ends.
pub(super) fn failure(f: ingraft_wire::Failure) -> Failure {
    let (pid, holder) = (f.pid.map(|p| p.0), f.holder.map(|p| p.0));
    Failure { exit: f.class.exit(), reason: f.reason, what: f.what, hint: f.hint, pid, holder, host: None }
}
