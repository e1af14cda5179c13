//! Tests of the holders of locks that `ingraft locks` tells: the program knows who has held its locks, and for how long others have waited.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, open_directory};
use serde_json::Value;

use crate::tool;

/// Nanoseconds by the lock, the function that has waited, and the one that has held the lock.
type Waits = BTreeMap<(String, String, String), u64>;

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

/// The waits in what the tool has printed.
fn told(outcome: &Outcome) -> Waits {
    let records = outcome.all("context");
    let by_id: BTreeMap<u64, &Value> = records.iter().map(|record| (number(record, "id"), *record)).collect();
    // The function of the program that is next to the root: `k_keeps` is called by those that hold locks.
    let outermost = |id: u64| {
        let above = |record: &&Value| by_id.get(&record["parent"].as_u64()?).copied();
        let all = std::iter::successors(by_id.get(&id).copied(), above);
        all.last().and_then(|record| record["function"].as_str()).unwrap_or_default().to_owned()
    };
    let mut waits = Waits::new();
    for record in outcome.all("holder") {
        let lock = record["name"].as_str().unwrap_or("?").to_owned();
        let holder = match record["holder"].as_u64() {
            Some(id) => outermost(id),
            None => record["held"].as_str().expect("a word").to_owned(),
        };
        assert!(number(record, "looks") > 0, "{record}");
        *waits.entry((lock, outermost(number(record, "waiter")), holder)).or_default() += number(record, "wall_ns");
    }
    waits
}

/// A time by looks is near the one by a clock: the looks of a round that comes late stand for much time.
fn assert_near(looked: u64, clocked: u64, waits: &Waits) {
    assert!((clocked * 3 / 4..=clocked * 5 / 4 + 10_000_000).contains(&looked), "{looked} for {clocked}: {waits:?}");
}

#[test]
fn holders_are_those_that_the_program_knows() {
    let directory = open_directory();
    let file = directory.path().join("locks").display().to_string();
    let mut target = Mutatee::start("keepers", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["locks", "-p", &pid, "keepers:k_*", "--max-overhead", "10000"]);
    session.wait_for("attached");
    let truth = target.ask("hold 4 60");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert!(outcome.one("contexts")["holders_unknown"].is_null(), "locks of pthreads tell their holders");
    let waits = told(&outcome);
    let of = |lock: &str, waiter: &str, holder: &str| {
        waits.get(&(lock.to_owned(), waiter.to_owned(), holder.to_owned())).copied().unwrap_or(0)
    };
    for line in truth.lines.iter().filter_map(|line| line.strip_prefix("waited ")) {
        let [waiter, holder, ns] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        // Readers do not write into the lock who they are.
        let (lock, holder) = match holder {
            "k_reads" => ("price_lock", "unknown"),
            "k_reprices" => ("price_lock", holder),
            _ => ("stock_lock", holder),
        };
        assert_near(of(lock, waiter, holder), ns.parse().expect("a number"), &waits);
    }

    // Saved, and shown to people.
    let save = ["profile", "contexts", "-p", &pid, "keepers:k_*", "--metric", "locks", "-o", &file];
    let mut session = tool().start(save);
    session.wait_for("attached");
    target.ask("hold 1 60");
    let _ = session.interrupt().assert_code(0);
    let shown = tool().start_plain(["report", &file]).finish().assert_code(0).other;
    let row = shown.iter().find(|line| line.contains("stock_lock") && line.contains("k_restocks"));
    assert!(row.is_some_and(|row| row.contains("k_sells")), "{shown:?}");
}

/// Locks of the standard library of Rust are no functions of the C library, and do not tell who holds them.
#[test]
fn locks_of_rust_are_told() {
    for (view, metric, inner) in [("locks", "lock_wait_ns", "_contended"), ("offcpu", "wait_ns", "syscall")] {
        let mut target = Mutatee::start("contended", &[]);
        let before = Text::of(target.pid());
        let pid = target.pid_text();
        let mut session = tool().start([view, "-p", &pid, "contended:l_*", "--max-overhead", "10000"]);
        session.wait_for("attached");
        let truth = target.ask("hold 5 40");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let records = outcome.all("context");
        let of = |caller: &str| {
            let is_below = |record: &&&Value| {
                let above = records.iter().find(|above| above["id"] == record["parent"]);
                above.is_some_and(|above| above["function"] == caller)
            };
            let waits =
                records.iter().filter(is_below).filter(|r| r["function"].as_str().is_some_and(|f| f.ends_with(inner)));
            waits.map(|record| number(&record["metrics"], metric)).sum::<u64>()
        };
        for line in truth.lines.iter().filter_map(|line| line.strip_prefix("waited ")) {
            let (function, ns) = line.split_once(' ').expect("two words");
            let ns: u64 = ns.parse().expect("a number");
            assert!((ns * 9 / 10..=ns).contains(&of(function)), "{view} {function} {ns}: {records:?}");
        }
        assert!(outcome.all("holder").iter().all(|record| record["held"] == "unknown"));
        let untold = outcome.one("contexts")["holders_unknown"].as_array().cloned().unwrap_or_default();
        let is_inner = |name: &Value| name.as_str().is_some_and(|name| name.ends_with(inner));
        assert_eq!(untold.iter().any(is_inner), view == "locks", "{untold:?}");
    }
}
