//! Arguments of `ingraft report`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::exit::Failure;

/// `ingraft report`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ingraft report shop.profile                          the hottest functions and blocks
  ingraft report monday.profile tuesday.profile        the sum of two profiles
  ingraft report new.profile --diff old.profile        what has changed
  ingraft report shop.profile --as html -o shop.html
  ingraft report shop.profile --as lcov -o shop.info   for genhtml
  ingraft report shop.profile --as fdata -o shop.fdata for llvm-bolt -data

Formats:
  html         a page for browsers         bolt         llvm-bolt -pa, by addresses
  callgrind    callgrind_annotate          fdata        llvm-bolt -data, by symbols
  lcov         genhtml                     llvm-sample  clang -fprofile-sample-use
  drcov        Lighthouse                  json         one object a line

bolt, fdata and llvm-sample describe one module: the program, or that of --module. Instructions and
lines come from the files of the modules, if these still have the same build-ids.")]
pub(crate) struct ReportArgs {
    /// Saved profiles; those of several runs are added up
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print what has changed since this older profile
    #[arg(long, value_name = "OLD")]
    pub(crate) diff: Option<PathBuf>,

    /// Print the profile in the format of another tool
    #[arg(long = "as", value_enum, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) export: Option<Export>,

    /// Only the functions of this module
    #[arg(long, value_name = "MODULE")]
    pub(crate) module: Option<String>,

    /// File of a module to read instead of the one in the profile, such as one with symbols; it must have the same build-id
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Vec<PathBuf>,

    /// Largest number of functions, and of blocks, in tables
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub(crate) top: usize,
}

/// Format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Export {
    // No documentation comments here: they would make a page of the --help.
    Html,
    Callgrind,
    Lcov,
    Drcov,
    Bolt,
    Fdata,
    LlvmSample,
    Json,
}

impl ReportArgs {
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
