//! Tests of programs that move their own text to anonymous memory (for huge pages), before or while they are measured.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use ingraft_testing::{Mutatee, Tool, have, scaled, skip, source_directory, target};

use crate::tool;

/// Returns the bytes of the program's text segment, whatever maps them.
fn text(pid: i32) -> Vec<u8> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a program");
    let all = target::maps(pid);
    let own: Vec<_> = all.iter().filter(|m| m.name == exe.to_str().expect("a path")).collect();
    let (first, last) = (own.first().expect("mapped"), own.last().expect("mapped"));
    let code = all.iter().filter(|m| m.start >= first.start && m.end <= last.end && m.permissions.starts_with("r-x"));
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory of a target of ours");
    let mut bytes = Vec::new();
    for mapping in code {
        let start = bytes.len();
        bytes.resize(start + usize::try_from(mapping.end - mapping.start).expect("a size"), 0);
        memory.read_exact_at(&mut bytes[start..], mapping.start).expect("text");
    }
    assert!(!bytes.is_empty());
    bytes
}

/// Returns the number of arenas: executable mappings without a file, outside of the program's text.
fn arenas(pid: i32) -> usize {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a program");
    let all = target::maps(pid);
    let own: Vec<_> = all.iter().filter(|m| m.name == exe.to_str().expect("a path")).collect();
    let hull = own.first().expect("mapped").start..own.last().expect("mapped").end;
    let is_arena = |m: &&target::Mapping| m.permissions.contains('x') && m.name.is_empty() && !hull.contains(&m.start);
    all.iter().filter(is_arena).count()
}

fn moved(target: &mut Mutatee, how: &str) {
    assert_eq!(target.ask(&format!("move {how}")).number("failed"), 0, "move {how}");
}

/// Panics unless counts are exact and the text is restored to the byte.
fn counts_and_restores(target: &mut Mutatee, tool: &Tool, before: &[u8], during: &mut dyn FnMut(&mut Mutatee)) {
    let earlier = target.ask("go 0").tallies();
    let session = tool.count(target.pid(), &["work_*", "noise"]);
    assert!(text(target.pid()) != before, "woven");
    target.ask("go 500").assert_right();
    during(target);
    let truth = target.ask("go 500");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for (function, tally) in truth.tallies().into_iter().filter(|(function, _)| function != "never") {
        assert_eq!(outcome.calls(&function), tally - earlier[&function], "{function}");
    }
    assert!(text(target.pid()) == before, "the text is not what it was");
    assert_eq!(arenas(target.pid()), 0);
    target.ask("go 500").assert_right();
}

#[test]
fn before_it_is_measured() {
    for program in ["moves", "moves-static"] {
        for how in ["copy", "part", "remap"] {
            let mut target = Mutatee::start(program, &["4"]);
            let before = text(target.pid());
            moved(&mut target, how);
            assert!(text(target.pid()) == before, "a copy");
            counts_and_restores(&mut target, &tool(), &before, &mut |_| ());
        }
    }
}

#[test]
fn while_it_is_measured() {
    for program in ["moves", "moves-static"] {
        for how in ["copy", "part", "remap", "collapse"] {
            let mut target = Mutatee::start(program, &["4"]);
            let before = text(target.pid());
            counts_and_restores(&mut target, &tool(), &before, &mut |target| {
                target.ask(&format!("move {how}"));
            });
            // The test runs again with the text at its new place.
            counts_and_restores(&mut target, &tool(), &before, &mut |target| {
                target.ask(&format!("move {how}"));
            });
        }
    }
}

#[test]
fn under_load_again_and_again() {
    let mut target = Mutatee::start("moves", &["4"]);
    let before = text(target.pid());
    let tool = tool();
    for _ in 0..scaled(4, 40) {
        target.ask("spin");
        let session = tool.count(target.pid(), &["work_*", "noise"]);
        moved(&mut target, "remap");
        moved(&mut target, "remap");
        let _ = session.interrupt().assert_code(0).assert_removed();
        assert!(target.alive());
        assert!(text(target.pid()) == before, "the text is not what it was");
        target.ask("rest");
        target.ask("go 50").assert_right();
    }
}

