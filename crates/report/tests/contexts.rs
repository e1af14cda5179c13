//! Formats of calling contexts of a small profile that is made by hand.

use std::collections::BTreeMap;

use ingraft_model::Svma;
use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, ContextValue, EXPORTERS, ExportOptions, Exporter,
    ModuleInfo, ProfileKind, ProfiledProgram, ReturnSite, SavedProfile,
};

/// Names of the functions.
const NAMES: [&str; 6] = ["main", "_ZN4shop5parseEv", "read;<&>\"'\n", "", "qsort", "handler"];

fn context(parent: Option<usize>, function: usize, site: u64, calls: u64, wall_ns: i64) -> CallingContext {
    let site = ReturnSite { module: Some(0), at: Svma(site) };
    CallingContext { parent, function, site, kind: ContextKind::Call, calls, metrics: vec![wall_ns, 0] }
}

/// `main` calls `shop::parse` from two places, which calls `read;…`, itself and, through `qsort`, a function without a name. A signal
/// interrupts it.
fn profile() -> SavedProfile {
    let function = |(n, name): (usize, &&str)| ContextFunction {
        module: usize::from(n == 4),
        name: (*name).to_owned(),
        start: Svma(0x1000 * (n as u64 + 1)),
        size: 0x100,
        ..ContextFunction::default()
    };
    let module = |name: &str, build_id, bias| ModuleInfo {
        name: name.to_owned(),
        path: format!("/opt/{name}"),
        build_id: vec![build_id; 20],
        bias,
        mapped: (0, 0x8000),
    };
    let kind = |kind, context| CallingContext { kind, ..context };
    let contexts = vec![
        context(None, 0, 0, 1, 10),
        context(Some(0), 1, 0x1010, 2, 30),
        context(Some(1), 2, 0x2010, 8, 400),
        kind(ContextKind::Recursion(1), context(Some(1), 1, 0x2020, 6, 0)),
        context(Some(0), 1, 0x1020, 3, 5),
        context(Some(4), 2, 0x2010, 3, 100),
        context(Some(4), 4, 0x2030, 1, 50),
        context(Some(6), 3, 0x5010, 7, 300),
        // A call of `main` inside of itself that has a context of its own, and one that costs nothing.
        context(Some(7), 0, 0x4010, 1, 200),
        context(Some(8), 2, 0x1030, 1, 0),
        kind(ContextKind::Signal, context(Some(0), 5, 0x1040, 2, 905)),
    ];
    let tree = ContextProfile {
        functions: NAMES.iter().enumerate().map(function).collect(),
        contexts,
        metrics: vec!["wall_ns".to_owned(), "allocated_bytes".to_owned()],
        outside: vec![7, 0],
        full: 9,
        ..ContextProfile::default()
    };
    SavedProfile {
        kind: ProfileKind::Contexts,
        pid: 7,
        program: "/opt/shop".to_owned(),
        began_ns: 1_700_000_000_000_000_000,
        ended_ns: 1_700_000_002_000_000_000,
        modules: vec![module("shop", 7, 0x5500_0000_0000), module("libc.so.6", 8, 0x7f00_0000_0000)],
        contexts: Some(tree),
        ..SavedProfile::default()
    }
}

/// A profile in the format with this name.
fn exported(profile: &SavedProfile, name: &str, value: Option<ContextValue>) -> Vec<u8> {
    let program = ProfiledProgram::new(profile, Vec::new());
    let mut options = ExportOptions::new(&program, &|_| None);
    options.value = value.unwrap_or(options.value);
    (Exporter::named(name).expect("a format").write)(&program, &options)
}

fn text(profile: &SavedProfile, name: &str) -> String {
    String::from_utf8(exported(profile, name, None)).expect("text")
}

#[test]
fn folded_stacks_have_the_value_of_each_context() {
    let expected = "main 10\nmain;shop::parse() 35\nmain;shop::parse();read:<&>\"'? 500\nmain;shop::parse();qsort 50\n\
                    main;shop::parse();qsort;shop+0x4000 300\nmain;shop::parse();qsort;shop+0x4000;main 200\n\
                    main;handler 905\n";
    assert_eq!(text(&profile(), "folded"), expected);
    let calls = String::from_utf8(exported(&profile(), "folded", Some(ContextValue::Calls))).expect("text");
    assert!(calls.contains("main;shop::parse();shop::parse() 6\n"), "{calls}");
    assert!(calls.contains("main;shop::parse();read:<&>\"'? 11\n"), "{calls}");
}

#[test]
fn formats_of_other_kinds_of_profiles_are_not_offered() {
    let names = |kind| EXPORTERS.iter().filter(|e| e.describes(kind)).map(|e| e.name).collect::<Vec<_>>();
    assert_eq!(names(ProfileKind::Contexts), ["html", "svg", "callgrind", "pprof", "speedscope", "folded"]);
    assert_eq!(names(ProfileKind::Counts), ["html", "callgrind", "lcov", "drcov", "bolt", "fdata", "llvm-sample"]);
    assert_eq!(names(ProfileKind::Coverage), ["html", "lcov", "drcov"]);
}

