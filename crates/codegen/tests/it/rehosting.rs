//! Points that move from the text into the copy of their function: threads in the old code go on as if nothing had happened, and each arrival
//! counts once.

use crate::support::body::{body_of, parts};
use crate::support::image::{Outcome, Program, Step};
use crate::support::random::{Function, functions, lay_out, pops};
use crate::support::*;
use ingraft_codegen::verify::{verify_body, verify_rehosted, verify_weave};
use ingraft_codegen::{
    BodyRequest, MiniRequest, PointRequest, Probe, Rehosted, TextSpace, WovenPoint, rehost, weave_body, weave_points,
};
use ingraft_model::{
    Arrival, Avma, Bias, FunctionBody, Offset, PatchPlan, PcMove, PointId, PointKind, Site, SiteKind, Snippet, Svma,
};
use proptest::prelude::*;

/// The same point in the copy.
fn hosted(site: &Site, body: &FunctionBody) -> (Site, PointId) {
    let offset = |at: Svma| Offset::between(body.function.0, at.0);
    let (kind, at, point) = match &site.kind {
        SiteKind::Entry { free, .. } => (
            SiteKind::Entry { arrival: Arrival::default(), free: free.clone(), first: None },
            body.function,
            PointId::Entry,
        ),
        SiteKind::Block { .. } => {
            let at = block_of(site, body);
            (site.kind.clone(), at, PointId::Block(offset(at)))
        }
        _ => unreachable!("no other points are woven here"),
    };
    let own = if site.point_kind() == PointKind::Block { at } else { site.at };
    (Site { kind, at: own, landings: Vec::new(), island_rooms: Vec::new(), ..site.clone() }, point)
}

fn block_of(site: &Site, body: &FunctionBody) -> Svma {
    body.blocks.iter().map(|b| b.block.range.start).rfind(|start| *start <= site.at).expect("a block")
}

fn request<'a>(site: &'a Site, minis: &'a [MiniRequest<'a>], probe: Option<Probe>) -> PointRequest<'a> {
    PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe }
}

/// Joins plans that do not touch each other.
fn add(plan: &mut PatchPlan, more: PatchPlan) {
    plan.code.extend(more.code);
    plan.text.extend(more.text);
    plan.moves.extend(more.moves);
    plan.text.sort_unstable_by_key(|w| w.at);
    plan.moves.sort_by_key(|m| m.from);
    plan.moves.dedup_by_key(|m| m.from);
}

/// Plans that differ from a right one in one place.
fn false_plans(plan: &PatchPlan) -> Vec<PatchPlan> {
    let mut wrong = Vec::new();
    let mut add = |change: &dyn Fn(&mut PatchPlan)| {
        let mut other = plan.clone();
        change(&mut other);
        wrong.push(other);
    };
    for n in 0..plan.moves.len() {
        add(&|other| other.moves[n].to = other.moves[n].to.offset(1));
        add(&|other| other.moves[n].from = other.moves[n].from.offset(1));
    }
    for n in 0..plan.text.len() {
        add(&|other| other.text[n].new[0] ^= 1);
        add(&|other| other.text[n].old[0] ^= 0x80);
        add(&|other| {
            other.text.remove(n);
        });
    }
    for n in 0..plan.step_out.len() {
        add(&|other| {
            other.step_out.remove(n);
        });
    }
    wrong
}

