//! The last step of longjmp: a jump through a register or memory, right after a load of the stack pointer with a value of another frame.

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::flow::FlowGraph;
use crate::flow::body::DecodedFunction;
use crate::functions::function::Function;
use crate::image::AnalysedImage;

/// Largest number of instructions searched before the jump. C libraries move another register and place a marker for debuggers in between.
const BETWEEN_MAX: usize = 4;

/// Length in bytes of the longest encoding of such a jump.
const JUMP_MAX: u64 = 8;

/// Indices of the functions that leave only by such a jump.
pub(crate) fn all(image: &AnalysedImage) -> Vec<usize> {
    let functions = image.functions().iter().enumerate();
    functions.filter(|(_, f)| may_be_longjmp(image, f) && is_longjmp(image, f)).map(|(number, _)| number).collect()
}

/// Whether the last bytes of a function may be a jump through a register or memory (`ff /4`); most functions need not be decoded.
fn may_be_longjmp(image: &AnalysedImage, function: &Function) -> bool {
    let len = function.size.min(JUMP_MAX);
    let last = image.elf().data_at(function.start + function.size - len, len).unwrap_or_default();
    last.windows(2).any(|bytes| bytes[0] == 0xff && bytes[1] >> 3 & 7 == 4)
}

/// Whether every exit of a function is such a jump.
pub(crate) fn is_longjmp(image: &AnalysedImage, function: &Function) -> bool {
    let body = DecodedFunction::new(image, function);
    let Ok(flow) = FlowGraph::complete(&body) else { return false };
    let jumps = |&exit: &usize| body.code[exit].flow_control() == FlowControl::IndirectBranch && lands(&body, exit);
    !flow.found.exits.is_empty() && flow.found.runs_on.is_empty() && flow.found.exits.iter().all(jumps)
}

/// Whether the stack pointer at a jump was loaded from another frame.
fn lands(body: &DecodedFunction<'_>, jump: usize) -> bool {
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
    // a value from the frame pointer or from the frame itself belongs to the same call
    let of_frame = |r| matches!(r, Register::RBP | Register::RSP);
    !of_frame(i.op1_register()) && !of_frame(i.memory_base())
}
