//! Differences between two profiles of the same program.

use std::collections::BTreeMap;

use ingraft_model::Svma;

use crate::merge::{MergeError, matched, same_kind};
use crate::saved::{BlockCount, FunctionProfile, SavedProfile};

/// An old and a new number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountChange {
    /// Number in the old profile; 0 if it has none.
    pub old: u64,
    /// Number in the new profile; 0 if it has none.
    pub new: u64,
}

impl CountChange {
    /// The new number minus the old one.
    pub fn difference(&self) -> i128 {
        i128::from(self.new) - i128::from(self.old)
    }
}

/// A function whose counts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionChange {
    /// Name of the module.
    pub module: String,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Executed instructions.
    pub instructions: CountChange,
    /// Arrivals from outside at the first byte.
    pub calls: CountChange,
    /// Blocks whose counts differ, the largest difference first.
    pub blocks: Vec<BlockChange>,
}

/// A block whose counts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChange {
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Number of executions.
    pub count: CountChange,
}

/// A function in both profiles.
#[derive(Clone, Copy, Default)]
struct FunctionPair<'a> {
    old: Option<&'a FunctionProfile>,
    new: Option<&'a FunctionProfile>,
}

/// The functions whose counts differ between two profiles, the largest difference of executed instructions first. Functions are the same if
/// the build-ids of their modules and their addresses are. Fails if a module has another build-id in the other profile,
/// or if the profiles have different kinds. Differences of calling contexts are those of [`context_diff`](crate::context_diff).
pub fn diff(old: &SavedProfile, new: &SavedProfile) -> Result<Vec<FunctionChange>, MergeError> {
    same_kind(old.kind, new.kind)?;
    let modules = matched(&old.modules, &new.modules)?;
    // Modules of the old profile that the new one does not have come after the new modules.
    let module =
        |index: usize| modules.get(index).copied().flatten().unwrap_or(new.modules.len().saturating_add(index));
    let mut pairs: BTreeMap<(usize, Svma), FunctionPair<'_>> = BTreeMap::new();
    for function in &old.functions {
        pairs.entry((module(function.module), function.start)).or_default().old = Some(function);
    }
    for function in &new.functions {
        pairs.entry((function.module, function.start)).or_default().new = Some(function);
    }
    let name = |profile: &SavedProfile, function: &FunctionProfile| {
        profile.modules.get(function.module).map(|module| module.name.clone()).unwrap_or_default()
    };
    let mut changes: Vec<FunctionChange> = Vec::new();
    for FunctionPair { old: before, new: after } in pairs.into_values() {
        let (function, module) = match (before, after) {
            (_, Some(function)) => (function, name(new, function)),
            (Some(function), None) => (function, name(old, function)),
            (None, None) => continue,
        };
        let change =
            |of: &dyn Fn(&FunctionProfile) -> u64| CountChange { old: before.map_or(0, of), new: after.map_or(0, of) };
        let blocks = blocks(FunctionPair { old: before, new: after });
        let calls = change(&|function| function.calls);
        if blocks.is_empty() && calls.old == calls.new {
            continue;
        }
        changes.push(FunctionChange {
            module,
            name: function.name.clone(),
            start: function.start,
            instructions: change(&FunctionProfile::executed),
            calls,
            blocks,
        });
    }
    changes.sort_by_key(|change| std::cmp::Reverse(change.instructions.difference().unsigned_abs()));
    Ok(changes)
}

/// The blocks whose counts differ.
fn blocks(pair: FunctionPair<'_>) -> Vec<BlockChange> {
    let mut counts: BTreeMap<Svma, CountChange> = BTreeMap::new();
    let of = |function: Option<&'_ FunctionProfile>| -> Vec<BlockCount> {
        function.map(|function| function.blocks.clone()).unwrap_or_default()
    };
    for block in of(pair.old) {
        counts.entry(block.start).or_default().old = block.count;
    }
    for block in of(pair.new) {
        counts.entry(block.start).or_default().new = block.count;
    }
    let differ = counts.into_iter().filter(|(_, count)| count.old != count.new);
    let mut found: Vec<_> = differ.map(|(start, count)| BlockChange { start, count }).collect();
    found.sort_by_key(|block| std::cmp::Reverse(block.count.difference().unsigned_abs()));
    found
}
