//! Tests of commands that measure one process at the same time without a daemon: the later ones join the engine of the first.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use ingraft_testing::target::{self, Text, Traced};
use ingraft_testing::{Mutatee, Session, Tool, open_directory, scaled, wait_until};
use nix::sys::signal::Signal;

use crate::tool;

/// Begins a further measurement of a target that is measured already.
fn join(tool: &Tool, target: &Mutatee, arguments: &[&str]) -> Session {
    let mut session = tool.start(arguments.iter().chain(&["-p", &target.pid_text(), "--max-overhead", "10000"]));
    session.wait_for("changed");
    session
}

/// Files of the folder with the sockets of engines.
fn sockets(tool: &Tool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(tool.state_directory().join("engines")).expect("the folder of sockets");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// Fails unless nothing is left in the target, and no socket.
fn assert_all_gone(tool: &Tool, target: &Mutatee, before: &Text) {
    target::assert_clean(target.pid(), before);
    assert_eq!(sockets(tool), [] as [PathBuf; 0]);
}

#[test]
fn two_counts_agree_with_the_program_and_the_second_ends_first() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let first = tool.count(target.pid(), &["work_0"]);
    target.ask("solo 100").assert_right();
    let [socket] = sockets(&tool).try_into().expect("one socket");
    let file = std::fs::symlink_metadata(&socket).expect("the socket");
    assert!(file.file_type().is_socket() && file.mode() & 0o777 == 0o600, "{file:?}");
    assert!(socket.ends_with(format!("{}.sock", first.pid())), "{socket:?}");
    let second = join(&tool, &target, &["count", "work_0"]);
    let before_go = target.ask("solo 0").tally("work_0");
    let truth = target.ask("go 2000");
    let outcome = second.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0") - before_go, "{outcome:#?}");
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    let truth = target.ask("solo 50");
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0"));
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    assert_all_gone(&tool, &target, &before);
}

#[test]
fn the_engine_stays_until_the_last_command_ends() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut first = tool.count(target.pid(), &["work_0", "work_1"]);
    let second = join(&tool, &target, &["count", "work_0"]);
    let third = join(&tool, &target, &["count", "work_2"]);
    let truth = target.ask("go 800");
    first.signal(Signal::SIGINT);
    // The results of the first command do not wait for the others.
    first.wait_for("removed");
    first.wait_for_word("still measure");
    target.ask("solo 70").assert_right();
    let outcome = second.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0") + 70);
    before.assert_not_in(target.pid());
    let outcome = third.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_2"), truth.tally("work_2"));
    let outcome = first.finish().assert_code(0).assert_removed();
    for function in ["work_0", "work_1"] {
        assert_eq!(outcome.calls(function), truth.tally(function), "{function}");
    }
    assert_all_gone(&tool, &target, &before);
}

#[test]
fn a_second_ctrl_c_ends_all_of_them() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut first = tool.count(target.pid(), &["work_0"]);
    let second = join(&tool, &target, &["count", "work_1"]);
    let second_pid = second.pid().to_string();
    first.signal(Signal::SIGINT);
    first.wait_for_word("still measures");
    let engine = first.pid().to_string();
    let outcome = first.interrupt().assert_code(0);
    assert!(outcome.stderr.contains(&second_pid), "{outcome:#?}");
    let _ = second.finish().assert_error(1, &[&format!("ingraft {engine} has ended")]);
    assert_all_gone(&tool, &target, &before);
    target.ask("go 80").assert_right();
}

#[test]
fn a_killed_command_takes_only_its_own_measurement_with_it() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let first = tool.count(target.pid(), &["work_0"]);
    // The list may lack a target whose code is just changing.
    let points = || tool.inserted(target.pid()).first().and_then(|inserted| inserted["points"].as_u64());
    let alone = points();
    assert!(alone.is_some());
    let second = join(&tool, &target, &["count", "work_1", "work_2"]);
    assert!(points() > alone);
    second.kill();
    wait_until("its points are removed", || points() == alone);
    let truth = target.ask("go 800");
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0"));
    assert_all_gone(&tool, &target, &before);
}

