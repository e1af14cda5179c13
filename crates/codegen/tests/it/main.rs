//! Tests of generated code: on the processor, by the verifier, and against golden listings. One binary for all of them builds much faster than one
//! for each file.

mod support;

mod additions;
mod appending;
mod blocks;
mod bodies;
mod calling;
mod calls;
mod contexts;
mod equivalence;
mod events;
mod execute;
mod exits;
mod first;
mod hostile;
mod inline;
mod inner;
mod keys;
mod parallel;
mod program;
mod programs;
mod reaching;
mod reading;
mod recording;
mod rehosting;
mod shapes;
mod size_and_speed;
mod snippets;
mod verifier;
mod wall;
