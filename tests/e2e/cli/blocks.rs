//! Counts of basic blocks, compared with a simulator's counts of instructions and with the program's own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use ingraft_testing::server::Redis;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, find, have, open_directory, output, program, scaled, skip, source_directory};

use crate::tool;

/// Executions of each instruction, by the file's name and the instruction's address in it, as callgrind counts them.
pub fn executions(arguments: &[&str]) -> BTreeMap<(String, u64), u64> {
    let directory = open_directory();
    let file = directory.path().join("instructions");
    let valgrind = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--dump-instr=yes"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    valgrind.expect("run valgrind");
    let text = std::fs::read_to_string(&file).expect("callgrind's file");
    let (mut names, mut counts) = (BTreeMap::new(), BTreeMap::new());
    let (mut object, mut at, mut is_call) = (String::new(), 0u64, false);
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            let (id, name) = named.split_once(' ').map_or((named, None), |(id, name)| (id, Some(name)));
            if let Some(name) = name {
                names.insert(id.to_owned(), name.rsplit('/').next().unwrap_or(name).to_owned());
            }
            if line.starts_with("ob=") {
                object.clone_from(&names[id]);
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let mut words = line.split(' ');
            let position = words.next().unwrap_or_default();
            let number = |text: &str| match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).expect("an address"),
                None => text.parse().expect("a distance"),
            };
            at = match position.as_bytes() {
                [b'*'] => at,
                [b'+', ..] => at + number(&position[1..]),
                [b'-', ..] => at - number(&position[1..]),
                _ => number(position),
            };
            let cost: u64 = words.next_back().and_then(|text| text.parse().ok()).expect("a cost");
            // The line behind a call is what the callee has cost.
            if !std::mem::take(&mut is_call) {
                *counts.entry((object.clone(), at)).or_default() += cost;
            }
        }
    }
    counts
}

