//! Tests of `ingraft profile contexts`: the program keeps its own account of its calling contexts, by hooks that its compiler has put into its
//! functions.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, open_directory, scaled, skip, wait_until};
use serde_json::Value;

use crate::tool;

/// A context: the functions from the outermost call on, each with the place to which its call returns, and whether the last one leads back to an
/// earlier one, by its distance.
type Path = (Vec<(String, u64)>, Option<usize>);

/// Numbers of calls by context.
type Calls = BTreeMap<Path, u64>;

/// Adds the calls of contexts: id, id of the parent or 0, function, return address, calls, id of the context to which it leads back or 0.
fn calls(rows: &[(u64, u64, String, u64, u64, u64)]) -> Calls {
    let mut paths: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::from([(0, Vec::new())]);
    let mut found = Calls::new();
    for (id, parent, function, site, calls, back) in rows {
        let mut path = paths.get(parent).unwrap_or_else(|| panic!("{id} comes before its parent {parent}")).clone();
        path.push((function.clone(), *site));
        let back = paths.get(back).filter(|_| *back != 0).map(Vec::len);
        paths.insert(*id, path.clone());
        if *calls > 0 {
            *found.entry((path, back)).or_default() += calls;
        }
    }
    found
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The contexts in what the tool has printed.
fn told(outcome: &Outcome) -> Calls {
    let row = |record: &&Value| {
        let hex = record["call_site"].as_str().and_then(|site| site.strip_prefix("0x")).expect("an address");
        (
            number(record, "id"),
            record["parent"].as_u64().unwrap_or(0),
            record["function"].as_str().expect("a name").to_owned(),
            u64::from_str_radix(hex, 16).expect("an address"),
            number(record, "calls"),
            record["back_to"].as_u64().unwrap_or(0),
        )
    };
    calls(&outcome.all("context").iter().map(row).collect::<Vec<_>>())
}

/// The contexts in the program's account.
fn known(reply: &Reply) -> Calls {
    let row = |line: &String| {
        let words: Vec<&str> = line.strip_prefix("node ")?.split(' ').collect();
        let number = |n: usize| words[n].parse().expect("a number");
        Some((number(0), number(1), words[2].to_owned(), number(3), number(4), number(5)))
    };
    calls(&reply.lines.iter().filter_map(row).collect::<Vec<_>>())
}

/// Profiles the program while it obeys a command, and returns what both say.
fn profiled(arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let all = ["profile", "contexts", "-p", &pid, "contexts:c_*", "--max-overhead", "10000"];
    let mut session = tool().start(all.iter().chain(arguments));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

fn assert_equal(outcome: &Outcome, truth: &Reply) {
    let (told, known) = (told(outcome), known(truth));
    assert!(known.len() > 100, "{} contexts", known.len());
    for (path, calls) in &known {
        assert_eq!(told.get(path), Some(calls), "{path:?}");
    }
    let more: Vec<_> = told.iter().filter(|(path, _)| !known.contains_key(*path)).take(3).collect();
    assert!(more.is_empty(), "{more:?}");
    let all = outcome.one("contexts");
    for key in ["full", "unrecorded", "unseen"] {
        assert_eq!(all[key], 0, "{key} in {all}");
    }
    assert_eq!(number(all, "nodes") + number(all, "back_edges"), outcome.all("context").len() as u64);
}

#[test]
fn contexts_equal_the_programs_account() {
    for seed in 0..scaled(3, 30) {
        let (outcome, truth) = profiled(&[], &format!("run {seed} 3000 3"));
        assert_equal(&outcome, &truth);
    }
}

/// Nothing is called when the profile begins, so its code stands in the text. Functions that are called often then move into copies, while threads are in
/// them.
#[test]
fn functions_that_become_busy_are_copied() {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["profile", "contexts", "-p", &pid, "contexts:c_*", "--max-overhead", "10000"]);
    session.wait_for("attached");
    let woven = || {
        let inspected = tool().run(["inspect", "-p", &pid, "contexts:c_fan", "--disassembly"]).assert_code(0);
        inspected.all("woven").len()
    };
    let (in_text, mut all) = (woven(), Calls::new());
    wait_until("the function is copied", || {
        let truth = known(&target.ask("run 5 60000 2"));
        truth.into_iter().for_each(|(path, calls)| *all.entry(path).or_default() += calls);
        woven() > in_text
    });
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert_eq!(told(&outcome), all);
}

/// Four calls have begun before the profile.
#[test]
fn calls_in_progress_are_contexts_of_later_calls() {
    for metric in ["calls", "time,cpu"] {
        let (outcome, truth) = profiled(&["--metric", metric], "+run 7 3000 1");
        assert_equal(&outcome, &truth);
        let outer = known(&truth).into_keys().filter(|(path, _)| path[0].0 == "c_outer").count();
        assert!(outer > 10, "{outer} contexts inside of earlier calls");
    }
}

/// The first measurement needs little memory in the program. Trees that are begun later have room beside it, and beside each other.
#[test]
fn trees_have_room_beside_each_other() {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let (tool, pid) = (tool(), target.pid_text());
    let begun = |command: &[&str], metric: &[&str]| {
        let functions = ["-p", &pid, "contexts:c_*", "--max-overhead", "10000"];
        let mut session = tool.start(command.iter().chain(&functions).chain(metric));
        session.try_wait_for_any(&["attached", "changed"]).expect("it is inserted");
        session
    };
    let first = begun(&["count"], &[]);
    let metrics = [&["--metric", "time"][..], &["--metric", "cpu"], &["--metric", "time,cpu"]];
    let trees = metrics.map(|metric| begun(&["profile", "contexts"], metric));
    let truth = target.ask("run 11 3000 2");
    for tree in trees {
        assert_equal(&tree.interrupt().assert_code(0), &truth);
    }
    let _counts = first.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
}

/// The times of all contexts are own times, which add up to the time of the calls from outside. No call of the program waits, and the readings of
/// the processor's clock lie between those of the other one.
#[test]
fn metrics_are_told_for_each_context() {
    let (outcome, truth) = profiled(&["--metric", "time,cpu"], "run 9 2000 2");
    assert_equal(&outcome, &truth);
    let records = outcome.all("context");
    let sum = |metric: &str| -> u64 { records.iter().map(|record| number(&record["metrics"], metric)).sum() };
    let (wall, cpu) = (sum("wall_ns"), sum("cpu_ns"));
    assert!(wall > 0 && cpu > 0 && cpu <= wall + wall / 50, "{wall} ns, {cpu} ns on the processor");
}

/// A tree that is full leaves calls out, and says how many.
#[test]
fn calls_without_room_are_counted() {
    let (outcome, truth) = profiled(&["--recursion", "full"], "run 3 400000 0");
    let (told, known) = (told(&outcome), known(&truth));
    let all = outcome.one("contexts");
    let lost = number(all, "full") + number(all, "unrecorded");
    assert!(lost > 0, "{all}");
    assert_eq!(told.values().sum::<u64>() + lost, known.values().sum::<u64>(), "{all}");
}

/// Runs a view of contexts while the program obeys a command. Returns the sums of a metric by function and caller.
fn viewed(view: &str, metric: &str, command: &str) -> BTreeMap<(String, String), u64> {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start([view, "-p", &pid, "contexts:c_*", "--max-overhead", "10000"]);
    session.wait_for("attached");
    target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    sums(&outcome, metric)
}

/// The sums of a metric by function and caller.
fn sums(outcome: &Outcome, metric: &str) -> BTreeMap<(String, String), u64> {
    let records = outcome.all("context");
    let name = |id: &Value| {
        let record = records.iter().find(|record| record["id"] == *id);
        record.map_or("", |record| record["function"].as_str().expect("a name")).to_owned()
    };
    let mut sums = BTreeMap::new();
    for record in &records {
        let value = number(&record["metrics"], metric);
        if value > 0 {
            *sums.entry((name(&record["parent"]), name(&record["id"]))).or_default() += value;
        }
    }
    sums
}

fn assert_allocated(sums: &BTreeMap<(String, String), u64>) {
    // The library also has other names for its functions, such as __libc_calloc.
    let of = |caller: &str, function: &str| -> u64 {
        let found = sums.iter().filter(|((by, of), _)| by.ends_with(caller) && of.ends_with(function));
        found.map(|(_, sum)| sum).sum()
    };
    assert_eq!(of("c_small", "malloc"), 7_000, "{sums:?}");
    for function in ["malloc", "calloc", "realloc"] {
        assert_eq!(of("c_large", function), 700_000, "{function} in {sums:?}");
    }
    assert_eq!(of("realloc", "malloc"), 0, "an allocation inside of another one");
}

#[test]
fn allocated_bytes_are_told_by_context() {
    assert_allocated(&viewed("heap", "allocated_bytes", "allocate 700"));
}

/// The C library is mapped later than the program.
#[test]
fn a_started_program_has_contexts_of_libraries() {
    let program = ingraft_testing::program("contexts").expect("g++").display().to_string();
    let command = ["heap", "contexts:c_*", "--max-overhead", "10000", "--until-exit", "--", &program, "700"];
    let outcome = tool().run(command).assert_code(0);
    assert_allocated(&sums(&outcome, "allocated_bytes"));
}

#[test]
fn waits_are_told_by_context() {
    const EACH: u64 = 20_000_000;
    let locks = viewed("locks", "lock_wait_ns", "wait 5 20");
    let found = locks.iter().find(|((caller, function), _)| caller == "c_locks" && function.contains("mutex_lock"));
    let waited = found.map_or(0, |(_, ns)| *ns);
    assert!((5 * EACH / 2..60 * EACH).contains(&waited), "{locks:?}");
    let waits = viewed("offcpu", "wait_ns", "wait 5 20");
    let sleeps = ["nanosleep", "clock_nanosleep"];
    let asleep: u64 =
        waits.iter().filter(|((_, function), _)| sleeps.iter().any(|f| function.contains(f))).map(|(_, ns)| *ns).sum();
    assert!((10 * EACH..120 * EACH).contains(&asleep), "c_sleeps and the holder of the lock sleep: {waits:?}");
}

/// Saved contexts are exported to the formats that describe them.
#[test]
fn saved_contexts_are_exported() {
    let directory = open_directory();
    let file = directory.path().join("contexts").display().to_string();
    let (_, truth) = profiled(&["-o", &file], "run 2 2000 1");
    let calls: u64 = known(&truth).values().sum();
    let exported = |format: &str| {
        let to = format!("{file}.{format}");
        let _ = tool().run(["report", &file, "--as", format, "-o", &to]).assert_code(0);
        std::fs::read_to_string(&to).expect("a file of text")
    };
    let folded = exported("folded");
    let counted = folded.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>();
    assert_eq!(counted, calls, "{folded}");
    for (format, begins) in [("svg", "<"), ("speedscope", "{"), ("html", "<"), ("callgrind", "# callgrind")] {
        let text = exported(format);
        assert!(text.starts_with(begins) && text.contains("c_tries"), "{format}: {}", &text[..text.len().min(200)]);
    }
}

#[test]
fn a_handler_is_called_by_a_signal() {
    let (outcome, _) = profiled(&[], "signal 40");
    let records = outcome.all("context");
    let of = |function: &str| records.iter().find(|record| record["function"] == function).expect("a context");
    let (handler, raises) = (of("c_handles"), of("c_raises"));
    assert_eq!((&handler["kind"], &handler["parent"], number(handler, "calls")), (&"signal".into(), &raises["id"], 40));
    assert_eq!(raises["kind"], "call");
}

/// The functions that are jumped to are below those that jump, and later calls are those of the function that was called first.
#[test]
fn a_tail_jump_goes_on_below() {
    let (outcome, _) = profiled(&[], "+pass 300");
    let expected = [
        ("c_begins", "c_after", "call", 300),
        ("c_takes", "c_after", "call", 300),
        ("c_turns", "c_after", "tail", 300),
        ("c_third", "c_begins", "call", 300),
        ("c_passes", "c_hands", "tail", 300),
        ("c_begins", "c_passes", "call", 300),
        ("c_hands", "c_takes", "tail", 300),
        ("c_begins", "c_turns", "call", 300),
    ];
    assert_called(&outcome, &expected);
}

/// The functions that `c_begins` reaches, without `c_after` and `c_takes`.
const PASSING: [&str; 4] = ["contexts:c_begins", "contexts:c_passes", "contexts:c_hands", "contexts:c_turns"];

/// A function that calls nothing and was not asked for has no code for those that jump to it. One that calls others has.
#[test]
fn a_jump_to_a_function_that_calls_nothing_ends_a_call() {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let arguments = ["profile", "contexts", "-p", &pid, "--max-overhead", "10000"];
    let mut session = tool().start(arguments.iter().copied().chain(PASSING));
    session.wait_for("attached");
    let has_code = |function: &str| {
        let inspected = tool().run(["inspect", "-p", &pid, function, "--disassembly"]).assert_code(0);
        !inspected.all("woven").is_empty()
    };
    assert_eq!(["contexts:c_after", "contexts:c_takes", "contexts:c_turns"].map(has_code), [false, true, true]);
    let _ = target.ask("+pass 300");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let expected = [
        ("", "c_begins", "call", 300),
        ("c_passes", "c_hands", "tail", 300),
        ("c_begins", "c_passes", "call", 300),
        ("c_begins", "c_turns", "call", 300),
    ];
    assert_called(&outcome, &expected);
}

/// The functions of expressions are measured too. Their values are known: `c_begins` gets the numbers below 300.
#[test]
fn values_of_expressions_are_added_up() {
    let mut target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let sums = [
        "--sum=given=contexts:c_after:$arg[0]",
        "--sum=large=contexts:c_after:($arg[0] > 100) * $return",
        "--sum=contexts:c_takes:$return",
        "--sum=spent_ns=contexts:c_begins:$elapsed",
    ];
    let arguments = ["profile", "contexts", "-p", &pid, "--max-overhead", "10000"];
    let mut session = tool().start(arguments.iter().copied().chain(sums).chain(PASSING));
    session.wait_for("attached");
    let began = std::time::Instant::now();
    let _ = target.ask("+pass 300");
    let most = began.elapsed().as_nanos() as i64;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let records = outcome.all("context");
    let value = |caller: &str, function: &str, name: &str| {
        let is_it = |record: &&&Value| {
            let parent = records.iter().find(|above| above["id"] == record["parent"]);
            record["function"] == function
                && parent.map_or("", |above| above["function"].as_str().expect("a name")) == caller
        };
        let found = records.iter().find(is_it).unwrap_or_else(|| panic!("no {function} below {caller}"));
        found["metrics"][name].as_i64().unwrap_or_else(|| panic!("no {name} in {found}"))
    };
    let sum = |of: fn(i64) -> i64| (0..300).map(of).sum::<i64>();
    let large = |x: i64| if x > 100 { x } else { 0 };
    assert_eq!(value("c_takes", "c_after", "given"), sum(|n| 2 * n + 1));
    assert_eq!(value("c_begins", "c_after", "given"), sum(|n| n));
    assert_eq!(value("c_turns", "c_after", "given"), sum(|n| n + 5));
    assert_eq!(value("c_turns", "c_after", "large"), (0..300).map(|n| large(n + 5)).sum::<i64>());
    assert_eq!(value("c_hands", "c_takes", "c_takes"), sum(|n| 2 * n + 2));
    assert_eq!([value("c_begins", "c_turns", "given"), value("c_hands", "c_takes", "given")], [0, 0]);
    let spent = value("", "c_begins", "spent_ns");
    assert!((1..most).contains(&spent), "{spent} of {most} ns");
    let how = &records[0]["how"];
    assert_eq!([&how["given"], &how["spent_ns"]], ["counted", "clocked"]);
}

/// A call that ends by a jump to another function has its value in its own context, not where the other function ends.
#[test]
fn a_value_behind_a_tail_jump_is_in_the_context_of_its_call() {
    let sums = ["--sum=passes=contexts:c_passes:$return", "--sum=turns=contexts:c_turns:$return"];
    let (outcome, _) = profiled(&sums, "+pass 300");
    let values = |name: &str| -> Vec<(&str, i64)> {
        let value = |record: &&Value| record["metrics"][name].as_i64().filter(|value| *value != 0);
        let named = outcome.all("context").into_iter();
        let named = named.filter_map(|record| Some((record["function"].as_str()?, value(&record)?)));
        named.collect()
    };
    let sum = |of: fn(i64) -> i64| (0..300).map(of).sum::<i64>();
    assert_eq!(values("passes"), [("c_passes", sum(|n| 2 * n + 2))]);
    assert_eq!(values("turns"), [("c_turns", sum(|n| n + 5))]);
}

/// The own time of such a call is in its own context, too: that of `c_passes`, which only jumps, or jumps and calls.
#[test]
fn own_time_before_a_tail_jump_is_in_the_context_of_its_call() {
    let (outcome, _) = profiled(&["--metric", "time,cpu"], "+pass 300");
    let records = outcome.all("context");
    let called: Vec<_> = records.iter().filter(|record| number(record, "calls") > 0).collect();
    assert!(called.len() >= 8, "{called:?}");
    for metric in ["wall_ns", "cpu_ns"] {
        let without: Vec<_> = called.iter().filter(|record| record["metrics"][metric].as_i64() <= Some(0)).collect();
        assert!(without.is_empty(), "{metric}: {without:?}");
    }
}

/// Expressions that are wrong, or whose values contexts cannot add up, are refused before anything is changed.
#[test]
fn wrong_sums_are_refused() {
    let target = Mutatee::start("contexts", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    for (sum, reason, status) in [
        ("a=contexts:c_after:$arg[0] +", "mdl", 2),
        ("a=contexts:c_after:$nothing", "mdl", 2),
        ("a=contexts:nothing:$arg[0]", "no_such_function", 3),
    ] {
        let outcome = tool().run(["profile", "contexts", "-p", &pid, "contexts:c_begins", "--sum", sum]);
        let (outcome, told) = (outcome.assert_code(status), format!("\"reason\":\"{reason}\""));
        assert!(outcome.stderr.contains(&told), "{sum}: {}", outcome.stderr);
    }
    // Both clocks take four of the five words that the record of a call can keep.
    let sum = "a=contexts:c_after:$return + $arg[0] * $arg[1]";
    let outcome =
        tool().run(["profile", "contexts", "-p", &pid, "--metric", "time,cpu", "contexts:c_begins", "--sum", sum]);
    assert!(outcome.assert_code(2).stderr.contains("\"reason\":\"no_sum\""));
    target::assert_clean(target.pid(), &before);
}

/// Compares callers, functions, how they were called and how often, sorted by function and caller.
fn assert_called(outcome: &Outcome, expected: &[(&str, &str, &str, u64)]) {
    let records = outcome.all("context");
    let name = |id: &Value| {
        records.iter().find(|record| record["id"] == *id).map_or("", |r| r["function"].as_str().expect("a name"))
    };
    let mut found: Vec<_> = records
        .iter()
        .map(|record| {
            let kind = record["kind"].as_str().expect("a kind");
            (name(&record["parent"]), name(&record["id"]), kind, number(record, "calls"))
        })
        .filter(|(.., calls)| *calls > 0)
        .collect();
    found.sort_by_key(|(caller, function, ..)| (*function, *caller));
    assert_eq!(found, expected);
    assert_eq!([&outcome.one("contexts")["left"], &outcome.one("contexts")["unseen"]], [0, 0]);
}

/// A function that is called by a jump through a register is below the caller of the one that has jumped, and the answer tells how many such jumps there were.
#[test]
fn jumps_that_cannot_be_followed_are_told() {
    const CALLS: u64 = 100;
    let mut target = Mutatee::start("yields", &[]);
    let pid = target.pid_text();
    let words = ["profile", "contexts", "-p", &pid, "yields:f_from", "yields:f_jumper", "yields:f_there"];
    let mut session = tool().start(words);
    session.wait_for("attached");
    target.ask(&format!("jump {CALLS}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.one("contexts")["left_by_tail_jump"], CALLS, "{}", outcome.one("contexts"));
    let below = |function| ("f_from", function, "call", CALLS);
    assert_called(&outcome, &[("", "f_from", "call", CALLS), below("f_jumper"), below("f_there")]);
}

/// A recursion from one place has equal return addresses, but no tail jumps.
#[test]
fn a_recursion_is_no_tail_jump() {
    let (outcome, _) = profiled(&["--recursion", "full"], "run 4 2000 0");
    assert!(outcome.all("context").iter().all(|record| record["kind"] == "call"));
}

/// All functions of redis: each command that it counts is a call of `call`, below one of `processCommand`.
#[test]
fn commands_of_redis_are_in_their_contexts() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let pid = redis.pid();
    let before = Text::of(pid);
    let earlier = redis.command_calls();
    let all = ["profile", "contexts", "-p", &pid.to_string(), "redis-server:*", "--max-overhead", "10000"];
    let mut session = tool().start(all);
    session.wait_for("attached");
    let commands = scaled(100_000, 1_000_000);
    redis.load(&["-n", &commands.to_string(), "-c", "25", "-P", "16", "-q", "-t", "set,get,lpush,mset"]);
    let served = redis.command_calls() - earlier;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(pid, &before);
    let records = outcome.all("context");
    let by_id: BTreeMap<u64, &Value> = records.iter().map(|record| (number(record, "id"), *record)).collect();
    let is_below = |record: &Value, function: &str| {
        let above = |record: &Value| by_id.get(&record["parent"].as_u64()?).copied();
        std::iter::successors(above(record), |record| above(record)).any(|record| record["function"] == function)
    };
    let calls: Vec<&&Value> = records.iter().filter(|record| record["function"] == "call").collect();
    assert_eq!(calls.iter().map(|record| number(record, "calls")).sum::<u64>(), served);
    assert!(calls.iter().all(|record| is_below(record, "processCommand")));
    let sets = records.iter().filter(|record| record["function"] == "setCommand" && is_below(record, "call"));
    assert_eq!(sets.map(|record| number(record, "calls")).sum::<u64>(), commands);
    let all = outcome.one("contexts");
    assert_eq!([&all["full"], &all["unrecorded"]], [0, 0], "{all}");
}

/// Contexts of a program that has not begun stand in copies, because nothing tells which functions will be busy. A function that has no room there
/// has it in the text.
#[test]
fn functions_without_room_in_a_copy_have_contexts() {
    let program = ingraft_testing::program("tight").expect("gcc");
    let program = program.to_str().expect("a path");
    let all = ["profile", "contexts", "--until-exit", "--recursion", "full", "--max-overhead", "10000"];
    let outcome = tool().run(all.iter().chain(&["tight:t_deep", "tight:t_leaf", "--", program, "200"])).assert_code(0);
    assert_eq!(outcome.all("refused").len(), 0, "{outcome:#?}");
    let calls = |function: &str| -> u64 {
        let of = outcome.all("context").into_iter().filter(|context| context["function"] == function);
        of.map(|context| context["calls"].as_u64().expect("a number")).sum()
    };
    assert_eq!((calls("t_deep"), calls("t_leaf")), (800, 1000));
}
