//! What commands say, as values: each is one line of JSON (docs: interface, "JSON") and one row of a table. Keys are a
//! contract with scripts: add, never rename.

mod histograms;

pub(crate) use histograms::{Interval, Quantiles, Times};

use std::collections::BTreeMap;

use ingraft_model::{Activations, Bin};
use serde::Serialize;

use crate::conn::PairInfo;

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Object {
    Process(Process),
    Attached(Attached),
    Changed(Changed),
    Function(Function),
    Untyped(Untyped),
    Metric(Metric),
    Event(Event),
    Diagnostic(Diagnostic),
    Sample(Sample),
    Combined(Combined),
    History(History),
    Count(Count),
    Latency(Latency),
    Refused(Refused),
    Inserted(Inserted),
    Ended(Ended),
    Removed(Removed),
    Kept(Kept),
    Cost(Cost),
    TakenOut(TakenOut),
    Lowered(Lowered),
    Check(Check),
    Warning(Warning),
    Error(Error),
}

/// The daemon that an object came from; left out unless there are several.
pub(crate) type Host = Option<String>;

/// A process of `ps`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Process {
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
    /// Whether it is a fork child that is measured with its parent.
    pub(crate) with_parent: bool,
}

/// The last springboard of the first request at a target is in: from now on every call is counted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Attached {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) title: String,
    pub(crate) threads: u32,
    pub(crate) modules: u32,
    pub(crate) functions: u32,
    pub(crate) points: u32,
    /// From the start of the command.
    pub(crate) attach_ms: f64,
    /// The longest that any thread was held in one piece.
    pub(crate) stopped_ms: f64,
    /// For `--no-remove`: what to name it by.
    pub(crate) measurement: u64,
    /// Calls in progress whose states are as if their beginnings had been seen.
    pub(crate) caught_up: u64,
    /// Threads whose stacks could not be looked at.
    pub(crate) not_unwound: u32,
}

/// The same where something was inserted already.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Changed {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) title: String,
    pub(crate) points: u32,
    pub(crate) attach_ms: f64,
    pub(crate) stopped_ms: f64,
    pub(crate) measurement: u64,
    pub(crate) caught_up: u64,
    pub(crate) not_unwound: u32,
}

/// A function of `functions`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    /// As `nm` prints it, with 0x.
    pub(crate) offset: String,
    pub(crate) size: u64,
    /// Number of points by kind.
    pub(crate) points: BTreeMap<&'static str, u32>,
    /// How they are reached, by kind.
    pub(crate) how: BTreeMap<&'static str, &'static str>,
    /// Why not all of them are, by kind.
    pub(crate) why_not: Option<BTreeMap<&'static str, String>>,
    /// Number of exits that jump to another function; left out if there is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) tail_exits: u32,
}

/// A symbol without a type of which nothing shows that a function begins there; `functions` does not list it as one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Untyped {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) symbol: String,
    /// As `nm` prints it, with 0x.
    pub(crate) offset: String,
    /// The function that it lies inside of; null if that is none.
    pub(crate) inside: Option<String>,
}

/// A metric of `metrics`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Metric {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) aggregate: &'static str,
    /// `counter`: events that add up; `level`: the value itself.
    pub(crate) style: &'static str,
    pub(crate) constraints: Vec<String>,
    /// The flavors of programs that it exists for; empty: every program.
    pub(crate) flavors: Vec<String>,
    pub(crate) developer: bool,
    pub(crate) doc: String,
    /// The definition.
    pub(crate) text: String,
    /// Whether it measures something in the target; left out if none was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) applies: Option<bool>,
}

/// An event of `metrics --events`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the unit that counts it.
    pub(crate) group: String,
    /// Why this machine does not count it; null if it does.
    pub(crate) problem: Option<String>,
    /// How a thread reads it at points; null: not at all.
    pub(crate) at_points: Option<String>,
}

