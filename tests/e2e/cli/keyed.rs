//! Tests of keys that are texts, have several parts, or are many: the program makes calls that the test knows.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome};
use serde_json::Value;

use crate::tool;

/// Number of threads of the program.
const THREADS: i64 = 3;

/// Runs a command on the program while each thread makes this many calls.
fn measured(command: &[&str], calls: i64) -> Outcome {
    let mut target = Mutatee::start("prints", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let (first, rest) = command.split_first().expect("a command");
    let mut session = tool().start([*first, "-p", &pid, "--max-overhead", "1000000"].iter().chain(rest));
    session.wait_for("attached");
    target.ask(&format!("run {calls} {THREADS}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    outcome
}

/// A call of the program: its number, the text of its name, and the text of its path.
struct Call {
    number: i64,
    name: String,
    path: &'static str,
}

/// The calls of one thread, by the source of the program.
fn calls(count: i64) -> Vec<Call> {
    let paths = ["/index.html", "", "/a/path/that/is/longer/than/the/sixty-four/bytes/that/are/read/of"];
    let each = |number: i64| {
        let call = Call { number, name: format!("name-{}", number % 1000), path: paths[number as usize % 3] };
        let inner = Call { number: -number, name: "inner".to_owned(), path: "/nested" };
        std::iter::once(call).chain((number % 100 == 42).then_some(inner))
    };
    (0..count).flat_map(each).collect()
}

/// Values by the parts of their keys, of all threads.
fn expected(count: i64, key: impl Fn(&Call) -> Vec<Value>, value: impl Fn(&Call) -> i64) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for call in calls(count) {
        *sums.entry(Value::from(key(&call)).to_string()).or_default() += THREADS * value(&call);
    }
    sums
}

/// Values by the parts of their keys, and the value of the others.
fn keyed(outcome: &Outcome, exprs: &[&str]) -> (BTreeMap<String, i64>, i64) {
    let (others, keys): (Vec<_>, Vec<_>) =
        outcome.all("keyed").into_iter().partition(|record| record["others"] == true);
    let value = |record: &&Value| record["value"].as_i64().expect("a value");
    let key = |record: &&Value| {
        assert_eq!(record["keys"].as_object().expect("keys").len(), exprs.len(), "{record}");
        Value::from(exprs.iter().map(|expr| record["keys"][*expr].clone()).collect::<Vec<_>>()).to_string()
    };
    (keys.iter().map(|record| (key(record), value(record))).collect(), others.iter().map(value).sum())
}

#[test]
fn a_key_may_be_a_text_and_a_number() {
    let count = 700;
    let outcome = measured(&["count", "work", "--by", "str(name), $arg[0] % 5"], count);
    let expected = expected(count, |call| vec![call.name.clone().into(), (call.number % 5).into()], |_| 1);
    assert_eq!(expected.len(), 701);
    assert_eq!(keyed(&outcome, &["str(name)", "$arg[0] % 5"]), (expected, 0));
}

#[test]
fn sums_are_told_by_texts_of_a_length_and_callers() {
    let count = 400;
    let by = "str($arg[1], 4),request->inner.level,caller";
    let outcome = measured(&["count", "work", "--sum", "$arg[0]", "--by", by], count);
    let (found, others) = keyed(&outcome, &["str($arg[1], 4)", "request->inner.level", "$caller"]);
    let mut by_two: BTreeMap<String, i64> = BTreeMap::new();
    for (key, value) in &found {
        let Ok(Value::Array(mut parts)) = serde_json::from_str(key) else { panic!("{key}") };
        let caller = parts.pop().expect("a caller");
        let from = if parts[0] == "inne" { "work+" } else { "thread+" };
        assert!(caller.as_str().is_some_and(|caller| caller.starts_with(from)), "{key}");
        *by_two.entry(Value::from(parts).to_string()).or_default() += value;
    }
    let level = |call: &Call| if call.number < 0 { 9 } else { call.number % 5 - 2 };
    let expected = expected(count, |call| vec![call.name[..4].into(), level(call).into()], |call| call.number);
    assert_eq!((by_two, others), (expected, 0));
}

#[test]
fn times_are_told_by_texts_which_may_be_cut() {
    let count = 300;
    let outcome = measured(&["latency", "work", "--by", "str(request->path)"], count);
    let mut found = BTreeMap::new();
    for record in outcome.all("keyed").iter().filter(|record| record["others"] == false) {
        let path = record["keys"]["str(request->path)"].as_str().expect("a text");
        assert_eq!(record["cut"].as_array().map_or(0, Vec::len), usize::from(path.len() == 64), "{record}");
        assert!(record["value"].as_i64() > Some(0), "{record}");
        found.insert(path.to_owned(), record["calls"].as_i64().expect("calls"));
    }
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    // Calls that a longjmp leaves have no time.
    for call in calls(count).iter().filter(|call| call.number < 0 || call.number % 100 != 7) {
        *expected.entry(call.path.chars().take(64).collect()).or_default() += THREADS;
    }
    assert_eq!(found, expected);
}

#[test]
fn a_thousand_keys_have_values_of_their_own() {
    let count = 990;
    let outcome = measured(&["count", "work", "--by", "$arg[0] * 0x10001"], count);
    let expected = expected(count, |call| vec![(call.number * 0x10001).into()], |_| 1);
    assert_eq!(expected.len(), 1000);
    assert_eq!(keyed(&outcome, &["$arg[0] * 0x10001"]), (expected, 0));
}

#[test]
fn keys_without_a_record_are_added_up() {
    let count = 1200;
    let outcome = measured(&["count", "work", "--by", "str(name)", "--top", "7"], count);
    let (found, others) = keyed(&outcome, &["str(name)"]);
    let mut values: Vec<i64> = expected(count, |call| vec![call.name.clone().into()], |_| 1).into_values().collect();
    values.sort_by_key(|value| std::cmp::Reverse(*value));
    let mut largest: Vec<i64> = found.into_values().collect();
    largest.sort_by_key(|value| std::cmp::Reverse(*value));
    assert_eq!(largest, values[..7]);
    assert_eq!(others, values[7..].iter().sum::<i64>());
}
