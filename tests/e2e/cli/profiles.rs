//! Profiles: counts of all blocks and edges of functions, compared with callgrind's and with the program's own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, find, have, open_directory, output, program, scaled, skip, source_directory};
use serde_json::Value;

use crate::blocks::{executions, text_of};
use crate::tool;

/// Passages of each jump, by the addresses of the jump and of its target in a file, as callgrind counts them.
fn jumps(module: &str, arguments: &[&str]) -> BTreeMap<(u64, u64), u64> {
    let directory = open_directory();
    let file = directory.path().join("jumps");
    let valgrind = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--dump-instr=yes", "--collect-jumps=yes"])
        .arg("--compress-pos=no")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    valgrind.expect("run valgrind");
    let text = std::fs::read_to_string(&file).expect("callgrind's file");
    let (mut names, mut object, mut jumps) = (BTreeMap::new(), String::new(), BTreeMap::new());
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
    let mut open: Option<(u64, u64)> = None;
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            let (id, name) = named.split_once(' ').map_or((named, None), |(id, name)| (id, Some(name)));
            if let Some(name) = name {
                names.insert(id.to_owned(), name.rsplit('/').next().unwrap_or(name).to_owned());
            }
            if line.starts_with("ob=") {
                object.clone_from(&names[id]);
            }
        } else if let Some(jump) = line.strip_prefix("jump=").or_else(|| line.strip_prefix("jcnd=")) {
            let mut words = jump.split(' ');
            let count = words.next().and_then(|count| count.split('/').next()?.parse().ok()).expect("a count");
            open = words.next().map(|target| (hex(target), count));
        } else if let Some((target, count)) = open.take()
            && object.starts_with(module)
        {
            let source = line.split(' ').next().map(hex).expect("an address");
            *jumps.entry((source, target)).or_default() += count;
        }
    }
    jumps
}

/// A number of a record in the form `0x1a` or `-0x1a`.
fn offset(record: &Value, key: &str) -> Option<u64> {
    let text = record[key].as_str()?;
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let number = u64::from_str_radix(digits.trim_start_matches("0x"), 16).expect("a number");
    Some(if minus { number.wrapping_neg() } else { number })
}

/// Address of a part of a function in the file.
fn address(record: &Value, key: &str) -> Option<u64> {
    Some(offset(record, "offset")?.wrapping_add(offset(record, key)?))
}

/// Runs a command under a profile, and returns its records. Blocks are left out in these functions alone.
fn profile(kind: &str, (pattern, left_out): (&str, &[&str]), arguments: &[&str]) -> Outcome {
    let command = [&["profile", kind, "--check", "--until-exit", "--own-status", pattern, "--"], arguments].concat();
    let outcome = tool().run(command).assert_code(0);
    assert_exact_but(&outcome, left_out);
    // Refused functions are named as such, and not as measured too late.
    assert!(!outcome.stderr.contains("exact since"), "{}", outcome.stderr);
    outcome
}

/// Fails if some counts are not exact.
pub fn assert_exact(outcome: &Outcome) {
    let inexact = |record: &&Value| record.get("inexact").is_some();
    assert_eq!(outcome.objects.iter().find(inexact), None);
    assert!(!outcome.stderr.contains("not exact"), "{}", outcome.stderr);
}

/// The same, but in these functions there are blocks that no code can count.
fn assert_exact_but(outcome: &Outcome, left_out: &[&str]) {
    if left_out.is_empty() {
        return assert_exact(outcome);
    }
    let mut found = BTreeSet::new();
    for record in outcome.objects.iter().filter(|record| record.get("inexact").is_some()) {
        let why = record["inexact"].as_str().expect("a reason");
        assert!(why.starts_with("1 block has no count, ") && why.ends_with("all others are exact"), "{record}");
        found.insert(record["function"].as_str().expect("a name"));
    }
    assert_eq!(found, left_out.iter().copied().collect());
}

/// Blocks by address, each with its length and its count. Those that a profile leaves out have none.
fn blocks(outcome: &Outcome) -> BTreeMap<u64, (u64, u64)> {
    let all = outcome.all("block");
    let known = all.iter().filter(|record| !(record["count"].is_null() && record.get("inexact").is_some()));
    let one =
        |record: &&Value| Some((address(record, "block")?, (record["size"].as_u64()?, record["count"].as_u64()?)));
    known.map(|record| one(record).expect("a block")).collect()
}

