//! Tests of programs whose code is mapped or changes while a daemon knows them: no thread executes code that is gone.

use ingraft_testing::target;
use ingraft_testing::{Mutatee, open_directory, scaled};

use crate::{client, daemon};

/// The signal frame of the thread lies below a return address in code that was mapped after the first measurement began.
#[test]
fn a_handler_returns_through_code_that_came_later() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut target = Mutatee::start("returns", &[]);
    let first = tool.count(target.pid(), &["work"]);
    target.ask("map");
    target.ask("enter");
    // The thread's signal handler interrupted `slow` after its second instruction, within the bytes that the springboard overwrites.
    let pid = target.pid_text();
    let mut second = tool.start(["count", "-p", &pid, "slow"]);
    second.wait_for("changed");
    assert_eq!(target.ask("leave").after("slow"), "6");
    let outcome = second.interrupt().assert_code(0);
    assert_eq!(outcome.calls("slow"), 0, "the call had begun before");
    let truth = target.ask("call 7");
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work"), truth.tally("work"));
    assert_eq!(target::arenas(target.pid()), 0);
}

/// The program's own compiler writes `syscall; ret` into memory below the C library, and something else a moment later.
#[test]
fn threads_are_not_borrowed_with_generated_code() {
    let mut target = Mutatee::start("returns", &[]);
    target.ask("generate");
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let tool = client(&daemon);
    let mut counted = 0;
    for _ in 0..scaled(25, 500) {
        let session = tool.count(target.pid(), &["work"]);
        let truth = target.ask("call 3").tally("work");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        counted += outcome.calls("work");
        assert_eq!(counted, truth);
    }
    assert!(target.alive());
    assert_eq!(target::arenas(target.pid()), 0);
}
