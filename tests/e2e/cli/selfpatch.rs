//! Tests of programs that write their own code while they are measured: a copy of a function would go on with what the code was before.

use ingraft_testing::target::Text;
use ingraft_testing::{Mutatee, wait_until};
use serde_json::Value;

use crate::tool;

fn asks_right(target: &mut Mutatee, command: &str) -> bool {
    target.ask(command).number("wrong") == 0
}

/// The program's tables tell where it may write.
#[test]
fn a_function_with_a_static_key_is_not_copied() {
    let mut target = Mutatee::start("selfpatch", &[]);
    // From its first write on, the program has its text in several mappings.
    target.ask("key on");
    target.ask("key off");
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["edges", "gated", "plain"]);
    assert!(asks_right(&mut target, "go 100"));
    target.ask("spin 2");
    target.ask("key on");
    assert!(asks_right(&mut target, "go 1000"));
    target.ask("key off");
    assert!(asks_right(&mut target, "rest"), "no answer was wrong at any time");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let refused = outcome.all("refused");
    let is_named = |r: &&Value| r["function"] == "gated" && r["reason"] == "patched_by_program";
    assert!(refused.iter().any(is_named), "{outcome:#?}");
    let is_counted = |r: &&Value| r["function"] == "plain" && r["count"].as_u64().is_some_and(|count| count > 0);
    assert!(outcome.all("edge").iter().any(is_counted), "{outcome:#?}");
    before.assert_in(target.pid());
    // Points beside the key are as exact as ever, whatever the key does.
    let session = tool().count(target.pid(), &["gated"]);
    target.ask("key on");
    assert!(asks_right(&mut target, "go 1000"));
    target.ask("key off");
    assert!(asks_right(&mut target, "go 1000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("gated"), 2000);
    before.assert_in(target.pid());
}

/// Nothing tells before that the program will write there.
#[test]
fn a_copy_is_given_up_when_the_program_writes_the_text() {
    let mut target = Mutatee::start("selfpatch", &[]);
    let tool = tool();
    let session = tool.measure("profile", target.pid(), &["edges", "constant", "plain"]);
    assert!(asks_right(&mut target, "go 1000"));
    target.ask("spin 2");
    target.ask("set 7");
    wait_until("the answers are right", || asks_right(&mut target, "go 100"));
    target.ask("rest");
    target.ask("spin 2");
    assert!(asks_right(&mut target, "go 1000"));
    target.ask("set 9");
    assert!(asks_right(&mut target, "go 1000"), "the text counts, not a copy");
    assert!(asks_right(&mut target, "rest"));
    let there = Text::of(target.pid());
    let outcome = session.interrupt();
    let is_told = |text: &str| text.contains("changed the code of `constant`");
    assert!(is_told(&outcome.one("removed")["warnings"].to_string()), "{outcome:#?}");
    let is_inexact = |r: &&Value| r["function"] == "constant" && r.get("inexact").is_some();
    assert!(outcome.objects.iter().any(|r| is_inexact(&r)), "{outcome:#?}");
    assert!(!outcome.objects.iter().any(|r| r["function"] == "plain" && r.get("inexact").is_some()), "{outcome:#?}");
    let differences = there.differences(&Text::of(target.pid()));
    // Threads wait for the engine in the loader and in the C library.
    let own: Vec<_> = differences.iter().filter(|text| text.contains("/selfpatch:")).collect();
    assert!(own.len() < 2 && differences.len() < 4, "only `plain` was woven: {differences:#?}");
    assert!(asks_right(&mut target, "go 1000"));
    assert_eq!(ingraft_testing::target::arenas(target.pid()), 0);
    // The next measurement sees the changed text.
    let outcome = tool.run(["profile", "edges", "-p", &target.pid_text(), "constant", "--for", "50ms"]);
    assert!(outcome.stderr.contains("bytes_differ") || outcome.stderr.contains("differ from the file"), "{outcome:#?}");
    // The old code is the file's again.
    target.ask("set 3");
    let session = tool.measure("profile", target.pid(), &["edges", "constant"]);
    assert!(asks_right(&mut target, "go 1000"));
    let _ = session.interrupt().assert_code(0).assert_removed();
    assert!(asks_right(&mut target, "go 1000"));
}

/// The same for what metrics measure in a copy.
#[test]
fn values_of_a_copy_that_is_given_up_stay_as_they_were() {
    let mut target = Mutatee::start("selfpatch", &[]);
    let mut session = tool().measure("count", target.pid(), &["constant#*->*", "plain"]);
    assert!(asks_right(&mut target, "go 1000"));
    target.ask("set 7");
    wait_until("the answers are right", || asks_right(&mut target, "go 100"));
    let out = session.wait_for("taken_out");
    assert_eq!(out["rewritten"], true, "{out}");
    assert!(asks_right(&mut target, "go 1000"));
    let outcome = session.interrupt();
    assert!(outcome.stderr.contains("not exact"), "{outcome:#?}");
    assert!(asks_right(&mut target, "go 1000"));
    assert_eq!(ingraft_testing::target::arenas(target.pid()), 0);
}

/// The pages that have springboards come from the file again, while threads are in copies of the functions.
#[test]
fn a_program_may_discard_the_pages_of_its_text() {
    let mut target = Mutatee::start("selfpatch", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let file = trace.path().to_str().expect("a path");
    let kinds: [&[&str]; 5] = [
        &["count"],
        &["latency", "--max-overhead", "10000"],
        &["profile", "edges"],
        &["profile", "coverage", "--branches"],
        &["trace", "-o", file],
    ];
    target.ask("spin 2");
    for kind in kinds {
        let functions = ["-p", &pid, "plain", "constant"];
        let mut session = tool().start(kind.iter().copied().chain(functions));
        session.wait_for("attached");
        assert!(asks_right(&mut target, "drop 200"));
        assert!(asks_right(&mut target, "go 1000"), "{kind:?}");
        let outcome = session.interrupt();
        assert_eq!(outcome.one("removed")["text_restored"], true, "{kind:?}: {outcome:#?}");
        before.assert_in(target.pid());
    }
    assert!(asks_right(&mut target, "rest"));
    assert!(asks_right(&mut target, "go 1000"));
    before.assert_in(target.pid());
}
