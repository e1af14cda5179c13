//! Requests to the engine and its answers: plain values, no gRPC and no terminal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ingraft_model::{
    Activations, Distribution, Flavor, Focus, Fold, How, MetricInfo, ObjectState, Pid, PointKind, Refusal, Svma, Table,
    Tid,
};
use ingraft_process::Rights;
pub use ingraft_process::{ClockChoice, UnknownClock};

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of journal, locks and cache; must be writable, otherwise nothing starts.
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
    /// The engine's own user: everything that the kernel lets the engine do.
    Engine,
    /// A peer on a socket: only targets that this user could trace itself without any capability (ptrace(2)).
    User {
        /// User id of the peer. Root is [`Caller::Engine`].
        uid: u32,
        /// Group id of the peer.
        gid: u32,
    },
}

impl Caller {
    /// Rights with which targets are opened and touched for this caller.
    pub fn rights(self) -> Rights {
        match self {
            Caller::Engine | Caller::User { uid: 0, .. } => Rights::All,
            Caller::User { uid, gid } => Rights::User { uid, gid },
        }
    }
}

/// Choice of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// The process of an id.
    Pid(Pid),
    /// The only process whose comm, or base name of argv\[0\] or of the executable, is this.
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
    /// Why it cannot be attached to and what would allow it; `None` if it can.
    pub denied: Option<Denied>,
    /// Process id of the parent; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Arguments with blanks in between, or what the process has written over them, cut to 256 bytes.
    pub title: String,
    /// Whether it is a fork child that is measured with its parent.
    pub with_parent: bool,
}

/// Conditions on a process; all that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFilter {
    /// A glob over the command name and the base name of the first argument.
    pub glob: Option<String>,
    /// The command name, or the base name of the first argument or of the executable.
    pub name: Option<String>,
    /// A control group; processes of the groups below it are meant as well.
    pub cgroup: Option<String>,
}

/// Reason for a refusal, and what would allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// One line with the reason.
    pub why: String,
    /// One line with the remedy.
    pub hint: String,
}

/// One function of a target.
#[derive(Clone, Debug)]
pub struct FunctionEntry {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name (demangled).
    pub function: String,
    /// Address of its first byte in the file.
    pub offset: Svma,
    /// Size in bytes, parts included.
    pub size: u64,
    /// For each kind of point: how many there are, how they are reached, and why not if they are not all.
    pub points: Vec<PointSummary>,
    /// Number of exits that jump to another function.
    pub tail_exits: u32,
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

/// A symbol in text without a type (`STT_NOTYPE`), of which nothing shows that a function begins there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntypedSymbol {
    /// Base name of the mapped file.
    pub module: String,
    /// Name (demangled).
    pub name: String,
    /// Address in the file.
    pub offset: Svma,
    /// The function that it lies inside of; `None` if that is none.
    pub inside: Option<String>,
}

