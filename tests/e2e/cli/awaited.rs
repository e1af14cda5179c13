//! Tests of functions in libraries that are loaded later. If a request names the module, the command waits; a name that nothing has is
//! reported.

use std::process::Command;
use std::time::{Duration, Instant};

use ingraft_model::layout::header;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Session, output, program, skip, wait_until};

use crate::tool;

fn path(name: &str) -> String {
    program(name).expect("gcc").to_str().expect("a path").to_owned()
}

#[test]
fn a_running_program_is_waited_for_where_that_is_asked() {
    let mut target = Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let functions = ["libplugin:plugin_work", "libplugin:plugin_born"];
    let refused = tool().run(["count", "-p", &pid, functions[0]]).assert_error(3, &["libplugin"]);
    assert!(refused.stderr.contains("--wait"), "{}", refused.stderr);
    let mut session = tool().start(["count", "-p", &pid, "--wait", "10s", functions[0], functions[1]]);
    session.wait_for("attached");
    target.ask("open");
    let truth = target.ask("call 13");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.stderr.contains("waiting for libplugin"), "{}", outcome.stderr);
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    assert_eq!(outcome.calls("plugin_born"), 1, "its constructor is counted");
    assert!(outcome.all("count").iter().all(|count| count["exact_since_ns"].is_null()), "{outcome:#?}");
    target.ask("close");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn waiting_does_not_hide_a_wrong_name() {
    let target = Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")]);
    let (before, pid) = (Text::of(target.pid()), target.pid_text());
    let wait = |what: &[&str]| tool().run([&["count", "-p", &pid, "--wait", "10s", "--for", "10ms"], what].concat());
    // The module is loaded, but has no such function.
    let _ = wait(&["loads:local_wrok"]).assert_error(3, &["local_wrok"]);
    let _ = wait(&["local_wrok"]).assert_error(3, &["local_wrok"]);
    // No module of this name is ever loaded, and one module has a similar name.
    let outcome = wait(&["libcc:malloc"]).assert_code(3);
    assert!(outcome.stderr.contains("waiting for libcc") && outcome.stderr.contains("`libc`"), "{}", outcome.stderr);
    let outcome = wait(&["libcc:malloc", "loads:local_work"]).assert_code(0);
    assert!(outcome.stderr.contains("libcc:malloc was not measured"), "{}", outcome.stderr);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_started_program_is_always_waited_for() {
    // This is the interpreter of the system; other programs named python3 may be scripts that start it.
    const PYTHON: &str = "/usr/bin/python3";
    if !std::path::Path::new(PYTHON).exists() {
        skip!("{PYTHON} is not there");
    }
    let script = format!(
        "import ctypes\nlibrary = ctypes.CDLL({:?})\nfor i in range(9): library.plugin_work(i)",
        path("libplugin.so")
    );
    let arguments = ["count", "--until-exit", "libplugin:*", "--", PYTHON, "-c", &script];
    let outcome = tool().run(arguments).assert_code(0);
    assert!(outcome.stderr.contains("waiting for libplugin"), "{}", outcome.stderr);
    assert_eq!(outcome.calls("plugin_work"), 9);
    assert_eq!(outcome.calls("plugin_born"), 1, "its constructor is counted");
}

#[test]
fn a_started_program_that_never_loads_it_is_an_error() {
    let outcome = tool().run(["count", "--until-exit", "libnever:*", "--", "true"]).assert_code(3);
    assert!(outcome.stderr.contains("waiting for libnever"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("nothing was measured"), "{}", outcome.stderr);
    let _ = tool().run(["count", "--until-exit", "true:no_such_function", "--", "true"]).assert_code(3);
}

/// The functions of the large library. To weave them all takes longer than a thread waits for a dead engine.
const ALL: &str = "libbulk*:*";

/// A program that opens a large library at once and calls `f0` 1000 times, `f1` 2000 times and `f2` 3000 times, without waiting for anybody.
struct Opening {
    arguments: Vec<String>,
    directory: tempfile::TempDir,
}

impl Opening {
    fn new(how: &str) -> Opening {
        let directory = ingraft_testing::open_directory();
        let report = directory.path().join("report");
        let report = report.to_str().expect("a path");
        // The word that says whether threads are asked to wait.
        let listening = header::LISTENING.to_string();
        let words = ["--", &path("opens"), &path("libbulk.so"), "1000", report, how, &listening];
        Opening { arguments: words.into_iter().map(str::to_owned).collect(), directory }
    }

    fn count<'a>(&'a self, functions: &'a str, options: &[&'a str]) -> Vec<&'a str> {
        let command = self.arguments.iter().map(String::as_str);
        ["count", functions].into_iter().chain(options.iter().copied()).chain(command).collect()
    }

    /// Starts to count all functions of the library, and waits until the program waits at the loader's hook. Returns the program's process id.
    fn start(&self) -> (Session, String) {
        let mut session = tool().start(self.count(ALL, &[]));
        let pid = session.wait_for("attached")["pid"].to_string();
        // The program makes no other call of futex(2).
        let call = || std::fs::read_to_string(format!("/proc/{pid}/syscall")).expect("the program runs");
        wait_until("it waits", || call().starts_with("202 "));
        (session, pid)
    }

    /// Waits until the program has ended normally, after calls with right results.
    fn assert_done(&self) {
        let report = self.directory.path().join("report");
        wait_until("the program is done", || std::fs::read_to_string(&report).is_ok_and(|text| text == "wrong 0\n"));
    }
}

