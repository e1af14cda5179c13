//! Coverage: what has run, compared with gcov and with what programs were asked to run; probes that remove themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use ingraft_testing::server::Postgres;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{
    Daemon, Mutatee, Outcome, Session, Tool, have, open_directory, output, program, sibling, skip, source_directory,
    wait_until,
};

use crate::tool;

/// Words for whether the blocks of a function have run, by the offsets of the blocks.
fn blocks(outcome: &Outcome, function: &str) -> BTreeMap<String, String> {
    let all = outcome.all("block").into_iter().filter(|block| block["function"] == function);
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    all.map(|block| (text(&block["block"]), text(&block["ran"]))).collect()
}

/// Number of blocks of a function that have run.
fn ran(outcome: &Outcome, function: &str) -> usize {
    blocks(outcome, function).values().filter(|ran| *ran == "yes").count()
}

/// The words for a branch of a function.
fn edges(outcome: &Outcome, function: &str) -> BTreeMap<String, usize> {
    let mut words = BTreeMap::new();
    for edge in outcome.all("edge").into_iter().filter(|edge| edge["function"] == function) {
        *words.entry(edge["ran"].as_str().expect("a word").to_owned()).or_default() += 1;
    }
    words
}

/// Number of bytes of the program's own text that differ from what they were. In the loader, a hook stays as long as something is measured.
fn changes(target: &Mutatee, before: &Text) -> usize {
    let differences = before.differences(&Text::of(target.pid()));
    let of_program = differences.iter().filter_map(|line| line.split_once("/covered: "));
    of_program.map(|(_, rest)| rest.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("a number")).sum()
}

/// Waits until probes were taken out and the text does not change any more.
fn settle(target: &Mutatee, before: &Text, first: usize) -> usize {
    wait_until("probes are taken out", || changes(target, before) < first);
    let mut last = usize::MAX;
    wait_until("no more probes are taken out", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = changes(target, before);
        std::mem::replace(&mut last, now) == now
    });
    last
}

fn coverage(target: &Mutatee, functions: &[&str]) -> Session {
    coverage_by(&tool(), target, functions)
}

fn coverage_by(tool: &Tool, target: &Mutatee, functions: &[&str]) -> Session {
    tool.measure("profile", target.pid(), &[&["coverage"], functions].concat())
}

#[test]
fn coverage_tells_the_blocks_that_have_run_since_the_start() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let _ = target.ask("choose 3");
    let session = coverage(&target, &["choose", "never"]);
    let inserted = changes(&target, &before);
    assert!(inserted > 10, "{inserted} bytes");
    let _ = target.ask("choose 1");
    let left = settle(&target, &before, inserted);
    assert!(left > 0, "blocks that have not run keep their probes");
    // A block that has run once tells nothing more.
    let _ = target.ask("spin 1000");
    let few = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    assert_eq!(ran(&few, "never"), 0);

    let session = coverage(&target, &["choose", "--branches"]);
    for n in ["0", "1", "2", "3", "4", "7", "500", "-3"] {
        let _ = target.ask(&format!("choose {n}"));
    }
    let all = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    let (some, most) = (ran(&few, "choose"), ran(&all, "choose"));
    assert!(some > 2 && most > some, "{some} and {most}");
    assert_eq!(most, blocks(&all, "choose").len(), "{all:?}");
    let words = edges(&all, "choose");
    assert_eq!(words.get("unknown"), None, "{words:?}");
    assert!(target.end().success());
}

