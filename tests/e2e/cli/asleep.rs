//! Tests of removals while a thread sleeps in the kernel where nobody can stop it, so that its gs base cannot be restored.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{
    Mutatee, NOBODY, Outcome, Session, Tool, exposed, is_root, open_directory, program, skip, wait_until,
};

use crate::{tool, unprivileged_tool};

/// Ways in which the target's sleeper can sleep.
const WAYS: [&str; 2] = ["vfork", "fault"];

/// Makes the sleeper sleep, and waits until it does. If this machine does not let it sleep in this way, prints so and returns `None`.
fn put_to_sleep(target: &mut Mutatee, how: &str) -> Option<i32> {
    let reply = target.ask(how);
    if let Some(why) = reply.lines.iter().find_map(|line| line.strip_prefix("skipped ")) {
        println!("skipped: {how}: {why}");
        return None;
    }
    let tid = i32::try_from(reply.number("asleep")).expect("a thread id");
    let stat = format!("/proc/{}/task/{tid}/stat", target.pid());
    wait_until("it sleeps", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") D ")));
    Some(tid)
}

/// Panics unless the report says that the text is restored, that memory is left, and that the removal of the memory waits for the sleeper.
#[track_caller]
fn assert_unfinished(outcome: &Outcome, sleeper: i32) {
    let removed = outcome.one("removed");
    assert_eq!(removed["text_restored"], true, "{outcome:#?}");
    assert_eq!(removed["memory_left"], true, "{outcome:#?}");
    assert_eq!(removed["asleep"], serde_json::json!([sleeper]), "{outcome:#?}");
    assert!(outcome.stderr.contains(&sleeper.to_string()), "a warning names it: {outcome:#?}");
}

/// Panics unless a count has values by thread, calls can be timed, and nothing remains after both.
#[track_caller]
fn assert_measurable(tool: &Tool, target: &mut Mutatee, before: &Text) {
    let session = tool.count(target.pid(), &["work"]);
    target.ask("work 50").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.threads("work").into_values().collect::<Vec<_>>(), [50, 50], "{outcome:#?}");
    let session = tool.measure("latency", target.pid(), &["work"]);
    target.ask("work 7").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.latency("work").calls, 14);
    assert_untouched(target, before);
}

/// Panics unless nothing of a measurement is in the program any more.
#[track_caller]
fn assert_untouched(target: &mut Mutatee, before: &Text) {
    target::assert_clean(target.pid(), before);
    assert!(!has_area(target.pid()), "{:#?}", target::maps(target.pid()));
    let bases = target.ask("bases");
    bases.assert_right();
    assert_eq!((bases.number("main"), bases.number("sleeper")), (0, 0));
}

fn has_area(pid: i32) -> bool {
    target::maps(pid).iter().any(|mapping| mapping.name.contains("memfd:ingraft"))
}

/// Returns a target whose sleeper has counted and sleeps now, with the command that counts it.
fn counted_and_asleep(tool: &Tool, how: &str) -> Option<(Mutatee, Text, Session, i32)> {
    put_counted_to_sleep(tool, Mutatee::start("asleep", &[]), how)
}

fn put_counted_to_sleep(tool: &Tool, mut target: Mutatee, how: &str) -> Option<(Mutatee, Text, Session, i32)> {
    let before = Text::of(target.pid());
    let session = tool.count(target.pid(), &["work"]);
    target.ask("work 100").assert_right();
    let sleeper = put_to_sleep(&mut target, how)?;
    Some((target, before, session, sleeper))
}

fn wakes_when_everybody_has_gone(tool: &Tool, start: impl Fn() -> Mutatee) {
    for how in WAYS {
        let Some((mut target, before, session, sleeper)) = put_counted_to_sleep(tool, start(), how) else { continue };
        let outcome = session.interrupt().assert_code(0);
        assert_eq!(outcome.calls("work"), 200, "{how}");
        assert_unfinished(&outcome, sleeper);
        before.assert_in(target.pid());
        assert!(has_area(target.pid()), "{how}: the memory stays");
        target.ask("wake").assert_right();
        target.ask("work 10").assert_right();
        assert_measurable(tool, &mut target, &before);
    }
}

#[test]
fn the_sleeper_wakes_after_the_removal() {
    wakes_when_everybody_has_gone(&tool(), || Mutatee::start("asleep", &[]));
}

#[test]
fn the_sleeper_wakes_after_the_removal_without_privilege() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        skip!("the other tests already run without privilege");
    }
    let directory = open_directory();
    let copy = exposed(&program("asleep").expect("gcc"), directory.path());
    let start = || Mutatee::spawn(std::process::Command::new(&copy).uid(NOBODY).gid(NOBODY));
    wakes_when_everybody_has_gone(&unprivileged_tool(), start);
}

#[test]
fn what_an_earlier_engine_has_left_is_not_the_programs() {
    let mut target = Mutatee::start("asleep", &[]);
    let before = Text::of(target.pid());
    for shard in [2u64, 3, 700, 8191] {
        target.ask(&format!("residue {}", shard << 20)).assert_right();
        assert_measurable(&tool(), &mut target, &before);
    }
    target.ask(&format!("residue {}", (5 << 20) + 0x38)).assert_right();
    assert_measurable(&tool(), &mut target, &before);
}

#[test]
fn measured_again_before_the_sleeper_wakes() {
    let tool = tool();
    for how in WAYS {
        let Some((mut target, before, session, sleeper)) = counted_and_asleep(&tool, how) else { continue };
        assert_unfinished(&session.interrupt().assert_code(0), sleeper);
        // Another engine inserts this measurement. The sleeper still has the gs base that the first engine set.
        let session = tool.count(target.pid(), &["work"]);
        target.ask("work 30").assert_right();
        target.ask("wake").assert_right();
        target.ask("work 5").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let mut calls: Vec<u64> = outcome.threads("work").into_values().collect();
        calls.sort_unstable();
        assert_eq!(calls, [15, 35], "{how}: {outcome:#?}");
        assert!(outcome.one("removed").get("memory_left").is_none(), "{outcome:#?}");
        assert_untouched(&mut target, &before);
    }
}

#[test]
fn detach_finishes_what_waited_for_the_sleeper() {
    let tool = tool();
    for how in WAYS {
        let Some((mut target, before, session, sleeper)) = counted_and_asleep(&tool, how) else { continue };
        session.kill();
        let outcome = tool.detach(target.pid());
        assert_unfinished(&outcome, sleeper);
        before.assert_in(target.pid());
        assert_unfinished(&tool.detach(target.pid()), sleeper);
        target.ask("wake").assert_right();
        let outcome = tool.detach(target.pid()).assert_removed();
        assert!(outcome.one("removed").get("memory_left").is_none(), "{outcome:#?}");
        assert_untouched(&mut target, &before);
        assert_measurable(&tool, &mut target, &before);
    }
}

#[test]
fn a_sleeper_that_never_counted_holds_nothing_up() {
    let tool = tool();
    for how in WAYS {
        let mut target = Mutatee::start("asleep", &[]);
        let before = Text::of(target.pid());
        if put_to_sleep(&mut target, how).is_none() {
            continue;
        }
        let session = tool.count(target.pid(), &["work"]);
        target.ask("work 9").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("work"), 9);
        assert!(outcome.one("removed").get("memory_left").is_none(), "{outcome:#?}");
        assert!(!has_area(target.pid()));
        target.ask("wake").assert_right();
        assert_untouched(&mut target, &before);
    }
}