/// Something to say about an MDL file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Diagnostic {
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
pub(crate) struct Sample {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Unix time.
    pub(crate) time_ns: u64,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Cumulative since the request; of a histogram: how many values it has.
    pub(crate) value: i64,
    /// Change per second since the sample before; null for the first one and for levels.
    pub(crate) rate: Option<f64>,
    pub(crate) unit: String,
    #[serde(flatten)]
    pub(crate) quantiles: Option<Quantiles>,
    /// The values of a histogram since the reading before; left out if there is none before, or if it is no histogram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<Interval>,
    #[serde(flatten)]
    pub(crate) keys: Option<Keys>,
    /// What is known of the object that the focus names; left out if that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<SyncObject>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
    /// Unix time from which on the value stays as it is, because its code was taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken_out_ns: Option<u64>,
    /// Unix time from which on the value has everything, if that is later than `attached`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exact_since_ns: Option<u64>,
    /// Functions that the pair needs and that are not woven for it, which the value lacks; left out if there is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) refused: u32,
    /// Samples lost before this one because they were not read in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) dropped: u64,
    /// The share of the time in which the event was counted; left out if it was all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counted_share: Option<f64>,
    /// Whether `value` and `rate` are estimates for all of the time; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) scaled: bool,
}

fn is_zero<T: Default + PartialEq>(n: &T) -> bool {
    *n == T::default()
}

/// What a value did over time. Of an interval, an event counter has what was added in it, a level what it was.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct History {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) metric: String,
    pub(crate) focus: String,
    pub(crate) unit: String,
    /// Number of the phase; null: all the time.
    pub(crate) phase: Option<u32>,
    /// When the first bin begins: Unix time.
    pub(crate) start_ns: u64,
    /// How wide a bin is.
    pub(crate) width_ns: u64,
    /// How long an interval is: a bin has the least and the most of any.
    pub(crate) interval_ns: u64,
    /// One after the other; null where nothing is known.
    pub(crate) bins: Vec<Option<HistoryBin>>,
}

/// What the intervals of a bin had, in the unit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HistoryBin {
    pub(crate) intervals: u64,
    pub(crate) sum: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl History {
    /// What the value of a pair did.
    pub(crate) fn new(
        host: Host,
        pid: i32,
        info: &PairInfo,
        phase: Option<&ingraft_wire::v1::Phase>,
        history: &ingraft_model::History,
    ) -> History {
        let bin = |&Bin { intervals, sum, min, max }: &Bin| {
            (intervals > 0).then_some(HistoryBin { intervals, sum, min, max })
        };
        History {
            host,
            pid,
            metric: info.metric.clone(),
            focus: info.focus.clone(),
            unit: info.unit.clone(),
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
pub(crate) struct Combined {
    /// Unix time of the newest value in it.
    pub(crate) time_ns: u64,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Cumulative since the request; of a histogram: how many values it has.
    pub(crate) value: i64,
    /// Change per second; null before all have two values, and for levels.
    pub(crate) rate: Option<f64>,
    pub(crate) unit: String,
    #[serde(flatten)]
    pub(crate) quantiles: Option<Quantiles>,
    /// The values of a histogram since the reading before; left out if there is none before, or if it is no histogram.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interval: Option<Interval>,
    #[serde(flatten)]
    pub(crate) keys: Option<Keys>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
    /// How many targets measure it.
    pub(crate) targets: usize,
    /// How many of them are up to date in it; of the others their last value is in it.
    pub(crate) heard: usize,
}

/// The values by key of a vector over keys, the largest first.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<Key>,
    /// What all other keys have together.
    pub(crate) others: i64,
    /// How often something was done to an object that may be missing in the list; left out if it is complete.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unlisted: u64,
}

/// What is known of a synchronisation object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SyncObject {
    /// As in /SyncObject/KIND/OBJECT.
    pub(crate) kind: String,
    /// Whether it was destroyed, and neither initialised nor used since.
    pub(crate) retired: bool,
}

impl From<&ingraft_wire::v1::SyncObject> for SyncObject {
    fn from(object: &ingraft_wire::v1::SyncObject) -> Self {
        SyncObject { kind: object.kind.clone(), retired: object.retired }
    }
}

/// The value of one key.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Key {
    /// In hexadecimal, as numbers of 64 bits do not fit into every reader's; null: several processes have one of that name.
    pub(crate) key: Option<String>,
    /// The variable of which it is the address; null: of none.
    pub(crate) name: Option<String>,
    pub(crate) value: i64,
    /// What is known of the object at this address.
    #[serde(flatten)]
    pub(crate) object: Option<SyncObject>,
}

