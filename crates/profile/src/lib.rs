//! Profiling algorithms as pure functions on graphs.

#![forbid(unsafe_code)]
