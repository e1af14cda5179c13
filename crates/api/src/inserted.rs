//! Measurements that are inserted in targets, and their costs.

use std::sync::Arc;

use ingraft_model::Pid;

use crate::{MeasurementId, MetricFocus};

/// Code and measurements that are inserted in one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Inserted {
    /// The target.
    pub pid: Pid,
    /// Holder of the target, e.g. `ingraft 4711`; a dead holder is named with `(dead)`.
    pub holder: String,
    /// Whether this engine is the holder.
    pub ours: bool,
    /// Number of woven points.
    pub points: u32,
    /// Length of the code in the target's arenas in bytes.
    pub code_bytes: u64,
    /// Unix time in nanoseconds of the first insertion.
    pub since_ns: u64,
    /// Way in which woven code tells threads apart, in words.
    pub identity: String,
    /// Costs of the code; `None` if they are not known, because another engine wove the code.
    pub costs: Option<Costs>,
    /// Measurements of this engine in the target.
    pub measurements: Vec<MeasurementId>,
    /// Measurements of this engine that stay without a client.
    pub kept_measurements: Vec<MeasurementId>,
    /// Number of measurements that stay without a client, including those of another engine.
    pub kept: u32,
    /// Changes that other programs have made to woven code.
    pub warnings: Vec<String>,
}

/// Largest number of pairs that [`Costs`] lists.
pub const PAIRS_TOLD: usize = 100;

/// Costs of the woven code of a target; each run is charged with its worst case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// Predicted cost in nanoseconds of processor time per second, by the latest frequencies.
    pub cost_ns_per_s: f64,
    /// Observed cost in nanoseconds of processor time per second since the first insertion; `None` if it is not known.
    pub observed_ns_per_s: Option<f64>,
    /// Observed cost as a share of the processor time that the target has used since the first insertion; `None` if the target has used
    /// none, or if that time is not known.
    pub of_target: Option<f64>,
    /// Number of pairs.
    pub pair_count: u32,
    /// The pairs with the highest costs, at most [`PAIRS_TOLD`].
    pub pairs: Vec<PairCost>,
}

/// Costs of one pair.
#[derive(Clone, Debug, PartialEq)]
pub struct PairCost {
    /// Metric and focus.
    pub pair: Arc<MetricFocus>,
    /// Worst-case time of one run of each of the pair's snippets, summed, in nanoseconds; for a time, the snippets at entry and exit.
    pub hit_ns: f64,
    /// Latest runs of the pair's code per second; of several snippets, those of the one that ran most often.
    pub hits_per_s: f64,
    /// Predicted cost in nanoseconds of processor time per second, at the latest rate.
    pub cost_ns_per_s: f64,
    /// Observed cost so far, in nanoseconds of processor time.
    pub observed_ns: f64,
}
