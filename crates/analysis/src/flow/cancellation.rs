//! Functions that may run while asynchronous cancellation is on. A thread that is cancelled there is unwound from where it stands. In code
//! without unwind tables, its destructors and cleanup handlers would not run.

use iced_x86::{Instruction, Mnemonic, Register};
use ingraft_model::{Callee, Svma};

use crate::flow::body::DecodedFunction;
use crate::flow::returns;
use crate::functions::function::Function;
use crate::functions::unwinders::SET_CANCELLATION_TYPE;
use crate::image::AnalysedImage;

/// Offset in bytes of the address of the thread's descriptor from the thread pointer.
const OWN: u64 = 0x10;

/// The instruction of a function that changes the type of cancellation, or calls a function that does so; `None` if none is found. glibc
/// before 2.41 calls functions without a name around its system calls, which are found by their form. They are looked for with `by_form`.
pub(crate) fn changed<'b>(body: &'b DecodedFunction<'_>, by_form: bool) -> Option<&'b Instruction> {
    let calls = |i: &&Instruction| match returns::callee(i) {
        Some(Callee::Direct(at)) => match body.image.stub_slot(at) {
            Some(slot) => is_imported(body.image, slot),
            None => body.image.function_at(at).is_some_and(|f| changes(body.image, f, by_form)),
        },
        Some(Callee::Slot(slot)) => is_imported(body.image, slot),
        Some(Callee::Computed) | None => false,
    };
    exchange(&body.code).or_else(|| body.code.iter().find(calls))
}

fn is_imported(image: &AnalysedImage, slot: Svma) -> bool {
    image.import_at(slot) == Some(SET_CANCELLATION_TYPE)
}

fn changes(image: &AnalysedImage, function: &Function, by_form: bool) -> bool {
    function.names().iter().any(|name| name.mangled() == SET_CANCELLATION_TYPE)
        || by_form && exchange(&DecodedFunction::new(image, function).code).is_some()
}

/// The atomic exchange of a word in the thread's own descriptor, which holds the type of cancellation in glibc.
fn exchange(code: &[Instruction]) -> Option<&Instruction> {
    let mut exchanges = code.iter().filter(|i| i.has_lock_prefix() && i.mnemonic() == Mnemonic::Cmpxchg).peekable();
    exchanges.peek()?;
    let in_fs = |i: &Instruction| i.segment_prefix() == Register::FS;
    let is_own = |i: &&Instruction| {
        let at = i.memory_base() == Register::None && i.memory_displacement64() == OWN;
        in_fs(i) && i.mnemonic() == Mnemonic::Mov && at
    };
    let own: Vec<Register> = code.iter().filter(is_own).map(Instruction::op0_register).collect();
    let within = |i: &&Instruction| i.mnemonic() == Mnemonic::Lea && own.contains(&i.memory_base());
    let inside: Vec<Register> = code.iter().filter(within).map(Instruction::op0_register).collect();
    exchanges.find(|i| in_fs(i) || own.contains(&i.memory_base()) || inside.contains(&i.memory_base()))
}
