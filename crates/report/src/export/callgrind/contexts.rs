//! Calling contexts as Callgrind writes calls: the value of each function alone, and of the calls from each call site with all callees. They
//! are exact sums over the contexts.
//!
//! callgrind_annotate takes the costs of the calls to a function for the inclusive cost of the function, or its own cost and those of the calls
//! from it if nothing calls it. In a recursion, a call of a function inside of another call of the same function therefore costs nothing: it
//! is a part of the outer call. A function that is both a root and called has a caller without a name, so that the root counts too.

use std::collections::BTreeMap;

use ingraft_model::Svma;
use rustc_hash::FxHashSet;

use super::{CallgrindWriter, UNKNOWN, head};
use crate::contexts::{CallingContext, ContextFunction, ContextProfile, ContextValue, TreeStep};
use crate::export::stacks::positive;
use crate::program::ProfiledProgram;

/// Name of the caller of roots.
const ROOT: &str = "(root)";

/// The calls of a function from one place.
#[derive(Default)]
struct SiteCalls {
    calls: u64,
    /// Inclusive costs, one for each event.
    costs: Vec<u64>,
}

/// The functions of a tree with their costs.
#[derive(Default)]
struct ContextCosts {
    /// Costs of each function alone, one for each event.
    own: Vec<Vec<u64>>,
    /// Calls by caller, address in the caller, and callee.
    calls: BTreeMap<(usize, Svma, usize), SiteCalls>,
    /// The roots, by function, of the functions that are called too.
    roots: BTreeMap<usize, SiteCalls>,
}

/// The profile as Callgrind writes it, with all values as events, the value `of` first.
pub(super) fn callgrind(program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) -> String {
    let all = std::iter::once(ContextValue::Calls).chain((0..tree.metrics.len()).map(ContextValue::Metric));
    let events: Vec<ContextValue> = std::iter::once(of).chain(all.filter(|other| *other != of)).collect();
    let costs = ContextCosts::of(tree, &events);
    let names: Vec<String> = events.iter().map(|event| event_name(tree.value_name(*event))).collect();
    let totals: Vec<u64> = (0..events.len()).map(|event| costs.total(event)).collect();
    let mut writer = CallgrindWriter { text: head(program, &names.join(" "), &spaced(&totals)), ..Default::default() };
    let mut order: Vec<usize> = (0..tree.functions.len()).collect();
    let first = |function: &usize| costs.own.get(*function).and_then(|own| own.first()).copied().unwrap_or(0);
    order.sort_by_key(|function| std::cmp::Reverse(first(function)));
    for number in order {
        writer.tracked(program, tree, &costs, number);
    }
    writer.roots(program, tree, &costs);
    writer.text += &format!("totals: {}\n", spaced(&totals));
    writer.text
}