pub fn assert_blocks_equal_callgrinds(
    (module, left_out): (&str, &[&str]),
    text: &Range<u64>,
    arguments: &[&str],
) -> BTreeMap<u64, (u64, u64)> {
    let truth: BTreeMap<u64, u64> = executions(arguments)
        .into_iter()
        .filter(|((of, _), _)| of.starts_with(module))
        .map(|((_, at), count)| (at, count))
        .collect();
    let blocks = blocks(&profile("blocks", (&format!("{module}:*"), left_out), arguments));
    let inside = blocks.iter().filter(|(at, _)| text.contains(at));
    let wrong: Vec<_> = inside.filter(|(at, (_, count))| truth.get(at).copied().unwrap_or(0) != *count).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:x?}", wrong.len(), blocks.len());
    let hot = blocks.values().filter(|(_, count)| *count > 0).count();
    assert!(hot > 10, "{hot} blocks of {module} were executed");
    println!("{module}: {} blocks, {hot} of them executed", blocks.len());
    blocks
}

fn assert_edges_equal_callgrinds(
    module: &str,
    text: &Range<u64>,
    blocks: &BTreeMap<u64, (u64, u64)>,
    arguments: &[&str],
) {
    let jumps = jumps(module, arguments);
    let jumped = |block: &u64, to: Option<u64>| -> u64 {
        let (size, _) = blocks[block];
        let its = jumps.range((*block, 0)..(block + size, 0));
        // Callgrind takes the repetitions of a `rep` prefix for jumps.
        let its = its.filter(|((source, target), _)| source != target);
        its.filter(|((_, target), _)| to.is_none_or(|to| *target == to)).map(|(_, count)| count).sum()
    };
    let outcome = profile("edges", (&format!("{module}:*"), &[]), arguments);
    let (mut compared, mut passed) = (0, 0);
    for record in outcome.all("edge") {
        let (from, count) = (address(record, "from").expect("a block"), record["count"].as_u64());
        let (Some(to), Some(count)) = (address(record, "to"), count) else { continue };
        let (_, executed) = blocks[&from];
        if !text.contains(&from) {
            continue;
        }
        let truth = match record["kind"].as_str() {
            Some("taken" | "jump-table") => jumped(&from, Some(to)),
            Some("fall-through") => executed - jumped(&from, None),
            // Every call of these programs returns.
            Some("call-return") => executed,
            other => panic!("an edge of kind {other:?}"),
        };
        assert_eq!(count, truth, "{record}");
        (compared, passed) = (compared + 1, passed + u64::from(count > 0));
    }
    assert!(passed > 10, "{passed} edges of {module} were passed");
    println!("{module}: {compared} edges, {passed} of them passed");
}

#[test]
fn a_profile_of_a_program_equals_callgrinds_counts() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("determ").expect("gcc");
    let arguments = [path.to_str().expect("a path"), "2000"];
    let text = text_of(&path);
    let blocks = assert_blocks_equal_callgrinds(("determ", &[]), &text, &arguments);
    assert_edges_equal_callgrinds("determ", &text, &blocks, &arguments);
}

#[test]
fn a_profile_of_a_library_equals_callgrinds_counts() {
    let (true, Some(bzip2)) = (have("valgrind"), find("bzip2")) else {
        skip!("valgrind or bzip2 is not installed");
    };
    let directory = open_directory();
    let file = directory.path().join("text");
    let words: String = (0..20_000u32).map(|n| format!("{} {:x}\n", n % 977, n.wrapping_mul(2_654_435_761))).collect();
    std::fs::write(&file, words).expect("write the input");
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let libraries = output(Command::new("ldd").arg(&bzip2));
    let library = libraries.split_whitespace().find(|word| word.starts_with('/') && word.contains("libbz2"));
    let text = text_of(Path::new(library.expect("libbz2")));
    let (bzip2, file) = (path(&bzip2), path(&file));
    let arguments = [bzip2.as_str(), "-kf", &file];
    let blocks = assert_blocks_equal_callgrinds(("libbz2", &[]), &text, &arguments);
    assert_edges_equal_callgrinds("libbz2", &text, &blocks, &arguments);
}

