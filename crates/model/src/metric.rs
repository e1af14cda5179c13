//! Metrics as values: units and how values combine (paradyn.md A.7).

use std::sync::Arc;

/// Operation that combines the values of threads, processes and hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Aggregate {
    /// The sum.
    #[default]
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The mean (read in old files).
    Avg,
}

/// Kind of a metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Style {
    /// Events that add up: differences are divided by time.
    #[default]
    EventCounter,
    /// A level: the value itself is the datum.
    SampledFunction,
}

/// Labels of rates and totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnitsType {
    /// Time: values in nanoseconds, rates in units, time per time.
    Normalized,
    /// Events: rates in units per second, totals in units.
    #[default]
    Unnormalized,
    /// A level: units for both.
    Sampled,
}

/// A metric as lists of metrics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricInfo {
    /// Public name of the metric.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Operation that combines values.
    pub aggregate: Aggregate,
    /// Kind of the value.
    pub style: Style,
    /// Labels of rates and totals.
    pub units_type: UnitsType,
    /// Paths of the constraints that the metric accepts, e.g. `/Code/*`.
    pub constraints: Vec<String>,
    /// The flavors of programs that it exists for; empty: every program.
    pub flavors: Vec<String>,
    /// Only for developers.
    pub developer: bool,
    /// Sentence of documentation, from the comment before the definition.
    pub doc: String,
    /// The definition's text.
    pub text: Arc<str>,
}

impl Aggregate {
    /// The MDL keyword.
    pub fn keyword(self) -> &'static str {
        match self {
            Aggregate::Sum => "sum",
            Aggregate::Min => "min",
            Aggregate::Max => "max",
            Aggregate::Avg => "avg",
        }
    }
}
