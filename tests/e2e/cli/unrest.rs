//! Contexts at random moments: a program keeps an account of the functions that are active when signals interrupt it.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::tool;

/// Numbers of stops by the functions that were active, from the outermost one on.
type Stops = BTreeMap<Vec<String>, u64>;

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The calls of a function by the functions around it, in what the tool has printed.
fn told(outcome: &Outcome, function: &str) -> Stops {
    let (mut chains, mut found) = (BTreeMap::<u64, Vec<String>>::new(), Stops::new());
    for record in outcome.all("context") {
        let parent = record["parent"].as_u64().unwrap_or_default();
        let mut chain = chains.get(&parent).cloned().unwrap_or_default();
        let name = record["function"].as_str().expect("a name");
        if name == function && number(record, "calls") > 0 {
            *found.entry(chain.clone()).or_default() += number(record, "calls");
        }
        chain.push(name.to_owned());
        chains.insert(number(record, "id"), chain);
    }
    found
}

/// The certain stops in the program's account.
fn known(reply: &Reply) -> Stops {
    let chain = |line: &String| {
        let mut words = line.strip_prefix("chain ")?.split(' ');
        let count = words.next()?.parse().ok()?;
        Some((words.map(str::to_owned).collect(), count))
    };
    reply.lines.iter().filter_map(chain).collect()
}

/// When a measurement begins.
#[derive(Clone, Copy, PartialEq)]
enum Begins {
    Before,
    /// At a random moment of the run.
    Within,
}

/// Measures the program until signals have interrupted it so often, and compares its account.
fn stopped_at_random(arguments: &[&str], (seed, stops): (u64, u64), begins: Begins) {
    let mut target = Mutatee::start("unrest", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let all = ["profile", "contexts", "-p", &pid, "unrest:u_*", "--recursion", "full", "--max-overhead", "10000"];
    if begins == Begins::Within {
        target.tell(&format!("late {seed} {stops}"));
        let _ = target.wait_line("running");
    }
    let mut session = tool().start(all.iter().chain(arguments));
    session.wait_for("attached");
    match begins {
        Begins::Before => target.tell(&format!("run {seed} {stops}")),
        Begins::Within => kill(Pid::from_raw(target.pid()), Signal::SIGUSR1).expect("a signal"),
    }
    let truth = target.reply();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let line = truth.lines.iter().find_map(|line| line.strip_prefix("stops ")).expect("the numbers of stops");
    let counted: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    let summary = outcome.one("contexts");
    assert_eq!((number(summary, "unrecorded"), number(summary, "full")), (0, 0), "{summary}");
    let (known, unclear) = (known(&truth), told(&outcome, "u_unclear"));
    assert_eq!((known.values().sum::<u64>(), unclear.values().sum::<u64>()), (counted[0], counted[1]), "{line}");
    let told = told(&outcome, "u_probe");
    let differ = |chain: &&Vec<String>| known.get(*chain) != told.get(*chain);
    let wrong: Vec<_> = known.keys().chain(told.keys()).filter(differ).collect();
    let both = |chain: &&Vec<String>| format!("{chain:?}: known {:?}, told {:?}", known.get(*chain), told.get(*chain));
    assert!(wrong.is_empty(), "{} of {}: {:#?}", wrong.len(), known.len(), wrong.iter().map(both).collect::<Vec<_>>());
}

#[test]
fn contexts_at_random_stops_are_those_of_the_program() {
    stopped_at_random(&[], (7, scaled(1000, 100_000)), Begins::Before);
}

/// Clocks are read at each call, so that signals come within that code too.
#[test]
fn timed_contexts_at_random_stops_are_those_of_the_program() {
    stopped_at_random(&["--metric", "time,cpu"], (11, scaled(1000, 100_000)), Begins::Before);
}

/// The stack is deep when the measurement begins. The first stops find calls that had begun before.
#[test]
fn contexts_that_begin_at_random_moments_are_those_of_the_program() {
    (0..scaled(8, 400)).for_each(|seed| stopped_at_random(&[], (seed, 30), Begins::Within));
}
