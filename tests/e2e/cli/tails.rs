//! Tests of calls that end by a jump to another function (`return slow(x);`): their times, results and flags last until that function has
//! returned.

use ingraft_testing::server::{Postgres, Redis};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, scaled, skip, source_directory};

use crate::tool;

/// Functions that end by a jump whose target is known, apart from `slow`, to which most of them jump.
const JUMPING: [&str; 6] = ["direct", "chain", "sometimes", "branch", "_ZN5Shape4workEl", "library"];

#[track_caller]
fn assert_near(what: &str, measured: u64, truth: u64, percent: u64) {
    let off = measured.abs_diff(truth).saturating_sub(target::stolen_ns());
    assert!(off * 100 <= truth * percent, "{what}: {measured} ns, but {truth} ns by the program's own clock");
}

/// Returns the name under which the program reports a function.
fn own_name(function: &str) -> &str {
    if function.starts_with("_Z") { "member" } else { function }
}

#[test]
fn times_last_until_the_function_that_was_jumped_to_returns() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let functions: Vec<&str> = JUMPING.into_iter().chain(["slow"]).collect();
    let session = tool().measure("latency", target.pid(), &functions);
    let truth = target.ask(&format!("run {} 5000", scaled(60, 600)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in functions {
        let name = own_name(function);
        let seen = outcome.latency(if name == "member" { "Shape::work(long)" } else { function });
        if function == "slow" {
            // The other functions jump to `slow`, too, so it has more calls.
            assert!(seen.calls > truth.tally(name), "{seen:?}");
        } else {
            assert_eq!(seen.calls, truth.tally(name), "{function}");
            assert_near(function, seen.sum_ns, truth.number(&format!("ns {name}")), 3);
        }
        let missing = (seen.left, seen.unseen, seen.unrecorded, seen.left_by_tail_jump);
        assert_eq!(missing, (0, 0, 0, 0), "{function}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("run 1 1");
}

/// The last act of a function of C++ may be a jump that destroys an exception that it has caught. A call that throws takes most of the time.
#[test]
fn calls_that_end_by_catching_an_exception_have_times() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &["tails:catcher", "tails:passes"]);
    let truth = target.ask("catch 41 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let own = ["catcher", "passes"].map(|function| truth.number(&format!("ns {function}")));
    let [catcher, passes] = ["catcher(long)", "passes(long)"].map(|function| outcome.latency(function));
    assert_eq!((catcher.calls, catcher.left, catcher.left_by_tail_jump), (82, 0, 0), "{catcher:?}");
    assert_eq!((passes.calls, passes.left, passes.left_by_tail_jump), (41, 0, 0), "{passes:?}");
    assert_near("catcher", catcher.sum_ns, own[0] + own[1], 3);
    assert_near("passes", passes.sum_ns, own[1], 3);
    target::assert_clean(target.pid(), &before);
}

/// Source code does not have the tags of names of C++.
#[test]
fn functions_with_a_tag_are_named_with_it_and_without() {
    let mut target = Mutatee::start("tails", &[]);
    let names = ["label", "label[abi:cxx11]", "label(long)", "label[abi:cxx11](long)", "tails:label[abi:cxx11](long)"];
    for name in names {
        let session = tool().measure("count", target.pid(), &[name]);
        let truth = target.ask("label 7").tally("label");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("label[abi:cxx11](long)"), 7, "{name}: {truth} in all");
    }
}

#[test]
fn functions_of_a_rust_program() {
    let mut target = Mutatee::start("tails-rust", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &["*::work::direct", "*::work::through"]);
    let truth = target.ask(&format!("run {} 5000", scaled(60, 600)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in ["direct", "through"] {
        let seen = outcome.latency(&format!("tails::work::{function}"));
        assert_eq!((seen.calls, seen.left_by_tail_jump), (truth.tally(function), 0), "{function}");
        assert_near(function, seen.sum_ns, truth.number(&format!("ns {function}")), 3);
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn one_function_alone_and_its_other_callers() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &["chain"]);
    let truth = target.ask(&format!("run {} 5000", scaled(60, 600)));
    let seen = session.interrupt().assert_code(0).assert_removed().latency("chain");
    assert_eq!(seen.calls, truth.tally("chain"));
    assert_near("chain", seen.sum_ns, truth.number("ns chain"), 3);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn jumps_through_pointers_are_followed_or_counted() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &["pointed", "picked"]);
    let times = scaled(40, 400);
    let truth = target.ask(&format!("pointer {times} 5000"));
    target.ask("repoint");
    target.ask(&format!("pointer {times} 5000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let [pointed, picked] = ["pointed", "picked"].map(|function| outcome.latency(function));
    assert_eq!((pointed.calls, pointed.timed, pointed.left_by_tail_jump), (2 * times, times, times), "{pointed:?}");
    assert_near("pointed", pointed.sum_ns, truth.number("ns pointed"), 3);
    assert_eq!((picked.calls, picked.timed, picked.left_by_tail_jump), (2 * times, 0, 2 * times), "{picked:?}");
    assert_eq!((pointed.left, picked.left), (0, 0));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn turns_and_exceptions() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &["even", "risky"]);
    let times = scaled(40, 400);
    let truth = target.ask(&format!("throw {times} 5000"));
    // The engine notices that the last call was left only when a later call begins.
    target.ask(&format!("turns {times}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let [even, risky] = ["even", "risky"].map(|function| outcome.latency(function));
    // In one turn of four calls, three jumps lead back to the function.
    assert_eq!(
        (even.calls, even.timed, even.left_by_tail_jump, even.left),
        (4 * times, times, 3 * times, 0),
        "{even:?}"
    );
    assert_eq!((risky.calls, risky.timed), (times, times / 2), "{risky:?}");
    assert_eq!((risky.left, risky.left_by_tail_jump), (times / 2, 0), "{risky:?}");
    assert_near("risky", risky.sum_ns, truth.number("ns risky"), 3);
    target::assert_clean(target.pid(), &before);
}

/// Each call of the busy function would pay for code that ends the calls of those that jump to it.
#[test]
fn calls_are_not_followed_to_functions_that_are_called_too_often() {
    let mut target = Mutatee::start("slow", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    target.ask("spin");
    let tool = tool();
    let arguments = ["latency", "-p", &pid, "slow:hash", "slow:serve_jumping", "slow:jump_a", "--max-overhead", "250"];
    let mut session = tool.start(arguments);
    session.wait_for("attached");
    target.ask("jump 5");
    let hash = tool.run(["inspect", "-p", &pid, "hash"]).assert_code(0);
    let kinds = hash.all("point").into_iter().filter(|point| point["woven"] == true).map(|point| point["kind"].clone());
    assert_eq!(kinds.collect::<Vec<_>>(), ["entry"], "its calls are counted");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let [hash, jumping, followed] = ["hash", "serve_jumping", "jump_a"].map(|function| outcome.latency(function));
    assert!(hash.calls > 5 && hash.timed == 0, "{hash:?}");
    assert_eq!((jumping.calls, jumping.timed, jumping.left_by_tail_jump), (5, 0, 5), "{jumping:?}");
    assert!(followed.calls > 0 && followed.timed > 0, "{followed:?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn timers_flags_and_results_follow() {
    let mut target = Mutatee::start("tails", &[]);
    let before = Text::of(target.pid());
    let functions = ["direct", "chain", "sometimes"];
    let metrics = ["exec_time_inclusive", "exec_time", "tail_results", "slow_inside"];
    let pairs = functions.iter().flat_map(|f| metrics.map(|m| format!("{m}@/Code/tails/{f}")));
    let definitions = source_directory().join("tests/e2e/mdl/tails.mdl").display().to_string();
    let fixed = ["watch", "-p", &target.pid_text(), "--max-overhead", "10000", "-I", &definitions].map(String::from);
    let mut session = tool().start(fixed.into_iter().chain(pairs));
    session.wait_for("attached");
    let times = scaled(60, 600);
    let truth = target.ask(&format!("run {times} 5000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let last = |metric: &str, function: &str| {
        let focus = format!("/{function}");
        let is_pair = |s: &&&serde_json::Value| {
            s["metric"] == metric && s["focus"].as_str().is_some_and(|at| at.ends_with(&focus))
        };
        let value = samples.iter().rfind(is_pair).and_then(|s| s["value"].as_u64());
        value.unwrap_or_else(|| panic!("no {metric} of {function}: {outcome:#?}"))
    };
    for function in functions {
        let whole = truth.number(&format!("ns {function}"));
        assert_near(function, last("exec_time_inclusive", function), whole, 3);
        // The exclusive time lacks the time in the function to which the call jumps.
        assert!(last("exec_time", function) * 50 < whole, "{function}: {}", last("exec_time", function));
        assert_eq!(last("tail_results", function), truth.number(&format!("sum {function}")), "{function}");
        let inside = if function == "sometimes" { times * 2 / 3 } else { times };
        assert_eq!(last("slow_inside", function), inside, "{function}");
    }
    target::assert_clean(target.pid(), &before);
}

/// The calls take 0.3 s or more, so the server's other work, which its own statistics include, is small.
#[test]
fn redis_and_postgres_agree_with_their_own_statistics() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let before = Text::of(redis.pid());
    let session = tool().measure("latency", redis.pid(), &["zaddCommand"]);
    redis.ask(&["CONFIG RESETSTAT"]);
    let members: String = (0..4000).map(|n| format!(" {n} m{n}")).collect();
    let command = format!("ZADD set{members}");
    for _ in 0..scaled(200, 2000) {
        redis.ask(&[&command, "DEL set"]);
    }
    let statistics = redis.ask(&["INFO commandstats"]).remove(0);
    let line = statistics.lines().find_map(|line| line.strip_prefix("cmdstat_zadd:")).expect("statistics of ZADD");
    let field = |name: &str| -> u64 {
        let text = line.split(',').find_map(|field| field.trim().strip_prefix(name)).unwrap_or_default();
        text.parse().unwrap_or_else(|_| panic!("no {name} in {line}"))
    };
    let seen = session.interrupt().assert_code(0).assert_removed().latency("zaddCommand");
    assert_eq!((seen.calls, seen.left, seen.left_by_tail_jump), (field("calls="), 0, 0));
    assert_near("zaddCommand", seen.sum_ns, field("usec=") * 1000, 3);
    target::assert_clean(redis.pid(), &before);

    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut client = postgres.session();
    let before = Text::of(client.pid);
    let session = tool().measure("latency", client.pid, &["ExecutorRun"]);
    let times = scaled(30, 300);
    let mut truth = 0.0;
    for _ in 0..times {
        let mut line = client.ask("explain (analyze) select pg_sleep(0.02);");
        while !line.starts_with("Execution Time: ") {
            line = client.ask("");
        }
        truth += line.split(' ').nth(2).and_then(|ms| ms.parse::<f64>().ok()).expect("milliseconds");
    }
    let seen = session.interrupt().assert_code(0).assert_removed().latency("ExecutorRun");
    assert_eq!((seen.calls, seen.left, seen.left_by_tail_jump), (times, 0, 0));
    assert_near("ExecutorRun", seen.sum_ns, (truth * 1e6) as u64, 3);
    target::assert_clean(client.pid, &before);
}
