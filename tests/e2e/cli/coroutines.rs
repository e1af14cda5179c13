//! Tests of calls that change their stack or thread before they return: they are unharmed, and calls that cannot be measured are reported.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, Outcome, Reply, open_directory, scaled, sibling};
use serde_json::Value;

use crate::tool;

#[test]
fn coroutines_that_move_between_threads() {
    let mut target = Mutatee::start("coroutines", &["3", "8"]);
    let before = Text::of(target.pid());
    let n = scaled(20_000, 2_000_000);
    let session = tool().measure("latency", target.pid(), &["work", "leaf"]);
    let truth = target.ask(&format!("go {n}"));
    truth.assert_right();
    assert!(truth.number("moved") > 0, "some calls returned on other threads");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in ["work", "leaf"] {
        let seen = outcome.latency(function);
        assert_eq!(seen.calls, truth.tally(function), "{function}: {seen:?}");
        let all = seen.timed + seen.left + seen.unrecorded;
        // If a call returns on another thread, or its thread has used another stack since, the thread has no record of the entry.
        assert!(all <= truth.tally(function), "{function}: {seen:?} of {}", truth.tally(function));
        assert!(all + seen.unseen >= truth.tally(function), "{function}: {seen:?} of {}", truth.tally(function));
    }
    target::assert_clean(target.pid(), &before);
    let session = tool().count(target.pid(), &["work", "leaf"]);
    let earlier = truth.tally("work");
    let truth = target.ask("go 1000");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work"), truth.tally("work") - earlier);
    assert_eq!(outcome.calls("leaf"), 2 * (truth.tally("work") - earlier));
    target::assert_clean(target.pid(), &before);
}

/// Calls on a stack that no thread executes are in progress. Nothing is missing once they have ended.
#[test]
fn paths_of_calls_on_waiting_stacks_are_in_progress() {
    const DEPTH: u64 = 4;
    for contexts in [&[][..], &["--contexts"]] {
        for ends in [false, true] {
            let mut target = Mutatee::start("yields", &[]);
            let pid = target.pid_text();
            let words = ["profile", "paths", "-p", &pid, "yields:f_deep"];
            let mut session = tool().start(words.iter().chain(contexts));
            session.wait_for("attached");
            target.ask(&format!("suspend {DEPTH}"));
            if ends {
                target.ask("resume");
            }
            let outcome = session.interrupt().assert_code(0).assert_removed();
            let paths = outcome.one("paths");
            let [late, open, left] =
                ["late", "open", "left"].map(|of| paths[of].as_u64().unwrap_or_else(|| panic!("no {of} in {paths}")));
            let in_progress = if ends { 0 } else { DEPTH };
            assert_eq!((late, open + left), (0, in_progress), "{contexts:?} {paths}");
            let told: u64 = outcome.all("path").iter().filter_map(|path| path["count"].as_u64()).sum();
            assert!(ends == (told >= DEPTH), "{contexts:?}: {told} paths of {paths}");
        }
    }
}

/// Calls by the functions around them and their own, the outermost one first.
type Chains = BTreeMap<Vec<String>, u64>;

/// The calls that the tool has told, by context.
fn told(outcome: &Outcome) -> Chains {
    let (mut chains, mut found) = (BTreeMap::<u64, Vec<String>>::new(), Chains::new());
    let number = |record: &Value, key: &str| record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"));
    for record in outcome.all("context") {
        let parent = record["parent"].as_u64().unwrap_or_default();
        let mut chain = chains.get(&parent).cloned().unwrap_or_default();
        chain.push(record["function"].as_str().expect("a name").to_owned());
        *found.entry(chain.clone()).or_default() += number(record, "calls");
        chains.insert(number(record, "id"), chain);
    }
    found.retain(|_, calls| *calls > 0);
    found
}

/// The calls in the program's account.
fn known(reply: &Reply) -> Chains {
    let chain = |line: &String| {
        let mut words = line.strip_prefix("chain ")?.split(' ');
        let count = words.next()?.parse().ok()?;
        Some((words.map(str::to_owned).collect(), count))
    };
    reply.lines.iter().filter_map(chain).collect()
}

