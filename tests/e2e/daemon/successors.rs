//! A daemon that is killed leaves kept measurements, and others that were leased to its clients. The next engine continues the kept ones
//! and
//! removes the leased ones, even if both are in one target.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, Session, Tool, open_directory, sibling, skip, source_directory, wait_until};
use ingraft_wire::v1::instrumentation_client::InstrumentationClient;
use ingraft_wire::v1::metrics_client::MetricsClient;
use ingraft_wire::v1::{self, read_response};
use tonic::transport::{Channel, Endpoint};

use crate::{client, daemon};

/// Calls a daemon's services over a channel, as any client does.
fn with_channel<T>(daemon: &Daemon, work: impl AsyncFnOnce(Channel) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let uri = format!("unix://{}", daemon.socket().display());
    runtime.block_on(async {
        let channel = Endpoint::from_shared(uri).expect("an address").connect().await.expect("the daemon answers");
        work(channel).await
    })
}

/// Returns the sum of the values of a measurement.
fn read(daemon: &Daemon, measurement: u64) -> u64 {
    with_channel(daemon, async |channel| {
        let request = v1::ReadRequest { measurement, threads: false };
        let mut answers = MetricsClient::new(channel).read(request).await.expect("it is there").into_inner();
        let mut sum = 0;
        while let Some(answer) = answers.message().await.expect("a reading") {
            if let Some(read_response::Event::Sample(sample)) = answer.event {
                sum += sample.values.iter().map(|value| value.value).sum::<i64>();
            }
        }
        u64::try_from(sum).expect("no count is negative")
    })
}

/// Returns the differences from the target's state when it had only the kept measurement. The loader's hook is left out: it served the dead
/// engine.
fn more_than(kept: &Text, pid: i32) -> Vec<String> {
    let mut differences = kept.differences(&Text::of(pid));
    differences.retain(|difference| !difference.contains("/ld-linux"));
    differences
}

#[track_caller]
fn assert_only(kept: &Text, pid: i32) {
    assert_eq!(more_than(kept, pid), Vec::<String>::new());
}

/// Removes a measurement that has no client.
fn remove(daemon: &Daemon, measurement: u64) {
    with_channel(daemon, async |channel| {
        let request = v1::RemoveRequest { measurement };
        let answers = InstrumentationClient::new(channel).remove(request).await.expect("it is removed");
        let mut answers = answers.into_inner();
        while answers.message().await.expect("what was removed").is_some() {}
    });
}

/// Counts functions in a measurement that is kept. Returns its number.
fn keep(tool: &Tool, target: &Mutatee, functions: &[&str]) -> u64 {
    let pid = target.pid_text();
    let arguments = ["count", "-p", &pid, "--for", "10ms", "--no-remove"];
    let outcome = tool.run(arguments.iter().chain(functions)).assert_code(0);
    outcome.one("kept")["measurement"].as_u64().expect("a number")
}

/// Begins a further measurement of a target.
fn one_more(tool: &Tool, target: &Mutatee, command: &str, arguments: &[&str]) -> Session {
    let pid = target.pid_text();
    let mut session = tool.start([command, "-p", &pid, "--max-overhead", "10000"].iter().chain(arguments));
    session.wait_for("changed");
    session
}

/// Counts functions besides the kept measurement, and checks the numbers.
#[track_caller]
fn assert_countable(tool: &Tool, target: &mut Mutatee, functions: &[&str]) {
    let before = target.ask("go 8");
    let session = one_more(tool, target, "count", functions);
    let after = target.ask("go 800");
    after.assert_right();
    let outcome = session.interrupt().assert_code(0);
    for function in functions {
        assert_eq!(outcome.calls(function), after.tally(function) - before.tally(function), "{function}");
    }
}

/// Makes some calls. Returns the calls that a kept measurement of `work_0` and `work_1` must have if it began with the program. The thread
/// that makes the calls lives on, because values of ended threads are in the memory of the engine that ran when they ended.
fn truth(target: &mut Mutatee) -> u64 {
    let tallies = target.ask("solo 800").tallies();
    tallies["work_0"] + tallies["work_1"]
}

