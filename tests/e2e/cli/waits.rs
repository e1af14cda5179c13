//! Tests that no system call in which a target waits returns early because of the engine.

use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Mutatee, program, scaled, skip};

use crate::{tool, unprivileged_tool};

fn assert_waiting(target: &mut Mutatee, round: u64) {
    let told = target.ask("check");
    let early: Vec<_> = told.lines.iter().filter(|line| line.starts_with("early")).collect();
    assert!(early.is_empty(), "round {round}: {early:?}");
}

fn rounds(target: &mut Mutatee, tool: &ingraft_testing::Tool) {
    let before = Text::of(target.pid());
    let mut size = None;
    let total = scaled(20, 200);
    for round in 0..total {
        let session = tool.count(target.pid(), &["tick"]);
        assert_waiting(target, round);
        target.ask("tick 10");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("tick"), 10);
        assert_waiting(target, round);
        target::assert_clean(target.pid(), &before);
        if round == 2 {
            size = Some(Size::of(target.pid()));
        }
    }
    let (first, last) = (size.expect("three rounds"), Size::of(target.pid()));
    assert!(
        last.maps <= first.maps && last.files <= first.files && last.resident <= first.resident + 512,
        "{first:?} grew to {last:?}"
    );
    ingraft_testing::wait_until("all threads wait again", || target.ask("stay").number("waiting") == 16);
    let told = target.ask("release");
    for line in told.lines.iter().filter(|line| line.starts_with("returned")) {
        let words: Vec<&str> = line.split(' ').collect();
        let expected = match words[1] {
            "nanosleep" | "pause" => ["-1", "4"], // interrupted by the signal that ended it
            "clock_nanosleep" => ["4", "0"],      // which this one returns
            "futex" | "futex_timed" | "semop" | "accept" => ["0", "0"],
            "sigtimedwait" => ["12", "0"],
            _ => ["1", "0"],
        };
        assert_eq!(words[2..], expected, "{line}");
    }
}

#[test]
fn none_returns_early() {
    let mut target = Mutatee::start("blocked", &[]);
    rounds(&mut target, &tool());
}

#[test]
fn none_returns_early_without_privilege() {
    if !ingraft_testing::is_root() {
        skip!("the other test already runs without privilege");
    }
    use std::os::unix::process::CommandExt;
    let directory = ingraft_testing::open_directory();
    let copy = ingraft_testing::exposed(&program("blocked").expect("gcc"), directory.path());
    let mut command = std::process::Command::new(copy);
    let mut target = Mutatee::spawn(command.uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY));
    rounds(&mut target, &unprivileged_tool());
}

/// If a call has done a part of its work, it ends with that part at the first stop, as docs/safety.md says. The target waits for the rest,
/// and
/// nothing is done twice or lost.
#[test]
fn calls_that_have_done_a_part() {
    let mut target = Mutatee::start("partial", &[]);
    let before = Text::of(target.pid());
    let threads = target.ask("stay").lines.iter().any(|line| line.ends_with("of 3"));
    if !threads {
        println!("skipped: the kernel has no io_uring for us; the other calls are tried");
    }
    for _ in 0..scaled(10, 100) {
        let session = tool().count(target.pid(), &["tick"]);
        target.ask("tick 10").assert_right();
        assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("tick"), 10);
        let told = target.ask("check");
        for line in told.lines.iter().filter(|line| line.starts_with("interrupted ")) {
            assert!(line.ends_with(" 0"), "a call that had done nothing has ended: {line}");
        }
        for line in told.lines.iter().filter(|line| line.starts_with("short ")) {
            assert!(line.ends_with(" 1"), "one part, at the first stop: {line}");
        }
    }
    ingraft_testing::wait_until("all threads wait", || {
        let told = target.ask("stay");
        let line = told.lines.iter().find_map(|line| line.strip_prefix("waiting ")).unwrap_or_default().to_owned();
        line.split_once(" of ").is_some_and(|(now, all)| now == all)
    });
    let told = target.ask("release");
    for (name, moved) in [("write", "1048576"), ("recv", "16"), ("uring", "1")] {
        if let Some(line) = told.lines.iter().find(|line| line.starts_with(&format!("moved {name} "))) {
            assert_eq!(line, &format!("moved {name} {moved}"));
        }
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn signal_handlers_on_their_own_stacks() {
    let mut target = Mutatee::start("signals", &["4"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work", "on_signal", "in_handler"]);
    let truth = target.ask(&format!("go {}", scaled(1_000_000, 20_000_000)));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "{function}");
    }
    target::assert_clean(target.pid(), &before);
}
