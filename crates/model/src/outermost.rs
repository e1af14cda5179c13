//! State that a thread keeps for the outermost open call of a function, in place of an activation record.
//!
//! ```text
//! 0         a value of the call; 0 if no call of the function is open
//! 1         the stack pointer of the outermost open call, see [`crate::layout::record::SP`]; 0 if none is open
//! 2         the number of such calls that were open at the end of their threads, written by the engine
//! ```
//!
//! Most calls are the outermost ones of their functions. They need no record, because no other call needs the value that they overwrite. A call inside of
//! another one of the function has a record, which keeps the value of the outer one. Code tells both apart by the stack pointer.
//!
//! Code writes the value first at the beginning of a call, and clears it first at the end. So a signal handler that calls the function in between
//! finds either a value, and has a record, or none, and then leaves both words 0.
//!
//! A call that ends without an exit leaves both words behind. From then on, all calls of the function in that thread have records, as if they were inside
//! of that one. If one of them has the same stack pointer, the outermost call is gone: it counts as left, and the word for its stack pointer becomes 0.
//! The value stays, because it may be that of another call with a record.

/// Number of counters.
pub const SLOTS: u32 = 3;
/// Index of the counter with the value.
pub const VALUE: u32 = 0;
/// Index of the counter with the stack pointer.
pub const FRAME: u32 = 1;
/// Index of the counter of calls that were open at the end of their threads.
pub const LEFT: u32 = 2;
