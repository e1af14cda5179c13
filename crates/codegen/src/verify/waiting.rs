//! System calls of the routines that wait: at the loader's hook, and for room in a buffer. Each must be one of a few, and the instructions
//! right before it set the arguments.

use iced_x86::{Code, Instruction, Register};
use ingraft_model::layout::header;

use super::system_call::{SystemCall, TIME_WORDS};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::snippet::cpu::CLOCK_GETTIME;
use crate::snippet::loader::{ANY_BIT, FUTEX, FUTEX_WAIT_BITSET, FUTEX_WAKE, ONE};
use crate::snippet::wall::CLOCK_MONOTONIC;

/// Value of a register that is set right before a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Number(i32),
    StackPointer,
}

/// System call for which the instructions before a `syscall` set the arguments; `before(1)` is the last of these. `None` if it is not
/// permitted.
pub(super) fn call(env: &Environment, routine: Routine, before: &dyn Fn(usize) -> Instruction) -> Option<SystemCall> {
    let given: Vec<_> = (1..).map(before).map_while(|i| given(&i).map(|(r, value)| (r, value, i.ip()))).collect();
    // If several instructions set a register, the last one counts.
    let find = |r: Register| given.iter().find(|(set, ..)| *set == r);
    let needs = |wanted: &[(Register, Given)]| {
        let found: Option<Vec<u64>> =
            wanted.iter().map(|(r, value)| find(*r).filter(|(_, is, _)| is == value).map(|(.., at)| *at)).collect();
        found?.into_iter().min()
    };
    let number = |r, value| (r, Given::Number(value));
    let address = |at| Given::Number(env.data.displacement(at).cast_signed());
    let time = || {
        needs(&[
            number(Register::RAX, CLOCK_GETTIME),
            number(Register::RDI, CLOCK_MONOTONIC),
            (Register::RSI, Given::StackPointer),
        ])
    };
    let wake = || {
        needs(&[
            number(Register::RAX, FUTEX),
            (Register::RDI, address(header::LOADS)),
            number(Register::RSI, FUTEX_WAKE),
            number(Register::RDX, ONE),
        ])
    };
    let wait = |at| {
        needs(&[
            number(Register::RAX, FUTEX),
            (Register::RDI, address(at)),
            number(Register::RSI, FUTEX_WAIT_BITSET),
            (Register::R10, Given::StackPointer),
            number(Register::R9, ANY_BIT),
        ])
    };
    let asks = time().map(|start| SystemCall { start, writes: TIME_WORDS, pushed: None });
    let other = || match routine {
        Routine::Room => wait(header::DRAINS),
        _ => wake().or_else(|| wait(header::ANSWERED)),
    };
    asks.or_else(|| other().map(|start| SystemCall { start, writes: 0, pushed: None }))
}

/// Register and value, if all that the instruction does is to set a register to a known value.
fn given(i: &Instruction) -> Option<(Register, Given)> {
    match i.code() {
        Code::Mov_r32_imm32 => Some((i.op0_register().full_register(), Given::Number(i.immediate32().cast_signed()))),
        Code::Mov_rm64_r64 | Code::Mov_r64_rm64 if i.op1_register() == Register::RSP && i.op0_register().is_gpr64() => {
            Some((i.op0_register(), Given::StackPointer))
        }
        _ => None,
    }
}
