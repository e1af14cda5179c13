//! The routine that calls functions of the program has one right form: it is compared with it, instruction by instruction. What makes it right is
//! not for an abstract execution to find out, as what the function does is not known.

use iced_x86::{Formatter, Instruction, IntelFormatter};
use ingraft_model::layout::{CALL_SP, CALLING, header};
use ingraft_model::{Call, VectorState};

use super::walk::Walk;
use super::{Flaw, VerifyError, fail};
use crate::environment::Environment;

/// One instruction of the right form.
enum Right {
    Text(String),
    /// `je` to the instruction of that number.
    Skip(usize),
}

/// In this order they are pushed, and in the other they come back.
const KEPT: &str = "rax rdx rbx rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15";
/// What is loaded from the words of the snippet, from the function on.
const LOADED: &str = "rbx rdi rsi rdx rcx r8 r9";

/// Proves the routine at `at`.
pub(super) fn prove(walk: &mut Walk<'_>, env: &Environment, at: u64) -> Result<(), VerifyError> {
    let Some(vectors) = env.vectors.filter(VectorState::is_sound) else { return fail(at, Flaw::Forbidden) };
    let form = form(env, vectors);
    let mut instructions: Vec<Instruction> = Vec::with_capacity(form.len());
    let mut next = at;
    for _ in &form {
        let i = *walk.memory().decode(next)?;
        next = i.next_ip();
        walk.mark(&i)?;
        instructions.push(i);
    }
    for (i, right) in instructions.iter().zip(&form) {
        let is_right = match right {
            Right::Text(right) => !i.is_jcc_short_or_near() && words(i) == *right,
            Right::Skip(to) => {
                let target = instructions.get(*to).map(Instruction::ip);
                i.mnemonic() == iced_x86::Mnemonic::Je && Some(i.near_branch_target()) == target
            }
        };
        if !is_right {
            return fail(i.ip(), Flaw::Forbidden);
        }
    }
    Ok(())
}

/// An instruction in words, with the sizes of what it touches.
fn words(i: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_signed_immediate_operands(false);
    options.set_memory_size_options(iced_x86::MemorySizeOptions::Always);
    let mut text = String::new();
    formatter.format(i, &mut text);
    text
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
    let taken = 8 * (Call::ARGS_MAX as u64 + 1);
    let end = || [format!("lea rsp,[rsp+{taken:#x}]"), "jmp rax".to_owned()];
    let gs = |what: String| ["rdgsbase rax".to_owned(), what, "wrgsbase rax".to_owned()];

    let mut form: Vec<Right> = Vec::new();
    let put = |form: &mut Vec<Right>, lines: Vec<String>| form.extend(lines.into_iter().map(Right::Text));
    put(&mut form, vec![alive.clone()]);
    let child = form.len();
    form.push(Right::Skip(0));
    put(&mut form, vec!["pushfq".to_owned(), "cld".to_owned()]);
    put(&mut form, kept.iter().map(|r| format!("push {r}")).collect());
    put(&mut form, vec!["mov rbp,rsp".to_owned(), format!("sub rsp,{:#x}", area + 64)]);
    put(&mut form, vec![format!("and rsp,{:#x}", u64::MAX - 63), format!("mov qword ptr [rsp+{area:#x}],rbp")]);
    put(&mut form, vec!["xor eax,eax".to_owned()]);
    put(&mut form, (0..8).map(|n| format!("mov qword ptr [rsp+{:#x}],rax", 512 + 8 * n)).collect());
    put(&mut form, components.to_vec());
    put(&mut form, ["xsave64 [rsp]", "fninit", "fldcw word ptr [rsp]"].map(str::to_owned).to_vec());
    put(&mut form, vec![open("inc")]);
    put(&mut form, vec![format!("mov qword ptr gs:[{:#x}],rsp", data.displacement(CALL_SP))]);
    put(&mut form, gs(format!("add rax,{CALLING:#x}")).to_vec());
    let first = 8 * (kept.len() + 1);
    let load = |(n, r): (usize, &str)| format!("mov {r},qword ptr [rbp+{:#x}]", first + 8 * n);
    put(&mut form, LOADED.split(' ').enumerate().map(load).collect());
    put(&mut form, ["xor eax,eax", "call rbx", "mov rcx,rax"].map(str::to_owned).to_vec());
    put(&mut form, gs(format!("and rax,{:#x}", data.stride.wrapping_neg())).to_vec());
    put(&mut form, vec![alive]);
    form.push(Right::Skip(form.len() + 2));
    put(&mut form, vec![open("dec")]);
    put(&mut form, components.to_vec());
    put(&mut form, vec!["xrstor64 [rsp]".to_owned(), format!("mov rsp,qword ptr [rsp+{area:#x}]")]);
    put(&mut form, kept.iter().rev().map(|r| format!("pop {r}")).collect());
    put(&mut form, vec!["popfq".to_owned()]);
    put(&mut form, end().to_vec());
    let last = form.len();
    if let Some(skip) = form.get_mut(child) {
        *skip = Right::Skip(last);
    }
    put(&mut form, vec!["xor ecx,ecx".to_owned()]);
    put(&mut form, end().to_vec());
    form
}
