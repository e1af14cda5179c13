//! Tests of `ingraft diagnose`: the first finding names the cause that a program has, and nothing is left in it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ingraft_testing::causes::{self, Ailing, Cause};
use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::tool;

/// Searches a program with one cause. The first finding must be its hypothesis, name its function, and have it as a refinement.
fn assert_found(cause: &Cause) -> (Ailing, Outcome) {
    let mut ailing = cause.start(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let pid = ailing.target.pid();
    let before = Text::of(pid);
    let outcome = tool().run(["diagnose", "-p", &pid.to_string()]).assert_code(0);
    let first = first(&outcome);
    assert_eq!(first["hypothesis"], cause.hypothesis, "{outcome:#?}");
    assert!(text(first, "evidence").contains(cause.function), "{outcome:#?}");
    let place = format!("/Code/ailing/{}", cause.function);
    let narrowed = |finding: &&&Value| finding["parent"] == first["id"] && finding["where"] == place.as_str();
    let narrowed = outcome.all("finding").iter().find(narrowed).copied().cloned();
    assert!(narrowed.is_some_and(|finding| finding["holds"] == true), "{place} is not there: {outcome:#?}");
    assert_tree(&outcome);
    target::assert_clean(pid, &before);
    ailing.target.ask("rest");
    (ailing, outcome)
}

/// The first finding below the root that holds.
fn first(outcome: &Outcome) -> &Value {
    let findings = outcome.all("finding");
    let holds = |finding: &&&Value| finding["parent"] == 1 && finding["holds"] == true;
    findings.iter().find(holds).copied().unwrap_or_else(|| panic!("nothing holds: {outcome:#?}"))
}

fn text<'v>(finding: &'v Value, key: &str) -> &'v str {
    finding[key].as_str().unwrap_or_else(|| panic!("{key} is no text: {finding}"))
}

/// Checks that the findings are a tree in the order of the search, in which only findings that hold are refined, and that each has a
/// command and tells what would refute it.
fn assert_tree(outcome: &Outcome) {
    let findings = outcome.all("finding");
    for (i, finding) in findings.iter().enumerate() {
        assert_eq!(finding["id"], i as u64 + 1, "{outcome:#?}");
        assert!(text(finding, "command").starts_with("ingraft "), "{finding}");
        assert!(!text(finding, "refuted_by").is_empty() && !text(finding, "evidence").is_empty(), "{finding}");
        let share = finding["share"].as_f64().expect("a share");
        assert!((0.0..=1.0).contains(&share), "{finding}");
        let Some(parent) = finding["parent"].as_u64() else { continue };
        let parent = findings.iter().find(|other| other["id"] == parent).expect("the parent");
        assert_eq!(parent["holds"], true, "a finding that fell was refined: {outcome:#?}");
    }
}

#[test]
fn a_hot_loop() {
    assert_found(&causes::HOT_LOOP);
}

#[test]
fn a_mutex_that_threads_wait_for() {
    let (ailing, outcome) = assert_found(&causes::MUTEX);
    let mutex = format!("/SyncObject/Mutex/{:#x}", ailing.reply.number("address"));
    let found = outcome.all("finding").into_iter().find(|f| f["where"] == mutex.as_str() && f["holds"] == true);
    assert!(found.is_some_and(|found| text(found, "evidence").contains("locks/s")), "{outcome:#?}");
}

#[test]
fn a_disk_behind_idle_workers() {
    assert_found(&causes::DISK);
}

#[test]
fn page_faults() {
    assert_found(&causes::PAGE_FAULTS);
}

#[test]
fn a_callee_that_sleeps() {
    assert_found(&causes::SLEEP);
}

#[test]
fn another_server_that_is_slow() {
    let (ailing, outcome) = assert_found(&causes::UPSTREAM);
    let place = format!("socket {}", ailing.upstream.expect("a server"));
    assert!(outcome.all("finding").iter().any(|f| f["where"] == place.as_str() && f["holds"] == true), "{outcome:#?}");
}

/// The program reads its commands from a pipe, and wakes for each of them.
#[test]
fn a_program_that_waits_for_commands_is_idle() {
    let mut target = Mutatee::start("ailing", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let done = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                target.ask("rest");
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let _ends = LoadEnds(&done);
        tool().run(["diagnose", "-p", &pid]).assert_code(0)
    });
    assert_eq!(first(&outcome)["hypothesis"], "mostly idle", "{outcome:#?}");
    assert!(text(first(&outcome), "evidence").contains("idle threads wait in read"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn calls_that_fail_and_are_made_again() {
    let (_ailing, outcome) = assert_found(&causes::RETRIES);
    assert!(text(first(&outcome), "evidence").contains("calls of read failed"), "{outcome:#?}");
}

/// The group of processes in which a hypothesis holds.
fn group<'o>(outcome: &'o Outcome, hypothesis: &str) -> &'o Value {
    let groups = outcome.all("finding_group");
    let found = groups.into_iter().find(|group| group["hypothesis"] == hypothesis);
    found.unwrap_or_else(|| panic!("no group {hypothesis}: {outcome:#?}"))
}

