//! Exits and calls of small hand-written functions: those that are found, and the bytes that may be displaced with them.

use std::sync::Arc;

use crate::support::{FUNC, IFUNC, RODATA, TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_model::{CallSite, Callee, Offset, PointKind, Refusal, Site, Svma, WayInReason};

type Exits = Result<Vec<Result<Arc<Site>, Refusal>>, Refusal>;

fn exits(elf: &TestElf, name: &str) -> Exits {
    let image = elf.image();
    image.exit_sites(find(&image, name))
}

/// Refusal of an exit that is a single return.
const TOO_SHORT: Refusal = Refusal::TooShort { available: 1, next: "the next place where control can arrive" };

/// (first byte, point, own bytes, all bytes) of each exit; the first byte counts from the beginning of the text.
fn ranges(elf: &TestElf, name: &str) -> Vec<(u64, u8, u8, usize)> {
    let sites = exits(elf, name).unwrap().into_iter().map(Result::unwrap);
    sites.map(|s| (s.at.0.wrapping_sub(TEXT), s.point, s.own, s.bytes.len())).collect()
}

/// Nine bytes of code that end with a call: more than an entry's springboard displaces.
fn begin(a: &mut CodeAssembler) {
    a.push(rbp).unwrap();
    a.mov(rbp, rsp).unwrap();
    a.call(TEXT + 0x100).unwrap();
}

#[test]
fn a_return_takes_what_runs_into_it() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            begin(a);
            a.mov(edx, 2).unwrap();
            a.mov(eax, 1).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
        })
        .function("g", &[0xc3]);
    let image = elf.image();
    let f = find(&image, "f");
    let site = image.exit_sites(f).unwrap().remove(0).unwrap();
    // The padding up to the next function, the `pop` and the `ret` are enough together.
    assert_eq!((site.at, site.point, site.own), (Svma(TEXT + 20), 0, 1));
    assert_eq!((site.point_kind(), site.function, site.bytes.len()), (PointKind::Exit, f.start(), 12));
    assert_eq!(image.bytes_at(site.at, 12), Some(&site.bytes[..]));
    assert!(
        site.landings.is_empty()
            && site.scratch().is_empty()
            && site.back_branches().is_empty()
            && !site.are_flags_free()
    );
    // Without padding: the smallest range of five bytes.
    let full = TestElf::new()
        .assemble("f", |a| {
            begin(a);
            a.mov(eax, 1).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
        })
        .function("g", &[0xc3]);
    assert_eq!(ranges(&full, "f"), [(9, 6, 7, 7)]);
}

#[test]
fn nothing_may_land_in_a_displaced_range() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            let mut out = a.create_label();
            begin(a);
            a.test(edi, edi).unwrap();
            a.je(out).unwrap();
            a.xor(eax, eax).unwrap();
            a.set_label(&mut out).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
            a.nop().unwrap();
        })
        .function("g", &[0xc3]);
    // The exit has only the target of `je`: with the `nop` after it, enough for a jump to an island.
    let image = elf.image();
    let site = image.exit_sites(find(&image, "f")).unwrap().remove(0).unwrap();
    assert_eq!((site.at.0 - TEXT, site.point, site.own), (15, 1, 2));
    // The return address of a call, a landing pad, and a branch each end a displaceable range.
    let alone = TestElf::new()
        .assemble("f", |a| {
            begin(a);
            a.ret().unwrap();
            a.call(TEXT).unwrap();
        })
        .function("g", &[0xc3]);
    assert_eq!(exits(&alone, "f"), Ok(vec![Err(TOO_SHORT)]));
}

