//! Measures the processor time of real programs under an edge profile of all their functions, beside that without.

use ingraft_testing::have;

use super::programs::{BenchProgram, PROGRAMS, run};
use super::{BenchRow, median, short};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// Largest ratio of one program, and the largest median of all.
const WORST: f64 = 1.5;
const USUAL: f64 = 1.25;

pub fn rows() -> Vec<BenchRow> {
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for program in PROGRAMS {
        let what = format!("an edge profile of all functions of {}, beside the plain program", program.name);
        if !have(program.name) {
            rows.push(BenchRow::skipped(what, "it is not installed"));
            continue;
        }
        let (plain, profiled) = both(program);
        let ratio = profiled / plain.max(1e-9);
        ratios.push(ratio);
        let detail = format!(" ({} s, plain {} s)", short(profiled), short(plain));
        rows.push(BenchRow::at_most(what, ratio, WORST, "x", &detail));
    }
    let what = "median of these programs";
    rows.push(BenchRow::at_most(
        what,
        median(ratios.iter().copied()),
        USUAL,
        "x",
        &format!(" ({} programs)", ratios.len()),
    ));
    rows
}

/// Processor time of a program in seconds, plain and profiled, in turns.
fn both(program: &BenchProgram) -> (f64, f64) {
    let runs: Vec<(f64, f64)> =
        (0..ROUNDS).map(|_| (run(program, None).0, run(program, Some(&["profile", "edges"])).0)).collect();
    (median(runs.iter().map(|(plain, _)| *plain)), median(runs.iter().map(|(_, profiled)| *profiled)))
}
