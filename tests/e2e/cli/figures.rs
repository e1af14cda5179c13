//! Tests of definitions for programs of a certain flavor: the figures of the paper on MDL, for a program with the functions that they
//! name.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, source_directory};

use crate::tool;

fn figures() -> String {
    let path = source_directory().join("tests/e2e/mdl/figures.mdl");
    path.to_str().expect("a path").to_owned()
}

#[track_caller]
fn last(outcome: &Outcome, pair: &str) -> u64 {
    let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
    let last = outcome.all("sample").into_iter().rfind(|s| s["metric"] == metric && s["focus"] == focus);
    last.and_then(|s| s["value"].as_u64()).unwrap_or_else(|| panic!("no value of {pair}: {outcome:#?}"))
}

#[test]
fn the_figures_of_the_paper_run_as_printed() {
    let file = figures();
    let mut target = Mutatee::start("figures", &[]);
    let before = Text::of(target.pid());
    let pairs = ["msgs", "msgs@/Code/figures/foo", "msgs@/Code/figures/bar", "msgs@/Code/libc.so.6", "sends"];
    let pid = target.pid_text();
    let mut arguments = vec!["watch", "-p", &pid, "-I", &file, "--flavor", "pvm,cm5"];
    arguments.extend(pairs);
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    let _ = target.ask("pass 120 7");
    let truth = target.ask("pass 3 50");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let of_foo = truth.tally("foo_messages");
    let all = truth.tally("pvm_send") + truth.tally("pvm_recv");
    // The flags are set to 1 and 0, not counted. The value for libc.so.6 is 0, because no function of the C library calls these functions.
    let values = [all, of_foo, all - of_foo, 0, truth.tally("pvm_send")];
    for (pair, value) in pairs.into_iter().zip(values) {
        assert_eq!(last(&outcome, pair), value, "{pair}");
    }
    assert!(!outcome.stderr.contains("no definition names"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn every_procedure_of_a_program_is_counted_as_the_first_figure_does() {
    let file = figures();
    let mut target = Mutatee::start("figures", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "procCalls", "-I", &file, "--flavor", "pvm"]);
    session.wait_for("attached");
    let truth = target.ask("pass 30 40");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let own: u64 = ["pvm_send", "pvm_recv", "foo", "bar"].map(|name| truth.tally(name)).iter().sum();
    // The metric counts the functions of the C library, too.
    assert!(last(&outcome, "procCalls") >= own, "{own}: {outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_definition_of_another_flavor_says_how_to_use_it() {
    let file = figures();
    let target = Mutatee::start("figures", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let watch = |more: &[&str]| {
        let arguments = ["watch", "-p", &pid, "-I", &file, "--for", "50ms"];
        tool().run(arguments.iter().chain(more).copied().collect::<Vec<_>>())
    };
    let _ = watch(&["msgs"]).assert_error(2, &["exists only for pvm", "--flavor pvm"]);
    let _ = watch(&["sends"]).assert_error(2, &["the list `cm5_msg_func` exists only for cm5", "--flavor cm5"]);
    let _ = watch(&["msgs", "--flavor", "pwm"]).assert_error(2, &["said to be `pwm`", "did you mean `--flavor pvm`"]);
    let outcome = watch(&["calls@/Code/figures/foo", "--flavor", "pwm"]).assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("no definition names the flavor `pwm`; did you mean `pvm`?"), "{outcome:#?}");
    let _ = watch(&["msgs", "--flavor", "p v m"]).assert_code(2);
    let many: Vec<String> = (0..17).map(|n| format!("f{n}")).collect();
    let _ = watch(&["msgs", "--flavor", &many.join(",")]).assert_error(2, &["17 flavors", "at most 16"]);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn metrics_of_other_flavors_are_listed_and_lowered() {
    let file = figures();
    let listed = tool().run(["metrics", "-I", &file]).assert_code(0);
    let flavors =
        |name: &str| listed.all("metric").into_iter().find(|m| m["name"] == name).map(|m| m["flavors"].clone());
    assert_eq!(flavors("msgs"), Some(serde_json::json!(["pvm"])));
    assert_eq!(flavors("sends"), Some(serde_json::json!([])));
    let target = Mutatee::start("figures", &[]);
    let pid = target.pid_text();
    for (more, applies) in [(&[] as &[&str], false), (&["--flavor", "pvm"], true)] {
        let arguments = ["metrics", "-p", &pid, "-I", &file];
        let listed = tool().run(arguments.iter().chain(more).copied().collect::<Vec<_>>()).assert_code(0);
        let msgs = listed.all("metric").into_iter().find(|m| m["name"] == "msgs").expect("the metric");
        assert_eq!(msgs["applies"], applies, "{more:?}");
    }
    let lowered = tool().run(["check", &file, "--lower", "--flavor", "pvm", "--flavor", "cm5"]).assert_code(0);
    let problems: Vec<_> = lowered.all("lowered").into_iter().filter(|m| !m["problem"].is_null()).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    let refused = tool().run(["check", &file, "--lower"]).assert_code(0);
    assert!(format!("{:?}", refused.all("lowered")).contains("say so: `--flavor pvm`"), "{refused:#?}");
    let strange = tool().run(["check", &file, "--flavor", "pwm"]).assert_code(0);
    assert!(strange.stderr.contains("did you mean `pvm`?"), "{strange:#?}");
}
