//! The messages of `proto/ingraft/v1/counts.proto`, which saved profiles contain and daemons send. Their documentation comes from the proto
//! file.

#![allow(
    missing_docs,
    clippy::allow_attributes_without_reason,
    clippy::doc_lazy_continuation,
    reason = "generated code; the proto files are checked for comments by a test"
)]

/// Summand of an element of [`FunctionCounts::edge_shape`] whose number of passages is not known.
pub const UNKNOWN_PASSAGES: u32 = 32;

include!(concat!(env!("OUT_DIR"), "/ingraft.v1.rs"));
