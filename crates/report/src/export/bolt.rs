//! The pre-aggregated profile that `perf2bolt --pa` and `llvm-bolt --pa` read (bolt/docs/profiles.md of LLVM).
//!
//! A branch is a line `B FROM TO COUNT MISPREDICTED`, a transfer to the next instruction a line `F FROM TO COUNT`. Addresses are those
//! in the file, in hexadecimal. Mispredictions are not measured.

use std::fmt::Write;

use super::Exporter;
use super::branches::{TransferForm, entered, transfers};
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "bolt",
    reader: "llvm-bolt -pa, by addresses",
    kinds: &[ProfileKind::Counts],
    of_one_module: true,
    why_empty: None,
    write: |program, options| bolt(program, options.module).into(),
};

/// The profile of one module for BOLT, by addresses. `module` is the index of the module.
fn bolt(program: &ProfiledProgram<'_>, module: usize) -> String {
    let mut text = String::new();
    let base = program.base(module);
    let at = |address: ingraft_model::Svma| address.0.wrapping_sub(base);
    for routine in program.functions().filter(|routine| routine.function.module == module) {
        for transfer in transfers(&routine) {
            let (from, to, count) = (at(transfer.from), at(transfer.to), transfer.count);
            // Writing to a text does not fail.
            let _written = match transfer.form {
                TransferForm::Branch | TransferForm::Call => writeln!(text, "B {from:x} {to:x} {count} 0"),
                TransferForm::FallThrough => writeln!(text, "F {from:x} {to:x} {count}"),
            };
        }
    }
    for (to, count) in entered(program, module) {
        let _written = writeln!(text, "B X:0 {:x} {count} 0", at(to));
    }
    text
}
