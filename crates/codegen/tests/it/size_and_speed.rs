//! Costs of weaving: bytes of the arena per function always, time on request (`--release -- --ignored --nocapture`).

use std::time::Instant;

use crate::support::*;
use ingraft_codegen::verify::{verify_removal, verify_weave};
use ingraft_codegen::{Arena, MiniRequest, PointRequest, TextSpace, Weave, WovenPoint, remove_points, weave_points};
use ingraft_model::{Avma, Bias, Gpr, Site, Snippet, Svma};

/// First bytes of functions, as compilers write them.
const HEADS: [&[u8]; 6] = [
    &[0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0x41, 0x56],
    &[0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54],
    &[0x48, 0x83, 0xec, 0x18, 0x48, 0x8b, 0x07, 0xc3],
    &[0x53, 0x48, 0x89, 0xfb, 0xe8, 0x10, 0x00, 0x00, 0x00],
    &[0x48, 0x8b, 0x05, 0x10, 0x20, 0x00, 0x00, 0x48, 0x85, 0xc0],
    &[0x48, 0x85, 0xff, 0x74, 0x20, 0x48, 0x8b, 0x07],
];

fn sites(n: usize) -> Vec<Site> {
    (0..n)
        .map(|i| {
            let at = Svma(0x401000 + 48 * i as u64);
            let bytes = HEADS[i % HEADS.len()].to_vec();
            Site { function: at, at, own: bytes.len() as u8, bytes, ..site(&[]) }
        })
        .map(|s| s.free(&[Gpr(0), Gpr(10), Gpr(11)], true))
        .collect()
}

struct Run {
    weave: Weave,
    points: Vec<WovenPoint>,
    arena: Arena,
    ms: [f64; 4],
}

fn run(sites: &[Site], snippet: &Snippet) -> Run {
    let env = environment(GLIBC);
    let mut arena = Arena::new(Avma(0x800000)..Avma(0x800000 + Arena::estimate_bytes(sites.len())));
    let mut text = TextSpace::new();
    let counters: Vec<u32> = (0..sites.len() as u32).collect();
    let minis: Vec<_> = counters.chunks(1).map(|counters| MiniRequest { id: 1, snippet, counters }).collect();
    let requests: Vec<_> = sites
        .iter()
        .zip(minis.chunks(1))
        .map(|(site, minis)| PointRequest {
            site,
            bias: Bias(0),
            name: "a_function_of_some_length",
            minis,
            beside: &[],
            probe: None,
        })
        .collect();
    let t = Instant::now();
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
    let woven = t.elapsed();
    let t = Instant::now();
    verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
    let verified = t.elapsed();
    let points: Vec<WovenPoint> = weave.woven.iter().flatten().map(|point| (**point).clone()).collect();
    let t = Instant::now();
    let plan = remove_points(&points);
    let removed = t.elapsed();
    let t = Instant::now();
    verify_removal(&plan, &points).expect("right");
    let removal_verified = t.elapsed();
    let ms = [woven, verified, removed, removal_verified].map(|d| d.as_secs_f64() * 1e3);
    Run { weave, points, arena, ms }
}

#[test]
fn a_count_takes_less_than_64_bytes_of_arena() {
    let sites = sites(1000);
    let run = run(&sites, &count());
    assert_eq!(run.points.len(), sites.len());
    let bytes = run.weave.plan.code.iter().map(|c| c.bytes.len()).sum::<usize>();
    assert!(bytes < 64 * sites.len() && run.arena.used() <= bytes as u64, "{bytes} bytes");
    let (pieces, parts) = (run.weave.plan.code.len(), sites.len() / 250);
    assert!(pieces < 3 + parts, "a write for each of {parts} parts and for routines, not {pieces}");
}

#[test]
#[ignore = "measures; run it in release"]
fn time() {
    let sites = sites(13_900);
    for snippet in [count(), busy()] {
        let mut best = [f64::MAX; 4];
        for _ in 0..9 {
            let run = run(&sites, &snippet);
            assert_eq!(run.points.len(), sites.len());
            best = std::array::from_fn(|i| best[i].min(run.ms[i]));
        }
        println!(
            "{snippet}: weave {:.1} ms, verify {:.1}, remove {:.1}, verify {:.1}",
            best[0], best[1], best[2], best[3]
        );
    }
}

fn busy() -> Snippet {
    use ingraft_model::{BinaryOp, Expr, Stmt, VariableId};
    let v = VariableId(0);
    let condition = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Arg(1)), Box::new(Expr::Const(10)));
    Snippet { stmts: vec![Stmt::If(condition, vec![Stmt::Add(v, Expr::Arg(2))])] }
}
