//! Accepted form of the routine that calls functions of the program. Abstract execution could not prove the routine, because the effects
//! of the called function are unknown.

use ingraft_model::layout::{CALL_SP, CALLING, header};
use ingraft_model::{ProgramCall, VectorState};

use super::form::{self, Right, put};
use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};
use crate::code::environment::Environment;

/// Registers that the routine saves, in the order of the pushes.
const KEPT: &str = "rax rdx rbx rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15";
/// Registers that the routine loads from the snippet's words, from the function's address on.
const LOADED: &str = "rbx rdi rsi rdx rcx r8 r9";

/// Proves the routine at `at`.
pub(super) fn prove(interpreter: &mut Interpreter<'_>, env: &Environment, at: u64) -> Result<(), VerifyError> {
    let Some(vectors) = env.vectors.filter(VectorState::is_sound) else { return fail(at, Flaw::Forbidden) };
    form::prove(interpreter, &form(env, vectors), at).map(drop)
}

fn form(env: &Environment, vectors: VectorState) -> Vec<Right> {
    let data = &env.data;
    let area = 64 * u64::from(vectors.bytes).div_ceil(64);
    let alive = format!("cmp dword ptr [{:#x}],0x0", data.alive());
    let open = |what: &str| format!("lock {what} dword ptr [{:#x}]", data.displacement(header::CALLS_OPEN));
    let components = [
        format!("mov eax,{:#x}", vectors.components & 0xffff_ffff),
        format!("mov edx,{:#x}", vectors.components >> 32),
    ];
    let kept: Vec<&str> = KEPT.split(' ').collect();
    let taken = 8 * (ProgramCall::ARGS_MAX as u64 + 1);
    let end = || [format!("lea rsp,[rsp+{taken:#x}]"), "jmp rax".to_owned()];
    let gs = |what: String| ["rdgsbase rax".to_owned(), what, "wrgsbase rax".to_owned()];

    let mut form: Vec<Right> = Vec::new();
    put(&mut form, vec![alive.clone()]);
    form.push(Right::Jump("je", "child"));
    put(&mut form, vec!["pushfq".to_owned(), "cld".to_owned()]);
    put(&mut form, kept.iter().map(|r| format!("push {r}")));
    put(&mut form, vec!["mov rbp,rsp".to_owned(), format!("sub rsp,{:#x}", area + 64)]);
    put(&mut form, vec![format!("and rsp,{:#x}", u64::MAX - 63), format!("mov qword ptr [rsp+{area:#x}],rbp")]);
    put(&mut form, vec!["xor eax,eax".to_owned()]);
    put(&mut form, (0..8).map(|n| format!("mov qword ptr [rsp+{:#x}],rax", 512 + 8 * n)));
    put(&mut form, components.clone());
    put(&mut form, ["xsave64 [rsp]", "fninit", "fldcw word ptr [rsp]"]);
    put(&mut form, vec![open("inc")]);
    put(&mut form, vec![format!("mov qword ptr gs:[{:#x}],rsp", data.displacement(CALL_SP))]);
    put(&mut form, gs(format!("add rax,{CALLING:#x}")));
    let first = 8 * (kept.len() + 1);
    let load = |(n, r): (usize, &str)| format!("mov {r},qword ptr [rbp+{:#x}]", first + 8 * n);
    put(&mut form, LOADED.split(' ').enumerate().map(load));
    put(&mut form, ["xor eax,eax", "call rbx", "mov rcx,rax"]);
    put(&mut form, gs(format!("and rax,{:#x}", data.stride.wrapping_neg())));
    put(&mut form, vec![alive]);
    form.push(Right::Jump("je", "uncounted"));
    put(&mut form, vec![open("dec")]);
    form.push(Right::Label("uncounted"));
    put(&mut form, components);
    put(&mut form, vec!["xrstor64 [rsp]".to_owned(), format!("mov rsp,qword ptr [rsp+{area:#x}]")]);
    put(&mut form, kept.iter().rev().map(|r| format!("pop {r}")));
    put(&mut form, vec!["popfq".to_owned()]);
    put(&mut form, end());
    form.push(Right::Label("child"));
    put(&mut form, vec!["xor ecx,ecx".to_owned()]);
    put(&mut form, end());
    form
}
