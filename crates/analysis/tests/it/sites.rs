//! Entry sites of small hand-written functions: every field, and every refusal.

use std::sync::Arc;

use crate::support::{FUNC, IFUNC, RODATA, TEXT, TestElf, find};
use iced_x86::code_asm::*;
use ingraft_analysis::FunctionKind;
use ingraft_model::{EdgeKind, Gpr, Offset, PointKind, Refusal, Site, Svma};

const RAX: Gpr = Gpr(0);
const RCX: Gpr = Gpr(1);
const R10: Gpr = Gpr(10);

fn site(elf: &TestElf, name: &str) -> Result<Arc<Site>, Refusal> {
    let image = elf.image();
    image.entry_site(find(&image, name))
}

fn offsets(site: &Site) -> Vec<u64> {
    site.landings.iter().map(|l| l.0 - site.at.0).collect()
}

#[test]
fn a_short_function_borrows_padding() {
    let elf = TestElf::new().function("f", &[0x31, 0xc0, 0xc3]).function("g", &[0xc3]);
    let site = site(&elf, "f").unwrap();
    assert_eq!((site.own, site.bytes.len()), (3, 16));
    assert_eq!(site.scratch(), [RAX]);
    assert!(site.are_flags_free() && site.landings.is_empty() && site.back_branches().is_empty());
    let image = elf.image();
    assert_eq!(image.padding().len(), 1);
    assert_eq!(image.padding()[0].range, Svma(TEXT + 3)..Svma(TEXT + 16));
}

#[test]
fn padding_that_is_reached_is_none() {
    // f falls through into the bytes after it.
    let falls = TestElf::new().function("f", &[0x31, 0xc0]).function("g", &[0xc3]);
    assert_eq!(site(&falls, "f").unwrap().bytes.len(), 2);
    // g jumps into the bytes after f.
    let target = |a: &mut CodeAssembler| a.jmp(TEXT + 5).unwrap();
    let jumped = TestElf::new().function("f", &[0x31, 0xc0, 0xc3]).assemble("g", target);
    assert_eq!(site(&jumped, "f").unwrap().bytes.len(), 3);
    // A word of data holds the address.
    let data =
        TestElf::new().function("f", &[0x31, 0xc0, 0xc3]).function("g", &[0xc3]).rodata(&(TEXT + 4).to_le_bytes());
    assert_eq!(site(&data, "f").unwrap().bytes.len(), 3);
}

#[test]
fn an_endbr_stays() {
    let elf = TestElf::new().function("f", &[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3]);
    let site = site(&elf, "f").unwrap();
    assert_eq!((site.function, site.at, site.own), (Svma(TEXT), Svma(TEXT + 4), 6));
}

#[test]
fn landings_are_found() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            let mut again = a.create_label();
            a.mov(eax, edi).unwrap();
            a.set_label(&mut again).unwrap();
            a.sub(eax, 1).unwrap();
            a.jne(again).unwrap();
            a.call(TEXT + 0x40).unwrap();
            a.ret().unwrap();
        })
        .raw(&[0x90; 64])
        .function("g", &[0xc3])
        .symbol("inner", TEXT + 5, 0, FUNC)
        .rodata(&(TEXT + 7).to_le_bytes());
    // The loop head, another symbol, an address in data, and the call's return address.
    assert_eq!(offsets(&site(&elf, "f").unwrap())[..4], [2, 5, 7, 14]);
}

#[test]
fn branches_back_are_described() {
    let elf = TestElf::new().assemble("f", |a| {
        let mut start = a.create_label();
        a.set_label(&mut start).unwrap();
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.add(rdi, 8).unwrap();
        a.test(rax, rax).unwrap();
        a.jne(start).unwrap();
        a.ret().unwrap();
    });
    let f = site(&elf, "f").unwrap();
    let [back] = f.back_branches() else { panic!("{:?}", f.back_branches()) };
    assert_eq!((back.at, back.from, back.until), (Svma(TEXT + 10), Svma(TEXT + 7), Svma(TEXT + 12)));
    assert_eq!(back.bytes, [0x48, 0x85, 0xc0, 0x75, 0xf4]);
    assert_eq!(offsets(&f), [0u64; 0]);
    // A Go function grows its stack and begins again; the jump back ends the function.
    let go = TestElf::new()
        .assemble("f", |a| {
            let (mut start, mut grow) = (a.create_label(), a.create_label());
            a.set_label(&mut start).unwrap();
            a.cmp(rsp, qword_ptr(r14 + 16)).unwrap();
            a.jbe(grow).unwrap();
            a.ret().unwrap();
            a.set_label(&mut grow).unwrap();
            a.call(TEXT + 0x20).unwrap();
            a.jmp(start).unwrap();
        })
        .raw(&[0xcc; 15])
        .function("morestack", &[0xc3]);
    let f = site(&go, "f").unwrap();
    assert_eq!(f.back_branches().len(), 1);
    // The range ends with the padding after the jump, and begins at the call's return address.
    assert_eq!((f.back_branches()[0].from.0 - TEXT, f.back_branches()[0].until.0 - TEXT), (12, 30));
}

