//! Many points at once: their code is written and proven in parts, for arenas of any size.

use crate::support::body::body_of;
use crate::support::*;
use ingraft_codegen::verify::{verify_bodies_on, verify_removal, verify_weave_on};
use ingraft_codegen::{
    Arena, BodyRequest, MiniRequest, OneThread, PointRequest, Spread, TextSpace, remove_points, weave_bodies_on,
    weave_points_on,
};
use ingraft_model::{Avma, Bias, Gpr, Refusal, Site, Snippet, Stmt, Svma};

const START: u64 = 0x80_0000;
const HEAD: &[u8] = &[0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54];

/// Functions of which the later ones need shared routines that the first ones do not need.
fn sites(n: usize) -> Vec<Site> {
    let register = |i: usize| Gpr(if i < n / 3 { 0 } else { 10 + (i / 7 % 2) as u8 });
    let place = |i: usize| Svma(0x40_1000 + 48 * i as u64);
    let one = |i| entry_at(place(i).0, HEAD).free(&[register(i)], true);
    (0..n).map(one).collect()
}

/// Runs each part on a thread of its own.
struct ManyThreads;

impl Spread for ManyThreads {
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| (0..parts).for_each(|i| drop(scope.spawn(move || part(i)))));
    }
}

/// Weaves and proves the points in an arena of `bytes` bytes, then removes them. Returns the number of woven points, and whether the arena
/// lacked room.
fn woven(sites: &[Site], spread: &dyn Spread, bytes: u64) -> (usize, bool) {
    let (env, mut arena, mut text) =
        (environment(GLIBC), Arena::new(Avma(START)..Avma(START + bytes)), TextSpace::new());
    let (count, prune) = (count(), Snippet { stmts: vec![Stmt::Prune] });
    let counters: Vec<u32> = (0..sites.len() as u32).collect();
    let minis: Vec<Vec<MiniRequest<'_>>> = (0..sites.len())
        .map(|i| {
            let counted = MiniRequest { id: 1, snippet: &count, counters: &counters[i..=i] };
            let pruned = MiniRequest { id: 2, snippet: &prune, counters: &[] };
            if i % 3 == 2 && i > sites.len() / 2 { vec![pruned, counted] } else { vec![counted] }
        })
        .collect();
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
    let requests: Vec<_> = sites.iter().zip(minis.iter().map(Vec::as_slice)).map(request).collect();
    let weave = weave_points_on(spread, &env, &mut arena, &mut text, &requests).expect("makes sense");
    verify_weave_on(spread, &env, &arena, &text, &requests, &weave).expect("right");
    for (point, site) in weave.woven.iter().zip(sites) {
        match point {
            Ok(point) => assert_eq!(point.at, site.at.to_avma(Bias(0)), "in order"),
            Err(refusal) => assert_eq!(*refusal, Refusal::NoRoomNearby),
        }
    }
    let points: Vec<_> = weave.woven.iter().flatten().cloned().collect();
    let plan = remove_points(&points);
    verify_removal(&plan, &points).expect("right");
    plan.retired.iter().for_each(|code| arena.release(code));
    let shared: u64 = arena.shared().iter().map(|range| range.end.0 - range.start.0).sum();
    assert_eq!(arena.used(), shared, "nothing else is in use");
    (points.len(), arena.lacked_room())
}

#[test]
fn many_points_are_woven_in_order() {
    for n in [499, 500, 501, 1500, 5000] {
        for spread in [&OneThread as &dyn Spread, &ManyThreads] {
            assert_eq!(woven(&sites(n), spread, 1 << 20), (n, false));
        }
    }
}

