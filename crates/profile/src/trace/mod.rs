//! Traces of blocks: "Optimally profiling and tracing programs" (1994), section 4.
//!
//! Code on some edges writes a witness, and the sequence of witnesses determines the sequence of blocks.

mod replay;
mod witness;

pub use replay::{Replay, Token, TraceDefect, regenerate};
pub use witness::Witnesses;
