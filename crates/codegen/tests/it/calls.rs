//! Points before and after calls, on the processor.

use crate::support::image::{self, HELPER, HELPER_POINTER, Outcome, Program, Step, TEXT};
use crate::support::*;
use ingraft_codegen::verify::{verify_added, verify_removal, verify_removed, verify_weave};
use ingraft_codegen::{MiniRequest, PointRequest, TextSpace, add_mini, remove_mini, remove_points, weave_points};
use ingraft_model::{
    Avma, Bias, CallRecord, Clock, Expr, KeptValue, PatchPlan, PointKind, Restore, Site, Snippet, Stmt, Svma,
    ThreadIdentity, TimeUnit, VariableId,
};

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];
const LEA: &[u8] = &[0x48, 0x8d, 0x04, 0x37];
const ADD: &[u8] = &[0x48, 0x01, 0xd0];
const CALL_R15: &[u8] = &[0x41, 0xff, 0xd7];

fn v(n: u32) -> VariableId {
    VariableId(n)
}

fn snippet(stmts: Vec<Stmt>) -> Snippet {
    Snippet { stmts }
}

fn relative(opcode: &[u8], at: u64, target: u64) -> Vec<u8> {
    let end = TEXT + at + opcode.len() as u64 + 4;
    [opcode, &(target.wrapping_sub(end) as u32).to_le_bytes()].concat()
}

/// A function with one call, and offsets in its text: `from`, the start of the bytes that may be displaced before the call; `behind`, the
/// end of the call. `point` is the distance from `from` to the call.
struct Shape {
    text: Vec<u8>,
    from: usize,
    point: usize,
    behind: usize,
}

fn shape(front: &[&[u8]], first: usize, call: &[u8], behind: &[&[u8]]) -> Shape {
    let length = |parts: &[&[u8]]| parts.iter().map(|p| p.len()).sum::<usize>();
    let (from, point) = (length(&front[..first]), length(&front[first..]));
    Shape {
        text: [front.concat(), call.to_vec(), behind.concat()].concat(),
        from,
        point,
        behind: from + point + call.len(),
    }
}

/// Calls in all forms, each with enough room after the call.
fn shapes() -> Vec<Shape> {
    let behind: &[&[u8]] = &[&[0x48, 0x8d, 0x4b, 0x05], ADD, &[0xc3]];
    let absolute = [&[0xff, 0x14, 0x25], (HELPER_POINTER as u32).to_le_bytes().as_slice()].concat();
    vec![
        shape(&[LEA], 1, &relative(&[0xe8], 4, HELPER), behind),
        // call with the prefixes of a call of __tls_get_addr
        shape(&[LEA], 1, &relative(&[0x66, 0x66, 0x48, 0xe8], 4, HELPER), behind),
        shape(&[LEA], 1, &relative(&[0xff, 0x15], 4, HELPER_POINTER), behind),
        shape(&[LEA], 1, &absolute, behind),
        // call [r9 + 0x4f8], short and long
        shape(&[LEA], 1, &[0x41, 0xff, 0x91, 0xf8, 4, 0, 0], behind),
        shape(&[LEA], 1, &[0x41, 0xff, 0x94, 0x21, 0xf8, 4, 0, 0], behind),
        // call r15: once it stays in place, once it is displaced.
        shape(&[&[0x53], LEA, ADD, &[0x5b]], 1, CALL_R15, behind),
        shape(&[LEA], 0, CALL_R15, behind),
        // push r15; lea; add; call [rsp]; pop rcx
        shape(&[&[0x41, 0x57], LEA, ADD], 0, &[0xff, 0x14, 0x24], &[&[0x59], LEA, &[0xc3]]),
        // The return comes right after the call, with padding.
        shape(&[LEA], 1, &relative(&[0xe8], 4, HELPER), &[&[0xc3]]),
    ]
}

impl Shape {
    fn site(&self, at: usize, point: usize, own: usize, padding: usize, after: bool) -> Site {
        let bytes = &self.text[at..at + own];
        call_site(after, TEXT, TEXT + at as u64, point, bytes, &vec![0x90; padding])
    }