#[test]
fn the_others_clean_up_after_a_killed_engine() {
    for others in 1..=2 {
        let mut target = Mutatee::start("threads", &["2"]);
        let before = Text::of(target.pid());
        let tool = tool();
        let first = tool.count(target.pid(), &["work_0"]);
        let engine = first.pid();
        let sessions: Vec<Session> = (0..others).map(|_| join(&tool, &target, &["count", "work_0"])).collect();
        target.ask("solo 5").assert_right();
        first.kill();
        let outcomes: Vec<_> = sessions.into_iter().map(Session::finish).collect();
        for outcome in outcomes {
            assert!(outcome.all("removed").iter().all(|removed| removed["text_restored"] == true), "{outcome:#?}");
            let _ = outcome.assert_error(1, &[&format!("ingraft {engine} has ended")]);
        }
        target::assert_clean(target.pid(), &before);
        target.ask("go 80").assert_right();
        // The next command removes the socket of the killed engine.
        let next = tool.count(target.pid(), &["work_1"]);
        assert_eq!(sockets(&tool).len(), 1);
        let _ = next.interrupt().assert_code(0).assert_removed();
        assert_all_gone(&tool, &target, &before);
    }
}

#[test]
fn commands_that_begin_and_end_at_the_same_moment() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for round in 0..scaled(10, 200) {
        let arguments = ["count", "-p", &target.pid_text(), "work_0", "--max-overhead", "10000"];
        let mut sessions: Vec<Session> = (0..4).map(|_| tool.start(arguments)).collect();
        for session in &mut sessions {
            let inserted = session.try_wait_for_any(&["attached", "changed"]);
            assert!(inserted.is_some(), "round {round}: {}", session.stderr());
        }
        let calls = 10 + round;
        target.ask(&format!("solo {calls}"));
        sessions.iter().for_each(|session| session.signal(Signal::SIGINT));
        for session in sessions {
            assert_eq!(session.finish().assert_code(0).calls("work_0"), calls, "round {round}");
        }
        assert_all_gone(&tool, &target, &before);
    }
    // A command that begins while the engine ends waits for that end.
    for _ in 0..scaled(10, 200) {
        let first = tool.count(target.pid(), &["work_0"]);
        first.signal(Signal::SIGINT);
        let second = tool.start(["count", "-p", &target.pid_text(), "work_0", "--for", "1ms"]);
        let _ = second.finish().assert_code(0).assert_removed();
        let _ = first.finish().assert_code(0).assert_removed();
        assert_all_gone(&tool, &target, &before);
    }
}

#[test]
fn every_kind_of_measurement_joins() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let (tool, directory) = (tool(), open_directory());
    let file = directory.path().join("file").to_str().expect("a path").to_owned();
    let first = tool.count(target.pid(), &["work_0"]);
    let mut measured = |arguments: &[&str]| {
        let session = join(&tool, &target, arguments);
        target.ask("solo 20");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.stderr.is_empty(), "{outcome:#?}");
        outcome
    };
    assert_eq!(measured(&["latency", "work_0"]).latency("work_0").calls, 20);
    let blocks = measured(&["profile", "blocks", "work_0"]);
    assert_eq!(blocks.all("block")[0]["count"], 20, "{blocks:#?}");
    let coverage = measured(&["profile", "coverage", "work_0"]);
    assert_eq!(coverage.all("block")[0]["ran"], "yes", "{coverage:#?}");
    let samples = measured(&["watch", "calls@/Code/threads/work_0"]);
    assert_eq!(samples.all("sample").last().expect("a sample")["value"], 20);
    assert_eq!(measured(&["trace", "work_0", "-o", &file]).one("traced")["gaps"], 0);
    let steps = tool.run(["replay", &file]).assert_code(0);
    assert_eq!(steps.all("step").iter().filter(|step| step["step"] == "enter").count(), 20);
    let inspected = tool.run(["inspect", "-p", &target.pid_text(), "work_0", "--for", "10ms"]).assert_code(0);
    assert!(inspected.all("block").iter().all(|block| block["count"] == 0), "{inspected:#?}");
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 100);
    assert_all_gone(&tool, &target, &before);
}

#[test]
fn several_engines_are_joined_at_once() {
    let mut targets = ["1", "2", "3"].map(|threads| Mutatee::start("threads", &[threads]));
    let before = targets.each_ref().map(|target| Text::of(target.pid()));
    let tool = tool();
    let engines: Vec<Session> = targets[..2].iter().map(|target| tool.count(target.pid(), &["work_0"])).collect();
    let pids = targets.each_ref().map(Mutatee::pid_text);
    let mut all = tool.start(["count", "-p", &pids[0], "-p", &pids[1], "-p", &pids[2], "work_0"]);
    for _ in 0..3 {
        all.try_wait_for_any(&["attached", "changed"]).expect("it is inserted");
    }
    for (target, calls) in targets.iter_mut().zip(["solo 7", "solo 20", "solo 300"]) {
        target.ask(calls);
    }
    let outcome = all.interrupt().assert_code(0);
    assert_eq!(outcome.one("combined")["value"], 327, "{outcome:#?}");
    // Each target has told its cost.
    assert_eq!(outcome.all("cost").len(), 3, "{outcome:#?}");
    for engine in engines {
        let _ = engine.interrupt().assert_code(0).assert_removed();
    }
    for (target, before) in targets.iter().zip(&before) {
        assert_all_gone(&tool, target, before);
    }
}

