//! `cargo xtask test`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages;

/// Runs every test in a release build, because tests also check the time for which a target is held. Prints at the end which tests passed only
/// when they were tried again.
pub fn run(arguments: &[&str]) -> Result<()> {
    let full = arguments.contains(&"--full");
    packages::install(full)?;
    let filters = arguments.iter().filter(|argument| **argument != "--full");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(ingraft_testing::source_directory());
    let profile = if full { "full" } else { "default" };
    let results = results(profile);
    if has_nextest() {
        // The results of an earlier run are not those of this one.
        let _missing = std::fs::remove_file(&results);
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
    tell_flaky(&std::fs::read_to_string(&results).unwrap_or_default());
    ensure!(status.success(), "tests failed");
    Ok(())
}

/// The file in which nextest leaves its results (`.config/nextest.toml`).
fn results(profile: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    ingraft_testing::source_directory().join(target).join("nextest").join(profile).join("junit.xml")
}

/// Prints the number and the names of the tests that passed only when they were tried again.
fn tell_flaky(results: &str) {
    let flaky = flaky(results);
    if !flaky.is_empty() {
        eprintln!("passed only on a retry: {}", flaky.len());
        flaky.iter().for_each(|name| eprintln!("  {name}"));
    }
}

/// The tests of a JUnit report that passed only when they were tried again, each with its binary.
fn flaky(results: &str) -> Vec<String> {
    let attribute = |tag: &str, name: &str| {
        let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let name = |case: &str| {
        let (tag, content) = case.split_once('>')?;
        content.contains("<flakyFailure").then_some(())?;
        Some(format!("{} {}", attribute(tag, "classname")?, attribute(tag, "name")?))
    };
    results.split("<testcase").skip(1).filter_map(name).collect()
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

#[cfg(test)]
mod tests {
    use super::flaky;

    #[test]
    fn tests_that_passed_only_on_a_retry_are_named() {
        let results = r#"<testsuites name="nextest-run" tests="3" failures="1" errors="0"><testsuite name="ingraft-cli::e2e">
            <testcase name="a::passes" classname="ingraft-cli::e2e" time="0.1"></testcase>
            <testcase name="b::flaky" classname="ingraft-cli::e2e" time="0.1">
                <flakyFailure type="test failure"><system-out>it &lt;testcase&gt; failed</system-out></flakyFailure>
            </testcase>
            <testcase name="c::fails" classname="ingraft-cli::e2e" time="0.1">
                <failure type="test failure"/><rerunFailure type="test failure"/>
            </testcase></testsuite></testsuites>"#;
        assert_eq!(flaky(results), ["ingraft-cli::e2e b::flaky"]);
        assert_eq!(flaky(""), Vec::<String>::new());
    }
}
