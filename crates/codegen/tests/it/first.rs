//! Springboards behind the first instruction of a function, which stays in place and executable: other tools execute the file's first
//! instruction elsewhere and go on behind it.

use crate::support::image::{Outcome, Program, SCRATCH, Step, TEXT};
use crate::support::*;
use expect_test::expect_file;
use ingraft_codegen::verify::{Flaw, verify_removal, verify_weave};
use ingraft_codegen::{MiniRequest, PointRequest, TextSpace, WovenPoint, add_mini, remove_points, weave_points};
use ingraft_model::{
    Avma, Bias, Expr, FirstEffect, FirstInstruction, FreeRegisters, Gpr, PcMove, Scalar, Site, SiteKind, Snippet, Stmt,
    Svma, ThreadIdentity, VariableId,
};

/// push rbx; mov rbx,rdi; xor eax,eax; add rax,rbx; pop rbx; ret
const PUSHES: [u8; 11] = [0x53, 0x48, 0x89, 0xfb, 0x31, 0xc0, 0x48, 0x01, 0xd8, 0x5b, 0xc3];
/// sub rsp,24; mov [rsp],rdi; mov rax,[rsp]; add rsp,24; ret
const RESERVES: [u8; 17] =
    [0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x3c, 0x24, 0x48, 0x8b, 0x04, 0x24, 0x48, 0x83, 0xc4, 0x18, 0xc3];
/// sub rsp,0x1000; mov [rsp],rdi; mov rax,[rsp]; add rsp,0x1000; ret
const RESERVES_MUCH: [u8; 23] = [
    0x48, 0x81, 0xec, 0, 0x10, 0, 0, 0x48, 0x89, 0x3c, 0x24, 0x48, 0x8b, 0x04, 0x24, 0x48, 0x81, 0xc4, 0, 0x10, 0, 0,
    0xc3,
];
/// xor eax,eax; cmp rdi,rsi; setb al; ret
const CLEARS: [u8; 9] = [0x31, 0xc0, 0x48, 0x39, 0xf7, 0x0f, 0x92, 0xc0, 0xc3];
/// cmp rdi,rsi; setb al; movzx eax,al; ret
const COMPARES: [u8; 10] = [0x48, 0x39, 0xf7, 0x0f, 0x92, 0xc0, 0x0f, 0xb6, 0xc0, 0xc3];
/// mov rax,[rsp]; xor rax,rsi; add rax,rdi; ret
const LOADS: [u8; 11] = [0x48, 0x8b, 0x04, 0x24, 0x48, 0x31, 0xf0, 0x48, 0x01, 0xf8, 0xc3];
/// inc rdi; mov rax,rdi; adc rax,0; ret
const CHANGES: [u8; 11] = [0x48, 0xff, 0xc7, 0x48, 0x89, 0xf8, 0x48, 0x83, 0xd0, 0, 0xc3];
/// mov [rdi],esi; mov rax,rdi; nop; nop; nop; ret
const STORES: [u8; 9] = [0x89, 0x37, 0x48, 0x89, 0xf8, 0x90, 0x90, 0x90, 0xc3];
/// mov edi,7; lea rax,[rdi+rsi]; add rax,rdi; ret
const LOSES: [u8; 13] = [0xbf, 7, 0, 0, 0, 0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xf8, 0xc3];

/// A first instruction that is repeated after the stack pointer was raised by so many bytes.
fn repeated(len: u8, lowers: u32) -> FirstInstruction {
    FirstInstruction {
        len,
        effect: FirstEffect::Repeated { lowers },
        changes_input: false,
        accesses_memory: false,
        may_fault: false,
        must_stay: false,
    }
}

/// A first instruction that runs once.
fn once(len: u8, scratch: &[Gpr], flags: bool) -> FirstInstruction {
    FirstInstruction {
        effect: FirstEffect::Once { free: FreeRegisters { scratch: scratch.to_vec(), flags } },
        ..repeated(len, 0)
    }
}

