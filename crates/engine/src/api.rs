//! What the engine is asked and what it answers: plain values, no gRPC and no terminal.

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

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of journal, locks and cache; must be writable, otherwise nothing starts.
    pub state_dir: PathBuf,
    /// How the holder calls itself in `status`: `ingraft` or `ingraftd`.
    pub program: String,
    /// What a measurement may cost that names no limit of its own, in percent of one processor.
    pub max_overhead: f64,
    /// Which clock timers have.
    pub clock: ClockChoice,
}

/// What a measurement may cost when nobody says anything else, in percent of one processor.
pub const MAX_OVERHEAD: f64 = 5.0;

/// On whose behalf a request comes. The daemon checks callers with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The engine's own user: everything that the kernel lets the engine do.
    Engine,
    /// A peer on a socket: only targets that this user could trace itself without any capability (ptrace(2)).
    User {
        /// Its user id. Root is [`Caller::Engine`].
        uid: u32,
        /// Its group id.
        gid: u32,
    },
}

impl Caller {
    /// With which rights targets are opened and touched for this caller.
    pub fn rights(self) -> Rights {
        match self {
            Caller::Engine | Caller::User { uid: 0, .. } => Rights::All,
            Caller::User { uid, gid } => Rights::User { uid, gid },
        }
    }
}

/// Which process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSpec {
    /// By id.
    Pid(Pid),
    /// By comm, base name of argv\[0\] or of the executable; must be exactly one.
    Name(String),
}

/// A process as `ps` lists it.
#[derive(Clone, Debug)]
pub struct ProcessEntry {
    /// Its id.
    pub pid: Pid,
    /// Its command name.
    pub name: String,
    /// Real user id.
    pub uid: u32,
    /// Why it cannot be attached to and what would allow it; `None` if it can.
    pub denied: Option<Denied>,
    /// Its parent; 0 if that is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Its arguments with blanks in between, or what it has written over them, cut to 256 bytes.
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

/// Why not, and what would allow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// One line what.
    pub why: String,
    /// One line what to do.
    pub hint: String,
}

/// One function of a target.
#[derive(Clone, Debug)]
pub struct FunctionEntry {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name (demangled).
    pub function: String,
    /// Where it begins in the file.
    pub offset: Svma,
    /// Its size in bytes, parts included.
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
    /// Its name (demangled).
    pub name: String,
    /// Its address in the file.
    pub offset: Svma,
    /// The function that it lies inside of; `None` if that is none.
    pub inside: Option<String>,
}

/// The points of one kind of one function.
#[derive(Clone, Debug)]
pub struct PointSummary {
    /// The kind.
    pub kind: PointKind,
    /// How many.
    pub count: u32,
    /// How they are reached.
    pub how: How,
    /// The reason when not all are.
    pub why_not: Option<Refusal>,
}

/// A metric measured at a focus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MetricFocus {
    /// Public name of the metric.
    pub metric: String,
    /// What it is restricted to.
    pub focus: Focus,
}

/// What to measure in one target, inserted in one stop.
#[derive(Clone, Debug)]
pub struct EnableRequest {
    /// Where.
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
    /// What those of its pairs that do more than count may cost, in percent of one processor; `None`: [`Config::max_overhead`].
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

/// What to start and measure from its first instruction on.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// What to measure; `target` is ignored.
    pub enable: EnableRequest,
    /// Standard streams: inherited from the engine's process (command line) or /dev/null (daemon).
    pub inherit_streams: bool,
}

/// Identifies a measurement (one [`EnableRequest`] that succeeded) in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeasurementId(pub u64);

/// What an enabled pair measures.
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

/// A function by module, name, and offset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// Base name of the mapped file.
    pub module: String,
    /// Preferred name.
    pub function: String,
    /// Where it begins in the file.
    pub offset: Svma,
}

/// A function that was asked for and is not measured.
#[derive(Clone, Debug)]
pub struct RefusedFunction {
    /// Which.
    pub function: FunctionRef,
    /// Why.
    pub reason: Refusal,
}

