//! Tests of handlers that stay for long where they have interrupted generated code, while that code is removed.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, open_directory, scaled, wait_until};

use crate::tool;

/// Every kind of code: springboards with trampolines, copies of functions, times, traces.
const KINDS: [&[&str]; 5] = [
    &["count", "grind", "small", "chew"],
    &["profile", "edges", "grind", "small", "chew"],
    &["trace", "grind", "small", "chew"],
    &["latency", "grind", "small", "chew"],
    &["count", "grind#*", "chew#*"],
];

#[test]
fn code_and_what_it_needs_stay_until_every_handler_has_returned() {
    code_stays_below_handlers(&["4"], scaled(3, 40));
}

#[test]
fn code_stays_where_handlers_stand_deep_below_their_frames() {
    code_stays_below_handlers(&["4", "2000000"], scaled(2, 10));
}

fn code_stays_below_handlers(threads: &[&str], rounds: u64) {
    let tool = tool();
    let directory = open_directory();
    let file = directory.path().join("lingers.trace");
    let file = file.to_str().expect("a path");
    let mut target = Mutatee::start("lingers", threads);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut left = 0;
    for round in 0..rounds {
        for kind in KINDS {
            let what = format!("round {round}, {kind:?}");
            let save: &[&str] = if kind.contains(&"trace") { &["-o", file] } else { &[] };
            let common = ["-p", &pid, "--max-overhead", "10000"];
            let mut session = tool.start(kind.iter().chain(&common).chain(save));
            session.wait_for("attached");
            target.ask("hold").assert_right();
            let outcome = session.interrupt();
            if outcome.stderr.contains(r#""reason":"busy""#) {
                // A handler would return into an island of the text. The code stays in, and works, until it has returned.
                target.ask("go").assert_right();
                let _ = tool.detach(target.pid());
            } else {
                let outcome = outcome.assert_code(0).assert_removed();
                left += u32::from(outcome.one("removed")["memory_left"] == true);
                before.assert_in(target.pid());
                target.ask("go").assert_right();
            }
            let rounds = target.ask("look").number("rounds");
            wait_until("every thread goes on", || target.ask("look").number("rounds") > rounds + 10);
            assert!(target.alive(), "{what}");
            target.ask("look").assert_right();
        }
    }
    println!("memory was left {left} times");
    assert!(left > 0, "no handler had interrupted generated code");
    let _ = tool.detach(target.pid());
    target::assert_clean(target.pid(), &before);
}
