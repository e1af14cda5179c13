//! Tests of docs/tutorial.md: every command on the page runs, and prints the lines of output that the page shows, except for the numbers.
//! The metrics at the beginning of docs/mdl.md measure a program.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ingraft_testing::{BOUND, Mutatee, have, skip, source_directory, wait_until};

use crate::tool;

/// A command of the page, and the output that the page shows below it.
struct Step {
    command: String,
    output: Vec<String>,
}

/// Returns the fenced blocks of a page, each as the words after its opening fence and its text.
fn blocks(page: &str) -> Vec<(&str, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```").filter(|kind| !kind.is_empty()) {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push((kind, text.join("\n") + "\n"));
        }
    }
    found
}

/// Returns the commands of all `console` blocks, in order.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (_, text) in blocks(page).into_iter().filter(|(kind, _)| *kind == "console") {
        for line in text.lines() {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), output: Vec::new() }),
                (None, Some(step)) => step.output.push(line.to_owned()),
                (None, None) => panic!("output before any command: {line}"),
            }
        }
    }
    steps
}

/// Returns the words of a line without the parts that differ from run to run. Numbers become `0`; units, bars and "less than" are left out,
/// and so is all text after the mark at which the page cuts a line.
fn shape(line: &str) -> Vec<String> {
    let line = line.split('…').next().unwrap_or_default();
    // The values of threads differ from run to run.
    let line = line.split("\"threads\":[").next().unwrap_or_default().replace("less than", "");
    let words = line.split(|c: char| c.is_whitespace() || ",;:(){}[]\"".contains(c)).filter(|word| !word.is_empty());
    let words = words.filter(|word| !["ns", "µs", "ms", "s", "%", "<"].contains(word));
    let words = words.filter(|word| !word.starts_with(|c| ('▏'..='█').contains(&c)));
    let number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let mut shape: Vec<String> = words.map(|w| if number(w) { "0".to_owned() } else { w.to_owned() }).collect();
    // A number whose thousands are separated is one number.
    shape.dedup_by(|a, b| a == "0" && b == "0");
    // The page may have seen one of what are several now, or the other way round.
    for at in 1..shape.len() {
        if shape[at - 1] == "0" && ["call", "load", "thread", "point", "module", "function"].contains(&&*shape[at]) {
            shape[at].push('s');
        }
    }
    shape
}

/// A line without the part of a hold in which there was no processor: it is told on a busy machine only.
fn without_waits(line: &str) -> String {
    let parts = line
        .split_once(", of which ")
        .and_then(|(before, rest)| Some((before, rest.split_once(" without a processor")?.1)));
    parts.map_or_else(|| line.to_owned(), |(before, after)| format!("{before}{after}"))
}

/// Returns the shapes of the page's lines that the output lacks. A line that the page cuts, or that may continue with the calls in
/// progress, only has to be the beginning of a line of the output.
fn missing(step: &Step, output: &str) -> Vec<Vec<String>> {
    let told: BTreeSet<Vec<String>> = output.lines().map(|line| shape(&without_waits(line))).collect();
    let told =
        |wanted: &[String], cut: bool| told.contains(wanted) || cut && told.iter().any(|line| line.starts_with(wanted));
    let wanted = step.output.iter().map(|line| (shape(line), line.contains('…') || line.ends_with(" known)")));
    wanted.filter(|(wanted, cut)| !wanted.is_empty() && !told(wanted, *cut)).map(|(wanted, _)| wanted).collect()
}

/// Programs that the page leaves running; they end with the test.
#[derive(Default)]
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The kill fails if the program has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns a port of the loopback that is free now.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of the loopback");
    listener.local_addr().expect("its address").port().to_string()
}

#[test]
fn every_command_of_the_tutorial_does_what_the_page_shows() {
    for program in ["gcc", "sh", "sed", "grep"] {
        if !have(program) {
            skip!("{program} is not installed");
        }
    }
    let page = std::fs::read_to_string(source_directory().join("docs/tutorial.md")).expect("docs/tutorial.md");
    let directory = tempfile::tempdir().expect("a directory");
    for (kind, text) in blocks(&page) {
        match kind {
            "c" => std::fs::write(directory.path().join("shop.c"), text).expect("write shop.c"),
            "mdl" => std::fs::write(directory.path().join("shop.mdl"), text).expect("write shop.mdl"),
            _ => {}
        }
    }
    let steps = steps(&page);
    assert!(steps.len() > 12, "the commands of the page were not found");

    let program = Path::new(env!("CARGO_BIN_EXE_ingraft"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().expect("a directory").display());
    let tool = tool();
    let ports = [("7070", free_port()), ("7071", free_port())];
    let mut running = Running::default();
    let mut server = None;
    for step in &steps {
        let mut command = step.command.clone();
        for (shown, free) in &ports {
            command = command.replace(shown, free);
        }
        if let Some(pid) = server {
            // The machine may run more programs of this name.
            command = command.replace("-n shop", &format!("-p {pid}"));
        }
        let shell = |command: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).current_dir(directory.path()).stdin(Stdio::null());
            shell.env("PATH", &path).env("INGRAFT_STATE_DIR", tool.state_directory()).env_remove("INGRAFT_DAEMON");
            shell
        };
        if let Some(left) = command.strip_suffix('&') {
            // Without `exec`, the child would be the shell, and killing the child would not end the program.
            let left = if left.contains(';') { left.to_owned() } else { format!("exec {left}") };
            let child = shell(&left).stdout(Stdio::null()).spawn().unwrap_or_else(|e| panic!("{left}: {e}"));
            if step.command.starts_with("./shop") {
                server = Some(child.id());
            }
            running.0.push(child);
            continue;
        }
        if step.command == "kill -INT $!" {
            let last = running.0.last_mut().expect("a program runs");
            let told = || std::fs::read_to_string(directory.path().join("callers.txt")).unwrap_or_default();
            // The process is listed as soon as the engine holds it.
            wait_until("the measurement is in", || told().contains(" in after "));
            let status = shell(&format!("kill -INT {}", last.id())).status().expect("run kill");
            assert!(status.success());
            assert_eq!(last.wait().expect("wait for ingraft").code(), Some(0), "{}", step.command);
            assert!(told().contains("removed"), "{}", told());
            continue;
        }
        // A program that was started in the background may not be ready yet.
        let waits = step.command.starts_with("./customers") || step.command == "ingraft status";
        let start = Instant::now();
        loop {
            let output = shell(&command).stderr(Stdio::inherit()).output().unwrap_or_else(|e| panic!("{command}: {e}"));
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            if step.command == "ingraft status" {
                let ours = server.expect("the server runs").to_string();
                let mine = |line: &&str| line.split_whitespace().next().is_some_and(|pid| pid == "PID" || pid == ours);
                text = text.lines().filter(mine).fold(String::new(), |text, line| text + line + "\n");
            }
            let missing = missing(step, &text);
            if output.status.success() && missing.is_empty() {
                break;
            }
            assert!(
                waits && start.elapsed() < BOUND,
                "{command}: {}; lines of the page that did not come: {missing:#?}\nwhat came:\n{text}",
                output.status
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn the_five_metrics_of_the_mdl_page_measure_a_program() {
    let page = std::fs::read_to_string(source_directory().join("docs/mdl.md")).expect("docs/mdl.md");
    let mut target = Mutatee::start("threads", &["1"]);
    let tool = tool();
    let mut seen = Vec::new();
    for (_, text) in blocks(&page).into_iter().filter(|(kind, _)| *kind == "mdl").take(5) {
        let name = text.lines().find_map(|line| line.strip_prefix("metric ")?.strip_suffix(" {"));
        let name = name.unwrap_or_else(|| panic!("no metric in\n{text}")).to_owned();
        let directory = ingraft_testing::open_directory();
        let file = directory.path().join("my.mdl");
        std::fs::write(&file, text).expect("write a definition");
        let file = file.to_str().expect("a path");
        let mut session = tool.start(["watch", "-p", &target.pid_text(), "-I", file, &name]);
        session.wait_for("attached");
        // The target reads this question and writes its answer.
        target.ask("solo 10");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let samples = outcome.all("sample");
        let last = samples.last().unwrap_or_else(|| panic!("no value of {name}"));
        if ["small_writes", "written", "reads_by_file"].contains(&name.as_str()) {
            assert!(last["value"].as_i64().is_some_and(|value| value > 0), "{last}");
        }
        seen.push(name);
    }
    assert_eq!(seen, ["small_writes", "written", "malloc_sizes", "reads_by_file", "time_to_disk"]);
}

#[test]
fn lines_are_compared_without_their_numbers() {
    let shown = "find_price  shop  3,707   2.9 s  33.0 %   782 µs   278 ns  …";
    let came = "find_price  shop    907  2.91 s  33.1 %  1.2 ms   300 ns  3 ms";
    let step = |line: &str| Step { command: String::new(), output: vec![line.to_owned()] };
    assert!(missing(&step(shown), came).is_empty());
    assert_eq!(missing(&step("other  shop  1"), came).len(), 1);
    assert!(
        missing(&step("process 1: cost less than 0.01 % of one processor"), "process 22: cost 0.02 % of one processor")
            .is_empty()
    );
}