#[test]
fn a_flame_graph_has_a_bar_for_each_function_of_a_stack() {
    let graph = text(&profile(), "svg");
    let titles: Vec<_> =
        graph.split("<title>").skip(1).filter_map(|rest| Some(rest.split_once("</title>")?.0)).collect();
    let expected = [
        "all (2,000 ns, 100.00 %)",
        "main (2,000 ns, 100.00 %)",
        "shop::parse() (1,085 ns, 54.25 %)",
        "handler (905 ns, 45.25 %, by a signal)",
        "qsort (550 ns, 27.50 %)",
        "read;&lt;&amp;&gt;&quot;&#39;? (500 ns, 25.00 %)",
        "shop+0x4000 (500 ns, 25.00 %)",
        "main (200 ns, 10.00 %)",
    ];
    assert_eq!(titles, expected);
    assert!(graph.contains("x=\"10.00\" y=\"95\" width=\"640.15\""), "the bar of shop::parse(): {graph}");
    assert!(!graph.contains("src=") && !graph.contains("@import") && !graph.contains("href"));
    assert_eq!(text(&profile(), "svg"), graph, "the colours are always the same");
}

#[test]
fn a_page_has_the_flame_graph_and_the_functions() {
    let page = text(&profile(), "html");
    let main = "<td class=\"n\">2,000\u{a0}ns</td><td class=\"n\">2</td><td class=\"name\">main</td><td>shop</td>";
    assert!(page.contains("<td class=\"n\">210\u{a0}ns</td>") && page.contains(main), "{page}");
    assert!(page.contains("<svg id=\"flame\"") && page.contains("9 calls had no room for their contexts"));
    assert!(!page.contains("read;<") && !page.contains("http") && !page.contains("src=") && !page.contains("@import"));
}

/// Own and inclusive costs of the functions of a Callgrind file, as callgrind_annotate computes them.
fn costs(text: &str) -> BTreeMap<String, (u64, u64)> {
    let mut names = BTreeMap::new();
    let mut name = |mention: &str| {
        let (number, name) = mention.split_once(' ').unwrap_or((mention, ""));
        names.entry(number.to_owned()).or_insert_with(|| name.to_owned()).clone()
    };
    let mut all: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut called: BTreeMap<String, u64> = BTreeMap::new();
    let (mut function, mut callee) = (String::new(), None);
    for line in text.lines() {
        if let Some(mention) = line.strip_prefix("fn=") {
            function = name(mention);
        } else if let Some(mention) = line.strip_prefix("cfn=") {
            callee = Some(name(mention));
        } else if line.starts_with("0x") {
            let cost: u64 = line.split(' ').nth(2).expect("a cost").parse().expect("a number");
            let sums = all.entry(function.clone()).or_default();
            sums.0 += if callee.is_none() { cost } else { 0 };
            sums.1 += cost;
            callee.take().into_iter().for_each(|callee| *called.entry(callee).or_default() += cost);
        }
    }
    for (name, cost) in called {
        all.entry(name).or_default().1 = cost;
    }
    all
}

#[test]
fn costs_of_calls_in_callgrind_files_add_up_to_those_of_functions() {
    let text = text(&profile(), "callgrind");
    assert!(text.contains("events: wall_ns calls allocated_bytes\nsummary: 2000 35 0\n"), "{text}");
    assert!(text.contains("calls=11 0x3000 0\n0x200f 0 500 11 0\n"), "{text}");
    assert!(text.contains("calls=6 0x2000 0\n0x201f 0 0 0 0\n"), "the recursion: {text}");
    assert!(text.contains("calls=1 0x1000 0\n0x400f 0 0 0 0\n"), "the inner call of main: {text}");
    let costs = costs(&text);
    let saved = profile();
    let tree = saved.contexts.as_ref().expect("contexts");
    for (function, total) in tree.functions.iter().zip(tree.function_totals(ContextValue::Metric(0))) {
        let name = match function.name.as_str() {
            "" => "0x4000".to_owned(),
            name => name.replace('\n', "?"),
        };
        assert_eq!(costs[&name], (total.own as u64, total.inclusive as u64), "{name}");
    }
}

#[test]
fn a_deep_recursion_is_shown_up_to_a_limit() {
    let mut saved = profile();
    let tree = saved.contexts.as_mut().expect("contexts");
    tree.contexts = (0..60_000_usize).map(|n| context(n.checked_sub(1), n % 2, 0x1010, 1, 1)).collect();
    let folded = text(&saved, "folded");
    let values: Vec<u64> =
        folded.lines().map(|line| line.rsplit(' ').next().expect("a value").parse().expect("a number")).collect();
    assert_eq!((values.len(), values.iter().sum::<u64>()), (500, 60_000));
    for exporter in EXPORTERS.iter().filter(|exporter| exporter.describes(ProfileKind::Contexts)) {
        assert!(exported(&saved, exporter.name, None).len() < 8_000_000, "{}", exporter.name);
    }
    let costs = costs(&text(&saved, "callgrind"));
    assert_eq!((costs["main"], costs["_ZN4shop5parseEv"]), ((30_000, 60_000), (30_000, 59_999)));
}

#[test]
fn an_empty_tree_is_written_in_all_formats() {
    for profile in [
        SavedProfile { contexts: Some(ContextProfile::default()), ..profile() },
        SavedProfile { kind: ProfileKind::Contexts, contexts: Some(ContextProfile::default()), ..Default::default() },
    ] {
        for exporter in EXPORTERS {
            let bytes = exported(&profile, exporter.name, None);
            assert!(!bytes.is_empty() || exporter.why_empty.is_some() || !exporter.describes(ProfileKind::Contexts));
        }
    }
}
