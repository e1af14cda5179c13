//! Snippets that set variables of the program, pass texts to functions, and read floating-point numbers and counts of the kernel; on the
//! processor.

use crate::support::image::{Outcome, Program, SCRATCH, Step, TEXT};
use crate::support::*;
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, IcedError, Instruction, Mnemonic, OpKind};
use ingraft_codegen::verify::{Flaw, VerifyError, verify_weave};
use ingraft_codegen::{Arena, CodegenError, Environment, MiniRequest, PointRequest, TextSpace, Weave, weave_points};
use ingraft_model::{
    Avma, Bias, BinaryOp, Called, Expr, Float, FloatFormat, IntegerWidth, ProgramCall, Site, Snippet, Stmt, Svma,
    ThreadIdentity, Usage, VariableId, VectorState,
};

const VECTORS: VectorState = VectorState { components: 0xe7, bytes: 2688 };
const CALLEE: u64 = TEXT + 0x400;
const OUTER: u64 = TEXT + 0x800;
const PLACE: u64 = SCRATCH + 0x700;

fn v(n: u32) -> VariableId {
    VariableId(n)
}

fn snippet(stmts: Vec<Stmt>) -> Snippet {
    Snippet { stmts }
}

struct Field {
    env: Environment,
    arena: Arena,
    text: TextSpace,
    site: Site,
    weave: Weave,
}

impl Field {
    fn new(identity: ThreadIdentity, code: &[u8], snippet: &Snippet) -> Result<Field, CodegenError> {
        let env = Environment { vectors: Some(VECTORS), ..environment(identity) };
        let bytes = code[..8].to_vec();
        let here = Svma(TEXT);
        let site = Site { own: 8, ..entry_at(here.0, &bytes) };
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = ask(&site, snippet, |requests| weave_points(&env, &mut arena, &mut text, requests))?;
        let field = Field { env, arena, text, site, weave };
        if let Err(e) = field.verify(snippet, &field.weave) {
            panic!("{e}\n{}", list(&field.weave.plan, &field.weave.woven));
        }
        Ok(field)
    }

    fn verify(&self, snippet: &Snippet, weave: &Weave) -> Result<(), VerifyError> {
        ask(&self.site, snippet, |requests| verify_weave(&self.env, &self.arena, &self.text, requests, weave))
    }

    /// Runs the woven function. The registers afterwards must be the same as those of the original.
    fn run(&self, code: &[u8], steps: Vec<Step>) -> Outcome {
        let run =
            |plans| Program { env: &self.env, text: code.to_vec(), plans, steps: steps.clone(), counters: 4 }.run();
        let (woven, plain) = (run(vec![&self.weave.plan]), run(vec![]));
        assert_eq!(woven.calls, plain.calls);
        woven
    }
}

fn ask<T>(site: &Site, snippet: &Snippet, f: impl FnOnce(&[PointRequest<'_>]) -> T) -> T {
    let minis = [MiniRequest { id: 1, snippet, counters: &[0, 1, 2, 3] }];
    f(&[PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }])
}

type Written = Result<(), IcedError>;

/// Address of a function, and the code that writes it.
type Part<'a> = (u64, &'a dyn Fn(&mut CodeAssembler) -> Written);

