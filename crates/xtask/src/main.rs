//! Developer commands: `cargo xtask test` runs every test, `cargo xtask fuzz` every fuzz target for a bounded time,
//! `cargo xtask bench` measures what the project promises, `cargo xtask soak` measures servers under load, `cargo xtask package` makes packages.

#![forbid(unsafe_code)]

mod bench;
mod built;
mod fuzz;
mod package;
mod packages;
mod soak;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
usage: cargo xtask COMMAND

  test [--full] [FILTER…]   every test of the workspace; as root installs the Debian packages they need
                            --full: the long forms (hours instead of minutes)
  field [SERVER…]           twenty servers under load: every kind of measurement, kills of the engine, answers checked;
                            prints the figures of each (INGRAFT_ROUNDS, INGRAFT_KILLS: how often, 10 and 20;
                            INGRAFT_KINDS: which rounds, such as 'coverage,edges of libc')
  soak [--minutes N] [--seed N] [--built DIR] [SERVER…]
                            real servers under load, each for so long (10 minutes): random measurements, each third one killed;
                            checks the requests, the code and the size of the server, and every answer
                            --seed: the same choices as in an earlier run; --built: of the programs in this directory
  fuzz [SECONDS] [TARGET…]  each fuzz target for so long (10 s); as root installs what it needs
  bench [--markdown] [NAME…]
                            the table of speed and size, each row with the limit measured in the same run
                            --markdown: also writes it to docs/measured.md, with the machine and the date
  package [deb] [tarball] [--built DIR] [--output DIR]
                            a Debian package and a tarball of static programs (both, if none is named), in target/packages
                            --built: of the programs in this directory, which are stripped, instead of building them
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", rest @ ..] => test::run(rest),
        ["field", rest @ ..] => test::field(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["soak", rest @ ..] => soak::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["package", rest @ ..] => package::run(rest),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => bail!("no such command\n{HELP}"),
    }
}
