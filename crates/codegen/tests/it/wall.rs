//! Clocks other than the time stamp counter: the code as text, and the refusal of any other routine.

use crate::support::image::TELL_TIME;
use crate::support::*;
use ingraft_codegen::verify::{Flaw, verify_weave};
use ingraft_codegen::{Environment, MiniRequest, PointRequest, TextSpace, Weave, weave_points};
use ingraft_model::{Avma, Bias, Clock, Snippet, Stmt, VariableId, WallClock};

const VDSO: WallClock = WallClock::Vdso(Avma(TELL_TIME));

/// Weaves a timer that starts at an entry. `then` may prove the plan for another clock.
fn woven<T>(wall: WallClock, then: impl FnOnce(&Weave, &dyn Fn(WallClock, &Weave) -> Result<(), Flaw>) -> T) -> T {
    let env = Environment { wall, ..environment(GLIBC) };
    let (mut arena, mut text) = (arena(), TextSpace::new());
    let start = Snippet { stmts: vec![Stmt::Start(VariableId(0), Clock::Wall)] };
    let minis = [MiniRequest { id: 1, snippet: &start, counters: &[0] }];
    let site = site(&[0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0xe5]);
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    then(&weave, &|wall, weave| {
        verify_weave(&Environment { wall, ..env }, &arena, &text, &requests, weave).map_err(|e| e.flaw)
    })
}

#[test]
fn the_code_as_text() {
    for (wall, file) in [(VDSO, "time_vdso.txt"), (WallClock::SystemCall, "time_system_call.txt")] {
        let text = woven(wall, |weave, verify| {
            assert_eq!(verify(wall, weave), Ok(()));
            list(&weave.plan, &weave.woven)
        });
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/codegen").join(file);
        expect_test::ExpectFile { path: golden, position: file!() }.assert_eq(&text);
    }
}

#[test]
fn wrong_routines_are_refused() {
    woven(VDSO, |weave, verify| {
        let is_routine = |bytes: &[u8]| bytes.windows(2).any(|w| w == [0xff, 0xd0]);
        let routine = weave.plan.code.iter().position(|c| is_routine(&c.bytes)).expect("the routine is there");
        let listed = |weave: &Weave| {
            let code = &weave.plan.code[routine];
            let decoded = iced_x86::Decoder::with_ip(64, &code.bytes, code.at.0, 0).into_iter();
            decoded.map(|i| text_of(&i)).collect::<Vec<_>>()
        };
        for bit in 0..8 * weave.plan.code[routine].bytes.len() {
            let mut other = weave.clone();
            other.plan.code[routine].bytes[bit / 8] ^= 1 << (bit % 8);
            // Some bits of an encoding have no effect, and some instructions have two encodings.
            assert!(listed(&other) == listed(weave) || verify(VDSO, &other).is_err(), "bit {bit}");
        }
        // Another function, and clocks for which no function may be called.
        for wall in [WallClock::Vdso(Avma(TELL_TIME + 1)), WallClock::SystemCall, WallClock::Tsc] {
            assert!(verify(wall, weave).is_err(), "{wall:?}");
        }
    });
    woven(WallClock::SystemCall, |weave, verify| {
        assert_eq!(verify(WallClock::Tsc, weave), Err(Flaw::Forbidden));
    });
}
