//! A function of a profile with its times.

use ingraft_report::{ComparedCounters, CostUnit, FunctionTimes, MeasuredCalls};

use super::Counts;

/// A function with its times.
pub(super) struct TimedFunction<'p> {
    pub(super) counts: Counts<'p>,
    pub(super) times: FunctionTimes,
    pub(super) unit: CostUnit,
    /// Measured times of its calls, if the unit is nanoseconds.
    pub(super) measured: Option<MeasuredCalls>,
    /// Counters of the function, if they are asked for and known.
    pub(super) counters: Option<ComparedCounters>,
}
