//! Tests of `ingraft profile paths`: the program keeps its own account of the ways that control takes through its functions. Programs that do the same
//! each time have as many executions of each block by their paths as `ingraft profile edges` counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, find, open_directory, scaled, skip};
use serde_json::Value;

use crate::tool;

/// Largest number of paths of a function that are inspected.
const SHOWN: u32 = 4;

/// For each function and each kind of beginning and end, how often each path has run, in ascending order.
type Ways = BTreeMap<(String, String, String), Vec<u64>>;

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or_else(|| panic!("no {key} in {record}"))
}

fn word(record: &Value, key: &str) -> String {
    record[key].as_str().unwrap_or_else(|| panic!("no {key} in {record}")).to_owned()
}

fn ways(rows: impl Iterator<Item = ((String, String, String), u64)>) -> Ways {
    let mut ways = Ways::new();
    rows.for_each(|(key, count)| ways.entry(key).or_default().push(count));
    ways.values_mut().for_each(|counts| counts.sort_unstable());
    ways
}

/// The paths that the tool has told.
fn told(outcome: &Outcome) -> Ways {
    let row = |record: &&Value| {
        ((word(record, "function"), word(record, "begins"), word(record, "ends")), number(record, "count"))
    };
    ways(outcome.all("path").iter().map(row))
}

/// The paths in the program's account.
fn known(reply: &Reply) -> Ways {
    let row = |line: &String| {
        let words: Vec<&str> = line.strip_prefix("way ")?.split(' ').collect();
        let text = |n: usize| words[n].to_owned();
        Some(((text(0), text(1), text(2)), words[3].parse().expect("a number")))
    };
    ways(reply.lines.iter().filter_map(row))
}

/// Numbers of the account by function: of lines that begin with a word.
fn numbers(reply: &Reply, of: &str) -> BTreeMap<String, u64> {
    let row = |line: &String| {
        let (name, count) = line.strip_prefix(of)?.trim().rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().expect("a number")))
    };
    reply.lines.iter().filter_map(row).collect()
}

/// Profiles the program while it obeys a command. Returns what both say.
fn profiled(arguments: &[&str], command: &str) -> (Outcome, Reply) {
    profiled_functions(&["paths:p_*"], arguments, command)
}

fn profiled_functions(functions: &[&str], arguments: &[&str], command: &str) -> (Outcome, Reply) {
    let mut target = Mutatee::start("paths", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let mut session = tool().start(["profile", "paths", "-p", &pid].iter().chain(functions).chain(arguments));
    session.wait_for("attached");
    let truth = target.ask(command);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, truth)
}

/// Profiles the program while it obeys a command, and compares what both say.
fn check(command: &str) -> Outcome {
    let (outcome, truth) = profiled(&[], command);
    let (told, known) = (told(&outcome), known(&truth));
    assert!(known.len() > 10, "{known:?}");
    assert_eq!(told, known);
    let left = numbers(&truth, "left ");
    for paths in outcome.all("paths") {
        let name = word(paths, "function");
        assert_eq!(Some(&number(paths, "left")), left.get(&name), "{paths}");
        assert!(paths["inexact"].is_null() && number(paths, "unlisted") == 0 && number(paths, "open") == 0, "{paths}");
    }
    let late: u64 = outcome.all("paths").iter().map(|paths| number(paths, "late")).sum();
    let known = truth.lines.iter().find_map(|line| line.strip_prefix("late ")).expect("a number");
    assert_eq!(late, known.parse::<u64>().expect("a number"));
    assert_eq!(late, 4, "calls of p_inside had begun before");
    outcome
}

#[test]
fn paths_equal_the_programs_account() {
    for seed in 0..scaled(3, 30) {
        check(&format!("run {seed} 2000 3"));
    }
}

/// The ways of a function in calls of each of these callers; `-` is for calls that no caller has made.
type WaysOfCallers = BTreeMap<String, Ways>;

/// The paths that the tool has told, by the caller in whose calls they are.
fn told_by_caller(outcome: &Outcome) -> WaysOfCallers {
    let contexts: BTreeMap<u64, &Value> =
        outcome.all("context").into_iter().map(|context| (number(context, "id"), context)).collect();
    let caller = |path: &Value| {
        let mut at = contexts.get(&number(path, "context")).copied();
        assert_eq!(at.map(|context| word(context, "function")), Some(word(path, "function")), "{path}");
        while let Some(context) = at {
            let name = word(context, "function");
            if name.starts_with("c_") {
                return name;
            }
            at = context["parent"].as_u64().and_then(|parent| contexts.get(&parent)).copied();
        }
        "-".to_owned()
    };
    let mut all: BTreeMap<(String, u64, String), u64> = BTreeMap::new();
    let mut of_path: BTreeMap<(String, u64), (String, String)> = BTreeMap::new();
    for path in outcome.all("path") {
        let (function, n) = (word(path, "function"), number(path, "path"));
        *all.entry((function.clone(), n, caller(path))).or_default() += number(path, "count");
        of_path.insert((function, n), (word(path, "begins"), word(path, "ends")));
    }
    let mut told: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for ((function, n, caller), count) in all {
        let (begins, ends) = of_path[&(function.clone(), n)].clone();
        told.entry(caller).or_default().push(((function, begins, ends), count));
    }
    told.into_iter().map(|(caller, rows)| (caller, ways(rows.into_iter()))).collect()
}

