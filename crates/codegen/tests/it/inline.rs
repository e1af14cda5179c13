//! Code of points in counting copies, on the processor: it does what the same snippets do in the ordinary copies.

use crate::support::body::{Codes, Copies, parts};
use crate::support::image::{Outcome, Program, Step, TEXT};
use crate::support::random::{Function, functions, lay_out};
use crate::support::*;
use ingraft_codegen::BodyCode;
use ingraft_model::contexts::CURRENT;
use ingraft_model::{
    AvmaRange, BinaryOp, CallRecord, ContextShape, ContextTree, Expr, KeyField, Places, PointKind, Ranges, Restore,
    Shape, Snippet, Stmt, TableShape, ThreadIdentity, VariableId, Whose,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

const KINDS: [PointKind; 4] = [PointKind::Entry, PointKind::Exit, PointKind::Block, PointKind::Edge];
/// Number of calls of each function. The first one claims a shard, and the second one finds all keys.
const CALLS: usize = 4;
/// First counters of the state that the points of a function share.
const STATE: u32 = 4000;
const STATE_OF_FUNCTION: u32 = 80;
/// First counter of the table, which all functions share.
const TABLE: u32 = 8200;
/// Counter of the hits that are not in counting copies.
const ELSEWHERE: u32 = TABLE - 1;

const OWN: VariableId = VariableId(0);
const ACTIVATIONS: VariableId = VariableId(1);
const SUM: VariableId = VariableId(2);
const COUNTS: VariableId = VariableId(3);
const TREE: VariableId = VariableId(4);
const NOW: VariableId = VariableId(5);
const KEYED: VariableId = VariableId(6);

fn ranges() -> Ranges {
    Ranges::new(1 << 20, 16, 1).expect("a range")
}

fn shape() -> ContextShape {
    ContextShape::of_bits(2, false, false).expect("a size")
}

fn table() -> TableShape {
    TableShape { places: Places::FEW, ..TableShape::SUMS }
}

/// Work of the code of a function.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Counts numbers that are added up along edges, as paths are.
    Paths,
    /// Counts such numbers by key.
    Keys,
    /// Does one or the other, and only calls inside of others of their function have records.
    Outermost,
    /// Enters contexts.
    Contexts,
    /// Both counts and contexts, one after the other.
    Both,
    /// Enters contexts, and counts such numbers below them.
    Below,
}

fn record(restore: VariableId, n: u32) -> CallRecord {
    // Two records of a call have variables of their own.
    CallRecord {
        activations: VariableId(ACTIVATIONS.0 + 6 * n),
        kept: Vec::new(),
        restore: Some(Restore::Value(restore)),
    }
}

