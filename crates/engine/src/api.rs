//! Requests to the engine and its answers, as plain values without gRPC or a terminal.

mod code;
mod kind;

pub use self::code::*;
pub use self::kind::*;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ingraft_model::{
    Activations, Avma, BlockEvents, Distribution, EVENT_NAMES, EdgeKind, Flavor, Focus, Fold, How, MetricInfo,
    ObjectState, Pid, PointKind, Refusal, Svma, Table, Tid,
};
use ingraft_process::Rights;
pub use ingraft_process::{ClockChoice, HoldTime, UnknownClock, inherited};
pub use ingraft_profile::{Earlier, EarlierProfile};
use ingraft_report::{Chunk, SavedProfile, TraceEnd};

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of the journal, the locks and the cache. The engine does not start unless the directory is writable.
    pub state_dir: PathBuf,
    /// Name of the holder in `status`: `ingraft` or `ingraftd`.
    pub program: String,
    /// Limit of the cost of a measurement that names none of its own, in percent of one processor.
    pub max_overhead: f64,
    /// Clock of timers.
    pub clock: ClockChoice,
}

/// Limit of the cost of a measurement if none is configured, in percent of one processor.
pub const MAX_OVERHEAD: f64 = 5.0;

/// Party on whose behalf a request comes. The daemon checks callers with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The engine's own user, with all rights that the kernel grants the engine.
    Engine,
    /// A peer on a socket, with access only to targets that this user could trace itself without any capability (ptrace(2)).
    User {
        /// User id of the peer. Root is [`Caller::Engine`].
        uid: u32,
        /// Group id of the peer.
        gid: u32,
    },
}

impl Caller {
    /// Rights with which the engine opens and changes targets for this caller.
    pub fn rights(self) -> Rights {
        match self {
            Caller::Engine | Caller::User { uid: 0, .. } => Rights::All,
            Caller::User { uid, gid } => Rights::User { uid, gid },
        }
    }
}

/// Name or id that selects one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// The process with this id.
    Pid(Pid),
    /// The only process with this comm, or this base name of argv\[0\] or of the executable.
    Name(String),
}

/// A process as `ps` lists it.
#[derive(Clone, Debug)]
pub struct ProcessEntry {
    /// Process id.
    pub pid: Pid,
    /// Command name (comm).
    pub name: String,
    /// Real user id.
    pub uid: u32,
    /// Reason why the process cannot be attached to, and the remedy; `None` if it can.
    pub denied: Option<Denied>,
    /// Process id of the parent; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Arguments separated by blanks, or the text that the process has written over them, cut to 256 bytes.
    pub title: String,
    /// Whether the process is a fork child that is measured with its parent.
    pub with_parent: bool,
}

/// Conditions on a process; every condition that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// A glob over the command name and the base name of the first argument.
    pub glob: Option<String>,
    /// The command name, or the base name of the first argument or of the executable.
    pub name: Option<String>,
    /// Path of a control group; processes of the groups below it match too.
    pub cgroup: Option<String>,
}

/// Reason for a refusal, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Reason in one line.
    pub why: String,
    /// Remedy in one line.
    pub hint: String,
}

/// One function of a target.
#[derive(Clone, Debug)]
pub struct FunctionEntry {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name (demangled).
    pub function: String,
    /// Address of the function's first byte in the file.
    pub offset: Svma,
    /// Size in bytes, parts included.
    pub size: u64,
    /// Summary of each kind of point.
    pub points: Vec<PointSummary>,
    /// Number of exits that jump to another function.
    pub tail_exits: u32,
    /// Whether a uprobe that is set on the function while its entry is woven would kill the program.
    pub exposed: bool,
}

/// The functions of a target.
#[derive(Clone, Debug)]
pub struct FunctionList {
    /// The process.
    pub pid: Pid,
    /// The functions, in the order of the patterns.
    pub functions: Vec<FunctionEntry>,
    /// Symbols that the patterns match and that are not listed as functions.
    pub untyped: Vec<UntypedSymbol>,
}

