//! Tests of messages by tag and communicator, compared with what the program itself reports.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled, source_directory};
use serde_json::Value;

use crate::tool;

/// Returns the number of calls that sent or received, by communicator and tag, as the program reports it.
fn told(reply: &Reply) -> BTreeMap<(String, i64), i64> {
    let lines = reply.lines.iter().filter_map(|line| line.strip_prefix("messages "));
    lines
        .map(|line| match line.split(' ').collect::<Vec<_>>().as_slice() {
            [group, tag, calls] => {
                (((*group).to_owned(), tag.parse().expect("a tag")), calls.parse().expect("a number"))
            }
            _ => panic!("{line}"),
        })
        .collect()
}

fn last<'a>(outcome: &'a Outcome, pair: &str) -> &'a Value {
    let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
    let samples = outcome.all("sample").into_iter();
    let mut own = samples.filter(|s| s["metric"] == metric && s["focus"] == focus);
    own.next_back().unwrap_or_else(|| panic!("no {pair}: {outcome:#?}"))
}

fn keys(sample: &Value) -> BTreeMap<&str, i64> {
    let keys = sample["keys"].as_array().expect("a vector over keys");
    keys.iter()
        .map(|key| {
            (key["name"].as_str().or(key["key"].as_str()).expect("a key"), key["value"].as_i64().expect("a value"))
        })
        .collect()
}