/// The snippets at a point. Every fourth function lacks those at its exits, so that its records are stale when the next one begins.
fn snippets(doing: Doing, function: usize, kind: PointKind) -> Vec<Snippet> {
    let snippet = |stmts| Snippet { stmts };
    let late = Stmt::Set(SUM, Expr::Const(-(1 << 20)));
    let begin = Stmt::Set(SUM, Expr::Const(1 << 20));
    let plus = || Expr::Binary(BinaryOp::Add, Box::new(Expr::Variable(SUM)), Box::new(Expr::Const(3)));
    let count = match doing {
        Doing::Below => Stmt::CountBelow(TREE, shape(), 100 + function as u32, plus()),
        Doing::Outermost if function.is_multiple_of(2) => {
            Stmt::AddIn(COUNTS, ranges(), Expr::Variable(SUM), Expr::Const(1))
        }
        Doing::Keys | Doing::Outermost => Stmt::AddAt(KEYED, table(), vec![KeyField::Number(plus())], Expr::Const(1)),
        Doing::Paths | Doing::Contexts | Doing::Both => {
            Stmt::AddIn(COUNTS, ranges(), Expr::Variable(SUM), Expr::Const(1))
        }
    };
    let inside = || CallRecord { restore: Some(Restore::Outermost(SUM)), ..record(SUM, 0) };
    let paths = match kind {
        PointKind::Entry if matches!(doing, Doing::Outermost) => {
            vec![snippet(vec![Stmt::Open(inside(), vec![late]), begin.clone()])]
        }
        PointKind::Exit if matches!(doing, Doing::Outermost) => {
            vec![snippet(vec![count]), snippet(vec![Stmt::Close(inside(), Vec::new())])]
        }
        PointKind::Entry => vec![snippet(vec![Stmt::Open(record(SUM, 0), vec![late]), begin.clone()])],
        PointKind::Exit => {
            vec![snippet(vec![count]), snippet(vec![Stmt::Close(record(SUM, 0), vec![Stmt::Set(SUM, Expr::Restored)])])]
        }
        PointKind::Block => vec![snippet(vec![Stmt::Add(OWN, Expr::Const(1)), Stmt::Add(SUM, Expr::Const(3))])],
        PointKind::Edge => vec![snippet(vec![count, begin, Stmt::Add(OWN, Expr::Const(5))])],
        PointKind::CallBefore | PointKind::CallAfter => vec![],
    };
    let contexts = match kind {
        PointKind::Entry => {
            vec![snippet(vec![Stmt::Open(record(NOW, 1), vec![Stmt::Enter(TREE, shape(), 1 + function as u32)])])]
        }
        PointKind::Exit => vec![snippet(vec![Stmt::Close(record(NOW, 1), vec![Stmt::Set(NOW, Expr::Restored)])])],
        PointKind::Block => vec![snippet(vec![Stmt::Add(OWN, Expr::Const(1))])],
        PointKind::Edge | PointKind::CallBefore | PointKind::CallAfter => {
            vec![snippet(vec![Stmt::Set(OWN, Expr::Const(1 << 40))])]
        }
    };
    let handed = snippet(vec![Stmt::CloseHanded(record(NOW, 1), vec![Stmt::Set(NOW, Expr::Restored)])]);
    let mut all = match doing {
        Doing::Paths | Doing::Keys | Doing::Outermost => paths,
        Doing::Contexts => contexts,
        // The record that was opened last is closed first.
        Doing::Both if kind == PointKind::Exit => [contexts, paths].concat(),
        // Paths end in the context of their call.
        Doing::Below if kind == PointKind::Exit => [paths, contexts].concat(),
        Doing::Below => [contexts, paths].concat(),
        Doing::Both => [paths, contexts].concat(),
    };
    match kind {
        PointKind::Entry => all.insert(0, snippet(vec![Stmt::Prune])),
        PointKind::Exit if function % 4 == 3 => all = vec![snippet(vec![Stmt::Add(OWN, Expr::Const(1))])],
        PointKind::Exit if matches!(doing, Doing::Outermost) => {}
        PointKind::Exit => all.push(handed),
        PointKind::Block | PointKind::Edge | PointKind::CallBefore | PointKind::CallAfter => {}
    }
    all
}

fn counters(function: usize, n: u32) -> Vec<u32> {
    let own = STATE + STATE_OF_FUNCTION * function as u32;
    let tree = STATE - shape().slots();
    let counts = own + 4 + Shape::Outermost.slots();
    let second = counts + Shape::Vector(ranges().count()).slots();
    vec![n, own, own + 4, counts, tree, tree + CURRENT, TABLE, second]
}

/// Runs functions with code in counting copies, or without.
fn run(functions: &[Function], doing: Doing, inline: bool) -> (Outcome, usize) {
    let (image, sites, paddings) = lay_out(functions);
    let parts = parts(&image, &sites);
    let of = |function: usize, kind: PointKind, n: u32| {
        snippets(doing, function, kind).into_iter().map(|snippet| (snippet, counters(function, n))).collect()
    };
    let copies = Copies::with(
        GLIBC,
        &parts,
        &paddings,
        &Codes { kinds: &KINDS, of: &of, inline, free: true, elsewhere: Some(ELSEWHERE) },
    );
    assert!(copies.counters < (STATE - shape().slots()) as usize && functions.len() < 50);
    let targets: Vec<u64> = parts.iter().map(|(_, start)| *start).collect();
    let steps = targets.iter().flat_map(|target| {
        let call = Step::Call { target: *target, registers: vec![], flags: 0x246 };
        vec![call; CALLS]
    });
    let counters = (TABLE + table().slots()) as usize;
    let program = Program { env: &copies.env, text: image, plans: copies.plans(), steps: steps.collect(), counters };
    let codes = copies.functions.iter().flatten().flat_map(|f| f.renewed.as_ref().map_or(&f.own, |r| &r.points));
    let inlined = codes.filter(|point| matches!(point.code, BodyCode::Inline(_))).count();
    (program.run(), inlined)
}

