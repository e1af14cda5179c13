//! Tests of calls that began before a measurement: flags and timers are as if the engine had seen the calls begin, and the calls are not
//! counted.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Reply, Session, Tool, scaled, source_directory};
use serde_json::Value;

use crate::tool;

fn inside() -> String {
    source_directory().join("tests/e2e/mdl/inside.mdl").to_str().expect("a path").to_owned()
}

/// Returns the first sample of a metric that was taken after the time `ns` of the program's clock.
fn sample_after(session: &mut Session, metric: &str, ns: u64) -> (u64, i64) {
    loop {
        let sample = session.wait_for("sample");
        let time = sample["time_ns"].as_u64().expect("a time");
        if sample["metric"] == metric && time > ns {
            return (time, sample["value"].as_i64().expect("a number"));
        }
    }
}

/// Values of the metrics at a moment at which the program has halted and whose time it states.
struct Seen {
    inside: i64,
    calls: i64,
    wall: i64,
}

impl Seen {
    fn after(session: &mut Session, truth: &Reply) -> Seen {
        let now = truth.number("now");
        // The timers of halted threads run on at a known rate. If a busy machine takes the time of a sample late, the computed value is
        // too small,
        // so the largest of five counts.
        let wall = (0..5).map(|_| {
            let (time, value) = sample_after(session, "wall_time", now);
            value - (truth.number("threads") * (time - now)).cast_signed()
        });
        let wall = wall.max().expect("five");
        let mut value = |metric: &str| sample_after(session, metric, now).1;
        Seen { inside: value("naps_inside"), calls: value("calls"), wall }
    }

    /// Panics unless the changes since an earlier moment are those that the program reports.
    #[track_caller]
    fn assert_since(&self, earlier: &Seen, truth: &Reply, truth_earlier: &Reply) {
        let since = |what: &str| (truth.number(what) - truth_earlier.number(what)).cast_signed();
        assert_eq!(self.calls - earlier.calls, since("tally nap"));
        assert_eq!(self.inside - earlier.inside, since("inside"));
        let (measured, own) = (self.wall - earlier.wall, since("ns"));
        // If a thread loses its processor between the program's reading of the clock and ours, the difference is the time for which a
        // loaded machine
        // makes it wait. A wrong timer would be off by a thread's whole time.
        let waited = 150_000_000;
        assert!((measured - own).abs() <= own / 100 + waited, "{measured} ns, but {own} by the program's clock");
    }
}

fn watch(tool: &Tool, target: &Mutatee) -> (Session, Value) {
    let (pid, mdl) = (target.pid_text(), inside());
    let pairs = ["naps_inside@/Code/onstack/f", "wall_time@/Code/onstack/f", "calls@/Code/onstack/nap"];
    let fixed = ["watch", "-p", &pid, "-I", &mdl, "--interval", "20ms"];
    let mut session = tool.start(fixed.into_iter().chain(pairs));
    let attached = session.wait_for("attached");
    (session, attached)
}

#[test]
fn flags_and_timers_of_threads_that_stand_still() {
    let mut target = Mutatee::start("onstack", &["9"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut frames = 0;
    for _ in 0..scaled(4, 100) {
        let first = target.ask("halt");
        let (mut session, attached) = watch(&tool, &target);
        assert_eq!((&attached["caught_up"], &attached["not_unwound"]), (&first.number("frames").into(), &0.into()));
        frames += first.number("frames");
        let begin = Seen::after(&mut session, &first);
        assert_eq!((begin.inside, begin.calls), (0, 0), "nothing is counted for calls that began before");
        let run = target.ask(&format!("run {}", 1_000_000));
        Seen::after(&mut session, &run).assert_since(&begin, &run, &first);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.all("sample").iter().all(|s| s["unseen"].as_u64().unwrap_or(0) == 0), "{outcome:#?}");
        target::assert_clean(target.pid(), &before);
    }
    assert!(frames > 0, "some calls were in progress");
    target.ask("run 1000");
}

#[test]
fn flags_and_timers_of_threads_that_run() {
    catch_up_with_threads_that_run(&tool());
}

/// Panics unless flags and timers are as if the engine had seen the calls in progress begin.
pub fn catch_up_with_threads_that_run(tool: &Tool) {
    let mut target = Mutatee::start("onstack", &["5"]);
    let before = Text::of(target.pid());
    let mut caught_up = 0;
    for _ in 0..scaled(6, 100) {
        target.tell("run 300000");
        let (mut session, attached) = watch(tool, &target);
        assert_eq!(attached["not_unwound"], 0);
        caught_up += attached["caught_up"].as_u64().expect("a number");
        let first = target.reply();
        let begin = Seen::after(&mut session, &first);
        let run = target.ask("run 1000000");
        Seen::after(&mut session, &run).assert_since(&begin, &run, &first);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.all("sample").iter().all(|s| s["unseen"].as_u64().unwrap_or(0) == 0), "{outcome:#?}");
        target::assert_clean(target.pid(), &before);
    }
    assert!(caught_up > 0, "some calls were in progress");
}

#[test]
fn calls_that_functions_in_progress_make() {
    let mut target = Mutatee::start("onstack", &["5"]);
    let before = Text::of(target.pid());
    let (pid, mdl, tool) = (target.pid_text(), inside(), tool());
    for _ in 0..scaled(4, 50) {
        let first = target.ask("halt");
        let mut session = tool.start(["watch", "-p", &pid, "-I", &mdl, "naps_directly@/Code/onstack/plain"]);
        let attached = session.wait_for("attached");
        assert_eq!((&attached["caught_up"], &attached["not_unwound"]), (&first.number("plain").into(), &0.into()));
        let run = target.ask("run 200000");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let last = outcome.all("sample").pop().expect("a sample")["value"].as_u64();
        assert_eq!(last, Some(run.number("direct") - first.number("direct")));
        target::assert_clean(target.pid(), &before);
    }
}

#[test]
fn many_deep_stacks() {
    let target = Mutatee::start("onstack", &["50", "29"]);
    let before = Text::of(target.pid());
    let mut session = tool().start(["watch", "-p", &target.pid_text(), "wall_time@/Code/onstack/deep"]);
    let attached = session.wait_for("attached");
    assert_eq!((&attached["caught_up"], &attached["not_unwound"]), (&(50 * 30).into(), &0.into()));
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn an_exception_ends_what_it_leaves() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let (pid, mdl, n) = (target.pid_text(), inside(), scaled(50, 1_000));
    let pairs = ["naps_inside@/Code/throws/dive", "wall_time@/Code/throws/dive", "calls@/Code/throws/nap"];
    let fixed = ["watch", "-p", &pid, "-I", &mdl];
    let mut session = tool().start(fixed.into_iter().chain(pairs));
    session.wait_for("attached");
    target.ask(&format!("cut {n}")).assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let value = |metric: &str| {
        let last = outcome.all("sample").into_iter().rfind(|s| s["metric"] == metric).expect("a sample");
        last["value"].as_i64().expect("a number")
    };
    let n = i64::try_from(n).expect("small");
    assert_eq!(value("calls"), 3 * n);
    // The cleanup of a frame runs before woven code notices the exception, so a nap in it still counts as inside.
    assert_eq!(value("naps_inside"), 2 * n);
    target::assert_clean(target.pid(), &before);
    target.ask("throw 100").assert_right();
}
