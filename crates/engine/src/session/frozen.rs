//! Values of pairs whose code was taken out while measurements still read them.

use ingraft_model::Tid;

use crate::api::TakenOut;
use crate::readings::values::Raw;

/// The values of a pair that was taken out.
#[derive(Debug)]
pub(super) struct Frozen {
    /// Values by thread, including ended threads.
    pub rows: Vec<(Option<Tid>, Raw)>,
    /// Time and reason of the removal.
    pub why: TakenOut,
}
