//! Tests of the times of calls: against the program's own clock, against servers' own statistics, and with calls that do not return.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Latency, Mutatee, Outcome, Tool, scaled, skip, wait_until};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tool;

/// Panics unless two times differ by at most `percent`, plus the time that the host has taken from this machine: it may do so between the
/// readings of the two clocks.
#[track_caller]
fn assert_near(what: &str, measured: u64, truth: u64, percent: u64) {
    let off = measured.abs_diff(truth).saturating_sub(target::stolen_ns());
    assert!(off * 100 <= truth * percent, "{what}: {measured} ns, but {truth} ns by the other clock");
}

#[test]
fn sleeping_computing_nested_and_recursive_calls() {
    sleep_and_compute(&tool());
}

/// Panics unless the measured times equal the program's own times within 1 %.
pub fn sleep_and_compute(tool: &Tool) -> Outcome {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let session = tool.measure("latency", target.pid(), &["nap", "spin", "around", "deep"]);
    let times = scaled(40, 400);
    target.ask(&format!("nap {times} 5000"));
    target.ask(&format!("spin {times} 2000"));
    target.ask(&format!("nest {times} 3000"));
    let truth = target.ask("deep 30 100000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, calls) in truth.tallies() {
        let seen = outcome.latency(&function);
        // The program does not time the nap at the deepest level of `deep`.
        let inner = u64::from(function == "nap");
        assert_eq!(seen.calls, calls + inner, "{function}");
        assert_eq!((seen.left, seen.unseen, seen.unrecorded), (0, 0, 0), "{function}");
        let own = truth.number(&format!("ns {function}"));
        assert_near(&function, seen.sum_ns - inner * 100_000_000, own, 1);
        assert!(seen.min_ns <= seen.p50_ns && seen.p50_ns <= seen.p99_ns && seen.p99_ns <= seen.max_ns, "{seen:?}");
    }
    let spin = outcome.latency("spin");
    assert!(spin.min_ns >= 1_990_000, "{spin:?}");
    target::assert_clean(target.pid(), &before);
    target.ask("nap 1 1");
    outcome
}

const NESTED: [&str; 4] = ["nap", "spin", "around", "deep"];

#[test]
fn own_times_add_up() {
    let times = scaled(30, 300);
    for clock in ["wall", "cpu"] {
        let mut target = Mutatee::start("times", &[]);
        let before = Text::of(target.pid());
        let cpu = if clock == "cpu" { &["--cpu"][..] } else { &[] };
        let pid = target.pid_text();
        let words = [&["latency", "-p", &pid, "--max-overhead", "10000"], cpu, &NESTED[..]].concat();
        let mut session = tool().start(words);
        session.wait_for("attached");
        target.ask(&format!("nest {times} 3000"));
        let truth = target.ask("deep 20 200000");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let of = |function: &str| {
            let seen = outcome.latency(function);
            (seen.sum_ns, seen.self_ns.unwrap_or_else(|| panic!("no own time of {function}: {outcome:#?}")))
        };
        let [nap, spin, around, deep] = NESTED.map(of);
        // Functions that call nothing measured have all of their time for themselves; those that only call have none.
        assert!(nap.0.abs_diff(nap.1) <= 1 && spin.0.abs_diff(spin.1) <= 1, "{nap:?} {spin:?}");
        if clock == "wall" {
            assert!(around.1 * 50 <= around.0 && deep.1 * 50 <= deep.0, "{around:?} {deep:?}");
            // Every level of the recursion is in the total of `deep`, and the time of its outermost call is that of the nap.
            let outermost = truth.number("ns deep") / truth.tally("deep");
            assert_near("all", nap.1 + spin.1 + around.1 + deep.1, around.0 + outermost, 1);
        }
        let shares = outcome.all("latency").into_iter().filter_map(|l| l["share"].as_f64());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9, "{outcome:#?}");
    }
}

