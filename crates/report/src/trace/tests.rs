use ingraft_model::token::Token;
use ingraft_model::{Block, BlockId, Edge, EdgeId, EdgeKind, EdgeTarget, Svma, WayIn, WayInReason};
use ingraft_profile::{ProbeAt, Probes, TraceStep};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A loop that calls: 0 -> 1, 1 calls, 2 -> 1 or 3, 3 returns.
fn routine() -> TracedRoutine {
    let at = |n: usize| Svma(0x1000 + 16 * n as u64);
    let block = |from, to, kind| Edge { from: BlockId(from), to: EdgeTarget::Block(BlockId(to)), kind };
    let cfg = Cfg {
        blocks: (0..4).map(|n| Block { range: at(n)..at(n + 1), instructions: 3 }).collect(),
        edges: vec![
            block(0, 1, EdgeKind::FallThrough),
            block(1, 2, EdgeKind::CallReturn),
            block(2, 1, EdgeKind::Taken),
            block(2, 3, EdgeKind::FallThrough),
            Edge { from: BlockId(3), to: EdgeTarget::Dynamic, kind: EdgeKind::Return },
        ]
        .into(),
        entry: Some(BlockId(0)),
        ways_in: vec![
            WayIn { at: at(0), reason: WayInReason::Entry },
            WayIn { at: at(2), reason: WayInReason::CallReturn },
        ],
        unresolved: Vec::new(),
        ways_in_proven: Ok(()),
        ways_out_proven: Ok(()),
    };
    let probes = Probes { edges: vec![true; 5].into(), blocks: vec![true; 4].into() };
    let places = TracedFunction::new(&cfg, &probes).expect("a function").places().to_vec();
    TracedRoutine { module: 0, name: "loop".to_owned(), size: 64, cfg, places }
}

fn chunk(sequence: u64, tokens: &[Token]) -> TraceRecord {
    let tokens = tokens.iter().flat_map(|token| token.bytes().expect("small")).collect();
    TraceRecord::Chunk(TraceChunk { tid: 7, stream: 1, sequence, time_ns: 5, ticks: 6, tokens })
}

fn records() -> Vec<TraceRecord> {
    let place = |edge| {
        let place = routine().places.iter().position(|place| *place == ProbeAt::Edge(EdgeId(edge))).expect("a place");
        Token::Passage(place as u32)
    };
    let clock = Some(Scale { mult: 5, shift: 3 });
    let module = ModuleInfo { name: "m".to_owned(), build_id: vec![1, 2], ..ModuleInfo::default() };
    vec![
        TraceRecord::Program(TracedProgram {
            host: "h".to_owned(),
            pid: 9,
            program: "/p".to_owned(),
            began_ns: 3,
            clock,
        }),
        TraceRecord::Code(TracedCode { modules: vec![module], functions: vec![routine()], refused: Vec::new() }),
        chunk(0, &[Token::Enter(0), place(1), place(2)]),
        chunk(1, &[place(1), place(3)]),
        TraceRecord::Newest(NewestPart { from_ns: 4, until_ns: 7, cause: NewestCause::Condition, dropped: 9 }),
        TraceRecord::End(TraceEnd { ended_ns: 8, unbuffered: 0 }),
    ]
}

fn file(records: &[TraceRecord]) -> Vec<u8> {
    let mut bytes = trace_beginning();
    records.iter().for_each(|record| bytes.extend(record.to_bytes().expect("a record")));
    bytes
}

fn read(bytes: &[u8]) -> (Vec<TraceRecord>, Option<TraceError>) {
    let mut found = Vec::new();
    let records = match TraceRecords::new(bytes) {
        Ok(records) => records,
        Err(why) => return (found, Some(why)),
    };
    for record in records {
        match record {
            Ok(record) => found.push(record),
            Err(why) => return (found, Some(why)),
        }
    }
    (found, None)
}

fn blocks(records: &[TraceRecord]) -> Vec<u32> {
    let traced: Vec<TracedFunction> =
        functions_of(records).into_iter().map(|function| function.traced().expect("a function")).collect();
    let (mut replay, mut blocks) = (TraceReplay::new(&traced), Vec::new());
    for record in records {
        if let TraceRecord::Chunk(chunk) = record {
            let mut note = |step, _| match step {
                TraceStep::Block { block, .. } => blocks.push(block.0),
                TraceStep::Gap => blocks.push(u32::MAX),
                TraceStep::Enter { .. } | TraceStep::Leave { .. } | TraceStep::Condition => {}
            };
            replay.chunk(chunk, &mut note).expect("tokens");
        }
    }
    blocks
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let bytes = file(&records());
    let (found, why) = read(&bytes);
    assert!(why.is_none(), "{why:?}");
    assert_eq!(found, records());
    assert_eq!(blocks(&found), [0, 1, 2, 1, 2, 3]);
}