    fn before(&self) -> Site {
        self.site(self.from, self.point, self.behind - self.from, 0, false)
    }

    fn after(&self) -> Site {
        let own = self.text.len() - self.behind;
        self.site(self.behind, 0, own, if own < 5 { 8 } else { 0 }, true)
    }

    fn run(&self, w: &Woven, plans: Vec<&PatchPlan>, steps: Vec<Step>) -> Outcome {
        let mut text = self.text.clone();
        text.extend([0x90; 8]);
        Program { env: &w.env, text, plans, steps, counters: 16 }.run()
    }
}

fn steps() -> Vec<Step> {
    [0x246, 0xad7, 0x202, 0x897].map(|flags| Step::Call { target: TEXT, registers: vec![], flags }).to_vec()
}

#[test]
fn calls_of_every_shape_are_counted_and_change_nothing() {
    let argument = snippet(vec![Stmt::Set(v(0), Expr::Arg(0))]);
    let returned = snippet(vec![Stmt::Set(v(0), Expr::Return)]);
    for identity in IDENTITIES {
        for (n, shape) in shapes().iter().enumerate() {
            for after in [false, true] {
                let site = if after { shape.after() } else { shape.before() };
                let snippets = [count(), if after { returned.clone() } else { argument.clone() }];
                let mut w = weave(identity, site, &[], &snippets);
                let plain = shape.run(&w, vec![], steps());
                let out = shape.run(&w, vec![&w.weave.plan], steps());
                assert_eq!(plain.calls, out.calls, "{identity:?} {n} {after}\n{}", list(&w.weave.plan, &w.weave.woven));
                assert_eq!(plain.scratch, out.scratch);
                let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
                let rdi = image::initial(7).cast_signed();
                let sum = rdi + image::initial(6).cast_signed();
                let rax = if matches!(n, 6 | 8) { sum.wrapping_add(image::initial(2).cast_signed()) } else { sum };
                assert_eq!(out.shards[own][..2], [4, if after { rax } else { rdi }], "{identity:?} {n} {after}");

                let mut point = w.point().clone();
                let request = MiniRequest { id: 9, snippet: &count(), counters: &[3] };
                let added = add_mini(&w.env, &mut w.arena, &mut point, &request, 9).expect("there is room");
                verify_added(&w.env, &w.arena, &added, &point, &request).expect("right");
                let out = shape.run(&w, vec![&w.weave.plan, &added], steps());
                assert_eq!((&plain.calls, out.shards[own][3]), (&out.calls, 4));
                let before = point.clone();
                let removed = remove_mini(&w.arena, &mut point, 0).expect("it is there");
                verify_removed(&w.arena, &removed, &before, &point).expect("right");
                let gone = remove_points([&point]);
                verify_removal(&gone, std::slice::from_ref(&point)).expect("right");
                w.text.release_point(&point);
                let out = shape.run(&w, vec![&w.weave.plan, &added, &removed, &gone], steps());
                assert_eq!((plain.calls, [0; 4].as_slice()), (out.calls, &out.shards[own][..4]));
            }
        }
    }
}

/// Lists the write to text and the tail for each shape before its call.
#[test]
fn forms() {
    let write = |shape: &Shape| {
        let w = weave(GLIBC, shape.before(), &[], &[count()]);
        let woven = w.point();
        let listing = list(&w.weave.plan, &w.weave.woven);
        let line = |what: &str| listing.lines().find(|l| l.contains(what)).unwrap_or_default().to_owned();
        let text = line("write");
        assert_eq!(woven.resume.is_some(), !(2..=5).contains(&shapes_index(shape)), "{listing}");
        (text.split_whitespace().nth(1).unwrap_or_default().to_owned(), woven.removal.text[0].len)
    };
    let forms: Vec<_> = shapes().iter().map(write).collect();
    let at = |offset: u64| format!("{:#x}:", TEXT + offset);
    let expected = [(5, 4), (8, 4), (4, 6), (4, 7), (4, 7), (4, 8), (1, 5), (0, 5), (0, 5), (5, 4)];
    assert_eq!(forms, expected.map(|(offset, len)| (at(offset), len)));
}