/// A target whose daemon was killed when it had one kept measurement and several leased ones. `kept` is its code with the kept measurement
/// only.
struct Left {
    target: Mutatee,
    before: Text,
    kept: Text,
    measurement: u64,
    counted: u64,
}

fn leave(directory: &std::path::Path, mut target: Mutatee) -> Left {
    let first = daemon(directory, &[]);
    let tool = client(&first);
    let before = Text::of(target.pid());
    let measurement = keep(&tool, &target, &["work_0", "work_1"]);
    let kept = Text::of(target.pid());
    let file = source_directory().join("tests/e2e/mdl/arrivals.mdl").display().to_string();
    let leased = [
        one_more(&tool, &target, "count", &["work_2", "never"]),
        one_more(&tool, &target, "latency", &["work_3", "work_4"]),
        // This leased measurement is at a point of the kept one.
        one_more(&tool, &target, "watch", &["visits@/Code/threads/work_0", "-I", &file]),
    ];
    let counted = truth(&mut target);
    assert_eq!(read(&first, measurement), counted);
    first.kill();
    leased.into_iter().for_each(|session| drop(session.finish()));
    before.assert_not_in(target.pid());
    assert!(!more_than(&kept, target.pid()).is_empty(), "the leased code is there");
    Left { target, before, kept, measurement, counted }
}

