//! Tests of function entries of difficult shapes: each is counted exactly or refused by name, and never harmed.

use std::collections::BTreeMap;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Tool};

use crate::tool;

/// Shapes that must be countable: they have five bytes, or padding after them.
const COUNTABLE: &[&str] = &[
    "exact5",
    "only_ret",
    "short_padded",
    "short_nops",
    "endbr",
    "endbr_only",
    "after_crowded",
    "loop_rel8",
    "loop_rel32",
    "loop_red_zone",
    "rip_load",
    "rip_immediate",
    "rip_lea",
    "rip_jump",
    "jrcxz_first",
    "short_branch",
    "call_first",
    "call_only",
    "call_memory",
    "tail_long",
    "tail_conditional",
    "push_ret",
    "flags_carry",
    "flags_all",
    "adc_first",
    "all_registers",
    "odd_arguments",
    "vectors",
    "ret_repz",
    "jump_table",
    "recursive",
    "shapes_target",
];

/// Returns all functions of the program that are called, with the method for their entries, and the reason if the entry is refused.
fn listed(tool: &Tool, target: &Mutatee) -> BTreeMap<String, (String, String)> {
    let outcome = tool.run(["functions", "-p", &target.pid_text(), "shapes:*"]).assert_code(0);
    let describe = |object: &&serde_json::Value| {
        let name = object["function"].as_str().expect("a name").to_owned();
        let how = object["how"]["entry"].as_str().unwrap_or_default().to_owned();
        let why = object["why_not"]["entry"].as_str().unwrap_or_default().to_owned();
        (name, (how, why))
    };
    outcome.all("function").iter().map(describe).collect()
}

fn called(target: &mut Mutatee) -> BTreeMap<String, u64> {
    let told = target.ask("run 1");
    assert_right(&told.lines);
    told.tallies()
}

fn assert_right(lines: &[String]) {
    let wrong: Vec<_> = lines.iter().filter(|line| line.starts_with("wrong")).collect();
    assert!(wrong.is_empty(), "registers or results changed: {wrong:#?}");
}

#[test]
fn listed_as_countable_or_refused_with_a_reason() {
    let mut target = Mutatee::start("shapes", &[]);
    let listed = listed(&tool(), &target);
    for name in called(&mut target).keys() {
        let (how, why) = listed.get(name).unwrap_or_else(|| panic!("{name} is not listed: {listed:#?}"));
        match how.as_str() {
            "in-place" | "relocated" => assert!(why.is_empty(), "{name}: {why}"),
            "refused" => {
                assert!(!why.is_empty(), "{name} is refused without a reason");
                assert!(!COUNTABLE.contains(&name.as_str()), "{name} must be countable: {why}");
            }
            other => panic!("{name}: how is {other:?}"),
        }
    }
}

#[test]
fn all_at_once() {
    let mut target = Mutatee::start("shapes", &[]);
    let tool = tool();
    let earlier = called(&mut target);
    let listed = listed(&tool, &target);
    let before = Text::of(target.pid());
    let names: Vec<&str> = earlier.keys().map(String::as_str).chain(["entry_inner"]).collect();
    let session = tool.count(target.pid(), &names);
    let told = target.ask("run 1000");
    assert_right(&told.lines);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let counts = outcome.counts();
    for (name, tally) in told.tallies() {
        if listed[&name].0 == "refused" {
            assert!(outcome.stderr.contains(&name), "{name} is refused but no warning names it:\n{}", outcome.stderr);
        } else {
            assert_eq!(counts.get(&name).copied(), Some(tally - earlier[&name]), "{name}");
        }
    }
    // Control reaches this entry only by falling through from the enclosing function. The count is that function's calls, or 0.
    let inner = counts.get("entry_inner").copied().unwrap_or(0);
    assert!(inner == 0 || inner == told.tally("entry_outer") - earlier["entry_outer"], "entry_inner: {inner}");
    target::assert_clean(target.pid(), &before);
    assert_right(&target.ask("run 100").lines);
}

#[test]
fn each_alone() {
    let mut target = Mutatee::start("shapes", &[]);
    let tool = tool();
    let before = Text::of(target.pid());
    let listed = listed(&tool, &target);
    let mut earlier = called(&mut target);
    for name in earlier.clone().keys() {
        if listed[name].0 == "refused" {
            let outcome = tool.run(["count", "-p", &target.pid_text(), name]).assert_error(3, &[name]);
            assert!(outcome.all("attached").is_empty(), "{name}: touched");
            continue;
        }
        let session = tool.count(target.pid(), &[name]);
        let told = target.ask("run 50");
        assert_right(&told.lines);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls(name), told.tally(name) - earlier[name], "{name}");
        before.assert_in(target.pid());
        earlier = told.tallies();
    }
    target::assert_clean(target.pid(), &before);
}
