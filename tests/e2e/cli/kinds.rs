//! Tests of values by their types: enumerators, strings, lists and variants. The programs print what an observer should see of their calls.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, program, skip, source_directory};
use serde_json::{Map, Value, json};

use crate::tool;

/// Returns what a program prints of its calls.
fn told(lines: &[String]) -> Vec<Value> {
    let parsed = lines.iter().filter(|line| line.starts_with('{'));
    parsed.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Runs a command on a program while it makes calls, and returns what both say.
fn measured(name: &str, calls: u32, command: &[&str]) -> (Outcome, Vec<Value>) {
    let mut target = Mutatee::start(name, &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let (first, rest) = command.split_first().expect("a command");
    let mut session = tool().start([*first, "-p", &pid, "--max-overhead", "10000"].iter().chain(rest));
    session.wait_for("attached");
    let truth = target.ask(&format!("run {calls}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    (outcome, told(&truth.lines))
}

/// Prints all calls of a function with these values.
fn printed(name: &str, calls: u32, function: &str, exprs: &[&str]) -> (Vec<Value>, Vec<Value>) {
    let (outcome, truth) =
        measured(name, calls, &[&["print", function, "--limit", "none", "--buffer", "4096"], exprs].concat());
    assert_eq!(outcome.one("calls")["printed"].as_u64(), Some(calls.into()), "{}", outcome.stderr);
    (outcome.all("call").into_iter().cloned().collect(), truth)
}

/// The names of a record, without the expressions whose values have none.
fn named(truth: &Value, exprs: &[(&str, &str)]) -> Value {
    let names = exprs.iter().filter_map(|(expr, key)| {
        let name = truth["names"].get(key).filter(|name| !name.is_null())?;
        Some(((*expr).to_owned(), name.clone()))
    });
    Value::Object(names.collect())
}

const C_VALUES: [(&str, &str); 5] = [
    ("wanted", "wanted"),
    ("conn->peer->state", "peer"),
    ("conn->mode", "mode"),
    ("flags", "flags"),
    ("$return", "$return"),
];

#[test]
fn enumerators_of_c_have_their_names() {
    for name in ["kinds", "kinds-compressed", "kinds-clang"] {
        if let Err(why) = program(name) {
            eprintln!("skipped: {why}");
            continue;
        }
        let exprs: Vec<&str> = C_VALUES[..4].iter().map(|(expr, _)| *expr).collect();
        let (calls, truth) = printed(name, 100, "step", &exprs);
        for (call, truth) in calls.iter().zip(&truth) {
            for (expr, key) in &C_VALUES[..4] {
                assert_eq!(call["values"][expr], truth[key], "{name}: {expr} of {call}");
            }
            // the upper half of the register is not part of the result
            assert_eq!(
                call["return"].as_i64().map(|word| word as i32),
                truth["return"].as_i64().map(|word| word as i32)
            );
            let names = named(truth, &C_VALUES);
            assert_eq!(call.get("names").cloned().unwrap_or_else(|| json!({})), names, "{name}: {call}");
        }
        assert_eq!(calls.len(), truth.len());
    }
}

/// Starts a program, and returns the values of the lines that are printed for five calls of its function.
fn values_of_lines(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("a path");
    let values = ["wanted", "conn->mode", "flags", "plain"];
    let arguments =
        [&["print", "--entry", "--max-overhead", "10000", "step"] as &[&str], &values, &["--", path]].concat();
    let mut command = tool().plain_command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("ingraft");
    child.stdin.take().expect("piped").write_all(b"run 5\n").expect("a command");
    let output = child.wait_with_output().expect("the end of the program");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().filter_map(|line| line.split_once(" wanted="));
    let lines = lines.map(|(_, rest)| format!("wanted={rest}"));
    lines.map(|line| line.split_once(" from ").expect("a caller").0.to_owned()).collect()
}

const VALUES_OF_LINES: [&str; 5] = [
    "wanted=IDLE conn->mode=QUICK flags=READS plain=0",
    "wanted=READY conn->mode=CAREFUL flags=BOTH plain=1",
    "wanted=BUSY conn->mode=5 flags=SHARES plain=2",
    "wanted=FAILED conn->mode=PLAIN flags=5 plain=3",
    "wanted=17 conn->mode=QUICK flags=READS plain=4",
];

#[test]
fn a_line_shows_the_name_and_a_number_without_one() {
    assert_eq!(values_of_lines(&program("kinds").expect("a C compiler")), VALUES_OF_LINES);
}

#[test]
fn information_in_other_files_is_found() {
    let (made, moved) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let source = source_directory().join("tests/mutatees/kinds.c");
    let flags = ["-O2", "-g", "-gsplit-dwarf", "-pthread", "-o", "kinds"];
    let compiled = Command::new("gcc").args(flags).arg(source).current_dir(made.path()).status();
    assert!(compiled.expect("gcc").success());
    assert_eq!(values_of_lines(&made.path().join("kinds")), VALUES_OF_LINES, "where it was compiled");

    let pieces = std::fs::read_dir(made.path()).expect("the folder").map(|entry| entry.expect("a file").path());
    let pieces: Vec<PathBuf> = pieces.filter(|path| path.extension().is_some_and(|end| end == "dwo")).collect();
    let [piece] = pieces.as_slice() else { panic!("{pieces:?}") };
    let beside = moved.path().join(piece.file_name().expect("a name"));
    std::fs::rename(piece, &beside).expect("the piece moves");
    let program = moved.path().join("kinds");
    std::fs::copy(made.path().join("kinds"), &program).expect("the program moves");
    assert_eq!(values_of_lines(&program), VALUES_OF_LINES, "beside the program");

    std::fs::remove_file(&beside).expect("the piece is there");
    let path = program.to_str().expect("a path");
    let lost = tool().run(["print", "step", "wanted", "--", path]);
    let _ = lost.assert_error(2, &[".dwo", "is not found beside the program or where it was compiled"]);
}

#[test]
fn keys_that_are_enumerators_have_their_names() {
    for (expr, key) in [("wanted", "wanted"), ("conn->peer->state", "peer"), ("flags", "flags"), ("$return", "$return")]
    {
        let (outcome, truth) = measured("kinds", 200, &["count", "step", "--by", expr]);
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for call in &truth {
            let number = &call[key.trim_start_matches('$')];
            *expected
                .entry(format!("{} {}", number.as_i64().expect("a number") as i32, call["names"][key]))
                .or_default() += 1;
        }
        let mut seen: BTreeMap<String, i64> = BTreeMap::new();
        for record in outcome.all("keyed") {
            let number = record["keys"][expr].as_i64().expect("a number");
            let name = record.get("names").map_or(&Value::Null, |names| &names[expr]);
            *seen.entry(format!("{} {name}", number as i32)).or_default() +=
                record["value"].as_i64().expect("a number");
        }
        assert_eq!(seen, expected, "{expr}");
    }
    // a number that no enumeration names is what it was
    let (outcome, _) = measured("kinds", 20, &["count", "step", "--by", "plain"]);
    assert!(outcome.all("keyed").iter().all(|record| record.get("names").is_none()));
}

#[test]
fn strings_of_cpp_are_texts_wherever_they_are() {
    if let Err(why) = program("kinds-cpp") {
        skip!("{why}");
    }
    let values = [
        ("str(name)", "name"),
        ("name", "name"),
        ("request.path", "path"),
        ("str(request.item.name)", "item"),
        ("request.other->name", "other"),
        ("level", "level"),
    ];
    for some in [&values[..3], &values[3..]] {
        let exprs: Vec<&str> = some.iter().map(|(expr, _)| *expr).collect();
        let (calls, truth) = printed("kinds-cpp", 120, "handle", &[&exprs[..], &["--entry"]].concat());
        for (call, truth) in calls.iter().zip(&truth) {
            for (expr, key) in some {
                assert_eq!(call["values"][expr], truth[key], "{expr} of {call}");
            }
            let names = named(truth, some);
            assert_eq!(call.get("names").cloned().unwrap_or_else(|| json!({})), names, "{call}");
        }
        assert_eq!(calls.len(), truth.len());
    }
}

const RUST_VALUES: [(&str, &str); 15] = [
    ("request->small", "small"),
    ("request->name", "name"),
    ("request->state", "state"),
    ("request->tags", "tags"),
    ("request->names", "names_len"),
    ("request->tagged", "tagged"),
    ("request->niche", "niche"),
    ("request->text", "text"),
    ("request->state_or_none", "state_or_none"),
    ("request->positive", "positive"),
    ("request->message", "message"),
    ("$arg[0]->inner->label", "label"),
    ("request->inner->level", "level"),
    ("str(request->path)", "path"),
    ("request->shorts", "shorts"),
];

/// A list as records have it.
fn list(truth: &Value) -> Value {
    match truth {
        Value::Array(elements) => json!({"length": elements.len(), "elements": elements}),
        length => json!({"length": length}),
    }
}

#[test]
fn values_of_rust_are_shown_by_their_types() {
    if let Err(why) = program("kinds-rust") {
        skip!("{why}");
    }
    for values in RUST_VALUES.chunks(3) {
        let exprs: Vec<&str> = values.iter().map(|(expr, _)| *expr).collect();
        let (calls, truth) = printed("kinds-rust", 60, "inspect", &exprs);
        let truth: Vec<&Value> = truth.iter().filter(|line| line["of"] == "inspect").collect();
        for (call, truth) in calls.iter().zip(&truth) {
            for (expr, key) in values {
                let seen = &call["values"][expr];
                match *key {
                    "tags" | "shorts" => assert_eq!(*seen, list(&truth[key]), "{expr} of {call}"),
                    "names_len" => assert_eq!(seen["length"], truth[key], "{expr} of {call}"),
                    _ => assert_eq!(*seen, truth[key], "{expr} of {call}"),
                }
            }
            let state = values.iter().any(|(_, key)| *key == "state").then(|| &truth["state_name"]);
            assert_eq!(call.get("names").map(|names| &names["request->state"]), state, "{call}");
            assert_eq!(call["return"], truth["return"], "{call}");
        }
        assert_eq!(calls.len(), truth.len());
    }
}

#[test]
fn arguments_of_rust_are_found_where_the_debugging_information_proves_them() {
    if let Err(why) = program("kinds-rust") {
        skip!("{why}");
    }
    // more elements than are read
    let first = |truth: &Value| {
        let all = truth["numbers"].as_array().expect("a list").clone();
        json!({"length": all.len(), "elements": all.into_iter().take(8).collect::<Vec<Value>>()})
    };
    let all: [&[&str]; 3] =
        [&["text", "numbers", "state", "--entry"], &["str(text)", "numbers.length", "state"], &["--entry"]];
    for exprs in all {
        let (calls, truth) = printed("kinds-rust", 40, "look", exprs);
        let truth: Vec<&Value> = truth.iter().filter(|line| line["of"] == "look").collect();
        for (call, truth) in calls.iter().zip(&truth) {
            let values = call["values"].as_object().expect("values");
            assert_eq!(values.get("text").or(values.get("str(text)")), Some(&truth["text"]), "{call}");
            match values.get("numbers") {
                Some(numbers) => assert_eq!(*numbers, first(truth), "{call}"),
                None => assert_eq!(values["numbers.length"], first(truth)["length"], "{call}"),
            }
            // without expressions, there are as many arguments as a call keeps
            if exprs.len() == 1 {
                assert_eq!(values.len(), 2, "{call}");
                continue;
            }
            assert_eq!(values["state"], truth["state"], "{call}");
            let mut names = Map::new();
            names.insert("state".to_owned(), truth["state_name"].clone());
            if !exprs.contains(&"--entry") {
                names.insert("$return".to_owned(), truth["state_name"].clone());
            }
            assert_eq!(call["names"], Value::Object(names), "{call}");
        }
        assert_eq!(calls.len(), truth.len());
    }
    let (calls, _) = printed("kinds-rust", 30, "keep", &["owned", "--entry"]);
    let seen: Vec<&str> = calls.iter().filter_map(|call| call["values"]["owned"].as_str()).collect();
    let expected: Vec<String> = (0..30).map(|n| format!("kept-{n}")).collect();
    assert_eq!(seen, expected);
    let (outcome, truth) = measured("kinds-rust", 30, &["count", "inspect", "--by", "request->state"]);
    for record in outcome.all("keyed") {
        let name = &record["names"]["request->state"];
        let calls = truth.iter().filter(|line| line["of"] == "inspect" && line["state_name"] == *name).count();
        assert_eq!(record["value"].as_u64(), Some(calls as u64), "{record}");
    }
    assert_eq!(outcome.all("keyed").len(), 3);
}

#[test]
fn what_the_debugging_information_does_not_prove_is_refused() {
    if let Err(why) = program("kinds-rust-debug") {
        skip!("{why}");
    }
    let refused = |target: &Mutatee, value: &str, code: i32, words: &[&str]| {
        let _ = tool().run(["print", "-p", &target.pid_text(), "inspect", value]).assert_error(code, words);
    };
    let target = Mutatee::start("kinds-rust-debug", &[]);
    for value in ["extra", "request->name"] {
        refused(&target, value, 2, &["does not say where it is when the function begins"]);
    }
    let target = Mutatee::start("kinds-rust", &[]);
    refused(&target, "request->nmae", 3, &["no member `nmae`", "did you mean `name`?"]);
    refused(&target, "reqest", 3, &["no argument `reqest`", "did you mean `request`?"]);
}

/// Tables leave out the defaults of the standard library, commands take names with and without them, and records have whole names.
#[test]
fn names_of_functions_are_those_of_the_source() {
    let target = Mutatee::start("kinds-cpp", &[]);
    let before = Text::of(target.pid());
    let arguments = ["count", "-p", &target.pid_text(), "handle(std::string const&, *", "--for", "50ms"];
    let outcome = tool().run(arguments).assert_code(0);
    let name = outcome.one("count")["function"].as_str().expect("a name");
    assert!(name.contains("std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&"));
    let table = tool().plain_command(arguments).output().expect("run ingraft");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("handle(std::string const&, shop::Level, shop::Request const&)"), "{table}");
    target::assert_clean(target.pid(), &before);
}
