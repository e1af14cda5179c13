//! Tests of the Debian package: its contents, and its whole life in a clean Debian with systemd.

#![forbid(unsafe_code)]

mod contents;
mod debian;
mod life;

use std::path::PathBuf;
use std::process::Command;

/// Programs that make the package; a test that lacks one of them is skipped.
const TOOLS: [&str; 4] = ["dpkg-deb", "strip", "gzip", "md5sum"];

/// The package, in a directory that is removed when this value is dropped.
struct Package {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Package {
    /// Makes the package from the programs beside this test. The error names a program that this machine lacks.
    fn make() -> Result<Package, String> {
        if let Some(missing) = TOOLS.iter().find(|tool| !ingraft_testing::have(tool)) {
            return Err(format!("{missing} is not installed"));
        }
        let directory = tempfile::tempdir_in(ingraft_testing::build_directory()).expect("a directory");
        let programs = ingraft_testing::sibling("ingraft");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ingraft-xtask"));
        command.args(["package", "deb", "--built"]).arg(programs.parent().expect("a directory"));
        let said = ingraft_testing::output(command.arg("--output").arg(directory.path()));
        Ok(Package { path: PathBuf::from(said.trim()), _directory: directory })
    }
}
