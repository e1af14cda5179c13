//! Measures what the paths of all functions of real programs cost, beside their edges, which have fewer counters and no records of calls.

use ingraft_testing::have;

use super::programs::{PROGRAMS, run};
use super::{BenchRow, median, short};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// By how much paths may cost more than edges, as a part of the time of the plain program.
const BESIDE_EDGES: f64 = 0.1;
/// Ratio of the times with and without path profiling that Ammons, Ball and Larus (1997) have measured.
const OF_THE_PAPER: f64 = 1.31;

pub fn rows() -> Vec<BenchRow> {
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for program in PROGRAMS {
        let what = format!("paths of all functions of {}, beside the plain program", program.name);
        if !have(program.name) {
            rows.push(BenchRow::skipped(what, "it is not installed"));
            continue;
        }
        let time = |kind: Option<&str>| run(program, kind.map(|kind| ["profile", kind]).as_ref().map(|all| &all[..])).0;
        let all: Vec<[f64; 3]> = (0..ROUNDS).map(|_| [time(None), time(Some("edges")), time(Some("paths"))]).collect();
        let [plain, edges, paths] = [0, 1, 2].map(|n| median(all.iter().map(|of| of[n])));
        let ratio = |told: f64| told / plain.max(1e-9);
        ratios.push(ratio(paths));
        let detail = format!(" (edges {}x, plain {} s)", short(ratio(edges)), short(plain));
        rows.push(BenchRow::at_most(what, ratio(paths), ratio(edges) + BESIDE_EDGES, "x", &detail));
    }
    if !ratios.is_empty() {
        rows.push(BenchRow::at_most("the median of these programs", median(ratios), OF_THE_PAPER, "x", ""));
    }
    rows
}
