//! Profiles that are read while their target runs: at any moment, the event totals of each thread and the counts of edges must equal those of
//! an oracle.
//! The oracle knows nothing of ingraft: it single-steps one lap of each thread. As all laps of a thread are the same, the beats that the thread
//! has counted, its program counter and the depth of its stack tell which instruction of which lap comes next.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::UNIX_EPOCH;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, output, program, scaled, wait_until};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::oracle::{hold_at_start, step, stopped};
use crate::tool;

const FUNCTIONS: [&str; 9] = ["leaf", "guarded", "looped", "chosen", "inner", "leaver", "middle", "outer", "lap"];
/// The kinds of events of a reading.
const EVENTS: [&str; 5] = ["instructions", "calls", "branches", "memory-reads", "memory-writes"];
/// Length in bytes of the program's account of a thread, and offsets in it.
const ACCOUNT: u64 = 248;
const BEAT: u64 = 0;
const BASE: u64 = 8;
const TID: u64 = 16;

/// The program: addresses of its functions, and of its accounts of threads.
struct Program {
    functions: BTreeMap<&'static str, Range<u64>>,
    /// All code of the program, which is linked statically.
    text: Range<u64>,
    accounts: u64,
}

impl Program {
    fn new() -> Program {
        let table = output(Command::new("nm").arg("-S").arg(program("paces").expect("gcc")));
        let address = |name: &str| {
            let line = table.lines().find(|line| line.split(' ').next_back() == Some(name)).expect(name);
            u64::from_str_radix(&line[..16], 16).expect("an address")
        };
        let symbol = |name: &str| {
            let of = |line: &str| {
                let words: Vec<&str> = line.split(' ').collect();
                let number = |word: &str| u64::from_str_radix(word, 16).expect("a number");
                (words.len() == 4 && words[3] == name).then(|| number(words[0])..number(words[0]) + number(words[1]))
            };
            table.lines().find_map(of).unwrap_or_else(|| panic!("no symbol {name}"))
        };
        let accounts = symbol("paces").start;
        let text = address("_init")..address("_fini");
        Program { functions: FUNCTIONS.map(|name| (name, symbol(name))).into(), text, accounts }
    }

    fn function(&self, at: u64) -> Option<&'static str> {
        self.functions.iter().find(|(_, range)| range.contains(&at)).map(|(name, _)| *name)
    }
}

/// An instruction that a thread executes.
#[derive(Clone, Copy)]
struct Step {
    at: u64,
    is_call: bool,
    is_return: bool,
}

/// One lap of a thread.
struct Lap {
    steps: Vec<Step>,
    /// Beats of a lap.
    beats: u64,
    /// Number of steps before an instruction, by the beats since the lap began, the address and the depth of the stack.
    moments: BTreeMap<(u64, u64, u64), usize>,
}

/// Numbers of instructions and of calls in the functions.
type Totals = [u64; 2];

/// Passages of edges, by the address at which control leaves, and the one at which it arrives. Returns of calls have no first address.
type Passages = BTreeMap<(Option<u64>, u64), u64>;

impl Lap {
    /// Single-steps a lap.
    fn of(program: &Program, thread: usize) -> Lap {
        let mut target = Mutatee::start("paces", &[]);
        let pid = hold_at_start(&mut target, program.functions["lap"].start, &format!("lap {thread}"));
        let memory = File::open(format!("/proc/{pid}/mem")).expect("the program's memory");
        let account = program.accounts + ACCOUNT * thread as u64;
        let registers = ptrace::getregs(pid).expect("its registers");
        let (top, mut at, mut sp) = (registers.rsp, registers.rip, registers.rsp);
        let mut lap = Lap { steps: Vec::new(), beats: 0, moments: BTreeMap::new() };
        while sp <= top {
            let mut code = [0; 3];
            memory.read_exact_at(&mut code, at).expect("read the instruction");
            let beats = word(&memory, account + BEAT);
            let moment = (beats, at, top - sp);
            // A `rep` instruction is stepped once for each repetition, and the C library's loops have no beats.
            let is_new = lap.moments.insert(moment, lap.steps.len()).is_none();
            assert!(is_new || program.function(at).is_none(), "{moment:x?} comes twice");
            lap.steps.push(Step {
                at,
                is_call: code[0] == 0xe8
                    || code[0] == 0xff && code[1] & 0x38 == 0x10
                    || code[..2] == [0x41, 0xff] && code[2] & 0x38 == 0x10,
                is_return: code[0] == 0xc3 || code[..2] == [0xf3, 0xc3],
            });
            (at, sp) = step(pid);
        }
        lap.beats = word(&memory, account + BEAT);
        ptrace::detach(pid, None).expect("let it go");
        assert_eq!(target.reply().number("beats"), lap.beats);
        lap
    }

