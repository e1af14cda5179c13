//! Tests of programs that `ingraft` starts: woven code tells their threads apart from the first instruction on. So they have times and
//! values
//! by thread as other targets do, and these must agree with their own clocks and tallies.

use std::io::{Seek, Write};
use std::time::{Duration, Instant};

use ingraft_testing::target::slice_slack_ns;
use ingraft_testing::{Outcome, Reply, Session, program, scaled, skip};

use crate::tool;

/// Starts a target program with a measurement and waits for its end. Returns the outcome, and the program's answer to its last command;
/// `None` if the program cannot be built on this machine.
fn started(name: &str, arguments: &[&str], measure: &[&str], commands: &[String]) -> Option<(Outcome, Reply)> {
    let (outcome, reply) = run(name, arguments, measure, commands, &[])?;
    Some((outcome.assert_code(0), reply.expect("answers")))
}

fn run(
    name: &str,
    arguments: &[&str],
    measure: &[&str],
    commands: &[String],
    variables: &[(&str, &str)],
) -> Option<(Outcome, Option<Reply>)> {
    let path = program(name).ok()?;
    let mut input = tempfile::tempfile().expect("a file");
    commands.iter().try_for_each(|line| writeln!(input, "{line}")).expect("write a file");
    input.rewind().expect("a file");
    let path = path.to_str().expect("a path");
    let fixed = ["--max-overhead", "10000", "--until-exit", "--", path];
    let command = measure.iter().chain(&fixed).chain(arguments);
    let tool = tool();
    let outcome = Session::start(tool.command(command).envs(variables.iter().copied()).stdin(input)).finish();
    let answers: Vec<&[String]> = outcome.other.split(|line| line == "done").collect();
    let last = answers.len().checked_sub(2).and_then(|n| answers.get(n));
    let reply = last.map(|lines| Reply { lines: lines.to_vec() });
    Some((outcome, reply))
}

/// Times of sleeping, computing, nested and recursive calls are within one percent of the program's own clock.
#[test]
fn times_are_those_of_the_programs_own_clock() {
    let times = scaled(40, 400);
    let commands = [
        format!("nap {times} 5000"),
        format!("spin {times} 2000"),
        format!("nest {times} 3000"),
        "deep 30 100000".into(),
    ];
    let (outcome, truth) =
        started("times", &[], &["latency", "nap", "spin", "around", "deep"], &commands).expect("gcc");
    for (function, calls) in truth.tallies() {
        let seen = outcome.latency(&function);
        // The program does not time the deepest nap.
        let inner = u64::from(function == "nap");
        assert_eq!((seen.calls, seen.left, seen.unseen, seen.unrecorded), (calls + inner, 0, 0, 0), "{function}");
        let own = truth.number(&format!("ns {function}"));
        let off = (seen.sum_ns - inner * 100_000_000).abs_diff(own);
        assert!(off * 100 <= own, "{function}: {seen:?}, but {own} ns by the program's clock");
    }
}

/// Returns the values of a pair at this function, one for each reading.
fn values(outcome: &Outcome, function: &str) -> Vec<u64> {
    let ours = |s: &&serde_json::Value| s["focus"].as_str().is_some_and(|f| f.ends_with(&format!("/{function}")));
    let samples = outcome.all("sample").into_iter().filter(ours);
    samples.map(|s| s["value"].as_u64().unwrap_or_else(|| panic!("{s}"))).collect()
}

/// The libraries with the code of the landings are mapped only after the measurement has begun.
#[test]
fn exceptions_and_jumps_are_noticed_where_they_land() {
    let n = scaled(50, 500);
    for (name, command) in [("jumps", "land"), ("throws", "cut")] {
        let pair = format!("wall_time@/Code/{name}/dive");
        let (outcome, truth) = started(name, &[], &["watch", &pair], &[format!("{command} {n}")]).expect("gcc");
        truth.assert_right();
        let (measured, own) = (*values(&outcome, "dive").last().expect("a sample"), truth.number("ns dive"));
        // The code after a landing takes at least half as long as the measured calls.
        assert!(measured.abs_diff(own) <= own / 4, "{name}: {measured} ns, but {own} by the program's clock");
    }
}