/// A symbol in text without a type (`STT_NOTYPE`) at which nothing shows that a function begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntypedSymbol {
    /// Base name of the mapped file.
    pub module: String,
    /// Name (demangled).
    pub name: String,
    /// Address in the file.
    pub offset: Svma,
    /// Name of the function that contains the symbol's address; `None` if no function does.
    pub inside: Option<String>,
}

/// The points of one kind of one function.
#[derive(Clone, Debug)]
pub struct PointSummary {
    /// Kind of the points.
    pub kind: PointKind,
    /// Number of points.
    pub count: u32,
    /// Way in which the points are reached.
    pub how: How,
    /// Reason why some points cannot be reached; `None` if all can.
    pub why_not: Option<Refusal>,
}

/// A metric measured at a focus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MetricFocus {
    /// Public name of the metric.
    pub metric: String,
    /// Restriction of the metric to a part of the program.
    pub focus: Focus,
}

/// Longest time for which one step of an insertion holds the target's threads if the request does not say otherwise.
pub const MAX_HOLD: Duration = Duration::from_millis(50);

/// Request for a measurement in one target, inserted in one stop.
#[derive(Clone, Debug)]
pub struct EnableRequest {
    /// Process to measure.
    pub target: TargetSpec,
    /// Metric-focus pairs to measure, in addition to those that `functions` adds.
    pub pairs: Vec<Arc<MetricFocus>>,
    /// Functions by name, glob, `MODULE:GLOB` or `MODULE+0xOFFSET`; each match becomes a pair of each of `function_metrics` and its own focus.
    pub functions: Vec<String>,
    /// The metrics for `functions`, at least one, usually `calls`. If the first one only counts and the program runs, the others are inserted
    /// after the functions were counted for a tenth of a second. Pairs that would exceed the limit of the cost then get no code.
    pub function_metrics: Vec<String>,
    /// Additional MDL sources (name, text) that apply to this request only.
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`: definitions of these flavors exist for it.
    pub flavors: Vec<Flavor>,
    /// Whether the measurement stays when the client or the engine ends.
    pub keep: bool,
    /// Limit of the cost of those pairs that do more than count, in percent of one processor; `None` for [`Config::max_overhead`].
    pub max_overhead: Option<f64>,
    /// Longest time for which one step of the insertion may hold the target's threads, without the time in which no processor was free for
    /// them; `None` for [`MAX_HOLD`]. See `Target::bound_holds` of `ingraft_process`.
    pub max_hold: Option<Duration>,
    /// Whether the definitions may call functions of the target, at places that the functions' authors did not plan.
    pub allow_calls: bool,
    /// Whether functions are refused that a uprobe of another tool would endanger while they are woven. This holds for the target from then
    /// on.
    pub beside_uprobes: bool,
    /// Whether fork children of the target are measured with it from their birth on, as if they were threads of it. If that is not
    /// possible, only the target is measured.
    pub family: bool,
    /// Largest number of pairs that the request may have once its patterns are resolved; `None` for any number. A request with more is
    /// refused before the target is touched. A measurement may grow beyond the limit when libraries are loaded.
    pub max_pairs: Option<usize>,
    /// Whether the engine waits for modules that the request names and that are not loaded. For a program that it starts, it always does.
    pub await_modules: bool,
    /// Kind of the measurement.
    pub kind: Kind,
}

/// The end of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRest {
    /// The last tokens.
    pub chunks: Vec<Chunk>,
    /// The end of the file.
    pub end: TraceEnd,
}

/// An inclusive total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InclusiveTotal {
    /// Number of events; `None` if it is not known.
    pub events: Option<u64>,
    /// Reason why the number is not exact, or not known; `None` if it is exact.
    pub inexact: Option<String>,
}

/// Request to start a program and to measure it from its first instruction on.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The measurement; `target` is ignored.
    pub enable: EnableRequest,
    /// Longest time for which a thread of the program that has mapped a library waits until the library is woven; `None` for 10 s.
    pub loader_patience: Option<Duration>,
    /// Whether the program inherits the standard streams of the engine's process (command line); otherwise it gets /dev/null (daemon).
    pub inherit_streams: bool,
}

/// Number of a measurement (one [`EnableRequest`] that succeeded) in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeasurementId(pub u64);

/// A pair of a measurement.
#[derive(Clone, Debug)]
pub struct PairInfo {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Unit and aggregate of the metric.
    pub metric: Arc<MetricInfo>,
    /// The function that the focus names (module, name, offset); `None` if the focus does not name exactly one.
    pub function: Option<FunctionRef>,
    /// Kinds of the edges that the focus names, each once; empty if it names no edge, or if a dead engine has woven the pair.
    pub edge_kinds: Vec<EdgeKind>,
    /// Number of points that are woven for the pair.
    pub points: u32,
    /// Functions of the focus that are not measured, each with the reason; the value lacks their calls.
    pub refused: Vec<RefusedFunction>,
    /// Unix time in nanoseconds from which on the value is exact, if that is later than the insertion: a module was loaded, or may have
    /// been, before it could be measured.
    pub exact_since_ns: Option<u64>,
    /// Whether code lies over the first instruction of a function of the focus, so that a uprobe that is set there would kill the program.
    pub exposed: bool,
}

impl PairInfo {
    /// A pair of which nothing else is known yet: no function, no point, no refusal.
    pub(crate) fn new(pair: Arc<MetricFocus>, metric: Arc<MetricInfo>) -> Self {
        PairInfo {
            pair,
            metric,
            function: None,
            edge_kinds: Vec::new(),
            points: 0,
            refused: Vec::new(),
            exact_since_ns: None,
            exposed: false,
        }
    }
}

/// A function by module, name, and offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name.
    pub function: String,
    /// Address of the function's first byte in the file.
    pub offset: Svma,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug)]
pub struct RefusedFunction {
    /// The function that is not measured.
    pub function: FunctionRef,
    /// Reason why the function is not measured.
    pub reason: Refusal,
}

/// Answer to an [`EnableRequest`].
#[derive(Clone, Debug)]
pub struct Enabled {
    /// Id of the measurement.
    pub id: MeasurementId,
    /// The target.
    pub pid: Pid,
    /// Process id of the parent at the insertion; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Arguments at the insertion, separated by blanks, or the text that the process has written over them, cut to 256 bytes.
    pub title: String,
    /// Whether this was the first measurement in the target, so that it attached the engine.
    pub attached: bool,
    /// Number of threads of the target at the stop.
    pub threads: u32,
    /// Number of images mapped in the target.
    pub modules: u32,
    /// Number of functions known in the images that were analysed.
    pub functions: u32,
    /// Number of points that this request wove.
    pub points: u32,
    /// Unix time in nanoseconds at the end of the insertion.
    pub since_ns: u64,
    /// Time from the start of the request to the last springboard.
    pub attach_time: Duration,
    /// The longest time that any thread was held without interruption.
    pub stopped: HoldTime,
    /// Pairs of the measurement, in the order of its values.
    pub pairs: Arc<Vec<PairInfo>>,
    /// Matches of `functions` that are not measured.
    pub refused: Vec<RefusedFunction>,
    /// Outcome for the calls that were in progress at the insertion.
    pub caught_up: CaughtUp,
    /// Warnings, one line each.
    pub warnings: Vec<String>,
}

/// Outcome for the calls that were in progress when code was inserted. All 0 if no state of any metric depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// Number of calls whose flags, timers and other states are as if the code had been there when the calls began.
    pub calls: u64,
    /// Numbers of calls whose exits are unseen because a part of their state is missing, by the reason.
    pub missed: BTreeMap<Uncaught, u64>,
    /// Number of threads whose stacks could not be unwound to the end. Their calls beyond that are unseen.
    pub not_unwound: u32,
    /// The activation records that were opened: the thread of each, and the first counter of its activations.
    pub opened: Vec<(Tid, u32)>,
}

/// Reason why a call in progress stays as if it had not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Uncaught {
    /// The entry's code needs an argument of the call, which may be gone.
    #[error("their arguments are not known any more")]
    Arguments,
    /// The entry's code needs a value that the program's memory held when the call began.
    #[error("what memory held then is not known any more")]
    Memory,
    /// The entry's code needs the time at which the call began.
    #[error("when they began is not known")]
    Begin,
    /// The thread has no shard and can get none: it uses gs itself, has no id yet, or all shards are taken.
    #[error("their threads have no counters of their own")]
    NoShard,
    /// The call is on another stack than the one on which the thread began.
    #[error("they are on another stack than the calls around them")]
    OtherStack,
    /// The measurement already has open calls in that thread, and this call cannot be ordered among them.
    #[error("they are around calls that are measured already")]
    Mixed,
}

/// The value of one pair. The type is small because there may be thousands of values, and most of them are mere numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Details of the value; never [`Details::NONE`].
    details: Option<Box<Details>>,
}

impl Value {
    /// A value with its details.
    pub fn new(value: i64, details: Details) -> Self {
        Value { value, details: (details != Details::NONE).then(|| Box::new(details)) }
    }

    /// Details of the value.
    pub fn details(&self) -> &Details {
        static NONE: Details = Details::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value { value, details: None }
    }
}

/// Details of a value besides its number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Values by key, for a vector.
    pub keys: Option<Keys>,
    /// State of the object that the focus names; `None` unless a list of objects that contains it is measured in the target.
    pub object: Option<ObjectState>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
    /// Values of each thread, including ended ones. Empty unless asked for.
    pub threads: Vec<ThreadValue>,
    /// Set if the code of the pair was taken out; the value has not changed since.
    pub taken_out: Option<TakenOut>,
    /// Set if the event was counted for a part of the time only.
    pub counted: Option<Counted>,
    /// Time in nanoseconds that the machine has slept while the time stamp counter timed the value. The counter may have counted that time
    /// or restarted.
    pub slept_ns: u64,
}

impl Details {
    /// Details of a value that is only a number.
    pub const NONE: Details = Details {
        distribution: None,
        keys: None,
        object: None,
        activations: Activations { left: 0, unseen: 0, unrecorded: 0, left_by_tail_jump: 0 },
        threads: Vec::new(),
        taken_out: None,
        counted: None,
        slept_ns: 0,
    };
}

/// Values by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Values of keys, the largest first, at most [`Keys::MAX`].
    pub values: Vec<KeyValue>,
    /// Sum of all other keys: those beyond [`Keys::MAX`], and those for which a thread's table had no place.
    pub others: i64,
    /// For a list of objects, the number of operations on objects for which a thread's table had no place. Such objects may be missing
    /// here.
    pub unlisted: u64,
}

/// The value of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, as a number that the code computed.
    pub key: u64,
    /// The variable at whose address, or inside of which, the key points: `lock`, `file.c:lock+0x28`, `libx:lock`.
    pub name: Option<String>,
    /// Cumulative value since the request; in a list of objects 1, and 0 once the object is retired.
    pub value: i64,
    /// State of the object at this address; `None` unless a list of objects that contains it is measured in the target.
    pub object: Option<ObjectState>,
}

impl Keys {
    /// Largest number of keys in an answer.
    pub const MAX: usize = 1000;
}

impl From<&Table> for Keys {
    fn from(table: &Table) -> Self {
        let (mut values, others, unlisted): (Vec<KeyValue>, i64, u64) = match table.fold {
            Fold::Sum => {
                let each = |(&key, &value): (&u64, &i64)| KeyValue { key, value, ..KeyValue::default() };
                (table.values.iter().map(each).collect(), table.others, 0)
            }
            Fold::Last => {
                let each = |(key, state): (u64, ObjectState)| KeyValue {
                    key,
                    value: i64::from(!state.retired),
                    object: Some(state),
                    ..KeyValue::default()
                };
                (table.states().map(each).collect(), 0, table.others.cast_unsigned())
            }
        };
        values.sort_by_key(|v| (std::cmp::Reverse(v.value), v.object, v.key));
        let beyond = values.split_off(values.len().min(Keys::MAX));
        Keys { values, others: beyond.iter().fold(others, |sum, v| sum.wrapping_add(v.value)), unlisted }
    }
}

/// Time for which an event was counted. Events that share the processor's counters are counted in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Time in nanoseconds in which threads ran while the event was to be counted.
    pub enabled_ns: u64,
    /// Part of that time, in nanoseconds, in which the event was counted.
    pub running_ns: u64,
}

/// An event that the kernel or the processor counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEntry {
    /// Name of the event, as `perf list` has it.
    pub name: String,
    /// Other names of the same event.
    pub aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the name of the unit that counts the event.
    pub group: String,
    /// Reason why this machine cannot count the event; `None` if it can.
    pub problem: Option<String>,
    /// Way in which a thread reads the event at points; `None` if no thread can.
    pub at_points: Option<String>,
}

/// Details about the removal of a pair's code. The pair cost more than allowed, the program uses the gs base, by which code finds its
/// counters, or the program has changed a function that ran as a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOut {
    /// Unix time in nanoseconds of the removal.
    pub time_ns: u64,
    /// Runs of the pair's code per second; of several snippets, those of the one that ran most often.
    pub hits_per_s: u64,
    /// Cost in nanoseconds of processor time per second (ten million are one percent of a processor).
    pub cost_ns_per_s: u64,
    /// Limit of the cost of the pair's measurement, in the same unit.
    pub limit_ns_per_s: u64,
    /// Whether the reason was a library or a signal handler beside which woven code must not run: the library uses the gs base itself, or
    /// unwinders may begin at any instruction, or the handler may end its thread. The costs are 0 then.
    pub own_gs: bool,
    /// Whether the reason was that the program has changed the code of a function that ran as a copy; the costs are 0 then.
    pub rewritten: bool,
}

impl TakenOut {
    /// A removal at this Unix time in nanoseconds for which the cost was no reason.
    pub fn free(time_ns: u64) -> Self {
        TakenOut { time_ns, hits_per_s: 0, cost_ns_per_s: 0, limit_ns_per_s: 0, own_gs: false, rewritten: false }
    }
}

/// Largest number of pairs that [`Costs`] lists.
pub const PAIRS_TOLD: usize = 100;

/// Costs of the woven code of a target; each run is charged with its worst case.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Predicted cost in nanoseconds of processor time per second, by the latest frequencies.
    pub cost_ns_per_s: f64,
    /// Observed cost in nanoseconds of processor time per second since the first insertion.
    pub observed_ns_per_s: f64,
    /// Observed cost as a share of the processor time that the target has used since the first insertion; `None` if the target has used
    /// none, or if that time is not known.
    pub of_target: Option<f64>,
    /// Number of pairs.
    pub pair_count: u32,
    /// The pairs with the highest costs, at most [`PAIRS_TOLD`].
    pub pairs: Vec<PairCost>,
}

/// Costs of one pair.
#[derive(Clone, Debug)]
pub struct PairCost {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Worst-case time of one run of each of the pair's snippets, summed, in nanoseconds; for a time, the snippets at entry and exit.
    pub hit_ns: f64,
    /// Latest runs of the pair's code per second; of several snippets, those of the one that ran most often.
    pub hits_per_s: f64,
    /// Predicted cost in nanoseconds of processor time per second, at the latest rate.
    pub cost_ns_per_s: f64,
    /// Observed cost so far, in nanoseconds of processor time.
    pub observed_ns: f64,
}

/// Request for the code of metrics and its costs.
#[derive(Clone, Debug, Default)]
pub struct LowerRequest {
    /// Public names of the metrics; empty for all known metrics.
    pub metrics: Vec<String>,
    /// Focus; `None` for one function if the metric can be restricted to one, otherwise for the whole program.
    pub focus: Option<Focus>,
    /// Process; `None` for a generic function of a form that compilers often emit.
    pub target: Option<TargetSpec>,
    /// Additional MDL sources (name, text).
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`.
    pub flavors: Vec<Flavor>,
    /// Whether the answer contains the machine code.
    pub code: bool,
}

