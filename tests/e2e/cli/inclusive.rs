//! Inclusive event totals: the events of functions with all that they call, and of single calls, compared with callgrind's.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, have, open_directory, program, skip, wait_until};
use serde_json::Value;

use crate::tool;

/// The functions of the program that `outer` and those below it call.
const FUNCTIONS: [&str; 9] = ["leaf", "both", "fact", "even", "odd", "tail", "pick", "outer", "endless"];

/// Instructions of calls, with those of what the callees call.
#[derive(Default)]
struct Truth {
    /// By function: calls that are not within another call of the same function.
    functions: BTreeMap<String, u64>,
    /// By the address of the call instruction in the file: the number of calls and their instructions.
    sites: BTreeMap<u64, (u64, u64)>,
}

impl Truth {
    /// Runs the program under callgrind.
    fn of(arguments: &[&str]) -> Truth {
        let directory = open_directory();
        let file = directory.path().join("calls");
        let valgrind = Command::new("valgrind")
            .args(["-q", "--tool=callgrind", "--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(valgrind.expect("run valgrind").success());
        let text = std::fs::read_to_string(&file).expect("callgrind's file");
        let (mut truth, mut caller, mut callee) = (Truth::default(), "", "");
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("fn=") {
                caller = name;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name;
            }
            let Some(calls) = line.strip_prefix("calls=") else { continue };
            let calls: u64 = calls.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of calls");
            let mut words = lines.next().expect("the cost of calls").split(' ');
            let at =
                words.next().and_then(|at| u64::from_str_radix(at.strip_prefix("0x")?, 16).ok()).expect("an address");
            let cost: u64 = words.nth(1).and_then(|n| n.parse().ok()).expect("a cost");
            let site = truth.sites.entry(at).or_default();
            site.0 += calls;
            // The name of a call within a call of the same function ends with its depth: `fact'2`.
            let [is_inner, is_in_inner] = [callee, caller].map(|name| name.contains('\''));
            if !is_inner || !is_in_inner {
                site.1 += cost;
            }
            if !is_inner {
                *truth.functions.entry(callee.to_owned()).or_default() += cost;
            }
        }
        truth
    }
}

fn hex(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x")).unwrap_or_else(|| panic!("{value}"));
    u64::from_str_radix(text, 16).expect("a number")
}

/// The inclusive number of a function.
fn inclusive(outcome: &Outcome, function: &str) -> u64 {
    let all = outcome.all("events");
    let found = all.iter().find(|record| record["function"] == function && record["event"] == "instructions");
    let record = found.unwrap_or_else(|| panic!("no {function}: {outcome:?}"));
    record["inclusive"].as_u64().unwrap_or_else(|| panic!("{record}"))
}

/// Sum of the functions' own instructions.
fn own(outcome: &Outcome) -> u64 {
    let all = outcome.all("events");
    all.iter().filter(|record| record["event"] == "instructions").filter_map(|record| record["self"].as_u64()).sum()
}

fn assert_exact(outcome: &Outcome) {
    let inexact = |record: &&Value| record.get("inexact").is_some() || record.get("inclusive_inexact").is_some();
    assert_eq!(outcome.objects.iter().find(inexact), None);
    assert!(!outcome.stderr.contains("not exact"), "{}", outcome.stderr);
}

const INCLUSIVE: [&str; 3] = ["events", "--inclusive", "--sites"];

#[test]
fn inclusive_totals_of_a_program_equal_callgrinds() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("nested").expect("gcc");
    let arguments = [path.to_str().expect("a path"), "500"];
    let truth = Truth::of(&arguments);
    let command = [
        &["profile"],
        &INCLUSIVE[..],
        &["--max-overhead", "1000", "--until-exit", "--own-status"],
        &FUNCTIONS,
        &["--"],
        &arguments,
    ]
    .concat();
    let outcome = tool().run(command).assert_code(0);
    assert_exact(&outcome);
    for function in FUNCTIONS.iter().filter(|name| **name != "endless") {
        assert_eq!(inclusive(&outcome, function), truth.functions[*function], "{function}");
    }
    assert_eq!(inclusive(&outcome, "endless"), 0);
    let (mut compared, mut recursive) = (0, 0);
    for record in outcome.all("call_site") {
        assert_eq!(record["event"], "instructions");
        let (calls, total) = truth.sites[&(hex(&record["offset"]) + hex(&record["call_site"]))];
        assert_eq!(record["calls"], calls, "{record}");
        if record["function"] == record["callee"] {
            recursive += 1;
            let bound = inclusive(&outcome, "fact");
            assert!(record["inclusive"].as_u64().is_some_and(|n| n > 0 && n < bound), "{record}");
        } else {
            compared += 1;
            assert_eq!(record["inclusive"], total, "{record}");
        }
    }
    assert!(compared >= 11, "{compared} calls");
    assert_eq!(recursive, 2);
    // The two calls in `both` are of one function, and have different costs.
    let of_both: Vec<&Value> = outcome.all("call_site").into_iter().filter(|site| site["function"] == "both").collect();
    assert!(of_both.iter().all(|site| site["callee"] == "leaf"), "{of_both:?}");
    assert_eq!(of_both.len(), 2);
}

