//! Tests of programs that write to the same file as the records about them: no record is on a line of the program, and the program writes on
//! after the command has ended.

use std::io::Read;
use std::process::{Command, Stdio};

use ingraft_testing::{have, open_directory, skip};
use serde_json::Value;

use crate::tool;

/// Checks that each line is a record or a line of the program. Returns the types of the records, and the lines of the program.
fn told_apart(text: &str) -> (Vec<String>, Vec<&str>) {
    let (mut types, mut others) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(record) => types.push(record["type"].as_str().expect("a type").to_owned()),
            Err(_) => {
                assert!(!line.contains("{\"type\""), "a record on a line of the program: {line}\n{text}");
                others.push(line);
            }
        }
    }
    (types, others)
}

/// Returns a shell that is measured while it runs this script.
fn measured(script: &str, flags: &[&str]) -> Command {
    let fixed = ["watch", "calls@/Code/libc.so.6/write", "--interval", "10ms"];
    tool().command(fixed.iter().chain(flags).chain(&["--", "/bin/sh", "-c", script]))
}

#[test]
fn records_are_on_lines_of_their_own() {
    let directory = open_directory();
    let script = "for i in 1 2 3 4 5; do printf a; sleep 0.1; printf 'b\\n'; sleep 0.1; done; printf last";
    let own = ["ab"; 5].into_iter().chain(["last"]).collect::<Vec<_>>();
    // Into a pipe, into a file, and with the standard error in the same pipe.
    let output = measured(script, &[]).output().expect("run ingraft");
    let text = String::from_utf8(output.stdout).expect("text");
    let (types, others) = told_apart(&text);
    assert_eq!(others, own, "{text}");
    assert!(types.iter().filter(|of| *of == "sample").count() > 5, "{types:?}");
    assert_eq!(types.last().map(String::as_str), Some("removed"));

    let path = directory.path().join("all");
    let file = std::fs::File::create(&path).expect("a file");
    assert!(measured(script, &[]).stdout(file).status().expect("run ingraft").success());
    let text = std::fs::read_to_string(&path).expect("the file");
    assert_eq!(told_apart(&text).1, own, "{text}");

    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let to_both = script.replace("printf a", "printf a >&2");
    let mut command = measured(&to_both, &[]);
    command.stdout(writer.try_clone().expect("a pipe")).stderr(writer);
    let mut child = command.spawn().expect("run ingraft");
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert!(child.wait().expect("it ends").success());
    assert_eq!(told_apart(&text).1, own, "{text}");
}

/// The program keeps its output if the command ends before it, and if the command is killed.
#[test]
fn the_program_writes_on() {
    let directory = open_directory();
    for how in ["interrupt", "kill"] {
        let go = directory.path().join(how);
        let script = format!(
            "while [ ! -e {0}.begin ] && [ -d {1} ]; do sleep 0.01; done; printf begun; while [ ! -e {0} ] && [ -d {1} ]; do sleep 0.01; done; echo; echo on",
            go.display(),
            directory.path().display()
        );
        let mut child = measured(&script, &[]).stdout(Stdio::piped()).spawn().expect("run ingraft");
        let mut output = child.stdout.take().expect("piped");
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        // Once the program is in its line, records wait for the end of the line, or of the command.
        for word in [&b"\"attached\""[..], b"begun"] {
            while !text.windows(word.len()).any(|part| part == word) {
                let read = output.read(&mut part).expect("the output");
                assert!(read > 0, "{}", String::from_utf8_lossy(&text));
                text.extend_from_slice(&part[..read]);
            }
            std::fs::write(format!("{}.begin", go.display()), "").expect("let the line begin");
        }
        if how == "kill" {
            child.kill().expect("kill");
        } else {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("a signal");
        }
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), (how == "interrupt").then_some(0), "{status:?}");
        std::fs::write(&go, "").expect("let the program end");
        output.read_to_end(&mut text).expect("the output");
        let text = String::from_utf8(text).expect("text");
        let (_, others) = told_apart(&text);
        assert!(others.starts_with(&["begun"]) && others.ends_with(&["on"]), "{how}: {text}");
    }
}

#[test]
fn records_go_to_a_descriptor() {
    let directory = open_directory();
    let (records, lines) = (directory.path().join("records"), directory.path().join("lines"));
    let script = "[ -e /proc/self/fd/7 ] && echo inherited; printf own";
    let run = |redirection: &str, flags: &[&str]| {
        let inner = measured(script, flags);
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("exec \"$@\" {redirection}"))
            .arg("sh")
            .arg(inner.get_program())
            .args(inner.get_args());
        for (name, value) in inner.get_envs().filter_map(|(name, value)| Some((name, value?))) {
            command.env(name, value);
        }
        command.env("RECORDS", &records).env("LINES_OF_IT", &lines).output().expect("run a shell")
    };
    let output = run("7>\"$RECORDS\" >\"$LINES_OF_IT\"", &["--record-fd", "7"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&lines).expect("a file"), "own");
    let text = std::fs::read_to_string(&records).expect("a file");
    let (types, others) = told_apart(&text);
    assert!(others.is_empty() && types.last().is_some_and(|of| of == "removed"), "{text}");
    for (redirection, flags, word) in [
        ("", &["--record-fd", "7"][..], "descriptor 7"),
        ("7</dev/null", &["--record-fd", "7"], "reading"),
        ("7>&1", &["--record-fd", "7", "-o", "x"], "-o and --record-fd"),
    ] {
        let output = run(redirection, flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(word), "{output:?}");
    }
}

/// On a terminal, a program may have left the cursor anywhere, so each record begins a line.
#[test]
fn records_begin_a_line_on_a_terminal() {
    if !have("script") {
        skip!("no script (util-linux)");
    }
    let inner = measured("[ -t 1 ] && printf own; sleep 0.1", &[]);
    let words = std::iter::once(inner.get_program()).chain(inner.get_args());
    let line: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-c", &line.join(" "), "/dev/null"]).env("SHELL", "/bin/sh").stdin(Stdio::null());
    for (name, value) in inner.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    let output = command.output().expect("run script");
    let text = String::from_utf8(output.stdout).expect("text");
    let (types, mut others) = told_apart(&text);
    others.retain(|line| !line.trim().is_empty());
    assert_eq!(others.iter().map(|line| line.trim()).collect::<Vec<_>>(), ["own"], "{text}");
    assert!(types.len() > 3, "{text}");
}