#[test]
fn registers_are_scratch_only_when_dead_and_overwritten() {
    let f = |write: &dyn Fn(&mut CodeAssembler)| {
        let elf = TestElf::new().assemble("f", |a| write(a)).raw(&[0xcc; 32]).function("g", &[0xc3]);
        site(&elf, "f").unwrap()
    };
    // The register is written, but read before that.
    assert_eq!(
        f(&|a| {
            a.add(eax, 1).unwrap();
            a.mov(eax, ecx).unwrap();
            a.ret().unwrap();
        })
        .scratch(),
        []
    );
    // Only half of the register is written.
    assert_eq!(
        f(&|a| {
            a.mov(cx, 1).unwrap();
            a.ret().unwrap();
        })
        .scratch(),
        []
    );
    // The register is dead at the return, as it holds no result.
    assert_eq!(
        f(&|a| {
            let mut out = a.create_label();
            a.test(edi, edi).unwrap();
            a.je(out).unwrap();
            a.mov(r10d, 1).unwrap();
            a.set_label(&mut out).unwrap();
            a.ret().unwrap();
        })
        .scratch(),
        [R10]
    );
    // A register may hold an argument of a call until it is overwritten.
    let passes = |a: &mut CodeAssembler| {
        a.call(TEXT + 0x40).unwrap();
        a.mov(ecx, 1).unwrap();
        a.mov(eax, 1).unwrap();
        a.ret().unwrap();
    };
    assert_eq!(f(&passes).scratch(), []);
    // The function reads a flag that its caller has set.
    assert!(
        !f(&|a| {
            a.setc(al).unwrap();
            a.ret().unwrap();
        })
        .are_flags_free()
    );
    // A shift by zero keeps the flags.
    assert!(
        !f(&|a| {
            a.shl(eax, cl).unwrap();
            a.setc(al).unwrap();
            a.ret().unwrap();
        })
        .are_flags_free()
    );
    assert_eq!(
        f(&|a| {
            a.xor(eax, eax).unwrap();
            a.xor(ecx, ecx).unwrap();
            a.ret().unwrap();
        })
        .scratch(),
        [RAX, RCX]
    );
}

#[test]
fn what_is_no_function_is_refused() {
    let elf = TestElf::new()
        .function("f", &[0xc3])
        .raw(&[0xcc; 15])
        .raw(&[0x31, 0xc0, 0xc3])
        .symbol("chosen", TEXT + 16, 3, IFUNC)
        .raw(&[0xcc; 13])
        .function("both", &[0x31, 0xc0, 0xc3])
        .symbol("both_chosen", TEXT + 32, 3, IFUNC)
        .function("apx", &[0x31, 0xc0, 0x06, 0x06, 0xc3]);
    assert_eq!(site(&elf, "chosen"), Err(Refusal::IfuncResolver));
    assert!(site(&elf, "both").is_ok());
    assert_eq!(site(&elf, "apx"), Err(Refusal::UnknownInstruction { offset: Offset(2) }));
    let image = elf.image();
    let names: Vec<_> = find(&image, "both").names().iter().map(|n| (n.mangled(), n.is_ifunc())).collect();
    assert_eq!(names, [("both", false), ("both_chosen", true)]);
    assert_eq!(find(&image, "chosen").kind(), FunctionKind::IfuncResolver);
}

