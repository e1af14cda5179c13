//! Transfers of control as BOLT counts them.
//!
//! A basic block of BOLT goes on after a call, and no block of it ends where only the block before leads to the next instruction. Edges
//! at such places are left out.

use ingraft_model::{EdgeKind, Svma};
use rustc_hash::FxHashMap;

use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::{CallTarget, EdgeCount, EdgeEnd};

/// Form of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TransferForm {
    /// A branch, or a jump to another function.
    Branch,
    /// To the next instruction.
    FallThrough,
    /// A call of a function of the module.
    Call,
}

/// A transfer of control that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExecutedTransfer {
    /// Address of the last instruction before it.
    pub(super) from: Svma,
    /// Address of the first instruction after it.
    pub(super) to: Svma,
    pub(super) form: TransferForm,
    /// Number of executions, at least 1.
    pub(super) count: u64,
}

/// The transfers from a function to places in its module, in the order of blocks.
pub(super) fn transfers(routine: &ProfiledRoutine<'_>) -> Vec<ExecutedTransfer> {
    let function = routine.function;
    let mut arrivals = vec![0_u64; function.blocks.len()];
    for edge in &function.edges {
        if let EdgeEnd::Block(to) = edge.to {
            arrivals.get_mut(to).into_iter().for_each(|arrivals| *arrivals += 1);
        }
    }
    let mut found = Vec::new();
    for (number, block) in function.blocks.iter().enumerate() {
        let ends_by_branch = routine.edges_from(number).any(|edge| !is_next(edge));
        for edge in routine.edges_from(number) {
            let Some(count) = edge.count.filter(|count| *count > 0) else { continue };
            let (to, alone) = match edge.to {
                EdgeEnd::Block(to) => match function.blocks.get(to) {
                    Some(next) => (next.start, arrivals.get(to) == Some(&1)),
                    None => continue,
                },
                EdgeEnd::Outside(at) => (at, false),
                EdgeEnd::Dynamic => continue,
            };
            if is_next(edge) && alone && !ends_by_branch {
                continue;
            }
            let form = if is_next(edge) { TransferForm::FallThrough } else { TransferForm::Branch };
            found.push(ExecutedTransfer { from: block.last, to, form, count });
        }
        for call in routine.calls_from(number).filter(|call| call.count > 0) {
            if let CallTarget::Own(to) = call.callee {
                found.push(ExecutedTransfer { from: block.last, to, form: TransferForm::Call, count: call.count });
            }
        }
    }
    found
}

/// Whether an edge leads to the next instruction.
fn is_next(edge: &EdgeCount) -> bool {
    match edge.kind {
        EdgeKind::FallThrough | EdgeKind::CallReturn => true,
        EdgeKind::Taken | EdgeKind::JumpTable | EdgeKind::TailJump | EdgeKind::Return => false,
    }
}

/// The functions of a module that were called from places that the profile does not know: address, and number of such calls.
pub(super) fn entered(program: &ProfiledProgram<'_>, module: usize) -> Vec<(Svma, u64)> {
    let mut known: FxHashMap<Svma, u64> = FxHashMap::default();
    let routines = || program.functions().filter(|routine| routine.function.module == module);
    for routine in routines() {
        let own = routine.function.start..Svma(routine.function.start.0.saturating_add(routine.function.size));
        for transfer in transfers(&routine) {
            // A branch of a function to its own first instruction is no call.
            if transfer.form == TransferForm::Call || !own.contains(&transfer.to) {
                let count = known.entry(transfer.to).or_default();
                *count = count.saturating_add(transfer.count);
            }
        }
    }
    let unknown = routines().map(|routine| {
        let start = routine.function.start;
        (start, routine.function.calls.saturating_sub(known.get(&start).copied().unwrap_or(0)))
    });
    unknown.filter(|(_, count)| *count > 0).collect()
}
