//! Tests of programs that `ingraft` starts and holds before their first instruction. Every call from then on is counted, as a simulator
//! counts them.

use std::collections::BTreeMap;
use std::process::Command;

use ingraft_testing::{have, output, program, skip, source_directory};

use crate::tool;

/// Reads a file of callgrind: returns how often each function is called, and how many calls it makes. Levels of recursion are added up.
pub(crate) fn callgrind(file: &str) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let (mut names, mut called, mut makes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut caller, mut callee) = (String::new(), String::new());
    for line in file.lines() {
        let function = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn="));
        if let Some((id, name)) =
            function.map(|text| text.split_once(' ').map_or((text, None), |(id, name)| (id, Some(name))))
        {
            if let Some(name) = name {
                names.insert(id.to_owned(), name.split('\'').next().unwrap_or(name).to_owned());
            }
            let named = if line.starts_with("cfn=") { &mut callee } else { &mut caller };
            named.clone_from(&names[id]);
        } else if let Some(count) = line.strip_prefix("calls=") {
            let count: u64 = count.split(' ').next().and_then(|text| text.parse().ok()).expect("a number of calls");
            *called.entry(callee.clone()).or_default() += count;
            *makes.entry(caller.clone()).or_default() += count;
        }
    }
    (called, makes)
}

#[test]
fn counts_equal_callgrinds() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("determ").expect("gcc");
    let directory = ingraft_testing::open_directory();
    let file = directory.path().join("calls");
    let status = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", &format!("--callgrind-out-file={}", file.display())])
        .arg(&path)
        .arg("2000")
        .stdout(std::process::Stdio::null())
        .status()
        .expect("run valgrind");
    assert_eq!(status.code(), Some(7));
    let truth = callgrind(&std::fs::read_to_string(&file).expect("callgrind's file")).0;
    let tool = tool();
    let path = path.to_str().expect("a path");
    let outcome = tool.run(["count", "--until-exit", "--own-status", "determ:*", "--", path, "2000"]).assert_code(0);
    for function in ["compare", "hash_step", "hash_text", "fib", "even", "odd", "early", "main"] {
        assert_eq!(outcome.calls(function), truth[function], "{function}");
    }
    assert_eq!(outcome.calls("early"), 2, "constructor and destructor");
    let ended = outcome.one("ended");
    assert_eq!(ended["status"], 7);
    assert!(ended["signal"].is_null());
    // The output has the program's own lines too.
    assert!(outcome.other.iter().any(|line| line.starts_with("result ")), "{outcome:#?}");
}

#[test]
fn library_functions_from_the_first_instruction_on() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("determ").expect("gcc");
    let path = path.to_str().expect("a path");
    let count = ["count", "--until-exit", "--own-status", "libc:qsort", "determ:hash_text", "--", path, "500"];
    let outcome = tool().run(count).assert_code(0);
    assert_eq!(outcome.calls("hash_text"), 500);
    assert_eq!(outcome.calls("qsort"), 1);
}

/// The exit status is that of the program if `ingraft` does not fail, whichever command starts it. The record tells it in any case.
#[test]
fn the_exit_status_is_that_of_the_program() {
    let tool = tool();
    let path = program("determ").expect("gcc");
    let path = path.to_str().expect("a path");
    let trace = tool.state_directory().with_file_name("trace");
    let trace = trace.to_str().expect("a path");
    let commands: [&[&str]; 5] = [
        &["count", "main"],
        &["latency", "main"],
        &["watch", "calls@/Code/determ/main"],
        &["profile", "blocks", "main"],
        &["trace", "main", "-o", trace],
    ];
    for command in commands {
        let outcome = tool.run([command, &["--until-exit", "--", path, "10"]].concat()).assert_code(7);
        assert_eq!(outcome.one("ended")["status"], 7, "{command:?}");
    }
    let outcome = tool.run(["count", "main", "--own-status", "--until-exit", "--", path, "10"]).assert_code(0);
    assert_eq!(outcome.one("ended")["status"], 7);
    let outcome = tool.run(["count", "no_such_function_anywhere", "--", path, "10"]).assert_code(3);
    assert!(outcome.all("ended").is_empty(), "{outcome:#?}");
    let script = "kill -TERM $$";
    let outcome = tool.run(["count", "libc:*", "--", "/bin/sh", "-c", script]).assert_code(128 + 15);
    assert_eq!(outcome.one("ended")["signal"], 15);
    // The program that the started one executes is measured too, and has the status.
    let follow = ["count", "libc:*", "--follow", "exec", "--", "/bin/sh", "-c", "exec /bin/sh -c 'sleep 2; exit 9'"];
    let _ = tool.run(follow).assert_code(9);
    let _ = tool.run(["count", "libc:*", "--for", "100ms", "--", "/bin/sh", "-c", "sleep 1; exit 9"]).assert_code(0);
}

