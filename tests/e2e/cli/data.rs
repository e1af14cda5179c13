//! Tests of metrics that use data of the program (variables, members, memory), compared with what the program itself reports.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, source_directory};

use crate::tool;

fn file() -> String {
    source_directory().join("tests/e2e/mdl/data.mdl").to_str().expect("a path").to_owned()
}

/// Returns the last values of metrics of [`file`], measured while the program obeys commands.
fn values(target: &mut Mutatee, metrics: &[&str], commands: &[&str]) -> BTreeMap<String, i64> {
    let metrics: Vec<String> = metrics.iter().map(|m| format!("data_{m}")).collect();
    let found = values_of(target, &file(), &metrics, commands);
    found.into_iter().map(|(metric, value)| (metric.replace("data_", ""), value)).collect()
}

fn values_of(target: &mut Mutatee, name: &str, metrics: &[String], commands: &[&str]) -> BTreeMap<String, i64> {
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    // The program calls nothing but these functions, so readings of memory exceed the usual limit of the cost.
    let fixed = ["watch", "-p", &pid, "-I", name, "--max-overhead", "100"];
    let mut session = tool().start(fixed.into_iter().chain(metrics.iter().map(String::as_str)));
    session.wait_for("attached");
    for command in commands {
        target.ask(command);
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let last = |metric: &String| {
        let found = outcome.all("sample").into_iter().rfind(|sample| sample["metric"] == *metric);
        let found = found.unwrap_or_else(|| panic!("no sample of {metric}: {outcome:#?}"));
        (metric.clone(), found["value"].as_i64().expect("a number"))
    };
    metrics.iter().map(last).collect()
}

fn refused(target: &Mutatee, metric: &str) -> Outcome {
    let pid = target.pid_text();
    let outcome = tool().run(["watch", "-p", &pid, "-I", &file(), &format!("data_{metric}"), "--for", "1s"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    outcome
}

/// Returns the program's own sums of the members that its calls got.
fn truth(target: &mut Mutatee) -> BTreeMap<String, i64> {
    let reply = target.ask("serve 0");
    let members = ["kind", "depth", "port", "length", "colour", "weight", "second", "history"];
    let value = |name: &&str| ((*name).to_owned(), reply.after(&format!("tally {name}")).parse().expect("a number"));
    members.iter().map(value).collect()
}

const WIDTHS: [&str; 9] = ["g_i8", "g_u8", "g_i16", "g_u16", "g_i32", "g_u32", "g_i64", "waiting", "optind"];

#[test]
fn variables_are_as_wide_as_they_are() {
    for program in ["data", "data-no-pie", "data-without-types"] {
        let mut target = Mutatee::start(program, &[]);
        let expected = [-128, 255, -32768, 65535, i64::from(i32::MIN), i64::from(u32::MAX), i64::MIN, -3, 41];
        let set: Vec<String> = WIDTHS.iter().zip(expected).map(|(name, value)| format!("set {name} {value}")).collect();
        let commands: Vec<&str> = set.iter().map(String::as_str).chain(["serve 1"]).collect();
        let found = values(&mut target, &WIDTHS, &commands);
        // A symbol gives the size of a variable, but not its sign.
        let typed = program != "data-without-types";
        let expected = expected.into_iter().map(|value| match value {
            255 | 65535 | 4294967295 if !typed => -1,
            value => value,
        });
        let expected: BTreeMap<String, i64> = WIDTHS.iter().map(|n| (*n).to_owned()).zip(expected).collect();
        assert_eq!(found, expected, "{program}");
    }
}

#[test]
fn what_a_library_shares_with_the_program_is_the_programs() {
    let mut target = Mutatee::start("data", &[]);
    let metrics = ["optind", "optind_of_libc", "opterr_of_libc", "g_bool", "g_colour", "identifier"];
    let found = values(&mut target, &metrics, &["set optind 1234", "serve 2"]);
    assert_eq!((found["optind"], found["optind_of_libc"]), (1234, 1234));
    assert_eq!(found["opterr_of_libc"], 1, "read through a system call");
    assert_eq!((found["g_bool"], found["g_colour"]), (1, 2));
    assert!((0..1000).contains(&found["identifier"]), "{found:?}");
}

#[test]
fn members_are_what_the_program_has_given() {
    let mut target = Mutatee::start("data", &[]);
    let metrics = [
        "kind",
        "depth",
        "port",
        "length",
        "colour",
        "weight",
        "second",
        "returned",
        "kept",
        "address",
        "history",
        "element",
        "calls",
        "standing_port",
        "request_depth",
        "request_second",
    ];
    let found = values(&mut target, &metrics, &["serve 500"]);
    let truth = truth(&mut target);
    for name in ["kind", "depth", "port", "length", "colour", "weight", "second", "history"] {
        assert_eq!(found[name], truth[name], "{name}");
    }
    assert_eq!(found["returned"], truth["depth"]);
    assert_eq!(found["kept"], truth["second"]);
    assert_eq!(found["address"], truth["colour"], "by its address");
    assert_eq!(found["element"], (0..500).sum::<i64>());
    assert_eq!((found["calls"], found["standing_port"], found["request_depth"]), (500, 99, -7));
    assert_eq!(found["request_second"], 499 * 1_000_003);
}

#[test]
fn the_example_of_the_reference_is_right() {
    let page = std::fs::read_to_string(source_directory().join("docs/mdl.md")).expect("the language reference");
    let metrics = ["my_nested_lengths", "my_waiting"].map(str::to_owned);
    let example =
        page.split("```mdl").filter_map(|rest| rest.split("```").next()).find(|text| text.contains(&metrics[1]));
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), example.expect("the example")).expect("a file");
    let mut target = Mutatee::start("data", &[]);
    let name = file.path().to_str().expect("a path");
    let found = values_of(&mut target, name, &metrics, &["set waiting 12", "serve 500"]);
    let nested: i64 = (0..500).filter(|i| i % 7 - 3 > 1).map(|i| 4_000_000_000 + i).sum();
    assert_eq!((found["my_nested_lengths"], found["my_waiting"]), (nested, 12));
}

#[test]
fn readings_that_find_nothing_are_counted() {
    let mut target = Mutatee::start("data", &[]);
    let metrics = ["data_depth", "reads_failed", "calls_left", "calls_missed"].map(str::to_owned);
    // None of the nine pointers can be read.
    let found = values_of(&mut target, &file(), &metrics, &["serve 7", "wild 50"]);
    let noted = metrics.each_ref().map(|metric| found[metric]);
    assert_eq!(noted[1..], [50 * 9, 0, 0]);
}

#[test]
fn pointers_that_lead_nowhere_are_zero_and_harm_nobody() {
    let mut target = Mutatee::start("data", &[]);
    let metrics = ["second", "depth", "weight", "address", "history", "element", "returned", "kept", "calls"];
    let found = values(&mut target, &metrics, &["wild 50", "churn 20000", "serve 3"]);
    let truth = truth(&mut target);
    // The page that the program maps and unmaps holds zeroes.
    assert_eq!(found["calls"], 50 * 9 + 20000 + 3);
    assert_eq!((found["second"], found["kept"]), (truth["second"], truth["second"]));
    assert_eq!((found["depth"], found["returned"]), (truth["depth"], truth["depth"]));
    assert_eq!((found["weight"], found["history"], found["element"]), (truth["weight"], truth["history"], 3));
    assert_eq!(found["address"], truth["colour"]);
}

#[test]
fn fork_children_read_nothing_and_live() {
    let mut target = Mutatee::start("data", &[]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file());
    let mut session = tool().start(["watch", "-p", &pid, "-I", &name, "data_second", "data_depth"]);
    session.wait_for("attached");
    assert_eq!(target.ask("fork").after("child"), "42");
    target.ask("serve 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let truth = truth(&mut target);
    let last = outcome.all("sample").into_iter().rfind(|sample| sample["metric"] == "data_second");
    assert_eq!(last.expect("a sample")["value"].as_i64(), Some(truth["second"]));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn what_callees_get_and_give_has_members() {
    let mut target = Mutatee::start("data", &[]);
    let found = values(&mut target, &["called", "given"], &["drive 300"]);
    // The program makes the same calls again and reports the sums.
    let reply = target.ask("drive 300");
    let drove: Vec<i64> = reply.after("drove").split(' ').map(|n| n.parse().expect("a number")).collect();
    assert_eq!((found["called"], found["given"]), (drove[0], drove[0] + 300 * drove[1]));
    assert!(refused(&target, "called_anywhere").stderr.contains("does not name whom it calls"));
}

#[test]
fn what_pointers_lead_to_is_set_where_that_is_permitted() {
    let mut target = Mutatee::start("data", &[]);
    let before = Text::of(target.pid());
    for metric in ["writing", "poking"] {
        let _ = refused(&target, metric).assert_error(4, &["--allow-calls"]);
    }
    let (pid, name) = (target.pid_text(), file());
    let metrics = ["data_writing", "data_poking", "writes_failed"];
    let fixed = ["watch", "-p", &pid, "-I", &name, "--max-overhead", "10000", "--allow-calls"];
    let mut session = tool().start(fixed.into_iter().chain(metrics));
    session.wait_for("attached");
    target.ask("serve 300");
    assert_eq!(target.ask("poke 40").after("poked"), format!("{} 7", (0..40).map(|i| i - 5).sum::<i64>()));
    // In each of the nine calls of a round of `wild`, both writes fail. In each round of `poke`, three of the four writes by address fail.
    target.ask("wild 10");
    assert_eq!(target.ask("fork").after("child"), "42", "a child keeps its data");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |metric: &str| crate::library::value(&outcome, metric);
    assert_eq!(metrics.map(last), [300 + 90, 160, 2 * 90 + 3 * 40]);
    let truth = truth(&mut target);
    let sum = |each: fn(i64) -> i64| (0..300).map(each).sum::<i64>();
    assert_eq!((truth["length"], truth["weight"]), (sum(|i| i + 7), sum(|i| 2 - i)));
    assert_eq!(truth["second"], sum(|i| i * 1_000_003), "beside it");
    let found = values(&mut target, &["request_depth"], &["serve 1"]);
    assert_eq!(found["request_depth"], -100);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn setting_what_comes_and_goes_harms_nobody() {
    let mut target = Mutatee::start("data", &[]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file());
    let fixed = ["watch", "-p", &pid, "-I", &name, "--max-overhead", "10000", "--allow-calls", "data_writing"];
    let mut session = tool().start(fixed);
    session.wait_for("attached");
    target.ask("churn 20000");
    target.ask("serve 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(crate::library::value(&outcome, "data_writing"), 20003);
    assert_eq!(truth(&mut target)["length"], 7 + 8 + 9);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn every_thread_has_variables_of_its_own() {
    for program in ["data", "data-no-pie"] {
        let mut target = Mutatee::start(program, &[]);
        let found = values(&mut target, &["own", "own_member", "errno"], &["own 500"]);
        let each = |of: fn(i64) -> i64| (1..=4).map(of).sum::<i64>() * 500;
        assert_eq!((found["own"], found["own_member"]), (each(|k| 1000 * k), each(|k| (k << 40) - 3 * k)), "{program}");
        assert_eq!(found["errno"], each(|k| 7 * k), "{program}");
        let before = Text::of(target.pid());
        let (pid, name) = (target.pid_text(), file());
        let fixed = ["watch", "-p", &pid, "-I", &name, "--max-overhead", "10000", "--allow-calls", "data_own_setting"];
        let mut session = tool().start(fixed);
        session.wait_for("attached");
        let owned = target.ask("own 300").after("owned").to_owned();
        assert_eq!(owned.split(' ').next(), Some((10 * 1000 + 4 * 300 * 2).to_string().as_str()), "{program}");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(crate::library::value(&outcome, "data_own_setting"), 1200);
        target::assert_clean(target.pid(), &before);
    }
}

#[test]
fn memory_of_a_filtered_program_is_refused_and_harms_nobody() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    target.ask("filter");
    let text = "resourceList works is procedure { items { \"work\" }; flavor { unix }; }
        metric read_at { name \"read_at\"; units things; aggregateOperator sum; style EventCounter;
        base is counter { foreach f in works append preInsn f.entry (* read_at += readAddress($arg[0]); *) } }";
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), text).expect("a definition");
    let (pid, name) = (target.pid_text(), file.path().to_str().expect("a path"));
    let outcome = tool().run(["watch", "-p", &pid, "-I", name, "read_at", "--for", "100ms"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("seccomp"), "{outcome:#?}");
    target.ask("work 50").assert_right();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn what_is_no_integer_is_refused_by_name() {
    let target = Mutatee::start("data", &[]);
    let before = Text::of(target.pid());
    for (metric, reason) in [
        ("no_variable", "did you mean `g_i8`"),
        ("no_member", "did you mean `depth`"),
        ("double_variable", "double, not an integer"),
        ("array_variable", "an array, not an integer"),
        ("structure_variable", "struct request, not an integer"),
        ("bit_field", "`level` is a bit field"),
        ("floating_member", "double, not an integer"),
        ("member_of_integer", "has no members"),
        ("no_argument", "does not describe an argument"),
    ] {
        let outcome = refused(&target, metric);
        assert!(outcome.stderr.contains(reason), "{metric}: {outcome:#?}");
    }
    let plain = Mutatee::start("data-without-types", &[]);
    assert!(refused(&plain, "depth").stderr.contains("no debugging information"));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn costs_say_that_memory_is_read() {
    let outcome = tool().run(["check", "--lower", &file()]).assert_code(0);
    let ns = |metric: &str| {
        let found = outcome.all("lowered").into_iter().find(|line| line["metric"] == metric);
        found.and_then(|line| line["pieces"][0]["ns"].as_f64()).unwrap_or_else(|| panic!("{metric}: {outcome:#?}"))
    };
    // A load is one of the cheapest operations; a system call is not.
    assert!(ns("data_g_i32") < 10.0 * ns("data_calls"), "{} {}", ns("data_g_i32"), ns("data_calls"));
    assert!(ns("data_depth") > 10.0 * ns("data_g_i32"), "{} {}", ns("data_depth"), ns("data_g_i32"));
    assert!(ns("data_second") > ns("data_depth"));
}
