//! Traces: the regenerated sequences, compared with profiles of the same run and with the program's own counts. The tests of the engine
//! compare them with single steps.

use std::collections::BTreeMap;
use std::path::Path;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, open_directory, output, program, wait_until};
use serde_json::Value;

use crate::tool;

/// Number of executions of each block, by function and offset.
fn blocks(outcome: &Outcome) -> BTreeMap<(String, String), u64> {
    let text = |record: &Value, key: &str| record[key].as_str().expect("a text").to_owned();
    let one = |record: &&Value| {
        let block = (text(record, "function"), text(record, "block"));
        (block, record["count"].as_u64().expect("a count"))
    };
    outcome.all("block").iter().map(one).collect()
}

/// Number of entries of a function in a replay.
fn entries(outcome: &Outcome, function: &str) -> u64 {
    let is_one = |record: &&&Value| record["step"] == "enter" && record["function"] == function;
    outcome.all("step").iter().filter(is_one).count() as u64
}

/// Sum of a number over all threads of a replay.
fn sum(outcome: &Outcome, key: &str) -> u64 {
    outcome.all("replayed").iter().map(|thread| thread[key].as_u64().expect("a number")).sum()
}

/// Fails unless the replay tells everything.
fn assert_whole(outcome: &Outcome) {
    for key in ["gaps", "lost", "skipped", "defects"] {
        assert_eq!(sum(outcome, key), 0, "{key}");
    }
    assert!(!outcome.stderr.contains("has no end"), "{}", outcome.stderr);
}

/// The functions of the deterministic program that can be traced.
const DETERM: &[&str] = &["hash_step", "hash_text", "fib", "even", "odd", "compare"];

#[test]
fn a_summary_equals_a_profile_of_the_same_run() {
    let directory = open_directory();
    let file = directory.path().join("determ.trace").to_str().expect("a path").to_owned();
    let determ = program("determ").expect("gcc").to_str().expect("a path").to_owned();
    let trace = [&["trace", "-o", &file, "--until-exit", "--own-status"], DETERM, &["--", &determ, "1"]].concat();
    let traced = tool().run(trace).assert_code(0);
    assert_eq!(traced.one("traced")["gaps"], 0, "{}", traced.stderr);
    let summary = tool().run(["replay", &file, "--summary"]).assert_code(0);
    assert_whole(&summary);
    let profile = [&["profile", "blocks", "--until-exit", "--own-status"], DETERM, &["--", &determ, "1"]].concat();
    let profile = tool().run(profile).assert_code(0);
    let (found, expected) = (blocks(&summary), blocks(&profile));
    assert!(expected.values().sum::<u64>() > 10_000, "{expected:?}");
    assert_eq!(found, expected);
    let bytes = traced.one("traced")["bytes"].as_u64().expect("a number");
    println!("{bytes} bytes for {} blocks", found.values().sum::<u64>());
    // The sequence has the same blocks, and its instructions are those of the blocks.
    let sequence = tool().run(["replay", &file, "fib", "determ:even"]).assert_code(0);
    let of = |blocks: &BTreeMap<(String, String), u64>, names: &[&str]| -> u64 {
        blocks.iter().filter(|((function, _), _)| names.contains(&function.as_str())).map(|(_, count)| count).sum()
    };
    let steps = sequence.all("step").iter().filter(|step| step["step"] == "block").count() as u64;
    assert_eq!(steps, of(&expected, &["fib", "even"]));
    let _ = tool().run(["replay", &file, "no_such_function"]).assert_error(3, &["no_such_function"]);
    let _ = tool().run(["replay", &file, "--thread", "1"]).assert_error(3, &["no such thread"]);
    let _ = tool().run(["replay", &determ]).assert_error(1, &["cannot read"]);
    let _ = tool().run(["replay", &file, "-o", &file]).assert_error(2, &["would replace"]);
    let again = tool().run(["replay", &file, "--summary"]).assert_code(0);
    assert_eq!(blocks(&again), expected);
}

#[test]
fn instructions_are_those_of_the_blocks() {
    let directory = open_directory();
    let file = directory.path().join("small.trace").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("threads", &["1"]);
    let session = tool().measure("trace", target.pid(), &["-o", &file, "work_0"]);
    target.ask("solo 20");
    let _ = session.interrupt().assert_code(0).assert_removed();
    let per_block: BTreeMap<(String, String), u64> = tool()
        .run(["replay", &file, "--summary"])
        .all("block")
        .iter()
        .map(|block| {
            let text = |key: &str| block[key].as_str().expect("a text").to_owned();
            ((text("function"), text("block")), block["instructions"].as_u64().expect("a number"))
        })
        .collect();
    let blocks = tool().run(["replay", &file]);
    let key =
        |step: &Value| (step["function"].as_str().expect("a name").to_owned(), step["at"].as_str().map(str::to_owned));
    let all = blocks.all("step");
    let executed = all.iter().filter(|step| step["step"] == "block").map(|step| {
        let (function, at) = key(step);
        per_block[&(function, at.expect("an offset"))]
    });
    let expected: u64 = executed.sum();
    let instructions = tool().run(["replay", &file, "--instructions"]);
    let found = instructions.all("step").iter().filter(|step| step["step"] == "instruction").count() as u64;
    assert!(found >= 20 && found == expected, "{found} {expected}");
}

