//! Tests of code before and after the calls that functions make: counts, arguments, results and times must equal the program's own.

use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, have, scaled, skip, source_directory};

use crate::launches::callgrind;
use crate::tool;

fn definitions() -> String {
    let path = source_directory().join("tests/e2e/mdl/calls.mdl");
    path.to_str().expect("a path").to_owned()
}

/// Watches pairs while the target obeys `run`, and returns the last sample of each.
fn watch(target: &mut Mutatee, pairs: &[&str], run: impl FnOnce(&mut Mutatee)) -> (Outcome, Vec<i64>) {
    let before = Text::of(target.pid());
    let (pid, file) = (target.pid_text(), definitions());
    let fixed = ["watch", "-p", &pid, "-I", &file];
    let mut session = tool().start(fixed.into_iter().chain(pairs.iter().copied()));
    session.wait_for("attached");
    run(target);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let last = |pair: &&str| {
        let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
        let samples = outcome.all("sample");
        let last = samples.into_iter().rfind(|s| s["metric"] == metric && s["focus"] == focus);
        last.unwrap_or_else(|| panic!("no sample of {pair}: {outcome:#?}"))["value"].as_i64().expect("a number")
    };
    let values = pairs.iter().map(last).collect();
    (outcome, values)
}

#[test]
fn direct_pointer_virtual_and_library_calls() {
    let mut target = Mutatee::start("calls", &[]);
    let n = i64::try_from(scaled(1_000, 100_000)).expect("small");
    let (_, values) = watch(&mut target, &["calls_made@/Code/calls/maker", "calls_made@/Code/calls/libraries"], |t| {
        t.ask(&format!("make {n}")).assert_right();
        t.ask(&format!("libraries {n}")).assert_right();
    });
    assert_eq!(values, [6 * n, n]);
    target.ask("make 10").assert_right();
}

#[test]
fn arguments_and_results() {
    let mut target = Mutatee::start("calls", &[]);
    let n: i64 = 50;
    let pairs =
        ["first_arguments", "eighth_arguments", "results", "calls_back"].map(|m| format!("{m}@/Code/calls/arguments"));
    let (_, values) = watch(&mut target, &pairs.each_ref().map(String::as_str), |t| {
        t.ask(&format!("arguments {n}")).assert_right();
    });
    let sum = n * (n - 1) / 2;
    assert_eq!(values, [sum, sum, 1001 * sum + n * 720, n]);
}

#[test]
fn time_without_callees() {
    let mut target = Mutatee::start("calls", &[]);
    let times = scaled(30, 300);
    let mut truth = None;
    let pairs = ["own_time@/Code/calls/own_outer", "callee_time@/Code/calls/own_outer"];
    let (_, values) = watch(&mut target, &pairs, |t| truth = Some(t.ask(&format!("own {times} 2000"))));
    let truth = truth.expect("an answer");
    for (value, name) in values.into_iter().zip(["own", "inner"]) {
        let own = i64::try_from(truth.number(&format!("ns {name}"))).expect("small");
        assert!((value - own).abs() * 100 <= own, "{name}: {value} ns, but {own} ns by its own clock");
    }
}

#[test]
fn calls_that_end_by_exceptions_and_jumps() {
    let mut target = Mutatee::start("calls", &[]);
    let n = i64::try_from(scaled(300, 20_000)).expect("small");
    let pairs = ["calls_made@/Code/calls/catcher", "calls_made@/Code/calls/lander"];
    let (_, values) = watch(&mut target, &pairs, |t| {
        let told = t.ask(&format!("throw {n}"));
        told.assert_right();
        assert_eq!(told.tally("caught"), u64::try_from(n).expect("small"));
        t.ask(&format!("jump {n}")).assert_right();
    });
    // A throw makes four calls: thrower, two that begin and end the catching, and direct. A jump makes three: _setjmp, jumper and direct.
    assert_eq!(values, [4 * n, 3 * n]);
    target.ask("throw 100").assert_right();
}

