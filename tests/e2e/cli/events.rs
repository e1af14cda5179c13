//! Tests of events that the kernel counts: page faults, switches, clocks, and events of the processor if it has a unit that counts them.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, have, open_directory, skip, source_directory, wait_until};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use serde_json::Value;

use crate::cpu_times::charged;
use crate::{tool, unprivileged_tool};

fn file(name: &str) -> String {
    source_directory().join("tests/e2e/mdl").join(name).to_str().expect("a path").to_owned()
}

/// Returns the last value of a metric at a focus.
#[track_caller]
fn last(outcome: &Outcome, metric: &str, focus: &str) -> u64 {
    let mut samples = outcome.all("sample").into_iter();
    let last = samples.rfind(|s| s["metric"] == metric && s["focus"] == focus);
    let last = last.unwrap_or_else(|| panic!("no sample of {metric} at {focus}: {outcome:#?}"));
    last["value"].as_u64().expect("a value is a number")
}

/// Returns the number under `key` in the program's own account: that of the process, or of one thread.
#[track_caller]
fn account(reply: &Reply, who: &str, key: &str) -> u64 {
    let words: Vec<&str> = reply.after(who).split_whitespace().collect();
    let at = words.iter().position(|word| *word == key).expect("a key");
    words[at + 1].parse().expect("a number")
}

/// Returns the threads that wait.
fn waiting(reply: &Reply) -> Vec<String> {
    let threads = reply.lines.iter().filter_map(|line| line.strip_prefix("thread ")?.split(' ').next());
    threads.map(str::to_owned).collect()
}

#[test]
fn page_faults_of_a_process_and_of_a_thread_are_those_of_getrusage() {
    let mut target = Mutatee::start("events", &["2"]);
    let _ = target.ask("say");
    let first = target.ask("say");
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let tid = waiting(&first)[0].clone();
    let one = format!("/Process/{pid}/{tid}");
    let whole = format!("/Process/{pid}");
    let pairs = [format!("minor_faults@{one}"), format!("minor_faults@{whole}"), "page_faults".to_owned()];
    let more = ["context_switches", "task_clock", "major_faults", "alignment_faults", "pause_time"].map(str::to_owned);
    let fixed = ["watch", "-p", &pid, "--interval", "20ms"].map(str::to_owned);
    let mut session = tool().start(fixed.into_iter().chain(pairs).chain(more));
    let attached = session.wait_for("attached");
    assert_eq!(attached["stopped_ms"].as_f64(), Some(0.0), "{attached}");
    let _ = target.ask("act 1000 30");
    let _ = target.ask("short 10 200");
    let _ = target.ask("grow 2");
    let truth = target.ask("act 500 0");
    target::assert_clean(target.pid(), &before);
    let outcome = session.interrupt().assert_code(0);
    let since = |who: &str, key: &str| account(&truth, who, key) - account(&first, who, key);
    assert_eq!(last(&outcome, "minor_faults", &one), since(&format!("thread {tid}"), "minor"));
    assert_eq!(last(&outcome, "minor_faults", &whole), since("process", "minor"));
    assert!(last(&outcome, "page_faults", "") >= since("process", "minor"));
    assert_eq!(last(&outcome, "major_faults", ""), since("process", "major"));
    assert_eq!(last(&outcome, "alignment_faults", ""), 0, "none on this kind of processor");
    assert!(last(&outcome, "context_switches", "").abs_diff(since("process", "switches")) <= 50, "{truth:?}");
    let (clock, cpu) = (last(&outcome, "task_clock", ""), since("process", "cpu"));
    assert!(clock.abs_diff(cpu) <= cpu / 10 + 2_000_000, "{clock} {cpu}");
    assert_eq!(last(&outcome, "pause_time", ""), 0);
    target::assert_clean(target.pid(), &before);
}

/// Events of a process as `perf stat` counts them.
struct Perf {
    child: Child,
    events: &'static [&'static str],
    _directory: tempfile::TempDir,
}

