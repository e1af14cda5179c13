//! Tests of `ingraft slow`: the program knows which of its calls were slow and what they did.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use ingraft_testing::server::Postgres;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Tool, open_directory, scaled, skip, wait_until};
use serde_json::Value;

use crate::tool;

/// Nanoseconds of `--over 10ms`.
const OVER: i64 = 10_000_000;

/// The number behind a word in an answer.
pub fn told(reply: &Reply, what: &str) -> i64 {
    let line = reply.lines.iter().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {what}")).parse().expect("a number")
}

/// The calls that were slow by the program's own clock: their times by their numbers, in the order of the times.
fn slow_calls(reply: &Reply) -> BTreeMap<i64, Vec<i64>> {
    let mut calls: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for line in reply.lines.iter().filter_map(|line| line.strip_prefix("slow ")) {
        let (number, ns) = line.split_once(' ').expect("two numbers");
        calls.entry(number.parse().expect("a number")).or_default().push(ns.parse().expect("a number"));
    }
    calls.values_mut().for_each(|times| times.sort_unstable());
    calls
}

pub fn number(record: &Value, key: &str) -> i64 {
    record[key].as_i64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

pub fn calls_of(record: &Value) -> &[Value] {
    record["calls"].as_array().map_or(&[], Vec::as_slice)
}

/// The functions of a tree that are the program's own, as `name(calls inside)`.
fn shape(calls: &[Value]) -> String {
    let of = |call: &Value| {
        let inside = shape(calls_of(call));
        match (call["module"].as_str(), call["function"].as_str()) {
            (Some("slow"), Some(function)) if inside.is_empty() => Some(function.to_owned()),
            (Some("slow"), Some(function)) => Some(format!("{function}({inside})")),
            _ => (!inside.is_empty()).then_some(inside),
        }
    };
    calls.iter().filter_map(of).collect::<Vec<_>>().join(" ")
}

/// Checks the times in a tree: own times and those of the calls inside add up, and calls lie within the one that made them. Returns the sum of
/// own times.
pub fn check_times(call: &Value, (from, until): (i64, i64)) -> i64 {
    let inside = calls_of(call);
    let own = number(call, "self_ns");
    let sum: i64 = inside.iter().map(|call| number(call, "elapsed_ns")).sum();
    assert_eq!(own + sum, number(call, "elapsed_ns"), "{call}");
    let mut ended = from;
    let mut all = own;
    for call in inside {
        let (at, elapsed) = (number(call, "at_ns"), number(call, "elapsed_ns"));
        // Each time is rounded by itself.
        assert!(at + 2 >= ended && at + elapsed <= until + 2, "{call} is not within {from}..{until}");
        all += check_times(call, (at, at + elapsed));
        ended = at + elapsed;
    }
    all
}

/// Runs `ingraft slow …` on the program while it obeys a command, and returns what both say.
fn found(tool: &Tool, arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start("slow", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let all = ["slow", "-p", &pid, "--over", "10ms", "--max-overhead", "10000"];
    let mut session = tool.start(all.iter().chain(arguments));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    for slow in outcome.all("slow") {
        let elapsed = number(slow, "elapsed_ns");
        assert!(elapsed >= OVER, "{slow}");
        assert_eq!(check_times(slow, (0, elapsed)), elapsed);
        assert_eq!(slow["lost"], 0);
    }
    (outcome, truth)
}

/// Checks the numbers of calls, and returns the times of the slow ones by their numbers, in the order of the times.
fn times(outcome: &Outcome, truth: &Reply) -> BTreeMap<i64, Vec<i64>> {
    let numbers = outcome.one("calls");
    let slow = outcome.all("slow");
    assert_eq!(number(numbers, "calls"), told(truth, "calls"), "{numbers}");
    assert_eq!(number(numbers, "left"), told(truth, "left"), "{numbers}");
    assert_eq!(number(numbers, "printed"), slow.len() as i64);
    assert_eq!([&numbers["skipped"], &numbers["lost"]], [0, 0]);
    let parts = ["printed", "unmet", "left"].map(|key| number(numbers, key));
    assert_eq!(parts.iter().sum::<i64>(), number(numbers, "calls"), "{numbers}");
    let mut times: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for call in slow {
        times.entry(number(&call["values"], "$arg[0]")).or_default().push(number(call, "elapsed_ns"));
    }
    times.values_mut().for_each(|times| times.sort_unstable());
    times
}

/// Calls that have jumped to others end together with them, and are around them, whichever of them has the lower address.
#[test]
fn calls_that_jump_are_around_those_to_which_they_jump() {
    let (outcome, _) = found(&tool(), &["serve_jumping", "--least", "1us"], "jump 5");
    let slow = outcome.all("slow");
    assert_eq!(slow.len(), 5);
    for call in slow {
        let shape = shape(calls_of(call));
        assert_eq!(shape, "jump_a(jump_b(wait_for_part)) jump_b(jump_a(wait_for_part))", "{call}");
    }
}

#[test]
fn each_slow_call_is_a_tree() {
    let arguments = ["serve", "$arg[0]", "str($arg[1])", "--least", "1500us", "--limit", "none"];
    let (outcome, truth) = found(&tool(), &arguments, "run 5000 3");
    let known = slow_calls(&truth);
    let times = times(&outcome, &truth);
    // By the program's clock, which is read around the call, each one is as slow at least.
    for (n, of_call) in &times {
        let known = known.get(n).unwrap_or_else(|| panic!("call {n} was quick: {of_call:?}"));
        assert!(of_call.len() <= known.len(), "{n}");
        let pairs = of_call.iter().rev().zip(known.iter().rev());
        assert!(pairs.into_iter().all(|(seen, known)| seen <= known), "{n}: {of_call:?} {known:?}");
    }
    let planted = |n: i64| n % 1000 == 500 || n % 1000 == 900;
    let expected: Vec<i64> = (0..5000).filter(|n| planted(*n)).collect();
    assert!(expected.iter().all(|n| times.get(n).is_some_and(|times| times.len() == 3)), "{times:?}");
    let tree = "load(fetch(wait_for_part) fetch(wait_for_part) fetch(wait_for_part)) store";
    for slow in outcome.all("slow") {
        let n = number(&slow["values"], "$arg[0]");
        assert_eq!(slow["values"]["str($arg[1])"], format!("name-{n}"));
        assert_eq!((slow["module"].as_str(), slow["function"].as_str()), (Some("slow"), Some("serve")));
        assert!(slow["caller"].as_str().is_some_and(|caller| caller.starts_with("thread+")), "{slow}");
        if planted(n) {
            let is_nested = n % 1000 == 900;
            let expected = if is_nested { format!("serve({tree})") } else { tree.to_owned() };
            assert_eq!(shape(calls_of(slow)), expected, "{slow}");
            // 3, 4 and 5 ms of waiting, and 2 ms of computing.
            assert!(number(slow, "elapsed_ns") >= 14_000_000);
        }
    }
}

#[test]
fn waits_are_calls_of_the_c_library() {
    let (outcome, _) = found(&tool(), &["serve", "$arg[0]"], "run 501 1");
    let slow = outcome.all("slow").into_iter().find(|slow| number(&slow["values"], "$arg[0]") == 500).expect("a call");
    let load = calls_of(slow).iter().find(|call| call["function"] == "load").expect("a call");
    for fetch in calls_of(load) {
        let [wait] = calls_of(fetch) else { panic!("one call: {fetch}") };
        let [sleep, ..] = calls_of(wait) else { panic!("a call: {wait}") };
        assert!(sleep["function"].as_str().is_some_and(|name| name.ends_with("nanosleep")), "{sleep}");
        assert!(number(sleep, "elapsed_ns") >= 3_000_000);
    }
}

#[test]
fn one_slow_call_among_many_is_found() {
    let count = scaled(200_000, 1_000_000);
    let rounds = scaled(2, 20);
    for round in 0..rounds {
        let at = (round * 37 + 11) * count / (37 * rounds + 11);
        let arguments = ["serve_planted", "$arg[0]", "--least", "1ms"];
        let (outcome, truth) = found(&tool(), &arguments, &format!("plant {at} {count}"));
        let times = times(&outcome, &truth);
        let known = slow_calls(&truth);
        assert!(times.keys().all(|n| known.contains_key(n)), "{times:?} {known:?}");
        let planted = outcome.all("slow").into_iter().find(|slow| number(&slow["values"], "$arg[0]") == at as i64);
        let planted = planted.unwrap_or_else(|| panic!("call {at} is missing: {times:?}"));
        assert_eq!(shape(calls_of(planted)), "load(fetch(wait_for_part) fetch(wait_for_part) fetch(wait_for_part))");
    }
}

/// The calls of a function in a tree.
pub fn all_of<'a>(calls: &'a [Value], function: &str) -> Vec<&'a Value> {
    let of = |call: &'a Value| {
        let own = (call["function"] == function).then_some(call);
        own.into_iter().chain(all_of(calls_of(call), function))
    };
    calls.iter().flat_map(of).collect()
}