    /// Events in the first steps of a lap.
    fn totals(&self, program: &Program, steps: usize) -> Totals {
        let mut totals = [0; 2];
        for step in self.steps.iter().cycle().take(steps).filter(|step| program.function(step.at).is_some()) {
            totals[0] += 1;
            totals[1] += u64::from(step.is_call);
        }
        totals
    }

    /// Passages of edges in the first steps of a lap. A step passes the edge to the next one. Before the lap, control comes from elsewhere.
    fn passages(&self, program: &Program, steps: usize) -> Passages {
        let mut passages = Passages::new();
        for (n, step) in self.steps[..steps].iter().enumerate() {
            let Some(next) = self.steps.get(n + 1) else { break };
            let is_inside =
                program.function(step.at).is_some() && program.function(step.at) == program.function(next.at);
            let from = (is_inside && !step.is_return).then_some(step.at);
            if !step.is_call {
                *passages.entry((from, next.at)).or_default() += 1;
            }
        }
        passages
    }
}

fn word(memory: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, at).expect("read the program");
    u64::from_le_bytes(bytes)
}

/// Position of a thread.
#[derive(Clone, Copy, Debug)]
struct Position {
    tid: i32,
    beats: u64,
    at: u64,
    depth: u64,
}

impl Position {
    /// Number of whole laps, and numbers of steps of the next one. A thread that a signal holds in generated code cannot leave it when the
    /// measurement is removed. Then it is at one of the instructions between two beats.
    fn steps(&self, program: &Program, lap: &Lap) -> (u64, Vec<usize>) {
        let (laps, beats) = (self.beats / lap.beats, self.beats % lap.beats);
        if !program.text.contains(&self.at) && beats > 0 {
            let between = lap.moments.range((beats, 0, 0)..(beats + 1, 0, 0));
            return (laps, between.map(|(_, steps)| *steps).collect());
        }
        if let Some(steps) = lap.moments.get(&(beats, self.at, self.depth)) {
            return (laps, vec![*steps]);
        }
        if beats > 0 || laps == 0 {
            panic!("no lap has {self:x?}");
        }
        if let Some(steps) = lap.moments.get(&(lap.beats, self.at, self.depth)) {
            return (laps - 1, vec![*steps]);
        }
        if program.text.contains(&self.at) {
            assert!(program.function(self.at).is_none(), "no lap has {self:x?}");
            return (laps, vec![0]);
        }
        // In generated code between the last beat of a lap and the first one of the next.
        let last = lap.moments.range((lap.beats, 0, 0)..).map(|(_, steps)| *steps);
        let first = lap.moments.range(..(1, 0, 0)).map(|(_, steps)| steps + lap.steps.len());
        (laps - 1, last.chain(first).collect())
    }
}

/// A running program whose threads are held by a signal.
struct Paces {
    target: Mutatee,
    memory: File,
    threads: usize,
}

impl Paces {
    fn start(threads: usize) -> Paces {
        let mut target = Mutatee::start("paces", &[]);
        target.ask(&format!("run {threads}"));
        let memory = File::open(format!("/proc/{}/mem", target.pid())).expect("the program's memory");
        Paces { target, memory, threads }
    }

    fn beats(&self, program: &Program, thread: usize) -> u64 {
        word(&self.memory, program.accounts + ACCOUNT * thread as u64 + BEAT)
    }

