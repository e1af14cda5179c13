//! Tests of metrics in MDL: the command line checks, lists and runs them.

use std::path::PathBuf;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, source_directory};
use serde_json::Value;

use crate::tool;

fn file(name: &str) -> String {
    let path: PathBuf = source_directory().join("tests/e2e/mdl").join(name);
    path.to_str().expect("a path").to_owned()
}

/// Writes a file with these definitions.
fn written(definitions: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), definitions).expect("a file");
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("a path")
}

/// Returns the last value of a metric at a focus.
#[track_caller]
fn last(outcome: &Outcome, metric: &str, focus: &str) -> i64 {
    let last = outcome.all("sample").into_iter().rfind(|sample| sample["metric"] == metric && sample["focus"] == focus);
    let last = last.unwrap_or_else(|| panic!("no sample of {metric} at {focus}: {outcome:#?}"));
    last["value"].as_i64().expect("a value is a number")
}

#[test]
fn the_shipped_metrics_are_listed() {
    let outcome = tool().run(["metrics"]).assert_code(0);
    let calls = outcome.all("metric").into_iter().find(|metric| metric["name"] == "calls").expect("the metric `calls`");
    assert_eq!(calls["unit"], "calls");
    assert_eq!(calls["aggregate"], "sum");
    assert!(
        calls["constraints"]
            .as_array()
            .is_some_and(|list| list.iter().any(|c| c.as_str().is_some_and(|c| c.starts_with("/Code"))))
    );
    assert!(calls["text"].as_str().is_some_and(|text| text.contains("metric")));
    let more = tool().run(["metrics", "-I", &file("dialect.mdl")]).assert_code(0);
    assert!(more.all("metric").iter().any(|metric| metric["name"] == "heap_requests"));
}

#[test]
fn every_shipped_file_is_without_a_finding() {
    let entries = std::fs::read_dir(source_directory().join("mdl")).expect("the metric library");
    let files: Vec<String> =
        entries.map(|entry| entry.expect("a file").path().to_str().expect("a path").to_owned()).collect();
    assert!(!files.is_empty());
    let arguments = ["check".to_owned()].into_iter().chain(files);
    let outcome = tool().run(arguments).assert_code(0);
    assert!(outcome.all("diagnostic").is_empty(), "{outcome:#?}");
}

#[test]
fn a_history_and_its_phases_have_all_that_was_counted() {
    let mut target = Mutatee::start("threads", &["4"]);
    let pair = "calls@/Code/threads/work_0";
    let arguments = ["watch", "-p", &target.pid_text(), pair, "--for", "4s", "--phases", "1s"];
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    let counted: i64 = target.ask("go 20000").tally("work_0").try_into().expect("a small number");
    let outcome = session.finish().assert_code(0);
    assert_eq!(last(&outcome, "calls", "/Code/threads/work_0"), counted);
    let histories = outcome.all("history");
    let sum = |history: &Value| -> i64 {
        let bins = history["bins"].as_array().expect("bins").iter();
        bins.filter(|bin| !bin.is_null()).map(|bin| bin["sum"].as_i64().expect("a number")).sum()
    };
    let (whole, phases): (Vec<_>, Vec<_>) = histories.into_iter().partition(|history| history["phase"].is_null());
    assert_eq!(whole.len(), 1, "{outcome:#?}");
    assert_eq!((sum(whole[0]), whole[0]["focus"].as_str()), (counted, Some("/Code/threads/work_0")));
    assert!(phases.len() >= 2, "{outcome:#?}");
    assert_eq!(phases.iter().map(|phase| sum(phase)).sum::<i64>(), counted, "{outcome:#?}");
    assert!(phases.windows(2).all(|two| two[0]["start_ns"].as_u64() < two[1]["start_ns"].as_u64()));
}