/// The program knows what it passes to the functions inside.
#[test]
fn calls_inside_have_the_values_that_were_asked_for() {
    let arguments = [
        "serve",
        "$arg[0]",
        "--least=1500us",
        "--callees=slow:load",
        "--tell=slow:fetch:$arg[0]",
        "--tell=slow:fetch:str(name)",
        "--tell=slow:fetch:part",
        "--tell=slow:store:$return > 0",
    ];
    let (outcome, _) = found(&tool(), &arguments, "run 1000 1");
    let planted = outcome.all("slow").into_iter().filter(|slow| number(&slow["values"], "$arg[0]") % 200 == 100);
    let planted: Vec<&Value> = planted.collect();
    assert!(planted.len() >= 2, "{planted:?}");
    for slow in planted {
        let n = number(&slow["values"], "$arg[0]");
        // The call with the number 900 makes another one with the number 1,500.
        let n = if n == 900 { 1500 } else { n };
        let fetched: Vec<Value> =
            all_of(calls_of(slow), "fetch").into_iter().map(|call| call["values"].clone()).collect();
        let of = |(part, name): (usize, &str)| serde_json::json!({"$arg[0]": n, "part": part, "str(name)": name});
        let expected: Vec<Value> = ["first", "second", "third"].into_iter().enumerate().map(of).collect();
        assert_eq!(fetched, expected, "{slow}");
        let [store] = *all_of(calls_of(slow), "store") else { panic!("one call of store in {slow}") };
        assert_eq!(store["values"], serde_json::json!({"$return > 0": 1}));
        let [load] = *all_of(calls_of(slow), "load") else { panic!("one call of load in {slow}") };
        assert!(load["values"].is_null() && all_of(calls_of(slow), "wait_for_part").is_empty(), "{slow}");
    }
}

