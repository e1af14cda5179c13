//! Proofs about indirect jumps that need more than one comparison: what they accept, and near misses that must stay refused.

use crate::support::{RODATA, TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_model::{Cfg, EdgeKind, EdgeTarget, Refusal, WayInReason};

/// Address of the first of three cases of six bytes each.
const CASES: u64 = TEXT + 0x80;
/// Address behind the cases.
const BEHIND: u64 = CASES + 18;
/// Address of the function `g`.
const OTHER: u64 = TEXT + 0xc0;

fn addresses(targets: &[u64]) -> Vec<u8> {
    targets.iter().flat_map(|target| target.to_le_bytes()).collect()
}

fn distances(targets: &[u64], base: u64) -> Vec<u8> {
    targets.iter().flat_map(|target| (target.wrapping_sub(base) as u32).to_le_bytes()).collect()
}

/// A function that begins with some code and ends with three cases, and a function `g` that may read a table of its own.
fn file(code: impl FnOnce(&mut CodeAssembler), other: impl FnOnce(&mut CodeAssembler), data: &[u8]) -> TestElf {
    let elf = TestElf::new().assemble("f", |a| {
        code(a);
        let len = a.assemble(TEXT).unwrap().len();
        assert!(len <= (CASES - TEXT) as usize, "{len}");
        a.db(&vec![0xcc; (CASES - TEXT) as usize - len]).unwrap();
        for value in 1..4 {
            a.mov(eax, value).unwrap();
            a.ret().unwrap();
        }
        a.xor(eax, eax).unwrap();
        a.ret().unwrap();
        a.db(&vec![0xcc; (OTHER - BEHIND) as usize - 3]).unwrap();
    });
    elf.assemble("g", other).rodata(data)
}

fn returns(a: &mut CodeAssembler) {
    a.ret().unwrap();
}

fn graph(elf: &TestElf) -> Cfg {
    let image = elf.image();
    assert_eq!(find(&image, "g").start().0, OTHER);
    image.cfg(find(&image, "f"))
}

/// The targets of the jumps through tables.
fn targets(cfg: &Cfg) -> Vec<u64> {
    let to = |edge: &ingraft_model::Edge| match edge.to {
        EdgeTarget::Block(to) => cfg.blocks.get(to).expect("a block").range.start.0,
        EdgeTarget::Outside(to) => to.0,
        EdgeTarget::Dynamic => 0,
    };
    let mut targets: Vec<u64> = cfg.edges.iter().filter(|e| e.kind == EdgeKind::JumpTable).map(to).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

#[track_caller]
fn assert_targets(cfg: &Cfg, expected: &[u64]) {
    assert_eq!(targets(cfg), expected, "{cfg:x?}");
    assert_eq!((&cfg.ways_in_proven, &cfg.ways_out_proven), (&Ok(()), &Ok(())), "{cfg:x?}");
    assert!(cfg.unresolved.is_empty());
    assert!(expected.iter().all(|at| cfg.ways_in.iter().any(|way| way.at.0 == *at)));
}

#[track_caller]
fn assert_refused(cfg: &Cfg) {
    assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnresolvedJump { .. })), "{cfg:x?}");
    assert!(!cfg.unresolved.is_empty());
}

const THREE: [u64; 3] = [CASES, CASES + 6, CASES + 12];

fn lea(a: &mut CodeAssembler, register: AsmRegister64, at: u64) {
    a.lea(register, qword_ptr(at)).unwrap();
}

fn jump_by_distance(a: &mut CodeAssembler, base: AsmRegister64, index: AsmRegister64) {
    a.movsxd(rax, dword_ptr(base + index * 4)).unwrap();
    a.add(rax, base).unwrap();
    a.jmp(rax).unwrap();
}

/// What the function of [`assertion`] has wrong.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    /// The block behind the call is no case.
    NoCase,
    /// The index is not compared.
    NoBound,
    /// There is a second table.
    TwoTables,
    /// The distance comes from a table at another register.
    OtherRegister,
    /// The register is overwritten on the way through a branch.
    Branch,
}

