//! Tests of the stacks of goroutines: the program knows the ways to a function, the share of each, and what Go's runtime says of its stacks.

use std::collections::BTreeMap;
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Reply, program, skip};
use serde_json::Value;

use crate::tool;

/// Number of samples of `main.leaf` that are taken at least.
const ENOUGH: u64 = 400;

const WAYS: [&str; 4] = ["alpha", "beta", "gamma", "again"];

/// The functions from `main.leaf` to the one that begins the goroutine, as the runtime names them.
fn runtime_stack(truth: &Reply, way: &str) -> Vec<String> {
    let prefix = format!("stack {way} ");
    let line = truth.lines.iter().find_map(|line| line.strip_prefix(&prefix)).expect("a stack");
    line.split(' ').map(str::to_owned).collect()
}

fn stacks_of(name: &str) {
    let program = match program(name) {
        Ok(program) => program,
        Err(why) => skip!("{name}: {why}"),
    };
    let mut target = Mutatee::spawn(&mut Command::new(program));
    let (pid, before) = (target.pid_text(), Text::of(target.pid()));
    let tool = tool();
    target.ask("run");
    let mut hot = tool.start(["hot", "-p", &pid, "--interval", "100ms"]);
    let mut stacks = tool.start(["callers", "-p", &pid, "main.leaf", "--stacks"]);
    stacks.wait_for("attached");
    let base = |samples: &Value| samples["base"].as_u64().expect("a number");
    let begin = base(&hot.wait_for("samples"));
    // On a busy machine, the samples of stacks begin later than the first answer, and are fewer.
    while base(&hot.wait_for("samples")) < begin + 4 * ENOUGH {}
    let truth = target.ask("rest");
    truth.assert_right();
    let hot = hot.interrupt().assert_code(0);
    let stacks = stacks.interrupt().assert_code(0).assert_removed();
    let calls = |way: &str| truth.number(&format!("calls {way}")) as f64;
    let whole: f64 = WAYS.iter().map(|way| calls(way)).sum();

    // Callers of callers, up to the function that the runtime calls. The runtime hides the functions that the compiler makes for `go f(x)`, and
    // the suffix of functions in assembly.
    let name = |frame: &Value| {
        let name = frame["function"].as_str()?.trim_end_matches(".abi0");
        let is_wrapper = name.starts_with("main.main.") && name != "main.main.func1";
        (!is_wrapper).then(|| name.to_owned())
    };
    let mut found: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    let mut early = 0;
    let all = stacks.all("stack");
    for record in &all {
        let number = record["samples"].as_u64().expect("a number");
        if !record["whole"].as_bool().expect("whether it is whole") {
            early += number;
            continue;
        }
        let frames = record["stack"].as_array().expect("a stack");
        *found.entry(frames.iter().filter_map(name).collect()).or_default() += number;
    }
    let samples: u64 = found.values().sum();
    assert!(samples >= ENOUGH / 2, "{found:#?}");
    assert!(50 * early <= samples, "stacks of goroutines that compute end early: {stacks:#?}");
    for way in WAYS {
        let expected = runtime_stack(&truth, way);
        let of_way = found.get(&expected[1..]).copied();
        let of_way = of_way.unwrap_or_else(|| panic!("{way} lacks {expected:?}: {found:#?}")) as f64;
        let (share, truth) = (of_way / samples as f64, calls(way) / whole);
        let error = (truth * (1.0 - truth) / samples as f64).sqrt();
        assert!((share - truth).abs() <= 4.0 * error + 0.02, "{way}: {share}, but {truth} ± {error}: {found:#?}");
    }
    assert_eq!(found.len(), WAYS.len(), "there are no other stacks: {found:#?}");

    let samples = *hot.all("samples").last().expect("samples");
    let cut = samples["cut"].as_u64().expect("a number");
    assert!(20 * cut <= base(samples), "few samples are those of the runtime's own stacks: {samples}");

    // The shares of callers with their callees are those of their calls.
    let all = hot.all("hot");
    let rows: BTreeMap<&str, &Value> =
        all.iter().map(|row| (row["function"].as_str().expect("a name"), *row)).collect();
    let total = |name: &str| rows[name]["total"].as_f64().expect("a share");
    let laps = total("main.laps");
    assert!(laps > 0.95, "everything is done in laps: {hot:#?}");
    for way in WAYS {
        let (share, truth) = (total(&format!("main.{way}")) / laps, calls(way) / whole);
        let error = (truth * (1.0 - truth) / base(samples) as f64).sqrt();
        assert!((share - truth).abs() <= 4.0 * error + 0.02, "{way}: {share}, but {truth} ± {error}: {hot:#?}");
    }
    before.assert_in(target.pid());
    assert_eq!(target::tracer(target.pid()), 0, "nobody traces it");
    target.ask("run");
    target.ask("rest").assert_right();
}

#[test]
fn goroutines_have_whole_stacks() {
    stacks_of("hops");
}

#[test]
fn goroutines_of_a_stripped_program_have_whole_stacks() {
    stacks_of("hops-stripped");
}

#[test]
fn goroutines_of_a_movable_program_have_whole_stacks() {
    stacks_of("hops-pie");
}
