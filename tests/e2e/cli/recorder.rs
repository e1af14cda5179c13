//! Traces of which only the newest part is kept, compared with the program's own numbers and times.

use std::path::Path;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, open_directory, program, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tool;

const FUNCTIONS: [&str; 3] = ["step", "one", "zero"];
/// Number of calls of `one` and `zero` in each call of `step`.
const BITS: usize = 20;

/// The numbers of the steps in a trace, in order, of those calls of `step` that are whole; and those in which the condition held.
fn steps(file: &str) -> (Vec<u64>, Vec<u64>) {
    let replay = tool().run(["replay", file]).assert_code(0);
    let (mut numbers, mut held) = (Vec::new(), Vec::new());
    let mut step: Option<(bool, Vec<bool>)> = None;
    for record in &replay.objects {
        match (record["type"].as_str(), record["step"].as_str(), record["function"].as_str()) {
            (Some("gap"), ..) => panic!("the trace has a gap"),
            (Some("condition"), ..) => match &mut step {
                Some((is_held, _)) => *is_held = true,
                // At a return, the activation has ended.
                None => held.extend(numbers.last()),
            },
            (_, Some("enter"), Some("step")) => step = Some((false, Vec::new())),
            (_, Some("enter"), Some(bit)) => step.iter_mut().for_each(|(_, bits)| bits.push(bit == "one")),
            (_, Some("leave"), Some("step")) => {
                let Some((is_held, bits)) = step.take() else { continue };
                assert_eq!(bits.len(), BITS);
                let number = bits.iter().rev().fold(0, |number, bit| 2 * number + u64::from(*bit));
                numbers.push(number);
                if is_held {
                    held.push(number);
                }
            }
            _ => {}
        }
    }
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "steps are missing: {numbers:?}");
    (numbers, held)
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().expect("a path").to_owned()
}

fn number(outcome: &Outcome, key: &str) -> u64 {
    outcome.one("traced")[key].as_u64().expect("a number")
}

/// Waits until the flow of steps has taken so long by the program's own clock.
fn wait_for_ms(target: &mut Mutatee, ms: u64) {
    wait_until("time has passed", || target.ask("count").number("elapsed") >= ms);
}

#[test]
fn only_the_newest_part_is_written() {
    let directory = open_directory();
    let [file, times] = ["last.trace", "times"].map(|name| path(directory.path(), name));
    let mut target = Mutatee::start("recorder", &[]);
    let before = Text::of(target.pid());
    target.ask("load 2");
    let session = tool().measure("trace", target.pid(), &[&["-o", &file, "--last", "300ms"], &FUNCTIONS[..]].concat());
    target.ask("flow 500");
    wait_for_ms(&mut target, 2000);
    assert!(!Path::new(&file).exists(), "nothing is written before the end");
    target.ask(&format!("still {times}")).assert_right();
    let all = target.ask("count").number("steps");
    let traced = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert_eq!(traced.one("traced")["cause"], "end", "{traced:#?}");
    let (from, until) = (number(&traced, "from_ns"), number(&traced, "until_ns"));
    assert!(until - from >= 300_000_000 && number(&traced, "dropped") > 0, "{traced:#?}");
    let (numbers, held) = steps(&file);
    assert_eq!((numbers.last(), held), (Some(&all), vec![]));
    assert!(numbers[0] > 1, "the first steps are not kept");
    // All steps since then are in the file.
    let first = std::fs::read_to_string(&times)
        .expect("times")
        .lines()
        .position(|line| line.split(' ').next().and_then(|before| before.parse::<u64>().ok()).expect("a time") >= from);
    assert!(first.is_none_or(|first| numbers[0] <= first as u64 + 1), "{first:?} {}", numbers[0]);
}

