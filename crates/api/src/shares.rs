//! Answers about shares of variance.

use ingraft_profile::CallMoments;

use crate::{CallNumbers, Suspect};

/// Values that were measured of the suspected parts of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredSuspects {
    /// The parts, outer loops before those in them. A part that could not be measured has a reason, and no value in `moments`.
    pub suspects: Vec<MeasuredSuspect>,
    /// Sums over the measured calls. Value 0 of a call is its time in ticks. One value follows for each measured part, in their order: the time in
    /// ticks of the calls of a call site, or the number of iterations of a loop.
    pub moments: CallMoments,
    /// Nanoseconds of a tick.
    pub tick_ns: f64,
    /// Numbers of calls of the function, without calls inside of others; `printed` are those that were measured.
    pub counts: CallNumbers,
    /// Number of calls of the function inside of another call of it in the same thread. They belong to the time of the outermost call.
    pub recursive: u64,
}

/// Facts that were measured about a suspected part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredSuspect {
    /// The part.
    pub suspect: Suspect,
    /// Reason why the part could not be measured; `None` if it was.
    pub refused: Option<String>,
    /// For a call site, indexes of the loops among the parts that contain it.
    pub inside: Vec<u32>,
    /// For a call site, number of its calls whose time the value lacks: they were left by an exception or longjmp, or their thread was nested too
    /// deeply. The time belongs to the rest.
    pub missed: u64,
}
