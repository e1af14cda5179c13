//! Arguments of `ingraft report`.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ingraft_report::{EXPORTERS, Exporter};

use super::TreeArgs;
use crate::exit::Failure;

/// `ingraft report`.
#[derive(Debug, Args)]
#[command(after_help = format!("Examples:
  ingraft report shop.profile                          the hottest functions and blocks
  ingraft report monday.profile tuesday.profile        the sum of two profiles
  ingraft report new.profile --diff old.profile        what has changed
  ingraft report shop.profile --as html -o shop.html
  ingraft report shop.profile --as lcov -o shop.info   for genhtml
  ingraft report shop.profile --as fdata -o shop.fdata for llvm-bolt -data
  ingraft report shop.contexts --metric bytes          the tree of calling contexts
  ingraft report shop.contexts --as svg -o shop.svg    the same as a flame graph

Formats:
{}
{} describe one module: the program, or that of --module. Instructions and
lines come from the files of the modules, if these still have the same build-ids.", formats(), names("and", |format| format.of_one_module)))]
pub(crate) struct ReportArgs {
    /// Saved profiles; those of several runs are added up
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print what has changed since this older profile
    #[arg(long, value_name = "OLD")]
    pub(crate) diff: Option<PathBuf>,

    /// Print the profile in the format of another tool
    #[arg(long = "as", value_parser = export_parser(), value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) export: Option<Export>,

    /// Only the functions of this module
    #[arg(long, value_name = "MODULE")]
    pub(crate) module: Option<String>,

    /// File of a module to read instead of the one in the profile, such as one with symbols; it must have the same build-id
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Vec<PathBuf>,

    /// Largest number of functions, and of blocks, in tables, or of contexts in a tree [default: 20, of contexts 200]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) top: Option<usize>,

    /// The metric or event that counts, in the tree and in formats of other tools [default: the first one of the profile]
    #[arg(long, value_name = "METRIC", help_heading = "Contexts")]
    pub(crate) metric: Option<String>,

    #[command(flatten)]
    pub(crate) tree: TreeArgs,
}

/// Format of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Export {
    /// That of another tool.
    Tool(&'static Exporter),
    /// Objects, one a line.
    Json,
}

/// Number of functions, and of blocks, in tables without `--top`.
const ROWS: usize = 20;

/// Name of the format that is not of another tool.
const JSON: &str = "json";

fn export_parser() -> impl TypedValueParser<Value = Export> {
    let names = EXPORTERS.iter().map(|exporter| exporter.name).chain([JSON]);
    PossibleValuesParser::new(names).map(|name: String| Exporter::named(&name).map_or(Export::Json, Export::Tool))
}

/// The formats with the tools that read them, in two columns.
fn formats() -> String {
    let all: Vec<(&str, &str)> = EXPORTERS
        .iter()
        .map(|exporter| (exporter.name, exporter.reader))
        .chain([(JSON, "one object a line")])
        .collect();
    let (left, right) = all.split_at(all.len().div_ceil(2));
    let mut right = right.iter();
    let line = |(name, reader): &(&str, &str)| match right.next() {
        Some((second, of_second)) => format!("  {name:<13}{reader:<28}{second:<13}{of_second}\n"),
        None => format!("  {name:<13}{reader}\n"),
    };
    left.iter().map(line).collect()
}

/// The names of the formats for which `which` holds, with this word before the last one.
pub(crate) fn names(word: &str, which: impl Fn(&Exporter) -> bool) -> String {
    let names: Vec<&str> = EXPORTERS.iter().filter(|exporter| which(exporter)).map(|exporter| exporter.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} {word} {last}", others.join(", ")),
        _ => names.concat(),
    }
}

impl ReportArgs {
    /// Largest number of functions, and of blocks, in tables.
    pub(crate) fn rows(&self) -> usize {
        self.top.unwrap_or(ROWS)
    }

    /// Refuses to write the output over a file that the command reads.
    pub(super) fn check(&self, output: Option<&Path>) -> Result<(), Failure> {
        let same = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
        let mut read = self.files.iter().chain(&self.diff).chain(&self.binary);
        match output.and_then(|output| read.find(|path| same(path, output))) {
            Some(path) => {
                let what = format!("the output would replace {}, which the command reads", path.display());
                Err(Failure::usage(what, "choose another file with -o"))
            }
            None => Ok(()),
        }
    }
}
