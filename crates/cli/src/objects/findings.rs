//! Records of `diagnose`.

use serde::Serialize;

use super::Host;

/// A finding of the search for what the time of a process goes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FindingObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Number of the finding, in the order of the search.
    pub(crate) id: u64,
    /// Number of the finding that it refines; null for the root.
    pub(crate) parent: Option<u64>,
    pub(crate) hypothesis: &'static str,
    /// The resource to which the finding is narrowed down.
    #[serde(rename = "where")]
    pub(crate) place: String,
    /// Share of the time in which threads were not idle, from 0 to 1.
    pub(crate) share: f64,
    /// Standard error of `share`.
    pub(crate) share_error: f64,
    pub(crate) holds: bool,
    pub(crate) evidence: String,
    /// Command that shows it.
    pub(crate) command: String,
    pub(crate) refuted_by: String,
}

/// Processes, out of several, in which the same hypothesis holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FindingGroupObject {
    /// Number of processes that were looked at.
    pub(crate) targets: usize,
    pub(crate) hypothesis: &'static str,
    /// Mean number of threads in these processes that the hypothesis is about.
    pub(crate) active: f64,
    /// The processes, those with the most such threads first.
    pub(crate) processes: Vec<FoundProcess>,
}

/// A process in which a hypothesis holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct FoundProcess {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Mean number of its threads that the hypothesis is about.
    pub(crate) active: f64,
    /// Whether calls in the process were timed to test what was found.
    pub(crate) searched: bool,
}