    /// Lets the program go on, and stops it somewhere after some beats of a thread.
    fn run(&self, program: &Program, thread: usize, beats: u64) {
        let pid = Pid::from_raw(self.target.pid());
        kill(pid, Signal::SIGCONT).expect("let it go on");
        let begin: Vec<u64> = (0..self.threads).map(|thread| self.beats(program, thread)).collect();
        // A thread that was held in generated code has left it after a few beats.
        let least = |other: usize| if other == thread { beats.max(3) } else { 3 };
        let has_counted = |other: usize| self.beats(program, other) >= begin[other] + least(other);
        wait_until("the threads have counted", || (0..self.threads).all(has_counted));
        kill(pid, Signal::SIGSTOP).expect("stop it");
        let is_held = |tid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).expect("a thread");
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        wait_until("all threads are held", || target::threads(self.target.pid()).iter().all(is_held));
    }

    fn positions(&self, program: &Program) -> Vec<Position> {
        let position = |thread: usize| {
            let account = program.accounts + ACCOUNT * thread as u64;
            let tid = i32::try_from(word(&self.memory, account + TID)).expect("a thread id");
            let pid = Pid::from_raw(tid);
            ptrace::seize(pid, ptrace::Options::empty()).expect("seize the thread");
            ptrace::interrupt(pid).expect("interrupt the thread");
            stopped(pid);
            let registers = ptrace::getregs(pid).expect("its registers");
            ptrace::detach(pid, None).expect("let it go");
            // The frame of the caller is one return address above the first instruction of a lap.
            let depth = word(&self.memory, account + BASE).wrapping_sub(8).wrapping_sub(registers.rsp);
            Position { tid, beats: word(&self.memory, account + BEAT), at: registers.rip, depth }
        };
        (0..self.threads).map(position).collect()
    }
}

/// Random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Total of a thread in a reading.
fn total(record: &Value, tid: i32) -> u64 {
    let threads = record["threads"].as_array().expect("threads");
    let own = threads.iter().find(|thread| thread["tid"] == tid).unwrap_or_else(|| panic!("{tid}: {record}"));
    own["total"].as_u64().expect("a number")
}

/// The last reading of the totals of an event.
fn last<'o>(outcome: &'o Outcome, event: &str) -> &'o Value {
    let all = outcome.all("event_totals");
    all.into_iter().rfind(|record| record["event"] == event).unwrap_or_else(|| panic!("no {event}: {outcome:?}"))
}

fn assert_exact(outcome: &Outcome) {
    assert_eq!(outcome.objects.iter().find(|record| record.get("inexact").is_some()), None);
    assert!(!outcome.stderr.contains("not exact"), "{}", outcome.stderr);
}

/// Compares the totals of threads between two positions of each with the oracle's.
fn compare_totals(
    program: &Program,
    laps: &[Lap],
    [instructions, calls]: [&Value; 2],
    moments: &[(Position, Position)],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (lap, (begin, end)) in laps.iter().zip(moments) {
        let whole = lap.totals(program, lap.steps.len());
        let since_start = |position: &Position| -> Vec<Totals> {
            let (laps, steps) = position.steps(program, lap);
            let part = |steps| lap.totals(program, steps);
            steps.into_iter().map(part).map(|part| [0, 1].map(|kind| laps * whole[kind] + part[kind])).collect()
        };
        let [before] = since_start(begin)[..] else { panic!("{begin:x?} is in generated code") };
        let known: Vec<Totals> =
            since_start(end).into_iter().map(|after| [0, 1].map(|kind| after[kind] - before[kind])).collect();
        let seen = [instructions, calls].map(|record| total(record, begin.tid));
        if !known.contains(&seen) {
            wrong.push(format!("{seen:?} are not {known:?}, from {begin:x?} to {end:x?}"));
        }
    }
    wrong
}