/// Counts of blocks by module and address, without those that could not be woven or that a profile leaves out; and the number of these, where a
/// function that was refused as a whole counts once.
fn counted(outcome: &Outcome) -> (BTreeMap<(String, u64), u64>, usize) {
    let hex = |text: &str| {
        let (minus, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
        let number = i64::from_str_radix(digits.trim_start_matches("0x"), 16).expect("a number");
        if minus { -number } else { number }
    };
    let text = |record: &serde_json::Value, key: &str| record[key].as_str().expect("a text").to_owned();
    let focus = |record: &serde_json::Value| record["focus"].as_str().unwrap_or_default().to_owned();
    let refused: Vec<(String, String)> = outcome.all("refused").iter().map(|r| (text(r, "module"), focus(r))).collect();
    let mut left_out = 0;
    let mut counts = BTreeMap::new();
    // The blocks of `count`, or those of a profile.
    let blocks = outcome.all("count").into_iter().map(|record| (record, "calls"));
    for (record, key) in blocks.chain(outcome.all("block").into_iter().map(|record| (record, "count"))) {
        let (module, block) = (text(record, "module"), text(record, "block"));
        let name = text(record, "function");
        let is_refused = |(of, focus): &(String, String)| {
            *of == module && focus.ends_with(&format!("/#{block}")) && focus.contains(&format!("/{name}"))
        };
        if !refused.iter().any(is_refused) {
            let at = hex(&text(record, "offset")).wrapping_add(hex(&block));
            match record[key].as_u64() {
                None if key == "count" => left_out += 1,
                count => _ = counts.insert((module, at.cast_unsigned()), count.expect("a number")),
            }
        }
    }
    (counts, refused.len() + left_out)
}

/// Addresses of a file's main code: callgrind leaves out what the loader calls before and behind it (`.init`, `.fini`).
pub fn text_of(file: &Path) -> Range<u64> {
    let sections = output(Command::new("objdump").arg("-h").arg(file));
    let line =
        sections.lines().find(|line| line.split_whitespace().nth(1) == Some(".text")).expect("a section of code");
    let number =
        |n| line.split_whitespace().nth(n).and_then(|text| u64::from_str_radix(text, 16).ok()).expect("a number");
    number(3)..number(3) + number(2)
}

/// Compares the counts of all blocks of a module with callgrind's. Both run the same command. The count of a block that a profile leaves out is
/// not told. Returns what the command has told.
fn assert_equals_callgrind(command: &[&str], (module, file): (&str, &Path), arguments: &[&str]) -> Outcome {
    let truth = executions(arguments);
    let command = [command, &["--until-exit", "--own-status", "--max-overhead", "10000", "--"], arguments].concat();
    let outcome = tool().run(command).assert_code(0);
    let (counts, refused) = counted(&outcome);
    // One of them says the name of the file, the other one that of a link to it.
    let base = |name: &str| name.split(".so").next().unwrap_or(name).to_owned();
    let truth: BTreeMap<_, _> = truth.iter().map(|((of, at), count)| ((base(of), *at), count)).collect();
    let text = text_of(file);
    let mut wrong = Vec::new();
    let mut hot = 0;
    for (place, count) in counts.iter().filter(|((_, at), _)| text.contains(at)) {
        let executed = truth.get(&(base(&place.0), place.1)).map_or(0, |count| **count);
        hot += u64::from(executed > 0);
        if executed != *count {
            wrong.push(format!("{}+{:#x}: {count} instead of {executed}", place.0, place.1));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), counts.len(), wrong.join("\n"));
    assert!(hot > 10, "{hot} blocks of {module} were executed");
    let share = counts.len() as f64 / (counts.len() + refused) as f64;
    println!("{module}: {} blocks, {hot} of them executed; {:.1} % of all could be woven", counts.len(), 100.0 * share);
    assert!(share > 0.8, "{refused} of {} blocks of {module} are refused", counts.len() + refused);
    outcome
}

#[test]
fn every_block_of_a_program_equals_callgrinds_count() {
    if !have("valgrind") {
        skip!("valgrind is not installed");
    }
    let path = program("determ").expect("gcc");
    let _ =
        assert_equals_callgrind(&["count", "determ:*#*"], ("determ", &path), &[path.to_str().expect("a path"), "2000"]);
}

#[test]
fn every_block_of_a_library_equals_callgrinds_count() {
    let (true, Some(bzip2)) = (have("valgrind"), find("bzip2")) else {
        skip!("valgrind or bzip2 is not installed");
    };
    let directory = open_directory();
    let file = directory.path().join("text");
    let text: String = (0..20_000u32).map(|n| format!("{} {:x}\n", n % 977, n.wrapping_mul(2_654_435_761))).collect();
    std::fs::write(&file, text).expect("write the input");
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let libraries = output(Command::new("ldd").arg(&bzip2));
    let library = libraries.split_whitespace().find(|word| word.starts_with('/') && word.contains("libbz2"));
    let library = Path::new(library.expect("libbz2"));
    let arguments = [path(&bzip2), "-kf".to_owned(), path(&file)];
    let _ = assert_equals_callgrind(
        &["count", "libbz2:*#*"],
        ("libbz2", library),
        &arguments.each_ref().map(String::as_str),
    );
}

/// Some functions of a Rust program have blocks that run in the text: landing pads, and short blocks behind calls. All other blocks are exact, and
/// few functions are refused.
#[test]
fn every_block_of_a_profile_of_rust_equals_callgrinds_count() {
    let (true, Ok(path)) = (have("valgrind"), program("garbage")) else {
        skip!("valgrind or rustc is not installed");
    };
    let arguments = [path.to_str().expect("a path")];
    let outcome = assert_equals_callgrind(&["profile", "blocks", "garbage:*"], ("garbage", &path), &arguments);
    let of = |kind: &str| outcome.all(kind).iter().map(|r| r["offset"].to_string()).collect::<BTreeSet<_>>().len();
    let (refused, measured) = (of("refused"), of("block"));
    assert!(refused * 20 < measured, "{refused} functions are refused, and {measured} are measured");
}

/// A module, and an address in it.
type Place = (String, u64);
/// Executions by place.
type Counts = BTreeMap<Place, u64>;

/// The loop of an interpreter: the code of each operation ends in a computed jump to that of the next one.
const LOOP: (&str, &str) = ("/usr/bin/python3.11", "_PyEval_EvalFrameDefault");

#[test]
fn every_block_of_pythons_loop_equals_callgrinds_count() {
    let (python, function) = LOOP;
    if !have("valgrind") || !Path::new(python).exists() {
        skip!("valgrind or {python} is not installed");
    }
    let refused = pythons_loop_equals_callgrind(&["count", &format!("{function}#*")]);
    assert!(refused.0 * 50 <= refused.1, "{refused:?}");
}

/// The jumps lead to the same blocks, so which jump was taken is not counted. All blocks are.
#[test]
fn a_profile_of_pythons_loop_equals_callgrinds_counts() {
    let (python, function) = LOOP;
    if !have("valgrind") || !Path::new(python).exists() {
        skip!("valgrind or {python} is not installed");
    }
    let refused = pythons_loop_equals_callgrind(&["profile", "blocks", function]);
    assert_eq!(refused.0, 0);
}

/// Code of Python that the program holds has words that look like addresses of the loop.
#[test]
fn all_calls_of_pythons_loop_are_timed() {
    let (python, function) = LOOP;
    if !Path::new(python).exists() {
        skip!("{python} is not installed");
    }
    let program = "f = lambda n: n if n < 2 else f(n - 1) + f(n - 2)\nclass A:\n def __lt__(self, other): return id(self) < id(other)\n\
                   print(f(15), len(sorted(A() for _ in range(1000))))";
    let python = ["--", python, "-S", "-E", "-s", "-c", program];
    let command = ["latency", function, "--until-exit", "--own-status", "--max-overhead", "100000"];
    let outcome = tool().run([&command[..], &python].concat()).assert_code(0);
    assert_eq!(outcome.other, ["610 1000"]);
    let times = outcome.one("latency");
    let number = |key: &str| times[key].as_u64().unwrap_or_default();
    assert!(number("calls") >= 1000, "each comparison is a call from C: {times}");
    assert_eq!(number("timed"), number("calls"), "{times}");
}

/// Compares the counts of a command with callgrind's. Returns the numbers of blocks that were refused, and of all others.
fn pythons_loop_equals_callgrind(command: &[&str]) -> (usize, usize) {
    let python = LOOP.0;
    // Without the modules of the site, and without the environment. No hash of a text decides about the order of anything. What python does
    // before the program differs under valgrind, by a debugger's counts too, so the difference between two programs is compared.
    let measured = |rounds: u32| {
        let program = format!(
            "def f(n):\n try: return [x * x for x in range(n)] or n / 0\n except ZeroDivisionError: return {{n: str(n)}}\n\
             print(sum(len(f(n)) for n in range({rounds})), sorted({{'a': 1, **{{'b': 2}}}}))"
        );
        let arguments = &[python, "-S", "-E", "-s", "-c", &program][..];
        let plain = output(Command::new(python).args(&arguments[1..]));
        let truth = executions(arguments);
        let command = [command, &["--until-exit", "--own-status", "--max-overhead", "10000", "--"], arguments].concat();
        let outcome = tool().run(command).assert_code(0);
        assert_eq!(outcome.other, plain.lines().collect::<Vec<_>>(), "what the program printed");
        let (counts, refused) = counted(&outcome);
        (counts, refused, truth)
    };
    let (counts, refused, truth) = measured(300);
    let (fewer, _, less) = measured(40);
    let more = |all: &Counts, few: &Counts, place: &Place| {
        let at = |counts: &Counts| counts.get(place).map_or(0, |count| count.cast_signed());
        at(all) - at(few)
    };
    let is_wrong = |place: &&Place| more(&counts, &fewer, place) != more(&truth, &less, place);
    let wrong: Vec<_> = counts.keys().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:x?}", wrong.len(), counts.len());
    let hot = counts.values().filter(|count| **count > 0).count();
    println!("{} blocks, {hot} of them executed, {refused} refused", counts.len());
    assert!(hot > 500, "{hot} of {} blocks, {refused} refused", counts.len());
    (refused, counts.len())
}

