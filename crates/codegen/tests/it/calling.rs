//! Calls of functions of the program from snippets, on the processor.

use crate::support::image::{self, Outcome, Program, SCRATCH, Step, TEXT, TID, TLS};
use crate::support::*;
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ingraft_codegen::verify::{Flaw, verify_weave};
use ingraft_codegen::{Arena, Environment, MiniRequest, PointRequest, TextSpace, Weave, weave_points};
use ingraft_model::{
    Avma, Bias, BinaryOp, Called, Expr, PointKind, ProgramCall, Site, Snippet, Stmt, ThreadIdentity, VariableId,
    VectorState,
};

/// The size of the state with AVX-512, on any processor.
const VECTORS: VectorState = VectorState { components: 0xe7, bytes: 2688 };
const CALLEE: u64 = TEXT + 0x400;
const OUTER: u64 = TEXT + 0x800;
/// Addresses of the state before and after the call; `leaves` keeps its stack pointer at `BEFORE`.
const BEFORE: u64 = SCRATCH + 0x1000;
const AFTER: u64 = SCRATCH + 0x2000;
const STATE: u64 = 2688;

fn v(n: u32) -> VariableId {
    VariableId(n)
}

fn call(args: Vec<Expr>) -> ProgramCall {
    ProgramCall { callee: Called::At(Avma(CALLEE)), args }
}

fn value(args: Vec<Expr>) -> Expr {
    Expr::Call(Box::new(call(args)))
}

fn snippet(stmts: Vec<Stmt>) -> Snippet {
    Snippet { stmts }
}

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

type Written = Result<(), IcedError>;

/// Address of a function, and the code that writes it.
type Part<'a> = (u64, &'a dyn Fn(&mut CodeAssembler) -> Written);

/// Text with functions at their addresses.
fn text(parts: &[Part<'_>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (at, write) in parts {
        let mut a = CodeAssembler::new(64).expect("64 bits");
        write(&mut a).expect("written");
        text.resize((at - TEXT) as usize, 0xcc);
        text.extend(a.assemble(*at).expect("assembled"));
    }
    text
}

struct Field {
    env: Environment,
    arena: Arena,
    text: TextSpace,
    sites: Vec<Site>,
    snippets: Vec<Snippet>,
    weave: Weave,
}

impl Field {
    fn new(identity: ThreadIdentity, sites: Vec<Site>, snippets: Vec<Snippet>) -> Self {
        let env = Environment { vectors: Some(VECTORS), ..environment(identity) };
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = ask(&sites, &snippets, |requests| weave_points(&env, &mut arena, &mut text, requests));
        let weave = weave.expect("the request makes sense");
        let field = Field { env, arena, text, sites, snippets, weave };
        if let Err(e) = field.verify(&field.weave) {
            panic!("{e}\n{}", list(&field.weave.plan, &field.weave.woven));
        }
        field
    }

    fn verify(&self, weave: &Weave) -> Result<(), ingraft_codegen::verify::VerifyError> {
        ask(&self.sites, &self.snippets, |requests| verify_weave(&self.env, &self.arena, &self.text, requests, weave))
    }

    fn run(&self, text: &[u8], steps: Vec<Step>) -> Outcome {
        let plans = vec![&self.weave.plan];
        Program { env: &self.env, text: text.to_vec(), plans, steps, counters: 4 }.run()
    }
}

