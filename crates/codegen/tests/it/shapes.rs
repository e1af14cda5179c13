//! Generated code of every shape, as listings in `tests/golden/codegen`. `UPDATE_EXPECT=1` rewrites the files.

use crate::support::*;
use expect_test::expect_file;
use ingraft_codegen::verify::{verify_added, verify_removal, verify_removed, verify_weave};
use ingraft_codegen::{
    Arena, MiniRequest, PointRequest, TextSpace, add_mini, remove_mini, remove_points, weave_points,
};
use ingraft_model::snippet::Appended;
use ingraft_model::{
    Avma, Bias, BinaryOp, Capacity, Expr, Gpr, KeyField, KeyParts, ObjectKind, ObjectState, Places, Ranges, Site,
    Snippet, Stmt, Svma, TableShape, ThreadIdentity, UnaryOp, VariableId,
};

/// mov rax,[rdi]; add rax,rsi; ret
const PLAIN: [u8; 7] = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];

fn golden(name: &str, woven: &Woven) {
    let removal = match &woven.weave.woven[0] {
        Ok(point) => {
            let removal = remove_points([point]);
            verify_removal(&removal, std::slice::from_ref(point)).expect("the removal is right");
            format!("\nremoval\n{}", list_removal(&removal))
        }
        Err(_) => String::new(),
    };
    let path = format!("{}/../../tests/golden/codegen/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&(list(&woven.weave.plan, &woven.weave.woven) + &removal));
}

#[test]
fn plain_count_by_thread_id() {
    golden("count_fs_offset", &weave(GLIBC, site(&PLAIN), &[], &[count()]));
}

#[test]
fn plain_count_by_fs_base() {
    golden("count_fs_base", &weave(ThreadIdentity::FsBase, site(&PLAIN), &[], &[count()]));
}

#[test]
fn plain_count_locked() {
    golden("count_locked", &weave(ThreadIdentity::Locked, site(&PLAIN), &[], &[count()]));
}

#[test]
fn no_scratch_register_and_live_flags() {
    let mut s = site(&PLAIN);
    s = s.free(&[], false);
    golden("saves", &weave(GLIBC, s.clone(), &[], &[count()]));
    golden("saves_locked", &weave(ThreadIdentity::Locked, s, &[], &[count()]));
}

#[test]
fn high_scratch_register() {
    let mut s = site(&PLAIN);
    s = s.free(&[Gpr(2), Gpr(11)], true);
    golden("scratch_r11", &weave(GLIBC, s, &[], &[count(), count()]));
}

#[test]
fn short_function_uses_its_padding() {
    let mut s = site(&[0x89, 0xf8, 0xc3, 0x90, 0x90, 0x90]);
    s.own = 3;
    golden("padding", &weave(GLIBC, s, &[], &[count()]));
}

#[test]
fn short_function_hops_over_an_island() {
    let mut s = site(&[0x89, 0xf8, 0xc3]);
    s.landings = vec![Svma(0x401003)];
    golden("island", &weave(GLIBC, s, &[padding(0x401040, &[0xcc; 8])], &[count()]));
}

/// The short springboard reaches the island, and no other write would have to reach the arena.
#[test]
fn what_is_out_of_reach_leaves_nothing_behind() {
    let mut site = site(&[0xf3, 0xc3]);
    site.landings = vec![Svma(0x401002)];
    let (env, count) = (environment(GLIBC), count());
    let mut arena = Arena::new(Avma(0x2_0000_0000)..Avma(0x2_0010_0000));
    let mut text = TextSpace::new();
    text.add_padding(Bias(0), &[padding(0x401040, &[0xcc; 8])]);
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    assert!(weave.woven[0].is_err());
    assert_eq!(weave.plan.text, []);
    verify_weave(&env, &arena, &text, &requests, &weave).expect("there is nothing to be wrong");
}

/// Lists only the displaced instructions: with locked counters, the listing contains nothing else.
fn relocated(name: &str, bytes: &[u8]) {
    golden(name, &weave(ThreadIdentity::Locked, site(bytes), &[], &[count()]));
}

#[test]
fn relocation() {
    // lea rax,[rip+0x10]; ret
    relocated("relocate_rip", &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3]);
    // cmp dword [rip+0x10],7; ret
    relocated("relocate_rip_immediate", &[0x83, 0x3d, 0x10, 0, 0, 0, 7, 0xc3]);
    // test rdi,rdi; je +0x20; ret
    relocated("relocate_jcc", &[0x48, 0x85, 0xff, 0x74, 0x20, 0xc3]);
    // jrcxz +0x20; mov eax,edi; nop; ret
    relocated("relocate_jrcxz", &[0xe3, 0x20, 0x89, 0xf8, 0x90, 0xc3]);
    // jecxz +0x20; mov eax,edi; ret
    relocated("relocate_jecxz", &[0x67, 0xe3, 0x20, 0x89, 0xf8, 0xc3]);
    // loopne +0x20; mov eax,edi; nop
    relocated("relocate_loop", &[0xe0, 0x20, 0x89, 0xf8, 0x90]);
    // push rbx; call +0x100: the original return address is pushed
    relocated("relocate_call", &[0x53, 0xe8, 0, 1, 0, 0]);
    // call [rip+0x100]
    relocated("relocate_call_memory", &[0xff, 0x15, 0, 1, 0, 0]);
    // mov ebx,ecx; sub esp,8; call r15
    relocated("relocate_call_register", &[0x89, 0xcb, 0x48, 0x83, 0xec, 0x08, 0x41, 0xff, 0xd7]);
    // jmp +0x100 (a thunk)
    relocated("relocate_jmp", &[0xe9, 0, 1, 0, 0]);
    // jmp [rip+0x100]
    relocated("relocate_jmp_memory", &[0xff, 0x25, 0, 1, 0, 0]);
    // mov eax,39; syscall; ret
    relocated("relocate_syscall", &[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3]);
    // xor eax,eax; syscall; ret
    relocated("relocate_syscall_displaced", &[0x31, 0xc0, 0x0f, 0x05, 0x90, 0xc3]);
    // inc qword gs:[0x10012100]; ret: the slow routine would take it for a snippet
    let gs = [0x65, 0x48, 0xff, 0x04, 0x25, 0, 0x21, 0x01, 0x10, 0xc3];
    golden("tail_like_a_snippet", &weave(GLIBC, site(&gs), &[], &[count()]));
}

