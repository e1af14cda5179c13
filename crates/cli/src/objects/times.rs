//! Records of `profile times`.

use serde::Serialize;

use super::RecordedFunction;

/// Mean and variance of the time of a function, or of one of its loops or blocks.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TimeObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset of the block, or of the header of the loop; null for the function.
    pub(crate) node: Option<String>,
    /// `function`, `loop` or `block`.
    pub(crate) kind: &'static str,
    /// Unit of the times.
    pub(crate) unit: &'static str,
    /// Executions in a call of the function.
    pub(crate) frequency: f64,
    /// For a loop, the mean number of executions of its header in an entry; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) iterations: Option<f64>,
    /// Predicted mean time of an execution, with callees.
    pub(crate) mean: f64,
    /// Variance of the time if all iterations of an entry of a loop take equally long; null if it has no bound, for functions that call
    /// each other and for their callers.
    pub(crate) variance: Option<f64>,
    /// Square root of `variance`.
    pub(crate) stddev: Option<f64>,
    /// Standard deviation if iterations do not depend on each other.
    pub(crate) independent_stddev: f64,
    /// Measured mean time of a call; null if it was not measured, and for loops and blocks.
    pub(crate) measured_mean: Option<f64>,
    /// Measured standard deviation; null if it was not measured, and for loops and blocks.
    pub(crate) measured_stddev: Option<f64>,
    /// Mean time of the function alone; left out for loops and blocks.
    #[serde(rename = "self", skip_serializing_if = "Option::is_none")]
    pub(crate) own: Option<f64>,
    /// Calls within one call whose time is not in `mean`, because the callee is not known, not profiled or has no times; left out for
    /// loops and blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls_left_out: Option<f64>,
    /// Reason why the counts of the function are not exact; left out if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inexact: Option<String>,
}

/// A cause of the variance of a function.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CauseObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// `branch`, `exit`, `loop`, `callee`, `left` or `arrival`.
    pub(crate) what: &'static str,
    /// Offset of the branch, of the header of the loop, or of the call; null for `arrival`.
    pub(crate) at: Option<String>,
    /// Source file and line; null if they are not known.
    pub(crate) source: Option<String>,
    /// Predicted share of the variance if iterations do not depend on each other, from 0 to 1.
    pub(crate) predicted: f64,
    /// Predicted share of the variance if all iterations of an entry of a loop take equally long, from 0 to 1; null if that has no bound.
    pub(crate) predicted_equal: Option<f64>,
    /// Measured share; null if it was not measured.
    pub(crate) measured: Option<f64>,
    /// Calls of a `callee` whose time the measured share lacks; left out if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missed: Option<u64>,
}

/// Measured calls of a function whose variance is explained.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ExplainedObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Calls that began, without calls inside of others.
    pub(crate) calls: u64,
    /// Calls that were measured.
    pub(crate) measured: u64,
    /// Calls that were not measured because of the limit.
    pub(crate) skipped: u64,
    /// Calls that were not measured because a buffer was full, or because their thread had none or was nested too deeply.
    pub(crate) lost: u64,
    /// Calls that ended without a return, or had not ended.
    pub(crate) left: u64,
    /// Calls of the function inside of another call of it.
    pub(crate) recursive: u64,
    /// Mean time of the measured calls, in nanoseconds; null if there are none.
    pub(crate) mean_ns: Option<f64>,
    /// Standard deviation of the time, in nanoseconds; null if there are none.
    pub(crate) stddev_ns: Option<f64>,
    /// Measured share of the variance that no `cause` has; null if there is no variance.
    pub(crate) remainder: Option<f64>,
}

/// Measured numbers of iterations in the entries of a loop.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TripsObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset of the header of the loop.
    pub(crate) node: String,
    /// Number of entries that were measured.
    pub(crate) entries: u64,
    /// Mean number of iterations; null if their sum may have more than 64 bits.
    pub(crate) mean: Option<f64>,
    /// Standard deviation; null if it is not known.
    pub(crate) stddev: Option<f64>,
    pub(crate) p50: Option<u64>,
    pub(crate) p99: Option<u64>,
    pub(crate) max: Option<u64>,
}

/// Costs of events that were fitted to measured times, in nanoseconds; 0 for a class of events that the fit does not use.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TimeCostsObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    pub(crate) pid: i32,
    /// Cost of an instruction.
    pub(crate) instruction_ns: f64,
    /// Cost of a read or write of memory, besides that of its instruction.
    pub(crate) memory_ns: f64,
    /// Cost of a branch, besides that of its instruction.
    pub(crate) branch_ns: f64,
    /// Cost of a call whose callee is left out.
    pub(crate) left_out_call_ns: f64,
    /// Cost of a call of the function itself, with what the measurement adds.
    pub(crate) call_ns: f64,
    /// Number of functions to whose measured times the costs were fitted.
    pub(crate) functions: u64,
    /// Root of the mean square of the relative errors of their times without callees, weighted by all time that each has taken.
    pub(crate) error: f64,
}

/// Counters by which the counts of a function could be found, and the increments that they would have executed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CounterPlacesObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Number of basic blocks, each with a counter.
    pub(crate) blocks: u64,
    /// Number of increments of these counters.
    pub(crate) block_increments: f64,
    /// Number of control conditions, each with a counter.
    pub(crate) conditions: u64,
    /// Number of increments of these counters.
    pub(crate) condition_increments: f64,
    /// Number of counters of the paper: those of the conditions whose counts do not follow from others.
    pub(crate) control_counters: u64,
    /// Number of increments of these counters.
    pub(crate) control_increments: f64,
    /// Number of counters on the edges that a maximum spanning tree lacks.
    pub(crate) tree_counters: u64,
    /// Number of increments of these counters.
    pub(crate) tree_increments: f64,
}
