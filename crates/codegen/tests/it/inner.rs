//! Points without room of their own: exits and calls in copies that other points hold, displaced jumps that must miss a point, islands in
//! displaced ranges, and the end of a function. The tests run them on the processor, and give the verifier false claims.

use crate::support::image::{HELPER, Outcome, Program, Step, TEXT};
use crate::support::random::Field;
use crate::support::*;
use ingraft_codegen::verify::{verify_added, verify_removal, verify_removed_within, verify_weave};
use ingraft_codegen::{
    Arena, MiniRequest, PointRequest, TextSpace, Weave, WovenPoint, add_mini, remove_points, remove_within,
    weave_points,
};
use ingraft_model::{
    Avma, BackBranch, Bias, BinaryOp, Expr, FreeRegisters, IslandRoom, PatchPlan, PcMove, Refusal, Site, SiteKind,
    Snippet, Stmt, Svma, ThreadIdentity, VariableId,
};

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];

/// A function: its bytes, its entry and its exits in order, and the number of times that a call passes each of them.
struct Function {
    text: Vec<u8>,
    sites: Vec<Site>,
    passes: Vec<i64>,
}

fn jump(opcode: &[u8], at: u64) -> Vec<u8> {
    let end = TEXT + at + opcode.len() as u64 + 4;
    [opcode, &(HELPER.wrapping_sub(end) as u32).to_le_bytes()].concat()
}

/// Entry that displaces all of these bytes.
fn entry(bytes: &[u8], padding: &[u8]) -> Site {
    let own = bytes.len() as u8;
    Site { bytes: [bytes, padding].concat(), ..site(bytes) }.least(own).free(&[], false)
}

/// Exit that the entry displaces.
fn within(text: &[u8], at: usize, len: usize) -> Site {
    let kind = SiteKind::Exit { within: true, free: FreeRegisters::default() };
    Site { kind, ..exit_site(TEXT, TEXT + at as u64, 0, &text[at..at + len], &[]) }
}

/// Functions whose entry displaces the exits: a return, jumps near and through memory, and a conditional jump, taken and not taken.
fn short_functions() -> Vec<Function> {
    let padding = [0x90; 16];
    let plain = |body: &[u8], exit: usize| {
        let text = [body, &padding].concat();
        let sites = vec![entry(body, &padding), within(&text, exit, body.len() - exit)];
        Function { text, sites, passes: vec![1, 1] }
    };
    let conditional = |condition: u8, taken: bool| {
        let head = [&[0x48, 0x39, 0xf7][..], &jump(&[0x0f, 0x80 | condition], 3)].concat();
        let rest = [0xb8, 7, 0, 0, 0, 0xc3];
        let text = [&head[..], &rest].concat();
        let last = exit_site(TEXT, TEXT + 9, 5, &rest, &[]);
        let sites = vec![entry(&head, &[]), within(&text, 3, 6), last];
        Function { text, sites, passes: vec![1, i64::from(taken), i64::from(!taken)] }
    };
    vec![
        plain(&[0x48, 0x8d, 0x04, 0x37, 0xc3], 4),
        plain(&[0xc3], 0),
        plain(&[0xc2, 0, 0], 0),
        plain(&[&[0x48, 0x8d, 0x04, 0x37][..], &jump(&[0xe9], 4)].concat(), 4),
        plain(&jump(&[0xe9], 0), 0),
        plain(&[0xff, 0x24, 0x25, 0xf8, 0x07, 0x70, 0x00], 0),
        plain(&[0x48, 0x8d, 0x04, 0x37, 0x41, 0xff, 0xe7], 4),
        conditional(7, true),
        conditional(6, false),
    ]
}