#[test]
fn a_call_far_up_gets_its_whole_return_address() {
    let env = environment(ThreadIdentity::Locked);
    // push rbx; call +0x100
    let site = site(&[0x53, 0xe8, 0, 1, 0, 0]);
    let bias = Bias(0x5555_5555_4000);
    let base = 0x5555_5600_0000;
    let (mut arena, mut text) = (Arena::new(Avma(base)..Avma(base + 0x10000)), TextSpace::new());
    let snippet = count();
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias, name: "f", minis: &minis, beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
    golden("relocate_call_high", &Woven { env, arena, text, site: site.clone(), weave });
}

/// Entry of 6 bytes, with a branch back to it.
fn looping(name: &str, change: impl FnOnce(&mut Site)) {
    let mut s = site(&PLAIN[..6]);
    s.landings = vec![Svma(0x401006)];
    change(&mut s);
    golden(name, &weave(ThreadIdentity::Locked, s, &[padding(0x401060, &[0xcc; 8])], &[count()]));
}

#[test]
fn own_branches_back_to_the_entry() {
    // jne -0x106 (rel32) at 0x401100
    looping("loop_retarget", |s| {
        *s = s.clone().back(vec![back_branch(0x401100, 0x401100, 0x401106, &[0x0f, 0x85, 0xfa, 0xfe, 0xff, 0xff])])
    });
    // dec ecx; lea eax,[rsi+5]; jne at 0x401035
    looping("loop_range", |s| {
        *s = s.clone().back(vec![back_branch(
            0x401035,
            0x401030,
            0x401037,
            &[0xff, 0xc9, 0x8d, 0x46, 0x05, 0x75, 0xc9],
        )]);
    });
    // jmp at 0x401030, with dead padding after it
    looping("loop_range_padding", |s| {
        *s = s.clone().back(vec![back_branch(0x401030, 0x401030, 0x401036, &[0xeb, 0xce, 0xcc, 0xcc, 0xcc, 0xcc])]);
    });
    // Only the branch may be displaced: it leads to an island.
    looping("loop_hop", |s| *s = s.clone().back(vec![back_branch(0x401030, 0x401030, 0x401032, &[0x75, 0xce])]));
    // dec ecx; jne to the entry, right after the springboard, which displaces it
    let bytes = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xff, 0xc9, 0x75, 0xf6, 0xc3];
    let mut s = site(&bytes);
    s = s.back(vec![back_branch(0x401008, 0x401008, 0x40100a, &[0x75, 0xf6])]);
    golden("loop_extend", &weave(ThreadIdentity::Locked, s, &[], &[count()]));
    // The branch is displaced anyway, and leads to the endbr64. After the endbr64: dec ecx; jne -8; nop; ret.
    let mut s = site(&[0xff, 0xc9, 0x75, 0xf8, 0x90, 0xc3]);
    s.at = Svma(0x401004);
    s = s.back(vec![back_branch(0x401006, 0x401006, 0x401008, &[0x75, 0xf8])]);
    golden("loop_displaced", &weave(ThreadIdentity::Locked, s, &[], &[count()]));
    // loop to itself; mov eax,edi; nop; ret: several instructions replace the first one, and one of them leads back to it.
    let s = site(&[0xe2, 0xfe, 0x89, 0xf8, 0x90, 0xc3]);
    let s = s.back(vec![back_branch(0x401000, 0x401000, 0x401002, &[0xe2, 0xfe])]);
    golden("loop_to_itself", &weave(ThreadIdentity::Locked, s, &[], &[count()]));
}

