//! What longjmp ends with: a jump through a register or memory right behind a stack pointer that comes from there too.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::flow;
use crate::flow::body::Body;
use crate::functions::function::Function;
use crate::image::Image;

/// C libraries have a move of another register and a marker for debuggers in between.
const BETWEEN_MAX: usize = 4;

/// Longest encoding of such a jump.
const JUMP_MAX: u64 = 8;

/// The numbers of the functions that end with one, and have no other way out.
pub(crate) fn all(image: &Image) -> Vec<usize> {
    let functions = image.functions().iter().enumerate();
    functions.filter(|(_, f)| may_leap(image, f) && leaps(image, f)).map(|(number, _)| number).collect()
}

/// Whether a function can end with a jump through a register or memory (`ff /4`): most need not be decoded.
fn may_leap(image: &Image, function: &Function) -> bool {
    let len = function.size.min(JUMP_MAX);
    let last = image.elf().data_at(function.start + function.size - len, len).unwrap_or_default();
    last.windows(2).any(|bytes| bytes[0] == 0xff && bytes[1] >> 3 & 7 == 4)
}

/// Whether every way out of a function is one.
pub(crate) fn leaps(image: &Image, function: &Function) -> bool {
    let body = Body::new(image, function);
    let Ok(flow) = flow::follow(&body) else { return false };
    let leap = |&exit: &usize| body.code[exit].flow_control() == FlowControl::IndirectBranch && lands(&body, exit);
    !flow.exits.is_empty() && flow.runs_on.is_empty() && flow.exits.iter().all(leap)
}

/// Whether the stack pointer at a jump is one that was brought along.
fn lands(body: &Body<'_>, jump: usize) -> bool {
    let mut end = body.code[jump].ip();
    for i in body.code[..jump].iter().rev().take(BETWEEN_MAX) {
        if i.next_ip() != end {
            return false;
        }
        match i.mnemonic() {
            Mnemonic::Mov if i.op0_register() == Register::RSP => return comes_from_elsewhere(i),
            Mnemonic::Mov | Mnemonic::Nop => end = i.ip(),
            _ => return false,
        }
    }
    false
}

fn comes_from_elsewhere(i: &Instruction) -> bool {
    // what is moved from the frame pointer, or from the frame itself, belongs to the same call
    let of_frame = |r| matches!(r, Register::RBP | Register::RSP);
    !of_frame(i.op1_register()) && !of_frame(i.memory_base())
}
