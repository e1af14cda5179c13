//! Counts of edges and loops, compared with the program's own and with counts of blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, find, open_directory, output, program, scaled, skip};
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
    let run = |pattern: &str| {
        tool().run(["count", "--until-exit", "--own-status", pattern, "--", path, "2000"]).assert_code(0)
    };
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

/// Edges of `leaf`: into its loop, from one round to the next, and out of the loop.
const IN: (&str, &str) = ("0x0", "0x11");
const AROUND: (&str, &str) = ("0x11", "0x11");
const OUT: (&str, &str) = ("0x11", "0x1b");

/// Count of an edge.
fn passed(outcome: &Outcome, (from, to): (&str, &str)) -> u64 {
    let edges = outcome.all("edge");
    let edge = edges.iter().find(|record| record["from"] == from && record["to"] == to);
    edge.and_then(|record| record["count"].as_u64()).expect("a count")
}

#[test]
fn edges_of_a_leaf_that_keeps_values_below_the_stack() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["leaf#*->*"]);
    before.assert_not_in(target.pid());
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!([IN, AROUND, OUT].map(|edge| passed(&outcome, edge)), [4000, 2 * 4000, 4000]);
    let kinds: Vec<_> = outcome.all("edge").iter().map(|record| record["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("fall-through"), Some("taken"), Some("fall-through")]);
    for record in outcome.all("edge") {
        let threads = record["threads"].as_array().expect("a list");
        let sum: u64 = threads.iter().filter_map(|thread| thread["count"].as_u64()).sum();
        assert_eq!((Some(sum), threads.len()), (record["count"].as_u64(), 4), "{record}");
    }
    assert_eq!(outcome.all("refused"), Vec::<&Value>::new());
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    assert!(target.end().success());
}

#[test]
fn edges_that_come_and_go_while_threads_pass_them() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for round in 0..scaled(10, 200) {
        target.tell("go 300000");
        let edges: &[&str] = match round % 3 {
            0 => &["leaf#*->*"],
            1 => &["leaf#0x11->0x11", "leaf#0x11->0x1b"],
            _ => &["leaf#0x11->0x1b", "leaf#0x11->0x11", "leaf#0x0->0x11"],
        };
        let outcome = tool.count(target.pid(), edges).interrupt().assert_code(0).assert_removed();
        let (around, out) = (passed(&outcome, AROUND), passed(&outcome, OUT));
        assert_eq!(target.reply().number("wrong"), 0, "{around} rounds were counted");
        // Two rounds for each call, but for the calls in progress at the beginning and at the end: one in each of four threads.
        assert!(around.abs_diff(2 * out) <= 2 * 2 * 4, "{around} rounds of {out} calls");
        target::assert_clean(target.pid(), &before);
    }
    assert!(target.end().success());
}

