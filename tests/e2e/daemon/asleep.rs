//! Tests of a removal that must wait for a thread asleep in the kernel: the daemon finishes it, or the daemon that follows.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, open_directory, wait_until};

use crate::{client, daemon};

/// Returns a target whose sleeper has counted and waits for its vfork child.
fn counted_and_asleep(daemon: &Daemon) -> (Mutatee, Text, ingraft_testing::Session) {
    let mut target = Mutatee::start("asleep", &[]);
    let before = Text::of(target.pid());
    let session = client(daemon).count(target.pid(), &["work"]);
    target.ask("work 100").assert_right();
    let sleeper = target.ask("vfork").number("asleep");
    let stat = format!("/proc/{}/task/{sleeper}/stat", target.pid());
    wait_until("it sleeps", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") D ")));
    (target, before, session)
}

fn has_area(pid: i32) -> bool {
    target::maps(pid).iter().any(|mapping| mapping.name.contains("memfd:ingraft"))
}

/// Wakes the sleeper. Panics unless the daemon then removes the rest without a request.
#[track_caller]
fn assert_finishes(daemon: &Daemon, mut target: Mutatee, before: &Text) {
    before.assert_in(target.pid());
    assert!(has_area(target.pid()), "its memory waits");
    target.ask("wake").assert_right();
    wait_until("the daemon unmaps its memory", || !has_area(target.pid()) && target::tracer(target.pid()) == 0);
    target::assert_clean(target.pid(), before);
    let bases = target.ask("bases");
    assert_eq!((bases.number("main"), bases.number("sleeper")), (0, 0));
    assert!(client(daemon).inserted(target.pid()).is_empty());
    let session = client(daemon).count(target.pid(), &["work"]);
    target.ask("work 50").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.threads("work").into_values().collect::<Vec<_>>(), [50, 50], "{outcome:#?}");
    let session = client(daemon).measure("latency", target.pid(), &["work"]);
    target.ask("work 7").assert_right();
    assert_eq!(session.interrupt().assert_code(0).assert_removed().latency("work").calls, 14);
    target::assert_clean(target.pid(), before);
}

#[test]
fn the_daemon_finishes_it() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let (target, before, session) = counted_and_asleep(&daemon);
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("removed")["memory_left"], true, "{outcome:#?}");
    assert_finishes(&daemon, target, &before);
    assert!(daemon.terminate().success());
}

#[test]
fn a_measurement_in_between_goes_on_in_the_same_memory() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let (mut target, before, session) = counted_and_asleep(&daemon);
    let _ = session.interrupt().assert_code(0);
    let session = client(&daemon).measure("latency", target.pid(), &["work"]);
    target.ask("work 30").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.latency("work").calls, 30);
    assert_eq!(outcome.one("removed")["memory_left"], true, "{outcome:#?}");
    assert_finishes(&daemon, target, &before);
}

#[test]
fn its_successor_finishes_it() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let (target, before, session) = counted_and_asleep(&first);
    let _ = session.interrupt().assert_code(0);
    first.kill();
    let second = daemon(directory.path(), &[]);
    assert_finishes(&second, target, &before);
}

#[test]
fn a_successor_of_one_that_was_killed_while_it_counted() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let (target, before, session) = counted_and_asleep(&first);
    first.kill();
    drop(session.finish());
    let second = daemon(directory.path(), &[]);
    assert_finishes(&second, target, &before);
}

#[test]
fn a_daemon_that_ends_leaves_it_to_its_successor() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let (target, before, session) = counted_and_asleep(&first);
    let _ = session.interrupt().assert_code(0);
    assert!(first.terminate().success());
    let second = daemon(directory.path(), &[]);
    assert_finishes(&second, target, &before);
}
