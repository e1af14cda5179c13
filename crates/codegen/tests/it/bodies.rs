//! Copies of whole functions on the processor: the same results as the originals, and counts at blocks and edges that agree.

use std::collections::BTreeMap;

use crate::support::body::{ALL, Copied, Copies, PROFILE, Renewed, parts, site, start_of};
use crate::support::image::{Outcome, Program, Step};
use crate::support::random::{Function, functions, lay_out, pops};
use crate::support::*;
use ingraft_codegen::verify::{verify_added, verify_removed, verify_removed_within, verify_weave};
use ingraft_codegen::{
    BodyCode, BodyWeave, CountingRenewal, Held, MiniRequest, PointRequest, add_mini, remove_mini, remove_points,
    remove_within, weave_points,
};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{
    Avma, Bias, BinaryOp, BlockId, EdgeTarget, Expr, Key, Offset, PatchPlan, PcMove, PointId, PointKind, Snippet, Stmt,
    ThreadIdentity, VariableId,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];
const CALLS: usize = 2;

fn steps(targets: &[u64]) -> Vec<Step> {
    let call = |(i, target): (usize, &u64)| {
        let flags = if i % 2 == 0 { 0x246 } else { 0xad7 };
        vec![Step::Call { target: *target, registers: vec![], flags }; CALLS]
    };
    targets.iter().enumerate().flat_map(call).collect()
}

/// Checks that for every block whose arrivals are all counted, as many leave along edges as arrive.
fn check_counts(copied: &Copied, first: usize, counts: &[i64], shown: &dyn Fn() -> String) {
    let count = |point: PointId| copied.counted.iter().position(|p| *p == point).map(|n| counts[first + n]);
    let body = &copied.body;
    for block in body.blocks.keys() {
        let at = start_of(body, block);
        let Some(arrivals) = count(PointId::Block(at)) else { continue };
        let edge = |e: &ingraft_model::Edge| {
            let EdgeTarget::Block(to) = e.to else { return None };
            count(PointId::Edge { from: start_of(body, e.from), to: start_of(body, to), kind: e.kind })
        };
        let into: Vec<_> = body.edges.iter().filter(|e| e.to == EdgeTarget::Block(block)).map(edge).collect();
        let out: Vec<_> = body.edges.iter().filter(|e| e.from == block).map(edge).collect();
        let called = if at == Offset(0) { CALLS as i64 } else { 0 };
        if let Some(into) = into.iter().copied().sum::<Option<i64>>() {
            assert_eq!(arrivals, into + called, "into {at}\n{}", shown());
        }
        let leaves = out.iter().copied().sum::<Option<i64>>();
        if let Some(leaves) = leaves.filter(|_| !out.is_empty()) {
            assert_eq!(arrivals, leaves, "out of {at}\n{}", shown());
        }
    }
}

/// Checks that every call enters the function once and leaves it once, and that each call that the function makes returns.
fn check_calls(copied: &Copied, first: usize, counts: &[i64], shown: &dyn Fn() -> String) {
    let each = |kind: PointKind| {
        let its = copied.counted.iter().zip(&counts[first..]).filter(move |(point, _)| point.kind() == kind);
        its.map(|(point, count)| (point.offset(), *count))
    };
    let calls = CALLS as i64;
    let body = &copied.weave.body;
    let entered = body.exposed.binary_search(&BlockId(0)).is_err() && body.called_at(body.function).is_none();
    let entries: Vec<i64> = each(PointKind::Entry).map(|(_, count)| count).collect();
    assert_eq!(entries, if entered { vec![calls] } else { vec![] }, "{}", shown());
    if copied.weave.body.exposed.is_empty() {
        assert_eq!(each(PointKind::Exit).map(|(_, count)| count).sum::<i64>(), calls, "{}", shown());
    }
    for (at, made) in each(PointKind::CallBefore) {
        let start = copied.body.function;
        let at = start.offset(at.expect("the offset of a call").0);
        let block = copied.body.blocks.iter().find(|b| b.block.range.contains(&at));
        let next = Offset::between(start.0, block.expect("a call is in a block").block.range.end.0);
        for (_, returned) in each(PointKind::CallAfter).filter(|(at, _)| *at == Some(next)) {
            assert_eq!(made, returned, "{at}\n{}", shown());
        }
    }
}