#[test]
fn threads_and_signal_handlers_are_told_apart() {
    let directory = open_directory();
    let file = directory.path().join("signals.trace").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("signals", &["3"]);
    let before = Text::of(target.pid());
    let functions = ["work", "on_signal", "in_handler"];
    let session = tool().measure("trace", target.pid(), &[&["-o", file.as_str()], &functions[..]].concat());
    let reply = target.ask("go 2000");
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let replay = tool().run(["replay", &file]).assert_code(0);
    assert_whole(&replay);
    for function in functions {
        assert_eq!(entries(&replay, function), reply.tally(function), "{function}");
    }
    assert!(replay.all("replayed").len() >= 3);
}

#[test]
fn a_full_buffer_is_a_gap() {
    let directory = open_directory();
    let file = directory.path().join("full.trace").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("threads", &["1"]);
    let session = tool().measure("trace", target.pid(), &["-o", &file, "--buffer", "4", "work_0"]);
    let reply = target.ask("solo 3000000");
    let traced = session.interrupt().assert_code(0).assert_removed();
    let gaps = traced.one("traced")["gaps"].as_u64().expect("a number");
    assert!(gaps > 0 && traced.stderr.contains("buffers were full"), "{gaps} {}", traced.stderr);
    let replay = tool().run(["replay", &file, "--summary"]).assert_code(0);
    assert_eq!((sum(&replay, "gaps"), sum(&replay, "defects")), (gaps, 0));
    assert!(blocks(&replay).values().all(|count| *count < reply.tally("work_0")));
}

#[test]
fn a_summary_names_the_functions_that_the_trace_refused() {
    let directory = open_directory();
    let file = directory.path().join("refused.trace").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("adjacent", &[]);
    let session = tool().measure("trace", target.pid(), &["-o", &file, "looped", "memory"]);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    let _ = session.interrupt().assert_code(0).assert_removed();
    let summary = tool().run(["replay", &file, "--summary"]).assert_code(0);
    assert_eq!(blocks(&summary)[&("looped".to_owned(), "0x0".to_owned())], 10);
    assert!(blocks(&summary).keys().all(|(function, _)| function == "looped"), "counts of a refused function");
    let refused = summary.one("refused");
    assert_eq!((&refused["function"], &refused["reason"]), (&"memory".into(), &"not_traced".into()));
    assert!(refused["why_not"].as_str().is_some_and(|why| !why.is_empty()), "{refused}");
    let text = output(&mut tool().plain_command(["replay", &file, "--summary"]));
    assert!(text.lines().any(|line| line.contains("not counted: memory")), "{text}");
    // A pattern may name a function that is not traced.
    let only = tool().run(["replay", &file, "--summary", "memory"]).assert_code(0);
    assert_eq!((only.all("block").len(), only.all("refused").len()), (0, 1));
    assert!(target.end().success());
}

#[test]
fn the_file_of_a_killed_writer_is_readable() {
    let directory = open_directory();
    let path = directory.path().join("killed.trace");
    let file = path.to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let session = tool.measure("trace", target.pid(), &["-o", &file, "work_0"]);
    let reply = target.ask("solo 5000");
    wait_until("the tokens are in the file", || {
        entries(&tool.run(["replay", &file]), "work_0") == reply.tally("work_0")
    });
    session.kill();
    let replay = tool.run(["replay", &file]).assert_code(0);
    assert!(replay.stderr.contains("has no end"), "{}", replay.stderr);
    assert_eq!(entries(&replay, "work_0"), reply.tally("work_0"));
    tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    target.ask("solo 10").assert_right();
}

#[test]
fn what_a_trace_cannot_do_is_refused() {
    let directory = open_directory();
    let file = directory.path().join("none.trace").to_str().expect("a path").to_owned();
    let target = Mutatee::start("threads", &["1"]);
    let (tool, pid) = (tool(), target.pid_text());
    let _ = tool.run(["trace", "-p", &pid, "work_0"]).assert_error(2, &["-o FILE"]);
    let _ = tool.run(["trace", "-p", &pid, "-p", "1", "work_0", "-o", &file]).assert_error(2, &["one process"]);
    let _ = tool.run(["trace", "-p", &pid, "work_0#*", "-o", &file]).assert_error(2, &["part of a function"]);
    let _ = tool.run(["trace", "-p", &pid, "absent", "-o", &file]).assert_error(3, &["absent"]);
    let _ =
        tool.run(["trace", "-p", &pid, "work_0", "--follow", "fork", "-o", &file]).assert_error(2, &["one program"]);
}

