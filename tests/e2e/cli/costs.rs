//! Tests of costs: the limit holds, the engine's own metrics are right, and the code and the cost of metrics are shown.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome};
use serde_json::Value;

use crate::tool;

/// Returns the samples of a metric.
fn samples<'a>(outcome: &'a Outcome, metric: &str) -> Vec<&'a Value> {
    outcome.all("sample").into_iter().filter(|sample| sample["metric"] == metric).collect()
}

/// Panics unless `bench` is as before: it has one executable mapping of its own, with the patches made by hand.
#[track_caller]
fn assert_restored(pid: i32, before: &Text) {
    before.assert_in(pid);
    assert_eq!((target::arenas(pid), target::tracer(pid)), (1, 0));
}

#[test]
fn a_timer_that_costs_too_much_is_taken_out_within_two_seconds() {
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    // The target makes 25 million calls per second, for longer than the test runs.
    target.tell("measure 2000000 120 1");
    let pid = target.pid_text();
    let pairs = ["wall_time@/Code/bench/woven", "calls@/Code/bench/woven"];
    let mut session = tool().start(["watch", "-p", &pid, pairs[0], pairs[1], "--interval", "50ms"]);
    session.wait_for("attached");
    let attached = session.wait_for("sample")["time_ns"].as_u64().expect("a time");
    let out = session.wait_for("taken_out");
    assert_eq!((out["metric"].as_str(), out["focus"].as_str()), (Some("wall_time"), Some("/Code/bench/woven")));
    let after = out["time_ns"].as_u64().expect("a time") - attached;
    assert!(after < 2_000_000_000, "{after} ns");
    assert!(out["percent"].as_f64() > Some(5.0) && out["max_overhead"] == 5.0, "{out}");
    assert!(out["hits_per_s"].as_u64() > Some(1_000_000), "{out}");
    // The count stays and is exact to the end; the time does not change any more.
    let truth = target.reply();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let times = samples(&outcome, "wall_time");
    let frozen: Vec<_> = times.iter().filter(|s| s["taken_out_ns"].is_u64()).map(|s| s["value"].as_u64()).collect();
    assert!(frozen.len() > 1 && frozen.iter().all(|value| *value == frozen[0] && *value > Some(0)), "{frozen:?}");
    let count = samples(&outcome, "calls").last().and_then(|s| s["value"].as_u64()).expect("a value");
    assert!(count > 0 && count <= truth.tally("woven"), "{count}");
    assert!(outcome.all("warning").is_empty() || outcome.stderr.contains("was taken out"), "{outcome:#?}");
    assert_restored(target.pid(), &before);
}

#[test]
fn a_command_whose_only_timer_is_taken_out_ends_and_says_why() {
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    target.tell("measure 2000000 60 1");
    let outcome = tool().run(["latency", "-p", &target.pid_text(), "woven"]).assert_code(1).assert_removed();
    let latency = outcome.all("latency");
    assert_eq!(latency.len(), 1, "{outcome:#?}");
    assert!(latency[0]["taken_out_ns"].is_u64() && latency[0]["calls"].as_u64() > Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("--max-overhead"), "{outcome:#?}");
    target.reply();
    assert_restored(target.pid(), &before);
}

/// Returns the record of a function.
fn record<'a>(outcome: &'a Outcome, function: &str) -> &'a Value {
    let is = |record: &&Value| record["function"] == function;
    outcome.all("latency").into_iter().find(is).unwrap_or_else(|| panic!("no {function}: {outcome:#?}"))
}

#[test]
fn a_function_that_would_cost_too_much_is_counted_only() {
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    // The calls come in bursts, between those of other functions. The bursts are much shorter than the time for which calls are counted at
    // first, on a busy machine too.
    target.tell("measure 200000 600 1");
    let mut session = tool().start(["latency", "-p", &target.pid_text(), "woven", "call_many", "--interval", "50ms"]);
    session.wait_for("attached");
    let out = session.wait_for("taken_out");
    let truth = target.reply();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (woven, caller) = (record(&outcome, "woven"), record(&outcome, "call_many"));
    let since = caller["timed_since_ns"].as_u64().expect("a time");
    assert!(out["time_ns"].as_u64() <= Some(since), "it was never timed: {out} {caller}");
    assert_eq!((&woven["timed"], &woven["sum_ns"], &woven["share"]), (&0.into(), &Value::Null, &Value::Null));
    let counted = woven["calls"].as_u64().expect("a number");
    assert!(counted > 1_000_000 && counted <= truth.tally("woven"), "{woven}");
    assert!(caller["timed"].as_u64() > Some(0) && caller["taken_out_ns"].is_null(), "{caller}");
    assert!(
        outcome.stderr.contains("would cost more than 5 %") && outcome.stderr.contains("woven is counted only"),
        "{}",
        outcome.stderr
    );
    assert_restored(target.pid(), &before);
}