/// The points of one kind of one function.
#[derive(Clone, Debug)]
pub struct PointSummary {
    /// The kind.
    pub kind: PointKind,
    /// Number of points.
    pub count: u32,
    /// Way in which they are reached.
    pub how: How,
    /// The reason when not all are.
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

/// Request for a measurement in one target, inserted in one stop.
#[derive(Clone, Debug)]
pub struct EnableRequest {
    /// Process to measure.
    pub target: TargetSpec,
    /// Metric-focus pairs.
    pub pairs: Vec<Arc<MetricFocus>>,
    /// Functions by name, glob, `MODULE:GLOB` or `MODULE+0xOFFSET`; each match becomes a pair of `function_metric` and its own focus.
    pub functions: Vec<String>,
    /// The metric for `functions`, usually `calls`.
    pub function_metric: String,
    /// Additional MDL sources (name, text) that apply to this request only.
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`: definitions of these flavors exist for it.
    pub flavors: Vec<Flavor>,
    /// Keep it when the client goes away, and over the end of the engine.
    pub keep: bool,
    /// Limit of the cost of its pairs that do more than count, in percent of one processor; `None`: [`Config::max_overhead`].
    pub max_overhead: Option<f64>,
    /// Whether its definitions may call functions of the target, at places that their authors did not plan.
    pub allow_calls: bool,
    /// Measure fork children of the target with it, from their birth on, as if they were threads of it. Where that cannot be the target alone
    /// is measured.
    pub family: bool,
    /// The most pairs that the request may have once its patterns are resolved; `None`: any number. The request is refused before
    /// the target is touched. A measurement may grow beyond it when libraries are loaded.
    pub max_pairs: Option<usize>,
    /// Whether modules that are named and not loaded are waited for. A program that is started is always waited for in this way.
    pub await_modules: bool,
}

/// Request to start a program and to measure it from its first instruction on.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The measurement; `target` is ignored.
    pub enable: EnableRequest,
    /// Standard streams: inherited from the engine's process (command line) or /dev/null (daemon).
    pub inherit_streams: bool,
}

/// Identifies a measurement (one [`EnableRequest`] that succeeded) in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeasurementId(pub u64);

/// A pair of a measurement.
#[derive(Clone, Debug)]
pub struct PairInfo {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Unit and aggregate of the metric.
    pub metric: Arc<MetricInfo>,
    /// The one function that the focus names, if it does: module, name, offset.
    pub function: Option<FunctionRef>,
    /// Points woven for it.
    pub points: u32,
    /// Functions of the focus that are not counted (the value is lower by their calls), each with its reason.
    pub refused: Vec<RefusedFunction>,
    /// Set if the value is exact only from this Unix time in nanoseconds on: a module was loaded, or may have been, before it could be measured.
    pub exact_since_ns: Option<u64>,
}

impl PairInfo {
    /// A pair of which nothing else is known yet: no function, no point, no refusal.
    pub(crate) fn new(pair: Arc<MetricFocus>, metric: Arc<MetricInfo>) -> Self {
        PairInfo { pair, metric, function: None, points: 0, refused: Vec::new(), exact_since_ns: None }
    }
}

/// A function by module, name, and offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name.
    pub function: String,
    /// Address of its first byte in the file.
    pub offset: Svma,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug)]
pub struct RefusedFunction {
    /// The function that is not measured.
    pub function: FunctionRef,
    /// Reason for that.
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
    /// Arguments with blanks in between, or what the process has written over them, at the insertion; cut to 256 bytes.
    pub title: String,
    /// Whether this attached the engine to the target (first measurement there) or changed what was there.
    pub attached: bool,
    /// Threads of the target at the stop.
    pub threads: u32,
    /// Images mapped in the target.
    pub modules: u32,
    /// Functions known in the images that were looked at.
    pub functions: u32,
    /// Points woven by this request.
    pub points: u32,
    /// Unix time in nanoseconds at the end of the insertion.
    pub since_ns: u64,
    /// Time from the start of the request to the last springboard.
    pub attach_time: Duration,
    /// The longest time any thread was held in one piece.
    pub stopped: Duration,
    /// Pairs of the measurement, in the order of its values.
    pub pairs: Arc<Vec<PairInfo>>,
    /// Matches of `functions` that are not measured.
    pub refused: Vec<RefusedFunction>,
    /// The calls that were in progress.
    pub caught_up: CaughtUp,
    /// Warnings, one line each.
    pub warnings: Vec<String>,
}

/// Outcome for the calls that were in progress when code was inserted. All 0 if no state of any metric depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// Calls whose flags, timers and other states are what they would have been had the code been there when they began.
    pub calls: u64,
    /// Calls of which something is missing, by the reason: their exits are unseen.
    pub missed: BTreeMap<Uncaught, u64>,
    /// Threads whose stack could not be looked at to its end. What they have in progress beyond that is unseen.
    pub not_unwound: u32,
}

/// Why a call in progress stays as if it had not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Uncaught {
    /// The entry's code needs an argument of the call, which may be gone.
    #[error("their arguments are not known any more")]
    Arguments,
    /// The entry's code needs what the program's memory held when the call began.
    #[error("what memory held then is not known any more")]
    Memory,
    /// The entry's code needs the time when the call began.
    #[error("when they began is not known")]
    Begin,
    /// The thread has no shard and can get none: it uses gs itself, has no id yet, or all shards are taken.
    #[error("their threads have no counters of their own")]
    NoShard,
    /// The call is on another stack than the one on which the thread began.
    #[error("they are on another stack than the calls around them")]
    OtherStack,
    /// The measurement has calls open in that thread already, into which this one cannot be put.
    #[error("they are around calls that are measured already")]
    Mixed,
}

/// The value of one pair. Small, as there may be thousands, most of them mere numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Cumulative value since the request; of a histogram, the number of its values.
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
    /// The values by key of a vector.
    pub keys: Option<Keys>,
    /// State of the object that the focus names, from a list of objects that is measured as well.
    pub object: Option<ObjectState>,
    /// Calls whose values are missing.
    pub activations: Activations,
    /// Values of each thread, ended ones too. Empty unless asked for.
    pub threads: Vec<ThreadValue>,
    /// The value is what it was then: its code was taken out.
    pub taken_out: Option<TakenOut>,
    /// The event was counted in a part of the time only.
    pub counted: Option<Counted>,
    /// Nanoseconds that the machine has slept while the value was measured by the time stamp counter, which may have counted them or begun anew.
    pub slept_ns: u64,
}

impl Details {
    /// Details of a mere number.
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
    /// Of a list of objects: number of operations on objects for which a thread's table had no place, so that they may be missing here.
    pub unlisted: u64,
}

/// The value of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The number by which the code named it.
    pub key: u64,
    /// The variable of which it is the address, or an address inside: `lock`, `file.c:lock+0x28`, `libx:lock`.
    pub name: Option<String>,
    /// Cumulative value since the request; in a list of objects 1, and 0 once the object is retired.
    pub value: i64,
    /// State of the object at this address, from a list of objects that is measured as well.
    pub object: Option<ObjectState>,
}

impl Keys {
    /// Most keys that are told apart in an answer.
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

/// Time for which an event was counted that shares the processor's counters with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Nanoseconds in which threads ran and it was to be counted.
    pub enabled_ns: u64,
    /// Nanoseconds of these in which it was.
    pub running_ns: u64,
}

/// An event that the kernel or the processor counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEntry {
    /// Name of the event, as `perf list` has it.
    pub name: String,
    /// Other names that mean the same.
    pub aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the unit that counts it.
    pub group: String,
    /// Why it cannot be counted on this machine.
    pub problem: Option<String>,
    /// Way in which a thread reads it at points; `None` if it cannot.
    pub at_points: Option<String>,
}

/// Why a pair's code was taken out of its target: it cost more than it might, or the program uses the gs base, by which code finds its
/// counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOut {
    /// Unix time in nanoseconds of the removal.
    pub time_ns: u64,
    /// Runs of its code per second; of several snippets the one that ran most often.
    pub hits_per_s: u64,
    /// Cost in nanoseconds of processor time in a second (ten million are one percent of a processor).
    pub cost_ns_per_s: u64,
    /// Limit of the cost of its measurement, in the same unit.
    pub limit_ns_per_s: u64,
    /// A library was loaded that uses the gs base itself; the costs are 0 then.
    pub own_gs: bool,
}

/// Pairs that [`Costs`] tells one by one.
pub const PAIRS_TOLD: usize = 100;

/// Costs of the woven code of a target: each run counts with its worst case.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Nanoseconds of processor time in a second that it takes if it runs on as often as lately.
    pub cost_ns_per_s: f64,
    /// Nanoseconds of processor time that it has taken, per second since the first insertion.
    pub observed_ns_per_s: f64,
    /// Share of the processor time that the target has used since; `None` if the target has used none or that is not known.
    pub of_target: Option<f64>,
    /// Number of pairs.
    pub pair_count: u32,
    /// The dearest pairs, at most [`PAIRS_TOLD`].
    pub pairs: Vec<PairCost>,
}

/// Costs of one pair.
#[derive(Clone, Debug)]
pub struct PairCost {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Nanoseconds that each of its snippets takes at worst when it runs once, added up: for a time, those at entry and exit.
    pub hit_ns: f64,
    /// Latest rate of its code per second; of several snippets the one that ran most often.
    pub hits_per_s: f64,
    /// Nanoseconds of processor time in a second that it takes if that goes on.
    pub cost_ns_per_s: f64,
    /// Nanoseconds of processor time that it has taken.
    pub observed_ns: f64,
}

/// Request for the code of metrics and its costs.
#[derive(Clone, Debug, Default)]
pub struct LowerRequest {
    /// Public names; none: all that are known.
    pub metrics: Vec<String>,
    /// Focus; `None`: one function if the metric can be restricted to one, otherwise the whole program.
    pub focus: Option<Focus>,
    /// Process; `None`: a function as compilers write many.
    pub target: Option<TargetSpec>,
    /// Additional MDL sources (name, text).
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`.
    pub flavors: Vec<Flavor>,
    /// Whether the machine code is wanted.
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
    /// Why it cannot be used there.
    pub problem: Option<String>,
    /// Whether it measures something in the program: at the focus or, if it has code for a part of the program only, at one of its functions.
    pub applies: bool,
}

/// A snippet, and what it becomes at a point.
#[derive(Clone, Debug)]
pub struct LoweredPiece {
    /// The kind of its points.
    pub point: PointKind,
    /// Number of functions that it goes into.
    pub functions: u32,
    /// The function whose code is shown.
    pub function: String,
    /// The snippet as text.
    pub snippet: String,
    /// The worst case with all that is needed to get there, in cycles of a core of this machine; `None` if it cannot be woven.
    pub cycles: Option<f64>,
    /// The same in nanoseconds.
    pub ns: Option<f64>,
    /// Instructions, if they were wanted.
    pub code: Vec<LoweredLine>,
    /// Why it cannot be woven.
    pub refused: Option<Refusal>,
}

/// An instruction of generated code.
#[derive(Clone, Debug)]
pub struct LoweredLine {
    /// The part of the code that begins here; empty: none does.
    pub label: String,
    /// Address of the instruction; without a target, an address that nothing has.
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
    /// Process of the thread, if that is a fork child; `None`: the target, or a child that ended before it was looked at.
    pub pid: Option<Pid>,
    /// Cumulative value since the request; of a histogram, the number of its values.
    pub value: i64,
    /// Distribution of a histogram's values, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// Calls whose values are missing.
    pub activations: Activations,
}

/// The values of a measurement at one time, in the order of [`Enabled::pairs`].
#[derive(Clone, Debug)]
pub struct Reading {
    /// Unix time in nanoseconds.
    pub time_ns: u64,
    /// One per pair.
    pub values: Vec<Value>,
    /// End of the target, if it ended.
    pub ended: Option<Ended>,
}

/// End of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit status, if it exited and the engine may know (its child).
    pub status: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// The process went on as another program (exec); the measured program is gone.
    pub exec: bool,
}

