//! Files that earlier builds have written, one for each version of the formats. They are never written again, and are read for ever.
//!
//! A profile of edges, blocks or events is the same file, because all of these are counts.

use ingraft_model::{Block, BlockId, Cfg, Edge, EdgeId, EdgeKind, EdgeTarget, Scale, Svma, WayIn, WayInReason};
use ingraft_profile::ProbeAt;
use ingraft_report::{
    BlockCount, CallCount, CallTarget, CallingContext, ContextFunction, ContextKind, ContextProfile, EdgeCount,
    EdgeEnd, FunctionProfile, ModuleInfo, NewestCause, NewestPart, ProfileKind, ReturnSite, SavedProfile, TraceChunk,
    TraceEnd, TraceRecord, TraceRecords, TracedCode, TracedProgram, TracedRoutine, UnprofiledFunction,
};

fn stored(name: &str) -> Vec<u8> {
    let path = format!("{}/../../tests/golden/files/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn modules() -> Vec<ModuleInfo> {
    let shop = ModuleInfo {
        name: "shop".to_owned(),
        path: "/opt/shop".to_owned(),
        build_id: (0..20).collect(),
        bias: 0x5500_0000_0000,
        mapped: (0, 0x4000),
    };
    let old = ModuleInfo { name: "libold.so".to_owned(), path: "/opt/libold.so".to_owned(), ..ModuleInfo::default() };
    vec![shop, old]
}

fn refused() -> Vec<UnprofiledFunction> {
    let why = "an indirect jump is not resolved".to_owned();
    vec![UnprofiledFunction { module: 1, name: "dispatch".to_owned(), start: Svma(0x2000), why }]
}

/// A function with a block before its first byte, edges of all kinds, and calls to all kinds of callees.
fn busy() -> FunctionProfile {
    let starts = [0x0ff0, 0x1000, 0x1010, 0x1020, 0x1400];
    let blocks = starts.iter().enumerate().map(|(n, start)| BlockCount {
        start: Svma(*start),
        size: 16 - n as u32,
        instructions: 4,
        last: Svma(start + 12),
        count: 3 * n as u64,
    });
    let edge = |from, to, kind, count| EdgeCount { from, to, kind, count };
    let call = |block, callee| CallCount { block, callee, count: 7 + block as u64 };
    FunctionProfile {
        module: 0,
        name: "_ZN4shop4sellEv".to_owned(),
        start: Svma(0x1000),
        size: 0x440,
        calls: u64::MAX,
        blocks: blocks.collect(),
        unknown: vec![0],
        edges: vec![
            edge(0, EdgeEnd::Block(4), EdgeKind::Taken, Some(0)),
            edge(0, EdgeEnd::Block(1), EdgeKind::FallThrough, None),
            edge(1, EdgeEnd::Block(2), EdgeKind::CallReturn, Some(3)),
            edge(2, EdgeEnd::Block(3), EdgeKind::JumpTable, Some(u64::MAX)),
            edge(3, EdgeEnd::Outside(Svma(0x0200)), EdgeKind::TailJump, Some(9)),
            edge(4, EdgeEnd::Dynamic, EdgeKind::Return, None),
        ],
        call_sites: vec![
            call(0, CallTarget::Own(Svma(0x2000))),
            call(1, CallTarget::Other { module: 1, at: Svma(0x30) }),
            call(2, CallTarget::Named("free".to_owned())),
            call(3, CallTarget::Indirect),
            call(4, CallTarget::System),
        ],
        inexact: Some("1 thread was at an unknown place".to_owned()),
        details: None,
        paths: None,
    }
}

fn profile(kind: ProfileKind, functions: Vec<FunctionProfile>) -> SavedProfile {
    SavedProfile {
        kind,
        host: "till".to_owned(),
        pid: 4711,
        program: "/opt/shop".to_owned(),
        began_ns: 1_700_000_000_000_000_001,
        ended_ns: 1_700_000_009_000_000_002,
        modules: modules(),
        functions,
        refused: refused(),
        corrected: (2, 1),
        ..SavedProfile::default()
    }
}

/// A function with one block.
fn short() -> FunctionProfile {
    let block = BlockCount { start: Svma(0x40), size: 5, instructions: 2, last: Svma(0x44), count: 1 };
    let edge = EdgeCount { from: 0, to: EdgeEnd::Dynamic, kind: EdgeKind::Return, count: Some(1) };
    FunctionProfile {
        module: 1,
        name: "short".to_owned(),
        start: Svma(0x40),
        size: 5,
        calls: 1,
        blocks: vec![block],
        unknown: Vec::new(),
        edges: vec![edge],
        call_sites: Vec::new(),
        inexact: None,
        details: None,
        paths: None,
    }
}

#[test]
fn profiles_of_version_1_have_counts() {
    let expected = profile(ProfileKind::Counts, vec![busy(), short()]);
    assert_eq!(SavedProfile::from_bytes(&stored("counts-1.profile")), Ok(expected));
}

#[test]
fn profiles_of_version_2_are_coverages() {
    let expected = profile(ProfileKind::Coverage, vec![short(), busy()]);
    assert_eq!(SavedProfile::from_bytes(&stored("coverage-2.profile")), Ok(expected));
}

/// A tree with contexts of all kinds.
fn contexts() -> ContextProfile {
    let function = |module, name: &str, start| ContextFunction {
        module,
        name: name.to_owned(),
        start: Svma(start),
        size: 0x40,
        left: 1,
        unseen: 2,
        unrecorded: u64::MAX,
        left_by_tail_jump: 0,
    };
    let context = |parent, function, kind, (module, at), calls, metrics: [i64; 2]| {
        let site = ReturnSite { module, at: Svma(at) };
        CallingContext { parent, function, site, kind, calls, metrics: metrics.to_vec() }
    };
    ContextProfile {
        functions: vec![function(0, "main", 0x1000), function(1, "_ZN4shop4sellEv", 0x2000)],
        contexts: vec![
            context(None, 0, ContextKind::Call, (Some(1), 0x300), 1, [10, -1]),
            context(Some(0), 1, ContextKind::Call, (Some(0), 0x1010), 2, [i64::MAX, 0]),
            context(Some(1), 1, ContextKind::Recursion(1), (Some(1), 0x2020), u64::MAX, [0, 0]),
            context(Some(0), 1, ContextKind::Tail, (None, 0x7f00_0000_1234), 4, [5, i64::MIN]),
            context(Some(3), 0, ContextKind::Recursion(0), (None, 0), 0, [0, 0]),
            context(Some(1), 0, ContextKind::Recursion(0), (Some(1), 0x2024), 7, [0, 0]),
            context(None, 1, ContextKind::Signal, (Some(0), 0x1ff0), 8, [1, 2]),
        ],
        metrics: vec!["wall_ns".to_owned(), "allocated_bytes".to_owned()],
        outside: vec![-3, 4],
        full: 5,
        ..ContextProfile::default()
    }
}

#[test]
fn profiles_of_version_3_have_calling_contexts() {
    let expected = SavedProfile { contexts: Some(contexts()), ..profile(ProfileKind::Contexts, Vec::new()) };
    assert_eq!(SavedProfile::from_bytes(&stored("contexts-3.profile")), Ok(expected));
}

fn code() -> TraceRecord {
    let block = |start| Block { range: Svma(start)..Svma(start + 8), instructions: 3 };
    let edge = |from, kind, to| Edge { from: BlockId(from), kind, to };
    let way = |at, reason| WayIn { at: Svma(at), reason };
    let cfg = Cfg {
        entry: Some(BlockId(1)),
        blocks: vec![block(0x0ff8), block(0x1000), block(0x1008)].into(),
        edges: vec![
            edge(0, EdgeKind::Return, EdgeTarget::Dynamic),
            edge(1, EdgeKind::Taken, EdgeTarget::Block(BlockId(0))),
            edge(1, EdgeKind::FallThrough, EdgeTarget::Block(BlockId(2))),
            edge(2, EdgeKind::TailJump, EdgeTarget::Outside(Svma(0x3000))),
        ]
        .into(),
        ways_in: vec![way(0x1000, WayInReason::Entry), way(0x1008, WayInReason::LandingPad)],
        unresolved: Vec::new(),
        ways_in_proven: Ok(()),
        ways_out_proven: Ok(()),
    };
    let places = vec![ProbeAt::Block(BlockId(1)), ProbeAt::Edge(EdgeId(1)), ProbeAt::Block(BlockId(2))];
    let routine = TracedRoutine { module: 0, name: "sell".to_owned(), size: 0x20, cfg, places };
    TraceRecord::Code(TracedCode { modules: modules(), functions: vec![routine], refused: refused() })
}

fn program(clock: Option<Scale>) -> TraceRecord {
    let (host, program) = ("till".to_owned(), "/opt/shop".to_owned());
    TraceRecord::Program(TracedProgram { host, pid: 4711, program, began_ns: 1_700_000_000_000_000_001, clock })
}

fn chunk(sequence: u64, ticks: u64) -> TraceRecord {
    let time_ns = 1_700_000_000_000_000_100 + sequence;
    TraceRecord::Chunk(TraceChunk { tid: 4712, stream: 1, sequence, time_ns, ticks, tokens: vec![1, 2, 3, 0x80, 0xff] })
}

const END: TraceRecord = TraceRecord::End(TraceEnd { ended_ns: 1_700_000_009_000_000_002, unbuffered: 5 });

fn records(name: &str) -> Vec<TraceRecord> {
    let file = stored(name);
    let records = TraceRecords::new(file.as_slice()).expect("the beginning of a trace");
    records.collect::<Result<_, _>>().expect("whole records")
}

#[test]
fn traces_of_version_1_have_no_clock() {
    assert_eq!(records("trace-1.trace"), [program(None), code(), chunk(0, 0), chunk(1, 0), END]);
}

#[test]
fn traces_of_version_2_have_a_clock() {
    let newest = NewestPart {
        from_ns: 1_700_000_000_000_000_050,
        until_ns: 1_700_000_000_000_000_060,
        cause: NewestCause::Signal,
        dropped: 99,
    };
    let expected =
        [program(Some(Scale { mult: 3, shift: 2 })), code(), TraceRecord::Newest(newest), chunk(7, 1000), END];
    assert_eq!(records("trace-2.trace"), expected);
}