#[test]
fn each_problem_of_several_processes_is_found_in_its_process() {
    let mut busy = causes::HOT_LOOP.start(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let mut locked = causes::MUTEX.start(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let idle = Mutatee::start("ailing", &[]);
    let mut gone = std::process::Command::new("true").spawn().expect("coreutils");
    let dead = gone.id().to_string();
    gone.wait().expect("its end");
    let pids = [busy.target.pid(), locked.target.pid(), idle.pid()];
    let before = pids.map(Text::of);
    let mut arguments = vec!["diagnose".to_owned(), "-p".to_owned(), dead.clone()];
    arguments.extend(pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]));
    let outcome = tool().run(&arguments).assert_code(0);
    assert!(outcome.stderr.contains(&format!("process {dead} is not measured")), "{outcome:#?}");
    for (cause, pid) in [(&causes::HOT_LOOP, pids[0]), (&causes::MUTEX, pids[1])] {
        let group = group(&outcome, cause.hypothesis);
        assert_eq!(group["targets"], 3, "{outcome:#?}");
        let first = &group["processes"][0];
        assert_eq!((&first["pid"], &first["searched"]), (&Value::from(pid), &Value::from(true)), "{outcome:#?}");
        let place = format!("/Code/ailing/{}", cause.function);
        let is_there = |f: &&Value| f["pid"] == pid && f["where"] == place.as_str() && f["holds"] == true;
        assert!(outcome.all("finding").iter().any(is_there), "{place} is not there: {outcome:#?}");
    }
    let findings = outcome.all("finding");
    let of_idle = |hypothesis: &str| {
        findings
            .iter()
            .find(|f| f["pid"] == pids[2] && f["hypothesis"] == hypothesis)
            .is_some_and(|f| f["holds"] == true)
    };
    assert!(of_idle("mostly idle") && !of_idle("processor bound"), "{outcome:#?}");
    // Nothing was put into the process without a problem.
    for kind in ["attached", "changed", "removed"] {
        assert!(outcome.all(kind).iter().all(|object| object["pid"] != pids[2]), "{outcome:#?}");
    }
    for (pid, before) in pids.into_iter().zip(&before) {
        target::assert_clean(pid, before);
    }
    busy.target.ask("rest");
    locked.target.ask("rest");
    drop(tool().run(["diagnose", "-n", "no-such-program", "--all"]).assert_error(3, &["no-such-program"]));
}

#[test]
fn a_program_is_started_and_searched() {
    let counting = |n: u32| format!("i=0; while [ $i -lt {n} ]; do i=$((i+1)); done; exit 5");
    // The shell counts longer than the search takes: it runs on, until it is ended here.
    let outcome = tool().run(["diagnose", "--for", "4s", "--", "sh", "-c", &counting(100_000_000)]).assert_code(0);
    let finding = first(&outcome);
    assert_eq!(finding["hypothesis"], "processor bound", "{outcome:#?}");
    assert!(outcome.all("ended").is_empty(), "{outcome:#?}");
    let pid = finding["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the program runs on");
    // A program that ends first ends the search, and the command has its exit status.
    let outcome = tool().run(["diagnose", "--for", "20s", "--", "sh", "-c", &counting(1_000_000)]).assert_code(5);
    assert_eq!(outcome.one("ended")["status"], 5, "{outcome:#?}");
    assert_eq!(first(&outcome)["hypothesis"], "processor bound", "{outcome:#?}");
    // Little or nothing is seen of a program that ends at once.
    let outcome = tool().run(["diagnose", "--own-status", "--", "true"]);
    if outcome.status.success() {
        assert!(outcome.stderr.contains("before it had seen anything"), "{outcome:#?}");
    } else {
        let _ = outcome.assert_error(5, &["the program ended before anything was seen of it"]);
    }
}

#[test]
fn an_interrupted_search_prints_what_it_has_found() {
    let mut target = Mutatee::start("ailing", &[]);
    let before = Text::of(target.pid());
    target.ask("burn");
    let session = tool().start(["diagnose", "-p", &target.pid_text(), "--for", "20s"]);
    ingraft_testing::wait_until("the search looks", || samplings(session.pid()) == 2);
    let outcome = session.interrupt().assert_code(0);
    if outcome.all("finding").is_empty() {
        assert!(outcome.stderr.contains("before it had seen anything"), "{outcome:#?}");
    } else {
        assert_tree(&outcome);
        assert_eq!(outcome.all("finding")[0]["parent"], Value::Null, "{outcome:#?}");
    }
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
}

/// Number of threads of a process that take samples.
fn samplings(pid: i32) -> usize {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "samples").count()
}

#[test]
fn a_search_that_is_killed_in_a_trial_leaves_nothing_after_detach() {
    let mut target = Mutatee::start("ailing", &[]);
    let before = Text::of(target.pid());
    target.ask("burn");
    let tool = tool();
    let session = tool.start(["diagnose", "-p", &target.pid_text(), "--for", "20s"]);
    ingraft_testing::wait_until("a trial is in", || Text::of(target.pid()) != before);
    session.kill();
    drop(tool.detach(target.pid()).assert_code(0));
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
}

/// Ends a load, also if the test fails.
struct LoadEnds<'d>(&'d AtomicBool);

impl Drop for LoadEnds<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn redis() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => return println!("skipped: {why}"),
    };
    let before = Text::of(redis.pid());
    let pid = redis.pid().to_string();
    let outcome = tool().run(["diagnose", "-p", &pid]).assert_code(0);
    assert_eq!(first(&outcome)["hypothesis"], "mostly idle", "{outcome:#?}");
    let holding = outcome.all("finding").iter().filter(|f| f["holds"] == true).count();
    assert_eq!(holding, 2, "only the root and this: {outcome:#?}");
    let done = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redis.load(&["-n", "20000", "-c", "10", "-P", "16", "-q", "-t", "set"]);
            }
        });
        let _ends = LoadEnds(&done);
        tool().run(["diagnose", "-p", &pid]).assert_code(0)
    });
    assert_eq!(first(&outcome)["hypothesis"], "processor bound", "{outcome:#?}");
    let in_code = |f: &&&Value| f["parent"] == first(&outcome)["id"] && text(f, "where").starts_with("/Code/");
    assert!(outcome.all("finding").iter().any(|f| in_code(&f)), "{outcome:#?}");
    target::assert_clean(redis.pid(), &before);
}
