//! Tests of `ingraft hot`: the shares of functions are those that a program measures itself, waiting threads are found with their system calls,
//! and nothing is left in a target.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Session};
use serde_json::Value;

use crate::tool;

/// Number of samples from which on shares are compared.
const ENOUGH: u64 = 400;

/// Waits until the samples of a session are enough.
fn wait_for_samples(session: &mut Session) -> Value {
    loop {
        let samples = session.wait_for("samples");
        if samples["base"].as_u64().expect("a number") >= ENOUGH {
            return samples;
        }
    }
}

/// The last row of each function.
fn rows<'o>(all: &[&'o Value]) -> BTreeMap<&'o str, &'o Value> {
    all.iter().map(|row| (row["function"].as_str().expect("a name"), *row)).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn shares_are_those_that_the_program_measures_itself() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    let started = target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let own = target.ask("rest");
    let samples = *outcome.all("samples").last().expect("samples");
    assert_eq!((&samples["method"], &samples["state"]), (&Value::from("perf"), &Value::from("running")), "{samples}");
    assert_eq!(samples["threads"][0]["tid"], started.number("tid busy"), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    // All processor time of the program, but for its input, is that of the busy thread.
    let whole = own.number("ns laps") as f64;
    for function in ["seventy", "twenty", "ten"] {
        let truth = own.number(&format!("ns {function}")) as f64 / whole;
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        let (share, error) = (number(&row["self"]), number(&row["self_error"]));
        assert!((share - truth).abs() <= 4.0 * error, "{function} has {share} ± {error}, but {truth} in truth");
        let base = number(&samples["base"]);
        assert!((error - (share * (1.0 - share) / base).sqrt()).abs() < 1e-9, "{row}");
        assert_eq!((&row["how"]["self"], &row["module"]), (&Value::from("sampled"), &Value::from("planted")));
        let (wall, cpu) = (number(&row["wall_ns"]), number(&row["cpu_ns"]));
        assert!(cpu > 0.0 && wall >= cpu && wall < 1.2 * cpu, "it never waits: {row}");
    }
    // The last table comes before the last sums.
    let ends = outcome.objects.iter().enumerate().filter(|(_, object)| object["type"] == "samples").map(|(i, _)| i);
    let ends: Vec<usize> = ends.collect();
    let first = &outcome.objects[ends[ends.len() - 2] + 1];
    assert_eq!(first["function"], "seventy", "it is not first: {outcome:#?}");
    // Everything that the thread does, it does in `laps`.
    assert!(number(&rows["laps"]["total"]) > 0.9 && number(&rows["laps"]["self"]) < 0.1, "{:#?}", rows["laps"]);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn functions_and_threads_are_filters() {
    let mut target = Mutatee::start("planted", &[]);
    let busy = target.ask("run").number("tid busy").to_string();
    let pid = target.pid_text();
    let mut session =
        tool().start(["hot", "-p", &pid, "planted:t*", "--thread", &busy, "--interval", "200ms", "--sort", "total"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let hot = outcome.all("hot");
    let names: Vec<&str> = rows(&hot).into_keys().collect();
    assert_eq!(names, ["ten", "twenty"], "{outcome:#?}");
    let rows = rows(&hot);
    let both = number(&rows["ten"]["self"]) + number(&rows["twenty"]["self"]);
    assert!(both > 0.1 && both < 0.6, "shares are of all samples: {outcome:#?}");
    drop(tool().run(["hot", "-p", &pid, "no_such_function"]).assert_error(3, &["no_such_function"]));
    drop(tool().run(["hot", "-p", &pid, "--thread", &i32::MAX.to_string()]).assert_error(3, &["thread"]));
    target.ask("rest");
}

#[test]
fn waiting_threads_are_found_with_their_system_calls() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    let (sleeper, waiter) = (target.ask("sleep").number("tid sleeper"), target.ask("lock").number("tid waiter"));
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--off-cpu", "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    target.ask("unlock");
    target.ask("wake");
    let samples = *outcome.all("samples").last().expect("samples");
    assert_eq!((&samples["method"], &samples["state"]), (&Value::from("looks"), &Value::from("waiting")), "{samples}");
    let threads: Vec<u64> =
        samples["threads"].as_array().expect("threads").iter().filter_map(|thread| thread["tid"].as_u64()).collect();
    assert!(threads.contains(&sleeper) && threads.contains(&waiter), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    for (function, call) in [("sleeps", "nanosleep"), ("waits_for_lock", "futex")] {
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        let name = row["waits"][0]["name"].as_str().expect("a name");
        assert!(name.ends_with(call), "{row}");
        // One of three threads waits there nearly all the time.
        assert!((0.2..0.4).contains(&number(&row["total"])), "{row}");
        assert!(number(&row["wall_ns"]) > 10.0 * number(&row["cpu_ns"]), "it does nothing but wait: {row}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn running_and_waiting_are_in_one_row() {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    target.ask("sleep");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    target.ask("wake");
    target.ask("rest");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    let off_cpu = |name: &str| number(&rows[name]["wall_ns"]) - number(&rows[name]["cpu_ns"]);
    let span = number(&outcome.all("samples").last().expect("samples")["span_ns"]);
    // The sleeper waits most of the time, and the busy thread never does. Both may have to wait for a processor.
    assert!((0.3..1.2).contains(&(off_cpu("sleeps") / span)), "{outcome:#?}");
    assert!(off_cpu("laps") < 0.1 * span && number(&rows["laps"]["cpu_ns"]) > 0.02 * span, "{outcome:#?}");
    let call = rows["sleeps"]["waits"][0]["name"].as_str().expect("a system call");
    assert!(call.ends_with("nanosleep") && rows["laps"]["waits"].as_array().is_some_and(Vec::is_empty), "{outcome:#?}");
}

#[test]
fn a_target_that_ends_is_told_with_its_samples() {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    target.tell("exit 3");
    let outcome = session.finish().assert_code(0);
    outcome.one("ended");
    assert!(rows(&outcome.all("hot")).contains_key("seventy"), "{outcome:#?}");
}

#[test]
fn a_killed_command_leaves_nothing() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    session.wait_for("samples");
    session.kill();
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
}

#[test]
fn samples_in_woven_code_belong_to_the_original_function() {
    let mut target = Mutatee::start("planted", &[]);
    let tool = tool();
    target.ask("run");
    let count = tool.count(target.pid(), &["planted:*"]);
    let mut session = tool.start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let rows = rows(&outcome.all("hot"));
    assert!(number(&rows["seventy"]["self"]) > 0.5, "{outcome:#?}");
    target.ask("rest");
    drop(count.interrupt().assert_code(0).assert_removed());
}

#[test]
fn calls_are_counted_exactly() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    let arguments = ["hot", "-p", &target.pid_text(), "--calls", "--interval", "200ms", "--max-overhead", "100"];
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    while session.wait_for("hot")["calls_per_s"].as_f64().is_none_or(|rate| rate <= 0.0) {}
    target.ask("rest");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    let calls = ["seventy", "twenty", "ten"].map(|function| rows[function]["calls"].as_u64().expect("calls"));
    // Each lap calls each function once. The counters came at once, and the thread has ended behind its last lap.
    assert!(calls[0] > 0 && calls.iter().all(|n| n.abs_diff(calls[0]) <= 1), "{calls:?}: {outcome:#?}");
    for function in ["seventy", "twenty", "ten"] {
        assert_eq!(rows[function]["how"]["calls"], "counted", "{outcome:#?}");
        assert!(number(&rows[function]["mean_ns"]) > 0.0, "{outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_command_that_counts_no_calls_says_why() {
    let target = Mutatee::start("planted", &[]);
    let pid = target.pid_text();
    for (flags, why) in [
        (&["--for", "300ms"][..], "no reading came before the last one"),
        (&["--for", "600ms", "--interval", "200ms"], "50 recent samples of running threads, and there were at most 0;"),
    ] {
        let outcome = tool().run([&["hot", "-p", &pid, "--calls"], flags].concat()).assert_code(0);
        assert!(outcome.all("hot").iter().all(|row| row["calls"].is_null()), "{outcome:#?}");
        assert!(outcome.stderr.contains("calls are not counted: ") && outcome.stderr.contains(why), "{outcome:#?}");
    }
}

#[test]
fn a_program_is_started_and_sampled_to_its_end() {
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 5";
    let outcome = tool().run(["hot", "--", "sh", "-c", script]).assert_code(5);
    assert_eq!(outcome.one("ended")["status"], 5, "{outcome:#?}");
    assert!(number(&outcome.one("samples")["samples"]) > 10.0, "{outcome:#?}");
    // The time is spread over many functions of the shell, of which the table has those with the most samples.
    let own: f64 = outcome.all("hot").iter().map(|row| number(&row["self"])).sum();
    assert!(own > 0.1, "{own} in {outcome:#?}");
}

#[test]
fn redis_under_load() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = Text::of(redis.pid());
    let mut session = tool().start(["hot", "-p", &redis.pid().to_string(), "--interval", "200ms"]);
    session.wait_for("samples");
    redis.load(&["-n", "20000", "-c", "10", "-P", "16", "-q", "-t", "set"]);
    loop {
        let samples = session.wait_for("samples");
        if samples["base"].as_u64().expect("a number") > 10 {
            break;
        }
        redis.load(&["-n", "20000", "-c", "10", "-P", "16", "-q", "-t", "set"]);
    }
    let outcome = session.interrupt().assert_code(0);
    let samples = *outcome.all("samples").last().expect("samples");
    assert!(number(&samples["cut"]) <= number(&samples["base"]), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    assert!(rows.values().any(|row| row["module"] == "redis-server"), "{outcome:#?}");
    let own: u64 = rows.values().map(|row| row["self_samples"].as_u64().expect("a number")).sum();
    let base = samples["base"].as_u64().expect("a number");
    assert!(own <= base, "each sample is of one function: {own} of {base}");
    target::assert_clean(redis.pid(), &before);
}