#[test]
fn the_engine_is_killed_in_between() {
    for how in ["copy", "remap"] {
        let mut target = Mutatee::start("moves", &["4"]);
        let before = text(target.pid());
        let tool = tool();
        tool.count(target.pid(), &["work_*", "noise"]).kill();
        moved(&mut target, how);
        target.ask("go 500").assert_right();
        let _ = tool.detach(target.pid()).assert_removed();
        assert!(text(target.pid()) == before, "the text is not what it was");
        assert_eq!(arenas(target.pid()), 0);
        target.ask("go 500").assert_right();
    }
}

#[test]
fn removed_in_the_middle_of_the_move() {
    let mut target = Mutatee::start("moves", &["4"]);
    let before = text(target.pid());
    let tool = tool();
    let session = tool.count(target.pid(), &["work_*", "noise"]);
    moved(&mut target, "begin");
    // The copy that the program has set aside holds springboards, and the program will map it again.
    let outcome = session.interrupt();
    moved(&mut target, "end");
    target.ask("go 500").assert_right();
    if outcome.one("removed")["text_restored"] == true {
        assert!(text(target.pid()) == before, "the text is not what it was");
    } else {
        assert!(outcome.stderr.contains("set a copy of woven code aside"), "{outcome:#?}");
        let _ = tool.detach(target.pid()).assert_removed();
        assert!(text(target.pid()) == before, "the text is not what it was");
    }
    target.ask("go 500").assert_right();
}

/// Programs that generate code have many jumps.
#[test]
fn jumps_that_are_the_same_by_chance_are_no_copy_of_the_text() {
    let mut target = Mutatee::start("moves", &["4"]);
    let before = text(target.pid());
    counts_and_restores(&mut target, &tool(), &before, &mut |target| moved(target, "chance"));
}

/// An arena must be within reach of one mapping of the text only; the other mapping may lie anywhere.
#[test]
fn text_that_is_mapped_again_far_away() {
    let mut target = Mutatee::start("moves", &["2"]);
    moved(&mut target, "twice");
    let before = text(target.pid());
    let earlier = target.ask("go 0").tallies();
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--max-overhead", "10000", "work_*"]);
    let attached = session.wait_for("attached");
    assert_eq!(attached["points"], 8, "{attached}");
    let truth = target.ask("go 500");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("mapped a second time"), "{outcome:#?}");
    for function in ["work_0", "work_7"] {
        assert_eq!(outcome.calls(function), truth.tally(function) - earlier[function]);
    }
    assert!(text(target.pid()) == before, "the text is not what it was");
}

/// Whether a process has text of its program in memory without a file.
fn has_moved(pid: i32) -> bool {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a program");
    let all = target::maps(pid);
    let own: Vec<_> = all.iter().filter(|m| m.name == exe.to_str().expect("a path")).collect();
    let hull = own.first().expect("mapped").start..own.last().expect("mapped").end;
    all.iter().any(|m| m.permissions.contains('x') && m.name.is_empty() && hull.contains(&m.start))
}

#[test]
fn all_of_node_in_huge_pages() {
    if !have("node") {
        skip!("node is not installed");
    }
    let script = source_directory().join("tests/mutatees/heavy.js");
    let mut target = Mutatee::spawn(Command::new("node").arg("--use-largepages=on").arg(script));
    if !has_moved(target.pid()) {
        skip!("this node does not move its text");
    }
    let before = text(target.pid());
    let tool = tool();
    for round in 0..scaled(2, 20) {
        let session = tool.count(target.pid(), &["node:*"]);
        target.ask("go 50").assert_right();
        let outcome = if round % 2 == 1 {
            session.kill();
            target.ask("go 50").assert_right();
            tool.detach(target.pid())
        } else {
            session.interrupt().assert_code(0)
        };
        let _ = outcome.assert_removed();
        assert!(target.alive());
        assert!(text(target.pid()) == before, "the text is not what it was");
        target.ask("go 50").assert_right();
    }
}