/// Compares the contexts of a program whose threads switch stacks with its account, in several measurements one after the other.
fn contexts_on_several_stacks(kind: &str, threads: &str, arguments: &[&str]) {
    let mut target = Mutatee::start("fibres", &[kind, threads]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    for seed in 0..scaled(2, 50) {
        let all = ["profile", "contexts", "-p", &pid, "fibres:f_*", "--recursion", "full", "--max-overhead", "10000"];
        let mut session = tool().start(all.iter().chain(arguments));
        session.wait_for("attached");
        let truth = target.ask(&format!("run {seed} 3000"));
        truth.assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let (known, told) = (known(&truth), told(&outcome));
        assert!(known.values().sum::<u64>() > 3000, "{known:?}");
        let differ = |chain: &&Vec<String>| known.get(*chain) != told.get(*chain);
        let wrong: Vec<_> = known.keys().chain(told.keys()).filter(differ).take(10).collect();
        let both = |chain: &&Vec<String>| format!("{chain:?}: {:?}, told {:?}", known.get(*chain), told.get(*chain));
        assert!(wrong.is_empty(), "{kind} {seed}: {:#?}", wrong.iter().map(both).collect::<Vec<_>>());
        let summary = outcome.one("contexts");
        for key in ["unrecorded", "unseen", "full"] {
            assert_eq!(summary[key], 0, "{summary}");
        }
    }
}

#[test]
fn contexts_of_fibres_by_ucontext() {
    contexts_on_several_stacks("ucontext", "1", &[]);
    contexts_on_several_stacks("ucontext", "3", &["--metric", "time,cpu"]);
}

#[test]
fn contexts_of_fibres_that_switch_by_code_of_their_own() {
    contexts_on_several_stacks("own", "1", &["--metric", "time"]);
    contexts_on_several_stacks("own", "3", &[]);
}

/// A call that waits on its stack while other stacks are executed has a time, as any other call.
#[test]
fn calls_on_several_stacks_have_times() {
    for kind in ["ucontext", "own"] {
        let mut target = Mutatee::start("fibres", &[kind, "2"]);
        let before = Text::of(target.pid());
        let session = tool().measure("latency", target.pid(), &["fibres:f_*"]);
        let truth = target.ask("run 5 5000");
        truth.assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        for function in ["f_round", "f_resume", "f_body", "f_left", "f_right", "f_again", "f_yield"] {
            let (seen, calls) = (outcome.latency(function), truth.tally(function));
            let open = truth.number(&format!("open {function}"));
            assert!(calls > 100, "{function}: {calls}");
            assert_eq!((seen.calls, seen.timed), (calls, calls - open), "{kind}, {function}: {seen:?}");
            assert_eq!((seen.unrecorded, seen.unseen), (0, 0), "{kind}, {function}: {seen:?}");
            assert!(seen.left <= open, "{kind}, {function}: {seen:?}");
        }
        target::assert_clean(target.pid(), &before);
    }
}

/// The signal frame of a borrowed thread is larger than the rest of the stack on which the thread waits.
#[test]
fn a_coroutine_at_the_end_of_its_stack() {
    let mut target = Mutatee::start("pooled", &[]);
    let before = Text::of(target.pid());
    let mut calls = target.ask("go 10").tally("work");
    for _ in 0..3 {
        let session = tool().count(target.pid(), &["work"]);
        let truth = target.ask("go 1000");
        truth.assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("work"), truth.tally("work") - calls);
        target::assert_clean(target.pid(), &before);
        let after = target.ask("go 1");
        after.assert_right();
        calls = after.tally("work");
    }
}

/// Each poll of a future runs on any free worker, but is an ordinary call by itself. The test times all functions of the server.
#[test]
fn a_server_whose_tasks_move_between_threads() {
    let directory = open_directory();
    let server = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    let before = Text::of(server.pid());
    let client = server.client(Path::new(env!("CARGO_BIN_EXE_ingraft")));
    let answers = || client.run(["status"]).assert_code(0);
    answers();
    let pid = server.pid().to_string();
    let mut session = tool().start(["watch", "-p", &pid, "wall_time@/Code/ingraftd", "--max-overhead", "10000"]);
    let attached = session.wait_for("attached");
    assert!(attached["points"].as_u64() > Some(5_000), "all of a large program: {attached}");
    let (begin, long, mut rounds) = (Instant::now(), Duration::from_secs(scaled(0, 600)), 0);
    while rounds < 30 || begin.elapsed() < long {
        answers();
        rounds += 1;
    }
    let _ = session.wait_for("sample");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    let since = |key: &str| last[key].as_i64().expect("a number") - first[key].as_i64().expect("a number");
    // Each thread is always in one of the program's functions. The pool may have started more threads meanwhile.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the server lives").count();
    assert!(since("value") > 0 && since("value") <= since("time_ns") * (threads as i64 + 8), "{first} {last}");
    target::assert_clean(server.pid(), &before);
    answers();
    assert!(server.terminate().success());
}
