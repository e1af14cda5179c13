//! Tests of measurements that are inserted at a point, and removed from it, while several threads pass it. A single count is in the slot
//! of
//! the point; several snippets are in a chain.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, Tool, open_directory, scaled, source_directory};

use crate::{client, daemon};

/// Number of calls that each of four threads makes in a round.
const CALLS: u64 = 20_000_000;

/// Begins a further measurement of the target.
fn one_more(tool: &Tool, target: &Mutatee, command: &str, arguments: &[&str]) -> Session {
    let pid = target.pid_text();
    let mut session = tool.start([command, "-p", &pid, "--max-overhead", "10000"].iter().chain(arguments));
    session.wait_for("changed");
    session
}

/// Begins to watch a metric at the function.
fn watch(tool: &Tool, target: &Mutatee, metric: &str) -> Session {
    let file = source_directory().join("tests/e2e/mdl/arrivals.mdl").display().to_string();
    one_more(tool, target, "watch", &[&format!("{metric}@/Code/threads/work_0"), "-I", &file])
}

/// Returns the value at the end.
#[track_caller]
fn last(outcome: &Outcome) -> u64 {
    let value = outcome.all("sample").last().and_then(|sample| sample["value"].as_u64());
    value.unwrap_or_else(|| panic!("no value: {outcome:#?}"))
}

#[test]
fn a_count_is_exact_while_others_come_and_go() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let first = tool.count(target.pid(), &["work_0"]);
    for metric in ["visits", "arrivals"].iter().cycle().take(scaled(4, 20) as usize) {
        target.tell(&format!("go {CALLS}"));
        let other = watch(&tool, &target, metric);
        let another = watch(&tool, &target, if *metric == "arrivals" { "visits" } else { "arrivals" });
        let _ = other.interrupt().assert_code(0);
        let _ = another.interrupt().assert_code(0);
        target.reply().assert_right();
    }
    let truth = target.ask("go 10");
    let outcome = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0"));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn each_of_two_counts_is_exact_without_the_other() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let mut count = tool.count(target.pid(), &["work_0"]);
    let mut counted_from = 0;
    for _ in 0..scaled(2, 10) {
        // The second measurement is inserted while no thread passes, and the first one is removed under load. Then the slot is the second
        // one's.
        let arrived_from = target.ask("go 10").tally("work_0");
        let arrivals = watch(&tool, &target, "arrivals");
        let truth = target.ask("go 10").tally("work_0");
        let outcome = count.interrupt().assert_code(0);
        assert_eq!(outcome.calls("work_0"), truth - counted_from);
        target.tell(&format!("go {CALLS}"));
        let under_load = one_more(&tool, &target, "count", &["work_0"]);
        let _ = under_load.interrupt().assert_code(0);
        counted_from = target.reply().tally("work_0");
        count = one_more(&tool, &target, "count", &["work_0"]);
        target.tell(&format!("go {CALLS}"));
        let visits = watch(&tool, &target, "visits");
        let _ = visits.interrupt().assert_code(0);
        let truth = target.reply().tally("work_0");
        assert_eq!(last(&arrivals.interrupt().assert_code(0)), truth - arrived_from);
    }
    let truth = target.ask("go 10").tally("work_0");
    let outcome = count.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth - counted_from);
    target::assert_clean(target.pid(), &before);
    target.ask("go 10").assert_right();
}

#[test]
fn points_that_hold_others_stay_as_long() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("calls", &[]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let (pid, file) = (target.pid_text(), source_directory().join("tests/e2e/mdl/calls.mdl").display().to_string());
    let watch = |metric: &str, sign: &str| {
        let pair = format!("{metric}@/Code/calls/crowded");
        let mut session = tool.start(["watch", "-p", &pid, "--max-overhead", "10000", "-I", &file, &pair]);
        session.wait_for(sign);
        session
    };
    let many = 6 * scaled(100_000, 2_000_000);
    let calls = |rounds: u64| 3 * rounds + rounds / 2 + rounds / 3;
    // The code before some calls lies in the code after other calls, and jumps into the code after the calls to which some return.
    for [held, holder] in [["calls_made", "calls_back"], ["calls_back", "calls_made"]] {
        let first = watch(holder, "attached");
        target.tell(&format!("crowd {many}"));
        let second = watch(held, "changed");
        target.reply().assert_right();
        let _ = second.interrupt().assert_code(0);
        target.ask("crowd 60").assert_right();
        assert_eq!(last(&first.interrupt().assert_code(0).assert_removed()), calls(many) + calls(60));

        let first = watch(holder, "attached");
        let second = watch(held, "changed");
        target.tell(&format!("crowd {many}"));
        let _ = first.interrupt().assert_code(0);
        target.reply().assert_right();
        target.ask("crowd 60").assert_right();
        assert_eq!(last(&second.interrupt().assert_code(0).assert_removed()), calls(many) + calls(60));
        target::assert_clean(target.pid(), &before);
    }
}

#[test]
fn timers_come_and_go_where_a_count_stays() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let count = tool.count(target.pid(), &["work_0"]);
    for metric in ["wall_time", "cpu_time", "latency"].iter().cycle().take(scaled(6, 60) as usize) {
        target.tell(&format!("go {CALLS}"));
        let pair = format!("{metric}@/Code/threads/work_0");
        let mut timer = one_more(&tool, &target, "watch", &[&pair, "--interval", "20ms"]);
        timer.wait_for("sample");
        let _ = timer.interrupt().assert_code(0);
        target.reply().assert_right();
    }
    let truth = target.ask("go 10");
    let outcome = count.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0"));
    target::assert_clean(target.pid(), &before);
}

/// Two clients request one metric, whose list they define differently.
#[test]
fn equal_metrics_with_other_lists_have_their_own_values() {
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let tool = client(&daemon);
    let pid = target.pid_text();
    let begin = |functions: &str| {
        let file = directory.path().join(format!("{}.mdl", functions.len()));
        let text = format!(
            "resourceList mine is procedure {{ items {{ {functions} }}; flavor {{ unix }}; }}\n\
             metric visits_of_mine {{ name \"visits_of_mine\"; units calls; aggregateOperator sum; style EventCounter;\n\
             base is counter {{ foreach f in mine append preInsn f.entry (* visits_of_mine++; *) }} }}\n"
        );
        std::fs::write(&file, text).expect("a file");
        let mut session = tool.start(["watch", "-p", &pid, "visits_of_mine", "-I", file.to_str().expect("a path")]);
        session.wait_for(if functions.len() == 8 { "attached" } else { "changed" });
        session
    };
    let one = begin("\"work_0\"");
    let two = begin("\"work_0\", \"work_1\"");
    let truth = target.ask("go 1000");
    let (one, two) = (one.interrupt().assert_code(0), two.interrupt().assert_code(0));
    assert_eq!(last(&one), truth.tally("work_0"), "{one:#?}");
    assert_eq!(last(&two), truth.tally("work_0") + truth.tally("work_1"), "{two:#?}");
    target::assert_clean(target.pid(), &before);
}
