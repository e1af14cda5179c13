//! Lossless traces: threads that are faster than the reader of their buffers wait for it, but not for a reader that is stopped, dead or
//! forbidden.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ingraft_model::layout::ROOM_WAIT_NS;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, open_directory, program, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::tool;

/// Number of runs in which this machine may be too busy to run the reader for a quarter of a second.
const BUSY: usize = 20;

/// A trace file in a directory of its own.
struct File {
    directory: tempfile::TempDir,
}

impl File {
    fn new() -> File {
        File { directory: open_directory() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("some.trace")
    }

    fn name(&self) -> String {
        self.path().to_str().expect("a path").to_owned()
    }

    /// Arguments of a lossless trace with the smallest buffers.
    fn arguments<'a>(&'a self, name: &'a str, functions: &[&'a str]) -> Vec<&'a str> {
        [&["-o", name, "--lossless", "--buffer", "4"], functions].concat()
    }

    fn is_longer_than(&self, bytes: u64) -> bool {
        Path::metadata(&self.path()).is_ok_and(|file| file.len() > bytes)
    }
}

fn gaps(traced: &Outcome) -> u64 {
    traced.one("traced")["gaps"].as_u64().expect("a number")
}

/// Number of executions of each block, by function and offset.
fn blocks(outcome: &Outcome) -> BTreeMap<(String, String), u64> {
    let text = |record: &Value, key: &str| record[key].as_str().expect("a text").to_owned();
    let one = |record: &&Value| {
        let block = (text(record, "function"), text(record, "block"));
        (block, record["count"].as_u64().expect("a count"))
    };
    outcome.all("block").iter().map(one).collect()
}

/// Number of calls of a function in a summary.
fn calls(summary: &Outcome, function: &str) -> u64 {
    blocks(summary).get(&(function.to_owned(), "0x0".to_owned())).copied().unwrap_or_default()
}

/// Sum of a number over all threads of a replay.
fn sum(outcome: &Outcome, key: &str) -> u64 {
    outcome.all("replayed").iter().map(|thread| thread[key].as_u64().expect("a number")).sum()
}

/// Fails unless the replay of a file tells as many gaps as the command that wrote it, and nothing wrong.
fn assert_marked(file: &File, gaps: u64) -> Outcome {
    let summary = tool().run(["replay", &file.name(), "--summary"]).assert_code(0);
    assert_eq!((sum(&summary, "gaps"), sum(&summary, "defects")), (gaps, 0));
    summary
}

/// Stops an engine by a signal, and waits until it has stopped.
fn stop(session: &Session) {
    session.signal(Signal::SIGSTOP);
    let stopped = || target::threads(session.pid()).into_iter().all(|tid| target::state(tid) == 'T');
    wait_until("it is stopped", stopped);
}

/// Without the flag, such buffers lose most of the tokens (`traces::a_full_buffer_is_a_gap`).
#[test]
fn threads_wait_for_room_and_lose_nothing() {
    let file = File::new();
    let name = file.name();
    let functions = ["work_0", "work_1", "work_7"];
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let mut tallies: BTreeMap<&str, u64> = BTreeMap::new();
    for run in 0..BUSY {
        let session = tool().measure("trace", target.pid(), &file.arguments(&name, &functions));
        let reply = target.ask("go 20000");
        let traced = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        reply.assert_right();
        let made = functions.map(|function| (function, reply.tally(function)));
        let earlier = std::mem::replace(&mut tallies, BTreeMap::from(made));
        let summary = assert_marked(&file, gaps(&traced));
        if gaps(&traced) > 0 && run + 1 < BUSY {
            continue;
        }
        assert_eq!(traced.one("traced")["unbuffered"], 0);
        for key in ["gaps", "lost", "skipped"] {
            assert_eq!(sum(&summary, key), 0, "{key}");
        }
        for (function, calls_made) in made {
            let expected = calls_made - earlier.get(function).copied().unwrap_or_default();
            assert_eq!(calls(&summary, function), expected, "{function}");
        }
        return;
    }
}