/// Moves all points that can be woven in the text. Returns the number of moves of threads that were compared.
fn check(functions: &[Function], snippet: &Snippet) -> usize {
    let (image, sites, paddings) = lay_out(functions);
    let env = environment(GLIBC);
    let (mut arena, mut text) = (arena(), TextSpace::new());
    text.add_padding(Bias(0), &paddings);
    let bodies: Vec<FunctionBody> = parts(&image, &sites).iter().map(|(bytes, start)| body_of(bytes, *start)).collect();
    let rooms = bodies.iter().flat_map(|body| body.blocks.iter().skip(1)).filter_map(|block| block.room.clone().ok());
    let all: Vec<Site> = sites.iter().cloned().chain(rooms).collect();
    let counters: Vec<u32> = (0..all.len() as u32).collect();
    let minis: Vec<_> = counters.chunks(1).map(|counters| MiniRequest { id: 7, snippet, counters }).collect();
    let requests: Vec<_> = all.iter().zip(minis.chunks(1)).map(|(site, minis)| request(site, minis, None)).collect();
    let first = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    verify_weave(&env, &arena, &text, &requests, &first).expect("the points are right");

    let (mut insertion, mut olds, mut news) = (PatchPlan::default(), Vec::<WovenPoint>::new(), Vec::new());
    for body in &bodies {
        let own =
            all.iter().zip(&first.woven).zip(minis.chunks(1)).filter(|((site, _), _)| site.function == body.function);
        let own: Vec<_> =
            own.filter_map(|((site, woven), minis)| Some((site, woven.as_deref().ok()?, minis))).collect();
        let (before, old_arena) = (text.clone(), arena.clone());
        own.iter().for_each(|(_, old, _)| text.release_point(old));
        let copy = BodyRequest { body, bias: Bias(0), name: "f", points: &[] };
        let copied = weave_body(&env, &mut arena, &mut text, &copy).expect("the request makes sense");
        let places: Vec<(Site, PointId)> = own.iter().map(|(site, ..)| hosted(site, body)).collect();
        let probes = copied.as_ref().ok().and_then(|copied| {
            let probe = |((_, point), (_, old, _)): (&(Site, PointId), &(_, &WovenPoint, _))| {
                copied.body.probe(*point).ok().copied().filter(|probe| probe.can_take_over(old))
            };
            places.iter().zip(&own).map(probe).collect::<Option<Vec<_>>>()
        });
        let (Ok(copied), Some(probes)) = (copied, probes) else {
            (text, arena) = (before, old_arena);
            continue;
        };
        verify_body(&env, &arena, &text, &copy, &copied).expect("the copy is right");
        let points = places.iter().zip(&own).zip(&probes);
        let requests: Vec<_> =
            points.map(|(((site, _), (.., minis)), probe)| request(site, minis, Some(*probe))).collect();
        let points = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
        verify_weave(&env, &arena, &text, &requests, &points).expect("the points are right");
        add(&mut insertion, copied.plan);
        add(&mut insertion, points.plan);
        olds.extend(own.iter().map(|(_, old, _)| (*old).clone()));
        news.extend(probes);
    }
    let moved: Vec<Rehosted<'_>> =
        olds.iter().zip(&news).map(|(old, probe)| Rehosted { old, probe: Some(probe) }).collect();
    let plan = rehost(&moved, insertion.clone());
    let shown = || list(&first.plan, &first.woven) + &list(&plan, &[]);
    if let Err(e) = verify_rehosted(&moved, &insertion, &plan) {
        panic!("{e}\n{}", shown());
    }
    let proven = |plan: &PatchPlan| verify_rehosted(&moved, &insertion, plan).is_ok();
    for wrong in false_plans(&plan) {
        assert!(!proven(&wrong), "{}\n{}", shown(), list(&wrong, &[]));
    }
    // Between the first instruction and the slot, a thread holds values that a call does not have.
    let checks = |m: &&PcMove| olds.iter().any(|old| old.base < m.from && m.from <= old.slot);
    let byte = |at: Avma| first.plan.code.iter().find_map(|c| c.bytes.get(at.0.checked_sub(c.at.0)? as usize));
    let runs = |m: &&PcMove| byte(m.from).is_some_and(|byte| *byte != 0xcc);
    let places: Vec<_> = plan.moves.iter().filter(|m| runs(m) && !checks(m)).collect();
    let run = |plans, at: &dyn Fn(&PcMove) -> Avma| {
        let steps = places.iter().map(|m| Step::Call { target: at(m).0, registers: vec![], flags: 0x246 }).collect();
        Program { env: &env, text: image.clone(), plans, steps, counters: all.len().max(1) }.run()
    };
    let (old, new) = (run(vec![&first.plan], &|m| m.from), run(vec![&first.plan, &plan], &|m| m.to));
    for ((old, new), m) in old.calls.iter().zip(&new.calls).zip(&places) {
        assert_eq!(old, new, "{} to {}\n{}", m.from, m.to, shown());
    }
    assert_eq!(old.scratch, new.scratch);
    let sum = |outcome: &Outcome, n: usize| outcome.shards.iter().map(|shard| shard[n]).sum::<i64>();
    for (n, site) in all.iter().enumerate() {
        assert_eq!(sum(&old, n), sum(&new, n), "{:?} at {}\n{}", site.point_kind(), site.at, shown());
    }
    places.len()
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn threads_in_old_code_go_on_in_the_copy_and_count_once(mut functions in functions()) {
        functions.truncate(20);
        // These functions are entered in the middle, so they must not depend on words that they have pushed before.
        for f in &mut functions {
            f.body.retain(|choice| !pops(choice));
        }
        check(&functions, &count());
    }
}