/// Head of the loop of `leaf` in the program `blocks`, and the block behind it.
const HEAD: &str = "leaf#0x11";
const BEHIND: &str = "leaf#0x1b";

/// Count of the block that a pattern names.
fn count_of(outcome: &Outcome, block: &str) -> u64 {
    let (function, offset) = block.split_once('#').expect("a block");
    let counts = outcome.all("count");
    let is_it = |record: &&&serde_json::Value| record["function"] == function && record["block"] == offset;
    counts.iter().find(is_it).and_then(|record| record["calls"].as_u64()).expect("a count")
}

/// Calls of `leaf`, from the record that is about no block.
fn entries(outcome: &Outcome) -> u64 {
    let counts = outcome.all("count");
    let entry = counts.iter().find(|record| record["function"] == "leaf" && record["block"].is_null());
    entry.and_then(|record| record["calls"].as_u64()).expect("a count")
}

#[test]
fn blocks_of_a_leaf_that_keeps_values_below_the_stack() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = tool();
    target.ask("go 10");
    let session = tool.count(target.pid(), &["leaf", HEAD, BEHIND]);
    before.assert_not_in(target.pid());
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let counts = [HEAD, BEHIND].map(|block| count_of(&outcome, block));
    assert_eq!(counts, [3 * 4000, 4000]);
    assert_eq!(outcome.all("refused"), Vec::<&serde_json::Value>::new());
    target::assert_clean(target.pid(), &before);
    assert_eq!(target.ask("go 10").number("wrong"), 0);
    assert!(target.end().success());
}

