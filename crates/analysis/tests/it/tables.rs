//! Jump tables in the forms of compilers: targets that are proven, and forms that must stay refused.

use crate::support::{RODATA, TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_model::{Cfg, EdgeKind, EdgeTarget, Refusal, WayInReason};

/// Address of the first case, behind the code in front.
const CASES: u64 = TEXT + 0x80;

/// Address of the default case, behind three others of six bytes each.
const DEFAULT: u64 = CASES + 18;

fn addresses(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| target.to_le_bytes()).collect()
}

fn distances(targets: &[u64], base: u64) -> Vec<u8> {
    targets.iter().flat_map(|target| (target.wrapping_sub(base) as u32).to_le_bytes()).collect()
}

/// Entries of the jump table: the three cases, then an address in another function. The content alone does not show where the table ends.
const TARGETS: [u64; 4] = [CASES, CASES + 6, CASES + 12, OTHER];
/// Address of the function `g`, which is not a target of the jump.
const OTHER: u64 = CASES + 0x20;

/// The graph of a function that begins with some code, which may branch to the default case, and ends with the cases.
fn graph(code: impl FnOnce(&mut CodeAssembler, u64), data: &[u8]) -> Cfg {
    let elf = TestElf::new().assemble("f", |a| {
        code(a, DEFAULT);
        let len = a.assemble(TEXT).unwrap().len();
        a.db(&vec![0xcc; (CASES - TEXT) as usize - len]).unwrap();
        for value in 1..4 {
            a.mov(eax, value).unwrap();
            a.ret().unwrap();
        }
        a.xor(eax, eax).unwrap();
        a.ret().unwrap();
    });
    let elf = elf.function("g", &[0xc3]).rodata(data);
    let image = elf.image();
    assert_eq!(find(&image, "g").start().0, OTHER);
    image.cfg(find(&image, "f"))
}

/// The targets of the only jump through a table inside of the function.
fn targets(cfg: &Cfg) -> Vec<u64> {
    let to = |edge: &ingraft_model::Edge| match edge.to {
        EdgeTarget::Block(to) => cfg.blocks.get(to).expect("a block").range.start.0,
        EdgeTarget::Outside(to) => to.0,
        EdgeTarget::Dynamic => 0,
    };
    cfg.edges.iter().filter(|e| e.kind == EdgeKind::JumpTable).map(to).collect()
}

fn lea(a: &mut CodeAssembler, register: AsmRegister64, at: u64) {
    a.lea(register, qword_ptr(at)).unwrap();
}

#[track_caller]
fn assert_three(cfg: &Cfg) {
    assert_eq!(targets(cfg), TARGETS[..3], "{cfg:x?}");
    assert_eq!((&cfg.ways_in_proven, &cfg.ways_out_proven), (&Ok(()), &Ok(())));
    assert!(cfg.unresolved.is_empty());
    assert_eq!(cfg.ways_in.iter().filter(|way| way.reason == WayInReason::JumpTable).count(), 3);
}

#[track_caller]
fn assert_refused(cfg: &Cfg) {
    assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnresolvedJump { .. })), "{cfg:x?}");
    assert!(!cfg.unresolved.is_empty());
}

fn jump_by_distance(a: &mut CodeAssembler, base: AsmRegister64, index: AsmRegister64) {
    a.movsxd(rax, dword_ptr(base + index * 4)).unwrap();
    a.add(rax, base).unwrap();
    a.jmp(rax).unwrap();
}