fn v(n: u32) -> VariableId {
    VariableId(n)
}

fn op(op: BinaryOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Box::new(a), Box::new(b))
}

#[test]
fn snippets() {
    use BinaryOp as B;
    use Expr::{Arg, Const, Variable};
    let mut listing = String::new();
    let append = |time, stack, waits, bytes: &[u8]| {
        let capacity = Capacity::of_bytes(1 << 16).expect("a capacity");
        Stmt::Append(v(0), capacity, Appended { time, stack, bytes: bytes.to_vec(), waits })
    };
    let sum_at = |key, amount| Stmt::AddAt(v(0), TableShape::SUMS, vec![KeyField::Number(key)], amount);
    let pair = TableShape { parts: KeyParts::of([false, false]).expect("two"), ..TableShape::SUMS };
    let pair_at = Stmt::AddAt(v(0), pair, vec![KeyField::Number(Arg(0)), KeyField::Number(Arg(1))], Arg(2));
    let shift = op(B::ShiftLeft, Const(1), op(B::And, Arg(3), Const(7)));
    let range = op(B::LogicalAnd, op(B::GreaterOrEqual, Arg(1), Const(16)), op(B::Less, Arg(1), Const(4096)));
    for (identity, stmts) in [
        (GLIBC, vec![Stmt::Add(v(0), Arg(1))]),
        (GLIBC, vec![Stmt::Add(v(0), Const(1)), Stmt::Add(v(1), Const(-3))]),
        (GLIBC, vec![Stmt::Set(v(0), Const(1 << 40))]),
        (GLIBC, vec![sum_at(Arg(0), Const(1))]),
        (GLIBC, vec![sum_at(op(B::Add, Arg(0), Const(8)), Arg(3))]),
        (GLIBC, vec![pair_at]),
        (GLIBC, vec![Stmt::AddIn(v(0), Ranges::new(-4, 30, 10).expect("granules"), Arg(0), Arg(1))]),
        (GLIBC, vec![Stmt::AddIn(v(0), Ranges::numbers(5).expect("granules"), Const(2), Const(1))]),
        (GLIBC, vec![append(false, false, false, &[0x17])]),
        (GLIBC, vec![append(false, true, false, &[0xf0, 0x01])]),
        (GLIBC, vec![append(true, false, false, &[0xf0, 0x01])]),
        (GLIBC, vec![append(false, false, true, &[0x17])]),
        (GLIBC, vec![Stmt::Mark(v(0), Arg(0), ObjectState { kind: ObjectKind::RwLock, retired: true })]),
        (GLIBC, vec![Stmt::If(Expr::ValueAt(v(0), Places::FEW, Box::new(Arg(0))), vec![sum_at(Arg(1), Const(2))])]),
        (GLIBC, vec![Stmt::If(Expr::ValueIn(v(0), Ranges::numbers(5).expect("granules"), Box::new(Arg(0))), vec![])]),
        (GLIBC, vec![Stmt::If(range, vec![Stmt::Add(v(0), Const(1))])]),
        (GLIBC, vec![Stmt::Add(v(0), op(B::Divide, Arg(2), Arg(7)))]),
        (
            GLIBC,
            vec![Stmt::Set(
                v(0),
                op(B::Multiply, op(B::Add, Variable(v(1)), Arg(0)), op(B::Subtract, Arg(4), Const(1))),
            )],
        ),
        (GLIBC, vec![Stmt::Add(v(0), shift)]),
        (GLIBC, vec![Stmt::Add(v(0), op(B::Add, Const(2), Expr::Unary(UnaryOp::Negate, Box::new(Const(2)))))]),
        (ThreadIdentity::Locked, vec![Stmt::If(op(B::Equal, Arg(0), Const(0)), vec![Stmt::Add(v(0), Arg(6))])]),
    ] {
        let snippet = Snippet { stmts };
        let w = weave(identity, site(&PLAIN), &[], std::slice::from_ref(&snippet));
        let code = w.point().minis[0].code.as_ref().expect("more than a count");
        let code = [code.own(), code.range.clone()].map(|range| list_range(&w.weave.plan, &w.weave.woven, &range));
        listing += &format!("{snippet}\n{}\n", code.concat());
    }
    let path = format!("{}/../../tests/golden/codegen/snippets.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&listing);
}

#[test]
fn chains() {
    let mut w = weave(GLIBC, site(&PLAIN), &[], &[count()]);
    let mut point = w.point().clone();
    let snippet = Snippet { stmts: vec![Stmt::Add(v(0), Expr::Arg(1))] };
    let mut listing = String::new();
    for id in [7, 8] {
        let request = MiniRequest { id, snippet: if id == 7 { &snippet } else { &count() }, counters: &[5] };
        let plan = add_mini(&w.env, &mut w.arena, &mut point, &request, 0).expect("there is room");
        verify_added(&w.env, &w.arena, &plan, &point, &request).expect("right");
        listing += &format!("add {id}\n{}\n", list(&plan, &[Ok(Box::new(point.clone()))]));
    }
    for id in [7, 0, 8] {
        let before = point.clone();
        let plan = remove_mini(&w.arena, &mut point, id).expect("it is there");
        verify_removed(&w.arena, &plan, &before, &point).expect("right");
        listing += &format!("remove {id}\n{}\n", list_removal(&plan));
    }
    let path = format!("{}/../../tests/golden/codegen/chains.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&listing);
}

#[test]
fn the_loaders_hook_waits_for_the_engine() {
    let hook = site(&PLAIN);
    let snippet = Snippet { stmts: vec![Stmt::Await] };
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[] }];
    let requests =
        [PointRequest { site: &hook, bias: Bias(0), name: "_dl_debug_state", minis: &minis, beside: &[], probe: None }];
    let mut listing = String::new();
    for identity in [GLIBC, ThreadIdentity::Locked] {
        let env = ingraft_codegen::Environment { loader: Some(Avma(0x7fff_f7ff_e118)), ..environment(identity) };
        let (mut arena, mut text) = (arena(), TextSpace::new());
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
        verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
        listing += &format!("{identity:?}\n{}\n", list(&weave.plan, &weave.woven));
        // Without the address of the loader's word, the code is refused; with another address, the proof fails.
        let mut arena_of_nobody = Arena::new(arena.range());
        let nowhere = ingraft_codegen::Environment { loader: None, ..env };
        assert!(weave_points(&nowhere, &mut arena_of_nobody, &mut TextSpace::new(), &requests).is_err());
        let elsewhere = ingraft_codegen::Environment { loader: Some(Avma(0x7fff_f7ff_e11c)), ..env };
        assert!(verify_weave(&elsewhere, &arena, &text, &requests, &weave).is_err());
        assert_eq!(system_calls(&weave).len(), 3);
        refuses_other_calls(&env, &arena, &text, &requests, &weave);
    }
    let path = format!("{}/../../tests/golden/codegen/loader.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&listing);
}

#[test]
fn an_append_waits_for_room() {
    let appended = Appended { time: false, stack: false, bytes: vec![0x17], waits: true };
    let capacity = Capacity::of_bytes(1 << 16).expect("a capacity");
    let snippet = Snippet { stmts: vec![Stmt::Append(v(0), capacity, appended)] };
    let (env, site) = (environment(GLIBC), site(&PLAIN));
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let (mut arena, mut text) = (arena(), TextSpace::new());
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
    verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
    // The time and the wait.
    assert_eq!(system_calls(&weave).len(), 2);
    refuses_other_calls(&env, &arena, &text, &requests, &weave);
    let path = format!("{}/../../tests/golden/codegen/room.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&list(&weave.plan, &weave.woven));
}

/// Flips each bit of the code. If the verifier accepts the result, it must make no other system calls.
fn refuses_other_calls(
    env: &ingraft_codegen::Environment,
    arena: &Arena,
    text: &TextSpace,
    requests: &[PointRequest<'_>],
    weave: &ingraft_codegen::Weave,
) {
    let right = system_calls(weave);
    for piece in 0..weave.plan.code.len() {
        for bit in 0..8 * weave.plan.code[piece].bytes.len() {
            let mut wrong = weave.clone();
            wrong.plan.code[piece].bytes[bit / 8] ^= 1 << (bit % 8);
            if verify_weave(env, arena, text, requests, &wrong).is_ok() {
                let calls = system_calls(&wrong);
                assert!(calls.iter().all(|call| right.contains(call)), "bit {bit} of piece {piece}: {calls:?}");
            }
        }
    }
}

/// System calls of a plan, each with the moves right before it.
fn system_calls(weave: &ingraft_codegen::Weave) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for code in &weave.plan.code {
        let mut moves: Vec<String> = Vec::new();
        for i in &mut iced_x86::Decoder::with_ip(64, &code.bytes, code.at.0, iced_x86::DecoderOptions::NONE) {
            match i.mnemonic() {
                iced_x86::Mnemonic::Syscall => calls.push(std::mem::take(&mut moves)),
                iced_x86::Mnemonic::Mov if i.memory_base() == iced_x86::Register::None => moves.push(text_of(&i)),
                _ => moves.clear(),
            }
        }
    }
    calls
}

#[test]
fn refusals_say_why() {
    let short = |n: usize| Site { landings: vec![Svma(0x401000 + n as u64)], ..site(&PLAIN[..n]) };
    let with = |bytes: &[u8]| site(bytes);
    let mut shadow = site(&PLAIN[..6]);
    shadow.landings = vec![Svma(0x401006)];
    shadow = shadow.back(vec![back_branch(0x401030, 0x401030, 0x401032, &[0x75, 0xce])]);
    let straddling = Site { at: Svma(0x401ffd), ..site(&PLAIN) };
    for (site, expected) in [
        (short(3), "too short: 3 bytes before the end of the function, and no padding or island within reach"),
        (
            Site { landings: vec![Svma(0x401003)], ..site(&PLAIN) },
            "control can arrive at +0x3, inside the bytes that a springboard needs",
        ),
        (straddling, "the springboard would straddle two pages"),
        (
            exit_site(0x401000, 0x401000, 0, &[0x75, 0x20, 0x90, 0x90, 0x90], &[]),
            "the instruction at +0x2 cannot be displaced: it is behind a conditional jump out of the function",
        ),
        (
            exit_site(0x401000, 0x401000, 2, &[0x48, 0x10, 0x80, 0, 0, 0, 0, 0xc3], &[]),
            "the instruction at +0x2 cannot be displaced: no instruction begins there",
        ),
        (with(&[0x06, 0x90, 0x90, 0x90, 0x90]), "an unknown instruction at +0x0"),
        (
            with(&[0x90, 0xcc, 0x90, 0x90, 0x90]),
            "the instruction at +0x1 cannot be displaced: an interrupt or breakpoint",
        ),
        (
            with(&[0x0f, 0x0b, 0x90, 0x90, 0x90]),
            "the instruction at +0x0 cannot be displaced: it faults on purpose, and a handler may look at where",
        ),
        (with(&[0xc7, 0xf8, 0, 0, 0, 0]), "the instruction at +0x0 cannot be displaced: a hardware transaction"),
        (with(&[0xf4, 0x90, 0x90, 0x90, 0x90]), "the instruction at +0x0 cannot be displaced: it is privileged"),
        (
            with(&[0xff, 0x54, 0x24, 0x08, 0x90]),
            "the instruction at +0x0 cannot be displaced: a call through the stack pointer",
        ),
        (
            with(&[0x67, 0x8b, 0x05, 0, 0, 0, 0]),
            "the instruction at +0x0 cannot be displaced: an operand relative to eip",
        ),
        (
            with(&[0xeb, 0x01, 0x90, 0x90, 0x90, 0x90]),
            "too short: 2 bytes before code that something else may reach, and no padding or island within reach",
        ),
        (
            with(&[0x90, 0x90, 0x90, 0x75, 0xfc, 0xc3]),
            "control can arrive at +0x1, inside the bytes that a springboard needs",
        ),
        (shadow, "its own branch at +0x30 back to the entry cannot be told from a call"),
        (
            with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]),
            "not a function body: the way back from signal handlers, which unwinders know by its bytes",
        ),
        (Site { at: Svma(u64::MAX - 3), ..site(&PLAIN) }, "not a function body: an address beyond user space"),
    ] {
        assert_eq!(refusal(site, &[]), expected);
    }
}