/// A function of `nop`s that can be displaced and a `ret`, followed by two other functions.
fn text(callee: &dyn Fn(&mut CodeAssembler) -> Written, outer: &dyn Fn(&mut CodeAssembler) -> Written) -> Vec<u8> {
    let empty = |a: &mut CodeAssembler| -> Written {
        for _ in 0..8 {
            a.nop()?;
        }
        a.ret()
    };
    let parts: [Part<'_>; 3] = [(TEXT, &empty), (CALLEE, callee), (OUTER, outer)];
    let mut text = Vec::new();
    for (at, write) in parts {
        let mut a = CodeAssembler::new(64).expect("64 bits");
        write(&mut a).expect("written");
        text.resize((at - TEXT) as usize, 0xcc);
        text.extend(a.assemble(at).expect("assembled"));
    }
    text
}

fn nothing(a: &mut CodeAssembler) -> Written {
    a.ret()
}

fn call(target: u64, registers: Vec<(u8, u64)>) -> Step {
    Step::Call { target, registers, flags: 0xad7 }
}

#[test]
fn floating_point_numbers_are_truncated() {
    let outer = |a: &mut CodeAssembler| -> Written {
        a.movq(xmm3, rdi)?;
        a.movq(xmm7, rsi)?;
        a.call(TEXT)?;
        a.ret()
    };
    let code = text(&nothing, &outer);
    let float = |register, format| Expr::Float(Float { register, format });
    // Set all of them, in order.
    let step = |n: u32, value| {
        let before = Expr::Binary(BinaryOp::Multiply, Box::new(Expr::Variable(v(n))), Box::new(Expr::Const(31)));
        Stmt::Set(v(n), Expr::Binary(BinaryOp::Add, Box::new(value), Box::new(before)))
    };
    let stmts = vec![step(0, float(3, FloatFormat::Double)), step(1, float(7, FloatFormat::Single))];
    let values = [
        0.0,
        -0.0,
        0.999_999,
        -0.5,
        1.0,
        -1.5,
        2.5,
        123_456.789,
        -4095.99,
        1e15,
        4_503_599_627_370_497.0,
        -9_007_199_254_740_994.0,
        9.2e18,
        -9.2e18,
        9_223_372_036_854_774_784.0,
        9_223_372_036_854_775_808.0,
        -9_223_372_036_854_775_808.0,
        1e300,
        f64::MIN_POSITIVE,
        5e-324,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let whole = |x: f64| if x.abs() < 9_223_372_036_854_775_808.0 { x as i64 } else { 0 };
    let hash = |values: &mut dyn Iterator<Item = i64>| values.fold(0i64, |h, x| h.wrapping_mul(31).wrapping_add(x));
    let expected =
        [hash(&mut values.into_iter().map(whole)), hash(&mut values.into_iter().map(|x| whole(f64::from(x as f32))))];
    let steps = values.map(|x| call(OUTER, vec![(7, x.to_bits()), (6, (x as f32).to_bits().into())]));
    for (identity, shard) in [(GLIBC, 2), (ThreadIdentity::FsBase, 2), (ThreadIdentity::Locked, 0)] {
        let field = Field::new(identity, &code, &snippet(stmts.clone())).expect("it makes sense");
        let out = field.run(&code, steps.to_vec());
        assert_eq!(out.shards[shard][..2], expected, "{identity:?}");
    }
    let ninth = snippet(vec![Stmt::Set(v(0), float(8, FloatFormat::Double))]);
    assert_eq!(Field::new(GLIBC, &code, &ninth).err(), Some(CodegenError::NoFloat));
}

#[test]
fn texts_are_there_as_long_as_the_call() {
    // The result in rax depends on the texts: both words of the first one, one word of the second one, and a number.
    let callee = |a: &mut CodeAssembler| -> Written {
        a.mov(rax, qword_ptr(rdi))?;
        a.add(rax, qword_ptr(rdi + 8))?;
        a.add(rax, qword_ptr(rdx))?;
        a.add(rax, rsi)?;
        a.ret()
    };
    let code = text(&callee, &nothing);
    let word = |text: &[u8; 8]| i64::from_le_bytes(*text);
    let called = |first: &str| {
        let args = vec![Expr::Text(first.into()), Expr::Const(5), Expr::Text("abc".into())];
        Expr::Call(Box::new(ProgramCall { callee: Called::At(Avma(CALLEE)), args }))
    };
    let both = Expr::Binary(BinaryOp::Subtract, Box::new(called("hello, world")), Box::new(called("12345678")));
    let stmts = vec![Stmt::Set(v(0), called("hello, world")), Stmt::Add(v(1), both)];
    let rest = word(b"abc\0\0\0\0\0").wrapping_add(5);
    let first = word(b"hello, w").wrapping_add(word(b"orld\0\0\0\0"));
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let field = Field::new(identity, &code, &snippet(stmts.clone())).expect("it makes sense");
        let out = field.run(&code, vec![call(TEXT, vec![]); 2]);
        let twice = first.wrapping_sub(word(b"12345678")).wrapping_mul(2);
        assert_eq!(out.shards[2][..2], [first.wrapping_add(rest), twice], "{identity:?}");
    }
    let alone = snippet(vec![Stmt::Set(v(0), Expr::Text("abc".into()))]);
    assert!(matches!(Field::new(GLIBC, &code, &alone).err(), Some(CodegenError::NoCall { .. })));
    let long = Expr::Call(Box::new(ProgramCall {
        callee: Called::At(Avma(CALLEE)),
        args: vec![Expr::Text("x".repeat(1000).into())],
    }));
    let long = snippet(vec![Stmt::Set(v(0), long)]);
    assert!(matches!(Field::new(GLIBC, &code, &long).err(), Some(CodegenError::TooDeep { .. })));
}

#[test]
fn counters_have_addresses() {
    // Adds the second argument to the variable to which the first argument points.
    let callee = |a: &mut CodeAssembler| -> Written {
        a.add(qword_ptr(rdi), rsi)?;
        a.mov(rax, qword_ptr(rdi))?;
        a.ret()
    };
    let code = text(&callee, &nothing);
    let args = vec![Expr::Address(v(1)), Expr::Const(7)];
    let call_it = Expr::Call(Box::new(ProgramCall { callee: Called::At(Avma(CALLEE)), args }));
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let asked = snippet(vec![Stmt::Set(v(0), call_it.clone())]);
        let field = Field::new(identity, &code, &asked).expect("it makes sense");
        let out = field.run(&code, vec![call(TEXT, vec![]); 3]);
        assert_eq!(out.shards[2][..2], [21, 21], "{identity:?}");
    }
}

