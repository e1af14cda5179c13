//! Threads that are unwound from an instruction that is no call, and code that compares program counters: by cancellation, by faults that
//! throw exceptions.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, program, skip};

use crate::tool;

/// All edges of these functions are refused with this reason before the target is touched, and it does what it does without us.
fn all_is_refused(name: &str, pattern: &str, why: &str, ask: &str, answers: &[(&str, u64)]) {
    if let Err(why) = program(name) {
        skip!("{why}");
    }
    let mut target = Mutatee::start(name, &[]);
    let before = Text::of(target.pid());
    let _ = tool().run(["count", "-p", &target.pid_text(), pattern]).assert_error(3, &[why]);
    target::assert_clean(target.pid(), &before);
    let reply = target.ask(ask);
    for (words, number) in answers {
        assert_eq!(reply.number(words), *number, "{reply:?}");
    }
    assert!(target.end().success());
}

#[test]
fn threads_that_are_cancelled_at_any_instruction() {
    let cleaned = [("cleaned", 200)];
    all_is_refused("cancels-async", "work#*->*", "be cancelled at any instruction", "compute 200", &cleaned);
}

/// Without symbols and libraries, the function that sets the type of cancellation is known by its form.
#[test]
fn threads_of_a_stripped_static_program_that_are_cancelled_at_any_instruction() {
    let cleaned = [("cleaned", 100)];
    all_is_refused("cancels-async-static", "*#*->*", "be cancelled at any instruction", "compute 100", &cleaned);
}

/// The unwinder begins in the handler and passes what the signal has interrupted. A copy there would end its way.
#[test]
fn threads_that_end_in_a_signal_handler() {
    for how in ["exit", "cancel"] {
        let mut target = Mutatee::start("departs", &[how]);
        let before = Text::of(target.pid());
        assert_eq!(target.ask("end 50").number("destroyed"), 50);
        // The second handler calls a cancellation point itself.
        let handler = if how == "exit" { "departs:leave (it leads to departs:depart)" } else { "departs:wait" };
        let words = [handler, "may end its thread"];
        let _ = tool().run(["count", "-p", &target.pid_text(), "work#*->*"]).assert_error(3, &words);
        target::assert_clean(target.pid(), &before);
        // Other threads call what is woven in place.
        let session = tool().count(target.pid(), &["compute"]);
        assert_eq!(target.ask("end 200").number("destroyed"), 200, "{how}");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("compute"), 200);
        assert!(outcome.stderr.contains(&format!("{handler} may end its thread")), "{}", outcome.stderr);
        target::assert_clean(target.pid(), &before);
        assert!(target.end().success());
    }
}

/// The program imports what would end a thread, but none of its handlers calls it.
#[test]
fn functions_are_copied_if_no_handler_ends_its_thread() {
    let mut target = Mutatee::start("departs", &["quiet"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work#*->*"]);
    before.assert_not_in(target.pid());
    assert_eq!(target.ask("end 200").number("destroyed"), 200);
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// The engine looks at new handlers once a second.
#[test]
fn copies_are_given_up_when_a_handler_comes_that_ends_its_thread() {
    let mut target = Mutatee::start("departs", &["late"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work#*->*"]);
    before.assert_not_in(target.pid());
    let _ = target.ask("set");
    let outcome = session.finish().assert_error(1, &["a signal handler was set"]);
    assert!(outcome.all("taken_out").iter().all(|taken| taken["own_gs"] == true), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("end 200").number("destroyed"), 200);
    assert!(target.end().success());
}

/// Without landing pads, cleanup handlers run also if the unwinder finds no table, so the functions are copied.
#[test]
fn threads_without_landing_pads_that_are_cancelled_at_any_instruction() {
    for name in ["cancels-plain", "cancels-async-musl"] {
        if let Err(why) = program(name) {
            skip!("{why}");
        }
        let mut target = Mutatee::start(name, &[]);
        // The first cancellation loads the unwinder.
        assert_eq!(target.ask("compute 1").number("cleaned"), 1);
        let before = Text::of(target.pid());
        let functions = if name == "cancels-plain" { "work#*->*" } else { "cancels-async-musl:*#*->*" };
        let session = tool().count(target.pid(), &[functions]);
        assert_eq!(target.ask("compute 300").number("cleaned"), 300, "{name}");
        let _ = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        assert!(target.end().success());
    }
}

/// The functions are not copied, and no instruction that may fault is displaced.
#[test]
fn faults_that_throw_exceptions() {
    let answers = [("caught", 500), ("destroyed", 1000)];
    all_is_refused("faults", "sum#*->*", "faults throw exceptions", "throw 500", &answers);
    let mut target = Mutatee::start("faults", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["sum", "guarded", "faults:*#*"]);
    let reply = target.ask("throw 500");
    reply.assert_right();
    assert_eq!((reply.number("caught"), reply.number("destroyed")), (500, 1000));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("refused").iter().any(|r| r["reason"] == "throwing_faults"));
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// The C library compares the program counter of a thread that is cancelled with labels around its system call.
fn cancelled_in_a_system_call(name: &str, module: &str) {
    if let Err(why) = program(name) {
        skip!("{why}");
    }
    let mut target = Mutatee::start(name, &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &[&format!("{module}:*#*")]);
    for _ in 0..5 {
        assert_eq!(target.ask("wait 400").number("ended"), 400);
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let refused = outcome.all("refused");
    assert!(refused.iter().any(|r| r["reason"] == "compared_address"), "{refused:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn threads_of_musl_that_are_cancelled_in_a_system_call() {
    cancelled_in_a_system_call("cancels-musl", "libc");
}

#[test]
fn threads_of_a_static_program_with_musl_that_are_cancelled_in_a_system_call() {
    cancelled_in_a_system_call("cancels-musl-static", "cancels-musl-static");
}

#[test]
fn threads_of_a_stripped_program_with_musl_that_are_cancelled_in_a_system_call() {
    cancelled_in_a_system_call("cancels-musl-stripped", "cancels-musl-stripped");
}