/// Registers that a caller may read after a call.
const READ: [usize; 11] = [0, 1, 2, 3, 4, 5, 8, 12, 13, 14, 15];

fn check(functions: &[Function], doing: Doing) -> (usize, [i64; 2]) {
    let (inline, inlined) = run(functions, doing, true);
    let (elsewhere, _) = run(functions, doing, false);
    for (n, (a, b)) in inline.calls.iter().zip(&elsewhere.calls).enumerate() {
        let read = |registers: [u64; 16]| READ.map(|r| registers[r]);
        assert_eq!(read(a.registers), read(b.registers), "call {n}, {doing:?}");
    }
    assert_eq!(inline.scratch, elsewhere.scratch, "memory");
    for (n, (a, b)) in inline.shards[2].iter().zip(&elsewhere.shards[2]).enumerate() {
        assert!(a == b || n == ELSEWHERE as usize, "counter {n}, {doing:?}: {a} {b}");
    }
    let hits = [&inline, &elsewhere].map(|outcome| outcome.shards[2][ELSEWHERE as usize]);
    assert!(hits[0] <= hits[1], "{hits:?} hits are elsewhere");
    (inlined, hits)
}

fn doing() -> impl Strategy<Value = Doing> {
    let alone = prop_oneof![Just(Doing::Paths), Just(Doing::Keys), Just(Doing::Outermost), Just(Doing::Contexts)];
    prop_oneof![alone, Just(Doing::Both), Just(Doing::Below)]
}

/// Address of a function that calls the one in r12 five times from one place, so that all but the first call find their contexts.
const REPEAT: u64 = TEXT + 0xc0;
/// Address of a function that only returns.
const BARE: u64 = TEXT + 0xe0;

/// Two functions, of which the first one jumps to the second one, and a third one that jumps to the first one. [`REPEAT`] follows.
fn tail_jumps() -> (Vec<u8>, Vec<(Vec<u8>, u64)>) {
    let lea: &[u8] = &[0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xd0];
    // xor r10, r10; mov r11, rdi: registers and flags that the functions overwrite
    let writes: &[u8] = &[0x4d, 0x31, 0xd2, 0x49, 0x89, 0xfb];
    let (first, second, third) = (TEXT, TEXT + 0x40, TEXT + 0x80);
    let jump = |from: u64, to: u64| [&[0xe9][..], &(to.wrapping_sub(from + 5) as u32).to_le_bytes()].concat();
    // Behind a call, a thread comes back to the counting copy.
    let call = |from: u64, to: u64| [&[0xe8][..], &jump(from, to)[1..]].concat();
    let body = |start: u64| [lea, &call(start + lea.len() as u64, BARE), writes].concat();
    let at = |start: u64| start + body(start).len() as u64;
    let functions = [
        ([body(first), jump(at(first), second)].concat(), first),
        ([body(second), vec![0xc3]].concat(), second),
        ([body(third), jump(at(third), first)].concat(), third),
    ];
    let mut image = vec![0x90; 0xc0];
    for (bytes, start) in &functions {
        let from = (start - TEXT) as usize;
        image[from..from + bytes.len()].copy_from_slice(bytes);
    }
    // push rbx; mov ebx, 5; call r12; dec ebx; jne -7; pop rbx; ret
    image.extend([0x53, 0xbb, 5, 0, 0, 0, 0x41, 0xff, 0xd4, 0xff, 0xcb, 0x75, 0xf9, 0x5b, 0xc3]);
    image.resize((BARE - TEXT) as usize, 0x90);
    image.push(0xc3);
    (image, functions.to_vec())
}