#[test]
fn variables_are_set_in_the_program_and_not_in_its_children() {
    let code = text(&nothing, &nothing);
    let set = |at: u64, width, value| Stmt::Store(Avma(PLACE + at), width, value);
    let old = Expr::Load(Avma(PLACE + 16), ingraft_model::Scalar::POINTER);
    let stmts = vec![
        set(0, IntegerWidth::One, Expr::Const(-2)),
        set(2, IntegerWidth::Two, Expr::Arg(0)),
        set(4, IntegerWidth::Four, Expr::Const(0x1234_5678)),
        set(8, IntegerWidth::Eight, Expr::Arg(0)),
        set(16, IntegerWidth::Eight, Expr::Binary(BinaryOp::Add, Box::new(old), Box::new(Expr::Const(3)))),
        Stmt::Add(v(0), Expr::Const(1)),
    ];
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let field = Field::new(identity, &code, &snippet(stmts.clone())).expect("it makes sense");
        let arg = 0x0102_0304_0506_0708u64;
        let once = field.run(&code, vec![call(TEXT, vec![(7, arg)])]);
        let twice = field.run(&code, vec![call(TEXT, vec![(7, arg)]); 2]);
        let unwoven = Program { env: &field.env, text: code.clone(), plans: vec![], steps: vec![], counters: 4 }.run();
        let at = |out: &Outcome, n: usize| out.scratch[0x700 + n..][..8].to_vec();
        let mut first = at(&unwoven, 0);
        first[0] = 0xfe;
        first[2..4].copy_from_slice(&[8, 7]);
        first[4..].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        assert_eq!((at(&once, 0), at(&once, 8)), (first, arg.to_le_bytes().to_vec()), "{identity:?}");
        let number = |out: &Outcome| u64::from_le_bytes(at(out, 16).try_into().expect("eight bytes"));
        assert_eq!(
            (number(&once), number(&twice)),
            (number(&unwoven).wrapping_add(3), number(&unwoven).wrapping_add(6))
        );
        assert_eq!(twice.shards[2][0], 2);
    }
    assert!(matches!(
        Field::new(ThreadIdentity::Locked, &code, &snippet(stmts)).err(),
        Some(CodegenError::NoCall { .. })
    ));
    let outside = snippet(vec![Stmt::Store(Avma(READABLE.end.0 - 2), IntegerWidth::Four, Expr::Const(1))]);
    assert_eq!(Field::new(GLIBC, &code, &outside).err(), Some(CodegenError::Fleeting { at: READABLE.end.0 - 2 }));
}

#[test]
fn only_the_variables_that_are_asked_for_are_set() {
    let code = text(&nothing, &nothing);
    let asked = snippet(vec![Stmt::Store(Avma(PLACE), IntegerWidth::Four, Expr::Const(1))]);
    let field = Field::new(GLIBC, &code, &asked).expect("it makes sense");
    for other in [
        vec![Stmt::Store(Avma(PLACE + 4), IntegerWidth::Four, Expr::Const(1))],
        vec![Stmt::Store(Avma(PLACE), IntegerWidth::Eight, Expr::Const(1))],
        vec![Stmt::Add(v(0), Expr::Const(1))],
    ] {
        let found = field.verify(&snippet(other), &field.weave);
        assert!(matches!(found, Err(VerifyError { flaw: Flaw::ForeignWrite | Flaw::NotEquivalent, .. })), "{found:?}");
    }
    // Every bit of the comparison, of the branch and of the stored operand matters.
    let is_store = |code: &ingraft_model::patch::ArenaCode| find_store(&code.bytes).is_some();
    let piece = field.weave.plan.code.iter().position(is_store).expect("the snippet");
    let (from, to) = find_store(&field.weave.plan.code[piece].bytes).expect("the snippet");
    let original = shown(&field.weave.plan.code[piece].bytes);
    for bit in 8 * from..8 * to {
        let mut changed = field.weave.clone();
        let byte = &mut changed.plan.code[piece].bytes[bit / 8];
        *byte ^= 1 << (bit % 8);
        let now = shown(&changed.plan.code[piece].bytes);
        // A store that has become a load does no harm.
        let loads = |i: &Instruction| i.memory_displacement64() == PLACE && i.op0_kind() == OpKind::Register;
        let harmless = now == original || decoded(&changed.plan.code[piece].bytes).iter().any(loads);
        assert!(field.verify(&asked, &changed).is_err() || harmless, "{bit}: {now:#?}");
    }
}

