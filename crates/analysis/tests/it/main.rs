//! Tests of the whole crate, in one program.

mod hostile;
mod sites;
mod support;
mod system;
