//! Random snippets on the processor, compared with an evaluator.

use crate::support::image::{self, Program, STACK, Step, TEXT};
use crate::support::*;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{MiniRequest, PointRequest, TextSpace, weave_points};
use ingraft_model::{
    Avma, Bias, BinaryOp, Expr, Gpr, IntegerWidth, Scalar, Site, Snippet, Stmt, ThreadIdentity, UnaryOp, VariableId,
};
use proptest::prelude::*;

const OPERATORS: [BinaryOp; 18] = [
    BinaryOp::Add,
    BinaryOp::Subtract,
    BinaryOp::Multiply,
    BinaryOp::Divide,
    BinaryOp::Remainder,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::ShiftLeft,
    BinaryOp::ShiftRight,
    BinaryOp::Equal,
    BinaryOp::NotEqual,
    BinaryOp::Less,
    BinaryOp::LessOrEqual,
    BinaryOp::Greater,
    BinaryOp::GreaterOrEqual,
    BinaryOp::LogicalAnd,
    BinaryOp::LogicalOr,
];
/// Number of counters that one snippet may use.
const VARIABLES: u32 = 3;

fn constant() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(-1),
        Just(i64::MIN),
        Just(i64::MAX),
        Just(63),
        Just(1 << 31),
        Just(-(1 << 31)),
        Just((1 << 32) - 1),
        any::<i64>(),
        any::<i32>().prop_map(i64::from),
        -4..70i64
    ]
}

/// Address of the program's own data.
const DATA: u64 = image::SCRATCH + 0x4000;

fn scalar() -> impl Strategy<Value = Scalar> {
    let width = prop_oneof![
        Just(IntegerWidth::One),
        Just(IntegerWidth::Two),
        Just(IntegerWidth::Four),
        Just(IntegerWidth::Eight)
    ];
    (width, any::<bool>()).prop_map(|(width, signed)| Scalar { width, signed })
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        2 => constant().prop_map(Expr::Const),
        3 => (0..9u8).prop_map(Expr::Arg),
        1 => (0..VARIABLES).prop_map(|v| Expr::Variable(VariableId(v))),
        1 => (0..0x100u64, scalar()).prop_map(|(n, scalar)| Expr::Load(Avma(DATA + n), scalar)),
    ];
    leaf.prop_recursive(5, 24, 2, |inner| {
        let unary = prop_oneof![Just(UnaryOp::Negate), Just(UnaryOp::Not), Just(UnaryOp::Complement)];
        prop_oneof![
            1 => (unary, inner.clone()).prop_map(|(op, e)| Expr::Unary(op, Box::new(e))),
            1 => (inner.clone(), scalar()).prop_map(|(e, scalar)| Expr::Read(Box::new(e), scalar)),
            5 => (0..OPERATORS.len(), inner.clone(), inner)
                .prop_map(|(op, a, b)| Expr::Binary(OPERATORS[op], Box::new(a), Box::new(b))),
        ]
    })
}

fn stmts() -> impl Strategy<Value = Vec<Stmt>> {
    let v = || (0..VARIABLES).prop_map(VariableId);
    let simple = prop_oneof![
        (v(), expr()).prop_map(|(v, e)| Stmt::Add(v, e)),
        (v(), expr()).prop_map(|(v, e)| Stmt::Set(v, e)),
        (v(), v(), expr()).prop_map(|(v, last, e)| Stmt::Add(v, Expr::Since(last, Box::new(e)))),
    ];
    let stmt = simple.prop_recursive(3, 8, 3, |inner| {
        (expr(), prop::collection::vec(inner, 0..3)).prop_map(|(c, body)| Stmt::If(c, body))
    });
    prop::collection::vec(stmt, 0..4)
}

/// Second implementation of the meaning of snippets.
struct Evaluator {
    variables: [i64; VARIABLES as usize],
    arguments: [i64; 9],
    /// Whether the thread has a shard of its own.
    has_shard: bool,
}