fn behind(bytes: &[u8], first: &FirstInstruction) -> Site {
    let mut site = site(bytes);
    if let SiteKind::Entry { first: known, .. } = &mut site.kind {
        *known = Some(first.clone());
    }
    site
}

/// Each shape with its first instruction.
fn shapes() -> Vec<(Vec<u8>, FirstInstruction)> {
    let of = |bytes: &[u8], len, lowers| (bytes.to_vec(), repeated(len, lowers));
    vec![
        of(&PUSHES, 1, 8),
        of(&RESERVES, 4, 24),
        of(&RESERVES_MUCH, 7, 0x1000),
        of(&CLEARS, 2, 0),
        of(&COMPARES, 3, 0),
        (LOADS.to_vec(), FirstInstruction { accesses_memory: true, ..once(4, &[], true) }),
        (LOADS.to_vec(), FirstInstruction { accesses_memory: true, ..once(4, &[], false) }),
        (CHANGES.to_vec(), FirstInstruction { changes_input: true, ..once(3, &[Gpr(0)], false) }),
        (LOSES.to_vec(), FirstInstruction { changes_input: true, ..repeated(5, 0) }),
    ]
}

fn run(w: &Woven, text: &[u8], plans: bool, steps: Vec<Step>) -> Outcome {
    let plans = if plans { vec![&w.weave.plan] } else { Vec::new() };
    Program { env: &w.env, text: text.to_vec(), plans, steps, counters: 4 }.run()
}

