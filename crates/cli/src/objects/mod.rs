//! Objects that commands print: each is one line of JSON (docs/json.md) and one row of a table. Scripts rely on the keys, so keys may be
//! added, but never renamed.

pub(crate) mod changes;
pub(crate) mod code;
pub(crate) mod contexts;
pub(crate) mod findings;
mod histograms;
pub(crate) mod hot;
pub(crate) mod inserted;
pub(crate) mod keyed;
pub(crate) mod lowered;
pub(crate) mod paths;
pub(crate) mod printed;
pub(crate) mod refused;
pub(crate) mod slow;
pub(crate) mod stacks;
pub(crate) mod times;
pub(crate) mod totals;
pub(crate) mod traces;

pub(crate) use histograms::{Interval, Quantiles, Times};
pub(crate) use inserted::{InsertedObject, RemovedObject};
pub(crate) use lowered::LoweredObject;
pub(crate) use refused::RefusedObject;

use std::collections::BTreeMap;
use std::time::Duration;

use changes::{BlockChangeObject, ContextChangeObject, FunctionChangeObject};
use code::{
    BlockObject, GraphObject, InstructionObject, LocationObject, LoopObject, PointObject, SummaryObject, WayInObject,
    WayObject, WovenObject,
};
use contexts::{ContextObject, ContextsObject, HolderObject};
use findings::{FindingGroupObject, FindingObject};
use hot::{HotObject, SamplesObject};
use ingraft_api::{
    EventEntry, FunctionEntry, FunctionFacts, NamedFunction, PairFacts, PairInfo, Phase, ProcessEntry, UntypedSymbol,
};
use ingraft_model::{Activations, Bin, MetricInfo, ObjectState, Pid};
use keyed::{CallerObject, HistObject, KeyText, KeyedObject};
use paths::{PathClassObject, PathObject, PathsObject};
use printed::{CallObject, CallsObject};
use serde::Serialize;
use slow::SlowObject;
use stacks::StackObject;
use times::{CauseObject, CounterPlacesObject, ExplainedObject, TimeCostsObject, TimeObject, TripsObject};
use totals::{EventTotalsObject, ProfileObject};
use traces::{ConditionObject, GapObject, ReplayedObject, StepObject, TracedObject};

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Object {
    Process(ProcessObject),
    Attached(AttachedObject),
    Changed(ChangedObject),
    Function(FunctionObject),
    Untyped(UntypedObject),
    Summary(SummaryObject),
    Graph(GraphObject),
    Point(PointObject),
    Block(BlockObject),
    Loop(LoopObject),
    WayIn(WayInObject),
    Instruction(InstructionObject),
    Woven(WovenObject),
    Way(WayObject),
    Location(LocationObject),
    Metric(MetricObject),
    Event(EventObject),
    Diagnostic(DiagnosticObject),
    Sample(SampleObject),
    Combined(CombinedObject),
    History(HistoryObject),
    Hot(HotObject),
    Samples(SamplesObject),
    Finding(FindingObject),
    FindingGroup(FindingGroupObject),
    Count(CountObject),
    Keyed(KeyedObject),
    Caller(CallerObject),
    Stack(StackObject),
    Hist(HistObject),
    Call(CallObject),
    Calls(CallsObject),
    Slow(SlowObject),
    Context(ContextObject),
    Holder(HolderObject),
    Contexts(ContextsObject),
    Path(PathObject),
    Paths(PathsObject),
    PathClass(PathClassObject),
    Edge(EdgeObject),
    Events(EventsObject),
    CallSite(CallSiteObject),
    Time(TimeObject),
    Cause(CauseObject),
    Explained(ExplainedObject),
    Trips(TripsObject),
    TimeCosts(TimeCostsObject),
    CounterPlaces(CounterPlacesObject),
    EventTotals(EventTotalsObject),
    Profile(ProfileObject),
    Coverage(CoverageObject),
    Traced(TracedObject),
    Step(StepObject),
    Gap(GapObject),
    Condition(ConditionObject),
    Replayed(ReplayedObject),
    FunctionChange(FunctionChangeObject),
    BlockChange(BlockChangeObject),
    ContextChange(ContextChangeObject),
    Latency(LatencyObject),
    Refused(RefusedObject),
    Inserted(InsertedObject),
    Ended(EndedObject),
    Removed(RemovedObject),
    Looked(LookedObject),
    Kept(KeptObject),
    Cost(CostObject),
    TakenOut(TakenOutObject),
    Lowered(LoweredObject),
    Check(CheckObject),
    Warning(WarningObject),
    Error(ErrorObject),
}

