//! Saved profiles, the formats of other tools that they are written in, and files of traces.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::panic, clippy::expect_used, clippy::unwrap_used))]

mod code;
mod contexts;
mod diff;
mod export;
mod file;
mod merge;
pub mod message;
mod program;
mod saved;
mod times;
mod trace;

pub use code::{CodeStep, ModuleCode, SourceFrame, Symbol};
pub use contexts::{
    CallTimes, CallerNode, CallingContext, ChangedValue, ContextChange, ContextChildren, ContextFunction, ContextKind,
    ContextLatency, ContextProfile, ContextStatistics, ContextUnit, ContextValue, ContextValues, FunctionTotal,
    LiveFacts, LockHolder, LockWait, LookedTime, ReturnSite, UntimedCalls, context_diff,
};
pub use diff::{BlockChange, CountChange, FunctionChange, diff};
pub use export::{EXPORTERS, ExportOptions, Exporter, Sources, ran_lines};
pub use file::FileError;
pub use ingraft_analysis::demangle;
pub use ingraft_profile::{
    CallMoments, ComparedCounters, CostFit, CounterCost, Earlier, EarlierProfile, MeasuredShares, NoTimes, NodeTime,
    PathBegin, PathEnd, PredictedTimes, SharePart, TimedPart, TraceStep, TracedFunction, Unknown, VarianceCause,
    VarianceRange, VarianceShare,
};
pub use merge::MergeError;
pub use program::{ProfiledProgram, ProfiledRoutine};
pub use saved::{
    BlockCount, CallCount, CallTarget, Covered, EdgeCount, EdgeEnd, FunctionProfile, InclusiveTotal, ModuleInfo,
    PathCount, PathInContext, PathProfile, ProfileKind, SavedProfile, UnprofiledFunction, UnsavedDetails,
};
pub use times::{
    COST_CLASSES, CostUnit, FunctionTimes, MeasuredCalls, OtherMeasurements, ProfileTimes, UNPROFILED, Untimed,
    compared_counters, profiled_callees, times,
};
pub use trace::{
    NewestCause, NewestPart, TraceChunk, TraceClock, TraceEnd, TraceError, TraceRecord, TraceRecords, TraceReplay,
    TracedCode, TracedProgram, TracedRoutine, functions_of, trace_beginning,
};
