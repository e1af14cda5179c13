//! Where to count in a control-flow graph, and all counts from these.
//!
//! The crate has the algorithms of Ball and Larus, "Optimally profiling and tracing programs" (1994), and of Ball, "Efficiently counting
//! program events with support for on-line queries" (1994). Graphs go in and tables come out. No code of this crate reads a file, a clock or a
//! process.
//!
//! 1. [`GraphBuilder`] takes blocks and edges, and becomes a [`ProfileGraph`] if an exact profile is possible.
//! 2. [`Weights`] hold the expected or measured number of passages along each edge.
//! 3. [`Placement`] chooses edges or blocks for counters, and derives a [`Profile`] from their counts and from [`Corrections`] for activations
//!    that were counted in part.
//! 4. [`EventPlan`] counts events of a constant number per block or edge in one counter, with exact queries at any moment.
//! 5. [`Witnesses`] chooses edges that write to a trace, and [`Replay`] regenerates the sequence of blocks from the trace. [`TracedFunction`]
//!    does this for functions of a running program, and [`ThreadReplay`] regenerates the sequence of a thread over all of them.
//! 6. [`Runs`] cuts a control-flow graph at its calls, so that the profile of a process that was running before, and that runs on, needs few
//!    corrections.
//! 7. [`PathNumbers`] numbers the acyclic paths of a function, by Ball and Larus, "Efficient path profiling" (1996). [`FunctionPaths`]
//!    does this for functions of a running program.
//! 8. [`ProgramTimes`] predicts mean and variance of the times of calls, by Sarkar, "Determining average program execution times and their
//!    variance" (1989).
//! 9. [`Coverage`] tells which blocks and edges have run, from probes that tell it of some of them.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::panic, clippy::expect_used, clippy::unwrap_used))]

mod adjacency;
mod barred;
mod correction;
mod coverage;
mod earlier;
mod estimate;
mod events;
mod flow;
mod function_paths;
mod graph;
mod map;
mod path_ends;
mod paths;
mod placement;
mod probes;
mod profile;
mod reach;
mod runs;
mod shape;
mod structure;
mod times;
mod totals;
mod trace;
mod tree;
mod union;
mod weights;

pub use barred::{Barred, Counter, NoPlacement};
pub use correction::Corrections;
pub use coverage::{Coverage, Inside, coverage_probes};
pub use earlier::{Earlier, EarlierProfile};
pub use events::{EventPlan, Events, Uncountable};
pub use function_paths::{FunctionPath, FunctionPaths, PathBegin, PathEnd, PathStep};
pub use graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
pub use map::{ArcId, Map, PerEdge, PerVertex, Vertex};
pub use paths::{BackEdge, Path, PathIncrements, PathNumbers, TooManyPaths};
pub use placement::{Placement, never_alternates};
pub use probes::{ProbeAt, Probes};
pub use profile::{Defect, Profile};
pub use runs::{Measured, NotCounted, Partial, Position, RunCounts, Runs, Wishes};
pub use shape::{GraphBuilder, Inexact};
pub use times::{
    CLASSES_MAX, CallMoments, ComparedCounters, CostFit, CostRow, CounterCost, FlowCall, FlowEdge, MeasuredFlow,
    MeasuredShares, NoTimes, NodeTime, PredictedTimes, ProgramTimes, SharePart, TimedPart, VarianceCause,
    VarianceRange, VarianceShare,
};
pub use totals::RunEvents;
pub use trace::{
    NotTraced, Replay, ThreadReplay, TraceDefect, TraceEntry, TraceStep, TracedFunction, Unknown, Witnesses, regenerate,
};
pub use weights::Weights;