#[test]
fn blocks_that_come_and_go_while_threads_run_them() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = tool();
    for round in 0..scaled(10, 200) {
        target.tell("go 300000");
        let blocks: &[&str] = if round % 2 == 0 { &[BEHIND, HEAD] } else { &["leaf", HEAD] };
        let outcome = tool.count(target.pid(), blocks).interrupt().assert_code(0).assert_removed();
        let head = count_of(&outcome, HEAD);
        assert_eq!(target.reply().number("wrong"), 0, "{head} rounds were counted");
        // Three rounds for each call, but for the calls that were in progress at the beginning and at the end: one in each of four threads.
        let whole = if round % 2 == 0 { count_of(&outcome, BEHIND) } else { entries(&outcome) };
        assert!(head.abs_diff(3 * whole) <= 3 * 2 * 4, "{head} rounds of {whole} calls");
        target::assert_clean(target.pid(), &before);
    }
    assert!(target.end().success());
}

#[test]
fn every_block_of_redis_under_load() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let before = Text::of(redis.pid());
    // An answer lacks its own request, and the next answer includes it.
    let earlier = redis.command_calls();
    let session = tool().count(redis.pid(), &["redis-server:*#*"]);
    let commands = scaled(50_000, 1_000_000);
    redis.load(&["-n", &commands.to_string(), "-c", "25", "-P", "16", "-q", "-t", "set,lpush,zadd"]);
    let served = redis.command_calls() - earlier;
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(served >= 3 * commands, "{served}");
    assert_eq!(count_of(&outcome, "processCommand#0x0"), served);
    assert_eq!(count_of(&outcome, "setCommand#0x0"), commands);
    let points = outcome.one("attached")["points"].as_u64().expect("a number");
    let refused = outcome.all("refused").len() as u64;
    println!("{points} blocks are woven, {refused} are refused");
    assert!(points > 10 * refused, "{points} blocks are woven, {refused} are refused");
    target::assert_clean(redis.pid(), &before);
    assert_eq!(redis.ask(&["SET a b", "GET a"]), ["+OK", "b"]);
}

#[test]
fn threads_that_have_unmapped_their_stack() {
    if let Err(why) = program("detached-musl") {
        skip!("{why}");
    }
    let mut target = Mutatee::start("detached-musl", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["*#*"]);
    target.ask("end 300");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(count_of(&outcome, "__unmapself#0x0") > 0, "threads have ended");
    target::assert_clean(target.pid(), &before);
    target.ask("end 10");
    assert!(target.end().success());
}

