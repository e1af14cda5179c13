//! Blocks of functions: every arrival counts, and the words below the stack pointer stay.

use crate::support::image::{Outcome, Program, Step, TEXT};
use crate::support::*;
use ingraft_codegen::verify::{Flaw, verify_weave};
use ingraft_codegen::{MiniRequest, PointRequest};
use ingraft_model::{Bias, BinaryOp, Expr, Gpr, Site, Snippet, Stmt, ThreadIdentity, VariableId};

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];

/// A leaf function with values in the red zone. The loop adds with the carry flag, which is live at its head.
const FUNCTION: [u8; 34] = [
    0x48, 0x89, 0x7c, 0x24, 0xf8, // mov [rsp-8], rdi
    0x48, 0x89, 0x74, 0x24, 0x80, // mov [rsp-128], rsi
    0x31, 0xc0, // xor eax, eax
    0x6a, 0x05, 0x59, // push 5; pop rcx
    0xf9, // stc
    0x48, 0x13, 0x44, 0x24, 0x80, // 1: adc rax, [rsp-128]
    0x48, 0xff, 0xc9, // dec rcx
    0x75, 0xf6, // jne 1b
    0x48, 0x13, 0x44, 0x24, 0xf0, // adc rax, [rsp-16]
    0x90, 0x90, // nop; nop
    0xc3, // ret
];
const LOOP: usize = 16;
const CALLS: i64 = 3;

fn head() -> Site {
    block_site(TEXT, TEXT + LOOP as u64, &FUNCTION[LOOP..], &[])
}

/// Runs the function. The red zone begins with known words, of which the function reads one that it has not written.
fn run(w: &Woven, plans: bool, steps: &[Step]) -> Outcome {
    let plans = if plans { vec![&w.weave.plan] } else { vec![] };
    Program { env: &w.env, text: FUNCTION.to_vec(), plans, steps: steps.to_vec(), counters: 4 }.run()
}

fn calls() -> Vec<Step> {
    vec![Step::Call { target: TEXT, registers: Vec::new(), flags: 0x246 }; CALLS as usize]
}

fn conditional() -> Snippet {
    let above = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Variable(VariableId(1))), Box::new(Expr::Const(-1)));
    Snippet { stmts: vec![Stmt::If(above, vec![Stmt::Add(VariableId(0), Expr::Const(1))])] }
}

#[test]
fn every_iteration_counts_and_the_red_zone_stays() {
    for identity in IDENTITIES {
        for snippets in [vec![count()], vec![conditional()], vec![count(), conditional(), count()]] {
            let w = weave(identity, head(), &[], &snippets);
            let out = run(&w, true, &calls());
            let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
            assert_eq!(out.shards[own][0], 5 * CALLS, "{identity:?}");
            assert_eq!(out.calls, run(&w, false, &calls()).calls, "{identity:?}");
        }
    }
}

#[test]
fn free_registers_and_flags_are_used() {
    // mov eax, [rsp-8]; add eax, edi; ret
    let text = [0x8b, 0x44, 0x24, 0xf8, 0x01, 0xf8, 0xc3];
    for scratch in [&[Gpr(0)][..], &[Gpr(10)], &[]] {
        for identity in IDENTITIES {
            let w = weave(identity, block_site(TEXT, TEXT, &text, &[]).free(scratch, true), &[], &[count()]);
            let program =
                |plans| Program { env: &w.env, text: text.to_vec(), plans, steps: calls(), counters: 4 }.run();
            let out = program(vec![&w.weave.plan]);
            assert_eq!(out.shards.iter().map(|s| s[0]).sum::<i64>(), CALLS, "{identity:?}");
            for (mut woven, plain) in out.calls.into_iter().zip(program(vec![]).calls) {
                for r in scratch {
                    woven.registers[usize::from(r.0)] = plain.registers[usize::from(r.0)];
                }
                assert_eq!(woven, plain, "{identity:?} {scratch:?}");
            }
        }
    }
}

#[test]
fn without_a_shard_every_iteration_counts_too() {
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let w = weave(identity, head(), &[], &[count(), count()]);
        let steps: Vec<Step> = std::iter::once(Step::Exhaust).chain(calls()).collect();
        let out = run(&w, true, &steps);
        assert_eq!(out.shards[0][..2], [5 * CALLS; 2]);
        assert_eq!(out.calls, run(&w, false, &steps).calls);
    }
}

#[test]
fn code_that_writes_to_the_red_zone_is_refused() {
    let (below, above) = ([0x48, 0x8d, 0x64, 0x24, 0x80], [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    for identity in IDENTITIES {
        let w = weave(identity, head(), &[], &[count()]);
        let snippet = count();
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let code = |n: usize| w.weave.plan.code[n].bytes.as_slice();
        let find = |what: &[u8]| {
            let at = |n: usize| code(n).windows(what.len()).position(|bytes| bytes == what);
            (0..w.weave.plan.code.len()).find_map(|n| Some((n, at(n)?))).expect("the code has it")
        };
        let (down, up) = (find(&below), find(&above));
        let with = |(piece, at): (usize, usize), bytes: &[u8]| {
            let mut broken = w.weave.clone();
            broken.plan.code[piece].bytes[at..at + bytes.len()].copy_from_slice(bytes);
            verify_weave(&w.env, &w.arena, &w.text, &requests, &broken).map_err(|e| e.flaw)
        };
        let nops = [0x90, 0x0f, 0x1f, 0x40, 0];
        assert_eq!(with(down, &nops), Err(Flaw::Stack), "nothing is left free");
        assert_eq!(with((down.0, down.1 + 4), &[0x88]), Err(Flaw::Stack), "a word too little");
        assert_eq!(with((up.0, up.1 + 4), &[0x88]), Err(Flaw::Stack), "the stack pointer is another");
    }
}
