//! Measures printed calls: what a call costs that is printed, and one that is not, and how many lines a second reach a file.

use std::time::Instant;

use ingraft_testing::Mutatee;

use super::times::{Printing, TimedCalls, measured, measured_printing};
use super::{BenchRow, short};

/// Calls of a round in which every call is printed: their records fit into the largest buffer.
const PRINTED: u64 = 100_000;
const ROUNDS: usize = 9;
/// Calls of which each one is a line in a file.
const LINES: u64 = 1_000_000;

pub fn rows() -> Vec<BenchRow> {
    let row = |what: &str, calls: TimedCalls, limit: f64| {
        let TimedCalls { plain, woven, .. } = calls;
        let detail = format!(" ({} ns a call, unmeasured {} ns)", short(woven), short(plain));
        BenchRow::at_most(what, woven - plain, limit, " ns", &detail)
    };
    let unmet = measured(&["print", "woven", "$arg[0]", "--entry", "--if", "$arg[0] == 0"]);
    let fast = measured(&["print", "woven", "$arg[0]", "--slower", "1s"]);
    let printed = |values: &[&str]| measured_printing(&[&["print", "woven"], values].concat(), PRINTED, ROUNDS);
    vec![
        row("a call that a condition on an argument does not print", unmet, 5.0),
        row("a call that a condition on its time does not print", fast, 25.0),
        row("a call that is printed with an argument, its result and its time", printed(&["$arg[0]"]), 200.0),
        row("a call that is printed when it begins", printed(&["$arg[0]", "--entry"]), 200.0),
        row("a call that is printed with a text", printed(&["str($arg[0])", "--entry"]), f64::INFINITY),
        lines(),
    ]
}

/// Lines a second to a file, none of which is lost.
fn lines() -> BenchRow {
    let what = "lines a second to a file, without loss";
    let mut target = Mutatee::start("bench", &[]);
    let printing = Printing::start(target.pid(), &["print", "woven", "$arg[0]"]);
    let begin = Instant::now();
    target.ask(&format!("measure {LINES} 1 1"));
    let text = printing.end();
    let seconds = begin.elapsed().as_secs_f64();
    let printed = text.lines().filter(|line| line.contains(" woven ")).count();
    let last = text.lines().rev().find(|line| line.contains(" printed")).unwrap_or_default();
    // The program makes a few calls more to warm up. Calls that were not printed are told behind those that were.
    if (printed as u64) < LINES || !last.ends_with(" printed") {
        return BenchRow { reached: Some(false), ..BenchRow::skipped(what, format!("{printed} lines: {last}")) };
    }
    BenchRow::at_least(
        what,
        printed as f64 / seconds,
        100_000.0,
        "",
        &format!(" ({LINES} lines in {} s)", short(seconds)),
    )
}
