//! Tests of `ingraft profile contexts` in Go, whose calls move between threads: the program keeps its own account of who called whom.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Tool, program, scaled, skip};

use crate::go::end_clean;
use crate::tool;

const FUNCTIONS: [&str; 11] = [
    "main.c_leaf",
    "main.c_wait",
    "main.c_grow",
    "main.c_throw",
    "main.c_rescue",
    "main.c_after",
    "main.c_short",
    "main.c_start",
    "main.c_any",
    "main.c_hold",
    "main.c_task",
];

/// Numbers of calls by the functions that were open, from the outermost one on, and by the number of functions of the context to which a recursive
/// call leads back, or 0.
type Calls = BTreeMap<(Vec<String>, usize), u64>;

/// The contexts in what the tool has printed, without the places of calls.
fn told(outcome: &Outcome) -> Calls {
    let mut chains: BTreeMap<u64, Vec<String>> = BTreeMap::from([(0, Vec::new())]);
    let mut found = Calls::new();
    for record in outcome.all("context") {
        let number = |key: &str| record[key].as_u64().unwrap_or(0);
        let mut chain = chains[&number("parent")].clone();
        chain.push(record["function"].as_str().expect("a name").to_owned());
        let back = chains.get(&number("back_to")).map_or(0, Vec::len);
        chains.insert(number("id"), chain.clone());
        if number("calls") > 0 {
            *found.entry((chain, back)).or_default() += number("calls");
        }
    }
    found
}

/// The contexts in the program's account. A recursive call leads back to the first one of its function if `folds`.
fn known(reply: &Reply, folds: bool) -> Calls {
    let mut found = Calls::new();
    for line in &reply.lines {
        let Some((chain, calls)) = line.strip_prefix("call ").and_then(|line| line.split_once(' ')) else { continue };
        let (mut context, mut back) = (Vec::new(), 0);
        for function in chain.split('/') {
            context.truncate(if back == 0 { context.len() } else { back });
            let first = context.iter().position(|earlier| earlier == function).filter(|_| folds);
            back = first.map_or(0, |first| first + 1);
            context.push(function.to_owned());
        }
        *found.entry((context, back)).or_default() += calls.parse::<u64>().expect("a number");
    }
    found
}

fn assert_equal(told: &Calls, known: &Calls) {
    assert!(known.len() > 20, "{} contexts", known.len());
    let wrong: Vec<_> = known.iter().filter(|(chain, calls)| told.get(*chain) != Some(calls)).collect();
    let more: Vec<_> = told.iter().filter(|(chain, _)| !known.contains_key(*chain)).collect();
    let few = |all: &[(&(Vec<String>, usize), &u64)]| {
        let one = |(chain, calls): &(&(Vec<String>, usize), &u64)| {
            format!("{chain:?}: {calls}, told {:?}\n", told.get(*chain))
        };
        all.iter().take(5).map(one).collect::<String>()
    };
    assert!(
        wrong.is_empty() && more.is_empty(),
        "{} wrong:\n{}{} more:\n{}",
        wrong.len(),
        few(&wrong),
        more.len(),
        few(&more)
    );
}

/// Starts the program with four threads.
fn start() -> Result<Mutatee, String> {
    Ok(Mutatee::spawn(Command::new(program("chains")?).env("GOMAXPROCS", "4")))
}

/// Profiles the program while it obeys a command. Returns what both say.
fn profiled(tool: &Tool, target: &mut Mutatee, arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let pid = target.pid_text();
    let all = ["profile", "contexts", "-p", &pid, "--max-overhead", "10000"];
    let mut session = tool.start(all.iter().chain(arguments).chain(&FUNCTIONS));
    session.wait_for("attached");
    let truth = target.ask(command);
    (session.interrupt().assert_code(0).assert_removed(), truth)
}

/// Profiles a program of these chains of calls again and again.
fn in_rounds(mode: &str, commands: &[String]) {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("chains: {why}"),
    };
    let before = Text::of(target.pid());
    let tool = tool();
    for command in commands {
        let (outcome, truth) = profiled(&tool, &mut target, &["--recursion", mode], command);
        assert_equal(&told(&outcome), &known(&truth, mode == "fold"));
        let all = outcome.one("contexts");
        for key in ["full", "unrecorded", "unseen"] {
            assert_eq!(all[key], 0, "{key} in {all}");
        }
    }
    end_clean(target, &before);
}

#[test]
fn contexts_of_goroutines_equal_the_programs_account() {
    let commands: Vec<String> = (0..scaled(3, 40)).map(|seed| format!("run {seed} {} 6", scaled(300, 2000))).collect();
    in_rounds("fold", &commands);
}

/// Every recursive call has a context of its own, and the stacks are deep.
#[test]
fn contexts_of_recursive_calls_equal_the_programs_account() {
    let commands: Vec<String> = (0..scaled(2, 10)).map(|seed| format!("run {} 150 4", seed + 50)).collect();
    in_rounds("full", &commands);
}

