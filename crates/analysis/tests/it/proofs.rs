//! Proofs about indirect jumps that need more than one comparison: what they accept, and near misses that must stay refused.

use crate::support::{RODATA, TEXT, TestElf, find};
use iced_x86::IcedError;
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

/// A loop reads a table whose address is made before the loop. Another way into the loop comes back from a call and runs into one of the cases,
/// with a register that the caller of the function has set.
fn with_a_call_in_front_of_a_case(callee_never_returns: bool) -> Cfg {
    let case = TEXT + 0x60;
    let elf = file(
        |a| {
            let (mut again, mut other) = (a.create_label(), a.create_label());
            a.test(esi, esi).unwrap();
            a.je(other).unwrap();
            lea(a, rbx, RODATA);
            a.set_label(&mut again).unwrap();
            a.cmp(esi, 2).unwrap();
            a.ja(BEHIND).unwrap();
            a.mov(ecx, esi).unwrap();
            jump_by_distance(a, rbx, rcx);
            let len = a.assemble(TEXT).unwrap().len();
            a.db(&vec![0xcc; 0x5b - len]).unwrap();
            a.set_label(&mut other).unwrap();
            a.call(OTHER).unwrap();
            assert_eq!(a.assemble(TEXT).unwrap().len() as u64, case - TEXT);
            a.mov(esi, 1).unwrap();
            a.jmp(again).unwrap();
        },
        |a| if callee_never_returns { a.hlt().unwrap() } else { a.ret().unwrap() },
        &distances(&[case, CASES, CASES + 12], RODATA),
    );
    graph(&elf)
}

/// In `genericZrangebyrankCommand` of redis, the call is a failed assertion, which returns as far as its bytes tell. So nothing in the bytes
/// tells it from a program that passes the address of another table.
#[test]
fn a_register_that_comes_through_a_call_may_hold_the_address_of_another_table() {
    assert_refused(&with_a_call_in_front_of_a_case(false));
    assert_targets(&with_a_call_in_front_of_a_case(true), &[TEXT + 0x60, CASES, CASES + 12]);
}

/// A function that reads a table after some code, and a function `g` that reads another one at an address.
fn two_tables(code: impl FnOnce(&mut CodeAssembler), next: u64, data: &[u8]) -> Cfg {
    let elf = file(
        |a| {
            code(a);
            lea(a, rdx, RODATA);
            jump_by_distance(a, rdx, rdi);
        },
        |a| {
            a.cmp(esi, 1).unwrap();
            a.ja(OTHER + 0x30).unwrap();
            a.mov(esi, esi).unwrap();
            lea(a, rdx, next);
            jump_by_distance(a, rdx, rsi);
            let len = a.assemble(OTHER).unwrap().len();
            a.db(&vec![0xcc; 0x30 - len]).unwrap();
            a.ret().unwrap();
            a.ret().unwrap();
        },
        data,
    );
    graph(&elf)
}

/// A table of eight entries with three different targets, of which the last one is in the last place.
fn eight() -> Vec<u8> {
    let [one, two, three] = THREE;
    distances(&[one, two, one, one, two, two, one, three], RODATA)
}

/// The assembly of dav1d addresses each of its tables by the place two entries in front of it, because its indices begin with 2. So the next
/// table seems to begin within the last entries of this one.
#[test]
fn another_table_within_a_table_is_not_its_end() {
    let next = RODATA + 24;
    let data = [eight(), distances(&[OTHER + 0x30, OTHER + 0x31], next)].concat();
    let masked = |a: &mut CodeAssembler| a.and(edi, 7).unwrap();
    assert_eq!(targets(&two_tables(masked, next, &data)), THREE);
    let shifted = |a: &mut CodeAssembler| a.shr(edi, 29).unwrap();
    assert_eq!(targets(&two_tables(shifted, next, &data)), THREE);
    // The index is at most 32 or 64 as far as the bytes tell.
    for scan in
        [CodeAssembler::tzcnt, CodeAssembler::bsf, CodeAssembler::popcnt, CodeAssembler::lzcnt, CodeAssembler::bsr]
            as [fn(&mut CodeAssembler, AsmRegister32, AsmRegister32) -> Result<(), IcedError>; 5]
    {
        assert_refused(&two_tables(|a| scan(a, edi, esi).unwrap(), next, &data));
    }
}