#[test]
fn the_entry_keeps_what_it_displaces() {
    // Bytes are left after the entry's springboard, so the return has a springboard of its own. A first instruction that cannot stay in
    // place lies under the springboard: rdrand eax.
    let apart = TestElf::new().function("f", &[0x0f, 0xc7, 0xf0, 0x90, 0x90, 0xc3]).function("g", &[0xc3]);
    assert_eq!(ranges(&apart, "f"), [(5, 0, 1, 11)]);
    // Behind one that stays in place, the springboard takes the return: mov eax, 1.
    let behind = TestElf::new().function("f", &[0xb8, 1, 0, 0, 0, 0xc3]).function("g", &[0xc3]);
    assert_eq!(ranges(&behind, "f"), [(5, 0, 1, 1)]);
    // The entry displaces the return, so the return goes with it.
    let within =
        |elf: &TestElf| exits(elf, "f").unwrap().into_iter().map(|s| s.unwrap().is_within_entry()).collect::<Vec<_>>();
    let shared = TestElf::new().function("f", &[0x89, 0xf8, 0xc3]).function("g", &[0xc3]);
    assert_eq!((ranges(&shared, "f"), within(&shared)), (vec![(2, 0, 1, 1)], vec![true]));
    let behind_endbr = TestElf::new().function("f", &[0xf3, 0x0f, 0x1e, 0xfa, 0x89, 0xf8, 0xc3]).function("g", &[0xc3]);
    assert_eq!((ranges(&behind_endbr, "f"), within(&behind_endbr)), (vec![(6, 0, 1, 1)], vec![true]));
    assert_eq!((within(&apart), within(&behind)), (vec![false], vec![true]));
    // The bytes left after the springboard are too short, so the entry displaces the exit too; and a jump that leaves if a condition holds.
    let long = TestElf::new().function("f", &[0x48, 0x8b, 0x47, 0x08, 0xd1, 0xe8, 0xc3]).raw(&[0xf4]);
    assert_eq!((ranges(&long, "f"), within(&long)), (vec![(6, 0, 1, 1)], vec![true]));
    let image = long.image();
    assert_eq!(image.entry_site(find(&image, "f")).unwrap().arrival().unwrap().least, 7);
    let jump = TestElf::new().function("f", &[0x85, 0xff, 0x0f, 0x84, 0x78, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3]);
    let jump = jump.raw(&[0x90; 0x80 - 14]).function("g", &[0xc3]);
    assert_eq!((ranges(&jump, "f"), within(&jump)), (vec![(2, 0, 6, 6), (13, 0, 1, 17)], vec![true, false]));
    // A branch precedes the exit, so its range cannot begin at the entry.
    let overlaps = TestElf::new().function("f", &[0x85, 0xff, 0x74, 0x01, 0xc3, 0xc3]).function("g", &[0xc3]);
    assert_eq!(
        exits(&overlaps, "f").unwrap().into_iter().map(|s| s.map(|s| (s.at.0 - TEXT, s.own))).collect::<Vec<_>>(),
        [Ok((4, 1)), Ok((5, 1))]
    );
}

#[test]
fn a_branch_in_front_of_an_exit_goes_with_it() {
    // cmp rax, -4095; jae 1f; ret; 1: or rax, -1; ret
    let end: &[u8] = &[0x48, 0x3d, 1, 0xf0, 0xff, 0xff, 0x73, 1, 0xc3, 0x48, 0x83, 0xc8, 0xff, 0xc3];
    let elf = TestElf::new().assemble("f", begin).raw(end).symbol("f", TEXT, 9 + 14, FUNC).raw(&[0xf4]);
    assert_eq!(ranges(&elf, "f"), [(9, 8, 9, 9), (18, 4, 5, 5)]);
}

#[test]
fn room_for_islands_is_made_where_there_is_none() {
    // test edi, edi; je 1f; twelve bytes; 1: pop rbp; ret
    let end: &[u8] =
        &[0x85, 0xff, 0x74, 12, 0x48, 0x89, 0xf8, 0x48, 0x01, 0xf0, 0x48, 0x01, 0xd0, 0x48, 0x01, 0xc8, 0x5d, 0xc3];
    let elf = TestElf::new().assemble("f", begin).raw(end).symbol("f", TEXT, 9 + 18, FUNC).raw(&[0xf4]);
    let image = elf.image();
    let site = image.exit_sites(find(&image, "f")).unwrap().remove(0).unwrap();
    assert_eq!((site.at.0 - TEXT, site.own), (25, 2));
    let island_rooms: Vec<_> = site.island_rooms.iter().map(|c| (c.at.0 - TEXT, c.bytes.len())).collect();
    assert_eq!(island_rooms, [(9, 10)]);
}

