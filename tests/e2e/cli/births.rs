//! Tests of children that are born inside a measured call: their flags, timers and open calls are those of the thread that forked.

use ingraft_testing::server::Nginx;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled, skip, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tool;

/// Counts calls of `work` while `serve` is on the stack.
const INSIDE: &str = "resourceList works is procedure { items { \"work\" }; flavor { unix }; }
    metric worked { name \"worked\"; units calls; aggregateOperator sum; style EventCounter; constraint insideFunction;
    base is counter { foreach f in works append preInsn f.entry constrained (* worked++; *) } }\n";
/// Tolerance for each process: the time between the program's reading of its clock and the entry, exit or birth for which the reading
/// stands, on a machine with more threads than processors.
const EDGE_NS: u64 = 2_000_000;
/// Longest time from the end of a thread until the engine notices the end.
const LOOK_NS: u64 = 20_000_000;

fn last(outcome: &Outcome, metric: &str) -> u64 {
    let samples = outcome.all("sample");
    let value = samples.into_iter().rfind(|s| s["metric"] == metric).and_then(|s| s["value"].as_u64());
    value.unwrap_or_else(|| panic!("no {metric}: {outcome:#?}"))
}

/// Measures `serve` with a flag, a wall timer and a timer of processor time while it makes children in these ways. Returns the outcome and
/// the program's own account.
fn bear(program: &str, ways: &[&str]) -> (Outcome, Reply) {
    let mut target = Mutatee::start(program, &[]);
    let before = Text::of(target.pid());
    let definitions = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(definitions.path(), INSIDE).expect("write a file");
    let (pid, path) = (target.pid_text(), definitions.path().to_str().expect("a path"));
    let fixed = ["watch", "-p", &pid, "--follow", "fork", "--max-overhead", "10000", "-I", path];
    let metrics = ["worked", "exec_time_inclusive", "cpu_inclusive"].map(|m| format!("{m}@/Code/{program}/serve"));
    let mut session = tool().start(fixed.into_iter().chain(metrics.iter().map(String::as_str)));
    session.wait_for("attached");
    let mut truth = None;
    for way in ways {
        truth = Some(target.ask(&format!("bear {way} {} {}", scaled(5, 50), 20)));
    }
    let truth = truth.expect("a way");
    assert_eq!(truth.number("wrong"), 0, "{truth:?}");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

#[track_caller]
fn assert_times(outcome: &Outcome, truth: &Reply) {
    let edges = EDGE_NS * truth.number("served") + target::stolen_ns();
    for (metric, own) in [("exec_time_inclusive", "wall_ns"), ("cpu_inclusive", "cpu_ns")] {
        let (seen, own) = (last(outcome, metric), truth.number(own));
        assert!(
            seen.abs_diff(own) * 100 <= own + 100 * edges,
            "{metric}: {seen} ns, but {own} ns by the program\n{outcome:#?}"
        );
    }
}

#[test]
fn by_fork() {
    let (outcome, truth) = bear("births", &["fork"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
    assert_times(&outcome, &truth);
}

#[test]
fn by_fork_in_fork_children() {
    let (outcome, truth) = bear("births", &["nested"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
    assert_times(&outcome, &truth);
}

#[test]
fn by_fork_from_another_thread() {
    let (outcome, truth) = bear("births", &["thread", "fork"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
    assert_times(&outcome, &truth);
}

/// These children end inside the call. Their timers stop when the engine notices the end: processor time may lack only the last moment,
/// and
/// wall time runs on until then.
#[test]
fn children_that_end_in_the_middle() {
    let (outcome, truth) = bear("births", &["leave"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
    let (wall, own) = (last(&outcome, "exec_time_inclusive"), truth.number("wall_ns"));
    let edges = EDGE_NS * truth.number("served");
    assert!(wall + edges >= own - own / 100, "{wall} ns, but {own} ns by the program\n{outcome:#?}");
    let (cpu, own) = (last(&outcome, "cpu_inclusive"), truth.number("cpu_ns"));
    let looks = LOOK_NS * truth.number("served");
    assert!(
        cpu + looks >= own && cpu <= own + own / 100 + edges,
        "{cpu} ns, but {own} ns by the program\n{outcome:#?}"
    );
}

#[test]
fn by_vfork() {
    let (outcome, truth) = bear("births", &["vfork"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
    assert_times(&outcome, &truth);
}

/// The C library does not know these children: they have the number of the thread that made them, and count there.
#[test]
fn by_clone_without_the_c_librarys_knowledge() {
    let (outcome, truth) = bear("births", &["clone", "syscall"]);
    assert_eq!(last(&outcome, "worked"), truth.number("calls work"), "{outcome:#?}");
}

/// Returns the sums of the ages and of the processor times of processes, in nanoseconds.
fn lives(pids: &[i32]) -> [u64; 2] {
    let first = |path: String| {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        text.split_whitespace().next().expect("a number").to_owned()
    };
    let cpu = |pid: &i32| first(format!("/proc/{pid}/schedstat")).parse::<u64>().expect("a number");
    let age = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        let begin = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).expect("a start time");
        let uptime: f64 = first("/proc/uptime".to_owned()).parse().expect("seconds");
        (uptime * 1e9) as u64 - begin.parse::<u64>().expect("a number") * 10_000_000
    };
    [pids.iter().map(age).sum(), pids.iter().map(cpu).sum()]
}

/// Workers are born inside the master's main function and never leave it, so all their work is inside of it.
#[test]
fn workers_of_nginx_are_inside_what_made_them() {
    /// Tolerance for times that the kernel tells in hundredths of a second.
    const SLACK_NS: u64 = 50_000_000;
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let (master, old) = (nginx.pid(), nginx.workers());
    let metrics = ["nginx_requests", "exec_time_inclusive", "cpu_inclusive"];
    let pairs = metrics.map(|metric| format!("{metric}@/Code/nginx/ngx_master_process_cycle"));
    let own = || lives(&[master]);
    let earliest = own();
    let fixed = ["watch", "-p", &master.to_string(), "--follow", "fork", "--max-overhead", "10000"].map(String::from);
    let mut session = tool().start(fixed.iter().chain(&pairs));
    session.wait_for("attached");
    let latest = own();
    kill(Pid::from_raw(master), Signal::SIGHUP).expect("a new generation of workers");
    wait_until("the old workers have gone", || {
        let workers = nginx.workers();
        workers.len() == old.len() && workers.iter().all(|worker| !old.contains(worker))
    });
    let before = nginx.requests();
    (0..4).for_each(|_| nginx.request(250));
    let served = nginx.requests() - before + 1;
    let mut all = nginx.workers();
    all.push(master);
    let least = lives(&all);
    let outcome = session.interrupt().assert_code(0);
    let most = lives(&all);
    let samples = outcome.all("sample");
    let [requests, wall, cpu] = metrics.map(|metric| {
        let own = samples.iter().rfind(|s| s["pid"] == master && s["metric"] == metric);
        own.unwrap_or_else(|| panic!("no {metric}: {outcome:#?}"))
    });
    assert_eq!(requests["value"].as_u64(), Some(served), "{outcome:#?}");
    // The values lack the time of the master before the measurement.
    for (n, seen) in [wall, cpu].into_iter().enumerate() {
        let (least, most) = (least[n] - latest[n], most[n] - earliest[n] + SLACK_NS);
        let value = seen["value"].as_u64().expect("a time");
        assert!(
            (least.saturating_sub(SLACK_NS)..=most).contains(&value),
            "{value} ns, but {least} to {most} ns\n{seen}"
        );
        assert!(seen["left"].is_null(), "{seen}");
    }
}