/// The same in the program's account.
fn known_by_caller(reply: &Reply) -> WaysOfCallers {
    let mut known: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for line in reply.lines.iter().filter_map(|line| line.strip_prefix("at ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let text = |n: usize| words[n].to_owned();
        let row = ((text(1), text(2), text(3)), words[4].parse().expect("a number"));
        known.entry(text(0)).or_default().push(row);
    }
    known.into_iter().map(|(caller, rows)| (caller, ways(rows.into_iter()))).collect()
}

/// Each context has the paths that the program's account has for its caller, and all contexts together have those of the functions.
#[test]
fn paths_are_told_apart_by_context() {
    let directory = open_directory();
    let file = directory.path().join("paths").display().to_string();
    let functions = ["paths:p_*", "paths:c_*"];
    for (seed, threads) in [(3, 0), (4, 3)] {
        let arguments = ["--contexts", "--max-overhead", "10000", "-o", &file];
        let (outcome, truth) = profiled_functions(&functions, &arguments, &format!("places {seed} 1500 {threads}"));
        let (told, known) = (told_by_caller(&outcome), known_by_caller(&truth));
        assert!(known.len() == 3 && known["c_first"].len() > 8, "{known:?}");
        let mut of_functions = told.clone();
        of_functions.values_mut().for_each(|ways| ways.retain(|(function, ..), _| !function.starts_with("c_")));
        assert_eq!(of_functions, known);
        for paths in outcome.all("paths") {
            assert!(paths["inexact"].is_null() && number(paths, "unlisted") == 0, "{paths}");
        }
        let late: u64 = outcome.all("paths").iter().map(|paths| number(paths, "late")).sum();
        assert_eq!(late, 4);
        let report = tool().run(["report", &file]).assert_code(0);
        assert_eq!(told_by_caller(&report), told);
        let twice = told_by_caller(&tool().run(["report", &file, &file]).assert_code(0));
        let doubled = |ways: &Ways| -> Ways {
            ways.iter().map(|(key, counts)| (key.clone(), counts.iter().map(|count| 2 * count).collect())).collect()
        };
        let expected: WaysOfCallers = told.iter().map(|(caller, ways)| (caller.clone(), doubled(ways))).collect();
        assert_eq!(twice, expected);
    }
    let table = ingraft_testing::output(&mut tool().plain_command(["report", &file]));
    assert!(table.contains("CALLED BY") && table.contains("c_second"), "{table}");
}

#[test]
fn calls_in_progress_end_late_paths() {
    check("+run 8 2000 1");
}

/// A path that has begun before the measurement is late, also if it has begun while calls were counted to learn what contexts cost.
#[test]
fn paths_that_begin_before_contexts_are_late() {
    let Some(perl) = find("perl") else { skip!("perl is not installed") };
    let script = "$| = 1; print \"ready\\n\"; for (1..600) { select(undef, undef, undef, 0.1) }";
    let mut child = Command::new(perl).args(["-e", script]).stdout(Stdio::piped()).spawn().expect("perl");
    let mut ready = String::new();
    let output = child.stdout.as_mut().expect("stdout is piped");
    BufReader::new(output).read_line(&mut ready).expect("a line");
    for contexts in [&[][..], &["--contexts"]] {
        let pid = child.id().to_string();
        let words = ["profile", "paths", "-p", &pid, "perl:Perl_pp_sselect", "--for", "1s"];
        let outcome = tool().run(words.iter().chain(contexts)).assert_code(0);
        let late: u64 = outcome.all("paths").iter().map(|paths| number(paths, "late")).sum();
        assert_eq!(late, 1, "{contexts:?}");
    }
    child.kill().and_then(|()| child.wait()).expect("perl ends");
}

/// Handlers call functions that they have interrupted in the middle of paths.
#[test]
fn handlers_have_paths_of_their_own() {
    let outcome = check("ticks 5 60000");
    assert!(outcome.all("path").len() > 40);
}

/// A longjmp leaves a call. Then a call with the same place on the stack is inside of another one that began later.
#[test]
fn calls_where_others_were_left_have_paths_of_their_own() {
    const THREADS: u64 = 400;
    let mut target = Mutatee::start("levels", &[]);
    let pid = target.pid_text();
    let mut session = tool().start(["profile", "paths", "-p", &pid, "levels:f_way"]);
    session.wait_for("attached");
    let reply = target.ask(&format!("sweep {THREADS}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let same = reply.lines.iter().find_map(|line| line.strip_prefix("same ")).expect("a number");
    assert_ne!(same, "0", "no call lies where another one was left");
    let counts: Vec<u64> = outcome.all("path").iter().map(|path| number(path, "count")).collect();
    assert_eq!(counts, [THREADS; 2]);
    let paths = outcome.one("paths");
    assert_eq!(["late", "open", "left"].map(|of| number(paths, of)), [0, 0, THREADS], "{paths}");
}

/// `inspect --path` shows each path as it was told, in the graph of its function, also where paths were cut.
#[test]
fn paths_are_inspected_by_their_numbers() {
    let mut target = Mutatee::start("paths", &[]);
    let pid = target.pid_text();
    for truncate in [&[][..], &["--truncate", "2"]] {
        let mut session = tool().start(["profile", "paths", "-p", &pid, "paths:p_*"].iter().chain(truncate));
        session.wait_for("attached");
        target.ask("run 1 200 0");
        let outcome = session.interrupt().assert_code(0).assert_removed();
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        let few = |path: &&&Value| {
            let shown = seen.entry(word(path, "function")).or_default();
            *shown += 1;
            *shown <= SHOWN
        };
        let all = outcome.all("path");
        let some: Vec<&&Value> = all.iter().filter(few).collect();
        assert!(some.len() > 10, "{some:?}");
        for path in some {
            let place = format!("{}+{}", word(path, "module"), word(path, "offset"));
            let number = path["path"].to_string();
            let words = ["inspect", "-p", &pid, &place, "--path", &number];
            let shown = tool().run(words.iter().chain(truncate)).assert_code(0);
            let way = shown.one("way");
            for key in ["path", "blocks", "begins", "ends", "next"] {
                assert_eq!(way[key], path[key], "{key} of {way} {path}");
            }
            let starts: Vec<&Value> = shown.all("block").iter().map(|block| &block["block"]).collect();
            let blocks = way["blocks"].as_array().expect("blocks");
            assert!(blocks.iter().all(|block| starts.contains(&block)), "{way}");
            let is_edge = |from: &Value, to: &Value| {
                shown.all("edge").iter().any(|edge| edge["from"] == *from && edge["to"] == *to)
            };
            assert!(blocks.windows(2).all(|pair| is_edge(&pair[0], &pair[1])), "{way}");
        }
        let function = all.first().expect("a path");
        let place = format!("{}+{}", word(function, "module"), word(function, "offset"));
        let of_function = |paths: &&&Value| paths["offset"] == function["offset"];
        let totals = outcome.all("paths");
        let possible = number(totals.iter().find(of_function).expect("all paths"), "possible").to_string();
        let words = ["inspect", "-p", &pid, &place, "--path", &possible];
        let _told = tool().run(words.iter().chain(truncate)).assert_error(3, &[&format!("has {possible} paths")]);
    }
    let several = tool().run(["inspect", "-p", &pid, "paths:p_*", "--path", "0"]);
    assert!(several.stderr.contains("single function"), "{}", several.stderr);
    for (flag, thick) in [("--svg", "stroke-width=\"4\""), ("--dot", "penwidth=4")] {
        let words = ["inspect", "-p", &pid, "paths:p_branches", "--path", "0", flag];
        let drawn = tool().plain_command(words).output().expect("run ingraft");
        let text = String::from_utf8_lossy(&drawn.stdout);
        assert!(drawn.status.success() && text.contains(thick) && text.contains("path 0 of "), "{drawn:?}");
    }
}

/// The blocks on a path lead from one to the next, and their instructions are those of the path.
#[test]
fn a_path_is_a_way_through_its_function() {
    let outcome = check("run 1 500 0");
    for path in outcome.all("path") {
        let blocks = path["blocks"].as_array().expect("blocks");
        assert!(!blocks.is_empty());
        assert_eq!(path["begins"] == "entry", blocks[0] == "0x0", "{path}");
        let different: BTreeSet<String> = blocks.iter().map(Value::to_string).collect();
        assert_eq!(different.len(), blocks.len(), "a path has no repetitions: {path}");
        assert!(number(&path["metrics"], "instructions") >= number(path, "count"), "{path}");
    }
}

/// Counts of blocks and edges: by module, function, and place in it.
type Counts = BTreeMap<(String, String, String), u64>;

/// The counts of the blocks and edges of a saved profile, and the functions in which they are not exact.
fn counts(file: &str) -> (Counts, BTreeSet<String>) {
    let outcome = tool().run(["report", file]).assert_code(0);
    let (mut counts, mut inexact) = (BTreeMap::new(), BTreeSet::new());
    for record in outcome.objects.iter().filter(|record| record["type"] == "block" || record["type"] == "edge") {
        let at = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let place = format!("{} {} {} {} {}", at("block"), at("from"), at("to"), at("outside"), at("kind"));
        if let Some(count) = record["count"].as_u64() {
            counts.insert((at("module"), at("offset"), place), count);
        }
        if !record["inexact"].is_null() {
            inexact.insert(at("offset"));
        }
    }
    (counts, inexact)
}

/// Compares the counts of two runs of a program that does the same each time.
fn assert_same_counts(functions: &str, command: &[&str]) {
    let directory = open_directory();
    let file = |kind: &str| directory.path().join(kind).display().to_string();
    for kind in ["edges", "paths"] {
        let saved = file(kind);
        let arguments = ["profile", kind, functions, "--until-exit", "-o", &saved, "--"];
        let _outcome = tool().run(arguments.iter().chain(command)).assert_code(0);
    }
    let ((edges, _), (paths, inexact)) = (counts(&file("edges")), counts(&file("paths")));
    let mut compared = 0;
    for (place, count) in &paths {
        if inexact.contains(&place.1) {
            continue;
        }
        if let Some(known) = edges.get(place) {
            assert_eq!(count, known, "{place:?}");
            compared += 1;
        }
    }
    assert!(compared > 1000 && compared > edges.len() * 8 / 10, "{compared} of {}", edges.len());
}

#[test]
fn counts_of_sqlite_equal_those_of_its_edges() {
    if !ingraft_testing::have("sqlite3") {
        skip!("sqlite3 is not installed");
    }
    let sql = "create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<5000) \
               insert into t select x, x*7%1000 from c; create index i on t(b); \
               select count(*), sum(a) from t where b between 10 and 500;";
    assert_same_counts("libsqlite3*:*", &["sqlite3", ":memory:", sql]);
}

#[test]
fn counts_of_bzip2_equal_those_of_its_edges() {
    if !ingraft_testing::have("bzip2") {
        skip!("bzip2 is not installed");
    }
    let directory = open_directory();
    let copy = directory.path().join("program");
    std::fs::copy("/bin/sh", &copy).expect("a copy");
    assert_same_counts("libbz2*:*", &["bzip2", "-kf", copy.to_str().expect("a path")]);
}

/// Saved paths are added up, shown, and cut where that was asked for.
#[test]
fn saved_paths_are_added_up() {
    let directory = open_directory();
    let file = directory.path().join("paths").display().to_string();
    let (outcome, _) = profiled(&["-o", &file, "--truncate", "2", "--stats"], "run 4 500 0");
    let class = |of: &str, class: &str| {
        let records = outcome.all("path_class");
        let one = records.iter().find(|record| record["of"] == of && record["class"] == class).expect("a class");
        ["number", "paths", "instructions", "memory_reads"].map(|key| number(one, key))
    };
    for of in ["paths", "functions"] {
        let [all, hot, dense, sparse, cold] = ["all", "hot", "dense", "sparse", "cold"].map(|name| class(of, name));
        for n in 0..all.len() {
            assert_eq!((all[n], hot[n]), (hot[n] + cold[n], dense[n] + sparse[n]), "{of}");
        }
        assert!(all[0] > 0 && hot[3] > 0, "{of}");
    }
    let cut = outcome.all("paths").into_iter().filter(|paths| paths["cut"] == true).count();
    assert!(cut > 0, "functions have more than two paths behind their entries");
    let paths = |files: &[&str]| -> BTreeMap<(String, u64), u64> {
        let report = tool().run(["report"].iter().chain(files)).assert_code(0);
        let one = |path: &&Value| ((word(path, "function"), number(path, "path")), number(path, "count"));
        report.all("path").iter().map(one).collect()
    };
    let (one, two) = (paths(&[&file]), paths(&[&file, &file]));
    assert_eq!(one.len(), two.len());
    assert!(!one.is_empty() && one.iter().all(|(path, count)| two.get(path) == Some(&(2 * count))));
    let table = ingraft_testing::output(&mut tool().plain_command(["report", &file]));
    assert!(table.contains("WAY") && table.contains("paths ran, in"), "{table}");
}