/// Compares the counts of edges of all threads together with the oracle's.
fn compare_edges(program: &Program, laps: &[Lap], outcome: &Outcome, moments: &[(Position, Position)]) -> Vec<String> {
    let mut known: BTreeMap<(Option<u64>, u64), u64> = BTreeMap::new();
    for (lap, (begin, end)) in laps.iter().zip(moments) {
        let whole = lap.passages(program, lap.steps.len());
        for (position, sign) in [(begin, -1_i64), (end, 1)] {
            let (laps, steps) = position.steps(program, lap);
            let [steps] = steps[..] else { return Vec::new() };
            let part = lap.passages(program, steps);
            for (edge, times) in whole.iter().map(|(edge, n)| (edge, n * laps)).chain(part.iter().map(|(e, n)| (e, *n)))
            {
                let count = known.entry(*edge).or_default();
                *count = count.wrapping_add_signed(sign * times.cast_signed());
            }
        }
    }
    let hex = |text: &Value| u64::from_str_radix(text.as_str()?.trim_start_matches("0x"), 16).ok();
    let records: Vec<_> = outcome
        .all("edge")
        .into_iter()
        .filter_map(|edge| {
            let first = hex(&edge["offset"])?;
            Some((
                first + hex(&edge["from"])?,
                first + hex(&edge["to"])?,
                edge["kind"].as_str()?,
                edge["count"].as_u64()?,
            ))
        })
        .collect();
    assert!(records.len() > 30, "{records:x?}");
    let starts: Vec<u64> =
        outcome.all("edge").iter().filter_map(|e| Some(hex(&e["offset"])? + hex(&e["from"])?)).collect();
    let block = |at: u64| starts.iter().copied().filter(|start| *start <= at).max();
    let mut wrong = Vec::new();
    for (from, to, kind, count) in records {
        let is_it = |(leaves, arrives): &(Option<u64>, u64)| {
            *arrives == to
                && if kind == "call-return" { leaves.is_none() } else { leaves.and_then(block) == Some(from) }
        };
        let truth: u64 = known.iter().filter(|(edge, _)| is_it(edge)).fold(0, |sum, (_, n)| sum.wrapping_add(*n));
        // A thread at the first instruction of the block is on the edge, on either side of its counter.
        let on_it = moments.iter().flat_map(|(begin, end)| [begin, end]).filter(|position| position.at == to).count();
        if count.abs_diff(truth) > on_it as u64 {
            wrong.push(format!("{kind} from {from:x} to {to:x}: {count}, not {truth}; {moments:x?}"));
        }
    }
    wrong
}

/// Compares totals at random moments of a running program with the oracle's, and at the end also the counts of edges.
fn at_random_moments(threads: usize, moments: u64) {
    let program = Program::new();
    let laps: Vec<Lap> = (0..threads).map(|thread| Lap::of(&program, thread)).collect();
    let longest = laps.iter().map(|lap| lap.beats).max().expect("a thread");
    let paces = Paces::start(threads);
    let (tool, mut dice, mut wrong, mut told) = (tool(), Dice(threads as u64), Vec::new(), 0);
    paces.run(&program, 0, 1);
    let before = Text::of(paces.target.pid());
    for kind in [&["events", "--query", "--interval", "10ms"][..], &["edges", "--check"]] {
        paces.run(&program, dice.below(threads as u64) as usize, dice.below(3 * longest));
        let begin = paces.positions(&program);
        let mut session = tool.measure("profile", paces.target.pid(), &[kind, &FUNCTIONS].concat());
        for _ in 0..if kind[0] == "events" { moments } else { 1 } {
            paces.run(&program, dice.below(threads as u64) as usize, dice.below(20 * longest));
            if kind[0] == "edges" {
                continue;
            }
            let held_ns = UNIX_EPOCH.elapsed().expect("the time").as_nanos();
            let mut read = || EVENTS.map(|_| session.wait_for("event_totals"));
            while read()[0]["time_ns"].as_u64().is_none_or(|time_ns| u128::from(time_ns) < held_ns) {}
            // The threads may have been read before they were held, and the time afterwards.
            let [instructions, calls, ..] = read();
            // A thread that a signal holds may be between a counter and the code behind it, and the reading says so.
            if instructions.get("inexact").is_some() {
                told += 1;
                continue;
            }
            let here = begin.iter().enumerate().map(|(thread, of)| Position {
                beats: paces.beats(&program, thread),
                at: 0,
                ..*of
            });
            let moments: Vec<(Position, Position)> = begin.iter().copied().zip(here).collect();
            wrong.extend(compare_totals(&program, &laps, [&instructions, &calls], &moments));
        }
        let outcome = session.interrupt().assert_code(0).assert_removed();
        // Memory of the engine stays mapped as long as no thread runs.
        before.assert_in(paces.target.pid());
        let moments: Vec<(Position, Position)> = begin.into_iter().zip(paces.positions(&program)).collect();
        if outcome.objects.iter().any(|record| record.get("inexact").is_some()) {
            told += 1;
        } else if kind[0] == "edges" {
            wrong.extend(compare_edges(&program, &laps, &outcome, &moments));
        } else {
            // The removal may have let a thread run on within the code of a point, so only its beats tell where it was.
            let moments: Vec<_> = moments.into_iter().map(|(begin, end)| (begin, Position { at: 0, ..end })).collect();
            let records = ["instructions", "calls"].map(|event| last(&outcome, event));
            wrong.extend(compare_totals(&program, &laps, records, &moments));
        }
    }
    kill(Pid::from_raw(paces.target.pid()), Signal::SIGCONT).expect("let it go on");
    let mut target = paces.target;
    target.ask("join");
    tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(told <= moments / 2, "{told} of {moments} moments are not exact");
}