/// Each call of `tick` by thread: Unix time before and after it, as the program has read it.
fn read_calls(path: &Path) -> BTreeMap<u64, Vec<(i128, i128)>> {
    let mut calls: BTreeMap<u64, Vec<(i128, i128)>> = BTreeMap::new();
    for line in std::fs::read_to_string(path).expect("the program's readings").lines() {
        let numbers: Vec<i128> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        calls.entry(u64::try_from(numbers[0]).expect("a thread")).or_default().push((numbers[1], numbers[2]));
    }
    calls
}

/// Largest difference in nanoseconds between two readings of one clock by different ways.
const CLOCKS_DIFFER_NS: i128 = 20_000;

#[test]
fn entries_tell_their_times() {
    const THREADS: usize = 4;
    const CALLS: usize = 3_000;
    let directory = open_directory();
    for clock in ["auto", "vdso"] {
        let file = directory.path().join(clock).to_str().expect("a path").to_owned();
        let readings = directory.path().join(format!("{clock}.readings"));
        let mut target = Mutatee::start("stamps", &[]);
        let before = Text::of(target.pid());
        let tool = tool().with_clock(clock);
        let trace = ["-o", &file, "--times", "tick", "tock"];
        let session = tool.measure("trace", target.pid(), &trace);
        target.ask(&format!("go {THREADS} {CALLS} {}", readings.display())).assert_right();
        let _ = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        let replay = tool.run(["replay", &file]).assert_code(0);
        assert_whole(&replay);
        let calls = read_calls(&readings);
        let mut entered: BTreeMap<u64, Vec<i128>> = BTreeMap::new();
        let mut last: BTreeMap<u64, i128> = BTreeMap::new();
        for step in replay.all("step") {
            let tid = step["tid"].as_u64().expect("a thread");
            let time = i128::from(step["time_ns"].as_u64().expect("a time"));
            let latest = last.insert(tid, time).unwrap_or_default();
            match step["step"].as_str().expect("a word") {
                "enter" => assert!(latest <= time, "{latest} {time}"),
                _ => assert_eq!(latest, time, "a block has the time of the entry before it"),
            }
            if step["step"] == "enter" && step["function"] == "tick" {
                entered.entry(tid).or_default().push(time);
            }
        }
        assert_eq!(entered.len(), THREADS);
        for (tid, times) in entered {
            assert_eq!(times.len(), CALLS);
            for (time, (before, after)) in times.into_iter().zip(&calls[&tid]) {
                let is_between = before - CLOCKS_DIFFER_NS <= time && time <= after + CLOCKS_DIFFER_NS;
                assert!(is_between, "{clock}: {before} {time} {after}");
            }
        }
        let text = tool.plain_command(["replay", &file, "tick"]).output().expect("run");
        let text = String::from_utf8(text.stdout).expect("a text");
        let line = text.lines().next().expect("a line");
        assert!(line.contains("enter tick") && line.contains('.'), "{line}");
    }
    let without = directory.path().join("none").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("threads", &["1"]);
    let session = tool().measure("trace", target.pid(), &["-o", &without, "work_0"]);
    target.ask("solo 20");
    let _ = session.interrupt().assert_code(0);
    let replay = tool().run(["replay", &without]).assert_code(0);
    assert!(replay.all("step").iter().all(|step| step.get("time_ns").is_none()));
}

/// A file system of a few KiB, unmounted when it is dropped.
struct Tiny(tempfile::TempDir);

impl Tiny {
    /// Mounts it; `None` if this machine does not permit that.
    fn mount() -> Option<Tiny> {
        let directory = open_directory();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(directory.path());
        let mounted = mount.stderr(std::process::Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Tiny(directory))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        // If that fails, the directory cannot be removed, and the test says so.
        let _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

/// A file that cannot be written ends the trace while the target runs. The error is reported once, and the text is restored.
#[test]
fn a_full_disk_is_told_at_once_and_once() {
    let tiny = Tiny::mount();
    let full = tiny.as_ref().map(|tiny| tiny.0.path().join("some.trace").to_str().expect("a path").to_owned());
    for file in ["/dev/full".to_owned()].into_iter().chain(full) {
        let mut target = Mutatee::start("threads", &["1"]);
        let before = Text::of(target.pid());
        target.ask("spin");
        let trace = ["trace", "-p", &target.pid_text(), "noise", "-o", &file, "--until-exit"];
        let outcome = tool().run(trace).assert_code(1);
        let errors: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("\"error\"")).collect();
        assert!(errors.len() == 1 && errors[0].contains(&format!("cannot write {file}")), "{outcome:#?}");
        assert_eq!(outcome.one("removed")["text_restored"], true, "{outcome:#?}");
        assert!(outcome.all("ended").is_empty(), "the target runs on: {outcome:#?}");
        target::assert_clean(target.pid(), &before);
    }
}
