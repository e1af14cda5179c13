//! Tests of the log: for every measurement, it tells which user requested what in which process, and how it ended. Nobody else can write
//! such lines.

use std::process::{Command, Stdio};

use ingraft_testing::{Mutatee, exposed, find, open_directory, wait_until};

use crate::{client, daemon};

/// Returns the number of a measurement in a line of the log.
fn measurement(line: &str) -> u64 {
    let number = line.split_once("measurement=").expect("a measurement").1;
    number.split(' ').next().expect("a number").parse().expect("a number")
}

#[test]
fn every_measurement_is_told_from_its_beginning_to_its_end() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let target = Mutatee::start("threads", &["2"]);
    let pid = format!("pid={}", target.pid());
    let session = client(&daemon).count(target.pid(), &["work_0"]);
    let who = format!("who=\"uid {}", nix::unistd::geteuid());
    let what = "what=\"calls of work_0\"";
    let inserted = daemon.logged(&["ingraftd::audit", "inserted", &who, &pid, "name=\"threads\"", what]);
    assert!(inserted.len() == 1 && inserted[0].contains("calls_allowed=false"), "{inserted:?}");
    let id = format!("measurement={} ", measurement(&inserted[0]));
    let _ = session.interrupt().assert_code(0);
    let ended = daemon.logged(&["ingraftd::audit", "ended: removed by uid", &id, "restored=\"yes\"", "seconds="]);
    assert_eq!(ended.len(), 1, "{ended:?}");

    client(&daemon).count(target.pid(), &["work_1"]).kill();
    daemon.logged(&["ingraftd::audit", "ended: its client went away", &pid, "restored=\"yes\""]);

    let short = Mutatee::start("threads", &["2"]);
    let session = client(&daemon).count(short.pid(), &["work_0"]);
    let pid = format!("pid={}", short.pid());
    short.end();
    daemon.logged(&["ingraftd::audit", "ended: its target ended", &pid]);
    drop(session.finish());
}

#[test]
fn refusals_are_told_and_have_stable_reasons() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let target = Mutatee::start("threads", &["2"]);
    let tool = client(&daemon);
    let _ = tool.run(["count", "-p", &target.pid_text(), "no_such_function"]).assert_code(3);
    let line = format!("target=\"{} threads\"", target.pid());
    daemon.logged(&["ingraftd::audit", "refused", "no_such_function", &line]);
    let _ = tool.run(["watch", "-p", &target.pid_text(), "no_metric_of_this_name"]).assert_code(3);
    daemon.logged(&["ingraftd::audit", "refused", "no_metric_of_this_name", "reason=\"no_such_metric\""]);
}

/// A process can choose its own name.
#[test]
fn names_cannot_pass_for_lines_of_the_log() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &["--log", "debug"]);
    let copy = exposed(&find("sleep").expect("sleep"), directory.path());
    let evil = directory.path().join("a\n INFO b\u{1b}[2J");
    std::fs::rename(copy, &evil).expect("rename a program");
    let mut process = Command::new(&evil).arg("600").stdin(Stdio::null()).spawn().expect("start a program");
    let pid = process.id().to_string();
    let comm = format!("/proc/{pid}/comm");
    wait_until("it runs", || std::fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("a\n")));
    drop(client(&daemon).run(["count", "-p", &pid, "no\nsuch\u{1b}[2J\u{202e}function"]));
    let lines = daemon.logged(&["ingraftd::audit", "refused", &pid]);
    let log = daemon.log();
    process.kill().and_then(|()| process.wait()).expect("end the program");
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "{log}");
    assert!(!log.lines().any(|line| line.starts_with(" INFO b")), "{log}");
    assert!(lines.iter().all(|line| line.contains("INFO b")), "{lines:?}");
}

/// An id means one measurement for ever, even for a client that has not noticed that another daemon runs.
#[test]
fn ids_are_not_used_again_by_a_successor() {
    let directory = open_directory();
    let target = Mutatee::start("threads", &["2"]);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let daemon = daemon(directory.path(), &[]);
        for _ in 0..2 {
            drop(client(&daemon).count(target.pid(), &["work_0"]).interrupt());
        }
        daemon.logged(&["inserted"]);
        wait_until("both are told", || daemon.logged(&["ingraftd::audit", "inserted"]).len() == 2);
        ids.extend(daemon.logged(&["ingraftd::audit", "inserted"]).iter().map(|line| measurement(line)));
        daemon.kill();
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    assert!(ids.iter().all(|id| *id < 1 << 53), "exact in readers of JSON that know only doubles: {ids:?}");
}