/// The daemon that an object came from; omitted unless there are several daemons.
pub(crate) type Host = Option<String>;

/// A process of `ps`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcessObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) attachable: bool,
    pub(crate) why_not: Option<String>,
    pub(crate) hint: Option<String>,
    /// Process id of the parent; 0 if that is outside of the engine's pid namespace.
    pub(crate) parent: i32,
    /// Arguments of the process, or the text that it has written over them.
    pub(crate) title: String,
    /// Whether the process is a fork child that is measured with its parent.
    pub(crate) with_parent: bool,
}

impl ProcessObject {
    /// The record of a process.
    pub(crate) fn new(process: ProcessEntry, host: Host) -> Self {
        let ProcessEntry { pid, name, uid, denied, parent, title, with_parent } = process;
        let attachable = denied.is_none();
        let (why_not, hint) = denied.map(|denied| (denied.why, denied.hint)).unzip();
        ProcessObject { host, pid: pid.0, name, uid, attachable, why_not, hint, parent: parent.0, title, with_parent }
    }
}

/// The first insertion into a target is complete: from its last springboard on, every call is counted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AttachedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) title: String,
    pub(crate) threads: u32,
    pub(crate) modules: u32,
    pub(crate) functions: u32,
    pub(crate) points: u32,
    /// Milliseconds from the start of the command to the announcement of the insertion.
    pub(crate) attach_ms: f64,
    /// Longest time, in milliseconds, that any thread was held in one piece.
    pub(crate) stopped_ms: f64,
    /// Part of `stopped_ms` in which no processor was free.
    pub(crate) waited_ms: f64,
    /// Number that names the measurement after `--no-remove`.
    pub(crate) measurement: u64,
    /// Number of calls in progress at the insertion whose flags and timers are as if the engine had seen them begin.
    pub(crate) caught_up: u64,
    /// Number of threads whose stacks could not be unwound.
    pub(crate) not_unwound: u32,
}

/// A further insertion into a target that has measurements already is complete.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChangedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) title: String,
    pub(crate) points: u32,
    pub(crate) attach_ms: f64,
    pub(crate) stopped_ms: f64,
    pub(crate) waited_ms: f64,
    pub(crate) measurement: u64,
    pub(crate) caught_up: u64,
    pub(crate) not_unwound: u32,
}

/// A function of `functions`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FunctionObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    /// Offset as `nm` prints it, with 0x.
    pub(crate) offset: String,
    pub(crate) size: u64,
    /// Number of points by kind.
    pub(crate) points: BTreeMap<&'static str, u32>,
    /// Method by which the points are reached, by kind: `in-place`, `relocated`, `partly` or `refused`.
    pub(crate) how: BTreeMap<&'static str, &'static str>,
    /// Reason, by kind, why some points cannot be reached; null if none is refused.
    pub(crate) why_not: Option<BTreeMap<&'static str, String>>,
    /// The same reason, by kind, as a stable word; null if none is refused.
    pub(crate) reasons: Option<BTreeMap<&'static str, String>>,
    #[serde(flatten)]
    pub(crate) facts: FunctionFacts,
}

impl FunctionObject {
    /// The record of a function.
    pub(crate) fn new(entry: FunctionEntry, pid: Pid, host: Host) -> Self {
        let RecordedFunction { host, pid, module, function, offset } = RecordedFunction::new(entry.function, pid, host);
        let (mut why_not, mut reasons) = (None, None);
        for point in &entry.points {
            if let Some(why) = &point.why_not {
                why_not.get_or_insert_with(BTreeMap::new).insert(point.kind.word(), why.to_string());
                reasons.get_or_insert_with(BTreeMap::new).insert(point.kind.word(), why.reason().to_owned());
            }
        }
        FunctionObject {
            host,
            pid,
            module,
            function,
            offset,
            size: entry.size,
            points: entry.points.iter().map(|point| (point.kind.word(), point.count)).collect(),
            how: entry.points.iter().map(|point| (point.kind.word(), point.how.word())).collect(),
            why_not,
            reasons,
            facts: entry.facts,
        }
    }
}