impl Evaluator {
    fn expr(&self, e: &Expr) -> i64 {
        match e {
            Expr::Const(c) => *c,
            Expr::Arg(n) => self.arguments[usize::from(*n)],
            Expr::Return | Expr::Saved(_) | Expr::Elapsed(..) | Expr::Restored | Expr::Number(_) | Expr::Call(_) => {
                unreachable!("not generated here")
            }
            Expr::Float(_)
            | Expr::Lost(_)
            | Expr::Notes
            | Expr::OfGoroutine(_)
            | Expr::Usage(_)
            | Expr::Now(_)
            | Expr::Event(_)
            | Expr::Since(..)
            | Expr::Text(_)
            | Expr::Address(_)
            | Expr::ValueAt(..)
            | Expr::ValueIn(..)
            | Expr::ReturnAddress
            | Expr::ThreadPointer => {
                unreachable!("not generated here")
            }
            Expr::Load(at, scalar) => {
                let mut word = [0; 8];
                for (i, byte) in (0..).zip(word.iter_mut().take(scalar.width.bytes() as usize)) {
                    *byte = ((at.0 - image::SCRATCH + i) as usize * 37 + 11) as u8;
                }
                scalar.extend(u64::from_le_bytes(word))
            }
            // The process that is read does not exist, so the read fails.
            Expr::Read(..) => 0,
            Expr::Variable(v) => self.variables[v.0 as usize],
            Expr::Unary(UnaryOp::Negate, e) => 0i64.wrapping_sub(self.expr(e)),
            Expr::Unary(UnaryOp::Complement, e) => self.expr(e) ^ -1,
            Expr::Unary(UnaryOp::Not, e) => (self.expr(e) == 0).into(),
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.expr(a), self.expr(b));
                let wide = |f: fn(i128, i128) -> i128| f(i128::from(a), i128::from(b)) as i64;
                match op {
                    BinaryOp::Add => wide(|a, b| a + b),
                    BinaryOp::Subtract => wide(|a, b| a - b),
                    BinaryOp::Multiply => a.wrapping_mul(b),
                    BinaryOp::Divide => wide(|a, b| if b == 0 { 0 } else { a / b }),
                    BinaryOp::Remainder => wide(|a, b| if b == 0 { 0 } else { a % b }),
                    BinaryOp::And => a & b,
                    BinaryOp::Or => a | b,
                    BinaryOp::Xor => a ^ b,
                    BinaryOp::ShiftLeft => a.wrapping_shl((b & 63) as u32),
                    BinaryOp::ShiftRight => a.wrapping_shr((b & 63) as u32),
                    BinaryOp::Equal => (a == b).into(),
                    BinaryOp::NotEqual => (a != b).into(),
                    BinaryOp::Less => (a < b).into(),
                    BinaryOp::LessOrEqual => (a <= b).into(),
                    BinaryOp::Greater => (a > b).into(),
                    BinaryOp::GreaterOrEqual => (a >= b).into(),
                    BinaryOp::LogicalAnd => (a != 0 && b != 0).into(),
                    BinaryOp::LogicalOr => (a != 0 || b != 0).into(),
                }
            }
        }
    }

    /// The value of a whole expression, which alone may be a difference from its last value.
    fn whole(&mut self, e: &Expr) -> i64 {
        let Expr::Since(last, e) = e else { return self.expr(e) };
        let now = self.expr(e);
        if !self.has_shard {
            return 0;
        }
        match std::mem::replace(&mut self.variables[last.0 as usize], now) {
            0 => 0,
            before => now.wrapping_sub(before),
        }
    }

    fn stmts(&mut self, stmts: &[Stmt]) {
        for s in stmts {
            match s {
                Stmt::Add(v, e) => {
                    let value = self.whole(e);
                    let slot = &mut self.variables[v.0 as usize];
                    *slot = slot.wrapping_add(value);
                }
                Stmt::Set(v, e) => self.variables[v.0 as usize] = self.expr(e),
                Stmt::If(c, body) => {
                    if self.expr(c) != 0 {
                        self.stmts(body);
                    }
                }
                other => unreachable!("not generated here: {other}"),
            }
        }
    }
}

