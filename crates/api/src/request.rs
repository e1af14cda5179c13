//! Requests for measurements.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use ingraft_model::{Flavor, Focus};

use crate::{Kind, TargetSpec};

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
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Limit of the cost of those pairs that do more than count, in percent of one processor; `None` for that of the engine.
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

/// Request to start a program and to measure it from its first instruction on.
#[derive(Clone, Debug, PartialEq)]
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

/// Terms of a measurement that the services keep, and not the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Whether histories of the values are recorded.
    pub history: bool,
    /// Time for which an insertion that may pass is attempted again.
    pub wait: Duration,
}