#[test]
fn jumps_to_other_functions_are_exits() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            let mut start = a.create_label();
            a.set_label(&mut start).unwrap();
            begin(a);
            a.test(eax, eax).unwrap();
            a.je(start).unwrap();
            a.cmp(eax, 7).unwrap();
            a.je(TEXT + 0x100).unwrap();
            a.cmp(eax, 8).unwrap();
            a.je(TEXT + 0x80).unwrap();
            a.cmp(eax, 9).unwrap();
            a.je(TEXT + 0x60).unwrap();
            a.jmp(qword_ptr(rdi + 16)).unwrap();
        })
        .raw(&[0x90; 0x60 - 52])
        // jmp [rip + 0x1000]
        .function("slot", &[0x31, 0xc0, 0x31, 0xd2, 0x31, 0xc9, 0xff, 0x25, 0, 0x10, 0, 0])
        .raw(&[0x90; 20])
        .assemble("f.cold", |a| {
            a.call(TEXT + 0x100).unwrap();
            a.xor(eax, eax).unwrap();
            a.ret().unwrap();
        })
        .raw(&[0x90; 0x80 - 8])
        .function("g", &[0xc3]);
    let image = elf.image();
    let f = find(&image, "f");
    assert_eq!(f.parts(), [Svma(TEXT + 0x80)..Svma(TEXT + 0x88)]);
    let points: Vec<_> = image.exit_sites(f).unwrap().into_iter().map(|s| s.unwrap()).collect();
    let points: Vec<_> = points.iter().map(|s| (s.at.0 - TEXT + u64::from(s.point), s.own - s.point)).collect();
    // The tail jumps to g, to the slot's function and through a pointer, and the return of the cold part; not the loop or the jump to that
    // part.
    assert_eq!(points, [(18, 6), (36, 2), (38, 3), (0x87, 1)]);
    // The springboard of the entry lies behind its first instruction, and takes the jump.
    assert_eq!(ranges(&elf, "slot"), [(0x66, 0, 6, 6)]);
}

#[test]
fn cases_of_a_table_are_followed() {
    let first = TEXT + 14;
    let elf = |third: u64| {
        let table = [first, first + 6, third].map(u64::to_le_bytes).concat();
        TestElf::new()
            .assemble("f", |a| {
                let mut default = a.create_label();
                a.cmp(edi, 2).unwrap();
                a.ja(default).unwrap();
                a.mov(eax, edi).unwrap();
                a.jmp(qword_ptr(rax * 8 + RODATA as i32)).unwrap();
                for value in 1..4 {
                    a.mov(eax, value).unwrap();
                    a.ret().unwrap();
                }
                a.set_label(&mut default).unwrap();
                a.xor(eax, eax).unwrap();
                a.ret().unwrap();
            })
            .function("g", &[0xc3])
            .rodata(&table)
    };
    assert_eq!(ranges(&elf(first + 12), "f"), [(14, 5, 6, 6), (20, 5, 6, 6), (26, 5, 6, 6), (34, 0, 1, 14)]);
    // One case of the table lies elsewhere, and its code may come back.
    assert_eq!(exits(&elf(TEXT + 0x30), "f"), Err(Refusal::UnresolvedJump { offset: Offset(7) }));
}

/// GCC compiles the parser of nginx like this: the index is kept in another register, which is compared.
#[test]
fn a_bound_of_a_copy_bounds_the_index() {
    let elf = |copy: &dyn Fn(&mut CodeAssembler), first: u64| {
        // Behind the table lies the address of another function, so only the bound says where it ends.
        let table = [first, first + 6, first + 12, TEXT + 0x30].map(u64::to_le_bytes).concat();
        TestElf::new()
            .assemble("f", |a| {
                let mut default = a.create_label();
                copy(a);
                a.ja(default).unwrap();
                a.mov(eax, edi).unwrap();
                a.jmp(qword_ptr(rax * 8 + RODATA as i32)).unwrap();
                for value in 1..4 {
                    a.mov(eax, value).unwrap();
                    a.ret().unwrap();
                }
                a.set_label(&mut default).unwrap();
                a.xor(eax, eax).unwrap();
                a.ret().unwrap();
            })
            .function("g", &[0xc3])
            .rodata(&table)
    };
    let whole = |a: &mut CodeAssembler| {
        a.mov(r10d, edi).unwrap();
        a.cmp(r10d, 2).unwrap();
    };
    assert_eq!(ranges(&elf(&whole, TEXT + 18), "f").len(), 4);
    // a copy of another register, of eight bits of the index, and of an earlier value of the index
    let other = |a: &mut CodeAssembler| {
        a.mov(r10d, esi).unwrap();
        a.cmp(r10d, 2).unwrap();
    };
    let narrow = |a: &mut CodeAssembler| {
        a.mov(r10b, dil).unwrap();
        a.cmp(r10d, 2).unwrap();
    };
    let changed = |a: &mut CodeAssembler| {
        a.mov(r10d, edi).unwrap();
        a.add(edi, 1).unwrap();
        a.cmp(r10d, 2).unwrap();
    };
    for (copy, first) in [(&other as &dyn Fn(&mut CodeAssembler), 18), (&narrow, 18), (&changed, 21)] {
        assert!(matches!(exits(&elf(copy, TEXT + first), "f"), Err(Refusal::UnresolvedJump { .. })));
    }
}

