//! Tests of bad input and failures: the report has one line with the problem and one with advice, the exit code is the documented one, and
//! the target is untouched.

use std::process::Command;

use ingraft_testing::target::{self, Text, Traced};
use ingraft_testing::{Mutatee, Outcome, have, is_root, open_directory, output, program, skip, wait_until};

use crate::{tool, unprivileged_tool};

/// Runs a command that must fail in this way, and checks that the target keeps its code.
#[track_caller]
fn refused(target: &Mutatee, arguments: &[&str], code: i32, words: &[&str]) -> Outcome {
    let before = Text::of(target.pid());
    let outcome = tool().run(arguments).assert_error(code, words);
    assert!(outcome.all("attached").is_empty(), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    outcome
}

#[test]
fn errors_are_two_lines_for_people() {
    for arguments in [&["count", "-p", "999999999", "main"][..], &["count", "-n", "no-such-program-anywhere", "main"]] {
        let output = tool().plain_command(arguments).output().expect("run ingraft");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(text.lines().count(), 2, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {text}");
    }
}

#[test]
fn wrong_usage() {
    let own = std::process::id().to_string();
    let cases: &[&[&str]] = &[
        &["count"],
        &["count", "main"],
        &["count", "-p", "abc", "main"],
        &["count", "-p", "0", "main"],
        &["count", "-p", "-1", "main"],
        &["count", "-p", &own, "main", "--for", "soon"],
        &["count", "-p", &own, "main", "--interval", "0"],
        &["count", "-p", &own, "-n", "x", "main"],
        &["count", "-p", &own, "main", "--no-such-flag"],
        &["no-such-command"],
        &["watch", "-p", &own],
        &["check"],
        &["check", "/nonexistent/file.mdl"],
        &["detach"],
        &["count", "-p", &own, "main", "--no-remove"],
    ];
    for arguments in cases {
        let output = tool().plain_command(*arguments).output().expect("run ingraft");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(!text.is_empty() && !text.contains("panicked"), "{arguments:?}: {text}");
    }
}

#[test]
fn no_such_process() {
    let ended = {
        let target = Mutatee::start("threads", &["1"]);
        target.pid_text()
    };
    let _ = tool().run(["count", "-p", &ended, "main"]).assert_error(3, &[&ended, "no process", "no such process"]);
    let _ =
        tool().run(["count", "-n", "no-such-program-anywhere", "main"]).assert_error(3, &["no-such-program-anywhere"]);
    let _ = tool().run(["detach", "-p", &ended]).assert_error(3, &[&ended]);
    let _ = tool().run(["functions", "-p", &ended]).assert_error(3, &[&ended]);
}

#[test]
fn several_processes_of_a_name() {
    let directory = open_directory();
    let unique = directory.path().join(format!("twice{}", std::process::id()));
    std::fs::copy(program("threads").expect("gcc"), &unique).expect("copy a program");
    let name = unique.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let first = Mutatee::spawn(Command::new(&unique).arg("1"));
    let session = {
        // If only one process has the name, it is found by the name.
        let mut session = tool().start(["count", "-n", &name, "work_0"]);
        session.wait_for("attached");
        session
    };
    let _ = session.interrupt().assert_code(0).assert_removed();
    let second = Mutatee::spawn(Command::new(&unique).arg("1"));
    let outcome = refused(&first, &["count", "-n", &name, "work_0"], 3, &[&name]);
    assert!(outcome.stderr.contains(&first.pid_text()) && outcome.stderr.contains(&second.pid_text()), "{outcome:#?}");
}

#[test]
fn functions_that_do_not_exist() {
    let target = Mutatee::start("threads", &["1"]);
    let pid = target.pid_text();
    refused(&target, &["count", "-p", &pid, "no_such_function"], 3, &["no_such_function"]);
    refused(&target, &["count", "-p", &pid, "no_such_*_anywhere"], 3, &["no_such_*_anywhere"]);
    refused(&target, &["count", "-p", &pid, "no_such_module:work_0"], 3, &["no_such_module"]);
    refused(&target, &["count", "-p", &pid, "threads+0x3"], 3, &["threads+0x3"]);
    refused(&target, &["count", "-p", &pid, "threads+0xffffffffffffffff"], 3, &["threads+0x"]);
    // If one of two functions is wrong, neither is inserted.
    refused(&target, &["count", "-p", &pid, "work_0", "no_such_function"], 3, &["no_such_function"]);
}

#[test]
fn an_ambiguous_function() {
    let directory = open_directory();
    let plugin = program("libplugin.so").expect("gcc");
    let other = directory.path().join("libother.so");
    std::fs::copy(&plugin, &other).expect("copy a library");
    let mut target =
        Mutatee::spawn(Command::new(program("loads").expect("gcc")).arg(&other).env("LD_PRELOAD", &plugin));
    target.ask("open");
    let pid = target.pid_text();
    let outcome = refused(&target, &["count", "-p", &pid, "plugin_work"], 3, &["plugin_work"]);
    assert!(outcome.stderr.contains("libplugin") && outcome.stderr.contains("libother"), "{outcome:#?}");
    let session = tool().count(target.pid(), &["libother:plugin_work"]);
    let truth = target.ask("call 10");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    // dlsym looks for the function in the library that was opened.
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
}

#[test]
fn a_function_that_cannot_be_instrumented() {
    let target = Mutatee::start("shapes", &[]);
    let pid = target.pid_text();
    let outcome = tool().run(["functions", "-p", &pid, "shapes:*"]).assert_code(0);
    let Some(name) =
        outcome.all("function").iter().find(|f| f["how"]["entry"] == "refused").and_then(|f| f["function"].as_str())
    else {
        skip!("every function of the target can be counted");
    };
    refused(&target, &["count", "-p", &pid, name], 3, &[name]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["exact5", name]);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.stderr.contains(name), "a warning names it: {outcome:#?}");
    assert_eq!(outcome.calls("exact5"), 0);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_kernel_thread() {
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let _ = tool().run(["count", "-p", "2", "main"]).assert_error(4, &["kernel"]);
    } else {
        skip!("no kernel thread can be seen here");
    }
}

#[test]
fn a_zombie() {
    let mut target = Mutatee::start("corner", &[]);
    let zombie = target.ask("zombie").after("child").to_owned();
    // A zombie has no memory any more, so it cannot be measured.
    let _ = tool().run(["count", "-p", &zombie, "work"]).assert_error(3, &["zombie", "ended"]);
}

#[test]
fn our_own_process() {
    let output = Command::new("sh")
        .arg("-c")
        .arg("exec \"$0\" count --format json -p $$ main")
        .arg(env!("CARGO_BIN_EXE_ingraft"))
        .env("INGRAFT_STATE_DIR", tool().state_directory())
        .output()
        .expect("run ingraft");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(2..=4)), "{:?}: {text}", output.status);
    assert!(text.contains("itself") || text.contains("own"), "{text}");
}

