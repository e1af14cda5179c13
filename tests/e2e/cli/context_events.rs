//! Tests of events in calling contexts: the program asks the kernel for the same counts by itself.

use ingraft_testing::server::Nginx;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, scaled, skip};
use serde_json::Value;

use crate::tool;

/// Faults that woven code has of its own when it first touches the thread's memory, for each thread.
const OWN: i64 = 60;

fn measured(pid: &str, event: &str) -> Session {
    tool().start(["profile", "contexts", "-p", pid, "faulting:e_*", "--event", event, "--max-overhead", "10000"])
}

/// Sum of an event in the contexts of a function that was called by another one.
fn below(outcome: &Outcome, event: &str, caller: &str, function: &str) -> i64 {
    let records = outcome.all("context");
    let name = |id: &Value| {
        let record = records.iter().find(|record| record["id"] == *id);
        record.map_or("", |record| record["function"].as_str().expect("a name")).to_owned()
    };
    let is_it = |record: &&&Value| record["function"] == function && name(&record["parent"]) == caller;
    let value = |record: &&Value| {
        assert_eq!(record["how"][event], "counted", "{record}");
        record["metrics"][event].as_i64().expect("a number")
    };
    records.iter().filter(is_it).map(value).sum()
}

fn number(truth: &Reply, key: &str) -> i64 {
    i64::try_from(truth.number(key)).expect("a small number")
}

fn assert_near(found: i64, truth: i64, bound: i64, what: &str) {
    assert!(truth > 0 && (found - truth).abs() <= bound, "{what}: {found}, in truth {truth}");
}

#[test]
fn page_faults_are_told_by_context() {
    for threads in [1, 8] {
        let mut target = Mutatee::start("faulting", &[]);
        let before = Text::of(target.pid());
        let mut session = measured(&target.pid_text(), "page-faults");
        session.wait_for("attached");
        let truth = target.ask(&format!("run {} {threads}", scaled(2000, 20_000)));
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let of = |caller| below(&outcome, "page-faults", caller, "e_touches");
        for (key, caller) in [("few", "e_few"), ("many", "e_many"), ("deep", "e_deep")] {
            assert_near(of(caller), number(&truth, key), OWN * threads, key);
        }
    }
}

