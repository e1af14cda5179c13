//! Woven code on the processor, compared with the same code before weaving.

use crate::support::image::{Outcome, Program, SCRATCH, Step, TEXT, TID};
use crate::support::*;
use ingraft_codegen::verify::{verify_added, verify_removal, verify_removed};
use ingraft_codegen::{MiniRequest, add_mini, remove_mini, remove_points};
use ingraft_model::{Avma, BinaryOp, Expr, Gpr, PatchPlan, Snippet, Stmt, Svma, ThreadIdentity, VariableId};

fn call(target: u64) -> Step {
    Step::Call { target, registers: Vec::new(), flags: 0x246 }
}

fn run(w: &Woven, text: &[u8], steps: Vec<Step>) -> Outcome {
    Program { env: &w.env, text: text.to_vec(), plans: vec![&w.weave.plan], steps, counters: 4 }.run()
}

/// mov rax,[rdi]; add rax,rsi; ret
const PLAIN: [u8; 7] = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];

fn own_shard(identity: ThreadIdentity) -> usize {
    if identity == ThreadIdentity::Locked { 0 } else { 2 }
}

#[test]
fn counts_are_exact_in_the_threads_own_shard() {
    for identity in IDENTITIES {
        let w = weave(identity, site(&PLAIN), &[], &[count(), count()]);
        let out = run(&w, &PLAIN, vec![call(TEXT); 5]);
        assert_eq!(out.shards[own_shard(identity)], [5, 5, 0, 0], "{identity:?}");
        assert_eq!((out.exhausted, out.children), (0, 0));
        let plain =
            Program { env: &w.env, text: PLAIN.to_vec(), plans: vec![], steps: vec![call(TEXT); 5], counters: 4 }.run();
        assert_eq!(plain.calls, out.calls);
    }
}

#[test]
fn saved_registers_and_flags_survive() {
    // adc rax,rsi; setc bl; ret
    let text = [0x48, 0x11, 0xf0, 0x0f, 0x92, 0xc3, 0xc3];
    for identity in IDENTITIES {
        let mut s = site(&text);
        s = s.free(&[], false);
        let w = weave(identity, s, &[], &[count()]);
        let steps: Vec<_> =
            [0x247, 0x246, 0xad7].map(|flags| Step::Call { target: TEXT, registers: vec![], flags }).to_vec();
        let out = run(&w, &text, steps.clone());
        assert_eq!(out.shards[own_shard(identity)][0], 3);
        let plain = Program { env: &w.env, text: text.to_vec(), plans: vec![], steps, counters: 4 }.run();
        assert_eq!(plain.calls, out.calls);
    }
}

#[test]
fn every_scratch_register_has_a_right_slow_routine() {
    for r in [0, 10, 11] {
        let mut s = site(&PLAIN);
        s = s.free(&[Gpr(r)], true);
        let w = weave(GLIBC, s, &[], &[count()]);
        let steps = vec![call(TEXT), Step::Exhaust, call(TEXT), Step::ForeignGs, call(TEXT), call(TEXT)];
        let out = run(&w, &PLAIN, steps.clone());
        assert_eq!(out.shards[2][0], 2, "r{r}");
        assert_eq!(out.shards[0][0], 2, "foreign gs counts in shard 0");
        let plain = Program { env: &w.env, text: PLAIN.to_vec(), plans: vec![], steps, counters: 4 }.run();
        for (mut a, b) in plain.calls.into_iter().zip(out.calls) {
            a.registers[usize::from(r)] = b.registers[usize::from(r)];
            assert_eq!(a, b);
        }
    }
}

#[test]
fn without_a_free_shard_counts_go_to_shard_0() {
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let w = weave(identity, site(&PLAIN), &[], &[count(), count()]);
        let mut steps = vec![Step::Exhaust];
        steps.extend(vec![call(TEXT); 7]);
        let out = run(&w, &PLAIN, steps);
        assert_eq!(out.shards[0], [7, 7, 0, 0]);
        assert_eq!(out.exhausted, 7);
    }
}

