//! Tests of processor times of calls, compared with the program's own clock of each thread.

use ingraft_testing::target::{self, Text, slice_slack_ns};
use ingraft_testing::{Mutatee, Outcome, Reply, scaled, wait_until};

use crate::tool;

const FUNCTIONS: [&str; 6] = ["--cpu", "burn", "doze", "both", "dive", "hold"];
/// Time in nanoseconds that the program's own clock takes at the ends of a call; only one of the two measurements includes it. A call that
/// sleeps has almost no processor time but the kernel's work for the switch, on which disturbances show (`SLEEP_NS`).
const EDGE_NS: u64 = 5_000;
const SLEEP_NS: u64 = 25_000;

/// Panics unless the numbers of calls are exact and the times are right within one percent.
#[track_caller]
fn assert_agrees(outcome: &Outcome, truth: &Reply) {
    for (function, calls) in truth.tallies().into_iter().filter(|(_, calls)| *calls > 0) {
        let seen = outcome.latency(&function);
        assert_eq!((seen.calls, seen.left, seen.unseen, seen.unrecorded), (calls, 0, 0, 0), "{function}");
        let own = truth.number(&format!("ns {function}"));
        let off = seen.sum_ns.abs_diff(own);
        let edge = if function == "doze" { SLEEP_NS } else { EDGE_NS };
        assert!(
            off * 100 <= own + 100 * (edge * calls + slice_slack_ns()),
            "{function}: {seen:?}, but {own} ns by the program's clock"
        );
    }
    assert!(outcome.all("latency").iter().all(|o| o["clock"] == "cpu"));
}

fn exercise(name: &str) -> Outcome {
    let mut target = Mutatee::start(name, &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &FUNCTIONS);
    let times = scaled(20, 200);
    target.ask(&format!("burn {times} 2000"));
    target.ask(&format!("doze {times} 2000"));
    target.ask(&format!("mix {times} 1000"));
    target.ask("dive 20 1000");
    let truth = target.ask(&format!("crowd 8 {times} 1000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_agrees(&outcome, &truth);
    assert!(outcome.latency("burn").p50_ns >= 960_000, "{:?}", outcome.latency("burn"));
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("crowd 8 2 100").number("left"), 0, "pointers into what is gone");
    outcome
}

#[test]
fn computing_sleeping_nested_recursive_calls_and_more_threads_than_processors() {
    exercise("burns");
}

#[test]
fn static_programs_have_the_same_clock() {
    exercise("burns-static");
}

#[test]
fn programs_without_rseq_areas_are_measured_by_system_calls() {
    let outcome = exercise("burns-musl-static");
    let warned = format!("{outcome:?}");
    assert!(warned.contains("by a system call"), "{warned}");
}

#[test]
fn fork_children_go_on_by_themselves() {
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("latency", target.pid(), &FUNCTIONS);
    target.ask("crowd 4 2 100");
    let truth = target.ask(&format!("forks {} 1000", scaled(20, 200)));
    assert_eq!(truth.number("child"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_agrees(&outcome, &truth);
    target::assert_clean(target.pid(), &before);
    target.ask("forks 2 100");
}

#[test]
fn a_running_timer_shows_the_time_so_far_and_never_goes_back() {
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "cpu_time@/Code/burns/hold", "--interval", "50ms"]);
    session.wait_for("attached");
    target.ask("long");
    let mut last = 0;
    for _ in 0..20 {
        let value = session.wait_for("sample")["value"].as_i64().expect("a number");
        assert!(value >= last, "{value} after {last}");
        last = value;
    }
    assert!(last > 100_000_000, "{last} ns");
    let truth = target.ask("short").number("ns hold");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let end = samples.last().and_then(|s| s["value"].as_u64()).expect("a number");
    assert!(
        end >= last as u64 && end.abs_diff(truth) * 100 <= truth,
        "{end} ns, but {truth} ns by the program's clock"
    );
    target::assert_clean(target.pid(), &before);
}

/// Returns the processor time that the kernel has accounted to a thread, in nanoseconds. It may be one time slice behind.
pub(crate) fn charged(pid: i32, tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).expect("the thread's statistics");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

#[test]
fn a_call_in_progress_is_timed_from_the_insertion_on() {
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid();
    let begin = charged(pid, pid);
    target.tell("burn 1 1500000");
    wait_until("it has computed", || charged(pid, pid) > begin + 50_000_000);
    let earlier = charged(pid, pid) - begin;
    let mut session = tool().start(["watch", "-p", &target.pid_text(), "cpu_time@/Code/burns/burn"]);
    let attached = session.wait_for("attached");
    let later = charged(pid, pid) - begin;
    assert_eq!((&attached["caught_up"], &attached["not_unwound"]), (&1.into(), &0.into()));
    let truth = target.reply().number("ns burn");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let value = outcome.all("sample").last().and_then(|s| s["value"].as_u64()).expect("a number");
    let slack = truth / 100 + 2 * slice_slack_ns();
    assert!(
        later < truth && value + slack >= truth - later && value <= truth - earlier + slack,
        "{value} ns of {truth} ns; at the insertion between {earlier} and {later} ns were over"
    );
    target::assert_clean(pid, &before);
}

#[test]
fn killed_engines_leave_nothing_that_the_kernel_follows() {
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    for round in 0..scaled(8, 60) {
        let session = tool.measure("latency", target.pid(), &FUNCTIONS);
        if round % 2 == 0 {
            target.ask("long");
        }
        target.ask("crowd 4 2 200");
        session.kill();
        target.ask("crowd 6 1 200");
        tool.detach(target.pid());
        target::assert_clean(target.pid(), &before);
        if round % 2 == 0 {
            target.ask("short");
        }
        let after = target.ask("crowd 8 1 100");
        assert_eq!(after.number("left"), 0, "round {round}");
    }
}

#[test]
fn one_call_has_both_clocks() {
    let text = "resourceList busy is procedure { items { \"burn\" }; flavor { unix }; }
        resourceList idle is procedure { items { \"doze\" }; flavor { unix }; }
        metric busy_cpu { name \"busy_cpu\"; units ns; aggregateOperator sum; style EventCounter; base is counter {
        foreach f in busy append preInsn f.return (* if ($elapsed * 2 > $cpu) busy_cpu += $cpu; *) } }
        metric idle_time { name \"idle_time\"; units ns; aggregateOperator sum; style EventCounter; base is counter {
        foreach f in idle append preInsn f.return (* idle_time += $elapsed - $cpu; *) } }";
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), text).expect("a definition");
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file.path().to_str().expect("a path"));
    let mut session = tool().start(["watch", "-p", &pid, "-I", name, "busy_cpu", "idle_time"]);
    session.wait_for("attached");
    let times = scaled(20, 200);
    target.ask(&format!("burn {times} 2000"));
    let truth = target.ask(&format!("doze {times} 2000"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let value = |metric| crate::library::value(&outcome, metric).cast_unsigned();
    let (cpu, own) = (value("busy_cpu"), truth.number("ns burn"));
    assert!(
        cpu.abs_diff(own) * 100 <= own + 100 * (EDGE_NS * times + slice_slack_ns()),
        "{cpu}, by the program's clock {own}"
    );
    // A sleep of 2 ms is not shorter, and almost none of it is processor time.
    assert!(value("idle_time") >= times * 1_900_000, "{}", value("idle_time"));
    target::assert_clean(target.pid(), &before);
}
