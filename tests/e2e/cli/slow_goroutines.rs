//! Tests of `ingraft slow` in Go, whose calls move between threads: the program keeps its own account of slow calls, and of what they call.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ingraft_testing::target::Text;
use ingraft_testing::{Mutatee, Outcome, Reply, Tool, open_directory, program, scaled, skip};
use serde_json::Value;

use crate::go::end_clean;
use crate::slow::{all_of, calls_of, check_times, number, told};
use crate::tool;

const FUNCTIONS: [&str; 6] = ["main.zero", "main.one", "main.grow", "main.fetch", "main.load", "main.store"];

/// Starts the program with four threads.
fn start() -> Result<Mutatee, String> {
    Ok(Mutatee::spawn(Command::new(program("serving")?).env("GOMAXPROCS", "4")))
}

/// The functions of a tree, as `name(calls inside)`.
fn shape(calls: &[Value]) -> String {
    let of = |call: &Value| {
        let (function, inside) = (call["function"].as_str().expect("a name"), shape(calls_of(call)));
        if inside.is_empty() { function.to_owned() } else { format!("{function}({inside})") }
    };
    calls.iter().map(of).collect::<Vec<_>>().join(" ")
}

/// The program's account of its slow calls: number and time of each by the calls that it has made, which differ.
fn known(reply: &Reply) -> BTreeMap<&str, (i64, i64)> {
    let of = |line| {
        let (n, rest) = str::split_once(line, ' ')?;
        let (ns, calls) = rest.split_once(' ')?;
        Some((calls, (n.parse().ok()?, ns.parse().ok()?)))
    };
    reply.lines.iter().filter_map(|line| of(line.strip_prefix("slow ")?)).collect()
}

/// Runs `ingraft slow` on the program while it answers requests.
fn found(tool: &Tool, target: &mut Mutatee, arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let pid = target.pid_text();
    let all = ["slow", "-p", &pid, "main.serve", "--over", "10ms", "--max-overhead", "10000", "--limit", "none"];
    let mut session = tool.start(all.iter().chain(arguments));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let numbers = outcome.one("calls");
    assert_eq!(number(numbers, "calls"), told(&truth, "calls") + told(&truth, "left"), "{numbers}");
    assert_eq!(number(numbers, "left"), told(&truth, "left"), "{numbers}");
    assert_eq!([&numbers["skipped"], &numbers["lost"]], [0, 0], "{numbers}");
    for call in outcome.all("slow") {
        let elapsed = number(call, "elapsed_ns");
        assert_eq!((check_times(call, (0, elapsed)), &call["lost"]), (elapsed, &0.into()), "{call}");
    }
    (outcome, truth)
}

#[test]
fn each_slow_call_of_a_goroutine_is_a_tree() {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("serving: {why}"),
    };
    let (before, tool) = (Text::of(target.pid()), tool());
    let callees = FUNCTIONS.iter().flat_map(|name| ["--callees", name]);
    let arguments: Vec<&str> = callees.chain(["--least", "1ns"]).collect();
    let mut goroutines = BTreeSet::new();
    for seed in 0..scaled(3, 40) {
        let (outcome, truth) = found(&tool, &mut target, &arguments, &format!("run {seed} 500 16"));
        let known = known(&truth);
        let mut waited = 0;
        for call in outcome.all("slow") {
            let shape = shape(calls_of(call));
            let (n, by_program) = known.get(shape.as_str()).unwrap_or_else(|| panic!("no such call: {call}"));
            // The program reads its clock around the call.
            assert!(number(call, "elapsed_ns") <= *by_program, "call {n} took {by_program} ns by the program: {call}");
            goroutines.insert(number(call, "goroutine"));
            waited += usize::from([50, 90].contains(&(n % 100)));
        }
        assert_eq!(waited, 16 * 10, "requests that have waited for 12 ms");
    }
    // Each round has its own, and the runtime counts up.
    assert!(goroutines.len() > 32 && goroutines.iter().all(|number| (1..100_000).contains(number)), "{goroutines:?}");
    end_clean(target, &before);
}

#[test]
fn all_functions_of_a_program_are_inside() {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("serving: {why}"),
    };
    let (before, tool, directory) = (Text::of(target.pid()), tool(), open_directory());
    let path = directory.path().join("slow.json");
    let perfetto = path.to_str().expect("a path");
    let (outcome, _) = found(&tool, &mut target, &["--least", "1us", "--perfetto", perfetto], "run 7 200 8");
    let slow = outcome.all("slow");
    assert!(slow.len() >= 16, "{} slow calls", slow.len());
    for call in &slow {
        // Goroutines wait in a function of the runtime.
        let waits = all_of(calls_of(call), "runtime.gopark");
        assert!(waits.iter().any(|wait| number(wait, "elapsed_ns") > 5_000_000), "{call}");
    }
    // Each goroutine has a track.
    let text = std::fs::read_to_string(&path).expect("the file");
    let events: Value = serde_json::from_str(&text).expect("JSON");
    let events = events["traceEvents"].as_array().expect("a list");
    let names: BTreeSet<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    let expected: BTreeSet<String> = slow.iter().map(|call| format!("goroutine {}", call["goroutine"])).collect();
    assert!(expected.iter().map(String::as_str).eq(names), "{expected:?}");
    end_clean(target, &before);
}

/// The notes of a goroutine are those of one command. What one that was killed has begun does not confuse the next one.
#[test]
fn one_command_after_another_follows_goroutines() {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("serving: {why}"),
    };
    let (before, tool, pid) = (Text::of(target.pid()), tool(), target.pid_text());
    let all = ["slow", "-p", &pid, "main.serve", "--over", "1us", "--max-overhead", "10000"];
    let mut first = tool.start(all);
    first.wait_for("attached");
    let second = tool.run(all).assert_code(1);
    assert!(second.stderr.contains("another command tells slow calls of goroutines"), "{}", second.stderr);
    target.tell("run 1 500 16");
    first.wait_for("slow");
    first.kill();
    target.reply();
    let (outcome, _) = found(&tool, &mut target, &["--least", "1us"], "run 3 200 8");
    assert!(!outcome.all("slow").is_empty());
    let told = tool.run([&all[..], &["--tell", "main.load:$return"]].concat());
    assert!(told.assert_code(2).stderr.contains("not told of goroutines"));
    end_clean(target, &before);
}