/// If threads end inside of timed calls, the times of other threads stay, no timer runs on, and no value goes back.
#[test]
fn threads_that_end_in_a_timed_function() {
    let n = 20;
    for how in 0..3 {
        let measure = ["watch", "wall_time@/Code/times/part", "--interval", "100ms"];
        let (outcome, truth) = started("times", &[], &measure, &[format!("part {n} 5000 {how}")]).expect("gcc");
        let seen = values(&outcome, "part");
        assert!(seen.is_sorted(), "{how}: {seen:?}");
        let last = *seen.last().expect("a sample");
        let (all, returned) = (truth.number("ns part"), truth.number("ns parted"));
        // The engine notices the end by a bare system call a little later.
        let late = if how == 1 { n * 30_000_000 } else { all / 5 };
        assert!(
            (returned..=all + late).contains(&last),
            "{how}: {last} ns, but {returned} of {all} ns by its own clock"
        );
        if how != 1 {
            assert!(last * 10 >= all * 9, "{how}: {last} of {all} ns");
        }
        let left = outcome.all("sample").last().map(|s| s["left"].clone());
        assert_eq!(left, Some(n.into()), "{how}: {outcome:#?}");
    }
}

/// The end of the target is reported at once, and no timer runs on after it.
#[test]
fn the_end_is_noticed_when_it_comes() {
    let begin = Instant::now();
    let measure = ["watch", "wall_time@/Code/times/last", "--interval", "20s", "--own-status"];
    let (outcome, _) = run("times", &[], &measure, &["last 300000".to_owned()], &[]).expect("gcc");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    let last = *values(&outcome.assert_code(0), "last").last().expect("a sample");
    // The value is far below the interval, also on a busy machine.
    assert!((300_000_000..2_000_000_000).contains(&last), "{last}");
}

/// Panics unless counts by thread are exact in a program of this kind. Skips the test if this machine cannot build the program.
fn exact_by_thread(name: &str) {
    let n = scaled(20_000, 400_000);
    let measured = started(name, &["8"], &["count", &format!("{name}:work_*")], &[format!("go {n}")]);
    let Some((outcome, truth)) = measured else { skip!("{name} cannot be built here") };
    truth.assert_right();
    for (function, tally) in truth.tallies().into_iter().filter(|(f, _)| f != "never") {
        assert_eq!(outcome.calls(&function), tally, "{name}: {function}");
    }
    let mut counted = outcome.threads("work_0");
    counted.retain(|_, calls| *calls > 0);
    assert_eq!(counted, truth.threads(), "{name}: calls of work_0 by thread");
}

/// The engine weaves libraries that the program loads at its start before the program runs, so no call of theirs is missed.
#[test]
fn nothing_is_missed_of_what_is_loaded_at_the_start() {
    let (outcome, _) = started("threads", &["2"], &["watch", "lock_operations"], &["go 10".into()]).expect("gcc");
    assert!(!outcome.all("sample").is_empty());
    assert!(outcome.all("sample").iter().all(|sample| sample["exact_since_ns"].is_null()), "{outcome:#?}");
    assert!(!outcome.stderr.contains("exact since"), "{outcome:#?}");
}

/// Before the libraries are mapped, it is not known where jumps to their functions lead.
#[test]
fn jumps_into_libraries_that_are_loaded_at_the_start_are_followed() {
    let (outcome, truth) = started("tails", &[], &["latency", "library"], &["run 40 5000".into()]).expect("g++");
    let (seen, own) = (outcome.latency("library"), truth.number("ns library"));
    assert_eq!((seen.calls, seen.left_by_tail_jump), (40, 0), "{seen:?}");
    let off = seen.sum_ns.abs_diff(own).saturating_sub(slice_slack_ns());
    assert!(off * 100 <= own * 3, "{seen:?}, but {own} ns");
}

/// Functions of libraries in which threads wait are inside of slow calls, too.
#[test]
fn waits_in_libraries_are_inside_of_slow_calls() {
    let (outcome, _) =
        started("tails", &[], &["slow", "direct", "--over", "2ms"], &["run 5 5000".into()]).expect("g++");
    let slow = outcome.all("slow");
    assert_eq!(slow.len(), 5, "{outcome:#?}");
    assert!(slow.iter().all(|call| call.to_string().contains("nanosleep")), "{slow:#?}");
}

#[test]
fn threads_of_a_dynamic_program() {
    exact_by_thread("threads");
}

#[test]
fn threads_of_static_programs() {
    exact_by_thread("threads-static");
    exact_by_thread("threads-static-pie");
}

#[test]
fn threads_of_programs_with_musl() {
    exact_by_thread("threads-musl");
    exact_by_thread("threads-musl-static");
}

#[test]
fn goroutines() {
    let n = scaled(20_000, 400_000);
    let Some((outcome, truth)) = started("gopher", &[], &["count", "main.work", "main.deep"], &[format!("go {n}")])
    else {
        skip!("there is no go")
    };
    truth.assert_right();
    for (function, tally) in truth.tallies() {
        assert_eq!(outcome.calls(&function), tally, "{function}");
    }
}

