//! Tests of programs whose threads cannot make system calls, cannot read the time stamp counter, or do not execute their own code.

use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, have, program, skip};

use crate::tool;

/// Turns Syscall User Dispatch on in the main thread. Returns `false` if the kernel has none.
fn dispatches(target: &mut Mutatee, mode: &str) -> bool {
    target.ask(&format!("dispatch {mode}")).number("unsupported") == 0
}

fn works_and_is_clean(target: &mut Mutatee, before: &Text) {
    target.ask("work 50").assert_right();
    target::assert_clean(target.pid(), before);
    assert!(target.alive());
}

fn counts(target: &mut Mutatee, before: &Text) {
    let session = tool().count(target.pid(), &["work"]);
    target.ask("work 50").assert_right();
    assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("work"), 50);
    works_and_is_clean(target, before);
}

#[test]
fn a_program_that_dispatches_all_its_system_calls_is_refused() {
    let mut target = Mutatee::start("trapped", &[]);
    let before = Text::of(target.pid());
    if !dispatches(&mut target, "block") {
        skip!("the kernel has no syscall user dispatch");
    }
    let earlier = target.ask("work 1").number("handled");
    for command in ["count", "latency"] {
        let outcome = tool().run([command, "-p", &target.pid_text(), "work"]);
        let _ = outcome.assert_error(4, &["syscall user dispatch"]);
        works_and_is_clean(&mut target, &before);
    }
    assert!(target.ask("work 1").number("handled") > earlier, "its own calls are still dispatched");
}

#[test]
fn a_thread_that_does_not_dispatch_makes_the_calls() {
    let mut target = Mutatee::start("trapped", &[]);
    let before = Text::of(target.pid());
    target.ask("thread");
    if !dispatches(&mut target, "block") {
        skip!("the kernel has no syscall user dispatch");
    }
    for _ in 0..3 {
        counts(&mut target, &before);
    }
    // The code of processor time makes system calls in all threads.
    let outcome = tool().run(["watch", "-p", &target.pid_text(), "cpu_time@/Code/trapped/work", "--for", "100ms"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    works_and_is_clean(&mut target, &before);
}

#[test]
fn calls_that_dispatch_lets_pass_are_made() {
    for mode in ["allow", "range"] {
        let mut target = Mutatee::start("trapped", &[]);
        let before = Text::of(target.pid());
        if !dispatches(&mut target, mode) {
            skip!("the kernel has no syscall user dispatch");
        }
        counts(&mut target, &before);
    }
}

#[test]
fn times_without_the_time_stamp_counter() {
    for clock in ["auto", "vdso"] {
        let mut target = Mutatee::start("trapped", &[]);
        let before = Text::of(target.pid());
        target.ask("notsc");
        target.ask("thread");
        let session = tool().with_clock(clock).measure("latency", target.pid(), &["work"]);
        target.ask("work 50").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.latency("work").calls, 50);
        assert!(format!("{outcome:?}").contains("by a system call"), "{outcome:#?}");
        works_and_is_clean(&mut target, &before);
    }
}

#[test]
fn times_by_the_counter_are_refused_where_a_thread_has_turned_it_off() {
    for (command, clock) in [("notsc", "tsc"), ("notsc thread", "auto"), ("strict", "auto")] {
        let mut target = Mutatee::start("trapped", &[]);
        let before = Text::of(target.pid());
        target.ask(command);
        let tool = tool().with_clock(clock);
        // The clock of processor time reads the counter in any case.
        let cpu = tool.run(["latency", "--cpu", "-p", &target.pid_text(), "work"]);
        assert_ne!(cpu.status.code(), Some(0), "{cpu:#?}");
        let _ = tool.run(["latency", "-p", &target.pid_text(), "work"]).assert_error(1, &["times cannot be measured"]);
        works_and_is_clean(&mut target, &before);
        counts(&mut target, &before);
    }
}

#[test]
fn the_counter_is_turned_off_between_two_measurements() {
    let mut target = Mutatee::start("trapped", &[]);
    let before = Text::of(target.pid());
    for command in ["work 1", "notsc"] {
        target.ask(command);
        let session = tool().measure("latency", target.pid(), &["work"]);
        target.ask("work 50").assert_right();
        assert_eq!(session.interrupt().assert_code(0).assert_removed().latency("work").calls, 50);
    }
    works_and_is_clean(&mut target, &before);
}

/// Starts a target program under a host, and checks that it is refused by the host's name.
fn refused_under(host: &[&str], name: &str) {
    if !have(host[0]) {
        skip!("{} is not installed", host[0]);
    }
    let path = program("corner").expect("gcc");
    let mut command = Command::new(host[0]);
    command.args(&host[1..]).arg(&path);
    let mut target = Mutatee::spawn(&mut command);
    let before = Text::of(target.pid());
    let _ = tool().run(["count", "-p", &target.pid_text(), "work"]).assert_error(4, &[name]);
    target.ask("work 50").assert_right();
    assert!(before.differences(&Text::of(target.pid())).is_empty());
    let listed = tool().run(["ps"]);
    let all = listed.all("process");
    let of_target = all.iter().find(|p| p["pid"] == target.pid());
    let process = of_target.unwrap_or_else(|| panic!("{listed:#?}"));
    assert_eq!(process["attachable"], false, "{process}");
    assert!(process["why_not"].as_str().is_some_and(|why| why.contains(name)), "{process}");
    // The same host is refused when ingraft is asked to start it.
    let path = path.to_str().expect("a path");
    if host[0].starts_with("qemu") {
        let outcome = tool().run(["count", "work", "--", host[0], path]);
        let _ = outcome.assert_error(3, &[name]);
    }
}

#[test]
fn a_program_under_valgrind_is_refused() {
    refused_under(&["valgrind", "-q", "--tool=none"], "valgrind");
}

#[test]
fn a_program_under_qemu_is_refused() {
    refused_under(&["qemu-x86_64"], "qemu-user");
}