/// Compares copied functions with the originals. Returns the number of functions that were copied, and of all functions.
fn check(functions: &[Function], identity: ThreadIdentity, snippet: &Snippet, kinds: &[PointKind]) -> (usize, usize) {
    let (image, sites, paddings) = lay_out(functions);
    let parts = parts(&image, &sites);
    let copies = Copies::new(identity, &parts, &paddings, snippet, kinds);
    let targets: Vec<u64> = parts.iter().map(|(_, start)| *start).collect();
    let program = |plans| -> Outcome {
        Program {
            env: &copies.env,
            text: image.clone(),
            plans,
            steps: steps(&targets),
            counters: copies.counters.max(1),
        }
        .run()
    };
    let (plain, woven) = (program(vec![]), program(copies.plans()));
    let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
    let mut first = 0;
    for (i, function) in copies.functions.iter().enumerate() {
        let shown = || match function {
            Ok(f) => format!("{:x?}\n{}\n{}", f.body, list(&f.weave.plan, &[]), list(&f.points.plan, &f.points.woven)),
            Err(refusal) => refusal.to_string(),
        };
        for call in CALLS * i..CALLS * (i + 1) {
            assert_eq!(plain.calls[call], woven.calls[call], "{}", shown());
        }
        if let Ok(copied) = function {
            check_counts(copied, first, &woven.shards[own], &shown);
            if kinds == ALL {
                check_calls(copied, first, &woven.shards[own], &shown);
            }
            first += copied.counted.len();
        }
    }
    assert_eq!(plain.scratch, woven.scratch, "memory");
    (copies.functions.iter().filter(|f| f.is_ok()).count(), functions.len())
}

/// A snippet that needs registers and flags.
fn conditional() -> Snippet {
    let above = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Variable(VariableId(0))), Box::new(Expr::Const(-1)));
    Snippet { stmts: vec![Stmt::If(above, vec![Stmt::Add(VariableId(0), Expr::Const(1))])] }
}

/// Checks that a thread that moves into a copy or out of it has the same result.
fn check_moves(functions: &[Function], identity: ThreadIdentity, kinds: &[PointKind]) {
    let (image, sites, paddings) = lay_out(functions);
    let parts = parts(&image, &sites);
    let copies = Copies::new(identity, &parts, &paddings, &count(), kinds);
    let mut pairs: Vec<(Avma, Avma)> = Vec::new();
    for f in copies.functions.iter().flatten() {
        let points = f.all_points();
        let all = remove_points(points.iter().copied());
        pairs.extend(f.weave.plan.moves.iter().map(|m| (m.from, m.to)));
        let own = f.weave.body.removal.moves.iter().chain(&all.moves).map(|m: &PcMove| (m.to, m.from));
        // The jump to the slow routine uses the value that the instruction before it has loaded into the scratch register.
        let mut bound: Vec<Avma> = points.iter().map(|p| p.base.offset(-5)).collect();
        // A thread after the branch past the snippets has decided to take the conditional jump.
        let taken = points.iter().filter(|p| p.probe.is_some_and(|probe| matches!(probe.holds, Held::Branch(..))));
        bound.extend(taken.map(|p| p.base.offset(6)));
        // So has a thread that is about to leave the counting copy for the probe at such a jump.
        let branches: Vec<Avma> =
            f.weave.body.probes.iter().filter(|p| matches!(p.holds, Held::Branch(..))).map(|p| p.copy).collect();
        let now = f.renewed.iter().map(|renewed| &renewed.renewal.counting);
        let apart: Vec<PcMove> =
            now.clone().filter_map(|counting| counting.apart.as_ref()).flat_map(|apart| apart.moves.clone()).collect();
        let counting = f.weave.body.counting.iter().chain(now).flat_map(|counting| &counting.moves);
        let texts: BTreeMap<Avma, Avma> =
            f.weave.body.removal.moves.iter().chain(&apart).map(|m| (m.from, m.to)).collect();
        let decided = |m: &&PcMove| branches.contains(&m.to) && texts.get(&m.from) != texts.get(&m.to);
        bound.extend(counting.filter(decided).map(|m| m.from));
        let own = own.chain(apart.iter().map(|m| (m.to, m.from)));
        // The first bytes of gates have become jumps.
        let gates = f.renewed.iter().flat_map(|renewed| &renewed.renewal.counting.gates);
        let written: Vec<_> = gates.map(|gate| gate.at.offset(1)..gate.at.offset(5)).collect();
        let is_torn = |from: &Avma| written.iter().any(|written| written.contains(from));
        pairs.extend(own.filter(|(_, from)| !bound.contains(from) && !is_torn(from)));
    }
    let steps = |pick: fn(&(Avma, Avma)) -> u64| {
        pairs.iter().map(|p| Step::Call { target: pick(p), registers: vec![], flags: 0x246 }).collect::<Vec<_>>()
    };
    let program = |plans, steps| {
        Program { env: &copies.env, text: image.clone(), plans, steps, counters: copies.counters.max(1) }.run()
    };
    let plain = program(vec![], steps(|p| p.0.0));
    let woven = program(copies.plans(), steps(|p| p.1.0));
    for ((a, b), (original, new)) in plain.calls.iter().zip(&woven.calls).zip(&pairs) {
        let shown = |f: &Copied| list(&f.weave.plan, &[]) + &list(&f.points.plan, &f.points.woven);
        assert_eq!(a, b, "{original} and {new}\n{}", copies.functions.iter().flatten().map(shown).collect::<String>());
    }
    assert_eq!(plain.scratch, woven.scratch);
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn copies_do_what_the_originals_did(functions in functions(), identity in 0..3usize, plain in any::<bool>(), all in any::<bool>()) {
        let kinds = if all { &ALL[..] } else { &PROFILE[..] };
        check(&functions, IDENTITIES[identity], &if plain { count() } else { conditional() }, kinds);
    }

    #[test]
    fn threads_may_move_into_copies_and_out_of_them(mut functions in functions(), identity in 0..3usize, all in any::<bool>()) {
        functions.truncate(20);
        // These functions are entered in the middle, so they must not depend on words that they have pushed before.
        for f in &mut functions {
            f.body.retain(|choice| !pops(choice));
        }
        check_moves(&functions, IDENTITIES[identity], if all { &ALL } else { &PROFILE });
    }
}

