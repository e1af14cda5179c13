//! Tests of definitions that call functions of the program: the results are right, and the program is unharmed.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Session, scaled, source_directory};

use crate::library::value;
use crate::tool;

pub(crate) fn definitions() -> String {
    source_directory().join("tests/e2e/mdl/guest.mdl").to_str().expect("a path").to_owned()
}

fn watch(target: &Mutatee, pairs: &[&str]) -> Session {
    let (pid, mdl) = (target.pid_text(), definitions());
    let fixed = ["watch", "-p", &pid, "-I", &mdl, "--allow-calls", "--max-overhead", "10000", "--interval", "200ms"];
    let mut session = tool().start(fixed.into_iter().chain(pairs.iter().copied()));
    session.wait_for("attached");
    session
}

#[test]
fn it_must_be_permitted() {
    let target = Mutatee::start("guest", &[]);
    let (pid, mdl, before) = (target.pid_text(), definitions(), Text::of(target.pid()));
    let run = |pair: &str, flags: &[&str]| {
        let fixed = ["watch", "-p", &pid, "-I", &mdl, pair, "--for", "1s"];
        tool().run(fixed.iter().chain(flags))
    };
    let _ = run("helped@/Code/guest/work", &[]).assert_error(4, &["--allow-calls"]);
    let refused =
        [("nobody", 3, "no_such_function"), ("stranger", 3, "could be unloaded"), ("exiting", 3, "never returns")];
    for (metric, code, words) in refused {
        let _ = run(&format!("{metric}@/Code/guest/work"), &["--allow-calls"]).assert_error(code, &[words]);
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn values_are_those_that_the_functions_return() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    let metrics = ["helped", "nested", "measuring", "copying"];
    let pairs = metrics.map(|metric| format!("{metric}@/Code/guest/work"));
    let pairs: Vec<&str> = pairs.iter().map(String::as_str).collect();
    let session = watch(&target, &pairs);
    let n = scaled(20_000, 1_000_000).cast_signed();
    let truth = target.ask(&format!("work {n}"));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let helper = |a: i64, b: i64| 3 * a + b + i64::from(a < 0);
    assert_eq!(value(&outcome, pairs[0]), (0..n).map(|i| helper(i, 4)).sum::<i64>());
    let nested = |i: i64| i * helper(helper(1, 0), helper(i, 0)) + 1;
    assert_eq!(value(&outcome, pairs[1]), (0..n).map(nested).sum::<i64>());
    assert_eq!(value(&outcome, pairs[2]), 3 * n);
    // The loader chose one of several versions of the function when the program started.
    assert_eq!(value(&outcome, pairs[3]), 4 * n);
    // Both sides of `||` are computed.
    assert_eq!(truth.tally("helper"), 6 * n.cast_unsigned());
    target::assert_clean(target.pid(), &before);
    target.ask("work 10").assert_right();
}

#[test]
fn what_a_called_function_does_is_not_counted() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    let pairs = ["reentered@/Code/guest/work", "calls@/Code/guest/work", "calls@/Code/guest/reenter"];
    let session = watch(&target, &pairs);
    let n = scaled(10_000, 500_000);
    let truth = target.ask(&format!("work {n}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    // Only the program's own calls are counted, although the function ran twice as often.
    assert_eq!(pairs.map(|pair| value(&outcome, pair)), [6 * n.cast_signed(), n.cast_signed(), 0]);
    assert_eq!((truth.tally("work"), truth.tally("reenter")), (2 * n, n));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn many_threads_and_signals_and_children() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    let pairs = ["helped@/Code/guest/work", "calls@/Code/guest/work"];
    let session = watch(&target, &pairs);
    let (threads, n, alarms) = (8, scaled(20_000, 500_000), scaled(100_000, 1_000_000));
    target.ask(&format!("threads {threads} {n}")).assert_right();
    let truth = target.ask(&format!("alarms {alarms}"));
    truth.assert_right();
    assert!(truth.tally("handled") > 0);
    target.ask("forks 5").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of = |n: u64| (0..n.cast_signed()).map(|i| 3 * i + 4).sum::<i64>();
    assert_eq!(value(&outcome, pairs[1]), (threads * n + alarms).cast_signed());
    assert_eq!(value(&outcome, pairs[0]), threads.cast_signed() * of(n) + of(alarms));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn it_comes_and_goes_under_load() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    target.tell(&format!("threads 4 {}", scaled(30_000_000, 300_000_000)));
    for _ in 0..scaled(5, 50) {
        let mut session = watch(&target, &["helped@/Code/guest/work"]);
        session.wait_for("sample");
        let _ = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
    }
    target.reply().assert_right();
}

#[test]
fn removal_waits_for_a_call_to_return() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    let session = watch(&target, &["lingering@/Code/guest/gate"]);
    target.ask("enter");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(value(&outcome, "lingering@/Code/guest/gate"), 0);
    before.assert_in(target.pid());
    assert!(target::arenas(target.pid()) > 0, "a thread is to return there");
    // As long as the thread has not returned, no command can unmap the arena.
    tool().detach(target.pid());
    assert!(target::arenas(target.pid()) > 0);
    target.ask("leave").assert_right();
    tool().detach(target.pid());
    target::assert_clean(target.pid(), &before);
    target.ask("work 10").assert_right();
}

#[test]
fn a_function_that_leaves_by_longjmp_does_no_harm() {
    let mut target = Mutatee::start("guest", &[]);
    let before = Text::of(target.pid());
    let pairs = ["leaping@/Code/guest/bounce", "calls@/Code/guest/work"];
    let session = watch(&target, &pairs);
    let n = 100;
    let truth = target.ask(&format!("leaps {n}"));
    let worked = target.ask("work 50");
    worked.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(value(&outcome, pairs[0]), truth.tally("leap").cast_signed());
    assert_eq!(truth.tally("leap"), n);
    assert_eq!(value(&outcome, pairs[1]), 50);
    before.assert_in(target.pid());
    target.ask("work 10").assert_right();
}
