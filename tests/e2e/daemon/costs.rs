//! Tests of limits of the cost if several measurements share a target.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory, wait_until};

use crate::{client, daemon};

/// Panics unless `bench` is as before: it has one executable mapping of its own, with the patches made by hand.
#[track_caller]
fn assert_restored(pid: i32, before: &Text) {
    before.assert_in(pid);
    assert_eq!((target::arenas(pid), target::tracer(pid)), (1, 0));
}

#[test]
fn a_timer_that_is_known_to_cost_too_much_is_refused() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    target.ask("spin");
    let tool = client(&daemon);
    let session = tool.count(target.pid(), &["noise"]);
    let rate = || tool.inserted(target.pid())[0]["pairs"][0]["hits_per_s"].as_f64();
    wait_until("the calls are known", || rate() > Some(10_000_000.0));
    let inserted = tool.inserted(target.pid());
    assert!(inserted[0]["observed_ns_per_s"].as_f64() > Some(0.0), "{inserted:?}");
    assert!(inserted[0]["observed_of_target"].as_f64() > Some(0.0), "{inserted:?}");
    let refused = tool.run(["latency", "-p", &target.pid_text(), "noise"]).assert_code(3);
    assert!(refused.stderr.contains("calls a second") && refused.stderr.contains("--max-overhead"), "{refused:#?}");
    // The limit does not apply to counters, so they are not refused.
    let more =
        tool.run(["watch", "-p", &target.pid_text(), "calls@/Code/threads/noise", "--for", "50ms"]).assert_code(0);
    assert_eq!(more.all("sample").first().map(|s| s["value"].is_i64()), Some(true));
    target.ask("rest");
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert!(daemon.terminate().success());
}

#[test]
fn a_limit_holds_without_a_client() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &["--max-overhead", "3"]);
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let kept =
        tool.run(["watch", "-p", &target.pid_text(), "wall_time@/Code/bench/woven", "--for", "50ms", "--no-remove"]);
    let _ = kept.assert_code(0);
    target.tell("measure 2000000 60 1");
    wait_until("it is taken out", || tool.inserted(target.pid())[0]["points"] == 0);
    target.reply();
    let _ = tool.detach(target.pid());
    assert_restored(target.pid(), &before);
    assert!(daemon.terminate().success());
}
