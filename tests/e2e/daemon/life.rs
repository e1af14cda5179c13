//! Tests of the life of measurements: with clients, without clients, and over crashes and restarts of the daemon.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, NOBODY, Tool, is_root, open_directory, sibling, wait_until};

use crate::{client, daemon};

#[test]
fn a_client_counts_through_it() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let session = client(&daemon).count(target.pid(), &["threads:work_*"]);
    let truth = target.ask("go 2000");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies().into_iter().filter(|(function, _)| function != "never") {
        assert_eq!(outcome.calls(&function), tally, "{function}");
    }
    target::assert_clean(target.pid(), &before);
    assert!(daemon.terminate().success());
}

/// Processes that sleep until they are dropped.
struct Crowd(Vec<Child>);

impl Crowd {
    fn new(count: usize) -> Crowd {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        if is_root() {
            sleep.uid(NOBODY).gid(NOBODY);
        }
        Crowd((0..count).map(|_| sleep.spawn().expect("start a process")).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A user other than root may have 250 streams on a connection.
#[test]
fn a_command_measures_more_processes_than_a_connection_has_streams() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &["--socket-mode", "0666"]);
    let crowd = Crowd::new(260);
    let pids: BTreeSet<String> = crowd.0.iter().map(|child| child.id().to_string()).collect();
    let mut arguments = vec!["watch", "pause_time", "--interval", "500ms"];
    arguments.extend(pids.iter().flat_map(|pid| ["-p", pid]));
    let mut session = Tool::unprivileged(sibling("ingraft")).with_daemon(&daemon.uri(), None).start(arguments);
    let mut heard = BTreeSet::new();
    while heard.len() < pids.len() {
        heard.insert(session.wait_for("sample")["pid"].to_string());
    }
    assert_eq!(heard, pids);
    let _ = session.interrupt().assert_code(0);
    assert!(daemon.terminate().success());
}

#[test]
fn several_clients_share_a_target() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let (one, two) = (client(&daemon), client(&daemon));
    let first = one.count(target.pid(), &["work_0", "work_1"]);
    let early = target.ask("go 100").tallies();
    let mut second = two.start(["count", "-p", &target.pid_text(), "work_1", "work_2"]);
    second.wait_for("changed");
    let truth = target.ask("go 1000").tallies();
    let outcome = second.interrupt().assert_code(0);
    assert_eq!(outcome.calls("work_1"), truth["work_1"] - early["work_1"], "cumulative since the request");
    assert_eq!(outcome.calls("work_2"), truth["work_2"] - early["work_2"]);
    before.assert_not_in(target.pid());
    let truth = target.ask("go 10").tallies();
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth["work_0"]);
    assert_eq!(outcome.calls("work_1"), truth["work_1"]);
    target::assert_clean(target.pid(), &before);
    target.ask("go 10").assert_right();
}

#[test]
fn a_client_that_is_killed_leaves_nothing() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    client(&daemon).count(target.pid(), &["work_0"]).kill();
    wait_until("the daemon removes it", || target::arenas(target.pid()) == 0 && target::tracer(target.pid()) == 0);
    target::assert_clean(target.pid(), &before);
    target.ask("go 10").assert_right();
}

#[test]
fn a_measurement_that_is_to_stay_stays() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let outcome =
        tool.run(["count", "-p", &target.pid_text(), "work_0", "--for", "10ms", "--no-remove"]).assert_code(0);
    assert!(outcome.all("removed").is_empty(), "{outcome:#?}");
    before.assert_not_in(target.pid());
    let listed = tool.inserted(target.pid());
    assert!(listed.len() == 1 && listed[0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{listed:?}");
    target.ask("go 100").assert_right();
    let _ = tool.detach(target.pid()).assert_removed();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn ended_by_sigterm_it_keeps_what_is_to_stay_and_removes_the_rest() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let (mut kept, mut other) = (Mutatee::start("threads", &["2"]), Mutatee::start("threads", &["2"]));
    let before = [Text::of(kept.pid()), Text::of(other.pid())];
    let tool = client(&first);
    let _ = tool.run(["count", "-p", &kept.pid_text(), "work_0", "--for", "10ms", "--no-remove"]).assert_code(0);
    let session = tool.count(other.pid(), &["work_0"]);
    assert!(first.terminate().success());
    target::assert_clean(other.pid(), &before[1]);
    before[0].assert_not_in(kept.pid());
    assert_eq!(target::tracer(kept.pid()), 0);
    let outcome = session.finish();
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    kept.ask("go 100").assert_right();
    other.ask("go 100").assert_right();
    // The next daemon finds and lists the measurement, and can remove it.
    let second = daemon(directory.path(), &[]);
    let tool = client(&second);
    assert_eq!(tool.inserted(kept.pid()).len(), 1);
    let _ = tool.detach(kept.pid()).assert_removed();
    target::assert_clean(kept.pid(), &before[0]);
}

#[test]
fn its_successor_restores_what_a_crash_left() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let session = client(&first).count(target.pid(), &["threads:work_*"]);
    first.kill();
    let outcome = session.finish();
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    target.ask("go 1000").assert_right();
    before.assert_not_in(target.pid());
    let second = daemon(directory.path(), &[]);
    wait_until("the successor restores the target", || Text::of(target.pid()) == before);
    wait_until("its arenas are gone", || target::arenas(target.pid()) == 0);
    target::assert_clean(target.pid(), &before);
    target.ask("go 1000").assert_right();
    assert!(client(&second).inserted(target.pid()).is_empty());
}

#[test]
fn detach_restores_after_its_crash_without_a_successor() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let session = client(&daemon).count(target.pid(), &["threads:work_*"]);
    daemon.kill();
    drop(session.finish());
    let _ = Tool::new(sibling("ingraft")).detach(target.pid()).assert_removed();
    target::assert_clean(target.pid(), &before);
    target.ask("go 1000").assert_right();
}

#[test]
fn an_embedded_engine_does_not_rob_it() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let target = Mutatee::start("threads", &["2"]);
    let session = client(&daemon).count(target.pid(), &["work_0"]);
    let alone = Tool::new(sibling("ingraft"));
    let outcome = alone.run(["count", "-p", &target.pid_text(), "work_0"]).assert_error(4, &["ingraftd"]);
    assert!(outcome.stderr.contains(&daemon.pid().to_string()), "{outcome:#?}");
    let _ = session.interrupt().assert_code(0).assert_removed();
}
