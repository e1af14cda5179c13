//! Tests of libraries that are loaded and unloaded while they are measured: their counts stay, and nothing is written to their former
//! addresses.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, Tool, program, scaled, skip, wait_until};
use nix::sys::signal::Signal;

use crate::tool;

/// Starts the target program with the library that it loads, and another library of the same size.
fn loads() -> Mutatee {
    let path = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")])
}

/// Returns the first bytes of `plugin_work` in a target.
fn head(pid: i32, answer: &Reply) -> Option<[u8; 16]> {
    let at = u64::from_str_radix(answer.after("at"), 16).expect("an address");
    let mut bytes = [0; 16];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn is_woven(pid: i32, answer: &Reply) -> bool {
    // The springboard lies behind the first instruction, which has at most eight bytes in these libraries.
    head(pid, answer).is_some_and(|bytes| bytes[..9].contains(&0xe9))
}

/// Returns the time from which on a count of a function is exact; null means since the insertion.
fn exact_since<'a>(outcome: &'a Outcome, function: &str) -> &'a serde_json::Value {
    let counts = outcome.all("count");
    let count = counts.iter().find(|c| c["function"] == function).expect("a count");
    &count["exact_since_ns"]
}

#[test]
fn one_that_comes_back_counts_on() {
    let mut target = loads();
    let opened = target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "libplugin:plugin_born"]);
    assert!(is_woven(target.pid(), &opened));
    let mut size = None;
    for round in 0..scaled(60, 200) {
        target.ask("call 50").assert_right();
        target.ask("close").assert_right();
        let opened = target.ask("open");
        assert!(is_woven(target.pid(), &opened), "before anybody can call it");
        // By then the first arena is full, and the next one is in use.
        if round == 40 {
            size = Some(Size::of(target.pid()));
        }
    }
    let (first, last) = (size.expect("forty rounds"), Size::of(target.pid()));
    assert!(last.maps <= first.maps, "mappings: {first:?} grew to {last:?}");
    assert!(last.resident <= first.resident + 512, "memory: {first:?} grew to {last:?}");
    let truth = target.ask("call 13");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    // The constructor ran for the first time before the measurement.
    assert_eq!(outcome.calls("plugin_born"), truth.tally("plugin_born") - 1);
    for function in ["plugin_work", "plugin_born"] {
        assert!(exact_since(&outcome, function).is_null(), "{function}");
    }
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 20").assert_right();
}

/// Code in the library remembers an argument of a call, while code in the program remembers the beginning of a call.
#[test]
fn code_of_one_that_comes_later_has_its_own_variables() {
    let mut target = loads();
    let definition = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/mdl/latecomer.mdl");
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "-I", definition, "remembered", "--max-overhead", "10000"]);
    session.wait_for("attached");
    target.ask("call 300").assert_right();
    let mut arguments = 0;
    for n in [70, 40, 90] {
        let opened = target.ask("open");
        assert!(is_woven(target.pid(), &opened), "before anybody can call it");
        target.ask(&format!("call {n}")).assert_right();
        arguments += n * (n - 1) / 2;
        target.ask("close").assert_right();
    }
    let truth = target.ask("call 5");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let last = samples.last().expect("a sample");
    assert_eq!(last["value"], truth.tally("local_work") * 1_000_000 + arguments);
    for key in ["left", "unseen", "unrecorded"] {
        assert_eq!(last[key].as_u64().unwrap_or(0), 0, "{last:#}");
    }
    target.ask("call 20").assert_right();
}