#[test]
fn somebody_else_traces_it() {
    let mut target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let traced = Traced::new(target.pid());
    let outcome =
        tool().run(["count", "-p", &target.pid_text(), "work_0"]).assert_error(4, &["traced", "tracer", "debugger"]);
    assert!(outcome.stderr.contains(&std::process::id().to_string()), "the tracer is named: {outcome:#?}");
    // With `--wait`, the command waits for the tracer's end, or for Ctrl-C.
    let arguments = ["count", "-p", &target.pid_text(), "work_0", "--wait", "1h"];
    let mut given_up = tool().start(arguments);
    given_up.wait_for_word("deferred");
    let _ = given_up.interrupt().assert_error(1, &["given up"]);
    let mut waiting = tool().start(arguments);
    waiting.wait_for_word("deferred");
    drop(traced);
    waiting.wait_for("attached");
    target.ask("solo 5").assert_right();
    let outcome = waiting.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 5);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn not_permitted() {
    if !is_root() {
        let _ = tool().run(["count", "-p", "1", "main"]).assert_error(4, &[]);
        return;
    }
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let _ = unprivileged_tool()
        .run(["count", "-p", &target.pid_text(), "work_0"])
        .assert_error(4, &["root", "user", "uid", "CAP_SYS_PTRACE"]);
    target::assert_clean(target.pid(), &before);
    let listed = unprivileged_tool().run(["ps", "threads"]).assert_code(0);
    let ours = listed.all("process").into_iter().find(|process| process["pid"] == target.pid()).expect("our process");
    assert_eq!(ours["attachable"], false);
    assert!(ours["why_not"].is_string() && ours["hint"].is_string(), "{ours}");
}