#[test]
fn all_blocks_are_told_though_buffers_are_small() {
    let functions = ["hash_step", "hash_text", "fib", "even", "odd", "compare"];
    let determ = program("determ").expect("gcc").to_str().expect("a path").to_owned();
    let profile = [&["profile", "blocks", "--until-exit", "--own-status"], &functions[..], &["--", &determ, "1"]];
    let expected = blocks(&tool().run(profile.concat()).assert_code(0));
    assert!(expected.values().sum::<u64>() > 10_000, "{expected:?}");
    for run in 0..BUSY {
        let file = File::new();
        let name = file.name();
        let arguments = file.arguments(&name, &functions);
        let trace = [&["trace", "--times", "--until-exit", "--own-status"], &arguments[..], &["--", &determ, "1"]];
        let traced = tool().run(trace.concat()).assert_code(0);
        let summary = assert_marked(&file, gaps(&traced));
        if gaps(&traced) == 0 || run + 1 == BUSY {
            assert_eq!(blocks(&summary), expected);
            return;
        }
    }
}

#[test]
fn a_stopped_reader_costs_one_delay() {
    let file = File::new();
    let name = file.name();
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let session = tool().measure("trace", target.pid(), &file.arguments(&name, &["work_0"]));
    target.ask("solo 100").assert_right();
    stop(&session);
    let begin = Instant::now();
    let reply = target.ask("solo 500000");
    assert!(begin.elapsed() >= Duration::from_nanos(u64::from(ROOM_WAIT_NS)), "it waited");
    reply.assert_right();
    session.signal(Signal::SIGCONT);
    let reply = target.ask("solo 100");
    reply.assert_right();
    let traced = session.interrupt().assert_code(0).assert_removed();
    assert!(gaps(&traced) > 0 && traced.stderr.contains("waited for room in vain"), "{traced:#?}");
    let summary = assert_marked(&file, gaps(&traced));
    let told = calls(&summary, "work_0");
    assert!(100 <= told && told < reply.tally("work_0"), "{told}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_dead_reader_costs_one_delay() {
    let file = File::new();
    let name = file.name();
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let session = tool.measure("trace", target.pid(), &file.arguments(&name, &["work_0", "noise"]));
    target.ask("spin");
    wait_until("threads have waited", || file.is_longer_than(200_000));
    session.kill();
    target.ask("solo 500000").assert_right();
    target.ask("rest");
    tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

#[test]
fn a_removal_does_not_wait_for_threads_that_wait() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    target.ask("spin");
    for _ in 0..3 {
        let file = File::new();
        let name = file.name();
        let session = tool().measure("trace", target.pid(), &file.arguments(&name, &["noise"]));
        wait_until("threads have waited", || file.is_longer_than(200_000));
        let traced = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        assert_marked(&file, gaps(&traced));
    }
    target.ask("rest");
}

/// Another measurement is inserted and removed three times while threads wait for room.
#[test]
fn other_measurements_come_and_go_while_threads_wait() {
    // Commands with one state directory share an engine.
    let tool = tool();
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    target.ask("spin");
    let file = File::new();
    let name = file.name();
    let session = tool.measure("trace", target.pid(), &file.arguments(&name, &["noise"]));
    for round in 1..=3 {
        wait_until("threads have waited", || file.is_longer_than(200_000 * round));
        let mut count = tool.start(["count", "-p", &target.pid_text(), "noise", "work"]);
        count.wait_for("changed");
        wait_until("threads have waited again", || file.is_longer_than(200_000 * round + 100_000));
        let counted = count.interrupt().assert_code(0);
        assert_eq!(counted.all("count").len(), 2, "{counted:#?}");
    }
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
}

#[test]
fn signals_do_not_end_a_wait() {
    let file = File::new();
    let name = file.name();
    let functions = ["work", "on_signal", "in_handler"];
    for run in 0..BUSY {
        let mut target = Mutatee::start("signals", &["3"]);
        let before = Text::of(target.pid());
        let session = tool().measure("trace", target.pid(), &file.arguments(&name, &functions));
        let reply = target.ask("go 2000");
        let traced = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let summary = assert_marked(&file, gaps(&traced));
        if gaps(&traced) == 0 || run + 1 == BUSY {
            for function in functions {
                assert_eq!(calls(&summary, function), reply.tally(function), "{function}");
            }
            return;
        }
    }
}

#[test]
fn a_filtered_program_is_refused() {
    let file = File::new();
    let name = file.name();
    let mut target = Mutatee::start("loads", &[program("libplugin.so").expect("gcc").to_str().expect("a path")]);
    let before = Text::of(target.pid());
    target.ask("filter");
    let pid = target.pid_text();
    let trace = [&["trace", "-p", &pid], &file.arguments(&name, &["local_work"])[..]].concat();
    let outcome = tool().run(trace);
    assert!(matches!(outcome.status.code(), Some(1 | 4)) && outcome.stderr.contains("seccomp"), "{outcome:#?}");
    target.ask("call 50").assert_right();
    target::assert_clean(target.pid(), &before);
}
