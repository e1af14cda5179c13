//! Tests of uprobes that other tools (perf, bpftrace) set on woven functions. The kernel writes one byte over the text, and later restores
//! the byte of the file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, skip};

use crate::tool;

const BREAKPOINT: u8 = 0xcc;

/// A process that sets uprobes in another process.
struct Probes {
    setter: Mutatee,
    path: String,
    at: u64,
    offset: u64,
}

impl Probes {
    /// Prepares uprobes on a function of a target; the error says why this machine does not allow them.
    fn on(target: &mut Mutatee, function: &str) -> Result<Probes, String> {
        let at = target.ask("where").number(&format!("at {function}"));
        let mapping = target::maps(target.pid()).into_iter().find(|m| (m.start..m.end).contains(&at)).expect("mapped");
        let offset = at - mapping.start + mapping.offset;
        let mut setter = Mutatee::start("probes", &[&target.pid_text()]);
        let failed = setter.ask(&format!("set {} {offset}", mapping.name)).number("failed");
        setter.ask("drop");
        if failed != 0 {
            return Err(format!("uprobes cannot be set here: error {failed}"));
        }
        Ok(Probes { setter, path: mapping.name, at, offset })
    }

    fn set(&mut self) {
        assert_eq!(self.setter.ask(&format!("set {} {}", self.path, self.offset)).number("failed"), 0);
    }

    fn drop(&mut self) {
        self.setter.ask("drop");
    }

    fn bytes(&self, pid: i32) -> [u8; 8] {
        let mut bytes = [0; 8];
        File::open(format!("/proc/{pid}/mem")).expect("memory").read_exact_at(&mut bytes, self.at).expect("text");
        bytes
    }
}

fn warns(outcome: &Outcome, words: &str) -> bool {
    outcome.one("removed")["warnings"].as_array().is_some_and(|all| {
        all.iter().any(|warning| warning.as_str().is_some_and(|w| w.contains(words) && w.contains("never")))
    })
}

#[test]
fn one_that_came_and_went_leaves_no_byte_of_ours() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let mut probes = match Probes::on(&mut target, "never") {
        Ok(probes) => probes,
        Err(why) => skip!("{why}"),
    };
    target.ask("spin");
    let tool = tool();
    let session = tool.count(target.pid(), &["work_*", "noise", "never"]);
    let woven = probes.bytes(target.pid());
    probes.set();
    assert_eq!(probes.bytes(target.pid())[0], BREAKPOINT);
    let there = tool.inserted(target.pid());
    assert!(there[0]["warnings"].to_string().contains("breakpoint"), "{there:?}");
    probes.drop();
    let now = probes.bytes(target.pid());
    assert!(now[0] != woven[0] && now[1..5] == woven[1..5], "the kernel puts back the file's byte alone");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(warns(&outcome, "breakpoint"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    target.ask("rest");
    target.ask("go 100").assert_right();
}

#[test]
fn one_that_stays_keeps_its_byte_and_nothing_of_ours() {
    for killed in [false, true] {
        let mut target = Mutatee::start("threads", &["4"]);
        let before = Text::of(target.pid());
        let mut probes = match Probes::on(&mut target, "never") {
            Ok(probes) => probes,
            Err(why) => skip!("{why}"),
        };
        let original = probes.bytes(target.pid());
        target.ask("spin");
        let tool = tool();
        let session = tool.count(target.pid(), &["work_*", "noise", "never"]);
        probes.set();
        let outcome = if killed {
            session.kill();
            tool.run(["detach", "-p", &target.pid_text()])
        } else {
            session.interrupt()
        };
        let outcome = outcome.assert_code(1);
        assert_eq!(outcome.one("removed")["text_restored"], false);
        assert!(outcome.stderr.contains("breakpoint"), "{outcome:#?}");
        let now = probes.bytes(target.pid());
        assert!(now[0] == BREAKPOINT && now[1..] == original[1..], "{now:x?} instead of {original:x?}");
        assert_eq!(target::arenas(target.pid()), 0, "nothing leads there");
        probes.drop();
        target::assert_clean(target.pid(), &before);
        assert!(tool.inserted(target.pid()).is_empty());
        target.ask("rest");
        target.ask("go 100").assert_right();
    }
}

#[test]
fn where_one_is_nothing_is_woven() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let mut probes = match Probes::on(&mut target, "never") {
        Ok(probes) => probes,
        Err(why) => skip!("{why}"),
    };
    probes.set();
    let with_probe = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work_*", "never"]);
    target.ask("go 100").assert_right();
    let outcome = session.interrupt().assert_code(0);
    let refused = outcome.all("refused");
    assert!(refused.iter().any(|r| r["function"] == "never" && r.to_string().contains("uprobe")), "{outcome:#?}");
    assert!(outcome.calls("work_1") > 0);
    with_probe.assert_in(target.pid());
    probes.drop();
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
}