#[test]
fn children_are_followed_through_a_joined_engine() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut first = tool.start(["count", "-p", &target.pid_text(), "--follow", "fork", "parent_work"]);
    first.wait_for("attached");
    let second = join(&tool, &target, &["count", "--follow", "fork", "parent_work"]);
    let kept = target.ask("keep").after("child").to_owned();
    target.ask("poke 70").assert_right();
    // The child is measured with its parent.
    let _ = tool.run(["count", "-p", &kept, "parent_work", "--for", "1ms"]).assert_error(4, &["held"]);
    for session in [second, first] {
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let counts = outcome.all("count");
        let threads: Vec<_> = counts.iter().flat_map(|count| count["threads"].as_array().expect("threads")).collect();
        let of_child =
            threads.iter().filter(|thread| thread["pid"].as_u64().map(|pid| pid.to_string()) == Some(kept.clone()));
        assert_eq!(of_child.map(|thread| thread["calls"].as_u64().expect("a number")).sum::<u64>(), 70, "{outcome:#?}");
    }
    assert_all_gone(&tool, &target, &before);
    target.ask("drop").assert_right();
}

#[test]
fn a_started_program_is_joined_by_its_id() {
    let tool = tool();
    let mut first = tool.start(["count", "libc:free", "--", "sleep", "1000"]);
    let pid = first.wait_for("attached")["pid"].to_string();
    wait_until("it sleeps", || target::state(pid.parse().expect("an id")) == 'S');
    let mut second = tool.start(["count", "-p", &pid, "libc:malloc"]);
    second.wait_for("changed");
    let outcome = second.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("malloc"), 0);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.parse().expect("an id")), Signal::SIGKILL).expect("end it");
    let _ = first.finish();
    assert_eq!(sockets(&tool), [] as [PathBuf; 0]);
}

#[test]
fn an_engine_that_was_stopped_is_named() {
    let mut target = Mutatee::start("threads", &["1"]);
    let tool = tool();
    let first = tool.count(target.pid(), &["work_0"]);
    first.signal(Signal::SIGSTOP);
    let second = tool.run(["count", "-p", &target.pid_text(), "work_0", "--for", "1ms"]);
    let _ = second.assert_error(4, &[&format!("kill -CONT {}", first.pid())]);
    first.signal(Signal::SIGCONT);
    target.ask("solo 9");
    assert_eq!(first.interrupt().assert_code(0).assert_removed().calls("work_0"), 9);
}

/// Somebody else traces the target when the second command ends, so its code stays in. The first command takes it out with its own, or tells that it
/// cannot do that.
#[test]
fn code_that_could_not_be_removed_goes_with_that_of_the_last_command() {
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for traced_to_the_end in [false, true] {
        let first = tool.count(target.pid(), &["work_0"]);
        let second = join(&tool, &target, &["latency", "work_0"]);
        let earlier = target.ask("solo 0").tally("work_0");
        let calls = target.ask("solo 40").tally("work_0") - earlier;
        let traced = Traced::new(target.pid());
        let outcome = second.interrupt().assert_error(4, &["already traced"]);
        assert_eq!(outcome.latency("work_0").calls, calls, "the values up to now are told: {outcome:#?}");
        if traced_to_the_end {
            let outcome = first.interrupt().assert_error(4, &["already traced"]);
            assert_eq!(outcome.calls("work_0"), calls);
            assert!(
                outcome.one("count")["threads"].as_array().is_some_and(|threads| !threads.is_empty()),
                "{outcome:#?}"
            );
            drop(traced);
            let _ = tool.run(["detach", "-p", &target.pid_text()]).assert_code(0);
        } else {
            drop(traced);
            let outcome = first.interrupt().assert_code(0).assert_removed();
            assert_eq!(outcome.calls("work_0"), calls);
        }
        assert_all_gone(&tool, &target, &before);
    }
}
