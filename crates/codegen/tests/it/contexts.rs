//! Calling contexts in the shards of threads, on the processor.

use crate::support::image::{Outcome, Program, Step, TEXT};
use crate::support::*;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{CodegenError, MiniRequest, PointRequest, TextSpace, weave_points};
use ingraft_model::contexts::{CURRENT, TAKEN, VALUES};
use ingraft_model::{
    Bias, BinaryOp, ContextShape, ContextTree, Expr, Resolution, Snippet, Stmt, ThreadIdentity, VariableId,
};

/// xor eax,eax; add rax,rsi; nop dword [rax]; ret
const CODE: [u8; 9] = [0x31, 0xc0, 0x48, 0x01, 0xf0, 0x0f, 0x1f, 0x00, 0xc3];
const TREE: VariableId = VariableId(0);
const NOW: VariableId = VariableId(1);

fn shape(bits: u8, full: bool) -> ContextShape {
    ContextShape::of_bits(bits, true, full).expect("a size")
}

/// Calls a function with these first arguments, with a snippet at its entry and without it: nothing else may change.
fn run(identity: ThreadIdentity, shape: ContextShape, stmts: Vec<Stmt>, arguments: &[u64]) -> Outcome {
    let env = &environment(identity);
    let (site, mut arena, mut text) = (site(&CODE), arena(), TextSpace::new());
    let snippet = Snippet { stmts };
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0, CURRENT] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(env, &arena, &text, &requests, &weave).expect("right");
    let call = |argument: &u64| Step::Call { target: TEXT, registers: vec![(7, *argument)], flags: 0xad7 };
    let run = |plans| {
        let steps = arguments.iter().map(call).collect();
        Program { env, text: CODE.to_vec(), plans, steps, counters: shape.slots() as usize }.run()
    };
    let (plain, out) = (run(vec![]), run(vec![&weave.plan]));
    assert_eq!(plain.calls, out.calls);
    assert_eq!(plain.scratch, out.scratch);
    out
}

fn tree(out: &Outcome, shape: ContextShape) -> ContextTree {
    ContextTree::from_slots(shape, |n| out.shards[2][n as usize])
}

/// Parent, number of calls, the context to which it leads back, and the values of metrics.
type Row = (Option<usize>, u64, Option<usize>, [i64; 4]);

fn rows(tree: &ContextTree) -> Vec<Row> {
    tree.contexts.iter().map(|c| (c.parent, c.calls, c.back, c.metrics)).collect()
}

#[test]
fn calls_from_one_place_are_in_one_context() {
    let shape = shape(5, false);
    let stmts = vec![
        Stmt::Set(NOW, Expr::Const(0)),
        Stmt::Enter(TREE, shape, 9),
        Stmt::AddContext(TREE, shape, 1, Expr::Arg(0)),
        Stmt::AddContext(TREE, shape, 3, Expr::Const(2)),
        Stmt::Set(NOW, Expr::Const(0)),
        Stmt::AddContext(TREE, shape, 0, Expr::Const(7)),
    ];
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        // Each call of the driver has a place of its own, from which the snippet counts twice.
        let twice = [stmts.clone(), stmts.clone()].concat();
        let tree = tree(&run(identity, shape, twice, &[5, 1, 3]), shape);
        let mut found = rows(&tree);
        found.sort_by_key(|(.., metrics)| *metrics);
        assert_eq!(found, [2, 6, 10].map(|sum| (None, 2, None, [0, sum, 0, 4])));
        assert_eq!((tree.contexts[0].function, tree.outside[0]), (9, 42));
        assert_ne!(tree.contexts[0].return_address, 0);
    }
}

#[test]
fn values_are_counted_below_the_context() {
    let shape = shape(5, false);
    let below = |e| Stmt::CountBelow(TREE, shape, 4, e);
    let path = |n| Expr::Binary(BinaryOp::Add, Box::new(Expr::Arg(0)), Box::new(Expr::Const(n)));
    let stmts = vec![
        Stmt::Enter(TREE, shape, 9),
        below(path(1 << 45)),
        below(path(1 << 45)),
        below(Expr::Const(-1)),
        Stmt::AddContext(TREE, shape, 0, Expr::Const(7)),
        Stmt::Set(NOW, Expr::Const(0)),
        below(path(0)),
    ];
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let tree = tree(&run(identity, shape, stmts.clone(), &[5]), shape);
        let mut found: Vec<_> =
            tree.contexts.iter().map(|c| (c.function, c.return_address, c.parent, c.calls)).collect();
        let entered = found.iter().position(|row| row.0 == 9).expect("the context");
        assert_eq!(tree.contexts[entered].metrics[0], 7);
        found.remove(entered);
        found.sort_unstable();
        let last = (1 << 47) - 1;
        let below = Some(entered);
        assert_eq!(found, [(4, 5, None, 1), (4, (1 << 45) + 5, below, 2), (4, last, below, 1)]);
    }
}

