//! The calls of a function.

use iced_x86::{Instruction, Mnemonic};
use ingraft_model::{CallSite, Callee, Refusal, Svma};

use crate::body::Body;
use crate::entry;
use crate::flow;
use crate::function::Function;
use crate::image::Image;

pub(crate) fn sites(image: &Image, function: &Function) -> Result<Vec<CallSite>, Refusal> {
    entry::check_kind(function)?;
    let body = Body::new(image, function);
    let flow = flow::follow(&body)?;
    let reached =
        body.code.iter().zip(&flow.reached).filter(|(i, reached)| **reached && i.mnemonic() == Mnemonic::Call);
    Ok(reached.map(|(i, _)| CallSite { at: Svma(i.ip()), len: i.len() as u8, callee: callee(i) }).collect())
}

fn callee(i: &Instruction) -> Callee {
    if i.is_call_near() {
        Callee::Direct(Svma(i.near_branch_target()))
    } else if i.is_ip_rel_memory_operand() {
        Callee::Slot(Svma(i.ip_rel_memory_address()))
    } else {
        Callee::Computed
    }
}