#[test]
fn a_metric_is_exact_over_many_lives_of_a_library() {
    let mut target = loads();
    target.ask("open").assert_right();
    let pairs = [
        "calls@/Code/libplugin/plugin_work",
        "calls@/Code/libplugin/plugin_born",
        "calls@/Code/loads/local_work",
        "wall_time@/Code/libplugin/plugin_work",
    ];
    let tool = tool();
    let pid = target.pid_text();
    let mut session = tool.start(["watch", "-p", &pid, "--max-overhead", "10000"].into_iter().chain(pairs));
    session.wait_for("attached");
    target.ask("close").assert_right();
    // The first rounds make resources that later rounds use again.
    target.ask("cycle 10 20").assert_right();
    let (of_target, of_engine) = (target.pid(), session.pid());
    let sizes = || (Size::of(of_target), target::arena_bytes(of_target), Size::of(of_engine));
    let first = sizes();
    let truth = target.ask(&format!("cycle {} 20", scaled(50, 1000)));
    truth.assert_right();
    let last = sizes();
    // Adjacent mappings count as one.
    assert!(last.0.maps <= first.0.maps + 2 && last.0.files <= first.0.files, "the target: {first:?} grew to {last:?}");
    // Code of an unloaded library may wait for its memory to be freed while the code for the next load is made.
    assert!(last.1 <= first.1 + (32 << 10), "arenas: {first:?} grew to {last:?}");
    // The engine may be reading the library and other files at this moment.
    wait_until("the engine has closed its files", || Size::of(of_engine).files <= first.2.files);
    assert!(last.2.maps <= first.2.maps + 4, "the engine: {first:?} grew to {last:?}");
    let grown = [(first.0, last.0, 512), (first.2, last.2, 8 << 10)];
    for (first, last, most) in grown {
        assert!(last.resident <= first.resident + most, "memory: {first:?} grew to {last:?}");
    }
    let journal = journal_bytes(&tool);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let last = |metric: &str, function: &str| {
        let focus = format!("/Code/libplugin/{function}");
        let samples = outcome.all("sample");
        let last = samples.iter().rfind(|s| s["metric"] == metric && s["focus"] == focus.as_str());
        last.and_then(|s| s["value"].as_u64()).expect("a value")
    };
    assert_eq!(last("calls", "plugin_work"), truth.tally("plugin_work"));
    assert_eq!(last("calls", "plugin_born"), truth.tally("plugin_born") - 1);
    assert!(last("wall_time", "plugin_work") > 0);
    assert!(journal < 8 << 20, "the journal has {journal} bytes");
    assert_eq!(target::arenas(target.pid()), 0);
}

/// Returns the size of a tool's journals in bytes.
fn journal_bytes(tool: &Tool) -> u64 {
    let files = std::fs::read_dir(tool.state_directory().join("journal")).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Stops an engine by a signal, and waits until it has stopped.
fn stop(session: &Session) {
    session.signal(Signal::SIGSTOP);
    let stopped = || target::threads(session.pid()).into_iter().all(|tid| target::state(tid) == 'T');
    wait_until("it is stopped", stopped);
}

#[test]
fn an_engine_that_does_not_answer_costs_one_delay() {
    let mut target = loads();
    target.ask("open").assert_right();
    let tool = tool();
    let session = tool.count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("close").assert_right();
    stop(&session);
    let begin = Instant::now();
    let opened = target.ask("open");
    assert!(begin.elapsed() >= Duration::from_millis(200), "it waited");
    assert!(!is_woven(target.pid(), &opened));
    target.ask("call 10").assert_right();
    // The target does not wait any more for the stopped engine.
    let begin = Instant::now();
    target.ask("cycle 20 1").assert_right();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    session.signal(Signal::SIGCONT);
    wait_until("the library is woven", || is_woven(target.pid(), &opened));
    target.ask("call 7").assert_right();
    // The engine answers again, so the target waits for it again.
    target.ask("close").assert_right();
    let opened = target.ask("open");
    assert!(is_woven(target.pid(), &opened));
    target.ask("call 5").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("plugin_work"), 12);
    assert!(exact_since(&outcome, "plugin_work").is_u64(), "some calls came too early");
    assert_eq!(outcome.calls("local_work"), 22);
}

#[test]
fn what_came_and_went_while_nobody_answered_is_told() {
    let mut target = loads();
    target.ask("open").assert_right();
    let tool = tool();
    let session = tool.count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("close").assert_right();
    stop(&session);
    target.ask("cycle 20 3").assert_right();
    session.signal(Signal::SIGCONT);
    wait_until("it answers again", || {
        let opened = target.ask("open");
        let answers = is_woven(target.pid(), &opened);
        if !answers {
            target.ask("close").assert_right();
        }
        answers
    });
    target.ask("call 5").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("plugin_work"), 5);
    assert!(exact_since(&outcome, "plugin_work").is_u64(), "its calls were not counted for a while: {outcome:#?}");
    assert!(exact_since(&outcome, "local_work").is_null());
    assert!(outcome.stderr.contains("is exact since"), "{}", outcome.stderr);
}

