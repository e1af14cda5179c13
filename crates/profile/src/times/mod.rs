//! Mean and variance of the execution time of functions, by Sarkar, "Determining average program execution times and their variance" (1989).
//!
//! Measured frequencies of edges and a cost for each block go in. What comes out are the paper's TIME and VAR for each node, loop and function.
//!
//! 1. `flow.rs` makes the counts of a function those of whole calls: what comes in at a block goes out of it.
//! 2. `split.rs` copies parts of loops that have several entries, so that each loop has one header (the paper's node splitting).
//! 3. `extended.rs` builds the extended control-flow graph, with preheaders and postexits.
//! 4. `control.rs` computes its forward control dependence, and the frequency of each control condition.
//! 5. `moments.rs` adds up mean and variance, those nodes first on which no other node depends.
//! 6. `program.rs` does so for all functions, callees first; recursive functions are solved together (`linear.rs`).
//!
//! `fit.rs` finds costs of classes of events from measured times, and `counters.rs` compares the paper's counters with others.
//! `shares.rs` confirms causes of variance by measured covariances.
//!
//! The sum of frequencies times costs is the measured number of events: if a cost is a number of instructions, then TIME of a function is its
//! number of instructions, divided by its number of calls (and of other arrivals, such as those of calls that were in progress).
//! As in the paper, the branch by which control leaves a loop is one of the random branches of an iteration, and what runs behind a loop with
//! several exits belongs to the iteration that leaves.
//!
//! **One difference from the paper.** Its forward graph is the control dependence of the graph with back edges, without those that lead back.
//! A node that follows `continue` then seems to run in each iteration, because control comes there in a later one. Here a back edge leads to
//! a node END, where an iteration ends, and END leads to all exits of the loop. For loops without `continue` both graphs are the same.

mod control;
mod counters;
mod extended;
mod fit;
mod flow;
mod linear;
mod moments;
mod no_times;
mod program;
mod shares;
mod split;

pub use counters::{ComparedCounters, CounterCost};
pub use fit::{CLASSES_MAX, CostFit, CostRow};
pub use flow::{FlowCall, FlowEdge, MeasuredFlow};
pub use moments::{NodeTime, PredictedTimes, TimedPart, VarianceCause, VarianceRange, VarianceShare};
pub use no_times::NoTimes;
pub use program::ProgramTimes;
pub use shares::{CallMoments, MeasuredShares, SharePart};