impl Perf {
    /// Starts perf, and returns when it counts.
    fn start(pid: i32, events: &'static [&'static str]) -> Perf {
        let directory = open_directory();
        let [control, answer] = ["control", "answer"].map(|name| directory.path().join(name));
        for path in [&control, &answer] {
            nix::unistd::mkfifo(path, Mode::S_IRWXU).expect("a pipe");
        }
        let pipes = format!("fifo:{},{}", control.display(), answer.display());
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-D", "-1", "-e", &events.join(","), "-p", &pid.to_string(), "--control", &pipes]);
        let child = perf.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start perf");
        File::create(control).and_then(|mut control| control.write_all(b"enable\n")).expect("a command to perf");
        let mut answered = [0; 4];
        File::open(answer).and_then(|mut answer| answer.read_exact(&mut answered)).expect("an answer of perf");
        assert_eq!(&answered, b"ack\n");
        Perf { child, events, _directory: directory }
    }

    /// Ends perf, and returns its count of each event.
    fn finish(self) -> Vec<u64> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("end perf");
        let told = self.child.wait_with_output().expect("what perf said").stderr;
        let told = String::from_utf8_lossy(&told);
        let count = |event: &&str| {
            let line = told.lines().find(|line| line.split(',').nth(2) == Some(event));
            line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_else(|| panic!("no {event} in {told}"))
        };
        self.events.iter().map(count).collect()
    }
}