#[test]
fn watch_streams_samples() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let mut session =
        tool().start(["watch", "-p", &target.pid_text(), "calls@/Code/threads/work_0", "--interval", "20ms"]);
    session.wait_for("attached");
    let first = session.wait_for("sample");
    assert_eq!(first["metric"], "calls");
    assert_eq!(first["focus"], "/Code/threads/work_0");
    assert_eq!(first["value"], 0);
    assert_eq!(first["unit"], "calls");
    let truth = target.ask("go 3000");
    let mut value = 0;
    while value < truth.tally("work_0") {
        let sample = session.wait_for("sample");
        assert!(sample["time_ns"].as_u64() > first["time_ns"].as_u64());
        value = sample["value"].as_u64().expect("a value");
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(last(&outcome, "calls", "/Code/threads/work_0"), i64::try_from(truth.tally("work_0")).expect("small"));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn module_focus_adds_up_its_functions() {
    let mut target = Mutatee::start("corner", &[]);
    let session = {
        let mut session = tool().start([
            "watch",
            "-p",
            &target.pid_text(),
            "calls@/Code/corner/work",
            "calls@/Code/corner/arguments",
        ]);
        session.wait_for("attached");
        session
    };
    target.ask("work 40");
    target.ask("argument 1 2 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(last(&outcome, "calls", "/Code/corner/work"), 40);
    assert_eq!(last(&outcome, "calls", "/Code/corner/arguments"), 3);
}

#[test]
fn a_file_in_paradyns_dialect_gives_the_same_numbers() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    let _ = tool().run(["check", &file("dialect.mdl")]).assert_code(0);
    let pid = target.pid_text();
    let pairs = ["procedure_calls_of_old@/Code/threads/work_3", "procedure_calls_of_old", "calls@/Code/threads/work_3"];
    let mut session = tool().start(["watch", "-p", &pid, pairs[0], pairs[1], pairs[2], "-I", &file("dialect.mdl")]);
    session.wait_for("attached");
    let truth = target.ask("go 2000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let tally = |name: &str| i64::try_from(truth.tally(name)).expect("small");
    assert_eq!(last(&outcome, "procedure_calls_of_old", "/Code/threads/work_3"), tally("work_3"));
    assert_eq!(last(&outcome, "calls", "/Code/threads/work_3"), tally("work_3"));
    let whole = outcome
        .all("sample")
        .into_iter()
        .rfind(|sample| sample["metric"] == "procedure_calls_of_old" && sample["focus"] != "/Code/threads/work_3");
    let sum = tally("work_0") + tally("work_1") + tally("work_2");
    assert_eq!(whole.expect("a sample of the whole program")["value"].as_i64(), Some(sum));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn conditions_and_arguments() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session =
        tool().start(["watch", "-p", &pid, "arguments_over_ten", "argument_sum", "-I", &file("dialect.mdl")]);
    session.wait_for("attached");
    target.ask("argument 1 11 10 12 -5 1000").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let value = |metric: &str| {
        let last = outcome.all("sample").into_iter().rfind(|sample| sample["metric"] == metric);
        last.unwrap_or_else(|| panic!("no sample of {metric}: {outcome:#?}"))["value"].as_i64()
    };
    assert_eq!(value("arguments_over_ten"), Some(3));
    assert_eq!(value("argument_sum"), Some(1 + 11 + 10 + 12 - 5 + 1000 + 6 * 600));
    target::assert_clean(target.pid(), &before);
    target.ask("argument 1 2").assert_right();
}

#[test]
fn a_flag_restricts_a_metric_to_what_happens_inside_a_function() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let name = file("inside.mdl");
    let _ = tool().run(["check", &name]).assert_code(0);
    let foci = ["/Code/times/around", "/Code/times/deep", "/Code/times/spin"];
    let pairs = foci.map(|focus| format!("naps_inside@{focus}"));
    let pid = target.pid_text();
    let fixed = ["watch", "-p", &pid, "-I", &name, "naps_inside"];
    let mut session = tool().start(fixed.into_iter().chain(pairs.iter().map(String::as_str)));
    session.wait_for("attached");
    target.ask("nap 7 1");
    target.ask("nest 11 1");
    target.ask("deep 5 1");
    target.ask("nap 3 1");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let values = foci.map(|focus| last(&outcome, "naps_inside", focus));
    assert_eq!(values, [11, 1, 0]);
    assert_eq!(last(&outcome, "naps_inside", ""), 22);
    target::assert_clean(target.pid(), &before);
    target.ask("nest 1 1");
}

#[test]
fn what_cannot_run_yet_is_refused_by_name() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let (pid, name) = (target.pid_text(), file("hardware.mdl"));
    let pair = "cycles_inside@/Code/threads/work_0";
    let outcome = tool().run(["watch", "-p", &pid, "-I", &name, pair, "--for", "1s"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("`cycles`"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_timer_tells_the_time_while_it_runs() {
    let mut target = Mutatee::start("times", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "wall_time@/Code/times/deep", "--interval", "50ms"]);
    session.wait_for("attached");
    target.tell("deep 20 1500000");
    let mut values = Vec::new();
    while values.len() < 12 {
        values.push(session.wait_for("sample")["value"].as_i64().expect("a number"));
    }
    let truth = target.reply();
    assert!(values.is_sorted(), "never backwards: {values:?}");
    assert!(values.iter().filter(|v| **v > 0).count() > 5, "it runs: {values:?}");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    // The outermost call includes the whole time; `ns deep` includes it once for each level.
    let all = last(&outcome, "wall_time", "/Code/times/deep");
    let (ns, calls) = (truth.number("ns deep"), truth.tally("deep"));
    let one = i64::try_from(ns / calls).expect("small");
    assert!((all - one).abs() * 50 < one, "{all} {one}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn ten_errors_yield_ten_diagnostics() {
    let name = file("ten_errors.mdl");
    let outcome = tool().run(["check", &name]).assert_code(2);
    let from_stderr: Vec<Value> = outcome.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let all: Vec<&Value> =
        outcome.objects.iter().chain(&from_stderr).filter(|object| object["type"] == "diagnostic").collect();
    let errors: Vec<_> = all.iter().filter(|diagnostic| diagnostic["severity"] == "error").collect();
    assert_eq!(errors.len(), 10, "{errors:#?}");
    // Each error is in the definition that contains it.
    let text = std::fs::read_to_string(&name).expect("the file");
    let starts: Vec<u64> =
        text.lines().zip(1..).filter(|(line, _)| line.starts_with("metric ")).map(|(_, number)| number).collect();
    let mut hit: Vec<usize> = Vec::new();
    for error in &errors {
        let line = error["line"].as_u64().expect("a line");
        assert!(error["column"].as_u64().is_some_and(|column| column >= 1));
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        hit.push(starts.iter().rposition(|&start| start <= line).expect("inside a metric"));
    }
    hit.sort_unstable();
    assert_eq!(hit, (0..10).collect::<Vec<_>>(), "{errors:#?}");
    // The output for people has excerpts with carets.
    let plain = tool().plain_command(["check", &name]).output().expect("run ingraft");
    assert_eq!(plain.status.code(), Some(2));
    let shown = format!("{}{}", String::from_utf8_lossy(&plain.stdout), String::from_utf8_lossy(&plain.stderr));
    assert!(shown.contains("aggregateOperator product") && shown.contains('^'), "{shown}");
}

#[test]
fn wrong_requests_for_metrics() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let watch = |pair: &str| tool().run(["watch", "-p", &pid, pair, "--for", "1s"]);
    let _ = watch("no_such_metric").assert_error(3, &["no_such_metric"]);
    let _ = watch("calls@/Code/threads/no_such_function").assert_error(3, &["no_such_function"]);
    let _ = watch("calls@/Code/no_such_module/work_0").assert_error(3, &["no_such_module"]);
    let _ = watch("calls@Code/threads").assert_error(2, &["focus", "resource", "/"]);
    let _ = watch("calls@/Code/threads,/Code/libc").assert_error(2, &["/Code", "hierarchy"]);
    let _ = watch("calls@/NoSuchHierarchy/x").assert_error(2, &["NoSuchHierarchy"]);
    let _ = watch("calls@/SyncObject/Nosuch").assert_error(3, &["Nosuch", "/SyncObject"]);
    let _ = watch("lock_operations@/SyncObject/Nosuch").assert_error(3, &["Nosuch", "/SyncObject"]);
    let _ = watch("lock_operations@/SyncObject/Barrier").assert_error(3, &["lock_operations", "/SyncObject"]);
    // If an error is not about a file, the advice names no file.
    for pair in ["calls@/Process/1", "calls@/Code/nosuch"] {
        let outcome = watch(pair);
        assert!(!outcome.stderr.contains("FILE.mdl"), "{outcome:#?}");
    }
    let outcome = tool().run(["watch", "-p", &pid, "first", "-I", &file("ten_errors.mdl")]);
    assert_eq!(outcome.status.code(), Some(2), "{outcome:#?}");
    let outcome = tool().run(["watch", "-p", &pid, "first", "-I", "/nonexistent.mdl"]);
    assert_eq!(outcome.status.code(), Some(2), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn one_bad_definition_does_not_hide_the_rest() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let definitions = written(
        "metric bad { name \"bad\"; units u; aggregateOperator sum; style EventCounter; \
           base is counter { append preInsn $start.entry (* bad = nothing; *) } }\n\
         metric good { name \"good\"; units u; aggregateOperator sum; style EventCounter; \
           base is counter { append preInsn $start.entry (* good++; *) } }\n",
    );
    let watch = |metric: &str| tool().run(["watch", "-p", &pid, metric, "-I", path(&definitions), "--for", "100ms"]);
    let good = watch("good").assert_code(0).assert_removed();
    assert!(good.stderr.contains("nothing defines `nothing`"), "{good:#?}");
    assert_eq!(watch("bad").status.code(), Some(2));
    target::assert_clean(target.pid(), &before);
}

/// Exclusive flags are right even where a thread has no room for activation records. Values that depend on the flags report the missing
/// records.
#[test]
fn exclusive_is_right_in_deep_recursion() {
    let mut target = Mutatee::start("burns", &[]);
    let before = Text::of(target.pid());
    let metric = |name: &str, constraint: &str| {
        format!(
            "constraint {constraint}_{name} /Code/* is {constraint};\n\
             metric {name} {{ name \"{name}\"; units u; aggregateOperator sum; style EventCounter; \
               constraint {constraint}_{name}; base is counter {{ \
               foreach f in burners append preInsn f.entry constrained (* {name}++; *) }} }}\n"
        )
    };
    let list = "resourceList burners is procedure { items { \"burn\" }; flavor { unix }; }\n";
    let definitions = written(&format!("{list}{}{}", metric("own", "exclusive"), metric("all", "inclusive")));
    let foci = ["own@/Code/burns/dive", "all@/Code/burns/dive"];
    let [shallow, deep] = [100, 3000].map(|depth| {
        let pid = target.pid_text();
        let mut session = tool().start(["watch", "-p", &pid, foci[0], foci[1], "-I", path(&definitions)]);
        session.wait_for("attached");
        let before = target.ask("dive 0 0").tally("burn");
        let truth = target.ask(&format!("dive {depth} 0")).tally("burn") - before;
        let outcome = session.interrupt().assert_code(0).assert_removed();
        for metric in ["own", "all"] {
            // `truth` lacks the call of `burn` that asked for the earlier tally.
            assert_eq!(
                last(&outcome, metric, "/Code/burns/dive"),
                i64::try_from(truth + 1).expect("small"),
                "{metric} {depth}: {outcome:#?}"
            );
        }
        let sample = outcome.all("sample").into_iter().rfind(|s| s["metric"] == "own").expect("a sample").clone();
        sample["unrecorded"].as_u64().unwrap_or(0)
    });
    assert_eq!(shallow, 0);
    assert!(deep > 0, "records were missing");
    target::assert_clean(target.pid(), &before);
}

/// The code at one point may be longer than at most points.
#[test]
fn code_of_any_length_has_room() {
    let mut target = Mutatee::start("loads", &["none"]);
    let before = Text::of(target.pid());
    let list = "resourceList works is procedure { items { \"local_work\" }; flavor { unix }; }\n";
    let metric = |name: &str, code: &str| {
        format!(
            "metric {name} {{ name \"{name}\"; units u; aggregateOperator sum; style EventCounter; base is counter {{ \
             foreach f in works append preInsn f.entry (* {code} *) }} }}\n"
        )
    };
    let many: Vec<String> = (0..150).map(|n| format!("many{n}")).collect();
    let short = many.iter().zip(3..).map(|(name, n)| metric(name, &format!("{name} += $arg[0] % {n};")));
    let long = metric("long", &(0..300).map(|_| "long += $arg[0] / 3;\n").collect::<String>());
    let definitions = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(definitions.path(), list.to_owned() + &short.collect::<String>() + &long).expect("write a file");
    let (pid, path) = (target.pid_text(), definitions.path().to_str().expect("a path"));
    let fixed = ["watch", "-p", &pid, "--max-overhead", "10000", "-I", path, "long"];
    let mut session = tool().start(fixed.into_iter().chain(many.iter().map(String::as_str)));
    session.wait_for("attached");
    target.ask("call 50").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("refused").is_empty(), "{}", outcome.stderr);
    for (name, n) in many.iter().zip(3..) {
        assert_eq!(last(&outcome, name, ""), (0..50).map(|arg| arg % n).sum::<i64>(), "{name}");
    }
    assert_eq!(last(&outcome, "long", ""), (0..50).map(|arg| arg / 3 * 300).sum::<i64>());
    target::assert_clean(target.pid(), &before);
}