/// The parts that could not be woven, by the function's offset and the name of the part.
fn refused(outcome: &Outcome) -> BTreeSet<(String, String)> {
    let refused = outcome.all("refused");
    let named = |record: &&Value| {
        let (_, part) = record["focus"].as_str()?.rsplit_once("/#")?;
        assert!(record["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{record}");
        Some((record["offset"].as_str()?.to_owned(), part.to_owned()))
    };
    let found: BTreeSet<_> = refused.iter().filter_map(named).collect();
    assert_eq!(found.len(), refused.len(), "every refusal names its part");
    found
}

/// Control arrives at a block along edges, unless the block is the first one of its function.
#[test]
fn edges_to_a_block_add_up_to_its_arrivals() {
    let path = program("determ").expect("gcc");
    let path = path.to_str().expect("a path");
    let run = |pattern: &str| {
        tool().run(["count", "--until-exit", "--own-status", pattern, "--", path, "2000"]).assert_code(0)
    };
    let (blocks, edges) = (run("determ:*#*"), run("determ:*#*->*"));
    let (no_blocks, no_edges) = (refused(&blocks), refused(&edges));
    let text = |record: &Value, key: &str| record[key].as_str().expect("a text").to_owned();
    let mut arrivals: BTreeMap<(String, String), Option<u64>> = BTreeMap::new();
    for record in edges.all("edge") {
        let (offset, from, to) = (text(record, "offset"), text(record, "from"), text(record, "to"));
        let is_woven = !no_edges.contains(&(offset.clone(), format!("{from}->{to}")));
        let sum = arrivals.entry((offset, to)).or_insert(Some(0));
        *sum = sum.zip(record["count"].as_u64().filter(|_| is_woven)).map(|(sum, count)| sum + count);
    }
    let (mut compared, mut passed) = (0, 0);
    for record in blocks.all("count") {
        let (offset, block) = (text(record, "offset"), text(record, "block"));
        let part = (offset, block);
        let Some(sum) = arrivals.get(&part).copied().flatten().filter(|_| part.1 != "0x0") else { continue };
        if !no_blocks.contains(&part) {
            assert_eq!(Some(sum), record["calls"].as_u64(), "{record}");
            (compared, passed) = (compared + 1, passed + u64::from(sum > 0));
        }
    }
    println!("{compared} blocks, {passed} of them executed; {} edges are refused", no_edges.len());
    assert!(passed > 10, "{passed} of {compared} blocks were executed");
}

#[test]
fn a_loop_counts_its_entries_and_restricts_what_it_calls() {
    let directory = open_directory();
    let file = directory.path().join("steps.mdl");
    let text = "resourceList stepping is procedure { items { \"step\" }; flavor { unix }; }\n\
                constraint in_loop /Code/*/* is inclusive;\n\
                // Calls of step, of all or of a loop.\n\
                metric steps { name \"steps\"; units calls; aggregateOperator sum; style EventCounter;\n\
                constraint in_loop;\n\
                base is counter { foreach f in stepping append preInsn f.entry constrained (* steps++; *) } }\n";
    std::fs::write(&file, text).expect("write the definitions");
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let focus = "/Code/blocks/around/#loop@0x9";
    let [steps, executions] = &["steps", "executions"].map(|metric| format!("{metric}@{focus}"));
    let leaf = "executions@/Code/blocks/leaf/#loop@0x11";
    let definitions = file.to_str().expect("a path");
    let words = ["steps", steps, executions, leaf, "-I", definitions];
    let session = tool().measure("watch", target.pid(), &words);
    target.ask("around 70");
    target.ask("around 1");
    assert_eq!(target.ask("go 100").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |pair: &str| {
        let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
        let samples = outcome.all("sample");
        let sample = samples.iter().rfind(|sample| sample["metric"] == metric && sample["focus"] == focus);
        sample.and_then(|sample| sample["value"].as_u64()).expect("a value")
    };
    assert_eq!(["steps", steps, executions, leaf].map(last), [75, 71, 2, 100]);
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// A program of the system with all of its edges counted, from its first instruction on.
#[test]
fn all_edges_of_an_interpreter() {
    let Some(perl) = find("perl") else {
        skip!("perl is not installed");
    };
    let perl = std::fs::canonicalize(perl).expect("a path");
    let perl = perl.to_str().expect("a path");
    let script = "my %h; for (1..20000) { $h{$_ % 97} .= $_ } my $n = () = join('', map { $h{$_} } sort keys %h) =~ /1+2/g; \
                  eval { die 'x' } for 1..100; print scalar(keys %h), ' ', $n, \"\\n\"";
    let plain = output(Command::new(perl).args(["-e", script]));
    let outcome = tool().run(["count", "--until-exit", "perl:*#*->*", "--", perl, "-e", script]).assert_code(0);
    assert_eq!(outcome.other, plain.lines().collect::<Vec<_>>(), "what the program printed");
    let edges = outcome.all("edge");
    let passed = edges.iter().filter(|edge| edge["count"].as_u64() > Some(0)).count();
    println!("{} edges, {passed} of them were passed", edges.len());
    assert!(edges.len() > 100_000 && passed > 5_000, "{passed} of {} edges were passed", edges.len());
}

/// Blocks have room in the text and edges do not: together, both are counted in a copy of the function, also if they come one by one.
#[test]
fn blocks_and_edges_of_one_function() {
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["leaf#*", "leaf#*->*"]);
    assert_eq!(target.ask("go 100").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("refused").is_empty(), "{:?}", outcome.all("refused"));
    let blocks: Vec<u64> = counts(&outcome, "block").into_values().collect();
    assert_eq!(blocks, [100, 300, 100]);
    let passed: Vec<u64> = outcome.all("edge").iter().filter_map(|edge| edge["count"].as_u64()).collect();
    assert_eq!(passed, [100, 200, 100]);
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}
