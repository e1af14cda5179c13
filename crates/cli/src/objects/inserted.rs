//! Records of measurements that are inserted, and of their removal.

use ingraft_api as api;
use serde::Serialize;

use super::{Host, millis};

/// Instrumentation in one target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InsertedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) holder: String,
    pub(crate) points: u32,
    pub(crate) bytes: u64,
    /// Unix time in nanoseconds.
    pub(crate) since_ns: u64,
    /// Method by which woven code tells threads apart, in words.
    pub(crate) identity: String,
    pub(crate) cost_ns_per_s: Option<f64>,
    /// Observed cost since the first insertion, in nanoseconds of processor time per second; null if it is not known.
    pub(crate) observed_ns_per_s: Option<f64>,
    /// Observed cost as a share of the processor time that the target has used; null if it is not known.
    pub(crate) observed_of_target: Option<f64>,
    /// Number of pairs; `pairs` has the hundred with the highest costs.
    pub(crate) pair_count: u32,
    pub(crate) pairs: Vec<PairCostFacts>,
    pub(crate) measurements: Vec<u64>,
    /// The members of `measurements` that stay without a client.
    pub(crate) kept_measurements: Vec<u64>,
    /// Number of measurements that stay without a client, those of another engine included.
    pub(crate) kept: u32,
    /// Changes that other programs have made to woven code, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// Cost of a pair: the frequency of its code times the worst case of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PairCostFacts {
    pub(crate) metric: String,
    pub(crate) focus: String,
    /// Time of one run of each of the pair's snippets at worst, summed, in nanoseconds.
    pub(crate) hit_ns: f64,
    pub(crate) hits_per_s: f64,
    /// Cost in nanoseconds of processor time per second, if the code continues to run at the latest frequency.
    pub(crate) cost_ns_per_s: f64,
    /// Cost in percent of one processor.
    pub(crate) percent: f64,
    /// Nanoseconds of processor time that the pair has taken so far.
    pub(crate) observed_ns: f64,
}

/// The removal of a measurement is complete.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RemovedObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    pub(crate) stopped_ms: f64,
    pub(crate) waited_ms: f64,
    /// Whether the text is equal to the original after the removal. Null if the process, and its text with it, is gone.
    pub(crate) text_restored: Option<bool>,
    pub(crate) children_left: Vec<i32>,
    pub(crate) corrections: CorrectionCounts,
    /// Changes that other programs have made to the code, for people.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Whether memory of the engine is still mapped in the target; left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) memory_left: bool,
    /// Ids of the threads that delay the unmapping because they sleep in the kernel.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) asleep: Vec<i32>,
    /// Patterns and foci in modules that were never loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) awaited: Vec<String>,
}

/// Activations in progress at insertion and removal that corrections account for.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CorrectionCounts {
    pub(crate) late_start: u64,
    pub(crate) early_end: u64,
}

impl InsertedObject {
    /// The record of what is inserted in a target.
    pub(crate) fn new(inserted: api::Inserted, host: Host) -> Self {
        let numbers = |ids: Vec<api::MeasurementId>| ids.into_iter().map(|id| id.0).collect();
        let costs = inserted.costs.as_ref();
        InsertedObject {
            host,
            pid: inserted.pid.0,
            holder: inserted.holder,
            points: inserted.points,
            bytes: inserted.code_bytes,
            since_ns: inserted.since_ns,
            identity: inserted.identity,
            cost_ns_per_s: costs.map(|costs| costs.cost_ns_per_s),
            observed_ns_per_s: costs.and_then(|costs| costs.observed_ns_per_s),
            observed_of_target: costs.and_then(|costs| costs.of_target),
            pair_count: costs.map_or(0, |costs| costs.pair_count),
            pairs: costs.map(|costs| costs.pairs.iter().map(PairCostFacts::from).collect()).unwrap_or_default(),
            measurements: numbers(inserted.measurements),
            kept_measurements: numbers(inserted.kept_measurements),
            kept: inserted.kept,
            warnings: inserted.warnings,
        }
    }
}

impl From<&api::PairCost> for PairCostFacts {
    fn from(cost: &api::PairCost) -> Self {
        PairCostFacts {
            metric: cost.pair.metric.clone(),
            focus: cost.pair.focus.to_string(),
            hit_ns: cost.hit_ns,
            hits_per_s: cost.hits_per_s,
            cost_ns_per_s: cost.cost_ns_per_s,
            percent: cost.cost_ns_per_s / 1e7,
            observed_ns: cost.observed_ns,
        }
    }
}

impl RemovedObject {
    /// The record of a removal.
    pub(crate) fn new(removed: &api::Removed, host: Host) -> Self {
        let (late_start, early_end) = removed.corrections;
        RemovedObject {
            host,
            pid: removed.pid.0,
            stopped_ms: millis(removed.stopped.held),
            waited_ms: millis(removed.stopped.waited),
            text_restored: Some(removed.text_restored),
            children_left: removed.children_left.iter().map(|pid| pid.0).collect(),
            corrections: CorrectionCounts { late_start, early_end },
            warnings: removed.warnings.clone(),
            memory_left: removed.memory_left,
            asleep: removed.asleep.iter().map(|tid| tid.0).collect(),
            awaited: removed.awaited.clone(),
        }
    }
}