#[test]
fn all_entries_that_an_operation_lets_through_must_be_read() {
    // The last entry is no code.
    let data = [eight()[..28].to_vec(), vec![0xff; 64]].concat();
    for code in [|a: &mut CodeAssembler| a.and(edi, 7).unwrap(), |a: &mut CodeAssembler| a.shr(edi, 29).unwrap()] {
        assert_refused(&two_tables(code, RODATA + 28, &data));
    }
    // A mask with holes.
    let code = |a: &mut CodeAssembler| a.and(edi, 6).unwrap();
    assert_targets(&two_tables(code, RODATA + 28, &data), &THREE[..2]);
    assert_refused(&two_tables(code, RODATA + 12, &[distances(&THREE, RODATA), vec![0xff; 64]].concat()));
    // The processor takes this for a shift by 0.
    assert_refused(&two_tables(|a| a.shr(rdi, 64).unwrap(), RODATA + 32, &eight()));
}

/// An entry within the bound leads to the middle of an instruction: the analysis knows less about the index than the program, or the program
/// jumps there.
#[test]
fn an_entry_that_leads_into_an_instruction_ends_no_table() {
    let data = [distances(&THREE, RODATA), distances(&[CASES + 8, CASES], RODATA)].concat();
    let code = |a: &mut CodeAssembler| {
        a.cmp(edi, 3).unwrap();
        a.ja(BEHIND).unwrap();
        a.mov(edi, edi).unwrap();
    };
    assert_refused(&two_tables(code, RODATA + 12, &data));
}

/// A function that jumps by the index in `r9`, with a table of this many entries.
fn offsets_of(entries: usize, code: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    let targets: Vec<u64> = THREE.iter().copied().cycle().take(entries).collect();
    let elf = file(
        |a| {
            code(a);
            lea(a, r10, RODATA);
            a.movsxd(r9, dword_ptr(r10 + r9 * 4)).unwrap();
            a.lea(r10, qword_ptr(r10 + r9)).unwrap();
            a.jmp(r10).unwrap();
        },
        returns,
        &[distances(&targets, RODATA), vec![0xff; 512]].concat(),
    );
    graph(&elf)
}

fn offsets(code: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    offsets_of(200, code)
}

/// Whether a table of so many entries is proven, and one with an entry less is not.
#[track_caller]
fn assert_length(entries: usize, code: impl Fn(&mut CodeAssembler)) {
    assert_targets(&offsets_of(entries, &code), &THREE);
    assert_refused(&offsets_of(entries - 1, &code));
}

/// The C library compares strings so: the index is the difference of two offsets within 16 bytes.
#[test]
fn arithmetic_bounds_an_index() {
    assert_length(31, |a| {
        a.and(ecx, 15).unwrap();
        a.and(eax, 15).unwrap();
        a.lea(r9, qword_ptr(rax + 15)).unwrap();
        a.sub(r9, rcx).unwrap();
    });
    assert_length(80, |a| {
        a.bsf(rdx, rdx).unwrap();
        a.and(ecx, 15).unwrap();
        a.add(rdx, 16).unwrap();
        a.sub(rdx, rcx).unwrap();
        a.mov(r9, rdx).unwrap();
    });
    assert_length(5, |a| {
        let mut on = a.create_label();
        a.and(ecx, 1).unwrap();
        a.mov(eax, 2).unwrap();
        a.test(esi, esi).unwrap();
        a.je(on).unwrap();
        a.xchg(eax, ecx).unwrap();
        a.set_label(&mut on).unwrap();
        a.lea(r9, qword_ptr(rax + rcx)).unwrap();
    });
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
    // A shift by the width does nothing.
    assert_refused(&offsets(|a| {
        a.shr(rcx, 64).unwrap();
        a.lea(r9, qword_ptr(rcx + 1)).unwrap();
    }));
    // Without a bit that is set, older processors leave the register as it was.
    assert_refused(&offsets(|a| {
        a.tzcnt(r9, rdx).unwrap();
        a.add(r9, 1).unwrap();
    }));
    // The callee has the address of the variable.
    assert_refused(&offsets(|a| {
        a.push(rbx).unwrap();
        a.and(edi, 3).unwrap();
        a.mov(qword_ptr(rsp), rdi).unwrap();
        a.mov(rdi, rsp).unwrap();
        a.call(OTHER).unwrap();
        a.mov(r9, qword_ptr(rsp)).unwrap();
        a.pop(rbx).unwrap();
    }));
    // A callee may change the register.
    assert_refused(&offsets(|a| {
        a.and(r9d, 1).unwrap();
        a.call(OTHER).unwrap();
    }));
}

