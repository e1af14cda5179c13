//! Snippets that read memory of the program: code that the verifier accepts or refuses.

use crate::support::*;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use ingraft_codegen::verify::{Flaw, verify_weave};
use ingraft_codegen::{CodegenError, Environment, MiniRequest, PointRequest, Readable, TextSpace, weave_points};
use ingraft_model::{Avma, Bias, Expr, IntegerWidth, Scalar, Snippet, Stmt, ThreadIdentity, VariableId};

/// push rbp; mov rbp, rsp; sub rsp, 0x20
const HEAD: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20];

fn add(value: Expr) -> Snippet {
    Snippet { stmts: vec![Stmt::Add(VariableId(0), value)] }
}

fn write() -> Snippet {
    Snippet { stmts: vec![Stmt::Write(Expr::Arg(0), IntegerWidth::Four, Expr::Arg(1))] }
}

fn decoded(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
}

#[test]
fn every_flipped_bit_of_a_system_call_is_found() {
    let read = add(Expr::Read(Box::new(Expr::Arg(0)), Scalar { width: IntegerWidth::Four, signed: true }));
    let told_apart = [GLIBC, ThreadIdentity::FsBase];
    let reads = told_apart.into_iter().chain([ThreadIdentity::Locked]).map(|identity| (identity, &read));
    let write = write();
    for (identity, snippet) in reads.chain(told_apart.map(|identity| (identity, &write))) {
        let site = site(&HEAD);
        let minis = [MiniRequest { id: 0, snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let (env, mut arena, mut text) = (environment(identity), arena(), TextSpace::new());
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
        verify_weave(&env, &arena, &text, &requests, &weave).expect("it is right");
        let is_call = |code: &ingraft_model::patch::ArenaCode| code.bytes.windows(2).any(|w| w == [0x0f, 0x05]);
        let routine = weave.plan.code.iter().position(is_call).expect("the routine");
        let original = decoded(&weave.plan.code[routine].bytes, 0);
        let at = |mnemonic| original.iter().find(|i| i.mnemonic() == mnemonic).expect("the instruction");
        // Only the arguments of the system call are checked. A change in the use of the answer changes a value and does no harm.
        let (first, last) = (at(Mnemonic::And).ip() as usize, at(Mnemonic::Syscall).next_ip() as usize);
        for bit in 8 * first..8 * last {
            let mut changed = weave.clone();
            changed.plan.code[routine].bytes[bit / 8] ^= 1 << (bit % 8);
            let shown = |all: &[Instruction]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
            let now = shown(&decoded(&changed.plan.code[routine].bytes, 0));
            let found = verify_weave(&env, &arena, &text, &requests, &changed);
            // Some bits have no effect.
            assert!(found.is_err() || now == shown(&original), "{bit}: {now:#?}");
        }
    }
}

#[test]
fn only_who_asks_for_it_sets_memory() {
    let (site, snippet) = (site(&HEAD), write());
    let weave = |env: &Environment, snippet: &Snippet| {
        let minis = [MiniRequest { id: 0, snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = weave_points(env, &mut arena, &mut text, &requests)?;
        let read = add(Expr::Read(Box::new(Expr::Arg(0)), Scalar::INT));
        let other = [MiniRequest { id: 0, snippet: &read, counters: &[0] }];
        let others = [PointRequest { minis: &other, ..requests[0] }];
        let proofs = [&requests, &others].map(|r| verify_weave(env, &arena, &text, r, &weave).map_err(|e| e.flaw));
        Ok(proofs)
    };
    let env = environment(GLIBC);
    assert_eq!(weave(&env, &snippet), Ok([Ok(()), Err(Flaw::ForeignWrite)]));
    let locked = environment(ThreadIdentity::Locked);
    assert!(matches!(weave(&locked, &snippet), Err(CodegenError::NoCall { .. })));
    let silent = Environment { readable: Readable { process: None, ..READABLE }, ..env };
    assert_eq!(weave(&silent, &snippet), Err(CodegenError::NoReads));
}

#[test]
fn only_what_lasts_is_loaded() {
    let weave = |env: &Environment, value: Expr| {
        let (site, snippet) = (site(&HEAD), add(value));
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = weave_points(env, &mut arena, &mut text, &requests)?;
        // The same code, in an environment where less memory stays mapped.
        let less = Environment { readable: Readable { end: Avma(READABLE.end.0 - 1), ..READABLE }, ..*env };
        assert!(verify_weave(env, &arena, &text, &requests, &weave).is_ok());
        Ok(verify_weave(&less, &arena, &text, &requests, &weave).is_ok())
    };
    let env = environment(GLIBC);
    let load = |at: u64, scalar| Expr::Load(Avma(at), scalar);
    assert_eq!(weave(&env, load(READABLE.start.0, Scalar::POINTER)), Ok(true));
    assert_eq!(weave(&env, load(READABLE.end.0 - 8, Scalar::POINTER)), Ok(false));
    assert_eq!(weave(&env, load(READABLE.end.0 - 4, Scalar::INT)), Ok(false));
    let fleeting = |at| Err(CodegenError::Fleeting { at });
    for at in [READABLE.end.0 - 7, READABLE.end.0, READABLE.start.0 - 1, 0, u64::MAX] {
        assert_eq!(weave(&env, load(at, Scalar::POINTER)), fleeting(at));
    }
    let silent = Environment { readable: Readable { process: None, ..READABLE }, ..env };
    assert_eq!(weave(&silent, Expr::Read(Box::new(Expr::Arg(0)), Scalar::INT)), Err(CodegenError::NoReads));
}