/// A processor may read its counter before earlier instructions have ended. The function's instructions wait for each other, for 120 cycles
/// in all, and no processor has 12 of them in a nanosecond.
#[test]
fn no_call_ends_before_its_instructions() {
    let mut target = Mutatee::start("times", &[]);
    for clock in [&[][..], &["--cpu"]] {
        let pid = target.pid_text();
        let mut session = tool().start([&["latency", "-p", &pid, "--max-overhead", "10000", "chain"], clock].concat());
        session.wait_for("attached");
        target.ask("chain 1000000");
        let seen = session.interrupt().assert_code(0).assert_removed().latency("chain");
        // Right after a switch, a reading of processor time may be held back to the one before it.
        let least = if clock.is_empty() { seen.min_ns } else { seen.p50_ns };
        assert!(seen.timed == 1_000_000 && least >= 10, "{clock:?}: {seen:?}");
    }
}

/// Returns the last value of a pair, a time in nanoseconds.
fn last_value(outcome: &Outcome, metric: &str, function: &str) -> u64 {
    let samples = outcome.all("sample");
    let of_pair = samples.into_iter().rfind(|s| {
        s["metric"] == metric && s["focus"].as_str().is_some_and(|focus| focus.ends_with(&format!("/{function}")))
    });
    of_pair.and_then(|s| s["value"].as_u64()).unwrap_or_else(|| panic!("no {metric} of {function}: {outcome:#?}"))
}