#[test]
fn a_table_whose_address_is_made_in_another_block() {
    let cfg = graph(
        |a, default| {
            let mut again = a.create_label();
            lea(a, rbx, RODATA);
            a.set_label(&mut again).unwrap();
            a.call(OTHER).unwrap();
            a.cmp(eax, 9).unwrap();
            a.je(again).unwrap();
            a.cmp(eax, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(ecx, eax).unwrap();
            jump_by_distance(a, rbx, rcx);
        },
        &distances(&TARGETS, RODATA),
    );
    assert_three(&cfg);
    // A callee may overwrite this register.
    let cfg = graph(
        |a, default| {
            lea(a, rsi, RODATA);
            a.call(OTHER).unwrap();
            a.cmp(eax, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(ecx, eax).unwrap();
            jump_by_distance(a, rsi, rcx);
        },
        &distances(&TARGETS, RODATA),
    );
    assert_refused(&cfg);
}

#[test]
fn two_addresses_that_reach_one_jump_are_no_constant() {
    let cfg = graph(
        |a, default| {
            let mut other = a.create_label();
            lea(a, rdx, RODATA);
            a.test(esi, esi).unwrap();
            a.je(other).unwrap();
            lea(a, rdx, RODATA + 16);
            a.set_label(&mut other).unwrap();
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(ecx, edi).unwrap();
            jump_by_distance(a, rdx, rcx);
        },
        &distances(&TARGETS, RODATA),
    );
    assert_refused(&cfg);
}

#[test]
fn a_table_whose_address_is_spilled() {
    let cfg = graph(
        |a, default| {
            a.sub(rsp, 24).unwrap();
            lea(a, rax, RODATA);
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.push(rdi).unwrap();
            a.call(OTHER).unwrap();
            a.pop(rdi).unwrap();
            a.mov(rdx, qword_ptr(rsp + 8)).unwrap();
            a.cmp(eax, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(ecx, eax).unwrap();
            jump_by_distance(a, rdx, rcx);
        },
        &distances(&TARGETS, RODATA),
    );
    assert_three(&cfg);
}

#[test]
fn a_bound_that_is_spilled() {
    let cfg = graph(
        |a, default| {
            a.push(rbp).unwrap();
            a.mov(rbp, rsp).unwrap();
            a.mov(dword_ptr(rbp - 4), edi).unwrap();
            a.cmp(dword_ptr(rbp - 4), 2).unwrap();
            a.ja(default).unwrap();
            a.mov(dword_ptr(rbp - 8), esi).unwrap();
            a.mov(eax, dword_ptr(rbp - 4)).unwrap();
            a.jmp(qword_ptr(rax * 8 + RODATA as i32)).unwrap();
        },
        &addresses(&TARGETS),
    );
    assert_three(&cfg);
    // Something else is written in between, perhaps there.
    let cfg = graph(
        |a, default| {
            a.cmp(dword_ptr(rdi), 2).unwrap();
            a.ja(default).unwrap();
            a.mov(dword_ptr(rsi), edx).unwrap();
            a.mov(eax, dword_ptr(rdi)).unwrap();
            a.lea(rdx, qword_ptr(RODATA)).unwrap();
            jump_by_distance(a, rdx, rax);
        },
        &distances(&TARGETS, RODATA),
    );
    assert_refused(&cfg);
}

/// The check is made at each of two ways into the loop.
#[test]
fn bounds_are_needed_on_every_way() {
    let code = |checked: bool| {
        move |a: &mut CodeAssembler, default: u64| {
            let (mut jump, mut second) = (a.create_label(), a.create_label());
            a.test(esi, esi).unwrap();
            a.je(second).unwrap();
            a.cmp(edi, 2).unwrap();
            a.jbe(jump).unwrap();
            a.ret().unwrap();
            a.set_label(&mut second).unwrap();
            a.mov(edi, dword_ptr(rsi)).unwrap();
            if checked {
                a.cmp(edi, 1).unwrap();
                a.ja(default).unwrap();
            } else {
                a.cmp(edx, 1).unwrap();
                a.ja(default).unwrap();
            }
            a.set_label(&mut jump).unwrap();
            a.mov(ecx, edi).unwrap();
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rcx);
        }
    };
    assert_three(&graph(code(true), &distances(&TARGETS, RODATA)));
    assert_refused(&graph(code(false), &distances(&TARGETS, RODATA)));
}

#[test]
fn the_upper_half_of_the_index_counts() {
    let code = |clear: bool| {
        move |a: &mut CodeAssembler, default: u64| {
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            if clear {
                a.mov(edi, edi).unwrap();
            }
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rdi);
        }
    };
    assert_three(&graph(code(true), &distances(&TARGETS, RODATA)));
    assert_refused(&graph(code(false), &distances(&TARGETS, RODATA)));
}

#[test]
fn two_levels() {
    // A table of bytes chooses the entry of a second table.
    let code = |a: &mut CodeAssembler, default: u64| {
        a.cmp(edi, 200).unwrap();
        a.ja(default).unwrap();
        a.mov(ecx, edi).unwrap();
        a.movzx(ecx, byte_ptr(rcx + (RODATA + 0x40) as i32)).unwrap();
        a.jmp(qword_ptr(rcx * 8 + RODATA as i32)).unwrap();
    };
    // The table ends where a word is no address of code.
    let data = [addresses(&TARGETS[..3]), vec![0; 0x200]].concat();
    assert_three(&graph(code, &data));
    // Where the words behind it are addresses, the end is not known; all targets are ways in nevertheless.
    let data = [addresses(&TARGETS), vec![0; 0x200]].concat();
    let cfg = graph(code, &data);
    assert!(TARGETS[..3].iter().all(|target| targets(&cfg).contains(target)), "{cfg:x?}");
    assert_eq!(cfg.ways_in_proven, Ok(()));
}

#[test]
fn short_absolute_entries() {
    let data: Vec<u8> = TARGETS.iter().flat_map(|target| (*target as u32).to_le_bytes()).collect();
    let cfg = graph(
        |a, default| {
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(edi, edi).unwrap();
            a.mov(eax, dword_ptr(rdi * 4 + RODATA as i32)).unwrap();
            a.jmp(rax).unwrap();
        },
        &data,
    );
    assert_three(&cfg);
}

#[test]
fn a_table_in_text() {
    let table = TEXT + 0x40;
    let cfg = graph(
        |a, default| {
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(edi, edi).unwrap();
            lea(a, rdx, table);
            jump_by_distance(a, rdx, rdi);
            let len = a.assemble(TEXT).unwrap().len();
            a.db(&vec![0xcc; 0x40 - len]).unwrap();
            a.db(&distances(&TARGETS, table)).unwrap();
        },
        &[],
    );
    assert_eq!(targets(&cfg), TARGETS[..3], "{cfg:x?}");
}

#[test]
fn a_computed_goto_whose_labels_are_all_known() {
    let code = |a: &mut CodeAssembler, _: u64| {
        a.movzx(eax, byte_ptr(rdi)).unwrap();
        a.jmp(qword_ptr(rax * 8 + RODATA as i32)).unwrap();
    };
    assert_three(&graph(code, &[addresses(&TARGETS[..3]), vec![0; 64]].concat()));
    // The pointer comes from elsewhere: it may hold any label, or lead out.
    let through = |a: &mut CodeAssembler, _: u64| a.jmp(qword_ptr(rdi)).unwrap();
    let labels = [CASES, CASES + 6, CASES + 12, DEFAULT];
    let cfg = graph(through, &addresses(&labels));
    assert_eq!(targets(&cfg), labels);
    assert_eq!(cfg.ways_in_proven, Ok(()));
    assert!(matches!(cfg.ways_out_proven, Err(Refusal::UnresolvedJump { .. })));
    assert!(cfg.edges.iter().any(|e| e.kind == EdgeKind::TailJump && e.to == EdgeTarget::Dynamic));
    // Nothing names the last label, so the program may compute its address.
    let cfg = graph(through, &addresses(&labels[..3]));
    assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnresolvedJump { .. })), "{cfg:x?}");
}

