//! The formats of other tools. Each one is a file, which makes text or bytes from a [`ProfiledProgram`], and a line of [`EXPORTERS`].

mod bolt;
mod branches;
mod callgrind;
mod drcov;
mod fdata;
mod flame;
mod folded;
mod html;
mod lcov;
mod pprof;
mod sample;
mod speedscope;
mod stacks;
mod text;

use crate::contexts::ContextValue;
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

pub use lcov::ran_lines;

/// Format of another tool.
#[derive(Debug)]
pub struct Exporter {
    /// Name of the format.
    pub name: &'static str,
    /// Tool that reads it.
    pub reader: &'static str,
    /// Kinds of profiles that it describes. The result for a profile of another kind is empty, or does not have its values.
    pub kinds: &'static [ProfileKind],
    /// Whether it describes one module only.
    pub of_one_module: bool,
    /// Reason why the result is empty, if it is; `None` if an empty result is no reason to warn.
    pub why_empty: Option<&'static str>,
    /// Writes a profile in the format.
    pub write: fn(program: &ProfiledProgram<'_>, options: &ExportOptions<'_>) -> Vec<u8>,
}

/// Texts of source files by their paths.
pub type Sources<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Choices that some formats leave open.
pub struct ExportOptions<'a> {
    /// Index of the described module in [`SavedProfile::modules`](crate::SavedProfile::modules), for formats of one module.
    pub module: usize,
    /// The described value of contexts. A format of several values begins with it.
    pub value: ContextValue,
    /// Returns the text of a source file by its path, or `None` if it cannot be read.
    pub source: Sources<'a>,
}

impl<'a> ExportOptions<'a> {
    /// Describes the main module and the main value of a program.
    pub fn new(program: &ProfiledProgram<'_>, source: Sources<'a>) -> Self {
        let value = program.contexts().map_or(ContextValue::Calls, |tree| tree.main_value());
        ExportOptions { module: program.main_module(), value, source }
    }
}

/// All formats.
pub const EXPORTERS: &[Exporter] = &[
    html::EXPORTER,
    flame::EXPORTER,
    callgrind::EXPORTER,
    pprof::EXPORTER,
    speedscope::EXPORTER,
    folded::EXPORTER,
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

    /// Whether the format describes profiles of a kind.
    pub fn describes(&self, kind: ProfileKind) -> bool {
        self.kinds.contains(&kind)
    }
}
