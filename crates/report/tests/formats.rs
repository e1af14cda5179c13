//! Formats, sums and differences of a small profile that is made by hand.

use ingraft_model::{EdgeKind, Svma};
use ingraft_report::{
    BlockCount, CallCount, CallTarget, EdgeCount, EdgeEnd, ExportOptions, Exporter, FunctionProfile, MergeError,
    ModuleInfo, ProfileKind, ProfiledProgram, SavedProfile, diff,
};

fn block(start: u64, count: u64) -> BlockCount {
    BlockCount { start: Svma(start), size: 16, instructions: 4, last: Svma(start + 14), count }
}

fn edge(from: usize, to: EdgeEnd, kind: EdgeKind, count: u64) -> EdgeCount {
    EdgeCount { from, to, kind, count: Some(count) }
}

fn function(name: &str, start: u64, calls: u64, blocks: Vec<BlockCount>) -> FunctionProfile {
    FunctionProfile {
        module: 0,
        name: name.to_owned(),
        start: Svma(start),
        size: 0x100,
        calls,
        blocks,
        edges: Vec::new(),
        call_sites: Vec::new(),
        unknown: Vec::new(),
        inexact: None,
        details: None,
        paths: None,
    }
}

/// A function that calls another one in a loop, which calls itself.
fn profile() -> SavedProfile {
    let mut outer = function("outer<&>", 0x1000, 2, vec![block(0x1000, 2), block(0x1010, 20), block(0x1020, 2)]);
    outer.edges = vec![
        edge(0, EdgeEnd::Block(1), EdgeKind::FallThrough, 2),
        edge(1, EdgeEnd::Block(1), EdgeKind::Taken, 18),
        edge(1, EdgeEnd::Block(2), EdgeKind::FallThrough, 2),
        edge(2, EdgeEnd::Outside(Svma(0x1200)), EdgeKind::TailJump, 2),
    ];
    outer.call_sites = vec![CallCount { block: 1, callee: CallTarget::Own(Svma(0x1100)), count: 20 }];
    let mut inner = function("inner", 0x1100, 50, vec![block(0x1100, 50)]);
    inner.call_sites = vec![CallCount { block: 0, callee: CallTarget::Own(Svma(0x1100)), count: 30 }];
    inner.edges = vec![edge(0, EdgeEnd::Dynamic, EdgeKind::Return, 50)];
    let last = function("last", 0x1200, 2, vec![block(0x1200, 2)]);
    let module = ModuleInfo {
        name: "shop".to_owned(),
        path: "/opt/shop".to_owned(),
        build_id: vec![7; 20],
        bias: 0x5500_0000_0000,
        mapped: (0, 0x4000),
    };
    SavedProfile {
        pid: 7,
        program: "/opt/shop".to_owned(),
        modules: vec![module],
        functions: vec![outer, inner, last],
        ..SavedProfile::default()
    }
}

/// A profile in the format with this name, without the code of its modules.
fn exported(profile: &SavedProfile, name: &str) -> Vec<u8> {
    let exporter = Exporter::named(name).expect("a format");
    let program = ProfiledProgram::new(profile, Vec::new());
    (exporter.write)(&program, &ExportOptions::new(&program, &|_| None))
}

fn text(profile: &SavedProfile, name: &str) -> String {
    String::from_utf8(exported(profile, name)).expect("text")
}

#[test]
fn drcov_has_a_table_of_executed_blocks() {
    let bytes = exported(&profile(), "drcov");
    let head = "DRCOV VERSION: 2\nDRCOV FLAVOR: drcov\nModule Table: version 2, count 1\n\
                Columns: id, base, end, entry, path\n  \
                0, 0x0000550000000000, 0x0000550000004000, 0x0000000000000000, /opt/shop\nBB Table: 5 bbs\n";
    let table = bytes.strip_prefix(head.as_bytes()).expect("the head");
    assert_eq!(table.len(), 5 * 8);
    assert_eq!(table[8..16], [0x10, 0x10, 0, 0, 16, 0, 0, 0]);
}

#[test]
fn bolt_gets_branches_calls_and_arrivals_from_outside() {
    let bolt = text(&profile(), "bolt");
    let expected = "F 100e 1010 2\nB 101e 1010 18 0\nF 101e 1020 2\nB 101e 1100 20 0\nB 102e 1200 2 0\n\
                    B 110e 1100 30 0\nB X:0 1000 2 0\n";
    assert_eq!(bolt, expected);
    let text = text(&profile(), "fdata");
    assert!(text.contains("1 outer<&> 1e 1 outer<&> 10 0 18\n"), "{text}");
    assert!(text.ends_with("0 [unknown] 0 1 outer<&> 0 0 2\n"), "{text}");
}

#[test]
fn callgrind_estimates_the_cost_of_calls() {
    let text = text(&profile(), "callgrind");
    // 20 calls from outside cost all 200 instructions, and calls within the recursion cost nothing.
    assert!(text.contains("calls=20 0x1100 0\n0x101e 0 200\n"), "{text}");
    assert!(text.contains("calls=30 0x1100 0\n0x110e 0 0\n"), "{text}");
    assert!(text.contains("calls=2 0x1200 0\n0x102e 0 8\n"), "{text}");
    assert!(text.contains("summary: 304\n") && text.ends_with("totals: 304\n"), "{text}");
}

