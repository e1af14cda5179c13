//! Events that the kernel counts: page faults, switches, clocks, and what units of the processor count where there are any.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, source_directory};
use serde_json::Value;

use crate::{tool, unprivileged_tool};

fn file(name: &str) -> String {
    source_directory().join("tests/e2e/mdl").join(name).to_str().expect("a path").to_owned()
}

/// The last value of a metric at a focus.
#[track_caller]
fn last(outcome: &Outcome, metric: &str, focus: &str) -> u64 {
    let mut samples = outcome.all("sample").into_iter();
    let last = samples.rfind(|s| s["metric"] == metric && s["focus"] == focus);
    let last = last.unwrap_or_else(|| panic!("no sample of {metric} at {focus}: {outcome:#?}"));
    last["value"].as_u64().expect("a value is a number")
}

/// What the program's own account of itself has under a key, of all threads or of one.
#[track_caller]
fn account(reply: &Reply, who: &str, key: &str) -> u64 {
    let words: Vec<&str> = reply.after(who).split_whitespace().collect();
    let at = words.iter().position(|word| *word == key).expect("a key");
    words[at + 1].parse().expect("a number")
}

/// The threads that wait.
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
    assert!(last(&outcome, "context_switches", "").abs_diff(since("process", "switches")) <= 50, "{truth:?}");
    let (clock, cpu) = (last(&outcome, "task_clock", ""), since("process", "cpu"));
    assert!(clock.abs_diff(cpu) <= cpu / 10 + 2_000_000, "{clock} {cpu}");
    assert_eq!(last(&outcome, "pause_time", ""), 0);
    target::assert_clean(target.pid(), &before);
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
    // the loader of a program needs some dozens of pages
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
    let problem = event("instructions")["problem"].clone();
    let arguments = ["watch", "-p", &pid, "instructions"];
    if problem.is_null() {
        let mut session = tool().start(arguments);
        session.wait_for("attached");
        let _ = target.ask("burn 50");
        let outcome = session.interrupt().assert_code(0);
        assert!(last(&outcome, "instructions", "") > 1_000_000, "{outcome:#?}");
    } else {
        println!("skipped: counting instructions ({problem})");
        let _ = tool().run(arguments).assert_error(3, &["instructions", "no unit for hardware events", "ENOENT"]);
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
