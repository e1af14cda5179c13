//! Kinds of measurements that a request can ask for, and their messages.

use std::sync::Arc;

use ingraft_report::EarlierProfile;
use ingraft_wire::{profile, v1};

/// Kind of a measurement, with its options.
#[derive(Clone, Debug)]
pub(crate) enum MeasureKind {
    /// The values of metrics.
    Metrics,
    /// Exact counts of all blocks and edges.
    Counts {
        /// Whether derived counts are compared with a redundant counter in each function.
        check: bool,
        /// Event of the inclusive totals; `None` for none.
        inclusive: Option<&'static str>,
        /// Whether each call has an inclusive total too.
        calls: bool,
        /// Counts of an earlier profile, by which counters are placed.
        earlier: Option<Arc<EarlierProfile>>,
    },
    /// The blocks and edges that have run.
    Coverage {
        /// Whether edges have probes too.
        branches: bool,
        /// Whether no function is copied.
        in_place: bool,
    },
    /// The sequence of all blocks that threads execute.
    Trace(Tracing),
}

/// Options of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tracing {
    /// Capacity in bytes of the buffer of each thread.
    pub(crate) buffer: u32,
    /// Whether the entries of functions write the time.
    pub(crate) times: bool,
    /// Whether threads wait for room in their buffers.
    pub(crate) lossless: bool,
    /// The condition that the trace waits for.
    pub(crate) when: Option<Condition>,
}

/// A condition that a trace waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Pattern of the function at which the condition is tested.
    pub(crate) function: String,
    /// Expression of MDL; empty if the condition holds at each entry.
    pub(crate) expression: String,
}

impl MeasureKind {
    /// The kind as a message; `None` for metrics.
    pub(super) fn to_wire(&self) -> Option<v1::measure::Kind> {
        use v1::measure::Kind as Wire;
        match self {
            MeasureKind::Metrics => None,
            MeasureKind::Counts { check, inclusive, calls, earlier } => Some(Wire::Counts(v1::CountsKind {
                check: *check,
                earlier: earlier.as_deref().map(profile::earlier_to_wire),
                inclusive: inclusive.unwrap_or_default().to_owned(),
                inclusive_calls: *calls,
            })),
            MeasureKind::Coverage { branches, in_place } => {
                Some(Wire::Coverage(v1::CoverageKind { branches: *branches, in_place: *in_place }))
            }
            MeasureKind::Trace(Tracing { buffer, times, lossless, when }) => Some(Wire::Trace(v1::TraceKind {
                buffer: *buffer,
                times: *times,
                lossless: *lossless,
                when: when.as_ref().map(|when| v1::TraceCondition {
                    function: when.function.clone(),
                    expression: when.expression.clone(),
                }),
            })),
        }
    }
}