fn ask<T>(sites: &[Site], snippets: &[Snippet], f: impl FnOnce(&[PointRequest<'_>]) -> T) -> T {
    let minis: Vec<_> =
        snippets.iter().map(|snippet| [MiniRequest { id: 1, snippet, counters: &[0, 1, 2, 3] }]).collect();
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
    let requests: Vec<_> = sites.iter().zip(&minis).map(|(s, m)| request((s, m.as_slice()))).collect();
    f(&requests)
}

/// Entry site of a function: its first eight bytes, with no dead registers and live flags.
fn entry(text: &[u8], at: u64) -> Site {
    let from = (at - TEXT) as usize;
    let bytes = text[from..from + 8].to_vec();
    Site { own: 8, ..entry_at(at, &bytes) }
}

fn plain(target: u64) -> Step {
    Step::Call { target, registers: Vec::new(), flags: 0xad7 }
}

/// `nop`s that can be displaced, then `ret`.
fn empty(a: &mut CodeAssembler) -> Written {
    for _ in 0..8 {
        a.nop()?;
    }
    a.ret()
}

/// 1 rdi + 2 rsi + 3 rdx + 4 rcx + 5 r8 + 6 r9 + 1000 (rsp mod 16).
fn weigh(a: &mut CodeAssembler) -> Written {
    a.mov(rax, rsp)?;
    a.and(rax, 15)?;
    a.imul_3(rax, rax, 1000)?;
    a.add(rax, rdi)?;
    for (n, r) in (2..).zip([rsi, rdx, rcx, r8, r9]) {
        a.imul_3(r, r, n)?;
        a.add(rax, r)?;
    }
    // Room for data that a compiler would align.
    a.sub(rsp, 8)?;
    a.movaps(xmmword_ptr(rsp - 0x40), xmm0)?;
    a.add(rsp, 8)?;
    a.ret()
}

/// Overwrites all state that a function may change, and also state that it must not change.
fn clobber(a: &mut CodeAssembler) -> Written {
    for r in [rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] {
        a.mov(r, 0x5555_aaaa_5555_aaaau64)?;
    }
    a.fninit()?;
    a.fldpi()?;
    a.fldpi()?;
    if has_avx512() {
        for n in 0..32 {
            let z = zmm(n);
            a.vpternlogd(z, z, z, 255)?;
        }
        for k in [k0, k1, k2, k3, k4, k5, k6, k7] {
            a.kxnorq(k, k, k)?;
        }
    } else {
        for n in 0..16 {
            let y = ymm(n);
            a.vpcmpeqd(y, y, y)?;
        }
    }
    a.push(0x1f80 | 0x6000)?;
    a.ldmxcsr(dword_ptr(rsp))?;
    a.add(rsp, 8)?;
    a.std()?;
    a.stc()?;
    a.ret()
}

fn zmm(n: u32) -> AsmRegisterZmm {
    get_zmm(iced_x86::Register::ZMM0 + n).expect("a register")
}

fn ymm(n: u32) -> AsmRegisterYmm {
    get_ymm(iced_x86::Register::YMM0 + n).expect("a register")
}

/// Fills all vector state, saves it, and calls the function at `TEXT` with the registers and flags that it was called with itself. Then it
/// saves the state again, and returns in r10 the number of bytes that differ.
fn around(a: &mut CodeAssembler) -> Written {
    let keep = |a: &mut CodeAssembler, place: u64| {
        a.push(rax)?;
        a.push(rdx)?;
        a.mov(eax, 0xe7)?;
        a.xor(edx, edx)?;
        a.mov(r10, place)?;
        a.xsave64(ptr(r10))?;
        a.pop(rdx)?;
        a.pop(rax)
    };
    a.pushfq()?;
    a.fninit()?;
    for _ in 0..5 {
        a.fld1()?;
    }
    a.fldl2t()?;
    a.push(0x1f80 | 0x8040)?;
    a.ldmxcsr(dword_ptr(rsp))?;
    a.mov(word_ptr(rsp), 0x0c7f)?;
    a.fldcw(word_ptr(rsp))?;
    a.pop(r10)?;
    a.mov(r10, SCRATCH + 0x300)?;
    if has_avx512() {
        for n in 0..32 {
            a.vmovdqu64(zmm(n), zmmword_ptr(r10 + 61 * n))?;
        }
        for (n, k) in (0..).zip([k0, k1, k2, k3, k4, k5, k6, k7]) {
            a.kmovq(k, qword_ptr(r10 + 7 * n))?;
        }
    } else {
        for n in 0..16 {
            a.vmovdqu(ymm(n), ymmword_ptr(r10 + 61 * n))?;
        }
    }
    // XSAVE requires that the header is 0.
    for place in [BEFORE, AFTER] {
        a.mov(r10, place + 512)?;
        for n in 0..8 {
            a.mov(qword_ptr(r10 + 8 * n), 0)?;
        }
    }
    keep(a, BEFORE)?;
    a.mov(r10, 0x7777_0000_1111_2222u64)?;
    a.popfq()?;
    a.call(TEXT)?;
    a.pushfq()?;
    // r10 must have the same value as before.
    a.mov(r11, 0x7777_0000_1111_2222u64)?;
    a.sub(r11, r10)?;
    keep(a, AFTER)?;
    a.push(rsi)?;
    a.push(rdi)?;
    a.push(rcx)?;
    let [mut next, mut same] = [a.create_label(), a.create_label()];
    a.cld()?;
    a.mov(rsi, BEFORE)?;
    a.mov(rdi, AFTER)?;
    a.mov(ecx, STATE as u32)?;
    a.xor(r10d, r10d)?;
    a.set_label(&mut next)?;
    a.cmpsb()?;
    a.je(same)?;
    a.inc(r10)?;
    a.set_label(&mut same)?;
    a.dec(ecx)?;
    a.jne(next)?;
    a.pop(rcx)?;
    a.pop(rdi)?;
    a.pop(rsi)?;
    a.fninit()?;
    a.popfq()?;
    a.ret()
}

#[test]
fn not_one_register_changes() {
    let code = text(&[(TEXT, &empty), (CALLEE, &clobber), (OUTER, &around)]);
    let set = snippet(vec![Stmt::Set(v(0), value(vec![Expr::Const(1)]))]);
    for kind in [PointKind::Entry, PointKind::Exit] {
        let site = match kind {
            PointKind::Entry => entry(&code, TEXT),
            _ => exit_site(TEXT, TEXT, 8, &code[..9], &[]),
        };
        let field = Field::new(GLIBC, vec![site], vec![set.clone()]);
        // The second call finds its thread with a shard. DF, CF, OF and other flags are set.
        for flags in [0x246, 0xcd7, 0xad6] {
            let steps = vec![Step::Call { target: OUTER, registers: vec![], flags }; 2];
            let woven = field.run(&code, steps.clone());
            let plain = Program { env: &field.env, text: code.clone(), plans: vec![], steps, counters: 4 }.run();
            assert_eq!(woven.shards[2][0], 0x5555_aaaa_5555_aaaa, "{kind:?}");
            assert_eq!(woven.called, [0, 0, 0]);
            for (woven, plain) in woven.calls.iter().zip(&plain.calls) {
                assert_eq!(woven.registers[10], 0, "{kind:?}: bytes of vector state differ");
                assert_eq!(woven, plain, "{kind:?}");
            }
        }
    }
}

#[test]
fn what_the_function_does_would_be_seen() {
    let goes = |a: &mut CodeAssembler| a.jmp(CALLEE);
    let code = text(&[(TEXT, &goes), (CALLEE, &clobber), (OUTER, &around)]);
    let env = environment(GLIBC);
    let out = Program { env: &env, text: code, plans: vec![], steps: vec![plain(OUTER)], counters: 4 }.run();
    // Bytes that differ: those of all vectors and masks, of the control words, and of at least four of six values of the x87 unit.
    let vectors = if has_avx512() { 32 * 64 + 60 } else { 16 * 32 };
    assert!(out.calls[0].registers[10] > vectors * 9 / 10, "{} bytes", out.calls[0].registers[10]);
}

#[test]
fn values_and_arguments_are_right_on_an_aligned_stack() {
    let code = text(&[(TEXT, &empty), (CALLEE, &weigh)]);
    let c = Expr::Const;
    let six = || vec![Expr::Arg(2), Expr::Arg(3), c(-7), Expr::Arg(4), c(1 << 40), Expr::Arg(0)];
    let plus = |a, b| Expr::Binary(BinaryOp::Subtract, Box::new(a), Box::new(b));
    // At the nested call, the stack holds six words and a partial result.
    let nested = plus(value(vec![value(vec![c(5)]), value(six())]), value(vec![]));
    let stmts = vec![
        Stmt::Set(v(0), value(six())),
        Stmt::Add(v(1), nested),
        Stmt::If(value(vec![c(-8000)]), vec![Stmt::Set(v(2), c(1))]),
        Stmt::Call(call(vec![])),
        Stmt::Add(v(3), c(1)),
    ];
    let arg = |n: usize| image::initial([7, 6, 2, 1, 8, 9][n]).cast_signed();
    let weighed = |a: [i64; 6]| (0..).zip(a).fold(8000i64, |sum, (n, x)| sum.wrapping_add(x.wrapping_mul(n + 1)));
    let first = weighed([arg(2), arg(3), -7, arg(4), 1 << 40, arg(0)]);
    let second = weighed([weighed([5, 0, 0, 0, 0, 0]), first, 0, 0, 0, 0]).wrapping_sub(8000);
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let field = Field::new(identity, vec![entry(&code, TEXT)], vec![snippet(stmts.clone())]);
        let steps = vec![plain(TEXT); 3];
        let out = field.run(&code, steps.clone());
        assert_eq!(out.shards[2], [first, second.wrapping_mul(3), 0, 3], "{identity:?}");
        let unwoven = Program { env: &field.env, text: code.clone(), plans: vec![], steps, counters: 4 }.run();
        assert_eq!(out.calls, unwoven.calls);
    }
}

#[test]
fn what_a_called_function_reaches_is_not_counted_and_calls_nothing() {
    // The callee is counted, and calls the function whose snippet calls the callee.
    let callee = |a: &mut CodeAssembler| -> Written {
        for _ in 0..8 {
            a.nop()?;
        }
        a.call(TEXT)?;
        a.mov(eax, 1)?;
        a.ret()
    };
    let code = text(&[(TEXT, &empty), (CALLEE, &callee)]);
    let calls = snippet(vec![Stmt::Add(v(0), value(vec![]))]);
    let counts = snippet(vec![Stmt::Add(v(1), Expr::Const(1))]);
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let sites = vec![entry(&code, TEXT), entry(&code, CALLEE)];
        let field = Field::new(identity, sites, vec![calls.clone(), counts.clone()]);
        let out = field.run(&code, vec![plain(TEXT), plain(CALLEE), plain(TEXT)]);
        // The program calls the callee once, and the function three times: twice from here, once from the callee.
        assert_eq!(out.shards[2][..2], [3, 1], "{identity:?}");
        assert_eq!((out.shards[0].clone(), out.called), (vec![0; 4], [0, 0, 0]));
    }
}