/// Code of a metric.
#[derive(Clone, Debug)]
pub struct LoweredMetric {
    /// Public name.
    pub metric: String,
    /// The focus that was used.
    pub focus: Focus,
    /// Snippets of the metric, each once, in the order of the text.
    pub pieces: Vec<LoweredPiece>,
    /// Reason why the metric cannot be measured at the focus; `None` if it can.
    pub problem: Option<String>,
    /// Whether the metric measures something in the program: at the focus or, if it has code for a part of the program only, at one of the
    /// program's functions.
    pub applies: bool,
}

/// A snippet, and the code that it is lowered to at a point.
#[derive(Clone, Debug)]
pub struct LoweredPiece {
    /// Kind of the points that the snippet is for.
    pub point: PointKind,
    /// Number of functions that the snippet goes into.
    pub functions: u32,
    /// Name of the function whose code is shown.
    pub function: String,
    /// The snippet as text.
    pub snippet: String,
    /// Worst case in cycles of a core of this machine, including the code on the way to the snippet; `None` if the snippet cannot be woven.
    pub cycles: Option<f64>,
    /// The same worst case in nanoseconds.
    pub ns: Option<f64>,
    /// Instructions of the code; empty unless asked for.
    pub code: Vec<LoweredLine>,
    /// Reason why the snippet cannot be woven.
    pub refused: Option<Refusal>,
}

