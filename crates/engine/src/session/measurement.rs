//! Measurements of a session.

use std::sync::Arc;

use ingraft_mdl::Library;
use ingraft_process::Rights;

use crate::api::{EnableRequest, PairInfo};
use crate::measure::request;
use crate::program::modules::Modules;

use super::view::{View, Views};

/// A measurement of a session.
#[derive(Debug)]
pub(super) struct Measurement {
    pub(super) views: Arc<Views>,
    pub(super) pairs: Arc<Vec<PairInfo>>,
    /// Views of pairs without values for clients, which the kind reads.
    pub(super) hidden: Vec<View>,
    /// Whether the pairs differ from those of the insertion's answer.
    pub(super) grown: bool,
    pub(super) request: EnableRequest,
    pub(super) library: Arc<Library>,
    /// Names of the request that no module of the target has had so far.
    pub(super) awaited: Vec<request::Awaited>,
    pub(super) keep: bool,
    /// Rights with which the target is changed for the measurement.
    pub(super) rights: Rights,
    /// Whether these rights no longer include the target, so that the measurement's code was taken out.
    pub(super) revoked: bool,
    /// Whether its removal has failed. Its code is taken out with that of the last measurement.
    pub(super) outlives_removal: bool,
    /// Limit of the cost of those pairs that do more than count, in percent of one processor.
    pub(super) limit: f64,
}

impl Measurement {
    /// Views of all pairs that have code for the measurement.
    pub(super) fn woven(&self) -> Vec<View> {
        self.views.iter().chain(&self.hidden).cloned().collect()
    }
}

/// Warnings about the modules that a request waits for, one line for each.
pub(super) fn warnings_of(awaited: &[request::Awaited], modules: &Modules) -> Vec<String> {
    let mut lines: Vec<String> = awaited.iter().filter_map(|awaited| awaited.warning(modules)).collect();
    lines.dedup();
    lines
}