#[test]
fn inclusive_totals_of_threads_are_added_up() {
    let mut target = Mutatee::start("nested", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let go = |target: &mut Mutatee, command: &str| {
        let session = tool.measure("profile", target.pid(), &[&INCLUSIVE[..], &FUNCTIONS].concat());
        target.ask(command);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_exact(&outcome);
        outcome
    };
    let one = go(&mut target, "go 100");
    assert_eq!(inclusive(&one, "outer"), own(&one));
    let many = go(&mut target, "crew 8 100");
    for function in FUNCTIONS {
        assert_eq!(inclusive(&many, function), 8 * inclusive(&one, function), "{function}");
    }
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn calls_in_progress_have_the_events_since_the_beginning() {
    let mut target = Mutatee::start("nested", &[]);
    let before = Text::of(target.pid());
    target.ask("circle");
    let tool = tool();
    let mut compared = 0;
    for _ in 0..20 {
        let session = tool.measure("profile", target.pid(), &[&INCLUSIVE[..], &FUNCTIONS].concat());
        let first = target.ask("rounds").number("rounds");
        wait_until("some rounds are over", || target.ask("rounds").number("rounds") > first + 5);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        // A thread may be held where it is not known what it has counted, and the answer says so.
        if outcome.objects.iter().any(|record| record.get("inclusive_inexact").is_some()) {
            continue;
        }
        // All that the thread does is within one call of `endless`, which does not end. The counts of blocks do not know where in its block a
        // thread is.
        let (all, sum) = (inclusive(&outcome, "endless"), own(&outcome));
        assert!(all.abs_diff(sum) < 60, "{all} {sum}");
        assert!(inclusive(&outcome, "outer") < all);
        compared += 1;
        if compared == 4 {
            break;
        }
    }
    assert!(compared > 0, "every total was marked as not exact");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn calls_that_are_left_are_told() {
    let mut target = Mutatee::start("nested", &[]);
    let before = Text::of(target.pid());
    let functions = ["leaf", "leaper", "landed"];
    let session = tool().measure("profile", target.pid(), &[&INCLUSIVE[..], &functions].concat());
    target.ask("leap 6");
    target.ask("leap 7");
    target.ask("leap 9");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(inclusive(&outcome, "landed"), own(&outcome));
    let inexact = |function: &str| {
        let all = outcome.all("events");
        let of = all.iter().find(|record| record["function"] == function && record["event"] == "instructions");
        of.and_then(|record| Some(record.get("inclusive_inexact")?.as_str()?.to_owned()))
    };
    assert_eq!((inexact("landed"), inexact("leaf")), (None, None));
    let why = inexact("leaper").expect("a reason");
    assert!(why.contains("2 calls were left"), "{why}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn other_profiles_have_no_inclusive_totals() {
    let mut target = Mutatee::start("nested", &[]);
    let pid = target.pid_text();
    for (arguments, words) in [
        (&["blocks", "--inclusive"][..], "--inclusive belongs to events"),
        (&["coverage", "--inclusive"], "--inclusive belongs to events"),
        (&["events", "--sites"], "--sites needs --inclusive"),
        (&["events", "--inclusive=lines"], "lines"),
    ] {
        let command = [&["profile"], arguments, &["-p", &pid, "leaf"]].concat();
        let _ = tool().run(command).assert_error(2, &[words]);
    }
    let session = tool().measure("profile", target.pid(), &["events", "leaf", "both"]);
    target.ask("go 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("events").iter().all(|record| record["inclusive"].is_null()));
    assert_eq!(outcome.all("call_site").len(), 0);
    let session = tool().measure("profile", target.pid(), &["events", "--inclusive=memory-reads", "leaf", "both"]);
    target.ask("go 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for record in outcome.all("events") {
        assert_eq!(record["inclusive"].is_u64(), record["event"] == "memory-reads", "{record}");
    }
    let of = |function: &str, key: &str| -> u64 {
        let all = outcome.all("events");
        let found = all.iter().find(|record| record["function"] == function && record["event"] == "memory-reads");
        found.and_then(|record| record[key].as_u64()).expect("a number")
    };
    assert_eq!(of("leaf", "inclusive"), of("leaf", "self"));
    assert!(of("both", "inclusive") > of("both", "self"));
    assert!(target.end().success());
}

/// The numbers of a function and all below it, from the contexts of its outermost calls.
fn below_all(contexts: &[&Value], function: &str) -> u64 {
    let record = |id: &Value| contexts.iter().find(|record| record["id"] == *id);
    let mut sum = 0;
    for context in contexts {
        let mut at = Some(context);
        while let Some(above) = at {
            if above["function"] == function {
                sum += context["metrics"]["instructions"].as_u64().expect("a number");
                break;
            }
            at = record(&above["parent"]);
        }
    }
    sum
}

#[test]
fn instructions_of_contexts_equal_callgrinds() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("nested").expect("gcc");
    let arguments = [path.to_str().expect("a path"), "500"];
    let truth = Truth::of(&arguments);
    let command = [
        &["profile", "contexts", "--metric", "instructions,reads"][..],
        &["--max-overhead", "10000", "--until-exit", "--own-status"],
        &FUNCTIONS,
        &["--"],
        &arguments,
    ]
    .concat();
    let outcome = tool().run(command).assert_code(0);
    assert_eq!(outcome.all("refused").len(), 0);
    let contexts = outcome.all("context");
    // All that `even` does when `odd` calls it again is in the context of `even`, which is above.
    for function in FUNCTIONS.iter().filter(|name| !["endless", "odd"].contains(name)) {
        assert_eq!(below_all(&contexts, function), truth.functions[*function], "{function}");
    }
    assert!(contexts.iter().any(|record| record["kind"] == "recursion"), "{contexts:?}");
    assert!(contexts.iter().all(|record| record["how"]["memory-reads"] == "counted"), "{contexts:?}");
}
