//! The beginnings of basic blocks as sites.

use crate::support::{TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_model::{BlockPoint, Offset, PointKind, Refusal, Svma};

fn points(elf: &TestElf) -> Result<Vec<BlockPoint>, Refusal> {
    let image = elf.image();
    image.block_points(find(&image, "f"))
}

fn starts(points: &[BlockPoint]) -> Vec<u64> {
    points.iter().map(|p| p.block.range.start.0 - TEXT).collect()
}

#[test]
fn every_block_has_a_site_or_a_reason() {
    let elf = TestElf::new().assemble("f", |a| {
        let (mut head, mut out) = (a.create_label(), a.create_label());
        a.mov(eax, 0).unwrap();
        a.set_label(&mut head).unwrap();
        a.adc(rax, qword_ptr(rsp - 8)).unwrap();
        a.dec(rdi).unwrap();
        a.je(out).unwrap();
        a.jmp(head).unwrap();
        a.set_label(&mut out).unwrap();
        a.ret().unwrap();
    });
    let points = points(&elf).unwrap();
    // The jump of two bytes is a block of its own, and so is the return.
    assert_eq!(starts(&points), [0, 5, 15, 17]);
    let head = points[1].site.as_ref().unwrap();
    assert_eq!((head.point_kind(), head.at, head.point), (PointKind::Block, Svma(TEXT + 5), 0));
    assert_eq!(head.bytes[..5], [0x48, 0x13, 0x44, 0x24, 0xf8]);
    // The carry flag is live at the head, and no register is dead that the function overwrites.
    assert!(!head.are_flags_free() && head.scratch().is_empty());
    // Nothing but the jump itself may be displaced there, as the branch leads to the return behind it.
    let jump = points[2].site.as_ref().unwrap();
    assert_eq!((jump.own, jump.bytes.len()), (2, 2));
}

#[test]
fn registers_and_flags_that_a_block_overwrites_are_free() {
    let elf = TestElf::new().assemble("f", |a| {
        let mut other = a.create_label();
        a.test(rdi, rdi).unwrap();
        a.je(other).unwrap();
        a.xor(eax, eax).unwrap();
        a.add(rax, rsi).unwrap();
        a.ret().unwrap();
        a.set_label(&mut other).unwrap();
        a.mov(eax, 7).unwrap();
        a.ret().unwrap();
    });
    let points = points(&elf).unwrap();
    let free = |n: usize| points[n].site.as_ref().map(|site| (site.scratch().to_vec(), site.are_flags_free())).unwrap();
    assert_eq!(free(1), (vec![ingraft_model::Gpr(0)], true));
    assert_eq!(free(2), (vec![ingraft_model::Gpr(0)], true));
}

/// Without a shadow stack, `rdsspq` is a nop, and the function tests the value that the register had before.
#[test]
fn a_register_that_may_not_be_overwritten_is_live() {
    let elf = TestElf::new().assemble("f", |a| {
        let (mut head, mut out) = (a.create_label(), a.create_label());
        a.xor(eax, eax).unwrap();
        a.set_label(&mut head).unwrap();
        a.rdsspq(rax).unwrap();
        a.test(rax, rax).unwrap();
        a.je(out).unwrap();
        a.mov(eax, 1).unwrap();
        a.jmp(head).unwrap();
        a.set_label(&mut out).unwrap();
        a.ret().unwrap();
    });
    let points = points(&elf).unwrap();
    let head = points[1].site.as_ref().unwrap();
    assert!(head.scratch().is_empty(), "{head:?}");
}

#[test]
fn a_system_call_stays_in_its_place() {
    let elf = TestElf::new().assemble("f", |a| {
        let mut again = a.create_label();
        a.mov(eax, 35).unwrap();
        a.set_label(&mut again).unwrap();
        a.syscall().unwrap();
        a.test(eax, eax).unwrap();
        a.js(again).unwrap();
        a.ret().unwrap();
    });
    let points = points(&elf).unwrap();
    let why = "a system call stays in its place";
    assert_eq!(points[1].site, Err(Refusal::NotDisplaceable { offset: Offset(5), why }));
    assert!(points[0].site.is_ok());
    let why = "it is behind a system call, after which the stack may be gone";
    assert_eq!(points[2].site, Err(Refusal::NotDisplaceable { offset: Offset(7), why }));
}

#[test]
fn blocks_are_refused_where_a_jump_may_lead_anywhere() {
    let elf = TestElf::new().assemble("f", |a| {
        a.lea(rcx, qword_ptr(TEXT + 0x40)).unwrap();
        a.movsxd(rax, dword_ptr(rcx + rdi * 4)).unwrap();
        a.add(rax, rsi).unwrap();
        a.jmp(rax).unwrap();
        a.xor(eax, eax).unwrap();
        a.ret().unwrap();
    });
    assert!(matches!(points(&elf), Err(Refusal::UnresolvedJump { .. })), "{:?}", points(&elf));
}

#[test]
fn no_springboard_begins_behind_a_prefix_over_which_control_jumps() {
    let elf = TestElf::new().assemble("f", |a| {
        let mut behind = a.create_label();
        a.nop_1(qword_ptr(rax)).unwrap();
        a.test(rsi, rsi).unwrap();
        a.jne(behind).unwrap();
        a.db(&[0xf0]).unwrap();
        a.set_label(&mut behind).unwrap();
        a.add(qword_ptr(rdi), 1).unwrap();
        a.ret().unwrap();
    });
    let image = elf.image();
    let f = find(&image, "f");
    let points = image.block_points(f).unwrap();
    // The instruction is a block with its prefix, and another one without it.
    let starts = starts(&points);
    let index = starts.iter().position(|start| starts.contains(&(start + 1))).expect("a block inside of another");
    let behind = &points[index + 1];
    assert!(matches!(behind.site, Err(Refusal::NotDisplaceable { .. })), "{behind:?}");
    // The return is a byte long, and may not be displaced together with that block.
    let exits = image.exit_sites(f).unwrap();
    assert!(exits.iter().flatten().all(|site| site.at.0 > behind.block.range.start.0), "{exits:?}");
}
