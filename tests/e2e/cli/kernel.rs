//! Tests of functions with system calls of their own, which run as copies while the system calls stay in the text.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, have, program, scaled, skip};

use crate::blocks::text_of;
use crate::profiles::{assert_blocks_equal_callgrinds, assert_exact, counts};
use crate::tool;

fn right(reply: &Reply) {
    assert_eq!(reply.number("wrong"), 0);
}

/// Number of executions of each block of `reads`, in order: up to its first system call, behind it, and in its loop.
fn reads(outcome: &Outcome) -> Vec<u64> {
    counts(outcome, "reads")
}

#[test]
fn a_profile_of_functions_with_system_calls() {
    let mut target = Mutatee::start("kernel", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["blocks", "--check", "asks", "picks", "reads"]);
    right(&target.ask("go 1000"));
    let asked = target.ask("sleep").tally("asked");
    // The kernel restarts the system call in the text.
    right(&target.ask("signal 50"));
    let interrupted = target.ask("interrupt 30").tally("interrupted");
    assert_eq!(interrupted, 30);
    let reply = target.ask("wake");
    right(&reply);
    assert_eq!(reply.tally("handled"), 80);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    assert_eq!(counts(&outcome, "picks"), [1000, 1000, 500, 500, 500, 500]);
    let asks = counts(&outcome, "asks");
    assert_eq!(asks[0], 1000);
    assert_eq!(asks.iter().filter(|count| **count == asked).count(), 2, "around the system call: {asks:?}");
    let reads = reads(&outcome);
    assert_eq!(reads[..2], [1, 1]);
    assert!(reads.contains(&interrupted), "{reads:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_profile_of_functions_with_system_calls_equals_callgrinds_counts() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("kernel").expect("gcc");
    let arguments = [path.to_str().expect("a path"), "3000"];
    let _ = assert_blocks_equal_callgrinds(("kernel", &[]), &text_of(&path), &arguments);
}

#[test]
fn threads_sleep_in_system_calls_while_profiles_begin_and_end() {
    let mut target = Mutatee::start("kernel", &[]);
    let before = Text::of(target.pid());
    let profile = |target: &Mutatee| tool().measure("profile", target.pid(), &["blocks", "reads", "--check"]);
    let end = |session: ingraft_testing::Session| {
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_exact(&outcome);
        reads(&outcome)
    };
    for _ in 0..scaled(2, 20) {
        // Asleep when the profile begins, and when it ends after the kernel has restarted the system call.
        target.ask("sleep");
        let session = profile(&target);
        right(&target.ask("signal 5"));
        assert_eq!(end(session).iter().sum::<u64>(), 0);
        target::assert_clean(target.pid(), &before);
        // The system call returns to the text, and the thread goes on in the copy.
        let session = profile(&target);
        right(&target.ask("interrupt 3"));
        right(&target.ask("wake"));
        let first = end(session);
        assert_eq!(first[..2], [0, 1], "{first:?}");
        assert!(first.contains(&3), "{first:?}");
        // Asleep when the profile ends.
        let session = profile(&target);
        target.ask("sleep");
        let second = end(session);
        assert_eq!(second.iter().sum::<u64>(), 1, "{second:?}");
        target::assert_clean(target.pid(), &before);
        right(&target.ask("signal 5"));
        right(&target.ask("wake"));
    }
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// The kernel restarts a sequence by its addresses in the text, wherever its descriptor lies.
#[test]
fn restartable_sequences_are_refused_wherever_their_descriptors_lie() {
    if let Err(why) = program("sequences") {
        skip!("{why}");
    }
    let mut target = Mutatee::start("sequences", &["4"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    for name in ["listed", "elsewhere", "bare", "made"] {
        let _ = tool().run(["profile", "-p", &pid, "blocks", name]).assert_error(3, &["restartable sequence"]);
        let _ = tool().run(["count", "-p", &pid, name]).assert_error(3, &["restartable sequence"]);
        target::assert_clean(target.pid(), &before);
    }
    // The other functions are copied, and no count of the sequences is lost beside them.
    let session = tool().measure("profile", target.pid(), &["edges", "sequences:*"]);
    before.assert_not_in(target.pid());
    target.ask("go 500").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let reasons = outcome.all("refused");
    assert_eq!(reasons.iter().filter(|r| r["reason"] == "restartable_sequence").count(), 4, "{reasons:#?}");
    target.ask("go 500").assert_right();
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_thread_is_cancelled_while_all_of_the_c_library_is_profiled() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["edges", "libc.so.6:*"]);
    target.ask("cancel 50").assert_right();
    target.ask("throw 200").assert_right();
    let outcome = session.interrupt().assert_removed();
    let refused = outcome.all("refused");
    // It turns asynchronous cancellation on around its system call.
    let read = refused.iter().find(|record| record["function"] == "__read" || record["function"] == "read");
    let why = read.and_then(|record| record["why_not"].as_str()).unwrap_or_default();
    assert!(why.contains("cancelled asynchronously"), "{read:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}
