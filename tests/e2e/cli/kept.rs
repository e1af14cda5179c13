//! Callers that keep values in registers which the convention leaves to the callee, because they know that it does not use them.

use ingraft_testing::Mutatee;
use ingraft_testing::target::{self, Text};

use crate::tool;

#[test]
fn registers_that_a_function_leaves_alone_stay() {
    let mut target = Mutatee::start("kept", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let commands: [&[&str]; 7] = [
        &["count"],
        &["latency"],
        &["profile", "contexts"],
        &["profile", "contexts", "--metric", "time"],
        &["profile", "coverage", "--branches"],
        &["profile", "blocks"],
        &["profile", "paths"],
    ];
    for command in commands {
        let place = ["-p", &pid, "--max-overhead", "1000000", "kept:interpret", "kept:choose"];
        let mut session = tool().start(command.iter().chain(&place));
        // A command that refuses both functions ends, and has changed nothing.
        let is_measured = session.try_wait_for("attached").is_some();
        target.ask("go 300").assert_right();
        if is_measured {
            let _ = session.interrupt().assert_code(0).assert_removed();
        }
        target.ask("go 10").assert_right();
        target::assert_clean(target.pid(), &before);
    }
}
