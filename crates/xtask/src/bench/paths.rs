//! Measures what the paths of all functions of real programs cost, beside their edges, which have fewer counters and no records of calls;
//! and what paths by calling context cost, beside contexts.

use ingraft_testing::have;

use super::programs::{PROGRAMS, run};
use super::{BenchRow, median, short};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// By how much paths may cost more than edges, and paths by context more than contexts, as a part of the time of the plain program.
const BESIDE: f64 = 0.1;
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
        let time = |arguments: &[&str]| run(program, Some(arguments).filter(|all| !all.is_empty())).0;
        let commands: [&[&str]; 5] = [
            &[],
            &["profile", "edges"],
            &["profile", "paths"],
            &["profile", "contexts"],
            &["profile", "paths", "--contexts"],
        ];
        let all: Vec<[f64; 5]> = (0..ROUNDS).map(|_| commands.map(time)).collect();
        let [plain, edges, paths, contexts, both] = [0, 1, 2, 3, 4].map(|n| median(all.iter().map(|of| of[n])));
        let ratio = |told: f64| told / plain.max(1e-9);
        ratios.push(ratio(paths));
        let detail = format!(" (edges {}x, plain {} s)", short(ratio(edges)), short(plain));
        rows.push(BenchRow::at_most(what, ratio(paths), ratio(edges) + BESIDE, "x", &detail));
        let what = format!("the same by calling context, {}", program.name);
        let detail = format!(" (contexts {}x)", short(ratio(contexts)));
        rows.push(BenchRow::at_most(what, ratio(both), ratio(contexts) + BESIDE, "x", &detail));
    }
    if !ratios.is_empty() {
        rows.push(BenchRow::at_most("the median of these programs", median(ratios), OF_THE_PAPER, "x", ""));
    }
    rows
}