fn shapes_index(shape: &Shape) -> usize {
    shapes().iter().position(|s| s.text == shape.text && s.point == shape.point).expect("one of them")
}

#[test]
fn a_call_through_the_stack_pointer_is_not_moved() {
    // push r15; lea; call [rsp]: too few bytes before the call
    let shape = shape(&[&[0x41, 0x57]], 0, &[0xff, 0x14, 0x24], &[&[0x59], LEA, &[0xc3]]);
    assert!(refusal(shape.before(), &[]).contains("stack pointer"), "{}", refusal(shape.before(), &[]));
}

#[test]
fn a_call_that_an_entry_displaces_is_woven_into_the_copy() {
    let shape = &shapes()[0];
    let env = environment(GLIBC);
    let (mut arena, mut text) = (arena(), TextSpace::new());
    // The first five bytes of this entry reach into the call.
    let entry = site(&shape.text[..16]).free(&[], true);
    let minis = [[0], [1]].map(|counters| (count(), counters));
    let minis = minis.each_ref().map(|(snippet, counters)| [MiniRequest { id: 0, snippet, counters }]);
    let sites = [shape.before(), entry];
    let request = |n: usize| PointRequest {
        site: &sites[n],
        bias: Bias(0),
        name: "f",
        minis: &minis[n],
        beside: &[],
        probe: None,
    };
    let requests = [request(0), request(1)];
    let mut both = (arena.clone(), text.clone());
    let weave = weave_points(&env, &mut both.0, &mut both.1, &requests).expect("makes sense");
    verify_weave(&env, &both.0, &both.1, &requests, &weave).expect("right");
    assert!(matches!(&weave.woven[..], [Ok(call), Ok(entry)] if call.host == entry.inner.first().copied()));
    let run = |plans| Program { env: &env, text: shape.text.clone(), plans, steps: steps(), counters: 16 }.run();
    let (plain, out) = (run(vec![]), run(vec![&weave.plan]));
    assert_eq!((plain.calls, &out.shards[2][..2]), (out.calls.clone(), [4, 4].as_slice()));

    // A call that is woven keeps its bytes until it is removed.
    let alone = weave_points(&env, &mut arena, &mut text, &requests[..1]).expect("makes sense");
    let Ok(call) = &alone.woven[0] else { panic!("{:?}", alone.woven) };
    let refused = weave_points(&env, &mut arena, &mut text, &requests[1..]).expect("makes sense");
    assert!(refused.woven[0].is_err() && refused.plan.text.is_empty(), "{:?}", refused.woven);
    text.release_point(call);
    let again = weave_points(&env, &mut arena, &mut text, &requests[1..]).expect("makes sense");
    assert!(again.woven[0].is_ok(), "{:?}", again.woven);
}

#[test]
fn a_record_opened_before_a_call_is_closed_behind_it() {
    for shape in &shapes() {
        let env = environment(GLIBC);
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let record = CallRecord {
            activations: v(0),
            kept: vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(0)],
            restore: Some(Restore::Timer(v(1), Clock::Wall)),
        };
        let prune = snippet(vec![Stmt::Prune]);
        let open = snippet(vec![Stmt::Open(record.clone(), vec![Stmt::Start(v(1), Clock::Wall)])]);
        let elapsed = Stmt::Add(v(3), Expr::Elapsed(Clock::Wall, TimeUnit::Ticks));
        let close = snippet(vec![Stmt::Close(
            record,
            vec![Stmt::Stop(v(1), Clock::Wall), Stmt::Set(v(2), Expr::Saved(KeptValue::Argument(0))), elapsed],
        )]);
        const PLACES: [u32; 4] = [4, 8, 10, 11];
        let mini = |id, snippet| MiniRequest { id, snippet, counters: &PLACES };
        let (before, after) = ([mini(1, &prune), mini(2, &open)], [mini(3, &close)]);
        let sites = [shape.before(), shape.after()];
        let request = |site, minis| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
        let requests = [request(&sites[0], &before[..]), request(&sites[1], &after[..])];
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
        if let Err(e) = verify_weave(&env, &arena, &text, &requests, &weave) {
            panic!("{e}\n{}", list(&weave.plan, &weave.woven));
        }
        assert!(weave.woven.iter().all(Result::is_ok), "{:?}", weave.woven);
        let mut code = shape.text.clone();
        code.extend([0x90; 8]);
        let run = |plans| Program { env: &env, text: code.clone(), plans, steps: steps(), counters: 16 }.run();
        let (plain, out) = (run(vec![]), run(vec![&weave.plan]));
        assert_eq!(plain.calls, out.calls);
        let own = &out.shards[2];
        // No call was left, unseen or unrecorded. The timer has stopped, with the measured time and a little more.
        assert_eq!((&own[4..7], own[8]), (&[0, 0, 0][..], 0));
        assert_eq!(own[10], image::initial(7).cast_signed());
        assert!(own[9] > 0 && own[11] >= 0, "{own:?}");
    }
}