#[test]
fn a_sum_on_the_stack_is_no_pointer() {
    let cfg = graph(
        |a, default| {
            a.sub(rsp, 24).unwrap();
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(edi, edi).unwrap();
            lea(a, rdx, RODATA);
            a.movsxd(rax, dword_ptr(rdx + rdi * 4)).unwrap();
            a.add(rax, rdx).unwrap();
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.xor(edx, edx).unwrap();
            a.jmp(qword_ptr(rsp + 8)).unwrap();
        },
        &distances(&TARGETS, RODATA),
    );
    assert_three(&cfg);
}

#[test]
fn a_door_in_front_of_the_jump_makes_the_index_unknown() {
    // Data holds the address of the instruction behind the check.
    let behind_check = TEXT + 9;
    let data = [distances(&TARGETS, RODATA), addresses(&[behind_check])].concat();
    let cfg = graph(
        |a, default| {
            a.cmp(edi, 2).unwrap();
            a.ja(default).unwrap();
            a.mov(edi, edi).unwrap();
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rdi);
        },
        &data,
    );
    assert!(cfg.ways_in.iter().any(|way| way.at.0 == behind_check && way.reason == WayInReason::AddressTaken));
    assert_refused(&cfg);
}

/// Eight bytes of data may have the value of an address without being one, as the code of Python that a program holds.
#[test]
fn a_number_that_looks_like_an_address_hides_no_bound() {
    /// Length in bytes of the code in front of the load from the table.
    const LOAD: u64 = 4;
    let code = |a: &mut CodeAssembler, _: u64| {
        a.movzx(eax, dil).unwrap();
        a.mov(rax, qword_ptr(rax * 8 + RODATA as i32)).unwrap();
        a.jmp(rax).unwrap();
    };
    let [first, second, third, _] = TARGETS;
    // The word behind the table is no code, and ends it.
    let table = [first, second, third, 0];
    assert_three(&graph(code, &addresses(&table)));
    let looks_like = TEXT + LOAD;
    let cfg = graph(code, &addresses(&[&table[..], &[looks_like, 0]].concat()));
    assert_eq!(targets(&cfg), TARGETS[..3], "{cfg:x?}");
    assert!(cfg.unresolved.is_empty() && cfg.ways_out_proven.is_ok(), "{cfg:x?}");
    assert!(cfg.ways_in.iter().any(|way| way.reason == WayInReason::AddressTaken), "control may arrive there");
    // Without an end that the content shows, the index needs a bound.
    let endless: Vec<u64> = std::iter::repeat_n(first, 1 << 16).chain([OTHER, looks_like]).collect();
    assert!(graph(code, &addresses(&endless)).ways_out_proven.is_err());
}