#[test]
fn a_crash_is_reported_and_returned() {
    let mut corner = Command::new("sh");
    corner.arg("-c").arg("echo crash | exec \"$@\"").arg("sh").arg(env!("CARGO_BIN_EXE_ingraft"));
    corner
        .args(["count", "--format", "json", "--until-exit", "corner:work", "--"])
        .arg(program("corner").expect("gcc"));
    let state = ingraft_testing::open_directory();
    corner.env("INGRAFT_STATE_DIR", state.path());
    let outcome = ingraft_testing::Session::start(&mut corner).finish().assert_code(128 + 11);
    assert_eq!(outcome.one("ended")["signal"], 11, "{outcome:#?}");
}

#[test]
fn a_python_script() {
    let python = "/usr/bin/python3.11";
    if !std::path::Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let script = source_directory().join("tests/mutatees/worker.py");
    let plain = output(Command::new("sh").arg("-c").arg(format!("echo work 3 | {python} {}", script.display())));
    let tool = tool();
    let mut counted = Command::new("sh");
    counted.arg("-c").arg("echo work 3 | exec \"$@\"").arg("sh").arg(env!("CARGO_BIN_EXE_ingraft"));
    counted.args(["count", "--format", "json", "--until-exit", "python3.11:*", "--", python]).arg(script);
    counted.env("INGRAFT_STATE_DIR", tool.state_directory());
    let outcome = ingraft_testing::Session::start(&mut counted).finish().assert_code(0);
    assert_eq!(outcome.other, plain.lines().collect::<Vec<_>>(), "the script's output is unchanged");
    assert_eq!(outcome.calls("PyNumber_Power"), 1500);
    assert_eq!(outcome.one("ended")["status"], 0);
}

#[test]
fn what_cannot_be_started() {
    let tool = tool();
    let _ = tool.run(["count", "main", "--", "/nonexistent/program"]).assert_error(3, &["/nonexistent/program"]);
    let _ = tool.run(["count", "main", "--", "/etc/passwd"]).assert_error(3, &["/etc/passwd"]);
    let _ = tool
        .run(["count", "no_such_function_anywhere", "--", "/bin/true"])
        .assert_error(3, &["no_such_function_anywhere"]);
}

#[test]
fn interrupted_it_lets_the_program_go_on() {
    let directory = ingraft_testing::open_directory();
    let marker = directory.path().join("done");
    // The script ends when its directory is removed, at the latest.
    let script = format!(
        "while [ ! -e {0}.go ] && [ -d {1} ]; do :; done; : > {0}",
        marker.display(),
        directory.path().display()
    );
    let mut session = tool().start(["count", "libc:*", "--", "/bin/sh", "-c", &script]);
    let attached = session.wait_for("attached");
    let pid = i32::try_from(attached["pid"].as_i64().expect("a process id")).expect("a process id");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(!outcome.all("count").is_empty());
    assert_eq!(ingraft_testing::target::tracer(pid), 0);
    std::fs::write(format!("{}.go", marker.display()), "").expect("let the script end");
    ingraft_testing::wait_until("the script ends by itself", || marker.exists());
}