#[test]
fn a_function_all_of_whose_blocks_have_run_has_its_original_bytes() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let session = coverage(&target, &["choose"]);
    assert!(changes(&target, &before) > 0);
    for n in ["0", "1", "2", "3", "4", "7", "8", "500", "501", "-3", "-4"] {
        let _ = target.ask(&format!("choose {n}"));
    }
    wait_until("all probes are taken out", || changes(&target, &before) == 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(blocks(&outcome, "choose").values().all(|ran| ran != "no"), "{outcome:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn what_has_run_is_never_told_not_to_have_run() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let session = coverage(&target, &["choose"]);
    for n in ["0", "1", "3", "500", "-3"] {
        let _ = target.ask(&format!("choose {n}"));
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let words = blocks(&outcome, "choose");
    assert!(words.values().all(|ran| ran != "no"), "{words:?}");
    assert!(ran(&outcome, "choose") > words.len() / 2, "{words:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn without_a_function_the_programs_own_module_is_profiled() {
    let determ = program("determ").expect("gcc");
    let determ = determ.to_str().expect("a path");
    let modules = |kind: &str, functions: &[&str]| {
        let words = ["profile", kind, "--until-exit", "--own-status", "--max-overhead", "10000"];
        let outcome = tool().run([&words[..], functions, &["--", determ, "10"]].concat()).assert_code(0);
        let records = outcome.objects.iter().filter(|record| record["function"].is_string());
        records.map(|record| record["module"].as_str().expect("a module").to_owned()).collect::<BTreeSet<String>>()
    };
    let own = BTreeSet::from(["determ".to_owned()]);
    for kind in ["coverage", "blocks", "edges", "events", "times", "paths", "contexts"] {
        assert_eq!(modules(kind, &[]), own, "{kind}");
    }
    assert!(modules("coverage", &["*"]).contains("libc.so.6"));
}

#[test]
fn several_clients_of_a_daemon_cover_and_count_one_function() {
    let directory = open_directory();
    let daemon = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    let client = || daemon.client(env!("CARGO_BIN_EXE_ingraft"));
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let first = coverage_by(&client(), &target, &["choose"]);
    let _ = target.ask("choose 2");
    let pid = target.pid_text();
    let more = |command: &[&str]| {
        let mut session = client().start([command, &["-p", &pid, "--max-overhead", "10000", "choose"]].concat());
        session.wait_for("changed");
        session
    };
    let count = more(&["count"]);
    let second = more(&["profile", "coverage", "--branches"]);
    let times = more(&["latency"]);
    let _ = target.ask("choose 500");
    let _ = target.ask("spin 1000");
    let second = second.interrupt().assert_code(0);
    let count = count.interrupt().assert_code(0);
    let times = times.interrupt().assert_code(0);
    let first = first.interrupt().assert_code(0).assert_removed();
    assert_eq!(count.calls("choose"), 1001);
    assert_eq!(times.latency("choose").calls, 1001);
    let (first, second) = (blocks(&first, "choose"), blocks(&second, "choose"));
    assert!(second.iter().all(|(block, ran)| ran != "yes" || first[block] == "yes"), "{first:?} {second:?}");
    assert!(second.values().any(|ran| ran == "no") && second.values().any(|ran| ran == "yes"), "{second:?}");
    target::assert_clean(target.pid(), &before);
    assert!(daemon.terminate().success());
    assert!(target.end().success());
}

#[test]
fn an_engine_that_dies_between_rounds_leaves_what_restores_the_program() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let tool = tool();
    let session = coverage_by(&tool, &target, &["choose", "never"]);
    let inserted = changes(&target, &before);
    let _ = target.ask("choose 1");
    wait_until("probes are taken out", || changes(&target, &before) < inserted);
    session.kill();
    let _ = target.ask("choose 500");
    let _ = tool.detach(target.pid()).assert_removed();
    target::assert_clean(target.pid(), &before);
    let _ = target.ask("choose -3");
    assert!(target.end().success());
}

#[test]
fn threads_run_while_probes_are_taken_out() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let session = coverage(&target, &["choose", "never", "--branches"]);
    target.tell("race 4 8");
    let _ = target.reply();
    let _ = target.ask("choose 300");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let words = blocks(&outcome, "choose");
    assert_eq!(words.values().filter(|ran| *ran == "unknown").count(), 0);
    assert!(words.values().any(|ran| ran == "no"), "nothing negative was chosen");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn coverage_of_children_counts_for_their_parent() {
    let mut target = Mutatee::start("covered", &[]);
    let before = Text::of(target.pid());
    let session = coverage(&target, &["choose", "--follow", "fork"]);
    let _ = target.ask("fork 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(ran(&outcome, "choose") > 3, "{outcome:?}");
    target::assert_clean(target.pid(), &before);

    let session = coverage(&target, &["choose"]);
    let _ = target.ask("fork 3");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(ran(&outcome, "choose"), 0, "only the child has called it");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn misuse_of_coverage_is_refused() {
    let target = Mutatee::start("covered", &[]);
    let run =
        |arguments: &[&str]| tool().run([&["profile"], arguments, &["-p", &target.pid_text(), "choose"]].concat());
    let _ = run(&["coverage", "--check"]).assert_error(2, &["no derived counts"]);
    let _ = run(&["blocks", "--branches"]).assert_error(2, &["belongs to a coverage"]);
    let _ = run(&["coverage", "--no-remove"]).assert_error(2, &["no-remove"]);
    assert!(target.end().success());
}

/// For each line of a source file that gcov knows, whether it has run.
fn gcov(source: &Path, arguments: &[&str], directory: &Path) -> BTreeMap<u32, bool> {
    let plain = ["-O0", "-g", "--coverage", "-pthread", "-o", "counted"];
    output(Command::new("gcc").current_dir(directory).args(plain).arg(source));
    let _ = Command::new("./counted").current_dir(directory).args(arguments).output().expect("run");
    let name = source.file_stem().and_then(|name| name.to_str()).expect("a name");
    let text = output(Command::new("gcov").current_dir(directory).args(["-t", &format!("counted-{name}.gcda")]));
    let mut lines = BTreeMap::new();
    let mut own = false;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(count), Some(number)) = (fields.next(), fields.next()) else { continue };
        let (count, number) = (count.trim(), number.trim().parse::<u32>().unwrap_or_default());
        if number == 0 {
            let source = fields.next().and_then(|rest| rest.strip_prefix("Source:"));
            own = source.map_or(own, |path| path.ends_with(&format!("{name}.c")));
        } else if own && count != "-" {
            lines.insert(number, !count.starts_with(['#', '=']));
        }
    }
    lines
}

/// For each line of a source file that a coverage knows, whether it has run.
fn covered(source: &Path, arguments: &[&str], directory: &Path) -> BTreeMap<u32, bool> {
    let (program, saved) = (directory.join("plain"), directory.join("saved"));
    output(Command::new("gcc").args(["-O0", "-g", "-pthread", "-o"]).arg(&program).arg(source));
    let (program, saved) = (program.to_str().expect("a path"), saved.to_str().expect("a path"));
    let mut command =
        vec!["profile", "coverage", "--until-exit", "--own-status", "-o", saved, "plain:*", "--", program];
    command.extend(arguments);
    let _ = tool().run(command).assert_code(0);
    let report = tool().run(["report", saved, "--as", "lcov"]).assert_code(0);
    let (mut lines, mut own) = (BTreeMap::new(), false);
    for line in report.other {
        if let Some(path) = line.strip_prefix("SF:") {
            own = Path::new(path).file_name() == source.file_name();
        } else if let Some((number, count)) = line.strip_prefix("DA:").and_then(|rest| rest.split_once(','))
            && own
        {
            lines.insert(number.parse().expect("a line"), count != "0");
        }
    }
    lines
}

/// Fails unless gcov and the coverage agree on every line that both know, and nearly all lines are known to both. Returns the number of
/// lines that have not run.
fn assert_equals_gcov(source: &str, arguments: &[&str]) -> usize {
    let source = source_directory().join("tests/mutatees").join(source);
    let directory = open_directory();
    let truth = gcov(&source, arguments, directory.path());
    let found = covered(&source, arguments, directory.path());
    let differ: Vec<_> = truth.iter().filter(|(line, ran)| found.get(line).is_some_and(|own| own != *ran)).collect();
    assert!(differ.is_empty(), "{}: lines with what gcov says: {differ:?}", source.display());
    let both = truth.keys().filter(|line| found.contains_key(line)).count();
    let only = |a: &BTreeMap<u32, bool>, b: &BTreeMap<u32, bool>| -> Vec<u32> {
        a.keys().filter(|line| !b.contains_key(line)).copied().collect()
    };
    let (only_gcov, only_own) = (only(&truth, &found), only(&found, &truth));
    println!("{}: {both} lines; only gcov's {only_gcov:?}, only ours {only_own:?}", source.display());
    // Only the debugging information has the lines of some closing braces. Some lines have no code but a jump without room for a probe.
    assert!(10 * only_own.len() <= both && 10 * only_gcov.len() <= both, "{only_gcov:?} {only_own:?}");
    truth.values().filter(|ran| !**ran).count()
}

#[test]
fn coverage_equals_gcovs_line_for_line() {
    if !have("gcc") || !have("gcov") {
        skip!("gcc is not installed");
    }
    let mut not_run = assert_equals_gcov("determ.c", &["300"]);
    not_run += assert_equals_gcov("grammar.c", &["1+2*3", "(4-2)/7", "a=5", "a%3", "a ? 1 : -2", "1/0", "-3", "(1"]);
    not_run += assert_equals_gcov("shelf.c", &["a", "b", "a", "c", "d", "e", "f", "--least=1"]);
    assert!(not_run > 5, "{not_run} lines");
}

/// A saved coverage adds up with another one, differs from it, and is refused where counts are needed.
#[test]
fn a_saved_coverage_is_reported() {
    let directory = open_directory();
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("covered", &[]);
    let mut part = |n: &str| {
        let file = path(n);
        let mut session = tool().start(["profile", "coverage", "-p", &target.pid_text(), "choose", "-o", &file]);
        session.wait_for("attached");
        let _ = target.ask(&format!("choose {n}"));
        let _ = session.interrupt().assert_code(0);
        tool().run(["report", &file, "--as", "json"]).assert_code(0)
    };
    let (one, two) = (part("1"), part("-2"));
    let both = tool().run(["report", &path("1"), &path("-2"), "--as", "json"]).assert_code(0);
    let (a, b, sum) = (blocks(&one, "choose"), blocks(&two, "choose"), blocks(&both, "choose"));
    for (block, ran) in &sum {
        let both = [&a[block], &b[block]];
        let expected = ["yes", "unknown", "no"].into_iter().find(|word| both.iter().any(|ran| *ran == word));
        assert_eq!(Some(ran.as_str()), expected, "{block}");
    }
    let diff = tool().run(["report", &path("1"), "--diff", &path("-2"), "--as", "json"]).assert_code(0);
    assert!(!diff.all("block_change").is_empty());
    let table = output(&mut tool().plain_command(["report", &path("1")]));
    assert!(table.contains("source lines have run"), "{table}");
    let _ = tool().run(["report", &path("1"), "--as", "fdata"]).assert_error(2, &["needs counts"]);
    assert!(target.end().success());
}

/// The coverage of a library stays when it is unloaded. When it comes back it has no probes, so nothing is known of what had not run before.
#[test]
fn coverage_of_a_library_that_comes_and_goes() {
    let path = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")]);
    let functions = ["libplugin:plugin_work", "libplugin:plugin_born"];
    let words = |outcome: &Outcome| -> Vec<String> {
        ["plugin_work", "plugin_born"].iter().flat_map(|f| blocks(outcome, f).into_values()).collect()
    };
    target.ask("open");
    let session = coverage(&target, &functions);
    target.ask("call 5").assert_right();
    target.ask("close");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(words(&outcome), ["yes", "no"]);

    target.ask("open");
    let session = coverage(&target, &functions);
    target.ask("close");
    target.ask("open");
    target.ask("call 5").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(words(&outcome), ["unknown", "unknown"]);
    assert!(outcome.stderr.contains("unloaded and loaded again"), "{}", outcome.stderr);
    assert!(target.end().success());
}

/// The record of the blocks of 13,000 functions takes more than 64 MiB.
#[test]
fn of_a_postgresql_backend() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut sql = postgres.session();
    let before = Text::of(sql.pid);
    let session = tool().measure("profile", sql.pid, &["coverage", "postgres:*"]);
    assert_eq!(sql.ask("select 6 * 7;"), "42");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert!(ran(&outcome, "PortalRun") > 5);
    assert_eq!(ran(&outcome, "heap_insert"), 0);
    target::assert_clean(sql.pid, &before);
    assert_eq!(sql.ask("select 6 * 7;"), "42");
}
