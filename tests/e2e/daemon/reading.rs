//! Tests that later commands read measurements that were left in, also after a restart of the daemon.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ingraft_testing::{Daemon, Mutatee, Tool, open_directory, program, sibling};

use crate::{client, daemon};

fn leave_in(tool: &Tool, target: &Mutatee, function: &str) -> u64 {
    let arguments = ["count", "-p", &target.pid_text(), "--for", "10ms", "--no-remove", function];
    tool.run(arguments).assert_code(0).one("kept")["measurement"].as_u64().expect("a number")
}

/// Runs `read` for a process; returns the numbers of its measurements, and the calls of a function.
fn read(tool: &Tool, target: &Mutatee, function: &str) -> (Vec<u64>, u64) {
    let outcome = tool.run(["read", &target.pid_text()]).assert_code(0);
    let kept = outcome.all("kept").iter().filter_map(|kept| kept["measurement"].as_u64()).collect();
    (kept, outcome.calls(function))
}

fn next(directory: &tempfile::TempDir) -> Daemon {
    daemon(directory.path(), &[])
}

#[test]
fn values_are_read_on_also_after_a_restart() {
    let directory = open_directory();
    let first = next(&directory);
    let mut target = Mutatee::start("family", &[]);
    let tool = client(&first);
    let kept = leave_in(&tool, &target, "parent_work");
    target.ask("fork 5 1").assert_right();
    assert_eq!(read(&tool, &target, "parent_work"), (vec![kept], 5));
    let text = String::from_utf8(tool.plain_command(["read", &target.pid_text()]).output().expect("run it").stdout);
    let text = text.expect("UTF-8");
    assert!(text.contains("parent_work") && text.contains("FUNCTION"), "{text}");
    // A measurement whose client is still connected is not one that was left in.
    let mut session = tool.start(["count", "-p", &target.pid_text(), "child_work"]);
    session.wait_for("changed");
    assert_eq!(read(&tool, &target, "parent_work"), (vec![kept], 5));
    let _ = session.interrupt().assert_code(0);

    // If a command uses another engine, the error says which engine holds the measurement.
    let outcome = Tool::new(sibling("ingraft")).run(["read", &target.pid_text()]).assert_code(4);
    assert!(outcome.stderr.contains("--daemon"), "{}", outcome.stderr);
    first.kill();
    let outcome = Tool::new(sibling("ingraft")).run(["read", &target.pid_text()]).assert_code(1);
    assert!(outcome.stderr.contains("start ingraftd"), "{}", outcome.stderr);

    let second = next(&directory);
    let tool = client(&second);
    target.ask("fork 4 1").assert_right();
    assert_eq!(read(&tool, &target, "parent_work"), (vec![kept], 9), "it counts on");
    // A second count of the function is refused, with advice on other commands.
    let outcome = tool.run(["count", "-p", &target.pid_text(), "parent_work", "--for", "10ms"]).assert_code(3);
    assert!(outcome.stderr.contains("ingraft read") && outcome.stderr.contains("ingraft detach"), "{}", outcome.stderr);
    tool.detach(target.pid());
    let _ = tool.run(["read", &target.pid_text()]).assert_error(3, &["no measurement"]);
    let session = tool.count(target.pid(), &["parent_work"]);
    target.ask("fork 3 1").assert_right();
    assert_eq!(session.interrupt().assert_code(0).calls("parent_work"), 3);
}

#[test]
fn times_and_values_come_as_their_commands_print_them() {
    let directory = open_directory();
    let daemon = next(&directory);
    let mut target = Mutatee::start("family", &[]);
    let tool = client(&daemon);
    let pid = target.pid_text();
    for arguments in [&["latency", "parent_work"][..], &["watch", "calls@/Code/family"]] {
        let all = [&arguments[..1], &["-p", &pid, "--for", "10ms", "--no-remove"], &arguments[1..]].concat();
        let _ = tool.run(all).assert_code(0);
    }
    target.ask("fork 6 1").assert_right();
    let outcome = tool.run(["read", &pid]).assert_code(0);
    assert_eq!(outcome.latency("parent_work").calls, 6);
    let sample = outcome.one("sample");
    assert_eq!((&sample["metric"], &sample["focus"]), (&"calls".into(), &"/Code/family".into()));
    assert!(sample["value"].as_u64() >= Some(6), "{sample}");
    tool.detach(target.pid());
}

#[test]
fn lost_code_is_told_with_the_values() {
    let directory = open_directory();
    let daemon = next(&directory);
    let library = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("loads", &[&library("libplugin.so"), &library("libother.so")]);
    let at = u64::from_str_radix(target.ask("open").after("at"), 16).expect("an address");
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", target.pid())).expect("memory");
    let mut original = [0; 8];
    memory.read_exact_at(&mut original, at).expect("the function");
    let tool = client(&daemon);
    leave_in(&tool, &target, "libplugin:plugin_work");
    let mut woven = [0; 8];
    memory.read_exact_at(&mut woven, at).expect("the function");
    target.ask("call 3");
    let outcome = tool.run(["read", &target.pid_text()]).assert_code(0);
    assert!(!outcome.stderr.contains("plugin_work"), "nothing is lost: {}", outcome.stderr);
    memory.write_all_at(&original, at).expect("the function");
    let outcome = tool.run(["read", &target.pid_text()]).assert_code(0);
    assert!(outcome.stderr.contains("plugin_work"), "{}", outcome.stderr);
    memory.write_all_at(&woven, at).expect("the function");
    tool.detach(target.pid());
}