/// A symbol without a type of which nothing shows that a function begins there; `functions` does not list it as one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UntypedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) symbol: String,
    /// Offset as `nm` prints it, with 0x.
    pub(crate) offset: String,
    /// Name of the function that the symbol lies inside; null if it lies inside none.
    pub(crate) inside: Option<String>,
}

impl UntypedObject {
    /// The record of a symbol.
    pub(crate) fn new(symbol: UntypedSymbol, pid: Pid, host: Host) -> Self {
        let UntypedSymbol { module, name, offset, inside } = symbol;
        UntypedObject { host, pid: pid.0, module, symbol: name, offset: hex(offset.0), inside }
    }
}

/// A metric of `metrics`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MetricObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) aggregate: &'static str,
    /// `counter` for events that add up, `level` for a value that is a state.
    pub(crate) style: &'static str,
    pub(crate) constraints: Vec<String>,
    /// Flavors of programs that the metric exists for; empty if it exists for every program.
    pub(crate) flavors: Vec<String>,
    pub(crate) developer: bool,
    pub(crate) doc: String,
    /// Definition of the metric in MDL.
    pub(crate) text: String,
    /// Whether the metric measures something in the target; left out if no target was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applies: Option<bool>,
}

impl MetricObject {
    /// The record of a metric.
    pub(crate) fn new(metric: MetricInfo, host: Host) -> Self {
        MetricObject {
            host,
            aggregate: metric.aggregate.keyword(),
            style: if metric.is_level() { "level" } else { "counter" },
            name: metric.name,
            unit: metric.unit,
            constraints: metric.constraints,
            flavors: metric.flavors,
            developer: metric.developer,
            doc: metric.doc,
            text: metric.text.as_ref().to_owned(),
            applies: None,
        }
    }
}

/// An event of `metrics --events`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the unit that counts it.
    pub(crate) group: String,
    /// Reason why this machine cannot count the event; null if it can.
    pub(crate) problem: Option<String>,
    /// Method by which a thread reads the event at points; null if no thread can.
    pub(crate) at_points: Option<String>,
}

impl EventObject {
    /// The record of an event.
    pub(crate) fn new(event: EventEntry, host: Host) -> Self {
        let EventEntry { name, aliases, group, problem, at_points } = event;
        EventObject { host, name, aliases, group, problem, at_points }
    }
}

/// A diagnostic about an MDL file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DiagnosticObject {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) column: u32,
    pub(crate) severity: &'static str,
    /// A stable code, e.g. MDL030.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<&'static str>,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

/// A value of a metric at a focus.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SampleObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Unix time in nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub(crate) value: i64,
    /// Change per second since the previous sample; null for the first sample and for levels.
    pub(crate) rate: Option<f64>,
    pub(crate) unit: String,
    #[serde(flatten)]
    pub(crate) quantiles: Option<Quantiles>,
    /// The values of a histogram since the previous reading; omitted for the first reading and for other metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<Interval>,
    #[serde(flatten)]
    pub(crate) keys: Option<KeyedValues>,
    /// State of the synchronisation object that the focus names; left out if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<SyncObject>,
    #[serde(flatten)]
    pub(crate) missing: MissingCalls,
    /// Unix time in nanoseconds from which on the value does not change, because its code was taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken_out_ns: Option<u64>,
    #[serde(flatten)]
    pub(crate) facts: PairFacts,
    /// Number of functions of the pair that are not woven, so that the value lacks their part; omitted if there is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) refused: u32,
    /// Samples lost before this one because they were not read in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) dropped: u64,
    /// Share of the time in which the event was counted; omitted if that was all of the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted_share: Option<f64>,
    /// Whether `value` and `rate` are scaled up to all of the time; omitted if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) scaled: bool,
}

fn is_zero<T: Default + PartialEq>(n: &T) -> bool {
    *n == T::default()
}

/// Course of a value over time, in bins. The amount of an interval is the increase of an event counter, or the value of a level.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HistoryObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) metric: String,
    pub(crate) focus: String,
    pub(crate) unit: String,
    /// Number of the phase; null if the history covers the whole time.
    pub(crate) phase: Option<u32>,
    /// Unix time in nanoseconds at which the first bin begins.
    pub(crate) start_ns: u64,
    /// Width of a bin in nanoseconds.
    pub(crate) width_ns: u64,
    /// Length of an interval in nanoseconds; `min` and `max` of a bin are the least and the largest amount of any of its intervals.
    pub(crate) interval_ns: u64,
    /// Consecutive bins; null for a bin in which no interval is known.
    pub(crate) bins: Vec<Option<HistoryBin>>,
}

