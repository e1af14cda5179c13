//! `cargo xtask test`.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages;

/// Runs every test in a release build, because tests also check the time for which a target is held.
pub fn run(arguments: &[&str]) -> Result<()> {
    let full = arguments.contains(&"--full");
    packages::install(full)?;
    let filters = arguments.iter().filter(|argument| **argument != "--full");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(ingraft_testing::source_directory());
    if has_nextest() {
        let profile = if full { "full" } else { "default" };
        command
            .args(["nextest", "run", "--release", "--workspace", "--no-fail-fast", "--profile", profile])
            .args(filters);
    } else {
        eprintln!("cargo-nextest is not installed: cargo test runs the tests, two at a time");
        command
            .args(["test", "--release", "--workspace", "--no-fail-fast"])
            .args(filters)
            .args(["--", "--test-threads=2"]);
    }
    if full {
        command.env("INGRAFT_FULL", "1");
    }
    let status = command.status().context("run cargo")?;
    ensure!(status.success(), "tests failed");
    Ok(())
}

/// Measures servers that were not written for these tests, one after the other, and prints the figures of each.
pub fn field(servers: &[&str]) -> Result<()> {
    packages::install(true)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(ingraft_testing::source_directory()).env("INGRAFT_FULL", "1");
    command.args(["test", "--release", "-p", "ingraft-cli", "--test", "e2e", "--", "--nocapture", "--test-threads=1"]);
    let tests = servers.iter().map(|server| format!("field::twenty::{server}"));
    match servers {
        [] => command.arg("field::twenty::"),
        _ => command.arg("--exact").args(tests),
    };
    let status = command.status().context("run cargo")?;
    ensure!(status.success(), "a server did not survive, or answered wrongly");
    Ok(())
}

fn has_nextest() -> bool {
    let version = Command::new("cargo").args(["nextest", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}
