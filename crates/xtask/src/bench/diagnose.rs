//! Measures how well `ingraft diagnose` finds planted causes, in 20 programs for each cause, or `INGRAFT_BENCH_PROGRAMS`.

use std::time::{Duration, Instant};

use ingraft_testing::causes::{self, Cause};
use ingraft_testing::source_directory;

use super::{BenchRow, median, tool, trials};

/// Longest time of a search.
const LONGEST: Duration = Duration::from_secs(20);

const CAUSES: [Cause; 6] =
    [causes::HOT_LOOP, causes::MUTEX, causes::DISK, causes::PAGE_FAULTS, causes::SLEEP, causes::UPSTREAM];

pub fn rows() -> Vec<BenchRow> {
    CAUSES.iter().map(row).collect()
}

fn row(cause: &Cause) -> BenchRow {
    let all = trials();
    let searches: Vec<(bool, f64)> = (0..all).map(|_| search(cause)).collect();
    let right = searches.iter().filter(|(is_first, seconds)| *is_first && *seconds <= LONGEST.as_secs_f64()).count();
    let times = searches.iter().map(|(_, seconds)| *seconds);
    let longest = times.clone().fold(0.0, f64::max);
    let detail = format!(" ({:.1} s in the median, {longest:.1} s at most)", median(times));
    let what = format!("{} is the first finding within 20 s", cause.name);
    BenchRow::at_least(what, right as f64, all as f64, &format!(" of {all}"), &detail)
}

/// Searches a program. Returns whether the first finding is the cause, and the time of the search in seconds.
fn search(cause: &Cause) -> (bool, f64) {
    // Files of the disk lie beside what is built, for which there is room.
    let mut ailing = cause.start(&source_directory().join("target"));
    let begin = Instant::now();
    let outcome = tool().run(["diagnose", "-p", &ailing.target.pid_text()]).assert_code(0);
    let seconds = begin.elapsed().as_secs_f64();
    ailing.target.ask("rest");
    let findings = outcome.all("finding");
    let first = findings.iter().find(|finding| finding["parent"] == 1 && finding["holds"] == true);
    let is_first = first.is_some_and(|first| {
        let names = first["evidence"].as_str().is_some_and(|evidence| evidence.contains(cause.function));
        first["hypothesis"] == cause.hypothesis && names
    });
    if !is_first {
        eprintln!("{} was not found first: {:#?}", cause.name, outcome.objects);
    }
    (is_first, seconds)
}
