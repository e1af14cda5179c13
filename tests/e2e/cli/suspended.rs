//! Tests of a program that suspends its own contexts in a signal handler: their program counters wait in memory, also in code that is
//! removed.

use std::path::Path;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, Session, Tool, open_directory, scaled, sibling, wait_until};

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
    start_with("0")
}

/// Starts the program with so many MiB of other memory.
fn start_with(mib: &str) -> (Mutatee, Text) {
    let target = Mutatee::start("suspended", &["16", "200", mib]);
    let before = Text::of(target.pid());
    (target, before)
}

/// Begins a measurement. A trace is written to a file in the directory.
fn measure(tool: &Tool, pid: i32, kind: &[&'static str], directory: &Path) -> Session {
    let mut session = begin(tool, pid, kind, directory);
    session.wait_for("attached");
    session
}

fn begin(tool: &Tool, pid: i32, kind: &[&'static str], directory: &Path) -> Session {
    let mut arguments: Vec<String> = functions(kind).into_iter().map(str::to_owned).collect();
    if kind.contains(&"trace") {
        let file = directory.join("suspended.trace");
        arguments.extend(["-o".to_owned(), file.to_str().expect("a path").to_owned()]);
    }
    arguments.extend(["-p".to_owned(), pid.to_string(), "--max-overhead".to_owned(), "10000".to_owned()]);
    tool.start(arguments)
}

/// Begins a measurement of a program whose contexts stand still, at other places if one of these places keeps code from being inserted.
fn measure_stopped(tool: &Tool, target: &mut Mutatee, kind: &[&'static str], directory: &Path) -> Session {
    loop {
        let mut session = begin(tool, target.pid(), kind, directory);
        if session.try_wait_for("attached").is_some() {
            return session;
        }
        let outcome = session.finish().assert_code(1);
        assert!(outcome.stderr.contains(r#""reason":"busy""#), "{kind:?}: {outcome:#?}");
        target.ask("go").assert_right();
        assert_goes_on(target, "other places");
        target.ask("stop").assert_right();
    }
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
            let stays = outcome.one("removed")["memory_left"] == true;
            assert_eq!(outcome.stderr.contains("switches stacks"), stays, "{what}: {}", outcome.stderr);
            before.assert_in(target.pid());
            assert_goes_on(&mut target, &what);
        }
    }
}

#[test]
fn memory_that_stays_is_used_again() {
    let tool = tool();
    let (mut target, before) = start();
    let pid = target.pid_text();
    // Each round takes more than a third of the counters that a shard has.
    let functions = ["grind", "small", "chew", "libc.so.6:str*", "libc.so.6:mem*"];
    for round in 0..scaled(8, 40) {
        let mut session = tool.start([&["latency", "-p", &pid, "--max-overhead", "10000"], &functions[..]].concat());
        session.wait_for("attached");
        // Some of these words lead into generated code.
        target.ask("note").assert_right();
        assert_goes_on(&mut target, &format!("round {round}"));
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let grind = outcome.latency("grind");
        assert!(grind.timed <= grind.calls && grind.calls > 0, "round {round}: {grind:?}");
        assert_eq!(outcome.one("removed")["memory_left"], true, "round {round}: {outcome:#?}");
        before.assert_in(target.pid());
    }
}

#[test]
fn nothing_is_inserted_where_contexts_cannot_be_looked_for_in_the_stop() {
    let tool = tool();
    let (mut target, before) = start_with("200");
    let pid = target.pid().to_string();
    for kind in [&["count", "grind"][..], &["profile", "edges", "grind"]] {
        let arguments = kind.iter().copied().chain(["-p", &pid, "--max-overhead", "10000"]);
        let outcome = tool.run(arguments).assert_error(1, &["suspends contexts in signal handlers"]);
        assert!(outcome.stderr.contains(r#""reason":"suspended_contexts""#), "{outcome:#?}");
        before.assert_in(target.pid());
    }
    assert_goes_on(&mut target, "after a refusal");
}

/// Panics unless each kind of code leaves no memory, where all contexts but one stay where they are, in the text. During each measurement,
/// the program does this command.
fn assert_no_memory_stays(meanwhile: &str) {
    let tool = tool();
    let directory = open_directory();
    let (mut target, before) = start();
    target.ask("stop").assert_right();
    for kind in KINDS {
        let session = measure_stopped(&tool, &mut target, kind, directory.path());
        target.ask(meanwhile).assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.one("removed")["memory_left"] != true, "{kind:?}: {outcome:#?}");
        before.assert_in(target.pid());
    }
    target.ask("go").assert_right();
    assert_goes_on(&mut target, "after all");
}

#[test]
fn nothing_stays_once_every_context_has_left_the_code() {
    assert_no_memory_stays("look");
}

#[test]
fn words_that_point_where_no_code_is_keep_no_memory() {
    assert_no_memory_stays("aim");
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