/// Numbers with blanks between them.
fn spaced(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

/// Name of an event, which has no blanks.
fn event_name(value: &str) -> String {
    let name = value.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' });
    name.collect()
}

impl ContextCosts {
    fn of(tree: &ContextProfile, events: &[ContextValue]) -> Self {
        let own: Vec<Vec<u64>> = events.iter().map(|event| positive(tree, *event)).collect();
        let inclusive: Vec<Vec<u64>> = own.iter().map(|values| inclusive(tree, values.clone())).collect();
        let none = vec![0; events.len()];
        let mut costs = ContextCosts { own: vec![none; tree.functions.len()], ..ContextCosts::default() };
        // For each function, the number of its contexts from the root to the present one.
        let mut open = vec![0_usize; tree.functions.len()];
        tree.walk(|step| {
            let (TreeStep::Into(index) | TreeStep::OutOf(index)) = step;
            let Some(context) = tree.contexts.get(index) else { return };
            let Some(open) = open.get_mut(context.function) else { return };
            if step == TreeStep::OutOf(index) {
                *open = open.saturating_sub(1);
                return;
            }
            costs.own.get_mut(context.function).into_iter().for_each(|sum| add(sum, &own, index));
            let caller = context.parent.and_then(|parent| tree.contexts.get(parent));
            let call = match caller {
                Some(caller) => {
                    let at = place(tree, caller, context);
                    costs.calls.entry((caller.function, at, context.function)).or_default()
                }
                None => costs.roots.entry(context.function).or_default(),
            };
            call.calls = call.calls.saturating_add(context.calls);
            call.costs.resize(events.len(), 0);
            if *open == 0 {
                add(&mut call.costs, &inclusive, index);
            }
            *open += 1;
        });
        let called: FxHashSet<usize> = costs.calls.keys().map(|(.., callee)| *callee).collect();
        costs.roots.retain(|function, _| called.contains(function));
        costs
    }

    /// Sum of an event over all functions.
    fn total(&self, event: usize) -> u64 {
        let costs = self.own.iter().filter_map(|costs| costs.get(event));
        costs.fold(0, |sum: u64, cost| sum.saturating_add(*cost))
    }
}

/// Values of contexts with all contexts below them.
fn inclusive(tree: &ContextProfile, mut values: Vec<u64>) -> Vec<u64> {
    for (index, context) in tree.contexts.iter().enumerate().rev() {
        let below = values.get(index).copied().unwrap_or(0);
        if let Some(value) = context.parent.and_then(|parent| values.get_mut(parent)) {
            *value = value.saturating_add(below);
        }
    }
    values
}

/// Adds the values of a context, one for each event.
fn add(sums: &mut [u64], values: &[Vec<u64>], context: usize) {
    for (sum, values) in sums.iter_mut().zip(values) {
        *sum = sum.saturating_add(values.get(context).copied().unwrap_or(0));
    }
}

/// Address of a call in the caller, which is that of the byte before the return address; the first byte of the caller if a function between
/// the two has made the call.
fn place(tree: &ContextProfile, caller: &CallingContext, callee: &CallingContext) -> Svma {
    let Some(function) = tree.functions.get(caller.function) else { return Svma(0) };
    let call = callee.site.at.0.wrapping_sub(1);
    let is_inside = call.checked_sub(function.start.0).is_some_and(|offset| offset < function.size);
    if callee.site.module == Some(function.module) && is_inside { Svma(call) } else { function.start }
}

impl CallgrindWriter {
    /// Writes a function with its calls.
    fn tracked(&mut self, program: &ProfiledProgram<'_>, tree: &ContextProfile, costs: &ContextCosts, number: usize) {
        let (Some(function), Some(own)) = (tree.functions.get(number), costs.own.get(number)) else { return };
        let calls = costs.calls.range((number, Svma(0), 0)..=(number, Svma(u64::MAX), usize::MAX));
        if own.iter().all(|cost| *cost == 0) && calls.clone().next().is_none() {
            return;
        }
        let (file, line) = declared(program, function);
        let (object, mention) = (self.objects.mention(path(program, function)), self.files.mention(file));
        let name = self.functions.mention(&name(function));
        self.line(format_args!("ob={object}\nfl={mention}\nfn={name}"));
        self.line(format_args!("{:#x} {line} {}", function.start.0, spaced(own)));
        for ((_, at, callee), call) in calls {
            // The line of the call in the function itself, outside of inlined functions.
            let frames = program.code(function.module).map(|code| code.frames(*at)).unwrap_or_default();
            let line = frames.last().filter(|frame| &*frame.file == file).map_or(0, |frame| frame.line);
            self.call_of(program, tree, *callee, call);
            self.line(format_args!("{:#x} {line} {}", at.0, spaced(&call.costs)));
        }
        self.text.push('\n');
    }

    /// Writes the function that stands for the callers of roots.
    fn roots(&mut self, program: &ProfiledProgram<'_>, tree: &ContextProfile, costs: &ContextCosts) {
        if costs.roots.is_empty() {
            return;
        }
        let (object, file, function) =
            (self.objects.mention(UNKNOWN), self.files.mention(UNKNOWN), self.functions.mention(ROOT));
        self.line(format_args!("ob={object}\nfl={file}\nfn={function}"));
        for (root, call) in &costs.roots {
            self.call_of(program, tree, *root, call);
            self.line(format_args!("0x0 0 {}", spaced(&call.costs)));
        }
        self.text.push('\n');
    }

    /// Writes the beginning of a call, without its costs.
    fn call_of(&mut self, program: &ProfiledProgram<'_>, tree: &ContextProfile, callee: usize, call: &SiteCalls) {
        let Some(callee) = tree.functions.get(callee) else { return };
        let (file, line) = declared(program, callee);
        let (object, file) = (self.objects.mention(path(program, callee)), self.files.mention(file));
        let function = self.functions.mention(&name(callee));
        self.line(format_args!("cob={object}\ncfi={file}\ncfn={function}"));
        self.line(format_args!("calls={} {:#x} {line}", call.calls, callee.start.0));
    }
}

/// Source file and line of a function's first instruction.
fn declared<'a>(program: &'a ProfiledProgram<'_>, function: &ContextFunction) -> (&'a str, u32) {
    let code = program.code(function.module);
    code.and_then(|code| code.line(function.start)).unwrap_or((UNKNOWN, 0))
}

fn path<'a>(program: &'a ProfiledProgram<'_>, function: &ContextFunction) -> &'a str {
    program.profile().modules.get(function.module).map_or(UNKNOWN, |module| &module.path)
}

fn name(function: &ContextFunction) -> String {
    if function.name.is_empty() { format!("0x{:x}", function.start.0) } else { function.name.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contexts::tests::tree;

    proptest! {
        #[test]
        fn inclusive_costs_of_functions_count_each_context_once(mut tree in tree(2)) {
            tree.contexts.iter_mut().for_each(|context| context.metrics.iter_mut().for_each(|value| *value = (*value).max(0)));
            let events = [ContextValue::Metric(0), ContextValue::Calls];
            let costs = ContextCosts::of(&tree, &events);
            for (event, of) in events.into_iter().enumerate() {
                for (function, total) in tree.function_totals(of).into_iter().enumerate() {
                    let sum = |calls: &mut dyn Iterator<Item = &SiteCalls>| calls.map(|call| call.costs[event]).sum::<u64>();
                    let to = || costs.calls.iter().filter(|((.., callee), _)| *callee == function).map(|(_, call)| call);
                    let from = costs.calls.iter().filter(|((caller, ..), _)| *caller == function).map(|(_, call)| call);
                    let own = costs.own[function][event];
                    // As callgrind_annotate does.
                    let inclusive = match to().next() {
                        Some(_) => sum(&mut to().chain(costs.roots.get(&function))),
                        None => own + sum(&mut from.into_iter()),
                    };
                    prop_assert_eq!((own as i64, inclusive as i64), (total.own, total.inclusive), "{}", function);
                }
            }
        }
    }
}
