//! The two programs of a package, without debug information and symbols.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{cargo, output_of, succeed, target_directory};

const NAMES: [&str; 2] = ["ingraft", "ingraftd"];
/// Symbols that stay: `ingraft demo` measures these functions of its own by name.
const KEPT: &str = "*demo_*";

/// Platform for which programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// The C library of most distributions, linked dynamically.
    Gnu,
    /// musl, linked statically: programs that need nothing of the system but its kernel.
    Musl,
}

impl Platform {
    /// Name of the target in rustc.
    fn triple(self) -> &'static str {
        match self {
            Platform::Gnu => "x86_64-unknown-linux-gnu",
            Platform::Musl => "x86_64-unknown-linux-musl",
        }
    }
}

/// Directory that holds `ingraft` and `ingraftd`.
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Builds both programs with the profile `dist`, and strips copies of them in the directory `to`.
    pub fn build(target: Platform, to: &Path) -> Result<Programs> {
        let triple = target.triple();
        if target == Platform::Musl {
            let library = output_of(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
            let library = PathBuf::from(String::from_utf8_lossy(&library).trim());
            ensure!(library.is_dir(), "the Rust library for {triple} is missing: rustup target add {triple}");
            ensure!(ingraft_testing::have("musl-gcc"), "musl-gcc is missing: Debian has it in musl-tools");
        }
        let mut command = Command::new(cargo());
        command
            .current_dir(ingraft_testing::source_directory())
            .args(["build", "--locked", "--profile", "dist", "-p", "ingraft-cli", "-p", "ingraft-daemon", "--bins"])
            .args(["--target", triple]);
        succeed(&mut command)?;
        Programs::stripped(&target_directory()?.join(triple).join("dist"), to)
    }

    /// Takes programs that are built already, and strips copies of them in the directory `to`.
    pub fn stripped(from: &Path, to: &Path) -> Result<Programs> {
        let directory = to.join("programs");
        std::fs::create_dir_all(&directory)?;
        for name in NAMES {
            let mut strip = Command::new("strip");
            strip.args(["--strip-all", "--remove-section=.comment", "--wildcard", "--keep-symbol", KEPT, "-o"]);
            succeed(strip.arg(directory.join(name)).arg(from.join(name)))?;
        }
        Ok(Programs { directory })
    }

    /// Name and path of each of the two programs.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, PathBuf)> + '_ {
        NAMES.into_iter().map(|name| (name, self.directory.join(name)))
    }

    /// Returns the standard output of `ingraft`.
    pub fn ask(&self, arguments: &[&str]) -> Result<Vec<u8>> {
        output_of(Command::new(self.directory.join("ingraft")).args(arguments)).context("ask ingraft about itself")
    }
}