/// Number of intervals in a bin, and the sum, the least and the largest of their amounts, in the unit of the value.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HistoryBin {
    pub(crate) intervals: u64,
    pub(crate) sum: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl HistoryObject {
    /// Creates the object for the history of one pair.
    pub(crate) fn new(
        host: Host,
        pid: i32,
        info: &PairInfo,
        phase: Option<&Phase>,
        history: &ingraft_model::History,
    ) -> HistoryObject {
        let bin = |&Bin { intervals, sum, min, max }: &Bin| {
            (intervals > 0).then_some(HistoryBin { intervals, sum, min, max })
        };
        HistoryObject {
            host,
            pid,
            metric: info.pair.metric.clone(),
            focus: info.pair.focus.to_string(),
            unit: info.metric.unit.clone(),
            phase: phase.map(|phase| phase.number),
            start_ns: history.start_ns(),
            width_ns: history.width_ns(),
            interval_ns: ingraft_model::history::INTERVAL_NS,
            bins: history.bins().iter().map(bin).collect(),
        }
    }
}

/// The values of one metric and focus in several targets, combined by the metric's aggregate operator.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CombinedObject {
    /// Unix time, in nanoseconds, of the newest value that is combined.
    pub(crate) time_ns: u64,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub(crate) value: i64,
    /// Change per second; null before all targets have two values, and for levels.
    pub(crate) rate: Option<f64>,
    pub(crate) unit: String,
    #[serde(flatten)]
    pub(crate) quantiles: Option<Quantiles>,
    /// The values of a histogram since the previous reading; omitted before the second reading and for other metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<Interval>,
    #[serde(flatten)]
    pub(crate) keys: Option<KeyedValues>,
    #[serde(flatten)]
    pub(crate) missing: MissingCalls,
    /// Number of targets that measure the metric at the focus.
    pub(crate) targets: usize,
    /// Number of targets whose value is up to date; of each other target, the last known value is used.
    pub(crate) heard: usize,
}

/// The values by key of a vector over keys, the largest first.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyedValues {
    pub(crate) keys: Vec<KeyedValue>,
    /// Sum of the values of all other keys.
    pub(crate) others: i64,
    /// Number of operations on objects that may be missing in the list; left out if the list is complete.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unlisted: u64,
}

/// State of a synchronisation object, as far as it is known.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SyncObject {
    /// Kind of the object, as in /SyncObject/KIND/OBJECT.
    pub(crate) kind: &'static str,
    /// Whether the object was destroyed, and neither initialised nor used since.
    pub(crate) retired: bool,
}

impl From<ObjectState> for SyncObject {
    fn from(ObjectState { kind, retired }: ObjectState) -> Self {
        SyncObject { kind: kind.name(), retired }
    }
}

/// The value of one key.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyedValue {
    /// Key in hexadecimal, as not every JSON reader has numbers of 64 bits. Null if the values of several processes are combined and the
    /// key has a name, and if it has parts.
    pub(crate) key: Option<String>,
    /// Parts of a key that is a text or has several values; left out for a number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<KeyText>,
    /// Name of the variable whose address is the key, or of the enumerator that the key is; null if there is none.
    pub(crate) name: Option<String>,
    pub(crate) value: i64,
    /// State of the synchronisation object at this address.
    #[serde(flatten)]
    pub(crate) object: Option<SyncObject>,
}

impl KeyedValues {
    /// Converts the values by key of one process, or of several processes if `together` is set.
    pub(crate) fn new(keys: &ingraft_api::Keys, together: bool) -> Self {
        let each = |v: &ingraft_api::KeyValue| KeyedValue {
            key: (v.parts.is_empty() && (!together || v.name.is_none())).then(|| format!("{:#x}", v.key)),
            parts: if v.parts.is_empty() { Vec::new() } else { KeyText::parts(v) },
            name: v.name.clone().or_else(|| v.enumerator.clone()),
            value: v.value,
            object: v.object.map(Into::into),
        };
        KeyedValues { keys: keys.values.iter().map(each).collect(), others: keys.others, unlisted: keys.unlisted }
    }
}

