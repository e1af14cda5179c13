//! Tests that several clients of a daemon sample one target, and that a sampling ends with its client.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory, wait_until};

use crate::{client, daemon};

/// Number of threads of a process that take samples.
fn samplings(pid: i32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "samples").count()
}

#[test]
fn clients_sample_one_target_and_leave_nothing_behind() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    target.ask("sleep");
    let (running, waiting) = (client(&daemon), client(&daemon));
    let mut running = running.start(["hot", "-p", &target.pid_text(), "--interval", "100ms"]);
    let mut waiting = waiting.start(["hot", "-p", &target.pid_text(), "--off-cpu", "--interval", "100ms"]);
    wait_until("seventy is found", || running.wait_for("hot")["function"] == "seventy");
    wait_until("sleeps is found", || waiting.wait_for("hot")["function"] == "sleeps");
    // Each command samples threads that run and threads that wait.
    wait_until("all samplings run", || samplings(daemon.pid()) == 4);
    waiting.kill();
    wait_until("its samplings end", || samplings(daemon.pid()) == 2);
    let outcome = running.interrupt().assert_code(0);
    assert!(outcome.all("hot").iter().any(|row| row["function"] == "seventy"), "{outcome:#?}");
    wait_until("the other samplings end", || samplings(daemon.pid()) == 0);
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
    target.ask("wake");
    assert!(target.end().success());
    assert!(daemon.terminate().success());
}

#[test]
fn a_daemon_that_ends_ends_its_samplings() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let mut session = client(&daemon).start(["hot", "-p", &target.pid_text(), "--interval", "100ms"]);
    session.wait_for("samples");
    assert!(daemon.terminate().success());
    let outcome = session.finish();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    target.ask("rest");
    assert!(target.end().success());
}
