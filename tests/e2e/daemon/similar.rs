//! Tests of requests that differ only in their object and share one snippet, compared with the program's own tallies, while some are
//! inserted and others removed.

use std::collections::BTreeMap;
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, Tool, open_directory, program, scaled, sibling, skip};

use crate::{client, daemon};

/// Returns the number of locks of each mutex of the row since the start, by address, in the order of the row.
fn row(reply: &Reply) -> Vec<(String, i64)> {
    let lines = reply.lines.iter().filter_map(|line| line.strip_prefix("row "));
    let split = |line: &str| {
        let (address, locks) = line.split_once(' ').expect("an address and a number");
        (address.to_owned(), locks.parse().expect("a number"))
    };
    lines.map(split).collect()
}

fn pairs(locks: &[(String, i64)]) -> Vec<String> {
    locks.iter().map(|(address, _)| format!("lock_operations@/SyncObject/Mutex/{address}")).collect()
}

/// Watches the locks of these mutexes.
fn watch(tool: &Tool, target: &Mutatee, sign: &str, locks: &[(String, i64)]) -> Session {
    let pid = target.pid_text();
    let all = ["watch", "-p", &pid, "--max-overhead", "10000"].map(str::to_owned);
    let mut session = tool.start(all.into_iter().chain(pairs(locks)));
    session.wait_for(sign);
    session
}

/// Panics unless the last value of each focus is the difference of `now` and `before`.
#[track_caller]
fn assert_values(outcome: &Outcome, before: &[(String, i64)], now: &[(String, i64)]) {
    let samples = outcome.all("sample");
    let values: BTreeMap<&str, i64> =
        samples.iter().filter_map(|s| Some((s["focus"].as_str()?, s["value"].as_i64()?))).collect();
    assert_eq!(values.len(), before.len());
    let now: BTreeMap<_, _> = now.iter().cloned().collect();
    for (address, earlier) in before {
        let focus = format!("/SyncObject/Mutex/{address}");
        assert_eq!(values.get(&*focus).copied(), Some(now[address] - earlier), "{focus}");
    }
}

/// Returns the number of bytes of woven code in a process.
fn code_bytes(tool: &Tool, pid: i32) -> u64 {
    let [inserted] = &tool.inserted(pid)[..] else { panic!("one process is measured") };
    inserted["bytes"].as_u64().unwrap_or_else(|| panic!("no size: {inserted}"))
}

#[test]
fn values_of_many_are_those_of_few_and_take_no_more_code() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let mut sizes = BTreeMap::new();
    // Three requests have code of their own; more requests share a snippet.
    for count in [3, 8, 64, 96] {
        let begin = row(&target.ask("row 1 1"));
        let session = watch(&tool, &target, "attached", &begin[..count]);
        sizes.insert(count, code_bytes(&tool, target.pid()));
        let end = row(&target.ask(&format!("row {} 5", scaled(50, 5000))));
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_values(&outcome, &begin[..count], &end);
        target::assert_clean(target.pid(), &before);
    }
    // The code for a larger table has a longer mask, by some bytes.
    assert!(sizes[&64] <= sizes[&8] + 256 && sizes[&96] <= sizes[&8] + 256, "{sizes:?}");
}

#[test]
fn some_come_and_others_go() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let first = row(&target.ask("row 1 1"));
    let rounds = scaled(20, 2000);
    let halves = [&first[..32], &first[32..64]];
    let one = watch(&tool, &target, "attached", halves[0]);
    let joined = watch(&tool, &target, "changed", halves[1]);
    let second = row(&target.ask(&format!("row {rounds} 3")));
    assert_values(&one.interrupt().assert_code(0), halves[0], &second);
    // Requests for some of the same mutexes and for others are inserted while threads pass.
    target.tell(&format!("row {rounds} 3"));
    let passing = watch(&tool, &target, "changed", &second[70..96]);
    let third = row(&target.reply());
    let _ = passing.interrupt().assert_code(0);
    let again = watch(&tool, &target, "changed", &third[16..32]);
    let others = watch(&tool, &target, "changed", &third[64..96]);
    let fourth = row(&target.ask(&format!("row {rounds} 3")));
    assert_values(&again.interrupt().assert_code(0), &third[16..32], &fourth);
    assert_values(&others.interrupt().assert_code(0), &third[64..96], &fourth);
    let fifth = row(&target.ask(&format!("row {rounds} 3")));
    assert_values(&joined.interrupt().assert_code(0).assert_removed(), halves[1], &fifth);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_second_name_of_an_object_keeps_no_others_from_sharing() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("objects", &[]);
    let begin = row(&target.ask("row 1 1"));
    let session = watch(&tool, &target, "attached", &begin[..40]);
    let shared = code_bytes(&tool, target.pid());
    let _ = session.interrupt().assert_code(0).assert_removed();
    // The first address is requested again, as a decimal number.
    let hexadecimal = begin[0].0.trim_start_matches("0x");
    let decimal = u64::from_str_radix(hexadecimal, 16).expect("an address").to_string();
    let mut twice = begin[..40].to_vec();
    twice.push((decimal.clone(), begin[0].1));
    let session = watch(&tool, &target, "attached", &twice);
    let with_own = code_bytes(&tool, target.pid()) - shared;
    let mut end = row(&target.ask("row 50 3"));
    end.push((decimal, end[0].1));
    assert_values(&session.interrupt().assert_code(0).assert_removed(), &twice, &end);
    assert!(with_own < 512, "{with_own} bytes for one more");
}

#[test]
fn threads_that_cannot_be_told_apart_share_code_too() {
    let (objects, library) = match (program("objects"), program("libowngs.so")) {
        (Ok(objects), Ok(library)) => (objects, library),
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    };
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    // The library takes the gs base, by which threads find their counters.
    let mut target = Mutatee::spawn(Command::new(objects).env("LD_PRELOAD", library));
    let before = Text::of(target.pid());
    let begin = row(&target.ask("row 1 1"));
    let session = watch(&tool, &target, "attached", &begin[..8]);
    let end = row(&target.ask(&format!("row {} 5", scaled(50, 5000))));
    assert_values(&session.interrupt().assert_code(0).assert_removed(), &begin[..8], &end);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_successor_reads_what_was_left_in_and_restores_all() {
    let directory = open_directory();
    let first = daemon(directory.path(), &[]);
    let tool = client(&first);
    let mut target = Mutatee::start("objects", &[]);
    let before = Text::of(target.pid());
    let begin = row(&target.ask("row 0 1"));
    let pid = target.pid_text();
    let arguments = ["watch", "-p", &pid, "--for", "10ms", "--no-remove"].map(str::to_owned);
    let _ = tool.run(arguments.into_iter().chain(pairs(&begin[..8]))).assert_code(0);
    let leased = watch(&tool, &target, "changed", &begin[8..32]);
    first.kill();
    drop(leased.finish());
    let second = daemon(directory.path(), &[]);
    let tool = client(&second);
    let end = row(&target.ask("row 100 2"));
    assert_values(&tool.run(["read", &pid]).assert_code(0), &begin[..8], &end);
    let _ = tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    // The same is tested without a daemon that takes over.
    let leased = watch(&tool, &target, "attached", &begin[..32]);
    second.kill();
    drop(leased.finish());
    target.ask("row 10 2");
    let _ = Tool::new(sibling("ingraft")).detach(target.pid());
    target::assert_clean(target.pid(), &before);
}
