//! Objects about differences between two saved profiles.

use std::collections::BTreeMap;

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

/// A context whose calls or values differ between two profiles, or that leads to one. The numbers are 0 in a profile that does not have it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ContextChangeObject {
    #[serde(flatten)]
    pub(crate) id_of_function: RecordedFunction,
    /// Number of the context in these records, from 1 in their order.
    pub(crate) id: u64,
    /// Number of the context of the caller, which comes before; null if no measured call was open.
    pub(crate) parent: Option<u64>,
    /// `call`, `tail`, `signal` or `recursion`.
    pub(crate) kind: &'static str,
    /// Module of the call site; null if it is not known.
    pub(crate) caller_module: Option<String>,
    /// Return address of the call; null if it is not known.
    pub(crate) call_site: Option<String>,
    /// Calls in the older profile.
    pub(crate) old_calls: u64,
    /// Calls in the newer profile.
    pub(crate) new_calls: u64,
    /// Values of the metrics in the older profile, in this context alone.
    pub(crate) old_metrics: BTreeMap<String, i64>,
    /// Values of the metrics in the newer profile, in this context alone.
    pub(crate) new_metrics: BTreeMap<String, i64>,
}
