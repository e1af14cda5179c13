//! Kinds of measurements.

use std::num::NonZeroU32;
use std::sync::Arc;

use ingraft_model::{Capacity, Offset};
use ingraft_profile::EarlierProfile;

/// Kind of a measurement, with its options.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Kind {
    /// The values of metrics at foci: those of `pairs`, and those of `functions` and `function_metrics`.
    #[default]
    Metrics,
    /// Exact counts of all blocks and edges of `functions`.
    Counts(CountsOptions),
    /// The blocks and edges of `functions` that have run.
    Coverage(CoverageOptions),
    /// The sequence of all blocks that threads execute in `functions`.
    Trace(TraceOptions),
    /// One record of values for each call of `functions`: what the `print` statements of the metric in `function_metrics` name.
    Print(PrintOptions),
    /// The tree of each call of `functions` that takes long, with the values that the `print` statement of the metric in `function_metrics` names.
    Slow(SlowOptions),
    /// The calls of `functions` by calling context, and what they take.
    Contexts(ContextsOptions),
    /// Counts of the paths of `functions`.
    Paths(PathsOptions),
    /// Shares of the variance of the times of calls: `functions` is one function, and parts of it are suspected.
    Shares(SharesOptions),
}

impl Kind {
    /// Whether the measurement is about whole functions alone: then a request has no `pairs`, and `function_metrics` is not used.
    pub fn is_of_whole_functions(&self) -> bool {
        !matches!(self, Kind::Metrics | Kind::Print(_) | Kind::Slow(_))
    }

    /// Whether the measurement is a profile: its counts are read as a whole.
    pub fn is_profile(&self) -> bool {
        matches!(self, Kind::Counts(_) | Kind::Coverage(_) | Kind::Contexts(_) | Kind::Paths(_))
    }

    /// The options of a trace; `None` for other kinds.
    pub fn trace(&self) -> Option<&TraceOptions> {
        match self {
            Kind::Trace(options) => Some(options),
            Kind::Metrics | Kind::Counts(_) | Kind::Coverage(_) => None,
            Kind::Print(_) | Kind::Slow(_) | Kind::Contexts(_) | Kind::Paths(_) | Kind::Shares(_) => None,
        }
    }
}

/// Options of printed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// Largest number of calls that are printed in a second; `None` for all. Further calls are counted as skipped.
    pub limit: Option<u32>,
    /// Capacity of the buffer of each thread.
    pub capacity: Capacity,
}

/// Options of slow calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowOptions {
    /// Time in nanoseconds that a call must take at least to be told.
    pub over_ns: u64,
    /// Time in nanoseconds that a call inside of it must take at least to be told.
    pub least_ns: u64,
    /// Patterns of the functions whose calls are told inside of a slow call. Names that are not loaded are left out. Empty for all functions of
    /// the modules of `functions`, and the functions of the C library in which threads wait.
    pub callees: Vec<String>,
    /// Values of calls inside. Their functions are told too, whatever `callees` says.
    pub told: Vec<ToldValue>,
    /// Largest number of slow calls that are told in a second; `None` for all. Further calls are counted as skipped.
    pub limit: Option<u32>,
    /// Capacity of the buffer of each thread.
    pub capacity: Capacity,
}

/// A value of calls inside of slow calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldValue {
    /// Pattern of the functions. Of those whose slow calls are told, calls inside of each other have no values.
    pub function: String,
    /// Expression of MDL's code language, as `print` takes it. It is evaluated at the returns.
    pub expression: String,
}

/// Options of calling contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextsOptions {
    /// Values that are added up in contexts besides calls, at most [`ContextsOptions::METRICS_MAX`], each once.
    pub metrics: Vec<ContextMetric>,
    /// Whether each recursive call has a context of its own, as long as there is room. Otherwise it leads back to the context of the first call of
    /// its function, so that a deep recursion has few contexts.
    pub full: bool,
    /// Patterns of those of the functions whose calls have times in each context. Not with metrics.
    pub timed: Vec<String>,
    /// Whether these are times of the processor.
    pub cpu: bool,
    /// Name of an event, as in `perf list`, that is added up in contexts too: how often it happened in the functions, without the measured functions
    /// that they call. Threads read their own counts, which code at both ends of each call does. Not with `timed`.
    pub event: Option<Arc<str>>,
    /// Values of expressions that are added up in contexts too. Not with `timed`.
    pub sums: Vec<ContextSum>,
}

/// An expression whose values are added up in the contexts of the functions that it belongs to. These functions are measured too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSum {
    /// Name of the sum in a profile, see [`ContextSum::is_name`].
    pub name: Arc<str>,
    /// Pattern of the functions.
    pub function: String,
    /// Expression of MDL's code language. One that uses the result or the time of a call is evaluated at the returns, others at the entry.
    pub expression: String,
}