#[test]
fn pages_escape_names_and_load_nothing() {
    let mut profile = profile();
    profile.program = "/opt/<script>alert(1)</script>".to_owned();
    let page = text(&profile, "html");
    assert!(page.contains("outer&lt;&amp;&gt;") && !page.contains("outer<") && !page.contains("<script>alert"));
    assert!(!page.contains("http") && !page.contains("src=") && !page.contains("@import"));
}

#[test]
fn sums_add_every_count() {
    let (one, mut sum) = (profile(), profile());
    sum.add(&one).expect("a sum");
    assert_eq!(sum.functions[0].blocks[1].count, 40);
    assert_eq!(sum.functions[0].edges[1].count, Some(36));
    assert_eq!((sum.functions[1].call_sites[0].count, sum.functions[1].calls), (60, 100));
    assert_eq!((sum.functions.len(), sum.modules.len()), (3, 1));
    let changes = diff(&one, &sum).expect("differences");
    let instructions: Vec<_> = changes.iter().map(|change| change.instructions.difference()).collect();
    assert_eq!(instructions, [200, 96, 8]);
    assert_eq!((changes[1].blocks[0].start, changes[1].blocks[0].count.new), (Svma(0x1010), 40));
    assert_eq!(diff(&one, &one), Ok(Vec::new()));
}

#[test]
fn profiles_that_do_not_fit_are_refused() {
    let mut other = profile();
    other.modules[0].build_id = vec![8; 20];
    assert!(matches!(profile().add(&other), Err(MergeError::OtherBuild { .. })));
    assert!(matches!(diff(&profile(), &other), Err(MergeError::OtherBuild { .. })));
    let mut other = profile();
    other.functions[0].blocks[0].size = 8;
    assert!(matches!(profile().add(&other), Err(MergeError::OtherBlocks { .. })));
    let mut large = profile();
    large.functions[0].blocks[0].count = u64::MAX;
    assert!(matches!(profile().add(&large), Err(MergeError::TooLarge { .. })));
    // A module of another program is added as it is.
    let mut library = profile();
    (library.modules[0].build_id, library.modules[0].path) = (vec![9; 20], "/opt/library".to_owned());
    let mut sum = profile();
    sum.add(&library).expect("a sum");
    assert_eq!((sum.modules.len(), sum.functions.len(), sum.functions[5].module), (2, 6, 1));
}

#[test]
fn a_sum_of_which_a_part_is_unknown_is_unknown() {
    let mut other = profile();
    (other.functions[0].unknown, other.functions[0].blocks[0].count, other.functions[0].calls) = (vec![0], 0, 0);
    for (mut sum, other) in [(profile(), other.clone()), (other, profile())] {
        sum.add(&other).expect("a sum");
        let function = &sum.functions[0];
        assert_eq!((function.executions(0), function.known_calls(), function.blocks[0].count), (None, None, 0));
    }
}

/// A coverage of three blocks: whether each has run, and the count of the edge past the second one.
fn coverage(ran: [Option<bool>; 3], past: Option<u64>) -> SavedProfile {
    let count = |ran: Option<bool>| u64::from(ran == Some(true));
    let blocks = (0..3).map(|n| block(0x1000 + 16 * n as u64, count(ran[n]))).collect();
    let mut function = function("covered", 0x1000, count(ran[0]), blocks);
    function.unknown = (0..3).filter(|n| ran[*n].is_none()).collect();
    function.edges = vec![
        EdgeCount { from: 0, to: EdgeEnd::Block(2), kind: EdgeKind::Taken, count: past },
        EdgeCount { from: 0, to: EdgeEnd::Block(1), kind: EdgeKind::FallThrough, count: ran[1].map(u64::from) },
    ];
    SavedProfile { kind: ProfileKind::Coverage, functions: vec![function], ..profile() }
}

#[test]
fn coverages_add_up_to_what_has_run_in_one_of_them() {
    let mut sum = coverage([Some(true), None, Some(false)], None);
    sum.add(&coverage([Some(true), Some(true), None], Some(0))).expect("a sum");
    let [function] = &sum.functions[..] else { panic!("{sum:?}") };
    assert_eq!([0, 1, 2].map(|block| function.ran(block)), [Some(true), Some(true), None]);
    assert_eq!(function.calls, 1);
    assert_eq!([&function.edges[0], &function.edges[1]].map(|edge| edge.count), [None, Some(1)]);
    let covered = function.covered();
    assert_eq!((covered.blocks, covered.blocks_ran, covered.blocks_unknown), (3, 2, 1));
    assert_eq!((covered.branches, covered.branches_ran, covered.branches_unknown), (2, 1, 1));
    assert_eq!(sum.add(&profile()), Err(MergeError::OtherKind));
    assert_eq!(diff(&profile(), &sum), Err(MergeError::OtherKind));
}

#[test]
fn a_coverage_is_read_as_it_was_written_and_no_older_program_reads_it_as_counts() {
    let saved = coverage([Some(true), None, Some(false)], None);
    let bytes = saved.to_bytes();
    assert_eq!(bytes[8], 2, "the version");
    assert_eq!(profile().to_bytes()[8], 1);
    assert_eq!(SavedProfile::from_bytes(&bytes), Ok(saved));
}
