//! Counts of edges and loops, compared with the program's own and with counts of blocks.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, open_directory, program};
use serde_json::Value;

use crate::tool;

/// Counts of loops, by function and offset of the header.
fn loops(outcome: &Outcome) -> BTreeMap<(String, String), u64> {
    counts(outcome, "loop")
}

/// Counts of blocks or loops, by function and the part's offset in it.
fn counts(outcome: &Outcome, key: &str) -> BTreeMap<(String, String), u64> {
    let text = |record: &Value, key: &str| record[key].as_str().map(str::to_owned);
    let count = |record: &&Value| {
        let part = (text(record, "function")?, text(record, key)?);
        Some((part, record["calls"].as_u64()?))
    };
    outcome.all("count").iter().filter_map(count).collect()
}

#[test]
fn iterations_of_a_loop() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["leaf#loop@0x11", "around#loop@*"]);
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    target.ask("around 70");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of = |function: &str, header: &str| loops(&outcome)[&(function.to_owned(), header.to_owned())];
    assert_eq!((of("leaf", "0x11"), of("around", "0x9")), (3 * 4000, 70));
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn iterations_are_arrivals_at_headers() {
    let path = program("determ").expect("gcc");
    let path = path.to_str().expect("a path");
    let run = |pattern: &str| tool().run(["count", "--until-exit", pattern, "--", path, "2000"]).assert_code(0);
    let (loops, blocks) = (run("determ:*#loop@*"), run("determ:*#*"));
    let (loops, blocks) = (self::loops(&loops), counts(&blocks, "block"));
    assert!(loops.values().any(|count| *count > 1000), "{loops:?}");
    for (part, count) in loops {
        assert_eq!(blocks.get(&part), Some(&count), "{part:?}");
    }
}

#[test]
fn edges_and_loops_that_do_not_exist_are_errors_that_name_others() {
    let target = Mutatee::start("blocks", &[]);
    for (pattern, words) in [
        ("leaf#0x0->0x1b", ["#0x0->0x1b is no edge of the function", "from #0x0 lead #0x0->0x11"]),
        ("leaf#0x11->0x12", ["no block begins at #0x12", "blocks begin at #0x0, #0x11, #0x1b"]),
        ("leaf#0x1b->0x11", ["#0x1b->0x11 is no edge of the function", "no edge leads from #0x1b to another block"]),
        ("leaf#loop@0x0", ["#loop@0x0 is no loop of the function", "its loops are #loop@0x11"]),
        ("step#loop@0x0", ["#loop@0x0 is no loop of the function", "the function has no loop"]),
        ("step#loop@*", ["no function that matches `step#loop@*` has a loop", "count the function itself"]),
        ("step#*->*", ["no function that matches `step#*->*` has an edge between blocks", "count the function itself"]),
    ] {
        let arguments = ["count", "-p", &target.pid_text(), pattern];
        let _ = tool().run(arguments).assert_error(3, &words);
    }
    assert!(target.end().success());
}

#[test]
fn a_loop_that_control_enters_without_an_edge_is_refused_by_that_reason() {
    let target = Mutatee::start("blocks", &[]);
    let arguments = ["watch", "-p", &target.pid_text(), "executions@/Code/blocks/spin/#loop@0x0"];
    let _ = tool().run(arguments).assert_error(
        3,
        &["`spin#loop@0x0` cannot be instrumented: control enters the loop at +0x0 other than along an edge"],
    );
    let arguments = ["watch", "-p", &target.pid_text(), "iterations@/Code/blocks/leaf/#0x11"];
    let _ = tool().run(arguments).assert_error(2, &["the metric `iterations`: this is not a loop"]);
    assert!(target.end().success());
}

#[test]
fn beginnings_of_all_iterations_of_a_function_in_a_metric() {
    let directory = open_directory();
    let file = directory.path().join("rounds.mdl");
    let text = "resourceList measured is procedure { items { \"around\", \"leaf\" }; flavor { unix }; }\n\
                // Iterations of two functions.\n\
                metric rounds { name \"rounds\"; units rounds; aggregateOperator sum; style EventCounter;\n\
                base is counter { foreach f in measured foreach l in f.loops\n\
                append preInsn l.start_iter (* rounds++; *) } }\n";
    std::fs::write(&file, text).expect("write the definitions");
    let mut target = Mutatee::start("blocks", &[]);
    let session = tool().measure("watch", target.pid(), &["rounds", "-I", file.to_str().expect("a path")]);
    target.ask("go 100");
    target.ask("around 70");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = outcome.all("sample").last().and_then(|sample| sample["value"].as_u64());
    assert_eq!(last, Some(3 * 100 + 70));
    assert!(target.end().success());
}