#[test]
fn fork_children_name_themselves_and_count_elsewhere() {
    for identity in IDENTITIES {
        let w = weave(identity, site(&PLAIN), &[], &[count()]);
        let fork = Step::ForkCall { target: TEXT, tid: 77, times: 4 };
        let out = run(&w, &PLAIN, vec![call(TEXT), fork.clone(), call(TEXT), fork, Step::ForeignGs, call(TEXT)]);
        let own = own_shard(identity);
        assert_eq!(out.shards[own][0], if own == 0 { 3 } else { 2 }, "{identity:?}");
        assert_eq!(out.shards[1][0], 0, "the child's counts are its own");
        let named = match identity {
            ThreadIdentity::FsOffset(_) => (2, 77),
            ThreadIdentity::FsBase => (2, 0),
            ThreadIdentity::Locked => (0, 0),
        };
        assert_eq!((out.children, out.child), named);
    }
}

#[test]
fn a_fork_child_with_gs_of_its_own_counts_nothing() {
    let w = weave(GLIBC, site(&PLAIN), &[], &[count()]);
    let fork = Step::ForkCall { target: TEXT, tid: 77, times: 4 };
    let out = run(&w, &PLAIN, vec![Step::ForeignGs, fork, call(TEXT)]);
    assert_eq!(out.shards.map(|s| s[0]), [1, 0, 0, 0]);
    assert_eq!(out.children, 0);
}

#[test]
fn padding_and_islands_work() {
    let text = [0x89, 0xf8, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90];
    let mut s = site(&text);
    s.own = 3;
    let w = weave(GLIBC, s, &[], &[count()]);
    assert_eq!(run(&w, &text, vec![call(TEXT); 3]).shards[2][0], 3);

    let mut s = site(&text[..3]);
    s.landings = vec![Svma(TEXT + 3)];
    let w = weave(GLIBC, s, &[padding(TEXT + 3, &text[3..])], &[count()]);
    assert_eq!(w.point().removal.text.len(), 2);
    assert_eq!(w.point().home, Avma(TEXT + 2));
    assert_eq!(run(&w, &text, vec![call(TEXT); 3]).shards[2][0], 3);
}

#[test]
fn identity_is_what_the_claims_hold() {
    // The first claim is the thread's id. The woven function loads it, so it returns the id.
    let claim = 0x1000_0000u32 + ingraft_model::layout::CLAIMS + 16;
    let mut text = vec![0x48, 0x8b, 0x04, 0x25];
    text.extend_from_slice(&claim.to_le_bytes());
    text.push(0xc3);
    let w = weave(GLIBC, site(&text), &[], &[count()]);
    let out = run(&w, &text, vec![call(TEXT); 2]);
    assert_eq!(out.calls[1].registers[0], u64::from(TID));
    assert_eq!(out.calls[1].registers[6], SCRATCH + 0x100);
}

/// Statement `v0 += $arg[1] / 3`, which needs all work registers.
fn complex() -> Snippet {
    let e = Expr::Binary(BinaryOp::Divide, Box::new(Expr::Arg(1)), Box::new(Expr::Const(3)));
    Snippet { stmts: vec![Stmt::Add(VariableId(0), e)] }
}

#[test]
fn snippets_come_and_go_in_any_order() {
    let third = (SCRATCH as i64 + 0x100) / 3;
    for identity in IDENTITIES {
        for (scratch, flags_dead) in [(vec![Gpr(0)], true), (vec![Gpr(11)], true), (vec![], true), (vec![], false)] {
            let s = site(&PLAIN).free(&scratch, flags_dead);
            let mut w = weave(identity, s, &[], &[count()]);
            let mut point = w.point().clone();
            let mut plans: Vec<PatchPlan> = Vec::new();
            let all = |plans: &[PatchPlan], steps: Vec<Step>| {
                let plans = std::iter::once(&w.weave.plan).chain(plans).collect();
                Program { env: &w.env, text: PLAIN.to_vec(), plans, steps, counters: 4 }.run()
            };
            let own = own_shard(identity);
            let snippets = [(1, complex()), (2, count()), (3, complex())];
            for (id, snippet) in &snippets {
                let request = MiniRequest { id: *id, snippet, counters: &[*id as u32] };
                let plan = add_mini(&w.env, &mut w.arena, &mut point, &request, 0).expect("there is room");
                verify_added(&w.env, &w.arena, &plan, &point, &request).expect("right");
                plans.push(plan);
            }
            let out = all(&plans, vec![call(TEXT); 2]);
            assert_eq!(out.shards[own], [2, 2 * third, 2, 2 * third], "{identity:?}");
            let out = all(&plans, vec![Step::Exhaust, call(TEXT), call(TEXT)]);
            assert_eq!(out.shards[0], [2, 2 * third, 2, 2 * third], "{identity:?}");
            for (gone, left) in [
                (2, [2, 2 * third, 0, 2 * third]),
                (0, [0, 2 * third, 0, 2 * third]),
                (3, [0, 2 * third, 0, 0]),
                (1, [0; 4]),
            ] {
                let before = point.clone();
                let plan = remove_mini(&w.arena, &mut point, gone).expect("it is there");
                verify_removed(&w.arena, &plan, &before, &point).expect("right");
                plans.push(plan);
                assert_eq!(all(&plans, vec![call(TEXT); 2]).shards[own], left, "{identity:?} without {gone}");
            }
            assert!(remove_mini(&w.arena, &mut point, 1).is_err());
            let plan = remove_points([&point]);
            verify_removal(&plan, &[point]).expect("right");
            plans.push(plan);
            let out = all(&plans, vec![call(TEXT); 2]);
            let plain =
                Program { env: &w.env, text: PLAIN.to_vec(), plans: vec![], steps: vec![call(TEXT); 2], counters: 4 }
                    .run();
            assert_eq!(out.calls, plain.calls);
            assert_eq!(out.shards.concat(), [0; 16]);
        }
    }
}