/// An instruction of generated code.
#[derive(Clone, Debug)]
pub struct LoweredLine {
    /// Name of the part of the code that begins at this instruction; empty if none does.
    pub label: String,
    /// Address of the instruction; without a target, an address that no process uses.
    pub at: u64,
    /// Bytes of the instruction.
    pub bytes: Vec<u8>,
    /// Text of the instruction in the syntax of Intel's manuals.
    pub text: String,
}

/// The value of one pair in one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadValue {
    /// Thread id; `None` for threads that could not be told apart.
    pub tid: Option<Tid>,
    /// Process of the thread if the thread belongs to a fork child; `None` for the target, or for a child that ended before it was noticed.
    pub pid: Option<Pid>,
    /// Cumulative value since the request; for a histogram, the number of its values.
    pub value: i64,
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Numbers of calls whose values are missing.
    pub activations: Activations,
}

/// The values of a measurement at one time, in the order of [`Enabled::pairs`].
#[derive(Clone, Debug)]
pub struct Reading {
    /// Unix time in nanoseconds.
    pub time_ns: u64,
    /// One value for each pair.
    pub values: Vec<Value>,
    /// End of the target; `None` if the target has not ended.
    pub ended: Option<Ended>,
}

/// End of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit status; `None` if a signal killed the target, or if the target is not a child of the engine. Only a parent learns the status.
    pub status: Option<i32>,
    /// Number of the signal that killed the target; `None` if none did, or if the target is not a child of the engine.
    pub signal: Option<i32>,
    /// Whether the process continued as another program (exec); the measured program is gone.
    pub exec: bool,
}

