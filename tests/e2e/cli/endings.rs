//! Tests of targets that end while they are measured, and of targets that write over their own code: the report says so.

use ingraft_testing::target;
use ingraft_testing::{Mutatee, Outcome};

use crate::tool;

/// Measures a program until it ends in this way.
fn end_by(how: &str) -> Outcome {
    let mut target = Mutatee::start("patcher", &[]);
    let mut session = tool().count(target.pid(), &["plain"]);
    target.ask("call 7").assert_right();
    target.tell(&format!("crash {how}"));
    session.wait_for("ended");
    let outcome = session.finish().assert_code(0);
    assert_eq!(outcome.calls("plain"), 7, "{outcome:#?}");
    assert!(outcome.one("removed")["text_restored"].is_null(), "text that is gone is not restored: {outcome:#?}");
    outcome
}

#[test]
fn a_crash_is_told() {
    for (how, signal, name) in [("segv", 11, "SIGSEGV"), ("abrt", 6, "SIGABRT")] {
        let outcome = end_by(how);
        let ended = outcome.one("ended");
        assert_eq!((&ended["status"], &ended["signal"]), (&serde_json::Value::Null, &signal.into()), "{outcome:#?}");
        assert!(outcome.stderr.contains("crashed") && outcome.stderr.contains(name), "{outcome:#?}");
    }
}

#[test]
fn a_program_that_executes_others_all_the_time_is_named_as_such() {
    let target = Mutatee::start("execs", &["2000"]);
    let (tool, pid) = (tool(), target.pid_text());
    let mut told = 0;
    for command in ["count", "latency", "count", "functions"] {
        let outcome = match command {
            "functions" => tool.run([command, "-p", &pid, "again"]),
            _ => tool.run([command, "-p", &pid, "again", "--for", "50ms"]),
        };
        // If the next program gets no processor, the command may end before the program begins.
        if outcome.status.code() == Some(0) {
            continue;
        }
        let outcome = outcome.assert_code(5);
        let error: serde_json::Value = serde_json::from_str(outcome.stderr.trim()).expect("one error");
        assert_eq!(error["reason"], "target_replaced", "{outcome:#?}");
        let (what, hint) = (error["what"].as_str().expect("a text"), error["hint"].as_str().expect("a text"));
        // On a busy machine, the process may get no processor for its next program while the engine watches it.
        let is_named = what.contains("executes other programs too often");
        assert!(is_named || what.contains("has started another program"), "{outcome:#?}");
        assert!(!is_named || hint.contains("-- COMMAND") && hint.contains("--follow fork,exec"), "{outcome:#?}");
        told += u32::from(is_named);
    }
    assert!(told > 0, "never named");
    assert!(target::tracer(target.pid()) == 0);
}

#[test]
fn another_end_is_no_crash() {
    for (how, status, signal) in [("kill", None, Some(9)), ("exit", Some(3), None)] {
        let outcome = end_by(how);
        let ended = outcome.one("ended");
        assert_eq!((&ended["status"], &ended["signal"]), (&status.into(), &signal.into()), "{outcome:#?}");
        assert!(!outcome.stderr.contains("crashed"), "{outcome:#?}");
    }
}

#[test]
fn an_entry_that_the_program_puts_back_is_told_as_lost() {
    let mut target = Mutatee::start("patcher", &[]);
    let session = tool().count(target.pid(), &["patched", "plain"]);
    target.ask("call 10").assert_right();
    target.ask("restore").assert_right();
    target.ask("call 10").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!((outcome.calls("patched"), outcome.calls("plain")), (10, 20), "{outcome:#?}");
    let removed = outcome.one("removed");
    let warnings: Vec<_> = removed["warnings"].as_array().into_iter().flatten().filter_map(|w| w.as_str()).collect();
    let is_told = |w: &&str| w.contains("original code back") && w.contains("patched") && !w.contains("plain");
    assert_eq!(warnings.into_iter().filter(is_told).count(), 1, "told once: {outcome:#?}");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 10").assert_right();
}

#[test]
fn a_program_that_writes_nothing_is_told_nothing() {
    let mut target = Mutatee::start("patcher", &[]);
    let session = tool().count(target.pid(), &["patched", "plain"]);
    target.ask("call 10").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.one("removed")["warnings"].is_null(), "{outcome:#?}");
}
