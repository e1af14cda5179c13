//! The formats of other tools. Each one is a file, which makes text or bytes from a [`ProfiledProgram`], and a line of [`EXPORTERS`].

mod bolt;
mod branches;
mod callgrind;
mod drcov;
mod fdata;
mod html;
mod lcov;
mod sample;

use crate::program::ProfiledProgram;

pub use lcov::ran_lines;

/// Format of another tool.
#[derive(Debug)]
pub struct Exporter {
    /// Name of the format.
    pub name: &'static str,
    /// Tool that reads it.
    pub reader: &'static str,
    /// Whether it needs numbers of executions, which a coverage lacks.
    pub needs_counts: bool,
    /// Whether it describes one module only.
    pub of_one_module: bool,
    /// Reason why the result is empty, if it is; `None` if an empty result is no reason to warn.
    pub why_empty: Option<&'static str>,
    /// Writes a profile in the format. `source` returns the text of a source file by its path, or `None` if it cannot be read. The index is that
    /// of the described module in [`SavedProfile::modules`](crate::SavedProfile::modules).
    pub write: fn(program: &ProfiledProgram<'_>, module: usize, source: Sources<'_>) -> Vec<u8>,
}

/// Texts of source files by their paths.
pub type Sources<'a> = &'a dyn Fn(&str) -> Option<String>;

/// All formats.
pub const EXPORTERS: &[Exporter] = &[
    html::EXPORTER,
    callgrind::EXPORTER,
    lcov::EXPORTER,
    drcov::EXPORTER,
    bolt::EXPORTER,
    fdata::EXPORTER,
    sample::EXPORTER,
];

impl Exporter {
    /// The format with this name.
    pub fn named(name: &str) -> Option<&'static Exporter> {
        EXPORTERS.iter().find(|exporter| exporter.name == name)
    }
}

/// A name without control characters, which would end a line of a format of lines.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