/// A loop reads a table whose address is made before the loop. A failed check jumps past that, to a call behind which a case begins: `redis`
/// does so in `genericZrangebyrankCommand`.
fn assertion(flaw: Flaw) -> Cfg {
    let case = TEXT + 0x60;
    let elf = file(
        |a| {
            let (mut again, mut fails) = (a.create_label(), a.create_label());
            a.push(rbx).unwrap();
            a.mov(rbx, rdi).unwrap();
            a.test(esi, esi).unwrap();
            a.je(fails).unwrap();
            if flaw == Flaw::TwoTables {
                let mut one = a.create_label();
                lea(a, rbx, RODATA + 16);
                a.test(edi, edi).unwrap();
                a.je(one).unwrap();
                lea(a, rbx, RODATA);
                a.set_label(&mut one).unwrap();
                a.nop().unwrap();
            } else {
                lea(a, rbx, RODATA);
            }
            a.set_label(&mut again).unwrap();
            if flaw == Flaw::Branch {
                let mut on = a.create_label();
                a.test(edi, edi).unwrap();
                a.jne(on).unwrap();
                a.mov(rbx, rdi).unwrap();
                a.set_label(&mut on).unwrap();
            }
            if flaw != Flaw::NoBound {
                a.cmp(esi, 2).unwrap();
                a.ja(BEHIND).unwrap();
            }
            a.mov(ecx, esi).unwrap();
            if flaw == Flaw::OtherRegister {
                lea(a, rdx, RODATA);
                a.movsxd(rax, dword_ptr(rdx + rcx * 4)).unwrap();
                a.add(rax, rbx).unwrap();
                a.jmp(rax).unwrap();
            } else {
                jump_by_distance(a, rbx, rcx);
            }
            let len = a.assemble(TEXT).unwrap().len();
            a.db(&vec![0xcc; 0x56 - len]).unwrap();
            a.set_label(&mut fails).unwrap();
            a.call(OTHER).unwrap();
            let len = a.assemble(TEXT).unwrap().len();
            a.db(&vec![0x90; 0x60 - len]).unwrap();
            a.dec(esi).unwrap();
            a.jmp(again).unwrap();
        },
        returns,
        &distances(&[CASES, if flaw == Flaw::NoCase { CASES + 6 } else { case }, CASES + 12, OTHER], RODATA),
    );
    graph(&elf)
}

#[test]
fn a_case_behind_a_call_does_not_hide_the_table() {
    assert_targets(&assertion(Flaw::None), &[TEXT + 0x60, CASES, CASES + 12]);
}

#[test]
fn other_code_behind_the_call_hides_the_table() {
    for flaw in [Flaw::NoCase, Flaw::NoBound, Flaw::TwoTables, Flaw::OtherRegister, Flaw::Branch] {
        assert_refused(&assertion(flaw));
    }
}

/// A function that masks its index, and another one whose table may begin behind the third entry.
fn masked(next: Option<u64>) -> Cfg {
    let elf = file(
        |a| {
            a.and(edi, 7).unwrap();
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rdi);
        },
        |a| {
            if let Some(next) = next {
                a.cmp(edi, 1).unwrap();
                a.ja(OTHER + 0x30).unwrap();
                a.mov(edi, edi).unwrap();
                lea(a, rdx, next);
                jump_by_distance(a, rdx, rdi);
            }
            let len = a.assemble(OTHER).unwrap().len();
            a.db(&vec![0xcc; 0x30 - len]).unwrap();
            a.ret().unwrap();
            a.ret().unwrap();
        },
        &[distances(&THREE, RODATA), distances(&[OTHER + 0x30, OTHER + 0x31], RODATA + 12), vec![0; 64]].concat(),
    );
    graph(&elf)
}

#[test]
fn a_mask_may_let_more_values_through_than_the_table_has() {
    assert_targets(&masked(Some(RODATA + 12)), &THREE);
    // Nothing shows where the table ends.
    assert_refused(&masked(None));
}

/// A comparison that lets more values through than the table has: the second comparison, of a copy in memory, is not understood.
fn compared(next: bool) -> Cfg {
    let elf = file(
        |a| {
            a.cmp(edi, 4).unwrap();
            a.ja(BEHIND).unwrap();
            a.mov(edi, edi).unwrap();
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rdi);
        },
        |a| {
            if next {
                a.cmp(edi, 1).unwrap();
                a.ja(OTHER + 0x30).unwrap();
                a.mov(edi, edi).unwrap();
                lea(a, rdx, RODATA + 12);
                jump_by_distance(a, rdx, rdi);
            }
            let len = a.assemble(OTHER).unwrap().len();
            a.db(&vec![0xcc; 0x30 - len]).unwrap();
            a.ret().unwrap();
            a.ret().unwrap();
        },
        // The first entry of the other table leads, seen from this one, to the middle of an instruction.
        &[distances(&THREE, RODATA), distances(&[CASES + 8 + 12, OTHER + 0x31], RODATA + 12), vec![0; 64]].concat(),
    );
    graph(&elf)
}