#[test]
fn an_engine_that_dies_while_a_thread_waits_for_it() {
    let mut target = loads();
    target.ask("open").assert_right();
    target.ask("close").assert_right();
    let tool = tool();
    let session = tool.count(target.pid(), &["local_work"]);
    stop(&session);
    target.tell("open");
    wait_until("it waits", || target::waits_in(target.pid(), 202));
    session.kill();
    target.reply().assert_right();
    target.ask("call 10").assert_right();
    tool.detach(target.pid());
    assert_eq!(target::arenas(target.pid()), 0);
    let truth = target.ask("cycle 20 20");
    truth.assert_right();
}

#[test]
fn one_that_comes_and_goes_all_the_time() {
    let mut target = loads();
    target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("close").assert_right();
    let mut truth = target.ask("cycle 1000 20");
    for _ in 1..scaled(2, 20) {
        truth.assert_right();
        truth = target.ask("cycle 1000 20");
    }
    truth.assert_right();
    target.ask("call 30").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.calls("plugin_work") <= truth.tally("plugin_work"), "never more than there were");
    assert_eq!(outcome.calls("local_work"), 30);
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("cycle 100 20").assert_right();
}

#[test]
fn another_library_at_its_addresses_is_left_alone() {
    let mut target = loads();
    target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    let mut truth = target.ask("call 30");
    let mut same_place = 0;
    for _ in 0..2 {
        target.ask("close").assert_right();
        let other = target.ask("other");
        let bytes = head(target.pid(), &other);
        target.ask("call 40").assert_right();
        assert_eq!(head(target.pid(), &other), bytes, "untouched");
        assert!(!is_woven(target.pid(), &other));
        target.ask("call 40").assert_right();
        target.ask("close").assert_right();
        let opened = target.ask("open");
        wait_until("the library is woven", || is_woven(target.pid(), &opened));
        same_place += u64::from(opened.after("at") == other.after("at"));
        truth = target.ask("call 11");
        truth.assert_right();
    }
    assert!(same_place > 0, "the libraries never shared addresses: nothing was tested");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("local_work"), truth.tally("local_work"));
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    target.ask("call 10").assert_right();
}

#[test]
fn an_engine_that_dies_leaves_nothing_when_the_library_was_replaced() {
    let mut target = loads();
    let tool = tool();
    target.ask("open");
    let session = tool.count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("call 30").assert_right();
    session.kill();
    target.ask("close").assert_right();
    let other = target.ask("other");
    let bytes = head(target.pid(), &other);
    tool.detach(target.pid());
    assert_eq!(head(target.pid(), &other), bytes, "untouched");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 30").assert_right();
}

#[test]
fn another_measurement_ends_while_the_library_is_gone() {
    let mut target = loads();
    let tool = tool();
    target.ask("open");
    let session = tool.count(target.pid(), &["libplugin:plugin_work"]);
    target.ask("call 30").assert_right();
    target.ask("close").assert_right();
    let other = target.ask("other");
    let bytes = head(target.pid(), &other);
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.calls("plugin_work"), 30);
    assert_eq!(outcome.one("removed")["text_restored"], true);
    assert_eq!(head(target.pid(), &other), bytes, "untouched");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 30").assert_right();
}

/// Tests a measurement with a pattern only, while a library with matching functions is loaded.
fn grows(interval: &str) {
    let mut target = loads();
    let mut session = tool().start(["count", "-p", &target.pid_text(), "--interval", interval, "*:*_work"]);
    session.wait_for("attached");
    target.ask("call 10").assert_right();
    target.ask("open").assert_right();
    let truth = target.ask("call 25");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("local_work"), truth.tally("local_work"));
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    assert!(exact_since(&outcome, "plugin_work").is_null());
}

#[test]
fn a_pattern_matches_libraries_that_are_loaded_later() {
    grows("20ms");
}

#[test]
fn what_a_pattern_matched_after_the_last_reading_comes_with_the_removal() {
    grows("1h");
}

