//! Calling contexts of the program, and what other tools read from them. The calls are those of a single-stepped run; the times are made up.

use std::process::Command;

use ingraft_model::Svma;
use ingraft_report::{
    CallTarget, CallingContext, ContextFunction, ContextKind, ContextProfile, ContextValue, ExportOptions, Exporter,
    FunctionTotal, ProfileKind, ProfiledProgram, ReturnSite, SavedProfile,
};
use ingraft_testing::{have, output, skip};

use super::{Stepped, compiled, exported, write};

const FUNCTIONS: [&str; 6] = ["main", "length", "step", "kind", "fibonacci", "compare"];
const MAIN: usize = 0;
const FIBONACCI: usize = 4;

/// Builds the tree of the contexts of a run.
struct TreeBuilder<'a> {
    stepped: &'a Stepped,
    contexts: Vec<CallingContext>,
}

impl TreeBuilder<'_> {
    /// Adds a context of a function, and returns its index. Its call is the first one from its parent's function.
    fn call(&mut self, parent: usize, function: usize, calls: u64, wall_ns: i64) -> usize {
        let caller = self.stepped.function(FUNCTIONS[self.contexts[parent].function]);
        let callee = CallTarget::Own(self.stepped.function(FUNCTIONS[function]).start);
        let call = caller.call_sites.iter().find(|call| call.callee == callee);
        let returns_to = call.map(|call| &caller.blocks[call.block]).map(|block| block.start.0 + u64::from(block.size));
        let site = match returns_to {
            Some(at) => ReturnSite { module: Some(0), at: Svma(at) },
            // The C library has made the call.
            None => ReturnSite { module: None, at: Svma(0x7f00_1234_5678) },
        };
        let kind = ContextKind::Call;
        self.contexts.push(CallingContext {
            parent: Some(parent),
            function,
            site,
            kind,
            calls,
            metrics: vec![wall_ns],
        });
        self.contexts.len() - 1
    }
}

/// The contexts of a run.
fn profile(stepped: &Stepped) -> SavedProfile {
    let calls = |name| stepped.function(name).calls;
    let root = CallingContext {
        parent: None,
        function: MAIN,
        site: ReturnSite { module: None, at: Svma(0x7f00_1234_0000) },
        kind: ContextKind::Call,
        calls: 1,
        metrics: vec![1_000],
    };
    let mut tree = TreeBuilder { stepped, contexts: vec![root] };
    let length = tree.call(0, 1, calls("length"), 20_000);
    tree.call(length, 2, calls("step"), 50_000);
    tree.call(0, 3, calls("kind"), 9_000);
    let first = tree.call(0, FIBONACCI, 1, 700);
    let second = tree.call(first, FIBONACCI, 2, 300);
    let deeper = tree.call(second, FIBONACCI, calls("fibonacci") - 3, 0);
    tree.contexts[deeper].kind = ContextKind::Recursion(second);
    tree.call(0, 5, calls("compare"), 4_000);
    let function = |name: &&str| {
        let function = stepped.function(name);
        let (start, size) = (function.start, function.size);
        ContextFunction { name: (*name).to_owned(), start, size, ..ContextFunction::default() }
    };
    let contexts = ContextProfile {
        functions: FUNCTIONS.iter().map(function).collect(),
        contexts: tree.contexts,
        metrics: vec!["wall_ns".to_owned()],
        outside: vec![0],
        ..ContextProfile::default()
    };
    let (kind, contexts) = (ProfileKind::Contexts, Some(contexts));
    SavedProfile { kind, contexts, functions: Vec::new(), ended_ns: 1_000_000, ..stepped.profile.clone() }
}

/// Names of the functions with their totals.
fn totals(profile: &SavedProfile, of: ContextValue) -> Vec<(&'static str, FunctionTotal)> {
    let tree = profile.contexts.as_ref().expect("contexts");
    FUNCTIONS.into_iter().zip(tree.function_totals(of)).collect()
}

#[test]
fn callgrind_annotate_reads_inclusive_costs_of_contexts() {
    if !have("callgrind_annotate") {
        skip!("callgrind_annotate is not installed");
    }
    let (directory, program) = compiled("cc", &[]);
    let stepped = Stepped::run(&program);
    let saved = profile(&stepped);
    let text = exported(&ProfiledProgram::new(&saved, stepped.code()), "callgrind");
    let file = write(&directory, "callgrind.out", text);
    for inclusive in [true, false] {
        let mut command = Command::new("callgrind_annotate");
        command.args([
            "--show-percs=no",
            "--threshold=100",
            if inclusive { "--inclusive=yes" } else { "--inclusive=no" },
        ]);
        let read = output(command.arg(&file));
        for (name, total) in totals(&saved, ContextValue::Metric(0)) {
            let found = read.lines().find(|line| line.contains(&format!("program.c:{name} ")));
            let found = found.unwrap_or_else(|| panic!("{name}:\n{read}"));
            let cost = found.split_whitespace().next().expect("a cost").replace(',', "");
            let expected = if inclusive { total.inclusive } else { total.own };
            assert_eq!(cost, expected.to_string(), "{name}:\n{read}");
        }
    }
}

#[test]
fn go_reads_samples_and_lines_of_contexts() {
    if !have("go") {
        skip!("go is not installed");
    }
    let (directory, program) = compiled("cc", &[]);
    let stepped = Stepped::run(&program);
    let saved = profile(&stepped);
    let code = ProfiledProgram::new(&saved, stepped.code());
    let bytes = (Exporter::named("pprof").expect("a format").write)(&code, &ExportOptions::new(&code, &|_| None));
    let file = write(&directory, "contexts.pprof", bytes);
    let pprof = |arguments: &[&str]| {
        output(Command::new("go").args(["tool", "pprof"]).args(arguments).arg(&file).env("HOME", directory.path()))
    };
    for (index, unit, of) in [("wall", "ns", ContextValue::Metric(0)), ("calls", "", ContextValue::Calls)] {
        let unit = if unit.is_empty() { "-unit=count" } else { "-unit=ns" };
        let read = pprof(&["-top", "-nodefraction=0", &format!("-sample_index={index}"), unit]);
        for (name, total) in totals(&saved, of) {
            let line = read.lines().find(|line| line.trim_end().ends_with(&format!(" {name}")));
            let fields: Vec<&str> = line.unwrap_or_else(|| panic!("{name}:\n{read}")).split_whitespace().collect();
            let number = |field: &str| field.trim_end_matches("ns").parse::<i64>().expect("a number");
            assert_eq!((number(fields[0]), number(fields[3])), (total.own, total.inclusive), "{name}:\n{read}");
        }
    }
    // The caller is at the line of its call.
    let read = pprof(&["-traces", "-lines"]);
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/program.c"));
    let source = source.expect("the source");
    let line = |text: &str| source.lines().position(|line| line.contains(text)).expect("a line") + 1;
    for (name, text) in [("main", "int n = length(i)"), ("length", "x = step(x);"), ("main", "fibonacci(9)")] {
        let place = format!("program.c:{}", line(text));
        assert!(read.lines().any(|l| l.contains(&format!("{name} ")) && l.contains(&place)), "{place}:\n{read}");
    }
    let build_id: String = saved.modules[0].build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(pprof(&["-raw"]).contains(&build_id), "the build-id");
}