/// The processor time of calls agrees with the program's own measurement. If the libc registers an rseq area, woven code reads this
/// time without a system call.
#[test]
fn processor_times_are_those_of_the_programs_own_clock() {
    let times = scaled(20, 200);
    let commands = [format!("burn {times} 2000"), format!("crowd 8 {times} 1000")];
    for (name, asks_kernel) in [("burns", false), ("burns-static", false), ("burns-musl-static", true)] {
        let Some((outcome, truth)) = started(name, &[], &["latency", "--cpu", "burn"], &commands) else { continue };
        let (seen, own, calls) = (outcome.latency("burn"), truth.number("ns burn"), truth.tally("burn"));
        assert_eq!((seen.calls, seen.left, seen.unseen, seen.unrecorded), (calls, 0, 0, 0), "{name}");
        let off = seen.sum_ns.abs_diff(own);
        assert!(off * 100 <= own + 100 * (5_000 * calls + slice_slack_ns()), "{name}: {seen:?}, but {own} ns");
        // The engine finds the clock of a static program by the code in the program.
        assert_eq!(
            outcome.stderr.contains("by a system call at each entry"),
            asks_kernel,
            "{name}: {}",
            outcome.stderr
        );
    }
}

/// Calls that begin before the libc has set the first thread pointer, including the calls that set it and end with one.
#[test]
fn calls_around_the_first_thread_pointer() {
    let commands = ["nap 1 1".to_owned()];
    let loader = ["_dl_catch_exception", "__tunable_get_val", "_dl_allocate_tls_init"];
    let named = loader.map(|function| format!("ld-linux-x86-64.so.2:{function}"));
    let measured = |command| {
        let measure: Vec<&str> = std::iter::once(command).chain(named.iter().map(String::as_str)).collect();
        started("times", &[], &measure, &commands).expect("gcc").0
    };
    let (latency, count) = (measured("latency"), measured("count"));
    for function in loader {
        let seen = latency.latency(function);
        assert_eq!((seen.calls, seen.left, seen.unseen), (count.calls(function), 0, 0), "{function}");
        assert!(seen.calls > 0 && seen.sum_ns > 0, "{function}: {seen:?}");
        assert_eq!(count.threads(function).len(), 1, "{function}");
    }
    for (name, setter) in [("threads-static", "__libc_setup_tls"), ("threads-musl-static", "__init_tls")] {
        let Some((outcome, _)) = started(name, &["1"], &["latency", setter], &["go 1".to_owned()]) else { continue };
        let seen = outcome.latency(setter);
        assert_eq!((seen.calls, seen.left, seen.unseen), (1, 0, 0), "{name}: {seen:?}");
    }
}

/// The runtime of AddressSanitizer maps its shadow memory at a fixed place, after the data area has been created. It ends the program if anything
/// lies there.
#[test]
fn sanitizers_find_their_addresses_free() {
    for name in ["threads-asan", "threads-asan-static", "threads-tsan"] {
        let go = ["go 2000".to_owned()];
        // The program neither frees what it allocates at its start, nor waits for the ends of its threads.
        let options = [("ASAN_OPTIONS", "detect_leaks=0"), ("TSAN_OPTIONS", "report_thread_leaks=0")];
        let (outcome, truth) = run(name, &["4"], &["latency", "work_*"], &go, &options).expect("gcc");
        let (outcome, truth) = (outcome.assert_code(0), truth.expect("answers"));
        truth.assert_right();
        for (function, tally) in truth.tallies().into_iter().filter(|(f, _)| f != "never") {
            let seen = outcome.latency(&function);
            assert_eq!((seen.calls, seen.left, seen.unseen), (tally, 0, 0), "{name}: {function}");
        }
    }
}

/// A program that ends by itself tells of children whose calls are not counted.
#[test]
fn children_that_are_not_counted_are_told_of_at_the_end() {
    let (outcome, truth) = started("family", &[], &["count", "parent_work"], &["fork 3 10".to_owned()]).expect("gcc");
    truth.assert_right();
    assert_eq!(outcome.calls("parent_work"), truth.tally("parent_work"));
    let told = "3 processes that it has made by fork have run measured functions: their calls are not counted";
    assert!(outcome.stderr.contains(told) || outcome.one("warning")["text"].to_string().contains(told), "{outcome:#?}");
}

