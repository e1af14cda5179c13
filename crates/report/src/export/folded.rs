//! Folded stacks, which flamegraph.pl, inferno, speedscope and many services read (<https://github.com/brendangregg/FlameGraph>).
//!
//! A context is a line with the names of the functions from the root on, `;` between them, a blank, and the value of the context alone.
//! Contexts that differ in their call sites are one stack. Contexts whose value is not positive are left out, because readers refuse them.

use std::fmt::Write;

use super::Exporter;
use super::stacks::{Stacks, names, positive};
use super::text::one_line;
use crate::contexts::{ContextProfile, ContextValue};
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "folded",
    reader: "flamegraph.pl",
    kinds: &[ProfileKind::Contexts],
    of_one_module: false,
    why_empty: Some("no context has a value"),
    write: |program, options| {
        program.contexts().map(|tree| folded(program, tree, options.value).into()).unwrap_or_default()
    },
};

fn folded(program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) -> String {
    let tree = tree.by_function();
    let names: Vec<String> = names(program, &tree).iter().map(|name| one_line(name).replace(';', ":")).collect();
    let stacks = Stacks::of(&tree);
    let mut values = positive(&tree, of);
    stacks.lift(&mut values);
    let mut text = String::new();
    for index in &stacks.order {
        let value = values.get(*index).copied().unwrap_or(0);
        if value == 0 {
            continue;
        }
        let contexts = stacks.upwards(*index).filter_map(|at| tree.contexts.get(at));
        let mut stack: Vec<&str> = contexts.filter_map(|c| names.get(c.function)).map(String::as_str).collect();
        stack.reverse();
        // Writing to a text does not fail.
        let _written = writeln!(text, "{} {value}", stack.join(";"));
    }
    text
}
