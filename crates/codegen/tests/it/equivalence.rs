//! Random functions, woven and not woven, on the processor: registers, flags and memory must be the same, and counts exact.

use crate::support::image::{Program, Step};
use crate::support::random::{Field, Function, functions, lay_out, pops};
use crate::support::*;
use ingraft_codegen::remove_points;
use ingraft_model::{Avma, ThreadIdentity};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;

/// Compares woven functions with the originals. Returns the number of functions that were woven, and of all functions.
fn check(functions: &[Function], identity: ThreadIdentity) -> (usize, usize) {
    let (image, sites, paddings) = lay_out(functions);
    let field = Field::new(identity, sites, &paddings);
    let shown = || list(&field.weave.plan, &field.weave.woven);
    let calls = |i: usize| 1 + i % 2;
    let steps: Vec<_> = field
        .sites
        .iter()
        .enumerate()
        .flat_map(|(i, s)| {
            let flags = if i % 2 == 0 { 0x246 } else { 0xad7 };
            vec![Step::Call { target: s.function.0, registers: vec![], flags }; calls(i)]
        })
        .collect();
    let program = |plans| {
        Program { env: &field.env, text: image.clone(), plans, steps: steps.clone(), counters: functions.len() }.run()
    };
    let (plain, woven) = (program(vec![]), program(vec![&field.weave.plan]));
    assert_eq!(plain.scratch, woven.scratch, "memory\n{}", shown());
    let mut call = 0;
    for (i, point) in field.weave.woven.iter().enumerate() {
        for _ in 0..calls(i) {
            let (a, b) = (&plain.calls[call], &woven.calls[call]);
            assert_eq!(a, b, "{:?} {:x?}\n{}", functions[i], field.sites[i], shown());
            call += 1;
        }
        let expected = if point.is_ok() { calls(i) as i64 } else { 0 };
        let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
        assert_eq!(woven.shards[own][i], expected, "{:?}\n{}", functions[i], shown());
    }
    (field.weave.woven.iter().filter(|w| w.is_ok()).count(), functions.len())
}

/// Checks that a thread that moves from `from` to `to` has the same result: calls both addresses of every move with the same registers.
fn check_moves(functions: &[Function], identity: ThreadIdentity) {
    let (image, sites, paddings) = lay_out(functions);
    let field = Field::new(identity, sites, &paddings);
    let removal = remove_points(field.weave.woven.iter().flatten());
    let inserted = field.weave.plan.moves.iter().map(|m| (m.from, m.to));
    let removed = removal.moves.iter().map(|m| (m.to, m.from));
    // The jump to the slow routine uses the value that the instruction before it has loaded into the scratch register.
    let mut bound: Vec<_> = field.weave.woven.iter().flatten().map(|p| p.base.offset(-5)).collect();
    // After the copy of a return lies room that control never reaches.
    let exits = || field.weave.woven.iter().flatten().flat_map(|p| &p.inner);
    bound.extend(exits().flat_map(|e| (1..5).map(|n| e.copy.offset(n))));
    let pairs: Vec<_> = inserted.chain(removed).filter(|p| !bound.contains(&p.1)).collect();
    let steps = |pick: fn(&(Avma, Avma)) -> u64| {
        pairs.iter().map(|p| Step::Call { target: pick(p), registers: vec![], flags: 0x246 }).collect::<Vec<_>>()
    };
    let program = |plans, steps| Program { env: &field.env, text: image.clone(), plans, steps, counters: 1 }.run();
    let plain = program(vec![], steps(|p| p.0.0));
    let woven = program(vec![&field.weave.plan], steps(|p| p.1.0));
    for ((a, b), (original, new)) in plain.calls.iter().zip(&woven.calls).zip(&pairs) {
        assert_eq!(a, b, "{original} and {new}\n{}", list(&field.weave.plan, &field.weave.woven));
    }
    assert_eq!(plain.scratch, woven.scratch);
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn woven_code_does_what_the_original_did(functions in functions(), identity in 0..3) {
        let identity = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked][identity as usize];
        check(&functions, identity);
    }

    #[test]
    fn moves_of_program_counters_are_equivalences(mut functions in functions(), identity in 0..3) {
        let identity = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked][identity as usize];
        functions.truncate(40);
        // These functions are entered in the middle, so they must not depend on words that they have pushed before.
        for f in &mut functions {
            f.body.retain(|choice| !pops(choice));
        }
        check_moves(&functions, identity);
    }
}

#[test]
fn most_random_heads_can_be_woven() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut woven, mut all) = (0, 0);
    for _ in 0..10 {
        let functions = functions().new_tree(&mut runner).expect("a value").current();
        let (w, a) = check(&functions, GLIBC);
        woven += w;
        all += a;
    }
    assert!(woven * 10 > all * 7, "{woven} of {all}");
}