fn decoded(bytes: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).into_iter().collect()
}

fn shown(bytes: &[u8]) -> Vec<String> {
    decoded(bytes).iter().map(ToString::to_string).collect()
}

/// Start of the comparison before the write to the variable, and end of the write.
fn find_store(bytes: &[u8]) -> Option<(usize, usize)> {
    let all = decoded(bytes);
    let is_write = |i: &Instruction| i.mnemonic() == Mnemonic::Mov && i.memory_displacement64() == PLACE;
    let write = all.iter().position(is_write)?;
    Some((all.get(write.checked_sub(2)?)?.ip() as usize, all.get(write)?.next_ip() as usize))
}

#[test]
fn the_kernel_tells_a_thread_its_faults() {
    let outer = |a: &mut CodeAssembler| -> Written {
        a.call(TEXT)?;
        a.ret()
    };
    let code = text(&nothing, &outer);
    let usage = |n, usage| Stmt::Set(v(n), Expr::Usage(usage));
    let stmts = vec![
        usage(0, Usage::PageFaults),
        usage(1, Usage::MinorFaults),
        usage(2, Usage::MajorFaults),
        usage(3, Usage::ContextSwitches),
    ];
    for (identity, shard) in [(GLIBC, 2), (ThreadIdentity::FsBase, 2), (ThreadIdentity::Locked, 0)] {
        let field = Field::new(identity, &code, &snippet(stmts.clone())).expect("it makes sense");
        // At the second call, all memory has been touched before.
        let out = field.run(&code, vec![call(OUTER, vec![]); 2]);
        let [faults, minor, major, switches] = out.shards[shard][..4] else { panic!("four counters") };
        assert_eq!(faults, minor + major, "{identity:?}");
        assert!((1..10_000).contains(&minor) && (0..10_000).contains(&switches), "{:?}", out.shards[shard]);
    }
    let silent =
        Environment { readable: ingraft_codegen::Readable { process: None, ..READABLE }, ..environment(GLIBC) };
    let (site, asked) = (site(&code[..8]), snippet(stmts));
    let woven = ask(&site, &asked, |requests| weave_points(&silent, &mut arena(), &mut TextSpace::new(), requests));
    assert_eq!(woven.err(), Some(CodegenError::NoReads));
}

#[test]
fn every_flipped_bit_of_the_question_is_found() {
    let code = text(&nothing, &nothing);
    let asked = snippet(vec![Stmt::Set(v(0), Expr::Usage(Usage::PageFaults))]);
    let field = Field::new(GLIBC, &code, &asked).expect("it makes sense");
    let is_call = |code: &ingraft_model::patch::ArenaCode| code.bytes.windows(2).any(|w| w == [0x0f, 0x05]);
    let routine = field.weave.plan.code.iter().position(is_call).expect("the routine");
    let all = decoded(&field.weave.plan.code[routine].bytes);
    let call = all.iter().position(|i| i.mnemonic() == Mnemonic::Syscall).expect("the call");
    let original = shown(&field.weave.plan.code[routine].bytes);
    // From the first push of the room for the answer on.
    for bit in 8 * all[call - 21].ip() as usize..8 * all[call].next_ip() as usize {
        let mut changed = field.weave.clone();
        changed.plan.code[routine].bytes[bit / 8] ^= 1 << (bit % 8);
        let now = shown(&changed.plan.code[routine].bytes);
        let room = bit < 8 * all[call - 3].ip() as usize;
        // The initial contents of the room do not matter, only its size.
        let pushes = |all: &[String]| all.iter().filter(|i| i.starts_with("push")).count();
        let harmless = now == original || room && pushes(&now) == pushes(&original);
        assert!(field.verify(&asked, &changed).is_err() || harmless, "{bit}: {now:#?}");
    }
}