/// Numbers of the calls whose values are missing, by reason; omitted if there are none.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MissingCalls {
    /// Number of calls that ended without passing an exit: by an exception, by longjmp, or with their thread.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) left: u64,
    /// Number of calls that had begun before the measurement.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unseen: u64,
    /// Number of calls that could not be recorded.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unrecorded: u64,
    /// Number of calls that ended in a tail jump that cannot be followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_by_tail_jump: Option<u64>,
}

impl From<Activations> for MissingCalls {
    fn from(Activations { left, unseen, unrecorded, left_by_tail_jump }: Activations) -> Self {
        MissingCalls {
            left,
            unseen,
            unrecorded,
            left_by_tail_jump: (left_by_tail_jump > 0).then_some(left_by_tail_jump),
        }
    }
}

/// Identity of a function in a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RecordedFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: String,
}

impl RecordedFunction {
    /// The identity of a function of a process.
    pub(crate) fn new(function: NamedFunction, pid: Pid, host: Host) -> Self {
        let NamedFunction { module, function, offset } = function;
        RecordedFunction { host, pid: pid.0, module, function, offset: hex(offset.0) }
    }
}

/// Number of the calls of one function, of arrivals at a block, or of iterations of a loop.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CountObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset of the block in the function, if the record is about a block alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block: Option<String>,
    /// Offset of the loop's header in the function, if the record is about a loop alone.
    #[serde(rename = "loop", skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<String>,
    /// Condition of the calls that are counted; left out if all are.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    pub(crate) calls: i64,
    pub(crate) threads: Vec<ThreadCount>,
    #[serde(flatten)]
    pub(crate) facts: PairFacts,
}

/// A transfer of control at the end of a block, and the number of times that control passed it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EdgeObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset in the function of the block that the edge leaves.
    pub(crate) from: String,
    /// Offset in the function of the block to which the edge leads; null if that is outside of the function.
    pub(crate) to: Option<String>,
    /// Destination outside of the function, if a block or the function states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outside: Option<String>,
    /// Kind of the transfer; null if edges of several kinds are counted together, or if it is not known.
    pub(crate) kind: Option<&'static str>,
    /// Whether the edge leads back to the header of a loop around the block; left out where edges are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) back: Option<bool>,
    /// Number of times that control passed the edge; left out where edges are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<Vec<ThreadEdge>>,
    /// Whether control has passed the edge: `yes`, `no` or `unknown`; left out unless in a coverage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ran: Option<&'static str>,
    /// Reason why the counts of the function are not exact; left out if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
    #[serde(flatten)]
    pub(crate) facts: PairFacts,
}

/// The number of times that an event happened in a function that was profiled.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventsObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Name of the event: `instructions`, `calls`, `branches`, `memory-reads` or `memory-writes`.
    pub(crate) event: &'static str,
    /// Number of events in the function itself; null if it is not known.
    #[serde(rename = "self")]
    pub(crate) own: Option<u64>,
    /// Number of events in the function and in all that it calls among the profiled functions; null if it was not asked for, or is not known.
    pub(crate) inclusive: Option<u64>,
    /// Reason why the counts of the function are not exact; left out if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
    /// Reason why `inclusive` is not exact, or not known; left out if it is exact, or was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inclusive_inexact: Option<String>,
}

/// The number of times that an event happened in the calls that a function has made from one place.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallSiteObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset of the call in the function.
    pub(crate) call_site: String,
    /// Name of the called function; null if the call is indirect, or if the name is not known.
    pub(crate) callee: Option<String>,
    /// Name of the event.
    pub(crate) event: String,
    /// Number of calls.
    pub(crate) calls: u64,
    /// Number of events in the called function and in all that it calls among the profiled functions; null if it is not known.
    pub(crate) inclusive: Option<u64>,
    /// Reason why `inclusive` is not exact, or not known; left out if it is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inclusive_inexact: Option<String>,
}

/// Numbers of the blocks and branches of a function that have run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CoverageObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of blocks.
    pub(crate) blocks: u64,
    pub(crate) blocks_ran: u64,
    /// Number of blocks of which it is not known.
    pub(crate) blocks_unknown: u64,
    /// Number of edges that leave blocks with several of them.
    pub(crate) branches: u64,
    pub(crate) branches_ran: u64,
    pub(crate) branches_unknown: u64,
    /// Reason why something is not known; left out if everything is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
}

