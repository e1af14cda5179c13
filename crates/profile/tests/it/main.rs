//! Tests of the profile crate: the figures of the papers, and random executions of random graphs.

#![forbid(unsafe_code)]

mod coverage;
mod events;
mod execution;
mod figures;
mod function_paths;
mod misuse;
mod paths;
mod placements;
mod random;
mod runs;
mod shapes;
mod threads;
mod times;
mod times_golden;
mod traces;