#[test]
fn a_shadow_stack_forbids_displaced_calls() {
    let env = ingraft_codegen::Environment { shadow_stack: true, ..environment(GLIBC) };
    let site = site(&[0x53, 0xe8, 0, 1, 0, 0]);
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &[], beside: &[], probe: None }];
    let weave = weave_points(&env, &mut arena(), &mut TextSpace::new(), &requests).expect("the request makes sense");
    let refusal = weave.woven[0].as_ref().expect_err("refused").to_string();
    assert!(refusal.contains("shadow stack"), "{refusal}");
}

#[test]
fn two_functions_cannot_share_bytes() {
    let (first, mut second) = (site(&PLAIN), site(&PLAIN));
    second.at = Svma(0x401003);
    let request = |site, name| PointRequest { site, bias: Bias(0), name, minis: &[], beside: &[], probe: None };
    let requests = [request(&first, "one"), request(&second, "two")];
    let weave = weave_points(&environment(GLIBC), &mut arena(), &mut TextSpace::new(), &requests).expect("woven");
    let refusal = weave.woven[1].as_ref().expect_err("refused").to_string();
    assert_eq!(refusal, "overlaps the springboard of one");
}

#[test]
fn a_full_arena_refuses_the_rest_and_gives_their_text_back() {
    let sites: Vec<_> = (0..20)
        .map(|i| Site { at: Svma(0x401000 + 16 * i), function: Svma(0x401000 + 16 * i), ..site(&PLAIN) })
        .collect();
    let snippet = count();
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests: Vec<_> = sites
        .iter()
        .map(|site| PointRequest { site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None })
        .collect();
    let env = environment(GLIBC);
    let mut text = TextSpace::new();
    let mut small = Arena::new(Avma(0x500000)..Avma(0x500400));
    let weave = weave_points(&env, &mut small, &mut text, &requests).expect("woven");
    let woven = weave.woven.iter().filter(|w| w.is_ok()).count();
    assert!((5..20).contains(&woven), "{woven}");
    assert_eq!(weave.woven[19], Err(ingraft_model::Refusal::NoRoomNearby));
    let rest = weave_points(&env, &mut arena(), &mut text, &requests[woven..]).expect("woven");
    assert!(rest.woven.iter().all(Result::is_ok));
}