impl Keys {
    /// Of one process, or of several together.
    pub(crate) fn new(keys: &ingraft_wire::v1::Keys, together: bool) -> Self {
        let each = |v: &ingraft_wire::v1::KeyValue| Key {
            key: (!together || v.name.is_empty()).then(|| format!("{:#x}", v.key)),
            name: (!v.name.is_empty()).then(|| v.name.clone()),
            value: v.value,
            object: v.object.as_ref().map(Into::into),
        };
        Keys { keys: keys.values.iter().map(each).collect(), others: keys.others, unlisted: keys.unlisted }
    }
}

/// Calls whose values are missing, by reason; left out when there are none.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Missing {
    /// They ended without passing an exit: by an exception, by longjmp, with their thread.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) left: u64,
    /// They had begun before the measurement.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unseen: u64,
    /// They could not be recorded.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) unrecorded: u64,
    /// They ended in a tail jump that cannot be followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_by_tail_jump: Option<u64>,
}

impl From<Activations> for Missing {
    fn from(Activations { left, unseen, unrecorded, left_by_tail_jump }: Activations) -> Self {
        Missing { left, unseen, unrecorded, left_by_tail_jump: (left_by_tail_jump > 0).then_some(left_by_tail_jump) }
    }
}

/// A function in a target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FunctionId {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: String,
}

/// The calls of one function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Count {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    pub(crate) calls: i64,
    pub(crate) threads: Vec<ThreadCount>,
    /// Unix time from which on the number is exact, if that is later than `attached`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exact_since_ns: Option<u64>,
}

/// The calls by one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ThreadCount {
    /// `null`: could not be told apart.
    pub(crate) tid: Option<i32>,
    /// Its process if that is a child that is measured with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    pub(crate) calls: i64,
}

/// The time that the calls of one function took.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    #[serde(flatten)]
    pub(crate) id: FunctionId,
    /// `wall`: time that passed.
    pub(crate) clock: &'static str,
    #[serde(flatten)]
    pub(crate) times: Times,
    /// Nanoseconds; null if no call has ended.
    pub(crate) mean_ns: Option<f64>,
    /// `sum_ns` as a share, 0 to 1, of the sum of `sum_ns` of all functions of the command; null if that sum is 0.
    pub(crate) share: Option<f64>,
    pub(crate) threads: Vec<ThreadLatency>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
    /// Unix time from which on nothing was measured, because its code was taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken_out_ns: Option<u64>,
    /// Unix time from which on every call is measured, if that is later than `attached`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exact_since_ns: Option<u64>,
}

/// The same by one thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ThreadLatency {
    /// `null`: could not be told apart.
    pub(crate) tid: Option<i32>,
    /// Its process if that is a child that is measured with the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    #[serde(flatten)]
    pub(crate) times: Times,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Refused {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: String,
    /// The pair that it is refused to; left out where no other pair may measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metric: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) focus: Option<String>,
    /// A stable word.
    pub(crate) reason: String,
    pub(crate) why_not: String,
}

