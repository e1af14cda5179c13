//! Tests of Go programs whose functions are all measured at once: goroutines end, wait where a signal has suspended them, and recover from
//! panics.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, have, program, scaled, skip, source_directory};

use crate::tool;

/// Variable with the paths of further `go` programs, separated by colons. They are used besides the one in PATH.
const TOOL_CHAINS: &str = "INGRAFT_TEST_GO";

/// Time for which each program is measured.
fn long() -> Duration {
    Duration::from_secs(scaled(6, 600))
}

/// Functions of each round: all functions, the program's own functions, and three of them.
const FUNCTIONS: [&[&str]; 3] = [&["*"], &["main.*"], &["main.spin", "main.fault", "main.deep"]];

/// Inserts and removes measurements in many rounds while the program works.
fn measure(program: &Path) {
    let mut target = Mutatee::spawn(&mut Command::new(program));
    let (pid, tool) = (target.pid(), tool());
    let before = Text::of(pid);
    target.ask("go 1").assert_right();
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < long() || rounds < 2 * FUNCTIONS.len() {
        target.tell("go 1");
        let session = tool.count(pid, FUNCTIONS[rounds % FUNCTIONS.len()]);
        target.reply().assert_right();
        target.ask("go 1").assert_right();
        let _ = session.interrupt().assert_code(0);
        rounds += 1;
    }
    let earlier = target.ask("go 1");
    let session = tool.count(pid, &["main.fault"]);
    let truth = target.ask("go 1");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0);
    let calls = truth.tally("main.fault") - earlier.tally("main.fault");
    assert_eq!(outcome.calls("main.fault"), calls, "after {rounds} rounds");
    println!("{}: {rounds} rounds", program.display());
    end_clean(target, &before);
}

/// Panics unless a Go program is as before a measurement that was removed. Then ends the program.
pub fn end_clean(mut target: Mutatee, before: &Text) {
    let pid = target.pid();
    // A dead signal frame of another thread may look like a saved context, so that an arena stays although nothing leads to it.
    let begin = Instant::now();
    while target::arenas(pid) > 0 && begin.elapsed() < Duration::from_secs(20) {
        target.ask("go 1");
        let _ = tool().run(["detach", "-p", &target.pid_text()]);
    }
    before.assert_in(pid);
    assert_eq!(target::tracer(pid), 0, "nobody traces it");
    assert!(
        target::arenas(pid) == 0 || target::keeps_context_in_arena(pid),
        "an arena is left, and no signal frame keeps it"
    );
    target.ask("go 1").assert_right();
    assert!(target.end().success());
}

fn measure_built(name: &str) {
    match program(name) {
        Ok(program) => measure(&program),
        Err(why) => skip!("{name}: {why}"),
    }
}

#[test]
fn all_functions_of_a_go_program() {
    measure_built("parked");
}

#[test]
fn all_functions_of_a_stripped_go_program() {
    measure_built("parked-stripped");
}

#[test]
fn all_functions_of_a_position_independent_go_program() {
    if scaled(0, 1) == 0 {
        skip!("the whole library of Go has to be compiled anew, which only the long form does");
    }
    measure_built("parked-pie");
}

#[test]
fn all_functions_of_programs_of_other_go_versions() {
    let Some(list) = std::env::var_os(TOOL_CHAINS) else { skip!("{TOOL_CHAINS} names no other tool chain") };
    for go in std::env::split_paths(&list) {
        let directory = ingraft_testing::open_directory();
        let built: PathBuf = directory.path().join("parked");
        let mut command = Command::new(&go);
        command
            .current_dir(source_directory().join("tests/mutatees"))
            .args(["build", "-o"])
            .arg(&built)
            .arg("parked.go");
        command.env("GOCACHE", directory.path().join("cache")).env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
        command.env("GOROOT", go.parent().and_then(Path::parent).expect("bin/go in a tool chain"));
        ingraft_testing::output(&mut command);
        println!("{}", go.display());
        measure(&built);
    }
}

#[test]
fn a_name_without_its_package_leads_to_the_whole_name() {
    if !have("go") {
        skip!("go is not installed");
    }
    let target = Mutatee::start("parked", &[]);
    let outcome = tool().run(["count", "-p", &target.pid_text(), "churn"]).assert_code(3);
    assert!(outcome.stderr.contains("did you mean `parked:main.churn`?"), "{outcome:#?}");
}

#[test]
fn arguments_of_go_functions_are_refused() {
    if !have("go") {
        skip!("go is not installed");
    }
    let target = Mutatee::start("parked", &[]);
    let pid = target.pid_text();
    let by_argument: [&[&str]; 3] = [
        &["print", "-p", &pid, "main.spin", "$arg[0]"],
        &["count", "-p", &pid, "main.spin", "--by", "$arg[0]"],
        &["hist", "-p", &pid, "main.spin", "$arg[1]"],
    ];
    for command in by_argument {
        let outcome = tool().run(command).assert_code(3);
        assert!(outcome.stderr.contains("its arguments are not where C functions have them (Go)"), "{outcome:#?}");
    }
}

#[test]
fn goexit_is_refused_with_its_reason() {
    if !have("go") {
        skip!("go is not installed");
    }
    let target = Mutatee::start("parked", &[]);
    let outcome = tool().run(["functions", "-p", &target.pid_text(), "*"]).assert_code(0);
    let all = outcome.all("function");
    let is_goexit = |name: &str| matches!(name, "runtime.goexit" | "runtime.goexit.abi0");
    let goexit = all.iter().find(|f| f["function"].as_str().is_some_and(is_goexit)).expect("goexit");
    assert_eq!(goexit["how"]["entry"], "refused", "{goexit}");
    let why = goexit["why_not"]["entry"].as_str().expect("a reason");
    assert!(why.contains("+0x1 by a return address that no call made"), "{why}");
    let refused: Vec<_> = all.iter().filter(|f| f["how"]["entry"] == "refused").collect();
    println!("{} of {} functions are refused", refused.len(), all.len());
    assert!(
        all.len() > 1000 && refused.len() * 4 <= all.len(),
        "{} of {} functions are refused",
        refused.len(),
        all.len()
    );
}
