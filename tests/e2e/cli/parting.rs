//! Tests of exact profiles of programs that end by themselves, with threads in the middle of functions, and others that have just ended.

use ingraft_testing::{Mutatee, Outcome, program};

use crate::tool;

/// Calls that each thread makes.
const CALLS: u64 = 3000;
/// Kinds of profiles that depend on where threads are at the end.
const KINDS: [&str; 3] = ["blocks", "edges", "events"];
const FUNCTIONS: [&str; 3] = ["work", "stay", "turn"];

/// The executions of the first block of a function, which begins with each call.
fn calls(outcome: &Outcome, function: &str) -> u64 {
    let is_first = |record: &&&serde_json::Value| record["function"] == function && record["block"] == "0x0";
    let blocks = outcome.all("block");
    let first = blocks.iter().find(is_first).and_then(|block| block["count"].as_u64());
    first.unwrap_or_else(|| panic!("no count of {function} in {outcome:#?}"))
}

/// Fails if a number is not exact, or if it is not the program's own.
fn assert_whole(kind: &str, outcome: &Outcome) {
    let records: Vec<_> = ["block", "edge", "events"].iter().flat_map(|kind| outcome.all(kind)).collect();
    assert!(!records.is_empty(), "{kind}: {outcome:#?}");
    for record in records {
        assert!(record["inexact"].is_null(), "{kind}: {record}");
    }
    assert!(!outcome.stderr.contains("exact"), "{kind}: {}", outcome.stderr);
    if kind == "blocks" {
        assert_eq!(calls(outcome, "work"), 4 * CALLS);
        assert_eq!(calls(outcome, "stay"), CALLS + 1);
    }
}

#[test]
fn a_profile_is_exact_whichever_way_the_program_ends() {
    for way in ["leave", "other", "quick", "vfork"] {
        for kind in KINDS {
            let mut target = Mutatee::start("parting", &[]);
            let session = tool().measure("profile", target.pid(), &[&[kind], &FUNCTIONS[..]].concat());
            target.tell(&format!("{way} {CALLS}"));
            assert_whole(kind, &session.finish().assert_code(0));
        }
    }
}

#[test]
fn a_profile_of_a_started_program_is_exact_to_its_end() {
    let parting = program("parting").expect("the program").display().to_string();
    let number = CALLS.to_string();
    for kind in KINDS {
        let options = ["profile", kind, "--max-overhead", "10000"];
        let command = [&options[..], &FUNCTIONS, &["--", &parting, "leave", &number]].concat();
        assert_whole(kind, &tool().run(command).assert_code(0));
    }
}

/// Two measurements of one process: both are read before it ends.
#[test]
fn all_profiles_of_a_process_are_exact_to_its_end() {
    let mut target = Mutatee::start("parting", &[]);
    let tool = tool();
    let first = tool.measure("profile", target.pid(), &["blocks", "work"]);
    let pid = target.pid_text();
    let mut second = tool.start([&["profile", "blocks", "-p", &pid], &FUNCTIONS[..]].concat());
    second.wait_for("changed");
    target.tell(&format!("leave {CALLS}"));
    let [first, second] = [first, second].map(|session| session.finish().assert_code(0));
    assert_eq!(calls(&first, "work"), 4 * CALLS);
    assert_whole("blocks", &second);
    assert!(!first.stderr.contains("exact"), "{}", first.stderr);
}

/// A program that forbids itself to wait does not wait at its end, however soon that comes.
#[test]
fn a_program_with_a_filter_of_system_calls_ends_as_without_a_profile() {
    let parting = program("parting").expect("the program").display().to_string();
    for way in ["prctl", "seccomp"].iter().cycle().take(20) {
        let command = ["profile", "blocks", "--max-overhead", "10000", "work", "--", &parting, way, "100"];
        let outcome = tool().run(command).assert_code(0);
        let ended = outcome.one("ended");
        assert_eq!((&ended["status"], &ended["signal"]), (&0.into(), &serde_json::Value::Null), "{way}: {outcome:#?}");
    }
}

/// Where threads were at the end decides which branches are known to have been taken, and nobody knows that of a program that was killed.
#[test]
fn a_coverage_tells_more_of_a_program_that_ends_by_itself() {
    let parting = program("parting").expect("the program").display().to_string();
    let unknown = |way: &str| -> u64 {
        let command = ["profile", "coverage", "--own-status", "parting:*", "--", &parting, way, "300"];
        let outcome = tool().run(command).assert_code(0);
        outcome.all("coverage").iter().map(|record| record["branches_unknown"].as_u64().expect("a number")).sum()
    };
    let (of_end, of_kill) = (unknown("leave"), unknown("kill"));
    assert!(of_end < of_kill, "{of_end} branches are not known, and {of_kill} of a program that was killed");
}