/// What is inserted in one target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Inserted {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) holder: String,
    pub(crate) points: u32,
    pub(crate) bytes: u64,
    /// Unix time.
    pub(crate) since_ns: u64,
    /// How threads are told apart.
    pub(crate) identity: String,
    pub(crate) cost_ns_per_s: Option<f64>,
    /// What it has cost since the first insertion, per second.
    pub(crate) observed_ns_per_s: Option<f64>,
    /// The same as a share of the processor time that the target has used.
    pub(crate) observed_of_target: Option<f64>,
    /// Number of pairs; `pairs` has the dearest hundred.
    pub(crate) pair_count: u32,
    pub(crate) pairs: Vec<PairCost>,
    pub(crate) measurements: Vec<u64>,
    /// Those of them that stay without a client.
    pub(crate) kept_measurements: Vec<u64>,
    /// How many measurements stay without a client, also of another engine.
    pub(crate) kept: u32,
    /// What others have done to woven code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A target ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ended {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// It went on as another program.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) exec: bool,
}

/// Everything of a request is out again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Removed {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) stopped_ms: f64,
    /// None if the process has ended, and its text with it.
    pub(crate) text_restored: Option<bool>,
    pub(crate) children_left: Vec<i32>,
    pub(crate) corrections: Corrections,
    /// What others have done to the code.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Memory of the engine is still mapped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) memory_left: bool,
    /// Threads that sleep in the kernel, for which that waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) asleep: Vec<i32>,
    /// Patterns and foci in modules that were never loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) awaited: Vec<String>,
}

/// Activations in progress at insertion and removal that corrections account for.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Corrections {
    pub(crate) late_start: u64,
    pub(crate) early_end: u64,
}

/// A measurement that stays in (`--no-remove`).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Kept {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) measurement: u64,
}

/// What a measurement cost its target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Nanoseconds of processor time in a second, predicted from how often its points were reached.
    pub(crate) ns_per_s: f64,
    /// The same as a share of one processor.
    pub(crate) percent: f64,
}

/// What a pair costs: as often as its code runs, each time at its worst case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PairCost {
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Each of its snippets once.
    pub(crate) hit_ns: f64,
    pub(crate) hits_per_s: f64,
    /// Processor time in a second, as often as lately.
    pub(crate) cost_ns_per_s: f64,
    /// The same as a share of one processor.
    pub(crate) percent: f64,
    /// Processor time so far.
    pub(crate) observed_ns: f64,
}

/// A pair whose code was taken out because it cost more than it might, or because a library came that uses the gs base itself; its value
/// stays as it was then.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TakenOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Unix time.
    pub(crate) time_ns: u64,
    pub(crate) hits_per_s: u64,
    /// Of one processor.
    pub(crate) percent: f64,
    /// What all of the measurement might cost.
    pub(crate) max_overhead: f64,
    /// It was for the gs base, not for the costs.
    pub(crate) own_gs: bool,
}

/// What a metric becomes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lowered {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) metric: String,
    pub(crate) focus: String,
    pub(crate) pieces: Vec<Piece>,
    /// Why there are none.
    pub(crate) problem: Option<String>,
    /// Whether it measures something in the program, at this focus or at one of its functions.
    pub(crate) applies: bool,
}

/// A snippet, and what it becomes at a point.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Piece {
    pub(crate) point: &'static str,
    /// Behind the point's instruction.
    pub(crate) after: bool,
    /// How many it goes into.
    pub(crate) functions: u32,
    /// The one whose code is shown.
    pub(crate) function: String,
    pub(crate) snippet: String,
    /// The worst case with all that is needed to get there.
    pub(crate) cycles: Option<f64>,
    pub(crate) ns: Option<f64>,
    pub(crate) why_not: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) code: Vec<Instruction>,
}

/// An instruction of generated code.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Instruction {
    /// The part that begins here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    pub(crate) at: String,
    pub(crate) bytes: String,
    pub(crate) text: String,
}

/// One of the things that `demo` proves.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) pid: i32,
    pub(crate) check: &'static str,
    pub(crate) ok: bool,
    pub(crate) text: String,
}

/// Something to know that stops nothing (standard error).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Warning {
    pub(crate) what: String,
}

/// What went wrong (standard error).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Error {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) what: String,
    pub(crate) hint: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
}

/// An offset as scripts get it.
pub(crate) fn hex(offset: u64) -> String {
    format!("{offset:#x}")
}

/// Nanoseconds as milliseconds.
pub(crate) fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}