#[test]
fn a_function_that_leaves_without_a_return_is_noticed() {
    // The function keeps its stack pointer for the callee, which returns to it directly.
    let jumps = |a: &mut CodeAssembler| -> Written {
        a.mov(r11, BEFORE)?;
        a.mov(qword_ptr(r11), rsp)?;
        a.call(TEXT)?;
        a.ret()
    };
    let leaves = |a: &mut CodeAssembler| -> Written {
        a.mov(r11, BEFORE)?;
        a.mov(rsp, qword_ptr(r11))?;
        a.ret()
    };
    let code = text(&[(TEXT, &empty), (CALLEE, &leaves), (OUTER, &jumps), (OUTER + 0x100, &empty)]);
    let sites = vec![entry(&code, TEXT), entry(&code, OUTER + 0x100)];
    let snippets = vec![
        snippet(vec![Stmt::Add(v(0), Expr::Const(1)), Stmt::Call(call(vec![]))]),
        snippet(vec![Stmt::Add(v(1), Expr::Const(1))]),
    ];
    let field = Field::new(GLIBC, sites, snippets);
    let out = field.run(&code, vec![plain(OUTER), plain(OUTER + 0x100), plain(OUTER + 0x100)]);
    assert_eq!(out.shards[2][..2], [1, 2]);
    // The call stays open, because its return address may still be on a stack that the engine does not see.
    assert_eq!(out.called, [1, 1, 0]);
}