/// A jump through a table of addresses of this many bytes each, at the beginning of the data plus `skip`.
fn through_addresses(width: u64, skip: u64, entries: &[u64]) -> TestElf {
    let at = (RODATA + skip) as i32;
    let entries = entries.iter().flat_map(|entry| entry.to_le_bytes()[..width as usize].to_vec());
    let code = |a: &mut CodeAssembler| {
        a.cmp(edi, 2).unwrap();
        a.ja(BEHIND).unwrap();
        a.mov(edi, edi).unwrap();
        if width == 4 {
            a.mov(eax, dword_ptr(rdi * 4 + at)).unwrap();
            a.jmp(rax).unwrap();
        } else {
            a.jmp(qword_ptr(rdi * 8 + at)).unwrap();
        }
    };
    file(code, returns, &[vec![0; skip as usize], entries.collect()].concat())
}

#[test]
fn a_table_that_the_program_may_change_has_no_known_targets() {
    assert_targets(&graph(&through_addresses(8, 0, &THREE)), &THREE);
    // The labels are known, because data holds their addresses. The program may also store the address of a function there.
    assert!(!open(&graph(&through_addresses(8, 0, &THREE).writable())));
    let changed = |skip, width| graph(&through_addresses(width, skip, &THREE).writable());
    assert_refused(&changed(0, 4));
    assert_refused(&changed(4, 8));
}

/// Only words of eight bytes at multiples of eight are known as pointers. Other tables lead anywhere if their end is not proven.
#[test]
fn a_table_with_a_hole_may_lead_anywhere_if_its_entries_are_no_pointers() {
    let holes = [[CASES, 0, CASES + 12], [0, CASES, CASES + 12]];
    for (width, skip) in [(4, 0), (8, 4)] {
        assert_targets(&graph(&through_addresses(width, skip, &THREE)), &THREE);
        for hole in holes {
            assert_refused(&graph(&through_addresses(width, skip, &hole)));
        }
    }
}

/// A computed goto through a pointer that the program keeps anywhere; the labels are in data.
fn computed_goto(code: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    graph(&file(code, returns, &addresses(&[&THREE[..], &[BEHIND]].concat())))
}

