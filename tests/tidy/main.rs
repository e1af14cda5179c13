//! Checks that no compiler makes, of the shape of the source tree. They read files and `cargo metadata`, and run no program of the tree.

#![forbid(unsafe_code)]

mod comments;
mod constants;
mod edges;
mod files;
mod folders;
mod gaps;
mod kinds;
mod licences;
mod names;
mod prose;
mod records;
mod rings;

use std::path::{Path, PathBuf};

/// The root of the source tree.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the source tree")
}

/// Output of `cargo metadata`, with or without all dependencies.
fn metadata(dependencies: bool) -> serde_json::Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.current_dir(root()).args(["metadata", "--format-version", "1", "--locked"]);
    if !dependencies {
        command.arg("--no-deps");
    }
    let output = command.output().expect("run cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}
