//! Pairs of a metric and a focus, as the engine measures them.

use std::sync::Arc;

use ingraft_model::{EdgeKind, MetricInfo};

use crate::{FunctionRef, MetricFocus, RefusedFunction};

/// A pair of a measurement.
#[derive(Clone, Debug)]
pub struct PairInfo {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Unit and aggregate of the metric.
    pub metric: Arc<MetricInfo>,
    /// The function that the focus names (module, name, offset); `None` if the focus does not name exactly one.
    pub function: Option<FunctionRef>,
    /// Kinds of the edges that the focus names, each once; empty if it names no edge, or if a dead engine has woven the pair.
    pub edge_kinds: Vec<EdgeKind>,
    /// Number of points that are woven for the pair.
    pub points: u32,
    /// Functions of the focus that are not measured, each with the reason; the value lacks their calls.
    pub refused: Vec<RefusedFunction>,
    /// Unix time in nanoseconds from which on the value is exact, if that is later than the insertion: a module was loaded, or may have
    /// been, before it could be measured.
    pub exact_since_ns: Option<u64>,
    /// Whether code lies over the first instruction of a function of the focus, so that a uprobe that is set there would kill the program.
    pub exposed: bool,
}

impl PairInfo {
    /// A pair of which nothing else is known yet: no function, no point, no refusal.
    pub fn new(pair: Arc<MetricFocus>, metric: Arc<MetricInfo>) -> Self {
        PairInfo {
            pair,
            metric,
            function: None,
            edge_kinds: Vec::new(),
            points: 0,
            refused: Vec::new(),
            exact_since_ns: None,
            exposed: false,
        }
    }
}
