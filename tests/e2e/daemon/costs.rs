//! Limits of cost where several measurements share a target.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory, wait_until};

use crate::{client, daemon};

#[test]
fn a_timer_that_is_known_to_cost_too_much_is_refused() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("bench", &[]);
    let before = Text::of(target.pid());
    target.tell("measure 2000000 150 1");
    let tool = client(&daemon);
    let session = tool.count(target.pid(), &["woven"]);
    let rate = || tool.inserted(target.pid())[0]["pairs"][0]["hits_per_s"].as_f64();
    wait_until("the calls are known", || rate() > Some(2_000_000.0));
    let inserted = tool.inserted(target.pid());
    assert!(inserted[0]["observed_ns_per_s"].as_f64() > Some(0.0), "{inserted:?}");
    let refused = tool.run(["latency", "-p", &target.pid_text(), "woven"]).assert_code(3);
    assert!(refused.stderr.contains("calls a second") && refused.stderr.contains("--max-overhead"), "{refused:#?}");
    // nothing was changed, and who allows it gets it
    let mut allowed = tool.start(["latency", "-p", &target.pid_text(), "woven", "--max-overhead", "10000"]);
    allowed.wait_for("changed");
    let outcome = allowed.interrupt().assert_code(0);
    assert!(outcome.latency("woven").calls > 0);
    target.reply();
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
    before.assert_not_in(target.pid());
    target.reply();
    let _ = tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    assert!(daemon.terminate().success());
}
