//! Metrics as values: units, and operations that combine values (docs/mdl.md, "Metrics").

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
    /// A count of events. A rate is the difference of two values divided by the time between them.
    #[default]
    EventCounter,
    /// A level: each sample is shown as it is.
    SampledFunction,
}

/// Units of a metric's rates and totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnitsType {
    /// Time: values are nanoseconds; a rate is time per time.
    Normalized,
    /// Events: a rate is in units per second, a total in units.
    #[default]
    Unnormalized,
    /// A level: rate and total are in units.
    Sampled,
}

/// Description of a metric, as lists of metrics show it.
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
    /// Whether the value is a distribution. Then its number is that of the values in it, whose unit is `unit`.
    pub histogram: bool,
    /// Paths of the constraints that the metric accepts, e.g. `/Code/*`.
    pub constraints: Vec<String>,
    /// Flavors of the programs for which the metric exists; empty for every program.
    pub flavors: Vec<String>,
    /// Whether the metric is meant only for developers.
    pub developer: bool,
    /// Sentence of documentation, from the comment before the definition.
    pub doc: String,
    /// The definition's text.
    pub text: Arc<str>,
}

impl MetricInfo {
    /// Whether a value is a level rather than a count of events.
    pub fn is_level(&self) -> bool {
        self.style == Style::SampledFunction
    }

    /// Whether a value is a time in nanoseconds, so that its rate is time per time, in the unit.
    pub fn is_time(&self) -> bool {
        self.units_type == UnitsType::Normalized
    }
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