#[test]
fn most_random_functions_can_be_copied() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut woven, mut all, mut called, mut gates, mut renewed, mut with_copies) = (0, 0, 0, 0, 0, 0);
    for _ in 0..10 {
        let functions = functions().new_tree(&mut runner).expect("a value").current();
        let (image, sites, paddings) = lay_out(&functions);
        let copies = Copies::new(GLIBC, &parts(&image, &sites), &paddings, &count(), &ALL);
        called += copies.functions.iter().flatten().map(|f| f.weave.body.called.len()).sum::<usize>();
        let copies = Copies::new(GLIBC, &parts(&image, &sites), &paddings, &count(), &PROFILE);
        let counting = copies.functions.iter().flatten().filter_map(|f| f.weave.body.counting.as_ref());
        gates += counting.map(|counting| counting.gates.len()).sum::<usize>();
        renewed += copies.functions.iter().flatten().filter(|f| f.renewed.is_some()).count();
        with_copies += copies.functions.iter().flatten().map(|f| f.weave.points.len()).sum::<usize>();
        let (w, a) = check(&functions, GLIBC, &count(), &ALL);
        woven += w;
        all += a;
    }
    assert!(woven * 10 > all * 7, "{woven} of {all}");
    assert!(called > 10, "{called} calls lead to copies");
    assert!(gates > 10, "{gates} ways lead into counting copies");
    assert!(renewed > 10, "{renewed} counting copies were made again");
    assert!(with_copies > 10, "{with_copies} points were woven together with copies");
}

