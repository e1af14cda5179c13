//! The JSON format of speedscope (<https://www.speedscope.app/file-format-schema.json>).
//!
//! The profile is a `sampled` one: a stack for each context, whose weight is the value of the context alone. The stacks are in the order of a
//! walk through the tree, so that the view by time shows the tree. Contexts that differ in their call sites are one stack.

use std::fmt::Write;

use super::Exporter;
use super::stacks::{Stacks, names, positive};
use super::text::Quoted;
use crate::contexts::{ContextProfile, ContextUnit, ContextValue};
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "speedscope",
    reader: "speedscope.app",
    kinds: &[ProfileKind::Contexts],
    of_one_module: false,
    why_empty: None,
    write: |program, options| {
        program.contexts().map(|tree| speedscope(program, tree, options.value).into()).unwrap_or_default()
    },
};

fn speedscope(program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) -> String {
    let tree = tree.by_function();
    let name = program.profile().program.rsplit('/').next().unwrap_or_default();
    let mut frames = Vec::new();
    for (function, name) in tree.functions.iter().zip(names(program, &tree)) {
        let line = program.code(function.module).and_then(|code| code.line(function.start));
        let line = line.map(|(file, line)| format!(",\"file\":{},\"line\":{line}", Quoted(file))).unwrap_or_default();
        frames.push(format!("{{\"name\":{}{line}}}", Quoted(&name)));
    }
    let stacks = Stacks::of(&tree);
    let mut values = positive(&tree, of);
    stacks.lift(&mut values);
    let (mut samples, mut weights, mut total) = (Vec::new(), Vec::new(), 0_u64);
    for index in &stacks.order {
        let value = values.get(*index).copied().unwrap_or(0);
        if value == 0 {
            continue;
        }
        let functions = stacks.upwards(*index).filter_map(|at| tree.contexts.get(at)).map(|context| context.function);
        let mut stack: Vec<String> = functions.map(|function| function.to_string()).collect();
        stack.reverse();
        samples.push(format!("[{}]", stack.join(",")));
        weights.push(value.to_string());
        total = total.saturating_add(value);
    }
    let value = tree.value_name(of);
    let unit = match ContextUnit::of(value) {
        ContextUnit::Count => "none",
        ContextUnit::Nanoseconds => "nanoseconds",
        ContextUnit::Bytes => "bytes",
    };
    let title = format!("{name}: {value}");
    let mut text = String::from("{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\n");
    // Writing to a text does not fail.
    let _written = write!(
        text,
        "\"exporter\":\"ingraft@{}\",\"name\":{},\"activeProfileIndex\":0,\n\"shared\":{{\"frames\":[\n{}\n]}},\n\
         \"profiles\":[{{\"type\":\"sampled\",\"name\":{},\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{total},\n\
         \"samples\":[\n{}\n],\n\"weights\":[{}]}}]}}\n",
        env!("CARGO_PKG_VERSION"),
        Quoted(&title),
        frames.join(",\n"),
        Quoted(value),
        samples.join(",\n"),
        weights.join(","),
    );
    text
}
