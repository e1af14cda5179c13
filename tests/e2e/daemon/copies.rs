//! Tests of functions whose points move from the text into a copy of the function, and stay there, while several clients measure them.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, Tool, open_directory, scaled, source_directory};
use serde_json::Value;

use crate::{client, daemon};

/// Begins a further measurement of the target.
fn one_more(tool: &Tool, target: &Mutatee, arguments: &[&str]) -> Session {
    let pid = target.pid_text();
    let (command, rest) = arguments.split_first().expect("a command");
    let mut session = tool.start([*command, "-p", &pid, "--max-overhead", "10000"].iter().chain(rest));
    session.wait_for("changed");
    session
}

/// Sum of the counts of the edges between two blocks.
fn passed(outcome: &Outcome, from: &str, to: &str) -> u64 {
    let edges = outcome.all("edge");
    let its = edges.iter().filter(|edge| edge["from"] == from && edge["to"] == to);
    its.filter_map(|edge| edge["count"].as_u64()).sum()
}

/// Returns the value at the end.
#[track_caller]
fn last(outcome: &Outcome) -> u64 {
    let value = outcome.all("sample").last().and_then(|sample| sample["value"].as_u64());
    value.unwrap_or_else(|| panic!("no value: {outcome:#?}"))
}

/// Number of calls of `leaf` that each of four threads makes in a round.
const CALLS: u64 = 3_000_000;

#[test]
fn calls_and_times_stay_exact_while_edges_come_and_go() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let count = tool.count(target.pid(), &["leaf"]);
    let latency = one_more(&tool, &target, &["latency", "leaf"]);
    let mut all = 0;
    for round in 0..scaled(6, 60) {
        target.tell(&format!("go {CALLS}"));
        let edges = one_more(&tool, &target, &["count", "leaf#*->*"]);
        let blocks = (round % 2 == 0).then(|| one_more(&tool, &target, &["count", "leaf#*"]));
        let outcome = edges.interrupt().assert_code(0);
        // Two rounds for each call, but for the calls in progress at the beginning and at the end: one in each of four threads.
        let (around, out) = (passed(&outcome, "0x11", "0x11"), passed(&outcome, "0x11", "0x1b"));
        assert!(around.abs_diff(2 * out) <= 2 * 2 * 4, "{around} rounds of {out} calls");
        let _ = blocks.map(|blocks| blocks.interrupt().assert_code(0));
        assert_eq!(target.reply().number("wrong"), 0);
        all += 4 * CALLS;
    }
    let outcome = latency.interrupt().assert_code(0);
    assert_eq!(outcome.latency("leaf").calls, all);
    let outcome = count.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("leaf"), all);
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    assert!(target.end().success());
}

/// The call is in progress in the text when its function is copied, and ends in the copy.
#[test]
fn a_call_in_progress_ends_in_the_copy() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let file = source_directory().join("tests/e2e/mdl/calls.mdl").display().to_string();
    let latency = tool.start(["latency", "-p", &target.pid_text(), "--max-overhead", "10000", "around"]);
    let mut latency = latency;
    latency.wait_for("attached");
    let [made, back] = ["calls_made", "calls_back"]
        .map(|metric| one_more(&tool, &target, &["watch", &format!("{metric}@/Code/blocks/around"), "-I", &file]));
    let rounds = scaled(20_000_000, 200_000_000);
    for _ in 0..scaled(3, 20) {
        target.tell(&format!("around {rounds}"));
        let edges = one_more(&tool, &target, &["count", "around#*->*"]);
        let loops = one_more(&tool, &target, &["count", "around#loop@*"]);
        let _ = edges.interrupt().assert_code(0);
        let _ = loops.interrupt().assert_code(0);
        target.reply();
    }
    let calls = scaled(3, 20) * (rounds + 2);
    assert_eq!(last(&made.interrupt().assert_code(0)), calls);
    assert_eq!(last(&back.interrupt().assert_code(0)), calls);
    let outcome = latency.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.latency("around").calls, scaled(3, 20));
    target::assert_clean(target.pid(), &before);
    target.ask("around 70");
    assert!(target.end().success());
}

/// The daemon is killed while points move into a copy. The next daemon restores the target, whichever of the two codes is there.
#[test]
fn a_daemon_that_is_killed_while_points_move() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    for round in 0..scaled(12, 300) {
        let directory = open_directory();
        let first = daemon(directory.path(), &[]);
        let tool = client(&first);
        let count = tool.count(target.pid(), &["leaf", "around", "step"]);
        target.tell("go 2000000");
        let pid = target.pid_text();
        let edges = tool.start(["count", "-p", &pid, "leaf#*->*", "around#*->*"]);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(std::time::Duration::from_micros(random >> 40 & 0x7fff));
        first.kill();
        drop(count.finish());
        drop(edges.finish());
        let _second = daemon(directory.path(), &[]);
        target::assert_clean(target.pid(), &before);
        assert_eq!(target.reply().number("wrong"), 0, "round {round}");
        assert_eq!(target.ask("go 10").number("wrong"), 0, "round {round}");
    }
    assert!(target.end().success());
}