#[test]
fn computed_jumps_without_a_table_are_refused() {
    let elf = TestElf::new().assemble("f", |a| {
        a.imul_3(rax, rdi, 16).unwrap();
        a.add(rax, rsi).unwrap();
        a.jmp(rax).unwrap();
    });
    assert_eq!(site(&elf, "f"), Err(Refusal::UnresolvedJump { offset: Offset(7) }));
    // A tail call through a pointer is understood.
    let tail = TestElf::new().assemble("f", |a| {
        a.mov(rax, qword_ptr(rdi)).unwrap();
        a.jmp(qword_ptr(rax + 16)).unwrap();
    });
    assert!(site(&tail, "f").is_ok());
}

#[test]
fn restartable_sequences_are_refused() {
    let mut descriptor = [0u8; 32];
    descriptor[8..16].copy_from_slice(&(TEXT + 2).to_le_bytes());
    descriptor[16..24].copy_from_slice(&4u64.to_le_bytes());
    descriptor[24..32].copy_from_slice(&(TEXT + 0x40).to_le_bytes());
    let elf = TestElf::new().function("f", &[0x90; 16]).rodata(&descriptor).rodata_name("__rseq_cs");
    assert_eq!(site(&elf, "f"), Err(Refusal::RestartableSequence));
}

/// C libraries compare the program counter of a thread that is cancelled with labels around a system call.
#[test]
fn functions_whose_labels_are_compared_keep_all_instructions() {
    let handler = |label: u64, by_register: bool| {
        TestElf::new().function("f", &[0x90; 16]).assemble("handler", |a| {
            if by_register {
                a.mov(ecx, label as u32).unwrap();
                a.cmp(rsi, rcx).unwrap();
            } else {
                a.cmp(rsi, label as i32).unwrap();
            }
            a.ret().unwrap();
        })
    };
    for by_register in [false, true] {
        let inside = handler(TEXT + 4, by_register);
        assert_eq!(site(&inside, "f"), Err(Refusal::ComparedAddress));
        assert!(site(&inside, "handler").is_ok());
        assert!(site(&handler(TEXT, by_register), "f").is_ok(), "the function itself may be compared");
    }
}

#[test]
fn jump_tables_are_followed() {
    let cases = |table: u64, absolute: bool| {
        TestElf::new().assemble("f", |a| {
            let mut default = a.create_label();
            if absolute { a.cmp(edi, 2) } else { a.cmp(rdi, 2) }.unwrap();
            a.ja(default).unwrap();
            if absolute {
                a.mov(eax, edi).unwrap();
                a.jmp(qword_ptr(rax * 8 + table as i32)).unwrap();
            } else {
                // lea rdx, [rip + table]
                a.db(&[0x48, 0x8d, 0x15]).unwrap();
                a.dd(&[(table - (TEXT + 13)) as u32]).unwrap();
                a.movsxd(rax, dword_ptr(rdx + rdi * 4)).unwrap();
                a.add(rax, rdx).unwrap();
                a.db(&[0x3e]).unwrap();
                a.jmp(rax).unwrap();
            }
            for value in 1..4 {
                a.mov(eax, value).unwrap();
                a.ret().unwrap();
            }
            a.set_label(&mut default).unwrap();
            a.xor(eax, eax).unwrap();
            a.ret().unwrap();
        })
    };
    for absolute in [false, true] {
        let first = TEXT + if absolute { 14 } else { 23 };
        let mut table = Vec::new();
        // The table has one more entry than the bound allows; that entry points elsewhere in the function.
        for target in [first, first + 6, first + 12, first + 20] {
            match absolute {
                true => table.extend_from_slice(&target.to_le_bytes()),
                false => table.extend_from_slice(&(target.wrapping_sub(RODATA) as u32).to_le_bytes()),
            }
        }
        let elf = cases(RODATA, absolute).rodata(&table);
        let image = elf.image();
        let code = image.analyse(find(&image, "f"));
        assert_eq!(code.cfg.edges.iter().filter(|e| e.kind == EdgeKind::JumpTable).count(), 3, "{code:#x?}");
        assert!(code.cfg.unresolved.is_empty());
        // The word after an absolute table holds an address of code, so control may arrive there.
        assert_eq!(code.cfg.blocks.len(), 6 + usize::from(absolute), "{code:#x?}");
        assert_eq!(code.points_of(PointKind::Exit).count(), 4);
        let site = site(&elf, "f").unwrap();
        assert!(site.landings.contains(&Svma(first + 6)), "{site:x?}");
    }
}

