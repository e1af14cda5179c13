//! Tests of processes with children: a parent's counts are its own; its children run unharmed and are restored at the end as well.

use std::io::{Seek, Write};
use std::process::Stdio;

use ingraft_testing::target::{self, Text, Traced};
use ingraft_testing::{Daemon, Mutatee, Outcome, Session, Tool, open_directory, program, scaled, sibling, skip};

use crate::profiles::counts;
use crate::tool;

const COUNTED: &[&str] = &["parent_work", "child_work", "shared_work"];

fn children_of_kind(command: &str) {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let truth = target.ask(command);
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "{command}: {function}: {outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
    target.ask("vfork 3").assert_right();
}

#[test]
fn a_thousand_forks() {
    children_of_kind(&format!("fork {} 100", scaled(300, 1000)));
}

#[test]
fn a_thousand_vforks() {
    children_of_kind(&format!("vfork {}", scaled(300, 1000)));
}

#[test]
fn a_thousand_spawns() {
    children_of_kind(&format!("spawn {}", scaled(300, 1000)));
}

#[test]
fn a_child_that_lives_on_is_restored_too() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    before.assert_not_in(kept);
    target.ask("poke 5000").assert_right();
    let truth = target.ask("fork 10 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work"), "the child's calls are not the parent's");
    assert_eq!(outcome.calls("child_work"), 0);
    target::assert_clean(target.pid(), &before);
    before.assert_in(kept);
    assert_eq!(target::tracer(kept), 0);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

#[test]
fn a_child_that_never_called_anything_is_harmless() {
    // The child inherits the springboards but executes none of them before the parent is restored. It must still compute correctly
    // afterwards.
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let _kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("removed")["text_restored"], true);
    target::assert_clean(target.pid(), &before);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

#[test]
fn a_child_that_lives_on_is_measured_without_its_parent() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    // The child has its parent's code. The new measurement removes that code from the child, and from no other process.
    let own = tool().count(kept, &["parent_work"]);
    before.assert_not_in(target.pid());
    target.ask("poke 5000").assert_right();
    let truth = target.ask("fork 10 10");
    let outcome = own.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), 5000);
    before.assert_in(kept);
    before.assert_not_in(target.pid());
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work"), "the parent was counted all the time");
    target::assert_clean(target.pid(), &before);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

/// Returns the calls of a function in one of several processes, and the time from which on they are exact.
fn calls_in(outcome: &Outcome, pid: i32, function: &str) -> (u64, Option<u64>) {
    let counts = outcome.all("count");
    let count = counts.iter().find(|c| c["pid"] == pid && c["function"] == function).expect("a count");
    (count["calls"].as_u64().expect("a number"), count["exact_since_ns"].as_u64())
}

/// Returns the calls of a function by the threads of the process `child`, where a target and its children called the function.
fn calls_of_child(outcome: &Outcome, function: &str, child: i32) -> u64 {
    let count = outcome.all("count").into_iter().find(|c| c["function"] == function).expect("a count");
    let threads = count["threads"].as_array().expect("a list").iter().filter(|t| t["pid"] == child);
    threads.map(|t| t["calls"].as_u64().expect("a number")).sum()
}

#[test]
fn children_are_followed_from_their_first_call_on() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    target.ask("poke 5000").assert_right();
    assert_eq!((target::tracer(target.pid()), target::tracer(kept)), (0, 0));
    before.assert_not_in(kept);
    let truth = target.ask("fork 1 1");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (calls, since) = calls_in(&outcome, target.pid(), "parent_work");
    assert_eq!((calls, since), (5001 + truth.tally("parent_work"), None));
    assert_eq!(calls_of_child(&outcome, "parent_work", kept), 5000);
    target::assert_clean(target.pid(), &before);
    target::assert_clean(kept, &before);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

/// Follows children that begin and end all the time, and compares the counts.
fn follow_children_of(mut target: Mutatee, tool: &Tool) {
    let before = Text::of(target.pid());
    let mut session = tool.start(["count", "-p", &target.pid_text(), "--follow", "fork,exec"].iter().chain(COUNTED));
    session.wait_for("attached");
    let (rounds, calls) = (scaled(300, 2000), 1000);
    target.ask(&format!("fork {rounds} {calls}")).assert_right();
    target.ask(&format!("vfork {rounds}")).assert_right();
    let truth = target.ask(&format!("spawn {rounds}"));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let parents = truth.tally("parent_work") + rounds * calls;
    assert_eq!(calls_in(&outcome, target.pid(), "parent_work"), (parents, None));
    assert_eq!(calls_in(&outcome, target.pid(), "child_work"), (rounds * calls, None));
    assert_eq!(calls_in(&outcome, target.pid(), "shared_work"), (truth.tally("shared_work"), None));
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
}