#[test]
fn a_target_that_is_not_dumpable() {
    use std::os::unix::process::CommandExt;
    let directory = open_directory();
    let mut command = Command::new(ingraft_testing::exposed(&program("corner").expect("gcc"), directory.path()));
    if is_root() {
        command.uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY);
    }
    let mut target = Mutatee::spawn(&mut command);
    target.ask("undumpable");
    let _ = unprivileged_tool().run(["count", "-p", &target.pid_text(), "work"]).assert_error(4, &["dumpable"]);
    target.ask("work 5").assert_right();
    if is_root() {
        let session = tool().count(target.pid(), &["work"]);
        target.ask("work 5").assert_right();
        assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("work"), 5);
    }
}

#[test]
fn a_32_bit_target() {
    let directory = open_directory();
    let source = directory.path().join("small.s");
    // The program calls pause() for ever.
    std::fs::write(&source, ".globl _start\n_start: movl $29, %eax\nint $0x80\njmp _start\n").expect("a source");
    let program = directory.path().join("small");
    let built = Command::new("gcc").args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&source).output();
    if !built.is_ok_and(|output| output.status.success()) {
        skip!("gcc cannot make 32-bit programs here");
    }
    let mut child = match Command::new(&program).spawn() {
        Ok(child) => child,
        Err(error) => skip!("the kernel runs no 32-bit programs: {error}"),
    };
    let pid = i32::try_from(child.id()).expect("a process id");
    wait_until("it waits", || target::state(pid) == 'S');
    let outcome = tool().run(["count", "-p", &pid.to_string(), "_start"]);
    child.kill().expect("end the target");
    child.wait().expect("wait for the target");
    let _ = outcome.assert_error(4, &["32-bit", "32 bit"]);
}

#[test]
fn held_by_another_ingraft() {
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let first = tool();
    let session = first.count(target.pid(), &["work_0"]);
    // A command with another state directory does not find the engine of the first one.
    let outcome = tool().run(["count", "-p", &target.pid_text(), "work_1"]).assert_error(4, &["ingraft"]);
    assert!(outcome.stderr.contains(&session.pid().to_string()), "the holder is named: {outcome:#?}");
    for second in [&tool(), &first] {
        let outcome = second.run(["detach", "-p", &target.pid_text()]);
        assert_eq!(outcome.status.code(), Some(4), "a living holder is not robbed: {outcome:#?}");
    }
    target.ask("solo 20");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 20);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn nothing_to_detach() {
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let outcome = tool().run(["detach", "-p", &target.pid_text()]).assert_code(0);
    assert!(outcome.all("removed").is_empty());
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_state_directory_that_cannot_be_written() {
    let target = Mutatee::start("threads", &["1"]);
    let pid = target.pid_text();
    for directory in ["/dev/null/state", "/proc/state"] {
        refused(&target, &["count", "-p", &pid, "work_0", "--state-dir", directory], 1, &[directory]);
    }
}

#[test]
fn a_full_disk() {
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let directory = open_directory();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "none"]).arg(directory.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip!("no file system can be mounted here");
    }
    // The file system has only about a page left: directories can be made, but no journal can be written.
    let _ = std::fs::write(directory.path().join("filler"), vec![0_u8; 16 << 10]);
    let target = Mutatee::start("threads", &["1"]);
    let before = Text::of(target.pid());
    let state = directory.path().join("state");
    let outcome = tool().run([
        "count",
        "-p",
        &target.pid_text(),
        "work_0",
        "--state-dir",
        state.to_str().expect("a path"),
        "--for",
        "10ms",
    ]);
    let clean = Text::of(target.pid()) == before && target::arenas(target.pid()) == 0;
    output(Command::new("umount").arg(directory.path()));
    assert!(clean, "{outcome:#?}");
    let _ = outcome.assert_error(1, &["space", "full", "write"]);
}

