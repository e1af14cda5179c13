//! Tests that counts are exact: with one thread, many threads, threads that begin and end, under load, and in every kind of executable.

use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, program, scaled, skip};

use crate::tool;

/// Compares the counts of the eight functions with the program's own tallies, and the counts of `work_0` by thread.
fn assert_exact(outcome: &Outcome, truth: &Reply) {
    truth.assert_right();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "calls of {function}: {outcome:#?}");
    }
    let mut counted = outcome.threads("work_0");
    counted.retain(|_, calls| *calls > 0);
    assert_eq!(counted, truth.threads(), "calls of work_0 by thread");
}

#[test]
fn one_function_of_one_thread() {
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("solo 77"); // before the measurement, so these calls must not be counted
    let session = tool.count(target.pid(), &["work_0"]);
    before.assert_not_in(target.pid());
    assert_eq!(target::tracer(target.pid()), 0, "untraced in the steady state");
    let told = target.ask("solo 1000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 1000);
    assert_eq!(told.tally("work_0"), 1077);
    told.assert_right();
    target::assert_clean(target.pid(), &before);
    target.ask("solo 10").assert_right();
    assert!(target.end().success());
}

#[test]
fn several_programs_are_added_up() {
    let mut targets = [Mutatee::start("threads", &["1"]), Mutatee::start("threads", &["1"])];
    let tool = tool();
    let pids = targets.each_ref().map(Mutatee::pid_text);
    let mut session = tool.start(["count", "-p", &pids[0], "-p", &pids[1], "work_0"]);
    session.wait_for("attached");
    session.wait_for("attached");
    targets[0].ask("solo 1000");
    targets[1].ask("solo 234");
    let outcome = session.interrupt().assert_code(0);
    let combined = outcome.all("combined");
    let [combined] = combined.as_slice() else { panic!("{outcome:#?}") };
    assert_eq!(combined["value"], 1234);
    assert_eq!((&combined["targets"], &combined["heard"]), (&2.into(), &2.into()));
    for target in targets {
        assert!(target.end().success());
    }
}

#[test]
fn objects_are_as_documented() {
    let mut target = Mutatee::start("threads", &["3"]);
    let tool = tool();
    let mut session = tool.start(["count", "-p", &target.pid_text(), "work_0", "never"]);
    let attached = session.wait_for("attached");
    assert_eq!(attached["pid"], target.pid());
    assert_eq!(attached["threads"], 4);
    assert!(attached["modules"].as_u64().is_some_and(|n| n >= 2), "{attached}");
    assert!(attached["functions"].as_u64().is_some_and(|n| n >= 20), "{attached}");
    assert!(attached["attach_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{attached}");
    assert!(attached["stopped_ms"].as_f64().is_some_and(|ms| ms > 0.0 && ms < 1000.0), "{attached}");
    target.ask("solo 5");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let count =
        outcome.all("count").into_iter().find(|object| object["function"] == "work_0").expect("a count of work_0");
    assert_eq!(count["module"], "threads");
    assert_eq!(count["calls"], 5);
    assert_eq!(count["threads"].as_array().map(Vec::len), Some(1));
    assert_eq!(count["threads"][0]["tid"], target.pid());
    assert!(count["offset"].as_str().is_some_and(|text| text.starts_with("0x")), "{count}");
    assert_eq!(outcome.calls("never"), 0);
}

#[test]
fn sixty_four_threads_while_others_come_and_go() {
    let mut target = Mutatee::start("threads", &["64"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["threads:work_*", "never"]);
    let truth = target.ask(&format!("go {}", scaled(20_000, 800_000)));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome, &truth);
    target::assert_clean(target.pid(), &before);
}

/// If a sleeping thread is asked to stop, it has to wait for a processor until all these threads had one.
#[test]
fn hundreds_of_threads_that_want_a_processor() {
    let path = program("threads").expect("gcc");
    // The target runs in a session of its own, and therefore has its own share of the processors (sched(7), autogroup).
    let mut target = Mutatee::spawn(Command::new("setsid").arg(path).arg("300"));
    let before = Text::of(target.pid());
    target.ask("spin");
    let session = tool().count(target.pid(), &["work_*", "never"]);
    target.ask("rest");
    let truth = target.ask("go 800");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome, &truth);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn attach_while_threads_run_and_start() {
    let mut target = Mutatee::start("threads", &["8"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for round in 0..scaled(3, 50) {
        target.ask("spin");
        let session = tool.count(target.pid(), &["threads:work_*", "noise", "never"]);
        let earlier = target.ask("beat").number("beats");
        ingraft_testing::wait_until("the threads go on", || target.ask("beat").number("beats") > earlier);
        target.ask("rest");
        let counted_before = target.ask("solo 0");
        let truth = target.ask("go 2000");
        target.ask("spin");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        for (function, tally) in truth.tallies() {
            let earlier = counted_before.tally(&function);
            assert_eq!(outcome.calls(&function), tally - earlier, "round {round}: {function}");
        }
        assert!(outcome.calls("noise") > 0);
        truth.assert_right();
        target::assert_clean(target.pid(), &before);
        target.ask("rest");
    }
}

#[test]
fn all_functions_of_a_program_and_its_libraries() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["threads:*", "libc:*"]);
    let truth = target.ask("go 1000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    truth.assert_right();
    let counts = outcome.counts();
    for (function, tally) in truth.tallies() {
        assert_eq!(counts.get(&function), Some(&tally), "{function}");
    }
    assert!(counts.len() > 1000, "{} functions counted", counts.len());
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

/// Panics unless counts by name are exact in this kind of executable.
fn exact_in(name: &str) {
    if let Err(why) = program(name) {
        skip!("{name}: {why}");
    }
    let mut target = Mutatee::start(name, &["6"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work_?", "never"]);
    let truth = target.ask("go 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome, &truth);
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

#[test]
fn static_executable() {
    exact_in("threads-static");
}

#[test]
fn static_position_independent_executable() {
    exact_in("threads-static-pie");
}

#[test]
fn executable_at_a_fixed_address() {
    exact_in("threads-no-pie");
}

#[test]
fn executable_with_musl() {
    exact_in("threads-musl");
}

#[test]
fn static_executable_with_musl() {
    exact_in("threads-musl-static");
}

/// No signal handler of this program can return, because the program has no code that calls rt_sigreturn(2).
#[test]
fn static_executable_with_musl_and_without_handlers() {
    let path = match program("threads-musl-plain") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let file = std::fs::read(path).expect("its file");
    for returns in [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05][..], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]] {
        assert!(!file.windows(returns.len()).any(|bytes| bytes == returns), "this C library always has such code");
    }
    exact_in("threads-musl-plain");
}

#[test]
fn executable_with_landing_places() {
    exact_in("threads-cet");
}

#[test]
fn stripped_executable_by_offset() {
    // The stripped program is the same build without symbols, so it has the offsets of the other program.
    let mut target = Mutatee::start("threads-stripped", &["4"]);
    let symbols = ingraft_testing::output(Command::new("nm").arg(program("threads").expect("gcc")));
    let offset = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("a symbol");
        format!("threads-stripped+0x{}", line.split(' ').next().expect("an address").trim_start_matches('0'))
    };
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &[&offset("work_0"), &offset("work_3")]);
    let truth = target.ask("go 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let calls = |name: &str| {
        let wanted = offset(name).split_once('+').expect("an offset").1.to_owned();
        let count = outcome.all("count").into_iter().find(|object| object["offset"] == wanted.as_str());
        count.unwrap_or_else(|| panic!("no count at {wanted}: {outcome:#?}"))["calls"].as_u64()
    };
    assert_eq!(calls("work_0"), Some(truth.tally("work_0")));
    assert_eq!(calls("work_3"), Some(truth.tally("work_3")));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn rust_program_by_demangled_name() {
    let mut target = Mutatee::start("twin", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["*shapes::area*", "*shapes::middle*", "*shapes::thrower*"]);
    target.ask("work 3000").assert_right();
    let truth = target.ask("panic 300");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let counts = outcome.counts();
    for name in ["area", "middle", "thrower"] {
        let calls: u64 =
            counts.iter().filter(|(function, _)| function.contains(&format!("::{name}"))).map(|(_, calls)| calls).sum();
        assert_eq!(calls, truth.tally(name), "{name}: {counts:?}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn go_program() {
    if let Err(why) = program("gopher") {
        skip!("gopher: {why}");
    }
    let mut target = Mutatee::start("gopher", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["main.work", "main.deep"]);
    let truth = target.ask("go 50000");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("main.work"), truth.tally("main.work"));
    // When a stack grows, Go's code goes back to the first instruction of the function; this is no call.
    assert_eq!(outcome.calls("main.deep"), truth.tally("main.deep"));
    target::assert_clean(target.pid(), &before);
    target.ask("go 1000").assert_right();
}

#[test]
fn without_privilege() {
    if !ingraft_testing::is_root() {
        skip!("the other tests already run without privilege");
    }
    use std::os::unix::process::CommandExt;
    let directory = ingraft_testing::open_directory();
    let copy = ingraft_testing::exposed(&program("threads").expect("gcc"), directory.path());
    let mut command = Command::new(copy);
    let mut target = Mutatee::spawn(command.arg("8").uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY));
    let before = Text::of(target.pid());
    let session = crate::unprivileged_tool().count(target.pid(), &["work_?", "never"]);
    let truth = target.ask("go 5000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome, &truth);
    target::assert_clean(target.pid(), &before);
}
