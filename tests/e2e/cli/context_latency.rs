//! Tests of `ingraft latency --by context`: the program times its calls by itself, by the chain of calls that has led to each.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply};
use serde_json::Value;

use crate::tool;

/// The functions whose calls the tests time.
const TIMED: [&str; 9] =
    ["t_first", "t_second", "t_middle", "t_works", "t_deep", "t_throws", "t_leaps", "t_passes", "t_takes"];

/// Times of the calls in a chain, as the program knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    calls: u64,
    timed: u64,
    least: u64,
    most: u64,
    longest: u64,
    bound: u64,
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

fn word(record: &Value, key: &str) -> String {
    record[key].as_str().unwrap_or_else(|| panic!("no {key} in {record}")).to_owned()
}

/// The chains in the program's account.
fn known(reply: &Reply) -> BTreeMap<String, Known> {
    let chains = reply.lines.iter().filter_map(|line| line.strip_prefix("chain "));
    let chain = |line: &str| {
        let (names, numbers) = line.split_once(' ').expect("names and numbers");
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [calls, timed, least, most, longest, bound] = numbers[..] else { panic!("{line}") };
        (names.to_owned(), Known { calls, timed, least, most, longest, bound })
    };
    chains.map(chain).collect()
}

/// The records of the tool by chain, with functions of the program's account alone. Contexts that differ in their call sites or other functions only
/// have records of their own.
fn told(outcome: &Outcome) -> BTreeMap<String, Vec<Value>> {
    let contexts: BTreeMap<u64, &Value> =
        outcome.all("context").into_iter().map(|context| (number(context, "id"), context)).collect();
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for record in outcome.all("latency") {
        let mut at = contexts.get(&number(record, "context")).copied();
        assert_eq!(at.map(|context| word(context, "function")), Some(word(record, "function")), "{record}");
        let mut names = Vec::new();
        while let Some(context) = at {
            names.push(word(context, "function"));
            at = context["parent"].as_u64().and_then(|parent| contexts.get(&parent)).copied();
        }
        names.retain(|name| name.starts_with("t_"));
        names.reverse();
        all.entry(names.join("/")).or_default().push(record.clone());
    }
    all
}