#[test]
fn threads_without_a_shard_and_fork_children_call_nothing() {
    let code = text(&[(TEXT, &empty), (CALLEE, &weigh)]);
    let calls = snippet(vec![Stmt::Add(v(0), Expr::Const(1)), Stmt::Call(call(vec![]))]);
    let field = Field::new(GLIBC, vec![entry(&code, TEXT)], vec![calls]);
    let out = field.run(&code, vec![Step::Exhaust, plain(TEXT), plain(TEXT)]);
    assert_eq!((out.shards.concat(), out.called), (vec![0; 16], [0, 0, 2]));
    let fork = Step::ForkCall { target: TEXT, tid: 77, times: 3 };
    let out = field.run(&code, vec![plain(TEXT), fork, plain(TEXT)]);
    assert_eq!((out.shards[2][0], out.called), (2, [0, 0, 0]));
}

#[test]
fn a_function_may_fork() {
    // Both processes return from the fork, the child with another thread id, as C libraries do. The child ends after the call.
    let forks = |a: &mut CodeAssembler| -> Written {
        let mut parent = a.create_label();
        a.mov(eax, 57)?;
        a.syscall()?;
        a.test(eax, eax)?;
        a.jne(parent)?;
        a.mov(dword_ptr(TLS + 0x2d0), TID + 1)?;
        a.set_label(&mut parent)?;
        a.ret()
    };
    let ends = |a: &mut CodeAssembler| -> Written {
        let mut parent = a.create_label();
        a.call(TEXT)?;
        a.mov(r11, u64::from(0x1010_0000u32))?;
        a.cmp(dword_ptr(r11), 0)?;
        a.jne(parent)?;
        a.call(TEXT)?;
        a.mov(eax, 231)?;
        a.xor(edi, edi)?;
        a.syscall()?;
        a.set_label(&mut parent)?;
        // wait4: the child has ended, so it counts nothing more.
        a.mov(eax, 61)?;
        a.mov(edi, -1)?;
        a.xor(esi, esi)?;
        a.xor(edx, edx)?;
        a.xor(r10d, r10d)?;
        a.syscall()?;
        a.ret()
    };
    let code = text(&[(TEXT, &empty), (CALLEE, &forks), (OUTER, &ends)]);
    let calls = snippet(vec![Stmt::Add(v(0), Expr::Const(1)), Stmt::Call(call(vec![]))]);
    let field = Field::new(GLIBC, vec![entry(&code, TEXT)], vec![calls]);
    let out = field.run(&code, vec![plain(OUTER)]);
    assert_eq!((out.shards[2][0], out.called, out.children), (1, [0, 0, 0], 1));
}

