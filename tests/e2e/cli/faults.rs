//! Tests of programs whose handlers skip or emulate the instruction that has faulted: the saved program counter that such a handler changes
//! must not be the first byte of a springboard.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, scaled};

use crate::profiles::counts;
use crate::tool;

/// The functions of the program that fault.
const FAULTING: [&str; 4] = ["reads", "adds", "third", "divides"];

/// Measures while threads fault without end at the first and at later instructions of the measured functions.
fn storm(arguments: &[&str], command: &str, words: &[&str]) {
    let mut target = Mutatee::start("skips", arguments);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("spin 4");
    for round in 0..scaled(30, 300) {
        let session = tool.measure(command, target.pid(), words);
        let _ = session.interrupt().assert_code(0).assert_removed();
        assert!(target.alive(), "round {round}");
        target.ask("go 10").assert_right();
    }
    target.ask("rest").assert_right();
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

#[test]
fn counts_come_and_go_in_a_storm() {
    storm(&[], "count", &FAULTING);
}

#[test]
fn counts_come_and_go_without_a_siginfo() {
    storm(&["plain"], "count", &FAULTING);
}

#[test]
fn copies_come_and_go_in_a_storm() {
    let words: Vec<&str> = ["edges"].into_iter().chain(FAULTING).collect();
    storm(&[], "profile", &words);
}

#[test]
fn calls_that_fault_are_counted() {
    let mut target = Mutatee::start("skips", &[]);
    let before = Text::of(target.pid());
    let earlier = target.ask("go 100").tally("calls");
    let session = tool().count(target.pid(), &FAULTING);
    target.ask("spin 4");
    target.ask("go 1000").assert_right();
    let truth = target.ask("rest");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in FAULTING {
        assert_eq!(outcome.calls(function), truth.tally("calls") - earlier, "{function}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_handler_that_does_not_return_is_named() {
    let mut target = Mutatee::start("skips", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("hold");
    let outcome = tool.run(["count", "-p", &target.pid_text(), "adds", "--for", "50ms"]).assert_code(1);
    let error: serde_json::Value = serde_json::from_str(outcome.stderr.trim()).expect("one error");
    assert_eq!(error["reason"], "busy", "{outcome:#?}");
    assert!(outcome.stderr.contains("handles a fault of the instruction at"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    // Other functions can be measured.
    let session = tool.count(target.pid(), &["reads", "third", "divides"]);
    target.ask("go 10").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("third"), 10);
    target.ask("let").assert_right();
    let session = tool.count(target.pid(), &["adds"]);
    target.ask("go 10").assert_right();
    // A removal does not wait for a handler.
    target.ask("hold");
    let outcome = session.interrupt();
    assert_eq!(outcome.calls("adds"), 11);
    assert_eq!(outcome.one("removed")["memory_left"], true, "{outcome:#?}");
    before.assert_in(target.pid());
    target.ask("let").assert_right();
    target.ask("go 10").assert_right();
    let session = tool.count(target.pid(), &["adds"]);
    target.ask("go 10").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("adds"), 10);
    target::assert_clean(target.pid(), &before);
}

/// A handler continues behind a breakpoint or an undefined instruction of a copied function, in the text. What runs there is not counted.
#[test]
fn copies_run_beside_handlers_that_continue_behind_a_breakpoint() {
    let mut target = Mutatee::start("stops", &[]);
    let before = Text::of(target.pid());
    for kind in ["blocks", "edges"] {
        target.ask("go 10").assert_right();
        let session = tool().measure("profile", target.pid(), &[kind, "breaks", "undefined"]);
        before.assert_not_in(target.pid());
        target.ask("go 1000").assert_right();
        let outcome = session.interrupt().assert_removed();
        if kind == "blocks" {
            for function in ["breaks", "undefined"] {
                assert_eq!(counts(&outcome, function)[0], 1000, "{function}: {outcome:#?}");
            }
        }
        target::assert_clean(target.pid(), &before);
    }
    target.ask("go 100").assert_right();
    assert!(target.end().success());
}