/// Calls that go on with others by tail jumps close all of their records, in the ordinary copies and in the counting copies.
#[test]
fn handed_records_are_closed_by_the_last_call() {
    check_handed(true);
}

/// The same if a function in the middle has no record of its own: it hands on those of others.
#[test]
fn handed_records_are_handed_on() {
    check_handed(false);
}

/// Compares calls that go on with others in ordinary copies and in counting copies. `all` tells whether all functions have records.
fn check_handed(all: bool) {
    let (image, parts) = tail_jumps();
    let run = |inline: bool| {
        let of = |function: usize, kind: PointKind, n: u32| {
            let snippet = |stmts| Snippet { stmts };
            let restored = || vec![Stmt::Set(NOW, Expr::Restored)];
            let close = |function: u32| Stmt::CloseHanded(record(NOW, 1 + function), restored());
            let own = record(NOW, 1 + function as u32);
            let snippets = match (kind, function) {
                (PointKind::Entry, 0) if !all => vec![snippet(vec![Stmt::Prune])],
                (PointKind::Exit, 0) if !all => vec![
                    snippet(vec![Stmt::Add(OWN, Expr::Const(1))]),
                    snippet(vec![Stmt::HandOver(record(NOW, 3), Whose::Earlier, restored())]),
                ],
                (PointKind::Entry, _) => vec![
                    snippet(vec![Stmt::Prune]),
                    snippet(vec![Stmt::Open(own, vec![Stmt::Enter(TREE, shape(), 1 + function as u32)])]),
                ],
                (PointKind::Exit, 1) => vec![
                    snippet(vec![Stmt::Add(OWN, Expr::Const(1)), Stmt::Close(own, restored())]),
                    snippet(vec![close(0)]),
                    snippet(vec![close(2)]),
                ],
                (PointKind::Exit, 0) => vec![
                    snippet(vec![Stmt::HandOver(own, Whose::Own, restored())]),
                    snippet(vec![Stmt::HandOver(record(NOW, 3), Whose::Earlier, restored())]),
                ],
                (PointKind::Exit, _) => vec![
                    snippet(vec![Stmt::HandOver(own, Whose::Own, restored())]),
                    snippet(vec![Stmt::HandOver(record(NOW, 1), Whose::Earlier, restored())]),
                ],
                _ => vec![],
            };
            let tree = STATE - shape().slots();
            let mut counters = vec![n, 0, 0, 0, tree, tree + CURRENT, 0, STATE, 0, 0, 0, 0, 0, STATE + 4];
            counters.extend([0, 0, 0, 0, 0, STATE + 8]);
            snippets.into_iter().map(|snippet| (snippet, counters.clone())).collect()
        };
        let kinds = [PointKind::Entry, PointKind::Exit];
        let copies = Copies::with(
            GLIBC,
            &parts,
            &[],
            &Codes { kinds: &kinds, of: &of, inline, free: true, elsewhere: Some(ELSEWHERE) },
        );
        let refused: Vec<_> = copies.functions.iter().filter_map(|f| f.as_ref().err()).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let inlined = copies.functions.iter().flatten().flat_map(|f| f.renewed.as_ref().map_or(&f.own, |r| &r.points));
        let inlined = inlined.filter(|point| matches!(point.code, BodyCode::Inline(_))).count();
        let order = [0, 1, 2, 0, 2, 1, 0, 0, 2, 2, 1];
        let call = |n: &usize| Step::Call { target: REPEAT, registers: vec![(12, parts[*n].1)], flags: 0x246 };
        let steps = order.iter().map(call).collect();
        let (text, counters) = (image.clone(), (ELSEWHERE + 1) as usize);
        (Program { env: &copies.env, text, plans: copies.plans(), steps, counters }.run(), inlined)
    };
    let ((inline, codes), (elsewhere, _)) = (run(true), run(false));
    assert!(codes > 4, "{codes} points have code in counting copies");
    let same = |outcome: &Outcome| outcome.shards[2][..ELSEWHERE as usize].to_vec();
    assert_eq!(same(&inline), same(&elsewhere));
    let hits = [&inline, &elsewhere].map(|outcome| outcome.shards[2][ELSEWHERE as usize]);
    assert!(hits[0] * 4 < hits[1] * 3, "{hits:?} hits are elsewhere");
    let tree = ContextTree::from_slots(shape(), |n| inline.shards[2][(STATE - shape().slots() + n) as usize]);
    assert_eq!(inline.shards[2][(STATE - shape().slots()) as usize], 0, "no context is left");
    assert!(tree.contexts.len() > 2 || tree.full > 0, "{} contexts", tree.contexts.len());
    assert_eq!(inline.shards[2][STATE as usize..][..12], [0; 12], "no call was left or unseen");
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn code_in_counting_copies_does_what_it_does_elsewhere(mut functions in functions(), doing in doing()) {
        functions.truncate(12);
        check(&functions, doing);
    }
}

