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
    /// Measured standard deviation; null if it was not measured.
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
}