#[test]
fn callees_that_are_measured_themselves_are_left_out() {
    let mut target = Mutatee::start("calls", &[]);
    let n = 500;
    let (_, values) = watch(&mut target, &["calls_out", "calls_of_nothing"], |t| {
        t.ask(&format!("make {n}")).assert_right();
        t.ask(&format!("libraries {n}")).assert_right();
    });
    // A round makes six calls. One of them, `direct`, is measured itself and therefore left out.
    assert_eq!(values, [5 * n + n, 0]);
}

#[test]
fn calls_side_by_side_and_jumped_past() {
    let mut target = Mutatee::start("calls", &[]);
    let n = i64::try_from(scaled(1_000, 100_000)).expect("small");
    let focus = "/Code/calls/crowded";
    let pairs = ["calls_made", "calls_back", "own_time", "callee_time", "wall_time"].map(|m| format!("{m}@{focus}"));
    let (_, values) = watch(&mut target, &pairs.each_ref().map(String::as_str), |t| {
        t.ask(&format!("crowd {n}")).assert_right();
    });
    let calls = 3 * n + n / 2 + (n + 2) / 3;
    assert_eq!(values[..2], [calls, calls]);
    // The two parts that are measured separately make up the whole, except for the time between two readings.
    assert!(values[2] > 0 && values[3] > 0 && values[2] + values[3] <= values[4], "{values:?}");
    target.ask("crowd 100").assert_right();
}

#[test]
fn several_requests_come_and_go_at_the_same_calls() {
    let mut target = Mutatee::start("calls", &[]);
    let before = Text::of(target.pid());
    let (pid, file) = (target.pid_text(), definitions());
    let rounds = scaled(5, 50);
    for _ in 0..rounds {
        let pairs = ["calls_made@/Code/calls/maker", "first_arguments@/Code/calls/maker", "calls@/Code/calls/maker"];
        let mut session = tool().start(["watch", "-p", &pid, "-I", &file].into_iter().chain(pairs));
        session.wait_for("attached");
        target.ask("make 100").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let made = outcome.all("sample").into_iter().rfind(|s| s["metric"] == "calls_made").expect("a sample");
        assert_eq!(made["value"], 600);
        before.assert_in(target.pid());
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn listed_with_what_can_be_done() {
    let target = Mutatee::start("calls", &[]);
    let outcome = tool().run(["functions", "-p", &target.pid_text(), "calls:maker"]).assert_code(0);
    let maker = &outcome.all("function")[0];
    assert_eq!((&maker["how"]["call"], &maker["points"]["call"]), (&"in-place".into(), &6.into()), "{maker}");
    assert!(maker["why_not"]["call"].is_null(), "{maker}");
}

#[test]
fn as_many_as_callgrind_sees() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let program = match ingraft_testing::program("determ") {
        Ok(program) => program,
        Err(why) => skip!("{why}"),
    };
    let directory = ingraft_testing::open_directory();
    let file = directory.path().join("out");
    // The program binds all functions at its start. Otherwise the loader's work at a first call would count as calls of the caller.
    let status = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", &format!("--callgrind-out-file={}", file.display())])
        .env("LD_BIND_NOW", "1")
        .arg(&program)
        .arg("500")
        .stdout(std::process::Stdio::null())
        .status()
        .expect("run valgrind");
    assert_eq!(status.code(), Some(7));
    let truth = callgrind(&std::fs::read_to_string(&file).expect("callgrind's file")).1;
    let functions = ["hash_text", "fib", "main"];
    let pairs = functions.map(|f| format!("calls_made@/Code/determ/{f}"));
    let definitions = definitions();
    let path = program.to_str().expect("a path");
    let fixed = ["watch", "-I", &definitions];
    let arguments = fixed.into_iter().chain(pairs.iter().map(String::as_str)).chain(["--", path, "500"]);
    let outcome = tool().run(arguments);
    for (function, pair) in functions.iter().zip(&pairs) {
        let focus = pair.split_once('@').expect("a focus").1;
        let sample = outcome.all("sample").into_iter().rfind(|s| s["focus"] == focus);
        let value = sample.unwrap_or_else(|| panic!("no sample of {pair}: {outcome:#?}"))["value"].as_i64();
        assert_eq!(value, i64::try_from(truth[*function]).ok(), "{function}");
    }
}