#[test]
fn the_verifier_sees_what_is_wrong_at_a_call() {
    let shape = &shapes()[2];
    let good = || {
        let w = weave(GLIBC, shape.before(), &[], &[count()]);
        let minis = vec![(0u64, count())];
        (w, minis)
    };
    let check = |change: &dyn Fn(&mut Woven)| {
        let (mut w, minis) = good();
        change(&mut w);
        let minis: Vec<_> = minis.iter().map(|(id, s)| MiniRequest { id: *id, snippet: s, counters: &[0] }).collect();
        let requests =
            [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        verify_weave(&w.env, &w.arena, &w.text, &requests, &w.weave).map_err(|e| e.flaw.to_string())
    };
    assert_eq!(check(&|_| {}), Ok(()));
    let byte = |w: &mut Woven, at: usize, with: u8| {
        w.weave.plan.text[0].new[at] = with;
        if let Ok(point) = &mut w.weave.woven[0] {
            point.removal.text[0].old[at] = with;
        }
    };
    // A jump instead of a call; a call with another target; a call that ends earlier.
    assert!(check(&|w| byte(w, 1, 0xe9)).is_err());
    assert!(check(&|w| byte(w, 2, w.weave.plan.text[0].new[2] ^ 0x40)).is_err());
    assert!(check(&|w| byte(w, 0, 0xe8)).is_err());
    let point = |w: &mut Woven, change: fn(&mut ingraft_codegen::WovenPoint)| {
        if let Ok(point) = &mut w.weave.woven[0] {
            change(point);
        }
    };
    assert!(check(&|w| point(w, |p| p.resume = Some(p.at))).is_err());
    assert!(check(&|w| point(w, |p| p.home = p.at)).is_err());
    assert!(check(&|w| point(w, |p| p.kind = PointKind::CallAfter)).is_err());
    // The site says that control can land inside the call.
    assert!(check(&|w| w.site.landings = vec![Svma(w.site.at.0 + 2)]).is_err());
    // The tail jumps elsewhere, or pushes the address of the arena.
    let tail = |w: &mut Woven, offset: i64, with: u8| {
        let at = w.point().tail.0.wrapping_add_signed(offset);
        let code = w.weave.plan.code.iter_mut().find(|c| c.at.0 <= at && at < c.at.0 + c.bytes.len() as u64);
        let code = code.expect("the tail's code");
        let index = (at - code.at.0) as usize;
        code.bytes[index] = with;
    };
    assert!(check(&|w| tail(w, 2, 0x11)).is_err());
    assert!(check(&|w| tail(w, 1, 0x15)).is_err());
}

#[test]
fn the_return_address_is_known_whether_the_call_moves_or_stays() {
    for (n, shape) in shapes().iter().enumerate() {
        let w = weave(GLIBC, shape.before(), &[], &[count()]);
        let listing = || list(&w.weave.plan, &w.weave.woven);
        assert_eq!(w.point().returns_to, Some(Avma(TEXT + shape.behind as u64)), "{n}\n{}", listing());
        let w = weave(GLIBC, shape.after(), &[], &[count()]);
        assert_eq!(w.point().returns_to, None);
    }
}