#[test]
fn code_lies_at_the_same_place_however_it_is_written() {
    let (env, count, sites) = (environment(GLIBC), count(), sites(5000));
    let minis = [MiniRequest { id: 1, snippet: &count, counters: &[0] }];
    let request = |site| PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None };
    let code = |spread: &dyn Spread, points: usize| {
        let requests: Vec<_> = sites.iter().take(points).map(request).collect();
        let (mut arena, mut text) = (Arena::new(Avma(START)..Avma(START + (1 << 20))), TextSpace::new());
        let mut code = weave_points_on(spread, &env, &mut arena, &mut text, &requests).expect("makes sense").plan.code;
        code.sort_by_key(|piece| piece.at);
        code
    };
    // Number of gaps in the code, which lie where parts of the arena meet.
    let gaps = |points| {
        let code = code(&OneThread, points);
        code.windows(2).filter(|two| two[1].at.0 - two[0].at.0 - two[0].bytes.len() as u64 > 256).count()
    };
    assert_eq!(code(&OneThread, 5000), code(&ManyThreads, 5000));
    assert_eq!([249, 499, 500, 1000, 5000].map(gaps), [0, 0, 1, 3, 15], "each part has 250 points at least");
}

#[test]
fn arenas_of_any_size_are_filled() {
    let sites = sites(1000);
    let all = |bytes: &u64| woven(&sites, &ManyThreads, *bytes) == (sites.len(), false);
    let least = (0..400).map(|kib| kib << 10).find(all).expect("they have room in some arena");
    for bytes in (0..least).step_by(3331) {
        let (points, lacked) = woven(&sites, &ManyThreads, bytes);
        assert_eq!(lacked, points < sites.len());
        // Routines and the gaps between parts take some room.
        let filled = points as u64 * least / sites.len() as u64 * 11 / 10 + 4096;
        assert!(filled > bytes, "{points} in {bytes} of {least} bytes");
    }
}

/// A function that returns at two places: `test edi, edi; je 1f; mov eax, 1; ret; 1: xor eax, eax; ret`.
const FORK: &[u8] = &[0x85, 0xff, 0x74, 0x06, 0xb8, 1, 0, 0, 0, 0xc3, 0x31, 0xc0, 0xc3];

#[test]
fn functions_are_copied_alike_on_any_number_of_threads() {
    let bodies: Vec<_> = (0..1000).map(|i| body_of(FORK, 0x40_1000 + 16 * i)).collect();
    let request = |body| BodyRequest { body, bias: Bias(0), name: "f", points: &[] };
    let requests: Vec<_> = bodies.iter().map(request).collect();
    let env = environment(GLIBC);
    // The shorter arenas have room for no copy, some copies, and all copies but not for all parts.
    for bytes in [0x20, 0x2000, 0x2_0000, 0x20_0000] {
        let copied = |spread: &dyn Spread| {
            let (mut arena, mut text) = (Arena::new(Avma(START)..Avma(START + bytes)), TextSpace::new());
            let woven = weave_bodies_on(spread, &env, &mut arena, &mut text, &requests).expect("makes sense");
            let copies: Vec<_> =
                requests.iter().zip(&woven).filter_map(|(r, woven)| Some((r, woven.as_ref().ok()?))).collect();
            verify_bodies_on(spread, &env, &arena, &text, &copies).expect("right");
            let mut code: Vec<_> = copies.iter().map(|(_, weave)| weave.body.removal.code.clone()).collect();
            code.sort_unstable_by_key(|range| range.start);
            assert!(code.windows(2).all(|pair| pair[0].end <= pair[1].start), "copies lie apart");
            assert_eq!(arena.lacked_room(), code.len() < requests.len());
            // The text of functions without a copy is free.
            let left = requests.iter().zip(&woven).filter(|(_, woven)| woven.is_err()).map(|(request, _)| *request);
            let left: Vec<_> = left.collect();
            let mut other = Arena::new(Avma(0x100_0000)..Avma(0x110_0000));
            let rest = weave_bodies_on(spread, &env, &mut other, &mut text, &left).expect("makes sense");
            assert!(rest.iter().all(Result::is_ok));
            code
        };
        let (one, many) = (copied(&OneThread), copied(&ManyThreads));
        assert_eq!(one, many, "{bytes:#x}");
        assert_eq!(one.is_empty(), bytes == 0x20);
        assert!(bytes < 0x20_0000 || one.len() == requests.len());
    }
}
