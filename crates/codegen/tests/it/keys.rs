//! Values by keys of several parts, on the processor.

use std::collections::BTreeMap;

use crate::support::image::{Outcome, Program, SCRATCH, Step, TEXT, TEXT_LEN, TLS};
use crate::support::*;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{CodegenError, Environment, MiniRequest, PointRequest, Readable, TextSpace, weave_points};
use ingraft_model::table::{FIRST, TAKEN};
use ingraft_model::{
    Bias, BinaryOp, Expr, KeyField, KeyPart, KeyParts, KeyTable, Places, Snippet, Stmt, TableKey, TableShape,
    ThreadIdentity, VariableId,
};

/// xor eax,eax; add rax,rsi; nop dword [rax]; ret
const CODE: [u8; 9] = [0x31, 0xc0, 0x48, 0x01, 0xf0, 0x0f, 0x1f, 0x00, 0xc3];
const V: VariableId = VariableId(0);
const GETTID: u64 = 186;

fn number(e: Expr) -> KeyField {
    KeyField::Number(e)
}

fn binary(op: BinaryOp, a: Expr, b: i64) -> Expr {
    Expr::Binary(op, Box::new(a), Box::new(Expr::Const(b)))
}

/// The table of sums by a key of these parts, and the statement that adds to it.
fn added(key: Vec<KeyField>, amount: Expr, places: Places) -> (TableShape, Snippet) {
    let parts = KeyParts::of(key.iter().map(KeyField::is_text)).expect("few parts");
    let table = TableShape { parts, places, ..TableShape::SUMS };
    (table, Snippet { stmts: vec![Stmt::AddAt(V, table, key, amount)] })
}