/// Answer to a removal.
#[derive(Clone, Debug)]
pub struct Removed {
    /// The target.
    pub pid: Pid,
    /// The longest time that any thread was held without interruption.
    pub stopped: HoldTime,
    /// Whether the text was equal to the original when it was compared after the removal. Also true if the target is gone.
    pub text_restored: bool,
    /// Fork children that could not be restored.
    pub children_left: Vec<Pid>,
    /// Whether arenas and data area are still mapped after the removal, because a thread may return to them or still has a gs base of the
    /// engine. The holder unmaps them once no thread does; if it ends before, the next holder does.
    /// In programs that suspend contexts in signal handlers, they also stay while one may be suspended there, and a warning says so.
    pub memory_left: bool,
    /// The threads that delay the unmapping because they sleep in the kernel.
    pub asleep: Vec<Tid>,
    /// Addresses in the arenas from which suspended contexts may go on, if that alone delays the unmapping; `None` if it does not, or if they
    /// are not known.
    pub suspended_at: Option<Vec<Avma>>,
    /// Numbers of calls in progress at the insertion and at the removal, for which the values are corrected; 0 for plain counts.
    pub corrections: (u64, u64),
    /// Pairs of the measurement if they differ from those of the insertion, because libraries were loaded since.
    pub grown: Option<Arc<Vec<PairInfo>>>,
    /// The last values, read in the stop of the removal.
    pub last: Option<Reading>,
    /// The last counts of a profile; `None` if the measurement is no profile.
    pub profile: Option<Box<ProfileReading>>,
    /// The end of a trace; `None` if the measurement is no trace.
    pub trace: Option<TraceRest>,
    /// Changes that other programs have made to the code: the reason why the code differs from the original, or the places that were
    /// repaired.
    pub warnings: Vec<String>,
    /// Patterns and foci that matched no function of any module that was loaded.
    pub awaited: Vec<String>,
}

