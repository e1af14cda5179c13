//! Libraries that are loaded and unloaded while they are measured: what they count stays, their addresses are left alone.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ingraft_testing::target::{self, Size};
use ingraft_testing::{Mutatee, Reply, program, scaled, wait_until};

use crate::tool;

/// The target program with the library that it loads and another one of the same size.
fn loads() -> Mutatee {
    let path = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")])
}

/// The first bytes of `plugin_work` in a target.
fn head(pid: i32, answer: &Reply) -> Option<[u8; 5]> {
    let at = u64::from_str_radix(answer.after("at"), 16).expect("an address");
    let mut bytes = [0; 5];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn is_woven(pid: i32, answer: &Reply) -> bool {
    head(pid, answer).is_some_and(|bytes| bytes[0] == 0xe9)
}

#[test]
fn one_that_comes_back_counts_on() {
    let mut target = loads();
    let opened = target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work"]);
    assert!(is_woven(target.pid(), &opened));
    let mut size = None;
    let mut early = 0;
    for round in 0..scaled(6, 100) {
        target.ask("call 50").assert_right();
        target.ask("close").assert_right();
        let opened = target.ask("open");
        // Calls before the library is woven again may be missed, and no others.
        target.ask("call 10").assert_right();
        early += 10;
        wait_until("the library is woven again", || is_woven(target.pid(), &opened));
        target.ask("call 7").assert_right();
        if round == 2 {
            size = Some(Size::of(target.pid()));
        }
    }
    let (first, last) = (size.expect("three rounds"), Size::of(target.pid()));
    assert!(last.maps <= first.maps, "mappings: {first:?} grew to {last:?}");
    assert!(last.resident <= first.resident + 512, "memory: {first:?} grew to {last:?}");
    let called = target.ask("call 0").tally("plugin_work");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let seen = outcome.calls("plugin_work");
    assert!((called - early..=called).contains(&seen), "{seen} of {called}, of which {early} were early");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 20").assert_right();
}

#[test]
fn one_that_comes_and_goes_all_the_time() {
    let mut target = loads();
    target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("close").assert_right();
    let truth = target.ask(&format!("cycle {} 20", scaled(2000, 20_000)));
    truth.assert_right();
    target.ask("call 30").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.calls("plugin_work") <= truth.tally("plugin_work"), "never more than there were");
    assert_eq!(outcome.calls("local_work"), 30);
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("cycle 100 20").assert_right();
}

#[test]
fn another_library_at_its_addresses_is_left_alone() {
    let mut target = loads();
    target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    let mut truth = target.ask("call 30");
    let mut same_place = 0;
    for _ in 0..2 {
        target.ask("close").assert_right();
        let other = target.ask("other");
        let bytes = head(target.pid(), &other);
        target.ask("call 40").assert_right();
        assert_eq!(head(target.pid(), &other), bytes, "untouched");
        assert!(!is_woven(target.pid(), &other));
        target.ask("call 40").assert_right();
        target.ask("close").assert_right();
        let opened = target.ask("open");
        wait_until("the library is woven", || is_woven(target.pid(), &opened));
        same_place += u64::from(opened.after("at") == other.after("at"));
        truth = target.ask("call 11");
        truth.assert_right();
    }
    assert!(same_place > 0, "the libraries never shared addresses: nothing was tested");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("local_work"), truth.tally("local_work"));
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    target.ask("call 10").assert_right();
}

#[test]
fn an_engine_that_dies_leaves_nothing_when_the_library_was_replaced() {
    let mut target = loads();
    let tool = tool();
    target.ask("open");
    let session = tool.count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("call 30").assert_right();
    session.kill();
    target.ask("close").assert_right();
    let other = target.ask("other");
    let bytes = head(target.pid(), &other);
    tool.detach(target.pid());
    assert_eq!(head(target.pid(), &other), bytes, "untouched");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 30").assert_right();
}

#[test]
fn another_measurement_ends_while_the_library_is_gone() {
    let mut target = loads();
    let tool = tool();
    target.ask("open");
    let session = tool.count(target.pid(), &["libplugin:plugin_work"]);
    target.ask("call 30").assert_right();
    target.ask("close").assert_right();
    let other = target.ask("other");
    let bytes = head(target.pid(), &other);
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.calls("plugin_work"), 30);
    assert_eq!(outcome.one("removed")["text_restored"], true);
    assert_eq!(head(target.pid(), &other), bytes, "untouched");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 30").assert_right();
}