/// Until they execute another program, children by vfork and posix_spawn run in the memory of their parent, and in its copies.
#[test]
fn copies_count_children_by_vfork_and_posix_spawn() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["blocks", "family:*"]);
    before.assert_not_in(target.pid());
    let rounds = scaled(50, 500);
    for command in [format!("vfork {rounds}"), format!("spawn {rounds}"), format!("fork {rounds} 3")] {
        target.ask(&command).assert_right();
    }
    let truth = target.ask(&format!("vfork {rounds}"));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in ["parent_work", "shared_work"] {
        assert_eq!(counts(&outcome, function), [truth.tally(function)], "{function}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("vfork 3").assert_right();
    target.ask("spawn 3").assert_right();
    assert!(target.end().success());
}

/// A child has its own contexts from its birth on, which are added to those of its parent.
#[test]
fn calls_of_children_are_told_by_context() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let all =
        ["profile", "contexts", "-p", &target.pid_text(), "family:*", "--follow", "fork", "--max-overhead", "10000"];
    let mut session = tool().start(all);
    session.wait_for("attached");
    let (children, calls) = (scaled(60, 500), 70);
    let truth = target.ask(&format!("fork {children} {calls}"));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sum = |function: &str| {
        let of = |record: &&serde_json::Value| record["function"] == function;
        let calls = |record: &serde_json::Value| record["calls"].as_u64().expect("a number");
        outcome.all("context").into_iter().filter(of).map(calls).sum::<u64>()
    };
    assert_eq!(sum("parent_work"), children * calls + truth.tally("parent_work"), "{outcome:#?}");
    assert_eq!(sum("child_work"), children * calls);
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
}

#[test]
fn children_that_come_and_go_lose_no_call() {
    follow_children_of(Mutatee::start("family", &[]), &tool());
}

/// The engine finds these children while they end. None of their counts is lost, so they are not reported as missed.
#[test]
fn children_that_end_at_once_are_not_told_as_missed() {
    let mut target = Mutatee::start("family", &[]);
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    let rounds = scaled(2000, 20_000);
    let truth = target.ask(&format!("fork {rounds} 1"));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work") + rounds);
    assert!(!outcome.stderr.contains("not measured"), "{}", outcome.stderr);
}

#[test]
fn children_with_musl_lose_no_call() {
    match program("family-musl") {
        Ok(_) => follow_children_of(Mutatee::start("family-musl", &[]), &tool()),
        Err(why) => skip!("{why}"),
    }
}

#[test]
fn children_that_use_the_gs_base_themselves() {
    let mut target = Mutatee::start("family-gs", &[]);
    target.ask("gs").assert_right();
    follow_children_of(target, &tool());
}

#[test]
fn children_of_a_program_that_takes_the_gs_base_while_it_is_followed() {
    let mut target = Mutatee::start("family-gs", &[]);
    let before = Text::of(target.pid());
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    target.ask("fork 20 50").assert_right();
    target.ask("gs").assert_right();
    let truth = target.ask("fork 20 50");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work") + 40 * 50);
    assert_eq!(outcome.calls("child_work"), 40 * 50);
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
}

#[test]
fn children_lose_no_call_through_a_daemon() {
    let directory = open_directory();
    let daemon = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    follow_children_of(Mutatee::start("family", &[]), &daemon.client(env!("CARGO_BIN_EXE_ingraft")));
    assert!(daemon.terminate().success());
}

#[test]
fn children_of_a_program_that_is_started_lose_no_call() {
    let family = program("family").expect("gcc");
    let mut input = tempfile::tempfile().expect("a file");
    input.write_all(b"fork 50 100\n").and_then(|()| input.rewind()).expect("write a file");
    let (tool, fixed) = (tool(), ["count", "--follow", "fork", "--until-exit"]);
    let command = fixed.into_iter().chain(COUNTED.iter().copied()).chain(["--", family.to_str().expect("a path")]);
    let outcome = Session::start(tool.command(command).stdin(input)).finish().assert_code(0);
    assert_eq!((outcome.calls("parent_work"), outcome.calls("child_work")), (50 + 50 * 100, 50 * 100));
}