#[test]
fn the_trace_ends_where_the_condition_holds() {
    let directory = open_directory();
    for (n, condition) in ["step:$arg[0] == 700", "recorder:step: $return == 700"].into_iter().enumerate() {
        let file = path(directory.path(), &format!("{n}.trace"));
        let mut target = Mutatee::start("recorder", &[]);
        let before = Text::of(target.pid());
        target.ask("load 2");
        let flags = ["-o", &file, "--last", "1h", "--times", "--when", condition];
        let session = tool().measure("trace", target.pid(), &[&flags, &FUNCTIONS[..]].concat());
        target.ask("flow 100");
        let traced = session.finish().assert_code(0).assert_removed();
        target::assert_clean(target.pid(), &before);
        assert_eq!(traced.one("traced")["cause"], "condition", "{traced:#?}");
        assert_eq!(number(&traced, "dropped"), 0);
        let (numbers, held) = steps(&file);
        assert_eq!((numbers[0], held), (1, vec![700]), "{condition}");
        assert!(target.alive());
        let text = tool().plain_command(["replay", &file]).output().expect("run").stdout;
        assert_eq!(String::from_utf8(text).expect("a text").matches("the condition holds").count(), 1);
    }
}

#[test]
fn a_condition_that_holds_while_the_buffer_is_full_ends_the_trace() {
    let directory = open_directory();
    let file = path(directory.path(), "full.trace");
    let mut target = Mutatee::start("recorder", &[]);
    let flags =
        ["-o", &file, "--last", "1h", "--buffer", "4", "--interval", "50ms", "--when", "step:$arg[0] == 900000"];
    let session = tool().measure("trace", target.pid(), &[&flags, &FUNCTIONS[..]].concat());
    target.ask("steps 1000000").assert_right();
    let traced = session.finish().assert_code(0).assert_removed();
    assert_eq!(traced.one("traced")["cause"], "condition", "{traced:#?}");
    assert!(number(&traced, "gaps") > 0);
}

#[test]
fn what_happened_before_a_fatal_signal_is_written() {
    let directory = open_directory();
    for signal in [None, Some(Signal::SIGKILL)] {
        let file = path(directory.path(), "killed.trace");
        let mut target = Mutatee::start("recorder", &[]);
        target.ask("load 2");
        let session = tool().measure("trace", target.pid(), &[&["-o", &file, "--last", "1h"], &FUNCTIONS[..]].concat());
        target.ask("steps 500");
        match signal {
            None => target.tell("crash"),
            Some(signal) => kill(Pid::from_raw(target.pid()), signal).expect("a signal"),
        }
        let traced = session.finish();
        assert_eq!(traced.all("ended").len(), 1, "{traced:#?}");
        let (numbers, _) = steps(&file);
        assert_eq!(numbers, (1..=500).collect::<Vec<u64>>());
    }
    // The kernel tells the parent which signal it was.
    let file = path(directory.path(), "started.trace");
    let recorder = program("recorder").expect("gcc");
    let commands = path(directory.path(), "commands");
    std::fs::write(&commands, "steps 300\ncrash\n").expect("write");
    let recorder = recorder.to_str().expect("a path");
    let trace = [&["trace", "-o", &file, "--last", "1h", "--own-status"], &FUNCTIONS[..], &["--", recorder]].concat();
    let mut command = tool().command(trace);
    command.stdin(std::fs::File::open(&commands).expect("open"));
    let traced = Session::start(&mut command).finish();
    assert_eq!(traced.one("traced")["cause"], "signal", "{traced:#?}");
    assert_eq!(steps(&file).0, (1..=300).collect::<Vec<u64>>());
}

#[test]
fn wrong_conditions_are_refused() {
    let directory = open_directory();
    let file = path(directory.path(), "none.trace");
    let target = Mutatee::start("recorder", &[]);
    let (tool, pid) = (tool(), target.pid_text());
    let before = Text::of(target.pid());
    let run = |flags: &[&str]| tool.run([&["trace", "-p", &pid, "-o", &file, "step"], flags].concat());
    let _ = run(&["--when", "step"]).assert_error(2, &["--last"]);
    let _ = run(&["--last", "1s", "--when", "absent:$arg[0] == 1"]).assert_error(3, &["absent"]);
    let _ = run(&["--last", "1s", "--when", "recorder:*"]).assert_error(2, &["one function"]);
    let _ = run(&["--last", "1s", "--when", "step:$arg[0] =="]).assert_error(2, &["--when"]);
    let _ = run(&["--last", "1s", "--when", "step:$nonsense"]).assert_error(2, &["$nonsense"]);
    target::assert_clean(target.pid(), &before);
    assert!(!Path::new(&file).exists());
}
