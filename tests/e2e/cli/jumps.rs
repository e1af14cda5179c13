//! Tests that a longjmp ends the calls that it leaves when it lands, not only when the next measured call begins.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, program, scaled, skip, source_directory};

use crate::tool;

fn inside() -> String {
    source_directory().join("tests/e2e/mdl/inside.mdl").to_str().expect("a path").to_owned()
}

fn last(outcome: &Outcome, metric: &str) -> u64 {
    let last = outcome.all("sample").into_iter().rfind(|s| s["metric"] == metric).expect("a sample");
    last["value"].as_u64().expect("a number")
}

/// Makes rounds in which jumps end calls of `function`, and compares the values with the program's own.
#[track_caller]
fn ends_at_the_landing(name: &str, command: &str, function: &str) {
    if let Err(why) = program(name) {
        skip!("{why}");
    }
    let mut target = Mutatee::start(name, &[]);
    let before = Text::of(target.pid());
    let focus = |metric: &str, of: &str| format!("{metric}@/Code/{name}/{of}");
    let pairs = [focus("naps_inside", function), focus("wall_time", function), focus("calls", "nap")];
    let mut session = tool().start(
        ["watch", "-p", &target.pid_text(), "-I", &inside()].into_iter().chain(pairs.each_ref().map(String::as_str)),
    );
    session.wait_for("attached");
    let truth = target.ask(&format!("{command} {}", scaled(50, 2_000)));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let value = |metric: &str| last(&outcome, metric);
    assert_eq!(value("calls"), truth.tally("nap"));
    assert_eq!(value("naps_inside"), truth.number(&format!("inside {function}")), "{outcome:#?}");
    // Each nap after a landing takes at least a millisecond.
    let (measured, own) = (value("wall_time"), truth.number(&format!("ns {function}")));
    let elsewhere = 1_000_000 * (truth.tally("nap") - truth.number(&format!("inside {function}")));
    assert!(measured.abs_diff(own) <= elsewhere.max(own / 10) / 2, "{measured} ns, but {own} by the program's clock");
    target::assert_clean(target.pid(), &before);
    target.ask(&format!("{command} 10")).assert_right();
}

#[test]
fn over_some_frames() {
    ends_at_the_landing("jumps", "land", "dive");
}

#[test]
fn back_into_a_function_that_goes_on() {
    ends_at_the_landing("jumps", "keep", "keeper");
}

#[test]
fn from_a_signal_handler() {
    ends_at_the_landing("jumps", "signal", "pierced");
}

#[test]
fn from_a_signal_handler_on_its_own_stack() {
    ends_at_the_landing("jumps", "stack", "pierced");
}

#[test]
fn by_the_checked_longjmp() {
    ends_at_the_landing("jumps-fortified", "land", "dive");
    ends_at_the_landing("jumps-fortified", "stack", "pierced");
}

#[test]
fn into_the_cleanup_handlers_of_a_thread_that_ends() {
    ends_at_the_landing("jumps", "cancel", "dropped");
    ends_at_the_landing("jumps-static", "cancel", "dropped");
}

#[test]
fn of_a_static_program() {
    ends_at_the_landing("jumps-static", "land", "dive");
    ends_at_the_landing("jumps-static", "signal", "pierced");
}

#[test]
fn of_musl() {
    ends_at_the_landing("jumps-musl", "land", "dive");
    ends_at_the_landing("jumps-musl", "signal", "pierced");
}

#[test]
fn what_stands_still_during_a_call_goes_on_at_the_landing() {
    let mut target = Mutatee::start("jumps", &[]);
    let before = Text::of(target.pid());
    let mut session =
        tool().start(["watch", "-p", &target.pid_text(), "-I", &inside(), "naps_directly@/Code/jumps/keeper"]);
    session.wait_for("attached");
    let truth = target.ask(&format!("keep {}", scaled(50, 2_000)));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(last(&outcome, "naps_directly"), truth.number("direct"));
    target::assert_clean(target.pid(), &before);
    target.ask("keep 10").assert_right();
}