#[test]
fn a_count_alone_stands_in_the_slot() {
    let count = count();
    for identity in IDENTITIES {
        for (scratch, flags_dead) in [(vec![Gpr(0)], true), (vec![Gpr(11)], true), (vec![], false)] {
            let s = site(&PLAIN).free(&scratch, flags_dead);
            let mut w = weave(identity, s, &[], std::slice::from_ref(&count));
            let mut point = w.point().clone();
            let mut plans: Vec<PatchPlan> = Vec::new();
            let slotted = |point: &ingraft_codegen::WovenPoint| point.minis.iter().any(|m| m.code.is_none());
            assert!(slotted(&point));
            let private = if identity == ThreadIdentity::Locked { vec![] } else { vec![Step::ForeignGs] };
            // The snippet that is added (with its index) or removed, whether the slot is a count afterwards, and the counts of two calls.
            for (id, index, alone, counted) in [
                (1, Some(0), false, [2, 2, 0, 0]),
                (2, Some(9), false, [2, 2, 2, 0]),
                (0, None, false, [0, 2, 2, 0]),
                (1, None, true, [0, 0, 2, 0]),
                (3, Some(1), false, [0, 0, 2, 2]),
                (3, None, true, [0, 0, 2, 0]),
                (2, None, false, [0; 4]),
                (1, Some(0), true, [0, 2, 0, 0]),
                (0, Some(0), false, [2, 2, 0, 0]),
                (1, None, true, [2, 0, 0, 0]),
            ] {
                let plan = match index {
                    Some(index) => {
                        let request = MiniRequest { id, snippet: &count, counters: &[id as u32] };
                        let plan = add_mini(&w.env, &mut w.arena, &mut point, &request, index).expect("there is room");
                        verify_added(&w.env, &w.arena, &plan, &point, &request).expect("right");
                        plan
                    }
                    None => {
                        let before = point.clone();
                        let plan = remove_mini(&w.arena, &mut point, id).expect("it is there");
                        verify_removed(&w.arena, &plan, &before, &point).expect("right");
                        plan
                    }
                };
                plans.push(plan);
                assert_eq!(slotted(&point), alone, "{id} {index:?}");
                let all = |steps: Vec<Step>| {
                    let plans = std::iter::once(&w.weave.plan).chain(&plans).collect();
                    Program { env: &w.env, text: PLAIN.to_vec(), plans, steps, counters: 4 }.run()
                };
                let out = all(vec![call(TEXT); 2]);
                assert_eq!(out.shards[own_shard(identity)], counted, "{identity:?} {id} {index:?}");
                let out = all(vec![Step::Exhaust, call(TEXT), call(TEXT)]);
                assert_eq!(out.shards[0], counted, "{identity:?} {id} {index:?}, no shard is free");
                let out = all(private.iter().cloned().chain([call(TEXT), call(TEXT)]).collect());
                assert_eq!(out.shards[0], counted, "{identity:?} {id} {index:?}, a gs base of its own");
            }
        }
    }
}
