//! Tests of output for people and scripts: tables, objects, exit codes, files, closed pipes.

use std::io::Read;
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, program, skip, wait_until};
use serde_json::Value;

use crate::tool;

/// Number of the system call clock_nanosleep(2).
const CLOCK_NANOSLEEP: u32 = 230;

#[test]
fn ps_lists_what_can_be_attached_to() {
    let target = Mutatee::start("threads", &["1"]);
    let outcome = tool().run(["ps", "threads"]).assert_code(0);
    let ours = outcome.all("process").into_iter().find(|process| process["pid"] == target.pid()).expect("our process");
    assert_eq!(ours["name"], "threads");
    assert_eq!(ours["attachable"], true);
    assert!(ours["why_not"].is_null() && ours["hint"].is_null(), "{ours}");
    assert!(ours["uid"].is_u64());
    let everything = tool().run(["ps"]).assert_code(0);
    let kernel = everything
        .all("process")
        .into_iter()
        .find(|process| process["pid"] == 2 && process["name"] == "kthreadd")
        .cloned();
    if let Some(kernel) = kernel {
        assert_eq!(kernel["attachable"], false);
        assert!(kernel["why_not"].as_str().is_some_and(|why| why.contains("kernel")), "{kernel}");
    }
}

#[test]
fn functions_tell_how_they_are_reached() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let outcome = tool().run(["functions", "-p", &target.pid_text(), "threads:work_?"]).assert_code(0);
    let all = outcome.all("function");
    assert_eq!(all.len(), 8);
    for function in all {
        assert_eq!(function["module"], "threads");
        assert_eq!(function["points"]["entry"], 1);
        assert!(function["points"]["exit"].as_u64().is_some_and(|n| n >= 1), "{function}");
        assert_eq!(function["how"]["entry"], "in-place");
        assert!(function["why_not"]["entry"].is_null());
        assert!(function["size"].as_u64().is_some_and(|n| n > 0));
    }
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_table_for_people() {
    let mut target = Mutatee::start("threads", &["2"]);
    let mut command = tool().plain_command(["count", "-p", &target.pid_text(), "work_0", "--for", "300ms"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run ingraft");
    target.ask("solo 10");
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("a table");
    assert_eq!(child.wait().expect("wait for ingraft").code(), Some(0));
    assert!(text.contains("work_0"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where there is no terminal: {text:?}");
}

#[test]
fn objects_go_only_to_the_file() {
    let mut target = Mutatee::start("threads", &["2"]);
    let directory = ingraft_testing::open_directory();
    let file = directory.path().join("out.json");
    let path = file.to_str().expect("a path");
    let session = tool().start(["count", "-p", &target.pid_text(), "work_0", "-o", path]);
    wait_until("it is attached", || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("\"attached\"")));
    target.ask("solo 10");
    let outcome = session.interrupt().assert_code(0);
    assert!(outcome.objects.is_empty() && outcome.other.is_empty(), "{outcome:#?}");
    let text = std::fs::read_to_string(&file).expect("the file");
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    assert!(objects.iter().any(|object| object["type"] == "count" && object["calls"] == 10), "{text}");
    assert!(objects.iter().any(|object| object["type"] == "removed"), "{text}");
}

#[test]
fn a_closed_pipe_leaves_nothing_behind() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut child = tool
        .command(["watch", "-p", &target.pid_text(), "calls@/Code/threads/work_0", "--interval", "10ms"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run ingraft");
    let mut stdout = child.stdout.take().expect("piped");
    let mut some = [0; 64];
    stdout.read_exact(&mut some).expect("it prints something");
    drop(stdout);
    target.ask("go 100");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("what it says");
    child.wait().expect("wait for ingraft");
    assert!(!stderr.contains("panicked"), "{stderr}");
    wait_until("the target is clean", || target::arenas(target.pid()) == 0 && target::tracer(target.pid()) == 0);
    target::assert_clean(target.pid(), &before);
    let head = Command::new("sh")
        .arg("-c")
        .arg("\"$0\" functions -p \"$1\" | head -n 1")
        .args([env!("CARGO_BIN_EXE_ingraft"), &target.pid_text()])
        .env("INGRAFT_STATE_DIR", tool.state_directory())
        .output()
        .expect("run a pipeline");
    let said = String::from_utf8_lossy(&head.stderr).into_owned();
    assert!(!said.contains("panicked") && said.lines().count() <= 2, "{said}");
}

#[test]
fn help_has_examples_and_every_command_explains_itself() {
    let help = |arguments: &[&str]| {
        let output = tool().plain_command(arguments).output().expect("run ingraft");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let top = help(&["--help"]);
    for word in [
        "ps",
        "functions",
        "inspect",
        "where",
        "count",
        "latency",
        "watch",
        "metrics",
        "check",
        "status",
        "detach",
        "demo",
        "Examples",
        "Exit status",
    ] {
        assert!(top.contains(word), "--help does not mention {word}");
    }
    for command in
        ["ps", "functions", "inspect", "where", "count", "latency", "watch", "metrics", "check", "status", "detach"]
    {
        assert!(help(&[command, "--help"]).contains("Examples"), "{command} --help has no examples");
    }
    assert!(help(&["--version"]).starts_with("ingraft "));
    for shell in ["bash", "zsh", "fish"] {
        assert!(help(&["completions", shell]).contains("ingraft"));
    }
    assert!(help(&["man"]).contains(".TH"));
}

#[test]
fn a_duration_ends_the_count() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    target.ask("spin");
    let outcome =
        tool().run(["count", "-p", &target.pid_text(), "noise", "--for", "100ms"]).assert_code(0).assert_removed();
    assert!(outcome.calls("noise") > 1000);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_refused_command_leaves_the_file_of_o_as_it_was() {
    let target = Mutatee::start("threads", &["1"]);
    let directory = ingraft_testing::open_directory();
    let path = directory.path().join("old");
    std::fs::write(&path, "precious").expect("write a file");
    let file = path.to_str().expect("a path");
    let pid = target.pid_text();
    for kind in [&["profile", "edges"][..], &["trace"], &["count"]] {
        for (functions, pid) in [("nothing_*", pid.as_str()), ("work_0", "999999999")] {
            let arguments = kind.iter().copied().chain([functions, "-p", pid, "-o", file, "--for", "100ms"]);
            let outcome = tool().run(arguments);
            assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), "precious", "{kind:?}: {outcome:#?}");
        }
    }
    let _ = tool().run(["profile", "edges", "work_0", "-p", &pid, "-o", file, "--for", "100ms"]).assert_code(0);
    assert!(std::fs::read(&path).expect("read").starts_with(b"INGPROF"), "the profile replaces it");
    let names: Vec<_> = std::fs::read_dir(directory.path()).expect("a directory").collect();
    assert_eq!(names.len(), 1, "nothing else is left beside it: {names:?}");
}

#[test]
fn without_a_function_the_programs_own_module_is_counted() {
    let target = Mutatee::start("threads", &["1"]);
    let pid = target.pid_text();
    let outcome = tool().run(["count", "-p", &pid, "--for", "100ms"]).assert_code(0);
    let all = outcome.all("count");
    assert!(all.iter().any(|count| count["function"] == "work_0"), "{outcome:#?}");
    assert!(all.iter().all(|count| count["module"] == "threads"), "{outcome:#?}");
    let outcome = tool().run(["functions", "-p", &pid, ":work_?"]).assert_code(0);
    assert_eq!(outcome.all("function").len(), 8, "{outcome:#?}");
    let outcome = tool().run(["count", "-p", &pid, "thre:work_0"]).assert_code(3);
    assert!(!outcome.stderr.contains("did you mean ``"), "{outcome:#?}");
}

#[test]
fn a_command_fails_if_none_of_its_functions_can_be_measured() {
    let Ok(program) = program("crammed") else { skip!("crammed.s") };
    let mut child = Command::new(program).spawn().expect("run it");
    let pid = i32::try_from(child.id()).expect("a process id");
    wait_until("it waits", || target::waits_in(pid, CLOCK_NANOSLEEP));
    let before = Text::of(pid);
    let of = pid.to_string();
    for command in
        [&["count"][..], &["latency"], &["profile", "contexts"], &["profile", "edges"], &["slow", "--over", "1us"]]
    {
        let outcome = tool().run([command, &["-p", &of, "crammed:first", "--for", "100ms"]].concat()).assert_code(3);
        assert!(outcome.stderr.contains("`first` cannot be instrumented"), "{command:?}: {outcome:#?}");
        target::assert_clean(pid, &before);
    }
    child.kill().expect("kill it");
    child.wait().expect("it has ended");
}
