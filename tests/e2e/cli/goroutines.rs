//! Tests of the times of Go functions, against the program's own clock: goroutines wait, are preempted, change threads, grow their stacks,
//! panic, recover and end in between.

use std::process::Command;
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, program, scaled, skip};

use crate::go::end_clean;
use crate::tool;

/// Functions that end by a return, in which the program times itself.
const TIMED: [&str; 4] = ["main.park", "main.burn", "main.grow", "main.rescue"];
/// Functions whose calls a panic or the end of their goroutine leaves.
const LEFT: [&str; 2] = ["main.thrower", "main.quitter"];

/// Panics unless two times differ by at most 3 %, plus the time that the host has taken from this machine.
#[track_caller]
fn assert_near(what: &str, measured: u64, truth: u64) {
    let off = measured.abs_diff(truth).saturating_sub(target::stolen_ns());
    assert!(off * 100 <= truth * 3, "{what}: {measured} ns, but {truth} ns by the program's clock");
}

#[test]
fn goroutines_that_move_have_the_times_of_the_programs_own_clock() {
    let program = match program("clocks") {
        Ok(program) => program,
        Err(why) => skip!("clocks: {why}"),
    };
    let mut target = Mutatee::spawn(Command::new(program).env("GOMAXPROCS", "4"));
    let before = Text::of(target.pid());
    let tool = tool();
    let end = Instant::now() + Duration::from_secs(scaled(0, 600));
    let mut earlier = target.ask("go 1");
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        let functions: Vec<&str> = TIMED.into_iter().chain(LEFT).chain(["main.quick"]).collect();
        let session = tool.measure("latency", target.pid(), &functions);
        target.ask(&format!("go {}", scaled(3, 20)));
        let truth = target.ask("quick 20000");
        let outcome = session.interrupt().assert_code(0);
        let since = |words: &str| truth.number(words) - earlier.number(words);
        for function in TIMED {
            let seen = outcome.latency(function);
            let tally = since(&format!("tally {function}"));
            assert_eq!((seen.calls, seen.timed), (tally, tally), "{function}: {seen:?}");
            assert_eq!((seen.left, seen.unseen, seen.unrecorded), (0, 0, 0), "{function}");
            assert_near(function, seen.sum_ns, since(&format!("ns {function}")));
        }
        let quick = outcome.latency("main.quick");
        let gone = (quick.left, quick.unseen, quick.unrecorded);
        assert_eq!((quick.calls, gone), (since("tally main.quick"), (0, 0, 0)));
        for function in LEFT {
            let seen = outcome.latency(function);
            let calls = since(&format!("tally {function}"));
            assert_eq!((seen.calls, seen.timed, seen.unseen, seen.unrecorded), (calls, 0, 0, 0), "{function}");
            // The exit of the function that recovers ends the calls below it. The last calls of a goroutine that has ended are noticed when
            // its descriptor is used again.
            let least = if function == "main.thrower" { calls } else { 1 };
            assert!((least..=calls).contains(&seen.left), "{function}: {} of {calls}", seen.left);
        }
        earlier = truth;
        rounds += 1;
    }
    println!("{rounds} rounds");
    end_clean(target, &before);
}

#[test]
fn handlers_of_a_server_have_the_times_of_its_own_clock() {
    if let Err(why) = program("handlers") {
        skip!("handlers: {why}");
    }
    let mut target = Mutatee::start("handlers", &[]);
    let before = Text::of(target.pid());
    let earlier = target.ask("go 20");
    // All functions of the program are timed, those of its runtime too.
    let session = tool().measure("latency", target.pid(), &["handlers:*"]);
    let truth = target.ask(&format!("go {}", scaled(200, 50_000)));
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(truth.number("wrong"), 0);
    let since = |words: &str| truth.number(words) - earlier.number(words);
    let seen = outcome.latency("main.handle");
    assert_eq!((seen.calls, seen.left, seen.unseen), (since("tally main.handle"), 0, 0), "{seen:?}");
    assert_near("main.handle", seen.sum_ns, since("ns main.handle"));
    end_clean(target, &before);
}

#[test]
fn state_of_a_thread_is_refused_in_go() {
    if let Err(why) = program("clocks") {
        skip!("clocks: {why}");
    }
    let target = Mutatee::start("clocks", &[]);
    let pid = target.pid_text();
    let cpu = ["latency", "--cpu", "-p", &pid, "main.park", "--for", "1s"];
    let timer = ["watch", "-p", &pid, "exec_time@/Code/clocks/main.park", "--for", "1s"];
    for arguments in [cpu.as_slice(), &timer] {
        let _ = tool().run(arguments).assert_error(3, &["its calls move between threads"]);
    }
}