#[test]
fn wrong_routines_and_calls_of_others_are_refused() {
    let code = text(&[(TEXT, &empty), (CALLEE, &weigh)]);
    let field = Field::new(GLIBC, vec![entry(&code, TEXT)], vec![snippet(vec![Stmt::Call(call(vec![]))])]);
    let routine = field.weave.plan.code.iter().position(|c| c.bytes.windows(2).any(|w| w == [0xff, 0xd3]));
    let routine = routine.expect("the routine is there");
    let piece = field.weave.plan.code[routine].clone();
    // Other shared code may come right after the routine.
    let end = field.arena.shared().iter().find(|range| range.start == piece.at).expect("it is shared").end;
    for bit in 0..8 * (end.0 - piece.at.0) as usize {
        let mut weave = field.weave.clone();
        weave.plan.code[routine].bytes[bit / 8] ^= 1 << (bit % 8);
        let code = |weave: &Weave| {
            let code = &weave.plan.code[routine];
            let decoded = iced_x86::Decoder::with_ip(64, &code.bytes, code.at.0, 0).into_iter();
            decoded.map(|i| text_of(&i)).collect::<Vec<_>>()
        };
        // Some bits of an encoding have no effect (the scale without an index), and some instructions have two encodings.
        let same = code(&weave) == code(&field.weave);
        assert!(same || field.verify(&weave).is_err(), "bit {bit}\n{}", list(&weave.plan, &weave.woven));
    }
    // An area of another size, other components, and no area at all.
    for vectors in [Some(VectorState { bytes: 2752, ..VECTORS }), Some(VectorState { components: 7, ..VECTORS }), None]
    {
        let env = Environment { vectors, ..field.env };
        let found = ask(&field.sites, &field.snippets, |requests| {
            verify_weave(&env, &field.arena, &field.text, requests, &field.weave)
        });
        assert_eq!(found.map_err(|e| e.flaw), Err(Flaw::Forbidden), "{vectors:?}");
    }
    let other = |name| ProgramCall { callee: name, args: vec![] };
    let asked = [snippet(vec![Stmt::Call(other(Called::At(Avma(CALLEE + 1))))]), count()];
    for snippets in asked.map(|s| vec![s]) {
        let found = ask(&field.sites, &snippets, |requests| {
            verify_weave(&field.env, &field.arena, &field.text, requests, &field.weave)
        });
        assert!(matches!(&found, Err(e) if e.flaw == Flaw::Undeclared), "{found:?}");
    }
}

