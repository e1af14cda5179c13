//! Pairs of a metric and a focus, as the engine measures them.

use std::sync::Arc;

use ingraft_model::{EdgeKind, MetricInfo};
use serde::Serialize;

use crate::{MetricFocus, NamedFunction, RefusedFunction};

/// A pair of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct PairInfo {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Unit and aggregate of the metric.
    pub metric: Arc<MetricInfo>,
    /// The function that the focus names (module, name, offset); `None` if the focus does not name exactly one.
    pub function: Option<NamedFunction>,
    /// Kinds of the edges that the focus names, each once; empty if it names no edge, or if a dead engine has woven the pair.
    pub edge_kinds: Vec<EdgeKind>,
    /// Number of points that are woven for the pair.
    pub points: u32,
    /// Functions of the focus that are not measured, each with the reason; the value lacks their calls.
    pub refused: Vec<RefusedFunction>,
    /// Facts that are told with every value of the pair.
    pub facts: PairFacts,
}

/// Facts about a pair that are told with every value of it. Each is a key of the JSON records of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PairFacts {
    /// Unix time in nanoseconds from which on the value is exact, if that is later than the insertion: a module was loaded, or may have
    /// been, before it could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_since_ns: Option<u64>,
    /// Whether code lies over the first instruction of a function of the focus, so that a uprobe that is set there would kill the program.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
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
            facts: PairFacts::default(),
        }
    }

    /// Unit of the number of the value, in the plural.
    pub fn units(&self) -> &str {
        if self.metric.histogram { "values" } else { &self.metric.unit }
    }
}
