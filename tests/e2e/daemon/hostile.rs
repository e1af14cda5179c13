//! Tests of a daemon that runs as root and that everybody may call, with users who attack it by the programs that it measures for them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ingraft_testing::target::Traced;
use ingraft_testing::{
    Daemon, Mutatee, NOBODY, Tool, exposed, is_root, open_directory, program, scaled, sibling, skip, source_directory,
    wait_until,
};

use crate::daemon;

fn everybodys(directory: &Path) -> Daemon {
    daemon(directory, &["--socket-mode", "0666"])
}

fn stranger(daemon: &Daemon) -> Tool {
    Tool::unprivileged(sibling("ingraft")).with_daemon(&daemon.uri(), None)
}

/// Starts a target program as an ordinary user.
fn theirs(program: &Path, arguments: &[&str]) -> Mutatee {
    Mutatee::spawn(Command::new(program).args(arguments).uid(NOBODY).gid(NOBODY))
}

/// Panics unless the daemon serves another client within a short time.
fn serves_others(daemon: &Daemon, program: &Path) {
    let begin = Instant::now();
    let target = theirs(program, &["quiet"]);
    let session = stranger(daemon).count(target.pid(), &["work"]);
    let _ = session.interrupt().assert_code(0).assert_removed();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn a_setuid_program_is_never_measured_for_its_user() {
    if !is_root() {
        skip!("only root can make a setuid program of another user");
    }
    let (directory, place) = (open_directory(), open_directory());
    let plain = exposed(&program("attacks").expect("gcc"), place.path());
    // The file has the same name, so that the requested focus also exists after the exec.
    let setuid: PathBuf = place.path().join("root").join("attacks");
    std::fs::create_dir(place.path().join("root")).expect("a directory");
    std::fs::copy(&plain, &setuid).expect("copy");
    std::fs::set_permissions(&setuid, std::fs::Permissions::from_mode(0o4755)).expect("mode");
    let proof = place.path().join("proof");
    let daemon = everybodys(directory.path());
    let tool = stranger(&daemon);
    let mdl = source_directory().join("tests/e2e/mdl/attacks.mdl");
    let mdl = exposed(&mdl, place.path());
    let arguments = |pid: &str| {
        let fixed = ["watch", "-p", pid, "-I", mdl.to_str().expect("a path"), "--allow-calls", "--for", "20ms"];
        let more = ["--max-overhead", "10000", "--interval", "10ms", "marks@/Code/attacks/work"];
        fixed.iter().chain(&more).map(|s| (*s).to_owned()).collect::<Vec<_>>()
    };
    let paths = [setuid.to_str().expect("a path"), proof.to_str().expect("a path")];
    // In a program that has no additional rights, the call works.
    let mut harmless = theirs(&plain, &["exec", paths[0], paths[1]]);
    let outcome = tool.run(arguments(&harmless.pid_text()));
    assert!(harmless.ask("marks").tallies()["mark"] > 0, "{outcome:#?}");
    assert!(!proof.exists());
    // The duration of an insertion limits the moment at which the program executes the other one.
    let begin = Instant::now();
    let _ = tool.run(arguments(&harmless.pid_text()));
    let whole = begin.elapsed();
    let tries = scaled(50, 500);
    let mut refused = 0;
    for n in 0..tries {
        let mut target = theirs(&plain, &["exec", paths[0], paths[1]]);
        let session = tool.start(arguments(&target.pid_text()));
        // Each try makes the exec at another moment of the insertion.
        std::thread::sleep(whole.mul_f64(n as f64 / tries as f64));
        target.tell("exec");
        let outcome = session.finish();
        refused += u64::from(!outcome.status.success());
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
        assert!(!proof.exists(), "try {n}: a call ran as root: {outcome:#?}");
        assert!(target.end().success(), "try {n}: the setuid program is as it was");
    }
    println!("{refused} of {tries} refused");
    serves_others(&daemon, &plain);
    assert!(daemon.terminate().success());
}

/// A client may lose its rights between two tries of a deferred insertion.
#[test]
fn rights_that_end_while_an_insertion_waits_end_it() {
    if !is_root() {
        skip!("only root can start targets of another user");
    }
    let (directory, place) = (open_directory(), open_directory());
    let plain = exposed(&program("corner").expect("gcc"), place.path());
    let daemon = everybodys(directory.path());
    let mut target = theirs(&plain, &[]);
    let traced = Traced::new(target.pid());
    let mut waiting = stranger(&daemon).start(["count", "-p", &target.pid_text(), "work", "--wait", "1h"]);
    waiting.wait_for_word("deferred");
    // A process that is not dumpable can be traced with privilege only.
    let _ = target.ask("undumpable");
    drop(traced);
    let _ = waiting.finish().assert_error(4, &["not", "dumpable"]);
    target.ask("work 5").assert_right();
    assert!(daemon.terminate().success());
}

#[test]
fn a_target_that_cuts_the_shared_memory_down_does_not_end_the_daemon() {
    let (directory, place) = (open_directory(), open_directory());
    if !is_root() {
        skip!("only root can start targets of another user");
    }
    let plain = exposed(&program("attacks").expect("gcc"), place.path());
    let daemon = everybodys(directory.path());
    let tool = stranger(&daemon);
    let mut target = theirs(&plain, &["truncate"]);
    let pid = target.pid_text();
    let tries = scaled(12, 500);
    let mut refused = 0;
    for _ in 0..tries {
        let outcome = tool.run(["count", "-p", &pid, "work", "--for", "5ms"]);
        refused += u64::from(!outcome.status.success());
        assert!(matches!(outcome.status.code(), Some(0 | 1)), "{outcome:#?}");
        assert!(target.alive());
    }
    println!("{} files taken, {refused} of {tries} refused", target.ask("count").tallies()["found"]);
    serves_others(&daemon, &plain);
    assert!(daemon.terminate().success());
}

#[test]
fn a_target_that_scribbles_on_the_shared_memory_harms_itself_only() {
    let (directory, place) = (open_directory(), open_directory());
    if !is_root() {
        skip!("only root can start targets of another user");
    }
    let plain = exposed(&program("attacks").expect("gcc"), place.path());
    let daemon = everybodys(directory.path());
    let tool = stranger(&daemon);
    for _ in 0..scaled(6, 60) {
        let mut target = theirs(&plain, &["scribble"]);
        let pid = target.pid_text();
        for command in ["count", "latency", "count"] {
            let outcome = tool.run([command, "-p", &pid, "work", "--for", "60ms", "--interval", "10ms"]);
            assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
            assert!(outcome.status.code().is_some(), "{outcome:#?}");
        }
        if target.alive() {
            let _ = target.ask("count");
        }
        drop(target);
        serves_others(&daemon, &plain);
    }
    // The next daemon reads the data that these targets have left.
    let target = theirs(&plain, &["scribble"]);
    let session = tool.start(["count", "-p", &target.pid_text(), "work"]);
    wait_until("it is in", || ingraft_testing::target::arenas(target.pid()) > 0 || !session_runs(&session));
    daemon.kill();
    drop(session.finish());
    let next = everybodys(directory.path());
    serves_others(&next, &plain);
    assert!(next.terminate().success());
}

fn session_runs(session: &ingraft_testing::Session) -> bool {
    Path::new(&format!("/proc/{}/exe", session.pid())).exists()
}