#[test]
fn the_functions_inside_can_be_chosen() {
    let callees = ["serve", "$arg[0]", "--callees", "store", "--callees", "slow:fe*", "--callees", "no_such_function"];
    let (outcome, _) = found(&tool(), &callees, "run 501 1");
    let slow = outcome.all("slow").into_iter().find(|slow| number(&slow["values"], "$arg[0]") == 500).expect("a call");
    assert_eq!(shape(calls_of(slow)), "fetch fetch fetch store");
    // A time below which nothing is told hides the calls, and their times are those of their caller.
    let (outcome, _) = found(&tool(), &["serve", "$arg[0]", "--least", "9s"], "run 501 1");
    for slow in outcome.all("slow") {
        assert_eq!((calls_of(slow).len(), number(slow, "self_ns")), (0, number(slow, "elapsed_ns")));
    }
}

#[test]
fn functions_that_are_called_too_often_are_left_out_and_named() {
    let mut target = Mutatee::start("slow", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    target.ask("spin");
    let tool = tool();
    let mut session = tool.start(["slow", "-p", &pid, "serve", "$arg[0]", "--over", "10ms", "--max-overhead", "250"]);
    session.wait_for("attached");
    target.ask("run 1 1");
    // `serve_jumping` ends by a jump to it. Each call of `hash` would pay for code that ends its calls.
    let hash = tool.run(["inspect", "-p", &pid, "hash"]).assert_code(0);
    let mut exits = hash.all("point").into_iter().filter(|point| point["kind"] == "exit");
    assert!(exits.all(|point| point["woven"] == false), "{hash:?}");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let left_out = outcome.one("calls")["left_out"].as_array().cloned().unwrap_or_default();
    assert_eq!(left_out, ["slow:hash"]);
    assert!(outcome.stderr.contains("hash"), "{}", outcome.stderr);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn trees_are_written_for_other_tools() {
    let directory = open_directory();
    let path = directory.path().join("slow.json");
    let file = path.to_str().expect("a path");
    let (outcome, _) = found(&tool(), &["serve", "--perfetto", file], "run 2000 2");
    let text = std::fs::read_to_string(&path).expect("the file");
    let events: Value = serde_json::from_str(&text).expect("JSON");
    let began = events["otherData"]["began_unix_ns"].as_u64().expect("a time");
    let events = events["traceEvents"].as_array().expect("a list");
    let whole: Vec<&Value> = events.iter().filter(|event| event["name"] == "serve").collect();
    let slow = outcome.all("slow");
    assert_eq!(slow.iter().map(|slow| slow["time_ns"].as_u64()).min().flatten(), Some(began));
    for slow in slow {
        let at = (number(slow, "time_ns") - began as i64) as f64 / 1000.0;
        let own = whole.iter().find(|event| event["ts"].as_f64() == Some(at)).unwrap_or_else(|| panic!("{at}"));
        assert_eq!(own["dur"].as_f64(), Some(number(slow, "elapsed_ns") as f64 / 1000.0));
        assert_eq!((&own["tid"], own["ph"].as_str()), (&slow["tid"], Some("X")));
    }
    assert!(events.iter().any(|event| event["name"] == "wait_for_part" && event["cat"] == "slow"));
}

#[test]
fn calls_are_saved_when_the_reader_of_the_output_is_gone() {
    let (directory, tool) = (open_directory(), tool());
    let path = directory.path().join("slow.json");
    let mut target = Mutatee::start("slow", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let file = path.to_str().expect("a path");
    let mut child = tool
        .command(["slow", "-p", &pid, "serve", "--over", "10ms", "--max-overhead", "10000", "--perfetto", file])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run ingraft");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
    assert!(lines.any(|line| line.contains("attached")));
    target.ask("run 501 1");
    assert!(lines.any(|line| line.contains("serve")));
    drop(lines);
    child.wait().expect("wait for ingraft");
    let text = std::fs::read_to_string(&path).expect("the file");
    let events: Value = serde_json::from_str(&text).expect("JSON");
    assert!(events["traceEvents"].as_array().is_some_and(|all| all.iter().any(|event| event["name"] == "serve")));
    wait_until("the target is clean", || target::arenas(target.pid()) == 0 && target::tracer(target.pid()) == 0);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_slow_call_starts_a_trace_or_a_profile() {
    for (kind, shown) in [("trace", "replay"), ("profile", "report")] {
        let (directory, tool) = (open_directory(), tool());
        let path = directory.path().join("then");
        let file = path.to_str().expect("a path");
        let mut target = Mutatee::start("slow", &[]);
        let before = Text::of(target.pid());
        let pid = target.pid_text();
        let arguments = ["slow", "-p", &pid, "serve", "--over", "10ms", "--callees", "store", "--then", kind, file];
        let mut session = tool.start(arguments);
        session.wait_for("attached");
        let own = code_bytes(&tool, &target);
        target.ask("run 501 1");
        session.wait_for("slow");
        // The code of the other measurement comes beside that of the first one.
        wait_until("the other measurement has begun", || code_bytes(&tool, &target) > own);
        target.ask("run 501 1");
        let _ = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let shown = tool.run([shown, file]).assert_code(0);
        let text = format!("{:?}", shown.objects);
        assert!(text.contains("serve"), "{kind}: {text}");
    }
}

/// Number of bytes of code that are inserted.
fn code_bytes(tool: &Tool, target: &Mutatee) -> u64 {
    tool.inserted(target.pid()).iter().filter_map(|inserted| inserted["bytes"].as_u64()).sum()
}

#[test]
fn what_cannot_be_told_is_refused_in_plain_words() {
    let target = Mutatee::start("slow", &[]);
    let pid = target.pid_text();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let _ = tool().run(["slow", "-p", &pid].iter().chain(arguments)).assert_error(code, words);
    };
    refused(&["serve", "--over", "0s"], 2, &["--over"]);
    refused(&["serve", "--over", "1ms", "--then", "sleep", "file"], 2, &["--then"]);
    refused(&["no_such_function", "--over", "1ms"], 3, &["no function matches"]);
    refused(&["serve", "$arg[0", "--over", "1ms"], 2, &["expression"]);
    refused(&["serve", "$arg[0]", "$arg[1]", "$arg[2]", "$arg[3]", "--over", "1ms"], 2, &["arguments"]);
    let tell = |value: &str, code, words: &[&str]| refused(&["serve", "--over", "1ms", "--tell", value], code, words);
    tell("fetch", 2, &["FUNCTION:EXPR"]);
    tell("fetch:$arg[0", 2, &["expression"]);
    tell("no_such_function:$arg[0]", 3, &["no function matches"]);
    refused(
        &[
            "serve",
            "--over",
            "1ms",
            "--tell",
            "load:$arg[0], $arg[1]",
            "--tell",
            "load:$arg[2]",
            "--tell",
            "load:$arg[3]",
        ],
        2,
        &["arguments"],
    );
    let without = tool().run(["slow", "-p", &pid, "serve"]);
    assert_eq!(without.status.code(), Some(2));
    let shown = tool().run(["slow", "--show-mdl", "serve", "str($arg[1])", "--over", "1ms"]).assert_code(0);
    let shown = shown.other.join("\n");
    assert!(shown.contains("print(str($arg[1]), $caller, $return, $elapsed);"), "{shown}");
}

#[test]
fn a_slow_statement_of_postgres_is_a_tree() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut session = postgres.session();
    let before = Text::of(session.pid);
    let pid = session.pid.to_string();
    // Debian's PostgreSQL has the names of its exported functions only.
    let arguments = ["slow", "-p", &pid, "PortalRun", "$arg[1]", "--over", "100ms", "--max-overhead", "10000"];
    let mut looking = tool().start(arguments);
    looking.wait_for("attached");
    for n in 0..50 {
        assert_eq!(session.ask(&format!("select {n} + 1;")), (n + 1).to_string());
    }
    assert_eq!(session.ask("select pg_sleep(0.15) is null;"), "f");
    let slow = looking.wait_for("slow");
    assert_eq!(slow["values"]["$arg[1]"], i64::MAX, "all rows");
    let mut path = Vec::new();
    let mut calls = calls_of(&slow);
    while let Some(longest) = calls.iter().max_by_key(|call| number(call, "elapsed_ns")) {
        path.push(longest["function"].as_str().expect("a name").to_owned());
        calls = calls_of(longest);
    }
    assert!(
        ["standard_ExecutorRun", "pg_sleep", "WaitLatch"].iter().all(|name| path.iter().any(|found| found == name)),
        "{path:?}"
    );
    let outcome = looking.interrupt().assert_code(0).assert_removed();
    assert!(number(outcome.one("calls"), "calls") >= 51);
    target::assert_clean(session.pid, &before);
}
