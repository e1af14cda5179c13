//! A finding of the search: a hypothesis at a place, with the evidence.

use ingraft_api::NamedFunction;

use super::hypothesis::Hypothesis;

/// One node of the search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    pub(super) id: u64,
    /// Number of the finding that it refines; `None` for the root.
    pub(super) parent: Option<u64>,
    pub(super) hypothesis: Hypothesis,
    /// The place: a resource, or for an object outside of the hierarchies its kind and name.
    pub(super) place: String,
    /// Share of the active time; of the mostly idle, of the time of one thread.
    pub(super) share: f64,
    /// Standard error of the share.
    pub(super) share_error: f64,
    pub(super) holds: bool,
    pub(super) evidence: String,
    /// The command that shows it.
    pub(super) command: String,
    pub(super) refuted_by: String,
    /// The function of the place, if the place is one.
    pub(super) function: Option<NamedFunction>,
    /// The lock of the place, if the place is one of pthreads.
    pub(super) mutex: Option<u64>,
}
