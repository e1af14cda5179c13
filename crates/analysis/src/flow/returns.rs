//! Callees that never return to their caller.

use iced_x86::Instruction;
use ingraft_model::{Callee, Svma};

use crate::flow::body::DecodedFunction;
use crate::flow::graph::FlowGraph;
use crate::functions::function::{Function, FunctionKind};
use crate::image::AnalysedImage;
use crate::text::transfer::ControlTransfer;

/// Functions of system libraries that never return to their caller, by the names under which they are imported. Sorted.
const NEVER_RETURN: [&str; 24] = [
    "_Exit",
    "_Unwind_Resume",
    "_ZSt20__throw_length_errorPKc",
    "_ZSt17__throw_bad_allocv",
    "_ZSt19__throw_logic_errorPKc",
    "_ZSt24__throw_out_of_range_fmtPKcz",
    "_ZSt9terminatev",
    "__assert_fail",
    "__chk_fail",
    "__cxa_bad_cast",
    "__cxa_call_unexpected",
    "__cxa_pure_virtual",
    "__cxa_rethrow",
    "__cxa_throw",
    "__fortify_fail",
    "__longjmp_chk",
    "__stack_chk_fail",
    "_exit",
    "_longjmp",
    "abort",
    "exit",
    "longjmp",
    "pthread_exit",
    "siglongjmp",
];

/// Whether the file alone makes it certain that a call does not return.
pub(crate) fn never_returns(image: &AnalysedImage, callee: Callee) -> bool {
    let slot = match callee {
        Callee::Direct(at) => match image.stub_slot(at) {
            None => return has_no_exit(image, at),
            Some(slot) => slot,
        },
        Callee::Slot(slot) => slot,
        Callee::Computed => return false,
    };
    match image.import_at(slot) {
        Some(name) => NEVER_RETURN.contains(&name),
        None => constant(image, slot).is_some_and(|at| has_no_exit(image, at)),
    }
}

/// The function of the file whose address a slot always holds: the loader computes it from the place of the file, and the program cannot
/// write the slot afterwards. Rust calls its own functions so.
fn constant(image: &AnalysedImage, slot: Svma) -> Option<Svma> {
    image.pointers().get(slot.0).map(Svma).filter(|_| !image.elf().is_variable(slot.0))
}

/// Whether a function of the file begins at an address, and control never comes back from it.
fn has_no_exit(image: &AnalysedImage, at: Svma) -> bool {
    image.function_at(at).is_some_and(|function| !may_return(image, function))
}

/// Whether control may come back from a function, because it has an exit or is not proven to have none. All calls that the function makes
/// are assumed to return.
fn may_return(image: &AnalysedImage, function: &Function) -> bool {
    let unknown = function.kind != FunctionKind::Normal || image.elf().is_go() || function.facts.unresolved.is_some();
    unknown
        || image.returns.get(function.start, || {
            let graph = FlowGraph::with_all_returns(&DecodedFunction::new(image, function));
            graph.doubts.ways_out.is_some() || !graph.found.exits.is_empty() || !graph.found.runs_on.is_empty()
        })
}

/// The callee of a call; `None` at a system call.
pub(crate) fn callee(i: &Instruction) -> Option<Callee> {
    match ControlTransfer::of(i) {
        ControlTransfer::Call(to) => Some(Callee::Direct(Svma(to))),
        ControlTransfer::IndirectCall if i.is_ip_rel_memory_operand() => {
            Some(Callee::Slot(Svma(i.ip_rel_memory_address())))
        }
        ControlTransfer::IndirectCall => Some(Callee::Computed),
        _ => None,
    }
}
