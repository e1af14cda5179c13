//! Tests of `kill -9` at any moment: the target lives and computes correctly, and `ingraft detach` restores it to the byte.

use std::time::{Duration, Instant};

use ingraft_testing::step::{Fate, TOUCHING, kill_at};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Tool, full, program, scaled, skip, source_directory, wait_until};
use nix::sys::signal::Signal;

use crate::tool;

/// Panics unless the target lives, and nobody traces it, after the death of the engine.
fn assert_lives(target: &mut Mutatee, when: &str) {
    // The moment is printed first, so that it is known whatever fails below.
    eprintln!("{when}");
    assert!(target.alive(), "{when}: the target died");
    wait_until("nobody traces the target", || target::tracer(target.pid()) == 0);
    assert!(!matches!(target::state(target.pid()), 'T' | 't'), "{when}: the target is stopped");
}

/// Panics unless the target also computes correctly, and `detach` restores it.
fn assert_recovers(tool: &Tool, target: &mut Mutatee, before: &Text, when: &str) {
    assert_lives(target, when);
    target.ask("rest");
    target.ask("go 50").assert_right();
    tool.detach(target.pid());
    target::assert_clean(target.pid(), before);
    target.ask("go 50").assert_right();
    target.ask("spin");
}

#[test]
fn before_every_touch_of_attach_insertion_and_removal() {
    // The harness calls waitpid(None). It must not collect the target together with the program, so the target is not its child.
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("spin");
    let pid = target.pid_text();
    for command in ["count", "latency"] {
        let arguments = [command, "-p", &pid, "threads:work_*", "noise", "--for", "50ms"];
        before_every_touch_of(&arguments, &tool, &mut |when| assert_recovers(&tool, &mut target, &before, when));
    }
    let blocks = ["count", "-p", &pid, "work_*#*", "noise#*", "call_many#*", "--for", "50ms"];
    before_every_touch_of(&blocks, &tool, &mut |when| assert_recovers(&tool, &mut target, &before, when));
    // Edges need copies of the functions.
    let edges = ["count", "-p", &pid, "threads:*#*->*", "--for", "50ms"];
    before_every_touch_of(&edges, &tool, &mut |when| assert_recovers(&tool, &mut target, &before, when));
}