/// Returns whether the counts of a function are exact since the beginning.
fn is_exact(outcome: &Outcome, function: &str) -> bool {
    let all = outcome.all("count");
    let count = all.into_iter().find(|count| count["function"] == function);
    count.unwrap_or_else(|| panic!("no count of {function}: {}", outcome.stderr))["exact_since_ns"].is_null()
}

#[test]
fn a_started_program_waits_while_its_library_is_analysed() {
    for functions in ["libbulk*:f*", ALL] {
        let opening = Opening::new("");
        let outcome = tool().run(opening.count(functions, &["--until-exit"])).assert_code(0);
        opening.assert_done();
        for (function, calls) in [("f0", 1000), ("f1", 2000), ("f2", 3000)] {
            assert_eq!(outcome.calls(function), calls, "{function}");
            assert!(is_exact(&outcome, function), "{function}: {}", outcome.stderr);
        }
    }
}

#[test]
fn a_started_program_waits_no_longer_than_asked() {
    // The program calls `f0` once, and waits until its code is changed. The analysis takes longer than it would wait for a dead engine.
    let opening = Opening::new("late");
    let outcome = tool().run(opening.count(ALL, &["--until-exit", "--wait", "1ms"])).assert_code(0);
    opening.assert_done();
    assert_eq!(outcome.calls("f0"), 1000, "one call came too early");
    assert!(!is_exact(&outcome, "f0"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("is exact since"), "{}", outcome.stderr);
}

#[test]
fn a_started_program_goes_on_when_the_engine_is_killed() {
    let opening = Opening::new("");
    let (session, pid) = opening.start();
    session.kill();
    opening.assert_done();
    // The process is gone, or nobody has asked for its exit status yet.
    let end = || std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    wait_until("the program has ended", end);
}

#[test]
fn a_started_program_goes_on_when_the_command_is_interrupted() {
    let opening = Opening::new("");
    let (session, _) = opening.start();
    let outcome = session.interrupt().assert_removed();
    opening.assert_done();
    for count in outcome.all("count") {
        assert!(count["exact_since_ns"].is_u64(), "{count}");
    }
}

#[test]
fn a_started_program_that_forbids_the_wait_does_not_wait() {
    let opening = Opening::new("filter");
    let outcome = tool().run(opening.count("libbulk*:f*", &["--until-exit", "--own-status"]));
    opening.assert_done();
    let ended = outcome.one("ended");
    assert_eq!((&ended["status"], ended["signal"].is_null()), (&0.into(), true), "{outcome:#?}");
}

/// Builds a program that needs many libraries, each of which has a constructor that calls a function.
fn crowd(directory: &std::path::Path, many: usize) -> String {
    std::fs::write(directory.join("main.c"), "int main(void) { return 0; }").expect("a source");
    let mut build = Command::new("gcc");
    build.current_dir(directory).args(["-Wl,--no-as-needed", "-o", "crowd", "main.c"]);
    for n in 0..many {
        let name = format!("./lib{n}.so");
        std::fs::copy(path("libplugin.so"), directory.join(&name)).expect("a copy");
        build.arg(name);
    }
    output(&mut build);
    directory.join("crowd").to_str().expect("a path").to_owned()
}

/// Returns the time of the shortest of five runs, because other work on the machine only makes runs longer.
fn shortest(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        run();
        begin.elapsed()
    };
    (0..5).map(time).min().expect("some runs")
}

#[test]
fn a_program_with_many_libraries_is_held_few_times() {
    const MANY: usize = 200;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = crowd(directory.path(), MANY);
    let run = |functions: &str| {
        let mut command = tool().command(["count", "--until-exit", functions, "--", &program]);
        command.current_dir(directory.path());
        Session::start(&mut command).finish().assert_code(0)
    };
    let outcome = run("*:plugin_born");
    assert_eq!(outcome.all("count").len(), MANY);
    assert_eq!(outcome.counts()["plugin_born"], MANY as u64, "every constructor is counted");
    // The time for a program without libraries is not counted for the libraries.
    let alone = shortest(|| drop(tool().run(["count", "--until-exit", "true:*", "--", "true"])));
    let own = shortest(|| drop(output(Command::new(&program).current_dir(directory.path()))));
    let measured = shortest(|| drop(run("main")));
    let more = measured.saturating_sub(alone);
    // If each library were reported for itself, it would take some 10 ms. Switches between processes take time that `own` does not show.
    let allowed = own * 8 + Duration::from_millis(MANY as u64);
    assert!(more < allowed, "{measured:?}; without libraries {alone:?}; its own {own:?}");
}