/// Goroutines wait in two calls when the profile begins. What they call then has no other callers.
#[test]
fn contexts_of_goroutines_begin_with_the_profile() {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("chains: {why}"),
    };
    let before = Text::of(target.pid());
    target.ask("hold 8 150 4");
    let (outcome, truth) = profiled(&tool(), &mut target, &["--recursion", "full"], "release");
    let mut expected = Calls::new();
    for ((chain, back), calls) in known(&truth, false) {
        let earlier = chain.iter().take_while(|function| ["main.c_task", "main.c_hold"].contains(&function.as_str()));
        let earlier = earlier.count();
        if earlier < chain.len() {
            *expected.entry((chain[earlier..].to_vec(), back)).or_default() += calls;
        }
    }
    assert_equal(&told(&outcome), &expected);
    let all = outcome.one("contexts");
    assert_eq!((&all["unseen"], &all["unrecorded"]), (&8.into(), &0.into()), "{all}");
    assert!(outcome.all("context").iter().all(|context| context["caught_up"] == 0));
    end_clean(target, &before);
}

/// The own times of all contexts of a goroutine add up to the time that the program has taken itself, with the time in which it waits for others.
#[test]
fn times_in_contexts_of_goroutines_add_up() {
    let mut target = match start() {
        Ok(target) => target,
        Err(why) => skip!("chains: {why}"),
    };
    let before = Text::of(target.pid());
    let command = format!("run 3 {} 6", scaled(5000, 50_000));
    let (outcome, truth) = profiled(&tool(), &mut target, &["--metric", "time"], &command);
    assert_equal(&told(&outcome), &known(&truth, true));
    let mut tasks = BTreeSet::from([0]);
    let mut sum = 0;
    for record in outcome.all("context") {
        let number = |key: &str| record[key].as_u64().unwrap_or(0);
        let is_task = record["function"] == "main.c_task" || number("parent") != 0;
        if is_task && tasks.contains(&number("parent")) {
            tasks.insert(number("id"));
            sum += record["metrics"]["wall_ns"].as_u64().expect("a time");
        }
    }
    let known = truth.number("ns main.c_task");
    let off = sum.abs_diff(known).saturating_sub(target::stolen_ns());
    assert!(off * 100 <= known * 3, "{sum} ns, but {known} ns by the program's clock");
    end_clean(target, &before);
}

/// The sum of a metric in the contexts of a function, with all below them.
fn below(outcome: &Outcome, function: &str, metric: &str) -> u64 {
    let mut inside = BTreeSet::new();
    let mut sum = 0;
    for record in outcome.all("context") {
        let number = |key: &str| record[key].as_u64().unwrap_or(0);
        if record["function"] == function || inside.contains(&number("parent")) {
            inside.insert(number("id"));
            sum += record["metrics"][metric].as_u64().unwrap_or(0);
        }
    }
    sum
}

/// The program takes the time of each wait.
#[test]
fn waits_of_goroutines_are_told_by_context() {
    let program = match program("serving") {
        Ok(program) => program,
        Err(why) => skip!("serving: {why}"),
    };
    let mut target = Mutatee::spawn(Command::new(program).env("GOMAXPROCS", "4"));
    let (before, pid, tool) = (Text::of(target.pid()), target.pid_text(), tool());
    let waits = ["main.waitForLock", "main.waitForTime", "main.waitForAnswer", "main.waitForConnection"];
    for (view, metric, found) in [("offcpu", "wait_ns", &waits[..]), ("locks", "lock_wait_ns", &waits[..1])] {
        let mut session = tool.start([view, "-p", &pid, "--max-overhead", "10000", "main.*"]);
        session.wait_for("attached");
        let truth = target.ask("wait 100 4");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let untold = outcome.one("contexts")["holders_unknown"].to_string();
        assert_eq!(untold.contains("SemacquireMutex"), view == "locks", "{untold}");
        for function in waits {
            let (told, known) = (below(&outcome, function, metric), truth.number(&format!("waited {function}")));
            let known = if found.contains(&function) { known } else { 0 };
            // The program reads its clock around each wait, and spins a little before it waits for a lock.
            let is_right = told <= known && (known - told).saturating_sub(target::stolen_ns()) * 10 <= known;
            assert!(is_right, "{view}: {told} ns in {function}, {known} by the program");
        }
    }
    end_clean(target, &before);
}

/// Go code allocates by its own runtime, not by the C library.
#[test]
fn memory_of_go_is_not_told_and_a_warning_says_so() {
    if let Err(why) = program("handlers") {
        skip!("handlers: {why}");
    }
    let target = Mutatee::start("handlers", &[]);
    let (before, pid) = (Text::of(target.pid()), target.pid_text());
    let outcome = tool().run(["heap", "-p", &pid, "main.*", "--for", "200ms"]).assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("the figures are those of the C library alone"), "{outcome:#?}");
    end_clean(target, &before);

    // A program without the C library has no such figures.
    let target = Mutatee::start("gopher", &[]);
    let (before, pid) = (Text::of(target.pid()), target.pid_text());
    let outcome = tool().run(["heap", "-p", &pid, "--for", "200ms"]).assert_code(3);
    assert!(outcome.stderr.contains("has no allocation function of the C library"), "{outcome:#?}");
    end_clean(target, &before);
}

/// Calls of C functions stay with their threads.
#[test]
fn contexts_of_c_functions_are_refused_beside_goroutines() {
    if let Err(why) = program("handlers") {
        skip!("handlers: {why}");
    }
    let mut target = Mutatee::start("handlers", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["profile", "contexts", "-p", &pid, "main.handle", "libc*:malloc"]);
    session.wait_for("attached");
    let truth = target.ask("go 20");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let refused = outcome.one("refused");
    assert_eq!((&refused["function"], &refused["reason"]), (&"malloc".into(), &"moving_calls".into()), "{refused}");
    let calls: u64 = told(&outcome).values().sum();
    assert_eq!(calls, truth.number("tally main.handle"));
    end_clean(target, &before);
}