#[test]
fn before_every_touch_of_a_program_that_no_handler_returns_in() {
    if let Err(why) = program("threads-musl-plain") {
        skip!("{why}");
    }
    let mut target = Mutatee::start("threads-musl-plain", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("spin");
    let pid = target.pid_text();
    let arguments = ["latency", "-p", &pid, "work_*", "noise", "--for", "50ms"];
    before_every_touch_of(&arguments, &tool, &mut |when| assert_recovers(&tool, &mut target, &before, when));
}

#[test]
fn before_every_touch_of_catching_up() {
    let mut target = Mutatee::start("onstack", &["5"]);
    let before = Text::of(target.pid());
    let (tool, pid) = (tool(), target.pid_text());
    let mdl = source_directory().join("tests/e2e/mdl/inside.mdl").to_str().expect("a path").to_owned();
    let pairs = ["naps_inside@/Code/onstack/f", "wall_time@/Code/onstack/f"];
    let arguments = ["watch", "-p", &pid, "-I", &mdl, pairs[0], pairs[1], "--for", "50ms"];
    let frames = target.ask("halt").number("frames");
    let outcome = tool.run(arguments).assert_code(0).assert_removed();
    assert_eq!(outcome.one("attached")["caught_up"], frames);
    assert!(frames > 0, "some calls are in progress");
    before_every_touch_of(&arguments, &tool, &mut |when| {
        assert_lives(&mut target, when);
        // Calls that were caught up end and others begin, first with the code still there, then without it.
        target.ask("run 5000");
        tool.detach(target.pid());
        target::assert_clean(target.pid(), &before);
        target.ask("run 5000");
    });
}

fn before_every_touch_of(arguments: &[&str], tool: &Tool, recovers: &mut dyn FnMut(&str)) {
    let Fate::Ended(total) = kill_at(&mut tool.command(arguments), TOUCHING, u64::MAX, |_, _| {}) else {
        unreachable!("never reached")
    };
    assert!(total > 10, "only {total} system calls touch the target");
    recovers("a run to the end");
    // The short form tries every step of a stride. Several runs of the suite together try all phases of the stride.
    let stride = if full() { 1 } else { (total / 40).max(1) };
    let phase = u64::from(std::process::id()) % stride;
    for n in (phase..total).step_by(usize::try_from(stride).expect("small")) {
        kill_at(&mut tool.command(arguments), TOUCHING, n, |_, _| {});
        recovers(&format!("{}, killed before touch {n} of {total}", arguments[0]));
    }
}

#[test]
fn at_random_moments_under_load() {
    let mut target = Mutatee::start("threads", &["8"]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("spin");
    // The duration of one whole measurement limits the moments at which the engine is killed.
    let start = Instant::now();
    let outcome = tool.run(["count", "-p", &target.pid_text(), "threads:work_*", "noise", "--for", "20ms"]);
    let whole = start.elapsed();
    assert!(outcome.assert_code(0).calls("noise") > 0);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    for round in 0..scaled(15, 50) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let moment = whole.mul_f64((random >> 40) as f64 / f64::from(1 << 24));
        let session = tool.start(["count", "-p", &target.pid_text(), "threads:work_*", "noise", "--for", "20ms"]);
        std::thread::sleep(moment);
        session.kill();
        assert_recovers(&tool, &mut target, &before, &format!("round {round}, killed after {moment:?} of {whole:?}"));
    }
}

#[test]
fn while_it_counts() {
    let mut target = Mutatee::start("threads", &["8"]);
    let before = Text::of(target.pid());
    let tool = tool();
    tool.count(target.pid(), &["threads:work_*"]).kill();
    before.assert_not_in(target.pid());
    target.ask("go 1000").assert_right();
    // The remains of the measurement are listed, with a holder that is named as dead.
    let listed = tool.inserted(target.pid());
    let [inserted] = listed.as_slice() else { panic!("listed once: {listed:?}") };
    assert!(inserted["holder"].as_str().is_some_and(|holder| holder.contains("dead")), "{inserted}");
    let outcome = tool.detach(target.pid()).assert_removed();
    assert_eq!(outcome.one("removed")["pid"], target.pid());
    target::assert_clean(target.pid(), &before);
    target.ask("go 1000").assert_right();
    assert!(tool.inserted(target.pid()).is_empty());
}

#[test]
fn detach_without_the_state_directory() {
    // `detach` finds the copy of the journal in the target.
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    tool().count(target.pid(), &["threads:work_*"]).kill();
    let other = tool();
    let _ = other.detach(target.pid()).assert_removed();
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

#[test]
fn another_one_takes_over_and_counts_right() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = tool();
    tool.count(target.pid(), &["threads:work_*"]).kill();
    let earlier = target.ask("go 100").tallies();
    let session = tool.count(target.pid(), &["threads:work_*"]);
    let truth = target.ask("go 100");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    truth.assert_right();
    for (function, tally) in truth.tallies().into_iter().filter(|(function, _)| function != "never") {
        assert_eq!(outcome.calls(&function), tally - earlier[&function], "{function}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn detach_all() {
    let tool = tool();
    let mut targets: Vec<Mutatee> = (0..3).map(|_| Mutatee::start("threads", &["2"])).collect();
    let before: Vec<Text> = targets.iter().map(|target| Text::of(target.pid())).collect();
    for target in &targets {
        tool.count(target.pid(), &["threads:work_*"]).kill();
    }
    // A later engine with the same state directory may have restored the first targets already. If others measure on this machine, their
    // measurements stay, and the exit code is 4.
    let outcome = tool.run(["detach", "--all"]);
    assert!(matches!(outcome.status.code(), Some(0 | 4)), "{outcome:#?}");
    assert!(!outcome.all("removed").is_empty(), "{outcome:#?}");
    for target in &targets {
        assert!(!outcome.stderr.contains(&format!("\"pid\":{}", target.pid())), "{outcome:#?}");
    }
    for (target, before) in targets.iter_mut().zip(&before) {
        target::assert_clean(target.pid(), before);
        target.ask("go 100").assert_right();
    }
}

#[test]
fn terminated_properly_it_leaves_nothing() {
    use nix::sys::signal::Signal;
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let tool = tool();
        let session = tool.count(target.pid(), &["threads:work_*"]);
        target.ask("go 10").assert_right();
        session.signal(signal);
        let outcome = session.finish().assert_code(0).assert_removed();
        assert!(!outcome.all("count").is_empty(), "{signal}: final values are printed");
        target::assert_clean(target.pid(), &before);
    }
    // A signal may come while the command still attaches. Whether it has finished or not, nothing is left.
    for delay in [0, 1, 3, 10, 30, 60] {
        let tool = tool();
        let session = tool.start(["count", "-p", &target.pid_text(), "threads:*", "libc:*"]);
        std::thread::sleep(Duration::from_millis(delay));
        session.signal(Signal::SIGINT);
        let outcome = session.finish();
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
        target::assert_clean(target.pid(), &before);
        target.ask("go 10").assert_right();
    }
}

#[test]
fn a_removal_waits_for_the_end_of_a_holder_that_was_killed() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for _ in 0..scaled(10, 50) {
        let session = tool.count(target.pid(), &["libc:*"]);
        // The test does not wait for the end of the command, which has much memory to give back and keeps its locks until then.
        session.signal(Signal::SIGKILL);
        let _ = tool.detach(target.pid()).assert_removed();
        session.kill();
    }
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

#[test]
fn the_files_of_ended_processes_are_swept() {
    let target = Mutatee::start("threads", &["4"]);
    let other = Mutatee::start("threads", &["4"]);
    let tool = tool();
    tool.count(target.pid(), &["threads:work_*"]).kill();
    tool.count(other.pid(), &["threads:work_*"]).kill();
    let folder = tool.state_directory().join("journal");
    let files = || {
        let names = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        names.map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let (gone, stays) = (target.pid_text(), other.pid_text());
    let of = |pid: &str| files().iter().filter(|name| name.starts_with(pid)).count();
    assert!(of(&gone) > 0 && of(&stays) > 0, "{:?}", files());
    target.end();
    let _ = tool.run(["ps", "no-such-name"]);
    assert_eq!(of(&gone), 0, "{:?}", files());
    assert!(of(&stays) > 0, "who lives can be restored: {:?}", files());
    let _ = tool.detach(other.pid()).assert_removed();
    assert!(files().is_empty(), "{:?}", files());
}