#[test]
fn tables_without_a_bound_are_not_trusted() {
    // The second case lies elsewhere, and reading of the table stops there; the return is in the third case.
    let first = TEXT + 7;
    let table = [first, TEXT + 0x30, first + 2].map(u64::to_le_bytes).concat();
    let elf = TestElf::new()
        .assemble("f", |a| {
            a.jmp(qword_ptr(rax * 8 + RODATA as i32)).unwrap();
            a.ud2().unwrap();
            a.ret().unwrap();
        })
        .function("g", &[0xc3])
        .rodata(&table);
    assert_eq!(exits(&elf, "f"), Err(Refusal::UnresolvedJump { offset: Offset(0) }));
}

#[test]
fn jumps_through_pointers_leave_only_where_nothing_is_left() {
    let elf = |behind: &[u8]| TestElf::new().function("f", &[&[0x48, 0x8b, 0x07, 0xff, 0xe0], behind].concat());
    assert_eq!(exits(&elf(&[0x90, 0xcc]), "f").unwrap().len(), 1);
    assert_eq!(exits(&elf(&[0x31, 0xc0, 0xc3]), "f"), Err(Refusal::UnresolvedJump { offset: Offset(3) }));
}

#[test]
fn ways_in_that_are_not_known_are_refused() {
    let elf = |held: u64| {
        TestElf::new()
            .function("f", &[0x31, 0xc0, 0xc3, 0x31, 0xc0, 0xc3])
            .function("g", &[0xc3])
            .rodata(&held.to_le_bytes())
    };
    assert!(matches!(exits(&elf(TEXT + 3), "f"), Err(Refusal::EnteredFromElsewhere)));
    assert_eq!(exits(&elf(TEXT), "f").unwrap().len(), 1);
}

#[test]
fn a_function_that_begins_in_another_one_and_joins_it_leads_into_it() {
    // `inner` is code of `f` that only its own callers reach. It adds 100, and jumps to the tail of `f` (0x1c), or returns.
    let code = |last: [u8; 2]| {
        [
            &[0x48, 0x85, 0xff, 0x78, 0x08, 0xeb, 0x0e, 0x48, 0x83, 0xc7, 0x64][..],
            &last,
            &[0xb8, 7, 0, 0, 0, 0x48, 0x01, 0xff, 0x48, 0x8d, 0x47, 0x01, 0x0f, 0x1f, 0x00],
            &[0x48, 0x8d, 0x44, 0x38, 0x03, 0x48, 0x83, 0xef, 0x01, 0x78, 0x06, 0x40, 0xf6, 0xc7, 0x03, 0x75, 0xef],
            &[0x48, 0x83, 0xc0, 0x05, 0xc3],
        ]
        .concat()
    };
    let ways_in = |last, size| {
        let image = TestElf::new().function("f", &code(last)).symbol("inner", TEXT + 7, size, FUNC).image();
        let cfg = image.analyse(find(&image, "f")).cfg.clone();
        cfg.ways_in.iter().map(|way| (way.at.0 - TEXT, way.reason)).collect::<Vec<_>>()
    };
    // Without a size, it seems to have all of the code behind it, to which `f` branches.
    let branched = |at| (at, WayInReason::BranchFromElsewhere);
    let both = [(0, WayInReason::Entry), (7, WayInReason::Called), branched(13), branched(21)];
    assert_eq!(ways_in([0xeb, 0x0f], 0), both);
    // With one, its jump comes from elsewhere.
    assert_eq!(ways_in([0xeb, 0x0f], 6), [(0, WayInReason::Entry), branched(28)]);
    assert_eq!(ways_in([0x90, 0xc3], 6), [(0, WayInReason::Entry)], "it returns by itself");
}