#[test]
fn a_table_ends_before_an_entry_that_leads_into_an_instruction() {
    assert_targets(&compared(true), &THREE);
    assert_eq!(targets(&compared(false)), THREE);
}

fn offsets(code: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    let elf = file(
        |a| {
            code(a);
            lea(a, r10, RODATA);
            a.movsxd(r9, dword_ptr(r10 + r9 * 4)).unwrap();
            a.lea(r10, qword_ptr(r10 + r9)).unwrap();
            a.jmp(r10).unwrap();
        },
        returns,
        &[distances(&THREE, RODATA), vec![0; 256]].concat(),
    );
    graph(&elf)
}

/// The C library compares strings so: the index is the difference of two offsets within 16 bytes.
#[test]
fn arithmetic_bounds_an_index() {
    let cfg = offsets(|a| {
        a.and(ecx, 15).unwrap();
        a.and(eax, 15).unwrap();
        a.lea(r9, qword_ptr(rax + 15)).unwrap();
        a.sub(r9, rcx).unwrap();
    });
    assert_targets(&cfg, &THREE);
    let cfg = offsets(|a| {
        a.bsf(rdx, rdx).unwrap();
        a.and(ecx, 15).unwrap();
        a.add(rdx, 16).unwrap();
        a.sub(rdx, rcx).unwrap();
        a.mov(r9, rdx).unwrap();
    });
    assert_targets(&cfg, &THREE);
    let cfg = offsets(|a| {
        let mut on = a.create_label();
        a.and(ecx, 1).unwrap();
        a.mov(eax, 2).unwrap();
        a.test(esi, esi).unwrap();
        a.je(on).unwrap();
        a.xchg(eax, ecx).unwrap();
        a.set_label(&mut on).unwrap();
        a.lea(r9, qword_ptr(rax + rcx)).unwrap();
    });
    assert_targets(&cfg, &THREE);
}

#[test]
fn arithmetic_that_may_wrap_is_no_bound() {
    // One of the offsets is unknown.
    assert_refused(&offsets(|a| {
        a.and(ecx, 15).unwrap();
        a.lea(r9, qword_ptr(rax + 15)).unwrap();
        a.sub(r9, rcx).unwrap();
    }));
    // The difference may be negative.
    assert_refused(&offsets(|a| {
        a.and(ecx, 15).unwrap();
        a.and(eax, 15).unwrap();
        a.lea(r9, qword_ptr(rax + 14)).unwrap();
        a.sub(r9, rcx).unwrap();
    }));
    // The source may be 0, and then the register keeps what it had.
    assert_refused(&offsets(|a| {
        a.bsf(r9, rdx).unwrap();
        a.add(r9, 1).unwrap();
    }));
    // An offset of only one of the ways is masked.
    assert_refused(&offsets(|a| {
        let mut on = a.create_label();
        a.test(esi, esi).unwrap();
        a.je(on).unwrap();
        a.and(eax, 15).unwrap();
        a.set_label(&mut on).unwrap();
        a.lea(r9, qword_ptr(rax + 1)).unwrap();
    }));
    // The low byte alone changes.
    assert_refused(&offsets(|a| {
        a.and(eax, 15).unwrap();
        a.mov(al, cl).unwrap();
        a.lea(r9, qword_ptr(rax + 1)).unwrap();
    }));
    // Each round of the loop adds to the index.
    assert_refused(&offsets(|a| {
        let mut again = a.create_label();
        a.xor(r9d, r9d).unwrap();
        a.set_label(&mut again).unwrap();
        a.add(r9, 1).unwrap();
        a.dec(esi).unwrap();
        a.jne(again).unwrap();
    }));
    // A callee may change the register.
    assert_refused(&offsets(|a| {
        a.and(r9d, 1).unwrap();
        a.call(OTHER).unwrap();
    }));
}

/// A computed goto through a pointer that the program keeps anywhere; the labels are in data.
fn computed_goto(code: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    graph(&file(code, returns, &addresses(&THREE)))
}