#[test]
fn with_and_without_callees_nested_and_recursive() {
    let times = scaled(30, 300);
    let measure = |program: &str, metrics: [&str; 2], functions: &[&str]| {
        let target = Mutatee::start(program, &[]);
        let pairs: Vec<String> =
            functions.iter().flat_map(|f| metrics.map(|m| format!("{m}@/Code/{program}/{f}"))).collect();
        let fixed = ["watch", "-p", &target.pid_text(), "--max-overhead", "10000"].map(String::from);
        let mut session = tool().start(fixed.iter().chain(&pairs));
        session.wait_for("attached");
        (target, session)
    };

    let (mut target, session) =
        measure("times", ["exec_time", "exec_time_inclusive"], &["around", "deep", "nap", "spin"]);
    target.ask(&format!("nest {times} 3000"));
    let before = target.ask("spin 1 1");
    let truth = target.ask("deep 20 200000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let ns = |function: &str| truth.number(&format!("ns {function}"));
    for function in ["around", "nap", "spin"] {
        let slept = if function == "nap" { 200_000_000 } else { 0 }; // the program does not time the deepest naps
        assert_near(function, last_value(&outcome, "exec_time_inclusive", function), ns(function) + slept, 1);
    }
    // Every level of the recursion takes as long as the outermost level, whose time the program measures once.
    let outermost = (ns("deep") - before.number("ns deep")) / truth.tally("deep");
    assert_near("deep", last_value(&outcome, "exec_time_inclusive", "deep"), outermost, 1);
    assert!(outcome.all("refused").is_empty(), "{outcome:#?}");
    for (function, whole) in [("around", ns("around")), ("deep", outermost)] {
        let own = last_value(&outcome, "exec_time", function);
        assert!(own * 100 <= whole, "{function} itself: {own} of {whole} ns");
    }

    let (mut target, session) = measure("burns", ["cpu", "cpu_inclusive"], &["burn", "both", "dive"]);
    target.ask(&format!("mix {times} 2000"));
    let mixed = target.ask("burn 1 1");
    let truth = target.ask("dive 20 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let ns = |function: &str| truth.number(&format!("ns {function}"));
    let slack = target::slice_slack_ns();
    let near = |what: &str, measured: u64, truth: u64| {
        assert!(measured.abs_diff(truth) <= truth / 100 + slack, "{what}: {measured} ns, but {truth} ns");
    };
    let dived = ns("burn") - mixed.number("ns burn");
    near("both", last_value(&outcome, "cpu_inclusive", "both"), ns("both"));
    near("dive", last_value(&outcome, "cpu_inclusive", "dive"), dived);
    near("burn", last_value(&outcome, "cpu_inclusive", "burn"), ns("burn"));
    assert!(outcome.all("refused").is_empty(), "{outcome:#?}");
    near("dive itself", last_value(&outcome, "cpu", "dive"), 0);
    near("both itself", last_value(&outcome, "cpu", "both"), 0);
}

#[test]
fn calls_that_began_before_and_that_have_not_ended() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("block");
    let session = tool.measure("latency", target.pid(), &["held"]);
    target.ask("release");
    let seen = session.interrupt().assert_code(0).assert_removed().latency("held");
    assert_eq!((seen.calls, seen.unseen), (0, 1), "its entry was not seen");
    let session = tool.measure("latency", target.pid(), &["held"]);
    target.ask("block");
    let seen = session.interrupt().assert_code(0).assert_removed().latency("held");
    assert_eq!((seen.calls, seen.timed, seen.left, seen.unseen), (1, 0, 0, 0), "it has not ended");
    target::assert_clean(target.pid(), &before);
    target.ask("release");
}

#[test]
fn no_timer_runs_on_when_its_target_is_killed() {
    let mut target = Mutatee::start("times", &[]);
    let mut session =
        tool().start(["watch", "-p", &target.pid_text(), "wall_time@/Code/times/held", "--interval", "20s"]);
    session.wait_for("attached");
    let begin = Instant::now();
    target.ask("block");
    std::thread::sleep(Duration::from_millis(300));
    let pid = Pid::from_raw(target.pid());
    kill(pid, Signal::SIGKILL).expect("a target");
    let lived = begin.elapsed();
    let outcome = session.finish();
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    let time = Duration::from_nanos(last_value(&outcome, "wall_time", "held"));
    assert!((Duration::from_millis(300)..lived + Duration::from_secs(1)).contains(&time), "{time:?} of {lived:?}");
}

#[test]
fn exceptions_jumps_and_cancellation_through_timed_functions() {
    leave_otherwise(&tool());
}

/// Panics unless calls that end by exceptions, longjmp or cancellation are counted as left.
pub fn leave_otherwise(tool: &Tool) {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let n = scaled(300, 20_000);
    let functions = ["outer", "middle", "thrower", "jumper", "jump_middle", "wait_inside", "leave_inside"];
    let session = tool.measure("latency", target.pid(), &functions);
    target.ask(&format!("jump {n}")).assert_right();
    target.ask(&format!("throw {n}")).assert_right();
    let truth = target.ask("cancel 50");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies().into_iter().filter(|(f, _)| f != "tracer") {
        let seen = outcome.latency(&function);
        assert_eq!((seen.calls, seen.timed + seen.left), (tally, tally), "{function}: {seen:?}");
        assert_eq!((seen.unseen, seen.unrecorded), (0, 0), "{function}");
        let returns = function == "outer";
        assert_eq!(seen.timed, if returns { tally } else { 0 }, "{function}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("throw 100").assert_right();
}

#[test]
fn redis_times_agree_with_its_own_statistics() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let pid = redis.pid();
    let before = Text::of(pid);
    // The script runs so long that the few microseconds which `call` spends besides the command do not matter.
    let script = "local s = 0 for i = 1, 40000 do s = s + i end return s";
    let session = tool().measure("latency", pid, &["call"]);
    redis.ask(&["CONFIG RESETSTAT"]);
    let n = scaled(2_000, 50_000);
    redis.load(&["-n", &n.to_string(), "-c", "10", "-q", "EVAL", script, "0"]);
    let statistics = redis.ask(&["INFO commandstats"]).remove(0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let seen = outcome.latency("call");
    let (mut calls, mut usec) = (0, 0);
    for line in statistics.lines().filter(|line| line.starts_with("cmdstat_")) {
        let field = |name: &str| -> u64 {
            let text = line.split([':', ',']).find_map(|f| f.trim().strip_prefix(name)).unwrap_or_default();
            text.parse().unwrap_or_else(|_| panic!("no {name} in {line}"))
        };
        calls += field("calls=");
        usec += field("usec=");
    }
    // The answer of `INFO commandstats` counts all commands except that INFO itself.
    assert_eq!(seen.calls, calls + 1);
    assert_eq!((seen.left, seen.unseen, seen.unrecorded), (0, 0, 0));
    assert_near("call", seen.sum_ns, usec * 1000, 3);
    target::assert_clean(pid, &before);
}

#[test]
fn threads_that_all_sit_in_a_timed_function() {
    let mut target = Mutatee::start("spin", &["6"]);
    let tool = tool();
    let before = Text::of(target.pid());
    for _ in 0..scaled(10, 100) {
        let session = tool.measure("latency", target.pid(), &["sit"]);
        assert_eq!(target::tracer(target.pid()), 0, "untraced while it measures");
        let earlier = target.ask("beat").number("beats");
        wait_until("the threads go round", || target.ask("beat").number("beats") > earlier);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.latency("sit").calls, 0);
        target::assert_clean(target.pid(), &before);
    }
    for _ in 0..scaled(10, 100) {
        let session = tool.measure("latency", target.pid(), &["sit"]);
        target.ask("leave");
        // Each of the 6 threads leaves a call that began before the measurement, and then calls `sit` again.
        let seen = session.interrupt().assert_code(0).assert_removed().latency("sit");
        assert_eq!((seen.calls, seen.timed, seen.unseen), (6, 0, 6), "{seen:?}");
        target::assert_clean(target.pid(), &before);
    }
}

#[test]
fn threads_on_the_first_instruction_of_a_loop_are_caught_up() {
    let mut target = Mutatee::start("spin", &["6"]);
    let tool = tool();
    let before = Text::of(target.pid());
    for _ in 0..scaled(10, 100) {
        let pid = target.pid_text();
        let mut session = tool.start(["watch", "-p", &pid, "wall_time@/Code/spin/sit", "--max-overhead", "10000"]);
        let attached = session.wait_for("attached");
        assert_eq!((&attached["caught_up"], &attached["not_unwound"]), (&6.into(), &0.into()));
        target.ask("leave");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let amiss = |sample: &&serde_json::Value| ["left", "unseen"].iter().any(|key| sample[key].as_u64() > Some(0));
        assert_eq!(outcome.all("sample").into_iter().find(amiss), None);
        target::assert_clean(target.pid(), &before);
    }
}

#[test]
fn thousands_of_functions_at_once() {
    let mut target = Mutatee::start("crowd", &[]);
    let (pid, before) = (target.pid(), Text::of(target.pid()));
    let pages = target.ask("calls 1").number("resident");
    let session = tool().measure("latency", pid, &["f_*"]);
    let most = target.ask("calls 5").number("resident") - pages;
    target.ask("all 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("percentiles are known to 1/4"), "{}", outcome.stderr);
    let found: BTreeMap<String, Latency> = outcome.latencies().into_iter().collect();
    for n in 0..4096 {
        let name = format!("f_{:x}_{:x}_{:x}", n >> 8, n >> 4 & 15, n & 15);
        let seen = &found[&name];
        assert_eq!((seen.calls, seen.left, seen.unseen, seen.unrecorded), (8, 0, 0, 0), "{name}");
        assert!(n % 2 == 0 || seen.min_ns >= 1990, "{name}: {seen:?}");
        assert!(
            seen.min_ns <= seen.p50_ns && seen.p50_ns <= seen.p99_ns && seen.p99_ns <= seen.max_ns,
            "{name}: {seen:?}"
        );
        // The sum, the smallest and the largest time are rounded down separately.
        assert!((8 * seen.min_ns..=8 * (seen.max_ns + 1)).contains(&seen.sum_ns), "{name}: {seen:?}");
    }
    // Each of 8 threads has called every eighth function. Each call may touch a page; no thread may touch the pages of all functions.
    assert!(most < 7000, "{most} pages");
    target::assert_clean(pid, &before);
    target.ask("all 1");
}
