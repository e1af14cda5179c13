//! Events of other processes, compared with another count of the kernel: getrusage(2) in the process itself.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::within;
use ingraft_model::layout::{EVENT_PAGES, header};
use ingraft_model::machine::PAGE;
use ingraft_model::{Pid, Tid};
use ingraft_process::{CountedEvents, DataAreaRequest, EventReading, PerfEvent, Target};

/// A running `events.c`, which causes known numbers of events on command and prints its own getrusage(2).
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Usage of a thread or process so far, as the program reports it from getrusage(2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    minor: u64,
    switches: u64,
    cpu_ns: u64,
}

impl Program {
    fn start(threads: u32) -> (Program, Target) {
        let program = common::compile("events");
        let mut command = Command::new(program);
        command.arg(threads.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let input = child.stdin.take().expect("stdin");
        let mut output = BufReader::new(child.stdout.take().expect("stdout"));
        let mut line = String::new();
        output.read_line(&mut line).expect("ready");
        assert_eq!(line, "ready\n");
        let target = Target::open(Pid(child.id() as i32)).expect("target");
        let mut program = Program { child, input, output };
        // The first answer costs more than later ones, and no answer contains its own costs. So ask once before the test.
        let (_, _) = program.ask("say");
        (program, target)
    }

    /// Sends a command. Returns the usage after it: of each thread that waits, and of all threads together.
    fn ask(&mut self, command: &str) -> (BTreeMap<Tid, Usage>, Usage) {
        writeln!(self.input, "{command}").expect("a command");
        let (mut threads, mut process) = (BTreeMap::new(), Usage::default());
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("a line"), 0, "it ended");
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |key: &str| -> u64 {
                let at = words.iter().position(|w| *w == key);
                at.map_or(0, |at| words[at + 1].parse().expect("a number"))
            };
            let usage = Usage { minor: number("minor"), switches: number("switches"), cpu_ns: number("cpu") };
            match words[0] {
                "thread" => drop(threads.insert(Tid(words[1].parse().expect("a thread")), usage)),
                "process" => process = usage,
                _ => return (threads, process),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn begin(target: &Target, event: &str) -> CountedEvents {
    CountedEvents::begin(target, &PerfEvent::parse(event).expect("an event"), None).expect("software events")
}

fn row(reading: &EventReading, tid: Option<Tid>) -> u64 {
    reading.threads.iter().find(|(t, _)| *t == tid).map_or(0, |(_, n)| *n)
}

fn adds_up(reading: &EventReading) {
    assert_eq!(reading.threads.iter().map(|(_, n)| n).sum::<u64>(), reading.events, "{reading:?}");
    assert!(!reading.shared_counters(), "{reading:?}");
}

#[test]
fn page_faults_and_switches_of_each_thread_are_those_of_getrusage() {
    within(Duration::from_secs(60), || {
        let (mut program, target) = Program::start(4);
        let (before, all_before) = program.ask("say");
        let mut faults = begin(&target, "minor-faults");
        let mut switches = begin(&target, "context-switches");
        let (after, all_after) = program.ask("act 1000 50");
        let (faults, switches) = (faults.read(), switches.read());
        adds_up(&faults);
        adds_up(&switches);
        for (tid, now) in &after {
            let then = &before[tid];
            assert_eq!(row(&faults, Some(*tid)), now.minor - then.minor, "{tid} {faults:?}");
            // The kernel may switch the thread out between the thread's getrusage(2) and its wait, any number of times.
            let seen = row(&switches, Some(*tid));
            assert!(
                seen.abs_diff(now.switches - then.switches) <= 10 && seen >= 50,
                "{tid} {switches:?} {now:?} {then:?}"
            );
        }
        assert_eq!(faults.events, all_after.minor - all_before.minor, "{faults:?}");
        assert_eq!(row(&faults, None), 0, "{faults:?}");
    });
}

#[test]
fn threads_that_come_and_go_are_counted() {
    within(Duration::from_secs(60), || {
        let (mut program, target) = Program::start(2);
        let (_, before) = program.ask("say");
        let mut faults = begin(&target, "minor-faults");
        let (_, after) = program.ask("short 20 100");
        let reading = faults.read();
        adds_up(&reading);
        assert_eq!(reading.events, after.minor - before.minor, "{reading:?}");
        // These threads began and ended between two reads, so their events belong to no thread id.
        assert!(row(&reading, None) >= 2000, "{reading:?}");
        let (_, _) = program.ask("grow 2");
        faults.follow(&target);
        let begun = faults.read();
        let (threads, after) = program.ask("act 300 0");
        let reading = faults.read();
        adds_up(&reading);
        assert_eq!(reading.events, after.minor - before.minor, "{reading:?}");
        assert_eq!(threads.len(), 4);
        assert!(threads.keys().all(|tid| row(&reading, Some(*tid)) >= 300), "{reading:?}");
        assert_eq!(row(&reading, None), row(&begun, None), "{reading:?}");
        // The counts stay readable after the program has ended.
        drop(program);
        faults.follow(&target);
        let last = faults.read();
        adds_up(&last);
        assert!(last.events >= reading.events, "{last:?}");
        assert!(threads.keys().all(|tid| row(&last, Some(*tid)) >= 300), "{last:?}");
    });
}

#[test]
fn fork_children_are_not_counted() {
    within(Duration::from_secs(60), || {
        let (mut program, target) = Program::start(1);
        let (_, before) = program.ask("say");
        let mut faults = begin(&target, "minor-faults");
        let (_, after) = program.ask("child 5000");
        let reading = faults.read();
        adds_up(&reading);
        assert_eq!(reading.events, after.minor - before.minor, "{reading:?}");
        assert!(reading.events < 5000, "{reading:?}");
    });
}

#[test]
fn one_thread_alone() {
    within(Duration::from_secs(60), || {
        let (mut program, target) = Program::start(2);
        let (before, _) = program.ask("say");
        let (tid, then) = before.iter().next().expect("a thread");
        let event = PerfEvent::parse("page-faults:u").expect("an event");
        let mut faults = CountedEvents::begin(&target, &event, Some(*tid)).expect("software events");
        let (after, _) = program.ask("act 200 0");
        let reading = faults.read();
        adds_up(&reading);
        assert_eq!(reading.threads, [(Some(*tid), reading.events)]);
        let truth = after[tid].minor - then.minor;
        assert!((200..=truth).contains(&reading.events), "{reading:?} {truth}");
    });
}

#[test]
fn the_clock_of_the_tasks_is_the_processor_time() {
    within(Duration::from_secs(60), || {
        let (mut program, target) = Program::start(2);
        let (_, before) = program.ask("say");
        let mut clock = begin(&target, "task-clock");
        let begin = Instant::now();
        let (_, after) = program.ask("burn 100");
        let reading = clock.read();
        let whole = begin.elapsed().as_nanos() as u64;
        adds_up(&reading);
        // The event includes time that the host takes from the thread; the thread's processor time does not. Without that time, both are
        // equal within 2 %.
        let truth = after.cpu_ns - before.cpu_ns;
        assert!(reading.events >= 98_000_000 && reading.events >= truth / 50 * 49, "{reading:?} {truth}");
        assert!(reading.events <= whole / 50 * 51, "{reading:?} {whole}");
    });
}

/// The test maps a page of a counter into a shard, as threads do themselves.
#[test]
fn counters_in_shards_are_closed_and_the_area_stays_one() {
    // Page faults in user mode only.
    const FAULTS: [u64; 9] = [1 | 72 << 32, 2, 0, 0, 0, 1 << 2 | 1 << 5 | 1 << 6, 0, 0, 0];
    const PERF_EVENT_OPEN: i64 = 298;
    within(Duration::from_secs(60), || {
        let (_program, target) = Program::start(1);
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        let layout = area.layout();
        let place = |(shard, number): (u64, u32)| {
            layout.base.0 + shard * layout.stride + u64::from(EVENT_PAGES) + PAGE * u64::from(number)
        };
        let opened = [(2, 3), (2, 4), (5, 3)];
        target
            .remote(|remote| {
                for page in opened {
                    area.set_event(page.1, &FAULTS)?;
                    let attributes = layout.base.0 + u64::from(header::EVENTS + header::EVENT_BYTES * page.1);
                    let arguments = [attributes, 0, u64::MAX, u64::MAX, 8, 0];
                    let fd = remote.syscall("perf_event_open", PERF_EVENT_OPEN, arguments)?;
                    remote.syscall("mmap", libc::SYS_mmap, [place(page), 4096, 1, 0x11, fd, 0])?;
                    remote.syscall("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
                }
                Ok(())
            })
            .expect("counters");
        let counters = || {
            let maps = target.maps().expect("maps").into_iter();
            maps.filter(|m| m.path.as_os_str() == "anon_inode:[perf_event]")
                .map(|m| m.range.start.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(counters(), opened.map(place));
        assert_eq!(target.find_areas().expect("areas"), [layout.range()]);
        target.close_events(&area, 3).expect("closed");
        assert_eq!(counters(), [place((2, 4))]);
        assert_eq!(target.find_areas().expect("areas"), [layout.range()]);
        target.unmap(&[layout.range()]).expect("unmapped");
        assert_eq!(counters(), [0; 0]);
        assert_eq!(target.find_areas().expect("areas"), []);
    });
}
