//! Objects about differences between two saved profiles.

use serde::Serialize;

use super::RecordedFunction;

/// A function whose counts differ between two profiles. The numbers are 0 for a function that a profile does not have.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FunctionChangeObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Executed instructions in the older profile.
    pub(crate) old_instructions: u64,
    /// Executed instructions in the newer profile.
    pub(crate) new_instructions: u64,
    /// Calls in the older profile.
    pub(crate) old_calls: u64,
    /// Calls in the newer profile.
    pub(crate) new_calls: u64,
}

/// A block whose counts differ between two profiles.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BlockChangeObject {
    #[serde(flatten)]
    pub(crate) id: RecordedFunction,
    /// Offset in the function of the first byte.
    pub(crate) block: String,
    /// Executions in the older profile.
    pub(crate) old: u64,
    /// Executions in the newer profile.
    pub(crate) new: u64,
}