fn open(cfg: &Cfg) -> bool {
    assert_eq!(targets(cfg), THREE, "{cfg:x?}");
    assert_eq!(cfg.ways_in_proven, Ok(()));
    assert!(
        THREE
            .iter()
            .all(|at| { cfg.ways_in.iter().any(|way| way.at.0 == *at && way.reason == WayInReason::AddressTaken) })
    );
    let leaves = cfg.edges.iter().any(|e| e.kind == EdgeKind::TailJump && e.to == EdgeTarget::Dynamic);
    assert_eq!(leaves, cfg.ways_out_proven.is_err(), "{cfg:x?}");
    !leaves
}

#[test]
fn a_jump_with_an_open_frame_stays_in_the_function() {
    assert!(open(&computed_goto(|a| {
        a.push(rbx).unwrap();
        a.sub(rsp, 32).unwrap();
        a.call(OTHER).unwrap();
        a.jmp(qword_ptr(rax)).unwrap();
    })));
    // Two ways with one depth.
    assert!(open(&computed_goto(|a| {
        let (mut other, mut both) = (a.create_label(), a.create_label());
        a.test(edi, edi).unwrap();
        a.je(other).unwrap();
        a.sub(rsp, 8).unwrap();
        a.jmp(both).unwrap();
        a.set_label(&mut other).unwrap();
        a.push(rax).unwrap();
        a.set_label(&mut both).unwrap();
        a.jmp(rsi).unwrap();
    })));
}

#[test]
fn a_jump_that_may_be_a_tail_call_may_leave() {
    // The frame is closed.
    assert!(!open(&computed_goto(|a| {
        a.push(rbx).unwrap();
        a.call(OTHER).unwrap();
        a.pop(rbx).unwrap();
        a.jmp(qword_ptr(rax)).unwrap();
    })));
    // One of two ways opens no frame.
    assert!(!open(&computed_goto(|a| {
        let mut on = a.create_label();
        a.test(edi, edi).unwrap();
        a.je(on).unwrap();
        a.push(rbx).unwrap();
        a.set_label(&mut on).unwrap();
        a.jmp(rsi).unwrap();
    })));
    // The stack pointer is loaded, as longjmp does.
    assert!(!open(&computed_goto(|a| {
        a.push(rbx).unwrap();
        a.mov(rsp, qword_ptr(rdi + 8)).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    // By a number that is not known.
    assert!(!open(&computed_goto(|a| {
        a.push(rbp).unwrap();
        a.sub(rsp, rdi).unwrap();
        a.jmp(rsi).unwrap();
    })));
    // One of two jumps is a tail call.
    assert!(!open(&computed_goto(|a| {
        let mut other = a.create_label();
        a.push(rbx).unwrap();
        a.test(edi, edi).unwrap();
        a.je(other).unwrap();
        a.jmp(rsi).unwrap();
        a.set_label(&mut other).unwrap();
        a.pop(rbx).unwrap();
        a.jmp(rdx).unwrap();
    })));
}

/// A function of eleven bytes behind bytes that no function has, and its graph.
fn behind_data(data: &[u8]) -> Cfg {
    let elf = TestElf::new().function("g", &[0xc3]).raw(data).assemble("f", |a| {
        a.mov(eax, 0x1234_5678).unwrap();
        a.mov(ecx, 0x1234_5678).unwrap();
        a.ret().unwrap();
    });
    let image = elf.image();
    image.cfg(find(&image, "f"))
}

/// Fifteen bytes, of which the last two are a jump over `distance` bytes.
fn data_with_jump(distance: u8) -> Vec<u8> {
    [vec![0x06; 13], vec![0x70, distance]].concat()
}

#[test]
fn data_that_looks_like_a_jump_into_an_instruction_is_none() {
    let cfg = behind_data(&data_with_jump(2));
    assert_eq!((&cfg.ways_in_proven, &cfg.ways_out_proven), (&Ok(()), &Ok(())), "{cfg:x?}");
    // To the start of an instruction: it may be code.
    let cfg = behind_data(&data_with_jump(5));
    assert!(cfg.ways_in.iter().any(|way| way.reason == WayInReason::BranchFromElsewhere), "{cfg:x?}");
}

#[test]
fn code_that_jumps_into_an_instruction_is_believed() {
    let elf = TestElf::new().assemble("g", |a| {
        a.test(edi, edi).unwrap();
        a.je(TEXT + 16 + 2).unwrap();
        a.ret().unwrap();
    });
    let elf = elf.assemble("f", |a| {
        a.mov(eax, 0x1234_5678).unwrap();
        a.ret().unwrap();
    });
    let image = elf.image();
    let cfg = image.cfg(find(&image, "f"));
    assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnknownInstruction { .. })), "{cfg:x?}");
}
