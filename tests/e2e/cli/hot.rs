//! Tests of `ingraft hot`: the shares of functions are those that a program measures itself, waiting threads are found with their system calls,
//! and nothing is left in a target.

use std::collections::BTreeMap;

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid as NixPid;
use serde_json::Value;

use crate::choosing::Own;
use crate::tool;

/// Number of samples from which on shares are compared.
const ENOUGH: u64 = 400;

/// Waits until the samples of a session are enough.
fn wait_for_samples(session: &mut Session) -> Value {
    loop {
        let samples = session.wait_for("samples");
        if samples["base"].as_u64().expect("a number") >= ENOUGH {
            return samples;
        }
    }
}

/// The last row of each function.
fn rows<'o>(all: &[&'o Value]) -> BTreeMap<&'o str, &'o Value> {
    all.iter().map(|row| (row["function"].as_str().expect("a name"), *row)).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn shares_are_those_that_the_program_measures_itself() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    let started = target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let own = target.ask("rest");
    let samples = *outcome.all("samples").last().expect("samples");
    assert_eq!((&samples["method"], &samples["state"]), (&Value::from("perf"), &Value::from("running")), "{samples}");
    assert_eq!(samples["threads"][0]["tid"], started.number("tid busy"), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    // All processor time of the program, but for its input, is that of the busy thread.
    let whole = own.number("ns laps") as f64;
    for function in ["seventy", "twenty", "ten"] {
        let truth = own.number(&format!("ns {function}")) as f64 / whole;
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        let (share, error) = (number(&row["self"]), number(&row["self_error"]));
        assert!((share - truth).abs() <= 4.0 * error, "{function} has {share} ± {error}, but {truth} in truth");
        let base = number(&samples["base"]);
        assert!((error - (share * (1.0 - share) / base).sqrt()).abs() < 1e-9, "{row}");
        assert_eq!((&row["how"]["self"], &row["module"]), (&Value::from("sampled"), &Value::from("planted")));
        let (wall, cpu) = (number(&row["wall_ns"]), number(&row["cpu_ns"]));
        assert!(cpu > 0.0 && wall >= cpu && wall < 1.2 * cpu, "it never waits: {row}");
    }
    // The last table comes before the last sums.
    let ends = outcome.objects.iter().enumerate().filter(|(_, object)| object["type"] == "samples").map(|(i, _)| i);
    let ends: Vec<usize> = ends.collect();
    let first = &outcome.objects[ends[ends.len() - 2] + 1];
    assert_eq!(first["function"], "seventy", "it is not first: {outcome:#?}");
    // Everything that the thread does, it does in `laps`.
    assert!(number(&rows["laps"]["total"]) > 0.9 && number(&rows["laps"]["self"]) < 0.1, "{:#?}", rows["laps"]);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn functions_and_threads_are_filters() {
    let mut target = Mutatee::start("planted", &[]);
    let busy = target.ask("run").number("tid busy").to_string();
    let pid = target.pid_text();
    let mut session =
        tool().start(["hot", "-p", &pid, "planted:t*", "--thread", &busy, "--interval", "200ms", "--sort", "total"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let hot = outcome.all("hot");
    let names: Vec<&str> = rows(&hot).into_keys().collect();
    assert_eq!(names, ["ten", "twenty"], "{outcome:#?}");
    let rows = rows(&hot);
    let both = number(&rows["ten"]["self"]) + number(&rows["twenty"]["self"]);
    assert!(both > 0.1 && both < 0.6, "shares are of all samples: {outcome:#?}");
    drop(tool().run(["hot", "-p", &pid, "no_such_function"]).assert_error(3, &["no_such_function"]));
    drop(tool().run(["hot", "-p", &pid, "--thread", &i32::MAX.to_string()]).assert_error(3, &["thread"]));
    target.ask("rest");
}

#[test]
fn waiting_threads_are_found_with_their_system_calls() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    let (sleeper, waiter) = (target.ask("sleep").number("tid sleeper"), target.ask("lock").number("tid waiter"));
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--off-cpu", "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    target.ask("unlock");
    target.ask("wake");
    let samples = *outcome.all("samples").last().expect("samples");
    assert_eq!((&samples["method"], &samples["state"]), (&Value::from("looks"), &Value::from("waiting")), "{samples}");
    let threads: Vec<u64> =
        samples["threads"].as_array().expect("threads").iter().filter_map(|thread| thread["tid"].as_u64()).collect();
    assert!(threads.contains(&sleeper) && threads.contains(&waiter), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    for (function, call) in [("sleeps", "nanosleep"), ("waits_for_lock", "futex")] {
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        let name = row["waits"][0]["name"].as_str().expect("a name");
        assert!(name.ends_with(call), "{row}");
        // One of three threads waits there nearly all the time.
        assert!((0.2..0.4).contains(&number(&row["total"])), "{row}");
        assert!(number(&row["wall_ns"]) > 10.0 * number(&row["cpu_ns"]), "it does nothing but wait: {row}");
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn running_and_waiting_are_in_one_row() {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    target.ask("sleep");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    target.ask("wake");
    target.ask("rest");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    let off_cpu = |name: &str| number(&rows[name]["wall_ns"]) - number(&rows[name]["cpu_ns"]);
    let span = number(&outcome.all("samples").last().expect("samples")["span_ns"]);
    // The sleeper waits most of the time, and the busy thread never does. Both may have to wait for a processor.
    assert!((0.3..1.2).contains(&(off_cpu("sleeps") / span)), "{outcome:#?}");
    assert!(off_cpu("laps") < 0.1 * span && number(&rows["laps"]["cpu_ns"]) > 0.02 * span, "{outcome:#?}");
    let call = rows["sleeps"]["waits"][0]["name"].as_str().expect("a system call");
    assert!(call.ends_with("nanosleep") && rows["laps"]["waits"].as_array().is_some_and(Vec::is_empty), "{outcome:#?}");
}

#[test]
fn a_target_that_ends_is_told_with_its_samples() {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    target.tell("exit 3");
    let outcome = session.finish().assert_code(0);
    outcome.one("ended");
    assert!(rows(&outcome.all("hot")).contains_key("seventy"), "{outcome:#?}");
}

#[test]
fn a_killed_command_leaves_nothing() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    session.wait_for("samples");
    session.kill();
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
}

#[test]
fn samples_in_woven_code_belong_to_the_original_function() {
    let mut target = Mutatee::start("planted", &[]);
    let tool = tool();
    target.ask("run");
    let count = tool.count(target.pid(), &["planted:*"]);
    let mut session = tool.start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    wait_for_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let rows = rows(&outcome.all("hot"));
    assert!(number(&rows["seventy"]["self"]) > 0.5, "{outcome:#?}");
    target.ask("rest");
    drop(count.interrupt().assert_code(0).assert_removed());
}

/// The numbers of calls of the planted functions in the next reading; `None` if one of them has no counter.
fn next_calls(session: &mut Session) -> Option<[u64; 3]> {
    let mut calls = BTreeMap::new();
    loop {
        let object = session.try_wait_for_any(&["hot", "samples"]).expect("a reading");
        if object["type"] == "samples" {
            let of = |name| calls.get(name).copied().flatten();
            return Some([of("seventy")?, of("twenty")?, of("ten")?]);
        }
        calls.insert(object["function"].as_str().expect("a name").to_owned(), object["calls"].as_u64());
    }
}

#[test]
fn calls_are_counted_exactly() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    let arguments = ["hot", "-p", &target.pid_text(), "--calls", "--interval", "200ms", "--max-overhead", "100"];
    let mut session = tool().start(arguments);
    // The functions get their counters one after the other, if not all of them are among the first samples.
    while next_calls(&mut session).is_none() {}
    let first = target.ask("rest").number("laps");
    // A reading may have begun before the end of the last lap.
    next_calls(&mut session);
    let counted = next_calls(&mut session).expect("counters");
    target.ask("run");
    while next_calls(&mut session).is_none_or(|calls| calls[2] < counted[2] + 10) {}
    let laps = target.ask("rest").number("laps") - first;
    let outcome = session.interrupt().assert_code(0);
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    // Each lap calls each function once, and the thread ends behind a lap.
    for (function, counted) in ["seventy", "twenty", "ten"].into_iter().zip(counted) {
        let row = rows[function];
        assert_eq!(row["calls"].as_u64().map(|calls| calls - counted), Some(laps), "{function}: {outcome:#?}");
        assert_eq!(row["how"]["calls"], "counted", "{outcome:#?}");
        assert!(number(&row["mean_ns"]) > 0.0, "{outcome:#?}");
    }
    let removed = outcome.all("removed");
    assert!(!removed.is_empty() && removed.iter().all(|removed| removed["text_restored"] == true), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

/// The values of folded stacks in which a function has these callers, from the outermost of them on.
fn folded(text: &str, calls: &str) -> u64 {
    let value = |line: &str| {
        let (stack, value) = line.rsplit_once(' ')?;
        (stack == calls || stack.ends_with(&format!(";{calls}"))).then(|| value.parse::<u64>().expect("a number"))
    };
    text.lines().filter_map(value).sum()
}

#[test]
fn stacks_are_a_file_for_another_tool() {
    let mut target = Mutatee::start("planted", &[]);
    let before = Text::of(target.pid());
    target.ask("run");
    target.ask("sleep");
    let pid = target.pid_text();
    let outcome = tool().start_plain(["hot", "-p", &pid, "--for", "3s", "--as", "folded"]).finish().assert_code(0);
    let own = target.ask("tell");
    let text = outcome.other.join("\n");
    let whole = text.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>() as f64;
    let samples = whole / 2e6;
    for function in ["seventy", "twenty", "ten"] {
        let truth = own.number(&format!("ns {function}")) as f64 / own.number("ns laps") as f64;
        let share = folded(&text, &format!("laps;{function}")) as f64 / whole;
        let error = (truth * (1.0 - truth) / samples).sqrt();
        assert!((share - truth).abs() <= 5.0 * error, "{function} has {share}, but {truth} in truth: {text}");
    }
    // Only stacks with the functions.
    let one = tool().start_plain(["hot", "-p", &pid, "planted:twenty", "--for", "1s", "--as", "folded"]).finish();
    let text = one.assert_code(0).other.join("\n");
    assert!(folded(&text, "laps;twenty") > 0 && !text.contains("seventy"), "{text}");
    // Where threads wait, with the system calls.
    let waits = tool().start_plain(["hot", "-p", &pid, "--off-cpu", "--for", "1s", "--as", "folded"]).finish();
    let text = waits.assert_code(0).other.join("\n");
    let sleeps = |line: &&str| line.contains("sleeps;") && line.contains("nanosleep] ");
    let asleep: u64 = text.lines().filter(sleeps).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
    assert!((500_000_000..1_500_000_000).contains(&asleep), "{asleep} ns of one second: {text}");
    let file = std::env::temp_dir().join(format!("hot-{pid}.svg"));
    let name = file.display().to_string();
    drop(tool().start_plain(["hot", "-p", &pid, "--for", "1s", "--as", "svg", "-o", &name]).finish().assert_code(0));
    let svg = std::fs::read_to_string(&file).expect("the graph");
    std::fs::remove_file(&file).expect("remove the graph");
    assert!(svg.contains(&format!("process {pid}: cpu_ns")) && svg.contains("<title>seventy ("), "{svg}");
    let refused = tool().run(["hot", "-p", &pid, "--as", "lcov", "--for", "1s"]);
    drop(refused.assert_code(2));
    target.ask("rest");
    target.ask("wake");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_command_that_counts_no_calls_says_why() {
    let target = Mutatee::start("planted", &[]);
    let pid = target.pid_text();
    for (flags, why) in [
        (&["--for", "300ms"][..], "no reading came before the last one"),
        (&["--for", "600ms", "--interval", "200ms"], "50 recent samples of running threads, and there were at most 0;"),
    ] {
        let outcome = tool().run([&["hot", "-p", &pid, "--calls"], flags].concat()).assert_code(0);
        assert!(outcome.all("hot").iter().all(|row| row["calls"].is_null()), "{outcome:#?}");
        assert!(outcome.stderr.contains("calls are not counted: ") && outcome.stderr.contains(why), "{outcome:#?}");
    }
}

#[test]
fn a_program_is_started_and_sampled_to_its_end() {
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 5";
    let outcome = tool().run(["hot", "--", "sh", "-c", script]).assert_code(5);
    assert_eq!(outcome.one("ended")["status"], 5, "{outcome:#?}");
    assert!(number(&outcome.one("samples")["samples"]) > 10.0, "{outcome:#?}");
    // The time is spread over many functions of the shell, of which the table has those with the most samples.
    let own: f64 = outcome.all("hot").iter().map(|row| number(&row["self"])).sum();
    assert!(own > 0.1, "{own} in {outcome:#?}");
}

#[test]
fn code_of_a_just_in_time_compiler_has_names_and_callers() {
    let mut target = Mutatee::start("compiled", &[]);
    target.ask("run");
    let pid = target.pid_text();
    let outcome = tool().run(["hot", "-p", &pid, "--for", "2s"]).assert_code(0);
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    let row = rows.get("compiled_inner /srv/a b.js:3").unwrap_or_else(|| panic!("no row: {outcome:#?}"));
    assert_eq!(row["module"], "[jit]", "{outcome:#?}");
    assert!(number(&row["self"]) > 0.8, "{outcome:#?}");
    // The frames are found in both kinds of code, by frame pointers and by tables.
    for caller in ["compiled_outer", "step", "runs", "start_thread"] {
        assert!(number(&rows[caller]["total"]) > 0.8, "{caller}: {outcome:#?}");
    }
    let stacks = tool().start_plain(["hot", "-p", &pid, "--for", "1s", "--as", "folded"]).finish().assert_code(0);
    let text = stacks.other.join("\n");
    assert!(folded(&text, "runs;compiled_outer;step;compiled_inner /srv/a b.js:3") > 0, "{text}");
    target.ask("rest");
    // Without the file, it is memory.
    target.ask("run");
    let outcome = tool().run(["hot", "-p", &pid, "--for", "1s"]).assert_code(0);
    let elsewhere = &outcome.one("samples")["elsewhere"][0];
    assert_eq!(elsewhere["name"], "memory without a file", "{outcome:#?}");
    target.ask("rest");
}

#[test]
fn waits_that_outlast_the_measurement_are_told() {
    let mut target = Mutatee::start("planted", &[]);
    let (pid, holder) = (target.pid_text(), target.pid());
    let waiter = target.ask("lock").number("tid waiter");
    let outcome = tool().run(["locks", "-p", &pid, "--for", "1s"]).assert_code(0).assert_removed();
    let told = format!("1 thread of process {pid} waited for a lock all the time");
    let (place, held) = (format!("thread {waiter} planted in waits_for_lock ("), format!(", held by thread {holder})"));
    assert!(outcome.stderr.contains(&told) && !outcome.stderr.contains("deadlock"), "{outcome:#?}");
    assert!(outcome.stderr.contains(&place) && outcome.stderr.contains(&held), "{outcome:#?}");
    let outcome = tool().run(["offcpu", "-p", &pid, "--for", "1s"]).assert_code(0).assert_removed();
    assert!(outcome.stderr.contains(&told) && outcome.stderr.contains(&held), "{outcome:#?}");
    target.ask("unlock");
    let outcome = tool().run(["locks", "-p", &pid, "--for", "1s"]).assert_code(0);
    assert!(!outcome.stderr.contains("all the time"), "{outcome:#?}");
}

#[test]
fn a_stopped_process_is_told() {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let pid = target.pid_text();
    let own = NixPid::from_raw(target.pid());
    let send = move |signal| kill(own, signal).expect("a signal");
    send(Signal::SIGSTOP);
    for arguments in [&["hot", "-p", &pid, "--for", "500ms"][..], &["count", "-p", &pid, "seventy", "--for", "500ms"]] {
        let outcome = tool().run(arguments).assert_code(0);
        assert!(outcome.stderr.contains("the process is stopped"), "{outcome:#?}");
    }
    let outcome = tool().run(["diagnose", "-p", &pid, "--for", "1s"]).assert_code(0);
    let found = outcome.all("finding");
    let stopped = found.iter().find(|finding| finding["hypothesis"] == "stopped by a signal").expect("a finding");
    assert_eq!(stopped["holds"], true, "{outcome:#?}");
    assert_eq!(target::state(target.pid()), 'T', "it stays stopped");
    send(Signal::SIGCONT);
    let outcome = tool().run(["hot", "-p", &pid, "--for", "500ms"]).assert_code(0);
    assert!(!outcome.stderr.contains("stopped"), "{outcome:#?}");
    target.ask("rest");
}

/// Waits until the samples of several processes together are enough.
fn wait_for_all_samples(session: &mut Session) -> Value {
    loop {
        let samples = wait_for_samples(session);
        if !samples["targets"].is_null() {
            return samples;
        }
    }
}

/// The last records of all processes together: the rows by function, and the sums.
fn together(outcome: &Outcome) -> (BTreeMap<&str, &Value>, &Value) {
    let of_all = |object: &&Value| !object["targets"].is_null() && object["pid"].is_null();
    let hot: Vec<&Value> = outcome.all("hot").into_iter().filter(of_all).collect();
    let samples = outcome.all("samples").into_iter().rfind(of_all);
    (rows(&hot), samples.unwrap_or_else(|| panic!("no samples of all processes: {outcome:#?}")))
}

/// The last sums of one process.
fn samples_of(outcome: &Outcome, pid: i32) -> &Value {
    let its = outcome.all("samples").into_iter().rfind(|samples| samples["pid"] == pid);
    its.unwrap_or_else(|| panic!("no samples of process {pid}: {outcome:#?}"))
}

#[test]
fn all_processes_of_a_name_have_one_table() {
    let own = Own::of("planted", "hot");
    let mut targets = [own.start(), own.start(), own.start()];
    let before = targets.each_ref().map(|target| Text::of(target.pid()));
    // The third process does nothing.
    let mut begun = [0; 2];
    for (target, tid) in targets.iter_mut().zip(&mut begun) {
        *tid = target.ask("run").number("tid busy");
    }
    let mut session = tool().start(["hot", "-n", own.name(), "--all", "--interval", "200ms"]);
    wait_for_all_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    let told = [targets[0].ask("rest"), targets[1].ask("rest")];
    let (rows, samples) = together(&outcome);
    assert_eq!((&samples["targets"], &samples["method"]), (&Value::from(3), &Value::from("perf")), "{samples}");
    let sum = |key: &str| -> u64 {
        targets.iter().map(|target| samples_of(&outcome, target.pid())[key].as_u64().expect("a number")).sum()
    };
    for key in ["base", "samples", "cpu_ns", "looks", "waits"] {
        assert_eq!(samples[key].as_u64(), Some(sum(key)), "{key}: {outcome:#?}");
    }
    assert_eq!(samples_of(&outcome, targets[2].pid())["samples"], 0, "{outcome:#?}");
    // The processes have the same thread ids nowhere, and each thread is told with its process.
    let threads = samples["threads"].as_array().expect("threads");
    let of = |thread: &Value| (thread["pid"].as_i64(), thread["tid"].as_u64());
    let busy: Vec<_> = threads.iter().map(of).collect();
    for (target, tid) in targets.iter().zip(begun) {
        assert!(busy.contains(&(Some(target.pid().into()), Some(tid))), "{samples}");
    }
    let ns = |name: &str| told.iter().map(|own| own.number(&format!("ns {name}"))).sum::<u64>() as f64;
    for function in ["seventy", "twenty", "ten"] {
        let truth = ns(function) / ns("laps");
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        let (share, error) = (number(&row["self"]), number(&row["self_error"]));
        assert!((share - truth).abs() <= 4.0 * error, "{function} has {share} ± {error}, but {truth} in truth");
        let base = number(&samples["base"]);
        assert!((share - number(&row["self_samples"]) / base).abs() < 1e-9, "each sample counts the same: {row}");
        assert!((error - (share * (1.0 - share) / base).sqrt()).abs() < 1e-9, "{row}");
    }
    for (target, before) in targets.iter().zip(&before) {
        target::assert_clean(target.pid(), before);
    }
    let table = tool().start_plain(["hot", "-n", own.name(), "--all", "--for", "300ms"]).finish().assert_code(0);
    assert!(table.other.iter().any(|line| line.starts_with("3 processes with ")), "{table:#?}");
}

#[test]
fn processes_that_cannot_be_sampled_or_end_do_not_stop_the_others() {
    let (mut first, mut second) = (Mutatee::start("planted", &[]), Mutatee::start("planted", &[]));
    let mut gone = std::process::Command::new("true").spawn().expect("coreutils");
    let dead = gone.id().to_string();
    gone.wait().expect("its end");
    first.ask("run");
    second.ask("run");
    let (one, two) = (first.pid_text(), second.pid_text());
    let mut session = tool().start(["hot", "-p", &dead, "-p", &one, "-p", &two, "--interval", "200ms"]);
    session.wait_for_word(&format!("process {dead} is not measured"));
    wait_for_all_samples(&mut session);
    second.tell("exit 3");
    // The first goes on after the end of the second.
    let last = loop {
        let samples = session.wait_for("samples");
        if samples["pid"] == first.pid() && target::state(second.pid()) == 'Z' {
            break samples;
        }
    };
    let base = number(&last["base"]);
    loop {
        let samples = session.wait_for("samples");
        if samples["pid"] == first.pid() && number(&samples["base"]) > base + 10.0 {
            break;
        }
    }
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("ended")["pid"], second.pid(), "{outcome:#?}");
    let (rows, samples) = together(&outcome);
    assert_eq!(samples["targets"], 2, "{outcome:#?}");
    assert!(number(&rows["seventy"]["self"]) > 0.5, "{outcome:#?}");
    let _ = tool().run(["hot", "-p", &dead, "-p", "2147483647"]).assert_error(3, &[&dead]);
    let _ = tool().run(["hot", "-n", "no-such-program", "--all"]).assert_error(3, &["no-such-program"]);
}

#[test]
fn calls_of_several_processes_are_added_up() {
    let mut targets = [Mutatee::start("planted", &[]), Mutatee::start("planted", &[])];
    let before = targets.each_ref().map(|target| Text::of(target.pid()));
    targets.iter_mut().for_each(|target| drop(target.ask("run")));
    let pids = targets.each_ref().map(Mutatee::pid_text);
    let arguments = ["hot", "-p", &pids[0], "-p", &pids[1], "--calls", "--interval", "200ms", "--max-overhead", "100"];
    let mut session = tool().start(arguments);
    let is_counted = |row: &Value, pid: i32| row["pid"] == pid && row["calls_per_s"].as_f64().is_some_and(|n| n > 0.0);
    for target in &targets {
        while !is_counted(&session.wait_for("hot"), target.pid()) {}
    }
    targets.iter_mut().for_each(|target| drop(target.ask("rest")));
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(
        outcome.all("removed").len(),
        outcome.all("attached").len() + outcome.all("changed").len(),
        "{outcome:#?}"
    );
    let (rows, _) = together(&outcome);
    let calls = ["seventy", "twenty", "ten"].map(|function| rows[function]["calls"].as_u64().expect("calls"));
    assert!(calls[0] > 0 && calls.iter().all(|n| n.abs_diff(calls[0]) <= 2), "{calls:?}: {outcome:#?}");
    for (function, calls) in ["seventy", "twenty", "ten"].into_iter().zip(calls) {
        let hot = outcome.all("hot");
        let of = |pid: i32| hot.iter().rfind(|row| row["pid"] == pid && row["function"] == function);
        let each = |key: &str| targets.iter().filter_map(|target| of(target.pid())?[key].as_f64()).sum::<f64>();
        assert_eq!(each("calls"), calls as f64, "{function}: {outcome:#?}");
        assert!((each("calls_per_s") / number(&rows[function]["calls_per_s"]) - 1.0).abs() < 1e-9, "{outcome:#?}");
        assert!(number(&rows[function]["mean_ns"]) > 0.0, "{outcome:#?}");
    }
    for (target, before) in targets.iter().zip(&before) {
        target::assert_clean(target.pid(), before);
    }
}

#[test]
fn waits_of_several_processes_are_shares_of_the_time_of_all_threads() {
    let (mut one, mut two) = (Mutatee::start("planted", &[]), Mutatee::start("planted", &[]));
    one.ask("sleep");
    two.ask("lock");
    let arguments = ["hot", "-p", &one.pid_text(), "-p", &two.pid_text(), "--off-cpu", "--interval", "200ms"];
    let mut session = tool().start(arguments);
    wait_for_all_samples(&mut session);
    let outcome = session.interrupt().assert_code(0);
    two.ask("unlock");
    one.ask("wake");
    let (rows, samples) = together(&outcome);
    assert_eq!((&samples["method"], &samples["targets"]), (&Value::from("looks"), &Value::from(2)), "{samples}");
    for (function, call) in [("sleeps", "nanosleep"), ("waits_for_lock", "futex")] {
        let row = rows.get(function).unwrap_or_else(|| panic!("no row of {function}: {outcome:#?}"));
        assert!(row["waits"][0]["name"].as_str().is_some_and(|name| name.ends_with(call)), "{row}");
        // One of four threads waits there nearly all the time.
        assert!((0.15..0.35).contains(&number(&row["total"])), "{row}");
    }
}

#[test]
fn redis_under_load() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = Text::of(redis.pid());
    let mut session = tool().start(["hot", "-p", &redis.pid().to_string(), "--interval", "200ms"]);
    session.wait_for("samples");
    redis.load(&["-n", "20000", "-c", "10", "-P", "16", "-q", "-t", "set"]);
    loop {
        let samples = session.wait_for("samples");
        if samples["base"].as_u64().expect("a number") > 10 {
            break;
        }
        redis.load(&["-n", "20000", "-c", "10", "-P", "16", "-q", "-t", "set"]);
    }
    let outcome = session.interrupt().assert_code(0);
    let samples = *outcome.all("samples").last().expect("samples");
    assert!(number(&samples["cut"]) <= number(&samples["base"]), "{samples}");
    let hot = outcome.all("hot");
    let rows = rows(&hot);
    assert!(rows.values().any(|row| row["module"] == "redis-server"), "{outcome:#?}");
    let own: u64 = rows.values().map(|row| row["self_samples"].as_u64().expect("a number")).sum();
    let base = samples["base"].as_u64().expect("a number");
    assert!(own <= base, "each sample is of one function: {own} of {base}");
    target::assert_clean(redis.pid(), &before);
}
