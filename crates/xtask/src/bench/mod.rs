//! `cargo xtask bench`: the project's promises about speed and size, each measured beside its limit on the machine it runs on. The values
//! are medians. Values to be compared are measured in turns, so that a noisy machine hits both alike.

mod calls;
mod code;
mod contexts;
mod cost;
mod daemon;
mod diagnose;
mod edges;
mod hold;
mod hot;
mod keys;
mod markdown;
mod pairs;
mod papers;
mod paths;
mod predictions;
mod prints;
mod programs;
mod slow;
mod start;
mod times;
mod whole;

use anyhow::{Context, Result, ensure};
use ingraft_testing::{Tool, sibling};

use crate::{built, packages};

/// One line of the table.
pub struct BenchRow {
    what: String,
    limit: String,
    measured: String,
    reached: Option<bool>,
}

impl BenchRow {
    /// A value that must not exceed a limit.
    fn at_most(what: impl Into<String>, measured: f64, limit: f64, unit: &str, detail: &str) -> BenchRow {
        let measured_text = format!("{}{unit}{detail}", short(measured));
        BenchRow {
            what: what.into(),
            limit: format!("<= {}{unit}", short(limit)),
            measured: measured_text,
            reached: Some(measured <= limit),
        }
    }

    /// A value that must not fall below a limit.
    fn at_least(what: impl Into<String>, measured: f64, limit: f64, unit: &str, detail: &str) -> BenchRow {
        let measured_text = format!("{}{unit}{detail}", short(measured));
        BenchRow {
            what: what.into(),
            limit: format!(">= {}{unit}", short(limit)),
            measured: measured_text,
            reached: Some(measured >= limit),
        }
    }

    /// Values without a limit.
    fn told(what: impl Into<String>, text: String) -> BenchRow {
        BenchRow { what: what.into(), limit: String::new(), measured: text, reached: None }
    }

    /// A value that could not be measured on this machine.
    fn skipped(what: impl Into<String>, why: impl Into<String>) -> BenchRow {
        BenchRow {
            what: what.into(),
            limit: String::new(),
            measured: format!("skipped: {}", why.into()),
            reached: None,
        }
    }
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        medium if medium >= 100.0 => format!("{value:.0}"),
        small if small >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The worst-case cost of a metric's code per call in nanoseconds, as `metrics --cost` says.
fn predicted_ns(metric: &str) -> f64 {
    let outcome = tool().run(["metrics", "--cost"]).assert_code(0);
    let lowered = outcome.all("lowered").into_iter().find(|m| m["metric"] == metric).cloned().unwrap_or_default();
    let pieces = lowered["pieces"].as_array().cloned().unwrap_or_default();
    pieces.iter().filter_map(|piece| piece["ns"].as_f64()).sum()
}

/// Compares the cost model with a measurement: the predicted cost of a call, in multiples of the measured one. The limits are a factor of
/// two either way.
fn predicted(metric: &str, measured: f64) -> [BenchRow; 2] {
    let ns = predicted_ns(metric);
    let ratio = ns / measured;
    let detail = format!(" ({} ns predicted, {} ns measured)", short(ns), short(measured));
    [
        BenchRow::at_most(format!("predicted cost of {metric}, beside the measured one"), ratio, 2.0, "x", &detail),
        BenchRow::at_least(format!("predicted cost of {metric}, beside the measured one"), ratio, 0.5, "x", ""),
    ]
}

/// The median; values need not be sorted.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}

/// A group of rows by its name.
type BenchGroup = (&'static str, fn() -> Vec<BenchRow>);

const GROUPS: &[BenchGroup] = &[
    ("calls", calls::rows),
    ("times", times::rows),
    ("keys", keys::rows),
    ("prints", prints::rows),
    ("slow", slow::rows),
    ("contexts", contexts::rows),
    ("paths", paths::rows),
    ("papers", papers::rows),
    ("hold", hold::rows),
    ("start", start::rows),
    ("code", code::rows),
    ("predictions", predictions::rows),
    ("daemon", daemon::rows),
    ("pairs", pairs::rows),
    ("cost", cost::rows),
    ("edges", edges::rows),
    ("whole", whole::rows),
    ("hot", hot::rows),
    ("diagnose", diagnose::rows),
];

/// Measures the named groups, or all, and prints the table; with `--markdown`, also writes their sections of docs/measured.md. Fails when a limit
/// is not kept.
pub fn run(arguments: &[&str]) -> Result<()> {
    let names: Vec<&str> = arguments.iter().filter(|argument| **argument != "--markdown").copied().collect();
    for name in &names {
        let known: Vec<&str> = GROUPS.iter().map(|(group, _)| *group).collect();
        ensure!(known.contains(name), "no group {name}: there are {}", known.join(", "));
    }
    packages::install(false)?;
    built::build()?;
    let machine = markdown::machine();
    let mut measured = Vec::new();
    for (name, measure) in GROUPS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        eprintln!("measuring {name}");
        measured.push((*name, guarded(name, measure)));
    }
    if arguments.contains(&"--markdown") {
        let path = ingraft_testing::source_directory().join("docs/measured.md");
        let page = markdown::page(&std::fs::read_to_string(&path).unwrap_or_default(), &measured, &machine);
        std::fs::write(&path, page).with_context(|| path.display().to_string())?;
    }
    let rows: Vec<BenchRow> = measured.into_iter().flat_map(|(_, rows)| rows).collect();
    print(&rows);
    let missed = rows.iter().filter(|row| row.reached == Some(false)).count();
    ensure!(missed == 0, "{missed} of {} limits are not kept on this machine", rows.len());
    Ok(())
}

/// Runs one group. A measurement that fails must not hide the results of others; its panic has given the reason.
fn guarded(what: &str, measure: impl FnOnce() -> Vec<BenchRow> + std::panic::UnwindSafe) -> Vec<BenchRow> {
    let failed = || vec![BenchRow { reached: Some(false), ..BenchRow::skipped(what, "failed, see above") }];
    std::panic::catch_unwind(measure).unwrap_or_else(|_| failed())
}

fn print(rows: &[BenchRow]) {
    let width = |text: fn(&BenchRow) -> &str| rows.iter().map(|row| text(row).chars().count()).max().unwrap_or(0);
    let (what, limit) = (width(|row| &row.what), width(|row| &row.limit));
    for row in rows {
        let verdict = match row.reached {
            Some(true) => "ok  ",
            Some(false) => "MISS",
            None => "-   ",
        };
        println!("{verdict}  {:what$}  {:limit$}  {}", row.what, row.limit, row.measured);
    }
}

/// Number of programs for a row about how often something is found: 20, or fewer for a trial (`INGRAFT_BENCH_PROGRAMS`).
fn trials() -> usize {
    std::env::var("INGRAFT_BENCH_PROGRAMS").ok().and_then(|number| number.parse().ok()).filter(|n| *n > 0).unwrap_or(20)
}

/// The command line that was just built.
fn tool() -> Tool {
    Tool::new(sibling("ingraft"))
}