#[test]
fn snippets_come_and_go_at_points_that_came_with_a_copy() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut some = || functions().new_tree(&mut runner).expect("a value").current();
    let functions: Vec<Function> = (0..4).flat_map(|_| some()).collect();
    let (image, sites, paddings) = lay_out(&functions);
    let parts = parts(&image, &sites);
    let copies = Copies::new(GLIBC, &parts, &paddings, &count(), &PROFILE);
    let (env, mut arena, mut text, counters) = (copies.env, copies.arena.clone(), copies.text.clone(), copies.counters);
    let targets: Vec<u64> = parts.iter().map(|(_, start)| *start).collect();
    let run = |plans: &[&PatchPlan]| {
        let (plans, steps) = (plans.to_vec(), steps(&targets));
        Program { env: &env, text: image.clone(), plans, steps, counters: 3 * counters }.run()
    };
    // All threads run the ordinary copies of these functions.
    let its: Vec<&Copied> = copies.functions.iter().flatten().filter(|f| f.renewed.is_none()).collect();
    let given_up: Vec<PatchPlan> =
        its.iter().filter_map(|f| Some(f.weave.body.clone().give_up_counting()?.0)).collect();
    let inserted: Vec<&PatchPlan> = copies.plans().into_iter().chain(&given_up).collect();
    let snippet = count();
    let (mut added, mut emptied, mut again) = (Vec::new(), Vec::new(), Vec::new());
    let mut own: Vec<u32> = Vec::new();
    for (f, point) in its.iter().flat_map(|f| f.weave.points.iter().map(move |point| (f, point))) {
        let probe = point.probe.expect("the point is in a copy");
        let asked = f.own.iter().find(|asked| asked.point == probe.point).expect("a requested point");
        let BodyCode::Count(counter) = asked.code else { panic!("{asked:?}") };
        own.push(counter);
        let mut point = (**point).clone();
        let more = [counter + counters as u32];
        let request = MiniRequest { id: 1, snippet: &snippet, counters: &more };
        let plan = add_mini(&env, &mut arena, &mut point, &request, 1).expect("room for a snippet");
        verify_added(&env, &arena, &plan, &point, &request).expect("the snippet is right");
        added.push(plan);
        let before = point.clone();
        let plan = remove_mini(&arena, &mut point, 0).expect("the first snippet is there");
        verify_removed(&arena, &plan, &before, &point).expect("the removal is right");
        emptied.push(plan);
        let plan = remove_within(&point, |_| false, true).expect("the copy stays");
        verify_removed_within(&plan, &point, |_| false, true).expect("the removal is right");
        assert!(
            verify_removed_within(&PatchPlan { text: Vec::new(), ..plan.clone() }, &point, |_| false, true).is_err()
        );
        emptied.push(plan);
        let site = site(&f.body, &probe, None);
        let third = [counter + 2 * counters as u32];
        let minis = [MiniRequest { id: 2, snippet: &snippet, counters: &third }];
        let request =
            PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: Some(probe) };
        let weave = weave_points(&env, &mut arena, &mut text, &[request]).expect("the request makes sense");
        verify_weave(&env, &arena, &text, &[request], &weave).expect("the point is right");
        again.push(weave.plan);
    }
    assert!(own.len() > 10, "{} points came with copies", own.len());
    let plain = run(&[]);
    let counts = |outcome: &Outcome, nth: usize| -> Vec<i64> {
        own.iter().map(|counter| outcome.shards[2][*counter as usize + nth * counters]).collect()
    };
    let with = |more: &[&[PatchPlan]]| {
        let plans: Vec<&PatchPlan> = inserted.iter().copied().chain(more.iter().copied().flatten()).collect();
        let outcome = run(&plans);
        assert_eq!(outcome.calls, plain.calls);
        assert_eq!(outcome.scratch, plain.scratch);
        [0, 1, 2].map(|nth| counts(&outcome, nth))
    };
    let none = vec![0; own.len()];
    let [all, ..] = with(&[]);
    assert!(all.iter().filter(|count| **count > 0).count() > 10, "{all:?}");
    assert_eq!(with(&[&added]), [all.clone(), all.clone(), none.clone()]);
    assert_eq!(with(&[&added, &emptied]), [none.clone(), none.clone(), none.clone()]);
    assert_eq!(with(&[&added, &emptied, &again]), [none.clone(), none, all]);
}

/// Texts of a copy's instructions, without bits of the encoding that have no effect.
fn texts(weave: &BodyWeave) -> Vec<String> {
    texts_of(&weave.plan.code)
}

fn texts_of(code: &[ArenaCode]) -> Vec<String> {
    let code = code.iter();
    code.flat_map(|c| iced_x86::Decoder::with_ip(64, &c.bytes, c.at.0, iced_x86::DecoderOptions::NONE).into_iter())
        .map(|i| text_of(&i))
        .collect()
}

