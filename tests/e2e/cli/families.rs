//! A parent's counts are its own; its children run unharmed and are restored at the end as well.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, scaled};

use crate::tool;

const COUNTED: &[&str] = &["parent_work", "child_work", "shared_work"];

fn children_of_kind(command: &str) {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let truth = target.ask(command);
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "{command}: {function}: {outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("fork 3 3").assert_right();
    target.ask("vfork 3").assert_right();
}

#[test]
fn a_thousand_forks() {
    children_of_kind(&format!("fork {} 100", scaled(300, 1000)));
}

#[test]
fn a_thousand_vforks() {
    children_of_kind(&format!("vfork {}", scaled(300, 1000)));
}

#[test]
fn a_thousand_spawns() {
    children_of_kind(&format!("spawn {}", scaled(300, 1000)));
}

#[test]
fn a_child_that_lives_on_is_restored_too() {
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    before.assert_not_in(kept);
    target.ask("poke 5000").assert_right();
    let truth = target.ask("fork 10 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work"), "the child's calls are not the parent's");
    assert_eq!(outcome.calls("child_work"), 0);
    target::assert_clean(target.pid(), &before);
    before.assert_in(kept);
    assert_eq!(target::tracer(kept), 0);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}

#[test]
fn a_child_that_never_called_anything_is_harmless() {
    // It inherits the springboards but never runs into one before the parent is restored; it must still be right afterwards.
    let mut target = Mutatee::start("family", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), COUNTED);
    let _kept: i32 = target.ask("keep").after("child").parse().expect("a process id");
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("removed")["text_restored"], true);
    target::assert_clean(target.pid(), &before);
    target.ask("poke 5000").assert_right();
    target.ask("drop").assert_right();
}