/// Answer to an [`EnableRequest`].
#[derive(Clone, Debug)]
pub struct Enabled {
    /// To read, stream and remove by.
    pub id: MeasurementId,
    /// The target.
    pub pid: Pid,
    /// Its parent at the insertion; 0 if that is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Its arguments with blanks in between, or what it has written over them, at the insertion; cut to 256 bytes.
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
    /// When it was in: Unix time in nanoseconds.
    pub since_ns: u64,
    /// From the start of the request to the last springboard.
    pub attach_time: Duration,
    /// The longest time any thread was held in one piece.
    pub stopped: Duration,
    /// What is measured, in the order of the answer's values.
    pub pairs: Arc<Vec<PairInfo>>,
    /// Matches of `functions` that are not measured.
    pub refused: Vec<RefusedFunction>,
    /// The calls that were in progress.
    pub caught_up: CaughtUp,
    /// One line each.
    pub warnings: Vec<String>,
}

/// What became of the calls that were in progress when code was inserted. All 0 if no state of any metric depends on them.
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
    /// Its code needs an argument of the call, which may be gone.
    #[error("their arguments are not known any more")]
    Arguments,
    /// Its code needs what the program's memory held then.
    #[error("what memory held then is not known any more")]
    Memory,
    /// Its code needs to know when the call began.
    #[error("when they began is not known")]
    Begin,
    /// The thread has no shard and can get none: it uses gs itself, has no id yet, or all shards are taken.
    #[error("their threads have no counters of their own")]
    NoShard,
    /// Its stack is not the one on which the thread began.
    #[error("they are on another stack than the calls around them")]
    OtherStack,
    /// The measurement has calls open in that thread already, into which this one cannot be put.
    #[error("they are around calls that are measured already")]
    Mixed,
}

/// The value of one pair. Small, as there may be thousands, most of them mere numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Cumulative since the request; of a histogram: how many values it has.
    pub value: i64,
    /// What else there is to it; never [`Details::NONE`].
    details: Option<Box<Details>>,
}

impl Value {
    /// A value and what else there is to it.
    pub fn new(value: i64, details: Details) -> Self {
        Value { value, details: (details != Details::NONE).then(|| Box::new(details)) }
    }

    /// What else there is to it.
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

/// What there is to a value besides a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The values of a histogram, in the metric's unit.
    pub distribution: Option<Box<Distribution>>,
    /// The values by key of a vector.
    pub keys: Option<Keys>,
    /// What is known of the object that the focus names, from a list of objects that is measured as well.
    pub object: Option<ObjectState>,
    /// Calls whose values are missing.
    pub activations: Activations,
    /// Per thread, ended ones too. Empty unless asked for.
    pub threads: Vec<ThreadValue>,
    /// The value is what it was then: its code was taken out.
    pub taken_out: Option<TakenOut>,
    /// The event was counted in a part of the time only.
    pub counted: Option<Counted>,
    /// How long the machine has slept while the value was measured by the time stamp counter, which may have counted that time or begun anew.
    pub slept_ns: u64,
}

impl Details {
    /// Those of a mere number.
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
    /// The largest first, at most [`Keys::MAX`].
    pub values: Vec<KeyValue>,
    /// What all other keys have together: those beyond the most that are told, and those for which a thread's table had no place.
    pub others: i64,
    /// Of a list of objects: how often something was done to an object for which a thread's table had no place, so that it may be missing here.
    pub unlisted: u64,
}

/// The value of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The number by which the code named it.
    pub key: u64,
    /// The variable of which it is the address, or an address inside: `lock`, `file.c:lock+0x28`, `libx:lock`.
    pub name: Option<String>,
    /// Cumulative since the request; in a list of objects 1, and 0 once it is retired.
    pub value: i64,
    /// What is known of the object at this address, from a list of objects that is measured as well.
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

/// How long an event was counted that shares the processor's counters with others.
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
    /// Its name, as `perf list` has it.
    pub name: String,
    /// Other names that mean the same.
    pub aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the unit that counts it.
    pub group: String,
    /// Why it cannot be counted on this machine.
    pub problem: Option<String>,
    /// How a thread reads it at points; `None`: not at all.
    pub at_points: Option<String>,
}

/// Why a pair's code was taken out of its target: it cost more than it might, or the program uses the gs base, by which code finds its
/// counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOut {
    /// When: Unix time in nanoseconds.
    pub time_ns: u64,
    /// How often its code ran in a second; of several pieces the one that ran most often.
    pub hits_per_s: u64,
    /// What it cost, in nanoseconds of processor time in a second (ten million are one percent of a processor).
    pub cost_ns_per_s: u64,
    /// What all of its measurement might cost, in the same unit.
    pub limit_ns_per_s: u64,
    /// A library was loaded that uses the gs base itself; the costs are 0 then.
    pub own_gs: bool,
}

