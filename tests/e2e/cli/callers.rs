//! Tests of callers, and of calls that are told apart by values: the program keeps its own numbers, and objdump knows its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, have, program, scaled, skip};
use serde_json::Value;

use crate::tool;

/// The numbers behind a word in an answer, by the word that follows it.
fn told(reply: &Reply, what: &str) -> BTreeMap<String, i64> {
    let lines = reply.lines.iter().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
    let pair =
        |line: &str| line.split_once(' ').map(|(name, number)| (name.to_owned(), number.parse().expect("a number")));
    lines.filter_map(pair).collect()
}

fn number(record: &Value, key: &str) -> i64 {
    record[key].as_i64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The values of keyed records by key, and the value of the others.
fn keyed(outcome: &Outcome, expr: &str) -> (BTreeMap<String, i64>, i64) {
    let (others, keys): (Vec<_>, Vec<_>) =
        outcome.all("keyed").into_iter().partition(|record| record["others"] == true);
    let key = |record: &Value| record["keys"][expr].to_string().trim_matches('"').to_owned();
    let keys = keys.into_iter().map(|record| (key(record), number(record, "value"))).collect();
    (keys, others.iter().map(|record| number(record, "value")).sum())
}

/// Runs a command on the program while it takes turns, and returns what both say.
fn measured(command: &[&str]) -> (Outcome, Reply) {
    let mut target = Mutatee::start("callers", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let (first, rest) = command.split_first().expect("a command");
    let mut session = tool().start([*first, "-p", &pid, "--max-overhead", "10000"].iter().chain(rest));
    session.wait_for("attached");
    let truth = target.ask(&format!("run {}", scaled(3000, 100_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

/// Offsets in their functions of all calls of a function in a program, by the calling function, as objdump prints them.
fn call_sites(path: &str, callee: &str) -> BTreeMap<String, BTreeSet<String>> {
    let text = Command::new("objdump").args(["-d", "--no-show-raw-insn", path]).output().expect("run objdump");
    let hex = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut function = (0, String::new());
    for line in String::from_utf8_lossy(&text.stdout).lines() {
        if let Some((at, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            function = (hex(at).expect("an address"), name.to_owned());
        } else if let Some((at, code)) = line.split_once(':')
            && code.contains("call")
            && (code.ends_with(&format!("<{callee}>")) || code.contains('*'))
            && let Some(at) = hex(at)
        {
            found.entry(function.1.clone()).or_default().insert(format!("{:#x}", at - function.0));
        }
    }
    found
}

#[test]
fn callers_are_told_by_function_call_site_and_line() {
    let (outcome, truth) = measured(&["callers", "leaf"]);
    let records = outcome.all("caller");
    let mut found: BTreeMap<String, i64> = BTreeMap::new();
    for record in &records {
        *found.entry(record["caller"].as_str().expect("a caller").to_owned()).or_default() += number(record, "calls");
    }
    assert_eq!(found, told(&truth, "calls"), "{outcome:#?}");
    assert_eq!(found.values().sum::<i64>(), told(&truth, "kind").values().sum::<i64>());
    let path = program("callers").expect("g++");
    let source = std::fs::read_to_string(ingraft_testing::source_directory().join("tests/mutatees/callers.cpp"));
    let source = source.expect("the source");
    let mut sites: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for record in &records {
        let caller = record["caller"].as_str().expect("a caller").to_owned();
        sites.entry(caller.clone()).or_default().insert(record["call_site"].as_str().expect("an offset").to_owned());
        assert_eq!(record["caller_module"], "callers");
        let (file, line) = record["source"].as_str().and_then(|line| line.rsplit_once(':')).expect("a line");
        assert!(file.ends_with("callers.cpp"), "{record}");
        let line = source.lines().nth(line.parse::<usize>().expect("a number") - 1).expect("a line of the source");
        let callee = if caller == "over" { "jumps(" } else { "(" };
        assert!(line.contains(callee) && line.contains("return") || line.contains("leaf("), "{record}: {line}");
    }
    if !have("objdump") {
        skip!("objdump is not installed");
    }
    let path = path.to_str().expect("a path");
    let (mut known, jumped) = (call_sites(path, "leaf"), call_sites(path, "jumps"));
    known.insert("over".to_owned(), jumped["over"].clone());
    for (caller, offsets) in sites {
        assert!(offsets.is_subset(&known[&caller]), "{caller}: {offsets:?}, but objdump has {known:?}");
    }
}

#[test]
fn conditions_keys_sums_and_distributions_are_those_of_the_program() {
    let (outcome, truth) = measured(&["count", "leaf", "--by", "$arg[0]"]);
    assert_eq!(keyed(&outcome, "$arg[0]"), (told(&truth, "kind"), 0));

    let (outcome, truth) = measured(&["count", "leaf", "--by", "$arg[0]", "--sum", "$arg[1]", "--top", "3"]);
    let mut sizes: Vec<i64> = told(&truth, "size").into_values().collect();
    sizes.sort_unstable();
    let (keys, others) = keyed(&outcome, "$arg[0]");
    let mut largest: Vec<i64> = keys.into_values().collect();
    largest.sort_unstable();
    assert_eq!((largest.as_slice(), others), (&sizes[5..], sizes[..5].iter().sum()));

    let (outcome, truth) = measured(&["count", "leaf", "--if", "$arg[1] > 100"]);
    let large: i64 = truth.number("large") as i64;
    assert_eq!(number(outcome.all("count")[0], "calls"), large);
    assert_eq!(outcome.all("count")[0]["if"], "$arg[1] > 100");

    // The result is the second argument less 50, and code about it runs at the end.
    let (outcome, truth) = measured(&["count", "leaf", "--if", "$return > 50", "--by", "caller"]);
    let (keys, _) = keyed(&outcome, "$caller");
    assert_eq!(keys.values().sum::<i64>(), truth.number("large") as i64);
    assert!(keys.keys().all(|key| key.starts_with("once+") || key.starts_with("twice+")), "{keys:?}");

    let (outcome, truth) = measured(&["hist", "leaf", "$arg[1]"]);
    let record = outcome.all("hist")[0];
    let calls: i64 = told(&truth, "kind").values().sum();
    assert_eq!((number(record, "calls"), number(record, "sum")), (calls, told(&truth, "size").values().sum()));
    let buckets = record["buckets"].as_array().expect("buckets");
    assert_eq!(buckets.iter().map(|bucket| bucket[2].as_i64().expect("a number")).sum::<i64>(), calls);

    let (outcome, truth) = measured(&["latency", "leaf", "--by", "$arg[0]"]);
    let timed: BTreeMap<String, i64> = outcome
        .all("keyed")
        .iter()
        .map(|record| (record["keys"]["$arg[0]"].to_string(), number(record, "calls")))
        .collect();
    assert_eq!(timed, told(&truth, "kind"));
    assert!(outcome.all("keyed").iter().all(|record| number(record, "value") > 0));

    let (outcome, truth) = measured(&["latency", "leaf", "--if", "$arg[1] > 100"]);
    let seen = outcome.latency("leaf");
    assert_eq!((seen.calls, seen.timed), (told(&truth, "kind").values().sum::<i64>() as u64, truth.number("large")));
}

#[test]
fn arguments_have_the_names_and_types_of_the_debugging_information() {
    let (outcome, truth) = measured(&["count", "handle", "--by", "request->method"]);
    let calls: i64 = scaled(3000, 100_000) as i64;
    let (methods, _) = keyed(&outcome, "request->method");
    assert_eq!(methods, (0..4).map(|method| (method.to_string(), calls / 4)).collect());
    assert!(truth.number("length") > 0);

    let (outcome, truth) = measured(&["count", "handle", "--sum", "request->body->length + flags"]);
    assert_eq!(number(outcome.all("keyed")[0], "value"), truth.number("length") as i64);

    let (outcome, _) = measured(&["count", "handle", "--if", "flags == 1 && request->method == 3"]);
    assert_eq!(number(outcome.all("count")[0], "calls"), calls / 4);

    let target = Mutatee::start("callers", &[]);
    let pid = target.pid_text();
    let outcome = tool().run(["count", "-p", &pid, "handle", "--by", "reqest->method"]);
    let _ = outcome.assert_error(3, &["it has no argument `reqest`", "did you mean `request`?"]);
}

#[test]
fn the_return_address_of_a_return_probe_is_shown_as_such() {
    let mut target = Mutatee::start("callers", &[]);
    let pid = target.pid_text();
    let listed = tool().run(["functions", "-p", &pid, "callers:jumps"]).assert_code(0);
    let offset = listed.one("function")["offset"].as_str().expect("an offset").to_owned();
    let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).expect("a number");
    let path = program("callers").expect("g++");
    let maps = target::maps(target.pid());
    let own: Vec<_> = maps.iter().filter(|m| m.name == path.to_str().expect("a path")).collect();
    let at = own[0].start + offset;
    let text = own.iter().find(|m| (m.start..m.end).contains(&at)).expect("mapped");
    let mut setter = Mutatee::start("probes", &[&pid]);
    let place = format!("return {} {}", text.name, at - text.start + text.offset);
    // The function ends in a jump to the measured one, which so returns to the kernel's code.
    if setter.ask(&place).number("failed") != 0 {
        skip!("uprobes cannot be set here");
    }
    let mut session = tool().start(["callers", "-p", &pid, "--max-overhead", "10000", "leaf"]);
    session.wait_for("attached");
    let truth = told(&target.ask("run 1000"), "calls");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    setter.ask("drop");
    let all = outcome.all("caller");
    let probe =
        all.iter().find(|record| record["caller_module"] == "[uprobes]").unwrap_or_else(|| panic!("{outcome:#?}"));
    assert_eq!((&probe["caller"], &probe["source"]), (&Value::from("return probe"), &Value::Null), "{probe}");
    assert_eq!(number(probe, "calls"), truth["over"], "{outcome:#?}");
    target.ask("run 10");
}

#[test]
fn the_callers_of_functions_of_a_server_add_up_to_its_calls() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let functions = [
        "call",
        "lookupKey",
        "dictFind",
        "dictAddRaw",
        "addReply",
        "createStringObject",
        "decrRefCount",
        "incrRefCount",
        "sdsfree",
        "zmalloc",
        "zfree",
        "dictSdsHash",
        "processCommand",
        "prepareClientToWrite",
        "setKey",
        "signalModifiedKey",
        "notifyKeyspaceEvent",
        "readQueryFromClient",
        "writeToClient",
        "processInputBuffer",
    ];
    let definition = tool().run(["callers", "--show-mdl", "call"]).assert_code(0).other.join("\n");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("callers.mdl");
    std::fs::write(&file, definition).expect("write the definition");
    let pid = redis.pid();
    let before = Text::of(pid);
    let metrics = ["calls", "calls by $caller"];
    let pairs: Vec<String> = metrics
        .iter()
        .flat_map(|metric| functions.iter().map(move |function| format!("{metric}@/Code/redis-server/{function}")))
        .collect();
    let pid_text = pid.to_string();
    let flags = ["watch", "-p", &pid_text, "--max-overhead", "10000", "-I", file.to_str().expect("a path")];
    let mut session = tool().start(flags.into_iter().chain(pairs.iter().map(String::as_str)));
    session.wait_for("attached");
    for n in 0..scaled(200, 20_000) {
        redis.ask(&[&format!("set key{n} value"), &format!("get key{n}"), &format!("del key{}", n / 2)]);
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let mut called = 0;
    for function in functions {
        let last = |metric: &str| {
            let focus = format!("/Code/redis-server/{function}");
            let is_it = |s: &&Value| s["metric"] == metric && s["focus"] == *focus;
            *outcome.all("sample").iter().rfind(|s| is_it(s)).unwrap_or_else(|| panic!("no {metric} of {function}"))
        };
        let (counted, callers) = (last("calls"), last("calls by $caller"));
        let keys = callers["keys"].as_array().expect("keys");
        let sum: i64 = keys.iter().map(|key| number(key, "value")).sum();
        assert_eq!(sum + number(callers, "others"), number(counted, "value"), "{function}: {callers}");
        assert_eq!(number(callers, "others"), 0, "{function}");
        assert!(keys.iter().all(|key| key["name"].as_str().is_some_and(|name| name.contains('+'))), "{callers}");
        called += i64::from(!keys.is_empty());
    }
    assert!(called > 15, "only {called} of the functions were called");
    target::assert_clean(pid, &before);
}

#[test]
fn wrong_expressions_are_told_and_nothing_is_touched() {
    let mut target = Mutatee::start("callers", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let run = |arguments: &[&str]| tool().run([arguments[0], "-p", &pid].iter().chain(&arguments[1..]));
    let _ = run(&["count", "leaf", "--by", "$argg"]).assert_error(2, &["the expression cannot be used"]);
    let _ = run(&["count", "leaf", "--by", "$arg[0],"]).assert_code(2);
    let _ = run(&["count", "--by", "$arg[0]"]).assert_error(2, &["no function is named"]);
    let _ = run(&["hist", "leaf", "$arg["]).assert_error(2, &["the expression cannot be used"]);
    let shown = tool().run(["callers", "--show-mdl", "leaf"]).assert_code(0);
    assert!(shown.other.iter().any(|line| line.contains("[$caller]++")), "{shown:?}");
    target.ask("run 1");
    target::assert_clean(target.pid(), &before);
}