#[test]
fn a_function_that_becomes_too_expensive_is_timed_no_further_and_still_counted() {
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    let earlier = target.ask("measure 1000 1 1").tally("woven");
    let mut session = tool().start(["latency", "-p", &target.pid_text(), "woven", "call_many", "--interval", "50ms"]);
    session.wait_for("attached");
    target.tell("measure 2000000 120 1");
    session.wait_for("taken_out");
    let truth = target.reply();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (woven, caller) = (record(&outcome, "woven"), record(&outcome, "call_many"));
    assert_eq!(woven["calls"].as_u64(), Some(truth.tally("woven") - earlier), "{woven}");
    assert!(woven["timed"].as_u64() > Some(0) && woven["timed"].as_u64() < woven["calls"].as_u64(), "{woven}");
    assert!(woven["taken_out_ns"].as_u64() > woven["timed_since_ns"].as_u64(), "{woven}");
    assert_eq!((&caller["calls"], &caller["taken_out_ns"]), (&caller["timed"], &Value::Null), "{caller}");
    assert!(
        outcome.stderr.contains("costs more than 5 %") && outcome.stderr.contains("woven is from now on counted only"),
        "{}",
        outcome.stderr
    );
    assert_restored(target.pid(), &before);
}

/// The thread is nearly always in `spin` when its timer is taken out, and its next measured call finds the record of that call.
#[test]
fn calls_in_progress_when_a_timer_is_taken_out_are_not_left() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session =
        tool().start(["latency", "-p", &pid, "spin", "chain", "--interval", "50ms", "--max-overhead", "1"]);
    session.wait_for("attached");
    target.tell("rush 5000");
    session.wait_for("taken_out");
    let truth = target.reply();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (spin, chain) = (record(&outcome, "spin"), record(&outcome, "chain"));
    assert!(spin["taken_out_ns"].is_u64() && chain["taken_out_ns"].is_null(), "{spin} {chain}");
    assert_eq!((outcome.latency("spin").left, outcome.latency("chain").left), (0, 0), "{spin} {chain}");
    assert_eq!(spin["calls"].as_u64(), Some(truth.tally("spin")), "{spin}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_timer_of_a_slow_function_stays() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let mut session = tool().start(["latency", "-p", &target.pid_text(), "spin", "--interval", "50ms"]);
    session.wait_for("attached");
    let truth = target.ask("spin 2000 1000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("taken_out").is_empty(), "{outcome:#?}");
    assert_eq!(outcome.latency("spin").calls, truth.tally("spin"));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn metrics_of_the_engines_own() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let own = ["pause_time", "observed_cost", "predicted_cost", "active_threads", "active_processes", "number_of_cpus"];
    let fixed = ["watch", "-p", &pid, "--interval", "50ms", "calls@/Code/threads/work_0"];
    let mut session = tool().start(fixed.into_iter().chain(own));
    let attached = session.wait_for("attached");
    session.wait_for("sample");
    let truth = target.ask("go 3000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |metric: &str| samples(&outcome, metric).last().and_then(|s| s["value"].as_i64()).expect("a value");
    let ms = |object: &Value, key: &str| object[key].as_f64().expect("a time");
    let (held, whole) = (ms(&attached, "stopped_ms"), ms(&attached, "attach_ms"));
    let paused = last("pause_time") as f64 / 1e6;
    let removed = ms(outcome.all("removed")[0], "stopped_ms");
    // `pause_time` has all holds of the insertion and of the removal; `stopped_ms` is the longest one of each.
    assert!(
        paused >= held.max(removed) && paused <= whole + 20.0 * removed.max(1.0),
        "{paused} {held} {removed} {whole}"
    );
    let calls = truth.tally("work_0") as f64;
    let each = last("observed_cost") as f64 / calls;
    assert!((0.2..20.0).contains(&each), "{each} ns a call");
    assert!(last("active_threads") >= 4 && last("number_of_cpus") >= 1);
    assert_eq!(samples(&outcome, "active_processes")[0]["value"], 1);
    target::assert_clean(target.pid(), &before);
    // This metric needs no code in the target.
    let outcome = tool().run(["watch", "-p", &pid, "active_threads", "--for", "200ms"]).assert_code(0);
    assert!(samples(&outcome, "active_threads")[0]["value"].as_i64() >= Some(4));
    target::assert_clean(target.pid(), &before);
    let refused = tool().run(["watch", "-p", &pid, "sampling_rate"]).assert_code(3);
    assert!(refused.stderr.contains("--interval"), "{refused:#?}");
    let _ = tool().run(["watch", "-p", &pid, "pause_time@/Code/threads/work_0"]).assert_code(2);
    let listed = tool().run(["metrics"]).assert_code(0);
    assert!(listed.all("metric").iter().any(|m| m["name"] == "pause_time" && m["unit"] == "CPUs"));
}

#[test]
fn status_tells_what_each_pair_costs() {
    let mut target = Mutatee::start("threads", &["4"]);
    let tool = tool();
    let session = tool.count(target.pid(), &["work_0", "work_1"]);
    target.ask("go 3000");
    let inserted = tool.inserted(target.pid());
    // Another engine holds the measurement, and only that engine knows the cost.
    assert!(inserted[0]["observed_ns_per_s"].is_null());
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("cost")[0]["ns_per_s"].as_f64() > Some(0.0), "{outcome:#?}");
}

#[test]
fn what_metrics_become_and_cost() {
    let outcome = tool().run(["metrics", "--cost"]).assert_code(0);
    let lowered = outcome.all("lowered");
    let cost = |metric: &str, point: &str| {
        let metric = lowered.iter().find(|m| m["metric"] == metric).expect("the metric");
        let piece = metric["pieces"].as_array().and_then(|all| all.iter().find(|p| p["point"] == point));
        piece.and_then(|p| p["cycles"].as_f64()).expect("a cost")
    };
    let (count, start, stop) = (cost("calls", "entry"), cost("wall_time", "entry"), cost("wall_time", "exit"));
    assert!(count > 1.0 && count < start && count < stop, "{count} {start} {stop}");
    let file = ingraft_testing::source_directory().join("mdl/core.mdl");
    let file = file.to_str().expect("a path");
    let target = Mutatee::start("times", &[]);
    let focus = "/Code/times/spin";
    let outcome = tool().run(["check", file, "--lower", "-p", &target.pid_text(), "--focus", focus]).assert_code(0);
    let calls = outcome.all("lowered").into_iter().find(|m| m["metric"] == "calls").cloned().expect("the metric");
    assert_eq!(calls["focus"], focus);
    assert_eq!(calls["pieces"][0]["snippet"], "v0++;");
    assert_eq!(calls["pieces"][0]["function"], "spin");
    let code = calls["pieces"][0]["code"].as_array().expect("code");
    assert!(code.iter().any(|i| i["label"] == "snippet 0" && i["text"].as_str().is_some_and(|t| t.starts_with("inc"))));
}

/// The same in a tree of contexts: the function that goes on is not called from the one that was taken out.
#[test]
fn calls_after_a_function_was_taken_out_are_in_the_contexts_of_their_callers() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session =
        tool().start(["profile", "contexts", "-p", &pid, "times:spin", "times:chain", "--max-overhead", "1"]);
    session.wait_for("attached");
    let truth = target.ask("rush 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("taken_out").iter().any(|out| out.to_string().contains("spin")), "{outcome:#?}");
    let contexts = outcome.all("context");
    let chain: Vec<_> = contexts.iter().filter(|context| context["function"] == "chain").collect();
    assert!(chain.iter().all(|context| context["parent"].is_null()), "{contexts:#?}");
    let calls: u64 = chain.iter().filter_map(|context| context["calls"].as_u64()).sum();
    assert_eq!(calls, truth.tally("chain"), "{contexts:#?}");
    target::assert_clean(target.pid(), &before);
}