#[test]
fn most_code_is_in_counting_copies() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let all = [Doing::Paths, Doing::Keys, Doing::Outermost, Doing::Contexts, Doing::Both, Doing::Below];
    for doing in all {
        let mut functions = functions().new_tree(&mut runner).expect("a value").current();
        functions.truncate(12);
        let (inlined, [with, without]) = check(&functions, doing);
        assert!(inlined > 20, "{inlined} of {doing:?}");
        // Each call of the driver has a place of its own, and so a new context.
        let known = matches!(doing, Doing::Paths | Doing::Keys | Doing::Outermost);
        assert!(!known || with < without, "{with} of {without} hits of {doing:?} are elsewhere");
    }
}

/// A plan that does not say rightly in which code threads must be single-stepped is refused.
#[test]
fn wrong_claims_about_threads_are_refused() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut functions = functions().new_tree(&mut runner).expect("a value").current();
    functions.truncate(12);
    let (image, sites, paddings) = lay_out(&functions);
    let of = |function: usize, kind: PointKind, n: u32| {
        snippets(Doing::Paths, function, kind).into_iter().map(|s| (s, counters(function, n))).collect()
    };
    let codes = Codes { kinds: &KINDS, of: &of, inline: true, free: true, elsewhere: None };
    let copies = Copies::with(GLIBC, &parts(&image, &sites), &paddings, &codes);
    let mut ranges = 0;
    for f in copies.functions.iter().flatten() {
        copies.verify(f, &f.weave).expect("right");
        let count = f.weave.body.counting.as_ref().map_or(0, |counting| counting.inside.len());
        ranges += count;
        for n in 0..count {
            type Change = fn(&mut Vec<AvmaRange>, usize);
            let shorten: Change = |ranges, n| ranges[n].end.0 -= 1;
            let lengthen: Change = |ranges, n| ranges[n].start.0 -= 1;
            let leave_out: Change = |ranges, n| _ = ranges.remove(n);
            for change in [shorten, lengthen, leave_out] {
                let mut wrong = f.weave.clone();
                change(&mut wrong.body.counting.as_mut().expect("a counting copy").inside, n);
                assert!(copies.verify(f, &wrong).is_err(), "range {n} of the copy");
                let mut wrong = f.weave.clone();
                change(&mut wrong.body.removal.step_out, n);
                assert!(copies.verify(f, &wrong).is_err(), "range {n} of the record");
            }
        }
    }
    assert!(ranges > 20, "{ranges}");
}

/// Threads that are not told apart run no counting copy.
#[test]
fn locked_counters_have_no_counting_copies() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let functions = functions().new_tree(&mut runner).expect("a value").current();
    let (image, sites, paddings) = lay_out(&functions);
    let of = |function: usize, kind: PointKind, n: u32| {
        snippets(Doing::Paths, function, kind).into_iter().map(|s| (s, counters(function, n))).collect()
    };
    let codes = Codes { kinds: &KINDS, of: &of, inline: true, free: true, elsewhere: None };
    let copies = Copies::with(ThreadIdentity::Locked, &parts(&image, &sites), &paddings, &codes);
    assert!(copies.functions.iter().flatten().all(|f| f.weave.body.counting.is_none()));
}