/// Number of times that one thread passed an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ThreadEdge {
    /// Thread id; null for passages that could not be told apart by thread.
    pub(crate) tid: Option<i32>,
    /// Process id of the thread if its process is a child that is measured with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    pub(crate) count: i64,
}

/// Number of the calls by one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ThreadCount {
    /// Thread id; null for calls that could not be told apart by thread.
    pub(crate) tid: Option<i32>,
    /// Process id of the thread if its process is a child that is measured with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    pub(crate) calls: i64,
}

/// Times of the calls of one function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LatencyObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of the calling context of these calls, as in the records of contexts. Left out if it is not known, and if contexts are not told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<u64>,
    /// Condition of the calls that are timed; left out if all may be timed.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// Clock of the times: `wall` for elapsed time, `cpu` for processor time.
    pub(crate) clock: &'static str,
    #[serde(flatten)]
    pub(crate) times: Times,
    /// Mean time of a call in nanoseconds; null if no call has ended.
    pub(crate) mean_ns: Option<f64>,
    /// `self_ns` as a share, 0 to 1, of the sum of `self_ns` of all functions of the command; null if that sum is 0. `sum_ns` takes the place
    /// of `self_ns` if no function has one.
    pub(crate) share: Option<f64>,
    pub(crate) threads: Vec<ThreadLatency>,
    #[serde(flatten)]
    pub(crate) missing: MissingCalls,
    /// Unix time in nanoseconds from which on calls are timed; null if an earlier command began to time them.
    pub(crate) timed_since_ns: Option<u64>,
    /// Unix time in nanoseconds from which on calls are counted only, because timing them costs too much; null if they are timed.
    pub(crate) taken_out_ns: Option<u64>,
    #[serde(flatten)]
    pub(crate) facts: PairFacts,
}

/// Times of the calls of one function by one thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ThreadLatency {
    /// Thread id; null for calls that could not be told apart by thread.
    pub(crate) tid: Option<i32>,
    /// Process id of the thread if its process is a child that is measured with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    #[serde(flatten)]
    pub(crate) times: Times,
    #[serde(flatten)]
    pub(crate) missing: MissingCalls,
}

/// The end of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct EndedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Whether the process continued as another program (exec); omitted if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exec: bool,
}

/// The engine has looked at all processes for code that it inserted (`detach --all`).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LookedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    /// Directory of the journals that the engine uses if the copy in a target is lost.
    pub(crate) state_dir: String,
}

/// A measurement that stays in the target (`--no-remove`).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeptObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) measurement: u64,
}

/// Cost of a measurement for its target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CostObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Nanoseconds of processor time per second: the observed cost, or, if it is not known, the cost predicted from the latest frequencies.
    pub(crate) ns_per_s: f64,
    /// Cost in percent of one processor.
    pub(crate) percent: f64,
}

/// A pair whose code was taken out because it cost more than allowed, or because a library that uses the gs base itself was loaded. The
/// value does not change afterwards.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TakenOutObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Unix time in nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) hits_per_s: u64,
    /// Cost of the pair in percent of one processor.
    pub(crate) percent: f64,
    /// Limit of the cost of the whole measurement, in percent of one processor.
    pub(crate) max_overhead: f64,
    /// Whether the reason was a library or a signal handler beside which woven code must not run, not the cost.
    pub(crate) own_gs: bool,
    /// Whether the reason was that the program has changed the code of a function that ran as a copy.
    pub(crate) rewritten: bool,
}

/// A statement that `demo` checks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckObject {
    pub(crate) pid: i32,
    pub(crate) check: &'static str,
    pub(crate) ok: bool,
    pub(crate) text: String,
}

/// A warning on standard error; the command continues.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WarningObject {
    pub(crate) what: String,
}

/// A failure of the command, on standard error.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ErrorObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) what: String,
    pub(crate) hint: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
}

/// Formats an offset for scripts: in hexadecimal, with 0x.
pub(crate) fn hex(offset: u64) -> String {
    format!("{offset:#x}")
}

/// Formats a distance in bytes for scripts: in hexadecimal, with 0x and, if it is negative, with a sign.
pub(crate) fn signed_hex(offset: i64) -> String {
    let sign = if offset < 0 { "-" } else { "" };
    format!("{sign}{:#x}", offset.unsigned_abs())
}

/// Formats bytes for scripts: in hexadecimal, without blanks.
pub(crate) fn bytes(code: &[u8]) -> String {
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Converts a time to milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}