/// Sites with different free registers: none, rax, another register, and none with live flags.
fn site_of(kind: usize, at: u64) -> Site {
    // lea rax,[rdx+rcx]; test rsi,rsi; ret
    let code = [0x48, 0x8d, 0x04, 0x0a, 0x48, 0x85, 0xf6, 0xc3];
    let scratch = [vec![], vec![Gpr(0)], vec![Gpr(11)], vec![]][kind].clone();
    entry_at(at, &code).free(&scratch, kind != 3)
}

fn check(snippets: &[Vec<Stmt>], arguments: [i64; 6], identity: ThreadIdentity, exhaust: bool) {
    let env = environment(identity);
    let snippets: Vec<_> = snippets.iter().map(|s| Snippet { stmts: s.clone() }).collect();
    let counters: Vec<u32> = (0..snippets.len() as u32 * VARIABLES).collect();
    let minis: Vec<_> = snippets
        .iter()
        .zip(counters.chunks(VARIABLES as usize))
        .map(|(snippet, counters)| MiniRequest { id: 0, snippet, counters })
        .collect();
    let sites: Vec<_> = (0..snippets.len()).map(|i| site_of(i % 4, TEXT + 32 * i as u64)).collect();
    let mut image = Vec::new();
    for s in &sites {
        image.resize((s.at.0 - TEXT) as usize, 0xcc);
        image.extend_from_slice(&s.bytes);
    }
    let requests: Vec<_> = sites
        .iter()
        .zip(minis.chunks(1))
        .map(|(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None })
        .collect();
    let (mut arena, mut text) = (arena(), TextSpace::new());
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    let shown = || list(&weave.plan, &weave.woven);
    if let Err(e) = verify_weave(&env, &arena, &text, &requests, &weave) {
        panic!("{e}\n{}", shown());
    }
    let registers: Vec<_> = [7, 6, 2, 1, 8, 9].into_iter().zip(arguments.map(i64::cast_unsigned)).collect();
    let mut steps = if exhaust { vec![Step::Exhaust] } else { vec![] };
    for s in &sites {
        let call = Step::Call { target: s.at.0, registers: registers.clone(), flags: 0x247 };
        steps.extend([call.clone(), call]);
    }
    let program =
        |plans| Program { env: &env, text: image.clone(), plans, steps: steps.clone(), counters: counters.len() }.run();
    let (plain, woven) = (program(vec![]), program(vec![&weave.plan]));
    for (i, (a, b)) in plain.calls.iter().zip(&woven.calls).enumerate() {
        let mut a = a.clone();
        if i / 2 % 4 == 2 {
            a.registers[11] = b.registers[11];
        }
        assert_eq!(&a, b, "registers after {}\n{}", snippets[i / 2], shown());
    }
    let shard = if exhaust || identity == ThreadIdentity::Locked { 0 } else { 2 };
    // Above the return address lie the initial words of the driver's stack.
    let word = |n: u64| -> i64 {
        let from = STACK + 8 * n - image::SCRATCH;
        i64::from_le_bytes(std::array::from_fn(|i| ((from + i as u64) as usize * 37 + 11) as u8))
    };
    for (i, snippet) in snippets.iter().enumerate() {
        let [a, b, c, d, e, f] = arguments;
        let arguments = [a, b, c, d, e, f, word(0), word(1), word(2)];
        let mut evaluator = Evaluator { variables: [0; 3], arguments, has_shard: shard != 0 };
        evaluator.stmts(&snippet.stmts);
        evaluator.stmts(&snippet.stmts);
        let found = &woven.shards[shard][i * 3..i * 3 + 3];
        assert_eq!(found, evaluator.variables, "{snippet} with {arguments:x?}\n{}", shown());
    }
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn compiled_snippets_mean_what_they_say(
        snippets in prop::collection::vec(stmts(), 1..60),
        arguments in prop::array::uniform6(constant()),
        identity in 0..3usize,
        exhaust: bool,
    ) {
        let identity = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked][identity];
        check(&snippets, arguments, identity, exhaust);
    }
}
