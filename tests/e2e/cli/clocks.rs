//! Tests of times by the kernel's clock. The engine reads it through the vDSO if the time stamp counter is no clock; the tests choose it
//! by a flag.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Tool, program, scaled, wait_until};

use crate::{catch_up, rounds, times, tool};

fn vdso_tool() -> Tool {
    tool().with_clock("vdso")
}

#[test]
fn times_by_the_kernels_clock_are_the_programs_own() {
    let outcome = times::sleep_and_compute(&vdso_tool());
    let said = format!("{outcome:?}");
    assert!(said.contains("the time is read through the vDSO") || said.contains("the time is read by a system call"));
}

#[test]
fn calls_that_are_left_otherwise_by_the_kernels_clock() {
    times::leave_otherwise(&vdso_tool());
}

#[test]
fn calls_in_progress_by_the_kernels_clock() {
    catch_up::catch_up_with_threads_that_run(&vdso_tool());
}

#[test]
fn eight_threads_that_never_rest_by_the_kernels_clock() {
    rounds::timers_come_and_go(&vdso_tool(), "8");
}

/// If a signal interrupts a thread while our code reads the clock, the thread returns to that code after the handler, even if the handler
/// uses another stack.
#[test]
fn handlers_that_interrupt_readings_of_the_clock() {
    let mut target = Mutatee::start("ticks", &["4"]);
    let before = Text::of(target.pid());
    let tool = vdso_tool();
    for _ in 0..scaled(10, 100) {
        let session = tool.measure("latency", target.pid(), &["tick"]);
        let earlier = target.ask("beat").number("handled");
        wait_until("handlers run", || target.ask("beat").number("handled") > earlier + 100);
        let seen = session.interrupt().assert_code(0).assert_removed().latency("tick");
        assert!(seen.calls > 0, "{seen:?}");
        target::assert_clean(target.pid(), &before);
    }
    assert_eq!(target.ask("beat").number("wrong"), 0);
}

/// Reading the clock may need a system call, which a filter may forbid.
#[test]
fn a_filtered_program_has_counts_but_no_times_by_the_kernels_clock() {
    let mut target = Mutatee::start("loads", &[program("libplugin.so").expect("gcc").to_str().expect("a path")]);
    target.ask("open").assert_right();
    let before = Text::of(target.pid());
    target.ask("filter");
    let (tool, pid) = (vdso_tool(), target.pid_text());
    let outcome = tool.run(["latency", "-p", &pid, "local_work", "--for", "100ms"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("times cannot be measured here: a filter of system calls"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    let session = tool.count(target.pid(), &["local_work"]);
    target.ask("call 50").assert_right();
    assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("local_work"), 50);
    target.ask("call 50").assert_right();
    target::assert_clean(target.pid(), &before);
}