const STAYING: [&str; 8] = ["pushes", "reserves", "compares", "loses", "loops", "changes", "loads", "stores"];

/// Number of calls that the main thread of `openings` makes of each function.
const CALLS: u64 = 2000;

/// The springboard lies behind the first instruction, so a uprobe executes that instruction and goes on at the springboard.
#[test]
fn one_on_the_first_instruction_does_no_harm_in_either_order() {
    for function in STAYING {
        for first in [true, false] {
            let mut target = Mutatee::start("openings", &["1"]);
            let before = Text::of(target.pid());
            let mut probes = match Probes::on(&mut target, function) {
                Ok(probes) => probes,
                Err(why) => skip!("{why}"),
            };
            let tool = tool();
            if first {
                probes.set();
            }
            let session = tool.count(target.pid(), &[function]);
            if !first {
                probes.set();
            }
            let byte = probes.bytes(target.pid())[0];
            assert_eq!(byte, BREAKPOINT, "{function}");
            target.ask(&format!("go {CALLS}")).assert_right();
            // The redirected branch of `loops` does not pass its first instruction in the text.
            assert_eq!(probes.setter.ask("hits").number("hits"), CALLS, "{function}");
            // It goes and comes while the function is woven.
            probes.drop();
            target.ask(&format!("go {CALLS}")).assert_right();
            probes.set();
            let truth = target.ask(&format!("go {CALLS}"));
            truth.assert_right();
            let outcome = session.interrupt().assert_code(0).assert_removed();
            assert_eq!(outcome.calls(function), truth.tally(function), "{function}");
            assert!(outcome.one("count").get("exposed").is_none(), "{outcome:#?}");
            assert!(!outcome.stderr.contains("breakpoint"), "{outcome:#?}");
            probes.drop();
            target::assert_clean(target.pid(), &before);
            target.ask(&format!("go {CALLS}")).assert_right();
        }
    }
}

#[test]
fn several_threads_run_through_both() {
    let mut target = Mutatee::start("openings", &["4"]);
    let before = Text::of(target.pid());
    let mut all = Vec::new();
    for function in STAYING {
        match Probes::on(&mut target, function) {
            Ok(probes) => all.push(probes),
            Err(why) => skip!("{why}"),
        }
    }
    let session = tool().count(target.pid(), &STAYING);
    for _ in 0..3 {
        all.iter_mut().for_each(Probes::set);
        target.ask("go 500").assert_right();
        all.iter_mut().for_each(Probes::drop);
        target.ask("go 500").assert_right();
    }
    let truth = target.ask("go 500");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for function in STAYING {
        assert_eq!(outcome.calls(function), truth.tally(function), "{function}");
    }
    target::assert_clean(target.pid(), &before);
}

/// Where the first instruction cannot stay, the record of the function says so, and with a uprobe there nothing is woven.
#[test]
fn a_function_that_is_exposed_is_named_or_refused() {
    let mut target = Mutatee::start("openings", &["1"]);
    let before = Text::of(target.pid());
    let outcome = {
        let session = tool().count(target.pid(), &["jumps"]);
        target.ask("go 10").assert_right();
        session.interrupt().assert_code(0).assert_removed()
    };
    assert_eq!(outcome.one("count")["exposed"], true, "{outcome:#?}");
    let mut probes = match Probes::on(&mut target, "reserves") {
        Ok(probes) => probes,
        Err(why) => skip!("{why}"),
    };
    probes.set();
    target.ask("go 10").assert_right();
    // The kernel emulates a `push`, but executes a `sub` in its page for uprobes. Where that is mapped, more uprobes may come.
    let session = tool().count(target.pid(), &["jumps", "reserves"]);
    target.ask("go 10").assert_right();
    let outcome = session.interrupt().assert_code(0);
    let refused = outcome.all("refused");
    assert!(refused.iter().any(|r| r["function"] == "jumps" && r["reason"] == "exposed_to_uprobes"), "{outcome:#?}");
    assert_eq!(outcome.calls("reserves"), 10);
    probes.drop();
    target::assert_clean(target.pid(), &before);
}

