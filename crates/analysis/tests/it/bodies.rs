//! Whole functions that can be copied, and reasons why others cannot.

use std::sync::Arc;

use crate::support::{TEXT, TestElf, find};
use iced_x86::IcedError;
use iced_x86::code_asm::*;
use ingraft_model::{EdgeKind, FunctionBody, Refusal};

fn body(elf: &TestElf) -> Result<Arc<FunctionBody>, Refusal> {
    let image = elf.image();
    image.body(find(&image, "f"))
}

fn why(elf: &TestElf) -> &'static str {
    match body(elf).unwrap_err() {
        Refusal::NotDisplaceable { why, .. } => why,
        other => panic!("{other}"),
    }
}

fn with(write: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> TestElf {
    TestElf::new().assemble("f", |a| write(a).unwrap())
}

const NOT_CONSTANT: &str = "a system call whose number is not a constant stays in its place";
const CHANGES: &str = "a system call that changes stacks or processes stays in its place";
const UNUSUAL: &str = "it enters the kernel in an unusual way";
const CANCELLED: &str = "a thread that is cancelled asynchronously there must find unwind tables";

#[test]
fn a_system_call_with_a_constant_number_ends_a_block() {
    let elf = with(|a| {
        a.mov(eax, 39)?;
        a.syscall()?;
        a.add(rax, 1)?;
        a.ret()
    });
    let body = body(&elf).unwrap();
    assert_eq!(body.blocks.len(), 2);
    assert_eq!(body.edges.iter().map(|edge| edge.kind).collect::<Vec<_>>(), [EdgeKind::CallReturn]);
}

#[test]
fn the_number_may_come_from_other_blocks_and_registers() {
    // A loop in which r12 holds the number over a call, and rbp over a system call.
    let elf = with(|a| {
        let (mut head, mut end) = (a.create_label(), a.create_label());
        a.mov(r12d, 202)?;
        a.xor(ebp, ebp)?;
        a.set_label(&mut head)?;
        a.test(rdi, rdi)?;
        a.je(end)?;
        a.mov(eax, r12d)?;
        a.syscall()?;
        a.mov(rax, rbp)?;
        a.syscall()?;
        a.dec(rdi)?;
        a.jmp(head)?;
        a.set_label(&mut end)?;
        a.ret()
    });
    assert_eq!(body(&elf).unwrap().blocks.len(), 6);
}

#[test]
fn a_number_that_is_not_known_is_refused() {
    assert_eq!(
        why(&with(|a| {
            a.mov(rax, rdi)?;
            a.syscall()?;
            a.ret()
        })),
        NOT_CONSTANT
    );
    // Different numbers by two ways.
    assert_eq!(
        why(&with(|a| {
            let mut call = a.create_label();
            a.mov(eax, 1)?;
            a.test(rdi, rdi)?;
            a.je(call)?;
            a.mov(eax, 2)?;
            a.set_label(&mut call)?;
            a.syscall()?;
            a.ret()
        })),
        NOT_CONSTANT
    );
    // The result of the first one.
    assert_eq!(
        why(&with(|a| {
            a.mov(eax, 39)?;
            a.syscall()?;
            a.syscall()?;
            a.ret()
        })),
        NOT_CONSTANT
    );
    // A part of the register is overwritten.
    assert_eq!(
        why(&with(|a| {
            a.mov(eax, 39)?;
            a.mov(al, dil)?;
            a.syscall()?;
            a.ret()
        })),
        NOT_CONSTANT
    );
}

#[test]
fn system_calls_that_change_the_stack_or_the_process_are_refused() {
    for number in [11, 15, 56, 57, 58, 435] {
        let elf = with(|a| {
            a.mov(eax, number)?;
            a.syscall()?;
            a.ret()
        });
        assert_eq!(why(&elf), CHANGES, "{number}");
    }
}

#[test]
fn other_ways_into_the_kernel_are_refused() {
    assert_eq!(
        why(&with(|a| {
            a.mov(eax, 39)?;
            a.int(0x80)?;
            a.ret()
        })),
        UNUSUAL
    );
}

/// A function of glibc's form that turns asynchronous cancellation on.
fn enable(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rcx, qword_ptr(0x10).fs())?;
    a.mov(eax, dword_ptr(rcx + 0x308))?;
    a.mov(edx, eax)?;
    a.or(edx, 2)?;
    a.lea(rsi, rcx + 0x308)?;
    a.lock().cmpxchg(dword_ptr(rsi), edx)?;
    a.ret()
}

#[test]
fn functions_with_asynchronous_cancellation_are_refused() {
    let callee = TestElf::new().assemble("enable", |a| enable(a).unwrap());
    let calls = callee.assemble("f", |a| {
        let mut write = || -> Result<(), IcedError> {
            a.call(TEXT)?;
            a.mov(eax, 0)?;
            a.syscall()?;
            a.ret()
        };
        write().unwrap();
    });
    assert_eq!(why(&calls), CANCELLED);
    assert_eq!(why(&with(enable)), CANCELLED, "the function itself");
    let own = with(|a| {
        a.lock().cmpxchg(dword_ptr(0x308).fs(), edx)?;
        a.ret()
    });
    assert_eq!(why(&own), CANCELLED);
    let named = TestElf::new().assemble("pthread_setcanceltype", |a| a.ret().unwrap()).assemble("f", |a| {
        a.call(TEXT).unwrap();
        a.ret().unwrap();
    });
    assert_eq!(why(&named), CANCELLED);
}

#[test]
fn a_lock_whose_owner_is_the_thread_is_no_cancellation() {
    let elf = with(|a| {
        a.mov(r8, qword_ptr(0x10).fs())?;
        a.xor(eax, eax)?;
        a.lock().cmpxchg(dword_ptr(rdi), edx)?;
        a.mov(qword_ptr(rdi + 8), r8)?;
        a.mov(eax, 202)?;
        a.syscall()?;
        a.ret()
    });
    assert_eq!(body(&elf).unwrap().blocks.len(), 2);
}

#[test]
fn a_number_that_equals_an_address_within_an_instruction_is_no_arrival() {
    let landings = |word: u64| {
        let elf = with(|a| {
            a.call(TEXT + 16)?;
            a.mov(eax, 1)?;
            a.ret()
        });
        let elf = elf.function("g", &[0xc3]).rodata(&word.to_le_bytes());
        let body = body(&elf).unwrap();
        let block = &body.blocks.as_slice()[1];
        assert_eq!(block.block.range.start.0, TEXT + 5);
        block.room.as_ref().unwrap().landings.iter().map(|at| at.0 - TEXT).collect::<Vec<_>>()
    };
    assert_eq!(landings(TEXT + 6), []);
    assert_eq!(landings(TEXT + 10), [10]);
}
