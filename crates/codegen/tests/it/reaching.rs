//! Tests of the counters that code may still change, from any of its addresses on.

use std::ops::Range;

use crate::support::*;
use iced_x86::{Code, Decoder, DecoderOptions};
use ingraft_codegen::{MiniRequest, PointRequest, TextSpace, counters_in_reach, weave_points};
use ingraft_model::{
    Avma, Bias, CallRecord, Clock, Expr, KeptValue, Resolution, Restore, Shape, Snippet, Stmt, Svma, TimeUnit,
    VariableId,
};

const HISTOGRAM: u32 = 1000;

fn timed() -> CallRecord {
    CallRecord {
        activations: VariableId(0),
        kept: vec![KeptValue::Time(Clock::Wall)],
        restore: Some(Restore::Value(VariableId(1))),
    }
}

/// Two counts of their own at two entries, and a timed call that sets a counter back.
#[test]
fn code_reaches_its_own_counters_and_no_others() {
    let env = environment(GLIBC);
    let plain = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0x90, 0x90, 0xc3];
    let at = |n: u64| entry_at(0x40_1000 + 0x100 * n, &plain).free(&[], false);
    let entries = [at(0), at(1), at(2)];
    let exit = exit_site(0x40_1200, 0x40_1240, 7, &[0x48, 0x83, 0xc4, 0x08, 0x90, 0x90, 0x90, 0xc3], &[0xcc; 8]);
    let snippet = |stmts| Snippet { stmts };
    let open = snippet(vec![Stmt::Prune, Stmt::Open(timed(), vec![Stmt::Set(VariableId(1), Expr::Const(1))])]);
    let elapsed = Expr::Elapsed(Clock::Wall, TimeUnit::Ticks);
    let observe = Stmt::Observe(VariableId(2), Resolution::Coarse, elapsed, None);
    let close = snippet(vec![Stmt::Close(timed(), vec![observe])]);
    let count = count();
    let places = [20, 40, HISTOGRAM];
    let minis = [
        vec![MiniRequest { id: 1, snippet: &count, counters: &[7] }],
        vec![MiniRequest { id: 2, snippet: &count, counters: &[9] }],
        vec![MiniRequest { id: 3, snippet: &open, counters: &places }],
        vec![MiniRequest { id: 4, snippet: &close, counters: &places }],
    ];
    let sites = entries.iter().chain([&exit]).zip(&minis);
    let requests: Vec<_> = sites
        .map(|(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None })
        .collect();
    let mut arena = arena();
    let weave = weave_points(&env, &mut arena, &mut TextSpace::new(), &requests).expect("the request makes sense");
    let woven: Vec<_> = weave.woven.iter().map(|w| w.as_ref().expect("woven")).collect();
    let pieces: Vec<_> = weave.plan.code.iter().map(|piece| (piece.at.0, piece.bytes.clone())).collect();
    let read = |at: Avma, into: &mut [u8]| {
        let piece = pieces.iter().find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at.0));
        let rest = piece.map_or(&[][..], |(start, bytes)| &bytes[(at.0 - start) as usize..]);
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    };
    let code = [arena.range()];
    let reach = |from: Avma| counters_in_reach(&env.data, &code, &read, &[from]).expect("little code");
    let names = |ranges: &[Range<u32>]| ranges.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
    assert_eq!(names(&reach(woven[0].base)), [(7, 8)]);
    assert_eq!(names(&reach(woven[1].base)), [(9, 10)]);
    // The record's name and the counter that it sets back; a name stands for four counters.
    let begin = reach(woven[2].base);
    assert!(
        begin.iter().any(|r| r.contains(&20) && r.contains(&23)) && begin.iter().any(|r| r.contains(&40)),
        "{begin:?}"
    );
    // A number in the code that is no offset may look like one.
    assert!(begin.iter().map(|r| r.end - r.start).sum::<u32>() < 20, "{begin:?}");
    let end = reach(woven[3].base);
    let last = HISTOGRAM + Shape::Histogram(Resolution::Coarse).slots() - 1;
    assert!([20, HISTOGRAM, last].iter().all(|n| end.iter().any(|r| r.contains(n))), "{end:?}");
    assert!(end.iter().all(|r| !r.contains(&7) && !r.contains(&9)), "{end:?}");
    // Any address inside of a point leads at most to what the point's first one does, unless it is in the middle of an instruction.
    assert_eq!(names(&reach(woven[0].tail)), []);
    assert_eq!(names(&reach(Avma(Svma(0x40_1000).0))), [], "text is no generated code");
}

/// A thread in a routine that it has called changes the counters whose number it was given before.
#[test]
fn what_a_called_routine_changes_is_known_by_the_place_to_which_it_returns() {
    let env = environment(GLIBC);
    let exit = exit_site(0x40_1200, 0x40_1240, 7, &[0x48, 0x83, 0xc4, 0x08, 0x90, 0x90, 0x90, 0xc3], &[0xcc; 8]);
    let elapsed = Expr::Elapsed(Clock::Wall, TimeUnit::Ticks);
    let observe = Stmt::Observe(VariableId(2), Resolution::Fine, elapsed, None);
    let close = Snippet { stmts: vec![Stmt::Close(timed(), vec![observe])] };
    let minis = [MiniRequest { id: 4, snippet: &close, counters: &[20, 40, HISTOGRAM] }];
    let requests = [PointRequest { site: &exit, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let mut arena = arena();
    let weave = weave_points(&env, &mut arena, &mut TextSpace::new(), &requests).expect("the request makes sense");
    let pieces: Vec<_> = weave.plan.code.iter().map(|piece| (piece.at.0, piece.bytes.clone())).collect();
    let read = |at: Avma, into: &mut [u8]| {
        let piece = pieces.iter().find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&at.0));
        let rest = piece.map_or(&[][..], |(start, bytes)| &bytes[(at.0 - start) as usize..]);
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    };
    let code = [arena.range()];
    let last = HISTOGRAM + Shape::Histogram(Resolution::Fine).slots() - 1;
    let mut calls = 0;
    for (start, bytes) in &pieces {
        let own = Decoder::with_ip(64, bytes, *start, DecoderOptions::NONE);
        for i in own.into_iter().filter(|i| i.code() == Code::Call_rel32_64) {
            let back = Avma(i.next_ip());
            let found = counters_in_reach(&env.data, &code, &read, &[back]).expect("little code");
            assert!([HISTOGRAM, last].iter().all(|n| found.iter().any(|r| r.contains(n))), "{back}: {found:?}");
            calls += 1;
        }
    }
    assert!(calls > 2, "the record is closed, and the time is observed");
}

#[test]
fn any_bytes_are_followed_to_an_end() {
    let env = environment(GLIBC);
    let range = Avma(0x50_0000)..Avma(0x50_1000);
    proptest::proptest!(property_config(), |(bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..0x1000), from in 0u64..0x1000)| {
        let read = |at: Avma, into: &mut [u8]| {
            let rest = bytes.get((at.0 - range.start.0) as usize..).unwrap_or_default();
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            len
        };
        let found = counters_in_reach(&env.data, std::slice::from_ref(&range), &read, &[range.start.offset(from as i64)]);
        let found = found.expect("little code");
        proptest::prop_assert!(found.windows(2).all(|w| w[0].end < w[1].start));
        proptest::prop_assert!(found.iter().all(|r| r.end <= env.data.counters()));
    });
}