/// Answer to a removal.
#[derive(Clone, Debug)]
pub struct Removed {
    /// The target.
    pub pid: Pid,
    /// The longest time any thread was held in one piece.
    pub stopped: Duration,
    /// Whether the text was compared with the original after the removal and was equal. Also true when the target is gone.
    pub text_restored: bool,
    /// Fork children that could not be restored.
    pub children_left: Vec<Pid>,
    /// Arenas and data area are still mapped, and nothing leads there: something may return to them or keeps a gs base. The holder unmaps them as soon
    /// as that is over, or whoever comes next.
    pub memory_left: bool,
    /// The threads on which that waits, as far as it waits on threads that sleep in the kernel.
    pub asleep: Vec<Tid>,
    /// Activations in progress at insertion and at removal that corrections account for (0 for plain counts).
    pub corrections: (u64, u64),
    /// Pairs of the measurement, if they differ from those of the insertion: libraries were loaded since.
    pub grown: Option<Arc<Vec<PairInfo>>>,
    /// The last values, read in the stop of the removal.
    pub last: Option<Reading>,
    /// Changes by others to the code: why it is not as it was, or what was put right.
    pub warnings: Vec<String>,
    /// Patterns and foci that matched no function until the end.
    pub awaited: Vec<String>,
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
    /// Woven points.
    pub points: u32,
    /// Bytes of code in the target's arenas.
    pub code_bytes: u64,
    /// Unix time in nanoseconds of the first insertion.
    pub since_ns: u64,
    /// Way in which threads are told apart, in words.
    pub identity: String,
    /// Costs of the code; `None` if they are not known: the code is another engine's, or was taken over from one.
    pub costs: Option<Costs>,
    /// Measurements of this engine there.
    pub measurements: Vec<MeasurementId>,
    /// Measurements of this engine that are to stay without a client.
    pub kept_measurements: Vec<MeasurementId>,
    /// Number of measurements that are to stay without a client, also of another engine.
    pub kept: u32,
    /// Changes by others to woven code.
    pub warnings: Vec<String>,
}
