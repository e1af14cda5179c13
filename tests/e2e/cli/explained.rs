//! `profile times --explain` of programs in which one cause makes the calls differ: a branch, a callee, or the number of iterations of a loop.

use std::path::{Path, PathBuf};
use std::process::Command;

use ingraft_testing::{Outcome, have, open_directory, output, skip};
use serde_json::Value;

use crate::tool;

/// Number of programs.
const PROGRAMS: u64 = 20;

/// A source of variance in `serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Branch,
    Callee,
    Loop,
}

impl Planted {
    /// The word of the record, and the mark of the source line.
    fn expected(self) -> (&'static str, &'static str) {
        match self {
            Planted::Branch => ("branch", "/* branch */"),
            Planted::Callee => ("callee", "/* callee */"),
            Planted::Loop => ("loop", "/* loop */"),
        }
    }
}

/// Numbers of a seed (splitmix64).
struct Seeded(u64);

impl Seeded {
    /// A number from `low` to `high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + (z ^ (z >> 31)) % (high - low + 1)
    }
}

/// The text of a program: `serve` has a branch, a callee whose time differs, and a loop of different lengths. One of them outweighs the others.
fn text(seed: u64, planted: Planted) -> String {
    let mut seeded = Seeded(seed);
    let mut size = |is: Planted| if is == planted { seeded.between(400, 900) } else { seeded.between(4, 12) };
    let (branch, callee, trips) = (size(Planted::Branch), size(Planted::Callee), size(Planted::Loop));
    let (rare, seldom) = (seeded.between(3, 9), seeded.between(3, 9));
    let work = |name: &str, turns: u64| {
        format!(
            "NOINLINE long {name}(long n) {{\n    int i = {turns};\n    do {{ n = n * 3 + i; KEEP(n); }} while (--i);\n    return n;\n}}\n"
        )
    };
    format!(
        "#include <stdio.h>\n\
         #define NOINLINE __attribute__((noinline, noclone, noipa))\n\
         #define KEEP(n) __asm__ volatile(\"\" : \"+r\"(n))\n\
         static unsigned long state = {seed};\n\
         NOINLINE unsigned long draw(unsigned long below) {{\n    \
             state = state * 6364136223846793005u + 1442695040888963407u;\n    \
             return (state >> 33) % below;\n}}\n\
         {}{}\
         NOINLINE long varied(long n) {{\n    \
             if (draw({seldom}) == 0) n = inner_work(n);\n    \
             return n;\n}}\n\
         NOINLINE long serve(long n) {{\n    \
             if (draw({rare}) == 0) /* branch */\n        \
                 n = own_work(n);\n    \
             n = varied(n); /* callee */\n    \
             unsigned long trips = 1 + draw({trips});\n    \
             do {{\n        \
                 n = n * 5 + trips; KEEP(n); /* loop */\n    \
             }} while (--trips);\n    \
             return n;\n}}\n\
         int main(void) {{\n    \
             long sum = 0;\n    \
             for (int i = 0; i < 3000; i++) sum += serve(i);\n    \
             printf(\"sum %ld\\n\", sum);\n    return 0;\n}}\n",
        work("own_work", branch),
        work("inner_work", callee),
    )
}

/// Builds a program. Returns its path.
fn build(directory: &Path, name: &str, text: &str) -> PathBuf {
    let source = directory.join(format!("{name}.c"));
    std::fs::write(&source, text).expect("write a program");
    let path = directory.join(name);
    output(Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&path).arg(&source));
    path
}

/// The loops of `serve`, as offsets of their headers.
fn loops(outcome: &Outcome) -> Vec<String> {
    let all =
        outcome.all("time").into_iter().filter(|record| record["kind"] == "loop" && record["function"] == "serve");
    all.filter_map(|record| record["node"].as_str().map(str::to_owned)).collect()
}

/// Writes the records of a run to a file.
fn written(directory: &Path, name: &str, outcome: &Outcome) -> String {
    let path = directory.join(name);
    let text: String = outcome.objects.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(&path, text).expect("write records");
    path.to_str().expect("a path").to_owned()
}