/// An exit of four bytes. In reach is only a range that can be displaced to make room for an island.
fn with_island_room() -> Function {
    // lea rax,[rdi+rsi]; add rax,rdx; xor ecx,ecx; cmp rdi,rsi; ja 1f; inc rax; 1: dec rax; ret; int3
    let range: &[u8] = &[0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xd0, 0x31, 0xc9, 0x48, 0x39, 0xf7];
    let text = [range, &[0x77, 0x03], &[0x48, 0xff, 0xc0], &[0x48, 0xff, 0xc8, 0xc3], &[0xcc]].concat();
    let exit = exit_site(TEXT, TEXT + 17, 3, &text[17..21], &[]);
    let island_rooms = vec![IslandRoom { at: Svma(TEXT), bytes: text[..12].to_vec() }];
    Function { text, sites: vec![Site { island_rooms, ..exit }], passes: vec![1] }
}

/// Functions without a return, which continue in the code after them, through a long `nop` or two.
fn run_off() -> [Function; 2] {
    let padding: [&[u8]; 2] = [&[0x0f, 0x1f, 0x80, 0, 0, 0, 0], &[0x0f, 0x1f, 0, 0x0f, 0x1f, 0x40, 0]];
    padding.map(|padding| {
        let text = [LEA, padding, ADD, &[0xc3]].concat();
        let exit = exit_site(TEXT, TEXT + 4, 0, &text[4..11], &[]);
        Function { text, sites: vec![exit], passes: vec![1] }
    })
}

/// A branch before the exit, taken and not taken.
fn branched() -> Vec<Function> {
    let make = |condition: u8, stays: i64| {
        // lea rax; cmp rdi,rsi; jcc 1f; ret; 1: mov eax,7; ret
        let text = [
            &[0x48, 0x8d, 0x04, 0x37][..],
            &[0x48, 0x39, 0xf7],
            &[0x70 | condition, 1],
            &[0xc3],
            &[0xb8, 7, 0, 0, 0, 0xc3],
        ]
        .concat();
        let exit = exit_site(TEXT, TEXT + 4, 5, &text[4..10], &[]);
        let last = exit_site(TEXT, TEXT + 10, 5, &text[10..16], &[]);
        Function { text, sites: vec![exit, last], passes: vec![stays, 1 - stays] }
    };
    vec![make(7, 0), make(6, 1)]
}

/// Site before or after a call, with a range of the text.
fn beside_call(text: &[u8], range: std::ops::Range<usize>, point: usize, padding: usize, after: bool) -> Site {
    let (from, end) = (TEXT + range.start as u64, range.end);
    call_site(after, TEXT, from, point, &text[range], &text[end..end + padding])
}

const LEA: &[u8] = &[0x48, 0x8d, 0x04, 0x37];
const CMP: &[u8] = &[0x48, 0x39, 0xf7];
const ADD: &[u8] = &[0x48, 0x01, 0xd0];

/// Two calls three bytes apart, and an exit right after the second one, with all points.
fn neighbours() -> Function {
    // push rbx; lea rax,[rdi+rsi]; call; mov rax,rbx; call; pop rbx; ret
    let head = [&[0x53][..], LEA, &jump(&[0xe8], 5), &[0x48, 0x89, 0xd8]].concat();
    let text = [&head[..], &jump(&[0xe8], 13), &[0x5b, 0xc3], &[0x90; 8]].concat();
    let entry = entry(&text[..5], &[]).least(0);
    let sites = vec![
        entry,
        beside_call(&text, 5..10, 0, 0, false),
        beside_call(&text, 10..18, 0, 0, true),
        beside_call(&text, 13..18, 0, 0, false),
        beside_call(&text, 18..20, 0, 8, true),
        exit_site(TEXT, TEXT + 18, 1, &text[18..20], &text[20..]),
    ];
    Function { text, sites, passes: vec![1; 6] }
}