impl ContextSum {
    /// Whether a text can be the name of a sum: letters, digits, `_`, `-` and `.`, of which a letter or `_` comes first. Names of metrics cannot.
    pub fn is_name(text: &str) -> bool {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        let more = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let is_known = |metric: &ContextMetric| metric.names().contains(&text);
        text.starts_with(first) && text.chars().all(more) && text != "calls" && !ContextMetric::ALL.iter().any(is_known)
    }
}

impl ContextsOptions {
    /// Largest number of metrics; looks count as two, an event and a sum as one.
    pub const METRICS_MAX: usize = ingraft_model::contexts::METRICS_MAX;

    /// Whether all values are numbers of what was executed, which the paths through functions tell.
    pub fn is_executed(&self) -> bool {
        !self.metrics.is_empty() && self.metrics.iter().all(|metric| metric.is_executed())
    }

    /// Whether numbers of what was executed are asked for together with something that goes without them.
    pub fn mixes_executed(&self) -> bool {
        let any = self.metrics.iter().any(|metric| metric.is_executed());
        any && (!self.is_executed() || self.full || self.event.is_some() || !self.sums.is_empty())
    }

    /// Whether the metrics, the sums and the event have room.
    pub fn fit(&self) -> bool {
        self.before_event() + usize::from(self.event.is_some()) <= ContextsOptions::METRICS_MAX
    }

    /// Number of values before that of the event: those of the metrics come first, then the sums.
    pub fn before_event(&self) -> usize {
        ContextsOptions::values(&self.metrics).count() + self.sums.len()
    }

    /// The metrics of the values in each context, in their order: each metric once, and looks once for each of their values.
    pub fn values(metrics: &[ContextMetric]) -> impl Iterator<Item = ContextMetric> {
        metrics.iter().flat_map(|metric| metric.names().iter().map(|_| *metric))
    }
}

/// A value that is added up in calling contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContextMetric {
    /// Time in the functions, without that in the measured functions that they call.
    WallTime,
    /// Processor time in the functions, without that in the measured functions that they call.
    CpuTime,
    /// Number of bytes that are asked of the allocation functions of the C library, which are measured too.
    AllocatedBytes,
    /// Number of bytes that were asked of these functions during the measurement, and that were not freed yet.
    LiveBytes,
    /// Number of blocks of memory that were allocated during the measurement, and that were not freed yet.
    LiveBlocks,
    /// Time in the functions of the C library in which threads wait, which are measured too.
    WaitTime,
    /// Time in the functions of the C library that wait for locks, which are measured too.
    LockTime,
    /// Time in the functions, without that in the measured functions that they call, from looks at the context of each thread, and the number of
    /// looks. Not with [`ContextMetric::WallTime`], which has the same name in a profile.
    Looks,
    /// Number of instructions that the functions have executed themselves, by the paths through them: not those of calls whose present path has not
    /// ended. This and the two that follow go with each other alone, and with recursion that leads back.
    Instructions,
    /// Number of memory operands that these instructions have read.
    Reads,
    /// Number of memory operands that these instructions have written.
    Writes,
}

impl ContextMetric {
    /// All metrics.
    pub const ALL: [ContextMetric; 11] = [
        ContextMetric::WallTime,
        ContextMetric::CpuTime,
        ContextMetric::AllocatedBytes,
        ContextMetric::LiveBytes,
        ContextMetric::LiveBlocks,
        ContextMetric::WaitTime,
        ContextMetric::LockTime,
        ContextMetric::Looks,
        ContextMetric::Instructions,
        ContextMetric::Reads,
        ContextMetric::Writes,
    ];

    /// Whether the values are about memory that is not freed yet.
    pub fn is_live(self) -> bool {
        matches!(self, ContextMetric::LiveBytes | ContextMetric::LiveBlocks)
    }

    /// Names of the values in a profile: one, or those of looks.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            ContextMetric::WallTime => &["wall_ns"],
            ContextMetric::CpuTime => &["cpu_ns"],
            ContextMetric::AllocatedBytes => &["allocated_bytes"],
            ContextMetric::LiveBytes => &["live_bytes"],
            ContextMetric::LiveBlocks => &["live_blocks"],
            ContextMetric::WaitTime => &["wait_ns"],
            ContextMetric::LockTime => &["lock_wait_ns"],
            ContextMetric::Looks => &["wall_ns", "looks"],
            ContextMetric::Instructions => &["instructions"],
            ContextMetric::Reads => &["memory-reads"],
            ContextMetric::Writes => &["memory-writes"],
        }
    }

    /// Whether the values are numbers of what was executed.
    pub fn is_executed(self) -> bool {
        self.event().is_some()
    }

    /// Index in [`EVENT_NAMES`](ingraft_model::EVENT_NAMES) of what was executed; `None` for other metrics.
    pub fn event(self) -> Option<usize> {
        match self {
            ContextMetric::Instructions => Some(0),
            ContextMetric::Reads => Some(3),
            ContextMetric::Writes => Some(4),
            _ => None,
        }
    }

    /// Whether the same value would be told in two ways.
    pub fn exclude_each_other(metrics: &[ContextMetric]) -> bool {
        metrics.contains(&ContextMetric::WallTime) && metrics.contains(&ContextMetric::Looks)
    }

    /// Name in a request, which is also that of its last value in a profile. It ends with the unit.
    pub fn name(self) -> &'static str {
        self.names().last().copied().unwrap_or_default()
    }
}