/// The processors that a process may use.
fn processors(pid: Pid) -> Vec<usize> {
    let set = sched_getaffinity(pid).expect("its processors");
    (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

fn move_to(pid: Pid, processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor).and_then(|()| sched_setaffinity(pid, &set)).expect("another processor");
}

#[test]
fn moves_between_processors() {
    let mut target = Mutatee::start("events", &["0"]);
    let pid = Pid::from_raw(target.pid());
    let processors = processors(pid);
    let [first, second, ..] = processors[..] else { skip!("there is one processor only") };
    if !have("perf") {
        skip!("perf is not installed");
    }
    let _ = target.ask("say");
    move_to(pid, first);
    let _ = target.ask("say");
    let metrics = ["cpu_migrations", "emulation_faults", "alignment_faults"];
    let mut session = tool().start(["watch", "-p", &target.pid_text()].into_iter().chain(metrics));
    session.wait_for("attached");
    let perf = Perf::start(target.pid(), &["cpu-migrations", "emulation-faults", "alignment-faults"]);
    let moves = 30;
    for i in 0..moves {
        move_to(pid, if i % 2 == 0 { second } else { first });
        let _ = target.ask("say");
    }
    let _ = target.ask("burn 20");
    let counted = perf.finish();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(counted, [moves, 0, 0]);
    assert_eq!(metrics.map(|metric| last(&outcome, metric, "")), [moves, 0, 0]);
}

/// A control group of the unified hierarchy. Dropping it removes it; the caller ends its processes first.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Group, String> {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("the mounts");
        let unified = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let at =
            unified.and_then(|line| line.split(' ').nth(1)).ok_or("there is no unified hierarchy of control groups")?;
        let path = Path::new(at).join(format!("ingraft-test-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("no control group can be made: {error}"))?;
        Ok(Group(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process leaves the group a moment after its end.
        wait_until("the control group is gone", || std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn switches_to_another_control_group() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    if !have("perf") {
        skip!("perf is not installed");
    }
    let mut target = Mutatee::start("events", &["0"]);
    let mut beside = Mutatee::start("events", &["0"]);
    // The two processes take turns on one processor, so that each switch leads to the other process or to the idle task.
    let processor = processors(Pid::from_raw(target.pid()))[0];
    for one in [&target, &beside] {
        move_to(Pid::from_raw(one.pid()), processor);
    }
    let _ = target.ask("say");
    wait_until("the target reads", || target::waits_in(target.pid(), 0));
    let metrics = ["cgroup_switches", "context_switches"];
    let mut session = tool().start(["watch", "-p", &target.pid_text()].into_iter().chain(metrics));
    session.wait_for("attached");
    let perf = Perf::start(target.pid(), &["cgroup-switches", "context-switches"]);
    let work = |target: &mut Mutatee, beside: &mut Mutatee| {
        target.tell("burn 60");
        let _ = beside.ask("burn 60");
        account(&target.reply(), "process", "switches")
    };
    let together = work(&mut target, &mut beside);
    // No other process is in this group, so every switch leads out of it.
    std::fs::write(group.0.join("cgroup.procs"), target.pid_text()).expect("move the target into the group");
    let alone = work(&mut target, &mut beside) - together;
    // perf ends before ingraft does, so nothing may happen in between.
    wait_until("the target reads", || target::waits_in(target.pid(), 0));
    let counted = perf.finish();
    let outcome = session.interrupt().assert_code(0);
    let seen = metrics.map(|metric| last(&outcome, metric, ""));
    assert_eq!(seen.as_slice(), counted, "by perf stat");
    // The program's account already includes the switch at which it waits for its next command.
    assert!(seen[0].abs_diff(alone) <= 2 && alone > 2 && seen[0] <= seen[1], "{seen:?}, and {alone} in the group");
    drop((target, beside));
    drop(group);
}

#[test]
fn times_of_a_whole_process() {
    let mut target = Mutatee::start("events", &["0"]);
    let _ = target.ask("burn 1");
    let timers = ["wall_time", "exec_time", "exec_time_inclusive"];
    let metrics = ["cpu_time", "cpu_inclusive", "cpu"].into_iter().chain(timers);
    let fixed = ["watch", "-p", &target.pid_text(), "--max-overhead", "10000"].map(str::to_owned);
    let mut session = tool().start(fixed.into_iter().chain(metrics.map(str::to_owned)));
    session.wait_for("attached");
    // The processor time of the target includes its work for the insertion, so the test waits for the end of that.
    wait_until("the target reads", || target::waits_in(target.pid(), 0));
    let earlier = charged(target.pid(), target.pid());
    let truth = target.ask("burn 300");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let whole = account(&truth, "process", "cpu") - earlier;
    // The metric `cpu` does not include the reading of commands.
    for (metric, own) in [("cpu_time", whole), ("cpu_inclusive", whole), ("cpu", 300_000_000)] {
        let seen = last(&outcome, metric, "");
        assert!(
            seen.abs_diff(own) <= own / 100 + target::slice_slack_ns(),
            "{metric}: {seen} ns, but {own} ns by its own account"
        );
    }
    // The only thread of the target is in `main` all the time.
    for metric in timers {
        let samples: Vec<_> = outcome.all("sample").into_iter().filter(|sample| sample["metric"] == metric).collect();
        let of = |key: &str| [0, samples.len() - 1].map(|at| samples[at][key].as_u64().expect("a number"));
        let ([value, later], [time, end]) = (of("value"), of("time_ns"));
        let (grown, passed) = (later - value, end - time);
        assert!(grown.abs_diff(passed) <= passed / 100 + 1_000_000, "{metric}: {grown} ns within {passed} ns");
    }
}

#[test]
fn events_beside_code_and_from_the_start_of_a_command() {
    let mut target = Mutatee::start("events", &["2"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session =
        tool().start(["watch", "-p", &pid, "calls@/Code/events/touch", "page_faults", "calls@/Code/events/nap"]);
    session.wait_for("attached");
    let _ = target.ask("act 100 1");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(last(&outcome, "calls", "/Code/events/touch"), 2);
    assert_eq!(last(&outcome, "calls", "/Code/events/nap"), 2);
    assert!(last(&outcome, "page_faults", "") >= 200);
    target::assert_clean(target.pid(), &before);
    let outcome = tool().run(["watch", "page_faults", "task_clock", "--", "/bin/true"]).assert_code(0);
    // The loader touches some dozens of pages for a program.
    assert!((10..10_000).contains(&last(&outcome, "page_faults", "")), "{outcome:#?}");
    assert!(last(&outcome, "task_clock", "") > 0);
}

#[test]
fn what_the_kernel_does_not_count_is_said_in_words() {
    let target = Mutatee::start("events", &["1"]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file("events.mdl"));
    let run = |metric: &str| tool().run(["watch", "-p", &pid, "-I", &name, metric, "--for", "100ms"]);
    let _ = run("named_wrongly").assert_error(2, &["no event is called `page-folts`"]);
    let _ = run("tracepoint").assert_error(2, &["`sched:sched_switch` is a tracepoint"]);
    let _ = run("of_no_unit").assert_error(2, &["this machine has no unit `nothing`"]);
    let _ =
        run("kernels_own_at_a_point").assert_error(1, &["cpu-migrations", "the kernel counts it, not the processor"]);
    let _ = run("task_clock@/Code/events/touch").assert_error(2, &["task_clock"]);
    let of_nobody = format!("page_faults@/Process/{pid}/1");
    let _ = run(&of_nobody).assert_error(3, &["no thread 1"]);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn hardware_is_counted_where_there_is_some() {
    let mut target = Mutatee::start("events", &["1"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let listed = tool().run(["metrics", "--events"]).assert_code(0);
    let event = |name: &str| -> Value {
        let found = listed.all("event").into_iter().find(|e| e["name"] == name);
        found.unwrap_or_else(|| panic!("no event {name}: {listed:#?}")).clone()
    };
    assert!(event("page-faults")["problem"].is_null());
    assert!(event("task-clock")["problem"].is_null());
    let metrics =
        ["instructions", "cpu_cycles", "cache_references", "cache_misses", "branch_instructions", "branch_misses"];
    for metric in metrics {
        let problem = event(&metric.replace('_', "-"))["problem"].clone();
        let arguments = ["watch", "-p", &pid, metric];
        if problem.is_null() {
            let mut session = tool().start(arguments);
            session.wait_for("attached");
            let _ = target.ask("burn 50");
            let outcome = session.interrupt().assert_code(0);
            let least = if metric == "instructions" { 1_000_000 } else { 1 };
            assert!(last(&outcome, metric, "") >= least, "{outcome:#?}");
        } else {
            println!("skipped: counting {metric} ({problem})");
            let _ = tool().run(arguments).assert_error(3, &["no unit for hardware events", "ENOENT"]);
        }
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn threads_read_the_processors_events_where_there_are_some() {
    let mut target = Mutatee::start("events", &["1"]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file("events.mdl"));
    let listed = tool().run(["metrics", "--events"]).assert_code(0);
    let event = |name: &str| listed.all("event").into_iter().find(|e| e["name"] == name).expect("the event").clone();
    assert_eq!(event("page-faults")["at_points"], "system call");
    assert_eq!(event("task-clock")["at_points"], "clock of processor time");
    assert!(event("cpu-migrations")["at_points"].is_null());
    let how = event("instructions")["at_points"].as_str().expect("words").to_owned();
    let arguments = ["watch", "-p", &pid, "-I", &name, "instructions_of_burn", "events_unread"];
    if how == "RDPMC" {
        let mut session = tool().start(arguments);
        session.wait_for("attached");
        let _ = target.ask("burn 50");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(last(&outcome, "instructions_of_burn", "") > 1_000_000, "{outcome:#?}");
        assert_eq!(last(&outcome, "events_unread", ""), 0);
    } else {
        println!("skipped: reading the processor's counters at points ({how})");
        assert!(how.starts_with("RDPMC, never run on this machine"), "{how}");
        let words = ["instructions", "no unit for hardware events", "ENOENT"];
        let _ = tool().run(arguments).assert_error(3, &words);
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn without_privilege_the_kernels_setting_is_named() {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").expect("a kernel with events");
    let paranoid: i32 = paranoid.trim().parse().expect("a number");
    let tool = unprivileged_tool();
    let outcome = tool.run(["watch", "page_faults", "--", "/bin/true"]);
    if paranoid < 2 {
        let _ = outcome.assert_code(0);
        println!("skipped: refusals (kernel.perf_event_paranoid is {paranoid})");
        return;
    }
    let words = format!("kernel.perf_event_paranoid is {paranoid}");
    let _ = outcome.assert_error(4, &[&words, "CAP_PERFMON"]);
    if paranoid == 2 {
        let name = file("events.mdl");
        let outcome = tool.run(["watch", "-I", &name, "faults_of_the_program", "--", "/bin/true"]).assert_code(0);
        assert!(last(&outcome, "faults_of_the_program", "") >= 10, "{outcome:#?}");
    } else {
        println!("skipped: events of the program alone (kernel.perf_event_paranoid is {paranoid})");
    }
}
