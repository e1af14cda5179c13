//! Tests of code that exchanges data with a program: texts, floating-point numbers, variables that code sets, events at points.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, source_directory};

use crate::library::value;
use crate::tool;

fn file() -> String {
    source_directory().join("tests/e2e/mdl/speech.mdl").to_str().expect("a path").to_owned()
}

/// Measures while the program obeys commands. Returns the values and the program's last answer.
fn measured(metrics: &[&str], flags: &[&str], commands: &[&str]) -> (Vec<i64>, Reply) {
    let mut target = Mutatee::start("speech", &[]);
    let before = Text::of(target.pid());
    let (pid, file) = (target.pid_text(), file());
    let fixed = ["watch", "-p", &pid, "-I", &file, "--max-overhead", "10000"];
    let mut session = tool().start(fixed.iter().chain(metrics).chain(flags));
    session.wait_for("attached");
    let replies: Vec<Reply> = commands.iter().map(|command| target.ask(command)).collect();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let values = metrics.iter().map(|metric| value(&outcome, metric)).collect();
    (values, replies.into_iter().next_back().expect("a command"))
}

fn refused(metric: &str, flags: &[&str]) -> Outcome {
    let target = Mutatee::start("speech", &[]);
    let before = Text::of(target.pid());
    let (pid, file) = (target.pid_text(), file());
    let outcome = tool().run(["watch", "-p", &pid, "-I", &file, metric, "--for", "1s"].iter().chain(flags));
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    outcome
}

fn tally(reply: &Reply, name: &str) -> i64 {
    reply.tally(name).cast_signed()
}

#[test]
fn floating_point_arguments_and_results_are_truncated() {
    let metrics = ["doubles", "floats", "products", "late_double"];
    let (values, truth) = measured(&metrics, &[], &["scale 900"]);
    let signed = |name: &str| truth.after(&format!("tally {name}")).parse::<i64>().expect("a number");
    assert_eq!(values, ["doubles", "floats", "products", "doubles"].map(signed));
    assert!(refused("ninth_double", &[]).stderr.contains("beyond the eighth"));
}

#[test]
fn strings_are_compared_with_texts() {
    let commands =
        ["greet alice 300", "greet alic 20", "greet alicia 7", "greet a 5", "greet a-name-of-21-letters- 40"];
    let (values, truth) = measured(&["greeted_alice", "greeted_others", "greeted_long"], &[], &commands);
    assert_eq!(values, [300, 72, 40]);
    assert_eq!(tally(&truth, "greet"), 372);
    assert!(refused("number_as_text", &[]).stderr.contains("a text is no number"));
}

#[test]
fn functions_are_given_texts_and_addresses() {
    let n = 1000;
    let (values, truth) = measured(&["told", "halves"], &["--allow-calls"], &[&format!("work {n}")]);
    let told = |text: &str, n: i64| {
        text.bytes().fold(n, |sum, byte| sum.wrapping_mul(31).wrapping_add(i64::from(byte.cast_signed())))
    };
    let sum = |sum: i64, i| sum.wrapping_add(told("a text of some words", i)).wrapping_add(told("two", 2));
    let halves = (0..n).map(|i| i / 2 + i % 2 * 1_000_000).sum::<i64>();
    assert_eq!(values, [(0..n).fold(0, sum), halves]);
    assert_eq!((tally(&truth, "tell"), tally(&truth, "work")), (3 * n, n));
}

#[test]
fn variables_are_set_where_that_is_permitted() {
    let (values, truth) = measured(&["setting"], &["--allow-calls"], &["work 10"]);
    assert_eq!(values, [10]);
    let waiting = (1i64 << 40) + 45;
    assert_eq!(truth.after("variables"), format!("109 -23 210 {waiting} 1 70000 116"));
    let _ = refused("setting", &[]).assert_error(4, &["--allow-calls"]);
    for (metric, reason) in [
        ("setting_constant", "not in the writable data of the program itself"),
        ("setting_bound", "may not write there"),
        ("setting_share", "double, not an integer"),
        ("setting_other", "not in the writable data of the program itself"),
    ] {
        let outcome = refused(metric, &["--allow-calls"]);
        assert!(outcome.stderr.contains(reason), "{metric}: {outcome:#?}");
    }
}

#[test]
fn fork_children_keep_their_variables() {
    let (values, truth) = measured(&["setting"], &["--allow-calls"], &["work 1", "fork"]);
    assert_eq!((values, truth.after("child")), (vec![1], "42"));
}

#[test]
fn events_between_points_are_those_of_getrusage() {
    let metrics = ["faults_in_touch", "all_faults_in_touch", "switches_in_nap", "time_in_touch", "faults_so_far"];
    let (values, truth) = measured(&metrics, &[], &["touch 1", "touch 2000", "touch 500", "nap 30"]);
    let (faults, switches) = (tally(&truth, "faults"), tally(&truth, "switches"));
    // The tolerance covers events between the entry and the program's own reading, and page faults in memory of the engine.
    for found in &values[..2] {
        assert!((faults..faults + 64).contains(found), "{found} of {faults}");
    }
    assert!((switches..switches + 16).contains(&values[2]), "{} of {switches}", values[2]);
    assert!(values[3] > 0 && values[3] < 60_000_000_000, "{}", values[3]);
    assert!(values[4] >= 2001, "{}", values[4]);
}

#[test]
fn calls_that_do_not_return_leave_no_events() {
    let (values, _) = measured(&["faults_in_leap", "faults_in_touch"], &[], &["leap 300", "touch 10", "leap 300"]);
    assert_eq!(values[0], 0);
    assert!((10..100).contains(&values[1]), "{}", values[1]);
}