/// Times the functions while the program obeys a command. Returns what both say.
fn timed(functions: &[&str], arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start("latencies", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let all = ["latency", "-p", &pid, "--max-overhead", "10000"];
    let mut session = tool().start(all.iter().chain(arguments).chain(functions));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

/// Compares numbers of calls, and the bounds of their times, with the program's account.
fn assert_equal(outcome: &Outcome, truth: &Reply, functions: &[&str]) {
    let (told, mut known) = (told(outcome), known(truth));
    known.retain(|chain, _| {
        functions.iter().any(|function| chain.ends_with(&format!("/{function}")) || chain == function)
    });
    let chains: Vec<_> = known.keys().collect();
    assert_eq!(told.keys().collect::<Vec<_>>(), chains);
    for (chain, known) in &known {
        let records = &told[chain];
        let sum = |key: &str| records.iter().map(|record| record[key].as_u64().unwrap_or(0)).sum::<u64>();
        let largest = records.iter().filter_map(|record| record["max_ns"].as_u64()).max().unwrap_or(0);
        assert_eq!((sum("calls"), sum("timed")), (known.calls, known.timed), "{chain}");
        // Both clocks are set to the same rate from time to time, so they differ by less than a thousandth.
        let within = |ns: u64, least: u64, most: u64| least - least / 1000 <= ns && ns <= most + most / 1000;
        assert!(within(sum("sum_ns"), known.least, known.most), "{chain}: {} ns, {known:?}", sum("sum_ns"));
        assert!(within(largest, known.longest, known.bound + known.bound / 32), "{chain}: {largest} ns, {known:?}");
        for record in records.iter().filter(|record| number(record, "timed") > 0) {
            let buckets = record["buckets"].as_array().expect("buckets");
            let of_buckets: u64 = buckets.iter().map(|bucket| bucket[2].as_u64().expect("a number")).sum();
            assert_eq!(of_buckets, number(record, "timed"), "{record}");
            let ordered = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|key| number(record, key));
            assert!(ordered.is_sorted() && number(record, "self_ns") <= number(record, "sum_ns"), "{record}");
        }
    }
    let all = outcome.one("contexts");
    assert_eq!((number(all, "full"), number(all, "unrecorded")), (0, 0), "{all}");
}

/// Recursions, tail jumps, exceptions and jumps, in several threads.
#[test]
fn times_equal_the_programs_account() {
    for (seed, threads) in [(1, 0), (2, 3)] {
        let arguments = ["--by", "context", "--callers", "latencies:t_*"];
        let (outcome, truth) = timed(&TIMED, &arguments, &format!("run {seed} 500 {threads}"));
        assert_equal(&outcome, &truth, &TIMED);
        for record in outcome.all("latency") {
            let left = ["t_throws", "t_leaps"].contains(&word(record, "function").as_str());
            assert_eq!(record["left"].as_u64().is_some_and(|left| left > 0), left, "{record}");
            assert_eq!((&record["unseen"], number(record, "left_by_tail_jump")), (&Value::Null, 0), "{record}");
        }
    }
}

/// Without `--callers`, all functions of the program are in the chains.
#[test]
fn all_functions_of_the_program_are_callers() {
    let functions = ["t_works", "t_takes"];
    let (outcome, truth) = timed(&functions, &["--by", "context", "--cpu"], "run 5 200 1");
    let (told, known) = (told(&outcome), known(&truth));
    for (chain, records) in &told {
        let sum = |key: &str| records.iter().map(|record| number(record, key)).sum::<u64>();
        assert_eq!((sum("calls"), sum("timed")), (known[chain].calls, known[chain].timed), "{chain}");
        assert!(sum("sum_ns") <= known[chain].most + known[chain].most / 100, "{chain}: {known:?}");
        assert_eq!(records[0]["clock"], "cpu");
    }
    let others = outcome.all("context").iter().filter(|context| !word(context, "function").starts_with("t_")).count();
    assert!(told.len() == 7 && others > 0, "{:?}, {others} other contexts", told.keys());
}

/// A call in progress is a caller, and has no time itself. Neither have calls that end in a jump that cannot be followed.
#[test]
fn calls_in_progress_and_jumps_have_no_times() {
    let functions = ["t_outer", "t_works", "t_blind", "t_takes"];
    let arguments = ["--by", "context", "--callers", "latencies:t_*"];
    let (outcome, truth) = timed(&functions, &arguments, "+run 7 300 1");
    assert_equal(&outcome, &truth, &functions);
    assert!(told(&outcome).keys().any(|chain| chain.starts_with("t_outer/t_first")), "{outcome:#?}");
    for record in outcome.all("latency").into_iter().filter(|record| record["function"] == "t_blind") {
        assert_eq!((number(record, "left_by_tail_jump"), number(record, "timed")), (600, 0), "{record}");
    }
}

/// The contexts of a function together have the calls that the plain command tells.
#[test]
fn contexts_add_up_to_the_functions() {
    let (plain, _) = timed(&TIMED, &[], "run 9 300 2");
    let (by_context, _) = timed(&TIMED, &["--by", "context", "--callers", "latencies:t_*"], "run 9 300 2");
    for function in TIMED {
        let sum = |outcome: &Outcome, key: &str| -> u64 {
            let of = outcome.all("latency").into_iter().filter(|record| record["function"] == function);
            of.map(|record| number(record, key)).sum()
        };
        for key in ["calls", "timed"] {
            assert_eq!(sum(&plain, key), sum(&by_context, key), "{key} of {function}");
        }
    }
}

#[test]
fn each_interval_has_its_records() {
    let mut target = Mutatee::start("latencies", &[]);
    let pid = target.pid_text();
    let arguments = ["latency", "-p", &pid, "t_works", "--by", "context", "--callers", "latencies:t_*"];
    let mut session = tool().start(arguments.iter().chain(&["--interval", "200ms", "--max-overhead", "10000"]));
    session.wait_for("attached");
    target.ask("run 3 100 0");
    session.wait_for("latency");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let chains = ["t_first/t_works", "t_first/t_middle/t_works"];
    let told = told(&outcome);
    assert!(chains.iter().all(|chain| told[*chain].len() >= 2), "{told:?}");
}

#[test]
fn a_table_names_the_callers() {
    let mut target = Mutatee::start("latencies", &[]);
    let pid = target.pid_text();
    let arguments = ["latency", "-p", &pid, "t_works", "--by", "context", "--callers", "latencies:t_*", "--top", "2"];
    let text = std::thread::scope(|scope| {
        let mut command = tool().plain_command(arguments.iter().chain(&["--for", "2s", "--max-overhead", "10000"]));
        let reader = scope.spawn(move || ingraft_testing::output(&mut command));
        while !reader.is_finished() {
            target.ask("run 3 20 0");
        }
        reader.join().expect("a table")
    });
    for words in ["CALLED BY", "t_second", "t_middle ← t_second", "more contexts, which --top shows"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn what_does_not_go_with_contexts_is_refused() {
    for (arguments, what) in [
        (&["--by", "context,$arg[0]"][..], "no other expression"),
        (&["--by", "context", "--if", "$arg[0]"], "times all calls"),
        (&["--by", "context", "--show-mdl"], "no short form"),
        (&["--callers", "t_*"], "belongs to `--by context`"),
    ] {
        let all = ["latency", "-p", "1", "t_works"];
        let _ = tool().run(all.iter().chain(arguments)).assert_error(2, &[what]);
    }
}
