//! The places before and after calls of small hand-written functions.

use crate::support::{TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_model::{BackBranch, PointKind, Refusal, Site, Svma};

type Points = Vec<Result<Option<Site>, Refusal>>;

fn points(elf: &TestElf, after: bool) -> Points {
    let image = elf.image();
    let points = image.call_points(find(&image, "f"), after).unwrap();
    let check = |site: &Site| {
        let kind = if after { PointKind::CallAfter } else { PointKind::CallBefore };
        assert_eq!(site.point_kind(), kind);
        assert_eq!(image.bytes_at(site.at, site.bytes.len()), Some(&site.bytes[..]));
    };
    points.iter().filter_map(|p| p.site.as_ref().ok()?.as_ref()).for_each(check);
    points.into_iter().map(|p| p.site).collect()
}

/// (first byte, point, own bytes) of each site; the first byte counts from the beginning of the text.
fn places(points: Points) -> Vec<(u64, u8, u8)> {
    let site = |s: Result<Option<Site>, Refusal>| s.unwrap().map_or((0, 0, 0), |s| (s.at.0 - TEXT, s.point, s.own));
    points.into_iter().map(site).collect()
}

/// Nine bytes of code that end with a call: more than an entry's springboard displaces.
fn begin(a: &mut CodeAssembler) {
    a.push(rbp).unwrap();
    a.mov(rbp, rsp).unwrap();
    a.call(TEXT + 0x100).unwrap();
}

fn function(build: impl FnOnce(&mut CodeAssembler)) -> TestElf {
    let elf = TestElf::new().assemble("f", |a| {
        begin(a);
        build(a);
    });
    elf.function("g", &[0xc3])
}

#[test]
fn long_calls_are_reached_themselves_and_short_ones_from_the_front() {
    let elf = function(|a| {
        // call [rip + 0x1000]
        a.db(&[0xff, 0x15, 0, 0x10, 0, 0]).unwrap();
        a.mov(edi, 1).unwrap();
        a.call(rax).unwrap();
        a.mov(rdi, rbx).unwrap();
        a.call(qword_ptr(rbx + 8)).unwrap();
        a.mov(edi, 1).unwrap();
        a.call(qword_ptr(rsp + 8)).unwrap();
        a.mov(rdi, rbx).unwrap();
        a.call(qword_ptr(rbx + 0x1000)).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(
        places(points(&elf, false)),
        [(4, 0, 5), (9, 0, 6), (15, 5, 7), (22, 3, 6), (28, 5, 9), (40, 0, 6)],
        "the third call stays, the fourth is displaced, the fifth must stay"
    );
}

#[test]
fn what_leads_through_the_stack_pointer_needs_room_in_front() {
    let elf = function(|a| {
        a.call(qword_ptr(rsp + 8)).unwrap();
        a.ret().unwrap();
    });
    let expected = Refusal::TooShort { available: 0, next: "the next place where control can arrive" };
    assert_eq!(points(&elf, false)[1], Err(expected));
}

#[test]
fn who_jumps_to_a_return_address_is_told() {
    let elf = function(|a| {
        let mut again = a.create_label();
        a.mov(ebx, 7).unwrap();
        a.call(TEXT + 0x100).unwrap();
        a.set_label(&mut again).unwrap();
        a.dec(ebx).unwrap();
        a.jne(again).unwrap();
        a.call(rax).unwrap();
        a.ud2().unwrap();
    });
    let behind = points(&elf, true);
    assert!(matches!(&behind[0], Ok(Some(site)) if site.at.0 == TEXT + 9 && site.own >= 5), "{behind:?}");
    let Ok(Some(site)) = &behind[1] else { panic!("{behind:?}") };
    let jump =
        BackBranch { at: Svma(TEXT + 21), from: Svma(TEXT + 21), until: Svma(TEXT + 23), bytes: vec![0x75, 0xfc] };
    assert_eq!((site.at.0, site.back_branches()), (TEXT + 19, [jump].as_slice()));
    assert_eq!(behind[2], Ok(None), "it never returns");
}

#[test]
fn behind_a_call_at_the_end_nothing_is_needed() {
    let elf = function(|_| {});
    assert_eq!(points(&elf, true), [Ok(None)]);
}