/// Details of a profiled function that saved profiles do not have.
#[derive(Clone, Debug, Default)]
pub struct ProfiledFunction {
    /// Preferred name (demangled).
    pub name: String,
    /// Events of one execution of each block, in the order of the blocks.
    pub events: Vec<BlockEvents>,
    /// Inclusive total of the function; without events and reason if there is none.
    pub inclusive: InclusiveTotal,
    /// Inclusive totals of calls that the function makes, each with the block that the call ends; empty if there are none.
    pub calls: Vec<(usize, InclusiveTotal)>,
}

/// The profile of a measurement at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProfileReading {
    /// Counts of all profiled functions.
    pub saved: SavedProfile,
    /// Details of each function of `saved`, in the same order.
    pub details: Vec<ProfiledFunction>,
    /// The inclusive totals that the profile has; `None` if it has none.
    pub inclusive: Option<Inclusive>,
    /// The longest time that any thread was held for the reading; 0 if the target has ended.
    pub held: Duration,
}

/// Event totals of a profile at one moment. Each total counts up to the present instruction of its threads.
#[derive(Clone, Debug, Default)]
pub struct TotalsReading {
    /// Unix time of the reading in nanoseconds.
    pub time_ns: u64,
    /// The longest time that any thread was held for the reading; 0 if the target has ended.
    pub held: Duration,
    /// Number of functions whose events are counted.
    pub functions: usize,
    /// The totals by thread: living threads by their ids, then threads that cannot be told apart, then ended ones together.
    pub threads: Vec<ThreadTotals>,
    /// Reasons why the totals are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
}

