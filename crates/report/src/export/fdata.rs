//! The profile format of BOLT by symbols (fdata), which `llvm-bolt -data` reads and BOLT's own instrumented programs write.
//!
//! A line is `1 SYMBOL OFFSET 1 SYMBOL OFFSET MISPREDICTED COUNT`, with offsets in hexadecimal. BOLT gives each local symbol a number
//! after a slash, in the order of addresses, because local names need not be unique.

use std::fmt::Write;

use ingraft_model::Svma;

use super::Exporter;
use super::branches::{entered, transfers};
use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::{CallTarget, ProfileKind};

/// A place outside of the module.
const OUTSIDE: &str = "0 [unknown] 0";

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "fdata",
    reader: "llvm-bolt -data, by symbols",
    kinds: &[ProfileKind::Counts],
    of_one_module: true,
    why_empty: None,
    write: |program, options| fdata(program, options.module).into(),
};

/// The profile of one module for BOLT, by symbols. `module` is the index of the module.
fn fdata(program: &ProfiledProgram<'_>, module: usize) -> String {
    let mut text = String::new();
    // Writing to a text does not fail.
    let mut line = |from: &str, to: &str, count: u64| {
        let _written = writeln!(text, "{from} {to} 0 {count}");
    };
    for routine in program.functions().filter(|routine| routine.function.module == module) {
        for transfer in transfers(&routine) {
            line(&place(&routine, transfer.from), &place(&routine, transfer.to), transfer.count);
        }
        for call in routine.function.call_sites.iter().filter(|call| call.count > 0) {
            let to = match &call.callee {
                CallTarget::Named(name) => format!("1 {}@PLT 0", escaped(name)),
                CallTarget::Indirect | CallTarget::Other { .. } => OUTSIDE.to_owned(),
                CallTarget::Own(_) | CallTarget::System => continue,
            };
            if let Some(block) = routine.function.blocks.get(call.block) {
                line(&place(&routine, block.last), &to, call.count);
            }
        }
    }
    for (to, count) in entered(program, module) {
        if let Some(routine) = program.at(module, to) {
            line(OUTSIDE, &place(&routine, to), count);
        }
    }
    text
}

/// An address as a symbol of the module and an offset.
fn place(of: &ProfiledRoutine<'_>, at: Svma) -> String {
    let function = of.function;
    let is_own = at.0.wrapping_sub(function.start.0) < function.size.max(1);
    // The size of a symbol of assembly code may be missing.
    let symbol = of.symbol(at).or_else(|| of.symbol(function.start).filter(|_| is_own));
    let (name, start) = match symbol {
        Some(symbol) => {
            let number = symbol.local.map(|number| format!("/{number}")).unwrap_or_default();
            (escaped(&symbol.name) + &number, symbol.start)
        }
        None if is_own => (escaped(&function.name), function.start),
        None => return OUTSIDE.to_owned(),
    };
    format!("1 {name} {:x}", at.0.wrapping_sub(start.0))
}

/// A name as BOLT writes it: a backslash before blanks and backslashes.
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in super::text::one_line(name).chars() {
        if c == ' ' || c == '\\' {
            text.push('\\');
        }
        text.push(c);
    }
    text
}
