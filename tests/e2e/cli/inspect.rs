//! Functions in detail, pictures of their control flow, summaries of modules, and what lies at an address. All of it is compared with what
//! other programs say: `objdump`, `dot`, a reader of XML, the mutatee itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Mutatee, Outcome, Tool, have, is_root, open_directory, output, program, sibling, skip};
use serde_json::Value;

use crate::tool;

/// Reads an offset or an address of a record.
fn number(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no offset"));
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let number = u64::from_str_radix(digits.trim_start_matches("0x"), 16).expect("a number").cast_signed();
    if minus { -number } else { number }
}

fn inspect(tool: &Tool, target: &Mutatee, function: &str, more: &[&str]) -> Outcome {
    let pid = target.pid_text();
    let arguments: Vec<&str> = ["inspect", "-p", &pid, function].iter().chain(more).copied().collect();
    tool.run(arguments).assert_code(0)
}

/// Addresses and lengths of the instructions of a file, by `objdump`.
fn disassembled(file: &std::path::Path) -> BTreeMap<i64, usize> {
    let text = output(Command::new("objdump").args(["-d", "--wide", "--no-show-raw-insn"]).arg(file));
    let address = |line: &str| i64::from_str_radix(line.trim().split_once(":\t")?.0, 16).ok();
    let starts: Vec<i64> = text.lines().filter_map(address).collect();
    starts.windows(2).map(|pair| (pair[0], usize::try_from(pair[1] - pair[0]).unwrap_or(0))).collect()
}

#[test]
fn instructions_and_blocks_are_those_of_objdump() {
    let target = Mutatee::start("blocks", &["1"]);
    let before = Text::of(target.pid());
    let truth = disassembled(&program("blocks").expect("gcc"));
    for function in ["leaf", "main", "worker"] {
        let outcome = inspect(&tool(), &target, &format!("blocks:{function}"), &["--disassembly"]);
        let graph = outcome.one("graph");
        let start = number(&graph["offset"]);
        let (blocks, lines) = (outcome.all("block"), outcome.all("instruction"));
        assert!(!blocks.is_empty(), "{function}");
        let found: BTreeMap<i64, usize> = lines
            .iter()
            .map(|line| (start + number(&line["at"]), line["bytes"].as_str().expect("bytes").len() / 2))
            .collect();
        let mut expected: BTreeMap<i64, usize> = BTreeMap::new();
        for block in &blocks {
            let first = start + number(&block["block"]);
            let size = block["size"].as_i64().expect("a size");
            let inside: Vec<_> = truth.range(first..first + size).collect();
            assert_eq!(inside.len() as u64, block["instructions"].as_u64().expect("a number"), "{function} {block}");
            expected.extend(inside.into_iter().map(|(at, length)| (*at, *length)));
        }
        // The last instruction of the file has no length here.
        let same = found.iter().all(|(at, length)| expected.get(at).is_none_or(|known| known == length));
        assert!(same && found.keys().eq(expected.keys()), "{function}: {found:?} {expected:?}");
        // The code of `leaf` is written by hand and has no source lines.
        let is_source = |line: &&Value| line["file"].as_str().is_some_and(|f| f.ends_with(".c") || f.ends_with(".h"));
        assert_eq!(lines.iter().any(is_source), function != "leaf", "{function}");
        let starts: Vec<&Value> = blocks.iter().map(|block| &block["block"]).collect();
        for edge in outcome.all("edge") {
            let is_block = |key: &str| starts.contains(&&edge[key]);
            assert!(is_block("from") && (edge["to"].is_null() || is_block("to")), "{edge}");
        }
        assert_eq!(graph["ways_in_proven"], true, "{graph}");
    }
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn loops_and_points_of_a_leaf() {
    let target = Mutatee::start("blocks", &[]);
    let outcome = inspect(&tool(), &target, "leaf", &[]);
    let one = outcome.one("loop");
    assert_eq!((&one["header"], &one["body"], &one["depth"]), (&"0x11".into(), &vec!["0x11"].into(), &0.into()));
    let blocks: Vec<_> = outcome.all("block").iter().map(|b| (b["block"].clone(), b["depth"].clone())).collect();
    assert_eq!(blocks, [("0x0".into(), 0.into()), ("0x11".into(), 1.into()), ("0x1b".into(), 0.into())]);
    let back: Vec<_> = outcome.all("edge").into_iter().filter(|edge| edge["back"] == true).collect();
    assert!(matches!(back[..], [edge] if edge["from"] == "0x11" && edge["kind"] == "taken"), "{back:?}");
    let kinds: BTreeSet<&str> = outcome.all("point").iter().filter_map(|point| point["kind"].as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["block", "entry", "exit"]));
    for point in outcome.all("point") {
        let refused = point["how"] == "refused";
        assert_eq!((point["reason"].is_null(), point["springboard"].is_null()), (!refused, refused), "{point}");
        assert_eq!(point["woven"], false, "{point}");
    }
    assert_eq!(outcome.all("instruction"), Vec::<&Value>::new());
    assert!(target.end().success());
}