/// A jump past a call to the return address, taken and not taken.
fn jumped_past() -> Vec<Function> {
    let make = |condition: u8, calls: i64| {
        // lea rax; nop; cmp rdi,rsi; jcc 1f; call; 1: add; add; ret
        let head = [LEA, &[0x90], CMP, &[0x70 | condition, 5], &jump(&[0xe8], 10)].concat();
        let text = [&head[..], ADD, ADD, &[0xc3], &[0x90; 8]].concat();
        let around = BackBranch {
            at: Svma(TEXT + 8),
            from: Svma(TEXT + 5),
            until: Svma(TEXT + 10),
            bytes: text[5..10].to_vec(),
        };
        let behind = beside_call(&text, 15..22, 0, 0, true).back(vec![around]);
        let exit = exit_site(TEXT, TEXT + 21, 0, &text[21..22], &text[22..]);
        let sites = vec![entry(&text[..5], &[]).least(0), beside_call(&text, 10..15, 0, 0, false), behind, exit];
        Function { text, sites, passes: vec![1, calls, calls, 1] }
    };
    vec![make(7, 0), make(6, 1)]
}

/// The same jump after another call, whose springboard displaces the jump.
fn displaced_jump() -> Vec<Function> {
    let make = |condition: u8, calls: i64| {
        // lea rax; nop; call; cmp rdi,rsi; jcc 1f; call; 1: add; add; ret
        let head = [LEA, &[0x90], &jump(&[0xe8], 5), CMP, &[0x70 | condition, 5], &jump(&[0xe8], 15)].concat();
        let text = [&head[..], ADD, ADD, &[0xc3], &[0x90; 8]].concat();
        let around = BackBranch {
            at: Svma(TEXT + 13),
            from: Svma(TEXT + 10),
            until: Svma(TEXT + 15),
            bytes: text[10..15].to_vec(),
        };
        let sites =
            vec![beside_call(&text, 10..20, 0, 0, true), beside_call(&text, 20..27, 0, 0, true).back(vec![around])];
        Function { text, sites, passes: vec![1, calls] }
    };
    vec![make(7, 0), make(6, 1)]
}

fn all() -> Vec<Function> {
    let more = jumped_past().into_iter().chain(displaced_jump());
    short_functions()
        .into_iter()
        .chain([with_island_room(), neighbours()])
        .chain(run_off())
        .chain(branched())
        .chain(more)
        .collect()
}

const CALLS: [u32; 4] = [0x246, 0xad7, 0x202, 0x897];

impl Function {
    fn run(&self, identity: ThreadIdentity, plans: Vec<&PatchPlan>) -> Outcome {
        let env = environment(identity);
        let steps = CALLS.map(|flags| Step::Call { target: TEXT, registers: vec![], flags }).to_vec();
        Program { env: &env, text: self.text.clone(), plans, steps, counters: 8 }.run()
    }

    fn expected(&self) -> Vec<i64> {
        self.passes.iter().map(|passes| passes * CALLS.len() as i64).collect()
    }
}

fn own(identity: ThreadIdentity) -> usize {
    if identity == ThreadIdentity::Locked { 0 } else { 2 }
}

#[test]
fn every_shape_is_counted_and_changes_nothing() {
    let v = VariableId(0);
    let met = Expr::Binary(BinaryOp::GreaterOrEqual, Box::new(Expr::Variable(v)), Box::new(Expr::Const(0)));
    let gated = Snippet { stmts: vec![Stmt::If(met, vec![Stmt::Add(v, Expr::Const(1))])] };
    for (identity, snippet) in IDENTITIES.into_iter().flat_map(|i| [(i, count()), (i, gated.clone())]) {
        for (n, f) in all().iter().enumerate() {
            let field = Field::with(identity, f.sites.clone(), &[], snippet.clone());
            assert!(field.weave.woven.iter().all(Result::is_ok), "{n}: {:?}", field.weave.woven);
            let plain = f.run(identity, vec![]);
            let out = f.run(identity, vec![&field.weave.plan]);
            assert_eq!(plain.calls, out.calls, "{identity:?} {n}\n{}", list(&field.weave.plan, &field.weave.woven));
            assert_eq!(plain.scratch, out.scratch);
            assert_eq!(out.shards[own(identity)][..f.sites.len()], f.expected(), "{identity:?} {n}");
            let points: Vec<_> = field.weave.woven.iter().flatten().cloned().collect();
            let gone = remove_points(&points);
            verify_removal(&gone, &points).expect("right");
            let out = f.run(identity, vec![&field.weave.plan, &gone]);
            assert_eq!((plain.calls, [0; 8].as_slice()), (out.calls, out.shards[own(identity)].as_slice()));
        }
    }
}

