//! Compares the reported hold time with the time that threads miss by their own clocks, and keeps holds within their bound.

use std::thread;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome};
use serde_json::Value;

use crate::tool;

/// Number of insertions and removals. Other work on the machine disturbs some of them: the host may take a processor away from a thread,
/// and
/// the thread cannot tell this from a hold.
const ROUNDS: usize = 20;

/// Returns the longest time, in milliseconds, for which any thread did not run since the previous call.
fn away(target: &mut Mutatee) -> f64 {
    target.ask("look").number("away") as f64 / 1e6
}

fn told(outcome: &Outcome, kind: &str) -> f64 {
    outcome.one(kind)["stopped_ms"].as_f64().expect("a time")
}

#[test]
fn the_time_that_is_told_is_what_the_worst_thread_missed() {
    let mut target = Mutatee::start("gaps", &["2"]);
    let (mut inserted, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        away(&mut target);
        let session = tool().count(target.pid(), &["work"]);
        let at_insertion = away(&mut target);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        inserted.push((told(&outcome, "attached"), at_insertion));
        removed.push((told(&outcome, "removed"), away(&mut target)));
    }
    for (what, rounds) in [("insertions", inserted), ("removals", removed)] {
        let count = |agree: fn(&&(f64, f64)) -> bool| rounds.iter().filter(agree).count();
        let (enough, not_too_much) = (
            count(|(told, missed)| *missed <= told * 1.1 + 0.1),
            // Some threads are held for a part of the hold time only.
            count(|(told, missed)| *told <= missed * 1.5 + 0.5),
        );
        let both = enough * 2 >= ROUNDS && not_too_much * 2 >= ROUNDS;
        assert!(both, "{what}: {enough} and {not_too_much} of {ROUNDS} agree (told, missed, in ms): {rounds:?}");
    }
}

/// A program with this many threads, which wait.
fn start(threads: &str) -> (Mutatee, Text) {
    let target = Mutatee::start("threads", &[threads]);
    let before = Text::of(target.pid());
    (target, before)
}

/// Asserts that the threads still run, and that the text is the original one.
#[track_caller]
fn assert_untouched(target: &mut Mutatee, before: &Text) {
    target.ask("go 8").assert_right();
    target::assert_clean(target.pid(), before);
}

#[test]
fn an_insertion_that_would_hold_its_target_for_too_long_is_given_up() {
    // The release of 400 threads alone takes longer than this bound. The two failures take 15 s each, so they run at once.
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut target, before) = start("400");
            let outcome = tool()
                .run(["count", "-p", &target.pid_text(), "work_0", "--max-hold", "1us"])
                .assert_error(1, &["--max-hold"]);
            let is_error = |line: &Value| line["type"] == "error";
            let error = outcome.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).find(is_error);
            assert_eq!(error.expect("an error")["reason"], "hold_too_long", "{outcome:#?}");
            assert!(outcome.all("attached").is_empty(), "{outcome:#?}");
            assert_untouched(&mut target, &before);
        });
        scope.spawn(|| {
            let (mut target, before) = start("400");
            let arguments = ["count", "-p", &target.pid_text(), "work_0", "--max-hold", "1us", "--wait", "1h"];
            let mut session = tool().start(arguments);
            session.wait_for_word("deferred");
            let _ = session.interrupt().assert_error(1, &["given up"]);
            assert_untouched(&mut target, &before);
        });
    });
}

#[test]
fn busy_threads_are_held_within_the_usual_bound() {
    let (mut target, before) = start("400");
    target.ask("spin");
    let session = tool().count(target.pid(), &["work_0"]);
    target.ask("rest");
    target.ask("solo 7").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 7);
    for kind in ["attached", "removed"] {
        let waited = outcome.one(kind)["waited_ms"].as_f64().expect("a time");
        assert!((0.0..=told(&outcome, kind)).contains(&waited), "a part of the hold: {outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
}

/// In a program that is being started nothing runs, so its threads may be held for any time.
#[test]
fn a_program_that_is_started_has_no_bound() {
    let program = ingraft_testing::program("determ").expect("gcc");
    let path = program.to_str().expect("a path");
    let arguments = ["count", "--until-exit", "--own-status", "determ:fib", "--max-hold", "1us", "--", path, "500"];
    let outcome = tool().run(arguments).assert_code(0);
    assert!(outcome.calls("fib") > 0, "{outcome:#?}");
}
