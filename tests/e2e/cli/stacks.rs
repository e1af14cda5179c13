//! Tests that exceptions, longjmp, cancellation, backtraces, debuggers and profilers work in a measured program as usual.

use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, have, output, scaled, skip, wait_until};

use crate::tool;

const FUNCTIONS: &[&str] = &["outer", "middle", "thrower", "jumper", "tracer", "wait_inside", "leave_inside"];

#[test]
fn exceptions_jumps_and_cancellation_through_counted_functions() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let n = scaled(300, 20_000);
    let session = tool().count(target.pid(), FUNCTIONS);
    target.ask(&format!("throw {n}")).assert_right();
    target.ask(&format!("jump {n}")).assert_right();
    let truth = target.ask("cancel 50");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "{function}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("throw 100").assert_right();
}

#[test]
fn exceptions_with_the_whole_runtime_counted() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["throws:*", "libstdc++:*", "libgcc_s:*", "libc:*"]);
    target.ask("throw 300").assert_right();
    target.ask("jump 300").assert_right();
    let truth = target.ask("cancel 20");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("thrower"), truth.tally("thrower"));
    assert!(outcome.counts().iter().any(|(name, calls)| name.contains("_Unwind_RaiseException") && *calls >= 300));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn exceptions_jumps_and_backtraces_with_copies_of_all_functions() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let frames = |target: &mut Mutatee| {
        let told = target.ask("trace");
        told.lines.into_iter().filter(|line| line.starts_with("frame")).collect::<Vec<_>>()
    };
    let without = frames(&mut target);
    // The unwinder and the personality routine run as copies, too.
    let edges = ["throws:*#*->*", "libgcc_s:*#*->*", "libstdc++:__*#*->*"];
    let session = tool().count(target.pid(), &edges);
    assert_eq!(frames(&mut target), without);
    target.ask("throw 300").assert_right();
    target.ask("jump 300").assert_right();
    let truth = target.ask("cancel 20");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let edges = outcome.all("edge");
    let passed = |name: &str| edges.iter().any(|edge| edge["function"] == name && edge["count"].as_u64() > Some(0));
    for function in ["middle", "_Unwind_RaiseException", "__gxx_personality_v0"] {
        assert!(passed(function), "no edge of {function} was passed");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("throw 100").assert_right();
}

#[test]
fn backtraces_are_the_same() {
    let mut target = Mutatee::start("throws", &[]);
    let frames = |target: &mut Mutatee| {
        let told = target.ask("trace");
        told.lines.into_iter().filter(|line| line.starts_with("frame")).collect::<Vec<_>>()
    };
    let without = frames(&mut target);
    assert!(without.iter().filter(|frame| frame.contains("tracer")).count() == 4, "{without:?}");
    let session = tool().count(target.pid(), &["throws:*"]);
    let with = frames(&mut target);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(with, without);
    assert_eq!(outcome.calls("tracer"), 4);
    assert_eq!(frames(&mut target), without);
}

#[test]
fn a_debugger_attaches_and_prints_the_same() {
    if !have("gdb") {
        skip!("gdb is not installed");
    }
    let mut target = Mutatee::start("threads", &["6"]);
    let backtrace = |pid: i32| {
        let text = output(
            Command::new("gdb")
                .args([
                    "-q",
                    "-nx",
                    "-batch",
                    "-p",
                    &pid.to_string(),
                    "-ex",
                    "set print thread-events off",
                    "-ex",
                    "thread apply all bt",
                ])
                .stderr(Stdio::null()),
        );
        // Only the level and the function are compared: a thread that the first debugger interrupted may wait at the next address.
        let name = |line: &str| {
            let (level, rest) = line.split_once(' ').unwrap_or((line, ""));
            let rest = rest.trim_start();
            let rest =
                if rest.starts_with("0x") { rest.split_once(" in ").map_or(rest, |(_, rest)| rest) } else { rest };
            format!("{level} {}", rest.split(' ').next().unwrap_or_default())
        };
        text.lines().filter(|line| line.starts_with('#')).map(name).collect::<Vec<_>>()
    };
    let without = backtrace(target.pid());
    assert!(without.len() > 20, "{without:#?}");
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["threads:*", "libc:*"]);
    let with = backtrace(target.pid());
    target.ask("solo 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(with, without);
    assert_eq!(outcome.calls("work_0"), 10);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_profiler_sees_no_arena_as_a_caller() {
    if !have("perf") {
        skip!("perf is not installed");
    }
    let mut target = Mutatee::start("threads", &["4"]);
    let session = tool().count(target.pid(), &["threads:*", "libc:*"]);
    target.ask("spin");
    let directory = ingraft_testing::open_directory();
    let data = directory.path().join("perf.data");
    let mut recorder = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-p", &target.pid_text(), "-o"])
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start perf");
    // The target runs for two seconds by its own clock while perf records, which is enough for hundreds of samples.
    let mut start = None;
    wait_until("the target has run for two seconds", || {
        let used = target::processor_seconds(target.pid());
        if start.is_none() && data.metadata().is_ok_and(|file| file.len() > 0) {
            start = Some(used);
        }
        start.is_some_and(|start| used - start > 2.0) || recorder.try_wait().is_ok_and(|status| status.is_some())
    });
    if let Ok(Some(status)) = recorder.try_wait() {
        skip!("perf cannot record here: {status}");
    }
    let arenas: Vec<(u64, u64)> = target::maps(target.pid())
        .into_iter()
        .filter(|mapping| {
            mapping.permissions.contains('x') && !mapping.name.starts_with('/') && !mapping.name.starts_with("[v")
        })
        .map(|mapping| (mapping.start, mapping.end))
        .collect();
    assert!(!arenas.is_empty(), "the target is woven");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(recorder.id()).expect("a process id")),
        nix::sys::signal::Signal::SIGINT,
    )
    .expect("end perf");
    recorder.wait().expect("wait for perf");
    let text =
        output(Command::new("perf").args(["script", "-F", "comm,tid,ip", "-i"]).arg(&data).stderr(Stdio::null()));
    let (mut samples, mut leaf) = (0, true);
    for line in text.lines() {
        match u64::from_str_radix(line.trim(), 16) {
            Ok(address) if line.starts_with(char::is_whitespace) && !line.trim().is_empty() => {
                // If perf took the sample in the kernel, the kernel's frames come first.
                if address >> 63 == 1 {
                    continue;
                }
                let in_arena = arenas.iter().any(|&(start, end)| (start..end).contains(&address));
                assert!(leaf || !in_arena, "a caller lies in an arena: {address:x}");
                samples += u64::from(leaf);
                leaf = false;
            }
            _ => leaf = true,
        }
    }
    assert!(samples > 100, "only {samples} samples");
    target.ask("rest");
    let _ = session.interrupt().assert_code(0).assert_removed();
}