/// The library's constructor takes the gs base, by which woven code finds its counters. All code is removed before the constructor runs.
#[test]
fn one_that_takes_the_gs_base_ends_the_measurement() {
    let path = match program("libowngs.so") {
        Ok(path) => path.to_str().expect("a path").to_owned(),
        Err(why) => skip!("{why}"),
    };
    let mut target = Mutatee::start("loads", &[&path]);
    let before = Text::of(target.pid());
    let mut session = tool().measure("watch", target.pid(), &["calls@/Code/loads/local_work"]);
    session.wait_for("sample");
    target.ask("open").assert_right();
    let truth = target.ask("call 500");
    truth.assert_right();
    let outcome = session.finish().assert_error(1, &["gs base"]);
    assert_eq!(outcome.one("taken_out")["own_gs"], true);
    let differences = before.differences(&Text::of(target.pid()));
    assert!(differences.iter().all(|d| d.ends_with("libowngs.so is new")), "{differences:?}");
    assert_eq!((target::tracer(target.pid()), target::arenas(target.pid())), (0, 0));
    // While the library is loaded, all threads share their counters.
    let session = tool().count(target.pid(), &["local_work", "plugin_work"]);
    target.ask("call 700").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!((outcome.calls("local_work"), outcome.calls("plugin_work")), (700, 700));
    target.ask("call 10").assert_right();
}

/// When the library is unloaded, thread-local data of another library may take its place.
#[test]
fn what_every_thread_has_of_a_library_that_may_go_is_refused() {
    let text = "resourceList works is procedure { items { \"plugin_work\" }; flavor { unix }; }
        metric plugin_sum { name \"plugin_sum\"; units things; aggregateOperator sum; style EventCounter;
        base is counter { foreach f in works append preInsn f.entry (* plugin_sum += readSymbol(\"plugin.c:plugin_own\"); *) } }";
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), text).expect("a definition");
    let mut target = Mutatee::start("loads", &[program("libowndata.so").expect("gcc").to_str().expect("a path")]);
    target.ask("open").assert_right();
    let (pid, name) = (target.pid_text(), file.path().to_str().expect("a path"));
    let outcome = tool().run(["watch", "-p", &pid, "-I", name, "plugin_sum", "--for", "100ms"]);
    assert_ne!(outcome.status.code(), Some(0), "{outcome:#?}");
    assert!(outcome.stderr.contains("may be unloaded"), "{outcome:#?}");
}

#[test]
fn the_loader_of_musl_waits_too() {
    let path = match (program("loads-musl"), program("libplugin-musl.so")) {
        (Ok(_), Ok(path)) => path,
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    };
    let mut target = Mutatee::start("loads-musl", &[path.to_str().expect("a path")]);
    let session = tool().count(target.pid(), &["*:*_work"]);
    target.ask("call 10").assert_right();
    let opened = target.ask("open");
    assert!(is_woven(target.pid(), &opened), "before anybody can call it");
    let truth = target.ask("call 25");
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("local_work"), truth.tally("local_work"));
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    assert_eq!(outcome.calls("born_work"), truth.tally("plugin_born"), "its constructor is counted");
    assert!(exact_since(&outcome, "plugin_work").is_null());
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("call 20").assert_right();
}

#[test]
fn nobody_waits_where_system_calls_are_filtered() {
    let mut target = loads();
    target.ask("open").assert_right();
    target.ask("filter").assert_right();
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "local_work"]);
    target.ask("call 10").assert_right();
    target.ask("close").assert_right();
    let opened = target.ask("open");
    wait_until("the library is woven", || is_woven(target.pid(), &opened));
    target.ask("call 7").assert_right();
    let truth = target.ask(&format!("cycle {} 20", scaled(100, 2000)));
    truth.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("local_work"), 17);
    assert!((17..=truth.tally("plugin_work")).contains(&outcome.calls("plugin_work")), "{outcome:#?}");
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("cycle 20 20").assert_right();
}

/// A program that loads and unloads a library all the time is in its loader, a part of it in the C library, at each moment.
#[test]
fn edges_of_the_c_library_of_a_program_that_only_loads_and_unloads() {
    let mut target = loads();
    target.tell("cycle 1000000000 1");
    let session = tool().measure("profile", target.pid(), &["edges", "libc.so.6:*"]);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(outcome.all("edge").len() > 100, "the library's functions have run: {outcome:#?}");
    assert!(target.alive(), "the program goes on");
}
