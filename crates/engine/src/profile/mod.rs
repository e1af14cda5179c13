//! Profiles: exact counts of all blocks and edges of functions, from counters on some of them.
//!
//! A profile is a second producer of instrumentation, beside MDL. `plan.rs` cuts the control-flow graph of a function at its calls, chooses
//! the counters (crate `ingraft-profile`), and makes the code for them. `result.rs` derives all counts from the counters and the positions of threads. `leaps.rs` counts the jumps after which they
//! may be wrong. `inclusive.rs` makes the code for events of functions with all that they call.

pub mod inclusive;
pub mod leaps;
pub mod plan;
pub mod result;
pub mod trace;