#[test]
fn tags_and_communicators_are_foci_and_found_by_value() {
    let mut target = Mutatee::start("messages", &[]);
    let before = Text::of(target.pid());
    let pairs = [
        "msgs",
        "msgs@/SyncObject/Message",
        "msgs@/SyncObject/Message/&world",
        "msgs@/SyncObject/Message/&world/7",
        "msgs@/SyncObject/Message/&messages.c:half/7",
        "msgs@/SyncObject/Message/&world/-1",
        "msgs@/SyncObject/Message/&world/3",
        "msgs_by_tag",
        "msgs_by_tag@/SyncObject/Message/&messages.c:half",
        "msgs_by_group",
        "msgs_by_group@/SyncObject/Message/&world/7",
    ];
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "--max-overhead", "100"].into_iter().chain(pairs));
    session.wait_for("attached");
    let n = scaled(200, 10_000);
    for (group, tag, n) in [(0, 7, n), (1, 7, 2 * n), (0, -1, 3), (1, 5, 11), (0, 0, 1)] {
        target.ask(&format!("send {group} {tag} {n}"));
    }
    let told = told(&target.ask("send 0 7 1"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of = |group: &str, tag: i64| told.get(&(group.to_owned(), tag)).copied().unwrap_or(0);
    let sum = |wanted: &dyn Fn(&str, i64) -> bool| -> i64 {
        told.iter().filter(|((group, tag), _)| wanted(group, *tag)).map(|(_, calls)| calls).sum()
    };
    let all = sum(&|_, _| true);
    let values: Vec<i64> =
        pairs[..7].iter().map(|pair| last(&outcome, pair)["value"].as_i64().expect("a number")).collect();
    let world = sum(&|group, _| group == "world");
    assert_eq!(values, [all, all, world, of("world", 7), of("half", 7), of("world", -1), 0]);
    let tag = |tag: i64| sum(&|_, t| t == tag);
    let by_tag = keys(last(&outcome, "msgs_by_tag"));
    let expected = [("0x0", tag(0)), ("0x5", tag(5)), ("0x7", tag(7)), ("0xffffffffffffffff", tag(-1))];
    assert_eq!(by_tag, BTreeMap::from(expected));
    let of_half = keys(last(&outcome, "msgs_by_tag@/SyncObject/Message/&messages.c:half"));
    assert_eq!(of_half, BTreeMap::from([("0x5", of("half", 5)), ("0x7", of("half", 7))]));
    let by_group = keys(last(&outcome, "msgs_by_group"));
    assert_eq!(by_group, BTreeMap::from([("world", world), ("messages.c:half", all - world)]));
    let of_tag = keys(last(&outcome, "msgs_by_group@/SyncObject/Message/&world/7"));
    assert_eq!(of_tag, BTreeMap::from([("world", of("world", 7))]));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn bytes_and_waits_of_messages() {
    let mut target = Mutatee::start("messages", &[]);
    let before = Text::of(target.pid());
    let of_receiver = |metric: &str| format!("{metric}@/Code/messages/receiver");
    let of_tag = "@/SyncObject/Message/&messages.c:half/7";
    let bytes = ["msg_bytes", "msg_bytes_sent", "msg_bytes_recv"];
    let waits = ["sync_wait", "sync_wait_inclusive"].map(of_receiver);
    let reads = ["io_wait", "io_wait_inclusive"].map(of_receiver);
    let halves = bytes.map(|metric| format!("{metric}{of_tag}"));
    let waited_for_tag = format!("sync_wait{of_tag}");
    let pairs = bytes.map(str::to_owned).into_iter().chain(waits.clone()).chain(reads.clone()).chain(halves.clone());
    let pid = target.pid_text();
    let fixed = ["watch", "-p", &pid, "--allow-calls", "--max-overhead", "100"].map(str::to_owned);
    let mut session = tool().start(fixed.into_iter().chain(pairs).chain([waited_for_tag.clone()]));
    session.wait_for("attached");
    let of_world = target.ask(&format!("send 0 7 {}", scaled(200, 10_000)));
    let n = scaled(20, 200);
    let told = target.ask(&format!("late 1 7 {n} 4000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of = |pair: &str| last(&outcome, pair)["value"].as_u64().expect("a number");
    let (sent, received) = (told.number("sent"), told.number("received"));
    assert_eq!(bytes.map(of), [sent + received, sent, received]);
    let half = |what: &str| told.number(what) - of_world.number(what);
    assert_eq!(
        halves.each_ref().map(|pair| of(pair)),
        [half("sent") + half("received"), half("sent"), half("received")]
    );
    // A time may be off by a reading of the clock at each end, and by delays on a busy machine between the two.
    let near = |pair: &str, own: u64| {
        let seen = of(pair);
        assert!(seen.abs_diff(own) <= own / 100 + 50_000 * n, "{pair}: {seen} ns, but the program says {own} ns");
    };
    waits.iter().for_each(|pair| near(pair, told.number("waited")));
    reads.iter().for_each(|pair| near(pair, told.number("read")));
    // Senders do not wait.
    near(&waited_for_tag, half("waited"));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn vectors_over_indices_have_a_value_for_each() {
    let mut target = Mutatee::start("messages", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let metrics = ["by_function", "by_range", "by_result"];
    let definitions = source_directory().join("tests/e2e/mdl/vectors.mdl");
    let definitions = definitions.to_str().expect("a path");
    let fixed = ["watch", "-p", &pid, "--max-overhead", "100", "--allow-calls", "-I", definitions];
    let mut session = tool().start(fixed.into_iter().chain(metrics));
    session.wait_for("attached");
    let n = scaled(200, 10_000);
    for (group, tag, n) in [(0, 7, n), (1, 4, 2 * n), (0, -1, 3), (1, 9, 11), (0, 0, 1), (1, 10, 5)] {
        target.ask(&format!("send {group} {tag} {n}"));
    }
    let told = told(&target.ask("send 0 3 1"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let sum = |wanted: &dyn Fn(&str, i64) -> bool| -> i64 {
        told.iter().filter(|((group, tag), _)| wanted(group, *tag)).map(|(_, calls)| calls).sum()
    };
    let all = sum(&|_, _| true);
    let [function, range, result] = metrics.map(|metric| last(&outcome, metric));
    assert_eq!(keys(function), BTreeMap::from([("MPI_Send", all / 2), ("MPI_Recv", all / 2)]));
    assert_eq!(function["keys"][0]["key"], "0x1", "its place in the list: {function}");
    let bytes = |from, to| 16 * sum(&|_, tag| (from..to).contains(&tag));
    let ranges = BTreeMap::from([("0..4", bytes(0, 4)), ("4..8", bytes(4, 8)), ("8..10", bytes(8, 10))]);
    assert_eq!((keys(range), &range["others"]), (ranges, &(bytes(-1, 0) + bytes(10, 11)).into()));
    assert_eq!(range["value"], 16 * all);
    let of_half = sum(&|group, _| group == "half");
    assert_eq!(keys(result), BTreeMap::from([("0x0", all - of_half), ("0x1", of_half)]));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn code_reads_what_its_thread_has_counted_for_an_index() {
    let mut target = Mutatee::start("messages", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let metrics = ["first_by_function", "first_by_tag", "first_by_range", "first_by_result"];
    let definitions = source_directory().join("tests/e2e/mdl/vectors.mdl");
    let definitions = definitions.to_str().expect("a path");
    let fixed = ["watch", "-p", &pid, "--max-overhead", "100", "--allow-calls", "-I", definitions];
    let mut session = tool().start(fixed.into_iter().chain(metrics));
    session.wait_for("attached");
    // The main thread sends all messages. Each command starts a thread that receives.
    let commands = [(0, 7, 300), (1, 4, 40), (0, -1, 3), (1, 9, 11), (0, 0, 1), (1, 10, 5)];
    for (group, tag, n) in commands {
        target.ask(&format!("send {group} {tag} {n}"));
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    // One thread sends all messages, so its limit holds over all commands. Each command has its own receiver.
    let first = |limit: i64, wanted: &dyn Fn(i64, i64) -> bool| -> (i64, i64) {
        let of = || commands.iter().filter(|(group, tag, _)| wanted(*group, *tag)).map(|(.., n)| *n);
        (of().sum::<i64>().min(limit), of().map(|n| n.min(limit)).sum())
    };
    let both = |(sent, received): (i64, i64)| sent + received;
    let [function, tag, range, result] = metrics.map(|metric| last(&outcome, metric));
    let (sent, received) = first(3, &|_, _| true);
    assert_eq!(keys(function), BTreeMap::from([("MPI_Send", sent), ("MPI_Recv", received)]));
    let by_tag: i64 = commands.iter().map(|(.., n)| 2 * n.min(&5)).sum();
    assert_eq!((tag["keys"].as_array().map(Vec::len), &tag["value"]), (Some(commands.len()), &by_tag.into()), "{tag}");
    let tags = |from, to| both(first(4, &|_, tag| (from..to).contains(&tag)));
    assert_eq!(keys(range), BTreeMap::from([("0..4", tags(0, 4)), ("4..8", tags(4, 8)), ("8..10", tags(8, 10))]));
    assert_eq!(range["others"], 2 * (3 + 5), "{range}");
    let groups = |wanted| both(first(2, &|group, _| group == wanted));
    assert_eq!(keys(result), BTreeMap::from([("0x0", groups(0)), ("0x1", groups(1))]));
    target::assert_clean(target.pid(), &before);
}
