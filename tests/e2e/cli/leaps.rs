//! Signal handlers that are left for good by a jump: profiles of the functions that the signals interrupt say by how much they may be wrong,
//! compared with the program's own counts.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, open_directory, output};
use serde_json::Value;

use crate::profiles::assert_exact;
use crate::tool;

/// The records of a function of one type.
fn of<'o>(outcome: &'o Outcome, kind: &str, function: &str) -> Vec<&'o Value> {
    let records: Vec<&Value> =
        outcome.objects.iter().filter(|r| r["type"] == kind && r["function"] == function).collect();
    assert!(!records.is_empty(), "no {kind} of {function}");
    records
}

/// Counts of the blocks of a function; `None` if one is not known.
fn counts(outcome: &Outcome, function: &str) -> Vec<Option<u64>> {
    of(outcome, "block", function).iter().map(|record| record["count"].as_u64()).collect()
}

/// Count of the first block of a function.
fn calls(outcome: &Outcome, function: &str) -> Option<u64> {
    let blocks = of(outcome, "block", function);
    blocks.iter().find(|record| record["block"] == "0x0").and_then(|record| record["count"].as_u64())
}

/// The program's own counts of the places of a function.
fn truth(reply: &Reply, calls: &str, places: &str) -> Vec<u64> {
    let places = reply.after(places).split(' ').map(|number| number.parse().expect("a number"));
    places.chain([reply.number(calls)]).collect()
}

/// Fails if a count is not known or is further from all of the program's counts than the bound.
fn assert_within(counts: &[Option<u64>], truth: &[u64], bound: u64) {
    for count in counts {
        let count = count.expect("a count");
        // Some blocks never run.
        assert!(
            truth.iter().chain([&0]).any(|truth| truth.abs_diff(count) <= bound),
            "{count} of {truth:?}, bound {bound}"
        );
    }
}

/// Whether all records of a function state that the counts are not exact, or none does; the reason if all do.
fn inexact<'o>(outcome: &'o Outcome, kind: &str, function: &str) -> Option<&'o str> {
    let mut reasons: Vec<Option<&str>> =
        of(outcome, kind, function).iter().map(|record| record.get("inexact").and_then(Value::as_str)).collect();
    reasons.dedup();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    reasons[0]
}

#[test]
fn jumps_out_of_handlers_are_told_with_their_bound() {
    let mut target = Mutatee::start("leaps", &[]);
    let before = Text::of(target.pid());
    for kind in ["blocks", "edges"] {
        let start = target.ask("plain 0");
        let session = tool().measure("profile", target.pid(), &[kind, "touch", "spin", "idle"]);
        target.ask("fault 400");
        let reply = target.ask("timer 5");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let leaps = reply.number("leaps") - start.number("leaps");
        assert_eq!(leaps, 105);
        let record = if kind == "blocks" { "block" } else { "edge" };
        for function in ["touch", "spin"] {
            let why = inexact(&outcome, record, function).expect("the counts are not exact");
            assert!(why.contains(&format!("{leaps} jumps may have left signal handlers")), "{why}");
        }
        assert_eq!(inexact(&outcome, record, "idle"), None, "`idle` never ran");
        assert!(outcome.stderr.contains("are not exact"), "{}", outcome.stderr);
        if kind == "blocks" {
            for (function, words) in [("touch", "touched"), ("spin", "spun")] {
                assert_eq!(calls(&outcome, function), Some(reply.number(words) - start.number(words)), "{function}");
            }
            let since = |calls, places| -> Vec<u64> {
                let (now, before) = (truth(&reply, calls, places), truth(&start, calls, places));
                now.iter().zip(before).map(|(now, before)| now - before).collect()
            };
            assert_within(&counts(&outcome, "touch"), &since("touched", "places"), leaps);
        }
        target::assert_clean(target.pid(), &before);
    }
    assert!(target.end().success());
}

#[test]
fn jumps_out_of_handlers_by_contexts_are_told() {
    let mut target = Mutatee::start("leaps", &[]);
    let session = tool().measure("profile", target.pid(), &["blocks", "touch", "idle"]);
    let reply = target.ask("context 40");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!((reply.number("leaps"), calls(&outcome, "touch")), (10, Some(40)));
    let why = inexact(&outcome, "block", "touch").expect("the counts are not exact");
    assert!(why.contains("10 jumps may have left signal handlers"), "{why}");
    assert_eq!(inexact(&outcome, "block", "idle"), None);
    assert!(target.end().success());
}

#[test]
fn jumps_without_a_handler_leave_counts_exact() {
    let mut target = Mutatee::start("leaps", &[]);
    let session = tool().measure("profile", target.pid(), &["blocks", "touch", "deep", "idle", "--check"]);
    let reply = target.ask("plain 500");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    let calls = ["touch", "deep"].map(|function| calls(&outcome, function));
    assert_eq!(calls, ["touched", "deep"].map(|words| Some(reply.number(words))));
    assert!(target.end().success());
}

#[test]
fn counts_that_contradict_each_other_are_unknown_and_not_zero() {
    let mut target = Mutatee::start("leaps", &[]);
    let directory = open_directory();
    let file = directory.path().join("saved").to_str().expect("a path").to_owned();
    let session = tool().measure("profile", target.pid(), &["blocks", "touch", "--check", "-o", &file]);
    let reply = target.ask("fault 400");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let why = inexact(&outcome, "block", "touch").expect("the counts are not exact");
    assert!(why.contains("100 runs have ended in the middle") && why.contains("ingraft trace"), "{why}");
    let counts = counts(&outcome, "touch");
    assert!(counts.contains(&None) && counts.iter().any(Option::is_some), "{counts:?}");
    // Counts that counters tell directly are those of the program.
    let known: Vec<Option<u64>> = counts.into_iter().filter(Option::is_some).collect();
    assert_within(&known, &truth(&reply, "touched", "places"), 0);
    // The function stays in the table for people.
    let text = output(&mut tool().plain_command(["report", &file]));
    assert!(text.lines().any(|line| line.contains("touch") && line.contains('≥')), "{text}");
    assert!(target.end().success());
}

#[test]
fn events_of_functions_that_handlers_leave_are_told() {
    let mut target = Mutatee::start("leaps", &[]);
    let session = tool().measure("profile", target.pid(), &["events", "touch", "idle", "--query"]);
    target.ask("fault 40");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(inexact(&outcome, "events", "touch").is_some_and(|why| why.contains("10 jumps")));
    assert_eq!(inexact(&outcome, "events", "idle"), None);
    let totals = outcome.all("event_totals");
    let last = totals.last().expect("a total");
    assert!(last["inexact"].as_str().is_some_and(|why| why.contains("10 jumps")), "{last}");
    assert!(target.end().success());
}

#[test]
fn the_end_of_a_process_concerns_only_functions_that_its_threads_have_run() {
    let mut target = Mutatee::start("leaps", &[]);
    let session = tool().measure("profile", target.pid(), &["blocks", "forever", "touch", "idle"]);
    target.ask("plain 10");
    // Nobody can look at the threads of a process that is killed.
    target.tell("end");
    let outcome = session.finish();
    let why = inexact(&outcome, "block", "forever").expect("the counts are not exact");
    assert!(why.contains("at an unknown place") || why.contains("at unknown places"), "{why}");
    assert_eq!(inexact(&outcome, "block", "idle"), None, "`idle` never ran");
}