fn open(cfg: &Cfg) -> bool {
    assert_eq!(cfg.ways_in_proven, Ok(()));
    let is_taken = |at: &u64| cfg.ways_in.iter().any(|way| way.at.0 == *at && way.reason == WayInReason::AddressTaken);
    assert!(THREE.iter().all(|at| is_taken(at) && targets(cfg).contains(at)), "{cfg:x?}");
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
        a.push(rbx).unwrap();
        a.set_label(&mut both).unwrap();
        a.jmp(rsi).unwrap();
    })));
    // A value of the program on the top of the stack, stored by a frame pointer.
    assert!(open(&computed_goto(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.sub(rsp, 16).unwrap();
        a.mov(rcx, qword_ptr(rdi + 8)).unwrap();
        a.mov(qword_ptr(rbp - 16), rcx).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
}

/// Assembly also calls a function by a jump, with a return address on the stack, as the bytecode entries of V8 do.
#[test]
fn a_jump_with_a_return_address_on_the_stack_may_be_a_call() {
    // The address of an instruction of the function.
    assert!(!open(&computed_goto(|a| {
        lea(a, rax, BEHIND);
        a.push(rax).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    // One that the program has stored.
    assert!(!open(&computed_goto(|a| {
        a.push(qword_ptr(rdi + 8)).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    assert!(!open(&computed_goto(|a| {
        a.mov(rbx, qword_ptr(rdi + 8)).unwrap();
        a.push(rbx).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    // Stored without a push, by either pointer.
    assert!(!open(&computed_goto(|a| {
        a.sub(rsp, 24).unwrap();
        lea(a, rax, BEHIND);
        a.mov(qword_ptr(rsp), rax).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    assert!(!open(&computed_goto(|a| {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.sub(rsp, 16).unwrap();
        lea(a, rax, BEHIND);
        a.mov(qword_ptr(rbp - 16), rax).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    })));
    // That of a call.
    assert!(!open(&computed_goto(|a| {
        a.call(OTHER).unwrap();
        a.sub(rsp, 8).unwrap();
        a.jmp(qword_ptr(rax)).unwrap();
    })));
}

/// An interpreter that keeps the address of its table of labels in a register, without a frame. `first` and `last` are the code of its first and
/// its last label.
fn threaded(first: impl FnOnce(&mut CodeAssembler), last: impl FnOnce(&mut CodeAssembler), data: &[u64]) -> Cfg {
    let code = |a: &mut CodeAssembler| {
        let pad = |a: &mut CodeAssembler, to: u64| {
            let len = a.assemble(TEXT).unwrap().len() as u64;
            a.db(&vec![0xcc; (to - TEXT - len) as usize]).unwrap();
        };
        lea(a, rdi, RODATA);
        goes_on(a);
        pad(a, LABELS[0]);
        first(a);
        pad(a, LABELS[1]);
        a.inc(rdx).unwrap();
        goes_on(a);
        pad(a, LABELS[2]);
        last(a);
    };
    graph(&file(code, returns, &addresses(data)))
}

const LABELS: [u64; 3] = [TEXT + 0x20, TEXT + 0x40, TEXT + 0x60];

/// Leads to the label of the next code of the interpreted program.
fn goes_on(a: &mut CodeAssembler) {
    a.movzx(eax, byte_ptr(rsi)).unwrap();
    a.inc(rsi).unwrap();
    a.jmp(qword_ptr(rdi + rax * 8)).unwrap();
}

#[test]
fn a_function_that_alone_reads_its_table_of_labels_comes_to_them_by_it() {
    let [one, two, three] = LABELS;
    let proven = |cfg: &Cfg| {
        assert_eq!(targets(cfg), LABELS, "{cfg:x?}");
        cfg.ways_out_proven.is_ok()
    };
    assert!(proven(&threaded(goes_on, returns, &[one, two, three, 0])));
    // The register may hold something else at one of the jumps.
    let calls = |a: &mut CodeAssembler| {
        a.call(OTHER).unwrap();
        goes_on(a);
    };
    assert!(!proven(&threaded(calls, returns, &[one, two, three, 0])));
    let loads = |a: &mut CodeAssembler| {
        a.mov(rdi, qword_ptr(rdx)).unwrap();
        goes_on(a);
    };
    assert!(!proven(&threaded(loads, returns, &[one, two, three, 0])));
    // One jump leads through a pointer.
    let pointer = |a: &mut CodeAssembler| a.jmp(qword_ptr(rdx)).unwrap();
    assert!(!proven(&threaded(goes_on, pointer, &[one, two, three, 0])));
    // Other data holds a label, or other code is next to them.
    assert!(!proven(&threaded(goes_on, returns, &[one, two, three, 0, two])));
    assert!(!proven(&threaded(goes_on, returns, &[one, two, three, OTHER])));
    // An instruction makes the address of a label.
    let makes = |a: &mut CodeAssembler| {
        lea(a, rcx, LABELS[1]);
        goes_on(a);
    };
    assert!(!proven(&threaded(makes, returns, &[one, two, three, 0])));
}

/// LuaJIT fills the table of its bytecodes when it starts: it adds offsets of two bytes to an address. So nothing in the file names the labels.
#[test]
fn a_jump_may_lead_to_code_that_nothing_names() {
    let code = |a: &mut CodeAssembler| {
        a.push(rbx).unwrap();
        a.movzx(eax, byte_ptr(rdi)).unwrap();
        a.jmp(qword_ptr(rsi + rax * 8)).unwrap();
    };
    for data in [&[][..], &[CASES], &THREE] {
        let cfg = graph(&file(code, returns, &addresses(data)));
        assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnresolvedJump { .. })), "{cfg:x?}");
        assert!(matches!(cfg.ways_out_proven, Err(Refusal::UnresolvedJump { .. })), "{cfg:x?}");
    }
    // All code is reached.
    let cfg = graph(&file(code, returns, &addresses(&[CASES, CASES + 6, CASES + 12, BEHIND, 0, OTHER])));
    assert_eq!(cfg.ways_in_proven, Ok(()));
}

/// The pieces of an interpreter in assembly may have symbols of their own, as those of LuaJIT, and share one frame.
#[test]
fn a_table_of_labels_may_also_name_other_functions() {
    let code = |a: &mut CodeAssembler| {
        a.push(rbx).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
    };
    let [one, two, three] = THREE;
    for others in [[one, two, three, OTHER], [OTHER, one, two, three], [one, OTHER, two, three]] {
        let table = addresses(&[&[BEHIND, 0], &others[..]].concat());
        assert!(!open(&graph(&file(code, returns, &table))));
    }
    assert!(open(&graph(&file(code, returns, &addresses(&[BEHIND, one, two, three, 0, OTHER])))));
    // An instruction makes the address of a label.
    assert!(!open(&computed_goto(|a| {
        a.push(rbx).unwrap();
        lea(a, rax, CASES);
        a.mov(qword_ptr(rdi + 8), rax).unwrap();
        a.jmp(qword_ptr(rdi)).unwrap();
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

/// A function of eleven bytes behind bytes that no function has, and its graph. `data` may name places in those bytes.
fn behind_data(text: &[u8], data: &[u64]) -> Cfg {
    let elf = TestElf::new().function("g", &[0xc3]).raw(text).assemble("f", |a| {
        a.mov(eax, 0x1234_5678).unwrap();
        a.mov(ecx, 0x1234_5678).unwrap();
        a.ret().unwrap();
    });
    let elf = elf.rodata(&addresses(data));
    let image = elf.image();
    image.cfg(find(&image, "f"))
}

/// Fifteen bytes, of which the last two are a jump over `distance` bytes.
fn data_with_jump(distance: u8) -> Vec<u8> {
    [vec![0x06; 13], vec![0x70, distance]].concat()
}

/// Address of the jump in [`data_with_jump`], behind the function `g`.
const JUMP: u64 = TEXT + 14;

#[test]
fn data_that_looks_like_a_jump_into_an_instruction_is_none() {
    let cfg = behind_data(&data_with_jump(2), &[]);
    assert_eq!((&cfg.ways_in_proven, &cfg.ways_out_proven), (&Ok(()), &Ok(())), "{cfg:x?}");
    // To the start of an instruction: it may be code.
    let cfg = behind_data(&data_with_jump(5), &[]);
    assert!(cfg.ways_in.iter().any(|way| way.reason == WayInReason::BranchFromElsewhere), "{cfg:x?}");
}

#[test]
fn a_jump_between_functions_that_something_names_is_believed() {
    let believed = |text: &[u8], data: &[u64]| {
        let cfg = behind_data(text, data);
        assert!(matches!(cfg.ways_in_proven, Err(Refusal::UnknownInstruction { .. })), "{cfg:x?}");
    };
    // The address of the jump, or of code that runs on to it, is in data.
    believed(&data_with_jump(2), &[JUMP]);
    let code = [vec![0x90; 13], vec![0x70, 2]].concat();
    believed(&code, &[TEXT + 3]);
    // A jump whose targets are not known may lead there: `jmp rcx` behind `add rcx, rdx`.
    let code = [&[0x06, 0x48, 0x01, 0xd1, 0xff, 0xe1][..], &[0x06; 7], &[0x70, 2]].concat();
    believed(&code, &[TEXT + 2]);
    // A jump of the piece leads there, backwards.
    let code = [&[0xeb, 11][..], &[0x06; 9], &[0x70, 4, 0xeb, 0xfc]].concat();
    believed(&code, &[TEXT + 14]);
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

/// A function that calls `g` through a slot, with a trap behind the call, to which a branch leads also.
fn with_a_call_through_a_slot(is_constant: bool, other: impl FnOnce(&mut CodeAssembler)) -> Cfg {
    let call = |a: &mut CodeAssembler| {
        a.db(&[0x85, 0xff, 0x74, 6, 0xff, 0x15]).unwrap(); // test edi, edi; je to the trap; call
        a.db(&((RODATA - (TEXT + 10)) as u32).to_le_bytes()).unwrap();
        a.ud2().unwrap();
    };
    let elf = file(call, other, &addresses(&[OTHER]));
    graph(&if is_constant { elf } else { elf.writable() })
}

#[test]
fn a_callee_in_a_slot_that_nobody_writes_is_known() {
    let returns_from_call = |cfg: &Cfg| {
        let edge = cfg.edges.iter().any(|edge| edge.kind == EdgeKind::CallReturn);
        let way = cfg.ways_in.iter().any(|way| way.reason == WayInReason::CallReturn);
        assert_eq!(edge, way, "{cfg:x?}");
        edge
    };
    let never = |a: &mut CodeAssembler| a.ud2().unwrap();
    assert!(!returns_from_call(&with_a_call_through_a_slot(true, never)));
    assert!(returns_from_call(&with_a_call_through_a_slot(false, never)), "the program may write the slot");
    assert!(returns_from_call(&with_a_call_through_a_slot(true, returns)));
}

/// The first function of a program ends so.
#[test]
fn no_control_comes_back_to_an_instruction_that_no_program_may_execute() {
    let calls = |trap: u8| {
        let elf = file(
            |a| {
                a.call(rax).unwrap();
                a.db(&[trap]).unwrap();
            },
            returns,
            &[],
        );
        let cfg = graph(&elf);
        cfg.edges.iter().any(|edge| edge.kind == EdgeKind::CallReturn)
    };
    assert!(!calls(0xf4), "hlt");
    assert!(calls(0xcc), "a debugger's trap may be handled");
}