/// Event totals of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTotals {
    /// The thread; `None` for several threads together.
    pub tid: Option<Tid>,
    /// Name of the thread; empty if it is not known.
    pub name: String,
    /// Whether the thread, or all of the threads, have ended.
    pub ended: bool,
    /// Numbers of events, in the order of [`ingraft_model::EVENT_NAMES`].
    pub events: [u64; EVENT_NAMES.len()],
}

/// Code and measurements that are inserted in one target.
#[derive(Clone, Debug)]
pub struct Inserted {
    /// The target.
    pub pid: Pid,
    /// Holder of the target, e.g. `ingraft 4711`; a dead holder is named with `(dead)`.
    pub holder: String,
    /// Whether this engine is the holder.
    pub ours: bool,
    /// Number of woven points.
    pub points: u32,
    /// Length of the code in the target's arenas in bytes.
    pub code_bytes: u64,
    /// Unix time in nanoseconds of the first insertion.
    pub since_ns: u64,
    /// Way in which woven code tells threads apart, in words.
    pub identity: String,
    /// Costs of the code; `None` if they are not known, because another engine wove the code.
    pub costs: Option<Costs>,
    /// Measurements of this engine in the target.
    pub measurements: Vec<MeasurementId>,
    /// Measurements of this engine that stay without a client.
    pub kept_measurements: Vec<MeasurementId>,
    /// Number of measurements that stay without a client, including those of another engine.
    pub kept: u32,
    /// Changes that other programs have made to woven code.
    pub warnings: Vec<String>,
}
