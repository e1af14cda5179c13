//! The formats of other tools. Each one is a function from a [`Program`](crate::Program) to text or bytes.

mod bolt;
mod branches;
mod callgrind;
mod drcov;
mod fdata;
mod html;
mod lcov;
mod sample;

pub use bolt::bolt;
pub use callgrind::callgrind;
pub use drcov::drcov;
pub use fdata::fdata;
pub use html::html;
pub use lcov::{lcov, ran_lines};
pub use sample::llvm_sample;

/// A name without control characters, which would end a line of a format of lines.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