#[test]
fn functions_whose_exits_are_not_known_are_refused() {
    let computed = TestElf::new().assemble("f", |a| {
        a.imul_3(rax, rdi, 16).unwrap();
        a.add(rax, rsi).unwrap();
        a.jmp(rax).unwrap();
    });
    assert_eq!(exits(&computed, "f"), Err(Refusal::UnresolvedJump { offset: Offset(7) }));
    let runs_on = TestElf::new().function("f", &[0x31, 0xc0]).function("g", &[0xc3]);
    let runs_off = exits(&runs_on, "f").unwrap().remove(0).unwrap();
    assert_eq!((runs_off.at.0 - TEXT, runs_off.point, &runs_off.bytes[..]), (2, 0, &[0x90; 5][..]));
    let runs_on =
        TestElf::new().function("f", &[0x31, 0xc0]).raw(&[0x31, 0xc0]).raw(&[0x99; 12]).function("g", &[0xc3]);
    assert_eq!(exits(&runs_on, "f"), Err(Refusal::RunsOn { offset: Offset(2) }));
    // The code behind crashes: compilers leave out the end of a path that the program declares as impossible.
    for behind in [&[0x48, 0x8b, 0x04, 0x25, 0x18, 0, 0, 0][..], &[0x31, 0xd2, 0x0f, 0x0b], &[0xf4; 14]] {
        let elf = TestElf::new().function("f", &[0x31, 0xc0]).raw(behind).function("g", &[0xc3]);
        assert_eq!(exits(&elf, "f"), Ok(vec![]), "{behind:x?}");
    }
    // a store to address 1, which is meant to crash: no control continues after it
    let crash = [0x31, 0xc0, 0xc7, 0x04, 0x25, 1, 0, 0, 0, 0, 0, 0, 0];
    let crashes = TestElf::new().function("f", &crash).raw(&[0xf4; 3]).function("g", &[0xc3]);
    assert_eq!(exits(&crashes, "f"), Ok(vec![]));
    let unknown = TestElf::new().function("f", &[0x31, 0xc0, 0x06, 0x06, 0xc3]);
    assert_eq!(exits(&unknown, "f"), Err(Refusal::UnknownInstruction { offset: Offset(2) }));
    let chosen =
        TestElf::new().function("f", &[0xc3]).raw(&[0xcc; 15]).raw(&[0xc3]).symbol("chosen", TEXT + 16, 1, IFUNC);
    assert_eq!(exits(&chosen, "chosen"), Err(Refusal::IfuncResolver));
    // Bytes after a return that no branch reaches are not decoded. A call that is the last instruction of a function does not return.
    let data = TestElf::new().function("f", &[0x31, 0xc0, 0xc3, 0x06, 0x06]).function("g", &[0xc3]);
    assert_eq!(exits(&data, "f").unwrap().len(), 1);
    let aborts = TestElf::new().assemble("f", begin).raw(&[0xcc; 0xf7]).function("g", &[0xc3]);
    assert_eq!(exits(&aborts, "f"), Ok(vec![]));
}

#[test]
fn jumps_into_the_middle_of_a_function_must_not_come_back() {
    let elf = |last: &[u8]| {
        TestElf::new()
            .assemble("f", |a| {
                a.mov(eax, 1).unwrap();
                a.test(edi, edi).unwrap();
                a.je(TEXT + 0x12).unwrap();
                a.ret().unwrap();
            })
            .function("g", &[&[0x31, 0xc0, 0x31, 0xd2], last].concat())
    };
    // g ends by itself, or jumps to the middle of f.
    assert_eq!(ranges(&elf(&[0xc3]), "f").len(), 2);
    assert_eq!(exits(&elf(&[0xeb, 0xef]), "f"), Err(Refusal::UnresolvedJump { offset: Offset(7) }));
}

#[test]
fn springboards_of_exits_keep_to_one_page() {
    let elf =
        |code: &[u8]| TestElf::new().raw(&[0x90; 0xff0]).function("f", code).raw(&[0x90; 16]).function("g", &[0xc3]);
    // The padding after the return is long enough, but lies on the next page.
    let plain = [0x31, 0xc0, 0x31, 0xd2, 0x31, 0xc9, 0x31, 0xf6];
    let end = elf(&[&[0xb8, 0, 0, 0, 0][..], &plain, &[0xc3]].concat());
    let [(at, point, own, _)] = ranges(&end, "f")[..] else { panic!() };
    assert_eq!((at, point, own), (0xffb, 2, 3));
    // The return address of a call is the last byte of a page.
    let last = elf(&[0xb8, 0, 0, 0, 0, 0xba, 0, 0, 0, 0, 0xe8, 0x11, 0, 0, 0, 0xc3]);
    assert_eq!(exits(&last, "f"), Ok(vec![Err(Refusal::StraddlesPages)]));
}

