//! Times by the kernel's clock, which is asked through the vDSO where the time stamp counter is none: chosen here, where both are clocks.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Tool, scaled, wait_until};

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

/// A thread that was interrupted while our code asks for the time returns there when its handler ends, be it on another stack.
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
