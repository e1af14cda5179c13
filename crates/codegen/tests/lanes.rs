//! Many points at once: their code is written on all processors, whatever the arena has room for.

mod support;

use ingraft_codegen::verify::{verify_removal, verify_weave};
use ingraft_codegen::{Arena, MiniRequest, PointRequest, TextSpace, WovenPoint, remove_points, weave_points_on};
use ingraft_model::{Avma, Bias, Gpr, Refusal, Site, Snippet, Stmt, Svma};
use support::*;

const START: u64 = 0x80_0000;
const HEAD: &[u8] = &[0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54];

/// Functions of which the later ones need shared routines that the first ones do not.
fn sites(n: usize) -> Vec<Site> {
    let register = |i: usize| Gpr(if i < n / 3 { 0 } else { 10 + (i / 7 % 2) as u8 });
    let place = |i: usize| Svma(0x40_1000 + 48 * i as u64);
    let one = |i| Site { function: place(i), at: place(i), scratch: vec![register(i)], ..site(HEAD) };
    (0..n).map(one).collect()
}

/// How many of the points are woven in so many bytes, all proven, and what is left when they are gone.
fn woven(sites: &[Site], processors: usize, bytes: u64) -> (usize, bool) {
    let (env, mut arena, mut text) =
        (environment(GLIBC), Arena::new(Avma(START)..Avma(START + bytes)), TextSpace::new());
    let (count, settle) = (count(), Snippet { stmts: vec![Stmt::Settle] });
    let counters: Vec<u32> = (0..sites.len() as u32).collect();
    let minis: Vec<Vec<MiniRequest<'_>>> = (0..sites.len())
        .map(|i| {
            let counted = MiniRequest { id: 1, snippet: &count, counters: &counters[i..=i] };
            let settled = MiniRequest { id: 2, snippet: &settle, counters: &[] };
            if i % 3 == 2 && i > sites.len() / 2 { vec![settled, counted] } else { vec![counted] }
        })
        .collect();
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[] };
    let requests: Vec<_> = sites.iter().zip(minis.iter().map(Vec::as_slice)).map(request).collect();
    let weave = weave_points_on(processors, &env, &mut arena, &mut text, &requests).expect("makes sense");
    verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
    for (point, site) in weave.woven.iter().zip(sites) {
        match point {
            Ok(point) => assert_eq!(point.at, site.at.to_avma(Bias(0)), "in order"),
            Err(refusal) => assert_eq!(*refusal, Refusal::NoRoomNearby),
        }
    }
    let points: Vec<WovenPoint> = weave.woven.iter().flatten().cloned().collect();
    let plan = remove_points(&points);
    verify_removal(&plan, &points).expect("right");
    plan.retired.iter().for_each(|code| arena.release(code));
    let shared: u64 = arena.shared().iter().map(|range| range.end.0 - range.start.0).sum();
    assert_eq!(arena.used(), shared, "nothing else is in use");
    (points.len(), arena.lacked_room())
}

#[test]
fn many_points_are_woven_in_order() {
    for (n, processors) in [(399, 2), (400, 2), (401, 2), (1500, 1), (1500, 2), (1500, 3), (1500, 64)] {
        assert_eq!(woven(&sites(n), processors, 1 << 20), (n, false));
    }
}

#[test]
fn as_many_write_as_there_are_processors_and_points_for() {
    let (env, count, sites) = (environment(GLIBC), count(), sites(1000));
    let minis = [MiniRequest { id: 1, snippet: &count, counters: &[0] }];
    let request = |site| PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[] };
    let requests: Vec<_> = sites.iter().map(request).collect();
    // what is left over where parts of the arena meet
    let gaps = |processors| {
        let (mut arena, mut text) = (Arena::new(Avma(START)..Avma(START + (1 << 20))), TextSpace::new());
        let mut code =
            weave_points_on(processors, &env, &mut arena, &mut text, &requests).expect("makes sense").plan.code;
        code.sort_by_key(|piece| piece.at);
        code.windows(2).filter(|two| two[1].at.0 - two[0].at.0 - two[0].bytes.len() as u64 > 512).count()
    };
    assert_eq!([1, 2, 3, 5, 64].map(gaps), [0, 1, 2, 4, 4], "each has 200 points at least");
}

#[test]
fn arenas_of_any_size_are_filled() {
    let sites = sites(900);
    for processors in [2, 4] {
        let all = |bytes: &u64| woven(&sites, processors, *bytes) == (sites.len(), false);
        let least = (0..400).map(|kib| kib << 10).find(all).expect("they have room in some arena");
        for bytes in (0..least).step_by(3331) {
            let (points, lacked) = woven(&sites, processors, bytes);
            assert_eq!(lacked, points < sites.len());
            // a little is lost to routines and where parts of the arena meet
            let filled = points as u64 * least / sites.len() as u64 * 11 / 10 + 4096;
            assert!(filled > bytes, "{points} in {bytes} of {least} bytes on {processors}");
        }
    }
}
