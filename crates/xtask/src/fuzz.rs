//! `cargo xtask fuzz`: builds the fuzz targets with the compiler's own coverage instrumentation (no nightly, no cargo-fuzz) and
//! runs each for a bounded time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::packages;

/// Compiler flags that libFuzzer needs: counters at every edge, a table of them, and operands of comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// Runs the named targets, or all of them, for this many seconds each, one on each processor.
pub fn run(arguments: &[&str]) -> Result<()> {
    packages::install(false)?;
    let seconds: u32 = arguments.first().map_or(Ok(10), |text| text.parse()).context("seconds")?;
    let directory = ingraft_testing::source_directory().join("tests/fuzz");
    let host = ingraft_testing::output(Command::new("rustc").args(["--print", "host-tuple"]));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // With --target the flags apply to the targets and their dependencies but not to build scripts, which could not link.
    let status = Command::new(&cargo)
        .current_dir(&directory)
        .args(["build", "--release", "--bins", "--target", host.trim()])
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", directory.join("target"))
        .status()
        .context("build the fuzz targets")?;
    ensure!(status.success(), "the fuzz targets do not build");
    let built = directory.join("target").join(host.trim()).join("release");
    let mut names: Vec<String> = arguments.iter().skip(1).map(|&name| name.to_owned()).collect();
    if names.is_empty() {
        names = all(&directory)?;
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for together in names.chunks(processors) {
        let start = |name: &String| Ok((name.clone(), start(&directory, &built, name, seconds)?));
        let running: Vec<(String, Child)> = together.iter().map(start).collect::<Result<_>>()?;
        // All of them end before the first finding is told.
        let ended: Vec<Result<()>> = running.into_iter().map(|(name, child)| end(&directory, &name, child)).collect();
        ended.into_iter().collect::<Result<()>>()?;
    }
    println!("{} fuzz targets ran {seconds} s each without a finding", names.len());
    Ok(())
}

fn all(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory.join("fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    names.sort();
    ensure!(!names.is_empty(), "no fuzz targets in {}", directory.display());
    Ok(names)
}

/// Where a target leaves the inputs that it fails with.
fn artifacts(directory: &Path, name: &str) -> PathBuf {
    directory.join("artifacts").join(name)
}

/// Starts a target.
fn start(directory: &Path, built: &Path, name: &str, seconds: u32) -> Result<Child> {
    let (corpus, seeds) = (directory.join("corpus").join(name), directory.join("seeds").join(name));
    let artifacts = artifacts(directory, name);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(built.join(name));
    command.current_dir(directory).arg(&corpus);
    if seeds.exists() {
        command.arg(seeds);
    }
    command
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("run {name}"))
}

/// Waits for the end of a target, and prints what it has printed.
fn end(directory: &Path, name: &str, child: Child) -> Result<()> {
    let output = child.wait_with_output().with_context(|| format!("run {name}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("fuzz target {name}:\n{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(
        output.status.success(),
        "fuzz target {name} found something: see {}",
        artifacts(directory, name).display()
    );
    Ok(())
}
