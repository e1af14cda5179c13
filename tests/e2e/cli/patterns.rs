//! Tests of patterns: foci, lists of definitions and the command line take the same ones, and the command reports a pattern that matches
//! nothing.

use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, skip};

use crate::tool;

#[test]
fn foci_may_be_patterns() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let pid = target.pid_text();
    let mut session = tool.start(["watch", "-p", &pid, "calls@/Code/thr*/work_?", "--interval", "50ms"]);
    session.wait_for("attached");
    target.ask("go 100");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |function: &str| {
        let focus = format!("/Code/threads/{function}");
        outcome.all("sample").into_iter().rfind(|s| s["focus"] == focus.as_str()).and_then(|s| s["value"].as_u64())
    };
    let counted = tool.run(["functions", "-p", &pid, "threads:work_?"]).assert_code(0);
    let functions: Vec<&str> = counted.all("function").iter().filter_map(|f| f["function"].as_str()).collect();
    assert_eq!(functions.len(), 8);
    assert!(functions.iter().all(|function| last(function).is_some()), "each by itself: {outcome:#?}");
    assert!(functions.iter().filter_map(|function| last(function)).sum::<u64>() > 0, "{outcome:#?}");
    let nothing = ["watch", "-p", &pid, "calls@/Code/threads/nothing_*", "--for", "1s"];
    drop(tool.run(nothing).assert_error(3, &["no function matches"]));
    target::assert_clean(target.pid(), &before);
}

#[test]
fn items_of_lists_may_be_patterns() {
    let mut target = Mutatee::start("threads", &["2"]);
    let directory = ingraft_testing::open_directory();
    let file = directory.path().join("workers.mdl");
    let metric = |name: &str, list: &str| {
        format!(
            "metric {name} {{ name \"{name}\"; units calls; aggregateOperator sum; style EventCounter; flavor {{ unix }};\n\
             base is counter {{ foreach f in {list} append preInsn f.entry (* {name}++; *) }} }}\n"
        )
    };
    let text = [
        "resourceList workers is procedure { items { \"work_?\" }; flavor { unix }; }\n".to_owned(),
        "resourceList by_path is procedure { items { \"/Code/thr*/work_?\" }; flavor { unix }; }\n".to_owned(),
        metric("worker_calls", "workers"),
        metric("path_calls", "by_path"),
    ]
    .concat();
    std::fs::write(&file, text).expect("write a definition");
    let pid = target.pid_text();
    let path = file.to_str().expect("a path");
    let arguments = ["watch", "-p", &pid, "worker_calls", "path_calls", "calls@/Code/threads/work_*", "-I", path];
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    target.ask("go 100");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let time = samples.last().expect("samples")["time_ns"].clone();
    let sum = |metric: &str| -> u64 {
        let last = samples.iter().filter(|s| s["time_ns"] == time && s["metric"] == metric);
        last.filter_map(|s| s["value"].as_u64()).sum()
    };
    assert!(sum("calls") > 0, "{samples:#?}");
    assert_eq!((sum("worker_calls"), sum("path_calls")), (sum("calls"), sum("calls")));
}

#[test]
fn metrics_of_a_program_are_those_that_measure_something_in_it() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let outcome = tool().run(["metrics", "-p", &target.pid_text()]).assert_code(0);
    let applies = |name: &str| {
        let metric = outcome.all("metric").into_iter().find(|metric| metric["name"] == name);
        metric.unwrap_or_else(|| panic!("no metric {name}"))["applies"].clone()
    };
    for name in ["calls", "latency", "wall_time", "heap_requests", "lock_operations"] {
        assert_eq!(applies(name), true, "{name}");
    }
    for name in ["redis_commands", "postgres_queries", "nginx_requests", "sqlite_steps"] {
        assert_eq!(applies(name), false, "{name}");
    }
    let output = tool().plain_command(["metrics", "-p", &target.pid_text()]).output().expect("run ingraft");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("calls") && !text.contains("redis_commands") && text.contains("in this program"), "{text}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn the_pattern_of_the_help_text_matches_python() {
    // This is the distribution's interpreter. The first one in PATH may be a script that starts another one.
    let python = "/usr/bin/python3";
    if !std::path::Path::new(python).exists() {
        skip!("no {python}");
    }
    let help = tool().plain_command(["--help"]).output().expect("run ingraft");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let pattern = help.split('\'').find(|word| word.contains("_PyEval_")).expect("a pattern of python's functions");
    let outcome = tool().run(["count", "--until-exit", pattern, "--", python, "-c", "print(sum(range(9)))"]);
    let outcome = outcome.assert_code(0);
    assert!(outcome.counts().values().sum::<u64>() > 0, "{outcome:#?}");
    // In this program, the interpreter is a library.
    let directory = ingraft_testing::open_directory();
    let (source, program) = (directory.path().join("embeds.c"), directory.path().join("embeds"));
    let text = "void Py_Initialize(void); int PyRun_SimpleStringFlags(const char *, void *);\n\
                int main(void) { Py_Initialize(); return PyRun_SimpleStringFlags(\"sum(range(9))\", 0); }\n";
    std::fs::write(&source, text).expect("write a program");
    let built = Command::new("gcc").arg(&source).arg("-o").arg(&program).args(["-l:libpython3.11.so.1.0"]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        skip!("no libpython3.11 to link with");
    }
    let program = program.to_str().expect("a path");
    let outcome = tool().run(["count", "--until-exit", pattern, "--", program]).assert_code(0);
    assert!(outcome.counts().values().sum::<u64>() > 0, "{outcome:#?}");
}

#[test]
fn names_are_suggested_with_their_namespace() {
    let target = Mutatee::start("twin", &[]);
    let tool = tool();
    let all = tool.run(["functions", "-p", &target.pid_text(), "twin:twin::*"]).assert_code(0);
    let whole = |f: &&serde_json::Value| {
        let name = f["function"].as_str().unwrap_or_default();
        let name = name.split('(').next().unwrap_or_default().to_owned();
        let last = name.rsplit("::").next().unwrap_or_default().to_owned();
        (last.len() > 6 && last.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')).then_some((name.clone(), last))
    };
    let found = all.all("function").iter().find_map(whole);
    let Some((name, last)) = found else { skip!("no function in a namespace: {all:#?}") };
    let wrong = format!("{last}x");
    let hint = format!("did you mean `twin:{name}`?");
    let later = format!("name the library too: `LIBRARY:{wrong}`");
    drop(tool.run(["count", "-p", &target.pid_text(), &wrong, "--for", "1s"]).assert_error(3, &[&hint, &later]));
}

#[test]
fn a_stripped_program_of_a_package_says_which_package_has_its_symbols() {
    let lists = std::path::Path::new("/var/lib/dpkg/info");
    let program = "/usr/bin/sleep";
    if !lists.join("coreutils.list").exists() || lists.join("coreutils-dbgsym.list").exists() {
        skip!("no coreutils of Debian without its symbols");
    }
    let mut target = Command::new(program).arg("1000").spawn().expect("run sleep");
    let pid = target.id().to_string();
    ingraft_testing::wait_until("it has started", || {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == std::path::Path::new(program))
    });
    let outcome = tool().run(["count", "-p", &pid, "usage_of_nothing", "--for", "1s"]);
    target.kill().expect("end sleep");
    target.wait().expect("sleep ends");
    drop(outcome.assert_error(3, &["the symbols of sleep are stripped: install coreutils-dbgsym"]));
}
