//! Profiling algorithms as pure functions on graphs.
