//! Tests that attach, count and detach in many rounds: nothing grows, no client gets an error, and the code is byte-identical each time.

use std::sync::atomic::{AtomicBool, Ordering};

use ingraft_testing::server::{Nginx, Postgres, Redis};
use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Mutatee, Tool, Until, full, scaled, skip, wait_until};

use crate::tool;

/// Number of rounds.
fn total() -> u64 {
    scaled(20, 200)
}

/// One round: attaches to some functions, lets `happen` run, removes the measurement, and checks that nothing is left.
fn round(
    tool: &Tool,
    pid: i32,
    functions: &[&str],
    before: &Text,
    mut happen: impl FnMut(),
) -> ingraft_testing::Outcome {
    let session = tool.count(pid, functions);
    assert_eq!(target::tracer(pid), 0, "untraced while it counts");
    assert!(target::writable_code(pid).is_empty(), "no page is writable and executable");
    happen();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(pid, before);
    outcome
}

/// Panics if a process grew from one size to another by more than a busy server may grow by itself.
fn assert_no_growth(first: Size, last: Size, resident: u64) {
    assert!(last.maps <= first.maps, "mappings: {first:?} grew to {last:?}");
    assert!(last.files <= first.files + 1, "files: {first:?} grew to {last:?}");
    assert!(last.resident <= first.resident + resident, "memory: {first:?} grew to {last:?}");
}

#[test]
fn threads_that_all_sit_in_the_function() {
    let mut target = Mutatee::start("spin", &["6"]);
    let tool = tool();
    let before = Text::of(target.pid());
    let mut size = None;
    for index in 0..total() {
        let outcome = round(&tool, target.pid(), &["sit"], &before, || {
            let earlier = target.ask("beat").number("beats");
            wait_until("the threads go round", || target.ask("beat").number("beats") > earlier);
        });
        // The threads branch back to the first instruction of the function, which is no call. No other call begins there either.
        assert_eq!(outcome.calls("sit"), 0);
        if index == 2 {
            size = Some(Size::of(target.pid()));
        }
    }
    assert_no_growth(size.expect("three rounds"), Size::of(target.pid()), 256);
    let session = tool.count(target.pid(), &["sit"]);
    target.ask("leave");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("sit"), 6, "each thread leaves and enters again");
    target.ask("leave");
}

/// Processes that only compute, so that other threads wait for processors. Dropping it ends them.
struct Busy(Vec<std::process::Child>);

impl Busy {
    fn start(count: usize) -> Busy {
        let start = |_| std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        Busy((0..count).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // the process is ours, and may have ended
            let _ = child.wait();
        }
    }
}

#[test]
fn timers_in_a_function_that_never_rests_on_a_loaded_machine() {
    timers_come_and_go(&tool(), "4");
}

/// Inserts and removes timers while this many threads only call the function and wait for processors. Panics on an error or a long hold.
pub fn timers_come_and_go(tool: &Tool, threads: &str) {
    let mut target = Mutatee::start("threads", &[threads]);
    let before = Text::of(target.pid());
    target.ask("spin");
    let _busy = Busy::start(6);
    for _ in 0..scaled(6, 100) {
        for metric in ["wall_time", "cpu_time"] {
            let pair = format!("{metric}@/Code/threads/noise");
            let (pid, limit) = (target.pid_text(), ["--max-overhead", "10000"]);
            let mut session = tool.start(["watch", "-p", &pid, &pair, "--interval", "50ms"].iter().chain(&limit));
            let attached = session.wait_for("attached");
            session.wait_for("sample");
            let outcome = session.interrupt().assert_code(0).assert_removed();
            for stopped in [&attached["stopped_ms"], &outcome.one("removed")["stopped_ms"]] {
                // A hold lasts as long as it waits for threads that have no processor.
                assert!(stopped.as_f64().is_some_and(|ms| ms < 1000.0), "{stopped} ms: {outcome:#?}");
            }
            target::assert_clean(target.pid(), &before);
        }
    }
    target.ask("rest");
}

#[test]
fn redis_under_load() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let (tool, pid) = (tool(), redis.pid());
    redis.load(&["-n", "20000", "-q", "-P", "8", "-t", "set,get"]);
    let before = Text::of(pid);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redis.load(&["-n", "20000", "-q", "-c", "20", "-P", "8", "-t", "set,get,lpush"]);
            }
        });
        let until = Until(&done);
        let mut size = None;
        for index in 0..total() {
            let calls = || redis.command_calls();
            let earlier = calls();
            let outcome = round(&tool, pid, &["call", "processCommand", "redis-server:dict*"], &before, || {
                wait_until("commands are served", || calls() > earlier + 100);
            });
            assert!(outcome.calls("call") > 0, "commands were counted");
            if index == 4 {
                size = Some(Size::of(pid));
            }
        }
        drop(until);
        load.join().expect("no client error");
        assert_no_growth(size.expect("five rounds"), Size::of(pid), 16 << 10);
    });
}

#[test]
fn nginx_under_load() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let tool = tool();
    let workers = nginx.workers();
    let before: Vec<Text> = workers.iter().map(|&pid| Text::of(pid)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                nginx.request(200);
            }
        });
        let until = Until(&done);
        let mut size = None;
        for index in 0..total() {
            let which = usize::try_from(index).expect("small") % workers.len();
            round(&tool, workers[which], &["nginx:ngx_http_*"], &before[which], || {});
            if index == 4 {
                size = Some(Size::of(workers[0]));
            }
        }
        drop(until);
        load.join().expect("no client error");
        assert_no_growth(size.expect("five rounds"), Size::of(workers[0]), 8 << 10);
    });
    assert!(!nginx.errors().contains("signal"), "nginx complained: {}", nginx.errors());
    assert_eq!(nginx.workers(), workers, "no worker was replaced");
}

#[test]
fn postgres_under_load() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let tool = tool();
    let mut load = postgres.client("pgbench");
    let mut load = load
        .args(["-n", "-c", "2", "-T", "600", "postgres"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start pgbench");
    // Before its clients, pgbench opens a session of its own for a short time.
    let works = |pid: &i32| target::processor_seconds(*pid) > 0.05;
    wait_until("both clients are served", || {
        let backends = postgres.backends();
        backends.len() == 2 && backends.iter().all(works)
    });
    let backends = postgres.backends();
    let before: Vec<Text> = backends.iter().map(|&pid| Text::of(pid)).collect();
    let mut size = None;
    for index in 0..total() {
        let which = usize::try_from(index).expect("small") % backends.len();
        let pid = backends[which];
        let session = tool.count(pid, &["postgres:Exec*", "postgres:heap_*", "PortalRun"]);
        let used = target::processor_seconds(pid);
        wait_until("statements are executed", || target::processor_seconds(pid) > used);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.calls("PortalRun") > 0, "statements were counted");
        target::assert_clean(pid, &before[which]);
        if index == 4 {
            size = Some(Size::of(backends[0]));
        }
        assert!(load.try_wait().expect("look at pgbench").is_none(), "pgbench ended early");
    }
    assert_eq!(postgres.backends(), backends, "no session was lost");
    // Backends touch more of the shared buffers over time, which is not the engine's doing.
    assert_no_growth(size.expect("five rounds"), Size::of(backends[0]), if full() { 256 << 10 } else { 128 << 10 });
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(load.id()).expect("a process id")),
        nix::sys::signal::Signal::SIGINT,
    )
    .expect("end pgbench");
    let output = load.wait_with_output().expect("wait for pgbench");
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!complaints.to_lowercase().contains("error") && !complaints.contains("aborted"), "pgbench: {complaints}");
}