#[test]
fn exits_come_to_a_woven_entry_and_go_before_it() {
    let result = Snippet { stmts: vec![Stmt::Set(VariableId(0), Expr::Return)] };
    for identity in IDENTITIES {
        for (n, f) in short_functions().iter().enumerate() {
            let env = environment(identity);
            let (mut arena, mut text) = (arena(), TextSpace::new());
            let counting = count();
            let mini = |id, counters| MiniRequest { id, snippet: &counting, counters };
            let minis = [mini(1, &[0])];
            let requests =
                [PointRequest { site: &f.sites[0], bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
            let first = weave_points(&env, &mut arena, &mut text, &requests).expect("makes sense");
            verify_weave(&env, &arena, &text, &requests, &first).expect("right");
            let entry = first.woven[0].clone().expect("woven");
            // Without the entry, the exit cannot be woven.
            let minis = [mini(2, &[1])];
            let request = |beside| {
                [PointRequest { site: &f.sites[1], bias: Bias(0), name: "f", minis: &minis, beside, probe: None }]
            };
            let alone = weave_points(&env, &mut arena.clone(), &mut text.clone(), &request(&[])).expect("makes sense");
            assert!(alone.woven[0].is_err() && alone.plan.text.is_empty());

            let beside = [&*entry];
            let requests = request(&beside);
            let second = weave_points(&env, &mut arena, &mut text, &requests).expect("makes sense");
            verify_weave(&env, &arena, &text, &requests, &second).expect("right");
            let mut exit = second.woven[0].clone().expect("woven");
            let request = MiniRequest { id: 3, snippet: &result, counters: &[2] };
            let added = add_mini(&env, &mut arena, &mut exit, &request, 9).expect("there is room");
            verify_added(&env, &arena, &added, &exit, &request).expect("right");

            let plain = f.run(identity, vec![]);
            let calls = CALLS.len() as i64;
            let counted = |plans: Vec<&PatchPlan>, expected: [i64; 2]| {
                let out = f.run(identity, plans);
                assert_eq!(plain.calls, out.calls, "{identity:?} {n}");
                assert_eq!(out.shards[own(identity)][..2], expected, "{identity:?} {n}");
                out.shards[own(identity)][2]
            };
            counted(vec![&first.plan], [calls, 0]);
            let passes = f.passes[1] * calls;
            let returned = counted(vec![&first.plan, &second.plan, &added], [calls, passes]);
            assert_eq!(returned != 0, passes != 0);
            let removed = remove_within(&exit, |_| true, false).expect("it has a host");
            verify_removed_within(&removed, &exit, |_| true, false).expect("right");
            counted(vec![&first.plan, &second.plan, &added, &removed], [calls, 0]);
            // The entry may not be removed without the exit.
            assert!(verify_removal(&remove_points([&exit]), std::slice::from_ref(&exit)).is_err());
            let both = [entry, exit];
            let gone = remove_points(&both);
            verify_removal(&gone, &both).expect("right");
            let mut plans = vec![&first.plan, &second.plan, &added, &gone];
            let leftover = both[1].host.expect("it has one").copy;
            assert!(gone.text.iter().all(|w| w.at != leftover), "what goes away is not written");
            counted(std::mem::take(&mut plans), [0, 0]);
        }
    }
}

#[test]
fn a_jump_that_is_too_far_away_is_a_matter_of_its_point() {
    let bias = Bias(1 << 33);
    let arena = |offset: i64| {
        let start = Svma(TEXT).to_avma(bias).offset(offset);
        Arena::new(start..start.offset(0x10_0000))
    };
    let env = environment(GLIBC);
    let counting = count();
    let minis = [MiniRequest { id: 1, snippet: &counting, counters: &[0] }];
    for f in displaced_jump() {
        let (mut above, mut below, mut text) = (arena(0x7000_0000), arena(-0x7000_0000), TextSpace::new());
        let first = [PointRequest { site: &f.sites[0], bias, name: "f", minis: &minis, beside: &[], probe: None }];
        let host = weave_points(&env, &mut above, &mut text, &first).expect("makes sense");
        verify_weave(&env, &above, &text, &first, &host).expect("right");
        let beside = [host.woven[0].as_deref().expect("woven")];
        let elsewhere = Svma(TEXT + 0x100);
        let other = Site { at: elsewhere, function: elsewhere, ..entry(&[LEA, &[0x90]].concat(), &[]) };
        let both = [
            PointRequest { site: &f.sites[1], beside: &beside, ..first[0] },
            PointRequest { site: &other, ..first[0] },
        ];
        let weave = weave_points(&env, &mut below, &mut text, &both).expect("makes sense");
        verify_weave(&env, &below, &text, &both, &weave).expect("right");
        assert_eq!(weave.woven[0].as_ref().err(), Some(&Refusal::NoRoomNearby));
        assert!(weave.woven[1].is_ok());
        // The refused point's text is free again. The point can be woven where the jump reaches.
        let alone = weave_points(&env, &mut above, &mut text, &both[..1]).expect("makes sense");
        verify_weave(&env, &above, &text, &both[..1], &alone).expect("right");
        assert!(alone.woven[0].is_ok());
    }
}

#[test]
fn threads_go_on_where_the_copy_is() {
    let f = &short_functions()[7];
    let field = Field::new(GLIBC, f.sites.clone(), &[]);
    let exit = field.weave.woven[1].as_ref().expect("woven");
    let host = exit.host.expect("it has one");
    let (text, copy) = host.next.expect("it is conditional");
    let alone = remove_within(exit, |_| true, false).expect("it has a host");
    let to = |plan: &PatchPlan, at: Avma| plan.moves.iter().find(|m| m.from == at).map(|m| m.to);
    assert_eq!(to(&alone, exit.base), Some(host.copy));
    assert_eq!(to(&remove_points([exit]), exit.base), Some(host.original));
    assert_eq!((text.0, copy.0), (host.original.0 + 6, host.copy.0 + 6));
    let mut wrong = alone.clone();
    wrong.moves.iter_mut().filter(|m| m.to == host.copy).for_each(|m| m.to = host.original);
    assert!(verify_removed_within(&wrong, exit, |_| true, false).is_err());
    let mut wrong = alone;
    wrong.text[0].new[0] ^= 1;
    assert!(verify_removed_within(&wrong, exit, |_| true, false).is_err());
}

#[test]
fn a_point_goes_from_jumps_that_others_displace() {
    for identity in IDENTITIES {
        for f in displaced_jump() {
            let field = Field::new(identity, f.sites.clone(), &[]);
            let [first, second] = [0, 1].map(|i| field.weave.woven[i].clone().expect("woven"));
            assert_eq!((second.redirected.as_slice(), second.host), (&first.inner[..1], None));
            let calls = CALLS.len() as i64;
            let alone = remove_within(&second, |_| true, false).expect("the jump stays displaced");
            verify_removed_within(&alone, &second, |_| true, false).expect("right");
            let out = f.run(identity, vec![&field.weave.plan, &alone]);
            assert_eq!(f.run(identity, vec![]).calls, out.calls);
            assert_eq!(out.shards[own(identity)][..2], [calls, 0]);
            for i in 0..alone.text.len() {
                let mut wrong = alone.clone();
                wrong.text[i].new[1] ^= 1;
                assert!(verify_removed_within(&wrong, &second, |_| true, false).is_err());
            }
            // The point that displaces the jump may not be removed without this one. If both are removed, the removed code is not written
            // to.
            assert!(verify_removal(&remove_points([&second]), std::slice::from_ref(&second)).is_err());
            assert_eq!(remove_within(&second, |_| false, false), None);
        }
    }
}

#[test]
fn a_verifier_that_is_lied_to_finds_it() {
    for f in all() {
        let field = Field::new(GLIBC, f.sites.clone(), &[]);
        let lie = |change: &dyn Fn(&mut Weave)| {
            let mut weave = field.weave.clone();
            change(&mut weave);
            let changed = weave.plan != field.weave.plan || weave.woven != field.weave.woven;
            changed && field.verify(&weave).is_ok()
        };
        let shown = list(&field.weave.plan, &field.weave.woven);
        for i in 0..field.weave.plan.text.len() {
            for bit in 0..8 * usize::from(field.weave.plan.text[i].len) {
                assert!(!lie(&|w| w.plan.text[i].new[bit / 8] ^= 1 << (bit % 8)), "new {i} {bit}\n{shown}");
                assert!(!lie(&|w| w.plan.text[i].old[bit / 8] ^= 1 << (bit % 8)), "old {i} {bit}\n{shown}");
            }
        }
        for i in 0..field.weave.plan.moves.len() {
            assert!(!lie(&|w| w.plan.moves[i].to.0 ^= 1), "move {i}\n{shown}");
            let touched = field.weave.plan.text.iter().any(|w| {
                let from = field.weave.plan.moves[i].from;
                w.at <= from && from.0 < w.at.0 + u64::from(w.len)
            });
            assert!(
                !touched || !lie(&|w| w.plan.moves.retain(|m| *m != field.weave.plan.moves[i])),
                "no move {i}\n{shown}"
            );
        }
        for p in 0..field.weave.woven.len() {
            let change = |how: &dyn Fn(&mut WovenPoint)| lie(&|w| w.woven[p].as_deref_mut().map_or((), how));
            assert!(!change(&|p| p.inner.iter_mut().for_each(|e| e.original.0 ^= 1)), "{shown}");
            assert!(!change(&|p| p.inner.iter_mut().for_each(|e| e.copy.0 ^= 1)), "{shown}");
            assert!(!change(&|p| p.inner.iter_mut().for_each(|e| e.bytes[1] ^= 1)), "{shown}");
            assert!(!change(&|p| p.inner.iter_mut().for_each(|e| e.next = None)), "{shown}");
            assert!(!change(&|p| p.inner.iter_mut().for_each(|e| e.leads = e.leads.map(|a| a.offset(1)))), "{shown}");
            assert!(!change(&|p| p.redirected.clear()), "{shown}");
            assert!(!change(&|p| p.redirected.iter_mut().for_each(|e| e.copy.0 += 1)), "{shown}");
            assert!(!change(&|p| p.rooms.clear()), "{shown}");
            assert!(!change(&|p| p.host = None), "{shown}");
            assert!(!change(&|p| p.host.iter_mut().for_each(|e| e.copy.0 += 1)), "{shown}");
            assert!(!change(&|p| p.base.0 += 1), "{shown}");
            let moves = field.weave.woven[p].as_ref().expect("woven").removal.moves.clone();
            for (i, gone) in moves.iter().enumerate() {
                assert!(!change(&|p| p.removal.moves[i].to.0 ^= 1), "removal move {i}\n{shown}");
                assert!(!change(&|p| p.removal.moves.retain(|m| m != gone)), "no removal move {i}\n{shown}");
            }
        }
    }
}

#[test]
fn who_stands_in_what_makes_room_has_not_passed_the_point() {
    let f = with_island_room();
    let field = Field::new(GLIBC, f.sites.clone(), &[]);
    let exit = field.weave.woven[0].as_ref().expect("woven");
    let range = Avma(TEXT)..Avma(TEXT + 12);
    let (aside, own): (Vec<&PcMove>, Vec<&PcMove>) =
        exit.removal.moves.iter().filter(|m| m.from >= exit.tail).partition(|m| range.contains(&m.to));
    assert!(aside.len() > 1 && !own.is_empty(), "{}", list(&field.weave.plan, &field.weave.woven));
    assert!(aside.iter().all(|m| !exit.is_passed_at(m.from)));
    assert!(own.iter().all(|m| m.to >= range.end));
    assert!(exit.is_passed_at(exit.tail) && !exit.is_passed_at(exit.base));
}
