//! The statistics of a tree of contexts, as in table 3 of the paper.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{ContextKind, ContextProfile};

/// Statistics of a tree of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContextStatistics {
    /// Number of contexts without those of recursive calls.
    pub nodes: u64,
    /// Number of contexts of recursive calls, which lead back to an ancestor.
    pub back_edges: u64,
    /// Largest number of contexts from a root to a leaf.
    pub height: u64,
    /// Mean number of children of the contexts that have any; 0 if none has.
    pub degree: f64,
    /// Mean number of contexts from a root to a leaf; 0 without a context.
    pub leaf_depth: f64,
    /// Largest number of contexts of one function.
    pub replication: u64,
    /// Number of call sites from which a tracked function has called another one, or itself.
    pub call_sites: u64,
    /// Number of call sites whose function made all these calls in one context.
    pub single_sites: u64,
}

impl ContextProfile {
    /// The statistics of the tree. Contexts of recursive calls are back edges: they count as contexts nowhere else.
    pub fn statistics(&self) -> ContextStatistics {
        let depths = self.depths();
        let (mut nodes, mut back_edges, mut of_functions) = (0, 0, FxHashMap::<usize, u64>::default());
        let mut parents = FxHashSet::default();
        let mut callers = FxHashMap::<_, FxHashSet<usize>>::default();
        for context in &self.contexts {
            if let (ContextKind::Call | ContextKind::Recursion(_), Some(parent)) = (context.kind, context.parent) {
                let caller = self.contexts.get(parent).map(|parent| parent.function);
                callers.entry((caller, context.site)).or_default().insert(parent);
            }
            if let ContextKind::Recursion(_) = context.kind {
                back_edges += 1;
                continue;
            }
            nodes += 1;
            *of_functions.entry(context.function).or_default() += 1;
            parents.extend(context.parent);
        }
        let is_node = |index: &usize| {
            self.contexts.get(*index).is_some_and(|context| !matches!(context.kind, ContextKind::Recursion(_)))
        };
        let leaves = (0..self.contexts.len()).filter(|index| is_node(index) && !parents.contains(index));
        let leaf_depths: Vec<usize> = leaves.filter_map(|leaf| depths.get(leaf)).copied().collect();
        let children = self.contexts.iter().enumerate().filter(|(index, c)| c.parent.is_some() && is_node(index));
        ContextStatistics {
            nodes,
            back_edges,
            height: leaf_depths.iter().max().map_or(0, |depth| *depth as u64),
            degree: mean(children.count() as f64, parents.len()),
            leaf_depth: mean(leaf_depths.iter().map(|depth| *depth as f64).sum(), leaf_depths.len()),
            replication: of_functions.into_values().max().unwrap_or(0),
            call_sites: callers.len() as u64,
            single_sites: callers.values().filter(|contexts| contexts.len() == 1).count() as u64,
        }
    }
}

fn mean(sum: f64, of: usize) -> f64 {
    if of == 0 { 0.0 } else { sum / of as f64 }
}