#[test]
fn totals_of_a_thread_are_exact_at_any_moment() {
    at_random_moments(1, scaled(25, 100));
}

#[test]
fn totals_of_several_threads_are_exact_at_any_moment() {
    at_random_moments(4, scaled(25, 100));
}

#[test]
fn totals_and_counts_are_printed_while_the_program_runs() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut session = tool.measure("profile", target.pid(), &["events", "leaf", "--query", "--interval", "10ms"]);
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    // Of 4,000 calls with 3 rounds each: 4 instructions at first, 3 in each round and 2 at last.
    let instructions = 4000 * (4 + 3 * 3 + 2);
    wait_until("the totals are complete", || {
        let record = session.wait_for("event_totals");
        record["event"] == "instructions" && record["total"] == instructions
    });
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    for (event, each) in
        [("instructions", 15), ("calls", 0), ("branches", 3), ("memory-reads", 5), ("memory-writes", 2)]
    {
        let record = last(&outcome, event);
        assert_eq!((&record["total"], &record["functions"]), (&(4000 * each).into(), &1.into()), "{record}");
        let threads = target::threads(target.pid());
        threads.iter().for_each(|tid| assert_eq!(total(record, *tid), 1000 * each, "{record}"));
        assert_eq!(record["threads"].as_array().map(Vec::len), Some(threads.len()), "{record}");
    }
    assert_eq!(outcome.one("attached")["pid"], target.pid());

    let mut session = tool.measure("profile", target.pid(), &["blocks", "leaf", "--interval", "10ms"]);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    wait_until("the counts are complete", || {
        assert_eq!(session.wait_for("profile")["functions"], 1);
        session.wait_for("block")["count"] == 40
    });
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = outcome.all("block").into_iter().rev().take(3).map(|block| block["count"].as_u64());
    assert_eq!(last.collect::<Vec<_>>(), [Some(40), Some(120), Some(40)]);

    let text =
        ["profile", "events", "-p", &target.pid_text(), "leaf", "--query", "--interval", "100ms", "--for", "300ms"];
    let text = tool.plain_command(text).output().expect("run it").stdout;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("after 0.") && text.contains("THREAD") && text.contains("4 threads"), "{text}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn threads_that_have_ended_keep_their_totals() {
    let (program, mut dice) = (Program::new(), Dice(7));
    let lap = Lap::of(&program, 0);
    let paces = Paces::start(3);
    paces.run(&program, 0, 1);
    let functions = [&["events", "--query", "--interval", "10ms"], &FUNCTIONS[..]].concat();
    let mut session = tool().measure("profile", paces.target.pid(), &functions);
    paces.run(&program, 1, dice.below(5 * lap.beats));
    kill(Pid::from_raw(paces.target.pid()), Signal::SIGCONT).expect("let it go on");
    let mut target = paces.target;
    target.ask("join");
    wait_until("the ended threads have a total", || {
        let record = session.wait_for("event_totals");
        let threads = record["threads"].as_array().expect("threads");
        let ended = |thread: &Value| thread["tid"].is_null() && thread["ended"] == true;
        threads.len() == 2 && threads.iter().any(|thread| ended(thread) && thread["total"].as_u64() > Some(0))
    });
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    let sum = |event: &str| last(&outcome, event)["total"].as_u64().expect("a number");
    let own = |event: &str| -> u64 {
        let all = outcome.all("events");
        all.iter().filter(|record| record["event"] == event).filter_map(|record| record["self"].as_u64()).sum()
    };
    // The counts of blocks do not know where in its block a thread was when counting began.
    assert!(
        sum("instructions").abs_diff(own("instructions")) < 3 * 30,
        "{} {}",
        sum("instructions"),
        own("instructions")
    );
    assert!(sum("calls").abs_diff(own("calls")) <= 3);
    assert!(target.end().success());
}

#[test]
fn totals_of_other_profiles_are_refused() {
    let target = Mutatee::start("blocks", &[]);
    let _ = tool()
        .run(["profile", "edges", "-p", &target.pid_text(), "leaf", "--query"])
        .assert_error(2, &["--query belongs to events", "ingraft profile events --query"]);
    assert!(target.end().success());
}