#[test]
fn use_of_gs_is_seen() {
    let uses = |write: &dyn Fn(&mut CodeAssembler)| TestElf::new().assemble("f", |a| write(a)).image().uses_gs();
    let arch_prctl = |code: u32| {
        uses(&|a: &mut CodeAssembler| {
            a.mov(edi, code as i32).unwrap();
            a.mov(eax, 158).unwrap();
            a.syscall().unwrap();
            a.ret().unwrap();
        })
    };
    assert!(arch_prctl(0x1001));
    assert!(!arch_prctl(0x1002));
    assert!(uses(&|a| {
        a.wrgsbase(rax).unwrap();
        a.ret().unwrap();
    }));
    assert!(uses(&|a| {
        a.mov(rax, qword_ptr(0x10).gs()).unwrap();
        a.ret().unwrap();
    }));
    // The bytes after the return are data that looks like a gs prefix.
    assert!(!uses(&|a| {
        a.ret().unwrap();
        a.db(&[0x65, 0x48, 0x8b, 0x00]).unwrap();
    }));
}

#[test]
fn call_targets_become_functions() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            a.call(TEXT + 0x20).unwrap();
            a.ret().unwrap();
        })
        .raw(&[0xcc; 26])
        .raw(&[0x31, 0xc0, 0x74, 0x02, 0x90, 0x90, 0xc3])
        .raw(&[0xcc; 9])
        .function("last", &[0xc3]);
    let image = elf.image();
    let found = image.function_at(Svma(TEXT + 0x20)).unwrap();
    assert_eq!((found.size(), found.display_name().as_ref()), (7, "sub_401020"));
    assert!(image.entry_site(found).unwrap().bytes.len() == 16);
}

#[test]
fn cold_parts_belong_to_their_function() {
    let elf = TestElf::new()
        .assemble("f", |a| {
            a.test(edi, edi).unwrap();
            a.je(TEXT + 0x20).unwrap();
            a.ret().unwrap();
        })
        .raw(&[0xcc; 16])
        .assemble("f.cold", |a| {
            a.xor(ecx, ecx).unwrap();
            a.jmp(TEXT).unwrap();
        });
    let image = elf.image();
    assert_eq!(image.functions().len(), 1);
    let f = find(&image, "f");
    assert_eq!(f.parts(), [Svma(TEXT + 0x20)..Svma(TEXT + 0x24)]);
    let site = image.entry_site(f).unwrap();
    assert_eq!(site.back_branches().len(), 1);
    assert_eq!(site.scratch(), [] as [Gpr; 0]);
    let code = image.analyse(f);
    assert_eq!(code.cfg.blocks.len(), 3);
    assert!(code.cfg.edges.iter().all(|e| e.kind != EdgeKind::TailJump));
}

#[test]
fn hand_made_return_addresses_are_landings() {
    // the form of Go's `goexit`, in any program
    let bottom = TestElf::new().function("bottom", &[0x90, 0xe8, 0, 0, 0, 0, 0x90]);
    assert_eq!(site(&bottom, "bottom"), Err(Refusal::EnteredInside { offset: Offset(1) }));
    // an address of code and a small number
    let sums: [fn(&mut CodeAssembler); 3] = [
        |a| a.inc(rcx).unwrap(),
        |a| a.add(rcx, 1).unwrap(),
        |a| {
            a.mov(rdx, rdi).unwrap();
            a.add(rcx, 1).unwrap();
        },
    ];
    for sum in sums {
        let elf = TestElf::new().function("f", &[0x50, 0x48, 0x83, 0xc0, 0x08, 0x58, 0xc3]).assemble("g", |a| {
            a.lea(rcx, qword_ptr(TEXT)).unwrap();
            sum(a);
            a.push(rcx).unwrap();
            a.ret().unwrap();
        });
        assert_eq!(offsets(&site(&elf, "f").unwrap()).first(), Some(&1));
    }
    // the addition is to another register, so it does not count
    let elf = TestElf::new().function("f", &[0x50, 0x48, 0x83, 0xc0, 0x08, 0x58, 0xc3]).assemble("g", |a| {
        a.lea(rcx, qword_ptr(TEXT)).unwrap();
        a.inc(rdx).unwrap();
        a.ret().unwrap();
    });
    assert!(site(&elf, "f").unwrap().landings.is_empty());
}
