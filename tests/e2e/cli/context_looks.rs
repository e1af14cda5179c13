//! Tests of the times that looks at the contexts of threads tell: the program measures the same times by itself.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, open_directory, scaled};
use serde_json::Value;

use crate::tool;

/// Nanoseconds that the beginning and the end of a run may add or take, for each thread.
const EDGES_NS: f64 = 4e6;

/// A function with its caller.
type Place = (String, String);

/// Times and looks of one place.
#[derive(Clone, Copy, Debug, Default)]
struct Looked {
    ns: f64,
    looks: u64,
    /// Square of the standard error of the time.
    variance: f64,
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The values by function and caller.
fn places(outcome: &Outcome) -> BTreeMap<Place, Looked> {
    let records = outcome.all("context");
    let name = |id: &Value| {
        let record = records.iter().find(|record| record["id"] == *id);
        record.map_or("", |record| record["function"].as_str().expect("a name")).to_owned()
    };
    let mut found: BTreeMap<Place, Looked> = BTreeMap::new();
    for record in &records {
        assert_eq!(record["how"]["wall_ns"], "looks", "{record}");
        let place = found.entry((name(&record["parent"]), name(&record["id"]))).or_default();
        place.ns += number(&record["metrics"], "wall_ns") as f64;
        place.looks += number(&record["metrics"], "looks");
        place.variance += (number(&record["error"], "wall_ns") as f64).powi(2);
    }
    found
}

fn of(places: &BTreeMap<Place, Looked>, caller: &str, function: &str) -> Looked {
    places.get(&(caller.to_owned(), function.to_owned())).copied().unwrap_or_default()
}

fn measured(pid: &str) -> Session {
    tool().start(["profile", "contexts", "-p", pid, "looked:w_*", "--metric", "looks", "--max-overhead", "10000"])
}

/// Compares the times of a run with those that the program has measured.
fn assert_times(outcome: &Outcome, truth: &Reply, threads: u64) {
    let places = places(outcome);
    let known = |key: &str| truth.number(key) as f64;
    let rows = [
        ("heavy", of(&places, "w_heavy", "w_spins")),
        ("medium", of(&places, "w_medium", "w_spins")),
        ("light", of(&places, "w_light", "w_spins")),
        ("asleep", of(&places, "w_laps", "w_sleeps")),
    ];
    for (key, looked) in rows {
        let bound = 4.0 * looked.variance.sqrt() + EDGES_NS * threads as f64;
        let off = looked.ns - known(key);
        assert!(
            off.abs() <= bound,
            "{key}: {} ns by {} looks, in truth {}; {off} of {bound}",
            looked.ns,
            looked.looks,
            known(key)
        );
        assert!(looked.looks > 20, "{key}: {} looks", looked.looks);
    }
    let all = outcome.one("contexts");
    let looks: u64 = places.values().map(|looked| looked.looks).sum();
    assert_eq!(number(all, "looks"), looks + number(&all["outside"], "looks"), "{all}");
    assert!(number(all, "effective_looks") <= number(all, "looks"), "{all}");
}

#[test]
fn looks_tell_the_times_of_contexts() {
    let mut target = Mutatee::start("looked", &[]);
    let before = Text::of(target.pid());
    let mut session = measured(&target.pid_text());
    session.wait_for("attached");
    let truth = target.ask(&format!("run {} 1", scaled(3000, 20_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert_times(&outcome, &truth, 1);
}

/// The threads end before the times are read.
#[test]
fn looks_at_threads_that_have_ended_count() {
    let mut target = Mutatee::start("looked", &[]);
    let mut session = measured(&target.pid_text());
    session.wait_for("attached");
    let truth = target.ask(&format!("run {} 12", scaled(1500, 5000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_times(&outcome, &truth, 12);
}

/// Times of the thread that serves for ever: in its loop, and below it.
fn served(outcome: &Outcome, truth: &Reply) {
    let places = places(outcome);
    let (own, busy) = (of(&places, "", "w_serves"), of(&places, "w_serves", "w_spins"));
    let known = truth.number("all") as f64;
    assert!(own.ns + busy.ns >= known, "{own:?} and {busy:?} of {truth:?}");
    // The thread goes on until the measurement ends.
    let share = busy.ns / (own.ns + busy.ns);
    let truth = truth.number("busy") as f64 / known;
    let error = busy.variance.sqrt() / (own.ns + busy.ns);
    assert!((share - truth).abs() <= 4.0 * error + 0.01, "{share} ± {error}, in truth {truth}");
}

#[test]
fn a_loop_that_never_ends_has_its_time() {
    let mut target = Mutatee::start("looked", &[]);
    let mut session = measured(&target.pid_text());
    session.wait_for("attached");
    target.ask("serve");
    let truth = target.ask(&format!("served {}", scaled(2000, 10_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    served(&outcome, &truth);
}

/// The thread is in its loop since before the measurement.
#[test]
fn a_loop_that_has_begun_earlier_has_its_time() {
    let mut target = Mutatee::start("looked", &["serve"]);
    let before = Text::of(target.pid());
    let mut session = measured(&target.pid_text());
    session.wait_for("attached");
    let truth = target.ask(&format!("served {}", scaled(2000, 10_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    served(&outcome, &truth);
}

/// All views, formats and differences have the times of a program that the command starts.
#[test]
fn saved_looks_are_shown_and_exported() {
    let program = ingraft_testing::program("looked").expect("gcc").display().to_string();
    let directory = open_directory();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let [old, new] = ["old", "new"].map(|name| {
        let file = file(name);
        let options = ["looked:w_*", "--metric", "looks", "--max-overhead", "10000", "--until-exit", "-o", &file, "--"];
        let run = ["profile", "contexts"].into_iter().chain(options).chain([program.as_str(), "600", "3"]);
        let _ = tool().run(run).assert_code(0);
        file
    });
    let records = tool().run(["report", &new, "--as", "json"]).assert_code(0);
    let looked = of(&places(&records), "w_heavy", "w_spins");
    assert!(looked.ns > 300e6 && looked.looks > 50, "{looked:?}");
    let exported = |format: &str, metric: &str| {
        let to = file(format);
        let _ = tool().run(["report", &new, "--as", format, "--metric", metric, "-o", &to]).assert_code(0);
        std::fs::read(&to).expect("a file")
    };
    for (metric, expected) in [("time", looked.ns), ("looks", looked.looks as f64)] {
        let folded = String::from_utf8(exported("folded", metric)).expect("text");
        let lines =
            folded.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(path, _)| path.contains("w_heavy;"));
        let sum: f64 = lines.map(|(_, value)| value.parse::<f64>().expect("a number")).sum();
        assert!((sum - expected).abs() < 1.0, "{metric}: {sum}, {expected} in\n{folded}");
    }
    for format in ["pprof", "speedscope", "callgrind", "svg", "html"] {
        assert!(exported(format, "time").len() > 100, "{format}");
    }
    let text = |arguments: &[&str]| {
        let all = ["report", &new].into_iter().chain(arguments.iter().copied());
        tool().start_plain(all).finish().assert_code(0).other.join("\n")
    };
    for arguments in [&[] as &[&str], &["--bottom-up"]] {
        let text = text(arguments);
        assert!(text.contains('±') && text.contains(" looks"), "{text}");
    }
    let changes = text(&["--diff", &old]);
    assert!(changes.contains("OLD TIME") && changes.contains("w_spins"), "{changes}");
}
