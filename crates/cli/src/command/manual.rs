//! Manual pages and shell completions, made from the arguments themselves.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::{Failure, Stop};
use crate::output::Output;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, out: &mut Output) -> Result<(), Stop> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ingraft", &mut text);
    out.verbatim(&text)
}

/// Prints the main page, or writes all pages into a directory.
pub(crate) fn man(dir: Option<&Path>, out: &mut Output) -> Result<(), Stop> {
    let cannot =
        |e: std::io::Error| Failure::failed(format!("cannot write manual pages: {e}"), "choose another directory");
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(cannot)?;
            clap_mangen::generate_to(Cli::command(), dir).map_err(cannot)?;
            out.text(&format!("manual pages are in {}\n", dir.display()))
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(cannot)?;
            out.verbatim(&text)
        }
    }
}