fn golden(name: &str, woven: &Woven) {
    let removal = remove_points([woven.point()]);
    verify_removal(&removal, std::slice::from_ref(woven.point())).expect("the removal is right");
    let path = format!("{}/../../tests/golden/codegen/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let removal = format!("\nremoval\n{}", list_removal(&removal));
    expect_file![path].assert_eq(&(list(&woven.weave.plan, &woven.weave.woven) + &removal));
}

#[test]
fn the_first_instruction_keeps_its_bytes_and_its_effect() {
    for identity in [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked] {
        for (bytes, first) in shapes() {
            for (scratch, flags) in [(vec![Gpr(0)], true), (vec![], false)] {
                let w = weave(identity, behind(&bytes, &first).free(&scratch, flags), &[], &[count(), count()]);
                let point = w.point();
                assert_eq!((point.at, point.first.as_ref()), (Avma(TEXT + u64::from(first.len)), Some(&first)));
                assert!(w.weave.plan.text.iter().all(|write| write.at >= point.at), "{bytes:x?}");
                let steps: Vec<_> =
                    [0x247, 0x246, 0xad7].map(|flags| Step::Call { target: TEXT, registers: vec![], flags }).to_vec();
                let (woven, plain) = (run(&w, &bytes, true, steps.clone()), run(&w, &bytes, false, steps));
                let own = if identity == ThreadIdentity::Locked { 0 } else { 2 };
                assert_eq!(woven.shards[own], [3, 3, 0, 0], "{bytes:x?}");
                assert_eq!(plain.calls, woven.calls, "{bytes:x?}");
            }
        }
    }
}

/// A tool executes the first instruction elsewhere and goes on behind it: here a jump of the test stands for the tool.
#[test]
fn what_goes_on_behind_the_first_instruction_is_counted_once() {
    let first = repeated(1, 8);
    let w = weave(GLIBC, behind(&PUSHES, &first), &[], &[count()]);
    // push rbx; jmp TEXT + 1
    let away = TEXT + 0x100;
    let mut text = PUSHES.to_vec();
    text.resize(0x100, 0xcc);
    let displacement = (TEXT + 1).wrapping_sub(away + 6) as u32;
    text.extend([&[0x53, 0xe9][..], &displacement.to_le_bytes()].concat());
    let steps = vec![Step::Call { target: away, registers: vec![], flags: 0x246 }; 4];
    let (woven, plain) = (run(&w, &text, true, steps.clone()), run(&w, &text, false, steps));
    assert_eq!(woven.shards[2][0], 4);
    assert_eq!(plain.calls, woven.calls);
}

#[test]
fn listings() {
    let free = |bytes: &[u8], first: &FirstInstruction| behind(bytes, first).free(&[Gpr(0)], true);
    let pushes = repeated(1, 8);
    golden("behind_push", &weave(GLIBC, free(&PUSHES, &pushes), &[], &[count()]));
    let clears = repeated(2, 0);
    golden("behind_xor", &weave(GLIBC, free(&CLEARS, &clears), &[], &[count()]));
    // push rbx; dec edi; jnz (to the push); the branch back makes no call
    let loops = [0x53, 0x5b, 0xff, 0xcf, 0x90, 0x90, 0x90, 0x90, 0x75, 0xf6, 0xc3];
    let back = back_branch(TEXT + 8, TEXT + 8, TEXT + 10, &loops[8..10]);
    golden("behind_push_loop", &weave(GLIBC, free(&loops, &pushes).back(vec![back]), &[], &[count()]));
}

#[test]
fn a_branch_back_to_the_first_instruction_is_no_call() {
    let loops = [0x53, 0x5b, 0xff, 0xcf, 0x90, 0x90, 0x90, 0x90, 0x75, 0xf6, 0xc3];
    let back = back_branch(TEXT + 8, TEXT + 8, TEXT + 10, &loops[8..10]);
    let first = repeated(1, 8);
    let w = weave(GLIBC, behind(&loops, &first).back(vec![back]), &[], &[count()]);
    let step = Step::Call { target: TEXT, registers: vec![(7, 5)], flags: 0x246 };
    let out = run(&w, &loops, true, vec![step; 3]);
    assert_eq!(out.shards[2][0], 3);
    let moves = &w.weave.plan.moves;
    assert!(moves.contains(&PcMove { from: Avma(TEXT), to: w.point().tail }), "{moves:?}");
}

#[test]
fn short_functions_use_padding_and_islands() {
    // push rbx; pop rax; ret
    let first = repeated(1, 8);
    let mut padded = behind(&[0x53, 0x58, 0xc3, 0x90, 0x90, 0x90], &first);
    padded.own = 3;
    assert_eq!(weave(GLIBC, padded, &[], &[count()]).point().at, Avma(TEXT + 1));
    let mut short = behind(&[0x53, 0x58, 0xc3], &first);
    short.landings = vec![Svma(TEXT + 3)];
    let w = weave(GLIBC, short.clone(), &[padding(TEXT + 0x40, &[0xcc; 8])], &[count()]);
    assert_eq!((w.point().at, w.point().first.as_ref()), (Avma(TEXT + 1), Some(&first)));
    // Where control arrives behind it, the springboard lies over the first instruction.
    let mut entered = behind(&PUSHES, &first);
    entered.landings = vec![Svma(TEXT + 5)];
    let w = weave(GLIBC, entered.clone(), &[], &[count()]);
    assert_eq!((w.point().at, w.point().first.as_ref()), (Avma(TEXT), None));
    if let SiteKind::Entry { first: Some(first), .. } = &mut entered.kind {
        first.must_stay = true;
    }
    assert!(refusal(entered, &[]).contains("uprobe"));
}

fn reads_argument() -> Snippet {
    Snippet { stmts: vec![Stmt::Add(VariableId(0), Expr::Arg(0))] }
}

#[test]
fn an_argument_that_is_overwritten_is_not_read() {
    let first = FirstInstruction { changes_input: true, ..repeated(5, 0) };
    let w = weave(GLIBC, behind(&LOSES, &first), &[], &[reads_argument()]);
    assert_eq!(w.point().first, None, "over the first instruction, the argument is still there");
    let step = Step::Call { target: TEXT, registers: vec![(7, 40)], flags: 0x246 };
    assert_eq!(run(&w, &LOSES, true, vec![step]).shards[2][0], 40);
    let mut w = weave(GLIBC, behind(&LOSES, &first), &[], &[count()]);
    let mut point = w.point().clone();
    let request = MiniRequest { id: 9, snippet: &reads_argument(), counters: &[1] };
    assert!(add_mini(&w.env, &mut w.arena, &mut point, &request, 1).is_err());
}

#[test]
fn memory_that_is_stored_to_is_not_read() {
    let first = FirstInstruction { changes_input: true, accesses_memory: true, ..once(2, &[], false) };
    let site = behind(&STORES, &first);
    let read = Expr::Load(Avma(SCRATCH), Scalar::INT);
    let reads = Snippet { stmts: vec![Stmt::Add(VariableId(0), read)] };
    assert_eq!(weave(GLIBC, site.clone(), &[], &[count()]).point().at, Avma(TEXT + 2));
    assert_eq!(weave(GLIBC, site, &[], &[reads]).point().first, None, "the memory still is as the caller left it");
}

fn lower(first: &mut FirstInstruction, lowers: u32) {
    first.effect = FirstEffect::Repeated { lowers };
}

fn flaw(site: &Site, snippets: &[Snippet], change: impl Fn(&mut WovenPoint)) -> Option<Flaw> {
    let env = environment(GLIBC);
    let (mut arena, mut text) = (arena(), TextSpace::new());
    let minis: Vec<_> = snippets.iter().map(|snippet| MiniRequest { id: 1, snippet, counters: &[0, 1] }).collect();
    let requests = [PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let mut weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    weave.woven.iter_mut().flatten().map(Box::as_mut).for_each(change);
    verify_weave(&env, &arena, &text, &requests, &weave).err().map(|e| e.flaw)
}

#[test]
fn false_claims_about_the_first_instruction_are_found() {
    for (bytes, first) in shapes() {
        let site = behind(&bytes, &first);
        assert_eq!(flaw(&site, &[count()], |_| {}), None);
        let changes: [fn(&mut FirstInstruction); 3] = [
            |first| first.len += 1,
            |first| lower(first, first.lowers() + 8),
            |first| lower(first, first.lowers() ^ 8),
        ];
        for change in changes {
            assert!(flaw(&site, &[count()], |p| p.first.iter_mut().for_each(change)).is_some(), "{bytes:x?}");
        }
        assert!(flaw(&site, &[count()], |p| p.first = None).is_some(), "{bytes:x?}");
    }
    // The site itself is wrong: the generator believes it, the verifier does not.
    let wrong = [
        (&PUSHES[..], repeated(1, 0)),
        (&PUSHES, repeated(1, 16)),
        (&LOSES, repeated(5, 0)),
        // inc rdi; mov rax,rdi; ret
        (&[0x48, 0xff, 0xc7, 0x48, 0x89, 0xf8, 0x90, 0x90, 0xc3], repeated(3, 0)),
        // push rbx: it moves the stack pointer
        (&PUSHES, once(1, &[], false)),
        // mov [rsp-8],rdi: it stores to the red zone
        (&[0x48, 0x89, 0x7c, 0x24, 0xf8, 0x48, 0x8b, 0x44, 0x24, 0xf8, 0xc3], once(5, &[], false)),
        // mov [rdi],esi: it stores to memory
        (&STORES, FirstInstruction { accesses_memory: true, ..once(2, &[], false) }),
        (&STORES, FirstInstruction { changes_input: true, ..once(2, &[], false) }),
        // inc rdi, which overwrites an argument
        (&CHANGES, once(3, &[], false)),
        (&CHANGES, once(4, &[], false)),
        // mov [rdi],eax; mov rax,rdi; ret
        (&[0x89, 0x07, 0x48, 0x89, 0xf8, 0x90, 0x90, 0x90, 0xc3], repeated(2, 0)),
    ];
    for (bytes, first) in wrong {
        assert!(flaw(&behind(bytes, &first), &[count()], |_| {}).is_some(), "{bytes:x?}");
    }
}