#[test]
fn the_planted_cause_comes_first_in_twenty_programs() {
    if !have("gcc") {
        skip!("gcc is not installed");
    }
    let directory = open_directory();
    for seed in 1..=PROGRAMS {
        let planted = [Planted::Branch, Planted::Callee, Planted::Loop][seed as usize % 3];
        let (name, text) = (format!("planted{seed}"), text(seed, planted));
        let path = build(directory.path(), &name, &text);
        let path = path.to_str().expect("a path");
        let all = format!("{name}:*");
        let times = ["profile", "times", "--until-exit", "--own-status", "--explain", "serve", &all];
        let command = ["--", path];
        let first = tool().run(times.iter().chain(&command)).assert_code(0);
        let [header] = &loops(&first)[..] else { panic!("no loop: {first:#?}") };
        let pair = format!("trips@/Code/{name}/serve/#loop@{header}");
        let watched = ["watch", "--until-exit", "--own-status", "--max-overhead", "10000", &pair];
        let watched = tool().run(watched.iter().chain(&command)).assert_code(0);
        let trips = written(directory.path(), &format!("{name}.json"), &watched);
        let explained = tool().run(times.iter().chain(&["--measured", &trips]).chain(&command)).assert_code(0);
        let causes = explained.all("cause");
        let sum: f64 = causes.iter().filter_map(|cause| cause["predicted"].as_f64()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum} {causes:#?}");
        let (what, mark) = planted.expected();
        let line = 1 + text.lines().position(|line| line.contains(mark)).expect("a mark");
        let cause = causes.first().expect("a cause");
        assert_eq!(cause["what"], what, "program {seed}, {planted:?}: {causes:#?}");
        let source = cause["source"].as_str().unwrap_or_default();
        assert!(source.ends_with(&format!("{name}.c:{line}")), "line {line} of program {seed}: {causes:#?}");
        assert!(cause["predicted"].as_f64() > Some(0.8), "{causes:#?}");
    }
}

/// The instructions of each function as the saved profile has them, and as the frequencies of its blocks predict them.
fn means_are_events_by_calls(module: &str, command: &[&str]) -> usize {
    let directory = open_directory();
    let file = directory.path().join("profile");
    let file = file.to_str().expect("a path");
    let all = format!("{module}:*");
    let times = ["profile", "times", "--until-exit", "--own-status", "-o", file, &all, "--"];
    let outcome = tool().run(times.iter().chain(command)).assert_code(0);
    let saved = tool().run(["report", file, "--as", "json"]).assert_code(0);
    let key = |record: &Value| Some((record["offset"].as_str()?.to_owned(), record["function"].as_str()?.to_owned()));
    let mut instructions = std::collections::BTreeMap::new();
    let mut events: std::collections::BTreeMap<_, f64> = std::collections::BTreeMap::new();
    // Functions with a block without a count have no times.
    for block in saved.all("block").into_iter().filter(|block| block.get("inexact").is_none()) {
        let (Some(key), Some(each), Some(count)) =
            (key(block), block["instructions"].as_f64(), block["count"].as_f64())
        else {
            panic!("{block}")
        };
        let node = block["block"].as_str().expect("an offset").to_owned();
        *events.entry(key.clone()).or_default() += each * count;
        instructions.insert((key, node), each);
    }
    let mut predicted: std::collections::BTreeMap<_, f64> = std::collections::BTreeMap::new();
    for record in outcome.all("time").iter().filter(|record| record["kind"] == "block") {
        let (key, node) = (key(record).expect("a function"), record["node"].as_str().expect("an offset").to_owned());
        let each = instructions.get(&(key.clone(), node)).unwrap_or_else(|| panic!("no block {record}"));
        *predicted.entry(key).or_default() += each * record["frequency"].as_f64().expect("a frequency");
    }
    let functions = outcome.all("time").into_iter().filter(|record| record["kind"] == "function");
    let mut compared = 0;
    for function in functions {
        let key = key(function).expect("a function");
        let own = function["self"].as_f64().expect("a number");
        let near = |value: f64| (value - own).abs() <= 1e-6 * own.max(1.0);
        let (sum, calls) = (events[&key], events[&key] / own);
        assert!((calls - calls.round()).abs() < 1e-6 * calls, "{sum} of {function} is no multiple");
        assert!(near(predicted[&key]) || function.get("inexact").is_some(), "{} {function}", predicted[&key]);
        compared += 1;
    }
    compared
}

#[test]
fn means_of_an_interpreter_and_a_database_are_events_by_calls() {
    for (module, command) in [
        ("perl", &["/usr/bin/perl", "-e", "my %h; $h{$_ % 97} .= $_ for 1..5000; print scalar(keys %h), qq(\\n)"][..]),
        (
            "libsqlite3",
            &["/usr/bin/sqlite3", ":memory:", "create table t(a); insert into t values(1),(2); select sum(a) from t;"],
        ),
    ] {
        if !Path::new(command[0]).exists() {
            skip!("{module} is not installed");
        }
        let compared = means_are_events_by_calls(module, command);
        println!("{compared} functions of {module} have times");
        assert!(compared > 300, "{compared} functions of {module}");
    }
}

/// A program that calls `light` or, one time of four, `heavy` through a pointer.
const DISPATCHED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define NOINLINE __attribute__((noinline, noclone, noipa))
#define KEEP(n) __asm__ volatile("" : "+r"(n))
static unsigned long state = 5;
NOINLINE unsigned long draw(unsigned long below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}
NOINLINE long light(long n) {
    int i = 20;
    do { n = n * 3 + i; KEEP(n); } while (--i);
    return n;
}
NOINLINE long heavy(long n) {
    int i = 200;
    do { n = n * 5 + i; KEEP(n); } while (--i);
    return n;
}
static long (*volatile table[2])(long) = {light, heavy};
NOINLINE long dispatch(long n) {
    unsigned long at = draw(4) == 0;
    return table[at](n) + 1;
}
int main(int argc, char **argv) {
    long sum = 0;
    for (long i = argc > 1 ? atol(argv[1]) : 1; i > 0; i--) sum += dispatch(i);
    printf("sum %ld\n", sum);
    return 0;
}
"#;

/// Panics unless the standard deviation fits the buckets of the same record.
fn assert_fits_its_buckets(latency: &Value) {
    let number = |key: &str| latency[key].as_f64().unwrap_or_else(|| panic!("no {key} in {latency}"));
    let (timed, mean, deviation) = (number("timed"), number("mean_ns"), number("stddev_ns"));
    let squares = timed * (deviation * deviation + mean * mean);
    let bounds = |at: usize| -> f64 {
        let buckets = latency["buckets"].as_array().into_iter().flatten();
        buckets.filter_map(|bucket| Some(bucket[2].as_f64()? * bucket[at].as_f64()?.powi(2))).sum()
    };
    assert!(bounds(0) <= squares * 1.001 && squares <= bounds(1) * 1.001, "{latency}");
}

#[test]
fn other_measurements_complete_the_prediction() {
    if !have("gcc") {
        skip!("gcc is not installed");
    }
    let directory = open_directory();
    let path = build(directory.path(), "dispatched", DISPATCHED);
    let path = path.to_str().expect("a path");
    let run = |words: &[&str]| tool().run([words, &["--", path, "2000000"]].concat()).assert_code(0);
    let all = ["--until-exit", "--own-status", "dispatched:*"];
    let record = |outcome: &Outcome, name: &str| -> Value {
        let is_it = |record: &&Value| record["kind"] == "function" && record["function"] == name;
        outcome.objects.iter().find(is_it).cloned().unwrap_or_else(|| panic!("no times of {name}: {outcome:#?}"))
    };
    let number = |record: &Value, key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no {key} in {record}"));

    let plain = run(&[&["profile", "times", "--counters", "--trips"][..], &all].concat());
    assert!((number(&record(&plain, "dispatch"), "calls_left_out") - 1.0).abs() < 1e-9);
    assert!(!plain.all("counter_places").is_empty());
    for places in plain.all("counter_places") {
        assert!(number(places, "tree_increments") <= number(places, "control_increments") * 1.000_001, "{places}");
    }

    let callers = run(&["callers", "--until-exit", "--own-status", "light", "heavy"]);
    let callers = written(directory.path(), "callers.json", &callers);
    let mixed = run(&[&["profile", "times", "--measured", &callers][..], &all].concat());
    let [dispatch, draw, light, heavy] = ["dispatch", "draw", "light", "heavy"].map(|name| record(&mixed, name));
    assert!(number(&dispatch, "calls_left_out").abs() < 1e-9, "{dispatch}");
    let called = number(&dispatch, "mean") - number(&dispatch, "self") - number(&draw, "mean");
    // One call of four is heavy.
    let expected = 0.75 * number(&light, "mean") + 0.25 * number(&heavy, "mean");
    assert!((called - expected).abs() < 0.01 * expected, "{called} is not {expected}: {dispatch}");

    let latency = run(&[&["latency", "--max-overhead", "10000"][..], &all].concat());
    for record in latency.all("latency").iter().filter(|record| record["timed"].as_u64() > Some(0)) {
        assert_fits_its_buckets(record);
    }
    let latency = written(directory.path(), "latency.json", &latency);
    let measured = ["--unit", "ns", "--measured", &latency, "--measured", &callers];
    let timed = run(&[&["profile", "times"][..], &measured, &all].concat());
    let costs = timed.all("time_costs");
    let [costs] = &costs[..] else { panic!("{timed:#?}") };
    assert!(number(costs, "functions") >= 3.0 && number(costs, "error").is_finite(), "{costs}");
    let [light, heavy] = ["light", "heavy"].map(|name| record(&timed, name));
    assert_eq!(heavy["unit"], "ns");
    assert!(number(&heavy, "measured_mean") > 0.0 && number(&heavy, "measured_stddev") >= 0.0, "{heavy}");
    assert!(number(&heavy, "mean") > number(&light, "mean"), "{light} {heavy}");

    let wrong = tool().run(["profile", "times", "--unit", "ns", "--", path, "1"]).assert_code(2);
    assert!(wrong.stderr.contains("times in nanoseconds need measured times"), "{}", wrong.stderr);
    let wrong = tool().run(["profile", "edges", "--trips", "--", path, "1"]).assert_code(2);
    assert!(wrong.stderr.contains("--trips belongs to times"), "{}", wrong.stderr);
}
