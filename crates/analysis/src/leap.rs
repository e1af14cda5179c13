//! What longjmp ends with: a jump through a register or memory right behind a stack pointer that comes from there too.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::body::Body;
use crate::flow;
use crate::function::Function;
use crate::image::Image;

/// C libraries have a move of another register and a marker for debuggers in between.
const BETWEEN_MAX: usize = 4;

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
