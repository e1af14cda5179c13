//! Tests of the stacks below functions and of the callers of callers: the program knows the time of each way to a function, and counts each of
//! its calls.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, wait_until};
use serde_json::Value;

use crate::tool;

/// Number of samples from which on shares are compared.
const ENOUGH: u64 = 300;

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The functions of a stack up to the one that begins the thread, innermost first, joined by blanks.
fn way(record: &Value) -> String {
    let frames = record["stack"].as_array().expect("a stack");
    let names = frames.iter().filter_map(|frame| frame["function"].as_str());
    let mut names: Vec<&str> = names.take_while(|name| *name != "laps" && *name != "rests").collect();
    names.dedup();
    names.join(" ")
}

/// The sums of samples and of shares by way.
fn by_way(outcome: &Outcome) -> BTreeMap<String, (u64, u64, f64)> {
    let mut found: BTreeMap<String, (u64, u64, f64)> = BTreeMap::new();
    for record in outcome.all("stack") {
        let number = |key: &str| record[key].as_u64().expect("a number");
        let of = found.entry(way(record)).or_default();
        *of = (of.0 + number("samples"), of.1 + number("looks"), of.2 + record["share"].as_f64().expect("a share"));
    }
    found
}

/// The numbers of all calls by caller and callee, as the program counts them.
fn edges(reply: &Reply) -> BTreeMap<(String, String), i64> {
    let lines = reply.lines.iter().filter_map(|line| line.strip_prefix("edge "));
    let edge = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        ((words[0].to_owned(), words[1].to_owned()), words[2].parse().expect("a number"))
    };
    lines.map(edge).collect()
}

#[test]
fn whole_stacks_have_the_shares_that_the_program_measures_itself() {
    let mut target = Mutatee::start("climbs", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &pid, "--interval", "100ms"]);
    let mut stacks = tool().start(["callers", "-p", &pid, "leaf", "--stacks"]);
    stacks.wait_for("attached");
    // Another command tells when enough samples have been taken.
    let enough = |samples: Value| samples["base"].as_u64().is_some_and(|base| base >= 4 * ENOUGH);
    while !enough(session.wait_for("samples")) {}
    let truth = target.ask("rest");
    drop(session.interrupt().assert_code(0));
    let outcome = stacks.interrupt().assert_code(0).assert_removed();
    let found = by_way(&outcome);
    let samples: u64 = found.values().map(|(samples, ..)| samples).sum();
    assert!(samples >= ENOUGH, "{found:?}: {outcome:#?}");
    let ways = [("alpha", "inner alpha"), ("beta", "inner beta"), ("gamma_", "gamma_"), ("again", "again")];
    let ns = |way: &str| truth.number(&format!("ns {way}")) as f64;
    let whole: f64 = ways.iter().map(|(way, _)| ns(way)).sum();
    for (name, stack) in ways {
        let (n, _, share) = found.get(stack).copied().unwrap_or_else(|| panic!("no {stack}: {found:?}"));
        let truth = ns(name) / whole;
        let error = (truth * (1.0 - truth) / samples as f64).sqrt();
        assert!((share - truth).abs() <= 4.0 * error + 0.02, "{name}: {share} by {n} samples, but {truth} ± {error}");
    }
    let stack = outcome.all("stack").into_iter().find(|record| way(record) == "inner alpha").expect("a stack");
    assert_eq!((&stack["whole"], &stack["how"]["samples"]), (&Value::from(true), &Value::from("sampled")), "{stack}");
    assert!(text(&stack["stack"][0], "source").contains("climbs.c:"), "{stack}");
    // The direct callers are counted exactly beside them, and each has its commonest stack.
    let callers = outcome.all("caller");
    let inner = callers.iter().find(|record| record["caller"] == "inner").expect("a caller");
    assert_eq!(way(inner), "inner alpha", "{inner}");
    assert_eq!(inner["stack"][0]["call_site"], inner["call_site"], "{inner}");
    // The call in an inlined function names both functions.
    let gamma = callers.iter().find(|record| record["caller"] == "gamma_").expect("a caller");
    assert_eq!(gamma["inlined"], serde_json::json!(["helper"]), "{gamma}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn waiting_threads_have_stacks_too() {
    let mut target = Mutatee::start("climbs", &[]);
    let pid = target.pid_text();
    target.ask("wait");
    // The first look comes once the program is analysed.
    let mut looked = None;
    wait_until("a look meets it", || {
        let outcome = tool().run(["callers", "-p", &pid, "nap", "leaf", "--stacks", "--for", "1s"]);
        let outcome = outcome.assert_code(0).assert_removed();
        let has_looks =
            outcome.all("stack").iter().any(|record| record["looks"].as_u64().is_some_and(|looks| looks > 0));
        looked = Some(outcome);
        has_looks
    });
    let outcome = looked.expect("an outcome");
    let all = outcome.all("stack");
    assert!(all.iter().all(|record| record["function"] == "nap"), "{outcome:#?}");
    let first = &all[0]["stack"][0];
    assert_eq!(first["function"], "rests", "{outcome:#?}");
    target.ask("wake");
    // People read that no sample has met the other function.
    let arguments = ["callers", "-p", &pid, "leaf", "--stacks", "--for", "300ms"];
    let shown = tool().plain_command(arguments).output().expect("run it");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("no sample met it"), "{shown}");
    drop(tool().run(["callers", "-p", &pid, "leaf", "--stacks", "--if", "$arg[0] > 1"]).assert_code(2));
}

#[test]
fn callers_are_climbed_until_no_caller_is_new() {
    let mut target = Mutatee::start("climbs", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    target.ask("run");
    let mut session = tool().start(["callers", "-p", &pid, "leaf", "--until-roots"]);
    // The only `attached` is that of the window in which all are counted.
    session.wait_for("attached");
    target.ask("rest");
    target.ask("run");
    let truth = edges(&target.ask("rest"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let mut found: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut levels: BTreeMap<String, u64> = BTreeMap::new();
    for record in outcome.all("caller") {
        let (caller, callee) = (text(record, "caller").to_owned(), text(record, "function").to_owned());
        levels.entry(caller.clone()).or_insert(record["level"].as_u64().expect("a level"));
        *found.entry((caller, callee)).or_default() += record["calls"].as_i64().expect("a number");
    }
    let known: Vec<&(String, String)> = truth.keys().collect();
    assert!(known.iter().all(|edge| found.contains_key(*edge)), "{found:?}, but the program has {known:?}");
    let level = |name: &str| levels.get(name).copied();
    assert_eq!((level("inner"), level("alpha"), level("again"), level("laps")), (Some(1), Some(2), Some(1), Some(2)));
    // All functions are counted in the same window. It begins somewhere in a lap, of which a part is counted.
    let calls = |caller: &str, callee: &str| found[&(caller.to_owned(), callee.to_owned())];
    let agrees = |one: i64, other: i64| assert!(one.abs_diff(other) <= 3, "{one} and {other} in {found:?}");
    agrees(calls("alpha", "inner"), 3 * calls("laps", "alpha"));
    agrees(calls("inner", "leaf"), calls("alpha", "inner") + calls("beta", "inner"));
    agrees(calls("again", "again"), 2 * calls("laps", "again"));
    agrees(calls("again", "leaf"), calls("laps", "again"));
    assert!(calls("laps", "alpha") > 0 && found.iter().all(|(edge, n)| truth.get(edge).is_none_or(|all| n <= all)));
    target::assert_clean(target.pid(), &before);
    drop(tool().run(["callers", "leaf", "--until-roots", "--", "true"]).assert_error(2, &["--until-roots"]));
}