#[test]
fn what_cannot_be_called_is_an_error() {
    let site = entry(&text(&[(TEXT, &empty)]), TEXT);
    let refused = |env: &Environment, call: ProgramCall| {
        let snippets = [snippet(vec![Stmt::Call(call)])];
        let weave = |requests: &[PointRequest<'_>]| weave_points(env, &mut arena(), &mut TextSpace::new(), requests);
        ask(std::slice::from_ref(&site), &snippets, weave).expect_err("refused").to_string()
    };
    let ready = Environment { vectors: Some(VECTORS), ..environment(GLIBC) };
    let named = ProgramCall { callee: Called::Named("f".to_owned()), args: vec![] };
    let locked = Environment { identity: ThreadIdentity::Locked, ..ready };
    let unsound = Environment { vectors: Some(VectorState { bytes: 1 << 20, ..VECTORS }), ..ready };
    let mut deep = call(vec![]);
    for _ in 0..20 {
        deep = call(vec![Expr::Call(Box::new(deep))]);
    }
    let all = [
        refused(&ready, named),
        refused(&ready, call(vec![Expr::Const(1); 7])),
        refused(&ready, deep),
        refused(&locked, call(vec![])),
        refused(&unsound, call(vec![])),
        refused(&environment(GLIBC), call(vec![])),
    ];
    expect_test::expect![[r#"
        a function cannot be called here: it is known by its name only
        a function cannot be called here: more than six arguments
        a snippet is nested more than 64 levels deep
        a function cannot be called here: threads cannot be told apart
        a function cannot be called here: the processor's state cannot be kept
        a function cannot be called here: the processor's state cannot be kept"#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn the_code_as_text() {
    let code = text(&[(TEXT, &empty), (CALLEE, &weigh)]);
    let set = snippet(vec![Stmt::Add(v(0), value(vec![Expr::Arg(1)]))]);
    let field = Field::new(GLIBC, vec![entry(&code, TEXT)], vec![set]);
    let golden = expect_test::expect_file!["../../../../tests/golden/codegen/calling.txt"];
    golden.assert_eq(&list(&field.weave.plan, &field.weave.woven));
}
