//! Signal handlers that come and go while several requests measure a program.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory};

use crate::{client, daemon};

/// The program ends threads in a handler, takes the handler away as `system` does, and sets it again. Functions are copied meanwhile.
#[test]
fn copies_are_given_up_when_a_handler_that_ends_its_thread_comes_back() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("departs", &["late"]);
    let before = Text::of(target.pid());
    let _ = target.ask("set");
    let first = tool.count(target.pid(), &["compute"]);
    let _ = target.ask("unset");
    let mut second = tool.start(["count", "-p", &target.pid_text(), "work#*->*"]);
    second.wait_for("changed");
    let _ = target.ask("set");
    let _ = second.finish().assert_error(1, &["a signal handler was set"]);
    let _ = first.finish().assert_error(1, &["a signal handler was set"]);
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("end 200").number("destroyed"), 200);
    assert!(target.end().success());
}

/// A request looks at the handlers too. What it finds counts for the copies of earlier requests.
#[test]
fn copies_are_given_up_when_a_request_meets_the_handler_first() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("departs", &["late"]);
    let before = Text::of(target.pid());
    let first = tool.count(target.pid(), &["work#*->*"]);
    let _ = target.ask("set");
    let second = tool.start(["count", "-p", &target.pid_text(), "compute"]);
    let _ = first.finish().assert_error(1, &["a signal handler was set"]);
    let _ = second.interrupt();
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("end 200").number("destroyed"), 200);
    assert!(target.end().success());
}
