//! The programs of ingraft in a release build.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Builds the programs, with the features of all crates together, as for tests.
pub fn build() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(ingraft_testing::source_directory())
        .args(["build", "--release", "--workspace", "--bins"])
        .status()
        .context("run cargo")?;
    ensure!(status.success(), "the programs do not build");
    Ok(())
}