/// Changes one thing in a copy. Returns `None` if there is nothing of that kind to change.
fn mutated(weave: &BodyWeave, kind: u8, n: usize, bit: u8) -> Option<BodyWeave> {
    let mut w = weave.clone();
    let pick = |len: usize| (len > 0).then(|| n % len);
    let flip = |at: &mut Avma| at.0 ^= 1 << (bit % 12);
    match kind {
        0..=3 => {
            let bytes = &mut w.plan.code[0].bytes;
            let at = pick(bytes.len())?;
            bytes[at] ^= 1 << (bit % 8);
        }
        4 => {
            let at = pick(w.plan.text.len())?;
            let len = usize::from(w.plan.text[at].len);
            w.plan.text[at].new[usize::from(bit) % len] ^= 1 << (bit % 8);
            w.body.removal.text[at] = w.plan.text[at].inverse();
        }
        5 => {
            let at = pick(w.plan.text.len())?;
            w.plan.text.remove(at);
            w.body.removal.text.remove(at);
        }
        6 => flip(&mut pick(w.plan.moves.len()).and_then(|at| w.plan.moves.get_mut(at))?.to),
        7 => flip(&mut pick(w.body.removal.moves.len()).and_then(|at| w.body.removal.moves.get_mut(at))?.to),
        8 => _ = w.body.removal.moves.remove(pick(w.body.removal.moves.len())?),
        9 => flip(&mut pick(w.body.blocks.len()).and_then(|at| w.body.blocks.get_mut(BlockId::at(at)))?.copy),
        10 => {
            let probe = pick(w.body.probes.len()).and_then(|at| w.body.probes.get_mut(at))?;
            match (bit % 3, &mut probe.holds) {
                (0, _) => flip(&mut probe.copy),
                (1, _) => flip(&mut probe.original),
                (_, Held::Branch(way, _) | Held::Jump(way)) => flip(&mut way.original),
                (_, Held::Point(r)) => r.0 ^= 1 << (bit % 4),
                (_, Held::Nop | Held::Called) => probe.bytes[3] ^= 1,
            }
        }
        11 => _ = w.body.exposed.remove(pick(w.body.exposed.len())?),
        12 => _ = w.plan.moves.remove(pick(w.plan.moves.len())?),
        13 => flip(&mut pick(w.body.called.len()).and_then(|at| w.body.called.get_mut(at))?.start),
        14 => _ = w.body.called.remove(pick(w.body.called.len())?),
        15..=17 => {
            let counting = w.body.counting.as_mut()?;
            match (kind, bit % 6) {
                (15, 0) => flip(&mut pick(counting.moves.len()).and_then(|at| counting.moves.get_mut(at))?.from),
                (15, _) => flip(&mut pick(counting.moves.len()).and_then(|at| counting.moves.get_mut(at))?.to),
                (16, 0) => counting.open = false,
                (16, 1) => _ = counting.moves.remove(pick(counting.moves.len())?),
                (16, 2) => flip(&mut counting.code.end),
                (16, 3) => _ = counting.saving.remove(pick(counting.saving.len())?),
                (16, 4) => flip(&mut pick(counting.saving.len()).and_then(|at| counting.saving.get_mut(at))?.end),
                (16, _) => flip(pick(counting.blocks.len()).and_then(|at| counting.blocks.get_mut(BlockId::at(at)))?),
                (_, 0) => flip(&mut pick(counting.gates.len()).and_then(|at| counting.gates.get_mut(at))?.at),
                (_, 1) => flip(&mut pick(counting.gates.len()).and_then(|at| counting.gates.get_mut(at))?.arrival),
                (_, 2) => _ = counting.gates.remove(pick(counting.gates.len())?),
                (_, _) => {
                    pick(counting.gates.len()).and_then(|at| counting.gates.get_mut(at))?.bytes[n % 5] ^= 1 << (bit % 8)
                }
            }
        }
        18 => {
            let point = pick(w.points.len()).and_then(|at| w.points.get_mut(at))?;
            match bit % 12 {
                0 => flip(&mut point.at),
                1 => flip(&mut point.base),
                2 => flip(&mut point.slot),
                3 => flip(&mut point.leave),
                4 => flip(&mut point.tail),
                5 => flip(&mut point.home),
                6 => flip(point.resume.as_mut()?),
                7 => point.scratch.as_mut()?.0 ^= 1 << (n % 4),
                8 => point.pushed ^= 1 << (n % 5),
                9 => point.minis[0].id ^= 1,
                10 => *point.minis[0].count.as_mut()? ^= 1 << (n % 16),
                _ => point.removal.step_out.clear(),
            }
        }
        19 => _ = w.points.remove(pick(w.points.len())?),
        20 => flip(&mut pick(w.body.removal.step_out.len()).and_then(|at| w.body.removal.step_out.get_mut(at))?.end),
        _ => flip(&mut pick(w.body.removal.text.len()).and_then(|at| w.body.removal.text.get_mut(at))?.at),
    }
    Some(w)
}