/// Number of instructions that a function has executed.
fn events(outcome: &Outcome, function: &str, event: &str) -> u64 {
    let all = outcome.all("events");
    let found = all.iter().find(|record| record["function"] == function && record["event"] == event);
    found.and_then(|record| record["self"].as_u64()).expect("a number")
}

#[test]
fn events_are_sums_over_blocks() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["events", "leaf", "around", "--check"]);
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    target.ask("around 70");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    // Of 4,000 calls with 3 rounds each: 4 instructions at first, 3 in each round and 2 at last.
    let leaf = |event| events(&outcome, "leaf", event);
    assert_eq!(leaf("instructions"), 4000 * (4 + 3 * 3 + 2));
    assert_eq!((leaf("calls"), leaf("branches")), (0, 4000 * 3));
    // The stack is read by each round, by the last addition and by the return.
    assert_eq!((leaf("memory-reads"), leaf("memory-writes")), (4000 * (3 + 2), 4000 * 2));
    assert_eq!(events(&outcome, "around", "calls"), 72);
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn profiles_begin_and_end_in_the_middle_of_runs() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let (tool, mut late, mut early) = (tool(), 0, 0);
    for _ in 0..scaled(6, 200) {
        target.tell("go 60000000");
        let session = tool.measure("profile", target.pid(), &["blocks", "leaf", "--check"]);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(target.reply().number("wrong"), 0);
        // The redundant counter shows whether each thread was corrected for where it stood.
        assert_exact(&outcome);
        let removed = &outcome.all("removed")[0]["corrections"];
        late += removed["late_start"].as_u64().expect("a number");
        early += removed["early_end"].as_u64().expect("a number");
        target::assert_clean(target.pid(), &before);
    }
    println!("{late} late starts, {early} early ends");
    assert!(late > 0 && early > 0, "no thread was in the function");
    assert!(target.end().success());
}

/// Count of the block of a function that begins at its first byte.
fn entries(outcome: &Outcome, function: &str) -> u64 {
    let all = outcome.all("block");
    let found = all.iter().find(|record| record["function"] == function && record["block"] == "0x0");
    found.and_then(|record| record["count"].as_u64()).expect("a count")
}