/// Number of rounds of the loop in `around`.
const ROUNDS: u64 = 40_000_000;

/// The profile's counting copies are given up when the points of another client come, while threads run them.
#[test]
fn a_profile_stays_exact_while_points_of_others_come_and_go() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let (one, other) = (client(&daemon), client(&daemon));
    for _ in 0..scaled(3, 60) {
        let profile = one.measure("profile", target.pid(), &["edges", "around", "step", "spin"]);
        target.tell(&format!("around {ROUNDS}"));
        for _ in 0..3 {
            let blocks = one_more(&other, &target, &["count", "around#*"]);
            let _ = blocks.interrupt().assert_code(0);
            let spins = one_more(&other, &target, &["count", "spin#*"]);
            let _ = spins.interrupt().assert_code(0);
        }
        target.reply();
        let outcome = profile.interrupt().assert_code(0);
        assert!(outcome.all("warning").is_empty(), "{outcome:#?}");
        let edges = outcome.all("edge");
        let count = |function: &str, kind: &str| {
            let its = edges.iter().filter(|edge| edge["function"] == function && edge["kind"] == kind);
            its.filter_map(|edge| edge["count"].as_u64()).collect::<Vec<_>>()
        };
        assert_eq!(count("around", "taken"), [ROUNDS - 1], "{outcome:#?}");
        assert_eq!(count("step", "return"), [ROUNDS + 2], "{outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// Whether control that comes to a function gets to a gate of its counting copy: code of the copy that compares the thread.
fn is_gated(tool: &Tool, target: &Mutatee, function: &str) -> bool {
    let outcome = tool.run(["inspect", "-p", &target.pid_text(), function, "-d"]).assert_code(0);
    let woven = outcome.all("woven");
    let text = |line: &&Value| line["text"].as_str().expect("a text").to_owned();
    let leads = |line: &&Value| Some(text(line).strip_prefix("jmp ")?.trim_start_matches("short ").to_owned());
    let at = |address: &str| woven.iter().find(|line| line["address"] == address);
    let is_reached = |springboard: &&&Value| {
        let mut next = leads(springboard);
        while let Some(line) = next.as_deref().and_then(at) {
            if line["part"] != "relocated" {
                return false;
            }
            match leads(line) {
                Some(target) => next = Some(target),
                None => return text(line).contains("fs:"),
            }
        }
        false
    };
    woven.iter().filter(|line| line["part"] == "springboard").any(|line| is_reached(&line))
}

#[test]
fn a_counting_copy_is_made_again_for_the_points_that_are_there() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let (one, other) = (client(&daemon), client(&daemon));
    // The points of the first client lie in the text, and move into the copy that the second one needs.
    let first = one.count(target.pid(), &["leaf"]);
    let profile = one_more(&other, &target, &["profile", "edges", "leaf"]);
    assert!(is_gated(&one, &target, "leaf"), "after points have moved");
    let mut calls = 0;
    let mut go = |target: &mut Mutatee| {
        assert_eq!(target.ask("go 1000").number("wrong"), 0);
        calls += 1000;
    };
    go(&mut target);
    assert_eq!(first.interrupt().assert_code(0).calls("leaf"), 1000);
    assert!(is_gated(&one, &target, "leaf"), "after the count has gone");
    go(&mut target);
    for _ in 0..3 {
        let counted = one_more(&one, &target, &["count", "leaf"]);
        assert!(is_gated(&one, &target, "leaf"), "beside a count");
        go(&mut target);
        assert_eq!(counted.interrupt().assert_code(0).calls("leaf"), 1000);
        let timed = one_more(&one, &target, &["latency", "leaf"]);
        assert!(!is_gated(&one, &target, "leaf"), "a timer at the entry has code of its own");
        go(&mut target);
        assert_eq!(timed.interrupt().assert_code(0).latency("leaf").calls, 1000);
        assert!(is_gated(&one, &target, "leaf"), "after others have gone");
        go(&mut target);
    }
    let outcome = profile.interrupt().assert_code(0).assert_removed();
    // Two rounds of the loop for each call.
    assert_eq!((passed(&outcome, "0x11", "0x11"), passed(&outcome, "0x11", "0x1b")), (2 * calls, calls));
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}