/// Changes one thing in a new counting copy. Returns `None` if there is nothing of that kind to change.
fn mutated_renewal(renewal: &CountingRenewal, kind: u8, n: usize, bit: u8) -> Option<CountingRenewal> {
    let mut r = renewal.clone();
    let pick = |len: usize| (len > 0).then(|| n % len);
    let flip = |at: &mut Avma| at.0 ^= 1 << (bit % 12);
    let CountingRenewal { plan, counting, ordinary } = &mut r;
    match kind {
        0..=3 => {
            let bytes = &mut plan.code[0].bytes;
            let at = pick(bytes.len())?;
            bytes[at] ^= 1 << (bit % 8);
        }
        4 => {
            let at = pick(ordinary.len())?;
            ordinary[at] ^= 1 << (bit % 8);
        }
        5 => {
            let write = pick(plan.text.len()).and_then(|at| plan.text.get_mut(at))?;
            write.new[usize::from(bit) % 5] ^= 1 << (bit % 8);
        }
        6 => _ = plan.text.remove(pick(plan.text.len())?),
        7 => flip(&mut pick(counting.moves.len()).and_then(|at| counting.moves.get_mut(at))?.to),
        8 => _ = counting.moves.remove(pick(counting.moves.len())?),
        9 => flip(pick(counting.blocks.len()).and_then(|at| counting.blocks.get_mut(BlockId::at(at)))?),
        10 => {
            let gate = pick(counting.gates.len()).and_then(|at| counting.gates.get_mut(at))?;
            match bit % 3 {
                0 => flip(&mut gate.at),
                1 => flip(&mut gate.arrival),
                _ => gate.bytes[n % 5] ^= 1 << (bit % 8),
            }
        }
        11 => _ = counting.gates.remove(pick(counting.gates.len())?),
        12 => counting.open = false,
        13 => flip(&mut counting.code.end),
        14 => flip(&mut plan.code[0].at),
        _ => {
            let apart = counting.apart.as_mut()?;
            match bit % 4 {
                0 => flip(&mut pick(apart.moves.len()).and_then(|at| apart.moves.get_mut(at))?.to),
                1 => _ = apart.moves.remove(pick(apart.moves.len())?),
                2 => flip(&mut apart.code.end),
                _ => counting.apart = None,
            }
        }
    }
    Some(r)
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn false_counting_copies_are_rejected(functions in functions(), changes in prop::collection::vec((0..16u8, any::<usize>(), any::<u8>()), 400)) {
        let (image, sites, paddings) = lay_out(&functions);
        let copies = Copies::new(GLIBC, &parts(&image, &sites), &paddings, &count(), &PROFILE);
        let renewed: Vec<_> = copies.functions.iter().flatten().filter(|f| f.renewed.is_some()).collect();
        for (i, (kind, n, bit)) in changes.into_iter().enumerate() {
            let Some(f) = renewed.get(i % renewed.len().max(1)) else { continue };
            let Some(Renewed { renewal, .. }) = &f.renewed else { continue };
            let Some(changed) = mutated_renewal(renewal, kind, n, bit) else { continue };
            if copies.verify_renewed(f, &changed).is_some_and(|proof| proof.is_ok()) {
                let code = |renewal: &CountingRenewal| texts_of(&renewal.plan.code);
                // The ordinary copy of the plan is compared with the target, and its probes are not.
                prop_assert!(
                    changed.counting == renewal.counting && changed.plan.text == renewal.plan.text && code(&changed) == code(renewal),
                    "{kind} {n} {bit}\n{:x?}\n{}\n{}", f.body, list(&renewal.plan, &[]), list(&changed.plan, &[])
                );
            }
        }
    }

    #[test]
    fn false_copies_are_rejected(functions in functions(), changes in prop::collection::vec((0..22u8, any::<usize>(), any::<u8>()), 400), all in any::<bool>()) {
        let (image, sites, paddings) = lay_out(&functions);
        let kinds = if all { &ALL[..] } else { &PROFILE[..] };
        let copies = Copies::new(GLIBC, &parts(&image, &sites), &paddings, &count(), kinds);
        let copied: Vec<_> = copies.functions.iter().flatten().collect();
        for (i, (kind, n, bit)) in changes.into_iter().enumerate() {
            let Some(f) = copied.get(i % copied.len().max(1)) else { continue };
            let Some(changed) = mutated(&f.weave, kind, n, bit) else { continue };
            if copies.verify(f, &changed).is_ok() {
                prop_assert!(
                    changed.body == f.weave.body && changed.plan.text == f.weave.plan.text && texts(&changed) == texts(&f.weave),
                    "{kind} {n} {bit}\n{:x?}\n{}\n{}", f.body, list(&f.weave.plan, &[]), list(&changed.plan, &[])
                );
            }
        }
    }
}