#[test]
fn profiles_of_functions_that_exceptions_leave() {
    let mut target = Mutatee::start("throws", &[]);
    let before = Text::of(target.pid());
    let functions = ["blocks", "thrower", "middle", "outer", "--check"];
    let session = tool().measure("profile", target.pid(), &functions);
    let reply = target.ask("throw 1000");
    reply.assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    let counts = ["thrower", "middle"].map(|function| entries(&outcome, function));
    assert_eq!(counts, ["thrower", "middle"].map(|function| reply.tally(function)));
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn profiles_of_functions_that_jumps_leave() {
    let mut target = Mutatee::start("jumps", &[]);
    let before = Text::of(target.pid());
    let functions = ["blocks", "dive", "sink", "nap", "leaver", "keeper", "--check"];
    let session = tool().measure("profile", target.pid(), &functions);
    let landed = target.ask("land 50");
    let kept = target.ask("keep 50");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    assert_eq!(entries(&outcome, "dive"), landed.tally("dive"));
    assert_eq!(entries(&outcome, "keeper"), kept.tally("keeper"));
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

/// Counts of the blocks of a function, in order.
pub fn counts(outcome: &Outcome, function: &str) -> Vec<u64> {
    let all = outcome.all("block");
    let its = all.iter().filter(|record| record["function"] == function);
    let mut counts: Vec<_> =
        its.map(|record| (offset(record, "block"), record["count"].as_u64().expect("a count"))).collect();
    counts.sort_unstable();
    counts.into_iter().map(|(_, count)| count).collect()
}

/// Numbers of calls that `looped` makes of its callees in one call.
fn calls_of_loop(times: u64) -> (u64, u64) {
    let (mut firsts, mut seconds) = (1, 1);
    for left in (1..times).rev() {
        firsts += u64::from(left % 2 == 0);
        seconds += 1;
    }
    (firsts, seconds)
}

#[test]
fn a_call_right_where_another_one_returns_is_counted() {
    let mut target = Mutatee::start("adjacent", &[]);
    let before = Text::of(target.pid());
    let functions = ["direct", "spaced", "passing", "looped", "again", "memory", "by_register"];
    let session = tool().measure("profile", target.pid(), &[&["blocks", "--check"], &functions[..]].concat());
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    let thrown = target.ask("throw 300");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact_but(&outcome, &["memory", "by_register"]);
    assert_eq!(thrown.number("caught"), 200);
    let (first, second) = (thrown.tally("first"), thrown.tally("second"));
    assert_eq!(counts(&outcome, "direct"), [1000 + first, 1000 + second, 1000 + second - 100]);
    for function in ["spaced", "passing"] {
        assert_eq!(counts(&outcome, function), [1000; 3], "{function}");
    }
    let (firsts, seconds) = (0..1000).map(|i| calls_of_loop(i % 7 + 1)).fold((0, 0), |(f, s), (a, b)| (f + a, s + b));
    let looped = counts(&outcome, "looped");
    assert_eq!((looped[0], looped[1], looped[2]), (1000, firsts, seconds), "{looped:?}");
    // `again` calls itself once for each unit of its argument.
    let again: u64 = (0..1000).map(|i| i % 5).sum();
    assert_eq!(counts(&outcome, "again"), [800 + again, again, again, again, 800 + again]);
    // A call without room for a displacement runs in the text.
    for function in ["memory", "by_register"] {
        let its = outcome.all("block").into_iter().filter(|record| record["function"] == function);
        let counts: Vec<Option<u64>> = its.map(|record| record["count"].as_u64()).collect();
        assert_eq!(counts, [Some(1000), None, Some(1000)], "{function}");
    }
    assert_eq!(outcome.all("refused"), Vec::<&Value>::new());
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_profile_of_adjacent_calls_equals_callgrinds_counts() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("adjacent").expect("g++");
    let arguments = [path.to_str().expect("a path"), "3000"];
    let _ = assert_blocks_equal_callgrinds(("adjacent", &["memory", "by_register"]), &text_of(&path), &arguments);
}

#[test]
fn threads_sleep_in_adjacent_calls_while_profiles_begin_and_end() {
    let mut target = Mutatee::start("adjacent", &[]);
    let before = Text::of(target.pid());
    let profile = |target: &Mutatee| tool().measure("profile", target.pid(), &["blocks", "waits", "--check"]);
    let end = |session: ingraft_testing::Session| {
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_exact(&outcome);
        counts(&outcome, "waits")
    };
    for _ in 0..scaled(2, 20) {
        // In the first callee when the profile begins, in the second one when it ends.
        target.ask("sleep");
        let session = profile(&target);
        target.ask("next");
        assert_eq!(end(session), [0, 1, 0]);
        target::assert_clean(target.pid(), &before);
        // In the second callee when the profile begins.
        let session = profile(&target);
        assert_eq!(target.ask("wake").number("wrong"), 0);
        assert_eq!(end(session), [0, 0, 1]);
        // In the first callee when the profile ends.
        let session = profile(&target);
        target.ask("sleep");
        assert_eq!(end(session), [1, 0, 0]);
        target.ask("next");
        assert_eq!(target.ask("wake").number("wrong"), 0);
    }
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn blocks_and_edges_at_adjacent_calls_are_counted() {
    let mut target = Mutatee::start("adjacent", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["first", "direct#*->*", "passing#*", "looped#*"]);
    assert_eq!(target.ask("go 500").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let (firsts, seconds) = (0..500).map(|i| calls_of_loop(i % 7 + 1)).fold((0, 0), |(f, s), (a, b)| (f + a, s + b));
    let edges = outcome.all("edge");
    let edges: Vec<_> = edges.iter().filter(|edge| edge["function"] == "direct").map(|edge| &edge["count"]).collect();
    assert_eq!(edges, [500, 500]);
    let of = |function: &str| -> Vec<u64> {
        let all = outcome.all("count");
        let its = all.iter().filter(|record| record["function"] == function);
        let mut its: Vec<_> = its.map(|record| (offset(record, "block"), record["calls"].as_u64())).collect();
        its.sort_unstable();
        its.into_iter().filter_map(|(_, count)| count).collect()
    };
    assert_eq!(of("passing"), [500; 3]);
    assert_eq!(of("looped")[..3], [500, firsts, seconds]);
    assert_eq!(outcome.calls("first"), 500 * 5 + firsts + (0..500).map(|i| i % 5).sum::<u64>());
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_profile_of_a_part_or_one_that_would_stay_is_refused() {
    let target = Mutatee::start("blocks", &[]);
    let run = |arguments: &[&str]| tool().run([&["profile", "edges", "-p", &target.pid_text()], arguments].concat());
    let _ = run(&["leaf#0x11"]).assert_error(2, &["a part of a function", "name the function"]);
    for follow in ["fork", "fork,exec"] {
        let words = ["cannot follow forks", "`profile coverage`"];
        let _ = run(&["leaf", "--follow", follow]).assert_error(2, &words);
    }
    let _ = run(&["no_such_function"]).assert_error(3, &["no function matches"]);
    assert!(target.end().success());
}

/// All functions of an interpreter are profiled: it must print the same as without.
#[test]
fn an_interpreter_under_a_profile_prints_the_same() {
    let Some(perl) = find("perl") else { skip!("perl is not installed") };
    let script = "my %h; for my $i (1..20000) { my $s = sprintf('%d-%x', $i % 97, $i * 7919); $h{$s} .= reverse $s } \
                  my $t = 0; for (sort keys %h) { $t = ($t * 31 + length $h{$_}) % 1000003; eval { die $_ } } print qq(sum $t\\n)";
    let perl = perl.to_str().expect("a path").to_owned();
    let plain = output(Command::new(&perl).args(["-e", script]));
    let command = ["profile", "events", "--until-exit", "perl:*", "--", &perl, "-e", script];
    let outcome = tool().run(command).assert_code(0);
    assert_eq!(outcome.other, plain.lines().collect::<Vec<_>>(), "what the program printed");
    let functions = outcome.all("events").iter().filter(|record| record["event"] == "instructions").count();
    println!("{functions} functions of perl were profiled");
    assert!(functions > 1000);
}

/// A profile that was saved tells the same as its records, and other tools read what it is written as.
#[test]
fn a_saved_profile_is_reported() {
    let directory = open_directory();
    let file = directory.path().join("profile");
    let (path, determ) = (file.to_str().expect("a path"), program("determ").expect("gcc"));
    let determ = determ.to_str().expect("a path");
    let command = ["profile", "blocks", "--until-exit", "--own-status", "determ:*", "-o", path, "--", determ, "2000"];
    let outcome = tool().run(command).assert_code(0);
    let counts = |outcome: &Outcome| -> BTreeMap<u64, Option<u64>> {
        let all = outcome.all("block");
        all.iter().filter_map(|block| Some((address(block, "block")?, block["count"].as_u64()))).collect()
    };
    let saved = counts(&tool().run(["report", path, "--as", "json"]).assert_code(0));
    assert_eq!(saved, counts(&outcome));
    assert!(saved.len() > 30, "{saved:?}");
    if !have("callgrind_annotate") {
        skip!("valgrind is not installed");
    }
    let written = directory.path().join("callgrind.out");
    let written = written.to_str().expect("a path");
    let _ = tool().run(["report", path, "--as", "callgrind", "-o", written]).assert_code(0);
    let annotated = output(Command::new("callgrind_annotate").arg(written));
    let all: u64 =
        outcome.all("block").iter().filter_map(|b| Some(b["count"].as_u64()? * b["instructions"].as_u64()?)).sum();
    let total = annotated.lines().find(|line| line.contains("PROGRAM TOTALS")).expect("a total");
    let digits: String = total.split(' ').next().expect("a number").chars().filter(char::is_ascii_digit).collect();
    assert_eq!(digits.parse(), Ok(all), "{annotated}");
}

/// Sums and differences of different programs, and an empty export, are told.
#[test]
fn a_report_says_when_it_makes_no_sense() {
    let directory = open_directory();
    let names = ["determ", "other"];
    let [first, second] = names.map(|name| directory.path().join(name).to_str().expect("a path").to_owned());
    let determ = program("determ").expect("gcc");
    let stripped = directory.path().join("stripped");
    let made = Command::new("strip").args(["-g", "-o"]).arg(&stripped).arg(&determ).status().expect("strip");
    assert!(made.success());
    let (determ, stripped) = (determ.to_str().expect("a path"), stripped.to_str().expect("a path"));
    let profile = ["profile", "blocks", "--until-exit", "--own-status", ":*", "-o"];
    let run = |path: &str, command: &[&str]| {
        let _ = tool().run(profile.iter().chain(&[path, "--"]).chain(command)).assert_code(0);
    };
    run(&first, &[stripped, "5"]);
    run(&second, &["/usr/bin/env", "true"]);
    let sum = tool().run(["report", &first, &second, "--as", "json"]).assert_code(0);
    assert!(sum.stderr.contains("profile of another program"), "{sum:#?}");
    let difference = tool().run(["report", &first, "--diff", &second]).assert_code(0);
    assert!(difference.stderr.contains("profile of another program"), "{difference:#?}");
    let same = tool().run(["report", &first, &first, "--as", "json"]).assert_code(0);
    assert!(!same.stderr.contains("another program"), "{same:#?}");
    let lines = tool().run(["report", &first, "--as", "lcov"]).assert_code(0);
    assert!(lines.stderr.contains("no profiled function has source lines"), "{lines:#?}");
    let lines = tool().run(["report", &first, "--as", "lcov", "--binary", determ]).assert_code(0);
    assert!(!lines.stderr.contains("source lines"), "with debugging information: {lines:#?}");
}

/// Counters that are placed by the counts of an earlier profile give the same counts.
#[test]
fn counters_are_placed_by_an_earlier_profile() {
    let directory = open_directory();
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (file, again) = (path("profile"), path("again"));
    let determ = program("determ").expect("gcc").to_str().expect("a path").to_owned();
    let run = |weights: &[&str], save: &str| {
        let kind = ["profile", "blocks", "--check", "--until-exit", "--own-status", "determ:*", "-o", save];
        tool().run([&kind, weights, &["--", &determ, "2000"]].concat()).assert_code(0)
    };
    let counts = |outcome: &Outcome| -> BTreeMap<u64, (u64, u64)> {
        assert_exact(outcome);
        blocks(outcome)
    };
    let first = counts(&run(&[], &file));
    assert!(first.len() > 30, "{first:?}");
    assert_eq!(counts(&run(&["--weights", &file], &again)), first);

    // Without a build-id, the program cannot be recognised.
    let (bare, source) = (path("bare"), source_directory().join("tests/mutatees/determ.c"));
    output(Command::new("gcc").args(["-O1", "-pthread", "-Wl,--build-id=none", "-o", &bare]).arg(source));
    let of_bare = path("of_bare");
    let profile = ["profile", "blocks", "--until-exit", "--own-status", "bare:*", "-o", &of_bare, "--", &bare, "5"];
    let _ = tool().run(profile).assert_code(0);
    let command = ["profile", "blocks", "--weights", &of_bare, "bare:*", "--", &bare, "5"];
    let _ = tool().run(command).assert_error(2, &["no file with a build-id", "--weights"]);

    // A profile of another program has counts of none of these functions.
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let command = ["profile", "blocks", "-p", &target.pid_text(), "leaf", "--weights", &file];
    let _ = tool().run(command).assert_error(2, &["has counts of none of these functions", "--weights"]);
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    assert!(target.end().success());
}

/// The memory of a program that ends at once may be gone while the engine looks at its modules.
#[test]
fn profiles_of_a_program_that_ends_at_once_are_whole() {
    let determ = program("determ").expect("gcc").to_str().expect("a path").to_owned();
    let mut before = None;
    for _ in 0..scaled(20, 500) {
        let counts = blocks(&profile("blocks", ("determ:*", &[]), &[&determ, "1"]));
        assert!(counts.len() > 30, "{counts:?}");
        assert_eq!(before.get_or_insert_with(|| counts.clone()), &counts);
    }
}

/// The counts of a library stay when it is unloaded, and go on when it comes back.
#[test]
fn profiles_of_a_library_that_comes_and_goes() {
    let path = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")]);
    target.ask("open");
    let before = Text::of(target.pid());
    let session = tool().measure("profile", target.pid(), &["blocks", "libplugin:plugin_work", "--check"]);
    target.ask("call 50").assert_right();
    target.ask("close");
    target.ask("open");
    target.ask("call 20").assert_right();
    target.ask("close");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_exact(&outcome);
    assert_eq!(entries(&outcome, "plugin_work"), 70);
    assert!(outcome.all("block")[0]["module"].as_str().is_some_and(|name| name.starts_with("libplugin")));
    target.ask("open");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}
