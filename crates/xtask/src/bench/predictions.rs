//! Measures how fast mean and variance of execution times are computed, as `ingraft profile times` does. The example of the profile crate makes the
//! functions: their graphs have nested branches and loops.

use std::process::Command;

use ingraft_testing::{sibling, source_directory};

use super::BenchRow;

pub fn rows() -> Vec<BenchRow> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // The features of all crates together, as for the programs, so that nothing is built twice.
    let build = ["build", "--release", "--workspace", "--example", "speed"];
    let status = Command::new(cargo).current_dir(source_directory()).args(build).status().expect("run cargo");
    assert!(status.success(), "the example does not build");
    let output = Command::new(sibling("examples/speed")).arg("times").output().expect("run the example");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let rates: Vec<(String, f64)> = text.lines().filter_map(rate).collect();
    let detail = |without: &str| {
        let others = rates.iter().filter(|(blocks, _)| blocks != without);
        let others: Vec<String> = others.map(|(blocks, rate)| format!("{blocks} blocks: {rate:.0}/s")).collect();
        format!(" of one processor ({})", others.join(", "))
    };
    let of = rates.iter().find(|(blocks, _)| blocks == "16").map_or(f64::NAN, |(_, rate)| *rate);
    vec![BenchRow::at_least("predicted times, functions of 16 blocks", of, 100_000.0, "/s", &detail("16"))]
}

/// Blocks of each function, and functions a second, of a line such as `50000 16 167754 functions/s (50000 without a refusal)`.
fn rate(line: &str) -> Option<(String, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [_, blocks, rate, "functions/s", ..] => Some((blocks.to_string(), rate.parse().ok()?)),
        _ => None,
    }
}