/// No address suits the links of so many snippets at once, because each must lie within a page.
#[test]
fn a_point_may_have_thousands_of_snippets() {
    let flagged = Stmt::If(Expr::Variable(v(1)), vec![Stmt::Add(v(0), Expr::Const(1))]);
    let snippets = vec![Snippet { stmts: vec![flagged] }; 4000];
    let site = site(&PLAIN);
    let minis: Vec<_> =
        (0..).zip(&snippets).map(|(id, snippet)| MiniRequest { id, snippet, counters: &[0, 1] }).collect();
    let requests = [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let (env, mut arena) = (environment(GLIBC), Arena::new(Avma(0x500000)..Avma(0x900000)));
    let mut text = TextSpace::new();
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
    verify_weave(&env, &arena, &text, &requests, &weave).expect("proven");
    let woven = weave.woven[0].as_ref().expect("woven");
    let links = woven.minis.iter().filter_map(|mini| mini.code.as_ref()).map(|code| code.link.0);
    assert_eq!(links.filter(|link| link % 4096 <= 4096 - 5).count(), snippets.len());
}

/// A breakpoint behind the code of a point does not belong to the point.
#[test]
fn a_claim_does_not_end_in_a_gap() {
    let w = weave(GLIBC, site(&PLAIN), &[], &[count()]);
    let minis = [MiniRequest { id: 0, snippet: &count(), counters: &[0] }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let end = w.point().removal.code.end.0;
    let mut gapped = w.weave.clone();
    let piece = gapped.plan.code.iter_mut().find(|piece| piece.at.0 + piece.bytes.len() as u64 == end);
    piece.expect("the code of the point").bytes.push(0xcc);
    verify_weave(&w.env, &w.arena, &w.text, &requests, &gapped).expect("the gap belongs to nothing");
    gapped.woven[0].as_mut().expect("woven").removal.code.end.0 += 1;
    assert!(verify_weave(&w.env, &w.arena, &w.text, &requests, &gapped).is_err());
}

#[test]
fn what_was_removed_can_be_woven_again_in_the_same_place() {
    let mut w = weave(GLIBC, site(&PLAIN), &[], &[count()]);
    let point = w.point().clone();
    let used = w.arena.used();
    let snippet = count();
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let again = weave_points(&w.env, &mut w.arena, &mut w.text, &requests).expect("the request makes sense");
    assert!(again.woven[0].is_err(), "its bytes are taken");
    for range in &remove_points([&point]).retired {
        w.arena.release(range);
    }
    w.text.release_point(&point);
    let again = weave_points(&w.env, &mut w.arena, &mut w.text, &requests).expect("the request makes sense");
    assert_eq!(again.woven[0].as_deref(), Ok(&point));
    assert_eq!(w.arena.used(), used);
    assert_eq!(again.plan.code.len(), 1, "the slow routine is there already");
}

#[test]
fn senseless_requests_are_errors() {
    let site = site(&PLAIN);
    let weave = |snippet: &Snippet, counters: &[u32], env| {
        let minis = [MiniRequest { id: 0, snippet, counters }];
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let result = weave_points(&env, &mut arena(), &mut TextSpace::new(), &requests);
        result.map(|_| ()).expect_err("refused").to_string()
    };
    let env = environment(GLIBC);
    assert_eq!(weave(&count(), &[], env), "variable v0 of a snippet is bound to no counter");
    assert_eq!(weave(&count(), &[500_000], env), "counter 500000 does not fit: a shard holds 104688");
    let deep = (0..100).fold(Expr::Arg(0), |e, _| Expr::Unary(UnaryOp::Negate, Box::new(e)));
    let deep = Snippet { stmts: vec![Stmt::Add(v(0), deep)] };
    assert_eq!(weave(&deep, &[0], env), "a snippet is nested more than 64 levels deep");
    let mut high = env;
    high.data.base = Avma(0x7fff_0000);
    assert_eq!(
        weave(&count(), &[0], high),
        "the data area at 0x7fff0000 is unusable: shards 0 and 1 are not below 2 GiB"
    );
}

#[test]
fn thousands_of_snippets_at_one_point() {
    let site = site(&[0x90; 5]).free(&[Gpr(0)], true);
    let (env, count) = (environment(GLIBC), count());
    for n in [100, 1000, 2000, 5000] {
        let mini = |id| MiniRequest { id, snippet: &count, counters: &[7] };
        let minis: Vec<MiniRequest<'_>> = (0..n).map(mini).collect();
        let (mut arena, mut text) = (Arena::new(Avma(0x80_0000)..Avma(0xa0_0000)), TextSpace::new());
        let requests =
            [PointRequest { site: &site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("makes sense");
        verify_weave(&env, &arena, &text, &requests, &weave).expect("right");
        // In longer code, some link lies on two pages wherever the code begins.
        assert!(weave.woven[0].is_ok() || n > 1000, "{n} snippets: {:?}", weave.woven[0].as_ref().err());
    }
}
