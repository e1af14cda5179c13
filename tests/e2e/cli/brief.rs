//! Tests of threads that end soon, and of calls too deep to be recorded: each call counts once, and nothing is told of threads that have ended.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled};
use serde_json::Value;

use crate::tool;

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// Profiles a program while it obeys a command.
fn profiled(kind: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start("brief", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let rest = ["-p", &pid, "brief:b_*", "--max-overhead", "10000"];
    let mut session = tool().start([&["profile"], kind, &rest].concat());
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

/// The calls of a function in all contexts, and those without a context.
fn calls(outcome: &Outcome, function: &str) -> u64 {
    let records = outcome.all("context");
    let own = records.iter().filter(|record| record["function"] == function && record["kind"] == "call");
    own.map(|record| number(record, "calls")).sum()
}

/// Threads come and go faster than the engine takes their memory over, so some of their calls have no record.
#[test]
fn a_call_of_a_thread_without_memory_counts_once() {
    let (outcome, truth) = profiled(&["contexts"], &format!("brief {} 0", scaled(20_000, 100_000)));
    let all = outcome.one("contexts");
    let without = number(all, "unrecorded") + number(all, "full");
    assert_eq!(calls(&outcome, "b_works") + without, truth.number("works"), "{all}");
    // A thread may get memory of its own in the middle of a call. Only the end of that call is seen then.
    assert!(number(all, "unseen") <= number(all, "unrecorded"), "{all}");
}

#[test]
fn a_call_that_is_too_deep_counts_once() {
    let (outcome, truth) = profiled(&["contexts", "--recursion", "full"], "deep 100000");
    let all = outcome.one("contexts");
    let without = number(all, "unrecorded") + number(all, "full");
    assert!(without > 0, "{all}");
    assert_eq!((number(all, "unseen"), number(all, "left")), (0, 0), "{all}");
    assert_eq!(calls(&outcome, "b_after"), truth.number("after"), "{all}");
}

/// Calls that are too deep do not take the places of contexts and paths that come later.
#[test]
fn paths_behind_a_deep_recursion_have_contexts() {
    let (outcome, truth) = profiled(&["paths", "--contexts"], "deep 300000");
    let of_after = outcome.all("path").into_iter().filter(|path| path["function"] == "b_after");
    let (with, without): (Vec<&Value>, Vec<&Value>) = of_after.partition(|path| !path["context"].is_null());
    let sum = |paths: &[&Value]| -> u64 { paths.iter().map(|path| number(path, "count")).sum() };
    assert_eq!((sum(&with), sum(&without)), (truth.number("after"), 0));
}

/// A thread that has ended is nowhere, although the engine has not yet taken its memory over.
#[test]
fn threads_that_have_ended_are_not_looked_at() {
    let count = scaled(1500, 10_000);
    let (outcome, truth) = profiled(&["contexts", "--metric", "looks"], &format!("brief {count} 300"));
    let outside = number(&outcome.one("contexts")["outside"], "wall_ns");
    let all = truth.number("all");
    // Each thread is outside for a moment before its call and after it.
    assert!(outside < all, "{outside} ns outside, while the program ran for {all} ns");
}
