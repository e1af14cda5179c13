//! Tests of the whole crate, in one program.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod bodies;
mod calls;
mod executed;
mod exits;
mod graphs;
mod hostile;
mod kept;
mod patchable;
mod probes;
mod proofs;
mod sequences;
mod sites;
mod split;
mod support;
mod system;
mod tables;
mod types;
