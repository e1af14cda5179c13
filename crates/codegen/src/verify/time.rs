//! Accepted form of the routine that asks the vDSO for the time. The routine calls a function of the kernel's vDSO. The analysis has proven
//! before that this function uses only general purpose registers (`functions/vdso.rs` in `analysis`).

use ingraft_model::Avma;

use super::VerifyError;
use super::form::{self, Right, put};
use super::interpreter::Interpreter;
use crate::code::environment::Environment;

/// Proves the routine at `at`.
pub(super) fn prove(
    interpreter: &mut Interpreter<'_>,
    env: &Environment,
    function: Avma,
    at: u64,
) -> Result<(), VerifyError> {
    form::prove(interpreter, &form(env, function), at).map(drop)
}

fn form(env: &Environment, function: Avma) -> Vec<Right> {
    let data = &env.data;
    let word = |offset: u32| format!("qword ptr gs:[{:#x}]", data.displacement(offset));
    let (open, last) = (word(data.readings_open()), word(data.readings_open() - 8));
    let words = |text: &str| text.split("; ").map(str::to_owned).collect::<Vec<_>>();

    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(
        f,
        words("push r8; push r9; push r10; push rbx; mov rbx,rax; push rcx; push rsi; push rdi; push r11; push rbp"),
    );
    put(f, [format!("inc {open}")]);
    // clock_gettime(CLOCK_MONOTONIC, two words at a multiple of 16)
    put(f, words("mov rbp,rsp; sub rsp,0x10; and rsp,0xfffffffffffffff0; mov edi,0x1; mov rsi,rsp"));
    put(f, [format!("mov rax,{:#x}", function.0)]);
    put(f, words("call rax; pop rcx; pop rdx; mov rsp,rbp"));
    put(f, [format!("dec {open}")]);
    put(f, words("pop rbp; test eax,eax"));
    f.push(Right::Jump("jne", "failed"));
    put(f, words("imul rcx,0x3b9aca00; add rdx,rcx"));
    put(f, [format!("mov {last},rdx")]);
    f.push(Right::Label("failed"));
    put(f, [format!("mov rdx,{last}")]);
    put(f, words("pop r11; pop rdi; pop rsi; pop rcx; mov rax,rbx; pop rbx; pop r10; pop r9; pop r8; jmp rax"));
    form
}
