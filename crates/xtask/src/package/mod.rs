//! `cargo xtask package`: a Debian package, and a tarball of static programs for other distributions.

mod deb;
mod needs;
mod notices;
mod programs;
mod tarball;
mod tree;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use programs::{Platform, Programs};

/// The version that packages carry: that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Packages to make, and the programs to make them of.
#[derive(Debug, Default, PartialEq)]
struct PackageRequest {
    deb: bool,
    tarball: bool,
    /// Directory with programs that are built already. `None`: the programs are built.
    built: Option<PathBuf>,
    /// Directory for the packages. `None`: `target/packages`.
    output: Option<PathBuf>,
}

/// Makes packages and prints the path of each.
pub fn run(arguments: &[&str]) -> Result<()> {
    let wanted = parse(arguments)?;
    let output = match &wanted.output {
        Some(directory) => directory.clone(),
        None => target_directory()?.join("packages"),
    };
    std::fs::create_dir_all(&output).with_context(|| format!("make {}", output.display()))?;
    let output = output.canonicalize()?;
    let date = date()?;
    let programs = |target| match &wanted.built {
        Some(directory) => Programs::stripped(directory, &output),
        None => Programs::build(target, &output),
    };
    if wanted.deb {
        let path = deb::make(&programs(Platform::Gnu)?, &output, date)?;
        println!("{}", path.display());
    }
    if wanted.tarball {
        let path = tarball::make(&programs(Platform::Musl)?, &output, date)?;
        println!("{}", path.display());
    }
    Ok(())
}

fn parse(arguments: &[&str]) -> Result<PackageRequest> {
    let mut wanted = PackageRequest::default();
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        let mut directory = || words.next().map(PathBuf::from).with_context(|| format!("{word} needs a directory"));
        match word {
            "deb" => wanted.deb = true,
            "tarball" => wanted.tarball = true,
            "--built" => wanted.built = Some(directory()?),
            "--output" => wanted.output = Some(directory()?),
            _ => bail!("package: unknown word {word}; `cargo xtask help` shows all"),
        }
    }
    if !wanted.deb && !wanted.tarball {
        (wanted.deb, wanted.tarball) = (true, true);
    }
    Ok(wanted)
}

/// Returns the date of the source in seconds since 1970, so that the same source makes the same package: SOURCE_DATE_EPOCH, else the
/// date of the last commit, else now.
fn date() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().context("SOURCE_DATE_EPOCH");
    }
    let mut git = Command::new("git");
    git.current_dir(ingraft_testing::source_directory()).args(["log", "-1", "--format=%ct"]);
    let commit = git.output().ok().filter(|output| output.status.success());
    if let Some(seconds) = commit.and_then(|output| String::from_utf8_lossy(&output.stdout).trim().parse().ok()) {
        return Ok(seconds);
    }
    Ok(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs())
}

/// Returns the directory into which cargo builds.
fn target_directory() -> Result<PathBuf> {
    let mut command = Command::new(cargo());
    command.current_dir(ingraft_testing::source_directory());
    command.args(["metadata", "--format-version", "1", "--locked", "--no-deps"]);
    let metadata: serde_json::Value = serde_json::from_slice(&output_of(&mut command)?)?;
    metadata["target_directory"].as_str().map(PathBuf::from).context("cargo metadata names no target directory")
}

/// The cargo that runs this, or else that of the PATH.
fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command and fails with its name if it fails.
fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("run {program}; is it installed?"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Runs a command and returns its standard output.
fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {program}; is it installed?"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_words_both_packages_are_made() {
        let both = parse(&[]).unwrap();
        assert!(both.deb && both.tarball);
        let one = parse(&["deb", "--built", "a", "--output", "b"]).unwrap();
        let expected = PackageRequest { deb: true, tarball: false, built: Some("a".into()), output: Some("b".into()) };
        assert_eq!(one, expected);
        assert!(parse(&["rpm"]).is_err() && parse(&["--built"]).is_err());
    }
}
