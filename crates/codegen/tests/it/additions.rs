//! Snippets that are added to many points at once. They are proven together, and those that are alike only once: so the verifier must not
//! accept a snippet because another one is right.

use crate::support::*;
use ingraft_codegen::verify::{Added, verify_added, verify_all_added};
use ingraft_codegen::{Arena, Environment, MiniRequest, OneThread, PointRequest, Templates, TextSpace, WovenPoint};
use ingraft_codegen::{add_mini, add_mini_from, weave_points};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{
    Avma, Bias, CallRecord, Clock, Expr, Gpr, KeptValue, PatchPlan, Resolution, Restore, Site, Snippet, Stmt,
    ThreadIdentity, VariableId,
};

const V: [VariableId; 3] = [VariableId(0), VariableId(1), VariableId(2)];

/// A snippet that opens a record and starts a timer, and one that counts in a histogram.
fn timer() -> [Snippet; 2] {
    let record = CallRecord {
        activations: V[0],
        restore: Some(Restore::Timer(V[1], Clock::Wall)),
        kept: vec![KeptValue::Time(Clock::Wall)],
    };
    let observe = Stmt::Observe(V[2], Resolution::Coarse, Expr::Arg(0), None);
    [
        Snippet { stmts: vec![Stmt::Open(record, vec![Stmt::Start(V[1], Clock::Wall)])] },
        Snippet { stmts: vec![Stmt::Add(V[0], Expr::Const(2)), observe] },
    ]
}

/// Points with a count at each, in one arena.
fn points(env: &Environment, n: usize) -> (Arena, Vec<WovenPoint>) {
    let (mut arena, mut text) = (arena(), TextSpace::new());
    let free = |i: usize| [Gpr(0), Gpr(10 + (i / 4 % 2) as u8)];
    let sites: Vec<Site> = (0..n)
        .map(|i| {
            entry_at(0x40_1000 + 48 * i as u64, &[0x41, 0x57, 0x41, 0x56, 0x41, 0x55]).free(&free(i)[..1 + i % 2], true)
        })
        .collect();
    let (count, counters) = (count(), (0..n as u32).collect::<Vec<_>>());
    let minis: Vec<_> = counters.chunks(1).map(|counters| [MiniRequest { id: 1, snippet: &count, counters }]).collect();
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
    let requests: Vec<_> = sites.iter().zip(minis.iter().map(|m| &m[..])).map(request).collect();
    let weave = weave_points(env, &mut arena, &mut text, &requests).expect("makes sense");
    (arena, weave.woven.into_iter().map(|point| *point.expect("there is room")).collect())
}

/// The snippets that were added, with the points after each, and their code.
struct Batch<'a> {
    code: Vec<ArenaCode>,
    added: Vec<(PatchPlan, WovenPoint, MiniRequest<'a>)>,
}

impl<'a> Batch<'a> {
    /// Adds both snippets to each point.
    fn of(
        env: &Environment,
        arena: &mut Arena,
        points: &mut [WovenPoint],
        snippets: &'a [Snippet; 2],
        counters: &'a [[u32; 3]],
    ) -> Self {
        let (mut code, mut added, mut templates) = (Vec::new(), Vec::new(), Templates::default());
        for (point, counters) in points.iter_mut().zip(counters) {
            for (id, snippet) in (2..).zip(snippets) {
                let request = MiniRequest { id, snippet, counters };
                let index = point.minis.len();
                let (mut alone, mut alone_arena) = (point.clone(), arena.clone());
                let single = add_mini(env, &mut alone_arena, &mut alone, &request, index).expect("there is room");
                let mut plan =
                    add_mini_from(env, arena, point, &request, index, &mut templates).expect("there is room");
                assert_eq!((&single, &alone), (&plan, &*point), "a template gives the same code");
                verify_added(env, arena, &plan, point, &request).expect("right");
                code.append(&mut plan.code);
                added.push((plan, point.clone(), request));
            }
        }
        Batch { code, added }
    }

    fn verify(&self, env: &Environment, arena: &Arena, code: &[ArenaCode]) -> bool {
        let claims: Vec<Added<'_>> =
            self.added.iter().map(|(plan, after, request)| Added { plan, after, request: *request }).collect();
        verify_all_added(&OneThread, env, arena, code, &claims).is_ok()
    }
}

#[test]
fn a_wrong_snippet_is_found_although_others_like_it_are_right() {
    for identity in [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked] {
        let env = environment(identity);
        let (mut arena, mut points) = points(&env, 6);
        let snippets = timer();
        // The counters of the last point are further away, and those of its histogram are its last ones.
        let last = env.data.counters() - 3000;
        let counters: Vec<[u32; 3]> = (0..6)
            .map(|i| if i == 5 { [last, last + 1, last + 2] } else { [20 + 2 * i, 40 + i, 100 + 2000 * i] })
            .collect();
        let batch = Batch::of(&env, &mut arena, &mut points, &snippets, &counters);
        assert!(batch.verify(&env, &arena, &batch.code), "{identity:?}");
        // Each bit of the last point's snippets: proven together with the others, the code is as wrong as alone.
        let own = |code: &&ArenaCode| {
            let its = &batch.added[batch.added.len() - 1].1;
            its.minis.iter().filter_map(|mini| mini.code.as_ref()).any(|mini| mini.range.contains(&code.at))
        };
        let mut found = 0;
        for (number, code) in batch.code.iter().enumerate().filter(|(_, code)| own(code)) {
            let single = batch.added.iter().find(|(_, after, _)| {
                after.minis.iter().any(|mini| mini.code.as_ref().is_some_and(|mini| mini.range.start == code.at))
            });
            let (plan, after, request) = single.expect("its snippet");
            for bit in 0..8 * code.bytes.len() {
                let mut broken = code.clone();
                broken.bytes[bit / 8] ^= 1 << (bit % 8);
                let alone = PatchPlan { code: vec![broken.clone()], ..plan.clone() };
                let alone = verify_added(&env, &arena, &alone, after, request).is_ok();
                let mut all = batch.code.clone();
                all[number] = broken;
                let at = Avma(code.at.0 + (bit / 8) as u64);
                assert_eq!(batch.verify(&env, &arena, &all), alone, "{identity:?} {at} bit {}", bit % 8);
                found += usize::from(!alone);
            }
        }
        assert!(found > 250, "{identity:?}: {found}");
    }
}

#[test]
fn text_that_is_in_use_is_not_taken_again() {
    let w = weave(GLIBC, site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]), &[], &[count()]);
    let (point, mut text) = (w.point(), w.text.clone());
    text.release_point(point);
    assert!(text.take_again(point, &w.text));
    assert!(!text.take_again(point, &w.text), "another point may have taken it in the meantime");
}
