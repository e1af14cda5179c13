//! Tests of values by key: the operations on each object, compared with what the program itself reports.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, scaled, skip};
use serde_json::Value;

use crate::tool;

/// Returns the number of locks and the nanoseconds of waiting of each object, by address.
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

/// Returns the name and the value of each key, by address.
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
    // The values of threads that have ended by now stay.
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
    // The object on the heap is destroyed.
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

/// Returns the objects that the program tells of: by address the kind and whether the object is destroyed.
fn told_states(reply: &Reply) -> BTreeMap<String, (String, bool)> {
    let states = reply.lines.iter().filter_map(|line| line.strip_prefix("state "));
    states
        .map(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
            [address, kind, state] => ((*address).to_owned(), ((*kind).to_owned(), *state == "retired")),
            _ => panic!("{line}"),
        })
        .collect()
}

/// Returns the objects in the list of a sample: by address the kind and whether the object is retired.
fn listed_states(sample: &Value) -> BTreeMap<String, (String, bool)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let keys = sample["keys"].as_array().expect("a list of objects");
    keys.iter()
        .map(|key| (text(&key["key"]), (text(&key["kind"]), key["retired"].as_bool().expect("a state"))))
        .collect()
}

#[test]
fn objects_are_listed_with_kind_name_and_state() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let session = watch(&target.pid_text(), &["sync_objects"]);
    let used = told_states(&target.ask("kinds"));
    let ended = told_states(&target.ask("ends"));
    target.ask("lock 3 2");
    target.ask("destroy");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sample = last(&outcome, "sync_objects");
    let mut listed = listed_states(sample);
    for (address, (kind, _)) in &used {
        assert_eq!(listed.get(address), ended.get(address), "{kind}: {sample}");
    }
    let names = keys(sample);
    let named: Vec<&str> = used.keys().filter_map(|address| names[address].0).collect();
    assert_eq!(named.len(), 5, "{named:?}");
    listed.retain(|address, _| !used.contains_key(address));
    let mutexes = listed.values().filter(|(kind, _)| kind == "Mutex").count();
    assert_eq!(mutexes, listed.len(), "{sample}");
    // The object on the heap is retired; the objects that the program locks are not.
    let retired: Vec<_> = listed.iter().filter(|(_, (_, retired))| *retired).map(|(at, _)| names[at].0).collect();
    assert_eq!(retired, [None]);
    let live = names.values().map(|(_, value)| value).sum::<i64>();
    assert_eq!(sample["value"], live);
    assert!(sample["keys"].as_array().expect("keys").iter().any(|k| k["name"] == "objects.c:pool+0x28"), "{sample}");
    assert_eq!(sample.get("unlisted"), None);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn the_last_of_what_many_threads_do_is_the_state() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let mut session = watch(&target.pid_text(), &["sync_objects"]);
    for round in 0..scaled(3, 20) {
        let told = told_states(&target.ask(&format!("life {} {}", scaled(300, 3000) + round, 2 + round % 7)));
        assert!(told.values().any(|(_, retired)| *retired) && told.values().any(|(_, retired)| !retired));
        let wanted = |sample: &Value| {
            let listed = listed_states(sample);
            told.iter().all(|(address, state)| listed.get(address) == Some(state))
        };
        let right = (0..60).any(|_| wanted(&session.wait_for("sample")));
        assert!(right, "the list never said what the program says: {told:?}");
    }
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_focus_on_an_object_that_was_destroyed_says_so() {
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let told = known(&target.ask("lock 1 1"));
    let heap = told.keys().find(|at| told[*at].0 == 7).expect("the object on the heap").clone();
    let pair = format!("lock_operations@/SyncObject/Mutex/{heap}");
    let session = watch(&target.pid_text(), &["sync_objects", "lock_operations_by_object", &pair]);
    target.ask("lock 1 1");
    target.ask("destroy");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sample = outcome.all("sample").into_iter().rfind(|s| s["focus"] != "").expect("a sample");
    assert_eq!((&sample["value"], &sample["object"]["retired"]), (&7.into(), &true.into()), "{sample}");
    // Values by key also tell that the object is retired.
    let by_object = last(&outcome, "lock_operations_by_object")["keys"].as_array().expect("keys");
    let key = by_object.iter().find(|key| key["key"] == *heap).expect("the object");
    assert_eq!((&key["value"], &key["kind"], &key["retired"]), (&7.into(), &"Mutex".into(), &true.into()));
    let others = by_object.iter().filter(|key| key["retired"] == true).count();
    assert_eq!(others, 1, "{by_object:?}");
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
fn keys_of_several_processes_are_put_together_by_name() {
    let mut targets = [Mutatee::start("objects", &[]), Mutatee::start("objects", &[])];
    let before = targets.each_ref().map(|target| Text::of(target.pid()));
    let [first, second] = targets.each_ref().map(Mutatee::pid_text);
    let mut session = watch(&first, &["-p", &second, "lock_operations_by_object"]);
    session.wait_for("attached");
    let told = targets.each_mut().map(|target| known(&target.ask("lock 20 3")));
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.all("removed").len(), 2);
    let combined = outcome.all("combined").into_iter().next_back().expect("what both have together").clone();
    let named = |sample: &Value| -> BTreeMap<String, i64> {
        let keys = sample["keys"].as_array().expect("a vector over keys").iter();
        let value = |key: &Value| key["value"].as_i64().expect("a number");
        keys.filter_map(|key| Some((key["name"].as_str()?.to_owned(), value(key)))).collect()
    };
    let together = named(&combined);
    assert_eq!(together["objects.c:alone"], 2 * 300);
    assert_eq!(together["objects.c:pool+0x28"], 2 * 120);
    assert!(combined["keys"].as_array().expect("keys").iter().all(|key| key["key"].is_null()), "{combined}");
    // The object on the heap has no name, so its value is in `others`.
    let heap: i64 = told.iter().flat_map(BTreeMap::values).map(|(locks, _)| *locks).filter(|locks| *locks == 420).sum();
    assert_eq!(heap, 2 * 420);
    assert!(combined["others"].as_i64().expect("a number") >= heap, "{combined}");
    let sum = together.values().sum::<i64>() + combined["others"].as_i64().expect("a number");
    assert_eq!(combined["value"], sum);
    for (target, before) in targets.iter().zip(&before) {
        let pid = target.pid();
        let own = outcome.all("sample").into_iter().rfind(|s| s["pid"] == pid).expect("its own value");
        assert_eq!(named(own)["objects.c:alone"], 300);
        target::assert_clean(pid, before);
    }
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