#[test]
fn restartable_exits_are_refused() {
    let mut descriptor = [0u8; 32];
    descriptor[8..16].copy_from_slice(&(TEXT + 5).to_le_bytes());
    descriptor[16..24].copy_from_slice(&3u64.to_le_bytes());
    descriptor[24..32].copy_from_slice(&(TEXT + 0x40).to_le_bytes());
    let elf = TestElf::new().function("f", &[0xb8, 1, 0, 0, 0, 0x90, 0x90, 0xc3]).rodata(&descriptor);
    assert_eq!(exits(&elf.rodata_name("__rseq_cs"), "f"), Ok(vec![Err(Refusal::RestartableSequence)]));
}

#[test]
fn parts_are_known_by_jumps_into_their_middle() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            begin(a);
            a.test(eax, eax).unwrap();
            a.je(TEXT + 0x22).unwrap();
            a.pop(rbp).unwrap();
            a.ret().unwrap();
        })
        .raw(&[0x90; 17])
        .function("f.cold", &[0x90, 0x90, 0x5d, 0xc3])
        .raw(&[0x90; 0xdc])
        .function("g", &[0xc3]);
    let image = elf.image();
    let f = find(&image, "f");
    assert_eq!(f.parts(), [Svma(TEXT + 0x20)..Svma(TEXT + 0x24)]);
    assert_eq!(image.exit_sites(f).unwrap().len(), 2);
}

#[test]
fn calls_are_listed() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            begin(a);
            a.call(rax).unwrap();
            // call [rip + 0x1000]
            a.db(&[0xff, 0x15, 0, 0x10, 0, 0]).unwrap();
            a.call(qword_ptr(rbx + 8)).unwrap();
            a.ret().unwrap();
            a.call(rcx).unwrap();
        })
        .raw(&[0x90; 0x100 - 23])
        .function("g", &[0xc3]);
    let image = elf.image();
    let call = |at, len, callee| CallSite { at: Svma(TEXT + at), len, callee };
    assert_eq!(
        image.call_sites(find(&image, "f")).unwrap(),
        [
            call(4, 5, Callee::Direct(Svma(TEXT + 0x100))),
            call(9, 2, Callee::Computed),
            call(11, 6, Callee::Slot(Svma(TEXT + 0x1011))),
            call(17, 3, Callee::Computed),
        ]
    );
}

#[test]
fn a_jump_with_a_stack_pointer_from_elsewhere() {
    type Code = fn(&mut CodeAssembler);
    let is_longjmp = |code: Code| {
        let elf = TestElf::new().assemble("f", code);
        let image = elf.image();
        image.is_longjmp(find(&image, "f"))
    };
    assert!(is_longjmp(|a| {
        a.mov(r8, qword_ptr(rdi + 0x30)).unwrap();
        a.mov(rsp, r8).unwrap();
        a.mov(rbp, r9).unwrap();
        a.nop().unwrap();
        a.jmp(rdx).unwrap();
    }));
    assert!(is_longjmp(|a| {
        a.mov(rsp, qword_ptr(rdi + 0x30)).unwrap();
        a.jmp(qword_ptr(rdi + 0x38)).unwrap();
    }));
    // the function's own frame ends; an instruction runs on the other stack; a tail call
    assert!(!is_longjmp(|a| {
        a.mov(rsp, rbp).unwrap();
        a.pop(rbp).unwrap();
        a.jmp(rdx).unwrap();
    }));
    assert!(!is_longjmp(|a| {
        a.mov(rsp, rbp).unwrap();
        a.jmp(rdx).unwrap();
    }));
    assert!(!is_longjmp(|a| {
        a.mov(rsp, qword_ptr(rdi)).unwrap();
        a.push(rcx).unwrap();
        a.jmp(rdx).unwrap();
    }));
    assert!(!is_longjmp(|a| a.jmp(rdx).unwrap()));
}