/// A library that takes the gs base in its constructor keeps it. Counts are exact, and times are refused with the reason.
#[test]
fn a_library_that_takes_the_gs_base_at_the_start() {
    let library = match program("libowngs.so") {
        Ok(library) => library,
        Err(why) => skip!("{why}"),
    };
    let preload = [("LD_PRELOAD", library.to_str().expect("a path"))];
    let go = ["go 2000".to_owned()];
    let counted = run("threads", &["4"], &["count", "threads:work_*", "plugin_born"], &go, &preload);
    let (outcome, truth) = counted.expect("gcc");
    let (outcome, truth) = (outcome.assert_code(0), truth.expect("answers"));
    truth.assert_right();
    for (function, tally) in truth.tallies().into_iter().filter(|(f, _)| f != "never") {
        assert_eq!(outcome.calls(&function), tally, "{function}");
    }
    assert_eq!(outcome.calls("plugin_born"), 1);
    assert_eq!(outcome.one("ended")["status"], 0, "it found its gs base at the end: {outcome:#?}");
    assert!(!outcome.stderr.contains("is not counted"), "{}", outcome.stderr);
    // Functions of the loader are measured before the library is mapped.
    let early = run("threads", &["4"], &["count", "threads:work_*", "ld-*:_dl_*"], &go, &preload);
    let outcome = early.expect("gcc").0.assert_code(0);
    assert!(outcome.stderr.contains("libowngs.so uses the gs base itself"), "{}", outcome.stderr);
    let timed = run("threads", &["4"], &["latency", "threads:work_0"], &go, &preload);
    let _ = timed.expect("gcc").0.assert_error(1, &["libowngs.so uses the gs base itself"]);
}

/// Writes definitions to a file of their own.
fn definitions(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    std::fs::write(file.path(), text).expect("write a file");
    file
}

/// The C library has all points of these histograms, and is loaded after the measurement has begun.
#[test]
fn histograms_of_what_is_loaded_later_are_in_their_unit() {
    let metric = |name: &str, observed: &str| {
        format!(
            "metric {name} {{ name \"{name}\"; units ns; aggregateOperator sum; style EventCounter; base is histogram {{ \
             foreach f in sleeps prepend preInsn f.return (* observe({name}, {observed}); *) }} }}\n"
        )
    };
    let text = "resourceList sleeps is procedure { items { \"nanosleep\" }; flavor { unix }; }\n".to_owned()
        + &metric("alone", "$elapsed")
        + &metric("computed", "$elapsed + 0");
    let file = definitions(&text);
    let path = file.path().to_str().expect("a path");
    let measured = started("times", &[], &["watch", "-I", path, "alone", "computed"], &["nap 40 5000".to_owned()]);
    let (outcome, truth) = measured.expect("gcc");
    let own = truth.number("ns nap");
    for name in ["alone", "computed"] {
        let samples = outcome.all("sample");
        let last = samples.iter().rfind(|s| s["metric"] == name).expect("a sample");
        assert_eq!(last["value"], truth.tally("nap"), "{name}: {last}");
        let sum = last["sum"].as_u64().expect("a sum");
        assert!(sum <= own && own - sum < own / 20, "{name}: {sum} ns, but {own} ns by the program's clock");
    }
}

/// The program itself opens the library with the only requested function.
#[test]
fn a_library_that_is_opened_later_is_measured_alone() {
    let library = program("libplugin.so").expect("gcc");
    let library = library.to_str().expect("a path");
    let commands = ["open".to_owned(), "call 70".to_owned()];
    let pair = "calls@/Code/libplugin.so/plugin_work";
    let (outcome, truth) = started("loads", &[library], &["watch", pair], &commands).expect("gcc");
    let samples = outcome.all("sample");
    let last = samples.last().unwrap_or_else(|| panic!("no sample: {outcome:#?}"));
    assert_eq!(last["value"], truth.tally("plugin_work"), "{last}");
    assert!(last["exact_since_ns"].is_null(), "{last}");
    assert!(!outcome.stderr.contains("was not measured"), "{}", outcome.stderr);
}

/// A function that a module in the program does not have can never be loaded: this is an error before the program runs. If a function may
/// be loaded but never is, the command reports it at the end.
#[test]
fn what_never_comes_is_told() {
    let go = ["go 10".to_owned()];
    let watched = |pairs: &[&str]| {
        let measure: Vec<&str> = std::iter::once("watch").chain(pairs.iter().copied()).collect();
        run("threads", &["1"], &measure, &go, &[]).expect("gcc").0
    };
    for pair in ["calls@/Code/threads/nosuch", "calls@/Code/libc.so.6/nosuch"] {
        let outcome = watched(&[pair]).assert_error(3, &["nosuch"]);
        assert!(outcome.other.is_empty() && outcome.all("ended").is_empty(), "it never ran: {outcome:#?}");
    }
    for pair in ["calls@/Code/nosuch", "calls@/Code/nosuch/f", "lock_operations@/SyncObject/Mutex/nosuch"] {
        let alone = watched(&[pair]).assert_error(3, &["nosuch"]);
        assert_eq!(alone.one("ended")["status"], 0, "it ran: {alone:#?}");
        let beside = watched(&[pair, "calls@/Code/threads/work_0"]).assert_code(0);
        assert!(beside.stderr.contains("nosuch") && beside.stderr.contains("was not measured"), "{}", beside.stderr);
        assert!(!beside.all("sample").is_empty());
    }
}