/// A uprobe on a `push` is emulated, so that the kernel maps no page for it: its breakpoint in the text tells of it.
#[test]
fn exposed_functions_of_a_module_with_a_uprobe_are_refused() {
    let mut target = Mutatee::start("openings", &["1"]);
    let before = Text::of(target.pid());
    let mut probes = match Probes::on(&mut target, "pushes") {
        Ok(probes) => probes,
        Err(why) => skip!("{why}"),
    };
    probes.set();
    target.ask("go 10").assert_right();
    let session = tool().count(target.pid(), &["jumps", "loads"]);
    target.ask("go 10").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("refused")["reason"], "exposed_to_uprobes", "{outcome:#?}");
    assert_eq!(outcome.calls("loads"), 10);
    probes.drop();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn exposed_functions_are_refused_where_uprobes_are_expected() {
    let mut target = Mutatee::start("openings", &["1"]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["--beside-uprobes", "jumps", "changes"]);
    target.ask("go 10").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.one("refused")["reason"], "exposed_to_uprobes", "{outcome:#?}");
    assert_eq!(outcome.calls("changes"), 10);
    target::assert_clean(target.pid(), &before);
}

/// A call that a handler ends at its first instruction is a call too, so that instruction does not run before the code.
#[test]
fn calls_that_end_at_their_first_instruction_are_counted() {
    let mut target = Mutatee::start("openings", &["1"]);
    let before = Text::of(target.pid());
    target.ask("faults 3").assert_right();
    let session = tool().count(target.pid(), &["loads"]);
    target.ask("faults 50").assert_right();
    target.ask("go 7").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("loads"), 57);
    assert_eq!(outcome.one("count")["exposed"], true, "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

/// The springboard lies after the instruction that the uprobe replaces.
#[test]
fn one_on_an_endbr64_does_no_harm() {
    let mut target = Mutatee::start("threads-cet", &["4"]);
    let before = Text::of(target.pid());
    let mut probes = match Probes::on(&mut target, "work_0") {
        Ok(probes) => probes,
        Err(why) => skip!("{why}"),
    };
    if probes.bytes(target.pid())[..4] != [0xf3, 0x0f, 0x1e, 0xfa] {
        skip!("the compiler puts no endbr64 at entries");
    }
    let session = tool().count(target.pid(), &["work_*"]);
    probes.set();
    target.ask("go 50").assert_right();
    probes.drop();
    let truth = target.ask("go 50");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), truth.tally("work_0"));
    target::assert_clean(target.pid(), &before);
    target.ask("go 50").assert_right();
}

/// The static probes of `usdt`, with their functions.
const STATIC: [(&str, &str); 4] =
    [("at_return", "returns"), ("behind_return", "follows"), ("at_beginning", "begins"), ("before_exit", "leaves")];

/// A uprobe comes to a static probe while its function is woven, is hit, and goes. `measure` begins the measurement of a function.
fn static_probes_are_hit(functions: &[(&str, &str)], measure: impl Fn(&Mutatee, &str) -> Session) {
    for (probe, function) in functions {
        let mut target = Mutatee::start("usdt", &[]);
        let before = Text::of(target.pid());
        let mut probes = match Probes::on(&mut target, probe) {
            Ok(probes) => probes,
            Err(why) => skip!("{why}"),
        };
        let original = probes.bytes(target.pid());
        let session = measure(&target, function);
        before.assert_not_in(target.pid());
        assert_eq!(probes.bytes(target.pid())[0], original[0], "{function}");
        target.ask("go 100").assert_right();
        probes.set();
        // Where a copy runs instead of the probe, the engine gives the copy up once it has noticed the uprobe.
        while probes.setter.ask("hits").number("hits") < 100 {
            target.ask("go 50").assert_right();
        }
        probes.drop();
        target.ask("go 100").assert_right();
        let outcome = session.interrupt();
        assert_eq!(outcome.one("removed")["text_restored"], true, "{outcome:#?}");
        target::assert_clean(target.pid(), &before);
        target.ask("go 100").assert_right();
        assert!(target.end().success());
    }
}

/// Tools set uprobes within functions at static probes (USDT), so no springboard covers one.
#[test]
fn static_probes_of_copied_functions_do_no_harm() {
    let blocks = |target: &Mutatee, function: &str| tool().measure("profile", target.pid(), &["blocks", function]);
    static_probes_are_hit(&STATIC, blocks);
}

/// A function is refused if the probe lies within the first bytes of it.
#[test]
fn static_probes_of_functions_that_are_woven_in_place_do_no_harm() {
    let (refused, others): (Vec<_>, Vec<_>) = STATIC.into_iter().partition(|(probe, _)| *probe == "at_beginning");
    static_probes_are_hit(&others, |target, function| tool().measure("latency", target.pid(), &[function]));
    let target = Mutatee::start("usdt", &[]);
    for (_, function) in refused {
        let _ = tool().run(["count", "-p", &target.pid_text(), function]).assert_error(3, &["static probe (USDT)"]);
    }
}