/// A removal needs no new file, because the target has a copy of its journal.
#[test]
fn a_disk_that_fills_up_does_not_keep_code_in() {
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let directory = open_directory();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(directory.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip!("no file system can be mounted here");
    }
    let state = directory.path().join("state").display().to_string();
    let mut target = Mutatee::start("threads", &["1"]);
    let (pid, before) = (target.pid_text(), Text::of(target.pid()));
    let mut session = tool().start(["count", "-p", &pid, "work_0", "--state-dir", &state]);
    session.wait_for("attached");
    session.kill();
    let woven = Text::of(target.pid()) != before;
    // The first write fills the file system except for a part of it, the last one fails.
    let fill = |n: usize| std::fs::write(directory.path().join(format!("filler{n}")), vec![0_u8; 2 << 20]);
    let full = fill(0).is_err() && fill(1).is_err();
    let single = tool().run(["detach", "-p", &pid, "--state-dir", &state]);
    target.ask("solo 5").assert_right();
    let clean = Text::of(target.pid()) == before && target::arenas(target.pid()) == 0;
    output(Command::new("umount").arg(directory.path()));
    assert!(woven && full && clean, "{woven} {full} {single:#?}");
    let _ = single.assert_code(0).assert_removed();
}

/// In a pid namespace of its own, the command finds no process of another test.
#[test]
fn a_removal_from_all_processes_names_its_state_directory() {
    if !is_root() {
        skip!("only root can make a pid namespace");
    }
    let detach = |format: &str, directory: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", env!("CARGO_BIN_EXE_ingraft"), "detach", "--all"]);
        output(command.args(["--format", format, "--state-dir", directory]).env_remove("INGRAFT_DAEMON"))
    };
    let directory = open_directory();
    let state = directory.path().join("state").display().to_string();
    let looked: serde_json::Value = serde_json::from_str(&detach("json", &state)).expect("one record");
    assert_eq!(looked, serde_json::json!({"type": "looked", "state_dir": state}));
    let text = detach("table", "/proc/state");
    assert!(text.contains("/proc/state"), "a directory that cannot be made: {text}");
}

/// Plans for all blocks of such a program would take many gigabytes and minutes.
#[test]
fn more_code_than_can_be_copied_is_refused_with_its_size() {
    if !have("node") {
        skip!("node is not installed");
    }
    let mut command = Command::new("node");
    command.args(["-e", "require('fs').writeSync(1, 'ready\\n'); setInterval(() => {}, 1000)"]);
    let target = Mutatee::spawn(&mut command);
    let pid = target.pid_text();
    for what in [&["profile", "events", "-p", &pid, "node:*"], &["count", "-p", &pid, "node:*#*", "--until-exit"]] {
        let outcome = tool().run(what).assert_error(3, &["MiB of code"]);
        assert!(outcome.all("attached").is_empty(), "{outcome:#?}");
        assert_eq!(target::signed_arenas(target.pid()), 0);
    }
}

#[test]
fn no_daemon() {
    let target = Mutatee::start("threads", &["1"]);
    let pid = target.pid_text();
    let directory = open_directory();
    let socket = format!("unix:{}/no-daemon", directory.path().display());
    refused(&target, &["count", "-p", &pid, "work_0", "--daemon", &socket], 1, &["ingraftd", "daemon"]);
    refused(
        &target,
        &["count", "-p", &pid, "work_0", "--daemon", "http://127.0.0.1:1"],
        1,
        &["ingraftd", "daemon", "token"],
    );
    let outcome = tool().run(["count", "-p", &pid, "work_0", "--daemon", "ftp://nowhere"]);
    assert_eq!(outcome.status.code(), Some(2), "{outcome:#?}");
}

