//! Measures how much processor time `ingraft latency` of all functions takes in real programs, beside the cost that it predicts.

use ingraft_testing::have;

use super::programs::{BenchProgram, PROGRAMS, run};
use super::{BenchRow, median, short};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// Largest ratio between the two costs, either way.
const LIMIT: f64 = 4.0 / 3.0;

pub fn rows() -> Vec<BenchRow> {
    let price = super::predicted_ns("latency");
    PROGRAMS.iter().map(|program| row(program, price)).collect()
}

fn row(program: &BenchProgram, price: f64) -> BenchRow {
    let what = format!("predicted cost of times in {}, beside its processor time", program.name);
    if !have(program.name) {
        return BenchRow::skipped(what, "it is not installed");
    }
    let runs: Vec<((f64, u64), f64)> = (0..ROUNDS).map(|_| (timed(program), run(program, None).0)).collect();
    let taken = median(runs.iter().map(|((timed, _), plain)| timed - plain));
    let calls = runs.first().map_or(0, |((_, calls), _)| *calls) as f64;
    let (predicted, measured) = (calls * price / 1e9, taken.max(1e-9));
    let ratio = (predicted / measured).max(measured / predicted);
    let detail = format!(
        " ({} s predicted, {} s measured: {} ns a call beside {})",
        short(predicted),
        short(measured),
        short(measured / calls * 1e9),
        short(price)
    );
    BenchRow::at_most(what, ratio, LIMIT, "x", &detail)
}

/// Times all functions of a program. Returns its processor time in seconds, and the number of timed calls.
fn timed(program: &BenchProgram) -> (f64, u64) {
    let (used, outcome) = run(program, Some(&["latency"]));
    let calls = |row: &serde_json::Value| row["timed"].as_u64();
    (used, outcome.map_or(0, |outcome| outcome.all("latency").iter().filter_map(|row| calls(row)).sum()))
}
