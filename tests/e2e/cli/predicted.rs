//! Predicted times of functions, from the counts of their edges: the mean compared with callgrind's instructions, the deviation with that of a
//! program whose branches are known.

use std::collections::BTreeMap;
use std::process::Command;

use ingraft_testing::{Outcome, have, program, skip};
use serde_json::Value;

use crate::blocks::executions;
use crate::profiles::assert_exact;
use crate::tool;

/// Number of calls of `serve`.
const CALLS: u64 = 10_000;

/// The record of a function.
fn function<'o>(outcome: &'o Outcome, name: &str) -> &'o Value {
    let is_it = |record: &&Value| record["type"] == "time" && record["node"].is_null() && record["function"] == name;
    outcome.objects.iter().find(is_it).unwrap_or_else(|| panic!("no times of {name}: {outcome:#?}"))
}

fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

#[track_caller]
fn assert_near(value: f64, expected: f64, off: f64) {
    assert!((value - expected).abs() <= off * expected.abs().max(1.0), "{value} is not {expected}");
}

/// First byte and length of each function of a program.
fn functions(path: &str) -> BTreeMap<String, (u64, u64)> {
    let symbols = Command::new("nm").args(["--print-size", path]).output().expect("run nm");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let one = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [at, size, _, name] => Some((name.to_owned(), (hex(at), hex(size)))),
        _ => None,
    };
    String::from_utf8_lossy(&symbols.stdout).lines().filter_map(one).collect()
}

#[test]
fn the_mean_is_callgrinds_number_of_instructions() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("varied").expect("gcc");
    let path = path.to_str().expect("a path");
    let arguments = [path, &CALLS.to_string()];
    let command = ["profile", "times", "--until-exit", "--own-status", "varied:*", "--", arguments[0], arguments[1]];
    let outcome = tool().run(command).assert_code(0);
    assert_exact(&outcome);
    let truth = executions(&arguments);
    let places = functions(path);
    let instructions = |name: &str| -> f64 {
        let (start, size) = places[name];
        let inside = truth.iter().filter(|((of, at), _)| of == "varied" && (start..start + size).contains(at));
        inside.map(|(_, count)| *count as f64).sum()
    };
    let calls = CALLS as f64;
    let [steady, rare, serve] = ["steady", "rare", "serve"].map(|name| function(&outcome, name));
    assert_near(number(steady, "self"), instructions("steady") / (2.0 * calls), 1e-9);
    assert_near(number(rare, "self"), instructions("rare") / (calls / 10.0), 1e-9);
    assert_near(number(serve, "self"), instructions("serve") / calls, 1e-9);
    let whole = instructions("serve") + instructions("steady") / 2.0 + instructions("rare");
    assert_near(number(serve, "mean"), whole / calls, 1e-9);
    // Nothing of these functions is left out.
    for record in [steady, rare, serve] {
        assert_near(number(record, "calls_left_out"), 0.0, 1e-9);
    }
}

#[test]
fn the_deviation_comes_from_the_rare_branch() {
    let path = program("varied").expect("gcc");
    let path = path.to_str().expect("a path");
    let calls = CALLS.to_string();
    let command =
        ["profile", "times", "--explain", "serve", "--until-exit", "--own-status", "varied:*", "--", path, &calls];
    let outcome = tool().run(command).assert_code(0);
    assert_exact(&outcome);
    // The loop of `steady` has as many iterations each time.
    assert_near(number(function(&outcome, "steady"), "stddev"), 0.0, 1e-6);
    let [rare, serve] = ["rare", "serve"].map(|name| function(&outcome, name));
    // One call of ten is longer by about a call of `rare`.
    assert_near(number(serve, "independent_stddev"), 0.3 * number(rare, "mean"), 0.02);
    let causes = outcome.all("cause");
    let sum: f64 = causes.iter().map(|cause| number(cause, "predicted")).sum();
    assert_near(sum, 1.0, 1e-9);
    let first = causes.first().expect("a cause");
    assert_eq!((first["function"].as_str(), first["what"].as_str()), (Some("serve"), Some("branch")), "{outcome:#?}");
    assert!(number(first, "predicted") > 0.99, "{first}");
    assert!(first["source"].as_str().is_some_and(|source| source.contains("varied.c:")), "{first}");
}

/// Functions that were not called have no times, and a function that was not called cannot be explained.
#[test]
fn functions_that_were_not_called_have_no_times() {
    let path = program("varied").expect("gcc");
    let path = path.to_str().expect("a path");
    let command =
        ["profile", "times", "--explain", "rare", "--until-exit", "--own-status", "varied:*", "--", path, "3"];
    let outcome = tool().run(command).assert_code(0);
    assert!(outcome.all("time").iter().all(|record| record["function"] != "rare"), "{outcome:#?}");
    assert!(outcome.all("cause").is_empty(), "{outcome:#?}");
    assert!(outcome.stderr.contains("`rare` cannot be explained: no call"), "{}", outcome.stderr);
    let wrong = tool().run(["profile", "edges", "--explain", "rare", "--", path, "3"]).assert_code(2);
    assert!(wrong.stderr.contains("--explain belongs to times"), "{}", wrong.stderr);
}
