//! Values by key: what is done to each object, against what the program itself says.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, scaled, skip};
use serde_json::Value;

use crate::tool;

/// Locks and nanoseconds of waiting of each object, by address.
fn known(reply: &Reply) -> BTreeMap<String, (i64, i64)> {
    let objects = reply.lines.iter().filter_map(|line| line.strip_prefix("object "));
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<i64>().ok()).expect("a number");
    objects
        .map(|line| {
            let mut words = line.split(' ');
            let address = words.next().expect("an address").to_owned();
            (address, (number(words.next()), number(words.next())))
        })
        .collect()
}

fn watch(pid: &str, metrics: &[&str]) -> Session {
    let mut session =
        tool().start(["watch", "-p", pid, "--max-overhead", "100"].into_iter().chain(metrics.iter().copied()));
    session.wait_for("attached");
    session
}

fn last<'a>(outcome: &'a Outcome, metric: &str) -> &'a Value {
    outcome
        .all("sample")
        .into_iter()
        .rfind(|s| s["metric"] == metric)
        .unwrap_or_else(|| panic!("no {metric}: {outcome:#?}"))
}

/// By address: the name and the value.
fn keys(sample: &Value) -> BTreeMap<String, (Option<&str>, i64)> {
    let keys = sample["keys"].as_array().expect("a vector over keys");
    let address = |key: &Value| key["key"].as_str().expect("a key").to_owned();
    let value = |key: &Value| key["value"].as_i64().expect("a number");
    keys.iter().map(|key| (address(key), (key["name"].as_str(), value(key)))).collect()
}

fn total(sample: &Value) -> i64 {
    keys(sample).values().map(|(_, value)| value).sum::<i64>() + sample["others"].as_i64().expect("a number")
}

#[test]
fn every_mutex_has_its_own_locks_and_its_name() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let metrics = ["lock_operations_by_object", "lock_operations", "destroys_by_object"];
    let session = watch(&target.pid_text(), &metrics);
    target.ask(&format!("lock {} 6", scaled(500, 20_000)));
    // threads that have ended by now keep what they have
    let told = target.ask(&format!("lock {} 3", scaled(100, 1000)));
    target.ask("destroy");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sample = last(&outcome, "lock_operations_by_object");
    let found = keys(sample);
    for (address, (locks, _)) in known(&told) {
        assert_eq!(found.get(&address).map(|(_, value)| *value), Some(locks), "{address}: {sample}");
    }
    let names: Vec<&str> = known(&told).keys().filter_map(|address| found.get(address)?.0).collect();
    for name in ["objects.c:pool", "objects.c:pool+0x28", "objects.c:pool+0x78", "objects.c:alone", "everybodys"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert_eq!(names.len(), 6, "what is on the heap has no name: {names:?}");
    assert_eq!(total(sample), sample["value"].as_i64().expect("a number"));
    assert_eq!(sample["value"], last(&outcome, "lock_operations")["value"]);
    // the one on the heap is gone
    let unnamed = known(&told).into_keys().find(|address| found[address].0.is_none()).expect("one without a name");
    assert_eq!(keys(last(&outcome, "destroys_by_object")), BTreeMap::from([(unnamed, (None, 1))]));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_focus_may_name_an_object_by_its_variable() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let names = ["objects.c:alone", "alone", "everybodys", "pool+0x28"];
    let pairs: Vec<String> = names.iter().map(|name| format!("lock_operations@/SyncObject/Mutex/{name}")).collect();
    let session = watch(&target.pid_text(), &pairs.iter().map(String::as_str).collect::<Vec<_>>());
    target.ask("lock 100 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (name, expected) in names.iter().zip([1500, 1500, 1800, 600]) {
        let focus = format!("/SyncObject/Mutex/{name}");
        let sample = outcome.all("sample").into_iter().rfind(|s| s["focus"] == *focus).expect("a sample");
        assert_eq!(sample["value"], expected, "{name}");
    }
    let pid = target.pid_text();
    let outcome = tool().run(["watch", "-p", &pid, "lock_operations@/SyncObject/Mutex/alon", "--for", "1s"]);
    let _ = outcome.assert_error(3, &["the program has no variable `alon`", "did you mean `alone`?"]);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn what_finds_no_place_is_counted_together() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let session = watch(&target.pid_text(), &["lock_operations_by_object"]);
    target.ask("many 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sample = last(&outcome, "lock_operations_by_object");
    assert_eq!((sample["value"].as_i64(), total(sample)), (Some(5000), 5000));
    assert!(sample["others"].as_i64().expect("a number") >= 5000 - 1024, "{sample}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn the_time_of_waiting_belongs_to_the_mutex_that_was_waited_for() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let session = watch(&target.pid_text(), &["lock_wait_by_object"]);
    let waits = scaled(20, 200).cast_signed();
    let told = target.ask(&format!("wait {waits} 4000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let found = keys(last(&outcome, "lock_wait_by_object"));
    let (address, (_, own)) = known(&told).into_iter().find(|(_, (_, ns))| *ns > 0).expect("an object was waited for");
    let (name, seen) = found[&address];
    assert_eq!(name, Some("objects.c:alone"));
    assert!((seen - own).abs() < own / 100 + 50_000 * waits, "{seen} ns, but the program says {own} ns");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn redis_names_the_locks_of_its_background_threads() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let before = Text::of(redis.pid());
    let session = watch(&redis.pid().to_string(), &["lock_operations_by_object", "lock_operations"]);
    for _ in 0..50 {
        redis.ask(&["SET key value", "UNLINK key", "FLUSHALL ASYNC"]);
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sample = last(&outcome, "lock_operations_by_object");
    assert_eq!(total(sample), sample["value"].as_i64().expect("a number"));
    assert!(total(sample) >= 50, "{sample}");
    println!("{sample}");
    target::assert_clean(redis.pid(), &before);
}