#[test]
fn hostile_files_on_disk() {
    // The executable of the process is sound, but it maps a library that is damaged in one header field after the other. The analysis must
    // report the parts that it cannot use and continue with the rest.
    let directory = open_directory();
    let good = std::fs::read(program("libplugin.so").expect("gcc")).expect("a library");
    let mut target = Mutatee::start("corner", &[]);
    let pid = target.pid_text();
    for (index, offset) in [0x10_usize, 0x20, 0x28, 0x36, 0x38, 0x3a, 0x3c, 0x3e].into_iter().enumerate() {
        let mut bytes = good.clone();
        bytes[offset..offset + 2].copy_from_slice(&[0xff, 0xff]);
        let path = directory.path().join(format!("bad{index}"));
        std::fs::write(&path, bytes).expect("a damaged file");
        let outcome = tool().run(["count", "main", "--", path.to_str().expect("a path")]);
        assert!(matches!(outcome.status.code(), Some(1..=5)), "{outcome:#?}");
        assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
    }
    let session = tool().count(target.pid(), &["work"]);
    target.ask("work 3");
    assert_eq!(session.interrupt().assert_code(0).calls("work"), 3, "{pid}");
}

/// A metric counts nothing if its flag can be set nowhere, even if its own code is woven.
#[test]
fn a_focus_that_cannot_be_instrumented() {
    let target = Mutatee::start("shapes", &[]);
    let pid = target.pid_text();
    let outcome = tool().run(["functions", "-p", &pid, "shapes:*"]).assert_code(0);
    let Some(name) =
        outcome.all("function").iter().find(|f| f["how"]["entry"] == "refused").and_then(|f| f["function"].as_str())
    else {
        skip!("every function of the target can be counted");
    };
    let definitions = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    let text = "constraint within /Code/* is inclusive;\n\
        resourceList leaf is procedure { items { \"exact5\" }; flavor { unix }; }\n\
        metric inside { name \"inside\"; units u; aggregateOperator sum; style EventCounter; constraint within; \
        base is counter { foreach f in leaf append preInsn f.entry constrained (* inside++; *) } }\n";
    std::fs::write(definitions.path(), text).expect("write a file");
    let path = definitions.path().to_str().expect("a path");
    let pair = format!("inside@/Code/shapes/{name}");
    let watch = ["watch", "-p", &pid, "--for", "100ms", "-I", path, &pair];
    refused(&target, &watch, 3, &[name]);
    let beside = ["watch", "-p", &pid, "--for", "100ms", "-I", path, &pair, "calls@/Code/shapes/exact5"];
    let outcome = tool().run(beside).assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("`inside` at"), "a warning names the pair: {outcome:#?}");
    let marked = |metric: &str| {
        let samples = outcome.all("sample");
        samples.iter().find(|s| s["metric"] == metric).map(|s| s["refused"].clone()).expect("a sample")
    };
    assert_eq!((&marked("inside"), &marked("calls")), (&1.into(), &serde_json::Value::Null));
    let told = outcome.one("refused");
    assert_eq!((&told["metric"], &told["function"]), (&"inside".into(), &name.into()), "{told}");
}

/// A metric is refused if its value could only ever be 0.
#[test]
fn metrics_that_measure_nothing() {
    let target = Mutatee::start("threads", &["1"]);
    let pid = target.pid_text();
    refused(&target, &["watch", "-p", &pid, "latency"], 2, &["focus"]);
    let thread = format!("calls@/Process/{pid}/1");
    refused(&target, &["watch", "-p", &pid, &thread], 3, &["no thread 1"]);
    let own = format!("calls@/Process/{pid}/{pid},/Code/threads/work_0");
    let _ = tool().run(["watch", "-p", &pid, "--for", "50ms", &own]).assert_code(0).assert_removed();
}

#[test]
fn a_module_that_is_not_there_is_named_as_such() {
    let target = Mutatee::start("loads", &["none"]);
    let arguments = ["watch", "-p", &target.pid_text(), "calls@/Code/libplugin.so/plugin_work"];
    let outcome = refused(&target, &arguments, 3, &["no module `libplugin.so`"]);
    assert!(!outcome.stderr.contains("no function"), "{}", outcome.stderr);
}