#[test]
fn a_file_that_was_cut_anywhere_is_readable_up_to_there() {
    let (whole, all) = (file(&records()), records());
    let mut ends = vec![trace_beginning().len()];
    all.iter().for_each(|record| ends.push(ends.last().expect("one") + record.to_bytes().expect("a record").len()));
    for cut in 0..whole.len() {
        let (found, why) = read(&whole[..cut]);
        let complete = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1);
        assert_eq!(found, all[..complete], "cut at {cut}");
        match why {
            None => assert!(ends.contains(&cut), "cut at {cut}"),
            Some(TraceError::Content(FileError::NotATrace)) => assert!(cut < ends[0]),
            Some(TraceError::Cut) => assert!(!ends.contains(&cut)),
            Some(why) => panic!("cut at {cut}: {why}"),
        }
    }
}

#[test]
fn a_changed_byte_is_noticed() {
    let bytes = file(&records());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let (found, why) = read(&changed);
        assert!(why.is_some(), "byte {at}: {found:?}");
        assert!(found.iter().zip(records()).all(|(found, real)| *found == real), "byte {at}");
    }
}

#[test]
fn a_missing_chunk_is_a_gap() {
    let mut records = records();
    records.remove(2);
    // The thread is in the middle of the loop, so its tokens belong to no known activation.
    assert_eq!(blocks(&records), [u32::MAX]);
}

#[test]
fn the_newest_part_begins_with_any_chunk() {
    let mut records = records();
    records.remove(2);
    let traced: Vec<TracedFunction> = functions_of(&records).iter().map(|f| f.traced().expect("a function")).collect();
    let (mut replay, mut steps) = (TraceReplay::new(&traced).of_newest_part(), 0);
    for record in &records {
        if let TraceRecord::Chunk(chunk) = record {
            replay.chunk(chunk, &mut |_, _| steps += 1).expect("tokens");
        }
    }
    // The tokens belong to no known activation, which is no gap.
    let unknown: Vec<_> = replay.unknown().map(|(.., unknown)| (unknown.gaps, unknown.skipped)).collect();
    assert_eq!((steps, unknown), (0, vec![(0, 2)]));
}

#[test]
fn a_later_kind_of_record_is_skipped() {
    let mut bytes = trace_beginning();
    let content = b"later";
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(checksum(77, content).to_le_bytes());
    bytes.extend(77_u32.to_le_bytes());
    bytes.extend(content);
    bytes.extend(records()[5].to_bytes().expect("a record"));
    assert_eq!(read(&bytes).0, records()[5..]);
    bytes[8] = 3;
    assert!(matches!(read(&bytes).1, Some(TraceError::Content(FileError::TraceVersion { found: 3 }))));
}

#[test]
fn a_file_of_the_first_version_is_read() {
    let mut bytes = file(&records());
    bytes[8] = 1;
    let (found, why) = read(&bytes);
    assert!(why.is_none(), "{why:?}");
    assert_eq!(found, records());
}

#[test]
fn steps_have_the_stamp_of_the_latest_entry() {
    let mut records = records();
    let next = |sequence| chunk(sequence, &[Token::Time(500), Token::Enter(0)]);
    records[2] = chunk(0, &[Token::Enter(0), Token::Time(100), Token::Enter(0)]);
    records[3] = next(1);
    records.push(next(3));
    let traced: Vec<TracedFunction> = functions_of(&records).iter().map(|f| f.traced().expect("a function")).collect();
    let (mut replay, mut found) = (TraceReplay::new(&traced), Vec::new());
    for record in &records {
        if let TraceRecord::Chunk(chunk) = record {
            replay
                .chunk(chunk, &mut |step, stamp| found.push((matches!(step, TraceStep::Gap), stamp)))
                .expect("tokens");
        }
    }
    found.dedup();
    let stamps = [(false, None), (false, Some(100)), (false, Some(500)), (true, None), (false, Some(500))];
    assert_eq!(found, stamps);
}

proptest! {
    #[test]
    fn any_content_is_valid_or_refused(kind in 0_u32..7, content in vec(any::<u8>(), 0..200), at in 0_usize..400,
                                       to in any::<u8>()) {
        let mut bytes = trace_beginning();
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(checksum(kind, &content).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(content);
        read(&bytes);
        // A record of functions with one changed byte and a right checksum.
        let mut code = records()[1].to_bytes().expect("a record")[HEADER..].to_vec();
        if let Some(byte) = code.get_mut(at) {
            *byte = to;
        }
        if let Ok(Some(TraceRecord::Code(code))) = TraceRecord::read(2, &code) {
            code.functions.iter().for_each(|function| {
                let _ = function.traced();
            });
            let again = TraceRecord::Code(code.clone()).to_bytes().expect("a record");
            prop_assert_eq!(TraceRecord::read(2, &again[HEADER..]), Ok(Some(TraceRecord::Code(code))));
        }
    }
}
