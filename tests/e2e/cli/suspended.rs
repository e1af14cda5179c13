//! Tests of a program that suspends its own contexts in a signal handler: their program counters wait in memory, also in code that is
//! removed.

use std::path::Path;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, Tool, open_directory, scaled, sibling, wait_until};

use crate::tool;

/// Every kind of code: springboards with trampolines, copies of functions, times, traces.
const KINDS: [&[&str]; 5] =
    [&["count"], &["profile", "edges"], &["trace"], &["latency"], &["count", "grind#*", "chew#*"]];

fn functions(kind: &[&'static str]) -> Vec<&'static str> {
    let named = kind.contains(&"grind#*");
    let all: &[&str] = if named { &[] } else { &["grind", "small", "chew"] };
    kind.iter().chain(all).copied().collect()
}

/// Waits until all contexts have had the processor again, and checks their results.
fn assert_goes_on(target: &mut Mutatee, what: &str) {
    assert!(target.alive(), "{what}: the target died");
    let before = target.ask("look").number("switches");
    wait_until("every context has had its turn", || target.ask("look").number("switches") > before + 50);
    target.ask("look").assert_right();
}

fn start() -> (Mutatee, Text) {
    let target = Mutatee::start("suspended", &["16", "200"]);
    let before = Text::of(target.pid());
    (target, before)
}

/// Begins a measurement. A trace is written to a file in the directory.
fn measure(tool: &Tool, pid: i32, kind: &[&'static str], directory: &Path) -> ingraft_testing::Session {
    let mut arguments: Vec<String> = functions(kind).into_iter().map(str::to_owned).collect();
    if kind.contains(&"trace") {
        let file = directory.join("suspended.trace");
        arguments.extend(["-o".to_owned(), file.to_str().expect("a path").to_owned()]);
    }
    arguments.extend(["-p".to_owned(), pid.to_string(), "--max-overhead".to_owned(), "10000".to_owned()]);
    let mut session = tool.start(arguments);
    session.wait_for("attached");
    session
}

#[test]
fn contexts_survive_the_removal_of_every_kind_of_code() {
    let tool = tool();
    let directory = open_directory();
    for round in 0..scaled(4, 40) {
        let (mut target, before) = start();
        for kind in KINDS {
            let what = format!("round {round}, {kind:?}");
            let session = measure(&tool, target.pid(), kind, directory.path());
            assert_goes_on(&mut target, &what);
            let outcome = session.interrupt().assert_code(0).assert_removed();
            assert_eq!(outcome.one("removed")["memory_left"], true, "{what}: a context may stand in the code");
            assert!(outcome.stderr.contains("switches stacks"), "{what}: {}", outcome.stderr);
            before.assert_in(target.pid());
            assert_goes_on(&mut target, &what);
        }
    }
}

#[test]
fn contexts_survive_a_detach_after_a_kill() {
    let tool = tool();
    let directory = open_directory();
    for round in 0..scaled(2, 20) {
        let (mut target, before) = start();
        for kind in KINDS {
            let what = format!("round {round}, {kind:?}");
            let session = measure(&tool, target.pid(), kind, directory.path());
            assert_goes_on(&mut target, &what);
            session.kill();
            assert_goes_on(&mut target, &what);
            tool.detach(target.pid());
            before.assert_in(target.pid());
            assert_goes_on(&mut target, &what);
        }
    }
}

#[test]
fn contexts_survive_a_daemon_that_measures_again() {
    let (mut target, before) = start();
    let directory = open_directory();
    let server = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    let client = server.client(Path::new(env!("CARGO_BIN_EXE_ingraft")));
    for kind in KINDS {
        let what = format!("{kind:?}");
        let session = measure(&client, target.pid(), kind, directory.path());
        assert_goes_on(&mut target, &what);
        let _ = session.interrupt().assert_code(0).assert_removed();
        before.assert_in(target.pid());
        assert_goes_on(&mut target, &what);
    }
    assert!(server.terminate().success());
    assert_goes_on(&mut target, "the daemon has ended");
    assert_eq!(target::tracer(target.pid()), 0);
}