/// A value that is added up for each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMetric {
    /// Time on the path, without that on the paths of calls that it makes.
    WallTime,
    /// Processor time on the path, without that on the paths of calls that it makes.
    CpuTime,
}

impl PathMetric {
    /// All metrics.
    pub const ALL: [PathMetric; 2] = [PathMetric::WallTime, PathMetric::CpuTime];

    /// Name in a request, and of the value in a profile. It ends with the unit.
    pub fn name(self) -> &'static str {
        match self {
            PathMetric::WallTime => "wall_ns",
            PathMetric::CpuTime => "cpu_ns",
        }
    }
}

/// Options of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathsOptions {
    /// Largest number of paths from a block to their ends. Where there would be more, paths end earlier and others begin. `None` for a number
    /// that few functions exceed.
    pub longest: Option<NonZeroU32>,
    /// Whether the paths of a call are told apart by its calling context. The contexts are counted too.
    pub contexts: bool,
    /// Values that are added up for each path, each once.
    pub metrics: Vec<PathMetric>,
    /// Name of an event, as in `perf list`, that is added up for each path too. Threads read their own counts at the ends of paths.
    pub event: Option<Arc<str>>,
    /// Whether the metrics and the event are also told with all that happens in the calls that a path makes.
    pub callees: bool,
}

impl PathsOptions {
    /// Beginning of the names of values with all that happens in the calls that a path makes.
    pub const TOTAL: &str = "total_";

    /// Names of the values of each path, in the order of a profile: those of the metrics, then that of the event, then all of them with callees.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let own = || self.metrics.iter().map(|metric| metric.name()).chain(self.event.as_deref());
        let total = own().filter(|_| self.callees).map(|name| format!("{}{name}", PathsOptions::TOTAL));
        own().map(str::to_owned).chain(total)
    }

    /// Whether the values have room: there are at most [`ContextsOptions::METRICS_MAX`] in a context.
    pub fn fit(&self) -> bool {
        !self.contexts || self.names().count() <= ContextsOptions::METRICS_MAX
    }
}

/// Options of shares of variance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharesOptions {
    /// The suspected parts of the function, at most [`SharesOptions::SUSPECTS_MAX`], each once.
    pub suspects: Vec<Suspect>,
    /// Largest number of calls that are measured in a second; `None` for all. Further calls are counted as skipped. Each thread measures at most a
    /// tenth as many between two rounds of the engine.
    pub limit: Option<u32>,
    /// Capacity of the buffer of each thread.
    pub capacity: Capacity,
}

impl SharesOptions {
    /// Largest number of suspects.
    pub const SUSPECTS_MAX: usize = 8;
}

/// A part of a function that may be a cause of the variance of its times. Offsets are those from the function's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suspect {
    /// The calls that the call instruction at this offset makes.
    CallSite(Offset),
    /// The loop whose header begins at this offset.
    Loop(Offset),
}

/// Options of exact counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CountsOptions {
    /// Whether each function has a redundant counter, with which its derived counts are compared.
    pub check: bool,
    /// Inclusive totals; `None` for none.
    pub inclusive: Option<Inclusive>,
    /// Counts of an earlier profile, by which the counters of this one are placed; `None` for estimates from the structure of the code.
    pub earlier: Option<Arc<EarlierProfile>>,
}

/// Options of a coverage. A probe is removed when it has told that its place has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoverageOptions {
    /// Whether edges have probes too, as far as the blocks do not determine them.
    pub branches: bool,
    /// Whether no function is copied, so that blocks without room in the text have no probe. Not with `branches`.
    pub in_place: bool,
}

/// Options of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Capacity of the buffer of each thread.
    pub capacity: Capacity,
    /// Whether the entries of functions write the time.
    pub times: bool,
    /// Whether a thread whose buffer is full waits until the engine has emptied it, but no longer than
    /// [`ROOM_WAIT_NS`](ingraft_model::layout::ROOM_WAIT_NS) if the engine empties none.
    pub lossless: bool,
    /// The condition at which threads write a token; the value of the pair is the number of times at which it held.
    pub when: Option<TraceCondition>,
}

/// A condition that a trace waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceCondition {
    /// Pattern of the function at which the condition is tested. It must match one function.
    pub function: String,
    /// Expression of MDL's code language; empty if the condition holds at each entry of the function. An expression that uses the result or
    /// the time of a call is tested at the returns, others at the entry.
    pub expression: String,
}

/// Totals of one kind of event, in functions with all that they call among the profiled functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inclusive {
    /// Index of the event in [`EVENT_NAMES`](ingraft_model::EVENT_NAMES).
    pub event: usize,
    /// Whether each call that the functions make has a total too.
    pub calls: bool,
}