#[test]
fn blocks_are_counted_for_a_time() {
    let mut target = Mutatee::start("blocks", &["3"]);
    let before = Text::of(target.pid());
    let tool = tool();
    let mut session = tool.start(["inspect", "-p", &target.pid_text(), "leaf", "--for", "100s", "--disassembly"]);
    session.wait_for("attached");
    assert_eq!(target.ask("go 1000").number("wrong"), 0);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let counts: Vec<_> = outcome.all("block").iter().map(|block| block["count"].as_u64()).collect();
    assert_eq!(counts, [Some(4000), Some(12_000), Some(4000)]);
    let woven = outcome.all("woven");
    assert!(woven.iter().any(|line| line["part"] == "snippet" && !line["pair"].is_null()), "{woven:?}");
    assert!(woven.iter().any(|line| line["part"] == "springboard" && line["point"] == "0x11"), "{woven:?}");
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn pictures_are_what_their_readers_accept() {
    let target = Mutatee::start("blocks", &[]);
    let picture = |flag: &str| {
        let arguments = ["inspect", "-p", &target.pid_text(), "blocks:main", flag];
        let output = tool().plain_command(arguments).output().expect("run ingraft");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let accepts = |command: &mut Command, text: &str| {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a reader");
        child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("it reads");
        child.wait().expect("it ends").success()
    };
    let (dot, svg) = (picture("--dot"), picture("--svg"));
    assert!(dot.starts_with("digraph \"main\"") && dot.contains("->"), "{dot}");
    assert!(svg.contains("<svg ") && svg.contains("stroke-dasharray"), "{svg}");
    let parse = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.stdin.buffer)";
    if have("python3") {
        assert!(accepts(Command::new("python3").args(["-c", parse]), &svg), "{svg}");
    }
    assert!(target.end().success());
    if !have("dot") {
        skip!("Graphviz is not installed");
    }
    assert!(accepts(Command::new("dot").arg("-Tplain"), &dot), "{dot}");
}

#[test]
fn a_pattern_must_match_few_functions() {
    let target = Mutatee::start("blocks", &[]);
    let pid = target.pid_text();
    let _ = tool().run(["inspect", "-p", &pid, "libc:*"]).assert_error(2, &["matches", "name at most 20"]);
    let _ = tool().run(["inspect", "-p", &pid, "no_such_function"]).assert_error(3, &["no function matches"]);
    let _ = tool().run(["inspect", "-p", &pid, "leaf", "--dot", "--svg"]).assert_error(2, &["cannot be used with"]);
    let _ = tool().run(["where", &pid, "many"]).assert_error(2, &["not an address"]);
    assert!(target.end().success());
}

#[test]
fn sums_of_a_summary_are_those_of_the_list() {
    let target = Mutatee::start("blocks", &[]);
    let pid = target.pid_text();
    let list = tool().run(["functions", "-p", &pid]).assert_code(0);
    let summary = tool().run(["functions", "-p", &pid, "--summary"]).assert_code(0);
    let mut modules = 0;
    for one in summary.all("summary") {
        modules += 1;
        let functions: Vec<_> = list.all("function").into_iter().filter(|f| f["module"] == one["module"]).collect();
        assert_eq!(one["functions"], functions.len(), "{one}");
        for kind in ["entry", "exit", "call", "block", "edge"] {
            let of = &one[kind];
            let sum = |key: &str| of[key].as_u64().expect("a number");
            let known = ["in_place", "relocated", "partly", "refused", "none"].map(sum);
            assert_eq!(known.iter().sum::<u64>(), functions.len() as u64);
            let having = |how: &str| {
                let is = |f: &&&Value| f["how"][kind] == how && f["points"][kind] != 0;
                functions.iter().filter(is).count() as u64
            };
            let counts = ["in-place", "relocated", "partly", "refused"].map(having);
            assert_eq!(counts, ["in_place", "relocated", "partly", "refused"].map(sum), "{kind} of {one}");
            let reasons: u64 = of["reasons"].as_object().expect("reasons").values().filter_map(Value::as_u64).sum();
            assert_eq!(reasons, sum("partly") + sum("refused"), "{kind} of {one}");
        }
        assert!(one["block"]["points"].as_u64() >= one["functions"].as_u64(), "{one}");
    }
    assert!(modules >= 3, "{modules} modules");
    assert!(target.end().success());
}

/// The answer about an address.
fn at(tool: &Tool, target: &Mutatee, address: i64) -> Value {
    let address = format!("{address:#x}");
    tool.run(["where", &target.pid_text(), &address]).assert_code(0).one("location").clone()
}

#[test]
fn addresses_in_original_code_and_outside() {
    let target = Mutatee::start("blocks", &[]);
    let tool = tool();
    let graph = inspect(&tool, &target, "leaf", &[]).one("graph").clone();
    let first = number(&graph["address"]);
    let found = at(&tool, &target, first + 0x14);
    assert_eq!((&found["what"], &found["function"]), (&"function".into(), &"leaf".into()), "{found}");
    assert_eq!((&found["at"], &found["block"]), (&"0x14".into(), &"0x11".into()), "{found}");
    assert_eq!((&found["offset"], &found["module"]), (&graph["offset"], &"blocks".into()), "{found}");
    let main = inspect(&tool, &target, "blocks:main", &[]).one("graph").clone();
    let found = at(&tool, &target, number(&main["address"]));
    assert!(found["file"].as_str().is_some_and(|file| file.ends_with("blocks.c")), "{found}");
    assert!(found["line"].as_u64().is_some_and(|line| line > 10), "{found}");
    let stack = target::maps(target.pid()).into_iter().find(|m| m.name == "[stack]").expect("a stack");
    let found = at(&tool, &target, stack.start.cast_signed());
    assert_eq!((&found["what"], &found["mapping"]), (&"memory".into(), &"[stack]".into()), "{found}");
    let found = at(&tool, &target, 0x10);
    assert_eq!((&found["what"], found["note"].is_null()), (&"nothing".into(), false), "{found}");
    assert!(target.end().success());
}

/// Checks that each instruction of woven code is known by its address, and leads to its original.
fn assert_known(tool: &Tool, target: &Mutatee, woven: &[&Value], holder: &str) {
    let graph = inspect(tool, target, "leaf", &[]).one("graph").clone();
    let first = number(&graph["address"]);
    for line in woven {
        let found = at(tool, target, number(&line["address"]));
        let generated = &found["generated"];
        assert_eq!((&found["what"], &found["function"]), (&"generated".into(), &"leaf".into()), "{line} {found}");
        assert!(generated["holder"].as_str().is_some_and(|by| by.contains(holder)), "{found}");
        assert_eq!(number(&generated["point"]) - first, number(&line["point"]), "{line} {found}");
        if !line["original"].is_null() {
            assert_eq!(number(&generated["original"]) - first, number(&line["original"]), "{line} {found}");
        }
    }
}

#[test]
fn addresses_in_woven_code() {
    let mut target = Mutatee::start("blocks", &["1"]);
    let before = Text::of(target.pid());
    let directory = open_directory();
    let daemon = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    let tool = daemon.client(env!("CARGO_BIN_EXE_ingraft"));
    let session = tool.count(target.pid(), &["leaf", "leaf#0x1b"]);
    let outcome = inspect(&tool, &target, "leaf", &["--disassembly"]);
    let points: Vec<_> = outcome.all("point").into_iter().filter(|point| point["woven"] == true).collect();
    assert_eq!(points.len(), 2, "{points:?}");
    assert!(points.iter().all(|point| point["how"] == "in-place"), "{points:?}");
    let woven = outcome.all("woven");
    let part = |name: &str| woven.iter().filter(|line| line["part"] == name).count();
    assert!(part("springboard") >= 2 && part("base") > 0 && part("relocated") > 0 && part("snippet") >= 2, "{woven:?}");
    // A relocated instruction that needs no change is the original one.
    let original: BTreeMap<i64, &Value> =
        outcome.all("instruction").into_iter().map(|line| (number(&line["at"]), &line["bytes"])).collect();
    let copies = woven.iter().filter(|line| line["part"] == "relocated" && !line["original"].is_null());
    let same = copies.filter(|line| original.get(&number(&line["original"])) == Some(&&line["bytes"])).count();
    assert!(same >= 2, "{woven:?}");
    assert_known(&tool, &target, &woven, "ingraftd");
    let arena = target::maps(target.pid())
        .into_iter()
        .find(|m| m.permissions.contains("x") && m.name.is_empty())
        .expect("an arena");
    let found = at(&tool, &target, arena.start.cast_signed());
    assert_eq!(found["generated"]["part"], "signature", "{found}");
    // Another engine knows what the journal tells.
    let other = self::tool();
    let few: Vec<&Value> = woven.iter().copied().filter(|line| line["part"] != "springboard").collect();
    assert_known(&other, &target, &few, "ingraftd");
    assert_eq!(target.ask("go 100").number("wrong"), 0);
    let counted = inspect(&tool, &target, "leaf", &[]);
    let counts: Vec<_> = counted.all("block").iter().map(|block| block["count"].as_u64()).collect();
    assert_eq!(counts, [None, None, Some(200)]);
    daemon.kill();
    assert_known(&other, &target, &few, "(dead)");
    session.kill();
    let _ = other.detach(target.pid());
    target::assert_clean(target.pid(), &before);
    assert!(target.end().success());
}

#[test]
fn a_caller_sees_only_targets_that_it_may_trace() {
    if !is_root() {
        skip!("only root has targets that another user may not trace");
    }
    let target = Mutatee::start("blocks", &[]);
    let other = Tool::unprivileged(env!("CARGO_BIN_EXE_ingraft"));
    let pid = target.pid_text();
    let _ = other.run(["inspect", "-p", &pid, "leaf"]).assert_error(4, &[&pid]);
    let _ = other.run(["where", &pid, "0x1000"]).assert_error(4, &[&pid]);
    assert!(target.end().success());
}