#[test]
fn a_successor_keeps_what_was_to_stay_and_restores_the_rest_of_the_same_target() {
    let directory = open_directory();
    let mut left = leave(directory.path(), Mutatee::start("threads", &["4"]));
    let target = &mut left.target;
    left.counted = truth(target);
    let second = daemon(directory.path(), &[]);
    let tool = client(&second);
    assert_only(&left.kept, target.pid());
    left.counted = truth(target);
    assert_eq!(read(&second, left.measurement), left.counted, "it counts on");
    for _ in 0..2 {
        assert_countable(&tool, target, &["work_2", "work_3", "never"]);
        assert_only(&left.kept, target.pid());
    }
    let earlier = target.ask("go 8").tally("work_3");
    let session = one_more(&tool, target, "latency", &["work_3", "work_4"]);
    let calls = target.ask("go 800").tally("work_3") - earlier;
    assert_eq!(session.interrupt().assert_code(0).latency("work_3").calls, calls);
    // The code of the other measurement is recognised as such, and not taken for changes by another program.
    let outcome = tool.run(["count", "-p", &target.pid_text(), "work_1"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains(&format!("measurement {}", left.measurement)), "{outcome:#?}");
    assert!(!outcome.stderr.contains("something else"), "{outcome:#?}");
    remove(&second, left.measurement);
    target::assert_clean(target.pid(), &left.before);
    assert_countable_alone(&tool, target);
    target::assert_clean(target.pid(), &left.before);
    assert!(second.terminate().success());
}

/// Counts the functions that the kept measurement has counted until now.
#[track_caller]
fn assert_countable_alone(tool: &Tool, target: &mut Mutatee) {
    let before = truth(target);
    let session = tool.count(target.pid(), &["work_0", "work_1"]);
    let calls = truth(target) - before;
    assert_eq!(calls, 800);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0") + outcome.calls("work_1"), calls);
}

#[test]
fn a_successor_that_is_killed_too() {
    let directory = open_directory();
    let mut left = leave(directory.path(), Mutatee::start("threads", &["4"]));
    for _ in 0..3 {
        let next = daemon(directory.path(), &[]);
        assert_only(&left.kept, left.target.pid());
        let session = one_more(&client(&next), &left.target, "count", &["work_5"]);
        left.counted = truth(&mut left.target);
        next.kill();
        drop(session.finish());
    }
    let last = daemon(directory.path(), &[]);
    assert_only(&left.kept, left.target.pid());
    assert_eq!(read(&last, left.measurement), left.counted);
    let _ = client(&last).detach(left.target.pid()).assert_removed();
    target::assert_clean(left.target.pid(), &left.before);
}

#[test]
fn a_successor_of_a_daemon_with_two_targets() {
    let directory = open_directory();
    let mut leased = Mutatee::start("threads", &["2"]);
    let before = Text::of(leased.pid());
    let first = daemon(directory.path(), &[]);
    let mut kept = Mutatee::start("threads", &["2"]);
    let kept_before = Text::of(kept.pid());
    let measurement = keep(&client(&first), &kept, &["work_0", "work_1"]);
    let session = client(&first).count(leased.pid(), &["work_0", "work_1"]);
    truth(&mut kept);
    first.kill();
    drop(session.finish());
    let second = daemon(directory.path(), &[]);
    target::assert_clean(leased.pid(), &before);
    let counted = truth(&mut kept);
    assert_eq!(read(&second, measurement), counted);
    assert_countable_alone(&client(&second), &mut leased);
    let _ = client(&second).detach(kept.pid()).assert_removed();
    target::assert_clean(kept.pid(), &kept_before);
}

#[test]
fn of_two_measurements_that_stay_one_is_removed_by_the_successor() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let stays = keep(&client(&first), &target, &["work_0", "work_1"]);
    let alone = Text::of(target.pid());
    let goes = keep(&client(&first), &target, &["work_1", "work_2"]);
    truth(&mut target);
    first.kill();
    let second = daemon(directory.path(), &[]);
    assert!(!more_than(&alone, target.pid()).is_empty(), "both are there");
    truth(&mut target);
    remove(&second, goes);
    assert_only(&alone, target.pid());
    let counted = truth(&mut target);
    assert_eq!(read(&second, stays), counted);
    remove(&second, stays);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_command_alone_does_the_same() {
    let directory = open_directory();
    let mut left = leave(directory.path(), Mutatee::start("threads", &["4"]));
    left.counted = truth(&mut left.target);
    let alone = Tool::new(sibling("ingraft"));
    let earlier = left.target.ask("go 8").tallies();
    let mut session = alone.start(["count", "-p", &left.target.pid_text(), "work_2", "work_3"]);
    session.wait_for("changed");
    let tallies = left.target.ask("go 800").tallies();
    let calls = |function: &str| tallies[function] - earlier[function];
    let outcome = session.interrupt().assert_code(0);
    assert_eq!((outcome.calls("work_2"), outcome.calls("work_3")), (calls("work_2"), calls("work_3")));
    assert_only(&left.kept, left.target.pid());
    // The next daemon continues the kept measurement.
    let second = daemon(directory.path(), &[]);
    let (before, earlier) = (read(&second, left.measurement), truth(&mut left.target) - 800);
    assert!((left.counted..=earlier).contains(&before), "{} to {earlier}: {before}", left.counted);
    assert_eq!(read(&second, left.measurement), before + 800);
    remove(&second, left.measurement);
    target::assert_clean(left.target.pid(), &left.before);
}

#[test]
fn a_command_without_privilege_does_the_same() {
    use std::os::unix::process::CommandExt;
    if !ingraft_testing::is_root() {
        skip!("the other tests already run without privilege");
    }
    let directory = open_directory();
    let copy = ingraft_testing::exposed(&ingraft_testing::program("threads").expect("gcc"), directory.path());
    let mut command = std::process::Command::new(copy);
    let nobody = ingraft_testing::NOBODY;
    let mut left = leave(directory.path(), Mutatee::spawn(command.arg("4").uid(nobody).gid(nobody)));
    let alone = Tool::unprivileged(sibling("ingraft"));
    let earlier = left.target.ask("go 8").tallies();
    let mut session = alone.start(["count", "-p", &left.target.pid_text(), "work_2", "work_3"]);
    session.wait_for("changed");
    let tallies = left.target.ask("go 800").tallies();
    let calls = |function: &str| tallies[function] - earlier[function];
    let outcome = session.interrupt().assert_code(0);
    assert_eq!((outcome.calls("work_2"), outcome.calls("work_3")), (calls("work_2"), calls("work_3")));
    wait_until("only what is to stay is there", || more_than(&left.kept, left.target.pid()).is_empty());
    let _ = alone.detach(left.target.pid()).assert_removed();
    target::assert_clean(left.target.pid(), &left.before);
}
