//! Tests of `ingraft print`: the program knows its calls, and every one of them is printed or told.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled, skip};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::tool;

/// The number behind a word in an answer.
fn told(reply: &Reply, what: &str) -> i64 {
    let line = reply.lines.iter().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {what}")).parse().expect("a number")
}

fn number(record: &Value, key: &str) -> i64 {
    record[key].as_i64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// Checks that the numbers of calls add up, and returns them.
fn numbers(outcome: &Outcome) -> BTreeMap<&'static str, i64> {
    let record = outcome.one("calls");
    let numbers: BTreeMap<_, _> = ["calls", "printed", "unmet", "skipped", "lost", "left"]
        .into_iter()
        .map(|key| (key, number(record, key)))
        .collect();
    let sum: i64 = numbers.iter().filter(|(key, _)| **key != "calls").map(|(_, number)| number).sum();
    assert_eq!(sum, numbers["calls"], "{numbers:?}");
    assert_eq!(numbers["printed"], outcome.all("call").len() as i64);
    numbers
}

/// Runs `ingraft print … work` on the program while it makes calls in some threads, and returns what both say.
fn printed(arguments: &[&str], calls: u64, threads: u32) -> (Outcome, Reply) {
    let mut target = Mutatee::start("prints", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let all = ["print", "-p", &pid, "--max-overhead", "10000", "work"];
    let mut session = tool().start(all.iter().chain(arguments));
    session.wait_for("attached");
    let truth = target.ask(&format!("run {calls} {threads}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

const EXPRS: [&str; 6] =
    ["$arg[0]", "str(name)", "request->number", "str(request->path)", "request->inner.level", "str($arg[1], 4)"];

#[test]
fn every_call_is_a_line_with_its_values() {
    let threads = 3;
    let (outcome, truth) = printed(&[&EXPRS[..], &["--limit", "none", "--buffer", "65536"]].concat(), 2000, threads);
    let numbers = numbers(&outcome);
    assert_eq!(numbers["calls"], told(&truth, "calls"));
    assert_eq!(numbers["left"], told(&truth, "left"));
    assert_eq!([numbers["lost"], numbers["skipped"], numbers["unmet"]], [0; 3]);
    let mut seen: BTreeMap<i64, BTreeMap<i64, u32>> = BTreeMap::new();
    for call in outcome.all("call") {
        let values = &call["values"];
        let n = number(values, "$arg[0]");
        *seen.entry(number(call, "tid")).or_default().entry(n).or_default() += 1;
        let (name, path, level) = match n < 0 {
            true => ("inner".to_owned(), "/nested", 9),
            false => {
                let long = "/a/path/that/is/longer/than/the/sixty-four/bytes/that/are/read/of";
                (format!("name-{}", n % 1000), ["/index.html", "", &long[..64]][n as usize % 3], n % 5 - 2)
            }
        };
        assert_eq!(values["str(name)"], name);
        assert_eq!(values["str($arg[1], 4)"], name[..4]);
        assert_eq!(values["str(request->path)"], path);
        assert_eq!(number(values, "request->number"), n);
        assert_eq!(number(values, "request->inner.level"), level);
        let is_long = n >= 0 && n % 3 == 2;
        assert_eq!(call.get("cut").is_some(), is_long, "{call}");
        // The outer one of two calls subtracts 1 from the result of the inner one.
        let result = match n > 0 && n % 100 == 42 {
            true => -n * 3 + 9 + i64::from(b'i') - 1,
            false => n * 3 + level + i64::from(name.as_bytes()[0]),
        };
        assert_eq!(number(call, "return"), result, "{call}");
        assert!(number(call, "elapsed_ns") > 0);
        let caller = call["caller"].as_str().expect("a caller");
        assert!(caller.starts_with(if n < 0 { "work+" } else { "thread+" }), "{call}");
        assert_eq!((call["function"].as_str(), call["module"].as_str()), (Some("work"), Some("prints")));
    }
    assert_eq!(seen.len(), threads as usize);
    for of_thread in seen.values() {
        let expected = (0..2000).filter(|n| n % 100 != 7).chain((0..2000).filter(|n| n % 100 == 42).map(|n| -n));
        let expected: BTreeMap<i64, u32> = expected.map(|n| (n, 1)).collect();
        assert_eq!(*of_thread, expected);
    }
    let times: Vec<i64> = outcome.all("call").iter().map(|call| number(call, "time_ns")).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos() as i64;
    assert!(times.iter().all(|time| (now - 600_000_000_000..=now).contains(time)));
}

#[test]
fn slow_calls_are_printed_and_others_counted() {
    let (outcome, truth) = printed(&["str(name)", "--slower", "2900us"], 5000, 2);
    let numbers = numbers(&outcome);
    assert_eq!(numbers["calls"], told(&truth, "calls"));
    assert_eq!(numbers["left"], told(&truth, "left"));
    // A thread may wait for a processor in any call, so others may be slow too.
    assert!(numbers["printed"] >= told(&truth, "slow"), "{numbers:?}");
    let names: Vec<&str> = outcome.all("call").iter().filter_map(|call| call["values"]["str(name)"].as_str()).collect();
    assert!(names.iter().filter(|name| **name == "name-5").count() >= 10, "{names:?}");
    assert!(outcome.all("call").iter().all(|call| number(call, "elapsed_ns") > 2_900_000));
}

#[test]
fn of_many_calls_each_one_is_told() {
    let calls = scaled(200_000, 10_000_000);
    let (outcome, truth) = printed(&["$arg[0]", "--entry", "--if", "$arg[0] % 2 == 0", "--limit", "50/s"], calls, 2);
    let numbers = numbers(&outcome);
    assert_eq!(numbers["calls"], told(&truth, "calls"));
    assert_eq!(numbers["unmet"], told(&truth, "calls") - told(&truth, "even"));
    assert_eq!([numbers["left"], numbers["lost"]], [0, 0]);
    assert!(numbers["printed"] > 0 && numbers["skipped"] > 0, "{numbers:?}");
    for call in outcome.all("call") {
        assert_eq!(number(&call["values"], "$arg[0]") % 2, 0);
        assert!(call["return"].is_null() && call["elapsed_ns"].is_null());
    }
}

#[test]
fn a_reader_that_sleeps_loses_lines_and_tells_it() {
    let mut target = Mutatee::start("prints", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let arguments = ["print", "-p", &pid, "--max-overhead", "10000", "work", "str(name)", "--limit", "none"];
    let mut session = tool().start(arguments.iter().chain(&["--buffer", "4"]));
    session.wait_for("attached");
    session.signal(Signal::SIGSTOP);
    let truth = target.ask("run 20000 2");
    session.signal(Signal::SIGCONT);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let numbers = numbers(&outcome);
    assert_eq!(numbers["calls"], told(&truth, "calls"));
    assert_eq!(numbers["left"], told(&truth, "left"));
    assert!(numbers["lost"] > 30_000 && numbers["printed"] > 0, "{numbers:?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn nothing_is_left_of_a_command_that_was_killed() {
    let mut target = Mutatee::start("prints", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let tool = tool();
    let mut session = tool.start(["print", "-p", &pid, "work", "str(name)", "--limit", "none"]);
    session.wait_for("attached");
    target.ask("run 1000 2");
    session.wait_for("call");
    session.kill();
    let truth = target.ask("run 1000 2");
    assert_eq!(told(&truth, "calls"), 4040);
    let _ = tool.detach(target.pid()).assert_code(0);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn commands_of_redis_are_printed() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let before = Text::of(redis.pid());
    let pid = redis.pid().to_string();
    let values = ["str(cmd->fullname)", "c->argc", "str(cmd->declared_name)"];
    let has_debug = tool().run(["print", "-p", &pid, "call", values[1], "--for", "100ms"]).status.success();
    let exprs: &[&str] = if has_debug { &values[1..2] } else { &["$arg[1]"] };
    let arguments = ["print", "-p", &pid, "--max-overhead", "10000", "--limit", "none", "call"];
    let mut session = tool().start(arguments.iter().chain(exprs));
    session.wait_for("attached");
    let calls = redis.command_calls();
    for n in 0..500 {
        redis.ask(&[&format!("set key{n} value"), &format!("get key{n}")]);
    }
    let calls = redis.command_calls() - calls;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let numbers = numbers(&outcome);
    // The command that asks for the number is counted once by itself.
    assert!((0..=2).contains(&(numbers["calls"] - calls as i64)), "{numbers:?} {calls}");
    assert_eq!(numbers["printed"] + numbers["left"], numbers["calls"]);
    assert!(numbers["printed"] >= 1000);
    target::assert_clean(redis.pid(), &before);
}

#[test]
fn what_cannot_be_printed_is_refused_in_plain_words() {
    let target = Mutatee::start("prints", &[]);
    let pid = target.pid_text();
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        tool().run(["print", "-p", &pid].iter().chain(arguments)).assert_error(code, words)
    };
    refused(&["work", "$arg[0"], 2, &["expression"]);
    refused(&["work", "str($arg[0], 1, 2)"], 2, &["expression"]);
    refused(&["work", "no_such_argument"], 3, &["no_such_argument"]);
    refused(&["work", "--entry", "--if", "$return == 0"], 2, &["expression"]);
    refused(&["no_such_function"], 3, &["no function matches"]);
    let many = ["work", "str($arg[1])", "str($arg[1])", "str($arg[1])", "str($arg[1])", "str($arg[1])", "str($arg[1])"];
    refused(&many, 2, &["too long"]);
    let wrong = tool().run(["print", "-p", &pid, "work", "--limit", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
    let shown = tool().run(["print", "--show-mdl", "work", "str($arg[1])", "--slower", "1ms"]).assert_code(0);
    let shown = shown.other.join("\n");
    assert!(shown.contains("print(str($arg[1]), $caller, $return, $elapsed);"), "{shown}");
    assert!(shown.contains("if ($elapsed > 1000000)"), "{shown}");
}

#[test]
fn without_expressions_the_arguments_are_printed() {
    let (outcome, _) = printed(&["--limit", "none"], 200, 1);
    for call in outcome.all("call") {
        let values = call["values"].as_object().expect("values");
        assert_eq!(values.keys().collect::<Vec<_>>(), ["name", "number", "request"], "{call}");
        let n = number(&call["values"], "number");
        assert_eq!(values["name"], if n < 0 { "inner".to_owned() } else { format!("name-{n}") });
    }
    let (outcome, _) = printed(&["--limit", "none", "--entry"], 200, 1);
    let numbers = numbers(&outcome);
    assert_eq!((numbers["printed"], numbers["left"]), (202, 0));
}

#[test]
fn functions_that_return_nothing_have_no_result() {
    let mut target = Mutatee::start("prints", &[]);
    let pid = target.pid_text();
    for (function, has_result) in [("note", false), ("work", true)] {
        let mut session = tool().start(["print", "-p", &pid, function, "number", "--limit", "none"]);
        session.wait_for("attached");
        target.ask("run 40 1");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let results: Vec<&Value> = outcome.all("call").into_iter().map(|call| &call["return"]).collect();
        assert!(results.len() > 30 && results.iter().all(|result| result.is_number() == has_result), "{results:?}");
        assert!(has_result || results.iter().all(|result| result.is_null()), "{results:?}");
    }
}

#[test]
fn printing_that_costs_too_much_is_refused_with_the_figure() {
    let mut target = Mutatee::start("prints", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    // The answer comes when the calls are over, and nobody waits for it.
    target.tell("run 4000000000 1");
    let arguments = ["print", "-p", &pid, "work", "--slower", "1s", "--max-overhead", "0.01", "--for", "20s"];
    let outcome = tool().run(arguments);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains('%'), "{}", outcome.stderr);
    target::assert_clean(target.pid(), &before);
}