/// Runs a snippet in an environment, and the program without it: nothing else may change.
fn run_in(env: &Environment, table: TableShape, snippet: &Snippet, steps: Vec<Step>) -> Outcome {
    let (site, mut arena, mut text) = (site(&CODE), arena(), TextSpace::new());
    let minis = [MiniRequest { id: 0, snippet, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(env, &arena, &text, &requests, &weave).expect("right");
    let run = |plans| {
        let counters = table.slots() as usize;
        Program { env, text: CODE.to_vec(), plans, steps: steps.clone(), counters }.run()
    };
    let (plain, out) = (run(vec![]), run(vec![&weave.plan]));
    assert_eq!(plain.calls, out.calls);
    assert_eq!(plain.scratch, out.scratch);
    out
}

/// Calls with these first arguments.
fn calls(arguments: impl IntoIterator<Item = u64>) -> Vec<Step> {
    let flags = [0x246, 0xad7, 0x202, 0x897];
    let call =
        |(n, argument): (usize, u64)| Step::Call { target: TEXT, registers: vec![(7, argument)], flags: flags[n % 4] };
    arguments.into_iter().enumerate().map(call).collect()
}

fn table_of(table: TableShape, out: &Outcome) -> KeyTable {
    KeyTable::from_slots(table, |n| out.shards[2][n as usize])
}

fn parts(key: &TableKey) -> Vec<KeyPart> {
    let TableKey::Parts(parts) = key else { panic!("{key:?}") };
    parts.to_vec()
}

#[test]
fn sums_by_several_numbers() {
    for (identity, places) in [(GLIBC, Places::FEW), (ThreadIdentity::FsBase, Places::MANY)] {
        let key =
            vec![number(Expr::Arg(0)), number(binary(BinaryOp::Remainder, Expr::Arg(0), 3)), number(Expr::Const(0))];
        for amount in [Expr::Const(5), binary(BinaryOp::Multiply, Expr::Arg(0), 2), Expr::Arg(0)] {
            let (table, snippet) = added(key.clone(), amount.clone(), places);
            let arguments = (0..40).chain(10..20).chain([0, u64::MAX, 1 << 63]);
            let out = run_in(&environment(identity), table, &snippet, calls(arguments.clone()));
            let mut expected: BTreeMap<Vec<KeyPart>, i64> = BTreeMap::new();
            for n in arguments {
                let signed = n.cast_signed();
                let value = match &amount {
                    Expr::Const(c) => *c,
                    Expr::Arg(_) => signed,
                    _ => signed.wrapping_mul(2),
                };
                let key = [n, (signed % 3).cast_unsigned(), 0].map(KeyPart::Number).to_vec();
                let sum = expected.entry(key).or_default();
                *sum = sum.wrapping_add(value);
            }
            let distinct = expected.len() as i64;
            expected.retain(|_, sum| *sum != 0);
            let read = table_of(table, &out);
            assert_eq!(read.others, 0);
            assert_eq!(out.shards[2][TAKEN as usize], distinct);
            let found: BTreeMap<_, _> = read.values.iter().map(|(key, sum)| (parts(key), *sum)).collect();
            assert_eq!(found, expected, "{amount:?}");
        }
    }
}

#[test]
fn a_thousand_keys_find_places() {
    let key = vec![number(Expr::Arg(0)), number(Expr::Arg(1))];
    let (table, snippet) = added(key, Expr::Const(1), Places::MANY);
    let arguments = (0..1000).map(|n: u64| n.wrapping_mul(0x1_0000_0001_3579));
    let steps = [calls(arguments.clone()), calls(arguments)].concat();
    let read = table_of(table, &run_in(&environment(GLIBC), table, &snippet, steps));
    assert_eq!((read.values.len(), read.others), (1000, 0));
    assert!(read.values.values().all(|value| *value == 2));
}

#[test]
fn places_of_other_words_are_not_used() {
    let (table, snippet) = added(vec![number(Expr::Arg(0)), number(Expr::Const(1))], Expr::Arg(0), Places::FEW);
    let env = environment(GLIBC);
    let once = run_in(&env, table, &snippet, calls([7]));
    let place = (0..table.places.count()).find(|place| once.shards[2][(FIRST + 2 * place) as usize] != 0).expect("one");
    // The key has been taken, but its second word is not stored yet, or is that of another key.
    let at = |word: u32| u64::from(env.data.counter(table.word(word) + 2 * place)) + 2 * env.data.stride;
    for value in [0, 2] {
        let steps = [calls([7, 7]), vec![Step::Store { at: at(1), value }], calls([7, 7, 7, 9])].concat();
        let read = table_of(table, &run_in(&env, table, &snippet, steps));
        let found: Vec<_> = read.values.iter().map(|(key, sum)| (parts(key), *sum)).collect();
        let key = |a, b| [a, b].map(KeyPart::Number).to_vec();
        assert_eq!(found, [(key(7, value), 14), (key(9, 1), 9)]);
        assert_eq!((read.others, read.total()), (21, 44));
    }
}

#[test]
fn threads_without_a_shard_have_no_keys() {
    let (table, snippet) = added(vec![number(Expr::Arg(0)), number(Expr::Arg(0))], Expr::Arg(0), Places::FEW);
    let out = run_in(&environment(GLIBC), table, &snippet, [vec![Step::Exhaust], calls(1..5)].concat());
    assert_eq!(out.shards[0][0], 10);
    let out = run_in(&environment(ThreadIdentity::Locked), table, &snippet, calls(1..5));
    assert_eq!(out.shards[0][0], 10);
}

fn shown(bytes: &[u8], cut: bool) -> KeyPart {
    KeyPart::Text { bytes: bytes.into(), cut }
}

/// Bytes of the scratch memory of the driver.
fn known(from: u64, length: usize) -> Vec<u8> {
    (from as usize..from as usize + length).map(|i| (i * 37 + 11) as u8).collect()
}

#[test]
fn texts_are_keys_up_to_their_end() {
    // The thread id is that of the process, so the process can read itself.
    let itself = Step::Syscall { number: GETTID, args: vec![], to: TLS + 0x2d0 };
    let key = vec![number(Expr::Const(3)), KeyField::Text(Expr::Arg(0))];
    let (table, snippet) = added(key, Expr::Const(1), Places::FEW);
    let store = |at: u64, text: &[u8; 8]| Step::Store { at: SCRATCH + at, value: u64::from_le_bytes(*text) };
    let texts = [
        store(0x100, b"GET\0abcd"),
        store(0x200, b"GET\0xyzt"),
        store(0x300, b"\0GETTING"),
        store(0x400, b"POSTMEN\0"),
    ];
    let end = TEXT + TEXT_LEN as u64;
    let arguments = [0x100, 0x200, 0x100, 0x300, 0x400, 0x200, 0x404].map(|at| SCRATCH + at);
    let beyond = [end, 0, u64::MAX - 3, 1 << 63];
    let steps = [vec![itself], texts.to_vec(), calls(arguments.into_iter().chain(beyond))].concat();
    let read = table_of(table, &run_in(&environment(GLIBC), table, &snippet, steps));
    let found: BTreeMap<KeyPart, i64> = read.values.iter().map(|(key, sum)| (parts(key)[1].clone(), *sum)).collect();
    let expected = [
        (shown(b"GET", false), 4),
        (shown(b"", false), 1),
        (shown(b"POSTMEN", false), 1),
        (shown(b"MEN", false), 1),
        (KeyPart::Unreadable, 4),
    ];
    assert_eq!(found, BTreeMap::from(expected));
    assert!(read.values.keys().all(|key| parts(key)[0] == KeyPart::Number(3)));
}

#[test]
fn long_texts_are_cut() {
    let itself = Step::Syscall { number: GETTID, args: vec![], to: TLS + 0x2d0 };
    let length = Expr::Binary(BinaryOp::Subtract, Box::new(Expr::Arg(0)), Box::new(Expr::Const(SCRATCH.cast_signed())));
    let key = vec![KeyField::BoundedText(Expr::Const(SCRATCH.cast_signed()), length), KeyField::Text(Expr::Arg(0))];
    let (table, snippet) = added(key, Expr::Const(1), Places::FEW);
    // The first zero of the pattern is behind 37 n + 11 = 0 modulo 256.
    let zero = |from: u64| (from..).find(|i| (i * 37 + 11).is_multiple_of(256)).expect("a zero") - from;
    let lengths = [0, 1, 7, 8, 63, 64, 65, 200];
    let arguments = lengths.into_iter().map(|length| SCRATCH + length).chain([SCRATCH + (1 << 63) + 5]);
    let out = run_in(&environment(GLIBC), table, &snippet, [vec![itself], calls(arguments)].concat());
    let read = table_of(table, &out);
    let mut expected: Vec<Vec<KeyPart>> = lengths
        .into_iter()
        .map(|length| {
            let end = zero(length);
            let second = known(length, end.min(64) as usize);
            vec![shown(&known(0, length.min(64) as usize), length > 64), shown(&second, end >= 64)]
        })
        .collect();
    // A negative length is none; the address that belongs to it cannot be read.
    expected.push(vec![shown(b"", false), KeyPart::Unreadable]);
    expected.sort();
    assert_eq!(read.values.keys().map(parts).collect::<Vec<_>>(), expected);
    assert!(read.values.values().all(|value| *value == 1));
    assert_eq!(read.others, 0);
}

#[test]
fn keys_have_the_parts_of_their_table() {
    let weave = |env: &Environment, stmt: Stmt| {
        let (site, snippet) = (site(&CODE), Snippet { stmts: vec![stmt] });
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        weave_points(env, &mut arena(), &mut TextSpace::new(), &requests).map(|_| ())
    };
    let env = environment(GLIBC);
    let two = TableShape { parts: KeyParts::of([false, false]).expect("two"), ..TableShape::SUMS };
    let one = || number(Expr::Arg(0));
    let add = |table, key| Stmt::AddAt(V, table, key, Expr::Const(1));
    assert_eq!(weave(&env, add(two, vec![one(), one()])), Ok(()));
    for (table, key) in [
        (two, vec![one()]),
        (two, vec![one(), KeyField::Text(Expr::Arg(1))]),
        (TableShape::SUMS, vec![one(), one()]),
        (TableShape::SUMS, vec![]),
        (TableShape::OBJECTS, vec![one()]),
    ] {
        assert_eq!(weave(&env, add(table, key)), Err(CodegenError::NoKey));
    }
    let silent = Environment { readable: Readable { process: None, ..READABLE }, ..env };
    let (table, _) = added(vec![KeyField::Text(Expr::Arg(0))], Expr::Const(1), Places::FEW);
    assert_eq!(weave(&silent, add(table, vec![KeyField::Text(Expr::Arg(0))])), Err(CodegenError::NoReads));
}