/// Pairs that [`Costs`] tells one by one.
pub const PAIRS_TOLD: usize = 100;

/// What the woven code of a target costs: how often it runs, each time at its worst case.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Nanoseconds of processor time in a second that it takes if it runs on as often as lately.
    pub cost_ns_per_s: f64,
    /// Nanoseconds of processor time that it has taken, per second since the first insertion.
    pub observed_ns_per_s: f64,
    /// What it has taken, as a share of the processor time that the target has used since; `None` if it has used none or that is not known.
    pub of_target: Option<f64>,
    /// Number of pairs.
    pub pair_count: u32,
    /// The dearest pairs, at most [`PAIRS_TOLD`].
    pub pairs: Vec<PairCost>,
}

/// What one pair costs.
#[derive(Clone, Debug)]
pub struct PairCost {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Nanoseconds that each of its snippets takes at worst when it runs once, added up: for a time, those at entry and exit.
    pub hit_ns: f64,
    /// How often its code ran lately, per second; of several pieces the one that ran most often.
    pub hits_per_s: f64,
    /// Nanoseconds of processor time in a second that it takes if that goes on.
    pub cost_ns_per_s: f64,
    /// Nanoseconds of processor time that it has taken.
    pub observed_ns: f64,
}

/// What metrics become: for people to look at, and what they cost.
#[derive(Clone, Debug, Default)]
pub struct LowerRequest {
    /// Public names; none: all that are known.
    pub metrics: Vec<String>,
    /// At which focus; `None`: one function if the metric can be restricted to one, otherwise the whole program.
    pub focus: Option<Focus>,
    /// In which process; `None`: in a function as compilers write many.
    pub target: Option<TargetSpec>,
    /// Additional MDL sources (name, text).
    pub definitions: Vec<(String, String)>,
    /// The flavors that the program has besides its own, `linux` and `unix`.
    pub flavors: Vec<Flavor>,
    /// Whether the machine code is wanted.
    pub code: bool,
}

/// What a metric becomes.
#[derive(Clone, Debug)]
pub struct LoweredMetric {
    /// Public name.
    pub metric: String,
    /// The focus that was used.
    pub focus: Focus,
    /// Its snippets, each once, in the order of the text.
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
    /// How many functions it goes into.
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
    /// Its address; without a target one that nothing has.
    pub at: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// It in the syntax of Intel's manuals.
    pub text: String,
}

/// The value of one pair in one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadValue {
    /// Which; `None`: could not be told apart.
    pub tid: Option<Tid>,
    /// Its process, if that is a fork child; `None`: the target, or a child that ended before it was looked at.
    pub pid: Option<Pid>,
    /// Cumulative since the request; of a histogram: how many values it has.
    pub value: i64,
    /// The values of a histogram, in the metric's unit.
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
    /// How the target ended, if it did.
    pub ended: Option<Ended>,
}

/// How a target ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit status, if it exited and the engine may know (its child).
    pub status: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// It went on as another program (exec); the measured program is gone.
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
    /// What was measured, if that is not what the insertion said: libraries were loaded since.
    pub grown: Option<Arc<Vec<PairInfo>>>,
    /// The last values, read in the stop of the removal.
    pub last: Option<Reading>,
    /// What others have done to the code: why it is not as it was, or what was put right.
    pub warnings: Vec<String>,
    /// Patterns and foci that matched no function until the end.
    pub awaited: Vec<String>,
}

/// What is inserted in one target.
#[derive(Clone, Debug)]
pub struct Inserted {
    /// The target.
    pub pid: Pid,
    /// Who holds it, e.g. `ingraft 4711`; a dead holder is named with `(dead)`.
    pub holder: String,
    /// Whether this engine is the holder.
    pub ours: bool,
    /// Woven points.
    pub points: u32,
    /// Bytes of code in the target's arenas.
    pub code_bytes: u64,
    /// Unix time in nanoseconds of the first insertion.
    pub since_ns: u64,
    /// How threads are told apart, in words.
    pub identity: String,
    /// What it costs; `None` if that is not known: it is another engine's, or was taken over from one.
    pub costs: Option<Costs>,
    /// Measurements of this engine there.
    pub measurements: Vec<MeasurementId>,
    /// Those of them that are to stay without a client.
    pub kept_measurements: Vec<MeasurementId>,
    /// Number of measurements that are to stay without a client, also of another engine.
    pub kept: u32,
    /// What others have done to woven code.
    pub warnings: Vec<String>,
}