/// In the text, the entry and the first block would share their bytes. In a copy of the function, both are counted.
#[test]
fn an_entry_and_its_block() {
    let mut target = Mutatee::start("blocks", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["leaf", "leaf#0x0", HEAD]);
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let counts = outcome.all("count");
    let of =
        |block: Option<&str>| counts.iter().find(|c| c["block"].as_str() == block).expect("a count")["calls"].as_u64();
    assert_eq!([of(None), of(Some("0x0")), of(Some("0x11"))], [Some(1000), Some(1000), Some(3000)]);
    assert_eq!(outcome.all("refused"), Vec::<&serde_json::Value>::new());
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_refused_block_is_named() {
    let target = Mutatee::start("adjacent", &[]);
    // The function has one byte, and another one begins right behind it.
    let session = tool().count(target.pid(), &["first", "keep#*"]);
    let outcome = session.interrupt().assert_code(0);
    let refused = outcome.all("refused");
    assert!(!refused.is_empty(), "{outcome:#?}");
    for refused in refused {
        assert_eq!(refused["function"], "keep");
        assert!(refused["focus"].as_str().is_some_and(|focus| focus.contains("/keep/#0x")), "{refused}");
    }
    assert!(target.end().success());
}

#[test]
fn a_place_where_no_block_begins_is_an_error_that_names_blocks() {
    let target = Mutatee::start("blocks", &[]);
    let arguments = ["count", "-p", &target.pid_text(), "leaf#0x12"];
    let _ = tool().run(arguments).assert_error(3, &["no block begins at #0x12", "blocks begin at #0x0, #0x11, #0x1b"]);
    assert!(target.end().success());
}

/// Number of the first line of a source file that contains some text.
fn line_with(source: &str, text: &str) -> usize {
    let lines = std::fs::read_to_string(source_directory().join("tests/mutatees").join(source)).expect("the source");
    1 + lines.lines().position(|line| line.contains(text)).expect("a line with this text")
}

#[test]
fn the_blocks_of_a_source_line() {
    let path = program("determ").expect("gcc");
    let path = path.to_str().expect("a path");
    let tool = tool();
    let truth = have("valgrind").then(|| executions(&[path, "2000"]));
    // `fib(18)` makes 8361 calls, of which every second one makes two more; `even` and `odd` take turns from 2000 on.
    for (text, least) in [("long fib(long n)", 4000), ("int odd(int n)", 1000), ("while (*text) hash", 2000)] {
        let line = format!("determ.c:{}", line_with("determ.c", text));
        let outcome = tool.run(["count", "--until-exit", "--own-status", &line, "--", path, "2000"]).assert_code(0);
        let (counts, _) = counted(&outcome);
        assert!(counts.values().any(|count| *count >= least), "{line}: {counts:?}");
        for ((module, at), count) in counts {
            let executed = truth.as_ref().map(|truth| truth.get(&(module, at)).copied().unwrap_or_default());
            assert_eq!(executed.unwrap_or(count), count, "{line}: the block at {at:#x}");
        }
    }
    let comment = format!("determ.c:{}", line_with("determ.c", "A deterministic run"));
    let missing = tool.run(["count", "--until-exit", &comment, "--", path, "10"]);
    let _ = missing.assert_error(3, &["no code of `determ.c:1` in any module", "lines of declarations, of comments"]);
    let target = Mutatee::start("blocks", &[]);
    let _ = tool
        .run(["count", "-p", &target.pid_text(), "blocks.c:100000"])
        .assert_error(3, &["no code of `blocks.c:100000`"]);
    assert!(target.end().success());
}

/// A block that begins behind a prefix, over which control may jump, keeps its place: a jump there would follow the prefix.
#[test]
fn prefixes_that_control_may_jump_over_stay_with_their_instructions() {
    let mut target = Mutatee::start("prefixes", &[]);
    let (before, pid, tool) = (Text::of(target.pid()), target.pid_text(), tool());
    for command in [
        &["count", "locked_add#0xa"][..],
        &["count", "locked_count#0xa"],
        &["count", "locked_rounds#0xe"],
        &["count", "prefixes:locked_*#*"],
        &["count", "prefixes:locked_*"],
        &["latency", "prefixes:locked_*"],
        &["callers", "prefixes:locked_*"],
        &["slow", "locked_count", "--over", "1ns"],
        &["profile", "coverage", "prefixes:locked_*"],
        &["profile", "coverage", "--branches", "prefixes:locked_*"],
        &["profile", "blocks", "prefixes:locked_*"],
        &["profile", "contexts", "prefixes:locked_*"],
        &["profile", "paths", "prefixes:locked_*"],
    ] {
        let mut session = tool.start([command, &["-p", &pid, "--max-overhead", "10000"]].concat());
        session.wait_for("attached");
        let reply = target.ask("go 500");
        assert_eq!((reply.after("added"), reply.after("counted")), ("249500", "4000"), "{command:?}");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let calls: u64 = outcome.all("count").iter().filter_map(|count| count["calls"].as_u64()).sum();
        let expected = match command {
            // Two of the blocks of `locked_add` and of `locked_count` run each time, and two half of the times.
            ["count", "prefixes:locked_*#*"] => 2 * (2000 + 1000) + 4000 + 2 * 3000 + 2 * 1500 + 1000,
            ["count", one] if one.contains("locked_rounds#") => 1500,
            ["count", one] if one.contains('#') => 500,
            ["count", _] => 3000,
            _ => 0,
        };
        assert_eq!(calls, expected, "{command:?}: {outcome:#?}");
        target::assert_clean(target.pid(), &before);
    }
    assert!(target.end().success());
}