#[test]
fn switches_are_told_by_context() {
    let mut target = Mutatee::start("faulting", &[]);
    let mut session = measured(&target.pid_text(), "context-switches");
    session.wait_for("attached");
    let truth = target.ask(&format!("run {} 2", scaled(1000, 10_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (found, known) = (below(&outcome, "context-switches", "e_laps", "e_waits"), number(&truth, "switches"));
    // A thread may also lose its processor between its own readings and those of the woven code.
    // A wait whose end has come before it begins is no switch.
    assert!(known >= 1900 && found >= known && found <= known + known / 5 + 100, "{found}, in truth {known}");
}

/// A handler that interrupts the woven code between its reading and its additions loses nothing, and counts nothing twice.
#[test]
fn handlers_have_their_own_faults() {
    let mut target = Mutatee::start("faulting", &[]);
    let mut session = measured(&target.pid_text(), "page-faults");
    session.wait_for("attached");
    let truth = target.ask(&format!("ticks {}", scaled(4000, 40_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let all = |function: &str| {
        let of = |record: &&&Value| record["function"] == function;
        let records = outcome.all("context");
        let values = records.iter().filter(of).map(|record| record["metrics"]["page-faults"].as_i64());
        values.map(|value| value.expect("a number")).sum::<i64>()
    };
    let known: i64 = ["few", "many", "deep", "ticks"].iter().map(|key| number(&truth, key)).sum();
    assert!(number(&truth, "ticks") > 0, "{truth:?}");
    // The program's own readings count the faults of a handler twice: as its own, and as those of what it has interrupted.
    let (found, ticks) = (all("e_touches"), number(&truth, "ticks"));
    assert!(
        found >= known - ticks - OWN && found <= known + OWN,
        "{found}, in truth {known}, of them {ticks} of the handler"
    );
}

#[test]
fn events_that_cannot_be_read_are_refused() {
    let target = Mutatee::start("faulting", &[]);
    let (before, pid) = (Text::of(target.pid()), target.pid_text());
    let run = |event: &str| {
        tool().run(["profile", "contexts", "-p", &pid, "faulting:e_*", "--event", event, "--for", "100ms"])
    };
    let _ = run("task-clock").assert_error(1, &["`task-clock` is a time", "--metric cpu"]);
    let _ = run("cpu-migrations").assert_error(1, &["cpu-migrations", "the kernel counts it, not the processor"]);
    let _ = run("page-folts").assert_error(2, &["no event is called `page-folts`"]);
    target::assert_clean(target.pid(), &before);
}

/// The way of events of the processor, by the event that counts least besides what the program does.
#[test]
fn instructions_are_told_by_context_where_the_processor_counts_them() {
    let mut target = Mutatee::start("faulting", &[]);
    let mut session = measured(&target.pid_text(), "instructions:u");
    if session.try_wait_for("attached").is_none() {
        let refused = session.finish().stderr;
        let is_told = refused.contains("the kernel does not count") || refused.contains("threads cannot read");
        assert!(is_told && refused.contains("\"hint\""), "{refused}");
        println!("skipped: {refused}");
        return;
    }
    let laps = scaled(2000, 20_000);
    target.ask(&format!("run {laps} 1"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let [few, many] = ["e_few", "e_many"]
        .map(|caller| below(&outcome, "instructions:u", caller, "e_touches") / i64::try_from(laps).expect("a number"));
    // A page more takes a turn of a loop with a few instructions.
    assert!(few >= 10 && many - few >= 14 && many - few < 14 * 20, "{few} and {many} instructions");
}

#[test]
fn what_is_executed_is_told_by_context() {
    let mut target = Mutatee::start("executed", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let metrics = "instructions,reads,writes";
    let mut session = tool().start([
        "profile",
        "contexts",
        "-p",
        &pid,
        "executed:i_*",
        "--metric",
        metrics,
        "--max-overhead",
        "10000",
    ]);
    session.wait_for("attached");
    let (laps, threads) = (scaled(2000, 50_000), 3);
    target.ask(&format!("run {laps} {threads}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let times = i64::try_from(laps * threads).expect("a number");
    let rows = [
        ("i_few", "i_counts", [2 + 3 * 3, 1, 0]),
        ("i_few", "i_copies", [2 + 4 * 5, 5 + 1, 5]),
        ("i_many", "i_counts", [2 * (2 + 3 * 100), 2, 0]),
        ("i_many", "i_copies", [2 * (2 + 4 * 70), 2 * (70 + 1), 2 * 70]),
        ("i_many", "i_deep", [2 * (9 * 7 + 3), 2 * (9 * 2 + 1), 2 * 9 * 2]),
    ];
    for (caller, function, each) in rows {
        let found =
            ["instructions", "memory-reads", "memory-writes"].map(|event| below(&outcome, event, caller, function));
        assert_eq!(found, each.map(|number| times * number), "{function} below {caller}");
    }
    assert_eq!(outcome.one("contexts")["outside"]["instructions"], 0);
}

/// Paths that end before the code of contexts comes do not count.
#[test]
fn nothing_is_executed_outside_of_contexts_before_they_begin() {
    let mut target = Mutatee::start("executed", &[]);
    target.ask("begin");
    let metric = ["--metric", "instructions", "--max-overhead", "10000"];
    let pid = target.pid_text();
    let mut session = tool().start(["profile", "contexts", "-p", &pid, "executed:i_*"].iter().chain(&metric));
    session.wait_for("attached");
    target.ask("end");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let inside: i64 =
        outcome.all("context").iter().map(|record| record["metrics"]["instructions"].as_i64().expect("a number")).sum();
    let outside = outcome.one("contexts")["outside"]["instructions"].as_i64().expect("a number");
    // The calls in progress at the beginning have some paths that no context has.
    assert!(inside > 2_000_000 && outside < 20_000, "{outside} outside, {inside} inside");
}

/// Calls that are left in the middle of a path.
#[test]
fn lost_paths_are_told() {
    let mut target = Mutatee::start("nested", &[]);
    let pid = target.pid_text();
    let metric = ["--metric", "instructions", "--max-overhead", "10000"];
    let mut session = tool().start(["profile", "contexts", "-p", &pid, "nested:le*", "landed"].iter().chain(&metric));
    session.wait_for("attached");
    target.ask("leap 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let contexts = outcome.all("context");
    assert!(!contexts.is_empty() && contexts.iter().all(|record| record["how"]["instructions"] == "incomplete"));
}

/// Some functions of nginx have no paths that can be told.
#[test]
fn what_a_server_executes_is_told_beside_functions_without_paths() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    let pids: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let targets = pids.iter().flat_map(|pid| ["-p", pid.as_str()]);
    let rest = ["nginx:*", "--metric", "instructions", "--max-overhead", "10000"];
    let mut session = tool().start(["profile", "contexts"].into_iter().chain(targets).chain(rest));
    workers.iter().for_each(|_| drop(session.wait_for("attached")));
    nginx.request(1000);
    let outcome = session.interrupt().assert_code(0);
    workers.iter().for_each(|&pid| target::assert_clean(pid, &before));
    let is_it = |record: &&&Value| record["function"] == "ngx_http_process_request";
    let records = outcome.all("context");
    let (mut calls, mut instructions) = (0, 0);
    for record in records.iter().filter(is_it) {
        calls += record["calls"].as_u64().expect("a number");
        instructions += record["metrics"]["instructions"].as_u64().expect("a number");
    }
    assert_eq!(calls, 1000);
    assert!(instructions > 10 * calls, "{instructions} instructions");
}