#[test]
fn a_bucket_becomes_the_context() {
    let shape = shape(6, false);
    let stmts = vec![
        Stmt::Enter(TREE, shape, 9),
        Stmt::EnterValue(TREE, shape, 4, Some(Resolution::Fine), Expr::Arg(0)),
        Stmt::AddContext(TREE, shape, 2, Expr::Arg(0)),
        Stmt::Set(NOW, Expr::Const(0)),
    ];
    let values = [0, 1, 31, 32, 33, 1000, 123_456_789, 1 << 43, 1 << 44, u64::MAX >> 1];
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let tree = tree(&run(identity, shape, stmts.clone(), &values), shape);
        let buckets = tree.contexts.iter().filter(|of| of.function == 4);
        let mut found: Vec<_> =
            buckets.map(|of| (of.metrics[2].cast_unsigned(), of.return_address, of.calls)).collect();
        found.sort_unstable();
        assert_eq!(found, values.map(|value| (value, u64::from(Resolution::Fine.bucket_of(value)), 1)));
        let above = tree.contexts.iter().filter(|of| of.function == 4).map(|of| of.parent.expect("a context"));
        assert!(above.clone().all(|at| tree.contexts[at].function == 9 && tree.contexts[at].metrics == [0; 4]));
    }
}

#[test]
fn metrics_of_a_value_stay_below_its_context() {
    let shape = shape(5, false);
    let value = |n| Stmt::EnterValue(TREE, shape, VALUES | 4, None, Expr::Const(n));
    let add = |n| Stmt::AddContext(TREE, shape, 1, Expr::Const(n));
    let leave = Stmt::LeaveValue(TREE, shape);
    let stmts = vec![
        // Outside of all contexts, and in a context, there is nothing to leave.
        leave.clone(),
        Stmt::Enter(TREE, shape, 9),
        leave.clone(),
        value(-7),
        add(100),
        leave.clone(),
        add(1),
        value(5),
        add(10),
        leave.clone(),
        add(2),
        leave,
        Stmt::Set(NOW, Expr::Const(0)),
    ];
    for identity in [GLIBC, ThreadIdentity::FsBase] {
        let mut tree = tree(&run(identity, shape, stmts.clone(), &[0]), shape);
        let mut values: Vec<_> =
            tree.take_values().iter().map(|of| (of.value, of.count, of.metrics[1], of.context)).collect();
        values.sort_unstable();
        let of: Vec<_> = tree.contexts.iter().map(|of| (of.function, of.calls, of.metrics[1])).collect();
        assert_eq!((values, of), (vec![(-7, 1, 100, Some(0)), (5, 1, 10, Some(0))], vec![(9, 1, 3)]));
        assert_eq!(tree.outside, [0; 4]);
    }
}

#[test]
fn a_recursion_leads_back_or_goes_deeper() {
    let calls = |shape, count| {
        let out = run(GLIBC, shape, vec![Stmt::Enter(TREE, shape, 1); count], &[0]);
        (tree(&out, shape), out.shards[2][TAKEN as usize])
    };
    let (folded, taken) = calls(shape(5, false), 9);
    assert_eq!((rows(&folded), taken), (vec![(None, 1, None, [0; 4]), (Some(0), 8, Some(0), [0; 4])], 2));
    let (deep, taken) = calls(shape(2, true), 9);
    let expected = [None, Some(0), Some(1), Some(2)].map(|parent| (parent, 1, None, [0; 4]));
    assert_eq!((rows(&deep), taken, deep.full), (expected.to_vec(), 4, 5));
}

/// Threads that are not told apart enter no context.
#[test]
fn threads_without_a_shard_enter_no_context() {
    let shape = shape(3, false);
    let stmts = vec![Stmt::Enter(TREE, shape, 1), Stmt::AddContext(TREE, shape, 0, Expr::Const(1))];
    let out = run(ThreadIdentity::Locked, shape, stmts, &[0, 0]);
    assert!(out.shards.iter().flatten().all(|word| *word == 0));
}

#[test]
fn functions_without_numbers_and_unknown_metrics_are_refused() {
    let shapes = [ContextShape::of_bits(3, false, false).expect("a size"), shape(3, false)];
    let refused = |stmt: Stmt| {
        let (site, mut arena, mut text) = (site(&CODE), arena(), TextSpace::new());
        let snippet = Snippet { stmts: vec![stmt] };
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0, CURRENT] }];
        let request = PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None };
        let woven = weave_points(&environment(GLIBC), &mut arena, &mut text, &[request]);
        matches!(woven, Err(CodegenError::NoContext))
    };
    assert!(refused(Stmt::Enter(TREE, shapes[1], 0)));
    assert!(refused(Stmt::Enter(TREE, shapes[1], 1 << 17)));
    assert!(refused(Stmt::CountBelow(TREE, shapes[1], 1 << 17, Expr::Const(1))));
    assert!(refused(Stmt::AddContext(TREE, shapes[0], 0, Expr::Const(1))));
    assert!(refused(Stmt::AddContext(TREE, shapes[1], 4, Expr::Const(1))));
}
