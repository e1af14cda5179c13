//! Tests that clients of a daemon read profiles while they run.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory, wait_until};

use crate::{client, daemon};

#[test]
fn two_clients_read_their_own_profiles_of_one_target() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let (one, other) = (client(&daemon), client(&daemon));
    let mut totals =
        one.start(["profile", "events", "-p", &target.pid_text(), "leaf", "--query", "--interval", "10ms"]);
    totals.wait_for("attached");
    assert_eq!(target.ask("go 100").number("wrong"), 0);
    let mut edges = other.start(["profile", "edges", "-p", &target.pid_text(), "leaf", "--interval", "10ms"]);
    edges.wait_for("changed");
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    // Each call has 15 instructions and passes the branch of its loop twice.
    wait_until("the totals are complete", || totals.wait_for("event_totals")["total"] == 4 * 110 * 15);
    wait_until("the counts are complete", || edges.wait_for("edge")["count"] == 4 * 10 * 2);
    let outcome = edges.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("profile").len() > 1, "{outcome:?}");
    assert!(outcome.all("edge").iter().any(|edge| edge["kind"] == "taken" && edge["count"] == 80), "{outcome:?}");
    let outcome = totals.interrupt().assert_code(0).assert_removed();
    let all = outcome.all("event_totals");
    let last = all.iter().rfind(|record| record["event"] == "branches").expect("a reading");
    assert_eq!((&last["total"], last.get("inexact")), (&(4 * 110 * 3).into(), None), "{last}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
    assert!(daemon.terminate().success());
}
