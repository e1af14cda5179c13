//! Traces of blocks: "Optimally profiling and tracing programs" (1994), section 4.
//!
//! Code on some edges writes a witness, and the sequence of witnesses determines the sequence of blocks. `witness.rs` chooses the edges of a
//! graph, and `replay.rs` regenerates one activation. `function.rs` chooses the places of a function of a running program, where a trace also
//! says where calls begin and return. `thread.rs` regenerates what a thread has done in all traced functions.

mod function;
mod replay;
mod thread;
mod witness;

pub use function::{NotTraced, TracedFunction};
pub use replay::{Replay, TraceDefect, TraceEntry, regenerate};
pub use thread::{ThreadReplay, TraceStep, Unknown};
pub use witness::Witnesses;
