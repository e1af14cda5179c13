//! Values by function.

use super::{ContextProfile, ContextValue};

/// Values of all contexts of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTotal {
    /// Number of calls.
    pub calls: u64,
    /// Sum of the values of the contexts alone.
    pub own: i64,
    /// Sum of the values of the contexts with all contexts below them. A context below another one of the same function does not count again.
    pub inclusive: i64,
}

/// A step of a walk through the tree, which visits the children of a context after the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TreeStep {
    /// To the context with this index.
    Into(usize),
    /// Out of the context with this index, after all contexts below it.
    OutOf(usize),
}

impl ContextProfile {
    /// The values by function, in the order of [`ContextProfile::functions`].
    pub fn function_totals(&self, of: ContextValue) -> Vec<FunctionTotal> {
        let (values, inclusive) = (self.values(of), self.inclusive(of));
        let value = |index: usize| values.get(index).copied().unwrap_or(0);
        let mut totals = vec![FunctionTotal::default(); self.functions.len()];
        // For each function, the number of its contexts from the root to the present one.
        let mut open = vec![0_usize; self.functions.len()];
        self.walk(|step| {
            let (TreeStep::Into(index) | TreeStep::OutOf(index)) = step;
            let Some(context) = self.contexts.get(index) else { return };
            let Some((total, open)) = totals.get_mut(context.function).zip(open.get_mut(context.function)) else {
                return;
            };
            if step == TreeStep::OutOf(index) {
                *open = open.saturating_sub(1);
                return;
            }
            total.calls = total.calls.saturating_add(context.calls);
            total.own = total.own.saturating_add(value(index));
            if *open == 0 {
                total.inclusive = total.inclusive.saturating_add(inclusive.get(index).copied().unwrap_or(0));
            }
            *open += 1;
        });
        totals
    }

    /// Walks through the tree. Children come in their order.
    pub(crate) fn walk(&self, mut visit: impl FnMut(TreeStep)) {
        let children = self.children();
        let into = |of: Option<usize>| {
            let mut steps: Vec<_> = children.of(of).map(TreeStep::Into).collect();
            steps.reverse();
            steps
        };
        let mut stack = into(None);
        while let Some(step) = stack.pop() {
            if let TreeStep::Into(index) = step {
                stack.push(TreeStep::OutOf(index));
                stack.append(&mut into(Some(index)));
            }
            visit(step);
        }
    }
}
