//! Tests of `ingraft profile times --explain`, confirmed by measured covariances: a program has planted causes, and computes their shares itself.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, skip};
use serde_json::Value;

use crate::tool;

/// Calls before the suspects are chosen, and after.
const CALLS: u64 = 2_000;
/// Number of measurements of a planted cause, until one was not disturbed.
const TRIES: usize = 8;
/// Share of a planted cause that only calls without disturbance have.
const UNDISTURBED: f64 = 0.8;

fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The answer of the command, and that of the program to `COMMAND CALLS` after the suspects were chosen.
fn explained(command: &str, function: &str, flags: &[&str]) -> (Outcome, Reply) {
    let mut target = Mutatee::start("culprits", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let words = ["profile", "times", "-p", &pid, "--explain", function, "--max-overhead", "10000", "culprits:*"];
    let mut session = tool().start(words.iter().chain(flags));
    session.wait_for("attached");
    target.ask(&format!("{command} 200"));
    session.wait_for("changed");
    if flags.contains(&"--trips") {
        session.wait_for("changed");
    }
    let truth = target.ask(&format!("{command} {CALLS}"));
    let outcome = session.interrupt().assert_code(0);
    let removed = outcome.all("removed");
    assert!(removed.len() == 1 && removed[0]["text_restored"] == true, "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    target.ask(&format!("{command} 10"));
    (outcome, truth)
}

/// The record of the measured calls. Shares and remainder must add up to 1.
fn whole(outcome: &Outcome) -> &Value {
    let all = outcome.all("explained");
    let [whole] = all.as_slice() else { panic!("not one record of measured calls: {outcome:#?}") };
    let causes = outcome.all("cause");
    let shares = causes.iter().filter_map(|cause| cause["measured"].as_f64()).sum::<f64>();
    assert!((shares + number(whole, "remainder") - 1.0).abs() < 1e-9, "{causes:#?} {whole}");
    let predicted: f64 = causes.iter().map(|cause| number(cause, "predicted")).sum();
    // Without a predicted variance, nothing has a share of it.
    assert!((predicted - 1.0).abs() < 1e-6 || predicted == 0.0, "{causes:#?}");
    let counted = ["measured", "skipped", "lost", "left"].iter().map(|key| number(whole, key)).sum::<f64>();
    assert!((counted - number(whole, "calls")).abs() < 0.5, "{whole}");
    outcome.objects.iter().find(|record| record["type"] == "explained").expect("a record")
}

/// The first cause must be the planted one, with the share that the program has computed. If the machine has disturbed the calls so much that the
/// planted cause has a smaller share, they are measured again. `None` if that was so each time.
#[track_caller]
fn assert_planted(command: &str, function: &str, what: &str) -> Option<Outcome> {
    for _ in 0..TRIES {
        let (outcome, truth) = explained(command, function, &[]);
        let whole = whole(&outcome);
        assert_eq!((whole["calls"].as_u64(), whole["measured"].as_u64()), (Some(CALLS), Some(CALLS)), "{whole}");
        assert!(number(whole, "mean_ns") > 0.0 && number(whole, "stddev_ns") > 0.0, "{whole}");
        let share = truth.number("share") as f64 / 1000.0;
        let causes = outcome.all("cause");
        if share > UNDISTURBED {
            let first = causes.first().expect("a cause");
            assert_eq!(first["what"], what, "{outcome:#?}");
            assert!(first["source"].as_str().is_some_and(|source| source.contains("culprits.c:")), "{first}");
            assert!((number(first, "measured") - share).abs() < 0.1, "{first} has not the share {share}: {whole}");
            return Some(outcome);
        }
    }
    None
}

/// Reason why a test cannot tell.
const DISTURBED: &str = "other programs disturb this machine too much";

#[test]
fn iterations_of_a_loop_are_the_cause() {
    for (command, function) in [("loop", "serve_loop"), ("own", "serve_own")] {
        if assert_planted(command, function, "loop").is_none() {
            skip!("{DISTURBED}");
        }
    }
}

#[test]
fn a_call_that_is_slow_in_some_cases_is_the_cause() {
    if assert_planted("call", "serve_call", "callee").is_none() {
        skip!("{DISTURBED}");
    }
}

/// The prediction names the branch, and the covariance the call behind it.
#[test]
fn a_call_behind_a_branch_is_the_cause() {
    let Some(outcome) = assert_planted("branch", "serve_branch", "callee") else { skip!("{DISTURBED}") };
    let causes = outcome.all("cause");
    let branch = causes.iter().find(|cause| cause["what"] == "branch");
    let branch = branch.unwrap_or_else(|| panic!("no branch: {causes:#?}"));
    assert!(branch["measured"].is_null() && number(branch, "predicted") > 0.8, "{branch}");
}

/// The callee is in the C library, which is not profiled, so that no number of instructions tells of it.
#[test]
fn a_call_that_waits_is_the_cause() {
    if assert_planted("wait", "serve_wait", "callee").is_none() {
        skip!("{DISTURBED}");
    }
}

/// Calls inside of others belong to the outermost one, and count once.
#[test]
fn recursive_calls_count_once() {
    let (outcome, _) = explained("nested", "serve_nested", &[]);
    let whole = whole(&outcome);
    assert_eq!(whole["measured"].as_u64(), Some(CALLS), "{whole}");
    assert_eq!(whole["recursive"].as_u64(), Some(6 * CALLS), "{whole}");
}

#[test]
fn calls_that_are_left_are_told() {
    let (outcome, truth) = explained("leave", "serve_leave", &[]);
    let whole = whole(&outcome);
    let left = truth.number("left");
    assert!(left > 0);
    assert_eq!((whole["left"].as_u64(), whole["measured"].as_u64()), (Some(left), Some(CALLS - left)), "{whole}");
}

/// The function goes on behind a call that was left, whose time belongs to the rest.
#[test]
fn calls_that_do_not_return_to_the_function_are_told() {
    let (outcome, _) = explained("caught", "serve_caught", &[]);
    let whole = whole(&outcome);
    assert_eq!(whole["measured"].as_u64(), Some(CALLS), "{whole}");
    let missed: u64 = outcome.all("cause").iter().filter_map(|cause| cause["missed"].as_u64()).sum();
    assert!(missed > CALLS / 20, "{outcome:#?}");
}

/// The time of a call that ends in a tail jump lasts until the jump's target returns.
#[test]
fn tail_jumps_belong_to_the_call() {
    let (outcome, _) = explained("jump", "serve_jump", &[]);
    let whole = whole(&outcome);
    assert_eq!(whole["measured"].as_u64(), Some(CALLS), "{whole}");
}

#[test]
fn calls_of_several_threads_add_up() {
    let (outcome, truth) = explained("threads", "serve_call", &["--trips"]);
    let whole = whole(&outcome);
    assert_eq!(whole["calls"].as_u64(), Some(truth.number("calls")), "{whole}");
    assert!(outcome.all("cause").iter().any(|cause| cause["measured"].is_number()), "{outcome:#?}");
    assert_trips(&outcome);
}

/// The loop of `burn` iterates 500 times in each call by `steady`, and 200 or 20,000 times in each call by `uneven`.
fn assert_trips(outcome: &Outcome) {
    let all = outcome.all("trips");
    let burn = all.iter().find(|trips| trips["function"] == "burn").unwrap_or_else(|| panic!("no loop: {all:#?}"));
    let whole = |key: &str| burn[key].as_u64().unwrap_or_else(|| panic!("no {key} in {burn}"));
    assert!(whole("max").abs_diff(20_000) <= 1 && whole("p50").abs_diff(500) <= 20, "{burn}");
    assert!(whole("entries") == 8 * CALLS, "{burn}");
}

/// Where nothing is measured, causes are predicted only.
#[test]
fn a_program_that_ends_at_once_has_predicted_causes() {
    let path = ingraft_testing::program("varied").expect("gcc");
    let path = path.to_str().expect("a path");
    let words = ["profile", "times", "--explain", "serve", "--until-exit", "--own-status", "varied:*", "--", path, "9"];
    let outcome = tool().run(words).assert_code(0);
    if outcome.all("explained").is_empty() {
        assert!(outcome.all("cause").iter().all(|cause| cause["measured"].is_null()), "{outcome:#?}");
    } else {
        skip!("the program ran for longer than a second");
    }
}
