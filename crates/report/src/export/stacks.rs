//! Calling contexts as stacks of functions.

use crate::contexts::{ContextFunction, ContextProfile, ContextValue, TreeStep};
use crate::program::ProfiledProgram;

/// Largest number of functions in a stack. A deep recursion would otherwise need a text whose length grows with the square of the depth.
const STACK_MAX: usize = 500;

/// Name of a function, demangled; without a symbol, the module and the address.
pub(super) fn name(program: &ProfiledProgram<'_>, function: &ContextFunction) -> String {
    if function.name.is_empty() {
        let module = program.profile().modules.get(function.module).map_or("", |module| module.name.as_str());
        return format!("{module}+{:#x}", function.start.0);
    }
    crate::demangle(&function.name).map_or_else(|| function.name.clone(), String::from)
}

/// The names of the functions of a tree, in their order.
pub(super) fn names(program: &ProfiledProgram<'_>, tree: &ContextProfile) -> Vec<String> {
    tree.functions.iter().map(|function| name(program, function)).collect()
}

/// Values of contexts as formats can show them: a negative value is 0.
pub(super) fn positive(tree: &ContextProfile, of: ContextValue) -> Vec<u64> {
    tree.values(of).into_iter().map(|value| u64::try_from(value).unwrap_or(0)).collect()
}

/// The contexts of a tree as stacks that are not too deep.
pub(super) struct Stacks {
    parents: Vec<Option<usize>>,
    /// The contexts in the order of a walk through the tree, without those that are too deep.
    pub order: Vec<usize>,
}

impl Stacks {
    pub(super) fn of(tree: &ContextProfile) -> Self {
        let depths = tree.depths();
        let mut order = Vec::with_capacity(tree.contexts.len());
        tree.walk(|step| match step {
            TreeStep::Into(index) if depths.get(index).is_some_and(|depth| *depth <= STACK_MAX) => order.push(index),
            TreeStep::Into(_) | TreeStep::OutOf(_) => {}
        });
        // The parents of contexts that are not too deep are not too deep either; the others stay in the list as a chain to one.
        Stacks { parents: tree.contexts.iter().map(|context| context.parent).collect(), order }
    }

    /// Adds the values of contexts that are too deep to those of their ancestors. All sums stay the same.
    pub(super) fn lift(&self, values: &mut [u64]) {
        let mut is_shown = vec![false; values.len()];
        for index in &self.order {
            is_shown.get_mut(*index).into_iter().for_each(|shown| *shown = true);
        }
        for index in (0..values.len()).rev() {
            if is_shown.get(index).copied().unwrap_or(false) {
                continue;
            }
            let value = values.get_mut(index).map(std::mem::take).unwrap_or(0);
            let parent = self.parents.get(index).copied().flatten();
            if let Some(above) = parent.and_then(|parent| values.get_mut(parent)) {
                *above = above.saturating_add(value);
            }
        }
    }

    /// The contexts from a context up to its root.
    pub(super) fn upwards(&self, index: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(index), |at| self.parents.get(*at).copied().flatten())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contexts::tests::{small, tree};

    proptest! {
        #[test]
        fn no_value_is_lost(tree in tree(1)) {
            let values = positive(&tree, ContextValue::Calls);
            let (stacks, mut lifted) = (Stacks::of(&tree), values.clone());
            stacks.lift(&mut lifted);
            prop_assert_eq!(lifted, values);
            prop_assert_eq!(stacks.order.len(), tree.contexts.len());
        }
    }

    #[test]
    fn contexts_that_are_too_deep_count_in_their_ancestors() {
        let mut tree = small();
        let (first, more) = (tree.contexts.len(), STACK_MAX + 5);
        let context = tree.contexts[2].clone();
        let chain = (first..first + more).map(|n| crate::CallingContext { parent: Some(n - 1), ..context.clone() });
        let chain: Vec<_> = chain.collect();
        tree.contexts.extend(chain);
        let (stacks, mut values) = (Stacks::of(&tree), positive(&tree, ContextValue::Metric(0)));
        let total: u64 = values.iter().sum();
        stacks.lift(&mut values);
        // The chain is below a context with depth 3.
        let deepest = first + STACK_MAX - 4;
        assert_eq!(stacks.upwards(deepest).count(), STACK_MAX);
        assert_eq!((values[deepest], values[deepest - 1], values[deepest + 1]), (400 * 9, 400, 0));
        assert_eq!(stacks.order.iter().map(|at| values[*at]).sum::<u64>(), total);
    }
}