#[test]
fn an_engine_that_dies_leaves_nothing_in_followed_children() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut session = tool.start(["latency", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    target.ask("poke 5000").assert_right();
    session.kill();
    target.ask("poke 5000").assert_right();
    target.ask("fork 20 20").assert_right();
    tool.detach(target.pid());
    for pid in [target.pid(), kept] {
        target::assert_clean(pid, &before);
    }
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

#[test]
fn a_followed_child_is_nobody_elses() {
    let mut target = Mutatee::start("family", &[]);
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    let kept = target.ask("keep").after("child").to_owned();
    let _ = tool().run(["count", "-p", &kept, "parent_work", "--for", "100ms"]).assert_error(4, &["held"]);
    target.ask("poke 70").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(calls_of_child(&outcome, "parent_work", kept.parse().expect("a process id")), 70);
    target.ask("drop").assert_right();
}

#[test]
fn a_child_that_was_there_before_is_a_target_of_its_own() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
    session.wait_for("attached");
    assert_eq!(session.wait_for("attached")["pid"], kept);
    target.ask("poke 5000").assert_right();
    let truth = target.ask("drop");
    assert_eq!(session.wait_for("ended")["pid"], kept);
    let outcome = session.interrupt().assert_code(0);
    let (calls, since) = calls_in(&outcome, kept, "parent_work");
    assert_eq!(calls, 5000);
    assert!(since.is_some(), "its life before is not known");
    assert_eq!(calls_in(&outcome, target.pid(), "parent_work"), (truth.tally("parent_work"), None));
    let together = outcome.all("combined");
    let sum = together.iter().find(|c| c["focus"].as_str().is_some_and(|f| f.ends_with("/parent_work")));
    assert_eq!(sum.expect("both together")["value"], 5000 + truth.tally("parent_work"));
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
}

/// If a child cannot be touched at first, it is measured as soon as possible. If that never happens, the command reports it at the end.
#[test]
fn a_child_that_somebody_else_traces_is_measured_later() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    for comes_free in [true, false] {
        let traced = Traced::new(kept);
        let mut session = tool().start(["count", "-p", &target.pid_text(), "--follow", "fork"].iter().chain(COUNTED));
        assert_eq!(session.wait_for("attached")["pid"], target.pid());
        session.wait_for_word("not measured yet");
        if comes_free {
            drop(traced);
            assert_eq!(session.wait_for("attached")["pid"], kept);
            target.ask("poke 5000").assert_right();
        }
        let outcome = session.interrupt().assert_code(0);
        assert_eq!(outcome.stderr.contains("1 process that was followed is not measured"), !comes_free, "{outcome:#?}");
        if comes_free {
            assert_eq!(calls_in(&outcome, kept, "parent_work").0, 5000);
        }
    }
    target::assert_clean(target.pid(), &before);
    target::assert_clean(kept, &before);
    target.ask("drop").assert_right();
}

#[test]
fn another_program_in_the_same_process_is_followed() {
    follow_a_program(false);
}

#[test]
fn another_program_that_somebody_traces_is_followed_later() {
    follow_a_program(true);
}

fn follow_a_program(traced: bool) {
    let spin = program("spin").expect("gcc");
    let script = format!("read go; exec {} 1", spin.display());
    let mut shell = std::process::Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("sh");
    let pid = shell.id() as i32;
    let mut session = tool().start(["count", "-p", &pid.to_string(), "--follow", "exec", "*:read"]);
    session.wait_for("attached");
    let mut input = shell.stdin.take().expect("a pipe");
    let traced = traced.then(|| Traced::new(pid));
    input.write_all(b"go\n").expect("it listens");
    let ended = session.wait_for("ended");
    assert_eq!((&ended["pid"], &ended["exec"]), (&pid.into(), &true.into()));
    if let Some(traced) = traced {
        session.wait_for_word("not measured yet");
        drop(traced);
    }
    let attached = session.wait_for("attached");
    assert_eq!(attached["pid"], pid);
    let outcome = session.interrupt().assert_code(0);
    let counts = outcome.all("count");
    let late: Vec<_> = counts.iter().map(|c| c["exact_since_ns"].is_u64()).collect();
    assert_eq!((late.first(), late.last()), (Some(&false), Some(&true)), "{counts:?}");
    assert_eq!(target::arenas(pid), 0);
    shell.kill().expect("it is ours");
    shell.wait().expect("it is ours");
}
